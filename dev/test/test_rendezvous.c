// Tests of how processes find each other without MPI, over TCP and through files. The ranks are forked processes of
// this machine.
#include <arpa/inet.h>
#include <sys/socket.h>

#include "coat/comm/rendezvous.h"
#include "comm_fixture.h"

static Meeting meeting;
static int patience;

// A meeting at a port of this machine that is free now.
static void meet_at_free_port(void) {
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    close(fd);
    memset(&meeting, 0, sizeof meeting);
    snprintf(meeting.host, sizeof meeting.host, "127.0.0.1");
    meeting.port = ntohs(address.sin_port);
    patience = 10;
}

static void meet_at_file(const char *name) {
    memset(&meeting, 0, sizeof meeting);
    snprintf(meeting.path, sizeof meeting.path, "%s", path_of(name));
    patience = 10;
}

static bool meet(CommPlace *place, RankResult *result) {
    snprintf(result->data, sizeof result->data, place->rank == 0 ? "the bytes of rank 0" : "own");
    return rendezvous(&meeting, place, result->data, sizeof result->data, patience, &result->err);
}

static bool meet_rank_0_late(CommPlace *place, RankResult *result) {
    if (place->rank == 0) usleep(500000);
    return meet(place, result);
}

static void assert_all_met(const RankResult *results, int ranks) {
    for (int r = 0; r < ranks; r++) {
        if (!results[r].ok) fail_msg("rank %d: %s", r, results[r].err.text);
        assert_string_equal(results[r].data, "the bytes of rank 0");
    }
}

static void test_where(void **state) {
    (void)state;
    static const struct {
        const char *flag, *address, *port, *host;
        int expected;
    } cases[] = {
        {"", "head", NULL, "head", RENDEZVOUS_PORT},
        {"", "head", "1234", "head", 1234},
        {"node:77", "head", "1234", "node", 77},
        {"node", "head", "1234", "node", 1234},
        {"10.0.0.1:5", NULL, NULL, "10.0.0.1", 5},
        {"[fe80::1]:5", NULL, NULL, "fe80::1", 5},
        {"fe80::1", NULL, NULL, "fe80::1", RENDEZVOUS_PORT},
        {"[fe80::1]", NULL, NULL, "fe80::1", RENDEZVOUS_PORT},
    };
    Config config;
    CommPlace place = place_of(1, 4);
    Meeting m;
    Error err;
    place.local_ranks = 2;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        clear_launchers();
        config_defaults(&config);
        snprintf(config.rendezvous, sizeof config.rendezvous, "%s", cases[i].flag);
        if (cases[i].address) setenv("MASTER_ADDR", cases[i].address, 1);
        if (cases[i].port) setenv("MASTER_PORT", cases[i].port, 1);
        if (!rendezvous_where(&config, &place, &m, &err)) fail_msg("%s: %s", cases[i].flag, err.text);
        assert_string_equal(m.host, cases[i].host);
        assert_int_equal(m.port, cases[i].expected);
    }
    // torchrun's own port is taken
    setenv("MASTER_ADDR", "head", 1);
    setenv("MASTER_PORT", "1234", 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    config.rendezvous[0] = '\0';
    assert_true(rendezvous_where(&config, &place, &m, &err));
    assert_int_equal(m.port, 1235);
    // one machine needs no address; several under Slurm have one
    clear_launchers();
    place.local_ranks = 4;
    assert_true(rendezvous_where(&config, &place, &m, &err));
    assert_string_equal(m.host, "127.0.0.1");
    place.local_ranks = 2;
    setenv("SLURM_STEP_NODELIST", "node[03-07,9],other", 1);
    assert_true(rendezvous_where(&config, &place, &m, &err));
    assert_string_equal(m.host, "node03");
    setenv("SLURM_STEP_NODELIST", "alpha,beta", 1);
    assert_true(rendezvous_where(&config, &place, &m, &err));
    assert_string_equal(m.host, "alpha");
    clear_launchers();
    assert_false(rendezvous_where(&config, &place, &m, &err));
    assert_says(&err, "MASTER_ADDR");
    assert_says(&err, "--rendezvous");
    snprintf(config.rendezvous, sizeof config.rendezvous, "/shared/meeting");
    assert_true(rendezvous_where(&config, &place, &m, &err));
    assert_string_equal(m.path, "/shared/meeting");
    snprintf(config.rendezvous, sizeof config.rendezvous, "node:http");
    assert_false(rendezvous_where(&config, &place, &m, &err));
    assert_says(&err, "'http'");
    snprintf(config.rendezvous, sizeof config.rendezvous, ":80");
    assert_false(rendezvous_where(&config, &place, &m, &err));
    assert_says(&err, "host is missing");
}

// --- TCP ------------------------------------------------------------------------------------------------------------

static void test_tcp(void **state) {
    (void)state;
    meet_at_free_port();
    assert_all_met(run_ranks(4, meet), 4);
    assert_all_met(run_ranks(3, meet_rank_0_late), 3); // the same port at once again
}

// Who connects and talks of something else is none of ours.
static bool meet_with_stranger(CommPlace *place, RankResult *result) {
    if (place->rank == 2) {
        struct sockaddr_in address;
        memset(&address, 0, sizeof address);
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address.sin_port = htons((uint16_t)meeting.port);
        int fd = -1, failed = -1;
        for (int i = 0; i < 100 && failed; i++) {
            usleep(20000);
            if (fd >= 0) close(fd);
            fd = socket(AF_INET, SOCK_STREAM, 0);
            failed = connect(fd, (struct sockaddr *)&address, sizeof address);
        }
        const char *words = "GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n";
        if (failed || send(fd, words, strlen(words), MSG_NOSIGNAL) < 0) return false;
        close(fd);
    }
    return meet(place, result);
}

static void test_tcp_stranger(void **state) {
    (void)state;
    meet_at_free_port();
    assert_all_met(run_ranks(3, meet_with_stranger), 3);
}

static bool meet_without_last(CommPlace *place, RankResult *result) {
    return place->rank == place->ranks - 1 || meet(place, result);
}

static void assert_missing(RankResult *results, const char *named) {
    assert_false(results[0].ok);
    assert_int_equal(results[0].err.code, EXIT_RANK);
    assert_says(&results[0].err, "waited 1 s");
    assert_says(&results[0].err, named);
    assert_false(results[1].ok);
    assert_int_equal(results[1].err.code, EXIT_RANK);
    assert_says(&results[1].err, "rank 0");
}

static void test_tcp_missing(void **state) {
    (void)state;
    meet_at_free_port();
    patience = 1;
    assert_missing(run_ranks(3, meet_without_last), "rank 2");
    RankResult *results = run_ranks(1, meet); // one rank of one is met at once
    assert_true(results[0].ok);
}

static bool meet_without_rank_0(CommPlace *place, RankResult *result) {
    return place->rank == 0 || meet(place, result);
}

static void test_tcp_nobody_listens(void **state) {
    (void)state;
    meet_at_free_port();
    patience = 1;
    RankResult *results = run_ranks(2, meet_without_rank_0);
    assert_false(results[1].ok);
    assert_int_equal(results[1].err.code, EXIT_RANK);
    assert_says(&results[1].err, "nobody listens");
    assert_says(&results[1].err, "127.0.0.1 port");
}

static bool meet_another_number(CommPlace *place, RankResult *result) {
    if (place->rank == 1) place->ranks = 4;
    return meet(place, result);
}

static bool meet_twice_the_same(CommPlace *place, RankResult *result) {
    if (place->rank == 2) place->rank = 1;
    return meet(place, result);
}

static void test_tcp_contradictions(void **state) {
    (void)state;
    meet_at_free_port();
    RankResult *results = run_ranks(2, meet_another_number);
    for (int r = 0; r < 2; r++) {
        assert_false(results[r].ok);
        assert_int_equal(results[r].err.code, EXIT_USER);
        assert_says(&results[r].err, "start all alike");
    }
    assert_says(&results[0].err, "one of 4");
    assert_says(&results[1].err, "one of 2");
    results = run_ranks(4, meet_twice_the_same);
    assert_false(results[0].ok);
    assert_int_equal(results[0].err.code, EXIT_USER);
    assert_says(&results[0].err, "two processes say that they are rank 1");
    assert_false(results[1].ok || results[2].ok || results[3].ok);
}

static void test_tcp_port_taken(void **state) {
    (void)state;
    meet_at_free_port();
    struct sockaddr_in address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)meeting.port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 1), 0);
    CommPlace place = place_of(0, 2);
    char data[8] = "";
    Error err;
    assert_false(rendezvous(&meeting, &place, data, sizeof data, 1, &err));
    assert_int_equal(err.code, EXIT_USER);
    assert_says(&err, "cannot listen on port");
    assert_says(&err, "MASTER_PORT");
    close(fd);
}

static void test_tcp_unknown_host(void **state) {
    (void)state;
    meet_at_free_port();
    snprintf(meeting.host, sizeof meeting.host, "no-such-host.invalid");
    CommPlace place = place_of(1, 2);
    char data[8] = "";
    Error err;
    assert_false(rendezvous(&meeting, &place, data, sizeof data, 1, &err));
    assert_int_equal(err.code, EXIT_USER);
    assert_says(&err, "'no-such-host.invalid' is not known");
}

// --- files -----------------------------------------------------------------------------------------------------------

static void assert_nothing_left(void) {
    char command[2 * TEST_PATH];
    snprintf(command, sizeof command, "ls '%s' | grep -q '^meeting'", test_folder);
    assert_int_not_equal(system(command), 0);
}

static void test_file(void **state) {
    (void)state;
    meet_at_file("meeting");
    assert_all_met(run_ranks(4, meet), 4);
    assert_nothing_left();
    assert_all_met(run_ranks(3, meet_rank_0_late), 3);
    assert_nothing_left();
}

// What a run that was killed has left: rank 1's note of then, and rank 0's, which nobody of now may take.
static void test_file_left_over(void **state) {
    (void)state;
    meet_at_file("meeting");
    patience = 1;
    run_ranks(3, meet_without_last);
    size_t size;
    char name[TEST_PATH];
    struct {
        char magic[8];
        uint32_t ranks, bytes;
        uint64_t number;
    } old = {{'C', 'O', 'A', 'T', 'n', 'o', 't', 'e'}, 3, 64, 12345};
    for (int r = 1; r < 3; r++) {
        snprintf(name, sizeof name, "%s.%d", meeting.path, r);
        write_file(name, &old, sizeof old);
    }
    char whole[sizeof old + 3 * 8 + 64] = "";
    memcpy(whole, &old, sizeof old);
    write_file(meeting.path, whole, sizeof whole);
    free(read_file(meeting.path, &size));
    patience = 10;
    assert_all_met(run_ranks(3, meet_rank_0_late), 3);
    assert_nothing_left();
}

static void test_file_missing(void **state) {
    (void)state;
    meet_at_file("meeting");
    patience = 1;
    assert_missing(run_ranks(3, meet_without_last), "rank 2");
    assert_nothing_left();
}

static void test_file_refused(void **state) {
    (void)state;
    CommPlace place = place_of(0, 2);
    char data[8] = "";
    Error err;
    meet_at_file("precious");
    write_text(meeting.path, "somebody's own file");
    assert_false(rendezvous(&meeting, &place, data, sizeof data, 1, &err));
    assert_int_equal(err.code, EXIT_USER);
    assert_says(&err, "something else");
    size_t size;
    char *text = read_file(meeting.path, &size);
    assert_int_equal(size, strlen("somebody's own file"));
    free(text);
    meet_at_file("no-folder/meeting");
    place.rank = 1;
    assert_false(rendezvous(&meeting, &place, data, sizeof data, 1, &err));
    assert_int_equal(err.code, EXIT_USER);
    assert_says(&err, "cannot be written");
}

// What has the name of a note, or of the file that becomes one: a link to a user's file, or a pipe without a writer.
static void test_file_hostile(void **state) {
    (void)state;
    char name[TEST_PATH], data[8] = "";
    Error err;
    size_t size;
    meet_at_file("meeting");
    write_text(path_of("precious"), "mine");
    snprintf(name, sizeof name, "%s.1.new%d", meeting.path, (int)getpid());
    assert_int_equal(symlink(path_of("precious"), name), 0);
    CommPlace place = place_of(1, 2);
    assert_false(rendezvous(&meeting, &place, data, sizeof data, 1, &err));
    assert_int_equal(err.code, EXIT_RANK);
    char *text = read_file(path_of("precious"), &size);
    assert_string_equal(text, "mine");
    free(text);
    snprintf(name, sizeof name, "%s.1", meeting.path);
    assert_int_equal(mkfifo(name, 0600), 0);
    alarm(20);
    place = place_of(0, 2);
    assert_false(rendezvous(&meeting, &place, data, sizeof data, 1, &err));
    assert_int_equal(err.code, EXIT_RANK);
    alarm(0);
    assert_int_equal(unlink(name), 0);
    assert_nothing_left();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_where),
        cmocka_unit_test(test_tcp),
        cmocka_unit_test(test_tcp_stranger),
        cmocka_unit_test(test_tcp_missing),
        cmocka_unit_test(test_tcp_nobody_listens),
        cmocka_unit_test(test_tcp_contradictions),
        cmocka_unit_test(test_tcp_port_taken),
        cmocka_unit_test(test_tcp_unknown_host),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_file_left_over),
        cmocka_unit_test(test_file_missing),
        cmocka_unit_test(test_file_refused),
        cmocka_unit_test(test_file_hostile),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
