#include "data_masks.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

#include "images.h"
#include "io/files.h"

#define PIECE 4096 // number of bytes read at a time
#define HASH_AT 32 // offset of the checksum in the header; the checksum is computed with zeros at this offset

static bool damaged(const char *path, Error *err, const char *what) {
    return error_set(err, EXIT_DATA, "%s is damaged: %s; copy the file again or regenerate it", path, what);
}

typedef struct {
    const char *path;
    int fd;
    uint64_t at; // file offset of the next byte to read
    XXH64_state_t *hash;
    int vocab;
    int64_t out_of_vocab; // index of the first token >= vocab; -1: none
    uint32_t out_of_vocab_id;
    ImageFile *images; // images whose placeholders are among the tokens; NULL: none
} Reader;

static bool read_next(Reader *r, void *to, size_t bytes, Error *err) {
    if (!file_read_at(r->fd, r->path, r->at, to, bytes, err)) return false;
    r->at += bytes;
    XXH64_update(r->hash, to, bytes);
    return true;
}

static bool read_tokens(Reader *r, const MaskedFile *file, Error *err) {
    uint32_t piece[PIECE / sizeof(uint32_t)];
    const int64_t most = PIECE / file->token_bytes;
    for (int64_t at = 0; at < file->tokens; at += most) {
        const int64_t count = file->tokens - at < most ? file->tokens - at : most;
        if (!read_next(r, piece, (size_t)(count * file->token_bytes), err)) return false;
        for (int64_t i = 0; i < count && r->out_of_vocab < 0; i++) {
            const uint32_t token = file->token_bytes == 2 ? ((const uint16_t *)piece)[i] : piece[i];
            if (r->images && token == (uint32_t)r->images->token) images_add_placeholder(r->images, at + i);
            if (token < (uint32_t)r->vocab) continue;
            r->out_of_vocab = at + i;
            r->out_of_vocab_id = token;
        }
    }
    return true;
}

// Reads the index of each example's first token. Checks that the indices start at 0 and increase.
static bool read_examples(Reader *r, MaskedFile *file, Error *err) {
    uint32_t *starts = (uint32_t *)xmalloc((size_t)(file->examples + 1) * sizeof *starts);
    file->starts = starts;
    if (!read_next(r, starts, (size_t)file->examples * sizeof *starts, err)) return false;
    starts[file->examples] = (uint32_t)file->tokens;
    bool good = starts[0] == 0;
    for (int64_t i = 0; i < file->examples; i++) good = good && starts[i] < starts[i + 1];
    return good || damaged(r->path, err, "its examples are out of order");
}

static bool read_mask(Reader *r, MaskedFile *file, Error *err) {
    const int64_t bytes = (file->tokens + 7) / 8;
    int64_t counted = 0;
    file->mask = (uint8_t *)xmalloc((size_t)bytes);
    if (!read_next(r, file->mask, (size_t)bytes, err)) return false;
    for (int64_t i = 0; i < bytes; i++) counted += __builtin_popcount(file->mask[i]);
    if (file->tokens % 8 && file->mask[bytes - 1] >> (file->tokens % 8))
        return damaged(r->path, err, "its mask continues after the last token");
    return counted == file->counted || damaged(r->path, err, "its mask does not match the count in its header");
}

// Masks the placeholders of images as targets, because the model does not predict them. Fails if the placeholders do
// not match the images.
static bool mask_images(const Reader *r, MaskedFile *file, Error *err) {
    const ImageFile *images = r->images;
    if (!images) return true;
    if (!images_check_placeholders(r->images, r->path, file->starts, file->examples, err)) return false;
    for (int64_t k = 0; k < images->places; k++)
        for (int64_t at = images->starts[k]; at < (int64_t)images->starts[k] + images->rows; at++) {
            file->counted -= mask_at(file->mask, at);
            file->mask[at / 8] &= (uint8_t) ~(1 << (at % 8));
        }
    return true;
}

// Fails if a token is outside the vocabulary. Call this function after the checksum is verified, so that a
// damaged file is not reported as made for a different vocabulary.
static bool is_of_vocabulary(const Reader *r, Error *err) {
    if (r->out_of_vocab < 0) return true;
    return error_set(err, EXIT_DATA,
                     "%s: token %" PRId64 " is %" PRIu32 ", but the vocabulary ends at %d; use the --tokenizer "
                     "that the file was made with",
                     r->path, r->out_of_vocab, r->out_of_vocab_id, r->vocab - 1);
}

static bool read_all(Reader *r, const int32_t *header, MaskedFile *file, Error *err) {
    int32_t cleared[DATA_HEADER_BYTES / 4];
    uint64_t said;
    memcpy(cleared, header, sizeof cleared);
    memcpy(&said, (const char *)header + HASH_AT, sizeof said);
    memset((char *)cleared + HASH_AT, 0, sizeof said);
    XXH64_update(r->hash, cleared, sizeof cleared);
    return read_tokens(r, file, err) && read_examples(r, file, err) && read_mask(r, file, err) &&
           (XXH64_digest(r->hash) == said || damaged(r->path, err, "its checksum does not match")) &&
           is_of_vocabulary(r, err) && mask_images(r, file, err);
}

bool masked_read(const char *path, int fd, int64_t bytes, const int32_t *header, int vocab, ImageFile *images,
                 MaskedFile *file, Error *err) {
    if (header[1] != DATA_VERSION_MASKED && header[1] != DATA_VERSION_IMAGES)
        return error_set(err, EXIT_DATA,
                         "%s has version %d of the token format with magic %d, but only versions %d and %d are "
                         "supported; regenerate it with %s",
                         path, (int)header[1], DATA_MAGIC_MASKED, DATA_VERSION_MASKED, DATA_VERSION_IMAGES,
                         prepare_name());
    file->tokens = header[2];
    file->token_bytes = header[3];
    file->counted = header[5];
    file->examples = header[4];
    const bool known = header[6] > PROMPT_FORMAT_NONE && header[6] < PROMPT_FORMAT_DATA;
    file->prompt_format = known ? (PromptFormat)header[6] : PROMPT_FORMAT_NONE;
    file->starts = NULL;
    file->mask = NULL;
    if (file->tokens < 1 || (file->token_bytes != 2 && file->token_bytes != 4) || file->examples < 1 ||
        file->examples > file->tokens || file->counted < 1 || file->counted > file->tokens)
        return error_set(err, EXIT_DATA,
                         "%s is damaged: its header says %" PRId64 " tokens of %d bytes, %" PRId64 " examples, %" PRId64
                         " unmasked tokens; copy the file again or regenerate it",
                         path, file->tokens, file->token_bytes, file->examples, file->counted);
    const int64_t said =
        DATA_HEADER_BYTES + file->tokens * file->token_bytes + 4 * file->examples + (file->tokens + 7) / 8;
    if (bytes != said)
        return error_set(err, EXIT_DATA,
                         "%s is %s: %" PRId64 " bytes, but its header says %" PRId64
                         "; copy the file again or regenerate it",
                         path, bytes < said ? "truncated" : "damaged", bytes, said);
    Reader r = {path, fd, DATA_HEADER_BYTES, XXH64_createState(), vocab, -1, 0, images};
    if (!r.hash) fatal(EXIT_DEVICE, "host memory: could not allocate the state of a checksum");
    XXH64_reset(r.hash, 0);
    const bool good = read_all(&r, header, file, err);
    XXH64_freeState(r.hash);
    if (good) return true;
    free(file->starts);
    free(file->mask);
    file->starts = NULL;
    file->mask = NULL;
    return false;
}
