// llm.c's one- and two-letter flags, rewritten to the long ones before parsing, with the meaning that they have
// there. Each takes one value.
#include "flags.h"

#include <unistd.h>

typedef enum {
    SHORT_VALUE,      // the value goes to the long flag as it is
    SHORT_DEFAULT,    // the same, but -1 means 0, "as if not given"
    SHORT_SWITCH,     // 0 or 1 chooses between two lists of long flags
    SHORT_FILE,       // 1: the value is llm.c's file `off`, where there is one; 0: nothing
    SHORT_DESCRIPTOR, // dN means gpt2:dN, which follows llm.c's table for every depth
    SHORT_IGNORED     // accepted without effect
} ShortKind;

typedef struct {
    const char *name;
    ShortKind kind;
    const char *target; // long flag; for a switch what 1 means, several flags separated by a blank
    const char *off;    // for a switch what 0 means; for a file its path
    const char *note;   // for what is asked for and ignored, or a file that is missing: what happens instead
} Short;

static const Short table[] = {
    {"-i", SHORT_VALUE, "train", "", ""},
    {"-j", SHORT_VALUE, "val", "", ""},
    {"-e", SHORT_DESCRIPTOR, "model", "", ""},
    {"-o", SHORT_VALUE, "out", "", ""},
    {"-n", SHORT_VALUE, "save-every", "", ""},
    {"-nk", SHORT_VALUE, "keep", "", ""},
    {"-nm", SHORT_VALUE, "keep-every", "", ""},
    {"-y", SHORT_SWITCH, "--resume", "--no-resume", ""},
    {"-b", SHORT_VALUE, "micro-batch", "", ""},
    {"-t", SHORT_VALUE, "seq-len", "", ""},
    {"-d", SHORT_DEFAULT, "batch-tokens", "", ""},
    {"-x", SHORT_VALUE, "steps", "", ""},
    {"-k", SHORT_VALUE, "schedule", "", ""},
    {"-l", SHORT_VALUE, "lr", "", ""},
    {"-u", SHORT_VALUE, "warmup", "", ""},
    {"-q", SHORT_VALUE, "lr-final", "", ""},
    {"-c", SHORT_VALUE, "weight-decay", "", ""},
    {"-sl", SHORT_VALUE, "skip-loss-z", "", ""},
    {"-sg", SHORT_VALUE, "skip-grad-z", "", ""},
    {"-v", SHORT_VALUE, "val-every", "", ""},
    {"-m", SHORT_VALUE, "val-batches", "", ""},
    {"-s", SHORT_VALUE, "sample-every", "", ""},
    {"-g", SHORT_VALUE, "sample-tokens", "", ""},
    {"-a", SHORT_SWITCH, "--overfit-one-batch", "--no-overfit-one-batch", ""},
    {"-w", SHORT_SWITCH, "--master=fp32", "--master=none", ""},
    {"-z", SHORT_VALUE, "zero", "", ""},
    {"-r", SHORT_VALUE, "recompute", "", ""},
    {"-pn", SHORT_VALUE, "world-size", "", ""},
    {"-pr", SHORT_VALUE, "rank", "", ""},
    {"-ps", SHORT_VALUE, "rendezvous", "", ""},
    {"-h", SHORT_FILE, "hellaswag", "dev/data/hellaswag/hellaswag_val.bin",
     "HellaSwag is not evaluated: dev/data/hellaswag/hellaswag_val.bin is missing; --hellaswag FILE names another"},
    {"-lg", SHORT_IGNORED, "", "", "the GPU's clocks and power are not logged"},
    {"-f", SHORT_IGNORED, "", "", ""},  // TF32 is never used
    {"-ge", SHORT_IGNORED, "", "", ""}, // what is fused depends on the recipe alone
    {"-pg", SHORT_IGNORED, "", "", ""}, // the launcher says which GPU is whose
    {"-pi", SHORT_IGNORED, "", "", ""}, // how processes meet is found out
    {"-pf", SHORT_IGNORED, "", "", ""},
};

#define TABLE_COUNT ((int)(sizeof table / sizeof table[0]))

static const Short *short_find(const char *name) {
    for (int i = 0; i < TABLE_COUNT; i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

bool flag_is_short(const char *text, size_t length) {
    for (int i = 0; i < TABLE_COUNT; i++)
        if (strlen(table[i].name) == length && strncmp(table[i].name, text, length) == 0) return true;
    return false;
}

const char *flag_short_name(const char *name) {
    size_t length = strlen(name);
    for (int i = 0; i < TABLE_COUNT; i++) {
        const Short *s = &table[i];
        const char *target = s->kind == SHORT_SWITCH ? s->target + 2 : s->target;
        if (strncmp(target, name, length) == 0 && (!target[length] || strchr(" =", target[length]))) return s->name;
    }
    return NULL;
}

void flag_short_ignored(char text[FLAG_TEXT_LENGTH]) {
    int used = 0;
    text[0] = '\0';
    for (int i = 0; i < TABLE_COUNT; i++)
        if (table[i].kind == SHORT_IGNORED)
            used += snprintf(text + used, FLAG_TEXT_LENGTH - (size_t)used, "%s%s", used ? " " : "", table[i].name);
}

static void append_all(Arguments *args, const char *flags) {
    while (*flags) {
        size_t length = strcspn(flags, " ");
        arguments_append(args, flags + 2, length - 2, NULL);
        flags += length + (flags[length] == ' ');
    }
}

static void add_note(Arguments *args, const Short *s, const char *value) {
    if (!*s->note || value[0] == '0' || value[0] == '-') return;
    text_append(args->notes, args->notes_size, "note: %s %s: %s\n", s->name, value, s->note);
}

static bool rewrite_short(Arguments *args, const Short *s, const char *value, Error *err) {
    char descriptor[PATH_MAX_LENGTH + 8];
    bool zero = strcmp(value, "0") == 0, one = strcmp(value, "1") == 0;
    switch (s->kind) {
    case SHORT_DEFAULT:
        if (strcmp(value, "-1") == 0) value = "0";
        break;
    case SHORT_DESCRIPTOR:
        if (value[0] != 'd' || !value[1] || value[1 + strspn(value + 1, "0123456789")]) break;
        snprintf(descriptor, sizeof descriptor, "gpt2:%s", value);
        value = descriptor;
        break;
    case SHORT_SWITCH:
        if (!zero && !one) return error_set(err, EXIT_USER, "%s %s: must be 0 or 1", s->name, value);
        if (strcmp(s->target, "--resume") == 0) args->may_start = one;
        append_all(args, one ? s->target : s->off);
        return true;
    case SHORT_FILE:
        if (!zero && !one) return error_set(err, EXIT_USER, "%s %s: must be 0 or 1", s->name, value);
        if (zero) return true;
        if (access(s->off, F_OK) != 0) {
            add_note(args, s, value);
            return true;
        }
        value = s->off;
        break;
    case SHORT_IGNORED: add_note(args, s, value); return true;
    case SHORT_VALUE: break;
    }
    arguments_append(args, s->target, strlen(s->target), value);
    return true;
}

// A short flag without its value, which may be another program's.
static bool needs_value(const Short *s, Error *err) {
    const char *hint = strcmp(s->name, "-h") == 0   ? " (for the list of flags write --help)"
                       : strcmp(s->name, "-v") == 0 ? " (for the version write --version)"
                                                    : "";
    bool negated;
    const Flag *flag = flag_find(s->target, strlen(s->target), &negated);
    if (flag)
        return error_set(err, EXIT_USER, "%s needs a value: %s %s, which is --%s %s%s", s->name, s->name,
                         flag->placeholder, flag->name, flag->placeholder, hint);
    if (s->kind == SHORT_IGNORED)
        return error_set(err, EXIT_USER, "%s needs a value: it is llm.c's, and without effect here; remove it",
                         s->name);
    return error_set(err, EXIT_USER, "%s needs a value: 1 for %s, 0 for %s", s->name, s->target, s->off);
}

bool arguments_add_short(Arguments *args, const char *name, const char *value, const Flag **flag, Error *err) {
    const Short *s = short_find(name);
    bool negated;
    if (!value) return needs_value(s, err);
    *flag = flag_find(s->target, strlen(s->target), &negated);
    return rewrite_short(args, s, value, err);
}
