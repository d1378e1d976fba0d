// Where the processes meet, and the exchange over TCP: rank 0 listens, the others come with their number and get
// its bytes once all are there.
#include "rendezvous.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

// --- where ----------------------------------------------------------------------------------------------------------

static bool read_port(const char *text, const char *source, int *port, Error *err) {
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 1 || value > 65535)
        return error_set(err, EXIT_USER, "%s: port '%s' is not a number from 1 to 65535", source, text);
    *port = (int)value;
    return true;
}

// HOST, HOST:PORT, an IPv6 address, or [IPv6 address]:PORT
static bool parse_address(const char *text, Meeting *m, Error *err) {
    const char *begin = text, *end = text + strlen(text), *colon = strrchr(text, ':');
    const char *bracket = *text == '[' ? strchr(text, ']') : NULL;
    if (bracket) {
        begin = text + 1;
        end = bracket;
        colon = bracket[1] == ':' ? bracket + 1 : NULL;
        if (!colon && bracket[1]) return error_set(err, EXIT_USER, "--rendezvous %s: not HOST[:PORT]", text);
    } else if (colon && strchr(text, ':') == colon) {
        end = colon;
    } else {
        colon = NULL;
    }
    if (end == begin) return error_set(err, EXIT_USER, "--rendezvous %s: the host is missing", text);
    snprintf(m->host, sizeof m->host, "%.*s", (int)(end - begin), begin);
    return !colon || read_port(colon + 1, "--rendezvous", &m->port, err);
}

// The first machine of a list such as node[03-07,9],other
static void first_machine(const char *list, char *host, size_t size) {
    size_t prefix = strcspn(list, ",[");
    const char *number = list[prefix] == '[' ? list + prefix + 1 : "";
    snprintf(host, size, "%.*s%.*s", (int)prefix, list, (int)strcspn(number, "-,]"), number);
}

bool rendezvous_where(const Config *config, const CommPlace *place, Meeting *m, Error *err) {
    memset(m, 0, sizeof *m);
    m->port = RENDEZVOUS_PORT;
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT"), *machines = getenv("SLURM_STEP_NODELIST");
    if (strchr(config->rendezvous, '/')) {
        snprintf(m->path, sizeof m->path, "%s", config->rendezvous);
        return true;
    }
    if (port && *port) {
        if (!read_port(port, "MASTER_PORT", &m->port, err)) return false;
        // torchrun listens on that port itself and leaves the next one to its processes
        const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
        if (agent && strcmp(agent, "True") == 0 && m->port < 65535) m->port++;
    } else if (getenv("SLURM_JOB_ID")) {
        m->port += (int)(strtol(getenv("SLURM_JOB_ID"), NULL, 10) % 1000); // several jobs may share a machine
    }
    if (config->rendezvous[0]) return parse_address(config->rendezvous, m, err);
    if (host && *host)
        snprintf(m->host, sizeof m->host, "%s", host);
    else if (place->local_ranks == place->ranks)
        snprintf(m->host, sizeof m->host, "127.0.0.1");
    else if (machines && *machines)
        first_machine(machines, m->host, sizeof m->host);
    else
        return error_set(err, EXIT_USER,
                         "%d processes: where to find rank 0 is not known; set MASTER_ADDR or say --rendezvous "
                         "HOST[:PORT], its machine, or a file that all can write",
                         place->ranks);
    return true;
}

bool rendezvous(const Meeting *meeting, const CommPlace *place, void *data, size_t bytes, int patience, Error *err) {
    if (!meeting->host[0]) return rendezvous_file(meeting->path, place, data, bytes, patience, err);
    return rendezvous_tcp(meeting, place, data, bytes, patience, err);
}

// --- bytes over a socket, until a time ------------------------------------------------------------------------------

typedef enum { WELCOME, OTHER_RANKS, SAME_RANK } Answer;

// What a rank says when it comes, and what it hears, before the bytes; in network byte order.
typedef struct {
    char magic[8];
    uint32_t rank_or_answer, ranks, bytes;
} Greeting;
static const char magic[8] = {'C', 'O', 'A', 'T', 'm', 'e', 'e', 't'};

static bool ready(int fd, short events, double until) {
    struct pollfd p = {fd, events, 0};
    for (;;) {
        double left = until - now_seconds();
        int n = poll(&p, 1, left > 0 ? (int)(left * 1e3) + 1 : 0);
        if (n > 0) return true;
        if (n == 0 || errno != EINTR) return false;
    }
}

static bool send_all(int fd, const void *data, size_t bytes, double until) {
    for (size_t at = 0; at < bytes;) {
        if (!ready(fd, POLLOUT, until)) return false;
        ssize_t n = send(fd, (const char *)data + at, bytes - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
        if (n > 0) at += (size_t)n;
    }
    return true;
}

static bool receive_all(int fd, void *data, size_t bytes, double until) {
    for (size_t at = 0; at < bytes;) {
        if (!ready(fd, POLLIN, until)) return false;
        ssize_t n = recv(fd, (char *)data + at, bytes - at, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (n > 0) at += (size_t)n;
    }
    return true;
}

static bool send_greeting(int fd, uint32_t what, const CommPlace *place, size_t bytes, double until) {
    Greeting g;
    memcpy(g.magic, magic, sizeof g.magic);
    g.rank_or_answer = htonl(what);
    g.ranks = htonl((uint32_t)place->ranks);
    g.bytes = htonl((uint32_t)bytes);
    return send_all(fd, &g, sizeof g, until);
}

static bool receive_greeting(int fd, Greeting *g, double until) {
    if (!receive_all(fd, g, sizeof *g, until) || memcmp(g->magic, magic, sizeof magic) != 0) return false;
    g->rank_or_answer = ntohl(g->rank_or_answer);
    g->ranks = ntohl(g->ranks);
    g->bytes = ntohl(g->bytes);
    return true;
}

static bool resolve(const Meeting *m, double until, struct addrinfo **found, Error *err) {
    struct addrinfo hints;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    char port[16];
    snprintf(port, sizeof port, "%d", m->port);
    int failed;
    while ((failed = getaddrinfo(m->host, port, &hints, found)) == EAI_AGAIN && now_seconds() < until) usleep(200000);
    if (!failed) return true;
    return error_set(err, EXIT_USER, "rank 0's machine '%s' is not known (%s); see --rendezvous and MASTER_ADDR",
                     m->host, gai_strerror(failed));
}

// --- rank 0 ---------------------------------------------------------------------------------------------------------

// Listens on the address where it is of this machine alone, else on all of the machine's.
static int listen_at(const Meeting *m, const struct addrinfo *list, Error *err) {
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)list->ai_addr;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)list->ai_addr;
    bool loopback = list->ai_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)
                                                : ntohl(v4->sin_addr.s_addr) == INADDR_LOOPBACK;
    struct sockaddr_in any4;
    struct sockaddr_in6 any6;
    memset(&any4, 0, sizeof any4);
    memset(&any6, 0, sizeof any6);
    any4.sin_family = AF_INET;
    any6.sin6_family = AF_INET6;
    any4.sin_port = any6.sin6_port = htons((uint16_t)m->port);
    const struct sockaddr *address = loopback                      ? list->ai_addr
                                     : list->ai_family == AF_INET6 ? (const struct sockaddr *)&any6
                                                                   : (const struct sockaddr *)&any4;
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1, no = 0;
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (fd >= 0 && list->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    socklen_t size = list->ai_family == AF_INET6 ? sizeof any6 : sizeof any4;
    if (fd >= 0 && bind(fd, address, size) == 0 && listen(fd, 1024) == 0) return fd;
    error_set(err, EXIT_USER,
              "rank 0 cannot listen on port %d (%s); choose another with MASTER_PORT or --rendezvous "
              "%s:PORT",
              m->port, strerror(errno), m->host);
    if (fd >= 0) close(fd);
    return -1;
}

// Tells everyone who has come that it was in vain, so that each can say why.
static void refuse(int *fds, const CommPlace *place, int last, Answer answer) {
    double until = now_seconds() + 1;
    if (last >= 0) send_greeting(last, answer, place, 0, until);
    for (int r = 1; r < place->ranks; r++)
        if (fds[r] >= 0) send_greeting(fds[r], answer, place, 0, until);
}

// Takes whoever comes until all are there. What does not greet as a rank does is no rank of ours, and ignored.
static bool gather_ranks(int listener, int *fds, const CommPlace *place, size_t bytes, double until, Error *err) {
    for (int come = 1; come < place->ranks;) {
        if (!ready(listener, POLLIN, until)) return true;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) continue;
        Greeting g;
        double now = now_seconds(), hear = now + 5 < until ? now + 5 : until;
        if (!receive_greeting(fd, &g, hear)) {
            close(fd);
            continue;
        }
        int rank = (int)g.rank_or_answer;
        bool ranks_differ = g.ranks != (uint32_t)place->ranks || g.bytes != bytes || rank < 1 || rank >= place->ranks;
        if (ranks_differ || fds[rank] >= 0) {
            refuse(fds, place, fd, ranks_differ ? OTHER_RANKS : SAME_RANK);
            close(fd);
            if (ranks_differ)
                return error_set(err, EXIT_USER,
                                 "rank %d was started as one of %u processes, rank 0 as one of %d (by %s); start all "
                                 "alike",
                                 rank, g.ranks, place->ranks, place->launcher);
            return error_set(err, EXIT_USER, "two processes say that they are rank %d; give each its own", rank);
        }
        fds[rank] = fd;
        come++;
    }
    return true;
}

static bool all_have_come(const int *fds, const CommPlace *place, const char *where, int patience, Error *err) {
    char names[128] = "";
    int missing = 0;
    for (int r = 1; r < place->ranks; r++) {
        size_t used = strlen(names);
        if (fds[r] >= 0) continue;
        missing++;
        if (used < sizeof names - 16) snprintf(names + used, sizeof names - used, "%s%d", used ? ", " : "", r);
    }
    if (!missing) return true;
    return error_set(
        err, EXIT_RANK,
        "waited %d s at %s for %d of %d processes (%s), which did not come: rank %s%s; --world-size 1 runs "
        "this one alone",
        patience, where, missing, place->ranks, place->origin, names, strlen(names) >= sizeof names - 16 ? " ..." : "");
}

static bool host_meeting(const Meeting *m, const CommPlace *place, const void *data, size_t bytes, int patience,
                         struct addrinfo *list, Error *err) {
    double until = now_seconds() + patience;
    int listener = listen_at(m, list, err);
    if (listener < 0) return false;
    int *fds = (int *)xmalloc((size_t)place->ranks * sizeof *fds);
    for (int r = 0; r < place->ranks; r++) fds[r] = -1;
    char where[300];
    snprintf(where, sizeof where, "%s port %d", m->host, m->port);
    bool ok = gather_ranks(listener, fds, place, bytes, until, err) && all_have_come(fds, place, where, patience, err);
    for (int r = 1; r < place->ranks && ok; r++) {
        char done;
        ok = send_greeting(fds[r], WELCOME, place, bytes, until + 5) && send_all(fds[r], data, bytes, until + 5) &&
             receive_all(fds[r], &done, 1, until + 5);
        if (!ok) error_set(err, EXIT_RANK, "rank %d came to %s and was lost again", r, where);
    }
    for (int r = 1; r < place->ranks; r++)
        if (fds[r] >= 0) close(fds[r]);
    free(fds);
    close(listener);
    return ok;
}

// --- the other ranks -------------------------------------------------------------------------------------------------

static int connect_once(const struct addrinfo *list, double until) {
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), failed = 0;
        socklen_t size = sizeof failed;
        if (fd < 0) continue;
        bool under_way = connect(fd, a->ai_addr, a->ai_addrlen) == 0 || errno == EINPROGRESS;
        if (under_way && ready(fd, POLLOUT, until) && getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) == 0 &&
            failed == 0)
            return fd;
        close(fd);
    }
    return -1;
}

// Rank 0 may start later, and may have to hear others first.
static bool join_meeting(const Meeting *m, const CommPlace *place, void *data, size_t bytes, int patience,
                         const struct addrinfo *list, Error *err) {
    double until = now_seconds() + patience;
    int fd;
    while ((fd = connect_once(list, until)) < 0) {
        if (now_seconds() > until)
            return error_set(err, EXIT_RANK,
                             "rank %d waited %d s for rank 0 at %s port %d, where nobody listens; does it run, and may "
                             "this machine connect to that one?",
                             place->rank, patience, m->host, m->port);
        usleep(50000);
    }
    Greeting g;
    const char done = 1;
    // rank 0 waits for the others as long as this rank has waited for it, and a little
    bool heard = send_greeting(fd, (uint32_t)place->rank, place, bytes, until) &&
                 receive_greeting(fd, &g, now_seconds() + patience + 5);
    bool ok = heard && g.rank_or_answer == WELCOME && g.ranks == (uint32_t)place->ranks && g.bytes == bytes &&
              receive_all(fd, data, bytes, until + 5) && send_all(fd, &done, 1, until + 5);
    close(fd);
    if (ok) return true;
    if (heard && g.rank_or_answer == OTHER_RANKS)
        return error_set(err, EXIT_USER,
                         "this is rank %d of %d (by %s), rank 0 at %s port %d is one of %u processes and does not take "
                         "it; start all alike",
                         place->rank, place->ranks, place->launcher, m->host, m->port, g.ranks);
    if (heard && g.rank_or_answer == SAME_RANK)
        return error_set(err, EXIT_USER, "two processes say that they are the same rank; this is rank %d (by %s)",
                         place->rank, place->launcher);
    return error_set(err, EXIT_RANK,
                     "rank %d: rank 0 at %s port %d gave up, see what it says; or it is another program", place->rank,
                     m->host, m->port);
}

bool rendezvous_tcp(const Meeting *m, const CommPlace *place, void *data, size_t bytes, int patience, Error *err) {
    struct addrinfo *list;
    if (!resolve(m, now_seconds() + patience, &list, err)) return false;
    bool ok = place->rank == 0 ? host_meeting(m, place, data, bytes, patience, list, err)
                               : join_meeting(m, place, data, bytes, patience, list, err);
    freeaddrinfo(list);
    return ok;
}
