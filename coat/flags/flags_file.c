// Reads the flags in a --config file, one flag with its values per line, in the syntax of the command line. Quotes make
// several words one value. '#' at the start of a word starts a comment. Variables and patterns are not expanded here.
#include "flags.h"

#include <ctype.h>

#include "io/files.h"

#define FILE_LIMIT ((size_t)1 << 20)

bool error_add_flag_source(const char *from, Error *err) {
    char text[sizeof err->text];
    if (!*from) return false;
    snprintf(text, sizeof text, "%s", err->text);
    return error_set(err, err->code, "%s%s", from, text);
}

// Splits a line into words, in place, and sets *count and words[0 .. *count). Fails if a quote is not closed or the
// line ends in a backslash.
static bool split(char *line, char **words, int *count, Error *err) {
    char *to = line;
    *count = 0;
    for (const char *at = line;;) {
        at += strspn(at, " \t\r");
        if (!*at || *at == '#') return true;
        char quote = 0;
        words[(*count)++] = to;
        for (; *at && (quote || !strchr(" \t\r", *at)); at++) {
            if (quote ? *at == quote : *at == '\'' || *at == '"')
                quote = quote ? 0 : *at;
            else
                *to++ = *at;
        }
        if (quote) return error_set(err, EXIT_USER, "a closing %c is missing", quote);
        if (at[-1] == '\\' && !at[strspn(at, " \t\r")])
            return error_set(err, EXIT_USER, "\\ does not join lines; write a flag and all its values on one line");
        at += *at != '\0';
        *to++ = '\0';
    }
}

// Checks the words of a line in a --config file. Fails if the line contains --config, or does not have the form "--flag
// value". For example, "lr 3e-4" and "--lr = 3e-4" fail.
static bool check_words(int count, char **words, Error *err) {
    const bool equals = count > 1 && strcmp(words[1], "=") == 0;
    const char *value = count > 1 + equals ? words[1 + equals] : "";
    const char *name = words[0] + strspn(words[0], "-");
    const int length = (int)strcspn(name, ":"); // excludes a colon after the name, as in YAML
    if ((words[0][0] != '-' || equals || name[length]) && !isalpha((unsigned char)name[0]))
        return error_set(err, EXIT_USER, "%s: write each line as on the command line, --flag value", words[0]);
    if (words[0][0] != '-' || equals || (name[length] && !strchr(name, '=')))
        return error_set(err, EXIT_USER, "%s: write the line as on the command line: --%.*s%s%s", words[0], length,
                         name, *value ? " " : "", value);
    for (int i = 0; i < count; i++)
        if (strcmp(words[i], "--config") == 0 || strncmp(words[i], "--config=", 9) == 0)
            return error_set(err, EXIT_USER,
                             "--config: a file of flags cannot contain --config; give both files on the command line");
    return true;
}

// Appends the flag in a line of a --config file to args. An error begins with args->source ("FILE:LINE: ").
static bool read_line(Arguments *args, char *line, Error *err) {
    int count;
    char **words = (char **)xmalloc((strlen(line) / 2 + 1) * sizeof *words);
    bool good = split(line, words, &count, err) && (count == 0 || check_words(count, words, err)) &&
                arguments_add(args, count, words, err);
    free(words);
    return good || error_add_flag_source(args->source, err);
}

bool arguments_read(Arguments *args, const char *path, Error *err) {
    char *text, source[PATH_MAX_LENGTH + 32];
    size_t size;
    if (!file_read_all(path, FILE_LIMIT, &text, &size, err)) return error_add_flag_source("--config: ", err);
    bool good = !memchr(text, 0, size) ||
                error_set(err, EXIT_DATA, "--config: %s is not a text file; write one flag per line", path);
    args->first = args->count;
    args->source = source;
    int number = 1;
    char *first = strncmp(text, "\xEF\xBB\xBF", 3) == 0 ? text + 3 : text; // skips the UTF-8 byte order mark
    for (char *line = first; good && *line; number++) {
        const size_t length = strcspn(line, "\n");
        const bool last = !line[length];
        line[length] = '\0';
        snprintf(source, sizeof source, "%s:%d: ", path, number);
        good = read_line(args, line, err);
        line += length + !last;
    }
    args->source = "";
    free(text);
    return good;
}
