// The folder that a run writes to: made if missing, and never taken from another run by accident.
#pragma once
#include "config/config.h"
#include "lock.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether config->out can be a run's folder: not where it is a checkpoint, has the name of one or of one that was set
// aside, or lies in one; nor the root, nor a ~ that the shell has left. Looks only. Errors: EXIT_DATA, naming the run
// that the checkpoint belongs to; EXIT_USER.
bool out_check(const Config *config, Error *err);

// The folder while a run writes to it.
typedef struct {
    char path[PATH_MAX_LENGTH + 32];
    char real[PATH_MAX_LENGTH + 32];     // where that led when the run came there
    char absolute[PATH_MAX_LENGTH + 32]; // the path without the working directory of then; "": too long
    int fd;    // of the folder, whatever its name is by now; locked as its .lock is, in case that is deleted
    int first; // of the first one, where the run is in another by now; -1: it is not
    Lock lock;
} OutFolder;

// Makes config->out, checks that it can be written and takes its lock, both out_close()'s to give back. A folder that
// holds a run (its log, event files or checkpoints) is refused unless --resume continues it or --overwrite gives it up;
// nothing is deleted yet. Errors: EXIT_DATA, naming the folder.
bool out_prepare(const Config *config, OutFolder *out, Error *err);

// What a run's files are called: a checkpoint, step-00000020, or what was left of writing one; or any of them.
bool out_is_checkpoint_name(const char *name);
bool out_is_run_file(const char *name);

// What the folder's disk has for the run, in bytes.
typedef struct {
    double free;  // with what the run's start or first save deletes there
    int64_t held; // checkpoints of this run that are there, which --keep counts; their bytes are not free
    double block; // that every file is rounded up to
} OutRoom;

// Whether checkpoints of so many bytes fit, of a run that continues after step `begun` and ends after `steps` > begun.
// False with err (EXIT_DATA): not a single one does. note: "", or what to say where later ones will not, as many as
// --save-every and --keep let there be at a time. What it advises fits with a margin: for blocks, the log, and 2 %.
bool out_fits(const Config *config, OutRoom room, int64_t begun, int64_t steps, double bytes, char *note, size_t size,
              Error *err);
// Asks the file system. False: it does not say.
bool out_room(const Config *config, OutRoom *room);

// Looks whether the folder is still the one that the run has locked. A relative path becomes absolute where its working
// directory was removed.
typedef enum {
    OUT_OURS,  // it is
    OUT_AGAIN, // it is again: new and empty, with its lock, or the first one come back; text says what had happened
    OUT_AWAY,  // it is not, and cannot be made now, as where a disk is away; err (EXIT_DATA) says why
    OUT_TAKEN  // another run writes there, or has left its files there; err (EXIT_DATA) says which
} OutState;
OutState out_keep(OutFolder *out, char *text, size_t size, Error *err);

// Whether the folder of that name is still the run's.
bool out_is_there(const OutFolder *out);

// Where the run's folder is by now; false, and "": it is nowhere.
bool out_place(const OutFolder *out, char *path, size_t size);

// For a run that cannot have its folder back: a new one beside it, RUN-rescued-1 or the next number that is free,
// locked, in its place. above: where none can be made beside it, then in the next folder above that takes one. Returns
// a number that stands for its name, 0 with err (EXIT_DATA) where none can be made.
int out_rescue(OutFolder *out, bool above, Error *err);
// The name. False: there is no such folder above.
bool out_rescue_path(char *path, size_t size, const char *out, int number);

// Gives back the lock.
void out_close(OutFolder *out);

// With --overwrite, deletes the old run's log and checkpoints, and nothing else: once everything that could still fail
// has been read, a model from the same folder included. Nothing where permissions forbid a part.
bool out_clear(const Config *config, Error *err);

#ifdef __cplusplus
}
#endif
