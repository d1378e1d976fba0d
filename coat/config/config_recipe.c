// Checks that a run with this shape can use the recipe, the batch and the number of processes.
#include "config.h"

#include <string.h>

#include "shapes.h"
#include "vision.h"

// A condition under which a run cannot use a flag, and the texts of the error message. --plan ignores the condition.
typedef struct {
    bool (*used)(const Config *config, int ranks); // true if the run uses the flag under the condition
    const char *flag;                              // flag as the message shows it
    const char *reason;                            // why the flag cannot be used
    const char *fix;
} UnusableFlag;

static bool may_use_gpu(const Config *c) {
#ifdef COAT_CUDA
    return c->device != DEVICE_CPU;
#else
    return c->device == DEVICE_CUDA;
#endif
}
static bool on_gpu(const Config *c) {
    return c->plan != PLAN_NONE ? c->device != DEVICE_CPU : may_use_gpu(c) && !c->no_gpu;
}
static bool autotunes_on_cpu(const Config *c, int ranks) {
    (void)ranks;
    return c->autotune && !may_use_gpu(c);
}
static bool profiles_on_cpu(const Config *c, int ranks) {
    (void)ranks;
    return c->profile > 0 && !may_use_gpu(c);
}
static bool autotunes_on_ranks(const Config *c, int ranks) {
    return c->autotune && ranks > 1;
}
static bool has_table_on_cpu(const Config *c, int ranks) {
    (void)ranks;
    return c->matmul_table[0] && !may_use_gpu(c);
}
// clang-format off
static const UnusableFlag unusable[] = {
    {autotunes_on_cpu, "--autotune", "times the matmuls of a GPU, but this run uses the CPU", "remove it"},
    {profiles_on_cpu, "--profile", "marks a step for CUDA's profilers, but this run uses the CPU",
     "remove it, and use perf or gprof to profile the CPU"},
    {autotunes_on_ranks, "--autotune", "tunes in one process only, because all processes must use the same algorithms",
     "train one step with --autotune in one process, then start all with --matmul-table FOLDER/matmul_table.txt"},
    {has_table_on_cpu, "--matmul-table", "lists algorithms of a GPU's matmuls, but this run uses the CPU", "remove it"},
};
// clang-format on

static bool check_usable(const Config *c, int ranks, Error *err) {
    for (size_t i = 0; c->plan == PLAN_NONE && i < sizeof unusable / sizeof unusable[0]; i++) {
        const UnusableFlag *f = &unusable[i];
        if (f->used(c, ranks)) return error_set(err, EXIT_USER, "%s: %s; %s", f->flag, f->reason, f->fix);
    }
    return true;
}

static bool check_health(const Config *c, Error *err) {
    if (c->health_matmuls == 0) return true;
    if (c->freeze & PART_LANGUAGE && !config_forward_only(c))
        return error_set(err, EXIT_USER,
                         "--health-products: compares weight gradients, which --freeze language omits; remove one of "
                         "them");
    return blocks_in_fp8(&c->recipe) ||
           error_set(err, EXIT_USER,
                     "--health-products: compares FP8 matmuls, but the blocks' matmuls are not FP8; remove it, "
                     "or use --linear fp8");
}

static bool check_multiple(const char *flag, const char *what, int64_t value, int64_t multiple, Error *err) {
    if (value % multiple == 0) return true;
    return error_set(err, EXIT_USER, "%s: FP8 needs %s, here %lld, to be a multiple of %lld; use %lld", flag, what,
                     (long long)value, (long long)multiple, (long long)((value / multiple + 1) * multiple));
}

// Checks that FP8 supports a dimension of the model. The error suggests a larger dimension or, if the shape is read
// from files, another recipe. For a vision tower, the error has no suggestion, because check_vision_recipe() adds one.
static bool check_dimension(const Config *c, const char *flag, const char *what, int64_t value, Error *err) {
    if (!c->shape_files[0] && !c->shape.tower) return check_multiple(flag, what, value, 16, err);
    if (value % 16 == 0) return true;
    return error_set(err, EXIT_USER, "%s: FP8 needs %s, here %lld, to be a multiple of 16%s", flag, what,
                     (long long)value,
                     c->shape.tower ? "" : "; use --recipe bf16 without --linear, --head and --saved");
}

// Checks that FP8 supports `tokens`, the number of tokens of a pass. The error suggests the next larger micro-batch
// that FP8 supports.
static bool check_tokens(const Config *c, int64_t tokens, Error *err) {
    if (tokens % 16 == 0) return true;
    int rows = c->micro_batch;
    while ((int64_t)rows * c->seq_len % 16) rows++;
    return error_set(err, EXIT_USER,
                     "--micro-batch, --seq-len: FP8 needs their product, here %lld, to be a multiple of 16; use "
                     "--micro-batch %d",
                     (long long)tokens, rows);
}

// Checks that attention on a GPU supports the head width: up to 256 with --precision fp32; otherwise a multiple of 8 up
// to 128, because not every head width has a BF16 kernel.
static bool check_attention(const Config *c, Error *err) {
    const int width = c->shape.head_dim;
    const bool fp32 = c->recipe.precision == PRECISION_FP32;
    if (!on_gpu(c) || (width <= (fp32 ? 256 : 128) && (fp32 || width % 8 == 0))) return true;
    return error_set(err, EXIT_USER,
                     "--head-dim %d: attention on a GPU supports multiples of 8 up to 128 and, with --precision fp32, "
                     "all widths up to 256; change --heads, --head-dim or --channels, or use --device cpu",
                     width);
}

static bool check_most(const Config *c, const char *flag, int value, int most, const char *fix, Error *err) {
    if (value <= most || !on_gpu(c)) return true;
    return error_set(err, EXIT_USER, "%s %d: FP8 on a GPU supports at most %d; %s", flag, value, most, fix);
}

// Checks that FP8 supports the model's dimensions: GEMM dimensions must be multiples of 16, and the GPU's kernels
// process 16 columns at a time. Does not check two numbers that are rounded up to multiples of 16: the vocabulary,
// which is padded, and a sample's tokens.
static bool recipe_check_shape(const Config *c, Error *err) {
    const ModelShape *s = &c->shape;
    const Recipe *r = &c->recipe;
    bool search = c->plan != PLAN_NONE && c->memory_limit > 0; // true: --plan will choose the micro-batch
    bool linear = r->linear == LINEAR_FP8, head = config_fp8_head(c), saved = r->saved == SAVED_COAT;
    const bool samples = config_samples_only(c);
    int64_t tokens = samples ? config_min_tokens(c) : config_micro_tokens(c), qkv = shape_qkv_width(s);
    if ((linear || head || saved) && !check_dimension(c, "--channels", "the width", s->channels, err)) return false;
    if ((linear || head) && !search && !check_tokens(c, tokens, err)) return false;
    if (linear && !check_dimension(c, "--heads, --head-dim", "the width of q, k and v together", qkv, err))
        return false;
    if ((linear || saved) && !check_dimension(c, "--ffn", "the width", s->ffn, err)) return false;
    if ((linear || head || saved) && !check_most(c, "--channels", s->channels, FP8_MAX_NORM_WIDTH,
                                                 "use --recipe bf16 without --linear, --head and --saved", err))
        return false;
    const bool by_token = linear && !recipe_is_paper(r), gated = s->activation == ACT_SWIGLU;
    if (by_token && !check_most(c, "--ffn", s->ffn, FP8_MAX_ACTIVATION_WIDTH, "use --recipe coat-paper", err))
        return false;
    if (by_token && !check_most(c, "--heads x --head-dim", s->heads * s->head_dim, FP8_MAX_CAST_WIDTH,
                                "use --recipe coat-paper", err))
        return false;
    // In SwiGLU's saved input, a group of values that share a scale must not contain columns of both gate and up.
    if (saved && gated && on_gpu(c) && !check_multiple("--ffn, --group-size", "the width", s->ffn, r->group_size, err))
        return false;
    return true;
}

// Checks that FP8 matmuls of the output head support --logits-chunk. An unsupported value is an error, not a reason to
// fall back to --recipe bf16, because the user can choose another value.
static bool check_logits_chunk(const Config *c, Error *err) {
    return !config_fp8_head(c) || config_samples_only(c) || c->logits_chunk >= config_micro_tokens(c) ||
           check_multiple("--logits-chunk", "the tokens of a chunk", c->logits_chunk, 16, err);
}

// Checks that the tower's shape and the GPU support --vision-recipe coat.
static bool check_vision_recipe(const Config *c, Error *err) {
    if (c->vision_recipe == VISION_RECIPE_BF16 || c->recipe.precision == PRECISION_FP32) return true;
    Config *tower = (Config *)xmalloc(sizeof *tower);
    vision_config(tower, c);
    Error why;
    const bool fits = recipe_check_shape(tower, &why);
    free(tower);
    if (fits && !c->gpu_without_fp8[0]) return true;
    return error_set(err, EXIT_USER, "--vision-recipe coat: %s%s; use --vision-recipe bf16",
                     fits ? "" : "for the vision tower, ", fits ? c->gpu_without_fp8 : why.text);
}

static void add_note(Config *c, const char *because) {
    const char *whose = c->recipe_recorded ? "the recorded recipe" : "the default";
    text_append(c->notes, sizeof c->notes, "note: --recipe bf16: used instead of %s, %s, because %s\n",
                choice_name(RECIPE_NAMES, c->recipe.kind).text, whose, because);
}

// Chooses the final recipe. Without --recipe, the recipe becomes bf16, with a note, if the shape or the GPU does not
// support FP8. With --recipe, fails for an unsupported shape; opening the device fails for an unsupported GPU.
static bool recipe_decide(Config *c, Error *err) {
    bool multiplies = c->recipe.linear == LINEAR_FP8 || config_fp8_head(c);
    bool fits = recipe_check_shape(c, err), device = !multiplies || !c->gpu_without_fp8[0];
    bool final = c->recipe_final;
    c->recipe_final = true;
    if (final || (fits && device)) return fits;
    add_note(c, fits ? c->gpu_without_fp8 : err->text);
    c->recipe = c->plain_recipe;
    return recipe_check_shape(c, err); // checked again, because flags such as --linear fp8 override recipe bf16
}

// Adapts a recorded batch that is not a multiple of ranks * tokens of a micro-batch. If the micro-batch is recorded,
// too, lowers the micro-batch until the batch is a multiple. If no micro-batch fits, rounds the batch.
static void fit_recorded_batch(Config *c, int ranks) {
    int64_t per_pass = config_micro_tokens(c) * ranks;
    if (!c->batch_recorded || c->batch_tokens % per_pass == 0) return;
    const int multiple = config_micro_tokens(c) % 16 ? 1 : 16; // the tokens of an FP8 pass must be a multiple of 16
    for (int rows = c->micro_batch; c->micro_batch_recorded && rows > 0; rows--) {
        int64_t tokens = (int64_t)rows * c->seq_len;
        if (tokens % multiple || c->batch_tokens % (tokens * ranks)) continue;
        c->micro_batch = rows;
        return;
    }
    int64_t passes = (c->batch_tokens + per_pass / 2) / per_pass;
    c->batch_tokens = (passes > 1 ? passes : 1) * per_pass;
}

static bool check_batch(const Config *c, int ranks, Error *err) {
    int64_t tokens = config_micro_tokens(c), per_pass = tokens * ranks, batch = c->batch_tokens;
    if (tokens > INT32_MAX)
        return error_set(err, EXIT_USER,
                         "--micro-batch %d: with --seq-len %d it has more than 2^31 - 1 tokens; use --micro-batch %d",
                         c->micro_batch, c->seq_len, INT32_MAX / c->seq_len);
    if (batch == 0 || batch % per_pass == 0 || (c->plan != PLAN_NONE && c->memory_limit > 0)) return true;
    char below[64] = "";
    if (batch > per_pass) snprintf(below, sizeof below, "%lld or ", (long long)(batch / per_pass * per_pass));
    return error_set(
        err, EXIT_USER,
        "--batch-tokens %lld: not a multiple of %lld, the tokens of one pass (--micro-batch %d x --seq-len %d x %d "
        "process%s); use %s%lld",
        (long long)batch, (long long)per_pass, c->micro_batch, c->seq_len, ranks, ranks == 1 ? "" : "es", below,
        (long long)((batch / per_pass + 1) * per_pass));
}

// Adds a note if --zero is given for one process, where it has no effect, or if --zero 1 would divide Muon's work among
// several processes.
static void note_zero(Config *c, int ranks) {
    if (ranks == 1 && c->zero > 0)
        text_append(c->notes, sizeof c->notes, "note: --zero %d: has no effect with one process; %s\n", c->zero,
                    c->plan != PLAN_NONE ? "use --gpus N to plan for N processes"
                                         : "use mpirun -np N to start N processes");
    if (ranks > 1 && c->zero == 0 && config_trains_with_muon(c))
        text_append(c->notes, sizeof c->notes,
                    "note: --zero 0: each process orthogonalizes all of Muon's matrices; --zero 1 divides them\n");
}

// Adds a note if --beta2 is too large for 8-bit second moments.
static void note_beta2(Config *c) {
    const bool fp8 = c->recipe.moments == MOMENTS_FP8 || c->recipe.moments == MOMENTS_COAT;
    if (fp8 && c->beta2 > 0.99f && !config_forward_only(c))
        text_append(
            c->notes, sizeof c->notes,
            "note: --beta2 %g: most updates of 8-bit second moments are smaller than half an FP8 step, so rounding "
            "drops them; use --beta2 0.95 or --moments bf16\n",
            (double)c->beta2);
}

// Shortens seq_len to the largest number of tokens that a sample can have. For runs that only sample.
static void fit_sample(Config *c) {
    const int tokens = (config_sample_length(c) + SAMPLE_STEP - 1) / SAMPLE_STEP * SAMPLE_STEP;
    if (tokens < c->seq_len) c->seq_len = tokens;
}

bool config_check_recipe(Config *config, int ranks, Error *err) {
    if (config_forward_only(config)) config->batch_tokens = 0;
    if (config_samples_only(config)) fit_sample(config);
    fit_recorded_batch(config, ranks);
    if (!recipe_decide(config, err) || !check_logits_chunk(config, err)) return false;
    if (config_samples_only(config)) config->micro_batch = config_sample_sequences(config);
    if (!check_batch(config, ranks, err)) return false;
    // replaces bf16_blocks -1 with the number of blocks, which the start-up report and checkpoints show
    config->recipe.bf16_blocks = config_bf16_blocks(config);
    if (!check_usable(config, ranks, err) || !check_health(config, err)) return false;
    if (!check_attention(config, err) || !check_vision_recipe(config, err)) return false;
    note_zero(config, ranks);
    note_beta2(config);
    // only backward reads transposed weights
    if (config_forward_only(config)) config->recipe.cache_transposed = false;
    // ZeRO 3 gathers FP8 weights and then transposes them, because gathering the transposes, too, would double the
    // traffic.
    if (ranks > 1 && config->zero >= 3) config->recipe.cache_transposed = false;
    return true;
}
