// The memory plan, which follows from the table of tensors, and the run's one allocation.
#pragma once
#include "base/format_text.h"
#include "ops.h"
#include "tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const Config *config;
    int rank, ranks;
    int zero;        // ZeRO stage in effect
    int bf16_blocks; // number of blocks with BF16 forward matmuls
    bool offloads;   // --offload-states on a GPU: moments and masters are in host memory
    TensorLayout layout[TENSOR_COUNT][ROLE_COUNT];
    WorkspaceNeed workspace;
    size_t workspace_offset;
    size_t amax_offset; // ZeRO 3 with FP8: one amax, a uint32_t, per sharded weight matrix; 0: none
    size_t category_bytes[CATEGORY_COUNT];
    size_t total_bytes;
    char *base;        // device memory; NULL until arena_allocate()
    size_t host_bytes; // host memory for --offload-states
    char *host;
    bool host_refused; // arena_allocate() failed because of host memory
} Arena;

// Plans the memory of one of `ranks` processes on `device`. Works without a device and allocates nothing.
void arena_plan(Arena *arena, const Config *config, int ranks, DeviceKind device);

// Allocates the planned memory and sets exec->workspace to its part of it. Returns false with err (EXIT_DEVICE) if
// there is not enough; plan_advise() of plan.h then adds advice to err.
bool arena_allocate(Arena *arena, Exec *exec, Error *err);
void arena_release(Arena *arena, Exec *exec); // frees the memory, if any is allocated

// True if tensors of the category are in host memory, which total_bytes does not include.
bool arena_on_host(const Arena *arena, Category category);

// Returns the descriptor of a tensor in a layer. In the first blocks, the VALUE of an activation is its PLAIN, if it
// has one; for this reason `layer` matters even if the tensor is not per layer.
//   data is NULL if the configuration does not have the tensor, or the arena is not allocated.
Tensor arena_tensor(const Arena *arena, TensorId id, Role role, int layer);

// Returns the tensor that owns the memory: id, or the tensor that id is an alias of in this layer.
TensorId arena_owner(const Arena *arena, TensorId id, Role role, int layer);

// Returns the descriptor of an activation's VALUE for backward: data is NULL unless it survives from forward to
// backward.
Tensor arena_saved(const Arena *arena, TensorId id, int layer);

// True if the matmuls of a pass read a weight as FP8 in this layer.
bool arena_reads_codes(const Arena *arena, TensorId id, int layer, bool backward);

// Returns a weight with its FP8 values, as matmuls read them. With ZeRO 3, the gathered copy of the layer replaces the
// values, or the FP8 values, of which this process stores only a shard.
Weight arena_weight(const Arena *arena, TensorId id, int layer);

// Returns the tensor to which backward writes a parameter's gradient: GRAD, or UNREDUCED if GRAD is only a shard.
Tensor arena_gradient(const Arena *arena, TensorId id, int layer);

// Returns this process's shard of a parameter's tensor as a matrix of consecutive elements, whether its memory holds
// the whole tensor or the shard only. *begin: index of the first element in the whole tensor. No rows if the shard is
// empty.
Tensor arena_shard(const Arena *arena, TensorId id, Role role, int layer, int64_t *begin);
// Returns what this process stores of a parameter's tensor: its shard if it is sharded, otherwise all (*begin is 0).
Tensor arena_local(const Arena *arena, TensorId id, Role role, int layer, int64_t *begin);

// Fills list with all parameters in the table's order, all layers of each in turn, and returns their number, which is
// arena_parameter_count(). ids and layers, if not NULL, receive which tensor each is. Sharded tensors have the shape of
// the whole.
int arena_parameter_count(const Arena *arena);
int arena_parameters(const Arena *arena, Parameter list[], TensorId ids[], int layers[]);

// Prints the plan: as a table, as a table of categories only, or as one JSON object.
void arena_report(const Arena *arena, FILE *out);
void arena_report_categories(const Arena *arena, FILE *out);
void arena_report_json(const Arena *arena, int largest_micro_batch, FILE *out); // largest_micro_batch 0: not searched

#ifdef __cplusplus
}
#endif
