// Chooses the set of training data that each sequence of a run is read from. The sets are chosen in the ratio of their
// weights. The result depends only on the seed and the position, so a run can resume at any position, with any number
// of processes.
#pragma once
#include "config/config.h"

#define MIXTURE_BLOCK 256 // number of consecutive positions whose order is drawn at a time

typedef struct {
    int sets;
    uint64_t units[MAX_SETS]; // weight of each set, in units of 2^-40 of the total weight
    uint64_t seed;
    bool shuffle;
    int64_t block;              // index of the block that the tables `set` and `index` describe; -1: none
    uint8_t set[MIXTURE_BLOCK]; // set of each position of the block
    // for each position of the block, the number of the run's earlier positions that belong to the same set
    int64_t index[MIXTURE_BLOCK];
} Mixture;

// Initializes a mixture of `sets` <= MAX_SETS sets. weights: finite and positive; only their ratios matter. Of
// the positions before any multiple of MIXTURE_BLOCK, each set receives a number in proportion to its weight, rounded.
// Within a block, the order of the sets is drawn from `seed`; without `shuffle`, the sets alternate evenly.
void mixture_open(Mixture *mixture, const double *weights, int sets, uint64_t seed, bool shuffle);

// Returns the set of the run's sequence at `position` >= 0. Sets *index to the number of earlier positions that belong
// to this set.
int mixture_at(Mixture *mixture, int64_t position, int64_t *index);

// Returns how many of the positions before `position` >= 0 belong to a set.
int64_t mixture_count(Mixture *mixture, int set, int64_t position);
