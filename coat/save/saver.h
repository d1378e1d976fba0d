// Saves checkpoints in the background: the run hands over its state and trains on while a thread writes the files. A
// save waits until the previous one is written. Call all functions from the thread that trains.
#pragma once
#include "checkpoint.h"
#include "log/log.h"
#include "model/shards.h"
#include "outdir.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Saver Saver;

// Returns the bytes of this process's part of a checkpoint.
int64_t saver_bytes(const Arena *arena, Exec *exec);

// Creates a saver for the folder config->out. With --save-every, allocates memory for a copy of the states. If that
// fails, prints a note, and training waits while a checkpoint is written. exit() waits for a write in progress.
Saver *saver_open(const Config *config, const Arena *arena, Exec *exec, Log *log);

// Sets the tokenizer of the vocabulary that config names, which must outlive the saver. Without it, checkpoints contain
// only the vocabulary's own files.
void saver_vocabulary(Saver *saver, const Tokenizer *tokenizer);

// Sets the folder that this process has locked, which must outlive the saver. Before each save, out_ensure() checks it,
// and log_reopen() continues the log in it. If the folder cannot be created, the save fails. If another run has it,
// nothing is written any more, and saver_poll() reports that.
void saver_watch(Saver *saver, OutFolder *folder);

// Call after saver_open() with several processes, which then save together: all call saver_save() for the same steps,
// and rank 0 prints the messages. Fails (EXIT_DEVICE) if rank 0 needs memory for the copy and has too little.
bool saver_set_shards(Saver *saver, Shards *shards, Error *err);

// Saves the state `run` and deletes older checkpoints as --keep says. Returns when the states are copied.
void saver_save(Saver *saver, const RunState *run);

// Saves the state `run` unless its checkpoint exists. All processes call this together at the end of the run. Returns
// when the checkpoint is written, or has failed.
void saver_save_last(Saver *saver, const RunState *run);

// Reports a save that has ended: with a line in the log if it succeeded, with a warning on stderr if it failed. Returns
// false with err (EXIT_DATA) if the run must end because another run has the folder.
bool saver_poll(Saver *saver, Error *err);

// True if this process, one of several, could not write its shard of the latest save and the others do not know it yet.
// Then all processes must call saver_give_up(), which tells them the reason; rank 0 prints it.
bool saver_has_failed(const Saver *saver);
void saver_give_up(Saver *saver);

// Waits for the write in progress. Returns false with err (EXIT_DATA) if the latest save failed or if another run has
// the folder.
bool saver_finish(Saver *saver, Error *err);

// True, with err (EXIT_DATA), if another run has the folder. Waits for the write in progress.
bool saver_is_taken(Saver *saver, Error *err);

// Returns the folder of the checkpoints.
const char *saver_out(const Saver *saver);

// Waits for the write in progress. Returns the step of the latest save; -1 if there was none, or if it failed or its
// checkpoint no longer exists.
int64_t saver_step(Saver *saver);

// Returns the expected duration of a save in ms, including all waiting: that of the slowest save so far, or an estimate
// before the first.
double saver_expected_ms(const Saver *saver);

// Waits for the write in progress, reports it, and frees the saver. NULL is allowed.
void saver_close(Saver *saver);

#ifdef __cplusplus
}
#endif
