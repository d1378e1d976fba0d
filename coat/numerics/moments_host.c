// Encodes and decodes 8-bit moments on the host, group by group. The loops are compiled for several instruction sets,
// as in cpu/cpu_kernels.c. All variants give the same bits, because fmaf() rounds once both in hardware and in the math
// library.
#pragma GCC optimize("no-trapping-math") // no-trapping-math lets GCC vectorize loops with a selection (a < b ? a : b)

#include "moments_host.h"

#include "base/error.h"
#include "moments.h"

#define MAX_GROUP 1024

typedef struct {
    uint32_t largest, smallest;
} Extremes;

typedef struct {
    void (*decode)(float *x, const uint8_t *codes, int n, MomentGroup group, Format format);
    Extremes (*measure)(const float *x, int n);
    void (*encode)(uint8_t *codes, const float *x, int n, MomentGroup group, Format format, bool second);
} MomentLoops;

#define VARIANT(name) name##_base
#include "moments_host_body.h"
#undef VARIANT

#ifdef __x86_64__
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define VARIANT(name) name##_avx2
#include "moments_host_body.h"
#undef VARIANT
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#define VARIANT(name) name##_avx512
#include "moments_host_body.h"
#undef VARIANT
#pragma GCC pop_options
#endif

static const MomentLoops *moment_loops(void) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &moment_loops_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &moment_loops_avx2;
#endif
    return &moment_loops_base;
}

static void require_groups(Tensor moment, int64_t begin) {
    if (moment.granularity != SCALE_EXPAND || moment.group < 1 || moment.group > MAX_GROUP || begin % moment.group)
        fatal(EXIT_DEVICE, "internal error: %s moments in groups of %d cannot be accessed from element %lld",
              format_name(moment.format), moment.group, (long long)begin);
}

void moments_load(Tensor moment, int64_t begin, int64_t n, real *values) {
    require_groups(moment, begin);
    const MomentLoops *loops = moment_loops();
    float x[MAX_GROUP];
    for (int64_t i = 0; i < n; i += moment.group) {
        int count = n - i < moment.group ? (int)(n - i) : moment.group;
        int64_t g = (begin + i) / moment.group;
        MomentGroup group = moment_group(((const float *)moment.scale)[g], moment.exponent[g], moment.format);
        loops->decode(x, (const uint8_t *)moment.data + begin + i, count, group, moment.format);
        for (int j = 0; j < count; j++) values[i + j] = (real)x[j];
    }
}

bool moments_store(Tensor moment, int64_t begin, int64_t n, const real *values, const MomentStore *how) {
    require_groups(moment, begin);
    const MomentLoops *loops = moment_loops();
    float x[MAX_GROUP];
    bool finite = true;
    for (int64_t i = 0; i < n; i += moment.group) {
        int count = n - i < moment.group ? (int)(n - i) : moment.group;
        int64_t g = (begin + i) / moment.group;
        uint8_t *codes = (uint8_t *)moment.data + begin + i;
        for (int j = 0; j < count; j++) x[j] = (float)values[i + j];
        Extremes e = loops->measure(x, count);
        const bool linear = moment.format == FMT_I8;
        MomentGroup group = linear ? moment_group(moment_i8_amax(e.largest), MOMENT_K_ONE, FMT_I8)
                                   : moment_group_measured(e.largest, e.smallest, moment.format, how->expand);
        ((float *)moment.scale)[g] = group.a;
        moment.exponent[g] = group.k_16ths;
        loops->encode(codes, x, count, group, moment.format, how->second);
        finite = finite && e.largest < 0x7f800000u;
    }
    return finite;
}
