/* fl/mem/threads.h - thread pool: parallel loops in chunks, number of threads */
#ifndef FL_MEM_THREADS_H
#define FL_MEM_THREADS_H
#include "build.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The body of a parallel loop: processes [begin, end). */
typedef void (*fl_task)(void *arg, int64_t begin, int64_t end);
/* Parallel for: calls task(arg, begin, end) over [0, n) in chunks of exactly `grain` (the last may be
   shorter), in any order and on any thread, and returns when all are done. begin is always a multiple of
   grain. Runs serially inside another parallel loop, while another thread uses the pool, if one chunk
   suffices, or with one thread. An error of a task (fl_fail) becomes the caller's error. */
FL_API void fl_parallel(int64_t n, int64_t grain, fl_task task, void *arg);
/* True inside a task of fl_parallel, where ops report an error. */
FL_API bool fl_in_parallel(void);
/* Number of threads of fl_parallel, the caller included. Default: the environment variable FL_THREADS, or
   the CPUs available to this process (affinity mask, container quota). */
FL_API int fl_threads(void);
/* Sets it, at most 256, and joins the old workers; n < 1 restores the default. False with an error if n is
   too large or inside a parallel loop. */
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

/* ---- CPUs ---- */

#define FL__THREADS_MAX 256

#ifdef __linux__
/* The first number of a small system file, -1 if it cannot be read; *second gets the next one, if any. */
int64_t fl__system_number(const char *path, long long *second) {
    long long first = -1;
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    if (fscanf(f, "%lld %lld", &first, second) < 1) first = -1;
    fclose(f);
    return first;
}
#endif

/* CPUs available to this process: its affinity mask, limited by the cgroup quota. */
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

   One caller at a time owns the pool (`busy`). It sets the fields of the loop and opens the gate, a word
   of: loop number << 16 | closed bit | count of workers inside. A worker enters by a compare-and-swap that
   fails once the gate is closed, so a worker that wakes up late misses the loop instead of delaying it.
   The loop's fields are written only while the gate is closed and no worker is inside. Chunks are claimed
   one by one from `next`. Waiting threads spin for a while, then park. The flags `parked` and `waiting`
   are ordered against the gate by sequential consistency on both sides, so no wake-up is lost. Forking
   inside a task is not supported. */

#define FL__GATE_CLOSED (1u << 15)
#define FL__GATE_INSIDE (FL__GATE_CLOSED - 1)
#define FL__SPIN_NS 30000

static struct {
    _Alignas(64) uint64_t gate; /* atomic */
    _Alignas(64) int64_t next;  /* atomic: the next unclaimed chunk */
    _Alignas(64) int busy;      /* atomic: a caller owns the pool */
    int n_threads;              /* atomic; 0: not set yet */
    int parked, waiting;        /* atomic: number of sleeping workers; the caller sleeps */
    bool stop;                  /* atomic: workers exit */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    fl_task task; /* the loop */
    void *arg;
    int64_t n, grain, chunks;
    int started;  /* from here on only for the owner: number of workers */
    int away;     /* 1 + the CPU excluded from the workers' affinity, 0: none */
    bool refused; /* thread creation failed: do not try again */
    int64_t spin; /* spin time in ns: 0 with more threads than CPUs */
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

/* Passes the error of a task from this worker to the caller; the first one is kept. */
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

/* Waits for a loop and enters it. False: the pool is stopping. */
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

/* Starts workers up to `want`, with all signals blocked and a 2 MiB stack, which kernels rely on. */
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

/* A woken thread tends to be scheduled on its waker's CPU and to wait there for milliseconds while another
   CPU idles; so the CPU of the thread that starts the loop is excluded from the workers' affinity. */
static void fl__pool_spread(void) {
#if defined(__linux__)
    cpu_set_t others;
    const int here = sched_getcpu();
    if (here < 0 || here + 1 == fl__pool.away) return;
    if (sched_getaffinity(0, sizeof others, &others)) return;
    if (CPU_COUNT(&others) <= fl__pool.started) return; /* more threads than CPUs */
    CPU_CLR((size_t)here, &others);
    for (int i = 0; i < fl__pool.started; i++)
        pthread_setaffinity_np(fl__pool.workers[i], sizeof others, &others);
    fl__pool.away = here + 1;
#endif
}

/* Wakes as many parked workers as the loop can use. */
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

/* Runs one loop on the pool, which this thread owns. */
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
    if (fl__inside_task) return fl_fail("fl_set_threads: must not be called inside a task of fl_parallel");
    if (n > FL__THREADS_MAX)
        return fl_fail("fl_set_threads: too many threads: got %d, expected at most %d", n, FL__THREADS_MAX);
    while (__atomic_exchange_n(&fl__pool.busy, 1, __ATOMIC_ACQUIRE)) sched_yield();
    fl__pool_stop();
    __atomic_store_n(&fl__pool.n_threads, n < 1 ? fl__threads_default() : n, __ATOMIC_RELEASE);
    __atomic_store_n(&fl__pool.busy, 0, __ATOMIC_RELEASE);
    return true;
}

#ifndef _WIN32
/* After a fork the child has only this thread: resets the pool, but keeps the number of threads. */
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
