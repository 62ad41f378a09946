/* disk.h - a disk in memory that fails when a test says so, and sweeps over all its failures */
#ifndef TESTS_DISK_H
#define TESTS_DISK_H
#include "../fl_data.h"
#include "heap.h"
#include <errno.h>

/* ---- a disk in memory ----

   Files have names and nodes; a node remembers its bytes at the last sync, and the folder its names
   at the last sync_dir: what a power loss leaves. Call number fail_at of the table fails as `fault`
   says. */

enum { FILES = 12, NODE_BYTES = 1 << 21 };
typedef enum fault {
    FAULT_ERROR,
    FAULT_ERROR_FROM_HERE,
    FAULT_EINTR,
    FAULT_SHORT,
    FAULT_POWER
} fault;

typedef struct node {
    unsigned char *bytes, *synced;
    size_t size, synced_size;
    int open;
} node;

typedef struct name {
    char text[64];
    node *file;
} name;

static struct {
    name names[FILES], synced[FILES];
    node *nodes[256];
    int n_nodes, calls, fail_at, open;
    int lost; /* failures that are not those of closing a file */
    fault fault;
} disk;

static inline void disk_reset(void) {
    for (int i = 0; i < disk.n_nodes; i++) {
        free(disk.nodes[i]->bytes);
        free(disk.nodes[i]->synced);
        free(disk.nodes[i]);
    }
    memset(&disk, 0, sizeof disk);
}

static inline name *disk_find(const char *text) {
    for (int i = 0; i < FILES; i++)
        if (disk.names[i].file && !strcmp(disk.names[i].text, text)) return &disk.names[i];
    return NULL;
}

/* A node that is not open and has no name, nor would get one back by a power loss. */
static inline node *disk_unused(void) {
    for (int i = 0; i < disk.n_nodes; i++) {
        bool used = disk.nodes[i]->open > 0;
        for (int k = 0; k < FILES; k++)
            used |= disk.names[k].file == disk.nodes[i] || disk.synced[k].file == disk.nodes[i];
        if (!used) return disk.nodes[i];
    }
    return NULL;
}

static inline node *disk_make(const char *text) {
    name *entry = disk_find(text);
    for (int i = 0; !entry && i < FILES; i++)
        if (!disk.names[i].file) entry = &disk.names[i];
    if (!entry) abort();
    if (entry->file) {
        entry->file->size = 0;
        return entry->file;
    }
    node *f = disk_unused();
    if (!f) {
        if (disk.n_nodes == 256) abort();
        f = calloc(1, sizeof *f);
        f->bytes = malloc(NODE_BYTES);
        f->synced = malloc(1);
        disk.nodes[disk.n_nodes++] = f;
    }
    f->size = f->synced_size = 0;
    snprintf(entry->text, sizeof entry->text, "%s", text);
    entry->file = f;
    return f;
}

static inline void disk_write(const char *text, const void *bytes, size_t size) {
    node *f = disk_make(text);
    if (size > NODE_BYTES) abort();
    memcpy(f->bytes, bytes, size);
    f->size = size;
}

static inline void disk_sync_node(node *f) {
    f->synced = realloc(f->synced, f->size + 1);
    memcpy(f->synced, f->bytes, f->size);
    f->synced_size = f->size;
}

static inline void disk_sync_all(void) {
    for (int i = 0; i < disk.n_nodes; i++) disk_sync_node(disk.nodes[i]);
    memcpy(disk.synced, disk.names, sizeof disk.synced);
}

/* The power fails: only what was synced is left; of the folder, the old names or the new ones. */
static inline void disk_power_loss(bool old_names) {
    if (old_names) memcpy(disk.names, disk.synced, sizeof disk.names);
    for (int i = 0; i < disk.n_nodes; i++) {
        node *f = disk.nodes[i];
        memcpy(f->bytes, f->synced, f->synced_size);
        f->size = f->synced_size;
    }
}

/* True if this call fails; sets errno. */
static inline bool disk_fails(void) {
    disk.calls++;
    bool now = disk.calls == disk.fail_at;
    bool dead = disk.fail_at && disk.calls >= disk.fail_at &&
                (disk.fault == FAULT_ERROR_FROM_HERE || disk.fault == FAULT_POWER);
    if (!dead && !(now && disk.fault == FAULT_ERROR)) return false;
    disk.lost++;
    errno = disk.calls % 2 ? EIO : ENOSPC;
    return true;
}

static inline void *disk_open(void *user, const char *path, fl_data_mode mode) {
    (void)user;
    if (disk_fails()) return NULL;
    name *entry = disk_find(path);
    errno = ENOENT;
    if (mode == FL_DATA_READ && !entry) return NULL;
    node *f = mode == FL_DATA_REPLACE || !entry ? disk_make(path) : entry->file;
    disk.open++, f->open++;
    return f;
}

/* The bytes of a file that is there; free them. */
static inline unsigned char *disk_copy(const char *path, size_t *size) {
    const node *f = disk_find(path)->file;
    unsigned char *bytes = malloc(f->size);
    memcpy(bytes, f->bytes, f->size);
    *size = f->size;
    return bytes;
}

/* Bytes that a read or write of n may do; -1: it fails. */
static inline int64_t disk_allows(size_t n) {
    if (disk_fails()) return -1;
    bool now = disk.calls == disk.fail_at;
    if (now && disk.fault == FAULT_EINTR) {
        errno = EINTR;
        return -1;
    }
    return disk.fail_at && disk.calls >= disk.fail_at && disk.fault == FAULT_SHORT && n > 1
               ? 1
               : (int64_t)n;
}

static inline int64_t disk_read(void *user, void *file, void *dst, size_t n, int64_t at) {
    (void)user;
    node *f = file;
    int64_t allowed = disk_allows(n);
    if (allowed < 0) return -1;
    int64_t left = (int64_t)f->size > at ? (int64_t)f->size - at : 0;
    if (allowed > left) allowed = left;
    memcpy(dst, f->bytes + at, (size_t)allowed);
    return allowed;
}

static inline int64_t disk_pwrite(void *user, void *file, const void *src, size_t n, int64_t at) {
    (void)user;
    node *f = file;
    int64_t allowed = disk_allows(n);
    if (allowed < 0) return -1;
    size_t end = (size_t)(at + allowed);
    if (end > NODE_BYTES) abort();
    if ((size_t)at > f->size) memset(f->bytes + f->size, 0, (size_t)at - f->size);
    memcpy(f->bytes + at, src, (size_t)allowed);
    if (end > f->size) f->size = end;
    return allowed;
}

static inline int64_t disk_size(void *user, void *file) {
    (void)user;
    return disk_fails() ? -1 : (int64_t)((node *)file)->size;
}

static inline int disk_sync(void *user, void *file) {
    (void)user;
    if (disk_fails()) return -1;
    disk_sync_node(file);
    return 0;
}

static inline int disk_close(void *user, void *file) {
    (void)user;
    disk.open--, ((node *)file)->open--;
    if (!disk_fails()) return 0;
    disk.lost--;
    return -1;
}

static inline int disk_rename(void *user, const char *from, const char *to) {
    (void)user;
    if (disk_fails()) return -1;
    name *a = disk_find(from), *b = disk_find(to);
    if (b) b->file = NULL;
    snprintf(a->text, sizeof a->text, "%s", to);
    return 0;
}

static inline int disk_remove(void *user, const char *path) {
    (void)user;
    if (disk_fails()) return -1;
    name *entry = disk_find(path);
    if (entry) entry->file = NULL;
    return 0;
}

static inline int disk_sync_dir(void *user, const char *path) {
    (void)user, (void)path;
    if (disk_fails()) return -1;
    memcpy(disk.synced, disk.names, sizeof disk.synced);
    return 0;
}

/* A copy of the file, as the disk's blocks move about; counted as open. */
static inline void *disk_map(void *user, void *file, int64_t n) {
    (void)user;
    if (disk_fails()) return NULL;
    const size_t size = ((size_t)n + 2 * FL_ALIGN - 1) / FL_ALIGN * FL_ALIGN;
    void *p = aligned_alloc(FL_ALIGN, size);
    memset(p, 0, size);
    memcpy(p, ((node *)file)->bytes, (size_t)n);
    disk.open++;
    return p;
}

static inline void disk_unmap(void *user, void *p, int64_t n) {
    (void)user, (void)n;
    disk.open--;
    free(p);
}

/* The files and folders that names "path/..." tell, each once; of ".", the names without a folder. */
static inline int disk_list(void *user, const char *path, fl_data_name_fn each, void *arg) {
    (void)user;
    if (disk_fails()) return -1;
    const bool here = !strcmp(path, ".");
    const size_t n = here ? 0 : strlen(path) + 1;
    errno = ENOENT;
    int result = -1;
    for (int i = 0; i < FILES; i++) {
        char *text = disk.names[i].text, part[64];
        if (!disk.names[i].file) continue;
        if (here ? strchr(text, '/') != NULL : strncmp(text, path, n - 1) || text[n - 1] != '/') continue;
        const size_t size = n + strcspn(text + n, "/");
        bool told = false;
        for (int k = 0; k < i; k++)
            told |= disk.names[k].file && !strncmp(disk.names[k].text, text, size) &&
                    strchr("/", disk.names[k].text[size]);
        snprintf(part, sizeof part, "%.*s", (int)(size - n), text + n);
        result = 0;
        if (!told && !each(arg, part, text[size] != 0)) break;
    }
    return result;
}

static const fl_data_io disk_io = {NULL,      disk_open,  disk_read,   disk_pwrite, disk_size,
                                   disk_sync, disk_close, disk_rename, disk_remove, disk_sync_dir,
                                   disk_list, disk_map,   disk_unmap};

static inline void begin(void) {
    test_errors_return();
    fl_heap_use(heap_fn, NULL);
    fl_scope s = fl_scope_begin();
    fl_zeros(FL_SHAPE(1), FL_F32); /* fills the thread's stores of handles */
    fl_scope_end(&s);
    memset(&heap, 0, sizeof heap);
    disk_reset();
    fl_data_io_use(&disk_io);
    fl_mem_set_current(fl_mem_native()); /* no caches: the statistics are exact */
}

static inline void count_error(const char *text, void *user) {
    (void)text;
    ++*(int *)user;
}

/* Every fl_quiet(+1) was taken back, and no other one: an error is heard, and one below fl_quiet(+1) is not.
   */
static inline void check_not_quiet(void) {
    int heard = 0;
    fl_set_error_handler(count_error, &heard);
    fl_quiet(+1), fl_err_null("a test's error"), fl_error_clear(), fl_quiet(-1);
    CHECK_EQ_INT(heard, 0);
    fl_err_null("a test's error"), fl_error_clear();
    CHECK_EQ_INT(heard, 1);
    test_errors_return();
}

/* Nothing may be left open or alive. */
static inline void end(fl_scope *s) {
    fl_scope_end(s);
    CHECK_NO_ERROR();
    check_not_quiet();
    CHECK_EQ_INT(disk.open, 0);
    CHECK_EQ_INT(test_live_buffers(), 0);
    CHECK_EQ_INT(fl_live_tensors(), 0);
    fl_mem_set_current(NULL);
    fl_data_io_use(NULL);
    fl_heap_use(NULL, NULL);
    disk_reset();
}

static inline bool same_bits(fl_tensor *a, fl_tensor *b) {
    if (!a || !b || a->dtype != b->dtype || a->ndim != b->ndim) return false;
    size_t bytes = (size_t)fl_numel(a) * fl_dtype_size(a->dtype);
    if (memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape)) return false;
    void *x = malloc(bytes + 1), *y = malloc(bytes + 1);
    bool same = fl_to_host(a, x, bytes) && fl_to_host(b, y, bytes) && !memcmp(x, y, bytes);
    free(x);
    free(y);
    return same;
}

/* ---- faults ---- */

static inline void disk_fault_at(int call, fault kind) {
    disk.calls = disk.lost = 0;
    disk.fail_at = call;
    disk.fault = kind;
}

static inline int count_calls(bool (*action)(void)) {
    disk_fault_at(0, FAULT_ERROR);
    CHECK(action());
    return disk.calls;
}

static inline void sweep_reader(bool (*reader)(void)) {
    int calls = count_calls(reader);
    CHECK(calls >= 4);
    for (int kind = FAULT_ERROR; kind <= FAULT_ERROR_FROM_HERE; kind++)
        for (int at = 1; at <= calls; at++) { /* closing what was read loses nothing */
            disk_fault_at(at, (fault)kind);
            const bool ok = reader();
            CHECK_EQ_INT(ok, !disk.lost);
            if (!ok) CHECK_ERROR("cannot ");
            disk_fault_at(0, FAULT_ERROR);
            CHECK(reader());
        }
}

/* sweep_heap, for buffers. */
static inline int64_t sweep_buffers(bool (*action)(void), bool for_ever) {
    int64_t handles = fl_live_tensors(), buffers = test_live_buffers(), n = 0;
    for (bool done = false; !done && n < 1000;) {
        fl_scope s = fl_scope_begin();
        fl_mem_manager *failing = fl_mem_failing(NULL, ++n, for_ever),
                       *before = fl_mem_set_current(failing);
        bool ok = action();
        fl_mem_set_current(before);
        done = ok;
        CHECK(ok || fl_error());
        fl_error_clear();
        CHECK(action());
        CHECK_NO_ERROR();
        fl_scope_end(&s);
        fl_mem_close(failing);
        CHECK(fl_live_tensors() == handles && test_live_buffers() == buffers);
    }
    return n - 1;
}

/* ---- memory of readers ---- */

static int64_t memory_before; /* bytes of buffers in use */

static inline void memory_mark(void) {
    heap.bytes = 0;
    fl_mem_stats_reset_peak(NULL);
    memory_before = fl_mem_stats_of(NULL).in_use;
}

/* What was asked of heap and manager since the mark is what a reader may ask for a file of that
   size. */
static inline bool memory_bounded(size_t file_size, int64_t factor) {
    int64_t buffers = fl_mem_stats_of(NULL).peak_in_use - memory_before;
    return CHECK(heap.bytes + buffers <= factor * (int64_t)file_size + 65536);
}

#endif /* MIT licence: see LICENSE. */
