// Tests of the line that the terminal shows for each training step: its text at every width, and when it has colors.
#include <fcntl.h>
#include <float.h>
#include <math.h>

#include "coat/log/step_line.h"
#include "coat/log/terminal.h"
#include "comm_fixture.h"

static const StepLine usual = {12345, 20000, 3.294117, 0.3012, 6e-4, 800.25, 655100, 0.412, 12065, 0, false};
static char text[512];

static void a_wide_terminal_shows_all_figures(void **state) {
    (void)state;
    const char *words =
        "step 12345/20000 | loss 3.294117 | norm  0.3012 | lr 6.00e-04 | 800.2 ms | 655,100 tok/s | 41.2% of "
        "peak | 3:21:05 left";
    assert_string_equal(step_line(text, sizeof text, &usual, 0, false), words);
    assert_string_equal(step_line(text, sizeof text, &usual, (int)strlen(words), false), words);
    assert_true(strlen(words) <= 120);
}

static void a_narrow_terminal_shows_complete_words(void **state) {
    (void)state;
    const char *words = "12345/20000 loss 3.2941 norm 0.301 lr 6.0e-04 800.2 ms 655k tok/s 41% 3:21:05";
    assert_string_equal(step_line(text, sizeof text, &usual, 80, false), words);
    assert_string_equal(step_line(text, sizeof text, &usual, (int)strlen(words), false), words);
    // A narrow terminal shows as many complete words of the step line as fit.
    assert_string_equal(step_line(text, sizeof text, &usual, 23, false), "12345/20000 loss 3.2941");
    assert_string_equal(step_line(text, sizeof text, &usual, 22, false), "12345/20000 loss");
    StepLine line = usual;
    line.share_of_peak = 0;
    line.step = 7;
    line.tokens_per_s = 1.234e6;
    assert_string_equal(step_line(text, sizeof text, &line, 80, false),
                        "    7/20000 loss 3.2941 norm 0.301 lr 6.0e-04 800.2 ms 1.23M tok/s 3:21:05");
    line.skipped_now = true;
    line.skipped = 3;
    line.loss = NAN;
    assert_string_equal(step_line(text, sizeof text, &line, 80, false),
                        "    7/20000 loss nan norm 0.301 lr 6.0e-04 update skipped (3) 3:21:05");
    assert_non_null(strstr(step_line(text, sizeof text, &line, 0, false), "| update skipped (3 so far)"));
}

// No step line is wider than the terminal, whatever its numbers are.
static void no_step_line_is_wider_than_the_terminal(void **state) {
    (void)state;
    const double numbers[] = {0, 0.04, 99.9996, 999501, -3e38, NAN, INFINITY};
    const int columns[] = {120, 80, 40, 1};
    for (int i = 0; i < 7 * 7 * 2; i++) {
        const double x = numbers[i % 7], y = numbers[i / 7 % 7];
        const StepLine line = {999999, 999999, x, y, 1e-30, fabs(x), fabs(y), 0.99, y, 99999, i >= 49};
        for (int c = 0; c < 4; c++)
            assert_true((int)strlen(step_line(text, sizeof text, &line, columns[c], false)) <= columns[c]);
    }
}

// print_notes() does not read past the end of notes whose text is truncated within a line or within the label "note: ".
static void truncated_notes_are_printed(void **state) {
    (void)state;
    const struct {
        char notes[16], after[16];
    } truncated[] = {{"note: a\nnote: b", "after\n"}, {"note: a\nnote", "after\n"}};
    const char *const shown[] = {"note: a\nnote: b\n", "note: a\nnote: \n"};
    for (int i = 0; i < 2; i++) {
        char *printed;
        size_t length;
        FILE *out = open_memstream(&printed, &length);
        assert_non_null(out);
        print_notes(out, truncated[i].notes);
        fclose(out);
        assert_string_equal(printed, shown[i]);
        free(printed);
    }
}

static void durations_and_counts_as_text(void **state) {
    (void)state;
    const struct {
        double seconds;
        const char *words;
    } durations[] = {{0, "0:00:00"},    {NAN, "0:00:00"},  {-1, "0:00:00"},
                     {59.6, "0:01:00"}, {3725, "1:02:05"}, {400000, "111:06:40"}};
    for (int i = 0; i < 6; i++) {
        format_duration(text, sizeof text, durations[i].seconds);
        assert_string_equal(text, durations[i].words);
    }
    format_count(text, sizeof text, 1234567);
    assert_string_equal(text, "1,234,567");
    format_count(text, sizeof text, 999.4);
    assert_string_equal(text, "999");
}

// Colors only add escape sequences to the step line; the text does not change.
static void colors_do_not_change_the_text(void **state) {
    (void)state;
    const int columns[] = {0, 80};
    for (int bad = 0; bad < 2; bad++) {
        for (int i = 0; i < 2; i++) {
            StepLine line = usual;
            line.loss = bad ? NAN : 3;
            line.skipped_now = bad;
            char plain[512], bare[512];
            step_line(plain, sizeof plain, &line, columns[i], false);
            step_line(text, sizeof text, &line, columns[i], true);
            assert_non_null(strstr(text, bad ? COLOUR_RED "nan" COLOUR_END : COLOUR_BOLD "3.0000"));
            size_t used = 0;
            for (const char *p = text; *p; p++) {
                if (*p == '\033') {
                    p = strchr(p, 'm');
                    continue;
                }
                bare[used++] = *p;
            }
            bare[used] = '\0';
            assert_string_equal(bare, plain);
        }
    }
}

static void width_and_colors_of_terminals(void **state) {
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY), file = open("/dev/null", O_WRONLY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) skip();
    int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(terminal >= 0);
    clear_launchers();
    unsetenv("NO_COLOR");
    unsetenv("CLICOLOR_FORCE");
    setenv("TERM", "xterm", 1);
    assert_true(terminal_colours(terminal));
    assert_false(terminal_colours(file));
    assert_int_equal(terminal_columns(terminal), 80); // A terminal without a size counts as 80 columns wide.
    assert_int_equal(terminal_columns(file), 0);
    setenv("NO_COLOR", "", 1); // an empty NO_COLOR counts as not set
    assert_true(terminal_colours(terminal));
    setenv("NO_COLOR", "1", 1);
    assert_false(terminal_colours(terminal));
    unsetenv("NO_COLOR");
    setenv("TERM", "dumb", 1);
    assert_false(terminal_colours(terminal));
    setenv("TERM", "xterm", 1);
    // Under a launcher of several processes, the output has no colors, because nobody watches the terminal of one rank.
    static const char *const launchers[][3] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "1"},
                                               {"PMI_RANK", "PMI_SIZE", "2"},
                                               {"SLURM_PROCID", "SLURM_NTASKS", "2"},
                                               {"RANK", "WORLD_SIZE", "2"}};
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        clear_launchers();
        assert_int_equal(terminal_columns(terminal), 80);
        setenv(launchers[i][0], "0", 1);
        setenv(launchers[i][1], launchers[i][2], 1);
        assert_false(terminal_colours(terminal));
        assert_int_equal(terminal_columns(terminal), 0);
    }
    setenv("CLICOLOR_FORCE", "1", 1); // CLICOLOR_FORCE forces colors under a launcher and in files, too.
    assert_true(terminal_colours(terminal));
    assert_true(terminal_colours(file));
    setenv("CLICOLOR_FORCE", "0", 1);
    assert_false(terminal_colours(file));
    unsetenv("CLICOLOR_FORCE");
    clear_launchers();
    setenv("SLURM_PROCID", "0", 1); // an interactive shell within a Slurm job
    setenv("SLURM_NTASKS", "1", 1);
    assert_true(terminal_colours(terminal));
    clear_launchers();
    close(terminal);
    close(master);
    close(file);
}

static void last_line_of_a_run(void **state) {
    (void)state;
    EndLine line = {400, 400, 0, 151.2, true, true, 2.5, 0.3, 2.625, {0, {0}, 0}, true, "", 400};
    assert_string_equal(end_line(text, sizeof text, &line, 0),
                        "done: 400 of 400 steps, loss 2.500000, val loss 2.625000, 0:02:31 of training");
    line.step = 225; // The last validation was at an earlier step.
    line.val_step = 200;
    assert_string_equal(end_line(text, sizeof text, &line, 0), "stopped: 225 of 400 steps, loss 2.500000, val loss "
                                                               "2.625000 of step 200, 0:02:31 of training");
    assert_string_equal(end_line(text, sizeof text, &line, 62), "stopped: 225/400, loss 2.5000, 0:02:31");
    line.step = 7;
    line.skipped = 3;
    line.validated = false;
    line.val_loss = INFINITY;
    assert_string_equal(end_line(text, sizeof text, &line, 0),
                        "stopped: 7 of 400 steps, loss 2.500000, 3 updates skipped, 0:02:31 of training");
    assert_string_equal(end_line(text, sizeof text, &line, 77),
                        "stopped: 7/400, loss 2.5000, 3 updates skipped, 0:02:31");
    line.step = line.total_steps = line.val_step = 100000;
    line.validated = true;
    line.val_loss = 2.625;
    line.skipped = 0;
    assert_string_equal(end_line(text, sizeof text, &line, 60),
                        "done: 100000/100000, loss 2.5000, val loss 2.6250, 0:02:31");
}

static void last_line_of_a_failed_run(void **state) {
    (void)state;
    const EndLine well = {400, 400, 0, 151.2, true, true, 2.5, 0.3, 2.625, {0, {0}, 0}, true, "", 400};
    const char *not_finite =
        "the last loss or gradient is not finite; resume from an earlier checkpoint with a smaller --lr";
    EndLine line = well;
    for (int i = 0; i < 3; i++) {
        line = well;
        *(i == 0 ? &line.loss : i == 1 ? &line.grad_norm : &line.val_loss) = i == 0 ? NAN : INFINITY;
        assert_string_equal(end_failure(text, sizeof text, &line), not_finite);
    }
    snprintf(line.nonfinite, sizeof line.nonfinite, "transformer.wte.weight");
    assert_string_equal(end_failure(text, sizeof text, &line),
                        "the weights are not finite (transformer.wte.weight); resume from an earlier checkpoint with "
                        "a smaller --lr");
    line.earlier = false;
    assert_string_equal(end_failure(text, sizeof text, &line),
                        "the weights are not finite (transformer.wte.weight); start again with a smaller --lr or a "
                        "longer --warmup");
    line.nonfinite[0] = '\0';
    assert_string_equal(
        end_failure(text, sizeof text, &line),
        "the last loss or gradient is not finite; start again with a smaller --lr or a longer --warmup");
}

// Returns the warning at the end of a run with these losses. The list ends with a 0.
static const char *failure_of(const double *losses) {
    EndLine line = {4, 4, 0, 1, true, true, 2.5, 0.3, 900.0, {0, {0}, 0}, true, "", 4};
    for (; *losses; losses++) losses_add(&line.losses, *losses);
    return end_failure(text, sizeof text, &line);
}

static void warning_about_a_risen_loss(void **state) {
    (void)state;
    static const double quiet[][20] = {
        {5.4, 71.0, 94.0, 116.0}, // no warning after only a few steps
        // If losses merely vary between batches, no warning is printed.
        {3.12, 2.92, 3.14, 3.01, 3.02, 2.94, 2.81, 2.80, 3.28, 3.22},
        {2.81, 3.49, 3.19, 2.85, 3.41, 3.29, 3.27, 3.09, 2.36, 2.78},
        {2.97, 3.45, 3.26, 3.14, 3.10, 2.94, 3.40, 3.05, 3.29, 3.14},
        {2.5, 3.1, 3.0, 3.2, 3.1},
        {5.4, 71.0, 9.0, 5.0, 4.0, 3.5, 3.4, 3.3, 3.2, 3.1}, // No warning is printed if the loss falls after a jump.
        {5.5, 5.0, 4.5, 4.2, 4.0, 3.9, NAN, INFINITY, 3.8}};
    for (size_t i = 0; i < sizeof quiet / sizeof *quiet; i++) assert_string_equal(failure_of(quiet[i]), "");
    const double at_once[] = {5.4, 71.0, 94.0, 116.0, 124.0, 0};
    assert_string_equal(failure_of(at_once), "the loss has risen, from 5.4000 in the first step to 111.3333 in the "
                                             "last 3 steps; try a smaller --lr");
    double slowly[101] = {0};
    for (int i = 0; i < 100; i++) slowly[i] = 2.5 + 0.01 * i + 0.05 * (i % 3);
    assert_non_null(strstr(failure_of(slowly), "the loss has risen, from 2.5000 in the first step to 3.5"));
    // A resumed run that was already complete trains no step, so it gives no warning.
    EndLine line = {4, 4, 0, 1, false, true, 2.5, 0.3, 900.0, {0, {0}, 0}, true, "", 4};
    for (int i = 0; i < 5; i++) losses_add(&line.losses, at_once[i]);
    assert_string_equal(end_failure(text, sizeof text, &line), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(last_line_of_a_run),
        cmocka_unit_test(last_line_of_a_failed_run),
        cmocka_unit_test(warning_about_a_risen_loss),
        cmocka_unit_test(a_wide_terminal_shows_all_figures),
        cmocka_unit_test(a_narrow_terminal_shows_complete_words),
        cmocka_unit_test(no_step_line_is_wider_than_the_terminal),
        cmocka_unit_test(truncated_notes_are_printed),
        cmocka_unit_test(durations_and_counts_as_text),
        cmocka_unit_test(colors_do_not_change_the_text),
        cmocka_unit_test(width_and_colors_of_terminals),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
