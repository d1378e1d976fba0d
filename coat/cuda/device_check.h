// Decides whether this machine's GPU can run the program, in plain C from the driver's answers, so that the cases
// without a GPU, with an old driver or with an old GPU can be tested on any machine.
#pragma once
#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

// The CUDA runtime's answers about the GPU that this process is to use.
typedef struct {
    int driver_version;  // newest CUDA version that the driver supports, 1000 * major + 10 * minor; 0: no driver
    int runtime_version; // CUDA version that the program was built with
    bool driver_too_old; // true if the CUDA runtime does not support the driver
    char failure[160];   // the runtime's message if querying the GPUs failed for another reason, else ""
    int count;           // GPUs that this process may use
    int index;           // index of the GPU to use: this process's rank on this machine
    char name[256];      // this and the following fields describe GPU `index`; undefined if it does not exist
    int major, minor;    // compute capability
    bool kernels_match;  // true if the program contains machine code for this GPU
    bool needs_fp8;      // the recipe uses FP8 matmuls
} DeviceQuery;

// True if the GPU can be used. Otherwise sets err to EXIT_DEVICE and one line with the reason and the remedy.
bool device_check(const DeviceQuery *query, Error *err);

// True if GPUs of this compute capability have FP8 matmuls.
bool device_has_fp8(int major, int minor);

// Returns the dense BF16 peak (FP32 accumulation) in FLOP/s from the vendor's data sheets, given the driver's name of
// the GPU; 0 if unknown.
double device_peak_flops(const char *name);

#ifdef __cplusplus
}
#endif
