// Saves checkpoints in the background: the run passes a copy of its state to a thread that writes the files, and
// continues training. A save waits until the previous one is written. Call all functions from the thread that trains.
// With several processes, all of them must call saver_save(), saver_save_last(), saver_give_up(), saver_finish(),
// saver_is_taken() and saver_step() together.
#pragma once
#include "checkpoint.h"
#include "log/log.h"
#include "model/shards.h"
#include "outdir.h"
#include "text/tokenizer.h"

C_LINKAGE_BEGIN

typedef struct Saver Saver;

// Returns the size in bytes of the tensors that this process writes into a checkpoint.
int64_t saver_bytes(const Arena *arena, Exec *exec);

// Creates a saver for the folder config->out. With --save-every, allocates memory for a copy of the states. If that
// fails, prints a note, and training waits while a checkpoint is written. exit() waits for a background write.
Saver *saver_open(const Config *config, const Arena *arena, Exec *exec, Log *log);

// Sets the tokenizer of config->vocabulary. The tokenizer must outlive the saver. Without a tokenizer, checkpoints
// contain only the vocabulary's own files.
void saver_vocabulary(Saver *saver, const Tokenizer *tokenizer);

// Sets the folder that this process has locked. `folder` must outlive the saver. Before each save, out_ensure() checks
// the folder and recreates it if it is missing, and log_reopen() reopens the log in it. The save fails if the folder
// cannot be created, or if the folder is removed or replaced before the files are written. If another run has locked
// the folder or has files in it, nothing more is written, and saver_poll() fails.
void saver_watch(Saver *saver, OutFolder *folder);

// Makes several processes save together. Call it after saver_open(). All processes then call saver_save() for the same
// steps, and rank 0 prints the messages. In ZeRO 3, fails (EXIT_DEVICE) on rank 0 if rank 0 lacks the host memory for a
// copy.
bool saver_set_shards(Saver *saver, Shards *shards, Error *err);

// Saves the state `run`; --keep decides which older checkpoints are deleted. Returns when the states have been copied.
// If a process has no memory for a copy, returns when the states are written.
void saver_save(Saver *saver, const RunState *run);

// Saves the state `run` unless its checkpoint exists. All processes call this together at the end of the run. Like
// saver_save(), may return before the files are written; saver_finish() waits for them.
void saver_save_last(Saver *saver, const RunState *run);

// Reports a finished save: prints a line with log_text() if the save succeeded, a warning to stderr if it failed.
// Returns false with err (EXIT_DATA) if the run must end because another run uses the folder.
bool saver_poll(Saver *saver, Error *err);

// True if this process is not rank 0, could not write its shard of the latest save, and has not yet told the other
// ranks. All processes must then call saver_give_up(), which tells every rank the reason; rank 0 prints the reason.
bool saver_has_failed(const Saver *saver);
void saver_give_up(Saver *saver);

// Waits until the save in progress is written. Returns false with err (EXIT_DATA) if the latest save failed or if
// another run uses the folder.
bool saver_finish(Saver *saver, Error *err);

// True, with err (EXIT_DATA), if another run uses the folder. Waits until the save in progress is written.
bool saver_is_taken(Saver *saver, Error *err);

// Waits until the save in progress is written. Returns the step of the latest save; -1 if there was no save or it
// failed. On rank 0, also returns -1 if the checkpoint no longer exists.
int64_t saver_step(Saver *saver);

// Returns the expected duration of a save in ms, including all waiting: the duration of the slowest save so far, or an
// estimate before the first save.
double saver_expected_ms(const Saver *saver);

// Waits until the save in progress is written, reports it, and frees the saver. The argument may be NULL.
void saver_close(Saver *saver);

C_LINKAGE_END
