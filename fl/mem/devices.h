/* fl/mem/devices.h - memory devices: the host, and the interface for others */
#ifndef FL_MEM_DEVICES_H
#define FL_MEM_DEVICES_H
#include "build.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_mem_manager fl_mem_manager;
typedef struct fl_device fl_device;
/* A memory device: the host, or one of a backend. */
struct fl_device {
    const char *name;
    void *(*get)(const fl_device *self, size_t bytes, size_t align); /* NULL if out of memory */
    void (*put)(const fl_device *self, void *ptr, size_t bytes);
    /* Copies between its memory and the host's, or within its own. */
    bool (*copy)(const fl_device *self, void *dst, const void *src, size_t bytes);
    size_t (*limit)(const fl_device *self); /* total bytes available, 0 if unknown */
    /* Makes work enqueued into `stream` (NULL: the host) from now on wait for all work now in `before`. NULL:
       the device is synchronous. */
    bool (*wait)(const fl_device *self, void *stream, void *before);
    /* Allocates its memory when the current manager serves only the host, as the caching one does; NULL:
       each request calls get and put. Statistics: fl_mem_stats_of(manager). */
    fl_mem_manager *manager;
    bool host; /* the CPU can read and write its memory */
};
/* Host memory. Blocks of 1 MiB or more are page-aligned, on huge pages where available, and faulted in when
   allocated. */
FL_API const fl_device *fl_device_host(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_DEVICES_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_DEVICES) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_DEVICES_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_DEVICES_IMPL
#include "shared.h"
#include <errno.h>
#include <string.h>

#ifndef _WIN32
#include <sys/mman.h>
#include <unistd.h>
#endif

/* ---- the host device ----

   Large blocks are mapped individually, on 2 MiB boundaries and huge pages, and faulted in at once:
   first touch page by page runs at a tenth of the speed. Small ones come from the heap hook, so that
   fault injection covers them. */

#define FL__LARGE ((size_t)1 << 20)
#define FL__HUGE ((size_t)2 << 20)

/* Memory limit of this process in bytes (physical memory or cgroup limit), 0 if unknown. */
static size_t fl__host_limit(const fl_device *self) {
    size_t limit = 0;
    (void)self;
#if defined(__linux__)
    long long unused;
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    int64_t group = fl__system_number("/sys/fs/cgroup/memory.max", &unused);
    if (pages > 0 && page > 0) limit = (size_t)pages * (size_t)page;
    if (group > 0 && (size_t)group < limit) limit = (size_t)group;
#endif
    return limit;
}

#ifndef _WIN32
static size_t fl__pages(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static bool fl__fault_in(char *p, size_t bytes) {
#ifdef MADV_HUGEPAGE
    madvise(p, bytes, MADV_HUGEPAGE); /* advice only: fails on kernels without huge pages */
#endif
#ifdef __linux__
    const int populate_write = 23; /* MADV_POPULATE_WRITE, Linux 5.14 */
    if (madvise(p, bytes, populate_write) == 0) return true;
    if (errno == ENOMEM || errno == EFAULT) return false;
#endif
    for (size_t i = 0; i < bytes; i += 4096) ((volatile char *)p)[i] = 0;
    return true;
}

static void *fl__map_large(size_t bytes, size_t align) {
    size_t size = fl__pages(bytes), limit = fl__host_limit(NULL);
    if (align < FL__HUGE) align = FL__HUGE;
    if (limit && size > limit)
        return NULL; /* mmap would succeed by overcommitting, and the process be killed while faulting in */
    char *raw =
        mmap(NULL, size + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    size_t skip = (align - (uintptr_t)raw % align) % align;
    if (skip) munmap(raw, skip);
    munmap(raw + skip + size, align - skip);
    if (fl__fault_in(raw + skip, size)) return raw + skip;
    munmap(raw + skip, size);
    return NULL;
}
#endif

/* align is a power of two. The block's heap address is stored just before it. */
static void *fl__host_get(const fl_device *self, size_t bytes, size_t align) {
    (void)self;
    if (align < FL_ALIGN) align = FL_ALIGN;
#ifndef _WIN32
    if (bytes >= FL__LARGE) return fl__map_large(bytes, align);
#endif
    char *raw = fl__heap_raw(NULL, bytes + align + sizeof raw);
    if (!raw) return NULL;
    char *p = raw + sizeof raw;
    p += (align - (uintptr_t)p % align) % align;
    memcpy(p - sizeof raw, &raw, sizeof raw);
    return p;
}

static void fl__host_put(const fl_device *self, void *ptr, size_t bytes) {
    (void)self;
#ifndef _WIN32
    if (bytes >= FL__LARGE) {
        munmap(ptr, fl__pages(bytes));
        return;
    }
#endif
    char *raw;
    (void)bytes;
    memcpy(&raw, (char *)ptr - sizeof raw, sizeof raw);
    fl__heap_raw(raw, 0);
}

static bool fl__host_copy(const fl_device *self, void *dst, const void *src, size_t bytes) {
    (void)self;
    if (bytes) memmove(dst, src, bytes);
    return true;
}

FL_PRIVATE const fl_device fl__host = {.name = "host",
                                       .get = fl__host_get,
                                       .put = fl__host_put,
                                       .copy = fl__host_copy,
                                       .limit = fl__host_limit,
                                       .host = true};

FL_API const fl_device *fl_device_host(void) {
    return &fl__host;
}

#endif
#endif

/* MIT licence: see LICENSE. */
