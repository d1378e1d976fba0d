// Verifies checksums of files of images and of token files without a mask: word 8 of the header is the CRC-32 of the
// bytes after the header, word 9 is DATA_CHECKSUM. Token files written by other programs contain 0 there and are not
// verified. Files with a mask have another checksum (data_masks.h).
#pragma once
#include "base/background.h"
#include "data_files.h"

// Computes the CRC-32 (as zlib) of the `bytes` bytes that follow the header of an open file. Stops early when *stop
// becomes true; *crc is then undefined. stop may be NULL. Returns false with err if the file cannot be read.
bool data_checksum(int fd, const char *path, int64_t bytes, const bool *stop, uint32_t *crc, Error *err);

// State of verifying one process's files.
typedef struct {
    const TokenFile *files;
    int count, rank, ranks;
    bool stop, damaged; // damaged: err names the damaged file
    Error err;
    BackgroundTask thread;
} Verifier;

// Starts to verify the files whose number is `rank` modulo `ranks`. Verifies 64 MB or less before it returns, larger
// amounts in a thread, so that a large data set does not delay the first step. The files must have passed
// token_file_check() and must outlive verifier_end().
void verifier_begin(Verifier *verifier, const TokenFile *files, int count, int rank, int ranks);

// True unless a file is damaged or has changed; in that case false with err (EXIT_DATA).
bool verifier_good(const Verifier *verifier, Error *err);

// Stops verifying and ends the thread.
void verifier_end(Verifier *verifier);
