// Command-line program that draws the loss curve of a run from its log.jsonl as an SVG picture.
#include <math.h>
#include <string.h>
#include <strings.h>

#include "dev/tools/loss_svg.h"

static const char usage[] = "usage: plot_loss LOG.jsonl OUT.svg [--title TEXT] [--ref NAME=NATS]...\n"
                            "\n"
                            "Draws the loss curve of a run from the log.jsonl in its folder.\n"
                            "\n"
                            "  --title TEXT        title above the picture\n"
                            "  --ref NAME=NATS     a dashed line at a loss, for example bigram=2.91; up to 8\n";

enum { MAX_REFERENCES = 8 };

static bool parse_reference(char *text, PlotReference *reference, Error *err) {
    char *equals = strrchr(text, '='), *end = NULL;
    double value = equals ? strtod(equals + 1, &end) : NAN;
    if (!equals || equals == text || end == equals + 1 || *end || !isfinite(value))
        return error_set(err, EXIT_USER, "--ref %s: must be NAME=NUMBER, for example bigram=2.91", text);
    *equals = '\0';
    reference->label = text;
    reference->value = value;
    return true;
}

static bool run(int argc, char **argv, Error *err) {
    const char *files[2], *title = NULL;
    int file_count = 0, reference_count = 0;
    PlotReference references[MAX_REFERENCES];
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0 && i + 1 == argc)
            return error_set(err, EXIT_USER, "%s: is unknown, or its value is missing", argv[i]);
        if (strcmp(argv[i], "--title") == 0) {
            title = argv[++i];
        } else if (strcmp(argv[i], "--ref") == 0) {
            if (reference_count == MAX_REFERENCES)
                return error_set(err, EXIT_USER, "--ref: may be given at most %d times", MAX_REFERENCES);
            if (!parse_reference(argv[++i], &references[reference_count++], err)) return false;
        } else if (strncmp(argv[i], "--", 2) == 0 || file_count == 2) {
            return error_set(err, EXIT_USER, "%s: unknown flag, or a third file; see --help", argv[i]);
        } else {
            files[file_count++] = argv[i];
        }
    }
    if (file_count < 2) return error_set(err, EXIT_USER, USAGE_LINE(usage));
    const char *dot = strrchr(files[1], '.');
    if (dot && !strchr(dot, '/') && strcasecmp(dot, ".svg") != 0)
        return error_set(err, EXIT_USER, "%s: must end in .svg; use %.*s.svg, or scripts/plot.py for other formats",
                         files[1], (int)(dot - files[1]), files[1]);
    return plot_loss_svg(files[0], files[1], title, references, reference_count, err);
}

int main(int argc, char **argv) {
    return usage_main(argc, argv, usage, run);
}
