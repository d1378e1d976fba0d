// Forward of causal attention on Hopper: BF16, heads 64 or 128 wide, with or without document masking.
//
// A unit of work is 128 queries of a head with all tiles of 128 keys and values that these queries see. The unit
// streams the tiles from the diagonal back to the start of the first query's document. Every query sees its own key, so
// every running maximum is finite after the first tile. Each SM runs one block, which claims units from a counter. A
// block has two computing warpgroups, of 64 queries each, and two threads that start TMA copies in advance. While the
// tensor cores multiply one tile's softmax weights by the tile's values, the warpgroup computes the exponentials of the
// next tile.
#include "attention_copying.h"
#include "attention_maps.h"
#include "cuda/common/cuda_kernels.h"

namespace {

struct Problem {
    // TMA maps of (B, T, heads * HEAD) tensors, in boxes of (1, HALF, PANEL) for q, (1, TILE, PANEL) for k and v
    CUtensorMap q, k, v;
    unsigned *next_unit;      // units of work claimed so far, except each block's first unit
    const int32_t *positions; // (B * T) token positions for document masking; NULL: no masking
    bf16 *o;
    float *lse; // log-sum-exp of each query's scores, (B * heads, T); NULL: not written
    int64_t o_stride;
    // heads: number of query heads of a sequence. group: number of query heads per key/value head. T: number of tokens
    // of a sequence.
    int heads, group, T;
    // all_heads: number of query heads of all sequences. blocks: number of units of work per head. heads_together:
    // number of heads in a set. All units of a set are claimed before those of the next set, so that the set's keys and
    // values stay in the L2 cache.
    int all_heads, blocks, heads_together;
    float scale; // factor that multiplies the attention scores
};

// number of shared-memory buffers for the queries of a unit of work
template <int HEAD> constexpr int QUERIES = HEAD == 64 ? 2 : 1;
template <int HEAD> constexpr int STAGES = HEAD == 64 ? 4 : 3;

// A unit of work: 128 queries of one head and `tiles` tiles of keys. tiles = 0 tells the receiving thread that there
// are no more units.
struct Work {
    int block, head, sequence, tiles;
};

template <int HEAD> struct Shared {
    bf16 q[QUERIES<HEAD>][TILE * HEAD], k[STAGES<HEAD>][TILE * HEAD], v[STAGES<HEAD>][TILE * HEAD];
    Work work[QUERIES<HEAD>]; // unit of work whose queries each buffer contains
    Handover<Work> next;      // passes units of work to the streaming thread
    uint64_t q_full[QUERIES<HEAD>], q_empty[QUERIES<HEAD>];
    uint64_t k_full[STAGES<HEAD>], v_full[STAGES<HEAD>], empty[STAGES<HEAD>];
};
// bytes of dynamic shared memory; 1024 more than Shared, because the kernel skips up to 1023 bytes to align Shared to
// 1024
template <int HEAD> constexpr size_t SHARED_BYTES = sizeof(Shared<HEAD>) + 1024;
template <int HEAD> constexpr uint32_t TILE_BYTES = TILE *HEAD * sizeof(bf16);

// Returns the token positions of a unit's sequence, for document masking.
[[maybe_unused]] __device__ const int32_t *positions_of(const Problem &x, const Work &work) {
    return x.positions + (int64_t)work.sequence * x.T;
}

// Returns the unit of work with this index. Within each set of heads_together heads, whose keys and values fit in the
// L2 cache, the longest units come first.
[[maybe_unused]] __device__ Work work_get(const Problem &x, int index) {
    const Divided group = divide(index, x.heads_together * x.blocks);
    const int first = group.quotient * x.heads_together;
    const Divided rank = divide(group.remainder, min(x.heads_together, x.all_heads - first));
    const Divided head = divide(first + rank.remainder, x.heads);
    Work work;
    work.block = x.blocks - 1 - rank.quotient;
    work.head = head.remainder;
    work.sequence = head.quotient;
    work.tiles = work.block + 1;
    if (x.positions) work.tiles -= document_begin(positions_of(x, work), work.block * TILE) / TILE;
    return work;
}

[[maybe_unused]] __device__ int work_count(const Problem &x) {
    return x.all_heads * x.blocks;
}

// --- copies of attention's forward from global to shared memory ------------------------------------------------------
// Copies the queries of a unit of work to shared memory. Each warpgroup's HALF rows become a tile of their own.
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

// Loop of the thread that loads queries: claims units of work and copies their queries to shared memory. After the last
// unit, passes a unit with tiles = 0, which ends the loops of the streaming thread and of both warpgroups.
template <int HEAD> __device__ void copy_own(const Problem &x, Shared<HEAD> *shared) {
    const int count = work_count(x);
    Ring<QUERIES<HEAD>> own = {};
    for (int units = 0;; units++, ring_next(own)) {
        const int index = unit_claim(shared->next, units, x.next_unit);
        Work work = {};
        if (index < count) work = work_get(x, index);
        unit_pass(shared->next, work);
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

// Loop of the thread that streams keys and values: copies all tiles of each unit of work to shared memory.
template <int HEAD> __device__ void copy_streams(const Problem &x, Shared<HEAD> *shared) {
    Ring<STAGES<HEAD>> stage = {};
    for (int units = 0;; units++) {
        const Work work = unit_receive(shared->next, units);
        if (work.tiles == 0) return;
        const int kv_head = divide(work.head, x.group).quotient;
        if (work.tiles <= REQUEST_AT) unit_request(shared->next);
#pragma unroll 1
        for (int j = 0; j < work.tiles; j++, ring_next(stage)) {
            if (work.tiles - j == REQUEST_AT + 1) unit_request(shared->next);
            const int row = (work.block - j) * TILE, i = stage.index;
            barrier_wait(&shared->empty[i], stage.phase ^ 1);
            tile_copy<HEAD>(shared->k[i], &x.k, kv_head, row, work.sequence, &shared->k_full[i]);
            tile_copy<HEAD>(shared->v[i], &x.v, kv_head, row, work.sequence, &shared->v_full[i]);
        }
    }
}

// --- softmax and matmuls of attention's forward -------------------------------------------------------------------
// Running softmax of a warpgroup, for two rows per thread. o: weighted sum of the values so far. largest: largest score
// of each row so far. total: sum, for each row, of this thread's weights so far. p: weights of the latest tile, whose
// values are not yet added to o.
template <int HEAD> struct Sums {
    float o[HALF * HEAD / 128], largest[2], total[2];
    uint32_t p[TILE / 4];
};

// Starts the matmul o += p * values for a tile whose values have arrived in shared memory.
template <int HEAD> __device__ void add_values(Shared<HEAD> *shared, Sums<HEAD> &sums, Ring<STAGES<HEAD>> stage) {
    const uint64_t values = wgmma_operand(shared->v[stage.index], PANEL_BYTES<TILE>);
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) wgmma_columns(sums.o, sums.p + 4 * k, values + k * WGMMA_NEXT_ROWS);
    wgmma_commit();
}

// Replaces the scores s with softmax weights and updates the running maximum and sum. Sets `keep` to the factor by
// which the caller must multiply the weighted sums of earlier tiles (Sums.o).
template <int COUNT>
__device__ void weigh(float (&s)[COUNT], float (&largest)[2], float (&total)[2], float (&keep)[2], float scale) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float most = largest[row], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) most = fmaxf(most, fmaxf(s[i + 2 * row], s[i + 2 * row + 1]));
        most = quad_max(most);
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

// Computes the softmax weights of the first COLUMNS keys of a tile and sets the other keys' weights to 0. With
// PREVIOUS, the matmul that adds the previous tile's values to o runs at the same time. Without PREVIOUS, the tile is
// the first one, on the diagonal, and the causal mask is applied. masked: true with document masking.
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
        // This barrier is already complete. Waiting for it again keeps the compiler from moving the exponentials
        // further down.
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

// Divides the output o by the sum of the softmax weights and stores o and lse.
template <int HEAD>
__device__ void sums_store(const Problem &x, const Work &work, const Place &place, Sums<HEAD> &sums, bf16 *stored) {
    const int t = work.block * TILE + place.half * HALF;
    float inverse[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float total = quad_sum(sums.total[row]);
        const int query = work.block * TILE + place.row + 8 * row;
        inverse[row] = 1.0f / total;
        if (x.lse && place.pair == 0 && query < x.T)
            x.lse[((int64_t)work.sequence * x.heads + work.head) * x.T + query] =
                sums.largest[row] * x.scale + logf(total);
    }
#pragma unroll
    for (int i = 0; i < HALF * HEAD / 128; i++) sums.o[i] *= inverse[i / 2 % 2];
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
    if (place.half == 0) // in the diagonal tile, the first 64 queries see only the first 64 keys
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
    // Stages the result in the shared memory of this warp's queries, which are no longer needed.
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
            registers_release<COPYING_REGISTERS>();
            if (threadIdx.x == COPYING_THREAD)
                copy_own<HEAD>(x, shared);
            else if (threadIdx.x == STREAMING_THREAD)
                copy_streams<HEAD>(x, shared);
        } else {
            registers_acquire<COMPUTING_REGISTERS>();
            compute_units<HEAD>(x, shared, warpgroup);
        }
    } else {
        __trap();
    }
}

template <int HEAD> void launch(const CudaBackend *backend, const Problem &x) {
    const int units = x.all_heads * x.blocks;
    CUDA_CHECK(cudaMemsetAsync(x.next_unit, 0, sizeof *x.next_unit, backend->stream),
               "clearing attention's counter of units");
    CUDA_CHECK(cudaFuncSetAttribute(forward_kernel<HEAD>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)SHARED_BYTES<HEAD>),
               "setting the shared memory of attention's forward");
    forward_kernel<HEAD><<<grid_of(units < backend->sm_count ? units : backend->sm_count), THREADS, SHARED_BYTES<HEAD>,
                           backend->stream>>>(x);
    LAUNCH_CHECK("attention_forward");
}

} // namespace

extern "C" bool attention_forward_hopper(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                                         Tensor positions, AttentionShape shape) {
    const CudaBackend *backend = cuda_backend(exec);
    if (!attention_hopper_supported(shape, backend->hopper)) return false;
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
