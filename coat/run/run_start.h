// Functions of run_inputs.c for run_start.c.
#pragma once
#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MIN_WITHOUT_BYTES 1024 // a vocabulary with this number of tokens is not one of bytes

// Prints a note on rank 0, except with --quiet.
__attribute__((format(printf, 2, 3))) void run_note(const Run *run, const char *format, ...);
// Prints a note on rank 0, also with --quiet, because it changes the meaning of results or the place that the run
// continues from.
__attribute__((format(printf, 2, 3))) void run_note_always(const Run *run, const char *format, ...);

// Opens the vocabulary. Training continues without one.
bool open_tokenizer(Run *run, const Config *config, Error *err);

// Opens the training data, the validation data and HellaSwag, if the flags name them.
bool open_data(Run *run, const Config *config, Error *err);

// With --documents apart, splits the data into documents.
bool divide_documents(Run *run, Error *err);

// Adds notes about files that were probably named by mistake.
void note_data(Run *run);

// Sets the prompt format to that of --prompt-format, the checkpoint or the training data, in this order. Its end token
// becomes an EOS token, also in checkpoints.
bool choose_prompt_format(Run *run, Error *err);

#ifdef __cplusplus
}
#endif
