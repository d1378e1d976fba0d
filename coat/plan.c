#include "plan.h"

#include "arena.h"

bool plan_print(const Config *config, FILE *out, Error *err) {
    DeviceKind device = config->device == DEVICE_CPU ? DEVICE_CPU : DEVICE_CUDA;
    int ranks = config->gpus > 0 ? config->gpus : 1;
    Arena *arena = (Arena *)xmalloc(sizeof *arena);
    arena_plan(arena, config, ranks, device);
    int largest = 0;
    bool ok = true;
    if (config->memory_limit > 0) {
        const double limit = (double)config->memory_limit / 1e9;
        Error why;
        int fits;
        largest = arena_largest_micro_batch(config, ranks, device, (size_t)config->memory_limit, &fits, &why);
        if (largest == 0 && fits > 0) {
            ok = error_set(
                err, EXIT_USER,
                "--memory-limit: %d sequences of %d tokens fit in %.4g GB, but neither so many nor fewer are a "
                "micro-batch that --recipe %s takes with these flags: %s",
                fits, config->seq_len, limit, recipe_name(config->recipe.kind), why.text);
        } else if (largest == 0) {
            Config one = *config;
            one.micro_batch = 1;
            arena_plan(arena, &one, ranks, device);
            ok = error_set(err, EXIT_USER,
                           "--memory-limit: one sequence of %d tokens needs %.2f GB, the limit is %.4g GB; --plan "
                           "without a limit says for what",
                           config->seq_len, (double)arena->total_bytes / 1e9, limit);
        }
    }
    if (ok && config->plan == PLAN_JSON) {
        arena_report_json(arena, largest, out);
    } else if (ok) {
        const ModelShape *s = &config->shape;
        fprintf(out, "model       %d layers, %d heads, %d channels: %.1f M parameters\n", s->layers, s->heads,
                s->channels, (double)model_parameters(s) / 1e6);
        fprintf(out, "recipe      %s, micro-batch %d x %d tokens, %d process%s, ZeRO %d\n",
                config->recipe.precision == PRECISION_FP32 ? "everything in FP32" : recipe_name(config->recipe.kind),
                config->micro_batch, config->seq_len, ranks, ranks > 1 ? "es" : "", config->zero);
        arena_report(arena, out);
        if (largest)
            fprintf(out, "largest micro-batch under %.2f GB: %d\n", (double)config->memory_limit / 1e9, largest);
    }
    free(arena);
    return ok;
}
