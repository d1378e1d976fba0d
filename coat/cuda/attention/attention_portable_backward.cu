// Backward of attention in BF16 by mma.sync, for compute capability 8.0 and later.
//
// One kernel owns keys and computes dk and dv; another one owns queries and computes dq. A block owns rows of a pair of
// operands and streams tiles of the other pair. The pairs are q and do (the gradient of o), and k and v. The matmul of
// q and k computes scores; the matmul of do and v computes dp. p = exp(score - lse) and ds = p (dp - delta) stay in
// registers as operands of the matmuls that add to the sums: dk += ds^T q and dv += p^T do, or dq += ds k.
//
// Both kernels compute scores and dp, so the backward needs 7 matmuls instead of 5. In exchange, every sum is added up
// in one warp in a fixed order, without atomics or partial sums in memory. With grouped query heads, a block that owns
// keys iterates over all query heads that use these keys.
#include "attention_mma.h"

namespace {

// Sizes of a kernel whose blocks own keys or queries. M: number of 16-row matmuls that cover a warp's rows. OWNED: rows
// per block. STREAMED: rows per streamed tile, chosen so that scores and dp take 64 registers.
template <int HEAD, bool KEYS> struct Sizes {
    static constexpr int M = KEYS && HEAD > 64 ? 1 : 2, OWNED = WARPS * M * 16;
    static constexpr int STREAMED = 64 / M;
    static constexpr bool KEPT = !KEYS && HEAD == 64; // the owned rows stay in registers
};

// lse / ln 2 and delta (the sum of do * o over the head) of a query. p and ds are computed from them.
struct Statistic {
    float lse, delta;
};

struct Operand {
    Matrix<const bf16> first, second; // q and do, or k and v
    int heads;                        // number of heads per sequence
};

struct Problem {
    Operand owned, streamed;
    Matrix<bf16> d_first, d_second; // gradients of the owned operands: dk and dv, or only dq
    const Statistic *statistics;    // (B * query heads, T)
    const int32_t *positions;       // (B * T) token positions for document masking; NULL: no masking
    AttentionShape shape;
    int blocks, heads_together; // see work_of()
    float scale;                // factor that multiplies the attention scores: 1 / sqrt(head_dim)
};

template <int HEAD, bool KEYS> struct Shared {
    typedef Sizes<HEAD, KEYS> Size;
    bf16 owned[2][Size::OWNED * HEAD], streamed[2][2][Size::STREAMED * HEAD]; // first and second operand
    Statistic statistics[2][KEYS ? Size::STREAMED : 1];                       // statistics of streamed queries
    int edges[Size::OWNED];                                                   // edge_of() of each owned row
};

static_assert(sizeof(Shared<64, true>) <= PAIR_BYTES && sizeof(Shared<64, false>) <= PAIR_BYTES, "two blocks per SM");

template <bool KEYS> __device__ Work work_get(const Problem &x) {
    return work_of(x.blocks, x.owned.heads, x.shape.B * x.owned.heads, x.heads_together, KEYS);
}

// Position of a pair of streamed tiles. All tiles of a head are streamed before those of the next head.
struct Place {
    int head, tile;
};

// Starts copies of a pair of tiles to buffer `stage`. If the tiles are q and do, also copies the statistics of their
// queries.
template <int HEAD, bool KEYS>
__device__ void pair_copy(Shared<HEAD, KEYS> *shared, int stage, const Problem &x, int sequence, Place place) {
    constexpr int rows = Sizes<HEAD, KEYS>::STREAMED;
    const int T = x.shape.T, D = x.shape.head_dim, token = place.tile * rows;
    const int64_t row = (int64_t)sequence * T;
    const Matrix<const bf16> first = {x.streamed.first.at(row, place.head * D), x.streamed.first.stride};
    const Matrix<const bf16> second = {x.streamed.second.at(row, place.head * D), x.streamed.second.stride};
    tile_copy<HEAD, rows>(shared->streamed[stage][0], first, token, T, D);
    tile_copy<HEAD, rows>(shared->streamed[stage][1], second, token, T, D);
    if (const int i = (int)thread_get(); KEYS && i < rows) {
        const int64_t head = (int64_t)sequence * x.streamed.heads + place.head;
        copy_or_zero<sizeof(Statistic)>(&shared->statistics[stage][i], x.statistics + head * T + token + i,
                                        token + i < T);
    }
    copies_commit();
}

// Statistics of the queries to which a lane's scores belong. If the block owns queries, these are the lane's rows, and
// their statistics are in registers. Otherwise they are the columns, whose statistics are in shared memory.
template <int HEAD, bool KEYS> struct Statistics {
    Statistic rows[KEYS ? 1 : Sizes<HEAD, KEYS>::M][2];
    const Statistic *columns; // statistic of column 0

    __device__ Statistic get(int m, int half, int column) const {
        if constexpr (KEYS) return columns[column];
        return rows[m][half];
    }
};

// A warp's gradient sums. KEYS: `first` is dk and `second` is dv. Otherwise `first` is dq and `second` is unused.
template <int HEAD, bool KEYS> struct Sums {
    float first[Sizes<HEAD, KEYS>::M][HEAD / 8][4], second[KEYS ? Sizes<HEAD, KEYS>::M : 1][HEAD / 8][4];
};

// Replaces the scores s with the probabilities p, and dp with ds. scale: factor that converts scores to log2 units.
template <int HEAD, bool KEYS, int M, int N>
__device__ void differentiate(float (&s)[M][N / 8][4], float (&dp)[M][N / 8][4],
                              const Statistics<HEAD, KEYS> &statistics, float scale) {
    const int pair = (int)thread_get() % 4 * 2;
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const Statistic query = statistics.get(m, half, i * 8 + pair + j);
                    float &score = s[m][i][half * 2 + j], &d = dp[m][i][half * 2 + j];
                    score = fast_exp2(fmaf(score, scale, -query.lse));
                    d = score * (d - query.delta);
                }
}

// Adds the terms of the pair of tiles in buffer `stage` to the sums. token: first token of these tiles. own: first
// token of the block's rows. scale: factor that converts scores to log2 units.
template <int HEAD, bool KEYS, typename Owned>
__device__ void pair_add(Shared<HEAD, KEYS> *shared, int stage, const Owned (&owned)[2],
                         Statistics<HEAD, KEYS> &statistics, const Sequence &sequence, int own, int token,
                         Sums<HEAD, KEYS> &sums, float scale) {
    typedef Sizes<HEAD, KEYS> Size;
    constexpr int M = Size::M, N = Size::STREAMED;
    float s[M][N / 8][4], dp[M][N / 8][4];
    uint32_t weights[M][N / 16][4];
    multiply_rows<HEAD, M, Size::KEPT, N>(s, owned[0], shared->streamed[stage][0]);
    mask<KEYS, M, N>(s, sequence, shared->edges, own, token);
    multiply_rows<HEAD, M, Size::KEPT, N>(dp, owned[1], shared->streamed[stage][1]);
    statistics.columns = shared->statistics[stage];
    differentiate<HEAD, KEYS, M, N>(s, dp, statistics, scale);
    if constexpr (KEYS) {
        operand_pack<M, N>(weights, s);
        multiply_columns<HEAD, M, N>(sums.second, weights, shared->streamed[stage][1]);
    }
    operand_pack<M, N>(weights, dp);
    multiply_columns<HEAD, M, N>(sums.first, weights, shared->streamed[stage][0]);
}

// Multiplies a warp's sums by `by` and stores the results in the gradient `to`, through the warp's rows of `tile`
// (rows_store()).
template <int HEAD, int M>
__device__ void gradient_store(const Problem &x, const Work &work, Matrix<bf16> to, const float (&sum)[M][HEAD / 8][4],
                               float by, bf16 *tile) {
    float factor[M][2];
    for (auto &f : factor) f[0] = f[1] = by;
    const int T = x.shape.T, D = x.shape.head_dim;
    to.data = to.at((int64_t)work.sequence * T, work.head * D);
    rows_store<HEAD, M>(sum, factor, tile, to, work.block * WARPS * M * 16, T, D);
}

template <int HEAD, bool KEYS>
__global__ void __launch_bounds__(THREADS, 2) backward_kernel(const __grid_constant__ Problem x) {
    extern __shared__ __align__(128) unsigned char memory[];
    typedef Sizes<HEAD, KEYS> Size;
    constexpr int M = Size::M;
    Shared<HEAD, KEYS> *const shared = (Shared<HEAD, KEYS> *)memory;
    const AttentionShape &shape = x.shape;
    const int T = shape.T, D = shape.head_dim, group = shape.heads / shape.kv_heads;
    const Work work = work_get<KEYS>(x);
    const int64_t row = (int64_t)work.sequence * T;
    const Sequence sequence = {x.positions ? x.positions + row : nullptr, T, shape.bidirectional};
    const int own = work.block * Size::OWNED, last = own + Size::OWNED - 1;
    const int begin = range_of<KEYS>(sequence, own, edge_of<KEYS>(sequence, own)).begin / Size::STREAMED;
    const int end = (range_of<KEYS>(sequence, last, edge_of<KEYS>(sequence, last)).end - 1) / Size::STREAMED + 1;
    if (threadIdx.x < Size::OWNED) shared->edges[threadIdx.x] = edge_of<KEYS>(sequence, own + (int)threadIdx.x);

    Place place = {KEYS ? work.head * group : work.head / group, begin};
    int left = (end - begin) * (KEYS ? group : 1); // number of pairs of tiles that are not yet added; selects a buffer
    const Matrix<const bf16> first = {x.owned.first.at(row, work.head * D), x.owned.first.stride};
    const Matrix<const bf16> second = {x.owned.second.at(row, work.head * D), x.owned.second.stride};
    tile_copy<HEAD, Size::OWNED>(shared->owned[0], first, own, T, D);
    tile_copy<HEAD, Size::OWNED>(shared->owned[1], second, own, T, D);
    pair_copy(shared, left % 2, x, work.sequence, place);
    copies_wait<0>();
    __syncthreads();
    OwnRows<HEAD, M, Size::KEPT> owned[2];
    own_load(owned[0], shared->owned[0]);
    own_load(owned[1], shared->owned[1]);
    Statistics<HEAD, KEYS> statistics = {};
    if constexpr (!KEYS)
        for (int i = 0; i < 2 * M; i++) {
            const int t = own + own_row<M>() + i * 8 + (int)threadIdx.x % WARP / 4;
            const int64_t head = (int64_t)work.sequence * shape.heads + work.head;
            if (t < T) statistics.rows[i / 2][i % 2] = x.statistics[head * T + t];
        }
    Sums<HEAD, KEYS> sums = {};
    for (; left > 0; left--) {
        const int token = place.tile * Size::STREAMED;
        place.tile++;
        if (KEYS && place.tile == end) place = {place.head + 1, begin};
        copies_wait<0>();
        __syncthreads(); // this pair of tiles has arrived, and no warp still reads the other buffer
        if (left > 1) pair_copy(shared, (left - 1) % 2, x, work.sequence, place);
        if (sees<KEYS, M>(sequence, shared->edges, own, token, Size::STREAMED))
            pair_add(shared, left % 2, owned, statistics, sequence, own, token, sums, x.scale * LOG2_E);
    }
    gradient_store<HEAD, M>(x, work_get<KEYS>(x), x.d_first, sums.first, x.scale, shared->owned[0]);
    if constexpr (KEYS) gradient_store<HEAD, M>(x, work_get<KEYS>(x), x.d_second, sums.second, 1.0f, shared->owned[1]);
}

// Computes the statistics of every query. LANES lanes read a row of a head, 8 values each.
template <int LANES>
__global__ void statistics_kernel(Statistic *statistics, Matrix<const bf16> o, Matrix<const bf16> d_o, const float *lse,
                                  AttentionShape shape) {
    const int64_t index = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    const int64_t count = (int64_t)shape.B * shape.T * shape.heads, row = min(index, count - 1) / shape.heads;
    const int head = (int)(min(index, count - 1) % shape.heads), column = (int)threadIdx.x % LANES * CHUNK;
    float delta = 0.0f;
    if (column < shape.head_dim) {
        const Pack<bf16, CHUNK> a = load<CHUNK>(o.at(row, head * shape.head_dim + column));
        const Pack<bf16, CHUNK> b = load<CHUNK>(d_o.at(row, head * shape.head_dim + column));
#pragma unroll
        for (int i = 0; i < CHUNK; i++) delta = fmaf((float)a.value[i], (float)b.value[i], delta);
    }
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) delta += __shfl_xor_sync(ALL_LANES, delta, lanes);
    const int64_t to = (row / shape.T * shape.heads + head) * shape.T + row % shape.T;
    if (column == 0 && index < count) statistics[to] = {lse[to] * LOG2_E, delta};
}

// --- host code that launches the backward kernels -------------------------------------------------------------------
template <int HEAD, bool KEYS> void launch(const CudaBackend *backend, Problem x) {
    typedef Shared<HEAD, KEYS> Memory;
    static_assert(sizeof(Memory) <= MAX_SHARED_BYTES, "the tiles must fit in shared memory");
    const auto kernel = backward_kernel<HEAD, KEYS>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(Memory)),
               "setting the shared memory of attention's backward");
    x.blocks = (int)ceil_div(x.shape.T, Sizes<HEAD, KEYS>::OWNED);
    kernel<<<grid_of((int64_t)x.shape.B * x.owned.heads * x.blocks), THREADS, sizeof(Memory), backend->stream>>>(x);
    LAUNCH_CHECK("attention_portable_backward");
}

} // namespace

extern "C" void attention_portable_backward(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o,
                                            Tensor lse, Tensor q, Tensor k, Tensor v, Tensor positions,
                                            AttentionShape shape) {
    const CudaBackend *backend = cuda_backend(exec);
    const char *operation = "attention_backward";
    for (const Tensor &view : {dq, dk, dv, d_o, o, q, k, v}) require_view(operation, view, shape);
    if (exec->workspace_bytes < attention_portable_bytes(shape))
        fatal(EXIT_DEVICE, "internal error: %s needs %zu bytes of workspace, but %zu are planned", operation,
              attention_portable_bytes(shape), exec->workspace_bytes);
    Statistic *const statistics = (Statistic *)exec->workspace;
    constexpr int threads = 256;
    const int lanes = shape.head_dim <= 64 ? 8 : 16;
    const auto statistics_of = lanes == 8 ? statistics_kernel<8> : statistics_kernel<16>;
    statistics_of<<<grid_of(ceil_div((int64_t)shape.B * shape.T * shape.heads * lanes, threads)), threads, 0,
                    backend->stream>>>(statistics, matrix_of<const bf16>(o), matrix_of<const bf16>(d_o),
                                       (const float *)lse.data, shape);
    LAUNCH_CHECK("attention_portable_backward, statistics");

    const Operand queries = {matrix_of<const bf16>(q), matrix_of<const bf16>(d_o), shape.heads};
    const Operand keys = {matrix_of<const bf16>(k), matrix_of<const bf16>(v), shape.kv_heads};
    Problem x = {};
    x.statistics = statistics;
    x.positions = (const int32_t *)positions.data;
    x.shape = shape;
    x.heads_together = attention_heads_together(shape);
    x.scale = 1.0f / sqrtf((float)shape.head_dim);
    for_head(shape.head_dim, [&](auto head) {
        x.owned = keys, x.streamed = queries, x.d_first = matrix_of<bf16>(dk), x.d_second = matrix_of<bf16>(dv);
        launch<head, true>(backend, x);
        x.owned = queries, x.streamed = keys, x.d_first = matrix_of<bf16>(dq);
        launch<head, false>(backend, x);
    });
}
