// A thread that ends the process when another rank is lost: where the GPU waits for a collective, the host cannot
// notice it by itself. Ranks of one machine tell each other how far they are on a board in shared memory, so that the
// one that is missing can be named.
#pragma once
#include "comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CommWatch CommWatch;

// `id` names the run, the same bytes on all of its ranks. counters[0] of the two is the number of collectives that this
// rank has begun, counters[1] of those that have finished; a device writes them. The run ends (one line on standard
// error, then EXIT_RANK without further ado) when
//   - what lies between watch_begin() and watch_end() takes longer than *patience seconds, or a collective does, and
//     longer than twice the time that this rank has worked before it;
//   - a rank of this machine gives no sign of life for as long, at most COMM_PATIENCE;
//   - a rank of this machine has left the run by watch_leave() or exit(): with its exit code.
CommWatch *watch_open(const CommPlace *place, const volatile int *patience, const void *id, size_t id_bytes,
                      const volatile uint32_t *counters);
void watch_begin(CommWatch *watch, const char *doing);
void watch_end(CommWatch *watch);
void watch_meet(CommWatch *watch);            // all ranks have come: the board's name is not needed any more
void watch_leave(CommWatch *watch, int code); // tells the others that this rank ends the run
void watch_close(CommWatch *watch);           // this rank has finished, as all will

#ifdef __cplusplus
}
#endif
