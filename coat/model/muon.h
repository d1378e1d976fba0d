// Updates the weight matrices of a language model's blocks with Muon (--optimizer muon). A matrix's update is its
// momentum, orthogonalized by Newton-Schulz iterations. Pieces of a matrix (tensor_pieces()), such as q, k and v, are
// orthogonalized one by one. Matrices are updated one by one, because they share the scratch tensors MUON_X, MUON_Y,
// MUON_A and MUON_B.
#pragma once
#include "arena.h"

C_LINKAGE_BEGIN

typedef struct {
    const Arena *arena;
    Exec *exec;
    Parameter *list; // matrices that Muon updates
    TensorId *ids;   // their tensors
    int count;
} Muon;

// Sets m to an empty list. The arena and exec must outlive m.
void muon_open(Muon *m, const Arena *arena, Exec *exec);
void muon_close(Muon *m);

// Adds a matrix that muon_update() updates.
void muon_add(Muon *m, const Parameter *matrix, TensorId id);

// Updates all matrices, unless state->skips is set. Call it after adamw_update.
void muon_update(const Muon *m, StepState *state);

C_LINKAGE_END
