// Reductions: column sums for the bias gradients, and the norm of all gradients. All in two stages with a fixed
// split, so that results do not depend on timing.
#include "cuda/common/cuda_kernels.h"

namespace {

// --- second stage of the column sums ------------------------------------------------------------------------
constexpr int FINISH_COLUMNS = 16; // of a block: narrow, so that more blocks share what has to be read
constexpr int FINISH_SLICES = 32;  // parts of the partials that a block sums side by side

// partials (count, width); columns below `cols` belong to first, the others to second. A thread has V columns of a slice.
// Zeros that are added change no sum. One block per multiprocessor is enough: then the loads of a batch stay together.
template <int V>
__global__ __launch_bounds__(FINISH_SLICES *FINISH_COLUMNS / V,
                             1) void partials_sum_kernel(float *first, float *second, const float *partials, int count,
                                                         int64_t cols, int64_t width, bool accumulate) {
    constexpr int BATCH = 17; // of a thread on their way: of 544 partials, where norms leave 528 on 132 multiprocessors
    __shared__ Pack<float, V> shared[FINISH_SLICES][FINISH_COLUMNS / V];
    const int64_t column = (int64_t)blockIdx.x * FINISH_COLUMNS + threadIdx.x * V;
    float *const out = column >= width ? NULL : column < cols ? first : second;
    const int64_t out_column = column < cols ? column : column - cols;
    Pack<float, V> sum = {}, total = {};
    kernel_before_wait();
    next_kernel_allow();
    if (threadIdx.y == 0 && out && accumulate) total = load<V>(out + out_column);
    for (int i = (int)threadIdx.y; out && i < count; i += BATCH * FINISH_SLICES) {
        Pack<float, V> part[BATCH] = {};
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int at = i + k * FINISH_SLICES;
            if (at < count) part[k] = load<V>(partials + at * width + column);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
#pragma unroll
            for (int j = 0; j < V; j++) sum.value[j] += part[k].value[j];
        }
    }
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || !out) return;
#pragma unroll
    for (int j = 0; j < V; j++) {
        float all = 0.0f;
#pragma unroll
        for (int s = 0; s < FINISH_SLICES; s++) all += shared[s][threadIdx.x].value[j];
        total.value[j] += all;
    }
    store(out + out_column, total);
}

// --- bias gradients -----------------------------------------------------------------------------------------
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
    const uintptr_t addresses = (uintptr_t)first | (uintptr_t)second | (uintptr_t)partials;
    const bool wide = cols % 4 == 0 && addresses % 16 == 0;
    launch_kernel(exec, "launching the kernel partials_sum_kernel",
                  wide ? partials_sum_kernel<4> : partials_sum_kernel<1>, grid_of(ceil_div(width, FINISH_COLUMNS)),
                  dim3(wide ? FINISH_COLUMNS / 4 : FINISH_COLUMNS, FINISH_SLICES), 0, START_EARLY, first, second,
                  partials, count, cols, width, accumulate);
}

void partials_sum(Exec *exec, float *out, const float *partials, int count, int64_t cols, bool accumulate) {
    partials_sum_launch(exec, out, NULL, partials, count, cols, cols, accumulate);
}

void partials_sum_pair(Exec *exec, float *first, float *second, const float *partials, int count, int64_t cols,
                       bool accumulate) {
    partials_sum_launch(exec, first, second, partials, count, cols, 2 * cols, accumulate);
}

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
