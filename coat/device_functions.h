// The functions of a device beside the model's operations (operations.h), once. To be included with
//     #define DEVICE_FUNCTION(name, result, parameters)
// DEVICE_FUNCTION_OF_GPU, where it is defined, takes those that only a GPU has: in other tables they are NULL.
// clang-format off
#ifndef DEVICE_FUNCTION_OF_GPU
#define DEVICE_FUNCTION_OF_GPU(name, result, parameters) DEVICE_FUNCTION(name, result, parameters)
#endif

// Opens the device and fills the exec's backend; on failure err says what and how to go on.
DEVICE_FUNCTION(open, bool, (Exec *exec, const Config *config, Error *err))
DEVICE_FUNCTION(close, void, (Exec *exec))
// The run's only allocation (256-byte aligned, contents undefined); NULL with err when it does not fit.
DEVICE_FUNCTION(allocate, void *, (Exec *exec, size_t bytes, Error *err))
DEVICE_FUNCTION(release, void, (Exec *exec, void *memory))
// Bytes that it could have, about; 0 = unknown, as in a table without it.
DEVICE_FUNCTION(memory_free, int64_t, (Exec *exec))
// Host memory that downloads reach fastest; NULL where there is none to be had. A table without the two: malloc().
DEVICE_FUNCTION_OF_GPU(host_allocate, void *, (Exec *exec, size_t bytes))
DEVICE_FUNCTION_OF_GPU(host_release, void, (Exec *exec, void *memory))
// Returns when `host` may be reused.
DEVICE_FUNCTION(upload, void, (Exec *exec, void *device, const void *host, size_t bytes))
// Waits for the work before it.
DEVICE_FUNCTION(download, void, (Exec *exec, void *host, const void *device, size_t bytes))
DEVICE_FUNCTION(zero, void, (Exec *exec, void *device, size_t bytes))
// Within the device; no overlap.
DEVICE_FUNCTION(copy, void, (Exec *exec, void *to, const void *from, size_t bytes))
DEVICE_FUNCTION(synchronize, void, (Exec *exec))
// A micro-step may be recorded once and replayed: begin returns true if a recording `id` exists and was replayed (the
// caller skips its operations); otherwise the caller runs them and calls end.
DEVICE_FUNCTION(replay_begin, bool, (Exec *exec, int id))
DEVICE_FUNCTION(replay_end, void, (Exec *exec, int id))
// Profiler ranges.
DEVICE_FUNCTION(range_push, void, (Exec *exec, const char *name))
DEVICE_FUNCTION(range_pop, void, (Exec *exec))
// --profile: a profiler that waits for the program's word records from `begin` on, and no more from !begin
// on. Waits for the work before it.
DEVICE_FUNCTION(profile, void, (Exec *exec, bool begin))
// One line for the start-up report ("NVIDIA H200, 132 SMs, 143155 MiB").
DEVICE_FUNCTION(describe, void, (Exec *exec, char *text, size_t size))
// Bytes of device memory in use as the driver reports them (the whole device); 0 = unknown.
DEVICE_FUNCTION(memory_in_use, int64_t, (Exec *exec))
// Dense BF16 peak of the device in FLOP/s for the share of peak; 0 = unknown.
DEVICE_FUNCTION(peak_flops, double, (Exec *exec))
// Returns the GEMM algorithms that training has used so far, as the text of a MATMUL_TABLE_NAME file, identical in
// identical runs. Allocated with malloc(); NULL if there are none.
DEVICE_FUNCTION_OF_GPU(algos_text, char *, (Exec *exec))
// Sets the algorithms of the run that this one resumes from. Called before the first GEMM. Rows of other devices are
// ignored.
DEVICE_FUNCTION_OF_GPU(algos_load, void, (Exec *exec, const char *text))

#undef DEVICE_FUNCTION_OF_GPU
