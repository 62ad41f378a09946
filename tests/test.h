/* test.h - the test harness: named tests, checks that go on, one process per test

   A test file is a program: any number of TESTs and one main. Every TEST runs in a forked child, so that
   a crash, a hang or a leak in one does not hide the others.

    #include "../fl_all.h"
    #include "test.h"
    TEST(add_broadcasts) {
        CHECK_EQ_INT(1 + 1, 2);
        CHECK_NEAR(0.1 + 0.2, 0.3, 1e-15);
    }
    int main(int argc, char **argv) { return test_main(argc, argv); }

   program [--no-fork] [--list] [filter]
     filter     run the tests whose name contains it
     --no-fork  run them in this process: for debuggers (TEST_NO_FORK=1 in the environment does the same)
   TEST_TIMEOUT  seconds a forked test may take, default 300

   The last line is "N passed, N failed[, N skipped]", counting TESTs; exit status 1 if one failed or
   none ran. */
#ifndef TEST_H
#define TEST_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifndef _WIN32
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#define TEST__FN __attribute__((unused)) static

typedef struct test__entry {
    const char *name;
    void (*run)(void);
    struct test__entry *next;
} test__entry;

static test__entry *test__first, **test__last = &test__first;
static int test__failures; /* failed checks of the running test */
static bool test__skipped;

/* FULL is in the environment, and not empty: exhaustive tests run all their cases, else a sample. */
TEST__FN bool test_full(void) {
    const char *full = getenv("FULL");
    return full && *full;
}

/* Defines and registers a test. */
#define TEST(test) \
    static void test_##test(void); \
    __attribute__((constructor)) static void test__add_##test(void) { \
        static test__entry entry = {#test, test_##test, NULL}; \
        *test__last = &entry; \
        test__last = &entry.next; \
    } \
    static void test_##test(void)

/* Checks record a failure and go on; they are usable from any thread. They yield true when they hold. */
#define CHECK(cond) test__check((cond) ? true : false, __FILE__, __LINE__, #cond)
#define CHECK_EQ_INT(a, b) test__equal((int64_t)(a), (int64_t)(b), __FILE__, __LINE__, #a " == " #b)
/* |a - b| <= tol; equal infinities are near, NaN is near nothing. */
#define CHECK_NEAR(a, b, tol) \
    test__near((double)(a), (double)(b), (double)(tol), __FILE__, __LINE__, #a " ~ " #b)
/* text contains part. */
#define CHECK_STR(text, part) test__contains((text), (part), __FILE__, __LINE__, #text)
/* Ends the test at once when cond does not hold (in the test's own function only). */
#define REQUIRE(cond) \
    do { \
        if (!CHECK(cond)) return; \
    } while (0)
/* Ends the test as skipped: say what was missing. */
#define SKIP(why) \
    do { \
        test__skip(why); \
        return; \
    } while (0)

/* Makes every error of fl a return value instead of the end of the process. */
#define test_errors_return() fl_set_error_handler(test__ignore_error, NULL)
/* An error is pending and its text contains part; clears it. */
#define CHECK_ERROR(part) (test__contains(fl_error(), (part), __FILE__, __LINE__, "fl_error()") ? \
                           (fl_error_clear(), true) : (fl_error_clear(), false))
/* No error is pending; shows and clears one that is. */
#define CHECK_NO_ERROR() \
    (fl_error() ? (test__fail(__FILE__, __LINE__, "no error", fl_error()), fl_error_clear(), false) : true)

#ifdef FL_TENSOR_H /* tests look at values by their address: deferred calls run first */
#define fl_data(t) \
    __extension__({ \
        const fl_tensor *test__t = (t); \
        fl_sync(NULL); \
        (fl_data)(test__t); \
    })
#endif
#ifdef FL_GRAPH_LAZY_H /* links the mode, so that FL_MODE=lazy works in every test */
static bool (*const test__lazy)(bool) __attribute__((used)) = fl_lazy;
#endif
/* Buffers in use; deferred calls have run. */
#define test_live_buffers() (fl_sync(NULL), fl_mem_live_buffers())
/* Nothing is pending, nothing lives, no function left this thread quiet: for the end of a test, whose errors
   return from then on. */
#define CHECK_NOTHING_LIVES() \
    (CHECK_NO_ERROR(), CHECK_EQ_INT(fl_live_tensors(), 0), CHECK_EQ_INT(test_live_buffers(), 0), \
     fl_set_error_handler(test__hear_error, NULL), test__heard = 0, fl_err_null("an error"), fl_error_clear(), \
     CHECK_EQ_INT(test__heard, 1))

/* Defined where the address or the thread sanitizer watches: freed memory is kept, all is slow. */
#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED
#endif

TEST__FN void test__ignore_error(const char *text, void *user) {
    (void)text, (void)user;
}

static int test__heard;
TEST__FN void test__hear_error(const char *text, void *user) {
    (void)text, (void)user;
    test__heard++;
}

TEST__FN void test__fail(const char *file, int line, const char *expr, const char *detail) {
    int n = __atomic_add_fetch(&test__failures, 1, __ATOMIC_RELAXED);
    if (n <= 20)
        printf("%s:%d: failed: %s%s%s\n", file, line, expr, detail ? ": " : "",
               detail ? detail : "");
    if (n == 21) printf("%s:%d: more failures of this test are not shown\n", file, line);
}

TEST__FN bool test__check(bool ok, const char *file, int line, const char *expr) {
    if (!ok) test__fail(file, line, expr, NULL);
    return ok;
}

TEST__FN bool test__equal(int64_t a, int64_t b, const char *file, int line, const char *expr) {
    if (a == b) return true;
    char detail[80];
    snprintf(detail, sizeof detail, "%lld and %lld", (long long)a, (long long)b);
    test__fail(file, line, expr, detail);
    return false;
}

TEST__FN bool test__near(double a, double b, double tol, const char *file, int line, const char *expr) {
    if (a == b || fabs(a - b) <= tol) return true;
    char detail[120];
    snprintf(detail, sizeof detail, "%.9g and %.9g, difference %.3g > %.3g", a, b, fabs(a - b), tol);
    test__fail(file, line, expr, detail);
    return false;
}

TEST__FN bool test__contains(const char *text, const char *part, const char *file, int line,
                             const char *expr) {
    if (text && strstr(text, part)) return true;
    char detail[600];
    snprintf(detail, sizeof detail, "\"%.250s\" has no \"%.250s\"", text ? text : "(null)", part);
    test__fail(file, line, expr, detail);
    return false;
}

TEST__FN void test__skip(const char *why) {
    test__skipped = true;
    printf("  skipped: %s\n", why);
}

/* The folder of the optional real data: DATA from the environment, else ../shared/data. */
TEST__FN const char *test_data_dir(void) {
    const char *dir = getenv("DATA");
    return dir && *dir ? dir : "../shared/data";
}

/* Bytes of this process in memory; 0 where they say nothing. */
TEST__FN int64_t test_resident_bytes(void) {
    long long pages = 0, resident = 0;
#if !defined(TEST_SANITIZED) && !defined(_WIN32)
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%lld %lld", &pages, &resident) != 2) resident = 0;
    if (f) fclose(f);
    resident *= sysconf(_SC_PAGESIZE);
#endif
    (void)pages;
    return resident;
}

#ifndef _WIN32
static char test__folder[64];
static pid_t test__folder_owner;
TEST__FN void test__remove_folder(void) {
    char command[80];
    if (getpid() != test__folder_owner) return;
    snprintf(command, sizeof command, "rm -rf %s", test__folder);
    if (system(command)) perror(test__folder);
}

/* A path in a folder of this process's own, which ends with the process; the last four stay valid. */
TEST__FN const char *test_file(const char *name) {
    static char path[4][128];
    static int turn;
    if (getpid() != test__folder_owner) {
        snprintf(test__folder, sizeof test__folder, "%s/fl-test-XXXXXX", P_tmpdir);
        if (!mkdtemp(test__folder)) perror(test__folder), exit(1);
        test__folder_owner = getpid();
        atexit(test__remove_folder);
    }
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", test__folder, name);
    return path[turn];
}
#endif

enum { TEST__PASSED, TEST__FAILED, TEST__SKIPPED, TEST__STATUS = 100 };

static int test__run(const test__entry *t) {
    test__failures = 0, test__skipped = false;
    t->run();
    return test__failures ? TEST__FAILED : test__skipped ? TEST__SKIPPED : TEST__PASSED;
}

#ifndef _WIN32
static int test__run_forked(const test__entry *t) {
    const char *limit = getenv("TEST_TIMEOUT");
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(limit ? (unsigned)atoi(limit) : 300);
        /* a test that calls exit, or leaks under a sanitizer, ends otherwise */
        exit(TEST__STATUS + test__run(t));
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        printf("%s: cannot run in a process of its own\n", t->name);
        return TEST__FAILED;
    }
    int result = WIFEXITED(status) ? WEXITSTATUS(status) - TEST__STATUS : -1;
    if (result >= TEST__PASSED && result <= TEST__SKIPPED) return result;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) printf("%s: took too long\n", t->name);
    else if (WIFSIGNALED(status)) printf("%s: died of signal %d\n", t->name, WTERMSIG(status));
    else printf("%s: ended the process with status %d\n", t->name, WEXITSTATUS(status));
    return TEST__FAILED;
}
#else
static int test__run_forked(const test__entry *t) {
    return test__run(t);
}
#endif

static int test_main(int argc, char **argv) {
    const char *filter = "", *no_fork = getenv("TEST_NO_FORK");
    bool forked = !no_fork || !*no_fork, list = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--no-fork")) forked = false;
        else if (!strcmp(argv[i], "--list")) list = true;
        else filter = argv[i];
    }
    int count[3] = {0};
    setvbuf(stdout, NULL, _IOLBF, 1 << 12);
    for (const test__entry *t = test__first; t; t = t->next) {
        if (!strstr(t->name, filter)) continue;
        if (list) {
            puts(t->name);
            continue;
        }
        int result = forked ? test__run_forked(t) : test__run(t);
        count[result]++;
        if (result != TEST__PASSED) printf("%s %s\n", result == TEST__FAILED ? "FAILED" : "skipped", t->name);
    }
    if (list) return 0;
    printf("%d passed, %d failed", count[TEST__PASSED], count[TEST__FAILED]);
    if (count[TEST__SKIPPED]) printf(", %d skipped", count[TEST__SKIPPED]);
    printf("\n");
    return count[TEST__FAILED] || count[TEST__PASSED] + count[TEST__SKIPPED] == 0;
}

#endif /* MIT licence: see LICENSE. */
