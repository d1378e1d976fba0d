// Compares the 8-bit moments on device and host (coat/numerics/moments.h): logarithm and exponents k bit for bit, FP8
// values and states up to the rounding of the special-function unit.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "coat/numerics/moments.h"
#include "tap.h"

enum { COUNT = 1 << 20, GROUP = 128, THREADS = 256 };

static void check(cudaError_t status, const char *what) {
    if (status == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
    exit(1);
}

// Results for input i that host and device both compute and that the test compares.
typedef struct {
    float logarithm, value[2];
    uint8_t k[2], code[2];
    uint16_t bf16;
} Result;

// Computes all results for input i that the test compares.
COAT_HD static Result compute(uint64_t i) {
    Result r;
    uint32_t x = 1 + (uint32_t)(rng_hash(21, 1, i) % 0x7f7fffffu), y = 1 + (uint32_t)(rng_hash(21, 2, i) % x);
    r.logarithm = moment_log2(bits_float(x));
    r.k[0] = moment_exponent(x, y, FMT_E4M3);
    r.k[1] = moment_exponent(x, y, FMT_E5M2);
    // The magnitudes of a group are spread over all FP8 values that the group's exponent k can represent.
    uint8_t k = (uint8_t)(1 + i / GROUP % 255);
    float a = bits_float((uint32_t)(64 + rng_hash(22, 1, i / GROUP) % 128) << 23 | 0x2468acu);
    float reach = 16.0f * 17.0f / (float)k;
    float v = a;
    for (float left = reach * rng_uniform(22, 2, i); left > 0.0f; left -= 1.0f)
        v *= left >= 1.0f ? 0.5f : 1.0f - 0.5f * left;
    MomentGroup first = moment_group(a, k, FMT_E4M3), second = moment_group(a, k, FMT_E5M2);
    r.code[0] = moment_encode(i % 2 ? v : -v, first, FMT_E4M3, false);
    r.code[1] = moment_encode(v, second, FMT_E5M2, true);
    r.value[0] = moment_decode((uint8_t)(i % 0x7f), first, FMT_E4M3);
    r.value[1] = moment_decode((uint8_t)(i % 0x7c), second, FMT_E5M2);
    r.bf16 = bf16_encode_stochastic(v, 5, 9, i);
    return r;
}

static __global__ void compute_all(Result *results) {
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT) results[i] = compute(i);
}

int main(void) {
    Result *device, *results = (Result *)malloc(COUNT * sizeof *results);
    check(cudaMalloc((void **)&device, COUNT * sizeof *device), "memory of the device");
    compute_all<<<COUNT / THREADS, THREADS>>>(device);
    check(cudaMemcpy(results, device, COUNT * sizeof *device, cudaMemcpyDeviceToHost), "the moments' functions");
    int logarithms = 0, exponents = 0, codes = 0, far = 0, weights = 0;
    double value = 0;
    for (int i = 0; i < COUNT; i++) {
        Result host = compute((uint64_t)i), gpu = results[i];
        logarithms += float_bits(host.logarithm) != float_bits(gpu.logarithm);
        exponents += host.k[0] != gpu.k[0] || host.k[1] != gpu.k[1];
        weights += host.bf16 != gpu.bf16;
        for (int j = 0; j < 2; j++) {
            codes += host.code[j] != gpu.code[j];
            far += abs(host.code[j] - gpu.code[j]) > 1;
            double error = fabs((double)gpu.value[j] - (double)host.value[j]);
            if (host.value[j] > 1e-36f) value = fmax(value, error / (double)host.value[j]);
        }
    }
    tap_check(logarithms == 0, "moment_log2 has the host's bits", "%d of %d differ", logarithms, COUNT);
    tap_check(exponents == 0, "exponents k of 8-bit moments have the host's bits", "%d of %d differ", exponents, COUNT);
    tap_check(codes < COUNT / 1000 && far == 0, "FP8 moments differ from the host's only near rounding boundaries",
              "%d of %d differ, %d by more than one", codes, 2 * COUNT, far);
    tap_check(value < 1e-4, "decoded moments agree with the host's", "largest relative difference %.1e", value);
    tap_check(weights == 0, "stochastic rounding to BF16 has the host's bits", "%d of %d differ", weights, COUNT);
    cudaFree(device);
    free(results);
    return tap_status();
}
