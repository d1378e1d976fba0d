// Fuzz target for the table of GEMM algorithms in a checkpoint or in --matmul-table (coat/cuda/matmul/matmul_algos.c).
// The input is the file.
#include "dev/fuzz/fuzz.h"

#include "coat/cuda/matmul/matmul_algos.h"

#define GPU "NVIDIA H200"
#define VERSION 130100

static bool aligned(int bytes) {
    return bytes >= 1 && bytes <= 256 && (bytes & (bytes - 1)) == 0;
}

static void check_row(const MatmulAlgo *choice) {
    const MatmulKey *key = &choice->key;
    const MatmulShape *s = &key->shape;
    fuzz_check(s->m > 0 && s->n > 0 && s->k > 0);
    fuzz_check((unsigned)s->a < FMT_COUNT && (unsigned)s->b < FMT_COUNT && (unsigned)s->d < FMT_COUNT);
    fuzz_check((unsigned)s->bias < FMT_COUNT);
    fuzz_check(algo_matches(choice, key, false));
    fuzz_check(algo_matches(choice, key, true) == !choice->any_memory);
    if (choice->any_memory) return;
    fuzz_check(key->lda > 0 && key->ldb > 0 && key->ldd > 0);
    fuzz_check(aligned(key->align_a) && aligned(key->align_b) && aligned(key->align_d));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    MatmulAlgos read, again;
    Error err;
    if (!algos_read_file(fuzz_file("matmul_table.txt", data, size), GPU, VERSION, &read, &err)) {
        fuzz_refused(&err, "matmul_table.txt"); // Reading the table fails only if the file is a Git LFS pointer.
        return 0;
    }
    for (int i = 0; i < read.count; i++) check_row(&read.rows[i]);
    // Writing the parsed table rows as text, parsing that text and writing it a second time must give the same text.
    char *text = algos_text(read.rows, read.count, GPU, VERSION);
    fuzz_check((text == NULL) == (read.count == 0));
    if (!text) return 0;
    again = algos_read(text, GPU, VERSION);
    fuzz_check(again.count > 0 && again.count <= read.count);
    char *same = algos_text(again.rows, again.count, GPU, VERSION);
    fuzz_check(strcmp(text, same) == 0);
    free(same);
    free(again.rows);
    free(text);
    free(read.rows);
    return 0;
}
