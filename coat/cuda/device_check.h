// Whether this machine's GPU can run the program, decided in plain C from what the driver answered, so that
// machines without a GPU, with an old driver or with an old GPU can be tested anywhere.
#pragma once
#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the CUDA runtime says about the GPU that this process is to use.
typedef struct {
    int driver_version;  // newest CUDA version that the driver supports, 1000 * major + 10 * minor; 0: no driver
    int runtime_version; // CUDA version that the program was built with
    bool driver_too_old; // the runtime refuses to work with the driver
    char failure[160];   // the runtime's words when asking for the GPUs failed in another way, else ""
    int count;           // GPUs that this process may use
    int index;           // the one it is to use: its rank among the processes of this machine
    char name[256];      // the rest describes GPU `index`; undefined when there is none
    int major, minor;    // compute capability
    bool kernels_match;  // the program holds machine code for it
    bool needs_fp8;      // the recipe multiplies in FP8
} DeviceQuery;

// False with EXIT_DEVICE and one line that says what is wrong and what to do.
bool device_check(const DeviceQuery *query, Error *err);

// Whether a GPU of this compute capability multiplies in FP8.
bool device_has_fp8(int major, int minor);

// Dense BF16 peak with FP32 accumulation in FLOP/s, by the vendor's data sheets, of a GPU by the name the driver
// gives it; 0 = unknown.
double device_peak_flops(const char *name);

#ifdef __cplusplus
}
#endif
