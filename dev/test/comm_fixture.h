// Fixture for communication tests: runs each rank in a forked process and collects the ranks' results and messages.
#pragma once
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "coat/comm/comm.h"
#include "test_folder.h"

#define MAX_RANKS 8

typedef struct {
    bool ok;        // return value of the rank's function
    Error err;      // error that the rank's function set
    char data[64];  // text that the rank received from another rank
    int status;     // exit status of the rank's process, or 128 + its signal
    char said[512]; // text that the rank printed on standard error
} RankResult;

typedef bool (*RankFunction)(CommPlace *place, RankResult *result);

// Unsets all environment variables by which launchers describe a process's rank.
static inline void clear_launchers(void) {
    char names[] = "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE "
                   "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS MV2_COMM_WORLD_LOCAL_RANK PMIX_RANK RANK "
                   "WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE "
                   "MASTER_ADDR MASTER_PORT ENVIRONMENT SLURM_PROCID SLURM_NTASKS SLURM_STEP_NUM_TASKS SLURM_LOCALID "
                   "SLURM_STEP_ID SLURM_STEP_TASKS_PER_NODE SLURM_NODEID SLURM_JOB_ID SLURM_STEP_NODELIST";
    for (char *name = strtok(names, " "); name; name = strtok(NULL, " ")) unsetenv(name);
}

static inline CommPlace place_of(int rank, int ranks) {
    CommPlace place;
    memset(&place, 0, sizeof place);
    place.rank = place.local_rank = rank;
    place.ranks = place.local_ranks = ranks;
    place.launcher = "the test";
    snprintf(place.origin, sizeof place.origin, "the test");
    return place;
}

// Runs one forked process per rank and waits for all. Kills processes that run longer than 20 seconds.
static inline RankResult *run_ranks(int ranks, RankFunction function) {
    static RankResult *results;
    if (!results)
        results = (RankResult *)mmap(NULL, MAX_RANKS * sizeof *results, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(results != MAP_FAILED && ranks <= MAX_RANKS);
    memset(results, 0, MAX_RANKS * sizeof *results);
    pid_t pids[MAX_RANKS];
    for (int r = 0; r < ranks; r++) {
        const char *name = formatted("said.%d", r);
        write_text(path_of(name), "");
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] > 0) continue;
        if (!freopen(path_of(name), "w", stderr)) _exit(99);
        CommPlace place = place_of(r, ranks);
        results[r].ok = function(&place, &results[r]);
        fflush(stderr);
        _exit(0);
    }
    int left = ranks;
    for (int tenths = 0; left > 0; tenths++) {
        for (int r = 0; r < ranks; r++) {
            int status;
            if (pids[r] <= 0 || waitpid(pids[r], &status, WNOHANG) != pids[r]) continue;
            results[r].status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            pids[r] = 0;
            left--;
        }
        for (int r = 0; r < ranks && tenths >= 200; r++)
            if (pids[r] > 0) kill(pids[r], SIGKILL);
        usleep(left > 0 ? 20000 : 0);
        if (left > 0 && tenths < 200) usleep(80000);
    }
    for (int r = 0; r < ranks; r++) {
        const char *name = formatted("said.%d", r);
        snprintf(results[r].said, sizeof results[r].said, "%s", contents(path_of(name)));
    }
    return results;
}
