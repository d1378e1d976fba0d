#include "terminal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "comm/comm.h"

static bool is_terminal(int fd) {
    return !comm_launched() && isatty(fd);
}

int terminal_columns(int fd) {
    struct winsize window;
    if (!is_terminal(fd)) return 0;
    if (ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) return window.ws_col;
    return 80;
}

bool terminal_colours(int fd) {
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM"), *force = getenv("CLICOLOR_FORCE");
    if (no_color && *no_color) return false;
    if (force && *force && strcmp(force, "0") != 0) return true;
    return is_terminal(fd) && !(term && strcmp(term, "dumb") == 0);
}

void format_duration(char *text, size_t size, double seconds) {
    int64_t s = seconds > 0.0 && seconds < 1e15 ? (int64_t)(seconds + 0.5) : 0;
    snprintf(text, size, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60), (int)(s % 60));
}

void format_count(char *text, size_t size, double value) {
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%.0f", value);
    size_t used = 0;
    for (int i = 0; i < length && used + 2 < size; i++) {
        if (i > 0 && (length - i) % 3 == 0) text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = '\0';
}

enum { TEXT_COLUMN = 12 }; // column in which the text of an item of the start-up report begins

// Prints the label, padded to `indent` columns, and the text as one line.
static void put_line(FILE *out, int indent, const char *label, const char *text, int length) {
    char *shown = strndup(text, (size_t)length);
    if (!shown) fatal(EXIT_DEVICE, "host memory: could not allocate a line of %d bytes", length);
    text_printable(shown, strlen(shown), "");
    fprintf(out, "%-*s%s\n", indent, label, shown);
    free(shown);
}

void print_folded(FILE *out, const char *label, int indent, int room, const char *text, int length) {
    for (const char *const end = text + length; text < end; label = "") {
        int cut = (int)(end - text);
        if (cut > room)
            for (cut = room; cut > 0 && text[cut] != ' ';) cut--;
        if (cut == 0) // a word that is longer than a line is not broken
            while (text + cut < end && text[cut] != ' ') cut++;
        put_line(out, indent, label, text, cut);
        text += cut + (text + cut < end);
    }
}

void print_item(FILE *out, const char *label, const char *text) {
    enum { MAX_WIDTH = 79 };
    const int columns = terminal_columns(fileno(out));
    const int width = columns > 2 * TEXT_COLUMN && columns < MAX_WIDTH ? columns : MAX_WIDTH;
    print_folded(out, label, TEXT_COLUMN, width - TEXT_COLUMN, text, (int)strlen(text));
}

static void print_line(FILE *out, const char *label, const char *text, int length) {
    const int columns = terminal_columns(fileno(out)), indent = (int)strlen(label);
    if (columns > 2 * TEXT_COLUMN)
        print_folded(out, label, indent, columns - indent, text, length);
    else
        put_line(out, 0, label, text, length);
}

void print_labelled(FILE *out, const char *label, const char *text) {
    print_line(out, label, text, (int)strlen(text));
}

void print_remark_of(FILE *out, const char *label, const char *format, va_list args) {
    char text[4 * 4096]; // size for several paths
    vsnprintf(text, sizeof text, format, args);
    print_labelled(out, label, text);
}

void print_remark(const char *label, const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_remark_of(stderr, label, format, args);
    va_end(args);
}

void print_notes(FILE *out, const char *notes) {
    const char label[] = "note: ";
    while (*notes) {
        const size_t length = strcspn(notes, "\n"), skipped = length < strlen(label) ? length : strlen(label);
        print_line(out, label, notes + skipped, (int)(length - skipped));
        notes += length + (notes[length] == '\n');
    }
}
