// A run of the program: training to the last step, an evaluation, or samples.
#pragma once
#include "health.h"
#include "log/log.h"
#include "model/model.h"
#include "rank_errors.h"
#include "save/outdir.h"
#include "save/run_state.h"
#include "save/saver.h"
#include "text/data.h"
#include "text/hellaswag.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MAX_PROMPT_TOKENS 4096
#define BATCH_PLANES 3 // arrays per micro-batch: inputs, targets, and positions if documents are masked from each other

typedef struct {
    Config *config; // complete, and constant, after the inputs are open
    Model model;
    DataLoader *train, *val;
    bool masked; // the training data has a loss mask
    HellaSwag *hellaswag;
    Tokenizer *tokenizer;       // NULL: samples print token ids
    PromptFormat prompt_format; // of samples; NONE: plain text
    Log *log;
    HealthWarned warned;  // FP8 health warnings printed so far
    Saver *saver;         // NULL: nothing is saved
    OutFolder *folder;    // --out, locked by this process; NULL: not locked
    RunState done;        // progress so far, as checkpoints record it
    int64_t steps;        // number of the last step
    double start_ms;      // when the program started
    double longest_ms;    // the longest iteration of the training loop so far
    CommPlace place;      // this process's rank
    RankErrors errors;    // ends all processes together
    bool save_asked;      // a signal to any process asked for a checkpoint
    int32_t *next;        // the next step's micro-batches: (accumulation, BATCH_PLANES, B * T)
    Error pending_error;  // prevents the next step, for example unreadable data; EXIT_DONE: none
    bool any_rank_failed; // some rank has a pending_error
} Run;

// Opens the vocabulary of --tokenizer FILE for a new model. Sets the model's vocabulary size to the tokenizer's unless
// --vocab or the model's name sets it. Fails if the size is smaller than the tokenizer's.
bool run_open_tokenizer(Run *run, Config *config, Error *err);

// Does all that the configuration asks for, from opening the device to the last save, and ends the run on all
// processes. False with err on failure.
bool run_main(Run *run, Config *config, Error *err);

// ---------------------------------------------------------------- shared by run.c and run_start.c

// Computes and logs the validation loss; nothing without --val.
bool run_validate(Run *run, Error *err);

// Sets ids[] to the tokens that samples start with: the prompt's, or a BOS or EOS token. Returns their number; 0 with
// err if the prompt cannot be used.
int run_prompt(const Run *run, int32_t ids[MAX_PROMPT_TOKENS], Error *err);

// Returns the step that an evaluation reports: the run's, or the one recorded with the weights of --model.
int64_t run_evaluated_step(const Run *run);

// Prints samples that continue the prompt. With --json, standard output is JSON lines and the text goes to stderr; if
// nothing is trained, each sample is a line with its token ids, because text that is not UTF-8 would be changed.
bool run_samples(Run *run, Error *err);

// Runs the requested evaluations of the current step that the log does not have, because a signal or a kill prevented
// them before the resume.
bool run_missed_evaluations(Run *run, bool val, bool hellaswag, Error *err);

// Runs the training loop to the last step, a signal or --time-limit, and saves.
bool run_train(Run *run, Error *err);

#ifdef __cplusplus
}
#endif
