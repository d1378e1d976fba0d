// Implements the functions of a device (device_functions.h) for the CPU.
#include "cpu_internal.h"

#include <string.h>
#include <unistd.h>

#include "base/memory.h"

// Shortens the time that waiting OpenMP threads spin, unless OMP_WAIT_POLICY or GOMP_SPINCOUNT is set. Spinning for
// milliseconds gains nothing on idle cores, and makes operations many times slower if another program uses one of the
// cores. This function runs before the constructor in which a static OpenMP library reads GOMP_SPINCOUNT.
__attribute__((constructor(101))) static void wait_briefly(void) {
    if (!getenv("OMP_WAIT_POLICY")) setenv("GOMP_SPINCOUNT", "500", 0);
}

// Writes the processor's "model name" from /proc/cpuinfo to text, or "CPU" if /proc/cpuinfo has no such line.
static void processor_name(char *text, size_t size) {
    snprintf(text, size, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon || strlen(colon) < 3) continue;
        snprintf(text, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    fclose(file);
}

bool cpu_open(Exec *exec, const Config *config, Error *err) {
    (void)err;
    const CpuKernels *variants[CPU_VARIANTS];
    cpu_kernels_supported(variants);
    Cpu *cpu = (Cpu *)xcalloc(1, sizeof *cpu);
    cpu->threads = cpu_threads(config);
    cpu->kernels = variants[0];
    cpu->recipe = config->recipe;
    processor_name(cpu->processor, sizeof cpu->processor);
    cpu->blas = blas_open();
    exec->backend = cpu;
    return true;
}

void cpu_close(Exec *exec) {
    free(exec->backend);
    exec->backend = NULL;
}

void *cpu_allocate(Exec *exec, size_t bytes, Error *err) {
    const Cpu *cpu = (const Cpu *)exec->backend;
    size_t pages = (size_t)sysconf(_SC_PHYS_PAGES), page = (size_t)sysconf(_SC_PAGE_SIZE);
    const char *limit;
    const int64_t left = memory_limit_left(&limit);
    const bool limited = left < INT64_MAX && (double)left < (double)memory_whole_pages(bytes);
    // Checks the size first, because Linux grants allocations larger than the machine's memory, and later kills the
    // process that uses the memory.
    void *memory = bytes / page < pages && !limited ? memory_in_huge_pages(bytes) : NULL;
    if (!memory && limited) {
        error_set(err, EXIT_DEVICE, "could not allocate %zu MiB: %s leaves %zu MiB", bytes >> 20, limit,
                  (size_t)left >> 20);
        return NULL;
    }
    if (!memory) {
        error_set(err, EXIT_DEVICE, "could not allocate %zu MiB of the machine's %zu MiB of memory", bytes >> 20,
                  pages * (page >> 10) >> 10);
        return NULL;
    }
    if (cpu && cpu->blas && !blas_reserve(cpu->threads)) {
        error_set(err, EXIT_DEVICE, "OpenBLAS could not allocate 128 MiB for each of %d threads; lower --threads",
                  cpu->threads);
        free(memory);
        return NULL;
    }
    return memory;
}

// Returns the number of bytes that can be allocated: the smaller of memory_available() and the usable rest of the
// process's memory limit. The usable rest is memory_limit_left() minus MEMORY_RESERVE and minus OpenBLAS's buffers: one
// per thread and one more, because a thread of OpenBLAS itself sometimes allocates a buffer at the start.
int64_t cpu_memory_free(Exec *exec) {
    const Cpu *cpu = (const Cpu *)exec->backend;
    const int64_t available = memory_available();
    const int64_t left =
        memory_limit_left(NULL) - (int64_t)MEMORY_RESERVE - (cpu && cpu->blas ? blas_bytes(cpu->threads + 1) : 0);
    return left < 1 ? 1 : left < available ? left : available; // at least 1, because 0 means unknown
}

void cpu_release(Exec *exec, void *memory) {
    (void)exec;
    free(memory);
}

void cpu_upload(Exec *exec, void *device, const void *host, size_t bytes) {
    (void)exec;
    memcpy(device, host, bytes);
}

void cpu_download(Exec *exec, void *host, const void *device, size_t bytes) {
    (void)exec;
    memcpy(host, device, bytes);
}

void cpu_zero(Exec *exec, void *device, size_t bytes) {
    const size_t piece = (size_t)1 << 20;
    int64_t pieces = (int64_t)((bytes + piece - 1) / piece);
#pragma omp parallel for num_threads(cpu_of(exec)->threads) schedule(static)
    for (int64_t i = 0; i < pieces; i++) {
        size_t begin = (size_t)i * piece;
        memset((char *)device + begin, 0, bytes - begin < piece ? bytes - begin : piece);
    }
}

void cpu_synchronize(Exec *exec) {
    (void)exec;
}

bool cpu_replay_begin(Exec *exec, int id) {
    (void)exec, (void)id;
    return false;
}

void cpu_replay_end(Exec *exec, int id) {
    (void)exec, (void)id;
}

void cpu_range_push(Exec *exec, const char *name) {
    (void)exec, (void)name;
}

void cpu_range_pop(Exec *exec) {
    (void)exec;
}

void cpu_profile(Exec *exec, bool begin) {
    (void)exec;
    (void)begin;
}

void cpu_describe(Exec *exec, char *text, size_t size) {
    const Cpu *cpu = cpu_of(exec);
    snprintf(text, size, "%s, %d thread%s, %s%s%s", cpu->processor, cpu->threads, cpu->threads == 1 ? "" : "s",
             cpu->kernels->name, cpu->blas ? ", OpenBLAS for " : "", cpu->blas ? blas_core() : "");
}

int64_t cpu_memory_in_use(Exec *exec) {
    (void)exec;
    return 0;
}

double cpu_peak_flops(Exec *exec) {
    (void)exec;
    return 0;
}
