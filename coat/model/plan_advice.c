// What helps a run whose plan is too large. See plan.h.
#include "config/shapes.h"
#include "plan.h"

#define WORTH_NAMING 0.01 // of the plan: changes that save less are not advised
#define FEWEST_LOGITS 16  // tokens whose logits advice lets exist at a time
#define MAX_GPUS 1024     // that are advised

typedef enum {
    CHANGE_MOMENTS,
    CHANGE_MASTER,
    CHANGE_GRADS,
    CHANGE_SAVED,
    CHANGE_RECOMPUTE,
    CHANGE_TRANSPOSED,
    CHANGE_LOGITS,
    CHANGE_ZERO,
    CHANGE_PRECISION,
    CHANGE_OFFLOAD,   // costs time: only where the others are too little, and this is enough
    CHANGE_BLOCKS,    // costs more: likewise
    CHANGE_NO_MASTER, // rounds at random: likewise, and only where that is too little
    CHANGE_COUNT
} Change;

typedef struct {
    Change what;
    int level;     // 0: nothing to be made
    char flag[40]; // as the user would give it
    size_t saved;  // bytes
} Advice;

// Halves `times` times the tokens whose logits exist at a time; false where too few would be left.
static bool halve_logits(Config *c, int ranks, int times) {
    Arena *arena = (Arena *)xmalloc(sizeof *arena);
    arena_plan(arena, c, ranks, DEVICE_CPU);
    const int64_t tokens = (arena->layout[LOGITS][VALUE].rows >> times) / 16 * 16;
    free(arena);
    if (tokens < FEWEST_LOGITS) return false;
    c->logits_chunk = (int)tokens;
    return true;
}

// With another recipe's settings, but no less made again in backward than before.
static void replace_recipe(Recipe *r, RecipeKind kind) {
    const int recompute = r->recompute;
    recipe_apply(r, kind);
    if (r->recompute < recompute) r->recompute = recompute;
}

// Makes a change, of which level 1 is the mildest; false where it is made already, or there is no such level.
static bool change(Config *c, int ranks, Change what, int level, char flag[40]) {
    Recipe *r = &c->recipe;
    const bool kept = r->precision != PRECISION_FP32 && !config_forward_only(c), mild = level == 1;
    switch (what) {
    case CHANGE_MOMENTS:
        if (!mild || !kept || r->moments >= MOMENTS_FP8) return false;
        r->moments = MOMENTS_COAT;
        return snprintf(flag, 40, "--moments coat");
    case CHANGE_MASTER:
        if (!mild || !kept || r->master != MASTER_FP32) return false;
        r->master = MASTER_SPLIT16;
        return snprintf(flag, 40, "--master split16");
    case CHANGE_GRADS:
        if (!mild || !kept || r->grads != FMT_FP32) return false;
        r->grads = FMT_BF16;
        return snprintf(flag, 40, "--grads bf16");
    case CHANGE_SAVED:
        if (!mild || !kept || r->saved == SAVED_COAT) return false;
        r->saved = SAVED_COAT;
        return snprintf(flag, 40, "--saved coat");
    case CHANGE_RECOMPUTE:
        if (config_forward_only(c) || r->recompute + level > 2) return false;
        r->recompute += level;
        return snprintf(flag, 40, "--recompute %d", r->recompute);
    case CHANGE_TRANSPOSED:
        if (!mild || !r->cache_transposed) return false;
        r->cache_transposed = false;
        return snprintf(flag, 40, "--no-cache-transposed");
    case CHANGE_LOGITS:
        if (!halve_logits(c, ranks, level)) return false;
        return snprintf(flag, 40, "--logits-chunk %d", c->logits_chunk);
    case CHANGE_ZERO:
        if (ranks == 1 || c->zero + level > 3) return false;
        c->zero += level;
        return snprintf(flag, 40, "--zero %d", c->zero);
    case CHANGE_PRECISION:
        if (level > 2 || r->precision != PRECISION_FP32) return false;
        replace_recipe(r, level == 1 ? RECIPE_BF16 : RECIPE_COAT);
        return snprintf(flag, 40, "--precision recipe --recipe %s", choice_name(RECIPE_NAMES, r->kind).text);
    case CHANGE_OFFLOAD:
        if (!mild || config_forward_only(c) || c->offload_states) return false;
        c->offload_states = true;
        return snprintf(flag, 40, "--offload-states");
    case CHANGE_BLOCKS:
        if (!mild || config_forward_only(c) || r->recompute >= 3) return false;
        r->recompute = 3;
        return snprintf(flag, 40, "--recompute 3");
    case CHANGE_NO_MASTER:
        if (!mild || !kept || r->master == MASTER_NONE) return false;
        r->master = MASTER_NONE;
        return snprintf(flag, 40, "--master none");
    case CHANGE_COUNT: break;
    }
    return false;
}

// Whether a run would take the flags, whatever the micro-batch.
static bool flags_go_together(const Config *config, int ranks, DeviceKind device) {
    Config c = *config;
    Error ignored;
    c.plan = PLAN_TABLE;
    c.memory_limit = 1;
    c.device = device;
    c.batch_recorded = c.micro_batch_recorded = false;
    return config_check_recipe(&c, ranks, &ignored);
}

// The mildest level of a change that lets the run fit by itself, or the one from which on more brings nothing.
static Advice best_level(const Config *config, int ranks, DeviceKind device, size_t limit, Change what) {
    const size_t whole = plan_bytes(config, ranks, device), worth = (size_t)((double)whole * WORTH_NAMING);
    Advice best = {what, 0, "", 0}, tried = best;
    for (bool fits = false; !fits;) {
        Config c = *config;
        tried.level++;
        if (!change(&c, ranks, what, tried.level, tried.flag)) break;
        const size_t bytes = plan_bytes(&c, ranks, device);
        tried.saved = bytes < whole ? whole - bytes : 0;
        const bool enough = bytes <= limit;
        if ((tried.saved < best.saved + worth && !enough) || !flags_go_together(&c, ranks, device)) continue;
        best = tried;
        fits = enough;
    }
    return best;
}

// Leaves away what brings nothing beside the changes before it, as those include it. Returns how many are left.
static int drop_included(const Config *config, int ranks, DeviceKind device, size_t limit, Advice list[CHANGE_COUNT],
                         int count) {
    Config c = *config;
    int kept = 0;
    size_t before = plan_bytes(&c, ranks, device);
    for (int i = 0; i < count; i++) {
        Config next = c;
        char flag[40];
        if (!change(&next, ranks, list[i].what, list[i].level, flag)) continue;
        const size_t after = plan_bytes(&next, ranks, device);
        const bool enough = before > limit && after <= limit;
        if ((double)after > (double)before * (1 - WORTH_NAMING) && !enough) continue;
        list[kept++] = list[i];
        c = next;
        before = after;
    }
    return kept;
}

// Whether a change is named before another: the last resorts, which cost time or accuracy,
// behind all, then what saves most.
static bool is_before(const Advice *a, const Advice *b) {
    const int last = a->what >= CHANGE_OFFLOAD ? a->what : 0, other = b->what >= CHANGE_OFFLOAD ? b->what : 0;
    return last != other ? last < other : a->saved > b->saved;
}

// All changes before `end` that are worth it; their number.
static int find_changes(const Config *config, int ranks, DeviceKind device, size_t limit, int end,
                        Advice list[CHANGE_COUNT]) {
    int count = 0;
    for (int what = 0; what < end; what++) {
        const Advice found = best_level(config, ranks, device, limit, (Change)what);
        if (found.level == 0) continue;
        int at = count++;
        for (; at > 0 && is_before(&found, &list[at - 1]); at--) list[at] = list[at - 1];
        list[at] = found;
    }
    return drop_included(config, ranks, device, limit, list, count);
}

// Whether some micro-batch fits with the changes of `list` but those that are `left` away (NULL: with all).
static bool fits_with(const Config *config, int ranks, DeviceKind device, size_t limit, const Advice *list, int count,
                      const bool *left) {
    Config c = *config;
    Error ignored;
    char flag[40];
    int fits;
    for (int i = 0; i < count; i++)
        if (!left || !left[i]) change(&c, ranks, list[i].what, list[i].level, flag);
    return plan_largest_micro_batch(&c, ranks, device, limit, &fits, &ignored) > 0;
}

// Adds those of the changes without which no micro-batch would fit.
static void add_needed(const Config *config, int ranks, DeviceKind device, size_t limit, const Advice *list, int count,
                       char *text, size_t size) {
    bool left[CHANGE_COUNT] = {false};
    for (int i = count - 1; i >= 0; i--) {
        left[i] = true;
        left[i] = fits_with(config, ranks, device, limit, list, count, left);
    }
    for (int i = 0; i < count; i++)
        if (!left[i]) text_append(text, size, " %s", list[i].flag);
}

// The fewest GPUs on which ZeRO 3 and all the changes let a micro-batch fit; 0: none so few.
static int fewest_gpus(const Config *config, int ranks, size_t limit, const Advice *list, int count) {
    for (int gpus = ranks + 1; gpus <= MAX_GPUS; gpus++)
        if (fits_with(config, gpus, DEVICE_CUDA, limit, list, count, NULL)) return gpus;
    return 0;
}

// Whether the shape is that of --model and no other flag's: then a smaller name may take its place.
static bool shape_is_named(const Config *c) {
    ModelShape named;
    if (!c->model[0] || c->shape_files[0] || !model_shape_named(c->model, &named)) return false;
    model_shape_vocab(&named, c->shape.vocab);
    named.ids = c->shape.ids;
    named.positions = c->shape.positions; // --seq-len may ask for more
    return memcmp(&named, &c->shape, sizeof named) == 0;
}

// Makes *c that of the largest model d1, d2, ..., of its own architecture (llama:d1, ...), below its own which fits
// with all the changes; false: none does.
static bool smaller_model(Config *c, int ranks, DeviceKind device, size_t limit, const Advice *list, int count) {
    const int64_t whole = model_parameters(&c->shape);
    const Architecture architecture = shape_architecture(&c->shape);
    int64_t largest = 0;
    if (!shape_is_named(c)) return false;
    Config trial = *c;
    for (int depth = 1; depth <= DEEPEST_MODEL; depth++) {
        if (architecture == ARCHITECTURE_GPT2)
            snprintf(trial.model, sizeof trial.model, "d%d", depth);
        else
            snprintf(trial.model, sizeof trial.model, "%s:d%d", architecture_name(architecture), depth);
        if (!model_shape_named(trial.model, &trial.shape)) continue;
        model_shape_vocab(&trial.shape, c->shape.vocab);
        if (trial.shape.positions < trial.seq_len) trial.shape.positions = trial.seq_len;
        const int64_t parameters = model_parameters(&trial.shape);
        if (parameters <= largest || parameters >= whole) continue;
        if (!fits_with(&trial, ranks, device, limit, list, count, NULL)) continue;
        largest = parameters;
        *c = trial;
    }
    return largest > 0;
}

// Whether the model's name, or --tokenizer, says the vocabulary.
static bool vocab_is_named(const Config *c) {
    ModelShape named;
    return c->tokenizer != TOKENIZER_ANY || (model_shape_named(c->model, &named) && named.vocab == c->shape.vocab);
}

// The other way out of too little memory: blocks made again, with all that lower levels of --recompute make again, in
// place of states on the host. Which of the two is faster depends on how many tokens a step has.
static void add_other_resort(const Config *config, int ranks, DeviceKind device, size_t limit, const Advice *list,
                             int count, char *text, size_t size) {
    const Advice blocks = best_level(config, ranks, device, limit, CHANGE_BLOCKS);
    Config c = *config;
    Error ignored;
    char flag[40], less[48] = "";
    bool offloads = false;
    for (int i = 0; i < count; i++) {
        if (list[i].what >= CHANGE_BLOCKS) return;
        offloads |= list[i].what == CHANGE_OFFLOAD;
        if (list[i].what != CHANGE_OFFLOAD && list[i].what != CHANGE_RECOMPUTE)
            change(&c, ranks, list[i].what, list[i].level, flag);
        if (list[i].what == CHANGE_RECOMPUTE) snprintf(less, sizeof less, " and %s", list[i].flag);
    }
    if (!offloads || blocks.level == 0 || !change(&c, ranks, blocks.what, blocks.level, flag)) return;
    int fits;
    const int largest = plan_largest_micro_batch(&c, ranks, device, limit, &fits, &ignored);
    if (largest > 0)
        text_append(text, size, "; with %s in place of --offload-states%s, --micro-batch %d would fit", blocks.flag,
                    less, largest);
}

// Where no micro-batch fits: what all the changes together do, and if that is too little, what else would.
static void add_last_resort(const Config *config, int ranks, DeviceKind device, size_t limit, const Advice *list,
                            int count, char *text, size_t size) {
    Config c = *config;
    Error ignored;
    char flag[40], needed[MEMORY_TEXT], over[MEMORY_TEXT];
    for (int i = 0; i < count; i++) change(&c, ranks, list[i].what, list[i].level, flag);
    int fits, largest = plan_largest_micro_batch(&c, ranks, device, limit, &fits, &ignored);
    const char *all = count == 1 ? "with it" : "with all of these";
    if (largest > 0) {
        text_append(text, size, ": %s --micro-batch %d would fit", all, largest);
        add_other_resort(config, ranks, device, limit, list, count, text, size);
        return;
    }
    c.micro_batch = 1;
    const size_t bytes = plan_bytes(&c, ranks, device);
    if (count > 0 && bytes > limit)
        text_append(text, size, ": %s --micro-batch 1 still needs %s, %s too much", all, memory_text(needed, bytes),
                    memory_text(over, bytes - limit));
    c = *config;
    c.zero = 3;
    const int gpus = device == DEVICE_CPU ? 0 : fewest_gpus(&c, ranks, limit, list, count); // a CPU's share one memory
    if (gpus > 0) {
        text_append(text, size, "; %d GPUs with --zero 3", gpus);
        add_needed(&c, gpus, device, limit, list, count, text, size);
    }
    c = *config;
    const bool smaller = smaller_model(&c, ranks, device, limit, list, count);
    if (smaller) {
        text_append(text, size, "%s --model %s", gpus > 0 ? " or" : ";", c.model);
        if (!vocab_is_named(&c)) text_append(text, size, " --vocab %d", c.shape.vocab);
        add_needed(&c, ranks, device, limit, list, count, text, size);
    }
    if (gpus > 0 || smaller) text_append(text, size, " would fit");
}

// The changes to advise: all that are worth it but the last resorts, unless they are too
// little and as many of these help.
static int choose_changes(const Config *config, int ranks, DeviceKind device, size_t limit, bool fits,
                          Advice list[CHANGE_COUNT]) {
    const int count = find_changes(config, ranks, device, limit, CHANGE_OFFLOAD, list);
    if (fits || fits_with(config, ranks, device, limit, list, count, NULL)) return count;
    for (int end = CHANGE_OFFLOAD + 1; end <= CHANGE_COUNT; end++) {
        Advice last[CHANGE_COUNT];
        int more = find_changes(config, ranks, device, limit, end, last);
        if (!fits_with(config, ranks, device, limit, last, more, NULL)) continue;
        for (int i = more - 1; i >= 0 && last[i].what >= CHANGE_OFFLOAD; i--) { // the milder ones may do nothing for it
            bool left[CHANGE_COUNT] = {false};
            left[i] = true;
            if (!fits_with(config, ranks, device, limit, last, more, left)) continue;
            memmove(last + i, last + i + 1, (size_t)(--more - i) * sizeof *last);
        }
        memcpy(list, last, sizeof last);
        return more;
    }
    return count;
}

void plan_advice(const Config *config, int ranks, DeviceKind device, size_t limit, char *text, size_t size) {
    Advice list[CHANGE_COUNT];
    Error ignored;
    char saved[MEMORY_TEXT];
    int fits = 0, largest = 0;
    text[0] = '\0';
    if (limit > 0) largest = plan_largest_micro_batch(config, ranks, device, limit, &fits, &ignored);
    if (limit > 0 && largest == 0 && config->micro_batch > 1)
        text_append(text, size, "; not even --micro-batch 1 would fit");
    else if (largest > 0 && largest < config->micro_batch)
        text_append(text, size, "; --micro-batch %d would fit", largest);
    const int count = choose_changes(config, ranks, device, limit, limit == 0 || largest > 0, list);
    for (int i = 0; i < count; i++)
        text_append(text, size, i == 0 ? "; %s saves %s" : ", %s %s", list[i].flag, memory_text(saved, list[i].saved));
    if (limit > 0 && largest == 0) add_last_resort(config, ranks, device, limit, list, count, text, size);
}

// Where the host refuses: what has it hold less.
static bool advise_host(const Arena *arena, Error *err) {
    static const Change changes[] = {CHANGE_MOMENTS, CHANGE_MASTER, CHANGE_ZERO};
    char failure[512], advice[ADVICE_TEXT] = "", flag[40], saved[MEMORY_TEXT];
    Arena *less = (Arena *)xmalloc(sizeof *less);
    snprintf(failure, sizeof failure, "%s", err->text);
    for (int i = 0; i < 3; i++) {
        Config c = arena->config;
        if ((changes[i] == CHANGE_ZERO && c.zero > 0) || !change(&c, arena->ranks, changes[i], 1, flag)) continue;
        arena_plan(less, &c, arena->ranks, DEVICE_CUDA);
        text_append(advice, sizeof advice, "; %s saves %s", flag,
                    memory_text(saved, arena->host_bytes - less->host_bytes));
    }
    free(less);
    return error_set(err, err->code, "%s%s; remove the flag, or stop other programs", failure, advice);
}

bool plan_advise(const Arena *arena, Exec *exec, Error *err) {
    if (arena->host_refused) return advise_host(arena, err);
    const int64_t left = exec->ops->memory_free ? exec->ops->memory_free(exec) : 0;
    const DeviceKind device = exec->ops->device;
    char failure[512], advice[ADVICE_TEXT], bytes[MEMORY_TEXT];
    int most = 0;
    for (int c = 0; c < CATEGORY_COUNT; c++)
        if (!arena_on_host(arena, (Category)c) && arena->category_bytes[c] > arena->category_bytes[most]) most = c;
    snprintf(failure, sizeof failure, "%s", err->text);
    const size_t mine =
        left > 0 ? (size_t)left / (device == DEVICE_CPU ? (size_t)arena->ranks : 1) : 0; // CPUs share it
    plan_advice(&arena->config, arena->ranks, device, mine, advice, sizeof advice);
    return error_set(err, err->code, "%s; most of it is %s, %s%s; see --plan", failure, category_name((Category)most),
                     memory_text(bytes, arena->category_bytes[most]), advice);
}
