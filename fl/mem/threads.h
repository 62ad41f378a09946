/* fl/mem/threads.h - the thread pool: loops cut into chunks, the number of threads */
#ifndef FL_MEM_THREADS_H
#define FL_MEM_THREADS_H
#include "build.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*fl_task)(void *arg, int64_t begin, int64_t end);
/* Calls task(arg, begin, end) over [0, n) in chunks of exactly `grain` (the last may be shorter),
   in any order and on any thread; begin is always a multiple of grain. Serial when called inside a
   parallel body, when another thread holds the pool, when one chunk suffices, or with one thread.
   Returns when all chunks are done. */
FL_API void fl_parallel(int64_t n, int64_t grain, fl_task task, void *arg);
/* True inside a task of fl_parallel: ops refuse to run there. */
FL_API bool fl_in_parallel(void);
/* Threads that fl_parallel uses, the caller included. Default: the processors this process may run
   on, or FL_THREADS from the environment. Setting joins the old workers; n < 1 restores the
   default. */
FL_API int fl_threads(void);
FL_API bool fl_set_threads(int n);

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_THREADS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_THREADS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_THREADS_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_THREADS_IMPL
#include "shared.h"
#include "errors.h"
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef _WIN32
#include <unistd.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#endif

FL_PRIVATE _Thread_local bool fl__inside_task;

/* ---- processors ---- */

#define FL__THREADS_MAX 256

#ifdef __linux__
/* The number in the first line of a small system file, -1 if it cannot be had. *second gets the
   next one, if any. */
int64_t fl__system_number(const char *path, long long *second) {
    long long first = -1;
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    if (fscanf(f, "%lld %lld", &first, second) < 1) first = -1;
    fclose(f);
    return first;
}
#endif

/* Processors this process may run on: its affinity mask, cut by the quota of its container. */
static int fl__processors(void) {
    int n = 0;
#if defined(__linux__)
    unsigned long mask[1024 / CHAR_BIT] = {0};
    long long period = 0;
    long got = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
    for (size_t i = 0; got > 0 && i < sizeof mask / sizeof mask[0]; i++)
        n += __builtin_popcountl(mask[i]);
    int64_t quota = fl__system_number("/sys/fs/cgroup/cpu.max", &period);
    if (quota > 0 && period > 0 && (quota + period - 1) / period < n)
        n = (int)((quota + period - 1) / period);
#elif defined(_WIN32)
    n = pthread_num_processors_np();
#else
    n = (int)sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return n < 1 ? 1 : n > FL__THREADS_MAX ? FL__THREADS_MAX : n;
}

static int fl__threads_default(void) {
    const char *text = getenv("FL_THREADS");
    long n = text ? strtol(text, NULL, 10) : 0;
    return n < 1 ? fl__processors() : n > FL__THREADS_MAX ? FL__THREADS_MAX : (int)n;
}

/* ---- thread pool ----

   One caller at a time owns the pool (`busy`); it fills in the loop and opens the gate: number of
   the loop << 16, plus a bit that says closed, plus the count of workers inside. A worker enters
   with a compare-and-swap that fails once the gate is closed, so a worker that wakes late misses
   the loop instead of delaying it, and the loop's fields are only written while the gate is closed
   and nobody is inside. Chunks are taken one by one from `next`. Who waits spins for a while and
   then parks; the flags `parked` and `waiting` are ordered against the gate by sequential
   consistency on both sides, so no wake-up is lost. Forking inside a task is not supported. */

#define FL__GATE_CLOSED (1u << 15)
#define FL__GATE_INSIDE (FL__GATE_CLOSED - 1)
#define FL__SPIN_NS 30000

static struct {
    _Alignas(64) uint64_t gate; /* atomic */
    _Alignas(64) int64_t next;  /* atomic: the first chunk that nobody took */
    _Alignas(64) int busy;      /* atomic: a caller owns the pool */
    int n_threads;              /* atomic; 0: not decided yet */
    int parked, waiting;        /* atomic: workers asleep; the caller sleeps */
    bool stop;                  /* atomic: workers leave */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    fl_task task; /* the loop */
    void *arg;
    int64_t n, grain, chunks;
    int started;  /* the rest belongs to the owner: workers running, */
    int away;     /* 1 + the processor that they keep off, 0: none */
    bool refused; /* the system gives no more threads, */
    int64_t spin; /* how long to spin: not at all with more threads than processors */
    bool failed;  /* a task failed on a worker (under lock) */
    char text[FL__TEXT];
    pthread_t workers[FL__THREADS_MAX];
} fl__pool = {
    .gate = FL__GATE_CLOSED,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .work = PTHREAD_COND_INITIALIZER,
    .done = PTHREAD_COND_INITIALIZER,
};

static void fl__pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

FL_API int fl_threads(void) {
    int n = __atomic_load_n(&fl__pool.n_threads, __ATOMIC_ACQUIRE);
    if (n) return n;
    int fresh = fl__threads_default();
    if (!__atomic_compare_exchange_n(&fl__pool.n_threads, &n, fresh, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return n;
    return fresh;
}

FL_API bool fl_in_parallel(void) {
    return fl__inside_task;
}

static void fl__serial(int64_t n, int64_t grain, fl_task task, void *arg) {
    bool before = fl__inside_task;
    fl__inside_task = true;
    for (int64_t i = 0; i < n; i += grain) {
        if (n - i <= grain) {
            task(arg, i, n);
            break;
        }
        task(arg, i, i + grain);
    }
    fl__inside_task = before;
}

static void fl__pool_chunks(void) {
    int64_t c;
    fl__inside_task = true;
    while ((c = __atomic_fetch_add(&fl__pool.next, 1, __ATOMIC_RELAXED)) < fl__pool.chunks) {
        int64_t begin = c * fl__pool.grain;
        bool last = fl__pool.n - begin <= fl__pool.grain;
        fl__pool.task(fl__pool.arg, begin, last ? fl__pool.n : begin + fl__pool.grain);
    }
    fl__inside_task = false;
}

/* Carries the error of a task from this worker to the caller: the first one stays. */
static void fl__pool_hand_over_error(void) {
    if (!fl_error()) return;
    pthread_mutex_lock(&fl__pool.lock);
    if (!fl__pool.failed) memcpy(fl__pool.text, fl_error(), FL__TEXT);
    fl__pool.failed = true;
    pthread_mutex_unlock(&fl__pool.lock);
    fl_error_clear();
}

/* Enters the open loop unless it is the one this worker has seen. */
static bool fl__pool_enter(uint64_t *seen) {
    uint64_t g = __atomic_load_n(&fl__pool.gate, __ATOMIC_SEQ_CST);
    while (!(g & FL__GATE_CLOSED) && g >> 16 != *seen) {
        if (__atomic_compare_exchange_n(&fl__pool.gate, &g, g + 1, true, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
            *seen = g >> 16;
            return true;
        }
    }
    return false;
}

static void fl__pool_leave(void) {
    uint64_t g = __atomic_sub_fetch(&fl__pool.gate, 1, __ATOMIC_SEQ_CST);
    if (!(g & FL__GATE_CLOSED) || g & FL__GATE_INSIDE) return;
    if (__atomic_load_n(&fl__pool.waiting, __ATOMIC_SEQ_CST)) {
        pthread_mutex_lock(&fl__pool.lock);
        pthread_cond_signal(&fl__pool.done);
        pthread_mutex_unlock(&fl__pool.lock);
    }
}

/* Waits for a loop and enters it. False: the pool stops. */
static bool fl__pool_await(uint64_t *seen) {
    int64_t end = fl__pool.spin ? fl__nanoseconds() + fl__pool.spin : 0;
    do {
        for (int i = 0; i < 64; i++) {
            if (fl__pool_enter(seen)) return true;
            fl__pause();
        }
    } while (end && fl__nanoseconds() < end);
    bool entered, stop = false;
    pthread_mutex_lock(&fl__pool.lock);
    __atomic_add_fetch(&fl__pool.parked, 1, __ATOMIC_SEQ_CST);
    while (!(entered = fl__pool_enter(seen)) &&
           !(stop = __atomic_load_n(&fl__pool.stop, __ATOMIC_RELAXED)))
        pthread_cond_wait(&fl__pool.work, &fl__pool.lock);
    __atomic_sub_fetch(&fl__pool.parked, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&fl__pool.lock);
    return entered;
}

static void *fl__pool_worker(void *unused) {
    uint64_t seen = 0;
    while (fl__pool_await(&seen)) {
        fl__pool_chunks();
        fl__pool_hand_over_error();
        fl__pool_leave();
    }
    return unused;
}

/* Waits until the last worker has left the closed loop. */
static void fl__pool_drain(void) {
    int64_t end = fl__pool.spin ? fl__nanoseconds() + fl__pool.spin : 0;
    do {
        for (int i = 0; i < 64; i++) {
            if (!(__atomic_load_n(&fl__pool.gate, __ATOMIC_SEQ_CST) & FL__GATE_INSIDE)) return;
            fl__pause();
        }
    } while (end && fl__nanoseconds() < end);
    pthread_mutex_lock(&fl__pool.lock);
    __atomic_store_n(&fl__pool.waiting, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&fl__pool.gate, __ATOMIC_SEQ_CST) & FL__GATE_INSIDE)
        pthread_cond_wait(&fl__pool.done, &fl__pool.lock);
    __atomic_store_n(&fl__pool.waiting, 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&fl__pool.lock);
}

/* Starts workers up to `want`, with all signals blocked and the stack that kernels may count on. */
static void fl__pool_start(int want, int threads) {
    pthread_attr_t attr;
    if (fl__pool.started >= want || fl__pool.refused || pthread_attr_init(&attr)) return;
    if (!fl__pool.started) fl__pool.spin = threads <= fl__processors() ? FL__SPIN_NS : 0;
    pthread_attr_setstacksize(&attr, (size_t)2 << 20);
#ifndef _WIN32
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
    while (fl__pool.started < want && !fl__pool.refused) {
        pthread_t *slot = &fl__pool.workers[fl__pool.started];
        if (pthread_create(slot, &attr, fl__pool_worker, NULL))
            fl__pool.refused = true;
        else
            fl__pool.started++;
        fl__pool.away = 0;
    }
#ifndef _WIN32
    pthread_sigmask(SIG_SETMASK, &before, NULL);
#endif
    pthread_attr_destroy(&attr);
}

static void fl__pool_stop(void) {
    pthread_mutex_lock(&fl__pool.lock);
    __atomic_store_n(&fl__pool.stop, true, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&fl__pool.work);
    pthread_mutex_unlock(&fl__pool.lock);
    while (fl__pool.started > 0) pthread_join(fl__pool.workers[--fl__pool.started], NULL);
    fl__pool.stop = false;
    fl__pool.refused = false;
}

/* A sleeper tends to wake up on its waker's processor and to stay behind it for milliseconds while
   another one idles; so workers keep off the processor where the loop was started. */
static void fl__pool_spread(void) {
#if defined(__linux__)
    cpu_set_t others;
    const int here = sched_getcpu();
    if (here < 0 || here + 1 == fl__pool.away) return;
    if (sched_getaffinity(0, sizeof others, &others)) return;
    if (CPU_COUNT(&others) <= fl__pool.started) return; /* more threads than processors */
    CPU_CLR((size_t)here, &others);
    for (int i = 0; i < fl__pool.started; i++)
        pthread_setaffinity_np(fl__pool.workers[i], sizeof others, &others);
    fl__pool.away = here + 1;
#endif
}

/* Wakes as many sleepers as the loop can use besides those that spin. */
static void fl__pool_wake(int helpers) {
    int n = __atomic_load_n(&fl__pool.parked, __ATOMIC_SEQ_CST);
    if (!n) return;
    fl__pool_spread();
    pthread_mutex_lock(&fl__pool.lock);
    if (n <= helpers)
        pthread_cond_broadcast(&fl__pool.work);
    else
        for (int i = 0; i < helpers; i++) pthread_cond_signal(&fl__pool.work);
    pthread_mutex_unlock(&fl__pool.lock);
}

/* One loop over the pool, which this thread owns. */
static void fl__pool_run(int64_t n, int64_t grain, fl_task task, void *arg, int threads) {
    int64_t chunks = n / grain + (n % grain != 0);
    int helpers = chunks < threads ? (int)chunks - 1 : threads - 1;
    fl__pool_start(helpers, threads);
    fl__pool.task = task;
    fl__pool.arg = arg;
    fl__pool.n = n;
    fl__pool.grain = grain;
    fl__pool.chunks = chunks;
    __atomic_store_n(&fl__pool.next, 0, __ATOMIC_RELAXED);
    uint64_t number = (__atomic_load_n(&fl__pool.gate, __ATOMIC_RELAXED) >> 16) + 1;
    __atomic_store_n(&fl__pool.gate, number << 16, __ATOMIC_SEQ_CST);
    fl__pool_wake(helpers);
    fl__pool_chunks();
    if (__atomic_or_fetch(&fl__pool.gate, FL__GATE_CLOSED, __ATOMIC_SEQ_CST) & FL__GATE_INSIDE)
        fl__pool_drain();
    if (fl__pool.failed) fl_fail("%s", fl__pool.text);
    fl__pool.failed = false;
}

FL_API void fl_parallel(int64_t n, int64_t grain, fl_task task, void *arg) {
    if (grain < 1) grain = 1;
    int threads = n > grain && !fl__inside_task ? fl_threads() : 1;
    if (threads == 1 || __atomic_exchange_n(&fl__pool.busy, 1, __ATOMIC_ACQUIRE)) {
        fl__serial(n, grain, task, arg);
        return;
    }
    fl__setup();
    fl__pool_run(n, grain, task, arg, threads);
    __atomic_store_n(&fl__pool.busy, 0, __ATOMIC_RELEASE);
}

FL_API bool fl_set_threads(int n) {
    if (fl__inside_task) return fl_fail("fl_set_threads: called inside a parallel body");
    if (n > FL__THREADS_MAX)
        return fl_fail("fl_set_threads: %d threads, at most %d are possible", n, FL__THREADS_MAX);
    while (__atomic_exchange_n(&fl__pool.busy, 1, __ATOMIC_ACQUIRE)) sched_yield();
    fl__pool_stop();
    __atomic_store_n(&fl__pool.n_threads, n < 1 ? fl__threads_default() : n, __ATOMIC_RELEASE);
    __atomic_store_n(&fl__pool.busy, 0, __ATOMIC_RELEASE);
    return true;
}

#ifndef _WIN32
/* After a fork the child has this thread only: the pool is as new, with the number of threads kept.
   */
void fl__pool_forget(void) {
    fl__pool.gate |= FL__GATE_CLOSED;
    fl__pool.gate &= ~(uint64_t)FL__GATE_INSIDE;
    fl__pool.busy = fl__pool.parked = fl__pool.waiting = fl__pool.started = 0;
    fl__pool.stop = fl__pool.refused = fl__pool.failed = false;
    fl__pool.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    fl__pool.work = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    fl__pool.done = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}
#endif

/* At the end of the process: joins the workers, unless a loop is running. */
void fl__pool_end(void) {
    if (!__atomic_exchange_n(&fl__pool.busy, 1, __ATOMIC_ACQUIRE)) {
        fl__pool_stop();
        __atomic_store_n(&fl__pool.busy, 0, __ATOMIC_RELEASE);
    }
}

#endif
#endif

/* MIT licence: see LICENSE. */
