// Measures the quantization error of the optimizer's update, as in the paper's table 1 and figure 2, from the FP32
// moments of a checkpoint. The error is sum (u - û)^2 / sum u^2 over all elements. u is the update
// m / (sqrt(v) + eps) of the bias-corrected moments; û is the update of moments quantized in groups of 128. No format
// rounds a non-zero v to 0.
// Usage: quant_error [--every N] CHECKPOINT [HISTOGRAMS.tsv]
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "coat/io/json.h"
#include "coat/io/safetensors.h"
#include "coat/numerics/moments.h"
#include "coat/numerics/moments_host.h"
#include "coat/ops.h"
#include "coat/save/run_state.h"
#include "codebook.h"
#include "histogram.h"

static const char usage[] = "usage: quant_error [--every N] CHECKPOINT [HISTOGRAMS.tsv]\n"
                            "\n"
                            "Prints the quantization error of the optimizer's update in each pair of formats,\n"
                            "for a checkpoint whose moments are in FP32 (--moments fp32). Writes histograms\n"
                            "of the groups' ranges and exponents to HISTOGRAMS. --every 16 measures one of 16\n"
                            "groups, which is enough for a model with billions of parameters.\n";

// Sums are split into PARTS partial sums, which are added in a fixed order, so that the result does not depend on the
// number of threads.
enum { GROUP = 128, FORMATS = 6, PARTS = 64, BLOCK = 8192 * GROUP, STATE_LIMIT = 1 << 20, PATH_ROOM = 4096 };

static const char *const format_names[FORMATS] = {"E4M3", "E4M3+exp", "E5M2", "E5M2+exp", "DE8", "DE8+exp"};

typedef struct {
    double correction[2], eps; // bias corrections 1 / (1 - beta^t) of the moments m and v
    int64_t t;
    int every;       // measure only one of `every` groups
    Codebook de8[2]; // DE8 value tables of m (signed) and v (unsigned)
    double error[FORMATS][FORMATS], total;
    double spread[2]; // sum over the groups of the standard deviation of ln|x|, for m and v
    // groups: number of groups of m and v; beyond: number of groups with a larger dynamic range than E4M3
    int64_t groups[2], beyond[2], elements, tensors;
    Histogram range[2], k[2], gain; // gain: log2 of the error of plain E4M3 divided by that of expanded E4M3
} Table;

// Quantizes and dequantizes a group of n values of m (which = 0) or v (which = 1) in place, in format_names[format].
static void quantise(const Table *table, float *x, int n, int format, int which) {
    bool expand = format % 2, second = which == 1;
    if (format >= 4) {
        codebook_round(&table->de8[which], x, n, expand, second);
        return;
    }
    uint8_t codes[GROUP], k;
    float a;
    Tensor t = {codes, &a, &k, NULL, 1, n, n, format < 2 ? FMT_E4M3 : FMT_E5M2, SCALE_EXPAND, GROUP, false};
    MomentStore how = {expand, second};
    moments_store(t, 0, n, x, &how);
    moments_load(t, 0, n, x);
}

// Measures a group's dynamic range, its expansion exponent k (the paper's figure 2), and the standard deviation of the
// logarithms of its elements.
static void measure(Table *table, const float *x, int n, int which) {
    double sum = 0, squares = 0, low = INFINITY, high = -INFINITY;
    int count = 0;
    for (int i = 0; i < n; i++) {
        if (x[i] == 0.0f) continue;
        double logarithm = log2(fabs((double)x[i]));
        sum += logarithm;
        squares += logarithm * logarithm;
        low = fmin(low, logarithm);
        high = fmax(high, logarithm);
        count++;
    }
    if (count < 2) return;
    float a = (float)exp2(high), b = (float)exp2(low);
    histogram_add(&table->range[which], high - low);
    histogram_add(&table->k[which], moment_exponent(float_bits(a), float_bits(b), FMT_E4M3) / 16.0);
    double variance = squares / count - sum / count * (sum / count);
    table->spread[which] += sqrt(fmax(variance, 0)) * log(2.0);
    table->groups[which]++;
    table->beyond[which] += high - low > table->range[which].mark;
}

static double update_of(const Table *table, float m, float v) {
    return (double)m * table->correction[0] / (sqrt((double)v * table->correction[1]) + table->eps);
}

static void add_group(Table *table, const float *m, const float *v, int n) {
    float rounded[2][FORMATS][GROUP];
    double own[2] = {0, 0}; // errors of this group's update with both moments in plain E4M3 and in expanded E4M3
    measure(table, m, n, 0);
    measure(table, v, n, 1);
    for (int f = 0; f < FORMATS; f++) {
        memcpy(rounded[0][f], m, (size_t)n * sizeof(float));
        memcpy(rounded[1][f], v, (size_t)n * sizeof(float));
        for (int which = 0; which < 2; which++) quantise(table, rounded[which][f], n, f, which);
    }
    for (int i = 0; i < n; i++) {
        if (!isfinite(m[i]) || !isfinite(v[i])) table->total = NAN;
        double update = update_of(table, m[i], v[i]);
        table->total += update * update;
        for (int row = 0; row < FORMATS; row++)
            for (int column = 0; column < FORMATS; column++) {
                double error = update - update_of(table, rounded[0][row][i], rounded[1][column][i]);
                table->error[row][column] += error * error;
                if (row == column && row < 2) own[row] += error * error;
            }
    }
    if (own[0] > 0 && own[1] > 0) histogram_add(&table->gain, log2(own[0] / own[1]));
    table->elements += n;
}

static void add_part(Table *table, const Table *part) {
    table->total += part->total;
    histogram_add_all(&table->gain, &part->gain);
    table->elements += part->elements;
    for (int row = 0; row < FORMATS; row++)
        for (int column = 0; column < FORMATS; column++) table->error[row][column] += part->error[row][column];
    for (int which = 0; which < 2; which++) {
        table->spread[which] += part->spread[which];
        table->groups[which] += part->groups[which];
        table->beyond[which] += part->beyond[which];
        histogram_add_all(&table->range[which], &part->range[which]);
        histogram_add_all(&table->k[which], &part->k[which]);
    }
}

// Adds the errors of the update from the moments of_m and of_v of one weight to PARTS partial results. m, v: buffers of
// BLOCK elements each.
static bool add_tensor(Table *parts, float *m, float *v, const SafeFile *file, const SafeTensor *of_m,
                       const SafeTensor *of_v, Error *err) {
    const uint64_t most = BLOCK * sizeof(float);
    for (uint64_t at = 0; at < of_m->bytes; at += most) {
        size_t bytes = of_m->bytes - at < most ? (size_t)(of_m->bytes - at) : (size_t)most;
        if (!safetensors_read(file, of_m, at, m, bytes, err) || !safetensors_read(file, of_v, at, v, bytes, err))
            return false;
        int count = (int)(bytes / sizeof(float));
#pragma omp parallel for schedule(dynamic)
        for (int part = 0; part < PARTS; part++)
            for (int i = part * GROUP * parts->every; i < count; i += PARTS * GROUP * parts->every)
                add_group(&parts[part], m + i, v + i, count - i < GROUP ? count - i : GROUP);
    }
    return true;
}

// True if several processes saved the optimizer states in `folder` in shards.
static bool has_shards(const char *folder) {
    DIR *files = opendir(folder);
    bool found = false;
    for (struct dirent *file; files && (file = readdir(files));)
        found = found || strncmp(file->d_name, "optimizer-00000-of-", 19) == 0;
    if (files) closedir(files);
    return found;
}

// Measures the moments in a checkpoint's optimizer.safetensors that --moments coat would store in 8 bits: the moments
// of two-dimensional tensors that AdamW updates, except the position embeddings.
static bool read_moments(Table *table, const char *folder, Error *err) {
    char path[PATH_ROOM], name[256];
    SafeFile file;
    if (!path_join(path, sizeof path, folder, "optimizer.safetensors", err)) return false;
    if (access(path, F_OK) != 0 && has_shards(folder))
        return error_set(
            err, EXIT_DATA,
            "%s: several processes saved its optimizer states in shards; resume it on one process for one step, and "
            "measure the checkpoint that this run saves",
            folder);
    if (!safetensors_open(&file, path, err)) return false;
    bool good = true;
    Table *parts = (Table *)xmalloc(PARTS * sizeof *parts);
    float *values = (float *)xmalloc(2 * BLOCK * sizeof *values);
    for (int i = 0; i < PARTS; i++) parts[i] = *table;
    for (int i = 0; good && i < file.count; i++) {
        const SafeTensor *m = &file.tensors[i];
        size_t length = strlen(m->name);
        if (length < 3 || length >= sizeof name || strcmp(m->name + length - 2, ".m") != 0) continue;
        if (m->rank != 2 || strstr(m->name, "wpe") || strstr(m->name, "position_embedding")) continue;
        snprintf(name, sizeof name, "%.*s.v", (int)(length - 2), m->name);
        const SafeTensor *v = safetensors_find(&file, name);
        if (!v) continue; // the momentum of a matrix that Muon updates
        if (m->dtype != DTYPE_F32 || v->dtype != DTYPE_F32 || v->bytes != m->bytes)
            good = error_set(err, EXIT_DATA, "%s: '%s' is not in FP32; train with --moments fp32 to measure", path,
                             m->name);
        else
            good = add_tensor(parts, values, values + BLOCK, &file, m, v, err);
        table->tensors += good;
    }
    for (int i = 0; i < PARTS; i++) add_part(table, &parts[i]);
    free(values);
    free(parts);
    safetensors_close(&file);
    if (good && !isfinite(table->total))
        return error_set(err, EXIT_DATA, "%s: contains moments that are not finite: the run has diverged", path);
    if (good && table->total == 0)
        return error_set(err, EXIT_DATA, "%s: contains no non-zero moments of matrices", path);
    return good;
}

static bool read_state(Table *table, const char *folder, Error *err) {
    char path[PATH_ROOM];
    const json_t *state;
    double beta1, beta2;
    if (!path_join(path, sizeof path, folder, STATE_NAME, err)) return false;
    json_t *root = json_read_object(path, STATE_LIMIT, err);
    if (!root) return false;
    bool good = json_get_object(root, path, "step_state", &state, err) &&
                json_get_int(state, path, "t", 1, INT64_MAX, &table->t, err) &&
                json_get_double(state, path, "beta1", &beta1, err) &&
                json_get_double(state, path, "beta2", &beta2, err) &&
                json_get_double(state, path, "eps", &table->eps, err);
    json_decref(root);
    if (!good) return false;
    table->correction[0] = 1 / (1 - pow(beta1, (double)table->t));
    table->correction[1] = 1 / (1 - pow(beta2, (double)table->t));
    return true;
}

static void prepare(Table *table) {
    memset(table, 0, sizeof *table);
    table->gain.low = -8;
    table->gain.high = 8;
    for (int which = 0; which < 2; which++) {
        codebook_de8(&table->de8[which], which == 0);
        const double widest = log2(448 * 512.0);
        table->range[which] = (Histogram){
            which ? "v: log2(largest / smallest)" : "m: log2(largest / smallest)", 0, 32, widest, "E4M3", {0}, 0, 0};
        table->k[which] =
            (Histogram){which ? "v: exponent k" : "m: exponent k", 0, which ? 8.0 : 4.0, 1, "k = 1", {0}, 0, 0};
    }
}

static void print_table(const Table *table) {
    printf("step %" PRId64 ": %" PRId64 " elements of %" PRId64 " matrices, groups of %d\n\n", table->t,
           table->elements, table->tensors, GROUP);
    printf("squared error of the update in thousandths of its square; rows: format of m, columns: of v\n%-10s", "");
    for (int f = 0; f < FORMATS; f++) printf("%10s", format_names[f]);
    for (int row = 0; row < FORMATS; row++) {
        printf("\n%-10s", format_names[row]);
        for (int f = 0; f < FORMATS; f++) printf("%10.4f", 1000 * table->error[row][f] / table->total);
    }
    printf("\n\nerror with m and v in plain E4M3 / in expanded E4M3: %.2f (the paper: 1.63)\n",
           table->error[0][0] / table->error[1][1]);
    printf("a group's plain / expanded: median %.1f, 90 %% of them from %.1f to %.1f\n",
           exp2(histogram_quantile(&table->gain, 0.5)), exp2(histogram_quantile(&table->gain, 0.05)),
           exp2(histogram_quantile(&table->gain, 0.95)));
    for (int which = 0; which < 2; which++) {
        const Histogram *range = &table->range[which], *k = &table->k[which];
        double groups = (double)table->groups[which];
        printf("%s in a group: deviation of ln %.2f; range 2^%.1f, 90 %% of them from 2^%.1f to 2^%.1f, larger than "
               "E4M3's "
               "2^%.1f %.2f %%; k %.2f on average\n",
               which ? "v" : "m", table->spread[which] / groups, range->sum / groups, histogram_quantile(range, 0.05),
               histogram_quantile(range, 0.95), range->mark, 100 * (double)table->beyond[which] / groups,
               k->sum / groups);
    }
}

static bool run(int argc, char **argv, Error *err) {
    int every = 1;
    if (argc > 2 && strcmp(argv[1], "--every") == 0) {
        char *end;
        const long number = strtol(argv[2], &end, 10);
        if (*end || number < 1 || number > 4096)
            return error_set(err, EXIT_USER, "--every %s: must be a number from 1 to 4096", argv[2]);
        every = (int)number;
        argc -= 2;
        argv += 2;
    }
    if (argc < 2 || argc > 3 || argv[1][0] == '-') return error_set(err, EXIT_USER, USAGE_LINE(usage));
    Table *table = (Table *)xmalloc(sizeof *table);
    prepare(table);
    table->every = every;
    bool good = read_state(table, argv[1], err) && read_moments(table, argv[1], err);
    if (good) print_table(table);
    if (good && argc == 3) {
        const Histogram *list[] = {&table->range[0], &table->range[1], &table->k[0], &table->k[1]};
        good = histograms_write(argv[2], list, 4, err);
    }
    free(table);
    return good;
}

int main(int argc, char **argv) {
    return usage_main(argc, argv, usage, run);
}
