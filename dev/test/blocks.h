// Transformer block variants of the whole-model tests: GPT-2's block, and a small model for each architecture option.
#pragma once
#include "coat/config/shapes.h"

typedef struct {
    const char *name;
    Architecture architecture;
    bool tied_head;
    int shared, head_dim; // shared: query heads per key-value head. head_dim: width of a head; 0: channels / heads
    // stretched: --rope-factor (0: no RoPE scaling), used with --rope-positions 8. clip: --clip-qkv, in standard
    // deviations of q, k and v
    float stretched, clip;
    QkNormKind qk_norm; // replaces the architecture's QK norm; QK_NORM_NONE: keeps it
} Block;

static const Block blocks[] = {
    {"gpt2", ARCHITECTURE_GPT2, true, 1, 0, 0, 0, QK_NORM_NONE},
    {"llama, untied head", ARCHITECTURE_LLAMA, false, 1, 0, 0, 0, QK_NORM_NONE},
    {"llama 3.2, grouped heads", ARCHITECTURE_LLAMA, true, 2, 24, 8, 0, QK_NORM_NONE},
    {"olmo, clip", ARCHITECTURE_OLMO, true, 1, 0, 0, 2.0f, QK_NORM_NONE},
    {"olmo, untied head", ARCHITECTURE_OLMO, false, 1, 0, 0, 0, QK_NORM_NONE},
    {"olmo2, grouped heads", ARCHITECTURE_OLMO2, false, 2, 0, 0, 0, QK_NORM_NONE},
    {"qwen2, grouped heads", ARCHITECTURE_QWEN2, true, 2, 0, 0, 0, QK_NORM_NONE},
    {"qwen3, wide heads", ARCHITECTURE_QWEN3, false, 2, 40, 0, 0, QK_NORM_HEAD},
    {"norm over rows of q and k", ARCHITECTURE_LLAMA, true, 1, 0, 0, 0, QK_NORM_ROW},
};
enum { BLOCKS = sizeof blocks / sizeof *blocks };
static const Block *block = blocks; // the block variant under test

// Changes the GPT-2 shape s to the block variant under test. Doubles the number of heads if it is not a multiple of
// block->shared.
static inline void set_block(ModelShape *s) {
    const ModelShape gpt2 = *s;
    if (block == blocks) return;
    architecture_shape(block->architecture, s);
    s->layers = gpt2.layers;
    s->channels = gpt2.channels;
    s->head_dim = block->head_dim > 0 ? block->head_dim : gpt2.head_dim;
    s->heads = gpt2.heads % block->shared ? 2 * gpt2.heads : gpt2.heads;
    if (s->heads != gpt2.heads && block->head_dim == 0) s->head_dim /= 2;
    s->kv_heads = s->heads / block->shared;
    s->ffn = gpt2.channels / 16 * 48;
    s->vocab = gpt2.vocab;
    s->vocab_padded = gpt2.vocab_padded;
    s->positions = gpt2.positions;
    s->tied_head = block->tied_head;
    s->clip_qkv = block->clip * 0.02f * sqrtf((float)s->channels);
    s->init = INIT_KIND_NORMAL; // normal initialization, because the tests' error limits were measured with it
    if (block->stretched > 0) s->rope = (RopeScaling){block->stretched, 1.0f, 4.0f, 8};
    if (block->qk_norm != QK_NORM_NONE) s->qk_norm = block->qk_norm;
}
