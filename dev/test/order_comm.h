// Communication backend of test_order. It computes nothing and records the memory accesses of one rank, on the
// assumption that all ranks have the same memory and send the same data. Tests can inject faults.
#pragma once
#include "coat/comm/comm_internal.h"
#include "dev/test/order_memory.h"
#include "dev/test/unit.h"

// --- faults that tests inject -------------------------------------------------------------------------------------

typedef enum {
    FAULT_NONE,
    NO_AFTER_COMPUTE, // fault: comm_after_compute() does nothing, so communication does not wait for computation
    NO_WAIT,          // fault: comm_wait() does nothing, so computation does not wait for communication
    EARLY_TICKETS,    // fault: tickets do not cover the last collective before them
    OLD_CODES,        // fault: weights are not quantized after an update, so their FP8 values are stale
    OLD_SLOTS,        // fault: slot_layer still names layers whose weights an update has changed
    LOST_SUMS,        // fault: gradients are not summed over the ranks
    LOST_SHARDS       // fault: Muon's shards are not exchanged between the ranks
} Fault;

static Fault fault;

// A call of comm_wait() or comm_after_compute() in coat/model/shards.c or muon.c. place_event() runs in place of these
// calls: it adds each call to `places` and skips call number `left_out` (-1: none).
typedef struct {
    const char *file, *function;
    int line;
    bool waits; // true: comm_wait(); false: comm_after_compute()
} Place;

static Place places[64];
static int place_count, left_out = -1;

static void place_event(Comm *comm, bool waits, int ticket, const char *file, const char *function, int line) {
    int i = 0;
    while (i < place_count && (places[i].line != line || places[i].waits != waits || strcmp(places[i].file, file) != 0))
        i++;
    if (i == place_count) {
        const Place place = {file, function, line, waits};
        assert_true(place_count < (int)(sizeof places / sizeof *places));
        places[place_count++] = place;
    }
    if (i == left_out) return;
    if (waits)
        comm_wait(comm, ticket);
    else
        comm_after_compute(comm);
}

// --- collectives that check the order of accesses instead of communicating ----------------------------------------

// Memory range that a collective reads or writes. The collectives of one group may run concurrently, so a range that
// one writes must not overlap with ranges of the others.
typedef struct {
    size_t begin, end;
    bool written;
} Range;

static struct {
    bool open;
    Range range[4 * PARAMETER_COUNT];
    int ranges, before; // ranges: number of ranges of the group. before: that number when the current collective began
} group;

static void in_group(const void *address, size_t bytes, bool writes) {
    const Range range = {offset_of(address), offset_of(address) + bytes, writes};
    for (int i = 0; i < group.before; i++)
        if ((writes || group.range[i].written) && range.begin < group.range[i].end && group.range[i].begin < range.end)
            report(&order.races, "race: %s and another collective of its group share memory that one of them writes",
                   this_event().text);
    assert_true(group.ranges < (int)(sizeof group.range / sizeof *group.range));
    if (group.open) group.range[group.ranges++] = range;
}

// Reports a fault if the current micro-batch may be replayed from a CUDA graph. Communication must not be recorded in a
// graph, because its tickets are valid in one step only.
static void check_recording(const char *call) {
    if (order.recording) report(&order.races, "recorded: %s in a micro-batch that may be replayed", call);
}

static void collective(const char *name) {
    check_recording(name);
    event_begin(COMMUNICATION, name);
    group.before = group.ranges;
}

static void sends(const void *address, size_t bytes, Label expected) {
    in_group(address, bytes, false);
    read_as(address, bytes, expected);
}

static void receives(void *address, size_t bytes, Label content, int made) {
    in_group(address, bytes, true);
    write_as(address, bytes, content, made);
}

static Label owner_of(const void *address) {
    return order.owner[offset_of(address) / UNIT];
}

// Returns the version (Unit.made) of the data that the current collective sends: the oldest that it has read.
static int sent_age(Label what) {
    return order.oldest < INT32_MAX ? order.oldest : of_weight(what) ? order.updates : order.pass;
}

static void order_all_reduce(Comm *comm, void *data, int64_t count, CommType type, CommOp op) {
    const size_t bytes = (size_t)count * comm_type_bytes(type);
    const Label what = owner_of(data);
    if (fault == LOST_SUMS && what > 0 && label_role(what) == GRAD) return;
    collective("all_reduce");
    sends(data, bytes, what);
    receives(data, bytes, what, sent_age(what));
}

// Checks that the summed values are of the result's layer. A result in a gather buffer keeps the label of its input.
static void order_reduce_scatter(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    const size_t bytes = (size_t)count_per_rank * comm_type_bytes(type);
    const Label from = owner_of(in), to = owner_of(out);
    if (fault == LOST_SUMS) return;
    collective("reduce_scatter");
    const Label slot = order.unit[offset_of(in) / UNIT].content, sum = in_slots(to) ? slot : to;
    sends(in, bytes * (size_t)comm->place.ranks, label_of(label_number(sum), (int)label_role(from), label_layer(sum)));
    receives(out, bytes, sum, sent_age(sum));
}

// Labels the gathered tensor with the layer and version of the shards. Its role becomes VALUE if it is gathered into
// memory of gradients.
static void order_all_gather(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    const size_t bytes = (size_t)count_per_rank * comm_type_bytes(type);
    const Label from = owner_of(in), to = owner_of(out);
    const Role role = label_role(to) == UNREDUCED ? VALUE : label_role(to);
    collective("all_gather");
    sends(in, bytes, from);
    for (int r = 0; r < comm->place.ranks; r++) {
        char *part = (char *)out + (size_t)r * bytes;
        if (!same_memory(part, in))
            receives(part, bytes, label_of(label_number(from), (int)role, label_layer(from)), sent_age(from));
    }
}

// Does not check what the ranks send, because a shard may be empty, and the last ranks may have no matrix.
static void order_all_to_all(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    const size_t bytes = (size_t)count_per_rank * comm_type_bytes(type) * (size_t)comm->place.ranks;
    if (fault == LOST_SHARDS) return;
    collective("all_to_all");
    in_group(in, bytes, false);
    read_any(in, bytes);
    in_group(out, bytes, true);
    write_memory(out, bytes);
}

static void order_group(Comm *comm, bool is_begin) {
    group.open = is_begin;
    group.ranges = group.before = 0;
}
static void order_host_reduce(Comm *comm, int64_t *values, int count, CommOp op) {}

static void order_after_compute(Comm *comm) {
    check_recording("comm_after_compute");
    if (fault != NO_AFTER_COMPUTE) order.waited[COMMUNICATION] = order.clock[COMPUTATION];
}

static int order_mark(Comm *comm) {
    check_recording("comm_mark");
    assert_true(order.tickets < MAX_EVENTS);
    order.ticket[order.tickets] = order.clock[COMMUNICATION] - (fault == EARLY_TICKETS ? 1 : 0);
    return order.tickets++;
}

static void order_wait(Comm *comm, int ticket) {
    check_recording("comm_wait");
    assert_true(ticket < order.tickets);
    if (fault != NO_WAIT && order.ticket[ticket] > order.waited[COMPUTATION])
        order.waited[COMPUTATION] = order.ticket[ticket];
}

static void order_comm_close(Comm *comm) {}

static const CommOps order_comm_ops = {
    .name = "order",
    .close = order_comm_close,
    .all_reduce = order_all_reduce,
    .reduce_scatter = order_reduce_scatter,
    .all_gather = order_all_gather,
    .all_to_all = order_all_to_all,
    .group = order_group,
    .host_reduce = order_host_reduce,
    .after_compute = order_after_compute,
    .mark = order_mark,
    .wait = order_wait,
};

static Comm *order_comm_open(const CommPlace *place, const Config *flags, Exec *exec, Error *err) {
    Comm *comm = (Comm *)xcalloc(1, sizeof *comm);
    comm->ops = &order_comm_ops;
    comm->place = *place;
    comm->exec = exec;
    return comm;
}
