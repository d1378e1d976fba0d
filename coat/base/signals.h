// Signals while a run trains. SIGTERM, SIGINT and SIGHUP ask it to save and end; the same again, from 0.2 s on (some
// senders send everything twice), ends the process at once with code 128 + the signal's number. SIGUSR1 asks for a
// checkpoint. The handlers only take notes; the training loop looks at them. Only a terminal or pipe that takes nothing
// cannot wait for it: 2 seconds after the request to end, what is said goes nowhere instead.
#pragma once
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// Installs the handlers; for the rest of the process. A SIGINT or SIGHUP that the process was started to ignore (in
// the background, under nohup) stays ignored.
void signals_open(void);

// For a process that does more than --help: writing to a pipe that nobody reads, or beyond the limit of a
// file's size, becomes an error of that write instead of the end of the process.
void signals_fail_writes(void);

// Called by a thread that blocks signals and that a terminal may hold up as it may the main thread, where it begins and
// ends: after a request to end, it is freed as well. One at a time.
void signals_writer(bool begins);

// The signal that asked the run to end; 0: none.
int signals_stop(void);

// Whether a checkpoint was asked for since the last call.
bool signals_consume_save(void);

// Asks for one, as SIGUSR1 does.
void signals_ask_save(void);

const char *signals_name(int number); // "SIGTERM"

#ifdef __cplusplus
}
#endif
