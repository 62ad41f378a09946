/* examples/extend/device.h - a device whose memory the host cannot read, with a backend of four kernels

   The device is simulated, its rules are real: `get` returns a device address, and a host that dereferences
   it crashes. Bytes cross only through the device's `copy`; kernels, which run "on the device", translate
   addresses (device_at). To port this to hardware, replace the bodies of device_get, device_put and
   device_copy by the driver's malloc, free and memcpy, and the kernels by launches.

   What a backend with memory of its own needs
     device     fl_device: get, put, copy. Without a manager of its own each request goes to get and put.
     make       storage of an output: a buffer whose fl_mem_info names the device.
     map, unmap a staging copy in host memory for fl_item, fl_print, files: the bytes that the tensor spans.
     move       whole tensors to and from the host (fl_to), without a mapping.
     slots      copy, which every backend must have, fill, add and mul. Ops without a slot and without a
                composition run on the cpu with a warning (fl_backend_strict makes it an error), so all
                models run from the first day, and slots are added in the order of a profile.

     fl_backend_use(fl_backend_device(), NULL);
     fl_tensor *x = fl_to(t, "device"); */
#ifndef DEVICE_H
#define DEVICE_H
#include "../../fl_backend.h"
#include "../../fl_tensor.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Bit 62 makes an address that no 64-bit processor accepts. */
#define DEVICE_BIT ((uintptr_t)1 << 62)

static int64_t device_bytes_in, device_bytes_out; /* copied to the device, and back */

static inline bool device_owns(const void *p) { return ((uintptr_t)p & DEVICE_BIT) != 0; }
/* For kernels alone: where the device finds p. */
static inline char *device_at(const void *p) { return (char *)((uintptr_t)p & ~DEVICE_BIT); }

/* ---- the device ---- */

static void *device_get(const fl_device *self, size_t bytes, size_t align) {
    (void)self;
    void *p = aligned_alloc(align, (bytes + 2 * align - 1) / align * align); /* readable past the end */
    return p ? (void *)((uintptr_t)p | DEVICE_BIT) : NULL;
}

static void device_put(const fl_device *self, void *p, size_t bytes) {
    (void)self, (void)bytes;
    free(device_at(p));
}

static bool device_copy(const fl_device *self, void *dst, const void *src, size_t bytes) {
    (void)self;
    if (device_owns(dst) && !device_owns(src)) device_bytes_in += (int64_t)bytes;
    if (!device_owns(dst) && device_owns(src)) device_bytes_out += (int64_t)bytes;
    memmove(device_at(dst), device_at(src), bytes);
    return true;
}

static const fl_device device = {.name = "device", .get = device_get, .put = device_put, .copy = device_copy};

/* ---- storage ---- */

static bool device_place(const fl_backend *self, fl_mem_info *info) {
    (void)self;
    info->device = &device;
    return true;
}

/* Bytes that t spans, from its lowest to its highest element; element [0, ...] is *first bytes into them. */
static size_t device_span(const fl_tensor *t, int64_t *first) {
    int64_t low = 0, high = 0;
    for (int i = 0; i < t->ndim; i++) {
        const int64_t reach = (t->shape[i] - 1) * t->stride[i];
        *(reach < 0 ? &low : &high) += reach;
    }
    *first = -low * (int64_t)fl_dtype_size(t->dtype);
    return fl_numel(t) ? (size_t)(high - low + 1) * fl_dtype_size(t->dtype) : 0;
}

static char *device_start(const fl_tensor *t) {
    return (char *)t->buffer->ptr + t->offset * (int64_t)fl_dtype_size(t->dtype);
}

/* One mapping of a tensor: its bytes in host memory. */
typedef struct device_mapping {
    struct device_mapping *next;
    const fl_tensor *t;
    int64_t unused; /* keeps `bytes` on 16 bytes */
    char bytes[];
} device_mapping;
static device_mapping *device_mappings;
static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;

static void *device_map(const fl_backend *self, fl_tensor *t, int access) {
    int64_t first;
    const size_t bytes = device_span(t, &first);
    device_mapping *m = malloc(sizeof *m + bytes + 1);
    (void)self, (void)access; /* what is only written may have gaps, whose bytes must stay: always read */
    if (!m) return fl_fail("fl_map: device: no host memory for %zu bytes", bytes), NULL;
    device_copy(&device, m->bytes, device_start(t) - first, bytes);
    pthread_mutex_lock(&device_lock);
    m->t = t, m->next = device_mappings, device_mappings = m;
    pthread_mutex_unlock(&device_lock);
    return m->bytes + first;
}

static void device_unmap(const fl_backend *self, fl_tensor *t, int access) {
    (void)self;
    pthread_mutex_lock(&device_lock);
    device_mapping **at = &device_mappings;
    while (*at && (*at)->t != t) at = &(*at)->next;
    device_mapping *m = *at;
    if (m) *at = m->next;
    pthread_mutex_unlock(&device_lock);
    if (!m) return;
    int64_t first;
    const size_t bytes = device_span(t, &first);
    if (access & FL_WRITE) device_copy(&device, device_start(t) - first, m->bytes, bytes);
    free(m);
}

/* Dense tensors of which one is the host's; the rest is left to map. */
static bool device_move(const fl_backend *self, fl_tensor *dst, fl_tensor *src) {
    (void)self;
    if (!dst->buffer || !src->buffer || !fl_is_contiguous(dst) || !fl_is_contiguous(src)) return false;
    const fl_tensor *both[] = {dst, src};
    for (int i = 0; i < 2; i++)
        if (both[i]->buffer->device != &device && !both[i]->buffer->device->host) return false;
    char *from = fl_buffer_map(src->buffer), *to = from ? fl_buffer_map(dst->buffer) : NULL;
    const size_t size = fl_dtype_size(src->dtype);
    if (to)
        device_copy(&device, to + dst->offset * (int64_t)size, from + src->offset * (int64_t)size,
                    (size_t)fl_numel(src) * size);
    if (to) fl_buffer_unmap(dst->buffer);
    if (from) fl_buffer_unmap(src->buffer);
    return to != NULL;
}

/* ---- kernels: one element at a time, any strides ---- */

/* Where the device finds element i of t, counted in row-major order. */
static char *device_element(const fl_tensor *t, int64_t i) {
    int64_t at = 0;
    for (int k = t->ndim - 1; k >= 0; k--) at += i % t->shape[k] * t->stride[k], i /= t->shape[k];
    return device_at(device_start(t) + at * (int64_t)fl_dtype_size(t->dtype));
}

/* A weak number (fl_num) has no storage: its value is in the handle. */
static fl_number device_load(const fl_tensor *t, int64_t i) {
    if (!t->weak) return fl_number_load(t->dtype, device_element(t, i));
    return (fl_number){fl_dtype_is_float(t->dtype), t->f64, t->i64};
}

static bool device_copy_slot(const fl_backend *self, const fl_call *c) {
    (void)self;
    if (!fl_out_make(c->out[0])) return false;
    for (int64_t i = 0; i < fl_numel(c->out[0]); i++)
        fl_number_store(c->out[0]->dtype, device_element(c->out[0], i), device_load(c->in[0], i));
    return true;
}

static bool device_fill_slot(const fl_backend *self, const fl_call *c) {
    const fl_fill_args *a = c->args;
    (void)self;
    if (!fl_out_make(c->out[0])) return false;
    const fl_number v = {c->out[0]->dtype != FL_I64, a->f64, a->i64}; /* narrow integers are cast from f64 */
    for (int64_t i = 0; i < fl_numel(c->out[0]); i++)
        fl_number_store(c->out[0]->dtype, device_element(c->out[0], i), v);
    return true;
}

/* a + b or a b. Operands arrive checked, promoted to one of f32, f64, i64 and b8, and broadcast (strides 0).
   For f32, computing in double and rounding once gives the same bits; integers wrap. */
static bool device_binary_slot(const fl_backend *self, const fl_call *c) {
    fl_tensor *y = c->out[0];
    (void)self;
    if (!fl_out_make(y)) return false;
    for (int64_t i = 0; i < fl_numel(y); i++) {
        fl_number a = device_load(c->in[0], i), b = device_load(c->in[1], i);
        if (y->dtype == FL_F32) a.f = (float)a.f, b.f = (float)b.f; /* weak numbers are doubles */
        const uint64_t u = (uint64_t)a.i, v = (uint64_t)b.i;
        const fl_number sum = {fl_dtype_is_float(y->dtype), a.f + b.f, (int64_t)(u + v)};
        const fl_number product = {sum.real, a.f * b.f, (int64_t)(u * v)};
        fl_number_store(y->dtype, device_element(y, i), c->op == FL_OP_add ? sum : product);
    }
    return true;
}

static inline const fl_backend *fl_backend_device(void) {
    static fl_backend b = {.name = "device", .place = device_place, .map = device_map,
                           .unmap = device_unmap, .move = device_move};
    fl_backend_set(&b, FL_OP_copy, device_copy_slot, FL_SLOT_NARROW);
    fl_backend_set(&b, FL_OP_fill, device_fill_slot, FL_SLOT_NARROW);
    fl_backend_set(&b, FL_OP_add, device_binary_slot, 0);
    fl_backend_set(&b, FL_OP_mul, device_binary_slot, 0);
    return &b;
}
#endif
/* MIT licence: see LICENSE. */
