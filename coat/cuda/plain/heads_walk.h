// A token's heads on the GPU: which thread has which values, rotations, and the sums over norms. Included by
// cuda_qk_norm_rope.cu.
#pragma once
#include "cuda/common/cuda_kernels.h"
#include "cuda/common/rotation.h"

namespace {

// Threads of a block. A gradient through norms is made by few large blocks, each of which sums the weights' gradients
// over its tokens.
constexpr int HEADS_THREADS = 64, HEADS_BLOCKS_PER_SM = 16, NORMS_THREADS = 256, NORMS_BLOCKS_PER_SM = 3;

// q's heads, then k's. A head's value i is rotated with value i + half.
template <typename T> struct HeadsOf {
    T *out;                   // forward: (tokens, columns); backward: the gradient, in place
    const T *qkv;             // before all of it
    const float *rotations;   // (T, 2 half); NULL: none
    const int32_t *positions; // of documents that are apart; NULL: none are
    const T *weight[2];       // of q's and k's norm; NULL: none
    float *partials[2];       // (blocks, width): what each block has of the gradients of these weights
    uint32_t *amax;           // of the gradient's rows; may be NULL
    int64_t out_stride, qkv_stride, tokens;
    int T_length, heads, q_heads, half, width[2]; // width: of a norm
    int q_norms, norms;                           // of a token: q's, and all
    int across, at_once;                          // threads across half a head, heads at a time
    int lanes;                                    // that sum the values of one norm
    int copies;                                   // of the sums of the weights' gradients, so that each has one writer
    int columns;                                  // q, k and v
    float eps, clip;
};

// The cosines and sines of a token's position.
template <typename T> __device__ inline const float *rotation_of(const HeadsOf<T> &a, int64_t token) {
    if (!a.rotations) return nullptr;
    const int64_t position = a.positions ? a.positions[token] : (uint32_t)token % (uint32_t)a.T_length;
    return a.rotations + position * 2 * a.half;
}

// body(head, i, cosines, sines) for V values i of every half head, a thread's heads with one rotation.
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

__device__ inline float clipped(float x, float clip) {
    return clip > 0.0f ? fminf(fmaxf(x, -clip), clip) : x;
}

// V values before the norm.
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

// --- norms ----------------------------------------------------------------------------------------------------------
// A head's norm: its number within the token, whether it is one of k's, and where the head begins in it.
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

// What a thread has of a sum over a head: the head's own values in `of_heads`, (heads, across).
template <int V, typename T>
__device__ inline void head_adds(const HeadsOf<T> &a, float *of_heads, int head, int i, float value) {
    float *const at = of_heads + head * a.across + i / V % a.across;
    *at = i < a.across * V ? value : *at + value;
}

// The sum of a norm's values, in the first of `lanes` lanes; NORM is called with it by that lane.
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
