// The flags that say what a model's block is made of. Errors: EXIT_USER.
#pragma once
#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether some architecture has the block that the flags ask for (shape_architecture()); the error names two that
// contradict each other.
bool config_check_block(const Config *config, Error *err);

// Whether all of these flags that were given have an effect; the error says which flag one needs.
bool config_check_idle(const Config *config, bool (*given)(const void *context, const char *name), const void *context,
                       Error *err);

#ifdef __cplusplus
}
#endif
