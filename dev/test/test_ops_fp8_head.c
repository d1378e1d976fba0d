// Tests of the FP8 head on the CPU: the quantized gradient of the loss, whose scale is known before the pass, and the
// matmuls of one chunk of tokens, whose transposed operands are columns of a larger matrix.
#include "fp8_fixture.h"

static Tensor random_targets(Fixture *f, int64_t rows, int vocab) {
    Tensor t = poisoned(f, FMT_I32, rows, 1);
    for (int64_t i = 0; i < rows; i++) set_value(t, i, 0, floor((draw(f) + 1) / 2 * vocab));
    set_value(t, rows / 2, 0, -1); // a row without a target
    return t;
}

// Returns random logits (rows, padded). Columns from `vocab` on are padding and contain NaN, which must be ignored.
static Tensor random_logits(Fixture *f, int64_t rows, int vocab, int64_t padded, double size) {
    Tensor t = random_tensor(f, f->format, rows, padded, size);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = vocab; j < padded; j++) set_value(t, i, j, NAN);
    return t;
}

// The loss's FP8 gradient must equal its FP32 gradient, rounded stochastically by loss_random_bits() with the scale
// that follows from state->loss_scale. No value may saturate, and the gradient of a probability above 2^-31 must not
// become 0. The transpose reuses the memory of the logits.
static void check_gradient(Fixture *f, int64_t rows, int vocab, int64_t padded, double size) {
    const Ops *ops = f->exec.ops;
    const float scale = 0.37f;
    watch(f);
    f->state.loss_scale = scale;
    f->state.seed = 3, f->state.t = 5;
    Tensor targets = random_targets(f, rows, vocab), logits = random_logits(f, rows, vocab, padded, size);
    set_value(logits, 0, 0, -20.8 * log(2.0)); // Gives token 0 of row 0 a probability of at most 2^-20.8.
    Tensor expected = decoded(f, logits), losses = poisoned(f, FMT_FP32, rows, 1),
           again = poisoned(f, FMT_FP32, rows, 1);
    ops->loss_forward_backward(&f->exec, expected, expected, losses, no_tensor(), expected, targets, 0, vocab,
                               &f->state);
    Tensor codes = coded(f, FMT_E5M2, rows, padded), transposed = coded_transpose(f, codes);
    transposed.data = logits.data;
    transposed.stride = rows;
    ops->loss_forward_backward(&f->exec, codes, transposed, again, no_tensor(), logits, targets, 6, vocab, &f->state);
    assert_true(same_bits(losses, again));
    assert_int_equal(f->state.nonfinite, 0);
    assert_int_equal(float_bits(*(const float *)codes.scale), float_bits(scale * 0x1p-15f));
    const float r = scale_reciprocal(scale * 0x1p-15f);
    const uint64_t start = loss_random_start(3, 5);
    for (int64_t i = 0; i < rows; i++) {
        const bool no_target = value(targets, i, 0) < 0;
        for (int64_t j = 0; j < padded; j++) {
            const uint8_t code = code_at(codes, i, j);
            const uint64_t bits = loss_random_bits(start, 6 + i, (int32_t)value(targets, i, 0), j / LOSS_RANDOM);
            const uint32_t random = loss_random_byte(bits, (int)(j % LOSS_RANDOM));
            assert_int_equal(code,
                             no_target || j >= vocab ? 0 : e5m2_encode_stochastic(element(expected, i, j) * r, random));
            assert_true((code & 0x7f) < 0x7b);
            if (!no_target && fabsf(element(expected, i, j)) > scale * 0x1p-31f) assert_true((code & 0x7f) > 0);
        }
    }
    assert_same_codes(transposed, codes);
}

// Tests a loss scale as small as that of a very large batch (1 / tokens). Also tests that a NaN or inf logit sets
// state->nonfinite.
static void gradient_limits(Fixture *f) {
    watch(f);
    f->state.loss_scale = 0x1p-40f;
    Tensor targets = random_targets(f, 4, 20), losses = poisoned(f, FMT_FP32, 4, 1);
    Tensor logits = random_logits(f, 4, 20, 48, 2), codes = coded(f, FMT_E5M2, 4, 48);
    Tensor transposed = coded_transpose(f, codes);
    f->exec.ops->loss_forward_backward(&f->exec, codes, transposed, losses, no_tensor(), logits, targets, 0, 20,
                                       &f->state);
    assert_true(*(const float *)codes.scale == 0x1p-55f && f->state.nonfinite == 0);
    assert_true(code_at(codes, 0, (int64_t)value(targets, 0, 0)) > 0x80);
    set_value(logits, 1, 3, NAN);
    f->state.loss_scale = 1;
    f->exec.ops->loss_forward_backward(&f->exec, codes, transposed, losses, no_tensor(), logits, targets, 0, 20,
                                       &f->state);
    assert_int_equal(f->state.nonfinite, 1);
}

TEST_EVERYWHERE(fp8_gradient_of_the_loss_equals_the_quantized_fp32_gradient) {
    check_gradient(f, 33, 257, 384, 3);
    check_gradient(f, 3, 1100, 1152, 15);
    gradient_limits(f);
}

static Tensor random_codes(Fixture *f, Format format, int64_t rows, int64_t cols) {
    Tensor t = coded(f, format, rows, cols), x = random_tensor(f, FMT_FP32, rows, cols, 1);
    *(float *)t.scale = 0.01f;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            ((uint8_t *)t.data)[i * t.stride + j] = fp8_encode(format, 100 * element(x, i, j));
    return t;
}

static Tensor transpose_of(Fixture *f, Tensor t) {
    Tensor out = coded_transpose(f, t);
    for (int64_t i = 0; i < t.rows; i++)
        for (int64_t j = 0; j < t.cols; j++) ((uint8_t *)out.data)[j * out.stride + i] = code_at(t, i, j);
    return out;
}

// Two calls of dgrad and wgrad for two chunks of tokens must give the matmuls over all tokens.
TEST_EVERYWHERE(head_matmuls_in_chunks_equal_those_over_all_tokens) {
    enum { M = 48, C = 32, V = 80, CHUNK = 32 };
    const Ops *ops = f->exec.ops;
    Tensor n = random_codes(f, FMT_E4M3, M, C), n_t = transpose_of(f, n), w = random_codes(f, FMT_E4M3, V, C);
    Tensor d = random_codes(f, FMT_E5M2, M, V), dn = poisoned(f, f->format, M, C), dw = poisoned(f, FMT_FP32, V, C);
    Weight head = {random_tensor(f, f->format, V, C, 1), w, transpose_of(f, w), NULL};
    f->config.recipe.cache_transposed = true;
    ((Cpu *)f->exec.backend)->recipe.cache_transposed = true;
    for (int64_t begin = 0; begin < M; begin += CHUNK) {
        const int64_t count = begin + CHUNK < M ? CHUNK : M - begin;
        Tensor some = tensor_rows(d, begin, count), some_t = tensor_rows(transpose_of(f, d), begin, count);
        ops->linear_backward_data(&f->exec, tensor_rows(dn, begin, count), some, head);
        ops->linear_backward_weight(&f->exec, dw, some_t, tensor_rows(n_t, begin, count), begin > 0);
    }
    for (int64_t j = 0; j < C; j++) {
        for (int64_t i = 0; i < M; i++) {
            double sum = 0;
            for (int64_t v = 0; v < V; v++) sum += (double)element(d, i, v) * (double)element(w, v, j);
            assert_value(dn, i, j, sum, V);
        }
        for (int64_t v = 0; v < V; v++) {
            double sum = 0;
            for (int64_t i = 0; i < M; i++) sum += (double)element(d, i, v) * (double)element(n, i, j);
            assert_value(dw, v, j, sum, M);
        }
    }
}

RUN_TESTS(NULL, NULL, NULL)
