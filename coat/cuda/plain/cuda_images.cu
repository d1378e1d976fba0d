// GPU operations of vision towers: patches from pixels, embedding of patches, and gathering of rows.
#include "cuda/common/cuda_kernels.h"

namespace {

constexpr int IMAGE_THREADS = 256;

// Sets *row and *column to the start of the pack of V columns that this thread processes. Returns false if the tensor
// has no pack for this thread.
template <int V> __device__ bool pack_of_thread(int64_t rows, int64_t cols, int64_t *row, int64_t *column) {
    const int64_t packs = cols / V, index = (int64_t)blockIdx.x * IMAGE_THREADS + threadIdx.x;
    *row = index / packs;
    *column = index % packs * V;
    return *row < rows;
}

template <int V> dim3 pack_grid(int64_t rows, int64_t cols) {
    return grid_of(ceil_div(rows * (cols / V), IMAGE_THREADS));
}

// Computes V columns of a row of patches. The threads of neighboring columns read neighboring bytes of the image, so
// each byte is read from device memory about once.
template <typename T, int V>
__global__ __launch_bounds__(IMAGE_THREADS) void patches_kernel(Matrix<T> out, int64_t rows, int cols,
                                                                const uint8_t *pixels, const float *table, int side,
                                                                int patch, int length) {
    int64_t row, column;
    if (!pack_of_thread<V>(rows, cols, &row, &column)) return;
    const int grid = side / patch, number = (int)(row % length) - (length - grid * grid);
    const uint8_t *const image = pixels + row / length * 3 * side * side;
    const int top = number / grid * patch, left = number % grid * patch;
    float value[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        const int at = (int)column + i, channel = at / (patch * patch), in_patch = at % (patch * patch);
        const int y = top + in_patch / patch, x = left + in_patch % patch;
        value[i] = number < 0 ? 0.0f : table[channel * 256 + image[(channel * side + y) * side + x]];
    }
    store(out.at(row, column), packed<T, V>(value));
}

template <typename T, int V>
__global__ __launch_bounds__(IMAGE_THREADS) void image_embed_kernel(Matrix<T> r, Matrix<T> y, const T *class_row,
                                                                    Matrix<T> wpe, int64_t rows, int64_t cols,
                                                                    int length) {
    int64_t row, column;
    if (!pack_of_thread<V>(rows, cols, &row, &column)) return;
    const int64_t position = row % length;
    const T *const from = class_row && position == 0 ? class_row + column : y.at(row, column);
    float sum[V], add[V];
    unpack<V>(load<V>(from), sum);
    unpack<V>(load_parameter<V>(wpe.at(position, column)), add);
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] += add[i];
    store(r.at(row, column), packed<T, V>(sum));
}

template <typename T, int V>
__global__ __launch_bounds__(IMAGE_THREADS) void rows_gather_kernel(Matrix<T> out, Matrix<T> in, const int32_t *index,
                                                                    int64_t rows, int64_t cols, bool keep) {
    int64_t row, column;
    if (!pack_of_thread<V>(rows, cols, &row, &column)) return;
    const int32_t from = index[row];
    Pack<T, V> value = {};
    if (from >= 0 && in.data) value = load_streaming<V>(in.at(from, column));
    if (from >= 0 || !keep) store(out.at(row, column), value);
}

} // namespace

void cuda_patches_forward(Exec *exec, Tensor out, Tensor pixels, Tensor table, int side, int patch, int T) {
    const char *operation = "patches_forward";
    require_format(operation, "pixels", pixels, FMT_U8);
    require_format(operation, "the table", table, FMT_FP32);
    if (out.rows == 0) return;
    for_layout(operation, out.format, tensor_wide(out), [&]<typename Type, int V>(Layout<Type, V>) {
        patches_kernel<Type, V><<<pack_grid<V>(out.rows, out.cols), IMAGE_THREADS, 0, cuda_backend(exec)->stream>>>(
            matrix_of<Type>(out), out.rows, (int)out.cols, (const uint8_t *)pixels.data, (const float *)table.data,
            side, patch, T);
        LAUNCH_CHECK("patches_kernel");
    });
}

void cuda_image_embed_forward(Exec *exec, Tensor r, Tensor y, Tensor class_row, Tensor wpe, int T) {
    const char *operation = "image_embed_forward";
    require_format(operation, "y", y, r.format);
    require_format(operation, "the class row", class_row, r.format);
    require_format(operation, "wpe", wpe, r.format);
    if (r.rows == 0) return;
    const bool wide = tensor_wide(r) && tensor_wide(y) && tensor_wide(class_row) && tensor_wide(wpe);
    for_layout(operation, r.format, wide, [&]<typename Type, int V>(Layout<Type, V>) {
        image_embed_kernel<Type, V><<<pack_grid<V>(r.rows, r.cols), IMAGE_THREADS, 0, cuda_backend(exec)->stream>>>(
            matrix_of<Type>(r), matrix_of<Type>(y), (const Type *)class_row.data, matrix_of<Type>(wpe), r.rows, r.cols,
            T);
        LAUNCH_CHECK("image_embed_kernel");
    });
}

void cuda_rows_gather(Exec *exec, Tensor out, Tensor in, Tensor index, bool keep) {
    const char *operation = "rows_gather";
    require_format(operation, "in", in, out.format);
    require_format(operation, "index", index, FMT_I32);
    if (out.rows == 0) return;
    for_layout(operation, out.format, tensor_wide(out) && tensor_wide(in), [&]<typename Type, int V>(Layout<Type, V>) {
        rows_gather_kernel<Type, V><<<pack_grid<V>(out.rows, out.cols), IMAGE_THREADS, 0, cuda_backend(exec)->stream>>>(
            matrix_of<Type>(out), matrix_of<Type>(in), (const int32_t *)index.data, out.rows, out.cols, keep);
        LAUNCH_CHECK("rows_gather_kernel");
    });
}
