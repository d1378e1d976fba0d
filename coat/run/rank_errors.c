#include "rank_errors.h"

#include <stdio.h>

#include "log/terminal.h"

bool all_ranks_ok(RankErrors *e, bool ok, Error *err) {
    if (e->failed) return false; // a nested all_ranks_ok() has already sent the error to all ranks
    e->failed = !comm_all_good(e->comm, ok, err);
    return !e->failed;
}

bool on_all_ranks(RankErrors *e) {
    e->failed = true;
    return false;
}

void report_error_once(RankErrors *e, int rank, const Error *err) {
    if (e->reported) return;
    e->reported = true;
    if (!e->failed || rank == 0) print_labelled(stderr, "error: ", err->text);
    if (e->failed && e->comm) comm_barrier(e->comm);
}
