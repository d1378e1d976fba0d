// Checkpoints in the background: the run hands over its state and trains on while a thread writes the files. One
// write at a time; a save waits for the one before. Every call belongs to the thread that trains.
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

// Bytes of this process's part of a checkpoint.
int64_t saver_bytes(const Arena *arena, Exec *exec);

// For saves to the folder config->out, with the vocabulary that config names. Reserves the memory for the copy of the
// states where there are to be regular saves; if it cannot, one note, and training waits for each save, as it does for
// single ones. exit() waits for a write that is under way.
Saver *saver_open(const Config *config, const Arena *arena, Exec *exec, Log *log);

// The vocabulary that config names, opened, which outlives the saver; without it checkpoints have its files alone.
void saver_vocabulary(Saver *saver, const Tokenizer *tokenizer);

// The folder that this process has locked, which outlives the saver: it is looked after from now on, as is the log in
// it. Where it is removed or renamed during the run it is made again, and a save is asked for (signals_ask_save). Where
// another run has it by then, nothing more is written there: saver_poll() says so, and what is saved from then on goes
// to a folder beside it (outdir.h). Where the folder cannot be made again the next save goes
// there, too, and the run stays.
void saver_watch(Saver *saver, OutFolder *folder);

// With several processes, after saver_open(): they save together, all calling saver_save() for the same steps; rank 0
// speaks for them. False where rank 0 would need room for the copy, and has none.
bool saver_share(Saver *saver, Shards *shards, Error *err);

// Saves this state and prunes older checkpoints (checkpoint.h). Returns when the states are copied.
void saver_save(Saver *saver, const RunState *run);

// The last save, which all processes call for together: of this state, unless that is saved already and is there. Once
// more where the folder was lost meanwhile. Returns when it is written, or has failed.
void saver_save_last(Saver *saver, const RunState *run);

// Says what became of a save that has ended since: a line in the log, or a warning on stderr, and the run continues.
// Looks after the folder once a second. False where the run must end, because another one has its folder.
bool saver_poll(Saver *saver, Error *err);

// True if this process, one of several, could not write its shard of the latest save and the others do not know it yet.
// Then all of them call saver_give_up(), which tells them why; rank 0 prints it.
bool saver_has_failed(const Saver *saver);
void saver_give_up(Saver *saver);

// Waits for the write under way. False where the latest save has failed, or the folder is lost to the run: err then
// says where this one was saved last.
bool saver_finish(Saver *saver, Error *err);

// Whether the folder is lost to the run: another one has it, or it could not be made again for a save. err
// (EXIT_DATA) then says where this one was saved last. Waits for the write under way.
bool saver_is_taken(Saver *saver, Error *err);

// Where it saves: --out, or the folder that has taken its place.
const char *saver_out(const Saver *saver);

// The step of the latest save, if that is there; -1: it has failed, there was none, or another run has the folder.
// Waits for the write under way.
int64_t saver_step(Saver *saver);

// What a save will take with all its waiting, in ms: as long as the longest so far, and guessed before the first.
double saver_expected_ms(const Saver *saver);

// Waits, says how the last save went unless that has been said, and gives the memory back. NULL is allowed.
void saver_close(Saver *saver);

#ifdef __cplusplus
}
#endif
