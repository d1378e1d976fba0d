// Tests of the token reader (coat/text/data.h) with several patterns and data sets: the order of their sequences, and
// that a single set has the order of earlier versions.
#include <xxhash.h>

#include "coat/text/permute.h"
#include "token_files.h"

static Error err; // error of the last failed call

// Tests that order and fingerprint of a data set never change, because runs of earlier versions resume with it.
UNIT_TEST(order_and_fingerprint_equal_those_of_earlier_versions) {
    enum { T = 4, BATCHES = 300 };
    write_u16("g_0.bin", 40 * T + 1, 0);
    write_u16("g_1.bin", 61 * T + 3, 1000);
    assert_int_equal(permute(0, 101, 1234, 0), 38);
    assert_int_equal(permute(0, 101, 1234, 1), 26);
    const double weight = 0.3; // a weight has no effect on a single set
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        for (int weighted = 0; weighted < 2; weighted++) {
            int32_t in[3 * T], target[3 * T];
            DataLoader *loader = data_open_sets(path_of("g_*.bin"), weighted ? &weight : NULL, EXAMPLES_SPLIT, 3, T, 0,
                                                1, 1234, shuffle, VOCAB, NULL, &err);
            assert_non_null(loader);
            assert_int_equal(data_sets(loader), 1);
            assert_true(data_fingerprint(loader) == 0x107b73d383df48f1u);
            XXH64_state_t *hash = XXH64_createState();
            XXH64_reset(hash, 0);
            for (int n = 0; n < BATCHES; n++) {
                assert_true(data_batch(loader, n, in, target, &err));
                XXH64_update(hash, in, sizeof in);
                XXH64_update(hash, target, sizeof target);
            }
            assert_true(XXH64_digest(hash) == (shuffle ? 0x125e7a6119cad2f8u : 0xe4e37cfd62b437d9u));
            XXH64_freeState(hash);
            data_close(loader);
        }
    }
}

// Returns up to three paths in the test's folder, one per line. An empty name gives the empty line between two sets.
static const char *patterns_of(const char *a, const char *b, const char *c) {
    static char text[4 * TEST_PATH];
    const char *names[] = {a, b, c};
    text[0] = '\0';
    for (int i = 0; i < 3 && names[i]; i++) {
        if (i > 0) strcat(text, "\n");
        if (names[i][0]) strcat(text, path_of(names[i]));
    }
    return text;
}

// Tests that patterns without an empty line between them form one set, as if one pattern matched all their files.
UNIT_TEST(several_patterns_form_one_data_set) {
    enum { T = 4, BATCHES = 40 };
    write_u16("j_a.bin", 20 * T + 1, 0);
    write_u16("j_b.bin", 30 * T + 1, 1000);
    write_u16("j_c.bin", 10 * T + 1, 2000);
    const char *const others[][3] = {{"j_c.bin", "j_b.bin", "j_a.bin"},
                                     {"j_b.bin", "j_[ac].bin", NULL},
                                     {"j_*.bin", "", "j_b.bin"},
                                     {"j_[ab].bin", "j_[bc].bin", "j_a.bin"}};
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
        DataLoader *one = open_one("j_*.bin", 2, T, true);
        DataLoader *joined =
            data_open(patterns_of(others[k][0], others[k][1], others[k][2]), 2, T, 0, 1, 1234, true, VOCAB, &err);
        assert_non_null(joined);
        assert_int_equal(data_sequences(joined), 60);
        assert_true(data_fingerprint(joined) == data_fingerprint(one));
        for (int n = 0; n < BATCHES; n++) {
            int32_t in[2][2 * T], target[2][2 * T];
            assert_true(data_batch(one, n, in[0], target[0], &err));
            assert_true(data_batch(joined, n, in[1], target[1], &err));
            assert_memory_equal(in[0], in[1], sizeof in[0]);
            assert_memory_equal(target[0], target[1], sizeof target[0]);
        }
        data_close(one);
        data_close(joined);
    }
    assert_null(data_open(patterns_of("j_a.bin", "absent*.bin", NULL), 1, T, 0, 1, 1, true, VOCAB, &err));
    assert_int_equal(err.code, EXIT_DATA);
    assert_null(strchr(err.text, '\n'));
    assert_non_null(strstr(err.text, "/absent*.bin; make token files"));
    assert_null(data_open(patterns_of("j_a.bin", "j_b.bin", "j_c.bin"), 61, T, 0, 1, 1, true, VOCAB, &err));
    assert_null(strchr(err.text, '\n'));
    assert_non_null(strstr(err.text, "/j_a.bin and 2 more: "));
}

// MIX_T: number of tokens of a sequence. MIX_A, MIX_B: numbers of sequences in the two sets. The first set's token ids
// ascend from 0, the second set's from 1000.
enum { MIX_T = 4, MIX_A = 20, MIX_B = 7 };

// Opens two data sets with the weights 0.7 and 0.3 for batches of B sequences on one rank.
static DataLoader *open_sets(const char *first, const char *second, int B) {
    static const double weights[] = {0.7, 0.3};
    return data_open_sets(patterns_of(first, "", second), weights, EXAMPLES_SPLIT, B, MIX_T, 0, 1, 5, true, VOCAB, NULL,
                          &err);
}

static DataLoader *open_mixture(double a, double b, int B, int rank, int ranks, uint64_t seed, bool shuffle) {
    const double weights[] = {a, b};
    DataLoader *loader = data_open_sets(patterns_of("a_*.bin", "", "b.bin"), weights, EXAMPLES_SPLIT, B, MIX_T, rank,
                                        ranks, seed, shuffle, VOCAB, NULL, &err);
    if (!loader) fail_msg("%s", err.text);
    return loader;
}

static void write_mixture(void) {
    write_u16("a_0.bin", 12 * MIX_T + 1, 0);
    write_u16("a_1.bin", 8 * MIX_T + 3, 12 * MIX_T);
    write_u16("b.bin", MIX_B * MIX_T + 1, 1000);
}

// Tests that sequences of two sets alternate in the ratio of the weights, that each set is read in shuffled epochs, and
// that data_set() returns each set's numbers of sequences read, epochs and tokens.
UNIT_TEST(weighted_data_sets_alternate_in_the_ratio_of_the_weights) {
    enum { COUNT = 1280 }; // five of the mixture's blocks of 256 sequences
    write_mixture();
    int32_t in[MIX_T], target[MIX_T];
    DataLoader *loader = open_mixture(0.7, 0.3, 1, 0, 1, 5, true);
    assert_int_equal(data_sets(loader), 2);
    assert_int_equal(data_sequences(loader), MIX_A + MIX_B);
    int seen[2][MIX_A], count[2] = {0, 0}, orders = 0, last_order[MIX_A] = {0}, order[MIX_A];
    memset(seen, 0, sizeof seen);
    for (int n = 0; n < COUNT; n++) {
        assert_true(data_batch(loader, n, in, target, &err));
        const int set = in[0] >= 1000, size = set ? MIX_B : MIX_A, sequence = in[0] % 1000 / MIX_T;
        for (int t = 0; t < MIX_T; t++) assert_int_equal(target[t], in[0] + t + 1);
        // A sequence must occur once in every epoch of its set.
        assert_int_equal(seen[set][sequence]++, count[set] / size);
        if (set == 0) order[count[0] % MIX_A] = sequence;
        count[set]++;
        if (set == 0 && count[0] % MIX_A == 0) {
            orders += memcmp(order, last_order, sizeof order) != 0;
            memcpy(last_order, order, sizeof order);
        }
        if (n % 100 == 99) {
            for (int k = 0; k < 2; k++) assert_int_equal(data_set(loader, k, n + 1).seen, count[k]);
        }
    }
    assert_int_equal(count[0], 896);
    assert_int_equal(count[1], 384);
    assert_int_equal(orders, 896 / MIX_A); // the order differs from epoch to epoch
    const DataSet a = data_set(loader, 0, COUNT), b = data_set(loader, 1, COUNT);
    assert_true(a.share > 0.699999 && a.share < 0.700001 && b.share > 0.299999 && b.share < 0.300001);
    assert_int_equal(a.tokens, 20 * MIX_T + 4);
    assert_true(a.epochs == 896.0 / MIX_A && b.epochs == 384.0 / MIX_B);
    assert_non_null(strstr(a.name, "/a_*.bin"));
    char text[128];
    assert_string_equal(data_describe(loader, text, sizeof text), "2 sets of 0.7 : 0.3, 3 shards, 113 tokens, uint16");
    data_close(loader);

    // Without shuffling and with equal weights, the two sets alternate, and each set is read in the order of its files.
    loader = open_mixture(1, 1, 1, 0, 1, 5, false);
    int next[2] = {0, 0};
    for (int n = 0; n < 60; n++) {
        assert_true(data_batch(loader, n, in, target, &err));
        const int set = in[0] >= 1000;
        assert_int_equal(in[0] % 1000 / MIX_T, next[set]++ % (set ? MIX_B : MIX_A));
    }
    assert_int_equal(next[0], 30);
    data_close(loader);
}

// Tests that the rows of all ranks, from any first sequence, are those of one process that reads one row at a time.
UNIT_TEST(ranks_read_a_mixture_like_one_process) {
    enum { COUNT = 600, B = 3 };
    write_mixture();
    static int32_t row[COUNT][MIX_T];
    int32_t in[B * MIX_T], target[B * MIX_T];
    DataLoader *one = open_mixture(2, 1, 1, 0, 1, 9, true);
    for (int n = 0; n < COUNT; n++) assert_true(data_batch(one, n, row[n], target, &err));
    data_close(one);
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (int rank = 0; rank < ranks; rank++) {
            DataLoader *loader = open_mixture(2, 1, B, rank, ranks, 9, true);
            for (int i = 0; i + B * ranks <= COUNT; i++) {
                const int first = i * 211 % (COUNT - B * ranks + 1);
                assert_true(data_batch_at(loader, first, in, target, NULL, &err));
                assert_memory_equal(in, row[first + rank * B], sizeof in);
            }
            data_close(loader);
        }
    }
}

// Tests that the data's fingerprint depends on the ratio of the weights and on the assignment of files to sets.
UNIT_TEST(data_fingerprint_depends_on_weights_and_sets) {
    write_mixture();
    const uint64_t mixed = fingerprint_of(open_mixture(0.7, 0.3, 1, 0, 1, 5, true));
    const struct {
        double a, b;
        bool same;
    } cases[] = {{7, 3, true}, {0.7, 0.31, false}, {0.3, 0.7, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        DataLoader *loader = open_mixture(cases[i].a, cases[i].b, 2, 0, 2, 6, false);
        assert_true((fingerprint_of(loader) == mixed) == cases[i].same);
    }
    assert_true(fingerprint_of(open_sets("a_0.bin", "[ab]_1.bin", 1)) != mixed);
    DataLoader *loader = data_open(patterns_of("a_*.bin", "", "b.bin"), 1, MIX_T, 0, 1, 5, true, VOCAB, &err);
    assert_non_null(loader);
    assert_int_equal(data_sets(loader), 1);
    assert_true(fingerprint_of(loader) != mixed);
    write_u16("b.bin", MIX_T, 0);
    assert_null(open_sets("a_*.bin", "b.bin", 1));
    assert_int_equal(err.code, EXIT_DATA);
    assert_non_null(strstr(err.text, "b.bin: 4 tokens make no sequence of 4 + 1 tokens"));
    write_u16("b.bin", 1, 0);
    assert_null(open_sets("a_*.bin", "b.bin", 1));
    assert_non_null(strstr(err.text, "b.bin: 1 token makes no sequence of 4 + 1 tokens"));
}

UNIT_TEST(the_error_about_few_tokens_counts_all_data_sets) {
    write_mixture();
    const double weights[] = {0.7, 0.2, 0.1};
    assert_null(data_open_sets(patterns_of("a_*.bin", "", "b.bin"), weights, EXAMPLES_SPLIT, 10, MIX_T, 0, 3, 5, true,
                               VOCAB, NULL, &err));
    assert_int_equal(err.code, EXIT_DATA);
    if (!strstr(err.text, "/a_*.bin and 1 other set: 113 tokens make 27 sequences of 4 + 1 tokens, but one "))
        fail_msg("%s", err.text);
    assert_null(data_open_sets(formatted("%s\n\n%s", patterns_of("a_0.bin", "", "b.bin"), path_of("a_1.bin")), weights,
                               EXAMPLES_SPLIT, 28, MIX_T, 0, 1, 5, true, VOCAB, NULL, &err));
    if (!strstr(err.text, "/a_0.bin and 2 other sets: 113 tokens make 27 sequences")) fail_msg("%s", err.text);
}

UNIT_TEST(files_that_mix_byte_tokens_and_other_tokens_are_detected) {
    const char *bytes, *other;
    write_header_and_tokens("o_0.bin", DATA_MAGIC_U16, 1, 2000, 2, 2000, 0, 257);
    write_u16("o_1.bin", 1023, 300); // too few tokens to recognize byte tokens
    write_header_and_tokens("o_2.bin", DATA_MAGIC_U32, 7, 5000, 4, 5000, 0, 257);
    DataLoader *loader = open_one("o_*.bin", 1, 10, true);
    assert_false(data_mixes_bytes(loader, &bytes, &other));
    data_close(loader);
    write_u16("o_3.bin", 70000, 0);
    loader = open_one("o_*.bin", 1, 10, true);
    assert_true(data_mixes_bytes(loader, &bytes, &other));
    assert_non_null(strstr(bytes, "o_0.bin"));
    assert_non_null(strstr(other, "o_3.bin"));
    data_close(loader);
    loader = open_one("o_[13].bin", 1, 10, true);
    assert_false(data_mixes_bytes(loader, &bytes, &other));
    data_close(loader);
}

UNIT_TEST(a_file_named_twice_in_a_set_is_detected) {
    write_u16("r_a.bin", 101, 0);
    write_u16("r_b.bin", 101, 0);
    for (int twice = 0; twice < 2; twice++) {
        const char *patterns = patterns_of("r_a.bin", "r_b.bin", twice ? "r_[b].bin" : NULL);
        DataLoader *loader = data_open(twice ? patterns : path_of("r_*.bin"), 1, 10, 0, 1, 5, true, VOCAB, &err);
        assert_int_equal(data_tokens(loader), 202);
        const char *again = data_repeated_file(loader);
        assert_true(twice ? again && strstr(again, "r_b.bin") : !again);
        assert_null(data_file_of_two_sets(loader));
        data_close(loader);
    }
}

// Tests that a file of two sets is detected, also if one of its names is a hard link.
UNIT_TEST(a_file_in_two_data_sets_is_detected) {
    const double weights[] = {2, 1};
    write_u16("t_a.bin", 101, 0);
    write_u16("t_b.bin", 101, 0);
    assert_int_equal(link(path_of("t_a.bin"), path_of("t_c.bin")), 0);
    const char *const second[] = {"t_b.bin", "t_a.bin", "t_[bc].bin"};
    for (int i = 0; i < 3; i++) {
        DataLoader *loader = data_open_sets(patterns_of("t_a.bin", "", second[i]), weights, EXAMPLES_SPLIT, 1, 10, 0, 1,
                                            5, true, VOCAB, NULL, &err);
        const char *both = data_file_of_two_sets(loader);
        assert_true(i == 0 ? !both : both && strstr(both, i == 1 ? "t_a.bin" : "t_c.bin"));
        assert_null(data_repeated_file(loader));
        data_close(loader);
    }
}

UNIT_TEST(a_file_in_training_and_validation_data_is_detected) {
    write_u16("s_a.bin", 101, 0);
    write_u16("s_b.bin", 101, 0); // another file with equal contents, which must not be reported
    DataLoader *a = open_one("s_a.bin", 1, 10, true), *b = open_one("s_b.bin", 1, 10, true);
    assert_null(data_shared_file(a, b));
    assert_non_null(strstr(data_shared_file(a, a), "s_a.bin"));
    assert_int_equal(symlink(path_of("s_a.bin"), path_of("s_c.bin")), 0);
    assert_int_equal(link(path_of("s_b.bin"), path_of("s_d.bin")), 0);
    DataLoader *c = open_one("s_c.bin", 1, 10, true), *both = open_one("s_[ad].bin", 1, 10, true);
    assert_non_null(strstr(data_shared_file(a, c), "s_c.bin"));
    assert_non_null(strstr(data_shared_file(b, both), "s_d.bin"));
    assert_null(data_shared_file(b, c));
    data_close(a);
    data_close(b);
    data_close(c);
    data_close(both);
}

// Tests OLMo's .npy files, which contain only tokens. The vocabulary's size determines their width of 2 or 4 bytes.
UNIT_TEST(npy_files_of_olmo_are_read) {
    enum { COUNT = 101, WIDE_VOCAB = 100278 };
    uint16_t narrow[COUNT];
    uint32_t wide[COUNT];
    int32_t in[10], target[10];
    char text[128];
    for (int i = 0; i < COUNT; i++) {
        narrow[i] = (uint16_t)(50000 + i);
        wide[i] = (uint32_t)(100000 + i);
    }
    write_file(path_of("n.npy"), narrow, sizeof narrow);
    DataLoader *loader = open_one("n.npy", 1, 10, false);
    assert_int_equal(data_tokens(loader), COUNT);
    assert_true(data_batch(loader, 9, in, target, &err));
    assert_int_equal(in[0], 50090);
    assert_int_equal(target[9], 50100);
    data_close(loader);
    write_file(path_of("w.npy"), wide, sizeof wide);
    // A set of one file with a header and one without.
    write_header_and_tokens("w.bin", DATA_MAGIC_U32, DATA_VERSION_U32, COUNT, 4, COUNT, 7, VOCAB);
    loader = data_open(path_of("w.*"), 1, 10, 0, 1, 1, false, WIDE_VOCAB, &err);
    if (!loader) fail_msg("%s", err.text);
    assert_string_equal(data_describe(loader, text, sizeof text), "2 shards, 202 tokens, uint32");
    assert_true(data_batch(loader, 0, in, target, &err));
    assert_int_equal(in[0], 7);
    assert_true(data_batch(loader, 10, in, target, &err));
    assert_int_equal(in[0], 100000);
    data_close(loader);
    // Files of the other width are refused. Read as uint32, uint16 tokens have a wrong size or exceed the vocabulary.
    // Read as uint16, uint32 tokens have a 0 in every other word.
    assert_null(data_open(path_of("n.npy"), 1, 10, 0, 1, 1, false, WIDE_VOCAB, &err));
    assert_non_null(strstr(err.text, "not a multiple of 4"));
    write_file(path_of("n.npy"), narrow, sizeof narrow - 2);
    assert_null(data_open(path_of("n.npy"), 1, 10, 0, 1, 1, false, WIDE_VOCAB, &err));
    assert_non_null(strstr(err.text, "token 0 is 3276915536, but the vocabulary ends at 100277"));
    for (int i = 0; i < COUNT; i++) wide[i] %= 1000;
    write_file(path_of("w.npy"), wide, sizeof wide);
    expect_refused("w.npy", 1, 10, 1, "w.npy has uint32 tokens", "--tokenizer that the file was made with");
    write_file(path_of("odd.npy"), narrow, 101);
    expect_refused("odd.npy", 1, 10, 1, "odd.npy is damaged", "101 bytes");
    static const char numpy[] = "\x93NUMPY\x01\0v\0{'descr': '<u2'";
    write_file(path_of("numpy.npy"), numpy, sizeof numpy);
    expect_refused("numpy.npy", 1, 10, 1, "numpy.npy is a NumPy array with a header", "tofile()");
    write_u16("header.npy", 101, 3); // a file with llm.c's header, whatever its name
    loader = open_one("header.npy", 1, 10, false);
    assert_int_equal(data_tokens(loader), COUNT);
    data_close(loader);
}

// Tests data of more than 2^32 tokens in two files of more than 2^31 tokens. The files are sparse to save disk space.
UNIT_TEST(more_than_2_to_32_tokens_are_read) {
    enum { T = 64, WORDS = 10 * T };
    const int64_t tokens = ((int64_t)1 << 31) + WORDS + 1, sequences = (tokens - 1) / T;
    uint16_t words[WORDS + 1];
    int32_t in[T], target[T];
    for (int file = 0; file < 2; file++) {
        const char *name = formatted("m_%d.npy", file);
        for (int i = 0; i <= WORDS; i++) words[i] = (uint16_t)(1000 * file + 1 + i);
        write_file(path_of(name), words, sizeof words);
        assert_int_equal(truncate(path_of(name), 2 * (off_t)(tokens - WORDS - 1)), 0);
        FILE *out = fopen(path_of(name), "ab");
        assert_non_null(out);
        assert_int_equal(fwrite(words, sizeof words, 1, out), 1);
        assert_int_equal(fclose(out), 0);
    }
    DataLoader *loader = open_one("m_*.npy", 1, T, false);
    assert_true(data_tokens(loader) == 2 * tokens);
    assert_true(data_sequences(loader) == 2 * sequences);
    for (int file = 0; file < 2; file++) {
        assert_true(data_batch(loader, sequences * (file + 1) - 1, in, target, &err));
        assert_int_equal(in[0], 1000 * file + WORDS - T + 1);
        assert_int_equal(target[T - 1], 1000 * file + WORDS + 1);
    }
    assert_true(data_batch(loader, 2 * sequences, in, target, &err)); // reads from the next epoch
    assert_int_equal(in[0], 1);
    data_close(loader);
}

RUN_TESTS(test_folder_make, test_folder_remove, test_folder_empty)
