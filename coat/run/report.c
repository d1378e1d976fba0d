#include "report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/vision.h"
#include "log/terminal.h"
#include "model/plan.h"
#include "model/schedule.h"
#include "text/prompt_format.h"

enum { TEXT_LENGTH = 2 * PATH_MAX_LENGTH };

__attribute__((format(printf, 3, 4))) static void item(FILE *out, const char *label, const char *format, ...) {
    char buffer[TEXT_LENGTH];
    va_list args;
    va_start(args, format);
    vsnprintf(buffer, sizeof buffer, format, args);
    va_end(args);
    print_item(out, label, buffer);
}

// Returns a number rounded to an integer, with commas, such as "5,120". The text stays valid until count() has been
// called four more times.
static const char *count(double value) {
    static char texts[4][32];
    static int next;
    char *text = texts[next++ % 4];
    format_count(text, sizeof texts[0], value);
    return text;
}

// Writes a model's heads as text, such as "32 heads of 128 (8 key/value heads)". Omits the head width if it is
// channels / heads, and the number of key/value heads if it equals the number of heads.
static const char *heads_text(const ModelShape *s, char text[80]) {
    int at = snprintf(text, 80, "%d head%s", s->heads, plural(s->heads));
    if (s->head_dim * s->heads != s->channels) at += snprintf(text + at, 80 - (size_t)at, " of %d", s->head_dim);
    if (s->kv_heads != s->heads) snprintf(text + at, 80 - (size_t)at, " (%d key/value heads)", s->kv_heads);
    return text;
}

// Prints the vision tower's shape, and the parameters of tower and projector. Prints nothing for text-only models.
static void report_vision(const Config *c, FILE *out) {
    const VisionShape *v = &c->shape.vision;
    if (v->kind == VISION_NONE) return;
    Config *tower = (Config *)xmalloc(sizeof *tower);
    vision_config(tower, c);
    item(out, "vision",
         "%.1f M parameters with the projector: %d layer%s, %d head%s, %d channel%s, images of %d x %d pixels",
         (double)model_parameters(&tower->shape) / 1e6, v->layers, plural(v->layers), v->heads, plural(v->heads),
         v->channels, plural(v->channels), v->image_size, v->image_size);
    free(tower);
}

static void report_model(const Config *c, FILE *out) {
    char heads[80];
    const ModelShape *s = &c->shape;
    item(out, "model",
         "%s%s%.1f M parameters: %d layer%s, %s, %d channel%s, %d position%s, vocabulary %d (padded to %d)", c->model,
         c->model[0] ? ", " : "", (double)model_parameters(s) / 1e6, s->layers, plural(s->layers), heads_text(s, heads),
         s->channels, plural(s->channels), s->positions, plural(s->positions), s->vocab, s->vocab_padded);
    report_vision(c, out);
}

// Prints the number format of each part of the training state, because individual flags may override the recipe's
// formats.
static void report_recipe(const Config *c, FILE *out) {
    const Recipe *r = &c->recipe;
    if (r->precision == PRECISION_FP32) {
        item(out, "recipe", "everything in FP32");
        return;
    }
    char first[64] = "";
    const int blocks = config_bf16_blocks(c);
    if (blocks > 0) snprintf(first, sizeof first, " (forward: %d block%s bf16)", blocks, plural(blocks));
    item(out, "recipe", "%s: linear %s%s, head %s, saved %s, recompute %d, gradients %s, moments %s, master %s",
         choice_name(RECIPE_NAMES, r->kind).text, r->linear == LINEAR_FP8 ? "fp8" : "bf16", first,
         choice_name(HEAD_NAMES, r->head).text, r->saved == SAVED_COAT ? "coat" : "bf16", r->recompute,
         format_name(r->grads), choice_name(MOMENTS_NAMES, r->moments).text, choice_name(MASTER_NAMES, r->master).text);
}

// Returns the format of Muon's momentum of matrices that --moments-fp32 does not name; FP32 if --moments-fp32 names
// all.
static Format momentum_format(const Arena *arena) {
    Format format = FMT_FP32;
    for (int id = 0; id < PARAMETER_COUNT; id++)
        if (tensor_uses_muon((TensorId)id, arena->config) && arena->layout[id][MOMENT_M].format != FMT_FP32)
            format = arena->layout[id][MOMENT_M].format;
    return format;
}

static void report_optimizer(const Arena *arena, FILE *out) {
    const Config *c = arena->config;
    if (!arena->layout[MUON_X][VALUE].exists) return;
    item(out, "optimizer", "Muon for the blocks' matrices: momentum %.3g in %s, update RMS %.3g; AdamW for the rest",
         c->muon_momentum, format_name(momentum_format(arena)), c->muon_rms);
}

static int64_t tokens_of_step(const Run *run) {
    return config_batch_tokens(run->config, run->place.ranks);
}

static int64_t steps_left(const Run *run) {
    return run->steps > run->done.step ? run->steps - run->done.step : 0;
}

// Returns the number of sequences in all steps of the run. Steps before a resume may have had a different batch size.
static int64_t total_sequences(const Run *run) {
    return run->done.sequences + steps_left(run) * (tokens_of_step(run) / run->config->seq_len);
}

// Prints how examples are packed into sequences, and how many examples are truncated or dropped. Prints nothing if the
// data has no examples. If label is "", continues the preceding item, which must describe the same data.
static void report_examples(const DataLoader *loader, const char *label, int seq_len, FILE *out) {
    const DataExamples e = data_examples(loader);
    char cut[96] = "", left_out[64] = "";
    if (e.examples == 0) return;
    if (e.cut > 0) snprintf(cut, sizeof cut, ", %s truncated to %d + 1 tokens", count((double)e.cut), seq_len);
    if (e.left_out > 0) snprintf(left_out, sizeof left_out, ", %s without a target dropped", count((double)e.left_out));
    const char *what = label[0] ? "" : e.examples == 1 ? " example" : " examples";
    item(out, label, "%s%s in %s sequence%s, %.3g %% full%s%s", count((double)e.examples), what,
         count((double)e.sequences), plural(e.sequences), 100.0 * e.filled, cut, left_out);
}

// Prints the training data. If there are several data sets, also prints each set's weight and its number of epochs in
// the run.
static void report_train(const Run *run, FILE *out) {
    char text[TEXT_LENGTH];
    item(out, "train", "%s", data_describe(run->train, text, sizeof text));
    report_examples(run->train, "examples", run->config->seq_len, out);
    if (prompt_format_named(run->config->prompt_format))
        item(out, "prompts", "in the format %s", prompt_format_name(run->config->prompt_format));
    for (int k = 0; k < data_sets(run->train) && data_sets(run->train) > 1; k++) {
        const DataSet set = data_set(run->train, k, total_sequences(run));
        item(out, "", "%.3g %%: %s, %s token%s, %.3g epoch%s", 100.0 * set.share, set.name, count((double)set.tokens),
             plural(set.tokens), set.epochs, plural(set.epochs));
    }
}

static void report_schedule(const Run *run, FILE *out) {
    const Config *c = run->config;
    int ranks = run->place.ranks;
    int64_t accumulation = config_accumulation(c, ranks);
    double step_tokens = (double)tokens_of_step(run);
    double total = (double)run->done.tokens + step_tokens * (double)steps_left(run);
    double passes = (double)total_sequences(run) / (double)data_sequences(run->train);
    char processes[64] = "", done[64] = "", warmup[64] = "", final[48] = "", epochs[48] = "";
    if (ranks > 1) snprintf(processes, sizeof processes, ", %d processes, ZeRO %d", ranks, c->zero);
    if (run->done.step > 0)
        snprintf(done, sizeof done, "; %s step%s done", count((double)run->done.step),
                 run->done.step == 1 ? " is" : "s are");
    if (c->warmup > 0)
        snprintf(warmup, sizeof warmup, " after %s step%s of warm-up", count((double)c->warmup), plural(c->warmup));
    if (schedule_falls(c)) snprintf(final, sizeof final, ", then to %.3g", c->lr * c->lr_final);
    item(out, "batch", "%d x %d tokens, %" PRId64 " micro-batch%s per step%s: %s token%s per step", c->micro_batch,
         c->seq_len, accumulation, accumulation == 1 ? "" : "es", processes, count(step_tokens), plural(step_tokens));
    item(out, "schedule", "%s: lr %.3g%s%s; weight decay %.3g, clipping at %.3g, seed %" PRIu64,
         choice_name(SCHEDULE_NAMES, schedule_falls(c) ? c->schedule : SCHEDULE_CONSTANT).text, c->lr, warmup, final,
         c->weight_decay, c->grad_clip, c->seed);
    if (data_sets(run->train) == 1) snprintf(epochs, sizeof epochs, ", %.3g epoch%s", passes, plural(passes));
    item(out, "length", "%s step%s, %s token%s%s%s", count((double)run->steps), plural(run->steps), count(total),
         plural(total), epochs, done);
}

// Writes an interval in steps as text: "every step", "every 250 steps" or, if `every` is 0, "at the end".
static const char *how_often(char text[48], int64_t every) {
    if (every == 1)
        snprintf(text, 48, "every step");
    else if (every > 0)
        snprintf(text, 48, "every %" PRId64 " steps", every);
    else
        snprintf(text, 48, "at the end");
    return text;
}

// Writes to `text` how much of the validation data is evaluated:
//   - without a loss mask: ", the first N of them", in tokens
//   - with a loss mask: the number of sequences, because sequences of examples may not be full; "" if all are evaluated
static void validated(const Run *run, char text[96]) {
    const Config *c = run->config;
    const int64_t all = data_sequences(run->val);
    int64_t sequences = (int64_t)data_batches(run->val, c->val_batches) * c->micro_batch;
    if (sequences > all) sequences = all; // masked sequences fill the last micro-batch
    text[0] = 0;
    if (!data_masked(run->val))
        snprintf(text, 96, ", the first %s of them", count((double)(sequences * c->seq_len)));
    else if (sequences < all)
        snprintf(text, 96, ", the first %s of %s sequences", count((double)sequences), count((double)all));
}

static void report_validation(const Run *run, FILE *out) {
    const Config *c = run->config;
    char text[PATH_MAX_LENGTH], often[48], part[96];
    data_describe(run->val, text, sizeof text);
    validated(run, part);
    const char *between = part[0] ? " " : ", ";
    item(out, "validation", "%s%s%s%s", text, part, run->train ? between : "",
         run->train ? how_often(often, c->val_every) : "");
    report_examples(run->val, "", c->seq_len, out);
}

static void report_evaluation(const Run *run, FILE *out) {
    const Config *c = run->config;
    char often[48];
    if (run->val) report_validation(run, out);
    if (run->hellaswag)
        item(out, "HellaSwag", "%s example%s%s%s", count(hellaswag_examples(run->hellaswag)),
             plural(hellaswag_examples(run->hellaswag)), run->train ? ", " : "",
             run->train ? how_often(often, config_hellaswag_every(c)) : "");
}

static void report_files(const Config *c, FILE *out) {
    char often[48], keep[48] = "";
    if (c->keep > 0) snprintf(keep, sizeof keep, ", the newest %d kept", c->keep);
    if (c->out[0])
        item(out, "files", "%s: log.jsonl, curves for TensorBoard, a checkpoint %s%s", c->out,
             how_often(often, c->save_every), keep);
    else
        item(out, "files", "none are written; add --out DIR to write them");
}

static void report_device(const char *name, double peak, FILE *out) {
    if (peak > 0.0 && isfinite(peak))
        item(out, "device", "%s, peak %s TFLOP/s in BF16", name, count(peak / 1e12));
    else
        item(out, "device", "%s, peak unknown, so no percentage of it is shown", name);
}

void report_start(Run *run, FILE *out) {
    const Config *c = run->config;
    const Ops *ops = run->model.ops;
    Exec *exec = &run->model.exec;
    char text[PATH_MAX_LENGTH];
    ops->describe(exec, text, sizeof text);
    report_device(text, ops->peak_flops(exec), out);
    report_model(c, out);
    report_recipe(c, out);
    if (run->train) report_train(run, out);
    report_evaluation(run, out);
    if (run->train) {
        report_optimizer(&run->model.arena, out);
        report_schedule(run, out);
        report_files(c, out);
    }
    arena_report(&run->model.arena, false, out);
    int64_t in_use = ops->memory_in_use(exec);
    char used[MEMORY_TEXT];
    if (in_use > 0)
        fprintf(out, "  %-16s %12s  in use by all programs\n", "driver reports", memory_text(used, (size_t)in_use));
    fflush(out);
}

// Estimates of the device memory, in bytes, that CUDA and NCCL use in addition to the plan. The estimate for CUDA was
// measured on one GPU; the estimate for NCCL is the maximum measured on two and four GPUs of a host.
static const double CONTEXT_BYTES = 0.6e9, NCCL_BYTES = 1.1e9;

static void report_overhead(int ranks, FILE *out) {
    char text[MEMORY_TEXT];
    fprintf(out, "  %-16s %12s  CUDA's context%s\n", "estimated extra",
            memory_text(text, (size_t)(CONTEXT_BYTES + (ranks > 1 ? NCCL_BYTES : 0))), ranks > 1 ? " and NCCL" : "");
}

bool report_plan(const Config *config, FILE *out, Error *err) {
    const DeviceKind device = config->device == DEVICE_CPU ? DEVICE_CPU : DEVICE_CUDA;
    const int ranks = config->gpus > 0 ? config->gpus : 1;
    const ModelShape *s = &config->shape;
    Config c = *config;
    char limit[MEMORY_TEXT];
    if (c.memory_limit > 0 && !plan_take_largest(&c, ranks, device, err)) return false;
    Arena *arena = (Arena *)xmalloc(sizeof *arena);
    arena_plan(arena, &c, ranks, device);
    if (c.plan == PLAN_JSON) {
        arena_report_json(arena, c.memory_limit > 0 ? c.micro_batch : 0, out);
    } else {
        char heads[80];
        item(out, "model", "%d layer%s, %s, %d channel%s: %.1f M parameters", s->layers, plural(s->layers),
             heads_text(s, heads), s->channels, plural(s->channels), (double)model_parameters(s) / 1e6);
        report_vision(&c, out);
        item(out, "recipe", "%s, micro-batch %d x %d token%s, %d process%s, ZeRO %d",
             c.recipe.precision == PRECISION_FP32 ? "everything in FP32"
                                                  : choice_name(RECIPE_NAMES, c.recipe.kind).text,
             c.micro_batch, c.seq_len, plural(c.seq_len), ranks, ranks > 1 ? "es" : "", c.zero);
        arena_report(arena, true, out);
        if (device == DEVICE_CUDA) report_overhead(ranks, out);
        if (c.memory_limit > 0 && !config_samples_only(&c))
            fprintf(out, "largest micro-batch under %s: %d\n", memory_text(limit, (size_t)c.memory_limit),
                    c.micro_batch);
    }
    free(arena);
    return true;
}
