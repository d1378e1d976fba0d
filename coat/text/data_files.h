// Token files: finds them, checks their headers and reads their sequences. Formats, all little-endian:
//   llm.c's .bin   a header of 256 int32, then the tokens. Magic 20240520 version 1: uint16 tokens; magic 20240801
//                  version 7: uint32. header[2] is the number of tokens.
//   OLMo's .npy    only tokens, uint16 if the vocabulary has at most 65,536 ids, else uint32
//   with a mask    this program's own format (data_masks.h)
#pragma once
#include <sys/types.h>
#include <time.h>
#include <xxhash.h>

#include "config/config.h"
#include "data_masks.h"
#include "packing.h"

#define DATA_MAGIC_U16 20240520
#define DATA_VERSION_U16 1
#define DATA_MAGIC_U32 20240801
#define DATA_VERSION_U32 7
#define DATA_CHECKSUM 1 // value of header[9] that shows that header[8] is the CRC-32 of the tokens (data_verify.h)

typedef struct ImageFile ImageFile;

typedef struct {
    char *path;
    int64_t bytes;    // size of the file
    int64_t tokens;   // number of tokens after the header
    int header_bytes; // bytes of the header; 0: the file has no header
    int token_bytes;  // bytes per token: 2 or 4
    int64_t counted;  // number of unmasked tokens
    uint8_t *mask;    // loss mask: one bit per token, lowest bit first; 1: unmasked. NULL: all tokens are unmasked
    int64_t examples; // number of examples; 0 in a file without a mask
    // index of each example's first token, followed by the end of the last example; NULL: not recorded
    uint32_t *starts;
    int64_t first_sequence; // index of this file's first sequence among the sequences of all files
    int64_t sequences;      // number of sequences
    int32_t *chosen;        // indices of the stream's sequences that have an unmasked target; NULL: all sequences
    Packing packing;        // packing of the examples; if members is NULL, sequences are cut from the stream
    int64_t cut;            // number of examples that token_file_kept() truncates
    int64_t longest;        // number of tokens of the longest example
    bool again;             // true: two patterns of one set match the file
    dev_t device;           // device number, which identifies the file together with the inode
    ino_t inode;
    struct timespec changed; // modification time that token_file_stat() recorded
    bool checked;            // true: token_file_stat() was called, so token_file_open() detects changes
    bool has_crc;            // true: the header has a checksum
    uint32_t crc;
    PromptFormat prompt_format; // prompt format of the examples; NONE: not recorded
    ImageFile *images;          // images that the examples show (images.h); NULL: none
} TokenFile;

// Appends the files whose paths match a pattern to *files, which is reallocated: each path once, in byte order of the
// paths. `patterns` has `length` bytes and one pattern per line; empty lines are skipped. Returns false with err
// (EXIT_DATA) if a pattern has no match, or if there is no pattern.
bool token_files_find(const char *patterns, size_t length, TokenFile **files, int *count, Error *err);

// Opens a token file. Fails if the file has changed since token_file_stat(). Returns the file descriptor; -1 with err
// (EXIT_DATA) on failure.
int token_file_open(const TokenFile *file, Error *err);

// Records size, identity and modification time of an open file for token_file_open(). Fails with EXIT_DATA.
bool token_file_stat(TokenFile *file, int fd, Error *err);

// Checks the header of an open file against its size, and fills `file` except for its path and sequences. Checks all of
// a file with a loss mask. Adds to `hash` the file's size, its first and last 4,096 bytes, and the header of its file
// of images. `vision`: shape of the images that the model reads, which images_open() completes. Returns false with err
// (EXIT_DATA) on failure.
bool token_file_check(TokenFile *file, int fd, int vocab, VisionShape *vision, XXH64_state_t *hash, Error *err);

// Divides a token file into sequences of T + 1 tokens: T inputs, and the target of the last input. If the file has
// examples and kind is not EXAMPLES_SPLIT, the sequences are packed from examples (packing.h), which token_file_kept()
// truncates if they do not fit into a sequence. Otherwise, the sequences are cut from the stream of tokens.
// Drops sequences and examples without an unmasked target, because an update on such sequences alone would divide by 0.
// Returns false with err (EXIT_DATA) if an example has more than `images` images. Also fails with EXAMPLES_WHOLE if an
// example would be truncated, and with EXAMPLES_SPLIT if the file has images.
bool token_file_divide(TokenFile *file, int T, ExamplesKind kind, int images, Error *err);

// Returns how many tokens of an example a sequence contains: at most T inputs and the target of the last input. A
// longer example is truncated after T + 1 tokens. If the last image that begins among the first T tokens does not end
// there, too, the example is truncated before this image.
int64_t token_file_kept(const TokenFile *file, int64_t example, int T);

// Reads a sequence. Returns false with err (EXIT_DATA) if the file cannot be read or a token is outside the vocabulary.
//   inputs      T tokens; filled with 0 after the last packed example
//   targets     the token after each input; -1: masked or padding
//   positions   position of each token in its example or, without examples, in the sequence; 0: padding. Can be NULL.
//   buffer      scratch memory of (T + 1) * 4 bytes
bool token_file_read(const TokenFile *file, int fd, int64_t sequence, int T, int vocab, void *buffer, int32_t *inputs,
                     int32_t *targets, int32_t *positions, Error *err);

// Adds the images of a sequence to a micro-batch, as images_read() does. image_rows[T] must be filled with -1.
bool token_file_read_images(const TokenFile *file, int64_t sequence, int T, int32_t *image_rows, uint8_t *pixels,
                            int *count, Error *err);

void token_files_free(TokenFile *files, int count);
