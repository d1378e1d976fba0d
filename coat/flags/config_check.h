// Checks of a configuration with a complete model shape. They fail with EXIT_USER, or with EXIT_DATA if the shape is
// incomplete.
#pragma once
#include "config/config.h"

C_LINKAGE_BEGIN

// Checks the shape (divisibility, positions, unsupported combinations), then calls config_check_recipe() for `ranks`
// processes. Call it after model_shape_from_files().
bool config_check(Config *config, int ranks, Error *err);

// Checks that the model's vocabulary has at least `tokens` rows, the number of tokens of --tokenizer.
bool config_check_tokenizer(const Config *config, int tokens, Error *err);

C_LINKAGE_END
