// Checks the order of memory accesses without computing. Each unit of the arena has a record: who wrote it last, which
// tensor it contains, and who has read it since, on the computation and communication streams. Reported faults:
//   race: two conflicting accesses that no event orders
//   clobbered: a read that finds the values of another tensor
//   unwritten: a read before any write
//   old: a read of an outdated value
//   recorded: communication in a micro-batch that may be replayed from a CUDA graph
// Each stream has a clock, which every operation on the stream advances. Each stream also stores the time of the other
// stream up to which it has waited. Only the events of comm.h advance that time; waits of the host do not.
// A tensor is identified by its address. Because several tensors share scratch and gather buffers, descriptors use
// windows: one copy of the arena's address range per tensor and layer. No memory backs the addresses, so nothing can
// compute.
#pragma once
#include <stdarg.h>
#include <sys/mman.h>

#include "coat/model/arena.h"

// Many recorded operations have parameters that do not change which memory they access.
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define UNIT 16 // size of a tracked memory unit in bytes; a unit belongs to one tensor
#define MAX_LAYERS 5
#define MAX_EVENTS 16384 // maximum number of operations per stream and run
#define MAX_REPORTS 256

typedef enum { COMPUTATION, COMMUNICATION, STREAMS } Stream;

// Label of a tensor: its number, Role and layer (or gather buffer) in one number. Labels below 1 name no tensor. A
// tensor's number is its TensorId, plus TENSOR_COUNT if it is a tensor of the vision tower.
typedef int32_t Label;
enum { NOTHING = 0, SCRATCH = -1, ZEROS = -2, MAXIMA = -3 };
#define NUMBERS (2 * TENSOR_COUNT)

static int number_of(const Arena *arena, TensorId id) {
    return (int)id + (arena->config->shape.tower ? TENSOR_COUNT : 0);
}
static Label label_of(int number, int role, int layer) {
    return (number * ROLE_COUNT + role) * MAX_LAYERS + layer + 1;
}
static int label_number(Label label) {
    return (label - 1) / MAX_LAYERS / ROLE_COUNT;
}
static int label_id(Label label) {
    return label_number(label) % TENSOR_COUNT;
}
static Role label_role(Label label) {
    return (Role)((label - 1) / MAX_LAYERS % ROLE_COUNT);
}
static int label_layer(Label label) {
    return (label - 1) % MAX_LAYERS;
}

// State of one unit of memory.
typedef struct {
    int written, read[STREAMS]; // stream times of the last write and of each stream's last read; 0: never
    Stream writer;              // stream that wrote this memory unit last
    int made;      // version: pass (micro-batch) that wrote it; weights: number of updates so far; -1: not written
    Label content; // label of the tensor that was written
    bool padding;  // true: follows the end of a tensor or shard; communicated, but contents are never used
} Unit;

typedef struct {
    const char *name;
    int layer; // layer of the operation's tensors; OF_NONE: no layer known; OF_ALL: operation on all layers
} Event;

enum { OF_NONE = -1, OF_ALL = -2 };

// Function that is called for every access and replaces the checks; NULL: accesses are checked. With a function,
// addresses have no windows (dev/bench/bench_traffic.c).
static void (*count_access)(const void *address, size_t bytes, bool writes);

static struct {
    const Arena *arena, *tower; // arenas of the language model and of its vision tower; tower: NULL without one
    char *base;                 // start of window 0: the arena without a tensor's window
    size_t window;              // size in bytes of each tensor's address window
    size_t units; // number of tracked units; excludes the workspace, which is only used within an operation
    Unit *unit;
    Label *owner; // label of the tensor that the plan stores in each unit; SCRATCH: several tensors share the unit
    Event event[STREAMS][MAX_EVENTS]; // operations of each stream, indexed by the stream's clock
    int clock[STREAMS];               // current time of each stream's clock: its number of operations
    int waited[STREAMS];              // each stream has waited for the other stream's operations up to this time
    Stream stream;                    // stream of the current operation
    int ticket[MAX_EVENTS],
        tickets;                   // communication stream's clock when comm_mark() returned a ticket; number of tickets
    int pass, step_pass, updates;  // current pass (work on one batch), step's first pass, number of updates so far
    int oldest;                    // smallest version (Unit.made) that the current operation has read
    int weight_made;               // version (Unit.made) of the weights that the current operation writes
    int sample_pass;               // index of the first forward pass of the current sample
    bool kept;                     // true: reads may find values of any pass of the current sample (KV cache)
    bool recording;                // true: the current micro-batch may be recorded in a CUDA graph
    char report[MAX_REPORTS][320]; // texts of the distinct faults found
    int reports;
    size_t races, clobbered, unwritten, old; // number of faults of each kind; the top of this file lists the kinds
    // whether any operation has written or read each tensor (by number), in any layer and role
    bool writes[NUMBERS], reads[NUMBERS];
} order;

// --- reports of races and wrong reads -----------------------------------------------------------------------------

__attribute__((format(printf, 2, 3))) static void report(size_t *count, const char *format, ...) {
    char text[sizeof order.report[0]];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (*count)++;
    for (int i = 0; i < order.reports; i++)
        if (strcmp(order.report[i], text) == 0) return;
    if (order.reports < MAX_REPORTS) strcpy(order.report[order.reports++], text);
}

typedef struct {
    char text[64];
} Name;

static Name label_name(Label label) {
    Name name;
    if (label <= 0) {
        snprintf(name.text, sizeof name.text, "%s",
                 label == ZEROS    ? "zeros"
                 : label == MAXIMA ? "the matrices' amax"
                                   : "scratch");
        return name;
    }
    const TensorRow *row = tensor_row((TensorId)label_id(label));
    int length = snprintf(name.text, sizeof name.text, "%s%s%s", label_number(label) >= TENSOR_COUNT ? "vision." : "",
                          row->name, role_suffix(label_role(label)));
    if (row->per_layer)
        snprintf(name.text + length, sizeof name.text - (size_t)length, " of layer %d", label_layer(label));
    return name;
}

static Name event_name(Stream stream, int time) {
    Name name;
    const Event *e = &order.event[stream][time];
    int length = snprintf(name.text, sizeof name.text, "%s", e->name);
    if (e->layer >= 0) snprintf(name.text + length, sizeof name.text - (size_t)length, " (layer %d)", e->layer);
    return name;
}

static Name this_event(void) {
    return event_name(order.stream, order.clock[order.stream]);
}

// --- address windows, by which accessed tensors are identified ----------------------------------------------------

// Returns the address in the window of this tensor and layer. A tensor that shares another tensor's memory uses that
// tensor's window.
static void *through_window(void *address, const Arena *arena, Role role, TensorId id, int layer) {
    if (!address || count_access) return address;
    id = arena_owner(arena, id, role, layer);
    if (!tensor_row(id)->per_layer) layer = 0;
    return (char *)address + order.window * (size_t)(1 + number_of(arena, id) * MAX_LAYERS + layer);
}

static size_t offset_of(const void *address) {
    return (size_t)((const char *)address - order.base) % order.window;
}

static bool same_memory(const void *a, const void *b) {
    return (!a || !b) ? a == b : offset_of(a) == offset_of(b);
}

static bool in_slots(Label owner) {
    return owner > 0 && (label_role(owner) == GATHERED || label_role(owner) == UNREDUCED);
}

static int window_of(const void *address) {
    return (int)((size_t)((const char *)address - order.base) / order.window);
}

// Returns the label of the tensor that is accessed through `window` in a unit with this owner. Returns NOTHING if
// window 0 is used and several tensors share the unit.
static Label meant(int window, Label owner) {
    if (window == 0) return owner == SCRATCH || in_slots(owner) ? NOTHING : owner;
    return label_of((window - 1) / MAX_LAYERS, owner == SCRATCH ? VALUE : label_role(owner), (window - 1) % MAX_LAYERS);
}

static void own(size_t offset, size_t bytes, Label label) {
    for (size_t u = offset / UNIT; u < (offset + bytes + UNIT - 1) / UNIT; u++) order.owner[u] = label;
}

// Marks the units after the end of a tensor, or of this rank's shard of a tensor, as padding.
static void own_padding(const Arena *arena, const TensorLayout *t, size_t offset) {
    int64_t elements = t->rows * t->cols - (t->sharded ? t->shard_elements * arena->rank : 0);
    if (elements < 0) elements = 0;
    for (size_t u = (offset + (size_t)elements * format_bytes(t->format) + UNIT - 1) / UNIT;
         u < (offset + t->data_bytes + UNIT - 1) / UNIT; u++)
        order.unit[u].padding = true;
}

// Sets the owner of a tensor's memory in an arena that begins at `base`.
static void own_tensor(const Arena *arena, size_t base, TensorId id, Role role) {
    const TensorLayout *t = &arena->layout[id][role];
    const int number = number_of(arena, id);
    for (int i = 0; t->exists && t->amax_bytes && i < (t->amax_stride ? t->layers : 1); i++)
        own(base + t->amax_offset + (size_t)i * t->amax_stride, t->amax_bytes, label_of(number, (int)role, i));
    if (!t->exists || t->alias >= 0) return;
    const bool pooled = id >= PARAMETER_COUNT && !t->saved && t->category >= CATEGORY_SCRATCH;
    for (int i = 0; i < (t->per_layer || t->per_layer_scale ? t->layers : 1); i++) {
        const size_t l = (size_t)i;
        const Label label = label_of(number, (int)role, i);
        if (i == 0 || t->per_layer) {
            own(base + t->data_offset + l * t->data_stride, t->data_bytes, pooled ? SCRATCH : label);
            if (!pooled) own_padding(arena, t, base + t->data_offset + l * t->data_stride);
        }
        if (t->scale_bytes && (i == 0 || t->scale_stride))
            own(base + t->scale_offset + l * t->scale_stride, t->scale_bytes, label);
        if (t->exponent_bytes) own(base + t->exponent_offset + l * t->exponent_stride, t->exponent_bytes, label);
    }
}

static void own_arena(const Arena *arena, size_t base) {
    if (arena->config->shape.tower) order.tower = arena;
    for (int id = 0; id < TENSOR_COUNT; id++)
        for (int role = 0; role < ROLE_COUNT; role++) own_tensor(arena, base, (TensorId)id, (Role)role);
    if (arena->amax_offset) own(base + arena->amax_offset, (size_t)arena_parameter_count(arena) * 4, MAXIMA);
}

// Opens the memory of a language model's arena. If the model has a vision tower, own_arena() must follow for its arena.
static void memory_open(const Arena *arena) {
    memset(&order, 0, sizeof order);
    order.arena = arena;
    order.window = (arena->total_bytes + 4095) / 4096 * 4096;
    const bool tower = arena->total_bytes > arena->vision_offset;
    order.units = (tower ? arena->total_bytes : arena->workspace_offset) / UNIT;
    order.unit = (Unit *)xcalloc(order.units, sizeof *order.unit);
    order.owner = (Label *)xcalloc(order.units, sizeof *order.owner);
    for (size_t u = 0; u < order.units; u++) order.unit[u].made = -1;
    own_arena(arena, 0);
    order.base = (char *)mmap(NULL, order.window * (1 + NUMBERS * MAX_LAYERS), PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (order.base == MAP_FAILED) fatal(EXIT_DEVICE, "could not reserve addresses for the arena's windows");
}

static void memory_close(void) {
    munmap(order.base, order.window * (1 + NUMBERS * MAX_LAYERS));
    free(order.unit);
    free(order.owner);
}

// --- order of operations on the two streams -----------------------------------------------------------------------

// Begins an operation, which runs after all earlier operations on its stream.
static void event_begin(Stream stream, const char *name) {
    const Event event = {name, OF_NONE};
    order.stream = stream;
    if (++order.clock[stream] == MAX_EVENTS) fatal(EXIT_DEVICE, "more than %d operations in a run", MAX_EVENTS);
    order.event[stream][order.clock[stream]] = event;
    order.oldest = INT32_MAX;
    order.weight_made = order.updates;
}

static void event_of(Label label) {
    Event *e = &order.event[order.stream][order.clock[order.stream]];
    if (e->layer == OF_NONE && label > 0 && tensor_row((TensorId)label_id(label))->per_layer)
        e->layer = label_layer(label);
}

// True if the current operation runs after the operation of `stream` at time `time`.
static bool is_after(Stream stream, int time) {
    return stream == order.stream || time <= order.waited[order.stream];
}

static void check_race(const Unit *u, Label label, Stream stream, int time, bool writes, bool other_writes) {
    if (is_after(stream, time)) return;
    report(&order.races, "race: %s %s %s, and no event orders it after %s, which %s it", this_event().text,
           writes ? "writes" : "reads", label_name(label > 0 ? label : u->content).text, event_name(stream, time).text,
           other_writes ? "writes" : "reads");
}

// --- contents of the memory units ---------------------------------------------------------------------------------

// True if the contents of a memory unit are up to date. The condition depends on the tensor:
//   activations: computed in this pass or, if attention reads k and v from the KV cache (order.kept), in any pass of
//       the current sample
//   gradients: computed in this step or, if communication reads them, in this pass
//   FP8 health counts: computed in this step
//   weights and tensors made from weights: computed after the last update, unless they are not trained
//   all other tensors: always
static bool current(const Unit *u) {
    const Label label = u->content;
    if (label <= 0) return true;
    if (label_id(label) >= CODE_COUNTS && label_id(label) <= OUTLIERS) return u->made >= order.step_pass;
    switch (label_id(label)) { // tables that are written only once
    case ROPE_TABLE:
    case PIXEL_VALUES:
    case SELECT:
    case SELECT_BACK: return true;
    default: break;
    }
    if (order.kept) return u->made >= order.sample_pass;
    if (label_id(label) >= PARAMETER_COUNT) return label_id(label) == STATE || u->made == order.pass;
    const Arena *arena = label_number(label) < TENSOR_COUNT ? order.arena : order.tower;
    if (!arena->layout[label_id(label)][MOMENT_M].exists) return true; // weights that are not trained
    switch (label_role(label)) {
    case GRAD:
    case UNREDUCED: return order.stream == COMMUNICATION ? u->made == order.pass : u->made >= order.step_pass;
    case VALUE:
    case CODES:
    case CODES_T:
    case GATHERED: return u->made == order.updates;
    default: return true;
    }
}

static bool of_weight(Label label) {
    return label > 0 && label_id(label) < PARAMETER_COUNT && label_role(label) != GRAD &&
           label_role(label) != UNREDUCED;
}

static void check_content(const Unit *u, Label expected) {
    if (u->made < 0)
        report(&order.unwritten, "unwritten: %s reads %s, which nothing has written", this_event().text,
               label_name(expected).text);
    else if (expected != NOTHING && u->content != expected && u->content != ZEROS)
        report(&order.clobbered, "clobbered: %s reads %s where %s has written %s", this_event().text,
               label_name(expected).text, event_name(u->writer, u->written).text, label_name(u->content).text);
    else if (!current(u))
        report(&order.old, "old: %s reads %s, which %s wrote %s", this_event().text, label_name(u->content).text,
               event_name(u->writer, u->written).text,
               of_weight(u->content) ? "before the last update" : "in an earlier pass");
}

// Reports an operation that accesses two tensors in the same memory, because its accesses have no defined order.
static void check_together(const Unit *u, Label content) {
    const int now = order.clock[order.stream];
    const bool written = u->writer == order.stream && u->written == now;
    if ((u->read[order.stream] == now || written) && u->content != content && u->content > 0 && !u->padding)
        report(&order.clobbered, "clobbered: %s writes %s where it %s %s", this_event().text, label_name(content).text,
               written ? "writes" : "reads", label_name(u->content).text);
}

// --- checks of every read and write -------------------------------------------------------------------------------

// Returns the index of the first unit of a memory range. Aborts the test if the range is not in the arena.
static size_t first_unit(const void *address, size_t bytes) {
    if (offset_of(address) + bytes > order.units * UNIT)
        fatal(EXIT_DEVICE, "%s: the address %p is outside the arena's tensors", this_event().text, address);
    return offset_of(address) / UNIT;
}
static size_t end_unit(const void *address, size_t bytes) {
    return (offset_of(address) + bytes + UNIT - 1) / UNIT;
}

// Checks the order of a read but not the contents, and returns the unit.
static Unit *read_unit_any(size_t at, Label expected) {
    Unit *u = &order.unit[at];
    check_race(u, expected, u->writer, u->written, false, true);
    u->read[order.stream] = order.clock[order.stream];
    return u;
}

static void read_unit(size_t at, Label expected) {
    const Unit *u = read_unit_any(at, expected);
    if (u->padding) return;
    check_content(u, expected);
    if (u->made < order.oldest) order.oldest = u->made;
}

static void write_unit(size_t at, Label content, int made) {
    Unit *u = &order.unit[at];
    check_race(u, content, u->writer, u->written, true, true);
    for (int s = 0; s < STREAMS; s++) check_race(u, content, (Stream)s, u->read[s], true, false);
    check_together(u, content);
    u->writer = order.stream;
    u->written = order.clock[order.stream];
    u->content = content;
    u->made = made;
}

static bool counted(const void *address, size_t bytes, bool writes) {
    if (count_access) count_access(address, bytes, writes);
    return count_access != NULL;
}

static void read_memory(const void *address, size_t bytes) {
    if (counted(address, bytes, false)) return;
    const int window = window_of(address);
    const size_t end = end_unit(address, bytes);
    for (size_t u = first_unit(address, bytes); u < end;) {
        const Label owner = order.owner[u], label = meant(window, owner);
        event_of(label);
        if (label > 0) order.reads[label_number(label)] = true;
        for (; u < end && order.owner[u] == owner; u++) read_unit(u, label);
    }
}

static void write_memory(const void *address, size_t bytes) {
    if (counted(address, bytes, true)) return;
    const int window = window_of(address);
    const size_t end = end_unit(address, bytes);
    for (size_t u = first_unit(address, bytes); u < end;) {
        const Label owner = order.owner[u], label = meant(window, owner), content = label == NOTHING ? owner : label;
        const int made = of_weight(content) ? order.weight_made : order.pass;
        event_of(content);
        if (content > 0) order.writes[label_number(content)] = true;
        for (; u < end && order.owner[u] == owner; u++) write_unit(u, content, made);
    }
}

// Records a read of memory as tensor `expected`, for operations that move one layer's values to another layer's memory.
static void read_as(const void *address, size_t bytes, Label expected) {
    event_of(expected);
    for (size_t u = first_unit(address, bytes), end = end_unit(address, bytes); u < end; u++) read_unit(u, expected);
}

// Records a read of memory that may contain anything.
static void read_any(const void *address, size_t bytes) {
    for (size_t u = first_unit(address, bytes), end = end_unit(address, bytes); u < end; u++) read_unit_any(u, NOTHING);
}

static void write_as(const void *address, size_t bytes, Label content, int made) {
    if (counted(address, bytes, true)) return;
    event_of(content);
    for (size_t u = first_unit(address, bytes), end = end_unit(address, bytes); u < end; u++)
        write_unit(u, content, made);
}
