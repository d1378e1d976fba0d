// The struct of the token reader (data.h), which data.c and data_about.c share.
#pragma once
#include "data.h"
#include "data_files.h"
#include "data_verify.h"
#include "mixture.h"

// Maximum number of token files that are open at a time. A shuffled epoch reads from all files, and there may be more
// files than a process can have open. At most one of the files i, i + OPEN_FILES, i + 2 * OPEN_FILES, ... is open.
#define OPEN_FILES 256

// A set of token files, whose sequences are shuffled together.
typedef struct {
    char *name;    // first file pattern of the set, and the number of its other patterns, for messages
    double weight; // weight of the set from --train-weight
    int first_file;
    int64_t first_sequence, sequences, tokens;
} Set;

struct DataLoader {
    TokenFile *files;
    int count;
    Set sets[MAX_SETS];
    int set_count;
    Mixture mixture;             // chooses the set that each sequence is read from, if there are several sets
    ExamplesKind examples;       // how examples of files with loss masks become sequences
    int descriptors[OPEN_FILES]; // file descriptors; -1: closed
    int open_file[OPEN_FILES];   // index of the file that each descriptor belongs to
    int B, T, rank, ranks, vocab;
    uint64_t seed, fingerprint;
    bool shuffle;
    VisionShape vision;                 // shape of the images that the model reads; see data_vision()
    int max_images;                     // largest number of images in a sequence
    SpecialIds ids;                     // token ids that mark document boundaries in files that do not record them
    int64_t tokens, sequences, counted; // totals over all files; counted: number of unmasked tokens
    bool masked;                        // true: a file has a loss mask
    bool fills;                         // true for validation data: the last micro-batch is padded
    void *buffer;                       // space for T + 1 tokens as stored in the file
    Verifier verifier;
};

// True if one of the ids that mark document boundaries occurs among the first tokens of a file that does not record
// document starts.
bool data_has_ids(DataLoader *loader, const SpecialIds *ids);

// Returns the file descriptor of loader->files[index], after opening the file if necessary; -1 with err on failure.
int token_file_descriptor(DataLoader *loader, int index, Error *err);
