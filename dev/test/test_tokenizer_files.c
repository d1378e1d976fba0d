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
    char path[TEST_PATH];
    size_t size;
    snprintf(path, sizeof path, "%s/chat_template.jinja", path_of(folder));
    assert_int_equal(path_is_file(path), expected != NULL);
    if (!expected) return;
    char *text = read_file(path, &size);
    assert_int_equal(size, strlen(expected));
    assert_memory_equal(text, expected, size);
    free(text);
}

// A checkpoint's tokenizer files are those of the tokenizer that was opened when the run started, because the model's
// folder may have changed since.
UNIT_TEST(checkpoints_copy_the_tokenizer_opened_at_the_start) {
    assert_int_equal(mkdir(path_of("other"), 0777), 0);
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
    assert_int_equal(mkdir(path_of("foreign"), 0777), 0);
    write_text(path_of("foreign/chat_template.jinja"), "{{ messages }}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[16];
        snprintf(name, sizeof name, "second-%zu", i);
        copy("alpaca", name, cases[i].format);
        expect_template(name, cases[i].expected);
        snprintf(name, sizeof name, "other-%zu", i);
        copy("foreign", name, cases[i].format);
        expect_template(name, "{{ messages }}");
    }
    assert_int_equal(mkdir(path_of("in-config"), 0777), 0);
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
        char path[TEST_PATH], from[TEST_PATH];
        size_t size;
        snprintf(path, sizeof path, "dev/test/tokenizers/%s.json", cases[i].file);
        tokenizer = tokenizer_open(path, &err);
        assert_non_null(tokenizer);
        char *json = read_file(path, &size);
        snprintf(from, sizeof from, "from-%s", cases[i].file);
        assert_int_equal(mkdir(path_of(from), 0777), 0);
        snprintf(path, sizeof path, "%s/tokenizer.json", path_of(from));
        write_file(path, json, size);
        free(json);
        copy(from, cases[i].file, PROMPT_FORMAT_NONE);
        snprintf(path, sizeof path, "%s/tokenizer_config.json", path_of(cases[i].file));
        char *text = read_file(path, &size);
        assert_int_equal(strstr(text, "\"add_prefix_space\": true") != NULL, cases[i].prefixed);
        free(text);
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
    size_t size, made_size;
    Tokenizer *const qwen = tokenizer;
    tokenizer = tokenizer_open("dev/test/tokenizers/llama.model", &err);
    assert_non_null(tokenizer);
    char *model = read_file("dev/test/tokenizers/llama.model", &size);
    assert_int_equal(mkdir(path_of("given"), 0777), 0);
    write_file(path_of("given/tokenizer.model"), model, size);
    free(model);
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        char folder[16], path[TEST_PATH];
        snprintf(folder, sizeof folder, "made-%zu", i);
        write_text(path_of("given/tokenizer_config.json"), configs[i][0]);
        copy("given", folder, PROMPT_FORMAT_NONE);
        snprintf(path, sizeof path, "%s/tokenizer_config.json", path_of(folder));
        char *text = read_file(path, &size);
        assert_string_equal(text, configs[i][1]);
        free(text);
    }
    char *made = read_file(path_of("made-0/tokenizer.json"), &made_size);
    copy("made-0", "again", PROMPT_FORMAT_NONE);
    char *again = read_file(path_of("again/tokenizer.json"), &size);
    assert_int_equal(size, made_size);
    assert_memory_equal(again, made, size);
    free(again);
    free(made);
    write_text(path_of("given/tokenizer.json"), "{}"); // An existing tokenizer.json is not replaced.
    copy("given", "own", PROMPT_FORMAT_NONE);
    made = read_file(path_of("own/tokenizer.json"), &size);
    assert_string_equal(made, "{}");
    free(made);
    tokenizer_close(tokenizer);
    tokenizer = qwen;
}

static int occurrences(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)) != NULL; text++) count++;
    return count;
}

// A vision-language model's image token is added to tokenizer.json once if its id follows the vocabulary's last. The
// files of other tokenizers do not change.
UNIT_TEST(the_image_token_is_added_to_tokenizer_json) {
    Tokenizer *const qwen = tokenizer;
    const char *const names[] = {"tokenizer.json", "tokenizer.model"}, *const sources[] = {
                                                                           "dev/test/tokenizers/qwen.json",
                                                                           "dev/test/tokenizers/llama.model"};
    for (int i = 0; i < 2; i++) {
        size_t size, copied;
        char given[TEST_PATH], path[TEST_PATH + 32];
        snprintf(given, sizeof given, "%s", path_of(i ? "spm" : "json"));
        assert_int_equal(mkdir(given, 0777), 0);
        char *text = read_file(sources[i], &size);
        snprintf(path, sizeof path, "%s/%s", given, names[i]);
        write_file(path, text, size);
        tokenizer = tokenizer_open(given, &err);
        assert_non_null(tokenizer);
        image_token = tokenizer_vocab(tokenizer);
        copy(i ? "spm" : "json", i ? "spm-1" : "json-1", PROMPT_FORMAT_NONE);
        // copies a file that has <image> already
        copy(i ? "spm-1" : "json-1", i ? "spm-2" : "json-2", PROMPT_FORMAT_NONE);
        char *json = read_file(path_of(i ? "spm-2/tokenizer.json" : "json-2/tokenizer.json"), &copied), entry[64];
        snprintf(entry, sizeof entry, "{\"id\":%d,\"content\":\"<image>\"", image_token);
        assert_int_equal(occurrences(json, entry), 1);
        assert_int_equal(occurrences(json, "<image>"), 1);
        free(json);
        Tokenizer *read = tokenizer_open(path_of(i ? "spm-2" : "json-2"), &err);
        if (!read) fail_msg("%s", err.text);
        if (i == 0)
            // spm-2 is read from its tokenizer.model, which has no <image>
            assert_int_equal(tokenizer_token(read, "<image>"), image_token);
        assert_int_equal(tokenizer_differing(read, tokenizer), 0);
        tokenizer_close(read);
        image_token = 3; // a token of the vocabulary
        copy(i ? "spm" : "json", i ? "spm-3" : "json-3", PROMPT_FORMAT_NONE);
        snprintf(path, sizeof path, "%s/%s", path_of(i ? "spm-3" : "json-3"), names[i]);
        char *same = read_file(path, &copied);
        assert_int_equal(copied, size);
        assert_memory_equal(same, text, size);
        free(same);
        free(text);
        tokenizer_close(tokenizer);
    }
    image_token = -1;
    tokenizer = qwen;
}

// The image token is also added if the source is the path of a tokenizer.json, or if that file has no added tokens.
UNIT_TEST(the_image_token_is_added_to_every_tokenizer_json) {
    size_t size;
    char *text = read_file("dev/test/tokenizers/qwen.json", &size);
    assert_int_equal(mkdir(path_of("plain"), 0777), 0);
    assert_int_equal(mkdir(path_of("empty"), 0777), 0);
    write_file(path_of("plain/tokenizer.json"), text, size);
    write_text(path_of("empty/tokenizer.json"), "{\"truncation\": null, \"added_tokens\": null}");
    free(text);
    image_token = tokenizer_vocab(tokenizer);
    const char *const sources[] = {"plain/tokenizer.json", "empty/tokenizer.json", "empty"};
    for (int i = 0; i < 3; i++) {
        char folder[16], path[TEST_PATH + 32];
        snprintf(folder, sizeof folder, "copied-%d", i);
        copy(sources[i], folder, PROMPT_FORMAT_NONE);
        snprintf(path, sizeof path, "%s/tokenizer.json", path_of(folder));
        char *json = read_file(path, &size);
        assert_int_equal(occurrences(json, "<image>"), 1);
        free(json);
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
