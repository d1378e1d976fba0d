// Prints notes, warnings and the items of the start-up report, wrapped to the terminal's width.
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/c_linkage.h"

C_LINKAGE_BEGIN

// Prints an item of the start-up report: the label, then the text, indented and wrapped at spaces. Uses the width of
// the terminal, at most 79 columns; 79 columns if the output is not a terminal.
void print_item(FILE *out, const char *label, const char *text);

// Prints the first `length` bytes of text, wrapped at spaces into lines of at most `room` columns, each indented by
// `indent` columns. The label is printed in the indentation of the first line.
void print_folded(FILE *out, const char *label, int indent, int room, const char *text, int length);

// Prints text after a label such as "note: ", "error: " or "". Wraps the text at spaces if the output is a terminal;
// otherwise prints one line.
void print_labelled(FILE *out, const char *label, const char *text);

// Formats a text of at most 16383 bytes and prints it as print_labelled() does. print_remark() prints to stderr.
void print_remark_of(FILE *out, const char *label, const char *format, va_list args);
__attribute__((format(printf, 2, 3))) void print_remark(const char *label, const char *format, ...);

// Prints each line of `notes` as print_labelled() does. Every line begins with "note: " and ends with a newline. The
// last line may be truncated, because the buffer of `notes` may be full.
void print_notes(FILE *out, const char *notes);

// Returns the width in columns of the terminal that fd is connected to (80 if it is unknown); 0 if fd is not a
// terminal. Also returns 0 if a launcher such as mpirun started this process, because fd may then be a terminal that
// only the launcher reads.
int terminal_columns(int fd);

// True if output to fd should be colored: on a terminal other than "dumb", or anywhere if CLICOLOR_FORCE is set and not
// 0 (bixense.com/clicolors). False if NO_COLOR is set and not empty (no-color.org).
bool terminal_colours(int fd);

#define COLOUR_BOLD "\033[1m"
#define COLOUR_GREEN "\033[32m"
#define COLOUR_RED "\033[31m"
#define COLOUR_END "\033[0m"

void format_duration(char *text, size_t size, double seconds); // writes 3725 seconds as "1:02:05"
void format_count(char *text, size_t size, double value);      // writes 1234567 as "1,234,567"

C_LINKAGE_END
