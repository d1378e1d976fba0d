// Tests of tokenizer.json and tokenizer.model: ids must equal those that make_tokenizers.py stored with Python
// libraries in dev/test/tokenizers. Also tests decoding, BOS and EOS, and damaged or unsupported files.
#include "coat/text/pretokenize.h"
#include "coat/text/tokenizer.h"
#include "coat/text/unicode.h"
#include "test_folder.h"

static Error err; // error of the last failed call

#define FOLDER "dev/test/tokenizers/"

enum { ROOM = 1 << 16 };
static char texts[ROOM], ids_text[ROOM], file_text[ROOM];

static size_t read_into(const char *path, char *to) {
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s is absent: tests run in the project's folder", path);
    const size_t size = fread(to, 1, ROOM - 1, file);
    fclose(file);
    to[size] = 0;
    return size;
}

static Tokenizer *open_good(const char *path) {
    Tokenizer *t = tokenizer_open(path, &err);
    if (!t) fail_msg("%s", err.text);
    return t;
}

// Encodes a text and fails unless its ids are those at the start of `line`. Returns the start of the next line.
static const char *expect_line(const Tokenizer *t, const char *name, const char *text, const char *line) {
    int32_t ids[512];
    const int count = tokenizer_encode(t, text, ids, 512, &err);
    if (count < 0) fail_msg("%s: %s", name, err.text);
    for (int i = 0; i < count; i++) {
        char *end;
        const long expected = strtol(line, &end, 10);
        if (end == line || expected != ids[i])
            fail_msg("%s: id %d of '%s' is %d, not %ld", name, i, text, ids[i], expected);
        line = end;
    }
    if (*line != '\n') fail_msg("%s: '%s' has %d tokens, and more are expected", name, text, count);
    return line + 1;
}

// Fails unless encoding and decoding the text returns it, with at most one space before it. Only for tokenizers that do
// not normalize text.
static void expect_decoded(const Tokenizer *t, const char *name, const char *text) {
    int32_t ids[512];
    char back[2048];
    size_t used = 0;
    const int count = tokenizer_encode(t, text, ids, 512, &err);
    for (int i = 0; i < count; i++) used += tokenizer_decode(t, ids[i], back + used, sizeof back - used);
    const size_t length = strlen(text), more = used - length;
    if (used < length || more > 1 || memcmp(back + more, text, length) != 0 || (more == 1 && back[0] != ' '))
        fail_msg("%s: '%s' decodes to '%.*s'", name, text, (int)used, back);
}

UNIT_TEST(ids_equal_those_of_the_python_libraries) {
    static const struct {
        const char *name;
        int begin, end;  // ids of the tokenizer's BOS and EOS tokens; -1: none
        bool keeps;      // true if decoding returns the original text
        bool adds_space; // true if the tokenizer puts a space before the text
    } kinds[] = {{"neox.json", -1, 0, false, false},   {"llama3.json", 0, 1, true, false},
                 {"qwen.json", -1, 0, false, false},   {"digits.json", -1, 0, true, false},
                 {"prefix.json", -1, 0, true, false},  {"llama.model", 1, 2, true, true},
                 {"unknown.model", 1, 2, false, true}, {"legacy.json", 1, 2, true, true},
                 {"first.json", 1, 2, true, true},     {"words.json", 1, 2, false, true}};
    const size_t size = read_into(FOLDER "texts.bin", texts);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const char *path = formatted(FOLDER "%s", kinds[k].name);
        Tokenizer *t = open_good(path);
        assert_int_equal(tokenizer_bos(t), kinds[k].begin);
        assert_int_equal(tokenizer_eos(t), kinds[k].end);
        assert_int_equal(tokenizer_adds_space(t), kinds[k].adds_space);
        assert_string_equal(tokenizer_usual_name(path), strstr(path, ".model") ? "tokenizer.model" : "tokenizer.json");
        strcpy(strrchr(path, '.'), ".ids");
        assert_true(read_into(path, ids_text) > 0);
        const char *line = ids_text;
        for (size_t at = 0; at <= size; at += strlen(texts + at) + 1) {
            line = expect_line(t, kinds[k].name, texts + at, line);
            if (kinds[k].keeps && !strstr(texts + at, "\xe2\x96\x81")) expect_decoded(t, kinds[k].name, texts + at);
        }
        assert_int_equal(*line, 0);
        tokenizer_close(t);
    }
}

// The time to encode a text is proportional to its length, even if digits are pretokens and the text has none.
UNIT_TEST(long_texts_are_encoded_in_linear_time) {
    enum { WORDS = 100000 };
    Tokenizer *t = open_good(FOLDER "digits.json");
    char *text = (char *)xmalloc(5 * WORDS + 1), *end = text;
    int32_t *ids = (int32_t *)xmalloc(5 * WORDS * sizeof *ids);
    for (int i = 0; i < WORDS; i++) end = stpcpy(end, " word");
    alarm(30); // ends the test
    assert_true(tokenizer_encode(t, text, ids, 5 * WORDS, &err) >= WORDS);
    alarm(0);
    free(text);
    free(ids);
    tokenizer_close(t);
}

// The Metaspace pre-tokenizer replaces spaces by the mark U+2581, except in added tokens. A mark in the text does not
// match a space in an added token.
UNIT_TEST(metaspace_marks_next_to_added_tokens) {
    write_text(path_of("t.json"),
               "{\"model\":{\"vocab\":{\"\\u2581\":0,\"a\":1,\"\\u2581a\":2},\"merges\":[\"\\u2581 a\"]},"
               "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"first\","
               "\"split\":false},\"added_tokens\":[{\"id\":3,\"content\":\"  \",\"special\":false,\"normalized\":true,"
               "\"single_word\":false,\"lstrip\":false,\"rstrip\":false}]}");
    Tokenizer *t = open_good(path_of("t.json"));
    expect_line(t, "t.json", "  a", "3 1\n");
    expect_line(t, "t.json", "\xe2\x96\x81 a", "0 2\n");
    expect_line(t, "t.json", "a  \xe2\x96\x81\xe2\x96\x81", "2 3 0 0\n");
    tokenizer_close(t);
}

// Encoding and decoding returns bytes that are not valid UTF-8 unchanged.
UNIT_TEST(invalid_utf_8_is_encoded_and_decoded_unchanged) {
    static const char *const names[] = {"llama3.json", "qwen.json", "llama.model", "legacy.json"};
    for (size_t i = 0; i < 4; i++) {
        Tokenizer *t = open_good(formatted(FOLDER "%s", names[i]));
        expect_decoded(t, names[i], "a\xff\xc3 \xe4\xbd!\xed\xa0\x80\xf5\x80");
        tokenizer_close(t);
    }
}

UNIT_TEST(tokenizer_json_of_a_folder_precedes_vocab_json) {
    size_t size = read_into(FOLDER "llama3.json", file_text);
    write_file(path_of("tokenizer.json"), file_text, size);
    // The tokenizer reads tokenizer.json and ignores vocab.json, because vocab.json has no pre-tokenization rule.
    write_text(path_of("vocab.json"), "{\"a\": 0}");
    Tokenizer *t = open_good(path_of(""));
    assert_int_equal(tokenizer_bos(t), 0);
    assert_true(tokenizer_vocab(t) > 300);
    tokenizer_close(t);
    write_text(path_of("tokenizer_config.json"),
               "{\"model_max_length\": 1000000000000000019884624838656, \"add_bos_token\": false}");
    t = open_good(path_of("tokenizer.json"));
    assert_int_equal(tokenizer_bos(t), -1);
    tokenizer_close(t);
    write_text(path_of("tokenizer_config.json"),
               "{\"add_bos_token\": true, \"bos_token\": {\"content\": \"<|end_of_text|>\"}}");
    t = open_good(path_of("tokenizer.json"));
    assert_int_equal(tokenizer_bos(t), 1);
    tokenizer_close(t);
}

static void write_json_of(const char *model, const char *name) {
    JsonText json;
    Tokenizer *t = open_good(model);
    assert_true(tokenizer_is_sentencepiece(t));
    tokenizer_write_json(t, &json);
    write_file(path_of(name), json.text, json.size);
    json_text_free(&json);
    tokenizer_close(t);
}

// A tokenizer.json that the program derives from a tokenizer.model has the same tokens and ids.
UNIT_TEST(a_derived_tokenizer_json_has_the_same_ids) {
    static const char *const names[] = {"llama", "unknown"};
    const size_t size = read_into(FOLDER "texts.bin", texts);
    for (size_t k = 0; k < 2; k++) {
        const char *path = formatted(FOLDER "%s.model", names[k]);
        write_json_of(path, "made.json");
        Tokenizer *model = open_good(path), *json = open_good(path_of("made.json"));
        assert_false(tokenizer_is_sentencepiece(json));
        assert_int_equal(tokenizer_vocab(json), tokenizer_vocab(model));
        assert_int_equal(tokenizer_bos(json), tokenizer_bos(model));
        assert_int_equal(tokenizer_eos(json), tokenizer_eos(model));
        assert_int_equal(tokenizer_unknown(json), tokenizer_unknown(model));
        assert_int_equal(tokenizer_adds_space(json), tokenizer_adds_space(model));
        for (int id = 0; id < tokenizer_vocab(model); id++) {
            char a[256], b[256];
            const size_t length = tokenizer_decode(model, id, a, sizeof a);
            assert_int_equal(tokenizer_decode(json, id, b, sizeof b), length);
            assert_memory_equal(a, b, length);
        }
        path = formatted(FOLDER "%s.ids", names[k]);
        assert_true(read_into(path, ids_text) > 0);
        const char *line = ids_text;
        for (size_t at = 0; at <= size; at += strlen(texts + at) + 1)
            line = expect_line(json, names[k], texts + at, line);
        tokenizer_close(model);
        tokenizer_close(json);
    }
}

// In a folder with both files, tokenizer.model is read if tokenizer.json was derived from it; otherwise tokenizer.json
// is read. A path to one of the two files reads that file.
UNIT_TEST(choice_between_tokenizer_json_and_tokenizer_model) {
    const size_t size = read_into(FOLDER "llama.model", file_text);
    write_json_of(FOLDER "llama.model", "tokenizer.json");
    const char *const ways[] = {path_of(""), path_of("tokenizer.json")};
    for (int both = 0; both < 2; both++) {
        if (both) write_file(path_of("tokenizer.model"), file_text, size);
        for (int i = 0; i < 2; i++) {
            Tokenizer *t = open_good(ways[i]);
            assert_int_equal(tokenizer_is_sentencepiece(t), both && i == 0);
            tokenizer_close(t);
        }
    }
    read_into(FOLDER "legacy.json", file_text);
    write_text(path_of("tokenizer.json"), file_text);
    Tokenizer *t = open_good(ways[0]);
    assert_false(tokenizer_is_sentencepiece(t));
    tokenizer_close(t);
}

static void expect_refused(const char *name, const char *text, size_t size, const char *word) {
    write_file(path_of(name), text, size);
    Tokenizer *t = tokenizer_open(path_of(name), &err);
    if (t) fail_msg("'%s' expected to be refused", word);
    assert_int_equal(err.code, EXIT_DATA);
    assert_null(strchr(err.text, '\n'));
    if (!strstr(err.text, word) || !strstr(err.text, name)) fail_msg("'%s' expected in: %s", word, err.text);
}

#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define BYTES "\"pre_tokenizer\":{\"type\":\"ByteLevel\"}"
#define MODEL(more) "{\"model\":{" VOCAB more "}," BYTES "}"

UNIT_TEST(unsupported_tokenizer_json_is_refused) {
    static const char *const cases[][2] = {
        {"{\"model\":{\"type\":\"Unigram\"}}", "its model Unigram is not supported"},
        {"{\"model\":{}," BYTES "}", "no vocab"},
        {"{\"model\":{\"vocab\":{}}," BYTES "}", "no vocab"},
        {"{\"model\":{\"vocab\":{\"a\":\"0\"}}," BYTES "}", "'a' has no id"},
        {"{\"model\":{\"vocab\":{\"a\":1048576}}," BYTES "}", "'a' has no id"},
        {"{\"model\":{\"vocab\":{\"a\":1,\"b\":1}}," BYTES "}", "two tokens have the id 1"},
        {MODEL(""), "no merges"},
        {MODEL(",\"merges\":[\"a b\",\"b\"]"), "merge 2"},
        {MODEL(",\"merges\":[\"a c\"]"), "merge 1"},
        {MODEL(",\"merges\":[[\"a\",\"b\",\"c\"]]"), "merge 1"},
        {MODEL(",\"merges\":[[\"a\",7]]"), "merge 1"},
        {MODEL(",\"merges\":[],\"dropout\":0.1"), "dropout"},
        {MODEL(",\"merges\":[],\"end_of_word_suffix\":\"</w>\""), "end_of_word_suffix"},
        {"{\"model\":{" VOCAB "}}", "either ByteLevel"},
        {"{\"model\":{" VOCAB "},\"pre_tokenizer\":{\"type\":\"Whitespace\"}}", "pre_tokenizer 'Whitespace'"},
        {"{\"model\":{" VOCAB "},\"pre_tokenizer\":7}", "pre_tokenizer"},
        {"{\"model\":{" VOCAB "},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x\"},"
         "\"behavior\":\"Isolated\"}}",
         "pre_tokenizer 'Split'"},
        {"{\"normalizer\":{\"type\":\"NFKC\"},\"model\":{" VOCAB "}," BYTES "}", "normalizer 'NFKC'"},
        {"{\"added_tokens\":[{\"id\":5}],\"model\":{" VOCAB "}," BYTES "}", "no content"},
        {"{\"added_tokens\":[{\"id\":2,\"content\":\"x\"}],\"model\":{" VOCAB "}," BYTES "}",
         "two tokens have the id 2"},
        {"{\"added_tokens\":[{\"id\":3,\"content\":\"x\",\"lstrip\":true}],\"model\":{" VOCAB "}," BYTES "}",
         "lstrip"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused("t.json", cases[i][0], strlen(cases[i][0]), cases[i][1]);
    expect_refused("ranks", "IQ== 0\nIg== 1\n", 14, "tiktoken file");
}

#define KIND(vocab, merges, added)                                                                                     \
    "{\"model\":{\"vocab\":{" vocab "},\"merges\":[" merges "]},\"added_tokens\":[" added "]," BYTES "}"
#define ADDED(id, content, special) "{\"id\":" #id ",\"content\":\"" content "\",\"special\":" #special "}"
#define AB "\"a\":0,\"b\":1,\"ab\":2,\"ba\":3"
#define TWO "\"a b\",\"b a\""

// tokenizer_differing() counts the tokens that differ between a model's vocabulary and another one, except for harmless
// differences.
UNIT_TEST(differing_tokens_of_two_vocabularies_are_counted) {
    static const char own[] = KIND(AB, TWO, ADDED(4, "<4>", true) "," ADDED(5, "<5>", false));
    static const struct {
        const char *text;
        int differing;
        bool merges;
    } cases[] = {{own, 0, true},
                 {KIND(AB, TWO, ""), 0, true},
                 // It is harmless if one of the vocabularies gives reserved token 4 a name.
                 {KIND(AB, TWO, ADDED(4, "<call>", true)), 0, true},
                 {KIND(AB, TWO, ADDED(4, "<think>", false)), 0, true},
                 {KIND(AB, TWO, ADDED(4, "<4>", true) "," ADDED(5, "<5>", false) "," ADDED(6, "<6>", true)), 0, true},
                 {KIND(AB, TWO, ADDED(4, "<4>", true) "," ADDED(6, "<6>", true)), 0, true},
                 {KIND(AB, TWO, ADDED(5, "<call>", true)), 1, true}, // text token that became special
                 {KIND(AB, TWO, ADDED(5, "<call>", false)), 1, true},
                 {KIND("\"b\":0,\"a\":1,\"ab\":2,\"ba\":3", TWO, ""), 2, false},
                 {KIND("\"a\":0,\"b\":1,\"ab\":2,\"aa\":3", "\"a b\"", ""), 1, false},
                 {KIND(AB, "\"a b\"", ""), 0, false},
                 {KIND(AB, "\"b a\",\"a b\"", ""), 0, false}};
    write_text(path_of("own.json"), own);
    Tokenizer *t = open_good(path_of("own.json"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(path_of("other.json"), cases[i].text);
        Tokenizer *other = open_good(path_of("other.json"));
        assert_int_equal(tokenizer_differing(t, other), cases[i].differing);
        assert_int_equal(tokenizer_same_merges(t, other), cases[i].merges);
        assert_int_equal(tokenizer_same_merges(other, t), cases[i].merges);
        tokenizer_close(other);
    }
    tokenizer_close(t);
    // The two tokenizer files of one model give the same vocabulary.
    t = open_good(FOLDER "llama.model");
    Tokenizer *other = open_good(FOLDER "legacy.json");
    assert_int_equal(tokenizer_differing(t, other), 0);
    assert_true(tokenizer_same_merges(t, other));
    tokenizer_close(other);
    tokenizer_close(t);
}

UNIT_TEST(damaged_or_unsupported_tokenizer_models_are_refused) {
    const size_t size = read_into(FOLDER "llama.model", file_text);
    const size_t cuts[] = {2, 5, 20, size / 2};
    for (size_t i = 0; i < 4; i++) expect_refused("t.model", file_text, cuts[i], "damaged");
    static const char unigram[] = "\n\x03\n\x01"
                                  "a";
    expect_refused("t.model", unigram, 5, "model type 1 is not supported, only BPE");
    static const char spaces[] = "\n\x03\n\x01"
                                 "a\x12\x02\x18\x02"; // remove_extra_whitespaces is absent: true
    expect_refused("t.model", spaces, 9, "normalization is not supported");
    static const char unused[] = "\n\x05\n\x01"
                                 "a\x18\x05\x12\x02\x18\x02\x1a\x02\x20";
    expect_refused("t.model", unused, 15, "UNUSED");
    static const char byte[] = "\n\x05\n\x01"
                               "a\x18\x06\x12\x02\x18\x02\x1a\x02\x20";
    expect_refused("t.model", byte, 15, "no name like <0x0A>");
    static const char infinite[] = "\n\x08\n\x01"
                                   "a\x15\0\0\x80\x7f\x12\x02\x18\x02\x1a\x02\x20";
    expect_refused("t.model", infinite, 18, "not finite");
}

UNIT_TEST(nfc_normalization_follows_unicode) {
    static const char *const cases[][2] = {{"e\xcc\x81", "\xc3\xa9"},
                                           {"\xe2\x84\xab", "\xc3\x85"},
                                           {"\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"},
                                           {"q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87"},
                                           {"\xcd\x84", "\xcc\x88\xcc\x81"},
                                           {"\xff\xcc\x81", "\xff\xcc\x81"},
                                           {"abc\xc3\xa9", "abc\xc3\xa9"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t length;
        char *form = unicode_nfc(cases[i][0], strlen(cases[i][0]), &length);
        assert_int_equal(length, strlen(cases[i][1]));
        assert_memory_equal(form, cases[i][1], length);
        free(form);
    }
}

RUN_TESTS(test_folder_make, test_folder_remove, test_folder_empty)
