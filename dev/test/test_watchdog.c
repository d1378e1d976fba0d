// Tests of the watchdog that ends all ranks of a run if one rank is lost. The ranks are forked processes of this
// machine. Instead of running collectives, each rank increments counters of collectives that it has begun and finished.
#include "coat/comm/watchdog.h"
#include "comm_fixture.h"

static volatile uint32_t counters[2];
static volatile int timeout_s;
static char run_id[32];
// busy_timeout is in seconds. It is long, because a rank may be silent for more than one second on a busy machine.
static const int busy_timeout = 4;
static int *arrived; // number of calls of await_all(), in memory that all ranks share

static bool wait_for_ever(void) {
    while (pause() == -1) continue;
    return false;
}

// Waits until every rank has called await_all() `times` times.
static void await_all(const CommPlace *place, int times) {
    __atomic_fetch_add(arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(arrived, __ATOMIC_ACQUIRE) < times * place->ranks) usleep(10000);
}

static Watchdog *start(const CommPlace *place) {
    Watchdog *w = watchdog_open(place, &timeout_s, counters);
    watchdog_share(w, run_id, sizeof run_id);
    await_all(place, 1);
    watchdog_all_connected(w);
    return w;
}

static RankResult *watched(int seconds, int ranks, RankFunction function) {
    snprintf(run_id, sizeof run_id, "test %d %d", (int)getpid(), rand());
    counters[0] = counters[1] = 0;
    timeout_s = seconds;
    if (!arrived)
        arrived = (int *)mmap(NULL, sizeof *arrived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(arrived != MAP_FAILED);
    *arrived = 0;
    return run_ranks(ranks, function);
}

static bool work(CommPlace *place, RankResult *result) {
    (void)result;
    Watchdog *w = start(place);
    for (int i = 0; i < 50; i++) { // The collectives together take longer than the timeout, but each is short.
        counters[0]++;
        usleep(100000);
        counters[1]++;
    }
    watchdog_begin(w, "the end");
    watchdog_end(w);
    watchdog_close(w);
    return true;
}

UNIT_TEST(healthy_ranks_continue) {
    const RankResult *results = watched(busy_timeout, 3, work);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(results[r].status, 0);
        assert_true(results[r].ok);
        assert_string_equal(results[r].said, "");
    }
}

// All ranks except rank 1 begin a collective. After all watchdogs have recorded that, the timeout becomes short.
static bool hang(CommPlace *place, RankResult *result) {
    (void)result;
    start(place);
    if (place->rank != 1) counters[0]++;
    await_all(place, 2);
    usleep(1000000);
    timeout_s = busy_timeout;
    return wait_for_ever();
}

// Fails unless every rank except `without` exits with EXIT_RANK and blames rank 1 or a rank that has ended the run.
static void assert_rank_1_blamed(const RankResult *results, int ranks, int without) {
    for (int r = 0; r < ranks; r++) {
        if (r == without) continue;
        if (results[r].status != EXIT_RANK) fail_msg("rank %d: status %d, %s", r, results[r].status, results[r].said);
        bool blames = strstr(results[r].said, "rank 1,") || strstr(results[r].said, "life of rank 1,") ||
                      strstr(results[r].said, "has ended the run");
        if (!blames) fail_msg("rank %d said: %s", r, results[r].said);
    }
    bool named = false;
    for (int r = 0; r < ranks; r++) named |= strstr(results[r].said, "rank 1") != NULL;
    assert_true(named);
}

UNIT_TEST(a_hanging_rank_ends_all_ranks) {
    const RankResult *results = watched(60, MAX_RANKS, hang);
    assert_rank_1_blamed(results, MAX_RANKS, -1);
    bool told = false;
    for (int r = 0; r < MAX_RANKS; r++) told |= strstr(results[r].said, "collective 1 for rank 1,") != NULL;
    assert_true(told);
}

static bool killed(CommPlace *place, RankResult *result) {
    (void)result;
    start(place);
    error_saved("runs/x", 20);
    error_saved("runs/x", 32);
    if (place->rank == 1) raise(SIGKILL);
    return wait_for_ever();
}

UNIT_TEST(a_killed_rank_ends_all_ranks) {
    const RankResult *results = watched(busy_timeout, 3, killed);
    assert_rank_1_blamed(results, 3, 1);
    assert_int_equal(results[1].status, 128 + SIGKILL);
    bool advised = false; // Only the first rank that notices the loss advises to resume.
    for (int r = 0; r < 3; r++)
        advised |= strstr(results[r].said, "rank 1, which hangs or is lost; nothing was saved after step 32: continue "
                                           "with --out runs/x --resume\n") != NULL;
    assert_true(advised);
}

static void take_long(void) {
    usleep(1500000);
}

// A rank that fails ends the other ranks at once with its exit code, even if its own exit takes long. Only the other
// ranks print that it has ended the run.
static bool failed(CommPlace *place, RankResult *result) {
    (void)result;
    if (place->rank == 1) atexit(take_long); // exit() runs it after the watchdog has published the exit code of rank 1
    start(place);
    if (place->rank == 1) exit(EXIT_DATA);
    return wait_for_ever();
}

UNIT_TEST(a_failed_rank_ends_all_ranks_with_its_exit_code) {
    const RankResult *results = watched(30, 3, failed);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(results[r].status, EXIT_DATA);
        assert_int_equal(strstr(results[r].said, "has ended the run") != NULL, r != 1);
    }
}

static bool shares;

static bool absent(CommPlace *place, RankResult *result) {
    (void)result;
    if (place->rank == 1) return true;
    Watchdog *w = watchdog_open(place, &timeout_s, counters);
    if (shares) watchdog_share(w, run_id, sizeof run_id);
    watchdog_begin(w, "the start");
    return wait_for_ever();
}

UNIT_TEST(a_rank_missing_at_the_start_is_named) {
    shares = true;
    const RankResult *results = watched(1, 2, absent);
    assert_int_equal(results[0].status, EXIT_RANK);
    assert_non_null(strstr(results[0].said, "in the start for rank 1"));
    // Before the ranks share their progress, the error names the launcher instead of the missing rank.
    shares = false;
    results = watched(1, 2, absent);
    assert_int_equal(results[0].status, EXIT_RANK);
    assert_non_null(strstr(results[0].said, "in the start for the other ranks (the test), of which one"));
}

// Two runs exist at the same time. One run loses a rank, and the other run must continue.
static bool other_run(CommPlace *place, RankResult *result) {
    if (place->rank >= 2) run_id[0] = 'T';
    place->rank %= 2;
    place->ranks = place->local_ranks = 2;
    Watchdog *w = watchdog_open(place, &timeout_s, counters);
    watchdog_share(w, run_id, sizeof run_id);
    await_all(place, 2);
    if (run_id[0] == 'T' && place->rank == 1) exit(EXIT_DATA);
    if (run_id[0] == 'T') return wait_for_ever();
    usleep(1500000);
    watchdog_close(w);
    (void)result;
    return true;
}

UNIT_TEST(another_run_is_not_disturbed) {
    const RankResult *results = watched(30, 4, other_run);
    for (int r = 0; r < 4; r++) assert_int_equal(results[r].status, r < 2 ? 0 : EXIT_DATA);
    assert_true(results[0].ok && results[1].ok);
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
