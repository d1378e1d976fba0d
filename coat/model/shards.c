#include "shards.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

static CommType comm_type(Format format) {
    switch (format) {
    case FMT_FP32: return sizeof(real) == sizeof(double) ? COMM_FP64 : COMM_FP32;
    case FMT_BF16: return COMM_BF16;
    default: return COMM_BYTES;
    }
}

static char *element(void *data, Format format, int64_t index) {
    return (char *)data + (size_t)index * format_bytes(format);
}

// --- opening and closing the Shards of an arena --------------------------------------------------------------------

static bool of_layer(TensorId id) {
    return tensor_row(id)->per_layer;
}

// Returns the part of a parameter that this process updates: the entire parameter or, with ZeRO, this process's shard.
// An empty shard has 0 rows.
static Parameter updated_part(const Arena *a, const Parameter *whole, TensorId id, int layer) {
    if (a->zero == 0) return *whole;
    Parameter p = *whole;
    int64_t begin;
    p.weight.value = arena_shard(a, id, VALUE, layer, &begin);
    p.grad = arena_shard(a, id, GRAD, layer, &begin);
    p.m = arena_shard(a, id, MOMENT_M, layer, &begin);
    p.v = arena_shard(a, id, MOMENT_V, layer, &begin);
    if (p.master.data) p.master = arena_shard(a, id, MASTER, layer, &begin);
    p.index = whole->index + (uint64_t)begin;
    return p;
}

// Returns the part of a weight that this process quantizes: the entire weight or, with ZeRO 3, this process's shard.
// The processes compute the amax of the entire weight together, so that all shards have one scale. number: index of the
// weight's amax in the arena.
static Parameter coded_part(const Arena *a, TensorId id, int layer, int number) {
    Parameter p;
    memset(&p, 0, sizeof p);
    p.weight.value = arena_tensor(a, id, VALUE, layer);
    p.weight.codes = arena_tensor(a, id, CODES, layer);
    if (a->config->recipe.cache_transposed) p.weight.codes_t = arena_tensor(a, id, CODES_T, layer);
    p.weight.maximum = arena_weight(a, id, layer).maximum;
    if (!a->layout[id][CODES].sharded) return p;
    int64_t begin;
    p.weight.maximum = NULL;
    p.weight.value = arena_shard(a, id, VALUE, layer, &begin);
    p.weight.codes = arena_shard(a, id, CODES, layer, &begin);
    p.weight.codes.amax = (uint32_t *)(a->base + a->amax_offset) + number;
    memset(&p.weight.codes_t, 0, sizeof p.weight.codes_t);
    return p;
}

void shards_open(Shards *s, const Arena *arena, Exec *exec, Comm *comm) {
    memset(s, 0, sizeof *s);
    s->arena = arena;
    s->exec = exec;
    s->comm = arena->ranks > 1 ? comm : NULL;
    s->zero = arena->zero;
    s->layers = arena->config->shape.layers;
    size_t capacity = (size_t)arena_parameter_count(arena);
    Parameter *all = (Parameter *)xcalloc(capacity, sizeof *all);
    TensorId *ids = (TensorId *)xcalloc(capacity, sizeof *ids);
    int *layers = (int *)xcalloc(capacity, sizeof *layers);
    s->updated = (Parameter *)xcalloc(capacity, sizeof *s->updated);
    s->squared = (Parameter *)xcalloc(capacity, sizeof *s->squared);
    s->coded = (Parameter *)xcalloc(capacity, sizeof *s->coded);
    int count = arena_parameters(arena, all, ids, layers), coded = 0;
    muon_open(&s->muon, arena, exec, s->comm);
    for (int i = 0; i < count; i++) {
        int64_t begin;
        Parameter p = updated_part(arena, &all[i], ids[i], layers[i]);
        if (all[i].grad.rows > 0 && tensor_uses_muon(ids[i], arena->config))
            muon_add(&s->muon, &p, ids[i]); // also if the shard is empty
        else if (p.grad.rows > 0)
            s->updated[s->updated_count++] = p;
        p.grad = arena_shard(arena, ids[i], GRAD, layers[i], &begin);
        if (p.grad.rows > 0) s->squared[s->squared_count++] = p;
    }
    for (int l = 0; l < s->layers; l++) {
        for (int id = 0; id < PARAMETER_COUNT; id++) {
            if (!of_layer((TensorId)id) || !arena->layout[id][CODES].exists) continue;
            s->coded[coded] = coded_part(arena, (TensorId)id, l, coded);
            coded++;
        }
    }
    s->coded_per_layer = coded / s->layers;
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        if (of_layer((TensorId)id) || !arena->layout[id][CODES].exists) continue;
        s->coded[coded + s->coded_of_none++] = coded_part(arena, (TensorId)id, 0, 0);
    }
    s->value_ticket = (int *)xcalloc((size_t)s->layers + 1, sizeof *s->value_ticket);
    s->value_pending = (bool *)xcalloc((size_t)s->layers + 1, sizeof *s->value_pending);
    for (int i = 0; i < LAYER_SLOTS; i++) s->slot_layer[i] = s->grad_layer[i] = -1;
    free(layers);
    free(ids);
    free(all);
}

static void append(Parameter **list, int *count, const Parameter *added, int added_count) {
    Parameter *both = (Parameter *)xcalloc((size_t)(*count + added_count), sizeof *both);
    if (*count) memcpy(both, *list, (size_t)*count * sizeof *both);
    if (added_count) memcpy(both + *count, added, (size_t)added_count * sizeof *both);
    free(*list);
    *list = both;
    *count += added_count;
}

void shards_join(Shards *s, Shards *other) {
    s->joined = other;
    append(&s->updated, &s->updated_count, other->updated, other->updated_count);
    append(&s->squared, &s->squared_count, other->squared, other->squared_count);
}

void shards_close(Shards *s) {
    free(s->updated);
    muon_close(&s->muon);
    free(s->squared);
    free(s->coded);
    free(s->value_ticket);
    free(s->value_pending);
    memset(s, 0, sizeof *s);
}

// --- gathering weights ---------------------------------------------------------------------------------------------

// Starts gathering the new values of the parameters of layer l or, if l == layers, of the parameters that are not per
// layer. Skips parameters of which each process stores only a shard.
static void gather_values(Shards *s, int l) {
    const Arena *a = s->arena;
    comm_group_begin(s->comm);
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        const TensorLayout *t = &a->layout[id][VALUE];
        if (of_layer((TensorId)id) != (l < s->layers) || t->sharded) continue;
        char *data = (char *)arena_tensor(a, (TensorId)id, VALUE, l < s->layers ? l : 0).data;
        comm_all_gather(s->comm, data, element(data, t->format, t->shard_elements * a->rank), t->shard_elements,
                        comm_type(t->format));
    }
    comm_group_end(s->comm);
    s->value_ticket[l] = comm_mark(s->comm);
    s->value_pending[l] = true;
}

// Waits until gather_values(l) has gathered the new values, then quantizes the weights that have FP8 values.
static void values_needed(Shards *s, int l) {
    if (!s->comm || !s->value_pending[l]) return;
    comm_wait(s->comm, s->value_ticket[l]);
    s->value_pending[l] = false;
    const Parameter *coded = s->coded + l * s->coded_per_layer;
    if (l == s->layers)
        s->exec->ops->weights_quantize(s->exec, coded, s->coded_of_none);
    else if (s->zero < 3)
        s->exec->ops->weights_quantize(s->exec, coded, s->coded_per_layer);
}

// Starts gathering layer l's weight matrices into a slot, in the format that this pass reads. Does nothing if the slot
// already contains the matrices in that format. The gather starts only after all earlier computation, which may read
// the slot's old weights.
static void fetch_layer(Shards *s, int l, bool backward) {
    const Arena *a = s->arena;
    int slot = l % LAYER_SLOTS;
    if (s->slot_layer[slot] == l && (s->slot_backward[slot] == backward || l >= a->bf16_blocks)) return;
    comm_after_compute(s->comm);
    comm_group_begin(s->comm);
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        const TensorLayout *t = &a->layout[id][GATHERED];
        if (!t->exists) continue;
        Role role = arena_reads_codes(a, (TensorId)id, l, backward) ? CODES : VALUE;
        comm_all_gather(s->comm, arena_tensor(a, (TensorId)id, GATHERED, slot).data,
                        arena_tensor(a, (TensorId)id, role, l).data, t->shard_elements,
                        comm_type(a->layout[id][role].format));
    }
    comm_group_end(s->comm);
    s->slot_layer[slot] = l;
    s->slot_backward[slot] = backward;
    s->slot_ticket[slot] = comm_mark(s->comm);
    s->slot_pending[slot] = true;
}

void shards_pass_begin(Shards *s) {
    values_needed(s, s->layers);
    if (s->zero >= 3) fetch_layer(s, 0, false);
}

void shards_weights_needed(Shards *s, int l, int next, bool backward) {
    values_needed(s, l);
    if (s->zero < 3) return;
    int slot = l % LAYER_SLOTS;
    fetch_layer(s, l, backward);
    if (s->slot_pending[slot]) comm_wait(s->comm, s->slot_ticket[slot]);
    s->slot_pending[slot] = false;
    if (next >= 0) {
        // If backward recomputes blocks, backward of the next layer begins with its forward, which reads the forward
        // weights.
        fetch_layer(s, next, backward && !config_recomputes_blocks(s->arena->config));
    }
}

// Quantizes sharded weights: all processes compute the amaxes of the entire weights together, then each process
// quantizes its shards.
static void quantize_shards(Shards *s) {
    int count = s->coded_per_layer * s->layers;
    // marks the slots as empty, because their gathered weights are outdated
    for (int i = 0; i < LAYER_SLOTS; i++) s->slot_layer[i] = -1;
    if (count == 0) return;
    s->exec->ops->weights_amax(s->exec, s->coded, count);
    comm_after_compute(s->comm);
    comm_all_reduce(s->comm, s->coded[0].weight.codes.amax, count, COMM_I32, COMM_MAX);
    comm_wait(s->comm, comm_mark(s->comm));
    s->exec->ops->weights_quantize(s->exec, s->coded, count);
}

void shards_weights_loaded(Shards *s) {
    int of_layers = s->coded_per_layer * s->layers;
    if (s->zero >= 3) {
        quantize_shards(s);
        s->exec->ops->weights_quantize(s->exec, s->coded + of_layers, s->coded_of_none);
    } else {
        s->exec->ops->weights_quantize(s->exec, s->coded, of_layers + s->coded_of_none);
    }
}

void shards_weights_wait(Shards *s) {
    for (int l = 0; l <= s->layers; l++) values_needed(s, l);
}

// --- summing gradients over the processes --------------------------------------------------------------------------

bool shards_recordable(const Shards *s, bool first, bool last) {
    if (!s->comm) return true;
    return s->zero < 2 && !last && !(first && s->zero > 0);
}

// Starts summing the gradients of layer l over the processes or, if l == layers, the gradients that are not per layer.
// With ZeRO 0, writes the entire sum to GRAD. Otherwise, writes this process's shard of the sum to GRAD or, if
// in_place, to the shard's place in UNREDUCED.
static void sum_gradients(Shards *s, int l, bool in_place) {
    const Arena *a = s->arena;
    comm_after_compute(s->comm);
    comm_group_begin(s->comm);
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        if (of_layer((TensorId)id) != (l < s->layers)) continue;
        int layer = l < s->layers ? l : 0;
        const TensorLayout *t = &a->layout[id][GRAD];
        Tensor mine = arena_gradient(a, (TensorId)id, layer), sum = arena_tensor(a, (TensorId)id, GRAD, layer);
        CommType type = comm_type(t->format);
        if (s->zero == 0) {
            comm_all_reduce(s->comm, sum.data, tensor_elements(sum), type, COMM_SUM);
            continue;
        }
        char *shard = element(mine.data, t->format, t->shard_elements * a->rank);
        comm_reduce_scatter(s->comm, in_place || !t->sharded ? shard : (char *)sum.data, mine.data, t->shard_elements,
                            type);
    }
    comm_group_end(s->comm);
}

bool shards_accumulate(const Shards *s, bool accumulate) {
    return accumulate && s->zero < 2;
}

// Waits until the gradients in double-buffer slot `slot` are summed over the processes. Then adds this process's shard
// of the sum to GRAD, unless the sum was written to GRAD directly, as in a step's first micro-batch.
static void take_sums(Shards *s, int slot) {
    const Arena *a = s->arena;
    if (s->grad_pending[slot]) comm_wait(s->comm, s->grad_ticket[slot]);
    s->grad_pending[slot] = false;
    if (s->grad_layer[slot] < 0) return;
    Tensor sums[PARAMETER_COUNT], parts[PARAMETER_COUNT];
    int count = 0;
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        if (!a->layout[id][UNREDUCED].exists) continue;
        int64_t begin;
        sums[count] = arena_shard(a, (TensorId)id, GRAD, s->grad_layer[slot], &begin);
        parts[count] = arena_shard(a, (TensorId)id, UNREDUCED, slot, &begin);
        if (sums[count].rows > 0) count++;
    }
    s->exec->ops->gradients_add(s->exec, sums, parts, count);
    s->grad_layer[slot] = -1;
}

void shards_gradients_begin(Shards *s, int l) {
    if (s->zero >= 2) take_sums(s, l % LAYER_SLOTS);
}

void shards_gradients_ready(Shards *s, int l, bool accumulate, bool last) {
    if (!s->comm || (s->zero < 2 && !last)) return;
    sum_gradients(s, l, s->zero >= 2 && accumulate);
    if (s->zero < 2) return;
    const int slot = l % LAYER_SLOTS;
    s->grad_ticket[slot] = comm_mark(s->comm);
    s->grad_pending[slot] = true;
    s->grad_layer[slot] = accumulate ? l : -1;
}

void shards_pass_end(Shards *s, bool last) {
    if (s->comm && last) sum_gradients(s, s->layers, true);
}

// --- loss sum, gradient norm and update of a step ------------------------------------------------------------------

void shards_sum_loss(Shards *s, StepState *state) {
    if (!s->comm) return;
    comm_after_compute(s->comm);
    comm_all_reduce(s->comm, &state->loss_sum, 1, COMM_FP64, COMM_SUM);
    comm_wait(s->comm, comm_mark(s->comm));
}

// Computes the norm of all gradients over all processes. In every ZeRO stage, each process sums the squares of its
// shards only. Therefore each element counts once, and the norm has the same bits in all stages.
static void norm_over_ranks(Shards *s, StepState *state) {
    const Ops *ops = s->exec->ops;
    comm_wait(s->comm, comm_mark(s->comm)); // waits for the sums of the gradients
    for (int slot = 0; slot < LAYER_SLOTS; slot++) {
        take_sums(s, slot);
        if (s->joined) take_sums(s->joined, slot);
    }
    ops->grad_norm(s->exec, s->squared, s->squared_count, state);
    comm_after_compute(s->comm);
    comm_group_begin(s->comm);
    comm_all_reduce(s->comm, &state->loss_sum, 1, COMM_FP64, COMM_SUM);
    comm_all_reduce(s->comm, &state->grad_sq, 1, COMM_FP64, COMM_SUM);
    comm_all_reduce(s->comm, &state->nonfinite, 1, COMM_I32, COMM_MAX);
    comm_group_end(s->comm);
    comm_wait(s->comm, comm_mark(s->comm));
    ops->grad_norm_root(s->exec, state);
}

void shards_norm(Shards *s, StepState *state) {
    if (s->comm)
        norm_over_ranks(s, state);
    else
        s->exec->ops->grad_norm(s->exec, s->squared, s->squared_count, state);
}

// Quantizes updated weights. With ZeRO, starts gathering their new values, because each process has updated only its
// shard.
static void weights_updated(Shards *s) {
    if (s->zero == 0) {
        shards_weights_loaded(s);
        return;
    }
    if (s->zero >= 3) quantize_shards(s);
    comm_after_compute(s->comm);
    gather_values(s, s->layers); // first the parameters that are not per layer, because the embedding reads them
    for (int l = 0; l < s->layers; l++) gather_values(s, l);
}

void shards_update(Shards *s, StepState *state) {
    s->exec->ops->adamw_update(s->exec, s->updated, s->updated_count, state);
    muon_update(&s->muon, state);
    weights_updated(s);
    if (s->joined) weights_updated(s->joined);
}

// Gathers the value into the memory of UNREDUCED, which is unused between steps and large enough.
const void *shards_whole_value(Shards *s, TensorId id, int layer) {
    const TensorLayout *t = &s->arena->layout[id][VALUE];
    void *whole = arena_tensor(s->arena, id, UNREDUCED, 0).data;
    comm_after_compute(s->comm);
    comm_all_gather(s->comm, whole, arena_tensor(s->arena, id, VALUE, layer).data, t->shard_elements,
                    comm_type(t->format));
    comm_wait(s->comm, comm_mark(s->comm));
    return whole;
}

int shards_threads(const Config *config, int local_ranks) {
    if (config->threads > 0 || local_ranks < 2 || getenv("OMP_NUM_THREADS")) return config->threads;
#ifdef _OPENMP
    int cores = omp_get_max_threads();
    if (cores == (int)sysconf(_SC_NPROCESSORS_ONLN)) return cores / local_ranks > 0 ? cores / local_ranks : 1;
#endif
    return 0;
}
