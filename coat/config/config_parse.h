// From the command line to the Config: the flags, what the checkpoint records that the run goes on from, the flags on top.
#pragma once
#include "config.h"

#ifdef __cplusplus
extern "C" {
#endif

// Parses argv into config. llm.c's short flags are rewritten to the long ones first. Returns false with
// err filled for unknown, malformed or contradictory flags. *exit_now becomes true when the flag asked only
// for text (--help, --version), which has been printed.
// A model named by folder or weight file, or the checkpoint that is resumed, is only marked (shape_files);
// its shape is read by model_shape_from_files() of hf.h, and seq_len stays 0 until config_check() where neither a flag nor
// what is resumed gives it.
bool config_parse(Config *config, int argc, char **argv, bool *exit_now, Error *err);

#ifdef __cplusplus
}
#endif
