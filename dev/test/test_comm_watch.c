// Tests of the watch that ends the ranks of a run when one of them is lost. The ranks are forked processes of this
// machine, and count their collectives by themselves.
#include "coat/comm/comm_watch.h"
#include "comm_fixture.h"

static volatile uint32_t counters[2];
static volatile int watch_patience;
static char watch_id[32];
static const int busy_patience = 4; // s: on a busy machine a rank may show no sign of life for more than one
static int *arrived;                // ranks that have opened their watch, in memory that they share

static bool wait_for_ever(void) {
    while (pause() == -1) continue;
    return false;
}

// Returns when `times` times as many have arrived as there are ranks.
static void meet(const CommPlace *place, int times) {
    __atomic_fetch_add(arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(arrived, __ATOMIC_ACQUIRE) < times * place->ranks) usleep(10000);
}

static CommWatch *start_watch(const CommPlace *place) {
    CommWatch *watch = watch_open(place, &watch_patience, watch_id, sizeof watch_id, counters);
    meet(place, 1);
    watch_meet(watch);
    return watch;
}

static RankResult *watched(int seconds, int ranks, RankFunction function) {
    snprintf(watch_id, sizeof watch_id, "test %d %d", (int)getpid(), rand());
    counters[0] = counters[1] = 0;
    watch_patience = seconds;
    if (!arrived)
        arrived = (int *)mmap(NULL, sizeof *arrived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(arrived != MAP_FAILED);
    *arrived = 0;
    return run_ranks(ranks, function);
}

static bool watch_work(CommPlace *place, RankResult *result) {
    (void)result;
    CommWatch *watch = start_watch(place);
    for (int i = 0; i < 50; i++) { // longer than the patience, but every collective is short
        counters[0]++;
        usleep(100000);
        counters[1]++;
    }
    watch_begin(watch, "the end");
    watch_end(watch);
    watch_close(watch);
    return true;
}

static void test_watch_good(void **state) {
    (void)state;
    const RankResult *results = watched(busy_patience, 3, watch_work);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(results[r].status, 0);
        assert_true(results[r].ok);
        assert_string_equal(results[r].said, "");
    }
}

// All ranks but 1 begin a collective that it does not come to; their patience is short from when all have told so.
static bool watch_hang(CommPlace *place, RankResult *result) {
    (void)result;
    start_watch(place);
    if (place->rank != 1) counters[0]++;
    meet(place, 2);
    usleep(1000000);
    watch_patience = busy_patience;
    return wait_for_ever();
}

// Every rank ends with EXIT_RANK, and in what the ranks say is rank 1's name; nobody needs 20 seconds for it.
static void assert_rank_1_blamed(const RankResult *results, int ranks, int without) {
    for (int r = 0; r < ranks; r++) {
        if (r == without) continue;
        if (results[r].status != EXIT_RANK) fail_msg("rank %d: status %d, %s", r, results[r].status, results[r].said);
        bool blames = strstr(results[r].said, "rank 1,") || strstr(results[r].said, "rank 1 has") ||
                      strstr(results[r].said, "has ended the run");
        if (!blames) fail_msg("rank %d said: %s", r, results[r].said);
    }
    bool named = false;
    for (int r = 0; r < ranks; r++) named |= strstr(results[r].said, "rank 1") != NULL;
    assert_true(named);
}

static void test_watch_hang(void **state) {
    (void)state;
    const RankResult *results = watched(60, MAX_RANKS, watch_hang);
    assert_rank_1_blamed(results, MAX_RANKS, -1);
    bool told = false;
    for (int r = 0; r < MAX_RANKS; r++) told |= strstr(results[r].said, "collective 1 for rank 1,") != NULL;
    assert_true(told);
}

static bool watch_killed(CommPlace *place, RankResult *result) {
    (void)result;
    start_watch(place);
    error_saved("runs/x", 20);
    error_saved("runs/x", 32);
    if (place->rank == 1) raise(SIGKILL);
    return wait_for_ever();
}

static void test_watch_killed(void **state) {
    (void)state;
    const RankResult *results = watched(busy_patience, 3, watch_killed);
    assert_rank_1_blamed(results, 3, 1);
    assert_int_equal(results[1].status, 128 + SIGKILL);
    bool advised = false; // by the first that notices it, whom the other follows
    for (int r = 0; r < 3; r++)
        advised |=
            strstr(results[r].said,
                   "it was killed or stopped; nothing is saved since step 32: go on with --out runs/x --resume\n") !=
            NULL;
    assert_true(advised);
}

static void take_long(void) {
    usleep(1500000);
}

// A rank that ends with an error takes the others along, with its code, and at once. Where its own end takes long, it
// has nothing to say of theirs.
static bool watch_failed(CommPlace *place, RankResult *result) {
    (void)result;
    if (place->rank == 1) atexit(take_long); // after the watch has told the others
    start_watch(place);
    if (place->rank == 1) exit(EXIT_DATA);
    return wait_for_ever();
}

static void test_watch_failed(void **state) {
    (void)state;
    const RankResult *results = watched(30, 3, watch_failed);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(results[r].status, EXIT_DATA);
        assert_int_equal(strstr(results[r].said, "has ended the run") != NULL, r != 1);
    }
}

static bool watch_absent(CommPlace *place, RankResult *result) {
    (void)result;
    if (place->rank == 1) return true;
    CommWatch *watch = watch_open(place, &watch_patience, watch_id, sizeof watch_id, counters);
    watch_begin(watch, "the start");
    return wait_for_ever();
}

static void test_watch_absent(void **state) {
    (void)state;
    const RankResult *results = watched(1, 2, watch_absent);
    assert_int_equal(results[0].status, EXIT_RANK);
    assert_non_null(strstr(results[0].said, "in the start for rank 1"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_watch_good),   cmocka_unit_test(test_watch_hang),   cmocka_unit_test(test_watch_killed),
        cmocka_unit_test(test_watch_failed), cmocka_unit_test(test_watch_absent),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
