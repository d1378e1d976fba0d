// Tests of --help, --help GROUP, --help=markdown and --version.
#include <unistd.h>

#include "config_fixture.h"

// Returns the text that print() writes, which must have 200 to 65,534 bytes. The caller frees the text.
static char *capture(void (*print)(FILE *out)) {
    char *text = (char *)xcalloc(1, 1 << 16);
    FILE *file = tmpfile();
    assert_non_null(file);
    print(file);
    rewind(file);
    size_t length = fread(text, 1, (1 << 16) - 1, file);
    fclose(file);
    assert_in_range(length, 200, (1 << 16) - 2);
    return text;
}

static void print_help(FILE *out) {
    flags_help(out, "train_gpt2_fp8_cpu", -1);
}

// Tests that --help and --help=markdown list every flag once, and that no line of --help exceeds 80 columns.
UNIT_TEST(help_lists_every_flag_once) {
    int count = 0;
    while (flag_table[count].name) count++;
    char *help = capture(print_help), *markdown = capture(flags_help_markdown);
    int *seen = (int *)xcalloc((size_t)count, sizeof *seen);
    assert_int_equal(occurrences(markdown, "\n| `--"), count);
    for (char *line = strtok(help, "\n"); line; line = strtok(NULL, "\n")) {
        if (strlen(line) > 80) fail_msg("wider than 80: %s", line);
        bool negated;
        if (strncmp(line, "  --", 4) != 0) continue;
        const Flag *flag = flag_find(line + 4, strcspn(line + 4, " =[,"), &negated);
        assert_non_null(flag);
        seen[flag - flag_table]++;
    }
    for (int i = 0; i < count; i++) assert_int_equal(seen[i], 1);
    free(seen);
    free(help);
    free(markdown);
}

UNIT_TEST(markdown_help_shows_every_default) {
    char *markdown = capture(flags_help_markdown), cell[256];
    static const char *const rows[] = {
        "| `--seq-len TOKENS` | 1024 | `-t` | ", "| `--linear bf16\\|fp8` | fp8, by --recipe |",
        "| `--layers N` | 12 for gpt2, otherwise from --model |", "| `--resume[=STEP], --no-resume` | off |"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) assert_non_null(strstr(markdown, rows[i]));
    for (const Flag *flag = flag_table; flag->name; flag++) { // all flags but --help and --version have a default
        if (flag->kind == FLAG_HELP || flag->kind == FLAG_VERSION) continue;
        snprintf(cell, sizeof cell, "| `--%s", flag->name);
        const char *row = strstr(markdown, cell), *value = row ? strstr(row, "` | ") : NULL;
        assert_non_null(value);
        if (value[4] == ' ' || value[4] == '|' || value[4] == ',') fail_msg("--%s shows no default", flag->name);
    }
    free(markdown);
    char *help = capture(print_help);
    assert_non_null(strstr(help, "(default 0.0003; -l)"));
    assert_non_null(strstr(help, "(default gpt2; -e)")); // the end of the longest description
    for (const char *recipe = "bf16\0fp8-linear\0coat\0"; *recipe; recipe += strlen(recipe) + 1) {
        snprintf(cell, sizeof cell, "\n  %s: ", recipe);
        assert_non_null(strstr(help, cell));
    }
    free(help);
}

static FlagGroup group_shown;
static void print_group(FILE *out) {
    flags_help(out, "train_gpt2_fp8_cpu", (int)group_shown);
}

UNIT_TEST(help_of_a_group_is_part_of_the_whole_help) {
    char *help = capture(print_help), groups[FLAG_TEXT_LENGTH];
    flag_group_list(groups);
    int seen = 0;
    for (char *name = strtok(groups, ", "); name; name = strtok(NULL, ", "), seen++) {
        assert_true(flag_group_find(name, &group_shown));
        assert_int_equal(group_shown, seen);
        char *page = capture(print_group);
        assert_non_null(strstr(help, page));
        assert_int_equal(strncmp(page, flag_group_name(group_shown), strlen(flag_group_name(group_shown))), 0);
        free(page);
    }
    assert_int_equal(seen, GROUP_COUNT);
    FlagGroup group;
    assert_true(flag_group_find("Optimizer", &group) && group == GROUP_OPTIMIZER);
    assert_false(flag_group_find("opt", &group) || flag_group_find("", &group));
    free(help);
}

// Tests that --help and --version print their text and that the program then ends, whatever the other flags.
UNIT_TEST(help_and_version_end_the_program) {
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    int saved = dup(1);
    dup2(fileno(file), 1);
    bool version = parse("--version") && printed, help = parse("--train x --help") && printed;
    bool group = parse("--help optimizer --train x") && printed, joined = parse("--help=Files") && printed;
    bool markdown = parse("--help=markdown") && printed, none = parse("--train x") && !printed;
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    char text[64] = "";
    rewind(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal(text, "train_gpt2_fp8 " COAT_VERSION "\n");
    assert_true(version && help && group && joined && markdown && none);
}

RUN_TESTS(NULL, NULL, NULL)
