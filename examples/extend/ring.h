/* examples/extend/ring.h - custom communication implementation for fl_dist.h: a socket between any two ranks

   This is the minimum: `exchange` sends to one rank while it receives from another, and fl composes all
   collectives from it. Each message starts with its tag and length, so that different calls never receive
   each other's data. fl_dist_connect_ranks makes the connections and authenticates both ends.

     cc -I. -DFL_DIST_IMPL=ring -DFL_DIST_IMPL_H='"examples/extend/ring.h"' examples/mnist.c fl.c -lm
     -lpthread
     examples/launch 2 ./a.out

   or, in addition to others: fl_dist_impl_use(&fl_dist_ring), then fl_dist_init(.impl = "ring"). */
#ifndef RING_H
#define RING_H
#include "../../fl_dist.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

typedef struct ring {
    int size;
    bool aborted; /* atomic */
    int fd[];     /* socket to each rank; -1 for this rank */
} ring;

typedef struct ring_head {
    uint64_t tag, bytes;
} ring_head;

/* One direction of an exchange: a header, then bytes. */
typedef struct ring_side {
    int fd, rank;
    ring_head head;
    char *bytes;
    size_t done, all; /* bytes of header and data */
} ring_side;

static void ring_close(void *self) {
    ring *r = (ring *)self;
    for (int i = 0; i < r->size; i++) fl_dist_socket_close(r->fd[i]);
    fl_heap_free(r);
}

/* Shuts down the connections, which ends a poll that waits for them. */
static void ring_abort(void *self) {
    ring *r = (ring *)self;
    __atomic_store_n(&r->aborted, true, __ATOMIC_RELEASE);
    for (int i = 0; i < r->size; i++)
        if (r->fd[i] >= 0) shutdown(r->fd[i], SHUT_RDWR);
}

static void *ring_open(const fl_dist_rendezvous *p) {
    ring *r = (ring *)fl_heap_alloc(sizeof *r + (size_t)p->size * sizeof *r->fd);
    if (!r) return NULL;
    r->size = p->size;
    r->aborted = false;
    if (fl_dist_connect_ranks(p, r->fd)) return r;
    fl_heap_free(r);
    return NULL;
}

/* Transfers as much as possible without blocking. */
static bool ring_move(ring_side *s, bool out) {
    while (s->done < s->all) {
        const bool head = s->done < sizeof s->head;
        char *at = head ? (char *)&s->head + s->done : s->bytes + (s->done - sizeof s->head);
        const size_t n = (head ? sizeof s->head : s->all) - s->done;
        const ssize_t k = out ? send(s->fd, at, n, MSG_NOSIGNAL) : recv(s->fd, at, n, 0);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && errno == EAGAIN) return true;
        if (k <= 0)
            return fl_fail("ring: the connection to rank %d closed after %zu of %zu bytes", s->rank,
                           s->done, s->all);
        s->done += (size_t)k;
    }
    return true;
}

/* Checks a complete header against the expected tag and length. */
static bool ring_fits(const ring_side *s, uint64_t tag) {
    if (s->done < sizeof s->head || (s->head.tag == tag && s->head.bytes == s->all - sizeof s->head))
        return true;
    return fl_fail("ring: rank %d sent %llu bytes of another call, expected %zu", s->rank,
                   (unsigned long long)s->head.bytes, s->all - sizeof s->head);
}

static bool ring_exchange(void *self, int to, const void *out, size_t out_bytes, int from, void *in,
                          size_t in_bytes, uint64_t tag, double deadline) {
    ring *r = (ring *)self;
    ring_side o = {-1, to, {tag, out_bytes}, (char *)(uintptr_t)out, 0, 0},
              i = {-1, from, {0, 0}, (char *)in, 0, 0};
    if (to >= 0) o.fd = r->fd[to], o.all = sizeof o.head + out_bytes;
    if (from >= 0) i.fd = r->fd[from], i.all = sizeof i.head + in_bytes;
    for (;;) {
        if (!ring_move(&o, true)) return false;
        /* check the header before receiving data into the caller's buffer */
        ring_side head = i;
        if (i.done < sizeof i.head) {
            head.all = i.all ? sizeof i.head : 0;
            if (!ring_move(&head, false)) return false;
            i.head = head.head, i.done = head.done;
            if (i.all && !ring_fits(&i, tag)) return false;
        }
        if (i.done >= sizeof i.head && !ring_move(&i, false)) return false;
        if (o.done == o.all && i.done == i.all) return true;
        const double left = deadline - fl_dist_now();
        if (left <= 0)
            return fl_fail(
                "ring: timeout: %zu of %zu bytes sent to rank %d, %zu of %zu received from rank %d",
                o.done, o.all, to, i.done, i.all, from);
        struct pollfd f[2] = {{o.done < o.all ? o.fd : -1, POLLOUT, 0},
                              {i.done < i.all ? i.fd : -1, POLLIN, 0}};
        poll(f, 2, left < 1 ? (int)(1000 * left) + 1 : 1000);
        if (__atomic_load_n(&r->aborted, __ATOMIC_ACQUIRE)) return fl_fail("ring: the group has failed");
    }
}

static const fl_dist_impl fl_dist_ring = {.name = "ring",
                                          .open = ring_open,
                                          .exchange = ring_exchange,
                                          .abort = ring_abort,
                                          .close = ring_close,
                                          .prompt = true};

#endif
/* MIT licence: see LICENSE. */
