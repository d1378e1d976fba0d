// The exchange through files that all ranks can reach. Rank r leaves PATH.r with a number that nobody has used before;
// rank 0 writes PATH with everybody's number and its bytes; who finds its own number there takes the bytes and removes
// its file. So what an earlier run has left is never taken for this one's.
#include "rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

typedef struct {
    char magic[8];
    uint32_t ranks, bytes;
    uint64_t number; // of the rank; 0 in rank 0's file, where everybody's follow, then the bytes
} Note;
static const char magic[8] = {'C', 'O', 'A', 'T', 'n', 'o', 't', 'e'};

static void name_of(const char *path, int rank, char *name, size_t size) {
    if (rank == 0)
        snprintf(name, size, "%s", path);
    else
        snprintf(name, size, "%s.%d", path, rank);
}

// Whole or not at all, so that nobody reads half a note.
static bool write_note(const char *path, int rank, const void *note, size_t bytes, Error *err) {
    char name[320], temporary[360];
    name_of(path, rank, name, sizeof name);
    snprintf(temporary, sizeof temporary, "%s.new%d", name, (int)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write(fd, note, bytes) == (ssize_t)bytes;
    if (fd >= 0) ok = close(fd) == 0 && ok;
    if (ok && rename(temporary, name) == 0) return true;
    error_set(err, EXIT_USER, "--rendezvous %s: cannot be written (%s); name a file in a folder that all ranks share",
              path, strerror(errno));
    unlink(temporary);
    return false;
}

static bool read_note(const char *path, int rank, void *note, size_t bytes) {
    char name[320];
    name_of(path, rank, name, sizeof name);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool ok = read(fd, note, bytes) == (ssize_t)bytes && memcmp(note, magic, sizeof magic) == 0;
    close(fd);
    return ok;
}

static void pause_a_little(void) {
    const struct timespec pause = {0, 20000000};
    nanosleep(&pause, NULL);
}

static bool is_there(const char *path, int rank) {
    char name[320];
    name_of(path, rank, name, sizeof name);
    return access(name, F_OK) == 0;
}

// `whole` is rank 0's note: header, numbers of all ranks, bytes.
static bool host_notes(const char *path, const CommPlace *place, char *whole, size_t whole_bytes, int patience,
                       Error *err) {
    double begin = now_seconds(), until = begin + patience;
    uint64_t *numbers = (uint64_t *)(void *)(whole + sizeof(Note));
    bool published = false;
    for (int missing = 0;;) {
        bool changed = false;
        int here = 0, taken = 0;
        for (int r = 1; r < place->ranks; r++) {
            Note note;
            if (read_note(path, r, &note, sizeof note)) {
                if (note.ranks != (uint32_t)place->ranks) { // an earlier run's, to be replaced, or a contradiction
                    if (now_seconds() < begin + 5 && now_seconds() < until) continue;
                    return error_set(err, EXIT_USER,
                                     "--rendezvous %s: rank %d was started as one of %u processes, rank 0 as one of "
                                     "%d; start all alike, or remove what an earlier run has left there",
                                     path, r, note.ranks, place->ranks);
                }
                changed |= numbers[r] != note.number;
                numbers[r] = note.number;
            }
            here += numbers[r] != 0;
            taken += published && !is_there(path, r);
            if (numbers[r] == 0) missing = r;
        }
        if (published && !changed && taken == place->ranks - 1) return true;
        if (here == place->ranks - 1 && (changed || !published)) {
            if (!write_note(path, 0, whole, whole_bytes, err)) return false;
            published = true;
        }
        if (now_seconds() > until)
            return error_set(err, EXIT_RANK,
                             "waited %d s at %s for %d of %d processes (%s), which did not come: rank %d%s; "
                             "--world-size 1 runs this one alone",
                             patience, path, place->ranks - 1 - (published ? taken : here), place->ranks, place->origin,
                             published ? place->ranks - 1 : missing, place->ranks - 1 - here > 1 ? " and others" : "");
        pause_a_little();
    }
}

static bool join_notes(const char *path, const CommPlace *place, char *whole, size_t whole_bytes, uint64_t number,
                       size_t bytes, int patience, Error *err) {
    double until = now_seconds() + patience;
    Note note;
    memset(&note, 0, sizeof note);
    memcpy(note.magic, magic, sizeof magic);
    note.ranks = (uint32_t)place->ranks;
    note.bytes = (uint32_t)bytes;
    note.number = number;
    if (!write_note(path, place->rank, &note, sizeof note, err)) return false;
    for (;;) {
        const uint64_t *numbers = (const uint64_t *)(const void *)(whole + sizeof note);
        bool found = read_note(path, 0, whole, whole_bytes) && numbers[place->rank] == number;
        char name[320];
        name_of(path, place->rank, name, sizeof name);
        bool late = now_seconds() > until;
        if (found || late) unlink(name);
        if (found) return true;
        if (late)
            return error_set(err, EXIT_RANK,
                             "rank %d of %d waited %d s for rank 0 at %s; does it run, with the same file and number "
                             "of processes?",
                             place->rank, place->ranks, patience, path);
        pause_a_little();
    }
}

bool rendezvous_file(const char *path, const CommPlace *place, void *data, size_t bytes, int patience, Error *err) {
    size_t head = sizeof(Note) + (size_t)place->ranks * sizeof(uint64_t), whole_bytes = head + bytes;
    char *whole = (char *)xcalloc(1, whole_bytes);
    Note note;
    memset(&note, 0, sizeof note);
    memcpy(note.magic, magic, sizeof magic);
    note.ranks = (uint32_t)place->ranks;
    note.bytes = (uint32_t)bytes;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t number = ((uint64_t)t.tv_sec << 30 ^ (uint64_t)t.tv_nsec) * 0x9e3779b97f4a7c15u ^ (uint64_t)getpid();
    bool ok;
    if (place->rank == 0) {
        memcpy(whole, &note, sizeof note);
        memcpy(whole + head, data, bytes);
        Note old;
        if (is_there(path, 0) && !read_note(path, 0, &old, sizeof old)) {
            free(whole);
            return error_set(err, EXIT_USER, "--rendezvous %s: the file exists and is something else; name a new one",
                             path);
        }
        unlink(path);
        ok = host_notes(path, place, whole, whole_bytes, patience, err);
        unlink(path);
    } else {
        ok = join_notes(path, place, whole, whole_bytes, number ? number : 1, bytes, patience, err);
        if (ok) memcpy(data, whole + head, bytes);
    }
    free(whole);
    return ok;
}
