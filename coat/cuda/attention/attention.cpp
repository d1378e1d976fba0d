// Flash attention by cuDNN through its C++ frontend, which only this file uses. A cuDNN graph is built once per shape
// and cached; later calls only pass pointers.
#include "attention.h"

// Omits the cuDNN frontend's JSON library, so that this file compiles in a third of the time. The frontend needs JSON
// only to store and print graphs.
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
    std::shared_ptr<fe::graph::Graph> graph; // NULL if cuDNN cannot compute attention for `key`
    int64_t workspace_bytes;
};

struct AttentionState {
    cudaStream_t stream;
    cudnnHandle_t handle;                         // NULL before the first plan; always NULL if `device` is set
    std::shared_ptr<fe::DeviceProperties> device; // description of the GPU to plan for; NULL: the current GPU
    int capability;                               // compute capability of the GPU to plan for: 10 * major + minor
    Error refusal; // latest error because of which cuDNN could not compute attention; "" if there was none
    std::vector<Plan> plans;
};

static bool same_key(const Key &a, const Key &b) {
    for (int i = 0; i < OPERANDS; i++)
        if (a.stride[i] != b.stride[i]) return false;
    return a.backward == b.backward && a.stats == b.stats && a.bidirectional == b.bidirectional && a.B == b.B &&
           a.T == b.T && a.heads == b.heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim;
}

// Runs one call of the cuDNN frontend. The call may report failure by its status or by an exception. On failure,
// returns false with err. err names the step `doing` and contains the first line of cuDNN's message; the other lines
// only list engines.
template <typename Step> static bool step(Error *err, const char *doing, Step run) {
    std::string message;
    try {
        fe::error_t status = run();
        if (status.is_good()) return true;
        message = status.get_message();
    } catch (const std::exception &e) { message = e.what(); }
    return error_set(err, EXIT_DEVICE, "cuDNN attention: %s failed: %s", doing,
                     message.substr(0, message.find('\n')).c_str());
}

// Loads NVRTC and creates cuDNN's handle, unless the handle exists. If state->device is set, only loads NVRTC, because
// planning for a described GPU needs no handle. Returns false with err on failure.
static bool open_handle(AttentionState *state, Error *err) {
    if (state->handle) return true;
    const char *missing = libraries_load_nvrtc();
    if (missing)
        return error_set(err, EXIT_DEVICE,
                         "cuDNN needs NVRTC: %s; add the folder of CUDA's libraries to "
                         "LD_LIBRARY_PATH",
                         missing);
    if (state->device) return true;
    cudnnHandle_t handle = NULL;
    cudnnStatus_t status = cudnnCreate(&handle);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnSetStream(handle, state->stream);
    if (status == CUDNN_STATUS_SUCCESS) {
        state->handle = handle;
        return true;
    }
    if (handle) cudnnDestroy(handle);
    return error_set(err, EXIT_DEVICE, "cuDNN cannot be initialized: %s; check that cuDNN 9 for CUDA %d is installed",
                     cudnnGetErrorString(status), CUDART_VERSION / 1000);
}

// Describes an operand to cuDNN. Its shape is (B, heads, T, head_dim). In memory it is (B, T, row stride), and a row
// contains all heads of a token.
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

// Records err as the reason why cuDNN cannot compute attention. On the first refusal, rank 0 prints a warning, unless
// state->device is set.
static void refuse(AttentionState *state, bool backward, const Error *err) {
    const bool first = !state->refusal.text[0];
    state->refusal = *err;
    if (!first || error_rank > 0 || state->device) return;
    // cuDNN 9.18 introduced the deterministic backward for compute capability 10.x.
    const bool too_old = state->handle && backward && state->capability / 10 == 10 && cudnnGetVersion() < 91800;
    fprintf(stderr, "warning: %s (cuDNN %s); %sslower kernels of this program are used instead\n", err->text,
            fe::detail::get_backend_version_string().c_str(),
            too_old ? "install cuDNN 9.18 or later; until then, " : "");
}

static fe::error_t graph_build(AttentionState *state, Plan *plan) {
    fe::graph::Graph &graph = *plan->graph;
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (state->device) graph.set_device_properties(state->device).set_sm_version(state->capability);
    if (plan->key.backward)
        describe_backward(graph, plan->key);
    else
        describe_forward(graph, plan->key);
    // Uses the first plan of cuDNN's heuristic, which depends only on shape and GPU. If plans were chosen by measured
    // times, runs would not be reproducible.
    fe::error_t status =
        state->device ? graph.build({fe::HeurMode_t::A}) : graph.build(state->handle, {fe::HeurMode_t::A});
    return status.is_good() ? graph.get_workspace_size(plan->workspace_bytes) : status;
}

// Returns the cached plan for a key; builds the plan on first use. The pointer is valid until the next call. Returns
// NULL if cuDNN cannot compute attention for the key. The first call with such a key also calls refuse(), unless
// `optional` is true.
static const Plan *plan_get(AttentionState *state, const Key &key, bool optional = false) {
    for (const Plan &plan : state->plans)
        if (same_key(plan.key, key)) return plan.graph ? &plan : NULL;
    Plan plan = {key, std::make_shared<fe::graph::Graph>(), 0};
    Error err = {};
    char doing[160];
    snprintf(doing, sizeof doing, "planning the %s for %lld sequences of %lld tokens, %lld heads of width %lld",
             key.backward ? "backward" : "forward", (long long)key.B, (long long)key.T, (long long)key.heads,
             (long long)key.head_dim);
    if (!open_handle(state, &err) || !step(&err, doing, [&] { return graph_build(state, &plan); })) {
        if (!optional) refuse(state, key.backward, &err);
        plan.graph = NULL;
    }
    state->plans.push_back(plan);
    return plan.graph ? &state->plans.back() : NULL;
}

static void plan_run(AttentionState *state, const Plan *plan, Pointers &pointers, void *workspace) {
    Error err = {};
    if (!step(&err, plan->key.backward ? "the backward" : "the forward",
              [&] { return plan->graph->execute(state->handle, pointers, workspace); }))
        fatal(err.code, "%s", err.text);
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

// Returns the address in operand `id` of sequence b and key/value head h. For an operand with query heads, returns the
// address of the first query head that reads key/value head h.
static void *operand_at(AttentionShape shape, const Tensor *operands, int id, int b, int h) {
    int group = shape.heads / shape.kv_heads;
    if (id == LSE) return (float *)operands[LSE].data + ((int64_t)b * shape.heads + (int64_t)h * group) * shape.T;
    int head = id == K || id == V || id == DK || id == DV ? h : h * group;
    return (uint16_t *)operands[id].data + (int64_t)b * shape.T * operands[id].stride + (int64_t)head * shape.head_dim;
}

// Chooses the slice of attention's backward: the number of sequences and heads that cuDNN processes at once. bytes:
// size of the workspace. Starts with the slice that attention_slice_bytes() predicts to fit ATTENTION_WORKSPACE_LIMIT.
// Halves the slice while the prediction or the plan's workspace exceeds `bytes`. Enlarges the slice if the plan needs
// less than half of the prediction. Returns false if cuDNN cannot compute the backward, or if even one key/value head
// needs more than `bytes`.
static bool backward_slice(AttentionState *state, AttentionShape shape, const Tensor *operands, size_t bytes,
                           AttentionSlice *slice) {
    const auto plan_of = [&](AttentionSlice part, bool optional) {
        return plan_get(state, key_make(shape, part, true, true, operands), optional);
    };
    *slice = attention_slice(shape, ATTENTION_WORKSPACE_LIMIT);
    for (;;) {
        const size_t predicted = attention_slice_bytes(shape, *slice);
        size_t needed = predicted;
        if (needed <= bytes) {
            const Plan *plan = plan_of(*slice, false);
            if (!plan) return false;
            needed = (size_t)plan->workspace_bytes;
        }
        if (needed <= bytes && needed < predicted / 2) {
            const size_t heads = (size_t)slice->sequences * (size_t)slice->kv_heads;
            const AttentionSlice larger = attention_slice_of(shape, needed / heads + 1, bytes);
            const Plan *plan = plan_of(larger, true);
            if (plan && (size_t)plan->workspace_bytes <= bytes) *slice = larger;
        }
        if (needed <= bytes) return true;
        if (slice->sequences > 1)
            slice->sequences = (slice->sequences + 1) / 2;
        else if (slice->kv_heads > 1)
            slice->kv_heads = (slice->kv_heads + 1) / 2;
        else {
            Error err = {};
            error_set(&err, EXIT_DEVICE,
                      "cuDNN attention: the backward of one head of %d tokens needs %zu bytes of workspace, but only "
                      "%zu are planned; use a smaller --seq-len",
                      shape.T, needed, bytes);
            refuse(state, true, &err);
            return false;
        }
    }
}

extern "C" AttentionState *attention_open(void *stream, int capability) {
    return new AttentionState{(cudaStream_t)stream, NULL, NULL, capability, {}, {}};
}

extern "C" AttentionState *attention_open_described(const char *device, int capability, Error *err) {
    AttentionState *state = (AttentionState *)attention_open(NULL, capability);
    state->device = std::make_shared<fe::DeviceProperties>();
    const std::vector<uint8_t> text(device, device + strlen(device));
    if (step(err, "reading the description of a GPU", [&] { return state->device->deserialize(text); })) return state;
    attention_close(state);
    return NULL;
}

extern "C" void attention_close(AttentionState *state) {
    if (!state) return;
    state->plans.clear();
    if (state->handle) cudnnDestroy(state->handle);
    delete state;
}

extern "C" AttentionPlan attention_plan(AttentionState *state, AttentionShape shape, bool backward,
                                        size_t workspace_bytes) {
    Tensor operands[OPERANDS] = {};
    for (int i = 0; i < (backward ? (int)OPERANDS : (int)D_O); i++) {
        bool packed = i == Q || i == K || i == V || i == DQ || i == DK || i == DV;
        operands[i].data = state; // placeholder that is only compared with NULL
        operands[i].stride = (int64_t)(shape.heads + (packed ? 2 * shape.kv_heads : 0)) * shape.head_dim;
    }
    AttentionPlan found = {};
    found.slice = {shape.B, shape.kv_heads};
    if (backward && !backward_slice(state, shape, operands, workspace_bytes, &found.slice)) return found;
    const Plan *plan = plan_get(state, key_make(shape, found.slice, backward, true, operands));
    if (plan) found.workspace_bytes = (size_t)plan->workspace_bytes;
    found.supported = plan && found.workspace_bytes <= workspace_bytes;
    return found;
}

extern "C" bool attention_forward(AttentionState *state, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                                  AttentionShape shape, void *workspace, size_t workspace_bytes) {
    Tensor operands[OPERANDS] = {};
    operands[Q] = q, operands[K] = k, operands[V] = v, operands[O] = o, operands[LSE] = lse;
    AttentionSlice whole = {shape.B, shape.kv_heads};
    const Plan *plan = plan_get(state, key_make(shape, whole, false, lse.data != NULL, operands));
    if (!plan || (size_t)plan->workspace_bytes > workspace_bytes) return false;
    Pointers pointers;
    for (int i = Q; i <= LSE; i++)
        if (operands[i].data) pointers[i + 1] = operands[i].data;
    plan_run(state, plan, pointers, workspace);
    return true;
}

extern "C" bool attention_backward(AttentionState *state, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o,
                                   Tensor lse, Tensor q, Tensor k, Tensor v, AttentionShape shape, void *workspace,
                                   size_t workspace_bytes) {
    Tensor operands[OPERANDS] = {q, k, v, o, lse, d_o, dq, dk, dv};
    AttentionSlice slice;
    if (!backward_slice(state, shape, operands, workspace_bytes, &slice)) return false;
    for (int b = 0; b < shape.B; b += slice.sequences)
        for (int h = 0; h < shape.kv_heads; h += slice.kv_heads) {
            AttentionSlice part = slice;
            if (part.sequences > shape.B - b) part.sequences = shape.B - b;
            if (part.kv_heads > shape.kv_heads - h) part.kv_heads = shape.kv_heads - h;
            const Plan *plan = plan_get(state, key_make(shape, part, true, true, operands));
            if (!plan || (size_t)plan->workspace_bytes > workspace_bytes) return false;
            Pointers pointers;
            for (int i = 0; i < OPERANDS; i++) pointers[i + 1] = operand_at(shape, operands, i, b, h);
            plan_run(state, plan, pointers, workspace);
        }
    return true;
}

extern "C" const char *attention_refusal(const AttentionState *state) {
    return state->refusal.text;
}

extern "C" size_t attention_workspace_used(const AttentionState *state) {
    int64_t most = 0;
    for (const Plan &plan : state->plans)
        if (plan.workspace_bytes > most) most = plan.workspace_bytes;
    return (size_t)most;
}
