// Draws the loss curve of a run from its log.jsonl as an SVG picture, without other programs.
#pragma once
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "coat/io/files.h"

// Size of the picture in SVG units (pixels at 100 %), and the rectangle in it that contains the curves.
enum { WIDTH = 960, HEIGHT = 540, LEFT = 72, RIGHT = 800, TOP = 56, BOTTOM = 480 };
enum { LABEL_HEIGHT = 17, MAX_LABELS = 16 };
enum { LONGEST_LINE = 1 << 16 }; // maximum length in bytes of a line of log.jsonl; typical lines have a few hundred

#define COLOUR_TRAIN "#2563a8"
#define COLOUR_RAW "#a9c7e8"
#define COLOUR_VAL "#d9600a"
#define COLOUR_REFERENCE "#6b7280"
#define COLOUR_TEXT "#222222"
#define COLOUR_GRID "#e5e7eb"

// A dashed horizontal reference line, for example {"bigram", 2.91}.
typedef struct {
    const char *label;
    double value; // loss at which the reference line is drawn, in nats per token
} PlotReference;

typedef struct {
    double *x, *y;
    int64_t count, capacity;
} Series;

typedef struct {
    Series raw, smooth, val;
    double x_max, y_min, y_max; // upper limit of the step axis, and limits of the loss axis
    const PlotReference *references;
    int reference_count;
} Plot;

static void series_add(Series *s, double x, double y) {
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 256;
        s->x = (double *)realloc(s->x, (size_t)s->capacity * sizeof *s->x);
        s->y = (double *)realloc(s->y, (size_t)s->capacity * sizeof *s->y);
        if (!s->x || !s->y)
            fatal(EXIT_DEVICE, "host memory: could not hold a loss curve of %lld points", (long long)s->capacity);
    }
    s->x[s->count] = x;
    s->y[s->count] = y;
    s->count++;
}

static void series_free(Series *s) {
    free(s->x);
    free(s->y);
}

static void read_line(Plot *plot, const char *line, size_t length) {
    json_t *object = json_loadb(line, length, 0, NULL);
    const json_t *step = json_object_get(object, "step");
    const json_t *loss = json_object_get(object, "loss"), *val = json_object_get(object, "val_loss");
    if (json_is_integer(step) && json_integer_value(step) >= 0) {
        double x = (double)json_integer_value(step);
        if (json_is_number(loss)) series_add(&plot->raw, x, json_number_value(loss));
        if (json_is_number(val)) series_add(&plot->val, x, json_number_value(val));
    }
    json_decref(object);
}

static bool read_log(Plot *plot, const char *path, Error *err) {
    FILE *file = file_open_lines(path, err);
    if (!file) return false;
    char *line = (char *)xmalloc(LONGEST_LINE);
    size_t length;
    while ((length = file_read_line(file, line, LONGEST_LINE)) > 0) read_line(plot, line, length);
    bool good = !ferror(file);
    free(line);
    fclose(file);
    if (!good) return error_set(err, EXIT_DATA, "%s: could not be read to its end", path);
    if (plot->raw.count + plot->val.count == 0) return error_set(err, EXIT_DATA, "%s: contains no losses", path);
    return true;
}

// Smooths the training loss with means over a window centered on each step. The window grows from one step at the
// start, where the loss falls fast, to 1/30 of the run. A window of only earlier steps would delay a falling loss.
static void smooth(Plot *plot) {
    const Series *raw = &plot->raw;
    int64_t begin = 0, end = 0; // first index of the smoothing window, and the index after its last
    double sum = 0.0;
    for (int64_t i = 0; i < raw->count; i++) {
        int64_t radius = i / 6 < raw->count / 60 ? i / 6 : raw->count / 60;
        for (; end < raw->count && end <= i + radius; end++) sum += raw->y[end];
        for (; begin < i - radius; begin++) sum -= raw->y[begin];
        series_add(&plot->smooth, raw->x[i], sum / (double)(end - begin));
    }
}

static void include(Plot *plot, double x, double y) {
    plot->x_max = fmax(plot->x_max, x);
    plot->y_min = fmin(plot->y_min, y);
    plot->y_max = fmax(plot->y_max, y);
}

// Chooses the axis limits so that the smoothed loss, the validation loss and the reference lines are inside the
// picture. The unsmoothed loss may be outside.
static void choose_axes(Plot *plot) {
    plot->x_max = 1.0;
    plot->y_min = INFINITY;
    plot->y_max = -INFINITY;
    for (int64_t i = 0; i < plot->smooth.count; i++) include(plot, plot->smooth.x[i], plot->smooth.y[i]);
    for (int64_t i = 0; i < plot->val.count; i++) include(plot, plot->val.x[i], plot->val.y[i]);
    for (int i = 0; i < plot->reference_count; i++) include(plot, 0, plot->references[i].value);
    double margin = fmax(0.05 * (plot->y_max - plot->y_min), 1e-3 * fmax(1.0, fabs(plot->y_max)));
    plot->y_min -= margin;
    plot->y_max += margin;
}

static double map_x(const Plot *plot, double x) {
    return LEFT + (RIGHT - LEFT) * x / plot->x_max;
}

static double map_y(const Plot *plot, double y) {
    double at = BOTTOM - (BOTTOM - TOP) * (y - plot->y_min) / (plot->y_max - plot->y_min);
    return fmin(fmax(at, -1e4), 1e4); // Coordinates are limited because SVG viewers cannot read huge numbers.
}

// Returns the distance between the ticks of an axis: 1, 2 or 5 times a power of ten, such that the axis has at most
// `most` intervals.
static double tick_step(double range, int most) {
    double power = pow(10.0, floor(log10(range / most)));
    for (int i = 0;; i++) {
        static const double factor[] = {1, 2, 5, 10};
        if (range / (power * factor[i]) <= most || i == 3) return power * factor[i];
    }
}

static void put_escaped(FILE *out, const char *text) {
    for (; *text; text++) {
        switch (*text) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        default:
            if ((unsigned char)*text >= 32) fputc(*text, out);
        }
    }
}

static void put_text(FILE *out, double x, double y, const char *anchor, const char *colour, const char *text) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\">", x, y, anchor, colour);
    put_escaped(out, text);
    fputs("</text>\n", out);
}

static void put_line(FILE *out, double x0, double y0, double x1, double y1, const char *style) {
    fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x0, y0, x1, y1, style);
}

static void draw_axes(FILE *out, const Plot *plot) {
    char text[64];
    double step = tick_step(plot->y_max - plot->y_min, 8);
    int digits = (int)fmax(0.0, ceil(-log10(step) - 1e-9));
    for (double k = ceil(plot->y_min / step); k * step <= plot->y_max; k++) {
        double y = map_y(plot, k * step);
        put_line(out, LEFT, y, RIGHT, y, "stroke=\"" COLOUR_GRID "\"");
        snprintf(text, sizeof text, "%.*f", digits, k * step + 0.0);
        put_text(out, LEFT - 8, y + 4.5, "end", COLOUR_TEXT, text);
    }
    step = fmax(1.0, tick_step(plot->x_max, 8));
    for (double k = 0; k * step <= plot->x_max * (1 + 1e-9); k++) {
        double x = map_x(plot, k * step);
        put_line(out, x, BOTTOM, x, BOTTOM + 5, "stroke=\"" COLOUR_TEXT "\"");
        if (step >= 1e6)
            snprintf(text, sizeof text, "%g M", k * step / 1e6);
        else if (k > 0 && step >= 1e4)
            snprintf(text, sizeof text, "%g k", k * step / 1e3);
        else
            snprintf(text, sizeof text, "%.0f", k * step);
        put_text(out, x, BOTTOM + 21, "middle", COLOUR_TEXT, text);
    }
    put_line(out, LEFT, BOTTOM, RIGHT, BOTTOM, "stroke=\"" COLOUR_TEXT "\"");
    put_text(out, (LEFT + RIGHT) / 2.0, BOTTOM + 44, "middle", COLOUR_TEXT, "step");
    fprintf(out, "<text transform=\"translate(30 %.1f) rotate(-90)\" text-anchor=\"middle\" fill=\"%s\">%s</text>\n",
            (TOP + BOTTOM) / 2.0, COLOUR_TEXT, "loss (nats per token)");
}

// Draws a curve. If there are more points than half pixels, draws only the smallest and largest value of each half
// pixel.
static void draw_curve(FILE *out, const Plot *plot, const Series *s, const char *style) {
    if (s->count < 2) return;
    fprintf(out, "<polyline fill=\"none\" stroke-linejoin=\"round\" clip-path=\"url(#inner)\" %s points=\"", style);
    int64_t per_bucket = s->count / (2 * (RIGHT - LEFT)) + 1;
    for (int64_t begin = 0; begin < s->count; begin += per_bucket) {
        int64_t end = begin + per_bucket < s->count ? begin + per_bucket : s->count, low = begin, high = begin;
        for (int64_t i = begin; i < end; i++) {
            if (s->y[i] < s->y[low]) low = i;
            if (s->y[i] > s->y[high]) high = i;
        }
        int64_t first = low < high ? low : high, second = low < high ? high : low;
        fprintf(out, "%.1f,%.1f ", map_x(plot, s->x[first]), map_y(plot, s->y[first]));
        if (second != first) fprintf(out, "%.1f,%.1f ", map_x(plot, s->x[second]), map_y(plot, s->y[second]));
    }
    fputs("\"/>\n", out);
}

static void draw_points(FILE *out, const Plot *plot, const Series *s, const char *colour, double radius) {
    for (int64_t i = 0; i < s->count; i++)
        fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\"/>\n", map_x(plot, s->x[i]),
                map_y(plot, s->y[i]), radius, colour);
}

// A label at the right end of a curve, with the curve's name and last value. Labels replace a legend.
typedef struct {
    char text[96];
    const char *colour;
    double y;
} Label;

static void add_label(Label *labels, int *count, const Plot *plot, const char *name, double value, const char *colour) {
    if (*count == MAX_LABELS) return;
    Label *label = &labels[(*count)++];
    snprintf(label->text, sizeof label->text, "%.60s %.3f", name, value);
    label->colour = colour;
    label->y = map_y(plot, value);
}

static int compare_labels(const void *a, const void *b) {
    double x = ((const Label *)a)->y, y = ((const Label *)b)->y;
    return (x > y) - (x < y);
}

// Places the curves' labels from top to bottom, each at the height of its curve or below the previous label. A second
// pass from the bottom moves labels up that would be below the picture.
static void draw_labels(FILE *out, const Plot *plot) {
    Label labels[MAX_LABELS];
    int count = 0;
    const Series *train = &plot->smooth, *val = &plot->val;
    if (train->count) add_label(labels, &count, plot, "train", train->y[train->count - 1], COLOUR_TRAIN);
    if (val->count) add_label(labels, &count, plot, "val", val->y[val->count - 1], COLOUR_VAL);
    for (int i = 0; i < plot->reference_count; i++)
        add_label(labels, &count, plot, plot->references[i].label, plot->references[i].value, COLOUR_REFERENCE);
    qsort(labels, (size_t)count, sizeof labels[0], compare_labels);
    for (int i = 1; i < count; i++) labels[i].y = fmax(labels[i].y, labels[i - 1].y + LABEL_HEIGHT);
    double floor_y = BOTTOM;
    for (int i = count - 1; i >= 0; i--, floor_y -= LABEL_HEIGHT) labels[i].y = fmin(labels[i].y, floor_y);
    for (int i = 0; i < count; i++)
        put_text(out, RIGHT + 8, labels[i].y + 4.5, "start", labels[i].colour, labels[i].text);
}

static void draw_picture(FILE *out, const Plot *plot, const char *title) {
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
            "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n"
            "<clipPath id=\"inner\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/></clipPath>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP);
    if (title && *title) {
        fprintf(out, "<text x=\"%d\" y=\"32\" font-size=\"17\" font-weight=\"bold\" fill=\"%s\">", LEFT, COLOUR_TEXT);
        put_escaped(out, title);
        fputs("</text>\n", out);
    }
    draw_axes(out, plot);
    for (int i = 0; i < plot->reference_count; i++) {
        double y = map_y(plot, plot->references[i].value);
        put_line(out, LEFT, y, RIGHT, y,
                 "stroke=\"" COLOUR_REFERENCE "\" stroke-width=\"1.2\" stroke-dasharray=\"6 4\"");
    }
    draw_curve(out, plot, &plot->raw, "stroke=\"" COLOUR_RAW "\" stroke-width=\"1\"");
    draw_curve(out, plot, &plot->smooth, "stroke=\"" COLOUR_TRAIN "\" stroke-width=\"2\"");
    draw_curve(out, plot, &plot->val, "stroke=\"" COLOUR_VAL "\" stroke-width=\"2\"");
    if (plot->raw.count == 1) draw_points(out, plot, &plot->raw, COLOUR_TRAIN, 3.0);
    if (plot->val.count <= 60) draw_points(out, plot, &plot->val, COLOUR_VAL, 3.5);
    draw_labels(out, plot);
    fputs("</svg>\n", out);
}

// Draws the training loss (thin, and smoothed on top), the validation loss and the reference lines. Skips damaged lines
// and steps without a loss. title may be NULL. Fails (EXIT_DATA) if the log cannot be read or has no loss, or if the
// picture cannot be written.
static bool plot_loss_svg(const char *jsonl_path, const char *svg_path, const char *title,
                          const PlotReference *references, int reference_count, Error *err) {
    Plot plot;
    memset(&plot, 0, sizeof plot);
    plot.references = references;
    plot.reference_count = reference_count;
    bool good = read_log(&plot, jsonl_path, err);
    if (good) {
        smooth(&plot);
        choose_axes(&plot);
        char *text = NULL;
        size_t size = 0;
        FILE *memory = open_memstream(&text, &size);
        if (!memory) fatal(EXIT_DEVICE, "host memory: could not hold the picture %s", svg_path);
        draw_picture(memory, &plot, title);
        fclose(memory);
        good = file_replace(svg_path, text, size, err);
        free(text);
    }
    series_free(&plot.raw);
    series_free(&plot.smooth);
    series_free(&plot.val);
    return good;
}
