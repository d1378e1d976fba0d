// Writes token files for tests, and opens readers on them.
#pragma once
#include "coat/text/data.h"
#include "coat/text/data_files.h"
#include "test_folder.h"

#define VOCAB 50257

// Writes a token file with the `count` tokens first, first + 1, ..., modulo `modulus`. Its header says `said` tokens.
static inline void write_header_and_tokens(const char *name, int32_t magic, int32_t version, int32_t said, int width,
                                           int64_t count, uint32_t first, uint32_t modulus) {
    size_t bytes = DATA_HEADER_BYTES + (size_t)count * (size_t)width;
    char *file = (char *)xcalloc(bytes, 1);
    int32_t head[3] = {magic, version, said};
    memcpy(file, head, sizeof head);
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = (uint32_t)((first + (uint64_t)i) % modulus);
        // Copies the token's low bytes, which come first in little-endian order.
        memcpy(file + DATA_HEADER_BYTES + i * width, &token, (size_t)width);
    }
    write_file(path_of(name), file, bytes);
    free(file);
}

static inline void write_u16(const char *name, int count, uint32_t first) {
    write_header_and_tokens(name, DATA_MAGIC_U16, DATA_VERSION_U16, count, 2, count, first, VOCAB);
}

static inline void write_u32(const char *name, int count, uint32_t first) {
    write_header_and_tokens(name, DATA_MAGIC_U32, DATA_VERSION_U32, count, 4, count, first, VOCAB);
}

static inline DataLoader *open_one(const char *glob, int B, int T, bool shuffle) {
    Error err;
    memset(&err, 0, sizeof err);
    DataLoader *loader = data_open(path_of(glob), B, T, 0, 1, 1234, shuffle, VOCAB, &err);
    if (!loader) fail_msg("%s", err.text);
    return loader;
}

// Closes the loader. Returns the fingerprint of its data.
static inline uint64_t fingerprint_of(DataLoader *loader) {
    if (!loader) fail_msg("the data were refused");
    const uint64_t fingerprint = data_fingerprint(loader);
    data_close(loader);
    return fingerprint;
}

// Fails unless opening the token files `glob` fails with EXIT_DATA and one line of error text that contains both words.
static inline void expect_refused(const char *glob, int B, int T, int ranks, const char *word1, const char *word2) {
    Error err;
    memset(&err, 0, sizeof err);
    DataLoader *loader = data_open(path_of(glob), B, T, 0, ranks, 1, true, VOCAB, &err);
    assert_null(loader);
    assert_error(&err, EXIT_DATA, formatted("%s&%s", word1, word2));
}
