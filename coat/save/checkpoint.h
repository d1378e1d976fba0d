// A checkpoint is a folder such as OUT/step-00000020. A run resumes from the folder bit for bit, and transformers loads
// the folder as a model:
//   model.safetensors      parameters in Hugging Face's names and layout; config.json, generation_config.json and
//                          model.safetensors.index.json describe them
//   optimizer.safetensors  moments and master weights in the run's own formats; one file per process if there are
//                          several (checkpoint_shards.h)
//   state.json             step, position in the data, and the settings that a resumed run uses (run_state.h)
//   matmul_table.txt       GPU only: the GEMM algorithms that training has used so far on rank 0 (matmul_algos.h)
//   manifest.json          sizes and hashes of all other files; written last (manifest.h)
//   tokenizer.json, ...    the tokenizer's files (tokenizer_files.h)
// The checkpoint of a vision-language model also contains preprocessor_config.json and processor_config.json (hf.h).
// Its model.safetensors also stores the vision tower, the projector, and tower tensors that this program does not use
// (hf_carried_parts()). The files contain no time, path or host name, so identical runs write identical bytes. Every
// file is flushed to the disk. The folder gets its final name only when all files are complete.
#pragma once
#include "model/arena.h"
#include "model/guard.h"

C_LINKAGE_BEGIN

// The progress of a run, which state.json in a checkpoint stores together with the run's settings.
typedef struct {
    int64_t step;      // number of steps done, including those whose update was skipped
    int64_t sequences; // sequences consumed by all ranks together: the position in the data
    int64_t pass;      // number of sequences in one pass over the data; 0: not recorded
    int64_t tokens;    // tokens consumed by all ranks together
    uint64_t data_fingerprint;
    char data[192];  // human-readable description of the training data (data_describe()); "": unknown
    StepState state; // counters and loss of the latest step, as downloaded from the device
    Guard guard;     // outlier guard of --skip-loss-z and --skip-grad-z: recent losses and gradient norms
} RunState;

// Writes a checkpoint of run->step into `out` in the foreground. Only tests call this; a run saves with saver.h.
// Creates `out` if it does not exist. Replaces a checkpoint of the same step when the new checkpoint is complete. If
// the save fails before the new folder gets its final name, removes the new folder and leaves older checkpoints
// unchanged.
// The run must have only one process.
//   tokenizer_file: a vocabulary file or folder whose files tokenizer_files_copy() copies; NULL: none
bool checkpoint_save(const char *out, const Arena *arena, Exec *exec, const RunState *run, const char *tokenizer_file,
                     Error *err);

// Sets `folder` to a complete checkpoint under `out` after verifying every byte by its checksum.
//   step < 0:  the newest valid checkpoint; prints each invalid one to stderr. If `out` has no checkpoint, returns true
//              and folder "". Fails if all checkpoints are invalid. Also fails if a checkpoint cannot be read, because
//              that checkpoint may be valid.
//   step >= 0: the checkpoint of that step. Fails if this checkpoint is missing, invalid or unreadable.
// Also fails if state.json records a step that differs from the folder's name.
bool checkpoint_find(const char *out, int64_t step, char *folder, size_t size, Error *err);

// True if `out` has a checkpoint folder of `step` (of any step if step < 0). Looks at folder names only and opens no
// file. Sets err if there is no such folder.
bool checkpoint_expect(const char *out, int64_t step, Error *err);

// Writes the path of the checkpoint folder of `step` under `out` to folder[size].
bool checkpoint_folder(const char *out, int64_t step, char *folder, size_t size, Error *err);

// Returns the step in the name of a checkpoint folder; -1 if the last part of the path has a different form.
int64_t checkpoint_step(const char *folder);

// True if `name` is the name of a folder left by an interrupted save or removal: ".step-00000020" followed by `suffix`.
// The suffix is ".tmp" for an incomplete checkpoint, ".old" for a replaced or removed one.
bool checkpoint_is_leftover(const char *name, const char *suffix);

// Returns the step of the weights in a model folder: the step in its state.json, or else in the folder's name; -1 if
// neither has one.
int64_t checkpoint_weights_step(const char *folder);

// True if state.json in `folder` says that the weights were trained on data with a loss mask.
bool checkpoint_is_masked(const char *folder);

// Sets *steps (malloc'ed) to the steps of all checkpoint folders under `out`, valid or not, newest first, and returns
// their number. Returns 0 if `out` does not exist, -1 with err if `out` cannot be read. Free *steps after a failure,
// too.
int checkpoint_steps(const char *out, int64_t **steps, Error *err);

// Loads a checkpoint that checkpoint_find() has found: parameters, optimizer states, StepState on the device, *run, and
// on a GPU the GEMM algorithms that the checkpoint records for this GPU model and version of cuBLAS.
//   - A different model or precision is an error that names the setting and both values. So is a different optimizer
//     if the run trains.
//   - Other settings that differ are printed to stderr. States in other formats are converted (states_read.h).
//   - If nothing is trained (config_forward_only()), optimizer states are not read.
//   - FP8 copies of weights are not restored; call weights_quantize() afterwards.
bool checkpoint_load(const char *folder, Arena *arena, Exec *exec, RunState *run, Error *err);

// Call this if a file of the checkpoint in `folder` could not be read. If `folder` no longer exists, because a training
// run has removed it, replaces err with a message that says so. Always returns false.
bool checkpoint_unread(const char *folder, Error *err);

// Verifies the files of a checkpoint by the checksums in its manifest: all files without tensors, and model.safetensors
// if `weights`. Fails (EXIT_DATA) naming the first bad file. True, without checks, if `path` is not a folder with a
// manifest.json.
bool checkpoint_check_files(const char *path, bool weights, Error *err);

// Loads weights without optimizer states. Sets weights and master weights to the files' values, and moments and
// StepState to zero. `path` is a model folder with safetensors (one file or several), a .safetensors file next to its
// config.json, or a weight file of llm.c. With --vision, loads only the language model. Token embeddings that the files
// lack are set to the mean of the files' embeddings.
bool checkpoint_load_weights(const char *path, Arena *arena, Exec *exec, Error *err);
// Loads the weights of a vision tower into the arena `vision`. `path` is the folder of a CLIP, SigLIP or Llava model,
// or of a tower alone. Does not load the projector.
bool checkpoint_load_tower(const char *path, Arena *vision, Exec *exec, Error *err);

// Deletes old checkpoints under `out`, and folders that remain there from interrupted saves (.step-...). Keeps the
// checkpoint of step `saved`, checkpoints of later steps, and checkpoints that lack files or have files of the wrong
// size. Of the other checkpoints of earlier steps, keeps the keep - 1 newest (keep 0: all). Also keeps earlier
// checkpoints whose step is divisible by keep_every (0: none). Prints errors to stderr.
void checkpoint_prune(const char *out, int64_t saved, int keep, int64_t keep_every);

// Renames the checkpoints of steps after `step`, because a run that resumes from `step` must not count or load later
// checkpoints. The new name is abandoned-N-step-... (damaged-N-step-... if `damaged`), N being the first free number.
bool checkpoint_rename_later(const char *out, int64_t step, bool damaged, Error *err);

C_LINKAGE_END
