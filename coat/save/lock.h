// Locks a run's folder, so that only one run at a time writes to it. A run holds flock() on the file OUT/.lock, and
// writes its host, process id and start time into the file. The system releases this lock when the process ends, so a
// killed run does not block later ones. On a file system without flock(), the existence of the file is the lock, so the
// user must delete the file of a killed run.
#pragma once
#include "base/error.h"

C_LINKAGE_BEGIN

typedef struct {
    int fd;          // file descriptor of the .lock file; -1: not locked
    bool taken;      // true: lock_acquire() failed because another run holds the lock
    char path[1100]; // path of the .lock file
} Lock;

// Locks an existing folder. Fails (EXIT_DATA) if another run holds the lock; err then names that run's host, process
// and start time. Also fails if the .lock file is a link or cannot be written.
bool lock_acquire(Lock *lock, const char *folder, Error *err);

// True if the .lock file in the folder is the file that lock_acquire() has locked. False if the file, the folder or a
// parent of the folder was removed, renamed or replaced since.
bool lock_is_held(const Lock *lock);

// Removes the .lock file and releases the lock. If another run has replaced the .lock file, leaves that file in place.
// Does nothing if fd is -1.
void lock_release(Lock *lock);

C_LINKAGE_END
