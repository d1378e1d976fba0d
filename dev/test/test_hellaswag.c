// Tests of the HellaSwag reader: batches, scoring of endings, and damaged or hostile files.
#include <math.h>

#include "coat/text/hellaswag.h"
#include "test_folder.h"

static Error err;

// A HellaSwag file under construction: the header, then 16-bit words.
typedef struct {
    int32_t header[256];
    uint16_t words[4096];
    size_t count, start; // count: number of words so far. start: index of the last example's first word
} File;

static File file;

static void put(int word) {
    assert_true(file.count < sizeof file.words / sizeof *file.words);
    file.words[file.count++] = (uint16_t)word;
}

static void begin_file(void) {
    memset(&file, 0, sizeof file);
    file.header[0] = 20240522;
    file.header[1] = 1;
}

// Appends an example whose context has `context` tokens and whose endings have the lengths `endings`. label: index of
// the right ending. Token ids count up from `token`.
static void add_example(int label, int token, int context, const int endings[4]) {
    file.start = file.count;
    const int head[] = {65535, 0, file.header[2]++, label, 4};
    for (int i = 0; i < 5; i++) put(head[i]);
    put(context);
    for (int i = 0; i < context; i++) put(token++);
    for (int e = 0; e < 4; e++) {
        put(endings[e]);
        for (int i = 0; i < endings[e]; i++) put(token++);
    }
    int bytes = (int)(file.count - file.start) * 2;
    file.words[file.start + 1] = (uint16_t)bytes;
    if (bytes > file.header[3]) file.header[3] = bytes;
}

// Writes `file` without its last `cut` bytes, or with `extra` bytes of 0 at the end. Returns the path.
static const char *write_file_under_test(size_t cut, size_t extra) {
    const char *path = path_of("h.bin");
    static char bytes[sizeof(File) + 16];
    memcpy(bytes, file.header, 1024);
    memcpy(bytes + 1024, file.words, file.count * 2 + extra);
    write_file(path, bytes, 1024 + file.count * 2 + extra - cut);
    return path;
}

static const int lengths[2][4] = {{2, 3, 1, 2}, {1, 1, 1, 5}};

static void two_examples(void) {
    begin_file();
    add_example(1, 10, 3, lengths[0]);
    add_example(0, 40, 1, lengths[1]);
}

UNIT_TEST(batches_contain_the_context_and_one_ending_per_row) {
    two_examples();
    HellaSwag *set = hellaswag_open(write_file_under_test(0, 0), 8, 100, &err);
    assert_non_null(set);
    assert_int_equal(hellaswag_examples(set), 2);
    assert_int_equal(hellaswag_rows(set), 8);
    assert_int_equal(hellaswag_length(set), 5); // longest rows: context 3 + ending 3 - 1 tokens, and 1 + 5 - 1 tokens
    int32_t inputs[3 * 6], targets[3 * 6];
    hellaswag_batch(set, 1, 3, 6, inputs, targets); // reads the rows of endings 1, 2 and 3 of the first example
    const int32_t wanted_inputs[] = {10, 11, 12, 15, 16, 0, /**/ 10, 11, 12, 0, 0, 0, /**/ 10, 11, 12, 19, 0, 0};
    const int32_t wanted_targets[] = {-1, -1, 15, 16, 17, -1, /**/ -1, -1, 18, -1, -1, -1, /**/ -1, -1, 19, 20, -1, -1};
    assert_memory_equal(inputs, wanted_inputs, sizeof inputs);
    assert_memory_equal(targets, wanted_targets, sizeof targets);
    hellaswag_batch(set, 7, 3, 6, inputs, targets); // reads the last row and two rows after the end
    const int32_t last_inputs[] = {40, 44, 45, 46, 47, 0}, last_targets[] = {44, 45, 46, 47, 48, -1};
    assert_memory_equal(inputs, last_inputs, sizeof last_inputs);
    assert_memory_equal(targets, last_targets, sizeof last_targets);
    for (int i = 6; i < 18; i++) assert_true(inputs[i] == 0 && targets[i] == -1);
    hellaswag_close(set);
}

// Tests a HellaSwag file of 32-bit words, with token ids above 65,535.
UNIT_TEST(files_of_32_bit_words_are_read) {
    two_examples();
    static uint32_t words[4096];
    for (size_t i = 0; i < file.count; i++) words[i] = file.words[i];
    words[1] *= 2; // doubles the example's size in bytes, because words have 32 bits
    words[file.start + 1] *= 2;
    words[6] = 100000; // first token of the example's context
    file.header[1] = 2;
    static char bytes[1024 + sizeof words];
    const size_t size = 1024 + file.count * 4;
    memcpy(bytes, file.header, 1024);
    memcpy(bytes + 1024, words, file.count * 4);
    const char *path = path_of("h.bin");
    write_file(path, bytes, size);
    HellaSwag *set = hellaswag_open(path, 8, 100001, &err);
    if (!set) fail_msg("%s", err.text);
    int32_t inputs[6], targets[6];
    hellaswag_batch(set, 1, 1, 6, inputs, targets);
    const int32_t wanted[] = {100000, 11, 12, 15, 16, 0};
    assert_memory_equal(inputs, wanted, sizeof inputs);
    hellaswag_close(set);
    assert_null(hellaswag_open(path, 8, 100000, &err));
    assert_says(&err, "token 100000, but the vocabulary ends at 99999");
    for (size_t cut = 1; cut < size; cut++) { // a file truncated at any byte is refused
        write_file(path, bytes, size - cut);
        assert_null(hellaswag_open(path, 8, 100001, &err));
        assert_int_equal(err.code, EXIT_DATA);
    }
    words[5] = 0x80000000u; // a token count that the file cannot hold
    memcpy(bytes + 1024, words, file.count * 4);
    write_file(path, bytes, size);
    assert_null(hellaswag_open(path, 8, 100001, &err));
    assert_says(&err, "shorter than its tokens");
}

// Adds the losses of a row: `mean` at every target, and at other tokens a value that must be ignored.
static void add_row_losses(HellaSwag *set, int row, float mean) {
    float losses[8];
    int32_t inputs[8], targets[8];
    hellaswag_batch(set, row, 1, 8, inputs, targets);
    for (int t = 0; t < 8; t++) losses[t] = targets[t] >= 0 ? mean : -1000.0f;
    hellaswag_add_losses(set, row, 1, 8, losses);
}

UNIT_TEST(the_ending_with_the_smallest_mean_loss_is_chosen) {
    two_examples();
    HellaSwag *set = hellaswag_open(write_file_under_test(0, 0), 8, 100, &err);
    assert_non_null(set);
    assert_int_equal(hellaswag_right(set), 0); // without losses, no example counts as correct
    // An ending's score is its mean loss. Ending 1 of the first example has a larger sum than ending 2, but a smaller
    // mean.
    const float means[2][4] = {{3, 1.25f, 1.5f, 2}, {0.5f, 0.75f, 1, 0.625f}};
    for (int r = 7; r >= 0; r--) add_row_losses(set, r, means[r / 4][r % 4]);
    assert_int_equal(hellaswag_right(set), 2);
    add_row_losses(set, 1, 1.75f);
    assert_int_equal(hellaswag_right(set), 1);
    add_row_losses(set, 2, 1.75f); // of two endings with equal mean losses, the first one wins
    assert_int_equal(hellaswag_right(set), 2);
    add_row_losses(set, 1, NAN);
    assert_int_equal(hellaswag_right(set), 1);
    add_row_losses(set, 1, 1);
    assert_int_equal(hellaswag_right(set), 2);
    add_row_losses(set, 4, INFINITY);
    assert_int_equal(hellaswag_right(set), 1);
    for (int r = 4; r < 8; r++) add_row_losses(set, r, NAN);
    assert_int_equal(hellaswag_right(set), 1);
    // Adds losses of four rows at once, of which the last two are after the end and must be ignored.
    float losses[4 * 8];
    for (int i = 0; i < 32; i++) losses[i] = i < 8 ? 1 : 0.125f;
    add_row_losses(set, 5, 2), add_row_losses(set, 7, 2), add_row_losses(set, 4, 0.5f);
    hellaswag_add_losses(set, 6, 4, 8, losses);
    assert_int_equal(hellaswag_right(set), 1);
    add_row_losses(set, 7, 0.75f);
    assert_int_equal(hellaswag_right(set), 2);
    hellaswag_close(set);
}

// Tests how rows are distributed: every row is evaluated once, and all rows of an example are on one rank. All ranks
// have the same number of passes. A single rank has rows / batch passes, rounded up.
UNIT_TEST(ranks_share_the_rows_of_a_pass) {
    enum { EXAMPLES = 19, ROWS = 4 * EXAMPLES };

    begin_file();
    for (int e = 0; e < EXAMPLES; e++) add_example(e % 4, 10, 2, lengths[e % 2]);
    HellaSwag *set = hellaswag_open(write_file_under_test(0, 0), 8, 100, &err);
    assert_non_null(set);
    for (int batch = 1; batch <= 9; batch++) {
        for (int ranks = 1; ranks <= 7; ranks++) {
            int taken_by[ROWS], passes = 0;
            for (int r = 0; r < ROWS; r++) taken_by[r] = -1;
            for (int rank = 0; rank < ranks; rank++) {
                int n = 0;
                for (int row; (row = hellaswag_pass(set, n, batch, rank, ranks)) >= 0; n++) {
                    assert_true(row == ROWS || row % batch == 0);
                    for (int r = row; r < row + batch && r < ROWS; r++) {
                        assert_int_equal(taken_by[r], -1);
                        taken_by[r] = rank;
                    }
                }
                if (rank == 0) passes = n;
                assert_int_equal(n, passes);
            }
            for (int r = 0; r < ROWS; r++) {
                assert_true(taken_by[r] >= 0);
                assert_int_equal(taken_by[r], taken_by[r / 4 * 4]);
            }
            if (ranks == 1) assert_int_equal(passes, (ROWS + batch - 1) / batch);
        }
    }
    hellaswag_close(set);
}

UNIT_TEST(an_example_as_long_as_the_sequence_is_accepted) {
    two_examples();
    HellaSwag *set = hellaswag_open(write_file_under_test(0, 0), 5, 49, &err);
    assert_non_null(set);
    hellaswag_close(set);
    assert_null(hellaswag_open(write_file_under_test(0, 0), 4, 49, &err));
    assert_error(&err, EXIT_USER, "--seq-len 5");
    assert_null(hellaswag_open(write_file_under_test(0, 0), 5, 48, &err));
    assert_error(&err, EXIT_DATA, "token 48");
}

static void refuse(size_t cut, size_t extra, const char *says) {
    err.text[0] = '\0';
    assert_null(hellaswag_open(write_file_under_test(cut, extra), 64, 1000, &err));
    assert_says(&err, "h.bin");
    assert_error(&err, EXIT_DATA, says);
}

UNIT_TEST(truncated_or_changed_files_are_refused) {
    two_examples();
    const File good = file;
    // A file must be refused at whatever byte it is truncated.
    for (size_t cut = 1; cut < good.count * 2 + 1024; cut++) refuse(cut, 0, "h.bin");
    refuse(0, 2, "2 bytes follow");
    refuse(0, 1, "damaged");

    // at: index of the word to change. value: new value of the word. says: part of the error
    const struct {
        size_t at;
        int value;
        const char *says;
    } changes[] = {
        {0, 65534, "does not begin"},
        {1, 65534, "incomplete"},
        {1, 10, "an invalid length"},
        {1, 37, "an invalid length"},
        {1, 12, "shorter than its tokens"},
        {2, 7, "the wrong number"},
        {3, 4, "right ending that is not"},
        {3, 65535, "right ending that is not"},
        {4, 3, "4 endings"},
        {4, 65535, "4 endings"},
        {5, 0, "without tokens"},
        {5, 65535, "shorter than its tokens"},
        {9, 0, "without tokens"},
        {9, 1, "example 0"},
        {6, 1000, "token 1000"},
        {6, 65535, "token 65535"},
        {good.start, 0, "example 1 does not"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        file = good;
        file.words[changes[i].at] = (uint16_t)changes[i].value;
        refuse(0, 0, changes[i].says);
    }
    const int32_t counts[] = {0, -1, 1, 3, 65537, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 7; i++) {
        file = good;
        file.header[2] = counts[i];
        refuse(0, 0, "h.bin");
    }
    file = good;
    file.header[0] = 20240520;
    refuse(0, 0, "not a HellaSwag file");
    file = good;
    file.header[1] = 3;
    refuse(0, 0, "version 3");
    file.header[1] = 2; // the header claims 32-bit words, but words have 16 bits
    refuse(0, 0, "h.bin");
    assert_null(hellaswag_open(path_of("missing.bin"), 64, 1000, &err));
    assert_int_equal(err.code, EXIT_DATA);
    assert_null(hellaswag_open(test_folder, 64, 1000, &err));
    assert_int_equal(err.code, EXIT_DATA);
}

// Sets each word to extreme values. Opening the file must fail, or reads must stay within bounds, which the SANITIZE=1
// build checks.
UNIT_TEST(extreme_values_in_a_file_cause_no_invalid_access) {
    two_examples();
    const File good = file;
    const int values[] = {0, 1, 2, 4, 5, 255, 32767, 32768, 65534, 65535};
    int32_t inputs[64], targets[64];
    for (size_t at = 0; at < good.count; at++) {
        for (int v = 0; v < 10; v++) {
            file = good;
            file.words[at] = (uint16_t)values[v];
            HellaSwag *set = hellaswag_open(write_file_under_test(0, 0), 64, 65536, &err);
            if (!set) continue;
            for (int r = 0; r < hellaswag_rows(set); r++) hellaswag_batch(set, r, 1, 64, inputs, targets);
            hellaswag_close(set);
        }
    }
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
