// Muon's update on the GPU. muon_momentum and muon_apply are bound by memory: with an INT8 momentum, BF16 gradients,
// BF16 updates and split16 master weights, muon_momentum transfers 6 bytes per element and muon_apply 10.
// muon_orthogonalize runs 15 matmuls, and is bound by arithmetic if both dimensions of the matrix are large.
#include "moment_parameters.h"
#include "numerics/newton_schulz.h"

namespace {

constexpr int CHUNK = WARP / GROUP_LANES * GROUP; // number of elements that a warp processes at a time
constexpr int BLOCKS_PER_SM = 8;

enum MomentumStore { MOMENTUM_FP32, MOMENTUM_BF16, MOMENTUM_INT8, MOMENTUM_FP8 };

struct MuonEntry : ParameterEntry {
    void *m;
    float *scale;      // amaxes of the momentum's groups (SCALE_EXPAND); NULL if the momentum has no groups
    uint8_t *exponent; // exponents of the momentum's groups; NULL if the momentum has no groups
    void *update;
    StepState *state;
    bool expand, wide; // wide: true if all tensors are 16-byte aligned
};

// --- momentum --------------------------------------------------------------------------------------------------------
struct MomentumScalars {
    float clip, mu, rest; // rest: 1 - mu
};

__device__ inline MomentumScalars momentum_scalars(const StepState *state) {
    const bool clip = state->grad_clip > 0 && state->grad_norm > state->grad_clip;
    const float mu = state->momentum;
    return {clip ? state->grad_clip / state->grad_norm : 1.0f, mu, 1.0f - mu};
}

// Updates an element of the momentum, and returns the corresponding element of Muon's update.
__device__ inline float momentum_element(const MomentumScalars &s, float grad, float *m) {
    const float part = s.rest * (grad * s.clip);
    *m = s.mu * *m + part;
    return s.mu * *m + part;
}

// Returns the amax and exponent of the group that eight lanes share. Gives the same result as moment_group_measured().
__device__ inline LaneGroup group_measured(const CodeTables *tables, LaneExtremes x, bool expand) {
#pragma unroll
    for (int mask = GROUP_LANES / 2; mask > 0; mask /= 2) {
        x.largest = max(x.largest, __shfl_xor_sync(ALL_LANES, x.largest, mask));
        x.negated = max(x.negated, __shfl_xor_sync(ALL_LANES, x.negated, mask));
    }
    const uint32_t smallest = 0u - x.negated;
    const bool finite = x.largest < 0x7f800000u, expands = expand && finite && x.largest > 0;
    LaneGroup group = lane_group(tables, bits_float(x.largest),
                                 expands ? moment_exponent(x.largest, smallest, FMT_E4M3) : MOMENT_K_ONE);
    group.encodes = finite && (x.largest == 0 || smallest >= 0x00800000u);
    return group;
}

// Loads a lane's elements of the momentum. first: index of the lane's first element. group: index of the lane's group.
template <MomentumStore STORE>
__device__ inline void momentum_load(const MuonEntry &e, const CodeTables *tables, int64_t first, int64_t group,
                                     float m[LANE_ELEMENTS]) {
    if constexpr (STORE == MOMENTUM_FP32 || STORE == MOMENTUM_BF16) {
#pragma unroll
        for (int j = 0; j < SPANS; j++) {
            const int64_t at = first + j * GROUP_LANES * WIDTH;
            if constexpr (STORE == MOMENTUM_FP32)
                unpack<WIDTH>(load_streaming<WIDTH>((const float *)e.m + at), m + j * WIDTH);
            else
                unpack<WIDTH>(load_streaming<WIDTH>((const bf16 *)e.m + at), m + j * WIDTH);
        }
    } else {
        uint32_t word[LANE_ELEMENTS / 4];
#pragma unroll
        for (int j = 0; j < SPANS; j++) {
            const Pack<uint8_t, WIDTH> codes =
                load_streaming<WIDTH>((const uint8_t *)e.m + first + j * GROUP_LANES * WIDTH);
            memcpy(&word[j * WIDTH / 4], &codes, sizeof codes);
        }
        const float a = e.scale[group];
        if constexpr (STORE == MOMENTUM_FP8) {
            decode_lane<false>(tables, lane_group(tables, a, e.exponent[group]), word, m);
        } else {
#pragma unroll
            for (int i = 0; i < LANE_ELEMENTS; i++) m[i] = moment_i8_decode((uint8_t)(word[i / 4] >> (8 * (i % 4))), a);
        }
    }
}

// Stores a lane's elements of the momentum, and the amax and exponent of the lane's group. All lanes of the warp must
// call this function.
template <MomentumStore STORE>
__device__ inline void momentum_store(const MuonEntry &e, const CodeTables *tables, int64_t first, int64_t group,
                                      const float m[LANE_ELEMENTS]) {
    if constexpr (STORE == MOMENTUM_FP32 || STORE == MOMENTUM_BF16) {
#pragma unroll
        for (int j = 0; j < SPANS; j++) {
            const int64_t at = first + j * GROUP_LANES * WIDTH;
            if constexpr (STORE == MOMENTUM_FP32)
                store((float *)e.m + at, packed<float, WIDTH>(m + j * WIDTH));
            else
                store((bf16 *)e.m + at, packed<bf16, WIDTH>(m + j * WIDTH));
        }
    } else {
        uint32_t word[LANE_ELEMENTS / 4];
        LaneExtremes extremes = lane_extremes(m, true);
        float a;
        uint8_t k = MOMENT_K_ONE;
        if constexpr (STORE == MOMENTUM_FP8) {
            const LaneGroup fresh = group_measured(tables, extremes, e.expand);
            a = fresh.a, k = fresh.k_16ths;
            encode_lane<false>(fresh, m, word);
        } else {
#pragma unroll
            for (int mask = GROUP_LANES / 2; mask > 0; mask /= 2)
                extremes.largest = max(extremes.largest, __shfl_xor_sync(ALL_LANES, extremes.largest, mask));
            a = moment_i8_amax(extremes.largest);
#pragma unroll
            for (int i = 0; i < LANE_ELEMENTS / 4; i++) {
                word[i] = 0;
#pragma unroll
                for (int byte = 0; byte < 4; byte++)
                    word[i] |= (uint32_t)moment_i8_encode(m[4 * i + byte], a) << (8 * byte);
            }
        }
#pragma unroll
        for (int j = 0; j < SPANS; j++) {
            Pack<uint8_t, WIDTH> codes;
            memcpy(&codes, &word[j * WIDTH / 4], sizeof codes);
            store((uint8_t *)e.m + first + j * GROUP_LANES * WIDTH, codes);
        }
        if (threadIdx.x % GROUP_LANES) return;
        e.scale[group] = a;
        e.exponent[group] = k;
        if (!(a < INFINITY)) e.state->nonfinite = 1;
    }
}

template <MomentumStore STORE, typename G, typename U>
__device__ inline void momentum_chunk(const MuonEntry &e, const CodeTables *tables, const MomentumScalars &s,
                                      int64_t chunk) {
    const int lane = (int)threadIdx.x % WARP;
    const int64_t group = chunk * (CHUNK / GROUP) + lane / GROUP_LANES;
    const int64_t first = group * GROUP + lane % GROUP_LANES * WIDTH;
    float m[LANE_ELEMENTS], g[LANE_ELEMENTS];
#pragma unroll
    for (int j = 0; j < SPANS; j++)
        unpack<WIDTH>(load_streaming<WIDTH>((const G *)e.grad + first + j * GROUP_LANES * WIDTH), g + j * WIDTH);
    momentum_load<STORE>(e, tables, first, group, m);
#pragma unroll
    for (int i = 0; i < LANE_ELEMENTS; i++) g[i] = momentum_element(s, g[i], &m[i]);
#pragma unroll
    for (int j = 0; j < SPANS; j++)
        store((U *)e.update + first + j * GROUP_LANES * WIDTH, packed<U, WIDTH>(g + j * WIDTH));
    momentum_store<STORE>(e, tables, first, group, m);
}

// Returns element `at` of a momentum, the same value as moments_load(). group: parameters of the element's group; used
// with FP8 and INT8 only.
template <MomentumStore STORE>
__device__ inline float rest_momentum(const MuonEntry &e, MomentGroup group, int64_t at) {
    if constexpr (STORE == MOMENTUM_FP32) return ((const float *)e.m)[at];
    if constexpr (STORE == MOMENTUM_BF16) return (float)((const bf16 *)e.m)[at];
    const uint8_t code = ((const uint8_t *)e.m)[at];
    return STORE == MOMENTUM_INT8 ? moment_i8_decode(code, group.a) : moment_decode(code, group, FMT_E4M3);
}

// Updates group number `at`, which is not in a full chunk, with the functions of moments.h. One warp updates the group.
template <MomentumStore STORE, typename G, typename U>
__device__ inline void momentum_rest(const MuonEntry &e, const MomentumScalars &s, int64_t at) {
    constexpr bool GROUPS = STORE == MOMENTUM_INT8 || STORE == MOMENTUM_FP8;
    const int64_t begin = at * GROUP + threadIdx.x % WARP;
    MomentGroup group = {};
    if constexpr (GROUPS) group = moment_group(e.scale[at], e.exponent[at], FMT_E4M3);
    float m[GROUP / WARP] = {};
    uint32_t largest = 0, negated = 0;
    for (int i = 0; i < GROUP / WARP; i++) {
        const int64_t index = begin + i * WARP;
        if (index >= e.elements) continue;
        m[i] = rest_momentum<STORE>(e, group, index);
        ((U *)e.update)[index] = (U)momentum_element(s, (float)((const G *)e.grad)[index], &m[i]);
        const uint32_t bits = float_bits(m[i]) & 0x7fffffffu;
        largest = max(largest, bits);
        negated = max(negated, 0u - bits);
    }
    if constexpr (GROUPS) {
        largest = __reduce_max_sync(ALL_LANES, largest);
        negated = __reduce_max_sync(ALL_LANES, negated);
        group = STORE == MOMENTUM_INT8 ? moment_group(moment_i8_amax(largest), MOMENT_K_ONE, FMT_I8)
                                       : moment_group_measured(largest, 0u - negated, FMT_E4M3, e.expand);
        if (threadIdx.x % WARP == 0) {
            e.scale[at] = group.a;
            e.exponent[at] = group.k_16ths;
            if (!(group.a < INFINITY)) e.state->nonfinite = 1;
        }
    }
    for (int i = 0; i < GROUP / WARP; i++) {
        const int64_t index = begin + i * WARP;
        if (index >= e.elements) continue;
        if constexpr (STORE == MOMENTUM_FP32) ((float *)e.m)[index] = m[i];
        if constexpr (STORE == MOMENTUM_BF16) ((bf16 *)e.m)[index] = __float2bfloat16_rn(m[i]);
        if constexpr (STORE == MOMENTUM_INT8) ((uint8_t *)e.m)[index] = moment_i8_encode(m[i], group.a);
        if constexpr (STORE == MOMENTUM_FP8) ((uint8_t *)e.m)[index] = moment_encode(m[i], group, FMT_E4M3, false);
    }
}

template <MomentumStore STORE, typename G, typename U>
__global__ __launch_bounds__(CHUNK_THREADS) void momentum_kernel(const __grid_constant__ MuonEntry e) {
    __shared__ CodeTables tables;
    if (e.state->skips) return;
    if constexpr (STORE == MOMENTUM_FP8) tables_fill(&tables);
    const MomentumScalars s = momentum_scalars(e.state);
    const int64_t chunks = (e.elements + CHUNK - 1) / CHUNK, full = e.wide ? e.elements / CHUNK : 0;
    const int64_t step = (int64_t)gridDim.x * (CHUNK_THREADS / WARP);
    for (int64_t chunk = ((int64_t)blockIdx.x * CHUNK_THREADS + threadIdx.x) / WARP; chunk < chunks; chunk += step) {
        if (chunk < full) {
            momentum_chunk<STORE, G, U>(e, &tables, s, chunk);
        } else {
            const int64_t group = chunk * (CHUNK / GROUP);
            for (int i = 0; i < CHUNK / GROUP && (group + i) * GROUP < e.elements; i++)
                momentum_rest<STORE, G, U>(e, s, group + i);
        }
    }
}

// --- application of the update to the weights ------------------------------------------------------------------------
template <MasterStore MASTER, typename U>
__global__ __launch_bounds__(OPTIMIZER_THREADS) void apply_kernel(const __grid_constant__ MuonEntry e) {
    const StepState *state = e.state;
    if (state->skips) return;
    UpdateScalars s = {}; // master_write() and rest_store() read only the seed and the number of the update
    s.seed = state->seed;
    s.t = state->t;
    const float lr = state->lr * e.rate, decay = e.decay ? lr * state->weight_decay : 0.0f;
    const U *update = (const U *)e.update;
    const int64_t vectors = e.wide ? e.elements / WIDTH : 0, step = (int64_t)gridDim.x * OPTIMIZER_THREADS;
    const int64_t thread = (int64_t)blockIdx.x * OPTIMIZER_THREADS + threadIdx.x;
    uint32_t largest = 0;
    for (int64_t vector = thread; vector < vectors; vector += step) {
        const int64_t at = vector * WIDTH;
        float p[WIDTH], x[WIDTH];
        const MasterPack<MASTER> pack = master_load<MASTER>(e, at);
        unpack<WIDTH>(load_streaming<WIDTH>(update + at), x);
        master_values<MASTER>(pack, p);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) p[i] = p[i] - lr * x[i] - decay * p[i];
        const __nv_bfloat162 pair = master_write<MASTER>(e, s, at, p);
        uint32_t bits;
        memcpy(&bits, &pair, sizeof bits);
        largest = max(largest, max(bits & 0xffffu, bits >> 16));
    }
    for (int64_t at = vectors * WIDTH + thread; at < e.elements; at += step) {
        const float p = rest_load<MASTER>(e, at);
        largest = max(largest, rest_store<MASTER>(e, s, at, p - lr * (float)update[at] - decay * p));
    }
    if (MASTER == IN_VALUE || !e.amax) return;
    block_max<OPTIMIZER_THREADS>(largest, [&](uint32_t x) { atomicMax(e.amax, x << 16); });
}

// --- division by the Frobenius norm ----------------------------------------------------------------------------------
// Computes y = x / max(norm, NEWTON_SCHULZ_EPS) for matrix number blockIdx.y of `elements` elements. The Frobenius norm
// is the square root of the sum of the matrix's `count` partial sums of squares. Every block adds these partial sums in
// the same order.
template <typename T>
__global__ __launch_bounds__(OPTIMIZER_THREADS) void normalize_kernel(T *y, const T *x, int64_t elements, bool wide,
                                                                      const double *partials, int count) {
    __shared__ double shared[OPTIMIZER_THREADS / WARP];
    __shared__ float factor;
    double sum = 0.0;
    x += blockIdx.y * elements;
    y += blockIdx.y * elements;
    partials += blockIdx.y * count;
    for (int i = (int)threadIdx.x; i < count; i += OPTIMIZER_THREADS) sum += partials[i];
    sum = block_sum<OPTIMIZER_THREADS / WARP>(sum, shared);
    if (threadIdx.x == 0) factor = (float)(1.0 / fmax(sqrt(sum), (double)NEWTON_SCHULZ_EPS));
    __syncthreads();
    constexpr int V = 8;
    const int64_t vectors = wide ? elements / V : 0, step = (int64_t)gridDim.x * OPTIMIZER_THREADS;
    const int64_t thread = (int64_t)blockIdx.x * OPTIMIZER_THREADS + threadIdx.x;
    for (int64_t at = thread; at < vectors; at += step) {
        float value[V];
        unpack<V>(load<V>(x + at * V), value);
#pragma unroll
        for (int i = 0; i < V; i++) value[i] *= factor;
        store(y + at * V, packed<T, V>(value));
    }
    for (int64_t at = vectors * V + thread; at < elements; at += step) y[at] = (T)((float)x[at] * factor);
}

// --- host code -------------------------------------------------------------------------------------------------------
dim3 muon_grid(const CudaBackend *backend, int64_t blocks) {
    const int64_t most = (int64_t)backend->sm_count * BLOCKS_PER_SM;
    return grid_of(blocks < most ? blocks : most);
}

// Returns a parameter's arguments for the kernels. Calls fatal() if a format is not supported.
MuonEntry muon_entry(Exec *exec, const char *operation, const Parameter &p, StepState *state) {
    MuonEntry e = {};
    (ParameterEntry &)e = parameter_entry(operation, p);
    if (p.update.format != FMT_BF16) require_format(operation, "an update", p.update, FMT_FP32);
    e.m = p.m.data;
    e.scale = (float *)p.m.scale;
    e.exponent = p.m.exponent;
    e.update = p.update.data;
    e.state = state;
    e.expand = cuda_backend(exec)->recipe.moments == MOMENTS_COAT;
    e.wide = aligned16(e.value) && aligned16(e.master) && aligned16(e.grad) && aligned16(e.m) && aligned16(e.update);
    return e;
}

template <MomentumStore STORE, typename G>
void momentum_launch(const CudaBackend *backend, const MuonEntry &e, Format update) {
    const dim3 grid = muon_grid(backend, ceil_div(e.elements, CHUNK * (CHUNK_THREADS / WARP)));
    if (update == FMT_BF16)
        momentum_kernel<STORE, G, bf16><<<grid, CHUNK_THREADS, 0, backend->stream>>>(e);
    else
        momentum_kernel<STORE, G, float><<<grid, CHUNK_THREADS, 0, backend->stream>>>(e);
    LAUNCH_CHECK("momentum_kernel");
}

template <typename G> void momentum_of(const CudaBackend *backend, const MuonEntry &e, const Parameter &p) {
    const Format update = p.update.format;
    if (p.m.granularity == SCALE_EXPAND && p.m.group == GROUP && p.m.format == FMT_I8)
        momentum_launch<MOMENTUM_INT8, G>(backend, e, update);
    else if (p.m.granularity == SCALE_EXPAND && p.m.group == GROUP && p.m.format == FMT_E4M3)
        momentum_launch<MOMENTUM_FP8, G>(backend, e, update);
    else if (p.m.granularity == SCALE_NONE && p.m.format == FMT_BF16)
        momentum_launch<MOMENTUM_BF16, G>(backend, e, update);
    else if (p.m.granularity == SCALE_NONE && p.m.format == FMT_FP32)
        momentum_launch<MOMENTUM_FP32, G>(backend, e, update);
    else
        fatal(EXIT_DEVICE, "internal error: muon_momentum on the GPU: a momentum in %s groups of %d is not supported",
              format_name(p.m.format), p.m.group);
}

template <MasterStore MASTER> void apply_launch(const CudaBackend *backend, const MuonEntry &e, Format update) {
    const dim3 grid = muon_grid(backend, ceil_div(e.elements, OPTIMIZER_THREADS * WIDTH));
    if (update == FMT_BF16)
        apply_kernel<MASTER, bf16><<<grid, OPTIMIZER_THREADS, 0, backend->stream>>>(e);
    else
        apply_kernel<MASTER, float><<<grid, OPTIMIZER_THREADS, 0, backend->stream>>>(e);
    LAUNCH_CHECK("apply_kernel");
}

// Computes one Newton-Schulz iteration of each of `count` matrices, from x to y, and multiplies the results by `scale`.
void iterate(Exec *exec, int count, Tensor y, Tensor x, Tensor gram, Tensor polynomial, float scale) {
    const int64_t r = x.rows / count, c = x.cols, n = gram.cols;
    const bool wide = r <= c;
    matmul_add(exec, count, gram, 1.0f, x, x, !wide, wide, wide ? c : r, 0.0f, no_tensor());
    matmul_add(exec, count, polynomial, NEWTON_SCHULZ_C, gram, gram, false, false, n, NEWTON_SCHULZ_B, gram);
    matmul_add(exec, count, y, scale, wide ? polynomial : x, wide ? x : polynomial, false, false, n,
               scale * NEWTON_SCHULZ_A, x);
}

} // namespace

void cuda_muon_momentum(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    const CudaBackend *backend = cuda_backend(exec);
    for (int i = 0; i < count; i++) {
        const Parameter &p = parameters[i];
        const MuonEntry e = muon_entry(exec, "muon_momentum", p, state);
        if (p.grad.format == FMT_BF16) {
            momentum_of<bf16>(backend, e, p);
        } else {
            require_format("muon_momentum", "a gradient", p.grad, FMT_FP32);
            momentum_of<float>(backend, e, p);
        }
    }
}

void cuda_muon_apply(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    const CudaBackend *backend = cuda_backend(exec);
    amaxes_clear(backend->stream, parameters, count, state);
    for (int i = 0; i < count; i++) {
        const Parameter &p = parameters[i];
        const MuonEntry e = muon_entry(exec, "muon_apply", p, state);
        switch (master_store(p)) {
        case IN_VALUE: apply_launch<IN_VALUE>(backend, e, p.update.format); break;
        case IN_VALUE_BF16: apply_launch<IN_VALUE_BF16>(backend, e, p.update.format); break;
        case IN_FP32: apply_launch<IN_FP32>(backend, e, p.update.format); break;
        case IN_SPLIT16: apply_launch<IN_SPLIT16>(backend, e, p.update.format); break;
        }
    }
}

// In a skipped step, x was not updated but is orthogonalized anyway; muon_apply ignores the result.
void cuda_muon_orthogonalize(Exec *exec, Tensor x, int count, Tensor y, Tensor gram, Tensor polynomial, float scale,
                             StepState *state) {
    const char *operation = "muon_orthogonalize";
    const CudaBackend *backend = cuda_backend(exec);
    const int64_t elements = flat_elements(operation, x) / count;
    (void)state;
    require_format(operation, "y", y, x.format);
    require_format(operation, "the Gram matrix", gram, x.format);
    require_format(operation, "the polynomial", polynomial, x.format);
    const int partials = squares_launch(exec, operation, x, count);
    const bool wide = aligned16(x.data) && aligned16(y.data) && elements % 8 == 0;
    dim3 grid = muon_grid(backend, ceil_div(elements, OPTIMIZER_THREADS * 8));
    grid.y = (unsigned)count;
    for_layout(operation, x.format, true, [&]<typename T, int V>(Layout<T, V>) {
        normalize_kernel<T><<<grid, OPTIMIZER_THREADS, 0, backend->stream>>>(
            (T *)y.data, (const T *)x.data, elements, wide, (const double *)exec->workspace, partials);
        LAUNCH_CHECK("normalize_kernel");
    });
    // The iterations alternate between y and x. The number of iterations is odd, so the last iteration writes x.
    for (int i = 0; i < NEWTON_SCHULZ_ITERATIONS; i++) {
        const bool last = i + 1 == NEWTON_SCHULZ_ITERATIONS;
        iterate(exec, count, i % 2 ? y : x, i % 2 ? x : y, gram, polynomial, last ? scale : 1.0f);
    }
}
