/* fl/distributed/link.h - the control channel: heartbeats, comparison of calls, rank 0's key-value store

   Each rank has one connection to rank 0, served by one thread, besides the group's thread for data. The
   thread sends heartbeats with the latest calls, which rank 0 compares. A closed connection means that the
   rank died, a missing heartbeat that it stalled. A rank that finds a failure reports it to rank 0, which
   tells all ranks. */
#ifndef FL_DIST_MEET_H
#include "meet.h"
#endif
#ifndef FL_DIST_LINK_H
#define FL_DIST_LINK_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fl_dist_failure_kind {
    FL_DIST_OK,
    FL_DIST_DEATH,    /* the rank's process ended */
    FL_DIST_STALL,    /* no message from the rank for a heartbeat interval */
    FL_DIST_MISMATCH, /* the rank made a different call */
    FL_DIST_ERROR,    /* the rank had an error; text is that error */
    FL_DIST_LEFT,     /* the rank closed the group before another rank's call */
    FL_DIST_TIMEOUT,  /* a call passed its deadline; rank: the one that noticed */
    FL_DIST_BROKEN    /* a data or control connection failed */
} fl_dist_failure_kind;
typedef struct fl_dist_failure_info {
    fl_dist_failure_kind kind;
    int rank;      /* the rank that failed, as numbered in the first group */
    uint64_t call; /* number of the running or last call on this rank */
    char text[512];
} fl_dist_failure_info;

/* private */
/* The properties of a call that all ranks must agree on. */
typedef struct fl__dist_record {
    uint64_t group, number;
    int32_t kind, reduction, dtype, root;
    int64_t count;
} fl__dist_record;
typedef struct fl__dist_link fl__dist_link;
/* Hook for a group that failures end: abort is called once, on the link's thread. */
typedef struct fl__dist_abort_hook {
    void (*abort)(struct fl__dist_abort_hook *self);
    bool aborted;
    struct fl__dist_abort_hook *next;
} fl__dist_abort_hook;
/* Starts *thread, a pthread_t, with all signals blocked: they are for the program's own threads, and SIGPIPE
   from libraries must not end it. False after fl_fail. */
FL_PRIVATE bool fl__dist_thread_start(void *thread, void *(*run)(void *), void *arg);
/* Opens the control channel; returns when all ranks have connected. NULL after fl_fail. */
FL_PRIVATE fl__dist_link *fl__dist_link_open(const fl__dist_world *w, const char *token,
                                             const char *iface, double heartbeat, double deadline);
/* Sends goodbye and waits up to a heartbeat interval for that of the other ranks, then frees the link. */
FL_PRIVATE void fl__dist_link_close(fl__dist_link *l);
/* The store that rank 0 keeps. */
FL_PRIVATE const fl_dist_store *fl__dist_link_store(fl__dist_link *l);
/* This rank's address and the job's secret, for data connections. */
FL_PRIVATE const char *fl__dist_link_address(const fl__dist_link *l);
FL_PRIVATE const uint8_t *fl__dist_link_secret(const fl__dist_link *l);
/* Adds or removes an abort hook. */
FL_PRIVATE void fl__dist_link_hook(fl__dist_link *l, fl__dist_abort_hook *g, bool add);
/* Takes or releases the lock of the link and its groups. */
FL_PRIVATE void fl__dist_link_lock(fl__dist_link *l, bool on);
/* With the lock held: waits for fl__dist_link_changed, until the deadline. */
FL_PRIVATE void fl__dist_link_wait(fl__dist_link *l, double deadline);
FL_PRIVATE void fl__dist_link_changed(fl__dist_link *l);
/* With the lock held: the failure, or NULL. */
FL_PRIVATE const fl_dist_failure_info *fl__dist_link_failure(fl__dist_link *l);
/* With the lock held: records a failure, unless there is one already, and sends it to all ranks. */
FL_PRIVATE void fl__dist_link_fail(fl__dist_link *l, fl_dist_failure_kind kind, int rank,
                                   const char *format, ...) FL_PRINTF(4, 5);
/* With the lock held: records that this rank begins a call. Records are sent for comparison 20 ms after the
   latest call began. */
FL_PRIVATE void fl__dist_link_record(fl__dist_link *l, const fl__dist_record *r);
/* With the lock held: sends the records at once. */
FL_PRIVATE void fl__dist_link_report(fl__dist_link *l);

#ifdef __cplusplus
}
#endif
#endif /* FL_DIST_LINK_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DISTRIBUTED_LINK) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DIST_LINK_IMPL
#define FL_DIST_LINK_IMPL
#ifndef _WIN32
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FL__DIST_BODY_MAX = 1 << 16,  /* largest message body in bytes */
    FL__DIST_RECORDS = 64,        /* latest calls that a rank reports */
    FL__DIST_COMPARED = 256,      /* latest calls that rank 0 compares */
    FL__DIST_QUEUE_MAX = 1 << 22, /* largest send queue of a rank in bytes */
    FL__DIST_STORE_MAX = 1 << 26, /* capacity of rank 0's store in bytes */
    FL__DIST_KEY_SIZE = 128
};
#define FL__DIST_CONTROL "the control channel" /* purpose in handshakes with rank 0 */
/* Age in seconds of the latest call at which records are sent. */
#define FL__DIST_REPORT_DELAY 0.02
/* Message types. SET and GET go to rank 0, READY and VALUE come from it; the others go both ways. */
typedef enum fl__dist_message_type {
    FL__DIST_READY = 0x4c465d31,
    FL__DIST_SET,
    FL__DIST_GET,
    FL__DIST_VALUE,
    FL__DIST_HEARTBEAT,
    FL__DIST_GOODBYE,
    FL__DIST_ABORT
} fl__dist_message_type;
typedef struct fl__dist_header {
    uint32_t type, bytes;
} fl__dist_header;
typedef struct fl__dist_goodbye {
    uint64_t calls;
    int32_t rank, unused;
} fl__dist_goodbye;

typedef struct fl__dist_peer {
    int fd; /* -1: not connected */
    bool goodbye, warned;
    bool waiting;      /* a GET of `key` is unanswered */
    double last_heard; /* time of the last message */
    char key[FL__DIST_KEY_SIZE];
    char *in, *out;    /* partial message received; send queue */
    size_t n_in;
    int64_t n_out, cap_out;
} fl__dist_peer;

typedef struct fl__dist_store_item {
    struct fl__dist_store_item *next;
    size_t bytes;
    char key[FL__DIST_KEY_SIZE];
    char value[];
} fl__dist_store_item;

typedef struct fl__dist_seen_call {
    fl__dist_record r;
    int rank; /* the first rank that reported it */
} fl__dist_seen_call;

struct fl__dist_link {
    int rank, size, wake[2];
    double heartbeat, next_beat, last_run; /* last_run: when the thread last ran */
    double recorded_at, asleep_until;      /* start of the latest call; latest wake-up of the thread */
    char address[64];
    fl__dist_listener listener;            /* on rank 0, until all ranks have connected */
    uint8_t secret[FL__DIST_SECRET];       /* the job's */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool started, stop, ready, leaving, aborting;
    int n_connected;     /* number of ranks connected, on rank 0 */
    fl__dist_peer *peer; /* on rank 0: all ranks; on others: rank 0 */
    int n_peers;
    fl__dist_store_item *items;
    int64_t item_bytes;
    fl_dist_store store;
    struct { /* reply to GET */
        bool here;
        int64_t bytes;
        char key[FL__DIST_KEY_SIZE], value[FL__DIST_BODY_MAX];
    } answer;
    fl__dist_record record[FL__DIST_RECORDS]; /* ring buffer: record k at k % RECORDS */
    uint64_t recorded, reported;              /* number of records, and of those sent */
    uint64_t calls; /* number of the latest call of the first group */
    bool left;      /* a rank closed its group; the earliest was left_rank after call left_calls */
    int left_rank;
    uint64_t left_calls;
    fl__dist_seen_call *seen;
    fl_dist_failure_info failure;
    fl__dist_abort_hook *guards;
};

FL_PRIVATE bool fl__dist_thread_start(void *thread, void *(*run)(void *), void *arg) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    const int reason = pthread_create((pthread_t *)thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !reason || fl_fail("fl_dist_init: pthread_create: %s", strerror(reason));
}

/* The mutex detects misuse: a locking error ends the group instead of causing a race. */
static void fl__dist_check_lock(fl__dist_link *l, int reason) {
    if (!reason || reason == ETIMEDOUT) return;
    fl_log_message(FL_LOG_ERROR, "fl_dist: the lock of the control channel: %s", strerror(reason));
    fl__dist_link_fail(l, FL_DIST_ERROR, l->rank, "rank %d: the lock of the control channel: %s", l->rank,
                       strerror(reason));
}

FL_PRIVATE void fl__dist_link_lock(fl__dist_link *l, bool on) {
    fl__dist_check_lock(l, on ? pthread_mutex_lock(&l->lock) : pthread_mutex_unlock(&l->lock));
}

FL_PRIVATE void fl__dist_link_wait(fl__dist_link *l, double deadline) {
    struct timespec t = {(time_t)deadline, (long)(1e9 * (deadline - (double)(time_t)deadline))};
    fl__dist_check_lock(l, pthread_cond_timedwait(&l->changed, &l->lock, &t));
}

FL_PRIVATE void fl__dist_link_changed(fl__dist_link *l) {
    pthread_cond_broadcast(&l->changed);
}

FL_PRIVATE const fl_dist_failure_info *fl__dist_link_failure(fl__dist_link *l) {
    return l->failure.kind ? &l->failure : NULL;
}

FL_PRIVATE const char *fl__dist_link_address(const fl__dist_link *l) {
    return l->address;
}

FL_PRIVATE const uint8_t *fl__dist_link_secret(const fl__dist_link *l) {
    return l->secret;
}

FL_PRIVATE const fl_dist_store *fl__dist_link_store(fl__dist_link *l) {
    return &l->store;
}

static void fl__dist_wake(fl__dist_link *l) {
    const char c = 0;
    const ssize_t n = write(l->wake[1], &c, 1);
    (void)n; /* a full pipe wakes as well */
}

FL_PRIVATE void fl__dist_link_report(fl__dist_link *l) {
    if (l->reported == l->recorded) return;
    l->next_beat = 0;
    fl__dist_wake(l);
}

/* ---- messages ---- */

/* Appends a message to the send queue of p. If it does not fit, the connection is shut down. */
static void fl__dist_send_message(fl__dist_link *l, fl__dist_peer *p, fl__dist_message_type type,
                                  const void *a, size_t n_a, const void *b, size_t n_b) {
    const fl__dist_header head = {type, (uint32_t)(n_a + n_b)};
    const int64_t need = p->n_out + (int64_t)(sizeof head + n_a + n_b);
    if (p->fd < 0) return;
    if (need > FL__DIST_QUEUE_MAX || (need > p->cap_out && !fl_heap_grow(&p->out, &p->cap_out, need, 1))) {
        fl_error_clear();
        shutdown(p->fd, SHUT_RDWR);
        return;
    }
    memcpy(p->out + p->n_out, &head, sizeof head);
    if (n_a) memcpy(p->out + p->n_out + sizeof head, a, n_a);
    if (n_b) memcpy(p->out + p->n_out + sizeof head + n_a, b, n_b);
    p->n_out = need;
    fl__dist_wake(l);
}

static void fl__dist_send_all(fl__dist_link *l, fl__dist_message_type type, const void *bytes, size_t n) {
    for (int i = 0; i < l->n_peers; i++) fl__dist_send_message(l, &l->peer[i], type, bytes, n, NULL, 0);
}

static void fl__dist_flush(fl__dist_peer *p) {
    const ssize_t k = send(p->fd, p->out, (size_t)p->n_out, MSG_NOSIGNAL);
    if (k <= 0) return; /* the next read reports errors */
    memmove(p->out, p->out + k, (size_t)(p->n_out - k));
    p->n_out -= k;
}

static void fl__dist_disconnect(fl__dist_peer *p) {
    fl_dist_socket_close(p->fd);
    p->fd = -1;
    p->n_in = 0;
    p->n_out = 0;
}

FL_PRIVATE void fl__dist_link_fail(fl__dist_link *l, fl_dist_failure_kind kind, int rank,
                                   const char *format, ...) {
    if (l->failure.kind) return;
    va_list args;
    va_start(args, format);
    vsnprintf(l->failure.text, sizeof l->failure.text, format, args);
    va_end(args);
    l->failure.kind = kind;
    l->failure.rank = rank;
    l->failure.call = l->calls;
    fl__dist_send_all(l, FL__DIST_ABORT, &l->failure, sizeof l->failure);
    fl__dist_wake(l);
    fl__dist_link_changed(l);
}

/* ---- rank 0's store ---- */

static fl__dist_store_item *fl__dist_store_find(const fl__dist_link *l, const char *key) {
    fl__dist_store_item *i = l->items;
    while (i && strcmp(i->key, key)) i = i->next;
    return i;
}

/* Answers the GET of p if its key is set. */
static void fl__dist_answer_get(fl__dist_link *l, fl__dist_peer *p) {
    const fl__dist_store_item *i = p->waiting ? fl__dist_store_find(l, p->key) : NULL;
    if (!i) return;
    p->waiting = false;
    fl__dist_send_message(l, p, FL__DIST_VALUE, i->key, sizeof i->key, i->value, i->bytes);
}

/* Stores a value and answers the ranks that wait for it. False after fl_fail. */
static bool fl__dist_store_put(fl__dist_link *l, const char *key, const void *value, size_t n) {
    if (l->item_bytes + (int64_t)(sizeof(fl__dist_store_item) + n) > FL__DIST_STORE_MAX)
        return fl_fail("fl_dist: the store is full: '%.100s' exceeds its capacity of %d bytes", key,
                       FL__DIST_STORE_MAX);
    fl__dist_store_item *i = fl_heap_alloc(sizeof *i + n);
    if (!i) return false;
    *i = (fl__dist_store_item){.next = l->items, .bytes = n};
    snprintf(i->key, sizeof i->key, "%s", key);
    if (n) memcpy(i->value, value, n);
    l->items = i;
    l->item_bytes += (int64_t)(sizeof *i + n);
    for (int k = 1; k < l->size; k++) fl__dist_answer_get(l, &l->peer[k]);
    fl__dist_link_changed(l);
    return true;
}

static bool fl__dist_store_set(const fl_dist_store *self, const char *key, const void *bytes, size_t n) {
    fl__dist_link *l = self->user;
    char name[FL__DIST_KEY_SIZE] = {0};
    if (strlen(key) >= sizeof name || n > FL__DIST_BODY_MAX - sizeof name)
        return fl_fail("fl_dist: got %zu bytes for key '%.200s', expected at most %zu, a key of at most 127",
                       n, key, FL__DIST_BODY_MAX - sizeof name);
    snprintf(name, sizeof name, "%s", key);
    fl__dist_link_lock(l, true);
    const bool ok = l->rank || fl__dist_store_put(l, name, bytes, n);
    if (l->rank) fl__dist_send_message(l, l->peer, FL__DIST_SET, name, sizeof name, bytes, n);
    fl__dist_link_lock(l, false);
    return ok;
}

static int64_t fl__dist_store_get(const fl_dist_store *self, const char *key, void *bytes, size_t size,
                                  double deadline) {
    fl__dist_link *l = self->user;
    char name[FL__DIST_KEY_SIZE] = {0};
    const fl__dist_store_item *i = NULL;
    int64_t n = -1;
    snprintf(name, sizeof name, "%s", key);
    fl__dist_link_lock(l, true);
    if (l->rank) {
        l->answer.here = false;
        memcpy(l->answer.key, name, sizeof name);
        fl__dist_send_message(l, l->peer, FL__DIST_GET, name, sizeof name, NULL, 0);
    }
    while (!l->failure.kind && fl_dist_now() < deadline &&
           !(l->rank ? l->answer.here : (i = fl__dist_store_find(l, name)) != NULL))
        fl__dist_link_wait(l, deadline);
    const char *from = i ? i->value : l->answer.value;
    if (i)
        n = (int64_t)i->bytes;
    else if (l->rank && l->answer.here)
        n = l->answer.bytes;
    if (n > (int64_t)size)
        fl_fail("fl_dist: key '%s' has %lld bytes, expected at most %zu", key, (long long)n, size), n = -1;
    else if (n >= 0)
        memcpy(bytes, from, (size_t)n);
    else if (l->failure.kind)
        fl_fail("fl_dist: waiting for key '%s': %s", key, l->failure.text);
    else
        fl_fail("fl_dist: timeout: no rank has set key '%s'", key);
    fl__dist_link_lock(l, false);
    return n;
}

/* ---- comparing calls ---- */

static char *fl__dist_record_text(const fl__dist_record *r, char *buf, size_t size) {
    const char *const reductions[] = {"sum", "avg", "min", "max", "and", "or"};
    int n = snprintf(buf, size, "%s", fl_dist_kind_name((fl_dist_kind)r->kind));
    if (r->dtype)
        n += snprintf(buf + n, size - (size_t)n, " of %" PRId64 " %s", r->count,
                      fl_dtype_name((fl_dtype)r->dtype));
    if (fl__dist_signature_of(r->kind)->reduces && r->reduction >= 0 && r->reduction < FL_DIST_REDUCTIONS)
        n += snprintf(buf + n, size - (size_t)n, " (%s)", reductions[r->reduction]);
    if (r->root >= 0) snprintf(buf + n, size - (size_t)n, ", root %d", (int)r->root);
    return buf;
}

/* On rank 0: compares a rank's call with what another rank reported under the same number. */
static void fl__dist_compare(fl__dist_link *l, const fl__dist_record *r, int rank) {
    fl__dist_seen_call *s = &l->seen[(r->group * 31 + r->number) % FL__DIST_COMPARED];
    if (s->r.group != r->group || s->r.number != r->number) {
        if (s->r.group != r->group || s->r.number < r->number) *s = (fl__dist_seen_call){*r, rank};
        return;
    }
    char a[128], b[128];
    if (!memcmp(&s->r, r, sizeof *r)) return;
    fl__dist_link_fail(l, FL_DIST_MISMATCH, rank, "call %" PRIu64 " is %s on rank %d and %s on rank %d",
                       r->number, fl__dist_record_text(&s->r, a, sizeof a), s->rank,
                       fl__dist_record_text(r, b, sizeof b), rank);
}

/* A call after a rank has left cannot complete: fails. */
static void fl__dist_check_left(fl__dist_link *l) {
    if (l->left && l->calls > l->left_calls && !l->leaving)
        fl__dist_link_fail(l, FL_DIST_LEFT, l->left_rank,
                           "rank %d closed its group after call %" PRIu64 ", before call %" PRIu64,
                           l->left_rank, l->left_calls, l->calls);
}

FL_PRIVATE void fl__dist_link_record(fl__dist_link *l, const fl__dist_record *r) {
    l->record[l->recorded++ % FL__DIST_RECORDS] = *r;
    l->recorded_at = fl_dist_now();
    if (l->asleep_until > l->recorded_at + FL__DIST_REPORT_DELAY) fl__dist_wake(l);
    if (r->group == 1) l->calls = r->number;
    fl__dist_check_left(l);
}

/* Sends a heartbeat with the records since the last one. */
static void fl__dist_send_heartbeat(fl__dist_link *l, double now) {
    fl__dist_record r[FL__DIST_RECORDS];
    uint64_t from = l->recorded > FL__DIST_RECORDS ? l->recorded - FL__DIST_RECORDS : 0;
    size_t n = 0;
    if (from < l->reported) from = l->reported;
    while (from < l->recorded) r[n++] = l->record[from++ % FL__DIST_RECORDS];
    l->reported = l->recorded;
    l->next_beat = now + l->heartbeat / 4;
    if (l->rank) {
        fl__dist_send_message(l, l->peer, FL__DIST_HEARTBEAT, r, n * sizeof *r, NULL, 0);
        return;
    }
    fl__dist_send_all(l, FL__DIST_HEARTBEAT, NULL, 0);
    for (size_t i = 0; i < n; i++) fl__dist_compare(l, &r[i], 0);
}

/* Handles the goodbye of a rank. */
static void fl__dist_rank_left(fl__dist_link *l, int rank, uint64_t calls) {
    fl__dist_peer *p = l->rank ? NULL : &l->peer[rank];
    const fl__dist_goodbye goodbye = {calls, rank, 0};
    if (p) p->goodbye = true;
    if (l->rank && !rank) l->peer->goodbye = true;
    if (l->rank == 0) fl__dist_send_all(l, FL__DIST_GOODBYE, &goodbye, sizeof goodbye);
    l->n_connected--;
    if (!l->left || calls < l->left_calls) l->left_rank = rank, l->left_calls = calls;
    l->left = true;
    fl__dist_check_left(l);
    fl__dist_link_changed(l);
}

/* ---- received messages ---- */

/* On rank 0: admits a rank that has proved the token. */
static void fl__dist_admit(fl__dist_link *l, fl__dist_pending *c) {
    const int rank = c->claim.rank;
    fl__dist_peer *p = &l->peer[rank];
    char reason[100] = "", *in = p->in ? NULL : fl_heap_alloc(sizeof(fl__dist_header) + FL__DIST_BODY_MAX);
    if (p->in)
        snprintf(reason, sizeof reason,
                 "rank %d is connected already: do two jobs share an address or folder?", rank);
    else if (!in)
        snprintf(reason, sizeof reason, "rank 0 is out of memory");
    fl_error_clear();
    const int fd = fl__dist_listener_answer(&l->listener, c, reason);
    if (fd < 0) {
        fl_heap_free(in);
        return;
    }
    *p = (fl__dist_peer){.fd = fd, .last_heard = fl_dist_now(), .in = in};
    if (++l->n_connected < l->size) return;
    l->ready = true;
    fl__dist_listener_close(&l->listener);
    fl__dist_send_all(l, FL__DIST_READY, NULL, 0);
    fl__dist_link_changed(l);
}

/* Handles one message of a rank. False if it is invalid. */
static bool fl__dist_handle_message(fl__dist_link *l, int rank, fl__dist_peer *p, fl__dist_message_type type,
                                    const char *body, size_t n) {
    fl__dist_goodbye goodbye;
    fl_dist_failure_info f;
    fl__dist_record r;
    const bool is_rank0 = l->rank == 0, key = n >= FL__DIST_KEY_SIZE && !body[FL__DIST_KEY_SIZE - 1];
    p->last_heard = fl_dist_now();
    p->warned = false;
    switch (type) {
    case FL__DIST_READY: return !is_rank0 && (l->ready = true, fl__dist_link_changed(l), true);
    case FL__DIST_SET:
        if (!is_rank0 || !key) return false;
        if (!fl__dist_store_put(l, body, body + FL__DIST_KEY_SIZE, n - FL__DIST_KEY_SIZE)) {
            fl__dist_link_fail(l, FL_DIST_ERROR, rank, "rank %d: %s", rank, fl_error());
            fl_error_clear();
        }
        return true;
    case FL__DIST_GET:
        if (!is_rank0 || !key) return false;
        memcpy(p->key, body, sizeof p->key);
        p->waiting = true;
        return fl__dist_answer_get(l, p), true;
    case FL__DIST_VALUE:
        if (is_rank0 || !key) return false;
        if (memcmp(body, l->answer.key, FL__DIST_KEY_SIZE)) return true; /* a get timed out */
        l->answer.here = true;
        l->answer.bytes = (int64_t)(n - FL__DIST_KEY_SIZE);
        memcpy(l->answer.value, body + FL__DIST_KEY_SIZE, n - FL__DIST_KEY_SIZE);
        fl__dist_link_changed(l);
        return true;
    case FL__DIST_HEARTBEAT:
        for (; is_rank0 && n >= sizeof r; n -= sizeof r, body += sizeof r)
            fl__dist_compare(l, memcpy(&r, body, sizeof r), rank);
        return n == 0;
    case FL__DIST_GOODBYE:
        if (n != sizeof goodbye) return false;
        memcpy(&goodbye, body, n);
        if (goodbye.rank < 0 || goodbye.rank >= l->size || (is_rank0 && goodbye.rank != rank)) return false;
        if (goodbye.rank != l->rank) fl__dist_rank_left(l, goodbye.rank, goodbye.calls);
        return true;
    case FL__DIST_ABORT:
        if (n != sizeof f) return false;
        memcpy(&f, body, n);
        f.text[sizeof f.text - 1] = '\0';
        if (f.kind <= FL_DIST_OK || f.kind > FL_DIST_BROKEN) return false;
        fl__dist_link_fail(l, f.kind, f.rank, "%s", f.text);
        return true;
    default: return false;
    }
}

/* Receives from peer i and handles complete messages. False if the connection ended (errno EPROTO: invalid
   data). */
static bool fl__dist_receive(fl__dist_link *l, int i) {
    fl__dist_peer *p = &l->peer[i];
    fl__dist_header head;
    const ssize_t k = recv(p->fd, p->in + p->n_in, sizeof head + FL__DIST_BODY_MAX - p->n_in, 0);
    if (k < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (k <= 0) return false;
    p->n_in += (size_t)k;
    size_t at = 0;
    while (p->n_in - at >= sizeof head) {
        memcpy(&head, p->in + at, sizeof head);
        if (head.bytes > FL__DIST_BODY_MAX) return errno = EPROTO, false;
        if (p->n_in - at < sizeof head + head.bytes) break;
        const char *body = p->in + at + sizeof head;
        at += sizeof head + head.bytes;
        if (!fl__dist_handle_message(l, i, p, (fl__dist_message_type)head.type, body, head.bytes))
            return errno = EPROTO, false;
    }
    memmove(p->in, p->in + at, p->n_in - at);
    p->n_in -= at;
    return true;
}

/* Handles the end of peer i's connection. */
static void fl__dist_disconnected(fl__dist_link *l, int i) {
    fl__dist_peer *p = &l->peer[i];
    const bool invalid = errno == EPROTO;
    fl__dist_disconnect(p);
    if (p->goodbye || l->stop) return;
    if (invalid)
        fl__dist_link_fail(l, FL_DIST_BROKEN, i, "rank %d sent an invalid message", i);
    else
        fl__dist_link_fail(l, FL_DIST_DEATH, i, "rank %d died: its connection was closed", i);
}

/* ---- the thread ---- */

/* A rank without messages for a heartbeat interval has stalled. If this process itself was paused, the
   intervals start again. */
static void fl__dist_check_heartbeats(fl__dist_link *l, double now) {
    const bool paused = now - l->last_run > l->heartbeat / 2;
    l->last_run = now;
    for (int i = 0; i < l->n_peers; i++) {
        fl__dist_peer *p = &l->peer[i];
        if (p->fd < 0) continue;
        if (paused) p->last_heard = now;
        const double silent = now - p->last_heard;
        if (p->goodbye || !l->ready) continue;
        if (silent > l->heartbeat) {
            fl__dist_link_fail(l, FL_DIST_STALL, i,
                               "rank %d stalled: no message for %.1f s", i, silent);
        } else if (silent > 0.6 * l->heartbeat && !p->warned) {
            fl_log_message(FL_LOG_WARN, "fl_dist: rank %d is late: no message for %.1f s", i, silent);
            p->warned = true;
        }
    }
}

/* Calls the abort hooks, without the lock: a library may block in them. */
static void fl__dist_abort_groups(fl__dist_link *l) {
    for (fl__dist_abort_hook *g = l->guards; g; g = g->next) {
        if (g->aborted) continue;
        g->aborted = l->aborting = true;
        fl__dist_link_lock(l, false);
        g->abort(g);
        fl__dist_link_lock(l, true);
        l->aborting = false;
        fl__dist_link_changed(l);
    }
}

/* Polls the wake-up pipe, the peers and the listener, without the lock; closed ones (-1) are ignored by
   poll. */
static bool fl__dist_poll(fl__dist_link *l, struct pollfd *f) {
    const double now = fl_dist_now();
    l->asleep_until = l->next_beat;
    if (l->reported != l->recorded)
        l->asleep_until = fmin(l->next_beat, fmax(now, l->recorded_at + FL__DIST_REPORT_DELAY));
    const double left = l->asleep_until - now;
    f[0] = (struct pollfd){l->wake[0], POLLIN, 0};
    for (int i = 0; i < l->n_peers; i++)
        f[1 + i] = (struct pollfd){l->peer[i].fd, (short)(POLLIN | (l->peer[i].n_out ? POLLOUT : 0)), 0};
    const bool open = l->listener.listen_fd >= 0;
    if (open) fl__dist_listener_poll(&l->listener, f + 1 + l->n_peers);
    fl__dist_link_lock(l, false);
    const nfds_t n = (nfds_t)(1 + l->n_peers + (open ? 1 + FL__DIST_PENDING : 0));
    const int ready = poll(f, n, left <= 0 ? 0 : (int)(1000 * left) + 1);
    fl__dist_link_lock(l, true);
    return ready > 0;
}

static void fl__dist_link_iteration(fl__dist_link *l, struct pollfd *f) {
    char drain[256];
    if (fl__dist_poll(l, f)) {
        while (f[0].revents && read(l->wake[0], drain, sizeof drain) > 0) continue;
        for (int i = 0; i < l->n_peers; i++) {
            const short events = f[1 + i].revents;
            if (!events || l->peer[i].fd != f[1 + i].fd) continue;
            if (events & POLLOUT) fl__dist_flush(&l->peer[i]);
            errno = 0;
            if ((events & ~POLLOUT) && !fl__dist_receive(l, i)) fl__dist_disconnected(l, i);
        }
    }
    const double now = fl_dist_now();
    fl__dist_pending *c;
    while (l->listener.listen_fd >= 0 && (c = fl__dist_listener_next(&l->listener, now)))
        fl__dist_admit(l, c);
    const bool late = l->reported != l->recorded && now >= l->recorded_at + FL__DIST_REPORT_DELAY;
    if ((late || now >= l->next_beat) && (l->ready || l->rank))
        fl__dist_send_heartbeat(l, now);
    else if (now >= l->next_beat)
        l->next_beat = now + l->heartbeat / 4;
    fl__dist_check_heartbeats(l, now);
    for (int i = 0; i < l->n_peers; i++)
        if (l->peer[i].fd >= 0 && l->peer[i].n_out) fl__dist_flush(&l->peer[i]);
    if (l->failure.kind) fl__dist_abort_groups(l);
}

static void *fl__dist_link_thread(void *arg) {
    fl__dist_link *l = arg;
    struct pollfd *f = fl_heap_alloc(((size_t)l->n_peers + 2 + FL__DIST_PENDING) * sizeof *f);
    fl_quiet(+1);
    fl__dist_link_lock(l, true);
    if (!f) fl__dist_link_fail(l, FL_DIST_ERROR, l->rank, "rank %d: out of memory", l->rank);
    l->last_run = fl_dist_now();
    while (f && !l->stop) fl__dist_link_iteration(l, f);
    fl__dist_link_lock(l, false);
    fl_heap_free(f);
    return NULL;
}

/* ---- opening and closing ---- */

/* The file in the rendezvous folder with rank 0's address. */
static void fl__dist_folder_file(const fl__dist_world *w, char *path, size_t size) {
    snprintf(path, size, "%s/rank0", w->folder);
}

/* Checks that other users cannot change the path, and so redirect ranks. False after fl_fail. */
static bool fl__dist_check_owner(const char *path, const struct stat *s) {
    const bool shared = S_ISDIR(s->st_mode) && (s->st_mode & S_ISVTX); /* sticky bit */
    if (s->st_uid != geteuid() && s->st_uid != 0)
        return fl_fail("fl_dist_init: %s belongs to user %ld: expected the user of this process, %ld", path,
                       (long)s->st_uid, (long)geteuid());
    return !(s->st_mode & (S_IWGRP | S_IWOTH)) || S_ISLNK(s->st_mode) || shared ||
           fl_fail("fl_dist_init: %s is writable by others (mode %03o): chmod go-w, or use another path",
                   path, (unsigned)s->st_mode & 0777);
}

/* The same check for the folder, and if it is a symbolic link for its target too. *there: whether it
   exists. */
static bool fl__dist_check_folder(const char *path, bool *there) {
    struct stat s;
    *there = false;
    if (lstat(path, &s)) return fl_fail("fl_dist_init: folder %s: %s", path, strerror(errno));
    *there = true;
    if (!fl__dist_check_owner(path, &s)) return false;
    if (stat(path, &s) || !S_ISDIR(s.st_mode)) return fl_fail("fl_dist_init: %s is not a folder", path);
    return fl__dist_check_owner(path, &s);
}

/* Writes a file that only this user can read, atomically. */
static bool fl__dist_write_file(const char *path, const char *text, size_t n) {
    char temp[640];
    snprintf(temp, sizeof temp, "%s.%ld", path, (long)getpid());
    unlink(temp); /* left by a process that died */
    const int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write(fd, text, n) == (ssize_t)n;
    if (fd >= 0 && close(fd)) ok = false;
    if (ok && !rename(temp, path)) return true;
    fl_fail("fl_dist_init: writing %s: %s", path, strerror(errno));
    if (fd >= 0) unlink(temp);
    return false;
}

/* Publishes "address port" of rank 0, and its generated token if none was given, in the store or folder. */
static bool fl__dist_publish(const fl__dist_world *w, const char *address, int port, const char *token) {
    char text[192], path[600];
    bool there;
    const int n = snprintf(text, sizeof text, "%s %d %s", address, port, token);
    if (w->store) return w->store->set(w->store, "rank0", text, (size_t)n);
    if (!*w->folder) return true;
    if (mkdir(w->folder, 0700) && errno != EEXIST)
        return fl_fail("fl_dist_init: folder %s: %s", w->folder, strerror(errno));
    fl__dist_folder_file(w, path, sizeof path);
    return fl__dist_check_folder(w->folder, &there) && fl__dist_write_file(path, text, (size_t)n);
}

/* Reads what rank 0 has published in the folder. False after fl_fail: *final if it cannot be trusted, else it
   is not there yet. */
static bool fl__dist_read_folder(const fl__dist_world *w, char *text, size_t size, bool *final) {
    struct stat s;
    char path[600];
    if (!fl__dist_check_folder(w->folder, final)) return false;
    fl__dist_folder_file(w, path, sizeof path);
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    *final = fd < 0 && (errno == ELOOP || errno == EACCES);
    if (fd < 0 && *final) return fl_fail("fl_dist_init: reading %s: %s", path, strerror(errno));
    const bool stated = fd >= 0 && !fstat(fd, &s);
    if (stated) *final = !S_ISREG(s.st_mode) || !fl__dist_check_owner(path, &s);
    const ssize_t n = stated && !*final ? read(fd, text, size - 1) : -1;
    if (fd >= 0) close(fd);
    if (*final) return fl_error() ? false : fl_fail("fl_dist_init: %s is not a regular file", path);
    if (n <= 0) return fl_fail("fl_dist_init: rank 0 has not written %s yet", path);
    text[n] = '\0';
    return true;
}

/* Gets rank 0's address, and its generated token if any. False after fl_fail: *final, or not published
   yet. */
static bool fl__dist_find_rank0(const fl__dist_world *w, char host[256], int *port, char token[64],
                                double deadline, bool *final) {
    char text[192] = {0};
    *token = '\0';
    *final = false;
    if (*w->host) return *port = w->port, snprintf(host, 256, "%s", w->host) > 0;
    if (!w->store) {
        if (!fl__dist_read_folder(w, text, sizeof text, final)) return false;
    } else if (w->store->get(w->store, "rank0", text, sizeof text - 1, deadline) < 0) {
        return *final = true, false;
    }
    return sscanf(text, "%63s %d %63s", host, port, token) >= 2 ||
           fl_fail("fl_dist_init: rank 0 published '%s', expected an address and port", text);
}

/* Rank 0 listens and publishes its address. Without a given token it generates one, which is published only
   where other users cannot read it. */
static bool fl__dist_open_rank0(fl__dist_link *l, const fl__dist_world *w, const char *token,
                                const char *iface) {
    const char *at = iface ? iface : *w->host ? w->host : "127.0.0.1";
    uint8_t key[FL__DIST_SECRET];
    char own[2 * FL__DIST_SECRET + 1] = "";
    int port = w->port;
    if (!iface && !*w->host && w->local_size < w->size)
        return fl_fail("fl_dist_init: ranks on several hosts with a folder: set .iface to the address of "
                       "rank 0");
    if (!fl__dist_random(l->secret) || !fl__dist_random(key)) return false;
    for (int i = 0; !*token && !*w->host && i < FL__DIST_SECRET; i++)
        snprintf(own + 2 * i, 3, "%02x", key[i]);
    if (!fl_dist_address_of(at, l->address, sizeof l->address)) return false;
    const int listen_fd = fl_dist_listen(l->address, &port);
    if (listen_fd < 0) return false;
    fl__dist_token_key(*own ? own : token, key);
    fl__dist_listener_open(&l->listener, listen_fd, 0, l->size, FL__DIST_CONTROL, key, l->heartbeat);
    memcpy(l->listener.secret, l->secret, sizeof l->secret);
    l->n_connected = 1;
    return fl__dist_publish(w, l->address, port, own);
}

/* Sets the address at which others reach this rank: that of this end of the connection, or iface's. */
static bool fl__dist_own_address(fl__dist_link *l, int fd, const char *iface) {
    struct sockaddr_storage own;
    socklen_t n = sizeof own;
    if (iface) return fl_dist_address_of(iface, l->address, sizeof l->address);
    return (!getsockname(fd, (struct sockaddr *)&own, &n) &&
            !getnameinfo((struct sockaddr *)&own, n, l->address, sizeof l->address, NULL, 0,
                         NI_NUMERICHOST)) ||
           fl_fail("fl_dist_init: the local address of the connection to rank 0 is unknown");
}

/* Connects to rank 0, retrying until the deadline: a stale folder may name a port where nothing or another
   job listens, and rank 0 closes connections when it has too many. */
static bool fl__dist_connect_rank0(fl__dist_link *l, const fl__dist_world *w, const char *token,
                                   const char *iface, double deadline) {
    enum { GREETED = 5 }; /* seconds */
    const fl__dist_claim claim = {.rank = l->rank, .size = l->size};
    fl__dist_peer *p = l->peer;
    char host[256], generated[64], reason[200] = "";
    uint8_t key[FL__DIST_SECRET];
    int port = 0;
    for (bool final = false, proof;; final = false) {
        const double now = fl_dist_now();
        if (fl__dist_find_rank0(w, host, &port, generated, deadline, &final)) {
            fl__dist_token_key(*token ? token : generated, key);
            p->fd = fl_dist_connect(host, port, *w->host ? deadline : fmin(deadline, now + 0.2));
            final = p->fd < 0 && strstr(fl_error(), "host '");
        }
        proof = p->fd >= 0;
        if (proof && fl__dist_authenticate(p->fd, &claim, 0, FL__DIST_CONTROL, key, l->secret,
                                           fmin(deadline, fl_dist_now() + GREETED), deadline, &final))
            break;
        fl__dist_disconnect(p);
        if (proof && !final && !*reason)
            fl_log_message(FL_LOG_WARN, "fl_dist: rank %d at %s port %d: %s; retrying", l->rank, host,
                           port, fl_error());
        if (final || !fl__dist_retry(proof, reason, deadline)) return false;
    }
    p->last_heard = fl_dist_now();
    if (!(p->in = fl_heap_alloc(sizeof(fl__dist_header) + FL__DIST_BODY_MAX))) return false;
    return fl__dist_own_address(l, p->fd, iface);
}

static void fl__dist_link_free(fl__dist_link *l) {
    for (int i = 0; i < l->n_peers; i++) {
        fl_dist_socket_close(l->peer[i].fd);
        fl_heap_free(l->peer[i].in);
        fl_heap_free(l->peer[i].out);
    }
    for (fl__dist_store_item *i = l->items, *next; i; i = next) {
        next = i->next;
        fl_heap_free(i);
    }
    fl__dist_listener_close(&l->listener);
    fl_dist_socket_close(l->wake[0]);
    fl_dist_socket_close(l->wake[1]);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    fl_heap_free(l->seen);
    fl_heap_free(l->peer);
    fl_heap_free(l);
}

static fl__dist_link *fl__dist_link_new(const fl__dist_world *w, double heartbeat) {
    fl__dist_link *l = fl_heap_alloc(sizeof *l);
    if (!l) return NULL;
    memset(l, 0, sizeof *l);
    l->rank = w->rank, l->size = w->size, l->heartbeat = heartbeat;
    l->wake[0] = l->wake[1] = -1;
    fl__dist_listener_open(&l->listener, -1, 0, 0, "", l->secret, heartbeat);
    l->store = (fl_dist_store){fl__dist_store_set, fl__dist_store_get, l};
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&l->changed, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutexattr_t check;
    pthread_mutexattr_init(&check);
    pthread_mutexattr_settype(&check, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&l->lock, &check);
    pthread_mutexattr_destroy(&check);
    l->n_peers = w->rank ? 1 : w->size;
    l->peer = fl_heap_alloc((size_t)l->n_peers * sizeof *l->peer);
    l->seen = fl_heap_alloc(FL__DIST_COMPARED * sizeof *l->seen);
    bool ok = l->peer && l->seen;
    if (!l->peer) l->n_peers = 0;
    for (int i = 0; i < l->n_peers; i++) l->peer[i] = (fl__dist_peer){.fd = -1};
    if (ok && pipe(l->wake)) ok = fl_fail("fl_dist_init: pipe: %s", strerror(errno));
    for (int i = 0; ok && i < 2; i++) {
        fcntl(l->wake[i], F_SETFL, O_NONBLOCK);
        fcntl(l->wake[i], F_SETFD, FD_CLOEXEC);
    }
    if (ok) return l;
    fl__dist_link_free(l);
    return NULL;
}

/* Lists the ranks that have not connected: "1, 3". */
static void fl__dist_missing(const fl__dist_link *l, char *buf, size_t size) {
    size_t n = 0;
    buf[0] = '\0';
    for (int i = 1; i < l->size && n + 16 < size; i++)
        if (!l->peer[i].in) n += (size_t)snprintf(buf + n, size - n, "%s%d", n ? ", " : "", i);
}

static bool fl__dist_link_start(fl__dist_link *l, double deadline) {
    char missing[200];
    if (!fl__dist_thread_start(&l->thread, fl__dist_link_thread, l)) return false;
    l->started = true;
    const double begin = fl_dist_now();
    fl__dist_link_lock(l, true);
    while (!l->ready && !l->failure.kind && fl_dist_now() < deadline) fl__dist_link_wait(l, deadline);
    const bool ready = l->ready && !l->failure.kind;
    fl__dist_missing(l, missing, l->rank ? 0 : sizeof missing);
    if (l->failure.kind)
        fl_fail("fl_dist_init: %s", l->failure.text);
    else if (!ready && l->rank)
        fl_fail("fl_dist_init: timeout: not all ranks had connected after %.1f s", fl_dist_now() - begin);
    else if (!ready)
        fl_fail("fl_dist_init: timeout: of %d ranks these did not connect within %.1f s: %s%s%s", l->size,
                fl_dist_now() - begin, missing, *l->listener.reason ? "; a connection was refused: " : "",
                l->listener.reason);
    fl__dist_link_lock(l, false);
    return ready;
}

FL_PRIVATE fl__dist_link *fl__dist_link_open(const fl__dist_world *w, const char *token,
                                             const char *iface, double heartbeat, double deadline) {
    char path[600];
    fl__dist_link *l = fl__dist_link_new(w, heartbeat);
    if (!l) return NULL;
    if (!token) token = "";
    if ((w->rank ? fl__dist_connect_rank0(l, w, token, iface, deadline) :
                   fl__dist_open_rank0(l, w, token, iface)) &&
        fl__dist_link_start(l, deadline)) {
        if (!w->rank && *w->folder) { /* so that a later job does not find it */
            fl__dist_folder_file(w, path, sizeof path);
            unlink(path);
            rmdir(w->folder);
        }
        return l;
    }
    fl__dist_link_close(l);
    return NULL;
}

FL_PRIVATE void fl__dist_link_close(fl__dist_link *l) {
    if (!l) return;
    fl__dist_link_lock(l, true);
    const fl__dist_goodbye goodbye = {l->calls, l->rank, 0};
    const double deadline = fl_dist_now() + l->heartbeat;
    l->leaving = true;
    if (l->ready && !l->failure.kind) {
        if (l->rank)
            fl__dist_send_message(l, l->peer, FL__DIST_GOODBYE, &goodbye, sizeof goodbye, NULL, 0);
        else
            fl__dist_rank_left(l, 0, l->calls);
        if (l->rank) l->n_connected += l->size - 1; /* goodbyes to wait for */
        while (l->n_connected > 0 && !l->failure.kind && fl_dist_now() < deadline)
            fl__dist_link_wait(l, deadline);
    }
    for (int k = 0; k < 20 && l->started; k++) { /* flush the send queues */
        bool flushed = true;
        for (int i = 0; i < l->n_peers; i++) flushed = flushed && (l->peer[i].fd < 0 || !l->peer[i].n_out);
        if (flushed) break;
        fl__dist_wake(l);
        fl__dist_link_wait(l, fl_dist_now() + 0.01);
    }
    l->stop = true;
    fl__dist_wake(l);
    fl__dist_link_lock(l, false);
    if (l->started) pthread_join(l->thread, NULL);
    fl__dist_link_free(l);
}

FL_PRIVATE void fl__dist_link_hook(fl__dist_link *l, fl__dist_abort_hook *g, bool add) {
    fl__dist_abort_hook **at = &l->guards;
    fl__dist_link_lock(l, true);
    while (l->aborting) fl__dist_link_wait(l, fl_dist_now() + 1);
    while (*at && *at != g) at = &(*at)->next;
    if (add)
        g->next = l->guards, l->guards = g;
    else if (*at)
        *at = g->next;
    fl__dist_link_lock(l, false);
}
#endif
#endif
#endif
/* MIT licence: see LICENSE. */
