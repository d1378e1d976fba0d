// Lists the functions of a device that are not operations of the model (operations.h lists those). Define
//     DEVICE_FUNCTION(name, result, parameters)
// and include this file; ops.h and the backends derive their tables from this list. DEVICE_FUNCTION_OF_GPU, if defined,
// is used for the functions that only a GPU has. These functions are NULL in other backends' tables.
// clang-format off
#ifndef DEVICE_FUNCTION_OF_GPU
#define DEVICE_FUNCTION_OF_GPU(name, result, parameters) DEVICE_FUNCTION(name, result, parameters)
#endif

// Opens the device and sets exec->backend. Returns false with err on failure.
DEVICE_FUNCTION(open, bool, (Exec *exec, const Config *config, Error *err))
DEVICE_FUNCTION(close, void, (Exec *exec))
// Allocates the run's device memory, aligned to 256 bytes, contents undefined. Returns NULL with err if there is too
// little memory.
DEVICE_FUNCTION(allocate, void *, (Exec *exec, size_t bytes, Error *err))
DEVICE_FUNCTION(release, void, (Exec *exec, void *memory))
// Returns about how many bytes allocate() could allocate; 0 if unknown.
DEVICE_FUNCTION(memory_free, int64_t, (Exec *exec))
// Returns page-locked host memory, to which downloads are fastest; NULL if there is too little memory. If a backend
// lacks this function, callers download to pageable memory.
DEVICE_FUNCTION_OF_GPU(host_allocate, void *, (Exec *exec, size_t bytes))
DEVICE_FUNCTION_OF_GPU(host_release, void, (Exec *exec, void *memory))
// Copies host memory to the device. The caller may change `host` after the return.
DEVICE_FUNCTION(upload, void, (Exec *exec, void *device, const void *host, size_t bytes))
// Copies device memory to the host after all earlier work on the device. Returns when the copy is complete.
DEVICE_FUNCTION(download, void, (Exec *exec, void *host, const void *device, size_t bytes))
// Fills device memory with zero bytes, after all earlier work on the device.
DEVICE_FUNCTION(zero, void, (Exec *exec, void *device, size_t bytes))
// Waits until all work on the device is complete.
DEVICE_FUNCTION(synchronize, void, (Exec *exec))
// If a sequence of operations was recorded as `id`, replay_begin() replays the recording and returns true. Otherwise,
// replay_begin() returns false and may start a recording; the caller runs the operations and calls replay_end().
DEVICE_FUNCTION(replay_begin, bool, (Exec *exec, int id))
DEVICE_FUNCTION(replay_end, void, (Exec *exec, int id))
// Begin and end a named range in the profiler's timeline.
DEVICE_FUNCTION(range_push, void, (Exec *exec, const char *name))
DEVICE_FUNCTION(range_pop, void, (Exec *exec))
// Starts (`begin`) or stops the recording of an attached profiler (--profile). Waits for earlier work.
DEVICE_FUNCTION(profile, void, (Exec *exec, bool begin))
// Writes a description of the device for the start-up report, such as "NVIDIA H200, 132 SMs, 143155 MiB".
DEVICE_FUNCTION(describe, void, (Exec *exec, char *text, size_t size))
// Returns the bytes of device memory in use by all programs, as the driver reports them; 0 if unknown.
DEVICE_FUNCTION(memory_in_use, int64_t, (Exec *exec))
// Returns the device's dense BF16 peak in FLOP/s; 0 if unknown.
DEVICE_FUNCTION(peak_flops, double, (Exec *exec))
// algos_text() returns the GEMM algorithms that training has used so far (matmul_algos.h), as malloc'ed text; NULL if
// there are none. Identical runs return identical text. A checkpoint stores the text. algos_load() makes a resumed run
// use the algorithms in its checkpoint's text. algos_load() must run before the first matmul, and ignores entries for
// other GPUs.
DEVICE_FUNCTION_OF_GPU(algos_text, char *, (Exec *exec))
DEVICE_FUNCTION_OF_GPU(algos_load, void, (Exec *exec, const char *text))

#undef DEVICE_FUNCTION_OF_GPU
