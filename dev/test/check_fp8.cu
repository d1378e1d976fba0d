// Compares the FP8 operations of the GPU with the CPU backend on random values. Shapes reach every kernel variant:
// groups of 16, 32 and 128 with tails, widths that are not multiples of 128, partial tiles, and strided transposes. At
// most 1 in 1000 FP8 values may differ, by one step, because another order of sums or an approximated exponential can
// cross a rounding boundary. Copied values and values that are only rounded must be equal.
#include "check_pairs.h"

// --- generation of random tensors ---------------------------------------------------------------------------
// Returns a tensor of random BF16 values whose row magnitudes differ by powers of two, so that few rows contain the
// amax.
static CheckPair check_random(Check *c, int64_t rows, int64_t cols, float mean, float deviation) {
    CheckPair t = check_plain(c, rows, cols, FMT_BF16);
    const uint64_t stream = c->draws++;
    for (int64_t i = 0; i < rows * cols; i++) {
        const float size = rows > 1 ? ldexpf(deviation, -(int)((i / cols * 7) % 4)) : deviation;
        ((uint16_t *)t.cpu.data)[i] = bf16_encode(mean + size * rng_normal(5, stream, (uint64_t)i));
    }
    check_upload(c, t);
    return t;
}

// Returns a random matmul output with row scales: normally distributed BF16 values, and a random power of two per row.
static CheckPair check_carried(Check *c, int64_t rows, int64_t cols, float mean, float deviation) {
    CheckPair t = check_random(c, rows, cols, mean, deviation);
    const CheckPair scales = check_plain(c, rows, 1, FMT_FP32);
    const uint64_t stream = c->draws++;
    for (int64_t i = 0; i < rows; i++)
        ((float *)scales.cpu.data)[i] = ldexpf(1, (int)(rng_hash(5, stream, (uint64_t)i) % 7) - 3);
    check_upload(c, scales);
    t.cpu.granularity = t.gpu.granularity = SCALE_ROW;
    t.cpu.scale = scales.cpu.data, t.gpu.scale = scales.gpu.data;
    return t;
}

// --- checks of single FP8 operations against the CPU reference ----------------------------------------------
typedef struct {
    int64_t M, C;
    int group; // group size of saved FP8 activations; 0: activations are saved in BF16
    bool fp8;  // whether matmuls are in FP8
    bool from_saved, rms;
    int rows; // tensors with row scales. 0: none; 1: matmul outputs; 2: also the operands that coat gives row scales
} CheckShape;

typedef struct {
    CheckPair x, mean, rstd, weight, bias;
    bool from_saved;
} NormPair;

static Norm check_norm_of(const NormPair *t, int gpu) {
    Norm n = {};
    n.x = SIDE(t->x), n.mean = SIDE(t->mean), n.rstd = SIDE(t->rstd), n.weight = SIDE(t->weight),
    n.bias = SIDE(t->bias);
    n.eps = 1e-5f;
    n.from_saved = t->from_saved;
    return n;
}

// Returns an unwritten matmul operand in the recipe of shape s: BF16, or FP8 in format `code`. An FP8 operand has one
// scale per row if `rows` is true.
static CheckPair check_operand(Check *c, CheckShape s, int64_t cols, Format code, bool rows) {
    if (!s.fp8) return check_plain(c, s.M, cols, FMT_BF16);
    const CheckPair t = check_new(c, s.M, cols, code, rows ? ROW_SCALES : 0, false, NULL);
    return rows ? t : with_maxima(c, t);
}

static CheckPair check_transposed(Check *c, CheckShape s, int64_t cols, CheckPair operand, Format code) {
    // The transpose has its own scale if the operand has row scales or another format.
    const bool own = operand.cpu.granularity == SCALE_ROW || code != operand.cpu.format;
    return s.fp8 ? check_new(c, s.M, cols, code, 0, true, own ? NULL : &operand) : check_plain(c, s.M, cols, FMT_BF16);
}

static CheckPair check_operand_t(Check *c, CheckShape s, int64_t cols, CheckPair operand) {
    return check_transposed(c, s, cols, operand, FMT_E4M3);
}

static CheckPair check_gradient_t(Check *c, CheckShape s, int64_t cols, CheckPair gradient) {
    return check_transposed(c, s, cols, gradient, FMT_E5M2);
}

// Passes if the GPU's transpose of row-scaled FP8 values is bit-identical to the CPU's.
static void check_rescaled(Check *c, CheckPair q, CheckPair q_t, const char *what) {
    const size_t bytes = check_data_bytes(q.cpu), scales = check_scale_bytes(q.cpu);
    void *codes = check_download(c, q.gpu.data, bytes), *row_scales = check_download(c, q.gpu.scale, scales);
    Tensor of = q.cpu;
    of.data = codes, of.scale = row_scales;
    // activation_recompute only transposes this g, because g has FP8 values; it does not compute the activation.
    c->cpu.ops->activation_recompute(&c->cpu, q_t.cpu, of, Tensor{}, ACT_GELU_TANH);
    check_scales(c, q_t, 0, what);
    check_code_bytes(c, q_t, 0, what);
    free(codes);
    free(row_scales);
}

// Returns a random matmul output, with row scales if `rows` is true.
static CheckPair check_matmul(Check *c, CheckShape s, bool rows, float deviation) {
    return rows ? check_carried(c, s.M, s.C, 0, deviation) : check_random(c, s.M, s.C, 0, deviation);
}

static void check_operand_equal(Check *c, CheckShape s, CheckPair t, const char *what) {
    if (s.fp8)
        check_codes(c, t, what);
    else
        check_values(c, t, 2e-3, what);
}

// Returns t without its data, as backward passes an operand that it recomputes: only the scale was saved.
static Tensor scale_only(Tensor t) {
    t.data = NULL;
    return t;
}

// Returns a norm with random weights and memory for its saved input: FP8 in groups or, if s.group is 0, the residual r
// itself.
static NormPair check_norm_pair(Check *c, CheckShape s, CheckPair r) {
    const CheckPair none = {};
    NormPair norm = {};
    norm.x = s.group ? check_new(c, s.M, s.C, FMT_E4M3, s.group, false, NULL) : r;
    norm.weight = check_random(c, 1, s.C, 1, 0.3f);
    norm.bias = s.rms ? none : check_random(c, 1, s.C, 0, 1);
    norm.mean = s.rms ? none : check_plain(c, s.M, 1, FMT_FP32);
    norm.rstd = check_plain(c, s.M, 1, FMT_FP32);
    norm.from_saved = s.from_saved;
    return norm;
}

static void check_norm(Check *c, CheckShape s) {
    const CheckPair none = {};
    const bool rows = s.rows == 2; // true: the norm's output n and its gradient have row scales
    const CheckPair r_in = check_random(c, s.M, s.C, 0.3f, 1), y = check_matmul(c, s, s.rows > 0, 1);
    const CheckPair y_bias = check_random(c, 1, s.C, 0, 1), dn = check_matmul(c, s, rows, 1);
    const CheckPair r = check_plain(c, s.M, s.C, FMT_BF16);
    const NormPair norm = check_norm_pair(c, s, r);
    const CheckPair n = check_operand(c, s, s.C, FMT_E4M3, rows), n_t = check_operand_t(c, s, s.C, n);
    CHECK_BOTH(c, residual_norm_forward,
               (e, SIDE(n), check_norm_of(&norm, gpu), SIDE(r), SIDE(r_in), SIDE(y), SIDE(y_bias)));
    check_values(c, r, 0, "residual_norm_forward: r");
    if (s.group) {
        check_scales(c, norm.x, 0, "residual_norm_forward: x");
        check_code_bytes(c, norm.x, 0, "residual_norm_forward: x");
    }
    if (!s.rms) check_values(c, norm.mean, 1e-5, "residual_norm_forward: mean");
    check_values(c, norm.rstd, 1e-5, "residual_norm_forward: rstd");
    check_operand_equal(c, s, n, "residual_norm_forward: n");
    if (n.cpu.amax) check_maxima(c, n, 1e-5, "residual_norm_forward: amax of n");
    check_flag(c, 0, "residual_norm_forward");

    CHECK_BOTH(c, norm_recompute, (e, SIDE(n_t), scale_only(SIDE(n)), check_norm_of(&norm, gpu)));
    check_operand_equal(c, s, n_t, "norm_recompute from x");
    if (!s.fp8 && s.from_saved) check_same(c, n, n_t, "norm_recompute: the bits of forward");
    if (s.fp8) {
        CHECK_BOTH(c, norm_recompute, (e, SIDE(n_t), SIDE(n), check_norm_of(&norm, gpu)));
        check_operand_equal(c, s, n_t, "norm_recompute from FP8 values");
    }
    const CheckPair g = with_maxima(c, check_plain(c, s.M, s.C, FMT_BF16));
    const CheckPair dw = check_plain(c, 1, s.C, FMT_FP32), db = s.rms ? none : check_plain(c, 1, s.C, FMT_FP32);
    for (int pass = 0; pass < 2; pass++) {
        CHECK_BOTH(c, norm_backward,
                   (e, SIDE(g), SIDE(dw), SIDE(db), SIDE(dn), check_norm_of(&norm, gpu), pass == 1, pass == 1));
        check_values(c, g, 2e-3, "norm_backward: g");
        check_maxima(c, g, 4e-3, "norm_backward: amax of g");
        check_values(c, dw, 1e-4, "norm_backward: dweight");
        if (!s.rms) check_values(c, db, 1e-4, "norm_backward: dbias");
    }
    const CheckPair again = check_plain(c, 1, s.C, FMT_FP32);
    for (int pass = 0; pass < 2; pass++)
        check_gpu(c)->ops->norm_backward(check_gpu(c), g.gpu, pass ? again.gpu : dw.gpu, db.gpu, dn.gpu,
                                         check_norm_of(&norm, 1), false, false);
    check_same(c, dw, again, "norm_backward: dweight of two runs");

    ((uint16_t *)y.cpu.data)[s.C + 3] = bf16_encode(s.rms ? INFINITY : NAN);
    check_upload(c, y);
    if (s.fp8 || s.group) {
        check_gpu(c)->ops->residual_norm_forward(check_gpu(c), n.gpu, check_norm_of(&norm, 1), r.gpu, r_in.gpu, y.gpu,
                                                 y_bias.gpu);
        check_flag(c, 1, "residual_norm_forward");
    }
    check_free(c);
}

#include "check_fp8_first.h"

// Passes if the norm output n of a post-norm model is the GPU's r_out, quantized to FP8. In BF16, n is r_out itself.
static void check_stream_operand(Check *c, CheckShape s, CheckPair n, CheckPair r, const char *what) {
    const size_t bytes = check_data_bytes(r.cpu);
    void *stored = check_download(c, r.gpu.data, bytes);
    memcpy(r.cpu.data, stored, bytes);
    free(stored);
    if (!s.fp8) return;
    c->cpu.ops->quantize_forward(&c->cpu, n.cpu, r.cpu);
    check_scales(c, n, 0, what);
    check_code_bytes(c, n, 0, what);
    if (n.cpu.amax) check_maxima(c, n, 0, what);
}

// Checks postnorm_residual_forward. Without FP8, its output n, which the next matmul reads, shares r_out's memory. The
// cases with RMS norms also check aliasing: r_out overwrites r_in.
static void check_postnorm_residual(Check *c, CheckShape s) {
    const CheckPair none = {};
    const CheckPair r_in = check_random(c, s.M, s.C, 0.3f, 1), y = check_matmul(c, s, s.rows > 0, 1);
    const CheckPair r = s.rms ? r_in : check_plain(c, s.M, s.C, FMT_BF16);
    NormPair norm = {};
    norm.x = s.group ? check_new(c, s.M, s.C, FMT_E4M3, s.group, false, NULL) : check_plain(c, s.M, s.C, FMT_BF16);
    norm.weight = check_random(c, 1, s.C, 1, 0.3f);
    norm.bias = s.rms ? none : check_random(c, 1, s.C, 0, 1);
    norm.mean = s.rms ? none : check_plain(c, s.M, 1, FMT_FP32);
    norm.rstd = check_plain(c, s.M, 1, FMT_FP32);
    norm.from_saved = s.from_saved;
    const CheckPair n = s.fp8 ? check_operand(c, s, s.C, FMT_E4M3, s.rows == 2) : r;
    CHECK_BOTH(c, postnorm_residual_forward, (e, SIDE(n), check_norm_of(&norm, gpu), SIDE(r), SIDE(r_in), SIDE(y)));
    if (s.group) {
        check_scales(c, norm.x, 0, "postnorm_residual_forward: x");
        check_code_bytes(c, norm.x, 0, "postnorm_residual_forward: x");
    } else {
        check_values(c, norm.x, 0, "postnorm_residual_forward: x");
    }
    if (!s.rms) check_values(c, norm.mean, 1e-5, "postnorm_residual_forward: mean");
    check_values(c, norm.rstd, 1e-5, "postnorm_residual_forward: rstd");
    // The error limit allows one rounding of r to BF16, but not two.
    check_values(c, r, 5e-4, "postnorm_residual_forward: r");
    check_stream_operand(c, s, n, r, "postnorm_residual_forward: n");
    check_flag(c, 0, "postnorm_residual_forward");

    if (s.fp8) {
        // Without y, the operation only quantizes r, as for the input of the first block.
        const CheckPair first = check_operand(c, s, s.C, FMT_E4M3, s.rows == 2);
        check_gpu(c)->ops->postnorm_residual_forward(check_gpu(c), first.gpu, check_norm_of(&norm, 1), r.gpu, r.gpu,
                                                     Tensor{});
        check_stream_operand(c, s, first, r, "postnorm_residual_forward without y: n");
        const CheckPair decoded = check_plain(c, s.M, s.C, FMT_BF16);
        CHECK_BOTH(c, norm_recompute, (e, SIDE(decoded), SIDE(n), check_norm_of(&norm, gpu)));
        check_values(c, decoded, 0, "norm_recompute from FP8 values to BF16");
    }
    const CheckPair g = check_random(c, s.M, s.C, 0, 1);
    CHECK_BOTH(c, residual_backward, (e, SIDE(g), SIDE(y)));
    check_values(c, g, 0, "residual_backward: g");

    ((uint16_t *)y.cpu.data)[s.C + 3] = bf16_encode(s.rms ? INFINITY : NAN);
    check_upload(c, y);
    check_gpu(c)->ops->postnorm_residual_forward(check_gpu(c), n.gpu, check_norm_of(&norm, 1), r.gpu, r_in.gpu, y.gpu);
    check_flag(c, 1, "postnorm_residual_forward");
    check_free(c);
}

// Checks activation_backward_recompute, which computes the activation and its gradient in one pass. The gradient's
// scale follows from an upper bound.
static void check_bounded_activation(Check *c, CheckShape s, ActivationKind kind, CheckPair dg, CheckPair h,
                                     CheckPair g) {
    // The matmul before the activation has the inner dimension C: either just more than a warp reads at once, or 48.
    const int64_t C = s.C % 32 ? 48 : 528, width = kind == ACT_SWIGLU ? 2 * s.C : s.C;
    const CheckPair x = check_random(c, s.M, C, 0, 1e-4f), v = check_random(c, C, s.C, 0, 0.3f);
    const CheckPair dy = with_maxima(c, check_new(c, s.M, C, FMT_E4M3, 0, false, NULL));
    const CheckPair dy_t = check_new(c, s.M, C, FMT_E5M2, 0, true, NULL);
    const CheckPair w = check_new(c, C, s.C, FMT_E4M3, 0, false, NULL),
                    w_t = check_new(c, C, s.C, FMT_E4M3, 0, true, &w);
    const CheckPair none = {}, sums = check_plain(c, 1, C, FMT_FP32);
    const CheckPair dbias = width == s.C ? check_plain(c, 1, s.C, FMT_FP32) : none;
    Parameter side[2] = {};
    for (int gpu = 0; gpu < 2; gpu++) {
        side[gpu].weight = Weight{SIDE(v), SIDE(w), SIDE(w_t), NULL};
        side[gpu].weight.codes_t.stride = C;
    }
    memset(x.cpu.data, 0, (size_t)C * sizeof(uint16_t)); // sets one row of the gradient to 0
    memset(dg.cpu.data, 0, (size_t)s.C * sizeof(uint16_t));
    check_upload(c, x), check_upload(c, dg);
    CHECK_BOTH(c, grad_quantize, (e, SIDE(dy), SIDE(dy_t), SIDE(sums), SIDE(x), false));
    CHECK_BOTH(c, weights_quantize, (e, &side[gpu], 1));
    for (int pass = 0; pass < 2; pass++) {
        const CheckPair dh = check_new(c, s.M, width, FMT_E4M3, ROW_SCALES, false, NULL);
        const CheckPair dh_t = check_gradient_t(c, s, width, dh);
        const CheckPair g_t = check_operand_t(c, s, s.C, g);
        CHECK_BOTH(c, activation_bound, (e, SIDE(dh), SIDE(dy), side[gpu].weight, SIDE(h), kind));
        check_scales(c, dh, 0, "activation_bound");
        CHECK_BOTH(
            c, activation_backward_recompute,
            (e, SIDE(dh), SIDE(dh_t), SIDE(dbias), SIDE(g_t), scale_only(SIDE(g)), SIDE(dg), SIDE(h), pass == 1, kind));
        check_operand_equal(c, s, dh, "activation_backward_recompute: dh");
        check_rescaled(c, dh, dh_t, "activation_backward_recompute: transposed dh");
        check_operand_equal(c, s, g_t, "activation_backward_recompute: transposed g");
        if (dbias.cpu.data) check_values(c, dbias, 1e-4, "activation_backward_recompute: dbias");
    }
    check_flag(c, 0, "activation_backward_recompute");
    ((uint16_t *)x.cpu.data)[s.M * C - 1] = bf16_encode(NAN);
    check_upload(c, x);
    Exec *gpu = check_gpu(c);
    const CheckPair dh = check_new(c, s.M, width, FMT_E4M3, ROW_SCALES, false, NULL);
    gpu->ops->grad_quantize(gpu, dy.gpu, dy_t.gpu, sums.gpu, x.gpu, false);
    check_flag(c, 1, "grad_quantize of NaN");
    gpu->ops->activation_bound(gpu, dh.gpu, dy.gpu, side[1].weight, h.gpu, ACT_GELU_TANH);
    check_flag(c, 1, "activation_bound");
}

// Moves dg away from scale boundaries. If the amax of a row of the CPU's dh is at the boundary between two scales, the
// rounding of the activation's slope would decide which scale a backend chooses. Multiplies that row of dg by 1.25.
static void move_from_boundaries(Check *c, CheckPair dg, CheckPair dh) {
    for (int64_t i = 0; i < dg.cpu.rows; i++) {
        uint16_t *row = (uint16_t *)dg.cpu.data + i * dg.cpu.stride;
        for (int64_t j = 0; amax_at_boundary(dh.cpu, i) && j < dg.cpu.cols; j++)
            row[j] = bf16_encode(1.25f * bf16_decode(row[j]));
    }
    check_upload(c, dg);
}

// Checks an activation function: GELU of s.C columns, or SwiGLU of 2 s.C columns without bias.
static void check_activation(Check *c, CheckShape s, ActivationKind kind) {
    const CheckPair none = {};
    const bool rows = s.rows == 2, coat = s.group > 0, gated = kind == ACT_SWIGLU;
    CheckShape wide = s;
    wide.C = gated ? 2 * s.C : s.C;
    const CheckPair y = check_matmul(c, wide, rows && coat, 2);
    for (int64_t i = 0; gated && i < s.M; i += 3) // sets some groups to 0, whose scale is 1
        memset((uint16_t *)y.cpu.data + i * wide.C, 0, (size_t)s.group * sizeof(uint16_t));
    if (gated) check_upload(c, y);
    const CheckPair bias = s.group && !gated ? check_random(c, 1, s.C, 0, 1) : none;
    const CheckPair h = s.group ? check_new(c, s.M, wide.C, FMT_E4M3, s.group, false, NULL) : y;
    const CheckPair g = check_operand(c, s, s.C, FMT_E4M3, rows), g_t = check_operand_t(c, s, s.C, g);
    CHECK_BOTH(c, activation_forward, (e, SIDE(g), SIDE(h), SIDE(y), SIDE(bias), s.from_saved, kind));
    if (s.group) {
        check_scales(c, h, 0, "activation_forward: h");
        check_code_bytes(c, h, 0, "activation_forward: h");
    }
    check_operand_equal(c, s, g, "activation_forward: g");
    if (g.cpu.amax) check_maxima(c, g, 1e-5, "activation_forward: amax of g");
    check_flag(c, 0, "activation_forward");
    CHECK_BOTH(c, activation_recompute, (e, SIDE(g_t), scale_only(SIDE(g)), SIDE(h), kind));
    check_operand_equal(c, s, g_t, "activation_recompute from h");
    if (!s.fp8 && s.from_saved) check_same(c, g, g_t, "activation_recompute: the bits of forward");
    if (s.fp8) {
        CHECK_BOTH(c, activation_recompute, (e, SIDE(g_t), SIDE(g), SIDE(h), kind));
        check_operand_equal(c, s, g_t, "activation_recompute from FP8 values");
    }

    const CheckPair dg = check_random(c, s.M, s.C, 0, 1e-4f), dbias = gated ? none : check_plain(c, 1, s.C, FMT_FP32);
    const CheckPair dh =
        s.fp8 || gated ? check_operand(c, s, wide.C, rows && coat ? FMT_E4M3 : FMT_E5M2, rows && coat) : dg;
    const CheckPair dh_t = s.fp8 ? check_gradient_t(c, s, wide.C, dh) : dh;
    if (rows && coat) {
        c->cpu.ops->activation_backward(&c->cpu, dh.cpu, dh_t.cpu, dbias.cpu, dg.cpu, h.cpu, false, kind);
        move_from_boundaries(c, dg, dh);
    }
    for (int pass = 0; pass < 2; pass++) {
        CHECK_BOTH(c, activation_backward, (e, SIDE(dh), SIDE(dh_t), SIDE(dbias), SIDE(dg), SIDE(h), pass == 1, kind));
        check_operand_equal(c, s, dh, "activation_backward: dh");
        if (rows && coat) // The reference is a transpose of the GPU's own dh.
            check_rescaled(c, dh, dh_t, "activation_backward: transposed dh");
        else if (s.fp8)
            check_operand_equal(c, s, dh_t, "activation_backward: transposed dh");
        if (!gated) check_values(c, dbias, s.fp8 ? 1e-4 : 2e-3, "activation_backward: dbias");
    }
    check_flag(c, 0, "activation_backward");
    if (rows && coat) check_bounded_activation(c, s, kind, dg, h, g);
    if (s.fp8) {
        ((uint16_t *)dg.cpu.data)[s.M * s.C - 1] = bf16_encode(NAN);
        check_upload(c, dg);
        check_gpu(c)->ops->activation_backward(check_gpu(c), dh.gpu, dh_t.gpu, dbias.gpu, dg.gpu, h.gpu, false, kind);
        check_flag(c, 1, "activation_backward");
    }
    ((uint16_t *)y.cpu.data)[s.C - 1] = bf16_encode(INFINITY);
    check_upload(c, y);
    if (s.fp8 || s.group) {
        check_gpu(c)->ops->activation_forward(check_gpu(c), g.gpu, h.gpu, y.gpu, bias.gpu, s.from_saved, kind);
        check_flag(c, 1, "activation_forward");
    }
    check_free(c);
}

static void check_input_cast(Check *c, CheckShape s) {
    const CheckPair x = check_random(c, s.M, s.C, 0, 1);
    const CheckPair q = check_operand(c, s, s.C, FMT_E4M3, s.rows == 2), q_t = check_operand_t(c, s, s.C, q);
    memset((uint16_t *)x.cpu.data + 2 * s.C, 0, (size_t)s.C * sizeof(uint16_t)); // sets row 2 of the tensor to 0
    check_upload(c, x);
    CHECK_BOTH(c, quantize_forward, (e, SIDE(q), SIDE(x)));
    check_scales(c, q, 0, "quantize_forward");
    check_code_bytes(c, q, 0, "quantize_forward");
    CHECK_BOTH(c, quantize_recompute, (e, SIDE(q_t), SIDE(q), SIDE(x)));
    check_scales(c, q_t, 0, "quantize_recompute");
    check_code_bytes(c, q_t, 0, "quantize_recompute");
    check_flag(c, 0, "quantize_forward");
    ((uint16_t *)x.cpu.data)[s.M * s.C - 1] = bf16_encode(NAN);
    check_upload(c, x);
    check_gpu(c)->ops->quantize_forward(check_gpu(c), q.gpu, x.gpu);
    check_flag(c, 1, "quantize_forward");
    check_free(c);
}

static void check_gradient_cast(Check *c, CheckShape s, Format code) {
    CheckPair dy = check_random(c, s.M, s.C, 0, 1e-6f);
    const CheckPair d = check_operand(c, s, s.C, code, false), d_t = check_gradient_t(c, s, s.C, d);
    const CheckPair dbias = check_plain(c, 1, s.C, FMT_FP32), again = check_plain(c, 1, s.C, FMT_FP32);
    // In pass 0, grad_quantize overwrites dbias. In pass 1 it adds to dbias. In pass 2 it uses dy's stored amax.
    for (int pass = 0; pass < 3; pass++) {
        if (pass == 2) {
            dy = with_maxima(c, dy);
            for (int64_t i = 0; i < s.M; i++) dy.cpu.amax[i] = i == 5 ? float_bits(3e-5f) : 1;
            check_gpu(c)->ops->upload(check_gpu(c), dy.gpu.amax, dy.cpu.amax, (size_t)s.M * sizeof(uint32_t));
        }
        CHECK_BOTH(c, grad_quantize, (e, SIDE(d), SIDE(d_t), SIDE(dbias), SIDE(dy), pass == 1));
        check_scales(c, d, 0, "grad_quantize");
        check_code_bytes(c, d, 0, "grad_quantize: FP8 values");
        check_scales(c, d_t, 0, "grad_quantize: transposed FP8 values");
        check_code_bytes(c, d_t, 0, "grad_quantize: transposed FP8 values");
        check_values(c, dbias, 1e-4, "grad_quantize: dbias");
    }
    check_gpu(c)->ops->grad_quantize(check_gpu(c), d.gpu, d_t.gpu, again.gpu, dy.gpu, false);
    check_same(c, dbias, again, "grad_quantize: dbias of two runs");
    check_flag(c, 0, "grad_quantize");
    dy.gpu.amax = NULL;
    ((uint16_t *)dy.cpu.data)[7 * s.C] = bf16_encode(-INFINITY);
    check_upload(c, dy);
    check_gpu(c)->ops->grad_quantize(check_gpu(c), d.gpu, d_t.gpu, Tensor{}, dy.gpu, false);
    check_flag(c, 1, "grad_quantize");
    check_free(c);
}

static void check_weights(Check *c) {
    enum { COUNT = 90 }; // number of weight tensors: more than one kernel launch processes
    Parameter side[2][COUNT] = {};
    CheckPair value[COUNT], codes[4], codes_t[4];
    const int64_t rows[4] = {64, 336, 1600, 16}, cols[4] = {768, 1600, 64, 16};
    for (int i = 0; i < 4; i++) {
        value[i] = check_random(c, rows[i], cols[i], 0, 0.02f);
        codes[i] = check_new(c, rows[i], cols[i], FMT_E4M3, 0, false, NULL);
        codes_t[i] = check_new(c, rows[i], cols[i], FMT_E4M3, 0, true, &codes[i]);
        codes_t[i].cpu.stride = codes_t[i].gpu.stride = rows[i];
    }
    const CheckPair alone = check_random(c, 1, 77, 0, 1); // a parameter that is not quantized to FP8
    for (int i = 0; i < COUNT; i++) {
        for (int gpu = 0; gpu < 2; gpu++) {
            Weight *w = &side[gpu][i].weight;
            w->value = SIDE(i < 4 ? value[i] : i % 2 ? alone : value[3]);
            if (i < 4) w->codes = SIDE(codes[i]), w->codes_t = SIDE(codes_t[i]);
        }
    }
    CHECK_BOTH(c, weights_quantize, (e, side[gpu], COUNT));
    for (int i = 0; i < 4; i++) {
        check_scales(c, codes[i], 0, "weights_quantize");
        check_code_bytes(c, codes[i], 0, "weights_quantize: FP8 values");
        check_code_bytes(c, codes_t[i], 0, "weights_quantize: transposed FP8 values");
    }
    check_flag(c, 0, "weights_quantize");
    check_free(c);
}

// Checks weights that are sharded over ranks; one shard is empty. Compares the amax of each shard, and the FP8 values
// that follow from the largest amax of all shards.
static void check_weight_shares(Check *c) {
    enum { SHARES = 3, ROWS = 336, COLS = 1600, FIRST = 100 };
    Parameter side[2][SHARES] = {};
    const CheckPair value = check_random(c, ROWS, COLS, 0, 0.02f);
    const CheckPair codes = check_new(c, ROWS, COLS, FMT_E4M3, 0, false, NULL);
    const CheckPair maxima = check_plain(c, SHARES, 1, FMT_I32);
    for (int gpu = 0; gpu < 2; gpu++) side[gpu][0].weight.value = SIDE(value), side[gpu][0].weight.codes = SIDE(codes);
    CHECK_BOTH(c, weights_quantize, (e, side[gpu], 1));
    uint8_t *whole = (uint8_t *)xmalloc(ROWS * COLS);
    memcpy(whole, codes.cpu.data, ROWS * COLS);
    memset(codes.cpu.data, POISON, ROWS * COLS);
    check_upload(c, codes);
    const int64_t begin[SHARES + 1] = {0, FIRST, ROWS, ROWS};
    for (int gpu = 0; gpu < 2; gpu++) {
        for (int i = 0; i < SHARES; i++) {
            Weight *w = &side[gpu][i].weight;
            w->value = tensor_rows(SIDE(value), begin[i], begin[i + 1] - begin[i]);
            w->codes = tensor_rows(SIDE(codes), begin[i], begin[i + 1] - begin[i]);
            w->codes.amax = (uint32_t *)SIDE(maxima).data + i;
        }
    }
    CHECK_BOTH(c, weights_amax, (e, side[gpu], SHARES));
    uint32_t *want = (uint32_t *)maxima.cpu.data;
    uint32_t *have = (uint32_t *)check_download(c, maxima.gpu.data, SHARES * sizeof *have);
    check_say(c, memcmp(want, have, SHARES * sizeof *have) == 0 && have[2] == 0, "weights_amax", "wrong amax");
    for (int i = 0; i < SHARES; i++) want[i] = have[0] > have[1] ? have[0] : have[1];
    free(have);
    check_upload(c, maxima);
    CHECK_BOTH(c, weights_quantize, (e, side[gpu], SHARES));
    check_scales(c, codes, 0, "weights_quantize of shards");
    check_code_bytes(c, codes, 0, "weights_quantize of shards");
    check_say(c, memcmp(whole, codes.cpu.data, ROWS * COLS) == 0, "weights_quantize of shards",
              "FP8 values differ from those of the unsharded weight");
    free(whole);
    check_free(c);
}

// --- checks of all FP8 operations in several shapes ---------------------------------------------------------
#define VARIANTS 14 // number of variants of each shape: four for each of three kinds of scales, and two in BF16
#define ALL_VARIANTS ((1u << VARIANTS) - 1)
// Bits of three variants: the norm reads its saved FP8 input; the norm reads the residual; FP8 tensors have row scales.
#define FEW_VARIANTS (1u | 1u << 1 | 1u << 11)
#define ROW_VARIANTS (1u << 9) // bit of the variant that runs the activation with row scales

static const char *const rows_name[] = {"", ", matmuls' rows scaled", ", rows scaled"};

// Checks norms and activations of one shape. variants: bit mask of the variants to run. group: group size of saved
// tensors; 0: tensors are saved in BF16.
static void check_saved(Check *c, int64_t M, int64_t C, int group, uint32_t variants) {
    for (int variant = 0; variant < VARIANTS; variant++) {
        const bool fp8 = variant < 12;
        const CheckShape s = {M, C, group, fp8, variant % 2 == 0, variant % 4 >= 2, fp8 ? variant / 4 : 0};
        if (!(variants >> variant & 1)) continue;
        if (!s.group && !s.fp8) continue; // skips shapes without FP8 and without groups, which check_kernels.cu checks
        // skips norms that read their saved input (recipe coat-paper) without FP8 groups or with row scales
        if (s.from_saved && (!s.group || s.rows)) continue;
        snprintf(c->shape, sizeof c->shape, "(%lld, %lld) group %d %s%s%s%s", (long long)M, (long long)C, group,
                 s.fp8 ? "fp8" : "bf16", s.from_saved ? " saved" : " residual", s.rms ? " rms" : "", rows_name[s.rows]);
        if (C <= 8192 && (s.rows < 2 || group)) { // with group 0, n has no row scales
            check_norm(c, s);
            check_first_blocks(c, s);
            check_postnorm_residual(c, s);
        }
        if (s.rms || s.rows == 1) continue;
        static const struct {
            ActivationKind kind;
            const char *name;
        } functions[] = {
            {ACT_GELU_TANH, ""}, {ACT_GELU_QUICK, " quick"}, {ACT_GELU_ERF, " erf"}, {ACT_SWIGLU, " gated"}};
        const size_t length = strlen(c->shape);
        for (const auto &f : functions) {
            if (f.kind == ACT_SWIGLU && group != 0 && C % group != 0) continue;
            // The kernels support quick and erf GELU only with the formats of --vision-recipe coat.
            if ((f.kind == ACT_GELU_QUICK || f.kind == ACT_GELU_ERF) && !(s.rows == 2 && group)) continue;
            snprintf(c->shape + length, sizeof c->shape - length, "%s", f.name);
            check_activation(c, s, f.kind);
        }
    }
}

static void check_casts(Check *c, int64_t M, int64_t C) {
    CheckShape s = {M, C, 0, true, false, false, 0};
    const int kinds = C <= 16384 ? 2 : 0; // row scales support rows of at most 16384 values
    for (s.rows = 0; s.rows <= kinds; s.rows += 2) {
        snprintf(c->shape, sizeof c->shape, "(%lld, %lld)%s", (long long)M, (long long)C, rows_name[s.rows]);
        check_input_cast(c, s);
    }
    s.rows = 0;
    snprintf(c->shape, sizeof c->shape, "(%lld, %lld)", (long long)M, (long long)C);
    check_gradient_cast(c, s, FMT_E5M2);
    check_gradient_cast(c, s, FMT_E4M3);
}

// Checks the FP8 operations in all variants with one width, and in a few variants with other widths, which use other
// kernels. Also checks tensors with enough rows that a thread block processes several tiles.
static void check_small(Check *c) {
    static const int64_t widths[] = {240, 496, 752, 1008, 1264, 1520, 1776, 2032, 3056, 4080, 5104, 6128, 7152, 8176};
    static const int groups[] = {16, 32, 128, 0};
    for (int group : groups) check_saved(c, 48, 336, group, ALL_VARIANTS);
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        check_saved(c, 16, widths[i], groups[i % 3], FEW_VARIANTS);
        check_saved(c, 16, widths[i], 0, FEW_VARIANTS);
        check_casts(c, 16, widths[i]);
    }
    for (int64_t width : {3088, 6672, 8208, 16400, 20496}) check_saved(c, 16, width, 16, ROW_VARIANTS);
    check_saved(c, 8704, 64, 16, FEW_VARIANTS);
    check_saved(c, 656, 8224, 16, ROW_VARIANTS); // 656 rows: each thread block processes several tiles of rows
    check_casts(c, 8704, 64);
    check_casts(c, 16, 16368);
    snprintf(c->shape, sizeof c->shape, "several tensors");
    check_weights(c);
    check_weight_shares(c);
}

static void check_large(Check *c) {
    static const int64_t shapes[][2] = {{48, 64},   {272, 768},  {144, 1600}, {16, 2064}, {160, 4096},
                                        {32, 6400}, {48, 5120},  {16, 8192},  {16, 8208}, {16, 20480},
                                        {8704, 64}, {65536, 64}, {16, 28672}};
    static const int groups[] = {16, 32, 128, 0};
    for (const auto &shape : shapes) {
        for (int group : groups)
            // Shapes of more than 10,000 rows run with one group size only, to limit the running time.
            if (shape[0] <= 10000 || group == 16) check_saved(c, shape[0], shape[1], group, ALL_VARIANTS);
        check_casts(c, shape[0], shape[1]);
    }
}

int check_fp8(bool small) {
    static Check check; // static because a Check is too large for the stack
    Check *c = &check;
    bench_configure(&c->bench.config, 64, 8192, 20480); // plans the workspace for the largest shape
    c->bench.config.recipe.cache_transposed = true;
    check_open(c);
    check_small(c);
    if (!small) check_large(c);
    check_close(c);
    return check_report("fp8 operations", c->checks, c->failures);
}
