// Attention for sampling: computes a few new queries of a sequence whose earlier keys and values are in a KV cache. A
// block computes one query of one head. Each of the block's CACHED_WARPS warps processes every CACHED_WARPS-th group of
// CACHED_KEYS keys, with its own running maximum and sums. At the end, the warps' sums are combined in a fixed order.
#include "attention_rows.h"

namespace {

constexpr int CACHED_WARPS = 8, CACHED_THREADS = CACHED_WARPS * WARP;
constexpr int CACHED_KEYS = 4; // number of keys that a warp loads at a time
constexpr int MAX_CACHED_HEAD_DIM = 256;

template <typename T> struct Cached {
    Matrix<T> o;
    Matrix<const T> q, k, v; // k and v contain a row for every token so far, q only for the new ones
    float *lse;              // log-sum-exp of each query's scores, (heads, queries); NULL: not written
    int before, queries;     // `before`: number of cached tokens; `queries`: number of new queries
    int group, head_dim;     // group: number of query heads per key/value head
    float scale;             // factor that multiplies the attention scores: 1 / sqrt(head_dim)
};

// Computes attention with cached keys and values. N: number of values of a head in each lane's registers.
template <typename T, int N> __global__ __launch_bounds__(CACHED_THREADS) void attention_cached_kernel(Cached<T> a) {
    __shared__ float sums[CACHED_WARPS][N * WARP], largests[CACHED_WARPS], totals[CACHED_WARPS];
    const int head = (int)blockIdx.x, query = (int)blockIdx.y, lane = (int)threadIdx.x % WARP;
    const int warp = (int)threadIdx.x / WARP, keys = a.before + query + 1;
    const int64_t q_column = (int64_t)head * a.head_dim, kv_column = (int64_t)(head / a.group) * a.head_dim;
    float q[N], sum[N] = {}, largest = -INFINITY, total = 0.0f;
    row_load<N>(a.q.at(query, q_column), a.head_dim, q);
    for (int first = warp * CACHED_KEYS; first < keys; first += CACHED_WARPS * CACHED_KEYS) {
        float k[CACHED_KEYS][N], v[CACHED_KEYS][N], score[CACHED_KEYS], next = largest;
#pragma unroll
        for (int j = 0; j < CACHED_KEYS; j++) {
            const int key = min(first + j, keys - 1);
            row_load<N>(a.k.at(key, kv_column), a.head_dim, k[j]);
            row_load<N>(a.v.at(key, kv_column), a.head_dim, v[j]);
        }
#pragma unroll
        for (int j = 0; j < CACHED_KEYS; j++) {
            float dot = 0.0f;
#pragma unroll
            for (int i = 0; i < N; i++) dot = fmaf(q[i], k[j][i], dot);
            score[j] = first + j < keys ? warp_sum(dot) * a.scale : -INFINITY;
            next = fmaxf(next, score[j]);
        }
        const float keep = expf(largest - next);
        total *= keep;
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] *= keep;
#pragma unroll
        for (int j = 0; j < CACHED_KEYS; j++) {
            const float p = expf(score[j] - next);
            total += p;
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] = fmaf(p, v[j][i], sum[i]);
        }
        largest = next;
    }
#pragma unroll
    for (int i = 0; i < N; i++) sums[warp][lane + i * WARP] = sum[i];
    if (lane == 0) largests[warp] = largest, totals[warp] = total;
    __syncthreads();
    const int d = (int)threadIdx.x;
    if (d >= a.head_dim) return;
    for (float other : largests) largest = fmaxf(largest, other);
    float out = 0.0f;
    total = 0.0f;
#pragma unroll
    for (int w = 0; w < CACHED_WARPS; w++) {
        const float weight = expf(largests[w] - largest); // 0 for a warp that processed no keys
        out = fmaf(weight, sums[w][d], out);
        total = fmaf(weight, totals[w], total);
    }
    out /= total;
    store(a.o.at(query, q_column + d), packed<T, 1>(&out));
    if (a.lse && d == 0) a.lse[(int64_t)head * a.queries + query] = largest + logf(total);
}

template <typename T> void attention_cached_run(Exec *exec, const Cached<T> &a, dim3 grid) {
    const cudaStream_t stream = cuda_backend(exec)->stream;
    if (a.head_dim <= 2 * WARP)
        attention_cached_kernel<T, 2><<<grid, CACHED_THREADS, 0, stream>>>(a);
    else if (a.head_dim <= 4 * WARP)
        attention_cached_kernel<T, 4><<<grid, CACHED_THREADS, 0, stream>>>(a);
    else
        attention_cached_kernel<T, 8><<<grid, CACHED_THREADS, 0, stream>>>(a);
    LAUNCH_CHECK("attention_cached_kernel");
}

} // namespace

void attention_cached_forward(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, AttentionShape shape) {
    const char *operation = "attention_forward";
    if (shape.B != 1 || shape.head_dim > MAX_CACHED_HEAD_DIM)
        fatal(EXIT_DEVICE,
              "internal error: %s with a KV cache needs 1 sequence and heads up to %d wide (has %d sequences, %d wide)",
              operation, MAX_CACHED_HEAD_DIM, shape.B, shape.head_dim);
    require_format(operation, "k", k, q.format);
    require_format(operation, "v", v, q.format);
    require_format(operation, "o", o, q.format);
    for_layout(operation, q.format, false, [&]<typename T, int V>(Layout<T, V>) {
        Cached<T> a = {};
        a.o = matrix_of<T>(o);
        a.q = matrix_of<const T>(q);
        a.k = matrix_of<const T>(k);
        a.v = matrix_of<const T>(v);
        a.lse = (float *)lse.data;
        a.before = (int)(k.rows - q.rows);
        a.queries = shape.T;
        a.group = shape.heads / shape.kv_heads;
        a.head_dim = shape.head_dim;
        a.scale = 1.0f / sqrtf((float)shape.head_dim);
        attention_cached_run(exec, a, dim3((unsigned)shape.heads, (unsigned)shape.T));
    });
}
