// A model on several processes: who holds, sums and updates what, by ZeRO stage, and when it is communicated.
//   0  every process holds and updates everything; gradients are summed once a step
//   1  each updates its share: moments and master weights exist once over all processes. Gradients are summed into
//      shares once a step, the new values of the shares are gathered
//   2  the blocks' gradients are summed into shares after every micro-batch, layer by layer
//   3  the blocks' matrices are shares, too, gathered before a layer's forward and backward; as FP8 codes where
//      matmuls read those
// The model says when it needs a layer's weights and when it has made its gradients; everything here is put onto the
// communication's own stream (comm.h), one layer ahead of or behind the computation. Sums are made in the same order
// whatever the stage, so over MPI the stages give equal bits; with several micro-batches per step, 0 and 1 do, and 2
// and 3 do, which sum over processes first.
#pragma once
#include "arena.h"
#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const Arena *arena;
    Exec *exec;
    Comm *comm; // NULL with one process; everything below is then the work of that one
    int zero, layers;
    Parameter *updated; // what this process updates: all parameters, or its share of each
    int updated_count;
    Parameter *squared; // its shares of the gradients: whose squares it adds up
    int squared_count;
    Parameter *coded;                   // the weights with FP8 codes, layer after layer: whole, or its shares (ZeRO 3)
    int coded_per_layer, coded_of_none; // those of no layer (the head's) come last, and are whole
    // values on their way after an update, per layer; behind the last layer's, those of no layer
    int *value_ticket;
    bool *value_pending;
    // ZeRO 3: the layer that each slot holds or is getting, -1: none; and for which pass
    int slot_layer[LAYER_SLOTS], slot_ticket[LAYER_SLOTS];
    bool slot_pending[LAYER_SLOTS], slot_backward[LAYER_SLOTS];
    // ZeRO 2 and 3: the sums over processes of each slot's gradients, and the layer to whose share they are still to be
    // added, -1: none
    int grad_ticket[LAYER_SLOTS], grad_layer[LAYER_SLOTS];
    bool grad_pending[LAYER_SLOTS];
} Shards;

// The arena is allocated and, like the rest, outlives the shards. comm may be NULL with one process.
void shards_open(Shards *s, const Arena *arena, Exec *exec, Comm *comm);
void shards_close(Shards *s);

// --- a pass ------------------------------------------------------------------------------------------------------

// Whether the operations of a micro-batch may be recorded and replayed: not those that communicate, for tickets are of
// their step.
bool shards_recordable(const Shards *s, bool first, bool last);

// Before the embeddings, and before layer l: their weights are there. `next` is the layer after it in this pass, -1 for
// none, which is sent for.
void shards_pass_begin(Shards *s);
void shards_weights_needed(Shards *s, int l, int next, bool backward);

// Whether a layer's backward adds its gradients to those of the micro-batches before: with ZeRO 2 and 3 it overwrites,
// and what the processes have summed is added to the shares.
bool shards_accumulate(const Shards *s, bool accumulate);
// Before and after layer l's backward. `accumulate`: not the first of the step's micro-batches; `last`: its last.
void shards_gradients_begin(Shards *s, int l);
void shards_gradients_ready(Shards *s, int l, bool accumulate, bool last);
// After the embeddings' backward: the gradients of no layer.
void shards_pass_end(Shards *s, bool last);

// --- a step ------------------------------------------------------------------------------------------------------

// The gradients' norm; loss and the flag of non-finite values become those of all processes, too.
void shards_norm(Shards *s, StepState *state);
// The update; then the new weights are made ready, or are on their way.
void shards_update(Shards *s, StepState *state);

// After weights were loaded, each process having all that its memory holds.
void shards_weights_loaded(Shards *s);

// state->loss_sum becomes the sum over the processes.
void shards_sum_loss(Shards *s, StepState *state);

// What is queued behind it waits until all new weights have arrived: before these are read by other means than a pass.
void shards_weights_wait(Shards *s);

// The whole value of a tensor of which each process holds a share (ZeRO 3), between two steps: on the device, until the
// next call or pass. Called by all processes.
const void *shards_whole_value(Shards *s, TensorId id, int layer);

// Threads for each of local_ranks processes of a machine that share its cores; 0 where the user or the launcher has
// divided them.
int shards_threads(const Config *config, int local_ranks);

#ifdef __cplusplus
}
#endif
