// Tests of the configuration: defaults, recipes, named models, contradictory flags, and limits of the backends.
#include <unistd.h>

#include "coat/config/shapes.h"
#include "coat/flags/settings.h"
#include "coat/model/tensors.h"
#include "config_fixture.h"

UNIT_TEST(flags_have_documented_defaults) {
    sets("--train x.bin",
         "layers 12, vocab 50257, positions 1024, micro-batch 4, seq-len 1024, steps -1, lr 0.0003, lr-final 1, "
         "weight-decay 0, beta1 0.9, beta2 0.95, eps 1e-08, grad-clip 1, warmup 0, schedule cosine, val-every 20, "
         "val-batches 20, sample-every 20, sample-tokens 64, recipe coat");
    assert_string_equal(config.model, "gpt2");
    assert_int_equal(config.shape.vocab_padded, 50304);
    assert_int_equal(config.resume_step, -1);
    assert_int_equal(config.profile, -1);
    assert_string_equal(config.notes, "");
    assert_true(config_accumulation(&config, 1) == 1);
}

// Tests that a note names the flags that have no effect because nothing is trained or evaluated.
UNIT_TEST(flags_without_effect_print_a_note) {
    static const struct {
        const char *line, *note; // "": no note is printed
    } cases[] = {
        {"--prompt x --micro-batch 4", "note: --micro-batch: "},
        {"--prompt x --logits-chunk 64 --batch-tokens 77 --seq-len 64 --micro-batch 4",
         "note: --batch-tokens, --micro-batch, --logits-chunk: "},
        {"--prompt x --plan --micro-batch 4", "note: --micro-batch: "},
        {"--prompt x --val y --hellaswag z", "note: --val, --hellaswag: "},
        {"--prompt x --train y --micro-batch 4", ""},
        {"--prompt x --seq-len 64", ""},
        {"--eval-only --val x --micro-batch 3 --batch-tokens 77", "note: --batch-tokens: "},
        {"--eval-only --val x --micro-batch 3", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[128];
        const char *note = cases[i].note;
        snprintf(line, sizeof line, "%s --recipe bf16 --out . --resume", cases[i].line);
        accept_run(line, 1);
        if (strncmp(config.notes, note, note[0] ? strlen(note) : 1) != 0) fail_msg("%s: %s", line, config.notes);
    }
}

UNIT_TEST(contradictory_flags_are_refused) {
    refuse("", EXIT_USER, "--train");
    refuse("--val x", EXIT_USER, "--train");
    refuse("--train x --profile 0", EXIT_USER, "--profile");
    refuse("--train x --out o --resume --overwrite", EXIT_USER, "--resume&--overwrite");
    refuse("--train x --resume", EXIT_USER, "--resume&--out DIR");
    refuse("--train x --save-every 5", EXIT_USER, "--save-every&--out DIR");
    refuse("--train x --keep 5", EXIT_USER, "--keep&--out DIR");
    refuse("--train x --keep-every 5", EXIT_USER, "--keep-every&--out DIR");
    refuse("--train x --autotune", EXIT_USER, "--autotune&--out DIR");
    refuse("--eval-only --val x --out o --resume --autotune", EXIT_USER, "--autotune&training");
    refuse("--prompt hello --out o --resume --autotune", EXIT_USER, "--autotune&training");
    accept("--train x --save-every 5 --save-every 0 --keep 0");
    refuse("--eval-only", EXIT_USER, "--eval-only&--val");
    refuse("--eval-only --val x", EXIT_USER, "--eval-only&--model");
    refuse("--eval-only --val x --out y", EXIT_USER, "--eval-only&add --resume&--out y");
    refuse("--prompt x --out y", EXIT_USER, "--prompt&add --resume&--out y");
    accept("--eval-only --val x --out o --resume");
    refuse("--eval-only --val x --prompt y", EXIT_USER, "--eval-only&--prompt");
    refuse("--prompt hello", EXIT_USER, "--prompt&--model FOLDER&or --train");
    refuse("--out o --prompt=", EXIT_USER, "--prompt: ");
    accept("--prompt hello --out o --resume");
    accept("--prompt hello --train x");
    refuse("--train x --memory-limit 80GB", EXIT_USER, "--memory-limit&--plan");
    refuse("--train x --moments-fp32 c_attn", EXIT_USER, "--moments-fp32 c_attn&qkvw");
    refuse("--train x --moments-fp32 wte,fc", EXIT_USER, "--moments-fp32 fc&fc*");
    refuse("--train x --moments-fp32 *w,,wte", EXIT_USER, "--moments-fp32 : ");
    accept("--train x --moments-fp32 wte,fc*,headw");
    accept("--train x --moments-fp32 *");
    refuse("--train x --gpus 8", EXIT_USER, "--gpus&--plan");
    refuse_run("--train x --recipe bf16 --health-products 10", 1, "--health-products");
    refuse_run("--train x --precision fp32 --health-products 10", 1, "--health-products");
    accept_run("--train x --recipe bf16 --linear fp8 --health-products 10", 1);
    refuse_run("--train x --model llama:d1 --vision clip:d1 --freeze language --health-products 10", 1,
               "--health-products&--freeze language");
    accept_run("--train x --recipe bf16 --health-products 0", 1);
    accept_run("--train x --device cpu --optimizer muon --muon-momentum 0.9 --muon-rms 0.1 --momentum-codes e4m3", 1);
    refuse("--train x --muon-rms 0.1", EXIT_USER, "--muon-rms: &add --optimizer muon");
    refuse("--train x --optimizer adamw --momentum-codes i8", EXIT_USER, "--momentum-codes: &add --optimizer muon");
    refuse("--train x --optimizer muon --moments bf16 --momentum-codes i8", EXIT_USER,
           "--momentum-codes: &--moments bf16");
    refuse("--train x --optimizer muon --muon-momentum 1", EXIT_USER, "--muon-momentum 1");
    accept_run("--train x --optimizer muon --device cpu --zero 0", 2);
    assert_non_null(strstr(config.notes, "note: --zero 0: ") ? strstr(config.notes, "--zero 1") : NULL);
    // No note about --zero is printed with --zero 1, without Muon, or if Muon trains no matrix.
    static const char *const unnoted[] = {
        "--train x --optimizer muon --device cpu --zero 1", "--train x --device cpu --zero 0",
        "--train x --optimizer muon --device cpu --zero 0 --model llama:d1 --vision clip:d2 --freeze language"};
    for (int i = 0; i < 3; i++) {
        accept_run(unnoted[i], 2);
        assert_null(strstr(config.notes, "--zero"));
    }
    // The first two command lines print a note, because 8-bit second moments need a beta2 of at most 0.99.
    static const char *const beta2[] = {
        "--train x --recipe coat --beta2 0.999", "--train x --recipe bf16 --moments fp8 --beta2 0.9999",
        "--train x --recipe coat --beta2 0.99", "--train x --recipe bf16 --beta2 0.999"};
    for (int i = 0; i < 4; i++) {
        accept_run(beta2[i], 1);
        assert_true((strstr(config.notes, "note: --beta2 0.999") != NULL) == (i < 2));
    }
    refuse("--train x --optimizer muon --muon_lr 1", EXIT_USER, "--muon_lr&--muon-rms");
    refuse("--train x --world-size 4 --rank 4", EXIT_USER, "--rank 4&0 to 3");
    refuse("--train x --rendezvous /shared/file", EXIT_USER, "--rendezvous /shared/file&--rendezvous HOST[:PORT]");
    refuse("--train x --rendezvous ./file", EXIT_USER, "--rendezvous ./file&--rendezvous HOST[:PORT]");
    refuse("--train x --rendezvous file:///shared", EXIT_USER, "--rendezvous file:///shared&--rendezvous HOST[:PORT]");
    refuse("--train x --channels 100 --heads 3", EXIT_USER, "--channels 100: &--heads 3&use --channels 144");
    refuse("--plan --model llama:d4 --channels 100", EXIT_USER, "--channels 100: &use --channels 128");
    refuse("--plan --model llama:d4 --heads 256", EXIT_USER, "--heads 256: &even");
    refuse("--train x --epochs 3 --steps 5", EXIT_USER, "--epochs 3 &--steps 5");
    refuse("--train x --threads 0", EXIT_USER, "--threads 0: ");
    refuse("--train x --top-p 0", EXIT_USER, "--top-p 0: ");
    refuse("--train x --samples 0", EXIT_USER, "--samples 0: ");
    refuse("--train x --val-batches 0", EXIT_USER, "--val-batches 0: ");
    refuse_run("--train x --kv-heads 5", 1, "--kv-heads 5: &--heads 12");
    refuse("--train x --precision fp32 --recipe coat", EXIT_USER, "--precision fp32&--recipe");
    refuse("--train x --precision fp32 --linear fp8", EXIT_USER, "--precision fp32&--linear");
    refuse("--train x --precision fp32 --moments coat", EXIT_USER, "--precision fp32&--moments");
    refuse("--train x --precision fp32 --grads bf16", EXIT_USER, "--precision fp32&--grads");
    refuse("--train x --precision fp32 --bf16-blocks 1", EXIT_USER, "--precision fp32&--bf16-blocks");
    refuse("--train x --model llama:d1 --vision clip:d+5", EXIT_USER, "--vision clip:d+5: unknown");
    refuse("--train x --model llama:d1 --vision clip:d1 --precision fp32 --vision-recipe coat", EXIT_USER,
           "--precision fp32&--vision-recipe");
    refuse("--train x --model /tmp --layers 3", EXIT_USER, "--layers&--model /tmp");
    refuse("--train x --model /tmp --no-biases", EXIT_USER, "--no-biases&--model /tmp");
}

UNIT_TEST(invalid_values_for_a_run_are_refused_with_a_valid_one) {
    refuse_run("--train x --batch-tokens 5000", 1, "--batch-tokens 5000&4096&use 4096 or 8192");
    refuse_run("--train x --batch-tokens 100", 1, "--batch-tokens 100&use 4096");
    refuse_run("--plan --batch-tokens 12288", 2, "use 8192 or 16384");
    accept_run("--plan --batch-tokens 5000 --memory-limit 80GB", 1);
    accept_run("--train x --batch-tokens 8192", 1);
    assert_true(config_accumulation(&config, 1) == 2);
    refuse_run("--train x --seq-len 2048 --positions 1024", 1, "--seq-len 2048&1024 positions&--positions");
    accept_run("--train x --seq-len 2048", 1);
    assert_int_equal(config.shape.positions, 2048);
    refuse_run("--train x --micro-batch 65535 --seq-len 100000", 1, "--micro-batch 65535&2^31&--micro-batch 21474");
    refuse("--train x --heads 1025", EXIT_USER, "--heads 1025&between 1 and 1024"); // the limit of config.json, too
    refuse("--train x --channels 65537", EXIT_USER, "--channels 65537&65536");
    refuse("--train x --ffn 1048577", EXIT_USER, "--ffn 1048577&1048576");
    refuse_run("--train x --channels 8192 --heads 1", 1, "--channels 8192&wider than 4096&more --heads");
    refuse_run("--train x --tokenizer bytes --vocab 256", 1, "--vocab 256&257");
    refuse_run("--plan --recipe coat --layers 1 --heads 1 --channels 40", 1, "--channels&multiple of 16");
    refuse_run("--plan --recipe coat --micro-batch 1 --seq-len 100", 1, "--micro-batch&multiple of 16");
    refuse_run("--plan --recipe coat --ffn 1000", 1, "--ffn&multiple of 16");
    refuse_run("--plan --head fp8 --logits-chunk 100", 1, "--logits-chunk&multiple of 16&use 112");
    // A wrong --logits-chunk is an error, without falling back to --recipe bf16.
    refuse_run("--plan --logits-chunk 100", 1, "--logits-chunk&multiple of 16&use 112");
    refuse_run("--plan --head fp8 --layers 1 --heads 1 --channels 40", 1, "--channels&multiple of 16&use 48");
    refuse_run("--plan --head fp8 --micro-batch 3 --seq-len 24", 1, "--micro-batch&here 72&use --micro-batch 4");
    refuse_run("--plan --saved coat --layers 1 --heads 1 --channels 40", 1, "--channels&multiple of 16");
    refuse_run("--plan --saved coat --ffn 1000", 1, "--ffn&multiple of 16");
    refuse_run("--plan --recipe fp8-linear --model llama:d1 --heads 5 --kv-heads 1 --head-dim 8 --channels 48", 1,
               "--head-dim&multiple of 16");
    // CUDA kernels support at most 16384 values per row of an operand with row scales (here attention's output). For
    // SwiGLU, --ffn must be a multiple of the group size.
    refuse_run("--plan --recipe coat --model llama:d1 --heads 160 --kv-heads 8 --head-dim 128 --channels 2048", 1,
               "--head-dim 20480&at most 16384&--recipe coat-paper");
    refuse_run("--plan --recipe coat --model qwen2:d1 --ffn 1040 --group-size 32", 1, "--group-size&of 32; use 1056");
    accept_run("--plan --recipe coat --model qwen2:d1 --ffn 1040 --group-size 32 --device cpu", 1);
    accept_run("--plan --recipe coat --model qwen2:d1 --ffn 1040", 1);
    accept_run("--plan --recipe coat --model qwen2.5-7b", 1);
    accept_run("--plan --saved coat --micro-batch 1 --seq-len 100",
               1); // saved FP8 activations need multiples of 16 only for --channels and --ffn
    accept_run("--plan --head fp8 --ffn 1000 --micro-batch 2 --seq-len 24 --logits-chunk 100", 1);
    accept_run("--plan --recipe coat --eval-only --logits-chunk 100", 1); // with fp8-backward, forward has BF16 logits
    accept_run("--plan --ffn 1000 --logits-chunk 100", 1);
    assert_int_equal(config.recipe.kind, RECIPE_BF16);
    accept_run("--train x --layers 1 --heads 1 --channels 40 --micro-batch 1 --seq-len 100", 1);
}

// Tests settings that need a GPU, one process or several processes. With one process, --zero prints a note.
UNIT_TEST(settings_that_the_device_does_not_support_are_refused) {
    accept_run("--train x --recipe coat --device cuda", 1);
    accept_run("--train x --recipe fp8-linear --device cuda", 1);
    accept_run("--train x --recipe fp8-linear --device cpu", 1);
    accept_run("--train x --recipe coat --device cpu", 1);
    accept_run("--train x --saved coat --device cuda", 1);
    accept_run("--train x --moments coat --master none --device cpu", 1);
    accept_run("--train x --moments coat --master none --device cuda", 1);
    accept_run("--train x --moments bf16 --master split16 --device cuda", 1);
    refuse_run("--train x --out o --autotune --device cpu", 1, "--autotune&GPU");
    accept_run("--train x --out o --autotune --device cuda", 1);
    refuse_run("--train x --out o --autotune --device cuda", 2, "--autotune&one process&--matmul-table");
    refuse_run("--train x --matmul-table t --device cpu", 1, "--matmul-table&GPU");
    accept_run("--train x --matmul-table t --device cuda", 2);
    assert_string_equal(config.matmul_table, "t");
    refuse_run("--train x --profile 3 --device cpu", 1, "--profile&CPU");
    accept_run("--train x --profile 3 --device cuda", 1);
    accept_run("--train x --zero 1", 2);
    accept_run("--train x --recipe coat --zero 3", 2);
    assert_false(config.recipe.cache_transposed); // ZeRO 3 transposes weights after each gather and caches none
    static const char *const blocks[] = {"gpt2", "llama:d2", "olmo:d2", "qwen2:d2", "qwen3:d2"};
    for (size_t i = 0; i < 2 * sizeof blocks / sizeof blocks[0]; i++) {
        accept_run(formatted("--train x --model %s --device %s", blocks[i / 2], i % 2 ? "cuda" : "cpu"), 1);
    }
    accept_run("--plan --model llama:d2 --device cuda", 1);
    refuse_run("--train x --model olmo:d2 --norm-eps 1e-2 --device cpu", 1, "--norm-eps");
    refuse_run("--train x --model llama:d2 --rope-factor 8 --rope-low 4 --device cpu", 1, "--rope-low&--rope-high");
    accept_run("--train x --recipe coat --zero 3", 1); // prints a note, because one process has nothing to shard
    assert_true(config.recipe.cache_transposed);
    assert_non_null(strstr(config.notes, "note: --zero 3: "));
    accept_run("--train x --recipe coat --zero 3", 2);
    assert_string_equal(config.notes, "");
    accept_run("--train x --master split16 --recompute 2", 1);
    accept_run("--train x --precision fp32", 1);
    assert_int_equal(config.recipe.grads, FMT_FP32);
    accept_run("--plan --recipe coat --zero 3 --head fp8 --master none --autotune", 8);
}

// Asserts that `flags` describe an unsupported block. Then appends the flag that each error suggests; after at most 5
// suggestions, the command line must be accepted.
static void refuse_block(const char *flags, const char *parts) {
    char line[512];
    snprintf(line, sizeof line, "--plan --device cpu %s", flags);
    refuse_run(line, 1, parts);
    for (int tries = 0; !config_check(&config, 1, &error); tries++) {
        const char *use = strstr(error.text, "; use --");
        if (!use || tries > 4) fail_msg("%s\n  still says: %s", line, error.text);
        snprintf(line + strlen(line), sizeof line - strlen(line), " %.*s", (int)strcspn(use + 6, ","), use + 6);
        accept(line);
    }
}

// Tests that a note names the flags of FP8 formats that were given although everything is FP32.
UNIT_TEST(flags_without_effect_in_fp32_get_a_note) {
    accept("--train x --precision fp32 --fast-accumulation-data --group-size 32 --moments-fp32 wte");
    assert_string_equal(config.notes,
                        "note: --group-size, --moments-fp32, --fast-accumulation-data: without effect, as "
                        "everything is FP32\n");
    accept("--train x --precision fp32 --master fp32");
    assert_string_equal(config.notes, "");
}

// Tests that the error about a block with an unsupported combination of settings names the flag and a value to use.
UNIT_TEST(errors_about_unsupported_blocks_name_flag_and_value) {
    static const char *const blocks[] = {// the last flag of each is unsupported
                                         "--norm rms",
                                         "--activation swiglu",
                                         "--no-biases",
                                         "--no-tied-head",
                                         "--kv-heads 4",
                                         "--qk-norm head",
                                         "--head-dim 32",
                                         "--clip-qkv 8",
                                         "--position-encoding rotary",
                                         "--norm-place after",
                                         "--model llama:d2 --activation gelu",
                                         "--model llama:d2 --biases",
                                         "--model llama:d2 --clip-qkv 8",
                                         "--model llama:d2 --norm layer",
                                         "--model llama:d2 --norm-place after",
                                         "--model qwen2:d2 --head-dim 32",
                                         "--model qwen2:d2 --qk-norm head",
                                         "--model qwen2:d2 --rope-factor 8",
                                         "--model qwen3:d2 --rope-factor 8",
                                         "--model qwen3:d2 --qkv-biases",
                                         "--model qwen3:d2 --qk-norm row",
                                         "--model olmo2:d2 --norm plain",
                                         "--model olmo2:d2 --qkv-biases",
                                         "--model olmo2:d2 --head-dim 32",
                                         "--model olmo:d2 --qk-norm head",
                                         "--model olmo:d2 --qkv-biases",
                                         "--model olmo:d2 --rope-factor 8",
                                         "--model olmo:d2 --head-dim 32"};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        const char *last = blocks[i] + strlen(blocks[i]);
        while (strncmp(last, "--", 2) != 0) last--;
        refuse_block(blocks[i], formatted("%s: &; use --", last));
    }
    refuse_block("--position-encoding rotary --norm rms --activation swiglu", "--biases: &llama&use --no-biases");
    refuse_block("--model llama3.1-8b --norm-place after --qk-norm row", "--rope-factor 8: &olmo2&use --rope-factor 1");
    refuse_run("--plan --channels 100 --heads 3 --head-dim 32", 1, "--heads 3: &--channels 100");
}

// Tests that a flag without effect is refused with an error that names the flag on which it depends.
UNIT_TEST(a_flag_that_needs_another_flag_is_refused_without_it) {
    static const char *const scaled[] = {"--rope-low 2", "--rope-high 8", "--rope-positions 4096"};
    for (int i = 0; i < 3; i++) {
        refuse(formatted("--train x --model llama:d2 %s", scaled[i]), EXIT_USER,
               formatted("%.*s: &--rope-factor", (int)strcspn(scaled[i], " "), scaled[i]));
        // this model has a RoPE factor
        accept_run(formatted("--train x --model llama3.1-8b %s --device cpu", scaled[i]), 1);
        refuse(formatted("--train x %s", scaled[i]), EXIT_USER, "learned positions");
    }
    refuse("--train x --rope-theta 5e5", EXIT_USER, "--rope-theta: ");
    refuse("--train x --rope-factor 8", EXIT_USER, "--rope-factor: ");
    refuse("--train x --qkv-biases", EXIT_USER, "--qkv-biases: &--biases");
    refuse("--train x --no-qkv-biases", EXIT_USER, "--no-qkv-biases: &--biases");
    accept_run("--train x --model llama:d2 --rope-theta 5e5 --qkv-biases --device cpu", 1); // the flags describe Qwen 2
    assert_int_equal(shape_architecture(&config.shape), ARCHITECTURE_QWEN2);
}

static void assert_recipe(LinearKind linear, SavedKind saved, int recompute, MomentsKind moments, MasterKind master) {
    assert_int_equal(config.recipe.linear, linear);
    assert_int_equal(config.recipe.saved, saved);
    assert_int_equal(config.recipe.recompute, recompute);
    assert_int_equal(config.recipe.moments, moments);
    assert_int_equal(config.recipe.master, master);
}

UNIT_TEST(recipes_set_their_flags) {
    sets("--plan --recipe bf16", "linear bf16, saved bf16, recompute 0, moments fp32, master fp32");
    sets("--plan --recipe fp8-linear", "recipe fp8-linear, linear fp8, saved bf16, recompute 0, moments fp32");
    sets("--plan --recipe coat", "linear fp8, head fp8-backward, saved coat, recompute 1, moments coat, master "
                                 "split16, grads bf16, group-size 16");
    assert_int_equal(recipe_gradient_format(&config.recipe), FMT_E4M3);
    sets("--plan --recipe coat-paper",
         "linear fp8, head bf16, saved coat, recompute 1, moments coat, master split16, bf16-blocks 0");
    assert_int_equal(recipe_gradient_format(&config.recipe), FMT_E5M2);
    sets("--plan --linear bf16", "recipe coat, linear bf16, head bf16, saved coat");
    sets("--plan --linear bf16 --head fp8-backward", "linear bf16, head fp8-backward");
    // A given flag, such as --moments, overrides the recipe's value, whether before or after --recipe.
    sets("--plan --recipe coat --moments fp32 --recompute 0",
         "linear fp8, saved coat, recompute 0, moments fp32, master split16");
    sets("--plan --moments fp32 --recompute 0 --recipe coat",
         "linear fp8, saved coat, recompute 0, moments fp32, master split16");
    sets("--plan --master none --recipe bf16 --recipe coat --moments fp8 --no-cache-transposed",
         "linear fp8, saved coat, recompute 1, moments fp8, master none, cache-transposed off");
}

// Tests a shape that FP8 does not support. If --recipe is not given, bf16 is used and a note says so. With --recipe
// coat, the run is refused.
UNIT_TEST(shapes_without_fp8_fall_back_to_bf16_unless_a_recipe_is_given) {
    static const struct {
        const char *flags, *because;
    } cannot[] = {
        {"--layers 1 --heads 1 --channels 40", "--channels: FP8 needs the width, here 40, to be a multiple"},
        {"--ffn 1000", "--ffn: FP8 needs the width, here 1000,"},
        {"--micro-batch 3 --seq-len 24", "--micro-batch, --seq-len: FP8 needs their product, here 72,"},
        {"--micro-batch 3 --seq-len 20",
         "--micro-batch, --seq-len: FP8 needs their product, here 60, to be a multiple of 16; use --micro-batch 4"}};
    char line[256];
    for (size_t i = 0; i < sizeof cannot / sizeof *cannot; i++)
        for (int plan = 0; plan < 2; plan++) {
            const char *what = plan ? "--plan" : "--train x";
            snprintf(line, sizeof line, "%s %s", what, cannot[i].flags);
            accept_run(line, 1);
            assert_recipe(LINEAR_BF16, SAVED_BF16, 0, MOMENTS_FP32, MASTER_FP32);
            const char *note =
                formatted("note: --recipe bf16: used instead of coat, the default, because %s", cannot[i].because);
            if (strncmp(config.notes, note, strlen(note)) != 0) fail_msg("%s: '%s'", line, config.notes);
            assert_ptr_equal(strchr(config.notes, '\n'), config.notes + strlen(config.notes) - 1); // one line
            assert_int_equal(config.recipe.kind, RECIPE_BF16);
            snprintf(line, sizeof line, "%s --recipe coat %s", what, cannot[i].flags);
            refuse_run(line, 1, "multiple of 16");
            snprintf(line, sizeof line, "%s --recipe bf16 %s", what, cannot[i].flags);
            accept_run(line, 1);
            assert_string_equal(config.notes, "");
        }
    // Flags override values of the default recipe, and values of bf16 if bf16 replaces the default recipe.
    accept_run("--train x --moments fp8 --head fp8 --master none", 1);
    assert_recipe(LINEAR_FP8, SAVED_COAT, 1, MOMENTS_FP8, MASTER_NONE);
    accept_run("--train x --ffn 1000 --head fp8 --moments fp8 --master none --recompute 2", 1);
    assert_recipe(LINEAR_BF16, SAVED_BF16, 2, MOMENTS_FP8, MASTER_NONE);
    assert_int_equal(config.recipe.head, HEAD_FP8);
    refuse_run("--train x --linear fp8 --ffn 1000", 1, "--ffn&multiple of 16"); // an error, as --linear fp8 is given
    accept_run("--train x --precision fp32 --ffn 1000", 1); // FP32 uses no recipe, so no note about a replaced recipe
    assert_string_equal(config.notes, "");
    // config_check() chooses the recipe only once. If the batch later becomes unsuitable for FP8, it therefore fails.
    accept_run("--plan", 1);
    config.micro_batch = 1, config.seq_len = 100;
    assert_false(config_check(&config, 1, &error));
    assert_int_equal(config.recipe.kind, RECIPE_COAT);
}

// Parses the command line and checks the configuration for a GPU without FP8.
static bool check_on_old_gpu(const char *line) {
    accept(line);
    snprintf(config.gpu_without_fp8, sizeof config.gpu_without_fp8, "NVIDIA A100 has compute capability 8.0");
    return config_check(&config, 1, &error);
}

// Tests that bf16 replaces the default recipe, with a note, on a GPU without FP8. A given --recipe stays, and
// device_check.h refuses it later.
UNIT_TEST(a_gpu_without_fp8_falls_back_to_bf16) {
    assert_true(check_on_old_gpu("--train x --device cuda --moments coat"));
    assert_recipe(LINEAR_BF16, SAVED_BF16, 0, MOMENTS_COAT, MASTER_FP32);
    assert_non_null(strstr(config.notes, "note: --recipe bf16: "));
    assert_non_null(strstr(config.notes, config.gpu_without_fp8));
    assert_true(check_on_old_gpu("--train x --recipe coat"));
    assert_recipe(LINEAR_FP8, SAVED_COAT, 1, MOMENTS_COAT, MASTER_SPLIT16);
    assert_string_equal(config.notes, "");
    assert_true(check_on_old_gpu("--train x --linear bf16")); // FP8 is only used for storage, not for matmuls
    assert_recipe(LINEAR_BF16, SAVED_COAT, 1, MOMENTS_COAT, MASTER_SPLIT16);
    assert_true(check_on_old_gpu("--train x --precision fp32"));
    assert_string_equal(config.notes, "");
}

// Tests that recipe_fingerprint() depends on the flags of the recipe only, and training_fingerprint() on all other
// flags that results depend on, but not on flags such as --val.
UNIT_TEST(fingerprints_of_recipe_and_training_depend_on_their_flags) {
    accept_run("--train x", 1);
    const int64_t coat = recipe_fingerprint(&config);
    accept_run("--train x --recipe coat --lr 1", 1);
    assert_true(coat >= 0 && recipe_fingerprint(&config) == coat);
    static const char *const others[] = {"--recipe bf16",         "--head fp8",   "--group-size 32",
                                         "--no-cache-transposed", "--grads fp32", "--moments-fp32 wte"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        accept_run(formatted("--train x %s", others[i]), 1);
        assert_true(recipe_fingerprint(&config) >= 0 && recipe_fingerprint(&config) != coat);
    }
    accept_run("--train x --recipe bf16", 1);
    const int64_t training = training_fingerprint(&config);
    accept_run("--train y --val z --sample-every 3", 1);
    assert_true(training >= 0 && training_fingerprint(&config) == training);
    static const char *const courses[] = {"--micro-batch 8",
                                          "--seq-len 512",
                                          "--batch-tokens 8192",
                                          "--logits-chunk 64",
                                          "--steps 7",
                                          "--lr 1e-4",
                                          "--lr-final 0.5",
                                          "--warmup 7",
                                          "--schedule linear",
                                          "--beta1 0.8",
                                          "--beta2 0.99",
                                          "--eps 1e-6",
                                          "--decay-fraction 1",
                                          "--grad-clip 2",
                                          "--weight-decay 0.2",
                                          "--seed 2",
                                          "--max-skipped 2",
                                          "--skip-loss-z 1",
                                          "--skip-grad-z 1",
                                          "--no-shuffle",
                                          "--channels 512",
                                          "--layers 5",
                                          "--optimizer muon",
                                          "--optimizer muon --muon-momentum 0.9",
                                          "--optimizer muon --muon-rms 0.1"};
    int64_t found[sizeof courses / sizeof *courses];
    for (size_t i = 0; i < sizeof courses / sizeof *courses; i++) {
        accept_run(formatted("--train x %s", courses[i]), 1);
        found[i] = training_fingerprint(&config);
        assert_true(found[i] >= 0 && found[i] != training);
        for (size_t j = 0; j < i; j++) assert_true(found[j] != found[i]);
    }
}

// Returns the fingerprint of flag `name` for a command line. 0: the flag may differ between processes.
static int64_t fingerprint_of(const char *name, const char *line) {
    bool negated;
    const Flag *flag = flag_find(name, strlen(name), &negated);
    accept_run(line, 1);
    return flag_fingerprint(&config, flag);
}

// Tests which flags must have equal values on all processes. Paths may differ, but not whether they are given.
UNIT_TEST(fingerprints_cover_flags_that_must_be_equal_on_all_processes) {
    static const char *const common[] = {
        "--lr 1",     "--val x",       "--val-every 3", "--sample-every 3",       "--sample-tokens 3",
        "--prompt y", "--hellaswag x", "--out x",       "--save-every 3 --out x", "--zero 2"};
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) {
        const char *line = formatted("--train x %s", common[i]);
        const char *name = formatted("%.*s", (int)strcspn(common[i] + 2, " "), common[i] + 2);
        assert_true(fingerprint_of(name, line) != fingerprint_of(name, "--train x"));
    }
    assert_true(fingerprint_of("train", "--train x") != 0 && fingerprint_of("eval-only", "--train x") != 0);
    assert_true(fingerprint_of("resume", "--train x --out x") !=
                fingerprint_of("resume", "--model gpt2 --train x --out . --resume"));
    static const char *const paths[][2] = {{"val", "--val "}, {"out", "--out "}, {"hellaswag", "--hellaswag "}};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        const char *here = formatted("--train x %sa", paths[i][1]), *there = formatted("--train y %sb", paths[i][1]);
        assert_true(fingerprint_of(paths[i][0], here) == fingerprint_of(paths[i][0], there));
        assert_true(fingerprint_of("train", here) == fingerprint_of("train", there));
    }
    // --vision and --freeze must be equal on all processes
    const char *const tower = "--train x --model llama:d1 --vision siglip:d1 --images-per-sequence 1";
    assert_true(fingerprint_of("freeze", tower) != fingerprint_of("freeze", formatted("%s --freeze vision", tower)));
    assert_true(fingerprint_of("vision", tower) !=
                fingerprint_of("vision", "--train x --model llama:d1 --vision siglip:d2 --images-per-sequence 1"));
    assert_true(fingerprint_of("threads", "--train x --threads 2") == 0);
    assert_true(fingerprint_of("overwrite", "--train x --out x --overwrite") == 0);
}

static void assert_shape(const char *name, int layers, int heads, int channels) {
    ModelShape s;
    if (!model_shape_named(name, &s)) fail_msg("%s is not known", name);
    assert_int_equal(s.layers, layers);
    assert_int_equal(s.heads, heads);
    assert_int_equal(s.kv_heads, heads);
    assert_int_equal(s.channels, channels);
    assert_int_equal(s.head_dim * s.heads, channels);
    assert_int_equal(s.ffn, 4 * channels);
}

// Tests the model names of GPT-2 shapes: gpt2-*, dN, gpt2:dN and gpt3:cN.
UNIT_TEST(named_gpt2_models_have_the_right_shapes) {
    ModelShape s;
    static const char *const bad[] = {"",    "d",    "d0",  "d97", "d012",  "d1x",
                                      "d-1", "d100", "D12", "gpt", "gpt2:", "gpt3:c5"};
    assert_shape("gpt2", 12, 12, 768);
    assert_shape("gpt2-medium", 24, 16, 1024);
    assert_shape("gpt2-large", 36, 20, 1280);
    assert_shape("gpt2-xl", 48, 25, 1600);
    assert_shape("d6", 6, 6, 384);
    assert_shape("d12", 12, 12, 768);
    assert_shape("d24", 24, 16, 1024);
    assert_shape("d36", 36, 20, 1280);
    assert_shape("d48", 48, 25, 1600);
    assert_shape("d1", 1, 1, 64);
    assert_shape("d2", 2, 2, 128);
    assert_shape("d60", 60, 60, 3840);
    assert_shape("d96", 96, 96, 6144);
    assert_shape("gpt2:d12", 12, 12, 768);
    assert_shape("gpt2:d60", 60, 30, 1920);
    assert_shape("gpt3:c2048", 24, 16, 2048);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_false(model_shape_named(bad[i], &s));
}

UNIT_TEST(named_models_have_the_published_numbers_of_parameters) {
    static const struct {
        const char *name;
        int64_t parameters;
    } models[] = {{"llama2-7b", 6738415616},    {"llama2-13b", 13015864320}, {"llama3-8b", 8030261248},
                  {"llama3.1-8b", 8030261248},  {"llama3.2-1b", 1235814400}, {"llama3.2-3b", 3212749824},
                  {"mistral-7b", 7248023552},   {"smollm2-135m", 134515008}, {"tinyllama", 1100048384},
                  {"olmo-1b", 1176764416},      {"olmo-7b", 6888095744},     {"qwen2.5-0.5b", 494032768},
                  {"qwen2.5-1.5b", 1543714304}, {"qwen2.5-3b", 3085938688},  {"qwen2.5-7b", 7615616512},
                  {"qwen2.5-14b", 14770033664}, {"qwen3-0.6b", 596049920},   {"qwen3-1.7b", 1720574976},
                  {"qwen3-4b", 4022468096},     {"qwen3-8b", 8190735360},    {"llama-30b", 32528943616},
                  {"olmo2-1b", 1484916736},     {"olmo2-7b", 7298617344},    {"olmo2-13b", 13716198400}};
    ModelShape s;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (!model_shape_named(models[i].name, &s)) fail_msg("%s is not known", models[i].name);
        if (model_parameters(&s) != models[i].parameters)
            fail_msg("%s has %lld parameters", models[i].name, (long long)model_parameters(&s));
        assert_true(shape_architecture(&s) != ARCHITECTURE_GPT2 && shape_architecture(&s) != ARCHITECTURE_COUNT);
    }
    assert_true(model_shape_named("llama:d12", &s) && s.channels == 768 && s.ffn == 2048 && s.heads == 12);
    static const char *const bad[] = {"llama", "llama:", "llama:d0", "llama:12", "llama:d97", "lama:d2", "llama2:d2"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_false(model_shape_named(bad[i], &s));
    // A flag changes one size of a named model. Sizes that follow from the width change with --channels.
    sets("--train x --model llama3.2-1b --layers 2 --device cpu", "layers 2, kv-heads 8, head-dim 64, ffn 8192");
    sets("--train x --model llama:d12 --kv-heads 4 --device cpu", "kv-heads 4");
    sets("--train x --model qwen2:d1 --channels 192 --device cpu", "heads 3, kv-heads 3, ffn 512");
}

// Asserts that the vocabulary's BOS id is `begin` and its only EOS id is `end`; -1: none.
static void assert_ids(const char *flags, int begin, int end) {
    accept_run(formatted("--plan --device cpu %s", flags), 1);
    const SpecialIds *ids = &config.shape.ids;
    if (ids->bos != begin || (ids->eos_count ? ids->eos[0] : -1) != end || ids->eos_count > 1)
        fail_msg("%s: %d, and %d: %d", flags, ids->bos, ids->eos_count, ids->eos[0]);
}

static void assert_range(const char *flags, double range) {
    accept_run(flags, 1);
    assert_true(config.shape.init_range == range);
}

// Tests values that checkpoints record: BOS and EOS ids, and the standard deviation of initial weights.
UNIT_TEST(bos_eos_and_initializer_range_of_new_models) {
    assert_range("--plan --device cpu --model llama:d2", 0.02);
    assert_range("--plan --device cpu --model llama:d2 --init mitchell", 0.0);
    assert_range("--plan --device cpu --model olmo:d2", 0.0);
    assert_range("--plan --device cpu --model olmo:d2 --init truncated", 0.02);
    assert_ids("", 50256, 50256);
    assert_ids("--tokenizer bytes --model llama3-8b", 256, 256);
    assert_ids("--tokenizer gpt2 --model llama3-8b", 50256, 50256);
    assert_ids("--model llama:d2", 50256, 50256);
    assert_ids("--model llama2-7b", 1, 2);
    assert_ids("--model llama3-8b", 128000, 128001);
    assert_ids("--model llama3.2-1b --layers 2", 128000, 128001);
    assert_ids("--model llama3-8b --vocab 128256", 128000, 128001);
    assert_ids("--model llama3-8b --vocab 200000", -1, -1); // Llama 3's ids do not apply to a vocabulary of 200,000
    assert_ids("--model mistral-7b", 1, 2);
    assert_ids("--model smollm2-135m", 0, 0);
    assert_ids("--model olmo-1b", -1, 50279);
    assert_ids("--model qwen2.5-0.5b", 151643, 151643);
    assert_ids("--model qwen3-8b", 151643, 151643);
    assert_ids("--vocab 50304", -1, -1);
}

// Tests the sizes of the model that follow from flags, --tokenizer and named models.
UNIT_TEST(flags_and_tokenizer_set_the_model_shape) {
    sets("--train x --tokenizer bytes --layers 2 --heads 2 --channels 64", "layers 2, head-dim 32, ffn 256, vocab 257");
    assert_string_equal(config.model, "");
    assert_false(config.model_from_files);
    assert_int_equal(config.shape.vocab_padded, 384);
    sets("--train x --vocab 300 --tokenizer bytes", "vocab 300");
    assert_int_equal(config.shape.vocab_padded, 384);
    static const char *const models[] = {"llama2-7b", "llama3-8b", "olmo-1b", "llama:d2", "d6"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) { // --tokenizer sets the vocabulary
        sets(formatted("--plan --device cpu --tokenizer gpt2 --model %s", models[i]), "vocab 50257");
        assert_int_equal(config.shape.vocab_padded, 50304);
        sets(formatted("--plan --device cpu --model %s --tokenizer bytes", models[i]), "vocab 257");
        sets(formatted("--plan --device cpu --vocab 50300 --model %s --tokenizer gpt2", models[i]),
             "vocab 50300"); // --vocab may be larger than the tokenizer's vocabulary
        refuse_run(formatted("--plan --device cpu --vocab 32000 --model %s --tokenizer gpt2", models[i]), 1,
                   "32000&50257&use --vocab 50257");
    }
    sets("--plan --device cpu --model llama2-7b", "vocab 32000");
    sets("--train x --layers 3 --model d6", "layers 3, channels 384");
    assert_string_equal(config.model, "d6");
    sets("--train x --channels 512", "heads 8, ffn 2048");
    sets("--train x --seq-len 4096 --positions 8192", "positions 8192");
}

// Tests --model FOLDER: config.json sets the model shape and limits --seq-len.
UNIT_TEST(config_json_of_a_model_folder_sets_the_shape) {
    const char *base = getenv("TMPDIR");
    char *folder = formatted("%s/test_config_XXXXXX", base && *base ? base : "/tmp");
    assert_non_null(mkdtemp(folder));
    accept(formatted("--prompt hello --model %s", folder));
    assert_true(config.model_from_files);
    assert_string_equal(config.model, folder);
    assert_int_equal(config.seq_len, 0);
    ModelShape small = config.shape;
    small.positions = 64;
    config.shape = small;
    assert_true(config_check(&config, 1, &error));
    assert_int_equal(config.seq_len, 64);
    config.shape.positions = 0;
    config.shape.layers = 0;
    assert_false(config_check(&config, 1, &error));
    assert_int_equal(error.code, EXIT_DATA);
    accept(formatted("--train x --seq-len 128 --model %s", folder));
    config.shape.positions = 64;
    assert_false(config_check(&config, 1, &error));
    assert_non_null(strstr(error.text, "use --seq-len 64"));
    rmdir(folder);
}

RUN_TESTS(NULL, NULL, NULL)
