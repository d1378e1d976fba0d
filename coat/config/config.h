// A run's configuration: the model's shape, the recipe, the schedule, the files. config_parse() of config_parse.h fills
// it from the command line; afterwards it is only read.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "numerics/formats.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COAT_VERSION "0.1.0"
#define COAT_VERSION_DATE "2026-11-23"
#define PATH_MAX_LENGTH 1024
#define FILES_LENGTH 16384    // of a list of files: 100 and more, as a shell makes them of a pattern
#define MAX_SETS 64           // of weighted training data
#define MAX_SKIPPED 10        // updates in a row, by default
#define MAX_MICRO_BATCH 65535 // sequences: the blocks of a grid's second dimension
#define VOCAB_PADDING 128     // the vocabulary is padded to a multiple of this for the matmuls

typedef enum { NORM_LAYER, NORM_RMS, NORM_PLAIN } NormKind; // plain: a layer norm without weights
typedef enum { NORM_BEFORE, NORM_AFTER } NormPlace; // pre-norm; OLMo 2's, of what a half adds to the residual stream
typedef enum { ACT_GELU_TANH, ACT_SWIGLU } ActivationKind;
typedef enum { POSITIONS_LEARNED, POSITIONS_ROTARY } PositionKind;
typedef enum { QK_NORM_NONE, QK_NORM_ROW, QK_NORM_HEAD } QkNormKind; // an RMS norm of q and k: over all heads, or each
typedef enum { INIT_KIND_NORMAL, INIT_KIND_MITCHELL, INIT_KIND_TRUNCATED } InitKind; // weights.h says what they draw

// Rotary frequencies of Llama 3.1 and later: long wavelengths are stretched `factor` times.
typedef struct {
    float factor;    // 1: none are
    float low, high; // wavelengths above positions / low are stretched, below positions / high not, between in part
    int positions;   // of the model before
} RopeScaling;

// The ids that a model's vocabulary begins and ends texts with; begin -1, no ends: it has none, or they are not known.
enum { MAX_EOS = 8 };
typedef struct {
    int bos, eos_count, eos[MAX_EOS];
} SpecialIds;

static inline bool is_eos(const SpecialIds *ids, int32_t id) {
    for (int i = 0; i < ids->eos_count; i++)
        if (ids->eos[i] == id) return true;
    return false;
}

// The shape of a model. GPT-2 uses kv_heads == heads, head_dim * heads == channels, ffn == 4 * channels,
// layer norms, tanh-GELU, learned positions, biases and a tied head; the other values are for Llama-style
// blocks.
typedef struct {
    int layers, heads, kv_heads, head_dim, channels, ffn;
    int vocab;        // token ids 0 .. vocab-1 exist
    int vocab_padded; // rows of the token embedding, a multiple of VOCAB_PADDING
    int positions;    // the longest sequence
    NormKind norm;
    NormPlace norm_place;
    ActivationKind activation;
    PositionKind position_kind;
    bool biases, tied_head;
    bool qkv_biases; // of q, k and v, where there are no others
    float norm_eps;
    QkNormKind qk_norm;
    float clip_qkv;   // q, k and v are cut off at plus and minus this; 0: they are not
    float rope_theta; // base of the rotary frequencies
    RopeScaling rope;
    InitKind init;
    // what files of models carry along
    double init_range; // initializer_range; 0: none
    SpecialIds ids;
    int pad; // pad_token_id, whose row of the embedding transformers does not train; -1: none
} ModelShape;

// What flags and files may say of a shape: files can hold what flags ask for, and are read back.
enum { MAX_LAYERS = 1024, MAX_HEADS = 1024, WIDEST_HEAD = 4096, MAX_CHANNELS = 1 << 16, MAX_FFN = 1 << 20 };
enum { MAX_VOCAB = 1 << 24, MAX_POSITIONS = 1 << 24 };
#define MIN_NORM_EPS 1e-12
#define MAX_NORM_EPS 1e-1
#define MAX_CLIP_QKV 1e6
#define MIN_ROPE_THETA 1.0
#define MAX_ROPE_THETA 1e12
#define MIN_ROPE_FACTOR 1.0
#define MAX_ROPE_FACTOR 1e6
#define MIN_ROPE_BAND 1e-3 // low and high
#define MAX_ROPE_BAND 1e6

// The widest rows that the GPU's FP8 kernels are built for: those of norms; and, where scales are per token, what the
// activation function makes (of SwiGLU's h twice as much is read) and attention's output.
enum { FP8_WIDEST_NORM = 8192, FP8_WIDEST_ACTIVATION = 32768, FP8_WIDEST_CAST = 16384 };

// Of examples in training data: packed whole into sequences, those that are longer losing their end or being refused;
// or following each other, and split wherever a sequence ends.
typedef enum { EXAMPLES_CUT, EXAMPLES_WHOLE, EXAMPLES_SPLIT } ExamplesKind;
typedef enum { DOCUMENTS_JOINED, DOCUMENTS_MASKED } DocumentsKind; // what attention sees within a sequence
// How a prompt becomes a question to a fine-tuned model. Files of examples have these numbers. Data: what they name.
typedef enum {
    PROMPT_FORMAT_NONE,
    PROMPT_FORMAT_PLAIN,
    PROMPT_FORMAT_ALPACA,
    PROMPT_FORMAT_CHATML,
    PROMPT_FORMAT_QWEN,
    PROMPT_FORMAT_LLAMA2,
    PROMPT_FORMAT_LLAMA3,
    PROMPT_FORMAT_DATA
} PromptFormat;

static inline bool prompt_format_named(PromptFormat format) {
    return format != PROMPT_FORMAT_NONE && format != PROMPT_FORMAT_DATA;
}

typedef enum { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA } DeviceKind;
typedef enum { RECIPE_BF16, RECIPE_FP8_LINEAR, RECIPE_COAT, RECIPE_COAT_PAPER } RecipeKind;
typedef enum { PRECISION_RECIPE, PRECISION_FP32 } PrecisionKind; // FP32: everything, for exact comparisons
typedef enum { LINEAR_BF16, LINEAR_FP8 } LinearKind;
typedef enum { HEAD_BF16, HEAD_FP8, HEAD_FP8_BACKWARD } HeadKind; // BACKWARD: logits in BF16, gradients from codes
typedef enum { SAVED_BF16, SAVED_COAT } SavedKind;
typedef enum { MOMENTS_FP32, MOMENTS_BF16, MOMENTS_FP8, MOMENTS_COAT } MomentsKind;
typedef enum { MASTER_FP32, MASTER_SPLIT16, MASTER_NONE } MasterKind;
typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_WSD, SCHEDULE_CONSTANT } ScheduleKind;

// Names of these, in the order of their values, as flags take them and checkpoints and the report say them.
#define RECIPE_NAMES "bf16|fp8-linear|coat|coat-paper"
#define PRECISION_NAMES "recipe|fp32"
#define LINEAR_NAMES "bf16|fp8"
#define HEAD_NAMES "bf16|fp8|fp8-backward"
#define SAVED_NAMES "bf16|coat"
#define MOMENTS_NAMES "fp32|bf16|fp8|coat"
#define MASTER_NAMES "fp32|split16|none"
#define SCHEDULE_NAMES "cosine|linear|wsd|constant"
#define EXAMPLES_NAMES "cut|whole|split"
#define DOCUMENTS_NAMES "joined|apart"

typedef struct {
    char text[16];
} ChoiceName;

// The one of a value.
ChoiceName choice_name(const char *names, int value);

typedef enum { PLAN_NONE, PLAN_TABLE, PLAN_JSON } PlanKind;
typedef enum { TOKENIZER_ANY, TOKENIZER_BYTES, TOKENIZER_GPT2, TOKENIZER_FILE } TokenizerKind; // any: none was named

// The tokens of a vocabulary that needs no file; 0: of others.
static inline int named_vocabulary(TokenizerKind kind) {
    return kind == TOKENIZER_BYTES ? 257 : kind == TOKENIZER_GPT2 ? 50257 : 0;
}

// Which precision each part of the training state has. --recipe sets all; single flags override.
typedef struct {
    RecipeKind kind;
    PrecisionKind precision;
    LinearKind linear;
    HeadKind head;
    int bf16_blocks; // with FP8 matmuls, forward's of norms and attention in so many blocks stay in BF16; -1: few
    SavedKind saved;
    int recompute;  // 0 save all; 1 recompute the activation function; 2 the norms too (coat: 1 recomputes both);
                    // 3 whole blocks
    Format grads;   // of the linear layers' weights: FMT_BF16 or FMT_FP32; all other gradients are FP32
    int group_size; // of the per-group activations: 16, 32 or 128
    MomentsKind moments;
    MasterKind master;
    char moments_fp32[256];      // comma-separated name patterns of tensors exempt from 8-bit moments
    bool cache_transposed;       // keep the transposed FP8 weights, or transpose them on demand
    bool fast_accumulation_data; // dgrad uses the tensor cores' fast accumulation
} Recipe;

// True if the run follows the paper's numerics (COAT, section 5) where the recipe coat deviates from them. Then norms
// and the activation function read the saved FP8 values in forward too, every FP8 operand has one scale per tensor, and
// gradients are E5M2. Otherwise they read unrounded values, and operands have a scale per token if one pass can make
// it.
static inline bool recipe_is_paper(const Recipe *r) {
    return r->kind == RECIPE_COAT_PAPER;
}

// Returns the FP8 format of the gradients that dgrad reads. Those that wgrad reads are always E5M2.
static inline Format recipe_gradient_format(const Recipe *r) {
    return r->saved == SAVED_COAT && !recipe_is_paper(r) ? FMT_E4M3 : FMT_E5M2;
}

typedef struct {
    // data
    // glob patterns of token files, one a line; "" = none. Between those of one --train
    // and of the next is an empty line
    char train[FILES_LENGTH], val[FILES_LENGTH];
    int train_sets;                 // how many --train there are
    double train_weights[MAX_SETS]; // of each, all above 0 or all 0: then their files are one set
    TokenizerKind tokenizer;
    char tokenizer_file[PATH_MAX_LENGTH];
    char vocabulary[PATH_MAX_LENGTH +
                    64];     // that checkpoints take along: that file, or the folder that the model is from
    bool vocab_of_tokenizer; // a new model's vocabulary is that of this file: neither --vocab nor a name says another
    bool shuffle;
    // model
    char model[PATH_MAX_LENGTH]; // a name (gpt2, d12 ...), a checkpoint folder, a weight file, or "" = explicit shape
    bool model_from_files;       // model names existing files whose weights are to be loaded
    char shape_files[PATH_MAX_LENGTH + 64]; // what says the shape, as model_shape_from_files() reads it; "" = the flags
    ModelShape shape;
    Recipe recipe;
    Recipe plain_recipe;       // with --recipe bf16 under the same flags: what recipe_decide() falls back to
    bool recipe_final;         // named by --recipe, or found to be possible: what FP8 cannot take is an error then
    bool recipe_recorded;      // by the checkpoint that the run continues from
    bool settings_recorded;    // so are the batch, the optimizer and the data's order, or what is needed of it
    int64_t recorded_step;     // of that checkpoint
    bool settings_logged;      // settings and model are those of OUT/log.jsonl, because there is no checkpoint yet
    bool nothing_to_resume;    // --resume finds neither a checkpoint in OUT nor settings in its log
    bool model_named;          // a flag names the model, the tokenizer or the batch
    bool batch_recorded;       // the checkpoint's batch_tokens counts: no flag sets another; with micro_batch_recorded
    bool micro_batch_recorded; // the same of micro_batch
    char gpu_without_fp8[320]; // why this machine's GPU cannot multiply in FP8; "" = it can, or the CPU does
    bool no_gpu;               // this machine has none (a plan does not look)
    // batch
    int micro_batch, seq_len;
    ExamplesKind examples;
    DocumentsKind documents;
    int64_t batch_tokens; // tokens per optimizer step over all ranks; 0 = one micro-batch per rank
    int logits_chunk;     // tokens whose logits exist at a time; 0 = chosen
    // optimizer
    int64_t steps;     // -1 = as epochs says
    int epochs;        // passes over the training data,
    bool epochs_given; // by a flag, rather than a checkpoint or the default
    float lr, beta1, beta2, eps, weight_decay, grad_clip;
    float lr_final; // final rate as a fraction of lr
    int64_t warmup;
    float decay_fraction; // wsd: the share of the steps in the final decay
    ScheduleKind schedule;
    uint64_t seed;
    int max_skipped;                // stop after this many skipped updates in a row
    float skip_loss_z, skip_grad_z; // skip an update whose loss or gradient norm is this many deviations high; 0 = off
    // evaluation and samples
    int64_t val_every;               // 0 = only at the end
    int val_batches;                 // -1 = all of the validation data
    char hellaswag[PATH_MAX_LENGTH]; // file of its examples; "" = none
    int64_t hellaswag_every;         // 0 = only at the end, -1 = as val_every
    int64_t sample_every;            // 0 = only at the end
    int sample_tokens;               // 0 = no samples
    int64_t health_every;            // steps between counts over the FP8 tensors; 0 = never
    int64_t health_products;         // steps between comparisons of FP8 matmuls with BF16's; 0 = never
    char prompt[4096];
    PromptFormat prompt_format;
    int samples; // each time
    float temperature, top_p;
    int top_k;
    bool eval_only, overfit_one_batch;
    // files
    char out[PATH_MAX_LENGTH]; // "" = nothing is written
    int64_t save_every;        // 0 = only at the end
    int keep;                  // newest checkpoints kept; 0 = all
    int64_t keep_every;        // checkpoints of multiples of this step are never removed; 0 = none
    bool resume;
    int64_t resume_step;   // -1 = the newest
    bool allow_other_data; // on resume
    bool overwrite;
    // where and how it runs
    DeviceKind device;
    int threads; // CPU backend; 0 = all cores
    int zero;    // ZeRO stage
    int gpus;    // --plan only: how many GPUs to plan for
    PlanKind plan;
    bool offload_states;  // moments and master weights lie in the host's memory
    int64_t memory_limit; // bytes; --plan searches the largest micro-batch under it; 0 = none
    int64_t profile;      // --profile N: this step is marked for a profiler; -1 = none
    bool autotune;
    char matmul_table[PATH_MAX_LENGTH]; // file of matmuls' algorithms; "" = none
    int64_t time_limit_ms;              // the run ends before it, counted from the program's start; 0 = none
    int64_t log_every;                  // steps between lines on the terminal
    bool quiet, json;
    // processes; what is not given comes from the launcher's environment
    int world_size;       // 0 = from the environment
    int rank;             // -1 = from the environment
    char rendezvous[256]; // HOST[:PORT] of rank 0; "" = from the environment
    char notes[1024];     // remarks on the flags for rank 0 to print on stderr; each line ends with a newline
} Config;

// The values of a run without flags: the recipe coat, GPT-2's shape, the rest as in llm.c where it has them.
void config_defaults(Config *config);

// Sets every field of the recipe to what --recipe means.
void recipe_apply(Recipe *recipe, RecipeKind kind);

// Whether the run trains a model, as opposed to evaluating one or sampling from it.
static inline bool config_trains(const Config *config) {
    return config->train[0] && !config->eval_only;
}

// Whether it samples alone.
static inline bool config_samples_only(const Config *config) {
    return config->prompt[0] && !config->train[0] && !config->eval_only;
}

// Whether it runs forward alone: an evaluation, a sample, or the plan of one. It has no
// memory for gradients and states.
static inline bool config_forward_only(const Config *config) {
    return config->eval_only || config_samples_only(config);
}

// What data_open_sets() is to draw from the sets of --train by; NULL: they are one.
static inline const double *config_weights(const Config *config) {
    return config->train_weights[0] > 0 ? config->train_weights : NULL;
}

// What config_check() of config_check.h asks beyond the shape, and a plan again of other recipes and micro-batches:
// batch arithmetic for `ranks` processes, what FP8 and the device take, features not built yet. A recipe that was not
// named falls back to bf16 here where FP8 cannot take the shape or gpu_without_fp8 is set, with a line in notes.
bool config_check_recipe(Config *config, int ranks, Error *err);

// As --tokenizer names it, or as a model without a vocabulary file has it.
static inline const char *config_tokenizer_name(const Config *c) {
    const bool bytes = c->tokenizer == TOKENIZER_BYTES || (c->tokenizer == TOKENIZER_ANY && c->shape.vocab == 257);
    return bytes ? "bytes" : c->tokenizer_file[0] ? c->tokenizer_file : "gpt2";
}

static inline int64_t config_micro_tokens(const Config *c) {
    return (int64_t)c->micro_batch * c->seq_len;
}

#define SAMPLE_STEP 64 // the lengths of the passes over a sample's beginning are multiples of it

// FP8 matmuls take tokens in sixteens.
static inline int config_fewest_tokens(const Config *c) {
    return c->recipe.linear == LINEAR_FP8 || c->recipe.head != HEAD_BF16 ? 16 : 1;
}

// The rows of logits of which a sample reads the last: the head's matmul takes as many.
static inline int config_sample_logits(const Config *c) {
    return c->recipe.head == HEAD_FP8 ? 16 : 1;
}

// How many sequences the passes of a sample have: one, but where FP8 matmuls take more tokens than one has.
static inline int config_sample_sequences(const Config *c) {
    const int tokens = config_fewest_tokens(c);
    int B = 1;
    while (c->seq_len < tokens && B * c->seq_len % tokens != 0) B++;
    return B;
}

// The tokens that a sample may come to, at most those of a sequence. Those of the prompt are no more than its bytes,
// where normalization or a replacement does not make up to three of one, what a vocabulary puts before a text, and
// those of the prompt's format, which are no more than 256.
static inline int config_sample_length(const Config *c) {
    const bool formatted =
        prompt_format_named(c->prompt_format) || (c->prompt_format == PROMPT_FORMAT_DATA && c->train[0]);
    int64_t tokens = 2 + (int64_t)c->sample_tokens + (c->prompt[0] && formatted ? 256 : 0);
    for (const char *byte = c->prompt; *byte; byte++) tokens += (unsigned char)*byte < 0x80 ? 1 : 3;
    return tokens < c->seq_len ? (int)tokens : c->seq_len;
}

// The rows that `length` of at most T tokens of a sample take: rounded up, so that there are at most 64 lengths, as
// plans of matmuls are kept for each.
static inline int config_sample_rows(int length, int T) {
    const int step = SAMPLE_STEP * (1 + (T - 1) / 4096), padded = (length + step - 1) / step * step;
    return padded < T ? padded : T;
}

// Whether backward makes the norms' results again instead of reading what forward left.
static inline bool config_recomputes_norms(const Config *c) {
    return c->shape.norm_place == NORM_BEFORE && c->recipe.recompute >= (c->recipe.saved == SAVED_COAT ? 1 : 2);
}

// Whether backward makes the forward pass of each block again, from the residual stream that it began with: what else
// forward keeps is one block's.
static inline bool config_repeats_blocks(const Config *c) {
    return c->recipe.recompute >= 3 && !config_forward_only(c);
}

// Whether the gradient of the activation function gets its scales from a bound, so that one pass
// makes it and the function again.
static inline bool config_bounds_activation(const Config *c) {
    const Recipe *r = &c->recipe;
    return r->linear == LINEAR_FP8 && r->precision != PRECISION_FP32 && !recipe_is_paper(r) && r->saved == SAVED_COAT &&
           r->recompute >= 1;
}

// Blocks, from the first on, whose matmuls of norms and of attention are in BF16 in forward passes where the others'
// are in FP8, as are all in backward. Of norms only where backward makes them again.
static inline int config_bf16_blocks(const Config *c) {
    const Recipe *r = &c->recipe;
    if (r->linear != LINEAR_FP8 || r->precision == PRECISION_FP32) return 0;
    const int third = c->shape.layers / 3, few = third < 1 ? 1 : third > 4 ? 4 : third;
    const int blocks = r->bf16_blocks < 0 ? few : r->bf16_blocks;
    return blocks < c->shape.layers ? blocks : c->shape.layers;
}

// Micro-batches per rank and optimizer step.
static inline int64_t config_accumulation(const Config *c, int ranks) {
    int64_t per_pass = config_micro_tokens(c) * ranks;
    return c->batch_tokens > per_pass ? c->batch_tokens / per_pass : 1;
}

#ifdef __cplusplus
}
#endif
