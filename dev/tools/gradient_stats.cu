// Measures which FP8 format and which scale granularity gradients need. Loads the weights of a checkpoint (or a new
// model), runs forward and backward of one micro-batch with the recipe bf16, and measures every gradient that a linear
// layer reads: the errors that each format and scale rule causes in the gradient, dgrad and wgrad (gradient_measure.h),
// and the errors of accumulation in the device's FP8 matmuls (gradient_accumulation.h).
// Usage: gradient_stats CHECKPOINT --train GLOB [--batch N] [--json FILE] [flags of the trainer]
//   CHECKPOINT: a value of the trainer's --model: a folder, a weight file, or a name (gpt2) for new weights
// This file compiles as CUDA C with both backends (gradient_stats_gpu) and as C with the CPU backend (gradient_stats).
#include <errno.h>

#define TESTING
#include "train_gpt2_fp8.cu"

#include "coat/save/checkpoint.h"
#include "coat/text/data.h"
#include "gradient_report.h"

static const char usage[] =
    "usage: gradient_stats CHECKPOINT --train GLOB [--micro-batch 16] [--seq-len 1024] [--batch 0] [--json FILE]\n"
    "  CHECKPOINT      folder, weight file or name of a model, like the trainer's --model\n"
    "  --batch N       number of the micro-batch in the training data (from 0), in the order of --seed\n"
    "  --json FILE     also write the figures to FILE as JSON lines\n"
    "  --seed N  --no-shuffle  --device auto|cpu|cuda  --threads N  --matmul-table FILE\n"
    "  --fast-accumulation-data   as in the trainer\n";

typedef struct {
    Config config;
    int64_t batch;
    const char *json; // name of the file for results as JSON lines (--json), or NULL
} Options;

// True if `text` is a flag for the trainer's parser. Sets *has_value to whether the next argument is the flag's value.
static bool is_trainer_flag(const char *text, bool *has_value) {
    static const char *const with_value[] = {"--train", "--train-weight", "--micro-batch", "--seq-len",
                                             "--seed",  "--device",       "--threads",     "--matmul-table"};
    static const char *const without[] = {"--no-shuffle", "--fast-accumulation-data"};
    const size_t length = strcspn(text, "=");
    for (size_t i = 0; i < sizeof with_value / sizeof *with_value; i++) {
        if (strlen(with_value[i]) != length || strncmp(with_value[i], text, length) != 0) continue;
        *has_value = text[length] == '\0';
        return true;
    }
    *has_value = false;
    for (size_t i = 0; i < sizeof without / sizeof *without; i++)
        if (strcmp(without[i], text) == 0) return true;
    return false;
}

static bool read_count(const char *name, const char *text, int64_t *value, Error *err) {
    char *end;
    const long long number = strtoll(text, &end, 10);
    if (end == text || *end || number < 0 || number > INT32_MAX)
        return error_set(err, EXIT_USER, "%s: must be a number of at least 0 (is '%s')", name, text);
    *value = number;
    return true;
}

// Parses the flags of this tool, and passes the trainer's flags to the trainer's parser. They follow this tool's
// defaults (--recipe=bf16 --micro-batch=16), so that they override the defaults.
static bool read_options(Options *options, int argc, char **argv, Error *err) {
    static CommandLine line;
    static Config recorded;
    char recipe[] = "--recipe=bf16", micro_batch[] = "--micro-batch=16", model[PATH_MAX_LENGTH + 16];
    char **rest = (char **)xcalloc((size_t)argc + 4, sizeof *rest);
    int count = 0;
    bool good = true, has_value, exit_now, train = false;
    const char *checkpoint = NULL;
    rest[count++] = argv[0];
    rest[count++] = recipe;
    rest[count++] = micro_batch;
    for (int i = 1; i < argc && good; i++) {
        const bool last = i + 1 == argc;
        if (is_trainer_flag(argv[i], &has_value)) {
            train |= strncmp(argv[i], "--train", 7) == 0;
            rest[count++] = argv[i];
            if (has_value && !last) rest[count++] = argv[++i];
        } else if (strcmp(argv[i], "--batch") == 0 && !last) {
            good = read_count("--batch", argv[++i], &options->batch, err);
        } else if (strcmp(argv[i], "--json") == 0 && !last) {
            options->json = argv[++i];
        } else if (argv[i][0] == '-' || checkpoint) {
            good = error_set(err, EXIT_USER, "%s: is not a flag of this program, or its value is missing; see --help",
                             argv[i]);
        } else {
            checkpoint = argv[i];
        }
    }
    if (good && !checkpoint) good = error_set(err, EXIT_USER, "CHECKPOINT: is missing; see --help");
    if (good && !train)
        good = error_set(err, EXIT_USER, "--train: is missing; name token files, for example --train 'data/*.bin'");
    if (good && strlen(checkpoint) >= PATH_MAX_LENGTH)
        good = error_set(err, EXIT_USER, "CHECKPOINT: must have at most %d characters (has %zu)", PATH_MAX_LENGTH - 1,
                         strlen(checkpoint));
    if (good) {
        snprintf(model, sizeof model, "--model=%s", checkpoint);
        rest[count++] = model;
        good = command_line_read(&line, count, rest, &exit_now, err);
    }
    if (good) {
        config_defaults(&recorded); // this tool never resumes a run
        good = config_parse(&options->config, &line, &recorded, err);
    }
    free(rest);
    return good;
}

// A table of operations that replaces the model's table. The operations are the device's, except that linear layers'
// dgrad and wgrad are also measured.
typedef struct {
    Ops ops;         // first field, because exec.ops is cast to Watch
    const Ops *real; // the device's own operations, to which calls are forwarded
    const Model *model;
    void *workspace; // larger workspace for the measurements; NULL: the model's workspace is large enough
    Meter meter;
    GradientTable table;
    bool fp8;      // true if the device supports FP8 matmuls
    Weight weight; // weight of the latest dgrad; the wgrad that follows reads the same gradient
} Watch;

// Finds the gradient kind and the layer of a weight. Returns false if the weight belongs to no measured matmul.
static bool find_matmul(const Model *m, Weight w, GradientKind *kind, int *layer) {
    const TensorId weights[GRADIENT_KINDS] = {QKVW, PROJW, FCW, FCPROJW, head_weight(&m->config->shape)};
    for (int k = 0; k < GRADIENT_KINDS; k++) {
        for (int l = 0; l < (k == GRADIENT_HEAD ? 1 : m->config->shape.layers); l++) {
            if (weight(m, weights[k], l).value.data != w.value.data) continue;
            *kind = (GradientKind)k;
            *layer = l;
            return true;
        }
    }
    return false;
}

static void watched_backward_data(Exec *exec, Tensor dx, Tensor dy, Weight w) {
    Watch *watch = (Watch *)exec->ops;
    watch->weight = w;
    watch->real->linear_backward_data(exec, dx, dy, w);
}

// Replaces the wgrad operation: runs wgrad, then measures dgrad and wgrad. The dgrad of the same weight ran before, and
// watched_backward_data() stored the weight, so all operands of both matmuls are known here.
static void watched_backward_weight(Exec *exec, Tensor dw, Tensor dy, Tensor x, bool accumulate) {
    Watch *watch = (Watch *)exec->ops;
    Meter *meter = &watch->meter;
    const ModelShape *shape = &watch->model->config->shape;
    const Tensor w = watch->weight.value;
    GradientKind kind;
    int layer;
    watch->real->linear_backward_weight(exec, dw, dy, x, accumulate);
    if (!find_matmul(watch->model, watch->weight, &kind, &layer) || w.rows != dy.cols || w.cols != x.cols)
        fatal(EXIT_DEVICE,
              "internal error: a weight's wgrad does not directly follow its dgrad: gradient_stats does not match the "
              "model's sources");
    GradientRow *row = gradient_row(&watch->table, kind, layer);
    if (row->stats.tokens) return; // Only the first of the head's chunks is measured.
    Parts parts = one_part(dy.cols);
    if (kind == GRADIENT_QKV) {
        parts.count = 3;
        parts.end[0] = (int64_t)shape->heads * shape->head_dim;
        parts.end[1] = parts.end[0] + (int64_t)shape->kv_heads * shape->head_dim;
    }
    measure_gradient(meter, dy, x, w, parts, &row->stats);
    for (int f = 0; watch->fp8 && f < GRADIENT_FORMATS; f++)
        measure_accumulation(meter, dy, x, w, gradient_formats[f], &row->stats, &row->accumulation[f]);
}

// Increases `size` as far as needed to measure the matmuls of weight w for this number of tokens.
static void larger_size(MeterSize *size, int64_t tokens, Tensor w) {
    if (tokens * w.rows > size->gradient) size->gradient = tokens * w.rows;
    if (tokens * w.cols > size->input) size->input = tokens * w.cols;
    if (tensor_elements(w) > size->weight) size->weight = tensor_elements(w);
    if (tokens > size->rows) size->rows = tokens;
    if (w.rows > size->rows) size->rows = w.rows;
}

// Allocates a workspace for operations on rows as wide as the vocabulary. The model's workspace is smaller, because
// training quantizes such rows only in the loss kernel.
static bool widen_workspace(Watch *watch, Model *m, Error *err) {
    Config *wide = (Config *)xmalloc(sizeof *wide);
    *wide = *m->config;
    if (wide->shape.ffn < wide->shape.vocab_padded) wide->shape.ffn = wide->shape.vocab_padded;
    const size_t bytes = ops_workspace(wide, m->ops->device).bytes;
    free(wide);
    if (bytes <= m->exec.workspace_bytes) return true;
    watch->workspace = m->ops->allocate(&m->exec, bytes, err);
    if (!watch->workspace) return false;
    m->exec.workspace = watch->workspace;
    m->exec.workspace_bytes = bytes;
    return true;
}

static bool watch_open(Watch *watch, Model *m, Error *err) {
    static const TensorId of_blocks[] = {QKVW, PROJW, FCW, FCPROJW};
    MeterSize size = {0, 0, 0, 0};
    for (size_t i = 0; i < sizeof of_blocks / sizeof *of_blocks; i++)
        larger_size(&size, config_micro_tokens(m->config), weight(m, of_blocks[i], 0).value);
    larger_size(&size, m->arena.layout[LOGITS][VALUE].rows, weight(m, head_weight(&m->config->shape), 0).value);
    watch->model = m;
    watch->real = m->ops;
    if (!widen_workspace(watch, m, err) || !meter_open(&watch->meter, &m->exec, m->ops, &size, err)) return false;
    watch->table.layers = m->config->shape.layers;
    watch->table.rows =
        (GradientRow *)xcalloc((size_t)GRADIENT_KINDS * (size_t)watch->table.layers, sizeof *watch->table.rows);
    watch->fp8 = !m->config->gpu_without_fp8[0];
    watch->ops = *m->ops;
    watch->ops.linear_backward_data = watched_backward_data;
    watch->ops.linear_backward_weight = watched_backward_weight;
    m->ops = m->exec.ops = &watch->ops;
    return true;
}

static void watch_close(Watch *watch, Model *m) {
    if (!watch->model) return;
    m->ops = m->exec.ops = watch->real;
    meter_close(&watch->meter);
    if (watch->workspace) m->ops->release(&m->exec, watch->workspace);
    free(watch->table.rows);
}

static bool load_weights(Model *m, Error *err) {
    const Config *c = m->config;
    if (c->model_from_files && !checkpoint_load_weights(c->model, &m->arena, &m->exec, err)) return false;
    if (!c->model_from_files) parameters_init(&m->arena, &m->exec, c->seed);
    shards_weights_loaded(&m->shards);
    return true;
}

// Runs forward and backward of one micro-batch, as the only micro-batch of a step. The weights do not change.
static bool run_batch(Model *m, int64_t batch, Error *err) {
    const Config *c = m->config;
    const size_t tokens = (size_t)config_micro_tokens(c);
    DataLoader *loader = data_open_sets(c->train, config_weights(c), c->examples, c->micro_batch, c->seq_len, 0, 1,
                                        c->seed, c->shuffle, c->shape.vocab, NULL, err);
    if (!loader) return false;
    int32_t *inputs = (int32_t *)xmalloc(2 * tokens * sizeof *inputs);
    const bool good = data_batch(loader, batch, inputs, inputs + tokens, err);
    if (good) {
        step_begin(m, 0.0f, data_unmasked_targets(inputs + tokens, (int64_t)tokens));
        batch_upload(m, c->micro_batch, c->seq_len, inputs, inputs + tokens, NULL);
        micro_step(m, false, true);
        state_download(m);
    }
    free(inputs);
    data_close(loader);
    (void)step_end; // step_end() is not called, because the weights are not updated.
    return good;
}

// Fails if the loss or a measured gradient is not finite.
static bool is_finite(const Model *m, const GradientTable *table, Error *err) {
    bool finite = isfinite(m->host.loss_sum) && !m->host.nonfinite;
    for (int k = 0; k < GRADIENT_KINDS; k++)
        for (int l = 0; l < kind_layers(table, (GradientKind)k); l++)
            finite &= gradient_row(table, (GradientKind)k, l)->stats.nonfinite == 0;
    return finite || error_set(err, EXIT_DATA, "%s: the loss or a gradient is not finite: the run has diverged",
                               m->config->model);
}

static void print_head(const Model *m, const Options *options, const GradientTable *table, FILE *json) {
    const Config *c = m->config;
    const GradientStats *any = &gradient_row(table, GRADIENT_QKV, 0)->stats;
    char device[256];
    m->ops->describe((Exec *)&m->exec, device, sizeof device);
    printf("%s, micro-batch %lld of %d x %d tokens, loss %.4f, on %s\n", c->model, (long long)options->batch,
           c->micro_batch, c->seq_len, m->host.loss_sum, device);
    if (c->recipe.fast_accumulation_data) printf("dgrad with fast accumulation\n");
    if (c->gpu_without_fp8[0]) printf("note: FP8 matmuls are not measured: %s\n", c->gpu_without_fp8);
    if (!accumulation_possible(any)) printf("note: FP8 matmuls are measured only if all sizes are multiples of 16\n");
    if (!json) return;
    JsonText line;
    memset(&line, 0, sizeof line);
    json_text_open(&line, NULL, '{');
    json_text_string(&line, "line", "run");
    json_text_string(&line, "model", c->model);
    json_text_int(&line, "batch", options->batch);
    json_text_int(&line, "micro_batch", c->micro_batch);
    json_text_int(&line, "seq_len", c->seq_len);
    json_text_int(&line, "layers", c->shape.layers);
    json_text_int(&line, "channels", c->shape.channels);
    json_text_bool(&line, "fast_accumulation_data", c->recipe.fast_accumulation_data);
    json_text_double(&line, "loss", m->host.loss_sum);
    json_text_string(&line, "device", device);
    json_line_end(&line, json);
}

static bool write_report(const Model *m, const Options *options, const GradientTable *table, FILE *json, Error *err) {
    print_head(m, options, table, json);
    print_report(stdout, table);
    if (json) json_report(json, table);
    if (fflush(stdout) != 0 || ferror(stdout))
        return error_set(err, EXIT_DATA,
                         "standard output could not be written: its reader has ended, or the disk is "
                         "full");
    if (json && (fflush(json) != 0 || ferror(json)))
        return error_set(err, EXIT_DATA, "--json %s: could not be written; check that the disk is not full",
                         options->json);
    return true;
}

static bool run(Options *options, Model *m, Watch *watch, FILE *json, Error *err) {
    static const CommPlace one_process = {0, 1, 0, 1, "", false, ""};
    Config *c = &options->config;
    if (c->shape_files[0] && !model_shape_from_files(c->shape_files, &c->shape, err)) return false;
    if (c->shape.vision.kind != VISION_NONE)
        return error_set(err, EXIT_USER, "%s: models with a vision tower are not supported; use a language model",
                         c->model);
#ifdef COAT_CUDA
    if (c->device != DEVICE_CPU) {
        c->no_gpu = !cuda_present();
        cuda_find_fp8(0, 1, c->gpu_without_fp8, sizeof c->gpu_without_fp8);
    }
#endif
    if (!config_check(c, 1, err)) return false;
    fputs(c->notes, stderr);
    return model_create(m, c, &one_process, err) && load_weights(m, err) && watch_open(watch, m, err) &&
           run_batch(m, options->batch, err) && is_finite(m, &watch->table, err) &&
           write_report(m, options, &watch->table, json, err);
}

int main(int argc, char **argv) {
    static Options options;
    static Model model;
    static Watch watch;
    Error err = {EXIT_DONE, "", 0};
    FILE *json = NULL;
    if (usage_asked(argc, argv, usage)) return EXIT_DONE;
    bool good = read_options(&options, argc, argv, &err);
    if (good && options.json) {
        json = fopen(options.json, "w");
        if (!json) good = error_set(&err, EXIT_DATA, "--json %s: cannot be written: %s", options.json, strerror(errno));
    }
    good = good && run(&options, &model, &watch, json, &err);
    watch_close(&watch, &model);
    if (model.ops) model_destroy(&model);
    if (json && fclose(json) != 0 && good)
        good = error_set(&err, EXIT_DATA, "--json %s: could not be written; check that the disk is not full",
                         options.json);
    if (!good) fprintf(stderr, "error: %s\n", err.text);
    return good ? EXIT_DONE : (int)err.code;
}
