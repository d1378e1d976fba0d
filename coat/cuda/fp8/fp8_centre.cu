// The mean of a norm's result over some rows, and the product's bias that puts it back. Two small kernels: sums over
// the rows of each block, then the whole sum in every block of the product with the weight's codes, which takes
// longest. Of 256 rows and a weight of codes, 0.4 and 2 MB are read: both are bound by their latency.
#include "fp8_norm.h"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / WARP, WIDTH = 8; // columns of a vector
constexpr int BLOCK_ROWS = 16;
constexpr int OUTPUTS = 2; // of a warp

struct CentreRows {
    Matrix<const bf16> r, y;            // y may be absent
    const float *y_scales;              // (rows) that y carries along; NULL: none
    const bf16 *y_bias, *weight, *bias; // y_bias and bias may be NULL
    float *sums;                        // (blocks, cols)
    int64_t rows;
    int cols;
    float eps;
    bool subtracts_mean; // LayerNorm
};

// Columns [column, column + WIDTH) of the residual stream's row.
__device__ inline void stream_values(const CentreRows &a, int64_t row, int column, float out[WIDTH]) {
    unpack<WIDTH>(load<WIDTH>(a.r.at(row, column)), out);
    if (!a.y.data) return;
    float add[WIDTH], bias[WIDTH] = {};
    unpack<WIDTH>(load<WIDTH>(a.y.at(row, column)), add);
    if (a.y_bias) unpack<WIDTH>(load_parameter<WIDTH>(a.y_bias + column), bias);
    const float scale = a.y_scales ? a.y_scales[row] : 1.0f;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) out[i] = fmaf(add[i], scale, out[i]) + bias[i];
}

// The sums over this block's rows: a warp finds how its rows are normalised, then a thread adds up its columns.
__global__ __launch_bounds__(THREADS) void centre_rows_kernel(const __grid_constant__ CentreRows a) {
    __shared__ HatOf hats[BLOCK_ROWS];
    second_stage_allow();
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t chosen = centre_rows(a.rows), first = (int64_t)blockIdx.x * BLOCK_ROWS;
    const int count = (int)min((int64_t)BLOCK_ROWS, chosen - first);
    for (int i = warp; i < count; i += WARPS) {
        const int64_t row = centre_row(first + i, a.rows);
        float value[WIDTH], sum = 0.0f, squares = 0.0f;
        for (int column = lane * WIDTH; a.subtracts_mean && column < a.cols; column += WARP * WIDTH) {
            stream_values(a, row, column, value);
#pragma unroll
            for (int k = 0; k < WIDTH; k++) sum += value[k];
        }
        const float mean = lanes_sum<WARP>(sum) / (float)a.cols;
        for (int column = lane * WIDTH; column < a.cols; column += WARP * WIDTH) {
            stream_values(a, row, column, value);
#pragma unroll
            for (int k = 0; k < WIDTH; k++) squares = fmaf(value[k] - mean, value[k] - mean, squares);
        }
        const float rstd = 1.0f / sqrtf(lanes_sum<WARP>(squares) / (float)a.cols + a.eps);
        if (lane == 0) hats[i] = hat_of(mean, rstd);
    }
    __syncthreads();
    for (int column = (int)threadIdx.x * WIDTH; column < a.cols; column += THREADS * WIDTH) {
        float value[WIDTH], weight[WIDTH], bias[WIDTH] = {};
        Pack<float, WIDTH> sum = {};
        unpack<WIDTH>(load_parameter<WIDTH>(a.weight + column), weight);
        if (a.bias) unpack<WIDTH>(load_parameter<WIDTH>(a.bias + column), bias);
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            stream_values(a, centre_row(first + i, a.rows), column, value);
#pragma unroll
            for (int k = 0; k < WIDTH; k++) sum.value[k] += norm_affine(value[k], hats[i], weight[k], bias[k]);
        }
        store(a.sums + (int64_t)blockIdx.x * a.cols + column, sum);
    }
}

struct CentreProduct {
    const float *sums; // (blocks, cols)
    int blocks;
    float share; // of a row in the mean
    Matrix<const uint8_t> codes;
    const float *scale; // of the codes
    const bf16 *bias;   // NULL: none
    float *centre;
    bf16 *shifted;
    int outputs, cols;
};

__global__ __launch_bounds__(THREADS) void centre_product_kernel(const __grid_constant__ CentreProduct a) {
    extern __shared__ float centre[];
    first_stage_wait();
    for (int column = (int)threadIdx.x; column < a.cols; column += THREADS) {
        float sum = 0.0f;
#pragma unroll 16
        for (int b = 0; b < a.blocks; b++) sum += a.sums[(int64_t)b * a.cols + column];
        centre[column] = sum * a.share;
        if (blockIdx.x == 0) a.centre[column] = centre[column];
    }
    __syncthreads();
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
#pragma unroll
    for (int k = 0; k < OUTPUTS; k++) {
        const int output = ((int)blockIdx.x * OUTPUTS + k) * WARPS + warp;
        if (output >= a.outputs) continue;
        float sum = 0.0f;
        for (int column = lane * SPAN; column < a.cols; column += WARP * SPAN) {
            const Pack<uint32_t, SPAN / 4> codes =
                load<SPAN / 4, CACHE_PARAMETER>((const uint32_t *)a.codes.at(output, column));
            float value[SPAN];
            decode_unscaled<SPAN>(codes.value, value);
#pragma unroll
            for (int i = 0; i < SPAN; i++) sum = fmaf(value[i], centre[column + i], sum);
        }
        sum = lanes_sum<WARP>(sum) * *a.scale;
        if (lane == 0)
            a.shifted[output] = __float2bfloat16_rn(sum + (a.bias ? __bfloat162float(a.bias[output]) : 0.0f));
    }
}

} // namespace

void cuda_norm_centre(Exec *exec, Tensor centre, Tensor shifted, Norm norm, Tensor r_in, Tensor y, Tensor y_bias,
                      Weight w, Tensor bias) {
    const char *operation = "norm_centre";
    require_format(operation, "the residual stream", r_in, FMT_BF16);
    require_format(operation, "the shifted bias", shifted, FMT_BF16);
    require_format(operation, "the centre", centre, FMT_FP32);
    require_format(operation, "the weight", w.codes, FMT_E4M3);
    require_spans(operation, "the weight", w.codes);
    const int blocks = (int)ceil_div(centre_rows(r_in.rows), BLOCK_ROWS), cols = (int)r_in.cols;
    if (blocks == 0) return;
    CentreRows rows = {};
    rows.r = matrix_of<const bf16>(r_in);
    rows.y = matrix_of<const bf16>(y);
    rows.y_scales = scaled_by_row(y) ? (const float *)y.scale : NULL;
    rows.y_bias = (const bf16 *)y_bias.data;
    rows.weight = (const bf16 *)norm.weight.data;
    rows.bias = (const bf16 *)norm.bias.data;
    rows.sums = (float *)exec->workspace;
    rows.rows = r_in.rows;
    rows.cols = cols;
    rows.eps = norm.eps;
    rows.subtracts_mean = norm.mean.data != NULL;
    centre_rows_kernel<<<(unsigned)blocks, THREADS, 0, cuda_backend(exec)->stream>>>(rows);
    LAUNCH_CHECK("centre_rows_kernel");
    CentreProduct product = {};
    product.sums = rows.sums;
    product.blocks = blocks;
    product.share = 1.0f / (float)centre_rows(r_in.rows);
    product.codes = matrix_of<const uint8_t>(w.codes);
    product.scale = (const float *)w.codes.scale;
    product.bias = (const bf16 *)bias.data;
    product.centre = (float *)centre.data;
    product.shifted = (bf16 *)shifted.data;
    product.outputs = (int)shifted.cols;
    product.cols = cols;
    launch_behind(exec, "launching the kernel centre_product_kernel", centre_product_kernel,
                  dim3((unsigned)ceil_div(shifted.cols, OUTPUTS * WARPS)), THREADS, (size_t)cols * sizeof(float), true,
                  product);
}
