#include "snapshot.h"

#include <string.h>

#include "base/memory.h"
#include "hf.h"
#include "log/terminal.h"
#include "numerics/formats.h"

#define TOUCH_BYTES ((size_t)2 << 20) // number of bytes that one loop iteration of touch() clears

void snapshot_open(Snapshot *snapshot, const Arena *arena, Exec *exec) {
    memset(snapshot, 0, sizeof *snapshot);
    snapshot->arena = arena;
    snapshot->exec = exec;
    snapshot->generation = arena->rank == 0 ? hf_generation_open(arena->config->shape_files) : NULL;
    Error ignored; // loading the model has already reported errors
    if (arena->rank == 0 && arena->vision)
        snapshot->processor = hf_processor_open(config_vision_files(arena->config), &ignored);
    snapshot->model_count = checkpoint_model_tensors(arena, &snapshot->model);
    snapshot->optimizer_count = checkpoint_optimizer_tensors(arena, &snapshot->optimizer);
    for (int i = 0; i < snapshot->model_count && arena->rank == 0; i++)
        *(snapshot->model[i].arena ? &snapshot->bytes : &snapshot->carried_bytes) +=
            checkpoint_tensor_bytes(&snapshot->model[i]);
    for (int i = 0; i < snapshot->optimizer_count; i++)
        snapshot->bytes += checkpoint_tensor_bytes(&snapshot->optimizer[i]);
}

static void place(CheckpointTensor *list, int count, char **at) {
    for (int i = 0; i < count; i++) {
        if (!list[i].arena) continue;
        list[i].host = *at;
        *at += checkpoint_tensor_bytes(&list[i]);
    }
}

// Clears the memory in parallel, so that the system allocates the memory's pages now instead of one by one during the
// first save.
static void touch(char *memory, size_t bytes) {
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < bytes; at += TOUCH_BYTES)
        memset(memory + at, 0, bytes - at < TOUCH_BYTES ? bytes - at : TOUCH_BYTES);
}

bool snapshot_reserve(Snapshot *snapshot) {
    const Ops *ops = snapshot->exec->ops;
    if (!memory_fits(snapshot->bytes)) return false;
    snapshot->memory = ops->host_allocate ? (char *)ops->host_allocate(snapshot->exec, snapshot->bytes)
                                          : (char *)malloc(snapshot->bytes);
    if (!snapshot->memory) return false;
    if (!ops->host_allocate) touch(snapshot->memory, snapshot->bytes); // page-locked memory already has its pages
    char *at = snapshot->memory;
    if (snapshot->arena->rank == 0) place(snapshot->model, snapshot->model_count, &at);
    place(snapshot->optimizer, snapshot->optimizer_count, &at);
    return true;
}

// Sets a tensor that only checkpoints need to its initial values: 1 in the weight of a norm, otherwise 0. The tensor's
// host memory must be zeroed.
static void fill_carried(CheckpointTensor *t) {
    const char *end = strrchr(t->name, '.');
    const bool ones = strstr(t->name, "norm") && end && strcmp(end, ".weight") == 0;
    const uint16_t half = bf16_encode(1.0f);
    const real one = 1;
    const size_t bytes = dtype_bytes(t->dtype); // the type is BF16 or that of `real`
    for (int64_t i = 0; ones && i < t->cols; i++)
        memcpy(t->host + (size_t)i * bytes, bytes == sizeof half ? (const void *)&half : &one, bytes);
}

void snapshot_read_carried(Snapshot *s) {
    HfWeights weights;
    Error err;
    const char *source = config_vision_files(s->arena->config);
    if (!s->carried_bytes) return;
    bool open = source[0] && hf_weights_open(&weights, source, &err), good = open || !source[0];
    for (int i = 0; i < s->model_count; i++) {
        CheckpointTensor *t = &s->model[i];
        const SafeFile *file;
        const SafeTensor *stored;
        if (t->arena) continue;
        const bool found = open && good && hf_weights_find(&weights, t->name, &file, &stored) &&
                           stored->bytes == (uint64_t)(t->rows * t->cols) * dtype_bytes(stored->dtype);
        if (found) {
            t->host = (char *)xmalloc((size_t)stored->bytes);
            good = safetensors_read(file, stored, 0, t->host, (size_t)stored->bytes, &err);
            if (good) {
                t->dtype = stored->dtype;
                continue;
            }
            free(t->host);
        }
        t->host = (char *)xcalloc(1, checkpoint_tensor_bytes(t));
        fill_carried(t);
    }
    if (open) hf_weights_close(&weights);
    if (!good)
        print_remark("warning: ", "%s; checkpoints get initial values for tensors that this run does not compute",
                     err.text);
}

// Downloads the tensors of the list that have host memory. All processes must call this, because each sharded weight
// (ZeRO 3) is gathered on all processes, one weight at a time.
static void copy(const Snapshot *snapshot, const CheckpointTensor *list, int count) {
    Exec *exec = snapshot->exec;
    for (int i = 0; i < count; i++) {
        const CheckpointTensor *t = &list[i];
        if (!t->arena) continue;
        Shards *shards = snapshot->shards;
        while (t->shared && shards->arena != t->arena) shards = shards->joined;
        const char *data = t->shared ? (char *)shards_whole_value(shards, t->id, t->layer) + t->offset : t->data;
        if (t->host) exec->ops->download(exec, t->host, data, checkpoint_tensor_bytes(t));
    }
}

void snapshot_copy(Snapshot *snapshot, const RunState *run) {
    snapshot->run = *run;
    for (Shards *s = snapshot->shards; s; s = s->joined) shards_weights_wait(s);
    Exec *exec = snapshot->exec;
    free(snapshot->algos);
    snapshot->algos = exec->rank == 0 && exec->ops->algos_text ? exec->ops->algos_text(exec) : NULL;
    if (!snapshot->memory && !snapshot->shards) return;
    copy(snapshot, snapshot->model, snapshot->model_count);
    copy(snapshot, snapshot->optimizer, snapshot->optimizer_count);
}

void snapshot_close(Snapshot *snapshot) {
    const Ops *ops = snapshot->exec ? snapshot->exec->ops : NULL;
    if (snapshot->memory && ops->host_release)
        ops->host_release(snapshot->exec, snapshot->memory);
    else
        free(snapshot->memory);
    for (int i = 0; i < snapshot->model_count; i++)
        if (!snapshot->model[i].arena) free(snapshot->model[i].host);
    free(snapshot->model);
    free(snapshot->optimizer);
    free(snapshot->algos);
    json_decref(snapshot->generation);
    json_decref(snapshot->processor);
    memset(snapshot, 0, sizeof *snapshot);
}
