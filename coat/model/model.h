// Declares the model: the state of a training process, and the passes and optimizer steps of train_gpt2_fp8.cu.
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
    Shards shards;         // shards that this process stores or updates, and their communication
    Parameter *parameters; // all parameters
    int parameter_count;
    int B, T; // current pass: B sequences of T tokens, at most micro_batch x seq_len
    // true: tokens attend only to their own document; POSITIONS contains each token's position in its document
    bool masks_documents;
    StepState *state;                    // state of the current step in device memory
    StepState host;                      // host copy of *state, as of the last upload or download
    Guard *guard;                        // detects outlier steps (--skip-loss-z, --skip-grad-z); NULL: off
    bool counts_codes, compares_matmuls; // true: the next micro_step() computes these FP8 health statistics
    // model of the vision tower and the projector, whose B is the number of images and T the number of rows per image;
    // NULL: text-only model
    struct Model *vision;
    Config *vision_config;
    uint8_t *sample_image; // pixels of the image in the prompt of samples; NULL: none
    double deadline_ms;    // time in ms at which passes stop because of --time-limit; 0: no limit
} Model;

// State of the KV cache while a sample is generated. The cache is the tensor QKV of all layers, with one row of q, k
// and v per token. A pass with uses_kv_cache appends its rows to the cached rows and attends to both. A pass that reads
// cached rows must have B = 1.
typedef struct {
    bool uses_kv_cache;
    int cached_tokens; // number of the sample's tokens that earlier passes have stored in the cache
} KvCache;

static const KvCache NO_KV_CACHE = {false, 0}; // used by training and evaluation

// Returns the descriptor of an activation, with one row per token of the current pass.
static inline Tensor act(const Model *m, TensorId id, int layer) {
    Tensor t = arena_tensor(&m->arena, id, VALUE, layer);
    t.rows = (int64_t)m->B * m->T;
    return t;
}

// Returns the descriptor of an activation for backward. data is NULL if forward did not save the activation, so that
// backward must recompute the activation.
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

// state_upload() copies m->host to the device. state_download() waits for the device and copies its state to m->host.
void state_upload(Model *m);
void state_download(Model *m);

// Uploads the tokens of the next pass (B, T) and sets m->B and m->T. targets: NULL if the pass computes no loss.
// positions: position of each token within its document, for document masking (--documents). NULL: no masking.
void batch_upload(Model *m, int B, int T, const int32_t *inputs, const int32_t *targets, const int32_t *positions);

// Uploads the images of the next pass, and the places of their features among the tokens. Does nothing without a vision
// tower.
//   pixels (images, 3 * side * side): bytes of the images, color by color
//   image_rows (B * T): for each token, the row of the projector's output that replaces its embedding; -1: none.
//   Image i has rows i * vision_rows() and following. If `images` is 0, the rows are those that an earlier pass has
//   computed. NULL: the pass has no images, and `images` is 0.
void images_upload(Model *m, int images, const uint8_t *pixels, const int32_t *image_rows);

// Sets the mean and standard deviation by which the vision tower normalizes each color: ((byte / 255) - mean) /
// deviation. model_create() sets those of vision_pixel_defaults().
void vision_pixels_set(Model *m, const float mean[3], const float deviation[3]);

// Runs the forward pass on the uploaded tokens and the projector's output, up to NF (M, C), the final norm's output.
void model_forward(Model *m, KvCache cache);

// Computes FEATURES, the projector's output for the uploaded images. Does nothing without a vision tower.
void vision_forward(Model *m);

// Computes the loss of every token (LOSSES) and adds the losses' sum, times state->loss_scale, to state->loss_sum. With
// `backward`, also runs the output head's backward, which overwrites the head's gradient or, with `accumulate`, adds to
// this gradient. Without `backward`, also computes BEST if the model has a vision tower.
void model_loss(Model *m, bool backward, bool accumulate);

// Run one optimizer step: step_begin(), then micro_step() per micro-batch, then step_end(), after which m->host
// contains the results. targets: number of unmasked targets over all processes and micro-batches. accumulate: false
// only in the first micro-batch. last: true only in the last micro-batch.
void step_begin(Model *m, float lr, int64_t targets);
void micro_step(Model *m, bool accumulate, bool last);
void step_end(Model *m);

C_LINKAGE_END
