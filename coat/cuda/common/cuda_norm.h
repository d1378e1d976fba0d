// What the norm's forward, rebuild and backward share.
#pragma once
#include "cuda_kernels.h"

constexpr int ANY_THREADS = 256; // of the kernels for widths that do not divide by 8: a block per row

// One value of the norm. Every product and sum is rounded, as the twin does, and alike everywhere: backward makes
// the bits of forward again.
__device__ static inline float norm_hat(float x, float mean, float rstd) {
    return __fmul_rn(__fsub_rn(x, mean), rstd);
}

__device__ static inline float norm_value(float x, float mean, float rstd, float weight, float bias) {
    return __fadd_rn(__fmul_rn(norm_hat(x, mean, rstd), weight), bias);
}

// The persistent kernels of wide rows. A block takes ROWS rows at a time and a thread keeps its 8 columns, so that
// parameters stay in registers. What a group of rows needs is fetched STAGES groups ahead into a ring in shared
// memory, whose slots belong to a thread each: device memory is never left waiting for the exchanges of a group.
template <typename T, int OPERANDS, int ROWS, int STAGES> struct RowRing {
    Pack<T, 8> *slots; // (STAGES, ROWS, OPERANDS, blockDim.x)

    __device__ Pack<T, 8> *slot(int stage, int row, int operand) const {
        return slots + ((stage * ROWS + row) * OPERANDS + operand) * (int)blockDim.x + (int)threadIdx.x;
    }
    __device__ void fetch(int stage, int row, int operand, const T *address) const {
        copy_async<8>(slot(stage, row, operand), address);
    }
    __device__ Pack<T, 8> read(int stage, int row, int operand) const {
        return load<8>((const T *)slot(stage, row, operand));
    }
    static size_t bytes(int threads) { return sizeof(Pack<T, 8>) * STAGES * ROWS * OPERANDS * (size_t)threads; }
};

// Sums of N values over a block of `warps` warps, in every thread, in the warps' order. `shared` may be written
// again after the next barrier.
template <int N>
__device__ static inline void block_sums(float value[N], float (*shared)[N], int lane, int warp, int warps) {
    const float mine = warp_sums<N>(value);
    if (lane < N) shared[warp][lane] = mine;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) value[i] = 0.0f;
#pragma unroll 4
    for (int w = 0; w < warps; w++) {
#pragma unroll
        for (int i = 0; i < N; i++) value[i] += shared[w][i];
    }
}

// Threads of a block that holds rows of `cols` columns, whole warps.
static inline int row_threads(int cols) {
    return (int)ceil_div(cols, 8 * WARP) * WARP;
}

// Blocks of `kernel` that the device holds at once, or 0 where the ring does not fit into its shared memory.
template <typename K> static int64_t resident_blocks(const CudaBackend *backend, K kernel, int threads, size_t ring) {
    int most = 0, per_sm = 0;
    cudaFuncAttributes attributes;
    const char *doing = "asking how many blocks of a norm's kernel fit";
    CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, backend->device), doing);
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel), doing);
    if (ring + attributes.sharedSizeBytes > (size_t)most) return 0;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)ring), doing);
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, ring), doing);
    return (int64_t)per_sm * backend->sm_count;
}

// Launches a norm's backward over `groups` groups of rows, with as many blocks as the device holds at once, and adds up
// their shares of the parameters' gradients behind it. False where the ring does not fit.
template <typename K, typename A>
static bool norm_backward_start(Exec *exec, K kernel, A a, int threads, size_t ring, int64_t groups, float *dweight,
                                float *dbias, bool accumulate) {
    const CudaBackend *backend = cuda_backend(exec);
    const int64_t slots = resident_blocks(backend, kernel, threads, ring), blocks = groups < slots ? groups : slots;
    if (blocks == 0) return false;
    if ((size_t)(blocks * 2 * a.cols) * sizeof(float) > exec->workspace_bytes)
        fatal(EXIT_DEVICE, "norm_backward: %d channels do not fit the workspace", a.cols);
    a.partials = (float *)exec->workspace;
    kernel<<<grid_of(blocks), (unsigned)threads, ring, backend->stream>>>(a);
    LAUNCH_CHECK("norm_backward_kernel");
    partials_sum_pair(exec, dweight, dbias, a.partials, (int)blocks, a.cols, accumulate);
    return true;
}
