// The 8-bit dynamic exponent format ("DE8") of 8-bit optimizers (Dettmers et al., arXiv 2110.02861), for quant_error's
// table of quantization errors. The format is a sorted list of values in [0, 1]; a group's values are multiples of its
// amax. After the sign bit (if any), e leading zeros stand for 10^-e, a one ends them, and the remaining bits are a
// linear fraction: 10^-e (0.1 + 0.9 (fraction + 1/2) / 2^bits). One code is reserved for 1, so that the amax is exact.
#pragma once
#include <math.h>
#include <stdint.h>

enum { DE8_EXPONENTS = 7, CODEBOOK_MAX = 256 };

typedef struct {
    int count;                   // number of table values, including 0 and 1
    double values[CODEBOOK_MAX]; // the table, sorted in ascending order
} Codebook;

// Fills the value table of the DE8 format: 0, 1 and between them 127 values or, if with_sign is 0, 254.
static inline void codebook_de8(Codebook *book, int with_sign) {
    book->count = 0;
    book->values[book->count++] = 0;
    for (int e = DE8_EXPONENTS - 1; e >= 0; e--) {
        int items = 1 << (DE8_EXPONENTS - 1 - e + (with_sign ? 0 : 1));
        for (int i = 0; i < items; i++) book->values[book->count++] = pow(10, -e) * (0.1 + 0.9 * (i + 0.5) / items);
    }
    book->values[book->count++] = 1;
}

static inline double codebook_nearest(const Codebook *book, double x) {
    int low = 0, high = book->count - 1;
    if (x >= book->values[high]) return book->values[high];
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (book->values[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    return x - book->values[low] <= book->values[high] - x ? book->values[low] : book->values[high];
}

// Quantizes and dequantizes a group of n values x in place. a is the group's amax.
//   expand       raises |x| / a to a power k before rounding. k is the largest multiple of 1/16, from 1/16 to 255/16,
//                that maps the smallest non-zero |x| to at least the second smallest positive table value
//   never_zero   rounds only 0 to 0
static inline void codebook_round(const Codebook *book, float *x, int n, int expand, int never_zero) {
    double a = 0, b = INFINITY, k = 1;
    for (int i = 0; i < n; i++) {
        double magnitude = fabs((double)x[i]);
        if (magnitude > a) a = magnitude;
        if (magnitude > 0 && magnitude < b) b = magnitude;
    }
    if (a == 0) return;
    if (expand) k = fmin(fmax(floor(16 * -log2(book->values[2]) / log2(a / b) + 0.02), 1), 255) / 16;
    for (int i = 0; i < n; i++) {
        if (x[i] == 0) continue;
        double value = codebook_nearest(book, pow(fabs((double)x[i]) / a, k));
        if (value == 0 && never_zero) value = book->values[1];
        x[i] = copysignf((float)(a * pow(value, 1 / k)), x[i]);
    }
}
