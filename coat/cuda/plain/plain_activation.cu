// GELU and SwiGLU in BF16 or FP32, forward and backward, fused with the preceding matmul's bias and the bias
// gradient.
#include "cuda/common/cuda_kernels.h"

namespace {

// Tanh-GELU and quick GELU are x * gate(x) with gate(x) = 1 / (1 + exp(-u)), u = slope * (x + cubic * x^3). With slope
// 2 sqrt(2/pi), the gate equals 0.5 (1 + tanh(u / 2)), but has no cancellation for negative u. NaN stays NaN, and both
// tails are correct. The gate of ACT_GELU_ERF is the normal distribution function.
template <ActivationKind K> struct Gelu {
    static constexpr bool quick = K == ACT_GELU_QUICK;
    static constexpr float slope = quick ? 1.702f : 1.5957691216057308f, cubic = quick ? 0.0f : 0.044715f;

    static __device__ float gate(float x) {
        if (K == ACT_GELU_ERF) return normcdff(x);
        return fast_reciprocal(1.0f + fast_exp(-slope * x * (quick ? 1.0f : fmaf(cubic * x, x, 1.0f))));
    }
    static __device__ float derivative(float x) {
        const float g = gate(x);
        constexpr float density = 0.3989422804014327f; // 1 / sqrt(2 pi)
        if (K == ACT_GELU_ERF) return fmaf(x * density, expf(-0.5f * x * x), g);
        const float du = quick ? slope : slope * fmaf(3.0f * cubic * x, x, 1.0f);
        return fmaf(x * du * g, 1.0f - g, g);
    }
};

// Computes GELU's forward: h = y + bias, rounded to T, and g = gelu(h). If h.data is NULL, computes g = gelu(y).
template <typename T, int V, ActivationKind K> struct GeluForward {
    static constexpr int unroll = sizeof(T) == 4 ? 2 : 5;
    static constexpr bool sums = false, rolling = false;
    typedef Pack<T, V> Loaded;
    Matrix<T> g, h, y; // h.data is NULL if y already is h
    const T *bias;
    Pack<T, V> bias_here;

    __device__ void begin(int64_t column) {
        if (bias) bias_here = load_parameter<V>(bias + column);
    }
    __device__ Loaded load(int64_t row, int64_t column) const { return load_streaming<V>(y.at(row, column)); }
    __device__ void apply(int64_t row, int64_t column, Loaded loaded, float *) const {
        float x[V];
        if (h.data) {
            unpack<V>(loaded, x);
            if (bias) {
                float b[V];
                unpack<V>(bias_here, b);
#pragma unroll
                for (int i = 0; i < V; i++) x[i] += b[i];
            }
            loaded = packed<T, V>(x);
            store(h.at(row, column), loaded);
        }
        if (!g.data) return;
        unpack<V>(loaded, x);
#pragma unroll
        for (int i = 0; i < V; i++) x[i] *= Gelu<K>::gate(x[i]);
        store(g.at(row, column), packed<T, V>(x));
    }
};

// Computes GELU's backward: dh = dg * gelu'(h). With BIAS, also sums dh's columns, before dh is rounded.
template <typename T, int V, ActivationKind K, bool BIAS> struct GeluBackward {
    static constexpr int unroll = sizeof(T) == 4 ? 1 : 3;
    static constexpr bool sums = BIAS, rolling = true;
    struct Loaded {
        Pack<T, V> dg, h;
    };
    Matrix<T> dh, dg, h;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const {
        return {load_streaming<V>(dg.at(row, column)), load_streaming<V>(h.at(row, column))};
    }
    __device__ void apply(int64_t row, int64_t column, Loaded loaded, float *sum) const {
        float d[V], x[V];
        unpack<V>(loaded.dg, d);
        unpack<V>(loaded.h, x);
#pragma unroll
        for (int i = 0; i < V; i++) {
            d[i] *= Gelu<K>::derivative(x[i]);
            sum[i] += d[i];
        }
        store(dh.at(row, column), packed<T, V>(d));
    }
};

// Computes SwiGLU's forward: g = silu(gate) * up. A row of h contains gate, then up.
template <typename T, int V> struct SwigluForward {
    static constexpr int unroll = 2;
    static constexpr bool sums = false, rolling = false;
    struct Loaded {
        Pack<T, V> gate, up;
    };
    Matrix<T> g, h;
    int64_t width;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const {
        const T *const gate = h.at(row, column);
        return {load_streaming<V>(gate), load_streaming<V>(gate + width)};
    }
    __device__ void apply(int64_t row, int64_t column, const Loaded &loaded, float *) const {
        float gate[V], up[V];
        unpack<V>(loaded.gate, gate);
        unpack<V>(loaded.up, up);
#pragma unroll
        for (int i = 0; i < V; i++) up[i] *= gate[i] * sigmoid(gate[i]);
        store(g.at(row, column), packed<T, V>(up));
    }
};

// Computes SwiGLU's backward: dgate = dg * up * silu'(gate), dup = dg * silu(gate). A row of dh contains dgate, then
// dup.
template <typename T, int V> struct SwigluBackward {
    static constexpr int unroll = 2;
    static constexpr bool sums = false, rolling = false;
    struct Loaded {
        Pack<T, V> dg, gate, up;
    };
    Matrix<T> dh, dg, h;
    int64_t width;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const {
        const T *const gate = h.at(row, column);
        return {load_streaming<V>(dg.at(row, column)), load_streaming<V>(gate), load_streaming<V>(gate + width)};
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
        T *const to = dh.at(row, column);
        store(to, packed<T, V>(up));
        store(to + width, packed<T, V>(gate));
    }
};

// Computes and stores h = y + bias unless h.data is NULL; y must then already be h. Computes g from h unless g.data is
// NULL. With SwiGLU, g and h must not both have data.
void activation_launch(Exec *exec, const char *operation, Tensor g, Tensor h, Tensor y, Tensor bias,
                       ActivationKind kind) {
    require_format(operation, "g", g, y.format);
    require_format(operation, "h", h, y.format);
    require_format(operation, "the bias", bias, y.format);
    const bool wide = tensor_wide(g) && tensor_wide(h) && tensor_wide(y) && tensor_wide(bias);
    for_layout(operation, y.format, wide, [&]<typename T, int V>(Layout<T, V>) {
        const auto run = [&](auto op, int64_t cols) { columns_run<V>(exec, op, y.rows, cols, nullptr, false); };
        if (g.data && kind == ACT_SWIGLU) {
            run(SwigluForward<T, V>{matrix_of<T>(g), matrix_of<T>(y), g.cols}, g.cols);
            return;
        }
        for_gelu(kind, [&](auto k) {
            run(GeluForward<T, V, k()>{matrix_of<T>(g), matrix_of<T>(h), matrix_of<T>(y), (const T *)bias.data, {}},
                y.cols);
        });
    });
}

} // namespace

void plain_activation_forward(Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias, bool, ActivationKind kind) {
    const char *operation = "activation_forward";
    if (y.data == h.data && !bias.data) h.data = NULL; // h is not written, because it shares y's memory
    if (g.data && kind == ACT_SWIGLU && h.data)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: SwiGLU does not support a bias or a separate h", operation);
    if (g.data || h.data) activation_launch(exec, operation, g, h, y, bias, kind);
}

void plain_activation_recompute(Exec *exec, Tensor g_t, Tensor, Tensor h, ActivationKind kind) {
    activation_launch(exec, "activation_recompute", g_t, Tensor{}, h, Tensor{}, kind);
}

void plain_activation_backward(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg, Tensor h,
                               bool accumulate, ActivationKind kind) {
    const char *operation = "activation_backward";
    require_format(operation, "dh", dh_q, dg.format);
    require_format(operation, "the transposed dh", dh_qt, dg.format);
    require_format(operation, "h", h, dg.format);
    require_format(operation, "the bias gradient", dbias, FMT_FP32);
    const bool gated = kind == ACT_SWIGLU;
    if (gated && dbias.data)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: SwiGLU does not support biases", operation);
    for_layout(operation, dg.format, tensor_wide(dh_q) && tensor_wide(dg) && tensor_wide(h),
               [&]<typename T, int V>(Layout<T, V>) {
                   const Matrix<T> to = matrix_of<T>(dh_q), from = matrix_of<T>(dg), kept = matrix_of<T>(h);
                   const auto run = [&](auto op) {
                       columns_run<V>(exec, op, dg.rows, dg.cols, (float *)dbias.data, accumulate);
                   };
                   if (gated) {
                       run(SwigluBackward<T, V>{to, from, kept, dg.cols});
                       return;
                   }
                   for_gelu(kind, [&](auto k) {
                       if (dbias.data)
                           run(GeluBackward<T, V, k(), true>{to, from, kept});
                       else
                           run(GeluBackward<T, V, k(), false>{to, from, kept});
                   });
               });
}
