// Tests of the tokenizers (coat/text/tokenizer.h): byte tokens, GPT-2's vocabulary in its three file formats, and
// damaged files.
#include "coat/text/prompt_format.h"
#include "coat/text/tokenizer.h"
#include "test_folder.h"

static Error err; // error of the last failed call

#define GPT2_FOLDER "../shared/data/gpt2"
#define SHAKESPEARE "../shared/data/tinyshakespeare.txt"

static Tokenizer *open_good(const char *path) {
    Tokenizer *t = tokenizer_open(path, &err);
    if (!t) fail_msg("%s", err.text);
    return t;
}

// Fails unless opening the tokenizer file fails with EXIT_DATA and one line of error text that contains `word`.
static void expect_refused(const char *name, const char *word) {
    Tokenizer *t = tokenizer_open(path_of(name), &err);
    assert_null(t);
    assert_int_equal(err.code, EXIT_DATA);
    assert_null(strchr(err.text, '\n'));
    if (!strstr(err.text, word)) fail_msg("'%s' expected in: %s", word, err.text);
}

// Fails unless the tokenizer encodes the text as the given ids and decodes these ids to the text.
static void expect_ids(const Tokenizer *t, const char *text, const int32_t *expected, int count) {
    int32_t ids[256];
    char decoded[1024];
    size_t length = 0;
    int got = tokenizer_encode(t, text, ids, 256, &err);
    if (got < 0) fail_msg("%s", err.text);
    assert_int_equal(got, count);
    for (int i = 0; i < count; i++) {
        assert_int_equal(ids[i], expected[i]);
        length += tokenizer_decode(t, ids[i], decoded + length, sizeof decoded - length);
    }
    assert_int_equal(length, strlen(text));
    assert_memory_equal(decoded, text, length);
}

UNIT_TEST(byte_tokens_encode_and_decode) {
    Tokenizer *t = tokenizer_bytes();
    assert_int_equal(tokenizer_vocab(t), 257);
    assert_int_equal(tokenizer_eos(t), 256);
    const int32_t ids[] = {'H', 'i', 0xc3, 0xa9, 0xff, '\n'};
    expect_ids(t, "Hi\xc3\xa9\xff\n", ids, 6);
    for (int id = 0; id < 256; id++) {
        char out = 0;
        assert_int_equal(tokenizer_decode(t, id, &out, 1), 1);
        assert_int_equal((unsigned char)out, id);
    }
    char out[32] = {0};
    // tokenizer_decode() returns the length of the whole text, but writes at most the given 5 bytes.
    assert_int_equal(tokenizer_decode(t, 256, out, 5), strlen("<|endoftext|>"));
    assert_string_equal(out, "<|end");
    assert_int_equal(tokenizer_decode(t, 257, out, sizeof out), 0);
    assert_int_equal(tokenizer_decode(t, -1, out, sizeof out), 0);
    int32_t few[3];
    assert_int_equal(tokenizer_encode(t, "", few, 0, &err), 0);
    assert_int_equal(tokenizer_encode(t, "abc", few, 3, &err), 3);
    assert_int_equal(tokenizer_encode(t, "abcd", few, 3, &err), -1);
    assert_error(&err, EXIT_USER, "3 tokens");
    tokenizer_close(t);
    tokenizer_close(NULL);
}

// The error must state the maximum of the whole prompt, also if only the text after an image exceeds it.
UNIT_TEST(a_prompt_with_too_many_tokens_is_refused) {
    static const char *const prompts[] = {"abcd<image>", "abc<image>", "a<image>bc"};
    const PromptImage image = {9, 2};
    Tokenizer *t = tokenizer_bytes();
    int32_t ids[4];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(prompt_encode(t, PROMPT_FORMAT_PLAIN, prompts[i], &image, ids, 4, &err), -1);
        assert_error(&err, EXIT_USER, "--prompt has more than 4 tokens");
    }
    assert_int_equal(prompt_encode(t, PROMPT_FORMAT_PLAIN, "a<image>b", &image, ids, 4, &err), 4);
    tokenizer_close(t);
}

typedef struct {
    const char *text;
    int count;
    int32_t ids[40];
} Known;

// Test texts with their GPT-2 token ids.
static const Known known[] = {
    {"", 0, {0}},
    {"Hello world", 2, {15496, 995}},
    {" Hello, world!\n", 5, {18435, 11, 995, 0, 198}},
    {"I'll  say:\n\n\n  don't 've 'S 12345\xc2\xbd x\xc2\xb2",
     19,
     {40, 1183, 220, 910, 25, 628, 198, 220, 836, 470, 705, 303, 705, 50, 17031, 2231, 23141, 2124, 31185}},
    {"na\xc3\xafve caf\xc3\xa9 \xe2\x80\x94 \xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xe4\xb8\x96\xe7\x95\x8c "
     "\xf0\x9f\x99\x82",
     17,
     {2616, 38776, 40304, 851, 220, 19526, 254, 25001, 121, 171, 120, 234, 10310, 244, 45911, 234, 32485}},
    {"\tif (x == 0) return;\n    }\n\n",
     15,
     {197, 361, 357, 87, 6624, 657, 8, 1441, 26, 198, 220, 220, 220, 1782, 628}},
    // The name of a special token inside a text is encoded as ordinary text.
    {"<|endoftext|>", 7, {27, 91, 437, 1659, 5239, 91, 29}},
    {"a\xc2\xa0\xe3\x80\x80"
     "b  ",
     7,
     {64, 1849, 5099, 222, 65, 220, 220}},
    {"\xe0\xa4\xb9\xe0\xa4\xbf\xe0\xa4\xa8\xe0\xa5\x8d\xe0\xa4\xa6\xe0\xa5\x80 \xd9\xa3\xd9\xa4",
     16,
     {11976, 117, 11976, 123, 11976, 101, 24231, 235, 11976, 99, 24231, 222, 18923, 96, 149, 97}},
    {"''s it's", 4, {7061, 82, 340, 338}},
};

static void check_gpt2(const Tokenizer *t) {
    assert_int_equal(tokenizer_vocab(t), 50257);
    assert_int_equal(tokenizer_eos(t), 50256);
    char out[32] = {0};
    tokenizer_decode(t, 50256, out, sizeof out);
    assert_string_equal(out, "<|endoftext|>");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        expect_ids(t, known[i].text, known[i].ids, known[i].count);
}

// Writes GPT-2's vocabulary, which t has opened, in llm.c's binary format.
static void write_bin(const char *name, const Tokenizer *t, int32_t version) {
    static unsigned char file[4 << 20];
    memset(file, 0, sizeof file);
    int32_t header[4] = {20240328, version, tokenizer_vocab(t), version == 2 ? tokenizer_eos(t) : 0};
    memcpy(file, header, sizeof header);
    size_t at = 1024;
    for (int id = 0; id < tokenizer_vocab(t); id++) {
        size_t length = tokenizer_decode(t, id, (char *)file + at + 1, 255);
        assert_in_range(length, 1, 255);
        file[at] = (unsigned char)length;
        at += 1 + length;
    }
    write_file(path_of(name), file, at);
}

static void copy_file(const char *from, const char *name) {
    static char bytes[2 << 20];
    FILE *file = fopen(from, "rb");
    assert_non_null(file);
    size_t count = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    write_file(path_of(name), bytes, count);
}

UNIT_TEST(gpt2_vocabulary_in_three_file_formats) {
    if (access(GPT2_FOLDER "/encoder.json", R_OK) != 0) {
        print_message("skipped: GPT-2's encoder.json and vocab.bpe are not in %s\n", GPT2_FOLDER);
        skip();
    }
    int32_t ids[4];
    Tokenizer *t = open_good(GPT2_FOLDER "/encoder.json");
    check_gpt2(t);
    // llm.c's format stores no merges. The tokenizer derives them from the order of the ids.
    for (int32_t version = 1; version <= 2; version++) {
        write_bin("gpt2_tokenizer.bin", t, version);
        Tokenizer *bin = open_good(path_of("gpt2_tokenizer.bin"));
        check_gpt2(bin);
        tokenizer_close(bin);
    }
    tokenizer_close(t);
    t = open_good(GPT2_FOLDER); // a tokenizer path may name a folder
    check_gpt2(t);
    tokenizer_close(t);
    copy_file(GPT2_FOLDER "/encoder.json", "vocab.json");
    t = open_good(path_of("vocab.json")); // Without the merges file, a vocabulary can only decode.
    assert_int_equal(tokenizer_vocab(t), 50257);
    assert_int_equal(tokenizer_encode(t, "Hello", ids, 4, &err), -1);
    assert_error(&err, EXIT_DATA, "merges.txt");
    tokenizer_close(t);
    copy_file(GPT2_FOLDER "/vocab.bpe", "merges.txt");
    t = open_good(path_of("vocab.json")); // Hugging Face uses the names vocab.json and merges.txt.
    check_gpt2(t);
    assert_int_equal(tokenizer_encode(t, "one two three four five", ids, 4, &err), -1);
    assert_int_equal(err.code, EXIT_USER);
    tokenizer_close(t);
}

// Encoding and decoding returns any byte sequence unchanged, whether it is valid UTF-8 or not.
UNIT_TEST(any_bytes_are_encoded_and_decoded_unchanged) {
    enum { BYTES = 20480 };
    if (access(GPT2_FOLDER "/encoder.json", R_OK) != 0) {
        print_message("skipped: GPT-2's encoder.json and vocab.bpe are not in %s\n", GPT2_FOLDER);
        skip();
    }
    static char text[BYTES + 1], back[BYTES + 256];
    static int32_t ids[BYTES];
    Tokenizer *t = open_good(GPT2_FOLDER);
    for (int kind = 0; kind < 3; kind++) {
        uint32_t x = 1;
        for (int i = 0; i < BYTES; i++) {
            x = x * 1664525u + 1013904223u;
            if (kind == 0) text[i] = (char)(1 + (x >> 16) % 255); // text of random bytes other than 0
            // text of one long word, then random spaces, '!' and '"'
            if (kind == 1) text[i] = i < 3000 ? 'a' : (char)(' ' + (x >> 16) % 3);
        }
        if (kind == 2) {
            FILE *file = fopen(SHAKESPEARE, "rb");
            if (!file) break;
            assert_int_equal(fread(text, 1, BYTES, file), BYTES);
            fclose(file);
        }
        int count = tokenizer_encode(t, text, ids, BYTES, &err);
        if (count < 0) fail_msg("%s", err.text);
        size_t length = 0;
        for (int i = 0; i < count; i++) length += tokenizer_decode(t, ids[i], back + length, 256);
        assert_int_equal(length, BYTES);
        assert_memory_equal(back, text, BYTES);
        if (kind == 2) {
            uint32_t sum = 0;
            for (int i = 0; i < count; i++) sum += (uint32_t)(i + 1) * (uint32_t)ids[i];
            assert_int_equal(count, 6200);
            assert_int_equal(sum, 3940880264u);
        }
    }
    tokenizer_close(t);
}

// Tests a small vocabulary: merges are applied by rank, some ids are unused, and <|endoftext|> is a special token.
UNIT_TEST(merges_are_applied_by_rank) {
    int32_t ids[16];
    char out[16];
    write_text(path_of("vocab.json"),
               "{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,\"abc\":5,\"\\u0120\":6,\"\\u0120a\":9,"
               "\"\\u4e16\":11,\"<|endoftext|>\":12}");
    write_text(path_of("merges.txt"), "#version: 0.2\r\nb c\r\na b\r\na bc\r\n\xc4\xa0 a\r\n");
    Tokenizer *t = open_good(path_of("vocab.json"));
    assert_int_equal(tokenizer_vocab(t), 13);
    assert_int_equal(tokenizer_eos(t), 12);
    const int32_t abc[] = {5}, aabb[] = {0, 3, 1}, spaced[] = {3, 6, 3, 9};
    expect_ids(t, "abc", abc, 1); // The tokenizer merges "b c", which comes first in the list, then "a bc".
    expect_ids(t, "aabb", aabb, 3);
    expect_ids(t, "ab ab a", spaced, 4); // In " ab", a and b are merged before the space and a.
    assert_int_equal(tokenizer_decode(t, 7, out, sizeof out), 0); // Decoding an unused id gives an empty text.
    assert_int_equal(tokenizer_decode(t, 11, out, sizeof out), 3);
    assert_memory_equal(out, "\xe4\xb8\x96", 3);
    assert_int_equal(tokenizer_encode(t, "abd", ids, 16, &err), -1);
    assert_says(&err, "no token for a character or byte of 'abd'");
    tokenizer_close(t);
}

// Vocabulary and merges files do not define the pre-tokenization. Only GPT-2's rule is known, so these files of other
// models are refused.
UNIT_TEST(vocabulary_pairs_of_other_models_are_refused) {
    static const struct {
        const char *config, *refused;
    } cases[] = {{"{}", NULL},
                 {"{\"tokenizer_class\": null}", NULL},
                 {"{\"tokenizer_class\": \"GPT2Tokenizer\"}", NULL},
                 {"{\"tokenizer_class\": \"GPT2TokenizerFast\"}", NULL},
                 {"{\"tokenizer_class\": \"Qwen2Tokenizer\"}",
                  "says Qwen2Tokenizer, so GPT-2's pre-tokenization rule may be wrong"}};
    write_text(path_of("vocab.json"), "{\"a\": 0, \"b\": 1, \"ab\": 2, \"<|endoftext|>\": 3}");
    write_text(path_of("merges.txt"), "a b\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(path_of("tokenizer_config.json"), cases[i].config);
        if (cases[i].refused)
            expect_refused("vocab.json", cases[i].refused);
        else
            tokenizer_close(open_good(path_of("vocab.json")));
    }
    write_text(path_of("tokenizer_config.json"), "{}");
    static const char last[] = "its last token is not <|endoftext|>, so GPT-2's pre-tokenization rule may be wrong";
    // Refuses a vocabulary whose special token has the first id, as in SmolLM2.
    write_text(path_of("vocab.json"), "{\"<|endoftext|>\": 0, \"a\": 1, \"b\": 2, \"ab\": 3}");
    expect_refused("vocab.json", last);
    // Refuses a vocabulary whose last token is not special, as in Qwen, which stores special tokens in another file.
    write_text(path_of("vocab.json"), "{\"a\": 0, \"b\": 1, \"ab\": 2, \"</s>\": 3}");
    expect_refused("vocab.json", last);
}

UNIT_TEST(damaged_vocabularies_are_refused) {
    expect_refused("absent.json", "cannot open");
    expect_refused("", "contains no tokenizer.json"); // A folder without tokenizer files is refused.
    static const char *const cases[][2] = {{"", "empty"},
                                           {"hello", "neither JSON"},
                                           {"{\"a\": 0, \"b\":", "neither JSON"},
                                           {"[1, 2]", "must be an object"},
                                           {"{}", "must be an object"},
                                           {"{\"a\": 0, \"b\": \"1\"}", "'b' has no integer id"},
                                           {"{\"a\": -1}", "id -1"},
                                           {"{\"a\": 2147483648}", "id 2147483648"},
                                           {"{\"a\": 99999999999999999999999}", "neither JSON"},
                                           {"{\"a\": 3, \"b\": 3}", "the id 3"},
                                           {"{\"a\": 3, \"a\": 4}", "neither JSON"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(path_of("bad.json"), cases[i][0]);
        expect_refused("bad.json", cases[i][1]);
    }
    write_text(path_of("tokenizer.json"), "{\"version\": \"1.0\", \"model\": {\"vocab\": {\"a\": 0}}}");
    expect_refused("tokenizer.json", "either ByteLevel");
    static char deep[100001];
    memset(deep, '[', sizeof deep - 1);
    write_text(path_of("deep.json"), deep);
    expect_refused("deep.json", "neither JSON");
    assert_int_equal(mkfifo(path_of("pipe.json"), 0600), 0);
    expect_refused("pipe.json", "not a regular file");
}

UNIT_TEST(damaged_merges_are_refused) {
    write_text(path_of("encoder.json"), "{\"a\": 0, \"b\": 1, \"ab\": 2, \"<|endoftext|>\": 3}");
    static const char *const bad[] = {"#version: 0.2\na b\nb a\n", "#version: 0.2\na b\nab\n",
                                      "#version: 0.2\na b\na c\n", "#version: 0.2\na b\n a\n",
                                      "#version: 0.2\na b\na \n",  "\na b\n\xff\xff b",
                                      "#version: 0.2\na b\na \xc4"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text(path_of("vocab.bpe"), bad[i]);
        expect_refused("encoder.json", "line 3 is not a merge");
    }
    write_text(path_of("vocab.bpe"), "");
    expect_refused("encoder.json", "empty");
    write_text(path_of("vocab.bpe"), "a b"); // no version line, and no newline at the end
    Tokenizer *t = open_good(path_of("encoder.json"));
    const int32_t ids[] = {2};
    expect_ids(t, "ab", ids, 1);
    tokenizer_close(t);
}

// Writes llm.c's vocabulary file with 32 one-letter tokens and `said` in its header, truncated to `bytes` bytes.
static void write_small_bin(const char *name, int32_t version, int32_t said, int32_t end_of_text, size_t bytes) {
    char file[1024 + 64] = {0};
    int32_t header[4] = {20240328, version, said, end_of_text};
    memcpy(file, header, sizeof header);
    for (int i = 0; i < 32; i++) {
        file[1024 + 2 * i] = 1;
        file[1024 + 2 * i + 1] = (char)('A' + i);
    }
    write_file(path_of(name), file, bytes);
}

UNIT_TEST(damaged_llmc_vocabularies_are_refused) {
    int32_t ids[4];
    write_small_bin("good.bin", 2, 20, 19, 1024 + 40);
    Tokenizer *t = open_good(path_of("good.bin"));
    assert_int_equal(tokenizer_vocab(t), 20);
    assert_int_equal(tokenizer_eos(t), 19);
    // This tokenizer cannot encode, because its ids are not in GPT-2's order, so merges cannot be derived.
    assert_int_equal(tokenizer_encode(t, "A", ids, 4, &err), -1);
    tokenizer_close(t);
    static const struct {
        int32_t version, said, end_of_text;
        size_t bytes;
        const char *word;
    } bad[] = {{2, 20, 19, 1000, "truncated in its header"},    {3, 20, 19, 1024 + 40, "version 3"},
               {2, -20, 19, 1024 + 40, "-20 tokens"},           {2, INT32_MAX, 19, 1024 + 40, "2147483647 tokens"},
               {2, 1000, 19, 1024 + 40, "1000 tokens"},         {2, 40, 19, 1024 + 40, "truncated in token 20"},
               {2, 20, 19, 1024 + 39, "truncated in token 19"}, {2, 20, 19, 1024 + 41, "1 byte"},
               {2, 20, 20, 1024 + 40, "end-of-text token 20"},  {2, 20, -1, 1024 + 40, "end-of-text token -1"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_small_bin("bad.bin", bad[i].version, bad[i].said, bad[i].end_of_text, bad[i].bytes);
        expect_refused("bad.bin", bad[i].word);
    }
}

RUN_TESTS(test_folder_make, test_folder_remove, test_folder_empty)
