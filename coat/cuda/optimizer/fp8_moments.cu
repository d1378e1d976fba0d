// AdamW on 8-bit moments with dynamic range expansion (COAT, section 4). Gradients are read once; states and parameters
// are read and written once. With BF16 gradients and split16 master weights, each element takes 8 bytes of reads
// (gradient 2, parameter 4, m and v 1 each) and 6 of writes. The 10 bytes of amaxes and exponents per group of 128 are
// read and written, too. A warp processes a chunk of four groups at a time (lanes: fp8_moments.h).
#include "moment_parameters.h"

namespace {

constexpr int CHUNK = WARP / GROUP_LANES * GROUP; // number of elements in a chunk, which a warp processes at a time
// number of consecutive chunks that a warp processes (a run), so that each lane holds the amaxes of one group
constexpr int RUN = WARP / (CHUNK / GROUP);

// Number of resident blocks per SM. Stochastic rounding computes a random number per element, and more warps hide that
// arithmetic. Without stochastic rounding, memory bandwidth is the limit, and more warps only compete for bandwidth.
template <MasterStore MASTER> constexpr int CHUNK_BLOCKS = MASTER == IN_VALUE_BF16 ? 5 : 4;

// --- update of full chunks of a parameter ----------------------------------------------------------------------------
// Amaxes and exponents of one group. A warp processes RUN chunks in a row, and each of its lanes holds one of their
// groups. So the warp reads and writes the arrays of amaxes and exponents once per RUN chunks, in full cache lines.
struct RunGroup {
    float a[2]; // amaxes of m and v, which Tensor.scale stores
    uint32_t k; // exponents in sixteenths: of m in the lowest byte, of v in the next byte
};

__device__ inline RunGroup group_load(const MomentEntry &e, int64_t at, bool inside) {
    RunGroup x = {};
    if (!inside) return x;
    x.a[0] = e.scale[0][at];
    x.a[1] = e.scale[1][at];
    x.k = (uint32_t)e.exponent[0][at] | (uint32_t)e.exponent[1][at] << 8;
    return x;
}

__device__ inline void group_store(const MomentEntry &e, int64_t at, bool inside, RunGroup x, StepState *state) {
    if (!inside) return;
    e.scale[0][at] = x.a[0];
    e.scale[1][at] = x.a[1];
    e.exponent[0][at] = (uint8_t)x.k;
    e.exponent[1][at] = (uint8_t)(x.k >> 8);
    if (!(x.a[0] < INFINITY) || !(x.a[1] < INFINITY)) state->nonfinite = 1;
}

// Returns the amaxes and exponents of the group that lane `lane` holds. All lanes of the warp must call this function.
__device__ inline RunGroup group_of_lane(RunGroup x, int lane) {
    x.a[0] = __shfl_sync(ALL_LANES, x.a[0], lane);
    x.a[1] = __shfl_sync(ALL_LANES, x.a[1], lane);
    x.k = __shfl_sync(ALL_LANES, x.k, lane);
    return x;
}

// Updates the chunk that starts at element `begin`. `old` is the group that contains this lane's elements. Returns that
// group's new amaxes and exponents. Raises *amax, in shared memory, to the amax of the stored BF16 values (BF16 bits).
template <MasterStore MASTER, typename G>
__device__ inline RunGroup update_chunk(const MomentTable &table, const UpdateScalars &s, const CodeTables *tables,
                                        const MomentEntry &e, int64_t begin, RunGroup old, uint32_t *amax) {
    const int lane = (int)threadIdx.x % WARP;
    const int64_t first = begin + lane / GROUP_LANES * GROUP + lane % GROUP_LANES * WIDTH;

    // Starts all loads before the first loaded value is used.
    uint32_t code[2][LANE_ELEMENTS / 4];
    Pack<G, WIDTH> grad[SPANS];
    MasterPack<MASTER> master[SPANS];
#pragma unroll
    for (int j = 0; j < SPANS; j++) {
        const int64_t at = first + j * GROUP_LANES * WIDTH;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const Pack<uint8_t, WIDTH> codes = load_streaming<WIDTH>(e.code[i] + at);
            memcpy(&code[i][j * WIDTH / 4], &codes, sizeof codes);
        }
        grad[j] = load_streaming<WIDTH>((const G *)e.grad + at);
        master[j] = master_load<MASTER>(e, at);
    }

    float m[LANE_ELEMENTS], v[LANE_ELEMENTS];
    decode_lane<false>(tables, lane_group(tables, s.beta1 * old.a[0], old.k & 0xffu), code[0], m);
    decode_lane<true>(tables, lane_group(tables, s.beta2 * old.a[1], old.k >> 8), code[1], v);
    const float decay = e.decay ? s.lr * s.weight_decay : 0.0f;
    __nv_bfloat162 largest = __float2bfloat162_rn(0.0f);
#pragma unroll
    for (int j = 0; j < SPANS; j++) {
        float g[WIDTH], p[WIDTH];
        unpack<WIDTH>(grad[j], g);
        master_values<MASTER>(master[j], p);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            p[i] = adamw_element_short(s, decay, g[i], &m[j * WIDTH + i], &v[j * WIDTH + i], p[i]);
        largest = __hmax2_nan(largest, master_write<MASTER>(e, s, first + j * GROUP_LANES * WIDTH, p));
    }
    if constexpr (MASTER != IN_VALUE) amax_note(amax, largest);

    LaneGroup fresh[2];
    groups_measure(tables, lane_extremes(m, true), lane_extremes(v, false), table.expand, &fresh[0], &fresh[1]);
    encode_lane<false>(fresh[0], m, code[0]);
    encode_lane<true>(fresh[1], v, code[1]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < SPANS; j++) {
            Pack<uint8_t, WIDTH> codes;
            memcpy(&codes, &code[i][j * WIDTH / 4], sizeof codes);
            store(e.code[i] + first + j * GROUP_LANES * WIDTH, codes);
        }
    }
    return {{fresh[0].a, fresh[1].a}, fresh[0].k_16ths | (uint32_t)fresh[1].k_16ths << 8};
}

// Prefetches a cache line into L2.
__device__ inline void prefetch_l2(const void *address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(address)));
}

// The lanes of a warp prefetch the cache lines of a later chunk. A chunk is contiguous in each array (values,
// gradients, moments). A lane prefetches two lines if a chunk has more lines than a warp has lanes.
constexpr int LINE_BYTES = 128;

template <MasterStore MASTER, typename G> struct ChunkLines {
    static constexpr int code = CHUNK / LINE_BYTES, grad = CHUNK * (int)sizeof(G) / LINE_BYTES,
                         value = MASTER == IN_FP32    ? 0
                                 : MASTER == IN_VALUE ? CHUNK * (int)sizeof(float) / LINE_BYTES
                                                      : CHUNK * (int)sizeof(uint16_t) / LINE_BYTES,
                         master = MASTER == IN_FP32      ? CHUNK * (int)sizeof(float) / LINE_BYTES
                                  : MASTER == IN_SPLIT16 ? CHUNK * (int)sizeof(uint16_t) / LINE_BYTES
                                                         : 0;
    static constexpr int all = 2 * code + grad + value + master, per_lane = (all + WARP - 1) / WARP;
};

struct LaneLine {
    const char *address; // address of the cache line in the entry's first chunk; NULL: this lane prefetches nothing
    int64_t chunk_bytes; // distance in bytes between the lines of two consecutive chunks
};

// Locates cache line number `line` of the chunks of an entry. This lane prefetches that line.
template <MasterStore MASTER, typename G> __device__ inline LaneLine lane_line(const MomentEntry &e, int line) {
    using Lines = ChunkLines<MASTER, G>;
    const auto inside = [&](const void *array, int lines) {
        const LaneLine found = {(const char *)array + line * LINE_BYTES, lines * LINE_BYTES};
        line -= lines;
        return found;
    };
    LaneLine found = inside(e.code[0], Lines::code);
    if (line >= 0) found = inside(e.code[1], Lines::code);
    if (line >= 0) found = inside(e.grad, Lines::grad);
    if (line >= 0) found = inside(e.value, Lines::value);
    if (line >= 0) found = inside(e.master, Lines::master);
    if (line >= 0) found.address = NULL;
    return found;
}

template <MasterStore MASTER, typename G>
__global__
__launch_bounds__(CHUNK_THREADS,
                  CHUNK_BLOCKS<MASTER>) void adamw_moments_kernel(const __grid_constant__ MomentTable table) {
    __shared__ CodeTables tables;
    __shared__ uint32_t amaxes[ENTRIES]; // for each parameter: amax of the values that this block stored, as BF16 bits
    const UpdateScalars scalars = *table.scalars;
    if (scalars.skip) return;
    for (int i = (int)threadIdx.x; i < table.count; i += CHUNK_THREADS) amaxes[i] = 0;
    tables_fill(&tables);
    constexpr int LINES = ChunkLines<MASTER, G>::per_lane;
    const int lane = (int)threadIdx.x % WARP, runs = table.first[table.count];
    const int stride = (int)gridDim.x * (CHUNK_THREADS / WARP);
    int entry = -1;
    LaneLine line[LINES];
    for (int run = ((int)blockIdx.x * CHUNK_THREADS + (int)threadIdx.x) / WARP; run < runs; run += stride) {
        if (entry < 0 || run >= table.first[entry + 1]) {
            entry = table_find(table.first, table.count, run);
#pragma unroll
            for (int i = 0; i < LINES; i++) line[i] = lane_line<MASTER, G>(table.entry[entry], i * WARP + lane);
        }
        const MomentEntry &e = table.entry[entry];
        const int chunks = (int)e.chunks, begin = (run - table.first[entry]) * RUN, end = min(begin + RUN, chunks);
        const int64_t at = (int64_t)begin * (CHUNK / GROUP) + lane; // index of the group that this lane holds
        const bool inside = begin + lane / (CHUNK / GROUP) < end;
        RunGroup group = group_load(e, at, inside);
        for (int chunk = begin; chunk < end; chunk++) {
            const int next = chunk + 1 < end ? chunk + 1 : begin + stride * RUN;
            if (next < chunks) {
#pragma unroll
                for (int i = 0; i < LINES; i++)
                    if (line[i].address) prefetch_l2(line[i].address + next * line[i].chunk_bytes);
            }
            // Lanes here to here + 3 hold the chunk's four groups. Lane l processes elements of the group that lane
            // here + l / 8 holds. After the step, lane here + i receives its updated group from lane 8 i.
            const int here = (chunk - begin) * (CHUNK / GROUP);
            const RunGroup old = group_of_lane(group, here + lane / GROUP_LANES);
            const RunGroup fresh = update_chunk<MASTER, G>(table, with_rate(scalars, e.rate), &tables, e,
                                                           (int64_t)chunk * CHUNK, old, &amaxes[entry]);
            const RunGroup taken = group_of_lane(fresh, lane % (CHUNK / GROUP) * GROUP_LANES);
            if (lane / (CHUNK / GROUP) == chunk - begin) group = taken;
        }
        group_store(e, at, inside, group, table.state);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < table.count; i += CHUNK_THREADS)
        if (table.entry[i].amax && amaxes[i]) atomicMax(table.entry[i].amax, amaxes[i] << 16);
}

// --- update of the groups that do not fill a chunk -------------------------------------------------------------------
// Updates the groups that do not fill a chunk (the last group may be short), and all groups of tensors that are not
// 16-byte aligned. A warp updates one group, using the functions of moments.h.

// Returns, in every lane of the warp, the amax and exponent of group number `at` of m (which = 0) or v (which = 1).
// Lane 0 also stores the amax and the exponent. x: this lane's elements of the group.
__device__ inline MomentGroup rest_measure(const MomentTable &table, const MomentEntry &e, int which, int64_t at,
                                           const float x[GROUP / WARP]) {
    uint32_t largest = 0, negated = 0;
    for (int i = 0; i < GROUP / WARP; i++) {
        const uint32_t bits = float_bits(x[i]) & 0x7fffffffu;
        largest = max(largest, bits);
        negated = max(negated, 0u - bits);
    }
    largest = __reduce_max_sync(ALL_LANES, largest);
    negated = __reduce_max_sync(ALL_LANES, negated);
    const MomentGroup group = moment_group_measured(largest, 0u - negated, FMT_E4M3, table.expand);
    if (threadIdx.x % WARP == 0) {
        e.scale[which][at] = group.a;
        e.exponent[which][at] = group.k_16ths;
        if (!(group.a < INFINITY)) table.state->nonfinite = 1;
    }
    return group;
}

template <MasterStore MASTER, typename G>
__global__
__launch_bounds__(OPTIMIZER_THREADS) void adamw_moments_rest_kernel(const __grid_constant__ MomentTable table) {
    const int warp = (int)blockIdx.x * (OPTIMIZER_THREADS / WARP) + (int)threadIdx.x / WARP;
    const int lane = (int)threadIdx.x % WARP;
    if (table.scalars->skip || warp >= table.first[table.count]) return;
    const int entry = table_find(table.first, table.count, warp);
    const MomentEntry &e = table.entry[entry];
    const UpdateScalars s = with_rate(*table.scalars, e.rate);
    const int64_t at = e.chunks * (CHUNK / GROUP) + warp - table.first[entry], begin = at * GROUP + lane;
    const MomentGroup old_m = moment_group(s.beta1 * e.scale[0][at], e.exponent[0][at], FMT_E4M3);
    const MomentGroup old_v = moment_group(s.beta2 * e.scale[1][at], e.exponent[1][at], FMT_E4M3);
    const float decay = e.decay ? s.lr * s.weight_decay : 0.0f;
    float m[GROUP / WARP] = {}, v[GROUP / WARP] = {};
    uint32_t largest = 0;
    for (int i = 0; i < GROUP / WARP; i++) {
        const int64_t index = begin + i * WARP;
        if (index >= e.elements) continue;
        m[i] = moment_decode(e.code[0][index], old_m, FMT_E4M3);
        v[i] = moment_decode(e.code[1][index], old_v, FMT_E4M3);
        const float grad = (float)((const G *)e.grad)[index];
        const float p = adamw_element_short(s, decay, grad, &m[i], &v[i], rest_load<MASTER>(e, index));
        largest = max(largest, rest_store<MASTER>(e, s, index, p));
    }
    largest = __reduce_max_sync(ALL_LANES, largest);
    if (lane == 0 && e.amax) atomicMax(e.amax, largest << 16);
    const MomentGroup group_m = rest_measure(table, e, 0, at, m);
    const MomentGroup group_v = rest_measure(table, e, 1, at, v);
    for (int i = 0; i < GROUP / WARP; i++) {
        const int64_t index = begin + i * WARP;
        if (index >= e.elements) continue;
        e.code[0][index] = moment_encode(m[i], group_m, FMT_E4M3, false);
        e.code[1][index] = moment_encode(v[i], group_v, FMT_E4M3, true);
    }
}

// --- host code that launches the update kernels of 8-bit moments -----------------------------------------------------
void require_moment(const char *what, Tensor t) {
    if (t.granularity != SCALE_EXPAND || t.group != GROUP || t.format != FMT_E4M3)
        fatal(EXIT_DEVICE, "internal error: adamw_update on the GPU: %s in %s groups of %d is not supported", what,
              format_name(t.format), t.group);
}

MomentEntry entry_of(const Parameter &p) {
    MomentEntry e = {};
    (ParameterEntry &)e = parameter_entry("adamw_update", p);
    const Tensor moments[] = {p.m, p.v};
    require_moment("a first moment", p.m);
    require_moment("a second moment", p.v);
    for (int i = 0; i < 2; i++) {
        e.code[i] = (uint8_t *)moments[i].data;
        e.scale[i] = (float *)moments[i].scale;
        e.exponent[i] = moments[i].exponent;
    }
    const bool wide =
        aligned16(e.value) && aligned16(e.master) && aligned16(e.grad) && aligned16(e.code[0]) && aligned16(e.code[1]);
    e.chunks = wide ? e.elements / CHUNK : 0;
    return e;
}

// Numbers the work items of the table's parameters: runs of chunks or, if `rest`, remaining groups. Returns the number
// of items.
int count_pieces(MomentTable *table, bool rest) {
    for (int i = 0; i < table->count; i++) {
        const MomentEntry &e = table->entry[i];
        const int64_t groups = ceil_div(e.elements, GROUP) - e.chunks * (CHUNK / GROUP);
        table->first[i + 1] = table->first[i] + (int)(rest ? groups : ceil_div(e.chunks, RUN));
    }
    return table->first[table->count];
}

template <MasterStore MASTER, typename G> void rest_launch(cudaStream_t stream, MomentTable *table) {
    const int groups = count_pieces(table, true);
    if (groups == 0) return;
    adamw_moments_rest_kernel<MASTER, G>
        <<<grid_of(ceil_div(groups, OPTIMIZER_THREADS / WARP)), OPTIMIZER_THREADS, 0, stream>>>(*table);
    LAUNCH_CHECK("adamw_moments_rest_kernel");
}

template <MasterStore MASTER, typename G> void chunks_launch(const CudaBackend *backend, MomentTable *table) {
    const int runs = count_pieces(table, false);
    if (runs == 0) return;
    const int64_t blocks = ceil_div(runs, CHUNK_THREADS / WARP);
    const int64_t most = (int64_t)backend->sm_count * CHUNK_BLOCKS<MASTER>;
    adamw_moments_kernel<MASTER, G>
        <<<grid_of(blocks < most ? blocks : most), CHUNK_THREADS, 0, backend->stream>>>(*table);
    LAUNCH_CHECK("adamw_moments_kernel");
}

template <MasterStore MASTER, typename G> void table_launch(const CudaBackend *backend, MomentTable *table) {
    chunks_launch<MASTER, G>(backend, table);
    rest_launch<MASTER, G>(backend->stream, table);
    table->count = 0;
}

// Updates the parameters whose master storage is MASTER and whose gradient type is G.
template <MasterStore MASTER, typename G>
void update_kind(const CudaBackend *backend, const Parameter *parameters, int count, MomentTable *table) {
    const Format grad = sizeof(G) == 2 ? FMT_BF16 : FMT_FP32;
    for (int i = 0; i < count; i++) {
        const Parameter &p = parameters[i];
        if (p.m.granularity != SCALE_EXPAND || p.grad.format != grad || master_store(p) != MASTER) continue;
        if (table->count == ENTRIES) table_launch<MASTER, G>(backend, table);
        table->entry[table->count++] = entry_of(p);
    }
    if (table->count > 0) table_launch<MASTER, G>(backend, table);
}

template <MasterStore MASTER>
void update_both(const CudaBackend *backend, const Parameter *parameters, int count, MomentTable *table) {
    update_kind<MASTER, bf16>(backend, parameters, count, table);
    update_kind<MASTER, float>(backend, parameters, count, table);
}

} // namespace

void fp8_moments_update(Exec *exec, const Parameter *parameters, int count, const UpdateScalars *scalars,
                        StepState *state) {
    const CudaBackend *backend = cuda_backend(exec);
    MomentTable table = {};
    table.scalars = scalars;
    table.state = state;
    table.expand = backend->recipe.moments == MOMENTS_COAT;
    update_both<IN_VALUE>(backend, parameters, count, &table);
    update_both<IN_VALUE_BF16>(backend, parameters, count, &table);
    update_both<IN_FP32>(backend, parameters, count, &table);
    update_both<IN_SPLIT16>(backend, parameters, count, &table);
}
