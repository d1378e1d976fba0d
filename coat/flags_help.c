// --help and --help=markdown, both made from the table of flags.
#include "flags.h"

enum { LINE_WIDTH = 100, TEXT_COLUMN = 36, DESCRIPTION_LENGTH = 512 };

static void alternative_name(const char *alternatives, int index, char text[FLAG_TEXT_LENGTH]) {
    const char *p = alternatives;
    for (; index > 0; index--) p += strcspn(p, "|") + 1;
    snprintf(text, FLAG_TEXT_LENGTH, "%.*s", (int)strcspn(p, "|"), p);
}

// "--lr RATE", "--shuffle, --no-shuffle", "--resume[=STEP]".
static void synopsis_of(const Flag *flag, char text[FLAG_TEXT_LENGTH]) {
    bool optional = flag->kind == FLAG_RESUME || flag->kind == FLAG_PLAN || flag->kind == FLAG_HELP;
    if (flag->kind == FLAG_BOOL)
        snprintf(text, FLAG_TEXT_LENGTH, "--%s, --no-%s", flag->name, flag->name);
    else if (optional)
        snprintf(text, FLAG_TEXT_LENGTH, "--%s[=%s]", flag->name, flag->placeholder);
    else
        snprintf(text, FLAG_TEXT_LENGTH, "--%s%s%s", flag->name, *flag->placeholder ? " " : "", flag->placeholder);
}

// The default as text; "" where there is none.
static void default_of(const Flag *flag, const Config *defaults, char text[FLAG_TEXT_LENGTH]) {
    const void *field = (const char *)defaults + flag->offset;
    int number = 0;
    text[0] = '\0';
    if (flag->default_shown) {
        snprintf(text, FLAG_TEXT_LENGTH, "%s", flag->default_shown);
        return;
    }
    switch (flag->kind) {
    case FLAG_INT: snprintf(text, FLAG_TEXT_LENGTH, "%d", *(const int *)field); break;
    case FLAG_INT64: snprintf(text, FLAG_TEXT_LENGTH, "%lld", (long long)*(const int64_t *)field); break;
    case FLAG_SEED: snprintf(text, FLAG_TEXT_LENGTH, "%llu", (unsigned long long)*(const uint64_t *)field); break;
    case FLAG_FLOAT: snprintf(text, FLAG_TEXT_LENGTH, "%g", (double)*(const float *)field); break;
    case FLAG_BOOL: snprintf(text, FLAG_TEXT_LENGTH, "%s", *(const bool *)field ? "on" : "off"); break;
    case FLAG_CHOICE:
        memcpy(&number, field, sizeof number);
        alternative_name(flag->placeholder, number, text);
        break;
    default: break;
    }
}

// The help text with the default and llm.c's short flag in parentheses.
static void describe(const Flag *flag, const Config *defaults, char text[DESCRIPTION_LENGTH]) {
    char value[FLAG_TEXT_LENGTH], extra[2 * FLAG_TEXT_LENGTH] = "";
    const char *shorter = flag_short_name(flag->name);
    default_of(flag, defaults, value);
    if (*value && shorter)
        snprintf(extra, sizeof extra, " (default %s; %s)", value, shorter);
    else if (*value)
        snprintf(extra, sizeof extra, " (default %s)", value);
    else if (shorter)
        snprintf(extra, sizeof extra, " (%s)", shorter);
    snprintf(text, DESCRIPTION_LENGTH, "%s%s", flag->help, extra);
}

// Prints text from the given column on, broken at blanks; `at` is the column where the line stands now.
static void print_wrapped(FILE *out, const char *text, int column, int at) {
    while (*text) {
        int room = LINE_WIDTH - column, length = (int)strlen(text), cut = length;
        if (length > room)
            for (cut = room; cut > 0 && text[cut] != ' ';) cut--;
        if (cut == 0) cut = room;
        fprintf(out, "%*s%.*s\n", column - at, "", cut, text);
        text += cut + (text[cut] == ' ');
        at = 0;
    }
}

void flags_help(FILE *out, const char *program) {
    Config *defaults = (Config *)xcalloc(1, sizeof *defaults);
    char synopsis[FLAG_TEXT_LENGTH], description[DESCRIPTION_LENGTH];
    int count, group = -1;
    const Flag *table = flag_table(&count);
    config_defaults(defaults);
    fprintf(out,
            "Trains GPT models; --recipe chooses the number formats.\n"
            "Usage: %s --train GLOB [--val GLOB] [--model NAME] [--out DIR] [flags]\n"
            "       %s --plan [--model NAME] [--recipe NAME] [--memory-limit 80GB]\n"
            "A flag takes its value as --flag value or --flag=value; the last repetition wins.\n"
            "A count may be 1e6. Of TOKENS k is 1024 and M 1024 k, of STEPS k is 1000 and M a million.\n"
            "In parentheses: the default, and the short flag that llm.c has for the same.\n",
            program, program);
    for (int i = 0; i < count; i++) {
        if ((int)table[i].group != group) fprintf(out, "\n%s\n", flag_group_name(table[i].group));
        group = (int)table[i].group;
        synopsis_of(&table[i], synopsis);
        describe(&table[i], defaults, description);
        int at = fprintf(out, "  %s", synopsis);
        if (at >= TEXT_COLUMN - 1) {
            fputc('\n', out);
            at = 0;
        }
        print_wrapped(out, description, TEXT_COLUMN, at);
    }
    flag_short_ignored(synopsis);
    fprintf(out, "\nllm.c's flags that are accepted without effect: %s\n", synopsis);
    fprintf(out,
            "Exit codes: 0 done or ended as asked, 1 wrong flags, 2 data or files, 3 device, 4 training diverged,\n"
            "5 lost a process, 128 + the number of a signal that was repeated\n");
    free(defaults);
}

// A table cell: '|' would end it.
static void print_cell(FILE *out, const char *text, bool code) {
    fputs(code && *text ? "| `" : "| ", out);
    for (; *text; text++) {
        if (*text == '|') fputc('\\', out);
        fputc(*text, out);
        if (!text[1] && code) fputc('`', out);
    }
    fputc(' ', out);
}

void flags_help_markdown(FILE *out) {
    Config *defaults = (Config *)xcalloc(1, sizeof *defaults);
    char synopsis[FLAG_TEXT_LENGTH], value[FLAG_TEXT_LENGTH];
    int count, group = -1;
    const Flag *table = flag_table(&count);
    config_defaults(defaults);
    fputs("| Flag | Default | llm.c | Meaning |\n| --- | --- | --- | --- |\n", out);
    for (int i = 0; i < count; i++) {
        const char *shorter = flag_short_name(table[i].name);
        if ((int)table[i].group != group) fprintf(out, "| **%s** | | | |\n", flag_group_name(table[i].group));
        group = (int)table[i].group;
        synopsis_of(&table[i], synopsis);
        default_of(&table[i], defaults, value);
        print_cell(out, synopsis, true);
        print_cell(out, value, false);
        print_cell(out, shorter ? shorter : "", true);
        print_cell(out, table[i].help, false);
        fputs("|\n", out);
    }
    free(defaults);
}
