// Checks whether the program supports a GPU before the GPU is used, and lists the peak FLOP/s of GPUs.
#include "device_check.h"

#include <ctype.h>
#include <string.h>

#define OLDEST_MAJOR 8 // major version of the minimum compute capability, 8.0, which introduced BF16 tensor cores
#define CPU_HINT "or run on the CPU with --device cpu"

static bool check_driver(const DeviceQuery *q, Error *err) {
    int runtime_major = q->runtime_version / 1000, runtime_minor = q->runtime_version % 1000 / 10;
    int driver_major = q->driver_version / 1000, driver_minor = q->driver_version % 1000 / 10;
    if (q->driver_version == 0)
        return error_set(err, EXIT_DEVICE, "no GPU: this machine has no NVIDIA driver; install one, " CPU_HINT);
    if (q->driver_too_old)
        return error_set(
            err, EXIT_DEVICE,
            "the NVIDIA driver is too old: it supports CUDA %d.%d, but this program was built with CUDA %d.%d; "
            "update the driver, build with an older CUDA, " CPU_HINT,
            driver_major, driver_minor, runtime_major, runtime_minor);
    if (q->failure[0])
        return error_set(err, EXIT_DEVICE, "the GPU cannot be used: %s; check nvidia-smi, " CPU_HINT, q->failure);
    return true;
}

bool device_has_fp8(int major, int minor) {
    return major * 10 + minor >= 89;
}

bool device_check(const DeviceQuery *q, Error *err) {
    if (!check_driver(q, err)) return false;
    if (q->count <= 0)
        return error_set(err, EXIT_DEVICE,
                         "no GPU: the driver shows none to this process; check CUDA_VISIBLE_DEVICES, " CPU_HINT);
    if (q->index < 0 || q->index >= q->count)
        return error_set(err, EXIT_DEVICE,
                         "process %d of this machine (counted from 0) has no GPU: %d GPUs are visible; start fewer "
                         "processes on this machine",
                         q->index, q->count);
    if (q->major < OLDEST_MAJOR)
        return error_set(err, EXIT_DEVICE,
                         "%s has compute capability %d.%d, but 8.0 or later is needed (8.9 for FP8); use a newer "
                         "GPU, " CPU_HINT,
                         q->name, q->major, q->minor);
    if (q->needs_fp8 && !device_has_fp8(q->major, q->minor))
        return error_set(err, EXIT_DEVICE,
                         "%s has compute capability %d.%d, but FP8 matmuls need 8.9 or later; use --linear bf16 or "
                         "--recipe bf16",
                         q->name, q->major, q->minor);
    if (!q->kernels_match)
        return error_set(err, EXIT_DEVICE,
                         "the program was not built for %s (compute capability %d.%d); run make on this machine",
                         q->name, q->major, q->minor);
    return true;
}

// True if `words` occurs in name and no letter or digit precedes or follows it: "A40" occurs in "NVIDIA A40" but not in
// "NVIDIA RTX A4000".
static bool has_words(const char *name, const char *words) {
    for (const char *at = name; (at = strstr(at, words)); at++)
        if ((at == name || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[strlen(words)])) return true;
    return false;
}

// Returns the rate of the first table row whose words occur in the GPU's name. Therefore the row of a variant ("H200
// NVL") must precede the row of its base model ("H200"). For data center GPUs (Ampere to Blackwell Ultra), rates are
// from NVIDIA's data sheets. For RTX GPUs, they are from NVIDIA's white papers of the Ampere, Ada and Blackwell
// architectures. The rates of RTX 5080 and RTX PRO 6000 are SMs times boost clock times FLOP per clock and SM; for RTX
// 5090, this formula gives the published rate. For other GPUs, returns 0. From compute capability 8.9 on, the dense FP8
// peak is twice the BF16 peak.
double device_peak_flops(const char *name) {
    static const struct {
        const char *words;
        double tera; // BF16 peak in TFLOP/s; 0: unknown
    } peaks[] = {
        {"MIG", 0.0},        {"Laptop", 0.0},     {"H200 NVL", 835},
        {"H100 NVL", 835},   {"H100 PCIe", 756},  {"H800 PCIe", 756},
        {"RTX 3090 Ti", 80}, {"Max-Q", 0.0},      {"SUPER", 0.0},
        {"Ti", 0.0},         {"D", 0.0},          {"GB300", 2500},
        {"GB200", 2500},     {"B300", 2250},      {"B200", 2250},
        {"B100", 1750},      {"GH200", 989.4},    {"H200", 989.4},
        {"H100", 989.4},     {"H800", 989.4},     {"H20", 148},
        {"A100", 312},       {"A800", 312},       {"A10G", 70},
        {"A10", 125},        {"A30", 165},        {"A40", 149.7},
        {"L40S", 362},       {"L40", 181},        {"L4", 121},
        {"6000 Ada", 364},   {"5000 Ada", 261},   {"RTX A6000", 155},
        {"RTX 5090", 209.5}, {"RTX 4090", 165.2}, {"RTX 4080", 97.5},
        {"RTX 3090", 71},    {"RTX 5080", 112.6}, {"RTX PRO 6000 Blackwell Workstation", 503.8},
    };
    for (size_t i = 0; i < sizeof peaks / sizeof peaks[0]; i++)
        if (has_words(name, peaks[i].words)) return peaks[i].tera * 1e12;
    return 0;
}
