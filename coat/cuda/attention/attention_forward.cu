// The forward of causal attention on Hopper, BF16, heads 64 or 128 wide, with documents of a sequence apart or joined.
//
// A unit of work is 128 queries of a head and the tiles of 128 keys and values that they see, the diagonal one first,
// back to the first query's document. Every query sees its own key, so its running maximum is finite from the first
// tile on. A multiprocessor has a block, which claims unit after unit by a counter: two warpgroups that compute, 64
// queries each, and two threads that have the copy engine bring queries and tiles, ahead of them into the next unit.
// The sum over values of a tile runs in the tensor cores beside the exponentials of the next.
#include "attention_copying.h"
#include "attention_maps.h"
#include "cuda/common/cuda_kernels.h"

namespace {

struct Problem {
    CUtensorMap q, k, v; // (B, T, heads * HEAD), read in tiles of (1, HALF, PANEL); k and v (1, TILE, PANEL)
    unsigned *next_unit;
    const int32_t *positions; // (B * T), of documents that are apart; NULL: none are
    bf16 *o;
    float *lse; // (B * heads, T); may be NULL
    int64_t o_stride;
    int heads, group, T;                   // of a sequence; query heads that read one key/value head
    int all_heads, blocks, heads_together; // of all sequences; units of a head; heads whose units follow each other
    float scale;                           // of the scores
};

template <int HEAD> constexpr int QUERIES = HEAD == 64 ? 2 : 1; // units whose queries have room
template <int HEAD> constexpr int STAGES = HEAD == 64 ? 4 : 3;

// A unit, and how many tiles it has; 0: no unit.
struct Work {
    int block, head, sequence, tiles;
};

template <int HEAD> struct Shared {
    bf16 q[QUERIES<HEAD>][TILE * HEAD], k[STAGES<HEAD>][TILE * HEAD], v[STAGES<HEAD>][TILE * HEAD];
    Work work[QUERIES<HEAD>]; // of the queries
    Handover<Work> next;      // whose keys and values are to stream by
    uint64_t q_full[QUERIES<HEAD>], q_empty[QUERIES<HEAD>];
    uint64_t k_full[STAGES<HEAD>], v_full[STAGES<HEAD>], empty[STAGES<HEAD>];
};
template <int HEAD> constexpr size_t SHARED_BYTES = sizeof(Shared<HEAD>) + 1024;
template <int HEAD> constexpr uint32_t TILE_BYTES = TILE *HEAD * sizeof(bf16);

// Of documents that are apart.
[[maybe_unused]] __device__ const int32_t *positions_of(const Problem &x, const Work &work) {
    return x.positions + (int64_t)work.sequence * x.T;
}

// Longest first, of a few heads at a time, whose keys and values the L2 cache holds.
[[maybe_unused]] __device__ Work work_get(const Problem &x, int index) {
    const Divided group = divide(index, x.heads_together * x.blocks);
    const int first = group.share * x.heads_together;
    const Divided rank = divide(group.rest, min(x.heads_together, x.all_heads - first));
    const Divided head = divide(first + rank.rest, x.heads);
    Work work;
    work.block = x.blocks - 1 - rank.share;
    work.head = head.rest;
    work.sequence = head.share;
    work.tiles = work.block + 1;
    if (x.positions) work.tiles -= document_begin(positions_of(x, work), work.block * TILE) / TILE;
    return work;
}

[[maybe_unused]] __device__ int work_count(const Problem &x) {
    return x.all_heads * x.blocks;
}

// --- copying ------------------------------------------------------------------------------------------------------
// A warpgroup's queries lie side by side: HALF rows of all panels.
template <int HEAD> __device__ void queries_copy(const Problem &x, bf16 *to, const Work &work, uint64_t *full) {
    barrier_arrive_expect(full, TILE_BYTES<HEAD>);
#pragma unroll
    for (int part = 0; part < TILE; part += HALF)
#pragma unroll
        for (int i = 0; i < HEAD / PANEL; i++)
            copy_tile(to + part * HEAD + i * HALF * PANEL, &x.q, work.head * HEAD + i * PANEL, work.block * TILE + part,
                      work.sequence, full);
}

template <int HEAD>
__device__ void tile_copy(bf16 *to, const CUtensorMap *from, int head, int row, int sequence, uint64_t *full) {
    barrier_arrive_expect(full, TILE_BYTES<HEAD>);
#pragma unroll
    for (int i = 0; i < HEAD / PANEL; i++)
        copy_tile(to + i * TILE * PANEL, from, head * HEAD + i * PANEL, row, sequence, full);
}

// Units and their queries. Behind the last comes one without tiles.
template <int HEAD> __device__ void copy_own(const Problem &x, Shared<HEAD> *shared) {
    const int count = work_count(x);
    Ring<QUERIES<HEAD>> own = {};
    for (int units = 0;; units++, ring_next(own)) {
        const int index = unit_claim(shared->next, units, x.next_unit);
        Work work = {};
        if (index < count) work = work_get(x, index);
        hand_on(shared->next, work);
        barrier_wait(&shared->q_empty[own.index], own.phase ^ 1);
        shared->work[own.index] = work;
        if (work.tiles > 0) {
            queries_copy<HEAD>(x, shared->q[own.index], work, &shared->q_full[own.index]);
        } else {
            barrier_arrive(&shared->q_full[own.index]);
            return;
        }
    }
}

// What streams by.
template <int HEAD> __device__ void copy_streams(const Problem &x, Shared<HEAD> *shared) {
    Ring<STAGES<HEAD>> stage = {};
    for (int units = 0;; units++) {
        const Work work = take_over(shared->next, units);
        if (work.tiles == 0) return;
        const int kv_head = divide(work.head, x.group).share;
        if (work.tiles <= ASKING) ask_next(shared->next);
#pragma unroll 1
        for (int j = 0; j < work.tiles; j++, ring_next(stage)) {
            if (work.tiles - j == ASKING + 1) ask_next(shared->next);
            const int row = (work.block - j) * TILE, i = stage.index;
            barrier_wait(&shared->empty[i], stage.phase ^ 1);
            tile_copy<HEAD>(shared->k[i], &x.k, kv_head, row, work.sequence, &shared->k_full[i]);
            tile_copy<HEAD>(shared->v[i], &x.v, kv_head, row, work.sequence, &shared->v_full[i]);
        }
    }
}

// --- computing ----------------------------------------------------------------------------------------------------
// Of a warpgroup's queries, two rows per thread: the sum of values so far, its weights' largest exponent and sum, and
// the weights of the last tile, which are not in the sum yet.
template <int HEAD> struct Sums {
    float o[HALF * HEAD / 128], largest[2], total[2];
    uint32_t p[TILE / 4];
};

// The largest, or the sum, of what a row's four threads have.
[[maybe_unused]] __device__ float quad_maximum(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

[[maybe_unused]] __device__ float quad_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// Adds the values of a tile, which are there.
template <int HEAD> __device__ void add_values(Shared<HEAD> *shared, Sums<HEAD> &sums, Ring<STAGES<HEAD>> stage) {
    const uint64_t values = wgmma_operand(shared->v[stage.index], PANEL_BYTES<TILE>);
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) wgmma_columns(sums.o, sums.p + 4 * k, values + k * WGMMA_NEXT_ROWS);
    wgmma_commit();
}

// s becomes the weights of the tile, which largest and total count; keep: what earlier sums are times.
template <int COUNT>
__device__ void weigh(float (&s)[COUNT], float (&largest)[2], float (&total)[2], float (&keep)[2], float scale) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float most = largest[row], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) most = fmaxf(most, fmaxf(s[i + 2 * row], s[i + 2 * row + 1]));
        most = quad_maximum(most);
        keep[row] = fast_exp2((largest[row] - most) * scale);
        largest[row] = most;
#pragma unroll
        for (int i = 0; i < COUNT; i += 4)
#pragma unroll
            for (int j = 2 * row; j < 2 * row + 2; j++) {
                s[i + j] = fast_exp2(fmaf(s[i + j], scale, -most * scale));
                sum += s[i + j];
            }
        total[row] = total[row] * keep[row] + sum;
    }
}

// The first COLUMNS keys of a tile up to their weights, the others' being 0; with PREVIOUS the values of the
// one before are added meanwhile.
template <int HEAD, int COLUMNS, bool PREVIOUS>
__device__ void keys_tile(Shared<HEAD> *shared, const Place &place, Sums<HEAD> &sums, Ring<STAGES<HEAD>> stage,
                          Ring<STAGES<HEAD>> previous, bool masked, const Documents &documents, float scale) {
    float s[COLUMNS / 2], keep[2];
    barrier_wait(&shared->k_full[stage.index], stage.phase);
    if constexpr (PREVIOUS) {
        barrier_wait(&shared->v_full[previous.index], previous.phase);
        wgmma_hold(sums.o);
        wgmma_hold(sums.p);
    }
    wgmma_fence();
    multiply_rows<HEAD, TILE, COLUMNS>(s, place.own[0], wgmma_operand(shared->k[stage.index]));
    if constexpr (PREVIOUS) {
        add_values<HEAD>(shared, sums, previous);
        wgmma_wait<1>();
    } else {
        wgmma_wait<0>();
    }
    wgmma_hold(s);
    if constexpr (!PREVIOUS) mask<false, COLUMNS>(s, place, 0);
    if (masked) mask_documents<false, COLUMNS>(s, place, documents);
    weigh(s, sums.largest, sums.total, keep, scale);
    if constexpr (PREVIOUS) {
        // Complete already: keeps the exponentials ahead of the next wait, as in the backward.
        barrier_wait(&shared->k_full[stage.index], stage.phase);
        wgmma_wait<0>();
        wgmma_hold(sums.o);
        wgmma_hold(sums.p);
        release(place, &shared->empty[previous.index]);
#pragma unroll
        for (int i = 0; i < HALF * HEAD / 128; i++) sums.o[i] *= keep[i / 2 % 2];
    }
#pragma unroll
    for (int i = 0; i < TILE / 2; i += 2) sums.p[i / 2] = i < COLUMNS / 2 ? bf16_pair(s[i], s[i + 1]) : 0;
}

// The sums divided by their weights' and stored, with the logarithms of these.
template <int HEAD>
__device__ void sums_store(const Problem &x, const Work &work, const Place &place, Sums<HEAD> &sums, bf16 *stored) {
    const int t = work.block * TILE + place.half * HALF;
    float share[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float total = quad_sum(sums.total[row]);
        const int query = work.block * TILE + place.row + 8 * row;
        share[row] = 1.0f / total;
        if (x.lse && place.pair == 0 && query < x.T)
            x.lse[((int64_t)work.sequence * x.heads + work.head) * x.T + query] =
                sums.largest[row] * x.scale + logf(total);
    }
#pragma unroll
    for (int i = 0; i < HALF * HEAD / 128; i++) sums.o[i] *= share[i / 2 % 2];
    bf16 *const to = x.o + ((int64_t)work.sequence * x.T + t) * x.o_stride + work.head * HEAD;
    sum_store(sums.o, 1.0f, to, x.o_stride, x.T - t, stored, 0);
}

template <int HEAD>
__device__ void compute_unit(const Problem &x, Shared<HEAD> *shared, Place &place, const Work &work, int own,
                             Ring<STAGES<HEAD>> &stage) {
    const float scale = x.scale * LOG2_E;
    const bool masked = x.positions != nullptr;
    place.own[0] = wgmma_operand(shared->q[own] + place.half * HALF * HEAD);
    Documents documents = {};
    if (masked) documents = documents_of(positions_of(x, work), x.T, place, work.block * TILE);
    Ring<STAGES<HEAD>> previous = stage;
    Sums<HEAD> sums = {};
    sums.largest[0] = sums.largest[1] = -INFINITY;
    if (place.half == 0) // whose queries see no more of the diagonal tile
        keys_tile<HEAD, HALF, false>(shared, place, sums, stage, previous, masked, documents, scale);
    else
        keys_tile<HEAD, TILE, false>(shared, place, sums, stage, previous, masked, documents, scale);
    for (int tile = 1; tile < work.tiles; tile++) {
        previous = stage;
        ring_next(stage);
        documents.streamed -= TILE;
        keys_tile<HEAD, TILE, true>(shared, place, sums, stage, previous, masked, documents, scale);
    }
    barrier_wait(&shared->v_full[stage.index], stage.phase);
    wgmma_hold(sums.o);
    wgmma_hold(sums.p);
    wgmma_fence();
    add_values<HEAD>(shared, sums, stage);
    wgmma_wait<0>();
    wgmma_hold(sums.o);
    release(place, &shared->empty[stage.index]);
    ring_next(stage);
    // The warp's queries have been read: the sums go through their place.
    bf16 *const queries = shared->q[own] + place.half * HALF * HEAD;
    sums_store<HEAD>(x, work, place, sums, queries + thread_get() / 32 % 4 * STORED);
    copies_fence();
    release(place, &shared->q_empty[own]);
}

template <int HEAD> __device__ void compute_units(const Problem &x, Shared<HEAD> *shared, int warpgroup) {
    Place place = place_get(warpgroup);
    Ring<STAGES<HEAD>> stage = {};
    for (Ring<QUERIES<HEAD>> own = {};; ring_next(own)) {
        barrier_wait(&shared->q_full[own.index], own.phase);
        Work work = shared->work[own.index];
        work.tiles = warp_uniform(work.tiles);
        if (work.tiles == 0) return;
        compute_unit<HEAD>(x, shared, place, work, own.index, stage);
    }
}

template <int HEAD> __global__ void __launch_bounds__(THREADS, 1) forward_kernel(const __grid_constant__ Problem x) {
    extern __shared__ unsigned char memory[];
    if constexpr (HOPPER_CODE) {
        Shared<HEAD> *const shared = (Shared<HEAD> *)(memory + (1024 - shared_address(memory) % 1024) % 1024);
        if (threadIdx.x == 0) {
            for (int i = 0; i < QUERIES<HEAD>; i++) {
                barrier_init(&shared->q_full[i], 1);
                barrier_init(&shared->q_empty[i], COMPUTING * WARPGROUP_SIGNALS);
            }
            for (int i = 0; i < STAGES<HEAD>; i++) {
                barrier_init(&shared->k_full[i], 1);
                barrier_init(&shared->v_full[i], 1);
                barrier_init(&shared->empty[i], COMPUTING * WARPGROUP_SIGNALS);
            }
            handover_init(shared->next);
            barrier_init_fence();
        }
        __syncthreads();
        const int warpgroup = warp_uniform((int)threadIdx.x / 128);
        if (warpgroup == COMPUTING) {
            registers_give<COPYING_REGISTERS>();
            if (threadIdx.x == COPYING_THREAD)
                copy_own<HEAD>(x, shared);
            else if (threadIdx.x == STREAMING_THREAD)
                copy_streams<HEAD>(x, shared);
        } else {
            registers_take<COMPUTING_REGISTERS>();
            compute_units<HEAD>(x, shared, warpgroup);
        }
    } else {
        __trap();
    }
}

template <int HEAD> void launch(const CudaBackend *backend, const Problem &x) {
    const int units = x.all_heads * x.blocks;
    CUDA_CHECK(cudaMemsetAsync(x.next_unit, 0, sizeof *x.next_unit, backend->stream), "clearing a counter of units");
    CUDA_CHECK(cudaFuncSetAttribute(forward_kernel<HEAD>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)SHARED_BYTES<HEAD>),
               "giving attention's forward its shared memory");
    forward_kernel<HEAD><<<grid_of(units < backend->sm_count ? units : backend->sm_count), THREADS, SHARED_BYTES<HEAD>,
                           backend->stream>>>(x);
    LAUNCH_CHECK("attention_forward");
}

} // namespace

extern "C" bool attention_forward_hopper(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                                         Tensor positions, AttentionShape shape) {
    const CudaBackend *backend = cuda_backend(exec);
    if (!attention_hopper_supported(shape, backend->capability)) return false;
    if (exec->workspace_bytes < sizeof(unsigned)) return false;
    for (const Tensor &view : {o, q, k, v})
        if (!view_fits(view)) return false;
    Problem x = {};
    const auto map = shape.head_dim == 64 ? tile_map<64> : tile_map<128>;
    if (!map(&x.q, q, shape, shape.heads, HALF) || !map(&x.k, k, shape, shape.kv_heads, TILE) ||
        !map(&x.v, v, shape, shape.kv_heads, TILE))
        return false;
    x.next_unit = (unsigned *)exec->workspace;
    x.positions = (const int32_t *)positions.data;
    x.o = (bf16 *)o.data, x.o_stride = o.stride;
    x.lse = (float *)lse.data;
    x.heads = shape.heads, x.group = shape.heads / shape.kv_heads, x.T = shape.T;
    x.scale = 1.0f / sqrtf((float)shape.head_dim);
    x.all_heads = shape.B * shape.heads, x.blocks = (int)attention_blocks(shape);
    x.heads_together = attention_heads_together(shape);
    (shape.head_dim == 64 ? launch<64> : launch<128>)(backend, x);
    return true;
}
