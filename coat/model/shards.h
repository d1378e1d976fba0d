// A model on several processes: which process stores, sums and updates what, by ZeRO stage, and when they communicate.
//   0  Every process stores and updates everything. Gradients are summed once per step.
//   1  Each process updates its shard: moments and masters exist once over all processes. Once per step, gradients are
//      summed into shards and the new values of the shards are gathered.
//   2  The layers' gradients are summed into shards after every micro-batch, layer by layer. 3  The blocks' weight
//   matrices are shards, too, and are gathered before each layer's forward and backward: as FP8 if
//      the layer's matmuls read FP8.
// The model reports when it needs a layer's weights and when it has computed a layer's gradients. The functions below
// put the communication on its own stream (comm.h), one layer ahead of or one layer after the computation. The order of
// every sum is the same in all stages, so over MPI all stages give the same bits. With several micro-batches per step,
// stages 0 and 1 agree with each other, and so do 2 and 3, because 2 and 3 sum over processes before micro-batches.
#pragma once
#include "arena.h"
#include "comm/comm.h"

C_LINKAGE_BEGIN

typedef struct Shards {
    const Arena *arena;
    Exec *exec;
    struct Shards *joined; // shards of a second model that the same step updates; NULL: none
    Comm *comm;            // connection to the other processes; NULL: one process, which communicates nothing
    int zero, layers;
    Parameter *updated; // parameters that this process updates: all, or its shard of each
    int updated_count;
    Parameter *squared; // gradient shards whose squares this process sums
    int squared_count;
    // weights with FP8 values, layer by layer, followed by the weights that are not per layer; with ZeRO 3, the layers'
    // weights are shards
    Parameter *coded;
    int coded_per_layer, coded_of_none; // number of weights in each layer, and of weights that are not per layer
    // tickets for the communication of new values after an update, per layer; the last entry is for tensors that are
    // not per layer
    int *value_ticket;
    bool *value_pending;
    // ZeRO 3: for each slot, the layer whose weights it contains or receives (-1: none), and whether they are for
    // backward
    int slot_layer[LAYER_SLOTS], slot_ticket[LAYER_SLOTS];
    bool slot_pending[LAYER_SLOTS], slot_backward[LAYER_SLOTS];
    // ZeRO 2 and 3: for each slot, the ticket of its gradients' sum over processes, and the layer to whose shard
    // gradients_add() must add the sum (-1: none)
    int grad_ticket[LAYER_SLOTS], grad_layer[LAYER_SLOTS];
    bool grad_pending[LAYER_SLOTS];
} Shards;

// Opens the shards of an allocated arena. The arena, exec and comm must outlive them. comm may be NULL with one
// process.
void shards_open(Shards *s, const Arena *arena, Exec *exec, Comm *comm);
void shards_close(Shards *s);

// Makes shards_norm() and shards_update() of s include the parameters of `other`, which must outlive s.
void shards_join(Shards *s, Shards *other);

// --- calls in a pass over a micro-batch --------------------------------------------------------------------------

// True if the operations of a micro-batch may be recorded and replayed. False if the micro-batch communicates, because
// a replay would wait for the tickets of the recorded step.
bool shards_recordable(const Shards *s, bool first, bool last);

// Waits until the weights that are not per layer are complete; call it before the embedding. With ZeRO 3, also starts
// gathering layer 0.
void shards_pass_begin(Shards *s);
// Waits until layer l's weights are complete. With ZeRO 3, then starts gathering layer `next`, the next layer of this
// pass; -1: there is none.
void shards_weights_needed(Shards *s, int l, int next, bool backward);

// True if a layer's backward must add its gradients to those of earlier micro-batches. With ZeRO 2 and 3 it overwrites
// them, because gradients_add() adds the sums over processes to the shards.
bool shards_accumulate(const Shards *s, bool accumulate);
// Call these before and after layer l's backward. `accumulate` is false in the first micro-batch of a step, `last` is
// true in the last one.
void shards_gradients_begin(Shards *s, int l);
void shards_gradients_ready(Shards *s, int l, bool accumulate, bool last);
// Sums the gradients that are not per layer over the processes if `last`. Call it after the embedding's backward.
void shards_pass_end(Shards *s, bool last);

// --- calls once per step -----------------------------------------------------------------------------------------

// Computes the norm of the gradients. Also sums the loss over the processes, and sets the nonfinite flag if any process
// has set it.
void shards_norm(Shards *s, StepState *state);
// Updates this process's parameters or shards, quantizes the new weights, and starts gathering the new values of the
// shards.
void shards_update(Shards *s, StepState *state);

// Quantizes the weights after they were loaded. Every process must have loaded all weights that it stores.
void shards_weights_loaded(Shards *s);

// Sums state->loss_sum over the processes.
void shards_sum_loss(Shards *s, StepState *state);

// Makes later operations wait until all new weights have arrived. Call it before anything other than a pass reads
// weights.
void shards_weights_wait(Shards *s);

// Returns the complete value of a tensor that is sharded (ZeRO 3), in device memory. Valid until the next call or pass.
// All processes must call it, between two steps.
const void *shards_whole_value(Shards *s, TensorId id, int layer);

// Returns the number of threads for each of local_ranks processes of this machine: --threads if it is given, otherwise
// an equal part of the cores, or 0 if the user or the launcher has already divided them.
int shards_threads(const Config *config, int local_ranks);

C_LINKAGE_END
