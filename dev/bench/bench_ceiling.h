// Measures the maximum rates that benchmarks compare their results with: the bandwidth of copies within GPU memory, and
// the FLOP/s of a large matmul.
#pragma once
#include "dev/test/bench_cuda.h"

#define CEILING_BYTES ((size_t)1 << 30) // size of the buffers of the large copy
#define CEILING_SIZE 8192               // rows and columns of the square matmul whose rate is the ceiling

typedef struct {
    Tensor to, from; // destination and source, buffers of CEILING_BYTES each
    size_t bytes, offset;
} Copies;

static inline Copies copies_open(Bench *bench) {
    Copies c = {};
    c.to = bench_tensor(bench, 1, (int64_t)CEILING_BYTES, FMT_E4M3, 1.0f);
    c.from = bench_tensor(bench, 1, (int64_t)CEILING_BYTES, FMT_E4M3, 1.0f);
    return c;
}

static inline void copies_close(Bench *bench, Copies *c) {
    bench_release(bench, c->to);
    bench_release(bench, c->from);
}

// Copies `bytes` within GPU memory. The address changes with every call, so that the L2 cache does not hold the data.
static inline void copies_run(Bench *bench, void *context) {
    Copies *c = (Copies *)context;
    const size_t place = (c->bytes + 255) / 256 * 256;
    c->offset += place;
    if (c->offset + c->bytes > CEILING_BYTES || c->offset >= SETS * place) c->offset = 0;
    CUDA_CHECK(cudaMemcpyAsync((char *)c->to.data + c->offset, (const char *)c->from.data + c->offset, c->bytes,
                               cudaMemcpyDeviceToDevice, cuda_backend(&bench->exec)->stream),
               "copying");
}

// Returns the bytes per second of a copy that reads bytes / 2 and writes bytes / 2, each at most CEILING_BYTES.
// median_ms: bench_steady_ms or bench_median_ms.
static inline double copies_rate(Bench *bench, const Copies *c, double bytes,
                                 double (*median_ms)(Bench *, void (*)(Bench *, void *), void *)) {
    Copies copy = *c;
    const size_t each = (size_t)(bytes / 2);
    copy.bytes = each < CEILING_BYTES ? each : CEILING_BYTES;
    return 2 * (double)copy.bytes / median_ms(bench, copies_run, &copy) * 1e3;
}

// Measures and prints the bytes per second of a copy of CEILING_BYTES.
static inline double copies_ceiling(Bench *bench, const Copies *c) {
    const double rate = copies_rate(bench, c, 2.0 * (double)CEILING_BYTES, bench_steady_ms);
    printf("ceiling: device copy of %.1f GB, %.0f GB/s read and written\n", (double)CEILING_BYTES * 1e-9, rate * 1e-9);
    return rate;
}

// Allocates the copy buffers, measures and prints the bytes per second of a copy of CEILING_BYTES, and frees the
// buffers.
static inline double bench_copy_ceiling(Bench *bench) {
    Copies c = copies_open(bench);
    const double rate = copies_ceiling(bench, &c);
    copies_close(bench, &c);
    return rate;
}

typedef struct {
    Tensor y, x;
    Weight w;
} SquareMatmul;

static inline void square_matmul_run(Bench *bench, void *context) {
    SquareMatmul *p = (SquareMatmul *)context;
    bench->exec.ops->linear_forward(&bench->exec, p->y, p->x, p->w, Tensor{});
}

// Measures and prints the FLOP/s of a large square matmul of random values in E4M3, BF16 or FP32.
static inline double bench_matmul_ceiling(Bench *bench, Format format) {
    const bool fp8 = format == FMT_E4M3;
    SquareMatmul p = {};
    p.y = bench_tensor(bench, CEILING_SIZE, CEILING_SIZE, fp8 ? FMT_BF16 : format, 1.0f);
    p.x = bench_tensor(bench, CEILING_SIZE, CEILING_SIZE, format, 1.0f);
    Tensor *w = fp8 ? &p.w.codes : &p.w.value;
    *w = bench_tensor(bench, CEILING_SIZE, CEILING_SIZE, p.x.format, fp8 ? 1.0f : 0.5f);
    if (fp8) p.w.value = p.w.codes; // The matmul reads only the shape of the unquantized weight.
    const double ms = bench_median_ms(bench, square_matmul_run, &p);
    const double rate = 2.0 * CEILING_SIZE * CEILING_SIZE * CEILING_SIZE / ms * 1e3;
    printf("ceiling: %s matmul %d x %d x %d, %.3f ms, %.0f TFLOP/s\n", fp8 ? "fp8" : format_name(format), CEILING_SIZE,
           CEILING_SIZE, CEILING_SIZE, ms, rate * 1e-12);
    bench_release(bench, p.y);
    bench_release(bench, p.x);
    bench_release(bench, *w);
    return rate;
}
