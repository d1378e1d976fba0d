// The token reader's struct, shared by data.c and data_about.c.
#pragma once
#include "data.h"
#include "data_files.h"
#include "data_verify.h"
#include "mixture.h"

#ifdef __cplusplus
extern "C" {
#endif

// Maximum number of open files. A shuffled epoch reads all files in turn, which may be more than a process may open.
// File i shares its descriptor with the files i + k * OPEN_FILES.
#define OPEN_FILES 256

// A set of files, whose sequences are shuffled together.
typedef struct {
    char *name;    // its patterns, for messages
    double weight; // from --train-weight
    int first_file;
    int64_t first_sequence, sequences, tokens;
} Set;

struct DataLoader {
    TokenFile *files;
    int count;
    Set sets[MAX_SETS];
    int set_count;
    Mixture mixture;             // if there are several sets
    ExamplesKind examples;       // how examples of files with masks become sequences
    int descriptors[OPEN_FILES]; // -1 = closed
    int open_file[OPEN_FILES];   // number of the file that the descriptor is of
    int B, T, rank, ranks, vocab;
    uint64_t seed, fingerprint;
    bool shuffle;
    SpecialIds ids;                     // mark document boundaries in files that do not record them
    int64_t tokens, sequences, counted; // counted: unmasked tokens
    bool masked;                        // a file has a mask
    bool fills;                         // validation data: the last micro-batch is padded
    void *buffer;                       // (T + 1) tokens as stored in the file
    Verifier verifier;
};

// True if one of the ids that mark document boundaries is among the first tokens of a file that does not record them.
bool data_has_ids(DataLoader *loader, const SpecialIds *ids);

// Returns the descriptor of a file, which is opened if necessary. -1 with err.
int token_file_descriptor(DataLoader *loader, int index, Error *err);

#ifdef __cplusplus
}
#endif
