// Checks of the flags that describe a model's block. Errors: EXIT_USER.
#pragma once
#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

// True if an architecture has the block that config->shape describes (shape_architecture()). Otherwise err names a flag
// to change and the value that the nearest architecture has.
bool config_check_block(const Config *config, Error *err);

// True if every flag of the block that was given has an effect. given(context, name) tells whether `name` was given.
// Otherwise err names the flag without effect and the flag that it needs.
bool config_check_idle(const Config *config, bool (*given)(const void *context, const char *name), const void *context,
                       Error *err);

#ifdef __cplusplus
}
#endif
