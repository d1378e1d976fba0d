// The folder that checkpoints are saved to while a run continues: looked after, made again, and left for one beside it.
#pragma once
#include "comm/comm.h"
#include "log/log.h"
#include "outdir.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const Config *config;
    Log *log;
    int log_fd;                        // of our own
    char out[PATH_MAX_LENGTH + 32];    // where it saves: --out, or beside it once that cannot be used
    char agreed[PATH_MAX_LENGTH + 32]; // the same as all processes know it: rank 0's of the last saver_folder_share()
    OutFolder *folder;                 // that this process has locked; NULL: it has not
    Error away, taken;                 // why it is not this run's now, or never again; EXIT_DONE: it is
    Error lost;                        // why the run has left --out; EXIT_DONE: it has not
    int left_fd;                       // of that, wherever it is by now; -1: it has not
    int64_t left_saved;                // the last step that has a checkpoint there; 0: none
    bool ends;                         // it was left to another run
    bool failed;                       // it is away, and so is what is beside it, which has been said
    bool last;                         // the run ends with this save
    double looked_ms;
} SaverFolder;

void saver_folder_open(SaverFolder *f, const Config *config, Log *log);
void saver_folder_close(SaverFolder *f);

// Whether what is written goes into the run's own folder; another process's folder is taken for that. Of a SaverFolder.
bool saver_folder_is_ours(const void *folder, Error *err);
bool saver_folder_is_locked(const SaverFolder *f);

// By the thread that trains, while nothing is being written. True where the folder was made again.
bool saver_folder_look(SaverFolder *f);

// Whether it is away, and what the run has written there is gone.
bool saver_folder_is_gone(const SaverFolder *f);

// Whether there is a folder to save to, before a save begins. One that another run has, or that cannot be made again,
// is left for one beside it or above, for good. saved: the last step that was; becomes 0 where it is not there.
bool saver_folder_prepare(SaverFolder *f, int64_t *saved, Error *err);

// Tells the other processes where rank 0 saves by now.
void saver_folder_share(SaverFolder *f, Comm *comm);

// Where the run has left --out, or should have: err (EXIT_DATA) says why, and where it was saved last. good: its last
// step is; saved: the last that is.
bool saver_folder_is_lost(const SaverFolder *f, bool good, int64_t saved, Error *err);

#ifdef __cplusplus
}
#endif
