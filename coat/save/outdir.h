// Creates, locks and checks the folder that a run writes to (--out). A run never takes over another run's folder by
// accident.
#pragma once
#include "config/config.h"
#include "lock.h"

C_LINKAGE_BEGIN

// Checks that config->out is suitable as a run's folder. Changes nothing. Fails (EXIT_DATA) if config->out is a
// checkpoint, has a checkpoint's name, or is inside a checkpoint; err names the checkpoint. Fails (EXIT_USER) for "/",
// for an unexpanded ~, and if --overwrite would delete the files of --model, --vision or --tokenizer.
bool out_check(const Config *config, Error *err);

// The folder that this run writes to and has locked.
typedef struct {
    char path[PATH_MAX_LENGTH + 32];
    int fd; // file descriptor of the folder; stays open so that no other folder gets this inode number
    Lock lock;
} OutFolder;

// Creates the folder config->out if it is missing and locks it until out_close(). Deletes nothing. Fails (EXIT_DATA) if
// the folder cannot be written or another run has locked the folder. Without --resume and --overwrite, also fails if
// the folder holds a run (a log, event files, checkpoints).
bool out_prepare(const Config *config, OutFolder *out, Error *err);

// Checks that the folder at out->path and its .lock file are still those that this run has locked. If one of them was
// removed, renamed or replaced, creates and locks the folder again and prints a warning. Fails (EXIT_DATA) if the
// folder cannot be created or locked, or if another run has files in it. Sets *taken to true if another run has locked
// the folder or has files in it, otherwise to false.
bool out_ensure(OutFolder *out, bool *taken, Error *err);

// Releases the lock on the run's folder.
void out_close(OutFolder *out);

// With --overwrite, deletes the old run's files (out_is_run_file()) and no other files. Call this after all input has
// been read, so that the old run is still there if an input cannot be read. If permissions forbid deleting one of the
// files, deletes nothing and fails (EXIT_DATA).
bool out_clear(const Config *config, Error *err);

// True if a run creates files or folders with this name in its folder: the log, event files, loss.svg,
// matmul_table.txt, checkpoints such as step-00000020, and folders of interrupted saves such as .step-00000020.tmp.
bool out_is_run_file(const char *name);

// Disk space for checkpoints in a run's folder.
typedef struct {
    double free;  // free bytes, including bytes that the run's start or first save will free
    int64_t held; // number of checkpoints that exist in the folder and count for --keep
    double block; // block size of the file system in bytes; every file occupies whole blocks
} OutRoom;

// Reads the free disk space of config->out from its file system. Returns false if the file system does not report it.
bool out_room(const Config *config, OutRoom *room);

// True if at least one checkpoint of `bytes` bytes fits on the disk; otherwise sets err (EXIT_DATA). --save-every and
// --keep may retain more checkpoints between step `begun` and step `steps` than fit. If so, sets note to a warning that
// the disk would become full, otherwise to "". The estimate includes partly filled blocks of files, the log, and a
// margin of 2 %.
bool out_fits(const Config *config, OutRoom room, int64_t begun, int64_t steps, double bytes, char *note, size_t size,
              Error *err);

C_LINKAGE_END
