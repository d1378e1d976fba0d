// What an operation of the model is (operations.h lists them), and the table of functions, with those of the device
// (device_functions.h), that coat/cpu and coat/cuda each fill. The model in train_gpt2_fp8.cu is
// written once against it.
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
    float loss_scale;                                     // 1 / the targets of the step that count
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
    Tensor centre;   // (1, C) FP32 that codes are made less, in one pass; data NULL: nothing
} Norm;

// Causal self-attention over B sequences of T tokens; query head h reads key/value head h / (heads / kv_heads).
// Views q, k, v into a packed projection have its stride: row b*T+t, columns head*head_dim ...
typedef struct {
    int B, T, heads, kv_heads, head_dim;
} AttentionShape;

static inline AttentionShape attention_shape(const ModelShape *model, int B, int T) {
    const AttentionShape shape = {B, T, model->heads, model->kv_heads, model->head_dim};
    return shape;
}

// Where documents that share a sequence are apart, positions (M, 1) I32 has of each token that within its document,
// from 0 on. Where it is not given (data NULL), a sequence of T tokens is one document. The position of a row:
static inline int64_t row_position(Tensor positions, int64_t row, int64_t T) {
    return positions.data ? ((const int32_t *)positions.data)[row] : row % T;
}

// What happens to q, k and v between their product and attention, in this order: all are cut off at plus and minus
// `clip`; q and k pass an RMS norm, over all their heads or over each; q and k are rotated by their position, as in
// row_position().
typedef struct {
    AttentionShape shape;
    Tensor positions; // of documents within sequences; data NULL: none
    Tensor rotations; // (T, head_dim) FP32: of each position the cosines of head_dim / 2 angles, then the sines;
                      // data NULL: none
    Tensor q_weight, k_weight; // (1, head_dim), or as wide as q and k; data NULL: no norm
    float eps, clip;           // clip 0: none
} Heads;

static inline bool heads_changed(const Heads *heads) {
    return heads->rotations.data || heads->q_weight.data || heads->clip > 0;
}

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
    const char *name;  // "cpu" or "cuda"
    DeviceKind device; // whose memory and workspace these are: DEVICE_CPU or DEVICE_CUDA

#define DEVICE_FUNCTION(name, result, parameters) result(*name) parameters;
#include "device_functions.h"
#undef DEVICE_FUNCTION
#define OPERATION(name, parameters) void(*name) parameters;
#include "operations.h"
#undef OPERATION
} Ops;

// Where operations run. The arena gives the workspace; `backend` is private to the filled table.
struct Exec {
    const Ops *ops;
    void *backend;
    void *workspace; // device scratch of at least the bytes of ops_workspace(), for use within one operation
    size_t workspace_bytes;
    bool trains;      // the operations are those of a training step, not of an evaluation or a sample
    StepState *state; // of the run, in the device's memory: where a value to be quantised is not finite, nonfinite is
                      // raised; NULL while there is none
    int rank, ranks;
    int local_rank; // among the processes of this machine: which of its GPUs is this one's
};

// What attention_backward does with dq and dk where its kernel does not: rotated back, of so many heads.
static inline void heads_rotate_back(Exec *exec, Tensor d, int heads, Tensor positions, Tensor rotations,
                                     AttentionShape shape) {
    const Tensor none = no_tensor();
    Heads h = {shape, positions, rotations, none, none, 0.0f, 0.0f};
    h.shape.heads = heads, h.shape.kv_heads = 0;
    d.amax = NULL; // it is a part of a row
    exec->ops->heads_backward(exec, d, none, none, d, h, false);
}

const Ops *cpu_ops(void);
#ifdef COAT_CUDA
const Ops *cuda_ops(void);
bool cuda_present(void); // there is an NVIDIA driver with a GPU, whether or not the program can use it
// Why one of the GPUs that the processes of this machine use cannot multiply in FP8; "" where all can, or none is seen.
void cuda_find_fp8(int local_rank, int local_ranks, char *why, size_t size);
#endif

// Bytes of Exec.workspace that a backend's operations need for this configuration, and which of them needs most: plain
// arithmetic, so that a machine without a GPU can plan for one. One operation runs at a time and uses the workspace
// from its beginning: the largest need counts.
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
