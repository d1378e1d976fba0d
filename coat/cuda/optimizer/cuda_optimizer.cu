// The norm of all gradients and the AdamW step (COAT: optimizer states). Each runs over the whole list of parameters in
// a few launches, whose tables travel as kernel parameters: a recorded graph keeps them, and nothing is uploaded.
// Parameters whose moments are in 8 bits are those of fp8_moments.cu.
#include "cuda_optimizer.h"
#include "moments.h"

int64_t flat_elements(const char *operation, Tensor t) {
    if (t.rows > 1 && t.stride != t.cols) fatal(EXIT_DEVICE, "%s on the GPU: a parameter has gaps", operation);
    return tensor_elements(t);
}

MasterStore master_store(const Parameter &p) {
    const Format value = p.weight.value.format, master = p.master.format;
    if (!p.master.data && value == FMT_FP32) return IN_VALUE;
    if (!p.master.data && value == FMT_BF16) return IN_VALUE_BF16;
    if (p.master.data && value == FMT_BF16 && master == FMT_FP32) return IN_FP32;
    if (p.master.data && value == FMT_BF16 && master == FMT_U16) return IN_SPLIT16;
    fatal(EXIT_DEVICE, "adamw_update on the GPU: a %s value with %s master weights is not built", format_name(value),
          p.master.data ? format_name(master) : "no");
}

namespace {

// Entries of one launch's table.
constexpr int NORM_ENTRIES = 1024;
constexpr int MAXIMUM_ENTRIES = 1024;
constexpr int UPDATE_ENTRIES = 420;
constexpr int64_t NORM_ELEMENTS = 65536;  // of a gradient, per block
constexpr int64_t UPDATE_ELEMENTS = 8192; // of a parameter, per block
constexpr int UPDATE_WIDTH = 4;           // elements per access: 16 bytes of FP32

// --- the norm of the gradients ------------------------------------------------------------------------------
struct NormTable {
    const void *grad[NORM_ENTRIES];
    int64_t elements[NORM_ENTRIES];
    bool is_bf16[NORM_ENTRIES], wide[NORM_ENTRIES]; // wide: on a 16-byte address
    int first_block[NORM_ENTRIES + 1];
    int count;
    double *partials; // of the first block of this launch
};
static_assert(sizeof(NormTable) <= TABLE_BYTES, "a table is a kernel parameter");

// Squares of 8 neighbours are added in FP32, the rest in FP64. Where FP32 is not wide enough, FP64 takes over.
template <int V> __device__ inline double squares_of(const float x[V]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < V; i++) sum = fmaf(x[i], x[i], sum);
    if (sum <= 1e38f) return (double)sum;
    double exact = 0.0;
#pragma unroll
    for (int i = 0; i < V; i++) exact += (double)x[i] * (double)x[i];
    return exact;
}

template <typename T> __device__ inline double squares_of_range(const T *grad, int64_t count, bool wide) {
    constexpr int V = 8, BATCH = sizeof(T) == 2 ? 4 : 2;
    double sum = 0.0;
    const int64_t vectors = wide ? count / V : 0;
    for (int64_t first = threadIdx.x; first < vectors; first += BATCH * OPTIMIZER_THREADS) {
        Pack<T, V> pack[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int64_t at = first + k * OPTIMIZER_THREADS;
            if (at < vectors) pack[k] = load_streaming<V>(grad + at * V);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            if (first + k * OPTIMIZER_THREADS < vectors) {
                float x[V];
                unpack<V>(pack[k], x);
                sum += squares_of<V>(x);
            }
        }
    }
    for (int64_t at = vectors * V + threadIdx.x; at < count; at += OPTIMIZER_THREADS) {
        const float x = (float)grad[at];
        sum += squares_of<1>(&x);
    }
    return sum;
}

__global__ __launch_bounds__(OPTIMIZER_THREADS) void grad_squares_kernel(const __grid_constant__ NormTable table) {
    __shared__ double shared[OPTIMIZER_THREADS / WARP];
    const int entry = table_find(table.first_block, table.count, (int)blockIdx.x);
    const int64_t begin = (blockIdx.x - table.first_block[entry]) * NORM_ELEMENTS;
    const int64_t count = min(NORM_ELEMENTS, table.elements[entry] - begin);
    double sum = table.is_bf16[entry]
                     ? squares_of_range((const bf16 *)table.grad[entry] + begin, count, table.wide[entry])
                     : squares_of_range((const float *)table.grad[entry] + begin, count, table.wide[entry]);
    sum = block_sum<OPTIMIZER_THREADS / WARP>(sum, shared);
    if (threadIdx.x == 0) table.partials[blockIdx.x] = sum;
}

constexpr int FINISH_THREADS = 1024;

__global__ __launch_bounds__(FINISH_THREADS) void grad_norm_kernel(const double *partials, int count,
                                                                   StepState *state) {
    __shared__ double shared[FINISH_THREADS / WARP];
    double sum = 0.0;
    for (int i = (int)threadIdx.x; i < count; i += FINISH_THREADS) sum += partials[i];
    sum = block_sum<FINISH_THREADS / WARP>(sum, shared);
    if (threadIdx.x > 0) return;
    state->grad_sq = sum;
    state->grad_norm = (float)sqrt(sum);
    if (!isfinite(state->grad_norm)) state->nonfinite = 1;
}

void grad_squares_launch(cudaStream_t stream, const NormTable &table) {
    if (table.first_block[table.count] == 0) return;
    grad_squares_kernel<<<grid_of(table.first_block[table.count]), OPTIMIZER_THREADS, 0, stream>>>(table);
    LAUNCH_CHECK("grad_squares_kernel");
}

__global__ void grad_norm_root_kernel(StepState *state) {
    state->grad_norm = (float)sqrt(state->grad_sq);
    if (!isfinite(state->grad_norm)) state->nonfinite = 1;
}

// --- AdamW --------------------------------------------------------------------------------------------------
__global__ void update_begin_kernel(StepState *state, UpdateScalars *scalars) {
    UpdateScalars s = {};
    s.skip = state->nonfinite;
    if (s.skip) {
        state->skipped++;
        state->skipped_run++;
    } else {
        state->t++;
        state->skipped_run = 0;
        s.lr = state->lr;
        s.beta1 = state->beta1;
        s.beta2 = state->beta2;
        s.eps = state->eps;
        s.weight_decay = state->weight_decay;
        s.seed = state->seed;
        s.t = state->t;
        const bool clip = state->grad_clip > 0 && state->grad_norm > state->grad_clip;
        s.clip = clip ? state->grad_clip / state->grad_norm : 1.0f;
        const double correction1 = 1.0 / (1.0 - pow((double)s.beta1, (double)state->t));
        const double correction2 = 1.0 / (1.0 - pow((double)s.beta2, (double)state->t));
        s.correction1 = (float)correction1;
        s.correction2 = (float)correction2;
        s.rate = (float)((double)s.lr * correction1 / sqrt(correction2));
        s.floor = fmaxf((float)((double)s.eps / sqrt(correction2)), 0x1p-63f); // the root of the smallest normal number
    }
    *scalars = s;
}

// The maxima begin at 0, unless the step is skipped: then the weights and their maxima stay.
struct MaximumTable {
    uint32_t *maximum[MAXIMUM_ENTRIES];
    int count;
};
static_assert(sizeof(MaximumTable) <= TABLE_BYTES, "a table is a kernel parameter");

__global__ void maxima_clear_kernel(const __grid_constant__ MaximumTable table, const UpdateScalars *scalars) {
    if (scalars->skip || (int)threadIdx.x >= table.count) return;
    *table.maximum[threadIdx.x] = 0;
}

void maxima_clear(cudaStream_t stream, const Parameter *parameters, int count, const UpdateScalars *scalars) {
    MaximumTable table = {};
    for (int i = 0; i < count; i++) {
        if (parameters[i].weight.maximum) table.maximum[table.count++] = parameters[i].weight.maximum;
        if (table.count == 0 || (table.count < MAXIMUM_ENTRIES && i + 1 < count)) continue;
        maxima_clear_kernel<<<1, MAXIMUM_ENTRIES, 0, stream>>>(table, scalars);
        LAUNCH_CHECK("maxima_clear_kernel");
        table.count = 0;
    }
}

struct UpdateEntry {
    void *value, *master;
    const void *grad;
    void *m, *v;
    uint32_t *maximum; // of the values as stored; NULL where nobody asks
    int64_t elements;
    uint64_t index; // Parameter.index
    bool decay, wide;
};

struct UpdateTable {
    UpdateEntry entry[UPDATE_ENTRIES];
    int first_block[UPDATE_ENTRIES + 1];
    int count;
    const UpdateScalars *scalars;
};
static_assert(sizeof(UpdateTable) <= TABLE_BYTES, "a table is a kernel parameter");

// S is the type of the moments, G that of the gradient.
template <MasterStore MASTER, typename S, typename G, int V> struct UpdateLoaded {
    static constexpr bool full = MASTER == IN_VALUE || MASTER == IN_FP32;
    Pack<S, V> m, v;
    Pack<G, V> grad;
    Pack<float, full ? V : 1> master;
    Pack<uint16_t, full ? 1 : V> high;
    Pack<uint16_t, MASTER == IN_SPLIT16 ? V : 1> low;
};

template <MasterStore MASTER, typename S, typename G, int V>
__device__ inline UpdateLoaded<MASTER, S, G, V> update_load(const UpdateEntry &e, int64_t at) {
    UpdateLoaded<MASTER, S, G, V> x;
    x.m = load_streaming<V>((const S *)e.m + at);
    x.v = load_streaming<V>((const S *)e.v + at);
    x.grad = load_streaming<V>((const G *)e.grad + at);
    if constexpr (MASTER == IN_VALUE) x.master = load_streaming<V>((const float *)e.value + at);
    if constexpr (MASTER == IN_FP32) x.master = load_streaming<V>((const float *)e.master + at);
    if constexpr (!x.full) x.high = load_streaming<V>((const uint16_t *)e.value + at);
    if constexpr (MASTER == IN_SPLIT16) x.low = load_streaming<V>((const uint16_t *)e.master + at);
    return x;
}

// Returns the largest of the values' bits in BF16, without sign.
template <MasterStore MASTER, typename S, typename G, int V>
__device__ inline uint32_t update_apply(const UpdateEntry &e, const UpdateScalars &s, int64_t at,
                                        const UpdateLoaded<MASTER, S, G, V> &x) {
    float grad[V], m[V], v[V];
    unpack<V>(x.grad, grad);
    unpack<V>(x.m, m);
    unpack<V>(x.v, v);
    const float decay = e.decay ? s.lr * s.weight_decay : 0.0f;
    Pack<uint16_t, V> high, low;
    Pack<float, V> master;
#pragma unroll
    for (int i = 0; i < V; i++) {
        float p;
        if constexpr (MASTER == IN_SPLIT16)
            p = master_join(x.high.value[i], x.low.value[i]);
        else if constexpr (MASTER == IN_VALUE_BF16)
            p = bf16_decode(x.high.value[i]);
        else
            p = x.master.value[i];
        p = adamw_element(s, decay, grad[i], &m[i], &v[i], p);
        master.value[i] = p;
        low.value[i] = (uint16_t)float_bits(p);
        if constexpr (MASTER == IN_VALUE_BF16)
            high.value[i] = bf16_encode_stochastic(p, s.seed, s.t, e.index + (uint64_t)(at + i));
        else
            high.value[i] = master_bf16(p);
    }
    store((S *)e.m + at, packed<S, V>(m));
    store((S *)e.v + at, packed<S, V>(v));
    if constexpr (MASTER == IN_VALUE) store((float *)e.value + at, master);
    if constexpr (MASTER == IN_FP32) store((float *)e.master + at, master);
    if constexpr (MASTER == IN_SPLIT16) store((uint16_t *)e.master + at, low);
    if constexpr (MASTER == IN_VALUE) return 0;
    store((uint16_t *)e.value + at, high);
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < V; i++) largest = max(largest, high.value[i] & 0x7fffu);
    return largest;
}

template <MasterStore MASTER, typename S, typename G>
__global__ __launch_bounds__(OPTIMIZER_THREADS, 3) void adamw_kernel(const __grid_constant__ UpdateTable table) {
    constexpr int V = UPDATE_WIDTH, BATCH = 2;
    const UpdateScalars scalars = *table.scalars;
    if (scalars.skip) return;
    const int index = table_find(table.first_block, table.count, (int)blockIdx.x);
    const UpdateEntry e = table.entry[index];
    const int64_t begin = (blockIdx.x - table.first_block[index]) * UPDATE_ELEMENTS;
    const int64_t end = min(begin + UPDATE_ELEMENTS, e.elements);
    const int64_t vectors_end = e.wide ? begin + (end - begin) / V * V : begin;
    uint32_t largest = 0;
    for (int64_t first = begin + threadIdx.x * V; first < vectors_end; first += BATCH * V * OPTIMIZER_THREADS) {
        UpdateLoaded<MASTER, S, G, V> loaded[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int64_t at = first + k * V * OPTIMIZER_THREADS;
            if (at < vectors_end) loaded[k] = update_load<MASTER, S, G, V>(e, at);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int64_t at = first + k * V * OPTIMIZER_THREADS;
            if (at < vectors_end) largest = max(largest, update_apply<MASTER, S, G, V>(e, scalars, at, loaded[k]));
        }
    }
    for (int64_t at = vectors_end + threadIdx.x; at < end; at += OPTIMIZER_THREADS)
        largest = max(largest, update_apply<MASTER, S, G, 1>(e, scalars, at, update_load<MASTER, S, G, 1>(e, at)));
    if constexpr (MASTER != IN_VALUE) {
        if (!e.maximum) return;
        __shared__ uint32_t shared[OPTIMIZER_THREADS / WARP];
        largest = __reduce_max_sync(ALL_LANES, largest);
        if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = largest;
        __syncthreads();
        if (threadIdx.x > 0) return;
        for (uint32_t other : shared) largest = max(largest, other);
        atomicMax(e.maximum, largest << 16);
    }
}

// --- the host's side ----------------------------------------------------------------------------------------
template <MasterStore MASTER, typename S, typename G> void adamw_flush(cudaStream_t stream, UpdateTable *table) {
    if (table->count > 0 && table->first_block[table->count] > 0) {
        adamw_kernel<MASTER, S, G><<<grid_of(table->first_block[table->count]), OPTIMIZER_THREADS, 0, stream>>>(*table);
        LAUNCH_CHECK("adamw_kernel");
    }
    table->count = 0;
}

// Updates the parameters of one kind: a kernel for each place of the master weights and format of moments and gradient.
template <MasterStore MASTER, typename S, typename G>
void adamw_launch(cudaStream_t stream, const Parameter *parameters, int count, const UpdateScalars *scalars) {
    const Format moment = sizeof(S) == 2 ? FMT_BF16 : FMT_FP32, grad = sizeof(G) == 2 ? FMT_BF16 : FMT_FP32;
    UpdateTable table = {};
    table.scalars = scalars;
    for (int i = 0; i < count; i++) {
        const Parameter &p = parameters[i];
        if (p.m.format != moment || p.grad.format != grad || master_store(p) != MASTER) continue;
        UpdateEntry *e = &table.entry[table.count];
        e->value = p.weight.value.data;
        e->master = p.master.data;
        e->grad = p.grad.data;
        e->m = p.m.data;
        e->v = p.v.data;
        e->maximum = p.weight.maximum;
        e->elements = flat_elements("adamw_update", p.weight.value);
        e->index = p.index;
        e->decay = p.decay;
        e->wide =
            aligned16(e->value) && aligned16(e->master) && aligned16(e->grad) && aligned16(e->m) && aligned16(e->v);
        table.first_block[table.count + 1] =
            table.first_block[table.count] + (int)ceil_div(e->elements, UPDATE_ELEMENTS);
        if (++table.count == UPDATE_ENTRIES) adamw_flush<MASTER, S, G>(stream, &table);
    }
    adamw_flush<MASTER, S, G>(stream, &table);
}

template <MasterStore MASTER>
void adamw_launch_all(cudaStream_t stream, const Parameter *parameters, int count, const UpdateScalars *scalars) {
    adamw_launch<MASTER, float, bf16>(stream, parameters, count, scalars);
    adamw_launch<MASTER, float, float>(stream, parameters, count, scalars);
    adamw_launch<MASTER, bf16, bf16>(stream, parameters, count, scalars);
    adamw_launch<MASTER, bf16, float>(stream, parameters, count, scalars);
}

// Refuses what no kernel updates.
void require_update(const Parameter &p) {
    const char *operation = "adamw_update";
    master_store(p);
    if (p.grad.format != FMT_BF16) require_format(operation, "a gradient", p.grad, FMT_FP32);
    if (p.m.granularity == SCALE_EXPAND && p.v.granularity == SCALE_EXPAND) return;
    if (p.m.format != FMT_BF16) require_format(operation, "a first moment", p.m, FMT_FP32);
    require_format(operation, "a second moment", p.v, p.m.format);
}

} // namespace

void cuda_grad_norm(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    cudaStream_t stream = cuda_backend(exec)->stream;
    double *const partials = (double *)exec->workspace;
    NormTable table = {};
    int blocks = 0; // of the launches before
    for (int i = 0; i < count; i++) {
        const Tensor grad = parameters[i].grad;
        const int at = table.count;
        if (grad.format != FMT_BF16) require_format("grad_norm", "a gradient", grad, FMT_FP32);
        table.grad[at] = grad.data;
        table.elements[at] = flat_elements("grad_norm", grad);
        table.is_bf16[at] = grad.format == FMT_BF16;
        table.wide[at] = aligned16(grad.data);
        table.first_block[at + 1] = table.first_block[at] + (int)ceil_div(table.elements[at], NORM_ELEMENTS);
        table.count++;
        if (table.count < NORM_ENTRIES && i + 1 < count) continue;
        const int in_table = table.first_block[table.count];
        if ((size_t)(blocks + in_table) * sizeof(double) > exec->workspace_bytes)
            fatal(EXIT_DEVICE, "grad_norm: the partial sums do not fit the workspace");
        table.partials = partials + blocks;
        grad_squares_launch(stream, table);
        blocks += in_table;
        table.count = 0;
    }
    grad_norm_kernel<<<1, FINISH_THREADS, 0, stream>>>(partials, blocks, state);
    LAUNCH_CHECK("grad_norm_kernel");
}

void cuda_grad_norm_root(Exec *exec, StepState *state) {
    grad_norm_root_kernel<<<1, 1, 0, cuda_backend(exec)->stream>>>(state);
    LAUNCH_CHECK("grad_norm_root_kernel");
}

void cuda_adamw_update(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    cudaStream_t stream = cuda_backend(exec)->stream;
    for (int i = 0; i < count; i++) require_update(parameters[i]);
    UpdateScalars *const scalars = (UpdateScalars *)exec->workspace;
    update_begin_kernel<<<1, 1, 0, stream>>>(state, scalars);
    LAUNCH_CHECK("update_begin_kernel");
    maxima_clear(stream, parameters, count, scalars);
    adamw_launch_all<IN_VALUE>(stream, parameters, count, scalars);
    adamw_launch_all<IN_VALUE_BF16>(stream, parameters, count, scalars);
    adamw_launch_all<IN_FP32>(stream, parameters, count, scalars);
    adamw_launch_all<IN_SPLIT16>(stream, parameters, count, scalars);
    fp8_moments_update(exec, parameters, count, scalars, state);
    cuda_backend(exec)->maxima_left = exec->ranks <= 1; // of several each has seen only its share
}
