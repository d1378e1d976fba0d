#include "hellaswag.h"

#include <math.h>
#include <string.h>

#include <xxhash.h>

#include "io/files.h"

#define MAGIC 20240522
#define NARROW 1 // file version with 16-bit words
#define WIDE 2   // file version with 32-bit words
#define HEADER_BYTES 1024
#define FILE_LIMIT ((size_t)1 << 30)
#define START 65535
#define FIELDS 6 // number of words of an example before the situation's tokens, including the count of these tokens

typedef struct {
    const uint32_t *situation, *ending; // addresses of the tokens in HellaSwag.words
    int situation_tokens, ending_tokens;
    float mean; // mean loss per token of the ending; NAN until hellaswag_add_losses() sets it
} Row;

struct HellaSwag {
    uint32_t *words; // words of the file after its header, widened to 32 bits
    int examples;
    int longest;    // number of inputs of the longest row
    Row *rows;      // HELLASWAG_ENDINGS rows per example
    uint8_t *label; // index of each example's right ending
    uint64_t fingerprint;
};

typedef struct {
    const char *path;
    const uint32_t *at, *end;
    int example, seq_len, vocab;
    uint32_t width; // bytes per word in the file
} Cursor;

static bool damaged(const Cursor *c, const char *what, Error *err) {
    return error_set(err, EXIT_DATA, "%s is damaged: example %d %s; copy the file again or regenerate it", c->path,
                     c->example, what);
}

// Reads the number of tokens of a text, then the tokens.
static bool read_tokens(Cursor *c, const uint32_t **tokens, int *count, Error *err) {
    if (c->at >= c->end) return damaged(c, "ends early", err);
    const uint32_t said = *c->at++;
    *tokens = c->at;
    if (said == 0) return damaged(c, "has a situation or an ending without tokens", err);
    if (c->end - c->at < (int64_t)said) return damaged(c, "is shorter than its tokens", err);
    *count = (int)said;
    for (int i = 0; i < *count; i++)
        if (c->at[i] >= (uint32_t)c->vocab)
            return error_set(err, EXIT_DATA,
                             "%s: example %d has token %u, but the vocabulary ends at %d; use the "
                             "--tokenizer that the file was made with, or copy the file again if it is damaged",
                             c->path, c->example, c->at[i], c->vocab - 1);
    c->at += *count;
    return true;
}

// Reads the part of an example from the index of the right ending (c->at) to c->end, exclusive.
static bool read_example(HellaSwag *set, Cursor *c, Error *err) {
    const uint32_t label = c->at[0], endings = c->at[1], *situation;
    int situation_tokens;
    c->at += 2;
    if (endings != HELLASWAG_ENDINGS) return damaged(c, "does not have 4 endings", err);
    if (label >= endings) return damaged(c, "has a right ending that is not 0 to 3", err);
    set->label[c->example] = (uint8_t)label;
    if (!read_tokens(c, &situation, &situation_tokens, err)) return false;
    for (int i = 0; i < HELLASWAG_ENDINGS; i++) {
        Row *row = &set->rows[c->example * HELLASWAG_ENDINGS + i];
        row->situation = situation;
        row->situation_tokens = situation_tokens;
        row->mean = NAN;
        if (!read_tokens(c, &row->ending, &row->ending_tokens, err)) return false;
        // the last token of the ending is only a target, not an input
        int length = situation_tokens + row->ending_tokens - 1;
        if (length > c->seq_len)
            return error_set(err, EXIT_USER,
                             "--seq-len %d: example %d of %s has %d tokens; use --seq-len %d or more, or remove "
                             "--hellaswag",
                             c->seq_len, c->example, c->path, length, length);
        if (length > set->longest) set->longest = length;
    }
    return c->at == c->end || damaged(c, "is longer than its tokens", err);
}

static bool read_examples(HellaSwag *set, Cursor *c, const uint32_t *end, Error *err) {
    for (c->example = 0; c->example < set->examples; c->example++) {
        const uint32_t *start = c->at;
        if (end - start < FIELDS) return damaged(c, "is missing: the file is truncated", err);
        if (start[0] != START) return damaged(c, "does not begin with 65535", err);
        const uint32_t words = start[1] / c->width;
        if (start[1] % c->width != 0 || words < FIELDS) return damaged(c, "has an invalid length", err);
        if (end - start < (int64_t)words) return damaged(c, "is incomplete: the file is truncated", err);
        if (start[2] != (uint32_t)c->example) return damaged(c, "has the wrong number", err);
        c->at = start + 3;
        c->end = start + words;
        if (!read_example(set, c, err)) return false;
    }
    if (c->at != end)
        return error_set(err, EXIT_DATA,
                         "%s is damaged: %lld bytes follow its last example; copy the file again or regenerate it",
                         c->path, (long long)(end - c->at) * c->width);
    return true;
}

// Returns the words after the file's header, widened to 32 bits. Allocated with malloc().
static uint32_t *widen(const char *data, size_t size, uint32_t width) {
    const size_t count = (size - HEADER_BYTES) / width;
    uint32_t *words = (uint32_t *)xmalloc(count * sizeof *words);
    if (width == 4) memcpy(words, data + HEADER_BYTES, count * sizeof *words);
    for (size_t i = 0; i < count && width == 2; i++) {
        uint16_t word;
        memcpy(&word, data + HEADER_BYTES + 2 * i, sizeof word);
        words[i] = word;
    }
    return words;
}

static bool read_file(HellaSwag *set, const char *path, const char *data, size_t size, int seq_len, int vocab,
                      Error *err) {
    int32_t header[4] = {0, 0, 0, 0};
    if (size >= HEADER_BYTES) memcpy(header, data, sizeof header);
    if (header[0] != MAGIC)
        return error_set(err, EXIT_DATA,
                         "%s is not a HellaSwag file (its first 32-bit integer is %d, not %d); make one with %s "
                         "--hellaswag",
                         path, header[0], MAGIC, prepare_name());
    if (header[1] != NARROW && header[1] != WIDE)
        return error_set(err, EXIT_DATA, "%s: version %d is not supported, only %d and %d are; regenerate the file",
                         path, header[1], NARROW, WIDE);
    const uint32_t width = header[1] == WIDE ? 4 : 2;
    if (header[2] < 1 || header[2] > 65536 || size % width != 0) // example numbers have 16 bits
        return error_set(err, EXIT_DATA,
                         "%s is damaged: its header states %d example%s (must be 1 to 65536) and its size is %zu bytes "
                         "(must be a multiple of %u); copy the file again or regenerate it",
                         path, header[2], plural(header[2]), size, width);
    set->examples = header[2];
    set->rows = (Row *)xcalloc((size_t)set->examples * HELLASWAG_ENDINGS, sizeof *set->rows);
    set->label = (uint8_t *)xcalloc((size_t)set->examples, sizeof *set->label);
    set->words = widen(data, size, width);
    Cursor c = {path, set->words, NULL, 0, seq_len, vocab, width};
    return read_examples(set, &c, set->words + (size - HEADER_BYTES) / width, err);
}

HellaSwag *hellaswag_open(const char *path, int seq_len, int vocab, Error *err) {
    char *data;
    size_t size;
    Error why;
    if (!file_read_all(path, FILE_LIMIT, &data, &size, &why)) {
        error_set(err, why.code, "--hellaswag: %.900s; make the file with %s --hellaswag, or remove the flag", why.text,
                  prepare_name());
        return NULL;
    }
    HellaSwag *set = (HellaSwag *)xcalloc(1, sizeof *set);
    const bool good = read_file(set, path, data, size, seq_len, vocab, err);
    set->fingerprint = XXH3_64bits(data, size);
    free(data);
    if (good) return set;
    hellaswag_close(set);
    return NULL;
}

void hellaswag_close(HellaSwag *set) {
    if (!set) return;
    free(set->words);
    free(set->rows);
    free(set->label);
    free(set);
}

int hellaswag_examples(const HellaSwag *set) {
    return set->examples;
}

int hellaswag_rows(const HellaSwag *set) {
    return set->examples * HELLASWAG_ENDINGS;
}

int hellaswag_length(const HellaSwag *set) {
    return set->longest;
}

uint64_t hellaswag_fingerprint(const HellaSwag *set) {
    return set->fingerprint;
}

int hellaswag_pass(const HellaSwag *set, int n, int batch, int rank, int ranks) {
    // smallest number of passes whose rows are complete examples
    const int together = batch % HELLASWAG_ENDINGS == 0 ? 1 : batch % 2 == 0 ? 2 : HELLASWAG_ENDINGS;
    const int64_t round = (int64_t)(n / together) * ranks * together, rows = hellaswag_rows(set);
    if ((round + n % together) * batch >= rows) return -1; // no row is left if rank 0, whose rows come first, has none
    const int64_t row = (round + (int64_t)rank * together + n % together) * batch;
    return (int)(row < rows ? row : rows);
}

void hellaswag_batch(const HellaSwag *set, int first, int count, int T, int32_t *inputs, int32_t *targets) {
    for (int r = 0; r < count; r++, inputs += T, targets += T) {
        for (int t = 0; t < T; t++) {
            inputs[t] = 0;
            targets[t] = -1;
        }
        if (first + r >= hellaswag_rows(set)) continue;
        const Row *row = &set->rows[first + r];
        int n = row->situation_tokens;
        for (int t = 0; t < n; t++) inputs[t] = (int32_t)row->situation[t];
        for (int t = 0; t < row->ending_tokens; t++) {
            targets[n - 1 + t] = (int32_t)row->ending[t];
            if (t + 1 < row->ending_tokens) inputs[n + t] = (int32_t)row->ending[t];
        }
    }
}

void hellaswag_add_losses(HellaSwag *set, int first, int count, int T, const float *losses) {
    for (int r = 0; r < count && first + r < hellaswag_rows(set); r++) {
        Row *row = &set->rows[first + r];
        const float *loss = losses + (int64_t)r * T + row->situation_tokens - 1;
        double sum = 0.0;
        for (int t = 0; t < row->ending_tokens; t++) sum += loss[t];
        row->mean = (float)(sum / row->ending_tokens);
    }
}

int hellaswag_right(const HellaSwag *set) {
    int right = 0;
    for (int e = 0; e < set->examples; e++) {
        const Row *rows = &set->rows[e * HELLASWAG_ENDINGS];
        int best = -1;
        for (int i = 0; i < HELLASWAG_ENDINGS; i++)
            if (isfinite(rows[i].mean) && (best < 0 || rows[i].mean < rows[best].mean)) best = i;
        right += best == set->label[e];
    }
    return right;
}
