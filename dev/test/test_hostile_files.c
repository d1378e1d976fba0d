// Tests that hostile files cannot corrupt an error message, access files outside their folder, cause huge allocations,
// or overflow numbers. The fuzz targets in dev/fuzz search for more such files.
#include "dev/test/test_folder.h"

#include <xxhash.h>

#include "coat/log/log.h"
#include "coat/log/terminal.h"
#include "coat/save/hf.h"
#include "coat/save/manifest.h"
#include "coat/save/run_state.h"
#include "dev/tools/loss_svg.h"

static Error err; // error of the last failed call

UNIT_TEST(file_contents_cannot_add_lines_to_an_error) {
    ModelShape shape;
    const char *config = "{\"model_type\": \"a\\nerror: \\u001b[31m\\u007f\"}";
    assert_false(hf_parse_config(config, strlen(config), "config.json", &shape, &err));
    assert_says(&err, "model_type is 'a?error: ?[31m?'");
    const char *header = "{\"a\\r\\nb\":{\"dtype\":\"U8\\t\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    SafeFile file;
    assert_false(safetensors_parse(&file, "x.safetensors", header, strlen(header), 1, &err));
    assert_says(&err, "tensor 'a??b' has type U8?,");
}

// Texts with terminal control sequences (as UTF-8 characters and as invalid bytes), and the text that must be printed.
static const struct {
    const char *text, *shown;
} terminal_texts[] = {
    {"\33[31mred", "?[31mred"},           {"\302\23331mred", "?31mred"}, // U+009B also begins a control sequence
    {"\302\200\302\220\302\237", "???"},  {"\23331m\204\235", "?31m??"}, {"a\177b\r", "a?b?"},
    {"\302\240 é € 😀", "\302\240 é € 😀"}, {"\351t\351", "\351t\351"}, // invalid UTF-8: bytes in Latin-1
    {"\340\202\233[", "\340??["},                                     // an overlong UTF-8 encoding of U+009B
    {"cut \360\237", "cut \360?"}};

UNIT_TEST(terminal_commands_in_texts_are_not_printed) {
    char text[64], shown[256];
    for (size_t i = 0; i < sizeof terminal_texts / sizeof *terminal_texts; i++) {
        snprintf(text, sizeof text, "%s", terminal_texts[i].text);
        assert_int_equal(text_printable(text, strlen(text), ""), strlen(terminal_texts[i].shown));
        assert_string_equal(text, terminal_texts[i].shown);
        assert_false(error_set(&err, EXIT_DATA, "%s", terminal_texts[i].text));
        assert_string_equal(err.text, terminal_texts[i].shown);
        FILE *out = fmemopen(shown, sizeof shown, "w");
        print_labelled(out, "note: ", terminal_texts[i].text);
        print_item(out, "from", terminal_texts[i].text);
        fclose(out);
        assert_string_equal(shown,
                            formatted("note: %s\nfrom        %s\n", terminal_texts[i].shown, terminal_texts[i].shown));
    }
    char kept[] = "a\tb\n\0\x1b";
    assert_int_equal(text_printable(kept, sizeof kept - 1, "\n\t"), 6);
    assert_memory_equal(kept, "a\tb\n??", 6);
}

// Tests that JSON is valid even if a text, such as the name of a folder, is not valid UTF-8.
UNIT_TEST(json_strings_are_valid_utf_8) {
    for (size_t i = 0; i < sizeof terminal_texts / sizeof *terminal_texts; i++) {
        const char *text = terminal_texts[i].text;
        JsonText t = {0};
        json_text_open(&t, NULL, '{');
        json_text_string(&t, text, text);
        json_text_close(&t, '}');
        json_t *object = json_parse_object(t.text, t.size, "text", &err);
        if (!object) fail_msg("%s", err.text);
        assert_string_equal(json_string_value(json_object_iter_value(json_object_iter(object))),
                            json_object_iter_key(json_object_iter(object)));
        json_t *same = json_string(text); // NULL if the text is not valid UTF-8
        if (same) assert_string_equal(json_object_iter_key(json_object_iter(object)), text);
        json_decref(same);
        json_decref(object);
        json_text_free(&t);
    }
}

UNIT_TEST(lines_of_any_length_are_read) {
    char line[8];
    // Lines for a buffer of 8 bytes: one that just fits, a longer one, an empty one, one with a 0 byte, a last line.
    write_file(path_of("lines"), "1234567\n12345678\n\na\0b\nend", 25);
    FILE *file = file_open_lines(path_of("lines"), &err);
    assert_non_null(file);
    assert_int_equal(file_read_line(file, line, sizeof line), 8);
    assert_memory_equal(line, "1234567\n", 8);
    assert_int_equal(file_read_line(file, line, sizeof line), 1);
    assert_int_equal(file_read_line(file, line, sizeof line), 4);
    assert_memory_equal(line, "a\0b\n", 4);
    assert_int_equal(file_read_line(file, line, sizeof line), 3);
    assert_memory_equal(line, "end", 3);
    assert_int_equal(file_read_line(file, line, sizeof line), 0);
    fclose(file);
    write_text(path_of("lines"), "123456789"); // a line that is too long and has no newline
    file = file_open_lines(path_of("lines"), &err);
    assert_non_null(file);
    assert_int_equal(file_read_line(file, line, sizeof line), 0);
    fclose(file);
    assert_null(file_open_lines("/dev/zero", &err));
    assert_says(&err, "/dev/zero is not a regular file");
}

// Tests that a safetensors header of more than 32 MiB is refused, even if the file contains the whole header.
UNIT_TEST(a_safetensors_header_of_more_than_32_mib_is_refused) {
    SafeFile file;
    uint64_t bytes = SAFETENSORS_MAX_HEADER + 1;
    write_file(path_of("long.safetensors"), &bytes, sizeof bytes);
    assert_int_equal(truncate(path_of("long.safetensors"), (off_t)(sizeof bytes + bytes)), 0);
    assert_false(safetensors_open(&file, path_of("long.safetensors"), &err));
    assert_says(&err, "long.safetensors has a header of 33554433 bytes");
}

// Tests log.jsonl with a line of 1 MiB, and log.jsonl as a link to a device.
UNIT_TEST(log_jsonl_with_a_long_line_or_as_a_device) {
    static Config config;
    const size_t long_line = (size_t)1 << 20;
    config_defaults(&config);
    config.quiet = true;
    snprintf(config.out, sizeof config.out, "%s", path_of("out"));
    assert_int_equal(mkdir(config.out, 0700), 0);
    char *text = (char *)xmalloc(long_line + 200);
    int used = sprintf(text, "{\"step\":1,\"loss\":2}\n{\"step\":1,\"x\":\"");
    memset(text + used, 'a', long_line);
    strcpy(text + (size_t)used + long_line, "\"}\n{\"step\":2,\"step\":1}\n{\"step\":-1}\n{\"step\":2,\"loss\":1}\n");
    write_text(path_of("out/log.jsonl"), text);
    free(text);
    assert_true(plot_loss_svg(path_of("out/log.jsonl"), path_of("loss.svg"), "", NULL, 0, &err));
    // The plot's temporary file must not be written through a symbolic link.
    write_text(path_of("precious"), "mine");
    assert_int_equal(symlink(path_of("precious"), path_of("loss.svg.tmp")), 0);
    assert_true(plot_loss_svg(path_of("out/log.jsonl"), path_of("loss.svg"), "", NULL, 0, &err));
    Log *log = log_open(&config, 0, 9, 3, 0, &err);
    assert_non_null(log);
    log_close(log);
    assert_int_equal(strlen(contents(path_of("out/log.jsonl"))),
                     long_line + strlen("{\"step\":1,\"loss\":2}\n{\"step\":1,\"x\":\"\"}\n{\"step\":2,\"step\":1}\n"
                                        "{\"step\":-1}\n{\"step\":2,\"loss\":1}\n"));
    assert_string_equal(contents(path_of("precious")), "mine");
    unlink(path_of("out/log.jsonl"));
    assert_int_equal(symlink("/dev/zero", path_of("out/log.jsonl")), 0);
    assert_null(log_open(&config, 0, 9, 3, 0, &err));
    assert_says(&err, "log.jsonl is a link");
    assert_false(plot_loss_svg(path_of("out/log.jsonl"), path_of("loss.svg"), "", NULL, 0, &err));
    assert_says(&err, "log.jsonl is not a regular file");
}

// Writes a manifest.json that lists the file `name` with the contents "{}".
static void list_in_manifest(const char *name) {
    JsonText t;
    manifest_begin(&t);
    manifest_add(&t, name, 2, XXH3_64bits("{}", 2), NULL);
    manifest_finish(&t);
    write_file(path_of("checkpoint/manifest.json"), t.text, t.size);
    json_text_free(&t);
}

static void refuse_listed(const char *name, const char *says) {
    Manifest manifest;
    list_in_manifest(name);
    if (!manifest_open(&manifest, path_of("checkpoint"), &err)) fail_msg("%s", err.text);
    assert_false(manifest_check_all(&manifest, false, &err));
    assert_says(&err, says);
    assert_false(manifest_check_all(&manifest, true, &err));
    assert_says(&err, says);
    assert_false(manifest_check_file(&manifest, name, &err));
    assert_says(&err, "checkpoint");
    manifest_close(&manifest);
}

UNIT_TEST(a_manifest_cannot_name_files_outside_its_folder) {
    Manifest manifest;
    assert_int_equal(mkdir(path_of("checkpoint"), 0700), 0);
    write_text(path_of("outside.json"), "{}");
    write_text(path_of("checkpoint/inside.json"), "{}");
    assert_int_equal(symlink(path_of("outside.json"), path_of("checkpoint/link.json")), 0);
    assert_int_equal(symlink("nowhere", path_of("checkpoint/broken.json")), 0);
    list_in_manifest("inside.json");
    assert_true(manifest_open(&manifest, path_of("checkpoint"), &err));
    assert_true(manifest_check_all(&manifest, true, &err));
    manifest_close(&manifest);
    refuse_listed("../outside.json", "lists '../outside.json', which is not the name of a file in this folder");
    refuse_listed(path_of("outside.json"), "which is not the name of a file in this folder");
    refuse_listed("..", "which is not the name of a file in this folder");
    refuse_listed("", "which is not the name of a file in this folder");
    refuse_listed("link.json", "link.json is a link");
    refuse_listed("broken.json", "broken.json is a link");
    refuse_listed("missing.json", "missing.json");
    assert_int_equal(rename(path_of("checkpoint/manifest.json"), path_of("elsewhere.json")), 0);
    assert_int_equal(symlink("../elsewhere.json", path_of("checkpoint/manifest.json")), 0);
    assert_false(manifest_open(&manifest, path_of("checkpoint"), &err));
    assert_says(&err, "manifest.json is a link");
}

// Tests that a checkpoint is refused if a counter exceeds 2^53, because it could overflow when the run continues.
UNIT_TEST(counters_beyond_2_to_53_are_refused) {
    static const char *const keys[] = {"step", "sequences", "pass", "tokens", "t", "skipped", "skipped_run"};
    static Config config;
    Exec exec;
    RunState run, got;
    config_defaults(&config);
    memset(&exec, 0, sizeof exec);
    exec.ranks = 1;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        for (int beyond = 0; beyond < 2; beyond++) {
            JsonText t;
            char number[64];
            memset(&run, 0, sizeof run);
            run_state_text(&t, &run, &config, 1);
            const char *zero = formatted("\"%s\": 0,", keys[i]);
            snprintf(number, sizeof number, "\"%s\": %lld,", keys[i], ((long long)1 << 53) + beyond);
            char *at = strstr(t.text, zero), *text = (char *)xmalloc(t.size + sizeof number);
            assert_non_null(at);
            sprintf(text, "%.*s%s%s", (int)(at - t.text), t.text, number, at + strlen(zero));
            write_text(path_of("state.json"), text);
            bool good = run_state_read(path_of("state.json"), &got, &config, &exec, &err);
            assert_true(good == !beyond);
            if (beyond) assert_says(&err, keys[i]);
            free(text);
            json_text_free(&t);
        }
    }
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
