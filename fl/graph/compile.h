/* fl/graph/compile.h - compiles programs to machine code while they are used: fl_compile

   What runs as a program (a group, fl_apply, an optimizer step, a composed gradient) runs by the executor
   (kernels/cpu/formula.h) until a compiled kernel (kernels/kernel_text.h) takes its place, with the same
   bits, but that any NaN may be another one. The system's compiler makes kernels in a process of its own;
   they are kept in a folder for other programs. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_GRAPH_COMPILE_H
#define FL_GRAPH_COMPILE_H
#include "../../kernels/kernel_text.h"
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fl_compile_mode {
    FL_COMPILE_NEVER, /* the default */
    FL_COMPILE_LATER, /* beside the program: a kernel is used once it is there */
    FL_COMPILE_NOW    /* before a program runs first; the caller waits */
} fl_compile_mode;
/* Sets the mode of all threads and returns the previous one. It starts as FL_COMPILE of the environment says
   (later, now), in programs that have compiled fl.c or call a function of fl_graph.h. LATER compiles a
   program, of f32 or f64 numbers, once it has run 8 times or over 4 M elements. The compiler is `cc`, or
   FL_COMPILER of the environment: one program without arguments. Kernels are kept in $XDG_CACHE_HOME/fl
   (~/.cache/fl): at most 64 MiB, the oldest are removed; the folder must belong to the user and be writable
   by nobody else. Where there is no compiler, or it fails or takes more than a minute, that is one warning,
   and the executor goes on. On Windows nothing is compiled.
   On backend cuda both modes compile a program with NVRTC when it runs first, in this process: it is kept in
   memory alone, and not among the counts below. Without NVRTC programs run op by op there. */
FL_API fl_compile_mode fl_compile(fl_compile_mode mode);
/* Waits until what has been requested is compiled. False if any of it could not be. */
FL_API bool fl_compile_wait(void);
typedef struct fl_compile_counts {
    int64_t programs; /* that have been looked for */
    int64_t compiled; /* kernels that the compiler made */
    int64_t cached;   /* kernels that were kept from before */
    int64_t failed;
    int64_t runs;     /* of the compiler */
    double seconds;   /* from their starts to their ends */
} fl_compile_counts;
/* Counts since the start of the program. */
FL_API fl_compile_counts fl_compile_stats(void);
/* Writes the kernels of all programs so far as C. False after fl_fail if a write fails. */
FL_API bool fl_compile_print(FILE *to);

/* Internal to fl/graph, and for tests. */
/* Announces a program before it runs, so that those of one list are compiled together. past: as
   fl__executor_loop's. */
FL_PRIVATE void fl__compile_ahead(const fl_formula *f, fl_dtype d, bool past);
/* Sets the time after which a compiler is killed; forgets all programs, and where the cache and the compiler
   are. */
FL_PRIVATE void fl__compile_reset(double seconds);

#ifdef __cplusplus
}
#endif
#endif /* FL_GRAPH_COMPILE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_GRAPH_COMPILE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_GRAPH_COMPILE_IMPL
#define FL_GRAPH_COMPILE_IMPL
#include "../../fl_tensor.h"
#include "../../kernels/cpu/formula.h"
#include "../tensor/memo.h"
#ifdef _WIN32

FL_API fl_compile_mode fl_compile(fl_compile_mode mode) {
    if (mode) fl_log_message(FL_LOG_WARN, "fl_compile: programs are not compiled on Windows");
    return FL_COMPILE_NEVER;
}
FL_API bool fl_compile_wait(void) { return true; }
FL_API fl_compile_counts fl_compile_stats(void) { return (fl_compile_counts){0}; }
FL_API bool fl_compile_print(FILE *to) { return fl_given(to, "fl_compile_print", "the file"); }
FL_PRIVATE void fl__compile_ahead(const fl_formula *f, fl_dtype d, bool past) {
    (void)f, (void)d, (void)past;
}
FL_PRIVATE void fl__compile_reset(double seconds) { (void)seconds; }

#else
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { FL__PROGRAMS = 4096, FL__COMPILE_RUNS = 8, FL__COMPILE_ELEMENTS = 4 << 20, FL__COMPILE_LIMIT = 60,
       FL__COMPILE_CACHE = 64 << 20, FL__KERNEL_NAME = 40, FL__STALE_SECONDS = 3600 };

typedef enum fl__kernel_state {
    FL__KERNEL_NEW,       /* runs too seldom so far */
    FL__KERNEL_REQUESTED, /* is not in the cache */
    FL__KERNEL_COMPILING,
    FL__KERNEL_READY,
    FL__KERNEL_FAILED
} fl__kernel_state;

typedef struct fl__kernel {
    fl_formula program; /* its numbers are 0: they are parameters */
    fl_dtype dtype;
    int level;
    bool past; /* it stores past the caches */
    fl__kernel_state state; /* atomic */
    int64_t runs, elements; /* atomic */
    fl__loop loop;          /* atomic */
    char name[FL__KERNEL_NAME];
} fl__kernel;

/* Those of FL_KERNEL_BEGIN, as gcc and clang know them. */
enum { FL__COMPILE_OPTIONS = 8 };
static const char *const fl__compile_options[FL__COMPILE_OPTIONS] = {
    "-std=gnu11", "-O3", "-fno-trapping-math", "-fno-math-errno", "-ffp-contract=off", "-DFL_KERNEL_OPTIONS",
    "-fPIC", "-shared"};

static fl_memo_entry *fl__kernel_slots[2 * FL__PROGRAMS];
static fl_memo fl__kernel_memo = {.most = FL__PROGRAMS, .size = sizeof(fl__kernel), .slot = fl__kernel_slots};

static struct {
    pthread_mutex_t lock;
    fl_compile_mode mode; /* atomic */
    fl_compile_counts counts;
    char compiler[PATH_MAX], cache[PATH_MAX - 128]; /* "": none */
    uint64_t compiler_hash;
    bool searched, warned;
    pid_t process, owner; /* the compiler that runs, 0: none, and whose child it is */
    char folder[PATH_MAX - 64]; /* where it runs */
    double began, limit;
    int64_t polled; /* the millisecond of the last look at it; atomic */
} fl__compiler = {.lock = PTHREAD_MUTEX_INITIALIZER, .limit = FL__COMPILE_LIMIT};

static double fl__compile_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t fl__hash_text(uint64_t h, const char *text) {
    return fl__hash(h, text, strlen(text) + 1);
}

/* The first failure is a warning; the executor goes on. */
static void fl__compile_failed(const char *what, const char *why) {
    if (!fl__compiler.warned)
        fl_log_message(FL_LOG_WARN, "fl_compile: %s: %s; programs run without being compiled", what, why);
    fl__compiler.warned = true;
}

/* ---- where the compiler and the cache are ---- */

/* Sets the compiler's path, and a hash that changes when it is another one. */
static void fl__compiler_find(void) {
    const char *name = getenv("FL_COMPILER"), *path = getenv("PATH");
    char at[PATH_MAX];
    struct stat s;
    if (!name || !*name) name = "cc";
    fl__compiler.compiler[0] = 0;
    for (const char *p = strchr(name, '/') ? "" : path ? path : "/usr/bin:/bin"; p;) {
        const int n = (int)strcspn(p, ":");
        snprintf(at, sizeof at, "%.*s%s%s", n, p, n ? "/" : "", name);
        if (!access(at, X_OK) && !stat(at, &s) && S_ISREG(s.st_mode)) break;
        p = p[n] ? p + n + 1 : NULL;
        at[0] = 0;
    }
    if (!at[0]) {
        fl__compile_failed(name, "there is no such compiler");
        return;
    }
    snprintf(fl__compiler.compiler, sizeof fl__compiler.compiler, "%s", at);
    const int64_t identity[] = {(int64_t)s.st_size, (int64_t)s.st_mtime, (int64_t)s.st_ino};
    fl__compiler.compiler_hash = fl__hash(fl__hash_text(FL__HASH, at), identity, sizeof identity);
    for (int i = 0; i < FL__COMPILE_OPTIONS; i++)
        fl__compiler.compiler_hash = fl__hash_text(fl__compiler.compiler_hash, fl__compile_options[i]);
    fl__compiler.compiler_hash = fl__hash_text(fl__compiler.compiler_hash, fl__c_file_begin());
    for (int f = 0; f < 2; f++)
        for (const char *const *p = f ? fl__math_f32_text() : fl__math_text(); *p; p++)
            fl__compiler.compiler_hash = fl__hash_text(fl__compiler.compiler_hash, *p);
}

/* True if nobody but the user can write the file. */
static bool fl__is_private(const struct stat *s) {
    return s->st_uid == geteuid() && !(s->st_mode & (S_IWGRP | S_IWOTH));
}

static void fl__cache_find(void) {
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *at = fl__compiler.cache;
    const size_t n = sizeof fl__compiler.cache;
    struct stat s;
    at[0] = 0;
    const bool given = base && *base == '/';
    const int length = given ? snprintf(at, n, "%s/fl", base)
                             : home && *home == '/' ? snprintf(at, n, "%s/.cache/fl", home) : (int)n;
    if (length >= (int)n) {
        at[0] = 0;
        return;
    }
    for (char *p = strchr(at + 1, '/'); p; p = strchr(p + 1, '/')) *p = 0, (void)mkdir(at, 0700), *p = '/';
    (void)mkdir(at, 0700);
    if (lstat(at, &s) || !S_ISDIR(s.st_mode)) {
        at[0] = 0;
    } else if (!fl__is_private(&s)) {
        fl_log_message(FL_LOG_WARN, "fl_compile: %s is not kept private to this user: not used", at);
        at[0] = 0;
    }
}

/* ---- the cache ---- */

/* The digest of the first n bytes of a kernel file, which stands behind them. */
typedef struct fl__digest {
    uint64_t h[2];
} fl__digest;

static bool fl__digest_of(int fd, int64_t n, fl__digest *d) {
    char piece[1 << 14];
    d->h[0] = FL__HASH, d->h[1] = ~FL__HASH;
    while (n > 0) {
        const ssize_t got = read(fd, piece, n < (int64_t)sizeof piece ? (size_t)n : sizeof piece);
        if (got <= 0) return false;
        for (int i = 0; i < 2; i++) d->h[i] = fl__hash(d->h[i], piece, (size_t)got);
        n -= got;
    }
    return true;
}

static fl__loop fl__kernel_open(const char *file, const char *name) {
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    void *at = library ? dlsym(library, name) : NULL;
    fl__loop loop;
    memcpy(&loop, &at, sizeof loop);
    return at ? loop : NULL;
}

/* The kernel of that name from the cache, if the file is whole; a broken one is removed. */
static fl__loop fl__cache_load(const char *name) {
    char file[PATH_MAX];
    struct stat s;
    fl__digest want, got;
    if (!fl__compiler.cache[0]) return NULL;
    snprintf(file, sizeof file, "%s/%s.so", fl__compiler.cache, name);
    const int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return NULL;
    bool ok = !fstat(fd, &s) && S_ISREG(s.st_mode) && fl__is_private(&s) && s.st_size > (int64_t)sizeof want;
    ok = ok && fl__digest_of(fd, s.st_size - (int64_t)sizeof want, &got);
    ok = ok && read(fd, &want, sizeof want) == (ssize_t)sizeof want && !memcmp(&want, &got, sizeof want);
    close(fd);
    fl__loop loop = ok ? fl__kernel_open(file, name) : NULL;
    if (loop) utimensat(AT_FDCWD, file, NULL, 0); /* the oldest are removed first */
    else unlink(file);
    return loop;
}

/* Removes a folder of the compiler. */
static void fl__folder_remove(const char *folder) {
    static const char *const files[] = {"fl_math.h", "fl_math_f32.h", "kernels.c", "kernels.so"};
    char file[PATH_MAX];
    for (int i = 0; i < 4; i++) {
        if (snprintf(file, sizeof file, "%s/%s", folder, files[i]) < (int)sizeof file) unlink(file);
    }
    rmdir(folder);
}

/* Removes the file used longest ago, and folders that an ended program has left. False if the cache is small
   enough. A file has a name per kernel. */
static bool fl__cache_shrink(void) {
    char file[PATH_MAX], oldest[PATH_MAX] = "";
    int64_t bytes = 0;
    time_t when = 0;
    struct stat s;
    DIR *d = opendir(fl__compiler.cache);
    for (struct dirent *e; d && (e = readdir(d));) {
        const int n = snprintf(file, sizeof file, "%s/%s", fl__compiler.cache, e->d_name);
        if (e->d_name[0] == '.' || (size_t)n >= sizeof file || lstat(file, &s)) continue;
        if (S_ISDIR(s.st_mode) && time(NULL) - s.st_mtime > FL__STALE_SECONDS) fl__folder_remove(file);
        if (!S_ISREG(s.st_mode)) continue;
        bytes += s.st_size / (int64_t)s.st_nlink;
        if (!*oldest || s.st_mtime < when) when = s.st_mtime, strcpy(oldest, file);
    }
    if (d) closedir(d);
    return bytes > FL__COMPILE_CACHE && *oldest && !unlink(oldest);
}

/* Gives the compiled file its digest, and a name for each of its kernels in the cache. */
static void fl__cache_store(const char *file, fl__kernel *const kernel[], int n) {
    char name[PATH_MAX];
    struct stat s;
    fl__digest d;
    const int fd = open(file, O_RDWR | O_CLOEXEC);
    const bool ok = fd >= 0 && !fstat(fd, &s) && fl__digest_of(fd, s.st_size, &d) &&
                    write(fd, &d, sizeof d) == (ssize_t)sizeof d && !fchmod(fd, 0600);
    if (fd >= 0 && close(fd)) return;
    for (int i = 0; ok && i < n; i++) {
        snprintf(name, sizeof name, "%s/%s.so", fl__compiler.cache, kernel[i]->name);
        (void)!link(file, name); /* one that is there already is as good */
    }
    while (fl__cache_shrink()) continue;
}

/* ---- the compiler ---- */

static int fl__kernels_in(fl__kernel_state state, fl__kernel *kernel[]) {
    int n = 0;
    for (int i = 0; i < 2 * FL__PROGRAMS; i++) {
        fl__kernel *k = fl__memo_at(&fl__kernel_memo, i);
        if (k && k->state == state) kernel[n++] = k;
    }
    return n;
}

static void fl__kernels_become(fl__kernel_state from, fl__kernel_state to) {
    for (int i = 0; i < 2 * FL__PROGRAMS; i++) {
        fl__kernel *k = fl__memo_at(&fl__kernel_memo, i);
        if (k && k->state == from) __atomic_store_n(&k->state, to, __ATOMIC_RELEASE);
    }
}

static bool fl__pieces_write(const char *file, const char *const *piece) {
    FILE *f = fopen(file, "w");
    bool ok = f != NULL;
    for (; ok && *piece; piece++) ok = fputs(*piece, f) >= 0;
    return (!f || !fclose(f)) && ok;
}

static bool fl__kernel_text(const fl__kernel *k, const char *name, fl__text *to) {
    return fl__kernel_print(to, &k->program, k->dtype, name,
                            k->past ? fl__language_c_past() : fl__language_c());
}

static bool fl__kernel_write(const fl__kernel *k, const char *name, FILE *f) {
    fl__text text = {.n = 0};
    return fl__kernel_text(k, name, &text) &&
           fwrite(text.at, 1, text.n, f) == text.n;
}

/* Writes the kernels and what they include to the folder. */
static bool fl__kernels_write(const char *folder, fl__kernel *const kernel[], int n) {
    char file[PATH_MAX];
    snprintf(file, sizeof file, "%s/fl_math.h", folder);
    bool ok = fl__pieces_write(file, fl__math_text());
    snprintf(file, sizeof file, "%s/fl_math_f32.h", folder);
    ok = ok && fl__pieces_write(file, fl__math_f32_text());
    snprintf(file, sizeof file, "%s/kernels.c", folder);
    FILE *f = ok ? fopen(file, "w") : NULL;
    ok = f && fputs(fl__c_file_begin(), f) >= 0;
    for (int i = 0; ok && i < n; i++) ok = fl__kernel_write(kernel[i], kernel[i]->name, f);
    ok = ok && fputs(fl__c_file_end(), f) >= 0;
    return (!f || !fclose(f)) && ok;
}

/* Starts the compiler in the folder, silent, in a process group of its own. */
static bool fl__compiler_spawn(const char *folder) {
    char source[PATH_MAX], target[PATH_MAX];
    snprintf(source, sizeof source, "%s/kernels.c", folder);
    snprintf(target, sizeof target, "%s/kernels.so", folder);
    char *argv[FL__COMPILE_OPTIONS + 6] = {fl__compiler.compiler}, output[] = "-o", math[] = "-lm";
    int n = 1;
    for (; n <= FL__COMPILE_OPTIONS; n++) argv[n] = (char *)(uintptr_t)fl__compile_options[n - 1];
    argv[n++] = output, argv[n++] = target, argv[n++] = source, argv[n++] = math;
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none;
    if (posix_spawn_file_actions_init(&files)) return false;
    if (posix_spawnattr_init(&how)) return posix_spawn_file_actions_destroy(&files), false;
    sigemptyset(&none);
    bool ok = true;
    for (int fd = 0; fd < 3; fd++)
        ok &= !posix_spawn_file_actions_addopen(&files, fd, "/dev/null", fd ? O_WRONLY : O_RDONLY, 0);
    ok = ok && !posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK) &&
         !posix_spawnattr_setpgroup(&how, 0) && !posix_spawnattr_setsigmask(&how, &none);
    const int error = ok ? posix_spawn(&fl__compiler.process, argv[0], &files, &how, argv, environ) : ENOMEM;
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    if (error) fl__compiler.process = 0;
    return !error || (errno = error, false);
}

/* Compiles all requested kernels as one file. */
static void fl__compiler_begin(void) {
    static fl__kernel *kernel[FL__PROGRAMS];
    const int n = fl__kernels_in(FL__KERNEL_REQUESTED, kernel);
    const char *temporary = getenv("TMPDIR");
    if (!n) return;
    bool ok = false;
    int error = 0;
    for (int i = !fl__compiler.cache[0]; !ok && i < 2; i++) { /* not in a cache that can only be read */
        const int length = snprintf(fl__compiler.folder, sizeof fl__compiler.folder, "%s/fl-XXXXXX",
                                    !i ? fl__compiler.cache : temporary && *temporary ? temporary : "/tmp");
        const bool made = length < (int)sizeof fl__compiler.folder && mkdtemp(fl__compiler.folder);
        ok = made && fl__kernels_write(fl__compiler.folder, kernel, n) &&
             fl__compiler_spawn(fl__compiler.folder);
        error = errno;
        if (made && !ok) fl__folder_remove(fl__compiler.folder);
    }
    if (!ok) fl__compile_failed(fl__compiler.compiler, strerror(error));
    fl__kernels_become(FL__KERNEL_REQUESTED, ok ? FL__KERNEL_COMPILING : FL__KERNEL_FAILED);
    fl__compiler.owner = getpid();
    fl__compiler.began = fl__compile_clock();
    fl__compiler.counts.runs += ok;
    fl__compiler.counts.failed += ok ? 0 : n;
}

/* Takes over what the compiler made. */
static void fl__compiler_end(bool ok, const char *why) {
    static fl__kernel *kernel[FL__PROGRAMS];
    const int n = fl__kernels_in(FL__KERNEL_COMPILING, kernel);
    char file[PATH_MAX];
    fl__compiler.process = 0;
    fl__compiler.counts.seconds += fl__compile_clock() - fl__compiler.began;
    snprintf(file, sizeof file, "%s/kernels.so", fl__compiler.folder);
    int made = 0;
    for (int i = 0; ok && i < n; i++) {
        fl__loop loop = fl__kernel_open(file, kernel[i]->name);
        if (!loop) break;
        __atomic_store_n(&kernel[i]->loop, loop, __ATOMIC_RELEASE);
        __atomic_store_n(&kernel[i]->state, FL__KERNEL_READY, __ATOMIC_RELEASE);
        made++;
    }
    if (made < n) fl__compile_failed(fl__compiler.compiler, ok ? "its result cannot be loaded" : why);
    else if (fl__compiler.cache[0]) fl__cache_store(file, kernel, n);
    fl__kernels_become(FL__KERNEL_COMPILING, FL__KERNEL_FAILED);
    fl__compiler.counts.compiled += made;
    fl__compiler.counts.failed += n - made;
    fl__folder_remove(fl__compiler.folder);
}

/* Looks whether the compiler has ended, or waits for it. */
static void fl__compiler_poll(bool wait) {
    if (fl__compiler.process && fl__compiler.owner != getpid()) { /* in a fork: it is the parent's */
        fl__compiler.process = 0;
        fl__kernels_become(FL__KERNEL_COMPILING, FL__KERNEL_REQUESTED);
    }
    while (fl__compiler.process) {
        int status = 0;
        const pid_t ended = waitpid(fl__compiler.process, &status, WNOHANG);
        if (ended < 0 && errno == EINTR) continue;
        const double now = fl__compile_clock();
        __atomic_store_n(&fl__compiler.polled, (int64_t)(1e3 * now), __ATOMIC_RELAXED);
        if (ended) {
            const bool ok = ended > 0 && WIFEXITED(status) && !WEXITSTATUS(status);
            fl__compiler_end(ok, ended < 0 ? "its end was not seen" : "it failed");
        } else if (now - fl__compiler.began > fl__compiler.limit) {
            kill(-fl__compiler.process, SIGKILL);
            while (waitpid(fl__compiler.process, NULL, 0) < 0 && errno == EINTR) continue;
            fl__compiler_end(false, "it took too long");
        } else if (!wait) {
            return;
        } else {
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        }
    }
}

/* ---- programs ---- */

/* Loads k from the cache, or makes it requested. */
static void fl__kernel_request(fl__kernel *k) {
    fl__text text = {.n = 0};
    fl__kernel_state state = FL__KERNEL_FAILED;
    if (!fl__compiler.searched) fl__compiler_find(), fl__cache_find();
    fl__compiler.searched = true;
    if (fl__compiler.compiler[0] && fl__kernel_text(k, "kernel", &text)) {
        const uint64_t h = fl__hash(fl__compiler.compiler_hash, text.at, text.n);
        snprintf(k->name, sizeof k->name, "fl_%016llx%016llx", (unsigned long long)h,
                 (unsigned long long)fl__hash(~FL__HASH, text.at, text.n));
        fl__loop loop = fl__cache_load(k->name);
        __atomic_store_n(&k->loop, loop, __ATOMIC_RELEASE);
        fl__compiler.counts.cached += loop != NULL;
        state = loop ? FL__KERNEL_READY : FL__KERNEL_REQUESTED;
    }
    fl__compiler.counts.failed += state == FL__KERNEL_FAILED;
    __atomic_store_n(&k->state, state, __ATOMIC_RELEASE);
}

/* The kernel of a program, added if it is new; NULL if there are too many, or no memory. */
static fl__kernel *fl__kernel_of(const fl_formula *f, fl_dtype d, bool past) {
    const size_t bytes = fl__formula_bytes(f);
    const int level = fl__level();
    const uint64_t tag = (uint64_t)(d + 64 * (level + 64 * past));
    fl__kernel *k = fl_memo_find(&fl__kernel_memo, f, bytes, tag);
    if (k) return k;
    fl__kernel made = {.dtype = d, .level = level, .past = past};
    const bool failed = fl_error() != NULL;
    memcpy(&made.program, f, bytes);
    k = fl_memo_add(&fl__kernel_memo, f, bytes, tag, &made);
    if (!failed) fl_error_clear(); /* without memory the executor runs it */
    return k;
}

/* What a run does about a kernel that is not there. */
static FL__COLD void fl__kernel_missing(fl__kernel *k, fl_compile_mode mode) {
    if (mode == FL_COMPILE_NOW) pthread_mutex_lock(&fl__compiler.lock);
    else if (pthread_mutex_trylock(&fl__compiler.lock)) return;
    fl__compiler_poll(mode == FL_COMPILE_NOW);
    if (k->state == FL__KERNEL_NEW) {
        fl__kernel_request(k);
        if (mode == FL_COMPILE_NOW) fl__compiler_begin(), fl__compiler_poll(true);
    } else if (k->state == FL__KERNEL_REQUESTED && !fl__compiler.process) {
        fl__compiler_begin(); /* it has come again, so that all others of a step are requested too */
        if (mode == FL_COMPILE_NOW) fl__compiler_poll(true);
    }
    pthread_mutex_unlock(&fl__compiler.lock);
}

/* One primitive has a loop of the library. */
static bool fl__is_compiled(const fl_formula *f, fl_dtype d) {
    return f->n_steps > 1 && (d == FL_F32 || d == FL_F64);
}

static fl__loop fl__kernel_find(const fl_formula *f, fl_dtype d, int64_t n, bool past) {
    const fl_compile_mode mode = __atomic_load_n(&fl__compiler.mode, __ATOMIC_RELAXED);
    fl__kernel *k = mode && fl__is_compiled(f, d) ? fl__kernel_of(f, d, past) : NULL;
    if (!k) return NULL;
    fl__loop loop = __atomic_load_n(&k->loop, __ATOMIC_ACQUIRE);
    const fl__kernel_state state = __atomic_load_n(&k->state, __ATOMIC_ACQUIRE);
    if (loop || state == FL__KERNEL_FAILED) return loop;
    const int64_t runs = __atomic_add_fetch(&k->runs, 1, __ATOMIC_RELAXED);
    const int64_t elements = __atomic_add_fetch(&k->elements, n, __ATOMIC_RELAXED);
    if (mode == FL_COMPILE_LATER && runs < FL__COMPILE_RUNS && elements < FL__COMPILE_ELEMENTS) return NULL;
    if (mode == FL_COMPILE_LATER && state == FL__KERNEL_COMPILING && /* a look takes a system call */
        (int64_t)(1e3 * fl__compile_clock()) == __atomic_load_n(&fl__compiler.polled, __ATOMIC_RELAXED))
        return NULL;
    fl__kernel_missing(k, mode);
    return __atomic_load_n(&k->loop, __ATOMIC_ACQUIRE);
}

FL_PRIVATE void fl__compile_ahead(const fl_formula *f, fl_dtype d, bool past) {
    const fl_compile_mode mode = __atomic_load_n(&fl__compiler.mode, __ATOMIC_RELAXED);
    if (mode != FL_COMPILE_NOW || !fl__is_compiled(f, d)) return;
    fl__kernel *k = fl__kernel_of(f, d, past);
    pthread_mutex_lock(&fl__compiler.lock);
    if (k && k->state == FL__KERNEL_NEW) fl__kernel_request(k);
    pthread_mutex_unlock(&fl__compiler.lock);
}

FL_API fl_compile_mode fl_compile(fl_compile_mode mode) {
    if ((unsigned)mode > FL_COMPILE_NOW) {
        fl_err_false("fl_compile: the mode is %d, expected 0 to 2", (int)mode);
        return FL_COMPILE_NEVER;
    }
    const fl_compile_mode before = __atomic_exchange_n(&fl__compiler.mode, mode, __ATOMIC_RELAXED);
    if (mode) fl__kernels_use(fl__kernel_find);
    fl__programs_compile(mode != FL_COMPILE_NEVER);
    return before;
}

FL_API bool fl_compile_wait(void) {
    pthread_mutex_lock(&fl__compiler.lock);
    const int64_t failed = fl__compiler.counts.failed;
    fl__compiler_poll(true);
    fl__compiler_begin();
    fl__compiler_poll(true);
    const bool ok = fl__compiler.counts.failed == failed;
    pthread_mutex_unlock(&fl__compiler.lock);
    return ok;
}

FL_API fl_compile_counts fl_compile_stats(void) {
    pthread_mutex_lock(&fl__compiler.lock);
    fl_compile_counts counts = fl__compiler.counts;
    counts.programs = __atomic_load_n(&fl__kernel_memo.n, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&fl__compiler.lock);
    return counts;
}

FL_API bool fl_compile_print(FILE *to) {
    if (!fl_given(to, "fl_compile_print", "the file")) return false;
    bool ok = true;
    for (int i = 0, n = 0; ok && i < 2 * FL__PROGRAMS; i++) {
        const fl__kernel *k = fl__memo_at(&fl__kernel_memo, i);
        char name[FL__KERNEL_NAME];
        if (!k) continue;
        snprintf(name, sizeof name, "kernel_%d", n++);
        ok = fl__kernel_write(k, name, to) ||
             fl_err_false("fl_compile_print: a write fails: %s", strerror(errno));
    }
    return ok;
}

static void fl__compiler_stop(void) {
    if (!fl__compiler.process || fl__compiler.owner != getpid()) return;
    kill(-fl__compiler.process, SIGKILL);
    while (waitpid(fl__compiler.process, NULL, 0) < 0 && errno == EINTR) continue;
    fl__compiler.process = 0;
    fl__folder_remove(fl__compiler.folder);
}

FL_PRIVATE void fl__compile_reset(double seconds) {
    fl__compiler_stop();
    fl__memo_clear(&fl__kernel_memo);
    memset(&fl__compiler.counts, 0, sizeof fl__compiler.counts);
    fl__compiler.searched = fl__compiler.warned = false;
    fl__compiler.limit = seconds > 0 ? seconds : FL__COMPILE_LIMIT;
}

__attribute__((constructor)) static void fl__compile_from_environment(void) {
    const char *mode = getenv("FL_COMPILE");
    if (!mode || !strcmp(mode, "never")) return;
    if (strcmp(mode, "later") && strcmp(mode, "now"))
        fl_log_message(FL_LOG_WARN, "FL_COMPILE: got '%s', expected never, later or now", mode);
    else fl_compile(strcmp(mode, "now") ? FL_COMPILE_LATER : FL_COMPILE_NOW);
}

/* Nothing may outlive the program: no process, no file, no memory. */
__attribute__((destructor)) static void fl__compile_at_exit(void) {
    fl__kernels_use(NULL);
    fl__compile_reset(0);
}

#endif
#endif
#endif
/* MIT licence: see LICENSE. */
