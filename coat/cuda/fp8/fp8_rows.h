// Kernels that hold a whole row in registers, for norms and for FP8 with a scale per row. A row takes WARPS warps of a
// block and VECTORS vectors of 8 columns per thread: one warp up to 1792 columns, four warps beyond.
#pragma once
#include "fp8_kernels.h"

constexpr int ROW_WIDTH = 8; // number of columns per vector
constexpr int ROW_THREADS = 128;
constexpr int ROW_WARPS = ROW_THREADS / WARP;

template <int WARPS_, int VECTORS_> struct RowShape {
    static constexpr int WARPS = WARPS_, VECTORS = VECTORS_;
    static constexpr int LANES = WARPS * WARP,
                         STEP = LANES * ROW_WIDTH;   // LANES: threads per row; STEP: columns between a thread's vectors
    static constexpr int ROWS = ROW_THREADS / LANES; // number of rows per block
};

// Part of a row that a thread holds: the part's first column, and which of the thread's vectors exist. Without SPARE,
// at most the thread's last vector is missing. With SPARE, several may be missing.
template <typename Shape, bool SPARE = false> struct RowPart {
    int64_t row;
    int lane, column, cols;
    bool last;

    __device__ RowPart(int64_t of_row, int of_cols) : row(of_row), cols(of_cols) {
        lane = (int)threadIdx.x % Shape::LANES;
        column = lane * ROW_WIDTH;
        last = column + (Shape::VECTORS - 1) * Shape::STEP < cols;
    }
    __device__ bool has(int k) const {
        return SPARE ? column + k * Shape::STEP < cols : k < Shape::VECTORS - 1 || last;
    }
    // Returns the row that this thread processes, numbered over all blocks.
    __device__ static int64_t index() { return (int64_t)blockIdx.x * Shape::ROWS + threadIdx.x / Shape::LANES; }
};

// Returns the amax over the threads of a row as FP32 bits, in each of these threads. All threads of the row must call
// this function. A block may call it only once, because no second barrier protects its shared memory.
template <typename Shape, bool SPARE>
__device__ static inline uint32_t row_amax(const RowPart<Shape, SPARE> &at, float largest) {
    static_assert(Shape::WARPS == 1 || Shape::WARPS == ROW_WARPS, "a row belongs to a warp or to the block");
    __shared__ uint32_t shared[ROW_WARPS];
    uint32_t bits = warp_amax_bits(largest);
    if constexpr (Shape::WARPS > 1) {
        if (at.lane % WARP == 0) shared[at.lane / WARP] = bits;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < Shape::WARPS; w++) bits = max(bits, shared[w]);
    }
    return bits;
}

// Output in E4M3 with a scale per row. If scales is NULL, the output is not written.
struct RowCodes {
    Matrix<uint8_t> codes;
    float *scales;
    StepState *state;
};

static inline RowCodes row_codes(const Exec *exec, Tensor t) {
    return {matrix_of<uint8_t>(t), (float *)t.scale, exec->state};
}

// Stores the scale and the FP8 values of a row with the given amax. values(k, out) provides vector k of this thread.
template <typename Shape, bool SPARE, typename F>
__device__ static inline void row_encode(const RowCodes &a, const RowPart<Shape, SPARE> &at, uint32_t bits, F values) {
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

// Calls f(RowShape) with the shape for rows that one warp can hold; returns false if they are wider.
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
