// Device code for clipping, QK-norm and RoPE: assigns a token's heads to threads, applies RoPE, and computes sums over
// norms. Included by cuda_qk_norm_rope.cu only.
#pragma once
#include "cuda/common/cuda_kernels.h"
#include "cuda/common/rotation.h"

namespace {

// Threads per block and resident blocks per SM. NORMS_: backward with QK-norm, which uses few large blocks because each
// block sums the norm weights' gradients over its tokens. HEADS_: all other cases.
constexpr int HEADS_THREADS = 64, HEADS_BLOCKS_PER_SM = 16, NORMS_THREADS = 256, NORMS_BLOCKS_PER_SM = 3;

// Kernel argument of clipping, QK-norm and RoPE: tensors and shapes. Heads are numbered q's first, then k's. RoPE pairs
// a head's values i and i + half.
template <typename T> struct HeadsOf {
    T *out;                   // forward: (tokens, columns); backward: the gradient, in place
    const T *qkv;             // input of clipping, norm and RoPE
    const float *rope_table;  // RoPE table (T, 2 half); NULL: no RoPE
    const int32_t *positions; // position of each token with document masking; NULL: token % T_length
    const T *weight[2];       // weights of the norms of q and of k; NULL: no norm
    float *partials[2];       // each block's sums of the norm weights' gradients, (blocks, width)
    uint32_t *amax;           // row amaxes of the gradient; NULL: not computed
    int64_t out_stride, qkv_stride, tokens;
    int T_length, heads, q_heads, half, width[2]; // width: number of columns of a norm, for q and for k
    int q_norms, norms;                           // numbers of norms per token: q_norms for q alone, norms for q and k
    int across, at_once;                          // across: threads per head; at_once: heads processed at a time
    int lanes;                                    // number of lanes that sum the values of a norm
    int copies;  // number of copies of the weight gradients' sums; each sum of a copy is written by one thread only
    int columns; // total number of columns of q, k and v
    float eps, clip;
};

// Returns the row of the RoPE table for a token's position; NULL without RoPE.
template <typename T> __device__ inline const float *rotation_of(const HeadsOf<T> &a, int64_t token) {
    if (!a.rope_table) return nullptr;
    const int64_t position = a.positions ? a.positions[token] : (uint32_t)token % (uint32_t)a.T_length;
    return a.rope_table + position * 2 * a.half;
}

// Calls body(head, i, cosines, sines) for every V RoPE pairs (i, i + half) to (i + V - 1, i + V - 1 + half) of a head
// that this thread processes. cosines and sines belong to these pairs; both are undefined if `rotation` is NULL. All
// heads of a token share the cosines and sines, so a thread loads them once.
template <int V, typename T, typename Body>
__device__ inline void each_half_head(const HeadsOf<T> &a, const float *rotation, Body body) {
    const int first = (int)threadIdx.x / a.across;
    if (first >= a.at_once) return;
    for (int i = ((int)threadIdx.x - first * a.across) * V; i < a.half; i += a.across * V) {
        float cosine[V], sine[V];
        if (rotation) {
            unpack<V>(load_parameter<V>(rotation + i), cosine);
            unpack<V>(load_parameter<V>(rotation + a.half + i), sine);
        }
        for (int head = first; head < a.heads; head += a.at_once) body(head, i, cosine, sine);
    }
}

// Returns x clipped to [-clip, clip]; x if clip is 0.
__device__ inline float clipped(float x, float clip) {
    return clip > 0.0f ? fminf(fmaxf(x, -clip), clip) : x;
}

// Loads V values and clips them. The result is the norm's input.
template <int V, CachePolicy POLICY = CACHE_DEFAULT, typename T>
__device__ inline void load_clipped(const HeadsOf<T> &a, const T *from, float x[V]) {
    unpack<V>(load<V, POLICY>(from), x);
#pragma unroll
    for (int j = 0; j < V; j++) x[j] = clipped(x[j], a.clip);
}

template <int V> __device__ inline void rotate(float x[2][V], const float cosine[V], const float sine[V]) {
#pragma unroll
    for (int j = 0; j < V; j++) rotate_pair(x[0][j], x[1][j], cosine[j], sine[j]);
}

template <int V> __device__ inline void rotate_back(float d[2][V], const float cosine[V], const float sine[V]) {
#pragma unroll
    for (int j = 0; j < V; j++) rotate_pair(d[0][j], d[1][j], cosine[j], -sine[j]);
}

// --- QK-norm: norms of q and k ---------------------------------------------------------------------------------------
// Describes the norm that a head belongs to. k: 0 for a norm of q, 1 for a norm of k. number: index of the norm among
// the token's norms. begin: the head's first column within the norm.
template <typename T> struct HeadNorm {
    int k, number, begin;

    __device__ HeadNorm(const HeadsOf<T> &a, int head) {
        k = head >= a.q_heads;
        const int column = (head - (k ? a.q_heads : 0)) * 2 * a.half;
        const int within = column / a.width[k];
        number = (k ? a.q_norms : 0) + within;
        begin = column - within * a.width[k];
    }
};

// Stores `value`, a thread's partial sum of a head, in of_heads (heads, across), or adds `value` to the thread's
// earlier sum of that head. i: index, within half a head, of the first element that `value` sums.
template <int V, typename T>
__device__ inline void head_adds(const HeadsOf<T> &a, float *of_heads, int head, int i, float value) {
    float *const at = of_heads + head * a.across + i / V % a.across;
    *at = i < a.across * V ? value : *at + value;
}

// Sums of_heads, and also_of_heads unless NULL, over each norm. Calls finish(norm, width, sum, also) in one lane per
// norm; `also` is the sum of also_of_heads.
template <typename T, typename Finish>
__device__ inline void each_norm(const HeadsOf<T> &a, const float *of_heads, const float *also_of_heads,
                                 Finish finish) {
    const int in_warp = (int)threadIdx.x % WARP, lane = in_warp % a.lanes, at_once = WARP / a.lanes;
    for (int first = (int)threadIdx.x / WARP * at_once; first < a.norms; first += (int)blockDim.x / WARP * at_once) {
        const int n = first + in_warp / a.lanes, k = n >= a.q_norms;
        const int heads = a.width[k] / (2 * a.half);
        const int begin = (k ? a.q_heads + (n - a.q_norms) * heads : n * heads) * a.across;
        float sum = 0.0f, also = 0.0f;
        for (int j = lane; n < a.norms && j < heads * a.across; j += a.lanes) {
            sum += of_heads[begin + j];
            if (also_of_heads) also += also_of_heads[begin + j];
        }
        for (int mask = a.lanes / 2; mask > 0; mask /= 2) {
            sum += __shfl_xor_sync(ALL_LANES, sum, mask);
            if (also_of_heads) also += __shfl_xor_sync(ALL_LANES, also, mask);
        }
        if (lane == 0 && n < a.norms) finish(n, a.width[k], sum, also);
    }
}

} // namespace
