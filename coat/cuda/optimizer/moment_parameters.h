// Defines the kernel argument that lists the parameters with 8-bit moments, and functions that load and store parameter
// values, WIDTH at a time or one by one. Included by fp8_moments.cu and cuda_muon.cu.
#pragma once
#include "fp8_moments.h"

namespace {

constexpr int ENTRIES = 280; // maximum number of parameters per kernel launch

// A parameter without its moments.
struct ParameterEntry {
    void *value, *master;
    const void *grad;
    uint32_t *amax; // amax of the stored weight values; NULL: not computed
    int64_t elements;
    uint64_t index; // Parameter.index
    bool decay;
    float rate; // parameter_rate()
};

// Returns the entry of a parameter. Calls fatal() if the weight has gaps between its rows.
inline ParameterEntry parameter_entry(const char *operation, const Parameter &p) {
    ParameterEntry e = {};
    e.value = p.weight.value.data;
    e.master = p.master.data;
    e.grad = p.grad.data;
    e.amax = p.weight.maximum;
    e.elements = flat_elements(operation, p.weight.value);
    e.index = p.index;
    e.decay = p.decay;
    e.rate = parameter_rate(&p);
    return e;
}

struct MomentEntry : ParameterEntry {
    uint8_t *code[2];     // FP8 values of the moments: [0] of m, [1] of v
    float *scale[2];      // amaxes of the moments' groups (SCALE_EXPAND)
    uint8_t *exponent[2]; // exponents of the moments' groups
    int64_t chunks;       // number of full chunks, 0 if the tensors are not 16-byte aligned
};

struct MomentTable {
    MomentEntry entry[ENTRIES];
    // index of each entry's first work item, followed by the total number of work items. A work item is a run of chunks
    // or a remaining group
    int first[ENTRIES + 1];
    int count;
    bool expand;
    const UpdateScalars *scalars;
    StepState *state;
};
static_assert(sizeof(MomentTable) <= TABLE_BYTES, "the table must fit a kernel argument");

// --- access to WIDTH adjacent parameter values at a time -------------------------------------------------------------
// WIDTH full-precision parameter values in their storage format.
template <MasterStore MASTER> struct MasterPack {
    Pack<float, MASTER == IN_VALUE || MASTER == IN_FP32 ? WIDTH : 1> full;
    Pack<uint16_t, MASTER == IN_SPLIT16 || MASTER == IN_VALUE_BF16 ? WIDTH : 1> high;
    Pack<uint16_t, MASTER == IN_SPLIT16 ? WIDTH : 1> low;
};

template <MasterStore MASTER> __device__ inline MasterPack<MASTER> master_load(const ParameterEntry &e, int64_t at) {
    MasterPack<MASTER> p;
    if constexpr (MASTER == IN_VALUE) p.full = load_streaming<WIDTH>((const float *)e.value + at);
    if constexpr (MASTER == IN_FP32) p.full = load_streaming<WIDTH>((const float *)e.master + at);
    if constexpr (MASTER == IN_SPLIT16 || MASTER == IN_VALUE_BF16)
        p.high = load_streaming<WIDTH>((const uint16_t *)e.value + at);
    if constexpr (MASTER == IN_SPLIT16) p.low = load_streaming<WIDTH>((const uint16_t *)e.master + at);
    return p;
}

// Converts stored full-precision parameters to FP32. For split16, adds the lower 16 bits as a signed integer
// (master_join()).
template <MasterStore MASTER> __device__ inline void master_values(const MasterPack<MASTER> &p, float out[WIDTH]) {
    if constexpr (MASTER == IN_VALUE || MASTER == IN_FP32) {
        unpack<WIDTH>(p.full, out);
    } else {
        uint32_t high[WIDTH / 2], low[WIDTH / 2] = {};
        memcpy(high, &p.high, sizeof high);
        if constexpr (MASTER == IN_SPLIT16) memcpy(low, &p.low, sizeof low);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const uint32_t upper = i % 2 ? high[i / 2] & 0xffff0000u : high[i / 2] << 16;
            const int32_t lower = i % 2 ? (int32_t)low[i / 2] >> 16 : (int16_t)low[i / 2];
            out[i] = bits_float(upper + (uint32_t)lower);
        }
    }
}

// Combine the lower or the upper 16 bits of two words into one word. The bits of `first` become the lower half.
__device__ inline uint32_t lower_halves(uint32_t first, uint32_t second) {
    return __byte_perm(first, second, 0x5410);
}
__device__ inline uint32_t upper_halves(uint32_t first, uint32_t second) {
    return __byte_perm(first, second, 0x7632);
}

// Stores WIDTH updated parameter values. Returns the amaxes of the BF16 values at even and at odd positions; 0 if the
// parameter is FP32.
template <MasterStore MASTER>
__device__ inline __nv_bfloat162 master_write(const ParameterEntry &e, const UpdateScalars &s, int64_t at,
                                              const float p[WIDTH]) {
    uint32_t high[WIDTH / 2], low[WIDTH / 2];
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) {
        const uint32_t x = float_bits(p[2 * i]), y = float_bits(p[2 * i + 1]);
        low[i] = lower_halves(x, y);
        high[i] = upper_halves(x + 0x8000u, y + 0x8000u); // rounds to the upper half as master_bf16() does
        if constexpr (MASTER == IN_VALUE_BF16) {
            const uint64_t index = e.index + (uint64_t)(at + 2 * i);
            high[i] = bf16_encode_stochastic(p[2 * i], s.seed, s.t, index) |
                      (uint32_t)bf16_encode_stochastic(p[2 * i + 1], s.seed, s.t, index + 1) << 16;
        }
    }
    Pack<uint16_t, WIDTH> half;
    if constexpr (MASTER == IN_SPLIT16) {
        memcpy(&half, low, sizeof half);
        store((uint16_t *)e.master + at, half);
    }
    if constexpr (MASTER == IN_VALUE || MASTER == IN_FP32)
        store((float *)(MASTER == IN_VALUE ? e.value : e.master) + at, packed<float, WIDTH>(p));
    __nv_bfloat162 largest = __float2bfloat162_rn(0.0f);
    if constexpr (MASTER != IN_VALUE) {
        memcpy(&half, high, sizeof half);
        store((uint16_t *)e.value + at, half);
        __nv_bfloat162 pairs[WIDTH / 2];
        memcpy(pairs, high, sizeof pairs);
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) largest = __hmax2_nan(largest, __habs2(pairs[i]));
    }
    return largest;
}

// Raises *amax, in shared memory, to the warp's amax as BF16 bits.
__device__ inline void amax_note(uint32_t *amax, __nv_bfloat162 largest) {
    uint32_t bits;
    memcpy(&bits, &largest, sizeof bits);
    bits = __reduce_max_sync(ALL_LANES, max(bits & 0xffffu, bits >> 16));
    if (threadIdx.x % WARP == 0) atomicMax(amax, bits);
}

// --- access to one parameter value at a time -------------------------------------------------------------------------
template <MasterStore MASTER> __device__ inline float rest_load(const ParameterEntry &e, int64_t at) {
    if constexpr (MASTER == IN_VALUE) return ((const float *)e.value)[at];
    if constexpr (MASTER == IN_FP32) return ((const float *)e.master)[at];
    const uint16_t high = ((const uint16_t *)e.value)[at];
    return MASTER == IN_SPLIT16 ? master_join(high, ((const uint16_t *)e.master)[at]) : bf16_decode(high);
}

// Stores one updated parameter value. Returns the bits of its BF16 value without sign, or 0 if the parameter is FP32.
template <MasterStore MASTER>
__device__ inline uint32_t rest_store(const ParameterEntry &e, const UpdateScalars &s, int64_t at, float p) {
    if constexpr (MASTER == IN_VALUE) ((float *)e.value)[at] = p;
    if constexpr (MASTER == IN_FP32) ((float *)e.master)[at] = p;
    if constexpr (MASTER == IN_SPLIT16) ((uint16_t *)e.master)[at] = (uint16_t)float_bits(p);
    if constexpr (MASTER == IN_VALUE) return 0;
    const uint16_t high =
        MASTER == IN_VALUE_BF16 ? bf16_encode_stochastic(p, s.seed, s.t, e.index + (uint64_t)at) : master_bf16(p);
    ((uint16_t *)e.value)[at] = high;
    return high & 0x7fffu;
}

} // namespace
