// A run: the training of a model from where it stands to its last step, or an evaluation, or samples.
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
#define BATCH_PLANES 3 // of a micro-batch: inputs, targets, positions where documents are apart

typedef struct {
    Config *config; // complete, and constant, after the inputs are open
    Model model;
    DataLoader *train, *val;
    bool masked; // not all targets of the training data count
    HellaSwag *hellaswag;
    Tokenizer *tokenizer;       // NULL: samples print token ids
    PromptFormat prompt_format; // of samples; NONE: plain text
    Log *log;
    HealthWarned warned;         // by FP8 health
    Saver *saver;                // NULL: nothing is saved
    OutFolder *folder;           // that this process has locked; NULL: none
    RunState done;               // what checkpoints record: steps, position in the data, tokens
    int64_t steps;               // to be done in all
    double start_ms, longest_ms; // when the program began; the longest round of the training loop
    CommPlace place;             // among the processes
    RankErrors errors;           // how the run ends
    bool save_asked;             // by a signal to any of them
    int32_t *next;               // a step's micro-batches, (accumulation, BATCH_PLANES, B * T)
    Error pending_error;         // prevents the next step: unreadable data, another run has --out; EXIT_DONE: none
    bool any_rank_failed;        // one of the processes has a pending_error
} Run;

// Opens the vocabulary that --tokenizer FILE names, of a new model. It has a row for each token, where neither --vocab
// nor the model's name says how many, and not fewer in any case.
bool run_take_vocabulary(Run *run, Config *config, Error *err);

// Does what the configuration asks for, from the opening of the device to the last save, and ends it on all processes.
// False with err where it failed.
bool run_whole(Run *run, Config *config, Error *err);

// --- what run.c and run_start.c have in common ---------------------------------------------------------------------

bool run_validate(Run *run, Error *err);

// The tokens that samples begin with, of the prompt or the end of text; their number, 0 with err where the prompt
// cannot be used.
int run_prompt(const Run *run, int32_t ids[MAX_PROMPT_TOKENS], Error *err);

// The step that an evaluation is of; weights given by --model are as old as their folder records.
int64_t run_evaluated_step(const Run *run);

// Samples, from the prompt or from the end-of-text token. With --json standard output is JSON lines: those of the log,
// or, where nothing is trained, one per sample with the tokens, from which text that is no UTF-8 loses nothing.
bool run_samples(Run *run, Error *err);

// The evaluations, of those asked for, that the end of the run before came across: the log does not have them.
bool run_make_up(Run *run, bool val, bool hellaswag, Error *err);

// The training loop.
bool run_train(Run *run, Error *err);

#ifdef __cplusplus
}
#endif
