// One run at a time in a folder: OUT/.lock, a file that names the run's host, process and start. It is locked with
// flock(), which the end of the process releases however it comes, so a file that is left over locks nothing. On file
// systems without flock() the file's being there is the lock (OUT/.lock-holder), and it is given up for dead where it
// names a process of this host that is no more.
#pragma once
#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int fd;           // -1: nothing is held
    char path[1100];  // of the file to be removed
    char holder[400]; // where it could not be taken: the run that holds it, "process 7 on host, since ..."; "": none
} Lock;

// Takes the lock of a folder that exists. Errors (EXIT_DATA): another run holds it, which is named; the file cannot
// be written, or is a link.
bool lock_take(Lock *lock, const char *folder, Error *err);

// What is said of a folder that another run holds, though its lock may be gone. Always false.
bool lock_refuse(Lock *lock, const char *folder, Error *err);

// The second kind alone.
bool lock_take_by_presence(Lock *lock, const char *folder, Error *err);

// Whether the locked file is still the one of that name. Else it, or a folder above it,
// was removed, renamed or replaced.
bool lock_is_held(const Lock *lock);

// Whether the file in the folder is one that this process has left there, with a folder that was moved away: no
// other run has been there since.
bool lock_was_left(const char *folder);

// Removes the file and releases the lock. Nothing where none is held.
void lock_release(Lock *lock);

#ifdef __cplusplus
}
#endif
