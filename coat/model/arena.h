// The memory plan made from the table of tensors, and the run's one allocation.
#pragma once
#include "base/format_text.h"
#include "ops.h"
#include "tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Config config; // the plan's own copy
    int rank, ranks;
    int zero; // 0 with one process
    int bf16_blocks;
    bool offloads; // the states, on a GPU
    TensorLayout layout[TENSOR_COUNT][ROLE_COUNT];
    WorkspaceNeed workspace;
    size_t workspace_offset, maxima_offset; // maxima: of the shared matrices, one uint32_t each (ZeRO 3)
    size_t category_bytes[CATEGORY_COUNT];
    size_t total_bytes;
    char *base;        // device memory, NULL while only planned
    size_t host_bytes; // of the host's, for what --offload-states has there
    char *host;
    bool host_refused; // by arena_allocate()
} Arena;

// Plans the memory of one of `ranks` processes on `device`. Plain arithmetic: no device, no allocation.
void arena_plan(Arena *arena, const Config *config, int ranks, DeviceKind device);

// Allocates what was planned and points exec->workspace into it. False with err (EXIT_DEVICE) when it does not fit;
// plan_advise() of plan.h adds what helps.
bool arena_allocate(Arena *arena, Exec *exec, Error *err);
void arena_release(Arena *arena, Exec *exec); // what has been allocated, if anything

// Whether what belongs to a category lies in the host's memory, and is no part of total_bytes.
bool arena_on_host(const Arena *arena, Category category);

// The descriptor of a tensor in a layer, which also says the block that uses it where it is not per layer: of an
// activation's VALUE in one of the first blocks it is its PLAIN where there is one. data == NULL where the recipe has
// no such tensor (or the arena is only planned).
Tensor arena_tensor(const Arena *arena, TensorId id, Role role, int layer);

// The tensor whose memory it has: itself, or what it is an alias of there.
TensorId arena_owner(const Arena *arena, TensorId id, Role role, int layer);

// The same as arena_tensor(), of a VALUE, but data == NULL unless the tensor survives from forward to
// backward: what backward may read.
Tensor arena_saved(const Arena *arena, TensorId id, int layer);

// Whether a pass's matmuls read a block's weight as codes in this layer.
bool arena_reads_codes(const Arena *arena, TensorId id, int layer, bool backward);

// A parameter's value and its FP8 codes, as matmuls read them. Of weights that processes share, what was gathered
// takes the place of the one that this pass's matmuls read.
Weight arena_weight(const Arena *arena, TensorId id, int layer);

// Where backward writes a parameter's gradient: the tensor itself, or what is to be summed over the processes.
Tensor arena_gradient(const Arena *arena, TensorId id, int layer);

// This process's share of a parameter's tensor: its elements from *begin on, as one row of elements, 0 rows where
// it holds none, whether its memory holds the whole tensor or the share alone.
Tensor arena_share(const Arena *arena, TensorId id, Role role, int layer, int64_t *begin);
// All that its memory holds: the whole tensor (*begin 0) or the share.
Tensor arena_held(const Arena *arena, TensorId id, Role role, int layer, int64_t *begin);

// All parameter tensors in the table's order, each with its layers in turn; returns their number. `list` has room for
// arena_parameter_count() entries. ids/layers (may be NULL) say which tensor an entry is. Shared tensors are given with
// the shape of the whole.
int arena_parameter_count(const Arena *arena);
int arena_parameters(const Arena *arena, Parameter list[], TensorId ids[], int layers[]);

// The plan as a table for people, or as one JSON object for scripts (largest_micro_batch 0: not asked for).
void arena_report(const Arena *arena, FILE *out);
void arena_report_categories(const Arena *arena, FILE *out); // without the saved activations one by one
void arena_report_json(const Arena *arena, int largest_micro_batch, FILE *out);

#ifdef __cplusplus
}
#endif
