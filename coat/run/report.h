// Prints the start-up report of a run (device, model, recipe, data, schedule, files and memory), and the memory plan
// for --plan.
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
    DataLoader *train, *val;    // training and validation data; NULL if there is none
    const HellaSwag *hellaswag; // HellaSwag questions; NULL if there are none
    int64_t steps, done;        // numbers of steps of the complete run, and of steps that earlier processes have done
    int64_t sequences, tokens;  // numbers of sequences and tokens that earlier processes of the run have read
} Report;

// Prints the start-up report in lines of at most 80 columns, or of the terminal's width if that is less. A single word
// may be longer.
void report_start(const Report *report, FILE *out);

// Prints the memory plan of one of config->gpus processes, as a table or as JSON. The plan is for a GPU unless --device
// cpu is given. With --memory-limit, plans the largest micro-batch within the limit. Fails (EXIT_USER), with advice in
// err, if no micro-batch fits.
bool report_plan(const Config *config, FILE *out, Error *err);

C_LINKAGE_END
