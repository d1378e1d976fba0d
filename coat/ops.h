// Every operation of the model: signature, shapes, what it reads, writes and saves. The model in
// train_gpt2_fp8.cu is written once against this table of functions; coat/cpu and coat/cuda each fill one.
//
// Boundaries are the fused ones: an operation reads each input once and writes each output once, and hides
// how its backend splits the work. Formats are the descriptors' business: an operation looks at the formats
// and granularities it is given and quantises, transposes or does nothing accordingly. Two rules follow:
//   - outputs with data == NULL are not wanted and are skipped;
//   - an output that is the same memory as an input (equal data pointers) is already there: an operation
//     whose work would only be that copy returns at once.
// What is quantised is the value in FP32, as it was summed or made, or what was stored in BF16 where that comes between
// (r_out): nothing is rounded to BF16 on the way. A norm or gelu that is made from a saved tensor reads that tensor's
// dequantised values; made again in backward it has the same bits.
//
// Codes SCALE_ROW (--scaling token) have the scale row_scale_from_maximum() of each row's maximum and are made in the
// pass that makes the row; amax is neither read nor written then. Their product leaves the scales out, and its result
// in BF16, also SCALE_ROW and with the same scale pointer, carries them to whoever reads it. Their transpose, for a sum
// over the rows, has one scale of its own, the largest of the rows': code = cast(decode(row's code) * row's scale / it)
//
// Notation: M = B * T tokens of a micro-batch, C channels, F width of the feed-forward layer, Vp padded
// vocabulary. Activations are (M, columns). "plain" means FP32 or BF16 without scales. Arithmetic is FP32
// (double in the gradient-check build). All sums run in an order that depends neither on the number of
// threads nor on timing, so that every operation is reproducible bit for bit.
//
// `accumulate` of a gradient: false overwrites (the first micro-batch of a step), true adds.
#pragma once
#include "config.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the optimizer step needs and what it finds, in one struct in the device's memory, so that the
// decision to skip is taken there and a captured graph stays valid. The host writes the first part before a
// step and reads the whole after it.
typedef struct {
    // written by the host
    float lr, beta1, beta2, eps, weight_decay, grad_clip; // grad_clip <= 0: no clipping
    uint64_t seed;
    // kept by the device
    int64_t t;           // updates made so far; a skipped step does not advance it
    int64_t skipped;     // updates skipped so far
    int64_t skipped_run; // skipped in a row, up to now
    // written by the operations of a step
    double loss_sum;   // sum of the token losses times their scale: the mean loss of the step
    double grad_sq;    // sum of the squares of all gradients
    float grad_norm;   // its root
    int32_t nonfinite; // not 0: the update is skipped. 1: a loss, gradient or value to be quantised was inf or NaN;
                       // SKIP_OUTLIER: set by the host between grad_norm and adamw_update (guard.h)
} StepState;

#define SKIP_OUTLIER 2

// A norm with what it saves. x is what backward reads: in BF16 recipes the residual stream itself, in COAT's
// its per-group E4M3 copy.
typedef struct {
    Tensor x;      // (M, C) plain, or E4M3 SCALE_GROUP
    Tensor mean;   // (M, 1) FP32; data NULL for RMSNorm
    Tensor rstd;   // (M, 1) FP32
    Tensor weight; // (1, C)
    Tensor bias;   // (1, C); data NULL without biases
    float eps;
    bool from_saved; // normalise the dequantised x (--norm-input saved) instead of the residual itself
} Norm;

// Causal self-attention over B sequences of T tokens; query head h reads key/value head h / (heads / kv_heads).
// Views q, k, v into a packed projection have its stride: row b*T+t, columns head*head_dim ...
typedef struct {
    int B, T, heads, kv_heads, head_dim;
} AttentionShape;

// One parameter tensor as the optimizer sees it.
typedef struct {
    Weight weight;  // value is BF16 or FP32; updated
    Tensor grad;    // BF16 or FP32, same shape
    Tensor m, v;    // FP32, BF16, or 8-bit with SCALE_EXPAND
    Tensor master;  // FP32; or U16 low halves (split16); data NULL: none (or the value is FP32 already)
    bool decay;     // decoupled weight decay applies
    uint64_t index; // of the tensor's first element among all parameters: seeds stochastic rounding
} Parameter;

// What the codes of an FP8 tensor say about its scales, counted over the whole tensor.
typedef struct {
    uint64_t saturated; // codes of the largest magnitude beyond one per scale, whose own maximum has that code
    uint64_t zero;      // codes 0: of values that were 0, and of those too small for the scale
    uint64_t clamped;   // SCALE_EXPAND: groups whose exponent k is at an end of its range
    uint32_t amax;      // bits of the largest magnitude that a code stands for
    uint32_t largest;   // the largest code, without sign
} Health;

// How many codes of a tensor say little or nothing of their values.
typedef struct {
    uint64_t codes; // all of them
    uint64_t saturated, zero, subnormal;
} CodeCounts;

// Of two tensors a and b as vectors.
typedef struct {
    double ab, aa, bb;
} InnerProducts;

typedef struct Exec Exec;

typedef struct Ops {
    const char *name; // "cpu" or "cuda"

    // --- device ------------------------------------------------------------------------------------------
    // Opens the device and fills the exec's backend; on failure err says what and how to go on.
    bool (*open)(Exec *, const Config *, Error *err);
    void (*close)(Exec *);
    // The run's only allocation (256-byte aligned, contents undefined); NULL with err when it does not fit.
    void *(*allocate)(Exec *, size_t bytes, Error *err);
    void (*release)(Exec *, void *memory);
    // Bytes that it could have, about; 0 = unknown, as in a table without it.
    int64_t (*memory_free)(Exec *);
    // Host memory that downloads reach fastest; NULL where there is none to be had. A table without the two: malloc().
    void *(*host_allocate)(Exec *, size_t bytes);
    void (*host_release)(Exec *, void *memory);
    void (*upload)(Exec *, void *device, const void *host, size_t bytes);   // returns when host may be reused
    void (*download)(Exec *, void *host, const void *device, size_t bytes); // waits for the work before it
    void (*zero)(Exec *, void *device, size_t bytes);
    void (*copy)(Exec *, void *to, const void *from, size_t bytes); // within the device; no overlap
    void (*synchronize)(Exec *);
    // A micro-step may be recorded once and replayed: begin returns true if a recording `id` exists and was
    // replayed (the caller skips its operations); otherwise the caller runs them and calls end.
    bool (*replay_begin)(Exec *, int id);
    void (*replay_end)(Exec *, int id);
    // Profiler ranges.
    void (*range_push)(Exec *, const char *name);
    void (*range_pop)(Exec *);
    // --profile: a profiler that waits for the program's word records from `begin` on, and no more from !begin on. Waits
    // for the work before it.
    void (*profile)(Exec *, bool begin);
    // One line for the start-up report ("NVIDIA H200, 132 SMs, 143155 MiB").
    void (*describe)(Exec *, char *text, size_t size);
    // Bytes of device memory in use as the driver reports them (the whole device); 0 = unknown.
    int64_t (*memory_in_use)(Exec *);
    // Dense BF16 peak of the device in FLOP/s for the share of peak; 0 = unknown.
    double (*peak_flops)(Exec *);
    // Which algorithms the products of training have taken so far (matmul_choices.h), for whoever goes on from here:
    // malloc'ed text, the same in equal runs; NULL: there is nothing to say. And the choices of the run that this one
    // goes on from, told before the first product; what is not of this device is passed over. A table without the two:
    // there is no choice.
    char *(*choices_text)(Exec *);
    void (*choices_load)(Exec *, const char *text);

    // --- forward -----------------------------------------------------------------------------------------
    // r (M, C) = wte[token] + wpe[row % T]. tokens (M, 1) I32. wpe.data NULL: no learned positions.
    void (*embed_forward)(Exec *, Tensor r, Tensor tokens, Tensor wte, Tensor wpe, int T);

    // r_out = r_in + y + y_bias; norm.x = stored r_out; n = norm(r_out or stored). y.data NULL: r_out = r_in. r_out and
    // norm.x may be the same memory, r_out and r_in too. n is plain, or E4M3 SCALE_TENSOR by Group Scaling (maxima,
    // reduction, cast), its scale being written here; or E4M3 SCALE_ROW, in the same pass. y may be
    // BF16 SCALE_ROW: its value is stored * scale.
    void (*residual_norm_forward)(Exec *, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y, Tensor y_bias);

    // y (M, out) = x (M, in) * w^T + bias. x plain: w.value is read; x E4M3 SCALE_TENSOR: w.codes is read.
    // x E4M3 SCALE_ROW: y is BF16 SCALE_ROW with x's scales and holds the product without them; no bias.
    void (*linear_forward)(Exec *, Tensor y, Tensor x, Weight w, Tensor bias);

    // o (M, heads*head_dim), lse (B*heads, T) FP32 = log of the sum of exp of the scaled scores.
    void (*attention_forward)(Exec *, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, AttentionShape);

    // q = x in the format of the product that reads it, codes and their scale. Same memory: nothing to do.
    // q SCALE_ROW: the scales of the rows, and their codes, in one pass.
    void (*quantize_forward)(Exec *, Tensor q, Tensor x);

    // h = y + bias, stored (plain, or E4M3 SCALE_GROUP); g = gelu(stored h), plain or E4M3 SCALE_TENSOR. With !from_saved
    // (--activation-input product) a grouped h is stored, but gelu is that of y + bias in FP32, unless g has one scale.
    // y and h may be the same memory; then with bias.data NULL h is already complete. g may be E4M3 SCALE_ROW instead;
    // and y BF16 SCALE_ROW where h is SCALE_GROUP.
    void (*gelu_forward)(Exec *, Tensor g, Tensor h, Tensor y, Tensor bias, bool from_saved);

    // The loss of a chunk of tokens and its gradient (R, Vp).
    // losses (R, 1) FP32 = logsumexp - logit[target] over the first `vocab` columns, 0 where target < 0.
    // dlogits = (softmax - onehot) * scale; columns >= vocab and rows with target < 0 get 0. Plain: dlogits and
    // dlogits_t are the memory of the logits, which it takes the place of. FP8: codes in E5M2 and their transpose, for
    // which the memory of the logits may serve. dlogits.data NULL: the loss alone.
    // Its codes need no maximum: |dlogits| <= scale, so the tensor's scale is loss_gradient_scale() of quantize.h.
    // A non-finite loss raises state->nonfinite.
    void (*loss_forward_backward)(Exec *, Tensor dlogits, Tensor dlogits_t, Tensor losses, Tensor logits,
                                  Tensor targets, int vocab, float scale, StepState *state);
    // state->loss_sum += scale * sum of losses, in a fixed order.
    void (*loss_sum)(Exec *, Tensor losses, float scale, StepState *state);

    // --- backward ----------------------------------------------------------------------------------------
    // Adds to dwte (Vp, C) FP32 (the head's gradient is already in it) the rows of g by token; writes or adds
    // dwpe (positions, C) FP32, rows >= T being zeroed when not accumulating. A fixed order of addition.
    void (*embed_backward)(Exec *, Tensor dwte, Tensor dwpe, Tensor g, Tensor tokens, int T, bool accumulate);

    // n again from what was saved, in the layout that the weight gradient reads (n_t). n_t and n the same
    // memory: n was saved. Otherwise from n's codes where n.data is given, else from norm.x with n's scale.
    // n SCALE_ROW: n_t's scale is made here from n's, and n's codes are rescaled to it while they are transposed;
    // without them norm(x) is quantised with it.
    void (*norm_rebuild)(Exec *, Tensor n_t, Tensor n, Norm norm);

    // g (M, C) = (add ? g : 0) + d norm / d x * dn; dweight, dbias (1, C) FP32. Writes g.amax where present.
    // dn may be BF16 SCALE_ROW where norm.x is SCALE_GROUP.
    void (*norm_backward)(Exec *, Tensor g, Tensor dweight, Tensor dbias, Tensor dn, Norm norm, bool add,
                          bool accumulate);

    // dbias (1, N) FP32 = column sums of dy (M, N), from the unquantised values; dy_q = dy in codes
    // (--gradient-codes-data), dy_qt its transpose (-weights); one scale, or one each where their formats differ. Plain recipes: dy_q, dy_qt are dy itself, only dbias is computed.
    // dy.amax, where present, holds the maxima as dy's producer left them; else they are found and left in dy_q.amax.
    void (*grad_quantize)(Exec *, Tensor dy_q, Tensor dy_qt, Tensor dbias, Tensor dy, bool accumulate);

    // dx (M, in) = dy (M, out) * w. FP8: dy in codes and w.codes_t. dy SCALE_ROW: dx as y of linear_forward.
    void (*linear_backward_data)(Exec *, Tensor dx, Tensor dy, Weight w);
    // dw (out, in) (+)= dy^T * x. Plain: dy (M, out), x (M, in). FP8: both stored transposed, each with one scale.
    void (*linear_backward_weight)(Exec *, Tensor dw, Tensor dy, Tensor x, bool accumulate);

    // The transpose of quantize_forward's q, again from x with q's saved scale. q_t same memory as x: nothing.
    // q SCALE_ROW: q_t's scale is made here from q's.
    void (*quantize_rebuild)(Exec *, Tensor q_t, Tensor q, Tensor x);
    // gelu(h) again, in the layout that the weight gradient reads. g_t and g the same memory: g was saved.
    // g's codes and scales are as n's in norm_rebuild.
    void (*gelu_rebuild)(Exec *, Tensor g_t, Tensor g, Tensor h);
    // dh = dg * gelu'(stored h), with dbias (1, F) FP32 its column sums and its quantised copies, as in
    // grad_quantize. Plain recipes: dh_q, dh_qt, dg are the same memory. dh_q SCALE_ROW: dh_qt is made from its codes,
    // with a scale of its own.
    void (*gelu_backward)(Exec *, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg, Tensor h, bool accumulate);

    // dq, dk, dv (strided views) from do (M, heads*head_dim) and what forward saved. Where dq.amax is present the
    // three are neighbouring columns of one tensor, whose maxima it holds then.
    void (*attention_backward)(Exec *, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse, Tensor q,
                               Tensor k, Tensor v, AttentionShape);

    // --- update ------------------------------------------------------------------------------------------
    // state->grad_sq = sum of squares over all gradients, grad_norm its root; non-finite raises nonfinite.
    void (*grad_norm)(Exec *, const Parameter *parameters, int count, StepState *state);
    // The second half alone, once grad_sq has been summed over processes: grad_norm = its root, non-finite as above.
    void (*grad_norm_root)(Exec *, StepState *state);
    // AdamW (COAT: optimizer states) over all parameters, with the gradient scaled by grad_clip / grad_norm where the
    // norm is larger. Skips as a whole when state->nonfinite, counting it in `skipped`; else t advances first. Leaves
    // the maxima of the weights that have FP8 codes, as they are stored now, in weight.maximum where that is kept.
    void (*adamw_update)(Exec *, const Parameter *parameters, int count, StepState *state);
    // FP8 codes of the weights that have any, from w.value; nothing for the others. w.codes.amax, where present, holds
    // the maximum of the whole weight, of which w.value is a share. Else the maxima are those that an adamw_update of
    // the same parameters left just before, where it did; after anything else, such as a load, they are looked for.
    void (*weights_quantize)(Exec *, const Parameter *parameters, int count);
    // *w.codes.amax = the bits of the largest |w.value|, of the weights that have codes; 0 of a weight without rows.
    void (*weights_maxima)(Exec *, const Parameter *parameters, int count);

    // --- log ---------------------------------------------------------------------------------------------
    // out[i], in the host's memory, from the codes and scales of tensors[i] as they are; none is transposed. Of a
    // tensor whose data is NULL only the scale is left, which gives amax (0 where it is 1, as of a tensor of zeros); of
    // one that is SCALE_ROW the scales, of which the largest gives a bound less than twice as large (0 where it is the
    // smallest there is).
    void (*health)(Exec *, const Tensor tensors[], int count, Health out[]);
    // Adds to *counts, in the device's memory, those of the codes of a tensor: its elements, transposed or not. Saturated
    // are all codes of the largest magnitude.
    void (*codes_count)(Exec *, Tensor codes, CodeCounts *counts);
    // *out, in the device's memory, of two plain tensors of the same format and shape, without gaps; summed in double.
    void (*inner_products)(Exec *, Tensor a, Tensor b, InnerProducts *out);
} Ops;

// Where operations run. The arena gives the workspace; `backend` is private to the filled table.
struct Exec {
    const Ops *ops;
    void *backend;
    void *workspace; // device scratch of at least ops_workspace_bytes(), for use within one operation
    size_t workspace_bytes;
    bool trains;      // the operations are those of a training step, not of an evaluation or a sample
    StepState *state; // of the run, in the device's memory: where a value to be quantised is not finite, nonfinite is
                      // raised; NULL while there is none
    int rank, ranks;
    int local_rank; // among the processes of this machine: which of its GPUs is this one's
};

const Ops *cpu_ops(void);
#ifdef COAT_CUDA
const Ops *cuda_ops(void);
bool cuda_present(void); // there is an NVIDIA driver with a GPU, whether or not the program can use it
// Why one of the GPUs that the processes of this machine use cannot multiply in FP8; "" where all can, or none is seen.
void cuda_find_fp8(int local_rank, int local_ranks, char *why, size_t size);
#endif

// Bytes of Exec.workspace that a backend's operations need for this configuration, and which of them needs most: plain
// arithmetic, so that a machine without a GPU can plan for one. One operation runs at a time and uses the workspace from
// its beginning: the largest need counts.
typedef struct {
    const char *name;
    size_t bytes;
} WorkspaceNeed;
WorkspaceNeed cpu_workspace(const Config *config);
WorkspaceNeed cuda_workspace(const Config *config);
static inline WorkspaceNeed ops_workspace(const Config *config, DeviceKind device) {
    return device == DEVICE_CUDA ? cuda_workspace(config) : cpu_workspace(config);
}

#ifdef __cplusplus
}
#endif
