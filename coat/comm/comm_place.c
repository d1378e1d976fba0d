// Who this process is among those of its run: by the environment that launchers set, and by the flags.
#include "comm.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

// What one kind of launcher sets, in the order in which they are asked: a launcher that was itself started by another
// comes before that one, for the outer one's variables are inherited and mean something else.
typedef struct {
    const char *name;
    const char *rank, *ranks;
    const char *local_rank, *local_ranks;
    const char *start; // how one starts N processes with it
    bool mpi;
} Launcher;

// clang-format off
static const Launcher launchers[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "mpirun -np", true},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpiexec -n", true},
    {"the environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE=", false},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "srun -n", false},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL, "srun -n", false},
};
// clang-format on
enum { BY_ENVIRONMENT = 2 }; // of them, RANK and WORLD_SIZE
#define LAUNCHERS ((int)(sizeof launchers / sizeof launchers[0]))

static bool is_set(const char *name) {
    const char *value = name ? getenv(name) : NULL;
    return value && *value;
}

// The number in a variable, or `absent` where it is not set.
static bool read_number(const char *name, int absent, int *number, Error *err) {
    *number = absent;
    if (!is_set(name)) return true;
    char *end;
    errno = 0;
    long value = strtol(getenv(name), &end, 10);
    if (*end || errno || value < 0 || value > INT_MAX)
        return error_set(err, EXIT_USER, "%s=%s in the environment: not a number from 0 on; set it right or unset it",
                         name, getenv(name));
    *number = (int)value;
    return true;
}

// A batch script's own process has SLURM_PROCID=0 and the job's SLURM_NTASKS, but srun has not started it.
static bool applies(const Launcher *l) {
    if (!is_set(l->rank) || !is_set(l->ranks)) return false;
    const char *kind = getenv("ENVIRONMENT");
    return strcmp(l->ranks, "SLURM_NTASKS") != 0 || is_set("SLURM_STEP_ID") || !kind || strcmp(kind, "BATCH") != 0;
}

static bool read_launcher(const Launcher *l, int *rank, int *ranks, Error *err) {
    if (!read_number(l->rank, 0, rank, err) || !read_number(l->ranks, 1, ranks, err)) return false;
    if (*ranks >= 1 && *rank < *ranks) return true;
    return error_set(err, EXIT_USER, "%s=%d and %s=%d in the environment: ranks count from 0 to one less than that",
                     l->rank, *rank, l->ranks, *ranks);
}

// Two launchers whose variables are both there mean the same processes, or somebody has set what he should not have.
// Slurm is not asked: its variables reach what mpirun or torchrun start on its machines.
static bool check_others(int chosen, int rank, int ranks, Error *err) {
    for (int i = chosen + 1; i < LAUNCHERS; i++) {
        const Launcher *l = &launchers[i], *c = &launchers[chosen];
        int other_rank, other_ranks;
        if (!applies(l) || strcmp(l->name, "srun") == 0) continue;
        if (!read_launcher(l, &other_rank, &other_ranks, err)) return false;
        if (other_rank == rank && other_ranks == ranks) continue;
        return error_set(err, EXIT_USER,
                         "%s says rank %d of %d (%s, %s), but %s=%d and %s=%d say otherwise; unset those that are not "
                         "meant",
                         c->name, rank, ranks, c->rank, c->ranks, l->rank, other_rank, l->ranks, other_ranks);
    }
    return true;
}

// Processes of this machine in a step of Slurm: entry SLURM_NODEID of a list such as 2(x3),1. 0 = unknown.
static int slurm_local_ranks(void) {
    const char *list = getenv("SLURM_STEP_TASKS_PER_NODE"), *node_text = getenv("SLURM_NODEID");
    if (!list || !node_text) return 0;
    for (long node = strtol(node_text, NULL, 10); *list;) {
        char *end;
        long tasks = strtol(list, &end, 10), times = 1;
        if (end == list || tasks < 1 || tasks > INT_MAX) return 0;
        if (strncmp(end, "(x", 2) == 0) times = strtol(end + 2, &end, 10);
        if (node < times) return (int)tasks;
        node -= times;
        list = strchr(end, ',');
        if (!list) return 0;
        list++;
    }
    return 0;
}

// Where a launcher does not say the rank on this machine, another one that knows may have set it.
static bool read_local(const Launcher *l, CommPlace *place, Error *err) {
    const char *const names[] = {l ? l->local_rank : NULL, "LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK",
                                 "SLURM_LOCALID"};
    place->local_rank = place->rank;
    const bool started_by_hand =
        strcmp(place->launcher, "the flags") == 0; // a launcher's variables are of its processes
    for (size_t i = 0; i < (started_by_hand ? 2 : sizeof names / sizeof names[0]); i++)
        if (is_set(names[i])) {
            if (!read_number(names[i], 0, &place->local_rank, err)) return false;
            break;
        }
    if (!read_number(l && l->local_ranks ? l->local_ranks : "LOCAL_WORLD_SIZE", 0, &place->local_ranks, err))
        return false;
    if (l && !place->local_ranks && strcmp(l->name, "the environment") != 0) place->local_ranks = slurm_local_ranks();
    if (place->local_ranks && (place->local_rank >= place->local_ranks || place->local_ranks > place->ranks))
        return error_set(
            err, EXIT_USER, "the environment names process %d of %d on this machine, in a run of %d; see %s",
            place->local_rank, place->local_ranks, place->ranks, l && l->local_rank ? l->local_rank : "LOCAL_RANK");
    return true;
}

// Finds the place by the flags and what they leave to the environment. over: they contradict a launcher, so that its
// variables of this machine do not count either.
static bool by_flags(const Config *c, bool over, CommPlace *place, Error *err) {
    int rank = c->rank, ranks = c->world_size; // one of the pair may be in the environment
    if (rank < 0 && !read_number("RANK", -1, &rank, err)) return false;
    if (rank < 0 && !read_number("PMIX_RANK", -1, &rank, err)) return false;
    if (ranks <= 0 && !read_number("WORLD_SIZE", 0, &ranks, err)) return false;
    if (ranks > 1 && rank < 0)
        return error_set(err, EXIT_USER, "%s %d: each process needs its --rank too; or start them with mpirun -np %d",
                         c->world_size > 0 ? "--world-size" : "WORLD_SIZE", ranks, ranks);
    if (ranks <= 0 && rank > 0)
        return error_set(err, EXIT_USER, "%s %d: say with --world-size N how many processes there are",
                         c->rank >= 0 ? "--rank" : (is_set("RANK") ? "RANK" : "PMIX_RANK"), rank);
    if (ranks > 0 && rank >= ranks)
        return error_set(err, EXIT_USER, "rank %d of %d: ranks count from 0 to %d; see %s and %s", rank, ranks,
                         ranks - 1, c->rank >= 0 ? "--rank" : "RANK",
                         c->world_size > 0 ? "--world-size" : "WORLD_SIZE");
    if (ranks <= 1) return true;
    place->rank = rank;
    place->ranks = ranks;
    place->launcher = c->rank >= 0 && c->world_size > 0 ? "the flags" : "the environment";
    place->mpi = is_set("PMIX_RANK") && c->rank < 0;
    snprintf(place->origin, sizeof place->origin, "%s%d, %s%d",
             c->world_size > 0 ? "--world-size " : "WORLD_SIZE=", ranks,
             c->rank >= 0     ? "--rank "
             : is_set("RANK") ? "RANK="
                              : "PMIX_RANK=",
             rank);
    place->local_rank = rank;
    place->local_ranks = 0; // unknown
    return over || read_local(NULL, place, err);
}

bool comm_launched(void) {
    for (int i = 0; i < LAUNCHERS; i++)
        if (applies(&launchers[i]) && (launchers[i].mpi || atoi(getenv(launchers[i].ranks)) > 1)) return true;
    return is_set("PMIX_RANK");
}

bool comm_discover(const Config *config, CommPlace *place, Error *err) {
    memset(place, 0, sizeof *place);
    place->ranks = place->local_ranks = 1;
    place->launcher = "";
    if (config->world_size == 1) return true; // also in a shell that a launcher of several processes has started
    // torchrun leaves no doubt that it was the last; else the first in the table is taken
    bool torchrun = is_set("TORCHELASTIC_RUN_ID") && applies(&launchers[BY_ENVIRONMENT]);
    int chosen = torchrun ? BY_ENVIRONMENT : 0;
    while (chosen < LAUNCHERS && !applies(&launchers[chosen])) chosen++;
    if (chosen == LAUNCHERS) return by_flags(config, false, place, err);
    const Launcher *l = &launchers[chosen];
    if (!read_launcher(l, &place->rank, &place->ranks, err)) return false;
    const bool other_size = config->world_size > 0 && config->world_size != place->ranks;
    const bool other_rank = config->rank >= 0 && config->rank != place->rank;
    if ((other_size || other_rank) && config->world_size > 0 && config->rank >= 0)
        return by_flags(config, true, place, err);
    if (!check_others(chosen, place->rank, place->ranks, err)) return false;
    snprintf(place->origin, sizeof place->origin, "%s=%d, %s=%d", l->ranks, place->ranks, l->rank, place->rank);
    if (other_size)
        return error_set(
            err, EXIT_USER,
            "--world-size %d: %s started %d process%s (%s); use %s%s%d, or add --rank, with which the flags "
            "count alone",
            config->world_size, l->name, place->ranks, place->ranks == 1 ? "" : "es", place->origin, l->start,
            l->start[strlen(l->start) - 1] == '=' ? "" : " ", config->world_size);
    if (other_rank)
        return error_set(err, EXIT_USER,
                         "--rank %d: %s says that this is rank %d (%s); remove it, or add --world-size, with which the "
                         "flags count alone",
                         config->rank, l->name, place->rank, place->origin);
    if (place->ranks == 1) return true;
    place->launcher = l->name;
    place->mpi = l->mpi || (!torchrun && is_set("PMIX_RANK"));
    return read_local(l, place, err);
}
