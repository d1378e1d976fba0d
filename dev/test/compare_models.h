// Compares whole models on the CPU and GPU backends, with every recipe. Included by test_gpt2.cu.
#pragma once
#include "dev/test/texts.h"

static void print_errors_of(const char *recipe, const char *what, Model *a, Model *b) {
    char name[160];
    snprintf(name, sizeof name, "%s, %s, %s", block->name, recipe, what);
    print_gradient_errors(name, a, b);
}

// Creates a CPU and a GPU model with the same weights. Leaves the GPU model's configuration in *c.
static void create_both(Model *cpu, Model *gpu, Config *c) {
    create(cpu, *c);
    c->device = DEVICE_CUDA;
    create(gpu, *c);
    cpu->ops->weights_quantize(&cpu->exec, cpu->parameters, cpu->parameter_count);
    gpu->ops->weights_quantize(&gpu->exec, gpu->parameters, gpu->parameter_count);
}

// Compares a model on CPU and GPU: the gradients of one batch, and the loss after `updates` updates.
//   FP32 and BF16 (limit > 0): the relative error of every gradient must be below `limit`.
//   FP8 (limit 0): sums in another order move some values to the neighboring FP8 value, 6 to 25 % away. Therefore both
//       backends are compared with FP32. The GPU's worst error may exceed the CPU's by 10 %.
//   FP8 in small models of other architectures: the GPU's worst error may exceed the CPU's by 40 %, because the worst
//       tensor has as few as 40 values. Random last bits in 0.5 % of the matmul and attention outputs changed the CPU's
//       error by up to 20 %.
static void compare_models(const char *recipe, Config c, double limit, int updates) {
    bool exact = c.recipe.precision == PRECISION_FP32, fp8 = limit == 0.0;
    const double over_reference = block == blocks ? 1.1 : 1.4, loss_limit = block == blocks ? 2e-3 : 2e-2;
    c.grad_clip = 0.0f;
    Model cpu, gpu, full;
    create_both(&cpu, &gpu, &c);
    double a = run_batch(&cpu, 3, true, false, 1.0), g = run_batch(&gpu, 3, true, false, 1.0);
    const char *worst, *worst_cpu;
    if (fp8) {
        c.device = DEVICE_CPU;
        c.recipe.precision = PRECISION_FP32;
        create(&full, c);
        run_batch(&full, 3, true, false, 1.0);
        double error = gradients_differ(&gpu, &full, &worst), reference = gradients_differ(&cpu, &full, &worst_cpu);
        check(fabs(a - g) < 1e-3 * a && error < over_reference * reference,
              formatted("GPU and CPU, %s: loss %.6f and %.6f, worst gradient against fp32 %s %.3f and %s %.3f", recipe,
                        g, a, worst, error, worst_cpu, reference));
        print_errors_of(recipe, "GPU against fp32", &gpu, &full);
        print_errors_of(recipe, "CPU against fp32", &cpu, &full);
        model_destroy(&full);
    } else {
        double error = gradients_differ(&gpu, &cpu, &worst);
        check(fabs(a - g) < (exact ? 1e-5 : 1e-3) * a && error < limit,
              formatted("GPU against CPU, whole model %s: loss %.6f and %.6f, worst gradient %s %.1e", recipe, g, a,
                        worst, error));
    }
    print_errors_of(recipe, "GPU against CPU", &gpu, &cpu);
    for (int i = 0; i < updates; i++) {
        take_step(&cpu, 100 + (uint64_t)i % 3);
        take_step(&gpu, 100 + (uint64_t)i % 3);
    }
    double d = fabs(cpu.host.loss_sum - gpu.host.loss_sum);
    check(d < (exact ? 1e-4 : loss_limit) && gpu.host.t == updates,
          formatted("GPU against CPU, %d updates %s: loss %.6f and %.6f", updates, recipe, gpu.host.loss_sum,
                    cpu.host.loss_sum));
    model_destroy(&cpu);
    model_destroy(&gpu);
}

// Returns the relative error ||a - b|| / ||b|| of the logits of `all` sampled tokens. Model a uses its KV cache. Model
// b recomputes all tokens in every step.
static double samples_differ(Model *a, Model *b, int all) {
    enum { PROMPT_TOKENS = 5 };
    const int vocab = a->config->shape.vocab;
    float *x = (float *)xmalloc(2 * (size_t)vocab * sizeof *x), *y = x + vocab;
    int32_t *ids = (int32_t *)xmalloc((size_t)(PROMPT_TOKENS + all) * sizeof *ids);
    double apart = 0.0, size = 0.0;
    for (int n = 0; n < PROMPT_TOKENS + all; n++) ids[n] = (int32_t)(rng_hash(78, 1, (uint64_t)n) % (uint64_t)vocab);
    for (int n = PROMPT_TOKENS; n < PROMPT_TOKENS + all; n++) {
        sample_logits(a, ids, n, n > PROMPT_TOKENS, x);
        sample_logits(b, ids, n, false, y);
        for (int i = 0; i < vocab; i++) {
            apart += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
            size += (double)y[i] * y[i];
        }
    }
    free(ids);
    free(x);
    return isfinite(apart) ? sqrt(apart / size) : INFINITY;
}

// Compares sampling with the KV cache on the GPU with the CPU reference, which recomputes all tokens. limit: maximum
// error of the logits; 0 (FP8): the GPU's error against FP32 may exceed the CPU's by 10 % (GPT-2) or 40 %.
static void compare_samples(const char *recipe, Config c, double limit) {
    enum { STEPS = 40 };
    const bool fp8 = limit == 0.0;
    Model cpu, gpu, full;
    create_both(&cpu, &gpu, &c);
    if (fp8) {
        c.device = DEVICE_CPU;
        c.recipe.precision = PRECISION_FP32;
        create(&full, c);
        const double error = samples_differ(&gpu, &full, STEPS), reference = samples_differ(&cpu, &full, STEPS);
        check(error < (block == blocks ? 1.1 : 1.4) * reference,
              formatted("GPU and CPU, logits of a sample, %s: error against fp32 %.4f and %.4f", recipe, error,
                        reference));
        model_destroy(&full);
    } else {
        const double error = samples_differ(&gpu, &cpu, STEPS);
        check(error < limit, formatted("GPU against CPU, logits of a sample, %s: error %.1e", recipe, error));
    }
    model_destroy(&cpu);
    model_destroy(&gpu);
}

// Compares a model with FP8 matmuls on CPU and GPU, with the settings of recipe coat-paper and with those of coat.
static void compare_ways(Small s, Fp8Recipe recipe, MomentsKind moments, int updates) {
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        const Fp8Recipe r = ways[i](recipe);
        char name[128];
        snprintf(name, sizeof name, "%s%s", r.name, r.paper ? ", as in the paper" : "");
        Config c = fp8_config(s, r);
        c.recipe.moments = moments;
        c.recipe.cache_transposed = r.recompute > 0; // recompute 0: dgrad transposes the weights on demand
        compare_models(name, c, 0.0, updates);
    }
}

// Compares models on CPU and GPU with --bf16-blocks 1: the first block's forward matmuls are in BF16.
static void compare_bf16_block(Small s, int updates) {
    Config c = fp8_config(s, as_default(fp8_coat));
    c.recipe.bf16_blocks = 1;
    compare_models("coat --bf16-blocks 1", c, 0.0, updates);
}

// Compares all recipes on CPU and GPU for the selected block variant, which must not be GPT-2's.
static void compare_block(void) {
    enum { UPDATES = 4 };
    Small s = {2, 4, 256, 500, 2, 104, true, 0};
    compare_models("bf16", small_config(s), 3e-2, UPDATES);
    compare_samples("bf16", small_config(s), 3e-2);
    compare_samples("coat", fp8_config(s, as_default(fp8_coat)), 0.0);
    compare_ways(s, fp8_linear, MOMENTS_FP32, UPDATES);
    compare_ways(s, fp8_coat, MOMENTS_COAT, UPDATES);
    compare_bf16_block(s, UPDATES);
    if (!block->tied_head) compare_ways(s, fp8_coat_head, MOMENTS_FP32, UPDATES);
    test_fp8_watched(as_default(fp8_coat_head), DEVICE_CUDA);
    s.bf16 = false;
    compare_models("fp32", small_config(s), 1e-4, UPDATES);
    compare_samples("fp32", small_config(s), 1e-4);
}

// Compares models on CPU and GPU that Muon updates. In BF16, the Newton-Schulz iterations of CPU and GPU differ by
// several percent in directions of small singular values, which changes the loss little.
static void compare_muon(void) {
    enum { UPDATES = 6 };
    Small s = {3, 4, 256, 1000, 4, 100, false, 0};
    Config fp32 = small_config(s);
    fp32.optimizer = OPTIMIZER_MUON;
    fp32.muon_momentum = 0.95f;
    fp32.muon_rms = 0.2f;
    compare_models("muon, fp32", fp32, 1e-4, UPDATES);
    s.bf16 = true;
    Config coat = fp8_config(s, as_default(fp8_coat));
    coat.optimizer = OPTIMIZER_MUON;
    coat.muon_momentum = 0.95f;
    coat.muon_rms = 0.2f;
    coat.recipe.moments = MOMENTS_COAT;
    coat.recipe.momentum_codes = MOMENTUM_I8;
    compare_models("muon, coat", coat, 0.0, UPDATES);
    coat.recipe.momentum_codes = MOMENTUM_E4M3;
    compare_models("muon, coat, e4m3", coat, 0.0, UPDATES);
}

static void compare_all_models(bool small_only) {
    const int updates = small_only ? 2 : 10;
    Small s = {3, 4, 256, 1000, 4, 100, true, 0};
    compare_models("bf16", small_config(s), 3e-2, updates);
    compare_samples("bf16", small_config(s), 3e-2);
    compare_samples("coat --head fp8", fp8_config(s, as_default(fp8_coat_head)), 0.0);
    compare_ways(s, fp8_coat, MOMENTS_COAT, updates);
    compare_bf16_block(s, updates);
    test_fp8_watched(as_default(fp8_coat_head), DEVICE_CUDA);
    test_loss_scale(DEVICE_CUDA);
    test_documents(DEVICE_CUDA);
    if (small_only) {
        // Selects the block variant of Qwen3, with grouped-query attention and QK norm.
        for (block = blocks; block->architecture != ARCHITECTURE_QWEN3;) block++;
        compare_models("coat", fp8_config(s, as_default(fp8_coat_head)), 0.0, updates);
        block = blocks;
        return;
    }
    for (block = blocks + 1; block < blocks + BLOCKS; block++) test_documents(DEVICE_CUDA);
    block = blocks;
    test_fp8_watched(as_paper(fp8_coat), DEVICE_CUDA);
    test_fp8_watched(as_default(fp8_linear), DEVICE_CUDA);
    compare_ways(s, fp8_linear, MOMENTS_FP32, updates);
    Fp8Recipe head_alone = {"bf16 --head fp8", LINEAR_BF16, SAVED_BF16, 0, 16, HEAD_FP8, false};
    compare_models("bf16 --head fp8", fp8_config(s, head_alone), 0.0, updates);
    head_alone.head = HEAD_FP8_BACKWARD;
    compare_models("bf16 --head fp8-backward", fp8_config(s, head_alone), 0.0, updates);
    compare_ways(s, fp8_coat_head, MOMENTS_FP32, updates);
    Fp8Recipe head_backward = fp8_coat_head;
    head_backward.name = "coat --head fp8-backward";
    head_backward.head = HEAD_FP8_BACKWARD;
    compare_ways(s, head_backward, MOMENTS_FP32, updates);
    Fp8Recipe all_saved = fp8_coat;
    all_saved.name = "coat --recompute 0 --no-cache-transposed";
    all_saved.recompute = 0;
    compare_ways(s, all_saved, MOMENTS_FP32, updates);
    s.bf16 = false;
    compare_models("fp32", small_config(s), 1e-4, updates);
    for (block = blocks + 1; block < blocks + BLOCKS; block++) compare_block();
    block = blocks;
}
