// Forward of attention in BF16 by mma.sync, for compute capability 8.0 and later.
//
// A block owns 128 queries of a head, 32 per warp, and streams tiles of 64 keys and values. The tiles go from the last
// key that a query of the block sees back to the first such key. Two buffers alternate: one tile is multiplied while
// the next is copied. Every query sees a key of the first tile that its warp multiplies, so every running maximum is
// finite after that tile.
#include "attention_mma.h"

namespace {

constexpr int M = 2;                    // number of 16-row matmuls that cover a warp's queries
constexpr int QUERIES = WARPS * M * 16; // queries per block
constexpr int KEYS = 64;                // keys per streamed tile

struct Problem {
    Matrix<const bf16> q, k, v;
    Matrix<bf16> o;
    float *lse;               // log-sum-exp of each query's scores, (B * heads, T); NULL: not written
    const int32_t *positions; // (B * T) token positions for document masking; NULL: no masking
    AttentionShape shape;
    int blocks, heads_together; // see work_of()
    float scale;                // factor that multiplies the attention scores: 1 / sqrt(head_dim)
};

template <int HEAD> struct Shared {
    bf16 q[QUERIES * HEAD], k[2][KEYS * HEAD], v[2][KEYS * HEAD];
    int edges[QUERIES]; // edge_of() of each query
};
static_assert(sizeof(Shared<64>) <= PAIR_BYTES, "two blocks per SM");

// True if the queries stay in registers. Wider heads need these registers for Sums.o.
template <int HEAD> constexpr bool KEPT = HEAD == 64;

// Running softmax of a warp. o: weighted sum of the values so far. largest: for each row, the score whose weight is 1.
// It is at most EXCESS log2 units below the largest score so far. total: for each row, the sum of this lane's weights
// so far.
template <int HEAD> struct Sums { float o[M][HEAD / 8][4], largest[M][2], total[M][2]; };

// A softmax weight may become as large as 2^EXCESS before a row's sums are rescaled. With this tolerance, most tiles
// need no rescaling.
constexpr float EXCESS = 8.0f;

// Replaces the scores s of one tile with softmax weights. If a row's largest score in the tile exceeds Sums.largest by
// more than EXCESS log2 units, that score becomes Sums.largest. The row's sums are then rescaled. scale: factor that
// converts scores to log2 units.
template <int HEAD> __device__ void weigh(float (&s)[M][KEYS / 8][4], Sums<HEAD> &sums, float scale) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = -INFINITY, &largest = sums.largest[m][half];
#pragma unroll
            for (int i = 0; i < KEYS / 8; i++) most = fmaxf(most, fmaxf(s[m][i][half * 2], s[m][i][half * 2 + 1]));
            most = quad_max(most);
            const bool exceeds = most * scale > fmaf(largest, scale, EXCESS);
            if (!__any_sync(ALL_LANES, exceeds)) continue;
            const float keep = exceeds ? fast_exp2((largest - most) * scale) : 1.0f;
            if (exceeds) largest = most;
            sums.total[m][half] *= keep;
#pragma unroll
            for (int i = 0; i < HEAD / 4; i++) sums.o[m][i / 2][half * 2 + i % 2] *= keep;
        }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float offset = -sums.largest[m][half] * scale;
#pragma unroll
            for (int i = 0; i < KEYS / 4; i++) {
                float &x = s[m][i / 2][half * 2 + i % 2];
                x = fast_exp2(fmaf(x, scale, offset));
                sums.total[m][half] += x;
            }
        }
}

template <int HEAD>
__device__ void tiles_copy(Shared<HEAD> *shared, const Problem &x, Matrix<const bf16> k, Matrix<const bf16> v,
                           int tile) {
    tile_copy<HEAD, KEYS>(shared->k[tile % 2], k, tile * KEYS, x.shape.T, x.shape.head_dim);
    tile_copy<HEAD, KEYS>(shared->v[tile % 2], v, tile * KEYS, x.shape.T, x.shape.head_dim);
    copies_commit();
}

__device__ Work work_get(const Problem &x) {
    return work_of(x.blocks, x.shape.heads, x.shape.B * x.shape.heads, x.heads_together, false);
}

// Divides the sums by the total weight and stores o and lse of a warp's queries.
template <int HEAD> __device__ void sums_store(const Problem &x, Shared<HEAD> *shared, const Sums<HEAD> &sums) {
    const Work work = work_get(x);
    const int lane = (int)thread_get() % WARP, query = work.block * QUERIES, T = x.shape.T;
    float inverse[M][2];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float total = quad_sum(sums.total[m][half]);
            const int t = query + own_row<M>() + m * 16 + half * 8 + lane / 4;
            inverse[m][half] = 1.0f / total;
            if (x.lse && lane % 4 == 0 && t < T)
                x.lse[((int64_t)work.sequence * x.shape.heads + work.head) * T + t] =
                    sums.largest[m][half] * x.scale + logf(total);
        }
    const Matrix<bf16> o = {x.o.at((int64_t)work.sequence * T, work.head * x.shape.head_dim), x.o.stride};
    rows_store<HEAD, M>(sums.o, inverse, shared->q, o, query, T, x.shape.head_dim);
}

template <int HEAD> __global__ void __launch_bounds__(THREADS, 2) forward_kernel(const __grid_constant__ Problem x) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared<HEAD> *const shared = (Shared<HEAD> *)memory;
    const AttentionShape &shape = x.shape;
    const Work work = work_get(x);
    const int T = shape.T, query = work.block * QUERIES;
    const int64_t row = (int64_t)work.sequence * T;
    const Sequence sequence = {x.positions ? x.positions + row : nullptr, T, shape.bidirectional};
    const int kv_column = work.head / (shape.heads / shape.kv_heads) * shape.head_dim;
    const Matrix<const bf16> q = {x.q.at(row, work.head * shape.head_dim), x.q.stride};
    const Matrix<const bf16> k = {x.k.at(row, kv_column), x.k.stride}, v = {x.v.at(row, kv_column), x.v.stride};

    shared->edges[threadIdx.x] = edge_of<false>(sequence, query + (int)threadIdx.x);
    const int first = edge_of<false>(sequence, query) / KEYS, last = query + QUERIES - 1;
    int tile = (range_of<false>(sequence, last, 0).end - 1) / KEYS;
    tile_copy<HEAD, QUERIES>(shared->q, q, query, T, shape.head_dim);
    tiles_copy(shared, x, k, v, tile);
    copies_wait<0>();
    __syncthreads();
    OwnRows<HEAD, M, KEPT<HEAD>> queries;
    own_load(queries, shared->q);
    Sums<HEAD> sums = {};
    for (auto &largest : sums.largest) largest[0] = largest[1] = -INFINITY;
    for (; tile >= first; tile--) {
        copies_wait<0>();
        __syncthreads(); // this tile has arrived, and no warp still reads the other buffer
        if (tile > first) tiles_copy(shared, x, k, v, tile - 1);
        if (!sees<false, M>(sequence, shared->edges, query, tile * KEYS, KEYS)) continue;
        float s[M][KEYS / 8][4];
        uint32_t weights[M][KEYS / 16][4];
        multiply_rows<HEAD, M, KEPT<HEAD>, KEYS>(s, queries, shared->k[tile % 2]);
        mask<false, M, KEYS>(s, sequence, shared->edges, query, tile * KEYS);
        weigh(s, sums, x.scale * LOG2_E);
        operand_pack<M, KEYS>(weights, s);
        multiply_columns<HEAD, M, KEYS>(sums.o, weights, shared->v[tile % 2]);
    }
    sums_store(x, shared, sums);
}

// --- host code that launches the forward kernel ---------------------------------------------------------------------
template <int HEAD> void launch(const CudaBackend *backend, const Problem &x) {
    static_assert(sizeof(Shared<HEAD>) <= MAX_SHARED_BYTES, "the tiles must fit in shared memory");
    CUDA_CHECK(cudaFuncSetAttribute(forward_kernel<HEAD>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)sizeof(Shared<HEAD>)),
               "setting the shared memory of attention's forward");
    forward_kernel<HEAD>
        <<<grid_of((int64_t)x.shape.B * x.shape.heads * x.blocks), THREADS, sizeof(Shared<HEAD>), backend->stream>>>(x);
    LAUNCH_CHECK("attention_portable_forward");
}

} // namespace

extern "C" void attention_portable_forward(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                                           Tensor positions, AttentionShape shape) {
    for (const Tensor &view : {o, q, k, v}) require_view("attention_forward", view, shape);
    Problem x = {};
    x.q = matrix_of<const bf16>(q), x.k = matrix_of<const bf16>(k), x.v = matrix_of<const bf16>(v);
    x.o = matrix_of<bf16>(o);
    x.lse = (float *)lse.data;
    x.positions = (const int32_t *)positions.data;
    x.shape = shape;
    x.blocks = (int)ceil_div(shape.T, QUERIES), x.heads_together = attention_heads_together(shape);
    x.scale = 1.0f / sqrtf((float)shape.head_dim);
    for_head(shape.head_dim, [&](auto head) { launch<head>(cuda_backend(exec), x); });
}
