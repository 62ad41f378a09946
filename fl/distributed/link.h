/* link.h - the control channel: who lives, what each rank called, and what rank 0 keeps for all

   Each rank has one connection to rank 0, and one thread that looks after it, beside the one that carries
   data. It sends beats with the latest calls; rank 0 compares these. The end of a connection is a rank's
   death, no beat its standstill; whoever finds a failure says so to rank 0, which tells all. */
#ifndef FL_DIST_MEET_H
#include "meet.h"
#endif
#ifndef FL_DIST_LINK_H
#define FL_DIST_LINK_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fl_dist_failure_kind {
    FL_DIST_FINE,
    FL_DIST_DEATH,    /* the rank's process ended */
    FL_DIST_STALL,    /* it has not been heard of for a heartbeat */
    FL_DIST_MISMATCH, /* it called something else */
    FL_DIST_ERROR,    /* it had an error of its own, whose text this is */
    FL_DIST_LEFT,     /* it closed the group while another still called */
    FL_DIST_TIMEOUT,  /* the call passed its deadline; the rank is who noticed */
    FL_DIST_BROKEN    /* data or messages did not get through */
} fl_dist_failure_kind;
typedef struct fl_dist_failure_info {
    fl_dist_failure_kind kind;
    int rank;      /* whose failure it is, in the first group */
    uint64_t call; /* the number of the call that was running here, or the last one */
    char text[512];
} fl_dist_failure_info;

/* private */
/* What is compared of a call. */
typedef struct fl__dist_record {
    uint64_t group, number;
    int32_t kind, reduction, dtype, root;
    int64_t count;
} fl__dist_record;
typedef struct fl__dist_link fl__dist_link;
/* A group that failures end: abort is called once, from the link's thread. */
typedef struct fl__dist_guard {
    void (*abort)(struct fl__dist_guard *self);
    bool aborted;
    struct fl__dist_guard *next;
} fl__dist_guard;
/* Starts *thread, a pthread_t, which takes no signals: they are for the program's own threads, and SIGPIPE of
   libraries is for nobody. */
FL_PRIVATE bool fl__dist_thread(void *thread, void *(*run)(void *), void *arg);
/* Returns when all ranks have come; NULL after fl_fail. */
FL_PRIVATE fl__dist_link *fl__dist_link_open(const fl__dist_world *w, const char *token,
                                             const char *iface, double heartbeat, double deadline);
/* Says goodbye, and waits up to a heartbeat for that of the others. */
FL_PRIVATE void fl__dist_link_close(fl__dist_link *l);
FL_PRIVATE const fl_dist_store *fl__dist_link_store(fl__dist_link *l);
FL_PRIVATE const char *fl__dist_link_address(const fl__dist_link *l); /* of this rank, for data */
FL_PRIVATE const uint8_t *fl__dist_link_secret(const fl__dist_link *l); /* of the job, for data too */
FL_PRIVATE void fl__dist_link_guard(fl__dist_link *l, fl__dist_guard *g, bool add);
/* The lock of the link and of its groups, and its condition. wait: until `deadline` or a change. */
FL_PRIVATE void fl__dist_link_lock(fl__dist_link *l, bool on);
FL_PRIVATE void fl__dist_link_wait(fl__dist_link *l, double deadline);
FL_PRIVATE void fl__dist_link_changed(fl__dist_link *l);
/* With the lock held: the failure, NULL if all is well. */
FL_PRIVATE const fl_dist_failure_info *fl__dist_link_failure(fl__dist_link *l);
/* With the lock held: the first failure stays, and all ranks hear of it. */
FL_PRIVATE void fl__dist_link_fail(fl__dist_link *l, fl_dist_failure_kind kind, int rank,
                                   const char *format, ...) FL_PRINTF(4, 5);
/* With the lock held: this rank begins a call; it is compared when the latest is 20 ms old, or at once
   (hurry). */
FL_PRIVATE void fl__dist_link_note(fl__dist_link *l, const fl__dist_record *r);
FL_PRIVATE void fl__dist_link_hurry(fl__dist_link *l);

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
    FL__DIST_BODY = 1 << 16,   /* bytes of a message at most */
    FL__DIST_RECORDS = 64,     /* latest calls that a rank tells */
    FL__DIST_COMPARED = 256,   /* latest calls that rank 0 compares */
    FL__DIST_QUEUED = 1 << 22, /* bytes that wait for a rank at most */
    FL__DIST_KEPT = 1 << 26,   /* bytes of values that rank 0 keeps at most */
    FL__DIST_KEY = 128
};
#define FL__DIST_CONTROL "the control channel" /* what a connection to rank 0 proves the token for */
/* Seconds that a call may take before its record is told. */
#define FL__DIST_SOON 0.02
/* SET and GET go to rank 0, READY and VALUE come from it; the others go both ways. */
typedef enum fl__dist_word {
    FL__DIST_READY = 0x4c465d31,
    FL__DIST_SET,
    FL__DIST_GET,
    FL__DIST_VALUE,
    FL__DIST_BEAT,
    FL__DIST_BYE,
    FL__DIST_ABORT
} fl__dist_word;
typedef struct fl__dist_head {
    uint32_t word, bytes;
} fl__dist_head;
typedef struct fl__dist_bye {
    uint64_t calls;
    int32_t rank, unused;
} fl__dist_bye;

typedef struct fl__dist_peer {
    int fd; /* -1: none */
    bool bye, warned;
    bool wants; /* it waits for the value of `key` */
    double heard;
    char key[FL__DIST_KEY];
    char *in, *out; /* half a message; what is to be sent */
    size_t n_in;
    int64_t n_out, cap_out;
} fl__dist_peer;

typedef struct fl__dist_item {
    struct fl__dist_item *next;
    size_t bytes;
    char key[FL__DIST_KEY];
    char value[];
} fl__dist_item;

typedef struct fl__dist_seen {
    fl__dist_record r;
    int rank; /* who said so first */
} fl__dist_seen;

struct fl__dist_link {
    int rank, size, wake[2];
    double heartbeat, next_beat, turn; /* turn: when the thread last looked */
    double noted_at, asleep_until;     /* the latest call began; the thread looks at the latest */
    char address[64];
    fl__dist_door door;             /* on rank 0, until all ranks have come */
    uint8_t secret[FL__DIST_SECRET]; /* of the job */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool started, stop, ready, leaving, aborting;
    int came;            /* ranks, on rank 0 */
    fl__dist_peer *peer; /* of rank 0: all ranks; of others: rank 0 */
    int n_peers;
    fl__dist_item *items;
    int64_t item_bytes;
    fl_dist_store store;
    struct { /* to GET */
        bool here;
        int64_t bytes;
        char key[FL__DIST_KEY], value[FL__DIST_BODY];
    } answer;
    fl__dist_record record[FL__DIST_RECORDS]; /* number k at k % RECORDS */
    uint64_t noted, told;
    uint64_t calls; /* number of the latest call of the first group */
    bool left;      /* somebody, the first of them after its call number left_calls: */
    int left_rank;
    uint64_t left_calls;
    fl__dist_seen *seen;
    fl_dist_failure_info failure;
    fl__dist_guard *guards;
};

FL_PRIVATE bool fl__dist_thread(void *thread, void *(*run)(void *), void *arg) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    const int reason = pthread_create((pthread_t *)thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !reason || fl_fail("fl_dist_init: a thread: %s", strerror(reason));
}

/* The mutex checks who holds it: a mistake of ours ends the group instead of racing on. */
static void fl__dist_check_lock(fl__dist_link *l, int reason) {
    if (!reason || reason == ETIMEDOUT) return;
    fl_message(FL_LOG_ERROR, "fl_dist: the lock of the control channel: %s", strerror(reason));
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

static void fl__dist_poke(fl__dist_link *l) {
    const char c = 0;
    const ssize_t n = write(l->wake[1], &c, 1);
    (void)n; /* a full pipe wakes as well */
}

FL_PRIVATE void fl__dist_link_hurry(fl__dist_link *l) {
    if (l->told == l->noted) return;
    l->next_beat = 0;
    fl__dist_poke(l);
}

/* ---- messages ---- */

/* Puts a message into the queue of p. One that does not fit is lost, and with it the connection. */
static void fl__dist_say(fl__dist_link *l, fl__dist_peer *p, fl__dist_word word, const void *a,
                         size_t n_a, const void *b, size_t n_b) {
    const fl__dist_head head = {word, (uint32_t)(n_a + n_b)};
    const int64_t need = p->n_out + (int64_t)(sizeof head + n_a + n_b);
    if (p->fd < 0) return;
    if (need > FL__DIST_QUEUED || (need > p->cap_out && !fl_heap_grow(&p->out, &p->cap_out, need, 1))) {
        fl_error_clear();
        shutdown(p->fd, SHUT_RDWR);
        return;
    }
    memcpy(p->out + p->n_out, &head, sizeof head);
    if (n_a) memcpy(p->out + p->n_out + sizeof head, a, n_a);
    if (n_b) memcpy(p->out + p->n_out + sizeof head + n_a, b, n_b);
    p->n_out = need;
    fl__dist_poke(l);
}

static void fl__dist_say_all(fl__dist_link *l, fl__dist_word word, const void *bytes, size_t n) {
    for (int i = 0; i < l->n_peers; i++) fl__dist_say(l, &l->peer[i], word, bytes, n, NULL, 0);
}

static void fl__dist_write(fl__dist_peer *p) {
    const ssize_t k = send(p->fd, p->out, (size_t)p->n_out, MSG_NOSIGNAL);
    if (k <= 0) return; /* reading tells */
    memmove(p->out, p->out + k, (size_t)(p->n_out - k));
    p->n_out -= k;
}

static void fl__dist_hang_up(fl__dist_peer *p) {
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
    fl__dist_say_all(l, FL__DIST_ABORT, &l->failure, sizeof l->failure);
    fl__dist_poke(l);
    fl__dist_link_changed(l);
}

/* ---- what rank 0 keeps ---- */

static fl__dist_item *fl__dist_find(const fl__dist_link *l, const char *key) {
    fl__dist_item *i = l->items;
    while (i && strcmp(i->key, key)) i = i->next;
    return i;
}

static void fl__dist_answer(fl__dist_link *l, fl__dist_peer *p) {
    const fl__dist_item *i = p->wants ? fl__dist_find(l, p->key) : NULL;
    if (!i) return;
    p->wants = false;
    fl__dist_say(l, p, FL__DIST_VALUE, i->key, sizeof i->key, i->value, i->bytes);
}

/* False after fl_fail. */
static bool fl__dist_keep_item(fl__dist_link *l, const char *key, const void *value, size_t n) {
    if (l->item_bytes + (int64_t)(sizeof(fl__dist_item) + n) > FL__DIST_KEPT)
        return fl_fail("fl_dist: the store has more than %d bytes of values: no room for '%.100s'",
                       FL__DIST_KEPT, key);
    fl__dist_item *i = fl_heap_alloc(sizeof *i + n);
    if (!i) return false;
    *i = (fl__dist_item){.next = l->items, .bytes = n};
    snprintf(i->key, sizeof i->key, "%s", key);
    if (n) memcpy(i->value, value, n);
    l->items = i;
    l->item_bytes += (int64_t)(sizeof *i + n);
    for (int k = 1; k < l->size; k++) fl__dist_answer(l, &l->peer[k]);
    fl__dist_link_changed(l);
    return true;
}

static bool fl__dist_store_set(const fl_dist_store *self, const char *key, const void *bytes, size_t n) {
    fl__dist_link *l = self->user;
    char name[FL__DIST_KEY] = {0};
    if (strlen(key) >= sizeof name || n > FL__DIST_BODY - sizeof name)
        return fl_fail("fl_dist: a value of %zu bytes under '%.200s': at most %zu, and 127 in the name",
                       n, key, FL__DIST_BODY - sizeof name);
    snprintf(name, sizeof name, "%s", key);
    fl__dist_link_lock(l, true);
    const bool ok = l->rank || fl__dist_keep_item(l, name, bytes, n);
    if (l->rank) fl__dist_say(l, l->peer, FL__DIST_SET, name, sizeof name, bytes, n);
    fl__dist_link_lock(l, false);
    return ok;
}

static int64_t fl__dist_store_get(const fl_dist_store *self, const char *key, void *bytes, size_t size,
                                  double deadline) {
    fl__dist_link *l = self->user;
    char name[FL__DIST_KEY] = {0};
    const fl__dist_item *i = NULL;
    int64_t n = -1;
    snprintf(name, sizeof name, "%s", key);
    fl__dist_link_lock(l, true);
    if (l->rank) {
        l->answer.here = false;
        memcpy(l->answer.key, name, sizeof name);
        fl__dist_say(l, l->peer, FL__DIST_GET, name, sizeof name, NULL, 0);
    }
    while (!l->failure.kind && fl_dist_now() < deadline &&
           !(l->rank ? l->answer.here : (i = fl__dist_find(l, name)) != NULL))
        fl__dist_link_wait(l, deadline);
    const char *from = i ? i->value : l->answer.value;
    if (i)
        n = (int64_t)i->bytes;
    else if (l->rank && l->answer.here)
        n = l->answer.bytes;
    if (n > (int64_t)size)
        fl_fail("fl_dist: '%s' has %lld bytes, room is for %zu", key, (long long)n, size), n = -1;
    else if (n >= 0)
        memcpy(bytes, from, (size_t)n);
    else if (l->failure.kind)
        fl_fail("fl_dist: '%s' did not come: %s", key, l->failure.text);
    else
        fl_fail("fl_dist: nobody set '%s' in time", key);
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
    if (fl__dist_form_of(r->kind)->reduces && r->reduction >= 0 && r->reduction < FL_DIST_REDUCTIONS)
        n += snprintf(buf + n, size - (size_t)n, " (%s)", reductions[r->reduction]);
    if (r->root >= 0) snprintf(buf + n, size - (size_t)n, ", root %d", (int)r->root);
    return buf;
}

/* On rank 0: the call of a rank beside what another said of the same number. */
static void fl__dist_compare(fl__dist_link *l, const fl__dist_record *r, int rank) {
    fl__dist_seen *s = &l->seen[(r->group * 31 + r->number) % FL__DIST_COMPARED];
    if (s->r.group != r->group || s->r.number != r->number) {
        if (s->r.group != r->group || s->r.number < r->number) *s = (fl__dist_seen){*r, rank};
        return;
    }
    char a[128], b[128];
    if (!memcmp(&s->r, r, sizeof *r)) return;
    fl__dist_link_fail(l, FL_DIST_MISMATCH, rank, "call %" PRIu64 " is %s on rank %d and %s on rank %d",
                       r->number, fl__dist_record_text(&s->r, a, sizeof a), s->rank,
                       fl__dist_record_text(r, b, sizeof b), rank);
}

/* Who waits for a rank that left before this call waits in vain. */
static void fl__dist_miss(fl__dist_link *l) {
    if (l->left && l->calls > l->left_calls && !l->leaving)
        fl__dist_link_fail(l, FL_DIST_LEFT, l->left_rank,
                           "rank %d closed its group after call %" PRIu64 ", before call %" PRIu64,
                           l->left_rank, l->left_calls, l->calls);
}

FL_PRIVATE void fl__dist_link_note(fl__dist_link *l, const fl__dist_record *r) {
    l->record[l->noted++ % FL__DIST_RECORDS] = *r;
    l->noted_at = fl_dist_now();
    if (l->asleep_until > l->noted_at + FL__DIST_SOON) fl__dist_poke(l);
    if (r->group == 1) l->calls = r->number;
    fl__dist_miss(l);
}

/* Tells what was noted since the last beat. */
static void fl__dist_beat(fl__dist_link *l, double now) {
    fl__dist_record r[FL__DIST_RECORDS];
    uint64_t from = l->noted > FL__DIST_RECORDS ? l->noted - FL__DIST_RECORDS : 0;
    size_t n = 0;
    if (from < l->told) from = l->told;
    while (from < l->noted) r[n++] = l->record[from++ % FL__DIST_RECORDS];
    l->told = l->noted;
    l->next_beat = now + l->heartbeat / 4;
    if (l->rank) {
        fl__dist_say(l, l->peer, FL__DIST_BEAT, r, n * sizeof *r, NULL, 0);
        return;
    }
    fl__dist_say_all(l, FL__DIST_BEAT, NULL, 0);
    for (size_t i = 0; i < n; i++) fl__dist_compare(l, &r[i], 0);
}

/* A rank says goodbye. */
static void fl__dist_left(fl__dist_link *l, int rank, uint64_t calls) {
    fl__dist_peer *p = l->rank ? NULL : &l->peer[rank];
    const fl__dist_bye bye = {calls, rank, 0};
    if (p) p->bye = true;
    if (l->rank && !rank) l->peer->bye = true;
    if (l->rank == 0) fl__dist_say_all(l, FL__DIST_BYE, &bye, sizeof bye);
    l->came--;
    if (!l->left || calls < l->left_calls) l->left_rank = rank, l->left_calls = calls;
    l->left = true;
    fl__dist_miss(l);
    fl__dist_link_changed(l);
}

/* ---- taking messages ---- */

/* On rank 0: a rank has come that knows the token. */
static void fl__dist_welcome(fl__dist_link *l, fl__dist_caller *c) {
    const int rank = c->claim.rank;
    fl__dist_peer *p = &l->peer[rank];
    char why[100] = "", *in = p->in ? NULL : fl_heap_alloc(sizeof(fl__dist_head) + FL__DIST_BODY);
    if (p->in)
        snprintf(why, sizeof why, "rank %d is here already: do two jobs share an address or a folder?", rank);
    else if (!in)
        snprintf(why, sizeof why, "rank 0 is out of memory");
    fl_error_clear();
    const int fd = fl__dist_door_answer(&l->door, c, why);
    if (fd < 0) {
        fl_heap_free(in);
        return;
    }
    *p = (fl__dist_peer){.fd = fd, .heard = fl_dist_now(), .in = in};
    if (++l->came < l->size) return;
    l->ready = true;
    fl__dist_door_close(&l->door);
    fl__dist_say_all(l, FL__DIST_READY, NULL, 0);
    fl__dist_link_changed(l);
}

/* One message of a rank. False: it makes no sense. */
static bool fl__dist_take(fl__dist_link *l, int rank, fl__dist_peer *p, fl__dist_word word,
                          const char *body, size_t n) {
    fl__dist_bye bye;
    fl_dist_failure_info f;
    fl__dist_record r;
    const bool hub = l->rank == 0, key = n >= FL__DIST_KEY && !body[FL__DIST_KEY - 1];
    p->heard = fl_dist_now();
    p->warned = false;
    switch (word) {
    case FL__DIST_READY: return !hub && (l->ready = true, fl__dist_link_changed(l), true);
    case FL__DIST_SET:
        if (!hub || !key) return false;
        if (!fl__dist_keep_item(l, body, body + FL__DIST_KEY, n - FL__DIST_KEY)) {
            fl__dist_link_fail(l, FL_DIST_ERROR, rank, "rank %d: %s", rank, fl_error());
            fl_error_clear();
        }
        return true;
    case FL__DIST_GET:
        if (!hub || !key) return false;
        memcpy(p->key, body, sizeof p->key);
        p->wants = true;
        return fl__dist_answer(l, p), true;
    case FL__DIST_VALUE:
        if (hub || !key) return false;
        if (memcmp(body, l->answer.key, FL__DIST_KEY)) return true; /* of a get that gave up */
        l->answer.here = true;
        l->answer.bytes = (int64_t)(n - FL__DIST_KEY);
        memcpy(l->answer.value, body + FL__DIST_KEY, n - FL__DIST_KEY);
        fl__dist_link_changed(l);
        return true;
    case FL__DIST_BEAT:
        for (; hub && n >= sizeof r; n -= sizeof r, body += sizeof r)
            fl__dist_compare(l, memcpy(&r, body, sizeof r), rank);
        return n == 0;
    case FL__DIST_BYE:
        if (n != sizeof bye) return false;
        memcpy(&bye, body, n);
        if (bye.rank < 0 || bye.rank >= l->size || (hub && bye.rank != rank)) return false;
        if (bye.rank != l->rank) fl__dist_left(l, bye.rank, bye.calls);
        return true;
    case FL__DIST_ABORT:
        if (n != sizeof f) return false;
        memcpy(&f, body, n);
        f.text[sizeof f.text - 1] = '\0';
        if (f.kind <= FL_DIST_FINE || f.kind > FL_DIST_BROKEN) return false;
        fl__dist_link_fail(l, f.kind, f.rank, "%s", f.text);
        return true;
    default: return false;
    }
}

/* What came from peer i, message by message. False: no more of it. */
static bool fl__dist_read(fl__dist_link *l, int i) {
    fl__dist_peer *p = &l->peer[i];
    fl__dist_head head;
    const ssize_t k = recv(p->fd, p->in + p->n_in, sizeof head + FL__DIST_BODY - p->n_in, 0);
    if (k < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (k <= 0) return false;
    p->n_in += (size_t)k;
    size_t at = 0;
    while (p->n_in - at >= sizeof head) {
        memcpy(&head, p->in + at, sizeof head);
        if (head.bytes > FL__DIST_BODY) return errno = EPROTO, false;
        if (p->n_in - at < sizeof head + head.bytes) break;
        const char *body = p->in + at + sizeof head;
        at += sizeof head + head.bytes;
        if (!fl__dist_take(l, i, p, (fl__dist_word)head.word, body, head.bytes))
            return errno = EPROTO, false;
    }
    memmove(p->in, p->in + at, p->n_in - at);
    p->n_in -= at;
    return true;
}

/* The connection of peer i is over. */
static void fl__dist_lost(fl__dist_link *l, int i) {
    fl__dist_peer *p = &l->peer[i];
    const bool garbled = errno == EPROTO;
    fl__dist_hang_up(p);
    if (p->bye || l->stop) return;
    if (garbled)
        fl__dist_link_fail(l, FL_DIST_BROKEN, i, "rank %d sent what is no message", i);
    else
        fl__dist_link_fail(l, FL_DIST_DEATH, i, "rank %d died: its connection ended", i);
}

/* ---- the thread ---- */

/* A silent rank has stalled. If this process itself was paused, all ranks get their time again. */
static void fl__dist_listen_for(fl__dist_link *l, double now) {
    const bool away = now - l->turn > l->heartbeat / 2;
    l->turn = now;
    for (int i = 0; i < l->n_peers; i++) {
        fl__dist_peer *p = &l->peer[i];
        if (p->fd < 0) continue;
        if (away) p->heard = now;
        const double silent = now - p->heard;
        if (p->bye || !l->ready) continue;
        if (silent > l->heartbeat) {
            fl__dist_link_fail(l, FL_DIST_STALL, i,
                               "rank %d stands still: nothing was heard of it for %.1f s", i, silent);
        } else if (silent > 0.6 * l->heartbeat && !p->warned) {
            fl_message(FL_LOG_WARN, "fl_dist: rank %d is late: nothing was heard of it for %.1f s", i,
                       silent);
            p->warned = true;
        }
    }
}

/* Ends the groups: their calls fail soon. Not under the lock: a library may take its time. */
static void fl__dist_abort_groups(fl__dist_link *l) {
    for (fl__dist_guard *g = l->guards; g; g = g->next) {
        if (g->aborted) continue;
        g->aborted = l->aborting = true;
        fl__dist_link_lock(l, false);
        g->abort(g);
        fl__dist_link_lock(l, true);
        l->aborting = false;
        fl__dist_link_changed(l);
    }
}

/* Waits for something to do, without the lock: the pipe, the peers, then the door. poll passes over what is
   closed (-1). */
static bool fl__dist_poll(fl__dist_link *l, struct pollfd *f) {
    const double now = fl_dist_now();
    l->asleep_until = l->next_beat;
    if (l->told != l->noted)
        l->asleep_until = fmin(l->next_beat, fmax(now, l->noted_at + FL__DIST_SOON));
    const double left = l->asleep_until - now;
    f[0] = (struct pollfd){l->wake[0], POLLIN, 0};
    for (int i = 0; i < l->n_peers; i++)
        f[1 + i] = (struct pollfd){l->peer[i].fd, (short)(POLLIN | (l->peer[i].n_out ? POLLOUT : 0)), 0};
    const bool open = l->door.listener >= 0;
    if (open) fl__dist_door_poll(&l->door, f + 1 + l->n_peers);
    fl__dist_link_lock(l, false);
    const nfds_t n = (nfds_t)(1 + l->n_peers + (open ? 1 + FL__DIST_CALLERS : 0));
    const int ready = poll(f, n, left <= 0 ? 0 : (int)(1000 * left) + 1);
    fl__dist_link_lock(l, true);
    return ready > 0;
}

static void fl__dist_turn(fl__dist_link *l, struct pollfd *f) {
    char drain[256];
    if (fl__dist_poll(l, f)) {
        while (f[0].revents && read(l->wake[0], drain, sizeof drain) > 0) continue;
        for (int i = 0; i < l->n_peers; i++) {
            const short events = f[1 + i].revents;
            if (!events || l->peer[i].fd != f[1 + i].fd) continue;
            if (events & POLLOUT) fl__dist_write(&l->peer[i]);
            errno = 0;
            if ((events & ~POLLOUT) && !fl__dist_read(l, i)) fl__dist_lost(l, i);
        }
    }
    const double now = fl_dist_now();
    fl__dist_caller *c;
    while (l->door.listener >= 0 && (c = fl__dist_door_next(&l->door, now))) fl__dist_welcome(l, c);
    const bool late = l->told != l->noted && now >= l->noted_at + FL__DIST_SOON;
    if ((late || now >= l->next_beat) && (l->ready || l->rank))
        fl__dist_beat(l, now);
    else if (now >= l->next_beat)
        l->next_beat = now + l->heartbeat / 4;
    fl__dist_listen_for(l, now);
    for (int i = 0; i < l->n_peers; i++)
        if (l->peer[i].fd >= 0 && l->peer[i].n_out) fl__dist_write(&l->peer[i]);
    if (l->failure.kind) fl__dist_abort_groups(l);
}

static void *fl__dist_watch(void *arg) {
    fl__dist_link *l = arg;
    struct pollfd *f = fl_heap_alloc(((size_t)l->n_peers + 2 + FL__DIST_CALLERS) * sizeof *f);
    fl_quiet(+1);
    fl__dist_link_lock(l, true);
    if (!f) fl__dist_link_fail(l, FL_DIST_ERROR, l->rank, "rank %d: out of memory", l->rank);
    l->turn = fl_dist_now();
    while (f && !l->stop) fl__dist_turn(l, f);
    fl__dist_link_lock(l, false);
    fl_heap_free(f);
    return NULL;
}

/* ---- opening and closing ---- */

/* The file in the folder that tells where rank 0 listens. */
static void fl__dist_folder_file(const fl__dist_world *w, char *path, size_t size) {
    snprintf(path, size, "%s/rank0", w->folder);
}

/* Others must not be able to send ranks elsewhere. False after fl_fail. */
static bool fl__dist_ours(const char *path, const struct stat *s) {
    const bool shared = S_ISDIR(s->st_mode) && (s->st_mode & S_ISVTX); /* each deletes only what is his */
    if (s->st_uid != geteuid() && s->st_uid != 0)
        return fl_fail("fl_dist_init: %s belongs to user %ld: expected the user of this process, %ld", path,
                       (long)s->st_uid, (long)geteuid());
    return !(s->st_mode & (S_IWGRP | S_IWOTH)) || S_ISLNK(s->st_mode) || shared ||
           fl_fail("fl_dist_init: %s: others may write there (mode %03o): chmod go-w, or name another one",
                   path, (unsigned)s->st_mode & 0777);
}

/* Of the folder, or of the link that leads there and of what it leads to. Not there: false, *there too. */
static bool fl__dist_folder_ours(const char *path, bool *there) {
    struct stat s;
    *there = false;
    if (lstat(path, &s)) return fl_fail("fl_dist_init: folder %s: %s", path, strerror(errno));
    *there = true;
    if (!fl__dist_ours(path, &s)) return false;
    if (stat(path, &s) || !S_ISDIR(s.st_mode)) return fl_fail("fl_dist_init: %s is no folder", path);
    return fl__dist_ours(path, &s);
}

/* A file that this user alone reads, in one piece. */
static bool fl__dist_write_file(const char *path, const char *text, size_t n) {
    char temp[640];
    snprintf(temp, sizeof temp, "%s.%ld", path, (long)getpid());
    unlink(temp); /* of a process that died */
    const int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write(fd, text, n) == (ssize_t)n;
    if (fd >= 0 && close(fd)) ok = false;
    if (ok && !rename(temp, path)) return true;
    fl_fail("fl_dist_init: writing %s: %s", path, strerror(errno));
    if (fd >= 0) unlink(temp);
    return false;
}

/* "address port" of rank 0, and the token that it made if nobody gave one, as the store tells it. */
static bool fl__dist_publish(const fl__dist_world *w, const char *address, int port, const char *token) {
    char text[192], path[600];
    bool there;
    const int n = snprintf(text, sizeof text, "%s %d %s", address, port, token);
    if (w->store) return w->store->set(w->store, "rank0", text, (size_t)n);
    if (!*w->folder) return true;
    if (mkdir(w->folder, 0700) && errno != EEXIST)
        return fl_fail("fl_dist_init: folder %s: %s", w->folder, strerror(errno));
    fl__dist_folder_file(w, path, sizeof path);
    return fl__dist_folder_ours(w->folder, &there) && fl__dist_write_file(path, text, (size_t)n);
}

/* What rank 0 has written in the folder, "" if nothing. False after fl_fail: *final if it is not to be
   trusted, else it is not there yet. */
static bool fl__dist_read_folder(const fl__dist_world *w, char *text, size_t size, bool *final) {
    struct stat s;
    char path[600];
    if (!fl__dist_folder_ours(w->folder, final)) return false;
    fl__dist_folder_file(w, path, sizeof path);
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    *final = fd < 0 && (errno == ELOOP || errno == EACCES);
    if (fd < 0 && *final) return fl_fail("fl_dist_init: reading %s: %s", path, strerror(errno));
    const bool stated = fd >= 0 && !fstat(fd, &s);
    if (stated) *final = !S_ISREG(s.st_mode) || !fl__dist_ours(path, &s);
    const ssize_t n = stated && !*final ? read(fd, text, size - 1) : -1;
    if (fd >= 0) close(fd);
    if (*final) return fl_error() ? false : fl_fail("fl_dist_init: %s is no file", path);
    if (n <= 0) return fl_fail("fl_dist_init: rank 0 has not written %s", path);
    text[n] = '\0';
    return true;
}

/* Where rank 0 listens, and its token if nobody gave one. False after fl_fail: not told yet, or *final. */
static bool fl__dist_look_up(const fl__dist_world *w, char host[256], int *port, char token[64],
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
           fl_fail("fl_dist_init: '%s' is no address", text);
}

/* Rank 0 listens, and says where. A token of its own goes with that, where others cannot read it. */
static bool fl__dist_open_hub(fl__dist_link *l, const fl__dist_world *w, const char *token,
                              const char *iface) {
    const char *at = iface ? iface : *w->host ? w->host : "127.0.0.1";
    uint8_t key[FL__DIST_SECRET];
    char own[2 * FL__DIST_SECRET + 1] = "";
    int port = w->port;
    if (!iface && !*w->host && w->local_size < w->size)
        return fl_fail("fl_dist_init: several hosts and a folder: .iface must say at which address rank "
                       "0 is reached");
    if (!fl__dist_random(l->secret) || !fl__dist_random(key)) return false;
    for (int i = 0; !*token && !*w->host && i < FL__DIST_SECRET; i++)
        snprintf(own + 2 * i, 3, "%02x", key[i]);
    if (!fl_dist_address_of(at, l->address, sizeof l->address)) return false;
    const int listener = fl_dist_listen(l->address, &port);
    if (listener < 0) return false;
    fl__dist_token_key(*own ? own : token, key);
    fl__dist_door_open(&l->door, listener, 0, l->size, FL__DIST_CONTROL, key, l->heartbeat);
    memcpy(l->door.secret, l->secret, sizeof l->secret);
    l->came = 1;
    return fl__dist_publish(w, l->address, port, own);
}

/* The address of this end of the connection is where others reach this rank. */
static bool fl__dist_own_address(fl__dist_link *l, int fd, const char *iface) {
    struct sockaddr_storage own;
    socklen_t n = sizeof own;
    if (iface) return fl_dist_address_of(iface, l->address, sizeof l->address);
    return (!getsockname(fd, (struct sockaddr *)&own, &n) &&
            !getnameinfo((struct sockaddr *)&own, n, l->address, sizeof l->address, NULL, 0,
                         NI_NUMERICHOST)) ||
           fl_fail("fl_dist_init: this end has no address");
}

/* A rank connects to rank 0, again and again: a stale folder names a port where nobody listens, or another
   job does, and rank 0 closes connections when it has too many. */
static bool fl__dist_call_hub(fl__dist_link *l, const fl__dist_world *w, const char *token,
                              const char *iface, double deadline) {
    enum { GREETED = 5 }; /* seconds */
    const fl__dist_claim who = {.rank = l->rank, .size = l->size};
    fl__dist_peer *p = l->peer;
    char host[256], told[64], why[200] = "";
    uint8_t key[FL__DIST_SECRET];
    int port = 0;
    for (bool final = false, proof;; final = false) {
        const double now = fl_dist_now();
        if (fl__dist_look_up(w, host, &port, told, deadline, &final)) {
            fl__dist_token_key(*token ? token : told, key);
            p->fd = fl_dist_connect(host, port, *w->host ? deadline : fmin(deadline, now + 0.2));
            final = p->fd < 0 && strstr(fl_error(), "host '");
        }
        proof = p->fd >= 0;
        if (proof && fl__dist_prove(p->fd, &who, 0, FL__DIST_CONTROL, key, l->secret,
                                    fmin(deadline, fl_dist_now() + GREETED), deadline, &final))
            break;
        fl__dist_hang_up(p);
        if (proof && !final && !*why)
            fl_message(FL_LOG_WARN, "fl_dist: rank %d at %s port %d: %s; it tries again", l->rank, host,
                       port, fl_error());
        if (final || !fl__dist_try_again(proof, why, deadline)) return false;
    }
    p->heard = fl_dist_now();
    if (!(p->in = fl_heap_alloc(sizeof(fl__dist_head) + FL__DIST_BODY))) return false;
    return fl__dist_own_address(l, p->fd, iface);
}

static void fl__dist_link_free(fl__dist_link *l) {
    for (int i = 0; i < l->n_peers; i++) {
        fl_dist_socket_close(l->peer[i].fd);
        fl_heap_free(l->peer[i].in);
        fl_heap_free(l->peer[i].out);
    }
    for (fl__dist_item *i = l->items, *next; i; i = next) {
        next = i->next;
        fl_heap_free(i);
    }
    fl__dist_door_close(&l->door);
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
    fl__dist_door_open(&l->door, -1, 0, 0, "", l->secret, heartbeat);
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
    if (ok && pipe(l->wake)) ok = fl_fail("fl_dist_init: a pipe: %s", strerror(errno));
    for (int i = 0; ok && i < 2; i++) {
        fcntl(l->wake[i], F_SETFL, O_NONBLOCK);
        fcntl(l->wake[i], F_SETFD, FD_CLOEXEC);
    }
    if (ok) return l;
    fl__dist_link_free(l);
    return NULL;
}

/* "1, 3" of those who have not come. */
static void fl__dist_missing(const fl__dist_link *l, char *buf, size_t size) {
    size_t n = 0;
    buf[0] = '\0';
    for (int i = 1; i < l->size && n + 16 < size; i++)
        if (!l->peer[i].in) n += (size_t)snprintf(buf + n, size - n, "%s%d", n ? ", " : "", i);
}

static bool fl__dist_link_start(fl__dist_link *l, double deadline) {
    char missing[200];
    if (!fl__dist_thread(&l->thread, fl__dist_watch, l)) return false;
    l->started = true;
    const double begin = fl_dist_now();
    fl__dist_link_lock(l, true);
    while (!l->ready && !l->failure.kind && fl_dist_now() < deadline) fl__dist_link_wait(l, deadline);
    const bool ready = l->ready && !l->failure.kind;
    fl__dist_missing(l, missing, l->rank ? 0 : sizeof missing);
    if (l->failure.kind)
        fl_fail("fl_dist_init: %s", l->failure.text);
    else if (!ready && l->rank)
        fl_fail("fl_dist_init: after %.1f s not all ranks had come", fl_dist_now() - begin);
    else if (!ready)
        fl_fail("fl_dist_init: of %d ranks these did not come within %.1f s: %s%s%s", l->size,
                fl_dist_now() - begin, missing, *l->door.why ? "; a connection was refused: " : "",
                l->door.why);
    fl__dist_link_lock(l, false);
    return ready;
}

FL_PRIVATE fl__dist_link *fl__dist_link_open(const fl__dist_world *w, const char *token,
                                             const char *iface, double heartbeat, double deadline) {
    char path[600];
    fl__dist_link *l = fl__dist_link_new(w, heartbeat);
    if (!l) return NULL;
    if (!token) token = "";
    if ((w->rank ? fl__dist_call_hub(l, w, token, iface, deadline) :
                   fl__dist_open_hub(l, w, token, iface)) &&
        fl__dist_link_start(l, deadline)) {
        if (!w->rank && *w->folder) { /* nothing stays that a later job could take for its own */
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
    const fl__dist_bye bye = {l->calls, l->rank, 0};
    const double deadline = fl_dist_now() + l->heartbeat;
    l->leaving = true;
    if (l->ready && !l->failure.kind) {
        if (l->rank)
            fl__dist_say(l, l->peer, FL__DIST_BYE, &bye, sizeof bye, NULL, 0);
        else
            fl__dist_left(l, 0, l->calls);
        if (l->rank) l->came += l->size - 1; /* as many goodbyes are to come */
        while (l->came > 0 && !l->failure.kind && fl_dist_now() < deadline)
            fl__dist_link_wait(l, deadline);
    }
    for (int k = 0; k < 20 && l->started; k++) { /* what was said gets out */
        bool said = true;
        for (int i = 0; i < l->n_peers; i++) said = said && (l->peer[i].fd < 0 || !l->peer[i].n_out);
        if (said) break;
        fl__dist_poke(l);
        fl__dist_link_wait(l, fl_dist_now() + 0.01);
    }
    l->stop = true;
    fl__dist_poke(l);
    fl__dist_link_lock(l, false);
    if (l->started) pthread_join(l->thread, NULL);
    fl__dist_link_free(l);
}

FL_PRIVATE void fl__dist_link_guard(fl__dist_link *l, fl__dist_guard *g, bool add) {
    fl__dist_guard **at = &l->guards;
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
