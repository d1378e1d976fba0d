// What else is made from the table of flags: a Markdown table, a man page, bash's completion.
#include "flags.h"

#include <ctype.h>

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
        flag_synopsis(&table[i], synopsis);
        flag_default(&table[i], defaults, value);
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
    char synopsis[FLAG_TEXT_LENGTH], text[FLAG_DESCRIPTION_LENGTH];
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
    roff_line(
        out, "",
        "A flag takes its value as --flag value or --flag=value; the last repetition wins, but all --train count. "
        "Counts: 20000, 1e6; of TOKENS k is 1024 and M 1024 k, of STEPS k is 1000 and M a million. In parentheses: the "
        "default, and the short flag that llm.c has for the same.");
    flag_short_ignored(synopsis);
    snprintf(text, sizeof text, "llm.c's flags that are accepted without effect: %s", synopsis);
    roff_line(out, "", text);
    fputs(".SH OPTIONS\n", out);
    for (int i = 0; i < count; i++) {
        if ((int)table[i].group != group) roff_line(out, ".SS ", flag_group_name(table[i].group));
        group = (int)table[i].group;
        flag_synopsis(&table[i], synopsis);
        flag_describe(&table[i], defaults, text);
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
    char groups[FLAG_TEXT_LENGTH];
    flag_group_list(groups);
    char *to = groups; // without the commas
    for (const char *from = groups; (*to = *from); from++) to += *from != ',';
    fputs("choices='", out);
    for (const char *p = placeholder; *p;) {
        const int length = (int)strcspn(p, "|");
        if (strncmp(p, "GROUP", 5) == 0)
            fprintf(out, "%s%s", between, groups), between = " ";
        else if (strncmp(p, "NAME", 4) == 0) // of --model
            fprintf(out, "%sgpt2 gpt2-medium gpt2-large gpt2-xl d2 d12", between), between = " ";
        else if (!isupper((unsigned char)*p))
            fprintf(out, "%s%.*s", between, length, p), between = " ";
        else if (strncmp(p, "DIR", 3) == 0)
            paths = "-d";
        else if (strncmp(p, "FILE", 4) == 0 || strncmp(p, "GLOB", 4) == 0 || strncmp(p, "PATH", 4) == 0)
            paths = "-f";
        p += length + (p[length] == '|');
    }
    fprintf(out, "' paths=%s", paths);
}

// "    --name | -n | --name=) choices='' paths=-f ;;", with those of the forms that take a value.
static void print_value_case(FILE *out, const Flag *flag) {
    const bool same_values = flag->kind != FLAG_CHOICE; // llm.c's -w has others than --master
    const char *shorter = same_values && flag_needs_value(flag) ? flag_short_name(flag->name) : NULL;
    fputs("    ", out);
    if (flag_needs_value(flag) || flag->kind == FLAG_HELP) fprintf(out, "--%s | ", flag->name);
    if (shorter) fprintf(out, "%s | ", shorter);
    fprintf(out, "--%s=) ", flag->name);
    print_completion(out, flag->placeholder);
    fputs(" ;;\n", out);
}

// What stands behind no flag: flags, or another file of a list that has begun.
static void print_other_case(FILE *out) {
    int count;
    const Flag *table = flag_table(&count);
    fputs("    *) choices='", out);
    for (int i = 0; i < count; i++) {
        fprintf(out, i ? " --%s" : "--%s", table[i].name);
        if (flag_has_negation(&table[i])) fprintf(out, " --no-%s", table[i].name);
    }
    fputs("'\n"
          "        while [[ ${COMP_WORDS[--at]} != -* ]] && ((at > 0)); do :; done\n"
          "        case $word:${COMP_WORDS[at]} in\n"
          "        -*) ;;\n"
          "        ",
          out);
    const char *between = "";
    for (int i = 0; i < count; i++) {
        const char *shorter = flag_short_name(table[i].name);
        if (!flag_takes_list(&table[i])) continue;
        fprintf(out, "%s*:--%s", between, table[i].name), between = " | ";
        if (shorter) fprintf(out, " | *:%s", shorter);
    }
    fputs(") choices='' paths=-f ;;\n"
          "        esac ;;\n",
          out);
}

void flags_help_bash(FILE *out, const char *program) {
    int count;
    const Flag *table = flag_table(&count);
    fprintf(
        out,
        "# bash's completion for %s, made by %s --help=bash\n"
        "_complete_%s() {\n"
        "    local word=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD - 1]} choices paths= at=$COMP_CWORD\n"
        "    if [[ $word == = ]]; then word='' flag+='='; elif [[ $flag == = ]]; then\n"
        "        flag=${COMP_WORDS[COMP_CWORD - 2]}=\n"
        "    fi\n"
        "    case $flag in\n",
        program, program, program);
    for (int i = 0; i < count; i++)
        if (*table[i].placeholder) print_value_case(out, &table[i]);
    print_other_case(out);
    fprintf(out,
            "    esac\n"
            "    mapfile -t COMPREPLY < <(compgen -W \"$choices\" -- \"$word\"\n"
            "        [[ -z $paths ]] || compgen $paths -- \"$word\")\n"
            "    [[ -z $paths ]] || compopt -o filenames 2>/dev/null\n"
            "}\n"
            "complete -F _complete_%s %s\n",
            program, program);
}
