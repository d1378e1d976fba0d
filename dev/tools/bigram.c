// Computes a bigram baseline: the loss of a table of byte pairs on a validation file, in nats per token. Prints two
// lines such as "uniform 5.549" and "bigram 2.9". A language model with a lower loss has learned more than which byte
// follows which.
#include <math.h>

#include "coat/text/data.h"

static const char usage[] = "usage: bigram TRAIN.bin VAL.bin\n"
                            "\n"
                            "Prints the loss on VAL of a table of byte pairs counted in TRAIN, in nats per\n"
                            "token, and the loss of a uniform prediction. TRAIN and VAL are byte-level token\n"
                            "files, or patterns of such files.\n";

// VOCAB: 256 bytes and the end-of-text token. LENGTH: tokens read at a time; a file's incomplete last part is not used
enum { VOCAB = 257, LENGTH = 256 };

typedef struct {
    double pair[VOCAB][VOCAB]; // pair[a][b]: how often byte b follows byte a
    double total[VOCAB];
} Table;

// Counts the byte pairs of the data's sequences [begin, end), and adds the counts to the table.
static bool count(DataLoader *data, int64_t begin, int64_t end, Table *table, Error *err) {
    int32_t in[LENGTH], target[LENGTH];
    for (int64_t n = begin; n < end; n++) {
        if (!data_batch(data, n, in, target, err)) return false;
        for (int i = 0; i < LENGTH; i++) {
            if (target[i] < 0) continue; // skips pairs whose target is masked
            table->pair[in[i]][target[i]]++;
            table->total[in[i]]++;
        }
    }
    return true;
}

// Returns the mean of -log p(b | a) over the byte pairs (a, b) counted in `test`. The counts in `fit` give
// p(b | a) = (pair[a][b] + alpha) / (total[a] + alpha * VOCAB).
static double cross_entropy(const Table *fit, const Table *test, double alpha) {
    double sum = 0, tokens = 0;
    for (int a = 0; a < VOCAB; a++) {
        for (int b = 0; b < VOCAB; b++)
            if (test->pair[a][b] > 0)
                sum -= test->pair[a][b] * log((fit->pair[a][b] + alpha) / (fit->total[a] + alpha * VOCAB));
        tokens += test->total[a];
    }
    return sum / tokens;
}

// Returns the smoothing alpha with the lowest loss on `test`, among 1e-4 times powers of two.
static double choose_alpha(const Table *fit, const Table *test) {
    double best = 1, lowest = INFINITY;
    for (double alpha = 1e-4; alpha < 10; alpha *= 2) {
        double loss = cross_entropy(fit, test, alpha);
        if (loss < lowest) {
            lowest = loss;
            best = alpha;
        }
    }
    return best;
}

static bool run(int argc, char **argv, Error *err) {
    if (argc != 3) return error_set(err, EXIT_USER, USAGE_LINE(usage));
    static Table fit, held_out, val; // The tables are static because they are too large for the stack.
    DataLoader *train = data_open(argv[1], 1, LENGTH, 0, 1, 0, false, VOCAB, err);
    if (!train) return false;
    int64_t all = data_sequences(train), split = all - (all + 9) / 10;
    bool good = count(train, 0, split, &fit, err) && count(train, split, all, &held_out, err);
    double alpha = split > 0 ? choose_alpha(&fit, &held_out) : 1.0;
    good = good && count(train, split, all, &fit, err); // The final table also counts the held-out pairs.
    data_close(train);
    if (!good) return false;

    DataLoader *data = data_open(argv[2], 1, LENGTH, 0, 1, 0, false, VOCAB, err);
    if (!data) return false;
    good = count(data, 0, data_sequences(data), &val, err);
    data_close(data);
    if (good) printf("uniform %.4f\nbigram %.4f\n", log(VOCAB), cross_entropy(&fit, &val, alpha));
    return good;
}

int main(int argc, char **argv) {
    return usage_main(argc, argv, usage, run);
}
