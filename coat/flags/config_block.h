// Checks the flags that describe a model's blocks (norms, attention, MLP). A failed check sets err with EXIT_USER.
#pragma once
#include "config/config.h"

// True if an architecture supports the blocks that config->shape describes (shape_architecture()). Otherwise err names
// a flag to change, and the value that the nearest architecture supports.
bool config_check_block(const Config *config, Error *err);

// True if every given flag about the model's blocks has an effect. given(context, name) must return true if the flag
// `name` was given. On failure, err names the flag without effect and the reason.
bool config_check_idle(const Config *config, bool (*given)(const void *context, const char *name), const void *context,
                       Error *err);
