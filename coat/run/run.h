// Runs the program: trains up to the last step, evaluates, or samples.
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
#define BATCH_PLANES 4 // number of int32 arrays per micro-batch: inputs, targets, positions, image rows

typedef struct {
    Config *config; // configuration, which is complete and constant once the inputs are open
    Model model;
    DataLoader *train, *val;    // training and validation data; NULL: the run uses none
    bool masked;                // true if the training data has a loss mask
    HellaSwag *hellaswag;       // NULL: the run does not evaluate HellaSwag
    Tokenizer *tokenizer;       // NULL if there is no tokenizer, so that samples are printed as token ids
    PromptFormat prompt_format; // chat format of the samples' prompts; NONE means plain text
    Log *log;
    HealthWarned warned; // health warnings and notes that this process has already printed
    Saver *saver;        // writes checkpoints; NULL if the run saves nothing
    OutFolder *folder;   // folder of --out, locked by this process; NULL if not locked
    RunState done;       // progress of the run after its latest complete step
    int64_t steps;       // number of the last step
    double step_flops;   // FLOPs of the latest step over all processes
    double start_ms;     // time at which the program started
    double longest_ms;   // duration in ms of the training loop's longest iteration so far
    CommPlace place;     // rank of this process, and number of ranks
    RankErrors errors;
    bool save_asked;      // true if a signal to any process has requested a checkpoint
    int32_t *next;        // data of the next step: (micro-batches, BATCH_PLANES, B * T)
    int *next_images;     // number of images in each micro-batch of the next step
    uint8_t *next_pixels; // pixels of the next step's images: (micro-batches, vision_images(), 3 * side * side)
    Error pending_error;  // error that prevents the next step, such as unreadable data; code EXIT_DONE: none
    bool any_rank_failed; // true if a process has a pending_error
} Run;

// Opens the tokenizer of --tokenizer FILE for a new model. Sets the model's vocabulary size to the tokenizer's, unless
// --vocab or the model's name sets the size. Fails if the size is less than the tokenizer's.
bool run_open_tokenizer(Run *run, Config *config, Error *err);

// Completes the shape of a model to which --vision adds a tower, if the language model or the tower is read from files.
// given: values of the flags --image-size, --patch-size and --projector.
bool run_join_vision(Config *config, const VisionShape *given, Error *err);

// Executes the run, from opening the device to the last save, and then closes the run on all processes. On failure,
// prints the error and returns false with err. If the other processes do not know the error, also ends the other
// processes.
bool run_main(Run *run, Config *config, Error *err);

// --- functions that run.c and run_start.c share ------------------------------------------------------------

// Computes and logs the validation loss. Without --val, does nothing.
bool run_validate(Run *run, Error *err);

// Sets ids[] to the tokens that samples start with: the prompt's tokens, after a BOS token if the tokenizer has one.
// Without a prompt, the only token is BOS, else EOS, else the vocabulary's last token. Returns the number of tokens.
// Returns 0 with err if:
//   - the prompt cannot be encoded;
//   - the prompt and its image are longer than --seq-len;
//   - a token is outside the model's vocabulary.
int run_prompt(const Run *run, int32_t ids[MAX_PROMPT_TOKENS], Error *err);

// Returns the step that an evaluation reports: the run's step, or the step at which the weights of --model were saved.
int64_t run_evaluated_step(const Run *run);

// Prints samples that continue the prompt; with --json, the text goes to stderr. With --json and without training,
// prints a JSON line of token ids per sample to stdout, because JSON cannot store text that is not UTF-8.
bool run_samples(Run *run, Error *err);

// Runs the evaluations of the current step whose results the log lacks, because a signal or a kill ended the earlier
// process before these evaluations. val, hellaswag: true if a validation or a HellaSwag evaluation is due at this step.
bool run_missed_evaluations(Run *run, bool val, bool hellaswag, Error *err);

// Runs the training loop until the last step, a signal or --time-limit, and then saves a checkpoint.
bool run_train(Run *run, Error *err);

C_LINKAGE_END
