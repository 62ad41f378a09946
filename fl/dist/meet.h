/* meet.h - how the ranks of a job find each other: the environment, folders, sockets */
#ifndef FL_DIST_IMPL_H_
#include "impl.h"
#endif
#ifndef FL_DIST_MEET_H
#define FL_DIST_MEET_H

#ifdef __cplusplus
extern "C" {
#endif

/* Sockets for implementations; they do not block, and the deadline is of fl_dist_now. listen: at that
   address only, *port (0: any) becomes the port. connect: tries again until somebody listens. io: all n
   bytes. -1 and false after fl_fail. address_of: the numeric address of an interface ("eth0"), a host or an
   address. */
FL_API int fl_dist_listen(const char *address, int *port);
FL_API int fl_dist_accept(int listener, double deadline);
FL_API int fl_dist_connect(const char *address, int port, double deadline);
FL_API bool fl_dist_socket_io(int fd, bool write, void *bytes, size_t n, double deadline);
FL_API void fl_dist_socket_close(int fd); /* -1 is fine */
FL_API bool fl_dist_address_of(const char *name, char *out, size_t size);

/* Who this process is, and where rank 0 is to be found. */
typedef struct fl__dist_world {
    int rank, size, local_rank, local_size;
    char source[32];  /* what said so: "arguments", "torchrun", ...; "" alone */
    char folder[512]; /* either a folder */
    char host[256];   /* or rank 0's host and port */
    int port;
    const fl_dist_store *store; /* or a store of the caller's */
} fl__dist_world;
/* From what the caller gave (size 0: nothing; store NULL: nothing) and the environment. False after
   fl_fail. */
FL_PRIVATE bool fl__dist_world_of(fl__dist_world *w, int rank, int size, const char *store);

#ifdef __cplusplus
}
#endif
#endif /* FL_DIST_MEET_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DIST_MEET) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DIST_MEET_IMPL
#define FL_DIST_MEET_IMPL
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the environment ---- */

/* A number of the environment; false after fl_fail if it is none, `there` tells if it is set. */
static bool fl__dist_env(const char *name, int *out, bool *there) {
    const char *text = getenv(name);
    char *end;
    *there = text && *text;
    if (!*there) return true;
    const long v = strtol(text, &end, 10);
    if (*end || v < 0 || v > 1 << 24) return fl_fail("fl_dist_init: %s is '%s', no number", name, text);
    *out = (int)v;
    return true;
}

/* What starts programs, with its names of rank, size, local rank and local size; `only` must be set too. */
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
            return fl_fail("fl_dist_init: the environment has %s and no %s: half of what %s sets",
                           rank ? l->rank : l->size, rank ? l->size : l->rank, l->source);
        if (!local) w->local_rank = w->rank;
        if (!locals || w->local_size < 1) w->local_size = w->size;
        snprintf(w->source, sizeof w->source, "%s", l->source);
        return true;
    }
    return true;
}

/* What tells this job from others of the same user on this host; NULL: nothing does. */
static const char *fl__dist_job(const fl__dist_world *w) {
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
    if (!*text || strlen(text) >= 256) return fl_fail("fl_dist_init: the store '%s' has no name", text);
    if (strchr(text, '/') || !colon || *end) return snprintf(w->folder, sizeof w->folder, "%s", text) > 0;
    if (port < 1 || port > 65535)
        return fl_fail("fl_dist_init: the store '%s' has no port from 1 to 65535", text);
    snprintf(w->host, sizeof w->host, "%.*s", (int)(colon - text), text);
    w->port = (int)port;
    return true;
}

/* torchrun's own store holds MASTER_PORT: the next one is ours. */
static bool fl__dist_master(fl__dist_world *w, const char *host) {
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    bool own = false, master = false;
    snprintf(w->host, sizeof w->host, "%s", host);
    if (!fl__dist_env("MASTER_PORT", &w->port, &master)) return false;
    if (master && agent && !strcmp(agent, "True")) w->port++;
    if (!fl__dist_env("FL_DIST_PORT", &w->port, &own)) return false;
    if (!master && !own)
        return fl_fail(
            "fl_dist_init: the environment has MASTER_ADDR and no MASTER_PORT: half of an address");
    return (w->port > 0 && w->port < 65536) || fl_fail("fl_dist_init: port %d", w->port);
}

/* Nobody gave an address: on one host a folder of user and job, with Slurm the first host. */
static bool fl__dist_guess_store(fl__dist_world *w) {
    const char *list = getenv("SLURM_STEP_NODELIST"), *job = fl__dist_job(w), *tmp = getenv("TMPDIR");
    char by_parent[32];
    if (w->local_size < w->size) {
        if (strcmp(w->source, "Slurm") || !list || !job)
            return fl_fail(
                "fl_dist_init: %d ranks on several hosts, and no address of rank 0: set MASTER_ADDR "
                "and MASTER_PORT, or FL_DIST_STORE",
                w->size);
        fl__dist_first_node(list, w->host, sizeof w->host);
        w->port = 20000 + atoi(job) % 20000;
        return true;
    }
    if (!job) { /* ranks that one process started */
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
        return fl_fail("fl_dist_init: rank %d of %d", w->rank, w->size);
    if (w->size == 1 || w->store) return true;
    if (given && *given) return fl__dist_parse_store(w, given);
    return host && *host ? fl__dist_master(w, host) : fl__dist_guess_store(w);
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
    if (reason || !found) return fl_fail("fl_dist: host '%s': %s", host, gai_strerror(reason));
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *n = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

FL_API bool fl_dist_address_of(const char *name, char *out, size_t size) {
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
           fl_fail("fl_dist: '%s' has no address", name);
}

/* What socket or accept gave, or -1. */
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

/* Until fd is ready, or the deadline. */
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
    if (fd < 0) return fl_fail("fl_dist: nobody connected: %s", strerror(errno)), -1;
    return fl__dist_socket(fd);
}

FL_API int fl_dist_connect(const char *address, int port, double deadline) {
    struct sockaddr_storage at;
    socklen_t n;
    if (!fl__dist_resolve(address, port, &at, &n)) return -1;
    for (int reason = ETIMEDOUT;;) {
        const int fd = fl__dist_socket(socket(at.ss_family, SOCK_STREAM, 0));
        socklen_t size = sizeof reason;
        if (fd < 0) return fl__dist_errno("a socket for", address, port), -1;
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
            return fl_fail("fl_dist: the connection ended");
        else if (errno != EAGAIN && errno != EINTR)
            return fl_fail("fl_dist: %s", strerror(errno));
        else if (errno == EAGAIN && !fl__dist_ready(fd, write ? POLLOUT : POLLIN, deadline))
            return fl_fail("fl_dist: %s", strerror(errno));
    }
    return true;
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
           fl_fail("fl_dist_init: rank %d of %d: on Windows there is only one rank", w->rank, w->size);
}

#endif
#endif
#endif
/* MIT licence: see LICENSE. */
