/* fuzz_dist.c - what ranks tell each other, and what tells where rank 0 is: messages of ranks in any pieces,
   cut, oversized and without sense, to rank 0 and to others; claims of who connects and answers to them; the
   text of a store; environments

   The link is here without its thread: sockets are pairs whose other end is the fuzzer's. */
#include "fuzz.h"
#define FL_IMPL_ONLY
#define FL_IMPL_ONLY_DISTRIBUTED_MEET
#define FL_IMPL_ONLY_DISTRIBUTED_LINK
#include "../fl/distributed/meet.h"
#include "../fl/distributed/link.h"

static const fl__dist_message_type words[] = {FL__DIST_READY, FL__DIST_SET, FL__DIST_GET,  FL__DIST_VALUE,
                                              FL__DIST_HEARTBEAT,  FL__DIST_GOODBYE, FL__DIST_ABORT};

static size_t put(char *to, const void *from, size_t n) {
    memcpy(to, from, n);
    return n;
}

/* A message that makes sense but for what the input changes; its bytes. */
static size_t message(char *to) {
    const fl__dist_message_type word = words[fuzz_below(7)];
    char body[1024] = {0}, key[FL__DIST_KEY_SIZE] = {0};
    size_t n = 0;
    snprintf(key, sizeof key, "key%d", fuzz_below(3));
    switch (word) {
    case FL__DIST_SET:
    case FL__DIST_GET:
    case FL__DIST_VALUE:
        n = put(body, key, sizeof key);
        while (word != FL__DIST_GET && fuzz_input.left && n < 200) body[n++] = (char)fuzz_byte();
        break;
    case FL__DIST_HEARTBEAT:
        for (int k = fuzz_below(4); k >= 0; k--) {
            const fl__dist_record r = {1,
                                       (uint64_t)fuzz_size(),
                                       (int32_t)fuzz_size(),
                                       (int32_t)fuzz_size(),
                                       (int32_t)fuzz_size(),
                                       (int32_t)fuzz_size(),
                                       fuzz_size()};
            n += put(body + n, &r, sizeof r);
        }
        break;
    case FL__DIST_GOODBYE: {
        const fl__dist_goodbye goodbye = {(uint64_t)fuzz_size(), (int32_t)fuzz_size(), 0};
        n = put(body, &goodbye, sizeof goodbye);
        break;
    }
    case FL__DIST_ABORT: {
        fl_dist_failure_info f = {(fl_dist_failure_kind)fuzz_size(), (int)fuzz_int(), fuzz_word(2), ""};
        memset(f.text, fuzz_byte(), sizeof f.text);
        n = put(body, &f, sizeof f);
        break;
    }
    default:
        break;
    }
    if (fuzz_rarely(8) && n) body[fuzz_word(2) % n] = (char)fuzz_byte();
    if (fuzz_rarely(8)) n = fuzz_word(2) % sizeof body; /* cut, or longer */
    const fl__dist_header head = {fuzz_rarely(16) ? (uint32_t)fuzz_int() : word,
                                  fuzz_rarely(16) ? (uint32_t)fuzz_int() : (uint32_t)n};
    return put(to, &head, sizeof head) + put(to + sizeof head, body, n);
}

static void check(const fl__dist_link *l) {
    if (l->failure.kind > FL_DIST_BROKEN) fuzz_bug("failure %d", (int)l->failure.kind);
    if (!memchr(l->failure.text, 0, sizeof l->failure.text)) fuzz_bug("a text without an end");
    for (int i = 0; i < l->n_peers; i++) {
        const fl__dist_peer *p = &l->peer[i];
        if (p->n_in > sizeof(fl__dist_header) + FL__DIST_BODY_MAX)
            fuzz_bug("%zu bytes of half a message", p->n_in);
        if (p->n_out > FL__DIST_QUEUE_MAX) fuzz_bug("%" PRId64 " bytes in the queue", p->n_out);
    }
}

/* Bytes to peer i in pieces, each of which is read. */
static void tell(fl__dist_link *l, int i, int fd, const char *bytes, size_t n) {
    for (size_t at = 0; at < n && l->peer[i].fd >= 0;) {
        size_t piece = fuzz_rarely(2) ? 1 + fuzz_word(1) : n - at;
        if (piece > n - at) piece = n - at;
        if (send(fd, bytes + at, piece, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)piece) return;
        at += piece;
        errno = 0;
        if (!fl__dist_receive(l, i)) fl__dist_disconnected(l, i);
        check(l);
    }
}

static void messages(void) {
    enum { MOST = 3 };
    const fl__dist_world w = {.rank = fuzz_below(2), .size = 3};
    char bytes[2048], drain[4096];
    int end[MOST] = {-1, -1, -1};
    fl__dist_link *l = fl__dist_link_new(&w, 5);
    if (!l) return;
    l->n_connected = 1;
    const bool met = fuzz_byte() & 1; /* all ranks are there, or some */
    for (int i = 0; i < MOST && i < l->n_peers; i++) {
        int pair[2];
        if (!w.rank && (!i || (i == 2 && !met))) continue;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair)) continue;
        l->peer[i].fd = pair[0], end[i] = pair[1];
        l->peer[i].in = fl_heap_alloc(sizeof(fl__dist_header) + FL__DIST_BODY_MAX);
        if (!l->peer[i].in) close(pair[0]), l->peer[i].fd = -1;
    }
    l->ready = met;
    snprintf(l->answer.key, sizeof l->answer.key, "key1"); /* as if it had been asked for */
    for (int step = 0; fuzz_input.left && step < 40; step++) {
        const int i = fuzz_below(MOST);
        if (i < l->n_peers && end[i] >= 0 && l->peer[i].fd >= 0) {
            size_t n = 0;
            if (fuzz_rarely(4))
                while (fuzz_input.left && n < 64) bytes[n++] = (char)fuzz_byte();
            else
                n = message(bytes);
            tell(l, i, end[i], bytes, n);
        }
        const fl__dist_record r = {1, (uint64_t)step, 1, 0, FL_F32, -1, fuzz_size()};
        if (fuzz_rarely(4)) fl__dist_link_record(l, &r);
        if (fuzz_rarely(4)) fl__dist_send_heartbeat(l, fl_dist_now());
        fl__dist_check_heartbeats(l, fl_dist_now());
        for (int k = 0; k < l->n_peers; k++)
            if (l->peer[k].fd >= 0 && l->peer[k].n_out) fl__dist_flush(&l->peer[k]);
        for (int k = 0; k < MOST; k++)
            while (end[k] >= 0 && recv(end[k], drain, sizeof drain, MSG_DONTWAIT) > 0) continue;
        check(l);
    }
    fl__dist_link_free(l);
    for (int k = 0; k < MOST; k++) fl_dist_socket_close(end[k]);
}

static fl__dist_claim claim(const fl__dist_listener *d, const fl__dist_pending *c, bool *right) {
    fl__dist_claim h = {FL__DIST_VERSION, fl__dist_layout(), 1 + fuzz_below(3), d->size, {0}, 0};
    if (fuzz_rarely(4)) h.rank = (int32_t)fuzz_int();
    if (fuzz_rarely(8)) h.size = (int32_t)fuzz_int();
    if (fuzz_rarely(8)) h.version = (uint32_t)fuzz_int();
    h.proof = fl__dist_proof(d->key, d->purpose, d->rank, c->nonce, &h, NULL);
    const fl__dist_claim before = h;
    if (fuzz_rarely(2)) ((char *)&h)[fuzz_below((int)sizeof h)] ^= (char)fuzz_byte();
    *right = !memcmp(&h, &before, sizeof h) && h.version == FL__DIST_VERSION && h.size == d->size &&
             h.rank > d->rank && h.rank < d->size;
    return h;
}

/* What those send who connect to this rank: only a claim that is right opens the door. */
static void claims(void) {
    enum { MOST = 4 };
    fl__dist_listener d;
    int end[MOST];
    bool right[MOST] = {false};
    fl__dist_listener_open(&d, -1, fuzz_below(3), 4, "fuzz", (const uint8_t *)"0123456789abcdef", 5);
    for (int i = 0; i < MOST; i++) {
        int pair[2] = {-1, -1};
        end[i] = -1;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair)) continue;
        d.pending[i].fd = pair[0], end[i] = pair[1], d.pending[i].since = fl_dist_now();
        d.pending[i].nonce[0] = (uint8_t)i;
        const fl__dist_claim h = claim(&d, &d.pending[i], &right[i]);
        size_t n = fuzz_rarely(8) ? fuzz_word(1) % sizeof h : sizeof h;
        right[i] = right[i] && n == sizeof h;
        for (size_t at = 0; at < n;) {
            size_t piece = fuzz_rarely(2) ? 1 + fuzz_word(1) % sizeof h : n;
            if (piece > n - at) piece = n - at;
            if (send(end[i], (const char *)&h + at, piece, MSG_NOSIGNAL) < 0) break;
            at += piece;
            for (fl__dist_pending *c; (c = fl__dist_listener_next(&d, fl_dist_now()));) {
                if (!right[c - d.pending] || at < n) fuzz_bug("a claim that does not hold was taken");
                const int fd = fl__dist_listener_answer(&d, c, fuzz_rarely(4) ? "no" : "");
                fl_dist_socket_close(fd);
                right[c - d.pending] = false;
            }
        }
        if (right[i]) fuzz_bug("a claim that holds was not taken");
    }
    fl__dist_listener_close(&d);
    for (int i = 0; i < MOST; i++) fl_dist_socket_close(end[i]);
}

/* What a stranger answers who listens in a rank's place: never the proof of a key that it does not know. */
static void answers(void) {
    const fl__dist_claim who = {.rank = 1, .size = 2};
    fl__dist_challenge g = {FL__DIST_VERSION, fl__dist_layout(), {0}};
    fl__dist_reply v = {.proof = (uint64_t)fuzz_size()};
    int pair[2];
    bool refused = false;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair)) return;
    if (fuzz_rarely(2)) memset(v.reason, 1 + fuzz_byte() % 127, sizeof v.reason);
    if (send(pair[1], &g, sizeof g, MSG_NOSIGNAL) < 0) fuzz_bug("no room for a greeting");
    if (send(pair[1], &v, fuzz_rarely(2) ? fuzz_word(1) % sizeof v : sizeof v, MSG_NOSIGNAL) < 0)
        fuzz_bug("no room for a verdict");
    shutdown(pair[1], SHUT_WR);
    const double end = fl_dist_now() + 60;
    if (fl__dist_authenticate(pair[0], &who, 0, "fuzz", (const uint8_t *)"0123456789abcdef", NULL, end, end,
                              &refused) || refused)
        fuzz_bug("a verdict without a proof was taken");
    close(pair[0]);
    close(pair[1]);
}

/* What a folder's file says, in a folder of its own. */
static void store_file(void) {
    fl__dist_world w = {.rank = 1, .size = 2};
    char path[600], host[256], token[64];
    int port = 0;
    bool final;
    snprintf(w.folder, sizeof w.folder, "/tmp/fl-fuzz-XXXXXX");
    if (!mkdtemp(w.folder)) return;
    fl__dist_folder_file(&w, path, sizeof path);
    FILE *f = fopen(path, "w");
    if (f) {
        fwrite(fuzz_input.p, 1, fuzz_input.left, f);
        fclose(f);
        if (fl__dist_find_rank0(&w, host, &port, token, 0, &final) && !memchr(host, 0, sizeof host))
            fuzz_bug("a host without an end");
    }
    unlink(path);
    rmdir(w.folder);
}

/* Texts of the environment and of arguments. */
static void texts(void) {
    static const char *const names[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "SLURM_STEP_NODELIST",
                                        "SLURM_JOB_ID",
                                        "FL_DIST_STORE",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_NTASKS_PER_NODE",
                                        "SLURM_STEP_ID"};
    enum { NAMES = sizeof names / sizeof *names };
    static const char *const values[] = {"0", "1", "2", "65535", "n[1-3],m", "a[", "h:1", "/tmp/x"};
    fl__dist_world w = {.rank = 0};
    for (int k = fuzz_below(8); k > 0; k--) {
        char text[300];
        const int name = fuzz_below(NAMES);
        size_t n = 0, most = fuzz_rarely(8) ? 299 : 8;
        if (fuzz_rarely(3))
            while (fuzz_input.left && n < most && (text[n] = (char)fuzz_byte())) n++;
        else
            n = (size_t)snprintf(text, sizeof text, "%s", values[fuzz_below(8)]);
        text[n] = '\0';
        setenv(names[name], text, 1);
    }
    if (fl__dist_world_of(&w, 0, 0, NULL) && (w.rank < 0 || w.rank >= w.size))
        fuzz_bug("rank %d of %d", w.rank, w.size);
    for (int k = 0; k < NAMES; k++) unsetenv(names[k]);
}

static void fuzz_one(void) {
    fuzz_doing = "the link";
    if (fuzz_rarely(4)) fuzz_faults(0, 1 + fuzz_below(20));
    const int what = fuzz_below(10);
    if (what == 8)
        claims();
    else if (what == 9)
        answers();
    else if (what == 6)
        store_file();
    else if (what == 7)
        texts();
    else
        messages();
}
/* MIT licence: see LICENSE. */
