// Ends this process if another rank of the run hangs or is lost. This takes a separate thread, because the thread that
// trains may be waiting in MPI or for a GPU. The ranks of one machine share a board in memory to which each writes its
// progress, so that messages can name the late rank.
#pragma once
#include "comm.h"

C_LINKAGE_BEGIN

typedef struct Watchdog Watchdog;

// Starts the thread. counters[0] is the number of collectives that this rank has begun, counters[1] the number of those
// that have finished; a GPU may write them. The thread ends the process with one line on standard error if
//   - a collective, or the work between watchdog_begin() and watchdog_end(), takes longer than *timeout seconds; a
//     collective may also take twice as long as this rank has worked before it;
//   - a rank of this machine gives no sign of life for *timeout seconds, or for COMM_TIMEOUT_S if that is less;
//   - a rank of this machine has ended the run, by watchdog_report_exit() or exit(). Then its exit code is used.
// The exit code is EXIT_RANK otherwise.
Watchdog *watchdog_open(const CommPlace *place, const volatile int *timeout, const volatile uint32_t *counters);

// Shares a board with the other ranks of this machine. `id` identifies the run: equal bytes on all of its ranks, and
// different bytes in every other run. Without shared memory, each rank uses a private board.
void watchdog_share(Watchdog *w, const void *id, size_t bytes);
void watchdog_all_connected(Watchdog *w); // removes the board's name when all ranks have opened it

void watchdog_begin(Watchdog *w, const char *doing); // the text must outlive watchdog_end()
void watchdog_end(Watchdog *w);
void watchdog_report_exit(int code); // tells the other ranks that this rank ends the run, if a watchdog is open
void watchdog_close(Watchdog *w);    // ends the thread; called when this rank has finished its work normally

C_LINKAGE_END
