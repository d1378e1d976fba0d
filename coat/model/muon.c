#include "muon.h"

#include <math.h>

void muon_open(Muon *m, const Arena *arena, Exec *exec) {
    const size_t capacity = (size_t)arena_parameter_count(arena);
    m->arena = arena;
    m->exec = exec;
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

void muon_add(Muon *m, const Parameter *matrix, TensorId id) {
    m->ids[m->count] = id;
    m->list[m->count++] = *matrix;
}

// Returns a matrix of this shape at the beginning of a scratch tensor.
static Tensor scratch(const Muon *m, TensorId id, int64_t rows, int64_t cols) {
    Tensor t = arena_tensor(m->arena, id, VALUE, 0);
    t.rows = rows;
    t.cols = t.stride = cols;
    return t;
}

// Orthogonalizes the pieces of a matrix's momentum, and scales each piece to an RMS of at most about muon_rms. An
// orthogonal matrix has an RMS of 1 / sqrt(larger extent).
static void orthogonalize(const Muon *m, TensorId id, Tensor update, StepState *state) {
    const Config *c = m->arena->config;
    int64_t rows[MAX_PIECES], first = 0;
    const int pieces = tensor_pieces(id, &c->shape, rows);
    for (int i = 0; i < pieces; first += rows[i++]) {
        const Tensor x = tensor_rows(update, first, rows[i]);
        const int64_t n = x.rows < x.cols ? x.rows : x.cols, larger = x.rows + x.cols - n;
        m->exec->ops->muon_orthogonalize(m->exec, x, scratch(m, MUON_Y, x.rows, x.cols), scratch(m, MUON_A, n, n),
                                         scratch(m, MUON_B, n, n), c->muon_rms * sqrtf((float)larger), state);
    }
}

void muon_update(const Muon *m, StepState *state) {
    const Ops *ops = m->exec->ops;
    for (int i = 0; i < m->count; i++) {
        Parameter p = m->list[i];
        p.update = scratch(m, MUON_X, p.weight.value.rows, p.weight.value.cols);
        ops->muon_momentum(m->exec, &p, 1, state);
        orthogonalize(m, m->ids[i], p.update, state);
        ops->muon_apply(m->exec, &p, 1, state);
    }
}
