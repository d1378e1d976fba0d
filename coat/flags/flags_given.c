// Reads the flags on the command line and in --config files. Stores each flag as one text, --NAME=VALUE; a list of
// words becomes one value.
#include "flags.h"

// Removes the flags --NAME and --NAME-weight that earlier sources gave, because a list from a new source replaces older
// lists.
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

// Adds a word to the list of the last appended flag.
static void extend(Arguments *args, const char *word) {
    char **last = &args->text[args->count - 1];
    const size_t size = strlen(*last) + strlen(word) + 2;
    char *joined = (char *)xmalloc(size);
    snprintf(joined, size, "%s\n%s", *last, word);
    free(*last);
    *last = joined;
}

void arguments_append(Arguments *args, const char *name, size_t length, const char *value) {
    size_t size = length + (value ? strlen(value) : 0) + 4;
    char *text = (char *)xmalloc(size);
    bool negated;
    const Flag *flag = flag_find(name, strcspn(name, "="), &negated);
    if (flag && flag_takes_list(flag)) drop_before(args, flag->name, strlen(flag->name));
    if (args->count == args->capacity) {
        args->capacity = 2 * args->capacity + 64;
        args->text = (char **)realloc(args->text, (size_t)args->capacity * sizeof *args->text);
        args->from = (char **)realloc(args->from, (size_t)args->capacity * sizeof *args->from);
        if (!args->text || !args->from) fatal(EXIT_DEVICE, "could not allocate host memory for the flags");
    }
    snprintf(text, size, "--%.*s%s%s", (int)length, name, value ? "=" : "", value ? value : "");
    const size_t from_size = strlen(args->source) + 1;
    args->from[args->count] = (char *)memcpy(xmalloc(from_size), args->source, from_size);
    args->text[args->count++] = text;
}

// True if `text`, the word after a flag that needs a value, is a flag itself or NULL, so that the value is missing.
static bool is_flag(const char *text) {
    return !text || strncmp(text, "--", 2) == 0 || flag_is_short(text);
}

// If the flag is --train-weight, checks that a --train from the same source precedes it.
static bool check_weight(const Arguments *args, const Flag *flag, const char *value, Error *err) {
    bool elsewhere = false;
    if (flag->kind != FLAG_WEIGHT) return true;
    for (int i = 0; i < args->count; i++) {
        const bool train = strncmp(args->text[i], "--train=", 8) == 0;
        if (train && i >= args->first) return true;
        elsewhere = elsewhere || train;
    }
    return error_set(err, EXIT_USER, "--%s %s: no --train precedes it%s; write it after the --train that it belongs to",
                     flag->name, value, elsewhere ? " in the same source (--config file or command line)" : "");
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
    arguments_append(args, name, alone ? strlen(name) : length, alone ? NULL : next);
    *took_next = !alone;
    return true;
}

// Sets err for a word that is neither a flag nor a flag's value. If the preceding flag `before` accepts the word after
// '=', err suggests that form. Returns false.
static bool stray_value(const char *text, const char *before, Error *err) {
    bool negated = false, dashes = strncmp(before, "--", 2) == 0;
    const Flag *flag = dashes ? flag_find(before + 2, strlen(before + 2), &negated) : NULL;
    if (flag && *flag->placeholder && !negated) {
        Config *unused = (Config *)xcalloc(1, sizeof *unused);
        const bool good = flag_set(flag, unused, text, false, err);
        free(unused);
        return good ? error_set(err, EXIT_USER, "%s %s: write the value as %s=%s", before, text, before, text) : false;
    }
    if (flag && flag_has_negation(flag))
        return error_set(err, EXIT_USER, "%s: not a flag, and %s takes no value; write --%s or --no-%s", text, before,
                         flag->name, flag->name);
    if (flag) return error_set(err, EXIT_USER, "%s: not a flag, and %s takes no value", text, before);
    return error_set(err, EXIT_USER, "%s: not a flag; flags begin with -- and --help lists them all", text);
}

bool arguments_add(Arguments *args, int count, char **words, Error *err) {
    const Flag *flag = NULL; // flag that precedes the current word
    for (int i = 0; i < count; i++) {
        const char *text = words[i], *next = i + 1 < count ? words[i + 1] : NULL;
        bool took_next = true;
        if (strncmp(text, "--", 2) == 0 && text[2]) {
            if (!rewrite_long(args, text, next, &flag, &took_next, err)) return false;
        } else if (flag_is_short(text)) {
            if (!arguments_add_short(args, text, is_flag(next) ? NULL : next, &flag, err)) return false;
        } else if (text[0] == '-') {
            return flag_unknown(text, err);
        } else if (flag && flag_takes_list(flag) && text[0]) { // the shell has expanded an unquoted pattern
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
