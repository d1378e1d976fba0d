// Distributes a model over several processes by ZeRO stage:
//   0  Every process stores and updates all parameters. Gradients are summed over the processes once per step.
//   1  Each process updates only its shard of each parameter, and stores moments and master weights only for this
//      shard. Once per step, gradients are summed into shards and the new values of the shards are gathered.
//   2  As 1, but the layers' gradients are summed into shards after every micro-batch, layer by layer.
//   3  As 2, but each process stores only shards of the blocks' weight matrices, which are gathered before each layer's
//      forward and backward: in FP8 if the layer's matmuls read FP8.
// The model calls these functions when it needs a layer's weights, and when it has computed a layer's gradients.
// Communication runs on a separate stream (comm.h). Weights are gathered one layer ahead of the computation; gradients
// are summed while the next layer computes. Over MPI, all stages give the same bits with one micro-batch per step. With
// several micro-batches, stages 0 and 1 agree, and stages 2 and 3 agree. The two pairs differ, because stages 2 and 3
// sum gradients over the processes before they sum over micro-batches.
#pragma once
#include "arena.h"
#include "comm/comm.h"
#include "muon.h"

C_LINKAGE_BEGIN

typedef struct Shards {
    const Arena *arena;
    Exec *exec;
    struct Shards *joined; // second model (the vision tower) that the same step updates; NULL: none
    Comm *comm;            // connection to the other processes; NULL: there is only one process
    int zero, layers;
    Parameter *updated; // parameters that this process updates with AdamW: entire parameters or, with ZeRO, its shards
    int updated_count;
    Muon muon;          // matrices that Muon updates, or shards of them
    Parameter *squared; // gradient shards whose squares this process sums for the gradient norm
    int squared_count;
    // weights that have FP8 values: first layer by layer (with ZeRO 3 this process's shards), then weights that are not
    // per layer
    Parameter *coded;
    int coded_per_layer; // number of FP8 weights in each layer
    int coded_of_none;   // number of FP8 weights that belong to no layer, such as the output head
    // ticket (comm_mark(), comm.h) of each layer's gather of new values after an update. The last entry is for
    // parameters that are not per layer
    int *value_ticket;
    bool *value_pending;
    // ZeRO 3: state of each slot for gathered weights. slot_layer: layer whose weights the slot contains or receives
    // (-1: none). slot_backward: true if the weights were gathered in the format that backward reads, else forward's.
    int slot_layer[LAYER_SLOTS], slot_ticket[LAYER_SLOTS];
    bool slot_pending[LAYER_SLOTS], slot_backward[LAYER_SLOTS];
    // ZeRO 2 and 3: state of each slot for gradients. grad_ticket: ticket of the gradients' sum over the processes.
    // grad_layer: layer to whose GRAD the sum must be added (-1: none)
    int grad_ticket[LAYER_SLOTS], grad_layer[LAYER_SLOTS];
    bool grad_pending[LAYER_SLOTS];
} Shards;

// Sets s for an allocated arena. The arena, exec and comm must outlive s. comm may be NULL if there is one process.
void shards_open(Shards *s, const Arena *arena, Exec *exec, Comm *comm);
void shards_close(Shards *s);

// Makes shards_norm() and shards_update() of s also process the parameters of `other`, which must outlive s.
void shards_join(Shards *s, Shards *other);

// --- functions that every pass over a micro-batch calls ----------------------------------------------------------

// True if the operations of a micro-batch may be recorded and replayed. False if the micro-batch communicates, because
// a replay would wait for the tickets of the recorded step.
bool shards_recordable(const Shards *s, bool first, bool last);

// Waits until the weights that are not per layer are complete. Call shards_pass_begin() before the embedding. With ZeRO
// 3, also starts gathering layer 0's weights.
void shards_pass_begin(Shards *s);
// Waits until layer l's weights are complete. With ZeRO 3, then starts gathering the weights of `next`, the layer after
// l in this pass (-1: l is the pass's last layer).
void shards_weights_needed(Shards *s, int l, int next, bool backward);

// True if a layer's backward must add its gradients to those of earlier micro-batches. False with ZeRO 2 and 3, because
// gradients_add() then adds micro-batches after the sum over processes.
bool shards_accumulate(const Shards *s, bool accumulate);
// Call shards_gradients_begin() before layer l's backward: it waits until the layer's slot of UNREDUCED is free.
// Call shards_gradients_ready() afterwards: it starts summing the layer's gradients over the processes, with ZeRO 0
// and 1 only in the last micro-batch.
//   accumulate: false in the first micro-batch of a step
//   last: true in the last micro-batch
void shards_gradients_begin(Shards *s, int l);
void shards_gradients_ready(Shards *s, int l, bool accumulate, bool last);
// In the last micro-batch, sums the gradients that are not per layer over the processes. Call shards_pass_end() after
// the embedding's backward.
void shards_pass_end(Shards *s, bool last);

// --- functions that an optimizer step, loading or saving calls ---------------------------------------------------

// Computes the norm of the gradients over all processes. Also sums state->loss_sum over the processes, and sets
// state->nonfinite if any process has set it.
void shards_norm(Shards *s, StepState *state);
// Updates this process's parameters or shards with AdamW and Muon, and quantizes the new weights. With ZeRO, starts
// gathering the new values of the shards.
void shards_update(Shards *s, StepState *state);

// Quantizes loaded or initialized weights. Every process must first have set all weights that it stores.
void shards_weights_loaded(Shards *s);

// Sums state->loss_sum over the processes.
void shards_sum_loss(Shards *s, StepState *state);

// Makes later operations wait until all new weights are gathered. Call shards_weights_wait() before any code outside a
// pass reads weights.
void shards_weights_wait(Shards *s);

// Gathers the complete value of a weight that is sharded (ZeRO 3), and returns it in device memory, valid until the
// next call or pass. All processes must call shards_whole_value(), between two steps.
const void *shards_whole_value(Shards *s, TensorId id, int layer);

// Returns the number of threads for each of local_ranks processes of this machine: --threads if given, otherwise an
// equal part of the cores. Returns 0 (OpenMP's default) for a single process, or if the user or the launcher has
// already divided the cores.
int shards_threads(const Config *config, int local_ranks);

C_LINKAGE_END
