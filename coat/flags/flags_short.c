// Replaces llm.c's one- and two-letter flags with long flags of the same meaning, before flags are parsed. Each short
// flag requires a value.
#include "flags.h"

#include <unistd.h>

typedef enum {
    SHORT_VALUE,      // passes the value to the long flag `target`
    SHORT_DEFAULT,    // as SHORT_VALUE, but passes 0 instead of -1, llm.c's "default"
    SHORT_SWITCH,     // value 1 becomes the long flag `target`, value 0 becomes `off`
    SHORT_FILE,       // with value 1, passes the file `off`, if it exists, to `target`; with value 0, has no effect
    SHORT_DESCRIPTOR, // passes dN as gpt2:dN, because d60, d72 and d84 have other widths in llm.c than in this program
    SHORT_IGNORED     // is accepted but has no effect
} ShortKind;

typedef struct {
    const char *name;
    ShortKind kind;
    const char *target; // long flag, without dashes except for a SHORT_SWITCH
    const char *off;    // SHORT_SWITCH: the long flag for value 0; SHORT_FILE: the file's path
    const char *note;   // note that is printed if a value above 0 has no effect; "": no note
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
     "HellaSwag is not evaluated, because dev/data/hellaswag/hellaswag_val.bin is missing; use --hellaswag FILE"},
    {"-lg", SHORT_IGNORED, "", "", "the GPU's clocks and power are not logged"},
    {"-f", SHORT_IGNORED, "", "", ""},  // TF32 is never used
    {"-ge", SHORT_IGNORED, "", "", ""}, // the recipe alone decides which operations are fused
    {"-pg", SHORT_IGNORED, "", "", ""}, // the launcher assigns the GPUs
    {"-pi", SHORT_IGNORED, "", "", ""}, // no flag is needed for processes to find each other
    {"-pf", SHORT_IGNORED, "", "", ""},
};

#define TABLE_COUNT ((int)(sizeof table / sizeof table[0]))

// Returns the table row of the short flag `text`, or NULL if there is none.
static const Short *short_find(const char *text) {
    for (int i = 0; i < TABLE_COUNT; i++)
        if (strcmp(text, table[i].name) == 0) return &table[i];
    return NULL;
}

bool flag_is_short(const char *text) {
    return short_find(text) != NULL;
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

// Adds the note of short flag `s`, which has no effect, to args. A value of 0 or less requests nothing, so such a value
// gets no note.
static void add_note(Arguments *args, const Short *s, const char *value) {
    if (!*s->note || value[0] == '0' || value[0] == '-') return;
    text_append(args->notes, args->notes_size, "note: %s %s: %s\n", s->name, value, s->note);
}

static bool rewrite_short(Arguments *args, const Short *s, const char *value, Error *err) {
    char descriptor[PATH_MAX_LENGTH + 8];
    const bool zero = strcmp(value, "0") == 0, one = strcmp(value, "1") == 0;
    if ((s->kind == SHORT_SWITCH || s->kind == SHORT_FILE) && !zero && !one)
        return error_set(err, EXIT_USER, "%s %s: must be 0 or 1", s->name, value);
    switch (s->kind) {
    case SHORT_VALUE: break;
    case SHORT_DEFAULT:
        if (strcmp(value, "-1") == 0) value = "0";
        break;
    case SHORT_DESCRIPTOR:
        if (value[0] != 'd' || !value[1] || value[1 + strspn(value + 1, "0123456789")]) break;
        snprintf(descriptor, sizeof descriptor, "gpt2:%s", value);
        value = descriptor;
        break;
    case SHORT_SWITCH: {
        const char *flag = (one ? s->target : s->off) + strlen("--");
        if (strcmp(s->target, "--resume") == 0) args->may_start = one;
        arguments_append(args, flag, strlen(flag), NULL);
        return true;
    }
    case SHORT_FILE:
        if (zero) return true;
        if (access(s->off, F_OK) != 0) {
            add_note(args, s, value);
            return true;
        }
        value = s->off;
        break;
    case SHORT_IGNORED: add_note(args, s, value); return true;
    }
    arguments_append(args, s->target, strlen(s->target), value);
    return true;
}

// Sets err for a short flag that lacks its value. The messages for -h and -v also name --help and --version.
static bool needs_value(const Short *s, Error *err) {
    const char *hint = strcmp(s->name, "-h") == 0   ? "; use --help for the list of flags"
                       : strcmp(s->name, "-v") == 0 ? "; use --version for the version"
                                                    : "";
    bool negated;
    const Flag *flag = flag_find(s->target, strlen(s->target), &negated);
    if (flag)
        return error_set(err, EXIT_USER, "%s needs a value: %s %s, which is --%s %s%s", s->name, s->name,
                         flag->placeholder, flag->name, flag->placeholder, hint);
    if (s->kind == SHORT_IGNORED)
        return error_set(err, EXIT_USER, "%s: this flag of llm.c has no effect in this program; remove it", s->name);
    return error_set(err, EXIT_USER, "%s needs a value: 1 for %s, 0 for %s", s->name, s->target, s->off);
}

bool arguments_add_short(Arguments *args, const char *name, const char *value, const Flag **flag, Error *err) {
    const Short *s = short_find(name);
    bool negated;
    if (!value) return needs_value(s, err);
    *flag = flag_find(s->target, strlen(s->target), &negated);
    return rewrite_short(args, s, value, err);
}
