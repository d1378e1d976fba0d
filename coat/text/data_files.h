// The files of training or validation data: which they are, and whether each is what its header says. Files are llm.c's
// .bin: a header of 256 int32, then the tokens, little-endian. Magic 20240520 version 1 holds uint16, magic 20240801
// version 7 uint32; header[2] is the number of tokens. Files named .npy may be OLMo's: tokens alone, uint16 where the
// vocabulary has at most 65,536 ids, else uint32. Files with a mask are this program's own: data_masks.h.
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
#define DATA_CHECKSUM 1 // in word 9 of the header: word 8 is the CRC-32 of the tokens (data_verify.h)

typedef struct {
    char *path;
    int64_t bytes;          // of the whole file
    int64_t tokens;         // after the header,
    int header_bytes;       // which is so long
    int token_bytes;        // 2 or 4
    int64_t counted;        // tokens that the loss counts where they are targets
    uint8_t *mask;          // which those are, a bit per token, the lowest first; NULL: all
    int64_t examples;       // of a file with a mask
    uint32_t *starts;       // where each begins, and the end of the last; NULL: the file does not say
    int64_t first_sequence; // number of this file's first sequence,
    int64_t sequences;      // of so many,
    int32_t *chosen;        // which of those that the file is divided into; NULL: all
    Packing packing;        // of its examples, which the sequences are then; members NULL: they are cut from the stream
    int64_t cut;            // examples that are longer,
    int64_t longest;        // and how many tokens the longest of all has
    bool again;             // it is named more than once
    dev_t device;           // with the inode, which file it is, whatever its path
    ino_t inode;
    struct timespec changed;    // time of the last change, when token_file_check() read it
    bool checked;               // token_file_check() has read it
    bool has_crc;               // its header has a checksum,
    uint32_t crc;               // which is this one
    PromptFormat prompt_format; // of its examples; NONE: it does not say
} TokenFile;

// Appends the files that match one of the patterns, which are the lines of `patterns` (`length` bytes; empty lines are
// skipped), to *files, by malloc: in the order of their names' bytes, each path once. False with err (EXIT_DATA)
// where a pattern has no match.
bool token_files_find(const char *patterns, size_t length, TokenFile **files, int *count, Error *err);

// Opens the file. If token_file_check() has checked it, it must not have changed since. Returns the descriptor; -1 with
// err (EXIT_DATA).
int token_file_open(const TokenFile *file, Error *err);

// Checks the header of an open file against its size, fills the TokenFile but for path and sequences, and adds what
// tells the file from others to the hash. False with err (EXIT_DATA).
bool token_file_check(TokenFile *file, int fd, int vocab, XXH64_state_t *hash, Error *err);

// Divides the file into sequences of T tokens and the target of the last one, from the stream of its tokens; or, where
// it has examples and these are not to be split, from as many whole examples as fit. Sequences and examples without a
// target that counts are left out: they would train nothing, and an update of them alone would divide by 0. False with
// err (EXIT_DATA) where an example has more than T + 1 tokens and none may be cut.
bool token_file_divide(TokenFile *file, int T, ExamplesKind examples, Error *err);

// Reads a sequence: T tokens, and what follows each as its target, -1 where it does not count. Behind whole
// examples come tokens 0. positions, unless it is NULL: of each token within its example, or the sequence where
// no examples are known; 0 behind the last. buffer: T + 1 tokens of 4 bytes. False with err (EXIT_DATA), where
// one is not of the vocabulary too.
bool token_file_read(const TokenFile *file, int fd, int64_t sequence, int T, int vocab, void *buffer, int32_t *inputs,
                     int32_t *targets, int32_t *positions, Error *err);

void token_files_free(TokenFile *files, int count);

#ifdef __cplusplus
}
#endif
