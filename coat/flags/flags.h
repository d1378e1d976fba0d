// The table of command-line flags, from which parsing, --help, docs/flags.md and the settings in files derive. Other
// modules read the Config.
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
    FLAG_CHOICE,    // an enum whose values 0, 1, ... are named in the placeholder "a|b|c"
    FLAG_FORMAT,    // a Format, named in the placeholder
    FLAG_BYTES,     // int64_t bytes, with units
    FLAG_TOKENIZER, // bytes, gpt2 or a path
    FLAG_TRAIN,     // adds a set of training data
    FLAG_WEIGHT,    // weight of the set before it
    FLAG_DURATION,  // int64_t milliseconds, with units
    FLAG_CONFIG,    // a file of flags
    FLAG_RESUME,    // --resume, --resume=STEP, --no-resume
    FLAG_PLAN,      // --plan, --plan=json
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

// Who uses a flag's value besides the run that is given it.
enum {
    RECORDED = 1,       // checkpoints record it
    UNLESS_DEFAULT = 2, // but not the default
    RESUMED = 4,        // a training that continues from a checkpoint applies the recorded value
    EVALUATED = 8,      // an evaluation of a checkpoint applies it
    SAMPLED = 16,       // a sample from a checkpoint applies it
    RESTARTED = 32,     // a run that has a log and no checkpoint applies the logged value
    LOGGED = 64,        // the log's record of settings has it
    SHARED = 128,       // all ranks must have the same value or, of files, all name one or none
    SHAPE = RESTARTED | LOGGED | SHARED,
    TRAINING = RECORDED | RESUMED | RESTARTED | LOGGED | SHARED // training results depend on it
};

typedef struct {
    FlagGroup group;
    const char *name; // without the dashes
    FlagKind kind;
    size_t offset, size; // of the field in Config
    unsigned uses;       // RECORDED ...
    const char *placeholder;
    double min, max; // limits of numbers, inclusive
    const char *
        default_shown; // default in --help; NULL: the value in the default Config, which "%s" at its start stands for; "": no default
    const char *help;
    bool (*matters)(const Config *config); // true if the value has an effect, which makes it RECORDED; NULL: always
} Flag;

#define FLAG_TEXT_LENGTH 128 // bytes of the value, default or synopsis of a flag as text

const Flag *flag_table(int *count);
const char *flag_group_name(FlagGroup group);

// Returns the row of the flag `name`, `length` characters without dashes, or NULL. *negated is true if the name is
// no-NAME.
const Flag *flag_find(const char *name, size_t length, bool *negated);

// Sets err for the unknown flag `text`, with the name of the flag that was probably meant. Returns false (EXIT_USER).
bool flag_unknown(const char *text, Error *err);

// Copies to `near` the model name that is most similar to the unknown `name`: "llama:d4" for lama:d4, "llama:dN" for
// llama. False if no model's name is similar.
enum { MODEL_NAME = 96 };
bool suggest_model(const char *name, char near[MODEL_NAME]);

bool flag_needs_value(const Flag *flag);
bool flag_takes_list(
    const Flag *flag); // takes all words up to the next flag, joined by newlines: names and patterns of files
bool flag_has_negation(const Flag *flag); // --no-NAME

// Stores a value in config; NULL: the flag has no value. --train adds a set. Fails with EXIT_USER for malformed values,
// with EXIT_DATA for a tokenizer file that does not exist.
bool flag_set(const Flag *flag, Config *config, const char *value, bool negated, Error *err);

// Flags that were given (flags_given.c). llm.c's short flags are replaced by long ones.
typedef struct {
    int count, capacity;
    char **text;        // "--name" or "--name=value"
    char **from;        // source of each: "FILE:LINE: ", or "" for the command line
    int first;          // index of the first flag of the current source; a list replaces those before it
    const char *source; // the current source
    bool may_start;     // llm.c's -y 1: --resume that also starts a run if its folder does not exist
    char *notes;        // receives remarks about flags without effect
    size_t notes_size;
} Arguments;

// Fills args from argv[1] ...: first the files named by --config, in order, then the flags on the command line, which
// override them. Every value is joined to its flag. Fails with EXIT_USER for unknown flags and missing values, with
// EXIT_DATA for an unreadable file. Release with arguments_free(), also after a failure.
bool arguments_rewrite(Arguments *args, int argc, char **argv, char *notes, size_t notes_size, Error *err);

// Appends the flags in `words`, which are copied.
bool arguments_add(Arguments *args, int count, char **words, Error *err);

// Appends "--name=value", or "--name" if value is NULL. name has `length` characters.
void arguments_append(Arguments *args, const char *name, size_t length, const char *value);

// Appends the long flags that the short flag `name` stands for (flags_short.c). value: the next word, or NULL. *flag:
// the long flag, NULL if it stands for several or none.
bool arguments_add_short(Arguments *args, const char *name, const char *value, const Flag **flag, Error *err);

// Appends the flags of the file `path` (flags_file.c). Errors name the line.
bool arguments_read(Arguments *args, const char *path, Error *err);

// Prepends the source of a flag to an error. Returns false.
bool error_add_flag_source(const char *from, Error *err);
void arguments_free(Arguments *args);

// True if the first `length` characters of text are a short flag.
bool flag_is_short(const char *text, size_t length);
// Returns the short flag for the long flag `name`, or NULL.
const char *flag_short_name(const char *name);
// Writes the short flags that are accepted without effect, separated by spaces.
void flag_short_ignored(char text[FLAG_TEXT_LENGTH]);

// Finds the group whose title begins with the word `name`, in any case. False if there is none.
bool flag_group_find(const char *name, FlagGroup *group);
// Writes the names of all groups to text: "data, model, recipe ...".
void flag_group_list(char text[FLAG_TEXT_LENGTH]);

// Writes the value in config as text, booleans as on and off. "" for kinds that are neither a number nor a choice.
void flag_value(const Flag *flag, const Config *config, char text[FLAG_TEXT_LENGTH]);

// Prints the flags of one group, or (group < 0) an introduction and the flags of all groups.
void flags_help(FILE *out, const char *program, int group);
// Prints all flags as a Markdown table, for docs/flags.md.
void flags_help_markdown(FILE *out);

#ifdef __cplusplus
}
#endif
