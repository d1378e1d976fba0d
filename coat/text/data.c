#include "data.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "data_loader.h"
#include "permute.h"

int token_file_descriptor(DataLoader *loader, int index, Error *err) {
    int slot = index % OPEN_FILES;
    if (loader->descriptors[slot] >= 0 && loader->open_file[slot] == index) return loader->descriptors[slot];
    if (loader->descriptors[slot] >= 0) close(loader->descriptors[slot]);
    loader->descriptors[slot] = token_file_open(&loader->files[index], err);
    loader->open_file[slot] = index;
    return loader->descriptors[slot];
}

// Returns a name for a set: its first file pattern and the number of other patterns, such as "a/1.bin and 7 more". The
// caller frees the name.
static char *name_of(const char *patterns, size_t length) {
    const size_t first = strcspn(patterns, "\n") < length ? strcspn(patterns, "\n") : length, size = first + 32;
    int more = 0;
    for (size_t i = first; i + 1 < length; i++) more += patterns[i] == '\n' && patterns[i + 1] != '\n';
    char *name = (char *)xcalloc(size, 1);
    int used = snprintf(name, size, "%.*s", (int)first, patterns);
    if (more) snprintf(name + used, size - (size_t)used, " and %d more", more);
    return name;
}

static bool add_set(DataLoader *loader, const char *patterns, size_t length, double weight, Error *err) {
    Set *set = &loader->sets[loader->set_count++];
    set->name = name_of(patterns, length);
    set->weight = weight;
    set->first_file = loader->count;
    return token_files_find(patterns, length, &loader->files, &loader->count, err);
}

// Finds the files of all sets: with weights, one set per paragraph of `patterns`, otherwise a single set.
static bool find_sets(DataLoader *loader, const char *patterns, const double *weights, Error *err) {
    if (!weights || !strstr(patterns, "\n\n")) return add_set(loader, patterns, strlen(patterns), 1.0, err);
    for (const char *at = patterns; *at;) {
        const char *end = strstr(at, "\n\n");
        const size_t length = end ? (size_t)(end - at) : strlen(at);
        if (loader->set_count == MAX_SETS)
            return error_set(err, EXIT_USER, "--train-weight: at most %d --train flags can have a weight", MAX_SETS);
        if (!add_set(loader, at, length, weights[loader->set_count], err)) return false;
        at += end ? length + 2 : length;
    }
    return true;
}

// True if the sequences of all files are packed from examples, not cut from token streams. Sets *examples to the number
// of examples in all files.
static bool is_packed(const DataLoader *loader, int64_t *examples) {
    bool packed = true;
    *examples = 0;
    for (int i = 0; i < loader->count; i++) {
        *examples += loader->files[i].examples;
        packed = packed && loader->files[i].packing.members;
    }
    return packed;
}

// Finds out why the files [first, end), which form a set, have no sequence. Returns true if sequences are cut from the
// token stream of a file: the streams are then too short, or have no unmasked target. Returns false with err if all
// files have packed examples: these have no unmasked target, or truncation to T + 1 tokens cuts off all unmasked
// targets.
static bool lacks_tokens(const DataLoader *loader, int first, int end, const char *name, Error *err) {
    int64_t examples = 0, cut = 0, longest = 0;
    for (int i = first; i < end; i++) {
        const TokenFile *file = &loader->files[i];
        if (!file->packing.members) return true;
        examples += file->examples;
        cut += file->cut;
        if (file->longest > longest) longest = file->longest;
    }
    if (cut == 0)
        return error_set(err, EXIT_DATA,
                         "%s: none of its %" PRId64 " example%s has an unmasked target (the first token of an "
                         "example is not a target); regenerate the file with answers that are not masked",
                         name, examples, plural(examples));
    return error_set(err, EXIT_DATA,
                     "%s: all unmasked targets are cut off: none of its %" PRId64 " example%s has one among its first "
                     "%d + 1 tokens; use a larger --seq-len (%" PRId64 " fits the longest example)",
                     name, examples, plural(examples), loader->T, longest - 1);
}

// Checks the files of a set, and divides the files into sequences.
static bool check_set(DataLoader *loader, int number, XXH64_state_t *hash, Error *err) {
    Set *set = &loader->sets[number];
    const int end = number + 1 < loader->set_count ? loader->sets[number + 1].first_file : loader->count;
    set->first_sequence = loader->sequences;
    for (int i = set->first_file; i < end; i++) {
        TokenFile *file = &loader->files[i];
        int fd = token_file_descriptor(loader, i, err);
        if (fd < 0 || !token_file_check(file, fd, loader->vocab, &loader->vision, hash, err)) return false;
        file->first_sequence = loader->sequences;
        if (!token_file_divide(file, loader->T, loader->examples, loader->max_images, err)) return false;
        loader->sequences += file->sequences;
        loader->counted += file->counted;
        loader->masked |= file->mask != NULL;
        set->tokens += file->tokens;
    }
    set->sequences = loader->sequences - set->first_sequence;
    loader->tokens += set->tokens;
    if (set->sequences == 0 && !lacks_tokens(loader, set->first_file, end, set->name, err)) return false;
    const bool needs_one = loader->set_count > 1 || loader->fills;
    if (needs_one && set->sequences == 0)
        return error_set(
            err, EXIT_DATA,
            "%s: %" PRId64 " token%s make%s no sequence of %d + 1 tokens%s; use a smaller --seq-len, or %s", set->name,
            set->tokens, plural(set->tokens), singular(set->tokens), loader->T,
            loader->masked ? " with an unmasked target" : "", loader->set_count > 1 ? "remove this set" : "more data");
    if (loader->set_count > 1) { // the fingerprint of a single set depends on its files only
        const int files = end - set->first_file;
        XXH64_update(hash, &files, sizeof files);
        XXH64_update(hash, &loader->mixture.units[number], sizeof loader->mixture.units[number]);
    }
    return true;
}

static bool check_sets(DataLoader *loader, Error *err) {
    XXH64_state_t *hash = XXH64_createState();
    if (!hash) fatal(EXIT_DEVICE, "host memory: could not allocate the state of a checksum");
    XXH64_reset(hash, 0);
    bool ok = true;
    double weights[MAX_SETS];
    for (int k = 0; k < loader->set_count; k++) weights[k] = loader->sets[k].weight;
    mixture_open(&loader->mixture, weights, loader->set_count, loader->seed, loader->shuffle);
    for (int k = 0; ok && k < loader->set_count; k++) ok = check_set(loader, k, hash, err);
    loader->fingerprint = XXH64_digest(hash);
    XXH64_freeState(hash);
    if (!ok) return false;
    int64_t needed = loader->fills ? 1 : (int64_t)loader->B * loader->ranks;
    char others[48] = ""; // text that says that the numbers in the message are totals of all sets
    if (loader->set_count > 1)
        snprintf(others, sizeof others, " and %d other set%s", loader->set_count - 1, plural(loader->set_count - 1));
    if (loader->sequences >= needed) return true;
    int64_t examples;
    const bool packed = is_packed(loader, &examples); // if true, a smaller --seq-len would not help
    const int64_t from = packed ? examples : loader->tokens;
    return error_set(err, EXIT_DATA,
                     "%s%s: %" PRId64 " %s%s make%s %" PRId64 " sequence%s of %d%s tokens%s, but one micro-batch needs "
                     "%" PRId64 " (%d row%s on %d %s); use a smaller --micro-batch%s, or more data",
                     loader->sets[0].name, others, from, packed ? "example" : "token", plural(from), singular(from),
                     loader->sequences, plural(loader->sequences), loader->T, packed ? "" : " + 1",
                     loader->masked && !packed ? " with an unmasked target" : "", needed, loader->B, plural(loader->B),
                     loader->ranks, loader->ranks == 1 ? "process" : "processes", packed ? "" : " or --seq-len");
}

// Returns the index of the file that contains sequence s of all files' sequences, which is the last file whose first
// sequence is not after s. A file without a complete sequence has the same first_sequence as the next file.
static int file_of_sequence(const DataLoader *loader, int64_t s) {
    int low = 0, high = loader->count - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (loader->files[middle].first_sequence <= s)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// Sets positions[1] to positions[T - 1] of a sequence to each token's position within its document. The caller must
// have set positions[0].
static void count_positions(const SpecialIds *ids, const int32_t *inputs, int T, int32_t *positions) {
    for (int t = 1; t < T; t++)
        if (ids->bos >= 0 ? inputs[t] == ids->bos : is_eos(ids, inputs[t - 1]))
            positions[t] = 0;
        else
            positions[t] = positions[t - 1] + 1;
}

bool data_mask_documents(DataLoader *loader, const SpecialIds *ways, int count, bool *found, Error *err) {
    const SpecialIds *first = NULL;
    int text = 0; // index of the first file that does not record its documents
    while (text < loader->count && loader->files[text].starts) text++;
    *found = text == loader->count;
    for (int i = 0; i < count && !*found; i++) {
        bool again = ways[i].bos < 0 && ways[i].eos_count == 0;
        for (int j = 0; j < i; j++) again = again || memcmp(&ways[i], &ways[j], sizeof ways[i]) == 0;
        if (again) continue;
        *found = data_has_ids(loader, &ways[i]);
        if (*found || !first) first = &ways[i];
    }
    if (first) loader->ids = *first;
    return *found || first ||
           error_set(err, EXIT_USER,
                     "--documents apart: %s does not record where documents begin, and no BOS or EOS token is known; "
                     "add --tokenizer with the vocabulary's file",
                     loader->files[text].path);
}

int64_t data_documents_hash(const DataLoader *loader) {
    return (int64_t)(XXH3_64bits(&loader->ids, sizeof loader->ids) >> 1);
}

// Reads a sequence into inputs (T), targets (T) and positions (T). `positions` may be NULL.
static bool read_sequence(DataLoader *loader, int64_t sequence, int32_t *inputs, int32_t *targets, int32_t *positions,
                          Error *err) {
    const int index = file_of_sequence(loader, sequence), fd = token_file_descriptor(loader, index, err);
    const TokenFile *file = &loader->files[index];
    if (fd < 0 || !token_file_read(file, fd, sequence - file->first_sequence, loader->T, loader->vocab, loader->buffer,
                                   inputs, targets, positions, err))
        return false;
    if (positions && !file->starts) count_positions(&loader->ids, inputs, loader->T, positions);
    return true;
}

// Checks `count` sequences, starting with sequence `first`. Returns false with err if a sequence cannot be read or
// has a token outside the vocabulary.
static bool check_sequences(DataLoader *loader, int64_t first, int64_t count, Error *err) {
    const size_t T = (size_t)loader->T;
    int32_t *tokens = (int32_t *)xmalloc(2 * T * sizeof *tokens);
    bool good = true;
    for (int64_t s = first; good && s < first + count; s++)
        good = read_sequence(loader, s, tokens, tokens + T, NULL, err);
    free(tokens);
    return good;
}

// Checks the first sequence of every file, so that files made for a different vocabulary are found before training.
static bool check_beginnings(DataLoader *loader, Error *err) {
    bool good = true;
    for (int i = 0; good && i < loader->count; i++) {
        const TokenFile *file = &loader->files[i];
        if (file->sequences > 0) good = check_sequences(loader, file->first_sequence, 1, err);
    }
    return good;
}

bool data_check(DataLoader *loader, int batches, Error *err) {
    const int64_t most = (int64_t)batches * loader->B;
    return check_sequences(loader, 0, most < loader->sequences ? most : loader->sequences, err);
}

DataLoader *data_open(const char *patterns, int B, int T, int rank, int ranks, uint64_t seed, bool shuffle, int vocab,
                      Error *err) {
    return data_open_sets(patterns, NULL, EXAMPLES_SPLIT, B, T, rank, ranks, seed, shuffle, vocab, NULL, err);
}

static DataLoader *open_loader(const char *patterns, const double *weights, ExamplesKind examples, int B, int T,
                               int rank, int ranks, uint64_t seed, bool shuffle, bool fills, int vocab,
                               const DataImages *images, Error *err) {
    if (B < 1 || T < 1 || T > INT32_MAX / 8 || ranks < 1 || rank < 0 || rank >= ranks || vocab < 1) {
        error_set(err, EXIT_USER, "token reader: invalid micro-batch %d, length %d, rank %d of %d or vocabulary %d", B,
                  T, rank, ranks, vocab);
        return NULL;
    }
    DataLoader *loader = (DataLoader *)xcalloc(1, sizeof *loader);
    for (int i = 0; i < OPEN_FILES; i++) loader->descriptors[i] = -1;
    loader->examples = examples;
    loader->B = B;
    loader->T = T;
    loader->rank = rank;
    loader->ranks = ranks;
    loader->seed = seed;
    loader->shuffle = shuffle;
    loader->fills = fills;
    loader->vocab = vocab;
    if (images) loader->vision = images->vision, loader->max_images = images->per_sequence;
    loader->buffer = xmalloc(((size_t)T + 1) * 4);
    if (find_sets(loader, patterns, weights, err) && check_sets(loader, err) && check_beginnings(loader, err)) {
        verifier_begin(&loader->verifier, loader->files, loader->count, rank, ranks);
        if (verifier_good(&loader->verifier, err)) return loader;
    }
    data_close(loader);
    return NULL;
}

DataLoader *data_open_sets(const char *patterns, const double *weights, ExamplesKind examples, int B, int T, int rank,
                           int ranks, uint64_t seed, bool shuffle, int vocab, const DataImages *images, Error *err) {
    return open_loader(patterns, weights, examples, B, T, rank, ranks, seed, shuffle, false, vocab, images, err);
}

DataLoader *data_open_validation(const char *patterns, ExamplesKind examples, int B, int T, int vocab,
                                 const DataImages *images, Error *err) {
    return open_loader(patterns, NULL, examples, B, T, 0, 1, 0, false, true, vocab, images, err);
}

void data_close(DataLoader *loader) {
    if (!loader) return;
    verifier_end(&loader->verifier);
    for (int i = 0; i < OPEN_FILES; i++)
        if (loader->descriptors[i] >= 0) close(loader->descriptors[i]);
    token_files_free(loader->files, loader->count);
    for (int k = 0; k < loader->set_count; k++) free(loader->sets[k].name);
    free(loader->buffer);
    free(loader);
}

int64_t data_tokens(const DataLoader *loader) {
    return loader->tokens;
}

int64_t data_sequences(const DataLoader *loader) {
    return loader->sequences;
}

bool data_masked(const DataLoader *loader) {
    return loader->masked;
}

int64_t data_unmasked_targets(const int32_t *targets, int64_t tokens) {
    int64_t counted = 0;
    for (int64_t i = 0; i < tokens; i++) counted += targets[i] >= 0;
    return counted;
}

uint64_t data_fingerprint(const DataLoader *loader) {
    return loader->fingerprint;
}

bool data_batch(DataLoader *loader, int64_t n, int32_t *inputs, int32_t *targets, Error *err) {
    int64_t rows = (int64_t)loader->B * loader->ranks; // number of sequences in a micro-batch over all ranks
    if (n < 0 || n >= INT64_MAX / rows)
        return error_set(err, EXIT_DATA, "internal error: micro-batch number %" PRId64 " is negative or too large", n);
    return data_batch_at(loader, n * rows, inputs, targets, NULL, err);
}

// Returns the index of the sequence that the run reads at `position`, among the sequences of all files.
static int64_t sequence_at(DataLoader *loader, int64_t position) {
    int64_t index = position; // number of earlier positions of the run that read from the same set
    const int number = loader->set_count > 1 ? mixture_at(&loader->mixture, position, &index) : 0;
    const Set *set = &loader->sets[number];
    int64_t epoch = index / set->sequences, sequence = index % set->sequences;
    const uint64_t seed = loader->seed + (uint64_t)number * 0x9e3779b97f4a7c15u; // set 0 uses the seed of the run
    if (loader->shuffle) sequence = permute(sequence, set->sequences, seed, epoch);
    return set->first_sequence + sequence;
}

// Fills a sequence with padding: tokens 0, masked targets, and position 0, so that no token attends to another.
static void empty_sequence(int T, int32_t *inputs, int32_t *targets, int32_t *positions) {
    memset(inputs, 0, (size_t)T * sizeof *inputs);
    memset(targets, 0xff, (size_t)T * sizeof *targets); // sets all targets to -1
    if (positions) memset(positions, 0, (size_t)T * sizeof *positions);
}

bool data_batch_at(DataLoader *loader, int64_t first, int32_t *inputs, int32_t *targets, int32_t *positions,
                   Error *err) {
    if (first < 0 || first > INT64_MAX - (int64_t)loader->B * loader->ranks)
        return error_set(err, EXIT_DATA, "internal error: sequence number %" PRId64 " is negative or too large", first);
    if (!verifier_good(&loader->verifier, err)) return false;
    int64_t row = first + (int64_t)loader->rank * loader->B;
    for (int b = 0; b < loader->B; b++, row++) {
        int64_t at = (int64_t)b * loader->T;
        if (loader->fills && row >= loader->sequences) {
            empty_sequence(loader->T, inputs + at, targets + at, positions ? positions + at : NULL);
            continue;
        }
        int64_t sequence = sequence_at(loader, row);
        if (!read_sequence(loader, sequence, inputs + at, targets + at, positions ? positions + at : NULL, err))
            return false;
    }
    return true;
}

bool data_images_at(DataLoader *loader, int64_t first, int32_t *image_rows, uint8_t *pixels, int *count, Error *err) {
    const int T = loader->T;
    const size_t bytes = (size_t)loader->B * (size_t)T * sizeof *image_rows;
    *count = 0;
    memset(image_rows, 0xff, bytes); // sets all rows to -1
    int64_t row = first + (int64_t)loader->rank * loader->B;
    for (int b = 0; b < loader->B; b++, row++) {
        if (loader->fills && row >= loader->sequences) break;
        const int64_t sequence = sequence_at(loader, row);
        const TokenFile *file = &loader->files[file_of_sequence(loader, sequence)];
        if (token_file_read_images(file, sequence - file->first_sequence, T, image_rows + (int64_t)b * T, pixels, count,
                                   err))
            continue;
        *count = 0;
        memset(image_rows, 0xff, bytes);
        return false;
    }
    return true;
}

const VisionShape *data_vision(const DataLoader *loader) {
    return &loader->vision;
}

int data_batches(const DataLoader *loader, int max) {
    const int64_t rest = loader->fills ? loader->B - 1 : 0, available = (loader->sequences + rest) / loader->B;
    return max > 0 && max < available ? max : (int)available;
}
