// The model: the state of a training process, and the passes and steps that train_gpt2_fp8.cu defines.
#pragma once

#include "arena.h"
#include "comm/comm.h"
#include "guard.h"
#include "ops.h"
#include "shards.h"

C_LINKAGE_BEGIN

typedef struct Model {
    const Config *config;
    Exec exec;
    const Ops *ops; // same as exec.ops
    Arena arena;
    Comm *comm;            // connection to the other processes
    Shards shards;         // this process's shards and their communication
    Parameter *parameters; // all parameters
    int parameter_count;
    int B, T; // sequences and tokens per sequence of the current pass, at most micro_batch x seq_len
    // true: tokens attend only to their own document; POSITIONS contains each token's position in its document
    bool masks_documents;
    StepState *state;                    // state of the current step in device memory
    StepState host;                      // host copy of *state, as last uploaded or downloaded
    Guard *guard;                        // guard that skips outlier steps (--skip-loss-z, --skip-grad-z); NULL: off
    bool counts_codes, compares_matmuls; // FP8 health statistics to compute in the next micro_step()
    // vision tower and projector, whose B is the number of images of the pass and T the number of rows of an image;
    // NULL: the model reads text only
    struct Model *vision;
    Config *vision_config;
    double deadline_ms; // time at which passes stop because of --time-limit; 0: no limit
} Model;

// State of a sample's KV cache. The cache itself is the tensor QKV of all layers, with a row of q, k and v per
// position. A pass with uses_kv_cache appends its own rows after the cached ones and attends to both. The pass has B =
// 1.
typedef struct {
    bool uses_kv_cache;
    int cached_tokens; // number of positions that earlier passes over the sample have stored in the cache
} KvCache;

static const KvCache NO_KV_CACHE = {false, 0}; // used by training and evaluation

// Returns an activation's descriptor with as many rows as the current pass has tokens.
static inline Tensor act(const Model *m, TensorId id, int layer) {
    Tensor t = arena_tensor(&m->arena, id, VALUE, layer);
    t.rows = (int64_t)m->B * m->T;
    return t;
}

// Returns an activation's descriptor for backward. data is NULL if forward did not save it and backward must recompute
// it.
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

// Opens the device, connects to the other processes, plans and allocates the memory, and lists the parameters without
// initializing them. On failure, m->comm is NULL if the other processes are not connected.
bool model_create(Model *m, const Config *config, const CommPlace *place, Error *err);
void model_destroy(Model *m);

// Copy the step's state from m->host to the device (state_upload) and back (state_download, which waits for the
// device).
void state_upload(Model *m);
void state_download(Model *m);

// Uploads the tokens of the next pass (B, T) and sets m->B and m->T. targets: NULL if the pass computes no loss.
// positions: position of each token within its document, for document masking (--documents). NULL: no masking.
void batch_upload(Model *m, int B, int T, const int32_t *inputs, const int32_t *targets, const int32_t *positions);

// Uploads the images of the next pass and the places of their rows.
//   pixels (images, 3 * side * side): planar bytes
//   image_rows (B * T): for each token the row of the projector's output that replaces its embedding; -1: none. Image i
//   has rows i * vision_rows() and following. NULL: no token has one, and `images` is 0
// Does nothing without a vision tower.
void images_upload(Model *m, int images, const uint8_t *pixels, const int32_t *image_rows);

// Sets the values that pixel bytes have in the vision tower: ((byte / 255) - mean) / deviation, for each color.
// model_create() sets those of vision_pixel_defaults().
void vision_pixels_set(Model *m, const float mean[3], const float deviation[3]);

// Computes NF (M, C), the norm of the final residual stream, from the uploaded tokens and the projector's output.
void model_forward(Model *m, KvCache cache);

// Computes FEATURES, the projector's output for the uploaded images. Does nothing without a vision tower.
void vision_forward(Model *m);

// Computes the loss of every token (LOSSES) and adds their sum, times state->loss_scale, to state->loss_sum. With
// `backward`, also computes the gradients of the head, which overwrite earlier gradients or, with `accumulate`, are
// added to them. Without `backward`, also computes BEST if the model has a vision tower.
void model_loss(Model *m, bool backward, bool accumulate);

// Run one optimizer step. step_begin() takes the number of unmasked targets over all processes and micro-batches.
// micro_step() runs once per micro-batch; `accumulate` is false only in the first, `last` is true only in the last.
// After step_end(), m->host has the results.
void step_begin(Model *m, float lr, int64_t targets);
void micro_step(Model *m, bool accumulate, bool last);
void step_end(Model *m);

C_LINKAGE_END
