// The list of the model's operations: signature, computation, formats. Define OPERATION(name, parameters), then include
// this file. ops.h derives the table of functions from this list, and each backend derives its declarations and its
// table. dev/test/order_ops.h lists, separately, the memory that each operation reads and writes.
// OPERATION_BY_FORMAT, if defined, is used for the operations that the GPU implements in two versions: plain_NAME for
// unscaled tensors and fp8_NAME for tensors with scales.
//
// ops.h explains the notation: M, C, F, Vp, "unscaled", SCALE_ROW, `accumulate`.
// clang-format off
#ifndef OPERATION_BY_FORMAT
#define OPERATION_BY_FORMAT(name, parameters) OPERATION(name, parameters)
#endif

// --- operations of the forward pass -------------------------------------------------------------------------
// Embeds tokens: residual stream r (M, C) = wte[token] + wpe[row_position()].
//   tokens (M, 1) I32. If wpe.data is NULL, there are no learned positions.
OPERATION(embed_forward, (Exec *exec, Tensor r, Tensor tokens, Tensor positions, Tensor wte, Tensor wpe, int T))

// Adds a sublayer's output y to the residual stream r, computes the norm n and, if n is FP8, quantizes n; fused. For
// pre-norm.
//   r_out = r_in + y + y_bias                     y.data NULL: r_out = r_in
//   norm.x = r_out as saved for backward          norm.weight.data NULL: weight 1
//   n = norm(r_out), or norm(norm.x) if norm.from_saved
// Formats of n: unscaled; E4M3 SCALE_TENSOR, with a scale that Group Scaling computes (row amaxes, reduction, cast); or
// E4M3 SCALE_ROW in one pass. If n is unscaled and n.amax exists, n.amax receives the amax of each row. y may be BF16
// SCALE_ROW: y = stored value * scale of the row.
// Aliasing: r_out may share memory with norm.x and with r_in.
OPERATION_BY_FORMAT(residual_norm_forward, (Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y,
                                            Tensor y_bias))

// Adds the norm of a sublayer's output y to the residual stream r and, if n is FP8, quantizes the sum to n; fused. For
// post-norm (OLMo 2).
//   norm.x = y as saved for backward
//   r_out = r_in + norm(y), or r_in + norm(norm.x) if norm.from_saved    y.data NULL: r_out = r_in
//   n = r_out                                                            n.data NULL: not computed
// n is unscaled and shares r_out's memory, or is E4M3 SCALE_TENSOR or SCALE_ROW as in residual_norm_forward.
OPERATION_BY_FORMAT(postnorm_residual_forward, (Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y))

// Forward matmul of a linear layer: y (M, out) = x (M, in) * w^T + bias.
//   If x is unscaled, reads w.value; if x is E4M3, reads w.codes.
//   If x is SCALE_ROW, there is no bias. The matmul ignores x's scales, and y is BF16 SCALE_ROW with x's scales.
OPERATION(linear_forward, (Exec *exec, Tensor y, Tensor x, Weight w, Tensor bias))

// Clips q, k and v and applies QK-norm and RoPE, in this order (QkRope in ops.h). All tensors are unscaled.
//   out, qkv (M, columns of q, k and v). RoPE rotates column i of a head together with column i + head_dim / 2.
// Aliasing: out may be qkv.
OPERATION(qk_norm_rope_forward, (Exec *exec, Tensor out, Tensor qkv, QkRope qk_rope))

// Attention: o (M, heads*head_dim), and lse (B*heads, T) FP32 = log of the sum of exp of the scaled scores.
//   A token attends to itself and to earlier tokens of its document, which begins where row_position() is 0. With
//   shape.bidirectional it attends to all T tokens of its sequence, and positions.data must be NULL.
//   If k and v have more rows than q, the first rows of k and v are a KV cache of the tokens before q's. B is then 1.
OPERATION(attention_forward, (Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor positions,
                              AttentionShape shape))

// Quantizes x to q, in the FP8 format that the next matmul reads, with one scale per tensor or (SCALE_ROW, in one pass)
// per row. An unscaled q must share x's memory or have no data, because the operation does not copy x. If q.amax
// exists, q.amax receives the row amaxes, except with SCALE_ROW.
OPERATION_BY_FORMAT(quantize_forward, (Exec *exec, Tensor q, Tensor x))

// Adds the bias, applies the activation function and quantizes its output g; fused. Below, "gelu" stands for the
// activation function `kind`. With SwiGLU, the columns of h (M, 2 F) are gate, then up, and g = silu(gate) * up.
//   h = y + bias as saved for backward            unscaled, or E4M3 SCALE_GROUP
//   g (M, F) = gelu(h), with h as stored; but gelu(y + bias) in FP32 if h has no data, or if h is SCALE_GROUP, g is not
//   E4M3 SCALE_TENSOR and from_saved is false
// g is unscaled, E4M3 SCALE_TENSOR or E4M3 SCALE_ROW. y may be BF16 SCALE_ROW if h is SCALE_GROUP.
// Aliasing: y may be h. If y is h and bias.data is NULL, h is not written.
OPERATION_BY_FORMAT(activation_forward, (Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias, bool from_saved,
                                         ActivationKind kind))

// Computes the cross-entropy losses of a chunk of R tokens, and their gradient, from the logits (R, Vp).
//   losses (R, 1) FP32 = logsumexp - logit[target] over the first `vocab` columns; 0 if target < 0
//   best (R, 1) FP32 = 1 if the target's logit is the largest of the first `vocab` columns, else 0
//     Among equal logits, the one with the lowest index counts as the largest. 0 if target < 0 or if a logit is NaN.
//     best.data NULL: not computed. Otherwise the GPU reads the logits once more.
//   dlogits = (softmax - onehot) * state->loss_scale; 0 in columns >= vocab and in rows with target < 0
//   If dlogits.data is NULL, computes the losses only.
// Unscaled dlogits and dlogits_t share the logits' memory, which the gradient overwrites. FP8 dlogits is E5M2, rounded
// stochastically by loss_random_bits() (quantize.h). `first` is the number of the chunk's first token in the
// micro-batch. FP8 dlogits_t is the transpose of dlogits and may use the logits' memory. Both have the scale
// loss_gradient_scale(), which needs no amax, because |dlogits| <= loss_scale. A non-finite loss sets state->nonfinite.
OPERATION(loss_forward_backward, (Exec *exec, Tensor dlogits, Tensor dlogits_t, Tensor losses, Tensor best,
                                  Tensor logits, Tensor targets, int64_t first, int vocab, StepState *state))
// Adds the sum of losses (R, 1) FP32, times state->loss_scale, to state->loss_sum. The order of the sum is fixed.
OPERATION(loss_sum, (Exec *exec, Tensor losses, StepState *state))

// --- operations of vision towers on images --------------------------------------------------------------------
// Splits I images into patches: out (I*T, 3*patch*patch), unscaled. A row contains one patch in the order (channel,
// row, column).
//   pixels (I, 3*side*side) U8, one plane per channel. table (3, 256) FP32: value of each byte, for each channel.
//   T (rows per image) is (side / patch)^2, plus 1 if row 0 belongs to a class token; the operation sets row 0 to 0.
//   Pixels beyond the last complete patch of each row and column are not read.
OPERATION(patches_forward, (Exec *exec, Tensor out, Tensor pixels, Tensor table, int side, int patch, int T))

// Embeds patches: r (I*T, C) = y + wpe[row % T]. If class_row (1, C) has data, it replaces y in each image's first row.
// Aliasing: r may be y.
OPERATION(image_embed_forward, (Exec *exec, Tensor r, Tensor y, Tensor class_row, Tensor wpe, int T))

// Gathers rows: out[i] = in[index[i]] if index[i] >= 0. If index[i] < 0, sets out[i] to 0 or, if `keep` is true, does
// not change out[i].
//   index (rows of out, 1) I32. out and in are unscaled, of the same format and width. in.data NULL: `in` is zeros.
OPERATION(rows_gather, (Exec *exec, Tensor out, Tensor in, Tensor index, bool keep))

// --- operations of the backward pass -------------------------------------------------------------------------
// Backward of embed_forward. The order of all sums is fixed.
//   dwte (Vp, C) FP32: adds each row of the gradient g to its token's row. The caller has set dwte to 0, or the tied
//   head's backward has written dwte.
//   dwpe (positions, C) FP32 = (accumulate ? dwpe : 0) + for each position, the sum of g's rows at this row_position()
OPERATION(embed_backward, (Exec *exec, Tensor dwte, Tensor dwpe, Tensor g, Tensor tokens, Tensor positions, int T,
                           bool accumulate))

// Recomputes a norm's output n for wgrad: n_t = n in the layout that wgrad reads. Does nothing if n_t shares n's
// memory. If n has one scale, n_t has the same scale. If n is SCALE_ROW, first writes n_t's scale, the largest row
// scale.
//   If n_t is FP8 and n is FP8 with data, transposes n's values and converts them to n_t's scale.
//   If n_t is FP8 and n is FP8 without data, recomputes norm(norm.x) and quantizes it with n_t's scale.
//   If n_t is FP8 and n is unscaled, recomputes norm(norm.x) and quantizes it with a scale from n.amax.
//   If n_t is unscaled, dequantizes n if n is FP8 with data, otherwise recomputes norm(norm.x).
OPERATION_BY_FORMAT(norm_recompute, (Exec *exec, Tensor n_t, Tensor n, Norm norm))

// Backward of a norm: g (M, C) = (add ? g : 0) + dn * d norm / d x, and the gradients dweight and dbias (1, C) FP32.
// Writes g's row amaxes to g.amax if that exists. dn may be BF16 SCALE_ROW if norm.x is SCALE_GROUP.
OPERATION_BY_FORMAT(norm_backward, (Exec *exec, Tensor g, Tensor dweight, Tensor dbias, Tensor dn, Norm norm,
                                    bool add, bool accumulate))

// Adds the gradient dn of a sublayer's input to the residual stream's gradient g (post-norm): g (M, C) += dn. dn may be
// BF16 SCALE_ROW.
OPERATION(residual_backward, (Exec *exec, Tensor g, Tensor dn))

// Quantizes a gradient for dgrad (dy_q) and, transposed, for wgrad (dy_qt), and sums its columns.
//   dbias (1, N) FP32 = column sums of dy (M, N), from the unquantized values
//   FP8: dy_q is E4M3 or E5M2, dy_qt is E5M2; they share one scale if their formats are the same
//   unscaled: dy_q and dy_qt are dy itself, and only dbias is computed
// Reads the row amaxes from dy.amax if that exists; otherwise computes them into dy_q.amax.
OPERATION_BY_FORMAT(grad_quantize, (Exec *exec, Tensor dy_q, Tensor dy_qt, Tensor dbias, Tensor dy, bool accumulate))

// dgrad: dx (M, in) = dy (M, out) * w. If dy is FP8, reads w.codes_t; if transposes are not cached, first computes
// w.codes_t from w.codes. If dy is SCALE_ROW, the matmul ignores dy's scales, and dx is BF16 SCALE_ROW with these
// scales.
OPERATION(linear_backward_data, (Exec *exec, Tensor dx, Tensor dy, Weight w))
// wgrad: dw (out, in) = (accumulate ? dw : 0) + dy^T * x, with dy (M, out) and x (M, in). FP8 operands are stored
// transposed and have one scale each.
OPERATION(linear_backward_weight, (Exec *exec, Tensor dw, Tensor dy, Tensor x, bool accumulate))

// Quantizes x to q_t, the transposed copy of q that wgrad reads; q is the output of quantize_forward. The scale of q_t
// follows from q as in norm_recompute. Does nothing if q_t shares x's memory.
OPERATION_BY_FORMAT(quantize_recompute, (Exec *exec, Tensor q_t, Tensor q, Tensor x))
// Recomputes g = gelu(h) for wgrad, in the layout that wgrad reads. Does nothing if g_t shares g's memory. If g is FP8
// with data, transposes g; otherwise quantizes gelu(h). The scale of g_t follows from g as in norm_recompute.
OPERATION_BY_FORMAT(activation_recompute, (Exec *exec, Tensor g_t, Tensor g, Tensor h, ActivationKind kind))
// Activation function's backward: dh = dg * gelu'(saved h), quantized to dh_q for dgrad and, transposed, to dh_qt for
// wgrad. dbias (1, F) FP32 = column sums of dh.
//   Unscaled dh_q and dh_qt share one memory: dg's or, with SwiGLU, separate memory, because dh is then twice as wide.
//   If dh_q is E4M3 SCALE_ROW, dh_qt is computed from dh_q and has one scale of its own.
OPERATION_BY_FORMAT(activation_backward, (Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg, Tensor h,
                                          bool accumulate, ActivationKind kind))

// Writes row scales of dh_q (E4M3 SCALE_ROW) from an upper bound of |dh| = |dg * gelu'(h)|. Does not read dg = dy * w.
//   Bound: gradient_bound() in quantize.h, from the norms of dy's rows and of w's columns. With SwiGLU, the bound also
//   depends on h's scales. dy is E4M3 SCALE_TENSOR. Must run after linear_backward_data with the same w, because
//   linear_backward_data writes w.codes_t if transposes are not cached. A non-finite bound sets state->nonfinite.
OPERATION(activation_bound, (Exec *exec, Tensor dh_q, Tensor dy, Weight w, Tensor h, ActivationKind kind))
// Runs activation_backward, with the scales that dh_q already has, and then activation_recompute, which writes g_t.
// Reads only g's scales, and g.data must be NULL. On a GPU, reads h (SCALE_GROUP) only once.
OPERATION(activation_backward_recompute, (Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor g_t, Tensor g, Tensor dg,
                                        Tensor h, bool accumulate, ActivationKind kind))

// Attention's backward: dq, dk, dv (strided views) from d_o (M, heads*head_dim) and tensors that forward saved.
//   If rope_table has data, also applies RoPE's backward to dq and dk, with the same bits as qk_norm_rope_backward.
//   If dq.amax exists, dq, dk and dv are adjacent columns of one tensor, whose row amaxes are written to dq.amax.
OPERATION(attention_backward, (Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse,
                               Tensor q, Tensor k, Tensor v, Tensor positions, Tensor rope_table, AttentionShape shape))

// Backward of qk_norm_rope_forward, in place: dqkv becomes the gradient of qkv, which is qk_norm_rope_forward's input.
// Writes the row amaxes to dqkv.amax if that exists. dq_weight and dk_weight are FP32 and have the weights' shapes.
OPERATION(qk_norm_rope_backward, (Exec *exec, Tensor dqkv, Tensor dq_weight, Tensor dk_weight, Tensor qkv, QkRope qk_rope,
                           bool accumulate))

// --- operations of the update ------------------------------------------------------------------------------
// Adds the gradients of one more micro-batch: sums[i] += parts[i]. Tensors are unscaled and contiguous, of the same
// format and shape.
OPERATION(gradients_add, (Exec *exec, const Tensor sums[], const Tensor parts[], int count))
// Computes state->grad_sq = sum of squares over all gradients, and state->grad_norm = its root. A non-finite root sets
// state->nonfinite.
OPERATION(grad_norm, (Exec *exec, const Parameter *parameters, int count, StepState *state))
// Computes state->grad_norm = root of state->grad_sq, after grad_sq was summed over the processes. A non-finite root
// sets state->nonfinite.
OPERATION(grad_norm_root, (Exec *exec, StepState *state))
// Runs AdamW on all parameters. Multiplies the gradient by grad_clip / grad_norm if the norm is larger than grad_clip >
// 0. Copies state->nonfinite to state->skips. If skips is not 0, makes no update and increments state->skipped and
// skipped_run. Otherwise, first increments t and sets skipped_run to 0. Writes the amax of the stored new weight to
// weight.maximum if that exists. Sets state->nonfinite if the new amax of a group of 8-bit moments is inf or NaN,
// although the update was made.
OPERATION(adamw_update, (Exec *exec, const Parameter *parameters, int count, StepState *state))
// Run the element-wise parts of a Muon update, after adamw_update. Do nothing if state->skips is not 0.
//   muon_momentum: m = momentum * m + (1 - momentum) * g, with the gradient g clipped as in adamw_update. Then
//                  update = momentum * m + (1 - momentum) * g, computed from m before m is rounded to its format
//   muon_apply: weight -= lr * weight_decay * weight + lr * update. Stores weights and amaxes as adamw_update does
OPERATION(muon_momentum, (Exec *exec, const Parameter *parameters, int count, StepState *state))
OPERATION(muon_apply, (Exec *exec, const Parameter *parameters, int count, StepState *state))
// x (count * r, c) consists of `count` (r, c) matrices. Replaces each with `scale` times its approximate polar factor:
// all singular values that are not tiny become 1. A matrix's result does not depend on `count`.
//   x = x / max(Frobenius norm, 1e-7), then NEWTON_SCHULZ_ITERATIONS times, with A = x x^T (x^T x if r > c):
//   B = b A + c A A;  x = a x + B x (a x + x B if r > c). The last iteration multiplies by `scale`.
// If state->skips is not 0, x may keep its values or receive arbitrary ones.
// y (count * r, c), gram and polynomial (count * n, n), n = min(r, c), are scratch in x's format. Every x, A and B is
// rounded to this format.
OPERATION(muon_orthogonalize, (Exec *exec, Tensor x, int count, Tensor y, Tensor gram, Tensor polynomial, float scale, StepState *state))
// Quantizes w.value to w.codes for the weights whose w.codes has data, and to w.codes_t if transposes are cached.
//   If w.codes.amax exists, it must contain the amax of the entire weight; w.value is then a shard.
//   Otherwise, in the first call after an update in a run of one process, uses the amaxes that adamw_update and
//   muon_apply wrote. In all other cases, such as after loading a checkpoint, computes the amaxes.
OPERATION(weights_quantize, (Exec *exec, const Parameter *parameters, int count))
// Writes the amax of w.value to *w.codes.amax, for the weights that have FP8 values; 0 if a weight has no rows.
OPERATION(weights_amax, (Exec *exec, const Parameter *parameters, int count))

// --- operations that measure values for the log ---------------------------------------------------------
// Computes out[i], in host memory, from the FP8 values and scales of tensors[i], none of which is transposed. If data
// is NULL, the FP8 values were overwritten. Then only amax is computed, as an estimate from the scales:
//   - one scale: amax; 0 if the scale is 1, the scale of a tensor of zeros
//   - SCALE_ROW: an upper bound of less than twice amax, from the largest scale. If activation_bound() wrote the
//     scales, the upper bound of that operation. 0 if the largest scale is the smallest possible scale.
OPERATION(health, (Exec *exec, const Tensor tensors[], int count, Health out[]))
// Adds the counts of an FP8 tensor, transposed or not, to *counts in device memory. All values of the largest magnitude
// count as saturated.
OPERATION(codes_count, (Exec *exec, Tensor codes, CodeCounts *counts))
// Computes the inner products of two unscaled contiguous tensors of the same format and shape, and writes them to *out
// in device memory. Sums in double.
OPERATION(inner_products, (Exec *exec, Tensor a, Tensor b, InnerProducts *out))
// Computes sums that show outliers of x (struct Outliers), and writes them to *out in device memory. Sums in double.
//   x is unscaled or FP8 with scales, and not transposed. v.data NULL: z = x²
//   v (second moments: unscaled or SCALE_EXPAND) has x's shape, and both are contiguous: z = x² / v, or 0 if v is 0
OPERATION(outliers, (Exec *exec, Tensor x, Tensor v, Outliers *out))

#undef OPERATION_BY_FORMAT
