// The tensor descriptor that every operation takes: address, shape, format and scales. A recipe changes only
// descriptors, so the model's code is the same for all recipes.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "formats.h"

// How a tensor's scales are stored. A scale is always the dequantization multiplier: value = FP8 value * scale.
typedef enum {
    SCALE_NONE,   // there is no scale (FP32, BF16, integers)
    SCALE_TENSOR, // one FP32 scale for the tensor, 16-byte aligned as cuBLASLt requires
    // one FP32 scale per row, a power of two: (rows) scales. The data are FP8 values, or the BF16 output of a matmul
    // that read FP8 values and ignored their row scales (value = stored * scale, exactly)
    SCALE_ROW,
    SCALE_GROUP, // one BF16 scale per `group` consecutive elements of a row: (rows, ceil(cols / group)) scales
    // COAT's optimizer states. Each `group` consecutive elements of the flat tensor have an FP32 amax a, stored in
    // Tensor.scale, and an exponent k in sixteenths, stored in Tensor.exponent
    SCALE_EXPAND,
} Granularity;

// A row-major matrix (rows, cols): element (i, j) is at data[i * stride + j]. With `transposed`, the memory contains
// the transpose: element (i, j) is at data[j * stride + i]. data is NULL if the recipe does not have the tensor.
typedef struct {
    void *data;
    void *scale;       // scales as described by Granularity; NULL with SCALE_NONE
    uint8_t *exponent; // SCALE_EXPAND only: exponent k of each group, in sixteenths
    // amax of each row as raw FP32 bits, (rows), written by the operation that computes the tensor. The operation may
    // write the amax of several rows to one row's entry, and 0 to the others'. NULL: no amaxes are stored
    uint32_t *amax;
    int64_t rows, cols, stride;
    Format format;
    Granularity granularity;
    int group;
    bool transposed;
} Tensor;

// A linear layer's weight (out, in), with the FP8 copies that FP8 matmuls read.
typedef struct {
    Tensor value;      // weight (out, in) in BF16 or FP32
    Tensor codes;      // weight (out, in) in E4M3 with SCALE_TENSOR; data is NULL if no matmul reads it
    Tensor codes_t;    // transpose of codes, which dgrad reads
    uint32_t *maximum; // amax of `value` as FP32 bits, from the optimizer, for the next quantization; NULL: not stored
} Weight;

// Alignment of every tensor in bytes. The fastest paths of cuBLASLt and cuDNN need this alignment.
#define TENSOR_ALIGNMENT 256
static inline size_t align_up(size_t bytes) {
    return (bytes + TENSOR_ALIGNMENT - 1) / TENSOR_ALIGNMENT * TENSOR_ALIGNMENT;
}

static inline Tensor no_tensor(void) {
    Tensor t;
    memset(&t, 0, sizeof t);
    return t;
}

// Returns an unscaled tensor without gaps between its rows.
static inline Tensor tensor_of(void *data, int64_t rows, int64_t cols, Format format) {
    Tensor t = no_tensor();
    t.data = data;
    t.rows = rows;
    t.cols = t.stride = cols;
    t.format = format;
    return t;
}

static inline int64_t tensor_elements(Tensor t) {
    return t.rows * t.cols;
}

// Returns rows [begin, begin + count) of t. If t is transposed, these rows are columns in memory.
static inline Tensor tensor_rows(Tensor t, int64_t begin, int64_t count) {
    if (t.data) t.data = (char *)t.data + (size_t)(begin * (t.transposed ? 1 : t.stride)) * format_bytes(t.format);
    if (t.granularity == SCALE_GROUP && t.scale)
        t.scale = (char *)t.scale + (size_t)(begin * ((t.cols + t.group - 1) / t.group)) * format_bytes(FMT_BF16);
    if (t.granularity == SCALE_ROW && t.scale) t.scale = (float *)t.scale + begin;
    if (t.amax) t.amax += begin;
    t.rows = count;
    return t;
}

// Returns matrix number i of a tensor t whose rows are those of `count` matrices of the same shape, one after the
// other.
static inline Tensor tensor_matrix(Tensor t, int count, int i) {
    return tensor_rows(t, i * (t.rows / count), t.rows / count);
}

// Returns columns [begin, begin + count) of a tensor without scales, such as the columns of q in a packed qkv.
static inline Tensor tensor_cols(Tensor t, int64_t begin, int64_t count) {
    if (t.data) t.data = (char *)t.data + (size_t)begin * format_bytes(t.format);
    t.cols = count;
    return t;
}
