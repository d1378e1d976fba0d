// Helpers for memory-bound kernels: vector loads and stores, reductions in a fixed order, and dispatch on the storage
// format. Also the column walk, the loop of element-wise kernels that may also sum columns. For CUDA sources only.
#pragma once
#include <type_traits>

#include "cuda_internal.h"

typedef __nv_bfloat16 bf16;

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// --- lists of model parameters as kernel arguments ----------------------------------------------------------
// Maximum bytes of a kernel's arguments in CUDA 12.1 and later. A list of model parameters that needs more bytes is
// split between several kernel launches.
constexpr size_t TABLE_BYTES = 32764;

// Returns the index of the table entry that contains work item `piece`, that is, first_piece[entry] <= piece <
// first_piece[entry + 1]. first_piece has count + 1 ascending values, the last of which is the number of work items.
__device__ static inline int table_find(const int *first_piece, int count, int piece) {
    int low = 0, high = count; // invariant: first_piece[low] <= piece < first_piece[high]
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first_piece[middle] <= piece)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// --- vectors of adjacent values in memory ----------------------------------------------------------------------------
// Vector of V adjacent values of type T in memory, loaded and stored in accesses of up to 16 bytes. For BF16 and FP32
// tensors, V is usually 8, or 1 if tensor_wide() is false.
template <typename T, int V> struct Pack {
    static constexpr int bytes = V * (int)sizeof(T);
    static constexpr int word_bytes = bytes < 16 ? bytes : 16;
    static constexpr int words = bytes / word_bytes;
    alignas(word_bytes) T value[V];
};

template <int BYTES> struct WordOf;
template <> struct WordOf<2> { typedef unsigned short type; };
template <> struct WordOf<4> { typedef unsigned int type; };
template <> struct WordOf<8> { typedef uint2 type; };
template <> struct WordOf<16> { typedef uint4 type; };

enum CachePolicy {
    CACHE_DEFAULT,
    CACHE_STREAM,   // policy for data that is read once: activations and optimizer states
    CACHE_PARAMETER // policy for data that many blocks read and none writes: parameters
};

// Loads V adjacent values. `address` must be a multiple of Pack<T, V>::word_bytes. With CACHE_DEFAULT, `address` may be
// in shared memory. The other policies and store() require an address in global memory.
template <int V, CachePolicy POLICY = CACHE_DEFAULT, typename T>
__device__ static inline Pack<T, V> load(const T *address) {
    typedef typename WordOf<Pack<T, V>::word_bytes>::type Word;
    const Word *from = (const Word *)address;
    Word words[Pack<T, V>::words];
#pragma unroll
    for (int i = 0; i < Pack<T, V>::words; i++) {
        if constexpr (POLICY == CACHE_STREAM)
            words[i] = __ldcs(from + i);
        else if constexpr (POLICY == CACHE_PARAMETER)
            words[i] = __ldg(from + i);
        else
            words[i] = from[i];
    }
    Pack<T, V> pack;
    memcpy(&pack, words, sizeof pack);
    return pack;
}

template <int V, typename T> __device__ static inline Pack<T, V> load_streaming(const T *address) {
    return load<V, CACHE_STREAM>(address);
}

template <int V, typename T> __device__ static inline Pack<T, V> load_parameter(const T *address) {
    return load<V, CACHE_PARAMETER>(address);
}

template <typename T, int V> __device__ static inline void store(T *address, Pack<T, V> pack) {
    typedef typename WordOf<Pack<T, V>::word_bytes>::type Word;
    Word words[Pack<T, V>::words];
    memcpy(words, &pack, sizeof pack);
#pragma unroll
    // __stwb is used because the compiler turns it into a single memory access
    for (int i = 0; i < Pack<T, V>::words; i++) __stwb((Word *)address + i, words[i]);
}

// A matrix of T with a row stride, in elements. data is NULL for an optional tensor that does not exist.
template <typename T> struct Matrix {
    T *data;
    int64_t stride;

    __device__ T *at(int64_t row, int64_t column) const { return data + row * stride + column; }
};

template <typename T> static Matrix<T> matrix_of(Tensor t) {
    return {(T *)t.data, t.stride};
}

// --- asynchronous copies from global to shared memory -------------------------------------------------------
// Starts an asynchronous copy of V values to shared memory; both addresses must be 16-byte aligned. A thread that reads
// only values that it copied itself needs copies_commit() and copies_wait(), but no __syncthreads().
template <int V, typename T> __device__ static inline void copy_async(Pack<T, V> *shared, const T *address) {
    static_assert(Pack<T, V>::word_bytes == 16, "whole 16-byte words");
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
#pragma unroll
    for (int i = 0; i < Pack<T, V>::words; i++)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 16 * i), "l"((const char *)address + 16 * i)
                     : "memory");
}

// Commits the asynchronous copies since the last commit as a group, which may be empty.
__device__ static inline void copies_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most the PENDING latest groups of asynchronous copies are unfinished.
template <int PENDING> __device__ static inline void copies_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// --- overlapping kernels (programmatic dependent launch) -------------------------------------------------------------
// Allows the stream's next kernel to start before this kernel ends. Has an effect only if launch_after() launches the
// next kernel with `overlaps`, and only from compute capability 9.0 on. The next kernel must call first_stage_wait()
// before it reads this kernel's results.
__device__ static inline void second_stage_allow(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the previous kernel of the stream has finished and its writes are visible. Returns at once if this kernel
// was launched without `overlaps`.
__device__ static inline void first_stage_wait(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Launches a kernel. If `overlaps` is true and the loaded code was compiled for Hopper or later, uses programmatic
// dependent launch: the kernel may start once all blocks of the previous kernel have called second_stage_allow() or
// ended. The launched kernel must call first_stage_wait() before it reads the previous kernel's output.
template <typename... P, typename... A>
static void launch_after(Exec *exec, const char *doing, void (*kernel)(P...), dim3 grid, dim3 threads, bool overlaps,
                         A... arguments) {
    const CudaBackend *backend = cuda_backend(exec);
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = threads;
    config.stream = backend->stream;
    config.attrs = &overlap;
    config.numAttrs = overlaps && backend->code_capability >= 90 ? 1 : 0;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, arguments...), doing);
}

// --- conversion of vectors to and from FP32 --------------------------------------------------------------------------
template <int V> __device__ static inline void unpack(Pack<float, V> pack, float out[V]) {
#pragma unroll
    for (int i = 0; i < V; i++) out[i] = pack.value[i];
}

// Converts packed BF16 values to FP32 with a shift and a mask, because BF16 is the upper half of FP32.
template <int V> __device__ static inline void unpack(Pack<bf16, V> pack, float out[V]) {
    if constexpr (V == 1) {
        out[0] = __bfloat162float(pack.value[0]);
    } else {
        uint32_t pairs[V / 2];
        memcpy(pairs, &pack, sizeof pairs);
#pragma unroll
        for (int i = 0; i < V / 2; i++) {
            out[2 * i] = __uint_as_float(pairs[i] << 16);
            out[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
        }
    }
}

template <typename T, int V> __device__ static inline Pack<T, V> packed(const float in[V]) {
    Pack<T, V> pack;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < V; i++) pack.value[i] = in[i];
    } else if constexpr (V == 1) {
        pack.value[0] = __float2bfloat16_rn(in[0]);
    } else {
        __nv_bfloat162 pairs[V / 2];
#pragma unroll
        for (int i = 0; i < V / 2; i++) pairs[i] = __floats2bfloat162_rn(in[2 * i], in[2 * i + 1]);
        memcpy(&pack, pairs, sizeof pack);
    }
    return pack;
}

// Returns x rounded to type T, as storing and reloading it would.
template <typename T> __device__ static inline float stored(float x) {
    if constexpr (sizeof(T) == 4) return x;
    return __bfloat162float(__float2bfloat16_rn(x));
}

// --- fast exponential, reciprocal and sigmoid ---------------------------------------------------------------
// Returns exp(x), computed by the hardware's 2^x; results below 2^-126 become 0. The relative error is about 2^-22 for
// x near 0 and 2^-18 for the largest |x| whose result is finite and not 0. __expf() is not used, because most of its
// instructions handle subnormal results.
__device__ static inline float fast_exp(float x) {
    return fast_exp2(x * 1.4426950408889634f);
}

// Returns 1 / x, computed by the hardware instruction to within 1 ulp; subnormal inputs and results count as 0.
__device__ static inline float fast_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Returns 1 / (1 + exp(-x)), which saturates at 0 and 1; NaN if x is NaN.
__device__ static inline float sigmoid(float x) {
    return fast_reciprocal(1.0f + fast_exp(-x));
}

// --- sums and maxima over a warp or block -------------------------------------------------------------------
// Returns the sum over the warp in every lane. The butterfly order is fixed, so all lanes get the same bits.
template <typename F> __device__ static inline F warp_sum(F x) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(ALL_LANES, x, mask);
    return x;
}

// Return the maximum (quad_max) or sum (quad_sum) of x over the lanes 4 i to 4 i + 3, in each of these lanes.
__device__ static inline float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

__device__ static inline float quad_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// Sums N values over a warp; N is a power of two. Lane l returns the sum of value[l % N]. In each round, a lane keeps
// half of its values and exchanges the other half. So N sums take about N shuffles instead of 5 N.
template <int N> __device__ static inline float warp_sums(float value[N]) {
    const int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2) {
        const bool upper = lane & half;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float kept = upper ? value[i + half] : value[i], sent = upper ? value[i] : value[i + half];
            value[i] = kept + __shfl_xor_sync(ALL_LANES, sent, half);
        }
    }
#pragma unroll
    for (int mask = N; mask < WARP; mask *= 2) value[0] += __shfl_xor_sync(ALL_LANES, value[0], mask);
    return value[0];
}

// Returns the sum of x over a block of WARPS warps, in every thread. shared: WARPS values in shared memory, which may
// be reused after the next __syncthreads().
template <int WARPS, typename F> __device__ static inline F block_sum(F x, F *shared) {
    x = warp_sum(x);
    if constexpr (WARPS == 1) return x;
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    F total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) total += shared[w];
    return total;
}

// Calls take(x) in thread 0 with the maximum of x over the block's threads. All threads must call this function. Before
// another call, the block must synchronize.
template <int THREADS, typename Take> __device__ static inline void block_max(uint32_t x, Take take) {
    __shared__ uint32_t shared[THREADS / WARP];
    x = __reduce_max_sync(ALL_LANES, x);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (uint32_t other : shared) x = max(x, other);
    take(x);
}

// --- choice of a kernel's template arguments by a tensor's type and alignment ----------------------------------------
// Tag type that passes the storage type T and the vector width V to a kernel template.
template <typename T, int V> struct Layout {};

// True if the tensor does not exist or can be accessed 8 values at a time.
static inline bool tensor_wide(Tensor t) {
    return !t.data || (t.cols % 8 == 0 && t.stride % 8 == 0 && (uintptr_t)t.data % 16 == 0);
}

// Calls fatal() if tensor t exists and is not stored in `format`. `what` is the tensor's name in the message.
static inline void require_format(const char *operation, const char *what, Tensor t, Format format) {
    if (t.data && t.format != format)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: %s is stored as %s, but must be %s", operation, what,
              format_name(t.format), format_name(format));
}

// Calls f(Layout<T, V>{}) with the type T of the format (BF16 or FP32) and V = 8 if `wide`, else 1. Calls fatal() for
// other formats.
template <typename F> static void for_layout(const char *operation, Format format, bool wide, F f) {
    if (format == FMT_BF16 && wide)
        f(Layout<bf16, 8>{});
    else if (format == FMT_BF16)
        f(Layout<bf16, 1>{});
    else if (format == FMT_FP32 && wide)
        f(Layout<float, 8>{});
    else if (format == FMT_FP32)
        f(Layout<float, 1>{});
    else
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: format %s is not supported", operation, format_name(format));
}

// --- column walk: a pass over a matrix that can also sum the matrix's columns ----------------------------------------
// One pass over a (rows, cols) matrix. Each thread processes the same V columns of many rows. So per-column data (a
// bias, a norm's weight) stays in registers, and threads combine column sums only at the end.
// A block has 8 warps, each of which processes one row at a time. blockIdx.x selects WARP * V columns; blockIdx.y
// selects the first rows, and the block then advances by gridDim.y * COLUMN_WARPS rows.
// `Op` defines the work on each vector: begin(column), load(row, column) -> Loaded, apply(row, column, loaded, sum).
//   Op::unroll    number of vectors that a thread loads before it uses the first
//   Op::rolling   false: loads all these vectors, then uses them; true: loads the next vector as soon as one is used,
//                 which is faster if apply() has much arithmetic
//   Op::sums      true: apply() adds to sum[V], and each block writes its column sums to partials (gridDim.y, cols)
constexpr int COLUMN_WARPS = 8;
constexpr int COLUMN_BLOCKS_PER_SM = 4;

template <typename Op, int V>
__global__ __launch_bounds__(COLUMN_WARPS *WARP, COLUMN_BLOCKS_PER_SM) void columns_kernel(Op op, int64_t rows,
                                                                                           int64_t cols,
                                                                                           float *partials) {
    if constexpr (Op::sums) second_stage_allow();
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t column = ((int64_t)blockIdx.x * WARP + lane) * V;
    float sum[V] = {};
    if (column < cols) {
        const int64_t step = (int64_t)gridDim.y * COLUMN_WARPS;
        int64_t row = (int64_t)blockIdx.y * COLUMN_WARPS + warp;
        typename Op::Loaded loaded[Op::unroll];
        if constexpr (!Op::rolling)
            op.begin(column);
        else {
#pragma unroll
            for (int u = 0; u < Op::unroll; u++)
                if (row + u * step < rows) loaded[u] = op.load(row + u * step, column);
            op.begin(column);
        }
        for (; row < rows; row += Op::unroll * step) {
            if constexpr (!Op::rolling) {
#pragma unroll
                for (int u = 0; u < Op::unroll; u++)
                    if (row + u * step < rows) loaded[u] = op.load(row + u * step, column);
            }
#pragma unroll
            for (int u = 0; u < Op::unroll; u++) {
                const int64_t here = row + u * step, next = here + Op::unroll * step;
                if (here < rows) op.apply(here, column, loaded[u], sum);
                if (Op::rolling && next < rows) loaded[u] = op.load(next, column);
            }
        }
    }
    if constexpr (Op::sums) {
        __shared__ float shared[COLUMN_WARPS][WARP * V];
#pragma unroll
        for (int i = 0; i < V; i++) shared[warp][lane * V + i] = sum[i];
        __syncthreads();
        const int64_t out = (int64_t)blockIdx.x * WARP * V + threadIdx.x;
        if (threadIdx.x < WARP * V && out < cols) {
            float total = 0.0f;
#pragma unroll
            for (int w = 0; w < COLUMN_WARPS; w++) total += shared[w][threadIdx.x];
            partials[blockIdx.y * cols + out] = total;
        }
    }
}

// Computes out (cols) = (accumulate ? out : 0) + the sum of the `count` rows of partials (count, cols), in a fixed
// order.
void partials_sum(Exec *exec, float *out, const float *partials, int count, int64_t cols, bool accumulate);
// Sums partials (count, 2, cols) over count, in a fixed order. Writes the sums of [.][0] to first (cols) and of [.][1]
// to second (cols). With `accumulate`, adds the sums to first and second instead. first and second may be NULL.
void partials_sum_pair(Exec *exec, float *first, float *second, const float *partials, int count, int64_t cols,
                       bool accumulate);

// Runs the column walk over a (rows, cols) matrix. With Op::sums, sum_out (cols) FP32 = (accumulate ? sum_out : 0) +
// the column sums. The division of the rows between blocks, and so the order of addition, depends only on the shape and
// the number of SMs. Does nothing, and does not write sum_out, if rows or cols is 0.
template <int V, typename Op>
static void columns_run(Exec *exec, Op op, int64_t rows, int64_t cols, float *sum_out, bool accumulate) {
    if (rows == 0 || cols == 0) return;
    const CudaBackend *backend = cuda_backend(exec);
    int64_t tiles = ceil_div(cols, WARP * V);
    int64_t share = (int64_t)backend->sm_count * COLUMN_BLOCKS_PER_SM / tiles;
    int64_t most = ceil_div(rows, COLUMN_WARPS);
    if (share > most) share = most;
    if (share > 65535) share = 65535;
    if (share < 1) share = 1;
    float *partials = (float *)exec->workspace;
    if (Op::sums && (size_t)(share * cols) * sizeof(float) > exec->workspace_bytes)
        fatal(EXIT_DEVICE, "internal error: the sums of %lld columns do not fit the workspace", (long long)cols);
    columns_kernel<Op, V>
        <<<dim3((unsigned)tiles, (unsigned)share), COLUMN_WARPS * WARP, 0, backend->stream>>>(op, rows, cols, partials);
    LAUNCH_CHECK("columns_kernel");
    if (Op::sums) partials_sum(exec, sum_out, partials, (int)share, cols, accumulate);
}

// Calls run(std::integral_constant<ActivationKind, kind>()) for a kind of GELU. Any kind that is not a GELU is treated
// as ACT_GELU_TANH.
template <typename Run> void for_gelu(ActivationKind kind, Run run) {
    if (kind == ACT_GELU_ERF)
        run(std::integral_constant<ActivationKind, ACT_GELU_ERF>());
    else if (kind == ACT_GELU_QUICK)
        run(std::integral_constant<ActivationKind, ACT_GELU_QUICK>());
    else
        run(std::integral_constant<ActivationKind, ACT_GELU_TANH>());
}

static inline dim3 grid_of(int64_t blocks) {
    return dim3((unsigned)(blocks < 1 ? 1 : blocks));
}
