// Compiles the CPU backend's inner loops once per instruction set, and selects a set at run time. Does not use GCC's
// target_clones, because the dynamic loader selects clones before sanitizers are initialized, and GCC does not clone
// the functions that OpenMP outlines.
#pragma GCC optimize("no-trapping-math") // no-trapping-math lets GCC vectorize loops with a selection (a < b ? a : b)

#include "cpu_kernels.h"

#include <math.h>
#include <string.h>

#include "numerics/quantize.h"

#define LANES 16

#pragma GCC diagnostic ignored "-Wpsabi" // -Wpsabi warns about vector arguments, but only inlined functions have any

// Integer type as wide as real: element type of index vectors of __builtin_shuffle().
#ifdef COAT_DOUBLE
typedef int64_t lane_index;
#else
typedef int32_t lane_index;
#endif

static inline real real_sqrt(real x) {
#ifdef COAT_DOUBLE
    return sqrt(x);
#else
    return sqrtf(x);
#endif
}

#define VARIANT(name) name##_base
#define VARIANT_NAME "portable"
#define VECTOR_BYTES 16
#define PANEL_ROWS 6
#include "cpu_kernels_body.h"
#undef VARIANT
#undef VARIANT_NAME
#undef VECTOR_BYTES
#undef PANEL_ROWS

#ifdef __x86_64__
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define VARIANT(name) name##_avx2
#define VARIANT_NAME "AVX2"
#define VECTOR_BYTES 32
#define PANEL_ROWS 6
#include "cpu_kernels_body.h"
#undef VARIANT
#undef VARIANT_NAME
#undef VECTOR_BYTES
#undef PANEL_ROWS
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#define VARIANT(name) name##_avx512
#define VARIANT_NAME "AVX-512"
#define VECTOR_BYTES 64
#define PANEL_ROWS 12
#include "cpu_kernels_body.h"
#undef VARIANT
#undef VARIANT_NAME
#undef VECTOR_BYTES
#undef PANEL_ROWS
#pragma GCC pop_options
#endif

int cpu_kernels_supported(const CpuKernels *list[CPU_VARIANTS]) {
    int count = 0;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        list[count++] = &table_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) list[count++] = &table_avx2;
#endif
    list[count++] = &table_base;
    return count;
}
