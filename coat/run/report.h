// Prints the start-up report of a run (device, model, recipe, data, schedule, files and memory), and the memory plan
// for --plan.
#pragma once
#include <stdio.h>

#include "run.h"

C_LINKAGE_BEGIN

// Prints the start-up report of a run whose inputs are open. Lines have at most 80 columns, or the terminal's width if
// that is less. A single word may be longer.
void report_start(Run *run, FILE *out);

// Prints the memory plan of one of config->gpus processes, as a table or as JSON. The plan is for a GPU unless --device
// cpu is given. With --memory-limit, plans the largest micro-batch within the limit. Fails (EXIT_USER), with advice in
// err, if no micro-batch fits.
bool report_plan(const Config *config, FILE *out, Error *err);

C_LINKAGE_END
