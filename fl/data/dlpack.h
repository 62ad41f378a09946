/* fl/data/dlpack.h - zero-copy tensor exchange with other libraries: DLPack

   The structs are those of DLPack's specification (dmlc.github.io/dlpack, "C API"), with the same layout
   under fl's names, so that a program may include dlpack.h too and cast. examples/python/fl.py makes Python's
   capsules from them. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_DATA_DLPACK_H
#define FL_DATA_DLPACK_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_dlpack_device {
    int32_t type; /* 1: host memory, 2: CUDA, 3: pinned by CUDA, ... */
    int32_t id;
} fl_dlpack_device;
typedef struct fl_dlpack_type {
    uint8_t code; /* 0: integer, 1: unsigned, 2: float, 4: bfloat, 6: bool */
    uint8_t bits;
    uint16_t lanes;
} fl_dlpack_type;
typedef struct fl_dlpack_tensor {
    void *data;
    fl_dlpack_device device;
    int32_t ndim;
    fl_dlpack_type type;
    int64_t *shape, *strides; /* in elements; strides NULL: row-major */
    uint64_t byte_offset;     /* of element [0, ...] from data */
} fl_dlpack_tensor;

enum { FL_DLPACK_MAJOR = 1, FL_DLPACK_MINOR = 0, FL_DLPACK_READ_ONLY = 1 };
/* DLPack 1: a capsule "dltensor_versioned". Its owner calls deleter(self) once, from any thread. */
typedef struct fl_dlpack fl_dlpack;
struct fl_dlpack {
    uint32_t major, minor;
    void *manager;
    void (*deleter)(fl_dlpack *self); /* may be NULL */
    uint64_t flags;
    fl_dlpack_tensor tensor;
};
/* DLPack before 1.0: a capsule "dltensor". */
typedef struct fl_dlpack_old fl_dlpack_old;
struct fl_dlpack_old {
    fl_dlpack_tensor tensor;
    void *manager;
    void (*deleter)(fl_dlpack_old *self);
};

/* Exports t's elements, to be read and written in place: t is referenced, and mapped, until the deleter is
   called. Such writes are not counted as fl's are (fl_version_of): do not write between forward and backward.
   Returns NULL after an error: dtypes that DLPack does not have, tensors that are not in host memory. */
FL_API fl_dlpack *fl_to_dlpack(fl_tensor *t);
FL_API fl_dlpack_old *fl_to_dlpack_old(fl_tensor *t);
/* Imports a tensor of the cpu backend that shares d's storage and takes ownership of d: its deleter is called
   when the last reference to that storage is dropped. Any strides. Returns NULL after an error, with d still
   the caller's: another major version, read-only, device memory, more than FL_MAX_DIMS dims, a type that fl
   does not have, elements that are not aligned to their size. */
FL_API fl_tensor *fl_from_dlpack(fl_dlpack *d);
FL_API fl_tensor *fl_from_dlpack_old(fl_dlpack_old *d);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_DLPACK_H */

#if defined(FL_IMPL_ONLY_DATA_DLPACK) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_DLPACK_IMPL
#define FL_DATA_DLPACK_IMPL
#include "../tensor/copy.h"
#include "../tensor/view.h"

static const uint8_t fl__dlpack_code[FL_DTYPE_COUNT] = {
    [FL_B8] = 6,  [FL_U8] = 1,   [FL_U16] = 1, [FL_U32] = 1, [FL_U64] = 1,
    [FL_F16] = 2, [FL_BF16] = 4, [FL_F32] = 2, [FL_F64] = 2,
};

static fl_dtype fl__dlpack_dtype(fl_dlpack_type type) {
    for (fl_dtype d = FL_B8; d < FL_DTYPE_COUNT; d++)
        if (type.lanes == 1 && type.code == fl__dlpack_code[d] && type.bits == 8 * fl_dtype_size(d))
            return d;
    return FL_DTYPE_NONE;
}

/* ---- export ---- */

typedef struct fl__dlpack_exported {
    union {
        fl_dlpack now;
        fl_dlpack_old old;
    } as; /* must be first: same address as the loan */
    fl_tensor *t;
    fl_buffer *buffer; /* a second reference prevents swapping its bytes */
} fl__dlpack_exported;

static void fl__dlpack_end(fl__dlpack_exported *loan) {
    fl_unmap(loan->t, FL_READ);
    fl_buffer_drop(loan->buffer);
    fl_drop(loan->t);
    fl_heap_free(loan);
}

static void fl__dlpack_delete(fl_dlpack *self) {
    fl__dlpack_end((fl__dlpack_exported *)self);
}

static void fl__dlpack_delete_old(fl_dlpack_old *self) {
    fl__dlpack_end((fl__dlpack_exported *)self);
}

/* A loan of t with *tensor filled; the caller sets the DLPack header. */
static fl__dlpack_exported *fl__dlpack_export(const char *fn, fl_tensor *t, fl_dlpack_tensor *tensor) {
    if (fl_is_null_arg(fn, t) || (t->weak && !(t = fl_contiguous(t)))) return NULL; /* gets storage */
    if (t->dtype >= FL_DTYPE_COUNT)
        return fl_err_null("%s: DLPack has no dtype %s", fn, fl_dtype_name(t->dtype));
    if (!t->buffer || !t->buffer->device->host || t->copied)
        return fl_err_null(
            "%s: the tensor %s of backend '%s' is not in host memory: fl_to(t, \"cpu\") first", fn,
            FL_SHAPE_TEXT(t), fl_backend_name(t));
    fl__dlpack_exported *loan = fl_heap_alloc(sizeof *loan);
    void *data = loan ? fl_map(t, FL_READ) : NULL;
    if (!data) {
        fl_heap_free(loan);
        return fl_raise();
    }
    loan->t = fl_keep(t);
    loan->buffer = fl_buffer_keep(t->buffer);
    *tensor = (fl_dlpack_tensor){
        .data = data,
        .device = {1, 0},
        .ndim = t->ndim,
        .type = {fl__dlpack_code[t->dtype], (uint8_t)(8 * fl_dtype_size(t->dtype)), 1},
        .shape = t->shape,
        .strides = t->stride};
    return loan;
}

FL_API fl_dlpack *fl_to_dlpack(fl_tensor *t) {
    fl_dlpack_tensor tensor;
    fl__dlpack_exported *loan = fl__dlpack_export("fl_to_dlpack", t, &tensor);
    if (!loan) return NULL;
    loan->as.now = (fl_dlpack){.major = FL_DLPACK_MAJOR,
                               .minor = FL_DLPACK_MINOR,
                               .deleter = fl__dlpack_delete,
                               .tensor = tensor};
    return &loan->as.now;
}

FL_API fl_dlpack_old *fl_to_dlpack_old(fl_tensor *t) {
    fl_dlpack_tensor tensor;
    fl__dlpack_exported *loan = fl__dlpack_export("fl_to_dlpack_old", t, &tensor);
    if (!loan) return NULL;
    loan->as.old = (fl_dlpack_old){.tensor = tensor, .deleter = fl__dlpack_delete_old};
    return &loan->as.old;
}

/* ---- import ---- */

/* The memory manager of one buffer whose bytes belong to another library. */
typedef struct fl__dlpack_imported {
    fl_mem_manager manager; /* must be first: same address as the guest */
    void *bytes;
    fl_dlpack *now; /* one of these two */
    fl_dlpack_old *old;
} fl__dlpack_imported;

static bool fl__dlpack_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    (void)info;
    b->ptr = ((fl__dlpack_imported *)self)->bytes;
    b->tight = true;
    return true;
}

static void fl__dlpack_put(fl_mem_manager *self, fl_buffer *b) {
    fl__dlpack_imported *g = (fl__dlpack_imported *)self;
    b->ptr = NULL;
    if (g->now && g->now->deleter) g->now->deleter(g->now);
    if (g->old && g->old->deleter) g->old->deleter(g->old);
    fl_heap_free(g);
}

/* The memory layout of an imported tensor. */
typedef struct fl__dlpack_layout {
    fl_dtype dtype;
    fl_shape shape;
    const int64_t *stride; /* NULL: row-major */
    int64_t offset;        /* of the first element, relative to the lowest */
    char *at;              /* the lowest element; NULL if there are no elements */
    size_t bytes;          /* from there on */
} fl__dlpack_layout;

/* Number of elements from the lowest to the highest address; *low: offset of the lowest, at most 0. -1 if
   they exceed what a buffer can hold. */
static int64_t fl__dlpack_extent(const fl__dlpack_layout *l, int64_t *low) {
    int64_t high = 0, step;
    *low = 0;
    if (!fl_shape_numel(l->shape)) return 0;
    for (int i = 0; l->stride && i < l->shape.ndim; i++) {
        if (__builtin_mul_overflow(l->shape.dim[i] - 1, l->stride[i], &step) ||
            __builtin_add_overflow(step < 0 ? *low : high, step, step < 0 ? low : &high))
            return -1;
    }
    if (!l->stride) high = fl_shape_numel(l->shape) - 1;
    return __builtin_sub_overflow(high, *low, &step) || step >= INT64_MAX / 16 ? -1 : step + 1;
}

/* Checks d and fills *l. Returns false after an error. */
static bool fl__dlpack_read(const char *fn, const fl_dlpack_tensor *d, fl__dlpack_layout *l) {
    const fl_dtype dtype = fl__dlpack_dtype(d->type);
    if (d->device.type != 1 && d->device.type != 3)
        return fl_err_false("%s: the tensor is on device %d:%d, expected host memory: copy it there first",
                            fn, (int)d->device.type, (int)d->device.id);
    if (!dtype)
        return fl_err_false("%s: fl has no dtype of code %d, %d bits, %d lanes", fn, d->type.code,
                            d->type.bits, d->type.lanes);
    if (d->ndim < 0 || d->ndim > FL_MAX_DIMS || (d->ndim && !d->shape))
        return fl_err_false("%s: expected 0 to %d dims with a shape, got %d", fn, FL_MAX_DIMS, (int)d->ndim);
    fl_shape s = {.ndim = d->ndim};
    for (int i = 0; i < d->ndim; i++) s.dim[i] = d->shape[i];
    const int64_t n = fl_shape_numel(s);
    if (n < 0 || (n && !d->data))
        return fl_err_false("%s: shape %s is not valid, or data is NULL", fn, FL_TEXT_OF(s));
    *l = (fl__dlpack_layout){.dtype = dtype, .shape = s, .stride = d->strides};
    int64_t low, extent = fl__dlpack_extent(l, &low), size = (int64_t)fl_dtype_size(dtype);
    if (extent < 0 || __builtin_mul_overflow(extent, size, &extent))
        return fl_err_false("%s: the strides are too large for shape %s", fn, FL_TEXT_OF(s));
    if (n) l->at = (char *)d->data + d->byte_offset + low * size;
    if (n && (uintptr_t)l->at % (uintptr_t)size)
        return fl_err_false("%s: the elements of shape %s are not aligned to %d bytes", fn, FL_TEXT_OF(s),
                            (int)size);
    l->offset = -low;
    l->bytes = (size_t)extent;
    return true;
}

static fl_tensor *fl__dlpack_take(const char *fn, const fl_dlpack_tensor *d, fl_dlpack *now,
                                  fl_dlpack_old *old) {
    fl__dlpack_layout l = {0};
    if (!fl__dlpack_read(fn, d, &l)) return NULL;
    fl__dlpack_imported *g = fl_heap_alloc(sizeof *g);
    if (!g) return fl_raise();
    *g = (fl__dlpack_imported){
        {.name = "dlpack", .get = fl__dlpack_get, .put = fl__dlpack_put}, l.at ? l.at : (void *)g, now, old};
    fl_buffer *b = fl_buffer_from(&g->manager, l.bytes, NULL);
    if (!b) return fl_heap_free(g), fl_raise();
    fl_tensor *t = fl_from_buffer(b, l.dtype, l.shape, l.stride, l.offset);
    if (t) return t;
    g->now = NULL; /* the caller keeps it */
    g->old = NULL;
    fl_buffer_drop(b);
    return NULL;
}

FL_API fl_tensor *fl_from_dlpack(fl_dlpack *d) {
    if (fl_is_null_arg("fl_from_dlpack", d)) return NULL;
    if (d->major != FL_DLPACK_MAJOR)
        return fl_err_null("fl_from_dlpack: got DLPack version %u.%u, expected %d", d->major, d->minor,
                           FL_DLPACK_MAJOR);
    if (d->flags & FL_DLPACK_READ_ONLY)
        return fl_err_null("fl_from_dlpack: the tensor is read-only: copy it first");
    return fl__dlpack_take("fl_from_dlpack", &d->tensor, d, NULL);
}

FL_API fl_tensor *fl_from_dlpack_old(fl_dlpack_old *d) {
    if (fl_is_null_arg("fl_from_dlpack_old", d)) return NULL;
    return fl__dlpack_take("fl_from_dlpack_old", &d->tensor, NULL, d);
}

#endif /* FL_DATA_DLPACK_IMPL */
#endif

/* MIT licence: see LICENSE. */
