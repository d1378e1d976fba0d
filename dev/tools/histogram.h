// Histograms for quant_error, and the TSV file from which scripts/lab.py draws them.
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "coat/base/error.h"
#include "coat/io/files.h"

enum { HISTOGRAM_BINS = 64 };

typedef struct {
    const char *name;
    double low, high; // range of the bins; values outside the range are counted in the first or last bin
    double mark;      // reference value that the picture marks with mark_name
    const char *mark_name;
    int64_t bins[HISTOGRAM_BINS], count;
    double sum;
} Histogram;

static inline void histogram_add(Histogram *h, double value) {
    const double bin = fmin(fmax((value - h->low) / (h->high - h->low) * HISTOGRAM_BINS, 0), HISTOGRAM_BINS - 1);
    h->bins[(int)bin]++;
    h->count++;
    h->sum += value;
}

static inline void histogram_add_all(Histogram *h, const Histogram *other) {
    for (int i = 0; i < HISTOGRAM_BINS; i++) h->bins[i] += other->bins[i];
    h->count += other->count;
    h->sum += other->sum;
}

// Returns the quantile of the counted values below which `fraction` of them lie, to the accuracy of a bin's width.
static inline double histogram_quantile(const Histogram *h, double fraction) {
    double seen = 0, width = (h->high - h->low) / HISTOGRAM_BINS;
    for (int i = 0; i < HISTOGRAM_BINS; i++) {
        seen += (double)h->bins[i];
        if (seen >= fraction * (double)h->count) return h->low + (i + 0.5) * width;
    }
    return h->high;
}

// Writes histograms to a TSV file: a header line, then one line per histogram.
static inline bool histograms_write(const char *path, const Histogram *const *list, int count, Error *err) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) fatal(EXIT_DEVICE, "host memory: could not allocate the text of %s", path);
    fputs("quantity\tlow\thigh\tmark\tmark_name", out);
    for (int i = 1; i <= HISTOGRAM_BINS; i++) fprintf(out, "\tbin_%d", i);
    for (int k = 0; k < count; k++) {
        const Histogram *h = list[k];
        fprintf(out, "\n%s\t%g\t%g\t%g\t%s", h->name, h->low, h->high, h->mark, h->mark_name);
        for (int i = 0; i < HISTOGRAM_BINS; i++) fprintf(out, "\t%lld", (long long)h->bins[i]);
    }
    fputs("\n", out);
    fclose(out);
    bool good = file_replace(path, text, size, err);
    free(text);
    return good;
}
