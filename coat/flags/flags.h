// The table of command-line flags. Parsing, --help, docs/flags.md and the recorded settings derive from it. Other
// modules read the Config.
#pragma once
#include <stddef.h>

#include "config/config.h"

C_LINKAGE_BEGIN

typedef enum {
    FLAG_INT,       // field of type int
    FLAG_INT64,     // field of type int64_t
    FLAG_SEED,      // field of type uint64_t
    FLAG_FLOAT,     // field of type float
    FLAG_STRING,    // field of type char[]
    FLAG_BOOL,      // field of type bool; the flag is --x or --no-x and takes no value
    FLAG_CHOICE,    // enum whose values 0, 1, ... are named in the placeholder "a|b|c"
    FLAG_FORMAT,    // a Format, whose values are named in the placeholder
    FLAG_BYTES,     // int64_t number of bytes, written with units
    FLAG_TOKENIZER, // tokenizer: bytes, gpt2 or a path
    FLAG_TRAIN,     // --train: adds a set of training data
    FLAG_WEIGHT,    // --train-weight: sets the weight of the preceding set
    FLAG_DURATION,  // int64_t milliseconds, written with units
    FLAG_CONFIG,    // --config: reads a file of flags
    FLAG_RESUME,    // --resume, --resume=STEP, --no-resume
    FLAG_PLAN,      // --plan, --plan=json
    FLAG_HELP,      // --help, with an optional group or "markdown", also without '='
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

// Bits of Flag.uses, which tell who uses a flag's value besides the run that is given the flag.
enum {
    RECORDED = 1,       // checkpoints record the value
    UNLESS_DEFAULT = 2, // the default value is not recorded (used with RECORDED)
    RESUMED = 4,        // a training run that continues from a checkpoint applies the recorded value
    EVALUATED = 8,      // an evaluation of a checkpoint applies the recorded value
    SAMPLED = 16,       // sampling from a checkpoint applies the recorded value
    RESTARTED = 32,     // a run that has a log but no checkpoint applies the logged value
    LOGGED = 64,        // the log's record of settings contains the value
    SHARED = 128, // all ranks must have the same value; a flag that names files must be given to all ranks or none
    SHAPE = RESTARTED | LOGGED | SHARED,
    TRAINING = RECORDED | RESUMED | RESTARTED | LOGGED | SHARED // training results depend on the value
};

typedef struct {
    FlagGroup group;
    const char *name; // name of the flag without dashes
    FlagKind kind;
    size_t offset, size; // offset and size of the flag's field in Config
    unsigned uses;       // bits RECORDED, RESUMED, ...
    const char *placeholder;
    double min, max; // limits of a number, inclusive
    // text of the default in --help, in which a leading "%s" is replaced by the value in the default Config; NULL: only
    // that value; "": no default
    const char *default_shown;
    const char *help;
    // returns true if the value has an effect and must be recorded; NULL: always true
    bool (*matters)(const Config *config);
} Flag;

#define FLAG_TEXT_LENGTH 128 // maximum bytes of a flag's value, default or synopsis as text

const Flag *flag_table(int *count);
const char *flag_group_name(FlagGroup group);

// Returns the table row of the flag `name` (`length` characters, without dashes), or NULL. Sets *negated if the name
// has the form no-NAME.
const Flag *flag_find(const char *name, size_t length, bool *negated);

// Sets err (EXIT_USER) for the unknown flag `text` and suggests the flag that was probably meant. Returns false.
bool flag_unknown(const char *text, Error *err);

// Copies the model name that is most similar to the unknown `name` to `near`: "llama:d4" for lama:d4, "llama:dN" for
// llama. Returns false if no model has a similar name.
enum { MODEL_NAME = 96 };
bool suggest_model(const char *name, char near[MODEL_NAME]);

bool flag_needs_value(const Flag *flag);
bool flag_takes_list(
    // true if the flag takes all words up to the next flag as a list of files, joined by newlines
    const Flag *flag);
bool flag_has_negation(const Flag *flag); // true if --no-NAME exists

// Stores a flag's value in config; value is NULL if the flag has none. --train adds a set. Fails with EXIT_USER for
// malformed values, with EXIT_DATA for a tokenizer file that does not exist.
bool flag_set(const Flag *flag, Config *config, const char *value, bool negated, Error *err);

// Flags given on the command line and in files (flags_given.c). Short flags of llm.c have been replaced by long flags.
typedef struct {
    int count, capacity;
    char **text;        // each flag as "--name" or "--name=value"
    char **from;        // source of each flag: "FILE:LINE: ", or "" for the command line
    int first;          // index of the current source's first flag; a new list replaces lists before it
    const char *source; // source that is being read
    bool may_start; // true after llm.c's -y 1, which is --resume that also starts a run if its folder does not exist
    char *notes;    // buffer for remarks about flags without effect
    size_t notes_size;
} Arguments;

// Fills args from argv[1] ...: first the flags in the files named by --config, in order, then the command line's flags,
// which override them. Joins every value to its flag. Fails with EXIT_USER for unknown flags and missing values, with
// EXIT_DATA for an unreadable file. Release args with arguments_free(), also after a failure.
bool arguments_rewrite(Arguments *args, int argc, char **argv, char *notes, size_t notes_size, Error *err);

// Appends the flags in `words` to args. The words are copied.
bool arguments_add(Arguments *args, int count, char **words, Error *err);

// Appends the flag "--name=value" to args, or "--name" if value is NULL. name has `length` characters.
void arguments_append(Arguments *args, const char *name, size_t length, const char *value);

// Appends the long flags that the short flag `name` stands for to args (flags_short.c). value: the next word, or NULL.
// Sets *flag to the long flag, or to NULL if there are several or none.
bool arguments_add_short(Arguments *args, const char *name, const char *value, const Flag **flag, Error *err);

// Appends the flags in the file `path` to args (flags_file.c). Errors name the line.
bool arguments_read(Arguments *args, const char *path, Error *err);

// Prepends the source of a flag ("FILE:LINE: ") to an error. Returns false.
bool error_add_flag_source(const char *from, Error *err);
void arguments_free(Arguments *args);

// True if the first `length` characters of text are a short flag of llm.c.
bool flag_is_short(const char *text, size_t length);
// Returns llm.c's short flag for the long flag `name`, or NULL.
const char *flag_short_name(const char *name);
// Writes a list of llm.c's short flags that are accepted but have no effect to text, separated by spaces.
void flag_short_ignored(char text[FLAG_TEXT_LENGTH]);

// Finds the group of flags whose title begins with the word `name`, ignoring case. Returns false if there is none.
bool flag_group_find(const char *name, FlagGroup *group);
// Writes the names of all groups of flags to text: "data, model, recipe ...".
void flag_group_list(char text[FLAG_TEXT_LENGTH]);

// Writes a flag's value in config to text; booleans as on and off. Writes "" for flags whose value is neither a number
// nor a choice.
void flag_value(const Flag *flag, const Config *config, char text[FLAG_TEXT_LENGTH]);

// Prints the help of the flags in one group or, if group < 0, an introduction and the flags of all groups.
void flags_help(FILE *out, const char *program, int group);
// Prints all flags as a Markdown table, for docs/flags.md.
void flags_help_markdown(FILE *out);

C_LINKAGE_END
