// Token files: finds them, checks their headers and reads their sequences. Formats, all little-endian:
//   llm.c's .bin   a header of 256 int32, then the tokens. Magic 20240520 version 1: uint16 tokens; magic 20240801
//                  version 7: uint32. header[2] is the number of tokens.
//   OLMo's .npy    only tokens, uint16 if the vocabulary has at most 65,536 ids, else uint32
//   with a mask    this program's own (data_masks.h)
#pragma once
#include <sys/types.h>
#include <time.h>
#include <xxhash.h>

#include "config/config.h"
#include "data_masks.h"
#include "packing.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DATA_MAGIC_U16 20240520
#define DATA_VERSION_U16 1
#define DATA_MAGIC_U32 20240801
#define DATA_VERSION_U32 7
#define DATA_CHECKSUM 1 // value of header[9] if header[8] is the CRC-32 of the tokens (data_verify.h)

typedef struct {
    char *path;
    int64_t bytes;          // of the file
    int64_t tokens;         // after the header
    int header_bytes;       // 0: no header
    int token_bytes;        // 2 or 4
    int64_t counted;        // unmasked tokens
    uint8_t *mask;          // one bit per token, lowest first, 1: unmasked; NULL: all are
    int64_t examples;       // 0: a file without a mask
    uint32_t *starts;       // first token of each example, then the end of the last; NULL: not recorded
    int64_t first_sequence; // number of this file's first sequence among those of all files
    int64_t sequences;      // number of sequences
    int32_t *chosen;        // which sequences of the stream have a target; NULL: all
    Packing packing;        // of its examples; members NULL: sequences are cut from the stream
    int64_t cut;            // number of examples longer than a sequence
    int64_t longest;        // tokens of the longest example
    bool again;             // two patterns match it
    dev_t device;           // device and inode identify the file
    ino_t inode;
    struct timespec changed; // modification time at token_file_check()
    bool checked;            // token_file_check() was called
    bool has_crc;            // the header has a checksum
    uint32_t crc;
    PromptFormat prompt_format; // of its examples; NONE: not recorded
} TokenFile;

// Appends the files that match a pattern to *files, which is reallocated: each path once, in byte order of the names.
// patterns: `length` bytes, one pattern per line; empty lines are skipped. False with err (EXIT_DATA) if a pattern has
// no match.
bool token_files_find(const char *patterns, size_t length, TokenFile **files, int *count, Error *err);

// Opens the file. If token_file_check() has checked it, it must not have changed since. Returns the descriptor; -1 with
// err (EXIT_DATA).
int token_file_open(const TokenFile *file, Error *err);

// Checks the header of an open file against its size, fills `file` except for its path and sequences, and adds size,
// first and last bytes to the hash. False with err (EXIT_DATA).
bool token_file_check(TokenFile *file, int fd, int vocab, XXH64_state_t *hash, Error *err);

// Divides the file into sequences of T tokens and the target of the last one: from the stream of its tokens or, if the
// file has examples and kind is not EXAMPLES_SPLIT, from as many complete examples as fit. Sequences and examples
// without an unmasked target are dropped, because an update on them alone would divide by 0. False with err (EXIT_DATA)
// if kind is EXAMPLES_WHOLE and an example has more than T + 1 tokens.
bool token_file_divide(TokenFile *file, int T, ExamplesKind kind, Error *err);

// Reads a sequence. False with err (EXIT_DATA), also if a token is outside the vocabulary.
//   inputs      T tokens; 0 after the last packed example
//   targets     the token after each input; -1: masked or padding
//   positions   of each token in its example or, without examples, in the sequence; 0: padding. NULL: not computed.
//   buffer      room for T + 1 tokens of 4 bytes
bool token_file_read(const TokenFile *file, int fd, int64_t sequence, int T, int vocab, void *buffer, int32_t *inputs,
                     int32_t *targets, int32_t *positions, Error *err);

void token_files_free(TokenFile *files, int count);

#ifdef __cplusplus
}
#endif
