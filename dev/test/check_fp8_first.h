// Checks of the first block in --recipe coat, included by check_fp8.cu. Forward matmuls read norm and attention outputs
// in BF16. Forward stores each row's amax, with which backward quantizes these outputs.
#pragma once

static void check_first_blocks(Check *c, CheckShape s) {
    if (!s.fp8) return;
    const CheckPair r_in = check_random(c, s.M, s.C, 0.3f, 1), y = check_matmul(c, s, s.rows > 0, 1);
    const CheckPair y_bias = check_random(c, 1, s.C, 0, 1), r = check_plain(c, s.M, s.C, FMT_BF16);
    const NormPair norm = check_norm_pair(c, s, r);

    const CheckPair n = with_maxima(c, check_plain(c, s.M, s.C, FMT_BF16));
    const CheckPair n_t = check_new(c, s.M, s.C, FMT_E4M3, 0, true, NULL);
    CHECK_BOTH(c, residual_norm_forward,
               (e, SIDE(n), check_norm_of(&norm, gpu), SIDE(r), SIDE(r_in), SIDE(y), SIDE(y_bias)));
    check_values(c, n, 2e-3, "norm with amax: n");
    check_maxima(c, n, 1e-5, "norm with amax: amax");
    CHECK_BOTH(c, norm_recompute, (e, SIDE(n_t), scale_only(SIDE(n)), check_norm_of(&norm, gpu)));
    check_codes(c, n_t, "norm with amax: recomputed");

    const CheckPair o = with_maxima(c, check_random(c, s.M, s.C, 0.3f, 1));
    const CheckPair o_t = check_new(c, s.M, s.C, FMT_E4M3, 0, true, NULL);
    CHECK_BOTH(c, quantize_forward, (e, SIDE(o), SIDE(o)));
    check_maxima(c, o, 0, "quantize_forward in place: amax");
    CHECK_BOTH(c, quantize_recompute, (e, SIDE(o_t), SIDE(o), SIDE(o)));
    check_codes(c, o_t, "quantize_recompute from amax");
    check_flag(c, 0, "norms and attention outputs with amax");
    check_free(c);
}
