// The page that a run begins with: on what, of what, how and how long it will train, and where the memory goes. And
// what --plan prints of the last.
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
    Exec *exec; // opened; its device is named, and asked for the memory in use
    const Arena *arena;
    DataLoader *train, *val;    // NULL: none
    const HellaSwag *hellaswag; // NULL: none
    int64_t steps, done;        // of the run in all, and already made,
    int64_t sequences, tokens;  // in which so many were read, by steps of whatever size
} Report;

// Prints the page, in lines of at most 80 columns, or as many as a narrower terminal has, where words allow it.
void report_start(const Report *report, FILE *out);

// Prints the memory plan of one of config->gpus processes, as a table as wide or as JSON, for the GPU's layout unless
// --device cpu was given. With --memory-limit that of the largest micro-batch which stays under it; false with err
// (EXIT_USER) and advice when not even one sequence does.
bool report_plan(const Config *config, FILE *out, Error *err);

#ifdef __cplusplus
}
#endif
