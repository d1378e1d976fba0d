// Checkpoints in the background: the run hands over its state and trains on while a thread writes the files. One
// write at a time; a save waits for the one before. Every call belongs to the thread that trains.
#pragma once
#include "checkpoint.h"
#include "log.h"
#include "shards.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SAVER_PATIENCE 3600 // seconds that one process may wait for others to write

typedef struct Saver Saver;

// For saves to the folder config->out, with the vocabulary that config names. Reserves the memory for the copy of the
// states where there are to be regular saves; if it cannot, one note, and training waits for each save, as it does for
// single ones. exit() waits for a write that is under way.
Saver *saver_open(const Config *config, const Arena *arena, Exec *exec, Log *log);

// With several processes, after saver_open(): they save together, all calling saver_save() for the same steps; rank 0
// speaks for them. False where rank 0 would need room for the copy, and has none.
bool saver_share(Saver *saver, Shards *shards, Error *err);

// Saves this state and prunes older checkpoints (checkpoint.h). Returns when the states are copied.
void saver_save(Saver *saver, const RunState *run);

// Says what became of a save that has ended since: a line in the log, or a warning on stderr, and the run goes on.
void saver_poll(Saver *saver);

// Waits for the write under way. False where the latest save has failed.
bool saver_finish(Saver *saver, Error *err);

// The step that was saved last, or is being saved; -1: none.
int64_t saver_step(const Saver *saver);

// What a save will take with all its waiting, in ms: as long as the longest so far, and guessed before the first.
double saver_expected_ms(const Saver *saver);

// Waits, says how the last save went unless that has been said, and gives the memory back. NULL is allowed.
void saver_close(Saver *saver);

#ifdef __cplusplus
}
#endif
