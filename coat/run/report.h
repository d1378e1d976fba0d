// Prints the start-up report of a run (device, model, recipe, data, schedule, files and memory) and the memory plan of
// --plan.
#pragma once
#include <stdio.h>

#include "config/config.h"
#include "model/arena.h"
#include "ops.h"
#include "text/data.h"
#include "text/hellaswag.h"

C_LINKAGE_BEGIN

typedef struct {
    const Config *config;
    Exec *exec; // device of the run, which is open
    const Arena *arena;
    DataLoader *train, *val;    // training and validation data; NULL: none
    const HellaSwag *hellaswag; // HellaSwag examples; NULL: none
    int64_t steps, done;        // steps: steps of the complete run; done: steps done before this process started
    int64_t sequences, tokens;  // sequences and tokens read in the steps done before, whose batch size may differ
} Report;

// Prints the start-up report in lines of at most 80 columns, or of the terminal's width if that is smaller. A longer
// word exceeds this width.
void report_start(const Report *report, FILE *out);

// Prints the memory plan of one of config->gpus processes as a table or as JSON, for the GPU's layout unless --device
// cpu was given. With --memory-limit, plans the largest micro-batch within the limit; false with err (EXIT_USER) and
// advice if one sequence exceeds it.
bool report_plan(const Config *config, FILE *out, Error *err);

C_LINKAGE_END
