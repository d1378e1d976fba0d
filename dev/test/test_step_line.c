// Tests of the terminal's step line: its text at every width, and colors.
#include <fcntl.h>
#include <float.h>
#include <math.h>

#include "coat/log/step_line.h"
#include "comm_fixture.h"

static const StepLine usual = {12345, 20000, 3.294117, 0.3012, 6e-4, 800.25, 655100, 0.412, 12065, 0, false};
static char text[512];

UNIT_TEST(in_words) {
    const char *words =
        "step 12345/20000 | loss 3.294117 | norm  0.3012 | lr 6.00e-04 | 800.2 ms | 655,100 tok/s | 41.2% of "
        "peak | 3:21:05 left";
    assert_string_equal(step_line(text, sizeof text, &usual, 0, false), words);
    assert_string_equal(step_line(text, sizeof text, &usual, (int)strlen(words), false), words);
    assert_true(strlen(words) <= 120);
}

UNIT_TEST(shortened) {
    const char *words = "12345/20000 loss 3.2941 norm 0.301 lr 6.0e-04 800.2 ms  655k tok/s 41% 3:21:05";
    assert_string_equal(step_line(text, sizeof text, &usual, 80, false), words);
    assert_string_equal(step_line(text, sizeof text, &usual, 78, false), words);
    assert_string_equal(step_line(text, sizeof text, &usual, 100, false),
                        "12345/20000 loss 3.2941 norm 0.301 lr 6.0e-04 800.2 ms  655k tok/s 41% 3:21:05 left");
    StepLine line = usual;
    line.share_of_peak = 0;
    line.step = 7;
    assert_string_equal(step_line(text, sizeof text, &line, 80, false),
                        "    7/20000 loss 3.2941 norm 0.301 lr 6.0e-04 800.2 ms  655k tok/s 3:21:05 left");
    line.skipped_now = true;
    line.skipped = 3;
    line.loss = NAN;
    assert_string_equal(step_line(text, sizeof text, &line, 80, false),
                        "    7/20000 loss nan norm 0.301 lr 6.0e-04 update skipped (3) 3:21:05 left");
    assert_non_null(strstr(step_line(text, sizeof text, &line, 0, false), "| update skipped (3 so far)"));
}

// Narrower terminals get fewer values.
UNIT_TEST(narrower) {
    static const struct {
        int columns;
        const char *words;
    } cases[] = {
        {77, "12345/20000 loss 3.2941 norm 0.301 lr 6.0e-04 800.2 ms  655k tok/s 3:21:05"},
        {74, "12345/20000 loss 3.2941 norm 0.301 lr 6.0e-04 800.2 ms  655k tok/s 3:21:05"},
        {73, "12345/20000 loss 3.2941 norm 0.301 800.2 ms  655k tok/s 3:21:05"},
        {60, "12345/20000 loss 3.2941 norm 0.301  655k tok/s 3:21:05"},
        {50, "12345/20000 loss 3.2941  655k tok/s 3:21:05"},
        {40, "12345/20000 loss 3.2941 3:21:05"},
        {30, "12345/20000 loss 3.2941"},
        {20, "12345/20000"},
        {8, "12345/20"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(step_line(text, sizeof text, &usual, cases[i].columns, false), cases[i].words);
    StepLine line = usual;
    line.skipped_now = true;
    line.skipped = 3;
    line.loss = NAN;
    assert_string_equal(step_line(text, sizeof text, &line, 60, false),
                        "12345/20000 loss nan norm 0.301 update skipped (3) 3:21:05");
    assert_string_equal(step_line(text, sizeof text, &line, 40, false), "12345/20000 loss nan update skipped (3)");
}

// No line is wider than the terminal, and 80 columns show all values.
UNIT_TEST(never_too_wide) {
    const double norms[] = {0, 0.5, 99.9996, 9999.97, 123456, 3e38, NAN, INFINITY, -INFINITY};
    const double times[] = {0, 0.04, 99.97, 999.96, 99999}, rates[] = {0, 999.6, 99951, 999501, 99.96e6, 999e6};
    const double lefts[] = {0, 3599.6, 35999.6, 86400, 3.6e6, 1e9, 1e20, NAN}, losses[] = {0, 11.0123, -INFINITY, NAN};
    const int columns[] = {80, 60, 40, 20, 1};
    int widest[5] = {0};
    for (int i = 0; i < 9 * 5 * 6 * 8 * 8; i++) {
        const int n = i % 9, t = i / 9 % 5, r = i / 45 % 6, l = i / 270 % 8, s = i / 2160;
        const StepLine line = {999999,   999999, losses[s / 2], norms[n], 1e-30,     times[t],
                               rates[r], 0.99,   lefts[l],      99999,    s % 2 == 1};
        for (int c = 0; c < 5; c++) {
            const int width = (int)strlen(step_line(text, sizeof text, &line, columns[c], false));
            if (width > columns[c]) fail_msg("%d columns of %d: %s", width, columns[c], text);
            if (width > widest[c]) widest[c] = width;
            if (c == 0 && !strstr(text, line.skipped_now ? "update skipped (99999)" : "99%")) fail_msg("%s", text);
        }
    }
    for (int c = 0; c < 5; c++) assert_true(widest[c] > columns[c] - 10);
}

UNIT_TEST(small_formats) {
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

// Colors add only escape sequences.
UNIT_TEST(colours) {
    const int columns[] = {0, 80, 60, 40};
    for (int bad = 0; bad < 2; bad++) {
        for (int i = 0; i < 4; i++) {
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

UNIT_TEST(terminals) {
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
    assert_int_equal(terminal_columns(terminal), 80); // a terminal without a size
    assert_int_equal(terminal_columns(file), 0);
    setenv("NO_COLOR", "", 1); // empty means unset
    assert_true(terminal_colours(terminal));
    setenv("NO_COLOR", "1", 1);
    assert_false(terminal_colours(terminal));
    unsetenv("NO_COLOR");
    setenv("TERM", "dumb", 1);
    assert_false(terminal_colours(terminal));
    setenv("TERM", "xterm", 1);
    // MPI launchers create terminals themselves, and one of several Slurm processes has no viewer
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
    setenv("CLICOLOR_FORCE", "1", 1); // applies everywhere, also to files
    assert_true(terminal_colours(terminal));
    assert_true(terminal_colours(file));
    setenv("CLICOLOR_FORCE", "0", 1);
    assert_false(terminal_colours(file));
    unsetenv("CLICOLOR_FORCE");
    clear_launchers();
    setenv("SLURM_PROCID", "0", 1); // a shell in a job
    setenv("SLURM_NTASKS", "1", 1);
    assert_true(terminal_colours(terminal));
    clear_launchers();
    close(terminal);
    close(master);
    close(file);
}

UNIT_TEST(last_line) {
    EndLine line = {400, 400, 0, 151.2, true, true, 2.5, 0.3, 2.625, {{0}, {0}, 0}, true, "", 400};
    assert_string_equal(end_line(text, sizeof text, &line, 0),
                        "done: 400 of 400 steps, loss 2.500000, val loss 2.625000, 0:02:31 of training");
    line.step = 225; // the last validation was earlier
    line.val_step = 200;
    assert_string_equal(end_line(text, sizeof text, &line, 0), "stopped: 225 of 400 steps, loss 2.500000, val loss "
                                                               "2.625000 of step 200, 0:02:31 of training");
    assert_string_equal(end_line(text, sizeof text, &line, 62),
                        "stopped: 225/400, loss 2.5000, val loss 2.6250 at 200, 0:02:31");
    assert_string_equal(end_line(text, sizeof text, &line, 58), "stopped: 225/400, loss 2.5000, 0:02:31");
    line.step = 7;
    line.skipped = 3;
    line.validated = false;
    line.val_loss = INFINITY;
    assert_string_equal(end_line(text, sizeof text, &line, 0),
                        "stopped: 7 of 400 steps, loss 2.500000, 3 updates skipped, 0:02:31 of training");
    // shortened if it does not fit: 60 columns hold everything
    static const struct {
        int columns;
        const char *text;
    } shorter[] = {{80, "stopped: 7 of 400 steps, loss 2.500000, 3 updates skipped, 0:02:31 of training"},
                   {78, "stopped: 7 of 400 steps, loss 2.500000, 3 updates skipped, 0:02:31 of training"},
                   {77, "stopped: 7/400, loss 2.5000, 3 skipped, 0:02:31"},
                   {20, "stopped: 7/400, loss 2.5000, 3 skipped, 0:02:31"}};
    for (int i = 0; i < 4; i++)
        assert_string_equal(end_line(text, sizeof text, &line, shorter[i].columns), shorter[i].text);
    line.step = line.total_steps = line.val_step = 100000;
    line.validated = true;
    line.val_loss = 2.625;
    line.skipped = 0;
    assert_string_equal(end_line(text, sizeof text, &line, 60),
                        "done: 100000/100000, loss 2.5000, val loss 2.6250, 0:02:31");
}

// The text of a failed run names the object and a remedy, separated by '&'.
static void assert_failure(const EndLine *line, const char *parts) {
    char copy[256];
    end_failure(text, sizeof text, line);
    snprintf(copy, sizeof copy, "%s", parts);
    for (char *part = strtok(copy, "&"); part; part = strtok(NULL, "&"))
        if (!strstr(text, part)) fail_msg("'%s' lacks '%s'", text, part);
}

UNIT_TEST(failed_runs) {
    const EndLine well = {400, 400, 0, 151.2, true, true, 2.5, 0.3, 2.625, {{0}, {0}, 0}, true, "", 400};
    EndLine line = well;
    for (int i = 0; i < 3; i++) {
        line = well;
        *(i == 0 ? &line.loss : i == 1 ? &line.grad_norm : &line.val_loss) = i == 0 ? NAN : INFINITY;
        assert_failure(&line, "the last loss or gradient&earlier checkpoint&smaller --lr");
    }
    snprintf(line.nonfinite, sizeof line.nonfinite, "transformer.wte.weight");
    assert_failure(&line, "weights&(transformer.wte.weight)&earlier checkpoint&smaller --lr");
    line.earlier = false;
    assert_failure(&line, "weights&(transformer.wte.weight)&start again&--lr&--warmup");
    line.nonfinite[0] = '\0';
    assert_failure(&line, "the last loss or gradient&start again&--lr&--warmup");
}

// Returns the failure text of a run with these losses; the list ends with 0.
static const char *failure_of(const double *losses) {
    EndLine line = {4, 4, 0, 1, true, true, 2.5, 0.3, 900.0, {{0}, {0}, 0}, true, "", 4};
    for (; *losses; losses++) losses_add(&line.losses, *losses);
    return end_failure(text, sizeof text, &line);
}

UNIT_TEST(risen_loss) {
    static const double quiet[][20] = {{5.4, 71.0, 94.0, 116.0},                                     // too few steps
                                       {3.12, 2.92, 3.14, 3.01, 3.02, 2.94, 2.81, 2.80, 3.28, 3.22}, // batches differ
                                       {2.81, 3.49, 3.19, 2.85, 3.41, 3.29, 3.27, 3.09, 2.36, 2.78},
                                       {2.97, 3.45, 3.26, 3.14, 3.10, 2.94, 3.40, 3.05, 3.29, 3.14},
                                       {2.5, 3.1, 3.0, 3.2, 3.1},
                                       {5.4, 71.0, 9.0, 5.0, 4.0, 3.5, 3.4, 3.3, 3.2, 3.1}, // a temporary rise
                                       {5.5, 5.0, 4.5, 4.2, 4.0, 3.9, NAN, INFINITY, 3.8}};
    for (size_t i = 0; i < sizeof quiet / sizeof *quiet; i++) assert_string_equal(failure_of(quiet[i]), "");
    const double at_once[] = {5.4, 71.0, 94.0, 116.0, 124.0, 0};
    assert_string_equal(failure_of(at_once), "the loss has risen, from 5.4000 in the first step to 111.3333 in the "
                                             "last 3: try a smaller --lr");
    const double further[] = {5.4, 1307, 1491, 1884, 2454, 2310, 3099, 3254, 3074, 4609, 0};
    assert_non_null(strstr(failure_of(further), "the loss has risen, from 5.4000 in"));
    double slowly[101] = {0};
    for (int i = 0; i < 100; i++) slowly[i] = 2.5 + 0.01 * i + 0.05 * (i % 3);
    assert_non_null(strstr(failure_of(slowly), "the loss has risen, from 2.57"));
    assert_non_null(strstr(text, " in the first 8 steps to 3.5"));
    EndLine line = {4, 4, 0, 1, false, true, 2.5, 0.3, 900.0, {{0}, {0}, 0}, true, "", 4}; // nothing was trained
    for (int i = 0; i < 5; i++) losses_add(&line.losses, at_once[i]);
    assert_string_equal(end_failure(text, sizeof text, &line), "");
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
