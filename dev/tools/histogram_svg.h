// Histograms side by side in an SVG picture: what quant_error draws.
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coat/error.h"
#include "coat/io/files.h"

enum { HISTOGRAM_BINS = 64 };

typedef struct {
    char title[96], axis[96];
    double low, high; // values outside count in the first and last bin
    double mark;      // a dashed line, with mark_text; NAN: none
    const char *mark_text, *colour;
    int64_t bins[HISTOGRAM_BINS], count;
    double sum;
} Histogram;

static inline void histogram_add(Histogram *h, double value) {
    int bin = (int)floor((value - h->low) / (h->high - h->low) * HISTOGRAM_BINS);
    h->bins[bin < 0 ? 0 : bin >= HISTOGRAM_BINS ? HISTOGRAM_BINS - 1 : bin]++;
    h->count++;
    h->sum += value;
}

static inline void histogram_add_all(Histogram *h, const Histogram *other) {
    for (int i = 0; i < HISTOGRAM_BINS; i++) h->bins[i] += other->bins[i];
    h->count += other->count;
    h->sum += other->sum;
}

// The value under which a share of all values lies, to the width of a bin.
static inline double histogram_quantile(const Histogram *h, double share) {
    double seen = 0, width = (h->high - h->low) / HISTOGRAM_BINS;
    for (int i = 0; i < HISTOGRAM_BINS; i++) {
        seen += (double)h->bins[i];
        if (seen >= share * (double)h->count) return h->low + (i + 0.5) * width;
    }
    return h->high;
}

static inline void histogram_draw(FILE *out, const Histogram *h, double left, double top, double width, double height) {
    int64_t largest = 1;
    for (int i = 0; i < HISTOGRAM_BINS; i++) largest = h->bins[i] > largest ? h->bins[i] : largest;
    double bottom = top + height, step = width / HISTOGRAM_BINS;
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"15\" font-weight=\"bold\">%s</text>\n", left, top - 12,
            h->title);
    for (int i = 0; i < HISTOGRAM_BINS; i++) {
        double bar = (double)h->bins[i] / (double)largest * height;
        if (h->bins[i])
            fprintf(out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"/>\n", left + i * step,
                    bottom - bar, step * 0.9, bar, h->colour);
    }
    fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#222222\"/>\n", left, bottom,
            left + width, bottom);
    double tick = pow(2, ceil(log2((h->high - h->low) / 8)));
    for (double x = ceil(h->low / tick) * tick; x <= h->high; x += tick) {
        double at = left + (x - h->low) / (h->high - h->low) * width;
        fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#222222\"/>\n", at, bottom, at,
                bottom + 5);
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n", at, bottom + 20, x);
    }
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", left + width / 2, bottom + 40,
            h->axis);
    if (isnan(h->mark)) return;
    double share = (h->mark - h->low) / (h->high - h->low), at = left + share * width;
    int64_t before = 0;
    for (int i = 0; i < (int)(share * HISTOGRAM_BINS); i++) before += h->bins[i];
    const bool on_left = 2 * before < h->count; // where the fewer bars are
    fprintf(out,
            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#d9600a\" stroke-width=\"1.5\" "
            "stroke-dasharray=\"5 4\"/>\n<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"#d9600a\">%s</text>\n",
            at, top, at, bottom, on_left ? at - 5 : at + 5, top + 10, on_left ? "end" : "start", h->mark_text);
}

// Draws them two in a row.
static inline bool histograms_svg(const char *path, const char *title, const Histogram *list, int count, Error *err) {
    const int width = 960, row = 250, height = 60 + (count + 1) / 2 * row;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) fatal(EXIT_DEVICE, "host memory: no room for the picture %s", path);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
            "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#222222\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n"
            "<text x=\"40\" y=\"34\" font-size=\"18\" font-weight=\"bold\">%s</text>\n",
            width, height, width, height, title);
    for (int i = 0; i < count; i++)
        histogram_draw(out, &list[i], 40 + i % 2 * 470, 90 + (double)(i / 2) * row, 410, 140);
    fputs("</svg>\n", out);
    fclose(out);
    bool good = file_replace(path, text, size, err);
    free(text);
    return good;
}
