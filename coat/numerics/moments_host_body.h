// Loops over the elements of a group of 8-bit moments. moments_host.c includes this file once per instruction set, with
// VARIANT(name) appending a suffix.

#define INLINE static inline __attribute__((always_inline))

INLINE void VARIANT(decode_as)(float *x, const uint8_t *codes, int n, MomentGroup group, Format format, bool deep) {
    group.deep = deep; // constant in each inlined copy
    for (int i = 0; i < n; i++) x[i] = moment_decode(codes[i], group, format);
}

static void VARIANT(decode)(float *restrict x, const uint8_t *restrict codes, int n, MomentGroup group, Format format) {
    if (format == FMT_I8)
        for (int i = 0; i < n; i++) x[i] = moment_i8_decode(codes[i], group.a);
    else if (group.deep)
        VARIANT(decode_as)(x, codes, n, group, format, true);
    else if (format == FMT_E4M3)
        VARIANT(decode_as)(x, codes, n, group, FMT_E4M3, false);
    else
        VARIANT(decode_as)(x, codes, n, group, FMT_E5M2, false);
}

// Returns the bits of the largest |x| and of the smallest nonzero |x| of n elements.
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
    if (format == FMT_I8)
        for (int i = 0; i < n; i++) codes[i] = moment_i8_encode(x[i], group.a);
    else if (!second)
        VARIANT(encode_as)(codes, x, n, group, format, false);
    else if (format == FMT_E4M3)
        VARIANT(encode_as)(codes, x, n, group, FMT_E4M3, true);
    else
        VARIANT(encode_as)(codes, x, n, group, FMT_E5M2, true);
}

static const MomentLoops VARIANT(moment_loops) = {VARIANT(decode), VARIANT(measure), VARIANT(encode)};

#undef INLINE
