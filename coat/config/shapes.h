// The shapes of models: architectures, which fix what a block is made of, and the sizes of models by name.
#pragma once
#include "config.h"

#ifdef __cplusplus
extern "C" {
#endif

// What Hugging Face's config.json calls model_type.
typedef enum {
    ARCHITECTURE_GPT2,
    ARCHITECTURE_LLAMA, // Llama 2 and 3, Mistral, TinyLlama, SmolLM2
    ARCHITECTURE_OLMO,
    ARCHITECTURE_OLMO2,
    ARCHITECTURE_QWEN2,
    ARCHITECTURE_QWEN3,
    ARCHITECTURE_COUNT
} Architecture;

const char *architecture_name(Architecture architecture); // "gpt2", "llama", ...

// The deviation that all matrices but residual projections are drawn with; 0: each has its own.
static inline double init_deviation(InitKind kind) {
    return kind == INIT_KIND_MITCHELL ? 0.0 : 0.02;
}

// Sets the shape to an architecture's usual settings, without sizes.
void architecture_shape(Architecture architecture, ModelShape *shape);

// The architecture that a shape is of; ARCHITECTURE_COUNT: of none.
Architecture shape_architecture(const ModelShape *shape);

#define DEEPEST_MODEL 96 // of dN

// Sets the shape of a named model: gpt2, gpt2-medium, gpt2-large, gpt2-xl, d1 ... d96, llm.c's descriptors gpt2:dN and
// gpt3:cN; llama2-7b and the others of the table; llama:d1 ... d96, olmo:dN, olmo2:dN, qwen2:dN, qwen3:dN,
// which are as deep and 64 channels wide for each layer. GPT-2's have its vocabulary, as those by depth.
// Returns false if there is no such name.
bool model_shape_named(const char *name, ModelShape *shape);

// Whether a named model's vocabulary is its own, which may have rows that no token has. Those by depth and GPT-2's take
// that of a tokenizer.
bool model_keeps_vocabulary(const char *name);

// A list of names for messages.
const char *model_names(void);

// Name number i of one size, without those by depth and llm.c's descriptors; NULL: there is none.
const char *model_name(int i);

// A GPT-2 shape from its numbers, checked for range and divisibility; ffn 0 means 4 * channels. `path`, which says
// them, is for messages. Errors: EXIT_DATA.
bool gpt2_shape(ModelShape *shape, int64_t layers, int64_t heads, int64_t channels, int64_t ffn, int64_t vocab,
                int64_t positions, const char *path, Error *err);

// Sets vocab and vocab_padded; and the ids of the two vocabularies that a number tells, GPT-2's and bytes.
void model_shape_vocab(ModelShape *shape, int vocab);

// Sets the ids that begin and end texts, -1: none, as those outside the vocabulary are.
void model_shape_ids(ModelShape *shape, int begin, int end);

// One more id that ends texts, where the vocabulary has it; of too many the last gives way.
void model_shape_add_eos(ModelShape *shape, int id);

// The width of the feed-forward layer where nothing says it: 4 channels, or with gate and up two thirds of that,
// rounded up to a multiple of 128.
int shape_usual_ffn(const ModelShape *shape);

// q, k and v together.
static inline int64_t shape_qkv_width(const ModelShape *shape) {
    return (int64_t)(shape->heads + 2 * shape->kv_heads) * shape->head_dim;
}

// The activation's input: the feed-forward width, or gate and up beside each other.
static inline int64_t shape_hidden_width(const ModelShape *shape) {
    return (int64_t)shape->ffn * (shape->activation == ACT_SWIGLU ? 2 : 1);
}

// Whether attention reads q, k and v as their matmul made them, but for the rotation, which can be undone.
static inline bool shape_changes_heads(const ModelShape *shape) {
    return shape->qk_norm != QK_NORM_NONE || shape->clip_qkv > 0;
}

#ifdef __cplusplus
}
#endif
