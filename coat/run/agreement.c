#include "agreement.h"

#include <stdio.h>

#include "log/step_line.h"

bool all_well(Agreement *a, bool well, Error *err) {
    if (a->failed) return false; // further inside
    if (comm_all_good(a->comm, well, err)) return true;
    const int rank = comm_rank(a->comm), ranks = comm_ranks(a->comm);
    a->failed = true;
    a->first_failed = ranks - (int)comm_max_i64(a->comm, well ? 0 : ranks - rank);
    a->some_succeeded = comm_max_i64(a->comm, well);
    return false;
}

bool all_failed(Agreement *a) {
    a->failed = true;
    return false;
}

void agreement_say(Agreement *a, int rank, const Error *err) {
    char label[32] = "error: ";
    if (a->said) return;
    a->said = true;
    if (a->some_succeeded) snprintf(label, sizeof label, "error: rank %d: ", a->first_failed);
    if (!a->failed || rank == a->first_failed) print_labelled(stderr, label, err->text);
    if (a->failed && a->comm) comm_barrier(a->comm);
}
