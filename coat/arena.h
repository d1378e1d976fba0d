// The memory plan made from the table of tensors, and the run's one allocation.
#pragma once
#include "ops.h"
#include "tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MAX_WORKSPACE_PARTS 16

typedef struct {
    Config config; // the plan's own copy
    int ranks;
    TensorLayout layout[TENSOR_COUNT][ROLE_COUNT];
    WorkspacePart workspace[MAX_WORKSPACE_PARTS];
    int workspace_parts;
    size_t workspace_offset;
    size_t category_bytes[CATEGORY_COUNT];
    size_t total_bytes;
    char *base; // device memory, NULL while only planned
} Arena;

// Plans the memory of one of `ranks` processes on `device`. Plain arithmetic: no device, no allocation.
void arena_plan(Arena *arena, const Config *config, int ranks, DeviceKind device);

// Allocates what was planned and points exec->workspace into it. When it does not fit, err names the largest
// category, the flags that shrink it and a micro-batch that would fit.
bool arena_allocate(Arena *arena, Exec *exec, Error *err);

// The descriptor of a tensor; layer is ignored where a tensor is not per layer. data == NULL where the
// recipe has no such tensor (or the arena is only planned).
Tensor arena_tensor(const Arena *arena, TensorId id, Role role, int layer);

// The same, but data == NULL unless the tensor survives from forward to backward: what backward may read.
Tensor arena_saved(const Arena *arena, TensorId id, int layer);

// A parameter's value and its FP8 codes.
Weight arena_weight(const Arena *arena, TensorId id, int layer);

// All parameter tensors in the table's order, each with its layers in turn; returns their number. `list` has room for
// arena_parameter_count() entries. ids/layers (may be NULL) say which tensor an entry is.
int arena_parameter_count(const Arena *arena);
int arena_parameters(const Arena *arena, Parameter list[], TensorId ids[], int layers[]);

// The largest micro-batch whose plan stays within `limit` bytes, 0 if none does. For the memory limit and for
// the out-of-memory message.
int arena_largest_micro_batch(const Config *config, int ranks, DeviceKind device, size_t limit);

// The plan as a table for people, or as one JSON object for scripts (largest_micro_batch 0: not asked for).
void arena_report(const Arena *arena, FILE *out);
void arena_report_categories(const Arena *arena, FILE *out); // without the saved activations one by one
void arena_report_json(const Arena *arena, int largest_micro_batch, FILE *out);

#ifdef __cplusplus
}
#endif
