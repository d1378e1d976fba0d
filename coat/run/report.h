// The page that a run prints at its start: device, model, recipe, data, schedule, files and memory. And the memory plan
// of --plan.
#pragma once
#include <stdio.h>

#include "config/config.h"
#include "model/arena.h"
#include "ops.h"
#include "text/data.h"
#include "text/hellaswag.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const Config *config;
    Exec *exec; // an opened device
    const Arena *arena;
    DataLoader *train, *val;    // NULL: none
    const HellaSwag *hellaswag; // NULL: none
    int64_t steps, done;        // of the complete run; done before this start
    int64_t sequences, tokens;  // read in the steps done before, whose size may differ
} Report;

// Prints the page in lines of at most 80 columns, or of the terminal's width if that is smaller. Only a longer word
// exceeds it.
void report_start(const Report *report, FILE *out);

// Prints the memory plan of one of config->gpus processes as a table or as JSON, for the GPU's layout unless --device
// cpu was given. With --memory-limit, plans the largest micro-batch within the limit; false with err (EXIT_USER) and
// advice if one sequence exceeds it.
bool report_plan(const Config *config, FILE *out, Error *err);

#ifdef __cplusplus
}
#endif
