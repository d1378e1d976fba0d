// Measures the values that give early warning of a failing training run, and writes notes for values above their
// bounds.
#include "health.h"

#include <math.h>
#include <stdarg.h>

const HealthBound health_bounds[BOUND_COUNT] = {
    [BOUND_LSE] = {"attention", "lse", "max", 100, "attention becomes unstable",
                   "reduce --lr, or train a model that normalizes q and k"},
    [BOUND_OUTLIER] = {"activation", "g", "outlier", 1000, "FP8 resolves only the outliers",
                       "reduce --lr, or use --linear bf16"},
    [BOUND_KURTOSIS] = {"activation", "g", "kurtosis", 100000, "a few values make up almost all of the sum of squares",
                        "reduce --lr, or use --linear bf16"},
    [BOUND_LAG] = {"optimizer", "*", "lag", 3, "v follows the gradient too slowly, so updates are too large",
                   "reduce --beta2 or --lr"},
    [BOUND_UNCHANGED] = {"fp8", "*", "unchanged", 0.95,
                         "updates are too small for 8-bit moments to follow the gradient",
                         "reduce --beta2, or use --moments bf16"},
    [BOUND_SATURATED] = {"fp8", "*", "saturated", 0.01, "many values saturate at the largest FP8 value",
                         "use --linear bf16"},
};

void health_print_values(FILE *out, const char *name, const double value[], int layers) {
    fprintf(out, "\"%s\":[", name);
    for (int layer = 0; layer < layers; layer++) {
        if (layer) fputc(',', out);
        fprintf(out, isfinite(value[layer]) ? "%.4g" : "null", value[layer]);
    }
    fputc(']', out);
}

void health_add_line(char warning[HEALTH_WARNING], const char *format, ...) {
    size_t used = strlen(warning);
    if (used > 0 && used + 1 < HEALTH_WARNING) warning[used++] = '\n';
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(warning + used, HEALTH_WARNING - used, format, arguments);
    va_end(arguments);
}

void health_note(HealthBoundId id, const char *tensor, const double value[], int layers, HealthWarned *warned,
                 char warning[HEALTH_WARNING]) {
    const HealthBound *b = &health_bounds[id];
    int most = 0;
    for (int layer = 1; layer < layers; layer++)
        if (value[layer] > value[most] || isnan(value[most])) most = layer;
    if (!warned || warned->bound[id] || !(value[most] > b->bound)) return;
    warned->bound[id] = true;
    health_add_line(warning, "%s: %s of layer %d has %s %.4g, above %g: %s; %s", b->line, tensor, most, b->figure,
                    value[most], b->bound, b->meaning, b->remedy);
}

// JSON object of a log line: {"tensor":{"figure":[value per layer],..},..}
typedef struct {
    FILE *out;
    char *json;
    size_t length;
    const char *tensor; // tensor of the values printed last; NULL: none
    HealthWarned *warned;
    char *warning;
} Line;

static void line_begin(Line *line, HealthWarned *warned, char warning[HEALTH_WARNING]) {
    memset(line, 0, sizeof *line);
    line->out = open_memstream(&line->json, &line->length);
    if (!line->out) fatal(EXIT_DEVICE, "could not allocate host memory for the health statistics");
    line->warned = warned;
    line->warning = warning;
    warning[0] = '\0';
}

// Prints the value of each layer, or null if the value is not finite. Writes a note if a value exceeds the bound.
static void line_add(Line *line, HealthBoundId id, const char *tensor, const double value[], int layers) {
    if (line->tensor == tensor)
        fputc(',', line->out);
    else
        fprintf(line->out, "%s\"%s\":{", line->tensor ? "}," : "{", tensor);
    line->tensor = tensor;
    health_print_values(line->out, health_bounds[id].figure, value, layers);
    health_note(id, tensor, value, layers, line->warned, line->warning);
}

// Returns the JSON object for the caller to free; NULL if it has no values.
static char *line_end(Line *line) {
    if (line->tensor) fprintf(line->out, "}}");
    fclose(line->out);
    if (line->tensor) return line->json;
    free(line->json);
    return NULL;
}

// Returns the largest log-sum-exp of a layer's attention logits in the last micro-batch; NaN if any log-sum-exp is NaN.
static double largest_lse(const Arena *arena, Exec *exec, int layer) {
    const Tensor t = arena_tensor(arena, LSE, VALUE, layer);
    const int64_t count = tensor_elements(t);
    float *values = (float *)xmalloc((size_t)count * sizeof *values), largest = -INFINITY;
    exec->ops->download(exec, values, t.data, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < count && !isnan(largest); i++) largest = values[i] <= largest ? largest : values[i];
    free(values);
    return (double)largest;
}

char *health_attention_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]) {
    const int layers = arena->layout[LSE][VALUE].layers;
    double value[MAX_LAYERS];
    Line line;
    line_begin(&line, warned, warning);
    for (int layer = 0; layer < layers; layer++) value[layer] = largest_lse(arena, exec, layer);
    line_add(&line, BOUND_LSE, "lse", value, layers);
    return line_end(&line);
}

static double mean_of(const Outliers *o) {
    return o->sums.ab / o->sums.bb;
}

char *health_activation_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]) {
    const Tensor t = arena_tensor(arena, OUTLIERS, VALUE, 0);
    const int layers = (int)t.rows;
    Outliers found[MAX_LAYERS];
    double outlier[MAX_LAYERS], kurtosis[MAX_LAYERS];
    Line line;
    line_begin(&line, warned, warning);
    if (t.data) exec->ops->download(exec, found, t.data, (size_t)layers * sizeof *found);
    for (int layer = 0; t.data && layer < layers; layer++) {
        const Outliers *o = &found[layer];
        outlier[layer] = (double)bits_float(o->amax) / sqrt(mean_of(o));
        kurtosis[layer] = o->sums.aa / o->sums.bb / (mean_of(o) * mean_of(o));
    }
    if (t.data) line_add(&line, BOUND_OUTLIER, "g", outlier, layers);
    if (t.data) line_add(&line, BOUND_KURTOSIS, "g", kurtosis, layers);
    return line_end(&line);
}

// Returns the RMS of g / sqrt(v) over this process's shard of a parameter, before clipping and bias correction.
static double lag_of(const Arena *arena, Exec *exec, TensorId id, int layer) {
    int64_t begin;
    Outliers *out = (Outliers *)arena_tensor(arena, OUTLIERS, VALUE, 0).data, found;
    exec->ops->outliers(exec, arena_shard(arena, id, GRAD, layer, &begin),
                        arena_shard(arena, id, MOMENT_V, layer, &begin), out);
    exec->ops->download(exec, &found, out, sizeof found);
    return sqrt(mean_of(&found));
}

char *health_optimizer_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]) {
    double value[MAX_LAYERS];
    StepState state;
    Line line;
    line_begin(&line, warned, warning);
    exec->ops->download(exec, &state, exec->state, sizeof state);
    const double clip = state.grad_clip > 0 && state.grad_norm > state.grad_clip
                            ? (double)state.grad_clip / (double)state.grad_norm
                            : 1;
    const double factor = clip * sqrt(1 - pow((double)state.beta2, (double)state.t));
    for (int id = 0; id < PARAMETER_COUNT && state.t > 0 && arena->layout[OUTLIERS][VALUE].exists; id++) {
        const int layers = arena->layout[id][MOMENT_V].layers;
        if (!arena->layout[id][MOMENT_V].exists || arena_tensor(arena, (TensorId)id, GRAD, 0).rows == 1) continue;
        for (int layer = 0; layer < layers; layer++) value[layer] = factor * lag_of(arena, exec, (TensorId)id, layer);
        line_add(&line, BOUND_LAG, tensor_row((TensorId)id)->name, value, layers);
    }
    return line_end(&line);
}
