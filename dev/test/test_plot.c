// Tests of the loss plot (dev/tools/loss_svg.h): contents of the SVG file, and errors for logs that cannot be plotted.
#include <math.h>

#include "dev/tools/loss_svg.h"
#include "test_folder.h"

static Error err;

static void write_log(const char *text) {
    write_text(path_of("log.jsonl"), text);
}

// Plots log.jsonl and returns the text of the SVG file.
static const char *draw(const char *title, const PlotReference *references, int count) {
    const char *svg = path_of("loss.svg");
    if (!plot_loss_svg(path_of("log.jsonl"), svg, title, references, count, &err)) fail_msg("%s", err.text);
    const char *text = contents(svg);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf,"));
    return text;
}

// Fails unless the SVG text closes all its elements.
static void assert_balanced(const char *svg) {
    assert_true(strncmp(svg, "<svg ", 5) == 0);
    assert_string_equal(svg + strlen(svg) - 7, "</svg>\n");
    assert_int_equal(occurrences(svg, "<text"), occurrences(svg, "</text>"));
    assert_int_equal(occurrences(svg, "<"), occurrences(svg, ">"));
}

UNIT_TEST(the_plot_has_curves_labels_and_reference_lines) {
    write_log("{\"step\":1,\"loss\":5.5,\"grad_norm\":1}\n{\"step\":2,\"loss\":4.5}\n{\"step\":2,\"val_loss\":4.75}\n"
              "{\"step\":3,\"loss\":3.5}\n{\"step\":4,\"loss\":2.5}\n{\"step\":4,\"val_loss\":2.75}\n");
    const PlotReference references[] = {{"uniform", 5.549}, {"a<b", 2.9}};
    const char *svg = draw("title & <more>", references, 2);
    assert_balanced(svg);
    // The plot has three curves: training loss, smoothed training loss, validation loss.
    assert_int_equal(occurrences(svg, "<polyline"), 3);
    assert_int_equal(occurrences(svg, "<circle"), 2);
    assert_int_equal(occurrences(svg, "stroke-dasharray"), 2);
    assert_non_null(strstr(svg, "title &amp; &lt;more&gt;"));
    assert_non_null(strstr(svg, "uniform 5.549"));
    assert_non_null(strstr(svg, "a&lt;b 2.900"));
    assert_non_null(strstr(svg, "train 2.500"));
    assert_non_null(strstr(svg, "val 2.750"));
}

UNIT_TEST(labels_do_not_overlap) {
    write_log("{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":2.0}\n{\"step\":2,\"val_loss\":2.001}\n");
    const PlotReference references[] = {{"r", 2.002}, {"r", 2.003}, {"r", 2.0}};
    const char *svg = draw(NULL, references, 3), *at = svg;
    double y, last = -100;
    for (int i = 0; i < 5; i++) {
        at = strstr(at, "<text x=\"808.0\" y=\"");
        assert_non_null(at);
        at += strlen("<text x=\"808.0\" y=\"");
        assert_int_equal(sscanf(at, "%lf", &y), 1);
        assert_true(y - last >= 16.9 && y < 540);
        last = y;
    }
}

UNIT_TEST(damaged_log_lines_are_not_drawn) {
    write_log("{\"step\":1,\"loss\":2}\nnonsense\n{\"step\":2,\"loss\":null}\n{\"step\":-5,\"loss\":1}\n"
              "{\"step\":3,\"loss\":\"4\"}\n{\"step\":4,\"loss\":1}\n{\"step\":5,\"lo");
    const char *svg = draw("", NULL, 0);
    assert_balanced(svg);
    assert_non_null(strstr(svg, "train 1.000"));
    const char *points = strstr(svg, "points=\"");
    assert_int_equal(strcspn(points + 8, "\""), strlen("254.0,56.0 800.0,480.0 ") /* two points */);
}

UNIT_TEST(logs_with_one_point_or_a_constant_loss_are_drawn) {
    write_log("{\"step\":0,\"val_loss\":0}\n");
    const char *svg = draw("x", NULL, 0);
    assert_balanced(svg);
    assert_int_equal(occurrences(svg, "<circle"), 1);
    write_log("{\"step\":1,\"loss\":3}\n");
    svg = draw("x", NULL, 0);
    assert_balanced(svg);
    assert_int_equal(occurrences(svg, "<circle"), 1);
    write_log("{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":3}\n{\"step\":3,\"loss\":3}\n");
    svg = draw("x", NULL, 0);
    assert_balanced(svg);
}

UNIT_TEST(long_logs_give_small_pictures) {
    FILE *f = fopen(path_of("log.jsonl"), "w");
    assert_non_null(f);
    for (int s = 1; s <= 30000; s++)
        fprintf(f, "{\"step\":%d,\"loss\":%.4f}\n", s,
                s == 15000 ? 1e30 : 2 + 3.0 * exp(-s / 3000.0) + 0.1 * sin(s * 7.0));
    fclose(f);
    const char *svg = draw("long", NULL, 0);
    assert_balanced(svg);
    assert_true(strlen(svg) < 100000);
}

UNIT_TEST(plot_errors_name_the_log) {
    write_log("nothing\n");
    assert_false(plot_loss_svg(path_of("log.jsonl"), path_of("loss.svg"), "", NULL, 0, &err));
    assert_int_equal(err.code, EXIT_DATA);
    assert_non_null(strstr(err.text, path_of("log.jsonl")));
    assert_false(plot_loss_svg("/does/not/exist", path_of("loss.svg"), "", NULL, 0, &err));
    assert_non_null(strstr(err.text, "/does/not/exist"));
    write_log("{\"step\":1,\"loss\":3}\n");
    assert_false(plot_loss_svg(path_of("log.jsonl"), "/does/not/exist.svg", "", NULL, 0, &err));
    assert_int_equal(err.code, EXIT_DATA);
    assert_non_null(strstr(err.text, "/does/not/exist.svg"));
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
