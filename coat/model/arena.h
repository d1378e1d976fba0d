// The memory plan, computed from the table of tensors, and the single allocation that a run makes for it.
#pragma once
#include "base/format_text.h"
#include "ops.h"
#include "tensors.h"

C_LINKAGE_BEGIN

typedef struct Arena {
    const Config *config;
    struct Arena *vision; // arena of the model's vision tower and projector; NULL: the model has none
    int rank, ranks;
    int zero;        // ZeRO stage that is used
    int bf16_blocks; // number of blocks with BF16 forward matmuls
    bool offloads;   // true: moments and master weights are in host memory (--offload-states on a GPU)
    TensorLayout layout[TENSOR_COUNT][ROLE_COUNT];
    WorkspaceNeed workspace;
    size_t workspace_offset;
    size_t amax_offset; // ZeRO 3 with FP8: offset of one amax (a uint32_t) per sharded weight matrix; 0: none
    size_t category_bytes[CATEGORY_COUNT];
    size_t total_bytes;
    size_t vision_offset, vision_host_offset; // where the memory of the vision tower begins: after all other memory
    char *base;                               // device memory; NULL until arena_allocate()
    size_t host_bytes;                        // bytes of host memory for --offload-states
    char *host;
    bool host_refused; // true if arena_allocate() failed for lack of host memory
} Arena;

// Plans the memory of one of `ranks` processes on `device`. Works without a device and allocates nothing.
void arena_plan(Arena *arena, const Config *config, int ranks, DeviceKind device);

// Allocates the planned memory and sets exec->workspace to its part of it. Returns false with err (EXIT_DEVICE) if
// there is not enough; plan_advise() of plan.h then adds advice to err.
bool arena_allocate(Arena *arena, Exec *exec, Error *err);
// Gives the arena of a vision tower, planned with vision_config(), its part of the language model's memory. Sets
// exec->workspace to the tower's.
void arena_join(Arena *vision, const Arena *arena, Exec *exec);
void arena_release(Arena *arena, Exec *exec); // frees the memory if any is allocated

// True if tensors of the category are in host memory, whose size is not part of total_bytes.
bool arena_on_host(const Arena *arena, Category category);

// Returns the descriptor of a tensor in a layer. For VALUE of an activation, returns PLAIN in the first blocks
// (--bf16-blocks) if the activation has a PLAIN, so `layer` matters even if the tensor is not per layer. data is NULL
// if the configuration does not have the tensor, or the arena is not allocated.
Tensor arena_tensor(const Arena *arena, TensorId id, Role role, int layer);

// Returns the tensor that owns the memory of `id` in this layer: `id` itself, or the tensor whose memory it uses.
TensorId arena_owner(const Arena *arena, TensorId id, Role role, int layer);

// Returns the descriptor of an activation's VALUE for backward. data is NULL if the activation is not saved from
// forward to backward.
Tensor arena_saved(const Arena *arena, TensorId id, int layer);

// True if the matmuls of a pass (forward or backward) read a weight in FP8 in this layer.
bool arena_reads_codes(const Arena *arena, TensorId id, int layer, bool backward);

// Returns a weight with its FP8 values as matmuls read them. With ZeRO 3, this is the copy of the layer's weight
// gathered from all processes, because each process stores only a shard.
Weight arena_weight(const Arena *arena, TensorId id, int layer);

// Returns the tensor to which backward writes a parameter's gradient: GRAD, or UNREDUCED if GRAD is only a shard.
Tensor arena_gradient(const Arena *arena, TensorId id, int layer);

// Returns this process's shard of a parameter's tensor as a matrix of consecutive elements, whether its memory contains
// the entire tensor or only the shard. Sets *begin to the index of the first element in the entire tensor. Returns 0
// rows if the shard is empty.
Tensor arena_shard(const Arena *arena, TensorId id, Role role, int layer, int64_t *begin);
// Returns the part of a parameter's tensor that this process stores: its shard if the tensor is sharded, otherwise the
// entire tensor (with *begin 0).
Tensor arena_local(const Arena *arena, TensorId id, Role role, int layer, int64_t *begin);

// Fills list with all parameters in the table's order, each with all its layers, and returns their number, which is
// arena_parameter_count(). ids and layers, if not NULL, receive the tensor and layer of each. Sharded tensors have the
// shape of the entire tensor.
int arena_parameter_count(const Arena *arena);
int arena_parameters(const Arena *arena, Parameter list[], TensorId ids[], int layers[]);

// Prints the memory plan as a table of tensors, as a table of categories, or as one JSON object.
void arena_report(const Arena *arena, FILE *out);
void arena_report_categories(const Arena *arena, FILE *out);
// largest_micro_batch: result of the search with --memory-limit; 0: there was no search
void arena_report_json(const Arena *arena, int largest_micro_batch, FILE *out);

C_LINKAGE_END
