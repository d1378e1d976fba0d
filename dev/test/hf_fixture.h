// Fixture for tests of Hugging Face model folders: parses and writes config.json, and asserts that weights are refused.
#pragma once
#include "dev/test/checkpoint_run.h"

#include "coat/save/hf.h"

static Error err; // error of the last failed call

static inline bool parse(const char *text, ModelShape *shape) {
    return hf_parse_config(text, strlen(text), "config.json", shape, &err);
}

static inline ModelShape parsed(const char *text) {
    ModelShape shape;
    if (!parse(text, &shape)) fail_msg("%s\n%s", text, err.text);
    return shape;
}

// Writes the shape as config.json text and asserts that reading the text gives an equal shape. Returns the text.
static inline JsonText written_and_read(const ModelShape *shape) {
    JsonText t;
    if (!hf_config_text(&t, shape, DTYPE_BF16, &err)) fail_msg("%s", err.text);
    const ModelShape read = parsed(t.text);
    assert_memory_equal(shape, &read, sizeof read);
    return t;
}

static inline void expect_round_trip(const ModelShape *shape) {
    JsonText t = written_and_read(shape);
    json_text_free(&t);
}

// Writes folder/config.json with this shape.
static inline void make_config(const char *folder, const ModelShape *shape) {
    JsonText t;
    const char *path = in(folder, "config.json");
    assert_true(hf_config_text(&t, shape, DTYPE_F32, &err));
    write_file(path, t.text, t.size);
    json_text_free(&t);
}

// Asserts that loading weights from the path fails with EXIT_DATA and an error that contains `says`.
static inline void assert_refused(const char *path, Run *run, const char *says) {
    if (checkpoint_load_weights(path, &run->arena, &run->exec, &err)) fail_msg("accepted; expected '%s'", says);
    assert_error(&err, EXIT_DATA, says);
}
