// What data.c and data_about.c have in common: the reader of tokens from inside.
#pragma once
#include "data.h"
#include "data_files.h"
#include "data_verify.h"
#include "mixture.h"

#ifdef __cplusplus
extern "C" {
#endif

// Files open at a time. A shuffled epoch jumps between all files, and there may be more of them than a process
// may hold open: file i shares its descriptor with the files i + k * OPEN_FILES.
#define OPEN_FILES 256

// The files whose sequences are shuffled together.
typedef struct {
    char *name;    // its patterns, for people
    double weight; // as given
    int first_file;
    int64_t first_sequence, sequences, tokens;
} Set;

struct DataLoader {
    TokenFile *files;
    int count;
    Set sets[MAX_SETS];
    int set_count;
    Mixture mixture;             // of several sets
    ExamplesKind examples;       // what becomes of those of files with masks
    int descriptors[OPEN_FILES]; // -1 = closed
    int open_file[OPEN_FILES];   // whose descriptor it is
    int B, T, rank, ranks, vocab;
    uint64_t seed, fingerprint;
    bool shuffle;
    SpecialIds ids;                     // that begin and end the documents of files that do not say where these are
    int64_t tokens, sequences, counted; // tokens that count as targets
    bool masked;                        // not all do, or a file says so of each
    bool fills;                         // validation data: sequences without a target fill up the last micro-batch
    void *buffer;                       // (T + 1) tokens as stored
    Verifier verifier;
};

// Whether a file that does not say where its documents begin has one of the ids that do at its beginning.
bool data_has_ids(DataLoader *loader, const SpecialIds *ids);

// The descriptor of a file, opened when it is not. -1 with err.
int token_file_descriptor(DataLoader *loader, int index, Error *err);

#ifdef __cplusplus
}
#endif
