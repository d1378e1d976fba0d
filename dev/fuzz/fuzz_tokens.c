// Fuzz target for the reader of token files (coat/text/data.c). Input: 8 bytes {batch, sequence length, ranks, flags,
// vocabulary (2 bytes), cut (2 bytes)}, then a token file, then optionally the line "=== 2" and a second token file.
// While the files are open, the first one is truncated to `cut` bytes.
// The bits of `flags` mean:
//   0: shuffle the sequences
//   1: the second file is a separate data set
//   2: the first file is an .npy file, whose header is optional, and the second file is not used
//   3: write a correct checksum into the first file, if it has a loss mask
//   4, 5: the ExamplesKind
#include "dev/fuzz/fuzz.h"

#include "coat/text/data.h"
#include "coat/text/data_masks.h"

static void read_batches(DataLoader *loader, int B, int T, int vocab, const char *folder, Error *err) {
    size_t count = (size_t)B * (size_t)T;
    int32_t *inputs = (int32_t *)xmalloc(count * sizeof *inputs),
            *targets = (int32_t *)xmalloc(count * sizeof *targets);
    static const int64_t numbers[] = {0, 1, 2, 77, (int64_t)1 << 40, INT64_MAX, -1};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (!data_batch(loader, numbers[i], inputs, targets, err)) {
            fuzz_refused(err, numbers[i] < 0 || numbers[i] == INT64_MAX ? "micro-batch" : folder);
            continue;
        }
        for (size_t k = 0; k < count; k++) {
            fuzz_check(inputs[k] >= 0 && inputs[k] < vocab && targets[k] >= -1 && targets[k] < vocab);
            fuzz_check(targets[k] >= 0 || data_masked(loader));
            if ((k + 1) % (size_t)T) fuzz_check(targets[k] == inputs[k + 1] || targets[k] < 0);
        }
        for (int row = 0; row < B; row++) fuzz_check(data_unmasked_targets(targets + (size_t)row * (size_t)T, T) > 0);
    }
    int32_t *positions = (int32_t *)xmalloc(count * sizeof *positions);
    const SpecialIds ids = {vocab / 2, 0, {0}};
    bool found;
    fuzz_check(data_mask_documents(loader, &ids, 1, &found, err));
    for (int64_t first = 0; first < 3; first++) {
        if (!data_batch_at(loader, first, inputs, targets, positions, err)) continue;
        for (size_t k = 0; k < count; k++)
            fuzz_check(positions[k] == 0 || (k % (size_t)T && positions[k] == positions[k - 1] + 1));
    }
    free(positions);
    free(inputs);
    free(targets);
}

// Checks that the micro-batches of validation data have room for every sequence, and that only the padding of the last
// one has no unmasked targets.
static void check_validation(const char *pattern, ExamplesKind examples, int B, int T, int vocab, const char *folder) {
    Error err;
    DataLoader *loader = data_open_validation(pattern, examples, B, T, vocab, NULL, &err);
    if (!loader) {
        fuzz_refused(&err, folder);
        return;
    }
    const int64_t places = (int64_t)data_batches(loader, -1) * B, all = data_sequences(loader);
    fuzz_check(places >= all && places < all + B);
    const size_t count = (size_t)B * (size_t)T;
    int32_t *inputs = (int32_t *)xmalloc(2 * count * sizeof *inputs), *targets = inputs + count;
    const int last = data_batches(loader, -1) - 1;
    if (data_batch(loader, last, inputs, targets, &err))
        for (int64_t row = 0; row < B; row++)
            fuzz_check((data_unmasked_targets(targets + row * T, T) > 0) == (last * (int64_t)B + row < all));
    free(inputs);
    data_close(loader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 8) return 0;
    int B = 1 + data[0] % 8, T = 1 + data[1], ranks = 1 + data[2] % 4, vocab = 1 + (data[4] | data[5] << 8);
    bool shuffle = data[3] & 1, sets = data[3] & 2, npy = data[3] & 4;
    const double weights[] = {0.7, 0.3};
    const ExamplesKind examples = (ExamplesKind)((data[3] >> 4 & 3) % 3);
    size_t cut = (size_t)data[6] | (size_t)data[7] << 8;
    data += 8;
    size -= 8;
    const uint8_t *second = (const uint8_t *)memmem(data, size, "=== 2\n", 6);
    size_t first_bytes = second ? (size_t)(second - data) : size;
    uint8_t *copy = (uint8_t *)memcpy(xmalloc(first_bytes + 1), data, first_bytes);
    if (data[-5] & 8) fuzz_write_hash(copy, first_bytes);
    const char *first = fuzz_file(npy ? "x.npy" : "tokens-0", copy, first_bytes), *folder = fuzz_folder();
    free(copy);
    char pattern[2 * FUZZ_PATH];
    snprintf(pattern, sizeof pattern, "%s", first);
    if (second && !npy) {
        const char *other = fuzz_file("tokens-1", second + 6, size - first_bytes - 6);
        if (sets)
            snprintf(pattern, sizeof pattern, "%s\n\n%s", first, other);
        else
            snprintf(pattern, sizeof pattern, "%s/tokens-[01]", folder);
    }
    sets = sets && !npy;
    if (!sets) check_validation(pattern, examples, B, T, vocab, folder);
    Error err;
    DataLoader *loader =
        data_open_sets(pattern, sets ? weights : NULL, examples, B, T, ranks - 1, ranks, 7, shuffle, vocab, NULL, &err);
    if (!loader) {
        fuzz_refused(&err, folder);
        return 0;
    }
    char text[128];
    data_describe(loader, text, sizeof text);
    const DataExamples e = data_examples(loader);
    fuzz_check(e.left_out >= 0 && e.sequences <= data_sequences(loader) && e.filled <= 1);
    fuzz_check(data_tokens(loader) > 0 && 2 * data_tokens(loader) <= (int64_t)size);
    fuzz_check(data_sequences(loader) >= (int64_t)B * ranks);
    read_batches(loader, B, T, vocab, folder, &err);
    if (cut < first_bytes && !npy) { // Truncates the first token file after its header has been read.
        fuzz_check(truncate(first, (off_t)cut) == 0);
        read_batches(loader, B, T, vocab, folder, &err);
    }
    data_close(loader);
    return 0;
}
