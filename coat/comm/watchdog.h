// Ends this process if another rank of the run hangs or is lost. A separate thread detects the loss, because the
// training thread may be waiting in MPI or for a GPU. The ranks of one machine write their progress to a table in
// shared memory (the "board"), so that messages can name the late rank.
#pragma once
#include "comm.h"

C_LINKAGE_BEGIN

typedef struct Watchdog Watchdog;

// Starts the watchdog thread. counters[0] is the number of collectives that this rank has started, counters[1] the
// number that have finished; a GPU may write both. The thread ends the process with one line on standard error if
//   - a collective takes longer than *timeout seconds and longer than twice this rank's own work before the collective;
//   - the work between watchdog_begin() and watchdog_end() takes longer than *timeout seconds;
//   - the watchdog of another rank of this machine has not run for *timeout seconds, at most COMM_TIMEOUT_S;
//   - another rank of this machine has ended the run with watchdog_report_exit() or exit().
// In the last case, this process exits with the other rank's exit code; in all other cases, with EXIT_RANK.
Watchdog *watchdog_open(const CommPlace *place, const volatile int *timeout, const volatile uint32_t *counters);

// Moves the progress of the ranks of this machine to a shared board. `id` must be the same on all ranks of the run and
// different in every other run. If shared memory is not available, each rank keeps its private board.
void watchdog_share(Watchdog *w, const void *id, size_t bytes);
void watchdog_all_connected(Watchdog *w); // removes the shared board's name after all ranks have opened the board

// The watchdog ends the process if watchdog_end() is not called within *timeout seconds after watchdog_begin(). doing:
// name of the work for the message, valid until watchdog_end().
void watchdog_begin(Watchdog *w, const char *doing);
void watchdog_end(Watchdog *w);
// Tells the other ranks of this machine to end with exit code `code`, because this rank ends the run. Code 0 becomes
// EXIT_RANK, because a rank that exits without watchdog_close() has not finished its work.
void watchdog_report_exit(int code);
void watchdog_close(Watchdog *w); // ends this rank's watchdog thread; call this after the rank has finished its work

C_LINKAGE_END
