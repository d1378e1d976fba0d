// The loops over the elements of a group, written once; moments_host.c includes this file for every instruction set.

#define INLINE static inline __attribute__((always_inline))

INLINE void VARIANT(decode_as)(float *x, const uint8_t *codes, int n, MomentGroup group, Format format, bool deep) {
    group.deep = deep; // known to the compiler in each copy
    for (int i = 0; i < n; i++) x[i] = moment_decode(codes[i], group, format);
}

static void VARIANT(decode)(float *restrict x, const uint8_t *restrict codes, int n, MomentGroup group, Format format) {
    if (group.deep)
        VARIANT(decode_as)(x, codes, n, group, format, true);
    else if (format == FMT_E4M3)
        VARIANT(decode_as)(x, codes, n, group, FMT_E4M3, false);
    else
        VARIANT(decode_as)(x, codes, n, group, FMT_E5M2, false);
}

// The largest |x| and the smallest that is not zero, as bits.
static Extremes VARIANT(measure)(const float *x, int n) {
    Extremes e = {0, 0x7f800000u};
    for (int i = 0; i < n; i++) {
        uint32_t bits = float_bits(x[i]) & 0x7fffffffu, positive = bits == 0 ? 0x7f800000u : bits;
        e.largest = bits > e.largest ? bits : e.largest;
        e.smallest = positive < e.smallest ? positive : e.smallest;
    }
    return e;
}

INLINE void VARIANT(encode_as)(uint8_t *codes, const float *x, int n, MomentGroup group, Format format, bool second) {
    for (int i = 0; i < n; i++) codes[i] = moment_encode(x[i], group, format, second);
}

static void VARIANT(encode)(uint8_t *restrict codes, const float *restrict x, int n, MomentGroup group, Format format,
                            bool second) {
    if (!second)
        VARIANT(encode_as)(codes, x, n, group, format, false);
    else if (format == FMT_E4M3)
        VARIANT(encode_as)(codes, x, n, group, FMT_E4M3, true);
    else
        VARIANT(encode_as)(codes, x, n, group, FMT_E5M2, true);
}

INLINE void VARIANT(bounds_as)(uint8_t *low, uint8_t *high, const float *v, int n, MomentGroup group, Format format) {
    for (int i = 0; i < n; i++) low[i] = moment_code_below(v[i], group, format);
    for (int i = 0; i < n; i++) high[i] = moment_code_above(low[i], format);
}

// moment_encode_stochastic() in steps that vectorise one by one.
static void VARIANT(encode_stochastic)(uint8_t *restrict codes, const float *restrict v, int n, MomentGroup group,
                                       Format format, const MomentStore *how, uint64_t index) {
    uint8_t low[LARGEST_GROUP], high[LARGEST_GROUP];
    float uniform[LARGEST_GROUP], below[LARGEST_GROUP], above[LARGEST_GROUP];
    const uint64_t seed = how->seed;
    const int64_t t = how->t;
    for (int i = 0; i < n; i++) uniform[i] = moment_uniform(seed, t, index + (uint64_t)i);
    if (format == FMT_E4M3)
        VARIANT(bounds_as)(low, high, v, n, group, FMT_E4M3);
    else
        VARIANT(bounds_as)(low, high, v, n, group, FMT_E5M2);
    VARIANT(decode)(below, low, n, group, format);
    VARIANT(decode)(above, high, n, group, format);
    for (int i = 0; i < n; i++) codes[i] = moment_choose(v[i], low[i], high[i], below[i], above[i], uniform[i]);
}

static const MomentLoops VARIANT(moment_loops) = {VARIANT(decode), VARIANT(measure), VARIANT(encode),
                                                  VARIANT(encode_stochastic)};

#undef INLINE
