// What benchmarks of many operations share: the time of an operation, the rate of a device copy, and the line that
// reports both.
#pragma once
#include "bench_cuda.h"

#define SETS 3 // of operands, in turn

typedef struct {
    Bench *bench;
    Tensor copy[2];   // memory for copies
    double copy_rate; // of a large copy, bytes read and written per second
    bool alone;       // time operations one by one, with the wait for the device around each
} Report;

// --- copies -------------------------------------------------------------------------------------------------
typedef struct {
    Tensor to, from;
    size_t bytes, offset;
} Copy;

// Rotates through the memory as far as it reaches, at most through as many places as operands have sets.
static void run_copy(Bench *bench, void *context) {
    Copy *c = (Copy *)context;
    const size_t place = (c->bytes + 255) / 256 * 256, room = (size_t)c->to.cols;
    c->offset += place;
    if (c->offset + c->bytes > room || c->offset >= SETS * place) c->offset = 0;
    CUDA_CHECK(cudaMemcpyAsync((char *)c->to.data + c->offset, (const char *)c->from.data + c->offset, c->bytes,
                               cudaMemcpyDeviceToDevice, cuda_backend(&bench->exec)->stream),
               "copying");
}

// --- time ---------------------------------------------------------------------------------------------------
// Milliseconds per operation, the median of several runs of as many operations as fill two milliseconds, one right
// behind the other as in a training step: the launch of each is hidden behind the one before.
static double operation_ms(const Report *report, void (*operation)(Bench *, void *), void *context) {
    enum { MOST = 11, QUICK = 5, REPEATS = 40 };
    const char *doing = "timing";
    Bench *bench = report->bench;
    const double once = (double)bench_median_ms(bench, operation, context);
    if (report->alone) return once;
    cudaStream_t stream = cuda_backend(&bench->exec)->stream;
    const int runs = bench->quick ? QUICK : MOST;
    const int repeats = once > 2.0 ? 1 : once < 0.05 ? REPEATS : (int)(2.0 / once);
    float ms[MOST];
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin), doing);
    CUDA_CHECK(cudaEventCreate(&end), doing);
    for (int i = 0; i < runs; i++) {
        for (int k = 0; k < 3; k++) operation(bench, context); // the host runs ahead
        CUDA_CHECK(cudaEventRecord(begin, stream), doing);
        for (int k = 0; k < repeats; k++) operation(bench, context);
        CUDA_CHECK(cudaEventRecord(end, stream), doing);
        CUDA_CHECK(cudaEventSynchronize(end), doing);
        CUDA_CHECK(cudaEventElapsedTime(&ms[i], begin, end), doing);
    }
    CUDA_CHECK(cudaEventDestroy(begin), doing);
    CUDA_CHECK(cudaEventDestroy(end), doing);
    qsort(ms, (size_t)runs, sizeof ms[0], bench_compare);
    return (double)ms[runs / 2] / repeats;
}

// The rate of a copy that reads and writes `bytes` together, as many as fit into the memory for copies.
static double copy_rate(const Report *report, double bytes) {
    const size_t room = (size_t)report->copy[0].cols, each = (size_t)(bytes / 2);
    Copy copy = {report->copy[0], report->copy[1], each < room ? each : room, 0};
    return 2 * (double)copy.bytes / operation_ms(report, run_copy, &copy) * 1e3;
}

// One line; returns the operation's milliseconds.
static inline double report(const Report *report, void *operands, const char *name, const char *shape, double bytes,
                            void (*operation)(Bench *, void *)) {
    const double ms = operation_ms(report, operation, operands), rate = bytes / ms * 1e3;
    printf("%-22s %-14s %9.4f ms %9.1f MB %7.0f GB/s %6.1f %% %6.1f %%\n", name, shape, ms, bytes * 1e-6, rate * 1e-9,
           100 * rate / report->copy_rate, 100 * rate / copy_rate(report, bytes));
    return ms;
}
