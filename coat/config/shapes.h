// Model shapes: the settings that each architecture implies, and the sizes of models known by name (gpt2, llama3-8b,
// ...).
#pragma once
#include "config.h"

C_LINKAGE_BEGIN

// Architectures of models, named like model_type in Hugging Face's config.json.
typedef enum {
    ARCHITECTURE_GPT2,
    ARCHITECTURE_LLAMA, // Llama, Llama 3, Mistral, TinyLlama and SmolLM2
    ARCHITECTURE_OLMO,
    ARCHITECTURE_OLMO2,
    ARCHITECTURE_QWEN2,
    ARCHITECTURE_QWEN3,
    ARCHITECTURE_COUNT
} Architecture;

const char *architecture_name(Architecture architecture); // name such as "gpt2" or "llama"

// Returns the standard deviation of the initial weights of all matrices except residual projections. Returns 0 if the
// deviation differs between matrices.
static inline double init_deviation(InitKind kind) {
    return kind == INIT_KIND_MITCHELL ? 0.0 : 0.02;
}

// Sets the settings of the shape to the architecture's usual values, and the sizes to 0.
void architecture_shape(Architecture architecture, ModelShape *shape);

// Returns how many settings of `shape` the architecture does not support, and sets *flag to the flag of the first such
// setting. Leaves *flag unchanged if the architecture supports all settings.
int shape_mismatches(const ModelShape *shape, Architecture architecture, const char **flag);

// Returns the first architecture that supports all settings of `shape`; ARCHITECTURE_COUNT if none does.
Architecture shape_architecture(const ModelShape *shape);

#define MAX_MODEL_DEPTH 96 // largest depth N of a model named by its depth, such as dN

// Sets the shape of a model known by name: gpt2, gpt2-medium, gpt2-large, gpt2-xl; llama2-7b and the other rows of the
// table; by depth d1 ... d96 and llama:dN, olmo:dN, olmo2:dN, qwen2:dN, qwen3:dN, with 64 channels per layer; llm.c's
// gpt2:dN and gpt3:cN. GPT-2 and models by depth have GPT-2's vocabulary. Returns false if the name is unknown.
bool model_shape_named(const char *name, ModelShape *shape);

// True if the named model has a fixed vocabulary size, which may exceed the tokenizer's. GPT-2 and models named by
// depth get the size of the tokenizer's vocabulary instead.
bool model_keeps_vocabulary(const char *name);

// Returns the known model names as a list for messages.
const char *model_names(void);

// Returns the i-th name of a model with fixed sizes; NULL after the last one.
const char *model_name(int i);

// Sets a GPT-2 shape from its sizes and checks their range and divisibility. ffn 0: 4 * channels. path: source of the
// sizes, for errors (EXIT_DATA).
bool gpt2_shape(ModelShape *shape, int64_t layers, int64_t heads, int64_t channels, int64_t ffn, int64_t vocab,
                int64_t positions, const char *path, Error *err);

// Sets the vocabulary's size and padded size. Also sets the BOS and EOS ids if `vocab` is the size of GPT-2's or of the
// byte vocabulary.
void model_shape_vocab(ModelShape *shape, int vocab);

// Sets the BOS and EOS ids of a model shape. An id outside the vocabulary, such as -1, means that there is none.
void model_shape_ids(ModelShape *shape, int begin, int end);

// Adds an EOS id to a model shape if it is in the vocabulary. If the list is full, replaces the last id.
void model_shape_add_eos(ModelShape *shape, int id);

// Returns the usual inner width of the MLP: 4 * channels; for SwiGLU two thirds of that, rounded up to a multiple of
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

// True if QK-norm or clipping changes q and k between their matmul and attention. Returns false for RoPE alone, because
// RoPE can be undone.
static inline bool shape_changes_qkv(const ModelShape *shape) {
    return shape->qk_norm != QK_NORM_NONE || shape->clip_qkv > 0;
}

C_LINKAGE_END
