// Fixture for tests: writes token files whose examples contain images, and their files of images.
#pragma once
#include "coat/text/data_verify.h"
#include "coat/text/images.h"
#include "test_folder.h"

enum { WORDS = DATA_HEADER_BYTES / 4, MAX_TOKENS = 8192, MAX_EXAMPLES = 512, MAX_PLACES = 512 };

// A token file with a loss mask.
typedef struct {
    int32_t version, tokens[MAX_TOKENS];
    uint8_t mask[MAX_TOKENS]; // one byte per token; 1: unmasked
    uint32_t starts[MAX_EXAMPLES];
    int count, examples;
} Examples;

// A file of images.
typedef struct {
    int32_t header[WORDS];
    uint32_t shown[MAX_PLACES]; // index of the stored image that each group of placeholder tokens shows
    uint8_t *pixels;
    int64_t extra; // number of bytes appended to the file; if negative, number of bytes missing at its end
    bool damaged;  // true: the checksum does not match
} Images;

static inline void add_tokens(Examples *e, int32_t token, int count, bool unmasked) {
    for (int i = 0; i < count; i++) {
        assert_true(e->count < MAX_TOKENS);
        e->mask[e->count] = unmasked;
        e->tokens[e->count++] = token;
    }
}

// Adds the examples that `text` describes. t: masked token; A: unmasked token; I: placeholders of an image; J: unmasked
// placeholders of an image; p: one placeholder; |: start of the next example. Text token ids count up from `first`.
static inline void add_examples(Examples *e, const char *text, int32_t first, int32_t placeholder, int rows) {
    e->version = DATA_VERSION_IMAGES;
    e->starts[e->examples++] = (uint32_t)e->count;
    for (const char *c = text; *c; c++) {
        assert_true(e->examples < MAX_EXAMPLES);
        if (*c == '|')
            e->starts[e->examples++] = (uint32_t)e->count;
        else if (*c == 'I' || *c == 'J' || *c == 'p')
            add_tokens(e, placeholder, *c == 'p' ? 1 : rows, *c == 'J');
        else
            add_tokens(e, first++, 1, *c == 'A');
    }
}

static inline void write_examples(const char *name, const Examples *e) {
    const size_t bytes = sizeof(int32_t) * (size_t)(WORDS + e->count + e->examples) + (size_t)(e->count + 7) / 8;
    int32_t *file = (int32_t *)xcalloc(bytes + sizeof *file, 1), *at = file + WORDS;
    const int32_t head[] = {DATA_MAGIC_MASKED, e->version, e->count, 4, e->examples};
    memcpy(file, head, sizeof head);
    memcpy(at, e->tokens, (size_t)e->count * sizeof *at);
    memcpy(at + e->count, e->starts, (size_t)e->examples * sizeof *at);
    uint8_t *mask = (uint8_t *)(at + e->count + e->examples);
    for (int i = 0; i < e->count; i++) {
        mask[i / 8] |= (uint8_t)(e->mask[i] << (i % 8));
        file[5] += e->mask[i];
    }
    const uint64_t hash = XXH64(file, bytes, 0);
    memcpy(file + 8, &hash, sizeof hash);
    write_file(path_of(name), file, bytes);
    free(file);
}

// Returns `count` images with random pixels and `places` places. Place i shows image i % count.
static inline Images make_images(int count, int side, int rows, int places, int32_t token) {
    Images m;
    memset(&m, 0, sizeof m);
    const float values[6] = {0.25f, 0.5f, 0.75f, 0.125f, 0.5f, 1.5f};
    const int32_t head[] = {IMAGES_MAGIC, IMAGES_VERSION, count, side, 3, rows, places, 0, 0, DATA_CHECKSUM, token};
    memcpy(m.header, head, sizeof head);
    memcpy(m.header + IMAGES_WORD_MEAN, values, sizeof values);
    for (int i = 0; i < places; i++) m.shown[i] = (uint32_t)(i % count);
    const size_t bytes = (size_t)(count * 3 * side * side);
    m.pixels = (uint8_t *)xmalloc(bytes);
    for (size_t i = 0; i < bytes; i++) m.pixels[i] = (uint8_t)(XXH64(&i, sizeof i, (uint64_t)count) >> 8);
    return m;
}

// Writes the file of images m: header, `places` image indices (m->shown), and `count` images of side x side pixels.
static inline void write_images(const char *name, const Images *m, int count, int side, int places) {
    const size_t listed = 4 * (size_t)places, pixels = (size_t)(count * 3 * side * side);
    const size_t bytes = (size_t)((int64_t)(DATA_HEADER_BYTES + listed + pixels) + m->extra);
    uint8_t *file = (uint8_t *)xcalloc(DATA_HEADER_BYTES + listed + pixels + (m->extra > 0 ? (size_t)m->extra : 0), 1);
    memcpy(file, m->header, sizeof m->header);
    memcpy(file + DATA_HEADER_BYTES, m->shown, listed);
    memcpy(file + DATA_HEADER_BYTES + listed, m->pixels, pixels);
    write_file(path_of(name), file, bytes);
    if (bytes > DATA_HEADER_BYTES) {
        int fd;
        uint64_t size;
        uint32_t crc;
        Error err;
        assert_true(file_open(path_of(name), &fd, &size, &err));
        assert_true(data_checksum(fd, name, (int64_t)bytes - DATA_HEADER_BYTES, NULL, &crc, &err));
        close(fd);
        crc ^= m->damaged;
        memcpy(file + 4 * IMAGES_WORD_CRC, &crc, sizeof crc);
        write_file(path_of(name), file, bytes);
    }
    free(file);
}
