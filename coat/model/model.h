// The model: the state of a training process, and the passes and steps that train_gpt2_fp8.cu defines.
#pragma once

#include "arena.h"
#include "comm/comm.h"
#include "guard.h"
#include "ops.h"
#include "shards.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const Config *config;
    Exec exec;
    const Ops *ops; // exec.ops
    Arena arena;
    Comm *comm;            // the other processes
    Shards shards;         // the shards of this process, and their communication
    Parameter *parameters; // all parameters
    int parameter_count;
    int B, T;             // shape of the current pass: at most micro_batch x seq_len
    bool masks_documents; // documents of the current pass cannot attend to each other; POSITIONS says where each begins
    StepState *state;     // in device memory
    StepState host;       // copy of *state as last uploaded or downloaded
    Guard *guard;         // skips outliers; NULL: off
    bool counts_codes, compares_matmuls; // FP8 health examines the next micro_step()
    double deadline_ms;                  // --time-limit: passes stop at this time; 0: no limit
} Model;

// The KV cache of a sample is QKV in all layers: a row per position, with q, k and v as attention reads them. A pass
// with uses_kv_cache adds its own rows after the cached ones and attends to both; it is incremental if there are any.
// Its B is then 1.
typedef struct {
    bool uses_kv_cache;
    int cached_tokens; // positions that earlier passes over the sample have stored
} KvCache;

static const KvCache NO_KV_CACHE = {false, 0}; // of training and evaluation

// Returns an activation with as many rows as the current pass has tokens.
static inline Tensor act(const Model *m, TensorId id, int layer) {
    Tensor t = arena_tensor(&m->arena, id, VALUE, layer);
    t.rows = (int64_t)m->B * m->T;
    return t;
}

// Returns an activation for backward; data is NULL if forward did not save it and backward must recompute it.
static inline Tensor saved(const Model *m, TensorId id, int layer) {
    Tensor t = arena_saved(&m->arena, id, layer);
    t.rows = (int64_t)m->B * m->T;
    return t;
}

static inline Tensor param(const Model *m, TensorId id, int layer) {
    return arena_tensor(&m->arena, id, VALUE, layer);
}
static inline Tensor grad(const Model *m, TensorId id, int layer) {
    return arena_gradient(&m->arena, id, layer);
}
static inline Weight weight(const Model *m, TensorId id, int layer) {
    return arena_weight(&m->arena, id, layer);
}

// Opens the device, connects to the other processes, plans and allocates the memory, and lists the parameters, whose
// values stay undefined. On failure, m->comm is NULL if the other processes are not connected.
bool model_create(Model *m, const Config *config, const CommPlace *place, Error *err);
void model_destroy(Model *m);

// Copy m->host to the device, and back. state_download() waits for the device.
void state_upload(Model *m);
void state_download(Model *m);

// Uploads the tokens of the next pass (B, T) and sets m->B and m->T.
//   targets: NULL if the pass computes no loss.
//   positions: of each token within its document, for document masking (--documents apart). NULL: no masking.
void batch_upload(Model *m, int B, int T, const int32_t *inputs, const int32_t *targets, const int32_t *positions);

// Computes NF (M, C), the norm of the final residual stream, from the uploaded tokens.
void model_forward(Model *m, KvCache cache);

// Computes the loss of every token (LOSSES) and adds their sum, times state->loss_scale, to state->loss_sum. With
// `backward`, also computes the gradients of the head, which overwrite or, with `accumulate`, add to earlier ones.
void model_loss(Model *m, bool backward, bool accumulate);

// One optimizer step. step_begin() takes the number of unmasked targets over all processes and micro-batches.
// micro_step() runs once per micro-batch: `accumulate` in all but the first, `last` in the last. After step_end(),
// m->host has the results.
void step_begin(Model *m, float lr, int64_t targets);
void micro_step(Model *m, bool accumulate, bool last);
void step_end(Model *m);

#ifdef __cplusplus
}
#endif
