// Compares the device's format conversions with formats.h on the host: decoding of all FP8 values, and encoding of all
// BF16 values and of random FP32 patterns, at each position of a word. All bits must agree, except those of NaN.
#include <vector>

#include "coat/cuda/attention/hopper.h"
#include "coat/cuda/fp8/fp8_kernels.h"
#include "coat/numerics/moments.h"
#include "format_inputs.h"
#include "tap.h"

namespace {

constexpr int64_t RANDOM = (int64_t)2 << 24, ALL_BF16 = 65536,
                  ALL_CODES = 256; // numbers of inputs; half of the RANDOM inputs are random bit patterns
constexpr int PLACES = 4;          // number of FP8 values in a 32-bit word
constexpr int THREADS = 256;
constexpr int FACTORS = 150; // powers of two by which rescaling is tested, from 1 (to E5M2: 2^7) downward

// --- conversions under test, which run on the device --------------------------------------------------------
// Each type below has a function apply(), which converts SPAN inputs, given as bits, to SPAN results.
template <Format F> struct EncodePair {
    __device__ static void apply(const uint32_t in[SPAN], uint32_t out[SPAN], float) {
        for (int i = 0; i < SPAN; i += 2) {
            const uint32_t pair = encode_pair<F>(bits_float(in[i]), bits_float(in[i + 1]));
            // Upper bits of the pair must be 0. They are not masked, so that the comparison detects other bits.
            out[i] = pair & 0xffu, out[i + 1] = pair >> 8;
        }
    }
};

__device__ void words_split(const uint32_t word[SPAN / 4], uint32_t out[SPAN]) {
    for (int i = 0; i < SPAN; i++) out[i] = word[i / 4] >> 8 * (i % 4) & 0xffu;
}

template <Format F> struct EncodeWords {
    __device__ static void apply(const uint32_t in[SPAN], uint32_t out[SPAN], float) {
        float x[SPAN];
        uint32_t word[SPAN / 4];
        for (int i = 0; i < SPAN; i++) x[i] = bits_float(in[i]);
        encode<F, SPAN>(x, 1.0f, word);
        words_split(word, out);
    }
};

// Runs a function of formats.h or moments.h, compiled for the device, on one value at a time.
template <uint32_t (*FUNCTION)(uint32_t)> struct Single {
    __device__ static void apply(const uint32_t in[SPAN], uint32_t out[SPAN], float) {
        for (int i = 0; i < SPAN; i++) out[i] = FUNCTION(in[i]);
    }
};
template <Format F> COAT_HD uint32_t encode_single(uint32_t x) {
    return fp8_encode(F, bits_float(x));
}
template <Format F> COAT_HD uint32_t decode_single(uint32_t code) {
    return float_bits(fp8_decode(F, (uint8_t)code));
}
COAT_HD uint32_t bf16_single(uint32_t x) {
    return bf16_encode(bits_float(x));
}
COAT_HD uint32_t bf16_value(uint32_t x) {
    return float_bits(bf16_decode((uint16_t)x));
}
// Returns x limited to the valid inputs of moment encoding: from 0 to the largest moment value, not NaN. fminf() is not
// used, because devices and C libraries treat signaling NaN differently.
template <Format F> COAT_HD float position_of(uint32_t x) {
    const float y = fabsf(bits_float(x));
    return y < moment_largest(F) ? y : moment_largest(F);
}
template <Format F> COAT_HD uint32_t position_single(uint32_t x) {
    return code_nearest(position_of<F>(x), F);
}
template <Format F> COAT_HD uint32_t position_expected(uint32_t x) {
    return fp8_encode(F, position_of<F>(x));
}
template <Format F> COAT_HD uint32_t magnitude_single(uint32_t code) {
    return float_bits(code_magnitude((uint8_t)(code % (moment_max_code(F) + 1)), F));
}
template <Format F> COAT_HD uint32_t magnitude_expected(uint32_t code) {
    return float_bits(fp8_decode(F, (uint8_t)(code % (moment_max_code(F) + 1))));
}

template <int V> struct Bf16Packed {
    __device__ static void apply(const uint32_t in[SPAN], uint32_t out[SPAN], float) {
        for (int i = 0; i < SPAN; i += V) {
            float x[V];
            uint16_t bits[V];
            for (int j = 0; j < V; j++) x[j] = bits_float(in[i + j]);
            const Pack<bf16, V> pack = packed<bf16, V>(x);
            memcpy(bits, &pack, sizeof bits);
            for (int j = 0; j < V; j++) out[i + j] = bits[j];
        }
    }
};

struct Bf16PackedWords {
    __device__ static void apply(const uint32_t in[SPAN], uint32_t out[SPAN], float) {
        float x[SPAN];
        for (int i = 0; i < SPAN; i++) x[i] = bits_float(in[i]);
        const Bf16Words<SPAN> words = packed_words<SPAN>(x);
        for (int i = 0; i < SPAN; i++) out[i] = words.word[i / 2] >> 16 * (i % 2) & 0xffffu;
    }
};

struct Bf16Pair {
    __device__ static void apply(const uint32_t in[SPAN], uint32_t out[SPAN], float) {
        for (int i = 0; i < SPAN; i += 2) {
            const uint32_t pair = bf16_pair(bits_float(in[i]), bits_float(in[i + 1]));
            out[i] = pair & 0xffffu, out[i + 1] = pair >> 16;
        }
    }
};

struct Bf16Stored {
    __device__ static void apply(const uint32_t in[SPAN], uint32_t out[SPAN], float) {
        for (int i = 0; i < SPAN; i++) out[i] = float_bits(stored<bf16>(bits_float(in[i])));
    }
};

template <int V> struct Bf16Unpack {
    __device__ static void apply(const uint32_t in[SPAN], uint32_t out[SPAN], float) {
        for (int i = 0; i < SPAN; i += V) {
            uint16_t bits[V];
            float x[V];
            for (int j = 0; j < V; j++) bits[j] = (uint16_t)in[i + j];
            Pack<bf16, V> pack;
            memcpy(&pack, bits, sizeof pack);
            unpack<V>(pack, x);
            for (int j = 0; j < V; j++) out[i + j] = float_bits(x[j]);
        }
    }
};

struct Bf16UnpackWords {
    __device__ static void apply(const uint32_t in[SPAN], uint32_t out[SPAN], float) {
        Bf16Words<SPAN> words = {};
        float x[SPAN];
        for (int i = 0; i < SPAN; i++) words.word[i / 2] |= in[i] << 16 * (i % 2);
        unpack<SPAN>(words, x);
        for (int i = 0; i < SPAN; i++) out[i] = float_bits(x[i]);
    }
};

__device__ void words_join(const uint32_t in[SPAN], uint32_t word[SPAN / 4]) {
    for (int i = 0; i < SPAN / 4; i++)
        word[i] = in[4 * i] | in[4 * i + 1] << 8 | in[4 * i + 2] << 16 | in[4 * i + 3] << 24;
}

// Decodes E4M3 values with decode_unscaled() or decode().
enum DecodeWay { UNSCALED, SCALED };

template <DecodeWay WAY> struct DecodeWords {
    __device__ static void apply(const uint32_t in[SPAN], uint32_t out[SPAN], float) {
        uint32_t word[SPAN / 4];
        float x[SPAN];
        words_join(in, word);
        if constexpr (WAY == UNSCALED) decode_unscaled<SPAN>(word, x);
        if constexpr (WAY == SCALED) decode<SPAN>(word, 1.0f, x);
        for (int i = 0; i < SPAN; i++) out[i] = float_bits(x[i]);
    }
};

template <Format TO> struct Rescale {
    __device__ static void apply(const uint32_t in[SPAN], uint32_t out[SPAN], float factor) {
        uint32_t word[SPAN / 4], rescaled[SPAN / 4];
        words_join(in, word);
        rescale_codes<TO, SPAN>(word, factor, rescaled);
        words_split(rescaled, out);
    }
};

// Computes the BF16 scale of a group from its amax |x|, or the reciprocal of this scale.
struct GroupScale {
    __device__ static void apply(const uint32_t in[SPAN], uint32_t out[SPAN], float) {
        for (int i = 0; i < SPAN; i++) {
            float scale;
            const __nv_bfloat16 rounded = group_scale(fabsf(bits_float(in[i])), &scale);
            uint16_t bits;
            memcpy(&bits, &rounded, sizeof bits);
            out[i] = bits;
        }
    }
};
struct GroupReciprocal {
    __device__ static void apply(const uint32_t in[SPAN], uint32_t out[SPAN], float) {
        for (int i = 0; i < SPAN; i++) {
            float scale;
            group_scale(fabsf(bits_float(in[i])), &scale);
            out[i] = float_bits(group_scale_reciprocal(scale));
        }
    }
};
uint32_t group_scale_expected(uint32_t x) {
    return group_scale_from_amax(x & 0x7fffffffu, E4M3_MAX);
}
uint32_t group_reciprocal_expected(uint32_t x) {
    return float_bits(scale_reciprocal(bf16_decode((uint16_t)group_scale_expected(x))));
}

// --- comparison of the device's results with the host's -----------------------------------------------------
// True if x is the bit pattern of a NaN in format RESULT.
template <Format RESULT> COAT_HD bool result_is_nan(uint32_t x) {
    if (RESULT == FMT_E4M3) return (x & 0x7fu) == 0x7fu;
    if (RESULT == FMT_E5M2) return (x & 0x7fu) > 0x7cu;
    if (RESULT == FMT_BF16) return (x & 0x7fffu) > 0x7f80u;
    return (x & 0x7fffffffu) > 0x7f800000u;
}

struct Found {
    // different: number of wrong results. other_nan: number of NaN that differ from the host's NaN, which is accepted
    unsigned long long different, other_nan;
    unsigned long long first; // first wrong result: index of its input << 32 | its bits
};

// Compares the device's results with the expected ones. Each thread converts SPAN inputs from index `thread * SPAN +
// place`, modulo `count`.
template <typename Conversion, Format RESULT>
__global__ void compare_kernel(const uint32_t *in, const uint32_t *expected, int64_t count, int place, float factor,
                               Found *found) {
    const int64_t begin = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * SPAN;
    if (begin >= count) return;
    uint32_t x[SPAN], result[SPAN];
    for (int i = 0; i < SPAN; i++) x[i] = in[(begin + i + place) % count];
    Conversion::apply(x, result, factor);
    for (int i = 0; i < SPAN; i++) {
        const int64_t at = (begin + i + place) % count;
        if (result[i] == expected[at]) continue;
        if (result_is_nan<RESULT>(result[i]) && result_is_nan<RESULT>(expected[at])) {
            atomicAdd(&found->other_nan, 1ull);
        } else {
            atomicAdd(&found->different, 1ull);
            atomicMin(&found->first, (unsigned long long)at << 32 | result[i]);
        }
    }
}

// Inputs in host and device memory, and the results that the host computed for them.
struct Inputs {
    std::vector<uint32_t> in, expected;
    uint32_t *device_in, *device_expected;
    Found *found;
};

void inputs_open(Inputs *inputs) {
    const size_t bytes = inputs->in.size() * sizeof(uint32_t);
    const char *doing = "bringing inputs to the device";
    CUDA_CHECK(cudaMalloc((void **)&inputs->device_in, bytes), doing);
    CUDA_CHECK(cudaMalloc((void **)&inputs->device_expected, bytes), doing);
    CUDA_CHECK(cudaMalloc((void **)&inputs->found, sizeof(Found)), doing);
    CUDA_CHECK(cudaMemcpy(inputs->device_in, inputs->in.data(), bytes, cudaMemcpyHostToDevice), doing);
    inputs->expected.resize(inputs->in.size());
}

void inputs_close(Inputs *inputs) {
    cudaFree(inputs->device_in);
    cudaFree(inputs->device_expected);
    cudaFree(inputs->found);
}

// Applies `function` to every input on the host. The following comparisons expect these results.
template <typename Function> void expect(Inputs *inputs, Function function) {
    const int64_t count = (int64_t)inputs->in.size();
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) inputs->expected[(size_t)i] = function(inputs->in[(size_t)i]);
    CUDA_CHECK(cudaMemcpy(inputs->device_expected, inputs->expected.data(), (size_t)count * sizeof(uint32_t),
                          cudaMemcpyHostToDevice),
               "bringing the host's results to the device");
}

// Compares the device's results with the expected results at all positions of a word. Adds the counts to `all` and
// keeps the first difference.
template <typename Conversion, Format RESULT> void compare_into(Inputs *inputs, float factor, Found *all) {
    const int64_t count = (int64_t)inputs->in.size();
    for (int place = 0; place < PLACES; place++) {
        Found found = {0, 0, ~0ull};
        CUDA_CHECK(cudaMemcpy(inputs->found, &found, sizeof found, cudaMemcpyHostToDevice), "a comparison");
        compare_kernel<Conversion, RESULT><<<(unsigned)ceil_div(count, THREADS * SPAN), THREADS>>>(
            inputs->device_in, inputs->device_expected, count, place, factor, inputs->found);
        LAUNCH_CHECK("compare_kernel");
        CUDA_CHECK(cudaMemcpy(&found, inputs->found, sizeof found, cudaMemcpyDeviceToHost), "a comparison");
        all->different += found.different;
        all->other_nan += found.other_nan;
        if (all->first == ~0ull) all->first = found.first;
    }
}

void found_say(const Inputs &inputs, const Found &found, int64_t compared, const char *name) {
    char first[128] = "";
    if (found.different) {
        const size_t at = (size_t)(found.first >> 32);
        snprintf(first, sizeof first, "; first input %08x: %08x, on the host %08x", inputs.in[at],
                 (uint32_t)found.first, inputs.expected[at]);
    }
    tap_check(found.different == 0, name, "%llu of %lld differ, %llu NaN have other bits%s", found.different,
              (long long)compared, found.other_nan, first);
}

template <typename Conversion, Format RESULT> void compare(Inputs *inputs, const char *name) {
    Found all = {0, 0, ~0ull};
    compare_into<Conversion, RESULT>(inputs, 1.0f, &all);
    found_say(*inputs, all, PLACES * (int64_t)inputs->in.size(), name);
}

// --- comparison of each conversion on the device and the host -----------------------------------------------
template <Format F> void compare_encoding(Inputs *inputs) {
    const bool wide = F == FMT_E5M2;
    expect(inputs, encode_single<F>);
    compare<EncodePair<F>, F>(inputs, wide ? "encode_pair to E5M2" : "encode_pair to E4M3");
    compare<EncodeWords<F>, F>(inputs, wide ? "encode to E5M2" : "encode to E4M3");
    compare<Single<encode_single<F>>, F>(inputs, wide ? "e5m2_encode" : "e4m3_encode");
    expect(inputs, position_expected<F>);
    compare<Single<position_single<F>>, F>(inputs, wide ? "code_nearest in E5M2" : "code_nearest in E4M3");
}

void compare_bf16_encoding(Inputs *inputs) {
    expect(inputs, bf16_single);
    compare<Bf16Packed<1>, FMT_BF16>(inputs, "packed BF16, one");
    compare<Bf16Packed<8>, FMT_BF16>(inputs, "packed BF16, 8");
    compare<Bf16PackedWords, FMT_BF16>(inputs, "packed BF16, words");
    compare<Bf16Pair, FMT_BF16>(inputs, "bf16_pair");
    compare<Single<bf16_single>, FMT_BF16>(inputs, "bf16_encode");
    expect(inputs, [](uint32_t x) { return bf16_value(bf16_single(x)); });
    compare<Bf16Stored, FMT_FP32>(inputs, "stored BF16");
    expect(inputs, group_scale_expected);
    compare<GroupScale, FMT_BF16>(inputs, "group_scale");
    expect(inputs, group_reciprocal_expected);
    compare<GroupReciprocal, FMT_FP32>(inputs, "group_scale_reciprocal");
}

void compare_bf16_decoding(Inputs *inputs) {
    expect(inputs, bf16_value);
    compare<Bf16Unpack<1>, FMT_FP32>(inputs, "unpack BF16, one");
    compare<Bf16Unpack<8>, FMT_FP32>(inputs, "unpack BF16, 8");
    compare<Bf16UnpackWords, FMT_FP32>(inputs, "unpack BF16, words");
    compare<Single<bf16_value>, FMT_FP32>(inputs, "bf16_decode");
}

// Tests E4M3 values that are multiplied by each power of two up to 1 (2^7 if TO is E5M2) and rounded to TO.
template <Format TO> void compare_rescaling(Inputs *inputs, const char *name) {
    Found all = {0, 0, ~0ull};
    for (int i = 0; i < FACTORS && all.different == 0; i++) {
        const float factor = ldexpf(1.0f, (TO == FMT_E4M3 ? 0 : 7) - i);
        expect(inputs,
               [factor](uint32_t code) { return fp8_encode(TO, fp8_decode(FMT_E4M3, (uint8_t)code) * factor); });
        compare_into<Rescale<TO>, TO>(inputs, factor, &all);
    }
    found_say(*inputs, all, FACTORS * PLACES * ALL_CODES, name);
}

void compare_decoding(Inputs *inputs) {
    expect(inputs, decode_single<FMT_E4M3>);
    compare<DecodeWords<UNSCALED>, FMT_FP32>(inputs, "decode_unscaled of E4M3");
    compare<DecodeWords<SCALED>, FMT_FP32>(inputs, "decode of E4M3");
    compare<Single<decode_single<FMT_E4M3>>, FMT_FP32>(inputs, "e4m3_decode");
    expect(inputs, decode_single<FMT_E5M2>);
    compare<Single<decode_single<FMT_E5M2>>, FMT_FP32>(inputs, "e5m2_decode");
    expect(inputs, magnitude_expected<FMT_E4M3>);
    compare<Single<magnitude_single<FMT_E4M3>>, FMT_FP32>(inputs, "code_magnitude of E4M3");
    expect(inputs, magnitude_expected<FMT_E5M2>);
    compare<Single<magnitude_single<FMT_E5M2>>, FMT_FP32>(inputs, "code_magnitude of E5M2");
    compare_rescaling<FMT_E4M3>(inputs, "rescale_codes of E4M3");
    compare_rescaling<FMT_E5M2>(inputs, "rescale_codes of E4M3 to E5M2");
}

} // namespace

int main(void) {
    Inputs numbers = {}, halves = {}, codes = {};
    for (uint32_t b = 0; b < ALL_BF16; b++) numbers.in.push_back(b << 16), halves.in.push_back(b);
    numbers.in.resize((size_t)(ALL_BF16 + RANDOM));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < RANDOM; i++) numbers.in[(size_t)(ALL_BF16 + i)] = float_bits(random_float(0, (uint64_t)i));
    for (uint32_t c = 0; c < ALL_CODES; c++) codes.in.push_back(c);
    inputs_open(&numbers);
    inputs_open(&halves);
    inputs_open(&codes);
    compare_decoding(&codes);
    compare_bf16_decoding(&halves);
    compare_encoding<FMT_E4M3>(&numbers);
    compare_encoding<FMT_E5M2>(&numbers);
    compare_bf16_encoding(&numbers);
    inputs_close(&numbers);
    inputs_close(&halves);
    inputs_close(&codes);
    return tap_status();
}
