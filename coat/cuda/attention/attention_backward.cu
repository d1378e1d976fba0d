// Backward of causal attention on Hopper: BF16, heads d = 64 or 128 wide. do is the gradient of the output o. With s =
// q k^T / sqrt(d), p = exp(s - lse), dp = do v^T and delta = rowsum(do * o):
//
//   ds = p (dp - delta)   dv = p^T do   dk = ds^T q / sqrt(d)   dq = ds k / sqrt(d)
//
// The backward is divided into units of work. A unit owns 128 rows of one head. If these rows are keys, the unit
// iterates over tiles of 64 queries; if they are queries, over tiles of 64 keys. s^T and dp^T are the transposes of s
// and dp.
//   keys     owns k, v; streams q, do, lse, delta: s^T, dp^T, then dv += p^T do and dk += ds^T q
//   queries  owns q, do, lse, delta; streams k, v: s, dp, then dq += ds k
// Units of both kinds compute s and dp, so the backward needs seven matmuls instead of five. In return, every sum of
// dq, dk and dv stays in the registers of one warpgroup and is added in a fixed order. So results are the same in every
// run, and no partial sums go through memory.
// Thread blocks claim units from a counter. All units of a set of a few heads, whose operands fit in the L2 cache, are
// claimed before those of the next set. Within a set, long units are claimed first. With grouped query heads, all units
// of keys are claimed before all units of queries, and a unit of keys adds the terms of its query heads one after the
// other.
//
// A thread block has two computing warpgroups, which run independently. Each owns 64 of the unit's 128 rows. Two more
// threads start TMA copies: one for the owned rows, one for the ring of streamed tiles (attention_copying.h).
// Exponentials overlap with matmuls of the same warpgroup (attention_backward_unit.h) or of the other one.
#include "attention_backward_unit.h"
#include "attention_maps.h"
#include "cuda/common/cuda_kernels.h"

// --- kernels that prepare the backward: lse and delta of each row, number of tiles of each unit of work --------------
struct Rows {
    const bf16 *o, *d_o;
    const float *lse; // log-sum-exp of each query's scores from the forward, (B * heads, T)
    int64_t o_stride, d_o_stride;
    float *statistics;   // output, Problem.statistics
    unsigned *next_unit; // Problem.next_unit, which statistics_kernel sets to 0
    uint32_t *amax;      // Problem.amax, which statistics_kernel sets to 0; NULL: not computed
    int heads, T, blocks;
};

template <int HEAD> constexpr int ROW_THREADS = HEAD / 8;
template <int HEAD> constexpr int ROWS_PER_BLOCK = 256 / ROW_THREADS<HEAD>;

// Stores lse / ln 2 and delta = rowsum(do * o) of each row, and zeroes the amaxes and the counter of claimed units.
// Each thread processes eight columns of a row of one head. The rows that pad a sequence to whole blocks get lse = inf,
// so that their probabilities are 0.
template <int HEAD> __global__ static void statistics_kernel(Rows x) {
    constexpr int threads = ROW_THREADS<HEAD>;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *x.next_unit = 0;
    int row = (int)(blockIdx.x * ROWS_PER_BLOCK<HEAD> + threadIdx.x / threads), part = (int)threadIdx.x % threads;
    int t = row / x.heads, head = row % x.heads, b = (int)blockIdx.y;
    float delta = 0.0f;
    if (t < x.T) {
        int64_t token = (int64_t)b * x.T + t, column = (int64_t)head * HEAD + part * 8;
        Pack<bf16, 8> o = load<8, CACHE_STREAM>(x.o + token * x.o_stride + column);
        Pack<bf16, 8> d_o = load<8>(x.d_o + token * x.d_o_stride + column);
#pragma unroll
        for (int i = 0; i < 8; i++) delta = fmaf(__bfloat162float(o.value[i]), __bfloat162float(d_o.value[i]), delta);
    }
#pragma unroll
    for (int offset = threads / 2; offset > 0; offset /= 2) delta += __shfl_xor_sync(0xffffffffu, delta, offset);
    if (part != 0 || t >= x.blocks * TILE) return;
    if (x.amax && head == 0 && t < x.T) x.amax[(int64_t)b * x.T + t] = 0;
    int64_t sequence_head = (int64_t)b * x.heads + head;
    float *to = x.statistics + (sequence_head * x.blocks * TILE + t / HALF * HALF) * 2 + statistic_at(t % HALF);
    to[0] = t < x.T ? x.lse[sequence_head * x.T + t] * LOG2_E : INFINITY;
    to[HALF] = delta;
}

// Computes the number of blocks of TILE rows that each unit of work streams (Unit.tiles) with document masking. One
// thread block processes one sequence. A unit of queries streams keys back to the start of its first query's document.
// A unit of keys streams queries up to the last block that sees one of its keys.
__global__ static void tiles_kernel(const int32_t *positions, int *tiles, int T, int blocks) {
    positions += (int64_t)blockIdx.x * T;
    tiles += (int64_t)blockIdx.x * 2 * blocks;
    for (int block = (int)threadIdx.x; block < blocks; block += (int)blockDim.x) {
        int end = block + 1;
        while (end < blocks && document_begin(positions, end * TILE) < (block + 1) * TILE) end++;
        tiles[block] = block + 1 - document_begin(positions, block * TILE) / TILE;
        tiles[blocks + block] = end - block;
    }
}

// --- copies of attention's backward from global to shared memory -----------------------------------------------------
// Two tensors whose tiles are copied together, for one head of a sequence: k and v, or q and do. If they are q and do,
// lse and delta of the same rows are copied, too.
struct Source {
    const CUtensorMap *first, *second;
    const float *statistics; // lse and delta of the head's first row; NULL if the source is k and v
    int column, sequence;
};

template <int HEAD> __device__ static inline Source source_of(const Problem &x, bool queries, int sequence, int head) {
    const float *statistics = x.statistics + ((int64_t)sequence * x.sequence_heads + head) * x.blocks * TILE * 2;
    return {queries ? &x.q : &x.k, queries ? &x.d_o : &x.v, queries ? statistics : NULL, head * HEAD, sequence};
}

// Copies HALF rows of both tensors of `from`, starting at `row`, to `slot`. If the tensors are q and do, also copies
// lse and delta of these rows.
template <int HEAD>
__device__ static inline void pair_copy(Shared<HEAD> *shared, int slot, const Source &from, int row) {
    Pair<HEAD> &to = shared->pair[slot];
    uint64_t *full = &shared->full[slot];
    barrier_arrive_expect(full, (uint32_t)(sizeof to + (from.statistics ? sizeof shared->statistics[slot] : 0)));
#pragma unroll
    for (int i = 0; i < HEAD / PANEL; i++) {
        copy_tile(to.first + i * HALF * PANEL, from.first, from.column + i * PANEL, row, from.sequence, full);
        copy_tile(to.second + i * HALF * PANEL, from.second, from.column + i * PANEL, row, from.sequence, full);
    }
    if (from.statistics)
        copy_bytes(shared->statistics[slot], from.statistics + row * 2, sizeof shared->statistics[slot], full);
}

// Loop of the thread that loads the rows owned by each unit of work. The thread claims a unit, passes the unit to the
// streaming thread and copies both warpgroups' rows. It first serves the warpgroup that had fewer tiles of the previous
// unit's diagonal block, because that warpgroup finishes first. A final unit with tiles = 0 ends the loops of the
// streaming thread and of both warpgroups.
template <int HEAD> __device__ static inline void copy_own(const Problem &x, Shared<HEAD> *shared) {
    const int count = unit_count(x);
    int first_side = 0;
    for (int units = 0;; units++) {
        const int index = unit_claim(shared->next, units, x.next_unit);
        Unit unit = {};
        if (index < count) unit = unit_get(x, index);
        unit.number = units;
        unit_pass(shared->next, unit);
        const Source source = source_of<HEAD>(x, !unit.keys, unit.sequence, unit.head);
#pragma unroll 1
        for (int i = 0; i < COMPUTING; i++) {
            const int side = first_side ^ i, slot = own_slot<HEAD>(units, side);
            barrier_wait(&shared->empty[slot], own_phase<HEAD>(units) ^ 1);
            shared->unit[slot] = unit;
            if (unit.tiles > 0)
                pair_copy<HEAD>(shared, slot, source, unit.block * TILE + side * HALF);
            else
                barrier_arrive(&shared->full[slot]);
        }
        if (unit.tiles == 0) return;
        first_side = unit.keys;
    }
}

// Loop of the thread that streams tiles: copies the tiles of each unit of work, one head after the other. The heads'
// terms are added to the gradients in this order.
template <int HEAD> __device__ static inline void copy_streams(const Problem &x, Shared<HEAD> *shared) {
    Ring<STAGES<HEAD>> stage = {};
    for (int units = 0;; units++) {
        const Unit unit = unit_receive(shared->next, units);
        if (unit.tiles == 0) return;
        const int first = unit.keys ? unit.head * x.group : unit.head / x.group, heads = unit.keys ? x.group : 1;
        int left = heads * 2 * unit.tiles;
        if (left <= 2 * REQUEST_AT) unit_request(shared->next);
        for (int head = first; head < first + heads; head++) {
            const Source source = source_of<HEAD>(x, unit.keys, unit.sequence, head);
#pragma unroll 1
            for (int tile = 0; tile < 2 * unit.tiles; tile++, ring_next(stage)) {
                if (--left == 2 * REQUEST_AT) unit_request(shared->next);
                barrier_wait(&shared->empty[stage.index], stage.phase ^ 1);
                pair_copy<HEAD>(shared, stage.index, source, unit.block * TILE + tile_row(unit.keys, tile));
            }
        }
    }
}

template <int HEAD, bool MASKED>
__global__ static void __launch_bounds__(THREADS, 1) backward_kernel(const __grid_constant__ Problem x) {
    extern __shared__ __align__(1024) unsigned char memory[]; // tiles in shared memory must be 1024-byte aligned
    if constexpr (HOPPER_CODE) {
        Shared<HEAD> *shared = (Shared<HEAD> *)memory;
        if (threadIdx.x == 0) {
            for (int i = 0; i < SLOTS<HEAD>; i++) {
                barrier_init(&shared->full[i], 1);
                barrier_init(&shared->empty[i], (i < STAGES<HEAD> ? COMPUTING : 1) * WARPGROUP_SIGNALS);
            }
            handover_init(shared->next);
            barrier_init_fence();
        }
        __syncthreads();
        int warpgroup = warp_uniform((int)threadIdx.x / 128);
        if (warpgroup == COMPUTING) {
            registers_release<COPYING_REGISTERS>();
            if (threadIdx.x == COPYING_THREAD)
                copy_own<HEAD>(x, shared);
            else if (threadIdx.x == STREAMING_THREAD)
                copy_streams<HEAD>(x, shared);
        } else {
            registers_acquire<COMPUTING_REGISTERS>();
            compute_units<HEAD, MASKED>(x, shared, warpgroup);
        }
    } else {
        __trap();
    }
}

// --- host code that launches the backward kernels -----------------------------------------------------------------
// Returns Problem.kv_heads_together: the number of key/value heads that a set of heads_together query heads uses, at
// least 1. Returns the number of all key/value heads if one set contains all query heads, or if there are few units of
// keys. In the latter case, the longest units of keys of all heads must start first. If such a unit started late, other
// SMs would run out of work before it ends, because the units of queries are only 3/7 of the work.
static int kv_heads_together(const Problem &x, int sm_count) {
    if (x.kv_heads * x.blocks < 3 * sm_count || x.heads_together >= x.heads) return x.kv_heads;
    return x.heads_together > x.group ? x.heads_together / x.group : 1;
}

template <int HEAD> static void launch(const CudaBackend *backend, const Rows &rows, const Problem &x, int B) {
    dim3 grid((unsigned)ceil_div((int64_t)rows.blocks * TILE * rows.heads, ROWS_PER_BLOCK<HEAD>), (unsigned)B);
    statistics_kernel<HEAD><<<grid, 256, 0, backend->stream>>>(rows);
    LAUNCH_CHECK("attention_backward, statistics");
    const auto kernel = x.positions ? backward_kernel<HEAD, true> : backward_kernel<HEAD, false>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(Shared<HEAD>)),
               "setting the shared memory of attention's backward");
    int units = (x.heads + x.kv_heads) * x.blocks, blocks = units < backend->sm_count ? units : backend->sm_count;
    kernel<<<(unsigned)blocks, THREADS, sizeof(Shared<HEAD>), backend->stream>>>(x);
    LAUNCH_CHECK("attention_backward");
}

extern "C" bool attention_backward_hopper(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse,
                                          Tensor q, Tensor k, Tensor v, Tensor positions, Tensor rope_table,
                                          AttentionShape shape) {
    const CudaBackend *backend = cuda_backend(exec);
    const Tensor views[] = {dq, dk, dv, d_o, o, q, k, v};
    if (!attention_hopper_supported(shape, backend->hopper)) return false;
    if (exec->workspace_bytes < attention_backward_bytes(shape)) return false;
    for (const Tensor &view : views)
        if (!view_fits(view)) return false;
    Problem x = {};
    const auto map = shape.head_dim == 64 ? tile_map<64> : tile_map<128>;
    if (!map(&x.q, q, shape, shape.heads, HALF) || !map(&x.d_o, d_o, shape, shape.heads, HALF)) return false;
    if (!map(&x.k, k, shape, shape.kv_heads, HALF) || !map(&x.v, v, shape, shape.kv_heads, HALF)) return false;
    Rows rows = {};
    rows.o = (const bf16 *)o.data, rows.d_o = (const bf16 *)d_o.data, rows.lse = (const float *)lse.data;
    rows.o_stride = o.stride, rows.d_o_stride = d_o.stride;
    rows.next_unit = (unsigned *)exec->workspace;
    rows.statistics = (float *)((char *)exec->workspace + 256);
    rows.heads = shape.heads, rows.T = shape.T, rows.blocks = (int)attention_blocks(shape);
    x.statistics = rows.statistics, x.next_unit = rows.next_unit;
    x.amax = rows.amax = dq.amax;
    x.dq = (bf16 *)dq.data, x.dk = (bf16 *)dk.data, x.dv = (bf16 *)dv.data;
    x.dq_stride = dq.stride, x.dk_stride = dk.stride, x.dv_stride = dv.stride;
    x.heads = shape.B * shape.heads, x.kv_heads = shape.B * shape.kv_heads;
    x.sequence_heads = shape.heads, x.sequence_kv_heads = shape.kv_heads, x.group = shape.heads / shape.kv_heads;
    x.T = shape.T, x.blocks = rows.blocks;
    x.scale = 1.0f / sqrtf((float)shape.head_dim);
    x.rope_table = (const float *)rope_table.data;
    x.heads_together = attention_heads_together(shape);
    x.kv_heads_together = kv_heads_together(x, backend->sm_count);
    if (positions.data) {
        int *tiles = (int *)((char *)exec->workspace + attention_backward_tiles_at(shape));
        x.positions = (const int32_t *)positions.data, x.tiles = tiles;
        tiles_kernel<<<(unsigned)shape.B, 128, 0, backend->stream>>>(x.positions, tiles, x.T, x.blocks);
        LAUNCH_CHECK("attention_backward, tiles");
    }
    (shape.head_dim == 64 ? launch<64> : launch<128>)(backend, rows, x, shape.B);
    return true;
}
