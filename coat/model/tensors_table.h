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

// How a row's format and storage follow from the recipe. "plain" is BF16, or FP32 with --precision fp32.
typedef enum {
    RULE_PARAMETER,
    RULE_ALIAS,     // its source
    RULE_INPUT,     // I32, resident
    RULE_POSITIONS, // the same, where documents are apart
    RULE_ROTATIONS, // FP32, resident
    RULE_STATE,     // bytes, resident
    RULE_SAVED,     // plain, saved from forward to backward in every recipe
    RULE_STATISTIC, // FP32, saved
    RULE_HEADS, // q, k and v as attention reads them: their product's memory where it can be rotated back, else scratch
    RULE_SCRATCH,       // plain, alive between its stages only
    RULE_PRODUCT_OUT,   // what one of several products leaves in the memory that they share
    RULE_LOSSES,        // FP32, resident
    RULE_LOGITS,        // plain scratch, counted in a category of its own
    RULE_LOGITS_GRAD,   // their gradient as the head's products read it: the logits' memory, or E5M2 per tensor
    RULE_LOGITS_GRAD_T, // transposed
    RULE_HEAD_IN,       // input of the head: plain or E4M3 per tensor (--head fp8)
    RULE_HEAD_IN_T,     // as the head's weight gradient reads it
    RULE_CARRIED,       // the residual stream where no saved tensor holds it (--saved coat)
    RULE_RESIDUAL,      // the residual stream at one point: the norm's saved input, or the carried buffer; where norms
                        // come after, the product's saved input instead
    RULE_BRANCH_GRAD, // the gradient of what a half of a block adds: that of the residual stream, or behind a norm of its
                      // own scratch (norms after)
    RULE_NORM_INPUT,   // saved: plain, or E4M3 per group (--saved coat)
    RULE_LAST_INPUT,   // the final norm's input: plain in every recipe
    RULE_HIDDEN,       // h: saved, plain or E4M3 per group
    RULE_HIDDEN_OUT,   // the product that becomes h: h itself where that is plain, else scratch
    RULE_CENTRE,       // resident, where products read norms less their channels' means: that of one norm
    RULE_CENTRED_BIAS, // likewise, and plain: the product's bias, with what was taken out
    RULE_NORM_OUT,     // input of a product: plain or E4M3 per tensor; saved unless it is rebuilt, which the residual
                       // stream itself cannot be (norms after)
    RULE_ACT_OUT,
    RULE_ATT_OUT_Q,  // the attention's output as the product reads it: itself, or E4M3 per tensor
    RULE_NORM_OUT_T, // the same three as the weight gradient reads them
    RULE_ACT_OUT_T,
    RULE_ATT_OUT_T,
    RULE_GRAD_Q, // a gradient as the products read it: itself, or E5M2 or E4M3
    RULE_GRAD_QT,
    RULE_HIDDEN_GRAD_Q, // the same of h, which is wider than its source where it is gate and up: a plain one has memory of
                        // its own then
    RULE_HIDDEN_GRAD_QT,
    RULE_CODE_COUNTS,   // bytes, resident, where gradients have codes that are to be counted
    RULE_REFERENCE,     // a weight gradient once more, scratch, where FP8 products are to be compared with BF16's; its
                        // source is kept until then
    RULE_INNER_PRODUCTS // bytes, resident, there too
} Rule;

// Which models have a tensor.
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
    WITH_ROTATIONS
} When;

// Codes that are made a row at a time have a scale per row with --scaling token, which is known with the row, where the
// result of their product is read by a kernel that can multiply by it: those of the attention and of the activation
// function, read by residual additions; and in --saved coat the feed-forward layer's input, and its output's gradient.
// (Attention, which reads qkv, and norms and activations of plain tensors cannot. Gradients that are transposed as they
// are quantised have one scale per format, for which their producers leave the maxima.)
typedef enum { ONE_SCALE, ROWS_BY_TOKEN, ROWS_BY_TOKEN_IN_COAT } RowScales;

// Every tensor begins at a multiple of it: what the libraries' fastest paths ask for.
#define TENSOR_ALIGNMENT 256
static inline size_t align_up(size_t bytes) {
    return (bytes + TENSOR_ALIGNMENT - 1) / TENSOR_ALIGNMENT * TENSOR_ALIGNMENT;
}

// What is not named is absent: no tensor is derived from the first parameter, so that 0 is none.
typedef struct {
    TensorRow row;
    Rule rule;
    Dim rows, cols;
    Stage first, last; // of an activation
    When when;
    // parameters
    bool in_block; // a product of the blocks reads it: it has FP8 codes where these are FP8, as the head's by --head
    bool small;    // keeps FP32 moments, as all that have one dimension
    // activations
    TensorId input;  // of a residual: the product's input that it is, where norms come after; of a block's matrix: its
                     // product's
    TensorId source; // what an alias rule falls back to
    TensorId transpose_of; // whose codes these are, transposed: they share the scale
    TensorId product_of;   // whose product this is: it carries scales per row along
    bool maxima; // maxima of the rows lie with it: a gradient's, left by what makes it for what quantises it; or
                 // codes', between the passes of the operation that makes them
    RowScales scales;
} TableRow;

extern const TableRow tensor_table[TENSOR_COUNT];

// Whether a model has this tensor.
bool table_row_exists(const TableRow *row, const ModelShape *shape);

// The extents that follow from the shape alone, and all of them.
int64_t shape_extent(Dim dim, const ModelShape *shape);
int64_t tensor_extent(Dim dim, const Config *config);

// Changes a plain saved layout into the one that the activation's rule asks for.
void tensor_resolve_activation(TensorId id, const Config *config, TensorLayout *layout);
