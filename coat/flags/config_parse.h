// Builds the Config in three steps. command_line_read() reads the flags. checkpoint_settings()
// (run/checkpoint_settings.h) reads the settings that the resumed checkpoint records. config_parse() combines both.
#pragma once
#include "flags.h"

C_LINKAGE_BEGIN

typedef struct {
    Arguments args;
    Config flags; // defaults with the given flags applied; model_from_files and recipe_final are also set
} CommandLine;

// Reads the command line into `line`. Fails for unknown or malformed flags. If a flag only requests text (--help,
// --version), prints the text and sets *exit_now to true. After a failure, or if *exit_now is true, `line` is empty: do
// not call config_parse().
bool command_line_read(CommandLine *line, int argc, char **argv, bool *exit_now, Error *err);

// Sets config to `recorded` with the given flags applied, and releases `line`. Fails for contradictory flags. If
// shape_files is set (a model folder, a weight file or the resumed checkpoint), call model_shape_from_files()
// (save/hf.h) next to read the shape. If neither a flag nor a recorded setting sets seq_len, seq_len is 0 until
// config_check() sets it.
bool config_parse(Config *config, CommandLine *line, const Config *recorded, Error *err);

C_LINKAGE_END
