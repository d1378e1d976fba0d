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

// A list replaces those of the files of flags that were read before it, and their weights.
static void drop_before(Arguments *args, const char *name, size_t length) {
    int kept = 0;
    for (int i = 0; i < args->count; i++) {
        const char *text = args->text[i] + 2;
        const bool same = strncmp(text, name, length) == 0;
        if (i < args->first && same && (text[length] == '=' || strncmp(text + length, "-weight=", 8) == 0)) {
            free(args->text[i]);
            free(args->from[i]);
            continue;
        }
        args->text[kept] = args->text[i];
        args->from[kept++] = args->from[i];
    }
    args->first -= args->count - kept;
    args->count = kept;
}

// Another word of the list that was appended last.
static void extend(Arguments *args, const char *word) {
    char **last = &args->text[args->count - 1];
    const size_t size = strlen(*last) + strlen(word) + 2;
    char *joined = (char *)xmalloc(size);
    snprintf(joined, size, "%s\n%s", *last, word);
    free(*last);
    *last = joined;
}

// Appends "--name=value", or "--name" where value is NULL; name is given by its length.
static void append(Arguments *args, const char *name, size_t length, const char *value) {
    size_t size = length + (value ? strlen(value) : 0) + 4;
    char *text = (char *)xmalloc(size);
    bool negated;
    const Flag *flag = flag_find(name, strcspn(name, "="), &negated);
    if (flag && flag_takes_list(flag)) drop_before(args, flag->name, strlen(flag->name));
    if (args->count == args->capacity) {
        args->capacity = 2 * args->capacity + 64;
        args->text = (char **)realloc(args->text, (size_t)args->capacity * sizeof *args->text);
        args->from = (char **)realloc(args->from, (size_t)args->capacity * sizeof *args->from);
        if (!args->text || !args->from) fatal(EXIT_DEVICE, "host memory: could not allocate room for the flags");
    }
    snprintf(text, size, "--%.*s%s%s", (int)length, name, value ? "=" : "", value ? value : "");
    const size_t from_size = strlen(args->source) + 1;
    args->from[args->count] = (char *)memcpy(xmalloc(from_size), args->source, from_size);
    args->text[args->count++] = text;
}

static void append_all(Arguments *args, const char *flags) {
    while (*flags) {
        size_t length = strcspn(flags, " ");
        append(args, flags + 2, length - 2, NULL);
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
    append(args, s->target, strlen(s->target), value);
    return true;
}

// Whether `text` stands where a value is wanted but is the next flag.
static bool is_flag(const char *text) {
    return !text || strncmp(text, "--", 2) == 0 || short_find(text);
}

// A weight is of the --train before it in the same place: what stands in another keeps its own.
static bool check_weight(const Arguments *args, const Flag *flag, const char *value, Error *err) {
    bool elsewhere = false;
    if (flag->kind != FLAG_WEIGHT) return true;
    for (int i = 0; i < args->count; i++) {
        const bool train = strncmp(args->text[i], "--train=", 8) == 0;
        if (train && i >= args->first) return true;
        elsewhere = elsewhere || train;
    }
    return error_set(err, EXIT_USER, "--%s %s: no --train stands before it%s; write it behind the one that it is of",
                     flag->name, value, elsewhere ? " here, and that of --config keeps what the file says" : "");
}

static bool rewrite_long(Arguments *args, const char *text, const char *next, const Flag **flag, bool *took_next,
                         Error *err) {
    const char *name = text + 2;
    size_t length = strcspn(name, "=");
    bool negated;
    const Flag *found = *flag = flag_find(name, length, &negated);
    *took_next = false;
    if (!found) return flag_unknown(text, err);
    const bool optional = found->kind == FLAG_HELP && next && next[0] != '-';
    const bool alone = name[length] || (!flag_needs_value(found) && !optional);
    if (!alone && is_flag(next))
        return error_set(err, EXIT_USER, "--%s needs a value: --%s %s", found->name, found->name, found->placeholder);
    if (!check_weight(args, found, name[length] ? name + length + 1 : next, err)) return false;
    append(args, name, alone ? strlen(name) : length, alone ? NULL : next);
    *took_next = !alone;
    return true;
}

// A value that no flag takes; perhaps one that must be written with '=', which is told where it would be taken then.
static bool stray_value(const char *text, const char *before, Error *err) {
    bool negated = false, dashes = strncmp(before, "--", 2) == 0;
    const Flag *flag = dashes ? flag_find(before + 2, strlen(before + 2), &negated) : NULL;
    if (flag && *flag->placeholder && !negated) {
        Config *unused = (Config *)xcalloc(1, sizeof *unused);
        const bool good = flag_set(flag, unused, text, false, err);
        free(unused);
        return good ? error_set(err, EXIT_USER, "%s %s: write %s=%s", before, text, before, text) : false;
    }
    if (flag && flag_has_negation(flag))
        return error_set(err, EXIT_USER, "%s: not a flag, and %s takes no value; write --%s or --no-%s", text, before,
                         flag->name, flag->name);
    if (flag) return error_set(err, EXIT_USER, "%s: not a flag, and %s takes no value", text, before);
    return error_set(err, EXIT_USER, "%s: not a flag; flags begin with -- and --help lists them all", text);
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
        return error_set(err, EXIT_USER, "%s needs a value: it is llm.c's, and without effect here; leave it away",
                         s->name);
    return error_set(err, EXIT_USER, "%s needs a value: 1 for %s, 0 for %s", s->name, s->target, s->off);
}

bool arguments_add(Arguments *args, int count, char **words, Error *err) {
    const Flag *flag = NULL; // the last one
    for (int i = 0; i < count; i++) {
        const char *text = words[i], *next = i + 1 < count ? words[i + 1] : NULL;
        const Short *s = short_find(text);
        bool took_next = true, negated;
        if (strncmp(text, "--", 2) == 0 && text[2]) {
            if (!rewrite_long(args, text, next, &flag, &took_next, err)) return false;
        } else if (s) {
            if (is_flag(next)) return needs_value(s, err);
            if (!rewrite_short(args, s, next, err)) return false;
            flag = flag_find(s->target, strlen(s->target), &negated);
        } else if (text[0] == '-') {
            return flag_unknown(text, err);
        } else if (flag && flag_takes_list(flag) && text[0]) { // as the shell makes of a pattern without quotes
            extend(args, text);
            took_next = false;
        } else {
            return stray_value(text, i > 0 ? words[i - 1] : "", err);
        }
        i += took_next;
    }
    return true;
}

bool arguments_rewrite(Arguments *args, int argc, char **argv, char *notes, size_t notes_size, Error *err) {
    memset(args, 0, sizeof *args);
    args->source = "";
    args->notes = notes;
    args->notes_size = notes_size;
    for (int i = 1; i < argc; i++) {
        const char *file = strncmp(argv[i], "--config=", 9) == 0              ? argv[i] + 9
                           : strcmp(argv[i], "--config") == 0 && i + 1 < argc ? argv[i + 1]
                                                                              : "";
        if (*file && !is_flag(file) && !arguments_read(args, file, err)) return false;
    }
    args->first = args->count;
    return argc < 2 || arguments_add(args, argc - 1, argv + 1, err);
}

void arguments_free(Arguments *args) {
    for (int i = 0; i < args->count; i++) {
        free(args->text[i]);
        free(args->from[i]);
    }
    free(args->text);
    free(args->from);
    memset(args, 0, sizeof *args);
}
