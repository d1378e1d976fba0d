// The activation function, tanh-GELU or SwiGLU, and its backward (COAT: saved activations, FP8 flow), with the bias of the
// product before it and that bias's gradient.
#include "cuda/common/cuda_kernels.h"

namespace {

constexpr float GELU_SCALE = 0.7978845608028654f; // sqrt(2 / pi)
constexpr float GELU_CUBIC = 0.044715f;

// 1 / (1 + exp(-2 u)) with u the argument of GELU's tanh: 0.5 (1 + tanh u) without the cancellation that the
// sum suffers for negative u. The arguments are such that NaN stays NaN and both tails are right.
__device__ inline float gelu_gate(float x) {
    float u = GELU_SCALE * x * fmaf(GELU_CUBIC * x, x, 1.0f);
    return fast_reciprocal(1.0f + fast_exp(-2.0f * u));
}

__device__ inline float gelu(float x) {
    return x * gelu_gate(x);
}

__device__ inline float gelu_derivative(float x) {
    float gate = gelu_gate(x);
    float du = GELU_SCALE * fmaf(3.0f * GELU_CUBIC * x, x, 1.0f);
    return fmaf(2.0f * x * du * gate, 1.0f - gate, gate);
}

// h = y + bias where h is wanted; g = gelu(stored h).
template <typename T, int V> struct GeluForward {
    static constexpr int unroll = sizeof(T) == 4 ? 2 : 5;
    static constexpr bool sums = false, rolling = false;
    typedef Pack<T, V> Loaded;
    T *g, *h; // h NULL: y is h already
    const T *y, *bias;
    int64_t g_stride, h_stride, y_stride;
    Pack<T, V> bias_here;

    __device__ void begin(int64_t column) {
        if (bias) bias_here = load_parameter<V>(bias + column);
    }
    __device__ Loaded load(int64_t row, int64_t column) const { return load_streaming<V>(y + row * y_stride + column); }
    __device__ void apply(int64_t row, int64_t column, Loaded loaded, float *) const {
        float x[V];
        if (h) {
            unpack<V>(loaded, x);
            if (bias) {
                float b[V];
                unpack<V>(bias_here, b);
#pragma unroll
                for (int i = 0; i < V; i++) x[i] += b[i];
            }
            loaded = packed<T, V>(x);
            store(h + row * h_stride + column, loaded);
        }
        if (!g) return;
        unpack<V>(loaded, x);
#pragma unroll
        for (int i = 0; i < V; i++) x[i] = gelu(x[i]);
        store(g + row * g_stride + column, packed<T, V>(x));
    }
};

// dh = dg * gelu'(h); the bias gradient sums the values before they are rounded.
template <typename T, int V> struct GeluBackward {
    static constexpr int unroll = sizeof(T) == 4 ? 1 : 3;
    static constexpr bool sums = true, rolling = true;
    struct Loaded {
        Pack<T, V> dg, h;
    };
    T *dh;
    const T *dg, *h;
    int64_t dh_stride, dg_stride, h_stride;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const {
        return {load_streaming<V>(dg + row * dg_stride + column), load_streaming<V>(h + row * h_stride + column)};
    }
    __device__ void apply(int64_t row, int64_t column, Loaded loaded, float *sum) const {
        float d[V], x[V];
        unpack<V>(loaded.dg, d);
        unpack<V>(loaded.h, x);
#pragma unroll
        for (int i = 0; i < V; i++) {
            d[i] *= gelu_derivative(x[i]);
            sum[i] += d[i];
        }
        store(dh + row * dh_stride + column, packed<T, V>(d));
    }
};

// The same without a bias.
template <typename T, int V> struct GeluBackwardNoBias : GeluBackward<T, V> { static constexpr bool sums = false; };

// g = silu(gate) up; h holds gate beside up.
template <typename T, int V> struct SwigluForward {
    static constexpr int unroll = 2;
    static constexpr bool sums = false, rolling = false;
    struct Loaded {
        Pack<T, V> gate, up;
    };
    T *g;
    const T *h;
    int64_t g_stride, h_stride, width;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const {
        const T *const gate = h + row * h_stride + column;
        return {load_streaming<V>(gate), load_streaming<V>(gate + width)};
    }
    __device__ void apply(int64_t row, int64_t column, const Loaded &loaded, float *) const {
        float gate[V], up[V];
        unpack<V>(loaded.gate, gate);
        unpack<V>(loaded.up, up);
#pragma unroll
        for (int i = 0; i < V; i++) up[i] *= gate[i] * sigmoid(gate[i]);
        store(g + row * g_stride + column, packed<T, V>(up));
    }
};

// dgate = dg up silu'(gate), dup = dg silu(gate), beside each other.
template <typename T, int V> struct SwigluBackward {
    static constexpr int unroll = 2;
    static constexpr bool sums = false, rolling = false;
    struct Loaded {
        Pack<T, V> dg, gate, up;
    };
    T *dh;
    const T *dg, *h;
    int64_t dh_stride, dg_stride, h_stride, width;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const {
        const T *const gate = h + row * h_stride + column;
        return {load_streaming<V>(dg + row * dg_stride + column), load_streaming<V>(gate),
                load_streaming<V>(gate + width)};
    }
    __device__ void apply(int64_t row, int64_t column, const Loaded &loaded, float *) const {
        float d[V], gate[V], up[V];
        unpack<V>(loaded.dg, d);
        unpack<V>(loaded.gate, gate);
        unpack<V>(loaded.up, up);
#pragma unroll
        for (int i = 0; i < V; i++) {
            const float s = sigmoid(gate[i]), silu = gate[i] * s;
            up[i] *= d[i] * fmaf(silu, 1.0f - s, s);
            gate[i] = d[i] * silu;
        }
        T *const to = dh + row * dh_stride + column;
        store(to, packed<T, V>(up));
        store(to + width, packed<T, V>(gate));
    }
};

void swiglu_launch(Exec *exec, const char *operation, Tensor g, Tensor h) {
    require_format(operation, "g", g, h.format);
    for_layout(operation, h.format, tensor_wide(g) && tensor_wide(h), [&](auto layout) {
        typedef typename decltype(layout)::type T;
        constexpr int V = decltype(layout)::width;
        const SwigluForward<T, V> op = {(T *)g.data, (const T *)h.data, g.stride, h.stride, g.cols};
        columns_run<V>(exec, op, g.rows, g.cols, nullptr, false);
    });
}

void swiglu_backward_launch(Exec *exec, const char *operation, Tensor dh, Tensor dg, Tensor h) {
    for_layout(operation, dg.format, tensor_wide(dh) && tensor_wide(dg) && tensor_wide(h), [&](auto layout) {
        typedef typename decltype(layout)::type T;
        constexpr int V = decltype(layout)::width;
        const SwigluBackward<T, V> op = {
            (T *)dh.data, (const T *)dg.data, (const T *)h.data, dh.stride, dg.stride, h.stride, dg.cols};
        columns_run<V>(exec, op, dg.rows, dg.cols, nullptr, false);
    });
}

void gelu_launch(Exec *exec, const char *operation, Tensor g, Tensor h, Tensor y, Tensor bias) {
    require_format(operation, "g", g, y.format);
    require_format(operation, "h", h, y.format);
    require_format(operation, "the bias", bias, y.format);
    bool wide = tensor_wide(g) && tensor_wide(h) && tensor_wide(y) && tensor_wide(bias);
    for_layout(operation, y.format, wide, [&](auto layout) {
        typedef typename decltype(layout)::type T;
        constexpr int V = decltype(layout)::width;
        GeluForward<T, V> op = {};
        op.g = (T *)g.data;
        op.h = (T *)h.data;
        op.y = (const T *)y.data;
        op.bias = (const T *)bias.data;
        op.g_stride = g.stride;
        op.h_stride = h.stride;
        op.y_stride = y.stride;
        columns_run<V>(exec, op, y.rows, y.cols, nullptr, false);
    });
}

} // namespace

void plain_activation_forward(Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias, bool) {
    if (y.data == h.data && !bias.data) h.data = NULL; // complete already
    if (g.data && g.cols != y.cols) {
        if (h.data) fatal(EXIT_DEVICE, "activation_forward on the GPU: SwiGLU is built for an h that is complete");
        swiglu_launch(exec, "activation_forward", g, y);
        return;
    }
    if (g.data || h.data) gelu_launch(exec, "activation_forward", g, h, y, bias);
}

void plain_activation_rebuild(Exec *exec, Tensor g_t, Tensor g, Tensor h) {
    if (!g_t.data || g_t.data == g.data) return;
    if (g_t.cols != h.cols)
        swiglu_launch(exec, "activation_rebuild", g_t, h);
    else
        gelu_launch(exec, "activation_rebuild", g_t, Tensor{}, h, Tensor{});
}

void plain_activation_backward(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg, Tensor h,
                               bool accumulate) {
    const char *operation = "activation_backward";
    require_format(operation, "dh", dh_q, dg.format);
    require_format(operation, "the transposed dh", dh_qt, dg.format);
    require_format(operation, "h", h, dg.format);
    require_format(operation, "the bias gradient", dbias, FMT_FP32);
    if (dg.cols != h.cols) {
        if (dbias.data) fatal(EXIT_DEVICE, "%s on the GPU: SwiGLU is built without biases", operation);
        swiglu_backward_launch(exec, operation, dh_q, dg, h);
        return;
    }
    bool wide = tensor_wide(dh_q) && tensor_wide(dg) && tensor_wide(h);
    for_layout(operation, dg.format, wide, [&](auto layout) {
        typedef typename decltype(layout)::type T;
        constexpr int V = decltype(layout)::width;
        GeluBackward<T, V> op = {(T *)dh_q.data, (const T *)dg.data, (const T *)h.data,
                                 dh_q.stride,    dg.stride,          h.stride};
        if (dbias.data)
            columns_run<V>(exec, op, dg.rows, dg.cols, (float *)dbias.data, accumulate);
        else
            columns_run<V>(exec, GeluBackwardNoBias<T, V>{op}, dg.rows, dg.cols, nullptr, false);
    });
}
