/* dist.h - ranks for tests: processes of this host that meet in a folder */
#ifndef TESTS_DIST_H
#define TESTS_DIST_H
#include "../fl_all.h"
#include "../examples/extend/ring.h"
#include "test.h"
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DIST_MOST = 8 };
typedef struct dist_ranks {
    const char *impl;
    int n;
    double heartbeat, timeout;
    bool may_fail; /* to meet: then d is NULL */
    char folder[64];
    pid_t pid[DIST_MOST];
} dist_ranks;
/* What a rank does; its failed checks are its exit status. */
typedef void (*dist_rank_fn)(fl_dist_group *d, int rank, const dist_ranks *r, void *user);

static inline fl_dist_group *dist_meet(const dist_ranks *r, int rank) {
    fl_dist_impl_use(&fl_dist_ring);
    return fl_dist_init(.impl = r->impl, .rank = rank, .size = r->n, .store = r->folder,
                        .heartbeat = r->heartbeat, .timeout = r->timeout ? r->timeout : 60);
}

/* Warnings are printed; an error message is a mistake of the library. */
static inline void dist_message(fl_log_level level, const char *text, void *user) {
    (void)user;
    if (level < FL_LOG_ERROR)
        fprintf(stderr, "fl: %s\n", text);
    else if (!CHECK(level < FL_LOG_ERROR))
        printf("%s\n", text);
}

static inline void dist_rank(const dist_ranks *r, int rank, dist_rank_fn fn, void *user) {
    test__failures = 0; /* not those of ranks before */
    test_errors_return();
    fl_log_set_sink(dist_message, NULL, FL_LOG_WARN);
    fl_scope s = fl_scope_begin();
    fl_dist_group *d = dist_meet(r, rank);
    if (r->may_fail || CHECK(d))
        fn(d, rank, r, user);
    else
        printf("rank %d: %s\n", rank, fl_error());
    fl_dist_close(d);
    if (fl_error()) CHECK_NO_ERROR();
    fl_scope_end(&s);
    if (!r->may_fail) CHECK_EQ_INT(fl_live_tensors(), 0); /* a call that hangs in a library keeps its tensors */
    fflush(stdout);
    _exit(test__failures ? 1 : 0);
}

static inline void dist_start(dist_ranks *r, dist_rank_fn fn, void *user) {
    snprintf(r->folder, sizeof r->folder, "/tmp/fl-test-XXXXXX");
    if (!CHECK(mkdtemp(r->folder))) return;
    fflush(stdout);
    for (int k = 0; k < r->n; k++) {
        r->pid[k] = fork();
        if (!r->pid[k]) dist_rank(r, k, fn, user);
        CHECK(r->pid[k] > 0);
    }
}

/* Ends of ranks; those that were killed do not count. */
static inline void dist_end(dist_ranks *r, int killed) {
    for (int k = 0; k < r->n; k++) {
        int status = 0;
        waitpid(r->pid[k], &status, 0);
        if (k == killed) continue;
        if (!CHECK(WIFEXITED(status) && !WEXITSTATUS(status)))
            printf("rank %d of %d over %s: status %#x\n", k, r->n, r->impl, status);
    }
    char file[80];
    snprintf(file, sizeof file, "%s/rank0", r->folder); /* of ranks that did not meet */
    unlink(file);
    rmdir(r->folder);
}

/* Jobs that mostly wait run some at a time: a place for the next one to start, and the end of all. */
enum { DIST_AT_ONCE = 12 };
typedef struct dist_jobs {
    dist_ranks r[DIST_AT_ONCE];
    int n;
} dist_jobs;
static inline dist_ranks *dist_job(dist_jobs *j) {
    dist_ranks *r = &j->r[j->n++ % DIST_AT_ONCE];
    if (j->n > DIST_AT_ONCE) dist_end(r, -1);
    return r;
}
static inline void dist_jobs_end(dist_jobs *j) {
    for (int k = j->n > DIST_AT_ONCE ? j->n - DIST_AT_ONCE : 0; k < j->n; k++)
        dist_end(&j->r[k % DIST_AT_ONCE], -1);
}

static inline void dist_run(const char *impl, int n, dist_rank_fn fn, void *user) {
    dist_ranks r = {.impl = impl, .n = n, .heartbeat = 5};
    dist_start(&r, fn, user);
    dist_end(&r, -1);
}

/* Connects to the rank 0 of that folder once it is there; its token, if there is one in the folder. -1: not
   within a minute. */
static inline int dist_call(const char *folder, char token[64]) {
    char path[128], host[64];
    int port = 0, fd = -1;
    snprintf(path, sizeof path, "%s/rank0", folder);
    for (const double end = fl_dist_now() + 60; fd < 0 && fl_dist_now() < end;) {
        FILE *f = fopen(path, "r");
        *token = '\0';
        if (f && fscanf(f, "%63s %d %63s", host, &port, token) >= 2)
            fd = fl_dist_connect(host, port, fl_dist_now() + 0.05);
        if (f) fclose(f);
        if (fd < 0) usleep(2000);
        fl_error_clear();
    }
    return fd;
}

/* A rank of somebody's own: proves the token to the rank 0 of that folder, as rank `rank` of `size`. */
static inline int dist_call_as(const char *folder, int rank, int size, uint8_t secret[FL__DIST_SECRET]) {
    const fl__dist_claim who = {.rank = rank, .size = size};
    char token[64];
    uint8_t key[FL__DIST_SECRET];
    bool refused;
    const double end = fl_dist_now() + 60;
    const int fd = dist_call(folder, token);
    fl__dist_token_key(token, key);
    if (fd >= 0 && fl__dist_authenticate(fd, &who, 0, "the control channel", key, secret, end, end, &refused))
        return fd;
    fl_dist_socket_close(fd);
    return -1;
}

/* Of the implementations that this build has. */
static inline const char *dist_impl(int k) {
    return k ? "gloo" : "ring";
}
static inline int dist_impls(void) {
    test_errors_return();
    if (fl_dist_impl_named("gloo")) return 2;
    fl_error_clear();
    return 1;
}
#endif
/* MIT licence: see LICENSE. */
