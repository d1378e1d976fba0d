// Fuzz target for a model's config.json (coat/save/hf.c, coat/io/json.c). The input is the file's text.
#include "dev/fuzz/fuzz.h"

#include "coat/config/shapes.h"
#include "coat/save/hf.h"

// Parses the text as the config.json of a vision tower's folder.
static void parse_tower(const uint8_t *data, size_t size) {
    ModelShape shape;
    Error err;
    const VisionShape *v = &shape.vision;
    if (!hf_parse_tower((const char *)data, size, "config.json", &shape, &err)) {
        fuzz_refused(&err, "config.json");
        return;
    }
    fuzz_check(v->layers >= 1 && v->layers <= v->file_layers && v->channels >= 1 && v->channels % v->heads == 0);
    fuzz_check(v->patch_size >= 1 && v->patch_size <= v->image_size && v->ffn >= 1 && v->norm_eps > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ModelShape shape, again;
    Error err;
    parse_tower(data, size);
    if (!hf_parse_config((const char *)data, size, "config.json", &shape, &err)) {
        fuzz_refused(&err, "config.json");
        return 0;
    }
    fuzz_check(shape.layers >= 1 && shape.heads >= 1 && shape.ffn >= 1 && shape.positions >= 1);
    fuzz_check(shape.channels >= 1 && shape.head_dim >= 1 && shape.kv_heads >= 1 && shape.heads % shape.kv_heads == 0);
    fuzz_check(shape_architecture(&shape) != ARCHITECTURE_COUNT);
    fuzz_check(shape.rope.factor > 0 && shape.rope_theta > 0 && shape.clip_qkv >= 0);
    fuzz_check(shape.vocab >= 1 && shape.vocab_padded >= shape.vocab);
    fuzz_check(shape.norm_eps > 0 && shape.norm_eps < 1);
    // Writing the parsed model shape as config.json and parsing that text must return an equal shape.
    JsonText text;
    fuzz_check(hf_config_text(&text, &shape, DTYPE_F32, &err));
    fuzz_check(hf_parse_config(text.text, text.size, "again", &again, &err));
    fuzz_check(memcmp(&shape, &again, sizeof shape) == 0);
    json_text_free(&text);
    return 0;
}
