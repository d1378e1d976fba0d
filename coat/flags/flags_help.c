// --help and --help GROUP, made from the table of flags.
#include "flags.h"
#include "io/files.h"
#include "log/step_line.h"

#include <strings.h>

enum { WIDEST_LINE = 80, NARROWEST_LINE = 48, TEXT_COLUMN = 28 };

void flag_synopsis(const Flag *flag, char text[FLAG_TEXT_LENGTH]) {
    bool optional = flag->kind == FLAG_RESUME || flag->kind == FLAG_PLAN || flag->kind == FLAG_HELP;
    if (flag->kind == FLAG_BOOL)
        snprintf(text, FLAG_TEXT_LENGTH, "--%s, --no-%s", flag->name, flag->name);
    else if (optional)
        snprintf(text, FLAG_TEXT_LENGTH, "--%s[=%s]", flag->name, flag->placeholder);
    else
        snprintf(text, FLAG_TEXT_LENGTH, "--%s%s%s", flag->name, *flag->placeholder ? " " : "", flag->placeholder);
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

void flag_default(const Flag *flag, const Config *defaults, char text[FLAG_TEXT_LENGTH]) {
    const char *shown = flag->default_shown;
    const bool has_value = !shown || strncmp(shown, "%s", 2) == 0;
    text[0] = '\0';
    if (has_value) flag_value(flag, defaults, text);
    size_t used = strlen(text);
    if (shown) snprintf(text + used, FLAG_TEXT_LENGTH - used, "%s", has_value ? shown + 2 : shown);
}

void flag_describe(const Flag *flag, const Config *defaults, char text[FLAG_DESCRIPTION_LENGTH]) {
    char value[FLAG_TEXT_LENGTH], extra[2 * FLAG_TEXT_LENGTH] = "";
    const char *shorter = flag_short_name(flag->name);
    flag_default(flag, defaults, value);
    if (*value && shorter)
        snprintf(extra, sizeof extra, " (default %s; %s)", value, shorter);
    else if (*value)
        snprintf(extra, sizeof extra, " (default %s)", value);
    else if (shorter)
        snprintf(extra, sizeof extra, " (%s)", shorter);
    snprintf(text, FLAG_DESCRIPTION_LENGTH, "%s%s", flag->help, extra);
}

// Prints text from the given column on, broken at blanks; `at` is the column where the line stands now.
static void print_wrapped(FILE *out, const char *text, int column, int at) {
    int width = terminal_columns(fileno(out));
    if (width == 0 || width > WIDEST_LINE) width = WIDEST_LINE;
    if (width < NARROWEST_LINE) width = NARROWEST_LINE;
    while (*text) {
        int room = width - column, length = (int)strlen(text), cut = length;
        if (length > room)
            for (cut = room; cut > 0 && text[cut] != ' ';) cut--;
        if (cut == 0) cut = room;
        fprintf(out, "%*s%.*s\n", column - at, "", cut, text);
        text += cut + (text[cut] == ' ');
        at = 0;
    }
}

static void print_flag(FILE *out, const Flag *flag, const Config *defaults) {
    char synopsis[FLAG_TEXT_LENGTH], description[FLAG_DESCRIPTION_LENGTH];
    flag_synopsis(flag, synopsis);
    flag_describe(flag, defaults, description);
    int at = fprintf(out, "  %s", synopsis);
    if (at >= TEXT_COLUMN - 1) {
        fputc('\n', out);
        at = 0;
    }
    print_wrapped(out, description, TEXT_COLUMN, at);
}

// What is read first: commands that work as they are, and how flags are written.
static void print_top(FILE *out, const char *program) {
    char groups[FLAG_TEXT_LENGTH];
    const char *prepare = prepare_bytes_name();
    const bool installed = !strchr(prepare, '/'); // then it is found by its name, as this program is
    const char *here = installed ? "" : "./";
    flag_group_list(groups);
    print_wrapped(out, "Trains language models from token files. With those that are made by", 0, 0);
    fprintf(out, "%s --out data/tokens/mine %s\n", prepare, installed ? "--headers" : "coat");
    print_wrapped(out, "this trains a small one, lets it write, and plans a large one (80 GB of GPU):", 0, 0);
    fprintf(out,
            "\n  %s%s --model d2 --tokenizer bytes --seq-len 128 --steps 100 \\\n"
            "      --train data/tokens/mine_train.bin --lr 3e-3 --lr-final 0 --out runs/mine\n"
            "  %s%s --out runs/mine --resume --prompt 'static '\n"
            "  %s%s --plan --model gpt2-xl --memory-limit 80GB\n\n",
            here, program, here, program, here, program);
    print_wrapped(out,
                  "A flag takes its value as --flag value or --flag=value; the last repetition wins, but all --train "
                  "count. Counts: 20000, "
                  "1e6; of TOKENS k is 1024 and M 1024 k, of STEPS k is 1000 and M a million. In parentheses: the "
                  "default, and llm.c's short flag for the same.",
                  0, 0);
    fprintf(out, "One group alone: --help GROUP, of\n");
    print_wrapped(out, groups, 2, 0);
}

static void print_recipes(FILE *out) {
    print_wrapped(
        out, "bf16: matmuls, what is saved for backward, and gradients in BF16; moments and master weights in FP32", 2,
        0);
    print_wrapped(out,
                  "fp8-linear: as bf16, but the blocks' matmuls take FP8 codes, which are faster; what is saved "
                  "stays BF16",
                  2, 0);
    print_wrapped(out,
                  "coat: FP8 matmuls, saved activations and moments (with dynamic range expansion); master weights as "
                  "the 16 bits that BF16 lacks",
                  2, 0);
    print_wrapped(out,
                  "coat-paper: coat with the paper's choices, for reproduction: forward reads the saved FP8 values, "
                  "operands have one scale per tensor, gradients are E5M2",
                  2, 0);
}

void flags_help(FILE *out, const char *program, int group) {
    Config *defaults = (Config *)xcalloc(1, sizeof *defaults);
    int count, now = -1;
    const Flag *table = flag_table(&count);
    config_defaults(defaults);
    if (group < 0) print_top(out, program);
    for (int i = 0; i < count; i++) {
        if (group >= 0 && (int)table[i].group != group) continue;
        if ((int)table[i].group != now) fprintf(out, "%s%s\n", group < 0 ? "\n" : "", flag_group_name(table[i].group));
        if ((int)table[i].group != now && table[i].group == GROUP_RECIPE) print_recipes(out);
        now = (int)table[i].group;
        print_flag(out, &table[i], defaults);
    }
    free(defaults);
    if (group >= 0) return;
    char ignored[FLAG_TEXT_LENGTH];
    flag_short_ignored(ignored);
    fputs("\nllm.c's flags that are accepted without effect:\n", out);
    print_wrapped(out, ignored, 2, 0);
    print_wrapped(
        out,
        "Exit codes: 0 done or ended as asked, 1 wrong flags, 2 data or files, 3 device, 4 training diverged, "
        "5 lost a process, 128 + the number of a repeated signal",
        0, 0);
}
