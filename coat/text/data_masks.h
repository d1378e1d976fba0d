// Token files for fine-tuning, which contain a loss mask and the starts of examples. data/README.md describes the
// format.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"

#define DATA_HEADER_BYTES 1024 // size of the header in bytes, the same as in llm.c's token files
#define DATA_MAGIC_MASKED 20261124
#define DATA_VERSION_MASKED 1
#define DATA_VERSION_IMAGES 2 // version of files whose tokens contain placeholders of images (images.h)

struct ImageFile;

typedef struct {
    int64_t tokens, counted; // counted: number of unmasked tokens
    int token_bytes;         // bytes per token: 2 or 4
    int64_t examples;
    // index of each example's first token, followed by the end of the last example; freed by the caller
    uint32_t *starts;
    uint8_t *mask;              // loss mask: one bit per token, lowest bit first; 1: unmasked. The caller frees it
    PromptFormat prompt_format; // prompt format of the examples; NONE: not recorded
} MaskedFile;

// Reads and checks an open file of `bytes` bytes that begins with `header`: its checksum, its structure, and that all
// tokens are below `vocab`. Returns false with err (EXIT_DATA) on failure. `images` must be NULL, except in a file of
// DATA_VERSION_IMAGES: masked_read() then finds the placeholders of these images and masks the placeholders as targets.
bool masked_read(const char *path, int fd, int64_t bytes, const int32_t *header, int vocab, struct ImageFile *images,
                 MaskedFile *file, Error *err);

// True if token `at` is unmasked. All tokens are unmasked if mask is NULL.
static inline bool mask_at(const uint8_t *mask, int64_t at) {
    return !mask || (mask[at / 8] >> (at % 8) & 1);
}
