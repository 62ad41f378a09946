/* examples/extend/opencl_device.h - OpenCL for opencl.h: the library, its device, memory, transfers

   No header of OpenCL is included, and libOpenCL.so.1 is opened at run time. A buffer is a cl_mem. Its
   address is a number that no processor accepts; opencl_find turns it into the cl_mem and an offset, so that
   views, arenas and managers that cut slabs work. Freed cl_mems are used again. */
#ifndef OPENCL_DEVICE_H
#define OPENCL_DEVICE_H
#include "../../fl_backend.h"
#include "../../fl_tensor.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the library: handles are void *, the numbers are those of CL/cl.h ---- */

enum {
    OPENCL_DEVICE_TYPE = 0x1000,
    OPENCL_DEVICE_DOUBLE = 0x1032,
    OPENCL_DEVICE_NAME = 0x102B,
    OPENCL_BUILD_LOG = 0x1183,
    OPENCL_GPU = 1 << 2,
    OPENCL_READ_WRITE = 1, /* of a buffer */
    OPENCL_MAP_BOTH = 3,
    OPENCL_INVALID_VALUE = -30
};
#define OPENCL_CALLS(X)                                                                            \
    X(int, clGetPlatformIDs, (uint32_t, void **, uint32_t *))                                      \
    X(int, clGetDeviceIDs, (void *, uint64_t, uint32_t, void **, uint32_t *))                      \
    X(int, clGetDeviceInfo, (void *, uint32_t, size_t, void *, size_t *))                          \
    X(void *, clCreateContext, (const intptr_t *, uint32_t, void *const *, void *, void *, int *)) \
    X(void *, clCreateCommandQueue, (void *, void *, uint64_t, int *))                             \
    X(void *, clCreateBuffer, (void *, uint64_t, size_t, void *, int *))                           \
    X(int, clReleaseMemObject, (void *))                                                           \
    X(void *, clCreateProgramWithSource, (void *, uint32_t, const char **, const size_t *, int *)) \
    X(int, clBuildProgram, (void *, uint32_t, void *const *, const char *, void *, void *))        \
    X(int, clGetProgramBuildInfo, (void *, void *, uint32_t, size_t, void *, size_t *))            \
    X(void *, clCreateKernel, (void *, const char *, int *))                                       \
    X(int, clSetKernelArg, (void *, uint32_t, size_t, const void *))                               \
    X(int, clEnqueueNDRangeKernel,                                                                 \
      (void *, void *, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t,         \
       void *const *, void **))                                                                    \
    X(int, clEnqueueReadBuffer,                                                                    \
      (void *, void *, uint32_t, size_t, size_t, void *, uint32_t, void *const *, void **))        \
    X(int, clEnqueueWriteBuffer,                                                                   \
      (void *, void *, uint32_t, size_t, size_t, const void *, uint32_t, void *const *, void **))  \
    X(int, clEnqueueCopyBuffer,                                                                    \
      (void *, void *, void *, size_t, size_t, size_t, uint32_t, void *const *, void **))          \
    X(void *, clEnqueueMapBuffer,                                                                  \
      (void *, void *, uint32_t, uint64_t, size_t, size_t, uint32_t, void *const *, void **,       \
       int *))                                                                                     \
    X(int, clEnqueueUnmapMemObject, (void *, void *, void *, uint32_t, void *const *, void **))    \
    X(int, clFinish, (void *))

static struct {
    void *library;
#define OPENCL_FIELD(result, name, args) result(*name) args;
    OPENCL_CALLS(OPENCL_FIELD)
#undef OPENCL_FIELD
    pthread_mutex_t lock; /* of all below */
    bool opened, doubles, gpu;
    int each, group; /* elements of a work-item, and work-items of a group, of element-wise kernels */
    void *device, *context, *queue;
    void *fault;  /* buffer of the first error since the last look: op, index, axis, size + 1 (0: x % 0) */
    bool checked; /* a kernel that may report one has run since */
    char name[100];
    int64_t kernels, launches; /* compiled, and run */
} opencl = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline bool opencl_ok(int error, const char *call) {
    return !error || fl_fail("opencl: %s failed with error %d", call, error);
}

static bool opencl_load(void) {
    static const char *const file = "libOpenCL.so.1";
    uint32_t n = 0;
    if (opencl.library) return true;
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fl_fail("fl_backend_opencl: %s is not found", file);
#define OPENCL_LOOK(result, name, args)                     \
    *(void **)(void *)&opencl.name = dlsym(library, #name); \
    if (!opencl.name)                                       \
        return dlclose(library), fl_fail("fl_backend_opencl: %s has no %s", file, #name);
    OPENCL_CALLS(OPENCL_LOOK)
#undef OPENCL_LOOK
    if (opencl.clGetPlatformIDs(0, NULL, &n) || !n)
        return dlclose(library), fl_fail("fl_backend_opencl: %s has no platform", file);
    opencl.library = library;
    return true;
}

/* Chooses the device. */
static bool opencl_choose(void) {
    enum { MOST = 16 };
    void *platform[MOST], *device[MOST];
    uint32_t n = 0, m;
    const char *name = getenv("OPENCL_DEVICE");
    int best = -1;
    if (!opencl_ok(opencl.clGetPlatformIDs(MOST, platform, &n), "clGetPlatformIDs")) return false;
    for (uint32_t i = 0; i < n && i < MOST; i++) {
        m = 0;
        if (opencl.clGetDeviceIDs(platform[i], UINT32_MAX, MOST, device, &m))
            continue; /* has no device */
        for (uint32_t k = 0; k < m && k < MOST; k++) {
            char text[sizeof opencl.name] = "";
            uint64_t type = 0;
            opencl.clGetDeviceInfo(device[k], OPENCL_DEVICE_NAME, sizeof text - 1, text, NULL);
            opencl.clGetDeviceInfo(device[k], OPENCL_DEVICE_TYPE, sizeof type, &type, NULL);
            const int score = name ? (strstr(text, name) ? 0 : -1) : (type & OPENCL_GPU) != 0;
            if (score <= best) continue;
            best = score;
            opencl.gpu = (type & OPENCL_GPU) != 0;
            opencl.device = device[k];
            memcpy(opencl.name, text, sizeof text);
        }
    }
    return best >= 0 ||
           fl_fail("opencl: no platform has a device%s%s", name ? " named " : "", name ? name : "");
}

/* The device is opened when it is first used, not before: drivers start threads, which a fork would lose. */
static bool opencl_open(void) {
    int error = 0;
    uint64_t doubles = 0;
    if (opencl.opened) return true;
    if (!opencl_choose()) return false;
    opencl.clGetDeviceInfo(opencl.device, OPENCL_DEVICE_DOUBLE, sizeof doubles, &doubles, NULL);
    opencl.doubles = doubles != 0;
    opencl.each = opencl.gpu ? 1 : 256;
    opencl.group = opencl.gpu ? 64 : 4;
    opencl.context = opencl.clCreateContext(NULL, 1, &opencl.device, NULL, NULL, &error);
    if (!opencl_ok(error, "clCreateContext")) return false;
    opencl.queue = opencl.clCreateCommandQueue(opencl.context, opencl.device, 0, &error);
    if (!opencl_ok(error, "clCreateCommandQueue")) return false;
    const int32_t zero[4] = {0};
    opencl.fault =
        opencl.clCreateBuffer(opencl.context, OPENCL_READ_WRITE, sizeof zero, NULL, &error);
    if (!error)
        error = opencl.clEnqueueWriteBuffer(opencl.queue, opencl.fault, 1, 0, sizeof zero, zero, 0,
                                            NULL, NULL);
    return opencl.opened = opencl_ok(error, "the first buffer");
}

/* ---- memory: ranges of addresses, in ascending order, each a cl_mem ---- */

#define OPENCL_BIT ((uintptr_t)1 << 62) /* makes an address that no 64-bit processor accepts */
typedef struct opencl_block {
    uintptr_t at;
    size_t bytes;
    void *mem;
} opencl_block;
static struct {
    opencl_block *block, *unused; /* in use; freed, to be used again */
    int64_t n, cap, n_unused, cap_unused;
    uintptr_t next;
} opencl_memory = {.next = OPENCL_BIT};

static inline bool opencl_owns(const void *p) {
    return ((uintptr_t)p & OPENCL_BIT) != 0;
}

/* The block of an address, and the bytes from its start. Under the lock. */
static void *opencl_find(const void *p, size_t *offset) {
    int64_t low = 0, high = opencl_memory.n;
    while (high - low > 1) {
        const int64_t half = low + (high - low) / 2;
        *(opencl_memory.block[half].at <= (uintptr_t)p ? &low : &high) = half;
    }
    *offset = (size_t)((uintptr_t)p - opencl_memory.block[low].at);
    return opencl_memory.block[low].mem;
}

/* A cl_mem of that size, perhaps a freed one. Under the lock. */
static void *opencl_mem(size_t bytes) {
    opencl_block *unused = opencl_memory.unused;
    int error = 0;
    for (int64_t i = opencl_memory.n_unused - 1; i >= 0; i--) {
        if (unused[i].bytes != bytes) continue;
        void *mem = unused[i].mem;
        unused[i] = unused[--opencl_memory.n_unused];
        return mem;
    }
    void *mem = opencl.clCreateBuffer(opencl.context, OPENCL_READ_WRITE, bytes, NULL, &error);
    if (!error) return mem;
    opencl.clFinish(opencl.queue); /* what waits in the queue holds its buffers */
    while (opencl_memory.n_unused) opencl.clReleaseMemObject(unused[--opencl_memory.n_unused].mem);
    mem = opencl.clCreateBuffer(opencl.context, OPENCL_READ_WRITE, bytes, NULL, &error);
    return error ? NULL : mem;
}

/* Sizes are rounded up to an eighth of their power of two, so that freed blocks fit again. */
static size_t opencl_round(size_t bytes) {
    size_t unit = 256;
    while (unit * 16 <= bytes) unit *= 2;
    return bytes < 256 ? 256 : (bytes + unit - 1) / unit * unit;
}

static void *opencl_get(const fl_device *self, size_t bytes, size_t align) {
    void *p = NULL;
    (void)self,
        (void)
            align; /* addresses are multiples of 4096, and so are those of cl_mems for all we use */
    pthread_mutex_lock(&opencl.lock);
    const size_t size = opencl_round(bytes);
    if (opencl_open() && fl_heap_grow(&opencl_memory.block, &opencl_memory.cap, opencl_memory.n + 1,
                                      sizeof *opencl_memory.block)) {
        void *mem = opencl_mem(size);
        if (mem)
            opencl_memory.block[opencl_memory.n++] = (opencl_block){opencl_memory.next, size, mem};
        if (mem) p = (void *)opencl_memory.next;
        opencl_memory.next += (size + 8191) / 4096 * 4096;
    }
    pthread_mutex_unlock(&opencl.lock);
    return p;
}

/* The queue is in order: what uses the memory next runs after all that has used it. */
static void opencl_put(const fl_device *self, void *p, size_t bytes) {
    size_t offset;
    (void)self, (void)bytes;
    pthread_mutex_lock(&opencl.lock);
    void *mem = opencl_find(p, &offset);
    int64_t i = 0;
    while (opencl_memory.block[i].mem != mem) i++;
    const opencl_block b = opencl_memory.block[i];
    memmove(opencl_memory.block + i, opencl_memory.block + i + 1,
            (size_t)(--opencl_memory.n - i) * sizeof b);
    if (fl_heap_grow(&opencl_memory.unused, &opencl_memory.cap_unused, opencl_memory.n_unused + 1,
                     sizeof b))
        opencl_memory.unused[opencl_memory.n_unused++] = b;
    else
        opencl.clReleaseMemObject(mem);
    pthread_mutex_unlock(&opencl.lock);
}

static bool opencl_copy(const fl_device *self, void *dst, const void *src, size_t bytes) {
    size_t to = 0, from = 0;
    int error = 0;
    (void)self;
    if (!bytes) return true;
    pthread_mutex_lock(&opencl.lock);
    void *y = opencl_owns(dst) ? opencl_find(dst, &to) : NULL;
    void *x = opencl_owns(src) ? opencl_find(src, &from) : NULL;
    if (x && y)
        error = opencl.clEnqueueCopyBuffer(opencl.queue, x, y, from, to, bytes, 0, NULL, NULL);
    else if (y)
        error = opencl.clEnqueueWriteBuffer(opencl.queue, y, 1, to, bytes, src, 0, NULL, NULL);
    else if (x)
        error = opencl.clEnqueueReadBuffer(opencl.queue, x, 1, from, bytes, dst, 0, NULL, NULL);
    else
        memmove(dst, src, bytes);
    pthread_mutex_unlock(&opencl.lock);
    return opencl_ok(error, "a copy");
}

static const fl_device opencl_device = {
    .name = "opencl", .get = opencl_get, .put = opencl_put, .copy = opencl_copy};

static bool opencl_place(const fl_backend *self, fl_mem_info *info) {
    (void)self;
    info->device = &opencl_device;
    return true;
}

/* Waits, and reports the first error that depended on data. */
static bool opencl_sync(const fl_backend *self) {
    static const int32_t zero[4] = {0};
    int32_t f[4] = {0};
    (void)self;
    pthread_mutex_lock(&opencl.lock);
    int error = opencl.opened ? opencl.clFinish(opencl.queue) : 0;
    if (!error && opencl.checked)
        error = opencl.clEnqueueReadBuffer(opencl.queue, opencl.fault, 1, 0, sizeof f, f, 0, NULL,
                                           NULL);
    if (!error && f[0])
        error = opencl.clEnqueueWriteBuffer(opencl.queue, opencl.fault, 1, 0, sizeof zero, zero, 0,
                                            NULL, NULL);
    opencl.checked = false;
    pthread_mutex_unlock(&opencl.lock);
    if (error || !f[0]) return opencl_ok(error, "clFinish");
    const char *name = fl_op_name((fl_op)f[0]);
    if (!f[3]) return fl_fail("fl_%s: integer division by zero", name);
    return fl_fail("fl_%s: index %d is out of range for axis %d of size %d", name, f[1], f[2],
                   f[3] - 1);
}

/* Bytes that t spans, from its lowest to its highest element; element [0, ...] is *first bytes into them. */
static size_t opencl_span(const fl_tensor *t, int64_t *first) {
    int64_t low = 0, high = 0;
    for (int i = 0; i < t->ndim; i++) {
        const int64_t reach = (t->shape[i] - 1) * t->stride[i];
        *(reach < 0 ? &low : &high) += reach;
    }
    *first = -low * (int64_t)fl_dtype_size(t->dtype);
    return fl_numel(t) ? (size_t)(high - low + 1) * fl_dtype_size(t->dtype) : 0;
}

static char *opencl_start(const fl_tensor *t) {
    return (char *)t->buffer->ptr + t->offset * (int64_t)fl_dtype_size(t->dtype);
}

typedef struct opencl_mapping {
    struct opencl_mapping *next;
    const fl_tensor *t;
    void *mem;
    char *host;
} opencl_mapping;
static opencl_mapping *opencl_mappings;

/* The driver's mapping: on a processor the memory itself, elsewhere a copy. What is only written may have
   gaps, whose bytes must stay, so it is always read. */
static void *opencl_map(const fl_backend *self, fl_tensor *t, int access) {
    int64_t first;
    size_t offset;
    int error = 0;
    const size_t bytes = opencl_span(t, &first);
    if (access & FL_READ && !opencl_sync(self)) return NULL;
    opencl_mapping *m = fl_heap_alloc(sizeof *m);
    if (!m) return NULL;
    pthread_mutex_lock(&opencl.lock);
    void *mem = bytes ? opencl_find(opencl_start(t) - first, &offset) : NULL;
    char *host = (char *)m; /* of no bytes */
    if (bytes)
        host = opencl.clEnqueueMapBuffer(opencl.queue, mem, 1, OPENCL_MAP_BOTH, offset, bytes, 0,
                                         NULL, NULL, &error);
    *m = (opencl_mapping){opencl_mappings, t, mem, host};
    if (!error) opencl_mappings = m;
    pthread_mutex_unlock(&opencl.lock);
    if (!error) return host + first;
    fl_heap_free(m);
    return opencl_ok(error, "clEnqueueMapBuffer"), NULL;
}

static void opencl_unmap(const fl_backend *self, fl_tensor *t, int access) {
    (void)self, (void)access;
    pthread_mutex_lock(&opencl.lock);
    opencl_mapping **at = &opencl_mappings;
    while (*at && (*at)->t != t) at = &(*at)->next;
    opencl_mapping *m = *at;
    if (m) *at = m->next;
    if (m && m->mem) opencl.clEnqueueUnmapMemObject(opencl.queue, m->mem, m->host, 0, NULL, NULL);
    pthread_mutex_unlock(&opencl.lock);
    fl_heap_free(m);
}

/* Dense tensors of which one is the host's; the rest is left to map. */
static bool opencl_move(const fl_backend *self, fl_tensor *dst, fl_tensor *src) {
    const fl_tensor *both[] = {dst, src};
    for (int i = 0; i < 2; i++) {
        if (!both[i]->buffer || !fl_is_contiguous(both[i])) return false;
        if (both[i]->buffer->device != &opencl_device && !both[i]->buffer->device->host)
            return false;
    }
    if (src->buffer->device == &opencl_device && !opencl_sync(self)) return false;
    char *from = fl_buffer_map(src->buffer), *to = from ? fl_buffer_map(dst->buffer) : NULL;
    const size_t size = fl_dtype_size(src->dtype);
    const bool ok =
        to && opencl_copy(&opencl_device, to + dst->offset * (int64_t)size,
                          from + src->offset * (int64_t)size, (size_t)fl_numel(src) * size);
    if (to) fl_buffer_unmap(dst->buffer);
    if (from) fl_buffer_unmap(src->buffer);
    return ok;
}

#endif
/* MIT licence: see LICENSE. */
