#include "memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

// Reads the number that follows `key` at the beginning of a line in the file `path`. Returns false if the file has no
// such number, for example because the line contains "max" instead.
static bool read_number(const char *path, const char *key, double *number) {
    char line[256];
    bool found = false;
    FILE *file = fopen(path, "r");
    while (file && !found && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0) found = sscanf(line + strlen(key), " %lf", number) == 1;
    if (file) fclose(file);
    return found;
}

// Returns how many more bytes of memory the control group (cgroup) at `folder` allows; 9e18 if the group has no limit.
static double bytes_left_in_group(const char *folder) {
    char path[4200];
    double limit, anonymous = 0, shared = 0;
    snprintf(path, sizeof path, "%s/memory.max", folder);
    if (!read_number(path, "", &limit)) return 9e18;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    read_number(path, "anon ", &anonymous);
    read_number(path, "shmem ", &shared);
    return limit > anonymous + shared ? limit - anonymous - shared : 0;
}

// Returns how many more bytes this process's control group and all its parent groups allow; 9e18 without a limit.
// Includes the parent groups, because Slurm sets the limit on a parent of the process's group. In a container, the
// process's group is the root of the mounted cgroup file system. Elsewhere, /proc/self/cgroup names the group. Ignores
// version 1 of cgroups.
static double cgroup_bytes_left(void) {
    static const char root[] = "/sys/fs/cgroup";
    char line[4096], folder[4150];
    double least = bytes_left_in_group(root);
    FILE *file = fopen("/proc/self/cgroup", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "0::/", 4) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(folder, sizeof folder, "%s%s", root, line + 3);
        while (strlen(folder) > strlen(root)) {
            const double left = bytes_left_in_group(folder);
            if (left < least) least = left;
            *strrchr(folder, '/') = '\0';
        }
    }
    if (file) fclose(file);
    return least;
}

int64_t memory_limit_left(const char **limit) {
    struct rlimit space;
    double pages, least = cgroup_bytes_left();
    const char *name = "the control group's memory.max";
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY &&
        read_number("/proc/self/statm", "", &pages)) {
        const double left = (double)space.rlim_cur - pages * (double)sysconf(_SC_PAGESIZE);
        if (left < least) least = left > 0 ? left : 0, name = "ulimit -v";
    }
    if (limit) *limit = name;
    return least < 9e18 ? (int64_t)least : INT64_MAX;
}

int64_t memory_available(void) {
    double kib, machine = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (read_number("/proc/meminfo", "MemAvailable:", &kib)) machine = kib * 1024.0;
    const int64_t left = memory_limit_left(NULL);
    return (double)left < machine ? left : (int64_t)machine;
}

bool memory_fits(size_t bytes) {
    return (double)bytes + (double)MEMORY_RESERVE <= (double)memory_available();
}

size_t memory_whole_pages(size_t bytes) {
    return bytes ? (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE : HUGE_PAGE;
}

void *memory_in_huge_pages(size_t bytes) {
    const size_t size = memory_whole_pages(bytes);
    void *memory = aligned_alloc(HUGE_PAGE, size);
    if (memory) madvise(memory, size, MADV_HUGEPAGE); // failure of madvise() is ignored: huge pages are optional
    return memory;
}
