// The CPU backend's table of operations.
#include "cpu_internal.h"

const Ops *cpu_ops(void) {
    static const Ops ops = {
        .name = "cpu",
        .open = cpu_open,
        .close = cpu_close,
        .allocate = cpu_allocate,
        .release = cpu_release,
        .memory_free = cpu_memory_free,
        .upload = cpu_copy,
        .download = cpu_copy,
        .zero = cpu_zero,
        .copy = cpu_copy,
        .synchronize = cpu_synchronize,
        .replay_begin = cpu_replay_begin,
        .replay_end = cpu_replay_end,
        .range_push = cpu_range_push,
        .range_pop = cpu_range_pop,
        .profile = cpu_profile,
        .describe = cpu_describe,
        .memory_in_use = cpu_memory_in_use,
        .peak_flops = cpu_peak_flops,
#define OPERATION(name, parameters) .name = cpu_##name,
#include "operations.h"
#undef OPERATION
    };
    return &ops;
}
