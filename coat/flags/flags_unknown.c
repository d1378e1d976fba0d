// What is said of a flag that is not in the table: its name here where other trainers have it (nanoGPT, the Hugging
// Face Trainer, torchtitan, Megatron-LM, llm.c's train_gpt2.py) or it was called so before, else the one that is
// spelled nearly like it. And of a model that no name is.
#include "config/shapes.h"
#include "flags.h"

#include <ctype.h>

#define LEAVE "remove it"

// clang-format off
static const Foreign table[] = {
    {"train-file train-files train-data train-bin data-path train-data-path input-bin dataset dataset-path dataset-name "
     "data data-dir input", "train", "a pattern of token files, which --help shows how to make"},
    {"validation-file valid-data-path val-data val-file val-bin eval-file input-val-bin", "val", NULL},
    {"tokenizer-name tokenizer-path tokenizer-type tokenizer-model tokenizer-name-or-path vocab-file", "tokenizer", NULL},
    {"merge-file merges-file", NULL, "--tokenizer FILE is the vocabulary, with its merges beside it"},

    {"model-name-or-path model-name model-type model.name model.flavor config-name init-from", "model", NULL},
    {"n-layer n-layers num-layers num-hidden-layers depth", "layers", NULL},
    {"n-head n-heads num-heads num-attention-heads", "heads", NULL},
    {"n-kv-head n-kv-heads num-kv-heads num-key-value-heads num-query-groups", "kv-heads", NULL},
    {"hidden-size hidden-dim n-embd n-embed d-model embed-dim embedding-dim model-dim", "channels", NULL},
    {"ffn-hidden-size intermediate-size n-inner d-ff", "ffn", NULL},
    {"kv-channels", "head-dim", NULL},
    {"vocab-size", "vocab", NULL},
    {"n-positions max-position-embeddings", "positions", NULL},
    {"normalization", "norm", NULL},
    {"norm-epsilon layernorm-epsilon layer-norm-epsilon", "norm-eps", NULL},
    {"activation-function", "activation", NULL},
    {"position-embedding-type", "position-encoding", NULL},
    {"bias", "biases", NULL},
    {"disable-bias-linear", "no-biases", NULL},
    {"tie-word-embeddings tied-embeddings", "tied-head", NULL},
    {"untie-embeddings-and-output-weights", "no-tied-head", NULL},
    {"dropout attention-dropout hidden-dropout attn-pdrop resid-pdrop embd-pdrop", NULL, "there is no dropout; " LEAVE},

    {"norm-input activation-input scaling gradient-codes gradient-codes-data gradient-codes-weights second-moment",
     "recipe", "which fixes it; coat-paper has the paper's choices"},
    {"fast-accumulation-backward", "fast-accumulation-data", NULL},
    {"dtype bf16 fp16 fp8 amp mixed-precision mixed-precision-param fp8-format fp8-recipe float8", "recipe",
     "bf16, fp8-linear or coat"},
    {"gradient-checkpointing activation-checkpointing activation-checkpoint.mode recompute-activations "
     "recompute-granularity", "recompute", "3 makes whole blocks again"},
    {"offload-optimizer offload-optimizer-states optimizer-cpu-offload cpu-offload offload-adam-moments offload-master "
     "cpu-optimizer-offload", "offload-states", NULL},

    {"batch-size micro-batch-size device-batch-size local-batch-size train-batch-size per-device-batch-size "
     "per-device-train-batch-size bs", "micro-batch", "sequences per GPU and pass; --batch-tokens is of the whole step"},
    {"total-batch-size", "batch-tokens", NULL},
    {"global-batch-size", "batch-tokens", "in tokens: the sequences times --seq-len"},
    {"gradient-accumulation-steps grad-accum-steps grad-accum accumulation-steps accumulate-grad-batches", "batch-tokens",
     "that many passes of --micro-batch x --seq-len tokens x GPUs"},
    {"block-size seq-length sequence-length max-seq-len max-seq-length context-length n-ctx", "seq-len", NULL},

    {"max-steps max-iters max-train-steps train-iters train-steps training-steps total-steps num-steps num-iterations "
     "iters iterations", "steps", NULL},
    {"num-epochs n-epochs max-epochs num-train-epochs", "epochs", NULL},
    {"train-samples", "steps", "the samples x --seq-len / --batch-tokens"},
    {"learning-rate lr-rate max-lr peak-lr", "lr", NULL},
    {"min-lr lr-min end-lr", "lr-final", "a share of --lr: 6e-5 under --lr 6e-4 is --lr-final 0.1"},
    {"min-lr-factor min-lr-ratio learning-rate-decay-frac", "lr-final", NULL},
    {"warmup-steps warmup-iters lr-warmup-iters lr-warmup-steps num-warmup-steps", "warmup", NULL},
    {"warmup-ratio lr-warmup-fraction", "warmup", "in steps: the share x --steps"},
    {"lr-scheduler-type lr-scheduler lr-schedule lr-decay-style lr-scheduler.decay-type", "schedule", NULL},
    {"lr-decay-iters lr-decay-steps", NULL, "the schedule ends with --steps; " LEAVE},
    {"decay-lr", NULL, "--lr-final 0.1 lets the rate fall, --schedule constant keeps it"},
    {"lr-scheduler.decay-ratio", "decay-fraction", "of --schedule wsd"},
    {"wd", "weight-decay", NULL},
    {"adam-beta1", "beta1", NULL},
    {"adam-beta2", "beta2", NULL},
    {"adam-eps adam-epsilon epsilon", "eps", NULL},
    {"clip clip-grad max-grad-norm max-norm gradient-clip gradient-clipping gradient-clip-val", "grad-clip", NULL},
    {"optim optimizer optimizer.name", NULL, "AdamW is the optimizer; " LEAVE},
    {"random-seed data-seed", "seed", NULL},

    {"eval-interval eval-steps eval-every val-loss-every val-interval validation.freq", "val-every", NULL},
    {"eval-iters eval-batches val-max-steps validation.steps", "val-batches", NULL},
    {"do-train", NULL, "--train GLOB trains"},
    {"do-eval inference-only", "eval-only", NULL},
    {"max-new-tokens", "sample-tokens", NULL},
    {"max-length", NULL, "--sample-tokens is of a sample, --seq-len of what is trained on"},
    {"generate do-sample", NULL, "--prompt TEXT samples, from --model FOLDER or --out DIR --resume"},
    {"chat-template prompt-template", "prompt-format", "one of its names"},
    {"nucleus nucleus-p", "top-p", NULL},
    {"num-samples", "samples", NULL},
    {"overfit-single-batch", "overfit-one-batch", NULL},

    {"config-file config-path", "config", "one flag per line, as on the command line"},
    {"output-dir out-dir save-dir save checkpoint-dir dump-folder checkpoint.folder log-dir logging-dir tensorboard-dir",
     "out", NULL},
    {"save-interval save-steps checkpoint-every checkpoint-interval checkpoint.interval", "save-every", NULL},
    {"save-total-limit keep-latest-k", "keep", NULL},
    {"save-strategy always-save-checkpoint", NULL, "--save-every STEPS says when"},
    {"resume-from resume-from-checkpoint load load-step", "resume", "of --out DIR; --resume=STEP names one checkpoint"},
    {"ckpt checkpoint ckpt-path checkpoint-path", NULL,
     "--model FOLDER starts from a checkpoint's weights, --out RUN --resume continues with a run"},
    {"force overwrite-output-dir", "overwrite", NULL},
    {"verbose", NULL, "every step is shown, and log.jsonl has all; " LEAVE ", or --no-quiet beside --prompt"},
    {"log-interval log-freq logging-steps", "log-every", NULL},
    {"enable-tensorboard", NULL, "TensorBoard's files are always in --out; " LEAVE},
    {"wandb wandb-log wandb-project wandb-run-name enable-wandb report-to run-name", NULL,
     "scripts/upload_wandb.py sends a run's log; " LEAVE},

    {"max-time exit-duration-in-mins", "time-limit", "with its unit: 3h50m"},
    {"compile torch-compile flash use-flash-attn tensorcores tf32 backend distributed-backend num-workers "
     "dataloader-num-workers", NULL, "there is nothing to choose; " LEAVE},
    {"zero-stage use-distributed-optimizer fsdp deepspeed data-parallel-shard-degree", "zero", "1, 2 or 3"},
    {"tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size tensor-parallel-degree "
     "pipeline-parallel-degree context-parallel-degree sequence-parallel tp pp", NULL,
     "GPUs share a model by --zero 1, 2 or 3 alone; " LEAVE},
    {"cpu no-cuda no-gpu use-cpu", "device", "--device cpu"},
    {"cuda gpu use-cuda use-gpu", "device", "--device cuda"},
    {"num-gpus n-gpus n-gpu ngpu num-nodes nnodes nproc nproc-per-node num-processes", NULL, "mpirun -np N starts one process per GPU"},
    {"local-rank", NULL, "the launcher says it; " LEAVE},
};
// clang-format on

const Foreign *flag_foreign(int *count) {
    *count = (int)(sizeof table / sizeof *table);
    return table;
}

enum { MAX_NAME = 64 };

// The name without dashes in front and what follows '=', in small letters, with hyphens for
// underscores; false where it is longer.
static bool plain_name(const char *text, char name[MAX_NAME]) {
    text += strspn(text, "-");
    size_t length = strcspn(text, "=");
    if (length >= MAX_NAME) return false;
    for (size_t i = 0; i < length; i++) name[i] = text[i] == '_' ? '-' : (char)tolower((unsigned char)text[i]);
    name[length] = '\0';
    return true;
}

// Insertions, deletions, replacements and swaps of neighbours that turn one name into the other, at most `most` + 1.
static int edit_distance(const char *a, size_t a_length, const char *b, size_t b_length, int most) {
    int rows[3][MAX_NAME + 1], *before = rows[0], *last = rows[1], *row = rows[2];
    if (b_length > MAX_NAME || abs((int)a_length - (int)b_length) > most) return most + 1;
    for (size_t j = 0; j <= b_length; j++) last[j] = (int)j;
    for (size_t i = 1; i <= a_length; i++) {
        row[0] = (int)i;
        for (size_t j = 1; j <= b_length; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && before[j - 2] + 1 < best) best = before[j - 2] + 1;
            row[j] = best;
        }
        int *oldest = before;
        before = last, last = row, row = oldest;
    }
    return last[b_length];
}

// The row that has a name at most `most` edits away, the nearest; NULL: none.
static const Foreign *find_foreign(const char *name, int most) {
    const Foreign *nearest = NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (const char *other = table[i].names; *other;) {
            size_t length = strcspn(other, " ");
            int distance = edit_distance(name, strlen(name), other, length, most);
            if (distance <= most) nearest = &table[i], most = distance - 1;
            other += length + (other[length] == ' ');
        }
    return nearest;
}

// A slip is one edit, in names from six letters on two.
static int most_edits(size_t length) {
    return length < 3 ? 0 : length < 6 ? 1 : 2;
}

// A flag that `name` is a slip of, or the beginning of; NULL: none.
static const char *find_near(const char *name) {
    const char *nearest = NULL;
    const size_t length = strlen(name);
    int count, beginnings = 0, most = most_edits(length);
    const Foreign *foreign;
    const Flag *flags = flag_table(&count);
    for (int i = 0; i < count; i++) {
        int distance = edit_distance(name, length, flags[i].name, strlen(flags[i].name), most);
        if (distance <= most) nearest = flags[i].name, most = distance - 1;
    }
    if (nearest) return nearest;
    for (int i = 0; i < count && length >= 4; i++)
        if (strncmp(name, flags[i].name, length) == 0) nearest = flags[i].name, beginnings++;
    if (beginnings == 1) return nearest;
    foreign = find_foreign(name, most);
    return foreign ? foreign->ours : NULL;
}

// The edits between the names of two models, at most `most` + 1: another digit is another model, not a slip.
static int model_distance(const char *a, size_t length, const char *b, int most) {
    static const char digits[] = "0123456789";
    const char *x = a, *y = b;
    for (bool more = true; more; x++, y++) {
        while (x < a + length && !strchr(digits, *x)) x++;
        y += strcspn(y, digits);
        more = x < a + length && *y;
        if ((x < a + length) != (*y != '\0') || (more && *x != *y)) return most + 1;
    }
    return edit_distance(a, length, b, strlen(b), most);
}

// The name of one size that `name` is a slip of, or the only beginning of; NULL: none. Of a
// slip `most`, its edits, is less.
static const char *find_near_model(const char *name, int *most, int *beginnings) {
    const char *nearest = NULL, *begun = NULL, *other;
    const size_t length = strlen(name);
    for (int i = 0; (other = model_name(i)); i++) {
        const int distance = model_distance(name, length, other, *most);
        if (distance <= *most) nearest = other, *most = distance - 1;
        if (length >= 4 && strncmp(name, other, length) == 0) begun = other, ++*beginnings;
    }
    return *beginnings == 1 ? begun : nearest;
}

bool model_near(const char *name, char near[MODEL_NAME]) {
    const char *colon = strchr(name, ':'), *family = NULL, *other;
    const size_t length = colon ? (size_t)(colon - name) : strlen(name);
    int most = most_edits(length), beginnings = 0;
    ModelShape shape;
    if (strlen(name) >= MAX_NAME) return false;
    const char *model = colon ? NULL : find_near_model(name, &most, &beginnings);
    if (beginnings == 1) most = -1;
    for (int i = ARCHITECTURE_LLAMA; i < ARCHITECTURE_COUNT; i++) {
        other = architecture_name((Architecture)i);
        const int distance = model_distance(name, length, other, most);
        if (distance == 0 && colon) return false; // it is the depth that is wrong
        if (distance == 0) beginnings = 0;
        if (distance <= most) family = other, most = distance - 1;
    }
    if (beginnings > 1 || (!family && !model)) return false; // the list is more help
    snprintf(near, MODEL_NAME, "%s%s", family ? family : model, !family ? "" : colon ? colon : ":dN");
    if (colon && !model_shape_named(near, &shape)) snprintf(near, MODEL_NAME, "%s:dN", family);
    return true;
}

// "-b4", "-l=3e-4": llm.c's flag and its value together, where that is a number or behind '='.
static bool joined_short(const char *text, Error *err) {
    for (size_t length = strlen(text) < 3 ? strlen(text) : 3; length > 1 && text[1] != '-'; length--) {
        const bool equals = text[length] == '=';
        const char *value = text + length + equals;
        if (!flag_is_short(text, length) || !(equals || isdigit((unsigned char)value[*value == '-' || *value == '.'])))
            continue;
        error_set(err, EXIT_USER, "%s: llm.c's flags stand apart from their values; write %.*s %s", text, (int)length,
                  text, *value ? value : "VALUE");
        return true;
    }
    return false;
}

// "no-dropout", "no-val": the opposite of what is not here, or of a flag that has none.
static bool not_negated(const char *text, int length, const char *name, Error *err) {
    if (strncmp(name, "no-", 3) != 0 || find_foreign(name, 0)) return false;
    bool negated;
    const Foreign *foreign = find_foreign(name + 3, 0);
    const char *ours = foreign ? foreign->ours : name + 3;
    const Flag *flag = ours ? flag_find(ours, strlen(ours), &negated) : NULL;
    if (foreign && !ours)
        error_set(err, EXIT_USER, "%.*s: unknown flag; %s", length, text, foreign->remark);
    else if (flag && flag_has_negation(flag))
        error_set(err, EXIT_USER, "%.*s: here it is --%s%s", length, text, negated ? "" : "no-", flag->name);
    else if (flag)
        error_set(err, EXIT_USER, "%.*s: unknown flag; --%s has no --no- form: remove it, or give --%s another value",
                  length, text, flag->name, flag->name);
    return flag || (foreign && !ours);
}

bool flag_unknown(const char *text, Error *err) {
    const int length = (int)strcspn(text, "=");
    char name[MAX_NAME];
    bool negated;
    if (!plain_name(text, name))
        return error_set(err, EXIT_USER, "%.*s: unknown flag; --help lists them all", length, text);
    const char *section = strrchr(name, '.'), *last = section ? section + 1 : name;
    if (joined_short(text, err) || not_negated(text, length, last, err)) return false;
    const Foreign *foreign = find_foreign(name, 0);
    if (!foreign && section) foreign = find_foreign(last, 0);
    if (foreign && !foreign->ours)
        return error_set(err, EXIT_USER, "%.*s: unknown flag; %s", length, text, foreign->remark);
    const char *ours = foreign ? foreign->ours : flag_find(last, strlen(last), &negated) ? last : NULL;
    const char *remark = foreign && foreign->remark ? foreign->remark : "";
    if (ours)
        return error_set(err, EXIT_USER, "%.*s: here it is --%s%s%s", length, text, ours, *remark ? "; " : "", remark);
    const bool no = strncmp(last, "no-", 3) == 0;
    const char *near = find_near(no ? last + 3 : last);
    const Flag *meant = no && near ? flag_find(near, strlen(near), &negated) : NULL;
    if (near)
        return error_set(err, EXIT_USER, "%.*s: unknown flag; did you mean --%s%s?", length, text,
                         meant && flag_has_negation(meant) && !negated ? "no-" : "", near);
    return error_set(err, EXIT_USER, "%.*s: unknown flag; --help lists them all", length, text);
}
