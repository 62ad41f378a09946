/* fl/distributed/meet.h - rendezvous: launcher environment, stores, sockets, authenticated connections */
#ifndef FL_DIST_IMPL_H_
#include "impl.h"
#endif
#ifndef FL_DIST_MEET_H
#define FL_DIST_MEET_H

#ifdef __cplusplus
extern "C" {
#endif

/* TCP sockets for implementations: non-blocking, with deadlines on fl_dist_now's clock; they return -1 or
   false after fl_fail. */

/* Listens at that address only; *port 0: any port, which is stored in *port. Returns the socket. */
FL_API int fl_dist_listen(const char *address, int *port);
/* Accepts a connection. Returns the socket. */
FL_API int fl_dist_accept(int listener, double deadline);
/* Connects, retrying until something listens there. Returns the socket. */
FL_API int fl_dist_connect(const char *address, int port, double deadline);
/* Sends or receives exactly n bytes. */
FL_API bool fl_dist_socket_io(int fd, bool write, void *bytes, size_t n, double deadline);
FL_API void fl_dist_socket_close(int fd); /* -1 is ignored */
/* The numeric address of an interface ("eth0"), host name or address. */
FL_API bool fl_dist_address_of(const char *name, char *out, size_t size);
/* Connects this rank to all others: fd[k] is the socket to rank k, -1 for this rank. Both ends of a
   connection must prove that they know place->secret; connections without a proof are closed, and failed ones
   are retried until the deadline. False after fl_fail, with all sockets closed. */
FL_API bool fl_dist_connect_ranks(const fl_dist_rendezvous *place, int *fd);

/* The rank of this process, and the rendezvous with rank 0: a folder, an address or a store. */
typedef struct fl__dist_world {
    int rank, size, local_rank, local_size;
    char source[32];  /* origin of the ranks: "arguments", "torchrun", ...; "" for one rank */
    char folder[512]; /* rendezvous folder, or "" */
    char host[256];   /* rank 0's host, or "" */
    int port;
    const fl_dist_store *store; /* the caller's store, or NULL */
} fl__dist_world;
/* Fills *w from the arguments (size 0, store NULL: not given) and the environment. False after fl_fail. */
FL_PRIVATE bool fl__dist_world_of(fl__dist_world *w, int rank, int size, const char *store);

/* Handshake: mutual proof of a shared key on a new connection. The accepting end sends a challenge, the other
   end a claim, and gets a verdict. The keyed hashes in claim and verdict cover both nonces, the ranks, the
   purpose and the direction, so that neither can be replayed or reflected. */
enum { FL__DIST_SECRET = 16, FL__DIST_PURPOSE = 64, FL__DIST_PENDING = 64 };
typedef struct fl__dist_challenge {
    uint32_t version, layout; /* layout: pointer size and byte order */
    uint8_t nonce[FL__DIST_SECRET];
} fl__dist_challenge;
typedef struct fl__dist_claim {
    uint32_t version, layout;
    int32_t rank, size; /* of the connecting end */
    uint8_t nonce[FL__DIST_SECRET];
    uint64_t proof;
} fl__dist_claim;
typedef struct fl__dist_reply {
    uint64_t proof;
    uint8_t secret[FL__DIST_SECRET]; /* the job's secret, sent on the control channel only */
    char reason[104];                   /* reason of a refusal; "" if accepted */
} fl__dist_reply;
/* A connection that has not proved the key yet; this is all the memory that it takes. */
typedef struct fl__dist_pending {
    int fd; /* -1: unused */
    double since;
    size_t n; /* bytes of the claim received so far */
    uint8_t nonce[FL__DIST_SECRET];
    fl__dist_claim claim;
} fl__dist_pending;
/* A listener for connections of ranks above `rank`. A new connection replaces the oldest pending one if all
   slots are taken; one that has not proved the key after `patience` seconds is closed. */
typedef struct fl__dist_listener {
    int listen_fd, rank, size, refused; /* listen_fd -1: closed */
    double patience;
    uint8_t key[FL__DIST_SECRET], secret[FL__DIST_SECRET];
    char purpose[FL__DIST_PURPOSE];
    char reason[104]; /* reason of the last refusal */
    fl__dist_pending pending[FL__DIST_PENDING];
} fl__dist_listener;
struct pollfd;
/* Random bytes of the operating system. False after fl_fail. */
FL_PRIVATE bool fl__dist_random(uint8_t bytes[FL__DIST_SECRET]);
/* The key derived from a token of any length. */
FL_PRIVATE void fl__dist_token_key(const char *token, uint8_t key[FL__DIST_SECRET]);
/* Keyed hash (SipHash-2-4). */
FL_PRIVATE uint64_t fl__dist_mac(const uint8_t key[FL__DIST_SECRET], const void *bytes, size_t n);
/* Initialises a listener for a listening socket, which it owns then; size: number of ranks of the job. */
FL_PRIVATE void fl__dist_listener_open(fl__dist_listener *d, int listen_fd, int rank, int size,
                                       const char *purpose, const uint8_t key[FL__DIST_SECRET],
                                       double patience);
FL_PRIVATE void fl__dist_listener_close(fl__dist_listener *d);
/* Fills 1 + FL__DIST_PENDING entries for poll. */
FL_PRIVATE void fl__dist_listener_poll(const fl__dist_listener *d, struct pollfd *f);
/* The next connection that has proved the key, to be answered by fl__dist_listener_answer, or NULL. Does not
   block. */
FL_PRIVATE fl__dist_pending *fl__dist_listener_next(fl__dist_listener *d, double now);
/* Answers a pending connection and returns its socket, or -1 if it is refused (reason is not "") or lost. */
FL_PRIVATE int fl__dist_listener_answer(fl__dist_listener *d, fl__dist_pending *c, const char *reason);
/* The connecting end: proves the key to rank `to`, checks that rank's proof, and receives the secret (NULL:
   none). challenge_deadline: for receiving the challenge. False after fl_fail; *refused: that rank has proved
   the key and refused the connection. */
FL_PRIVATE bool fl__dist_authenticate(int fd, const fl__dist_claim *claim, int to, const char *purpose,
                                      const uint8_t key[FL__DIST_SECRET], uint8_t *secret,
                                      double challenge_deadline, double deadline, bool *refused);
/* After a failed attempt: stores the reason if the handshake failed, which tells more than later connection
   errors, and waits a moment. False after the deadline, with the stored reason as error. */
FL_PRIVATE bool fl__dist_retry(bool proof, char reason[200], double deadline);

#ifdef __cplusplus
}
#endif
#endif /* FL_DIST_MEET_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DISTRIBUTED_MEET) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DIST_MEET_IMPL
#define FL_DIST_MEET_IMPL
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the environment ---- */

/* Reads an integer from the environment; *there: whether it is set. False after fl_fail. */
static bool fl__dist_env(const char *name, int *out, bool *there) {
    const char *text = getenv(name);
    char *end;
    *there = text && *text;
    if (!*there) return true;
    const long v = strtol(text, &end, 10);
    if (*end || v < 0 || v > 1 << 24)
        return fl_fail("fl_dist_init: %s is '%s', expected 0 to %d", name, text, 1 << 24);
    *out = (int)v;
    return true;
}

/* A launcher and its variables for rank, size, local rank and local size; it is used if `only` is set. */
typedef struct fl__dist_launcher {
    const char *source, *only, *rank, *size, *local_rank, *local_size;
} fl__dist_launcher;
static const fl__dist_launcher fl__dist_launchers[] = {
    {"torchrun", "RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"torchrun", "WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Slurm", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}};

static bool fl__dist_from_environment(fl__dist_world *w) {
    const int n = sizeof fl__dist_launchers / sizeof *fl__dist_launchers;
    for (int i = 0; i < n; i++) {
        const fl__dist_launcher *l = &fl__dist_launchers[i];
        const char *only = getenv(l->only);
        bool rank = false, size = false, local = false, locals = false;
        if (!only || !*only) continue;
        if (!fl__dist_env(l->rank, &w->rank, &rank) || !fl__dist_env(l->size, &w->size, &size) ||
            !fl__dist_env(l->local_rank, &w->local_rank, &local) ||
            !fl__dist_env(l->local_size, &w->local_size, &locals))
            return false;
        if (!rank || !size)
            return fl_fail("fl_dist_init: %s is set, but %s is not; expected both, as %s sets them",
                           rank ? l->rank : l->size, rank ? l->size : l->rank, l->source);
        if (!local) w->local_rank = w->rank;
        if (!locals || w->local_size < 1) w->local_size = w->size;
        snprintf(w->source, sizeof w->source, "%s", l->source);
        return true;
    }
    return true;
}

/* An id that distinguishes this job from others of the same user on this host, or NULL. */
static const char *fl__dist_job_id(const fl__dist_world *w) {
    static const char *const names[] = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"};
    if (!strcmp(w->source, "Slurm")) return getenv("SLURM_JOB_ID");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i])) return getenv(names[i]);
    return NULL;
}

/* The first host of "node[03-07,9],other". */
static void fl__dist_first_node(const char *list, char *out, size_t size) {
    const size_t head = strcspn(list, "[,"),
                 tail = list[head] == '[' ? strcspn(list + head + 1, "-,]") : 0;
    snprintf(out, size, "%.*s%.*s", (int)head, list, (int)tail, list + head + (list[head] == '['));
}

#ifndef _WIN32
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* "host:port", or a folder. */
static bool fl__dist_parse_store(fl__dist_world *w, const char *text) {
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    const long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (!*text || strlen(text) >= 256)
        return fl_fail("fl_dist_init: store '%s' is empty or too long, expected host:port or a folder of 1 "
                       "to 255 bytes", text);
    if (strchr(text, '/') || !colon || *end) return snprintf(w->folder, sizeof w->folder, "%s", text) > 0;
    if (port < 1 || port > 65535)
        return fl_fail("fl_dist_init: store '%s' has an invalid port, expected 1 to 65535", text);
    snprintf(w->host, sizeof w->host, "%.*s", (int)(colon - text), text);
    w->port = (int)port;
    return true;
}

/* Takes the address from MASTER_ADDR and MASTER_PORT. torchrun's own store listens at MASTER_PORT: uses the
   next. */
static bool fl__dist_master_address(fl__dist_world *w, const char *host) {
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    bool own = false, master = false;
    snprintf(w->host, sizeof w->host, "%s", host);
    if (!fl__dist_env("MASTER_PORT", &w->port, &master)) return false;
    if (master && agent && !strcmp(agent, "True")) w->port++;
    if (!fl__dist_env("FL_DIST_PORT", &w->port, &own)) return false;
    if (!master && !own)
        return fl_fail(
            "fl_dist_init: MASTER_ADDR is set, but MASTER_PORT is not; expected both");
    return (w->port > 0 && w->port < 65536) ||
           fl_fail("fl_dist_init: port is %d, expected 1 to 65535", w->port);
}

/* Default rendezvous without an address: on one host a folder per user and job, with Slurm the first node. */
static bool fl__dist_default_store(fl__dist_world *w) {
    const char *list = getenv("SLURM_STEP_NODELIST"), *job = fl__dist_job_id(w), *tmp = getenv("TMPDIR");
    char by_parent[32];
    if (w->local_size < w->size) {
        if (strcmp(w->source, "Slurm") || !list || !job)
            return fl_fail(
                "fl_dist_init: %d ranks on several hosts, but no address of rank 0: set MASTER_ADDR "
                "and MASTER_PORT, or FL_DIST_STORE",
                w->size);
        fl__dist_first_node(list, w->host, sizeof w->host);
        w->port = 20000 + atoi(job) % 20000;
        return true;
    }
    if (!job) { /* ranks started by one process */
        snprintf(by_parent, sizeof by_parent, "parent%ld", (long)getppid());
        job = by_parent;
    }
    const int n =
        snprintf(w->folder, sizeof w->folder, "%s/fl-%ld-", tmp && *tmp ? tmp : "/tmp", (long)getuid());
    for (int i = n; *job && i < (int)sizeof w->folder - 1; job++)
        w->folder[i++] = *job == '/' ? '_' : *job, w->folder[i] = '\0';
    return true;
}

FL_PRIVATE bool fl__dist_world_of(fl__dist_world *w, int rank, int size, const char *store) {
    const char *host = getenv("MASTER_ADDR"), *given = store ? store : getenv("FL_DIST_STORE");
    if (size) {
        w->rank = w->local_rank = rank, w->size = w->local_size = size;
        snprintf(w->source, sizeof w->source, "arguments");
    } else if (!fl__dist_from_environment(w)) {
        return false;
    }
    if (!w->size) w->size = w->local_size = 1;
    if (w->size < 1 || w->size > 1 << 16 || w->rank < 0 || w->rank >= w->size)
        return fl_fail("fl_dist_init: got rank %d, size %d, expected 0 <= rank < size <= %d", w->rank,
                       w->size, 1 << 16);
    if (w->size == 1 || w->store) return true;
    if (given && *given) return fl__dist_parse_store(w, given);
    return host && *host ? fl__dist_master_address(w, host) : fl__dist_default_store(w);
}

/* ---- sockets ---- */

static bool fl__dist_errno(const char *what, const char *host, int port) {
    return fl_fail("fl_dist: %s %s port %d: %s", what, host, port, strerror(errno));
}

static bool fl__dist_resolve(const char *host, int port, struct sockaddr_storage *out, socklen_t *n) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    const int reason = getaddrinfo(host, service, &hints, &found);
    if (reason || !found)
        return fl_fail("fl_dist: host '%s' cannot be resolved: %s", host, gai_strerror(reason));
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *n = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

FL_API bool fl_dist_address_of(const char *name, char *out, size_t size) {
    if (!fl_given(name, "fl_dist_address_of", "the name") ||
        !fl_given(out, "fl_dist_address_of", "the buffer")) return false;
    struct ifaddrs *list = NULL;
    struct sockaddr_storage address;
    socklen_t n = 0;
    bool found = false;
    if (!getifaddrs(&list))
        for (struct ifaddrs *i = list; i && !found; i = i->ifa_next)
            if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && !strcmp(i->ifa_name, name)) {
                memcpy(&address, i->ifa_addr, n = sizeof(struct sockaddr_in));
                found = true;
            }
    freeifaddrs(list);
    if (!found && !fl__dist_resolve(name, 0, &address, &n)) return false;
    return !getnameinfo((struct sockaddr *)&address, n, out, (socklen_t)size, NULL, 0, NI_NUMERICHOST) ||
           fl_fail("fl_dist: interface or host '%s' has no numeric address", name);
}

/* Makes the socket fd non-blocking and close-on-exec, without Nagle's delay; -1 is passed on. */
static int fl__dist_socket(int fd) {
    const int one = 1;
    if (fd < 0) return -1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

FL_API void fl_dist_socket_close(int fd) {
    if (fd >= 0) close(fd);
}

FL_API int fl_dist_listen(const char *address, int *port) {
    if (!fl_given(address, "fl_dist_listen", "the address") ||
        !fl_given(port, "fl_dist_listen", "the port")) return -1;
    struct sockaddr_storage at;
    socklen_t n;
    const int one = 1;
    if (!fl__dist_resolve(address, *port, &at, &n)) return -1;
    const int fd = fl__dist_socket(socket(at.ss_family, SOCK_STREAM, 0));
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, n) || listen(fd, 128) ||
        getsockname(fd, (struct sockaddr *)&at, &n)) {
        fl__dist_errno("listening at", address, *port);
        fl_dist_socket_close(fd);
        return -1;
    }
    *port = ntohs(at.ss_family == AF_INET ? ((struct sockaddr_in *)&at)->sin_port
                                          : ((struct sockaddr_in6 *)&at)->sin6_port);
    return fd;
}

/* Waits until fd is ready; false with errno at the deadline. */
static bool fl__dist_ready(int fd, short events, double deadline) {
    for (;;) {
        const double left = deadline - fl_dist_now();
        struct pollfd p = {fd, events, 0};
        if (left <= 0) return errno = ETIMEDOUT, false;
        const int n = poll(&p, 1, left > 1 ? 1000 : (int)(1000 * left) + 1);
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return false;
    }
}

FL_API int fl_dist_accept(int listener, double deadline) {
    int fd = -1;
    while (fl__dist_ready(listener, POLLIN, deadline) && (fd = accept(listener, NULL, NULL)) < 0)
        if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) break;
    if (fd < 0) return fl_fail("fl_dist: no connection was accepted: %s", strerror(errno)), -1;
    return fl__dist_socket(fd);
}

FL_API int fl_dist_connect(const char *address, int port, double deadline) {
    struct sockaddr_storage at;
    socklen_t n;
    if (!fl__dist_resolve(address, port, &at, &n)) return -1;
    for (int reason = ETIMEDOUT;;) {
        const int fd = fl__dist_socket(socket(at.ss_family, SOCK_STREAM, 0));
        socklen_t size = sizeof reason;
        if (fd < 0) return fl__dist_errno("creating a socket for", address, port), -1;
        if (connect(fd, (struct sockaddr *)&at, n) && errno != EINPROGRESS)
            reason = errno;
        else if (!fl__dist_ready(fd, POLLOUT, deadline) ||
                 getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &size))
            reason = errno;
        if (!reason) return fd;
        close(fd);
        if (fl_dist_now() > deadline) {
            errno = reason;
            return fl__dist_errno("connecting to", address, port), -1;
        }
        usleep(20000);
    }
}

FL_API bool fl_dist_socket_io(int fd, bool write, void *bytes, size_t n, double deadline) {
    char *at = bytes;
    while (n) {
        const ssize_t k = write ? send(fd, at, n, MSG_NOSIGNAL) : recv(fd, at, n, 0);
        if (k > 0)
            at += k, n -= (size_t)k;
        else if (k == 0)
            return fl_fail("fl_dist: the connection was closed by the other end");
        else if (errno != EAGAIN && errno != EINTR)
            return fl_fail("fl_dist: %s", strerror(errno));
        else if (errno == EAGAIN && !fl__dist_ready(fd, write ? POLLOUT : POLLIN, deadline))
            return fl_fail("fl_dist: %s", strerror(errno));
    }
    return true;
}

/* ---- handshake ---- */

enum { FL__DIST_VERSION = 2 };

static uint32_t fl__dist_layout(void) {
    const uint32_t order = 0x01020304;
    uint8_t first;
    memcpy(&first, &order, 1);
    return (uint32_t)(first * 0x10000 + sizeof(void *));
}

FL_PRIVATE bool fl__dist_random(uint8_t bytes[FL__DIST_SECRET]) {
    const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    const bool ok = fd >= 0 && read(fd, bytes, FL__DIST_SECRET) == FL__DIST_SECRET;
    if (fd >= 0) close(fd);
    return ok || fl_fail("fl_dist_init: /dev/urandom: %s", strerror(errno));
}

static uint64_t fl__dist_rotate(uint64_t x, int by) {
    return x << by | x >> (64 - by);
}

static void fl__dist_sip_round(uint64_t v[4]) {
    v[0] += v[1], v[1] = fl__dist_rotate(v[1], 13) ^ v[0], v[0] = fl__dist_rotate(v[0], 32);
    v[2] += v[3], v[3] = fl__dist_rotate(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = fl__dist_rotate(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = fl__dist_rotate(v[1], 17) ^ v[2], v[2] = fl__dist_rotate(v[2], 32);
}

/* SipHash-2-4, a keyed hash for short messages (Aumasson and Bernstein, 2012). */
FL_PRIVATE uint64_t fl__dist_mac(const uint8_t key[FL__DIST_SECRET], const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    uint64_t k[2] = {0, 0}, type;
    for (int i = 0; i < FL__DIST_SECRET; i++) k[i / 8] |= (uint64_t)key[i] << 8 * (i % 8);
    uint64_t v[4] = {k[0] ^ 0x736f6d6570736575, k[1] ^ 0x646f72616e646f6d, k[0] ^ 0x6c7967656e657261,
                     k[1] ^ 0x7465646279746573};
    for (size_t at = 0; at <= n; at += 8) {
        type = n - at < 8 ? (uint64_t)(n & 255) << 56 : 0; /* the last word ends with the length */
        for (size_t i = 0; i < 8 && at + i < n; i++) type |= (uint64_t)p[at + i] << 8 * i;
        v[3] ^= type;
        for (int i = 0; i < 2; i++) fl__dist_sip_round(v);
        v[0] ^= type;
    }
    v[2] ^= 255;
    for (int i = 0; i < 4; i++) fl__dist_sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

FL_PRIVATE void fl__dist_token_key(const char *token, uint8_t key[FL__DIST_SECRET]) {
    static const uint8_t halves[2][FL__DIST_SECRET] = {"fl_dist token 0", "fl_dist token 1"};
    for (int i = 0; i < FL__DIST_SECRET; i++)
        key[i] = (uint8_t)(fl__dist_mac(halves[i / 8], token, strlen(token)) >> 8 * (i % 8));
}

/* The keyed hash of a claim (verdict NULL), or of a verdict on it. */
static uint64_t fl__dist_proof(const uint8_t key[FL__DIST_SECRET], const char *purpose, int to,
                               const uint8_t challenge[FL__DIST_SECRET], const fl__dist_claim *claim,
                               const fl__dist_reply *verdict) {
    struct {
        char direction[8], purpose[FL__DIST_PURPOSE];
        int32_t from, to, size, unused;
        uint8_t challenge[FL__DIST_SECRET], claimed[FL__DIST_SECRET], secret[FL__DIST_SECRET];
        char reason[sizeof verdict->reason];
    } all;
    memset(&all, 0, sizeof all);
    snprintf(all.direction, sizeof all.direction, "%s", verdict ? "verdict" : "claim");
    snprintf(all.purpose, sizeof all.purpose, "%s", purpose);
    all.from = claim->rank, all.to = to, all.size = claim->size;
    memcpy(all.challenge, challenge, sizeof all.challenge);
    memcpy(all.claimed, claim->nonce, sizeof all.claimed);
    if (verdict) {
        memcpy(all.secret, verdict->secret, sizeof all.secret);
        memcpy(all.reason, verdict->reason, sizeof all.reason);
    }
    return fl__dist_mac(key, &all, sizeof all);
}

FL_PRIVATE void fl__dist_listener_open(fl__dist_listener *d, int listen_fd, int rank, int size,
                                       const char *purpose, const uint8_t key[FL__DIST_SECRET],
                                       double patience) {
    memset(d, 0, sizeof *d);
    d->listen_fd = listen_fd, d->rank = rank, d->size = size, d->patience = patience;
    snprintf(d->purpose, sizeof d->purpose, "%s", purpose);
    memcpy(d->key, key, sizeof d->key);
    for (int i = 0; i < FL__DIST_PENDING; i++) d->pending[i].fd = -1;
}

static void fl__dist_drop_pending(fl__dist_pending *c) {
    fl_dist_socket_close(c->fd);
    c->fd = -1;
}

FL_PRIVATE void fl__dist_listener_close(fl__dist_listener *d) {
    fl_dist_socket_close(d->listen_fd);
    d->listen_fd = -1;
    for (int i = 0; i < FL__DIST_PENDING; i++) fl__dist_drop_pending(&d->pending[i]);
}

FL_PRIVATE void fl__dist_listener_poll(const fl__dist_listener *d, struct pollfd *f) {
    f[0] = (struct pollfd){d->listen_fd, POLLIN, 0};
    for (int i = 0; i < FL__DIST_PENDING; i++) f[1 + i] = (struct pollfd){d->pending[i].fd, POLLIN, 0};
}

/* Accepts the next connection and sends it a challenge. False if the listen queue is empty. */
static bool fl__dist_accept_pending(fl__dist_listener *d, double now) {
    fl__dist_challenge g = {FL__DIST_VERSION, fl__dist_layout(), {0}};
    const int fd = d->listen_fd < 0 ? -1 : fl__dist_socket(accept(d->listen_fd, NULL, NULL));
    if (fd < 0) return d->listen_fd >= 0 && (errno == EINTR || errno == ECONNABORTED);
    fl__dist_pending *c = d->pending;
    for (int i = 1; i < FL__DIST_PENDING && c->fd >= 0; i++)
        if (d->pending[i].fd < 0 || d->pending[i].since < c->since) c = &d->pending[i];
    fl__dist_drop_pending(c);
    *c = (fl__dist_pending){.fd = fd, .since = now};
    const bool random = fl__dist_random(c->nonce);
    memcpy(g.nonce, c->nonce, sizeof g.nonce);
    if (!random || send(fd, &g, sizeof g, MSG_NOSIGNAL) != (ssize_t)sizeof g) fl__dist_drop_pending(c);
    fl_error_clear();
    return true;
}

/* Sends the verdict. A peer that has not proved the key gets no hash, with which it could test guesses of the
   token. */
static int fl__dist_send_reply(fl__dist_listener *d, fl__dist_pending *c, const char *reason, bool proved) {
    enum { LINES = 8 }; /* unauthenticated peers must not fill the log */
    fl__dist_reply v = {.proof = 0};
    const int fd = c->fd;
    snprintf(v.reason, sizeof v.reason, "%s", reason);
    if (!*reason) memcpy(v.secret, d->secret, sizeof v.secret);
    if (proved) v.proof = fl__dist_proof(d->key, d->purpose, d->rank, c->nonce, &c->claim, &v);
    const bool sent = send(fd, &v, sizeof v, MSG_NOSIGNAL) == (ssize_t)sizeof v;
    if (*reason) {
        memcpy(d->reason, v.reason, sizeof d->reason);
        if (d->refused++ < LINES) fl_log_message(FL_LOG_WARN, "fl_dist: a connection was refused: %s",
                                                 reason);
    }
    if (*reason || !sent)
        fl__dist_drop_pending(c);
    else
        c->fd = -1;
    return *reason || !sent ? -1 : fd;
}

FL_PRIVATE int fl__dist_listener_answer(fl__dist_listener *d, fl__dist_pending *c, const char *reason) {
    return fl__dist_send_reply(d, c, reason, true);
}

/* Checks that the claim comes from a rank of this job; if not, refuses the connection and returns false. */
static bool fl__dist_check_claim(fl__dist_listener *d, fl__dist_pending *c) {
    const fl__dist_claim *h = &c->claim;
    char reason[104] = "";
    bool proved = false;
    if (h->version != FL__DIST_VERSION || h->layout != fl__dist_layout())
        snprintf(reason, sizeof reason, "it has version %u and layout %#x, expected %d and %#x", h->version,
                 h->layout, FL__DIST_VERSION, fl__dist_layout());
    else if (h->proof != fl__dist_proof(d->key, d->purpose, d->rank, c->nonce, h, NULL))
        snprintf(reason, sizeof reason, "its token is different");
    else if ((proved = h->size != d->size || h->rank <= d->rank || h->rank >= d->size))
        snprintf(reason, sizeof reason, "it is rank %d of %d, expected a size of %d", (int)h->rank,
                 (int)h->size, d->size);
    if (*reason) fl__dist_send_reply(d, c, reason, proved);
    return !*reason;
}

FL_PRIVATE fl__dist_pending *fl__dist_listener_next(fl__dist_listener *d, double now) {
    enum { AT_ONCE = 16 }; /* limit, so that a flood of connections leaves time to read claims */
    for (int i = 0; i < AT_ONCE && fl__dist_accept_pending(d, now); i++) continue;
    for (int i = 0; i < FL__DIST_PENDING; i++) {
        fl__dist_pending *c = &d->pending[i];
        if (c->fd < 0) continue;
        const ssize_t k = recv(c->fd, (char *)&c->claim + c->n, sizeof c->claim - c->n, 0);
        if (k > 0) c->n += (size_t)k;
        if (c->n == sizeof c->claim) {
            if (fl__dist_check_claim(d, c)) return c;
        } else if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR) || now - c->since > d->patience) {
            fl__dist_drop_pending(c);
        }
    }
    return NULL;
}

FL_PRIVATE bool fl__dist_authenticate(int fd, const fl__dist_claim *claim, int to, const char *purpose,
                                      const uint8_t key[FL__DIST_SECRET], uint8_t *secret,
                                      double challenge_deadline, double deadline, bool *refused) {
    fl__dist_claim c = *claim;
    fl__dist_challenge g;
    fl__dist_reply v;
    *refused = false;
    c.version = FL__DIST_VERSION, c.layout = fl__dist_layout();
    if (!fl__dist_random(c.nonce) || !fl_dist_socket_io(fd, false, &g, sizeof g, challenge_deadline))
        return false;
    c.proof = fl__dist_proof(key, purpose, to, g.nonce, &c, NULL);
    if (!fl_dist_socket_io(fd, true, &c, sizeof c, deadline) ||
        !fl_dist_socket_io(fd, false, &v, sizeof v, deadline))
        return false;
    v.reason[sizeof v.reason - 1] = '\0';
    const bool proved = v.proof == fl__dist_proof(key, purpose, to, g.nonce, &c, &v);
    *refused = proved && *v.reason;
    if (*v.reason) return fl_fail("fl_dist: rank %d refused this connection: %s", to, v.reason);
    if (!proved) return fl_fail("fl_dist: the listening process does not know the token of rank %d", to);
    if (secret) memcpy(secret, v.secret, FL__DIST_SECRET);
    return true;
}

FL_PRIVATE bool fl__dist_retry(bool proof, char reason[200], double deadline) {
    if (proof) snprintf(reason, 200, "%.199s", fl_error());
    if (fl_dist_now() > deadline) {
        if (*reason) fl_error_clear();
        return *reason ? fl_fail("%s", reason) : false;
    }
    fl_error_clear();
    usleep(proof ? 100000 : 20000);
    return true;
}

/* ---- data connections ---- */

/* Gets the address of rank k from the store. False after fl_fail, also if the job has failed meanwhile. */
static bool fl__dist_rank_address(const fl_dist_rendezvous *p, int k, char address[64], int *port) {
    char key[128], text[128];
    snprintf(key, sizeof key, "socket/%s/%d", p->prefix, k);
    const int64_t n = p->store->get(p->store, key, text, sizeof text - 1, p->deadline);
    if (n < 0) return false;
    text[n] = '\0';
    return sscanf(text, "%63s %d", address, port) == 2 ||
           fl_fail("fl_dist_connect_ranks: rank %d published '%s', expected an address and port", k, text);
}

/* Connects to rank k, which may be busy with other ranks: its challenge may take until the deadline. */
static int fl__dist_connect_rank(const fl_dist_rendezvous *p, int k) {
    const fl__dist_claim claim = {.rank = p->rank, .size = p->size};
    char address[64], reason[200] = "";
    int port;
    while (fl__dist_rank_address(p, k, address, &port)) {
        bool refused = false;
        const int fd = fl_dist_connect(address, port, fmin(p->deadline, fl_dist_now() + 1));
        if (fd >= 0 && fl__dist_authenticate(fd, &claim, k, p->prefix, p->secret, NULL, p->deadline,
                                             p->deadline, &refused))
            return fd;
        fl_dist_socket_close(fd);
        if (refused || !fl__dist_retry(fd >= 0, reason, p->deadline)) break;
    }
    return -1;
}

/* Accepts connections of all higher ranks. A rank that connects again has lost its previous connection. */
static bool fl__dist_accept_ranks(const fl_dist_rendezvous *p, fl__dist_listener *listener, int *fd) {
    struct pollfd f[1 + FL__DIST_PENDING];
    char address[64];
    int port, left = p->size - p->rank - 1;
    while (left > 0) {
        fl__dist_listener_poll(listener, f);
        poll(f, 1 + FL__DIST_PENDING, 250);
        const double now = fl_dist_now();
        bool called = false;
        for (fl__dist_pending *c; (c = fl__dist_listener_next(listener, now)); called = true) {
            const int k = c->claim.rank, new = fl__dist_listener_answer(listener, c, "");
            if (new < 0) continue;
            left -= fd[k] < 0;
            fl_dist_socket_close(fd[k]);
            fd[k] = new;
        }
        if (called || left <= 0) continue;
        if (now > p->deadline)
            return fl_fail("fl_dist_connect_ranks: rank %d: timeout: %d ranks did not connect%s%s", p->rank,
                           left, *listener->reason ? "; a connection was refused: " : "", listener->reason);
        if (!fl__dist_rank_address(p, p->rank, address, &port)) return false;
    }
    return true;
}

FL_API bool fl_dist_connect_ranks(const fl_dist_rendezvous *place, int *fd) {
    char key[128], text[128];
    int port = 0;
    bool ok = false;
    if (!fl_given(place, "fl_dist_connect_ranks", "the place") ||
        !fl_given(fd, "fl_dist_connect_ranks", "fd"))
        return false;
    fl__dist_listener *listener = fl_heap_alloc(sizeof *listener);
    for (int k = 0; k < place->size; k++) fd[k] = -1;
    if (!listener) return false;
    fl__dist_listener_open(listener, fl_dist_listen(place->address, &port), place->rank, place->size,
                           place->prefix, place->secret, 5);
    snprintf(key, sizeof key, "socket/%s/%d", place->prefix, place->rank);
    const int n = snprintf(text, sizeof text, "%s %d", place->address, port);
    ok = listener->listen_fd >= 0 && place->store->set(place->store, key, text, (size_t)n);
    for (int k = 0; ok && k < place->rank; k++) ok = (fd[k] = fl__dist_connect_rank(place, k)) >= 0;
    ok = ok && fl__dist_accept_ranks(place, listener, fd);
    fl__dist_listener_close(listener);
    fl_heap_free(listener);
    for (int k = 0; !ok && k < place->size; k++) {
        fl_dist_socket_close(fd[k]);
        fd[k] = -1;
    }
    return ok;
}

#else

FL_PRIVATE bool fl__dist_world_of(fl__dist_world *w, int rank, int size, const char *store) {
    (void)store;
    if (size)
        w->rank = rank, w->size = size;
    else if (!fl__dist_from_environment(w))
        return false;
    if (!w->size) w->size = 1;
    w->local_size = 1;
    return (w->size == 1 && !w->rank) ||
           fl_fail("fl_dist_init: got rank %d of %d, expected one rank on Windows", w->rank, w->size);
}

#endif
#endif
#endif
/* MIT licence: see LICENSE. */
