// Table of the command-line flags. Parsing, --help, docs/flags.md and the recorded settings are derived from the table.
// Modules outside coat/flags read only the Config.
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
    FLAG_BOOL,      // the flag is --x or --no-x without a value; its field is a bool
    FLAG_CHOICE,    // field of an enum type; its values 0, 1, ... have the names in Flag.placeholder, such as "a|b|c"
    FLAG_FORMAT,    // field of type Format; accepts only the formats named in Flag.placeholder, such as "bf16|fp32"
    FLAG_BYTES,     // field of type int64_t: number of bytes, given with a unit
    FLAG_TOKENIZER, // tokenizer: bytes, gpt2 or a path
    FLAG_TRAIN,     // --train: adds a training data set
    FLAG_WEIGHT,    // --train-weight: sets the weight of the last --train set
    FLAG_DURATION,  // field of type int64_t: milliseconds, given as a duration with units
    FLAG_CONFIG,    // --config: reads a file of flags
    FLAG_RESUME,    // --resume, --resume=STEP, --no-resume
    FLAG_PLAN,      // --plan, --plan=json
    FLAG_HELP,      // --help, --help=GROUP or --help GROUP; GROUP may be "markdown"
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

// Bits of Flag.uses: where the flag's value is recorded, and which later runs apply the recorded value.
enum {
    RECORDED = 1,       // checkpoints record the value
    UNLESS_DEFAULT = 2, // modifies RECORDED: checkpoints do not record the default
    RESUMED = 4,        // a training run that resumes a checkpoint applies the recorded value
    EVALUATED = 8,      // an evaluation of a checkpoint applies the recorded value
    SAMPLED = 16,       // sampling from a checkpoint applies the recorded value
    RESTARTED = 32,     // a resumed run whose folder has a log, but no checkpoint yet, applies the logged value
    LOGGED = 64,        // the settings in log.jsonl contain the value
    SHARED = 128,       // all ranks need the same value; file names may differ, but must be set on all ranks or on none
    SHAPE = RESTARTED | LOGGED | SHARED, // the model's shape, which checkpoints store in config.json
    TRAINING = RECORDED | RESUMED | RESTARTED | LOGGED | SHARED, // training results depend on the value
    LOGGED_UNLESS_DEFAULT = 256, // the settings in log.jsonl contain the value if it is not the default
    // as TRAINING, but neither checkpoints nor the log contain the default value
    TRAINING_UNLESS_DEFAULT = (TRAINING & ~LOGGED) | UNLESS_DEFAULT | LOGGED_UNLESS_DEFAULT
};

typedef struct {
    FlagGroup group;
    const char *name; // name of the flag without dashes
    FlagKind kind;
    size_t offset, size; // offset and size of the flag's field in Config
    unsigned uses;       // bits RECORDED, RESUMED, ...
    const char *placeholder;
    double min, max; // limits of a number, inclusive
    // Text of the default in --help. A leading "%s" is replaced by the value in the default Config. NULL means "%s". ""
    // means that the flag has no default.
    const char *default_shown;
    const char *help;
    // True if training results depend on the value in this configuration, so that checkpoints record it. NULL means
    // always.
    bool (*matters)(const Config *config);
} Flag;

#define FLAG_TEXT_LENGTH 128 // maximum bytes of a flag's value, default or synopsis

// The flags in the order of --help; a row whose name is NULL follows the last flag.
extern const Flag flag_table[];
const char *flag_group_name(FlagGroup group);

// Returns the table row of the flag `name` (`length` characters, without dashes), or NULL if there is no such flag.
// Sets *negated to true if `name` has the form no-NAME.
const Flag *flag_find(const char *name, size_t length, bool *negated);

// Sets err (EXIT_USER) for the unknown flag `text`, with a suggestion if a known flag is similar. Returns false.
bool flag_unknown(const char *text, Error *err);

// Writes to `near` the model name that is most similar to the unknown `name`. For example, lama:d4 gives "llama:d4" and
// llama gives "llama:dN". Returns false if no model has a similar name.
enum { MODEL_NAME = 96 };
bool suggest_model(const char *name, char near[MODEL_NAME]);

bool flag_needs_value(const Flag *flag); // true if it is an error to give the flag without a value
// True if the flag's value is a list of files: all words up to the next flag, which arguments_add() joins with
// newlines.
bool flag_takes_list(const Flag *flag);
bool flag_has_negation(const Flag *flag); // true if --no-NAME exists

// Stores a flag's value in config. value is NULL if the flag was given without a value. --train appends a data set.
// Fails with EXIT_USER if the value is malformed, with EXIT_DATA if the tokenizer's file does not exist.
bool flag_set(const Flag *flag, Config *config, const char *value, bool negated, Error *err);

// Flags given on the command line and in --config files. Short flags of llm.c are already replaced by long flags.
typedef struct {
    int count, capacity;
    char **text;        // each flag as "--name" or "--name=value"
    char **from;        // source of each flag: "FILE:LINE: " for a --config file, "" for the command line
    int first;          // index of the current source's first flag; a list from this source replaces older lists
    const char *source; // file and line being read; "" for the command line
    bool may_start;     // true after llm.c's -y 1, which resumes a run or, if there is nothing to resume, starts one
    char *notes;        // buffer for notes about flags without effect
    size_t notes_size;
} Arguments;

// Fills args with the flags in the --config files, in order, and then with the flags in argv[1] .... Flags in argv
// override flags in files. Each flag is joined with its value. Fails with EXIT_USER for an unknown flag or a missing
// value, with EXIT_DATA for an unreadable file. The caller must call arguments_free(), even after a failure.
bool arguments_rewrite(Arguments *args, int argc, char **argv, char *notes, size_t notes_size, Error *err);

// Appends the flags in words[0] to words[count - 1] to args, as copies, each joined with its value. Fails as
// arguments_rewrite() does.
bool arguments_add(Arguments *args, int count, char **words, Error *err);

// Appends the flag "--name=value" to args, or "--name" if value is NULL. `length` is the number of characters of name.
void arguments_append(Arguments *args, const char *name, size_t length, const char *value);

// Appends to args the long flag that replaces llm.c's short flag `name`, if there is one. value is the next word; NULL
// (no next word) is an error (EXIT_USER). Sets *flag to the long flag, or to NULL if the short flag is a switch or has
// no effect.
bool arguments_add_short(Arguments *args, const char *name, const char *value, const Flag **flag, Error *err);

// Appends the flags in the --config file `path` to args. Errors begin with "PATH:LINE: ".
bool arguments_read(Arguments *args, const char *path, Error *err);

// Prepends `from`, the source of a flag ("FILE:LINE: "), to the error's text. Returns false.
bool error_add_flag_source(const char *from, Error *err);
void arguments_free(Arguments *args);

// True if the text is one of llm.c's short flags.
bool flag_is_short(const char *text);
// Returns llm.c's short flag that corresponds to the long flag `name`, or NULL.
const char *flag_short_name(const char *name);
// Lists in text, separated by spaces, llm.c's short flags that are accepted but have no effect.
void flag_short_ignored(char text[FLAG_TEXT_LENGTH]);

// Sets *group to the group of flags whose name begins with the word `name`, ignoring case. Returns false if there is no
// such group.
bool flag_group_find(const char *name, FlagGroup *group);
// Writes to text the names that flag_group_find() accepts: "data, model, recipe, ...".
void flag_group_list(char text[FLAG_TEXT_LENGTH]);

// Writes a flag's value in config to text, booleans as on and off. If the value is neither a number nor a choice,
// writes "".
void flag_value(const Flag *flag, const Config *config, char text[FLAG_TEXT_LENGTH]);

// Prints the help of the flags in group `group` or, if group < 0, an introduction and the help of all groups.
void flags_help(FILE *out, const char *program, int group);
// Prints the table of docs/flags.md: all flags in Markdown.
void flags_help_markdown(FILE *out);

C_LINKAGE_END
