// state.json of a checkpoint: where the run stands, and the settings that it continues with.
#pragma once
#include "checkpoint.h"
#include "io/json.h"

#ifdef __cplusplus
extern "C" {
#endif

#define STATE_NAME "state.json"

void run_state_text(JsonText *t, const RunState *run, const Config *config, int ranks);

// Reads `path` back. Settings are compared with config: another precision of the weights is an error, rank 0
// names other differences on stderr.
bool run_state_read(const char *path, RunState *run, const Config *config, const Exec *exec, Error *err);

// The position becomes that after the same share of a pass of `pass` sequences of seq_len tokens: with another
// --seq-len or --examples data are other sequences. What records no pass, from before, is taken by its tokens.
void run_state_keep_share(RunState *run, int64_t pass, int seq_len);

// The step that `path` says the run stands at; -1 where there is no such file, or it cannot be read.
int64_t run_state_step(const char *path);

// What `path` says of the data that the run was trained on, as data_describe() has it; "" where it does not.
void run_state_data(const char *path, char *text, size_t size);

#ifdef __cplusplus
}
#endif
