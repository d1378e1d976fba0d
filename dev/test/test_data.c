// Tests of the token reader (coat/text/data.h): valid and invalid files, and the order of sequences.
#include <fcntl.h>
#include <inttypes.h>

#include "coat/text/permute.h"
#include "token_files.h"

static Error err; // error of the last failed call

UNIT_TEST(invalid_token_files_are_refused) {
    expect_refused("none*.bin", 1, 4, 1, "no file matches", "none*.bin");
    expect_refused("absent.bin", 1, 4, 1, "no file matches", "data/prepare.py");
    write_file(path_of("empty.bin"), "", 0);
    expect_refused("empty.bin", 1, 4, 1, "is empty", "empty.bin");
    write_file(path_of("text.bin"), "To be, or not to be, that is the question:\n", 43);
    expect_refused("text.bin", 1, 4, 1, "looks like text", "prepare");
    write_file(path_of("two.bin"), "\x01\x02", 2);
    expect_refused("two.bin", 1, 4, 1, "not a token file", "two.bin");
    int32_t magic = DATA_MAGIC_U16;
    write_file(path_of("short.bin"), &magic, sizeof magic);
    expect_refused("short.bin", 1, 4, 1, "truncated", "header");
    static const struct {
        int32_t magic, version, said;
        int width, count;
        const char *word1, *word2;
    } headers[] = {{(int32_t)__builtin_bswap32(DATA_MAGIC_U16), 0x01000000, 100, 2, 100, "big-endian", "header.bin"},
                   {77, 1, 100, 2, 100, "not a token file", "77"},
                   {20240326, 3, 100, 2, 100, "llm.c model", "--model"},
                   {DATA_MAGIC_U16, 9, 100, 2, 100, "version 9", "version 1"},
                   {DATA_MAGIC_U32, 1, 100, 4, 100, "version 1", "version 7"},
                   {DATA_MAGIC_U16, 1, -5, 2, 100, "-5 tokens", "header.bin"},
                   {DATA_MAGIC_U16, 1, 0, 2, 0, " 0 tokens", "header.bin"},
                   {DATA_MAGIC_U16, 1, INT32_MAX, 2, 100, "truncated", "2147483647"},
                   {DATA_MAGIC_U16, 1, 101, 2, 100, "truncated", "has 100"},
                   {DATA_MAGIC_U32, 7, 100, 2, 100, "truncated", "has 50"}, // the file has only half of the bytes
                   {DATA_MAGIC_U16, 1, 1, 2, 0, "says 1 token,", "has 0"},
                   {DATA_MAGIC_U16, 1, 1, 2, 2, "says 1 token ", "damaged"},
                   {DATA_MAGIC_U16, 1, 99, 2, 100, "damaged", "99"}};
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        write_header_and_tokens("header.bin", headers[i].magic, headers[i].version, headers[i].said, headers[i].width,
                                headers[i].count, 0, 9);
        expect_refused("header.bin", 1, 4, 1, headers[i].word1, headers[i].word2);
    }
    assert_int_equal(mkdir(path_of("folder"), 0700), 0);
    expect_refused("folder", 1, 4, 1, "is a folder", "*_train*.bin");
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    expect_refused("pipe", 1, 4, 1, "not a regular file", "pipe");
    if (geteuid() != 0) {
        write_u16("locked.bin", 100, 0);
        assert_int_equal(chmod(path_of("locked.bin"), 0), 0);
        expect_refused("locked.bin", 1, 4, 1, "cannot open", "locked.bin");
    }
    write_u16("good_1.bin", 100, 0); // a valid file; the pattern also matches an invalid file
    write_file(path_of("good_2.bin"), "", 0);
    expect_refused("good_*.bin", 1, 4, 1, "is empty", "good_2.bin");
}

static bool begins_with_bytes(int width, int count, uint32_t first, uint32_t modulus) {
    const bool narrow = width == 2;
    write_header_and_tokens("bytes.bin", narrow ? DATA_MAGIC_U16 : DATA_MAGIC_U32,
                            narrow ? DATA_VERSION_U16 : DATA_VERSION_U32, count, width, count, first, modulus);
    DataLoader *loader = open_one("bytes.bin", 1, 4, true);
    bool bytes = data_begins_with_bytes(loader);
    data_close(loader);
    return bytes;
}

UNIT_TEST(byte_tokens_are_recognized) {
    for (int width = 2; width <= 4; width += 2) {
        assert_true(begins_with_bytes(width, 1024, 0, 257));
        assert_false(begins_with_bytes(width, 1024, 0, 258));
        assert_false(begins_with_bytes(width, 1023, 0, 257));
        assert_true(begins_with_bytes(width, 70000, 0, 257));
        assert_false(begins_with_bytes(width, 70000, 0, 50257));
    }
}

UNIT_TEST(data_of_less_than_a_batch_are_refused) {
    write_u16("a.bin", 101, 0); // 10 sequences of 10 tokens and one extra token, which is the last target
    data_close(open_one("a.bin", 10, 10, true));
    expect_refused("a.bin", 11, 10, 1, "--micro-batch", "10 sequences of 10 + 1");
    expect_refused("a.bin", 3, 10, 4, "3 rows on 4 processes", "--seq-len");
    expect_refused("a.bin", 1, 101, 1, "0 sequences", "--seq-len");
    expect_refused("a.bin", 2, 100, 1, "101 tokens make 1 sequence of 100 + 1 tokens", "2 rows on 1 process)");
    write_u16("one.bin", 1, 0);
    expect_refused("one.bin", 1, 4, 1, "1 token makes 0 sequences", "(1 row on 1 process)");
    write_u16("b.bin", 100, 0); // lacks one token for the last target
    DataLoader *loader = open_one("b.bin", 9, 10, true);
    assert_int_equal(data_sequences(loader), 9);
    data_close(loader);
    expect_refused("b.bin", 10, 10, 1, "9 sequences", "needs 10");
}

UNIT_TEST(invalid_batch_or_sequence_lengths_are_refused) {
    write_u16("a.bin", 100, 0);
    assert_null(data_open(path_of("a.bin"), 0, 4, 0, 1, 1, true, VOCAB, &err));
    assert_int_equal(err.code, EXIT_USER);
    assert_null(data_open(path_of("a.bin"), 1, 0, 0, 1, 1, true, VOCAB, &err));
    assert_null(data_open(path_of("a.bin"), 1, 4, 1, 1, 1, true, VOCAB, &err));
    assert_null(data_open(path_of("a.bin"), 1, 4, -1, 1, 1, true, VOCAB, &err));
    DataLoader *loader = open_one("a.bin", 1, 4, true);
    int32_t in[4], target[4];
    assert_false(data_batch(loader, -1, in, target, &err));
    assert_false(data_batch(loader, INT64_MAX, in, target, &err));
    assert_true(data_batch(loader, INT64_MAX / 2, in, target, &err));
    data_close(loader);
}

UNIT_TEST(without_shuffling_files_are_read_in_order) {
    // s_b.bin has 6 sequences and an unused token. Files are read in the order of their names, not of writing.
    write_u16("s_b.bin", 25, 1000);
    write_u32("s_a.bin", 22, 0);   // 5 sequences of 4 tokens and one extra token, with 32-bit tokens
    write_u16("s_aa.bin", 3, 500); // less than one sequence, so the file is not used
    DataLoader *loader = open_one("s_*.bin", 2, 4, false);
    assert_int_equal(data_tokens(loader), 50);
    assert_int_equal(data_sequences(loader), 11);
    char text[100];
    assert_string_equal(data_describe(loader, text, sizeof text), "3 shards, 50 tokens, uint16 and uint32");
    int32_t in[8], target[8];
    for (int64_t n = 0; n < 20; n++) { // several epochs, which end in the middle of batches
        assert_true(data_batch(loader, n, in, target, &err));
        for (int row = 0; row < 2; row++) {
            int64_t sequence = (n * 2 + row) % 11;
            int32_t first = (int32_t)(sequence < 5 ? sequence * 4 : 1000 + (sequence - 5) * 4);
            for (int t = 0; t < 4; t++) {
                assert_int_equal(in[row * 4 + t], first + t);
                assert_int_equal(target[row * 4 + t], first + t + 1);
            }
        }
    }
    data_close(loader);
}

UNIT_TEST(a_permutation_contains_every_index_once) {
    static unsigned char seen[70000];
    const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 15, 16, 17, 100, 255, 256, 257, 1000, 1024, 1025, 4097, 65537};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            int64_t n = sizes[k], fixed = 0;
            memset(seen, 0, sizeof seen);
            for (int64_t i = 0; i < n; i++) {
                int64_t p = permute(i, n, 42, epoch);
                assert_true(p >= 0 && p < n);
                assert_int_equal(seen[p]++, 0);
                fixed += p == i;
            }
            if (n >= 100) assert_true(fixed < 10); // a random permutation has on average one element that does not move
        }
    }
    for (int64_t i = 0; i < 1000; i++) { // permutations of more than 2^40 elements
        int64_t n = ((int64_t)1 << 40) + 12345, p = permute(i, n, 7, 0);
        assert_true(p >= 0 && p < n);
        assert_true(p != permute(i + 1, n, 7, 0));
    }
}

// Tests that each of the 24 orders of 4 items is equally frequent over 24,000 seeds, and over 24,000 epochs.
UNIT_TEST(all_orders_are_equally_frequent) {
    int by_seed[256], by_epoch[256];
    memset(by_seed, 0, sizeof by_seed);
    memset(by_epoch, 0, sizeof by_epoch);
    for (int k = 0; k < 24000; k++) {
        int code_seed = 0, code_epoch = 0;
        for (int i = 0; i < 4; i++) {
            code_seed = code_seed * 4 + (int)permute(i, 4, (uint64_t)k, 0);
            code_epoch = code_epoch * 4 + (int)permute(i, 4, 1, k);
        }
        by_seed[code_seed]++;
        by_epoch[code_epoch]++;
    }
    int kinds = 0;
    for (int code = 0; code < 256; code++) {
        if (!by_seed[code] && !by_epoch[code]) continue;
        kinds++; // each order is expected 1000 times with a standard deviation of 31
        assert_in_range(by_seed[code], 850, 1150);
        assert_in_range(by_epoch[code], 850, 1150);
    }
    assert_int_equal(kinds, 24);
}

// Tests that a shuffled epoch contains every sequence once, in an order that depends on the epoch and the seed.
UNIT_TEST(a_shuffled_epoch_contains_every_sequence_once) {
    enum { T = 8, SEQUENCES = 40 };
    write_u16("s_0.bin", 15 * T + 1, 0);
    write_u16("s_1.bin", 25 * T + 1, 15 * T);
    DataLoader *loader = open_one("s_*.bin", 5, T, true);
    assert_int_equal(data_sequences(loader), SEQUENCES);
    int32_t in[5 * T], target[5 * T], order[2][SEQUENCES];
    for (int epoch = 0; epoch < 2; epoch++) {
        int seen[SEQUENCES] = {0};
        for (int n = 0; n < 8; n++) {
            assert_true(data_batch(loader, epoch * 8 + n, in, target, &err));
            for (int row = 0; row < 5; row++) {
                assert_int_equal(in[row * T] % T, 0);
                order[epoch][n * 5 + row] = in[row * T] / T;
                assert_int_equal(seen[in[row * T] / T]++, 0);
                for (int t = 0; t < T; t++) assert_int_equal(target[row * T + t], in[row * T] + t + 1);
            }
        }
    }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    DataLoader *other = data_open(path_of("s_*.bin"), 5, T, 0, 1, 1235, true, VOCAB, &err);
    int32_t other_in[5 * T], other_target[5 * T];
    assert_true(data_batch(other, 0, other_in, other_target, &err));
    assert_true(data_batch(loader, 0, in, target, &err));
    assert_memory_not_equal(in, other_in, sizeof in);
    data_close(other);
    data_close(loader);
}

// Tests that the rows of all ranks are the rows of one rank that reads the whole batch, also across an epoch's end.
UNIT_TEST(ranks_together_read_the_batch_of_one_process) {
    enum { T = 4, ROWS = 12, BATCHES = 9 };
    write_u16("r_0.bin", 20 * T + 1, 0);
    write_u32("r_1.bin", 13 * T + 3, 2000);
    int32_t whole_in[BATCHES * ROWS * T], whole_target[BATCHES * ROWS * T];
    DataLoader *one = open_one("r_*.bin", ROWS, T, true);
    for (int n = 0; n < BATCHES; n++)
        assert_true(data_batch(one, n, whole_in + n * ROWS * T, whole_target + n * ROWS * T, &err));
    data_close(one);
    const int ranks_of[] = {1, 2, 3, 4, 6, 12};
    for (size_t k = 0; k < sizeof ranks_of / sizeof *ranks_of; k++) {
        int ranks = ranks_of[k];
        for (int accumulation = 1; accumulation <= ROWS / ranks; accumulation++) {
            if (ROWS % (ranks * accumulation) != 0) continue;
            int B = ROWS / ranks / accumulation;
            for (int rank = 0; rank < ranks; rank++) {
                DataLoader *loader = data_open(path_of("r_*.bin"), B, T, rank, ranks, 1234, true, VOCAB, &err);
                assert_non_null(loader);
                int32_t in[ROWS * T], target[ROWS * T];
                for (int n = 0; n < BATCHES * accumulation; n++) {
                    assert_true(data_batch(loader, n, in, target, &err));
                    size_t at = ((size_t)n * (size_t)ranks + (size_t)rank) * (size_t)(B * T);
                    assert_memory_equal(in, whole_in + at, (size_t)(B * T) * sizeof *in);
                    assert_memory_equal(target, whole_target + at, (size_t)(B * T) * sizeof *in);
                }
                data_close(loader);
            }
        }
    }
}

// Tests batches that begin at any sequence, as a run needs that resumes with another batch size or number of ranks.
UNIT_TEST(a_batch_may_begin_at_any_sequence) {
    enum { T = 4, B = 3, RANKS = 2, SEQUENCES = 50 };
    write_u16("s_0.bin", 20 * T + 1, 0);
    int32_t row_in[SEQUENCES][T], row_target[SEQUENCES][T];
    DataLoader *rows = open_one("s_*.bin", 1, T, true);
    for (int n = 0; n < SEQUENCES; n++) assert_true(data_batch(rows, n, row_in[n], row_target[n], &err));
    data_close(rows);
    for (int rank = 0; rank < RANKS; rank++) {
        DataLoader *loader = data_open(path_of("s_*.bin"), B, T, rank, RANKS, 1234, true, VOCAB, &err);
        assert_non_null(loader);
        int32_t in[B * T], target[B * T];
        for (int first = 0; first + B * RANKS <= SEQUENCES; first++) {
            assert_true(data_batch_at(loader, first, in, target, NULL, &err));
            assert_memory_equal(in, row_in[first + rank * B], sizeof in);
            assert_memory_equal(target, row_target[first + rank * B], sizeof target);
        }
        assert_false(data_batch_at(loader, -1, in, target, NULL, &err));
        assert_false(data_batch_at(loader, INT64_MAX - B, in, target, NULL, &err));
        data_close(loader);
    }
}

UNIT_TEST(batches_do_not_depend_on_earlier_reads) {
    write_u16("a.bin", 1001, 0);
    int32_t in[3][40], target[3][40];
    DataLoader *loader = open_one("a.bin", 4, 10, true), *fresh = open_one("a.bin", 4, 10, true);
    assert_true(data_batch(loader, 57, in[0], target[0], &err));
    for (int n = 0; n < 30; n++) assert_true(data_batch(loader, n, in[1], target[1], &err));
    assert_true(data_batch(loader, 57, in[1], target[1], &err));
    assert_true(data_batch(fresh, 57, in[2], target[2], &err));
    assert_memory_equal(in[0], in[1], sizeof in[0]);
    assert_memory_equal(in[0], in[2], sizeof in[0]);
    assert_memory_equal(target[0], target[2], sizeof target[0]);
    data_close(loader);
    data_close(fresh);
}

UNIT_TEST(a_token_outside_the_vocabulary_is_an_error) {
    int32_t in[10], target[10];
    write_header_and_tokens("v.bin", DATA_MAGIC_U16, 1, 101, 2, 101, 200, 1000); // a file with the token ids 200 to 300
    DataLoader *loader = data_open(path_of("v.bin"), 1, 10, 0, 1, 1, false, 257, &err);
    assert_non_null(loader);
    for (int n = 0; n < 5; n++) assert_true(data_batch(loader, n, in, target, &err));
    assert_false(data_batch(loader, 5, in, target, &err));
    assert_int_equal(err.code, EXIT_DATA);
    assert_non_null(strstr(err.text, "v.bin: token 57 is 257, but the vocabulary ends at 256"));
    data_close(loader);
    write_header_and_tokens("w.bin", DATA_MAGIC_U32, 7, 11, 4, 11, 0xfffffff8u, 0xffffffffu);
    expect_refused("w.bin", 1, 10, 1, "w.bin: token 0 is 4294967288", "the vocabulary ends at");
    // Opening a file checks the ids of its first sequence. A file without a full sequence is not used.
    write_u16("x_0.bin", 101, 0);
    write_header_and_tokens("x_1.bin", DATA_MAGIC_U16, 1, 101, 2, 101, VOCAB - 7, 65536);
    expect_refused("x_*.bin", 1, 10, 1, "x_1.bin: token 7 is 50257", "ends at 50256");
    write_header_and_tokens("x_1.bin", DATA_MAGIC_U16, 1, 10, 2, 10, VOCAB - 7, 65536);
    data_close(open_one("x_*.bin", 1, 10, false));
}

UNIT_TEST(a_file_truncated_during_the_run_is_an_error) {
    int32_t in[10], target[10];
    write_u16("a.bin", 101, 0);
    DataLoader *loader = open_one("a.bin", 1, 10, false);
    assert_int_equal(truncate(path_of("a.bin"), DATA_HEADER_BYTES + 50), 0);
    assert_true(data_batch(loader, 0, in, target, &err));
    assert_false(data_batch(loader, 5, in, target, &err));
    assert_int_equal(err.code, EXIT_DATA);
    assert_non_null(strstr(err.text, "a.bin ends early"));
    data_close(loader);
}

// Tests more files than the token reader keeps open at a time.
UNIT_TEST(more_files_than_may_stay_open_are_read) {
    enum { FILES = 600, T = 4 };
    for (int i = 0; i < FILES; i++) { write_u16(formatted("m_%04d.bin", i), T + 1, (uint32_t)(i * T)); }
    DataLoader *loader = open_one("m_*.bin", 1, T, true);
    assert_int_equal(data_sequences(loader), FILES);
    int32_t in[T], target[T];
    static int seen[FILES];
    for (int n = 0; n < FILES; n++) {
        assert_true(data_batch(loader, n, in, target, &err));
        assert_int_equal(seen[in[0] / T]++, 0);
    }
    data_close(loader);
}

UNIT_TEST(data_fingerprint_depends_on_the_files) {
    write_u16("f_0.bin", 101, 0);
    write_u16("f_1.bin", 101, 7);
    const uint64_t both = fingerprint_of(open_one("f_*.bin", 1, 10, false));
    // batch size and shuffling do not affect the fingerprint
    assert_true(fingerprint_of(open_one("f_*.bin", 3, 5, true)) == both);
    assert_true(fingerprint_of(open_one("f_0.bin", 1, 10, false)) != both);
    assert_int_equal(rename(path_of("f_1.bin"), path_of("f_2.bin")), 0);
    assert_true(fingerprint_of(open_one("f_*.bin", 1, 10, false)) == both);
    write_u16("f_2.bin", 101, 8);
    assert_true(fingerprint_of(open_one("f_*.bin", 1, 10, false)) != both);
}

// Tests that a name with pattern characters is not used as a pattern if a file of this name exists.
UNIT_TEST(a_file_name_with_pattern_characters_is_found) {
    write_u16("run[1].bin", 101, 0);
    DataLoader *loader = open_one("run[1].bin", 1, 10, false);
    char text[64];
    assert_string_equal(data_describe(loader, text, sizeof text), "1 shard, 101 tokens, uint16");
    data_close(loader);
}

RUN_TESTS(test_folder_make, test_folder_remove, test_folder_empty)
