// --help and what else is made from the table of flags: a Markdown table, a man page, bash's completion.
#include "flags.h"

#include <ctype.h>

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
            "A flag takes its value as --flag value or --flag=value; the last repetition wins, but\n"
            "of --train all count.\n"
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

// Text of a man page: '-' stands for itself, and neither '.' nor '\'' begins a request.
static void print_roff(FILE *out, const char *text) {
    if (*text == '.' || *text == '\'') fputs("\\&", out);
    for (; *text; text++) {
        if (*text == '-')
            fputs("\\-", out);
        else if (*text == '\\')
            fputs("\\e", out);
        else
            fputc(*text, out);
    }
}

// A line of a man page, in bold or plain letters.
static void roff_line(FILE *out, const char *request, const char *text) {
    fputs(request, out);
    print_roff(out, text);
    fputc('\n', out);
}

void flags_help_man(FILE *out, const char *program) {
    Config *defaults = (Config *)xcalloc(1, sizeof *defaults);
    char synopsis[FLAG_TEXT_LENGTH], text[DESCRIPTION_LENGTH];
    int count, group = -1;
    const Flag *table = flag_table(&count);
    config_defaults(defaults);
    fprintf(out, ".TH %s 1 %s \"COAT %s\"\n.SH NAME\n", program, COAT_VERSION_DATE, COAT_VERSION);
    snprintf(text, sizeof text, "%s \\- trains GPT models, with optimizer states and activations in FP8\n", program);
    fputs(text, out);
    fputs(".SH SYNOPSIS\n", out);
    for (int i = 0; i < 2; i++) {
        roff_line(out, i ? ".br\n.B " : ".B ", program);
        roff_line(out, "",
                  i ? "--plan [--model NAME] [--recipe NAME] [--memory-limit 80GB]"
                    : "--train GLOB [--val GLOB] [--model NAME] [--out DIR] [flags]");
    }
    fputs(".SH DESCRIPTION\n", out);
    roff_line(out, "",
              "A flag takes its value as --flag value or --flag=value; the last repetition wins. In parentheses: the "
              "default, and the short flag that llm.c has for the same.");
    flag_short_ignored(synopsis);
    snprintf(text, sizeof text, "llm.c's flags that are accepted without effect: %s", synopsis);
    roff_line(out, "", text);
    fputs(".SH OPTIONS\n", out);
    for (int i = 0; i < count; i++) {
        if ((int)table[i].group != group) roff_line(out, ".SS ", flag_group_name(table[i].group));
        group = (int)table[i].group;
        synopsis_of(&table[i], synopsis);
        describe(&table[i], defaults, text);
        roff_line(out, ".TP\n.B ", synopsis);
        roff_line(out, "", text);
    }
    fputs(".SH EXIT STATUS\n", out);
    static const char *const codes[][2] = {{"0", "done, or ended as asked"},
                                           {"1", "wrong flags"},
                                           {"2", "data or files"},
                                           {"3", "device"},
                                           {"4", "training diverged"},
                                           {"5", "lost a process"},
                                           {"128 + N", "signal N was repeated"}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        roff_line(out, ".TP\n.B ", codes[i][0]);
        roff_line(out, "", codes[i][1]);
    }
    free(defaults);
}

// What completes a flag's value, by its placeholder: words are choices, names in capitals what the user fills in. As
// assignments of the shell.
static void print_completion(FILE *out, const char *placeholder) {
    const char *paths = "", *between = "";
    fputs("choices='", out);
    for (const char *p = placeholder; *p;) {
        const int length = (int)strcspn(p, "|");
        if (!isupper((unsigned char)*p))
            fprintf(out, "%s%.*s", between, length, p), between = " ";
        else if (strncmp(p, "DIR", 3) == 0)
            paths = "-d";
        else if (strncmp(p, "FILE", 4) == 0 || strncmp(p, "GLOB", 4) == 0 || strncmp(p, "PATH", 4) == 0)
            paths = "-f";
        p += length + (p[length] == '|');
    }
    fprintf(out, "' paths=%s", paths);
}

void flags_help_bash(FILE *out, const char *program) {
    int count;
    const Flag *table = flag_table(&count);
    fprintf(out,
            "# bash's completion for %s, made by %s --help=bash\n"
            "_complete_%s() {\n"
            "    local word=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD - 1]} choices paths=\n"
            "    if [[ $word == = ]]; then word='' flag+='='; elif [[ $flag == = ]]; then\n"
            "        flag=${COMP_WORDS[COMP_CWORD - 2]}=\n"
            "    fi\n"
            "    case $flag in\n",
            program, program, program);
    for (int i = 0; i < count; i++) {
        const bool same_values = table[i].kind != FLAG_CHOICE; // llm.c's -w has others than --master
        const char *shorter = same_values ? flag_short_name(table[i].name) : NULL;
        if (!*table[i].placeholder) continue;
        fputs("    ", out);
        if (flag_needs_value(&table[i])) fprintf(out, "--%s | ", table[i].name);
        if (flag_needs_value(&table[i]) && shorter) fprintf(out, "%s | ", shorter);
        fprintf(out, "--%s=) ", table[i].name);
        print_completion(out, table[i].placeholder);
        fputs(" ;;\n", out);
    }
    fputs("    *) choices='", out);
    for (int i = 0; i < count; i++) {
        fprintf(out, i ? " --%s" : "--%s", table[i].name);
        if (table[i].kind == FLAG_BOOL || table[i].kind == FLAG_RESUME) fprintf(out, " --no-%s", table[i].name);
    }
    fprintf(out,
            "' ;;\n"
            "    esac\n"
            "    mapfile -t COMPREPLY < <(compgen -W \"$choices\" -- \"$word\"\n"
            "        [[ -z $paths ]] || compgen $paths -- \"$word\")\n"
            "    [[ -z $paths ]] || compopt -o filenames 2>/dev/null\n"
            "}\n"
            "complete -F _complete_%s %s\n",
            program, program);
}
