// Updates the weight matrices of a model's blocks with Muon: AdamW's place is taken by a momentum whose pieces (q, k and
// v, gate and up, or the matrix itself) are orthogonalized by Newton-Schulz iterations. One process updates one matrix
// after another, because all of them share the scratch tensors MUON_X, MUON_Y, MUON_A and MUON_B.
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
