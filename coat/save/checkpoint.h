// Checkpoints: a folder OUT/step-00000020 that a run resumes from bit for bit, and that transformers loads as a
// GPT-2. It holds
//   model.safetensors      the parameters in Hugging Face's names and layout (config.json and an index beside it)
//   optimizer.safetensors  moments and master weights, in the run's own formats and layout; in shares, where several
//                          processes wrote them (checkpoint_shards.h)
//   state.json             where the run stands, and every setting that it continues with
//   matmul_table.txt       of a GPU: which algorithms its matmuls took (matmul_algos.h)
//   manifest.json          sizes and hashes of all files, written last
// and the tokenizer's files. No time, path or host is in them: equal runs give equal bytes. What they contain
// derives from the table of tensors. Each file is flushed, and the folder gets its name only when it is whole.
#pragma once
#include "model/arena.h"
#include "model/guard.h"

#ifdef __cplusplus
extern "C" {
#endif

// What a checkpoint records beside the tensors.
typedef struct {
    int64_t step;      // updates attempted so far = next step index
    int64_t sequences; // consumed by all ranks together: the position in the data
    int64_t pass;      // sequences of one pass over the data, as that position counts them; 0: not recorded
    int64_t tokens;    // tokens seen
    uint64_t data_fingerprint;
    char data[192];  // what the data were, for people; "": not known
    StepState state; // as downloaded from the device
    Guard guard;     // where --skip-loss-z or --skip-grad-z is given
} RunState;

// Saves run->step under `out`, which is made where it is missing, at once (saver.h does so in the background);
// for the process that holds the whole state (rank 0 without ZeRO). tokenizer_file: a vocabulary (encoder.json,
// vocab.json with their merges beside them, gpt2_tokenizer.bin) or a folder with one, copied along; NULL: none.
// A checkpoint of the same step is replaced, once the new one is whole. On failure nothing of the new one
// remains and older ones are untouched.
bool checkpoint_save(const char *out, const Arena *arena, Exec *exec, const RunState *run, const char *tokenizer_file,
                     Error *err);

// Finds the newest complete checkpoint under out, or the one of `step` where that is >= 0; folder is "" (and the
// result true) when there is none. Every byte is checked. Damaged ones are skipped with a line on stderr saying
// which and why, unless asked for by number: then that is the error, as is a step that is not there. An error, too: one
// that cannot be read, which may be whole; and one with the name of another step.
bool checkpoint_find(const char *out, int64_t step, char *folder, size_t size, Error *err);

// Whether there is anything to look for: the checkpoint of `step`, or any where that is < 0; by their names, nothing is
// read. false with err where there is none.
bool checkpoint_expect(const char *out, int64_t step, Error *err);

// The folder of a step's checkpoint, and the reverse: -1 where the name is no checkpoint's.
bool checkpoint_folder(const char *out, int64_t step, char *folder, size_t size, Error *err);
int64_t checkpoint_step(const char *folder);

// The step of a folder's weights: the one that a checkpoint records, whatever its folder is called, else that of the
// name. -1: neither says one.
int64_t checkpoint_weights_step(const char *folder);

// Whether the folder's weights were trained on data of which, as it records, not all tokens counted.
bool checkpoint_is_masked(const char *folder);

// The steps of all checkpoint folders under out, whole or not, newest first, and their number; *steps is malloc'ed. No
// folder: none. -1: it cannot be read, which must not be taken for there being none.
int checkpoint_steps(const char *out, int64_t **steps, Error *err);

// Restores everything from a folder that checkpoint_find() named, StepState on the device included. Refuses
// another model or precision, naming the field and both values; other settings that differ from the checkpoint's are
// named on stderr, and states in other formats are converted (states_read.h). Matmuls take the algorithms that the
// checkpoint records, where the device is the same. The optimizer's states are left alone where nothing is trained
// (config_forward_only). FP8 copies of weights are not restored: weights_quantize() makes them.
bool checkpoint_load(const char *folder, Arena *arena, Exec *exec, RunState *run, Error *err);

// Verifies a checkpoint of this program by the checksums in its manifest: every file that holds no tensors, and
// model.safetensors if `weights`. False with err (EXIT_DATA), which names the file. True if path is something else.
bool checkpoint_check_files(const char *path, bool weights, Error *err);

// Loads weights alone: a folder (a checkpoint of ours, or any GPT-2 of Hugging Face's in safetensors, sharded or
// not), a .safetensors file, or llm.c's weight file. Masters follow the loaded values; moments and StepState
// become zero.
bool checkpoint_load_weights(const char *path, Arena *arena, Exec *exec, Error *err);

// Deletes complete checkpoints older than the one of step `saved`, but for the keep - 1 newest of them (keep 0: none is
// deleted) and those of steps divisible by keep_every (0: no such); and what interrupted runs left half-written. The
// one just saved is never touched. Failures to delete are reported on stderr.
void checkpoint_prune(const char *out, int64_t saved, int keep, int64_t keep_every);

// Renames the checkpoints of later steps than `step`, from which a run is resumed, to abandoned-1-step-...: they belong
// to another run and must be neither resumed nor counted among this one's. damaged: that is why they were passed
// over, so it is damaged-1-step-...
bool checkpoint_set_aside(const char *out, int64_t step, bool damaged, Error *err);

#ifdef __cplusplus
}
#endif
