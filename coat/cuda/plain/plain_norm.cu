// The norms of the forward pass: residual addition with the norm behind or before it, and the norm again for the weight
// gradient (COAT: saved activations). LayerNorm, and RMSNorm where the mean is absent. Of BF16 the kernels of fp8_norm.cu
// take all but uncommon widths; what is here serves those, and FP32, which is for exact comparisons.
#include "plain_norm.h"

namespace {

template <int V, typename T> __device__ inline void load_parameter_or_zero(const T *address, float out[V]) {
    if (address) {
        unpack<V>(load_parameter<V>(address), out);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) out[i] = 0.0f;
    }
}

__device__ inline float norm_value(float x, float mean, float rstd, float weight, float bias) {
    return __fadd_rn(__fmul_rn(norm_hat(x, mean, rstd), weight), bias);
}

template <typename T> struct NormForward {
    T *n, *x, *r_out;       // NULL: not to be written
    const T *r_in, *y;      // y NULL: nothing to add
    const T *y_bias;        // may be NULL
    const T *stream;        // what n adds the norm to; NULL: n is the norm
    const T *weight, *bias; // bias may be NULL
    float *mean, *rstd;     // mean NULL: RMSNorm; rstd NULL: not to be written
    int64_t n_stride, x_stride, r_out_stride, r_in_stride, y_stride, stream_stride;
    int64_t rows;
    int cols;
    float eps;
};

// --- forward ------------------------------------------------------------------------------------------------
// Any width: a block per row, which it reads again for each pass. A thread reads only what it wrote itself.
template <typename T> __global__ __launch_bounds__(ANY_THREADS) void norm_forward_any_kernel(NormForward<T> a) {
    __shared__ float shared[2][ANY_THREADS / WARP];
    const int64_t row = blockIdx.x;
    const T *r = a.r_in + row * a.r_in_stride;
    if (a.r_out)
        r = a.r_out + row * a.r_out_stride;
    else if (a.x)
        r = a.x + row * a.x_stride;
    float sum = 0.0f;
    for (int c = (int)threadIdx.x; c < a.cols; c += ANY_THREADS) {
        float value = (float)a.r_in[row * a.r_in_stride + c];
        if (a.y) value = value + (float)a.y[row * a.y_stride + c] + (a.y_bias ? (float)a.y_bias[c] : 0.0f);
        const T kept = (T)value;
        if (a.r_out) a.r_out[row * a.r_out_stride + c] = kept;
        if (a.x) a.x[row * a.x_stride + c] = kept;
        sum += (float)kept;
    }
    const float mean = a.mean ? block_sum<ANY_THREADS / WARP>(sum, shared[0]) / (float)a.cols : 0.0f;
    float squares = 0.0f;
    for (int c = (int)threadIdx.x; c < a.cols; c += ANY_THREADS) {
        const float centred = (float)r[c] - mean;
        squares = fmaf(centred, centred, squares);
    }
    squares = block_sum<ANY_THREADS / WARP>(squares, shared[1]);
    const float rstd = 1.0f / sqrtf(squares / (float)a.cols + a.eps);
    for (int c = (int)threadIdx.x; a.n && c < a.cols; c += ANY_THREADS) {
        float value = norm_value((float)r[c], mean, rstd, (float)a.weight[c], a.bias ? (float)a.bias[c] : 0.0f);
        if (a.stream) value += (float)a.stream[row * a.stream_stride + c];
        a.n[row * a.n_stride + c] = (T)value;
    }
    if (threadIdx.x == 0) {
        if (a.mean) a.mean[row] = mean;
        if (a.rstd) a.rstd[row] = rstd;
    }
}

// --- again for the weight gradient --------------------------------------------------------------------------
template <typename T, int V> struct NormRebuild {
    static constexpr int unroll = sizeof(T) == 4 ? 1 : 2;
    static constexpr bool sums = false, rolling = false;
    struct Loaded {
        Pack<T, V> x;
        float mean, rstd;
    };
    T *n;
    const T *x, *weight, *bias;
    const float *mean, *rstd;
    int64_t n_stride, x_stride;
    float weight_here[V], bias_here[V];

    __device__ void begin(int64_t column) {
        unpack<V>(load_parameter<V>(weight + column), weight_here);
        load_parameter_or_zero<V>(bias ? bias + column : nullptr, bias_here);
    }
    __device__ Loaded load(int64_t row, int64_t column) const {
        return {load_streaming<V>(x + row * x_stride + column), mean ? mean[row] : 0.0f, rstd[row]};
    }
    __device__ void apply(int64_t row, int64_t column, const Loaded &loaded, float *) const {
        float value[V];
        unpack<V>(loaded.x, value);
#pragma unroll
        for (int i = 0; i < V; i++)
            value[i] = norm_value(value[i], loaded.mean, loaded.rstd, weight_here[i], bias_here[i]);
        store(n + row * n_stride + column, packed<T, V>(value));
    }
};

// stream.data given: what n adds the norm to.
void norm_forward_any(Exec *exec, const char *operation, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y,
                      Tensor y_bias, Tensor stream) {
    if (r_in.rows == 0) return;
    for_layout(operation, r_in.format, false, [&](auto layout) {
        typedef typename decltype(layout)::type T;
        const NormForward<T> a = {(T *)n.data,
                                  (T *)norm.x.data,
                                  (T *)r_out.data,
                                  (const T *)r_in.data,
                                  (const T *)y.data,
                                  (const T *)y_bias.data,
                                  (const T *)stream.data,
                                  (const T *)norm.weight.data,
                                  (const T *)norm.bias.data,
                                  (float *)norm.mean.data,
                                  (float *)norm.rstd.data,
                                  n.stride,
                                  norm.x.stride,
                                  r_out.stride,
                                  r_in.stride,
                                  y.stride,
                                  stream.stride,
                                  r_in.rows,
                                  (int)r_in.cols,
                                  norm.eps};
        norm_forward_any_kernel<<<grid_of(a.rows), ANY_THREADS, 0, cuda_backend(exec)->stream>>>(a);
        LAUNCH_CHECK("norm_forward_any_kernel");
    });
}

} // namespace

void plain_residual_norm_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y, Tensor y_bias) {
    const char *operation = "residual_norm_forward";
    const Tensor all[] = {n, norm.x, r_out, y, y_bias, norm.weight, norm.bias};
    bool spans = in_spans(r_in);
    for (const Tensor &t : all) {
        require_format(operation, "a tensor", t, r_in.format);
        spans = spans && in_spans(t);
    }
    if (spans) {
        fp8_residual_norm_forward(exec, n, norm, r_out, r_in, y, y_bias);
        return;
    }
    if (!y.data && r_out.data == r_in.data) r_out.data = NULL; // complete already
    if (norm.x.data == r_out.data || (!y.data && norm.x.data == r_in.data)) norm.x.data = NULL;
    norm_forward_any(exec, operation, n, norm, r_out, r_in, y, y_bias, Tensor{});
}

void plain_branch_norm_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y) {
    const char *operation = "branch_norm_forward";
    const Tensor all[] = {n, norm.x, r_out, y, norm.weight, norm.bias};
    bool spans = in_spans(r_in);
    for (const Tensor &t : all) {
        require_format(operation, "a tensor", t, r_in.format);
        spans = spans && in_spans(t);
    }
    if (spans) {
        fp8_branch_norm_forward(exec, n, norm, r_out, r_in, y);
        return;
    }
    if (norm.x.data == y.data) norm.x.data = NULL; // complete already
    norm_forward_any(exec, operation, r_out, norm, Tensor{}, y, Tensor{}, Tensor{}, r_in);
}

void plain_norm_rebuild(Exec *exec, Tensor n_t, Tensor n, Norm norm) {
    if (!n_t.data || n_t.data == n.data) return;
    const char *operation = "norm_rebuild";
    const Tensor all[] = {norm.x, norm.weight, norm.bias};
    bool wide = tensor_wide(n_t), spans = in_spans(n_t);
    for (const Tensor &t : all) {
        require_format(operation, "a tensor", t, n_t.format);
        wide = wide && tensor_wide(t);
        spans = spans && in_spans(t);
    }
    if (spans) {
        fp8_norm_rebuild(exec, n_t, n, norm);
        return;
    }
    for_layout(operation, n_t.format, wide, [&](auto layout) {
        typedef typename decltype(layout)::type T;
        constexpr int V = decltype(layout)::width;
        NormRebuild<T, V> op = {};
        op.n = (T *)n_t.data;
        op.x = (const T *)norm.x.data;
        op.weight = (const T *)norm.weight.data;
        op.bias = (const T *)norm.bias.data;
        op.mean = (const float *)norm.mean.data;
        op.rstd = (const float *)norm.rstd.data;
        op.n_stride = n_t.stride;
        op.x_stride = norm.x.stride;
        columns_run<V>(exec, op, n_t.rows, n_t.cols, nullptr, false);
    });
}
