// Runs the program: training to the last step, an evaluation, or samples.
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

C_LINKAGE_BEGIN

#define MAX_PROMPT_TOKENS 4096
#define BATCH_PLANES 4 // arrays per micro-batch: inputs, targets, positions (with document masking), rows of images

typedef struct {
    Config *config; // complete and constant after the inputs are open
    Model model;
    DataLoader *train, *val;
    bool masked; // true: the training data has a loss mask
    HellaSwag *hellaswag;
    Tokenizer *tokenizer;       // tokenizer of the vocabulary; NULL: samples are printed as token ids
    PromptFormat prompt_format; // format that wraps prompts of samples; NONE: plain text
    Log *log;
    HealthWarned warned;  // FP8 health warnings that this run has printed
    Saver *saver;         // writes checkpoints; NULL: nothing is saved
    OutFolder *folder;    // folder of --out, which this process has locked; NULL: not locked
    RunState done;        // progress so far, as recorded in checkpoints
    int64_t steps;        // number of the last step
    double start_ms;      // time at which the program started
    double longest_ms;    // duration of the longest iteration of the training loop so far
    CommPlace place;      // rank of this process
    RankErrors errors;    // ends all processes together after an error
    bool save_asked;      // true: a signal to any process has requested a checkpoint
    int32_t *next;        // micro-batches of the next step: (accumulation, BATCH_PLANES, B * T)
    int *next_images;     // number of images of each micro-batch of the next step
    uint8_t *next_pixels; // their pixels: (accumulation, vision_images(), 3 * side * side)
    Error pending_error;  // error that prevents the next step, for example unreadable data; EXIT_DONE: none
    bool any_rank_failed; // true: at least one rank has a pending_error
} Run;

// Opens the vocabulary of --tokenizer FILE for a new model. Sets the model's vocabulary size to the tokenizer's unless
// --vocab or the model's name sets it. Fails if the size is smaller than the tokenizer's.
bool run_open_tokenizer(Run *run, Config *config, Error *err);

// Executes the run from opening the device to the last save, and ends it on all processes. Returns false with err on
// failure.
bool run_main(Run *run, Config *config, Error *err);

// ---------------------------------------------------------------- functions that run.c and run_start.c share

// Computes and logs the validation loss. Does nothing without --val.
bool run_validate(Run *run, Error *err);

// Sets ids[] to the tokens that samples start with: the prompt's, or a BOS or EOS token. Returns their number; 0 with
// err if the prompt cannot be used.
int run_prompt(const Run *run, int32_t ids[MAX_PROMPT_TOKENS], Error *err);

// Returns the step to report for an evaluation: the run's step, or the step recorded with the weights of --model.
int64_t run_evaluated_step(const Run *run);

// Prints samples that continue the prompt. With --json, standard output is JSON lines and the text goes to stderr; if
// nothing is trained, each sample is a line with its token ids, because text that is not UTF-8 would be changed.
bool run_samples(Run *run, Error *err);

// Runs the requested evaluations of the current step that are missing in the log because a signal or a kill prevented
// them before the resume.
bool run_missed_evaluations(Run *run, bool val, bool hellaswag, Error *err);

// Runs the training loop until the last step, a signal or --time-limit, then saves.
bool run_train(Run *run, Error *err);

C_LINKAGE_END
