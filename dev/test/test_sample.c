// Tests of sampling with a KV cache. Compares the logits of each step with those of a pass over all tokens, for every
// architecture and recipe, and for texts shorter and longer than --seq-len.
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
enum { WINDOW = 16 }; // The window is small because AddressSanitizer makes the test ten times slower.
#else
enum { WINDOW = 40 }; // not a multiple of 16, so the last FP8 pass of a window starts at 24
#endif
enum { IMAGE_TOKEN = 7 };
enum { PROMPT = 5, LENGTH = WINDOW + 4 }; // numbers of tokens; LENGTH: longest text, which exceeds the window

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
// AddressSanitizer tests fewer models, because it is slow and the others run no additional code. It trains only one of
// them, because .ci/run trains several architectures with AddressSanitizer.
enum { MODELS = 4, TRAINED_MODELS = 1 };
#else
enum { MODELS = sizeof models / sizeof *models, TRAINED_MODELS = MODELS };
#endif

// Initializes matrices with standard deviation 1 / sqrt(columns), and norm weights and biases with mean 1 and standard
// deviation 0.3, so that logits differ and depend on all tokens.
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

// Creates a model that can sample. If `trains` is true, the model can also train.
static void open_model(Model *m, const char *model, const char *recipe, bool trains, bool blas) {
    static const CommPlace alone = {0, 1, 0, 1, "", false, ""};
    const char *line = formatted("--device cpu --quiet --vocab %d --seq-len %d --micro-batch 2 --train x %s %s", VOCAB,
                                 WINDOW, model, recipe);
    accept(line);
    config.shape.vision.image_token = IMAGE_TOKEN;
    if (!trains) snprintf(config.prompt, sizeof config.prompt, "x"), config.train[0] = '\0';
    if (!config_check(&config, 1, &error)) fail_msg("%s\n  refused: %s", line, error.text);
    if (!model_create(m, &config, &alone, &error)) fail_msg("%s", error.text);
    // Fills the arena with NaN, so that reads of unwritten memory are detected.
    memset(m->arena.base, 0xff, m->arena.workspace_offset);
    state_upload(m);
    rope_table_set(&m->arena, &m->exec);
    ((Cpu *)m->exec.backend)->blas = blas;
    draw_weights(m);
    if (m->vision) parameters_init(&m->vision->arena, &m->exec, 1);
}

static int most_likely(const float *logits) {
    return sample_token(logits, VOCAB, 0, 0, 1, 0, 0);
}

// Returns the largest relative difference between logits of `cached`, which uses its KV cache, and of `full`, which
// recomputes all tokens. Sets *other to the number of steps whose most likely tokens differ.
static double differ(Model *cached, Model *full, int *other) {
    int32_t ids[LENGTH + 1] = {3, 14, 15, 9, 26};
    double worst = 0;
    *other = 0;
    for (int n = PROMPT; n <= LENGTH; n++) {
        float a[VOCAB], b[VOCAB];
        double distance = 0, size = 0;
        sample_logits(cached, ids, n, n > PROMPT, a);
        sample_logits(full, ids, n, false, b);
        for (int i = 0; i < VOCAB; i++) {
            assert_true(isfinite(a[i]) && isfinite(b[i]));
            distance += (double)(a[i] - b[i]) * (a[i] - b[i]), size += (double)b[i] * b[i];
        }
        worst = fmax(worst, sqrt(distance / size));
        *other += most_likely(a) != most_likely(b);
        ids[n] = most_likely(b);
    }
    return worst;
}

static double compare(const char *model, const char *recipe, bool trains, bool blas, int *other) {
    Model cached, full;
    open_model(&cached, model, recipe, trains, blas);
    open_model(&full, model, recipe, false, blas);
    const double worst = differ(&cached, &full, other);
    model_destroy(&cached);
    model_destroy(&full);
    return worst;
}

UNIT_TEST(kv_cache_gives_the_bits_of_a_full_pass_in_fp32_and_bf16) {
    int other;
    for (int i = 0; i < MODELS; i++) {
        for (int trains = 0; trains < 2; trains++) {
            for (int fp32 = 0; fp32 < 2; fp32++) {
                const char *recipe = fp32 ? "--precision fp32" : "--recipe bf16";
                const double distance = compare(models[i], recipe, trains, false, &other);
                if (distance != 0) fail_msg("%s %s: distance %.1e", models[i], recipe, distance);
            }
        }
    }
}

// OpenBLAS's order of summation depends on the number of rows, so logits with a KV cache may differ in the last bits.
UNIT_TEST(kv_cache_gives_the_tokens_of_a_full_pass_with_openblas) {
    int other;
    if (!blas_open()) skip();
    for (int i = 0; i < MODELS; i++) {
        const double fp32 = compare(models[i], "--precision fp32", false, true, &other);
        assert_true(fp32 < 1e-5 && other == 0);
        const double bf16 = compare(models[i], "--recipe bf16", false, true, &other);
        print_message("# %s: distances: fp32 %.1e, bf16 %.1e\n", models[i], fp32, bf16);
        assert_true(bf16 < 1e-2);
    }
}

// Measures the relative error of FP8 logits compared with FP32 logits, for texts of many lengths: *error_cached with a
// KV cache, *error_full with all tokens recomputed.
static void fp8_errors(Model *cached, Model *full, Model *exact, double *error_cached, double *error_full) {
    int32_t ids[LENGTH];
    double cached_distance = 0, full_distance = 0, size = 0;
    for (int n = 0; n < LENGTH; n++) ids[n] = (int32_t)(rng_hash(6, 0, (uint64_t)n) % VOCAB);
    for (int n = PROMPT; n <= WINDOW; n++) {
        float a[VOCAB], b[VOCAB], c[VOCAB];
        sample_logits(cached, ids, n, n > PROMPT, a);
        if (n % 3 > 0) continue;
        sample_logits(full, ids, n, false, b);
        sample_logits(exact, ids, n, false, c);
        for (int i = 0; i < VOCAB; i++) {
            cached_distance += (double)(a[i] - c[i]) * (a[i] - c[i]);
            full_distance += (double)(b[i] - c[i]) * (b[i] - c[i]);
            size += (double)c[i] * c[i];
        }
    }
    *error_cached = sqrt(cached_distance / size);
    *error_full = sqrt(full_distance / size);
}

// With a KV cache, FP8 scales and logits differ from those of a full pass. The logits with a KV cache must be as close
// to FP32 logits as those of a full pass.
UNIT_TEST(kv_cache_in_fp8_is_as_close_to_fp32_as_a_full_pass) {
    static const char *const recipes[] = {"--recipe coat", "--recipe coat-paper", "--recipe coat --head fp8",
                                          "--recipe fp8-linear", "--recipe bf16 --head fp8"};
    for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
        double all_cached = 0, all_full = 0; // sums over all models, because single models vary by 10 %
        for (int i = 0; i < MODELS; i++) {
            Model cached, full, exact;
            double error_cached, error_full;
            open_model(&cached, models[i], recipes[r], i % 2, false);
            open_model(&full, models[i], recipes[r], false, false);
            open_model(&exact, models[i], "--precision fp32", false, false);
            fp8_errors(&cached, &full, &exact, &error_cached, &error_full);
            print_message("# %s %s: %.4f from fp32, recomputed %.4f\n", models[i], recipes[r], error_cached,
                          error_full);
            assert_true(error_cached < 1.5 * error_full);
            all_cached += error_cached;
            all_full += error_full;
            model_destroy(&cached);
            model_destroy(&full);
            model_destroy(&exact);
        }
        assert_true(all_cached < 1.1 * all_full);
    }
}

// Models that read images. Their tower makes four rows of features from an image of 8 x 8 pixels.
#define TOWER " --image-size 8 --patch-size 4 --vision "
static const char *const vision_models[] = {"--model llama:d2" TOWER "siglip:d1",
                                            "--model qwen3:d2 --head-dim 32 --kv-heads 1" TOWER "clip:d2"};

// Makes the model's samples show an image with random pixels.
static void show_image(Model *m, uint64_t seed) {
    const size_t bytes = (size_t)vision_pixel_bytes(m->config) / (size_t)vision_images(m->config);
    free(m->sample_image);
    m->sample_image = (uint8_t *)xmalloc(bytes);
    for (size_t i = 0; i < bytes; i++) m->sample_image[i] = (uint8_t)rng_hash(seed, 0, i);
}

// Computes the logits of the last token in one pass without a KV cache, as an evaluation does. rows: the image row of
// each token; -1: none.
static void evaluated_logits(Model *m, const int32_t *ids, const int32_t *rows, int count, float *logits) {
    batch_upload(m, 1, count, ids, NULL, NULL);
    images_upload(m, 1, m->sample_image, rows);
    vision_forward(m);
    model_forward(m, NO_KV_CACHE);
    const Tensor row = tensor_rows(act(m, LOGITS, 0), 0, 1);
    m->ops->linear_forward(&m->exec, row, tensor_rows(act(m, NF, 0), count - 1, 1),
                           weight(m, head_weight(&m->config->shape), 0), no_tensor());
    for (int i = 0; i < VOCAB; i++)
        logits[i] =
            row.format == FMT_BF16 ? bf16_decode(((const uint16_t *)row.data)[i]) : ((const float *)row.data)[i];
}

// Samples with an image: the logits with a KV cache have the bits of a pass over all tokens, and depend on the image.
UNIT_TEST(samples_depend_on_the_prompts_image) {
    enum { T = IMAGE_TOKEN };
    for (int i = 0; i < 8; i++) {
        const char *model = vision_models[i / 4], *recipe = i / 2 % 2 ? "--recipe bf16" : "--precision fp32";
        int32_t ids[LENGTH + 1] = {3, T, T, T, T, 14, 15, T, T, T, T, 26};
        int32_t rows[LENGTH + 1];
        int other = 0;
        Model cached, full;
        open_model(&cached, model, recipe, i % 2, false);
        open_model(&full, model, recipe, true, false);
        assert_int_equal(vision_rows(&cached.config->shape.vision), 4);
        assert_true(cached.vision->arena.layout[QKVW][MOMENT_M].exists == (i % 2));
        memset(rows, 0xff, sizeof rows);
        for (int k = 0; k < 4; k++) rows[1 + k] = rows[7 + k] = k;
        show_image(&cached, 1);
        show_image(&full, 1);
        for (int n = 12; n <= LENGTH; n++) {
            float a[VOCAB], b[VOCAB];
            sample_logits(&cached, ids, n, n > 12, a);
            if (n <= WINDOW)
                evaluated_logits(&full, ids, rows, n, b);
            else
                sample_logits(&full, ids, n, false, b);
            if (memcmp(a, b, sizeof a) != 0) fail_msg("%s %s: other logits after %d tokens", model, recipe, n);
            ids[n] = 16 + n % 32;
        }
        for (int changed = 0; changed < 2; changed++) {
            float a[VOCAB], b[VOCAB];
            sample_logits(&cached, ids, 12, false, a);
            show_image(&full, 2);
            if (changed) free(full.sample_image), full.sample_image = NULL;
            sample_logits(&full, ids, 12, false, b);
            other += memcmp(a, b, sizeof a) != 0;
        }
        assert_int_equal(other, 2);
        model_destroy(&cached);
        model_destroy(&full);
    }
}

static void train(Model *m, bool samples) {
    const int tokens = (int)config_micro_tokens(m->config);
    int32_t *ids = (int32_t *)xcalloc((size_t)tokens + 1, sizeof *ids);
    for (int i = 0; i <= tokens; i++) ids[i] = (int32_t)(rng_hash(7, 0, (uint64_t)i) % VOCAB);
    for (int step = 0; step < 2; step++) {
        int32_t text[LENGTH] = {1, 2, 3};
        step_begin(m, 1e-2f, tokens);
        batch_upload(m, m->config->micro_batch, WINDOW, ids, ids + 1, NULL);
        micro_step(m, false, true);
        step_end(m);
        assert_int_equal(m->host.nonfinite, 0);
        if (samples) sample_tokens(m, text, 3, LENGTH - 3, step, NULL, NULL);
    }
    free(ids);
}

UNIT_TEST(samples_do_not_affect_training) {
    for (int i = 0; i < TRAINED_MODELS; i++) {
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

UNIT_TEST(the_sampling_plan_has_a_kv_cache_per_layer) {
    for (int i = 0; i < 2 * MODELS; i++) {
        Model m;
        open_model(&m, models[i / 2], i % 2 ? "--recipe coat" : "--recipe bf16", false, false);
        const TensorLayout *qkv = &m.arena.layout[QKV][VALUE];
        assert_int_equal(m.config->micro_batch, 1);
        assert_true(qkv->saved && qkv->per_layer && qkv->layers == m.config->shape.layers && qkv->rows == WINDOW);
        assert_false(m.arena.layout[QKV_ROPE][VALUE].exists && m.arena.layout[QKV_ROPE][VALUE].alias < 0);
        model_destroy(&m);
    }
}

// For sampling, the memory plan has positions for prompt and sample, rounded up to a multiple of SAMPLE_STEP (64), but
// at most --seq-len.
UNIT_TEST(the_sampling_plan_fits_prompt_and_sample) {
    static const struct {
        const char *flags, *prompt;
        int seq_len;
    } cases[] = {
        {"--sample-tokens 61", "x", 64},         {"--sample-tokens 61", "xy", 128},
        {"--sample-tokens 59", "\xc3\xa9", 128}, // the prompt has two bytes, but normalization may lengthen it
        {"--sample-tokens 1000", "x", 300},      {"--sample-tokens 61 --seq-len 40", "x", 40},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int fp8 = 0; fp8 < 2; fp8++) {
            static TensorLayout layout[TENSOR_COUNT][ROLE_COUNT];
            const char *line = formatted("--device cpu --channels 64 --heads 2 --seq-len 300 --plan %s --recipe %s",
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
