// Places all tensors of a run in one memory allocation, and returns the tensor descriptors that operations receive.
#include "arena.h"
#include "base/memory.h"
#include "config/vision.h"

// --- placing tensors: their offsets in the arena ---------------------------------------------------------------

static size_t take(size_t *cursor, size_t bytes) {
    size_t offset = *cursor;
    *cursor += align_up(bytes);
    return offset;
}

// True for a scratch tensor, whose data is in the pool of memory that tensors of different stages share. Scales and
// amaxes are small and not in the pool.
static bool is_pooled(const TensorLayout *t) {
    return layout_owns_memory(t) && !t->saved && t->category >= CATEGORY_SCRATCH;
}

bool arena_on_host(const Arena *arena, Category category) {
    return arena->offloads && (category == CATEGORY_MOMENTS || category == CATEGORY_MASTER);
}

// Sets the offsets of a category's tensors: of tensors that exist per layer if `per_layer` is true, otherwise of
// tensors without layers. Skips pooled tensors. Per layer, sets layer 0's offsets; other layers follow at a constant
// stride.
static void place_tensors(Arena *a, Category category, bool per_layer, size_t *cursor) {
    TensorLayout *placed[TENSOR_COUNT * ROLE_COUNT];
    const size_t begin = *cursor;
    int count = 0;
    for (int id = 0; id < TENSOR_COUNT; id++) {
        for (int role = 0; role < ROLE_COUNT; role++) {
            TensorLayout *t = &a->layout[id][role];
            if (!layout_owns_memory(t) || is_pooled(t) || t->category != category || t->per_layer != per_layer)
                continue;
            t->data_offset = take(cursor, t->data_bytes);
            if (t->scale_bytes) t->scale_offset = take(cursor, t->scale_bytes);
            if (t->exponent_bytes) t->exponent_offset = take(cursor, t->exponent_bytes);
            placed[count++] = t;
        }
    }
    if (!per_layer || count == 0) return;
    const size_t stride = *cursor - begin;
    for (int i = 0; i < count; i++)
        placed[i]->data_stride = placed[i]->scale_stride = placed[i]->exponent_stride = stride;
    *cursor = begin + stride * (size_t)placed[0]->layers;
}

static void place_category(Arena *a, Category category, size_t *cursor) {
    const size_t begin = *cursor;
    place_tensors(a, category, false, cursor);
    place_tensors(a, category, true, cursor);
    a->category_bytes[category] += *cursor - begin;
}

// Sets the offsets of the row amaxes of PLAIN activations, which are activations that the first blocks store in BF16
// (--bf16-blocks).
static void place_plain_amaxes(Arena *a, size_t *cursor) {
    const size_t begin = *cursor;
    for (int id = PARAMETER_COUNT; id < TENSOR_COUNT; id++) {
        TensorLayout *t = &a->layout[id][PLAIN];
        if (!t->exists || !t->amax_bytes) continue;
        t->amax_stride = align_up(t->amax_bytes);
        t->amax_offset = take(cursor, t->amax_stride * (size_t)t->layers);
    }
    a->category_bytes[CATEGORY_SAVED] += *cursor - begin;
}

// Sets two kinds of offsets: of the scales of pooled tensors, and of all row amaxes except those of PLAIN activations.
// A pooled tensor has one scale per layer if backward recomputes the tensor's FP8 values with that scale. Otherwise,
// all layers share one scale.
static void place_scales(Arena *a, size_t *cursor) {
    const size_t begin = *cursor;
    for (int id = 0; id < TENSOR_COUNT; id++) {
        TensorLayout *t = &a->layout[id][VALUE];
        if (!layout_owns_memory(t)) continue;
        if (is_pooled(t) && t->scale_bytes) {
            t->scale_stride = t->per_layer_scale ? align_up(t->scale_bytes) : 0;
            t->scale_offset = take(cursor, align_up(t->scale_bytes) * (size_t)(t->per_layer_scale ? t->layers : 1));
        }
        if (t->amax_bytes) t->amax_offset = take(cursor, t->amax_bytes);
    }
    a->category_bytes[CATEGORY_SCRATCH] += *cursor - begin;
}

// Sets the offsets of ZeRO 2's and 3's double buffers for weights and gradients, and of sharded weights' amaxes.
static void place_communication(Arena *a, size_t *cursor) {
    const size_t begin = *cursor;
    place_category(a, CATEGORY_COMMUNICATION, cursor);
    if (!a->layout[QKVW][GATHERED].exists || !a->layout[QKVW][CODES].exists) return;
    a->amax_offset = take(cursor, (size_t)arena_parameter_count(a) * sizeof(uint32_t));
    a->category_bytes[CATEGORY_COMMUNICATION] = *cursor - begin;
}

static bool lifetimes_overlap(const TensorLayout *a, const TensorLayout *b) {
    if (a->blocks != b->blocks && a->blocks != BLOCKS_ALL && b->blocks != BLOCKS_ALL) return false;
    return a->first <= b->last && b->first <= a->last;
}

// Sets the offsets of the pooled tensors, the largest tensor first. Each tensor gets the lowest offset, at least
// `base`, whose memory is free while the tensor is alive. Returns the size of the pool.
static size_t place_pool(Arena *a, size_t base) {
    TensorLayout *list[2 * TENSOR_COUNT], *placed[2 * TENSOR_COUNT];
    int count = 0, done = 0;
    for (int id = 0; id < TENSOR_COUNT; id++) {
        if (is_pooled(&a->layout[id][VALUE])) list[count++] = &a->layout[id][VALUE];
        if (is_pooled(&a->layout[id][PLAIN])) list[count++] = &a->layout[id][PLAIN];
    }
    for (int i = 1; i < count; i++) { // stable insertion sort, so that tensors of equal size stay in the table's order
        TensorLayout *t = list[i];
        int j = i;
        for (; j > 0 && list[j - 1]->data_bytes < t->data_bytes; j--) list[j] = list[j - 1];
        list[j] = t;
    }
    size_t pool = 0;
    for (int i = 0; i < count; i++) {
        TensorLayout *t = list[i];
        size_t size = align_up(t->data_bytes), at = 0;
        for (bool moved = true; moved;) {
            moved = false;
            for (int j = 0; j < done; j++) {
                size_t other = placed[j]->data_offset - base, end = other + align_up(placed[j]->data_bytes);
                if (lifetimes_overlap(t, placed[j]) && at < end && other < at + size) {
                    at = end;
                    moved = true;
                }
            }
        }
        t->data_offset = base + at;
        placed[done++] = t;
        if (at + size > pool) pool = at + size;
    }
    return pool;
}

// Adds the memory of the vision tower and the projector to the plan, after all other memory.
static void plan_vision(Arena *arena, DeviceKind device) {
    Config *config = (Config *)xmalloc(sizeof *config);
    Arena *vision = (Arena *)xmalloc(sizeof *vision);
    vision_config(config, arena->config);
    arena_plan(vision, config, arena->ranks, device);
    arena->category_bytes[CATEGORY_VISION] = vision->total_bytes;
    arena->total_bytes += vision->total_bytes;
    arena->host_bytes += vision->host_bytes;
    free(vision);
    free(config);
}

void arena_plan(Arena *arena, const Config *config, int ranks, DeviceKind device) {
    memset(arena, 0, sizeof *arena);
    arena->config = config;
    arena->ranks = ranks;
    arena->zero = config_zero(config, ranks);
    arena->bf16_blocks = config_bf16_blocks(config);
    tensors_resolve(config, ranks, arena->layout);
    arena->offloads = config->offload_states && device == DEVICE_CUDA;
    size_t cursor = 0;
    for (int c = CATEGORY_WEIGHTS; c <= CATEGORY_SCRATCH; c++)
        place_category(arena, (Category)c, arena_on_host(arena, (Category)c) ? &arena->host_bytes : &cursor);
    place_plain_amaxes(arena, &cursor);
    place_scales(arena, &cursor);
    place_communication(arena, &cursor);
    size_t pool = place_pool(arena, cursor);
    // bytes of the logits and, if their gradient has separate memory, of the gradient; --logits-chunk can reduce both
    size_t logits = align_up(arena->layout[LOGITS][VALUE].data_bytes);
    if (layout_owns_memory(&arena->layout[DLOGITS_Q][VALUE]))
        logits += align_up(arena->layout[DLOGITS_Q][VALUE].data_bytes);
    arena->category_bytes[CATEGORY_LOGITS] = logits;
    arena->category_bytes[CATEGORY_SCRATCH] += pool - logits;
    cursor += pool;
    arena->workspace = ops_workspace(config, device);
    arena->workspace_offset = cursor;
    take(&cursor, arena->workspace.bytes);
    arena->category_bytes[CATEGORY_WORKSPACE] = cursor - arena->workspace_offset;
    arena->total_bytes = arena->vision_offset = cursor;
    arena->vision_host_offset = arena->host_bytes;
    if (config->shape.vision.kind != VISION_NONE && !config->shape.tower) plan_vision(arena, device);
}

// --- tensor descriptors with addresses in the arena ------------------------------------------------------------

// Returns PLAIN if `role` is VALUE and the activation has a different layout in this layer because of --bf16-blocks.
// Otherwise returns `role`.
static Role role_in_layer(const Arena *arena, TensorId id, Role role, int layer) {
    const bool plain = role == VALUE && layer < arena->bf16_blocks && arena->layout[id][PLAIN].exists;
    return plain ? PLAIN : role;
}

TensorId arena_owner(const Arena *arena, TensorId id, Role role, int layer) {
    const int alias = arena->layout[id][role_in_layer(arena, id, role, layer)].alias;
    return alias < 0 || alias == (int)id ? id : arena_owner(arena, (TensorId)alias, role, layer);
}

// Returns the descriptor of a tensor that does not use another tensor's memory.
static Tensor own_tensor(const Arena *arena, TensorId id, Role role, int layer) {
    const TensorLayout *t = &arena->layout[id][role];
    Tensor out;
    memset(&out, 0, sizeof out);
    if (!t->exists) return out;
    size_t l = (size_t)layer;
    out.rows = t->rows;
    out.cols = t->cols;
    out.stride = t->transposed ? t->rows : t->cols;
    out.format = t->format;
    out.granularity = t->granularity;
    out.group = t->group;
    out.transposed = t->transposed;
    if (!arena->base) return out;
    char *const base = arena_on_host(arena, t->category) ? arena->host : arena->base;
    out.data = base + t->data_offset + l * t->data_stride;
    if (t->scale_source >= 0)
        out.scale = own_tensor(arena, (TensorId)t->scale_source, role == CODES_T ? CODES : role, layer).scale;
    else if (t->scale_bytes)
        out.scale = base + t->scale_offset + l * t->scale_stride;
    if (t->exponent_bytes) out.exponent = (uint8_t *)base + t->exponent_offset + l * t->exponent_stride;
    if (t->amax_bytes) out.amax = (uint32_t *)(arena->base + t->amax_offset + l * t->amax_stride);
    return out;
}

static Tensor without_scale(Tensor t) {
    t.granularity = SCALE_NONE;
    t.scale = NULL;
    return t;
}

Tensor arena_tensor(const Arena *arena, TensorId id, Role role, int layer) {
    const Role there = role_in_layer(arena, id, role, layer);
    const TensorLayout *t = &arena->layout[id][there];
    if (t->alias < 0) return own_tensor(arena, id, there, layer);
    if (t->alias == (int)id) {
        Tensor value = own_tensor(arena, id, VALUE, layer);
        value.amax = NULL;
        return without_scale(value);
    }
    Tensor shared = arena_tensor(arena, (TensorId)t->alias, role, layer);
    if (t->amax_bytes && arena->base)
        shared.amax = (uint32_t *)(arena->base + t->amax_offset + (size_t)layer * t->amax_stride);
    // The owner of the memory may be another matmul's output with scales that do not apply to this tensor.
    if (t->granularity == SCALE_NONE && shared.granularity == SCALE_ROW) shared = without_scale(shared);
    if (t->scale_source < 0 || t->granularity != SCALE_ROW) return shared;
    shared.granularity = SCALE_ROW;
    shared.scale = arena_tensor(arena, (TensorId)t->scale_source, role, layer).scale;
    return shared;
}

Tensor arena_saved(const Arena *arena, TensorId id, int layer) {
    const TensorId owner = arena_owner(arena, id, VALUE, layer);
    Tensor out = arena_tensor(arena, owner, VALUE, layer);
    if (!arena->layout[owner][role_in_layer(arena, owner, VALUE, layer)].saved) out.data = NULL;
    return out;
}

bool arena_reads_codes(const Arena *arena, TensorId id, int layer, bool backward) {
    const bool plain = !backward && role_in_layer(arena, tensor_input(id), VALUE, layer) == PLAIN;
    return arena->layout[id][CODES].exists && !plain;
}

Weight arena_weight(const Arena *arena, TensorId id, int layer) {
    Weight w;
    w.value = arena_tensor(arena, id, VALUE, layer);
    w.codes = arena_tensor(arena, id, CODES, layer);
    w.codes_t = arena_tensor(arena, id, CODES_T, layer);
    // An FP8 weight's amax is stored right after its scale, in the 16 bytes that are reserved for the scale.
    w.maximum = w.codes.scale ? (uint32_t *)w.codes.scale + 1 : NULL;
    if (!arena->layout[id][GATHERED].exists) return w;
    void *const gathered = arena_tensor(arena, id, GATHERED, layer % LAYER_SLOTS).data;
    if (!arena_reads_codes(arena, id, layer, false)) w.value.data = gathered;
    if (arena_reads_codes(arena, id, layer, true)) w.codes.data = gathered;
    return w;
}

Tensor arena_gradient(const Arena *arena, TensorId id, int layer) {
    const bool unreduced = arena->layout[id][UNREDUCED].exists && arena->layout[id][GRAD].exists;
    if (unreduced) return arena_tensor(arena, id, UNREDUCED, layer % LAYER_SLOTS);
    return arena_tensor(arena, id, GRAD, layer);
}

// --- this rank's shards of tensors -----------------------------------------------------------------------------

#define SHARD_UNIT 128 // a shard has a multiple of 128 elements, except the tensor's last shard

// Returns elements [begin, end) of a contiguous tensor as rows of SHARD_UNIT elements. Returns one row if end - begin
// is not a multiple of SHARD_UNIT. sharded: the tensor's memory contains only elements [begin, end).
static Tensor elements_of(Tensor t, int64_t begin, int64_t end, bool sharded) {
    int64_t count = end > begin ? end - begin : 0, at = sharded ? 0 : begin;
    t.cols = t.stride = count % SHARD_UNIT == 0 ? SHARD_UNIT : count;
    t.rows = count / t.cols;
    t.transposed = false;
    if (!t.data) return t;
    t.data = (char *)t.data + (size_t)at * format_bytes(t.format);
    if (t.granularity == SCALE_EXPAND && at > 0) {
        t.scale = (float *)t.scale + at / t.group;
        t.exponent += at / t.group;
    }
    return t;
}

Tensor arena_shard(const Arena *arena, TensorId id, Role role, int layer, int64_t *begin) {
    const TensorLayout *t = &arena->layout[id][role];
    Tensor whole = arena_tensor(arena, id, role, layer);
    int64_t elements = tensor_elements(whole), end = t->shard_elements * (arena->rank + 1);
    *begin = t->shard_elements * arena->rank;
    return elements_of(whole, *begin, end < elements ? end : elements, t->sharded);
}

Tensor arena_local(const Arena *arena, TensorId id, Role role, int layer, int64_t *begin) {
    if (arena->layout[id][role].sharded) return arena_shard(arena, id, role, layer, begin);
    *begin = 0;
    return arena_tensor(arena, id, role, layer);
}

int arena_parameter_count(const Arena *arena) {
    int count = 0;
    for (int id = 0; id < PARAMETER_COUNT; id++) count += arena->layout[id][VALUE].layers;
    return count;
}

int arena_parameters(const Arena *arena, Parameter list[], TensorId ids[], int layers[]) {
    int count = 0;
    const Config *c = arena->config;
    uint64_t index = c->shape.tower ? (uint64_t)1 << 48 : 0; // a tower's indices start above the language model's
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < arena->layout[id][VALUE].layers; layer++) {
            Parameter *p = &list[count];
            p->weight = arena_weight(arena, (TensorId)id, layer);
            p->grad = arena_tensor(arena, (TensorId)id, GRAD, layer);
            p->m = arena_tensor(arena, (TensorId)id, MOMENT_M, layer);
            p->v = arena_tensor(arena, (TensorId)id, MOMENT_V, layer);
            p->update = no_tensor();
            p->master = arena_tensor(arena, (TensorId)id, MASTER, layer);
            p->decay = tensor_rank((TensorId)id) == 2;
            const int part = tensor_part((TensorId)id, &c->shape);
            p->rate = (part == PART_VISION ? c->lr_vision : part == PART_PROJECTOR ? c->lr_projector : 0) / c->lr;
            p->index = index;
            index += (uint64_t)tensor_elements(p->weight.value);
            if (ids) ids[count] = (TensorId)id;
            if (layers) layers[count] = layer;
            count++;
        }
    }
    return count;
}

// --- allocating the arena's memory -----------------------------------------------------------------------------

bool arena_allocate(Arena *arena, Exec *exec, Error *err) {
    Error why;
    arena->rank = exec->rank;
    arena->base = (char *)exec->ops->allocate(exec, arena->total_bytes, &why);
    char needed[MEMORY_TEXT];
    if (!arena->base)
        return error_set(err, EXIT_DEVICE, "memory: the run needs %s (%s)", memory_text(needed, arena->total_bytes),
                         why.text);
    exec->workspace = arena->base + arena->workspace_offset;
    exec->workspace_bytes = arena->vision_offset - arena->workspace_offset;
    if (!arena->host_bytes) return true;
    if (memory_fits(arena->host_bytes))
        arena->host = exec->ops->host_allocate ? (char *)exec->ops->host_allocate(exec, arena->host_bytes)
                                               : (char *)exec->ops->allocate(exec, arena->host_bytes, &why);
    if (arena->host) return true;
    arena_release(arena, exec);
    arena->host_refused = true;
    return error_set(err, EXIT_DEVICE,
                     "--offload-states: the host could not allocate %s for moments and master weights",
                     memory_text(needed, arena->host_bytes));
}

void arena_join(Arena *vision, const Arena *arena, Exec *exec) {
    vision->rank = arena->rank;
    vision->base = arena->base + arena->vision_offset;
    if (vision->host_bytes) vision->host = arena->host + arena->vision_host_offset;
    exec->workspace = vision->base + vision->workspace_offset;
    exec->workspace_bytes = vision->total_bytes - vision->workspace_offset;
}

void arena_release(Arena *arena, Exec *exec) {
    if (arena->host && exec->ops->host_release)
        exec->ops->host_release(exec, arena->host);
    else if (arena->host)
        exec->ops->release(exec, arena->host);
    if (arena->base) exec->ops->release(exec, arena->base);
    arena->host = arena->base = NULL;
    exec->workspace = NULL;
    exec->workspace_bytes = 0;
}
