// The model: what a pass over it and a step of its training need, and the calls that train_gpt2_fp8.cu defines.
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
    Config config;
    Exec exec;
    const Ops *ops; // exec.ops, for short
    Arena arena;
    Comm *comm;            // with the other processes
    Shards shards;         // what they share, and when it is communicated
    Parameter *parameters; // all of them
    int parameter_count;
    int B, T;           // shape of the pass under way; at most micro_batch x seq_len
    bool document_mask; // documents cannot attend to each other; POSITIONS restarts at 0 in each of them
    bool keeps_heads; // it is a sample's: QKV keeps q, k and v as attention reads them, in the rows of their positions
    int before;       // positions before its first, whose keys and values the sample's earlier passes have left there
    StepState *state; // in the device's memory
    StepState host;   // its last known contents
    Guard *guard;     // against outliers; NULL: off
    // of the next micro-batch or the one under way, for FP8 health
    bool counts_codes, compares_matmuls;
    double deadline_ms; // from then on passes are given up for --time-limit; 0: none
} Model;

// The descriptors of this pass: activations hold as many rows as it has tokens.
static inline Tensor act(const Model *m, TensorId id, int layer) {
    Tensor t = arena_tensor(&m->arena, id, VALUE, layer);
    t.rows = (int64_t)m->B * m->T;
    return t;
}

// An activation that backward reads: data == NULL if it was not kept and has to be recomputed.
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

// Device, the other processes, memory and parameter list; the parameters' values are still undefined. On failure
// m->comm is NULL where the other processes do not know of it.
bool model_create(Model *m, const Config *config, const CommPlace *place, Error *err);
void model_destroy(Model *m);

// The host's copy of the step's state to the device, and back; the latter waits for the device.
void state_upload(Model *m);
void state_download(Model *m);

// The tokens of the next pass, inputs and targets (B, T), and their positions within documents, which --documents apart
// has room for; targets NULL where none are wanted, positions NULL where a row is one document. Sets m->B and m->T; the
// pass is no sample's unless the caller says so then.
void batch_upload(Model *m, int B, int T, const int32_t *inputs, const int32_t *targets, const int32_t *positions);

// Tokens in, normalised final residual NF (M, C) out.
void model_forward(Model *m);

// The losses of all tokens into LOSSES, their sum times the state's scale added to it; with `backward` the gradients of
// the head, overwritten or added to.
void model_loss(Model *m, bool backward, bool accumulate);

// One optimizer step: begin, with the number of its targets that count, over all processes; micro-batches (`accumulate`
// but for the first, `last` in the last); end. The results are in m->host then.
void step_begin(Model *m, float lr, int64_t targets);
void micro_step(Model *m, bool accumulate, bool last);
void step_end(Model *m);

#ifdef __cplusplus
}
#endif
