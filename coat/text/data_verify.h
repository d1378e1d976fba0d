// Checksums of token files without a mask: word 8 of the header is the CRC-32 of the tokens, word 9 is DATA_CHECKSUM.
// Files that other programs wrote have 0 there and are not verified. Files with a mask have a checksum of their own
// (data_masks.h).
#pragma once
#include "base/background.h"
#include "data_files.h"

#ifdef __cplusplus
extern "C" {
#endif

// Computes the CRC-32 (zlib's) of the `bytes` bytes that follow the header of an open file. Stops early, with a *crc
// that means nothing, once *stop is true; stop may be NULL. False with err if the file cannot be read.
bool data_checksum(int fd, const char *path, int64_t bytes, const bool *stop, uint32_t *crc, Error *err);

// The files of one process while they are verified.
typedef struct {
    const TokenFile *files;
    int count, rank, ranks;
    bool stop, damaged; // damaged: err says which file
    Error err;
    BackgroundTask thread;
} Verifier;

// Starts to verify the files whose number is `rank` modulo `ranks`. 64 MB or less are verified before it returns, more
// in a thread, so that a large data set does not delay the first step. The files must have passed token_file_check()
// and must outlive verifier_end().
void verifier_begin(Verifier *verifier, const TokenFile *files, int count, int rank, int ranks);

// True unless a file has been found that is damaged or has changed; then false with err (EXIT_DATA).
bool verifier_good(const Verifier *verifier, Error *err);

// Stops verifying.
void verifier_end(Verifier *verifier);

#ifdef __cplusplus
}
#endif
