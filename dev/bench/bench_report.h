// Prints the result lines of benchmarks of memory-bound operations, and measures copies to compare the operations with.
#pragma once
#include "bench_ceiling.h"

typedef struct {
    Bench *bench;
    Copies copies;
    double copy_rate; // bytes per second that a large copy reads and writes
} Report;

static inline Report report_open(Bench *bench) {
    Report r = {};
    r.bench = bench;
    r.copies = copies_open(bench);
    r.copy_rate = copies_ceiling(bench, &r.copies);
    printf("percentages are of this copy's rate, and of the rate of a copy of the operation's size\n");
    return r;
}

static inline void report_close(Report *r) {
    copies_close(r->bench, &r->copies);
}

// Defines run_NAME(), an argument of report(). It runs an operation on the next set s of the benchmark's Operands *o;
// the operation's arguments may contain o and s.
#define BENCH_OPERATION(name, operation, ...)                                                                          \
    static void run_##name(Bench *bench, void *context) {                                                              \
        Operands *o = (Operands *)context;                                                                             \
        const int s = o->set = (o->set + 1) % SETS;                                                                    \
        (void)s;                                                                                                       \
        bench->exec.ops->operation(&bench->exec, __VA_ARGS__);                                                         \
    }

// Times an operation, prints its result line, and returns its milliseconds.
static inline double report(const Report *report, void *operands, const char *name, const char *shape, double bytes,
                            void (*operation)(Bench *, void *)) {
    const double ms = bench_steady_ms(report->bench, operation, operands), rate = bytes / ms * 1e3;
    printf("%-32s %-14s %9.4f ms %9.1f MB %7.0f GB/s %6.1f %% %6.1f %%\n", name, shape, ms, bytes * 1e-6, rate * 1e-9,
           100 * rate / report->copy_rate,
           100 * rate / copies_rate(report->bench, &report->copies, bytes, bench_steady_ms));
    return ms;
}
