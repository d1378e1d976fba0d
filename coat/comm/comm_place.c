// Finds the rank of this process and the number of ranks from the launcher's environment variables and the flags.
#include "comm.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

// Names of the environment variables that a launcher such as mpirun sets in each process.
typedef struct {
    const char *name;
    const char *rank, *ranks;
    const char *local_rank, *local_ranks;
    const char *start; // text before the number of processes in an error message, such as "mpirun -np "
    bool mpi;
} Launcher;

// Known launchers. The first launcher whose variables are set is used. If launcher A can run inside a job of launcher
// B, A precedes B. A's processes inherit B's variables, which describe B's processes, not A's.
// clang-format off
static const Launcher launchers[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "mpirun -np ", true},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpiexec -n ", true},
    {"the environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE=", false},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "srun -n ", false},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL, "srun -n ", false},
};
// clang-format on
enum { BY_ENVIRONMENT = 2, BY_SRUN }; // indices in the table of launchers
#define LAUNCHERS ((int)(sizeof launchers / sizeof launchers[0]))

static bool is_set(const char *name) {
    const char *value = name ? getenv(name) : NULL;
    return value && *value;
}

// Reads a non-negative integer from the environment variable `name`. If the variable is not set, *number does not
// change.
static bool read_number(const char *name, int *number, Error *err) {
    if (!is_set(name)) return true;
    char *end;
    errno = 0;
    const long value = strtol(getenv(name), &end, 10);
    if (*end || errno || value < 0 || value > INT_MAX)
        return error_set(err, EXIT_USER,
                         "environment variable %s=%s: must be an integer of at least 0; correct or unset the variable",
                         name, getenv(name));
    *number = (int)value;
    return true;
}

// True if the environment shows that this launcher started this process as a rank. SLURM_PROCID and SLURM_NTASKS are
// not enough, because Slurm also sets them in a batch script, which is not a rank.
static bool applies(const Launcher *l) {
    if (!is_set(l->rank) || !is_set(l->ranks)) return false;
    const char *kind = getenv("ENVIRONMENT");
    return strcmp(l->ranks, "SLURM_NTASKS") != 0 || is_set("SLURM_STEP_ID") || !kind || strcmp(kind, "BATCH") != 0;
}

static bool read_launcher(const Launcher *l, CommPlace *place, Error *err) {
    if (!read_number(l->rank, &place->rank, err) || !read_number(l->ranks, &place->ranks, err)) return false;
    snprintf(place->origin, sizeof place->origin, "%s=%d, %s=%d", l->ranks, place->ranks, l->rank, place->rank);
    if (place->ranks >= 1 && place->rank < place->ranks) return true;
    return error_set(err, EXIT_USER,
                     "environment variables %s: the rank must be less than the number of ranks; correct or unset them",
                     place->origin);
}

// Fails if the variables of a launcher later in the table contradict those of the chosen launcher. Ignores Slurm's
// variables, because processes that mpirun and torchrun start in a Slurm job inherit them.
static bool check_others(int chosen, const CommPlace *place, Error *err) {
    for (int i = chosen + 1; i < BY_SRUN; i++) {
        CommPlace other;
        memset(&other, 0, sizeof other);
        if (!applies(&launchers[i])) continue;
        if (!read_launcher(&launchers[i], &other, err)) return false;
        if (other.rank != place->rank || other.ranks != place->ranks)
            return error_set(err, EXIT_USER, "%s has set %s, but %s contradicts this; unset the wrong variables",
                             launchers[chosen].name, place->origin, other.origin);
    }
    return true;
}

// Returns the number of processes on this machine in a Slurm step; 0 if unknown. SLURM_STEP_TASKS_PER_NODE lists the
// numbers per machine: 2(x3),1 stands for 2, 2, 2 and 1. SLURM_NODEID is this machine's index in the list.
static int slurm_local_ranks(void) {
    const char *list = getenv("SLURM_STEP_TASKS_PER_NODE"), *node_text = getenv("SLURM_NODEID");
    if (!list || !node_text) return 0;
    for (long node = strtol(node_text, NULL, 10);; list++) {
        char *end;
        long tasks = strtol(list, &end, 10), times = 1;
        if (end == list || tasks < 1 || tasks > INT_MAX) return 0;
        if (strncmp(end, "(x", 2) == 0) times = strtol(end + 2, &end, 10);
        if (node < times) return (int)tasks;
        node -= times;
        list = strchr(end, ',');
        if (!list) return 0;
    }
}

// Finds the rank of this process on its machine and, if known, the number of processes on the machine. If launcher `l`
// is NULL or does not set the local rank, reads the variables of other launchers. If --rank and --world-size are both
// given, reads the local rank only from LOCAL_RANK, because other variables may then describe other processes.
static bool read_local(const Launcher *l, CommPlace *place, Error *err) {
    const char *const names[] = {l ? l->local_rank : NULL, "LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK",
                                 "SLURM_LOCALID"};
    const size_t count = strcmp(place->launcher, "the flags") == 0 ? 2 : sizeof names / sizeof names[0];
    size_t i = 0;
    place->local_rank = place->rank;
    place->local_ranks = 0; // 0: unknown
    while (i < count && !is_set(names[i])) i++;
    if (i < count && !read_number(names[i], &place->local_rank, err)) return false;
    if (!read_number(l && l->local_ranks ? l->local_ranks : "LOCAL_WORLD_SIZE", &place->local_ranks, err)) return false;
    if (l && !place->local_ranks && l != &launchers[BY_ENVIRONMENT]) place->local_ranks = slurm_local_ranks();
    if (place->local_ranks && (place->local_rank >= place->local_ranks || place->local_ranks > place->ranks))
        return error_set(
            err, EXIT_USER,
            "the environment sets local rank %d of %d on this machine in a run of %d processes, which is not possible; "
            "correct or unset %s",
            place->local_rank, place->local_ranks, place->ranks, l && l->local_rank ? l->local_rank : "LOCAL_RANK");
    return true;
}

// Finds the rank and the number of ranks from --rank and --world-size. If a flag is missing, reads RANK, PMIX_RANK or
// WORLD_SIZE instead. Does not change `place` if there is one process. over: true if the flags override a launcher's
// variables; the local rank is then the rank, and the launcher's local rank is ignored.
static bool by_flags(const Config *c, bool over, CommPlace *place, Error *err) {
    const char *rank_name = c->rank >= 0 ? "--rank" : is_set("RANK") ? "RANK" : "PMIX_RANK";
    const char *ranks_name = c->world_size > 0 ? "--world-size" : "WORLD_SIZE";
    int rank = c->rank, ranks = c->world_size;
    if (rank < 0 && !read_number(rank_name, &rank, err)) return false;
    if (ranks <= 0 && !read_number(ranks_name, &ranks, err)) return false;
    if (ranks > 1 && rank < 0)
        return error_set(
            err, EXIT_USER,
            "%s %d: the rank of this process is missing; add --rank N, or start all processes with mpirun -np %d",
            ranks_name, ranks, ranks);
    if (ranks <= 0 && rank > 0)
        return error_set(err, EXIT_USER, "%s %d: the number of processes is missing; add --world-size N", rank_name,
                         rank);
    if (ranks > 0 && rank >= ranks)
        return error_set(err, EXIT_USER, "rank %d of %d processes must be from 0 to %d; correct %s or %s", rank, ranks,
                         ranks - 1, rank_name, ranks_name);
    if (ranks <= 1) return true;
    place->rank = place->local_rank = rank;
    place->ranks = ranks;
    place->local_ranks = 0; // 0: unknown
    place->launcher = c->rank >= 0 && c->world_size > 0 ? "the flags" : "the environment";
    place->mpi = is_set("PMIX_RANK") && c->rank < 0;
    snprintf(place->origin, sizeof place->origin, "%s%c%d, %s%c%d", ranks_name, *ranks_name == '-' ? ' ' : '=', ranks,
             rank_name, *rank_name == '-' ? ' ' : '=', rank);
    return over || read_local(NULL, place, err);
}

bool comm_launched(void) {
    for (int i = 0; i < LAUNCHERS; i++)
        if (applies(&launchers[i]) && (launchers[i].mpi || atoi(getenv(launchers[i].ranks)) > 1)) return true;
    return is_set("PMIX_RANK");
}

bool comm_discover(const Config *c, CommPlace *place, Error *err) {
    memset(place, 0, sizeof *place);
    place->ranks = place->local_ranks = 1;
    place->launcher = "";
    if (c->world_size == 1) return true; // one process: variables that the shell inherited from a launcher are ignored
    // Only torchrun sets TORCHELASTIC_RUN_ID. If it is set, other launchers' variables were inherited.
    const bool torchrun = is_set("TORCHELASTIC_RUN_ID") && applies(&launchers[BY_ENVIRONMENT]);
    int chosen = torchrun ? BY_ENVIRONMENT : 0;
    while (chosen < LAUNCHERS && !applies(&launchers[chosen])) chosen++;
    if (chosen == LAUNCHERS) return by_flags(c, false, place, err);
    const Launcher *l = &launchers[chosen];
    if (!read_launcher(l, place, err)) return false;
    const bool other_ranks = c->world_size > 0 && c->world_size != place->ranks;
    const bool other_rank = c->rank >= 0 && c->rank != place->rank;
    if ((other_ranks || other_rank) && c->world_size > 0 && c->rank >= 0) return by_flags(c, true, place, err);
    if (!check_others(chosen, place, err)) return false;
    if (other_ranks)
        return error_set(err, EXIT_USER,
                         "--world-size %d: %s started %d process%s (%s); use %s%d, or add --rank to ignore the "
                         "launcher's environment",
                         c->world_size, l->name, place->ranks, place->ranks == 1 ? "" : "es", place->origin, l->start,
                         c->world_size);
    if (other_rank)
        return error_set(err, EXIT_USER,
                         "--rank %d: %s started this process as rank %d (%s); remove --rank, or add --world-size to "
                         "ignore the launcher's environment",
                         c->rank, l->name, place->rank, place->origin);
    if (place->ranks == 1) return true;
    place->launcher = l->name;
    place->mpi = l->mpi || (!torchrun && is_set("PMIX_RANK"));
    return read_local(l, place, err);
}
