// The walk over rows whose codes have a scale of their own, or that are normed: a row is in registers as a whole
// until what all its columns make is known. It takes WARPS warps of a block, VECTORS vectors of 8 columns per thread:
// one warp up to 1792 columns, four beyond.
#pragma once
#include "fp8_kernels.h"

constexpr int ROW_WIDTH = 8; // columns of a vector
constexpr int ROW_THREADS = 128;
constexpr int ROW_WARPS = ROW_THREADS / WARP;

template <int WARPS_, int VECTORS_> struct RowShape {
    static constexpr int WARPS = WARPS_, VECTORS = VECTORS_;
    static constexpr int LANES = WARPS * WARP, STEP = LANES * ROW_WIDTH; // from a thread's vector to its next
    static constexpr int ROWS = ROW_THREADS / LANES;                     // of a block
};

// What a thread has of its row: where its columns begin, and which of its vectors there are: all but the last at least,
// unless the shape has vectors to spare.
template <typename Shape, bool SPARE = false> struct RowShare {
    int64_t row;
    int lane, column, cols;
    bool last;

    __device__ RowShare(int64_t of_row, int of_cols) : row(of_row), cols(of_cols) {
        lane = (int)threadIdx.x % Shape::LANES;
        column = lane * ROW_WIDTH;
        last = column + (Shape::VECTORS - 1) * Shape::STEP < cols;
    }
    __device__ bool has(int k) const {
        return SPARE ? column + k * Shape::STEP < cols : k < Shape::VECTORS - 1 || last;
    }
    // The block's row of this thread, counted from the first.
    __device__ static int64_t index() { return (int64_t)blockIdx.x * Shape::ROWS + threadIdx.x / Shape::LANES; }
};

// The bits of the largest that the threads of a row have, in each of them. All threads of the row call it, and a kernel
// once: there is one barrier, and one place for maxima.
template <typename Shape, bool SPARE>
__device__ static inline uint32_t row_maximum(const RowShare<Shape, SPARE> &at, float largest) {
    static_assert(Shape::WARPS == 1 || Shape::WARPS == ROW_WARPS, "a warp or the block has a row");
    __shared__ uint32_t shared[ROW_WARPS];
    uint32_t bits = warp_maximum_bits(largest);
    if constexpr (Shape::WARPS > 1) {
        if (at.lane % WARP == 0) shared[at.lane / WARP] = bits;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < Shape::WARPS; w++) bits = max(bits, shared[w]);
    }
    return bits;
}

// E4M3 codes with a scale per row. scales NULL: not computed.
struct RowCodes {
    Matrix<uint8_t> codes;
    float *scales;
    StepState *state;
};

static inline RowCodes row_codes(const Exec *exec, Tensor t) {
    return {matrix_of<uint8_t>(t), (float *)t.scale, exec->state};
}

// Stores scale and codes of a row with this maximum; values(k, out) makes the thread's vector k.
template <typename Shape, bool SPARE, typename F>
__device__ static inline void row_encode(const RowCodes &a, const RowShare<Shape, SPARE> &at, uint32_t bits, F values) {
    const float scale = row_scale(bits, a.scales + at.row, at.lane == 0, a.state);
    const float reciprocal = scale_reciprocal(scale);
    uint8_t *const codes_here = a.codes.at(at.row, at.column);
#pragma unroll
    for (int k = 0; k < Shape::VECTORS; k++) {
        if (!at.has(k)) continue;
        float value[ROW_WIDTH];
        values(k, value);
        Pack<uint32_t, ROW_WIDTH / 4> codes;
        encode<FMT_E4M3, ROW_WIDTH>(value, reciprocal, codes.value);
        store((uint32_t *)(codes_here + k * Shape::STEP), codes);
    }
}

// Calls f(RowShape) with that of rows which a warp holds; false where they are wider.
template <typename F> static bool for_rows_of_a_warp(int cols, F f) {
    switch (ceil_div(cols, WARP * ROW_WIDTH)) {
    case 1: f(RowShape<1, 1>{}); return true;
    case 2: f(RowShape<1, 2>{}); return true;
    case 3: f(RowShape<1, 3>{}); return true;
    case 4: f(RowShape<1, 4>{}); return true;
    case 5: f(RowShape<1, 5>{}); return true;
    case 6: f(RowShape<1, 6>{}); return true;
    case 7: f(RowShape<1, 7>{}); return true;
    }
    return false;
}
