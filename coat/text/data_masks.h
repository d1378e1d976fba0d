// Token files with a loss mask and the starts of examples, for fine-tuning. data/README.md describes the format.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DATA_HEADER_BYTES 1024 // as in llm.c's files
#define DATA_MAGIC_MASKED 20261124
#define DATA_VERSION_MASKED 1

typedef struct {
    int64_t tokens, counted; // counted: unmasked tokens
    int token_bytes;         // 2 or 4
    int64_t examples;
    uint32_t *starts;           // first token of each example, then the end of the last; the caller frees it
    uint8_t *mask;              // one bit per token, lowest first, 1: unmasked; the caller frees it
    PromptFormat prompt_format; // of the examples; NONE: not recorded
} MaskedFile;

// Reads and checks an open file of `bytes` bytes that begins with `header`: its checksum, its structure, and that all
// tokens are below `vocab`. False with err (EXIT_DATA).
bool masked_read(const char *path, int fd, int64_t bytes, const int32_t *header, int vocab, MaskedFile *file,
                 Error *err);

// True if token `at` is unmasked. mask NULL: all tokens are.
static inline bool mask_at(const uint8_t *mask, int64_t at) {
    return !mask || (mask[at / 8] >> (at % 8) & 1);
}

#ifdef __cplusplus
}
#endif
