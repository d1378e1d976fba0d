#include "health.h"

#include <stdarg.h>

// One entry of the object: a tensor, over all its layers.
typedef struct {
    TensorId id;
    Role role;
    int layers, first; // its tensors in the list
    int begin;         // the first layer that has it in FP8, whose tensor is first + begin
} Entry;

typedef struct {
    const Arena *arena;
    Entry entry[TENSOR_COUNT * ROLE_COUNT];
    int entries;
    Tensor *tensor;
    Health *health;
    int tensors;
    CodeCounts *counts; // of gradients; NULL: not kept
} Collection;

// The gradients that are counted, by their names in the log.
typedef struct {
    const char *name[2]; // its transpose's second
    TensorId id[2];
} GradientRow;

static const GradientRow gradient_table[GRADIENT_COUNT] = {
    [GRADIENT_DRESID_FCPROJ] = {{"dresid_q_fcproj", "dresid_qt_fcproj"}, {DRESID_Q, DRESID_QT}},
    [GRADIENT_DRESID_PROJ] = {{"dresid_q_proj", "dresid_qt_proj"}, {DRESID_Q, DRESID_QT}},
    [GRADIENT_DH] = {{"dh_q", "dh_qt"}, {DH_Q, DH_QT}},
    [GRADIENT_DQKV] = {{"dqkv_q", "dqkv_qt"}, {DQKV_Q, DQKV_QT}},
    [GRADIENT_DLOGITS] = {{"dlogits_q", "dlogits_qt"}, {DLOGITS_Q, DLOGITS_QT}},
};

// A parameter's 8-bit tensors, and the activations and gradients that a scale was made for in a step; transposes repeat
// the codes of others, and the loss's gradient has a scale that is known in advance.
static bool reported(const TensorLayout *t) {
    return layout_owns_memory(t) && format_is_fp8(t->format) && !t->transposed && t->scale_source < 0;
}

static void collect_entry(Collection *c, const Arena *arena, TensorId id, Role role) {
    const TensorLayout *t = &arena->layout[id][role];
    const int begin = id >= PARAMETER_COUNT && arena->layout[id][PLAIN].exists ? arena->bf16_blocks : 0;
    if (begin >= t->layers) return;
    Entry *e = &c->entry[c->entries++];
    e->id = id;
    e->role = role;
    e->layers = t->layers;
    e->begin = begin;
    e->first = c->tensors - e->begin;
    for (int layer = e->begin; layer < t->layers; layer++) {
        Tensor tensor = arena_tensor(arena, id, role, layer);
        if (id >= PARAMETER_COUNT && !t->saved) tensor.data = NULL; // other layers and stages have used its memory
        if (t->shard_elements < tensor_elements(tensor)) {          // this process's share, in one piece
            tensor.rows = 1;
            tensor.cols = tensor.stride = t->shard_elements;
        }
        c->tensor[c->tensors++] = tensor;
    }
}

static void collect(Collection *c, const Arena *arena) {
    static const Role roles[] = {VALUE, CODES, MOMENT_M, MOMENT_V};
    size_t most = 0;
    for (int id = 0; id < TENSOR_COUNT; id++)
        for (int r = 0; r < 4; r++) most += (size_t)arena->layout[id][roles[r]].layers;
    c->tensor = (Tensor *)xcalloc(most, sizeof *c->tensor);
    c->health = (Health *)xcalloc(most, sizeof *c->health);
    for (int id = 0; id < TENSOR_COUNT; id++)
        for (int r = 0; r < 4; r++)
            if (id != DLOGITS_Q && reported(&arena->layout[id][roles[r]]))
                collect_entry(c, arena, (TensorId)id, roles[r]);
}

static void collect_counts(Collection *c, Exec *exec) {
    Tensor counts = arena_tensor(c->arena, CODE_COUNTS, VALUE, 0);
    if (!counts.data) return;
    c->counts = (CodeCounts *)xcalloc(1, (size_t)tensor_elements(counts));
    exec->ops->download(exec, c->counts, counts.data, (size_t)tensor_elements(counts));
}

static double share(uint64_t count, int64_t of) {
    return of > 0 ? (double)count / (double)of : 0.0;
}

static double saturated_share(const Collection *c, int i) {
    return share(c->health[i].saturated, tensor_elements(c->tensor[i]));
}

// --- as JSON ---------------------------------------------------------------------------------------------------

typedef enum {
    HEALTH_AMAX,
    HEALTH_SHARE_SATURATED,
    HEALTH_SHARE_ZERO,
    HEALTH_SHARE_CLAMPED,
    HEALTH_VALUES
} HealthValue;

static double health_value(const Collection *c, int i, HealthValue value) {
    const Tensor t = c->tensor[i];
    const Health *h = &c->health[i];
    switch (value) {
    case HEALTH_AMAX: return (double)bits_float(h->amax);
    case HEALTH_SHARE_SATURATED: return saturated_share(c, i);
    case HEALTH_SHARE_ZERO: return share(h->zero, tensor_elements(t));
    default: return share(h->clamped, (tensor_elements(t) + t.group - 1) / t.group);
    }
}

// Layers of a gradient that this step has counted; 0: none, or it is no codes of its own.
static int layers_counted(const Collection *c, QuantizedGradient what, int transposed) {
    const int layers = c->arena->layout[gradient_table[what].id[transposed]][VALUE].layers;
    const bool counted = c->counts && c->counts[code_counts_at(what, layers - 1) + transposed].codes > 0;
    return counted ? layers : 0;
}

typedef enum { SHARE_SATURATED, SHARE_ZERO, SHARE_SUBNORMAL, SHARES } Share;

static double counted_share(const Collection *c, QuantizedGradient what, int transposed, int layer, Share of) {
    const CodeCounts *n = &c->counts[code_counts_at(what, layer) + transposed];
    return share(of == SHARE_SATURATED ? n->saturated : of == SHARE_ZERO ? n->zero : n->subnormal, (int64_t)n->codes);
}

static void print_shares(FILE *out, const Collection *c, QuantizedGradient what, int transposed) {
    static const char *const names[SHARES] = {"saturated", "zero", "subnormal"};
    for (int s = 0; s < SHARES; s++) {
        fprintf(out, "%s\"%s\":[", s ? "," : "", names[s]);
        for (int layer = 0; layer < layers_counted(c, what, transposed); layer++) {
            fprintf(out, "%s%.4g", layer ? "," : "", counted_share(c, what, transposed, layer, (Share)s));
        }
        fputc(']', out);
    }
}

// The gradient that is counted under the name of this entry; GRADIENT_COUNT: none is.
static QuantizedGradient gradient_of(const Collection *c, const Entry *e) {
    int what = 0;
    while (what < GRADIENT_COUNT && (!layers_counted(c, (QuantizedGradient)what, 0) ||
                                     strcmp(gradient_table[what].name[0], tensor_row(e->id)->name) != 0))
        what++;
    return (QuantizedGradient)what;
}

// What is counted of gradients that are no entries.
static void print_other_gradients(FILE *out, const Collection *c) {
    for (int what = 0; what < GRADIENT_COUNT; what++) {
        for (int transposed = 0; transposed < 2; transposed++) {
            bool is_entry = false;
            for (int k = 0; k < c->entries && !transposed; k++)
                is_entry = is_entry || (int)gradient_of(c, &c->entry[k]) == what;
            if (is_entry || !layers_counted(c, (QuantizedGradient)what, transposed)) continue;
            fprintf(out, ",\"%s\":{", gradient_table[what].name[transposed]);
            print_shares(out, c, (QuantizedGradient)what, transposed);
            fputc('}', out);
        }
    }
}

static void print_entry(FILE *out, const Collection *c, const Entry *e) {
    static const char *const names[HEALTH_VALUES] = {"amax", "saturated", "zero", "clamped"};
    const Tensor first = c->tensor[e->first + e->begin];
    int values = !first.data                         ? HEALTH_SHARE_SATURATED
                 : first.granularity == SCALE_EXPAND ? HEALTH_VALUES
                                                     : HEALTH_SHARE_CLAMPED;
    fprintf(out, "\"%s%s\":{", tensor_row(e->id)->name, role_suffix(e->role));
    for (int v = 0; v < values; v++) {
        fprintf(out, "%s\"%s\":[", v ? "," : "", names[v]);
        for (int i = 0; i < e->layers; i++) {
            double x = i < e->begin ? NAN : health_value(c, e->first + i, (HealthValue)v);
            if (i) fputc(',', out);
            fprintf(out, isfinite(x) ? "%.4g" : "null", x);
        }
        fputc(']', out);
    }
    const QuantizedGradient what = gradient_of(c, e);
    if (what < GRADIENT_COUNT) {
        fputc(',', out);
        print_shares(out, c, what, 0);
    }
    fputc('}', out);
}

// --- for people --------------------------------------------------------------------------------------------------

static bool is_bad(const Collection *c, int i) {
    bool wide = c->tensor[i].granularity <= SCALE_ROW && c->tensor[i].data;
    return !isfinite(bits_float(c->health[i].amax)) || (wide && saturated_share(c, i) > HEALTH_SATURATED);
}

// Adds a line to the warning.
__attribute__((format(printf, 2, 3))) static void add_line(char warning[HEALTH_WARNING], const char *format, ...) {
    size_t used = strlen(warning);
    if (used > 0 && used + 1 < HEALTH_WARNING) warning[used++] = '\n';
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(warning + used, HEALTH_WARNING - used, format, arguments);
    va_end(arguments);
}

// The first tensor with something wrong, and how many others.
static void warn(const Collection *c, char warning[HEALTH_WARNING]) {
    int bad = 0;
    char first[192] = "", others[64] = "";
    for (int k = 0; k < c->entries; k++) {
        const Entry *e = &c->entry[k];
        for (int i = e->begin; i < e->layers; i++) {
            if (!is_bad(c, e->first + i) || bad++ > 0) continue;
            char what[64] = "holds values that are not finite";
            if (isfinite(bits_float(c->health[e->first + i].amax)))
                snprintf(what, sizeof what, "has %.1f %% of its codes saturated",
                         100.0 * saturated_share(c, e->first + i));
            snprintf(first, sizeof first, "fp8: %s%s of layer %d %s", tensor_row(e->id)->name, role_suffix(e->role), i,
                     what);
        }
    }
    if (bad > 1) snprintf(others, sizeof others, "; %d more like it, see log.jsonl", bad - 1);
    if (bad > 0) add_line(warning, "%s%s", first, others);
}

// The flag that gives a gradient codes that fit it better.
static const char *advice(const Recipe *r, QuantizedGradient what, bool for_weights) {
    if (what == GRADIENT_DLOGITS) return "--head bf16";
    return for_weights || recipe_gradient_format(r) == FMT_E5M2 ? "--linear bf16" : "--recipe coat-paper";
}

// The share of a layer's codes that are too small (HEALTH_SMALL): of those that are not 0 for want of a target.
static double small_share(const Collection *c, QuantizedGradient what, int transposed, int layer, double counted) {
    const double untouched = 1 - counted, zero = counted_share(c, what, transposed, layer, SHARE_ZERO);
    const double subnormal = counted_share(c, what, transposed, layer, SHARE_SUBNORMAL);
    return ((zero > untouched ? zero - untouched : 0) + subnormal) / (counted > 0 ? counted : 1);
}

// A gradient whose codes do not fit. Small codes count where a weight gradient is made from them, but
// for the loss's: its scale keeps all probabilities that matter (quantize.h), and most are smaller in a
// model that has learnt something.
static bool warn_gradient(const Collection *c, QuantizedGradient what, int transposed, double counted,
                          char warning[HEALTH_WARNING]) {
    const bool for_weights = transposed || !layers_counted(c, what, 1);
    double saturated = 0, small = 0;
    int full = 0, empty = 0; // the worst layers
    for (int layer = 0; layer < layers_counted(c, what, transposed); layer++) {
        const double of_full = counted_share(c, what, transposed, layer, SHARE_SATURATED);
        const double of_small = small_share(c, what, transposed, layer, counted);
        if (of_full > saturated) saturated = of_full, full = layer;
        if (of_small > small) small = of_small, empty = layer;
    }
    const bool too_full = saturated > HEALTH_SATURATED;
    const bool too_empty = small > HEALTH_SMALL && for_weights && what != GRADIENT_DLOGITS;
    if (!too_full && !too_empty) return false;
    const char *flag = advice(&c->arena->config->recipe, what, transposed || !too_full);
    add_line(warning, "fp8: %s of layer %d has %.1f %% of its codes %s; %s keeps more of it",
             gradient_table[what].name[transposed], too_full ? full : empty, 100 * (too_full ? saturated : small),
             too_full        ? "saturated"
             : counted < 1.0 ? "zero or subnormal beyond what has no target"
                             : "zero or subnormal",
             flag);
    return true;
}

static void warn_gradients(const Collection *c, HealthWarned *warned, char warning[HEALTH_WARNING]) {
    for (int what = 0; what < GRADIENT_COUNT; what++)
        for (int transposed = 0; transposed < 2; transposed++)
            if (!warned->codes[what][transposed])
                warned->codes[what][transposed] =
                    warn_gradient(c, (QuantizedGradient)what, transposed, 1 - warned->uncounted, warning);
}

char *health_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]) {
    Collection c;
    memset(&c, 0, sizeof c);
    c.arena = arena;
    collect(&c, arena);
    char *json = NULL;
    size_t length = 0;
    warning[0] = '\0';
    if (c.tensors > 0) {
        exec->ops->health(exec, c.tensor, c.tensors, c.health);
        collect_counts(&c, exec);
        FILE *out = open_memstream(&json, &length);
        if (!out) fatal(EXIT_DEVICE, "host memory: no room for the state of the FP8 tensors");
        for (int k = 0; k < c.entries; k++) {
            fputc(k ? ',' : '{', out);
            print_entry(out, &c, &c.entry[k]);
        }
        print_other_gradients(out, &c);
        fputc('}', out);
        fclose(out);
        warn(&c, warning);
        if (warned) warn_gradients(&c, warned, warning);
    }
    free(c.counts);
    free(c.health);
    free(c.tensor);
    return json;
}
