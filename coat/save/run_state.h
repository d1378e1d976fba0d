// Reads and writes state.json of a checkpoint: the run's position (RunState) and the settings that a resumed run uses.
#pragma once
#include "checkpoint.h"
#include "io/json.h"

C_LINKAGE_BEGIN

#define STATE_NAME "state.json"

// Writes the contents of state.json to `t`. ranks: number of processes, used to compute batch-tokens.
void run_state_text(JsonText *t, const RunState *run, const Config *config, int ranks);

// Reads the state.json file `path` into *run, and compares its settings with config. A different precision is an error,
// and so is a different optimizer if the run trains. Rank 0 of a run that trains prints other differences to stderr.
bool run_state_read(const char *path, RunState *run, const Config *config, const Exec *exec, Error *err);

// Rescales run->sequences from a pass of run->pass sequences to a pass of `pass` sequences, because a different
// --seq-len or --examples cuts the data into a different number of sequences. If the checkpoint records no pass, sets
// run->sequences to run->tokens / seq_len. Sets run->pass to `pass`.
void run_state_scale_position(RunState *run, int64_t pass, int seq_len);

// Reads the step and the data's description from folder/state.json. Sets the other fields to 0. If state.json cannot be
// read, sets step to -1 and data to "".
void run_state_summary(const char *folder, RunState *run);

// True if state.json in the folder `path`, or in the folder of the file `path`, records --optimizer muon.
bool run_state_has_muon(const char *path);

C_LINKAGE_END
