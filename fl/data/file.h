/* fl/data/file.h - file operations; complete reads and writes; atomic replacement */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_DATA_FILE_H
#define FL_DATA_FILE_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fl_data_mode {
    FL_DATA_READ,    /* an existing regular file */
    FL_DATA_REPLACE, /* created or truncated, for one writer; EWOULDBLOCK while another has it open */
    FL_DATA_APPEND   /* the same, but existing contents are kept and can be read */
} fl_data_mode;

typedef bool (*fl_data_name_fn)(void *arg, const char *name, bool folder);

/* A table of file operations. Failures are NULL or -1 with errno set. read and write may transfer less than
   requested, or fail with EINTR: both are retried. All may be called from any thread. */
typedef struct fl_data_io {
    void *user;
    void *(*open)(void *user, const char *path, fl_data_mode mode);
    /* return the number of bytes transferred; read: 0 at the end */
    int64_t (*read)(void *user, void *file, void *dst, size_t n, int64_t at);
    int64_t (*write)(void *user, void *file, const void *src, size_t n, int64_t at);
    int64_t (*size)(void *user, void *file);
    int (*sync)(void *user, void *file);  /* fsync: returns when the data is durable */
    int (*close)(void *user, void *file); /* the handle is invalid even after a failure */
    /* replaces `to` atomically; `from` may be open */
    int (*rename)(void *user, const char *from, const char *to);
    int (*remove)(void *user, const char *path);
    int (*sync_dir)(void *user, const char *path); /* makes a rename to path durable */
    /* Calls each for every name in a folder except "." and "..", in any order, until it returns false. NULL:
       folders are not supported. */
    int (*list)(void *user, const char *path, fl_data_name_fn each, void *arg);
    /* Optional, both or none: maps the first n bytes of a file, followed by FL_ALIGN readable bytes; the
       mapping outlives the handle. Writes change memory only, not the file (copy on write). */
    void *(*map)(void *user, void *file, int64_t n);
    void (*unmap)(void *user, void *p, int64_t n);
} fl_data_io;
/* The operating system's files. On Windows they are not mapped. Only regular files can be opened: a pipe
   (also process substitution and a piped /dev/stdin), a socket or a device is an error at once, because
   readers need the size and random access; /dev/stdin works if a file is redirected to it. */
FL_API const fl_data_io *fl_data_io_system(void);
/* Makes *io (copied; NULL: the system's) the table of the process. Call it before other threads use files;
   open files keep the table that opened them. */
FL_API void fl_data_io_use(const fl_data_io *io);

/* For custom readers and writers: a file opened through the process's table. */
typedef struct fl_data_stream {
    fl_data_io io;
    void *file;       /* close it by f.io.close(f.io.user, f.file) */
    const char *who;  /* function name and path for error messages; borrowed */
    const char *path;
    int64_t size;     /* of a file opened for reading or appending, in bytes */
} fl_data_stream;
/* These return false after fl_fail("who: path: what went wrong"). */
FL_API bool fl_data_stream_open(fl_data_stream *f, const char *who, const char *path, fl_data_mode mode);
/* Reads or writes all n bytes at offset `at`. */
FL_API bool fl_data_stream_read(const fl_data_stream *f, void *dst, size_t n, int64_t at);
FL_API bool fl_data_stream_write(const fl_data_stream *f, const void *src, size_t n, int64_t at);
/* 1 if the file exists, 0 if not, -1 after fl_fail. */
FL_API int fl_data_exists(const char *who, const char *path);
FL_API bool fl_data_ends(const char *name, const char *end); /* whether name ends with end */
/* Whether a path of n bytes from an untrusted file stays inside the folder that it is relative to: it is not
   absolute and has no component "..". Links in that folder are followed: those who can write there are
   trusted. */
FL_API bool fl_data_path_inside(const char *path, size_t n);
/* Removes a file; failures are ignored. */
FL_API void fl_data_remove(const char *path);
/* Reports an error with errno's text; returns false. */
FL_API bool fl_data_stream_fail(const fl_data_stream *f, const char *what);
/* Lists the names in a folder through the process's table. */
FL_API bool fl_data_folder_names(const char *who, const char *path, fl_data_name_fn each, void *arg);

/* Atomic replacement of a file: begin, write to f, then end. Data goes to "<path>.tmp", is synced to disk,
   and renamed to path: a kill or a power loss at any moment leaves the old file or the new one. A <path>.tmp
   that a dead writer left is taken over by the next one. It is an error if another writer has the same path
   open, or <path>.tmp is a symbolic or hard link. The new file has the permissions of the one that it
   replaces, and its owner may always read and write it. */
typedef struct fl_data_replacement {
    fl_data_stream f;
    const char *path; /* borrowed */
} fl_data_replacement;
FL_API bool fl_data_replace_begin(fl_data_replacement *r, const char *who, const char *path);
/* written: whether all data was written; if not, nothing is replaced. Returns true if path has the new
   file. */
FL_API bool fl_data_replace_end(fl_data_replacement *r, bool written);
/* Writes a whole file, with atomic replacement. */
FL_API bool fl_data_replace(const char *who, const char *path, const void *bytes, size_t n);

/* For custom readers and sets: an uninitialised tensor in host memory (backend "cpu"), whatever the default
   backend is, in this thread's scope. Its memory is there: fl_data is valid until an op writes it, or until
   a memory manager that pages evicts it, which fl_map prevents. */
FL_API fl_tensor *fl_data_host_tensor(fl_shape shape, fl_dtype dtype);
/* Reverses the bytes of each of n / size numbers (big-endian to little-endian). */
FL_API void fl_data_swap_bytes(void *bytes, size_t n, size_t size);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_FILE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_FILE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_FILE_IMPL
#define FL_DATA_FILE_IMPL
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#else
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#define FL__DATA_TEMP ".tmp" /* appended to the path being replaced */

/* ---- the system's files ---- */

#ifndef _WIN32

typedef struct fl__data_fd {
    int fd;
} fl__data_fd;

/* The permissions of the file that "<file>.tmp" will replace, plus those needed to take it over; -1: no such
   file. Returns false if out of memory. */
static bool fl__data_permissions(const char *temp, int *permissions) {
    struct stat s;
    *permissions = -1;
    if (!fl_data_ends(temp, FL__DATA_TEMP)) return true;
    const size_t n = strlen(temp) - strlen(FL__DATA_TEMP);
    char *path = fl_heap_alloc(n + 1);
    if (!path) return false;
    memcpy(path, temp, n);
    path[n] = 0;
    if (stat(path, &s) == 0 && S_ISREG(s.st_mode)) *permissions = (int)(s.st_mode & 0777) | 0600;
    fl_heap_free(path);
    return true;
}

/* Locks the file to be its only writer. If another process renamed or removed the file between open and lock,
   the
   handle is not that of the path any more. Returns 1: locked, 0: try again, -1: errno. */
static int fl__data_lock(int fd, const char *path, fl_data_mode mode, int permissions) {
    struct stat ours, there;
    const bool replace = mode == FL_DATA_REPLACE;
    bool unsupported;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        unsupported = errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP;
        if (!unsupported)
            return errno == EINTR ? 0 : -1; /* some network file systems do not support locks */
    }
    if (fstat(fd, &ours) < 0) return -1;
    if ((replace ? lstat : stat)(path, &there) < 0) return errno == ENOENT ? 0 : -1;
    if (ours.st_ino != there.st_ino || ours.st_dev != there.st_dev) return 0;
    errno = !S_ISREG(ours.st_mode) ? ESPIPE : replace && ours.st_nlink > 1 ? EMLINK : 0;
    if (errno) return -1;
    if (permissions >= 0 && fchmod(fd, (mode_t)permissions) < 0 && (int)(ours.st_mode & 0777) & ~permissions)
        return -1;
    return replace && ftruncate(fd, 0) < 0 ? -1 : 1;
}

/* O_NONBLOCK: opening a pipe must not wait for its other end. */
static int fl__data_open_fd(const char *path, fl_data_mode mode) {
    const int common = O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    const int more = mode == FL_DATA_REPLACE ? O_CREAT | O_NOFOLLOW : O_CREAT;
    int permissions = -1;
    if (mode == FL_DATA_REPLACE && !fl__data_permissions(path, &permissions)) {
        errno = ENOMEM;
        return -1;
    }
    for (;;) {
        int fd = mode == FL_DATA_READ
                     ? open(path, O_RDONLY | common)
                     : open(path, O_RDWR | more | common, permissions < 0 ? 0666 : (mode_t)permissions);
        if (fd < 0 && errno == EINTR) continue;
        if (fd < 0 || mode == FL_DATA_READ) return fd;
        int claimed = fl__data_lock(fd, path, mode, permissions), reason = errno;
        if (claimed > 0) return fd;
        close(fd);
        errno = reason;
        if (claimed < 0) return -1;
    }
}

static void *fl__data_system_open(void *user, const char *path, fl_data_mode mode) {
    (void)user;
    fl__data_fd *f = fl_heap_alloc(sizeof *f);
    if (!f) {
        errno = ENOMEM;
        return NULL;
    }
    f->fd = fl__data_open_fd(path, mode);
    if (f->fd >= 0) return f;
    int reason = errno;
    fl_heap_free(f);
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
    fl_heap_free(file);
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
    char *dir = fl_heap_alloc(n + 2);
    if (!dir) {
        errno = ENOMEM;
        return -1;
    }
    if (n) memcpy(dir, path, n);
    else dir[0] = slash ? '/' : '.';
    int fd = open(dir, O_RDONLY | O_CLOEXEC);
    fl_heap_free(dir);
    if (fd < 0) return -1;
    int r = fsync(fd), reason = errno;
    close(fd);
    errno = reason;
    bool unsupported = reason == EINVAL || reason == ENOTSUP; /* some file systems cannot */
    return r < 0 && !unsupported ? -1 : 0;
}

/* Links count as their targets; dangling links as files. */
static int fl__data_system_list(void *user, const char *path, fl_data_name_fn each, void *arg) {
    (void)user;
    DIR *dir = opendir(path);
    if (!dir) return -1;
    struct dirent *e;
    struct stat s;
    bool more = true;
    for (errno = 0; more && (e = readdir(dir)); errno = 0) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        const bool found = fstatat(dirfd(dir), e->d_name, &s, 0) == 0;
        more = each(arg, e->d_name, found && S_ISDIR(s.st_mode));
    }
    const int reason = more ? errno : 0;
    closedir(dir);
    errno = reason;
    return reason ? -1 : 0;
}

/* One more page after the file's last one is mapped to zeros. */
static int64_t fl__data_mapped(int64_t n) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    return (n + page - 1) / page * page + page;
}

static void *fl__data_system_map(void *user, void *file, int64_t n) {
    (void)user;
    const int fd = ((fl__data_fd *)file)->fd, access = PROT_READ | PROT_WRITE;
    const size_t size = (size_t)fl__data_mapped(n);
    void *p = mmap(NULL, size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (!n || mmap(p, (size_t)n, access, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, 0) == p) return p;
    const int reason = errno;
    munmap(p, size);
    errno = reason;
    return NULL;
}

static void fl__data_system_unmap(void *user, void *p, int64_t n) {
    (void)user;
    munmap(p, (size_t)fl__data_mapped(n));
}

#else /* _WIN32 */

#define fl__data_system_map NULL
#define fl__data_system_unmap NULL

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

/* UTF-8 to wide characters; the caller frees. */
static wchar_t *fl__data_wide(const char *path) {
    int n = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
    wchar_t *w = n > 0 ? fl_heap_alloc((size_t)n * sizeof *w) : NULL;
    if (w) MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, w, n);
    else errno = n > 0 ? ENOMEM : EINVAL;
    return w;
}

/* A writer shares only deletion and renaming, so that a second writer fails. */
static void *fl__data_system_open(void *user, const char *path, fl_data_mode mode) {
    (void)user;
    wchar_t *w = fl__data_wide(path);
    if (!w) return NULL;
    HANDLE h = mode == FL_DATA_READ
                   ? CreateFileW(w, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL,
                                 OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL)
                   : CreateFileW(w, GENERIC_READ | GENERIC_WRITE, FILE_SHARE_DELETE, NULL,
                                 mode == FL_DATA_APPEND ? OPEN_ALWAYS : CREATE_ALWAYS,
                                 FILE_ATTRIBUTE_NORMAL, NULL);
    fl__data_windows_result(h != INVALID_HANDLE_VALUE);
    int reason = errno;
    fl_heap_free(w);
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
    fl_heap_free(a);
    fl_heap_free(b);
    errno = reason;
    return r;
}

static int fl__data_system_remove(void *user, const char *path) {
    (void)user;
    wchar_t *w = fl__data_wide(path);
    if (!w) return -1;
    int r = fl__data_windows_result(DeleteFileW(w)), reason = errno;
    fl_heap_free(w);
    errno = reason;
    return r;
}

static int fl__data_system_list(void *user, const char *path, fl_data_name_fn each, void *arg) {
    (void)user;
    char name[4 * MAX_PATH];
    size_t size = strlen(path) + 3;
    char *pattern = fl_heap_alloc(size);
    if (pattern) snprintf(pattern, size, "%s/*", path);
    wchar_t *w = pattern ? fl__data_wide(pattern) : NULL;
    WIN32_FIND_DATAW e;
    HANDLE h = w ? FindFirstFileW(w, &e) : INVALID_HANDLE_VALUE;
    int reason = h == INVALID_HANDLE_VALUE ? (w ? fl__data_windows_errno() : ENOMEM) : 0;
    fl_heap_free(w);
    fl_heap_free(pattern);
    for (bool more = !reason; more; more = more && FindNextFileW(h, &e)) {
        WideCharToMultiByte(CP_UTF8, 0, e.cFileName, -1, name, sizeof name, NULL, NULL);
        if (!strcmp(name, ".") || !strcmp(name, "..")) continue;
        more = each(arg, name, e.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY);
    }
    if (h != INVALID_HANDLE_VALUE) FindClose(h);
    errno = reason;
    return reason ? -1 : 0;
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
    fl__data_system_sync_dir, fl__data_system_list, fl__data_system_map, fl__data_system_unmap,
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

#define FL__DATA_PIECE ((size_t)1 << 28) /* most bytes per call of the table */

FL_API bool fl_data_stream_fail(const fl_data_stream *f, const char *what) {
    if (!fl_given(f, "fl_data_stream_fail", "the stream")) return false;
    return fl_fail("%s: %s: %s: %s", f->who, f->path, what, strerror(errno));
}

/* An open socket is ENXIO, a pipe or a device ESPIPE. */
static bool fl__data_open_fail(const fl_data_stream *f, fl_data_mode mode, const char *what) {
    if (errno == ESPIPE || errno == ENXIO)
        return fl_fail("%s: %s: got a pipe, a socket or a device, expected a regular file", f->who,
                       f->path);
    if (mode == FL_DATA_REPLACE && (errno == ELOOP || errno == EMLINK))
        return fl_fail("%s: %s: the path is a link to another file, which would be overwritten: remove it",
                       f->who, f->path);
    return fl_data_stream_fail(f, what);
}

FL_API bool fl_data_stream_open(fl_data_stream *f, const char *who, const char *path,
                          fl_data_mode mode) {
    if (!fl_given(f, "fl_data_stream_open", "the stream")) return false;
    *f = (fl_data_stream){.io = *fl__data_io, .who = who, .path = path};
    if (!path) return fl_fail("%s: path is NULL", who);
    errno = 0;
    f->file = f->io.open(f->io.user, path, mode);
    if (!f->file && mode != FL_DATA_READ && errno == EWOULDBLOCK)
        return fl_fail("%s: %s: the file is open for writing elsewhere", who, path);
    if (!f->file) return fl__data_open_fail(f, mode, "cannot open");
    if (mode == FL_DATA_REPLACE) return true;
    f->size = f->io.size(f->io.user, f->file);
    if (f->size >= 0) return true;
    fl__data_open_fail(f, mode, "cannot read its size");
    f->io.close(f->io.user, f->file);
    f->file = NULL;
    return false;
}

FL_API bool fl_data_ends(const char *name, const char *end) {
    if (!fl_given(name, "fl_data_ends", "the name") ||
        !fl_given(end, "fl_data_ends", "the end")) return false;
    const size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

FL_API int fl_data_exists(const char *who, const char *path) {
    fl_data_stream f = {.io = *fl__data_io, .who = who, .path = path};
    errno = 0;
    f.file = f.io.open(f.io.user, path, FL_DATA_READ);
    if (f.file) return f.io.close(f.io.user, f.file), 1;
    return errno == ENOENT ? 0 : fl_data_stream_fail(&f, "cannot open") - 1;
}

FL_API bool fl_data_path_inside(const char *path, size_t n) {
#ifdef _WIN32
    static const char separators[] = "/\\";
    if (memchr(path, ':', n)) return false; /* a drive */
#else
    static const char separators[] = "/";
#endif
    size_t begin = 0; /* of a component */
    for (size_t i = 0; i <= n; i++) {
        if (i < n && !memchr(separators, path[i], sizeof separators - 1)) continue;
        if ((i == 0 && n) || (i - begin == 2 && !memcmp(path + begin, "..", 2))) return false;
        begin = i + 1;
    }
    return true;
}

FL_API void fl_data_remove(const char *path) {
    fl__data_io->remove(fl__data_io->user, path);
}

FL_API bool fl_data_stream_read(const fl_data_stream *f, void *dst, size_t n, int64_t at) {
    char *p = dst;
    while (n) {
        int64_t got =
            f->io.read(f->io.user, f->file, p, n < FL__DATA_PIECE ? n : FL__DATA_PIECE, at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fl_data_stream_fail(f, "cannot read");
        if (got == 0 || (size_t)got > n)
            return fl_fail("%s: %s: the file ends at offset %lld, %zu bytes early", f->who, f->path,
                           (long long)at, n);
        p += got, at += got, n -= (size_t)got;
    }
    return true;
}

FL_API bool fl_data_stream_write(const fl_data_stream *f, const void *src, size_t n, int64_t at) {
    const char *p = src;
    while (n) {
        int64_t put =
            f->io.write(f->io.user, f->file, p, n < FL__DATA_PIECE ? n : FL__DATA_PIECE, at);
        if (put < 0 && errno == EINTR) continue;
        if (put == 0) errno = ENOSPC;
        if (put <= 0 || (size_t)put > n) return fl_data_stream_fail(f, "cannot write");
        p += put, at += put, n -= (size_t)put;
    }
    return true;
}

/* ---- atomic replacement ---- */

FL_API bool fl_data_replace_begin(fl_data_replacement *r, const char *who, const char *path) {
    if (!fl_given(r, "fl_data_replace_begin", "the replacement")) return false;
    *r = (fl_data_replacement){.path = path};
    if (!path) return fl_fail("%s: path is NULL", who);
    const size_t size = strlen(path) + sizeof FL__DATA_TEMP;
    char *temp = fl_heap_alloc(size);
    if (!temp) return false;
    snprintf(temp, size, "%s" FL__DATA_TEMP, path);
    if (fl_data_stream_open(&r->f, who, temp, FL_DATA_REPLACE)) return true;
    fl_heap_free(temp);
    return false;
}

/* After the rename nothing can be undone. */
FL_API bool fl_data_replace_end(fl_data_replacement *r, bool written) {
    if (!fl_given(r, "fl_data_replace_end", "the replacement")) return false;
    const fl_data_io *io = &r->f.io;
    const char *temp = r->f.path;
    bool ok = written, renamed = false;
    if (ok && io->sync(io->user, r->f.file) < 0) ok = fl_data_stream_fail(&r->f, "cannot sync");
    if (ok) {
        renamed = io->rename(io->user, temp, r->path) >= 0;
        if (!renamed) ok = fl_data_stream_fail(&r->f, "cannot rename");
    }
    if (!renamed) io->remove(io->user, temp); /* still open and locked, hence ours */
    if (io->close(io->user, r->f.file) < 0 && ok) ok = fl_data_stream_fail(&r->f, "cannot close");
    if (ok && io->sync_dir(io->user, r->path) < 0) ok = fl_data_stream_fail(&r->f, "cannot sync the folder");
    fl_heap_free((char *)temp);
    return ok;
}

FL_API bool fl_data_replace(const char *who, const char *path, const void *bytes, size_t n) {
    fl_data_replacement r;
    return fl_data_replace_begin(&r, who, path) &&
           fl_data_replace_end(&r, fl_data_stream_write(&r.f, bytes, n, 0));
}

/* ---- tensors ---- */

FL_API fl_tensor *fl_data_host_tensor(fl_shape shape, fl_dtype dtype) {
    fl_quiet(+1);
    fl_tensor *t = fl_empty_on("cpu", shape, dtype);
    if (t && fl_map(t, FL_WRITE)) fl_unmap(t, FL_WRITE);
    else t = NULL;
    fl_quiet(-1);
    return t;
}

FL_API void fl_data_swap_bytes(void *bytes, size_t n, size_t size) {
    if (n && !fl_given(bytes, "fl_data_swap_bytes", "the memory")) return;
    char *p = bytes;
    for (; size > 1 && n >= size; n -= size, p += size)
        for (size_t k = 0; k < size / 2; k++) {
            const char c = p[k];
            p[k] = p[size - 1 - k];
            p[size - 1 - k] = c;
        }
}

FL_API bool fl_data_folder_names(const char *who, const char *path, fl_data_name_fn each, void *arg) {
    const fl_data_stream f = {.io = *fl__data_io, .who = who, .path = path};
    if (!path) return fl_fail("%s: path is NULL", who);
    if (!f.io.list) return fl_fail("%s: %s: the table of file operations cannot list folders", who, path);
    return f.io.list(f.io.user, path, each, arg) >= 0 || fl_data_stream_fail(&f, "cannot list the folder");
}

#endif
#endif

/* MIT licence: see LICENSE. */
