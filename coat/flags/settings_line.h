// The settings of a run as one line for its log.
#pragma once
#include "config/config.h"
#include "io/json.h"

#ifdef __cplusplus
extern "C" {
#endif

// An object of every flag in `config`, where values that are chosen are filled in, under the flags' names and in the
// order of --help; null where there is none. Without those flags that say what is shown or how a process begins and
// ends. Free it by json_text_free().
void settings_line(JsonText *t, const Config *config);

#ifdef __cplusplus
}
#endif
