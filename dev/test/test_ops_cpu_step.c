// Tests of the CPU backend's operations before and after the transformer blocks: embedding, loss, gradient norm and
// AdamW. Compares them with their formulas in double precision.
#include "ops_fixture.h"

static Tensor random_tokens(Fixture *f, int64_t M, int vocab) {
    Tensor t = poisoned(f, FMT_I32, M, 1);
    for (int64_t i = 0; i < M; i++) set_value(t, i, 0, floor((draw(f) + 1) / 2 * vocab));
    return t;
}

static void check_embedding(Fixture *f, int64_t B, int T, int64_t C) {
    const Ops *ops = f->exec.ops;
    const int64_t M = B * T, Vp = 50, positions = 40;
    Tensor tokens = random_tokens(f, M, 20);
    Tensor wte = random_tensor(f, f->format, Vp, C, 1), wpe = random_tensor(f, f->format, positions, C, 1);
    Tensor r = poisoned(f, f->format, M, C), bare = poisoned(f, f->format, M, C);
    ops->embed_forward(&f->exec, r, tokens, no_tensor(), wte, wpe, T);
    ops->embed_forward(&f->exec, bare, tokens, no_tensor(), wte, no_tensor(), T);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < C; j++) {
            double token = value(wte, (int64_t)value(tokens, i, 0), j);
            assert_value(r, i, j, token + value(wpe, i % T, j), 1);
            assert_value(bare, i, j, token, 0);
        }

    Tensor g = random_tensor(f, f->format, M, C, 1), dwte = random_tensor(f, FMT_FP32, Vp, C, 1);
    Tensor dwpe = poisoned(f, FMT_FP32, positions, C), dwte_before = copy_of(f, dwte);
    ops->embed_backward(&f->exec, dwte, dwpe, g, tokens, no_tensor(), T, false);
    Tensor dwpe_once = copy_of(f, dwpe);
    ops->embed_backward(&f->exec, no_tensor(), dwpe, g, tokens, no_tensor(), T, true);
    for (int64_t j = 0; j < C; j++) {
        for (int64_t t = 0; t < positions; t++) {
            double sum = 0;
            for (int64_t i = t; t < T && i < M; i += T) sum += value(g, i, j);
            assert_value(dwpe_once, t, j, sum, 4);
            assert_value(dwpe, t, j, 2 * sum, 4);
        }
        for (int64_t row = 0; row < Vp; row++) {
            double sum = value(dwte_before, row, j);
            for (int64_t i = 0; i < M; i++) sum += (int64_t)value(tokens, i, 0) == row ? value(g, i, j) : 0;
            assert_value(dwte, row, j, sum, 10);
        }
    }
}

TEST_EVERYWHERE(embedding_and_its_gradient) {
    check_embedding(f, 3, 17, 100);
    check_embedding(f, 1, 33, 48);
}

static void check_loss(Fixture *f, int64_t R, int vocab, int64_t Vp, double size) {
    const Ops *ops = f->exec.ops;
    const float scale = 0.125f;
    Tensor targets = random_tokens(f, R, vocab), logits = random_tensor(f, f->format, R, Vp, size);
    Tensor before = copy_of(f, logits), losses = poisoned(f, FMT_FP32, R, 1), again = poisoned(f, FMT_FP32, R, 1);
    Tensor best = poisoned(f, FMT_FP32, R, 1), best_again = poisoned(f, FMT_FP32, R, 1);
    StepState state = {0};
    state.loss_scale = scale;
    for (int64_t i = 0; i < R; i++) { // Some targets get the largest logit, alone or with another token.
        const int64_t target = (int64_t)value(targets, i, 0), other = i % 4 == 1 ? 0 : i % 4 == 2 ? vocab - 1 : target;
        if (i % 4 == 3) continue;
        set_value(logits, i, target, size);
        set_value(logits, i, other, size);
        set_value(before, i, target, size);
        set_value(before, i, other, size);
    }
    set_value(targets, R / 2, 0, -1); // a row without a target
    for (int64_t i = 0; i < R; i++)   // The logits of padding columns must be ignored.
        for (int64_t j = vocab; j < Vp; j++) set_value(logits, i, j, NAN);
    ops->loss_forward_backward(&f->exec, no_tensor(), no_tensor(), again, best_again, logits, targets, 0, vocab,
                               &state);
    ops->loss_forward_backward(&f->exec, logits, logits, losses, best, logits, targets, 0, vocab, &state);
    assert_true(same_bits(losses, again) && same_bits(best, best_again));
    assert_int_equal(state.nonfinite, 0);
    double total = 0;
    for (int64_t i = 0; i < R; i++) {
        int64_t target = (int64_t)value(targets, i, 0);
        int64_t first = 0; // first token with the largest logit
        double sum = 0, highest = 0;
        for (int64_t j = 0; j < vocab; j++) highest = fmax(highest, value(before, i, j));
        for (int64_t j = 0; j < vocab; j++) sum += exp(value(before, i, j) - highest);
        for (int64_t j = 1; j < vocab; j++) first = value(before, i, j) > value(before, i, first) ? j : first;
        assert_true(value(best, i, 0) == (target == first));
        double loss = target < 0 ? 0 : highest + log(sum) - value(before, i, target);
        assert_value(losses, i, 0, loss, 1 + size);
        total += value(losses, i, 0);
        for (int64_t j = 0; j < Vp; j++) {
            double p = exp(value(before, i, j) - highest) / sum;
            bool zero = target < 0 || j >= vocab;
            assert_value(logits, i, j, zero ? 0 : (p - (j == target)) * (double)scale, zero ? 0 : 0.125 + size / 20);
        }
    }
    state.loss_sum = 1;
    ops->loss_sum(&f->exec, losses, &state);
    assert_true(fabs(state.loss_sum - (1 + total * (double)scale)) < 1e-9 * R);
}

static void losses(Fixture *f) {
    check_loss(f, 17, 257, 384, 3);
    check_loss(f, 3, 2100, 2176, 40);
}

TEST_EVERYWHERE(loss_and_its_gradient) {
    losses(f);
}

// A NaN or inf logit sets state->nonfinite only if its column is in the vocabulary, not if it is padding. If the
// target's logit is NaN or -inf, `best` is 0 for that row.
UNIT_TEST(a_nonfinite_logit_is_reported) {
    const double bad[3] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        Fixture f;
        StepState state = {0};
        state.loss_scale = 1;
        fixture_begin(&f, FMT_FP32, 2);
        Tensor logits = random_tensor(&f, FMT_FP32, 5, 40, 1), losses_ = poisoned(&f, FMT_FP32, 5, 1);
        Tensor best = poisoned(&f, FMT_FP32, 5, 1);
        Tensor targets = random_tokens(&f, 5, 20);
        set_value(logits, 3, 30, bad[i]); // column 30 of the logits is padding
        f.exec.ops->loss_forward_backward(&f.exec, no_tensor(), no_tensor(), losses_, best, logits, targets, 0, 20,
                                          &state);
        assert_int_equal(state.nonfinite, 0);
        set_value(logits, 3, (int64_t)value(targets, 3, 0), bad[i]);
        f.exec.ops->loss_forward_backward(&f.exec, logits, logits, losses_, best, logits, targets, 0, 20, &state);
        assert_int_equal(state.nonfinite, 1);
        assert_true(value(best, 3, 0) == (bad[i] > 0));
        fixture_end(&f);
    }
}

TEST_EVERYWHERE(gradients_are_added) {
    Tensor sums[3], parts[3], before[3];
    for (int k = 0; k < 3; k++) { // The tensors have many rows (several kernel blocks), one row, or none.
        const int64_t rows = k == 0 ? 70 : k == 1 ? 1 : 0, cols = k == 0 ? 128 : 77;
        const Format format = k == 1 ? FMT_FP32 : f->format;
        sums[k] = random_tensor(f, format, rows, cols, 1), parts[k] = random_tensor(f, format, rows, cols, 1);
        before[k] = copy_of(f, sums[k]);
    }
    f->exec.ops->gradients_add(&f->exec, sums, parts, 3);
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < sums[k].rows; i++)
            for (int64_t j = 0; j < sums[k].cols; j++)
                assert_value(sums[k], i, j, value(before[k], i, j) + value(parts[k], i, j), 1);
}

// Storage formats of a parameter and its states.
typedef struct {
    Format value, grad, moments, master; // master: FMT_NONE, FMT_U16 (split16) or FMT_FP32
} Storage;

static const Storage STORAGES[5] = {
    {FMT_FP32, FMT_FP32, FMT_FP32, FMT_NONE}, {FMT_BF16, FMT_BF16, FMT_FP32, FMT_FP32},
    {FMT_BF16, FMT_FP32, FMT_FP32, FMT_U16},  {FMT_BF16, FMT_BF16, FMT_BF16, FMT_FP32},
    {FMT_BF16, FMT_BF16, FMT_FP32, FMT_NONE},
};

static Parameter make_parameter(Fixture *f, Storage s, int64_t rows, int64_t cols) {
    Parameter p = {0};
    Tensor full = random_tensor(f, FMT_FP32, rows, cols, 1);
    p.weight.value = poisoned(f, s.value, rows, cols);
    p.grad = random_tensor(f, s.grad, rows, cols, 1);
    p.m = random_tensor(f, s.moments, rows, cols, 0);
    p.v = random_tensor(f, s.moments, rows, cols, 0);
    p.decay = rows > 1;
    if (s.master != FMT_NONE) p.master = poisoned(f, s.master, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        float x = ((const float *)full.data)[i];
        if (s.value == FMT_FP32)
            ((float *)p.weight.value.data)[i] = x;
        else
            ((uint16_t *)p.weight.value.data)[i] = master_bf16(x);
        if (s.master == FMT_FP32) ((float *)p.master.data)[i] = x;
        if (s.master == FMT_U16) ((uint16_t *)p.master.data)[i] = (uint16_t)float_bits(x);
    }
    return p;
}

// Returns element i of the parameter: its master weight if there is one, otherwise its value.
static double full_value(const Parameter *p, int64_t i) {
    if (p->master.data && p->master.format == FMT_FP32) return (double)((const float *)p->master.data)[i];
    if (p->master.data)
        return (double)master_join(((const uint16_t *)p->weight.value.data)[i], ((const uint16_t *)p->master.data)[i]);
    return value(p->weight.value, i / p->weight.value.cols, i % p->weight.value.cols);
}

static StepState hyperparameters(float clip) {
    StepState s = {0};
    s.lr = 0.01f, s.beta1 = 0.9f, s.beta2 = 0.95f, s.eps = 1e-8f, s.weight_decay = 0.1f, s.grad_clip = clip;
    return s;
}

// Takes three AdamW steps with the same gradient, and compares every element with AdamW's formula in double precision.
static void check_adamw(Fixture *f, Storage storage, float clip) {
    const Ops *ops = f->exec.ops;
    Parameter list[2];
    list[0] = make_parameter(f, storage, 100, 131);
    list[1] = make_parameter(f, storage, 1, 77);
    StepState state = hyperparameters(clip);
    double square = 0;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < tensor_elements(list[k].grad); i++)
            square += pow(value(list[k].grad, i / list[k].grad.cols, i % list[k].grad.cols), 2);
    for (int step = 1; step <= 3; step++) {
        Tensor before[2];
        for (int k = 0; k < 2; k++) {
            before[k] = poisoned(f, FMT_FP32, list[k].grad.rows, list[k].grad.cols);
            for (int64_t i = 0; i < tensor_elements(list[k].grad); i++)
                ((float *)before[k].data)[i] = (float)full_value(&list[k], i);
        }
        ops->grad_norm(&f->exec, list, 2, &state);
        assert_true(fabs(state.grad_sq / square - 1) < 1e-9 && fabs((double)state.grad_norm / sqrt(square) - 1) < 1e-6);
        ops->adamw_update(&f->exec, list, 2, &state);
        assert_true(state.t == step && state.skipped == 0 && state.skipped_run == 0);
        double factor = clip > 0 && sqrt(square) > (double)clip ? (double)clip / sqrt(square) : 1;
        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; i < tensor_elements(list[k].grad); i++) {
                int64_t row = i / list[k].grad.cols, col = i % list[k].grad.cols;
                double g = factor * value(list[k].grad, row, col), old = (double)((const float *)before[k].data)[i];
                double m = g * (1 - pow((double)0.9f, step)), v = g * g * (1 - pow((double)0.95f, step));
                if (storage.moments == FMT_FP32) { // rounded BF16 moments drift from the formula
                    assert_value(list[k].m, row, col, m, fabs(g));
                    assert_value(list[k].v, row, col, v, g * g);
                }
                double expected = old - 0.01 * (g / (fabs(g) + 1e-8) + (list[k].decay ? 0.1 : 0) * old);
                double tolerance = storage.moments == FMT_FP32 ? 3e-7 : 2e-4;
                if (storage.master == FMT_NONE && storage.value == FMT_BF16)
                    tolerance = 8e-3; // Stochastic rounding to BF16 may be off by one unit in the last place.
                if (fabs(g) > 1e-6) assert_true(fabs(full_value(&list[k], i) - expected) <= tolerance);
                if (storage.master != FMT_NONE)
                    assert_int_equal(((const uint16_t *)list[k].weight.value.data)[i],
                                     master_bf16((float)full_value(&list[k], i)));
            }
    }
}

UNIT_TEST(adamw_follows_its_formula) {
    for (int i = 0; i < 5; i++)
        for (int clipped = 0; clipped < 2; clipped++) {
            uint64_t hash[2];
            for (int threads = 1; threads <= 2; threads++) {
                Fixture f;
                fixture_begin(&f, FMT_FP32, threads);
                check_adamw(&f, STORAGES[i], clipped ? 0.5f : 0);
                hash[threads - 1] = fixture_end(&f);
            }
            assert_true(hash[0] == hash[1]);
        }
}

UNIT_TEST(split16_masters_give_the_bits_of_fp32_masters) {
    Fixture f;
    fixture_begin(&f, FMT_FP32, 2);
    const Storage whole = {FMT_BF16, FMT_FP32, FMT_FP32, FMT_FP32}, split = {FMT_BF16, FMT_FP32, FMT_FP32, FMT_U16};
    f.draws = 1;
    Parameter a = make_parameter(&f, whole, 40, 131);
    f.draws = 1;
    Parameter b = make_parameter(&f, split, 40, 131);
    StepState state_a = hyperparameters(1), state_b = state_a;
    for (int step = 0; step < 5; step++) {
        f.exec.ops->grad_norm(&f.exec, &a, 1, &state_a);
        f.exec.ops->adamw_update(&f.exec, &a, 1, &state_a);
        f.exec.ops->grad_norm(&f.exec, &b, 1, &state_b);
        f.exec.ops->adamw_update(&f.exec, &b, 1, &state_b);
        assert_true(same_bits(a.weight.value, b.weight.value) && same_bits(a.v, b.v));
        for (int64_t i = 0; i < tensor_elements(a.m); i++) assert_true(full_value(&a, i) == full_value(&b, i));
    }
    fixture_end(&f);
}

// If a gradient contains NaN or inf, adamw_update skips the whole update. The next update with finite gradients gives
// the same bits as if the skipped update had not happened.
UNIT_TEST(a_nonfinite_gradient_skips_the_update) {
    const double bad[3] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        Fixture f;
        fixture_begin(&f, FMT_FP32, 2);
        f.draws = 1;
        Parameter p = make_parameter(&f, STORAGES[1], 90, 100);
        f.draws = 1;
        Parameter same = make_parameter(&f, STORAGES[1], 90, 100); // a copy of p without skipped updates
        Tensor value_before = copy_of(&f, p.weight.value), m_before = copy_of(&f, p.m);
        StepState state = hyperparameters(1), state_of_same = state;
        double good = value(p.grad, 89, 99);
        set_value(p.grad, 89, 99, bad[i]);
        for (int n = 1; n <= 2; n++) {
            f.exec.ops->grad_norm(&f.exec, &p, 1, &state);
            assert_int_equal(state.nonfinite, 1);
            f.exec.ops->adamw_update(&f.exec, &p, 1, &state);
            assert_true(state.t == 0 && state.skipped == n && state.skipped_run == n);
        }
        assert_true(same_bits(p.weight.value, value_before) && same_bits(p.m, m_before));
        set_value(p.grad, 89, 99, good);
        state.nonfinite = 0;
        f.exec.ops->grad_norm(&f.exec, &p, 1, &state);
        f.exec.ops->adamw_update(&f.exec, &p, 1, &state);
        assert_true(state.nonfinite == 0 && state.t == 1 && state.skipped == 2 && state.skipped_run == 0);
        assert_false(same_bits(p.weight.value, value_before));
        f.exec.ops->grad_norm(&f.exec, &same, 1, &state_of_same);
        f.exec.ops->adamw_update(&f.exec, &same, 1, &state_of_same);
        assert_true(same_bits(p.weight.value, same.weight.value) && same_bits(p.master, same.master));
        assert_true(same_bits(p.m, same.m) && same_bits(p.v, same.v));
        fixture_end(&f);
    }
}

UNIT_TEST(cpu_device_functions) {
    Fixture f;
    Error err;
    fixture_begin(&f, FMT_FP32, 2);
    const Ops *ops = f.exec.ops;
    char text[256] = "", from[100], to[100];
    ops->describe(&f.exec, text, sizeof text);
    assert_non_null(strstr(text, "2 threads"));
    memset(from, 7, sizeof from);
    void *memory = ops->allocate(&f.exec, 3000001, &err);
    assert_true(memory && (uintptr_t)memory % 256 == 0);
    ops->zero(&f.exec, memory, 3000001);
    assert_true(((char *)memory)[0] == 0 && ((char *)memory)[3000000] == 0);
    ops->upload(&f.exec, memory, from, sizeof from);
    ops->download(&f.exec, to, memory, sizeof to);
    assert_memory_equal(from, to, sizeof to);
    ops->release(&f.exec, memory);
    assert_null(ops->allocate(&f.exec, (size_t)1 << 60, &err));
    assert_int_equal(err.code, EXIT_DEVICE);
    assert_false(ops->replay_begin(&f.exec, 0));
    fixture_end(&f);
}

RUN_TESTS(NULL, NULL, NULL)
