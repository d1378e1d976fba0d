#include "health.h"

// One entry of the object: a tensor, over all its layers.
typedef struct {
    TensorId id;
    Role role;
    int layers, first; // its tensors in the list
} Entry;

typedef struct {
    Entry entry[TENSOR_COUNT * ROLE_COUNT];
    int entries;
    Tensor *tensor;
    Health *health;
    int tensors;
} Collection;

// A parameter's 8-bit tensors, and the activations and gradients that a scale was made for in a step; transposes repeat
// the codes of others, and the loss's gradient has a scale that is known in advance.
static bool reported(const TensorLayout *t) {
    return t->exists && t->alias < 0 && format_is_fp8(t->format) && !t->transposed && t->scale_source < 0;
}

static void collect_entry(Collection *c, const Arena *arena, TensorId id, Role role) {
    const TensorLayout *t = &arena->layout[id][role];
    Entry *e = &c->entry[c->entries++];
    e->id = id;
    e->role = role;
    e->layers = t->layers;
    e->first = c->tensors;
    for (int layer = 0; layer < t->layers; layer++) {
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

static void print_entry(FILE *out, const Collection *c, const Entry *e) {
    static const char *const names[HEALTH_VALUES] = {"amax", "saturated", "zero", "clamped"};
    const Tensor first = c->tensor[e->first];
    int values = !first.data                         ? HEALTH_SHARE_SATURATED
                 : first.granularity == SCALE_EXPAND ? HEALTH_VALUES
                                                     : HEALTH_SHARE_CLAMPED;
    fprintf(out, "\"%s%s\":{", tensor_row(e->id)->name, role_suffix(e->role));
    for (int v = 0; v < values; v++) {
        fprintf(out, "%s\"%s\":[", v ? "," : "", names[v]);
        for (int i = 0; i < e->layers; i++) {
            double x = health_value(c, e->first + i, (HealthValue)v);
            if (i) fputc(',', out);
            fprintf(out, isfinite(x) ? "%.4g" : "null", x);
        }
        fputc(']', out);
    }
    fputc('}', out);
}

// --- for people --------------------------------------------------------------------------------------------------

static bool is_bad(const Collection *c, int i) {
    bool wide = c->tensor[i].granularity <= SCALE_ROW && c->tensor[i].data;
    return !isfinite(bits_float(c->health[i].amax)) || (wide && saturated_share(c, i) > HEALTH_SATURATED);
}

// The first tensor with something wrong, and how many others.
static void warn(const Collection *c, char *warning, size_t size) {
    int bad = 0;
    warning[0] = '\0';
    for (int k = 0; k < c->entries; k++) {
        const Entry *e = &c->entry[k];
        for (int i = 0; i < e->layers; i++) {
            if (!is_bad(c, e->first + i) || bad++ > 0) continue;
            char what[64] = "holds values that are not finite";
            if (isfinite(bits_float(c->health[e->first + i].amax)))
                snprintf(what, sizeof what, "has %.1f %% of its codes saturated",
                         100.0 * saturated_share(c, e->first + i));
            snprintf(warning, size, "fp8: %s%s of layer %d %s", tensor_row(e->id)->name, role_suffix(e->role), i, what);
        }
    }
    size_t used = strlen(warning);
    if (bad > 1) snprintf(warning + used, size - used, "; %d more like it, see log.jsonl", bad - 1);
}

char *health_json(const Arena *arena, Exec *exec, char *warning, size_t size) {
    Collection c;
    memset(&c, 0, sizeof c);
    collect(&c, arena);
    char *json = NULL;
    size_t length = 0;
    warning[0] = '\0';
    if (c.tensors > 0) {
        exec->ops->health(exec, c.tensor, c.tensors, c.health);
        FILE *out = open_memstream(&json, &length);
        if (!out) fatal(EXIT_DEVICE, "host memory: no room for the state of the FP8 tensors");
        for (int k = 0; k < c.entries; k++) {
            fputc(k ? ',' : '{', out);
            print_entry(out, &c, &c.entry[k]);
        }
        fputc('}', out);
        fclose(out);
        warn(&c, warning, size);
    }
    free(c.health);
    free(c.tensor);
    return json;
}
