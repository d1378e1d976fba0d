// Decides whether this machine's GPU can run the program. device_check() does not call CUDA; its input is a
// DeviceQuery. Therefore tests can simulate missing GPUs, old drivers and old GPUs on any machine.
#pragma once
#include "base/error.h"

C_LINKAGE_BEGIN

// Answers of the CUDA runtime about the GPU that this process will use.
typedef struct {
    int driver_version;  // newest CUDA version that the driver supports, 1000 * major + 10 * minor; 0: no driver
    int runtime_version; // CUDA version that the program was built with
    bool driver_too_old; // true if the driver is too old for the CUDA runtime
    // CUDA's error message if a query of the GPUs failed; "" if all queries succeeded, if the driver is too old, or if
    // the machine has no GPU
    char failure[160];
    int count; // number of GPUs that the driver shows to this process
    int index; // index of the GPU to use: rank of this process on this machine, or 0 if only one GPU is visible
    // name, major, minor and kernels_match describe GPU `index`; they are unset if this process has no such GPU
    char name[256];
    int major, minor;   // compute capability of the GPU
    bool kernels_match; // true if the program contains code that this GPU can run
    bool needs_fp8;     // true if the recipe uses FP8 matmuls
} DeviceQuery;

// True if the GPU can be used. Otherwise sets err (EXIT_DEVICE) to one line that names the reason and the remedy.
bool device_check(const DeviceQuery *query, Error *err);

// True if GPUs of this compute capability have FP8 matmuls.
bool device_has_fp8(int major, int minor);

// Returns a GPU's dense BF16 peak (FP32 accumulation) in FLOP/s, from NVIDIA's publications; 0 if unknown. name: the
// driver's name of the GPU.
double device_peak_flops(const char *name);

C_LINKAGE_END
