// Records accesses to tensors, their scales and amax for test_order, through each tensor's window (order_memory.h).
#pragma once
#include "dev/test/order_memory.h"

// --- arena functions whose tensors have addresses in windows ------------------------------------------------------

static Tensor order_tensor(const Arena *arena, TensorId id, Role role, int layer) {
    Tensor t = arena_tensor(arena, id, role, layer);
    t.data = through_window(t.data, arena, role, id, layer);
    return t;
}

static Tensor order_saved(const Arena *arena, TensorId id, int layer) {
    Tensor t = arena_saved(arena, id, layer);
    t.data = through_window(t.data, arena, VALUE, id, layer);
    return t;
}

static Tensor order_gradient(const Arena *arena, TensorId id, int layer) {
    Tensor t = arena_gradient(arena, id, layer);
    t.data = through_window(t.data, arena, GRAD, id, layer);
    return t;
}

static Weight order_weight(const Arena *arena, TensorId id, int layer) {
    Weight w = arena_weight(arena, id, layer);
    w.value.data = through_window(w.value.data, arena, VALUE, id, layer);
    w.codes.data = through_window(w.codes.data, arena, VALUE, id, layer);
    w.codes_t.data = through_window(w.codes_t.data, arena, VALUE, id, layer);
    return w;
}

// --- recording of reads and writes of tensors ---------------------------------------------------------------------

typedef void Access(const void *address, size_t bytes);

static void access_data(Access *access, Tensor t) {
    const int64_t lines = t.transposed ? t.cols : t.rows, length = t.transposed ? t.rows : t.cols;
    const size_t size = format_bytes(t.format);
    if (!t.data || lines * length == 0) return;
    if (length == t.stride) {
        access(t.data, (size_t)(lines * length) * size);
        return;
    }
    for (int64_t i = 0; i < lines; i++) access((char *)t.data + (size_t)(i * t.stride) * size, (size_t)length * size);
}

static void access_scale(Access *access, Tensor t) {
    const int64_t elements = tensor_elements(t);
    if (!t.scale || elements == 0) return;
    switch (t.granularity) {
    case SCALE_NONE: break;
    case SCALE_TENSOR: access(t.scale, sizeof(float)); break;
    case SCALE_ROW: access(t.scale, (size_t)t.rows * sizeof(float)); break;
    case SCALE_GROUP: access(t.scale, (size_t)(t.rows * ((t.cols + t.group - 1) / t.group)) * 2); break;
    case SCALE_EXPAND:
        access(t.scale, (size_t)((elements + t.group - 1) / t.group) * sizeof(float));
        access(t.exponent, (size_t)((elements + t.group - 1) / t.group));
        break;
    }
}

static void reads_data(Tensor t) {
    access_data(read_memory, t);
}
static void writes_data(Tensor t) {
    access_data(write_memory, t);
}
static void reads_scale(Tensor t) {
    access_scale(read_memory, t);
}

static void reads(Tensor t) {
    reads_data(t);
    if (t.data) reads_scale(t);
}
static void writes(Tensor t) {
    writes_data(t);
    if (t.data) access_scale(write_memory, t);
}

// Records that an operation writes, or reads, the amax values of t, if t has amax values.
static void writes_maxima(Tensor t) {
    if (t.amax) write_memory(t.amax, (size_t)t.rows * sizeof *t.amax);
}
static void reads_maxima(Tensor t) {
    if (t.amax) read_memory(t.amax, (size_t)t.rows * sizeof *t.amax);
}

static void sums(Tensor gradient, bool accumulate) {
    if (accumulate) reads_data(gradient);
    writes_data(gradient);
}

// Records that an operation may set state->nonfinite, as quantization does on NaN or inf.
static void may_raise(StepState *state) {
    if (state) write_memory(&state->nonfinite, sizeof state->nonfinite);
}

static void begin(const char *name) {
    event_begin(COMPUTATION, name);
}

static void begin_update(const char *name) {
    begin(name);
    order.event[COMPUTATION][order.clock[COMPUTATION]].layer = OF_ALL;
}

static bool codes(Tensor t) {
    return t.data && format_is_fp8(t.format);
}

// Records the quantization of an operand: its amax is written and read, then FP8 values and scale are written.
static void quantizes(Exec *exec, Tensor q) {
    writes_maxima(q);
    reads_maxima(q);
    writes(q);
    may_raise(exec->state);
}

static void reads_norm(Norm norm) {
    reads(norm.x);
    reads_data(norm.mean);
    reads_data(norm.rstd);
    reads_data(norm.weight);
}

// Records that q is transposed to q_t. The transpose uses q's scale or, if q has row scales or another format, a scale
// of its own.
static void writes_transposed(Tensor q_t, Tensor q) {
    if (q.granularity == SCALE_ROW) reads_scale(q);
    if (q.amax && !codes(q) && codes(q_t)) reads_maxima(q);
    if (q_t.scale && !same_memory(q_t.scale, q.scale)) access_scale(write_memory, q_t);
    if (codes(q_t)) reads_scale(q_t);
    writes_data(q_t);
}

// Records that `part`, a layer's gradient summed over the ranks, is added to `gradient`. Then `part` counts as
// unwritten.
static void takes_sum(Tensor gradient, Tensor part) {
    reads_data(part);
    sums(gradient, true);
    if (count_access) return;
    const size_t begin = offset_of(part.data), end = begin + (size_t)tensor_elements(part) * format_bytes(part.format);
    const Unit *from = &order.unit[begin / UNIT], *to = &order.unit[offset_of(gradient.data) / UNIT];
    if (from->writer != COMMUNICATION)
        report(&order.old, "old: %s reads %s before the processes have summed it", this_event().text,
               label_name(from->content).text);
    if (label_number(from->content) != label_number(to->content) ||
        label_layer(from->content) != label_layer(to->content))
        report(&order.clobbered, "clobbered: %s adds %s to %s", this_event().text, label_name(from->content).text,
               label_name(to->content).text);
    for (size_t u = begin / UNIT; u < end / UNIT; u++) order.unit[u].made = -1;
}

// Records that an update reads a gradient, which must be from the step's last pass and summed over the ranks.
static void reads_sum(Exec *exec, Tensor gradient) {
    if (tensor_elements(gradient) == 0) return;
    reads_data(gradient);
    if (count_access) return;
    const Unit *u = &order.unit[offset_of(gradient.data) / UNIT];
    const bool summed =
        u->writer == COMMUNICATION || strcmp(order.event[u->writer][u->written].name, "gradients_add") == 0;
    if (u->made != order.pass || (exec->ranks > 1 && !summed))
        report(&order.old, "old: %s reads %s, which is not the sum over %s: %s wrote it last", this_event().text,
               label_name(u->content).text, exec->ranks > 1 ? "the processes and passes" : "the passes",
               event_name(u->writer, u->written).text);
}
