// What the first blocks do in forward passes: norms quantised less their channels' means; norms and attention that
// products read in BF16, of which backward makes codes from the maxima that forward left. Part of check_fp8.cu.
#pragma once

static Weight check_weight_of(Tensor codes) {
    Weight w = {};
    w.codes = codes;
    return w;
}

// A norm whose codes are centred, with scales per row, and with the one that its weights give.
static void check_centred(Check *c, CheckShape s, NormTwin norm, Twin r, Twin r_in, Twin y, Twin y_bias) {
    for (int rows = 0; rows < 2; rows++) {
        const Twin n = check_new(c, s.M, s.C, FMT_E4M3, rows ? ROW_SCALES : 0, false, NULL);
        CHECK_BOTH(c, residual_norm_forward,
                   (e, SIDE(n), check_norm_of(&norm, gpu), SIDE(r), SIDE(r_in), SIDE(y), SIDE(y_bias)));
        check_codes(c, n, rows ? "centred norm, per token" : "centred norm, bounded");
        const Twin n_t = check_operand_t(c, s, s.C, n);
        CHECK_BOTH(c, norm_rebuild, (e, SIDE(n_t), scale_only(SIDE(n)), check_norm_of(&norm, gpu)));
        check_codes(c, n_t, "centred norm: rebuilt");
    }
}

static void check_first_blocks(Check *c, CheckShape s) {
    if (!s.fp8) return;
    const Twin none = {};
    const int64_t outputs = 48;
    const Twin r_in = check_random(c, s.M, s.C, 0.3f, 1), y = check_product(c, s, s.rows > 0, 1);
    const Twin y_bias = check_random(c, 1, s.C, 0, 1), r = check_plain(c, s.M, s.C, FMT_BF16);
    NormTwin norm = check_norm_twin(c, s, r);
    norm.centre = check_plain(c, 1, s.C, FMT_FP32);

    const Twin w = check_random(c, outputs, s.C, 0, 0.1f), bias = s.rms ? none : check_random(c, 1, outputs, 0, 1);
    const Twin codes = with_maxima(c, check_new(c, outputs, s.C, FMT_E4M3, 0, false, NULL));
    const Twin shifted = check_plain(c, 1, outputs, FMT_BF16);
    CHECK_BOTH(c, quantize_forward, (e, SIDE(codes), SIDE(w)));
    CHECK_BOTH(c, norm_centre,
               (e, SIDE(norm.centre), SIDE(shifted), check_norm_of(&norm, gpu), SIDE(r_in), SIDE(y), SIDE(y_bias),
                check_weight_of(SIDE(codes)), SIDE(bias)));
    check_values(c, norm.centre, 1e-5, "norm_centre: centre");
    check_values(c, shifted, 2e-3, "norm_centre: shifted bias");
    check_centred(c, s, norm, r, r_in, y, y_bias);

    norm.centre = none;
    const Twin n = with_maxima(c, check_plain(c, s.M, s.C, FMT_BF16));
    const Twin n_t = check_new(c, s.M, s.C, FMT_E4M3, 0, true, NULL);
    CHECK_BOTH(c, residual_norm_forward,
               (e, SIDE(n), check_norm_of(&norm, gpu), SIDE(r), SIDE(r_in), SIDE(y), SIDE(y_bias)));
    check_values(c, n, 2e-3, "norm with maxima: n");
    check_maxima(c, n, 1e-5, "norm with maxima: maxima");
    CHECK_BOTH(c, norm_rebuild, (e, SIDE(n_t), scale_only(SIDE(n)), check_norm_of(&norm, gpu)));
    check_codes(c, n_t, "norm with maxima: rebuilt");

    const Twin o = with_maxima(c, check_random(c, s.M, s.C, 0.3f, 1));
    const Twin o_t = check_new(c, s.M, s.C, FMT_E4M3, 0, true, NULL);
    CHECK_BOTH(c, quantize_forward, (e, SIDE(o), SIDE(o)));
    check_maxima(c, o, 0, "quantize_forward in place: maxima");
    CHECK_BOTH(c, quantize_rebuild, (e, SIDE(o_t), SIDE(o), SIDE(o)));
    check_codes(c, o_t, "quantize_rebuild from maxima");
    check_flag(c, 0, "the first blocks");
    check_free(c);
}
