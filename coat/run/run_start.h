#pragma once
#include "run.h"

#define MIN_WITHOUT_BYTES 1024 // smallest vocabulary size that rules out byte tokens

// Prints a note on rank 0, unless --quiet is given.
__attribute__((format(printf, 2, 3))) void run_note(const Run *run, const char *format, ...);
// Prints a note on rank 0, even with --quiet. Use it for notes about the meaning of results or the step from which a
// run continues.
__attribute__((format(printf, 2, 3))) void run_note_always(const Run *run, const char *format, ...);

// Opens the tokenizer of the run. Without --tokenizer, opens the model's own tokenizer files or, if the vocabulary has
// 257 ids, the byte tokenizer; otherwise the run has no tokenizer. Fails if --tokenizer does not match the model's own
// vocabulary.
bool open_tokenizer(Run *run, const Config *config, Error *err);

// Opens the training data, the validation data and the HellaSwag questions that the flags name.
bool open_data(Run *run, const Config *config, Error *err);

// With --documents apart, splits the data into documents, which are then masked from each other.
bool divide_documents(Run *run, Error *err);

// On rank 0, prints notes about token files that were probably named by mistake, such as files with byte tokens.
void note_data(Run *run);

// Sets the run's prompt format: that of --prompt-format, else that recorded in the checkpoint, else that of the
// training data. Adds the format's end token to the model's EOS tokens, which checkpoints record.
bool choose_prompt_format(Run *run, Error *err);
