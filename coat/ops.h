// Defines struct Ops, the table of a backend's functions: the model's operations (listed in operations.h) and the
// functions of a device (device_functions.h). coat/cpu and coat/cuda each define one table, and the model in
// train_gpt2_fp8.cu calls a backend only through its table.
//
// An operation is fused: it reads each input once, writes each output once, and hides how its backend splits the work.
// The formats and scales in the tensor descriptors decide whether the operation quantizes, transposes or does nothing:
//   - An output with data NULL is not computed.
//   - An output that shares memory with an input (the same data pointer) already contains the input's values. An
//     operation that would only copy the input returns at once.
// Operations quantize FP32 results directly. They round a result to BF16 first only if they also store the BF16 value
// (r_out). A norm or activation computed from a saved tensor reads the tensor's dequantized values, so that
// recomputation in backward gives the same bits.
//
// An FP8 tensor with granularity SCALE_ROW has one scale per row: row_scale_from_amax() of the row's amax, or the scale
// that activation_bound() wrote. The pass that computes a row also quantizes the row, and the tensor's amax array is
// unused. A matmul that reads the tensor ignores the scales. The matmul's BF16 output is SCALE_ROW, too, and has the
// same scale pointer, so that the kernel that reads the output multiplies by the scales. wgrad sums over rows, so the
// transpose that it reads has a single scale, the largest row scale:
//   transposed value = cast(decode(value) * scale of its row / single scale)
//
// Notation: M = B * T tokens of a micro-batch, C channels, F width of the MLP, Vp padded vocabulary, N any width.
// Activations are (M, columns). "Unscaled" means FP32 or BF16 without scales. Arithmetic is FP32 (double in the
// gradient check's build). The order of every sum depends neither on the number of threads nor on timing, so every
// operation is reproducible bit for bit.
//
// Parameter `accumulate`: false overwrites a gradient (the first micro-batch of a step), true adds to the gradient.
#pragma once
#include "config/config.h"
#include "numerics/tensor.h"

C_LINKAGE_BEGIN

// name of the file of GEMM algorithms in a checkpoint; --autotune writes a file of the same name to the run's folder
#define MATMUL_TABLE_NAME "matmul_table.txt"
#define MATMUL_TABLE_LIMIT ((size_t)4 << 20) // maximum size of a file of GEMM algorithms in bytes

// Inputs and results of an optimizer step. They are in device memory, so that the device decides whether to skip the
// update, and a captured CUDA graph stays valid. The host writes the first fields before a step, and reads all fields
// after it.
typedef struct {
    // fields that the host writes
    float lr, beta1, beta2, eps, weight_decay, grad_clip; // gradients are not clipped if grad_clip <= 0
    float loss_scale;                                     // 1 / number of the step's unmasked targets
    float momentum;                                       // decay rate of Muon's momentum
    uint64_t seed;
    // fields that the device updates
    int64_t t;           // number of updates so far, without skipped steps
    int64_t skipped;     // number of skipped updates so far
    int64_t skipped_run; // number of consecutive skipped updates up to now
    // fields that the operations of a step write
    double loss_sum; // sum of the token losses times loss_scale: the mean loss of the step
    double grad_sq;  // sum of the squares of all gradients
    float grad_norm; // root of grad_sq
    // reason to skip the update; 0: do not skip. 1: a loss, gradient or value to quantize was inf or NaN. SKIP_OUTLIER:
    // the host found between grad_norm and adamw_update that the loss or gradient norm is an outlier (guard.h)
    int32_t nonfinite;
    int32_t skips; // value of nonfinite when adamw_update began; if not 0, Muon's operations also skip the update
} StepState;

#define SKIP_OUTLIER 2

// A norm's parameters and the tensors that the norm saves for backward. With BF16 saved activations and pre-norm, the
// saved input x is the residual stream itself. With --saved coat, x is an E4M3 copy with per-group scales.
typedef struct {
    Tensor x;      // input of the norm, (M, C): unscaled, or E4M3 SCALE_GROUP
    Tensor mean;   // mean of each row, (M, 1) FP32; data is NULL for RMSNorm
    Tensor rstd;   // reciprocal standard deviation of each row, (M, 1) FP32
    Tensor weight; // weight of the norm, (1, C)
    Tensor bias;   // bias of the norm, (1, C); data is NULL if the norm has no bias
    float eps;
    bool from_saved; // true: the norm reads the dequantized x (coat-paper) instead of the residual stream itself
} Norm;

// Self-attention over B sequences of T tokens. Query head h reads key/value head h / (heads / kv_heads). Token t of
// sequence b is row b*T+t, and a head is head_dim columns starting at head*head_dim. If q, k and v are views of a
// packed projection, their stride is the projection's.
typedef struct {
    int B, T, heads, kv_heads, head_dim;
    bool bidirectional; // true: no causal mask; not supported with document masking or a KV cache
} AttentionShape;

static inline AttentionShape attention_shape(const ModelShape *model, int B, int T) {
    const AttentionShape shape = {B, T, model->heads, model->kv_heads, model->head_dim, model->bidirectional};
    return shape;
}

// Returns the position of a row's token within its document, counted from 0. With document masking, reads it from
// positions (M, 1) I32. Otherwise positions.data is NULL, and each sequence of T tokens is one document.
static inline int64_t row_position(Tensor positions, int64_t row, int64_t T) {
    return positions.data ? ((const int32_t *)positions.data)[row] : row % T;
}

// Parameters of qk_norm_rope_forward(). This operation first clips q, k and v to [-clip, clip]. Then it applies an
// RMSNorm to q and k, over all heads together or over each head. Last, it applies RoPE to q and k by row_position().
typedef struct {
    AttentionShape shape;
    Tensor positions; // position of each token in its document; data is NULL without document masking
    // RoPE table (T, head_dim) FP32: a row contains the cosines of head_dim / 2 angles, then their sines. data is NULL
    // if there is no RoPE
    Tensor rope_table;
    // weights of the norms of q and k: (1, head_dim), or as wide as q and k; data is NULL if there is no norm
    Tensor q_weight, k_weight;
    float eps, clip; // clip 0: values are not clipped
} QkRope;

// True if qk_norm_rope_forward() changes any value. False for GPT-2.
static inline bool qk_norm_rope_active(const QkRope *rope) {
    return rope->rope_table.data || rope->q_weight.data || rope->clip > 0;
}

// A parameter with its gradient and optimizer states.
typedef struct {
    Weight weight; // weight (BF16 or FP32), which the optimizer updates
    Tensor grad;   // gradient (BF16 or FP32), of the weight's shape
    Tensor m, v;   // moments: FP32, BF16, or 8-bit with SCALE_EXPAND. With Muon, m is the momentum, and v has no data
    Tensor update; // Muon: unscaled scratch matrix for the update, of the weight's shape; data is NULL with AdamW
    // master weights: FP32, or with split16 the low 16 bits (U16) that complete a BF16 weight to FP32. data is NULL
    // with --master none, and if the weight itself is FP32
    Tensor master;
    bool decay;     // true: AdamW's decoupled weight decay applies
    float rate;     // factor that multiplies the step's learning rate for this parameter; 0 means 1
    uint64_t index; // index of the parameter's first element among all parameters; seeds stochastic rounding
} Parameter;

// Statistics of a whole FP8 tensor that show how well its scales fit.
typedef struct {
    // number of FP8 values at the format's maximum. Of the values that share a scale, one such value does not count,
    // because scaling can map their amax to the maximum
    uint64_t saturated;
    uint64_t zero;    // number of FP8 values that are 0, including values too small for the scale
    uint64_t clamped; // number of groups of 8-bit moments whose exponent k is at an end of its range
    uint32_t amax;    // FP32 bits of the largest dequantized magnitude
    uint32_t largest; // lower 7 bits of the FP8 value with the largest magnitude
} Health;

// Counts of a tensor's FP8 values that represent the original values inaccurately.
typedef struct {
    uint64_t codes; // total number of FP8 values
    uint64_t saturated, zero, subnormal;
} CodeCounts;

// Inner products of two tensors a and b, regarded as vectors: <a, b>, <a, a> and <b, b>.
typedef struct {
    double ab, aa, bb;
} InnerProducts;

// Sums that show outliers of a tensor x. Each element has z = x² or, with second moments v, z = x² / v.
typedef struct {
    InnerProducts sums; // ab: sum of z, aa: sum of z², bb: number of elements
    uint32_t amax;      // FP32 bits of the largest |x|
} Outliers;

static inline float parameter_rate(const Parameter *p) {
    return p->rate > 0 ? p->rate : 1.0f;
}

typedef struct Exec Exec;

typedef struct Ops {
    const char *name;  // "cpu" or "cuda"
    DeviceKind device; // device whose memory stores the tensors and the workspace

#define DEVICE_FUNCTION(name, result, parameters) result(*name) parameters;
#include "device_functions.h"
#undef DEVICE_FUNCTION
#define OPERATION(name, parameters) void(*name) parameters;
#include "operations.h"
#undef OPERATION
} Ops;

// The device that operations run on, and their workspace. `backend` is private data of the backend that `ops` names.
struct Exec {
    const Ops *ops;
    void *backend;
    void *workspace; // scratch memory on the device, at least ops_workspace() bytes, for use within one operation
    size_t workspace_bytes;
    bool trains; // true in a training step, false in an evaluation or a sample
    // state of the current step in device memory. Quantizing an inf or NaN sets state->nonfinite. NULL: not allocated
    // yet
    StepState *state;
    int rank, ranks; // rank of this process, and number of processes in the run
    int local_rank;  // rank among the processes of this machine, which selects the GPU
};

// Applies RoPE's backward in place to d, which is dq or dk with `heads` heads. Does nothing if rope_table has no data.
// For attention_backward() of backends whose attention kernels do not apply RoPE's backward.
static inline void qk_norm_rope_rotate_back(Exec *exec, Tensor d, int heads, Tensor positions, Tensor rope_table,
                                            AttentionShape shape) {
    const Tensor none = no_tensor();
    QkRope h = {shape, positions, rope_table, none, none, 0.0f, 0.0f};
    h.shape.heads = heads, h.shape.kv_heads = 0;
    d.amax = NULL; // d is a column range of a packed tensor
    exec->ops->qk_norm_rope_backward(exec, d, none, none, d, h, false);
}

const Ops *cpu_ops(void);
#ifdef COAT_CUDA
const Ops *cuda_ops(void);
bool cuda_present(void); // true if an NVIDIA driver reports a GPU, even one that this program cannot use
// Writes to `why` the reason if a GPU used by this machine's processes does not support FP8 matmuls. Writes "" if all
// these GPUs support them, or if there is no GPU.
void cuda_find_fp8(int local_rank, int local_ranks, char *why, size_t size);
#endif

// Size of Exec.workspace. Operations run one at a time and share one workspace, which is large enough for each of them.
typedef struct {
    const char *name; // name that --plan=json prints for the workspace, such as "attention_backward"
    size_t bytes;
} WorkspaceNeed;
// Return the size of the workspace that a backend needs for a configuration. Work without a GPU.
WorkspaceNeed cpu_workspace(const Config *config);
#define MATMUL_WORKSPACE_BYTES ((size_t)32 << 20) // size of cuBLASLt's workspace that NVIDIA recommends for Hopper
#define EMBED_SORT_CHUNK 64 // number of sorted tokens per chunk of the embedding gradient on the GPU
WorkspaceNeed cuda_workspace(const Config *config);
static inline WorkspaceNeed ops_workspace(const Config *config, DeviceKind device) {
    return device == DEVICE_CUDA ? cuda_workspace(config) : cpu_workspace(config);
}

C_LINKAGE_END
