// Defines the CPU backend's table of functions (struct Ops) from operations.h and device_functions.h.
#include "cpu_internal.h"

const Ops *cpu_ops(void) {
    static const Ops ops = {
        .name = "cpu",
        .device = DEVICE_CPU,
#define DEVICE_FUNCTION(name, result, parameters) .name = cpu_##name,
#define DEVICE_FUNCTION_OF_GPU(name, result, parameters)
#include "device_functions.h"
#undef DEVICE_FUNCTION
#define OPERATION(name, parameters) .name = cpu_##name,
#include "operations.h"
#undef OPERATION
    };
    return &ops;
}
