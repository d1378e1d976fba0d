// The tensor descriptor that every operation takes: where the values are, in which format, and with
// which scales. What a recipe changes is said here, so that the model's text does not change with it.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "formats.h"

// How codes become values. The scale is always the dequantisation multiplier: value = code * scale.
typedef enum {
    SCALE_NONE,   // values are stored as they are (FP32, BF16, integers)
    SCALE_TENSOR, // one FP32 scale, 16-byte aligned (the libraries demand it)
    SCALE_ROW,    // one FP32 scale per row, a power of two: (rows). Of codes; and of what a product of such codes
                  // leaves in BF16 for an operation that multiplies by it (value = stored * scale, exactly)
    SCALE_GROUP,  // one BF16 scale per `group` consecutive elements of a row: (rows, ceil(cols / group))
    SCALE_EXPAND, // optimizer states: per `group` consecutive elements of the flat tensor an FP32 absolute
                  // maximum a (in scale) and an exponent k in sixteenths (in exponent); COAT: optimizer states
} Granularity;

// A matrix (rows, cols), row-major: element (i, j) is at data[i * stride + j]. With `transposed` the
// memory holds the transpose instead: element (i, j) is at data[j * stride + i].
// data == NULL means "there is no such tensor in this recipe".
typedef struct {
    void *data;
    void *scale;       // see Granularity; NULL with SCALE_NONE
    uint8_t *exponent; // SCALE_EXPAND only: k * 16 per group
    uint32_t *amax;    // maxima of the bits of |x| as its producer left them, one per row or, for several rows, one in
                       // the place of one of them and 0 in the others'; NULL if unused
    int64_t rows, cols, stride;
    Format format;
    Granularity granularity;
    int group;
    bool transposed;
} Tensor;

// A weight of a linear layer (out, in), with the FP8 copies that FP8 products read.
typedef struct {
    Tensor value;      // (out, in) BF16 or FP32
    Tensor codes;      // (out, in) E4M3, SCALE_TENSOR; data NULL where products are not FP8
    Tensor codes_t;    // its transpose, for the gradient of the input
    uint32_t *maximum; // bits of the largest |value| as the optimizer left it for the codes; NULL where it is not kept
} Weight;

// Every tensor begins at a multiple of it: what the libraries' fastest paths ask for.
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

// Rows [begin, begin + count): of a transposed tensor, that many of the columns that its memory holds.
static inline Tensor tensor_rows(Tensor t, int64_t begin, int64_t count) {
    if (t.data) t.data = (char *)t.data + (size_t)(begin * (t.transposed ? 1 : t.stride)) * format_bytes(t.format);
    if (t.granularity == SCALE_GROUP && t.scale)
        t.scale = (char *)t.scale + (size_t)(begin * ((t.cols + t.group - 1) / t.group)) * format_bytes(FMT_BF16);
    if (t.granularity == SCALE_ROW && t.scale) t.scale = (float *)t.scale + begin;
    if (t.amax) t.amax += begin;
    t.rows = count;
    return t;
}

// Columns [begin, begin + count) of a plain tensor (no scales), for example q of a packed qkv.
static inline Tensor tensor_cols(Tensor t, int64_t begin, int64_t count) {
    if (t.data) t.data = (char *)t.data + (size_t)begin * format_bytes(t.format);
    t.cols = count;
    return t;
}
