// Tests of the settings that a checkpoint records (recipe, batch, optimizer and others), valid and invalid, and of how
// a resumed run uses them.
#include <xxhash.h>

#include "coat/flags/settings.h"
#include "coat/save/manifest.h"
#include "coat/save/run_state.h"
#include "config_fixture.h"
#include "test_folder.h"

static Error err; // error of the last failed call

// Writes a checkpoint of this step that consists of a manifest.json and a state.json with these settings.
static void record(int step, const char *settings) {
    JsonText manifest;
    const char *folder = path_of(formatted("step-%08d", step));
    assert_true(folder_remove(folder, &err) && folder_make(folder, &err));
    const char *state = formatted("{\"format\":1,\"settings\":%s}", settings);
    assert_true(file_create(in(folder, "state.json"), state, strlen(state), &err));
    manifest_begin(&manifest);
    manifest_add(&manifest, "state.json", strlen(state), XXH3_64bits(state, strlen(state)), NULL);
    manifest_finish(&manifest);
    assert_true(file_create(in(folder, "manifest.json"), manifest.text, manifest.size, &err));
    json_text_free(&manifest);
}

static void ignore(const char *flag, const char *recorded, const char *now) {
    (void)flag, (void)recorded, (void)now;
}

static void resume_with(const char *flags) {
    accept_run(formatted("--train x --out %s --resume %s", test_folder, flags), 1);
}

// Asserts that resuming from a checkpoint with these settings is refused, with an error that contains "state.json" and
// all of `parts`, which are separated by '&'.
static void refuse_record(const char *settings, const char *parts) {
    record(9, settings);
    refuse(formatted("--train x --out %s --resume", test_folder), EXIT_DATA,
           formatted("step-00000009/state.json: &%s", parts));
}

#define PLAIN "\"precision\":\"recipe\",\"linear\":\"bf16\",\"head\":\"bf16\",\"saved\":\"bf16\",\"grads\":\"bf16\","

UNIT_TEST(a_resumed_run_uses_the_recorded_recipe_settings) {
    const Recipe *r = &config.recipe;
    record(5, "{" PLAIN "\"moments\":\"fp8\",\"moments-fp32\":\"wte,wpe\",\"master\":\"none\"}");
    resume_with("");
    assert_true(config.recipe_recorded);
    assert_true(r->kind == RECIPE_BF16 && r->linear == LINEAR_BF16 && r->saved == SAVED_BF16 && r->recompute == 0);
    assert_true(r->moments == MOMENTS_FP8 && r->master == MASTER_NONE);
    assert_string_equal(r->moments_fp32, "wte,wpe");
    resume_with("--moments bf16 --head fp8");
    assert_true(r->moments == MOMENTS_BF16 && r->head == HEAD_FP8 && r->master == MASTER_NONE);
    resume_with("--recipe coat"); // --recipe replaces all recorded recipe settings
    assert_true(!config.recipe_recorded && r->moments == MOMENTS_COAT && r->master == MASTER_SPLIT16);
    record(6, "{\"precision\":\"recipe\",\"recipe\":\"coat\",\"linear\":\"fp8\",\"saved\":\"coat\",\"group-size\":128,"
              "\"recompute\":0,\"fast-accumulation-data\":true,\"moments\":\"coat\",\"master\":\"split16\","
              "\"moments-fp32\":\"\"}");
    resume_with("");
    assert_true(r->kind == RECIPE_COAT && r->group_size == 128);
    assert_true(r->recompute == 0 && r->fast_accumulation_data && r->moments_fp32[0] == '\0');
    resume_with("--resume=5");
    assert_int_equal(r->kind, RECIPE_BF16);
    resume_with("--resume=7"); // there is no checkpoint of this step
    assert_true(!config.recipe_recorded && r->kind == RECIPE_COAT);
    record(7, "{\"precision\":\"fp32\",\"moments\":\"fp32\"}");
    resume_with("");
    assert_true(r->precision == PRECISION_FP32 && r->linear == LINEAR_BF16 && r->grads == FMT_FP32);
    record(8, "{\"precision\":\"recipe\",\"recipe\":\"coat\",\"linear\":\"fp8\",\"head\":\"bf16\",\"saved\":\"coat\"}");
    resume_with("");
    assert_int_equal(r->head, HEAD_BF16);
    resume_with("--recipe coat");
    assert_int_equal(r->head, HEAD_FP8_BACKWARD);
    record(8, "{\"precision\":\"recipe\",\"recipe\":\"coat\",\"linear\":\"fp8\",\"head\":\"fp8\",\"saved\":\"coat\"}");
    resume_with("--linear bf16");
    assert_int_equal(r->head, HEAD_BF16);
    record(8, "{\"precision\":\"recipe\",\"recipe\":\"coat\",\"linear\":\"bf16\",\"head\":\"fp8\",\"saved\":\"coat\"}");
    resume_with("--linear bf16"); // changes nothing, so the recorded head stays
    assert_int_equal(r->head, HEAD_FP8);
    resume_with("--no-resume");
    assert_true(!config.recipe_recorded && r->kind == RECIPE_COAT);
    accept("--train x"); // no settings are recorded, because without --out there is no checkpoint
    assert_false(config.recipe_recorded);
}

#define FP8_COAT "\"precision\":\"recipe\",\"linear\":\"fp8\",\"saved\":\"coat\""

// Tests settings of earlier versions that a recipe now implies. They are accepted if a recipe has these values.
UNIT_TEST(settings_that_a_recipe_now_implies_are_accepted) {
    static const struct {
        const char *recorded;
        RecipeKind kind;
        Format gradients;
    } records[] = {
        {FP8_COAT ",\"scaling\":\"token\",\"norm-input\":\"residual\",\"activation-input\":\"product\","
                  "\"gradient-codes-data\":\"e4m3\",\"gradient-codes-weights\":\"e5m2\",\"centred-blocks\":6",
         RECIPE_COAT, FMT_E4M3},
        {FP8_COAT ",\"scaling\":\"tensor\",\"norm-input\":\"saved\",\"activation-input\":\"saved\","
                  "\"gradient-codes\":\"e5m2\",\"second-moment\":\"e4m3\",\"second-moment-rounding\":\"nearest\"",
         RECIPE_COAT_PAPER, FMT_E5M2},
        {FP8_COAT, RECIPE_COAT_PAPER, FMT_E5M2}, // written before the setting existed
        {"\"precision\":\"recipe\",\"linear\":\"fp8\",\"saved\":\"bf16\",\"scaling\":\"token\"", RECIPE_FP8_LINEAR,
         FMT_E5M2},
        {"\"precision\":\"recipe\",\"linear\":\"fp8\",\"saved\":\"bf16\"", RECIPE_COAT_PAPER, FMT_E5M2},
        {"\"precision\":\"recipe\",\"linear\":\"bf16\",\"saved\":\"coat\",\"norm-input\":\"saved\"", RECIPE_COAT_PAPER,
         FMT_E5M2},
        {PLAIN "\"moments\":\"bf16\"", RECIPE_BF16, FMT_E5M2},
    };
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        const char *settings = formatted("{%s}", records[i].recorded);
        record(5, settings);
        resume_with("--resume=5");
        const Recipe *r = &config.recipe;
        const bool fp8 = strstr(settings, "\"linear\":\"fp8\""), coat = strstr(settings, "\"saved\":\"coat\"");
        if (!config.recipe_recorded || r->kind != records[i].kind ||
            recipe_gradient_format(r) != records[i].gradients || (r->linear == LINEAR_FP8) != fp8 ||
            (r->saved == SAVED_COAT) != coat || r->bf16_blocks != 0)
            fail_msg("wrong recipe %d for %s", (int)r->kind, settings);
    }
    resume_with("--resume=5 --recipe coat"); // --recipe replaces all recorded recipe settings
    assert_true(config.recipe.kind == RECIPE_COAT && config.recipe.bf16_blocks > 0);
}

// Tests that recorded values that no current recipe has are refused with an error that names the setting and a recipe.
UNIT_TEST(recorded_values_that_no_recipe_has_are_refused) {
    static const char *const refused[][2] = {
        {"\"scaling\":\"tensor\",\"norm-input\":\"residual\"", "scaling"},
        {"\"scaling\":\"token\",\"norm-input\":\"residual\",\"activation-input\":\"saved\"", "activation-input"},
        {"\"gradient-codes\":\"e4m3\"", "gradient-codes-data"},
        {"\"gradient-codes-weights\":\"e4m3\"", "gradient-codes-weights"},
        {"\"second-moment\":\"e5m2\"", "second-moment"},
        {"\"second-moment-rounding\":\"stochastic\"", "second-moment-rounding"},
        {"\"fast-accumulation-weights\":true", "fast-accumulation-weights"},
        {"\"fast-accumulation-backward\":true", "fast-accumulation-weights"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const char *text = formatted("{" FP8_COAT ",%s}", refused[i][0]);
        json_t *settings = json_loads(text, 0, NULL);
        if (settings_update(settings, "state.json", &err)) fail_msg("taken: %s", text);
        assert_says(&err, "--recipe coat");
        assert_error(&err, EXIT_DATA, refused[i][1]);
        json_decref(settings);
    }
}

// Tests that an unknown recorded setting or value is an error, even if an older checkpoint is valid.
UNIT_TEST(unknown_recorded_settings_are_refused) {
    static const char *const invalid[][2] = {
        {"{}", "\"recipe\" is missing"},
        {"[]", "\"recipe\" is missing"},
        {"7", "\"recipe\" is missing"},
        {"null", "\"recipe\" is missing"},
        {"{\"moments\":\"coat\"}", "\"recipe\" is missing"},
        {"{" PLAIN "\"moments\":\"fp16\"}", "\"moments\": \"fp16\""},
        {"{" PLAIN "\"moments\":3}", "\"moments\": 3"},
        {"{" PLAIN "\"moments\":null}", "\"moments\": null"},
        {"{" PLAIN "\"master\":{\"none\":1}}", "\"master\": {\"none\": 1}"},
        {"{" PLAIN "\"group-size\":-16}", "\"group-size\": -16"},
        {"{" PLAIN "\"recompute\":1.5}", "\"recompute\": 1.5"},
        {"{" PLAIN "\"fast-accumulation-data\":\"true\"}", "\"fast-accumulation-data\": \"true\""},
        {"{\"precision\":\"fp64\",\"linear\":\"bf16\"}", "\"precision\": \"fp64\""},
        {"{" PLAIN "\"no-such-flag\":[1]}", "\"no-such-flag\": [1]"},
        {"{" PLAIN "\"no-shuffle\":true}", "\"no-shuffle\": true"},
    };
    record(1, "{" PLAIN "\"moments\":\"bf16\"}");
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) refuse_record(invalid[i][0], invalid[i][1]);
    char settings[1500] = "{" PLAIN "\"moments-fp32\":\"";
    size_t used = strlen(settings);
    memset(settings + used, 'w', 1000);
    strcpy(settings + used + 1000, "\"}");
    refuse_record(settings, "\"moments-fp32\": \"wwww");
    resume_with("--resume=1");
    assert_true(config.recipe_recorded && config.recipe.moments == MOMENTS_BF16);
    record(9, "{" PLAIN "\"moments\":\"fp16\"}");
    resume_with("--recipe coat"); // --recipe replaces all recorded recipe settings, also unknown values
    assert_int_equal(config.recipe.moments, MOMENTS_COAT);
    refuse(formatted("--eval-only --val x --model %s/step-00000009", test_folder), EXIT_DATA,
           "step-00000009/state.json: &\"moments\": \"fp16\"");
    // If state.json does not match its hash in the manifest, the settings of an older checkpoint apply.
    record(9, "{" PLAIN "\"moments\":\"fp8\"}");
    resume_with("");
    assert_int_equal(config.recipe.moments, MOMENTS_FP8);
    assert_true(file_replace(path_of("step-00000009/state.json"), "{\"settings\":{" PLAIN "}}",
                             strlen("{\"settings\":{" PLAIN "}}"), &err));
    resume_with("");
    assert_int_equal(config.recipe.moments, MOMENTS_BF16);
}

#define BATCH PLAIN "\"moments\":\"bf16\",\"micro-batch\":2,\"seq-len\":64,\"batch-tokens\":1024,"

// Tests that a flag overrides the recorded setting, and that recorded settings without effect on training are ignored.
UNIT_TEST(flags_override_recorded_training_settings) {
    record(
        5,
        "{" BATCH
        "\"lr\":0.0006,\"warmup\":9,\"schedule\":\"wsd\",\"steps\":77,\"lr-final\":0.5,\"decay-fraction\":0.25,"
        "\"weight-decay\":0.125,\"beta1\":0.5,\"beta2\":0.999,\"eps\":1e-6,\"grad-clip\":2,\"skip-loss-z\":6.0,"
        "\"skip-grad-z\":7,\"max-skipped\":99,\"logits-chunk\":48,\"seed\":\"18446744073709551615\",\"shuffle\":false,"
        "\"overfit-one-batch\":true,\"out\":\"elsewhere\",\"train\":\"y\",\"save-every\":3,\"device\":\"cuda\","
        "\"zero\":2,"
        "\"layers\":1}");
    resume_with("");
    assert_true(config.settings_recorded && config.micro_batch == 2 && config.seq_len == 64);
    assert_true(config.batch_tokens == 1024 && config.logits_chunk == 48 && config.warmup == 9 && config.steps == 77);
    assert_true(config.lr == 6e-4f && config.lr_final == 0.5f && config.decay_fraction == 0.25f);
    assert_true(config.schedule == SCHEDULE_WSD && config.weight_decay == 0.125f && config.grad_clip == 2);
    assert_true(config.beta1 == 0.5f && config.beta2 == 0.999f && config.eps == 1e-6f);
    assert_true(config.skip_loss_z == 6 && config.skip_grad_z == 7 && config.max_skipped == 99);
    assert_true(config.seed == UINT64_MAX && !config.shuffle && !config.overfit_one_batch);
    assert_true(config.save_every == 0 && config.zero == 0 && config.device == DEVICE_AUTO &&
                config.shape.layers == 12);
    assert_string_equal(config.out, test_folder);
    assert_string_equal(config.train, "x");
    resume_with("--lr 1 --steps 5 --shuffle --seq-len 32 --batch-tokens 640 --recipe coat");
    assert_true(config.lr == 1 && config.steps == 5 && config.shuffle && config.seq_len == 32);
    assert_true(config.batch_tokens == 640 && config.micro_batch == 2 && config.beta2 == 0.999f);
    resume_with("--no-resume");
    assert_true(!config.settings_recorded && config.lr == 3e-4f && config.micro_batch == 4 && config.batch_tokens == 0);
    // An evaluation or a sample uses the recorded settings that affect the loss, also with --model.
    const char *const evaluation = formatted("--eval-only --val x --out %s --resume", test_folder);
    accept_run(evaluation, 1);
    assert_true(config.seq_len == 64 && config.micro_batch == 2 && config.lr == 3e-4f && config.batch_tokens == 0);
    accept(formatted("--prompt x --model %s/step-00000005", test_folder));
    assert_true(config.seq_len == 64 && config.micro_batch == 4 && config.recipe.moments == MOMENTS_BF16);
    // --train with --model starts a new training, which ignores the recorded settings.
    accept(formatted("--train x --model %s/step-00000005", test_folder));
    assert_true(!config.settings_recorded && config.micro_batch == 4 && config.seq_len == 0);
    record(6, "{" PLAIN "\"moments\":\"bf16\",\"micro-batch\":3}");
    resume_with("");
    assert_true(config.settings_recorded && config.micro_batch == 3 && config.seq_len == 1024);
    static const char *const invalid[] = {"\"lr\": -1",       "\"lr\": \"fast\"", "\"lr\": \"\"",
                                          "\"steps\": 1.5",   "\"shuffle\": 1",   "\"schedule\": \"polynomial\"",
                                          "\"seed\": \"-x\"", "\"warmup\": [9]",  "\"logits-chunk\": -4",
                                          "\"eps\": null",    "\"schedule\": 7",  "\"master\": \"thrice\"",
                                          "\"lr-power\": 0.5"};
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++)
        refuse_record(formatted("{" BATCH "%s}", invalid[i]), invalid[i]);
    record(9, "{" BATCH "\"schedule\":\"polynomial\"}"); // an evaluation ignores the recorded learning rate schedule
    accept_run(evaluation, 1);
    assert_int_equal(config.micro_batch, 2);
    record(9, "{" BATCH "\"images-per-sequence\":3}");
    accept(evaluation);
    assert_int_equal(config.images_per_sequence, 3);
    accept(formatted("%s --images-per-sequence 0", evaluation));
    assert_int_equal(config.images_per_sequence, 0);
    accept(formatted("--train x --out %s --resume", test_folder));
    assert_int_equal(config.images_per_sequence, 3);
    accept(formatted("--prompt x --model %s/step-00000009", test_folder));
    assert_int_equal(config.images_per_sequence, 0);
}

// Tests that a resumed run uses the recorded optimizer, and that settings of Muon are recorded only if they differ from
// their defaults.
UNIT_TEST(a_resumed_run_uses_the_recorded_optimizer) {
    record(5, "{" BATCH "\"optimizer\":\"muon\",\"muon-momentum\":0.9,\"muon-rms\":0.3}");
    resume_with("");
    assert_true(config.optimizer == OPTIMIZER_MUON && config.muon_momentum == 0.9f && config.muon_rms == 0.3f);
    record(6, "{" PLAIN "\"moments\":\"coat\",\"optimizer\":\"muon\",\"momentum-codes\":\"e4m3\"}");
    resume_with("");
    assert_true(config.recipe.momentum_codes == MOMENTUM_E4M3 && config.muon_rms == 0.2f);
    record(7, "{" BATCH "\"beta1\":0.5}");
    resume_with("");
    assert_true(config.optimizer == OPTIMIZER_ADAMW);
    static const char *const runs[][3] = {
        // flags, recorded, not recorded
        {"", "\"lr\"", "muon"},
        {"--optimizer muon", "\"optimizer\": \"muon\"", "muon-"},
        {"--optimizer muon --muon-rms 0.4", "\"muon-rms\": 0.4", "momentum"},
        {"--optimizer muon --momentum-codes e4m3", "\"momentum-codes\": \"e4m3\"", "muon-"},
        {"--optimizer muon --momentum-codes i8", "\"optimizer\"", "momentum"},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        accept_run(formatted("--train x --device cpu %s", runs[i][0]), 1);
        JsonText recorded = {.pretty = true}, logged = settings_log(&config);
        json_text_open(&recorded, NULL, '{');
        settings_record(&recorded, &config);
        json_text_close(&recorded, '}');
        assert_non_null(strstr(recorded.text, runs[i][1]));
        assert_null(strstr(recorded.text, runs[i][2]));
        assert_null(strstr(logged.text, runs[i][2]));
        json_text_free(&recorded);
        json_text_free(&logged);
    }
    // An evaluation of a checkpoint does not depend on its optimizer.
    record(8, "{" BATCH "\"optimizer\":\"muon\"}");
    accept_run(formatted("--eval-only --val x --out %s --resume", test_folder), 1);
    json_t *settings = json_loads("{" BATCH "\"optimizer\":\"muon\"}", 0, NULL);
    assert_true(settings_compare(settings, &config, "state.json", ignore, &err));
    json_decref(settings);
}

// Tests that settings of FP8 are recorded if only the vision tower has FP8, because its results depend on them.
UNIT_TEST(fp8_settings_of_a_vision_tower_are_recorded) {
    static const char *const keys[] = {"group-size", "recompute", "fast-accumulation-data"};
    for (int coat = 0; coat < 2; coat++) {
        char line[256];
        snprintf(line, sizeof line, "--train x --device cpu --model llama:d2 --vision clip:d2 --recipe bf16 %s",
                 coat ? "--vision-recipe coat" : "");
        accept_run(line, 1);
        JsonText recorded = {.pretty = true};
        json_text_open(&recorded, NULL, '{');
        settings_record(&recorded, &config);
        json_text_close(&recorded, '}');
        for (int i = 0; i < 3; i++) assert_int_equal(strstr(recorded.text, keys[i]) != NULL, coat);
        json_text_free(&recorded);
    }
}

// Tests a recorded batch that is not a multiple of the tokens of one pass. A smaller micro-batch is used or, if none
// fits or --micro-batch is given, the nearest possible batch.
UNIT_TEST(a_recorded_batch_is_adapted_to_the_number_of_processes) {
    static const struct {
        const char *flags;
        int ranks;
        int64_t tokens;
        int micro_batch;
    } cases[] = {{"", 1, 1536, 4},
                 {"", 3, 1536, 4},
                 {"", 2, 1536, 4},
                 {"", 4, 1536, 3}, // 1536 = 64 tokens * 4 ranks * 6 sequences; micro-batch 3 divides 6
                 {"", 24, 1536, 1},
                 {"", 5, 1280, 4},  // a pass of 5 ranks has 1280 tokens; one pass is nearest to the recorded batch
                 {"", 25, 6400, 4}, // one pass of 25 ranks has 6400 tokens, more than the recorded batch
                 // A pass of 5 sequences of 64 tokens has 320 tokens; 5 passes (1600) are nearest to the recorded 1536.
                 {"--micro-batch 5", 1, 1600, 5},
                 {"--micro-batch 64", 1, 4096, 64},
                 {"--seq-len 48", 1, 1536, 4},
                 // A pass of 4 sequences of 28 tokens has 112 tokens; 14 passes (1568) are nearest to 1536.
                 {"--seq-len 28", 1, 1568, 4},
                 {"--seq-len 24", 1, 1536, 4},
                 {"--seq-len 24", 32, 1536, 2},
                 // One sequence of 24 tokens per rank would match the batch, but a micro-batch must stay a multiple of
                 // 16 tokens if the recorded one is.
                 {"--seq-len 24", 64, 6144, 4},
                 {"--batch-tokens 0", 1, 0, 4}, // the batch is one micro-batch per rank
                 {"--batch-tokens 2048", 4, 2048, 4}};
    record(5, "{" PLAIN "\"moments\":\"bf16\",\"micro-batch\":4,\"seq-len\":64,\"batch-tokens\":1536}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        accept_run(formatted("--train x --out %s --resume %s", test_folder, cases[i].flags), cases[i].ranks);
        if (config.batch_tokens != cases[i].tokens || config.micro_batch != cases[i].micro_batch)
            fail_msg("%s, %d: %lld tokens, %d", cases[i].flags, cases[i].ranks, (long long)config.batch_tokens,
                     config.micro_batch);
    }
    // --batch-tokens must be a multiple of the tokens of a pass, unlike a recorded batch.
    refuse_run(formatted("--train x --out %s --resume --batch-tokens 1000", test_folder), 1,
               "--batch-tokens 1000&768 or 1024");
}

// Tests that a note names the recorded recipe and its replacement if FP8 does not support the new batch size.
UNIT_TEST(a_note_names_the_recipe_that_replaces_the_recorded_one) {
    record(9, "{\"precision\":\"recipe\",\"recipe\":\"fp8-linear\",\"linear\":\"fp8\",\"saved\":\"bf16\"}");
    resume_with("--micro-batch 1 --seq-len 100");
    assert_int_equal(config.recipe.linear, LINEAR_BF16);
    assert_non_null(strstr(config.notes, "--recipe bf16: used instead of fp8-linear"));
}

// Tests how the recorded position in the training data (in sequences) changes with --seq-len.
UNIT_TEST(position_in_the_data_follows_a_changed_seq_len) {
    static const struct {
        int64_t sequences, pass, tokens, now, expected;
    } cases[] = {{81, 30, 0, 30, 81},              // the number of sequences has not changed
                 {81, 30, 0, 15, 40},              // sequences of twice the length; the position in sequences is halved
                 {81, 30, 0, 100, 270},            // shorter sequences, so that the epoch has more of them
                 {90, 30, 0, 7, 21},               // after whole epochs, the result is the start of an epoch, too
                 {1 << 20, 49 << 10, 0, 49, 1024}, // 2^20 * 49 / 50176 is a whole number, so nothing is rounded
                 {81, 0, 81 * 64, 30, 81},         // epoch length unknown; the run read 64 tokens per sequence
                 {81, 0, 81 * 32, 30, 40},         // epoch length unknown; the run read 32 tokens per sequence
                 {(int64_t)1 << 53, 1, 0, (int64_t)1 << 53, (int64_t)1 << 53}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RunState run = {.sequences = cases[i].sequences, .pass = cases[i].pass, .tokens = cases[i].tokens};
        run_state_scale_position(&run, cases[i].now, 64);
        assert_int_equal(run.sequences, cases[i].expected);
        assert_int_equal(run.pass, cases[i].now);
    }
}

RUN_TESTS(test_folder_make, test_folder_remove, test_folder_empty)
