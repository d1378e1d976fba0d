// Tests of the tokenizer files in a checkpoint (coat/save/tokenizer_files.h).
#include "dev/test/test_folder.h"

#include "coat/save/manifest.h"
#include "coat/save/tokenizer_files.h"
#include "coat/text/prompt_format.h"

static Error err; // error of the last failed call

static Tokenizer *tokenizer;
static int image_token = -1; // argument of copy()

// Copies the tokenizer files of the folder `source` into the new folder `folder`.
static void copy(const char *source, const char *folder, PromptFormat format) {
    JsonText manifest;
    manifest_begin(&manifest);
    assert_int_equal(mkdir(path_of(folder), 0777), 0);
    if (!tokenizer_files_copy(path_of(folder), path_of(source), tokenizer, format, image_token, &manifest, &err))
        fail_msg("%s", err.text);
    json_text_free(&manifest);
}

static void expect_template(const char *folder, const char *expected) {
    const char *path = in(path_of(folder), "chat_template.jinja");
    assert_int_equal(path_is_file(path), expected != NULL);
    if (expected) assert_string_equal(contents(path), expected);
}

// The chat template and tokenizer_config.json are made from the tokenizer that was opened when the run started, because
// the tokenizer.json in the model's folder may have changed since.
UNIT_TEST(template_and_config_are_made_from_the_opened_tokenizer) {
    write_text(path_of("other/tokenizer.json"), "{}");
    copy("other", "saved", PROMPT_FORMAT_PLAIN);
    char *expected = prompt_template(tokenizer, PROMPT_FORMAT_PLAIN);
    expect_template("saved", expected);
    free(expected);
    assert_true(path_is_file(path_of("saved/tokenizer_config.json")));
}

// A chat template that an earlier run wrote for another prompt format is replaced, or removed with --prompt-format
// none. It is kept with --prompt-format data. A template that no run has written is always kept.
UNIT_TEST(chat_templates_of_earlier_runs_are_replaced) {
    char *alpaca = prompt_template(tokenizer, PROMPT_FORMAT_ALPACA),
         *chatml = prompt_template(tokenizer, PROMPT_FORMAT_CHATML);
    assert_int_equal(mkdir(path_of("first"), 0777), 0);
    copy("first", "alpaca", PROMPT_FORMAT_ALPACA);
    const struct {
        PromptFormat format;
        const char *expected;
    } cases[] = {{PROMPT_FORMAT_ALPACA, alpaca},
                 {PROMPT_FORMAT_CHATML, chatml},
                 {PROMPT_FORMAT_NONE, NULL},
                 {PROMPT_FORMAT_DATA, alpaca}};
    write_text(path_of("foreign/chat_template.jinja"), "{{ messages }}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *second = formatted("second-%zu", i), *other = formatted("other-%zu", i);
        copy("alpaca", second, cases[i].format);
        expect_template(second, cases[i].expected);
        copy("foreign", other, cases[i].format);
        expect_template(other, "{{ messages }}");
    }
    write_text(path_of("in-config/tokenizer_config.json"),
               "{\"model_max_length\": 1000000000000000019884624838656, \"chat_template\": \"{{ messages }}\"}");
    copy("in-config", "kept", PROMPT_FORMAT_ALPACA);
    expect_template("kept", NULL);
    free(alpaca);
    free(chatml);
}

// If a byte-level tokenizer prepends a space, tokenizer_config.json says so, because transformers does not by default.
UNIT_TEST(a_prefix_space_is_written_to_tokenizer_config) {
    static const struct {
        const char *file;
        bool prefixed;
    } cases[] = {{"prefix", true}, {"digits", false}};
    Tokenizer *const qwen = tokenizer;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = formatted("dev/test/tokenizers/%s.json", cases[i].file);
        const char *from = formatted("from-%s", cases[i].file);
        tokenizer = tokenizer_open(path, &err);
        assert_non_null(tokenizer);
        write_text(in(path_of(from), "tokenizer.json"), contents(path));
        copy(from, cases[i].file, PROMPT_FORMAT_NONE);
        const char *text = contents(in(path_of(cases[i].file), "tokenizer_config.json"));
        assert_int_equal(strstr(text, "\"add_prefix_space\": true") != NULL, cases[i].prefixed);
        tokenizer_close(tokenizer);
    }
    tokenizer = qwen;
}

// If a model only has a tokenizer.model, its checkpoint also gets a tokenizer.json. tokenizer_config.json then names
// the class that reads tokenizer.json, and keeps its other keys.
UNIT_TEST(a_tokenizer_model_gets_a_tokenizer_json) {
    static const char *const configs[][2] = {
        {"{\n  \"legacy\": true,\n  \"tokenizer_class\": \"LlamaTokenizer\"\n}\n",
         "{\n  \"legacy\": true,\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"}\n"},
        {"{\"tokenizer_class\": null, \"model_max_length\": 1000000000000000019884624838656}",
         "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"model_max_length\": 1000000000000000019884624838656}"},
        {"{\"add_bos_token\": false}", "{\"tokenizer_class\": \"PreTrainedTokenizerFast\",\"add_bos_token\": false}"},
        {"{ }", "{\"tokenizer_class\": \"PreTrainedTokenizerFast\" }"},
        {"", ""}};
    size_t size;
    Tokenizer *const qwen = tokenizer;
    tokenizer = tokenizer_open("dev/test/tokenizers/llama.model", &err);
    assert_non_null(tokenizer);
    char *model = read_file("dev/test/tokenizers/llama.model", &size);
    write_file(path_of("given/tokenizer.model"), model, size);
    free(model);
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const char *folder = formatted("made-%zu", i);
        write_text(path_of("given/tokenizer_config.json"), configs[i][0]);
        copy("given", folder, PROMPT_FORMAT_NONE);
        assert_string_equal(contents(in(path_of(folder), "tokenizer_config.json")), configs[i][1]);
    }
    copy("made-0", "again", PROMPT_FORMAT_NONE);
    assert_same_files(path_of("again/tokenizer.json"), path_of("made-0/tokenizer.json"));
    write_text(path_of("given/tokenizer.json"), "{}"); // An existing tokenizer.json is not replaced.
    copy("given", "own", PROMPT_FORMAT_NONE);
    assert_string_equal(contents(path_of("own/tokenizer.json")), "{}");
    tokenizer_close(tokenizer);
    tokenizer = qwen;
}

// A vision-language model's image token is added to tokenizer.json once if its id follows the vocabulary's last. If the
// id is in the vocabulary, the files do not change.
UNIT_TEST(the_image_token_is_added_to_tokenizer_json) {
    Tokenizer *const qwen = tokenizer;
    const char *const names[] = {"tokenizer.json", "tokenizer.model"}, *const sources[] = {
                                                                           "dev/test/tokenizers/qwen.json",
                                                                           "dev/test/tokenizers/llama.model"};
    for (int i = 0; i < 2; i++) {
        size_t size;
        const char *given = path_of(i ? "spm" : "json");
        assert_int_equal(mkdir(given, 0777), 0);
        char *text = read_file(sources[i], &size);
        write_file(in(given, names[i]), text, size);
        free(text);
        tokenizer = tokenizer_open(given, &err);
        assert_non_null(tokenizer);
        image_token = tokenizer_vocab(tokenizer);
        copy(i ? "spm" : "json", i ? "spm-1" : "json-1", PROMPT_FORMAT_NONE);
        // copies a file that has <image> already
        copy(i ? "spm-1" : "json-1", i ? "spm-2" : "json-2", PROMPT_FORMAT_NONE);
        const char *json = contents(path_of(i ? "spm-2/tokenizer.json" : "json-2/tokenizer.json"));
        assert_int_equal(occurrences(json, formatted("{\"id\":%d,\"content\":\"<image>\"", image_token)), 1);
        assert_int_equal(occurrences(json, "<image>"), 1);
        Tokenizer *read = tokenizer_open(path_of(i ? "spm-2" : "json-2"), &err);
        if (!read) fail_msg("%s", err.text);
        if (i == 0)
            // not checked for spm-2, which is read from its tokenizer.model, because that has no <image>
            assert_int_equal(tokenizer_token(read, "<image>"), image_token);
        assert_int_equal(tokenizer_differing(read, tokenizer), 0);
        tokenizer_close(read);
        image_token = 3; // a token of the vocabulary
        copy(i ? "spm" : "json", i ? "spm-3" : "json-3", PROMPT_FORMAT_NONE);
        assert_same_files(in(path_of(i ? "spm-3" : "json-3"), names[i]), sources[i]);
        tokenizer_close(tokenizer);
    }
    image_token = -1;
    tokenizer = qwen;
}

// The image token is also added if the source is the path of a tokenizer.json, or if that file has no added tokens.
UNIT_TEST(the_image_token_is_added_to_every_tokenizer_json) {
    write_text(path_of("plain/tokenizer.json"), contents("dev/test/tokenizers/qwen.json"));
    write_text(path_of("empty/tokenizer.json"), "{\"truncation\": null, \"added_tokens\": null}");
    image_token = tokenizer_vocab(tokenizer);
    const char *const sources[] = {"plain/tokenizer.json", "empty/tokenizer.json", "empty"};
    for (int i = 0; i < 3; i++) {
        const char *folder = formatted("copied-%d", i);
        copy(sources[i], folder, PROMPT_FORMAT_NONE);
        assert_int_equal(occurrences(contents(in(path_of(folder), "tokenizer.json")), "<image>"), 1);
    }
    image_token = -1;
}

static int open_all(void **state) {
    tokenizer = tokenizer_open("dev/test/tokenizers/qwen.json", &err);
    return tokenizer ? test_folder_make(state) : -1;
}

static int close_all(void **state) {
    tokenizer_close(tokenizer);
    return test_folder_remove(state);
}

RUN_TESTS(open_all, close_all, test_folder_empty)
