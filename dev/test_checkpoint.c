// Tests of checkpoints (coat/checkpoint.h): everything comes back bit for bit, equal states give equal bytes, damage
// is found and named, and nothing whole is ever lost.
#include "dev/test_folder.h"

#include <math.h>
#include <xxhash.h>

#include "coat/checkpoint.h"
#include "coat/json.h"
#include "coat/manifest.h"
#include "coat/safetensors.h"
#include "coat/weights.h"
#include "dev/fake_device.h"

typedef struct {
    Config config;
    Arena arena;
    Exec exec;
    Ops ops;
} Run;

static const Role saved_roles[] = {VALUE, MOMENT_M, MOMENT_V, MASTER};

static Run *run_open(RecipeKind recipe, int layers) {
    Run *run = (Run *)xcalloc(1, sizeof *run);
    config_defaults(&run->config);
    recipe_apply(&run->config.recipe, recipe);
    ModelShape *s = &run->config.shape;
    s->layers = layers;
    s->heads = s->kv_heads = 2;
    s->head_dim = 20;
    s->channels = 40;
    s->ffn = 160;
    s->positions = 24;
    model_shape_vocab(s, 257);
    run->config.micro_batch = 2;
    run->config.seq_len = 16;
    fake_open(&run->exec, &run->ops);
    return run;
}

static void run_allocate(Run *run) {
    Error err;
    arena_plan(&run->arena, &run->config, 1, DEVICE_CPU);
    if (!arena_allocate(&run->arena, &run->exec, &err)) fail_msg("%s", err.text);
}

static Run *run_new(RecipeKind recipe) {
    Run *run = run_open(recipe, 3);
    run_allocate(run);
    return run;
}

static void run_close(Run *run) {
    run->ops.release(&run->exec, run->arena.base);
    free(run);
}

static size_t groups_of(Tensor t) {
    return (size_t)((tensor_elements(t) + t.group - 1) / t.group);
}

// Calls visit with every piece of memory that a checkpoint must restore.
static void each_state(Run *run, void (*visit)(void *data, size_t bytes, void *context), void *context) {
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < run->arena.layout[id][VALUE].layers; layer++) {
            for (int i = 0; i < 4; i++) {
                Tensor t = arena_tensor(&run->arena, (TensorId)id, saved_roles[i], layer);
                if (!t.data) continue;
                visit(t.data, (size_t)tensor_elements(t) * format_bytes(t.format), context);
                if (t.granularity != SCALE_EXPAND) continue;
                visit(t.scale, groups_of(t) * sizeof(float), context);
                visit(t.exponent, groups_of(t), context);
            }
        }
    }
}

static void fill_random(void *data, size_t bytes, void *context) {
    uint64_t *seed = (uint64_t *)context;
    for (size_t i = 0; i < bytes; i++) {
        *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
        ((uint8_t *)data)[i] = (uint8_t)(*seed >> 56);
    }
}

static void fill_rubbish(void *data, size_t bytes, void *context) {
    (void)context;
    memset(data, 0x5a, bytes);
}

typedef struct {
    uint8_t *bytes;
    size_t size;
} Copy;

static void append_copy(void *data, size_t bytes, void *context) {
    Copy *copy = (Copy *)context;
    copy->bytes = (uint8_t *)realloc(copy->bytes, copy->size + bytes);
    assert_non_null(copy->bytes);
    memcpy(copy->bytes + copy->size, data, bytes);
    copy->size += bytes;
}

static Copy copy_of(Run *run) {
    Copy copy = {NULL, 0};
    each_state(run, append_copy, &copy);
    return copy;
}

// Any bits at all in the states; the vocabulary's padding rows are zero, as the trainer keeps them.
static RunState fill(Run *run, uint64_t seed) {
    each_state(run, fill_random, &seed);
    Tensor wte = arena_tensor(&run->arena, WTE, VALUE, 0);
    size_t row = (size_t)wte.cols * format_bytes(wte.format);
    memset((char *)wte.data + (size_t)run->config.shape.vocab * row, 0,
           (size_t)(wte.rows - run->config.shape.vocab) * row);
    RunState rs;
    memset(&rs, 0, sizeof rs);
    rs.step = 20;
    rs.micro_batches = 81;
    rs.tokens = 123456789012;
    rs.data_fingerprint = 0xfedcba9876543210ULL;
    rs.state.lr = 0.1f + 1e-8f;
    rs.state.beta1 = 0.9f;
    rs.state.beta2 = 0.95f;
    rs.state.eps = 1e-8f;
    rs.state.weight_decay = 0.1f;
    rs.state.grad_clip = 1.0f;
    rs.state.seed = UINT64_MAX - 5;
    rs.state.t = 17;
    rs.state.skipped = 3;
    rs.state.skipped_run = 1;
    rs.state.loss_sum = 10.0 / 3.0;
    rs.state.grad_sq = (double)INFINITY;
    rs.state.grad_norm = 1.0f / 3.0f;
    rs.state.nonfinite = 1;
    return rs;
}

static const char *save(Run *run, const char *out, const RunState *rs) {
    Error err;
    char name[64];
    if (!checkpoint_save(path_of(out), &run->arena, &run->exec, rs, NULL, &err)) fail_msg("%s", err.text);
    snprintf(name, sizeof name, "%s/step-%08d", out, (int)rs->step);
    return path_of(name);
}

static const char *in(const char *folder, const char *name) {
    static char paths[4][TEST_PATH * 2];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static const char *const files[] = {"model.safetensors",     "config.json", "generation_config.json",
                                    "optimizer.safetensors", "state.json",  "manifest.json"};
#define FILES (sizeof files / sizeof *files)

// Saves, wipes the device, loads, compares, saves again elsewhere and compares the files.
static void round_trip(Run *run, const char *out) {
    Error err;
    RunState before = fill(run, 7), after;
    Copy copy = copy_of(run);
    char folder[TEST_PATH], again[TEST_PATH], out2[64];
    snprintf(folder, sizeof folder, "%s", save(run, out, &before));
    each_state(run, fill_rubbish, NULL);
    memset(arena_tensor(&run->arena, STATE, VALUE, 0).data, 0xff, sizeof(StepState));
    memset(&after, 0xff, sizeof after);
    if (!checkpoint_load(folder, &run->arena, &run->exec, &after, &err)) fail_msg("%s", err.text);
    Copy loaded = copy_of(run);
    assert_int_equal(loaded.size, copy.size);
    assert_memory_equal(loaded.bytes, copy.bytes, copy.size);
    assert_memory_equal(&after, &before, sizeof before);
    assert_memory_equal(arena_tensor(&run->arena, STATE, VALUE, 0).data, &before.state, sizeof before.state);
    snprintf(out2, sizeof out2, "%s-again", out);
    snprintf(again, sizeof again, "%s", save(run, out2, &after));
    for (size_t i = 0; i < FILES; i++) assert_same_files(in(folder, files[i]), in(again, files[i]));
    free(copy.bytes);
    free(loaded.bytes);
    run_close(run);
}

static void test_round_trips(void **state) {
    (void)state;
    round_trip(run_new(RECIPE_BF16), "bf16");
    round_trip(run_new(RECIPE_COAT), "coat");
    Run *run = run_open(RECIPE_BF16, 1);
    run->config.recipe.precision = PRECISION_FP32;
    run_allocate(run);
    round_trip(run, "fp32");
    run = run_open(RECIPE_COAT, 2);
    run->config.recipe.second_moment = FMT_E5M2;
    run->config.recipe.master = MASTER_NONE;
    run_allocate(run);
    round_trip(run, "e5m2");
    run = run_open(RECIPE_FP8_LINEAR, 2);
    run->config.recipe.moments = MOMENTS_BF16;
    run->config.recipe.master = MASTER_SPLIT16;
    run_allocate(run);
    round_trip(run, "moments-bf16");
}

// A file of more than one piece of host memory.
static void test_large_tensor(void **state) {
    (void)state;
    Run *run = run_open(RECIPE_COAT, 1);
    model_shape_vocab(&run->config.shape, 55001);
    run->config.recipe.master = MASTER_FP32;
    run_allocate(run);
    round_trip(run, "large");
}

// What Hugging Face's model reads: names, transposed weights, no padding rows.
static void test_layout(void **state) {
    (void)state;
    Run *run = run_new(RECIPE_COAT);
    RunState rs = fill(run, 3);
    const char *folder = save(run, "layout", &rs);
    SafeFile file;
    Error err;
    if (!safetensors_open(&file, in(folder, "model.safetensors"), &err)) fail_msg("%s", err.text);
    assert_int_equal(file.count, 2 + 12 * 3 + 2);
    const SafeTensor *t = safetensors_find(&file, "transformer.wte.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, DTYPE_BF16);
    assert_int_equal(t->shape[0], 257);
    assert_int_equal(t->shape[1], 40);
    t = safetensors_find(&file, "transformer.h.2.mlp.c_fc.weight");
    assert_non_null(t);
    assert_int_equal(t->shape[0], 40); // (in, out)
    assert_int_equal(t->shape[1], 160);
    uint16_t got[40 * 160];
    assert_true(safetensors_read(&file, t, 0, got, sizeof got, &err));
    const uint16_t *native = (const uint16_t *)arena_tensor(&run->arena, FCW, VALUE, 2).data; // (out, in)
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
    assert_int_equal(t->shape[0], 120); // native
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

// A flag without effect on the training changes no byte; nor does where it is saved.
static void test_flags_without_effect(void **state) {
    (void)state;
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 3);
    char a[TEST_PATH], b[TEST_PATH];
    snprintf(a, sizeof a, "%s", save(run, "flags-a", &rs));
    Config *c = &run->arena.config;
    c->threads = 7;
    c->val_every = 3;
    c->save_every = 2;
    c->keep = 1;
    c->recipe.group_size = 32;
    c->recipe.second_moment = FMT_E5M2;
    c->quiet = true;
    snprintf(c->out, sizeof c->out, "elsewhere");
    snprintf(b, sizeof b, "%s", save(run, "flags-b", &rs));
    for (size_t i = 0; i < FILES; i++) assert_same_files(in(a, files[i]), in(b, files[i]));
    run_close(run);
}

static char found[TEST_PATH];

static bool find(const char *out, int64_t step, Error *err) {
    return checkpoint_find(path_of(out), step, found, sizeof found, err);
}

// stderr to a file while checkpoint_find() or the like runs.
static int quiet_begin(void) {
    fflush(stderr);
    int kept = dup(2);
    assert_non_null(freopen(path_of("stderr"), "w", stderr));
    return kept;
}

static char *quiet_end(int kept) {
    size_t size;
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    return read_file(path_of("stderr"), &size);
}

static void test_find(void **state) {
    (void)state;
    Error err;
    Run *run = run_new(RECIPE_COAT);
    assert_true(find("nothing", -1, &err));
    assert_string_equal(found, "");
    assert_false(find("nothing", 5, &err));
    assert_says(&err, "no checkpoint of step 5");
    for (int step = 8; step <= 12; step += 2) {
        RunState rs = fill(run, (uint64_t)step);
        rs.step = step;
        save(run, "find", &rs);
    }
    assert_int_equal(mkdir(path_of("find/step-99999999"), 0777), 0);
    assert_int_equal(mkdir(path_of("find/.step-00000050.tmp"), 0777), 0);
    write_text(path_of("find/step-00000060"), "not a folder");
    int kept = quiet_begin();
    bool good = find("find", -1, &err);
    char *said = quiet_end(kept);
    assert_true(good);
    assert_string_equal(found, path_of("find/step-00000012"));
    assert_non_null(strstr(said, "step-99999999"));
    free(said);
    assert_true(find("find", 8, &err));
    assert_string_equal(found, path_of("find/step-00000008"));
    assert_false(find("find", 9, &err));
    assert_says(&err, "no checkpoint of step 9");
    char tiny[8];
    assert_false(checkpoint_find(path_of("find"), 8, tiny, sizeof tiny, &err));
    run_close(run);
}

// Damages one file in turn: by number it is an error, otherwise the one before is found, and a line says why.
static void test_damage(void **state) {
    (void)state;
    Error err;
    Run *run = run_new(RECIPE_COAT);
    RunState rs = fill(run, 1);
    rs.step = 10;
    save(run, "damage", &rs);
    RunState newer = fill(run, 2);
    save(run, "damage", &newer);
    for (size_t i = 0; i < FILES; i++) {
        for (int kind = 0; kind < 4; kind++) {
            size_t size;
            char path[TEST_PATH * 2];
            snprintf(path, sizeof path, "%s", in(path_of("damage/step-00000020"), files[i]));
            char *data = read_file(path, &size);
            if (kind == 0) write_file(path, data, size - 1);
            if (kind == 1) flip_byte(path, size / 2);
            if (kind == 2) flip_byte(path, size - 2);
            if (kind == 3) assert_int_equal(unlink(path), 0);
            int kept = quiet_begin();
            bool good = find("damage", -1, &err);
            char *said = quiet_end(kept);
            assert_true(good);
            assert_string_equal(found, path_of("damage/step-00000010"));
            assert_non_null(strstr(said, "step-00000020"));
            assert_non_null(strstr(said, files[i]));
            free(said);
            assert_false(find("damage", 20, &err));
            assert_int_equal(err.code, EXIT_DATA);
            assert_says(&err, files[i]);
            // loading it all the same: never a crash, and never without an error where the file is read
            if (strcmp(files[i], "generation_config.json") != 0)
                assert_false(checkpoint_load(path_of("damage/step-00000020"), &run->arena, &run->exec, &newer, &err));
            write_file(path, data, size);
            free(data);
        }
    }
    assert_true(find("damage", 20, &err)); // repaired
    run_close(run);
}

static void expect_refusal(Run *run, const char *folder, const char *a, const char *b) {
    Error err;
    RunState rs;
    Copy before = copy_of(run);
    if (checkpoint_load(folder, &run->arena, &run->exec, &rs, &err)) fail_msg("loaded; expected '%s'", a);
    assert_int_equal(err.code, EXIT_DATA);
    assert_says(&err, a);
    assert_says(&err, b);
    Copy after = copy_of(run); // nothing was touched
    assert_memory_equal(before.bytes, after.bytes, before.size);
    free(before.bytes);
    free(after.bytes);
    run_close(run);
}

static void test_refusals(void **state) {
    (void)state;
    Run *run = run_new(RECIPE_COAT);
    RunState rs = fill(run, 1);
    char folder[TEST_PATH];
    snprintf(folder, sizeof folder, "%s", save(run, "refuse", &rs));
    run_close(run);
    run = run_open(RECIPE_COAT, 2);
    run_allocate(run);
    expect_refusal(run, folder, "layers 3", "this run's has 2");
    run = run_open(RECIPE_COAT, 3);
    run->config.shape.positions = 32;
    run_allocate(run);
    expect_refusal(run, folder, "positions 24", "has 32");
    run = run_open(RECIPE_COAT, 3);
    run->config.recipe.moments = MOMENTS_FP8;
    run_allocate(run);
    expect_refusal(run, folder, "--moments coat", "not fp8");
    run = run_open(RECIPE_COAT, 3);
    run->config.recipe.master = MASTER_FP32;
    run_allocate(run);
    expect_refusal(run, folder, "--master split16", "not fp32");
    run = run_open(RECIPE_COAT, 3);
    run->config.recipe.second_moment = FMT_E5M2;
    run_allocate(run);
    expect_refusal(run, folder, "--second-moment e4m3", "not e5m2");
    run = run_open(RECIPE_COAT, 3);
    snprintf(run->config.recipe.moments_fp32, sizeof run->config.recipe.moments_fp32, "wte");
    run_allocate(run);
    expect_refusal(run, folder, "--moments-fp32", "wte");
    run = run_open(RECIPE_COAT, 3);
    run->config.recipe.precision = PRECISION_FP32;
    run_allocate(run);
    expect_refusal(run, folder, "--precision recipe", "not fp32");
}

// Other settings may change; they are named.
static void test_changed_settings(void **state) {
    (void)state;
    Run *run = run_new(RECIPE_COAT);
    RunState rs = fill(run, 1);
    char folder[TEST_PATH];
    Error err;
    snprintf(folder, sizeof folder, "%s", save(run, "changed", &rs));
    run->arena.config.lr = 1e-4f;
    run->arena.config.steps = 77;
    int kept = quiet_begin();
    bool good = checkpoint_load(folder, &run->arena, &run->exec, &rs, &err);
    char *said = quiet_end(kept);
    if (!good) fail_msg("%s", err.text);
    assert_string_equal(said, "resume: --lr was 0.0003 and is now 0.0001\n");
    free(said);
    run_close(run);
}

// A valid folder whose files were made by someone else: sound checksums, wrong content.
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
    char *data = read_file(path, &size), *at = strstr(data, from), *fresh;
    assert_non_null(at);
    fresh = (char *)xmalloc(size + strlen(to) + 1);
    int n = sprintf(fresh, "%.*s%s%s", (int)(at - data), data, to, at + strlen(from));
    write_file(path, fresh, (size_t)n);
    free(fresh);
    free(data);
}

static void test_hostile_state(void **state) {
    (void)state;
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
    char folder[TEST_PATH];
    size_t size;
    snprintf(folder, sizeof folder, "%s", save(run, "hostile", &rs));
    char *sound = read_file(in(folder, "state.json"), &size);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        Error err;
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

static void test_replace_and_prune(void **state) {
    (void)state;
    Error err;
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 1), got;
    save(run, "prune", &rs);
    rs = fill(run, 2);
    rs.tokens = 5;
    char folder[TEST_PATH];
    snprintf(folder, sizeof folder, "%s", save(run, "prune", &rs)); // the same step again
    if (!checkpoint_load(folder, &run->arena, &run->exec, &got, &err)) fail_msg("%s", err.text);
    assert_int_equal(got.tokens, 5);
    for (int step = 21; step <= 24; step++) {
        rs.step = step;
        save(run, "prune", &rs);
    }
    assert_int_equal(unlink(path_of("prune/step-00000024/state.json")), 0); // damaged: neither counted nor deleted
    assert_int_equal(mkdir(path_of("prune/.step-00000030.tmp"), 0777), 0);
    write_text(path_of("prune/.step-00000030.tmp/model.safetensors"), "half");
    write_text(path_of("prune/notes.txt"), "mine");
    checkpoint_prune(path_of("prune"), 0);
    assert_true(path_is_folder(path_of("prune/step-00000020")));
    assert_false(path_is_folder(path_of("prune/.step-00000030.tmp")));
    checkpoint_prune_except(path_of("prune"), 2, 10);
    assert_true(path_is_folder(path_of("prune/step-00000020")));
    assert_false(path_is_folder(path_of("prune/step-00000021")));
    checkpoint_prune(path_of("prune"), 1);
    assert_false(path_is_folder(path_of("prune/step-00000020")));
    assert_false(path_is_folder(path_of("prune/step-00000022")));
    assert_true(path_is_folder(path_of("prune/step-00000023")));
    assert_true(path_is_folder(path_of("prune/step-00000024")));
    assert_true(path_is_file(path_of("prune/notes.txt")));
    run_close(run);
}

// A save that fails leaves no trace and no harm.
static void test_failing_saves(void **state) {
    (void)state;
    Error err;
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 1);
    char folder[TEST_PATH];
    snprintf(folder, sizeof folder, "%s", save(run, "fails", &rs));
    size_t size, size_after;
    char *before = read_file(in(folder, "manifest.json"), &size);
    rs = fill(run, 2);
    assert_false(checkpoint_save(path_of("fails"), &run->arena, &run->exec, &rs, path_of("no-tokenizer.json"), &err));
    assert_int_equal(err.code, EXIT_DATA);
    assert_says(&err, "no-tokenizer.json");
    char *after = read_file(in(folder, "manifest.json"), &size_after);
    assert_int_equal(size, size_after);
    assert_memory_equal(before, after, size);
    assert_false(path_is_folder(path_of("fails/.step-00000020.tmp")));
    assert_true(find("fails", 20, &err));
    // out is a file, lies under a file, or a file has the checkpoint's name
    write_text(path_of("file"), "x");
    assert_false(checkpoint_save(path_of("file"), &run->arena, &run->exec, &rs, NULL, &err));
    assert_says(&err, "/file");
    assert_false(checkpoint_save(path_of("file/sub"), &run->arena, &run->exec, &rs, NULL, &err));
    assert_says(&err, "/file");
    assert_int_equal(mkdir(path_of("taken"), 0777), 0);
    write_text(path_of("taken/step-00000020"), "keep me");
    assert_false(checkpoint_save(path_of("taken"), &run->arena, &run->exec, &rs, NULL, &err));
    assert_says(&err, "step-00000020");
    assert_true(path_is_file(path_of("taken/step-00000020")));
    assert_false(path_is_folder(path_of("taken/.step-00000020.tmp")));
    free(before);
    free(after);
    run_close(run);
}

static void test_tokenizer_files(void **state) {
    (void)state;
    Error err;
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 1);
    assert_int_equal(mkdir(path_of("gpt2"), 0777), 0);
    write_text(path_of("gpt2/encoder.json"), "{\"a\": 0}");
    write_text(path_of("gpt2/vocab.bpe"), "#version: 0.2\n");
    write_text(path_of("gpt2_tokenizer.bin"), "binary");
    static const struct {
        const char *given, *copy, *original;
    } cases[] = {{"gpt2/encoder.json", "vocab.json", "gpt2/encoder.json"},
                 {"gpt2/encoder.json", "merges.txt", "gpt2/vocab.bpe"},
                 {"gpt2", "vocab.json", "gpt2/encoder.json"},
                 {"gpt2", "merges.txt", "gpt2/vocab.bpe"},
                 {"gpt2_tokenizer.bin", "gpt2_tokenizer.bin", "gpt2_tokenizer.bin"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *folder = path_of("tokenizers/step-00000020");
        if (!checkpoint_save(path_of("tokenizers"), &run->arena, &run->exec, &rs, path_of(cases[i].given), &err))
            fail_msg("%s", err.text);
        assert_same_files(in(folder, cases[i].copy), path_of(cases[i].original));
        assert_true(find("tokenizers", 20, &err));
    }
    flip_byte(path_of("tokenizers/step-00000020/gpt2_tokenizer.bin"), 2);
    assert_false(find("tokenizers", 20, &err));
    assert_says(&err, "gpt2_tokenizer.bin");
    run_close(run);
}

// Weights alone: values as saved, masters that follow them, everything else zero.
static void test_weights_only(void **state) {
    (void)state;
    Error err;
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
            Tensor m = arena_tensor(&to->arena, (TensorId)id, MOMENT_M, layer);
            assert_memory_equal(a.data, b.data, (size_t)tensor_elements(a) * 2);
            for (int64_t i = 0; i < tensor_elements(a); i++) {
                assert_int_equal(((uint16_t *)low.data)[i], 0); // a BF16 value has no low half
                for (size_t j = 0; j < format_bytes(m.format); j++)
                    assert_int_equal(((uint8_t *)m.data)[(size_t)i * format_bytes(m.format) + j], 0);
            }
        }
    }
    StepState zero;
    memset(&zero, 0, sizeof zero);
    assert_memory_equal(arena_tensor(&to->arena, STATE, VALUE, 0).data, &zero, sizeof zero);
    flip_byte(in(folder, "model.safetensors"), 9000);
    assert_false(checkpoint_load_weights(folder, &to->arena, &to->exec, &err));
    assert_says(&err, "damaged");
    run_close(from);
    run_close(to);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),   cmocka_unit_test(test_large_tensor),
        cmocka_unit_test(test_layout),        cmocka_unit_test(test_flags_without_effect),
        cmocka_unit_test(test_find),          cmocka_unit_test(test_damage),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_changed_settings),
        cmocka_unit_test(test_hostile_state), cmocka_unit_test(test_replace_and_prune),
        cmocka_unit_test(test_failing_saves), cmocka_unit_test(test_tokenizer_files),
        cmocka_unit_test(test_weights_only)};
    return cmocka_run_group_tests_name("checkpoint", tests, test_folder_make, test_folder_remove);
}
