#include "mixture.h"

#include <math.h>
#include <string.h>

#include "permute.h"

void mixture_open(Mixture *mixture, const double *weights, int sets, uint64_t seed, bool shuffle) {
    double sum = 0;
    memset(mixture, 0, sizeof *mixture);
    for (int k = 0; k < sets; k++) sum += weights[k];
    for (int k = 0; k < sets; k++) mixture->units[k] = (uint64_t)fmax(1, nearbyint(weights[k] / sum * 0x1p40));
    mixture->sets = sets;
    mixture->seed = seed ^ 0xa0761d6478bd642fu; // a different seed than for shuffling each set's sequences
    mixture->shuffle = shuffle;
    mixture->block = -1;
}

// Divides `positions` among the sets by weight. The first set gets a number in proportion to its weight, rounded. The
// remaining positions are divided among the other sets in the same way. So one more position increases the count of
// exactly one set.
static void even_counts(const Mixture *mixture, uint64_t positions, uint64_t counts[MAX_SETS]) {
    uint64_t left = positions, total = 0;
    for (int k = 0; k < mixture->sets; k++) total += mixture->units[k];
    for (int k = 0; k < mixture->sets; k++) {
        const uint64_t units = mixture->units[k];
        counts[k] = (uint64_t)(((unsigned __int128)left * units * 2 + total) / ((unsigned __int128)total * 2));
        left -= counts[k];
        total -= units;
    }
}

// Fills the mixture's tables for a block of positions. The sets alternate evenly, then a permutation shuffles the block
// if mixture->shuffle is true.
static void enter_block(Mixture *mixture, int64_t block) {
    if (mixture->block == block) return;
    uint8_t turns[MIXTURE_BLOCK];
    uint64_t first[MAX_SETS], before[MAX_SETS], after[MAX_SETS];
    const uint64_t begin = (uint64_t)block * MIXTURE_BLOCK;
    even_counts(mixture, begin, first);
    memcpy(before, first, sizeof before);
    for (int turn = 0; turn < MIXTURE_BLOCK; turn++) {
        even_counts(mixture, begin + (uint64_t)turn + 1, after);
        int set = 0;
        while (set < mixture->sets - 1 && after[set] == before[set]) set++;
        turns[turn] = (uint8_t)set;
        memcpy(before, after, sizeof before);
    }
    for (int i = 0; i < MIXTURE_BLOCK; i++) {
        const int64_t turn = mixture->shuffle ? permute(i, MIXTURE_BLOCK, mixture->seed, block) : i;
        mixture->set[i] = turns[turn];
        mixture->index[i] = (int64_t)first[turns[turn]]++;
    }
    mixture->block = block;
}

int mixture_at(Mixture *mixture, int64_t position, int64_t *index) {
    enter_block(mixture, position / MIXTURE_BLOCK);
    *index = mixture->index[position % MIXTURE_BLOCK];
    return mixture->set[position % MIXTURE_BLOCK];
}

int64_t mixture_count(Mixture *mixture, int set, int64_t position) {
    uint64_t counts[MAX_SETS];
    const int64_t block = position / MIXTURE_BLOCK;
    even_counts(mixture, (uint64_t)block * MIXTURE_BLOCK, counts);
    if (position % MIXTURE_BLOCK == 0) return (int64_t)counts[set];
    enter_block(mixture, block);
    for (int64_t i = 0; i < position % MIXTURE_BLOCK; i++) counts[set] += mixture->set[i] == set;
    return (int64_t)counts[set];
}
