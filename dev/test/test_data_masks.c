// Tests of token files with a loss mask (coat/text/data_masks.h): unmasked targets, examples, skipped sequences, and
// damaged files.
#include "token_files.h"

static Error err; // error of the last failed call

enum { T = 4, WORDS = DATA_HEADER_BYTES / 4 };

typedef struct {
    int32_t header[WORDS];
    unsigned char rest[8192];
    size_t bytes; // number of bytes of `rest` that belong to the file
} File;

static void sign(File *f) {
    uint64_t hash = 0;
    XXH64_state_t *state = XXH64_createState();
    memcpy(f->header + 8, &hash, sizeof hash);
    XXH64_reset(state, 0);
    XXH64_update(state, f->header, sizeof f->header);
    XXH64_update(state, f->rest, f->bytes);
    hash = XXH64_digest(state);
    memcpy(f->header + 8, &hash, sizeof hash);
    XXH64_freeState(state);
}

static void write_as(const char *name, const File *f) {
    char bytes[sizeof f->header + sizeof f->rest];
    memcpy(bytes, f->header, sizeof f->header);
    memcpy(bytes + sizeof f->header, f->rest, f->bytes);
    write_file(path_of(name), bytes, sizeof f->header + f->bytes);
}

// Returns a token file with the tokens first, first + 1, ... and a new example at every `each`-th token. `mask`,
// repeated, is the loss mask: '1' for a token that is in the loss.
static File make_file(int width, int count, uint32_t first, int each, const char *mask) {
    File f;
    memset(&f, 0, sizeof f);
    f.header[0] = DATA_MAGIC_MASKED;
    f.header[1] = DATA_VERSION_MASKED;
    f.header[2] = count;
    f.header[3] = width;
    unsigned char *at = f.rest;
    for (int i = 0; i < count; i++, at += width) {
        const uint32_t token = first + (uint32_t)i;
        memcpy(at, &token, (size_t)width);
    }
    for (int i = 0; i < count; i += each, at += 4) {
        const uint32_t start = (uint32_t)i;
        memcpy(at, &start, 4);
        f.header[4]++;
    }
    for (int i = 0; i < count; i++) {
        const int bit = mask[i % (int)strlen(mask)] == '1';
        at[i / 8] |= (unsigned char)(bit << (i % 8));
        f.header[5] += bit;
    }
    f.bytes = (size_t)(at - f.rest) + (size_t)(count + 7) / 8;
    sign(&f);
    return f;
}

UNIT_TEST(masked_targets_are_not_trained) {
    static const char mask[] = "0010111010001"; // 13 is not a multiple of 8 or T
    for (int width = 2; width <= 4; width += 2) {
        const File f = make_file(width, 101, 7, 9, mask);
        write_as("a.bin", &f);
        DataLoader *loader = open_one("a.bin", 1, T, false);
        int32_t in[T], target[T];
        assert_true(data_masked(loader));
        // No sequence of 4 targets is skipped, because the mask never has four zeros in a row.
        assert_int_equal(data_sequences(loader), 25);
        for (int n = 0; n < 25; n++) {
            int counted = 0;
            assert_true(data_batch(loader, n, in, target, &err));
            for (int t = 0; t < T; t++) {
                const int at = n * T + t + 1; // index of the target token; its mask bit decides if it is trained
                const bool counts = mask[at % 13] == '1';
                assert_int_equal(in[t], 7 + at - 1);
                assert_int_equal(target[t], counts ? 7 + at : -1);
                counted += counts;
            }
            assert_int_equal(data_unmasked_targets(target, T), counted);
        }
        char text[128];
        assert_string_equal(data_describe(loader, text, sizeof text),
                            width == 2 ? "1 shard, 101 tokens, uint16, 46.5 % in the loss"
                                       : "1 shard, 101 tokens, uint32, 46.5 % in the loss");
        data_close(loader);
    }
}

// Tests that a checkpoint's description of the data mentions the loss mask if there are many sets.
UNIT_TEST(the_description_of_many_sets_includes_the_loss_mask) {
    const File f = make_file(2, 101, 7, 9, "01");
    write_as("a.bin", &f);
    static char patterns[MAX_SETS * TEST_PATH];
    char text[192];
    double weights[MAX_SETS];
    for (int k = 0; k < MAX_SETS; k++) {
        text_append(patterns, sizeof patterns, "%s\n\n", path_of("a.bin"));
        weights[k] = 1.0 / 3;
    }
    DataLoader *loader = data_open_sets(patterns, weights, EXAMPLES_SPLIT, 1, T, 0, 1, 1, false, VOCAB, NULL, &err);
    if (!loader) fail_msg("%s", err.text);
    if (!data_describes_mask(data_describe(loader, text, sizeof text))) fail_msg("%s", text);
    data_close(loader);
}

// Tests that sequences without an unmasked target are skipped and get no sequence number.
UNIT_TEST(sequences_without_unmasked_targets_are_skipped) {
    const File f = make_file(2, 41, 0, 41,
                             "10000"
                             "00000"
                             "00001"
                             "00000"
                             "00000"
                             "01000"
                             "00000"
                             "00000"
                             "1");
    write_as("e_0.bin", &f); // tokens 14, 26 and 40 are unmasked targets; token 0 is unmasked, but no target
    write_u16("e_1.bin", 2 * T + 1, 1000);
    DataLoader *loader = open_one("e_*.bin", 1, T, false);
    int32_t in[T], target[T];
    const int32_t first[] = {12, 24, 36, 1000, 1004, 12};
    assert_int_equal(data_sequences(loader), 5);
    for (int n = 0; n < 6; n++) {
        assert_true(data_batch(loader, n, in, target, &err));
        assert_int_equal(in[0], first[n]);
        assert_int_equal(data_unmasked_targets(target, T), first[n] < 1000 ? 1 : T);
    }
    char text[128];
    assert_string_equal(data_describe(loader, text, sizeof text), "2 shards, 50 tokens, uint16, 26 % in the loss");
    data_close(loader);
    loader = open_one("e_*.bin", 5, T, true); // every sequence occurs once per epoch
    int32_t row[5 * T], ignored[5 * T], sum = 0;
    for (int64_t n = 0; n < 3; n++) {
        assert_true(data_batch(loader, n, row, ignored, &err));
        sum = 0;
        for (int i = 0; i < 5; i++) sum += row[i * T];
        assert_int_equal(sum, 12 + 24 + 36 + 1000 + 1004);
    }
    data_close(loader);
    expect_refused("e_0.bin", 4, T, 1, "3 sequences of 4 + 1 tokens", "needs 4");
}

// Tests that the data has a prompt format if all files that record a prompt format record the same one.
UNIT_TEST(data_have_a_prompt_format_if_all_files_agree) {
    static const PromptFormat formats[] = {PROMPT_FORMAT_NONE, PROMPT_FORMAT_QWEN, PROMPT_FORMAT_QWEN,
                                           PROMPT_FORMAT_ALPACA};
    PromptFormat different[2];
    for (int i = 0; i < 4; i++) {
        File f = make_file(2, 41, 0, 10, "1");
        f.header[6] = formats[i];
        sign(&f);
        write_as(formatted("f_%d.bin", i), &f);
    }
    DataLoader *loader = open_one("f_[012].bin", 1, T, false);
    assert_int_equal(data_prompt_format(loader, different), PROMPT_FORMAT_QWEN);
    assert_int_equal(different[1], PROMPT_FORMAT_NONE);
    data_close(loader);
    loader = open_one("f_*.bin", 1, T, false);
    assert_int_equal(data_prompt_format(loader, different), PROMPT_FORMAT_NONE);
    assert_int_equal(different[0], PROMPT_FORMAT_QWEN);
    assert_int_equal(different[1], PROMPT_FORMAT_ALPACA);
    data_close(loader);
}

// Tests that byte tokens are recognized from 128 tokens if a file has examples (from 1024 if it is plain text).
UNIT_TEST(byte_tokens_with_examples_are_recognized) {
    for (int i = 0; i < 3; i++) {
        const File f = make_file(2, i == 1 ? 127 : 128, i == 2 ? 130 : 129, 10, "10");
        write_as("bytes.bin", &f);
        DataLoader *loader = open_one("bytes.bin", 1, T, false);
        assert_int_equal(data_begins_with_bytes(loader), i == 0);
        data_close(loader);
    }
}

UNIT_TEST(a_mask_of_ones_gives_the_batches_of_no_mask) {
    const File f = make_file(2, 101, 500, 10, "1");
    write_as("ones.bin", &f);
    write_u16("plain.bin", 101, 500);
    DataLoader *ones = open_one("ones.bin", 3, T, true), *plain = open_one("plain.bin", 3, T, true);
    assert_true(data_masked(ones) && !data_masked(plain));
    for (int64_t n = 0; n < 20; n++) {
        int32_t in[2][3 * T], target[2][3 * T];
        assert_true(data_batch(ones, n, in[0], target[0], &err));
        assert_true(data_batch(plain, n, in[1], target[1], &err));
        assert_memory_equal(in[0], in[1], sizeof in[0]);
        assert_memory_equal(target[0], target[1], sizeof target[0]);
    }
    data_close(ones);
    data_close(plain);
}

UNIT_TEST(data_fingerprint_depends_on_the_mask) {
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        const File f = make_file(2, 3000, 0, 100, i ? "01" : "10");
        write_as("f.bin", &f);
        hash[i] = fingerprint_of(open_one("f.bin", 1, T, true));
    }
    assert_true(hash[0] != hash[1]);
}

static DataLoader *open_packed(const char *glob, ExamplesKind kind, int B, int length) {
    memset(&err, 0, sizeof err);
    return data_open_sets(path_of(glob), NULL, kind, B, length, 0, 1, 1, false, VOCAB, NULL, &err);
}

// Tests packing: examples share a sequence, each target belongs to the example of its input, and the padding after the
// last example has no targets.
UNIT_TEST(packed_examples_do_not_predict_each_other) {
    int32_t in[16], target[16];
    File f = make_file(2, 58, 100, 6, "011111"); // nine examples of 6 tokens and one of 4
    write_as("p.bin", &f);
    DataLoader *loader = open_packed("p.bin", EXAMPLES_WHOLE, 1, 16);
    assert_non_null(loader);
    assert_int_equal(data_sequences(loader), 5);
    int64_t counted = 0;
    bool seen[58] = {false};
    for (int row = 0; row < 5; row++) {
        assert_true(data_batch(loader, row, in, target, &err));
        counted += data_unmasked_targets(target, 16);
        for (int t = 0; t < 16; t++) {
            if (in[t] == 0) { // padding, which has the token id 0
                assert_true(target[t] == -1 && (t == 15 || in[t + 1] == 0));
                continue;
            }
            const int at = in[t] - 100;
            assert_true(!seen[at]);
            seen[at] = true;
            assert_int_equal(target[t], at % 6 == 5 || at == 57 ? -1 : in[t] + 1);
            if (at % 6 > 0) assert_int_equal(in[t - 1], in[t] - 1);
        }
    }
    assert_int_equal(counted, 9 * 5 + 3);
    for (int i = 0; i < 58; i++) assert_true(seen[i]);
    const DataExamples e = data_examples(loader);
    assert_true(e.examples == 10 && e.sequences == 5 && e.cut == 0 && e.left_out == 0 &&
                fabs(e.filled - 58.0 / 80) < 1e-9);
    data_close(loader);
    loader = open_packed("p.bin", EXAMPLES_SPLIT, 1, 16);
    assert_non_null(loader);
    assert_int_equal(data_sequences(loader), 3);
    assert_int_equal(data_examples(loader).examples, 0);
    data_close(loader);
}

// Tests that an example longer than a sequence is truncated to length + 1 tokens, of which the last is only a target.
UNIT_TEST(an_example_longer_than_a_sequence_is_truncated) {
    int32_t in[2 * T], target[2 * T];
    File f = make_file(4, 11, 70000 % VOCAB, 5, "1"); // examples of 5, 5 and 1 tokens; one token alone has no target
    write_as("c.bin", &f);
    DataLoader *loader = open_packed("c.bin", EXAMPLES_WHOLE, 2, T);
    assert_non_null(loader);
    DataExamples e = data_examples(loader);
    assert_true(e.examples == 3 && e.sequences == 2 && e.cut == 0 && e.left_out == 1 && e.filled == 1);
    assert_true(data_batch(loader, 0, in, target, &err));
    for (int t = 0; t < 2 * T; t++) assert_int_equal(target[t], in[t] + 1);
    data_close(loader);
    // Both examples are truncated to 5 tokens, which leaves the second example without unmasked target.
    f = make_file(2, 12, 0, 6, "000110000001");
    write_as("c.bin", &f);
    loader = open_packed("c.bin", EXAMPLES_CUT, 1, T);
    assert_non_null(loader);
    e = data_examples(loader);
    assert_true(e.examples == 2 && e.sequences == 1 && e.cut == 2 && e.left_out == 1);
    assert_true(data_batch(loader, 0, in, target, &err));
    const int32_t expected[] = {-1, -1, 3, 4};
    assert_memory_equal(target, expected, sizeof expected);
    data_close(loader);
    assert_null(open_packed("c.bin", EXAMPLES_WHOLE, 1, T));
    assert_error(&err, EXIT_DATA, "has 6 tokens, and 2 examples are longer than a sequence; use --seq-len 5");
}

// Tests that opening a file detects a token id outside the vocabulary. If the checksum does not match, the error says
// that the file is damaged instead.
UNIT_TEST(a_token_outside_the_vocabulary_is_detected_on_opening) {
    for (int width = 2; width <= 4; width += 2) {
        File f = make_file(width, 1500, 0, 10, "1"); // more tokens than the reader's buffer
        const uint32_t last = VOCAB - 1, beyond = VOCAB;
        memcpy(f.rest + 1490 * width, &last, (size_t)width);
        sign(&f);
        write_as("v.bin", &f);
        data_close(open_one("v.bin", 1, T, false));
        memcpy(f.rest + 1490 * width, &beyond, (size_t)width);
        sign(&f);
        write_as("v.bin", &f);
        expect_refused("v.bin", 1, T, 1, "v.bin: token 1490 is ", "but the vocabulary ends at ");
        f.header[8] ^= 1;
        write_as("v.bin", &f);
        expect_refused("v.bin", 1, T, 1, "v.bin is damaged", "its checksum does not match");
    }
}

// Tests that the error about data without unmasked targets suggests another remedy than the error about few tokens.
UNIT_TEST(the_error_about_data_without_unmasked_targets_has_a_remedy) {
    File f = make_file(2, 24, 0, 12, "000000001111");
    write_as("n.bin", &f);
    assert_null(open_packed("n.bin", EXAMPLES_CUT, 1, 4));
    assert_says(&err, "n.bin: &use a larger --seq-len (11");
    assert_null(data_open_validation(path_of("n.bin"), EXAMPLES_CUT, 1, 4, VOCAB, NULL, &err));
    assert_says(&err, "use a larger --seq-len");
    f = make_file(2, 24, 0, 12, "100000000000");
    write_as("n.bin", &f);
    assert_null(open_packed("n.bin", EXAMPLES_CUT, 1, 16));
    assert_says(&err, "n.bin: none of its 2 examples");
    assert_null(data_open_validation(path_of("n.bin"), EXAMPLES_SPLIT, 4, 30, VOCAB, NULL, &err));
    assert_says(&err, "use a smaller");
    f = make_file(2, 58, 100, 6, "011111");
    write_as("p.bin", &f);
    assert_null(open_packed("p.bin", EXAMPLES_CUT, 6, 16));
    assert_says(&err, "p.bin: 10 examples make 5 sequences of 16 tokens&--micro-batch");
}

// Tests that validation evaluates every target for any micro-batch: sequences without targets fill the last batch. In a
// file without mask, the last tokens that do not fill a sequence are not evaluated.
UNIT_TEST(validation_evaluates_every_target_for_any_micro_batch) {
    bool found;
    int32_t in[8 * 16], target[8 * 16], position[8 * 16];
    const SpecialIds nothing = {-1, 0, {0}};
    const File f = make_file(2, 58, 100, 6, "011111"); // 5 packed sequences of two examples each
    write_as("p.bin", &f);
    write_u16("plain.bin", 5 * 16 + 1 + 15, 1); // 5 sequences, and 15 tokens that do not fill a sequence
    for (int i = 0; i < 16; i++) {
        const int B = 1 + i % 8;
        const bool plain = i >= 8;
        DataLoader *loader =
            data_open_validation(path_of(plain ? "plain.bin" : "p.bin"), EXAMPLES_CUT, B, 16, VOCAB, NULL, &err);
        assert_non_null(loader);
        assert_true(plain || data_mask_documents(loader, &nothing, 1, &found, &err));
        const int batches = (5 + B - 1) / B;
        assert_int_equal(data_batches(loader, -1), batches);
        assert_int_equal(data_batches(loader, 2), batches < 2 ? batches : 2);
        assert_true(data_check(loader, batches, &err));
        int64_t counted = 0;
        for (int n = 0; n < batches; n++) {
            assert_true(data_batch_at(loader, (int64_t)n * B, in, target, plain ? NULL : position, &err));
            counted += data_unmasked_targets(target, (int64_t)B * 16);
            for (int at = 0; at < B * 16; at++)
                if (n * B + at / 16 >= 5) assert_true(in[at] == 0 && target[at] == -1 && (plain || position[at] == 0));
        }
        assert_int_equal(counted, plain ? 5 * 16 : 9 * 5 + 3);
        data_close(loader);
    }
    assert_null(open_packed("p.bin", EXAMPLES_CUT, 6, 16)); // fails: a training batch needs 6 sequences, p.bin has 5
    write_u16("plain.bin", 16, 1);
    assert_null(data_open_validation(path_of("plain.bin"), EXAMPLES_CUT, 1, 16, VOCAB, NULL, &err));
    assert_error(&err, EXIT_DATA, "plain.bin: 16 tokens&use a smaller --seq-len");
}

// Tests that positions start at 0 in each packed example, in each part of a split example, and in padding.
UNIT_TEST(positions_restart_with_each_packed_example) {
    bool found;
    int32_t in[16], target[16], position[16];
    const SpecialIds nothing = {-1, 0, {0}};
    const File f = make_file(2, 58, 100, 6, "011111");
    write_as("p.bin", &f);
    for (int split = 0; split < 2; split++) {
        DataLoader *loader = open_packed("p.bin", split ? EXAMPLES_SPLIT : EXAMPLES_CUT, 1, 16);
        assert_non_null(loader);
        assert_true(data_mask_documents(loader, &nothing, 1, &found, &err));
        for (int row = 0; row < data_sequences(loader); row++) {
            assert_true(data_batch_at(loader, row, in, target, position, &err));
            for (int t = 0, since = 0; t < 16; t++, since++) {
                if (in[t] == 0 || (in[t] - 100) % 6 == 0) since = 0;
                assert_int_equal(position[t], since);
            }
        }
        data_close(loader);
    }
}

// Tests that BOS or EOS tokens mark document boundaries in files without examples.
UNIT_TEST(bos_or_eos_tokens_separate_documents) {
    bool found;
    int32_t in[10], target[10], position[10];
    const SpecialIds nothing = {-1, 0, {0}}, begins = {104, 1, {103}}, ends = {-1, 2, {104, 117}};
    const int32_t after_begin[] = {0, 1, 2, 3, 0, 1, 2, 3, 4, 5}, after_end[] = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4};
    const int32_t second_end[] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1};
    write_u16("t.bin", 40, 100);
    DataLoader *loader = open_one("t.bin", 1, 10, false);
    assert_false(data_mask_documents(loader, &nothing, 1, &found, &err));
    assert_says(&err, "t.bin does not record where documents begin");
    assert_true(data_mask_documents(loader, &begins, 1, &found, &err) &&
                data_batch_at(loader, 0, in, target, position, &err));
    assert_memory_equal(position, after_begin, sizeof position);
    assert_true(data_mask_documents(loader, &ends, 1, &found, &err) &&
                data_batch_at(loader, 0, in, target, position, &err));
    assert_memory_equal(position, after_end, sizeof position);
    assert_true(data_batch_at(loader, 1, in, target, position, &err));
    assert_memory_equal(position, second_end, sizeof position);
    // Documents are separated by the first set whose BOS id (if it has none, an EOS id) occurs in the data. If none
    // occurs, the first set with any id is used.
    const SpecialIds absent = {99, 1, {104}}, ways[] = {nothing, absent, ends, begins};
    assert_true(data_mask_documents(loader, ways, 4, &found, &err) && found);
    assert_true(data_batch_at(loader, 0, in, target, position, &err));
    assert_memory_equal(position, after_end, sizeof position);
    assert_true(data_mask_documents(loader, ways, 2, &found, &err) && !found);
    assert_true(data_batch_at(loader, 0, in, target, position, &err));
    for (int t = 0; t < 10; t++) assert_int_equal(position[t], t);
    data_close(loader);
}

static void refused(const File *f, const char *words) {
    write_as("bad.bin", f);
    expect_refused("bad.bin", 1, T, 1, words, "bad.bin");
}

UNIT_TEST(a_flipped_bit_in_a_masked_file_is_detected) {
    const File good = make_file(2, 101, 0, 10, "0110"); // 101 tokens in 11 examples; the mask has 13 bytes
    // flips one bit: of each byte at the file's start and end, and of every 97th byte in between
    for (size_t at = 0; at < sizeof good.header + good.bytes; at += at < 64 || at > 1000 ? 1 : 97) {
        File f = good;
        if (at < sizeof f.header)
            ((unsigned char *)f.header)[at] ^= 0x10;
        else
            f.rest[at - sizeof f.header] ^= 0x10;
        refused(&f, at < 4 ? "not a token file" : at < 8 ? "version" : "regenerate it");
    }
    for (size_t bytes = 0; bytes < good.bytes; bytes += 7) {
        File f = good;
        f.bytes = bytes;
        refused(&f, "is truncated");
    }
    File f = good;
    f.bytes++;
    refused(&f, "is damaged: 1284 bytes, but its header says 1283");
    write_file(path_of("bad.bin"), good.header, 500);
    expect_refused("bad.bin", 1, T, 1, "truncated", "less than its header");
}

// Tests token files whose checksum is valid but whose contents are not.
UNIT_TEST(invalid_contents_with_a_valid_checksum_are_refused) {
    const File good = make_file(2, 101, 0, 10, "0110");
    const struct {
        int word;
        int32_t value;
        const char *words;
    } heads[] = {{1, 2, "has images, but the model reads text only"},
                 {1, 3, "version 3"},
                 {2, 0, "says 0 tokens"},
                 {2, -1, "says -1 tokens"},
                 {2, INT32_MAX, "truncated"},
                 {3, 3, "of 3 bytes"},
                 {3, 0, "of 0 bytes"},
                 {3, 4, "truncated"},
                 {4, 0, "0 examples"},
                 {4, 102, "102 examples"},
                 {4, -1, "-1 examples"},
                 {4, INT32_MAX, "examples"},
                 {5, 0, "0 unmasked tokens"},
                 {5, 102, "102 unmasked tokens"},
                 {5, 51, "does not match the count"}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        File f = good;
        f.header[heads[i].word] = heads[i].value;
        sign(&f);
        refused(&f, heads[i].words);
    }
    const struct {
        int example;
        uint32_t start;
    } starts[] = {{0, 1}, {1, 0}, {3, 40}, {10, 101}, {10, UINT32_MAX}};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        File f = good;
        memcpy(f.rest + 202 + 4 * starts[i].example, &starts[i].start, 4);
        sign(&f);
        refused(&f, "examples are out of order");
    }
    File f = good;
    f.rest[f.bytes - 1] |= 0x80;
    f.header[5]++;
    sign(&f);
    refused(&f, "mask continues");
    f = make_file(2, 101, 0, 10, "0110");
    f.header[0] = (int32_t)__builtin_bswap32(DATA_MAGIC_MASKED);
    refused(&f, "big-endian");
    f = make_file(2, 9, 50250, 9, "1"); // token ids from 50250, of which some are outside the vocabulary
    write_as("bad.bin", &f);
    expect_refused("bad.bin", 1, 8, 1, "token 7 is 50257", "use the --tokenizer");
}

RUN_TESTS(test_folder_make, test_folder_remove, test_folder_empty)
