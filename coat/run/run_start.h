// What run_start.c and run_inputs.c have in common.
#pragma once
#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MIN_WITHOUT_BYTES 1024 // tokens of a vocabulary that is not one of bytes

// A remark of the first process; not with --quiet.
__attribute__((format(printf, 2, 3))) void run_note(const Run *run, const char *format, ...);
// With --quiet too: it makes a figure of the run mean something else, or the run go on from elsewhere.
__attribute__((format(printf, 2, 3))) void run_note_always(const Run *run, const char *format, ...);

// Opens the vocabulary; training continues without one.
bool open_tokenizer(Run *run, const Config *config, Error *err);

// Opens training data, validation data and HellaSwag, those that are asked for.
bool open_data(Run *run, const Config *config, Error *err);

// Has documents kept apart, where that is asked for.
bool divide_documents(Run *run, Error *err);

// What looks like a mistake in the choice of files.
void note_data(Run *run);

// The format of prompts, where neither flag nor checkpoint says it that of the training data. What ends its answers
// ends texts, here and for who reads the checkpoints.
bool choose_prompt_format(Run *run, Error *err);

#ifdef __cplusplus
}
#endif
