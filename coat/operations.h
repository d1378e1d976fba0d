// The operations of the model, once: what each computes, reads and writes. To be included with
//     #define OPERATION(name, parameters)
// From this list derive the table of functions (ops.h), each backend's declarations and its table, and the names in the
// model of what runs when (dev/test/order_ops.h), which says again by hand what each reads and writes.
// OPERATION_BY_FORMAT, where it is defined, takes those that a GPU has twice: for plain formats, plain_NAME, and for
// tensors with scales, fp8_NAME.
// clang-format off
#ifndef OPERATION_BY_FORMAT
#define OPERATION_BY_FORMAT(name, parameters) OPERATION(name, parameters)
#endif

// --- forward ------------------------------------------------------------------------------------------------
// r (M, C) = wte[token] + wpe[row_position()]. tokens (M, 1) I32. wpe.data NULL: no learned positions.
OPERATION(embed_forward, (Exec *exec, Tensor r, Tensor tokens, Tensor positions, Tensor wte, Tensor wpe, int T))

// r_out = r_in + y + y_bias; norm.x = stored r_out; n = norm(r_out or stored). y.data NULL: r_out = r_in. r_out and
// norm.x may be the same memory, r_out and r_in too. Without norm.weight it is 1. n is plain, or E4M3 SCALE_TENSOR by
// Group Scaling (maxima, reduction, cast), its scale being written here; or E4M3 SCALE_ROW, in the same pass. With
// norm.centre codes are of n less it, in one pass, and the scale has room for both, since those of backward are of n: a
// row's by their maxima, the tensor's by norm_bound(). y may be BF16 SCALE_ROW: its value is stored * scale. A plain n
// that has amax leaves the maxima of its rows there.
OPERATION_BY_FORMAT(residual_norm_forward, (Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y,
                                            Tensor y_bias))

// What residual_norm_forward's product may take out of its operand: centre (1, C) FP32 = the mean of norm(r_in + y +
// y_bias) over centre_rows() rows, shifted (1, out) = bias + w * centre, of w's codes. The sum of both is exact
// whatever centre is: w * n + bias = w * (n - centre) + shifted.
OPERATION(norm_centre, (Exec *exec, Tensor centre, Tensor shifted, Norm norm, Tensor r_in, Tensor y, Tensor y_bias, Weight w,
                        Tensor bias))

// The same where norms come after (OLMo 2): norm.x = stored y; r_out = r_in + norm(y or stored); n = r_out, plain in
// the same memory, or codes as above. y.data NULL: r_out = r_in. n.data NULL: no product reads it.
OPERATION_BY_FORMAT(branch_norm_forward, (Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y))

// y (M, out) = x (M, in) * w^T + bias. x plain: w.value is read; x E4M3 SCALE_TENSOR: w.codes is read.
// x E4M3 SCALE_ROW: y is BF16 SCALE_ROW with x's scales and holds the product without them; no bias.
OPERATION(linear_forward, (Exec *exec, Tensor y, Tensor x, Weight w, Tensor bias))

// out (M, heads of q, k and v) = qkv after what `heads` says; plain. Column i of a head and column i + head_dim / 2 are
// rotated together. out and qkv may be the same memory.
OPERATION(heads_forward, (Exec *exec, Tensor out, Tensor qkv, Heads heads))

// o (M, heads*head_dim), lse (B*heads, T) FP32 = log of the sum of exp of the scaled scores. A token sees those before
// it of its document, which begins where row_position() is 0. Where k and v have more rows than q (of one sequence, so
// B is 1), the first of them are tokens before the M, as a sample keeps them.
OPERATION(attention_forward, (Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor positions,
                              AttentionShape shape))

// q = x in the format of the product that reads it, codes and their scale. Same memory: nothing to do.
// q SCALE_ROW: the scales of the rows, and their codes, in one pass.
OPERATION_BY_FORMAT(quantize_forward, (Exec *exec, Tensor q, Tensor x))

// h = y + bias, stored (plain, or E4M3 SCALE_GROUP); g (M, F) = gelu(stored h), plain or E4M3 SCALE_TENSOR. Where h is
// (M, 2 F), gate beside up, g = silu(gate) up (SwiGLU), here and in the operations below that say gelu. With
// !from_saved (--activation-input product) a grouped h is stored, but gelu is that of y + bias in FP32, unless g has
// one scale. y and h may be the same memory; then with bias.data NULL h is already complete. g may be E4M3 SCALE_ROW
// instead; and y BF16 SCALE_ROW where h is SCALE_GROUP.
OPERATION_BY_FORMAT(activation_forward, (Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias, bool from_saved))

// The loss of a chunk of tokens and its gradient (R, Vp).
// losses (R, 1) FP32 = logsumexp - logit[target] over the first `vocab` columns, 0 where target < 0.
// dlogits = (softmax - onehot) * state->loss_scale; columns >= vocab and rows with target < 0 get 0. Plain: dlogits and
// dlogits_t are the memory of the logits, which it takes the place of. FP8: codes in E5M2 and their transpose, for
// which the memory of the logits may serve. dlogits.data NULL: the loss alone.
// Its codes need no maximum: |dlogits| <= loss_scale, so the tensor's scale is loss_gradient_scale() of quantize.h.
// A non-finite loss raises state->nonfinite.
OPERATION(loss_forward_backward, (Exec *exec, Tensor dlogits, Tensor dlogits_t, Tensor losses, Tensor logits,
                                  Tensor targets, int vocab, StepState *state))
// state->loss_sum += state->loss_scale * sum of losses, in a fixed order.
OPERATION(loss_sum, (Exec *exec, Tensor losses, StepState *state))

// --- backward ------------------------------------------------------------------------------------------------
// Adds to dwte (Vp, C) FP32 (the head's gradient is already in it) the rows of g by token; writes or adds
// dwpe (positions, C) FP32, rows >= T being zeroed when not accumulating. A fixed order of addition.
OPERATION(embed_backward, (Exec *exec, Tensor dwte, Tensor dwpe, Tensor g, Tensor tokens, Tensor positions, int T,
                           bool accumulate))

// n again from what was saved, in the layout that the weight gradient reads (n_t). n_t and n the same
// memory: n was saved. Otherwise from n's codes where n.data is given and has them, else from norm.x with n's scale
// or, where n is plain, one of its maxima.
// n SCALE_ROW: n_t's scale is made here from n's, and n's codes are rescaled to it while they are transposed;
// without them norm(x) is quantised with it.
OPERATION_BY_FORMAT(norm_rebuild, (Exec *exec, Tensor n_t, Tensor n, Norm norm))

// g (M, C) = (add ? g : 0) + d norm / d x * dn; dweight, dbias (1, C) FP32. Writes g.amax where present.
// dn may be BF16 SCALE_ROW where norm.x is SCALE_GROUP.
OPERATION_BY_FORMAT(norm_backward, (Exec *exec, Tensor g, Tensor dweight, Tensor dbias, Tensor dn, Norm norm,
                                    bool add, bool accumulate))

// g (M, C) += dn: the residual stream's gradient where norms come after. dn may be BF16 SCALE_ROW.
OPERATION(residual_backward, (Exec *exec, Tensor g, Tensor dn))

// dbias (1, N) FP32 = column sums of dy (M, N), from the unquantised values; dy_q = dy in codes
// (--gradient-codes-data), dy_qt its transpose (-weights); one scale, or one each where their formats differ. Plain
// recipes: dy_q, dy_qt are dy itself, only dbias is computed.
// dy.amax, where present, holds the maxima as dy's producer left them; else they are found and left in dy_q.amax.
OPERATION_BY_FORMAT(grad_quantize, (Exec *exec, Tensor dy_q, Tensor dy_qt, Tensor dbias, Tensor dy, bool accumulate))

// dx (M, in) = dy (M, out) * w. FP8: dy in codes and w.codes_t. dy SCALE_ROW: dx as y of linear_forward.
OPERATION(linear_backward_data, (Exec *exec, Tensor dx, Tensor dy, Weight w))
// dw (out, in) (+)= dy^T * x. Plain: dy (M, out), x (M, in). FP8: both stored transposed, each with one scale.
OPERATION(linear_backward_weight, (Exec *exec, Tensor dw, Tensor dy, Tensor x, bool accumulate))

// The transpose of quantize_forward's q, again from x with q's saved scale. q_t same memory as x: nothing.
// q SCALE_ROW: q_t's scale is made here from q's.
OPERATION_BY_FORMAT(quantize_rebuild, (Exec *exec, Tensor q_t, Tensor q, Tensor x))
// gelu(h) again, in the layout that the weight gradient reads. g_t and g the same memory: g was saved.
// g's codes and scales are as n's in norm_rebuild.
OPERATION_BY_FORMAT(activation_rebuild, (Exec *exec, Tensor g_t, Tensor g, Tensor h))
// dh = dg * gelu'(stored h), with dbias (1, F) FP32 its column sums and its quantised copies, as in
// grad_quantize. Plain recipes: dh_q, dh_qt, dg are the same memory. dh_q SCALE_ROW: dh_qt is made from its codes,
// with a scale of its own.
OPERATION_BY_FORMAT(activation_backward, (Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg, Tensor h,
                                          bool accumulate))

// The scales of dh_q's rows (E4M3 SCALE_ROW) before dg = dy w is known, with room for every dh = dg gelu'(h): by
// gradient_bound(), from the norms of dy's rows and of w's columns, and of SwiGLU the scales of h. dy E4M3
// SCALE_TENSOR; w.codes_t is read, as linear_backward_data has left it. A bound that is not finite raises the step's
// flag; dh itself is not looked at.
OPERATION(activation_bound, (Exec *exec, Tensor dh_q, Tensor dy, Weight w, Tensor h))
// activation_backward with the scales that dh_q's rows have, and activation_rebuild (g without its codes) from the same
// read of h. h SCALE_GROUP.
OPERATION(activation_backward_rebuild, (Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor g_t, Tensor g, Tensor dg,
                                        Tensor h, bool accumulate))

// dq, dk, dv (strided views) from do (M, heads*head_dim) and what forward saved; with `rotations` of q and k before
// they were rotated, with the bits of heads_backward behind it. Where dq.amax is present the three are neighbouring
// columns of one tensor, whose maxima it holds then.
OPERATION(attention_backward, (Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse,
                               Tensor q, Tensor k, Tensor v, Tensor positions, Tensor rotations, AttentionShape shape))

// heads_forward in reverse: dqkv becomes the gradient of qkv, which is what forward read; its maxima are left in
// dqkv.amax where present. dq_weight, dk_weight FP32, shaped as the weights.
OPERATION(heads_backward, (Exec *exec, Tensor dqkv, Tensor dq_weight, Tensor dk_weight, Tensor qkv, Heads heads,
                           bool accumulate))

// --- update ------------------------------------------------------------------------------------------------
// sums[i] += parts[i], plain and without gaps, both of a format and shape: what one more micro-batch adds.
OPERATION(gradients_add, (Exec *exec, const Tensor sums[], const Tensor parts[], int count))
// state->grad_sq = sum of squares over all gradients, grad_norm its root; non-finite raises nonfinite.
OPERATION(grad_norm, (Exec *exec, const Parameter *parameters, int count, StepState *state))
// The second half alone, once grad_sq has been summed over processes: grad_norm = its root, non-finite as above.
OPERATION(grad_norm_root, (Exec *exec, StepState *state))
// AdamW (COAT: optimizer states) over all parameters, with the gradient scaled by grad_clip / grad_norm where the
// norm is larger. Skips as a whole when state->nonfinite, counting it in `skipped`; else t advances first. Leaves
// the maxima of the weights that have FP8 codes, as they are stored now, in weight.maximum where that is kept.
OPERATION(adamw_update, (Exec *exec, const Parameter *parameters, int count, StepState *state))
// FP8 codes of the weights that have any, from w.value; nothing for the others. w.codes.amax, where present, holds
// the maximum of the whole weight, of which w.value is a share. Else the maxima are those that an adamw_update of
// the same parameters left just before, where it did; after anything else, such as a load, they are looked for.
OPERATION(weights_quantize, (Exec *exec, const Parameter *parameters, int count))
// *w.codes.amax = the bits of the largest |w.value|, of the weights that have codes; 0 of a weight without rows.
OPERATION(weights_maxima, (Exec *exec, const Parameter *parameters, int count))

// --- log ------------------------------------------------------------------------------------------------
// out[i], in the host's memory, from the codes and scales of tensors[i] as they are; none is transposed. A tensor whose
// data is NULL has no codes any more. Only amax is found then, from what is left:
//   - one scale: amax, or 0 where the scale is 1, as of a tensor of zeros
//   - SCALE_ROW: from the largest scale a bound, less than twice as large as amax; where activation_bound() made the
//     scales, its bound. 0 where that scale is the smallest that there is.
OPERATION(health, (Exec *exec, const Tensor tensors[], int count, Health out[]))
// Adds to *counts, in the device's memory, those of the codes of a tensor: its elements, transposed or not. Saturated
// are all codes of the largest magnitude.
OPERATION(codes_count, (Exec *exec, Tensor codes, CodeCounts *counts))
// *out, in the device's memory, of two plain tensors of the same format and shape, without gaps; summed in double.
OPERATION(inner_products, (Exec *exec, Tensor a, Tensor b, InnerProducts *out))

#undef OPERATION_BY_FORMAT
