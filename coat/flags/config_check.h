// Checks a configuration whose model shape is complete. A check that fails sets err with EXIT_USER, or with EXIT_DATA
// if the shape in a file is incomplete.
#pragma once
#include "config/config.h"

C_LINKAGE_BEGIN

// Checks the model's shape (divisibility, positions, unsupported combinations) and the flags of images, then calls
// config_check_recipe() for `ranks` processes. If seq_len is 0, sets seq_len to the model's positions, but at most
// 1024. Also sets freeze and image_rows. Call config_check() after model_shape_from_files().
bool config_check(Config *config, int ranks, Error *err);

// Checks that the model's vocabulary has at least `tokens` rows; `tokens` is the number of tokens of --tokenizer.
bool config_check_tokenizer(const Config *config, int tokens, Error *err);

C_LINKAGE_END
