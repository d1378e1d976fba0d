// Slow attention in FP32 without tensor cores, for --precision fp32 and as a reference in dev/bench. Each warp computes
// one row of o, dq, or dk and dv. It reads the tokens that the row depends on one after the other, so sums have a fixed
// order.
#include "attention_rows.h"

namespace {

constexpr int WARPS_PER_BLOCK = 4;
constexpr int LANE_VALUES = 8; // number of values of a head in each lane's registers
constexpr int MAX_HEAD_DIM = WARP * LANE_VALUES;

// Operands of attention: element (b, t, head, d) is in row b * T + t and column head * head_dim + d.
struct Operands {
    Matrix<float> q, k, v, o, d_o, dq, dk, dv;
    float *lse;               // log-sum-exp of each query's scores, (B * heads, T); may be NULL in forward
    const int32_t *positions; // (B * T) token positions for document masking; NULL: no masking
    AttentionShape shape;
    float scale; // factor that multiplies the attention scores: 1 / sqrt(head_dim)
};

// Returns the first token that token t of a sequence sees: the first token of t's document with document masking,
// otherwise 0. first: row index of the sequence's first token.
__device__ int document_begin(const Operands &x, int64_t first, int t) {
    return x.positions ? max(t - x.positions[first + t], 0) : 0;
}

// Returns the index after the last token that token t can see: t + 1 if attention is causal, otherwise T.
__device__ int visible_end(AttentionShape shape, int t) {
    return shape.bidirectional ? shape.T : t + 1;
}

// One row of a head, distributed over the lanes of a warp by row_load().
struct Row {
    float value[LANE_VALUES];
};

__device__ float *row_address(const Operands &x, Matrix<float> view, int64_t token, int head) {
    return view.data + token * view.stride + (int64_t)head * x.shape.head_dim;
}

__device__ Row row_of(const Operands &x, Matrix<float> view, int64_t token, int head) {
    Row row;
    row_load<LANE_VALUES>(row_address(x, view, token, head), x.shape.head_dim, row.value);
    return row;
}

__device__ void row_store(const Operands &x, Matrix<float> view, int64_t token, int head, Row row, float factor) {
    float *address = row_address(x, view, token, head);
    int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++) {
        int d = lane + i * WARP;
        if (d < x.shape.head_dim) address[d] = row.value[i] * factor;
    }
}

__device__ Row row_zero() {
    Row row;
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++) row.value[i] = 0.0f;
    return row;
}

// Computes sum = sum * keep + add * factor on rows of a head.
__device__ void row_add(Row *sum, float keep, Row add, float factor) {
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++) sum->value[i] = sum->value[i] * keep + add.value[i] * factor;
}

// Returns the dot product of two rows of a head, in all lanes.
__device__ float row_dot(Row a, Row b) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++) sum += a.value[i] * b.value[i];
    return warp_sum(sum);
}

// Finds the token, sequence and head of the row that this warp computes. Returns false if the warp has no row.
__device__ bool warp_row(AttentionShape shape, int heads, int *b, int *t, int *head) {
    int64_t row = (int64_t)blockIdx.x * WARPS_PER_BLOCK + threadIdx.x / WARP;
    if (row >= (int64_t)shape.B * heads * shape.T) return false;
    *t = (int)(row % shape.T);
    *head = (int)(row / shape.T % heads);
    *b = (int)(row / shape.T / heads);
    return true;
}

// Computes attention's forward for one query: softmax(q k^T * scale) v over the visible keys, with a running maximum.
__global__ void forward_kernel(Operands x) {
    int b, t, head;
    if (!warp_row(x.shape, x.shape.heads, &b, &t, &head)) return;
    int kv_head = head / (x.shape.heads / x.shape.kv_heads);
    int64_t first = (int64_t)b * x.shape.T;
    Row q = row_of(x, x.q, first + t, head), sum = row_zero();
    float largest = -INFINITY, total = 0.0f;
    for (int j = document_begin(x, first, t); j < visible_end(x.shape, t); j++) {
        float score = row_dot(q, row_of(x, x.k, first + j, kv_head)) * x.scale;
        float next = fmaxf(largest, score), keep = expf(largest - next), p = expf(score - next);
        row_add(&sum, keep, row_of(x, x.v, first + j, kv_head), p);
        total = total * keep + p;
        largest = next;
    }
    row_store(x, x.o, first + t, head, sum, 1.0f / total);
    if (x.lse && threadIdx.x % WARP == 0)
        x.lse[((int64_t)b * x.shape.heads + head) * x.shape.T + t] = largest + logf(total);
}

// Computes the probability p of query i and key j, and the gradient ds of their score.
__device__ void pair(const Operands &x, Row q, Row d_o, Row k, Row v, float lse, float delta, float *p, float *ds) {
    *p = expf(row_dot(q, k) * x.scale - lse);
    *ds = *p * (row_dot(d_o, v) - delta);
}

// Computes dq of one query: the sum of ds * k * scale over the visible keys, with delta = sum of do * o.
__global__ void backward_query_kernel(Operands x) {
    int b, t, head;
    if (!warp_row(x.shape, x.shape.heads, &b, &t, &head)) return;
    int kv_head = head / (x.shape.heads / x.shape.kv_heads);
    int64_t first = (int64_t)b * x.shape.T;
    Row q = row_of(x, x.q, first + t, head), d_o = row_of(x, x.d_o, first + t, head), sum = row_zero();
    float delta = row_dot(d_o, row_of(x, x.o, first + t, head));
    float lse = x.lse[((int64_t)b * x.shape.heads + head) * x.shape.T + t];
    for (int j = document_begin(x, first, t); j < visible_end(x.shape, t); j++) {
        Row k = row_of(x, x.k, first + j, kv_head), v = row_of(x, x.v, first + j, kv_head);
        float p, ds;
        pair(x, q, d_o, k, v, lse, delta, &p, &ds);
        row_add(&sum, 1.0f, k, ds);
    }
    row_store(x, x.dq, first + t, head, sum, x.scale);
}

// Computes dk and dv of one key: dk = sum of ds * q * scale and dv = sum of p * do. Both sums run over all query heads
// that use the key and, in each head, over the queries that see the key.
__global__ void backward_key_kernel(Operands x) {
    int b, t, kv_head;
    if (!warp_row(x.shape, x.shape.kv_heads, &b, &t, &kv_head)) return;
    int group = x.shape.heads / x.shape.kv_heads;
    int64_t first = (int64_t)b * x.shape.T;
    Row k = row_of(x, x.k, first + t, kv_head), v = row_of(x, x.v, first + t, kv_head);
    Row dk = row_zero(), dv = row_zero();
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        const float *lse = x.lse + ((int64_t)b * x.shape.heads + head) * x.shape.T;
        for (int i = x.shape.bidirectional ? 0 : t; i < x.shape.T && document_begin(x, first, i) <= t; i++) {
            Row q = row_of(x, x.q, first + i, head), d_o = row_of(x, x.d_o, first + i, head);
            float delta = row_dot(d_o, row_of(x, x.o, first + i, head)), p, ds;
            pair(x, q, d_o, k, v, lse[i], delta, &p, &ds);
            row_add(&dk, 1.0f, q, ds);
            row_add(&dv, 1.0f, d_o, p);
        }
    }
    row_store(x, x.dk, first + t, kv_head, dk, x.scale);
    row_store(x, x.dv, first + t, kv_head, dv, 1.0f);
}

Operands operands(Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor positions, AttentionShape shape) {
    require_format("attention", "q", q, FMT_FP32);
    if (shape.head_dim > MAX_HEAD_DIM)
        fatal(EXIT_DEVICE, "FP32 attention on the GPU supports --head-dim up to %d (is %d); use --device cpu",
              MAX_HEAD_DIM, shape.head_dim);
    Operands x = {};
    x.q = matrix_of<float>(q), x.k = matrix_of<float>(k), x.v = matrix_of<float>(v), x.o = matrix_of<float>(o);
    x.lse = (float *)lse.data;
    x.positions = (const int32_t *)positions.data;
    x.shape = shape;
    x.scale = 1.0f / sqrtf((float)shape.head_dim);
    return x;
}

unsigned blocks(AttentionShape shape, int heads) {
    return (unsigned)ceil_div((int64_t)shape.B * heads * shape.T, WARPS_PER_BLOCK);
}

} // namespace

void attention_plain_forward(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor positions,
                             AttentionShape shape) {
    forward_kernel<<<blocks(shape, shape.heads), WARPS_PER_BLOCK * WARP, 0, cuda_backend(exec)->stream>>>(
        operands(o, lse, q, k, v, positions, shape));
    LAUNCH_CHECK("attention_plain_forward");
}

void attention_plain_backward(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse, Tensor q,
                              Tensor k, Tensor v, Tensor positions, AttentionShape shape) {
    cudaStream_t stream = cuda_backend(exec)->stream;
    Operands x = operands(o, lse, q, k, v, positions, shape);
    x.d_o = matrix_of<float>(d_o), x.dq = matrix_of<float>(dq);
    x.dk = matrix_of<float>(dk), x.dv = matrix_of<float>(dv);
    backward_query_kernel<<<blocks(shape, shape.heads), WARPS_PER_BLOCK * WARP, 0, stream>>>(x);
    LAUNCH_CHECK("attention_plain_backward, queries");
    backward_key_kernel<<<blocks(shape, shape.kv_heads), WARPS_PER_BLOCK * WARP, 0, stream>>>(x);
    LAUNCH_CHECK("attention_plain_backward, keys");
}
