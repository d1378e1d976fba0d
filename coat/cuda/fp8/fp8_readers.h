// Readers of BF16 tensors and of E4M3 tensors with a scale per group, 16 columns of a row at a time.
//
// load(row, column) -> Loaded starts the access. Then:
//   values(loaded, out)      16 values: unscaled(loaded, out) * scale(loaded)
//   grouped                  true if the tensor has group scales
//   word(loaded)             a word that depends on the loads, for kernels that fix the loads' order (fp8_act.h)
// With LAST, the tensor is not read again soon, so it is loaded with streaming accesses. Row and column numbers are
// 32-bit, so that an address takes one instruction.
#pragma once
#include "fp8_kernels.h"

template <bool LAST> constexpr CachePolicy READ_POLICY = LAST ? CACHE_STREAM : CACHE_DEFAULT;

template <bool LAST> struct Bf16Reader {
    static constexpr bool grouped = false;
    typedef Bf16Words<SPAN> Loaded;
    const char *data;
    int row_bytes;

    __device__ Loaded load(int row, int column) const {
        return load_words<SPAN, READ_POLICY<LAST>>((const bf16 *)((data + 2 * column) + (int64_t)row * row_bytes));
    }
    __device__ static uint32_t word(const Loaded &loaded) { return loaded.word[SPAN / 2 - 1]; }
    __device__ static void values(const Loaded &loaded, float out[SPAN]) { unpack<SPAN>(loaded, out); }
    __device__ static void unscaled(const Loaded &loaded, float out[SPAN]) { unpack<SPAN>(loaded, out); }
    __device__ static float scale(const Loaded &) { return 1.0f; }
};

template <bool LAST> struct GroupReader {
    static constexpr bool grouped = true;
    struct Loaded {
        Pack<uint32_t, SPAN / 4> codes;
        uint16_t scale; // BF16 bits of the group's scale
    };
    const uint8_t *codes;
    const char *scales; // group scales in BF16, (rows, groups)
    int row_bytes, scale_bytes, group_bits;

    __device__ Loaded load(int row, int column) const {
        Loaded loaded;
        loaded.codes =
            ::load<SPAN / 4, READ_POLICY<LAST>>((const uint32_t *)((codes + column) + (int64_t)row * row_bytes));
        loaded.scale = *(const uint16_t *)((scales + 2 * (column >> group_bits)) + (int64_t)row * scale_bytes);
        return loaded;
    }
    __device__ static uint32_t word(const Loaded &loaded) { return loaded.codes.value[SPAN / 4 - 1] ^ loaded.scale; }
    __device__ static void values(const Loaded &loaded, float out[SPAN]) {
        decode<SPAN>(loaded.codes.value, scale(loaded), out);
    }
    __device__ static void unscaled(const Loaded &loaded, float out[SPAN]) {
        decode_unscaled<SPAN>(loaded.codes.value, out);
    }
    __device__ static float scale(const Loaded &loaded) { return bf16_decode(loaded.scale); }
};

template <bool LAST> static Bf16Reader<LAST> bf16_reader(Tensor t) {
    return {(const char *)t.data, (int)(2 * t.stride)};
}

template <bool LAST> static GroupReader<LAST> group_reader(Tensor t) {
    return {(const uint8_t *)t.data, (const char *)t.scale, (int)t.stride, (int)(2 * ceil_div(t.cols, t.group)),
            group_bits_of(t)};
}

// Calls f(reader) with the reader for a tensor in BF16 or with group scales.
template <bool LAST, typename F> static void for_reader(Tensor t, F f) {
    if (is_grouped(t))
        f(group_reader<LAST>(t));
    else
        f(bf16_reader<LAST>(t));
}
