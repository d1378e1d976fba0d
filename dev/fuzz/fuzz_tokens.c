// The token reader (coat/text/data.c). Input: 8 bytes {batch, sequence length, ranks, shuffle, vocabulary (2 bytes),
// where to cut (2 bytes)}, then a shard, then after the bytes "=== 2\n" perhaps a second one, which is a set of its own
// where bit 1 of shuffle is set. With bit 2 the first is a file named .npy, which need not have a header. With bit 3
// the first gets the checksum that a file with a mask has. Bits 4 and 5 say what becomes of examples.
#include "dev/fuzz/fuzz.h"

#include <xxhash.h>

#include "coat/text/data.h"
#include "coat/text/data_masks.h"

// The same bytes with the checksum that is theirs; free() it.
static uint8_t *signed_copy(const uint8_t *data, size_t size) {
    uint8_t *copy = (uint8_t *)memcpy(xmalloc(size + 1), data, size);
    uint64_t hash = 0;
    if (size < DATA_HEADER_BYTES) return copy;
    memcpy(copy + 32, &hash, sizeof hash);
    hash = XXH64(copy, size, 0);
    memcpy(copy + 32, &hash, sizeof hash);
    return copy;
}

static void read_batches(DataLoader *loader, int B, int T, int vocab, const char *named, Error *err) {
    size_t count = (size_t)B * (size_t)T;
    int32_t *inputs = (int32_t *)xmalloc(count * sizeof *inputs),
            *targets = (int32_t *)xmalloc(count * sizeof *targets);
    static const int64_t numbers[] = {0, 1, 2, 77, (int64_t)1 << 40, INT64_MAX, -1};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (!data_batch(loader, numbers[i], inputs, targets, err)) {
            fuzz_refused(err, numbers[i] < 0 || numbers[i] == INT64_MAX ? "micro-batch" : named);
            continue;
        }
        for (size_t k = 0; k < count; k++) {
            fuzz_check(inputs[k] >= 0 && inputs[k] < vocab && targets[k] >= -1 && targets[k] < vocab);
            fuzz_check(targets[k] >= 0 || data_masked(loader));
            if ((k + 1) % (size_t)T) fuzz_check(targets[k] == inputs[k + 1] || targets[k] < 0);
        }
        for (int row = 0; row < B; row++) fuzz_check(data_count(targets + (size_t)row * (size_t)T, T) > 0);
    }
    int32_t *positions = (int32_t *)xmalloc(count * sizeof *positions);
    const TextIds ids = {vocab / 2, 0, {0}};
    bool found;
    fuzz_check(data_keep_apart(loader, &ids, 1, &found, err));
    for (int64_t first = 0; first < 3; first++) {
        if (!data_batch_at(loader, first, inputs, targets, positions, err)) continue;
        for (size_t k = 0; k < count; k++)
            fuzz_check(positions[k] == 0 || (k % (size_t)T && positions[k] == positions[k - 1] + 1));
    }
    free(positions);
    free(inputs);
    free(targets);
}

// Validation has every sequence of the data; the last micro-batch is filled up.
static void check_validation(const char *pattern, ExamplesKind examples, int B, int T, int vocab, const char *named) {
    Error err;
    DataLoader *loader = data_open_validation(pattern, examples, B, T, vocab, &err);
    if (!loader) {
        fuzz_refused(&err, named);
        return;
    }
    const int64_t places = (int64_t)data_batches(loader, -1) * B, all = data_sequences(loader);
    fuzz_check(places >= all && places < all + B);
    const size_t count = (size_t)B * (size_t)T;
    int32_t *inputs = (int32_t *)xmalloc(2 * count * sizeof *inputs), *targets = inputs + count;
    const int last = data_batches(loader, -1) - 1;
    if (data_batch(loader, last, inputs, targets, &err))
        for (int64_t row = 0; row < B; row++)
            fuzz_check((data_count(targets + row * T, T) > 0) == (last * (int64_t)B + row < all));
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
    uint8_t *copy = data[-5] & 8 ? signed_copy(data, first_bytes) : NULL;
    const char *pattern = fuzz_memory_file(0, copy ? copy : data, first_bytes);
    if (second) {
        fuzz_memory_file(1, second + 6, size - first_bytes - 6);
        pattern = sets ? "/proc/self/fd/500\n\n/proc/self/fd/501" : "/proc/self/fd/50[01]";
    }
    if (npy) pattern = fuzz_file("x.npy", copy ? copy : data, first_bytes);
    free(copy);
    const char *named = npy ? "x.npy" : "/proc/self/fd/";
    sets = sets && !npy;
    if (!sets) check_validation(pattern, examples, B, T, vocab, named);
    Error err;
    DataLoader *loader =
        data_open_sets(pattern, sets ? weights : NULL, examples, B, T, ranks - 1, ranks, 7, shuffle, vocab, &err);
    if (!loader) {
        fuzz_refused(&err, named);
        return 0;
    }
    char text[128];
    data_describe(loader, text, sizeof text);
    const DataExamples e = data_examples(loader);
    fuzz_check(e.left_out >= 0 && e.sequences <= data_sequences(loader) && e.filled <= 1);
    fuzz_check(data_tokens(loader) > 0 && 2 * data_tokens(loader) <= (int64_t)size);
    fuzz_check(data_sequences(loader) >= (int64_t)B * ranks);
    read_batches(loader, B, T, vocab, named, &err);
    if (cut < first_bytes && !npy) { // the file shrinks after its header was believed
        fuzz_memory_cut(0, cut);
        read_batches(loader, B, T, vocab, named, &err);
    }
    data_close(loader);
    return 0;
}
