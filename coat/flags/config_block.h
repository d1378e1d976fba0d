// Checks of the flags that describe the blocks of a model (norms, attention, MLP). They fail with EXIT_USER.
#pragma once
#include "config/config.h"

// True if an architecture supports the blocks that config->shape describes (shape_architecture()). Otherwise err names
// a flag to change, and the value that the nearest architecture supports.
bool config_check_block(const Config *config, Error *err);

// True if every given flag about the model's blocks has an effect. given(context, name) returns whether the flag `name`
// was given. Otherwise err names the flag without effect and the flag that it requires.
bool config_check_idle(const Config *config, bool (*given)(const void *context, const char *name), const void *context,
                       Error *err);
