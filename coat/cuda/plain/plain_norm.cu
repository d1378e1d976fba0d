// Forward norms in BF16 and FP32, LayerNorm or RMSNorm, with the residual add, and the norm recomputed for wgrad. The
// norm follows the residual add with pre-norm and precedes it with post-norm. These kernels handle FP32, and BF16 of
// unusual widths; other BF16 norms use fp8_norm.cu.
#include "plain_norm.h"

namespace {

// Arguments of the norm kernel. An output whose data pointer is NULL is not written. An input whose data pointer is
// NULL is not added.
template <typename T> struct NormForward {
    Matrix<T> n, x, r_out;
    Matrix<const T> r_in, y;
    Matrix<const T> stream;          // with post-norm: the residual stream, to which the norm is added
    const T *y_bias, *weight, *bias; // y_bias and bias may be NULL
    float *mean, *rstd;              // mean (NULL: RMSNorm) and 1 / standard deviation (NULL: not written) of each row
    int cols;
    float eps;
};

// Computes a norm of any width, one block per row; every pass reads the row from memory. A thread rereads only those
// values of the stored row that the same thread wrote, so no barrier is needed. If y has data, r_out or x must have
// data, too. With RECOMPUTE, computes the norm of r_in with the saved statistics.
template <typename T, bool RECOMPUTE> __global__ __launch_bounds__(ANY_THREADS) void norm_any_kernel(NormForward<T> a) {
    __shared__ float shared[2][ANY_THREADS / WARP];
    const int64_t row = blockIdx.x;
    const T *r = a.r_in.at(row, 0);
    float mean, rstd;
    if constexpr (RECOMPUTE) {
        mean = a.mean ? a.mean[row] : 0.0f, rstd = a.rstd[row];
    } else {
        if (a.r_out.data)
            r = a.r_out.at(row, 0);
        else if (a.x.data)
            r = a.x.at(row, 0);
        float sum = 0.0f, squares = 0.0f;
        for (int c = (int)threadIdx.x; c < a.cols; c += ANY_THREADS) {
            float value = (float)*a.r_in.at(row, c);
            if (a.y.data) value = value + (float)*a.y.at(row, c) + (a.y_bias ? (float)a.y_bias[c] : 0.0f);
            const T kept = (T)value;
            if (a.r_out.data) *a.r_out.at(row, c) = kept;
            if (a.x.data) *a.x.at(row, c) = kept;
            sum += (float)kept;
        }
        mean = a.mean ? block_sum<ANY_THREADS / WARP>(sum, shared[0]) / (float)a.cols : 0.0f;
        for (int c = (int)threadIdx.x; c < a.cols; c += ANY_THREADS) {
            const float centred = (float)r[c] - mean;
            squares = fmaf(centred, centred, squares);
        }
        squares = block_sum<ANY_THREADS / WARP>(squares, shared[1]);
        rstd = 1.0f / sqrtf(squares / (float)a.cols + a.eps);
    }
    for (int c = (int)threadIdx.x; a.n.data && c < a.cols; c += ANY_THREADS) {
        const float scaled = __fmul_rn(norm_hat((float)r[c], mean, rstd), (float)a.weight[c]);
        float value = __fadd_rn(scaled, a.bias ? (float)a.bias[c] : 0.0f);
        if (a.stream.data) value += (float)*a.stream.at(row, c);
        *a.n.at(row, c) = (T)value;
    }
    if (RECOMPUTE || threadIdx.x != 0) return;
    if (a.mean) a.mean[row] = mean;
    if (a.rstd) a.rstd[row] = rstd;
}

// Launches norm_any_kernel. If `stream` has data, n becomes stream + norm (post-norm).
template <bool RECOMPUTE>
void norm_any(Exec *exec, const char *operation, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y,
              Tensor y_bias, Tensor stream) {
    if (r_in.rows == 0) return;
    for_layout(operation, r_in.format, false, [&]<typename T, int V>(Layout<T, V>) {
        const NormForward<T> a = {matrix_of<T>(n),
                                  matrix_of<T>(norm.x),
                                  matrix_of<T>(r_out),
                                  matrix_of<const T>(r_in),
                                  matrix_of<const T>(y),
                                  matrix_of<const T>(stream),
                                  (const T *)y_bias.data,
                                  (const T *)norm.weight.data,
                                  (const T *)norm.bias.data,
                                  (float *)norm.mean.data,
                                  (float *)norm.rstd.data,
                                  (int)r_in.cols,
                                  norm.eps};
        norm_any_kernel<T, RECOMPUTE><<<grid_of(r_in.rows), ANY_THREADS, 0, cuda_backend(exec)->stream>>>(a);
        LAUNCH_CHECK("norm_any_kernel");
    });
}

} // namespace

void plain_residual_norm_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y, Tensor y_bias) {
    const char *operation = "residual_norm_forward";
    if (fp8_norm_supports(operation, r_in.format, {n, norm.x, r_out, r_in, y, y_bias, norm.weight, norm.bias})) {
        fp8_residual_norm_forward(exec, n, norm, r_out, r_in, y, y_bias);
        return;
    }
    // without y, r_out is r_in and need not be written if they share memory
    if (!y.data && r_out.data == r_in.data) r_out.data = NULL;
    if (norm.x.data == r_out.data || (!y.data && norm.x.data == r_in.data)) norm.x.data = NULL;
    norm_any<false>(exec, operation, n, norm, r_out, r_in, y, y_bias, Tensor{});
}

void plain_postnorm_residual_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y) {
    const char *operation = "postnorm_residual_forward";
    if (fp8_norm_supports(operation, r_in.format, {n, norm.x, r_out, r_in, y, norm.weight, norm.bias})) {
        fp8_postnorm_residual_forward(exec, n, norm, r_out, r_in, y);
        return;
    }
    if (norm.x.data == y.data) norm.x.data = NULL; // norm.x need not be written, because it shares y's memory
    norm_any<false>(exec, operation, r_out, norm, Tensor{}, y, Tensor{}, Tensor{}, r_in);
}

void plain_norm_recompute(Exec *exec, Tensor n_t, Tensor n, Norm norm) {
    const char *operation = "norm_recompute";
    if (fp8_norm_supports(operation, n_t.format, {n_t, norm.x, norm.weight, norm.bias}))
        fp8_norm_recompute(exec, n_t, n, norm);
    else
        norm_any<true>(exec, operation, n_t, norm, Tensor{}, norm.x, Tensor{}, Tensor{}, Tensor{});
}
