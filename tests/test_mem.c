/* test_mem.c - fl_mem.h: errors, log, dtypes, threads, heap, device, buffers, managers, trace */
#define _GNU_SOURCE
#include "../fl_mem.h"
#include "test.h"
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <time.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
enum { UNDER_TSAN = 1 };
#else
enum { UNDER_TSAN = 0 };
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
enum { UNDER_ASAN = 1 };
#else
enum { UNDER_ASAN = 0 };
#endif

enum { KIB = 1024, MIB = 1024 * KIB };

/* ---- errors and log ---- */

static int handled;
static char handled_text[64];
static jmp_buf jump;

static void count_error(const char *text, void *user) {
    handled += *(int *)user;
    snprintf(handled_text, sizeof handled_text, "%s", text);
}

static void leave(const char *text, void *user) {
    (void)text, (void)user;
    longjmp(jump, 1);
}

TEST(errors_first_text_stays) {
    CHECK(fl_error() == NULL);
    CHECK(!fl_fail("first %d", 1));
    CHECK(!fl_fail("second"));
    CHECK_STR(fl_error(), "first 1");
    fl_error_clear();
    CHECK(fl_error() == NULL);
    char big[3000];
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = 0;
    fl_fail("%s", big);
    CHECK_EQ_INT(strlen(fl_error()), 1023);
    fl_error_clear();
}

TEST(errors_raise_once_and_quiet) {
    int one = 1;
    handled = 0;
    fl_set_error_handler(count_error, &one);
    CHECK(fl_raise() == NULL);
    CHECK_EQ_INT(handled, 0);
    fl_fail("bad");
    CHECK_EQ_INT(handled, 0);
    CHECK(fl_raise() == NULL && fl_raise() == NULL);
    CHECK_EQ_INT(handled, 1);
    CHECK_STR(handled_text, "bad");
    fl_error_clear();
    fl_quiet(+1);
    fl_fail("quiet");
    fl_raise();
    CHECK_EQ_INT(handled, 1);
    fl_quiet(-1);
    fl_raise();
    CHECK_EQ_INT(handled, 2);
    CHECK_STR(handled_text, "quiet");
    fl_error_clear();
    CHECK(fl_err_null("bad %d", 1) == NULL);
    CHECK_EQ_INT(handled, 3);
    CHECK_STR(handled_text, "bad 1");
    CHECK(!fl_err_false("the first text stays, and the handler has seen it"));
    CHECK_EQ_INT(handled, 3);
    fl_error_clear();
    CHECK(!fl_err_false("refused %d", 2));
    CHECK_EQ_INT(handled, 4);
    CHECK_STR(handled_text, "refused 2");
    fl_error_clear();
    fl_set_error_handler(NULL, NULL);
}

TEST(errors_handler_may_longjmp) {
    fl_set_error_handler(leave, NULL);
    for (int i = 0; i < 3; i++) {
        if (setjmp(jump) == 0) {
            fl_fail("round %d", i);
            fl_raise();
            CHECK(!"the handler came back");
        }
        CHECK_STR(fl_error(), "round");
        fl_error_clear();
    }
    fl_set_error_handler(NULL, NULL);
}

TEST(errors_default_handler_stops) {
    int ends[2], status;
    char text[100] = {0};
    REQUIRE(pipe(ends) == 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 1), dup2(ends[1], 2);
        setvbuf(stdout, NULL, _IOFBF, 1 << 12);
        printf("before\n");
        fl_fail("stop here: %d", 42);
        fl_raise();
        _exit(0);
    }
    close(ends[1]);
    ssize_t n = 0;
    for (ssize_t k; (k = read(ends[0], text + n, sizeof text - 1 - (size_t)n)) > 0;) n += k;
    CHECK_STR(text, "before\nfl: stop here: 42\n"); /* what was printed is not lost */
    CHECK_EQ_INT(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    close(ends[0]);
}

static void *fail_in_thread(void *unused) {
    bool clean = fl_error() == NULL;
    fl_fail("of the thread");
    return clean && strcmp(fl_error(), "of the thread") == 0 ? unused : NULL;
}

TEST(errors_belong_to_a_thread) {
    pthread_t t;
    void *ok = NULL;
    fl_fail("mine");
    REQUIRE(pthread_create(&t, NULL, fail_in_thread, handled_text) == 0);
    pthread_join(t, &ok);
    CHECK(ok == handled_text);
    CHECK_STR(fl_error(), "mine");
    fl_error_clear();
}

static char logged[256];
static fl_log_level logged_level;

static void log_line(fl_log_level level, const char *text, void *user) {
    logged_level = level;
    snprintf(logged, sizeof logged, "%s%s", (const char *)user, text);
}

TEST(log_sink_and_threshold) {
    fl_log_set_sink(log_line, "> ", FL_LOG_WARN);
    fl_log_message(FL_LOG_INFO, "below");
    CHECK_EQ_INT(logged[0], 0);
    fl_log_message(FL_LOG_ERROR, "above %d", 7);
    CHECK_STR(logged, "> above 7");
    CHECK_EQ_INT(logged_level, FL_LOG_ERROR);
    fl_log_set_sink(log_line, "> ", FL_LOG_OFF);
    logged[0] = 0;
    fl_log_message(FL_LOG_ERROR, "off");
    CHECK_EQ_INT(logged[0], 0);
    fl_log_set_sink(NULL, NULL, FL_LOG_WARN);
}

TEST(dtypes) {
    static const struct {
        fl_dtype d;
        const char *name;
        size_t size;
        bool is_float;
        fl_dtype wide;
    } want[] = {{FL_B8, "b8", 1, false, FL_B8},    {FL_U8, "u8", 1, false, FL_I64},
                {FL_I8, "i8", 1, false, FL_I64},   {FL_I16, "i16", 2, false, FL_I64},
                {FL_I32, "i32", 4, false, FL_I64}, {FL_I64, "i64", 8, false, FL_I64},
                {FL_U16, "u16", 2, false, FL_I64}, {FL_U32, "u32", 4, false, FL_I64},
                {FL_U64, "u64", 8, false, FL_I64}, {FL_F16, "f16", 2, true, FL_F32},
                {FL_BF16, "bf16", 2, true, FL_F32}, {FL_F32, "f32", 4, true, FL_F32},
                {FL_F64, "f64", 8, true, FL_F64}};
    CHECK_EQ_INT(sizeof want / sizeof want[0], FL_DTYPE_COUNT - 1);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        CHECK_EQ_INT(fl_dtype_size(want[i].d), want[i].size);
        CHECK(!strcmp(fl_dtype_name(want[i].d), want[i].name));
        CHECK_EQ_INT(fl_dtype_by_name(want[i].name), want[i].d);
        CHECK_EQ_INT(fl_dtype_is_float(want[i].d), want[i].is_float);
        CHECK_EQ_INT(fl_dtype_wide(want[i].d), want[i].wide);
    }
    CHECK_EQ_INT(fl_dtype_size((fl_dtype)99), 0);
    CHECK_EQ_INT(fl_dtype_size((fl_dtype)-1), 0);
    CHECK_EQ_INT(fl_dtype_size((fl_dtype)INT_MIN), 0);
    CHECK_EQ_INT(fl_dtype_size((fl_dtype)INT_MAX), 0);
    CHECK(!strcmp(fl_dtype_name(FL_DTYPE_NONE), "?"));
    CHECK_EQ_INT(fl_dtype_by_name("f99"), FL_DTYPE_NONE);
    CHECK_EQ_INT(fl_dtype_by_name(NULL), FL_DTYPE_NONE);
    CHECK_STR(fl_version(), "0.1.");
}

/* ---- threads ---- */

typedef struct sums {
    const double *x;
    double part[4096];
    int64_t grain, n, chunks;
    bool bad;
} sums;

static void sum_chunk(void *arg, int64_t begin, int64_t end) {
    sums *s = arg;
    double sum = 0;
    bool whole = end - begin == s->grain || end == s->n;
    if (begin % s->grain || !whole || !fl_in_parallel())
        __atomic_store_n(&s->bad, true, __ATOMIC_RELAXED);
    for (int64_t i = begin; i < end; i++) sum += s->x[i];
    s->part[begin / s->grain] += sum;
    __atomic_add_fetch(&s->chunks, 1, __ATOMIC_RELAXED);
}

/* The sum of x by chunks; checks that each chunk came once. */
static double sum_of(const double *x, int64_t n, int64_t grain) {
    static _Thread_local sums s;
    double total = 0;
    bool inside = fl_in_parallel();
    memset(&s, 0, sizeof s);
    s.x = x, s.n = n, s.grain = grain;
    fl_parallel(n, grain, sum_chunk, &s);
    CHECK(!s.bad && fl_in_parallel() == inside);
    CHECK_EQ_INT(s.chunks, (n + grain - 1) / grain);
    for (int64_t i = 0; i < s.chunks; i++) total += s.part[i];
    return total;
}

static double numbers[100000];

static void fill_numbers(void) {
    for (int i = 0; i < 100000; i++) numbers[i] = 1.0 / (i + 1);
}

TEST(threads_same_bits_for_any_number) {
    static const int counts[] = {1, 2, 3, 8, 1, 5};
    static const int64_t sizes[] = {0, 1, 7, 64, 65, 1000, 99999, 100000};
    fill_numbers();
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        double first = 0;
        for (size_t t = 0; t < sizeof counts / sizeof counts[0]; t++) {
            CHECK(fl_set_threads(counts[t]));
            CHECK_EQ_INT(fl_threads(), counts[t]);
            for (int round = 0; round < 20; round++) {
                double sum = sum_of(numbers, sizes[s], 64);
                if (t == 0) first = sum;
                CHECK(sum == first);
            }
        }
    }
}

typedef struct seen {
    pthread_t who[8];
    int n;
    pthread_mutex_t lock;
} seen;

static void note_thread(void *arg, int64_t begin, int64_t end) {
    seen *s = arg;
    (void)begin, (void)end;
    pthread_mutex_lock(&s->lock);
    int i = 0;
    while (i < s->n && !pthread_equal(s->who[i], pthread_self())) i++;
    if (i == s->n && s->n < 8) s->who[s->n++] = pthread_self();
    pthread_mutex_unlock(&s->lock);
    usleep(1000);
}

TEST(threads_are_really_used) {
    static seen s = {.lock = PTHREAD_MUTEX_INITIALIZER};
    fl_set_threads(3);
    for (int round = 0; round < 50 && s.n < 3; round++) fl_parallel(30, 1, note_thread, &s);
    CHECK_EQ_INT(s.n, 3);
    usleep(5000); /* the workers park */
    s.n = 0;
    for (int round = 0; round < 50 && s.n < 3; round++) fl_parallel(30, 1, note_thread, &s);
    CHECK_EQ_INT(s.n, 3);
}

static void nested_body(void *arg, int64_t begin, int64_t end) {
    double *out = arg;
    for (int64_t i = begin; i < end; i++) out[i] = sum_of(numbers, 1000 + i, 64);
}

TEST(threads_nested_loops_are_serial) {
    static double got[64], want[64];
    fill_numbers();
    fl_set_threads(1);
    nested_body(want, 0, 64);
    fl_set_threads(3);
    fl_parallel(64, 4, nested_body, got);
    for (int i = 0; i < 64; i++) CHECK(got[i] == want[i]);
    CHECK(!fl_in_parallel());
}

static void set_threads_inside(void *arg, int64_t begin, int64_t end) {
    (void)begin, (void)end;
    *(bool *)arg = fl_set_threads(2);
}

TEST(threads_setting) {
    bool ok = true;
    fl_parallel(1, 1, set_threads_inside, &ok);
    CHECK(!ok);
    CHECK_ERROR("inside a task of fl_parallel");
    CHECK(!fl_set_threads(100000));
    CHECK_ERROR("100000");
    setenv("FL_THREADS", "5", 1);
    CHECK(fl_set_threads(0));
    CHECK_EQ_INT(fl_threads(), 5);
    setenv("FL_THREADS", "nonsense", 1);
    CHECK(fl_set_threads(-1));
    CHECK(fl_threads() >= 1);
    unsetenv("FL_THREADS");
    fl_parallel(0, 0, set_threads_inside, &ok);
    fl_parallel(-5, 1, set_threads_inside, &ok);
    CHECK_NO_ERROR();
}

static pthread_t caller;
static int worker_failed; /* atomic */

/* Fails on workers; the caller waits for one of them. */
static void failing_body(void *arg, int64_t begin, int64_t end) {
    (void)arg, (void)begin, (void)end;
    if (!pthread_equal(pthread_self(), caller)) {
        fl_fail("worker %d went wrong", 42);
        fl_raise(); /* a handler never runs inside */
        __atomic_store_n(&worker_failed, 1, __ATOMIC_RELEASE);
    }
    for (int ms = 0; ms < 20000 && !__atomic_load_n(&worker_failed, __ATOMIC_ACQUIRE); ms++)
        usleep(1000);
}

static void failing_chunk(void *arg, int64_t begin, int64_t end) {
    (void)arg, (void)end;
    if (begin == 500) fl_fail("chunk %d went wrong", (int)begin);
}

TEST(threads_errors_reach_the_caller) {
    int one = 1;
    handled = 0;
    caller = pthread_self();
    fl_set_error_handler(count_error, &one);
    fl_set_threads(4);
    for (int round = 0; round < 20; round++) {
        worker_failed = 0;
        fl_parallel(8, 1, failing_body, NULL);
        CHECK_ERROR("worker 42 went wrong");
        fl_parallel(1000, 10, failing_chunk, NULL);
        CHECK_ERROR("chunk 500 went wrong");
        fl_parallel(400, 10, failing_chunk, NULL);
        CHECK_NO_ERROR();
    }
    CHECK_EQ_INT(handled, 0);
}

static void *sum_in_a_loop(void *arg) {
    double want = *(double *)arg;
    for (int round = 0; round < 300; round++)
        if (sum_of(numbers, 20000, 64) != want) return NULL;
    return arg;
}

TEST(threads_concurrent_callers) {
    pthread_t callers[4];
    void *ok;
    fill_numbers();
    fl_set_threads(1);
    double want = sum_of(numbers, 20000, 64);
    fl_set_threads(3);
    for (int i = 0; i < 4; i++)
        REQUIRE(pthread_create(&callers[i], NULL, sum_in_a_loop, &want) == 0);
    for (int i = 0; i < 20; i++) fl_set_threads(1 + i % 4);
    for (int i = 0; i < 4; i++) {
        pthread_join(callers[i], &ok);
        CHECK(ok == &want);
    }
}

#ifdef __linux__
/* For a millisecond: which thread this is, and where it runs. */
static void note_processor(void *arg, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        struct timespec start, now;
        clock_gettime(CLOCK_MONOTONIC, &start);
        do clock_gettime(CLOCK_MONOTONIC, &now);
        while ((now.tv_sec - start.tv_sec) * 1000000000L + now.tv_nsec - start.tv_nsec < 1000000);
        ((int *)arg)[i] = (pid_t)syscall(SYS_gettid) == getpid() ? -1 : sched_getcpu();
    }
}

/* Workers that slept wake up where their waker is not, but for what moves in between. */
TEST(workers_wake_up_on_other_processors) {
    enum { TASKS = 8, TIMES = 20 };
    if (fl_set_threads(0) && fl_threads() < 2) SKIP("one processor");
    fl_set_threads(2);
    int behind = 0;
    for (int t = 0; t < TIMES; t++) {
        int where[TASKS];
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        const int here = sched_getcpu();
        fl_parallel(TASKS, 1, note_processor, where);
        for (int i = 0; i < TASKS; i++) behind += where[i] == here;
    }
    CHECK(behind < TASKS * TIMES / 10);
    fl_set_threads(0);
}
#endif

TEST(threads_fork) {
    if (UNDER_TSAN) SKIP("the thread sanitizer starts no threads after a fork");
    fill_numbers();
    fl_set_threads(3);
    double want = sum_of(numbers, 100000, 64);
    fl_buffer *b = fl_buffer_new(100, NULL);
    for (int round = 0; round < 5; round++) {
        int status;
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20);
            bool ok = true;
            for (int i = 0; i < 20; i++) ok = ok && sum_of(numbers, 100000, 64) == want;
            ok = ok && fl_threads() == 3 && fl_mem_live_buffers() == 1;
            fl_buffer *c = fl_buffer_new(MIB, NULL);
            ok = ok && c && fl_mem_live_buffers() == 2;
            fl_buffer_drop(c);
            fl_buffer_drop(b);
            if (UNDER_ASAN) _exit(ok ? 0 : 1); /* its leak checker waits for the lost threads */
            exit(ok ? 0 : 1);
        }
        CHECK_EQ_INT(waitpid(pid, &status, 0), pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        CHECK(sum_of(numbers, 100000, 64) == want);
    }
    fl_buffer_drop(b);
}

/* ---- heap and device ---- */

typedef struct heap {
    int64_t live, calls, fail_at;
} heap;

static void *counting_heap(void *user, void *p, size_t bytes) {
    heap *h = user;
    if (!bytes) {
        __atomic_sub_fetch(&h->live, p != NULL, __ATOMIC_RELAXED);
        free(p);
        return NULL;
    }
    int64_t call = __atomic_add_fetch(&h->calls, 1, __ATOMIC_RELAXED);
    if (h->fail_at && call >= h->fail_at) return NULL;
    __atomic_add_fetch(&h->live, p == NULL, __ATOMIC_RELAXED);
    return realloc(p, bytes);
}

TEST(heap_hook_can_fail_everything) {
    heap h = {0};
    fl_heap_use(counting_heap, &h);
    bool done = false;
    for (int64_t n = 1; !done && n < 100; n++) {
        h.calls = 0, h.fail_at = n;
        fl_buffer *b = fl_buffer_new(1000, NULL);
        if (!b) CHECK_ERROR("out of memory");
        done = h.calls < n;
        CHECK((b != NULL) == done);
        h.fail_at = 0;
        if (!b) b = fl_buffer_new(1000, NULL);
        CHECK(b != NULL);
        CHECK_NO_ERROR();
        fl_buffer_drop(b);
        CHECK_EQ_INT(fl_mem_live_buffers(), 0);
        fl_mem_trim();
    }
    CHECK(done && h.calls > 0);
    CHECK(h.live <= 1); /* the record of this thread stays */
    CHECK_EQ_INT(fl_mem_stats_of(NULL).reserved, 0);
}

static void *drop_it(void *b) {
    fl_buffer_drop(b);
    return NULL;
}

TEST(heap_out_while_a_new_thread_drops) {
    heap h = {0};
    pthread_t t;
    fl_heap_use(counting_heap, &h);
    fl_buffer *b = fl_buffer_new(1000, NULL);
    REQUIRE(b);
    h.fail_at = 1;
    REQUIRE(pthread_create(&t, NULL, drop_it, b) == 0);
    pthread_join(t, NULL);
    h.fail_at = 0;
    CHECK_EQ_INT(fl_mem_live_buffers(), 0);
    CHECK_EQ_INT(fl_mem_stats_of(NULL).in_use, 0);
    CHECK_EQ_INT(fl_mem_stats_of(NULL).puts, 1);
}

TEST(device_host) {
    const fl_device *host = fl_device_host();
    static const size_t sizes[] = {1, 64, 5000, MIB - 1, MIB, 3 * MIB + 12345};
    CHECK(!strcmp(host->name, "host"));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (size_t align = 1; align <= 512 * KIB; align *= 16) {
            char *p = host->get(host, sizes[i], align), *q = host->get(host, sizes[i], 64);
            REQUIRE(p && q);
            CHECK_EQ_INT((uintptr_t)p % align, 0);
            CHECK_EQ_INT((uintptr_t)q % 64, 0);
            memset(p, 17, sizes[i]);
            CHECK(host->copy(host, q, p, sizes[i]));
            CHECK(q[0] == 17 && q[sizes[i] - 1] == 17);
            host->put(host, p, sizes[i]);
            host->put(host, q, sizes[i]);
        }
    CHECK(host->copy(host, NULL, NULL, 0));
    size_t limit = host->limit(host);
    if (limit) CHECK(host->get(host, limit + MIB, 64) == NULL);
}

/* ---- another device: plain memory that says so, with a manager and streams ---- */

static struct {
    int gets, puts, waits, manager_gets, trims;
    void *waiting, *awaited;
    bool refuses, may_wait;
} far_away;

static void *far_get(const fl_device *self, size_t bytes, size_t align) {
    (void)self;
    far_away.gets++;
    return far_away.refuses ? NULL : aligned_alloc(align, (bytes + align - 1) / align * align);
}
static void far_put(const fl_device *self, void *p, size_t bytes) {
    (void)self, (void)bytes;
    far_away.puts++;
    free(p);
}
static bool far_wait(const fl_device *self, void *stream, void *before) {
    (void)self;
    far_away.waits++;
    far_away.waiting = stream, far_away.awaited = before;
    return far_away.may_wait || fl_fail("far_wait: not today");
}
static bool keeper_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    far_away.manager_gets++;
    return fl_mem_native()->get(self, b, info);
}
static void keeper_put(fl_mem_manager *self, fl_buffer *b) {
    fl_mem_native()->put(self, b);
}
static size_t keeper_trim(fl_mem_manager *self) {
    (void)self;
    far_away.trims++;
    return 0;
}
static void keeper_stats(fl_mem_manager *self, fl_mem_stats *out) {
    (void)self;
    out->in_use = 4321;
}
static fl_mem_manager keeper = {.name = "keeper", .get = keeper_get, .put = keeper_put, .trim = keeper_trim,
                                .stats = keeper_stats};

TEST(a_device_without_a_manager_is_asked_itself) {
    const fl_device d = {.name = "far", .get = far_get, .put = far_put};
    const fl_mem_info info = {.device = &d};
    memset(&far_away, 0, sizeof far_away);
    fl_buffer *b = fl_buffer_new(100, &info);
    REQUIRE(b);
    CHECK(b->device == &d && b->manager == fl_mem_native());
    fl_buffer_drop(b);
    CHECK(far_away.gets == 1 && far_away.puts == 1);
    CHECK_EQ_INT(fl_mem_stats_of(fl_mem_native()).in_use, 0);
}

TEST(a_device_brings_its_manager) {
    const fl_device d = {.name = "far", .get = far_get, .put = far_put, .manager = &keeper};
    const fl_mem_info info = {.device = &d};
    memset(&far_away, 0, sizeof far_away);
    fl_buffer *b = fl_buffer_new(100, &info);
    REQUIRE(b);
    CHECK(b->manager == &keeper && far_away.manager_gets == 1);
    fl_buffer_drop(b);
    CHECK(far_away.puts == 1 && far_away.trims == 0);
    far_away.refuses = true;
    CHECK(fl_buffer_new(100, &info) == NULL);
    CHECK(far_away.trims == 1 && far_away.manager_gets == 3); /* a second try, after a trim */
    CHECK_STR(fl_error(), "in use 4321");
    CHECK_ERROR("(manager keeper)");
    far_away.refuses = false;
    fl_buffer_drop(fl_buffer_new(100, &info));
    CHECK_EQ_INT(fl_mem_live_buffers(), 0);
}

TEST(a_stream_waits_for_the_last_one) {
    int one, two;
    const fl_device d = {.name = "far", .get = far_get, .put = far_put, .wait = far_wait};
    const fl_mem_info info = {.device = &d};
    memset(&far_away, 0, sizeof far_away);
    far_away.may_wait = true;
    fl_buffer *b = fl_buffer_new(100, &info);
    REQUIRE(b);
    CHECK(fl_buffer_use(b, NULL) && far_away.waits == 0);
    CHECK(fl_buffer_use(b, &one) && far_away.waits == 1 && far_away.waiting == &one && !far_away.awaited);
    CHECK(fl_buffer_use(b, &one) && far_away.waits == 1);
    far_away.may_wait = false;
    CHECK(!fl_buffer_use(b, &two) && b->stream == &one);
    CHECK_ERROR("far_wait: not today");
    far_away.may_wait = true;
    CHECK(fl_buffer_use(b, &two) && far_away.awaited == &one && b->stream == &two);
    fl_buffer_drop(b);
    CHECK(!fl_buffer_use(NULL, &one));
    CHECK_ERROR("fl_buffer_use: the buffer is NULL");
}

/* ---- buffers ---- */

static void fill(fl_buffer *b, int seed) {
    unsigned char *p = fl_buffer_map(b);
    for (size_t i = 0; i < b->bytes; i++) p[i] = (unsigned char)(seed + (int)i * 7);
    fl_buffer_unmap(b);
}

static bool is_filled(fl_buffer *b, int seed) {
    const unsigned char *p = fl_buffer_map(b);
    bool ok = p != NULL;
    for (size_t i = 0; ok && i < b->bytes; i++) ok = p[i] == (unsigned char)(seed + (int)i * 7);
    if (p) fl_buffer_unmap(b);
    return ok;
}

static void check_sizes(void) {
    static const size_t sizes[] = {0,     1,      63,     64,      65,           4000,  65472,
                                   65473, 100000, MIB,    MIB - 1, 33 * MIB + 1, 65536, 511 * KIB};
    enum { N = sizeof sizes / sizeof sizes[0] };
    fl_buffer *b[N];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            b[i] = fl_buffer_new(sizes[i], NULL);
            REQUIRE(b[i]);
            CHECK_EQ_INT(b[i]->bytes, sizes[i]);
            CHECK_EQ_INT((uintptr_t)b[i]->ptr % FL_ALIGN, 0);
            CHECK(b[i]->state == FL_RESIDENT && b[i]->version == 0);
            CHECK(b[i]->device == fl_device_host());
            fill(b[i], i);
            const volatile char *spare = (char *)b[i]->ptr + sizes[i];
            for (int k = 0; k < FL_ALIGN; k++) (void)spare[k];
        }
        for (int i = 0; i < N; i++) CHECK(is_filled(b[i], i));
        CHECK_EQ_INT(fl_mem_live_buffers(), N);
        for (int i = 0; i < N; i++) fl_buffer_drop(b[(i * 5) % N]);
        CHECK_EQ_INT(fl_mem_live_buffers(), 0);
        CHECK_EQ_INT(fl_mem_stats_of(NULL).in_use, 0);
    }
}

TEST(buffers_caching) {
    check_sizes();
    CHECK(fl_mem_trim() > 0);
    fl_mem_stats s = fl_mem_stats_of(NULL);
    CHECK_EQ_INT(s.reserved, 0);
    CHECK_EQ_INT(s.free_blocks, 0);
    CHECK_EQ_INT(s.gets, s.puts);
    check_sizes();
}

TEST(buffers_native) {
    CHECK(fl_mem_set_current(fl_mem_native()) == fl_mem_caching());
    check_sizes();
    fl_mem_stats s = fl_mem_stats_of(NULL);
    CHECK(s.reserved == 0 && s.gets == s.puts && s.device_gets == s.gets);
    CHECK(fl_mem_set_current(NULL) == fl_mem_native());
    CHECK(fl_mem_current() == fl_mem_caching());
}

TEST(buffers_references) {
    fl_buffer_drop(NULL);
    CHECK(fl_buffer_keep(NULL) == NULL);
    fl_buffer *b = fl_buffer_new(100, NULL);
    CHECK(fl_buffer_keep(b) == b);
    fl_buffer_drop(b);
    CHECK_EQ_INT(fl_mem_live_buffers(), 1);
    CHECK(!fl_buffer_claim(b)); /* not pageable */
    fl_mem_set_current(fl_mem_native());
    fl_buffer_drop(b); /* goes back to the manager it came from */
    CHECK_EQ_INT(fl_mem_live_buffers(), 0);
    CHECK_EQ_INT(fl_mem_stats_of(fl_mem_caching()).in_use, 0);
    CHECK(fl_buffer_map(NULL) == NULL);
    CHECK_ERROR("fl_buffer_map");
}

TEST(buffers_frozen) {
    fl_buffer *b = fl_buffer_new(100, NULL), *made = fl_buffer_new(200, NULL);
    fl_buffer *other = fl_buffer_new(300, NULL);
    CHECK(!fl_buffer_is_frozen(b) && fl_buffer_cache_get(b, "one", 3) == NULL);
    CHECK(fl_buffer_freeze(b, true) && fl_buffer_is_frozen(b));
    CHECK(fl_buffer_cache_add(b, "one", 3, made) && fl_buffer_cache_add(b, "two", 3, other));
    CHECK(fl_buffer_cache_get(b, "one", 3) == made && fl_buffer_cache_get(b, "two", 3) == other);
    CHECK(!fl_buffer_cache_get(b, "on", 2) && !fl_buffer_cache_get(b, "six", 3));
    CHECK(fl_buffer_freeze(b, true) && fl_buffer_cache_get(b, "one", 3) == made);
    b->version++; /* a write */
    CHECK(!fl_buffer_is_frozen(b) && !fl_buffer_cache_get(b, "one", 3));
    CHECK(fl_buffer_freeze(b, true) && !fl_buffer_cache_get(b, "one", 3)); /* of the values before */
    CHECK_EQ_INT(fl_mem_live_buffers(), 1);
    CHECK(fl_buffer_cache_add(b, "one", 3, fl_buffer_new(10, NULL)));
    CHECK(fl_buffer_freeze(b, false) && !fl_buffer_is_frozen(b));
    CHECK_EQ_INT(fl_mem_live_buffers(), 1);
    CHECK(fl_buffer_freeze(b, true) && fl_buffer_cache_add(b, "one", 3, fl_buffer_new(10, NULL)));
    fl_buffer_drop(b); /* and what was made of it */
    CHECK_EQ_INT(fl_mem_live_buffers(), 0);
}

TEST(buffers_out_of_memory) {
    CHECK(fl_buffer_new(SIZE_MAX - 10, NULL) == NULL);
    CHECK_ERROR("fl_buffer_new: out of memory: asked for 18446744073709551605 bytes");
    CHECK(fl_buffer_new((size_t)1 << 50, NULL) == NULL);
    CHECK_STR(fl_error(), "in use 0");
    CHECK_ERROR("largest free");
    fl_mem_set_current(fl_mem_native());
    CHECK(fl_buffer_new((size_t)1 << 50, NULL) == NULL);
    CHECK_ERROR("out of memory");
    CHECK_EQ_INT(fl_mem_live_buffers(), 0);
}

static int restores;
static bool may_restore;

static bool restore_sevens(fl_buffer *b) {
    __atomic_add_fetch(&restores, 1, __ATOMIC_RELAXED);
    if (!may_restore) return fl_fail("restore_sevens: not now");
    if (!fl_buffer_fill(b, NULL)) return false;
    memset(b->ptr, *(int *)b->tag, b->bytes);
    return true;
}

TEST(buffers_absent_are_made_on_first_map) {
    int seven = 7;
    CHECK(fl_buffer_new_lazy(10, NULL, NULL, NULL) == NULL);
    CHECK_ERROR("restore is NULL");
    fl_buffer_drop(fl_buffer_new_lazy(10, NULL, restore_sevens, &seven));
    fl_buffer *b = fl_buffer_new_lazy(3000, NULL, restore_sevens, &seven);
    CHECK(b && b->state == FL_LAZY && b->ptr == NULL);
    CHECK(fl_buffer_map(b) == NULL);
    CHECK_ERROR("not now");
    may_restore = true;
    const char *p = fl_buffer_map(b);
    CHECK(p && p[0] == 7 && p[2999] == 7);
    CHECK_EQ_INT(b->state, FL_RESIDENT);
    fl_buffer_unmap(b);
    CHECK(fl_buffer_map(b) == p);
    CHECK_EQ_INT(restores, 2);
    fl_buffer_drop(b);
    CHECK_EQ_INT(fl_mem_live_buffers(), 0);
    CHECK_EQ_INT(fl_mem_stats_of(NULL).in_use, 0);
}

static void *map_it(void *arg) {
    fl_buffer *b = arg;
    const char *p = fl_buffer_map(b);
    bool ok = p && p[0] == 7 && p[b->bytes - 1] == 7;
    fl_buffer_unmap(b);
    return ok ? arg : NULL;
}

TEST(buffers_absent_mapped_by_many) {
    int seven = 7;
    may_restore = true;
    for (int round = 0; round < 50; round++) {
        pthread_t t[4];
        void *ok;
        fl_buffer *b = fl_buffer_new_lazy(200000, NULL, restore_sevens, &seven);
        for (int i = 0; i < 4; i++) REQUIRE(pthread_create(&t[i], NULL, map_it, b) == 0);
        for (int i = 0; i < 4; i++) {
            pthread_join(t[i], &ok);
            CHECK(ok == b);
        }
        CHECK_EQ_INT(restores, round + 1);
        fl_buffer_drop(b);
    }
}

static bool make_late(fl_buffer *b) {
    b->ptr = calloc(1, b->bytes + FL_ALIGN);
    return b->ptr || fl_fail("make_late: out of memory");
}

static bool late_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    (void)self, (void)info;
    b->state = FL_LAZY;
    b->restore = make_late;
    return true;
}

static void late_put(fl_mem_manager *self, fl_buffer *b) {
    (void)self;
    free(b->ptr);
}

TEST(buffers_of_a_manager_that_waits_for_the_map) {
    fl_mem_manager late = {.name = "late", .get = late_get, .put = late_put};
    fl_mem_set_current(&late);
    fl_buffer *b = fl_buffer_new(1000, NULL);
    CHECK(b && b->ptr == NULL && b->state == FL_LAZY);
    const char *p = fl_buffer_map(b);
    CHECK(p && p[999] == 0 && b->state == FL_RESIDENT);
    fl_buffer_unmap(b);
    fl_buffer_drop(b);
    fl_buffer_drop(fl_buffer_new(1000, NULL));
    fl_mem_set_current(NULL);
    CHECK_EQ_INT(fl_mem_live_buffers(), 0);
}

/* A pager: keeps at most `budget` bytes resident; copies the least recently mapped buffer away. */
typedef struct pager {
    fl_mem_manager table;
    pthread_mutex_t lock;
    fl_buffer *list[64];
    int n;
    size_t resident, budget;
    int64_t evictions;
} pager;

typedef struct page {
    pager *owner;
    void *saved;
} page;

static void pager_evict_one(pager *g) {
    fl_buffer *victim = NULL;
    for (int i = 0; i < g->n; i++) {
        fl_buffer *b = g->list[i];
        uint64_t use = __atomic_load_n(&b->last_use, __ATOMIC_RELAXED);
        if (b->state == FL_RESIDENT && (!victim || use < victim->last_use) && fl_buffer_claim(b)) {
            if (victim) fl_buffer_resident(victim);
            victim = b;
        }
    }
    if (!victim) return;
    page *pg = victim->tag;
    pg->saved = malloc(victim->bytes);
    memcpy(pg->saved, victim->ptr, victim->bytes);
    free(victim->ptr);
    victim->ptr = NULL;
    victim->state = FL_EVICTED;
    g->resident -= victim->bytes;
    g->evictions++;
}

static void *pager_take(pager *g, size_t bytes) {
    for (int i = 0; i < 64 && g->resident + bytes > g->budget; i++) pager_evict_one(g);
    g->resident += bytes;
    return aligned_alloc(FL_ALIGN, (bytes + 2 * FL_ALIGN - 1) / FL_ALIGN * FL_ALIGN);
}

static bool pager_restore(fl_buffer *b) {
    page *pg = b->tag;
    pager *g = pg->owner;
    pthread_mutex_lock(&g->lock);
    if (!b->ptr) {
        b->ptr = pager_take(g, b->bytes);
        memcpy(b->ptr, pg->saved, b->bytes);
        free(pg->saved);
        pg->saved = NULL;
        fl_buffer_resident(b);
    }
    pthread_mutex_unlock(&g->lock);
    return true;
}

static bool pager_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    pager *g = self->user;
    page *pg = calloc(1, sizeof *pg);
    CHECK(info != NULL);
    pthread_mutex_lock(&g->lock);
    pg->owner = g;
    b->tag = pg, b->pageable = true, b->restore = pager_restore;
    b->ptr = pager_take(g, b->bytes);
    g->list[g->n++] = b;
    pthread_mutex_unlock(&g->lock);
    return true;
}

static void pager_put(fl_mem_manager *self, fl_buffer *b) {
    pager *g = self->user;
    page *pg = b->tag;
    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < g->n; i++)
        if (g->list[i] == b) g->list[i--] = g->list[--g->n];
    if (b->ptr) g->resident -= b->bytes;
    free(b->ptr);
    free(pg->saved);
    free(pg);
    pthread_mutex_unlock(&g->lock);
}

static pager paging = {.table = {"pager", pager_get, pager_put, .user = &paging},
                       .lock = PTHREAD_MUTEX_INITIALIZER};

TEST(buffers_paged) {
    fl_buffer *b[16];
    paging.budget = 5000;
    fl_mem_set_current(&paging.table);
    for (int i = 0; i < 16; i++) {
        b[i] = fl_buffer_new(1000, NULL);
        fill(b[i], i);
    }
    CHECK(paging.resident <= paging.budget && paging.evictions >= 11);
    CHECK(b[0]->state == FL_EVICTED && b[0]->ptr == NULL && b[15]->state == FL_RESIDENT);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 16; i++) CHECK(is_filled(b[i], i));
    CHECK(paging.resident <= paging.budget);
    const unsigned char *p = fl_buffer_map(b[3]); /* a pin keeps it in place */
    for (int i = 4; i < 16; i++) CHECK(is_filled(b[i], i));
    CHECK(b[3]->ptr == p && p[0] == 3);
    CHECK(!fl_buffer_claim(b[3]));
    fl_buffer_unmap(b[3]);
    CHECK(fl_buffer_claim(b[3]));
    CHECK(!fl_buffer_claim(b[3]));
    fl_buffer_resident(b[3]);
    CHECK(is_filled(b[3], 3));
    for (int i = 0; i < 16; i++) fl_buffer_drop(b[i]);
    CHECK(paging.n == 0 && paging.resident == 0);
}

static fl_buffer *shared_pages[8];

static void *read_pages(void *arg) {
    for (int i = 0; i < 1000; i++) {
        int k = (i * 5 + (int)(i % 7)) % 8;
        if (!is_filled(shared_pages[k], k)) return NULL;
    }
    return arg;
}

TEST(buffers_paged_by_many_threads) {
    pthread_t t[4];
    void *ok;
    paging.budget = 3000;
    fl_mem_set_current(&paging.table);
    for (int i = 0; i < 8; i++) {
        shared_pages[i] = fl_buffer_new(700, NULL);
        fill(shared_pages[i], i);
    }
    for (int i = 0; i < 4; i++) REQUIRE(pthread_create(&t[i], NULL, read_pages, t) == 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], &ok);
        CHECK(ok == t);
    }
    CHECK(paging.evictions > 8);
    for (int i = 0; i < 8; i++) fl_buffer_drop(shared_pages[i]);
}

/* ---- the caching manager ---- */

TEST(caching_reuses_and_merges) {
    fl_buffer *b[8], *c;
    for (int i = 0; i < 8; i++) b[i] = fl_buffer_new(MIB, NULL);
    fl_mem_stats s = fl_mem_stats_of(NULL);
    CHECK_EQ_INT(s.device_gets, 1);
    CHECK_EQ_INT(s.reuses, 7);
    CHECK(s.in_use >= 8 * MIB && s.in_use < 9 * MIB && s.reserved >= 32 * MIB);
    void *first = b[0]->ptr, *third = b[2]->ptr;
    fl_buffer_drop(b[2]);
    c = fl_buffer_new(MIB - 100, NULL);
    CHECK(c->ptr == third); /* best fit */
    fl_buffer_drop(c);
    for (int i = 0; i < 7; i++) fl_buffer_drop(b[(int[]){0, 3, 6, 1, 4, 7, 5}[i]]);
    s = fl_mem_stats_of(NULL);
    CHECK(s.in_use == 0 && s.free_blocks == 1 && s.largest_free >= 32 * MIB - 4096);
    c = fl_buffer_new(30 * MIB, NULL); /* only a merged block has room */
    CHECK(c->ptr == first && fl_mem_stats_of(NULL).device_gets == 1);
    fl_buffer_drop(c);
    CHECK(fl_mem_trim() >= 32 * MIB);
    CHECK_EQ_INT(fl_mem_stats_of(NULL).reserved, 0);
}

TEST(caching_random_sizes_keep_their_bytes) {
    enum { N = 200 };
    static fl_buffer *b[N];
    uint32_t r = 1;
    for (int round = 0; round < 4000; round++) {
        r = r * 1664525u + 1013904223u;
        int i = (int)((r >> 8) % N);
        if (b[i]) {
            const unsigned char *p = b[i]->ptr;
            CHECK(p[0] == (unsigned char)i && p[b[i]->bytes - 1] == (unsigned char)i);
            fl_buffer_drop(b[i]);
        }
        b[i] = fl_buffer_new(1 + (r >> 4) % ((r & 3) ? 3000 : 600000), NULL);
        memset(b[i]->ptr, i, b[i]->bytes);
    }
    for (int i = 0; i < N; i++) fl_buffer_drop(b[i]);
    CHECK_EQ_INT(fl_mem_stats_of(NULL).in_use, 0);
    fl_mem_trim();
    CHECK_EQ_INT(fl_mem_stats_of(NULL).reserved, 0);
}

TEST(caching_freed_bytes_are_poisoned) {
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
    static const size_t sizes[] = {100, 40000, 3 * MIB};
    for (int i = 0; i < 3; i++) {
        fl_buffer *b = fl_buffer_new(sizes[i], NULL);
        char *p = b->ptr;
        CHECK(!__asan_address_is_poisoned(p + sizes[i] - 1));
        CHECK(!__asan_address_is_poisoned(p + sizes[i] + FL_ALIGN - 1)); /* the readable spare */
        fl_buffer_drop(b);
        CHECK(__asan_address_is_poisoned(p + sizes[i] / 2));
    }
#else
    SKIP("not under the address sanitizer");
#endif
}

TEST(caching_stats_peak) {
    fl_buffer *big = fl_buffer_new(10 * MIB, NULL), *more = fl_buffer_new(5 * MIB, NULL);
    fl_buffer_drop(big);
    fl_mem_stats s = fl_mem_stats_of(NULL);
    CHECK(s.peak_in_use >= 15 * MIB && s.peak_in_use < 16 * MIB);
    CHECK(s.in_use >= 5 * MIB && s.in_use < 6 * MIB);
    fl_mem_stats_reset_peak(NULL);
    s = fl_mem_stats_of(NULL);
    CHECK_EQ_INT(s.peak_in_use, s.in_use);
    fl_buffer_drop(more);
    logged[0] = 0;
    fl_log_set_sink(log_line, "", FL_LOG_INFO);
    fl_mem_report(NULL, FL_LOG_INFO);
    CHECK_STR(logged, "0 buffers alive");
    fl_log_set_sink(NULL, NULL, FL_LOG_WARN);
}

TEST(caching_split_limit) {
    setenv("FL_MEM_SPLIT_LIMIT", "4194304", 1);
    fl_buffer *small = fl_buffer_new(MIB, NULL), *big = fl_buffer_new(20 * MIB, NULL);
    CHECK(fl_mem_stats_of(NULL).reserved < 26 * MIB);
    fl_buffer_drop(big);
    fl_buffer *b[4];
    for (int i = 0; i < 4; i++) b[i] = fl_buffer_new(MIB, NULL);
    CHECK_EQ_INT(fl_mem_stats_of(NULL).largest_free / MIB, 20); /* the big one was left alone */
    for (int i = 0; i < 4; i++) fl_buffer_drop(b[i]);
    fl_buffer_drop(small);
}

/* One thread makes, another drops. */
typedef struct channel {
    fl_buffer *slot[64];
    int64_t head, tail; /* atomic */
    int64_t total;
} channel;

static void *produce(void *arg) {
    channel *ch = arg;
    for (int64_t i = 0; i < ch->total; i++) {
        while (i - __atomic_load_n(&ch->head, __ATOMIC_ACQUIRE) >= 64) sched_yield();
        ch->slot[i % 64] = fl_buffer_new(i % 2 ? 300 : 60000, NULL);
        __atomic_store_n(&ch->tail, i + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void consume(channel *ch) {
    for (int64_t i = 0; i < ch->total; i++) {
        while (i >= __atomic_load_n(&ch->tail, __ATOMIC_ACQUIRE)) sched_yield();
        fl_buffer_drop(ch->slot[i % 64]);
        __atomic_store_n(&ch->head, i + 1, __ATOMIC_RELEASE);
    }
}

TEST(caching_memory_is_flat_across_threads) {
    heap h = {0};
    channel ch = {.total = 5000};
    int64_t reserved = 0, live = 0;
    fl_heap_use(counting_heap, &h);
    for (int round = 0; round < 4; round++) {
        pthread_t t;
        ch.head = ch.tail = 0;
        REQUIRE(pthread_create(&t, NULL, produce, &ch) == 0);
        consume(&ch);
        pthread_join(t, NULL);
        if (round == 0) reserved = fl_mem_stats_of(NULL).reserved, live = h.live;
    }
    CHECK(reserved <= 16 * MIB);
    CHECK(fl_mem_stats_of(NULL).reserved <= reserved + 4 * MIB);
    CHECK(h.live <= live + 150);
    CHECK(fl_mem_live_buffers() == 0 && fl_mem_stats_of(NULL).in_use == 0);
}

static void *hammer(void *arg) {
    fl_buffer *b[32] = {NULL};
    uint32_t r = *(uint32_t *)arg;
    for (int round = 0; round < 1500; round++) {
        r = r * 1664525u + 1013904223u;
        int i = (int)((r >> 8) % 32);
        if (b[i] && *(uint32_t *)b[i]->ptr != (uint32_t)i) return NULL;
        fl_buffer_drop(b[i]);
        b[i] = fl_buffer_new(4 + (r >> 4) % ((r & 31) ? 2000 : 200000), NULL);
        if (!b[i]) return NULL;
        *(uint32_t *)b[i]->ptr = (uint32_t)i;
        if (round % 500 == 499) fl_mem_trim();
    }
    for (int i = 0; i < 32; i++) fl_buffer_drop(b[i]);
    return arg;
}

static void hammer_with_8_threads(void) {
    pthread_t t[8];
    uint32_t seeds[8];
    void *ok;
    for (uint32_t i = 0; i < 8; i++) {
        seeds[i] = i + 1;
        REQUIRE(pthread_create(&t[i], NULL, hammer, &seeds[i]) == 0);
    }
    for (int i = 0; i < 20; i++) CHECK(fl_mem_stats_of(NULL).reserved >= 0);
    for (int i = 0; i < 8; i++) {
        pthread_join(t[i], &ok);
        CHECK(ok == &seeds[i]);
    }
    CHECK(fl_mem_live_buffers() == 0 && fl_mem_stats_of(NULL).in_use == 0);
}

TEST(caching_8_threads) {
    hammer_with_8_threads();
    fl_mem_trim();
    CHECK_EQ_INT(fl_mem_stats_of(NULL).reserved, 0);
}

TEST(native_8_threads) {
    fl_mem_set_current(fl_mem_native());
    hammer_with_8_threads();
}

/* ---- failing ---- */

TEST(failing_fails_the_nth) {
    fl_mem_manager *once = fl_mem_failing(NULL, 3, false);
    REQUIRE(once);
    fl_mem_set_current(once);
    fl_buffer *b[5];
    for (int i = 0; i < 5; i++) {
        b[i] = fl_buffer_new(100, NULL);
        CHECK_EQ_INT(b[i] == NULL, i == 2);
        if (!b[i]) CHECK_ERROR("out of memory: asked for 100 bytes");
    }
    CHECK(fl_mem_stats_of(once).gets == 4);
    fl_mem_close(once); /* its buffers belong to the inner manager */
    CHECK(fl_mem_current() == fl_mem_caching());
    for (int i = 0; i < 5; i++) fl_buffer_drop(b[i]);
    fl_mem_manager *ever = fl_mem_failing(fl_mem_native(), 2, true);
    fl_mem_set_current(ever);
    b[0] = fl_buffer_new(100, NULL);
    CHECK(b[0] && b[0]->manager == fl_mem_native());
    for (int i = 0; i < 3; i++) {
        CHECK(fl_buffer_new(100, NULL) == NULL);
        CHECK_ERROR("out of memory");
    }
    fl_buffer_drop(b[0]);
    fl_mem_close(ever);
    fl_mem_close(fl_mem_caching()); /* nothing happens */
    CHECK(fl_mem_live_buffers() == 0);
}

/* ---- trace ---- */

/* Enough of a JSON reader to know that the text is one value: its end, NULL if malformed. */
static const char *json_value(const char *s) {
    s += strspn(s, " \n");
    if (*s == '{' || *s == '[') {
        char close = *s == '{' ? '}' : ']';
        bool object = *s++ == '{';
        for (bool first = true;; first = false) {
            s += strspn(s, " \n");
            if (*s == close) return s + 1;
            if (!first && *s++ != ',') return NULL;
            if (object) {
                s = json_value(s);
                if (!s || *s++ != ':') return NULL;
            }
            if (!(s = json_value(s))) return NULL;
        }
    }
    if (*s == '"') {
        for (s++; *s && *s != '"'; s++)
            if (*s == '\\' && !*++s) return NULL;
        return *s ? s + 1 : NULL;
    }
    size_t n = strspn(s, "0123456789.-");
    return n ? s + n : NULL;
}

static int occurrences(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)); text++) n++;
    return n;
}

static char *read_all(const char *path) {
    static char text[1 << 20];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    return text;
}

TEST(trace_is_json) {
    char path[] = P_tmpdir "/fl_trace_XXXXXX";
    int fd = mkstemp(path), seven = 7;
    REQUIRE(fd >= 0);
    close(fd);
    CHECK(!fl_mem_trace_save(path));
    CHECK_ERROR("no trace");
    fl_buffer_drop(fl_buffer_new(123, NULL)); /* before: not in the trace */
    CHECK(fl_mem_trace_begin(0));
    int64_t step = fl_mem_step();
    fl_mem_info info = {.op = "say \"add\"\n", .step = step};
    fl_buffer *b = fl_buffer_new(4321, &info);
    fl_buffer_map(b);
    fl_buffer_drop(b);
    may_restore = true;
    b = fl_buffer_new_lazy(99, NULL, restore_sevens, &seven);
    fl_buffer_map(b);
    fl_buffer_drop(b);
    CHECK(!fl_mem_trace_save("/nowhere/at/all.json"));
    CHECK_ERROR("/nowhere/at/all.json");
    CHECK(fl_mem_trace_save(path)); /* a failed save keeps the events */
    const char *text = read_all(path), *end = json_value(text);
    CHECK(end && !strcmp(end, "\n"));
    CHECK_EQ_INT(occurrences(text, "\"name\":\"get\""), 2);
    CHECK_EQ_INT(occurrences(text, "\"name\":\"put\""), 2);
    CHECK_EQ_INT(occurrences(text, "\"name\":\"map\""), 2);
    CHECK_EQ_INT(occurrences(text, "\"name\":\"restore\""), 1);
    CHECK_EQ_INT(occurrences(text, "\"bytes\":4321,"), 3);
    CHECK_STR(text, "\"traceEvents\"");
    CHECK_STR(text, "say \\\"add\\\"\\u000a");
    remove(path);
}

TEST(trace_is_bounded) {
    char path[] = P_tmpdir "/fl_trace_XXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    CHECK(!fl_mem_trace_begin(-1));
    CHECK_ERROR("max_events must not be negative, got -1");
    CHECK(fl_mem_trace_begin(20));
    for (int i = 0; i < 50; i++) fl_buffer_drop(fl_buffer_new(10, NULL));
    CHECK(fl_mem_trace_save(path));
    const char *text = read_all(path);
    CHECK(json_value(text) != NULL);
    CHECK_EQ_INT(occurrences(text, "\"ph\":\"i\""), 20);
    CHECK_STR(text, "\"lost\":80");
    remove(path);
#ifdef __linux__
    CHECK(fl_mem_trace_begin(0));
    for (int i = 0; i < 1000; i++) fl_buffer_drop(fl_buffer_new(10, NULL));
    CHECK(!fl_mem_trace_save("/dev/full"));
    CHECK_ERROR("cannot write /dev/full");
#endif
}

TEST(trace_8_threads) {
    CHECK(fl_mem_trace_begin(5000));
    hammer_with_8_threads();
    CHECK(fl_mem_trace_save("/dev/null"));
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
