// Accumulates gradients and computes the gradient norm. Both operations process a list of tensors in a few launches.
// The list is a kernel argument, so nothing is uploaded. squares_launch() sums the squares of Muon's matrices.
#include "cuda_optimizer.h"

namespace {

// Maximum number of tensors per kernel launch.
constexpr int SUM_ENTRIES = 32;
constexpr int NORM_ENTRIES = 1024;
constexpr int64_t SUM_ELEMENTS = 8192; // number of gradient elements per block
constexpr int64_t NORM_ELEMENTS = 65536;

// --- kernels that add gradients to gradient sums ---------------------------------------------------------------------
struct SumTable {
    void *sum[SUM_ENTRIES];
    const void *part[SUM_ENTRIES];
    int64_t elements[SUM_ENTRIES];
    bool is_bf16[SUM_ENTRIES], wide[SUM_ENTRIES]; // wide: true if both tensors are 16-byte aligned
    int first_block[SUM_ENTRIES + 1];
    int count;
};
static_assert(sizeof(SumTable) <= TABLE_BYTES, "the table must fit a kernel argument");

template <int V, typename T> __device__ inline void add_at(T *sum, const T *part, int64_t at) {
    float x[V], y[V];
    unpack<V>(load<V>(sum + at), x);
    unpack<V>(load_streaming<V>(part + at), y);
#pragma unroll
    for (int i = 0; i < V; i++) x[i] += y[i];
    store(sum + at, packed<T, V>(x));
}

template <typename T> __device__ inline void add_range(T *sum, const T *part, int64_t count, bool wide) {
    constexpr int V = 16 / sizeof(T);
    const int64_t vectors = wide ? count / V : 0;
    for (int64_t at = threadIdx.x; at < vectors; at += OPTIMIZER_THREADS) add_at<V>(sum, part, at * V);
    for (int64_t at = vectors * V + threadIdx.x; at < count; at += OPTIMIZER_THREADS) add_at<1>(sum, part, at);
}

__global__ __launch_bounds__(OPTIMIZER_THREADS) void gradients_add_kernel(const __grid_constant__ SumTable table) {
    const int entry = table_find(table.first_block, table.count, (int)blockIdx.x);
    const int64_t begin = (blockIdx.x - table.first_block[entry]) * SUM_ELEMENTS;
    const int64_t count = min(SUM_ELEMENTS, table.elements[entry] - begin);
    if (table.is_bf16[entry])
        add_range((bf16 *)table.sum[entry] + begin, (const bf16 *)table.part[entry] + begin, count, table.wide[entry]);
    else
        add_range((float *)table.sum[entry] + begin, (const float *)table.part[entry] + begin, count,
                  table.wide[entry]);
}

// --- kernels that compute the global norm of the gradients -----------------------------------------------------------
struct NormTable {
    const void *grad[NORM_ENTRIES];
    int64_t elements[NORM_ENTRIES];
    bool is_bf16[NORM_ENTRIES], wide[NORM_ENTRIES]; // wide: true if the tensor is 16-byte aligned
    int first_block[NORM_ENTRIES + 1];
    int count;
    double *partials; // partial sums of squares, one per block, starting with this launch's first block
};
static_assert(sizeof(NormTable) <= TABLE_BYTES, "the table must fit a kernel argument");

// Returns the sum of squares of V adjacent values. Adds in FP32, and again in FP64 if the FP32 sum exceeds 1e38 or is
// NaN. Callers accumulate the results in FP64.
template <int V> __device__ inline double squares_of(const float x[V]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < V; i++) sum = fmaf(x[i], x[i], sum);
    if (sum <= 1e38f) return (double)sum;
    double exact = 0.0;
#pragma unroll
    for (int i = 0; i < V; i++) exact += (double)x[i] * (double)x[i];
    return exact;
}

template <typename T> __device__ inline double squares_of_range(const T *grad, int64_t count, bool wide) {
    constexpr int V = 8, BATCH = sizeof(T) == 2 ? 4 : 2;
    double sum = 0.0;
    const int64_t vectors = wide ? count / V : 0;
    for (int64_t first = threadIdx.x; first < vectors; first += BATCH * OPTIMIZER_THREADS) {
        Pack<T, V> pack[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int64_t at = first + k * OPTIMIZER_THREADS;
            if (at < vectors) pack[k] = load_streaming<V>(grad + at * V);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            if (first + k * OPTIMIZER_THREADS < vectors) {
                float x[V];
                unpack<V>(pack[k], x);
                sum += squares_of<V>(x);
            }
        }
    }
    for (int64_t at = vectors * V + threadIdx.x; at < count; at += OPTIMIZER_THREADS) {
        const float x = (float)grad[at];
        sum += squares_of<1>(&x);
    }
    return sum;
}

__global__ __launch_bounds__(OPTIMIZER_THREADS) void grad_squares_kernel(const __grid_constant__ NormTable table) {
    __shared__ double shared[OPTIMIZER_THREADS / WARP];
    const int entry = table_find(table.first_block, table.count, (int)blockIdx.x);
    const int64_t begin = (blockIdx.x - table.first_block[entry]) * NORM_ELEMENTS;
    const int64_t count = min(NORM_ELEMENTS, table.elements[entry] - begin);
    double sum = table.is_bf16[entry]
                     ? squares_of_range((const bf16 *)table.grad[entry] + begin, count, table.wide[entry])
                     : squares_of_range((const float *)table.grad[entry] + begin, count, table.wide[entry]);
    sum = block_sum<OPTIMIZER_THREADS / WARP>(sum, shared);
    if (threadIdx.x == 0) table.partials[blockIdx.x] = sum;
}

// Writes partial sums of squares to partials (parts, blocks per part). x consists of gridDim.y parts of `elements`
// elements. A block sums at most `per_block` elements of part number blockIdx.y.
template <typename T>
__global__ __launch_bounds__(OPTIMIZER_THREADS) void squares_kernel(const T *x, int64_t elements, int64_t per_block,
                                                                    bool wide, double *partials) {
    __shared__ double shared[OPTIMIZER_THREADS / WARP];
    const int64_t begin = blockIdx.x * per_block;
    const double sum = squares_of_range(x + blockIdx.y * elements + begin, min(per_block, elements - begin), wide);
    const double all = block_sum<OPTIMIZER_THREADS / WARP>(sum, shared);
    if (threadIdx.x == 0) partials[blockIdx.y * gridDim.x + blockIdx.x] = all;
}

constexpr int FINISH_THREADS = 1024;

__global__ __launch_bounds__(FINISH_THREADS) void grad_norm_kernel(const double *partials, int count,
                                                                   StepState *state) {
    __shared__ double shared[FINISH_THREADS / WARP];
    double sum = 0.0;
    for (int i = (int)threadIdx.x; i < count; i += FINISH_THREADS) sum += partials[i];
    sum = block_sum<FINISH_THREADS / WARP>(sum, shared);
    if (threadIdx.x > 0) return;
    state->grad_sq = sum;
    state->grad_norm = (float)sqrt(sum);
    if (!isfinite(state->grad_norm)) state->nonfinite = 1;
}

void grad_squares_launch(cudaStream_t stream, const NormTable &table) {
    if (table.first_block[table.count] == 0) return;
    grad_squares_kernel<<<grid_of(table.first_block[table.count]), OPTIMIZER_THREADS, 0, stream>>>(table);
    LAUNCH_CHECK("grad_squares_kernel");
}

__global__ void grad_norm_root_kernel(StepState *state) {
    state->grad_norm = (float)sqrt(state->grad_sq);
    if (!isfinite(state->grad_norm)) state->nonfinite = 1;
}

} // namespace

void cuda_gradients_add(Exec *exec, const Tensor sums[], const Tensor parts[], int count) {
    const char *operation = "gradients_add";
    SumTable table = {};
    for (int i = 0; i < count; i++) {
        const int at = table.count;
        if (sums[i].format != FMT_BF16) require_format(operation, "a sum", sums[i], FMT_FP32);
        require_format(operation, "an addend", parts[i], sums[i].format);
        table.sum[at] = sums[i].data;
        table.part[at] = parts[i].data;
        table.elements[at] = flat_elements(operation, sums[i]);
        table.is_bf16[at] = sums[i].format == FMT_BF16;
        table.wide[at] = aligned16(sums[i].data) && aligned16(parts[i].data);
        table.first_block[at + 1] = table.first_block[at] + (int)ceil_div(table.elements[at], SUM_ELEMENTS);
        table.count++;
        if (table.count < SUM_ENTRIES && i + 1 < count) continue;
        const int blocks = table.first_block[table.count];
        if (blocks > 0) {
            gradients_add_kernel<<<grid_of(blocks), OPTIMIZER_THREADS, 0, cuda_backend(exec)->stream>>>(table);
            LAUNCH_CHECK("gradients_add_kernel");
        }
        table.count = 0;
    }
}

void cuda_grad_norm(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    cudaStream_t stream = cuda_backend(exec)->stream;
    double *const partials = (double *)exec->workspace;
    NormTable table = {};
    int blocks = 0; // number of blocks of the earlier launches
    for (int i = 0; i < count; i++) {
        const Tensor grad = parameters[i].grad;
        const int at = table.count;
        if (grad.format != FMT_BF16) require_format("grad_norm", "a gradient", grad, FMT_FP32);
        table.grad[at] = grad.data;
        table.elements[at] = flat_elements("grad_norm", grad);
        table.is_bf16[at] = grad.format == FMT_BF16;
        table.wide[at] = aligned16(grad.data);
        table.first_block[at + 1] = table.first_block[at] + (int)ceil_div(table.elements[at], NORM_ELEMENTS);
        table.count++;
        if (table.count < NORM_ENTRIES && i + 1 < count) continue;
        const int in_table = table.first_block[table.count];
        if ((size_t)(blocks + in_table) * sizeof(double) > exec->workspace_bytes)
            fatal(EXIT_DEVICE, "internal error: grad_norm: the partial sums do not fit the workspace");
        table.partials = partials + blocks;
        grad_squares_launch(stream, table);
        blocks += in_table;
        table.count = 0;
    }
    grad_norm_kernel<<<1, FINISH_THREADS, 0, stream>>>(partials, blocks, state);
    LAUNCH_CHECK("grad_norm_kernel");
}

int squares_launch(Exec *exec, const char *operation, Tensor t, int count) {
    // minimum number of elements per block and maximum number of blocks per part; blocks begin at multiples of MULTIPLE
    constexpr int64_t MIN_ELEMENTS = 16384, MAX_BLOCKS = 1024, MULTIPLE = 8;
    const int64_t elements = flat_elements(operation, t) / count,
                  most = ceil_div(elements, MAX_BLOCKS * MULTIPLE) * MULTIPLE;
    const int64_t per_block = most > MIN_ELEMENTS ? most : MIN_ELEMENTS;
    const int blocks = (int)ceil_div(elements, per_block);
    double *const partials = (double *)exec->workspace;
    if ((size_t)blocks * (size_t)count * sizeof(double) > exec->workspace_bytes)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: the partial sums do not fit the workspace", operation);
    if (blocks == 0) return 0;
    for_layout(operation, t.format, true, [&]<typename T, int V>(Layout<T, V>) {
        squares_kernel<T>
            <<<dim3((unsigned)blocks, (unsigned)count), OPTIMIZER_THREADS, 0, cuda_backend(exec)->stream>>>(
                (const T *)t.data, elements, per_block, aligned16(t.data) && elements % 8 == 0, partials);
        LAUNCH_CHECK("squares_kernel");
    });
    return blocks;
}

void cuda_grad_norm_root(Exec *exec, StepState *state) {
    grad_norm_root_kernel<<<1, 1, 0, cuda_backend(exec)->stream>>>(state);
    LAUNCH_CHECK("grad_norm_root_kernel");
}
