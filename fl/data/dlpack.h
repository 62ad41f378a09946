/* fl/data/dlpack.h - tensors that other libraries share without a copy, and theirs: DLPack

   The structs are those of DLPack's specification (dmlc.github.io/dlpack, "C API"), laid out alike under
   names of fl's, so that a program may include dlpack.h as well and cast. examples/python/fl.py makes the
   capsules of Python's protocol of them. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_DATA_DLPACK_H
#define FL_DATA_DLPACK_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_dlpack_device {
    int32_t type; /* 1: the processor's memory, 2: CUDA, 3: pinned by CUDA, ... */
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
/* DLPack 1: a capsule "dltensor_versioned". Whoever has it calls deleter(self), once, from any thread. */
typedef struct fl_dlpack fl_dlpack;
struct fl_dlpack {
    uint32_t major, minor;
    void *manager;
    void (*deleter)(fl_dlpack *self); /* NULL: nothing to do */
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

/* t's elements for others, who read and write them in place: t is kept, and mapped, until the deleter is
   called. Their writes are not counted as fl's are (fl_version_of): not between forward and backward. NULL
   after an error: dtypes that DLPack does not have, tensors that are not in the processor's memory. */
FL_API fl_dlpack *fl_to_dlpack(fl_tensor *t);
FL_API fl_dlpack_old *fl_to_dlpack_old(fl_tensor *t);
/* The tensor of the backend cpu whose storage is d's, which is fl's now: its deleter is called when the last
   handle on that storage goes. Any strides. NULL after an error, and d is the caller's still: another major
   version, read-only, the memory of a device, more than FL_MAX_DIMS dims, a type that fl does not have,
   elements that are not aligned to their size. */
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

/* ---- to others ---- */

typedef struct fl__dlpack_loan {
    union {
        fl_dlpack now;
        fl_dlpack_old old;
    } as; /* first: its address is the loan's */
    fl_tensor *t;
    fl_buffer *buffer; /* a second reference: nobody exchanges its bytes */
} fl__dlpack_loan;

static void fl__dlpack_end(fl__dlpack_loan *loan) {
    fl_unmap(loan->t, FL_READ);
    fl_buffer_drop(loan->buffer);
    fl_drop(loan->t);
    fl_heap_free(loan);
}

static void fl__dlpack_delete(fl_dlpack *self) {
    fl__dlpack_end((fl__dlpack_loan *)self);
}

static void fl__dlpack_delete_old(fl_dlpack_old *self) {
    fl__dlpack_end((fl__dlpack_loan *)self);
}

/* A loan of t with *tensor filled, not yet what it says about itself. */
static fl__dlpack_loan *fl__dlpack_lend(const char *fn, fl_tensor *t, fl_dlpack_tensor *tensor) {
    if (fl_is_null_arg(fn, t) || (t->weak && !(t = fl_contiguous(t)))) return NULL; /* a number is stored */
    if (t->dtype >= FL_DTYPE_COUNT)
        return fl_err_null("%s: DLPack has no dtype %s", fn, fl_dtype_name(t->dtype));
    if (!t->buffer || !t->buffer->device->host || t->copied)
        return fl_err_null(
            "%s: shape %s of '%s' is not in the processor's memory: fl_to(t, \"cpu\") first", fn,
            FL_SHAPE_TEXT(t), fl_backend_name(t));
    fl__dlpack_loan *loan = fl_heap_alloc(sizeof *loan);
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
    fl__dlpack_loan *loan = fl__dlpack_lend("fl_to_dlpack", t, &tensor);
    if (!loan) return NULL;
    loan->as.now = (fl_dlpack){.major = FL_DLPACK_MAJOR,
                               .minor = FL_DLPACK_MINOR,
                               .deleter = fl__dlpack_delete,
                               .tensor = tensor};
    return &loan->as.now;
}

FL_API fl_dlpack_old *fl_to_dlpack_old(fl_tensor *t) {
    fl_dlpack_tensor tensor;
    fl__dlpack_loan *loan = fl__dlpack_lend("fl_to_dlpack_old", t, &tensor);
    if (!loan) return NULL;
    loan->as.old = (fl_dlpack_old){.tensor = tensor, .deleter = fl__dlpack_delete_old};
    return &loan->as.old;
}

/* ---- from others ---- */

/* The manager of one buffer, whose bytes are somebody else's. */
typedef struct fl__dlpack_guest {
    fl_mem_manager manager; /* first: its address is the guest's */
    void *bytes;
    fl_dlpack *now; /* one of the two */
    fl_dlpack_old *old;
} fl__dlpack_guest;

static bool fl__dlpack_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    (void)info;
    b->ptr = ((fl__dlpack_guest *)self)->bytes;
    b->tight = true;
    return true;
}

static void fl__dlpack_put(fl_mem_manager *self, fl_buffer *b) {
    fl__dlpack_guest *g = (fl__dlpack_guest *)self;
    b->ptr = NULL;
    if (g->now && g->now->deleter) g->now->deleter(g->now);
    if (g->old && g->old->deleter) g->old->deleter(g->old);
    fl_heap_free(g);
}

/* What a foreign tensor is in memory. */
typedef struct fl__dlpack_layout {
    fl_dtype dtype;
    fl_shape shape;
    const int64_t *stride; /* NULL: row-major */
    int64_t offset;        /* of the first element, from the lowest one */
    char *at;              /* the lowest one; NULL where there is none */
    size_t bytes;          /* from there on */
} fl__dlpack_layout;

/* Elements from the lowest to the highest; *low: of the lowest, at most 0. -1 if they are more than a buffer
   can have. */
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

/* False after an error. */
static bool fl__dlpack_read(const char *fn, const fl_dlpack_tensor *d, fl__dlpack_layout *l) {
    const fl_dtype dtype = fl__dlpack_dtype(d->type);
    if (d->device.type != 1 && d->device.type != 3)
        return fl_err_false("%s: device %d:%d, not the processor's memory: copy it there first", fn,
                            (int)d->device.type, (int)d->device.id);
    if (!dtype)
        return fl_err_false("%s: no dtype of code %d, %d bits, %d lanes", fn, d->type.code, d->type.bits,
                            d->type.lanes);
    if (d->ndim < 0 || d->ndim > FL_MAX_DIMS || (d->ndim && !d->shape))
        return fl_err_false("%s: %d dims, 0 to %d are possible", fn, (int)d->ndim, FL_MAX_DIMS);
    fl_shape s = {.ndim = d->ndim};
    for (int i = 0; i < d->ndim; i++) s.dim[i] = d->shape[i];
    const int64_t n = fl_shape_numel(s);
    if (n < 0 || (n && !d->data))
        return fl_err_false("%s: shape %s is not valid, or without data", fn, FL_TEXT_OF(s));
    *l = (fl__dlpack_layout){.dtype = dtype, .shape = s, .stride = d->strides};
    int64_t low, extent = fl__dlpack_extent(l, &low), size = (int64_t)fl_dtype_size(dtype);
    if (extent < 0 || __builtin_mul_overflow(extent, size, &extent))
        return fl_err_false("%s: shape %s: strides that are too large", fn, FL_TEXT_OF(s));
    if (n) l->at = (char *)d->data + d->byte_offset + low * size;
    if (n && (uintptr_t)l->at % (uintptr_t)size)
        return fl_err_false("%s: shape %s: its elements are not aligned to %d bytes", fn, FL_TEXT_OF(s),
                            (int)size);
    l->offset = -low;
    l->bytes = (size_t)extent;
    return true;
}

static fl_tensor *fl__dlpack_take(const char *fn, const fl_dlpack_tensor *d, fl_dlpack *now,
                                  fl_dlpack_old *old) {
    fl__dlpack_layout l = {0};
    if (!fl__dlpack_read(fn, d, &l)) return NULL;
    fl__dlpack_guest *g = fl_heap_alloc(sizeof *g);
    if (!g) return fl_raise();
    *g = (fl__dlpack_guest){
        {.name = "dlpack", .get = fl__dlpack_get, .put = fl__dlpack_put}, l.at ? l.at : (void *)g, now, old};
    fl_buffer *b = fl_buffer_from(&g->manager, l.bytes, NULL);
    if (!b) return fl_heap_free(g), fl_raise();
    fl_tensor *t = fl_from_buffer(b, l.dtype, l.shape, l.stride, l.offset);
    if (t) return t;
    g->now = NULL; /* stays the caller's */
    g->old = NULL;
    fl_buffer_drop(b);
    return NULL;
}

FL_API fl_tensor *fl_from_dlpack(fl_dlpack *d) {
    if (fl_is_null_arg("fl_from_dlpack", d)) return NULL;
    if (d->major != FL_DLPACK_MAJOR)
        return fl_err_null("fl_from_dlpack: DLPack %u.%u, only %d is known", d->major, d->minor,
                           FL_DLPACK_MAJOR);
    if (d->flags & FL_DLPACK_READ_ONLY)
        return fl_err_null("fl_from_dlpack: it is read-only: copy it first");
    return fl__dlpack_take("fl_from_dlpack", &d->tensor, d, NULL);
}

FL_API fl_tensor *fl_from_dlpack_old(fl_dlpack_old *d) {
    if (fl_is_null_arg("fl_from_dlpack_old", d)) return NULL;
    return fl__dlpack_take("fl_from_dlpack_old", &d->tensor, NULL, d);
}

#endif /* FL_DATA_DLPACK_IMPL */
#endif

/* MIT licence: see LICENSE. */
