// The backward of causal attention on Hopper, BF16, heads d = 64 or 128 wide. With s = q k^T / sqrt(d),
// p = exp(s - lse), dp = do v^T and delta = rowsum(do * o):
//
//   ds = p (dp - delta)   dv = p^T do   dk = ds^T q / sqrt(d)   dq = ds k / sqrt(d)
//
// Two kinds of units of work, 128 rows of one head each, both walking over the other side's tiles of 128 or 64 rows:
//   keys     own k, v; q, do, lse, delta stream by: s^T, dp^T, then dv += p^T do and dk += ds^T q
//   queries  own q, do, lse, delta; k, v stream by: s, dp, then dq += ds k
// Computing s and dp in both costs two of seven products, and buys that every sum stays in the registers of one
// warpgroup, in one order: equal bits in every run, no sums in memory, and units that know nothing of each other.
// Units are handed out by a counter, long before short ones within a few heads, whose operands stay in the L2 cache.
// With grouped heads a unit of keys has the query heads of its group stream by one after the other, and dk and dv are
// their sums in that order; the operations are those of as many heads that share nothing.
//
// A block is two warpgroups that compute, 64 own rows each, at their own pace, so that the exponentials of one run
// while the tensor cores work for the other; and one thread that has the copy engine fill a ring of tiles.
#include "attention_backward_unit.h"
#include "attention_maps.h"
#include "cuda/common/cuda_kernels.h"

// --- lse and delta, row by row ------------------------------------------------------------------------------------
struct Rows {
    const bf16 *o, *d_o;
    const float *lse; // (B * heads, T)
    int64_t o_stride, d_o_stride;
    float *statistics;
    unsigned *next_unit;
    uint32_t *amax; // set to 0 here; may be NULL
    int heads, T, blocks;
};

template <int HEAD> constexpr int ROW_THREADS = HEAD / 8;
template <int HEAD> constexpr int ROWS_PER_BLOCK = 256 / ROW_THREADS<HEAD>;

// A thread for eight columns of a row of a head. Rows beyond T get lse = inf, so that their probabilities are 0.
template <int HEAD> __global__ static void statistics_kernel(Rows x) {
    constexpr int threads = ROW_THREADS<HEAD>, rows = PAIR_ROWS<HEAD>;
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
    float *to = x.statistics + (sequence_head * x.blocks * TILE + t / rows * rows) * 2 + t % rows;
    to[0] = t < x.T ? x.lse[sequence_head * x.T + t] * LOG2_E : INFINITY;
    to[rows] = delta;
}

// How many tiles a unit has where documents are apart: back to the first document of a block of queries, and on to the last
// block with a document that begins by the end of a block of keys. A block of threads has a sequence.
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

// --- copying ------------------------------------------------------------------------------------------------------
// Rows row .. row + PAIR_ROWS of a head of k and v, or of q and do with their statistics.
template <int HEAD>
__device__ static inline void pair_copy(const Problem &x, Pair *to, float *statistics, bool queries, int head, int row,
                                        uint64_t *full) {
    constexpr int rows = PAIR_ROWS<HEAD>;
    const int sequence_heads = queries ? x.sequence_heads : x.sequence_heads / x.group;
    int column = head % sequence_heads * HEAD, sequence = head / sequence_heads;
    barrier_arrive_expect(full, (uint32_t)(sizeof(Pair) + (queries ? 2 * rows * sizeof(float) : 0)));
#pragma unroll
    for (int i = 0; i < HEAD / PANEL; i++) {
        copy_tile(to->first + i * rows * PANEL, queries ? &x.q : &x.k, column + i * PANEL, row, sequence, full);
        copy_tile(to->second + i * rows * PANEL, queries ? &x.d_o : &x.v, column + i * PANEL, row, sequence, full);
    }
    if (queries) {
        const float *from = x.statistics + ((int64_t)head * x.blocks * TILE + row) * 2;
        copy_bytes(statistics, from, 2 * rows * sizeof(float), full);
    }
}

// Rows row .. row + TILE of a head of k or v, as one tile.
template <int HEAD>
__device__ static inline void tile_copy(const Problem &x, Pair *to, const CUtensorMap *from, int head, int row,
                                        uint64_t *full) {
    const int sequence_heads = x.sequence_heads / x.group;
    int column = head % sequence_heads * HEAD, sequence = head / sequence_heads;
    barrier_arrive_expect(full, (uint32_t)sizeof(Pair));
#pragma unroll
    for (int i = 0; i < HEAD / PANEL; i++)
#pragma unroll
        for (int part = 0; part < TILE; part += PAIR_ROWS<HEAD>)
            copy_tile(to->first + (i * TILE + part) * PANEL, from, column + i * PANEL, row + part, sequence, full);
}

// Own pairs in two buffers, each for both warpgroups: a unit's own come while the one before it is computed.
template <int HEAD> __device__ static inline void copy_units_two_buffers(const Problem &x, Shared *shared) {
    Ring<2> own = {};
    Ring<STAGES> stage = {};
    int count = unit_count(x), index = unit_next(x);
    for (;; ring_next(own)) {
        barrier_wait(&shared->own_empty[own.index], own.phase ^ 1);
        shared->unit[own.index] = index < count ? index : -1;
        if (index >= count) {
            barrier_arrive(&shared->own_full[own.index]);
            return;
        }
        Unit unit = unit_get(x, index);
        pair_copy<HEAD>(x, &shared->own[own.index], shared->own_statistics[own.index], !unit.keys, unit.head,
                        unit.block * TILE, &shared->own_full[own.index]);
        index = unit_next(x);
        for (Streamed at = streamed_begin(x, unit); at.heads > 0; streamed_next(at, unit), ring_next(stage)) {
            barrier_wait(&shared->streamed_empty[stage.index], stage.phase ^ 1);
            pair_copy<HEAD>(x, &shared->streamed[stage.index], shared->streamed_statistics[stage.index], unit.keys,
                            at.head, streamed_row(at, unit), &shared->streamed_full[stage.index]);
        }
    }
}

// A warpgroup's own pair of a unit, or with index -1 that there is none, once its one buffer is free.
template <int HEAD>
__device__ static inline void own_copy(const Problem &x, Shared *shared, int side, uint32_t phase, int index) {
    barrier_wait(&shared->own_empty[side], phase ^ 1);
    shared->unit[side] = index;
    if (index < 0) {
        barrier_arrive(&shared->own_full[side]);
        return;
    }
    Unit unit = unit_get(x, index);
    pair_copy<HEAD>(x, &shared->own[side], shared->own_statistics[side], !unit.keys, unit.head,
                    unit.block * TILE + side * HALF, &shared->own_full[side]);
}

// Own pairs in one buffer for each warpgroup, free when its last scores of a unit are computed: what a unit streams
// first is on its way by then. That may be the first block, two slots, and no more: of the unit before, the block
// that used these slots is free before the own pairs are, while its last block's slots are free only after them.
// The warpgroup that sees less of the diagonal block of a unit is done with it first.
template <int HEAD> __device__ static inline void copy_units_one_buffer(const Problem &x, Shared *shared) {
    static_assert(STAGES == 4, "two blocks");
    uint32_t own_phase = 0;
    int first_side = 0;
    Ring<STAGES> stage = {};
    for (int count = unit_count(x), index = unit_next(x); index < count; index = unit_next(x), own_phase ^= 1) {
        Unit unit = unit_get(x, index);
        bool own_copied = false;
        for (Streamed at = streamed_begin(x, unit); at.heads > 0; streamed_next(at, unit)) {
#pragma unroll 1
            for (int slot = 0; slot < 2; slot++, ring_next(stage)) {
                uint64_t *full = &shared->streamed_full[stage.index];
                Pair *to = &shared->streamed[stage.index];
                barrier_wait(&shared->streamed_empty[stage.index], stage.phase ^ 1);
                if (unit.keys)
                    pair_copy<HEAD>(x, to, shared->streamed_statistics[stage.index], true, at.head,
                                    streamed_row(at, unit) + slot * HALF, full);
                else
                    tile_copy<HEAD>(x, to, slot ? &x.v : &x.k, at.head, streamed_row(at, unit), full);
            }
            if (own_copied) continue;
            own_copied = true;
#pragma unroll 1 // with two copies of it this thread spills registers
            for (int i = 0; i < 2; i++) own_copy<HEAD>(x, shared, first_side ^ i, own_phase, index);
        }
        first_side = unit.keys;
    }
    for (int side = 0; side < 2; side++) own_copy<HEAD>(x, shared, side, own_phase, -1);
}

template <int HEAD, bool APART>
__global__ static void __launch_bounds__(THREADS, 1) backward_kernel(const __grid_constant__ Problem x) {
    extern __shared__ unsigned char memory[];
    if constexpr (HOPPER_CODE) {
        Shared *shared = (Shared *)(memory + (1024 - shared_address(memory) % 1024) % 1024);
        if (threadIdx.x == 0) {
            for (int i = 0; i < 2; i++) {
                barrier_init(&shared->own_full[i], 1);
                barrier_init(&shared->own_empty[i], OWN_BUFFERS<HEAD> == 2 ? COMPUTING * 4 : 4);
            }
            for (int i = 0; i < STAGES; i++) {
                barrier_init(&shared->streamed_full[i], 1);
                barrier_init(&shared->streamed_empty[i], COMPUTING * 4);
            }
            barrier_init_fence();
        }
        __syncthreads();
        int warpgroup = warp_uniform((int)threadIdx.x / 128);
        if (warpgroup == COMPUTING) {
            registers_give<COPYING_REGISTERS>();
            if (threadIdx.x != COMPUTING * 128) return;
            if constexpr (OWN_BUFFERS<HEAD> == 2)
                copy_units_two_buffers<HEAD>(x, shared);
            else
                copy_units_one_buffer<HEAD>(x, shared);
        } else {
            registers_take<COMPUTING_REGISTERS>();
            compute_units<HEAD, APART>(x, shared, warpgroup);
        }
    } else {
        __trap();
    }
}

// --- host ---------------------------------------------------------------------------------------------------------
extern "C" int attention_backward_heads_together = 0;

// As attention_heads_together(), of the key/value heads of groups. Where units of keys are few, all: the longest of the last group could
// begin too late for the queries' units, 3/7 of the work, to fill the other multiprocessors until it ends.
static int kv_heads_together(const Problem &x, int sm_count) {
    const int kv_heads = x.heads / x.group;
    if (kv_heads * x.blocks < 3 * sm_count || x.heads_together >= x.heads) return kv_heads;
    return x.heads_together > x.group ? x.heads_together / x.group : 1;
}

template <int HEAD> static void launch(const CudaBackend *backend, const Rows &rows, const Problem &x, int B) {
    dim3 grid((unsigned)ceil_div((int64_t)rows.blocks * TILE * rows.heads, ROWS_PER_BLOCK<HEAD>), (unsigned)B);
    statistics_kernel<HEAD><<<grid, 256, 0, backend->stream>>>(rows);
    LAUNCH_CHECK("attention_backward, statistics");
    const auto kernel = x.positions ? backward_kernel<HEAD, true> : backward_kernel<HEAD, false>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED_BYTES),
               "giving attention's backward its shared memory");
    int units = (x.heads + x.heads / x.group) * x.blocks,
        blocks = units < backend->sm_count ? units : backend->sm_count;
    kernel<<<(unsigned)blocks, THREADS, SHARED_BYTES, backend->stream>>>(x);
    LAUNCH_CHECK("attention_backward");
}

extern "C" bool attention_backward_hopper(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse,
                                          Tensor q, Tensor k, Tensor v, Tensor positions, AttentionShape shape) {
    const CudaBackend *backend = cuda_backend(exec);
    const Tensor views[] = {dq, dk, dv, d_o, o, q, k, v};
    if (!attention_hopper_supported(shape, backend->capability)) return false;
    if (exec->workspace_bytes < attention_backward_bytes(shape)) return false;
    for (const Tensor &view : views)
        if (!view_fits(view)) return false;
    Problem x = {};
    const auto map = shape.head_dim == 64 ? tile_map<64> : tile_map<128>;
    if (!map(&x.q, q, shape, shape.heads) || !map(&x.d_o, d_o, shape, shape.heads)) return false;
    if (!map(&x.k, k, shape, shape.kv_heads) || !map(&x.v, v, shape, shape.kv_heads)) return false;
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
    x.heads = shape.B * shape.heads, x.sequence_heads = shape.heads, x.T = shape.T, x.blocks = rows.blocks;
    x.group = shape.heads / shape.kv_heads;
    x.scale = 1.0f / sqrtf((float)shape.head_dim);
    x.heads_together = attention_backward_heads_together;
    if (x.heads_together == 0) x.heads_together = attention_heads_together(shape);
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
