// Tests of the contents of checkpoints (coat/save/checkpoint.h): all states are restored bit for bit, equal states are
// saved as equal files, and a checkpoint of another model is refused.
#include "dev/test/checkpoint_run.h"

#include <xxhash.h>

#include "coat/config/shapes.h"
#include "coat/io/json.h"
#include "coat/io/safetensors.h"
#include "coat/model/weights.h"
#include "coat/save/manifest.h"
#include "coat/save/run_state.h"

static Error err; // error of the last failed call

// Saves a checkpoint, overwrites all states, loads the checkpoint and compares the states. Then saves the loaded states
// to another folder and compares the files.
static void round_trip(Run *run, const char *out) {
    RunState before = fill(run, 7), after;
    Copy copy = copy_of(run);
    const char *folder = save(run, out, &before);
    each_state(run, fill_rubbish, NULL);
    memset(arena_tensor(&run->arena, STATE, VALUE, 0).data, 0xff, sizeof(StepState));
    memset(&after, 0xff, sizeof after);
    if (!checkpoint_load(folder, &run->arena, &run->exec, &after, &err)) fail_msg("%s", err.text);
    assert_same_copies(copy, copy_of(run));
    assert_memory_equal(&after, &before, sizeof before);
    assert_memory_equal(arena_tensor(&run->arena, STATE, VALUE, 0).data, &before.state, sizeof before.state);
    const char *again = save(run, formatted("%s-again", out), &after);
    for (size_t i = 0; i < FILES; i++) assert_same_files(in(folder, files[i]), in(again, files[i]));
    run_close(run);
}

UNIT_TEST(loading_restores_all_states_bit_for_bit) {
    round_trip(run_new(RECIPE_BF16), "bf16");
    round_trip(run_new(RECIPE_COAT), "coat");
    Run *run = run_open(RECIPE_BF16, 1);
    run->config.recipe.precision = PRECISION_FP32;
    run_allocate(run);
    round_trip(run, "fp32");
    run = run_open(RECIPE_COAT, 2);
    run->config.recipe.master = MASTER_NONE;
    run_allocate(run);
    round_trip(run, "no-master");
    run = run_open(RECIPE_FP8_LINEAR, 2);
    run->config.recipe.moments = MOMENTS_BF16;
    run->config.recipe.master = MASTER_SPLIT16;
    run_allocate(run);
    round_trip(run, "moments-bf16");
}

UNIT_TEST(a_tensor_larger_than_the_staging_buffer_is_restored) {
    Run *run = run_open(RECIPE_COAT, 1);
    model_shape_vocab(&run->config.shape, 55001);
    run->config.recipe.master = MASTER_FP32;
    run_allocate(run);
    round_trip(run, "large");
}

// Tests that model.safetensors has Hugging Face's layout: Hugging Face names, transposed weights, no padding rows.
UNIT_TEST(model_file_has_hugging_face_layout) {
    Run *run = run_new(RECIPE_COAT);
    RunState rs = fill(run, 3);
    const char *folder = save(run, "layout", &rs);
    SafeFile file;
    if (!safetensors_open(&file, in(folder, "model.safetensors"), &err)) fail_msg("%s", err.text);
    assert_int_equal(file.count, 2 + 12 * 3 + 2);
    const SafeTensor *t = safetensors_find(&file, "transformer.wte.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, DTYPE_BF16);
    assert_int_equal(t->shape[0], 257);
    assert_int_equal(t->shape[1], 40);
    t = safetensors_find(&file, "transformer.h.2.mlp.c_fc.weight");
    assert_non_null(t);
    assert_int_equal(t->shape[0], 40); // the file stores matrices as (in, out)
    assert_int_equal(t->shape[1], 160);
    uint16_t got[40 * 160];
    assert_true(safetensors_read(&file, t, 0, got, sizeof got, &err));
    // Matrices in memory are (out, in).
    const uint16_t *native = (const uint16_t *)arena_tensor(&run->arena, FCW, VALUE, 2).data;
    for (int i = 0; i < 40; i++)
        for (int j = 0; j < 160; j++) assert_int_equal(got[i * 160 + j], native[j * 40 + i]);
    t = safetensors_find(&file, "transformer.ln_f.bias");
    assert_non_null(t);
    assert_int_equal(t->rank, 1);
    safetensors_close(&file);
    if (!safetensors_open(&file, in(folder, "optimizer.safetensors"), &err)) fail_msg("%s", err.text);
    t = safetensors_find(&file, "transformer.h.0.attn.c_attn.weight.m");
    assert_non_null(t);
    assert_int_equal(t->dtype, DTYPE_F8_E4M3);
    assert_int_equal(t->shape[0], 120); // shape as in memory, not transposed
    t = safetensors_find(&file, "transformer.h.0.attn.c_attn.weight.v.a");
    assert_non_null(t);
    assert_int_equal(t->dtype, DTYPE_F32);
    assert_int_equal(t->shape[0], (120 * 40 + 127) / 128);
    assert_int_equal(safetensors_find(&file, "transformer.h.0.attn.c_attn.weight.v.k")->dtype, DTYPE_U8);
    assert_int_equal(safetensors_find(&file, "transformer.wte.weight.master")->dtype, DTYPE_U16);
    assert_int_equal(safetensors_find(&file, "transformer.wpe.weight.v")->dtype, DTYPE_F32);
    safetensors_close(&file);
    run_close(run);
}

UNIT_TEST(flags_without_effect_on_training_do_not_change_the_checkpoint) {
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 3);
    const char *a = save(run, "flags-a", &rs);
    Config *c = &run->config;
    c->threads = 7;
    c->val_every = 3;
    c->save_every = 2;
    c->keep = 1;
    c->recipe.group_size = 32;
    c->quiet = true;
    snprintf(c->out, sizeof c->out, "elsewhere");
    const char *b = save(run, "flags-b", &rs);
    for (size_t i = 0; i < FILES; i++) assert_same_files(in(a, files[i]), in(b, files[i]));
    run_close(run);
}

// Saves a checkpoint with this recipe and setting of --recompute. Returns true if its state.json contains `text`.
static bool state_says(Run *run, const RunState *rs, RecipeKind kind, int recompute, const char *name,
                       const char *text) {
    run->config.recipe.kind = kind;
    run->config.recipe.recompute = recompute;
    const char *folder = save(run, name, rs);
    return strstr(contents(in(folder, "state.json")), text) != NULL;
}

// Tests that state.json records the recipe, and --recompute only if it changes bits of the results.
UNIT_TEST(state_json_records_the_recipe) {
    Run *run = run_new(RECIPE_COAT);
    RunState rs = fill(run, 3);
    Recipe *r = &run->config.recipe;
    r->bf16_blocks = 1; // with one BF16 block, --recompute decides whether the block's norms are in BF16
    assert_true(state_says(run, &rs, RECIPE_COAT_PAPER, 0, "recipe-a", "\"recompute\": 0"));
    r->bf16_blocks = 0;
    assert_true(state_says(run, &rs, RECIPE_COAT_PAPER, 1, "recipe-b", "\"recipe\": \"coat-paper\""));
    assert_false(state_says(run, &rs, RECIPE_COAT_PAPER, 0, "recipe-c", "\"recompute\""));
    assert_true(state_says(run, &rs, RECIPE_COAT, 0, "recipe-d", "\"recipe\": \"coat\""));
    assert_true(state_says(run, &rs, RECIPE_COAT, 0, "recipe-e", "\"recompute\": 0"));
    // --recompute 1 and 2 give the same bits
    assert_true(state_says(run, &rs, RECIPE_COAT, 2, "recipe-f", "\"recompute\": 1"));
    r->linear = LINEAR_BF16;
    assert_true(state_says(run, &rs, RECIPE_COAT, 0, "recipe-g", "\"recompute\": 0"));
    assert_false(state_says(run, &rs, RECIPE_COAT, 0, "recipe-h", "\"bf16-blocks\""));
    run_close(run);
}

static void expect_refusal(Run *run, const char *folder, const char *says, ExitCode code) {
    RunState rs;
    Copy before = copy_of(run);
    if (checkpoint_load(folder, &run->arena, &run->exec, &rs, &err)) fail_msg("loaded; expected '%s'", says);
    assert_error(&err, code, says);
    assert_same_copies(before, copy_of(run)); // the failed load has changed no state
    run_close(run);
}

UNIT_TEST(a_checkpoint_of_another_model_is_refused) {
    Run *run = run_new(RECIPE_COAT);
    RunState rs = fill(run, 1);
    const char *folder = save(run, "refuse", &rs);
    run_close(run);
    static const char *const says[] = {"layers 3&this run's model has 2", "positions 24&has 32",
                                       "norm-place before&has after", "activation gelu,&has gelu_erf",
                                       "--precision recipe&not fp32"};
    for (int i = 0; i < 5; i++) {
        run = run_open(RECIPE_COAT, i == 0 ? 2 : 3);
        if (i == 1) run->config.shape.positions = 32;
        if (i == 2) run->config.shape.norm_place = NORM_POST;
        if (i == 3) run->config.shape.activation = ACT_GELU_ERF;
        if (i == 4) run->config.recipe.precision = PRECISION_FP32;
        run_allocate(run);
        expect_refusal(run, folder, says[i], i == 4 ? EXIT_USER : EXIT_DATA);
    }
}

// Tests that settings other than the shape may differ from the checkpoint's. One line is printed per difference, except
// for the length of the run (--steps).
UNIT_TEST(changed_settings_are_accepted_and_printed) {
    Run *run = run_new(RECIPE_COAT);
    RunState rs = fill(run, 1);
    const char *folder = save(run, "changed", &rs);
    run->config.lr = 1e-4f;
    run->config.steps = 77;
    const char *said = load_checkpoint(run, folder, &rs);
    assert_string_equal(said, "resume: --lr was 0.0003 and is now 0.0001\n");
    run->config.lr = 3e-4f;
    run->config.recipe.kind = RECIPE_COAT_PAPER;
    said = load_checkpoint(run, folder, &rs);
    assert_string_equal(said, "resume: --recipe was coat and is now coat-paper\n");
    run_close(run);
}

// Writes a manifest.json with the checksums that the files in the folder now have.
static void resign(const char *folder) {
    JsonText t;
    manifest_begin(&t);
    for (size_t i = 0; i + 1 < FILES; i++) {
        size_t size;
        char *data = read_file(in(folder, files[i]), &size);
        manifest_add(&t, files[i], size, XXH3_64bits(data, size), NULL);
        free(data);
    }
    manifest_finish(&t);
    write_file(in(folder, "manifest.json"), t.text, t.size);
    json_text_free(&t);
}

static void replace_text(const char *path, const char *from, const char *to) {
    size_t size;
    char *data = read_file(path, &size);
    size_t before = 0, length = strlen(from);
    while (before + length < size && memcmp(data + before, from, length) != 0) before++;
    assert_true(before + length < size);
    char *fresh = (char *)xmalloc(size + strlen(to) + 1);
    int n = sprintf(fresh, "%.*s%s%s", (int)before, data, to, data + before + length);
    write_file(path, fresh, (size_t)n);
    free(fresh);
    free(data);
}

UNIT_TEST(invalid_values_in_state_json_are_refused) {
    static const struct {
        const char *from, *to, *says;
    } changes[] = {{"\"step\": 20", "\"step\": -1", "'step'"},
                   {"\"step\": 20", "\"step\": 1e3", "'step'"},
                   {"\"step\": 20", "\"step\": \"20\"", "'step'"},
                   {"\"step\": 20", "\"step\": 99999999999999999999", "JSON"},
                   {"\"step\": 20", "\"step\": 20, \"step\": 20", "JSON"},
                   {"\"nonfinite\": 1", "\"nonfinite\": 3000000000", "'nonfinite'"},
                   {"fedcba9876543210", "fedcba987654321", "'data_fingerprint'"},
                   {"\"grad_sq\": \"inf\"", "\"grad_sq\": \"infinite\"", "'grad_sq'"},
                   {"\"settings\": {", "\"settings\": 3, \"other\": {", "'settings'"},
                   {"\"format\": 1", "\"format\": 2", "'format'"}};
    Run *run = run_new(RECIPE_COAT);
    RunState rs = fill(run, 1), got;
    size_t size;
    const char *folder = save(run, "hostile", &rs);
    char *sound = read_file(in(folder, "state.json"), &size);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        write_file(in(folder, "state.json"), sound, size);
        replace_text(in(folder, "state.json"), changes[i].from, changes[i].to);
        resign(folder);
        assert_false(checkpoint_load(folder, &run->arena, &run->exec, &got, &err));
        assert_says(&err, changes[i].says);
        assert_says(&err, "state.json");
    }
    free(sound);
    run_close(run);
}

// Asserts that reading this state.json for the run succeeds and prints exactly `expected`.
static void expect_said(Run *run, const char *folder, const char *expected) {
    RunState rs;
    int kept = quiet_begin();
    bool good = run_state_read(in(folder, "state.json"), &rs, &run->config, &run->exec, &err);
    const char *said = quiet_end(kept);
    if (!good) fail_msg("%s", err.text);
    assert_string_equal(said, expected);
}

// Tests recipe settings of earlier versions. They are accepted if a current recipe has these values. Otherwise they are
// refused or, if --recipe was given, a line reports the change.
UNIT_TEST(recipe_settings_of_earlier_versions_are_converted_or_refused) {
    Run *run = run_new(RECIPE_COAT);
    RunState rs = fill(run, 1);
    Config *config = &run->config;
    config->recipe_recorded = true;
    const char *folder = save(run, "older", &rs), *state_file = in(folder, "state.json");
    replace_text(state_file, "\"recipe\": \"coat\"",
                 "\"scaling\": \"token\", \"norm-input\": \"residual\", \"activation-input\": \"product\", "
                 "\"gradient-codes-data\": \"e4m3\", \"gradient-codes-weights\": \"e5m2\", \"centred-blocks\": 3, "
                 "\"second-moment\": \"e4m3\", \"second-moment-rounding\": \"nearest\"");
    expect_said(run, folder, "");
    config->recipe.kind = RECIPE_COAT_PAPER;
    expect_said(run, folder, "resume: --recipe was coat and is now coat-paper\n");
    replace_text(state_file, "\"second-moment-rounding\": \"nearest\"", "\"second-moment-rounding\": \"stochastic\"");
    assert_false(run_state_read(state_file, &rs, config, &run->exec, &err));
    assert_error(&err, EXIT_DATA, "second-moment-rounding&--recipe coat");
    config->recipe_recorded = false;
    expect_said(run, folder, "resume: --recipe was coat and is now coat-paper\n");
    run_close(run);
}

// Tests that a checksum detects a flipped bit in every file that is read or copied from a checkpoint. If only weights
// are loaded, optimizer states are not checked.
UNIT_TEST(a_flipped_bit_in_a_checkpoint_file_is_detected) {
    static const char *const names[] = {
        "config.json", "generation_config.json", "model.safetensors.index.json", "state.json", "vocab.json",
        "merges.txt",  "model.safetensors"};
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 5);
    parameters_init(&run->arena, &run->exec, 42);
    write_text(path_of("words/vocab.json"), "{\"a\": 0, \"b\": 1, \"<|endoftext|>\": 2}\n");
    write_text(path_of("words/merges.txt"), "#version: 0.2\n");
    assert_true(checkpoint_save(path_of("flips"), &run->arena, &run->exec, &rs, path_of("words"), &err));
    char folder[TEST_PATH];
    assert_true(checkpoint_folder(path_of("flips"), rs.step, folder, sizeof folder, &err));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t size;
        free(read_file(in(folder, names[i]), &size));
        for (size_t at = 0; at < size; at += 1 + size / 5) {
            flip_byte(in(folder, names[i]), at);
            assert_false(checkpoint_load_weights(folder, &run->arena, &run->exec, &err));
            assert_says(&err, "is damaged");
            assert_error(&err, EXIT_DATA, names[i]);
            assert_int_equal(checkpoint_check_files(folder, false, &err), i == 6);
            flip_byte(in(folder, names[i]), at);
        }
    }
    flip_byte(in(folder, "optimizer.safetensors"), 9000);
    if (!checkpoint_load_weights(folder, &run->arena, &run->exec, &err)) fail_msg("%s", err.text);
    assert_int_equal(unlink(in(folder, "merges.txt")), 0);
    assert_false(checkpoint_check_files(folder, false, &err));
    assert_says(&err, "merges.txt&remove its manifest.json");
    // Without manifest.json, the folder counts as another program's model, whose files are not verified.
    assert_int_equal(unlink(in(folder, "manifest.json")), 0);
    assert_true(checkpoint_check_files(folder, true, &err));
    assert_true(checkpoint_load_weights(folder, &run->arena, &run->exec, &err));
    run_close(run);
}

// Tests loading only weights from a checkpoint: weights equal the saved ones. Moments, the low bits of master weights
// and the StepState become 0.
UNIT_TEST(weights_load_without_optimizer_states) {
    Run *from = run_new(RECIPE_BF16), *to = run_new(RECIPE_COAT);
    RunState rs = fill(from, 5);
    parameters_init(&from->arena, &from->exec, 42);
    const char *folder = save(from, "weights", &rs);
    each_state(to, fill_rubbish, NULL);
    if (!checkpoint_load_weights(folder, &to->arena, &to->exec, &err)) fail_msg("%s", err.text);
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < to->arena.layout[id][VALUE].layers; layer++) {
            Tensor a = arena_tensor(&from->arena, (TensorId)id, VALUE, layer);
            Tensor b = arena_tensor(&to->arena, (TensorId)id, VALUE, layer);
            Tensor low = arena_tensor(&to->arena, (TensorId)id, MASTER, layer);
            assert_memory_equal(a.data, b.data, (size_t)tensor_elements(a) * 2);
            for (int64_t i = 0; i < tensor_elements(a); i++) {
                // split16 stores the low bits of the weight, which are 0 because the weight was saved in BF16.
                assert_int_equal(((uint16_t *)low.data)[i], 0);
            }
            for (int role = MOMENT_M; role <= MOMENT_V; role++) {
                const Tensor moment = arena_tensor(&to->arena, (TensorId)id, (Role)role, layer);
                const size_t bytes = (size_t)tensor_elements(moment) * format_bytes(moment.format);
                for (size_t i = 0; i < bytes; i++) assert_int_equal(((uint8_t *)moment.data)[i], 0);
            }
        }
    }
    StepState zero;
    memset(&zero, 0, sizeof zero);
    assert_memory_equal(arena_tensor(&to->arena, STATE, VALUE, 0).data, &zero, sizeof zero);
    run_close(from);
    run_close(to);
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
