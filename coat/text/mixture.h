// Which of several sets of training data each sequence of a run comes from, so that every set has its share. Stateless:
// the seed and the position alone decide, so a run resumes by its number of sequences, on any number of processes.
#pragma once
#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MIXTURE_BLOCK 256 // positions whose order is drawn together

typedef struct {
    int sets;
    uint64_t units[MAX_SETS]; // a set's weight as a whole number
    uint64_t seed;
    bool shuffle;
    int64_t block;                // whose positions the rest is of; -1 = none yet
    uint8_t set[MIXTURE_BLOCK];   // of each position
    int64_t index[MIXTURE_BLOCK]; // how many sequences of its set come before it
} Mixture;

// weights: of `sets` <= MAX_SETS sets, each finite and above 0; only their ratios count. The first s positions hold
// a set's share of s, but for a rounding, wherever s is a multiple of MIXTURE_BLOCK. In between, the order of the sets
// is drawn from `seed`; without `shuffle` they take turns evenly.
void mixture_open(Mixture *mixture, const double *weights, int sets, uint64_t seed, bool shuffle);

// The set that position >= 0 of the run is of; *index: how many positions before it are of this set.
int mixture_at(Mixture *mixture, int64_t position, int64_t *index);

// How many of the positions before `position` >= 0 are of the set.
int64_t mixture_count(Mixture *mixture, int set, int64_t position);

#ifdef __cplusplus
}
#endif
