// Adds the partial column sums that blocks of other kernels have written, and computes column sums for bias gradients.
// The division of the work is fixed, so that results do not depend on timing.
#include "cuda/common/cuda_kernels.h"

namespace {

// --- second stage of column sums: adds the blocks' partial sums ------------------------------------------------------
constexpr int FINISH_SLICES = 32; // number of warps of a block; each adds every 32nd of the partial sums

// Adds partials (count, width) over count. Writes the sums of columns below `cols` to `first`, the others to `second`.
__global__ __launch_bounds__(FINISH_SLICES *WARP) void partials_sum_kernel(float *first, float *second,
                                                                           const float *partials, int count,
                                                                           int64_t cols, int64_t width,
                                                                           bool accumulate) {
    constexpr int BATCH = 8; // number of partial sums that are loaded before the first is added
    __shared__ float shared[FINISH_SLICES][WARP];
    const int64_t column = (int64_t)blockIdx.x * WARP + threadIdx.x;
    float sum = 0.0f;
    first_stage_wait();
    if (column < width) {
        for (int i = (int)threadIdx.y; i < count; i += BATCH * FINISH_SLICES) {
            float part[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; k++) {
                const int at = i + k * FINISH_SLICES;
                part[k] = at < count ? partials[at * width + column] : 0.0f;
            }
#pragma unroll
            for (int k = 0; k < BATCH; k++) sum += part[k];
        }
    }
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    float *const out = column < cols ? first : second;
    if (threadIdx.y > 0 || column >= width || !out) return;
    const int64_t at = column < cols ? column : column - cols;
    float total = 0.0f;
#pragma unroll
    for (int s = 0; s < FINISH_SLICES; s++) total += shared[s][threadIdx.x];
    out[at] = accumulate ? out[at] + total : total;
}

// --- bias gradients: column sums of the output's gradient ------------------------------------------------------------
template <typename T, int V> struct ColumnSum {
    static constexpr int unroll = sizeof(T) == 4 ? 3 : 6;
    static constexpr bool sums = true, rolling = false;
    typedef Pack<T, V> Loaded;
    Matrix<T> x;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const { return load_streaming<V>(x.at(row, column)); }
    __device__ void apply(int64_t, int64_t, Loaded loaded, float *sum) const {
        float value[V];
        unpack<V>(loaded, value);
#pragma unroll
        for (int i = 0; i < V; i++) sum[i] += value[i];
    }
};

} // namespace

static void partials_sum_launch(Exec *exec, float *first, float *second, const float *partials, int count, int64_t cols,
                                int64_t width, bool accumulate) {
    launch_after(exec, "launching the kernel partials_sum_kernel", partials_sum_kernel, grid_of(ceil_div(width, WARP)),
                 dim3(WARP, FINISH_SLICES), true, first, second, partials, count, cols, width, accumulate);
}

void partials_sum(Exec *exec, float *out, const float *partials, int count, int64_t cols, bool accumulate) {
    partials_sum_launch(exec, out, NULL, partials, count, cols, cols, accumulate);
}

void partials_sum_pair(Exec *exec, float *first, float *second, const float *partials, int count, int64_t cols,
                       bool accumulate) {
    partials_sum_launch(exec, first, second, partials, count, cols, 2 * cols, accumulate);
}

// Implements grad_quantize for BF16 and FP32. Computes only the bias gradient, because nothing is quantized.
void plain_grad_quantize(Exec *exec, Tensor dy_q, Tensor dy_qt, Tensor dbias, Tensor dy, bool accumulate) {
    const char *operation = "grad_quantize";
    require_format(operation, "dy_q", dy_q, dy.format);
    require_format(operation, "dy_qt", dy_qt, dy.format);
    require_format(operation, "the bias gradient", dbias, FMT_FP32);
    if (!dbias.data) return;
    for_layout(operation, dy.format, tensor_wide(dy), [&]<typename T, int V>(Layout<T, V>) {
        const ColumnSum<T, V> op = {matrix_of<T>(dy)};
        columns_run<V>(exec, op, dy.rows, dy.cols, (float *)dbias.data, accumulate);
    });
}
