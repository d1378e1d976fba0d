// Flash attention by cuDNN through its C++ frontend; this is the project's only C++ file. A cuDNN graph is built once
// per shape and cached; later calls only pass pointers.
#include "attention.h"

// Compiles in a third of the time, because the frontend needs its JSON library only to store and to print graphs.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <math.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace fe = cudnn_frontend;
typedef std::shared_ptr<fe::graph::Tensor_attributes> GraphTensor;
typedef std::unordered_map<int64_t, void *> Pointers;

enum { Q, K, V, O, LSE, D_O, DQ, DK, DV, OPERANDS };

// Key of a cached cuDNN graph: the shape of a call and the row strides of its operands.
struct Key {
    bool backward, stats, bidirectional;
    int64_t B, T, heads, kv_heads, head_dim;
    // row stride of each operand (elements between consecutive tokens); 0: the graph does not use the operand
    int64_t stride[OPERANDS];
};

struct Plan {
    Key key;
    std::shared_ptr<fe::graph::Graph> graph;
    int64_t workspace_bytes;
};

struct AttentionState {
    cudnnHandle_t handle;
    std::vector<Plan> plans;
};

static bool same_key(const Key &a, const Key &b) {
    for (int i = 0; i < OPERANDS; i++)
        if (a.stride[i] != b.stride[i]) return false;
    return a.backward == b.backward && a.stats == b.stats && a.bidirectional == b.bidirectional && a.B == b.B &&
           a.T == b.T && a.heads == b.heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim;
}

// Runs one call of the cuDNN frontend, which returns a status or throws. On failure, err names the step `doing`.
template <typename Step> static bool step(Error *err, const char *doing, Step run) {
    std::string message;
    try {
        fe::error_t status = run();
        if (status.is_good()) return true;
        message = status.get_message();
    } catch (const std::exception &e) { message = e.what(); }
    return error_set(err, EXIT_DEVICE, "cuDNN attention: %s failed: %s", doing, message.c_str());
}

// Describes an operand to cuDNN: shape (B, heads, T, head_dim), stored as (B, T, row); a row has all heads.
static fe::graph::Tensor_attributes operand(const Key &key, int id) {
    int64_t heads = id == K || id == V || id == DK || id == DV ? key.kv_heads : key.heads;
    int64_t row = key.stride[id];
    return fe::graph::Tensor_attributes()
        .set_uid(id + 1)
        .set_dim({key.B, heads, key.T, key.head_dim})
        .set_stride({key.T * row, key.head_dim, row, 1})
        .set_data_type(fe::DataType_t::BFLOAT16);
}

static fe::graph::Tensor_attributes statistics(const Key &key) {
    return fe::graph::Tensor_attributes()
        .set_uid(LSE + 1)
        .set_dim({key.B, key.heads, key.T, 1})
        .set_stride({key.heads * key.T, key.T, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
}

static void set_output(const GraphTensor &tensor, const fe::graph::Tensor_attributes &like) {
    tensor->set_output(true)
        .set_uid(like.get_uid())
        .set_dim(like.get_dim())
        .set_stride(like.get_stride())
        .set_data_type(like.get_data_type());
}

static void describe_forward(fe::graph::Graph &graph, const Key &key) {
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention_forward")
                       .set_generate_stats(key.stats)
                       .set_attn_scale(1.0f / sqrtf((float)key.head_dim));
    if (!key.bidirectional)
        options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    auto result = graph.sdpa(graph.tensor(operand(key, Q)), graph.tensor(operand(key, K)),
                             graph.tensor(operand(key, V)), options);
    set_output(result[0], operand(key, O));
    if (key.stats) set_output(result[1], statistics(key));
}

static void describe_backward(fe::graph::Graph &graph, const Key &key) {
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_backward")
                       .set_attn_scale(1.0f / sqrtf((float)key.head_dim))
                       .set_deterministic_algorithm(true);
    if (!key.bidirectional)
        options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    auto result = graph.sdpa_backward(graph.tensor(operand(key, Q)), graph.tensor(operand(key, K)),
                                      graph.tensor(operand(key, V)), graph.tensor(operand(key, O)),
                                      graph.tensor(operand(key, D_O)), graph.tensor(statistics(key)), options);
    set_output(result[0], operand(key, DQ));
    set_output(result[1], operand(key, DK));
    set_output(result[2], operand(key, DV));
}

// Returns the cached plan for a key; builds the plan on first use. Returns NULL with err on failure. Uses cuDNN's first
// choice, which depends only on shape and GPU. Does not time plans, so that runs are reproducible.
static const Plan *plan_get(AttentionState *state, const Key &key, Error *err) {
    for (const Plan &plan : state->plans)
        if (same_key(plan.key, key)) return &plan;
    Plan plan = {key, std::make_shared<fe::graph::Graph>(), 0};
    plan.graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    char doing[160];
    snprintf(doing, sizeof doing, "planning the %s for %lld sequences of %lld tokens, %lld heads of width %lld",
             key.backward ? "backward" : "forward", (long long)key.B, (long long)key.T, (long long)key.heads,
             (long long)key.head_dim);
    bool built = step(err, doing, [&] {
        if (key.backward)
            describe_backward(*plan.graph, key);
        else
            describe_forward(*plan.graph, key);
        fe::error_t status = plan.graph->build(state->handle, {fe::HeurMode_t::A});
        return status.is_good() ? plan.graph->get_workspace_size(plan.workspace_bytes) : status;
    });
    if (!built) return NULL;
    state->plans.push_back(plan);
    return &state->plans.back();
}

static bool plan_run(AttentionState *state, const Plan *plan, Pointers &pointers, void *workspace,
                     size_t workspace_bytes, Error *err) {
    const char *what = plan->key.backward ? "the backward" : "the forward";
    if ((size_t)plan->workspace_bytes > workspace_bytes)
        return error_set(err, EXIT_DEVICE,
                         "internal error: cuDNN attention: %s needs %lld bytes of workspace, but %zu are planned", what,
                         (long long)plan->workspace_bytes, workspace_bytes);
    return step(err, what, [&] { return plan->graph->execute(state->handle, pointers, workspace); });
}

static Key key_make(AttentionShape shape, AttentionSlice slice, bool backward, bool stats, const Tensor *operands) {
    int group = shape.heads / shape.kv_heads;
    Key key = {};
    key.backward = backward, key.stats = stats, key.bidirectional = shape.bidirectional;
    key.B = slice.sequences, key.T = shape.T, key.head_dim = shape.head_dim;
    key.heads = (int64_t)slice.kv_heads * group, key.kv_heads = slice.kv_heads;
    for (int i = 0; i < OPERANDS; i++)
        if (operands[i].data) key.stride[i] = operands[i].stride;
    key.stride[LSE] = 0;
    return key;
}

// Returns the address of an operand for sequence b, from key/value head h or from its first query head on.
static void *operand_at(AttentionShape shape, const Tensor *operands, int id, int b, int h) {
    int group = shape.heads / shape.kv_heads;
    if (id == LSE) return (float *)operands[LSE].data + ((int64_t)b * shape.heads + (int64_t)h * group) * shape.T;
    int head = id == K || id == V || id == DK || id == DV ? h : h * group;
    return (uint16_t *)operands[id].data + (int64_t)b * shape.T * operands[id].stride + (int64_t)head * shape.head_dim;
}

// Chooses the slice (sequences and heads processed at once) of the backward: the planned slice, or a smaller one if
// this cuDNN version needs more workspace than planned. Returns false with err if no slice fits the workspace.
static bool backward_slice(AttentionState *state, AttentionShape shape, const Tensor *operands, size_t bytes,
                           AttentionSlice *slice, Error *err) {
    *slice = attention_slice(shape, ATTENTION_WORKSPACE_LIMIT);
    for (;;) {
        size_t needed = attention_slice_bytes(shape, *slice);
        if (needed <= bytes) {
            const Plan *plan = plan_get(state, key_make(shape, *slice, true, true, operands), err);
            if (!plan) return false;
            needed = (size_t)plan->workspace_bytes;
        }
        if (needed <= bytes) return true;
        if (slice->sequences > 1)
            slice->sequences = (slice->sequences + 1) / 2;
        else if (slice->kv_heads > 1)
            slice->kv_heads = (slice->kv_heads + 1) / 2;
        else
            return error_set(err, EXIT_DEVICE,
                             "cuDNN attention: the backward of one head of %d tokens needs %zu bytes of workspace, "
                             "but only %zu are planned; use a smaller --seq-len",
                             shape.T, needed, bytes);
    }
}

extern "C" AttentionState *attention_open(void *stream, Error *err) {
    cudnnHandle_t handle = NULL;
    cudnnStatus_t status = cudnnCreate(&handle);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnSetStream(handle, (cudaStream_t)stream);
    if (status != CUDNN_STATUS_SUCCESS) {
        error_set(err, EXIT_DEVICE, "cuDNN could not be initialized: %s; check that cuDNN 9 for CUDA %d is installed",
                  cudnnGetErrorString(status), CUDART_VERSION / 1000);
        return NULL;
    }
    return new AttentionState{handle, {}};
}

extern "C" void attention_close(AttentionState *state) {
    if (!state) return;
    state->plans.clear();
    cudnnDestroy(state->handle);
    delete state;
}

extern "C" bool attention_prepare(AttentionState *state, AttentionShape shape, size_t workspace_bytes, Error *err) {
    if (shape.head_dim % 8 != 0 || shape.head_dim > 128)
        return error_set(err, EXIT_DEVICE,
                         "attention on the GPU needs a head width that is a multiple of 8 and at most 128 (is %d); "
                         "change --heads, --head-dim or --channels, or use --device cpu or --precision fp32",
                         shape.head_dim);
    Tensor operands[OPERANDS] = {};
    for (int i = 0; i < OPERANDS; i++) {
        bool packed = i == Q || i == K || i == V || i == DQ || i == DK || i == DV;
        operands[i].data = state; // placeholder that is only compared with NULL
        operands[i].stride = (int64_t)(shape.heads + (packed ? 2 * shape.kv_heads : 0)) * shape.head_dim;
    }
    AttentionSlice slice;
    if (!backward_slice(state, shape, operands, workspace_bytes, &slice, err)) return false;
    for (int i = D_O; i < OPERANDS; i++) operands[i].data = NULL;
    AttentionSlice whole = {shape.B, shape.kv_heads};
    const Plan *forward = plan_get(state, key_make(shape, whole, false, true, operands), err);
    if (!forward) return false;
    if ((size_t)forward->workspace_bytes > workspace_bytes)
        return error_set(err, EXIT_DEVICE,
                         "cuDNN attention: forward needs %lld workspace bytes, %zu are planned; use another version",
                         (long long)forward->workspace_bytes, workspace_bytes);
    return true;
}

extern "C" void attention_forward(AttentionState *state, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                                  AttentionShape shape, void *workspace, size_t workspace_bytes) {
    Tensor operands[OPERANDS] = {};
    operands[Q] = q, operands[K] = k, operands[V] = v, operands[O] = o, operands[LSE] = lse;
    AttentionSlice whole = {shape.B, shape.kv_heads};
    Error err = {};
    const Plan *plan = plan_get(state, key_make(shape, whole, false, lse.data != NULL, operands), &err);
    if (!plan) fatal(err.code, "%s", err.text);
    Pointers pointers;
    for (int i = Q; i <= LSE; i++)
        if (operands[i].data) pointers[i + 1] = operands[i].data;
    if (!plan_run(state, plan, pointers, workspace, workspace_bytes, &err)) fatal(err.code, "%s", err.text);
}

extern "C" void attention_backward(AttentionState *state, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o,
                                   Tensor lse, Tensor q, Tensor k, Tensor v, AttentionShape shape, void *workspace,
                                   size_t workspace_bytes) {
    Tensor operands[OPERANDS] = {q, k, v, o, lse, d_o, dq, dk, dv};
    AttentionSlice slice;
    Error err = {};
    if (!backward_slice(state, shape, operands, workspace_bytes, &slice, &err)) fatal(err.code, "%s", err.text);
    for (int b = 0; b < shape.B; b += slice.sequences)
        for (int h = 0; h < shape.kv_heads; h += slice.kv_heads) {
            AttentionSlice part = slice;
            if (part.sequences > shape.B - b) part.sequences = shape.B - b;
            if (part.kv_heads > shape.kv_heads - h) part.kv_heads = shape.kv_heads - h;
            const Plan *plan = plan_get(state, key_make(shape, part, true, true, operands), &err);
            if (!plan) fatal(err.code, "%s", err.text);
            Pointers pointers;
            for (int i = 0; i < OPERANDS; i++) pointers[i + 1] = operand_at(shape, operands, i, b, h);
            if (!plan_run(state, plan, pointers, workspace, workspace_bytes, &err)) fatal(err.code, "%s", err.text);
        }
}

extern "C" size_t attention_workspace_used(const AttentionState *state) {
    int64_t most = 0;
    for (const Plan &plan : state->plans)
        if (plan.workspace_bytes > most) most = plan.workspace_bytes;
    return (size_t)most;
}
