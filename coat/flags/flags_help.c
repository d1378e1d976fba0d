// Prints the text of --help and the table of --help=markdown from the table of flags.
#include "flags.h"
#include "io/files.h"
#include "log/terminal.h"

enum { MAX_LINE = 80, MIN_LINE = 48, TEXT_COLUMN = 28, DESCRIPTION_LENGTH = 1024 };

// Writes the synopsis of a flag to text, such as "--lr RATE", "--plan[=json]" or "--shuffle, --no-shuffle".
static void synopsis(const Flag *flag, char text[FLAG_TEXT_LENGTH]) {
    const bool optional = flag->kind == FLAG_RESUME || flag->kind == FLAG_PLAN || flag->kind == FLAG_HELP;
    const bool negated = flag_has_negation(flag);
    snprintf(text, FLAG_TEXT_LENGTH, "--%s%s%s%s%s%s", flag->name,
             optional             ? "[="
             : *flag->placeholder ? " "
                                  : "",
             flag->placeholder, optional ? "]" : "", negated ? ", --no-" : "", negated ? flag->name : "");
}

void flag_value(const Flag *flag, const Config *config, char text[FLAG_TEXT_LENGTH]) {
    const void *field = (const char *)config + flag->offset;
    int number = 0;
    text[0] = '\0';
    switch (flag->kind) {
    case FLAG_INT: snprintf(text, FLAG_TEXT_LENGTH, "%d", *(const int *)field); break;
    case FLAG_INT64: snprintf(text, FLAG_TEXT_LENGTH, "%lld", (long long)*(const int64_t *)field); break;
    case FLAG_SEED: snprintf(text, FLAG_TEXT_LENGTH, "%llu", (unsigned long long)*(const uint64_t *)field); break;
    case FLAG_FLOAT: snprintf(text, FLAG_TEXT_LENGTH, "%g", (double)*(const float *)field); break;
    case FLAG_BOOL: snprintf(text, FLAG_TEXT_LENGTH, "%s", *(const bool *)field ? "on" : "off"); break;
    case FLAG_CHOICE:
        memcpy(&number, field, sizeof number);
        snprintf(text, FLAG_TEXT_LENGTH, "%s", choice_name(flag->placeholder, number).text);
        break;
    case FLAG_FORMAT:
        memcpy(&number, field, sizeof number);
        snprintf(text, FLAG_TEXT_LENGTH, "%s", format_name((Format)number));
        break;
    default: break;
    }
}

// Writes the default of a flag as --help shows it to text, or "" if the flag has no default.
static void default_text(const Flag *flag, const Config *defaults, char text[FLAG_TEXT_LENGTH]) {
    const char *shown = flag->default_shown ? flag->default_shown : "%s";
    char value[FLAG_TEXT_LENGTH] = "";
    const bool has_value = strncmp(shown, "%s", 2) == 0;
    if (has_value) flag_value(flag, defaults, value);
    snprintf(text, FLAG_TEXT_LENGTH, "%.80s%s", value, has_value ? shown + 2 : shown);
}

// Prints `text` wrapped at spaces and indented to column `column`. The first line begins with the label.
static void print_wrapped(FILE *out, const char *label, int column, const char *text) {
    int width = terminal_columns(fileno(out));
    if (width == 0 || width > MAX_LINE) width = MAX_LINE;
    if (width < MIN_LINE) width = MIN_LINE;
    print_folded(out, label, column, width - column, text, (int)strlen(text));
}

static void print_flag(FILE *out, const Flag *flag, const Config *defaults) {
    char name[FLAG_TEXT_LENGTH], label[FLAG_TEXT_LENGTH + 2], value[FLAG_TEXT_LENGTH], text[DESCRIPTION_LENGTH];
    const char *shorter = flag_short_name(flag->name);
    synopsis(flag, name);
    default_text(flag, defaults, value);
    snprintf(text, sizeof text, "%s%s%s%s%s%s%s", flag->help, *value || shorter ? " (" : "", *value ? "default " : "",
             value, *value && shorter ? "; " : "", shorter ? shorter : "", *value || shorter ? ")" : "");
    const bool fits = snprintf(label, sizeof label, "  %s", name) < TEXT_COLUMN - 1;
    if (!fits) fprintf(out, "%s\n", label);
    print_wrapped(out, fits ? label : "", TEXT_COLUMN, text);
}

// Prints example commands, which can be copied to a shell, and the syntax of flags.
static void print_introduction(FILE *out, const char *program) {
    char groups[FLAG_TEXT_LENGTH];
    const char *prepare = prepare_bytes_name();
    const bool installed = !strchr(prepare, '/'); // true if the shell finds the programs in its PATH
    const char *here = installed ? "" : "./";
    flag_group_list(groups);
    print_wrapped(out, "", 0, "Trains language models from token files. Make some token files:");
    fprintf(out, "%s --out data/tokens/mine %s\n", prepare, installed ? "--headers" : "coat");
    print_wrapped(out, "", 0, "Train a small model, sample from it, and plan a large one for 80 GB:");
    fprintf(out,
            "\n  %s%s --model d2 --tokenizer bytes --seq-len 128 --steps 100 \\\n"
            "      --train data/tokens/mine_train.bin --lr 3e-3 --lr-final 0 --out runs/mine\n"
            "  %s%s --out runs/mine --resume --prompt 'static '\n"
            "  %s%s --plan --model gpt2-xl --memory-limit 80GB\n\n",
            here, program, here, program, here, program);
    print_wrapped(out, "", 0,
                  "Write a flag as --flag value or --flag=value. If a flag is repeated, the last one counts; several "
                  "--train add up. Counts: 20000, 1e6; for TOKENS, k is 1024 and M is 1024 k; for STEPS, k is 1000 and "
                  "M is a million. Parentheses contain the default and llm.c's short flag.");
    fprintf(out, "--help GROUP prints one group of:\n");
    print_wrapped(out, "", 2, groups);
}

static void print_recipes(FILE *out) {
    static const char *const recipes[] = {
        "bf16: matmuls, saved activations and gradients in BF16; moments and master weights in FP32",
        "fp8-linear: as bf16, but the matmuls of the blocks are in FP8, which is faster",
        "coat: matmuls, saved activations and moments in FP8, moments with dynamic range expansion; master weights "
        "as the 16 bits that BF16 omits",
        "coat-paper: coat with the paper's settings, for reproduction: forward reads the saved FP8 values, operands "
        "have one scale per tensor, gradients are E5M2"};
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) print_wrapped(out, "", 2, recipes[i]);
}

void flags_help(FILE *out, const char *program, int group) {
    Config *defaults = (Config *)xcalloc(1, sizeof *defaults);
    int now = -1;
    config_defaults(defaults);
    if (group < 0) print_introduction(out, program);
    for (const Flag *flag = flag_table; flag->name; flag++) {
        if (group >= 0 && (int)flag->group != group) continue;
        if ((int)flag->group != now) fprintf(out, "%s%s\n", group < 0 ? "\n" : "", flag_group_name(flag->group));
        if ((int)flag->group != now && flag->group == GROUP_RECIPE) print_recipes(out);
        now = (int)flag->group;
        print_flag(out, flag, defaults);
    }
    free(defaults);
    if (group >= 0) return;
    char ignored[FLAG_TEXT_LENGTH];
    flag_short_ignored(ignored);
    fputs("\nllm.c's flags that are accepted without effect:\n", out);
    print_wrapped(out, "", 2, ignored);
    print_wrapped(out, "", 0,
                  "Exit codes: 0 done or stopped as requested, 1 wrong flags, 2 data or files, 3 device, 4 training "
                  "diverged, 5 lost a process, 128 + N after a second signal N");
}

// Prints one cell of a Markdown table, as code if `code`. Escapes '|', which would otherwise end the cell.
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
    char text[FLAG_TEXT_LENGTH];
    int group = -1;
    config_defaults(defaults);
    fputs("| Flag | Default | llm.c | Meaning |\n| --- | --- | --- | --- |\n", out);
    for (const Flag *flag = flag_table; flag->name; flag++) {
        const char *shorter = flag_short_name(flag->name);
        if ((int)flag->group != group) fprintf(out, "| **%s** | | | |\n", flag_group_name(flag->group));
        group = (int)flag->group;
        synopsis(flag, text);
        print_cell(out, text, true);
        default_text(flag, defaults, text);
        print_cell(out, text, false);
        print_cell(out, shorter ? shorter : "", true);
        print_cell(out, flag->help, false);
        fputs("|\n", out);
    }
    free(defaults);
}
