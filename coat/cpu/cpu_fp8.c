// FP8 codes of the CPU backend, with the loops compiled for every instruction set as in cpu_kernels.c.
#pragma GCC optimize("no-trapping-math")

#include "cpu_fp8.h"

#include <math.h>

#include "quantize.h"

typedef struct {
    uint32_t (*maximum_bits)(const real *x, int64_t n);
    void (*decode)(real *out, const uint8_t *codes, int64_t n, float scale, Format format);
    void (*encode)(uint8_t *codes, const real *x, int64_t n, float r, Format format);
    uint32_t (*encode_groups)(uint8_t *codes, uint16_t *scales, const real *x, int64_t n, int group);
    void (*decode_groups)(real *out, const uint8_t *codes, const uint16_t *scales, int64_t n, int group);
} Fp8Loops;

#define VARIANT(name) name##_base
#include "cpu_fp8_body.h"
#undef VARIANT

#ifdef __x86_64__
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define VARIANT(name) name##_avx2
#include "cpu_fp8_body.h"
#undef VARIANT
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#define VARIANT(name) name##_avx512
#include "cpu_fp8_body.h"
#undef VARIANT
#pragma GCC pop_options
#endif

static const Fp8Loops *fp8_loops(void) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &loops_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &loops_avx2;
#endif
    return &loops_base;
}

static uint16_t *group_scales(Tensor t, int64_t row) {
    return (uint16_t *)t.scale + row * ((t.cols + t.group - 1) / t.group);
}

void fp8_load(Tensor t, int64_t row, int64_t begin, int64_t count, real *values) {
    const Fp8Loops *loops = fp8_loops();
    const uint8_t *codes = (const uint8_t *)t.data + row * t.stride + begin;
    if (t.granularity != SCALE_GROUP) {
        float scale = t.granularity == SCALE_TENSOR ? *(const float *)t.scale : 1.0f;
        loops->decode(values, codes, count, scale, t.format);
        return;
    }
    const uint16_t *scales = group_scales(t, row) + begin / t.group;
    int64_t first = smaller(count, begin % t.group ? t.group - begin % t.group : 0); // of a group that began before
    if (first > 0) loops->decode(values, codes, first, bf16_decode(*scales++), t.format);
    loops->decode_groups(values + first, codes + first, scales, count - first, t.group);
}

uint32_t maximum_bits(const real *x, int64_t n) {
    return fp8_loops()->maximum_bits(x, n);
}

void fp8_encode_row(uint8_t *codes, const real *x, int64_t n, float r, Format format) {
    fp8_loops()->encode(codes, x, n, r, format);
}

uint32_t fp8_store_groups(Tensor t, int64_t row, const real *values) {
    uint8_t *codes = (uint8_t *)t.data + row * t.stride;
    return fp8_loops()->encode_groups(codes, group_scales(t, row), values, t.cols, t.group);
}
