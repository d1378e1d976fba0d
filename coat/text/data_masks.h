// Token files of fine-tuning: which tokens the loss counts, and where examples begin. data/README.md has the format.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DATA_HEADER_BYTES 1024 // of llm.c's files, too
#define DATA_MAGIC_MASKED 20261124
#define DATA_VERSION_MASKED 1

typedef struct {
    int64_t tokens, counted; // of which so many count
    int token_bytes;         // 2 or 4
    int64_t examples;
    uint32_t *starts;           // where each example begins, and the end of the last; the caller's to free
    uint8_t *mask;              // which tokens count, a bit each, the lowest first; the caller's to free
    PromptFormat prompt_format; // of the examples; NONE: it is not said
} MaskedFile;

// Checks an open file of `bytes` that begins with `header`, every byte of it, and whether its tokens are below `vocab`.
// False with err (EXIT_DATA).
bool masked_read(const char *path, int fd, int64_t bytes, const int32_t *header, int vocab, MaskedFile *file,
                 Error *err);

// Whether token `at` counts where it is a target; mask NULL: all do.
static inline bool mask_at(const uint8_t *mask, int64_t at) {
    return !mask || (mask[at / 8] >> (at % 8) & 1);
}

#ifdef __cplusplus
}
#endif
