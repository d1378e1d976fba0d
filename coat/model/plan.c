#include "plan.h"
#include "config/shapes.h"

// Returns the bytes of device memory that each process of the run needs.
static size_t plan_bytes(const Config *config, int ranks, DeviceKind device) {
    Arena *arena = (Arena *)xmalloc(sizeof *arena);
    arena_plan(arena, config, ranks, device);
    const size_t bytes = arena->total_bytes;
    free(arena);
    return bytes;
}

// Returns the largest micro-batch whose memory plan is within `limit` bytes; 0 if micro-batch 1 exceeds `limit`.
// Doubles the micro-batch while the plan fits, then bisects.
static int largest_that_fits(const Config *config, int ranks, DeviceKind device, size_t limit) {
    Arena *trial = (Arena *)xmalloc(sizeof *trial);
    Config c = *config;
    int fits = 0, most = INT32_MAX / c.seq_len < MAX_MICRO_BATCH ? INT32_MAX / c.seq_len : MAX_MICRO_BATCH;
    int fails = most + 1;
    for (int size = 1; fits < size && size < fails;) {
        c.micro_batch = size;
        arena_plan(trial, &c, ranks, device);
        if (trial->total_bytes <= limit)
            fits = size;
        else
            fails = size;
        size = fails > most && fits <= most / 2 ? fits * 2 : fits + (fails - fits) / 2;
    }
    free(trial);
    return fits;
}

// True if a run accepts the micro-batch. Otherwise sets *why to the reason.
static bool run_accepts(const Config *config, int ranks, int micro_batch, Error *why) {
    Config c = *config;
    c.memory_limit = 0; // cleared, because with a limit config_check_recipe() accepts any micro-batch
    c.micro_batch = micro_batch;
    c.micro_batch_recorded = false; // cleared, because otherwise config_check_recipe() could lower the micro-batch
    return config_check_recipe(&c, ranks, why);
}

int plan_largest_micro_batch(const Config *config, int ranks, DeviceKind device, size_t limit, int *fits, Error *why) {
    int largest = *fits = largest_that_fits(config, ranks, device, limit);
    if (largest == 0 || run_accepts(config, ranks, largest, why)) return largest;
    Error ignored;
    while (--largest > 0 && !run_accepts(config, ranks, largest, &ignored)) {}
    return largest;
}

bool plan_take_largest(Config *c, int ranks, DeviceKind device, Error *err) {
    Error why;
    char limit[MEMORY_TEXT], needed[MEMORY_TEXT], advice[ADVICE_TEXT];
    memory_text(limit, (size_t)c->memory_limit);
    if (config_samples_only(c)) { // a run that only samples has a fixed micro-batch
        const size_t bytes = plan_bytes(c, ranks, device);
        return bytes <= (size_t)c->memory_limit ||
               error_set(err, EXIT_USER,
                         "--memory-limit: a sample needs %s, the limit is %s; lower --sample-tokens or --seq-len",
                         memory_text(needed, bytes), limit);
    }
    int fits, largest = plan_largest_micro_batch(c, ranks, device, (size_t)c->memory_limit, &fits, &why);
    c->micro_batch = largest > 0 ? largest : 1;
    if (largest > 0) return true;
    if (fits > 0)
        return error_set(err, EXIT_USER,
                         "--memory-limit: %d sequence%s of %d token%s fit%s in %s, but --recipe %s accepts no "
                         "micro-batch up to that size: %s",
                         fits, plural(fits), c->seq_len, plural(c->seq_len), singular(fits), limit,
                         choice_name(RECIPE_NAMES, c->recipe.kind).text, why.text);
    plan_advice(c, ranks, device, (size_t)c->memory_limit, advice, sizeof advice);
    return error_set(err, EXIT_USER, "--memory-limit: one sequence of %d token%s needs %s, the limit is %s%s",
                     c->seq_len, plural(c->seq_len), memory_text(needed, plan_bytes(c, ranks, device)), limit, advice);
}
