// Tests of vision-language models in Hugging Face's Llava folders: config.json, tensor names in four layouts, tensors
// that are only copied from file to file, checkpoints of language model and vision tower, and processor files.
#include "dev/test/hf_fixture.h"

#include "coat/config/shapes.h"
#include "coat/config/vision.h"
#include "coat/save/checkpoint_tensors.h"
#include "coat/save/hf_names.h"

// Parses the config.json of LLaVA-1.5 7B, which omits most sizes of its Llama.
UNIT_TEST(config_of_llava_1_5_is_parsed) {
    const ModelShape s = parsed(
        "{\"architectures\": [\"LlavaForConditionalGeneration\"], \"ignore_index\": -100, \"image_token_index\": "
        "32000, "
        "\"model_type\": \"llava\", \"pad_token_id\": 32001, \"projector_hidden_act\": \"gelu\", \"text_config\": "
        "{\"_name_or_path\": \"lmsys/vicuna-7b-v1.5\", \"architectures\": [\"LlamaForCausalLM\"], "
        "\"max_position_embeddings\": 4096, \"model_type\": \"llama\", \"rms_norm_eps\": 1e-05, \"torch_dtype\": "
        "\"float16\", \"vocab_size\": 32064}, \"tie_word_embeddings\": false, \"torch_dtype\": \"float16\", "
        "\"transformers_version\": \"4.36.0.dev0\", \"vision_config\": {\"hidden_size\": 1024, \"image_size\": 336, "
        "\"intermediate_size\": 4096, \"model_type\": \"clip_vision_model\", \"num_attention_heads\": 16, "
        "\"num_hidden_layers\": 24, \"patch_size\": 14, \"projection_dim\": 768, \"vocab_size\": 32000}, "
        "\"vision_feature_layer\": -2, \"vision_feature_select_strategy\": \"default\", \"vocab_size\": 32064}");
    assert_true(s.layers == 32 && s.heads == 32 && s.kv_heads == 32 && s.head_dim == 128 && s.channels == 4096);
    assert_true(s.ffn == 11008 && s.vocab == 32064 && s.positions == 4096 && s.norm_eps == 1e-5f && !s.tied_head);
    assert_true(s.ids.bos == 1 && s.ids.eos[0] == 2 && s.pad == 32001);
    const VisionShape *v = &s.vision;
    assert_true(v->kind == VISION_CLIP && v->image_size == 336 && v->patch_size == 14 && v->channels == 1024);
    assert_true(v->ffn == 4096 && v->heads == 16 && v->layers == 23 && v->file_layers == 24 && v->features == 4096);
    assert_true(v->activation == ACT_GELU_QUICK && v->norm_eps == 1e-5f && v->drops_class_row && !v->pooling_head);
    assert_true(v->projector == PROJECTOR_MLP && v->image_token == 32000 && vision_rows(v) == 576);
    expect_round_trip(&s);
}

#define TEXT "\"text_config\": {\"model_type\": \"llama\", \"vocab_size\": 32064%s}"

static ModelShape parsed_with(const char *text, const char *vision, const char *rest) {
    return parsed(formatted("{\"model_type\": \"llava\", " TEXT ", \"vision_config\": {%s}%s}", text, vision, rest));
}

// A key that config.json omits has the default value of the model's class in transformers. Optional keys are read if
// they exist.
UNIT_TEST(absent_config_keys_of_llava_have_defaults) {
    const char *siglip = "\"model_type\": \"siglip_vision_model\"",
               *full = ", \"vision_feature_select_strategy\": \"full\"";
    ModelShape s = parsed_with("", "", "");
    assert_true(s.vision.kind == VISION_CLIP && s.vision.channels == 768 && s.vision.ffn == 3072);
    assert_true(s.vision.file_layers == 12 && s.vision.layers == 11 && s.vision.heads == 12);
    assert_true(s.vision.image_size == 224 && s.vision.patch_size == 32 && s.vision.image_token == 32000);
    expect_round_trip(&s);
    s = parsed_with("", siglip, full);
    assert_true(s.vision.kind == VISION_SIGLIP && s.vision.patch_size == 16 && s.vision.norm_eps == 1e-6f);
    assert_true(s.vision.activation == ACT_GELU_TANH && s.vision.pooling_head && !s.vision.drops_class_row);
    expect_round_trip(&s);
    s = parsed_with(
        ", \"tie_word_embeddings\": true",
        "\"model_type\": \"siglip_vision_model\", \"vision_use_head\": false, \"hidden_act\": \"gelu\", "
        "\"image_size\": 384, \"patch_size\": 14",
        ", \"vision_feature_select_strategy\": \"full\", \"image_token_id\": 7, \"vision_feature_layer\": -1, "
        "\"mm_projector_type\": \"mlp_downsample\", \"tie_word_embeddings\": false");
    assert_true(s.tied_head && !s.vision.pooling_head && s.vision.activation == ACT_GELU_ERF && s.vision.layers == 12);
    assert_true(s.vision.projector == PROJECTOR_DOWNSAMPLE && s.vision.image_token == 7 &&
                vision_rows(&s.vision) == 196);
    expect_round_trip(&s);
    s = parsed_with("", "\"num_hidden_layers\": 3", ", \"tie_word_embeddings\": true, \"vision_feature_layer\": -3");
    assert_true(s.tied_head && s.vision.layers == 1 && s.vision.file_layers == 3);
    expect_round_trip(&s);
    static const struct {
        const char *text, *rest;
        int pad;
    } pads[] = {{"", "", -1},
                {"", ", \"pad_token_id\": 5", 5},
                {", \"pad_token_id\": null", ", \"pad_token_id\": 5", 5},
                {", \"pad_token_id\": 6", ", \"pad_token_id\": 5", 6},
                {", \"pad_token_id\": 6", ", \"pad_token_id\": null", 6},
                {", \"pad_token_id\": 6", "", 6},
                {"", ", \"pad_token_id\": 32064", -1}};
    for (size_t i = 0; i < sizeof pads / sizeof *pads; i++) {
        s = parsed_with(pads[i].text, "", pads[i].rest);
        if (s.pad != pads[i].pad) fail_msg("%s%s: padding id %d", pads[i].text, pads[i].rest, s.pad);
        expect_round_trip(&s);
    }
    s = parsed("{\"model_type\": \"llava\", \"text_config\": {\"model_type\": \"qwen3\"}, \"vision_config\": {}}");
    assert_true(s.qk_norm == QK_NORM_HEAD && s.vocab == 151936 && s.ffn == 22016 && s.vision.features == 4096);
    s = parsed("{\"model_type\": \"llava\", \"text_config\": {\"model_type\": \"mistral\", \"vocab_size\": 32001}, "
               "\"vision_config\": {}}");
    assert_true(s.kv_heads == 8 && s.ffn == 14336);
}

// Reads the shape of the tower from the config.json of a CLIP, SigLIP or Llava model, or of a model that is only a
// tower.
UNIT_TEST(towers_of_clip_siglip_and_llava_folders_are_read) {
    static const struct {
        const char *text;
        VisionKind kind;
        int channels, blocks, patch_size;
    } good[] = {
        {"{\"model_type\": \"clip\", \"vision_config\": {\"hidden_size\": 1024, \"num_attention_heads\": 16, "
         "\"num_hidden_layers\": 24, \"patch_size\": 14}}",
         VISION_CLIP, 1024, 24, 14},
        {"{\"model_type\": \"siglip\", \"vision_config\": {\"num_hidden_layers\": 3}}", VISION_SIGLIP, 768, 3, 16},
        {"{\"model_type\": \"clip_vision_model\", \"num_hidden_layers\": 2}", VISION_CLIP, 768, 2, 32},
        {"{\"model_type\": \"siglip_vision_model\", \"patch_size\": 14}", VISION_SIGLIP, 768, 12, 14},
        {"{\"model_type\": \"llava\", \"vision_config\": {\"model_type\": \"siglip_vision_model\"}, "
         "\"vision_feature_select_strategy\": \"full\"}",
         VISION_SIGLIP, 768, 12, 16}};
    ModelShape s;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (!hf_parse_tower(good[i].text, strlen(good[i].text), "config.json", &s, &err))
            fail_msg("%s: %s", good[i].text, err.text);
        const VisionShape *v = &s.vision;
        assert_true(v->kind == good[i].kind && v->channels == good[i].channels && v->patch_size == good[i].patch_size);
        assert_true(v->file_layers == good[i].blocks && v->layers == good[i].blocks - 1);
        assert_true(v->drops_class_row == (v->kind == VISION_CLIP) && v->pooling_head == (v->kind == VISION_SIGLIP));
    }
    static const char *const bad[][2] = {
        {"{\"model_type\": \"llama\"}", "model_type is 'llama'"},
        {"{\"model_type\": \"clip_vision_model\", \"num_hidden_layers\": 1}", "num_hidden_layers"},
        {"{\"model_type\": \"clip\", \"vision_config\": {\"hidden_act\": \"relu\"}}", "relu"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(hf_parse_tower(bad[i][0], strlen(bad[i][0]), "config.json", &s, &err));
        assert_says(&err, bad[i][1]);
    }
}

UNIT_TEST(unsupported_llava_configs_are_refused) {
    static const struct {
        const char *text, *vision, *rest, *says;
    } bad[] = {{"", "", ", \"vision_feature_layer\": [-2, -5]", "vision_feature_layer is a list"},
               {"", "", ", \"vision_feature_layer\": -13", "vision_feature_layer"},
               {"", "", ", \"vision_feature_layer\": 3", "vision_feature_layer"},
               {"", "\"num_hidden_layers\": 1", "", "vision_feature_layer -2"},
               {"", "", ", \"vision_feature_select_strategy\": \"cls\"", "vision_feature_select_strategy"},
               {"", "\"model_type\": \"siglip_vision_model\"", "", "first patch"},
               {"", "\"model_type\": \"vit\"", "", "config.json: vision_config: model_type is 'vit'"},
               {"", "\"hidden_size\": 100", "", "vision_config: hidden_size 100"},
               {"", "\"num_channels\": 1", "", "num_channels"},
               {"", "\"image_size\": 16", "", "patch_size 32 exceeds image_size 16"},
               {"", "\"image_size\": 8192", "", "image_size"},
               {"", "\"image_size\": [224, 224]", "", "image_size"},
               {"", "\"hidden_act\": \"relu\"", "", "'relu'"},
               {"", "\"layer_norm_eps\": null", "", "layer_norm_eps"},
               {"", "", ", \"image_token_index\": 32064", "image_token_index"},
               {"", "", ", \"projector_hidden_act\": \"relu\"", "projector_hidden_act"},
               {"", "", ", \"multimodal_projector_bias\": false", "multimodal_projector_bias"},
               {"", "", ", \"mm_projector_type\": \"mlp_downsample_3x3_fix\"", "mlp_downsample_3x3_fix"},
               {"", "", ", \"tie_word_embeddings\": 1", "tie_word_embeddings"},
               {"", "", ", \"pad_token_id\": [5]", "config.json: pad_token_id"},
               {"", "", ", \"quantization_config\": {}", "quantization_config"},
               {", \"attention_bias\": true", "", "", "config.json: text_config: 'attention_bias'"},
               {", \"hidden_act\": \"gelu\"", "", "", "text_config: hidden_act"}};
    ModelShape s;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *json = formatted("{\"model_type\": \"llava\", " TEXT ", \"vision_config\": {%s}%s}", bad[i].text,
                                     bad[i].vision, bad[i].rest);
        if (parse(json, &s)) fail_msg("%s: accepted", json);
        assert_says(&err, bad[i].says);
    }
    assert_false(parse("{\"model_type\": \"llava\", \"vision_config\": {}}", &s));
    assert_says(&err, "text_config");
    assert_false(parse("{\"model_type\": \"llava\", \"text_config\": {}}", &s));
    assert_says(&err, "vision_config");
    assert_false(
        parse("{\"model_type\": \"llava\", \"text_config\": {\"model_type\": \"gpt2\"}, \"vision_config\": {}}", &s));
    assert_says(&err, "text_config: model_type is 'gpt2'");
    assert_false(
        parse("{\"model_type\": \"llava\", \"text_config\": {\"vocab_size\": 99}, \"vision_config\": {}}", &s));
    assert_says(&err, "image_token_index is missing, and its default, 32000");
}

// A run of a small vision-language model. tower: arena of its vision tower, which is part of the memory of run->arena.
typedef struct {
    Run *run;
    Config tower_config;
    Arena tower;
} Both;

static int frozen; // parts that the runs of both_open() do not train

static Both *both_open(VisionKind kind, ProjectorKind projector, bool tied) {
    Both *b = (Both *)xcalloc(1, sizeof *b);
    Exec ignored;
    b->run = run_open(RECIPE_COAT, 2);
    Config *c = &b->run->config;
    ModelShape *s = &c->shape;
    architecture_shape(ARCHITECTURE_LLAMA, s);
    s->layers = s->heads = 2, s->kv_heads = 1, s->head_dim = 4, s->channels = 8, s->ffn = 16, s->positions = 64;
    s->tied_head = tied;
    model_shape_vocab(s, 130);
    const bool clip = kind == VISION_CLIP;
    s->vision =
        (VisionShape){kind,  clip ? 12 : 16, 4,         12, 20,  3,   2,   3,    clip ? ACT_GELU_QUICK : ACT_GELU_TANH,
                      1e-5f, clip,           projector, 8,  129, {0}, {0}, !clip};
    c->seq_len = 32;
    c->freeze = frozen;
    run_allocate(b->run);
    vision_config(&b->tower_config, c);
    arena_plan(&b->tower, &b->tower_config, 1, DEVICE_CPU);
    ignored = b->run->exec;
    arena_join(&b->tower, &b->run->arena, &ignored);
    b->run->arena.vision = &b->tower;
    return b;
}

static void both_close(Both *b) {
    run_close(b->run);
    free(b);
}

static float value_of(int number, int64_t i) {
    return (float)((number * 31 + i * 7) % 255 - 127) / 64.0f;
}

// Writes the model's tensors, including those that it does not compute with, to folder/model.safetensors, and its
// config.json. Tensor n has the values value_of(n, ...).
//   layout: number of the layout of tensor names (hf_other_name()); -1: the names that published files have
//   dropped, extra: name of a tensor to omit, and of an additional tensor; NULL: none
static void write_model(const Both *b, const char *folder, int layout, const char *dropped, const char *extra) {
    CheckpointTensor *list;
    SafeWriter writer;
    char other[HF_NAME_LENGTH];
    const int64_t nine[] = {9, 1, 1, 1};
    uint64_t hash;
    const int count = checkpoint_model_tensors(&b->run->arena, &list);
    memset(&writer, 0, sizeof writer);
    for (int i = 0; i < count; i++) {
        int64_t shape[HF_MAX_RANK];
        checkpoint_file_shape(&list[i], shape);
        const char *name = layout < 0 ? NULL : hf_other_name(list[i].name, layout, other);
        for (int k = 2; layout >= 2 && k < HF_LAYOUTS && !name; k++) // tensors that `layout` does not rename
            if (k != 5 && k != 6) name = hf_other_name(list[i].name, k, other);
        if (dropped && strcmp(list[i].name, dropped) == 0) continue;
        safewriter_declare(&writer, name ? name : list[i].name, DTYPE_F32, list[i].rank, shape, i);
    }
    if (extra) safewriter_declare(&writer, extra, DTYPE_F32, 1, nine, count);
    mkdir(folder, 0777);
    const char *path = in(folder, "model.safetensors");
    unlink(path);
    if (!safewriter_begin(&writer, path, &err)) fail_msg("%s", err.text);
    for (int i = 0; i < writer.count; i++)
        for (int64_t k = 0; k < (int64_t)writer.tensors[i].bytes / 4; k++) {
            const float value = value_of(writer.tensors[i].tag, k);
            assert_true(safewriter_write(&writer, &value, sizeof value, &err));
        }
    if (!safewriter_end(&writer, &hash, &err)) fail_msg("%s", err.text);
    safewriter_close(&writer);
    free(list);
    make_config(folder, &b->run->config.shape);
}

static void assert_loads(Both *b, const char *folder) {
    CheckpointTensor *list;
    memset(b->run->arena.base, 0x5a, b->run->arena.total_bytes);
    if (!checkpoint_load_weights(folder, &b->run->arena, &b->run->exec, &err)) fail_msg("%s", err.text);
    const int count = checkpoint_model_tensors(&b->run->arena, &list);
    for (int i = 0; i < count; i++)
        for (int64_t k = 0; list[i].arena && k < list[i].kept_rows * list[i].cols; k++) {
            const float found = bf16_decode(((const uint16_t *)list[i].data)[k]);
            if (found != value_of(i, k)) fail_msg("%s: %g, not %g", list[i].name, found, value_of(i, k));
        }
    free(list);
}

// Checks names and shapes of some tensors without using the tables in hf_names.c.
UNIT_TEST(llava_tensors_have_published_names_and_shapes) {
    static const struct {
        VisionKind kind;
        const char *name;
        int rank;
        int64_t shape[4];
    } expected[] = {
        {VISION_CLIP, "language_model.model.layers.1.mlp.up_proj.weight", 2, {16, 8, 0, 0}},
        {VISION_CLIP, "language_model.lm_head.weight", 2, {130, 8, 0, 0}},
        {VISION_CLIP, "vision_tower.vision_model.embeddings.class_embedding", 1, {12, 0, 0, 0}},
        {VISION_CLIP, "vision_tower.vision_model.embeddings.patch_embedding.weight", 4, {12, 3, 4, 4}},
        {VISION_CLIP, "vision_tower.vision_model.embeddings.position_embedding.weight", 2, {10, 12, 0, 0}},
        {VISION_CLIP, "vision_tower.vision_model.pre_layrnorm.bias", 1, {12, 0, 0, 0}},
        {VISION_CLIP, "vision_tower.vision_model.encoder.layers.0.self_attn.k_proj.bias", 1, {12, 0, 0, 0}},
        {VISION_CLIP, "vision_tower.vision_model.encoder.layers.2.mlp.fc1.weight", 2, {20, 12, 0, 0}},
        {VISION_CLIP, "vision_tower.vision_model.post_layernorm.weight", 1, {12, 0, 0, 0}},
        {VISION_CLIP, "multi_modal_projector.norm.weight", 1, {48, 0, 0, 0}},
        {VISION_CLIP, "multi_modal_projector.linear_1.weight", 2, {8, 48, 0, 0}},
        {VISION_SIGLIP, "vision_tower.vision_model.embeddings.patch_embedding.bias", 1, {12, 0, 0, 0}},
        {VISION_SIGLIP, "vision_tower.vision_model.embeddings.position_embedding.weight", 2, {16, 12, 0, 0}},
        {VISION_SIGLIP, "vision_tower.vision_model.encoder.layers.1.self_attn.out_proj.weight", 2, {12, 12, 0, 0}},
        {VISION_SIGLIP, "vision_tower.vision_model.head.probe", 3, {1, 1, 12, 0}},
        {VISION_SIGLIP, "vision_tower.vision_model.head.attention.in_proj_weight", 2, {36, 12, 0, 0}},
        {VISION_SIGLIP, "vision_tower.vision_model.head.mlp.fc2.weight", 2, {12, 20, 0, 0}},
    };
    for (int kind = VISION_CLIP; kind <= VISION_SIGLIP; kind++) {
        CheckpointTensor *list;
        Both *b = both_open((VisionKind)kind, PROJECTOR_DOWNSAMPLE, false);
        const int count = checkpoint_model_tensors(&b->run->arena, &list);
        for (size_t e = 0; e < sizeof expected / sizeof *expected; e++) {
            int i = 0;
            int64_t shape[HF_MAX_RANK];
            if (expected[e].kind != (VisionKind)kind) continue;
            while (i < count && strcmp(list[i].name, expected[e].name) != 0) i++;
            if (i == count) fail_msg("no tensor %s", expected[e].name);
            checkpoint_file_shape(&list[i], shape);
            assert_int_equal(list[i].rank, expected[e].rank);
            assert_memory_equal(shape, expected[e].shape, (size_t)list[i].rank * sizeof *shape);
        }
        // Language model: 2 blocks of 9 tensors, embedding, norm, head. Tower: embeddings, 3 blocks of 16, norms.
        // Projector: 6.
        assert_int_equal(count, 21 + (kind == VISION_CLIP ? 5 : 3) + 48 + 2 + (kind == VISION_CLIP ? 0 : 11) + 6);
        free(list);
        both_close(b);
    }
}

// Weights load with the tensor names of published files, and with the three layouts of hf_other_name() that rename the
// tower of a Llava model.
UNIT_TEST(weights_load_in_four_layouts_of_names) {
    static const int layouts[] = {-1, 4, 5, 6};
    for (int kind = VISION_CLIP; kind <= VISION_SIGLIP; kind++)
        for (int i = 0; i < 8; i++) {
            Both *b = both_open((VisionKind)kind, (ProjectorKind)(i % 2), i / 4);
            const char *folder = path_of("layouts");
            write_model(b, folder, layouts[i % 4], NULL, NULL);
            assert_loads(b, folder);
            write_model(b, folder, layouts[i % 4], NULL, "vision_tower.vision_model.embeddings.position_ids");
            assert_loads(b, folder);
            both_close(b);
        }
}

// Loading fails if a tensor that the program computes with is missing. Other tensors may be missing, but must not have
// a wrong shape.
UNIT_TEST(a_missing_tensor_of_the_computation_is_an_error) {
    Both *b = both_open(VISION_SIGLIP, PROJECTOR_MLP, true);
    const char *folder = path_of("leftovers");
    static const char *const needed[] = {"language_model.model.norm.weight", "multi_modal_projector.linear_2.bias",
                                         "vision_tower.vision_model.embeddings.patch_embedding.bias",
                                         "vision_tower.vision_model.encoder.layers.1.layer_norm2.weight"};
    static const char *const carried[] = {"vision_tower.vision_model.encoder.layers.2.layer_norm2.weight",
                                          "vision_tower.vision_model.post_layernorm.bias",
                                          "vision_tower.vision_model.head.probe"};
    for (int i = 0; i < 4; i++) {
        write_model(b, folder, -1, needed[i], NULL);
        assert_refused(folder, b->run, needed[i]);
    }
    for (int i = 0; i < 3; i++) {
        write_model(b, folder, -1, carried[i], NULL);
        assert_loads(b, folder);
        write_model(b, folder, -1, carried[i], carried[i]);
        assert_refused(folder, b->run, "has the shape (9)");
    }
    write_model(b, folder, -1, NULL, "vision_tower.vision_model.encoder.layers.3.layer_norm1.bias");
    assert_refused(folder, b->run, "is not a tensor of the llava");
    write_model(b, folder, -1, NULL, "language_model.lm_head.weight");
    assert_refused(folder, b->run, "tie_word_embeddings");
    // The folder's model has another number of layers in its tower.
    b->run->config.shape.vision.layers = 3;
    write_model(b, folder, -1, NULL, NULL);
    b->run->config.shape.vision.layers = 2;
    assert_refused(folder, b->run, "vision layers");
    both_close(b);
}

static void fill_both(Both *b, RunState *rs, uint64_t seed) {
    *rs = fill(b->run, seed);
    Run tower = *b->run;
    tower.arena = b->tower;
    each_state(&tower, fill_random, &seed);
}

static Copy copy_of_both(Both *b) {
    Copy copy = copy_of(b->run);
    Run tower = *b->run;
    tower.arena = b->tower;
    each_state(&tower, append_copy, &copy);
    return copy;
}

// Saves and loads a checkpoint. Fails unless all states of the language model and of the tower have the same bits.
static void expect_restored(Both *b, const char *out) {
    char folder[TEST_PATH];
    RunState rs, after;
    fill_both(b, &rs, 7);
    const Copy before = copy_of_both(b);
    if (!checkpoint_save(out, &b->run->arena, &b->run->exec, &rs, NULL, &err)) fail_msg("%s", err.text);
    memset(b->run->arena.base, 0x5a, b->run->arena.total_bytes);
    if (!checkpoint_find(out, -1, folder, sizeof folder, &err) ||
        !checkpoint_load(folder, &b->run->arena, &b->run->exec, &after, &err))
        fail_msg("%s", err.text);
    assert_same_copies(before, copy_of_both(b));
}

// Reads an FP32 or BF16 tensor from a safetensors file and returns its values as FP32.
static float *values_in(const char *path, const char *name, int64_t *count) {
    SafeFile file;
    if (!safetensors_open(&file, path, &err)) fail_msg("%s", err.text);
    const SafeTensor *t = safetensors_find(&file, name);
    if (!t) fail_msg("%s: no %s", path, name);
    *count = (int64_t)(t->bytes / dtype_bytes(t->dtype));
    float *values = (float *)xmalloc((size_t)*count * sizeof *values);
    uint16_t *half = (uint16_t *)xmalloc(t->bytes);
    assert_true(safetensors_read(&file, t, 0, t->dtype == DTYPE_F32 ? (void *)values : half, t->bytes, &err));
    for (int64_t i = 0; t->dtype == DTYPE_BF16 && i < *count; i++) values[i] = bf16_decode(half[i]);
    free(half);
    safetensors_close(&file);
    return values;
}

UNIT_TEST(a_llava_checkpoint_restores_all_states) {
    static const char *const norm = "vision_tower.vision_model.encoder.layers.2.layer_norm1.weight",
                             *const bias = "vision_tower.vision_model.encoder.layers.2.layer_norm1.bias";
    for (int i = 0; i < 4; i++) {
        Both *b = both_open(i / 2 ? VISION_SIGLIP : VISION_CLIP, (ProjectorKind)(i % 2), true);
        int64_t count;
        const char *out = formatted("%s-%d", path_of("llava"), i);
        const char *model = in(out, "step-00000020/model.safetensors");
        expect_restored(b, out);
        // a new model has initial values
        float *ones = values_in(model, norm, &count), *zeros = values_in(model, bias, &count);
        for (int64_t k = 0; k < count; k++) assert_true(ones[k] == 1.0f && zeros[k] == 0.0f);
        free(ones);
        free(zeros);
        // If the model was loaded from files, its checkpoint stores the values of those files, whatever their type.
        write_model(b, path_of("source"), -1, bias, NULL);
        snprintf(b->run->config.shape_files, sizeof b->run->config.shape_files, "%s", path_of("source"));
        expect_restored(b, out);
        int64_t expected;
        float *carried = values_in(model, norm, &count),
              *there = values_in(path_of("source/model.safetensors"), norm, &expected);
        assert_int_equal(count, expected);
        assert_memory_equal(carried, there, (size_t)count * sizeof *carried);
        zeros = values_in(model, bias, &count);
        assert_true(zeros[0] == 0.0f);
        free(carried);
        free(zeros);
        free(there);
        both_close(b);
    }
}

// Fails unless a state that the checkpoint lacks, because its part was frozen, starts with zeros: a moment, or the low
// 16 bits of the master weights.
static void expect_started(const Arena *arena, TensorId id, Role role, int layer) {
    const Tensor t = arena_tensor(arena, id, role, layer);
    const size_t bytes = (size_t)tensor_elements(t) * format_bytes(t.format);
    for (size_t i = 0; i < bytes; i++)
        if (((const uint8_t *)t.data)[i] != 0)
            fail_msg("%s%s: byte %zu is not 0", tensor_row(id)->name, role_suffix(role), i);
    for (size_t i = 0; t.granularity == SCALE_EXPAND && i < groups_of(t); i++)
        assert_true(((const float *)t.scale)[i] == 0.0f && t.exponent[i] == 16);
}

// Compares the model's states with the states at the time of the save. States that the checkpoint lacks must be 0.
static void expect_parts(const Arena *before, const Arena *now) {
    for (int id = 0; id < PARAMETER_COUNT; id++)
        for (int layer = 0; layer < now->layout[id][VALUE].layers; layer++)
            for (int i = 0; i < 4; i++) {
                const Tensor a = arena_tensor(before, (TensorId)id, saved_roles[i], layer),
                             b = arena_tensor(now, (TensorId)id, saved_roles[i], layer);
                if (b.data && a.data)
                    assert_memory_equal(a.data, b.data, (size_t)tensor_elements(b) * format_bytes(b.format));
                else if (b.data)
                    expect_started(now, (TensorId)id, saved_roles[i], layer);
            }
}

// Loads checkpoints of runs with frozen parts into runs with other frozen parts. Parts without states start with
// moments of 0 and with the checkpoint's weights as master weights. The states of parts that are frozen now are not
// read.
UNIT_TEST(checkpoints_load_into_runs_with_other_frozen_parts) {
    for (int before = 0; before < 7; before++) {
        char folder[TEST_PATH];
        RunState rs, after;
        const char *out = formatted("%s-%d", path_of("parts"), before);
        frozen = before;
        Both *a = both_open(VISION_CLIP, PROJECTOR_DOWNSAMPLE, true);
        fill_both(a, &rs, 7);
        if (!checkpoint_save(out, &a->run->arena, &a->run->exec, &rs, NULL, &err)) fail_msg("%s", err.text);
        assert_true(checkpoint_find(out, -1, folder, sizeof folder, &err));
        for (frozen = 0; frozen < 7; frozen++) {
            Both *b = both_open(VISION_CLIP, PROJECTOR_DOWNSAMPLE, true);
            memset(b->run->arena.base, 0x5a, b->run->arena.total_bytes);
            if (!checkpoint_load(folder, &b->run->arena, &b->run->exec, &after, &err)) fail_msg("%s", err.text);
            expect_parts(&a->run->arena, &b->run->arena);
            expect_parts(&a->tower, &b->tower);
            both_close(b);
        }
        both_close(a);
    }
    frozen = 0;
}

static VisionShape vision; // shape that pixels_of() has set

static bool pixels_of(const char *folder) {
    vision = (VisionShape){.kind = VISION_CLIP};
    json_t *processor = hf_processor_open(folder, &err);
    const bool good = processor && hf_processor_pixels(processor, folder, &vision, &err);
    json_decref(processor);
    return good;
}

UNIT_TEST(processor_files_are_read_and_written) {
    const char *folder = path_of("processor");
    assert_int_equal(mkdir(folder, 0777), 0);
    const char *outer = path_of("processor/processor_config.json"),
               *inner = path_of("processor/preprocessor_config.json");
    // no file defines the mean and deviation of pixels
    assert_true(pixels_of("") && pixels_of(folder) && vision.deviation[0] == 0);
    write_text(inner,
               "{\"image_mean\": [0.1, 0.2, 0.3], \"image_std\": [1, 2, 4], \"rescale_factor\": 0.00392156862745098, "
               "\"do_rescale\": true}");
    assert_true(pixels_of(folder) && vision.mean[1] == 0.2f && vision.deviation[2] == 4);
    // The object "image_processor", which transformers 5 writes, takes precedence.
    write_text(outer,
               "{\"image_processor\": {\"image_mean\": [0.5, 0.5, 0.5]}, \"image_token\": \"<p>\", \"patch_size\": 7}");
    assert_true(pixels_of(folder) && vision.mean[1] == 0.5f && vision.deviation[2] == 0.27577711f);
    const VisionShape shape = {VISION_SIGLIP, 16, 4, 12,  20,  3,   2, 3, ACT_GELU_TANH, 1e-6f, false,
                               PROJECTOR_MLP, 8,  9, {0}, {0}, true};
    JsonText images, processor;
    json_t *source = hf_processor_open(folder, &err);
    hf_processor_texts(&images, &processor, source, &shape, "<image>");
    assert_non_null(strstr(images.text, "image_mean"));
    assert_null(strstr(images.text, "image_std"));
    assert_null(strstr(processor.text, "image_processor\""));
    assert_non_null(strstr(processor.text, "\"image_token\": \"<p>\""));
    assert_non_null(strstr(processor.text, "\"patch_size\": 7"));
    assert_non_null(strstr(processor.text, "\"num_additional_image_tokens\": 0"));
    assert_non_null(strstr(processor.text, "\"vision_feature_select_strategy\": \"full\""));
    json_text_free(&images);
    json_text_free(&processor);
    json_decref(source);
    static const char *const bad[][2] = {
        {"{\"image_mean\": [0.5]}", "image_mean"},   {"{\"image_mean\": [1, 2, \"3\"]}", "image_mean"},
        {"{\"image_std\": [1, 0, 1]}", "image_std"}, {"{\"do_normalize\": false}", "do_normalize"},
        {"{\"do_rescale\": false}", "do_rescale"},   {"{\"rescale_factor\": 1}", "rescale_factor"},
        {"[]", "preprocessor_config.json"}};
    unlink(outer);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text(inner, bad[i][0]);
        assert_false(pixels_of(folder));
        assert_says(&err, folder);
        assert_says(&err, bad[i][1]);
    }
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
