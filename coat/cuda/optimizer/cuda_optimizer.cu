// AdamW for parameters with BF16 or FP32 moments; fp8_moments.cu handles 8-bit moments. Processes the list of
// parameters in a few launches. The list is a kernel argument, so nothing is uploaded.
#include "cuda_optimizer.h"
#include "numerics/moments.h"

int64_t flat_elements(const char *operation, Tensor t) {
    if (t.rows > 1 && t.stride != t.cols)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: a tensor has gaps between its rows", operation);
    return tensor_elements(t);
}

MasterStore master_store(const Parameter &p) {
    const Format value = p.weight.value.format, master = p.master.format;
    if (!p.master.data && value == FMT_FP32) return IN_VALUE;
    if (!p.master.data && value == FMT_BF16) return IN_VALUE_BF16;
    if (p.master.data && value == FMT_BF16 && master == FMT_FP32) return IN_FP32;
    if (p.master.data && value == FMT_BF16 && master == FMT_U16) return IN_SPLIT16;
    fatal(EXIT_DEVICE, "internal error: no optimizer on the GPU supports weights in %s with master weights: %s",
          format_name(value), p.master.data ? format_name(master) : "none");
}

namespace {

// Maximum number of parameters per kernel launch.
constexpr int AMAX_ENTRIES = 1024;
constexpr int UPDATE_ENTRIES = 420;
constexpr int64_t UPDATE_ELEMENTS = 8192; // number of parameter elements per block
constexpr int UPDATE_WIDTH = 4;           // elements per memory access: 16 bytes of FP32

// --- AdamW kernels for moments in FP32 or BF16 --------------------------------------------------------------
// Counts the step as an update or as skipped, and computes the scalars that are the same for all elements. Runs on one
// thread.
__global__ void update_begin_kernel(StepState *state, UpdateScalars *scalars) {
    UpdateScalars s = {};
    s.skip = state->skips = state->nonfinite;
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
        // The minimum 2^-63, the root of the smallest normal number, prevents a division by 0.
        s.floor = fmaxf((float)((double)s.eps / sqrt(correction2)), 0x1p-63f);
    }
    *scalars = s;
}

// List of weight amaxes to reset to 0 before the update. A skipped step changes neither the weights nor their amaxes.
struct AmaxTable {
    uint32_t *amax[AMAX_ENTRIES];
    int count;
};
static_assert(sizeof(AmaxTable) <= TABLE_BYTES, "the table must fit a kernel argument");

__global__ void amaxes_clear_kernel(const __grid_constant__ AmaxTable table, const StepState *state) {
    if (state->skips || (int)threadIdx.x >= table.count) return;
    *table.amax[threadIdx.x] = 0;
}

struct UpdateEntry {
    void *value, *master;
    const void *grad;
    void *m, *v;
    uint32_t *amax; // amax of the stored weight values; NULL: not computed
    int64_t elements;
    uint64_t index; // same as Parameter.index
    bool decay, wide;
    float rate; // parameter_rate()
};

struct UpdateTable {
    UpdateEntry entry[UPDATE_ENTRIES];
    int first_block[UPDATE_ENTRIES + 1];
    int count;
    const UpdateScalars *scalars;
};
static_assert(sizeof(UpdateTable) <= TABLE_BYTES, "the table must fit a kernel argument");

// V elements of a parameter with their gradients and moments, in registers. S is the type of the moments, G the type of
// the gradient.
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

// Updates V elements and stores them. Returns the amax of the stored BF16 values as BF16 bits, or 0 if the parameter is
// FP32.
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
    if (table.scalars->skip) return;
    const int index = table_find(table.first_block, table.count, (int)blockIdx.x);
    const UpdateEntry e = table.entry[index];
    const UpdateScalars scalars = with_rate(*table.scalars, e.rate);
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
        if (!e.amax) return;
        block_max<OPTIMIZER_THREADS>(largest, [&](uint32_t x) { atomicMax(e.amax, x << 16); });
    }
}

// --- host code that launches the AdamW kernels -----------------------------------------------------------------------
// Launches the kernel that updates the parameters in the table, then empties the table.
template <MasterStore MASTER, typename S, typename G> void adamw_flush(cudaStream_t stream, UpdateTable *table) {
    if (table->count > 0 && table->first_block[table->count] > 0) {
        adamw_kernel<MASTER, S, G><<<grid_of(table->first_block[table->count]), OPTIMIZER_THREADS, 0, stream>>>(*table);
        LAUNCH_CHECK("adamw_kernel");
    }
    table->count = 0;
}

// Updates all parameters with the given master weight storage, moment type S and gradient type G.
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
        e->amax = p.weight.maximum;
        e->elements = flat_elements("adamw_update", p.weight.value);
        e->index = p.index;
        e->decay = p.decay;
        e->rate = parameter_rate(&p);
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

// Calls fatal() if no kernel supports the parameter's formats.
void require_update(const Parameter &p) {
    const char *operation = "adamw_update";
    master_store(p);
    if (p.grad.format != FMT_BF16) require_format(operation, "a gradient", p.grad, FMT_FP32);
    if (p.m.granularity == SCALE_EXPAND && p.v.granularity == SCALE_EXPAND) return;
    if (p.m.format != FMT_BF16) require_format(operation, "a first moment", p.m, FMT_FP32);
    require_format(operation, "a second moment", p.v, p.m.format);
}

} // namespace

void amaxes_clear(cudaStream_t stream, const Parameter *parameters, int count, const StepState *state) {
    AmaxTable table = {};
    for (int i = 0; i < count; i++) {
        if (parameters[i].weight.maximum) table.amax[table.count++] = parameters[i].weight.maximum;
        if (table.count == 0 || (table.count < AMAX_ENTRIES && i + 1 < count)) continue;
        amaxes_clear_kernel<<<1, AMAX_ENTRIES, 0, stream>>>(table, state);
        LAUNCH_CHECK("amaxes_clear_kernel");
        table.count = 0;
    }
}

void cuda_adamw_update(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    cudaStream_t stream = cuda_backend(exec)->stream;
    for (int i = 0; i < count; i++) require_update(parameters[i]);
    UpdateScalars *const scalars = (UpdateScalars *)exec->workspace;
    update_begin_kernel<<<1, 1, 0, stream>>>(state, scalars);
    LAUNCH_CHECK("update_begin_kernel");
    amaxes_clear(stream, parameters, count, state);
    adamw_launch_all<IN_VALUE>(stream, parameters, count, scalars);
    adamw_launch_all<IN_VALUE_BF16>(stream, parameters, count, scalars);
    adamw_launch_all<IN_FP32>(stream, parameters, count, scalars);
    adamw_launch_all<IN_SPLIT16>(stream, parameters, count, scalars);
    fp8_moments_update(exec, parameters, count, scalars, state);
    // With several processes, each process has computed only the amaxes of its shards.
    cuda_backend(exec)->amaxes_valid = exec->ranks <= 1;
}
