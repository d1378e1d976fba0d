// Tests of the checks that precede the use of a GPU (every error with its exit code), and of the table of peak rates.
#include <math.h>

#include "coat/cuda/device_check.h"
#include "dev/test/unit.h"

static Error err; // error of the last failed call

// Fields of a GPU that passes all checks, without its name. Test cases override single fields.
#define GOOD                                                                                                           \
    .driver_version = 13000, .runtime_version = 13000, .count = 2, .index = 1, .kernels_match = true, .needs_fp8 = true
#define H200 .name = "NVIDIA H200", .major = 9

UNIT_TEST(supported_gpus_pass) {
    static const DeviceQuery good[] = {{GOOD, H200},
                                       {GOOD, .name = "NVIDIA L40S", .major = 8, .minor = 9},
                                       {.driver_version = 13000,
                                        .runtime_version = 13000,
                                        .count = 2,
                                        .index = 1,
                                        .kernels_match = true,
                                        .name = "NVIDIA A100",
                                        .major = 8}, // a BF16 run does not need FP8 support
                                       {.driver_version = 13020,
                                        .runtime_version = 13000,
                                        .count = 2,
                                        .index = 1,
                                        .kernels_match = true,
                                        .needs_fp8 = true,
                                        H200}}; // the driver supports a newer CUDA version than the build's
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!device_check(&good[i], &err)) fail_msg("%s", err.text);
}

#define FOUND .runtime_version = 13000, .index = 1, .kernels_match = true, .needs_fp8 = true

// Tests that every failed check has the code EXIT_DEVICE and an error of one line that names the object and a remedy.
UNIT_TEST(unsupported_gpus_are_refused_with_a_remedy) {
    static const struct {
        DeviceQuery query;
        const char *object, *remedy;
    } cases[] = {
        // If there is no driver, the CUDA runtime reports driver version 0, which is too old.
        {{FOUND, H200, .driver_version = 0, .driver_too_old = true}, "no NVIDIA driver", "--device cpu"},
        {{FOUND, H200, .driver_version = 12040, .driver_too_old = true}, "supports CUDA 12.4", "update the driver"},
        {{FOUND, H200, .driver_version = 12040, .driver_too_old = true}, "CUDA 13.0", "--device cpu"},
        {{FOUND, H200, .driver_version = 13000}, "no GPU", "CUDA_VISIBLE_DEVICES"},
        {{GOOD, H200, .failure = "system not yet initialized"}, "system not yet initialized", "nvidia-smi"},
        {{FOUND, H200, .driver_version = 13000, .count = 1}, "process 1", "fewer processes"},
        {{.driver_version = 13000, .runtime_version = 13000, .count = 2, .index = -1, H200},
         "process -1",
         "fewer processes"},
        {{GOOD, .name = "Tesla V100-SXM2-32GB", .major = 7},
         "Tesla V100-SXM2-32GB has compute capability 7.0",
         "--device cpu"},
        {{GOOD, .name = "NVIDIA A100", .major = 8}, "compute capability 8.0", "--linear bf16"},
        {{GOOD, .name = "NVIDIA A10", .major = 8, .minor = 6}, "compute capability 8.6", "--recipe bf16"},
        {{.driver_version = 13000,
          .runtime_version = 13000,
          .count = 2,
          .index = 1,
          .needs_fp8 = true,
          .name = "NVIDIA B200",
          .major = 10},
         "NVIDIA B200 (compute capability 10.0)",
         "run make"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_false(device_check(&cases[i].query, &err));
        assert_int_equal(err.code, EXIT_DEVICE);
        if (!strstr(err.text, cases[i].object) || !strstr(err.text, cases[i].remedy))
            fail_msg("'%s' lacks '%s' or '%s'", err.text, cases[i].object, cases[i].remedy);
        assert_null(strchr(err.text, '\n'));
    }
}

UNIT_TEST(fp8_needs_compute_capability_8_9) {
    assert_true(device_has_fp8(8, 9) && device_has_fp8(9, 0) && device_has_fp8(12, 0));
    assert_false(device_has_fp8(8, 6) || device_has_fp8(8, 0) || device_has_fp8(7, 5));
}

UNIT_TEST(peak_rates_of_known_gpus) {
    static const struct {
        const char *name;
        double tflops;
    } peaks[] = {{"NVIDIA H200", 989.4},
                 {"NVIDIA H100 80GB HBM3", 989.4},
                 {"NVIDIA H100 PCIe", 756},
                 {"NVIDIA A100-SXM4-80GB", 312},
                 {"NVIDIA A10", 125},
                 {"NVIDIA A10G", 70},
                 {"NVIDIA L40S", 362},
                 {"NVIDIA L4", 121},
                 {"NVIDIA GH200 480GB", 989.4},
                 {"NVIDIA GeForce RTX 3090 Ti", 80},
                 {"NVIDIA GeForce RTX 3090", 71},
                 {"NVIDIA H200 NVL", 835},
                 {"NVIDIA B200", 2250},
                 {"NVIDIA GB200", 2500},
                 {"NVIDIA RTX 6000 Ada Generation", 364},
                 {"NVIDIA GeForce RTX 5080", 112.6},
                 {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8},
                 // The rate of a GPU that is not listed is unknown, which counts as 0. Some of these names contain the
                 // name of a listed GPU.
                 {"NVIDIA RTX A4000", 0},
                 {"NVIDIA GB10", 0},
                 {"NVIDIA RTX PRO 6000 Blackwell Server Edition", 0},
                 {"NVIDIA GeForce RTX 5070 Ti", 0},
                 {"NVIDIA RTX A1000", 0},
                 {"NVIDIA L400", 0},
                 {"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 0},
                 {"NVIDIA GeForce RTX 4080 SUPER", 0},
                 {"NVIDIA GeForce RTX 4090 D", 0},
                 {"NVIDIA GeForce RTX 5090 Laptop GPU", 0},
                 {"NVIDIA A100-SXM4-40GB MIG 3g.20gb", 0},
                 {"Some Other GPU", 0},
                 {"", 0}};
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        if (fabs(device_peak_flops(peaks[i].name) - peaks[i].tflops * 1e12) > 1) fail_msg("%s", peaks[i].name);
}

RUN_TESTS(NULL, NULL, NULL)
