// What a model's block is made of: which flags contradict each other, as no architecture has both, and which have no
// effect.
#include "config_block.h"

#include <string.h>

#include "flags.h"

static bool learned(const ModelShape *s) {
    return s->position_kind == POSITIONS_LEARNED;
}
static bool learned_other_norm(const ModelShape *s) {
    return learned(s) && s->norm != NORM_LAYER;
}
static bool learned_swiglu(const ModelShape *s) {
    return learned(s) && s->activation != ACT_GELU_TANH;
}
static bool learned_without_biases(const ModelShape *s) {
    return learned(s) && !s->biases;
}
static bool learned_own_head(const ModelShape *s) {
    return learned(s) && !s->tied_head;
}
static bool learned_grouped(const ModelShape *s) {
    return learned(s) && s->kv_heads != s->heads;
}
static bool learned_qk_norm(const ModelShape *s) {
    return learned(s) && s->qk_norm != QK_NORM_NONE;
}
static bool learned_stretched(const ModelShape *s) {
    return learned(s) && s->rope.factor != 1.0f;
}
static bool rotary_layer_norm(const ModelShape *s) {
    return !learned(s) && s->norm == NORM_LAYER;
}
static bool rotary_gelu(const ModelShape *s) {
    return !learned(s) && s->activation != ACT_SWIGLU;
}
static bool rotary_biases(const ModelShape *s) {
    return !learned(s) && s->biases;
}
static bool after(const ModelShape *s) {
    return s->norm_place == NORM_AFTER;
}
static bool learned_after(const ModelShape *s) {
    return learned(s) && after(s);
}
static bool qk_norm_row(const ModelShape *s) {
    return s->qk_norm == QK_NORM_ROW && !after(s);
}
static bool after_other_norm(const ModelShape *s) {
    return after(s) && s->norm != NORM_RMS;
}
static bool after_other_qk_norm(const ModelShape *s) {
    return after(s) && s->qk_norm != QK_NORM_ROW;
}
static bool after_qkv_biases(const ModelShape *s) {
    return after(s) && s->qkv_biases;
}
static bool clips_without_plain(const ModelShape *s) {
    return s->clip_qkv > 0.0f && s->norm != NORM_PLAIN;
}
static bool plain_qk_norm(const ModelShape *s) {
    return s->norm == NORM_PLAIN && s->qk_norm != QK_NORM_NONE;
}
static bool plain_qkv_biases(const ModelShape *s) {
    return s->norm == NORM_PLAIN && s->qkv_biases;
}
static bool plain_stretched(const ModelShape *s) {
    return s->norm == NORM_PLAIN && s->rope.factor != 1.0f;
}
static bool qkv_biases_qk_norm(const ModelShape *s) {
    return !s->biases && s->qkv_biases && s->qk_norm != QK_NORM_NONE;
}
static bool qkv_biases_stretched(const ModelShape *s) {
    return !s->biases && s->qkv_biases && s->rope.factor != 1.0f;
}
static bool qk_norm_stretched(const ModelShape *s) {
    return s->qk_norm != QK_NORM_NONE && s->rope.factor != 1.0f;
}
static bool own_head_width(const ModelShape *s) {
    const bool fixed = learned(s) || after(s) || s->norm == NORM_PLAIN || (!s->biases && s->qkv_biases);
    return fixed && s->head_dim * s->heads != s->channels;
}

// Two flags that contradict each other, the first that holds is said.
typedef struct {
    bool (*holds)(const ModelShape *shape);
    const char *flag, *with; // their names
    const char *text;        // why
    const char *fix;
} NoBlock;

// clang-format off
static const NoBlock no_blocks[] = {
    {learned_after, "norm-place", "position-encoding", "learned positions are GPT-2's, with --norm-place before",
     "use that, or start from --model olmo2:dN"},
    {after_other_norm, "norm", "norm-place", "norms after are OLMo 2's, with --norm rms", "use that"},
    {after_other_qk_norm, "qk-norm", "norm-place", "norms after are OLMo 2's, with --qk-norm row", "use that"},
    {after_qkv_biases, "qkv-biases", "norm-place", "norms after are OLMo 2's, without biases", "remove --qkv-biases"},
    {qk_norm_row, "qk-norm", "norm-place", "norms over rows of q and k are OLMo 2's, with --norm-place after",
     "use --qk-norm none or head, or --norm-place after as in --model olmo2:dN"},
    {learned_other_norm, "norm", "position-encoding", "learned positions are GPT-2's, with --norm layer",
     "use --norm layer, or --position-encoding rotary as in --model llama:dN or olmo:dN"},
    {learned_swiglu, "activation", "position-encoding", "learned positions are GPT-2's, with --activation gelu",
     "use --activation gelu, or start from --model llama:dN"},
    {learned_without_biases, "biases", "position-encoding", "learned positions are GPT-2's, with --biases",
     "use --biases, or start from --model llama:dN"},
    {learned_own_head, "tied-head", "position-encoding", "learned positions are GPT-2's, with --tied-head",
     "use --tied-head, or start from --model llama:dN"},
    {learned_grouped, "kv-heads", "position-encoding", "learned positions are GPT-2's, with as many key and value heads as heads",
     "remove --kv-heads, or start from --model llama:dN"},
    {learned_qk_norm, "qk-norm", "position-encoding", "learned positions are GPT-2's, without norms of q and k",
     "use --qk-norm none, or start from --model qwen3:dN"},
    {learned_stretched, "rope-factor", "position-encoding", "learned positions are not rotated",
     "remove --rope-factor, or start from --model llama:dN"},
    {rotary_layer_norm, "norm", "position-encoding", "rotary positions go with --norm rms, or OLMo's --norm plain",
     "use one of them, or start from --model llama:dN or olmo:dN"},
    {rotary_gelu, "activation", "position-encoding", "rotary positions go with --activation swiglu",
     "use that, or start from --model gpt2"},
    {rotary_biases, "biases", "position-encoding", "models with rotary positions have no biases but those of q, k and v",
     "use --no-biases, with --qkv-biases for Qwen 2's"},
    {clips_without_plain, "clip-qkv", "norm", "only OLMo cuts q, k and v off, with --norm plain",
     "remove --clip-qkv, or start from --model olmo:dN"},
    {plain_qk_norm, "qk-norm", "norm", "plain norms are OLMo's, without norms of q and k",
     "use --qk-norm none, or start from --model qwen3:dN"},
    {plain_qkv_biases, "qkv-biases", "norm", "plain norms are OLMo's, without biases",
     "use --no-qkv-biases, or start from --model qwen2:dN"},
    {plain_stretched, "rope-factor", "norm", "plain norms are OLMo's, whose rotations are not stretched",
     "remove --rope-factor, or start from --model llama:dN"},
    {qkv_biases_qk_norm, "qk-norm", "qkv-biases", "Qwen 2 has biases of q, k and v, Qwen 3 norms of q and k, and none has both",
     "remove one of them"},
    {qkv_biases_stretched, "rope-factor", "qkv-biases", "biases of q, k and v are Qwen 2's, whose rotations are not stretched",
     "remove one of them"},
    {qk_norm_stretched, "rope-factor", "qk-norm", "models with norms of q and k have rotations that are not stretched",
     "remove --rope-factor"},
    {own_head_width, "head-dim", "channels", "only Llama and Qwen 3 have heads that are not --channels / --heads wide",
     "remove --head-dim, or start from --model llama:dN or qwen3:dN"},
};
// clang-format on

// "--norm rms", "--no-biases"
static void flag_given(const Config *c, const char *name, char text[FLAG_TEXT_LENGTH]) {
    bool negated;
    char value[FLAG_TEXT_LENGTH];
    const Flag *flag = flag_find(name, strlen(name), &negated);
    flag_value(flag, c, value);
    if (flag->kind == FLAG_BOOL)
        snprintf(text, FLAG_TEXT_LENGTH, "--%s%.40s", strcmp(value, "on") == 0 ? "" : "no-", name);
    else
        snprintf(text, FLAG_TEXT_LENGTH, "--%.40s %.60s", name, value);
}

bool config_check_block(const Config *c, Error *err) {
    for (size_t i = 0; i < sizeof no_blocks / sizeof *no_blocks; i++) {
        const NoBlock *n = &no_blocks[i];
        char flag[FLAG_TEXT_LENGTH], with[FLAG_TEXT_LENGTH] = "";
        if (!n->holds(&c->shape)) continue;
        flag_given(c, n->flag, flag);
        if (n->with) flag_given(c, n->with, with);
        return error_set(err, EXIT_USER, "%s%s%s: %s; %s", flag, n->with ? " with " : "", with, n->text, n->fix);
    }
    return true;
}

// ---------------------------------------------------------------- flags without effect

static bool stretches_nothing(const ModelShape *s) {
    return s->rope.factor == 1.0f;
}
static bool has_all_biases(const ModelShape *s) {
    return s->biases;
}

static const struct {
    const char *flag;
    bool (*idle)(const ModelShape *shape);
    const char *text, *fix;
} idle_flags[] = {
#define NOT_ROTATED "learned positions are not rotated", "remove it, or start from --model llama:dN"
    {"rope-theta", learned, NOT_ROTATED},
    {"rope-factor", learned, NOT_ROTATED},
    {"rope-low", learned, NOT_ROTATED},
    {"rope-high", learned, NOT_ROTATED},
    {"rope-positions", learned, NOT_ROTATED},
#undef NOT_ROTATED
#define NOT_STRETCHED "without --rope-factor no wavelength is stretched", "add --rope-factor X, or remove it"
    {"rope-low", stretches_nothing, NOT_STRETCHED},
    {"rope-high", stretches_nothing, NOT_STRETCHED},
    {"rope-positions", stretches_nothing, NOT_STRETCHED},
#undef NOT_STRETCHED
    {"qkv-biases", has_all_biases, "with --biases q, k and v have theirs", "remove it, or start from --model qwen2:dN"},
    {"no-qkv-biases", has_all_biases, "with --biases q, k and v have theirs",
     "remove it, or start from --model llama:dN"},
};

bool config_check_idle(const Config *c, bool (*given)(const void *context, const char *name), const void *context,
                       Error *err) {
    for (size_t i = 0; i < sizeof idle_flags / sizeof *idle_flags; i++) {
        if (!idle_flags[i].idle(&c->shape) || !given(context, idle_flags[i].flag)) continue;
        return error_set(err, EXIT_USER, "--%s: %s; %s", idle_flags[i].flag, idle_flags[i].text, idle_flags[i].fix);
    }
    return true;
}
