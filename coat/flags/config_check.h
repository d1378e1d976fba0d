// Checks of a configuration whose shape is complete. They fail with EXIT_USER, or with EXIT_DATA for an incomplete
// shape.
#pragma once
#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

// Checks the shape (divisibility, positions, combinations that no architecture supports), then calls
// config_check_recipe() for `ranks` processes. Call it after model_shape_from_files().
bool config_check(Config *config, int ranks, Error *err);

// Checks that the model has a row for each of the `tokens` of the vocabulary that --tokenizer names.
bool config_check_tokenizer(const Config *config, int tokens, Error *err);

#ifdef __cplusplus
}
#endif
