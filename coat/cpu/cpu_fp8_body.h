// Loops that encode and decode FP8, included by cpu_kernels_body.h. The results are bit-identical to the results of
// formats.h and quantize.h. The loops have no branches, so that the compiler can vectorize them.
#ifdef VARIANT

// Decodes one FP8 value. For a normal value, moves the bits to FP32's fields and corrects the exponent's bias. For a
// subnormal value, converts the mantissa, an integer, to FP32.
INLINE float VARIANT(decode_one)(uint32_t code, Format format) {
    const bool e4m3 = format == FMT_E4M3;
    const uint32_t mbits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, largest = e4m3 ? 0x7eu : 0x7bu;
    uint32_t magnitude = code & 0x7fu, sign = (code & 0x80u) << 24;
    float normal = bits_float((magnitude << (23 - mbits)) + ((127u - bias) << 23));
    float small = (float)(int32_t)magnitude * (e4m3 ? 0x1p-9f : 0x1p-16f);
    float value = magnitude >> mbits ? normal : small;
    value = magnitude > largest ? (!e4m3 && magnitude == 0x7cu ? INFINITY : NAN) : value;
    return bits_float(float_bits(value) | sign);
}

// Returns a magnitude as a float with `mbits` mantissa bits, rounded to nearest even. Values beyond the format's
// maximum, inf included, become `largest`. A subnormal result is rounded by adding `magic`, a float whose ulp is the
// format's smallest subnormal.
INLINE uint32_t VARIANT(encode_magnitude)(uint32_t magnitude, uint32_t mbits, uint32_t bias, uint32_t largest) {
    const uint32_t drop = 23 - mbits, lowest = (128u - bias) << 23, magic = (151u - bias - mbits) << 23;
    uint32_t rounded = magnitude + ((1u << (drop - 1)) - 1u) + ((magnitude >> drop) & 1u);
    uint32_t normal = (rounded >> drop) - ((127u - bias) << mbits);
    uint32_t small = float_bits(bits_float(magnitude) + bits_float(magic)) - magic;
    uint32_t code = magnitude < lowest ? small : normal;
    return code > largest ? largest : code;
}

// Rounds x to the nearest FP8 value. NaN becomes 0x7f or 0xff.
INLINE uint8_t VARIANT(encode_one)(float x, Format format) {
    const bool e4m3 = format == FMT_E4M3;
    uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffffu;
    uint32_t code = VARIANT(encode_magnitude)(magnitude, e4m3 ? 3 : 2, e4m3 ? 7 : 15, e4m3 ? 0x7eu : 0x7bu);
    code = magnitude > 0x7f800000u ? 0x7fu : code;
    return (uint8_t)(code | (bits >> 24 & 0x80u));
}

INLINE uint32_t VARIANT(amax_bits_of)(const real *x, int64_t n) {
    uint32_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = magnitude_bits((float)x[i]);
        best = bits > best ? bits : best;
    }
    return best;
}

static uint32_t VARIANT(amax_bits)(const real *x, int64_t n) {
    return VARIANT(amax_bits_of)(x, n);
}

static void VARIANT(decode_fp8)(real *restrict out, const uint8_t *restrict codes, int64_t n, float scale,
                                Format format) {
    if (format == FMT_E5M2)
        for (int64_t i = 0; i < n; i++) out[i] = (real)(VARIANT(decode_one)(codes[i], FMT_E5M2) * scale);
    else
        for (int64_t i = 0; i < n; i++) out[i] = (real)(VARIANT(decode_one)(codes[i], FMT_E4M3) * scale);
}

static void VARIANT(encode_fp8)(uint8_t *restrict codes, const real *restrict x, int64_t n, float r, Format format) {
    if (format == FMT_E5M2)
        for (int64_t i = 0; i < n; i++) codes[i] = VARIANT(encode_one)((float)x[i] * r, FMT_E5M2);
    else
        for (int64_t i = 0; i < n; i++) codes[i] = VARIANT(encode_one)((float)x[i] * r, FMT_E4M3);
}

static void VARIANT(encode_stochastic)(uint8_t *restrict codes, const real *restrict x, const uint8_t *restrict random,
                                       int64_t n, float r) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = float_bits((float)x[i] * r), magnitude = bits & 0x7fffffffu;
        uint32_t code = (VARIANT(encode_magnitude)(magnitude, 10, 15, 0x7bffu) + random[i]) >> 8;
        code = code > 0x7bu ? 0x7bu : code;
        code = magnitude > 0x7f800000u ? 0x7fu : code;
        codes[i] = (uint8_t)(code | (bits >> 24 & 0x80u));
    }
}

// Quantizes one group of n values to E4M3, and writes the group's scale. Returns the group's amax as FP32 bits.
INLINE uint32_t VARIANT(encode_group)(uint8_t *restrict codes, uint16_t *restrict scale, const real *restrict x,
                                      int64_t n) {
    uint32_t largest = VARIANT(amax_bits_of)(x, n);
    *scale = group_scale_from_amax(largest, E4M3_MAX);
    float r = scale_reciprocal(bf16_decode(*scale));
    for (int64_t i = 0; i < n; i++) codes[i] = VARIANT(encode_one)((float)x[i] * r, FMT_E4M3);
    return largest;
}

static uint32_t VARIANT(encode_groups)(uint8_t *codes, uint16_t *scales, const real *x, int64_t n, int group) {
    uint32_t largest = 0, bits;
    for (int64_t i = 0; i < n; i += group, scales++) {
        if (group == 16 && n - i >= 16)
            bits = VARIANT(encode_group)(codes + i, scales, x + i, 16);
        else
            bits = VARIANT(encode_group)(codes + i, scales, x + i, n - i < group ? n - i : group);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static void VARIANT(decode_groups)(real *restrict out, const uint8_t *restrict codes, const uint16_t *scales, int64_t n,
                                   int group) {
    for (int64_t i = 0; i < n; i += group, scales++) {
        float scale = bf16_decode(*scales);
        if (group == 16 && n - i >= 16)
            for (int64_t j = i; j < i + 16; j++) out[j] = (real)(VARIANT(decode_one)(codes[j], FMT_E4M3) * scale);
        else
            for (int64_t j = i; j < n && j < i + group; j++)
                out[j] = (real)(VARIANT(decode_one)(codes[j], FMT_E4M3) * scale);
    }
}
#endif
