// The checks of a configuration once its shape is final. Errors: EXIT_USER, of an incomplete shape EXIT_DATA.
#pragma once
#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

// After a checkpoint's config.json was read: the shape (divisibility, positions, what no architecture has), then
// config_check_recipe().
bool config_check(Config *config, int ranks, Error *err);

// Whether the model has a row for each of the `tokens` of the vocabulary that --tokenizer names.
bool config_check_tokenizer(const Config *config, int tokens, Error *err);

#ifdef __cplusplus
}
#endif
