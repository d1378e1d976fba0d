// Builds the Config in three steps: command_line_read() reads the flags; checkpoint_settings()
// (run/checkpoint_settings.h) reads the settings recorded by the checkpoint that the run continues from; config_parse()
// combines them.
#pragma once
#include "flags.h"

C_LINKAGE_BEGIN

typedef struct {
    Arguments args;
    Config flags; // flags applied to the defaults; model_from_files and recipe_final are set, too
} CommandLine;

// Reads the command line. Fails for unknown or malformed flags. Sets *exit_now if a flag only asked for text (--help,
// --version), which has been printed. In both cases `line` is empty, and config_parse() must not be called.
bool command_line_read(CommandLine *line, int argc, char **argv, bool *exit_now, Error *err);

// Sets config to `recorded` with the flags applied to it, and releases the line. Fails for contradictory flags. If
// shape_files is set (a model folder, a weight file, or the resumed checkpoint), the shape is not read yet; call
// model_shape_from_files() (save/hf.h). seq_len is 0 if neither a flag nor the record sets it; config_check() then
// chooses it.
bool config_parse(Config *config, CommandLine *line, const Config *recorded, Error *err);

C_LINKAGE_END
