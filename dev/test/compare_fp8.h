// Compares FP8 operations of the CPU and GPU backends: the output head, matmuls, and FP8 health counts. Included by
// test_gpt2.cu. check_fp8.cu compares the other FP8 operations.
#pragma once
#include "dev/test/texts.h"

// Returns an FP8 tensor with one scale, filled with NaN. If `share` is not NULL, the tensor is memory for the transpose
// of *share and uses the scale of *share.
static Pair pair_codes(Backends *b, int64_t rows, int64_t cols, Format format, const Pair *share) {
    Pair p = share ? pair_poisoned(b, cols, rows, format) : pair_poisoned(b, rows, cols, format);
    Pair scale;
    if (!share) scale = pair_poisoned(b, 1, 4, FMT_FP32);
    for (int s = 0; s < 2; s++) {
        p.t[s].rows = rows;
        p.t[s].cols = cols;
        p.t[s].granularity = SCALE_TENSOR;
        p.t[s].scale = share ? share->t[s].scale : scale.t[s].data;
        p.t[s].transposed = share != NULL;
    }
    return p;
}

static void pair_codes_free(Backends *b, Pair p) {
    if (!p.t[0].transposed)
        for (int s = 0; s < 2; s++) b->exec[s].ops->release(&b->exec[s], p.t[s].scale);
    pair_free(b, p);
}

// Passes if the scales of CPU and GPU agree to 1e-5 and at most 1 in 1000 FP8 values differ, by one step.
static void pair_check_codes(Backends *b, Pair p, const char *operation, const char *output) {
    size_t n = (size_t)tensor_elements(p.t[0]), differ = 0, far = 0;
    uint8_t *code[2];
    float scale[2];
    for (int s = 0; s < 2; s++) {
        code[s] = (uint8_t *)xmalloc(n);
        b->exec[s].ops->download(&b->exec[s], code[s], p.t[s].data, n);
        b->exec[s].ops->download(&b->exec[s], &scale[s], p.t[s].scale, sizeof scale[s]);
    }
    for (size_t i = 0; i < n; i++) {
        int x = code[0][i] & 0x80 ? -(code[0][i] & 0x7f) : code[0][i];
        int y = code[1][i] & 0x80 ? -(code[1][i] & 0x7f) : code[1][i];
        differ += x != y;
        far += abs(x - y) > 1;
    }
    check(
        far == 0 && differ * 1000 <= n && fabsf(scale[1] - scale[0]) <= 1e-5f * scale[0],
        formatted(
            "GPU against CPU: %s, %s %s (%lld, %lld): %zu FP8 values differ, %zu by more than a step, scales %g and %g",
            operation, output, format_name(p.t[0].format), (long long)p.t[0].rows, (long long)p.t[0].cols, differ, far,
            (double)scale[1], (double)scale[0]));
    free(code[0]);
    free(code[1]);
}

static Parameter weight_parameter(Pair value, Pair codes, Pair codes_t, int side) {
    Parameter p;
    memset(&p, 0, sizeof p);
    p.weight.value = value.t[side];
    p.weight.codes = codes.t[side];
    p.weight.codes_t = codes_t.t[side];
    return p;
}

// Compares the FP8 output head, forward and backward, on M tokens in two or three chunks. x is the final norm's output.
// The logits have Vp columns, of which the first `vocab` belong to tokens.
static void compare_head(Backends *b, int64_t M, int64_t C, int vocab, int64_t Vp) {
    const int64_t chunk = M / 3 / 16 * 32;
    Pair x = pair_random(b, M, C, FMT_BF16, 1.0f, 61), wte = pair_random(b, Vp, C, FMT_BF16, 0.05f, 62);
    Pair targets = pair_integers(b, M, vocab, 63), logits = pair_poisoned(b, chunk, Vp, FMT_BF16);
    Pair n = pair_codes(b, M, C, FMT_E4M3, NULL), n_t = pair_codes(b, M, C, FMT_E4M3, &n);
    Pair w = pair_codes(b, Vp, C, FMT_E4M3, NULL), w_t = pair_codes(b, Vp, C, FMT_E4M3, &w);
    Pair d = pair_codes(b, chunk, Vp, FMT_E5M2, NULL), d_t = pair_codes(b, chunk, Vp, FMT_E5M2, &d);
    Pair losses = pair_poisoned(b, M, 1, FMT_FP32), dn = pair_poisoned(b, M, C, FMT_BF16);
    Pair dwte = pair_random(b, Vp, C, FMT_FP32, 0.1f, 64);
    ON_BOTH(b) {
        Parameter p = weight_parameter(wte, w, w_t, s);
        Norm none;
        memset(&none, 0, sizeof none);
        CALL(b, weights_quantize, &p, 1);
        CALL(b, quantize_forward, n.t[s], x.t[s]);
        CALL(b, norm_recompute, n_t.t[s], n.t[s], none);
        for (int64_t begin = 0; begin < M; begin += chunk) {
            int64_t count = M - begin < chunk ? M - begin : chunk;
            Tensor dlogits = tensor_rows(d.t[s], 0, count), dlogits_t = tensor_rows(d_t.t[s], 0, count);
            Tensor part = tensor_rows(logits.t[s], 0, count);
            CALL(b, linear_forward, part, tensor_rows(n.t[s], begin, count), p.weight, no_tensor());
            if (begin == 0) // The transposed FP8 gradient overwrites the logits.
                dlogits_t.data = part.data;
            CALL(b, loss_forward_backward, dlogits, dlogits_t, tensor_rows(losses.t[s], begin, count), no_tensor(),
                 part, tensor_rows(targets.t[s], begin, count), begin, vocab, b->state[s]);
            CALL(b, linear_backward_data, tensor_rows(dn.t[s], begin, count), dlogits, p.weight);
            CALL(b, linear_backward_weight, dwte.t[s], dlogits_t, tensor_rows(n_t.t[s], begin, count), true);
        }
    }
    pair_check_codes(b, w, "head", "FP8 values of the embedding");
    pair_check_codes(b, n_t, "head", "transposed input");
    pair_check(b, losses, 1e-3, "fp8 head", "losses");
    pair_check(b, dn, 1e-2, "fp8 head", "dn");
    pair_check(b, dwte, 1e-2, "fp8 head", "dwte");
    // Gives both backends the same logits, so that their FP8 gradients are comparable.
    Pair same = pair_random(b, chunk, Vp, FMT_BF16, 3.0f, 65);
    ON_BOTH(b) {
        CALL(b, loss_forward_backward, d.t[s], d_t.t[s], tensor_rows(losses.t[s], 0, chunk), no_tensor(), same.t[s],
             tensor_rows(targets.t[s], 0, chunk), chunk, vocab, b->state[s]);
    }
    pair_check_codes(b, d, "loss", "dlogits");
    pair_check_codes(b, d_t, "loss", "transposed dlogits");
    for (Pair p : {x, wte, targets, logits, losses, dn, dwte, same}) pair_free(b, p);
    for (Pair p : {n_t, w_t, d_t, n, w, d}) pair_codes_free(b, p);
}

// Returns random FP8 values without NaN. One in 8 is 0, and one in 8 has the format's largest magnitude.
static Pair pair_random_codes(Backends *b, int64_t rows, int64_t cols, Format format, uint64_t stream) {
    const int top = format == FMT_E4M3 ? 0x7e : 0x7b;
    uint8_t *host = (uint8_t *)xmalloc((size_t)(rows * cols));
    for (int64_t i = 0; i < rows * cols; i++) {
        uint64_t bits = rng_hash(78, stream, (uint64_t)i);
        int code = bits % 8 == 0 ? 0 : bits % 8 == 1 ? top : (int)(bits >> 8 & 0xffff) % top;
        host[i] = (uint8_t)(code | (bits >> 40 & 0x80));
    }
    Pair p = pair_of_bytes(b, rows, cols, format, host);
    free(host);
    return p;
}

// Returns `rows` random powers of two, to be used as row scales.
static Pair pair_row_scales(Backends *b, int64_t rows, uint64_t stream) {
    float *host = (float *)xmalloc((size_t)rows * sizeof *host);
    for (int64_t i = 0; i < rows; i++) host[i] = ldexpf(1.0f, (int)(rng_hash(78, stream, (uint64_t)i) % 31) - 20);
    Pair p = pair_of_bytes(b, rows, 1, FMT_FP32, host);
    free(host);
    return p;
}

static Pair with_row_scales(Pair p, Pair scales) {
    for (int s = 0; s < 2; s++) {
        p.t[s].granularity = SCALE_ROW;
        p.t[s].scale = scales.t[s].data;
    }
    return p;
}

// Passes if the GPU's row scales are bit-identical to the CPU's, which shows that the operation did not change them.
static void check_row_scales(Backends *b, Pair scales, const char *operation) {
    double *cpu = pair_values(b, scales, 0), *gpu = pair_values(b, scales, 1);
    check(memcmp(cpu, gpu, (size_t)tensor_elements(scales.t[0]) * sizeof *cpu) == 0,
          formatted("GPU against CPU: %s does not change the row scales", operation));
    free(cpu);
    free(gpu);
}

// Compares matmuls whose operands have row scales. The stored output is not multiplied by the row scales.
static void compare_carried(Backends *b, int64_t M, int64_t in, int64_t out) {
    Pair value = pair_random(b, out, in, FMT_BF16, 0.05f, 101);
    Pair w = pair_codes(b, out, in, FMT_E4M3, NULL), w_t = pair_codes(b, out, in, FMT_E4M3, &w);
    Pair x_scales = pair_row_scales(b, M, 102), dy_scales = pair_row_scales(b, M, 103);
    Pair x = with_row_scales(pair_random_codes(b, M, in, FMT_E4M3, 104), x_scales);
    Pair dy = with_row_scales(pair_random_codes(b, M, out, FMT_E5M2, 105), dy_scales);
    Pair y = with_row_scales(pair_poisoned(b, M, out, FMT_BF16), x_scales);
    Pair dx = with_row_scales(pair_poisoned(b, M, in, FMT_BF16), dy_scales);
    ON_BOTH(b) {
        Parameter p = weight_parameter(value, w, w_t, s);
        CALL(b, weights_quantize, &p, 1);
        CALL(b, linear_forward, y.t[s], x.t[s], p.weight, no_tensor());
        CALL(b, linear_backward_data, dx.t[s], dy.t[s], p.weight);
    }
    pair_check(b, y, 1e-2, "forward matmul with row scales", "y");
    pair_check(b, dx, 1e-2, "dgrad with row scales", "dx");
    check_row_scales(b, x_scales, "linear forward");
    check_row_scales(b, dy_scales, "linear backward");
    for (Pair p : {value, x_scales, dy_scales, x, dy, y, dx}) pair_free(b, p);
    for (Pair p : {w_t, w}) pair_codes_free(b, p);
}

// Compares FP8 health counts of tensors with one scale, with a scale per group (some rows end with a shorter group),
// with 8-bit moments, and with a scale per row.
static void compare_health(Backends *b) {
    enum { COUNT = 8, BY_ROW = 6, ROWS = 37, COLS = 336 };
    Pair codes[COUNT], scales[COUNT], exponents[COUNT];
    Tensor tensors[2][COUNT];
    Health found[2][COUNT];
    for (int i = 0; i < COUNT; i++) {
        Format format = i % 2 ? FMT_E5M2 : FMT_E4M3;
        Granularity kind = i < 2 ? SCALE_TENSOR : i < 4 ? SCALE_GROUP : i < BY_ROW ? SCALE_EXPAND : SCALE_ROW;
        int group = i == 2 ? 16 : 128;
        codes[i] = pair_random_codes(b, ROWS, i == 5 ? COLS - 3 : COLS, format, 70 + (uint64_t)i);
        scales[i] = i < BY_ROW
                        ? pair_random(b, ROWS, COLS, kind == SCALE_GROUP ? FMT_BF16 : FMT_FP32, 1.0f, 80 + (uint64_t)i)
                        : pair_row_scales(b, ROWS, 80 + (uint64_t)i);
        exponents[i] = pair_random_codes(b, ROWS, COLS, FMT_E4M3, 90 + (uint64_t)i);
        ON_BOTH(b) {
            Tensor t = codes[i].t[s];
            t.granularity = kind;
            t.group = group;
            t.scale = scales[i].t[s].data;
            t.exponent = (uint8_t *)exponents[i].t[s].data;
            if (i == 3) t.format = FMT_E4M3;
            tensors[s][i] = t;
        }
    }
    ON_BOTH(b) CALL(b, health, tensors[s], COUNT, found[s]);
    check(memcmp(found[0], found[1], sizeof found[0]) == 0, "GPU against CPU: FP8 health counts");
    check(found[1][0].saturated > 0 && found[1][2].zero > 0 && found[1][4].clamped > 0 && found[1][5].amax > 0,
          "FP8 health counts are not all 0");
    check(found[1][BY_ROW].saturated > 0 && found[1][BY_ROW].zero > 0 && found[1][BY_ROW + 1].amax > 0,
          "FP8 health counts with row scales are not all 0");
    ON_BOTH(b) { // removes the FP8 values of four tensors, so that their amax must be computed from the scales
        tensors[s][0].data = tensors[s][1].data = tensors[s][BY_ROW].data = tensors[s][BY_ROW + 1].data = NULL;
        CALL(b, health, tensors[s], COUNT, found[s]);
    }
    check(memcmp(found[0], found[1], sizeof found[0]) == 0 && found[1][BY_ROW].amax > 0 && found[1][BY_ROW].zero == 0,
          "GPU against CPU: amax of FP8 health from scales");
    for (int i = 0; i < COUNT; i++) {
        for (Pair p : {codes[i], scales[i], exponents[i]}) pair_free(b, p);
    }
}

static CodeCounts codes_counted(Exec *ex, Tensor codes, CodeCounts *counts) {
    CodeCounts found;
    ex->ops->codes_count(ex, codes, counts);
    ex->ops->download(ex, &found, counts, sizeof found);
    return found;
}

// Compares the two backends' counts of FP8 values, also for transposed tensors and for rows with a tail that does not
// fill a word. Counts must be added to the earlier counts `before`.
static void compare_codes_count(Backends *b, int64_t rows, int64_t cols) {
    for (int i = 0; i < 8; i++) {
        const int64_t part = i / 2 % 2 ? cols - 5 : cols; // the row stride of half of the tensors exceeds cols
        const CodeCounts before = {1, 2, 3, (uint64_t)1 << 40};
        Pair codes = pair_random_codes(b, rows, cols, i % 2 ? FMT_E5M2 : FMT_E4M3, 110 + (uint64_t)i);
        Pair counts = pair_of_bytes(b, 1, sizeof before, FMT_U8, &before);
        CodeCounts found[2];
        ON_BOTH(b) {
            Tensor t = codes.t[s];
            t.cols = part;
            if (i >= 4) { // half of the tensors are transposed
                t.rows = part, t.cols = rows;
                t.transposed = true;
            }
            found[s] = codes_counted(&b->exec[s], t, (CodeCounts *)counts.t[s].data);
        }
        check(memcmp(&found[0], &found[1], sizeof found[0]) == 0 && found[1].codes == (uint64_t)(rows * part) + 1 &&
                  found[1].saturated > before.saturated && found[1].subnormal > before.subnormal,
              formatted("GPU against CPU: codes_count, %s%s (%lld, %lld): %llu saturated, %llu subnormal",
                        format_name(codes.t[0].format), i >= 4 ? " transposed" : "", (long long)rows, (long long)part,
                        (unsigned long long)found[1].saturated,
                        (unsigned long long)(found[1].subnormal - before.subnormal)));
        for (Pair p : {codes, counts}) pair_free(b, p);
    }
}

// Compares inner products, summed in double precision, up to rounding. Two runs on the GPU must be bit-identical.
static void compare_inner_products(Backends *b, int64_t rows, int64_t cols, Format format) {
    Pair x = pair_random(b, rows, cols, format, 3.0f, 120), y = pair_random(b, rows, cols, format, 0.5f, 121);
    Pair sums = pair_poisoned(b, 1, 2 * sizeof(InnerProducts), FMT_U8);
    InnerProducts found[2][2];
    ON_BOTH(b) {
        InnerProducts *out = (InnerProducts *)sums.t[s].data;
        for (int i = 0; i < 2; i++) CALL(b, inner_products, x.t[s], y.t[s], out + i);
        b->exec[s].ops->download(&b->exec[s], found[s], out, sizeof found[s]);
    }
    const InnerProducts cpu = found[0][0], gpu = found[1][0];
    const double size = sqrt(cpu.aa * cpu.bb); // magnitude of the terms of the inner product <a, b>
    check(fabs(gpu.ab - cpu.ab) <= 1e-6 * size && fabs(gpu.aa - cpu.aa) <= 1e-6 * cpu.aa &&
              fabs(gpu.bb - cpu.bb) <= 1e-6 * cpu.bb && memcmp(&found[1][0], &found[1][1], sizeof gpu) == 0,
          formatted("GPU against CPU: inner_products, %s (%lld, %lld): %.9g, %.9g and %.9g", format_name(format),
                    (long long)rows, (long long)cols, gpu.ab, gpu.aa, gpu.bb));
    for (Pair p : {x, y, sums}) pair_free(b, p);
}

// Compares the results of the operation outliers() up to rounding. x is unscaled, or FP8 with scales of this kind.
// moments: format of the second moments that x^2 is divided by; 0: none; 1: FP32; 2: 8-bit. Two runs on the GPU must be
// bit-identical.
static void compare_outliers(Backends *b, int64_t rows, int64_t cols, Granularity kind, int moments) {
    const bool fp8 = kind != SCALE_NONE;
    Pair x = fp8 ? pair_random_codes(b, rows, cols, FMT_E4M3, 130) : pair_random(b, rows, cols, FMT_BF16, 3.0f, 130);
    Pair scale = kind == SCALE_ROW ? pair_row_scales(b, rows, 131)
                                   : pair_random(b, rows, cols, kind == SCALE_GROUP ? FMT_BF16 : FMT_FP32, 1.0f, 131);
    Pair v = moments == 2 ? pair_random_codes(b, rows, cols, FMT_E4M3, 132)
                          : pair_random(b, rows, cols, FMT_FP32, 1.0f, 132);
    Pair exponents = pair_poisoned(b, rows, cols, FMT_U8), sums = pair_poisoned(b, 1, 2 * sizeof(Outliers), FMT_U8);
    uint8_t *k = (uint8_t *)xmalloc((size_t)(rows * cols));
    for (int64_t i = 0; i < rows * cols; i++) k[i] = (uint8_t)(8 + i % 40);
    Outliers found[2][2];
    ON_BOTH(b) {
        Exec *exec = &b->exec[s];
        Tensor t = x.t[s], m = moments ? v.t[s] : no_tensor();
        exec->ops->upload(exec, exponents.t[s].data, k, (size_t)(rows * cols));
        if (fp8) t.granularity = kind, t.group = 32, t.scale = scale.t[s].data;
        if (moments == 2) {
            m.granularity = SCALE_EXPAND, m.group = 128;
            m.scale = scale.t[s].data;
            m.exponent = (uint8_t *)exponents.t[s].data;
        }
        for (int i = 0; i < 2; i++) CALL(b, outliers, t, m, (Outliers *)sums.t[s].data + i);
        exec->ops->download(exec, found[s], sums.t[s].data, sizeof found[s]);
    }
    const Outliers cpu = found[0][0], gpu = found[1][0];
    check(cpu.sums.ab > 0 && fabs(gpu.sums.ab - cpu.sums.ab) <= 1e-4 * cpu.sums.ab &&
              fabs(gpu.sums.aa - cpu.sums.aa) <= 1e-3 * cpu.sums.aa && gpu.sums.bb == cpu.sums.bb &&
              gpu.amax == cpu.amax && memcmp(&found[1][0], &found[1][1], sizeof gpu) == 0,
          formatted("GPU against CPU: outliers, granularity %d, moments %d: %.9g, %.9g", kind, moments, gpu.sums.ab,
                    gpu.sums.aa));
    free(k);
    for (Pair p : {x, v, exponents, sums, scale}) pair_free(b, p);
}

static void compare_fp8(bool small_only) {
    Small small = {2, 25, 1600, 3001, 3, 64, true, 0};
    Config c = small_config(small);
    recipe_apply(&c.recipe, RECIPE_COAT);
    c.recipe.head = HEAD_FP8;
    Backends b;
    backends_open(&b, c);
    compare_head(&b, 96, 192, 3001, 3072);
    compare_health(&b);
    compare_codes_count(&b, 37, 336);
    compare_inner_products(&b, 3, 5, FMT_BF16);
    compare_inner_products(&b, 301, 333, FMT_FP32);
    for (int kind = SCALE_NONE; kind <= SCALE_GROUP; kind++) compare_outliers(&b, 37, 336, (Granularity)kind, 0);
    for (int moments = 1; moments <= 2; moments++) compare_outliers(&b, 37, 336, SCALE_NONE, moments);
    compare_carried(&b, 96, 192, 336);
    if (!small_only) {
        compare_codes_count(&b, 4096, 3072);
        compare_inner_products(&b, 4800, 1600, FMT_BF16);
        compare_inner_products(&b, 2304, 768, FMT_FP32);
        compare_carried(&b, 1040, 768, 3072);
        compare_carried(&b, 272, 6400, 1600);
        compare_head(&b, 144, 768, 50257, 50304);
        compare_head(&b, 80, 1600, 130000, 130048); // rows that exceed a thread block's shared memory
    }
    backends_close(&b);
}
