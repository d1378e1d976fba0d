// Verifies the checksums of files of images and of token files without a mask. Word 8 of their header is the CRC-32 of
// the bytes after the header, word 9 is DATA_CHECKSUM. Token files written by other programs have 0 in word 9 and are
// not verified. Files with a mask have a different checksum (data_masks.h).
#pragma once
#include "base/background.h"
#include "data_files.h"

// Computes the CRC-32 (as zlib) of the `bytes` bytes that follow the header of an open file. Stops early when *stop
// becomes true; *crc is then undefined. stop may be NULL. Returns false with err if the file cannot be read.
bool data_checksum(int fd, const char *path, int64_t bytes, const bool *stop, uint32_t *crc, Error *err);

typedef struct {
    const TokenFile *files;
    int count, rank, ranks;
    bool stop, damaged; // damaged: true if a file is damaged, changed or unreadable; `err` then names the file
    Error err;
    BackgroundTask thread;
} Verifier;

// Verifies this rank's files: files `rank`, `rank` + `ranks`, and so on. If these files have more than 64 MiB, a
// thread verifies them, so that a large data set does not delay the first step. The files must have passed
// token_file_check() and must exist until verifier_end() returns.
void verifier_begin(Verifier *verifier, const TokenFile *files, int count, int rank, int ranks);

// Returns false with err (EXIT_DATA) if a file has been found damaged or changed; otherwise true.
bool verifier_good(const Verifier *verifier, Error *err);

// Stops the verification and waits until the thread has ended.
void verifier_end(Verifier *verifier);
