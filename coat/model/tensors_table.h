// The table of tensors as it is written down, before a configuration gives it formats and sizes: for tensors.c,
// which holds it, and tensors_layout.c and tensors_activations.c, which resolve it.
#pragma once
#include "tensors.h"

// Symbolic extents of a row; resolved by the configuration.
typedef enum {
    DIM_1,
    DIM_C,      // channels
    DIM_QKV,    // (heads + 2 kv_heads) * head_dim
    DIM_ATT,    // heads * head_dim
    DIM_KV,     // kv_heads * head_dim
    DIM_D,      // head_dim
    DIM_QNORM,  // width of the norm of q: head_dim, or heads * head_dim
    DIM_KNORM,  // of k
    DIM_F,      // feed-forward width
    DIM_H,      // of the activation's input: F, or gate and up, 2 F
    DIM_VP,     // padded vocabulary
    DIM_POS,    // positions
    DIM_M,      // tokens of a micro-batch
    DIM_BH,     // sequences * heads
    DIM_T,      // tokens of a sequence
    DIM_CHUNK,  // tokens whose logits exist at a time
    DIM_STATE,  // bytes of StepState, generously
    DIM_L,      // layers
    DIM_COUNTS, // bytes of a layer's CodeCounts, of all gradients, with their transposes
    DIM_INNER   // bytes of InnerProducts
} Dim;

// How a row's storage follows from the recipe: its own memory that lasts, scratch that it shares with what is alive in
// other stages, or its source's. "plain" is BF16, or FP32 with --precision fp32.
typedef enum {
    RULE_PARAMETER,
    RULE_RESIDENT, // alive in all stages; of each layer one only where backward repeats blocks, which does not make it
    RULE_SAVED,    // from forward to backward, in every recipe
    RULE_GROUPS,   // saved: plain, or E4M3 per group (--saved coat)
    RULE_SCRATCH,  // alive between its stages only
    RULE_ALIAS,    // its source: what one of several matmuls leaves in the memory that they share, or another name
    RULE_HEADS, // q, k and v as attention reads them: their matmul's memory where it can be rotated back, else scratch
    RULE_HIDDEN_OUT,  // the matmul's output that becomes h: h itself if that is plain, else scratch
    RULE_BRANCH_GRAD, // the gradient of what a half of a block adds: that of the residual stream, or behind a norm of
                      // its own scratch (norms after)
    RULE_RESIDUAL,    // the residual stream at one point: the norm's saved input, or the carried buffer; where norms
                      // come after, the matmul's saved input instead
    RULE_BLOCK_IN,    // the same, but saved where backward makes blocks again from it
    RULE_LOGITS,      // scratch, shorter where their gradient has memory of its own
    // What a matmul reads: its source, or in FP8 codes in scratch. A plain one without a source, or wider than it (of
    // h, gate and up), is scratch too.
    RULE_OPERAND,
    // An operand that is saved unless backward makes it again, as it cannot the residual stream (norms after).
    RULE_NORM_OUT,
    RULE_ACT_OUT // likewise
} Rule;

// The format of what has no codes.
typedef enum { AS_PLAIN, AS_FP32, AS_I32, AS_BYTES, AS_GRADS } Stored;

// Which models, or runs of them, have a tensor.
typedef enum {
    ALWAYS,
    WITH_NORM_WEIGHTS,
    WITH_NORM_BIASES,
    WITH_BIASES,
    WITH_QKV_BIASES,
    WITH_POSITIONS,
    WITH_OWN_HEAD,
    WITH_QK_NORM,
    WITH_MEANS,
    WITH_ROTATIONS,
    // by the run, of activations
    WITH_DOCUMENT_MASK, // that are apart
    WITH_CARRIED,       // no saved tensor holds the residual stream (--saved coat; norms after)
    WITH_COUNTS,        // gradients have codes that are to be counted
    WITH_COMPARISONS    // FP8 matmuls are to be compared with BF16's
} When;

// Codes that are made a row at a time have a scale per row with --scaling token, which is known with the row, where the
// result of their matmul is read by a kernel that can multiply by it: those of the attention and of the activation
// function, read by residual additions; and in --saved coat the feed-forward layer's input, and its output's gradient.
// (Attention, which reads qkv, and norms and activations of plain tensors cannot. Gradients that are transposed as they
// are quantised have one scale per format, for which their producers leave the maxima.)
typedef enum { ONE_SCALE, ROWS_BY_TOKEN, ROWS_BY_TOKEN_IN_COAT } RowScales;

// What is not named is absent: no tensor is derived from the first parameter, so that 0 is none.
typedef struct {
    TensorRow row;
    Rule rule;
    Dim rows, cols;
    Stage first, last; // of an activation
    When when;
    // parameters
    bool in_block; // a matmul of the blocks reads it: it has FP8 codes where these are FP8, as the head's by --head
    bool small;    // keeps FP32 moments, as all that have one dimension
    // activations
    Stored stored;
    TensorId input;  // of a residual: the matmul's input that it is, where norms come after; of a block's matrix: its
                     // matmul's
    TensorId source; // what an alias rule falls back to
    TensorId transpose_of; // whose codes these are, transposed: they share the scale
    TensorId matmul_of;    // whose matmul this is: it carries scales per row along
    TensorId keeps;        // what is kept as long as this is
    bool head, gradient;   // of an operand: the head's matmul reads it, and it is a gradient
    bool maxima; // maxima of the rows lie with it: a gradient's, left by what makes it for what quantises it; or
                 // codes', between the passes of the operation that makes them
    RowScales scales;
} TableRow;

extern const TableRow tensor_table[TENSOR_COUNT];

// Whether a model has this tensor, in some runs.
bool table_row_exists(const TableRow *row, const ModelShape *shape);

// The extents that follow from the shape alone, and all of them.
int64_t shape_extent(Dim dim, const ModelShape *shape);
int64_t tensor_extent(Dim dim, const Config *config);

// Whether a run has this activation, and what its rule makes of the layout of a plain saved one.
bool activation_exists(const TableRow *row, const Config *config);
void activation_resolve(const TableRow *row, const Config *config, TensorLayout *layout);
