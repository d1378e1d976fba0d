#include "health.h"

#include <math.h>
#include <stdarg.h>

typedef struct {
    TensorId id;
    Role role;
    int layers, first; // the tensor of layer i is Collection.tensor[first + i]
    int begin;         // first layer whose tensor is FP8; earlier layers are BF16
} Entry;

typedef struct {
    const Arena *arena;
    Entry entry[TENSOR_COUNT * ROLE_COUNT];
    int entries;
    Tensor *tensor;
    Health *health;
    int tensors;
    CodeCounts *counts; // counts of the gradients' FP8 values; NULL if the step has no counts
} Collection;

// Gradient whose FP8 values are counted during backward: ids and log names of the gradient ([0]) and of its transpose
// ([1]).
typedef struct {
    const char *name[2];
    TensorId id[2];
} GradientRow;

static const GradientRow gradient_table[GRADIENT_COUNT] = {
    [GRADIENT_DRESID_FCPROJ] = {{"dresid_q_fcproj", "dresid_qt_fcproj"}, {DRESID_Q, DRESID_QT}},
    [GRADIENT_DRESID_PROJ] = {{"dresid_q_proj", "dresid_qt_proj"}, {DRESID_Q, DRESID_QT}},
    [GRADIENT_DH] = {{"dh_q", "dh_qt"}, {DH_Q, DH_QT}},
    [GRADIENT_DQKV] = {{"dqkv_q", "dqkv_qt"}, {DQKV_Q, DQKV_QT}},
    [GRADIENT_DLOGITS] = {{"dlogits_q", "dlogits_qt"}, {DLOGITS_Q, DLOGITS_QT}},
};

// True if the health report contains the tensor: an FP8 or INT8 tensor with memory and a scale of its own. Transposes
// are excluded, because they contain the same values.
static bool is_entry(const TensorLayout *t) {
    return layout_owns_memory(t) && format_has_groups(t->format) && !t->transposed && t->scale_source < 0;
}

static void collect_entry(Collection *c, const Arena *arena, TensorId id, Role role) {
    const TensorLayout *t = &arena->layout[id][role];
    const int begin = id >= PARAMETER_COUNT && arena->layout[id][PLAIN].exists ? arena->bf16_blocks : 0;
    if (begin >= t->layers) return;
    Entry *e = &c->entry[c->entries++];
    *e = (Entry){id, role, t->layers, c->tensors - begin, begin};
    for (int layer = begin; layer < t->layers; layer++) {
        Tensor tensor = arena_tensor(arena, id, role, layer);
        // If an activation or gradient is not saved for backward, another layer may have overwritten its memory. Then
        // tensor.data is NULL, and only an amax is reported, which is estimated from the scale.
        if (id >= PARAMETER_COUNT && !t->saved) tensor.data = NULL;
        // This process reports only its own shard of a sharded tensor, as a single row.
        if (t->shard_elements < tensor_elements(tensor)) {
            tensor.rows = 1;
            tensor.cols = tensor.stride = t->shard_elements;
        }
        c->tensor[c->tensors++] = tensor;
    }
}

static void collect(Collection *c, const Arena *arena) {
    static const Role roles[] = {VALUE, CODES, MOMENT_M, MOMENT_V};
    size_t count = 0;
    for (int id = 0; id < TENSOR_COUNT; id++)
        for (int r = 0; r < 4; r++) count += (size_t)arena->layout[id][roles[r]].layers;
    c->tensor = (Tensor *)xcalloc(count, sizeof *c->tensor);
    c->health = (Health *)xcalloc(count, sizeof *c->health);
    for (int id = 0; id < TENSOR_COUNT; id++)
        for (int r = 0; r < 4; r++)
            // DLOGITS_Q is excluded, because its scale is a constant.
            if (id != DLOGITS_Q && is_entry(&arena->layout[id][roles[r]]))
                collect_entry(c, arena, (TensorId)id, roles[r]);
}

static void collect_counts(Collection *c, Exec *exec) {
    Tensor counts = arena_tensor(c->arena, CODE_COUNTS, VALUE, 0);
    if (!counts.data) return;
    c->counts = (CodeCounts *)xcalloc(1, (size_t)tensor_elements(counts));
    exec->ops->download(exec, c->counts, counts.data, (size_t)tensor_elements(counts));
}

// Function that returns the statistic names[figure] of a layer.
typedef double Figure(const void *context, int figure, int layer);

// Prints "name":[one value per layer] for each statistic. A value that is not finite is printed as null.
static void print_figures(FILE *out, const char *const *names, int figures, int layers, Figure *value,
                          const void *context) {
    for (int figure = 0; figure < figures; figure++) {
        fprintf(out, "%s\"%s\":[", figure ? "," : "", names[figure]);
        for (int layer = 0; layer < layers; layer++) {
            const double x = value(context, figure, layer);
            if (layer) fputc(',', out);
            fprintf(out, isfinite(x) ? "%.4g" : "null", x);
        }
        fputc(']', out);
    }
}

static double fraction(uint64_t count, int64_t of) {
    return of > 0 ? (double)count / (double)of : 0.0;
}

static double saturated_fraction(const Collection *c, int i) {
    return fraction(c->health[i].saturated, tensor_elements(c->tensor[i]));
}

typedef struct {
    const Collection *c;
    const Entry *entry;
} EntryFigures;

static const char *const entry_figures[] = {"amax", "saturated", "zero", "clamped"};
static double entry_figure(const void *context, int figure, int layer) {
    const EntryFigures *of = (const EntryFigures *)context;
    const int i = of->entry->first + layer;
    if (layer < of->entry->begin) return NAN;
    const Tensor t = of->c->tensor[i];
    const Health *h = &of->c->health[i];
    switch (figure) {
    case 0: return (double)bits_float(h->amax);
    case 1: return saturated_fraction(of->c, i);
    case 2: return fraction(h->zero, tensor_elements(t));
    default: return fraction(h->clamped, (tensor_elements(t) + t.group - 1) / t.group);
    }
}

// Gradient (transposed 0) or its transpose (1) whose FP8 values are counted.
typedef struct {
    const Collection *c;
    QuantizedGradient what;
    int transposed;
    int layers; // number of layers with counts; 0 if not counted in this step or equal to the gradient's
} Counted;

static Counted counted(const Collection *c, int what, int transposed) {
    const int layers = c->arena->layout[gradient_table[what].id[transposed]][VALUE].layers;
    const bool has = c->counts && c->counts[code_counts_at((QuantizedGradient)what, layers - 1) + transposed].codes > 0;
    return (Counted){c, (QuantizedGradient)what, transposed, has ? layers : 0};
}

enum { SATURATED, ZERO, SUBNORMAL };
static const char *const gradient_figures[] = {"saturated", "zero", "subnormal"};
static double gradient_figure(const void *context, int figure, int layer) {
    const Counted *g = (const Counted *)context;
    const CodeCounts *n = &g->c->counts[code_counts_at(g->what, layer) + g->transposed];
    return fraction(figure == SATURATED ? n->saturated : figure == ZERO ? n->zero : n->subnormal, (int64_t)n->codes);
}

// Returns the counted gradient that has the name of report entry `e`, or GRADIENT_COUNT if there is none.
static int gradient_of(const Collection *c, const Entry *e) {
    int what = 0;
    while (what < GRADIENT_COUNT &&
           (counted(c, what, 0).layers == 0 || strcmp(gradient_table[what].name[0], tensor_row(e->id)->name) != 0))
        what++;
    return what;
}

static void print_entry(FILE *out, const Collection *c, const Entry *e) {
    const Tensor first = c->tensor[e->first + e->begin];
    const EntryFigures of = {c, e};
    const int what = gradient_of(c, e), figures = !first.data ? 1 : first.granularity == SCALE_EXPAND ? 4 : 3;
    fprintf(out, "\"%s%s\":{", tensor_row(e->id)->name, role_suffix(e->role));
    print_figures(out, entry_figures, figures, e->layers, entry_figure, &of);
    if (what < GRADIENT_COUNT) {
        const Counted g = counted(c, what, 0);
        fputc(',', out);
        print_figures(out, gradient_figures, 3, g.layers, gradient_figure, &g);
    }
    fputc('}', out);
}

// Prints the counts of gradients and transposes whose names are not among the report's entries.
static void print_other_gradients(FILE *out, const Collection *c) {
    for (int i = 0; i < 2 * GRADIENT_COUNT; i++) {
        const Counted g = counted(c, i / 2, i % 2);
        bool printed = g.layers == 0;
        for (int k = 0; k < c->entries && !g.transposed; k++)
            printed = printed || gradient_of(c, &c->entry[k]) == (int)g.what;
        if (printed) continue;
        fprintf(out, ",\"%s\":{", gradient_table[g.what].name[g.transposed]);
        print_figures(out, gradient_figures, 3, g.layers, gradient_figure, &g);
        fputc('}', out);
    }
}

// Appends a line to the warning text.
__attribute__((format(printf, 2, 3))) static void add_line(char warning[HEALTH_WARNING], const char *format, ...) {
    size_t used = strlen(warning);
    if (used > 0 && used + 1 < HEALTH_WARNING) warning[used++] = '\n';
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(warning + used, HEALTH_WARNING - used, format, arguments);
    va_end(arguments);
}

// Writes a warning for the first tensor that has an infinity or NaN. If the tensor has one scale per tensor or row,
// also warns if too many of its values are saturated.
static void warn_tensors(const Collection *c, char warning[HEALTH_WARNING]) {
    int bad = 0;
    char first[192] = "", others[64] = "";
    for (int k = 0; k < c->entries; k++) {
        const Entry *e = &c->entry[k];
        for (int layer = e->begin; layer < e->layers; layer++) {
            const int i = e->first + layer;
            const bool finite = isfinite(bits_float(c->health[i].amax));
            const bool can_saturate = c->tensor[i].granularity <= SCALE_ROW && c->tensor[i].data;
            if ((finite && !(can_saturate && saturated_fraction(c, i) > HEALTH_SATURATED)) || bad++ > 0) continue;
            char what[64] = "has an infinity or NaN";
            if (finite)
                snprintf(what, sizeof what, "has %.1f %% of its FP8 values saturated", 100 * saturated_fraction(c, i));
            snprintf(first, sizeof first, "fp8: %s%s of layer %d %s", tensor_row(e->id)->name, role_suffix(e->role),
                     layer, what);
        }
    }
    if (bad > 1) snprintf(others, sizeof others, "; see log.jsonl for more such tensors (%d)", bad - 1);
    if (bad > 0) add_line(warning, "%s%s", first, others);
}

// Returns the flag, such as --head bf16, that makes a gradient more exact.
static const char *advice(const Recipe *r, QuantizedGradient what, bool for_wgrad) {
    if (what == GRADIENT_DLOGITS) return "--head bf16";
    return for_wgrad || recipe_gradient_format(r) == FMT_E5M2 ? "--linear bf16" : "--recipe coat-paper";
}

// Returns the fraction of a layer's FP8 values that are zero or subnormal, to compare with HEALTH_SMALL. `unmasked` is
// the fraction of targets that are unmasked; the zeros of masked targets are ignored.
static double small_fraction(const Counted *g, int layer, double unmasked) {
    const double zero = gradient_figure(g, ZERO, layer), expected = 1 - unmasked;
    return ((zero > expected ? zero - expected : 0) + gradient_figure(g, SUBNORMAL, layer)) /
           (unmasked > 0 ? unmasked : 1);
}

// Warns if too many FP8 values of a gradient are saturated. If wgrad reads the gradient, also warns if too many are
// zero or subnormal, except in the loss gradient: most probabilities of a trained model are too small for its scale
// (quantize.h). Returns true if it warns.
static bool warn_gradient(const Counted *g, double unmasked, char warning[HEALTH_WARNING]) {
    const bool for_wgrad = g->transposed || counted(g->c, (int)g->what, 1).layers == 0;
    double saturated = 0, small = 0;
    int most_saturated = 0, smallest = 0; // layers with the largest `saturated` and the largest `small`
    for (int layer = 0; layer < g->layers; layer++) {
        const double saturated_here = gradient_figure(g, SATURATED, layer);
        const double small_here = small_fraction(g, layer, unmasked);
        if (saturated_here > saturated) saturated = saturated_here, most_saturated = layer;
        if (small_here > small) small = small_here, smallest = layer;
    }
    const bool saturates = saturated > HEALTH_SATURATED;
    const bool is_small = small > HEALTH_SMALL && for_wgrad && g->what != GRADIENT_DLOGITS;
    if (!saturates && !is_small) return false;
    add_line(warning, "fp8: %s of layer %d has %.1f %% of its FP8 values %s; %s is more exact",
             gradient_table[g->what].name[g->transposed], saturates ? most_saturated : smallest,
             100 * (saturates ? saturated : small),
             saturates      ? "saturated"
             : unmasked < 1 ? "zero or subnormal, without masked targets"
                            : "zero or subnormal",
             advice(&g->c->arena->config->recipe, g->what, g->transposed || !saturates));
    return true;
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
        if (!out) fatal(EXIT_DEVICE, "could not allocate host memory for the FP8 statistics");
        for (int k = 0; k < c.entries; k++) {
            fputc(k ? ',' : '{', out);
            print_entry(out, &c, &c.entry[k]);
        }
        print_other_gradients(out, &c);
        fputc('}', out);
        fclose(out);
        warn_tensors(&c, warning);
        for (int i = 0; i < 2 * GRADIENT_COUNT && warned; i++) {
            const Counted g = counted(&c, i / 2, i % 2);
            bool *before = &warned->codes[g.what][g.transposed];
            *before = *before || warn_gradient(&g, 1 - warned->uncounted, warning);
        }
    }
    free(c.counts);
    free(c.health);
    free(c.tensor);
    return json;
}

static double bias_of(const InnerProducts *p) {
    return p->ab / p->bb - 1;
}

static double error_of(const InnerProducts *p) {
    const double square = p->aa - 2 * p->ab + p->bb; // rounding can make the square negative
    return sqrt((square < 0 ? 0 : square) / p->bb);
}

static const char *const matmul_figures[] = {"error", "bias"};
static double matmul_figure(const void *context, int figure, int layer) {
    const InnerProducts *p = (const InnerProducts *)context + layer;
    return figure == 0 ? error_of(p) : bias_of(p);
}

// Returns the error or bias of a layer's wgrad relative to its limit, whichever is larger; above 1, a warning is
// printed. Returns INFINITY if a value is not finite, and 0 if the gradient is 0 in both formats.
static double excess(const InnerProducts *p) {
    if (p->aa == 0 && p->bb == 0) return 0;
    const double x = fmax(fabs(bias_of(p)) / HEALTH_BIAS, error_of(p) / HEALTH_ERROR);
    return isfinite(bias_of(p)) && isfinite(x) ? x : INFINITY;
}

static void warn_matmuls(const InnerProducts found[], int layers, char warning[HEALTH_WARNING]) {
    int worst = 0;
    for (int layer = 1; layer < layers; layer++)
        if (excess(&found[layer]) > excess(&found[worst])) worst = layer;
    const InnerProducts *p = &found[worst];
    if (!(excess(p) > 1)) return;
    if (p->bb == 0)
        add_line(warning, "fp8: the wgrad of qkvw in layer %d is not 0, but in BF16 it is; --linear bf16 is more exact",
                 worst);
    else
        add_line(warning,
                 "fp8: the wgrad of qkvw in layer %d differs from BF16's by %.1f %%, with a bias of %+.1f %%; "
                 "--linear bf16 is more exact",
                 worst, 100 * error_of(p), 100 * bias_of(p));
}

// Returns the JSON object {"NAME":{"figure":[one value per layer],..}}, which the caller frees.
static char *figures_json(const char *name, const char *const *names, int figures, int layers, Figure *value,
                          const void *context) {
    char *json = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&json, &length);
    if (!out) fatal(EXIT_DEVICE, "could not allocate host memory for the statistics of %s", name);
    fprintf(out, "{\"%s\":{", name);
    print_figures(out, names, figures, layers, value, context);
    fprintf(out, "}}");
    fclose(out);
    return json;
}

char *health_matmuls_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]) {
    Tensor sums = arena_tensor(arena, INNER_PRODUCTS, VALUE, 0);
    const int layers = (int)sums.rows;
    InnerProducts *found = (InnerProducts *)xcalloc((size_t)layers, sizeof *found);
    exec->ops->download(exec, found, sums.data, (size_t)layers * sizeof *found);
    char *json = figures_json("qkvw", matmul_figures, 2, layers, matmul_figure, found);
    warning[0] = '\0';
    if (warned && !warned->matmuls) warn_matmuls(found, layers, warning);
    if (warned) warned->matmuls = warned->matmuls || warning[0];
    free(found);
    return json;
}

// Returns the largest log-sum-exp of a layer's attention logits in the last micro-batch, NaN if one is NaN.
static double largest_lse(const Arena *arena, Exec *exec, int layer) {
    const Tensor t = arena_tensor(arena, LSE, VALUE, layer);
    const int64_t count = tensor_elements(t);
    float *values = (float *)xmalloc((size_t)count * sizeof *values), largest = -INFINITY;
    exec->ops->download(exec, values, t.data, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < count && !isnan(largest); i++) largest = values[i] <= largest ? largest : values[i];
    free(values);
    return (double)largest;
}

static const char *const attention_figures[] = {"max"};
static double attention_figure(const void *context, int figure, int layer) {
    (void)figure;
    return ((const double *)context)[layer];
}

char *health_attention_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]) {
    const int layers = arena->layout[LSE][VALUE].layers;
    double *found = (double *)xcalloc((size_t)layers, sizeof *found);
    int most = 0;
    for (int layer = 0; layer < layers; layer++) {
        found[layer] = largest_lse(arena, exec, layer);
        if (found[layer] > found[most] || isnan(found[most])) most = layer;
    }
    char *json = figures_json("lse", attention_figures, 1, layers, attention_figure, found);
    warning[0] = '\0';
    if (warned && !warned->attention && found[most] > HEALTH_LSE) {
        warned->attention = true;
        add_line(warning,
                 "attention: the largest logit of layer %d is about %.0f; above %d, a run may become unstable; reduce "
                 "--lr, or train a model that normalizes q and k",
                 most, found[most], HEALTH_LSE);
    }
    free(found);
    return json;
}
