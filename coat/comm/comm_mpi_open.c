// How processes come together over MPI and part, for the collectives of comm_mpi.c as for NCCL.
// Empty in a program without MPI.
#include "comm_mpi.h"

#ifdef COAT_MPI
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

// MPI itself waits for the others without limit while it starts, whatever has become of them: of one that finds no
// memory there, for example. A thread ends this process, and the launcher the others, if that takes too long.
typedef struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool over, running;
    const CommPlace *place;
} Opening;

static void *opening_watch(void *argument) {
    Opening *o = (Opening *)argument;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += COMM_PATIENCE;
    pthread_mutex_lock(&o->lock);
    while (!o->over && pthread_cond_timedwait(&o->changed, &o->lock, &until) != ETIMEDOUT) {}
    if (!o->over) {
        fprintf(
            stderr,
            "error: rank %d: waited %d s while MPI started for the other ranks (%s), of which one hangs, is lost, has "
            "no memory or was not started; --world-size 1 runs this one alone\n",
            o->place->rank, COMM_PATIENCE, o->place->origin);
        _exit(EXIT_RANK);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

static void opening_begin(Opening *o, const CommPlace *place) {
    memset(o, 0, sizeof *o);
    o->place = place;
    pthread_mutex_init(&o->lock, NULL);
    comm_cond_init(&o->changed);
    sigset_t all, before; // signals are the main thread's
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    o->running = pthread_create(&o->thread, NULL, opening_watch, o) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void opening_end(Opening *o) {
    pthread_mutex_lock(&o->lock);
    o->over = true;
    pthread_cond_signal(&o->changed);
    pthread_mutex_unlock(&o->lock);
    if (o->running) pthread_join(o->thread, NULL);
}

static CommMpi *open_watched(const CommPlace *place, Error *err) {
    int already = 0, level, ranks, rank;
    MPI_Initialized(&already);
    if (already || MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) {
        error_set(err, EXIT_RANK, "MPI could not be initialised%s", already ? " twice" : "; see what it says above");
        return NULL;
    }
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (ranks != place->ranks || rank != place->rank) {
        error_set(err, EXIT_USER,
                  "MPI says rank %d of %d where %s says %d of %d: the launcher is not of the MPI that this program was "
                  "built with; use its mpirun (or srun --mpi=..., see srun --mpi=list)",
                  rank, ranks, place->launcher, place->rank, place->ranks);
        MPI_Finalize();
        return NULL;
    }
    CommMpi *mpi = (CommMpi *)xcalloc(1, sizeof *mpi);
    mpi->rank = rank;
    mpi->ranks = ranks;
    mpi->doing = "the start";
    mpi->idle_since = now_seconds();
    mpi->requests = (MPI_Request *)xcalloc(2 * (size_t)ranks, sizeof *mpi->requests);
    mpi->peers = (int *)xcalloc(2 * (size_t)ranks, sizeof *mpi->peers);
    // messages are told apart by who sends them and by their order alone, on a communicator of their own
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi->comm);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    return mpi;
}

CommMpi *mpi_open(const CommPlace *place, Error *err) {
    Opening opening;
    opening_begin(&opening, place);
    CommMpi *mpi = open_watched(place, err);
    opening_end(&opening);
    return mpi;
}

void mpi_close(CommMpi *mpi) {
    MPI_Comm_free(&mpi->comm);
    MPI_Finalize();
    free(mpi->staging);
    free(mpi->requests);
    free(mpi->peers);
    free(mpi);
}

void mpi_abort(CommMpi *mpi, int code) {
    fflush(NULL);
    MPI_Abort(mpi->comm, code);
}

#endif
