// Shapes of models: the settings of each architecture, and the sizes of models known by name, such as llama3-8b.
#pragma once
#include "config.h"

C_LINKAGE_BEGIN

// Architectures of models, named like model_type in Hugging Face's config.json.
typedef enum {
    ARCHITECTURE_GPT2,
    ARCHITECTURE_LLAMA, // architecture of Llama, Llama 3, Mistral, TinyLlama and SmolLM2
    ARCHITECTURE_OLMO,
    ARCHITECTURE_OLMO2,
    ARCHITECTURE_QWEN2,
    ARCHITECTURE_QWEN3,
    ARCHITECTURE_COUNT
} Architecture;

const char *architecture_name(Architecture architecture); // name such as "gpt2" or "llama"

// Returns the standard deviation of a language model's initial weights, except residual projections (weights.h).
// Returns 0 if the deviation depends on a matrix's width.
static inline double init_deviation(InitKind kind) {
    return kind == INIT_KIND_MITCHELL ? 0.0 : 0.02;
}

// Sets all settings of the shape (norms, activation, positions, biases, --init and others) to the architecture's usual
// values, and all sizes to 0.
void architecture_shape(Architecture architecture, ModelShape *shape);

// Returns the number of settings of `shape` that the architecture does not support. If there are any, sets *flag to the
// flag of the first one.
int shape_mismatches(const ModelShape *shape, Architecture architecture, const char **flag);

// Returns the first architecture that supports all settings of `shape`; ARCHITECTURE_COUNT if none does.
Architecture shape_architecture(const ModelShape *shape);

#define MAX_MODEL_DEPTH 96 // largest depth N of a model named by its depth, such as dN

// Returns the depth N of the name "dN", 1 to MAX_MODEL_DEPTH; 0 if the name has a different form.
int model_depth(const char *name);

// Sets the shape of a model known by name. Returns false if the name is unknown. Known names are:
//   fixed sizes   gpt2, gpt2-medium, gpt2-large, gpt2-xl, llama2-7b and all others of model_names()
//   by depth      dN, llama:dN, olmo:dN, olmo2:dN, qwen2:dN, qwen3:dN: 64 channels per layer, GPT-2's vocabulary.
//                 d24, d36 and d48 instead have the channels of gpt2-medium, gpt2-large and gpt2-xl
//   of llm.c      gpt2:dN (llm.c's widths), gpt3:cN (N channels)
bool model_shape_named(const char *name, ModelShape *shape);

// True if the name fixes the model's vocabulary size, which may exceed the tokenizer's. False for GPT-2 and models
// named by depth, whose vocabulary has the tokenizer's size.
bool model_keeps_vocabulary(const char *name);

// Returns the known model names as a list for messages.
const char *model_names(void);

// Returns the i-th name of a model with fixed sizes; NULL after the last one.
const char *model_name(int i);

// Sets a GPT-2 shape from its sizes. Fails (EXIT_DATA) if a size is out of range, channels is not a multiple of heads,
// or a head is too wide. ffn 0: 4 * channels. path: file that the sizes come from, for the error message.
bool gpt2_shape(ModelShape *shape, int64_t layers, int64_t heads, int64_t channels, int64_t ffn, int64_t vocab,
                int64_t positions, const char *path, Error *err);

// Sets the shape's vocabulary size and padded size, and its BOS and EOS ids: the last token if `vocab` is the size of
// GPT-2's or the byte vocabulary, otherwise none.
void model_shape_vocab(ModelShape *shape, int vocab);

// Sets the BOS and EOS ids of a model shape. An id outside the vocabulary, such as -1, means that the vocabulary has no
// such token.
void model_shape_ids(ModelShape *shape, int begin, int end);

// Adds an EOS id to a model shape if it is in the vocabulary. If the list is full, replaces the last id.
void model_shape_add_eos(ModelShape *shape, int id);

// Returns the usual inner width of the MLP: 4 * channels or, with SwiGLU, 8/3 * channels rounded up to a multiple of
// 128.
int shape_usual_ffn(const ModelShape *shape);

// Returns the number of columns of q, k and v together.
static inline int64_t shape_qkv_width(const ModelShape *shape) {
    return (int64_t)(shape->heads + 2 * shape->kv_heads) * shape->head_dim;
}

// Returns the width of the activation function's input: ffn, or 2 * ffn for SwiGLU (gate and up).
static inline int64_t shape_hidden_width(const ModelShape *shape) {
    return (int64_t)shape->ffn * (shape->activation == ACT_SWIGLU ? 2 : 1);
}

// True if QK-norm or clipping changes the qkv matmul's output before attention reads it. Backward then needs the output
// before the change. False for RoPE alone, because backward can undo RoPE.
static inline bool shape_changes_qkv(const ModelShape *shape) {
    return shape->qk_norm != QK_NORM_NONE || shape->clip_qkv > 0;
}

C_LINKAGE_END
