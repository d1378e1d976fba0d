// Tests of the table of GEMM algorithms (coat/cuda/matmul/matmul_algos.h). The order of its rows does not matter, and
// rows that are invalid or for other GPUs are ignored. A matmul uses the row of its own shape or of a compatible shape.
#include "dev/test/test_folder.h"

#include "coat/cuda/matmul/matmul_algos.h"
#include "coat/cuda/matmul/matmul_table_rows.h"

#define GPU "NVIDIA H200"
#define VERSION 130100
#define ROW                                                                                                            \
    "130100 768 1024 64 e4m3 e5m2 bf16 none 1 0 1 (768 64 800 256 16 256 0) 1 2 3 4 5 6 7 ffffffffffffffff NVIDIA "    \
    "H200\n"
#define SHORT "130100 768 1024 64 e4m3 e5m2 bf16 none 1 0 1 a b c d e f 0 1 NVIDIA H200\n"

static MatmulAlgo choice_of(int64_t m, int align, bool accumulate) {
    MatmulAlgo c;
    memset(&c, 0, sizeof c);
    c.key.shape = (MatmulShape){m, 32, 48, FMT_BF16, FMT_BF16, FMT_FP32, FMT_BF16, true, false, false};
    c.key.lda = c.key.ldb = c.key.ldd = m;
    c.key.align_a = c.key.align_b = c.key.align_d = align;
    c.key.accumulate = accumulate;
    for (int i = 0; i < 8; i++) c.algorithm[i] = (uint64_t)(m * 100 + align * 10 + accumulate) << (8 * i % 40);
    return c;
}

UNIT_TEST(algorithm_tables_are_written_sorted_and_read_back) {
    MatmulAlgo rows[] = {choice_of(96, 256, false), choice_of(96, 16, false), choice_of(16, 256, true),
                         choice_of(96, 256, true), choice_of(16, 256, true)};
    MatmulAlgo turned[] = {rows[4], rows[3], rows[1], rows[0]};
    assert_null(algos_text(rows, 0, GPU, VERSION));
    char *text = algos_text(rows, 5, GPU, VERSION), *other = algos_text(turned, 4, GPU, VERSION);
    assert_string_equal(text, other); // The rows are written in a fixed order, without duplicates.
    MatmulAlgos read = algos_read(text, GPU, VERSION);
    assert_int_equal(read.count, 4);
    for (int i = 0; i < 4; i++) {
        int same = 0;
        for (int k = 0; k < 4; k++) {
            if (!algo_matches(&read.rows[i], &turned[k].key, true)) continue;
            assert_memory_equal(read.rows[i].algorithm, turned[k].algorithm, sizeof turned[k].algorithm);
            same++;
        }
        assert_int_equal(same, 1);
    }
    char *again = algos_text(read.rows, read.count, GPU, VERSION);
    assert_string_equal(text, again);
    assert_int_equal(algos_read(text, "NVIDIA H100", VERSION).count, 0);
    assert_int_equal(algos_read(text, GPU, VERSION + 1).count, 0);
    free(again);
    free(read.rows);
    free(other);
    free(text);
}

UNIT_TEST(a_matmul_uses_the_row_of_a_compatible_shape) {
    MatmulAlgos read = algos_read("# a remark\n\n" ROW "rubbish\r\n" SHORT, GPU, VERSION);
    assert_int_equal(read.count, 2);
    const MatmulKey *key = &read.rows[0].key;
    assert_false(read.rows[0].any_memory);
    assert_true(key->shape.m == 768 && key->shape.n == 1024 && key->shape.k == 64);
    assert_true(key->shape.a == FMT_E4M3 && key->shape.b == FMT_E5M2 && key->shape.d == FMT_BF16);
    assert_true(key->shape.bias == FMT_NONE && key->shape.transpose_a && !key->shape.transpose_b && key->shape.fast);
    assert_true(key->lda == 768 && key->ldb == 64 && key->ldd == 800 && key->align_b == 16 && !key->accumulate);
    assert_true(read.rows[0].algorithm[0] == 1 && read.rows[0].algorithm[7] == UINT64_MAX);
    assert_true(read.rows[1].any_memory && read.rows[1].algorithm[0] == 10);
    // A row matches its own matmul and, unless `exact`, matmuls of equal shape whose operands are aligned at least as
    // well, here one that accumulates.
    MatmulKey other = *key;
    other.accumulate = true;
    assert_true(algo_matches(&read.rows[0], key, true) && !algo_matches(&read.rows[0], &other, true));
    assert_true(algo_matches(&read.rows[0], &other, false));
    // Row 0 requires a better aligned operand, so it does not match. Row 1 does not record alignments, so it matches
    // any.
    other.align_b = 8;
    assert_false(algo_matches(&read.rows[0], &other, false));
    assert_true(algo_matches(&read.rows[1], &other, false) && !algo_matches(&read.rows[1], key, true));
    other.shape.fast = false;
    assert_false(algo_matches(&read.rows[1], &other, false));
    free(read.rows);
}

// Table rows that are incomplete or contain an invalid value are ignored.
UNIT_TEST(invalid_rows_are_ignored) {
    static const char *const bad[] = {
        "",
        "\n",
        "130100",
        "130100 ",
        "130100 1 1 1 bf16 bf16 bf16 none 0 0 0",
        "130100 0 1 1 bf16 bf16 bf16 none 0 0 0 1 2 3 4 5 6 7 8 NVIDIA H200",
        "130100 -1 1 1 bf16 bf16 bf16 none 0 0 0 1 2 3 4 5 6 7 8 NVIDIA H200",
        "130100 9999999999999 1 1 bf16 bf16 bf16 none 0 0 0 1 2 3 4 5 6 7 8 NVIDIA H200",
        "130100 1 1 1 bf17 bf16 bf16 none 0 0 0 1 2 3 4 5 6 7 8 NVIDIA H200",
        "130100 1 1 1 bf16 bf16 bf16 none 0 2 0 1 2 3 4 5 6 7 8 NVIDIA H200",
        "130100 1 1 1 bf16 bf16 bf16 none 0 0 0 1 2 3 4 5 6 7 NVIDIA H200",
        "130100 1 1 1 bf16 bf16 bf16 none 0 0 0 1 2 3 4 5 6 7 10000000000000000 NVIDIA H200",
        "130100 1 1 1 bf16 bf16 bf16 none 0 0 0 1 2 3 4 5 6 7 8 NVIDIA H2000",
        "130100 1 1 1 bf16 bf16 bf16 none 0 0 0 1 2 3 4 5 6 7 8 NVIDIA H20",
        "130100 1 1 1 bf16 bf16 bf16 none 0 0 0 (1 1 1 256 256 256 0 1 2 3 4 5 6 7 8 NVIDIA H200",
        "130100 1 1 1 bf16 bf16 bf16 none 0 0 0 (1 1 1 256 256 0) 1 2 3 4 5 6 7 8 NVIDIA H200",
        "130100 1 1 1 bf16 bf16 bf16 none 0 0 0 (1 1 1 256 24 256 0) 1 2 3 4 5 6 7 8 NVIDIA H200",
        "130100 1 1 1 bf16 bf16 bf16 none 0 0 0 (1 1 1 256 512 256 0) 1 2 3 4 5 6 7 8 NVIDIA H200",
        "130100 1 1 1 bf16 bf16\nbf16 none 0 0 0 1 2 3 4 5 6 7 8 NVIDIA H200",
        "18446744073709551616130100 1 1 1 bf16 bf16 bf16 none 0 0 0 1 2 3 4 5 6 7 8 NVIDIA H200"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        MatmulAlgos read = algos_read(bad[i], GPU, VERSION);
        if (read.count) fail_msg("'%s' was read", bad[i]);
    }
}

UNIT_TEST(the_built_in_table_has_rows_for_h100_and_h200) {
    int lines = 0;
    for (const char *c = matmul_table_rows; *c; c++) lines += *c == '\n';
    MatmulAlgos h100 = algos_read(matmul_table_rows, "NVIDIA H100 80GB HBM3", VERSION);
    MatmulAlgos h200 = algos_read(matmul_table_rows, GPU, VERSION), both = h100;
    assert_true(h100.count > 0 && h200.count > 0);
    both.rows = malloc((size_t)h100.count * sizeof *both.rows);
    memcpy(both.rows, h100.rows, (size_t)h100.count * sizeof *both.rows);
    // In the built-in table, the rows for H100 come before those for H200.
    algos_add(&both, matmul_table_rows, GPU, VERSION);
    assert_int_equal(both.count, lines);
    assert_memory_equal(both.rows, h100.rows, (size_t)h100.count * sizeof *both.rows);
    assert_memory_equal(both.rows + h100.count, h200.rows, (size_t)h200.count * sizeof *both.rows);
    free(both.rows);
    free(h100.rows);
    free(h200.rows);
}

UNIT_TEST(an_unreadable_table_is_an_error) {
    Error err;
    MatmulAlgos read;
    assert_false(algos_read_file(path_of("none"), GPU, VERSION, &read, &err));
    assert_says(&err, "/none");
    write_text(path_of("table"), ROW "\n" SHORT);
    assert_true(algos_read_file(path_of("table"), GPU, VERSION, &read, &err));
    assert_int_equal(read.count, 2);
    free(read.rows);
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
