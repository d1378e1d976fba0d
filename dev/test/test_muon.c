// Tests of Muon on the CPU: its operations against their formulas in double precision, in all formats of momentum and
// master weights, and the update of a model's matrices, piece by piece. With an argument, a --zero stage, runs only the
// tests of the processes that mpirun has started (test_ranks.sh).
#include "ops_fixture.h"

#include <xxhash.h>

#include "coat/model/weights.h"
#include "coat/numerics/moments_host.h"
#include "coat/numerics/newton_schulz.h"

#define TESTING
#include "train_gpt2_fp8.cu"

#include "dev/test/config_fixture.h"

// --- Newton-Schulz iterations in double precision --------------------------------------------------------------------

static double *matrix_new(int64_t elements) {
    return (double *)xcalloc((size_t)elements, sizeof(double));
}

// Replaces x (r, c), r <= c, by its approximate polar factor.
static void orthogonalize_wide(double *x, int64_t r, int64_t c) {
    double *gram = matrix_new(r * r), *poly = matrix_new(r * r), *y = matrix_new(r * c), norm = 0;
    for (int64_t i = 0; i < r * c; i++) norm += x[i] * x[i];
    norm = fmax(sqrt(norm), (double)NEWTON_SCHULZ_EPS);
    for (int64_t i = 0; i < r * c; i++) x[i] /= norm;
    for (int step = 0; step < NEWTON_SCHULZ_ITERATIONS; step++) {
        memset(gram, 0, (size_t)(r * r) * sizeof *gram);
        for (int64_t i = 0; i < r; i++)
            for (int64_t j = 0; j < r; j++)
                for (int64_t k = 0; k < c; k++) gram[i * r + j] += x[i * c + k] * x[j * c + k];
        for (int64_t i = 0; i < r; i++)
            for (int64_t j = 0; j < r; j++) {
                double sum = 0;
                for (int64_t k = 0; k < r; k++) sum += gram[i * r + k] * gram[k * r + j];
                poly[i * r + j] = (double)NEWTON_SCHULZ_B * gram[i * r + j] + (double)NEWTON_SCHULZ_C * sum;
            }
        for (int64_t i = 0; i < r * c; i++) y[i] = (double)NEWTON_SCHULZ_A * x[i];
        for (int64_t i = 0; i < r; i++)
            for (int64_t k = 0; k < r; k++)
                for (int64_t j = 0; j < c; j++) y[i * c + j] += poly[i * r + k] * x[k * c + j];
        memcpy(x, y, (size_t)(r * c) * sizeof *x);
    }
    free(gram);
    free(poly);
    free(y);
}

static double *transposed(const double *x, int64_t r, int64_t c) {
    double *t = matrix_new(r * c);
    for (int64_t i = 0; i < r; i++)
        for (int64_t j = 0; j < c; j++) t[j * r + i] = x[i * c + j];
    return t;
}

static void orthogonalize_double(double *x, int64_t r, int64_t c) {
    if (r <= c) {
        orthogonalize_wide(x, r, c);
        return;
    }
    double *t = transposed(x, r, c);
    orthogonalize_wide(t, c, r);
    double *back = transposed(t, c, r);
    memcpy(x, back, (size_t)(r * c) * sizeof *x);
    free(t);
    free(back);
}

static double *doubles_of(Tensor t) {
    double *x = matrix_new(tensor_elements(t));
    for (int64_t i = 0; i < t.rows; i++)
        for (int64_t j = 0; j < t.cols; j++) x[i * t.cols + j] = value(t, i, j);
    return x;
}

// Returns the Frobenius norm of t - factor * expected, relative to that of factor * expected.
static double relative_error_of(Tensor t, const double *expected, double factor) {
    double sum = 0, norm = 0;
    for (int64_t i = 0; i < t.rows; i++)
        for (int64_t j = 0; j < t.cols; j++) {
            const double x = factor * expected[i * t.cols + j], d = value(t, i, j) - x;
            sum += d * d;
            norm += x * x;
        }
    return norm > 0 ? sqrt(sum / norm) : sqrt(sum);
}

// Sets *least and *most to the extreme singular values of x (r, c). Uses the one-sided Jacobi method on the rows of x
// (columns if r > c).
static void singular_values(const double *x, int64_t r, int64_t c, double *least, double *most) {
    double *rows = r <= c ? matrix_new(r * c) : transposed(x, r, c);
    if (r <= c) memcpy(rows, x, (size_t)(r * c) * sizeof *rows);
    const int64_t n = r <= c ? r : c, m = r <= c ? c : r;
    for (int sweep = 0; sweep < 12; sweep++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < i; j++) {
                double a = 0, b = 0, ab = 0, *p = rows + i * m, *q = rows + j * m;
                for (int64_t k = 0; k < m; k++) a += p[k] * p[k], b += q[k] * q[k], ab += p[k] * q[k];
                if (ab * ab <= 1e-24 * a * b) continue;
                const double z = (b - a) / (2 * ab), t = (z < 0 ? -1 : 1) / (fabs(z) + sqrt(1 + z * z));
                const double cosine = 1 / sqrt(1 + t * t), sine = t * cosine;
                for (int64_t k = 0; k < m; k++) {
                    const double u = cosine * p[k] - sine * q[k];
                    q[k] = sine * p[k] + cosine * q[k];
                    p[k] = u;
                }
            }
    *least = INFINITY, *most = 0;
    for (int64_t i = 0; i < n; i++) {
        double square = 0;
        for (int64_t k = 0; k < m; k++) square += rows[i * m + k] * rows[i * m + k];
        *least = fmin(*least, sqrt(square));
        *most = fmax(*most, sqrt(square));
    }
    free(rows);
}

// --- operation muon_orthogonalize -----------------------------------------------------------------------------------

// Runs muon_orthogonalize on x with poisoned scratch.
static void orthogonalize_tensor(Fixture *f, Tensor x, float scale) {
    StepState state = {0};
    const int64_t n = x.rows < x.cols ? x.rows : x.cols;
    f->exec.ops->muon_orthogonalize(&f->exec, x, 1, poisoned(f, x.format, x.rows, x.cols), poisoned(f, x.format, n, n),
                                    poisoned(f, x.format, n, n), scale, &state);
}

// Compares muon_orthogonalize with double precision. The error in BF16 comes from rounding x and its products. If
// `values` is true, also checks the result's singular values, which requires that those of x are at least 0.01 of its
// Frobenius norm.
static void check_orthogonalize(Fixture *f, Tensor x, bool values) {
    double *expected = doubles_of(x), least, most;
    orthogonalize_double(expected, x.rows, x.cols);
    orthogonalize_tensor(f, x, 0.25f);
    const double wrong = relative_error_of(x, expected, 0.25);
    if (!(wrong <= (x.format == FMT_BF16 ? 0.05 : 2e-5)))
        fail_msg("%ld x %ld: relative error %.2g", (long)x.rows, (long)x.cols, wrong);
    free(expected);
    double *found = doubles_of(x);
    singular_values(found, x.rows, x.cols, &least, &most);
    free(found);
    const double slack = x.format == FMT_BF16 ? 0.03 : 0;
    if (values && (least < 0.25 * (0.68 - slack) || most > 0.25 * (1.14 + slack)))
        fail_msg("%ld x %ld: singular values %.3g to %.3g", (long)x.rows, (long)x.cols, 4 * least, 4 * most);
}

TEST_EVERYWHERE(orthogonalization_of_all_matrix_shapes) {
    static const int64_t shapes[][2] = {{48, 48}, {30, 70}, {70, 30}, {16, 200}, {200, 16}, {1, 5}};
    for (int i = 0; i < 6; i++)
        check_orthogonalize(f, random_tensor(f, f->format, shapes[i][0], shapes[i][1], 1), i > 0); // 0: may be singular
    // singular values from 1 to 0.03, and a Frobenius norm of about 2
    Tensor x = random_tensor(f, f->format, 24, 33, 0);
    for (int i = 0; i < 24; i++) set_value(x, i, 32 - i, pow(0.03, i / 23.0));
    check_orthogonalize(f, x, true);
}

// Pieces of a matrix are orthogonalized one by one, and other rows keep their bits.
TEST_EVERYWHERE(parts_of_a_matrix_are_orthogonalized_separately) {
    Tensor all = random_tensor(f, f->format, 60, 40, 1), before = copy_of(f, all);
    check_orthogonalize(f, tensor_rows(all, 12, 28), true);
    assert_true(same_bits(tensor_rows(all, 0, 12), tensor_rows(before, 0, 12)));
    assert_true(same_bits(tensor_rows(all, 40, 20), tensor_rows(before, 40, 20)));
}

TEST_EVERYWHERE(matrices_orthogonalized_together_have_the_bits_of_single_ones) {
    static const int64_t shapes[][2] = {{24, 40}, {40, 24}, {1, 5}};
    for (int i = 0; i < 3; i++) {
        const int64_t r = shapes[i][0], c = shapes[i][1], n = r < c ? r : c;
        Tensor x = random_tensor(f, f->format, 3 * r, c, 1), one = copy_of(f, x);
        StepState state = {0};
        f->exec.ops->muon_orthogonalize(&f->exec, x, 3, poisoned(f, x.format, 3 * r, c),
                                        poisoned(f, x.format, 3 * n, n), poisoned(f, x.format, 3 * n, n), 0.25f,
                                        &state);
        for (int k = 0; k < 3; k++) orthogonalize_tensor(f, tensor_rows(one, k * r, r), 0.25f);
        assert_true(same_bits(x, one));
    }
}

// Zeros stay zeros. A matrix whose norm is below eps is divided by eps. A factor that is a power of two changes no bit,
// and another factor changes the result by rounding only.
TEST_EVERYWHERE(orthogonalization_of_zeros_and_extreme_magnitudes) {
    Tensor zeros = random_tensor(f, f->format, 20, 30, 0), x = random_tensor(f, f->format, 20, 30, 1);
    Tensor x4 = copy_of(f, x), x3 = copy_of(f, x);
    orthogonalize_tensor(f, zeros, 1);
    for (int64_t i = 0; i < 600; i++) assert_true(value(zeros, i / 30, i % 30) == 0);
    check_orthogonalize(f, random_tensor(f, f->format, 20, 30, 1e-11), false);
    for (int64_t i = 0; i < 600; i++) {
        set_value(x4, i / 30, i % 30, 4 * value(x, i / 30, i % 30));
        set_value(x3, i / 30, i % 30, 3 * value(x, i / 30, i % 30));
    }
    orthogonalize_tensor(f, x, 1);
    orthogonalize_tensor(f, x4, 1);
    orthogonalize_tensor(f, x3, 1);
    double *values = doubles_of(x);
    assert_true(same_bits(x, x4) && relative_error_of(x3, values, 1) < (f->format == FMT_BF16 ? 0.05 : 2e-5));
    free(values);
}

// --- operations muon_momentum and muon_apply ------------------------------------------------------------------------

enum { ROWS = 61, COLS = 150, COUNT = ROWS * COLS }; // several blocks of the update, and a last group of 62 elements

// Returns a momentum of zeros.
static Tensor momentum_of(Fixture *f, Format format) {
    Tensor t = random_tensor(f, format == FMT_FP32 || format == FMT_BF16 ? format : FMT_I32, ROWS, COLS, 0);
    if (!format_has_groups(format)) return t;
    t.format = format;
    t.granularity = SCALE_EXPAND;
    t.group = 128;
    t.scale = random_tensor(f, FMT_FP32, 1, COUNT / 128 + 1, 0).data;
    t.exponent = (uint8_t *)random_tensor(f, FMT_I32, 1, COUNT / 512 + 1, 0).data;
    memset(t.exponent, 16, COUNT / 128 + 1);
    return t;
}

static void load_momentum(Tensor t, real *x) {
    for (int64_t i = 0; i < COUNT && t.granularity == SCALE_NONE; i++) x[i] = (real)value(t, i / COLS, i % COLS);
    if (t.granularity == SCALE_EXPAND) moments_load(t, 0, COUNT, x);
}

// Returns the maximum error allowed for a momentum x that is stored in `format` in a group with amax a.
static double momentum_error(Format format, double x, double a) {
    switch (format) {
    case FMT_FP32: return 3e-7 * fabs(x);
    case FMT_BF16: return fabs(x) / 256;
    case FMT_I8: return 0.50001 / 127 * a;
    default: return fmax(0.1 * fabs(x), a / 1000);
    }
}

// Runs three steps of muon_momentum, and compares each with double precision, computed from the stored momentum.
static void check_momentum(Fixture *f, Format format, MomentsKind moments, Format gradients) {
    static real before[COUNT], after[COUNT];
    StepState state = {.grad_clip = 1, .grad_norm = 2.5f, .momentum = 0.95f};
    Parameter p = {.m = momentum_of(f, format), .update = poisoned(f, f->format, ROWS, COLS)};
    p.weight.value = p.grad = poisoned(f, gradients, ROWS, COLS);
    ((Cpu *)f->exec.backend)->recipe.moments = moments;
    for (int step = 0; step < 3; step++) {
        for (int64_t i = 0; i < COUNT; i++) set_value(p.grad, i / COLS, i % COLS, i / 128 % 7 == 5 ? 0 : draw(f));
        load_momentum(p.m, before);
        f->exec.ops->muon_momentum(&f->exec, &p, 1, &state);
        load_momentum(p.m, after);
        double m[COUNT], amax[COUNT / 128 + 1] = {0};
        for (int64_t i = 0; i < COUNT; i++) {
            const double g = value(p.grad, i / COLS, i % COLS) / 2.5;
            m[i] = 0.95 * (double)before[i] + 0.05 * g;
            assert_value(p.update, i / COLS, i % COLS, 0.95 * m[i] + 0.05 * g, 1);
            amax[i / 128] = fmax(amax[i / 128], fabs(m[i]));
        }
        for (int64_t i = 0; i < COUNT; i++)
            if (fabs((double)after[i] - m[i]) > momentum_error(format, m[i], amax[i / 128]) + 1e-8)
                fail_msg("momentum %g is stored as %g in %s", m[i], (double)after[i], format_name(format));
    }
    assert_int_equal(state.nonfinite, 0);
    if (!format_has_groups(format)) return;
    set_value(p.grad, 3, 3, INFINITY); // muon_momentum must report inf, as grad_norm does before an update
    f->exec.ops->muon_momentum(&f->exec, &p, 1, &state);
    assert_int_equal(state.nonfinite, 1);
}

TEST_EVERYWHERE(muon_momentum_follows_its_formula) {
    check_momentum(f, FMT_FP32, MOMENTS_FP32, f->format);
    check_momentum(f, FMT_BF16, MOMENTS_BF16, FMT_FP32);
    check_momentum(f, FMT_I8, MOMENTS_COAT, f->format);
    check_momentum(f, FMT_I8, MOMENTS_FP8, f->format);
    check_momentum(f, FMT_E4M3, MOMENTS_FP8, f->format);
    check_momentum(f, FMT_E4M3, MOMENTS_COAT, f->format);
}

// Compares muon_apply with double precision. master: FMT_FP32, FMT_U16 (split16), or FMT_NONE for no master weights.
static void check_apply(Fixture *f, Format format, Format master, bool skips) {
    StepState state = {.lr = 0.02f, .weight_decay = 0.1f, .seed = 7, .t = 3, .skips = skips};
    Tensor start = random_tensor(f, FMT_FP32, ROWS, COLS, 1);
    uint32_t maximum = 0;
    Parameter p = {.update = random_tensor(f, f->format, ROWS, COLS, 1), .decay = true, .index = 99};
    p.weight.value = poisoned(f, format, ROWS, COLS);
    p.weight.maximum = &maximum;
    if (master) p.master = random_tensor(f, master == FMT_FP32 ? FMT_FP32 : FMT_BF16, ROWS, COLS, 0);
    p.master.format = master;
    if (!master && format == FMT_BF16) start = random_tensor(f, FMT_BF16, ROWS, COLS, 1);
    for (int64_t i = 0; i < COUNT; i++) {
        const float x = (float)value(start, i / COLS, i % COLS);
        if (master == FMT_FP32) set_value(p.master, i / COLS, i % COLS, (double)x);
        if (master == FMT_U16) ((uint16_t *)p.master.data)[i] = (uint16_t)float_bits(x);
        set_value(p.weight.value, i / COLS, i % COLS, (double)x);
        if (master) ((uint16_t *)p.weight.value.data)[i] = master_bf16(x);
    }
    Tensor value_before = copy_of(f, p.weight.value);
    f->exec.ops->muon_apply(&f->exec, &p, 1, &state);
    if (skips) {
        assert_true(same_bits(p.weight.value, value_before) && maximum == 0);
        return;
    }
    double largest = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        const int64_t row = i / COLS, col = i % COLS;
        const double x = value(start, row, col), u = value(p.update, row, col);
        const double expected = x - (double)state.lr * (u + (double)state.weight_decay * x);
        const double now = value(p.weight.value, row, col);
        const uint16_t high = ((const uint16_t *)p.weight.value.data)[master ? i : 0];
        const double full = master == FMT_FP32  ? value(p.master, row, col)
                            : master == FMT_U16 ? (double)master_join(high, ((uint16_t *)p.master.data)[i])
                                                : now;
        assert_true(fabs(full - expected) <= (!master && format == FMT_BF16 ? fabs(expected) / 127 : 2e-7) + 1e-9);
        if (master) assert_int_equal(high, master_bf16((float)full));
        largest = fmax(largest, fabs(now));
    }
    assert_true((double)bits_float(maximum) == largest);
}

TEST_EVERYWHERE(muon_apply_follows_its_formula) {
    check_apply(f, FMT_FP32, FMT_NONE, false);
    check_apply(f, FMT_BF16, FMT_FP32, false);
    check_apply(f, FMT_BF16, FMT_U16, false);
    check_apply(f, FMT_BF16, FMT_NONE, false);
    check_apply(f, FMT_BF16, FMT_U16, true);
}

// --- the update of a model ------------------------------------------------------------------------------------------

static const char *const models[] = {"--layers 2 --heads 2 --channels 64", "--model llama:d2 --kv-heads 1"};

static const CommPlace alone = {0, 1, 0, 1, "", false, ""};

static void open_model(Model *m, const CommPlace *place, const char *model, const char *flags) {
    accept_run(
        formatted("--device cpu --quiet --vocab 61 --seq-len 32 --micro-batch 4 --train x --optimizer muon --lr 0.02 "
                  "--weight-decay 0.1 %s %s",
                  model, flags),
        place->ranks);
    if (!model_create(m, &config, place, &error)) fail_msg("%s", error.text);
    parameters_init(&m->arena, &m->exec, 1);
    shards_weights_loaded(&m->shards);
}

// Runs the passes of a step; step_end() then updates the parameters.
static void run_passes(Model *m) {
    int32_t ids[4 * 32], targets[4 * 32];
    for (int i = 0; i < 4 * 32; i++) ids[i] = i * i % 61, targets[i] = (i + 1) * (i + 1) % 61;
    step_begin(m, 0.02f, 4 * 32 * m->exec.ranks);
    batch_upload(m, 4, 32, ids, targets, NULL);
    micro_step(m, false, true);
}

// Returns copies of all matrices that Muon updates. The caller frees each.
static int copy_matrices(Model *m, double *copies[]) {
    for (int i = 0; i < m->shards.muon.count; i++) copies[i] = doubles_of(m->shards.muon.list[i].weight.value);
    return m->shards.muon.count;
}

// In the first step in FP32, every piece of every matrix of every layer moves by the orthogonalized momentum. AdamW
// updates the other parameters.
UNIT_TEST(first_step_orthogonalizes_every_piece_of_every_matrix) {
    for (int i = 0; i < 2; i++) {
        Model m;
        double *before[16];
        int64_t rows[MAX_PIECES];
        int seen = 0;
        open_model(&m, &alone, models[i], "--precision fp32");
        assert_int_equal(copy_matrices(&m, before), 8);
        run_passes(&m);
        step_end(&m);
        for (int k = 0; k < 8; k++) {
            const TensorId id = m.shards.muon.ids[k];
            const Parameter *p = &m.shards.muon.list[k];
            const Tensor now = p->weight.value;
            const int pieces = tensor_pieces(id, &config.shape, rows);
            double *from = before[k];
            Tensor piece = now, momentum_piece = p->m;
            int64_t first = 0;
            for (int j = 0; j < pieces; first += rows[j++]) {
                piece = tensor_rows(now, first, rows[j]), momentum_piece = tensor_rows(p->m, first, rows[j]);
                double *x = doubles_of(momentum_piece), least, most;
                orthogonalize_double(x, rows[j], now.cols);
                singular_values(x, rows[j], now.cols, &least, &most);
                const double scale = 0.02 * 0.2 * sqrt(fmax((double)rows[j], (double)now.cols));
                for (int64_t e = 0; e < rows[j] * now.cols; e++)
                    x[e] = (1 - 0.02 * 0.1) * from[first * now.cols + e] - scale * x[e];
                assert_true(most > 0.6 && relative_error_of(piece, x, 1) < 2e-6);
                free(x);
                seen++;
            }
            assert_int_equal(first, now.rows);
            assert_true(!p->v.data && p->m.data);
            free(from);
        }
        assert_int_equal(seen, i ? 2 * 7 : 2 * 6);
        assert_int_equal(m.shards.updated_count + 8, m.parameter_count);
        for (int k = 0; k < m.shards.updated_count; k++) assert_true(m.shards.updated[k].v.data);
        model_destroy(&m);
    }
}

// Hashes the weights and the momentum of all matrices that Muon updates, or of this process's shards of them.
static uint64_t hash_states(const Model *m) {
    uint64_t hash = 0;
    for (int i = 0; i < m->shards.muon.count; i++) {
        const Parameter *p = &m->shards.muon.list[i];
        const Tensor tensors[] = {p->weight.value, p->master, p->m};
        for (int t = 0; t < 3 && p->weight.value.rows > 0; t++) {
            const size_t elements = (size_t)tensor_elements(tensors[t]);
            if (tensors[t].data)
                hash = XXH3_64bits_withSeed(tensors[t].data, elements * format_bytes(tensors[t].format), hash);
            if (tensors[t].scale) hash = XXH3_64bits_withSeed(tensors[t].scale, elements / 128 * sizeof(float), hash);
        }
    }
    return hash;
}

// A step that one process skips changes neither weights nor momentum of any process, and does not count as an update.
// raises: true in the process that sets state->nonfinite.
static void check_skipped(Model *m, bool raises) {
    const int64_t t = m->host.t;
    const uint64_t before = hash_states(m);
    run_passes(m);
    if (raises) m->state->nonfinite = 1;
    step_end(m);
    assert_true(m->host.t == t && m->host.skipped == 1 && hash_states(m) == before);
    run_passes(m);
    step_end(m);
    assert_true(m->host.t == t + 1 && hash_states(m) != before);
}

UNIT_TEST(a_skipped_step_changes_no_weight_or_momentum) {
    Model m;
    open_model(&m, &alone, models[0], "--recipe coat");
    run_passes(&m);
    step_end(&m);
    assert_true(m.shards.muon.list->m.format == FMT_I8 && !m.shards.muon.list->v.data);
    check_skipped(&m, true);
    model_destroy(&m);
}

UNIT_TEST(fp8_health_counts_the_int8_momentum) {
    Model m;
    Health h;
    open_model(&m, &alone, models[1], "--recipe coat");
    run_passes(&m);
    step_end(&m);
    const Tensor t = m.shards.muon.list[3].m;
    const int64_t elements = tensor_elements(t), groups = elements / 128;
    uint64_t zero = 0, saturated = 0;
    float amax = 0;
    for (int64_t i = 0; i < elements; i++) {
        const int code = ((const int8_t *)t.data)[i];
        zero += code == 0;
        saturated += abs(code) == 127;
    }
    for (int64_t i = 0; i < groups; i++) amax = fmaxf(amax, ((const float *)t.scale)[i]);
    m.ops->health(&m.exec, &t, 1, &h);
    assert_true(t.format == FMT_I8 && h.zero == zero && h.clamped == 0 && bits_float(h.amax) == amax && amax > 0);
    assert_true(h.saturated == saturated - (uint64_t)groups && h.largest == 127);
    model_destroy(&m);
}

// --- several processes ----------------------------------------------------------------------------------------------

static const char *zero = "0"; // --zero

// Matrices that this process has orthogonalized, and sums of the squares of the updates that it computed and applied.
static int64_t calls;
static double computed, applied;

static double sum_of_squares_of(Tensor t) {
    double *x = doubles_of(t), sum = 0;
    for (int64_t i = 0; i < tensor_elements(t); i++) sum += x[i] * x[i];
    free(x);
    return sum;
}

static void counted_orthogonalize(Exec *exec, Tensor all, int count, Tensor y, Tensor gram, Tensor polynomial,
                                  float scale, StepState *state) {
    double *before = doubles_of(all), least, most;
    const int64_t rows = all.rows / count;
    cpu_ops()->muon_orthogonalize(exec, all, count, y, gram, polynomial, scale, state);
    for (int i = 0; i < count && !state->skips; i++) {
        const Tensor x = tensor_rows(all, i * rows, rows);
        double *expected = before + i * tensor_elements(x);
        orthogonalize_double(expected, x.rows, x.cols);
        singular_values(expected, x.rows, x.cols, &least, &most);
        assert_true(most > 0.6 && most < 1.3 && relative_error_of(x, expected, (double)scale) < 1e-4);
        computed += sum_of_squares_of(x);
        calls++;
    }
    free(before);
}

static void counted_apply(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    for (int i = 0; i < count && !state->skips; i++) applied += sum_of_squares_of(parameters[i].update);
    cpu_ops()->muon_apply(exec, parameters, count, state);
}

// With ZeRO, one process orthogonalizes each matrix in a step, and the processes together apply every update once.
// Without ZeRO, every process orthogonalizes all matrices and applies all updates. With several processes, the number
// of layers is not a multiple of their number, so in the last layers, some processes have no matrix to orthogonalize.
UNIT_TEST(processes_orthogonalize_each_matrix_once) {
    Model m;
    CommPlace place;
    Ops counted = *cpu_ops();
    config_defaults(&config);
    if (!comm_discover(&config, &place, &error)) fail_msg("%s", error.text);
    const int layers = place.ranks == 2 ? 3 : 2;
    open_model(&m, &place, "--heads 1 --channels 16",
               formatted("--precision fp32 --threads 1 --layers %d --zero %s", layers, zero));
    counted.muon_orthogonalize = counted_orthogonalize;
    counted.muon_apply = counted_apply;
    m.exec.ops = &counted;
    calls = 0;
    computed = applied = 0;
    for (int i = 0; i < 2; i++) {
        run_passes(&m);
        step_end(&m);
    }
    const bool divided = m.arena.zero > 0;
    int64_t mine = 0;
    for (int l = 0; l < layers; l++)
        mine += !divided || l % place.ranks == place.rank ? 2 * 6 : 0; // 6 pieces per layer
    assert_int_equal(calls, mine);
    assert_int_equal(comm_sum_i64(m.comm, calls), 2 * 6 * layers * (divided ? 1 : place.ranks));
    comm_all_reduce(m.comm, &computed, 1, COMM_FP64, COMM_SUM);
    comm_all_reduce(m.comm, &applied, 1, COMM_FP64, COMM_SUM);
    assert_true(computed > 0 && fabs(applied / computed - 1) < 1e-9);
    check_skipped(&m, place.rank == place.ranks - 1);
    m.exec.ops = cpu_ops();
    model_destroy(&m);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        zero = argv[1];
        cmocka_set_test_filter(UNIT_TEST_NAME(processes_orthogonalize_each_matrix_once));
    }
    return unit_main(NULL, NULL, NULL);
}
