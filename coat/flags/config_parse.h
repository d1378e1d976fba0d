// From the command line to the Config in three steps: command_line_read(); checkpoint_settings() of
// run/checkpoint_settings.h, which looks up what the checkpoint records that the run continues from; config_parse().
#pragma once
#include "flags.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Arguments args;
    Config flags; // their values on top of the defaults, where model_from_files and recipe_final are known, too
} CommandLine;

// Reads argv. llm.c's short flags are rewritten to the long ones first. Returns false with err filled for unknown or
// malformed flags. *exit_now becomes true when the flag asked only for text (--help, --version), which has been
// printed. After both there is no line for config_parse().
bool command_line_read(CommandLine *line, int argc, char **argv, bool *exit_now, Error *err);

// Sets config to what is recorded, with the flags on top, and releases the line. Returns false with err filled for
// contradictory flags.
// A model named by folder or weight file, or the checkpoint that is resumed, is only marked (shape_files);
// its shape is read by model_shape_from_files() of hf.h, and seq_len stays 0 until config_check() where neither a
// flag nor what is resumed gives it.
bool config_parse(Config *config, CommandLine *line, const Config *recorded, Error *err);

#ifdef __cplusplus
}
#endif
