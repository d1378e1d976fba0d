// A fake device for tests of host code. It allocates and copies host memory and has no other operations.
#pragma once
#include <string.h>

#include "coat/model/arena.h"

static inline void *fake_allocate(Exec *exec, size_t bytes, Error *err) {
    (void)exec;
    (void)err;
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (memory) memset(memory, 0xa5, bytes); // fills the memory, because new device memory has undefined contents
    return memory;
}

static inline void fake_release(Exec *exec, void *memory) {
    (void)exec;
    free(memory);
}

static inline void fake_copy(Exec *exec, void *to, const void *from, size_t bytes) {
    (void)exec;
    memcpy(to, from, bytes);
}

static inline void fake_zero(Exec *exec, void *device, size_t bytes) {
    (void)exec;
    memset(device, 0, bytes);
}

// Initializes exec with the fake device's operations in *ops, which must outlive exec.
static inline void fake_open(Exec *exec, Ops *ops) {
    memset(ops, 0, sizeof *ops);
    memset(exec, 0, sizeof *exec);
    ops->name = "fake";
    ops->device = DEVICE_CPU;
    ops->allocate = fake_allocate;
    ops->release = fake_release;
    ops->upload = fake_copy;
    ops->download = fake_copy;
    ops->zero = fake_zero;
    exec->ops = ops;
    exec->ranks = 1;
}
