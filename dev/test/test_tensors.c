// Tests of the table of tensors (coat/model/tensors.h) and of Hugging Face's tensor names (coat/save/hf_names.h): the
// parameters of each model, and parameters that files store in parts.
#include "dev/test/checkpoint_run.h"

#include "coat/config/shapes.h"
#include "coat/config/vision.h"
#include "coat/model/flops.h"
#include "coat/save/checkpoint_tensors.h"
#include "coat/save/hf_names.h"

static Error err; // error of the last failed call

static ModelShape llama(int layers, int heads, int kv_heads, int head_dim, int ffn, int vocab) {
    ModelShape s = {.layers = layers, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .ffn = ffn};
    s.channels = heads * head_dim;
    s.positions = 2048;
    s.norm = NORM_RMS;
    s.activation = ACT_SWIGLU;
    s.position_kind = POSITIONS_ROTARY;
    model_shape_vocab(&s, vocab);
    return s;
}

// Compares models' numbers of parameters with published numbers, and checks the number of a GPT-2 without biases.
UNIT_TEST(models_have_the_published_numbers_of_parameters) {
    ModelShape s = llama(32, 32, 32, 128, 11008, 32000), gpt2;
    assert_true(model_parameters(&s) == 6738415616);
    s = llama(16, 16, 16, 128, 8192, 50304); // Shape of OLMo-1B, with a tied head and norms without weights.
    s.norm = NORM_PLAIN;
    s.tied_head = true;
    assert_true(model_parameters(&s) == 1176764416);
    s = llama(24, 14, 2, 64, 4864, 151936); // shape of Qwen2.5-0.5B
    s.tied_head = s.qkv_biases = true;
    assert_true(model_parameters(&s) == 494032768);
    assert_true(gpt2_shape(&gpt2, 12, 12, 768, 0, 50257, 1024, "gpt2", &err));
    assert_true(model_parameters(&gpt2) == 124439808);
    gpt2.biases = false; // removes the biases of four matmuls and two norms per layer, and of the final norm
    assert_true(model_parameters(&gpt2) == 124439808 - 12 * 11 * 768 - 768);
}

// Muon orthogonalizes q, k and v separately in every model, and gate and up separately in models with SwiGLU.
UNIT_TEST(muon_orthogonalizes_q_k_v_gate_and_up_separately) {
    static const struct {
        TensorId id;
        int llama, gpt2;
    } cases[] = {{QKVW, 3, 3}, {QKVB, 3, 3}, {FCW, 2, 1}, {PROJW, 1, 1}, {FCPROJW, 1, 1}, {LN1W, 1, 1}, {WTE, 1, 1}};
    const ModelShape s = llama(2, 4, 2, 16, 96, 257);
    ModelShape gpt2;
    int64_t rows[MAX_PIECES];
    assert_true(gpt2_shape(&gpt2, 2, 2, 32, 0, 257, 64, "gpt2", &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(tensor_pieces(cases[i].id, &gpt2, rows), cases[i].gpt2);
        assert_int_equal(tensor_pieces(cases[i].id, &s, rows), cases[i].llama);
    }
    assert_true(tensor_pieces(QKVW, &s, rows) == 3 && rows[0] == 64 && rows[1] == 32 && rows[2] == 32);
    assert_true(tensor_pieces(FCW, &s, rows) == 2 && rows[0] == 96 && rows[1] == 96);
}

// Compares the FLOPs of a training step with formulas. LLaVA-1.5's sizes: Llama-2-7B, and CLIP-L at 336 pixels without
// its last block and final norm. Trained parts have dgrad and wgrad. A frozen part has dgrad only if a part before it
// is trained.
UNIT_TEST(flops_of_a_training_step_follow_formulas) {
    const double language = 6738415616.0, tower = 303507456.0 - 12596224 - 2048, projector = 4096.0 * (1024 + 4096 + 2);
    const double attention = 3 * 4.0 * 32 * 4096 * 2048 / 2, per_row = 2 * tower + 4.0 * 23 * 1024 * 577;
    const struct {
        int freeze, language, tower, projector; // number of matmuls that a parameter of the part is in
    } cases[] = {{0, 3, 3, 3},
                 {PART_VISION, 3, 1, 3},
                 {PART_VISION | PART_LANGUAGE, 2, 1, 3},
                 {PART_PROJECTOR, 3, 3, 2},
                 {PART_LANGUAGE | PART_PROJECTOR, 2, 3, 2},
                 {PART_VISION | PART_PROJECTOR, 3, 1, 1}};
    static Config c;
    config_defaults(&c);
    c.shape = llama(32, 32, 32, 128, 11008, 32000);
    c.micro_batch = 1;
    c.seq_len = 2048;
    const TrainFlops text = train_flops(&c);
    assert_true(text.per_token == 6 * language + attention && text.per_image == 0);
    assert_true(vision_named("clip-l14-336", &c.shape.vision));
    c.shape.vision.features = c.shape.channels;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        c.freeze = cases[i].freeze;
        const TrainFlops flops = train_flops(&c);
        assert_true(flops.per_token == 2 * cases[i].language * language + attention);
        assert_true(flops.per_image == 577 * per_row * cases[i].tower + 576 * 2.0 * cases[i].projector * projector);
    }
}

UNIT_TEST(tensors_have_hugging_face_names) {
    static const char *const qkv[] = {"model.layers.7.self_attn.q_proj.weight",
                                      "model.layers.7.self_attn.k_proj.weight",
                                      "model.layers.7.self_attn.v_proj.weight"};
    static const int64_t begins[] = {0, 32 * 128, 40 * 128, 48 * 128};
    ModelShape s = llama(32, 32, 8, 128, 14336, 128256),
               gpt2 = {.channels = 48, .heads = 2, .kv_heads = 2, .head_dim = 24};
    HfPart parts[HF_MAX_PARTS];
    char name[HF_NAME_LENGTH];
    assert_int_equal(hf_parts(&s, QKVW, 7, parts), 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(parts[i].name, qkv[i]);
        assert_true(parts[i].first_row == begins[i] && parts[i].rows == begins[i + 1] - begins[i]);
        assert_false(parts[i].transposed);
    }
    assert_int_equal(hf_parts(&s, FCW, 0, parts), 2);
    assert_string_equal(parts[0].name, "model.layers.0.mlp.gate_proj.weight");
    assert_string_equal(parts[1].name, "model.layers.0.mlp.up_proj.weight");
    assert_true(parts[1].first_row == 14336 && parts[1].rows == 14336);
    hf_whole_name(&s, FCW, 31, name);
    assert_string_equal(name, "model.layers.31.mlp.gate_up_proj.weight");
    // GPT-2 files store every parameter in one part, so the part has the parameter's name.
    for (int id = 0; id <= LNFB; id++) {
        hf_whole_name(&gpt2, (TensorId)id, 0, name);
        assert_int_equal(hf_parts(&gpt2, (TensorId)id, 0, parts), 1);
        assert_string_equal(parts[0].name, name);
    }
    assert_int_equal(hf_parts(&gpt2, QKVW, 11, parts), 1);
    assert_string_equal(parts[0].name, "transformer.h.11.attn.c_attn.weight");
    assert_true(parts[0].transposed && parts[0].first_row == 0 && parts[0].rows == 144);
}

static Run *llama_run(RecipeKind recipe, int ranks, int rank) {
    Run *run = run_open(recipe, 2);
    run->config.shape = llama(2, 4, 2, 10, 56, 257);
    run->config.zero = ranks > 1 ? 3 : 0;
    run->exec.rank = rank;
    run->exec.ranks = ranks;
    arena_plan(&run->arena, &run->config, ranks, DEVICE_CPU);
    if (!arena_allocate(&run->arena, &run->exec, &err)) fail_msg("%s", err.text);
    return run;
}

// Fills the elements of the parameters with different numbers, and padding rows with 0.
static void fill_values(Run *run) {
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < run->arena.layout[id][VALUE].layers; layer++) {
            Tensor t = arena_tensor(&run->arena, (TensorId)id, VALUE, layer);
            int64_t used = tensor_used_rows((TensorId)id, t.rows, &run->config.shape) * t.cols;
            for (int64_t i = 0; i < tensor_elements(t); i++)
                ((uint16_t *)t.data)[i] = i < used ? (uint16_t)(1 + (i * 7 + id * 1001 + layer * 77) % 16000) : 0;
        }
    }
}

static const CheckpointTensor *find(const CheckpointTensor *list, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0) return &list[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

// Parameters stored in parts, such as q, k and v, have the right shapes in the file and are read back unchanged.
UNIT_TEST(parameters_stored_in_parts_are_read_back) {
    CheckpointTensor *list;
    JsonText text;
    Manifest manifest;
    Run *run = llama_run(RECIPE_COAT, 1, 0);
    fill_values(run);
    int count = checkpoint_model_tensors(&run->arena, &list);
    // Tensors in the file: embedding, final norm and head; per layer two norms, q, k, v, o, gate, up and down.
    assert_int_equal(count, 3 + 2 * 9);
    const CheckpointTensor *v = find(list, count, "model.layers.1.self_attn.v_proj.weight");
    Tensor qkv = arena_tensor(&run->arena, QKVW, VALUE, 1);
    assert_true(v->rows == 20 && v->cols == 40 && v->rank == 2);
    assert_true(v->data == (char *)tensor_rows(qkv, 60, 20).data);
    const CheckpointTensor *embedding = find(list, count, "model.embed_tokens.weight");
    assert_true(embedding->kept_rows == 257 && embedding->rows == 384);

    assert_int_equal(mkdir(path_of("parts"), 0777), 0);
    manifest_begin(&text);
    const TensorFile file = {"model.safetensors", list, count, NULL};
    if (!checkpoint_write_tensors(path_of("parts"), &file, 1, &run->exec, &text, &err)) fail_msg("%s", err.text);
    manifest_finish(&text);
    write_file(path_of("parts/" MANIFEST_NAME), text.text, text.size);
    if (!manifest_open(&manifest, path_of("parts"), &err)) fail_msg("%s", err.text);

    Run *other = llama_run(RECIPE_COAT, 1, 0);
    CheckpointTensor *there;
    assert_int_equal(checkpoint_model_tensors(&other->arena, &there), count);
    if (!checkpoint_read_tensors(&manifest, "model.safetensors", there, count, &other->exec, &err))
        fail_msg("%s", err.text);
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < run->arena.layout[id][VALUE].layers; layer++) {
            Tensor a = arena_tensor(&run->arena, (TensorId)id, VALUE, layer);
            Tensor b = arena_tensor(&other->arena, (TensorId)id, VALUE, layer);
            if (memcmp(a.data, b.data, (size_t)tensor_elements(a) * sizeof(uint16_t)) != 0)
                fail_msg("%s of layer %d", tensor_row((TensorId)id)->name, layer);
        }
    }
    manifest_close(&manifest);
    json_text_free(&text);
    free(there);
    free(list);
    run_close(other);
    run_close(run);
}

// With ZeRO 3, the ranges of q, k and v in a file that a rank reads make up its shard of QKVW. Copies these ranges from
// memory instead of a file.
UNIT_TEST(each_rank_reads_its_shard_of_a_parameter_in_parts) {
    enum { RANKS = 3 };
    Run *whole = llama_run(RECIPE_COAT, 1, 0);
    fill_values(whole);
    for (int rank = 0; rank < RANKS; rank++) {
        CheckpointTensor *list;
        Run *run = llama_run(RECIPE_COAT, RANKS, rank);
        int count = checkpoint_model_tensors(&run->arena, &list);
        for (int i = 0; i < count; i++) {
            const CheckpointTensor *t = &list[i];
            if (!t->shared) continue;
            const uint16_t *from = (const uint16_t *)arena_tensor(&whole->arena, t->id, VALUE, t->layer).data;
            from += t->offset / sizeof *from + (size_t)t->shard_begin;
            if (t->shard_elements > 0) memcpy(t->data, from, (size_t)t->shard_elements * sizeof *from);
        }
        for (int layer = 0; layer < 2; layer++) {
            int64_t begin;
            Tensor shard = arena_shard(&run->arena, QKVW, VALUE, layer, &begin);
            const uint16_t *expected = (const uint16_t *)arena_tensor(&whole->arena, QKVW, VALUE, layer).data + begin;
            assert_memory_equal(shard.data, expected, (size_t)tensor_elements(shard) * sizeof *expected);
        }
        free(list);
        run_close(run);
    }
    run_close(whole);
}

// Scratch tensors may share memory. Tensors that are written only once, or that the host reads, must not share it.
UNIT_TEST(only_short_lived_tensors_share_memory) {
    for (int recipe = RECIPE_BF16; recipe <= RECIPE_COAT; recipe++) {
        Run *run = llama_run((RecipeKind)recipe, 1, 0);
        for (int id = PARAMETER_COUNT; id < TENSOR_COUNT; id++) {
            const TensorLayout *t = &run->arena.layout[id][VALUE];
            const bool keeps = id == TOKENS || id == TARGETS || id == STATE || id == ROPE_TABLE || id == LOSSES ||
                               id == BEST || id == CODE_COUNTS || id == INNER_PRODUCTS || id == OUTLIERS;
            if (!t->exists || t->alias >= 0 || t->category < CATEGORY_SCRATCH || t->saved == keeps) continue;
            fail_msg("%s of recipe %d", tensor_row((TensorId)id)->name, recipe);
        }
        run_close(run);
    }
}

// Every tensor id has a row in the table, with a unique name. A tensor that exists has a shape. If it uses the memory
// or scale of another tensor, the other tensor exists, too, and is large enough.
UNIT_TEST(every_tensor_has_a_valid_row_in_the_table) {
    for (int id = 0; id < TENSOR_COUNT; id++) {
        if (!tensor_row((TensorId)id)->name) fail_msg("tensor %d has no row", id);
        for (int other = 0; other < id; other++)
            assert_string_not_equal(tensor_row((TensorId)id)->name, tensor_row((TensorId)other)->name);
    }
    for (int recipe = RECIPE_BF16; recipe <= RECIPE_COAT_PAPER; recipe++) {
        Run *run = llama_run((RecipeKind)recipe, 1, 0);
        for (int id = 0; id < TENSOR_COUNT; id++) {
            const TensorLayout *t = &run->arena.layout[id][VALUE];
            if (!t->exists) continue;
            if (t->rows < 1 || t->cols < 1) fail_msg("%s has no shape", tensor_row((TensorId)id)->name);
            const TensorId owner = arena_owner(&run->arena, (TensorId)id, VALUE, 1);
            const TensorLayout *memory = &run->arena.layout[owner][VALUE];
            assert_int_equal(id < PARAMETER_COUNT, owner < PARAMETER_COUNT);
            if (!layout_owns_memory(memory) ||
                memory->data_bytes < (size_t)(t->rows * t->cols) * format_bytes(t->format))
                fail_msg("%s lacks memory", tensor_row((TensorId)id)->name);
            if (t->scale_source < 0 || t->granularity == SCALE_NONE) continue;
            assert_true(run->arena.layout[t->scale_source][VALUE].scale_bytes > 0);
        }
        run_close(run);
    }
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
