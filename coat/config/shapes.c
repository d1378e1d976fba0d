#include "shapes.h"

#include <string.h>

static const char *const names[ARCHITECTURE_COUNT] = {
    [ARCHITECTURE_GPT2] = "gpt2",   [ARCHITECTURE_LLAMA] = "llama", [ARCHITECTURE_OLMO] = "olmo",
    [ARCHITECTURE_OLMO2] = "olmo2", [ARCHITECTURE_QWEN2] = "qwen2", [ARCHITECTURE_QWEN3] = "qwen3",
};

const char *architecture_name(Architecture architecture) {
    return names[architecture];
}

void architecture_shape(Architecture architecture, ModelShape *s) {
    memset(s, 0, sizeof *s); // memset also zeroes the padding bytes, because memcmp compares shapes
    s->ids.bos = s->pad = -1;
    s->norm_eps = 1e-5f;
    s->rope_theta = 10000.0f;
    s->rope = (RopeScaling){1.0f, 1.0f, 4.0f, 8192};
    s->init = architecture == ARCHITECTURE_OLMO    ? INIT_KIND_MITCHELL
              : architecture == ARCHITECTURE_OLMO2 ? INIT_KIND_TRUNCATED
                                                   : INIT_KIND_NORMAL;
    s->init_range = init_deviation(s->init);
    if (architecture == ARCHITECTURE_GPT2) {
        s->biases = s->tied_head = true;
        return;
    }
    s->norm = architecture == ARCHITECTURE_OLMO ? NORM_PLAIN : NORM_RMS;
    s->activation = ACT_SWIGLU;
    s->position_kind = POSITIONS_ROTARY;
    s->qkv_biases = architecture == ARCHITECTURE_QWEN2;
    if (architecture == ARCHITECTURE_OLMO2) {
        s->norm_place = NORM_POST;
        s->qk_norm = QK_NORM_ROW;
        s->norm_eps = 1e-6f;
        s->rope_theta = 5e5f;
    }
    if (architecture == ARCHITECTURE_QWEN3) s->qk_norm = QK_NORM_HEAD;
    if (architecture == ARCHITECTURE_QWEN2 || architecture == ARCHITECTURE_QWEN3) s->norm_eps = 1e-6f;
}

int shape_mismatches(const ModelShape *s, Architecture architecture, const char **flag) {
    ModelShape a;
    architecture_shape(architecture, &a);
    const bool gpt2 = architecture == ARCHITECTURE_GPT2, llama = architecture == ARCHITECTURE_LLAMA;
    const bool own_width = llama || architecture == ARCHITECTURE_QWEN3;
    const struct {
        bool differs;
        const char *flag;
    } settings[] = {
        {s->position_kind != a.position_kind, "position-encoding"},
        {s->norm_place != a.norm_place, "norm-place"},
        {s->norm != a.norm, "norm"},
        {s->qk_norm != a.qk_norm, "qk-norm"},
        {s->activation != a.activation, "activation"},
        {s->biases != a.biases, "biases"},
        {!s->biases && s->qkv_biases != a.qkv_biases, "qkv-biases"},
        {gpt2 && !s->tied_head, "tied-head"},
        {gpt2 && s->kv_heads != s->heads, "kv-heads"},
        {!own_width && s->head_dim * s->heads != s->channels, "head-dim"},
        {!llama && s->rope.factor != 1.0f, "rope-factor"},
        {architecture != ARCHITECTURE_OLMO && s->clip_qkv != 0.0f, "clip-qkv"},
    };
    int count = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (settings[i].differs && ++count == 1) *flag = settings[i].flag;
    return count;
}

Architecture shape_architecture(const ModelShape *shape) {
    int architecture = 0;
    const char *flag;
    while (architecture < ARCHITECTURE_COUNT && shape_mismatches(shape, (Architecture)architecture, &flag))
        architecture++;
    return (Architecture)architecture;
}

void model_shape_vocab(ModelShape *shape, int vocab) {
    shape->vocab = vocab;
    shape->vocab_padded = (vocab + VOCAB_PADDING - 1) / VOCAB_PADDING * VOCAB_PADDING;
    const bool last = vocab == named_vocabulary(TOKENIZER_BYTES) || vocab == named_vocabulary(TOKENIZER_GPT2);
    model_shape_ids(shape, last ? vocab - 1 : -1, last ? vocab - 1 : -1);
}

void model_shape_ids(ModelShape *shape, int begin, int end) {
    memset(&shape->ids, 0, sizeof shape->ids);
    shape->ids.bos = begin >= 0 && begin < shape->vocab ? begin : -1;
    model_shape_add_eos(shape, end);
}

void model_shape_add_eos(ModelShape *shape, int id) {
    SpecialIds *ids = &shape->ids;
    if (id < 0 || id >= shape->vocab || is_eos(ids, id)) return;
    if (ids->eos_count < MAX_EOS) ids->eos_count++;
    ids->eos[ids->eos_count - 1] = id;
}

int shape_usual_ffn(const ModelShape *shape) {
    if (shape->activation != ACT_SWIGLU) return 4 * shape->channels;
    return (8 * shape->channels / 3 + 127) / 128 * 128;
}

static void shape_gpt2(ModelShape *shape, int layers, int heads, int channels, int positions) {
    architecture_shape(ARCHITECTURE_GPT2, shape);
    shape->layers = layers;
    shape->heads = shape->kv_heads = heads;
    shape->channels = channels;
    shape->head_dim = channels / heads;
    shape->ffn = 4 * channels;
    shape->positions = positions;
    model_shape_vocab(shape, 50257);
}

bool gpt2_shape(ModelShape *shape, int64_t layers, int64_t heads, int64_t channels, int64_t ffn, int64_t vocab,
                int64_t positions, const char *path, Error *err) {
    const struct {
        const char *name;
        int64_t value, max;
    } checks[] = {{"layers", layers, MAX_LAYERS},
                  {"heads", heads, MAX_HEADS},
                  {"channels", channels, MAX_CHANNELS},
                  {"tokens in the vocabulary", vocab, MAX_VOCAB},
                  {"positions", positions, MAX_POSITIONS}};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (checks[i].value < 1 || checks[i].value > checks[i].max)
            return error_set(err, EXIT_DATA, "%s: the number of %s is %lld, outside 1 ... %lld", path, checks[i].name,
                             (long long)checks[i].value, (long long)checks[i].max);
    if (channels % heads)
        return error_set(err, EXIT_DATA, "%s: %lld channel%s cannot be divided among %lld heads", path,
                         (long long)channels, plural(channels), (long long)heads);
    if (channels / heads > MAX_HEAD_WIDTH)
        return error_set(err, EXIT_DATA,
                         "%s: %lld channels / %lld head%s = head width %lld, but at most %d is supported; use a model "
                         "with more heads or fewer channels",
                         path, (long long)channels, (long long)heads, plural(heads), (long long)(channels / heads),
                         MAX_HEAD_WIDTH);
    shape_gpt2(shape, (int)layers, (int)heads, (int)channels, (int)positions);
    if (ffn) shape->ffn = (int)ffn;
    model_shape_vocab(shape, (int)vocab);
    return true;
}

typedef struct {
    const char *name;
    int layers, heads, channels, positions;
} Gpt2Name;

static const Gpt2Name gpt2_names[] = {
    {"gpt2", 12, 12, 768, 1024},
    {"gpt2-medium", 24, 16, 1024, 1024},
    {"gpt2-large", 36, 20, 1280, 1024},
    {"gpt2-xl", 48, 25, 1600, 1024},
    {"d6", 6, 6, 384, 1024},
    {"d12", 12, 12, 768, 1024},
    {"d24", 24, 16, 1024, 1024},
    {"d36", 36, 20, 1280, 1024},
    {"d48", 48, 25, 1600, 1024},
    // llm.c's models. Without the prefix gpt2:, a name dN of the same depth, such as d60, has 64 * N channels
    {"gpt2:d60", 60, 30, 1920, 1024},
    {"gpt2:d72", 72, 30, 2880, 1024},
    {"gpt2:d84", 84, 36, 3456, 1024},
    {"gpt3:c384", 6, 6, 384, 2048},
    {"gpt3:c768", 12, 12, 768, 2048},
    {"gpt3:c1024", 24, 16, 1024, 2048},
    {"gpt3:c1536", 24, 16, 1536, 2048},
    {"gpt3:c2048", 24, 16, 2048, 2048},
    {"gpt3:c2560", 32, 32, 2560, 2048},
    {"gpt3:c4096", 32, 32, 4096, 2048},
    {"gpt3:c5120", 40, 40, 5120, 2048},
    {"gpt3:c12288", 96, 96, 12288, 2048},
};

typedef struct {
    const char *name;
    Architecture architecture;
    int layers, channels, ffn, heads, kv_heads, head_dim, vocab, positions;
    float theta, eps;
    bool tied;
    float stretched; // factor of the RoPE scaling; 0: none
    int begin, end;  // BOS and EOS ids; -1: none
} Name;

// clang-format off
static const Name other_names[] = {
    // A row contains: name, architecture, layers, channels, ffn, heads, kv_heads, head_dim, vocabulary, positions, RoPE
    // theta, norm eps, tied head, RoPE scaling factor, BOS id, EOS id.
    {"llama2-7b",    ARCHITECTURE_LLAMA, 32, 4096, 11008, 32, 32, 128,  32000,   4096, 1e4f, 1e-5f, false, 0, 1, 2},
    {"llama2-13b",   ARCHITECTURE_LLAMA, 40, 5120, 13824, 40, 40, 128,  32000,   4096, 1e4f, 1e-5f, false, 0, 1, 2},
    {"llama-30b",    ARCHITECTURE_LLAMA, 60, 6656, 17920, 52, 52, 128,  32000,   2048, 1e4f, 1e-6f, false, 0, 1, 2},
    {"llama3-8b",    ARCHITECTURE_LLAMA, 32, 4096, 14336, 32,  8, 128, 128256,   8192, 5e5f, 1e-5f, false, 0, 128000, 128001},
    {"llama3.1-8b",  ARCHITECTURE_LLAMA, 32, 4096, 14336, 32,  8, 128, 128256, 131072, 5e5f, 1e-5f, false, 8, 128000, 128001},
    {"llama3.2-1b",  ARCHITECTURE_LLAMA, 16, 2048,  8192, 32,  8,  64, 128256, 131072, 5e5f, 1e-5f, true, 32, 128000, 128001},
    {"llama3.2-3b",  ARCHITECTURE_LLAMA, 28, 3072,  8192, 24,  8, 128, 128256, 131072, 5e5f, 1e-5f, true, 32, 128000, 128001},
    {"mistral-7b",   ARCHITECTURE_LLAMA, 32, 4096, 14336, 32,  8, 128,  32768,  32768, 1e6f, 1e-5f, false, 0, 1, 2},
    {"smollm2-135m", ARCHITECTURE_LLAMA, 30,  576,  1536,  9,  3,  64,  49152,   8192, 1e5f, 1e-5f, true, 0, 0, 0},
    {"tinyllama",    ARCHITECTURE_LLAMA, 22, 2048,  5632, 32,  4,  64,  32000,   2048, 1e4f, 1e-5f, false, 0, 1, 2},
    {"olmo-1b",      ARCHITECTURE_OLMO,  16, 2048,  8192, 16, 16, 128,  50304,   2048, 1e4f, 1e-5f, true, 0, -1, 50279},
    {"olmo-7b",      ARCHITECTURE_OLMO,  32, 4096, 11008, 32, 32, 128,  50304,   2048, 1e4f, 1e-5f, false, 0, -1, 50279},
    {"olmo2-1b",     ARCHITECTURE_OLMO2, 16, 2048,  8192, 16, 16, 128, 100352,   4096, 5e5f, 1e-6f, false, 0, -1, 100257},
    {"olmo2-7b",     ARCHITECTURE_OLMO2, 32, 4096, 11008, 32, 32, 128, 100352,   4096, 5e5f, 1e-6f, false, 0, -1, 100257},
    {"olmo2-13b",    ARCHITECTURE_OLMO2, 40, 5120, 13824, 40, 40, 128, 100352,   4096, 5e5f, 1e-6f, false, 0, -1, 100257},
    {"qwen2.5-0.5b", ARCHITECTURE_QWEN2, 24,  896,  4864, 14,  2,  64, 151936,  32768, 1e6f, 1e-6f, true, 0, 151643, 151643},
    {"qwen2.5-1.5b", ARCHITECTURE_QWEN2, 28, 1536,  8960, 12,  2, 128, 151936, 131072, 1e6f, 1e-6f, true, 0, 151643, 151643},
    {"qwen2.5-3b",   ARCHITECTURE_QWEN2, 36, 2048, 11008, 16,  2, 128, 151936,  32768, 1e6f, 1e-6f, true, 0, 151643, 151643},
    {"qwen2.5-7b",   ARCHITECTURE_QWEN2, 28, 3584, 18944, 28,  4, 128, 152064, 131072, 1e6f, 1e-6f, false, 0, 151643, 151643},
    {"qwen2.5-14b",  ARCHITECTURE_QWEN2, 48, 5120, 13824, 40,  8, 128, 152064, 131072, 1e6f, 1e-5f, false, 0, 151643, 151643},
    {"qwen3-0.6b",   ARCHITECTURE_QWEN3, 28, 1024,  3072, 16,  8, 128, 151936,  40960, 1e6f, 1e-6f, true, 0, 151643, 151643},
    {"qwen3-1.7b",   ARCHITECTURE_QWEN3, 28, 2048,  6144, 16,  8, 128, 151936,  40960, 1e6f, 1e-6f, true, 0, 151643, 151643},
    {"qwen3-4b",     ARCHITECTURE_QWEN3, 36, 2560,  9728, 32,  8, 128, 151936,  40960, 1e6f, 1e-6f, true, 0, 151643, 151643},
    {"qwen3-8b",     ARCHITECTURE_QWEN3, 36, 4096, 12288, 32,  8, 128, 151936,  40960, 1e6f, 1e-6f, false, 0, 151643, 151643},
};
// clang-format on

const char *model_name(int i) {
    enum { GPT2_NAMES = 4, OTHER_NAMES = sizeof other_names / sizeof other_names[0] };
    if (i < GPT2_NAMES) return gpt2_names[i].name;
    return i < GPT2_NAMES + OTHER_NAMES ? other_names[i - GPT2_NAMES].name : NULL;
}

const char *model_names(void) {
    static char text[1024];
    text[0] = '\0';
    for (int i = 0; model_name(i); i++) text_append(text, sizeof text, "%s, ", model_name(i));
    text_append(text, sizeof text, "gpt3:cN, or dN");
    for (int i = ARCHITECTURE_LLAMA; i < ARCHITECTURE_COUNT; i++) text_append(text, sizeof text, ", %s:dN", names[i]);
    text_append(text, sizeof text, " of N layers, 1 to %d", MAX_MODEL_DEPTH);
    return text;
}

bool model_keeps_vocabulary(const char *name) {
    size_t i = 0;
    while (i < sizeof other_names / sizeof other_names[0] && strcmp(other_names[i].name, name) != 0) i++;
    return i < sizeof other_names / sizeof other_names[0];
}

static void shape_of_name(const Name *n, ModelShape *s) {
    architecture_shape(n->architecture, s);
    s->layers = n->layers;
    s->channels = n->channels;
    s->ffn = n->ffn;
    s->heads = n->heads;
    s->kv_heads = n->kv_heads;
    s->head_dim = n->head_dim;
    s->positions = n->positions;
    s->rope_theta = n->theta;
    s->norm_eps = n->eps;
    s->tied_head = n->tied;
    if (n->stretched > 0) s->rope.factor = n->stretched;
    model_shape_vocab(s, n->vocab);
    model_shape_ids(s, n->begin, n->end);
}

int model_depth(const char *name) {
    size_t digits = name[0] == 'd' ? strspn(name + 1, "0123456789") : 0;
    if (digits < 1 || digits > 2 || name[1 + digits] || name[1] == '0') return 0;
    int depth = atoi(name + 1);
    return depth <= MAX_MODEL_DEPTH ? depth : 0;
}

bool model_shape_named(const char *name, ModelShape *shape) {
    for (size_t i = 0; i < sizeof gpt2_names / sizeof gpt2_names[0]; i++) {
        const Gpt2Name *n = &gpt2_names[i];
        if (strcmp(n->name, name) != 0) continue;
        shape_gpt2(shape, n->layers, n->heads, n->channels, n->positions);
        return true;
    }
    for (size_t i = 0; i < sizeof other_names / sizeof other_names[0]; i++) {
        if (strcmp(other_names[i].name, name) != 0) continue;
        shape_of_name(&other_names[i], shape);
        return true;
    }
    if (strncmp(name, "gpt2:d", 6) == 0) return model_shape_named(name + 5, shape);
    const char *colon = strchr(name, ':');
    const int depth = model_depth(colon ? colon + 1 : name);
    if (depth == 0) return false;
    if (!colon) {
        shape_gpt2(shape, depth, depth, 64 * depth, 1024);
        return true;
    }
    for (int i = ARCHITECTURE_LLAMA; i < ARCHITECTURE_COUNT; i++) {
        if (!text_is(name, (size_t)(colon - name), names[i])) continue;
        architecture_shape((Architecture)i, shape);
        shape->layers = shape->heads = shape->kv_heads = depth;
        shape->head_dim = 64;
        shape->channels = 64 * depth;
        shape->ffn = shape_usual_ffn(shape);
        shape->positions = 2048;
        shape->tied_head = true;
        model_shape_vocab(shape, 50257);
        return true;
    }
    return false;
}
