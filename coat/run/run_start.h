// Functions of run_inputs.c that run_start.c calls.
#pragma once
#include "run.h"

#define MIN_WITHOUT_BYTES 1024 // minimum size of a vocabulary that cannot be the byte vocabulary

// Prints a note on rank 0, except with --quiet.
__attribute__((format(printf, 2, 3))) void run_note(const Run *run, const char *format, ...);
// Prints a note on rank 0, even with --quiet, because it concerns the meaning of results or the point from which the
// run continues.
__attribute__((format(printf, 2, 3))) void run_note_always(const Run *run, const char *format, ...);

// Opens the tokenizer of the run's vocabulary. If there is none, training continues without it.
bool open_tokenizer(Run *run, const Config *config, Error *err);

// Opens the training data, the validation data and HellaSwag, if the flags name them.
bool open_data(Run *run, const Config *config, Error *err);

// With --documents apart, splits the data into documents.
bool divide_documents(Run *run, Error *err);

// Adds notes about files that were probably named by mistake.
void note_data(Run *run);

// Sets the prompt format to that of --prompt-format, the checkpoint or the training data, in this order of preference.
// Its end token becomes an EOS token, also in checkpoints.
bool choose_prompt_format(Run *run, Error *err);
