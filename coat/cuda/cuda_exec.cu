// Opens and closes the GPU. Implements memory, transfers, CUDA graphs of micro-steps, and profiler ranges.
#include "base/memory.h"
#include "cuda/attention/attention.h"
#include "cuda/attention/attention_hopper.h"
#include "cuda/common/cuda_internal.h"
#include "device_check.h"

#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

// Size in bytes of one of the STAGING_PIECES pinned buffers that uploads pass through. The host waits for the GPU only
// if the copies from all these buffers are unfinished.
#define STAGING_PIECE ((size_t)1 << 20)
#define STAGING_PIECES 8

struct Staging {
    char *pinned;                     // pinned host memory of STAGING_PIECES pieces
    cudaEvent_t done[STAGING_PIECES]; // recorded after the copy from each piece
    int next;                         // index of the piece that the next upload uses
};

void cuda_fail(cudaError_t error, const char *doing, const char *file, int line) {
    const char *hint = "if it happens again, run with CUDA_LAUNCH_BLOCKING=1 and report the error";
    if (error == cudaErrorMemoryAllocation) hint = "use a smaller --micro-batch or stop other programs on this GPU";
    if (error == cudaErrorECCUncorrectable || error == cudaErrorDevicesUnavailable)
        hint = "the GPU has failed or is in use; check nvidia-smi, then continue with --resume";
    fatal(EXIT_DEVICE, "CUDA failed while %s: %s (%s:%d); %s", doing, cudaGetErrorString(error), file, line, hint);
}

// --- opening and closing the GPU ----------------------------------------------------------------------------
// This kernel is looked up but never launched. If it can be loaded, the program contains code that this GPU can run.
__global__ void probe_kernel(int *out) {
    *out = 1;
}

static void query_device(const Exec *exec, const Config *config, DeviceQuery *q, cudaDeviceProp *prop) {
    memset(q, 0, sizeof *q);
    const Recipe *recipe = &config->recipe;
    q->needs_fp8 = recipe->precision != PRECISION_FP32 && (recipe->linear == LINEAR_FP8 || config_fp8_head(config) ||
                                                           config->vision_recipe == VISION_RECIPE_COAT);
    q->index = exec->local_rank;
    cudaRuntimeGetVersion(&q->runtime_version);
    cudaDriverGetVersion(&q->driver_version);
    cudaError_t error = cudaGetDeviceCount(&q->count);
    q->driver_too_old = error == cudaErrorInsufficientDriver;
    if (error != cudaSuccess) q->count = 0;
    bool answered = error == cudaSuccess || error == cudaErrorNoDevice || q->driver_too_old;
    // If there are several processes and this process sees only one GPU, the launcher has assigned that GPU.
    if (q->count == 1 && exec->ranks > 1) q->index = 0;
    if (q->index >= 0 && q->index < q->count) {
        error = cudaGetDeviceProperties(prop, q->index);
        if (error == cudaSuccess) error = cudaSetDevice(q->index);
        answered = error == cudaSuccess;
        snprintf(q->name, sizeof q->name, "%s", prop->name);
        q->major = prop->major, q->minor = prop->minor;
        cudaFuncAttributes attributes;
        q->kernels_match = answered && cudaFuncGetAttributes(&attributes, probe_kernel) == cudaSuccess;
    }
    if (!answered) snprintf(q->failure, sizeof q->failure, "%s", cudaGetErrorString(error));
    cudaGetLastError(); // resets CUDA's error state; device_check() reports the error
}

// Sets the values that select kernels: the compute capability that the loaded code was compiled for, and the shared
// memory of a block. For tests, the environment variable COAT_STAND_IN=89 selects the kernels that a GPU of compute
// capability 8.9 uses, and limits shared memory to that GPU's. COAT_STAND_IN cannot select kernels that are missing in
// the loaded code.
static void open_kernels(CudaBackend *backend) {
    const char *const name = getenv("COAT_STAND_IN"), *const doing = "querying the loaded kernels";
    const int stand_in = name ? atoi(name) : 0;
    int shared = 0;
    cudaFuncAttributes probe;
    CUDA_CHECK(cudaFuncGetAttributes(&probe, probe_kernel), doing);
    CUDA_CHECK(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, backend->device), doing);
    // The PTX version differs from the binary version if the driver compiled the PTX of an older GPU.
    backend->code_capability = probe.ptxVersion < probe.binaryVersion ? probe.ptxVersion : probe.binaryVersion;
    backend->shared_bytes = (size_t)shared;
    backend->hopper = backend->capability == 90 && backend->code_capability == 90 && (stand_in < 80 || stand_in == 90);
    if (stand_in < 80) return;
    const size_t limit = stand_in == 80 ? 163 << 10 : stand_in == 90 || stand_in / 10 == 10 ? 227 << 10 : 99 << 10;
    if (backend->shared_bytes > limit) backend->shared_bytes = limit;
    if (stand_in < backend->code_capability || backend->code_capability >= 90) backend->code_capability = stand_in;
}

// Allocates backend->staging and backend->tally.
static void open_staging(CudaBackend *backend) {
    Staging *staging = (Staging *)xcalloc(1, sizeof *staging);
    CUDA_CHECK(cudaHostAlloc((void **)&staging->pinned, STAGING_PIECES * STAGING_PIECE, cudaHostAllocDefault),
               "allocating pinned host memory");
    for (int i = 0; i < STAGING_PIECES; i++)
        CUDA_CHECK(cudaEventCreateWithFlags(&staging->done[i], cudaEventDisableTiming), "creating an event");
    backend->staging = staging;
    CUDA_CHECK(cudaMalloc((void **)&backend->tally, sizeof *backend->tally), "allocating the blocks' shared counters");
    CUDA_CHECK(cudaMemsetAsync(backend->tally, 0, sizeof *backend->tally, backend->stream),
               "zeroing the blocks' shared counters");
}

// Allocates backend->ones: an array of `count` ones in FP32, followed by `count` ones in BF16.
static void open_ones(CudaBackend *backend, int64_t count) {
    const size_t bytes = (size_t)count * (sizeof(float) + sizeof(uint16_t));
    float *host = (float *)xmalloc(bytes);
    uint16_t *in_bf16 = (uint16_t *)(host + count);
    for (int64_t i = 0; i < count; i++) host[i] = 1.0f, in_bf16[i] = bf16_encode(1.0f);
    CUDA_CHECK(cudaMalloc((void **)&backend->ones, bytes), "allocating ones for norms without a weight");
    CUDA_CHECK(cudaMemcpy(backend->ones, host, bytes, cudaMemcpyHostToDevice),
               "uploading ones for norms without a weight");
    backend->ones_count = count;
    free(host);
}

// Creates cuDNN's state, except with --precision fp32. If the run uses cuDNN for attention, builds cuDNN's plans now,
// so that the warning that cuDNN cannot compute the shape is printed before training.
static void open_attention(CudaBackend *backend, const Config *config) {
    if (config->recipe.precision == PRECISION_FP32) return;
    backend->attention = attention_open(backend->stream, backend->capability);
    const AttentionShape shape = attention_shape(&config->shape, config->micro_batch, config->seq_len);
    if (attention_hopper_supported(shape, backend->hopper) || config->documents == DOCUMENTS_MASKED) return;
    const size_t bytes = cuda_workspace(config).bytes;
    if (attention_plan(backend->attention, shape, true, bytes).supported)
        attention_plan(backend->attention, shape, false, bytes);
}

bool cuda_present(void) {
    int driver = 0, count = 0;
    cudaDriverGetVersion(&driver);
    cudaError_t answer = cudaGetDeviceCount(&count);
    cudaGetLastError(); // resets CUDA's error state; cuda_open() reports the error
    return driver > 0 && answer != cudaErrorNoDevice;
}

void cuda_find_fp8(int local_rank, int local_ranks, char *why, size_t size) {
    int count = 0, major, minor;
    cudaDeviceProp prop;
    why[0] = '\0';
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    for (int device = 0; device < count && !why[0]; device++) {
        // Also checks the GPUs that other processes of the run use on this machine, so that all processes make the same
        // choice about FP8. If a process sees only one GPU, its launcher has assigned that GPU.
        const bool used = count == 1 || (local_ranks > 1 ? device < local_ranks : device == local_rank);
        if (!used) continue;
        if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
            cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess ||
            device_has_fp8(major, minor) || cudaGetDeviceProperties(&prop, device) != cudaSuccess)
            continue;
        snprintf(why, size, "%s has compute capability %d.%d, but FP8 needs 8.9 or later", prop.name, major, minor);
    }
    cudaGetLastError(); // resets CUDA's error state; cuda_open() reports the error
}

bool cuda_open(Exec *exec, const Config *config, Error *err) {
    DeviceQuery query;
    cudaDeviceProp prop = {};
    query_device(exec, config, &query, &prop);
    if (!device_check(&query, err)) return false;
    if (exec->ranks > 1) error_rank = exec->rank;
    CudaBackend *backend = (CudaBackend *)xcalloc(1, sizeof *backend);
    exec->backend = backend;
    backend->device = query.index;
    backend->sm_count = prop.multiProcessorCount;
    backend->capability = 10 * prop.major + prop.minor;
    open_kernels(backend);
    backend->l2_bytes = prop.l2CacheSize;
    backend->memory_bytes = (int64_t)prop.totalGlobalMem;
    snprintf(backend->device_name, sizeof backend->device_name, "%s", prop.name);
    backend->recipe = config->recipe;
    backend->replay_current = -1;
    CUDA_CHECK(cudaStreamCreateWithFlags(&backend->stream, cudaStreamNonBlocking), "creating a stream");
    open_staging(backend);
    const ModelShape *shape = &config->shape;
    open_ones(backend, shape->channels > shape->vision.channels ? shape->channels : shape->vision.channels);
    backend->matmul = matmul_open(exec, config, err);
    if (!backend->matmul) {
        cuda_close(exec);
        return false;
    }
    open_attention(backend, config);
    return true;
}

void cuda_replay_forget(Exec *exec) {
    for (Replay &replay : cuda_backend(exec)->replay) {
        if (replay.graph) cudaGraphExecDestroy(replay.graph);
        replay = {};
    }
}

void cuda_close(Exec *exec) {
    CudaBackend *backend = cuda_backend(exec);
    if (!backend) return;
    cudaStreamSynchronize(backend->stream);
    cuda_replay_forget(exec);
    attention_close(backend->attention);
    matmul_close(backend->matmul);
    for (int i = 0; i < STAGING_PIECES; i++) cudaEventDestroy(backend->staging->done[i]);
    cudaFreeHost(backend->staging->pinned);
    free(backend->staging);
    cudaFree(backend->tally);
    cudaFree(backend->ones);
    cudaStreamDestroy(backend->stream);
    free(backend);
    exec->backend = NULL;
}

// --- allocation of GPU memory and pinned host memory, and transfers between them -------------------------------------
void *cuda_allocate(Exec *exec, size_t bytes, Error *err) {
    (void)exec;
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes ? bytes : 1);
    if (error == cudaSuccess) return memory;
    cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    error_set(err, EXIT_DEVICE, "GPU memory: %.2f GB are needed, but %.2f of %.2f GB are free (%s)",
              (double)bytes / 1e9, (double)free_bytes / 1e9, (double)total_bytes / 1e9, cudaGetErrorString(error));
    return NULL;
}

int64_t cuda_memory_free(Exec *exec) {
    (void)exec;
    size_t free_bytes = 0, total_bytes = 0;
    return cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess ? (int64_t)free_bytes : 0;
}

void cuda_release(Exec *exec, void *memory) {
    cuda_synchronize(exec);
    CUDA_CHECK(cudaFree(memory), "releasing GPU memory");
}

// Sets `set` to the CPU cores of the GPU's NUMA node. Linux lists these cores in the node's cpulist file, for example
// as "0-31,64-95". Returns false if the node is unknown or the file cannot be read.
static bool near_processors(cpu_set_t *set) {
    int device, node = -1;
    char path[64], text[4096] = "";
    CPU_ZERO(set);
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, device) != cudaSuccess || node < 0) {
        cudaGetLastError();
        return false;
    }
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    const bool read = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    for (const char *at = text; read && *at >= '0' && *at <= '9';) {
        char *end;
        const long first = strtol(at, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        for (long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++) CPU_SET(cpu, set);
        at = *end == ',' ? end + 1 : end;
    }
    return CPU_COUNT(set) > 0;
}

// Zeroes host memory with threads on the GPU's NUMA node, if this process may use that node's cores. Linux places a
// page on the node of the thread that first writes to the page.
static void clear_near(char *memory, size_t size) {
    cpu_set_t near_cpus;
    const bool has_near = near_processors(&near_cpus);
#pragma omp parallel
    {
        cpu_set_t before, both;
        bool moved = has_near && sched_getaffinity(0, sizeof before, &before) == 0;
        if (moved) CPU_AND(&both, &near_cpus, &before);
        moved = moved && CPU_COUNT(&both) > 0 && sched_setaffinity(0, sizeof both, &both) == 0;
#pragma omp for schedule(static)
        for (size_t at = 0; at < size; at += HUGE_PAGE) memset(memory + at, 0, HUGE_PAGE);
        if (moved) sched_setaffinity(0, sizeof before, &before);
    }
}

// Allocates page-locked host memory, which the GPU copies at full bus speed; NULL on failure. Many cores zero the
// memory in parallel, because cudaHostAlloc() would zero it on one core.
void *cuda_host_allocate(Exec *exec, size_t bytes) {
    (void)exec;
    const size_t size = memory_whole_pages(bytes);
    char *memory = (char *)memory_in_huge_pages(bytes);
    if (!memory) return NULL;
    clear_near(memory, size);
    if (cudaHostRegister(memory, size, cudaHostRegisterDefault) == cudaSuccess) return memory;
    cudaGetLastError();
    free(memory);
    return NULL;
}

void cuda_host_release(Exec *exec, void *memory) {
    cuda_synchronize(exec);
    CUDA_CHECK(cudaHostUnregister(memory), "releasing host memory");
    free(memory);
}

void cuda_upload(Exec *exec, void *device, const void *host, size_t bytes) {
    CudaBackend *backend = cuda_backend(exec);
    Staging *staging = backend->staging;
    for (size_t at = 0; at < bytes; at += STAGING_PIECE) {
        size_t piece = bytes - at < STAGING_PIECE ? bytes - at : STAGING_PIECE;
        int slot = staging->next;
        char *pinned = staging->pinned + (size_t)slot * STAGING_PIECE;
        staging->next = (slot + 1) % STAGING_PIECES;
        CUDA_CHECK(cudaEventSynchronize(staging->done[slot]), "waiting for an earlier upload");
        memcpy(pinned, (const char *)host + at, piece);
        CUDA_CHECK(cudaMemcpyAsync((char *)device + at, pinned, piece, cudaMemcpyDefault, backend->stream),
                   "uploading");
        CUDA_CHECK(cudaEventRecord(staging->done[slot], backend->stream), "uploading");
    }
}

void cuda_download(Exec *exec, void *host, const void *device, size_t bytes) {
    CudaBackend *backend = cuda_backend(exec);
    CUDA_CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDefault, backend->stream), "downloading");
    CUDA_CHECK(cudaStreamSynchronize(backend->stream), "waiting for the GPU's work before a download");
}

void cuda_zero(Exec *exec, void *device, size_t bytes) {
    CUDA_CHECK(cudaMemsetAsync(device, 0, bytes, cuda_backend(exec)->stream), "zeroing memory");
}

void cuda_synchronize(Exec *exec) {
    CUDA_CHECK(cudaStreamSynchronize(cuda_backend(exec)->stream), "waiting for the GPU's work");
}

// --- CUDA graphs of micro-steps --------------------------------------------------------------------------------------
// id: number of a kind of micro-step, below MAX_REPLAYS. The first run of micro-step `id` is not captured: libraries
// load code and choose algorithms in it, which stream capture forbids. The second run is captured into a CUDA graph,
// which cuda_replay_end() launches. In later runs, cuda_replay_begin() launches that graph and returns true, so the
// caller must skip the micro-step.
bool cuda_replay_begin(Exec *exec, int id) {
    CudaBackend *backend = cuda_backend(exec);
    if (id < 0 || id >= MAX_REPLAYS || backend->replay_current >= 0)
        fatal(EXIT_DEVICE, "internal error: graph %d cannot start: a graph is open, or its id is not below %d", id,
              MAX_REPLAYS);
    Replay *replay = &backend->replay[id];
    if (replay->stage == REPLAY_RECORDED) {
        CUDA_CHECK(cudaGraphLaunch(replay->graph, backend->stream), "replaying a micro-step's graph");
        return true;
    }
    backend->replay_current = id;
    if (replay->stage == REPLAY_WARM)
        CUDA_CHECK(cudaStreamBeginCapture(backend->stream, cudaStreamCaptureModeThreadLocal), "recording a micro-step");
    return false;
}

void cuda_replay_end(Exec *exec, int id) {
    CudaBackend *backend = cuda_backend(exec);
    if (backend->replay_current != id)
        fatal(EXIT_DEVICE, "internal error: graph %d ends, but the open graph is %d", id, backend->replay_current);
    backend->replay_current = -1;
    Replay *replay = &backend->replay[id];
    if (replay->stage == REPLAY_COLD) {
        replay->stage = REPLAY_WARM;
        return;
    }
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamEndCapture(backend->stream, &graph), "recording a micro-step");
    CUDA_CHECK(cudaGraphInstantiate(&replay->graph, graph, 0), "preparing a recorded micro-step");
    CUDA_CHECK(cudaGraphDestroy(graph), "preparing a recorded micro-step");
    replay->stage = REPLAY_RECORDED;
    CUDA_CHECK(cudaGraphLaunch(replay->graph, backend->stream), "running a recorded micro-step");
}

// --- ranges for profilers, and the GPU's name, memory and peak speed -------------------------------------------------
void cuda_range_push(Exec *exec, const char *name) {
    (void)exec;
    nvtxRangePushA(name);
}

void cuda_range_pop(Exec *exec) {
    (void)exec;
    nvtxRangePop();
}

void cuda_profile(Exec *exec, bool begin) {
    cuda_synchronize(exec);
    if (begin) {
        CUDA_CHECK(cudaProfilerStart(), "starting the profiler");
        nvtxRangePushA("marked step");
    } else {
        nvtxRangePop();
        CUDA_CHECK(cudaProfilerStop(), "stopping the profiler");
    }
}

void cuda_describe(Exec *exec, char *text, size_t size) {
    const CudaBackend *backend = cuda_backend(exec);
    snprintf(text, size, "%s, %d SMs, %lld MiB", backend->device_name, backend->sm_count,
             (long long)(backend->memory_bytes >> 20));
}

int64_t cuda_memory_in_use(Exec *exec) {
    (void)exec;
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes), "querying the memory in use");
    return (int64_t)(total_bytes - free_bytes);
}

double cuda_peak_flops(Exec *exec) {
    return device_peak_flops(cuda_backend(exec)->device_name);
}
