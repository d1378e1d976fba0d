#include "rendezvous.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/signals.h"
#include "comm_internal.h"

#define HELLO_S 5         // seconds within which a new connection must send a complete hello
#define OTHER_CLIENTS 128 // maximum number of open connections that have not sent a rank's hello

// --- address of rank 0, to which the other ranks connect ------------------------------------------------------------

static bool read_port(const char *text, const char *source, int *port, Error *err) {
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 1 || value > 65535)
        return error_set(err, EXIT_USER, "%s: port '%s' is not a number from 1 to 65535", source, text);
    *port = (int)value;
    return true;
}

// Parses an address of the form HOST, HOST:PORT, IPv6 address or [IPv6 address]:PORT.
static bool parse_address(const char *text, Rendezvous *r, Error *err) {
    const char *begin = text, *end = text + strlen(text), *colon = strrchr(text, ':');
    const char *bracket = *text == '[' ? strchr(text, ']') : NULL;
    if (bracket) {
        begin = text + 1;
        end = bracket;
        colon = bracket[1] == ':' ? bracket + 1 : NULL;
        if (!colon && bracket[1]) return error_set(err, EXIT_USER, "--rendezvous %s: must be HOST[:PORT]", text);
    } else if (colon && strchr(text, ':') == colon) {
        end = colon;
    } else {
        colon = NULL;
    }
    if (end == begin) return error_set(err, EXIT_USER, "--rendezvous %s: the host is missing", text);
    snprintf(r->host, sizeof r->host, "%.*s", (int)(end - begin), begin);
    return !colon || read_port(colon + 1, "--rendezvous", &r->port, err);
}

// Copies the first machine's name in a Slurm list such as node[03-07,9],other to `host`.
static void first_machine(const char *list, char *host, size_t size) {
    size_t prefix = strcspn(list, ",[");
    const char *number = list[prefix] == '[' ? list + prefix + 1 : "";
    snprintf(host, size, "%.*s%.*s", (int)prefix, list, (int)strcspn(number, "-,]"), number);
}

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

bool rendezvous_find(const Config *config, const CommPlace *place, Rendezvous *r, Error *err) {
    const char *host = variable("MASTER_ADDR"), *port = variable("MASTER_PORT"), *job = variable("SLURM_JOB_ID");
    const char *machines = variable("SLURM_STEP_NODELIST");
    const bool srun = strcmp(place->launcher, "srun") == 0;
    char id[2048];
    memset(r, 0, sizeof *r);
    r->port = RENDEZVOUS_PORT;
    snprintf(id, sizeof id, "%s|%s|%s|%s", variable("TORCHELASTIC_RUN_ID"), srun ? job : "",
             srun ? variable("SLURM_STEP_ID") : "", config->out);
    r->run = XXH3_64bits(id, strlen(id));
    if (*port) {
        if (!read_port(port, "MASTER_PORT", &r->port, err)) return false;
        // uses the port after MASTER_PORT, because torchrun itself listens on MASTER_PORT
        if (strcmp(variable("TORCHELASTIC_USE_AGENT_STORE"), "True") == 0 && r->port < 65535) r->port++;
    } else if (*job) {
        // the port depends on the Slurm job's number, because several jobs may share a machine
        r->port += (int)(strtol(job, NULL, 10) % 1000);
    }
    if (config->rendezvous[0]) return parse_address(config->rendezvous, r, err);
    if (*host)
        snprintf(r->host, sizeof r->host, "%s", host);
    else if (place->local_ranks == place->ranks)
        snprintf(r->host, sizeof r->host, "127.0.0.1");
    else if (*machines)
        first_machine(machines, r->host, sizeof r->host);
    else
        return error_set(err, EXIT_USER,
                         "%d processes (%s): the address of rank 0 is not known; set MASTER_ADDR to rank 0's machine, "
                         "or add --rendezvous HOST[:PORT]",
                         place->ranks, place->origin);
    return true;
}

// Message that a process sends to rank 0 after connecting ("hello"). The numbers, except `run`, are in network byte
// order.
typedef struct {
    char magic[8];
    uint64_t run;
    uint32_t rank, ranks, bytes, unused;
} Hello;

// Answer of rank 0 to a hello. If code is EXIT_DONE, rank 0's data follows the answer.
typedef struct {
    char magic[8];
    uint32_t code;   // exit code in network byte order
    char error[500]; // error message if code is not EXIT_DONE
} Answer;

static const char magic[8] = {'C', 'O', 'A', 'T', 'r', 'd', 'v', '2'};

// Opens a TCP socket whose connect() and send() time out after 5 s, accept() and recv() after receive_s seconds.
static int open_socket(int family, int receive_s) {
    const struct timeval send_limit = {5, 0}, receive_limit = {receive_s, 0};
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    if (fd < 0) return fd;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &send_limit, sizeof send_limit);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &receive_limit, sizeof receive_limit);
    return fd;
}

static bool send_all(int fd, const void *data, size_t bytes) {
    return send(fd, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes; // a new socket's send buffer has room for all bytes
}

// Receives `bytes` bytes. Fails if the connection is closed or times out, or if a signal has asked this process to end.
// Other signals interrupt recv(), because the socket has a timeout; receiving then continues.
static bool receive_all(int fd, void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = recv(fd, (char *)data + done, bytes - done, MSG_WAITALL);
        if (n > 0) done += (size_t)n;
        if (done < bytes && (n == 0 || (n < 0 && errno != EINTR) || signals_stop())) return false;
    }
    return true;
}

// True if a signal has asked this process to end; sets err then.
static bool is_stopped(const Rendezvous *r, const CommPlace *place, Error *err) {
    const int number = signals_stop();
    return number && !error_set(err, EXIT_RANK, "rank %d: %s ended the wait for the other processes at %s port %d",
                                place->rank, signals_name(number), r->host, r->port);
}

static bool send_answer(int fd, const Error *err) {
    Answer a;
    memset(&a, 0, sizeof a);
    memcpy(a.magic, magic, sizeof a.magic);
    a.code = htonl((uint32_t)err->code);
    snprintf(a.error, sizeof a.error, "%.*s", (int)sizeof a.error - 1, err->text);
    return send_all(fd, &a, sizeof a);
}

// Looks up rank 0's address. If the name server does not answer, retries until now_seconds() reaches `until`.
static bool resolve(const Rendezvous *r, const CommPlace *place, double until, struct addrinfo **found, Error *err) {
    struct addrinfo hints;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    char port[16];
    snprintf(port, sizeof port, "%d", r->port);
    int failed;
    while ((failed = getaddrinfo(r->host, port, &hints, found)) == EAI_AGAIN && now_seconds() < until) {
        if (is_stopped(r, place, err)) return false;
        usleep(200000);
    }
    if (!failed) return true;
    return error_set(err, EXIT_USER,
                     "rank 0's machine '%s' is not known (%s); set --rendezvous or MASTER_ADDR to its name or address",
                     r->host, gai_strerror(failed));
}

// --- rank 0: functions that accept the connections of the other ranks -----------------------------------------------

// Connection that rank 0 has accepted; fd is -1 if this slot of the table is free.
typedef struct {
    int fd;
    double until; // time (now_seconds()) at which the connection is closed if its hello is not complete
} Client;

typedef struct {
    const Rendezvous *r;
    const CommPlace *place;
    size_t bytes;
    Client *clients; // one slot per rank, followed by OTHER_CLIENTS slots for connections without a hello
    int strangers;   // number of refused processes that belong to other runs
} Server;

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
    return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
}

// Listens at the first address in the list that belongs to this machine. Debian's /etc/hosts maps the machine's name to
// the loopback address 127.0.1.1, which other machines cannot reach. Therefore, if the address is a loopback address
// and other machines may have ranks, listens at all IPv4 addresses instead. Returns the listening socket, or -1 with
// err.
static int listen_at(const Rendezvous *r, const CommPlace *place, const struct addrinfo *list, Error *err) {
    const bool local = place->local_ranks == place->ranks || strncmp(r->host, "127.", 4) == 0 ||
                       strcmp(r->host, "::1") == 0 || strcmp(r->host, "localhost") == 0;
    struct sockaddr_in all;
    memset(&all, 0, sizeof all);
    all.sin_family = AF_INET;
    all.sin_port = htons((uint16_t)r->port);
    int failed = 0;
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        const bool everywhere = is_loopback(a->ai_addr) && !local;
        const struct sockaddr *address = everywhere ? (const struct sockaddr *)&all : a->ai_addr;
        const int fd = open_socket(address->sa_family, 1);
        if (fd >= 0 && bind(fd, address, everywhere ? sizeof all : a->ai_addrlen) == 0 && listen(fd, 1024) == 0)
            return fd;
        if (failed != EADDRINUSE) failed = errno;
        if (fd >= 0) close(fd);
    }
    error_set(err, EXIT_USER,
              "rank 0 cannot listen at %s port %d (%s); set %s with MASTER_%s or --rendezvous HOST:PORT", r->host,
              r->port, strerror(failed), failed == EADDRNOTAVAIL ? "an address of rank 0's machine" : "another port",
              failed == EADDRNOTAVAIL ? "ADDR" : "PORT");
    return -1;
}

static void drop(Client *c) {
    close(c->fd);
    c->fd = -1;
}

static bool is_open(const Client *c) {
    char byte;
    const ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n > 0 || (n < 0 && errno == EAGAIN);
}

// Reads the hello of a connection and assigns the connection to the rank that the hello names. A restarted rank's
// connection replaces the rank's dead connection. Closes the connection if another program, or a process of another
// run, opened the connection. Fails if two processes have the same rank or disagree about the number of ranks.
static bool admit(Server *s, Client *c, Error *err) {
    Hello h;
    Error refused;
    const int ranks = s->place->ranks;
    if (recv(c->fd, &h, sizeof h, MSG_DONTWAIT) != (ssize_t)sizeof h || memcmp(h.magic, magic, sizeof magic) != 0) {
        drop(c);
        return true;
    }
    const int rank = (int)ntohl(h.rank);
    if (h.run != s->r->run) {
        error_set(&refused, EXIT_USER,
                  "rank 0 at %s port %d belongs to another run, whose job or --out differs; start all processes with "
                  "the same --out, or set another port with --rendezvous HOST:PORT",
                  s->r->host, s->r->port);
        send_answer(c->fd, &refused);
        s->strangers++;
        drop(c);
        return true;
    }
    bool ok = true;
    if (ntohl(h.ranks) != (uint32_t)ranks || ntohl(h.bytes) != s->bytes || rank < 1 || rank >= ranks)
        ok = error_set(err, EXIT_USER,
                       "rank %d was started as one of %u processes, rank 0 as one of %d (%s); start all processes with "
                       "the same number of processes",
                       rank, ntohl(h.ranks), ranks, s->place->origin);
    else if (s->clients[rank].fd >= 0 && is_open(&s->clients[rank]))
        ok = error_set(err, EXIT_USER, "two processes are rank %d; give each its own rank", rank);
    if (!ok) {
        send_answer(c->fd, err);
        return false;
    }
    if (s->clients[rank].fd >= 0) drop(&s->clients[rank]);
    s->clients[rank] = *c;
    c->fd = -1;
    return true;
}

// True if at least one rank is not connected; err then reports a timeout and names the ranks that are not connected.
static bool not_connected(const Server *s, int timeout, Error *err) {
    char names[128] = "", refused[96] = "";
    int missing = 0;
    for (int rank = 1; rank < s->place->ranks; rank++) {
        if (s->clients[rank].fd >= 0) continue;
        comm_list_rank(names, sizeof names, rank);
        missing++;
    }
    if (!missing) return false;
    if (s->strangers)
        snprintf(refused, sizeof refused, "; refused processes of another run (other job or --out): %d", s->strangers);
    error_set(err, EXIT_RANK,
              "waited %d s at %s port %d for %d of %d processes (%s), which did not connect: rank %s%s; start "
              "the missing processes, or use --world-size 1 to run one process",
              timeout, s->r->host, s->r->port, missing, s->place->ranks, s->place->origin, names, refused);
    return true;
}

// Accepts connections and reads their hellos as they arrive, until all ranks are connected. Fails after `timeout`
// seconds or if a signal has asked this process to end. p: memory for polling all slots and the listener.
static bool accept_ranks(Server *s, int listener, struct pollfd *p, int timeout, Error *err) {
    const int ranks = s->place->ranks, capacity = ranks + OTHER_CLIENTS;
    const double until = now_seconds() + timeout;
    while (not_connected(s, timeout, err)) {
        const double now = now_seconds();
        Client *unused = NULL;
        if (now > until || is_stopped(s->r, s->place, err)) return false;
        for (int i = 0; i < capacity; i++) {
            Client *c = &s->clients[i];
            if (i >= ranks && c->fd >= 0 && now > c->until) drop(c);
            if (i >= ranks && c->fd < 0) unused = c;
            p[i].fd = c->fd;
            p[i].events = POLLIN;
        }
        p[capacity].fd = unused ? listener : -1;
        p[capacity].events = POLLIN;
        if (poll(p, (nfds_t)capacity + 1, 200) <= 0) continue;
        for (int i = 0; i < capacity; i++) {
            if (!p[i].revents) continue;
            if (i < ranks) // a connected rank has closed its connection or sent more than its hello
                drop(&s->clients[i]);
            else if (!admit(s, &s->clients[i], err))
                return false;
        }
        const int fd = p[capacity].revents ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1, hello = sizeof(Hello);
        if (fd < 0) continue;
        setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &hello, sizeof hello); // poll() then waits for a complete hello
        unused->fd = fd;
        unused->until = now + HELLO_S;
    }
    return true;
}

// Accepts the connections of all other ranks, and sends them data[bytes] or, on failure, err.
static bool serve(const Rendezvous *r, const CommPlace *place, const void *data, size_t bytes, int timeout,
                  const struct addrinfo *list, Error *err) {
    const int listener = listen_at(r, place, list, err), capacity = place->ranks + OTHER_CLIENTS;
    if (listener < 0) return false;
    Client *clients = (Client *)xcalloc((size_t)capacity, sizeof *clients);
    for (int i = 0; i < capacity; i++) clients[i].fd = -1;
    struct pollfd *polled = (struct pollfd *)xcalloc((size_t)capacity + 1, sizeof *polled);
    Server s = {r, place, bytes, clients, 0};
    const bool ok = accept_ranks(&s, listener, polled, timeout, err);
    if (ok) error_set(err, EXIT_DONE, "%s", "");
    for (int i = 0; i < capacity; i++) {
        if (clients[i].fd < 0) continue;
        // If a rank is lost while rank 0 answers, the next collective detects the loss.
        if (i < place->ranks && send_answer(clients[i].fd, err) && ok) send_all(clients[i].fd, data, bytes);
        drop(&clients[i]);
    }
    free(polled);
    free(clients);
    close(listener);
    return ok;
}

// --- ranks other than 0: connection to rank 0 ------------------------------------------------------------------------

// Connects to rank 0 and receives its data. Retries for `timeout` seconds, because rank 0 may start later.
static bool join(const Rendezvous *r, const CommPlace *place, void *data, size_t bytes, int timeout,
                 const struct addrinfo *list, Error *err) {
    const double until = now_seconds() + timeout;
    const struct addrinfo *a = list;
    // Waits 5 seconds longer than rank 0 waits for all ranks, so that this rank receives rank 0's error.
    int fd = open_socket(a->ai_family, timeout + 5);
    while (fd < 0 || connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
        if (fd >= 0) close(fd);
        if (is_stopped(r, place, err)) return false;
        if (now_seconds() > until)
            return error_set(err, EXIT_RANK,
                             "rank %d could not connect within %d s to rank 0 at %s port %d; check that rank 0 runs "
                             "and that this machine can connect to it",
                             place->rank, timeout, r->host, r->port);
        a = a->ai_next ? a->ai_next : list;
        if (a == list) usleep(50000);
        fd = open_socket(a->ai_family, timeout + 5);
    }
    Hello h = {{0}, r->run, htonl((uint32_t)place->rank), htonl((uint32_t)place->ranks), htonl((uint32_t)bytes), 0};
    memcpy(h.magic, magic, sizeof h.magic);
    Answer answer;
    const bool heard = send_all(fd, &h, sizeof h) && receive_all(fd, &answer, sizeof answer) &&
                       memcmp(answer.magic, magic, sizeof magic) == 0;
    const bool ok = heard && answer.code == 0 && receive_all(fd, data, bytes);
    close(fd);
    if (ok) return true;
    if (!heard && is_stopped(r, place, err)) return false;
    answer.error[sizeof answer.error - 1] = '\0';
    if (heard && answer.code != 0) return error_set(err, (ExitCode)ntohl(answer.code), "%s", answer.error);
    return error_set(err, EXIT_RANK,
                     "rank %d: rank 0 at %s port %d closed the connection or is another program; see rank 0's error",
                     place->rank, r->host, r->port);
}

bool rendezvous_share(const Rendezvous *r, const CommPlace *place, void *data, size_t bytes, int timeout, Error *err) {
    struct addrinfo *list;
    if (!resolve(r, place, now_seconds() + timeout, &list, err)) return false;
    const bool ok = place->rank == 0 ? serve(r, place, data, bytes, timeout, list, err)
                                     : join(r, place, data, bytes, timeout, list, err);
    freeaddrinfo(list);
    return ok;
}
