#include "muon.h"

#include <math.h>

void muon_open(Muon *m, const Arena *arena, Exec *exec, Comm *comm) {
    const size_t capacity = (size_t)arena_parameter_count(arena);
    m->arena = arena;
    m->exec = exec;
    m->comm = arena->zero > 0 ? comm : NULL;
    m->list = (Parameter *)xcalloc(capacity, sizeof *m->list);
    m->ids = (TensorId *)xcalloc(capacity, sizeof *m->ids);
    m->count = 0;
}

void muon_close(Muon *m) {
    free(m->list);
    free(m->ids);
    m->list = NULL;
    m->ids = NULL;
    m->count = 0;
}

// Returns a matrix of this shape at the beginning of a scratch tensor.
static Tensor scratch(const Muon *m, TensorId id, int64_t rows, int64_t cols) {
    Tensor t = arena_tensor(m->arena, id, VALUE, 0);
    t.rows = rows;
    t.cols = t.stride = cols;
    return t;
}

// Returns the number of bytes of one process's shard of an update.
static int64_t shard_bytes(const Muon *m, TensorId id) {
    return m->arena->layout[id][VALUE].shard_elements * (int64_t)format_bytes(m->arena->layout[MUON_X][VALUE].format);
}

// Returns the number of matrices of tensor `id` that are updated together.
static int matrices_together(const Muon *m, TensorId id) {
    return m->comm ? m->arena->ranks : tensor_muon_batch(id, m->arena->config);
}

// Without ZeRO, the matrix's update is stored in MUON_X. With ZeRO, the shard's update is stored in MUON_Y. The tensor
// is divided into one part for each of the matrices that are updated together.
void muon_add(Muon *m, const Parameter *matrix, TensorId id) {
    const Tensor value = matrix->weight.value;
    const int part = m->count % m->arena->config->shape.layers % matrices_together(m, id);
    Parameter *p = &m->list[m->count];
    *p = *matrix;
    p->update = scratch(m, m->comm ? MUON_Y : MUON_X, value.rows, value.cols);
    const int64_t bytes = tensor_elements(value) * (int64_t)format_bytes(p->update.format);
    p->update.data = (char *)p->update.data + part * (m->comm ? shard_bytes(m, id) : bytes);
    m->ids[m->count++] = id;
}

// Orthogonalizes the pieces of the momenta of `matrices` matrices, and scales each piece to an RMS of at most about
// muon_rms. An orthogonal matrix has an RMS of 1 / sqrt(larger of its rows and columns). If all pieces have the same
// shape, one operation orthogonalizes all pieces.
static void orthogonalize(const Muon *m, TensorId id, int matrices, StepState *state) {
    const Config *c = m->arena->config;
    const TensorLayout *t = &m->arena->layout[id][VALUE];
    const Tensor update = scratch(m, MUON_X, matrices * t->rows, t->cols);
    int64_t rows[MAX_PIECES], first = 0;
    const int pieces = tensor_pieces(id, &c->shape, rows);
    const int count = parts_are_equal(rows, pieces) ? pieces * matrices : 1;
    for (int i = 0; first < update.rows; i++) {
        const int64_t r = rows[i % pieces], n = r < t->cols ? r : t->cols, larger = r + t->cols - n;
        const Tensor x = tensor_rows(update, first, count * r);
        m->exec->ops->muon_orthogonalize(m->exec, x, count, scratch(m, MUON_Y, x.rows, x.cols),
                                         scratch(m, MUON_A, count * n, n), scratch(m, MUON_B, count * n, n),
                                         c->muon_rms * sqrtf((float)larger), state);
        first += count * r;
    }
}

// With ZeRO, sends part j of `from` to process j, and writes the part that process j sends to part j of `to`. A part is
// a shard of tensor `id`.
static void exchange(const Muon *m, TensorId id, TensorId to, TensorId from) {
    if (!m->comm) return;
    comm_after_compute(m->comm);
    comm_all_to_all(m->comm, scratch(m, to, 0, 0).data, scratch(m, from, 0, 0).data, shard_bytes(m, id), COMM_BYTES);
    comm_wait(m->comm, comm_mark(m->comm));
}

// Updates `count` matrices of one tensor, starting at list[first]. With ZeRO, process j orthogonalizes the j-th matrix.
// If there are fewer matrices than processes, the last processes orthogonalize none.
static void update_together(const Muon *m, int first, int count, StepState *state) {
    const Ops *ops = m->exec->ops;
    const Parameter *list = m->list + first;
    const TensorId id = m->ids[first];
    const bool has_shards = list->weight.value.rows > 0;
    if (has_shards) ops->muon_momentum(m->exec, list, count, state);
    exchange(m, id, MUON_X, MUON_Y);
    if (!m->comm || m->arena->rank < count) orthogonalize(m, id, m->comm ? 1 : count, state);
    exchange(m, id, MUON_Y, MUON_X);
    if (has_shards) ops->muon_apply(m->exec, list, count, state);
}

void muon_update(const Muon *m, StepState *state) {
    const int layers = m->arena->config->shape.layers;
    for (int i = 0; i < m->count; i += layers) {
        const int most = matrices_together(m, m->ids[i]);
        for (int l = 0; l < layers; l += most) update_together(m, i + l, layers - l < most ? layers - l : most, state);
    }
}
