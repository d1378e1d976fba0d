// Tests of how processes without MPI find and connect to each other (coat/comm/rendezvous.h). The ranks are forked
// processes of this machine.
#include <arpa/inet.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>

#include "coat/base/clock.h"
#include "coat/base/signals.h"
#include "coat/comm/rendezvous.h"
#include "comm_fixture.h"

static Error err; // error of the last failed call

static Rendezvous address;
static int timeout_s;

static struct sockaddr_in loopback(int port) {
    struct sockaddr_in a;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons((uint16_t)port);
    return a;
}

// Sets `address` to a TCP port of this machine that is currently free.
static void use_free_port(void) {
    struct sockaddr_in a = loopback(0);
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &size), 0);
    close(fd);
    memset(&address, 0, sizeof address);
    snprintf(address.host, sizeof address.host, "127.0.0.1");
    address.port = ntohs(a.sin_port);
    address.run = 1;
    timeout_s = 10;
}

// Connects to rank 0 and returns the socket. If rank 0 does not listen yet, retries for 10 seconds, then returns -1.
static int connect_to_rank_0(void) {
    struct sockaddr_in a = loopback(address.port);
    for (int i = 0; i < 500; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
        close(fd);
        usleep(20000);
    }
    return -1;
}

static bool share(CommPlace *place, RankResult *result) {
    snprintf(result->data, sizeof result->data, place->rank == 0 ? "the bytes of rank 0" : "own");
    return rendezvous_share(&address, place, result->data, sizeof result->data, timeout_s, &result->err);
}

static bool share_rank_0_late(CommPlace *place, RankResult *result) {
    if (place->rank == 0) usleep(500000);
    return share(place, result);
}

static void assert_shared(const RankResult *results, int ranks) {
    for (int r = 0; r < ranks; r++) {
        if (!results[r].ok) fail_msg("rank %d: %s", r, results[r].err.text);
        assert_string_equal(results[r].data, "the bytes of rank 0");
    }
}

UNIT_TEST(the_address_of_rank_0_is_found) {
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
    Rendezvous m;
    place.local_ranks = 2;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        clear_launchers();
        config_defaults(&config);
        snprintf(config.rendezvous, sizeof config.rendezvous, "%s", cases[i].flag);
        if (cases[i].address) setenv("MASTER_ADDR", cases[i].address, 1);
        if (cases[i].port) setenv("MASTER_PORT", cases[i].port, 1);
        if (!rendezvous_find(&config, &place, &m, &err)) fail_msg("%s: %s", cases[i].flag, err.text);
        assert_string_equal(m.host, cases[i].host);
        assert_int_equal(m.port, cases[i].expected);
    }
    // rendezvous_find() chooses a port other than MASTER_PORT, because torchrun itself uses MASTER_PORT.
    setenv("MASTER_ADDR", "head", 1);
    setenv("MASTER_PORT", "1234", 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    config.rendezvous[0] = '\0';
    assert_true(rendezvous_find(&config, &place, &m, &err));
    assert_int_equal(m.port, 1235);
    // Without --rendezvous, a run on one machine uses the loopback address. A run on several machines uses the first
    // machine in Slurm's node list.
    clear_launchers();
    place.local_ranks = 4;
    assert_true(rendezvous_find(&config, &place, &m, &err));
    assert_string_equal(m.host, "127.0.0.1");
    place.local_ranks = 2;
    setenv("SLURM_STEP_NODELIST", "node[03-07,9],other", 1);
    assert_true(rendezvous_find(&config, &place, &m, &err));
    assert_string_equal(m.host, "node03");
    setenv("SLURM_STEP_NODELIST", "alpha,beta", 1);
    assert_true(rendezvous_find(&config, &place, &m, &err));
    assert_string_equal(m.host, "alpha");
    clear_launchers();
    assert_false(rendezvous_find(&config, &place, &m, &err));
    assert_says(&err, "MASTER_ADDR&--rendezvous");
    snprintf(config.rendezvous, sizeof config.rendezvous, "node:http");
    assert_false(rendezvous_find(&config, &place, &m, &err));
    assert_says(&err, "'http'");
    snprintf(config.rendezvous, sizeof config.rendezvous, ":80");
    assert_false(rendezvous_find(&config, &place, &m, &err));
    assert_says(&err, "host is missing");
}

static uint64_t run_of(const char *launcher, const char *out) {
    Config config;
    CommPlace place = place_of(1, 4);
    Rendezvous r;
    config_defaults(&config);
    place.launcher = launcher;
    snprintf(config.out, sizeof config.out, "%s", out);
    if (!rendezvous_find(&config, &place, &r, &err)) fail_msg("%s", err.text);
    return r.run;
}

// Runs are distinguished by --out, by Slurm's job and step if srun started them, and by torchrun's run id.
UNIT_TEST(runs_are_distinguished_by_out_job_and_run_id) {
    clear_launchers();
    const uint64_t run = run_of("the flags", "runs/a");
    assert_int_equal(run_of("the flags", "runs/a"), run);
    assert_int_not_equal(run_of("the flags", "runs/b"), run);
    setenv("SLURM_JOB_ID", "17", 1);
    assert_int_equal(run_of("the flags", "runs/a"), run);
    const uint64_t job = run_of("srun", "runs/a");
    assert_int_not_equal(job, run);
    setenv("SLURM_STEP_ID", "1", 1);
    assert_int_not_equal(run_of("srun", "runs/a"), job);
    clear_launchers();
    setenv("TORCHELASTIC_RUN_ID", "x", 1);
    assert_int_not_equal(run_of("the environment", "runs/a"), run);
    clear_launchers();
}

UNIT_TEST(ranks_connect_and_exchange_data) {
    use_free_port();
    assert_shared(run_ranks(4, share), 4);
    assert_shared(run_ranks(3, share_rank_0_late), 3); // The port of the previous run can be used again immediately.
    address.port++;
    assert_shared(run_ranks(1, share), 1);
}

// Before rank 2 connects, it acts as three other programs that connect to rank 0: one sends HTTP, one too few bytes,
// one closes the connection.
static bool share_after_strangers(CommPlace *place, RankResult *result) {
    if (place->rank == 2) {
        static const char *const texts[] = {"GET / HTTP/1.1\r\nHost: somewhere\r\nAccept: */*\r\n\r\n", "COATrdv2", ""};
        for (int i = 0; i < 3; i++) {
            int fd = connect_to_rank_0();
            if (fd < 0 || send(fd, texts[i], strlen(texts[i]), MSG_NOSIGNAL) < 0) return false;
            if (i == 2) close(fd);
        }
    }
    return share(place, result);
}

UNIT_TEST(connections_of_other_programs_are_refused) {
    use_free_port();
    assert_shared(run_ranks(3, share_after_strangers), 3);
}

// Before rank 1 connects, it opens 12 connections that send nothing, which is more than there are ranks.
static bool share_after_silence(CommPlace *place, RankResult *result) {
    for (int i = 0; place->rank == 1 && i < 12; i++)
        if (connect_to_rank_0() < 0) return false;
    if (place->rank == 1) usleep(500000); // Waits until rank 0 has accepted the connections.
    return share(place, result);
}

UNIT_TEST(silent_connections_do_not_delay_a_rank) {
    use_free_port();
    const double begin = now_seconds();
    assert_shared(run_ranks(3, share_after_silence), 3);
    // Silent connections do not delay the ranks, although each may be silent for 5 s.
    assert_true(now_seconds() - begin < 4);
}

// Rank 0 refuses a process of another run, and continues to wait for rank 1 of its own run.
static bool share_in_two_runs(CommPlace *place, RankResult *result) {
    const bool other = place->rank == 2;
    place->ranks = 2;
    if (other) {
        place->rank = 1;
        address.run = 2;
    }
    if (place->rank == 1 && !other) usleep(1000000);
    return share(place, result);
}

UNIT_TEST(a_process_of_another_run_is_refused) {
    use_free_port();
    RankResult *results = run_ranks(3, share_in_two_runs);
    assert_shared(results, 2);
    assert_false(results[2].ok);
    assert_error(&results[2].err, EXIT_USER, "another run&--rendezvous HOST:PORT");
}

// Rank 1 is a process of another run, so rank 0 refuses it and waits for its own rank 1 until the timeout.
static bool share_with_other_run(CommPlace *place, RankResult *result) {
    if (place->rank == 1) address.run = 2;
    return share(place, result);
}

UNIT_TEST(a_missing_rank_is_reported_with_the_refused_processes) {
    use_free_port();
    timeout_s = 1;
    RankResult *results = run_ranks(2, share_with_other_run);
    assert_error(&results[0].err, EXIT_RANK, "rank 1; refused processes of another run (other job or --out): 1");
}

// Rank 1 connects, dies and is restarted. The connection of the new process replaces the old one.
static bool share_restarted(CommPlace *place, RankResult *result) {
    if (place->rank == 1) {
        pid_t first = fork();
        if (first == 0) {
            share(place, result);
            _exit(0);
        }
        usleep(700000);
        kill(first, SIGKILL);
        waitpid(first, NULL, 0);
    }
    if (place->rank == 2) usleep(1500000);
    return share(place, result);
}

UNIT_TEST(a_restarted_rank_replaces_its_old_connection) {
    use_free_port();
    assert_shared(run_ranks(3, share_restarted), 3);
}

static bool share_without_last(CommPlace *place, RankResult *result) {
    return place->rank == place->ranks - 1 || share(place, result);
}

UNIT_TEST(all_ranks_name_the_missing_ranks) {
    use_free_port();
    timeout_s = 1;
    RankResult *results = run_ranks(3, share_without_last);
    for (int r = 0; r < 2; r++) { // The error of rank 0 is sent to the other ranks.
        assert_false(results[r].ok);
        assert_error(&results[r].err, EXIT_RANK, "waited 1 s&did not connect: rank 2;");
    }
}

static bool share_without_rank_0(CommPlace *place, RankResult *result) {
    return place->rank == 0 || share(place, result);
}

UNIT_TEST(without_rank_0_the_other_ranks_end_with_an_error) {
    use_free_port();
    timeout_s = 1;
    RankResult *results = run_ranks(2, share_without_rank_0);
    assert_false(results[1].ok);
    assert_error(&results[1].err, EXIT_RANK, "could not connect within 1 s&127.0.0.1 port");
}

// Waits for a rank that never comes, until a child process sends SIGTERM.
static bool share_until_sigterm(CommPlace *place, RankResult *result) {
    const pid_t self = getpid();
    if (place->rank == 2) return true;
    signals_open();
    if (place->rank == 0 && fork() == 0) {
        usleep(300000);
        kill(self, SIGTERM);
        _exit(0);
    }
    return share(place, result);
}

static bool share_alone_until_sigterm(CommPlace *place, RankResult *result) {
    if (place->rank == 0) return true;
    signals_open();
    raise(SIGTERM);
    return share(place, result);
}

UNIT_TEST(sigterm_ends_the_wait) {
    use_free_port();
    timeout_s = 60;
    const double begin = now_seconds();
    RankResult *results = run_ranks(3, share_until_sigterm);
    for (int r = 0; r < 2; r++) { // Rank 1 receives the error of rank 0.
        assert_false(results[r].ok);
        assert_error(&results[r].err, EXIT_RANK, "rank 0: SIGTERM ended the wait");
    }
    results = run_ranks(2, share_alone_until_sigterm);
    assert_false(results[1].ok);
    assert_says(&results[1].err, "rank 1: SIGTERM ended the wait");
    assert_true(now_seconds() - begin < 20);
}

// Looks for rank 0 in a network namespace without a name server. Leaves `data` empty if it cannot create the namespace.
static bool share_without_name_server(CommPlace *place, RankResult *result) {
    if (place->rank == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return true;
    snprintf(address.host, sizeof address.host, "no-such-host.invalid");
    signals_open();
    raise(SIGTERM);
    return share(place, result);
}

UNIT_TEST(sigterm_ends_the_search_for_rank_0) {
    use_free_port();
    timeout_s = 60;
    RankResult *results = run_ranks(2, share_without_name_server);
    if (results[1].ok && !results[1].data[0]) skip();
    assert_false(results[1].ok);
    // If getaddrinfo() fails at once without a network, the host is not known, and there is no wait to end.
    if (results[1].err.code == EXIT_RANK)
        assert_says(&results[1].err, "rank 1: SIGTERM ended the wait");
    else
        assert_says(&results[1].err, "'no-such-host.invalid' is not known");
}

// Rank 1 receives a request to save while it waits for rank 0's answer, because rank 2 connects later.
static bool share_despite_sigusr1(CommPlace *place, RankResult *result) {
    const pid_t self = getpid();
    signals_open();
    if (place->rank == 1 && fork() == 0) {
        usleep(300000);
        kill(self, SIGUSR1);
        _exit(0);
    }
    if (place->rank == 2) usleep(800000);
    return share(place, result);
}

UNIT_TEST(a_request_to_save_does_not_end_the_wait) {
    use_free_port();
    assert_shared(run_ranks(3, share_despite_sigusr1), 3);
}

static bool share_another_number(CommPlace *place, RankResult *result) {
    if (place->rank == 1) place->ranks = 4;
    return share(place, result);
}

static bool share_twice_the_same(CommPlace *place, RankResult *result) {
    if (place->rank == 2) place->rank = 1;
    return share(place, result);
}

UNIT_TEST(processes_with_contradictory_ranks_are_refused) {
    use_free_port();
    RankResult *results = run_ranks(2, share_another_number);
    for (int r = 0; r < 2; r++) {
        assert_false(results[r].ok);
        assert_error(&results[r].err, EXIT_USER, "rank 1 was started as one of 4 processes, rank 0 as one of 2");
    }
    results = run_ranks(4, share_twice_the_same);
    assert_false(results[0].ok);
    assert_error(&results[0].err, EXIT_USER, "two processes are rank 1");
    assert_false(results[1].ok || results[2].ok || results[3].ok);
}

// Returns the address at which rank 0 listens if given this host name, as text, or "nowhere" if rank 0 fails.
// local_ranks: number of ranks on this machine; 0: unknown.
static const char *listens_at(const char *host, int local_ranks) {
    const char *text = formatted("nowhere");
    snprintf(address.host, sizeof address.host, "%s", host);
    pid_t rank_0 = fork();
    if (rank_0 == 0) {
        CommPlace place = place_of(0, 2);
        char data[8] = "";
        place.local_ranks = local_ranks;
        if (!rendezvous_share(&address, &place, data, sizeof data, 2, &err)) write_text(path_of("error"), err.text);
        _exit(0);
    }
    const double until = now_seconds() + 2;
    const char *wanted = formatted(":%04X ", (unsigned)address.port);
    while (strcmp(text, "nowhere") == 0 && now_seconds() < until && waitpid(rank_0, NULL, WNOHANG) == 0) {
        char line[512];
        FILE *table = fopen("/proc/net/tcp", "r");
        while (table && fgets(line, sizeof line, table)) {
            // In /proc/net/tcp, state 0A means that a socket is listening.
            char *at = strstr(line, wanted), *state = at ? strstr(at, " 0A ") : NULL;
            if (!state || at > state) continue;
            struct in_addr in = {(in_addr_t)strtoul(strchr(line, ':') + 1, NULL, 16)};
            text = formatted("%s", inet_ntoa(in));
        }
        if (table) fclose(table);
        usleep(10000);
    }
    kill(rank_0, SIGKILL);
    waitpid(rank_0, NULL, 0);
    return text;
}

UNIT_TEST(rank_0_listens_only_at_the_named_address) {
    use_free_port();
    assert_string_equal(listens_at("127.0.0.1", 2), "127.0.0.1");
    assert_string_equal(listens_at("127.0.0.1", 0), "127.0.0.1"); // a loopback address is used as given
    assert_string_equal(listens_at("127.0.0.5", 1), "127.0.0.5");
    assert_string_equal(listens_at("0.0.0.0", 1), "0.0.0.0");
    // If rank 0's address belongs to another machine, rank 0 fails. It does not listen on all interfaces instead.
    assert_string_equal(listens_at("192.0.2.1", 1), "nowhere");
    assert_non_null(strstr(contents(path_of("error")), "an address of rank 0's machine"));
}

UNIT_TEST(a_port_in_use_is_an_error) {
    use_free_port();
    struct sockaddr_in a = loopback(address.port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 1), 0);
    CommPlace place = place_of(0, 2);
    char data[8] = "";
    assert_false(rendezvous_share(&address, &place, data, sizeof data, 1, &err));
    assert_error(&err, EXIT_USER, "cannot listen at 127.0.0.1 port&MASTER_PORT");
    close(fd);
}

UNIT_TEST(an_unknown_host_is_an_error) {
    use_free_port();
    snprintf(address.host, sizeof address.host, "no-such-host.invalid");
    CommPlace place = place_of(1, 2);
    char data[8] = "";
    assert_false(rendezvous_share(&address, &place, data, sizeof data, 1, &err));
    assert_error(&err, EXIT_USER, "'no-such-host.invalid' is not known");
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
