// Updates the weight matrices of a language model's blocks with Muon (--optimizer muon). A matrix's update is its
// momentum, orthogonalized by Newton-Schulz iterations. Pieces of a matrix (tensor_pieces()), such as q, k and v, are
// orthogonalized separately. Without ZeRO, the matrices of tensor_muon_batch() layers of one tensor are updated
// together, because a GPU multiplies many small matrices faster together. All updates share the scratch tensors MUON_X,
// MUON_Y, MUON_A and MUON_B.
//
// With ZeRO, every process has the momentum and the gradient of a shard of each matrix, but an orthogonalization needs
// an entire matrix. Therefore N processes together update one tensor's matrices in N layers, and process j
// orthogonalizes the matrix of the j-th of these layers:
//   1. Each process computes the Nesterov momentum of its shards.
//   2. An all-to-all sends the shards of the j-th matrix to process j.
//   3. Each process orthogonalizes its matrix.
//   4. A second all-to-all returns the shards of the update to the processes that sent the momentum.
//   5. Each process applies the update to its shards.
// Without ZeRO, every process orthogonalizes all matrices.
#pragma once
#include "arena.h"
#include "comm/comm.h"

C_LINKAGE_BEGIN

typedef struct {
    const Arena *arena;
    Exec *exec;
    Comm *comm;      // connection to the processes that have the other shards; NULL: no ZeRO, entire matrices
    Parameter *list; // matrices that Muon updates or, with ZeRO, this process's shards of them: first all layers of one
                     // tensor, then all layers of the next
    TensorId *ids;   // tensor of each entry of list
    int count;
} Muon;

// Initializes m with an empty list. The arena, exec and comm must outlive m. The arena must be allocated. comm is not
// used without ZeRO.
void muon_open(Muon *m, const Arena *arena, Exec *exec, Comm *comm);
void muon_close(Muon *m);

// Adds a matrix that muon_update() updates or, with ZeRO, this process's shard of the matrix. The shard may be empty.
// All layers of a tensor must be added one after the other.
void muon_add(Muon *m, const Parameter *matrix, TensorId id);

// Updates all matrices, unless state->skips is set. With ZeRO, communicates in either case. Call it after adamw_update,
// which sets state->skips.
void muon_update(const Muon *m, StepState *state);

C_LINKAGE_END
