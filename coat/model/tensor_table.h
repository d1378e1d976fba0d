// The rows of the table of tensors: their types, the table itself, and the conditions under which a tensor exists.
// Only tensors.c and tensor_layouts.c include this file; all others use tensors.h.
#pragma once
#include "tensors.h"

// Rules for where an activation is stored, and in which format. "Unscaled" means BF16, or FP32 with --precision fp32.
// "Scratch" means memory that tensors of other stages share.
typedef enum {
    RULE_SAVED,    // saved for backward in separate memory, in every recipe
    RULE_RESIDENT, // stored in separate memory that outlives the micro-batch
    RULE_GROUPS,   // saved for backward: unscaled, or E4M3 with a scale per group (--saved coat)
    RULE_SCRATCH,
    RULE_ALIAS,         // stored in the memory of the tensor `source`
    RULE_LOGITS,        // logits: scratch, alive in fewer stages if their gradient has separate memory
    RULE_QKV_ROPE,      // q, k, v after RoPE: in QKV's memory; scratch if clipping or QK-norm changes q, k, v
    RULE_FC_OUT,        // fc matmul's output: in H's memory if H is unscaled, else scratch
    RULE_SUBLAYER_GRAD, // gradient of a sublayer's output: in DRESID's memory; scratch with post-norm
    // residual stream: stored in the norm's saved input or, with post-norm, in the next matmul's saved input, if that
    // tensor is unscaled; otherwise in RESID
    RULE_RESIDUAL,
    // residual stream before a block: as RULE_RESIDUAL, but saved if --recompute 3 needs the stream and X_IN does not
    // contain it
    RULE_BLOCK_IN,
    // operand of a matmul: scratch if the operand is FP8 or `source` has a different width, else in the memory of
    // `source`
    RULE_OPERAND,
    RULE_NORM_OUT, // matmul operand that a norm computes: saved, or scratch if backward recomputes it
    RULE_ACT_OUT   // matmul operand that the activation function computes: saved, or scratch if backward recomputes it
} Rule;

// Format of a tensor that is not FP8. AS_UNSCALED: BF16 or FP32. AS_GRADS: the format of --grads.
typedef enum { AS_UNSCALED, AS_FP32, AS_I32, AS_BYTES, AS_GRADS } Stored;

// Conditions on the model or the run under which a tensor exists.
typedef enum {
    ALWAYS,
    // conditions on the model
    WITH_NORM_WEIGHTS,
    WITH_NORM_BIASES,
    WITH_BIASES,
    WITH_QKV_BIASES,
    WITH_POSITIONS,
    WITH_OWN_HEAD,
    WITH_QK_NORM,
    WITH_MEANS, // LayerNorm, with or without weights
    WITH_ROPE,
    WITH_IMAGES,     // vision-language models
    WITH_CLASS_ROW,  // CLIP
    WITH_PATCH_BIAS, // SigLIP
    WITH_PROJECTOR_NORM,
    // conditions on the run, for activations only
    WITH_DOCUMENT_MASK, // exists if documents in a sequence cannot attend to each other
    WITH_RESID,         // exists if no saved tensor contains the unscaled residual stream
    WITH_COUNTS,        // exists if FP8 health counts the values of FP8 gradients
    WITH_HEALTH,        // exists if training logs its health
    WITH_COMPARISONS,   // exists if FP8 health compares an FP8 wgrad with a BF16 wgrad
    WITH_MUON           // exists if Muon updates the blocks' matrices
} When;

// Granularity of an FP8 operand's scales. A matmul ignores scales per token (SCALE_ROW), so the kernel that reads the
// matmul's output must multiply the output by the scales. Therefore the choice depends on that kernel:
//   ROWS_BY_TOKEN: one scale per token, because a residual addition reads the output
//   ROWS_BY_TOKEN_IN_COAT: as ROWS_BY_TOKEN with --saved coat, otherwise as ONE_SCALE, because the activation function
//       or the MLP norm's backward reads the output
//   ONE_SCALE: one scale per tensor, because another kernel, such as attention, reads the output. A gradient that one
//       pass quantizes and transposes has two such scales, one for dgrad's format and one for wgrad's (E5M2)
// With recipe coat-paper, every operand has one scale.
typedef enum { ONE_SCALE, ROWS_BY_TOKEN, ROWS_BY_TOKEN_IN_COAT } RowScales;

// Models that a tensor is part of. A vision-language model has two: the language model (PART_TOKENS), and the vision
// tower with the projector (PART_IMAGES). PART_BLOCKS: tensors of the blocks, which are part of both models.
typedef enum { PART_BLOCKS, PART_TOKENS, PART_IMAGES } Part;

// A row of the table of tensors. In its TensorId fields, 0 means "none", because no row refers to tensor 0 (WTE).
typedef struct {
    TensorRow row;
    // fields of an activation
    Rule rule;
    Stage first, last; // first and last stage that use the tensor
    Stored stored;
    TensorId source;       // tensor whose memory this tensor may use
    TensorId transpose_of; // this tensor is the FP8 transpose of tensor transpose_of
    TensorId matmul_of;    // for a matmul's output: the operand whose scales per token the output may have
    bool head;             // true: operand of the output head's matmuls
    bool gradient;         // true: operand that is a gradient
    // true: the tensor has row amaxes, from which a per-tensor scale is computed. A gradient's amaxes are used when the
    // gradient is quantized; an FP8 operand's amaxes in the second pass of the operation that writes the operand
    bool amax;
    RowScales scales;
    // fields of activations and parameters
    Part part;
    When when;
    // for a block's weight matrix: the activation that its forward matmul reads; for the residual stream with
    // post-norm: the next matmul's input, which has the same values and so can share memory
    TensorId input;
    Dim pieces[MAX_PIECES]; // numbers of rows (of columns if there is one row) of a parameter's pieces; none: one piece
} TableRow;

extern const TableRow tensor_table[TENSOR_COUNT];

// Returns the number of elements of a dimension in this run.
int64_t tensor_extent(Dim dim, const Config *c);

// True if a model of this shape has the tensor. Ignores the conditions on the run.
bool model_has_tensor(const TableRow *row, const ModelShape *shape);

// True if this run has the tensor: model_has_tensor(), and the conditions on the run hold.
bool run_has_tensor(const TableRow *row, const Config *c);

static inline bool head_in_fp8(const Config *c) {
    return config_fp8_head(c) && c->recipe.precision != PRECISION_FP32;
}

// True if no saved tensor contains the unscaled residual stream, so that the tensor RESID stores the stream between
// blocks.
static inline bool needs_resid(const Config *c) {
    return c->shape.norm_place == NORM_POST ? blocks_in_fp8(&c->recipe) : saves_groups(&c->recipe);
}
