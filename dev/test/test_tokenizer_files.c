// Tests of the vocabulary's files in a checkpoint (coat/save/tokenizer_files.h): what is written beside the copies.
#include "dev/test/test_folder.h"

#include "coat/save/manifest.h"
#include "coat/save/tokenizer_files.h"
#include "coat/text/prompt_format.h"

static Tokenizer *tokenizer;

// Copies the folder of one name to that of another.
static void copy(const char *source, const char *folder, PromptFormat format) {
    Error err;
    JsonText manifest;
    manifest_begin(&manifest);
    assert_int_equal(mkdir(path_of(folder), 0777), 0);
    if (!tokenizer_files_copy(path_of(folder), path_of(source), tokenizer, format, &manifest, &err))
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

// By what was opened when the run began: files may be others by then, and large ones are not read again for each save.
static void test_opened_once(void **state) {
    (void)state;
    assert_int_equal(mkdir(path_of("other"), 0777), 0);
    write_text(path_of("other/tokenizer.json"), "{}");
    copy("other", "saved", PROMPT_FORMAT_PLAIN);
    char *expected = prompt_template(tokenizer, PROMPT_FORMAT_PLAIN);
    expect_template("saved", expected);
    free(expected);
    assert_true(path_is_file(path_of("saved/tokenizer_config.json")));
}

static int open_all(void **state) {
    Error err;
    tokenizer = tokenizer_open("dev/test/tokenizers/qwen.json", &err);
    return tokenizer ? test_folder_make(state) : -1;
}

static int close_all(void **state) {
    tokenizer_close(tokenizer);
    return test_folder_remove(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_opened_once, test_folder_empty),
    };
    return cmocka_run_group_tests_name("tokenizer files", tests, open_all, close_all);
}
