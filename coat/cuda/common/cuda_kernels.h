// Helpers of the memory-bound kernels: packed loads and stores, reductions in a fixed order, the choice of a
// kernel by storage format, and the walk over columns on which the element-wise kernels and the column sums
// are built. Included by CUDA files only.
#pragma once
#include "cuda_internal.h"

typedef __nv_bfloat16 bf16;

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// --- tables of parameters -----------------------------------------------------------------------------------
// Lists of parameters travel as arguments of kernels, in as few launches as the limit of those allows.
constexpr size_t TABLE_BYTES = 32764;

// The entry whose pieces of work include number `piece`; first_piece has count + 1 values that do not fall.
__device__ static inline int table_find(const int *first_piece, int count, int piece) {
    int low = 0, high = count; // first_piece[low] <= piece < first_piece[high]
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first_piece[middle] <= piece)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// --- values as they lie in memory ---------------------------------------------------------------------------
// V consecutive values of T (BF16 or FP32), moved in accesses of up to 16 bytes. V is 8 (4 in the optimizer), or
// 1 for shapes that do not divide by 8.
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
    CACHE_STREAM,   // read once, not worth keeping: activations and states
    CACHE_PARAMETER // read by many blocks and written by none: parameters
};

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
    for (int i = 0; i < Pack<T, V>::words; i++) __stwb((Word *)address + i, words[i]); // stays one access
}

// A tensor of T as kernels find their way in it; data NULL: absent.
template <typename T> struct Matrix {
    T *data;
    int64_t stride;

    __device__ T *at(int64_t row, int64_t column) const { return data + row * stride + column; }
};

template <typename T> static Matrix<T> matrix_of(Tensor t) {
    return {(T *)t.data, t.stride};
}

// --- copies to shared memory --------------------------------------------------------------------------------
// Asynchronous copies of V values, 16 bytes aligned. A thread that reads only what it copied itself needs no
// barrier, just the wait.
template <int V, typename T> __device__ static inline void copy_async(Pack<T, V> *shared, const T *address) {
    static_assert(Pack<T, V>::word_bytes == 16, "whole 16-byte words");
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
#pragma unroll
    for (int i = 0; i < Pack<T, V>::words; i++)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 16 * i), "l"((const char *)address + 16 * i)
                     : "memory");
}

// Closes a group of copies, which may be empty.
__device__ static inline void copies_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most PENDING groups, the latest, are still under way.
template <int PENDING> __device__ static inline void copies_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// --- kernels that overlap -----------------------------------------------------------------------------------
// The second stage of a reduction is launched while the first still runs, on devices that can: its blocks come up
// as the first stage's leave, and wait before they read.
__device__ static inline void second_stage_allow(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ static inline void first_stage_wait(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Launches a kernel; with `overlaps`, on devices that can, as soon as the kernel before allows it: the kernel must then
// wait before it reads what that one writes.
template <typename... P, typename... A>
static void launch_behind(Exec *exec, const char *doing, void (*kernel)(P...), dim3 grid, dim3 threads, size_t shared,
                          bool overlaps, A... arguments) {
    const CudaBackend *backend = cuda_backend(exec);
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    config.stream = backend->stream;
    config.attrs = &overlap;
    config.numAttrs = overlaps && backend->capability >= 90 ? 1 : 0;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, arguments...), doing);
}

// --- to and from FP32 ---------------------------------------------------------------------------------------
template <int V> __device__ static inline void unpack(Pack<float, V> pack, float out[V]) {
#pragma unroll
    for (int i = 0; i < V; i++) out[i] = pack.value[i];
}

// BF16 is the upper half of an FP32, so a pair is two masks away from two floats.
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

// The value that storing x in T leaves.
template <typename T> __device__ static inline float stored(float x) {
    if constexpr (sizeof(T) == 4) return x;
    return __bfloat162float(__float2bfloat16_rn(x));
}

// --- arithmetic ---------------------------------------------------------------------------------------------
// The hardware's exponential and reciprocal: about 22 bits, results below 2^-126 become 0. __expf() and
// __fdividef() spend more instructions on subnormal results than on all others.
__device__ static inline float fast_exp(float x) {
    return fast_exp2(x * 1.4426950408889634f);
}

__device__ static inline float fast_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / (1 + exp(-x)): 0 and 1 far from zero, NaN of NaN.
__device__ static inline float sigmoid(float x) {
    return fast_reciprocal(1.0f + fast_exp(-x));
}

// --- reductions ---------------------------------------------------------------------------------------------
// Butterflies: the order is fixed and every lane ends with the same bits.
template <typename F> __device__ static inline F warp_sum(F x) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(ALL_LANES, x, mask);
    return x;
}

// Sums of N values over a warp, N a power of two: lane i gets that of value[i % N]. In each exchange a lane hands
// over the half of the values that it does not keep, so N sums take about N exchanges instead of 5 N.
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

// Sum over a block of WARPS warps, in every thread. `shared` has room for WARPS values and may be used again
// after the next barrier.
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

// Calls take() in one thread with the largest of what all threads of a block have.
template <int THREADS, typename Take> __device__ static inline void block_largest(uint32_t x, Take take) {
    __shared__ uint32_t shared[THREADS / WARP];
    x = __reduce_max_sync(ALL_LANES, x);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (uint32_t other : shared) x = max(x, other);
    take(x);
}

// --- choosing a kernel --------------------------------------------------------------------------------------
// Storage type and vector width of a kernel, as the type of an argument.
template <typename T, int V> struct Layout {};

// Whether 8 values at a time can be moved: absent tensors can.
static inline bool tensor_wide(Tensor t) {
    return !t.data || (t.cols % 8 == 0 && t.stride % 8 == 0 && (uintptr_t)t.data % 16 == 0);
}

static inline void require_format(const char *operation, const char *what, Tensor t, Format format) {
    if (t.data && t.format != format)
        fatal(EXIT_DEVICE, "%s on the GPU: %s is stored as %s where %s is needed", operation, what,
              format_name(t.format), format_name(format));
}

// Calls f(Layout<T, V>{}) for a plain storage format.
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
        fatal(EXIT_DEVICE, "%s on the GPU: the format %s is not built", operation, format_name(format));
}

// --- the walk over columns ----------------------------------------------------------------------------------
// One pass over a (rows, cols) matrix in which a thread keeps its V columns and goes down the rows, so that
// what belongs to a column (a bias, a norm's weight) stays in registers and column sums need no exchange until
// the end. A block is 8 rows of 32 threads; blockIdx.x is the tile of columns, and the blocks of one tile share
// its rows in turn. `Op` says what happens to each vector:
//   begin(column), load(row, column) -> Loaded, apply(row, column, loaded, sum)
// with Op::unroll vectors on their way: loaded together and then used, or with Op::rolling each loaded again as
// soon as it is used, which pays where there is much arithmetic between. Op::sums says whether `sum` is wanted:
// the partial sums of the blocks are then written to partials (gridDim.y, cols).
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

// out (cols) (+)= the sum of partials (count, cols) over count, in a fixed order (cuda_reduce.cu).
void partials_sum(Exec *exec, float *out, const float *partials, int count, int64_t cols, bool accumulate);
// The same for two rows of sums at once: partials (count, 2, cols), into first and second, either may be NULL.
void partials_sum_pair(Exec *exec, float *first, float *second, const float *partials, int count, int64_t cols,
                       bool accumulate);

// Runs the walk; with Op::sums, sum_out (cols) FP32 gets or adds the column sums. The split of the rows depends
// on the shape and on the number of multiprocessors alone.
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
        fatal(EXIT_DEVICE, "column sums: %lld columns do not fit the workspace", (long long)cols);
    columns_kernel<Op, V>
        <<<dim3((unsigned)tiles, (unsigned)share), COLUMN_WARPS * WARP, 0, backend->stream>>>(op, rows, cols, partials);
    LAUNCH_CHECK("columns_kernel");
    if (Op::sums) partials_sum(exec, sum_out, partials, (int)share, cols, accumulate);
}

static inline dim3 grid_of(int64_t blocks) {
    return dim3((unsigned)(blocks < 1 ? 1 : blocks));
}
