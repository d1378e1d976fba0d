// Token and position embeddings and their gradients on the GPU.
#include "cuda/common/cuda_kernels.h"

#include <cub/device/device_radix_sort.cuh>

namespace {

constexpr int EMBED_THREADS = 128;

// --- forward of the token and position embeddings --------------------------------------------------------------------
template <typename T> struct EmbedForward {
    T *r;
    const int32_t *tokens;
    const T *wte, *wpe; // token and position embedding tables; wpe may be NULL
    // position of each row if documents are masked; NULL: the position is row % T_length, or there is no wpe
    const int32_t *positions;
    int64_t r_stride, wte_stride, wpe_stride;
    int64_t rows;
    int cols, T_length;
};

// Each thread computes V columns of ROWS rows: of the tokens that have the same index in ROWS consecutive sequences.
// The thread loads the token embeddings in parallel, and the position embedding once for all these rows. With document
// masking, each row has its own position, so the thread loads a position embedding per row.
template <typename T, int V, int ROWS>
__global__ __launch_bounds__(EMBED_THREADS) void embed_forward_kernel(EmbedForward<T> a) {
    const unsigned vectors = (unsigned)(a.cols / V);
    const unsigned index = blockIdx.x * EMBED_THREADS + threadIdx.x, position = index / vectors;
    const int64_t column = (int64_t)(index - position * vectors) * V;
    const int64_t first = (int64_t)blockIdx.y * ROWS * a.T_length + position;
    if (position >= (unsigned)a.T_length) return;
    int token[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        const int64_t row = first + (int64_t)k * a.T_length;
        token[k] = row < a.rows ? __ldg(a.tokens + row) : 0;
    }
    Pack<T, V> at_position = {}, embedding[ROWS];
    if (a.wpe && !a.positions) at_position = load_parameter<V>(a.wpe + position * a.wpe_stride + column);
#pragma unroll
    for (int k = 0; k < ROWS; k++)
        if (first + (int64_t)k * a.T_length < a.rows)
            embedding[k] = load_parameter<V>(a.wte + token[k] * a.wte_stride + column);
    float add[V];
    unpack<V>(at_position, add);
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        const int64_t row = first + (int64_t)k * a.T_length;
        if (row < a.rows) {
            float sum[V];
            if (a.positions) unpack<V>(load_parameter<V>(a.wpe + a.positions[row] * a.wpe_stride + column), add);
            unpack<V>(embedding[k], sum);
#pragma unroll
            for (int i = 0; i < V; i++) sum[i] += add[i];
            store(a.r + row * a.r_stride + column, packed<T, V>(sum));
        }
    }
}

template <typename T, int V, int ROWS> void embed_forward_run(const CudaBackend *backend, const EmbedForward<T> &a) {
    const int64_t sequences = ceil_div(a.rows, a.T_length), threads = (int64_t)a.T_length * (a.cols / V);
    if (threads > INT32_MAX)
        fatal(EXIT_DEVICE, "internal error: embed_forward on the GPU: %d positions of %d channels exceed its limit",
              a.T_length, a.cols);
    const dim3 grid((unsigned)ceil_div(threads, EMBED_THREADS), (unsigned)ceil_div(sequences, ROWS));
    embed_forward_kernel<T, V, ROWS><<<grid, EMBED_THREADS, 0, backend->stream>>>(a);
    LAUNCH_CHECK("embed_forward_kernel");
}

// --- gradient of the position embedding ------------------------------------------------------------------------------
template <typename T> struct PositionGradient {
    float *dwpe;
    const T *g;
    int64_t dwpe_stride, g_stride;
    int64_t rows;      // number of rows of g
    int64_t positions; // number of rows of dwpe, at least T_length
    int cols, T_length;
    bool accumulate;
};

// Each thread computes V columns of the gradient of one position's embedding. Sequences are added in order.
template <typename T, int V>
__global__ __launch_bounds__(EMBED_THREADS) void position_gradient_kernel(PositionGradient<T> a) {
    constexpr int BATCH = 8; // number of gradient rows that are loaded before the first is added
    const int64_t vectors = a.cols / V, index = (int64_t)blockIdx.x * EMBED_THREADS + threadIdx.x;
    const int64_t position = index / vectors, column = index % vectors * V;
    if (position >= a.positions) return;
    float sum[V] = {};
    for (int64_t first = position; position < a.T_length && first < a.rows; first += (int64_t)BATCH * a.T_length) {
        Pack<T, V> g[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int64_t row = first + (int64_t)k * a.T_length;
            if (row < a.rows) g[k] = load_streaming<V>(a.g + row * a.g_stride + column);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            if (first + (int64_t)k * a.T_length < a.rows) {
                float value[V];
                unpack<V>(g[k], value);
#pragma unroll
                for (int i = 0; i < V; i++) sum[i] += value[i];
            }
        }
    }
    float *const out = a.dwpe + position * a.dwpe_stride + column;
    if (a.accumulate) {
        float before[V];
        unpack<V>(load<V>(out), before);
#pragma unroll
        for (int i = 0; i < V; i++) sum[i] += before[i];
    }
    store(out, packed<float, V>(sum));
}

// --- gradient of the token embedding ---------------------------------------------------------------------------------
// The rows of the gradient are sorted by token (stable, so equal tokens keep their order) and divided into chunks. A
// run of equal tokens within a chunk is summed and added to the token's row of dwte. A run that crosses chunks stores
// one partial sum per chunk: in `tail` for the chunk in which the run starts, in `head` for every later chunk. A second
// kernel adds these partial sums in order. With document masking, the gradient of the position embedding is computed in
// the same way, sorted by position.
constexpr int CHUNK = EMBED_SORT_CHUNK; // number of sorted rows per chunk

template <typename T> struct TokenGradient {
    float *dwte;
    const T *g;
    const int32_t *tokens, *order; // tokens in sorted order, and for each of them its row of the gradient g
    float *head, *tail;            // partial sums of runs that cross chunks, (chunks, cols)
    int64_t dwte_stride, g_stride;
    int rows, cols;
};

template <int V> __device__ inline void add_to(float *out, Pack<float, V> before, const float sum[V]) {
    float total[V];
    unpack<V>(before, total);
#pragma unroll
    for (int i = 0; i < V; i++) total[i] += sum[i];
    store(out, packed<float, V>(total));
}

// Sums the runs of equal tokens in a chunk. A block processes a chunk and up to 128 vectors of its columns. All data of
// a batch of rows is loaded together, including the current dwte rows of the tokens whose runs end in the batch.
// Loading these dwte rows early is safe, because each run has a different token and thus a different row.
template <typename T, int V>
__global__ __launch_bounds__(EMBED_THREADS, sizeof(T) == 2 ? 4 : 2) void token_gradient_kernel(TokenGradient<T> a) {
    constexpr int BATCH = 8;
    static_assert(CHUNK % BATCH == 0, "a chunk must be a multiple of a batch");
    const int64_t chunk = blockIdx.x;
    const int64_t column = ((int64_t)blockIdx.y * EMBED_THREADS + threadIdx.x) * V;
    if (column >= a.cols) return;
    const int begin = (int)chunk * CHUNK, end = min(begin + CHUNK, a.rows);
    // from_before: true if the current run of equal tokens started in an earlier chunk
    bool from_before = begin > 0 && a.tokens[begin - 1] == a.tokens[begin];
    float sum[V] = {};
    for (int first = begin; first < end; first += BATCH) {
        int token[BATCH + 1]; // tokens of the batch's rows and of the row after them; -1 after the last row
#pragma unroll
        for (int k = 0; k <= BATCH; k++) token[k] = first + k < a.rows ? a.tokens[first + k] : -1;
        Pack<T, V> g[BATCH];
        Pack<float, V> before[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            if (first + k >= end) continue;
            g[k] = load_streaming<V>(a.g + a.order[first + k] * a.g_stride + column);
            if (token[k + 1] != token[k]) before[k] = load<V>(a.dwte + token[k] * a.dwte_stride + column);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int at = first + k;
            if (at >= end) continue;
            float value[V];
            unpack<V>(g[k], value);
#pragma unroll
            for (int i = 0; i < V; i++) sum[i] += value[i];
            const bool continues = token[k + 1] == token[k];
            if (continues && at + 1 < end) continue;
            if (from_before)
                store(a.head + chunk * a.cols + column, packed<float, V>(sum));
            else if (continues)
                store(a.tail + chunk * a.cols + column, packed<float, V>(sum));
            else
                add_to<V>(a.dwte + token[k] * a.dwte_stride + column, before[k], sum);
            from_before = false;
#pragma unroll
            for (int i = 0; i < V; i++) sum[i] = 0.0f;
        }
    }
}

// Adds the partial sums of each run of equal tokens that crosses chunks to the token's row of dwte. The block of the
// run's first chunk does this, and loads the partial sums in batches.
template <typename T, int V>
__global__ __launch_bounds__(EMBED_THREADS) void token_gradient_join_kernel(TokenGradient<T> a) {
    constexpr int BATCH = 8;
    const int64_t chunk = blockIdx.x;
    const int64_t column = ((int64_t)blockIdx.y * EMBED_THREADS + threadIdx.x) * V;
    const int begin = (int)chunk * CHUNK, next = begin + CHUNK;
    if (column >= a.cols || next >= a.rows) return;
    const int token = a.tokens[next - 1];
    if (a.tokens[next] != token) return; // no run of equal tokens continues into the next chunk
    // If the whole chunk belongs to a run that started in an earlier chunk, the earlier chunk's block adds the sums.
    if (a.tokens[begin] == token && begin > 0 && a.tokens[begin - 1] == token) return;
    float *const out = a.dwte + token * a.dwte_stride + column;
    const Pack<float, V> before = load<V>(out);
    float sum[V];
    unpack<V>(load<V>(a.tail + chunk * a.cols + column), sum);
    bool continues = true;
    for (int64_t other = chunk + 1; continues; other += BATCH) {
        int first_token[BATCH];
        Pack<float, V> part[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const bool exists = (other + k) * CHUNK < a.rows;
            first_token[k] = exists ? a.tokens[(other + k) * CHUNK] : -1;
            // used only if this run of tokens continues into chunk other + k, which has then written the partial sum
            if (exists) part[k] = load<V>(a.head + (other + k) * a.cols + column);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            continues = continues && first_token[k] == token;
            if (!continues) continue;
            float value[V];
            unpack<V>(part[k], value);
#pragma unroll
            for (int i = 0; i < V; i++) sum[i] += value[i];
        }
    }
    add_to<V>(out, before, sum);
}

// Sets numbers[i] = i. These row numbers are the values that are sorted with the tokens as keys.
__global__ void row_numbers_kernel(int32_t *numbers, int count) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) numbers[i] = i;
}

// --- host code that divides the workspace and launches the kernels ---------------------------------------------------
// Part of Exec.workspace that is still free.
struct Pieces {
    char *next;
    size_t left;
};

// Takes memory for `count` values, aligned to 256 bytes, from the workspace. Calls fatal() if the workspace is too
// small.
template <typename T> T *piece_take(Pieces *pieces, int64_t count) {
    const size_t bytes = ((size_t)count * sizeof(T) + 255) / 256 * 256;
    if (bytes > pieces->left)
        fatal(EXIT_DEVICE, "internal error: embed_backward on the GPU: the workspace is %zu bytes too small",
              bytes - pieces->left);
    T *const piece = (T *)pieces->next;
    pieces->next += bytes;
    pieces->left -= bytes;
    return piece;
}

template <typename T, int V> void token_gradient(Exec *exec, TokenGradient<T> a, const int32_t *tokens, int vocab) {
    const CudaBackend *backend = cuda_backend(exec);
    Pieces pieces = {(char *)exec->workspace, exec->workspace_bytes};
    const int64_t chunks = ceil_div(a.rows, CHUNK);
    int32_t *const sorted = piece_take<int32_t>(&pieces, a.rows);
    int32_t *const order = piece_take<int32_t>(&pieces, a.rows);
    int32_t *const numbers = piece_take<int32_t>(&pieces, a.rows);
    a.tokens = sorted;
    a.order = order;
    a.head = piece_take<float>(&pieces, chunks * a.cols);
    a.tail = piece_take<float>(&pieces, chunks * a.cols);

    row_numbers_kernel<<<grid_of(ceil_div(a.rows, 256)), 256, 0, backend->stream>>>(numbers, a.rows);
    LAUNCH_CHECK("row_numbers_kernel");
    int bits = 1;
    while (bits < 31 && (int64_t)1 << bits < vocab) bits++;
    size_t sort_bytes = 0;
    CUDA_CHECK(cub::DeviceRadixSort::SortPairs(NULL, sort_bytes, tokens, sorted, numbers, order, a.rows, 0, bits,
                                               backend->stream),
               "querying the memory that sorting the tokens needs");
    void *const sort_space = piece_take<char>(&pieces, (int64_t)sort_bytes);
    CUDA_CHECK(cub::DeviceRadixSort::SortPairs(sort_space, sort_bytes, tokens, sorted, numbers, order, a.rows, 0, bits,
                                               backend->stream),
               "sorting the tokens");
    const dim3 grid((unsigned)chunks, (unsigned)ceil_div(a.cols, EMBED_THREADS * V));
    token_gradient_kernel<T, V><<<grid, EMBED_THREADS, 0, backend->stream>>>(a);
    LAUNCH_CHECK("token_gradient_kernel");
    token_gradient_join_kernel<T, V><<<grid, EMBED_THREADS, 0, backend->stream>>>(a);
    LAUNCH_CHECK("token_gradient_join_kernel");
}

} // namespace

void cuda_embed_forward(Exec *exec, Tensor r, Tensor tokens, Tensor positions, Tensor wte, Tensor wpe, int T) {
    const char *operation = "embed_forward";
    require_format(operation, "tokens", tokens, FMT_I32);
    require_format(operation, "positions", positions, FMT_I32);
    require_format(operation, "wte", wte, r.format);
    require_format(operation, "wpe", wpe, r.format);
    if (r.rows == 0) return;
    bool wide = tensor_wide(r) && tensor_wide(wte) && tensor_wide(wpe);
    for_layout(operation, r.format, wide, [&]<typename Type, int V>(Layout<Type, V>) {
        const EmbedForward<Type> a = {(Type *)r.data,
                                      (const int32_t *)tokens.data,
                                      (const Type *)wte.data,
                                      (const Type *)wpe.data,
                                      wpe.data ? (const int32_t *)positions.data : nullptr,
                                      r.stride,
                                      wte.stride,
                                      wpe.stride,
                                      r.rows,
                                      (int)r.cols,
                                      T};
        embed_forward_run<Type, V, 2>(cuda_backend(exec), a);
    });
}

void cuda_embed_backward(Exec *exec, Tensor dwte, Tensor dwpe, Tensor g, Tensor tokens, Tensor positions, int T,
                         bool accumulate) {
    const char *operation = "embed_backward";
    require_format(operation, "tokens", tokens, FMT_I32);
    require_format(operation, "positions", positions, FMT_I32);
    require_format(operation, "dwte", dwte, FMT_FP32);
    require_format(operation, "dwpe", dwpe, FMT_FP32);
    if (g.rows > INT32_MAX - CHUNK)
        fatal(EXIT_DEVICE,
              "internal error: embed_backward on the GPU: a micro-batch of 2^31 - 64 or more tokens is not supported");
    if (g.rows == 0) return;
    bool wide = tensor_wide(g) && tensor_wide(dwte) && tensor_wide(dwpe);
    for_layout(operation, g.format, wide, [&]<typename Type, int V>(Layout<Type, V>) {
        const auto gradient = [&](Tensor table, Tensor numbers) {
            TokenGradient<Type> a = {};
            a.dwte = (float *)table.data;
            a.g = (const Type *)g.data;
            a.dwte_stride = table.stride;
            a.g_stride = g.stride;
            a.rows = (int)g.rows;
            a.cols = (int)g.cols;
            token_gradient<Type, V>(exec, a, (const int32_t *)numbers.data, (int)table.rows);
        };
        if (dwte.data) gradient(dwte, tokens);
        if (dwpe.data && positions.data) {
            if (!accumulate) cuda_zero(exec, dwpe.data, (size_t)(dwpe.rows * dwpe.stride) * sizeof(float));
            gradient(dwpe, positions);
        } else if (dwpe.data) {
            const PositionGradient<Type> a = {(float *)dwpe.data, (const Type *)g.data, dwpe.stride, g.stride,  g.rows,
                                              dwpe.rows,          (int)g.cols,          T,           accumulate};
            const dim3 grid = grid_of(ceil_div(dwpe.rows * (g.cols / V), EMBED_THREADS));
            position_gradient_kernel<Type, V><<<grid, EMBED_THREADS, 0, cuda_backend(exec)->stream>>>(a);
            LAUNCH_CHECK("position_gradient_kernel");
        }
    });
}
