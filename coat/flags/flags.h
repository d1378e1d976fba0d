// The table of command-line flags: parsing, --help and the reference all derive from it. Internal to the
// config modules; everyone else reads the Config.
#pragma once
#include <stddef.h>

#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    FLAG_INT,       // int
    FLAG_INT64,     // int64_t
    FLAG_SEED,      // uint64_t
    FLAG_FLOAT,     // float
    FLAG_STRING,    // char[]
    FLAG_BOOL,      // bool: --x, --no-x, no value
    FLAG_CHOICE,    // an enum whose values 0, 1, ... have the names in the placeholder "a|b|c"
    FLAG_FORMAT,    // a Format, one of the names in the placeholder
    FLAG_BYTES,     // int64_t bytes, with units
    FLAG_TOKENIZER, // bytes, gpt2 or a file
    FLAG_TRAIN,     // one more set of training data
    FLAG_WEIGHT,    // of the set before it
    FLAG_DURATION,  // int64_t milliseconds, with units
    FLAG_CONFIG,    // a file of flags, read before they are set
    FLAG_RESUME,    // optional step after '='; --no-resume
    FLAG_PLAN,      // optional json after '='
    FLAG_HELP,      // optional markdown or a group, also without '='
    FLAG_VERSION
} FlagKind;

typedef enum {
    GROUP_DATA,
    GROUP_MODEL,
    GROUP_RECIPE,
    GROUP_BATCH,
    GROUP_OPTIMIZER,
    GROUP_EVALUATION,
    GROUP_FILES,
    GROUP_RUN,
    GROUP_PROCESSES,
    GROUP_COUNT
} FlagGroup;

typedef struct {
    FlagGroup group;
    const char *name; // without the dashes
    FlagKind kind;
    size_t offset, size; // of the field in Config
    const char *placeholder;
    double min, max;           // inclusive, for numbers
    const char *default_shown; // NULL: read from the default Config, which "%s" in front stands for; "": none
    const char *help;
} Flag;

#define FLAG_TEXT_LENGTH 128 // buffer size for the value, default or synopsis of a flag

const Flag *flag_table(int *count);
const char *flag_group_name(FlagGroup group);

// The row of `name` (length characters, no dashes), or NULL. *negated tells that it was named as no-NAME.
const Flag *flag_find(const char *name, size_t length, bool *negated);

// Sets err for the unknown flag `text`, with the name of the flag that was probably meant. Returns false (EXIT_USER).
bool flag_unknown(const char *text, Error *err);

// Copies to `near` the model name that the unknown name `name` is most like: "llama:d4" for lama:d4, "llama:dN" for
// llama. False if no name is near.
enum { MODEL_NAME = 96 };
bool model_near(const char *name, char near[MODEL_NAME]);

bool flag_needs_value(const Flag *flag);
bool flag_takes_list(const Flag *flag);   // all words up to the next flag, joined to lines: names and patterns of files
bool flag_has_negation(const Flag *flag); // --no-NAME

// Stores a value (NULL where none was given) into config; a --train is added to those that are there. Fails with
// EXIT_USER on malformed values, EXIT_DATA on a tokenizer file that does not exist.
bool flag_set(const Flag *flag, Config *config, const char *value, bool negated, Error *err);

// The flags that were given (flags_given.c), with names of the table alone: llm.c's short ones are rewritten.
typedef struct {
    int count, capacity;
    char **text;        // each "--name" or "--name=value"
    char **from;        // where each is from: "FILE:LINE: ", "" for the command line
    int first;          // the first of the file, or of the command line, that is being read: lists replace those before
    const char *source; // of what is being read
    bool may_start;     // llm.c's -y 1, which also begins a run whose folder does not exist
    char *notes;        // takes remarks about flags without effect
    size_t notes_size;
} Arguments;

// Fills args from the command line (argv[1] ...): first the files that --config names, in their order, then the flags
// themselves, so that these win. Every value is joined to its flag, those of a list as lines.
// Fails with EXIT_USER on unknown flags and missing values, EXIT_DATA on a file that cannot be read. Release with
// arguments_free(), after a failure too.
bool arguments_rewrite(Arguments *args, int argc, char **argv, char *notes, size_t notes_size, Error *err);

// Appends the flags that these words are; the words may go when it returns.
bool arguments_add(Arguments *args, int count, char **words, Error *err);

// Appends one: "--name=value", or "--name" where value is NULL. name has `length` characters.
void arguments_append(Arguments *args, const char *name, size_t length, const char *value);

// Appends what a short flag means with its value (flags_short.c), NULL where none follows; *flag is then the long one,
// or NULL where that is not one alone.
bool arguments_add_short(Arguments *args, const char *name, const char *value, const Flag **flag, Error *err);

// Appends those of a file (flags_file.c), which errors name with the line.
bool arguments_read(Arguments *args, const char *path, Error *err);

// Puts where a flag is from in front of an error; always false.
bool arguments_blame(const char *from, Error *err);
void arguments_free(Arguments *args);

// Whether the first `length` characters are a short flag.
bool flag_is_short(const char *text, size_t length);
// The short flag that stands for long flag `name`, or NULL.
const char *flag_short_name(const char *name);
// The short flags that are accepted without effect, separated by spaces.
void flag_short_ignored(char text[FLAG_TEXT_LENGTH]);

// Whether `name` is a group of --help: the first word of its title, in any case.
bool flag_group_find(const char *name, FlagGroup *group);
// "data, model, recipe ..." into text.
void flag_group_list(char text[FLAG_TEXT_LENGTH]);

// The value in a Config as text, booleans as on and off; "" for kinds that are no number and no choice.
void flag_value(const Flag *flag, const Config *config, char text[FLAG_TEXT_LENGTH]);

// Prints the flags of one group, or (group < 0) an introduction and the flags of all groups.
void flags_help(FILE *out, const char *program, int group);
// Prints all flags as a Markdown table, for docs/flags.md.
void flags_help_markdown(FILE *out);

#ifdef __cplusplus
}
#endif
