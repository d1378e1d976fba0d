// Device code for groups of 8-bit moments (numerics/moments.h). Eight lanes share a group of 128 elements; each lane
// processes 16. Memory bandwidth is the limit, but the arithmetic takes more than half as long. Therefore the
// arithmetic is shortened:
//   - log2(value / F) of an FP8 value is read from a table in shared memory;
//   - the exponents k of m and v need four logarithms: of m's and v's largest and smallest |x| in the group. Four lanes
//     compute these logarithms in parallel;
//   - cases near the ends of FP32's range (subnormal elements, ranges beyond 2^126, inf, NaN) use the functions of
//     moments.h, group by group. In all other cases the short code here gives the same bits.
// Included by fp8_moments.cu and cuda_muon.cu.
#pragma once
#include "cuda/fp8/fp8_kernels.h"
#include "cuda_optimizer.h"
#include "numerics/moments.h"

constexpr int GROUP = MOMENT_GROUP;
constexpr int GROUP_LANES = 8;
constexpr int WIDTH = 8; // number of elements per memory access
// number of memory accesses that a lane needs to load its elements of a group
constexpr int SPANS = GROUP / (GROUP_LANES * WIDTH);
constexpr int LANE_ELEMENTS = SPANS * WIDTH;
constexpr int CHUNK_THREADS = 128; // threads per block

// --- tables of logarithms of FP8 values ------------------------------------------------------------------------------
// Lookup tables in shared memory for decoding 8-bit moments. The entry of FP8 value 0 is -inf, so that 2^entry is 0.
struct alignas(512) CodeTables {
    float log2[128];      // log2(value / F), indexed by the lower 7 bits of the FP8 value
    float inverse_k[256]; // 1 / k, indexed by the exponent k in sixteenths
};

__device__ static inline void tables_fill(CodeTables *tables) {
    for (int i = (int)threadIdx.x; i < 256; i += CHUNK_THREADS) {
        if (i < 128) tables->log2[i] = i == 0 ? -INFINITY : code_log2((uint8_t)i, FMT_E4M3);
        tables->inverse_k[i] = (float)MOMENT_K_ONE / (float)i;
    }
    __syncthreads();
}

// Returns log2(value / F) of one FP8 value of a word, selected by byte index. The lookup table is aligned to its size
// of 512 bytes, so that the address takes one instruction.
__device__ static inline float code_log2_of(uint32_t table, uint32_t word, int byte) {
    const uint32_t offset = (byte == 0 ? word << 2 : word >> (8 * byte - 2)) & (127u * (uint32_t)sizeof(float));
    float log2;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(log2) : "r"(table | offset));
    return log2;
}

__device__ static inline float fast_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// --- decoding and measuring groups of moments ---------------------------------------------------------------
// Parameters of a group of moments, identical in the eight lanes that share the group. Used by the fast code path.
struct LaneGroup {
    float a, k_inverse; // a: amax of the group; for decoding, times beta1 (m) or beta2 (v). k_inverse: 1 / k
    uint8_t k_16ths;    // exponent k in sixteenths
    bool decodes;       // true if the fast path decodes the group exactly, because no intermediate is subnormal
    bool encodes;       // true if the fast path encodes the group exactly, because no element is subnormal
    // v only: true if nonzero elements could round to 0; they must become the smallest nonzero FP8 value instead
    bool floors;
};

__device__ static inline LaneGroup lane_group(const CodeTables *tables, float a, uint32_t k_16ths) {
    LaneGroup group = {};
    group.a = a;
    group.k_16ths = (uint8_t)k_16ths;
    group.k_inverse = tables->inverse_k[k_16ths];
    // reach: log2 of the ratio of the amax a to the value that the smallest nonzero FP8 value represents
    const float reach = (moment_target(FMT_E4M3) + 1.0f) * group.k_inverse;
    group.decodes = a == 0.0f || (a < INFINITY && reach - fminf(fast_log2(a), 0.0f) < 125.0f);
    return group;
}

// Decodes a lane's FP8 moments, 4 per word, to FP32. SECOND: the moments are v, which has no signs.
template <bool SECOND>
__device__ static inline void decode_lane(const CodeTables *tables, LaneGroup group,
                                          const uint32_t word[LANE_ELEMENTS / 4], float out[LANE_ELEMENTS]) {
    if (group.decodes) {
        const uint32_t table = (uint32_t)__cvta_generic_to_shared(tables->log2);
#pragma unroll
        for (int i = 0; i < LANE_ELEMENTS; i++) {
            const int byte = i % 4;
            const float log2 = code_log2_of(table, word[i / 4], byte);
            const float x = group.a * element_exp2(log2 * group.k_inverse);
            out[i] = SECOND ? x : bits_float(float_bits(x) | (word[i / 4] << (24 - 8 * byte) & 0x80000000u));
        }
    } else {
        const MomentGroup whole = moment_group(group.a, group.k_16ths, FMT_E4M3);
#pragma unroll
        for (int i = 0; i < LANE_ELEMENTS; i++)
            out[i] = moment_decode((uint8_t)(word[i / 4] >> (8 * (i % 4))), whole, FMT_E4M3);
    }
}

// Extremes of a lane's elements. largest: raw bits of the largest |x|. negated: 2^32 minus the raw bits of the smallest
// nonzero |x|, so that both extremes are reduced by a maximum; 0 if all elements are 0.
struct LaneExtremes {
    uint32_t largest, negated;
};

__device__ static inline LaneExtremes lane_extremes(const float x[LANE_ELEMENTS], bool signed_values) {
    LaneExtremes e = {};
    // bits of the smallest magnitude minus 1. A zero wraps around to the largest unsigned value and is thus ignored.
    uint32_t below = UINT32_MAX;
#pragma unroll
    for (int i = 0; i < LANE_ELEMENTS; i++) {
        const uint32_t bits = signed_values ? float_bits(x[i]) & 0x7fffffffu : float_bits(x[i]);
        e.largest = max(e.largest, bits);
        below = __viaddmin_u32(bits, UINT32_MAX, below);
    }
    e.negated = ~below;
    return e;
}

// Computes the parameters of the new groups of m and v from the extremes of the eight lanes that share the groups. All
// eight lanes get the results. Of these lanes, 0, 2, 4 and 6 reduce m's largest, m's smallest, v's largest and v's
// smallest value. Each odd lane repeats the work of the preceding even lane.
__device__ static inline void groups_measure(const CodeTables *tables, LaneExtremes m, LaneExtremes v, bool expand,
                                             LaneGroup *group_m, LaneGroup *group_v) {
    const int lane = (int)threadIdx.x % WARP, first = lane & ~(GROUP_LANES - 1);
    const bool second = lane & 4, smallest = lane & 2;
    uint32_t largest = second ? v.largest : m.largest, negated = second ? v.negated : m.negated;
    largest = max(largest, __shfl_xor_sync(ALL_LANES, second ? m.largest : v.largest, 4));
    negated = max(negated, __shfl_xor_sync(ALL_LANES, second ? m.negated : v.negated, 4));
    uint32_t kept = max(smallest ? negated : largest, __shfl_xor_sync(ALL_LANES, smallest ? largest : negated, 2));
    kept = max(kept, __shfl_xor_sync(ALL_LANES, kept, 1));
    const uint32_t bits = smallest ? 0u - kept : kept;
    const float log2 = moment_log2(bits_float(bits)), other = __shfl_xor_sync(ALL_LANES, log2, 2);
    const float range = smallest ? other - log2 : log2 - other;
    uint32_t k = expand ? moment_exponent_of(range, FMT_E4M3) : MOMENT_K_ONE;
    // floors: true if the smallest element could round to 0. An element cannot if its position (moment_position()) is
    // at least 2^-1/2 times the smallest nonzero FP8 value.
    const bool floors = !(range * (float)k <= MOMENT_K_ONE * (moment_target(FMT_E4M3) + 1.5f));
    const uint32_t told = k | (uint32_t)(bits >= 0x00800000u) << 8 | (uint32_t)floors << 9;
    const auto group_of = [&](int at) {
        const uint32_t a = __shfl_sync(ALL_LANES, bits, first + at);
        uint32_t told_there = __shfl_sync(ALL_LANES, told, first + at + 2);
        const bool finite = a < 0x7f800000u;
        if (a == 0 || !finite) told_there = MOMENT_K_ONE | (uint32_t)finite << 8;
        LaneGroup group = lane_group(tables, bits_float(a), told_there & 0xffu);
        group.encodes = told_there & 1u << 8;
        group.floors = told_there & 1u << 9;
        return group;
    };
    *group_m = group_of(0);
    *group_v = group_of(4);
}

// --- encoding moments to FP8 -----------------------------------------------------------------------------------------
// Returns F * (|x| / a)^k as moment_position() does, F being the largest FP8 value. x must be 0 or normal. Because of
// rounding errors, the result may exceed F; the later conversion to FP8 saturates such values.
__device__ static inline float lane_position(float x, float k, float log2_a) {
    return element_position(fast_log2(fabsf(x)) - log2_a, k, FMT_E4M3);
}

template <bool SECOND, bool FLOORS>
__device__ static inline void encode_short(LaneGroup group, const float x[LANE_ELEMENTS],
                                           uint32_t word[LANE_ELEMENTS / 4]) {
    constexpr float smallest = 0x1p-9f; // smallest nonzero FP8 value
    const float k = (float)group.k_16ths * (1.0f / MOMENT_K_ONE), log2_a = group.a > 0.0f ? fast_log2(group.a) : 0.0f;
    const auto place = [&](float value) {
        const float y = lane_position(value, k, log2_a);
        if constexpr (FLOORS) return value == 0.0f ? 0.0f : fmaxf(y, smallest);
        return SECOND ? y : copysignf(y, value);
    };
#pragma unroll
    for (int i = 0; i < LANE_ELEMENTS / 4; i++)
        word[i] = encode_pair<FMT_E4M3>(place(x[4 * i]), place(x[4 * i + 1])) |
                  encode_pair<FMT_E4M3>(place(x[4 * i + 2]), place(x[4 * i + 3])) << 16;
}

// Encodes a lane's moments to FP8, rounding to nearest even.
template <bool SECOND>
__device__ static inline void encode_lane(LaneGroup group, const float x[LANE_ELEMENTS],
                                          uint32_t word[LANE_ELEMENTS / 4]) {
    if (group.encodes && !(SECOND && group.floors)) {
        encode_short<SECOND, false>(group, x, word);
    } else if (group.encodes) {
        encode_short<SECOND, SECOND>(group, x, word);
    } else {
        const MomentGroup whole = moment_group(group.a, group.k_16ths, FMT_E4M3);
#pragma unroll
        for (int i = 0; i < LANE_ELEMENTS; i++) {
            const uint32_t code = moment_encode(x[i], whole, FMT_E4M3, SECOND);
            word[i / 4] = i % 4 == 0 ? code : word[i / 4] | code << (8 * (i % 4));
        }
    }
}
