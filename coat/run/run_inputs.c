// What a run reads besides weights: its vocabulary, its data, and the format of prompts.
#include <stdarg.h>
#include <string.h>

#include "config/shapes.h"
#include "flags/config_check.h"
#include "io/files.h"
#include "log/step_line.h"
#include "run_start.h"
#include "save/checkpoint.h"
#include "text/prompt_format.h"

static void say_note(const Run *run, const char *format, va_list args) {
    char text[2 * PATH_MAX_LENGTH];
    if (run->place.rank > 0) return;
    vsnprintf(text, sizeof text, format, args);
    print_labelled(stderr, "note: ", text);
}

void run_note(const Run *run, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (!run->model.config.quiet) say_note(run, format, args);
    va_end(args);
}

void run_note_always(const Run *run, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say_note(run, format, args);
    va_end(args);
}

// The ids of texts that checkpoints name are those of the vocabulary, where no model's files say them. Where nothing
// begins a text, what ends the one before it does.
static void take_ids(Run *run) {
    const int begin = tokenizer_bos(run->tokenizer), end = tokenizer_eos(run->tokenizer);
    model_shape_ids(&run->model.config.shape, begin < 0 ? end : begin, end);
    run->model.arena.config.shape.ids = run->model.config.shape.ids; // from which they are written
}

bool run_take_vocabulary(Run *run, Config *c, Error *err) {
    if (!c->tokenizer_file[0] || c->shape_files[0]) return true;
    run->tokenizer = tokenizer_open(c->tokenizer_file, err);
    if (!run->tokenizer) return false;
    const int tokens = tokenizer_vocab(run->tokenizer);
    if (c->vocab_of_tokenizer) model_shape_vocab(&c->shape, tokens);
    return c->vocab_of_tokenizer || config_check_tokenizer(c, tokens, err);
}

// A vocabulary that is named in place of the one that lies with the model, or with the last checkpoint, has its tokens
// and merges. It may have more, or fewer, added tokens.
static bool is_own(const Run *run, const Config *c, const Tokenizer *own, Error *err) {
    const char *name = config_tokenizer_name(c);
    if (c->tokenizer == TOKENIZER_ANY) return true;
    if (c->tokenizer != TOKENIZER_FILE) {
        const int tokens = named_vocabulary(c->tokenizer);
        return tokens == tokenizer_vocab(own) ||
               error_set(err, EXIT_USER,
                         "--tokenizer %s: its %d tokens are not the %d of the vocabulary in %s; remove --tokenizer",
                         name, tokens, tokenizer_vocab(own), c->shape_files);
    }
    const int differing = tokenizer_differing(own, run->tokenizer);
    const int tokens = tokenizer_vocab(run->tokenizer), owns = tokenizer_vocab(own);
    if (differing > 0)
        return error_set(
            err, EXIT_USER,
            "--tokenizer %s: %d of its first %d tokens differ%s from those of the vocabulary in %s; remove "
            "--tokenizer",
            name, differing, tokens < owns ? tokens : owns, singular(differing), c->shape_files);
    return tokenizer_same_merges(run->tokenizer, own) ||
           error_set(err, EXIT_USER,
                     "--tokenizer %s: its merges differ from those of the vocabulary in %s; remove --tokenizer", name,
                     c->shape_files);
}

bool open_tokenizer(Run *run, const Config *c, Error *err) {
    Error unread;
    const bool with_model = c->shape_files[0] && (c->model_from_files || !config_trains(c)); // not of a run's own
    const bool there = c->shape_files[0] && tokenizer_is_in(c->shape_files);
    Tokenizer *own = there ? tokenizer_open(c->shape_files, &unread) : NULL;
    const char *file = c->tokenizer_file[0] ? c->tokenizer_file : there ? c->shape_files : "";
    const bool bytes = c->tokenizer == TOKENIZER_BYTES || (c->shape.vocab == 257 && !file[0]);
    if (bytes)
        run->tokenizer = tokenizer_bytes();
    else if (!c->tokenizer_file[0])
        run->tokenizer = own;
    else if (!run->tokenizer)
        run->tokenizer = tokenizer_open(file, err);
    const bool opened = run->tokenizer || !c->tokenizer_file[0];
    const bool good = opened && (!own || is_own(run, c, own, err));
    if (own != run->tokenizer) tokenizer_close(own);
    if (!good) return false;
    if (bytes) {
        return !with_model || c->shape.vocab == 257 ||
               error_set(
                   err, EXIT_USER,
                   "--tokenizer bytes: it has 257 tokens, and the model's vocabulary %d; name the vocabulary that "
                   "the model was trained with",
                   c->shape.vocab);
    }
    snprintf(run->model.config.vocabulary, sizeof run->model.config.vocabulary, "%s", file);
    if (there && !run->tokenizer && !c->eval_only)
        run_note_always(run, "%s; samples print token ids, checkpoints take its files as they are", unread.text);
    if (!c->tokenizer_file[0]) return true;
    if (!c->shape_files[0]) take_ids(run);
    return config_check_tokenizer(c, tokenizer_vocab(run->tokenizer), err);
}

bool open_data(Run *run, const Config *c, Error *err) {
    int B = c->micro_batch, T = c->seq_len, vocab = c->shape.vocab;
    const Exec *ex = &run->model.exec;
    if (config_samples_only(c)) return true;
    if (config_trains(c)) {
        run->train = data_open_sets(c->train, config_weights(c), c->examples, B, T, ex->rank, ex->ranks, c->seed,
                                    c->shuffle, vocab, err);
        if (!run->train) return false;
    }
    if (c->val[0]) {
        run->val = data_open_validation(c->val, c->examples, B, T, vocab, err);
        if (!run->val) return false;
        // now, rather than at the first validation
        if (ex->rank == 0 && !data_check(run->val, data_batches(run->val, c->val_batches), err)) return false;
    }
    if (c->hellaswag[0]) {
        run->hellaswag = hellaswag_open(c->hellaswag, T, vocab, err);
        if (!run->hellaswag) return false;
    }
    return true;
}

// Whether the model was trained, or is, on examples for fine-tuning.
static bool is_of_examples(const Run *run) {
    const Config *c = &run->model.config;
    return run->train ? data_masked(run->train) : c->shape_files[0] && checkpoint_is_masked(c->shape_files);
}

// What may be unexpected of prompts, where nothing names their format, and of data that name two.
static void note_prompts(const Run *run, bool unnamed) {
    const Config *c = &run->model.config;
    PromptFormat ignored[2];
    if (run->place.rank > 0) return; // it reads a checkpoint's record
    if (unnamed && c->prompt[0] && c->sample_tokens > 0 && is_of_examples(run))
        run_note_always(run,
                        "--prompt is continued as plain text, as the %s no prompt format: --prompt-format NAME sets it",
                        run->train ? "data name" : "checkpoint records");
    if (!run->train || !run->val) return;
    const PromptFormat train = data_prompt_format(run->train, ignored), val = data_prompt_format(run->val, ignored);
    if (prompt_format_named(train) && prompt_format_named(val) && train != val)
        run_note(run, "--train has prompts in the format %s and --val in %s: was that meant?",
                 prompt_format_name(train), prompt_format_name(val));
}

bool choose_prompt_format(Run *run, Error *err) {
    Config *c = &run->model.config;
    ModelShape *shape = &c->shape;
    int end;
    bool unnamed = false;
    const bool given = c->prompt_format != PROMPT_FORMAT_DATA;
    if (!given) {
        PromptFormat different[2] = {PROMPT_FORMAT_NONE, PROMPT_FORMAT_NONE};
        c->prompt_format = run->train ? data_prompt_format(run->train, different) : PROMPT_FORMAT_NONE;
        if (different[1] != PROMPT_FORMAT_NONE)
            run_note(
                run,
                "--train has prompts in the formats %s and %s: checkpoints record none; --prompt-format %s or %s says "
                "which",
                prompt_format_name(different[0]), prompt_format_name(different[1]), prompt_format_name(different[0]),
                prompt_format_name(different[1]));
        unnamed = c->prompt_format == PROMPT_FORMAT_NONE && different[1] == PROMPT_FORMAT_NONE;
    }
    note_prompts(run, unnamed);
    if (c->prompt_format != PROMPT_FORMAT_NONE && !c->eval_only && run->tokenizer) {
        if (!prompt_end(run->tokenizer, c->prompt_format, &end, err)) return false;
        if (shape->ids.eos_count == 0) model_shape_add_eos(shape, tokenizer_eos(run->tokenizer));
        model_shape_add_eos(shape, end);
    }
    // which checkpoints are written from: none where it was asked for is a choice, too
    run->model.arena.config.prompt_format =
        given || prompt_format_named(c->prompt_format) ? c->prompt_format : PROMPT_FORMAT_DATA;
    run->model.arena.config.shape.ids = shape->ids;
    return true;
}

// By what begins texts, in the vocabulary, as data/prepare.py has it, and in the model's files; then by what ends them.
// After choose_prompt_format(): a run that is resumed begins with all ends that this one has now.
bool divide_documents(Run *run, Error *err) {
    const Config *c = &run->model.config;
    if (c->documents != DOCUMENTS_MASKED) return true;
    const Tokenizer *t = run->tokenizer;
    const int end = t ? tokenizer_eos(t) : -1;
    SpecialIds ends = c->shape.ids;
    ends.bos = -1;
    const SpecialIds ways[] = {{.bos = t ? tokenizer_bos(t) : -1},
                               {.bos = c->shape.ids.bos},
                               {.bos = -1, .eos_count = end >= 0, .eos = {end}},
                               ends};
    DataLoader *const loaders[] = {run->train, run->val};
    for (int i = 0; i < 2; i++) {
        bool found;
        if (!loaders[i]) continue;
        if (!data_mask_documents(loaders[i], ways, 4, &found, err)) return false;
        if (!found)
            run_note_always(run,
                            "--documents apart: no token that begins or ends documents is among the first %d of any "
                            "file of --%s: were they made with this model's vocabulary (--tokenizer FILE)?",
                            DATA_LOOKED_AT, i ? "val" : "train");
    }
    return true;
}

static void note_bytes(const Run *run, DataLoader *loader) {
    const char *bytes, *other;
    if (loader && data_mixes_bytes(loader, &bytes, &other))
        run_note(run, "the tokens of %s look like bytes, those of %s do not: were they made with the same tokenizer?",
                 bytes, other);
    else if (loader && data_begins_with_bytes(loader))
        run_note(run, "%s: the tokens look like bytes; those of %s want --tokenizer bytes", data_set(loader, 0, 0).name,
                 prepare_bytes_name());
}

// data/prepare.py writes 32 bits for such a vocabulary.
static void note_narrow(const Run *run, DataLoader *loader) {
    const char *narrow = loader ? data_narrow_file(loader) : NULL;
    if (narrow && run->model.config.shape.vocab > UINT16_MAX + 1)
        run_note(run, "%s has tokens of 16 bits, too few for the vocabulary's %d: was it made with the same tokenizer?",
                 narrow, run->model.config.shape.vocab);
}

void note_data(Run *run) {
    if (run->place.rank > 0) return; // it reads the beginnings of files
    const Config *c = &run->model.config;
    const char *shared = run->train && run->val ? data_shared_file(run->train, run->val) : NULL;
    const char *again = run->train ? data_repeated_file(run->train) : NULL;
    const char *both = run->train ? data_file_of_two_sets(run->train) : NULL;
    if (shared)
        run_note_always(run, "%s is in --train and --val: the validation loss is of text that is trained on", shared);
    if (c->tokenizer != TOKENIZER_BYTES && c->shape.vocab >= MIN_WITHOUT_BYTES) {
        note_bytes(run, run->train);
        note_bytes(run, run->val);
    }
    note_narrow(run, run->train);
    note_narrow(run, run->val);
    if (again) run_note(run, "--train names %s more than once: it counts once (--train-weight sets shares)", again);
    if (both) run_note(run, "%s is in two sets of --train: it is read for both, with the weights of both", both);
}
