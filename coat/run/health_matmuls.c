#include <math.h>

#include "health.h"

static double bias_of(InnerProducts p) {
    return p.ab / p.bb - 1;
}

static double error_of(InnerProducts p) {
    const double square = p.aa - 2 * p.ab + p.bb; // may round to less than 0
    return sqrt((square < 0 ? 0 : square) / p.bb);
}

static void print_figures(FILE *out, const InnerProducts found[], int layers, double (*figure)(InnerProducts)) {
    for (int layer = 0; layer < layers; layer++) {
        const double x = figure(found[layer]);
        if (layer) fputc(',', out);
        fprintf(out, isfinite(x) ? "%.4g" : "null", x);
    }
}

// How far beyond what is harmless a layer is; what is no number is as far as can be. A gradient that is 0 in all
// elements (and in FP8 too) is right.
static double excess(InnerProducts p) {
    if (p.aa == 0 && p.bb == 0) return 0;
    const double x = fmax(fabs(bias_of(p)) / HEALTH_BIAS, error_of(p) / HEALTH_ERROR);
    return isfinite(bias_of(p)) && isfinite(x) ? x : INFINITY;
}

static void warn(const InnerProducts found[], int layers, char warning[HEALTH_WARNING]) {
    int worst = 0;
    for (int layer = 1; layer < layers; layer++)
        if (excess(found[layer]) > excess(found[worst])) worst = layer;
    if (!(excess(found[worst]) > 1)) return;
    if (found[worst].bb == 0) {
        snprintf(warning, HEALTH_WARNING,
                 "fp8: the weight gradient qkvw of layer %d is not 0, but BF16's is; --linear bf16 is more exact",
                 worst);
        return;
    }
    snprintf(warning, HEALTH_WARNING,
             "fp8: the weight gradient qkvw of layer %d differs from BF16's by %.1f %%, with a bias of %+.1f %%; "
             "--linear bf16 is more exact",
             worst, 100 * error_of(found[worst]), 100 * bias_of(found[worst]));
}

char *health_matmuls_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]) {
    Tensor sums = arena_tensor(arena, INNER_PRODUCTS, VALUE, 0);
    const int layers = (int)sums.rows;
    InnerProducts *found = (InnerProducts *)xcalloc((size_t)layers, sizeof *found);
    char *json = NULL;
    size_t length = 0;
    exec->ops->download(exec, found, sums.data, (size_t)layers * sizeof *found);
    FILE *out = open_memstream(&json, &length);
    if (!out) fatal(EXIT_DEVICE, "host memory: no room for the errors of the matmuls");
    fprintf(out, "{\"qkvw\":{\"error\":[");
    print_figures(out, found, layers, error_of);
    fprintf(out, "],\"bias\":[");
    print_figures(out, found, layers, bias_of);
    fprintf(out, "]}}");
    fclose(out);
    warning[0] = '\0';
    if (warned && !warned->matmuls) {
        warn(found, layers, warning);
        warned->matmuls = warning[0];
    }
    free(found);
    return json;
}
