// Signals during training.
//   SIGTERM, SIGINT, SIGHUP   save and end. A second signal at least 0.2 s later ends the process at once, with exit
//                             code 128 + the signal's number. (Some senders send every signal twice.)
//   SIGUSR1                   save a checkpoint.
// The handlers set flags that the training loop reads. The first request to end also prints one line. A
// standard output or error that accepts no data (a stopped terminal) is redirected to /dev/null 2 seconds after the
// request, so that the run can save.
#pragma once
#include <stdbool.h>

#include "c_linkage.h"

C_LINKAGE_BEGIN

// Installs the signal handlers, which stay until the process ends. SIGINT and SIGHUP stay ignored if they were ignored
// when the process started (in the background, under nohup).
void signals_open(void);

// Ignores SIGPIPE and SIGXFSZ, so that a write to a closed pipe or beyond the file size limit fails instead of killing
// the process. Opens /dev/null for reading in place of a closed standard stream. Otherwise the next file to be opened,
// such as .lock, would get the stream's number, and messages would be written into that file.
void signals_fail_writes(void);

// If `begins` is true, registers the calling thread, a background thread that prints, and unblocks SIGALRM in it;
// otherwise, undoes both. If a stopped terminal blocks a write of the registered thread after a request to end, SIGALRM
// interrupts the write. At most one thread can be registered at a time.
void signals_writer(bool begins);

// Returns the signal that requested the end of the run; 0 if there was none.
int signals_stop(void);

// True if SIGUSR1 has requested a checkpoint since the last call.
bool signals_consume_save(void);

const char *signals_name(int number); // returns a name such as "SIGTERM"

C_LINKAGE_END
