// Compares samples of an FP8 matmul's output with sums in FP64.
#include "matmul_samples.h"

#include "numerics/quantize.h"
#include "numerics/rng.h"

#define SAMPLES 1024
#define SAMPLE_THREADS 256

// One sampled output element of a matmul and its reference sums, which the GPU computes.
typedef struct {
    double sum, squares; // FP64 sums of the element's terms a * b, and of their squares
    double added, d;     // added: increase of the element of D by the matmul; d: the element after the matmul
} Sample;

struct MatmulSamples {
    Sample *sample; // (SAMPLES) samples, in device memory
    float *before;  // (SAMPLES) values of D before the matmul, in device memory
};

// Returns element (i, j) of D, which is column-major in BF16 or FP32.
__device__ static inline float element(const MatmulKey &key, const void *d, int64_t i, int64_t j) {
    const int64_t at = j * key.ldd + i;
    return key.shape.d == FMT_BF16 ? bf16_decode(((const uint16_t *)d)[at]) : ((const float *)d)[at];
}

// Returns the position (i, j) of sample s in D. It is pseudo-random, but the same in every run.
__device__ static inline void place_of(const MatmulShape &shape, int s, int64_t *i, int64_t *j) {
    const uint64_t bits = rng_hash(11, 0, (uint64_t)s);
    *i = (int64_t)((bits & 0xffffffffu) % (uint64_t)shape.m);
    *j = (int64_t)((bits >> 32) % (uint64_t)shape.n);
}

__global__ static void before_kernel(SampledMatmul p, float *before) {
    const int s = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    int64_t i, j;
    if (s >= SAMPLES) return;
    place_of(p.key.shape, s, &i, &j);
    before[s] = p.key.accumulate ? element(p.key, p.d, i, j) : 0.0f;
}

// Computes the reference sums of a matmul's samples, one sample per block.
__global__ __launch_bounds__(SAMPLE_THREADS) static void after_kernel(SampledMatmul p, const float *before,
                                                                      Sample *sample) {
    __shared__ double sums[SAMPLE_THREADS], squares[SAMPLE_THREADS];
    const MatmulShape &shape = p.key.shape;
    const int s = (int)blockIdx.x;
    int64_t i, j;
    place_of(shape, s, &i, &j);
    const uint8_t *const a = (const uint8_t *)p.a + i * p.key.lda, *const b = (const uint8_t *)p.b + j * p.key.ldb;
    double sum = 0, square = 0;
    for (int64_t k = threadIdx.x; k < shape.k; k += SAMPLE_THREADS) {
        const double term = (double)fp8_decode(shape.a, a[k]) * (double)fp8_decode(shape.b, b[k]);
        sum += term, square += term * term;
    }
    sums[threadIdx.x] = sum, squares[threadIdx.x] = square;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int t = 1; t < SAMPLE_THREADS; t++) sum += sums[t], square += squares[t];
    const double scale = (double)*p.scale_a * (p.scale_b ? (double)*p.scale_b : 1.0);
    const double d = element(p.key, p.d, i, j);
    sample[s] = {sum * scale, square * scale * scale, d - (double)before[s], d};
}

MatmulSamples *matmul_samples_open(void) {
    MatmulSamples *samples = (MatmulSamples *)xcalloc(1, sizeof *samples);
    const char *doing = "allocating the samples of matmuls";
    CUDA_CHECK(cudaMalloc(&samples->sample, SAMPLES * sizeof *samples->sample), doing);
    CUDA_CHECK(cudaMalloc(&samples->before, SAMPLES * sizeof *samples->before), doing);
    return samples;
}

void matmul_samples_close(MatmulSamples *samples) {
    cudaFree(samples->sample);
    cudaFree(samples->before);
    free(samples);
}

void matmul_samples_before(Exec *exec, MatmulSamples *samples, const SampledMatmul *p) {
    before_kernel<<<SAMPLES / SAMPLE_THREADS, SAMPLE_THREADS, 0, cuda_backend(exec)->stream>>>(*p, samples->before);
    LAUNCH_CHECK("matmul_samples_before");
}

MatmulError matmul_samples_after(Exec *exec, MatmulSamples *samples, const SampledMatmul *p) {
    static Sample sample[SAMPLES];
    after_kernel<<<SAMPLES, SAMPLE_THREADS, 0, cuda_backend(exec)->stream>>>(*p, samples->before, samples->sample);
    LAUNCH_CHECK("matmul_samples_after");
    cuda_download(exec, sample, samples->sample, sizeof sample);
    double wrong = 0, size = 0, along = 0, square = 0;
    for (int s = 0; s < SAMPLES; s++) {
        const Sample *const x = &sample[s];
        wrong += (x->added - x->sum) * (x->added - x->sum);
        size += fmax(fmax(x->sum * x->sum, x->squares), x->d * x->d);
        along += x->added * x->sum;
        square += x->sum * x->sum;
    }
    const MatmulError unknown = {NAN, NAN};
    if (size == 0) return wrong == 0 ? unknown : (MatmulError){INFINITY, 0};
    return {sqrt(wrong / size), square > 0 ? along / square - 1 : 0};
}
