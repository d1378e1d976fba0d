// Configuration of a run: model shape, recipe, batch, optimizer, files. config_parse() (flags/config_parse.h) fills the
// Config from the command line and from the settings that a checkpoint recorded.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "numerics/formats.h"

C_LINKAGE_BEGIN

#define COAT_VERSION "0.1.0"
#define PATH_MAX_LENGTH 1024
// maximum length in bytes of a flag's list of file names; large, because a shell may expand a pattern to 100 names
#define FILES_LENGTH 16384
#define MAX_SETS 64 // maximum number of training data sets with weights
// maximum number of sequences in a micro-batch: CUDA's limit of blocks in a grid's second dimension
#define MAX_MICRO_BATCH 65535
#define VOCAB_PADDING 128 // the vocabulary's padded size is a multiple of this number, which makes matmuls fast

typedef enum { NORM_LAYER, NORM_RMS, NORM_PLAIN } NormKind; // NORM_PLAIN: LayerNorm without weights
// place of a block's norms. NORM_PRE: at a sublayer's input; NORM_POST: at a sublayer's output (OLMo 2)
typedef enum { NORM_PRE, NORM_POST } NormPlace;
// Forms of GELU: TANH (GPT-2); QUICK: x * sigmoid(1.702 x) (CLIP); ERF: exact (projectors of vision-language models)
typedef enum { ACT_GELU_TANH, ACT_SWIGLU, ACT_GELU_QUICK, ACT_GELU_ERF } ActivationKind;
typedef enum { POSITIONS_LEARNED, POSITIONS_ROTARY } PositionKind;
// RMSNorm of q and k. ROW: one norm over all heads of a token; HEAD: one norm per head
typedef enum { QK_NORM_NONE, QK_NORM_ROW, QK_NORM_HEAD } QkNormKind;
// distribution of random initial weights, see weights.h
typedef enum { INIT_KIND_NORMAL, INIT_KIND_MITCHELL, INIT_KIND_TRUNCATED } InitKind;

// Parameters of Llama 3.1's RoPE scaling, which multiplies long wavelengths by `factor`.
typedef struct {
    float factor; // factor that multiplies long wavelengths; 1: no scaling
    // divisors of `positions`: RoPE wavelengths above positions / low are multiplied by `factor`, and those below
    // positions / high are unchanged. Wavelengths in between are interpolated
    float low, high;
    int positions; // longest sequence in tokens that the model was trained with before RoPE scaling
} RopeScaling;

// BOS and EOS token ids of a model's vocabulary. bos is -1 if the vocabulary has no BOS token or the token is unknown.
// eos_count is 0 if the vocabulary has no EOS token or none is known.
enum { MAX_EOS = 8 };
typedef struct {
    int bos, eos_count, eos[MAX_EOS];
} SpecialIds;

static inline bool is_eos(const SpecialIds *ids, int32_t id) {
    for (int i = 0; i < ids->eos_count; i++)
        if (ids->eos[i] == id) return true;
    return false;
}

typedef enum { VISION_NONE, VISION_CLIP, VISION_SIGLIP } VisionKind;
// Projector of a vision-language model. MLP: two linear layers with GELU between them (LLaVA-1.5). DOWNSAMPLE: joins 2
// x 2 neighboring patches into one row, then applies a norm and the MLP (VILA)
typedef enum { PROJECTOR_MLP, PROJECTOR_DOWNSAMPLE } ProjectorKind;
#define PROJECTOR_NAMES "mlp|mlp_downsample"
enum { MAX_IMAGE_SIZE = 4096 };

// Shape of the images, the vision tower and the projector of a vision-language model.
typedef struct {
    VisionKind kind;            // kind of tower; VISION_NONE: text-only model, all other fields of VisionShape are 0
    int image_size, patch_size; // sides in pixels
    int channels, ffn, heads;
    int layers;      // number of tower blocks that are computed; the projector reads the output of the last
    int file_layers; // number of tower blocks in checkpoint files, at least `layers`
    ActivationKind activation;
    float norm_eps;
    bool drops_class_row; // true: the projector does not read the class token's row (CLIP)
    ProjectorKind projector;
    int features; // width of the projector's output, equal to the language model's channels
    // id of the token whose embeddings the projector's rows replace; -1: unknown until the tokenizer or the first
    // data file is open
    int image_token;
    // mean and standard deviation of each color's pixel values; deviation 0: unknown until the data files are opened
    float mean[3], deviation[3];
    bool pooling_head; // true: checkpoint files contain SigLIP's pooling head, which is not computed
} VisionShape;

// Parts of a vision-language model, as bits of Config.freeze.
enum { PART_VISION = 1, PART_PROJECTOR = 2, PART_LANGUAGE = 4 };

// Shape of a model. GPT-2 has kv_heads == heads, head_dim * heads == channels, ffn == 4 * channels, LayerNorm,
// tanh-GELU, learned positions, biases and a tied head. Llama-style models have other values.
typedef struct {
    int layers, heads, kv_heads, head_dim, channels, ffn;
    int vocab;        // number of tokens of the vocabulary; their ids are 0 to vocab - 1
    int vocab_padded; // number of rows of the token embedding, a multiple of VOCAB_PADDING
    int positions;    // longest sequence that the model supports, in tokens
    NormKind norm;
    NormPlace norm_place;
    ActivationKind activation;
    PositionKind position_kind;
    bool bidirectional; // true: no causal mask, tokens attend to all tokens of their sequence (vision towers)
    bool biases, tied_head;
    bool qkv_biases; // true: only q, k and v have biases; requires !biases
    float norm_eps;
    QkNormKind qk_norm;
    float clip_qkv;   // q, k and v are limited to [-clip_qkv, clip_qkv]; 0: no limit
    float rope_theta; // base of the RoPE frequencies
    RopeScaling rope;
    InitKind init;
    // values that training does not use, but that config.json in a checkpoint must contain
    double init_range; // initializer_range in config.json; 0: checkpoints omit the key
    SpecialIds ids;
    int pad; // pad_token_id, whose embedding Hugging Face transformers does not train; -1: none
    VisionShape vision;
    bool tower; // true: this is the shape of a vision tower, which reads images instead of tokens
} ModelShape;

// Limits that flags and config.json must respect for a model's dimensions and constants.
enum { MAX_LAYERS = 1024, MAX_HEADS = 1024, MAX_HEAD_WIDTH = 4096, MAX_CHANNELS = 1 << 16, MAX_FFN = 1 << 20 };
enum { MAX_VOCAB = 1 << 24, MAX_POSITIONS = 1 << 24 };
#define MIN_NORM_EPS 1e-12
#define MAX_NORM_EPS 1e-1
#define MAX_CLIP_QKV 1e6
#define MIN_ROPE_THETA 1.0
#define MAX_ROPE_THETA 1e12
#define MIN_ROPE_FACTOR 1.0
#define MAX_ROPE_FACTOR 1e6
#define MIN_ROPE_BAND 1e-3 // minimum of the RoPE scaling's low and high factors
#define MAX_ROPE_BAND 1e6

// Largest row widths that the GPU's FP8 kernels support. NORM: rows of norms. ACTIVATION: rows of the activation
// function's output with scales per token. CAST: rows of attention's output with scales per token.
enum { FP8_MAX_NORM_WIDTH = 8192, FP8_MAX_ACTIVATION_WIDTH = 32768, FP8_MAX_CAST_WIDTH = 16384 };

// How examples of training data become sequences. CUT packs entire examples and truncates those longer than a sequence.
// WHOLE also packs entire examples, but fails if an example is longer than a sequence. SPLIT concatenates all examples
// and cuts the result into sequences.
typedef enum { EXAMPLES_CUT, EXAMPLES_WHOLE, EXAMPLES_SPLIT } ExamplesKind;
// DOCUMENTS_MASKED: tokens attend only to tokens of their own document
typedef enum { DOCUMENTS_UNMASKED, DOCUMENTS_MASKED } DocumentsKind;
// Chat format that wraps a prompt. Token files of fine-tuning examples store the enum's numbers. PROMPT_FORMAT_DATA:
// the prompt format that the token files store.
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
// Number formats of the vision tower's blocks. COAT: the formats of RECIPE_COAT, without BF16 blocks
typedef enum { VISION_RECIPE_BF16, VISION_RECIPE_COAT } VisionRecipe;
// PRECISION_FP32: all tensors are FP32, for exact comparisons
typedef enum { PRECISION_RECIPE, PRECISION_FP32 } PrecisionKind;
typedef enum { LINEAR_BF16, LINEAR_FP8 } LinearKind;
// HEAD_FP8_BACKWARD: the output head computes logits in BF16 and gradients in FP8
typedef enum { HEAD_BF16, HEAD_FP8, HEAD_FP8_BACKWARD } HeadKind;
typedef enum { SAVED_BF16, SAVED_COAT } SavedKind;
typedef enum { MOMENTS_FP32, MOMENTS_BF16, MOMENTS_FP8, MOMENTS_COAT } MomentsKind;
// Format of Muon's momentum if the moments are 8-bit
typedef enum { MOMENTUM_E4M3, MOMENTUM_I8 } MomentumCodes;
// OPTIMIZER_MUON: Muon updates the weight matrices of the language model's blocks, AdamW all other parameters
typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_MUON } OptimizerKind;
typedef enum { MASTER_FP32, MASTER_SPLIT16, MASTER_NONE } MasterKind;
typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_WSD, SCHEDULE_CONSTANT } ScheduleKind;

// Names of enum values, in the enum's order, as flags, checkpoints and the start-up report spell them.
#define RECIPE_NAMES "bf16|fp8-linear|coat|coat-paper"
#define VISION_RECIPE_NAMES "bf16|coat"
#define PRECISION_NAMES "recipe|fp32"
#define LINEAR_NAMES "bf16|fp8"
#define HEAD_NAMES "bf16|fp8|fp8-backward"
#define SAVED_NAMES "bf16|coat"
#define MOMENTS_NAMES "fp32|bf16|fp8|coat"
#define MASTER_NAMES "fp32|split16|none"
#define MOMENTUM_NAMES "e4m3|i8"
#define OPTIMIZER_NAMES "adamw|muon"
#define SCHEDULE_NAMES "cosine|linear|wsd|constant"
#define EXAMPLES_NAMES "cut|whole|split"
#define DOCUMENTS_NAMES "joined|apart"

typedef struct {
    char text[16];
} ChoiceName;

// Returns the name of enum value `value` from a list of names like RECIPE_NAMES.
ChoiceName choice_name(const char *names, int value);

typedef enum { PLAN_NONE, PLAN_TABLE, PLAN_JSON } PlanKind;
// TOKENIZER_ANY: the command line names no tokenizer
typedef enum { TOKENIZER_ANY, TOKENIZER_BYTES, TOKENIZER_GPT2, TOKENIZER_FILE } TokenizerKind;

// Returns the vocabulary size of a tokenizer that is built in (bytes or GPT-2); 0 for other tokenizers.
static inline int named_vocabulary(TokenizerKind kind) {
    return kind == TOKENIZER_BYTES ? 257 : kind == TOKENIZER_GPT2 ? 50257 : 0;
}

// Number formats of a run. --recipe sets all fields; flags such as --linear or --moments override individual fields.
typedef struct {
    RecipeKind kind;
    PrecisionKind precision;
    LinearKind linear;
    HeadKind head;
    // number of blocks, counted from the first, in which forward matmuls read norm and attention outputs in BF16; -1: a
    // third of the blocks, at least 1 and at most 4
    int bf16_blocks;
    SavedKind saved;
    // tensors that backward recomputes instead of reading saved ones. 0: nothing; 1: the activation function (with
    // SAVED_COAT also norms); 2: the activation function and norms; 3: entire blocks
    int recompute;
    // format of the gradients of the blocks' weight matrices: FMT_BF16 or FMT_FP32; all other gradients of parameters
    // are FP32
    Format grads;
    int group_size; // number of elements of saved FP8 activations that share a scale: 16, 32 or 128
    MomentsKind moments;
    MomentumCodes momentum_codes;
    MasterKind master;
    char moments_fp32[256];      // comma-separated names or prefixes (fc*) of tensors with FP32 moments
    bool cache_transposed;       // true: transposed FP8 weights are stored instead of being computed when needed
    bool fast_accumulation_data; // true: dgrad uses the tensor cores' fast accumulation
} Recipe;

// True for recipe coat-paper, which follows the numerics of COAT, section 5: In forward, norms and the activation
// function read the saved FP8 values. Every FP8 operand has one scale per tensor. Gradients are E5M2. In other recipes,
// norms and the activation function read unrounded values in forward, and an operand has one scale per token if the
// kernel that reads the matmul's output can apply these scales (RowScales in model/tensor_table.h).
static inline bool recipe_is_paper(const Recipe *r) {
    return r->kind == RECIPE_COAT_PAPER;
}

// True if the blocks have FP8 matmuls.
static inline bool blocks_in_fp8(const Recipe *r) {
    return r->linear == LINEAR_FP8 && r->precision != PRECISION_FP32;
}

// True if activations are saved for backward in FP8, with one scale per group.
static inline bool saves_groups(const Recipe *r) {
    return r->saved == SAVED_COAT && r->precision != PRECISION_FP32;
}

// Returns the FP8 format of the gradients that dgrad reads in the blocks. wgrad, and the output head's dgrad, always
// read E5M2 gradients.
static inline Format recipe_gradient_format(const Recipe *r) {
    return r->saved == SAVED_COAT && !recipe_is_paper(r) ? FMT_E4M3 : FMT_E5M2;
}

typedef struct {
    // training and validation data: glob patterns of token files, one per line; "": no data. An empty line separates
    // the data sets of two --train flags
    char train[FILES_LENGTH], val[FILES_LENGTH];
    int train_sets;                 // number of --train flags
    double train_weights[MAX_SETS]; // weight of each --train data set: all > 0, or all 0 if all files are one set
    TokenizerKind tokenizer;
    char tokenizer_file[PATH_MAX_LENGTH];
    // path of the tokenizer file to copy into checkpoints, or of a folder that contains the file; "": none
    char vocabulary[PATH_MAX_LENGTH + 64];
    bool vocab_of_tokenizer; // true: tokenizer_file sets shape.vocab, because neither --vocab nor a model's name does
    bool shuffle;
    // settings of the model and the recipe
    char model[PATH_MAX_LENGTH];
    bool model_from_files; // true: `model` is a folder or file whose weights are loaded
    // folder or file from which model_shape_from_files() reads the shape; "": flags set the shape
    char shape_files[PATH_MAX_LENGTH + 64];
    char vision[PATH_MAX_LENGTH]; // name of a new vision tower, or folder whose tower is loaded; "": none
    bool vision_from_files;       // true: `vision` is a folder
    ModelShape shape;
    Recipe recipe;
    Recipe plain_recipe; // recipe to use if FP8 is impossible: bf16, with the user's other flags
    // true: an unsupported recipe is an error, because --recipe names it or config_check_recipe() has already chosen it
    bool recipe_final;
    bool settings_recorded;    // true: the run's settings were read from a checkpoint or from log.jsonl
    bool recipe_recorded;      // true: settings_recorded, and --recipe is not given
    int64_t recorded_step;     // step of the checkpoint whose settings were read
    bool settings_logged;      // true: settings and model were read from log.jsonl, because there is no checkpoint yet
    bool nothing_to_resume;    // true: --resume found neither a checkpoint nor settings in log.jsonl
    bool model_named;          // true: a given flag sets the model, its shape, the tokenizer or the batch
    bool batch_recorded;       // true: batch_tokens comes from the recorded settings, and no flag overrides it
    bool micro_batch_recorded; // true: settings_recorded, and micro_batch is not set by a flag
    // reason why this machine's GPU has no FP8 matmuls; "": the GPU has FP8 matmuls, or was not checked (--device cpu,
    // --plan)
    char gpu_without_fp8[320];
    bool no_gpu; // true: this machine has no GPU; false with --device cpu and --plan, because neither checks
    // settings of the batch
    int micro_batch, seq_len;
    ExamplesKind examples;
    DocumentsKind documents;
    int64_t batch_tokens; // tokens per optimizer step over all ranks; 0: one micro-batch per rank
    VisionRecipe vision_recipe;
    int recompute_vision;    // recipe.recompute of the vision tower; -1: same as the language model's
    int images_per_sequence; // largest number of images in a sequence; 0: as many as fit in seq_len
    int logits_chunk;        // number of tokens whose logits are computed at a time; 0: at most 1 GiB of logits
    // settings of the optimizer
    int64_t steps;     // number of optimizer steps; -1: `epochs` determines it
    int epochs;        // number of passes over the training data
    bool epochs_given; // true: a flag sets epochs
    float lr, beta1, beta2, eps, weight_decay, grad_clip;
    OptimizerKind optimizer;
    float muon_momentum; // decay rate of Muon's momentum
    float muon_rms;      // RMS of Muon's update of a matrix at learning rate 1, if the update is orthogonal
    float lr_final;      // final learning rate as a fraction of lr
    int64_t warmup;
    float decay_fraction; // length of schedule wsd's final decay as a fraction of all steps
    ScheduleKind schedule;
    uint64_t seed;
    char frozen[64]; // value of --freeze: names of the model's parts that are not trained
    int freeze;      // the parts in `frozen` as bits PART_VISION, ...
    // learning rates of the vision tower and of the projector; 0: same as lr
    float lr_vision, lr_projector;
    int max_skipped; // the run ends after this number of consecutive skipped updates
    // skip an update whose loss or gradient norm is this many standard deviations above the recent mean; 0: never
    float skip_loss_z, skip_grad_z;
    // settings of evaluations and samples
    int64_t val_every;               // steps between validations; 0: only at the end of the run
    int val_batches;                 // number of micro-batches of a validation, over all ranks; -1: all validation data
    char hellaswag[PATH_MAX_LENGTH]; // file of HellaSwag examples; "": none
    int64_t hellaswag_every;         // steps between HellaSwag evaluations; 0: only at the end; -1: val_every
    int64_t sample_every;            // steps between generated samples; 0: only at the end of the run
    int sample_tokens;               // number of tokens that a sample generates; 0: no samples
    int64_t health_every;            // steps between FP8 health statistics in the log; 0: never
    int64_t health_matmuls;          // steps between comparisons of FP8 wgrad with BF16 wgrad; 0: never
    char prompt[4096];
    char image[PATH_MAX_LENGTH]; // file whose first image is part of the prompt; "": none
    int image_rows;              // total tokens that represent the image, over all its places in the prompt
    PromptFormat prompt_format;
    int samples; // number of samples generated each time
    float temperature, top_p;
    int top_k;
    bool eval_only, overfit_one_batch;
    // settings of files
    char out[PATH_MAX_LENGTH]; // output folder of the run; "": the run writes no files
    int64_t save_every;        // steps between checkpoints; 0: only at the end of the run
    int keep;                  // number of newest checkpoints to retain; 0: all
    int64_t keep_every;        // checkpoints whose step is a multiple of keep_every are never deleted; 0: no such rule
    bool resume;
    int64_t resume_step;   // step of the checkpoint to resume from; -1: newest checkpoint
    bool allow_other_data; // true: a resumed run may use other training data
    bool overwrite;
    // settings of the device and of the run
    DeviceKind device;
    int threads; // number of threads of the CPU backend; 0: all cores
    int zero;    // ZeRO stage, 0 to 3
    int gpus;    // number of GPUs to plan for; --plan only
    PlanKind plan;
    bool offload_states;  // true: a GPU run stores moments and master weights in host memory
    int64_t memory_limit; // memory in bytes that the micro-batch chosen by --plan must fit in; 0: no limit
    int64_t profile;      // optimizer step that a profiler records; -1: none
    bool autotune;
    char matmul_table[PATH_MAX_LENGTH]; // file of GEMM algorithms; "": none
    int64_t time_limit_ms;              // ms after the program's start by which the program must end; 0: no limit
    int64_t log_every;                  // steps between lines on the terminal
    bool quiet, json;
    // settings of distributed runs; without a flag, the launcher's environment variables determine them
    int world_size;       // number of processes; 0: read from the launcher's environment
    int rank;             // rank of this process; -1: read from the launcher's environment
    char rendezvous[256]; // address HOST[:PORT] of rank 0; "": read from the launcher's environment
    // remarks on the flags, one per line, which rank 0 prints on stderr
    char notes[2 * PATH_MAX_LENGTH];
} Config;

// Sets config to the defaults of all flags: recipe coat, GPT-2's shape, llm.c's values for other settings.
void config_defaults(Config *config);

// Sets every field of the recipe to the values of --recipe `kind`.
void recipe_apply(Recipe *recipe, RecipeKind kind);

// True if the run trains a model, false if it evaluates one or samples from it.
static inline bool config_trains(const Config *config) {
    return config->train[0] && !config->eval_only;
}

// True if the run only samples.
static inline bool config_samples_only(const Config *config) {
    return config->prompt[0] && !config->train[0] && !config->eval_only;
}

// True if the run has no backward pass, so that it needs no gradients and optimizer states: an evaluation or a sample.
static inline bool config_forward_only(const Config *config) {
    return config->eval_only || config_samples_only(config);
}

// True if this run has FP8 matmuls in the output head. With --head fp8-backward, only a training run has FP8 matmuls in
// the head.
static inline bool config_fp8_head(const Config *c) {
    return c->recipe.head == HEAD_FP8 || (c->recipe.head == HEAD_FP8_BACKWARD && !config_forward_only(c));
}

// True if the run trains the weight matrices of the language model's blocks with Muon. False if --freeze names the
// language model.
static inline bool config_trains_with_muon(const Config *config) {
    return config->optimizer == OPTIMIZER_MUON && !config_forward_only(config) && !(config->freeze & PART_LANGUAGE);
}

// Returns the number of steps between HellaSwag evaluations; 0: only at the end of the run.
static inline int64_t config_hellaswag_every(const Config *config) {
    return config->hellaswag_every < 0 ? config->val_every : config->hellaswag_every;
}

// Returns the folder that contains the files of the vision tower; "" if the tower is new.
static inline const char *config_vision_files(const Config *config) {
    return config->vision_from_files ? config->vision : config->shape_files;
}

// Returns the weights of the --train data sets for data_open_sets(); NULL if all files are one set.
static inline const double *config_weights(const Config *config) {
    return config->train_weights[0] > 0 ? config->train_weights : NULL;
}

// Checks that a run of `ranks` processes can use the recipe and the batch: divisibility, limits of FP8 and of the
// device, flags that need a GPU. Fails with EXIT_USER. Resolves batch_tokens, micro_batch, seq_len and the recipe. A
// recipe that --recipe does not name becomes bf16, with a line in notes, if FP8 does not support the shape or
// gpu_without_fp8 is set.
bool config_check_recipe(Config *config, int ranks, Error *err);

// Returns the tokenizer's name for --tokenizer: "bytes", a tokenizer file, or "gpt2".
static inline const char *config_tokenizer_name(const Config *c) {
    const bool bytes = c->tokenizer == TOKENIZER_BYTES || (c->tokenizer == TOKENIZER_ANY && c->shape.vocab == 257);
    return bytes ? "bytes" : c->tokenizer_file[0] ? c->tokenizer_file : "gpt2";
}

static inline int64_t config_micro_tokens(const Config *c) {
    return (int64_t)c->micro_batch * c->seq_len;
}

// A pass over a prompt is padded to a multiple of this number of tokens, or to seq_len if that is less.
#define SAMPLE_STEP 64

// Returns the smallest number of tokens in a forward pass that generates a sample: 16 with FP8 matmuls, whose sizes
// must be multiples of 16; otherwise 1.
static inline int config_min_tokens(const Config *c) {
    return c->recipe.linear == LINEAR_FP8 || config_fp8_head(c) ? 16 : 1;
}

// Returns the number of rows of logits that a sample computes. Only the last row is used, but an FP8 matmul needs 16
// rows.
static inline int config_sample_logits(const Config *c) {
    return c->recipe.head == HEAD_FP8 ? 16 : 1;
}

// Returns the number of sequences in a forward pass that generates a sample: 1, or more if FP8 matmuls need more tokens
// than one sequence has.
static inline int config_sample_sequences(const Config *c) {
    const int tokens = config_min_tokens(c);
    int B = 1;
    while (c->seq_len < tokens && B * c->seq_len % tokens != 0) B++;
    return B;
}

// Returns an upper bound of the tokens of a sample and its prompt, at most seq_len. A prompt has at most 1 token per
// ASCII byte and 3 per other byte, because Unicode normalization may add bytes. In addition, the tokenizer adds at most
// 2 tokens (such as BOS and a space), the prompt format at most 256.
static inline int config_sample_length(const Config *c) {
    const bool formatted =
        prompt_format_named(c->prompt_format) || (c->prompt_format == PROMPT_FORMAT_DATA && c->train[0]);
    int64_t tokens = 2 + (int64_t)c->sample_tokens + (c->prompt[0] && formatted ? 256 : 0) + c->image_rows;
    for (const char *byte = c->prompt; *byte; byte++) tokens += (unsigned char)*byte < 0x80 ? 1 : 3;
    return tokens < c->seq_len ? (int)tokens : c->seq_len;
}

// Returns the number of token rows that a sample's forward pass over `length` tokens computes: length rounded up, but
// at most T, the maximum sequence length. The rounding allows at most 64 different results, because a GPU stores matmul
// plans for each.
static inline int config_sample_rows(int length, int T) {
    const int step = SAMPLE_STEP * (1 + (T - 1) / 4096), padded = (length + step - 1) / step * step;
    return padded < T ? padded : T;
}

// True if backward recomputes the outputs of the norms. False if forward saves these outputs.
static inline bool config_recomputes_norms(const Config *c) {
    return c->shape.norm_place == NORM_PRE && c->recipe.recompute >= (c->recipe.saved == SAVED_COAT ? 1 : 2);
}

// True if backward repeats the forward pass of each block from the block's saved input (--recompute 3). Other
// activations are then stored for only one block at a time.
static inline bool config_recomputes_blocks(const Config *c) {
    return c->recipe.recompute >= 3 && !config_forward_only(c);
}

// True if an upper bound instead of the amax determines the scales of dh_q, the gradient of the activation function's
// input. Then one pass can compute dh_q and recompute the activation function's output.
static inline bool config_bounds_activation(const Config *c) {
    const Recipe *r = &c->recipe;
    return blocks_in_fp8(r) && saves_groups(r) && !recipe_is_paper(r) && r->recompute >= 1;
}

// Returns the number of blocks, counted from the first, whose forward matmuls of norm and attention outputs are in BF16
// (--bf16-blocks). Their backward matmuls are in FP8. If backward does not recompute norm outputs, the forward matmuls
// that read norm outputs are in FP8, too.
static inline int config_bf16_blocks(const Config *c) {
    const Recipe *r = &c->recipe;
    if (!blocks_in_fp8(r)) return 0;
    const int third = c->shape.layers / 3, few = third < 1 ? 1 : third > 4 ? 4 : third;
    const int blocks = r->bf16_blocks < 0 ? few : r->bf16_blocks;
    return blocks < c->shape.layers ? blocks : c->shape.layers;
}

// Returns the number of micro-batches per rank and optimizer step.
static inline int64_t config_accumulation(const Config *c, int ranks) {
    int64_t per_pass = config_micro_tokens(c) * ranks;
    return c->batch_tokens > per_pass ? c->batch_tokens / per_pass : 1;
}

// Returns the number of tokens of an optimizer step over all `ranks` processes.
static inline int64_t config_batch_tokens(const Config *c, int ranks) {
    return config_accumulation(c, ranks) * config_micro_tokens(c) * ranks;
}

C_LINKAGE_END
