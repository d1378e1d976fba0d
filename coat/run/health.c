#include "health.h"

#include <math.h>

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
    double *unchanged;  // fraction of a moment's sampled FP8 values that the update left unchanged; NULL: no sample
    CodeCounts *counts; // counts of FP8 values; NULL if the step has no counts
} Collection;

// Gradient or norm output whose FP8 values are counted during the step: ids and log names of the tensor ([0]) and of
// its transpose ([1]). The transposes of norm outputs are not counted.
typedef struct {
    const char *name[2];
    TensorId id[2];
} CountedRow;

static const CountedRow counted_table[COUNTED_TENSORS] = {
    [GRADIENT_DRESID_FCPROJ] = {{"dresid_q_fcproj", "dresid_qt_fcproj"}, {DRESID_Q, DRESID_QT}},
    [GRADIENT_DRESID_PROJ] = {{"dresid_q_proj", "dresid_qt_proj"}, {DRESID_Q, DRESID_QT}},
    [GRADIENT_DH] = {{"dh_q", "dh_qt"}, {DH_Q, DH_QT}},
    [GRADIENT_DQKV] = {{"dqkv_q", "dqkv_qt"}, {DQKV_Q, DQKV_QT}},
    [GRADIENT_DLOGITS] = {{"dlogits_q", "dlogits_qt"}, {DLOGITS_Q, DLOGITS_QT}},
    [NORM_N1] = {{"n1", ""}, {N1, N1}},
    [NORM_N2] = {{"n2", ""}, {N2, N2}},
    [NORM_NF] = {{"nf", ""}, {NF, NF}},
};

// True if the health report contains the tensor: an FP8 or INT8 tensor with memory and a scale of its own. Transposes
// are excluded, because they contain the same values.
static bool is_entry(const TensorLayout *t) {
    return layout_owns_memory(t) && format_has_groups(t->format) && !t->transposed && t->scale_source < 0;
}

static void collect_entry(Collection *c, TensorId id, Role role) {
    const Arena *arena = c->arena;
    const TensorLayout *t = &arena->layout[id][role];
    const int begin = id >= PARAMETER_COUNT && arena->layout[id][PLAIN].exists ? arena->bf16_blocks : 0;
    if (begin >= t->layers) return;
    Entry *e = &c->entry[c->entries++];
    *e = (Entry){id, role, t->layers, c->tensors - begin, begin};
    for (int layer = begin; layer < t->layers; layer++) {
        Tensor tensor = arena_tensor(arena, id, role, layer);
        // If an activation or gradient is not saved for backward, another layer may have overwritten its memory. data
        // NULL makes health() report only an amax, which it estimates from the scale.
        if (id >= PARAMETER_COUNT && !t->saved) tensor.data = NULL;
        // This process reports only its own shard of a sharded tensor, as a single row.
        if (t->shard_elements < tensor_elements(tensor)) {
            tensor.rows = 1;
            tensor.cols = tensor.stride = t->shard_elements;
        }
        c->tensor[c->tensors++] = tensor;
    }
}

// Lists the report's entries and their tensors in *c, which free_collection() frees.
static void collect(Collection *c, const Arena *arena) {
    static const Role roles[] = {VALUE, CODES, MOMENT_M, MOMENT_V};
    size_t count = 0;
    memset(c, 0, sizeof *c);
    c->arena = arena;
    for (int id = 0; id < TENSOR_COUNT; id++)
        for (int r = 0; r < 4; r++) count += (size_t)arena->layout[id][roles[r]].layers;
    c->tensor = (Tensor *)xcalloc(count, sizeof *c->tensor);
    c->health = (Health *)xcalloc(count, sizeof *c->health);
    for (int id = 0; id < TENSOR_COUNT; id++)
        for (int r = 0; r < 4; r++)
            // DLOGITS_Q is excluded, because its scale is a constant.
            if (id != DLOGITS_Q && is_entry(&arena->layout[id][roles[r]])) collect_entry(c, (TensorId)id, roles[r]);
}

static void free_collection(Collection *c) {
    free(c->unchanged);
    free(c->counts);
    free(c->health);
    free(c->tensor);
}

static void collect_counts(Collection *c, Exec *exec) {
    Tensor counts = arena_tensor(c->arena, CODE_COUNTS, VALUE, 0);
    if (!counts.data) return;
    c->counts = (CodeCounts *)xcalloc(1, (size_t)tensor_elements(counts));
    exec->ops->download(exec, c->counts, counts.data, (size_t)tensor_elements(counts));
}

// Downloads the sample of a moment's FP8 values: HEALTH_SAMPLE values in the middle of the tensor, or all values if the
// tensor has fewer. Returns their number.
static int64_t download_sample(Exec *exec, Tensor t, uint8_t sample[HEALTH_SAMPLE]) {
    const int64_t elements = tensor_elements(t), count = elements < HEALTH_SAMPLE ? elements : HEALTH_SAMPLE;
    exec->ops->download(exec, sample, (const uint8_t *)t.data + (elements - count) / 2, (size_t)count);
    return count;
}

void health_sample(const Arena *arena, Exec *exec, HealthWarned *warned) {
    Collection c;
    collect(&c, arena);
    free(warned->sample);
    warned->sample = (uint8_t *)xcalloc((size_t)c.tensors + 1, HEALTH_SAMPLE);
    for (int i = 0; i < c.tensors; i++)
        if (c.tensor[i].granularity == SCALE_EXPAND)
            download_sample(exec, c.tensor[i], warned->sample + (size_t)i * HEALTH_SAMPLE);
    free_collection(&c);
}

// Compares the moments with the sample of health_sample(), and frees the sample.
static void compare_sample(Collection *c, Exec *exec, HealthWarned *warned) {
    if (!warned || !warned->sample) return;
    c->unchanged = (double *)xcalloc((size_t)c->tensors, sizeof *c->unchanged);
    uint8_t *after = (uint8_t *)xmalloc(HEALTH_SAMPLE);
    for (int i = 0; i < c->tensors; i++) {
        if (c->tensor[i].granularity != SCALE_EXPAND) continue;
        const uint8_t *before = warned->sample + (size_t)i * HEALTH_SAMPLE;
        const int64_t count = download_sample(exec, c->tensor[i], after);
        int64_t equal = 0;
        for (int64_t k = 0; k < count; k++) equal += before[k] == after[k];
        c->unchanged[i] = (double)equal / (double)count;
    }
    free(after);
    free(warned->sample);
    warned->sample = NULL;
}

static double fraction(uint64_t count, int64_t of) {
    return of > 0 ? (double)count / (double)of : 0.0;
}

static double saturated_fraction(const Collection *c, int i) {
    return fraction(c->health[i].saturated, tensor_elements(c->tensor[i]));
}

static const char *const entry_figures[] = {"amax", "saturated", "zero", "clamped", "unchanged"};
static double entry_figure(const Collection *c, const Entry *e, int figure, int layer) {
    const int i = e->first + layer;
    if (layer < e->begin) return NAN;
    const Tensor t = c->tensor[i];
    const Health *h = &c->health[i];
    switch (figure) {
    case 0: return (double)bits_float(h->amax);
    case 1: return saturated_fraction(c, i);
    case 2: return fraction(h->zero, tensor_elements(t));
    case 3: return fraction(h->clamped, (tensor_elements(t) + t.group - 1) / t.group);
    default: return c->unchanged[i];
    }
}

// A tensor of counted_table (transposed == 0) or its transpose (transposed == 1).
typedef struct {
    const Collection *c;
    CountedTensor what;
    int transposed;
    int layers; // number of layers; 0: this step has no counts, or the transpose shares the tensor's scale
} Counted;

static Counted counted(const Collection *c, int what, int transposed) {
    const int layers = c->arena->layout[counted_table[what].id[transposed]][VALUE].layers;
    const bool has = c->counts && c->counts[code_counts_at((CountedTensor)what, layers - 1) + transposed].codes > 0;
    return (Counted){c, (CountedTensor)what, transposed, has ? layers : 0};
}

enum { SATURATED, ZERO, SUBNORMAL };
static const char *const counted_figures[] = {"saturated", "zero", "subnormal"};
static double counted_figure(const Counted *g, int figure, int layer) {
    const CodeCounts *n = &g->c->counts[code_counts_at(g->what, layer) + g->transposed];
    if (n->codes == 0) return NAN; // the tensor is BF16 in this layer
    uint64_t saturated = n->saturated;
    if (g->what >= NORM_N1 && saturated > 0) {
        const TensorLayout *t = &g->c->arena->layout[counted_table[g->what].id[0]][VALUE];
        saturated -= t->granularity != SCALE_ROW; // excludes the tensor's amax, which becomes the largest FP8 value
    }
    return fraction(figure == SATURATED ? saturated : figure == ZERO ? n->zero : n->subnormal, (int64_t)n->codes);
}

// Returns the counted tensor that has the name of report entry `e`, or COUNTED_TENSORS if there is none.
static int counted_of(const Collection *c, const Entry *e) {
    int what = 0;
    while (what < COUNTED_TENSORS &&
           (counted(c, what, 0).layers == 0 || strcmp(counted_table[what].name[0], tensor_row(e->id)->name) != 0))
        what++;
    return what;
}

static void print_counted(FILE *out, const Counted *g) {
    for (int figure = 0; figure < 3; figure++) {
        double value[MAX_LAYERS];
        for (int layer = 0; layer < g->layers; layer++) value[layer] = counted_figure(g, figure, layer);
        if (figure) fputc(',', out);
        health_print_values(out, counted_figures[figure], value, g->layers);
    }
}

static void print_entry(FILE *out, const Collection *c, const Entry *e) {
    const Tensor first = c->tensor[e->first + e->begin];
    const int what = counted_of(c, e);
    const bool is_counted = what < COUNTED_TENSORS; // true: the fractions come from the values counted during the step
    const int figures = is_counted || !first.data ? 1 : first.granularity != SCALE_EXPAND ? 3 : c->unchanged ? 5 : 4;
    fprintf(out, "\"%s%s\":{", tensor_row(e->id)->name, role_suffix(e->role));
    for (int figure = 0; figure < figures; figure++) {
        double value[MAX_LAYERS];
        for (int layer = 0; layer < e->layers; layer++) value[layer] = entry_figure(c, e, figure, layer);
        if (figure) fputc(',', out);
        health_print_values(out, entry_figures[figure], value, e->layers);
    }
    if (is_counted) {
        const Counted g = counted(c, what, 0);
        fputc(',', out);
        print_counted(out, &g);
    }
    fputc('}', out);
}

// Prints the counts of tensors and transposes whose names are not among the report's entries.
static void print_other_counts(FILE *out, const Collection *c) {
    for (int i = 0; i < 2 * COUNTED_TENSORS; i++) {
        const Counted g = counted(c, i / 2, i % 2);
        bool printed = g.layers == 0;
        for (int k = 0; k < c->entries && !g.transposed; k++)
            printed = printed || counted_of(c, &c->entry[k]) == (int)g.what;
        if (printed) continue;
        fprintf(out, ",\"%s\":{", counted_table[g.what].name[g.transposed]);
        print_counted(out, &g);
        fputc('}', out);
    }
}

// Writes a warning about the first tensor that has an infinity, a NaN or too many saturated values. Ignores saturated
// values if the tensor has a scale per group. The warning also contains the number of other such tensors.
static void warn_tensors(const Collection *c, char warning[HEALTH_WARNING]) {
    int bad = 0;
    char first[192] = "", others[64] = "";
    for (int k = 0; k < c->entries; k++) {
        const Entry *e = &c->entry[k];
        for (int layer = e->begin; layer < e->layers; layer++) {
            const int i = e->first + layer;
            const bool finite = isfinite(bits_float(c->health[i].amax));
            const bool can_saturate = c->tensor[i].granularity <= SCALE_ROW && c->tensor[i].data;
            if ((finite && !(can_saturate && saturated_fraction(c, i) > health_bounds[BOUND_SATURATED].bound)) ||
                bad++ > 0)
                continue;
            char what[64] = "has an infinity or NaN";
            if (finite)
                snprintf(what, sizeof what, "has %.1f %% of its FP8 values saturated", 100 * saturated_fraction(c, i));
            snprintf(first, sizeof first, "fp8: %s%s of layer %d %s", tensor_row(e->id)->name, role_suffix(e->role),
                     layer, what);
        }
    }
    if (bad > 1) snprintf(others, sizeof others, "; see log.jsonl for more such tensors (%d)", bad - 1);
    if (bad > 0) health_add_line(warning, "%s%s", first, others);
}

// Writes a note if an update left too many 8-bit values of a moment unchanged, for the first such moment. Ignores the
// token embedding: most tokens occur in few steps, and without a gradient all moments of a group decay together, so no
// 8-bit value changes.
static void note_unchanged(const Collection *c, HealthWarned *warned, char warning[HEALTH_WARNING]) {
    for (int k = 0; k < c->entries && c->unchanged; k++) {
        const Entry *e = &c->entry[k];
        char name[64];
        snprintf(name, sizeof name, "%s%s", tensor_row(e->id)->name, role_suffix(e->role));
        if (e->id != WTE) health_note(BOUND_UNCHANGED, name, c->unchanged + e->first, e->layers, warned, warning);
    }
}

// Returns the flag, such as --head bf16, that makes a counted tensor more exact.
static const char *advice(const Recipe *r, CountedTensor what, bool for_wgrad) {
    if (what == GRADIENT_DLOGITS || what == NORM_NF) return "--head bf16";
    return for_wgrad || what >= NORM_N1 || recipe_gradient_format(r) == FMT_E5M2 ? "--linear bf16"
                                                                                 : "--recipe coat-paper";
}

// Returns the fraction of a layer's FP8 values that are zero or subnormal, to compare with HEALTH_SMALL. Does not count
// the zero gradients of masked targets: `unmasked` is the fraction of unmasked targets.
static double small_fraction(const Counted *g, int layer, double unmasked) {
    const double zero = counted_figure(g, ZERO, layer), expected = 1 - unmasked;
    return ((zero > expected ? zero - expected : 0) + counted_figure(g, SUBNORMAL, layer)) /
           (unmasked > 0 ? unmasked : 1);
}

// Warns if too many FP8 values of a counted tensor are saturated. If wgrad reads the tensor, also warns if too many are
// zero or subnormal. This second check ignores dlogits, because most probabilities of a trained model are too small for
// the scale of dlogits (quantize.h). Returns true if it warns.
static bool warn_counted(const Counted *g, double unmasked, char warning[HEALTH_WARNING]) {
    const bool for_wgrad = g->transposed || counted(g->c, (int)g->what, 1).layers == 0;
    if (g->what >= NORM_N1) unmasked = 1; // norm outputs of masked targets are not 0
    double saturated = 0, small = 0;
    int most_saturated = 0, smallest = 0; // layers with the largest `saturated` and the largest `small`
    for (int layer = 0; layer < g->layers; layer++) {
        const double saturated_here = counted_figure(g, SATURATED, layer);
        const double small_here = small_fraction(g, layer, unmasked);
        if (saturated_here > saturated) saturated = saturated_here, most_saturated = layer;
        if (small_here > small) small = small_here, smallest = layer;
    }
    const bool saturates = saturated > health_bounds[BOUND_SATURATED].bound;
    const bool is_small = small > HEALTH_SMALL && for_wgrad && g->what != GRADIENT_DLOGITS;
    if (!saturates && !is_small) return false;
    health_add_line(warning, "fp8: %s of layer %d has %.1f %% of its FP8 values %s; %s is more exact",
                    counted_table[g->what].name[g->transposed], saturates ? most_saturated : smallest,
                    100 * (saturates ? saturated : small),
                    saturates      ? "saturated"
                    : unmasked < 1 ? "zero or subnormal (masked targets not counted)"
                                   : "zero or subnormal",
                    advice(&g->c->arena->config->recipe, g->what, g->transposed || !saturates));
    return true;
}

char *health_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]) {
    Collection c;
    collect(&c, arena);
    char *json = NULL;
    size_t length = 0;
    warning[0] = '\0';
    if (c.tensors > 0) {
        exec->ops->health(exec, c.tensor, c.tensors, c.health);
        collect_counts(&c, exec);
        compare_sample(&c, exec, warned);
        FILE *out = open_memstream(&json, &length);
        if (!out) fatal(EXIT_DEVICE, "could not allocate host memory for the FP8 statistics");
        for (int k = 0; k < c.entries; k++) {
            fputc(k ? ',' : '{', out);
            print_entry(out, &c, &c.entry[k]);
        }
        print_other_counts(out, &c);
        fputc('}', out);
        fclose(out);
        warn_tensors(&c, warning);
        note_unchanged(&c, warned, warning);
        for (int i = 0; i < 2 * COUNTED_TENSORS && warned; i++) {
            const Counted g = counted(&c, i / 2, i % 2);
            bool *before = &warned->codes[g.what][g.transposed];
            *before = *before || warn_counted(&g, 1 - warned->uncounted, warning);
        }
    }
    free_collection(&c);
    return json;
}

static double bias_of(const InnerProducts *p) {
    return p->ab / p->bb - 1;
}

static double error_of(const InnerProducts *p) {
    const double square = p->aa - 2 * p->ab + p->bb; // rounding can make the square negative
    return sqrt((square < 0 ? 0 : square) / p->bb);
}

// Returns the larger of error / HEALTH_ERROR and |bias| / HEALTH_BIAS of a layer's wgrad. A warning is printed above 1.
// Returns INFINITY if a value is not finite, and 0 if the gradient is 0 in both formats.
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
        health_add_line(
            warning,
            "fp8: the FP8 wgrad of qkvw in layer %d is not 0, but the BF16 wgrad is; --linear bf16 is more exact",
            worst);
    else
        health_add_line(warning,
                        "fp8: the FP8 wgrad of qkvw in layer %d differs from the BF16 wgrad by %.1f %%, with a bias of "
                        "%+.1f %%; --linear bf16 is more exact",
                        worst, 100 * error_of(p), 100 * bias_of(p));
}

char *health_matmuls_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]) {
    Tensor sums = arena_tensor(arena, INNER_PRODUCTS, VALUE, 0);
    const int layers = (int)sums.rows;
    InnerProducts found[MAX_LAYERS];
    double error[MAX_LAYERS], bias[MAX_LAYERS];
    char *json = NULL;
    size_t length = 0;
    exec->ops->download(exec, found, sums.data, (size_t)layers * sizeof *found);
    for (int layer = 0; layer < layers; layer++) {
        error[layer] = error_of(&found[layer]);
        bias[layer] = bias_of(&found[layer]);
    }
    FILE *out = open_memstream(&json, &length);
    if (!out) fatal(EXIT_DEVICE, "could not allocate host memory for the statistics of matmuls");
    fputs("{\"qkvw\":{", out);
    health_print_values(out, "error", error, layers);
    fputc(',', out);
    health_print_values(out, "bias", bias, layers);
    fputs("}}", out);
    fclose(out);
    warning[0] = '\0';
    if (warned && !warned->matmuls) warn_matmuls(found, layers, warning);
    if (warned) warned->matmuls = warned->matmuls || warning[0];
    return json;
}
