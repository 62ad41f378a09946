/* dist.h - ranks for tests: processes of this host that meet in a folder */
#ifndef TESTS_DIST_H
#define TESTS_DIST_H
#include "../fl.h"
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

static inline void dist_rank(const dist_ranks *r, int rank, dist_rank_fn fn, void *user) {
    test__failures = 0; /* not those of ranks before */
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_dist_group *d = dist_meet(r, rank);
    if (r->may_fail || CHECK(d))
        fn(d, rank, r, user);
    else
        printf("rank %d: %s\n", rank, fl_error());
    fl_dist_close(d);
    if (fl_error()) CHECK_NO_ERROR();
    fl_scope_end(&s);
    if (!r->may_fail) CHECK_EQ_INT(fl_live(), 0); /* a call that hangs in a library keeps its tensors */
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

/* Connects to the rank 0 of that folder once it is there, as a stranger, sends n bytes, and hangs up when
   told so, or after a second. With `hello` it first says that it is rank 1 of 2. */
static inline void dist_junk(const char *folder, bool hello, const void *bytes, size_t n) {
    char path[128], host[64];
    int port = 0, fd = -1;
    snprintf(path, sizeof path, "%s/rank0", folder);
    for (int tries = 0; tries < 500 && fd < 0; tries++) {
        FILE *f = fopen(path, "r");
        if (f && fscanf(f, "%63s %d", host, &port) == 2)
            fd = fl_dist_connect(host, port, fl_dist_now() + 0.05);
        if (f) fclose(f);
        if (fd < 0) usleep(2000);
        fl_error_clear();
    }
    const struct {
        uint32_t word, size, version, layout;
        int32_t rank, ranks;
        char token[128];
    } h = {0x4c465d31, 144, 1, 4 * 0x10000 + 40 * 0x100 + 8, 1, 2, ""};
    char answer[256];
    if (fd >= 0 && hello) fl_dist_socket_io(fd, true, (void *)(uintptr_t)&h, sizeof h, fl_dist_now() + 1);
    if (fd >= 0 && n) fl_dist_socket_io(fd, true, (void *)(uintptr_t)bytes, n, fl_dist_now() + 1);
    if (fd >= 0) fl_dist_socket_io(fd, false, answer, sizeof answer, fl_dist_now() + 0.05);
    fl_dist_socket_close(fd);
    fl_error_clear();
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
