// Opens the inputs of a run except the weights: tokenizer, data and prompt format.
#include <stdarg.h>
#include <string.h>

#include "config/shapes.h"
#include "config/vision.h"
#include "flags/config_check.h"
#include "io/files.h"
#include "log/terminal.h"
#include "run_start.h"
#include "save/checkpoint.h"
#include "save/hf.h"
#include "text/images.h"
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
    if (!run->config->quiet) say_note(run, format, args);
    va_end(args);
}

void run_note_always(const Run *run, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say_note(run, format, args);
    va_end(args);
}

// Sets the BOS and EOS ids of a new model to those of the model's tokenizer. If the tokenizer has no BOS token, its EOS
// token is used as BOS.
static void set_special_ids(Run *run) {
    const int begin = tokenizer_bos(run->tokenizer), end = tokenizer_eos(run->tokenizer);
    model_shape_ids(&run->config->shape, begin < 0 ? end : begin, end);
}

bool run_open_tokenizer(Run *run, Config *c, Error *err) {
    if (!c->tokenizer_file[0] || c->shape_files[0]) return true;
    run->tokenizer = tokenizer_open(c->tokenizer_file, err);
    if (!run->tokenizer) return false;
    const int tokens = tokenizer_vocab(run->tokenizer);
    // data/prepare.py gives images the next id if the tokenizer has no token for them
    const bool adds = c->vision[0] && tokenizer_token(run->tokenizer, IMAGE_MARK) < 0;
    if (c->vocab_of_tokenizer) model_shape_vocab(&c->shape, tokens + adds);
    return c->vocab_of_tokenizer || config_check_tokenizer(c, tokens, err);
}

// True if tokenizer_files_copy() can add a token to the tokenizer t, which was opened from `file`: to its
// tokenizer.json, or to the tokenizer.json that is written for tokenizer.model.
static bool can_add_token(const Tokenizer *t, const char *file) {
    char folder[PATH_MAX_LENGTH + 64];
    Error ignored;
    const char *name = path_is_folder(file) ? "" : tokenizer_usual_name(file);
    if (strcmp(name, "gpt2_tokenizer.bin") == 0) return false; // checkpoints then contain this file alone
    if (!*name)
        snprintf(folder, sizeof folder, "%s", file);
    else if (!path_folder(folder, sizeof folder, file, &ignored))
        return false;
    const char *const source = tokenizer_is_sentencepiece(t) ? "tokenizer.model" : "tokenizer.json";
    return strcmp(name, source) == 0 || folder_has_file(folder, source) || folder_has_file(folder, "tokenizer.json");
}

// Sets the image token of a language model's vocabulary: the tokenizer's <image> or else the id after the tokenizer's
// last token. If there is no tokenizer, the data files set the image token.
static bool choose_image_token(Config *c, Error *err) {
    ModelShape *s = &c->shape;
    const char *file = c->tokenizer_file[0] ? c->tokenizer_file : c->shape_files;
    if (s->vision.image_token >= 0 || (file == c->shape_files && !tokenizer_is_in(file))) return true;
    Tokenizer *t = tokenizer_open(file, err);
    if (!t) return false;
    const int found = tokenizer_token(t, IMAGE_MARK), token = found < 0 ? tokenizer_vocab(t) : found;
    const bool has_place = found >= 0 || can_add_token(t, file);
    tokenizer_close(t);
    if (!has_place)
        return error_set(err, EXIT_DATA,
                         "%s: its tokenizer has no token " IMAGE_MARK ", and no tokenizer.json to add one to; save the "
                         "tokenizer with transformers",
                         file);
    const SpecialIds ids = s->ids;
    if (token >= s->vocab) model_shape_vocab(s, token + 1);
    s->ids = ids;
    s->vision.image_token = token;
    return true;
}

bool run_join_vision(Config *c, const VisionShape *given, Error *err) {
    VisionShape *v = &c->shape.vision;
    // Returns at once if config_parse() has set the shape of a new model, or if a resumed checkpoint contains the
    // tower's shape.
    if (!c->vision[0] || !(c->model_from_files || (c->vision_from_files && !c->shape_files[0]))) return true;
    if (c->model_from_files && v->kind != VISION_NONE)
        return error_set(err, EXIT_USER, "--vision %s: the model in %s has a vision tower; remove --vision", c->vision,
                         c->shape_files);
    *v = *given;
    if (c->vision_from_files && !hf_tower_shape(c->vision, &c->shape, err)) return false;
    v->projector = given->projector;
    return vision_finish(c, err) && (!c->model_from_files || choose_image_token(c, err));
}

// Checks that the vocabulary of --tokenizer has the tokens and merges of `own`, the model's vocabulary. Added tokens
// may differ.
static bool is_own(const Run *run, const Config *c, const Tokenizer *own, Error *err) {
    const char *name = config_tokenizer_name(c);
    if (c->tokenizer == TOKENIZER_ANY) return true;
    if (c->tokenizer != TOKENIZER_FILE) {
        const int tokens = named_vocabulary(c->tokenizer);
        return tokens == tokenizer_vocab(own) ||
               error_set(err, EXIT_USER,
                         "--tokenizer %s: it has %d tokens, but the vocabulary in %s has %d; remove --tokenizer", name,
                         tokens, c->shape_files, tokenizer_vocab(own));
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
    // false if shape_files is a checkpoint that this training run resumes
    const bool with_model = c->shape_files[0] && (c->model_from_files || !config_trains(c));
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
        // A model of bytes may have more than 257 ids, because --vocab can add unused ids.
        return !with_model || c->shape.vocab < MIN_WITHOUT_BYTES ||
               error_set(err, EXIT_USER,
                         "--tokenizer bytes: it has 257 tokens, but the model's vocabulary has %d; give the tokenizer "
                         "that the model was trained with",
                         c->shape.vocab);
    }
    snprintf(run->config->vocabulary, sizeof run->config->vocabulary, "%s", file);
    if (there && !run->tokenizer && !c->eval_only)
        run_note_always(run, "%s; samples print token ids, and checkpoints copy the tokenizer files unchecked",
                        unread.text);
    if (!c->tokenizer_file[0]) return true;
    if (!c->shape_files[0]) set_special_ids(run);
    return config_check_tokenizer(c, tokenizer_vocab(run->tokenizer), err);
}

// Reads the image of --image, if it is given. Sets the run's vision shape to `vision`, whose normalization (mean,
// deviation) and image token come from the data or, if still unknown, from the image.
static bool open_image(Run *run, const Config *c, VisionShape *vision, Error *err) {
    if (c->image[0]) run->model.sample_image = images_read_first(c->image, vision, err);
    run->config->shape.vision = *vision;
    return !c->image[0] || run->model.sample_image;
}

bool open_data(Run *run, const Config *c, Error *err) {
    int B = c->micro_batch, T = c->seq_len, vocab = c->shape.vocab;
    const Exec *ex = &run->model.exec;
    DataImages images = {c->shape.vision, vision_images(c) / B};
    if (config_samples_only(c)) return open_image(run, c, &images.vision, err);
    if (config_trains(c)) {
        run->train = data_open_sets(c->train, config_weights(c), c->examples, B, T, ex->rank, ex->ranks, c->seed,
                                    c->shuffle, vocab, &images, err);
        if (!run->train) return false;
        images.vision = *data_vision(run->train);
    }
    if (c->val[0]) {
        run->val = data_open_validation(c->val, c->examples, B, T, vocab, &images, err);
        if (!run->val) return false;
        images.vision = *data_vision(run->val);
        // The validation data is checked here, because the first validation may come hours later.
        if (ex->rank == 0 && !data_check(run->val, data_batches(run->val, c->val_batches), err)) return false;
    }
    if (!open_image(run, c, &images.vision, err)) return false;
    if (c->hellaswag[0]) {
        run->hellaswag = hellaswag_open(c->hellaswag, T, vocab, err);
        if (!run->hellaswag) return false;
    }
    return true;
}

// True if the training data are examples for fine-tuning or, in a run without training, if the model was trained on
// examples.
static bool is_of_examples(const Run *run) {
    const Config *c = run->config;
    return run->train ? data_masked(run->train) : c->shape_files[0] && checkpoint_is_masked(c->shape_files);
}

// On rank 0, prints a note if --prompt is sampled from a model trained on examples and no prompt format is known
// (`unnamed`), and a note if --train and --val use different prompt formats.
static void note_prompts(const Run *run, bool unnamed) {
    const Config *c = run->config;
    PromptFormat ignored[2];
    if (run->place.rank > 0) return; // only rank 0 prints notes; the other ranks need not read the checkpoint
    if (unnamed && c->prompt[0] && c->sample_tokens > 0 && is_of_examples(run))
        run_note_always(
            run, "--prompt is continued as plain text, because the %s no prompt format; use --prompt-format NAME",
            run->train ? "training data has" : "checkpoint contains");
    if (!run->train || !run->val) return;
    const PromptFormat train = data_prompt_format(run->train, ignored), val = data_prompt_format(run->val, ignored);
    if (prompt_format_named(train) && prompt_format_named(val) && train != val)
        run_note(run, "the prompts of --train have the format %s, those of --val %s; check the files",
                 prompt_format_name(train), prompt_format_name(val));
}

bool choose_prompt_format(Run *run, Error *err) {
    Config *c = run->config;
    ModelShape *shape = &c->shape;
    int end;
    bool unnamed = false;
    run->prompt_format = c->prompt_format;
    if (c->prompt_format == PROMPT_FORMAT_DATA) {
        PromptFormat different[2] = {PROMPT_FORMAT_NONE, PROMPT_FORMAT_NONE};
        run->prompt_format = run->train ? data_prompt_format(run->train, different) : PROMPT_FORMAT_NONE;
        if (different[1] != PROMPT_FORMAT_NONE)
            run_note(run,
                     "--train has prompts in the formats %s and %s, so checkpoints record none; choose one with "
                     "--prompt-format %s or %s",
                     prompt_format_name(different[0]), prompt_format_name(different[1]),
                     prompt_format_name(different[0]), prompt_format_name(different[1]));
        unnamed = run->prompt_format == PROMPT_FORMAT_NONE && different[1] == PROMPT_FORMAT_NONE;
        // Checkpoints record config->prompt_format.
        if (!unnamed && different[1] == PROMPT_FORMAT_NONE) c->prompt_format = run->prompt_format;
    }
    note_prompts(run, unnamed);
    if (run->prompt_format != PROMPT_FORMAT_NONE && !c->eval_only && run->tokenizer) {
        if (!prompt_end(run->tokenizer, run->prompt_format, &end, err)) return false;
        if (shape->ids.eos_count == 0) model_shape_add_eos(shape, tokenizer_eos(run->tokenizer));
        model_shape_add_eos(shape, end);
    }
    return true;
}

// Splits the data into documents at BOS tokens of the tokenizer, else at BOS tokens named in the model's files, else
// after EOS tokens. Call divide_documents() after choose_prompt_format(), which adds EOS tokens.
bool divide_documents(Run *run, Error *err) {
    const Config *c = run->config;
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
            run_note_always(
                run,
                "--documents apart: the first %d tokens of every file of --%s have no BOS or EOS token; check "
                "that the files were made with this model's vocabulary (--tokenizer FILE)",
                DATA_LOOKED_AT, i ? "val" : "train");
    }
    return true;
}

static void note_bytes(const Run *run, DataLoader *loader) {
    const char *bytes, *other;
    if (loader && data_mixes_bytes(loader, &bytes, &other))
        run_note(run,
                 "%s seems to have byte tokens, but %s does not; check that both were made with the same tokenizer",
                 bytes, other);
    else if (loader && data_begins_with_bytes(loader))
        run_note(run, "%s seems to have byte tokens; files of %s need --tokenizer bytes", data_set(loader, 0, 0).name,
                 prepare_bytes_name());
}

// Prints a note if a token file has 16-bit tokens, but the vocabulary is so large that data/prepare.py would write
// 32-bit tokens for it.
static void note_narrow(const Run *run, DataLoader *loader) {
    const char *narrow = loader ? data_narrow_file(loader) : NULL;
    if (narrow && run->config->shape.vocab > UINT16_MAX + 1)
        run_note(run,
                 "%s has 16-bit tokens, too few bits for a vocabulary of %d; use files made with the model's tokenizer",
                 narrow, run->config->shape.vocab);
}

void note_data(Run *run) {
    if (run->place.rank > 0) return; // only rank 0 checks, because this check reads the start of every file
    const Config *c = run->config;
    const char *shared = run->train && run->val ? data_shared_file(run->train, run->val) : NULL;
    const char *again = run->train ? data_repeated_file(run->train) : NULL;
    const char *both = run->train ? data_file_of_two_sets(run->train) : NULL;
    if (shared)
        run_note_always(run, "%s is in --train and --val, so the validation loss is measured on training text", shared);
    if (c->tokenizer != TOKENIZER_BYTES && c->shape.vocab >= MIN_WITHOUT_BYTES) {
        note_bytes(run, run->train);
        note_bytes(run, run->val);
    }
    note_narrow(run, run->train);
    note_narrow(run, run->val);
    if (again)
        run_note(run, "--train names %s more than once, but reads it once; use --train-weight to repeat it", again);
    if (both) run_note(run, "%s is in two sets of --train, and both sets read it", both);
}
