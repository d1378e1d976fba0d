// The loss curve of a run as an SVG picture, drawn from its log.jsonl without any other program.
#pragma once
#include <stdbool.h>

#include "error.h"

#ifdef __cplusplus
extern "C" {
#endif

// A dashed horizontal line, for example {"bigram", 2.91}.
typedef struct {
    const char *label;
    double value; // nats per token
} PlotReference;

// Draws the training loss (thin, and smoothed on top), the validation loss and the references. Steps whose loss is
// null or missing are left out, damaged lines too. title may be NULL.
// Errors (EXIT_DATA): the log cannot be read or holds no loss; the picture cannot be written.
bool plot_loss_svg(const char *jsonl_path, const char *svg_path, const char *title, const PlotReference *references,
                   int reference_count, Error *err);

#ifdef __cplusplus
}
#endif
