// Writes advice for a run that needs more memory than the machine has.
#include "plan.h"

#include <stddef.h>

#define AT(field) offsetof(Config, field), sizeof(((Config *)0)->field)

// Flags that reduce a category of memory, the least harmful first. A flag sets one field (int, enum or bool) of Config.
static const struct {
    Category category;
    const char *flag;
    size_t offset, size;
    int value;
} savings[] = {
    {CATEGORY_WEIGHTS, "--zero 3", AT(zero), 3},
    {CATEGORY_FP8_WEIGHTS, "--no-cache-transposed", AT(recipe.cache_transposed), false},
    {CATEGORY_FP8_WEIGHTS, "--zero 3", AT(zero), 3},
    {CATEGORY_GRADIENTS, "--grads bf16", AT(recipe.grads), FMT_BF16},
    {CATEGORY_GRADIENTS, "--zero 2", AT(zero), 2},
    {CATEGORY_MOMENTS, "--moments coat", AT(recipe.moments), MOMENTS_COAT},
    {CATEGORY_MOMENTS, "--zero 1", AT(zero), 1},
    {CATEGORY_MOMENTS, "--offload-states", AT(offload_states), true},
    {CATEGORY_MOMENTS, "--no-offload-states", AT(offload_states), false},
    {CATEGORY_MASTER, "--master split16", AT(recipe.master), MASTER_SPLIT16},
    {CATEGORY_MASTER, "--zero 1", AT(zero), 1},
    {CATEGORY_MASTER, "--offload-states", AT(offload_states), true},
    {CATEGORY_MASTER, "--no-offload-states", AT(offload_states), false},
    {CATEGORY_SAVED, "--saved coat", AT(recipe.saved), SAVED_COAT},
    {CATEGORY_SAVED, "--recompute 1", AT(recipe.recompute), 1},
    {CATEGORY_SAVED, "--recompute 2", AT(recipe.recompute), 2},
    {CATEGORY_SAVED, "--recompute 3", AT(recipe.recompute), 3},
    {CATEGORY_LOGITS, "--logits-chunk 512", AT(logits_chunk), 512},
    {CATEGORY_LOGITS, "--logits-chunk 64", AT(logits_chunk), 64},
};

// Returns the bytes of a memory category that are in host memory (`host`) or in device memory.
static size_t bytes_in(const Arena *arena, int category, bool host) {
    return arena_on_host(arena, (Category)category) == host ? arena->category_bytes[category] : 0;
}

// Appends to `text` the flags that reduce the category's memory and that a run accepts. Appends only the first such
// value of each flag.
static void add_flags(const Arena *arena, DeviceKind device, int category, bool host, char *text, size_t size) {
    const size_t bytes = bytes_in(arena, category, host);
    const char *before = " (use ";
    // offset in Config of the field that the last appended flag sets; sizeof(Config): none yet
    size_t named = sizeof(Config);
    Arena *less = (Arena *)xmalloc(sizeof *less);
    for (size_t i = 0; i < sizeof savings / sizeof *savings; i++) {
        Config c = *arena->config;
        char *const field = (char *)&c + savings[i].offset;
        Error ignored;
        if ((int)savings[i].category != category || savings[i].offset == named) continue;
        if (savings[i].size == sizeof(bool))
            *(bool *)field = savings[i].value != 0;
        else
            memcpy(field, &savings[i].value, sizeof(int));
        arena_plan(less, &c, arena->ranks, device);
        c.plan = PLAN_TABLE;
        c.memory_limit = 1; // a nonzero limit, so that config_check_recipe() accepts any micro-batch
        c.device = device;
        c.batch_recorded = c.micro_batch_recorded = false;
        if (bytes_in(less, category, host) >= bytes || !config_check_recipe(&c, arena->ranks, &ignored)) continue;
        text_append(text, size, "%s%s", before, savings[i].flag);
        before = " or ";
        named = savings[i].offset;
    }
    text_append(text, size, "%s", before[1] == 'o' ? ")" : "");
    free(less);
}

// Appends to `text` the three largest categories in host or device memory, each with the flags that reduce it.
static void add_categories(const Arena *arena, DeviceKind device, bool host, char *text, size_t size) {
    bool listed[CATEGORY_COUNT] = {false};
    char bytes[MEMORY_TEXT];
    for (int n = 0; n < 3; n++) {
        int largest = -1;
        for (int c = 0; c < CATEGORY_COUNT; c++)
            if (!listed[c] && bytes_in(arena, c, host) > (largest < 0 ? 0 : bytes_in(arena, largest, host)))
                largest = c;
        if (largest < 0) return;
        listed[largest] = true;
        text_append(text, size, "%s%s %s", n ? ", " : "; most memory is for ", category_name((Category)largest),
                    memory_text(bytes, bytes_in(arena, largest, host)));
        if (arena->config->recipe.precision == PRECISION_FP32)
            text_append(text, size, " (use --precision recipe)");
        else
            add_flags(arena, device, largest, host, text, size);
    }
}

void plan_advice(const Config *config, int ranks, DeviceKind device, size_t limit, char *text, size_t size) {
    Arena *arena = (Arena *)xmalloc(sizeof *arena);
    Error ignored;
    int fits, largest = 0;
    text[0] = '\0';
    if (limit > 0) largest = plan_largest_micro_batch(config, ranks, device, limit, &fits, &ignored);
    if (limit > 0 && largest == 0 && config->micro_batch > 1)
        text_append(text, size, "; --micro-batch 1 does not fit");
    else if (largest > 0 && largest < config->micro_batch)
        text_append(text, size, "; use --micro-batch %d", largest);
    arena_plan(arena, config, ranks, device);
    add_categories(arena, device, false, text, size);
    free(arena);
}

bool plan_advise(const Arena *arena, Exec *exec, Error *err) {
    const DeviceKind device = exec->ops->device;
    char failure[512], advice[ADVICE_TEXT] = "";
    snprintf(failure, sizeof failure, "%s", err->text);
    if (arena->host_refused) {
        add_categories(arena, DEVICE_CUDA, true, advice, sizeof advice);
    } else {
        const int64_t left = exec->ops->memory_free ? exec->ops->memory_free(exec) : 0;
        // number of processes that share the device's memory: all ranks on the CPU, 1 on a GPU
        const int processes = device == DEVICE_CPU ? arena->ranks : 1;
        plan_advice(arena->config, arena->ranks, device, left > 0 ? (size_t)left / (size_t)processes : 0, advice,
                    sizeof advice);
    }
    return error_set(err, err->code, "%s%s", failure, advice);
}
