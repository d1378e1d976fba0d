// Records when every kernel of a program ran. If CUDA_INJECTION64_PATH is set to this library's path, the CUDA driver
// loads the library into the program. Writes a line per kernel, copy and fill to TRACE_FILE (trace.tsv): start and end
// in nanoseconds, stream, and the mangled name, which contains the source file. Each kernel that a CUDA graph runs also
// has a line. scripts/profile.sh traces a training run with this library and prints a table.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include <cupti.h>

static FILE *out;

static void check(CUptiResult result, const char *what) {
    const char *why = "";
    if (result == CUPTI_SUCCESS) return;
    cuptiGetResultString(result, &why);
    fprintf(stderr, "trace: %s: %s\n", what, why);
    exit(3);
}

static void write_line(uint64_t start, uint64_t end, uint32_t stream, const char *name) {
    fprintf(out, "%" PRIu64 "\t%" PRIu64 "\t%" PRIu32 "\t%s\n", start, end, stream, name);
}

static void write_record(const CUpti_Activity *record) {
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const CUpti_ActivityKernel10 *k = (const CUpti_ActivityKernel10 *)record;
        write_line(k->start, k->end, k->streamId, k->name);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CUpti_ActivityMemcpy6 *m = (const CUpti_ActivityMemcpy6 *)record;
        write_line(m->start, m->end, m->streamId, "memcpy");
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const CUpti_ActivityMemset4 *m = (const CUpti_ActivityMemset4 *)record;
        write_line(m->start, m->end, m->streamId, "memset");
        break;
    }
    default: break;
    }
}

static void CUPTIAPI buffer_requested(uint8_t **buffer, size_t *size, size_t *most_records) {
    *size = (size_t)8 << 20;
    *buffer = (uint8_t *)aligned_alloc(8, *size);
    *most_records = 0; // 0: no limit on the number of records in the buffer
    if (!*buffer) *size = 0;
}

static void CUPTIAPI buffer_completed(CUcontext, uint32_t, uint8_t *buffer, size_t, size_t bytes) {
    CUpti_Activity *record = nullptr;
    while (cuptiActivityGetNextRecord(buffer, bytes, &record) == CUPTI_SUCCESS) write_record(record);
    free(buffer);
}

static void finish() {
    check(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "flushing");
    if (fclose(out) != 0) fprintf(stderr, "trace: TRACE_FILE could not be written; check that the disk is not full\n");
}

// The entry point that the CUDA driver calls.
extern "C" int InitializeInjection() {
    const char *path = getenv("TRACE_FILE");
    if (!path) path = "trace.tsv";
    out = fopen(path, "w");
    if (!out) {
        fprintf(stderr, "trace: %s cannot be written; set TRACE_FILE to another path\n", path);
        exit(2);
    }
    check(cuptiActivityRegisterCallbacks(buffer_requested, buffer_completed), "registering");
    const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                        CUPTI_ACTIVITY_KIND_MEMSET};
    for (CUpti_ActivityKind kind : kinds) check(cuptiActivityEnable(kind), "enabling");
    atexit(finish);
    return 1;
}
