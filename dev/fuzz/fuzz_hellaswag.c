// Fuzz target for HellaSwag files with 16-bit or 32-bit words (coat/text/hellaswag.c). Input: sequence length and
// vocabulary size (2 bytes each), then the file.
#include "dev/fuzz/fuzz.h"

#include "coat/text/hellaswag.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 4) return 0;
    const int T = 1 + (data[0] | data[1] << 8), vocab = 1 + (data[2] | data[3] << 8);
    Error err;
    HellaSwag *set = hellaswag_open(fuzz_file("hellaswag.bin", data + 4, size - 4), T, vocab, &err);
    if (!set) {
        fuzz_check(err.code == EXIT_DATA || err.code == EXIT_USER);
        err.code = EXIT_DATA; // Errors have the code EXIT_USER if the sequence length is too short for the file.
        fuzz_refused(&err, "hellaswag.bin");
        return 0;
    }
    const int longest = hellaswag_length(set), rows = hellaswag_rows(set);
    fuzz_check(rows == 4 * hellaswag_examples(set) && longest >= 1 && longest <= T);
    int32_t *inputs = (int32_t *)xmalloc(2 * (size_t)longest * sizeof *inputs), *targets = inputs + longest;
    float *losses = (float *)xcalloc((size_t)longest, sizeof *losses);
    for (int row = 0; row < rows && row < 400; row++) {
        int ending = 0;
        hellaswag_batch(set, row, 1, longest, inputs, targets);
        for (int t = 0; t < longest; t++) {
            fuzz_check(inputs[t] >= 0 && inputs[t] < vocab && targets[t] >= -1 && targets[t] < vocab);
            ending += targets[t] >= 0;
        }
        fuzz_check(ending > 0);
        hellaswag_add_losses(set, row, 1, longest, losses);
    }
    fuzz_check(hellaswag_right(set) >= 0 && hellaswag_right(set) <= hellaswag_examples(set));
    free(inputs);
    free(losses);
    hellaswag_close(set);
    return 0;
}
