/* fl_data.h - tensors in files, data sets, loaders, meters and a progress line

   Reads idx and safetensors files as untrusted data, saves so that a kill at any moment leaves the
   old file or the new one, and composes data sets: slices, shuffles, batches, transforms, threads.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_data.h"
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_reshape(fl_arange(0, 12, 1, FL_F32), FL_SHAPE(6, 2));
        fl_tensor *y = fl_arange(0, 6, 1, FL_I64);
        fl_data_set *set = fl_data_shuffle(fl_data_tensors((fl_tensor *[]){x, y}, 2), 42);
        set = fl_data_prefetch(fl_data_batch(set, 2, true), 2, 4); // 2 threads, 4 batches ahead
        for (int64_t i = 0; i < fl_data_size(set); i++) {
            fl_scope step = fl_scope_begin();
            fl_data_sample b;
            if (fl_data_get(set, i, &b)) fl_print(b.t[0]); // [2, 2]
            fl_scope_end(&step);
        }
        fl_data_free(set); // frees the sets below it too
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents: search for the marker.
     >>build >>io >>idx >>safetensors >>sets >>loaders >>meters >>progress
     >>implementation

   >>build: macros, all optional (besides those of fl_mem.h)
     FL_USE_ZLIB   read .gz files through zlib (link -lz)

   Concepts
     Errors   Nothing here calls the error handler: functions return NULL or false, with a text that
              names file and offset. The tensor functions that they use are kept quiet too.
     Files    Every file operation goes through the table fl_data_io, so a test can fail any of them
              and a program can bring its own storage. A size read from a file is compared with the
              bytes that are left before anything is allocated: memory is bounded by 16 times the
              file's size (1,032 times for gzip, deflate's own limit), plus 64 KiB.
     Tensors  Values read from files are made in the default family, in this thread's scope.
     Sets     A data set has a size and gives sample i: up to eight tensors. Wrapping a set takes
              ownership of it, also when the wrapping fails: free the outermost, once. Two sets over
              the same tensors are cheap (views): a train and a test part are two
              fl_data_tensors, each with its fl_data_span.
     Order    What a set gives is a function of its seeds, the epoch and the index: never of threads
              or timing. */
#include "fl_tensor.h"
#ifndef FL_DATA_H
#define FL_DATA_H

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* >>io ----------------------------------------------------------------------------------------- */

typedef enum fl_data_mode {
    FL_DATA_READ,   /* an existing file */
    FL_DATA_REPLACE /* made, or emptied, for one writer; EWOULDBLOCK while another has it open */
} fl_data_mode;

/* The file operations. Failures are NULL or -1 with errno set. read and write may do less than
   asked, or fail with EINTR: both are tried again. All may be called from any thread. */
typedef struct fl_data_io {
    void *user;
    void *(*open)(void *user, const char *path, fl_data_mode mode);
    /* bytes done; read: 0 at the end */
    int64_t (*read)(void *user, void *file, void *dst, size_t n, int64_t at);
    int64_t (*write)(void *user, void *file, const void *src, size_t n, int64_t at);
    int64_t (*size)(void *user, void *file);
    int (*sync)(void *user, void *file);  /* returns when the bytes will survive a power loss */
    int (*close)(void *user, void *file); /* the handle is gone even when it fails */
    /* replaces `to` atomically; `from` may be open */
    int (*rename)(void *user, const char *from, const char *to);
    int (*remove)(void *user, const char *path);
    int (*sync_dir)(void *user, const char *path); /* makes a rename to path durable */
} fl_data_io;
/* The operating system's files. */
FL_API const fl_data_io *fl_data_io_system(void);
/* Makes *io (copied; NULL: the system's) the table of the process. Set it before other threads use
   files; files that are open keep the table that opened them. */
FL_API void fl_data_io_use(const fl_data_io *io);

/* >>idx ---------------------------------------------------------------------------------------- */

/* The tensor of an idx file (MNIST's format), gzip-compressed or not (known by its first bytes;
   gzip wants FL_USE_ZLIB). Element types: unsigned byte -> u8, int -> i32, float -> f32, double ->
   f64; 1 to 8 dims. */
FL_API fl_tensor *fl_data_load_idx(const char *path);

/* >>safetensors -------------------------------------------------------------------------------- */

#define FL_DATA_MAX_HEADER 100000000 /* bytes of a safetensors header, the format's own limit */
#define FL_DATA_MAX_NAME 4096        /* bytes of a tensor's name */

typedef struct fl_data_named {
    const char *name;
    fl_tensor *tensor;
} fl_data_named;
typedef struct fl_data_pair {
    const char *key, *value;
} fl_data_pair;

/* Saves n named tensors, in the order given, and n_meta pairs of metadata (UTF-8; keys may not
   start with "crc32c"). The bytes go to "<path>.tmp", reach the disk, and then take path's place: a
   kill or a power loss at any moment leaves the old file or the new one, and a <path>.tmp that a
   dead writer left is taken over by the next save. A second writer of the same path at the same
   time gets an error. CRC32C sums of each tensor and of the header go into __metadata__. */
FL_API bool fl_data_save_safetensors(const char *path, const fl_data_named *tensors, int n,
                                     const fl_data_pair *meta, int n_meta);

/* A safetensors file open for reading; may be used from several threads at once. */
typedef struct fl_data_file fl_data_file;
/* Reads and checks the header only: sizes, names, dtypes (F32 F64 I64 I32 U8 BOOL), offsets that
   tile the data without overlap or hole, and, where the file has checksums, the header's. */
FL_API fl_data_file *fl_data_open_safetensors(const char *path);
FL_API void fl_data_close(fl_data_file *f); /* NULL is fine */
FL_API int64_t fl_data_count(const fl_data_file *f);
/* Name, dtype and shape of tensor i, in the file's order; i must be in [0, count). */
FL_API const char *fl_data_name(const fl_data_file *f, int64_t i);
FL_API fl_dtype fl_data_dtype(const fl_data_file *f, int64_t i);
FL_API fl_shape fl_data_shape(const fl_data_file *f, int64_t i);
/* Index of the tensor of that name; -1 if there is none (no error). */
FL_API int64_t fl_data_find(const fl_data_file *f, const char *name);
/* Reads one tensor and verifies its checksum, if the file has one. */
FL_API fl_tensor *fl_data_read(fl_data_file *f, const char *name);
/* The metadata of that key; NULL if there is none (no error). Valid until fl_data_close. */
FL_API const char *fl_data_meta(const fl_data_file *f, const char *key);

/* >>sets --------------------------------------------------------------------------------------- */

#define FL_DATA_FIELDS 8
typedef struct fl_data_sample {
    int n;
    fl_tensor *t[FL_DATA_FIELDS]; /* owned by the scope of whoever called fl_data_get */
} fl_data_sample;

/* A data set is this table. */
typedef struct fl_data_set fl_data_set;
struct fl_data_set {
    int64_t size; /* samples */
    /* Fills *out with values of the innermost scope, or fails (fl_fail). 0 <= i < size. Called from
       several threads at once below fl_data_prefetch. */
    bool (*get)(fl_data_set *self, int64_t i, fl_data_sample *out);
    /* The epoch changes: called before the inner sets' own. NULL: no matter. */
    bool (*start)(fl_data_set *self, int64_t epoch);
    void (*close)(fl_data_set *self); /* releases user; NULL: nothing to do */
    void *user;
    /* private */
    int64_t epoch_;
    int n_inner_;
    fl_data_set **inner_;
};
/* A set of your own: copies the table and takes ownership of n inner sets (freed after close). NULL
   on failure, or if an inner set is NULL; then everything taken has been freed. */
FL_API fl_data_set *fl_data_set_new(const fl_data_set *table, fl_data_set *const *inner, int n);
/* Inner set k of a set made by fl_data_set_new. */
FL_API fl_data_set *fl_data_inner(const fl_data_set *set, int k);
/* Frees the set and all below it. NULL is fine. */
FL_API void fl_data_free(fl_data_set *set);
FL_API int64_t fl_data_size(const fl_data_set *set); /* 0 for NULL */
/* Sample i into *out, owned by the caller's innermost scope. On failure *out stays as it was. */
FL_API bool fl_data_get(fl_data_set *set, int64_t i, fl_data_sample *out);
/* Starts an epoch (they begin at 0) in this set and all below: another order of shuffles, other
   numbers for transforms. No fl_data_get of the set may be under way. */
FL_API bool fl_data_set_epoch(fl_data_set *set, int64_t epoch);
/* A generator that is a function of its arguments alone. */
FL_API fl_rng fl_data_rng(uint64_t seed, int64_t epoch, int64_t index);

/* Sample i is element i along the first dim of each of n tensors (kept, not copied; views come
   out). */
FL_API fl_data_set *fl_data_tensors(fl_tensor *const *tensors, int n);
/* Samples offset, ..., offset + length - 1. */
FL_API fl_data_set *fl_data_span(fl_data_set *set, int64_t offset, int64_t length);
/* Sample i is sample index[i], n of them, of set (index is copied). */
FL_API fl_data_set *fl_data_resample(fl_data_set *set, const int64_t *index, int64_t n);
/* In an order that is a function of (seed, epoch): all permutations alike. */
FL_API fl_data_set *fl_data_shuffle(fl_data_set *set, uint64_t seed);
/* Every ranks-th sample from `rank`; size / ranks of them, so that all ranks make the same number
   of steps. */
FL_API fl_data_set *fl_data_shard(fl_data_set *set, int rank, int ranks);
/* One set after the other. */
FL_API fl_data_set *fl_data_concat(fl_data_set *const *sets, int n);
/* The fields of all sets side by side; they have one size. */
FL_API fl_data_set *fl_data_zip(fl_data_set *const *sets, int n);
/* Stacks `size` samples along a new first dim, field by field; shapes and dtypes must be the same.
   The last batch is shorter, or left out if drop_last. */
FL_API fl_data_set *fl_data_batch(fl_data_set *set, int64_t size, bool drop_last);
/* Changes a sample in place: replaces tensors, adds or drops fields. rng is a function of (epoch,
   index): mix your seed into rng->key. Called from several threads below fl_data_prefetch. */
typedef bool (*fl_data_fn)(fl_data_sample *sample, fl_rng *rng, void *user);
FL_API fl_data_set *fl_data_transform(fl_data_set *set, fl_data_fn fn, void *user);

/* >>loaders ------------------------------------------------------------------------------------ */

/* The same samples, made ahead of time by worker threads: up to `depth` of them wait. For reading
   in order, from one thread; asking for another index than the next starts anew there. A worker's
   error comes out of fl_data_get of its sample, which may be asked again. fl_data_free and
   fl_data_set_epoch wait for the samples being made. */
FL_API fl_data_set *fl_data_prefetch(fl_data_set *set, int threads, int depth);

/* >>meters ------------------------------------------------------------------------------------- */

/* Weighted mean and variance. Start with {0}. */
typedef struct fl_data_average {
    double mean;   /* sum w x / sum w */
    double weight; /* sum w */
    /* private */
    double squares_, weight2_;
} fl_data_average;
/* Weights must be positive, others are ignored. */
FL_API void fl_data_average_add(fl_data_average *m, double value, double weight);
/* Every element of t with weight 1. */
FL_API bool fl_data_average_add_tensor(fl_data_average *m, fl_tensor *t);
/* Unbiased: sum w (x - mean)^2 / (W - sum w^2 / W); NaN below two values. */
FL_API double fl_data_average_variance(const fl_data_average *m);

/* Share of wrong classes. Start with {0}. */
typedef struct fl_data_frame_error {
    int64_t wrong, total;
} fl_data_frame_error;
/* scores [..., classes] (the largest wins) or classes [...], against target [...] of integers. */
FL_API bool fl_data_frame_error_add(fl_data_frame_error *m, fl_tensor *scores, fl_tensor *target);
FL_API double fl_data_frame_error_percent(const fl_data_frame_error *m); /* NaN before the first */

/* Seconds by a monotonic clock, summed over start/stop pairs. Start with {0}. */
typedef struct fl_data_timer {
    int64_t units; /* yours to count: samples, batches, ... */
    /* private */
    double sum_, since_;
    bool running_;
} fl_data_timer;
FL_API void fl_data_timer_start(fl_data_timer *m);
FL_API void fl_data_timer_stop(fl_data_timer *m);
FL_API double fl_data_timer_seconds(const fl_data_timer *m); /* the running part included */
/* Seconds / units; NaN without units. */
FL_API double fl_data_timer_per_unit(const fl_data_timer *m);
/* Seconds of the monotonic clock, from an arbitrary start. */
FL_API double fl_data_now(void);

/* >>progress ----------------------------------------------------------------------------------- */

/* One line, redrawn, on a terminal; a plain line now and then in a log. */
typedef struct fl_data_progress {
    FILE *out;    /* NULL: off, every call returns at once */
    double every; /* seconds between lines: 0.1 on a terminal, 10 in a log; set it after begin */
    /* private */
    const char *label_;
    int64_t total_, done_;
    double started_, shown_;
    int width_;
    bool terminal_;
} fl_data_progress;
/* label stays the caller's and must live as long. */
FL_API fl_data_progress fl_data_progress_begin(FILE *out, const char *label, int64_t total);
/* `done` of total are done; format (NULL: nothing) adds text, such as the loss. */
FL_API void fl_data_progress_step(fl_data_progress *p, int64_t done, const char *format, ...)
    FL_PRINTF(3, 4);
/* Ends the line on a terminal. */
FL_API void fl_data_progress_end(fl_data_progress *p);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_H: stop here if you only want the API */

/* >>implementation ----------------------------------------------------------------------------- */

#if defined(FL_IMPL_ONLY_DATA) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_IMPL
#define FL_DATA_IMPL

#include "fl/ops/reduce.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <io.h>
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#endif
#ifdef FL_USE_ZLIB
#include <zlib.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "fl_data.h writes tensors as they lie in memory: safetensors wants a little-endian machine"
#endif

/* ---- the system's files ---- */

#ifndef _WIN32

typedef struct fl__data_fd {
    int fd;
} fl__data_fd;

/* The lock makes us the only writer, unless somebody renamed or removed the file between our open
   and our lock: then we hold another file than the one there. 1: ours, 0: try again, -1: errno. */
static int fl__data_claim(int fd, const char *path) {
    struct stat ours, there;
    bool unsupported;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        unsupported = errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP;
        if (!unsupported)
            return errno == EINTR ? 0 : -1; /* some network file systems have no locks */
    }
    if (fstat(fd, &ours) < 0) return -1;
    if (stat(path, &there) < 0) return errno == ENOENT ? 0 : -1;
    if (ours.st_ino != there.st_ino || ours.st_dev != there.st_dev) return 0;
    return ftruncate(fd, 0) < 0 ? -1 : 1;
}

static int fl__data_open_fd(const char *path, fl_data_mode mode) {
    for (;;) {
        int fd = mode == FL_DATA_READ ? open(path, O_RDONLY | O_CLOEXEC)
                                      : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0 && errno == EINTR) continue;
        if (fd < 0 || mode == FL_DATA_READ) return fd;
        int claimed = fl__data_claim(fd, path), reason = errno;
        if (claimed > 0) return fd;
        close(fd);
        errno = reason;
        if (claimed < 0) return -1;
    }
}

static void *fl__data_system_open(void *user, const char *path, fl_data_mode mode) {
    (void)user;
    fl__data_fd *f = fl__alloc(sizeof *f);
    if (!f) {
        errno = ENOMEM;
        return NULL;
    }
    f->fd = fl__data_open_fd(path, mode);
    if (f->fd >= 0) return f;
    int reason = errno;
    fl__free(f);
    errno = reason;
    return NULL;
}

static int64_t fl__data_system_read(void *user, void *file, void *dst, size_t n, int64_t at) {
    (void)user;
    return pread(((fl__data_fd *)file)->fd, dst, n, (off_t)at);
}

static int64_t fl__data_system_write(void *user, void *file, const void *src, size_t n,
                                     int64_t at) {
    (void)user;
    return pwrite(((fl__data_fd *)file)->fd, src, n, (off_t)at);
}

static int64_t fl__data_system_size(void *user, void *file) {
    (void)user;
    struct stat s;
    if (fstat(((fl__data_fd *)file)->fd, &s) < 0) return -1;
    if (S_ISREG(s.st_mode)) return s.st_size;
    errno = S_ISDIR(s.st_mode) ? EISDIR : ESPIPE;
    return -1;
}

static int fl__data_system_sync(void *user, void *file) {
    (void)user;
    int r;
    do r = fsync(((fl__data_fd *)file)->fd);
    while (r < 0 && errno == EINTR);
    return r;
}

static int fl__data_system_close(void *user, void *file) {
    (void)user;
    int fd = ((fl__data_fd *)file)->fd;
    fl__free(file);
    return close(fd) < 0 && errno != EINTR ? -1 : 0; /* after EINTR it is closed on Linux */
}

static int fl__data_system_rename(void *user, const char *from, const char *to) {
    (void)user;
    return rename(from, to);
}

static int fl__data_system_remove(void *user, const char *path) {
    (void)user;
    return unlink(path);
}

static int fl__data_system_sync_dir(void *user, const char *path) {
    (void)user;
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    char *dir = fl__alloc(n + 2);
    if (!dir) {
        errno = ENOMEM;
        return -1;
    }
    if (n) memcpy(dir, path, n);
    else dir[0] = slash ? '/' : '.';
    int fd = open(dir, O_RDONLY | O_CLOEXEC);
    fl__free(dir);
    if (fd < 0) return -1;
    int r = fsync(fd), reason = errno;
    close(fd);
    errno = reason;
    bool unsupported = reason == EINVAL || reason == ENOTSUP; /* not all can */
    return r < 0 && !unsupported ? -1 : 0;
}

#else /* _WIN32 */

static int fl__data_windows_errno(void) {
    switch (GetLastError()) {
    case ERROR_FILE_NOT_FOUND: case ERROR_PATH_NOT_FOUND: return ENOENT;
    case ERROR_ACCESS_DENIED: return EACCES;
    case ERROR_SHARING_VIOLATION: case ERROR_LOCK_VIOLATION: return EWOULDBLOCK;
    case ERROR_DISK_FULL: case ERROR_HANDLE_DISK_FULL: return ENOSPC;
    case ERROR_NOT_ENOUGH_MEMORY: case ERROR_OUTOFMEMORY: return ENOMEM;
    default: return EIO;
    }
}

static int fl__data_windows_result(bool ok) {
    if (!ok) errno = fl__data_windows_errno();
    return ok ? 0 : -1;
}

/* UTF-8 to the system's characters; the caller frees. */
static wchar_t *fl__data_wide(const char *path) {
    int n = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
    wchar_t *w = n > 0 ? fl__alloc((size_t)n * sizeof *w) : NULL;
    if (w) MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, w, n);
    else errno = n > 0 ? ENOMEM : EINVAL;
    return w;
}

/* A writer shares only removal and renaming, so a second one is refused. */
static void *fl__data_system_open(void *user, const char *path, fl_data_mode mode) {
    (void)user;
    wchar_t *w = fl__data_wide(path);
    if (!w) return NULL;
    HANDLE h = mode == FL_DATA_READ
                   ? CreateFileW(w, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL,
                                 OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL)
                   : CreateFileW(w, GENERIC_READ | GENERIC_WRITE, FILE_SHARE_DELETE, NULL,
                                 CREATE_ALWAYS, FILE_ATTRIBUTE_NORMAL, NULL);
    fl__data_windows_result(h != INVALID_HANDLE_VALUE);
    int reason = errno;
    fl__free(w);
    errno = reason;
    return h == INVALID_HANDLE_VALUE ? NULL : h;
}

static OVERLAPPED fl__data_position(int64_t at) {
    OVERLAPPED o = {0};
    o.Offset = (DWORD)((uint64_t)at & 0xffffffff);
    o.OffsetHigh = (DWORD)((uint64_t)at >> 32);
    return o;
}

static int64_t fl__data_system_read(void *user, void *file, void *dst, size_t n, int64_t at) {
    (void)user;
    OVERLAPPED o = fl__data_position(at);
    DWORD done = 0;
    if (ReadFile(file, dst, (DWORD)n, &done, &o) || GetLastError() == ERROR_HANDLE_EOF) return done;
    return fl__data_windows_result(false);
}

static int64_t fl__data_system_write(void *user, void *file, const void *src, size_t n,
                                     int64_t at) {
    (void)user;
    OVERLAPPED o = fl__data_position(at);
    DWORD done = 0;
    return WriteFile(file, src, (DWORD)n, &done, &o) ? (int64_t)done
                                                     : fl__data_windows_result(false);
}

static int64_t fl__data_system_size(void *user, void *file) {
    (void)user;
    LARGE_INTEGER n;
    return GetFileSizeEx(file, &n) ? n.QuadPart : fl__data_windows_result(false);
}

static int fl__data_system_sync(void *user, void *file) {
    (void)user;
    return fl__data_windows_result(FlushFileBuffers(file));
}

static int fl__data_system_close(void *user, void *file) {
    (void)user;
    return fl__data_windows_result(CloseHandle(file));
}

static int fl__data_system_rename(void *user, const char *from, const char *to) {
    (void)user;
    wchar_t *a = fl__data_wide(from), *b = a ? fl__data_wide(to) : NULL;
    int r = -1;
    if (b)
        r = fl__data_windows_result(
            MoveFileExW(a, b, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH));
    int reason = errno;
    fl__free(a);
    fl__free(b);
    errno = reason;
    return r;
}

static int fl__data_system_remove(void *user, const char *path) {
    (void)user;
    wchar_t *w = fl__data_wide(path);
    if (!w) return -1;
    int r = fl__data_windows_result(DeleteFileW(w)), reason = errno;
    fl__free(w);
    errno = reason;
    return r;
}

/* The rename was written through. */
static int fl__data_system_sync_dir(void *user, const char *path) {
    (void)user, (void)path;
    return 0;
}

#endif

static const fl_data_io fl__data_system = {
    NULL, fl__data_system_open, fl__data_system_read, fl__data_system_write, fl__data_system_size,
    fl__data_system_sync, fl__data_system_close, fl__data_system_rename, fl__data_system_remove,
    fl__data_system_sync_dir,
};
static const fl_data_io *fl__data_io = &fl__data_system;
static fl_data_io fl__data_io_user;

FL_API const fl_data_io *fl_data_io_system(void) {
    return &fl__data_system;
}

FL_API void fl_data_io_use(const fl_data_io *io) {
    if (io) fl__data_io_user = *io;
    fl__data_io = io ? &fl__data_io_user : &fl__data_system;
}

/* ---- whole reads and writes ---- */

typedef struct fl__data_stream {
    fl_data_io io;
    void *file;
    const char *who, *path; /* for messages; borrowed */
    int64_t size;
} fl__data_stream;

#define FL__DATA_PIECE ((size_t)1 << 28) /* bytes of one call of the table */

static bool fl__data_io_fail(const fl__data_stream *f, const char *what) {
    return fl_fail("%s: %s: %s: %s", f->who, f->path, what, strerror(errno));
}

static bool fl__data_open(fl__data_stream *f, const char *who, const char *path,
                          fl_data_mode mode) {
    *f = (fl__data_stream){.io = *fl__data_io, .who = who, .path = path};
    errno = 0;
    f->file = f->io.open(f->io.user, path, mode);
    if (!f->file && mode == FL_DATA_REPLACE && errno == EWOULDBLOCK)
        return fl_fail("%s: %s: another writer is at it", who, path);
    if (!f->file) return fl__data_io_fail(f, "cannot open");
    if (mode == FL_DATA_REPLACE) return true;
    f->size = f->io.size(f->io.user, f->file);
    if (f->size >= 0) return true;
    fl__data_io_fail(f, "cannot read its size");
    f->io.close(f->io.user, f->file);
    f->file = NULL;
    return false;
}

static bool fl__data_read_all(const fl__data_stream *f, void *dst, size_t n, int64_t at) {
    char *p = dst;
    while (n) {
        int64_t got =
            f->io.read(f->io.user, f->file, p, n < FL__DATA_PIECE ? n : FL__DATA_PIECE, at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fl__data_io_fail(f, "cannot read");
        if (got == 0 || (size_t)got > n)
            return fl_fail("%s: %s: ends at offset %lld, %zu bytes early", f->who, f->path,
                           (long long)at, n);
        p += got, at += got, n -= (size_t)got;
    }
    return true;
}

static bool fl__data_write_all(const fl__data_stream *f, const void *src, size_t n, int64_t at) {
    const char *p = src;
    while (n) {
        int64_t put =
            f->io.write(f->io.user, f->file, p, n < FL__DATA_PIECE ? n : FL__DATA_PIECE, at);
        if (put < 0 && errno == EINTR) continue;
        if (put == 0) errno = ENOSPC;
        if (put <= 0 || (size_t)put > n) return fl__data_io_fail(f, "cannot write");
        p += put, at += put, n -= (size_t)put;
    }
    return true;
}

/* ---- checksums: CRC32C (Castagnoli), eight bytes a step ---- */

static uint32_t fl__crc_table[8][256];
static pthread_once_t fl__crc_once = PTHREAD_ONCE_INIT;

static void fl__crc_init(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ 0x82f63b78u : c >> 1;
        fl__crc_table[0][i] = c;
    }
    for (int i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++) {
            uint32_t c = fl__crc_table[k - 1][i];
            fl__crc_table[k][i] = (c >> 8) ^ fl__crc_table[0][c & 255];
        }
}

/* The sum of what crc was of (0: nothing), followed by n bytes. */
static uint32_t fl__crc32c(uint32_t crc, const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    pthread_once(&fl__crc_once, fl__crc_init);
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        w ^= crc;
        crc = 0;
        for (int k = 0; k < 8; k++) crc ^= fl__crc_table[7 - k][(w >> (8 * k)) & 255];
    }
    for (; n; n--) crc = (crc >> 8) ^ fl__crc_table[0][(crc ^ *p++) & 255];
    return ~crc;
}

/* ---- idx ---- */

typedef struct fl__idx_source {
    fl__data_stream f;
    int64_t at;   /* offset in the file, or in the unpacked data */
    bool gzipped;
#ifdef FL_USE_ZLIB
    z_stream z;
    int64_t in_at; /* offset in the file of the next bytes to unpack */
    bool ended;
    unsigned char in[1 << 14];
#endif
} fl__idx_source;

#ifdef FL_USE_ZLIB

static void *fl__z_alloc(void *user, unsigned items, unsigned size) {
    (void)user;
    size_t n;
    return fl__mul_size(items, size, &n) ? fl__alloc(n) : NULL;
}

static void fl__z_free(void *user, void *p) {
    (void)user;
    fl__free(p);
}

static bool fl__gz_begin(fl__idx_source *s) {
    s->z.zalloc = fl__z_alloc;
    s->z.zfree = fl__z_free;
    return inflateInit2(&s->z, 16 + MAX_WBITS) == Z_OK ||
           fl_fail("%s: %s: zlib does not start: out of memory", s->f.who, s->f.path);
}

/* Gives inflate more input; at the end of the file there is none. */
static bool fl__gz_refill(fl__idx_source *s) {
    int64_t left = s->f.size - s->in_at;
    size_t n = left < (int64_t)sizeof s->in ? (size_t)left : sizeof s->in;
    if (!fl__data_read_all(&s->f, s->in, n, s->in_at)) return false;
    s->in_at += (int64_t)n;
    s->z.next_in = s->in;
    s->z.avail_in = (unsigned)n;
    return true;
}

/* Unpacks up to n bytes: fewer only at the end of the packed data. -1 after fl_fail. */
static int64_t fl__gz_read(fl__idx_source *s, void *dst, size_t n) {
    unsigned char *p = dst;
    size_t left = n;
    while (left && !s->ended) {
        if (!s->z.avail_in && !fl__gz_refill(s)) return -1;
        size_t piece = left < FL__DATA_PIECE ? left : FL__DATA_PIECE;
        s->z.next_out = p;
        s->z.avail_out = (unsigned)piece;
        int r = inflate(&s->z, Z_NO_FLUSH);
        size_t done = piece - s->z.avail_out;
        p += done, left -= done;
        if (r == Z_STREAM_END) s->ended = true;
        else if (r != Z_OK) {
            const char *what = r == Z_BUF_ERROR ? "it ends early" : "zlib error";
            if (s->z.msg) what = s->z.msg;
            fl_fail("%s: %s: bad gzip data before offset %lld: %s", s->f.who, s->f.path,
                    (long long)s->in_at, what);
            return -1;
        }
    }
    return (int64_t)(n - left);
}

static bool fl__gz_read_all(fl__idx_source *s, void *dst, size_t n) {
    int64_t got = fl__gz_read(s, dst, n);
    if (got < 0) return false;
    return got == (int64_t)n ||
           fl_fail("%s: %s: the unpacked data ends at offset %lld, %lld bytes early", s->f.who,
                   s->f.path, (long long)(s->at + got), (long long)((int64_t)n - got));
}

/* Nothing may follow; only here zlib compares its checksum. */
static bool fl__gz_finish(fl__idx_source *s) {
    char more;
    int64_t got = fl__gz_read(s, &more, 1);
    if (got < 0) return false;
    if (got > 0)
        return fl_fail(
            "%s: %s: unpacked data goes on at offset %lld, behind what its header declares",
            s->f.who, s->f.path, (long long)s->at);
    int64_t end = s->in_at - s->z.avail_in;
    return end == s->f.size || fl_fail("%s: %s: bytes behind the gzip data at offset %lld",
                                       s->f.who, s->f.path, (long long)end);
}

static void fl__gz_end(fl__idx_source *s) {
    inflateEnd(&s->z);
}

#else

static bool fl__gz_begin(fl__idx_source *s) {
    return fl_fail(
        "%s: %s is gzip-compressed and this program was built without zlib: install zlib "
        "(zlib1g-dev), then compile with -DFL_USE_ZLIB and link -lz, or unpack the file",
        s->f.who, s->f.path);
}

static bool fl__gz_read_all(fl__idx_source *s, void *dst, size_t n) {
    (void)s, (void)dst, (void)n;
    return false;
}

static bool fl__gz_finish(fl__idx_source *s) {
    (void)s;
    return false;
}

static void fl__gz_end(fl__idx_source *s) {
    (void)s;
}

#endif

static bool fl__idx_read(fl__idx_source *s, void *dst, size_t n) {
    bool ok = s->gzipped ? fl__gz_read_all(s, dst, n) : fl__data_read_all(&s->f, dst, n, s->at);
    if (ok) s->at += (int64_t)n;
    return ok;
}

/* Compares the bytes that the header declares, `left` of them, with the file before anything is
   allocated. */
static bool fl__idx_check_size(const fl__idx_source *s, size_t left) {
    const int64_t deflate_limit = 1032; /* the most that deflate unpacks one byte to */
    if (s->gzipped)
        return (int64_t)(left / deflate_limit) <= s->f.size ||
               fl_fail("%s: %s: declares %zu bytes, more than its %lld compressed bytes can hold",
                       s->f.who, s->f.path, left, (long long)s->f.size);
    return (int64_t)left == s->f.size - s->at ||
           fl_fail("%s: %s: offset %lld: declares %zu bytes of data, the file has %lld", s->f.who,
                   s->f.path, (long long)s->at, left, (long long)(s->f.size - s->at));
}

static fl_dtype fl__idx_dtype(int code) {
    switch (code) {
    case 0x08: return FL_U8;
    case 0x09: return FL_I8;
    case 0x0b: return FL_I16;
    case 0x0c: return FL_I32;
    case 0x0d: return FL_F32;
    case 0x0e: return FL_F64;
    default: return FL_DTYPE_NONE;
    }
}

/* Reads magic number and dims, and checks the size: *bytes of data follow. */
static bool fl__idx_header(fl__idx_source *s, fl_dtype *dtype, fl_shape *shape, size_t *bytes) {
    unsigned char head[4], dim[4];
    if (!fl__idx_read(s, head, 4)) return false;
    if (head[0] || head[1])
        return fl_fail("%s: %s: offset 0: not an idx file (it starts with %02x %02x)", s->f.who,
                       s->f.path, head[0], head[1]);
    *dtype = fl__idx_dtype(head[2]);
    if (*dtype == FL_DTYPE_NONE)
        return fl_fail("%s: %s: offset 2: element type 0x%02x is not supported (0x08 u8, 0x09 i8, "
                       "0x0b i16, 0x0c i32, 0x0d f32, 0x0e f64 are)", s->f.who, s->f.path, head[2]);
    shape->ndim = head[3];
    if (shape->ndim < 1 || shape->ndim > FL_MAX_DIMS)
        return fl_fail("%s: %s: offset 3: %d dims, 1 to %d are possible", s->f.who, s->f.path,
                       shape->ndim, FL_MAX_DIMS);
    for (int i = 0; i < shape->ndim; i++) {
        if (!fl__idx_read(s, dim, 4)) return false;
        shape->dim[i] = (int64_t)dim[0] << 24 | dim[1] << 16 | dim[2] << 8 | dim[3];
    }
    int64_t numel = fl_shape_numel(*shape);
    if (numel < 0 || !fl__mul_size((size_t)numel, fl_dtype_size(*dtype), bytes) ||
        *bytes > INT64_MAX)
        return fl_fail("%s: %s: offset 4: the dims multiply past 2^62", s->f.who, s->f.path);
    return fl__idx_check_size(s, *bytes);
}

/* Big-endian numbers to ours. */
static void fl__idx_swap(void *bytes, size_t n, size_t size) {
    char *p = bytes;
    for (size_t i = 0; i + size <= n; i += size)
        for (size_t k = 0; k < size / 2; k++) {
            char c = p[i + k];
            p[i + k] = p[i + size - 1 - k];
            p[i + size - 1 - k] = c;
        }
}

static fl_tensor *fl__idx_tensor(fl__idx_source *s) {
    fl_dtype dtype = FL_DTYPE_NONE;
    fl_shape shape = FL_SCALAR_SHAPE;
    size_t bytes = 0;
    if (!fl__idx_header(s, &dtype, &shape, &bytes)) return NULL;
    fl_tensor *t = fl_empty(shape, dtype);
    bool ok = t != NULL;
    if (ok && bytes) {
        void *p = fl_map(t, FL_WRITE);
        if (!p) return NULL;
        ok = fl__idx_read(s, p, bytes);
        fl__idx_swap(p, bytes, fl_dtype_size(dtype));
        fl_unmap(t, FL_WRITE);
    }
    if (ok && s->gzipped) ok = fl__gz_finish(s);
    return ok ? t : NULL;
}

static fl_tensor *fl__idx_load(fl__idx_source *s, const char *path) {
    unsigned char magic[2] = {0};
    if (!fl__data_open(&s->f, "fl_data_load_idx", path, FL_DATA_READ)) return NULL;
    fl_tensor *t = NULL;
    if (s->f.size < 2 || fl__data_read_all(&s->f, magic, 2, 0)) {
        s->gzipped = magic[0] == 0x1f && magic[1] == 0x8b;
        if (!s->gzipped) t = fl__idx_tensor(s);
        else if (fl__gz_begin(s)) {
            t = fl__idx_tensor(s);
            fl__gz_end(s);
        }
    }
    s->f.io.close(s->f.io.user, s->f.file);
    return t;
}

FL_API fl_tensor *fl_data_load_idx(const char *path) {
    if (!path) {
        fl_fail("fl_data_load_idx: path is NULL");
        return NULL;
    }
    fl__idx_source *s = fl__alloc(sizeof *s);
    if (!s) return NULL;
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    fl_tensor *t = fl_scope_return(&scope, scope.depth_ > 0 ? fl__idx_load(s, path) : NULL);
    fl_quiet(-1);
    fl__free(s);
    return t;
}

/* ---- safetensors: what file and header have in common ---- */

/* One tensor of a file. */
typedef struct fl__st_entry {
    const char *name;
    fl_tensor *tensor; /* when saving */
    fl_dtype dtype;
    fl_shape shape;
    int64_t begin, end; /* offsets in the data */
    int64_t digits;     /* when saving: where the header has its checksum */
    uint32_t crc;
} fl__st_entry;

static const struct { const char *name; fl_dtype dtype; } fl__st_dtypes[] = {
    {"F16", FL_F16}, {"BF16", FL_BF16}, {"F32", FL_F32}, {"F64", FL_F64}, {"BOOL", FL_B8},
    {"U8", FL_U8},   {"U16", FL_U16},   {"U32", FL_U32}, {"U64", FL_U64}, {"I8", FL_I8},
    {"I16", FL_I16}, {"I32", FL_I32},   {"I64", FL_I64},
};
enum { FL__ST_DTYPES = sizeof fl__st_dtypes / sizeof fl__st_dtypes[0] };

static const char *fl__st_dtype_name(fl_dtype d) {
    for (int i = 0; i < FL__ST_DTYPES; i++)
        if (fl__st_dtypes[i].dtype == d) return fl__st_dtypes[i].name;
    return NULL;
}

static fl_dtype fl__st_dtype(const char *name) {
    for (int i = 0; i < FL__ST_DTYPES; i++)
        if (!strcmp(fl__st_dtypes[i].name, name)) return fl__st_dtypes[i].dtype;
    return FL_DTYPE_NONE;
}

/* Bytes of the UTF-8 character at s (n bytes are left), 0 if it is none. */
static size_t fl__utf8(const unsigned char *s, size_t n) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (s[0] < 0x80) return 1;
    size_t len = s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    if (!len || len > n) return 0;
    uint32_t c = s[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    bool surrogate = c >= 0xd800 && c < 0xe000;
    return c < least[len] || c > 0x10ffff || surrogate ? 0 : len;
}

static bool fl__utf8_valid(const char *s) {
    size_t n = strlen(s);
    for (size_t len; n; s += len, n -= len)
        if (!(len = fl__utf8((const unsigned char *)s, n))) return false;
    return true;
}

/* What is wrong with a tensor's name, NULL if it is fine. */
static const char *fl__st_name_fault(const char *name) {
    if (!*name) return "a tensor without name";
    if (!strcmp(name, "__metadata__")) return "a tensor named __metadata__";
    if (strlen(name) > FL_DATA_MAX_NAME) return "a name of more than 4096 bytes";
    return NULL;
}

static int fl__st_by_name(const void *a, const void *b) {
    return strcmp((*(fl__st_entry *const *)a)->name, (*(fl__st_entry *const *)b)->name);
}

static int fl__st_by_key(const void *a, const void *b) {
    return strcmp(((const fl_data_pair *)a)->key, ((const fl_data_pair *)b)->key);
}

/* qsort forbids NULL even for no elements. */
static void fl__st_sort(void *p, int64_t n, size_t size, int (*order)(const void *, const void *)) {
    if (n > 1) qsort(p, (size_t)n, size, order);
}

/* A name that comes twice among n sorted entries, or a key among n sorted pairs; NULL if there is
   none. */
static const char *fl__st_twice(fl__st_entry *const *sorted, int64_t n) {
    for (int64_t i = 1; i < n; i++)
        if (!strcmp(sorted[i - 1]->name, sorted[i]->name)) return sorted[i]->name;
    return NULL;
}

static const char *fl__st_key_twice(const fl_data_pair *sorted, int64_t n) {
    for (int64_t i = 1; i < n; i++)
        if (!strcmp(sorted[i - 1].key, sorted[i].key)) return sorted[i].key;
    return NULL;
}

#define FL__ST_CRC "crc32c" /* key of the header's checksum; "crc32c.<name>" of a tensor's */

static bool fl__st_is_crc(const char *key) {
    return !strncmp(key, FL__ST_CRC, sizeof FL__ST_CRC - 1);
}

/* The header's checksum is over its meaning, in sorted order: another program may rewrite the JSON,
   and the file stays valid. */
static uint32_t fl__st_header_crc(fl__st_entry *const *sorted, int64_t n, const fl_data_pair *meta,
                                  int64_t n_meta) {
    uint32_t crc = 0;
    for (int64_t i = 0; i < n; i++) {
        const fl__st_entry *e = sorted[i];
        crc = fl__crc32c(crc, e->name, strlen(e->name) + 1);
        const char *dtype = fl__st_dtype_name(e->dtype);
        crc = fl__crc32c(crc, dtype, strlen(dtype) + 1);
        crc = fl__crc32c(crc, e->shape.dim, (size_t)e->shape.ndim * sizeof(int64_t));
        crc = fl__crc32c(crc, &e->crc, sizeof e->crc);
    }
    for (int64_t i = 0; i < n_meta; i++) {
        if (fl__st_is_crc(meta[i].key)) continue;
        crc = fl__crc32c(crc, meta[i].key, strlen(meta[i].key) + 1);
        crc = fl__crc32c(crc, meta[i].value, strlen(meta[i].value) + 1);
    }
    return crc;
}

/* ---- safetensors: saving ---- */

typedef struct fl__st_saver {
    fl__data_stream f; /* the temporary file */
    const char *path;
    char *temp;
    fl__st_entry *entry, **sorted;
    int64_t n;
    fl_data_pair *meta; /* the caller's, sorted */
    int64_t n_meta;
    char *text; /* the header */
    int64_t len, cap;
    int64_t crc_digits;
} fl__st_saver;

static bool fl__st_put(fl__st_saver *s, const char *bytes, size_t n) {
    if (s->len + (int64_t)n > FL_DATA_MAX_HEADER)
        return fl_fail("%s: %s: the header passes %d bytes", s->f.who, s->path, FL_DATA_MAX_HEADER);
    if (!fl__grow(&s->text, &s->cap, s->len + (int64_t)n, 1)) return false;
    memcpy(s->text + s->len, bytes, n);
    s->len += (int64_t)n;
    return true;
}

static bool fl__st_puts(fl__st_saver *s, const char *text) {
    return fl__st_put(s, text, strlen(text));
}

/* text as the inside of a JSON string: runs of plain bytes, and escapes between them. */
static bool fl__st_put_escaped(fl__st_saver *s, const char *text) {
    for (;;) {
        size_t plain = 0;
        while ((unsigned char)text[plain] >= 0x20 && text[plain] != '"' && text[plain] != '\\') plain++;
        if (plain && !fl__st_put(s, text, plain)) return false;
        text += plain;
        if (!*text) return true;
        char code[8];
        bool control = (unsigned char)*text < 0x20;
        snprintf(code, sizeof code, control ? "\\u%04x" : "\\%c", (unsigned char)*text++);
        if (!fl__st_puts(s, code)) return false;
    }
}

static bool fl__st_put_pair(fl__st_saver *s, const char *prefix, const char *key,
                            const char *value) {
    return fl__st_puts(s, "\"") && fl__st_puts(s, prefix) && fl__st_put_escaped(s, key) &&
           fl__st_puts(s, "\":\"") && fl__st_put_escaped(s, value) && fl__st_puts(s, "\"");
}

static bool fl__st_put_entry(fl__st_saver *s, const fl__st_entry *e) {
    char text[400];
    int len = snprintf(text, sizeof text, "\":{\"dtype\":\"%s\",\"shape\":[",
                       fl__st_dtype_name(e->dtype));
    for (int i = 0; i < e->shape.ndim; i++)
        len += snprintf(text + len, sizeof text - (size_t)len, i ? ",%lld" : "%lld",
                        (long long)e->shape.dim[i]);
    snprintf(text + len, sizeof text - (size_t)len, "],\"data_offsets\":[%lld,%lld]}",
             (long long)e->begin, (long long)e->end);
    return fl__st_puts(s, ",\"") && fl__st_put_escaped(s, e->name) && fl__st_puts(s, text);
}

/* The header with checksums of zero, which are written over it when they are known. */
static bool fl__st_compose(fl__st_saver *s) {
    const char *zero = "00000000";
    const int64_t behind = 9; /* digits and their quote */
    bool ok = fl__st_puts(s, "{\"__metadata__\":{") && fl__st_put_pair(s, FL__ST_CRC, "", zero);
    s->crc_digits = s->len - behind;
    for (int64_t i = 0; ok && i < s->n; i++) {
        ok = fl__st_puts(s, ",") && fl__st_put_pair(s, FL__ST_CRC ".", s->entry[i].name, zero);
        s->entry[i].digits = s->len - behind;
    }
    for (int64_t i = 0; ok && i < s->n_meta; i++)
        ok = fl__st_puts(s, ",") && fl__st_put_pair(s, "", s->meta[i].key, s->meta[i].value);
    ok = ok && fl__st_puts(s, "}");
    for (int64_t i = 0; ok && i < s->n; i++) ok = fl__st_put_entry(s, &s->entry[i]);
    ok = ok && fl__st_puts(s, "}");
    while (ok && s->len % 8) ok = fl__st_puts(s, " ");
    return ok;
}

static void fl__st_put_digits(fl__st_saver *s, int64_t at, uint32_t crc) {
    char digits[9];
    snprintf(digits, sizeof digits, "%08x", (unsigned)crc);
    memcpy(s->text + at, digits, 8);
}

static bool fl__st_take_tensor(fl__st_saver *s, const fl_data_named *t, int64_t begin,
                               fl__st_entry *e) {
    if (!t->name) return fl_fail("%s: %s: a name is NULL", s->f.who, s->path);
    const char *fault =
        fl__utf8_valid(t->name) ? fl__st_name_fault(t->name) : "a name that is not UTF-8";
    if (fault) return fl_fail("%s: %s: %s", s->f.who, s->path, fault);
    if (!t->tensor) return fl_fail("%s: %s: tensor '%s' is NULL", s->f.who, s->path, t->name);
    if (t->tensor->weak || !fl__st_dtype_name(t->tensor->dtype))
        return fl_fail("%s: %s: tensor '%s' is a number, or of a dtype that safetensors lacks (%s)",
                       s->f.who, s->path, t->name, fl_dtype_name(t->tensor->dtype));
    fl_shape shape = fl_shape_of(t->tensor);
    int64_t bytes = fl_shape_numel(shape) * (int64_t)fl_dtype_size(t->tensor->dtype);
    *e = (fl__st_entry){.name = t->name,
                        .tensor = t->tensor,
                        .dtype = t->tensor->dtype,
                        .shape = shape,
                        .begin = begin,
                        .end = begin + bytes};
    return true;
}

static bool fl__st_take_tensors(fl__st_saver *s, const fl_data_named *tensors, int n) {
    s->entry = fl__alloc((size_t)n * sizeof *s->entry);
    s->sorted = fl__alloc((size_t)n * sizeof *s->sorted);
    if (!s->entry || !s->sorted) return false;
    for (int64_t begin = 0; s->n < n; s->n++) {
        fl__st_entry *e = &s->entry[s->n];
        if (!fl__st_take_tensor(s, &tensors[s->n], begin, e)) return false;
        begin = e->end;
        s->sorted[s->n] = e;
    }
    fl__st_sort(s->sorted, n, sizeof *s->sorted, fl__st_by_name);
    const char *twice = fl__st_twice(s->sorted, n);
    return !twice || fl_fail("%s: %s: two tensors are named '%s'", s->f.who, s->path, twice);
}

static bool fl__st_take_meta(fl__st_saver *s, const fl_data_pair *meta, int n) {
    s->meta = fl__alloc((size_t)n * sizeof *s->meta);
    if (!s->meta) return false;
    for (int i = 0; i < n; i++) {
        if (!meta[i].key || !meta[i].value)
            return fl_fail("%s: %s: metadata pair %d has a NULL", s->f.who, s->path, i);
        if (fl__st_is_crc(meta[i].key) || !fl__utf8_valid(meta[i].key) ||
            !fl__utf8_valid(meta[i].value))
            return fl_fail(
                "%s: %s: metadata pair %d is not UTF-8, or its key starts with " FL__ST_CRC,
                s->f.who, s->path, i);
        s->meta[i] = meta[i];
    }
    s->n_meta = n;
    fl__st_sort(s->meta, n, sizeof *s->meta, fl__st_by_key);
    const char *twice = fl__st_key_twice(s->meta, n);
    return !twice || fl_fail("%s: %s: metadata key '%s' comes twice", s->f.who, s->path, twice);
}

static bool fl__st_write_tensor(fl__st_saver *s, fl__st_entry *e) {
    size_t bytes = (size_t)(e->end - e->begin);
    bool ok = true;
    if (bytes) {
        fl_scope scope = fl_scope_begin();
        fl_tensor *t = fl_contiguous(e->tensor);
        void *p = t ? fl_map(t, FL_READ) : NULL;
        if (p) {
            e->crc = fl__crc32c(0, p, bytes);
            ok = fl__data_write_all(&s->f, p, bytes, 8 + s->len + e->begin);
            fl_unmap(t, FL_READ);
        } else ok = false;
        fl_scope_end(&scope);
    }
    fl__st_put_digits(s, e->digits, e->crc);
    return ok;
}

static bool fl__st_write_header(fl__st_saver *s) {
    unsigned char size[8];
    fl__st_put_digits(s, s->crc_digits, fl__st_header_crc(s->sorted, s->n, s->meta, s->n_meta));
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)s->len >> (8 * i));
    return fl__data_write_all(&s->f, size, 8, 0) &&
           fl__data_write_all(&s->f, s->text, (size_t)s->len, 8);
}

/* All of it into the temporary file, and that into its place. From the rename on there is nothing
   to undo. */
static bool fl__st_write(fl__st_saver *s) {
    fl_data_io *io = &s->f.io;
    if (!fl__data_open(&s->f, s->f.who, s->temp, FL_DATA_REPLACE)) return false;
    bool ok = true, renamed = false;
    for (int64_t i = 0; ok && i < s->n; i++) ok = fl__st_write_tensor(s, &s->entry[i]);
    ok = ok && fl__st_write_header(s);
    if (ok && io->sync(io->user, s->f.file) < 0) ok = fl__data_io_fail(&s->f, "cannot sync");
    if (ok) {
        renamed = io->rename(io->user, s->temp, s->path) >= 0;
        if (!renamed) ok = fl__data_io_fail(&s->f, "cannot rename");
    }
    if (!renamed) io->remove(io->user, s->temp); /* while we hold it: it is surely ours */
    if (io->close(io->user, s->f.file) < 0 && ok) ok = fl__data_io_fail(&s->f, "cannot close");
    if (ok && io->sync_dir(io->user, s->path) < 0)
        ok = fl__data_io_fail(&s->f, "cannot sync the folder");
    return ok;
}

FL_API bool fl_data_save_safetensors(const char *path, const fl_data_named *tensors, int n,
                                     const fl_data_pair *meta, int n_meta) {
    fl__st_saver s = {.path = path, .f = {.who = "fl_data_save_safetensors"}};
    if (!path || n < 0 || n_meta < 0 || (n && !tensors) || (n_meta && !meta))
        return fl_fail("%s: path, tensors or meta is NULL, or a count negative", s.f.who);
    size_t room = strlen(path) + sizeof ".tmp";
    fl_quiet(+1);
    s.temp = fl__alloc(room);
    if (s.temp) snprintf(s.temp, room, "%s.tmp", path);
    bool ok = s.temp && fl__st_take_tensors(&s, tensors, n) && fl__st_take_meta(&s, meta, n_meta) &&
              fl__st_compose(&s) && fl__st_write(&s);
    fl_quiet(-1);
    fl__free(s.temp);
    fl__free(s.entry);
    fl__free(s.sorted);
    fl__free(s.meta);
    fl__free(s.text);
    return ok;
}

/* ---- safetensors: the header's JSON ----

   The grammar is fixed (an object of objects of strings and integers), so nothing recurses, and
   whatever else JSON allows is an error. Strings are unescaped in place: what comes out is never
   longer. */

typedef struct fl__json {
    char *text, *p, *end;
    const fl__data_stream *f;
} fl__json;

static bool fl__json_fail(const fl__json *j, const char *what) {
    return fl_fail("%s: %s: offset %lld: %s", j->f->who, j->f->path,
                   8 + (long long)(j->p - j->text), what);
}

static bool fl__json_try(fl__json *j, char c) {
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\t' || *j->p == '\n' || *j->p == '\r'))
        j->p++;
    if (j->p == j->end || *j->p != c) return false;
    j->p++;
    return true;
}

static bool fl__json_expect(fl__json *j, char c) {
    if (fl__json_try(j, c)) return true;
    char what[] = "expected '?'";
    what[sizeof what - 3] = c;
    return fl__json_fail(j, what);
}

/* Four hexadecimal digits; -1 if they are not. */
static int32_t fl__json_hex4(fl__json *j) {
    int32_t v = 0;
    for (int i = 0; i < 4; i++, j->p++) {
        char c = j->p < j->end ? *j->p : 0;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 :
                    c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return -1;
        v = v * 16 + digit;
    }
    return v;
}

/* A character behind \u; 0 if there is none, or NUL. */
static uint32_t fl__json_unicode(fl__json *j) {
    int32_t c = fl__json_hex4(j);
    if (c < 0 || (c >= 0xdc00 && c < 0xe000)) return 0;
    if (c < 0xd800 || c >= 0xe000) return (uint32_t)c;
    if (j->end - j->p < 2 || j->p[0] != '\\' || j->p[1] != 'u') return 0;
    j->p += 2;
    int32_t low = fl__json_hex4(j);
    if (low < 0xdc00 || low >= 0xe000) return 0;
    return 0x10000u + ((uint32_t)(c - 0xd800) << 10) + (uint32_t)(low - 0xdc00);
}

static char *fl__utf8_put(char *d, uint32_t c) {
    int tail = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char lead[4] = {0, 0xc0, 0xe0, 0xf0};
    *d++ = (char)(lead[tail] | (c >> (6 * tail)));
    while (tail--) *d++ = (char)(0x80 | ((c >> (6 * tail)) & 0x3f));
    return d;
}

/* The character behind a backslash, written at d; returns the end, NULL after fl_fail. */
static char *fl__json_escape(fl__json *j, char *d) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = j->p < j->end ? *j->p : 0;
    const char *k = c ? strchr(from, c) : NULL;
    if (k) {
        j->p++;
        *d++ = to[k - from];
        return d;
    }
    uint32_t u = 0;
    if (c == 'u') {
        j->p++;
        u = fl__json_unicode(j);
    }
    if (u) return fl__utf8_put(d, u);
    fl__json_fail(j, "a bad escape, or a NUL, in a string");
    return NULL;
}

/* A string, unescaped and terminated; NULL after fl_fail. */
static char *fl__json_string(fl__json *j) {
    if (!fl__json_expect(j, '"')) return NULL;
    char *start = j->p, *d = start;
    while (j->p < j->end && *j->p != '"') {
        unsigned char c = (unsigned char)*j->p;
        if (c == '\\') {
            j->p++;
            d = fl__json_escape(j, d);
            if (!d) return NULL;
            continue;
        }
        size_t len = fl__utf8((unsigned char *)j->p, (size_t)(j->end - j->p));
        if (c < 0x20 || !len) {
            fl__json_fail(j, c < 0x20 ? "a control character in a string" : "invalid UTF-8");
            return NULL;
        }
        memmove(d, j->p, len);
        d += len, j->p += len;
    }
    if (j->p == j->end) {
        fl__json_fail(j, "the string does not end");
        return NULL;
    }
    j->p++;
    *d = 0;
    return start;
}

/* A non-negative integer. */
static bool fl__json_integer(fl__json *j, int64_t *out) {
    fl__json_try(j, 0); /* skips white space */
    const char *start = j->p;
    int64_t v = 0;
    for (; j->p < j->end && *j->p >= '0' && *j->p <= '9'; j->p++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *j->p - '0', &v))
            return fl__json_fail(j, "a number past 2^63");
    if (j->p == start || (*start == '0' && j->p > start + 1))
        return fl__json_fail(j, "expected a whole number, not negative");
    *out = v;
    return true;
}

/* [a, b, ...] of at most max integers. */
static bool fl__json_integers(fl__json *j, int64_t *out, int max, int *n) {
    *n = 0;
    if (!fl__json_expect(j, '[')) return false;
    if (fl__json_try(j, ']')) return true;
    do {
        if (*n == max) return fl__json_fail(j, "too many numbers");
        if (!fl__json_integer(j, &out[(*n)++])) return false;
    } while (fl__json_try(j, ','));
    return fl__json_expect(j, ']');
}

/* ---- safetensors: opening ---- */

struct fl_data_file {
    fl__data_stream f;
    char *path, *text;
    fl__st_entry *entry, **sorted; /* in the file's order; by name */
    int64_t n, entry_cap;
    fl_data_pair *meta; /* by key */
    int64_t n_meta, meta_cap;
    int64_t data_at, data_size;
    bool checksums;
};

static bool fl__st_parse_meta(fl_data_file *s, fl__json *j) {
    if (s->meta) return fl__json_fail(j, "a second __metadata__");
    if (!fl__grow(&s->meta, &s->meta_cap, 1, sizeof *s->meta) || !fl__json_expect(j, '{'))
        return false;
    if (fl__json_try(j, '}')) return true;
    do {
        if (!fl__grow(&s->meta, &s->meta_cap, s->n_meta + 1, sizeof *s->meta)) return false;
        fl_data_pair *pair = &s->meta[s->n_meta];
        pair->key = fl__json_string(j);
        if (!pair->key || !fl__json_expect(j, ':')) return false;
        pair->value = fl__json_string(j);
        if (!pair->value) return false;
        s->n_meta++;
    } while (fl__json_try(j, ','));
    return fl__json_expect(j, '}');
}

static bool fl__st_parse_dtype(fl__json *j, fl__st_entry *e) {
    const char *name = fl__json_string(j);
    if (!name) return false;
    e->dtype = fl__st_dtype(name);
    return e->dtype != FL_DTYPE_NONE ||
           fl_fail("%s: %s: tensor '%.100s' has the dtype '%.20s', which is not supported "
                   "(F32 F64 I64 I32 U8 BOOL are)", j->f->who, j->f->path, e->name, name);
}

static bool fl__st_parse_field(fl__json *j, fl__st_entry *e, unsigned *seen) {
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    int64_t offsets[2];
    int n, k = 0;
    const char *name = fl__json_string(j);
    if (!name) return false;
    while (k < 3 && strcmp(name, fields[k])) k++;
    if (k == 3) return fl__json_fail(j, "an unknown field of a tensor");
    if (*seen & 1u << k) return fl__json_fail(j, "a field comes twice");
    *seen |= 1u << k;
    if (!fl__json_expect(j, ':')) return false;
    if (k == 0) return fl__st_parse_dtype(j, e);
    if (k == 1) return fl__json_integers(j, e->shape.dim, FL_MAX_DIMS, &e->shape.ndim);
    if (!fl__json_integers(j, offsets, 2, &n)) return false;
    e->begin = offsets[0], e->end = n == 2 ? offsets[1] : 0;
    return n == 2 || fl__json_fail(j, "data_offsets wants two numbers");
}

static bool fl__st_parse_entry(fl_data_file *s, fl__json *j, const char *name) {
    const char *fault = fl__st_name_fault(name);
    if (fault) return fl__json_fail(j, fault);
    if (!fl__grow(&s->entry, &s->entry_cap, s->n + 1, sizeof *s->entry)) return false;
    fl__st_entry *e = &s->entry[s->n];
    *e = (fl__st_entry){.name = name};
    unsigned seen = 0;
    if (!fl__json_expect(j, '{')) return false;
    do {
        if (!fl__st_parse_field(j, e, &seen)) return false;
    } while (fl__json_try(j, ','));
    if (!fl__json_expect(j, '}')) return false;
    s->n++;
    return seen == 7 || fl__json_fail(j, "a tensor lacks dtype, shape or data_offsets");
}

static bool fl__st_parse(fl_data_file *s, int64_t len) {
    fl__json j = {s->text, s->text, s->text + len, &s->f};
    if (*j.p != '{') return fl__json_fail(&j, "expected '{'");
    j.p++;
    if (!fl__json_try(&j, '}')) {
        do {
            char *name = fl__json_string(&j);
            if (!name || !fl__json_expect(&j, ':')) return false;
            bool ok = strcmp(name, "__metadata__") ? fl__st_parse_entry(s, &j, name)
                                                   : fl__st_parse_meta(s, &j);
            if (!ok) return false;
        } while (fl__json_try(&j, ','));
        if (!fl__json_expect(&j, '}')) return false;
    }
    while (j.p < j.end && *j.p == ' ') j.p++;
    return j.p == j.end || fl__json_fail(&j, "something behind the header");
}

static int fl__st_by_offset(const void *a, const void *b) {
    const fl__st_entry *x = *(fl__st_entry *const *)a, *y = *(fl__st_entry *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Every tensor's range has the size of its shape, and together they tile the data. */
static bool fl__st_check_ranges(fl_data_file *s) {
    int64_t at = 0;
    fl__st_sort(s->sorted, s->n, sizeof *s->sorted, fl__st_by_offset);
    for (int64_t i = 0; i < s->n; i++) {
        const fl__st_entry *e = s->sorted[i];
        int64_t numel = fl_shape_numel(e->shape);
        size_t bytes;
        if (numel < 0 || !fl__mul_size((size_t)numel, fl_dtype_size(e->dtype), &bytes) ||
            e->end < e->begin || bytes != (uint64_t)(e->end - e->begin))
            return fl_fail("%s: %s: tensor '%.100s': offsets %lld to %lld do not fit its shape",
                           s->f.who, s->path, e->name, (long long)e->begin, (long long)e->end);
        if (e->begin != at || e->end > s->data_size)
            return fl_fail(
                "%s: %s: tensor '%.100s' starts at offset %lld of the data and ends at %lld: "
                "%lld was next, %lld is the end",
                s->f.who, s->path, e->name, (long long)e->begin, (long long)e->end, (long long)at,
                (long long)s->data_size);
        at = e->end;
    }
    return at == s->data_size || fl_fail("%s: %s: %lld bytes behind the last tensor", s->f.who,
                                         s->path, (long long)(s->data_size - at));
}

static bool fl__st_check_names(fl_data_file *s) {
    fl__st_sort(s->sorted, s->n, sizeof *s->sorted, fl__st_by_name);
    fl__st_sort(s->meta, s->n_meta, sizeof *s->meta, fl__st_by_key);
    const char *twice = fl__st_twice(s->sorted, s->n);
    if (twice) return fl_fail("%s: %s: two tensors are named '%.100s'", s->f.who, s->path, twice);
    twice = fl__st_key_twice(s->meta, s->n_meta);
    return !twice || fl_fail("%s: %s: metadata key '%.100s' comes twice", s->f.who, s->path, twice);
}

/* Eight hexadecimal digits, lower case. */
static bool fl__st_parse_crc(const char *digits, uint32_t *crc) {
    char again[9];
    *crc = (uint32_t)strtoul(digits, NULL, 16);
    snprintf(again, sizeof again, "%08x", (unsigned)*crc);
    return !strcmp(again, digits);
}

/* A file has all checksums or none. Keys and entries are sorted alike, so both lists are walked
   once. */
static bool fl__st_take_checksums(fl_data_file *s) {
    const size_t prefix = sizeof FL__ST_CRC - 1;
    int64_t at = 0, header = -1;
    uint32_t crc;
    for (int64_t i = 0; i < s->n_meta; i++) {
        const char *key = s->meta[i].key;
        if (!fl__st_is_crc(key)) continue;
        bool ok = fl__st_parse_crc(s->meta[i].value, &crc);
        if (ok && !key[prefix]) header = i;
        else if (ok && key[prefix] == '.' && at < s->n &&
                 !strcmp(key + prefix + 1, s->sorted[at]->name))
            s->sorted[at++]->crc = crc;
        else return fl_fail("%s: %s: bad checksum entry '%.100s'", s->f.who, s->path, key);
    }
    s->checksums = header >= 0;
    if (at != (s->checksums ? s->n : 0))
        return fl_fail("%s: %s: some tensors have a checksum and some have none", s->f.who,
                       s->path);
    if (!s->checksums) return true;
    fl__st_parse_crc(s->meta[header].value, &crc);
    return crc == fl__st_header_crc(s->sorted, s->n, s->meta, s->n_meta) ||
           fl_fail("%s: %s: the header's checksum does not match", s->f.who, s->path);
}

static bool fl__st_read_header(fl_data_file *s) {
    unsigned char size[8];
    uint64_t len = 0;
    if (!fl__data_read_all(&s->f, size, 8, 0)) return false;
    for (int i = 7; i >= 0; i--) len = len << 8 | size[i];
    uint64_t most =
        s->f.size - 8 < FL_DATA_MAX_HEADER ? (uint64_t)s->f.size - 8 : FL_DATA_MAX_HEADER;
    if (len < 2 || len > most)
        return fl_fail("%s: %s: offset 0: a header of %llu bytes, 2 to %llu are possible", s->f.who,
                       s->path, (unsigned long long)len, (unsigned long long)most);
    s->data_at = 8 + (int64_t)len;
    s->data_size = s->f.size - s->data_at;
    s->text = fl__alloc((size_t)len);
    if (!s->text || !fl__data_read_all(&s->f, s->text, (size_t)len, 8)) return false;
    if (!fl__st_parse(s, (int64_t)len)) return false;
    s->sorted = fl__alloc((size_t)s->n * sizeof *s->sorted);
    if (!s->sorted) return false;
    for (int64_t i = 0; i < s->n; i++) s->sorted[i] = &s->entry[i];
    return fl__st_check_ranges(s) && fl__st_check_names(s) && fl__st_take_checksums(s);
}

FL_API fl_data_file *fl_data_open_safetensors(const char *path) {
    if (!path) {
        fl_fail("fl_data_open_safetensors: path is NULL");
        return NULL;
    }
    fl_data_file *s = fl__alloc(sizeof *s);
    if (!s) return NULL;
    size_t n = strlen(path) + 1;
    s->path = fl__alloc(n);
    if (s->path) memcpy(s->path, path, n);
    if (s->path && fl__data_open(&s->f, "fl_data_open_safetensors", s->path, FL_DATA_READ) &&
        fl__st_read_header(s))
        return s;
    fl_data_close(s);
    return NULL;
}

FL_API void fl_data_close(fl_data_file *f) {
    if (!f) return;
    if (f->f.file) f->f.io.close(f->f.io.user, f->f.file);
    fl__free(f->path);
    fl__free(f->text);
    fl__free(f->entry);
    fl__free(f->sorted);
    fl__free(f->meta);
    fl__free(f);
}

FL_API int64_t fl_data_count(const fl_data_file *f) {
    return f ? f->n : 0;
}

static const fl__st_entry *fl__st_at(const fl_data_file *f, int64_t i, const char *who) {
    if (f && i >= 0 && i < f->n) return &f->entry[i];
    fl_fail("%s: tensor %lld of %lld", who, (long long)i, (long long)fl_data_count(f));
    return NULL;
}

FL_API const char *fl_data_name(const fl_data_file *f, int64_t i) {
    const fl__st_entry *e = fl__st_at(f, i, "fl_data_name");
    return e ? e->name : NULL;
}

FL_API fl_dtype fl_data_dtype(const fl_data_file *f, int64_t i) {
    const fl__st_entry *e = fl__st_at(f, i, "fl_data_dtype");
    return e ? e->dtype : FL_DTYPE_NONE;
}

FL_API fl_shape fl_data_shape(const fl_data_file *f, int64_t i) {
    const fl__st_entry *e = fl__st_at(f, i, "fl_data_shape");
    return e ? e->shape : FL_SCALAR_SHAPE;
}

FL_API int64_t fl_data_find(const fl_data_file *f, const char *name) {
    fl__st_entry key = {.name = name}, *k = &key, **found = NULL;
    if (f && name && f->n)
        found = bsearch(&k, f->sorted, (size_t)f->n, sizeof *f->sorted, fl__st_by_name);
    return found ? *found - f->entry : -1;
}

FL_API const char *fl_data_meta(const fl_data_file *f, const char *key) {
    fl_data_pair k = {key, NULL}, *found = NULL;
    if (f && key && f->n_meta)
        found = bsearch(&k, f->meta, (size_t)f->n_meta, sizeof *f->meta, fl__st_by_key);
    return found ? found->value : NULL;
}

/* A truth value has only two of a byte's values. */
static bool fl__st_check_bools(const fl_data_file *f, const fl__st_entry *e,
                               const unsigned char *p) {
    for (int64_t i = 0; e->dtype == FL_B8 && i < e->end - e->begin; i++)
        if (p[i] > 1)
            return fl_fail("fl_data_read: %s: offset %lld: the byte %d in the BOOL tensor '%.100s'",
                           f->path, (long long)(f->data_at + e->begin + i), p[i], e->name);
    return true;
}

static bool fl__st_fill(const fl_data_file *f, const fl__st_entry *e, void *dst) {
    fl__data_stream stream = f->f;
    stream.who = "fl_data_read";
    size_t bytes = (size_t)(e->end - e->begin);
    if (!fl__data_read_all(&stream, dst, bytes, f->data_at + e->begin)) return false;
    if (f->checksums && fl__crc32c(0, dst, bytes) != e->crc)
        return fl_fail("fl_data_read: %s: the checksum of tensor '%.100s' does not match", f->path,
                       e->name);
    return fl__st_check_bools(f, e, dst);
}

static fl_tensor *fl__st_read(const fl_data_file *f, const fl__st_entry *e) {
    fl_tensor *t = fl_empty(e->shape, e->dtype);
    if (!t || e->end == e->begin) return t;
    void *p = fl_map(t, FL_WRITE);
    if (!p) return NULL;
    bool ok = fl__st_fill(f, e, p);
    fl_unmap(t, FL_WRITE);
    return ok ? t : NULL;
}

FL_API fl_tensor *fl_data_read(fl_data_file *f, const char *name) {
    int64_t i = fl_data_find(f, name);
    if (i < 0) {
        fl_fail("fl_data_read: %s: no tensor '%.100s'", f ? f->path : "no file",
                name ? name : "(null)");
        return NULL;
    }
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    fl_tensor *t = fl_scope_return(&scope, scope.depth_ > 0 ? fl__st_read(f, &f->entry[i]) : NULL);
    fl_quiet(-1);
    return t;
}

/* ---- sets ---- */

FL_API fl_data_set *fl_data_set_new(const fl_data_set *table, fl_data_set *const *inner, int n) {
    fl_data_set *s = NULL;
    bool ok = table && table->get && table->size >= 0 && n >= 0;
    if (!ok) fl_fail("fl_data_set_new: the table is NULL, has no get, or a negative size");
    for (int i = 0; ok && i < n; i++)
        ok = inner[i] || fl_fail("fl_data_set_new: inner set %d is NULL", i);
    if (ok) s = fl__alloc(sizeof *s + (size_t)n * sizeof *inner);
    if (s) {
        *s = *table;
        s->epoch_ = 0;
        s->n_inner_ = n;
        s->inner_ = (fl_data_set **)(s + 1);
        for (int i = 0; i < n; i++) s->inner_[i] = inner[i];
        return s;
    }
    fl_data_set mine = table ? *table : (fl_data_set){0};
    if (mine.close) mine.close(&mine);
    for (int i = 0; i < n; i++) fl_data_free(inner[i]);
    return NULL;
}

FL_API fl_data_set *fl_data_inner(const fl_data_set *set, int k) {
    return set && k >= 0 && k < set->n_inner_ ? set->inner_[k] : NULL;
}

FL_API void fl_data_free(fl_data_set *set) {
    if (!set) return;
    if (set->close) set->close(set);
    for (int i = 0; i < set->n_inner_; i++) fl_data_free(set->inner_[i]);
    fl__free(set);
}

FL_API int64_t fl_data_size(const fl_data_set *set) {
    return set ? set->size : 0;
}

/* Gives one reference of each tensor to the innermost scope. */
static bool fl__data_own_sample(const fl_data_sample *s) {
    bool ok = true;
    for (int k = 0; k < s->n; k++) ok = fl_obj_own(&s->t[k]->obj) && ok;
    return ok;
}

/* Runs set->get inside a scope and hands its results out. */
static bool fl__data_get_in_scope(fl_data_set *set, int64_t i, fl_data_sample *out) {
    fl_data_sample r = {0};
    fl_scope scope = fl_scope_begin();
    bool ok = scope.depth_ > 0 && set->get(set, i, &r);
    if (ok && (r.n < 0 || r.n > FL_DATA_FIELDS))
        ok = fl_fail("fl_data_get: sample %lld has %d fields", (long long)i, r.n);
    for (int k = 0; ok && k < r.n; k++)
        ok = r.t[k] || fl_fail("fl_data_get: field %d of sample %lld is NULL", k, (long long)i);
    for (int k = 0; ok && k < r.n; k++) fl_keep(r.t[k]);
    fl_scope_end(&scope);
    ok = ok && fl__data_own_sample(&r);
    if (ok) *out = r;
    return ok;
}

FL_API bool fl_data_get(fl_data_set *set, int64_t i, fl_data_sample *out) {
    if (!set || !out) return fl_fail("fl_data_get: the set, or out, is NULL");
    if (i < 0 || i >= set->size)
        return fl_fail("fl_data_get: sample %lld of %lld", (long long)i, (long long)set->size);
    fl_quiet(+1);
    bool ok = fl__data_get_in_scope(set, i, out);
    fl_quiet(-1);
    return ok || fl_fail("fl_data_get: sample %lld: the set gave no reason", (long long)i);
}

FL_API bool fl_data_set_epoch(fl_data_set *set, int64_t epoch) {
    if (!set) return fl_fail("fl_data_set_epoch: the set is NULL");
    if (set->start && !set->start(set, epoch))
        return fl_fail("fl_data_set_epoch: a set does not start epoch %lld", (long long)epoch);
    set->epoch_ = epoch;
    for (int i = 0; i < set->n_inner_; i++)
        if (!fl_data_set_epoch(set->inner_[i], epoch)) return false;
    return true;
}

/* splitmix64: a counter and a bijection that mixes it. */
static uint64_t fl__data_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

FL_API fl_rng fl_data_rng(uint64_t seed, int64_t epoch, int64_t index) {
    uint64_t key =
        fl__data_mix(fl__data_mix(fl__data_mix(seed) + (uint64_t)epoch) + (uint64_t)index);
    return (fl_rng){key, 0};
}

static void fl__data_free_user(fl_data_set *self) {
    fl__free(self->user);
}

/* A set over one other; a table without user is one whose allocation failed. */
static fl_data_set *fl__data_over(fl_data_set *set, const fl_data_set *table) {
    if (table->user) return fl_data_set_new(table, &set, 1);
    fl_data_free(set);
    return NULL;
}

/* Frees what a constructor took, after a failure. */
static fl_data_set *fl__data_refuse(fl_data_set *const *sets, int n) {
    for (int i = 0; sets && i < n; i++) fl_data_free(sets[i]);
    return NULL;
}

typedef struct fl__data_fields {
    int n;
    fl_tensor *t[FL_DATA_FIELDS];
} fl__data_fields;

static bool fl__data_tensors_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__data_fields *f = self->user;
    out->n = f->n;
    for (int k = 0; k < f->n; k++)
        if (!(out->t[k] = fl_select(f->t[k], 0, i))) return false;
    return true;
}

static void fl__data_tensors_close(fl_data_set *self) {
    fl__data_fields *f = self->user;
    for (int k = 0; k < f->n; k++) fl_drop(f->t[k]);
    fl__free(f);
}

FL_API fl_data_set *fl_data_tensors(fl_tensor *const *tensors, int n) {
    bool ok = tensors && n >= 1 && n <= FL_DATA_FIELDS;
    if (!ok) fl_fail("fl_data_tensors: %d tensors, 1 to %d are possible", n, FL_DATA_FIELDS);
    for (int k = 0; ok && k < n; k++) {
        ok = tensors[k] && tensors[k]->ndim > 0 && tensors[k]->shape[0] == tensors[0]->shape[0];
        if (!ok) fl_fail("fl_data_tensors: tensor %d is NULL, or not as long as tensor 0", k);
    }
    fl__data_fields *f = ok ? fl__alloc(sizeof *f) : NULL;
    if (!f) return NULL;
    for (; f->n < n; f->n++) f->t[f->n] = fl_keep(tensors[f->n]);
    return fl_data_set_new(&(fl_data_set){.size = tensors[0]->shape[0], .get = fl__data_tensors_get,
                                          .close = fl__data_tensors_close, .user = f}, NULL, 0);
}

/* Sets that give the inner samples in another order: sample i is index[i] of the inner set, or
   offset + i * step. */
typedef struct fl__data_order {
    int64_t offset, step, n;
    uint64_t seed;
    int64_t index[];
} fl__data_order;

static bool fl__data_order_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__data_order *o = self->user;
    return fl_data_get(self->inner_[0], o->n ? o->index[i] : o->offset + i * o->step, out);
}

/* For n indices. */
static fl__data_order *fl__data_order_new(int64_t offset, int64_t step, int64_t n) {
    size_t bytes;
    fl__data_order *o = NULL;
    if (!fl__mul_size((size_t)n, sizeof *o->index, &bytes) || bytes > SIZE_MAX - sizeof *o)
        fl_fail("out of memory: %lld indices", (long long)n);
    else o = fl__alloc(sizeof *o + bytes);
    if (o) o->offset = offset, o->step = step, o->n = n;
    return o;
}

static fl_data_set *fl__data_in_order(fl_data_set *set, int64_t size, fl__data_order *o) {
    return fl__data_over(set, &(fl_data_set){.size = size, .get = fl__data_order_get,
                                             .close = fl__data_free_user, .user = o});
}

static fl_data_set *fl__data_no_set(const char *who) {
    fl_fail("%s: the set is NULL", who);
    return NULL;
}

FL_API fl_data_set *fl_data_span(fl_data_set *set, int64_t offset, int64_t length) {
    if (!set) return fl__data_no_set("fl_data_span");
    if (offset < 0 || length < 0 || length > set->size || offset > set->size - length) {
        fl_fail("fl_data_span: %lld samples from %lld of %lld", (long long)length, (long long)offset,
                (long long)set->size);
        return fl__data_refuse(&set, 1);
    }
    return fl__data_in_order(set, length, fl__data_order_new(offset, 1, 0));
}

FL_API fl_data_set *fl_data_shard(fl_data_set *set, int rank, int ranks) {
    if (!set) return fl__data_no_set("fl_data_shard");
    if (ranks < 1 || rank < 0 || rank >= ranks) {
        fl_fail("fl_data_shard: rank %d of %d", rank, ranks);
        return fl__data_refuse(&set, 1);
    }
    return fl__data_in_order(set, set->size / ranks, fl__data_order_new(rank, ranks, 0));
}

FL_API fl_data_set *fl_data_resample(fl_data_set *set, const int64_t *index, int64_t n) {
    if (!set) return fl__data_no_set("fl_data_resample");
    bool ok = n >= 0 && (index || !n);
    if (!ok) fl_fail("fl_data_resample: %lld indices, or index is NULL", (long long)n);
    for (int64_t i = 0; ok && i < n; i++)
        if (index[i] < 0 || index[i] >= set->size)
            ok = fl_fail("fl_data_resample: index %lld is %lld, the set has %lld samples",
                         (long long)i, (long long)index[i], (long long)set->size);
    if (!ok) return fl__data_refuse(&set, 1);
    fl__data_order *o = fl__data_order_new(0, 1, n);
    if (o && n) memcpy(o->index, index, (size_t)n * sizeof *index);
    return fl__data_in_order(set, n, o);
}

/* Fisher-Yates; the remainder's bias is n / 2^64. */
static bool fl__data_shuffle_start(fl_data_set *self, int64_t epoch) {
    fl__data_order *o = self->user;
    uint64_t state = fl_data_rng(o->seed, epoch, 0).key;
    for (int64_t i = 0; i < o->n; i++) o->index[i] = i;
    for (int64_t i = o->n - 1; i > 0; i--) {
        int64_t k = (int64_t)(fl__data_mix(state + (uint64_t)i) % ((uint64_t)i + 1)),
                t = o->index[i];
        o->index[i] = o->index[k];
        o->index[k] = t;
    }
    return true;
}

FL_API fl_data_set *fl_data_shuffle(fl_data_set *set, uint64_t seed) {
    if (!set) return fl__data_no_set("fl_data_shuffle");
    fl__data_order *o = fl__data_order_new(0, 1, set->size);
    if (o) o->seed = seed;
    set = fl__data_in_order(set, set->size, o);
    if (set) {
        set->start = fl__data_shuffle_start;
        fl__data_shuffle_start(set, 0);
    }
    return set;
}

static bool fl__data_concat_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    int k = 0;
    while (i >= self->inner_[k]->size) i -= self->inner_[k++]->size;
    return fl_data_get(self->inner_[k], i, out);
}

FL_API fl_data_set *fl_data_concat(fl_data_set *const *sets, int n) {
    int64_t size = 0;
    bool ok = (sets && n > 0) || fl_fail("fl_data_concat: no sets");
    for (int i = 0; ok && i < n; i++)
        if (!sets[i] || __builtin_add_overflow(size, sets[i]->size, &size))
            ok = fl_fail("fl_data_concat: set %d is NULL, or too large", i);
    if (!ok) return fl__data_refuse(sets, n);
    return fl_data_set_new(&(fl_data_set){.size = size, .get = fl__data_concat_get}, sets, n);
}

static bool fl__data_zip_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    for (int k = 0; k < self->n_inner_; k++) {
        fl_data_sample part;
        if (!fl_data_get(self->inner_[k], i, &part)) return false;
        if (out->n + part.n > FL_DATA_FIELDS)
            return fl_fail("fl_data_zip: more than %d fields", FL_DATA_FIELDS);
        for (int f = 0; f < part.n; f++) out->t[out->n++] = part.t[f];
    }
    return true;
}

FL_API fl_data_set *fl_data_zip(fl_data_set *const *sets, int n) {
    bool ok = (sets && n > 0) || fl_fail("fl_data_zip: no sets");
    for (int i = 0; ok && i < n; i++)
        if (!sets[i] || sets[i]->size != sets[0]->size)
            ok = fl_fail("fl_data_zip: set %d is NULL, or not of the size of set 0", i);
    if (!ok) return fl__data_refuse(sets, n);
    return fl_data_set_new(&(fl_data_set){.size = sets[0]->size, .get = fl__data_zip_get}, sets, n);
}

/* ---- batches ---- */

static bool fl__data_same_kind(const fl_tensor *a, const fl_tensor *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape);
}

/* Sample i may follow the batch's first one. */
static bool fl__data_check_like(const fl_data_sample *s, const fl_data_sample *first, int64_t i) {
    char a[96], b[96];
    if (s->n != first->n)
        return fl_fail("fl_data_batch: sample %lld has %d fields, the batch's first %d",
                       (long long)i, s->n, first->n);
    for (int k = 0; k < s->n; k++) {
        const fl_tensor *t = s->t[k], *like = first->t[k];
        if (!fl__data_same_kind(t, like))
            return fl_fail(
                "fl_data_batch: field %d of sample %lld is %s %s, of the batch's first %s %s", k,
                (long long)i, fl_dtype_name(t->dtype), fl_shape_text(fl_shape_of(t), a, sizeof a),
                fl_dtype_name(like->dtype), fl_shape_text(fl_shape_of(like), b, sizeof b));
    }
    return true;
}

/* Sample `at` of count, n fields each: column k of ts takes field k. */
static bool fl__data_batch_fill(fl_data_set *inner, int64_t first, int64_t count, fl_tensor **ts,
                                fl_data_sample *like) {
    for (int64_t i = 0; i < count; i++) {
        fl_data_sample s;
        if (!fl_data_get(inner, first + i, &s)) return false;
        if (i == 0) *like = s;
        if (!fl__data_check_like(&s, like, first + i)) return false;
        for (int k = 0; k < s.n; k++) ts[k * count + i] = s.t[k];
    }
    return true;
}

static bool fl__data_batch_get(fl_data_set *self, int64_t b, fl_data_sample *out) {
    fl_data_set *inner = self->inner_[0];
    int64_t size = *(int64_t *)self->user, first = b * size;
    int64_t count = size < inner->size - first ? size : inner->size - first;
    fl_data_sample like = {0};
    fl_tensor **ts = fl__alloc((size_t)count * FL_DATA_FIELDS * sizeof *ts);
    bool ok = ts && fl__data_batch_fill(inner, first, count, ts, &like);
    for (int k = 0; ok && k < like.n; k++)
        ok = (out->t[k] = fl_stack(ts + k * count, (int)count, 0)) != NULL;
    out->n = like.n;
    fl__free(ts);
    return ok;
}

FL_API fl_data_set *fl_data_batch(fl_data_set *set, int64_t size, bool drop_last) {
    if (!set) return fl__data_no_set("fl_data_batch");
    if (size < 1 || size > INT32_MAX) {
        fl_fail("fl_data_batch: batches of %lld", (long long)size);
        return fl__data_refuse(&set, 1);
    }
    int64_t *user = fl__alloc(sizeof *user);
    if (user) *user = size;
    int64_t n = set->size / size + (!drop_last && set->size % size != 0);
    return fl__data_over(set, &(fl_data_set){.size = n, .get = fl__data_batch_get,
                                             .close = fl__data_free_user, .user = user});
}

/* ---- transforms ---- */

typedef struct fl__data_change {
    fl_data_fn fn;
    void *user;
} fl__data_change;

static bool fl__data_transform_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__data_change *c = self->user;
    fl_rng rng = fl_data_rng(0, self->epoch_, i);
    if (!fl_data_get(self->inner_[0], i, out)) return false;
    return c->fn(out, &rng, c->user) ||
           fl_fail("fl_data_transform: sample %lld was refused", (long long)i);
}

FL_API fl_data_set *fl_data_transform(fl_data_set *set, fl_data_fn fn, void *user) {
    if (!set) return fl__data_no_set("fl_data_transform");
    if (!fn) {
        fl_fail("fl_data_transform: fn is NULL");
        return fl__data_refuse(&set, 1);
    }
    fl__data_change *c = fl__alloc(sizeof *c);
    if (c) *c = (fl__data_change){fn, user};
    return fl__data_over(set, &(fl_data_set){.size = set->size, .get = fl__data_transform_get,
                                             .close = fl__data_free_user, .user = c});
}

/* ---- prefetch ----

   Workers take the numbers from `next` on while they are less than depth ahead of `want`, which the
   reader asks for next, and leave sample i in slot i % depth. A jump starts a new run: slots are
   emptied, and a worker that comes back from an older run drops what it made. */

typedef struct fl__data_slot {
    bool full, ok;
    fl_data_sample sample; /* kept */
    char error[1024];
} fl__data_slot;

typedef struct fl__data_loader {
    fl_data_set *inner;
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* for workers, for the reader */
    int64_t want, next;        /* want -1: no run */
    uint64_t run;
    int busy;                  /* workers making a sample */
    bool stop;
    int depth, threads;
    pthread_t *thread;
    fl__data_slot slot[];
} fl__data_loader;

static void fl__data_drop_sample(fl_data_sample *s) {
    for (int k = 0; k < s->n; k++) fl_drop(s->t[k]);
    s->n = 0;
}

/* Makes sample i; its tensors are kept, its error is text. */
static void fl__data_make(fl_data_set *inner, int64_t i, fl__data_slot *s) {
    fl_scope scope = fl_scope_begin();
    s->sample.n = 0;
    s->ok = scope.depth_ > 0 && fl_data_get(inner, i, &s->sample);
    for (int k = 0; k < s->sample.n; k++) fl_keep(s->sample.t[k]);
    const char *text = fl_error();
    snprintf(s->error, sizeof s->error, "%.*s", (int)sizeof s->error - 1,
             text ? text : "fl_data_prefetch: a sample failed");
    fl_error_clear();
    fl_scope_end(&scope);
}

static bool fl__data_has_work(const fl__data_loader *l) {
    return l->want >= 0 && l->next < l->inner->size && l->next < l->want + l->depth;
}

static void *fl__data_worker(void *arg) {
    fl__data_loader *l = arg;
    fl__data_slot made = {0};
    fl_quiet(+1);
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (!fl__data_has_work(l)) {
            pthread_cond_wait(&l->work, &l->lock);
            continue;
        }
        int64_t i = l->next++;
        uint64_t run = l->run;
        l->busy++;
        pthread_mutex_unlock(&l->lock);
        fl__data_make(l->inner, i, &made);
        pthread_mutex_lock(&l->lock);
        l->busy--;
        made.full = true;
        if (run == l->run) l->slot[i % l->depth] = made;
        else fl__data_drop_sample(&made.sample);
        pthread_cond_broadcast(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Ends the run; `want` starts another (-1: none). The lock is held. */
static void fl__data_jump(fl__data_loader *l, int64_t want) {
    for (int i = 0; i < l->depth; i++) {
        if (l->slot[i].full) fl__data_drop_sample(&l->slot[i].sample);
        l->slot[i].full = false;
    }
    l->run++;
    l->want = l->next = want;
    pthread_cond_broadcast(&l->work);
}

static bool fl__data_prefetch_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    fl__data_loader *l = self->user;
    pthread_mutex_lock(&l->lock);
    fl__data_slot *slot = &l->slot[i % l->depth];
    while (l->want != i || !slot->full) {
        if (l->want != i) fl__data_jump(l, i);
        else pthread_cond_wait(&l->done, &l->lock);
    }
    bool ok = slot->ok;
    *out = slot->sample;
    slot->full = false;
    if (ok) {
        l->want = i + 1;
        pthread_cond_signal(&l->work);
    } else {
        fl_fail("%s", slot->error);
        fl__data_jump(l, -1);
    }
    pthread_mutex_unlock(&l->lock);
    return ok && fl__data_own_sample(out);
}

static bool fl__data_prefetch_start(fl_data_set *self, int64_t epoch) {
    (void)epoch;
    fl__data_loader *l = self->user;
    pthread_mutex_lock(&l->lock);
    fl__data_jump(l, -1);
    while (l->busy) pthread_cond_wait(&l->done, &l->lock);
    pthread_mutex_unlock(&l->lock);
    return true;
}

static void fl__data_prefetch_close(fl_data_set *self) {
    fl__data_loader *l = self->user;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    fl__data_jump(l, -1);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->threads; i++) pthread_join(l->thread[i], NULL);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->done);
    pthread_mutex_destroy(&l->lock);
    fl__free(l->thread);
    fl__free(l);
}

static fl__data_loader *fl__data_loader_new(fl_data_set *set, int threads, int depth) {
    fl__data_loader *l = fl__alloc(sizeof *l + (size_t)depth * sizeof *l->slot);
    if (!l) return NULL;
    *l = (fl__data_loader){.inner = set, .want = -1, .next = -1, .depth = depth};
    l->thread = fl__alloc((size_t)threads * sizeof *l->thread);
    if (!l->thread) {
        fl__free(l);
        return NULL;
    }
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, NULL);
    return l;
}

FL_API fl_data_set *fl_data_prefetch(fl_data_set *set, int threads, int depth) {
    if (!set) return fl__data_no_set("fl_data_prefetch");
    if (threads < 1 || threads > 1024 || depth < 1 || depth > 1 << 20) {
        fl_fail("fl_data_prefetch: %d threads (1 to 1024), depth %d (1 to 2^20)", threads, depth);
        return fl__data_refuse(&set, 1);
    }
    fl__data_loader *l = fl__data_loader_new(set, threads, depth);
    fl_data_set *s = fl__data_over(set, &(fl_data_set){
        .size = set->size, .get = fl__data_prefetch_get, .start = fl__data_prefetch_start,
        .close = fl__data_prefetch_close, .user = l});
    if (!s) return NULL;
    while (l->threads < threads) {
        int reason = pthread_create(&l->thread[l->threads], NULL, fl__data_worker, l);
        if (reason) {
            fl_fail("fl_data_prefetch: thread %d of %d: %s", l->threads + 1, threads,
                    strerror(reason));
            fl_data_free(s);
            return NULL;
        }
        l->threads++;
    }
    return s;
}

/* ---- meters ---- */

FL_API void fl_data_average_add(fl_data_average *m, double value, double weight) {
    if (!m || !(weight > 0)) return;
    double d = value - m->mean;
    m->weight += weight;
    m->weight2_ += weight * weight;
    m->mean += d * (weight / m->weight);
    m->squares_ += weight * d * (value - m->mean); /* West 1979: no cancellation */
}

FL_API double fl_data_average_variance(const fl_data_average *m) {
    double d = m->weight - m->weight2_ / m->weight;
    return d > 0 ? m->squares_ / d : NAN;
}

/* t as a row-major array of dtype d, until fl_unmap(*host, FL_READ); NULL after fl_fail. */
static const void *fl__data_map(fl_tensor *t, fl_dtype d, fl_tensor **host) {
    fl_tensor *cast = fl_cast(t, d);
    *host = cast ? fl_contiguous(cast) : NULL;
    return *host ? fl_map(*host, FL_READ) : NULL;
}

FL_API bool fl_data_average_add_tensor(fl_data_average *m, fl_tensor *t) {
    if (!m || !t) return fl_fail("fl_data_average_add_tensor: the meter or the tensor is NULL");
    if (fl_numel(t) == 0) return true;
    fl_tensor *host;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    const double *x = fl__data_map(t, FL_F64, &host);
    for (int64_t i = 0; x && i < fl_numel(t); i++) fl_data_average_add(m, x[i], 1);
    if (x) fl_unmap(host, FL_READ);
    fl_scope_end(&s);
    fl_quiet(-1);
    return x != NULL;
}

/* Both as i64 arrays of n, compared. */
static bool fl__data_count_wrong(fl_data_frame_error *m, fl_tensor *guess, fl_tensor *target) {
    fl_tensor *a, *b;
    int64_t n = fl_numel(target), wrong = 0;
    if (n == 0) return true;
    const int64_t *x = fl__data_map(guess, FL_I64, &a), *y = NULL;
    if (x) y = fl__data_map(target, FL_I64, &b);
    for (int64_t i = 0; y && i < n; i++) wrong += x[i] != y[i];
    if (y) fl_unmap(b, FL_READ);
    if (x) fl_unmap(a, FL_READ);
    if (!y) return false;
    m->wrong += wrong;
    m->total += n;
    return true;
}

FL_API bool fl_data_frame_error_add(fl_data_frame_error *m, fl_tensor *scores, fl_tensor *target) {
    if (!m || !scores || !target) return fl_fail("fl_data_frame_error_add: an argument is NULL");
    int extra = scores->ndim - target->ndim;
    char a[96], b[96];
    if (fl_dtype_is_float(target->dtype) || extra < 0 || extra > 1 ||
        (!extra && fl_dtype_is_float(scores->dtype)) ||
        memcmp(scores->shape, target->shape, (size_t)target->ndim * sizeof *target->shape))
        return fl_fail(
            "fl_data_frame_error_add: scores %s %s, target %s %s", fl_dtype_name(scores->dtype),
            fl_shape_text(fl_shape_of(scores), a, sizeof a), fl_dtype_name(target->dtype),
            fl_shape_text(fl_shape_of(target), b, sizeof b));
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_tensor *guess = extra && fl_numel(target) ? fl_argmax(scores, -1, false) : scores;
    bool ok = guess && fl__data_count_wrong(m, guess, target);
    fl_scope_end(&s);
    fl_quiet(-1);
    return ok;
}

FL_API double fl_data_frame_error_percent(const fl_data_frame_error *m) {
    return m->total ? 100.0 * (double)m->wrong / (double)m->total : NAN;
}

FL_API double fl_data_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

FL_API void fl_data_timer_start(fl_data_timer *m) {
    if (m->running_) return;
    m->running_ = true;
    m->since_ = fl_data_now();
}

FL_API void fl_data_timer_stop(fl_data_timer *m) {
    if (m->running_) m->sum_ += fl_data_now() - m->since_;
    m->running_ = false;
}

FL_API double fl_data_timer_seconds(const fl_data_timer *m) {
    return m->sum_ + (m->running_ ? fl_data_now() - m->since_ : 0);
}

FL_API double fl_data_timer_per_unit(const fl_data_timer *m) {
    return m->units ? fl_data_timer_seconds(m) / (double)m->units : NAN;
}

/* ---- progress ---- */

static bool fl__data_is_terminal(FILE *out) {
#ifdef _WIN32
    return _isatty(_fileno(out)) != 0;
#else
    return isatty(fileno(out)) != 0;
#endif
}

FL_API fl_data_progress fl_data_progress_begin(FILE *out, const char *label, int64_t total) {
    fl_data_progress p = {.out = out, .label_ = label ? label : "", .total_ = total};
    if (!out) return p;
    p.terminal_ = fl__data_is_terminal(out);
    p.every = p.terminal_ ? 0.1 : 10;
    p.started_ = p.shown_ = fl_data_now();
    return p;
}

/* "3:07", "1:02:03" */
static void fl__data_duration(double seconds, char *text, size_t size) {
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, size, "%lld:%02d:%02d", (long long)(s / 3600), (int)(s / 60 % 60),
                 (int)(s % 60));
    else snprintf(text, size, "%d:%02d", (int)(s / 60), (int)(s % 60));
}

static void fl__data_progress_line(const fl_data_progress *p, double now, const char *extra,
                                   char *line, size_t size) {
    double share = p->total_ > 0 ? (double)p->done_ / (double)p->total_ : 1;
    double spent = now - p->started_, left = share > 0 ? spent / share - spent : 0;
    bool ended = p->done_ >= p->total_;
    char bar[21], time[32];
    for (int i = 0; i < 20; i++) bar[i] = i < (int)(share * 20) ? '#' : '.';
    bar[20] = 0;
    fl__data_duration(ended ? spent : left, time, sizeof time);
    snprintf(line, size, "%s %s %lld/%lld %s %s%s%s", p->label_, bar, (long long)p->done_,
             (long long)p->total_, ended ? "in" : "ETA", share > 0 ? time : "-", *extra ? "  " : "",
             extra);
}

FL_API void fl_data_progress_step(fl_data_progress *p, int64_t done, const char *format, ...) {
    if (!p->out) return;
    p->done_ = done < 0 ? 0 : done > p->total_ ? p->total_ : done;
    double now = fl_data_now();
    if (p->done_ < p->total_ && now - p->shown_ < p->every) return;
    p->shown_ = now;
    char extra[64] = "", line[200];
    if (format) {
        va_list args;
        va_start(args, format);
        vsnprintf(extra, sizeof extra, format, args);
        va_end(args);
    }
    fl__data_progress_line(p, now, extra, line, sizeof line);
    if (p->terminal_) {
        int width = (int)strlen(line); /* the rest of a longer line before is wiped */
        fprintf(p->out, "\r%s%*s", line, p->width_ > width ? p->width_ - width : 0, "");
        p->width_ = width;
    } else fprintf(p->out, "%s\n", line);
    fflush(p->out);
}

FL_API void fl_data_progress_end(fl_data_progress *p) {
    if (p->out && p->terminal_ && p->width_) fprintf(p->out, "\n");
    if (p->out) fflush(p->out);
    p->out = NULL;
}

#endif /* FL_DATA_IMPL */
#endif
/* MIT licence: see LICENSE. */
