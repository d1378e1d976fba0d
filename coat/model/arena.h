// Computes a run's memory plan from the table of tensors, and allocates the planned memory as one block.
#pragma once
#include "base/format_text.h"
#include "ops.h"
#include "tensors.h"

C_LINKAGE_BEGIN

typedef struct Arena {
    const Config *config;
    struct Arena *vision; // arena of the vision tower and the projector; NULL: text-only model
    int rank, ranks;
    int zero;        // ZeRO stage that is used
    int bf16_blocks; // number of blocks with BF16 forward matmuls (--bf16-blocks)
    bool offloads;   // true: moments and master weights are in host memory (--offload-states on a GPU)
    TensorLayout layout[TENSOR_COUNT][ROLE_COUNT];
    WorkspaceNeed workspace;
    size_t workspace_offset;
    size_t amax_offset; // ZeRO 3 with FP8: offset of one amax (a uint32_t) per sharded weight matrix; 0: none
    size_t category_bytes[CATEGORY_COUNT];
    size_t total_bytes;
    size_t vision_offset, vision_host_offset; // offsets of the vision tower's device and host memory
    char *base;                               // device memory; NULL until arena_allocate()
    size_t host_bytes;                        // bytes of host memory for --offload-states
    char *host;
    bool host_refused; // true if arena_allocate() failed because the host memory could not be allocated
} Arena;

// Plans the memory of one of `ranks` processes on `device`. Does not access the device and allocates nothing.
void arena_plan(Arena *arena, const Config *config, int ranks, DeviceKind device);

// Allocates the planned memory, and sets exec->workspace to the workspace in that memory. Returns false with err
// (EXIT_DEVICE) if there is too little memory; the caller can then add advice to err with plan_advise() (plan.h).
bool arena_allocate(Arena *arena, Exec *exec, Error *err);
// Sets the memory of a vision tower's arena, planned with vision_config(), to its part of the language model's memory.
// Sets exec->workspace to the tower's workspace.
void arena_join(Arena *vision, const Arena *arena, Exec *exec);
void arena_release(Arena *arena, Exec *exec); // frees the memory if any is allocated

// True if tensors of the category are in host memory, which total_bytes does not include.
bool arena_on_host(const Arena *arena, Category category);

// Returns the descriptor of a tensor in a layer. If role is VALUE and the activation has a PLAIN layout, returns PLAIN
// for the first blocks (--bf16-blocks). Therefore `layer` matters even if all layers share one tensor. data is NULL if
// the configuration does not have the tensor, or the arena is not allocated.
Tensor arena_tensor(const Arena *arena, TensorId id, Role role, int layer);

// Returns the tensor that owns the memory of `id` in this layer: `id` itself, or the tensor whose memory `id` uses.
TensorId arena_owner(const Arena *arena, TensorId id, Role role, int layer);

// Returns the descriptor of an activation's VALUE for backward. data is NULL if the activation is not saved from
// forward to backward.
Tensor arena_saved(const Arena *arena, TensorId id, int layer);

// True if this layer's matmuls read the weight in FP8: backward's matmuls if `backward` is true, otherwise forward's.
bool arena_reads_codes(const Arena *arena, TensorId id, int layer, bool backward);

// Returns a layer's weight with its FP8 values, as matmuls read them. With ZeRO 3, returns the buffer into which the
// weight is gathered from all processes, because each process stores only a shard.
Weight arena_weight(const Arena *arena, TensorId id, int layer);

// Returns the tensor to which backward writes a parameter's gradient: GRAD, or UNREDUCED if GRAD is only a shard.
Tensor arena_gradient(const Arena *arena, TensorId id, int layer);

// Returns this process's shard of a parameter's tensor as a matrix of consecutive elements, even if the process stores
// the entire tensor. Sets *begin to the index of the shard's first element in the entire tensor. Returns 0 rows if the
// shard is empty.
Tensor arena_shard(const Arena *arena, TensorId id, Role role, int layer, int64_t *begin);
// Returns the part of a parameter's tensor that this process stores: its shard if the tensor is sharded, otherwise the
// entire tensor. Sets *begin to the index of the part's first element in the entire tensor.
Tensor arena_local(const Arena *arena, TensorId id, Role role, int layer, int64_t *begin);

// Fills `list` with all parameters, one entry per layer, in the table's order. Returns their number, which equals
// arena_parameter_count(). ids and layers (or NULL) receive the tensor and the layer of each entry. Sharded tensors
// have the shape of the entire tensor.
int arena_parameter_count(const Arena *arena);
int arena_parameters(const Arena *arena, Parameter list[], TensorId ids[], int layers[]);

// Print the memory plan. arena_report() prints a table of categories and, if saved_tensors is true, of the saved
// tensors. arena_report_json() prints one JSON object.
void arena_report(const Arena *arena, bool saved_tensors, FILE *out);
// largest_micro_batch: largest micro-batch that fits --memory-limit; 0: the flag is not given
void arena_report_json(const Arena *arena, int largest_micro_batch, FILE *out);

C_LINKAGE_END
