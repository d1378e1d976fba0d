// The tensor descriptor that every operation takes: address, shape, format and scales. A recipe changes descriptors, so
// the model's text is the same for all recipes.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "formats.h"

// Layout of the scales. A scale is always the dequantization multiplier: value = FP8 value * scale.
typedef enum {
    SCALE_NONE,   // values are stored as they are (FP32, BF16, integers)
    SCALE_TENSOR, // one FP32 scale, 16-byte aligned (cuBLASLt requires it)
    SCALE_ROW,    // one FP32 scale per row, a power of two: (rows). Of FP8 values, or of the BF16 output of a matmul
                  // that read such values and ignored their scales (value = stored * scale, exactly)
    SCALE_GROUP,  // one BF16 scale per `group` consecutive elements of a row: (rows, ceil(cols / group))
    SCALE_EXPAND, // per `group` consecutive elements of the flat tensor, an FP32 amax a (in scale) and an exponent k
                  // in sixteenths (in exponent); COAT: optimizer states
} Granularity;

// A matrix (rows, cols), row-major: element (i, j) is at data[i * stride + j]. With `transposed` the
// memory holds the transpose instead: element (i, j) is at data[j * stride + i].
// data == NULL: this recipe does not have the tensor.
typedef struct {
    void *data;
    void *scale;       // see Granularity; NULL with SCALE_NONE
    uint8_t *exponent; // SCALE_EXPAND only: k * 16 per group
    uint32_t *amax;    // (rows) bits of the largest |x| of each row, written by the operation that computes x. A value
                       // may cover several rows; the other rows then have 0. NULL if unused
    int64_t rows, cols, stride;
    Format format;
    Granularity granularity;
    int group;
    bool transposed;
} Tensor;

// A weight of a linear layer (out, in), with the FP8 copies that FP8 matmuls read.
typedef struct {
    Tensor value;      // (out, in) BF16 or FP32
    Tensor codes;      // (out, in) E4M3, SCALE_TENSOR; data NULL if its matmuls are not FP8
    Tensor codes_t;    // transpose of codes, for dgrad
    uint32_t *maximum; // bits of the largest |value|, left by the optimizer for the next quantization; NULL: none
} Weight;

// Alignment of every tensor in bytes. The fastest paths of cuBLASLt and cuDNN need it.
#define TENSOR_ALIGNMENT 256
static inline size_t align_up(size_t bytes) {
    return (bytes + TENSOR_ALIGNMENT - 1) / TENSOR_ALIGNMENT * TENSOR_ALIGNMENT;
}

static inline Tensor no_tensor(void) {
    Tensor t;
    memset(&t, 0, sizeof t);
    return t;
}

static inline int64_t tensor_elements(Tensor t) {
    return t.rows * t.cols;
}

// Returns rows [begin, begin + count) of t. If t is transposed, these are columns of its memory.
static inline Tensor tensor_rows(Tensor t, int64_t begin, int64_t count) {
    if (t.data) t.data = (char *)t.data + (size_t)(begin * (t.transposed ? 1 : t.stride)) * format_bytes(t.format);
    if (t.granularity == SCALE_GROUP && t.scale)
        t.scale = (char *)t.scale + (size_t)(begin * ((t.cols + t.group - 1) / t.group)) * format_bytes(FMT_BF16);
    if (t.granularity == SCALE_ROW && t.scale) t.scale = (float *)t.scale + begin;
    if (t.amax) t.amax += begin;
    t.rows = count;
    return t;
}

// Returns columns [begin, begin + count) of a plain tensor (no scales), for example q of a packed qkv.
static inline Tensor tensor_cols(Tensor t, int64_t begin, int64_t count) {
    if (t.data) t.data = (char *)t.data + (size_t)begin * format_bytes(t.format);
    t.cols = count;
    return t;
}
