// Benchmarks Muon's update on the GPU for the matrices of one block of several models, after a comparison with the CPU
// backend (check_muon.cu). Prints the rates of muon_momentum and muon_apply in percent of a large device copy's rate,
// and the rate of muon_orthogonalize in percent of a large BF16 matmul's rate. The last line of each model shows the
// time of all its blocks.
// Usage: build/bench_muon_gpu [--quick] [--check]
//   --quick: fewer repetitions and models
//   --check: no timing; exits with 1 if a comparison failed
#include "bench_ceiling.h"
#include "coat/model/tensors.h"
#include "coat/numerics/newton_schulz.h"
#include "dev/test/check_gpu.h"

#include <math.h>

#define GROUP 128
#define MATRICES 7

typedef struct {
    int64_t rows, cols;
} Piece;

typedef struct {
    const char *name;
    int64_t layers;
    Piece pieces[MATRICES]; // matrices of one block; the list ends with 0 rows
} MuonModel;

static const MuonModel models[] = {
    {"GPT-2 124M", 12, {{768, 768}, {768, 768}, {768, 768}, {768, 768}, {3072, 768}, {768, 3072}}},
    {"GPT-2 1558M", 48, {{1600, 1600}, {1600, 1600}, {1600, 1600}, {1600, 1600}, {6400, 1600}, {1600, 6400}}},
    {"OLMo-1B", 16, {{2048, 2048}, {2048, 2048}, {2048, 2048}, {2048, 2048}, {8192, 2048}, {8192, 2048}, {2048, 8192}}},
    {"Llama-2-7B",
     32,
     {{4096, 4096}, {4096, 4096}, {4096, 4096}, {4096, 4096}, {11008, 4096}, {11008, 4096}, {4096, 11008}}}};

typedef struct {
    Parameter parameter;
    Tensor x, y, gram, polynomial;
    int count; // number of matrices that muon_orthogonalize orthogonalizes together
    StepState *state;
} MuonTiming;

static void run_momentum(Bench *bench, void *context) {
    MuonTiming *t = (MuonTiming *)context;
    bench->exec.ops->muon_momentum(&bench->exec, &t->parameter, 1, t->state);
}

static void run_orthogonalize(Bench *bench, void *context) {
    MuonTiming *t = (MuonTiming *)context;
    bench->exec.ops->muon_orthogonalize(&bench->exec, t->x, t->count, t->y, t->gram, t->polynomial, 1.0f, t->state);
}

static void run_apply(Bench *bench, void *context) {
    MuonTiming *t = (MuonTiming *)context;
    bench->exec.ops->muon_apply(&bench->exec, &t->parameter, 1, t->state);
}

// Returns the FLOPs of orthogonalizing a matrix.
static double flops_of(Piece p) {
    const double n = (double)(p.rows < p.cols ? p.rows : p.cols), m = (double)(p.rows < p.cols ? p.cols : p.rows);
    return NEWTON_SCHULZ_ITERATIONS * (4 * n * n * m + 2 * n * n * n);
}

// Prints the times of the update's operations on one matrix. Returns their sum in milliseconds. count: number of
// matrices of this shape that the trainer orthogonalizes together. copy: bytes per second of a large copy. matmul:
// FLOP/s of a large matmul.
static double time_piece(Bench *bench, Piece piece, int count, double copy, double matmul) {
    const int64_t elements = piece.rows * piece.cols, n = piece.rows < piece.cols ? piece.rows : piece.cols;
    MuonTiming t = {};
    StepState state = {};
    state.lr = 1e-6f, state.momentum = 0.95f;
    t.state = (StepState *)bench_allocate(bench, sizeof state);
    bench->exec.ops->upload(&bench->exec, t.state, &state, sizeof state);
    Parameter *p = &t.parameter;
    p->weight.value = bench_tensor(bench, piece.rows, piece.cols, FMT_BF16, 0.02f);
    p->master = bench_tensor(bench, piece.rows, piece.cols, FMT_BF16, 0.02f);
    p->master.format = FMT_U16;
    p->grad = bench_tensor(bench, piece.rows, piece.cols, FMT_BF16, 1e-4f);
    p->m = bench_tensor(bench, 1, elements, FMT_E5M2, 0.0f);
    bench->exec.ops->release(&bench->exec, p->m.scale);
    p->m.format = FMT_I8;
    p->m.granularity = SCALE_EXPAND;
    p->m.group = GROUP;
    const Tensor scale = bench_tensor(bench, 1, elements / GROUP + 1, FMT_FP32, 0.0f);
    const Tensor exponent = bench_tensor(bench, 1, elements / GROUP + 1, FMT_FP32, 0.0f);
    p->m.scale = scale.data;
    p->m.exponent = (uint8_t *)exponent.data;
    t.x = bench_tensor(bench, piece.rows, piece.cols, FMT_BF16, 1.0f);
    t.y = bench_tensor(bench, piece.rows, piece.cols, FMT_BF16, 1.0f);
    t.gram = bench_tensor(bench, n, n, FMT_BF16, 1.0f);
    t.polynomial = bench_tensor(bench, n, n, FMT_BF16, 1.0f);
    p->update = t.x;
    t.count = 1;
    const double momentum = bench_median_ms(bench, run_momentum, &t);
    const double apply = bench_median_ms(bench, run_apply, &t);
    const double alone = bench_median_ms(bench, run_orthogonalize, &t);
    Tensor *const matrices[] = {&t.x, &t.y, &t.gram, &t.polynomial};
    t.count = count;
    for (Tensor *matrix : matrices) {
        bench_release(bench, *matrix);
        *matrix = bench_tensor(bench, count * matrix->rows, matrix->cols, FMT_BF16, 1.0f);
    }
    const double iterations = bench_median_ms(bench, run_orthogonalize, &t) / count;
    // Bytes per element: muon_momentum 6.08 (2 gradient, 2 update, 2 INT8 momentum, 0.08 amaxes and exponents),
    // muon_apply 10 (2 update, 8 split16 weight and master weight).
    const double rate = flops_of(piece) / iterations * 1e3, share = 100e3 / copy * (double)elements;
    printf(
        "| %5lld x %5lld | %.3f ms, %3.0f %% | %.3f ms | %2d: %.3f ms, %3.0f TFLOP/s, %3.0f %% | %.3f ms, %3.0f %% |\n",
        (long long)piece.rows, (long long)piece.cols, momentum, 6.08 * share / momentum, alone, count, iterations,
        rate * 1e-12, 100 * rate / matmul, apply, 10 * share / apply);
    fflush(stdout);
    p->m.scale = NULL;
    const Tensor all[] = {p->weight.value, p->master, p->grad, p->m, scale, exponent, t.x, t.y, t.gram, t.polynomial};
    for (Tensor tensor : all) bench_release(bench, tensor);
    bench->exec.ops->release(&bench->exec, t.state);
    return momentum + iterations + apply;
}

int main(int argc, char **argv) {
    Bench bench = {};
    bench_flags(&bench, "[--quick] [--check]", argc, argv);
    const int wrong = check_muon(false);
    if (bench.check) return wrong ? EXIT_USER : EXIT_DONE;
    bench_configure(&bench.config, 1, 64, 64);
    bench_open(&bench);
    const double copy = bench_copy_ceiling(&bench), matmul = bench_matmul_ceiling(&bench, FMT_BF16);
    for (int i = 0; i < (bench.quick ? 2 : 4); i++) {
        double ms = 0;
        printf("\n%s\n| matrix | muon_momentum, %% of a copy's rate | muon_orthogonalize on 1 matrix "
               "| muon_orthogonalize on N: per matrix, %% of a matmul's rate | muon_apply, %% of a copy's rate |\n",
               models[i].name);
        printf("| --- | --- | --- | --- | --- |\n");
        for (int k = 0; k < MATRICES && models[i].pieces[k].rows > 0; k++) {
            const Piece *piece = &models[i].pieces[k];
            const bool again = k > 0 && piece->rows == piece[-1].rows && piece->cols == piece[-1].cols;
            static double last;
            const int64_t most = MUON_BATCH_ELEMENTS / (piece->rows * piece->cols);
            const int count = (int)(most < 1 ? 1 : most < models[i].layers ? most : models[i].layers);
            if (!again) last = time_piece(&bench, *piece, count, copy, matmul);
            ms += last;
        }
        printf("all %lld blocks: %.2f ms\n", (long long)models[i].layers, ms * (double)models[i].layers);
    }
    bench_close(&bench);
    return wrong ? EXIT_USER : EXIT_DONE;
}
