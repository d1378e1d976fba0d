// Tests of loading other programs' models (coat/save/hf.h, llmc_weights.h, checkpoint_load_weights()): shapes, types of
// values, order and number of files, and files that must be refused.
#include "dev/test/hf_fixture.h"

#include "coat/config/shapes.h"
#include "coat/save/hf_names.h"
#include "coat/save/llmc_weights.h"

#define VOCAB 130 // vocabulary size, padded to 256 rows in memory
#define POSITIONS 12
#define CHANNELS 8

static Run *run_with(PrecisionKind precision) {
    Run *run = run_open(RECIPE_COAT, 2);
    run->config.recipe.precision = precision;
    assert_true(gpt2_shape(&run->config.shape, 2, 2, CHANNELS, 0, VOCAB, POSITIONS, "test", &err));
    run->config.seq_len = 8;
    run_allocate(run);
    return run;
}

// ---------------------------------------------------------------- tests of config.json and model shapes

UNIT_TEST(config_json_of_every_architecture_is_parsed_and_written) {
    ModelShape s =
        parsed("{\"model_type\": \"gpt2\", \"activation_function\": \"gelu_new\", \"n_ctx\": 1024, \"n_embd\": 768, "
               "\"n_head\": 12, \"n_inner\": null, \"n_layer\": 12, \"n_positions\": 1024, \"vocab_size\": "
               "50257, \"layer_norm_epsilon\": 1e-05, \"attn_pdrop\": 0.1}");
    assert_true(s.layers == 12 && s.heads == 12 && s.kv_heads == 12 && s.head_dim == 64 && s.channels == 768);
    assert_true(s.ffn == 3072 && s.vocab == 50257 && s.vocab_padded == 50304 && s.positions == 1024);
    assert_true(s.norm_eps == 1e-5f && s.tied_head && s.biases);
    s.ffn = 1000;
    s.norm_eps = 1e-6f;
    JsonText t = written_and_read(&s);
    assert_non_null(strstr(t.text, "\"torch_dtype\": \"bfloat16\""));
    assert_non_null(strstr(t.text, "\"transformers_version\": \"4."));
    assert_non_null(strstr(t.text, "\"layer_norm_epsilon\": 1e-06,"));
    json_text_free(&t);
    // Every architecture except GPT-2, with all settings that only that architecture supports.
    for (int i = ARCHITECTURE_LLAMA; i < ARCHITECTURE_COUNT; i++) {
        ModelShape other;
        architecture_shape((Architecture)i, &other);
        other.layers = 3, other.channels = 96, other.heads = 6, other.kv_heads = 2, other.ffn = 256;
        other.head_dim = i == ARCHITECTURE_LLAMA || i == ARCHITECTURE_QWEN3 ? 24 : 16;
        other.positions = 4000;
        other.rope_theta = 5e5f;
        other.tied_head = i % 2;
        if (i == ARCHITECTURE_LLAMA) other.rope = (RopeScaling){8.0f, 2.0f, 5.0f, 512};
        if (i == ARCHITECTURE_OLMO) other.clip_qkv = 7.5f;
        model_shape_vocab(&other, 131);
        assert_int_equal(other.pad, -1); // no padding id, so every row of a new model's embedding is trained
        t = written_and_read(&other);
        assert_true(!!strstr(t.text, "\"initializer_range\": 0.02,") == (i != ARCHITECTURE_OLMO));
        json_text_free(&t);
    }
    architecture_shape(ARCHITECTURE_LLAMA, &s);
    s.layers = 1, s.channels = 64, s.heads = 6, s.kv_heads = 3, s.head_dim = 16, s.ffn = 96, s.positions = 8192;
    model_shape_vocab(&s, 131);
    t = written_and_read(&s);
    assert_non_null(strstr(t.text, "\"MistralForCausalLM\""));
    json_text_free(&t);
    s.position_kind = POSITIONS_LEARNED;
    assert_false(hf_config_text(&t, &s, DTYPE_BF16, &err));
}

// Tests that the largest shape that flags accept can be written to config.json and read back. Larger sizes in
// config.json are refused.
UNIT_TEST(the_largest_shape_is_written_and_read_back) {
    ModelShape s;
    architecture_shape(ARCHITECTURE_LLAMA, &s);
    s.layers = MAX_LAYERS, s.heads = s.kv_heads = MAX_HEADS, s.head_dim = MAX_HEAD_WIDTH, s.channels = MAX_CHANNELS;
    s.ffn = MAX_FFN, s.positions = MAX_POSITIONS;
    s.norm_eps = (float)MIN_NORM_EPS, s.rope_theta = (float)MAX_ROPE_THETA;
    s.rope = (RopeScaling){(float)MAX_ROPE_FACTOR, (float)MIN_ROPE_BAND, (float)MAX_ROPE_BAND, MAX_POSITIONS};
    model_shape_vocab(&s, MAX_VOCAB);
    expect_round_trip(&s);
    s.norm_eps = (float)MAX_NORM_EPS;
    expect_round_trip(&s);
    int *const sizes[] = {&s.layers, &s.heads, &s.head_dim, &s.channels, &s.ffn, &s.positions, &s.rope.positions};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        JsonText t;
        ModelShape read;
        ++*sizes[i];
        assert_true(hf_config_text(&t, &s, DTYPE_BF16, &err));
        assert_false(parse(t.text, &read));
        assert_says(&err, "but must be 1 to");
        json_text_free(&t);
        --*sizes[i];
    }
    assert_false(gpt2_shape(&s, 1, 1, MAX_CHANNELS, 0, 257, 8, "here", &err));
    assert_says(&err, "head width 65536, but at most 4096 ");
}

#define SIZES                                                                                                          \
    "\"num_hidden_layers\": 2, \"hidden_size\": 64, \"intermediate_size\": 96, \"num_attention_heads\": 4, "           \
    "\"vocab_size\": 130, \"max_position_embeddings\": 512, \"hidden_act\": \"silu\""

#define KV "\"num_key_value_heads\": 2"

static ModelShape parsed_with_sizes(const char *type, const char *rest) {
    return parsed(formatted("{\"model_type\": \"%s\", " SIZES ", %s}", type, rest));
}

// Tests config.json as transformers 4 and 5 write it: keys of both versions, absent keys, and rare keys.
UNIT_TEST(configs_of_transformers_4_and_5_are_parsed) {
    ModelShape s = parsed_with_sizes(
        "llama", "\"rms_norm_eps\": 1e-05, \"num_key_value_heads\": null, "
                 "\"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", \"factor\": 32.0, "
                 "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}");
    assert_true(s.kv_heads == 4 && s.head_dim == 16 && s.rope_theta == 5e5f && s.rope.factor == 32.0f && !s.tied_head);
    s = parsed_with_sizes("llama", "\"rope_theta\": 1e4, \"rope_scaling\": null, \"head_dim\": 32, "
                                   "\"tie_word_embeddings\": true");
    assert_true(s.rope.factor == 1.0f && s.head_dim == 32 && s.tied_head && s.norm_eps == 1e-6f);
    s = parsed_with_sizes("mistral", "\"sliding_window\": 256, " KV);
    assert_true(s.positions == 256 && s.kv_heads == 2); // positions are limited to the sliding window of 256
    s = parsed_with_sizes("qwen2", KV ", \"sliding_window\": 256, \"use_sliding_window\": false");
    assert_true(s.positions == 512 && s.qkv_biases);
    s = parsed_with_sizes("llama", "\"rope_theta\": 3e4, \"rope_parameters\": {\"rope_theta\": 5e5}, "
                                   "\"rope_scaling\": {\"rope_type\": \"default\", \"rope_theta\": 7e5}");
    assert_true(s.rope_theta == 7e5f); // the rope_theta in rope_scaling overrides others
    s = parsed_with_sizes("llama", "\"is_causal\": true, \"per_layer_config\": {}, "
                                   "\"original_max_position_embeddings\": 32, \"rope_scaling\": {\"rope_type\": "
                                   "\"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                                   "\"original_max_position_embeddings\": 32}");
    assert_int_equal(s.rope.positions, 32);
    s = parsed_with_sizes("olmo", "\"clip_qkv\": null");
    assert_true(s.norm == NORM_PLAIN && s.clip_qkv == 0.0f && s.norm_eps == 1e-5f);
    s = parsed_with_sizes("qwen3", "\"num_key_value_heads\": null");
    assert_true(s.qk_norm == QK_NORM_HEAD && s.head_dim == 128);
    static const struct {
        const char *type, *rest, *says;
    } bad[] = {
        {"llama", "\"attention_bias\": true", "attention_bias"},
        {"llama", "\"mlp_bias\": true", "mlp_bias"},
        {"llama", "\"tie_word_embeddings\": 3", "tie_word_embeddings"},
        {"llama", "\"num_key_value_heads\": 3", "num_key_value_heads"},
        {"llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}", "'linear'"},
        {"llama", "\"rope_scaling\": {\"rope_type\": \"llama3\"}", "original_max_position"},
        {"llama",
         "\"rope_parameters\": {\"rope_type\": \"default\"}, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}",
         "'linear'"},
        {"llama", "\"eos_token_id\": [3, \"x\"]", "eos_token_id"},
        {"llama", "\"rope_scaling\": [1]", "rope_scaling"},
        {"llama", "\"rope_parameters\": 4", "rope_parameters"},
        {"qwen3", KV ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e6, \"rope_type\": \"default\"}}",
         "'rope_parameters'"},
        {"llama", "\"rope_scaling\": {\"full_attention\": {}}", "'rope_scaling'"},
        {"olmo", "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}", "'llama3' is not supported for olmo"},
        {"llama", "\"rope_parameters\": {\"type\": \"yarn\"}", "'yarn'"},
        {"llama", "\"rope_theta\": 1e4, \"rope_parameters\": {\"partial_rotary_factor\": 0.5}", "partial_rotary"},
        {"llama", "\"rope_theta\": 0", "rope_theta"},
        {"llama", "\"partial_rotary_factor\": 0.5", "partial_rotary_factor"},
        {"llama", "\"hidden_act\": \"gelu\"", "JSON"}, // refused, because the key occurs twice
        {"llama", "\"quantization_config\": {}", "quantization_config"},
        {"llama", "\"is_causal\": false", "'is_causal' must be true"},
        {"llama", "\"attention_bias\": null", "'attention_bias' must be false"},
        {"qwen3", KV ", \"use_sliding_window\": null", "'use_sliding_window' must be false"},
        {"olmo2", "\"tie_word_embeddings\": null", "'tie_word_embeddings' must be true or false"},
        {"llama", "\"rms_norm_eps\": null", "'rms_norm_eps' must be a number"},
        {"llama", "\"rope_theta\": null", "'rope_theta' must be a number"},
        {"llama", "\"rope_theta\": 1e4, \"rope_parameters\": {\"rope_theta\": null}", "'rope_theta' must be a number"},
        {"qwen2", KV ", \"layer_types\": [\"full_attention\"]", "layer_types"},
        {"llama", "\"layer_types\": []", "layer_types"},
        // transformers 5 writes is_causal: null for bidirectional attention, which is not supported.
        {"olmo2", "\"is_causal\": null", "'is_causal'"},
        {"qwen3", KV ", \"per_layer_config\": {\"1\": {\"rms_norm_eps\": 0.1}}", "per_layer_config"},
        {"llama", "\"per_layer_config\": [{}, {\"hidden_act\": \"gelu\"}]", "per_layer_config"},
        {"llama",
         "\"original_max_position_embeddings\": 64, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
         "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 32}",
         "'original_max_position_embeddings'"},
        {"llama", "\"head_dim\": 0", "head_dim"},
        {"llama", "\"bos_token_id\": \"<s>\"", "bos_token_id"},
        {"llama", "\"pad_token_id\": [3]", "pad_token_id"},
        {"llama", "\"eos_token_id\": 2.5", "eos_token_id"},
        {"llama", "\"head_dim\": 15", "config.json: head_dim 15 is odd"},
        {"mistral", "\"sliding_window\": null", "num_key_value_heads 8"},
        {"olmo", "\"head_dim\": 32", "head_dim 32"},
        {"llama", "\"clip_qkv\": 8", "clip_qkv is not supported for llama"},
        {"qwen2", KV ", \"use_sliding_window\": true", "use_sliding_window"},
        {"qwen2", KV ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]", "'sliding_attention'"},
        {"qwen3", KV ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}", "'yarn'"},
        {"olmo", "\"clip_qkv\": 0", "clip_qkv 0"},
        {"olmo", "\"clip_qkv\": 0.0", "clip_qkv 0 would"},
        {"olmo", "\"clip_qkv\": 1e-60", "clip_qkv 0 would"},
        {"olmo", "\"clip_qkv\": -8", "clip_qkv"},
        {"mistral", KV ", \"sliding_window\": -1", "sliding_window"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (parse(formatted("{\"model_type\": \"%s\", " SIZES ", %s}", bad[i].type, bad[i].rest), &s))
            fail_msg("%s: accepted", bad[i].rest);
        assert_says(&err, bad[i].says);
    }
}
#undef SIZES
#undef KV

// Tests that an absent key of config.json gets the default of the model's configuration class in transformers.
UNIT_TEST(absent_config_keys_have_transformers_defaults) {
    static const struct {
        const char *type, *rest;
        int kv_heads, head_dim, positions; // positions: at most the sliding window
    } cases[] = {{"llama", "", 64, 16, 2048},
                 // Llama ignores sliding_window, which only Mistral uses.
                 {"llama", ", \"sliding_window\": 1000", 64, 16, 2048},
                 {"mistral", "", 8, 16, 4096},
                 {"mistral", ", \"sliding_window\": null", 8, 16, 131072},
                 {"mistral", ", \"sliding_window\": 1000", 8, 16, 1000},
                 {"mistral", ", \"max_position_embeddings\": 512", 8, 16, 512},
                 {"mistral", ", \"num_key_value_heads\": null", 64, 16, 4096},
                 {"olmo", "", 64, 16, 2048},
                 {"olmo2", "", 64, 16, 2048},
                 {"qwen2", "", 32, 16, 32768},
                 {"qwen2", ", \"num_key_value_heads\": null", 64, 16, 32768},
                 {"qwen3", "", 32, 128, 32768}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ModelShape s = parsed(formatted(
            "{\"model_type\": \"%s\", \"num_hidden_layers\": 1, \"hidden_size\": 1024, \"intermediate_size\": 96, "
            "\"num_attention_heads\": 64, \"vocab_size\": 130%s}",
            cases[i].type, cases[i].rest));
        assert_int_equal(s.kv_heads, cases[i].kv_heads);
        assert_int_equal(s.head_dim, cases[i].head_dim);
        assert_int_equal(s.positions, cases[i].positions);
        assert_true(!s.tied_head && s.rope_theta == 10000.0f);
        assert_true(s.norm_eps == (strncmp(cases[i].type, "olmo", 4) == 0 ? 1e-5f : 1e-6f));
        assert_int_equal(s.norm_place, strcmp(cases[i].type, "olmo2") == 0 ? NORM_POST : NORM_PRE);
    }
}

// Tests token ids and initializer_range: they are read from config.json or, if absent, are the defaults of the model's
// class in transformers. Saving writes them to config.json.
UNIT_TEST(token_ids_and_initializer_range_are_read_and_written) {
    static const struct {
        const char *type, *rest, *written;
        int vocab;
    } cases[] = {
        {"llama", "", "\"bos_token_id\": 1,\n  \"eos_token_id\": 2,", 130},
        // Llama's default EOS id 2 is outside a vocabulary of 2 tokens.
        {"llama", "", "\"bos_token_id\": 1,\n  \"eos_token_id\": null,", 2},
        {"olmo", "", "\"bos_token_id\": null,\n  \"eos_token_id\": 50279,", 50304},
        {"olmo", "", "\"bos_token_id\": null,\n  \"eos_token_id\": null,", 130},
        {"qwen2", "", "\"bos_token_id\": null,\n  \"eos_token_id\": null,", 151936},
        {"qwen3", ", \"bos_token_id\": 5, \"eos_token_id\": 7", "\"bos_token_id\": 5,\n  \"eos_token_id\": 7,", 130},
        {"llama", ", \"bos_token_id\": null, \"eos_token_id\": [7]", "\"bos_token_id\": null,\n  \"eos_token_id\": 7,",
         130},
        {"llama", ", \"bos_token_id\": 0, \"eos_token_id\": [7, 8, 130, 9]",
         "\"bos_token_id\": 0,\n  \"eos_token_id\": [\n    7,\n    8,\n    9\n  ],", 130},
        {"mistral", ", \"eos_token_id\": []", "\"bos_token_id\": 1,\n  \"eos_token_id\": null,", 130},
        {"llama", ", \"initializer_range\": 0.041666666666666664", "\"initializer_range\": 0.041666666666666664,", 130},
        {"qwen2", ", \"pad_token_id\": 3", "\"pad_token_id\": 3,", 130},
        {"llama", ", \"pad_token_id\": -1", "\"pad_token_id\": null,", 130},
        {"mistral", "", "\"pad_token_id\": null,", 130},
        {"olmo", "", "\"pad_token_id\": 1,", 130}, // OLMo's default padding id is 1
        {"olmo", "", "\"pad_token_id\": null,", 1},
        {"olmo2", ", \"pad_token_id\": null", "\"pad_token_id\": null,", 130}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        JsonText generation;
        const char *text = formatted(
            "{\"model_type\": \"%s\", \"num_hidden_layers\": 1, \"hidden_size\": 1024, \"intermediate_size\": 96, "
            "\"num_attention_heads\": 64, \"vocab_size\": %d%s}",
            cases[i].type, cases[i].vocab, cases[i].rest);
        const ModelShape s = parsed(text);
        JsonText t = written_and_read(&s);
        if (!strstr(t.text, cases[i].written)) fail_msg("%s\nlacks %s", t.text, cases[i].written);
        hf_generation_text(&generation, &s, NULL);
        assert_non_null(strstr(generation.text, "\"bos_token_id\": "));
        assert_true((strstr(t.text, "initializer_range") == NULL) == (strstr(cases[i].rest, "range") == NULL));
        json_text_free(&generation);
        json_text_free(&t);
    }
}

// Tests generation_config.json: its EOS ids are added to those of config.json, and its other keys are copied.
UNIT_TEST(generation_config_adds_eos_ids) {
    static const char *const config = "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"hidden_size\": 64, "
                                      "\"intermediate_size\": 96, \"num_attention_heads\": 4, \"vocab_size\": 130, "
                                      "\"bos_token_id\": 3, \"eos_token_id\": 7}";
    static const struct {
        const char *text, *written; // text: the file. written: part of the result; NULL: the file is refused
    } cases[] = {
        {"{\"do_sample\": true}", "\"eos_token_id\": 7,\n  \"do_sample\": true\n}"},
        {"{\"eos_token_id\": 7, \"bos_token_id\": 5}", "\"eos_token_id\": 7\n"},
        {"{\"temperature\": 0.7, \"eos_token_id\": 7, \"top_k\": 20, \"pad_token_id\": 500, \"top_p\": 1.0, "
         "\"suppress_tokens\": [1, []], \"s\": {\"\u00e9\\n\": null}, \"use_cache\": false}",
         "\"eos_token_id\": 7,\n  \"temperature\": 0.7,\n  \"top_k\": 20,\n  \"pad_token_id\": 500,\n  \"top_p\": "
         "1.0,\n  \"suppress_tokens\": [1,[]],\n  \"s\": {\"\u00e9\\u000a\":null},\n  \"use_cache\": false\n}"},
        {"{\"eos_token_id\": 9}", "\"eos_token_id\": [\n    7,\n    9\n  ]"},
        {"{\"eos_token_id\": [9, 7, 500, 8]}", "\"eos_token_id\": [\n    7,\n    9,\n    8\n  ]"},
        {"{\"eos_token_id\": [0, 1, 2, 3, 4, 5, 6, 8, 9]}", "4,\n    5,\n    6\n  ]"},
        {"{\"eos_token_id\": null}", "\"eos_token_id\": 7\n"},
        {"{\"eos_token_id\": \"</s>\"}", NULL},
        {"[7]", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ModelShape s;
        JsonText t;
        const char *model = path_of("generation"), *weights = path_of("generation/model.safetensors");
        folder_make(model, &err);
        write_text(path_of("generation/config.json"), config);
        write_text(path_of("generation/generation_config.json"), cases[i].text);
        write_text(weights, "");
        const bool good = model_shape_from_files(i % 2 ? model : weights, &s, &err);
        assert_true(good == (cases[i].written != NULL));
        if (!good) {
            assert_says(&err, "generation_config.json");
            continue;
        }
        json_t *source = hf_generation_open(i % 2 ? model : weights);
        assert_non_null(source);
        hf_generation_text(&t, &s, source);
        json_decref(source);
        if (!strstr(t.text, cases[i].written)) fail_msg("%s\nlacks %s", t.text, cases[i].written);
        assert_non_null(strstr(t.text, "\"bos_token_id\": 3"));
        json_text_free(&t);
    }
}

UNIT_TEST(unsupported_configs_are_refused) {
#define NUMBERS "\"n_layer\": 2, \"n_head\": 2, \"n_embd\": 8, \"vocab_size\": 130, \"n_positions\": 12"
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "JSON"},
        {"[1]", "object"},
        {"{" NUMBERS "}", "has no model_type"},
        {"{\"model_type\": \"bloom\", " NUMBERS "}", "'bloom'"},
        {"{\"model_type\": \"llama\", " NUMBERS "}", "num_hidden_layers"},
        {"{\"model_type\": \"gpt2\", \"activation_function\": \"relu\", " NUMBERS "}", "'relu'"},
        {"{\"model_type\": \"gpt2\", \"activation_function\": 3, " NUMBERS "}", "activation_function"},
        {"{\"model_type\": \"gpt2\", \"tie_word_embeddings\": false, " NUMBERS "}", "tie_word_embeddings"},
        {"{\"model_type\": \"gpt2\", \"scale_attn_weights\": false, " NUMBERS "}", "scale_attn_weights"},
        {"{\"model_type\": \"gpt2\", \"scale_attn_by_inverse_layer_idx\": true, " NUMBERS "}", "inverse_layer"},
        {"{\"model_type\": \"gpt2\", \"add_cross_attention\": 1, " NUMBERS "}", "add_cross_attention"},
        {"{\"model_type\": \"gpt2\", \"quantization_config\": {}, " NUMBERS "}", "quantization_config"},
        {"{\"model_type\": \"gpt2\", \"is_causal\": false, " NUMBERS "}", "'is_causal' must be true"},
        {"{\"model_type\": \"gpt2\", \"layer_norm_epsilon\": 0, " NUMBERS "}", "layer_norm_epsilon"},
        {"{\"model_type\": \"gpt2\", \"layer_norm_epsilon\": \"nan\", " NUMBERS "}", "layer_norm_epsilon"},
        {"{\"model_type\": \"gpt2\", \"layer_norm_epsilon\": 1e-60, " NUMBERS "}", "layer_norm_epsilon is 1e-60"},
        {"{\"model_type\": \"gpt2\", \"layer_norm_epsilon\": 1e999, " NUMBERS "}", "JSON"},
        {"{\"model_type\": \"gpt2\", \"n_inner\": -4, " NUMBERS "}", "n_inner"},
        {"{\"model_type\": \"gpt2\", " NUMBERS ", \"n_layer\": 3}", "JSON"},
        {"{\"model_type\": \"gpt2\"}", "n_layer"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 0}", "n_layer"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 99999}", "n_layer"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 2.5}", "n_layer"},
        {"{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 64, \"intermediate_size\": 96, "
         "\"num_attention_heads\": 3, \"vocab_size\": 130}",
         "hidden_size 64"},
        {"{\"model_type\": \"qwen2\", \"num_hidden_layers\": 2, \"hidden_size\": 15, \"intermediate_size\": 96, "
         "\"num_attention_heads\": 3, \"num_key_value_heads\": 1, \"vocab_size\": 130}",
         "hidden_size / num_attention_heads = 5 is odd"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 3, \"n_embd\": 8, \"vocab_size\": 130, "
         "\"n_positions\": 12}",
         "8 channels cannot be divided among 3 heads"}};
#undef NUMBERS
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ModelShape s;
        if (parse(bad[i].text, &s)) fail_msg("accepted %s", bad[i].text);
        assert_says(&err, "config.json");
        assert_error(&err, EXIT_DATA, bad[i].says);
    }
}

// ---------------------------------------------------------------- tests of a Hugging Face model folder

// Returns an element's test value, which is exact in F32, BF16 and F16, and depends on tensor, layer, row and column.
static float value_of(int id, int layer, int64_t row, int64_t col) {
    return (float)((id * 31 + layer * 17 + row * 7 + col * 3) % 255 - 127) / 64.0f;
}

static void encode(Dtype dtype, float value, void *to) {
    uint16_t bf16 = bf16_encode(value), f16;
    int exponent;
    float mantissa = frexpf(fabsf(value), &exponent); // the mantissa is in [0.5, 1)
    f16 = value == 0 ? 0 : (uint16_t)((uint16_t)(exponent + 14) << 10 | ((int)ldexpf(mantissa, 11) & 0x3ff));
    if (value < 0) f16 |= 0x8000;
    if (dtype == DTYPE_F32)
        memcpy(to, &value, 4);
    else
        memcpy(to, dtype == DTYPE_BF16 ? &bf16 : &f16, 2);
}

typedef struct {
    Dtype dtype;
    const char *strip;  // prefix to remove from tensor names; "": none
    const char *prefix; // prefix that is then added to tensor names; NULL: none
    int id_bare;        // parameter whose name gets no prefix; -1: none
    int part, parts;    // the file has every `parts`-th tensor, starting with tensor number `part`
    int id_poisoned;    // parameter with one element of the value `poison`; -1: none
    float poison;
    int id_dropped, id_reshaped; // parameter that is omitted, and parameter with a wrong shape; -1: none
    const char *extra;           // name of an additional tensor with the embedding's values; NULL: none
    ModelShape shape;
} Making;

static const Making plain = {DTYPE_F32, "", NULL, -1, 0, 1, -1, 0, -1, -1, NULL, {0}};

// Tests hf_names.c: the tensor names of a GPT-2 must be those of GPT2LMHeadModel.
UNIT_TEST(tensor_names_of_gpt2_equal_transformers) {
    static const char *const names[] = {"wte.weight",
                                        "wpe.weight",
                                        "h.3.ln_1.weight",
                                        "h.3.ln_1.bias",
                                        "h.3.attn.c_attn.weight",
                                        "h.3.attn.c_attn.bias",
                                        "h.3.attn.c_proj.weight",
                                        "h.3.attn.c_proj.bias",
                                        "h.3.ln_2.weight",
                                        "h.3.ln_2.bias",
                                        "h.3.mlp.c_fc.weight",
                                        "h.3.mlp.c_fc.bias",
                                        "h.3.mlp.c_proj.weight",
                                        "h.3.mlp.c_proj.bias",
                                        "ln_f.weight",
                                        "ln_f.bias"};
    const ModelShape gpt2 = {.layers = 4};
    for (int id = 0; id < (int)(sizeof names / sizeof *names); id++) { // GPT-2 has no tensors other than these
        char name[HF_NAME_LENGTH];
        hf_whole_name(&gpt2, (TensorId)id, 3, name);
        assert_memory_equal(name, "transformer.", 12);
        assert_string_equal(name + 12, names[id]);
    }
}

#define TAG(id, layer, part) (((id)*64 + (layer)) * HF_MAX_PARTS + (part))

static void write_values(SafeWriter *writer, const Making *making) {
    uint64_t hash;
    for (int i = 0; i < writer->count; i++) {
        const SafeTensor *t = &writer->tensors[i];
        HfPart parts[HF_MAX_PARTS];
        int id = t->tag / HF_MAX_PARTS / 64, layer = t->tag / HF_MAX_PARTS % 64;
        hf_parts(&making->shape, (TensorId)id, layer, parts);
        const HfPart part = parts[t->tag % HF_MAX_PARTS];
        bool matrix = t->rank == 2, transposed = part.transposed;
        int64_t rows = matrix ? t->shape[0] : 1, cols = t->shape[t->rank - 1];
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = 0; c < cols; c++) {
                char bytes[4];
                float value = transposed ? value_of(id, layer, c, r)
                                         : value_of(id, layer, part.first_row + r, part.first_col + c);
                if (id == making->id_poisoned && r == rows - 1 && c == 1) value = making->poison;
                encode(t->dtype, value, bytes);
                assert_true(safewriter_write(writer, bytes, dtype_bytes(t->dtype), &err));
            }
        }
    }
    if (!safewriter_end(writer, &hash, &err)) fail_msg("%s", err.text);
}

static void make_weights(const char *path, const Run *run, Making making) {
    SafeWriter writer;
    int number = 0;
    making.shape = run->config.shape;
    memset(&writer, 0, sizeof writer);
    HfPart parts[HF_MAX_PARTS];
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < run->arena.layout[id][VALUE].layers; layer++) {
            if (id == making.id_dropped || number++ % making.parts != making.part) continue;
            const int count = hf_parts(&making.shape, (TensorId)id, layer, parts), rank = tensor_rank((TensorId)id);
            for (int i = 0; i < count; i++) {
                const HfPart *part = &parts[i];
                int64_t shape[2] = {part->transposed ? part->cols : part->rows,
                                    part->transposed ? part->rows : part->cols};
                if (rank == 1) shape[0] = part->cols;
                if (id == making.id_reshaped) shape[0]++;
                size_t skip = strncmp(part->name, making.strip, strlen(making.strip)) == 0 ? strlen(making.strip) : 0;
                char name[2 * HF_NAME_LENGTH];
                const bool bare = !making.prefix || id == making.id_bare;
                snprintf(name, sizeof name, "%s%s", bare ? "" : making.prefix, part->name + skip);
                safewriter_declare(&writer, name, making.dtype, rank, shape, TAG(id, layer, i));
            }
        }
    }
    const int64_t embedding[2] = {VOCAB, CHANNELS};
    if (making.extra) {
        // transformers 4.27 stored the attention masks of GPT-2 as BOOL
        const Dtype dtype = text_ends_with(making.extra, ".attn.bias") ? DTYPE_BOOL : making.dtype;
        safewriter_declare(&writer, making.extra, dtype, 2, embedding, TAG(WTE, 0, 0));
    }
    unlink(path);
    if (!safewriter_begin(&writer, path, &err)) fail_msg("%s", err.text);
    write_values(&writer, &making);
    safewriter_close(&writer);
}

// Makes a folder with a config.json of the run's shape and returns the folder's path.
static const char *make_folder(const char *name, const Run *run) {
    assert_int_equal(mkdir(path_of(name), 0777), 0);
    make_config(path_of(name), &run->config.shape);
    return path_of(name);
}

static void assert_loads(const char *path, Run *run) {
    memset(run->arena.base, 0x5a, run->arena.total_bytes);
    if (!checkpoint_load_weights(path, &run->arena, &run->exec, &err)) fail_msg("%s", err.text);
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        const bool padded = id == WTE || id == HEADW;
        for (int layer = 0; layer < run->arena.layout[id][VALUE].layers; layer++) {
            Tensor t = arena_tensor(&run->arena, (TensorId)id, VALUE, layer);
            for (int64_t i = 0; i < tensor_elements(t); i++) {
                int64_t row = i / t.cols;
                float got = t.format == FMT_BF16 ? bf16_decode(((uint16_t *)t.data)[i]) : ((float *)t.data)[i];
                float want = padded && row >= VOCAB ? 0.0f : value_of(id, layer, row, i % t.cols);
                if (got != want) fail_msg("%s row %d: %g, not %g", tensor_row((TensorId)id)->name, (int)row, got, want);
            }
        }
    }
}

UNIT_TEST(weights_load_from_any_type_and_order_of_tensors) {
    static const Dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    static const PrecisionKind precisions[] = {PRECISION_RECIPE, PRECISION_FP32};
    for (int p = 0; p < 2; p++) {
        Run *run = run_with(precisions[p]);
        for (int d = 0; d < 3; d++) {
            const char *name = formatted("import-%d-%d", p, d);
            make_folder(name, run);
            const char *file = in(name, "model.safetensors");
            Making making = plain;
            making.dtype = dtypes[d];
            making.strip = d == 1 ? "transformer." : "";
            make_weights(path_of(file), run, making);
            assert_loads(path_of(name), run);
            assert_loads(path_of(file), run); // --model may name the weight file if config.json is next to it
        }
        run_close(run);
    }
}

// Tests that a prefix of all tensor names is ignored. If only some names have the prefix, loading fails.
UNIT_TEST(a_common_prefix_of_tensor_names_is_ignored) {
    static const char *const prefixes[] = {"_orig_mod.", "module.", "_orig_mod.module.", "base_model.model.", "model."};
    Run *run = run_with(PRECISION_RECIPE);
    const char *folder = make_folder("prefix", run);
    const char *file = path_of("prefix/model.safetensors");
    Making making = plain;
    for (int i = 0; i < 10; i++) {
        making.prefix = prefixes[i / 2];
        making.strip = i % 2 ? "transformer." : "";
        make_weights(file, run, making);
        assert_loads(folder, run);
    }
    making.extra = "model.extra.weight"; // a tensor that has the prefix but is not a parameter
    make_weights(file, run, making);
    assert_refused(folder, run, "model.extra.weight");
    making.extra = NULL;
    for (int id = 0; id < 2; id++) {
        making.id_bare = id ? LN2B : WTE;
        make_weights(file, run, making);
        assert_refused(folder, run, "has no tensor 'transformer.");
    }
    run_close(run);
}

UNIT_TEST(master_weights_keep_the_low_bits_of_fp32_files) {
    Run *run = run_with(PRECISION_RECIPE);
    const char *folder = make_folder("masters", run);
    Making making = plain;
    making.id_poisoned = LNFB;
    making.poison = 0.1f;
    make_weights(path_of("masters/model.safetensors"), run, making);
    if (!checkpoint_load_weights(folder, &run->arena, &run->exec, &err)) fail_msg("%s", err.text);
    uint16_t value = ((uint16_t *)arena_tensor(&run->arena, LNFB, VALUE, 0).data)[1];
    uint16_t low = ((uint16_t *)arena_tensor(&run->arena, LNFB, MASTER, 0).data)[1];
    assert_int_equal(value, master_bf16(0.1f));
    assert_true(master_join(value, low) == 0.1f);
    run_close(run);
}

UNIT_TEST(weights_load_from_several_files_with_an_index) {
    Run *run = run_with(PRECISION_RECIPE);
    const char *folder = make_folder("shards", run);
    for (int part = 0; part < 3; part++) {
        Making making = plain;
        making.part = part;
        making.parts = 3;
        make_weights(path_of(formatted("shards/model-%05d-of-00003.safetensors", part + 1)), run, making);
    }
    const char *index = path_of("shards/model.safetensors.index.json");
    write_text(index,
               "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {\"a\": \"model-00001-of-00003.safetensors\", "
               "\"b\": \"model-00002-of-00003.safetensors\", \"c\": \"model-00003-of-00003.safetensors\", "
               "\"d\": \"model-00001-of-00003.safetensors\"}}");
    assert_loads(folder, run);
    // In Hugging Face's cache, files of a model are symbolic links to files in another folder.
    const char *shard = path_of("shards/model-00002-of-00003.safetensors");
    assert_int_equal(rename(shard, path_of("blob")), 0);
    assert_int_equal(symlink("../blob", shard), 0);
    assert_loads(folder, run);
    static const struct {
        const char *text, *says;
    } bad[] = {{"{\"weight_map\": {\"a\": \"model-00001-of-00003.safetensors\"}}", "has no tensor"},
               {"{\"weight_map\": {\"a\": \"missing.safetensors\"}}", "missing.safetensors"},
               {"{\"weight_map\": {\"a\": \"../import-0-0/model.safetensors\"}}", "not the name of a file"},
               {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "not the name of a file"},
               {"{\"weight_map\": {\"a\": \"..\"}}", "not the name of a file"},
               {"{\"weight_map\": {\"a\": \"\"}}", "not the name of a file"},
               {"{\"weight_map\": {\"a\": 3}}", "not the name of a file"},
               {"{\"weight_map\": {\"a\": \"b\\n/c\"}}", "'b?/c'"},
               {"{\"weight_map\": [\"a\"]}", "weight_map"},
               {"{}", "weight_map"},
               {"{\"weight_map\": {", "JSON"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text(index, bad[i].text);
        assert_refused(folder, run, bad[i].says);
    }
    run_close(run);
}

// Opens a run of a small model of this architecture with 2 query heads and 1 key-value head.
static Run *llama_with(Architecture architecture, bool tied) {
    Run *run = run_open(RECIPE_COAT, 2);
    ModelShape *s = &run->config.shape;
    architecture_shape(architecture, s);
    s->layers = s->heads = 2;
    s->kv_heads = 1;
    s->head_dim = 4;
    s->channels = CHANNELS;
    s->ffn = 16;
    s->positions = POSITIONS;
    s->tied_head = tied;
    model_shape_vocab(s, VOCAB);
    run->config.seq_len = 8;
    run_allocate(run);
    return run;
}

// Tests that a tensor that the model lacks is an error, because its values would silently be lost.
UNIT_TEST(a_tensor_that_the_model_lacks_is_an_error) {
    static const struct {
        Architecture architecture;
        bool tied;
        const char *extra, *says; // extra: name of the additional tensor. says: part of the error; NULL: accepted
    } cases[] = {{ARCHITECTURE_LLAMA, false, NULL, NULL},
                 {ARCHITECTURE_LLAMA, false, "model.layers.0.self_attn.rotary_emb.inv_freq", NULL},
                 {ARCHITECTURE_LLAMA, true, "lm_head.weight", NULL},
                 {ARCHITECTURE_LLAMA, false, "model.layers.1.self_attn.q_proj.bias", "1.self_attn.q_proj.bias'"},
                 {ARCHITECTURE_LLAMA, true, "model.layers.0.self_attn.q_norm.weight", "of the llama"},
                 {ARCHITECTURE_LLAMA, true, "model.layers.2.mlp.up_proj.weight", "layers.2.mlp.up_proj.weight"},
                 // The additional tensor's name is that of the embedding without the prefix "model.".
                 {ARCHITECTURE_LLAMA, false, "embed_tokens.weight", "'embed_tokens.weight'"},
                 {ARCHITECTURE_QWEN2, true, NULL, NULL},
                 {ARCHITECTURE_QWEN2, true, "model.layers.0.self_attn.o_proj.bias", "of the qwen2"},
                 {ARCHITECTURE_OLMO, true, "model.norm.weight", "of the olmo"},
                 {ARCHITECTURE_QWEN3, false, "model.layers.0.self_attn.k_proj.bias", "of the qwen3"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Run *run = llama_with(cases[i].architecture, cases[i].tied);
        const char *name = formatted("leftovers-%d", (int)i), *file = in(name, "model.safetensors");
        make_folder(name, run);
        Making making = plain;
        making.extra = cases[i].extra;
        make_weights(path_of(file), run, making);
        if (cases[i].says)
            assert_refused(path_of(name), run, cases[i].says);
        else
            assert_loads(path_of(name), run);
        run_close(run);
    }
    // A model with tied head is refused if lm_head.weight differs from the embedding, because transformers 5 would not
    // tie this head.
    Run *run = llama_with(ARCHITECTURE_LLAMA, false);
    make_folder("leftovers-head", run);
    make_weights(path_of("leftovers-head/model.safetensors"), run, plain);
    run_close(run);
    run = llama_with(ARCHITECTURE_LLAMA, true);
    make_config(path_of("leftovers-head"), &run->config.shape);
    assert_refused(path_of("leftovers-head"), run, "tie_word_embeddings");
    run_close(run);
    // GPT-2 files may contain attention masks and a copy of the embedding (lm_head.weight), which are ignored.
    run = run_with(PRECISION_RECIPE);
    make_folder("leftovers-gpt2", run);
    static const char *const extras[] = {"h.0.attn.bias", "h.1.attn.masked_bias", "lm_head.weight"};
    Making making = plain;
    for (int i = 0; i < 3; i++) {
        making.extra = extras[i];
        make_weights(path_of("leftovers-gpt2/model.safetensors"), run, making);
        assert_loads(path_of("leftovers-gpt2"), run);
    }
    making.extra = "h.0.crossattention.c_attn.weight";
    make_weights(path_of("leftovers-gpt2/model.safetensors"), run, making);
    assert_refused(path_of("leftovers-gpt2"), run, "'h.0.crossattention.c_attn.weight'");
    run_close(run);
}

UNIT_TEST(damaged_or_incomplete_weight_files_are_refused) {
    Run *run = run_with(PRECISION_RECIPE);
    const char *folder = make_folder("bad", run);
    const char *file = path_of("bad/model.safetensors");
    assert_refused(folder, run, "no model.safetensors, nor model.safetensors.index.json;");
    write_text(path_of("bad/pytorch_model.bin"), "pickle");
    assert_refused(folder, run, "safe_serialization");
    static const float poisons[] = {INFINITY, -INFINITY, NAN, 3.4e38f}; // 3.4e38 becomes infinity in BF16
    for (int i = 0; i < 4; i++) {
        Making making = plain;
        making.id_poisoned = FCW;
        making.poison = poisons[i];
        make_weights(file, run, making);
        assert_refused(folder, run, "infinite or NaN");
    }
    Making making = plain;
    making.id_dropped = LN2B;
    make_weights(file, run, making);
    assert_refused(folder, run, "no tensor 'transformer.h.0.ln_2.bias'");
    making = plain;
    making.id_reshaped = QKVW;
    make_weights(file, run, making);
    assert_refused(folder, run, "attn.c_attn.weight' has the shape (9, 24), but its config.json requires (8, 24)");
    making.id_reshaped = QKVB;
    make_weights(file, run, making);
    assert_refused(folder, run, "attn.c_attn.bias' has the shape (25), but its config.json requires (24)");
    make_weights(file, run, plain);
    assert_loads(folder, run);
    // Weights are refused if the shape in config.json differs from the run's.
    ModelShape other = run->config.shape;
    other.layers = 1;
    make_config(path_of("bad"), &other);
    assert_refused(folder, run, "layers 1");
    unlink(path_of("bad/config.json"));
    assert_refused(folder, run, "no config.json");
    assert_refused(path_of("bad/nothing"), run, "No such file");
    assert_refused(path_of("bad/pytorch_model.bin"), run, "neither");
    run_close(run);
}

// ---------------------------------------------------------------- tests of llm.c's weight files

static void make_llmc(const char *path, const Run *run, int version, int padded, size_t cut) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    int32_t header[256] = {20240326, version, POSITIONS, VOCAB, 2, 2, CHANNELS, padded};
    assert_int_equal(fwrite(header, 1, sizeof header, file), sizeof header);
    size_t bytes = version == 3 ? 4 : 2;
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        const TensorLayout *t = &run->arena.layout[id][VALUE];
        for (int layer = 0; layer < t->layers; layer++) {
            int64_t rows = id == WTE ? padded : t->rows;
            for (int64_t i = 0; i < rows * t->cols; i++) {
                char value[4];
                encode(version == 3 ? DTYPE_F32 : DTYPE_BF16, value_of(id, layer, i / t->cols, i % t->cols), value);
                assert_int_equal(fwrite(value, 1, bytes, file), bytes);
            }
        }
    }
    long size = ftell(file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(truncate(path, size - (long)cut), 0);
}

UNIT_TEST(weights_of_llmc_load) {
    Run *run = run_with(PRECISION_RECIPE);
    ModelShape shape;
    const char *path = path_of("gpt2.bin");
    make_llmc(path, run, 3, 256, 0);
    if (!model_shape_from_files(path, &shape, &err)) fail_msg("%s", err.text);
    assert_memory_equal(&shape, &run->config.shape, sizeof shape);
    assert_loads(path, run); // padding rows have values in the file, but become 0 in memory
    make_llmc(path, run, 5, 256, 0);
    assert_loads(path, run);
    make_llmc(path, run, 5, 131, 0); // the file's vocabulary is padded to 131 rows
    assert_loads(path, run);
    make_llmc(path, run, 5, 256, 1);
    assert_refused(path, run, "truncated or damaged");
    make_llmc(path, run, 4, 256, 0);
    assert_refused(path, run, "version 4");
    run_close(run);
}

UNIT_TEST(invalid_headers_of_llmc_files_are_refused) {
    static const struct {
        int32_t at, value;
        const char *says;
    } bad[] = {{0, 20240520, "neither"}, {1, 1, "version 1"},        {2, 0, "positions"},
               {3, -5, "vocabulary"},    {4, INT32_MAX, "layers"},   {5, 0, "heads"},
               {5, 3, "divided"},        {6, INT32_MIN, "channels"}, {6, 2000, "truncated or damaged"},
               {7, VOCAB - 1, "padded"}, {7, INT32_MAX, "padded"},   {4, 1024, "truncated or damaged"}};
    Run *run = run_with(PRECISION_RECIPE);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ModelShape shape;
        const char *path = path_of("bad.bin");
        make_llmc(path, run, 3, 256, 0);
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, bad[i].at * 4, SEEK_SET), 0);
        assert_int_equal(fwrite(&bad[i].value, 4, 1, file), 1);
        assert_int_equal(fclose(file), 0);
        if (model_shape_from_files(path, &shape, &err)) fail_msg("accepted; expected '%s'", bad[i].says);
        assert_says(&err, bad[i].says);
        assert_says(&err, "bad.bin");
    }
    write_text(path_of("short.bin"), "\xc6\xd7\x34\x01"); // only the magic number of an llm.c file
    assert_refused(path_of("short.bin"), run, "ends early");
    run_close(run);
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
