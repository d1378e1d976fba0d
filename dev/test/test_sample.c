// Tests of samples that go on from kept keys and values: each logit is compared with that of a pass over all tokens, in
// every family and recipe, up to --seq-len and beyond.
#include "coat/cpu/cpu_internal.h"
#include "coat/numerics/rng.h"
#include "coat/run/evaluate.h"
#include "coat/run/sampler.h"

#define TESTING
#include "train_gpt2_fp8.cu"

#include "dev/test/config_fixture.h"
#include "dev/test/unit.h"

#define VOCAB 61
#ifdef __SANITIZE_ADDRESS__
enum { WINDOW = 24 }; // the same code, ten times as slow
#else
enum { WINDOW = 40 };
#endif
enum { PROMPT = 5, LENGTH = WINDOW + 4 }; // the last sixteen positions begin at no multiple of 16

static const char *const models[] = {
    "--layers 3 --heads 2 --channels 64 --positions 50",
    "--model llama:d2 --heads 4 --head-dim 32 --kv-heads 2 --rope-factor 8 --rope-positions 16",
    "--model olmo2:d2 --kv-heads 1",
    "--model qwen3:d2 --head-dim 32 --kv-heads 1",
    "--model llama:d2 --no-tied-head",
    "--model olmo:d2 --clip-qkv 1",
    "--model qwen2:d2 --kv-heads 1",
};
#ifdef __SANITIZE_ADDRESS__
enum { MODELS = 4 }; // the others have no code of their own here
#else
enum { MODELS = sizeof models / sizeof *models };
#endif

// Deviations of 1 / sqrt(inputs): logits that differ, and depend on all tokens.
static void draw_weights(Model *m) {
    for (int i = 0; i < m->parameter_count; i++) {
        const Tensor t = m->parameters[i].weight.value;
        float *values = (float *)xmalloc((size_t)tensor_elements(t) * sizeof *values);
        for (int64_t j = 0; j < tensor_elements(t); j++) {
            const float x = rng_normal(5, (uint64_t)i, (uint64_t)j);
            values[j] = t.rows == 1 ? 1 + 0.3f * x : x / sqrtf((float)t.cols);
        }
        parameter_set(&m->exec, &m->parameters[i], values);
        free(values);
    }
    parameters_zero_moments(&m->arena, &m->exec);
    shards_weights_loaded(&m->shards);
}

// A model for samples alone, or one that trains and could sample.
static void open_model(Model *m, const char *model, const char *recipe, bool trains, bool blas) {
    static const CommPlace alone = {0, 1, 0, 1, "", false, ""};
    char line[512];
    snprintf(line, sizeof line, "--device cpu --quiet --vocab %d --seq-len %d --micro-batch 2 --train x %s %s", VOCAB,
             WINDOW, model, recipe);
    accept(line);
    if (!trains) snprintf(config.prompt, sizeof config.prompt, "x"), config.train[0] = '\0';
    if (!config_check(&config, 1, &error)) fail_msg("%s\n  refused: %s", line, error.text);
    if (!model_create(m, &config, &alone, &error)) fail_msg("%s", error.text);
    memset(m->arena.base, 0xff, m->arena.workspace_offset); // what nothing writes shows
    state_upload(m);
    rotations_set(&m->arena, &m->exec);
    ((Cpu *)m->exec.backend)->blas = blas;
    draw_weights(m);
}

static int most_likely(const float *logits) {
    return sample_token(logits, VOCAB, 0, 0, 1, 0, 0);
}

// The largest ||a - b|| / ||b|| of the logits of two models, of which the second reads all tokens anew each time; the
// first continues. *other becomes how many of the most likely tokens differ.
static double differ(Model *on, Model *anew, int *other) {
    int32_t ids[LENGTH + 1] = {3, 14, 15, 9, 26};
    double worst = 0;
    *other = 0;
    for (int n = PROMPT; n <= LENGTH; n++) {
        float a[VOCAB], b[VOCAB];
        double apart = 0, size = 0;
        sample_logits(on, ids, n, n > PROMPT, a);
        sample_logits(anew, ids, n, false, b);
        for (int i = 0; i < VOCAB; i++) {
            assert_true(isfinite(a[i]) && isfinite(b[i]));
            apart += (double)(a[i] - b[i]) * (a[i] - b[i]), size += (double)b[i] * b[i];
        }
        worst = fmax(worst, sqrt(apart / size));
        *other += most_likely(a) != most_likely(b);
        ids[n] = most_likely(b);
    }
    return worst;
}

static double compare(const char *model, const char *recipe, bool trains, bool blas, int *other) {
    Model on, anew;
    open_model(&on, model, recipe, trains, blas);
    open_model(&anew, model, recipe, false, blas);
    const double worst = differ(&on, &anew, other);
    model_destroy(&on);
    model_destroy(&anew);
    return worst;
}

UNIT_TEST(same_bits_in_fp32_and_bf16) {
    int other;
    for (int i = 0; i < MODELS; i++) {
        for (int trains = 0; trains < 2; trains++) {
            for (int fp32 = 0; fp32 < 2; fp32++) {
                const char *recipe = fp32 ? "--precision fp32" : "--recipe bf16";
                const double apart = compare(models[i], recipe, trains, false, &other);
                if (apart != 0) fail_msg("%s %s: %.1e apart", models[i], recipe, apart);
            }
        }
    }
}

// OpenBLAS adds in an order that depends on the number of rows.
UNIT_TEST(same_tokens_by_openblas) {
    int other;
    if (!blas_open()) skip();
    for (int i = 0; i < MODELS; i++) {
        const double fp32 = compare(models[i], "--precision fp32", false, true, &other);
        assert_true(fp32 < 1e-5 && other == 0);
        const double bf16 = compare(models[i], "--recipe bf16", false, true, &other);
        print_message("# %s: fp32 %.1e apart, bf16 %.1e\n", models[i], fp32, bf16);
        assert_true(bf16 < 1e-2);
    }
}

// How far the logits of FP8 are from those of FP32, as a share of these, over many lengths: of a model that continues
// and of one that reads all tokens anew. The tokens are random.
static void fp8_errors(Model *on, Model *anew, Model *exact, double *error_on, double *error_anew) {
    int32_t ids[LENGTH];
    double on_apart = 0, anew_apart = 0, size = 0;
    for (int n = 0; n < LENGTH; n++) ids[n] = (int32_t)(rng_hash(6, 0, (uint64_t)n) % VOCAB);
    for (int n = PROMPT; n <= WINDOW; n++) {
        float a[VOCAB], b[VOCAB], c[VOCAB];
        sample_logits(on, ids, n, n > PROMPT, a);
        if (n % 3 > 0) continue;
        sample_logits(anew, ids, n, false, b);
        sample_logits(exact, ids, n, false, c);
        for (int i = 0; i < VOCAB; i++) {
            on_apart += (double)(a[i] - c[i]) * (a[i] - c[i]);
            anew_apart += (double)(b[i] - c[i]) * (b[i] - c[i]);
            size += (double)c[i] * c[i];
        }
    }
    *error_on = sqrt(on_apart / size);
    *error_anew = sqrt(anew_apart / size);
}

// Another scale moves codes, and with them logits: those of a sample that continues are as near to FP32's.
UNIT_TEST(as_near_in_fp8) {
    static const char *const recipes[] = {"--recipe coat", "--recipe coat-paper", "--recipe coat --head fp8",
                                          "--recipe fp8-linear", "--recipe bf16 --head fp8"};
    for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
        double all_on = 0, all_anew = 0; // over the models: in one alone, chance moves either by a tenth
        for (int i = 0; i < MODELS; i++) {
            Model on, anew, exact;
            double error_on, error_anew;
            open_model(&on, models[i], recipes[r], i % 2, false);
            open_model(&anew, models[i], recipes[r], false, false);
            open_model(&exact, models[i], "--precision fp32", false, false);
            fp8_errors(&on, &anew, &exact, &error_on, &error_anew);
            print_message("# %s %s: %.4f from fp32, read anew %.4f\n", models[i], recipes[r], error_on, error_anew);
            assert_true(error_on < 1.5 * error_anew);
            all_on += error_on;
            all_anew += error_anew;
            model_destroy(&on);
            model_destroy(&anew);
            model_destroy(&exact);
        }
        assert_true(all_on < 1.1 * all_anew);
    }
}

static void train(Model *m, bool samples) {
    const int tokens = (int)config_micro_tokens(&m->config);
    int32_t *ids = (int32_t *)xcalloc((size_t)tokens + 1, sizeof *ids);
    for (int i = 0; i <= tokens; i++) ids[i] = (int32_t)(rng_hash(7, 0, (uint64_t)i) % VOCAB);
    for (int step = 0; step < 3; step++) {
        int32_t text[LENGTH] = {1, 2, 3};
        step_begin(m, 1e-2f, tokens);
        batch_upload(m, m->config.micro_batch, WINDOW, ids, ids + 1, NULL);
        micro_step(m, false, true);
        step_end(m);
        assert_int_equal(m->host.nonfinite, 0);
        if (samples) sample_tokens(m, text, 3, LENGTH - 3, step, NULL, NULL);
    }
    free(ids);
}

UNIT_TEST(training_does_not_see_samples) {
    for (int i = 0; i < MODELS; i++) {
        Model with, without;
        open_model(&with, models[i], "--recipe coat", true, false);
        open_model(&without, models[i], "--recipe coat", true, false);
        train(&with, true);
        train(&without, false);
        assert_memory_equal(&with.host, &without.host, sizeof with.host);
        for (int p = 0; p < with.parameter_count; p++) {
            const Tensor a = with.parameters[p].weight.value, b = without.parameters[p].weight.value;
            assert_memory_equal(a.data, b.data, (size_t)tensor_elements(a) * format_bytes(a.format));
        }
        model_destroy(&with);
        model_destroy(&without);
    }
}

// In training the cache is memory that there is; samples alone have it of every layer.
UNIT_TEST(the_plan_has_the_cache) {
    for (int i = 0; i < 2 * MODELS; i++) {
        Model m;
        open_model(&m, models[i / 2], i % 2 ? "--recipe coat" : "--recipe bf16", false, false);
        const TensorLayout *qkv = &m.arena.layout[QKV][VALUE];
        assert_int_equal(m.config.micro_batch, 1);
        assert_true(qkv->saved && qkv->per_layer && qkv->layers == m.config.shape.layers && qkv->rows == WINDOW);
        assert_false(m.arena.layout[HEADS][VALUE].exists && m.arena.layout[HEADS][VALUE].alias < 0);
        model_destroy(&m);
    }
}

// As many positions as the prompt and what follows it can have, in whole passes, and no more than --seq-len.
UNIT_TEST(the_plan_is_as_long_as_the_sample) {
    static const struct {
        const char *flags, *prompt;
        int seq_len;
    } cases[] = {
        {"--sample-tokens 61", "x", 64},         {"--sample-tokens 61", "xy", 128},
        {"--sample-tokens 59", "\xc3\xa9", 128}, // of two bytes, which another form may have more of
        {"--sample-tokens 1000", "x", 300},      {"--sample-tokens 61 --seq-len 40", "x", 40},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int fp8 = 0; fp8 < 2; fp8++) {
            static TensorLayout layout[TENSOR_COUNT][ROLE_COUNT];
            char line[256];
            snprintf(line, sizeof line, "--device cpu --channels 64 --heads 2 --seq-len 300 --plan %s --recipe %s",
                     cases[i].flags, fp8 ? "coat --head fp8" : "bf16");
            accept(line);
            snprintf(config.prompt, sizeof config.prompt, "%s", cases[i].prompt);
            if (!config_check(&config, 1, &error)) fail_msg("%s\n  refused: %s", line, error.text);
            tensors_resolve(&config, 1, layout);
            assert_int_equal(config.micro_batch, 1);
            assert_int_equal(layout[QKV][VALUE].rows, cases[i].seq_len);
            assert_int_equal(layout[LOGITS][VALUE].rows, fp8 ? 16 : 1);
        }
    }
}

RUN_TESTS(NULL, NULL, NULL)
