// What the norms' kernels share.
#pragma once
#include "cuda_kernels.h"

constexpr int ANY_THREADS = 256; // of the kernels for widths that do not divide by 8: a block per row

// xhat, with every product and sum rounded, as the twin does: for FP32 and for uncommon widths.
__device__ static inline float norm_hat(float x, float mean, float rstd) {
    return __fmul_rn(__fsub_rn(x, mean), rstd);
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
