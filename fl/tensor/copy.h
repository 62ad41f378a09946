/* fl/tensor/copy.h - casts, clones, contiguous copies, in-place assignment: all by the op copy */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TENSOR_COPY_H
#define FL_TENSOR_COPY_H

#ifdef __cplusplus
extern "C" {
#endif

/* Converts to another dtype, in the same layout; returns t itself if it has that dtype. Float to integer
   rounds towards 0 and saturates, NaN gives 0; integer to integer wraps; narrower floats round to nearest.
   The last axis of a block dtype (blocks.h) counts blocks: [..., n] becomes [..., n / block], and back. */
FL_API fl_tensor *fl_cast(fl_tensor *t, fl_dtype dtype);
/* A row-major copy without gaps; t itself if it is contiguous. */
FL_API fl_tensor *fl_contiguous(fl_tensor *t);
/* A row-major copy with its own storage. */
FL_API fl_tensor *fl_clone(fl_tensor *t);
/* In-place assignment dst[...] = src: src is broadcast and cast; writes into the tensor that dst is a view
   of. Returns dst. */
FL_API fl_tensor *fl_assign(fl_tensor *dst, fl_tensor *src);
/* fl_assign for a src that is not used afterwards: its values become undefined. If both own their whole
   buffers and agree in shape, dtype and backend, the storage is swapped instead of copied. */
FL_API fl_tensor *fl_move_into(fl_tensor *dst, fl_tensor *src);
/* In-place binary op: dst[...] = op(a, b), op one of FL_BINARY_OPS (op_table.h). a, b or both may be dst:
   fl_assign_op(x, FL_OP_mul, x, fl_num(2)) doubles x. Operands are cast to dst's dtype, in which the op
   computes. An error if the op's result has another dtype, or if a float would be cast to an integer.
   Returns dst. */
FL_API fl_tensor *fl_assign_op(fl_tensor *dst, fl_op op, fl_tensor *a, fl_tensor *b);

#ifdef __cplusplus
}
#endif
#endif /* FL_TENSOR_COPY_H */

#if defined(FL_IMPL_ONLY_TENSOR_COPY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TENSOR_COPY_IMPL
#define FL_TENSOR_COPY_IMPL
#include "../../fl_backend.h"
#include "view.h"

typedef struct fl__blocks {
    const fl_dtype_info *info;
    const char *from;
    char *to;
    bool pack;
} fl__blocks;

static void fl__convert_blocks(void *arg, int64_t begin, int64_t end) {
    const fl__blocks *b = arg;
    int64_t packed = (int64_t)b->info->size, plain = b->info->block * (int64_t)sizeof(float);
    const char *from = b->from + begin * (b->pack ? plain : packed);
    char *to = b->to + begin * (b->pack ? packed : plain);
    if (b->pack) b->info->pack((const float *)(const void *)from, to, end - begin);
    else b->info->unpack(from, (float *)(void *)to, end - begin);
}

/* Converts between blocks and f32, both contiguous; on the host, for all backends. */
static bool fl__convert(fl_tensor *y, fl_tensor *x, const fl_dtype_info *info, bool pack) {
    void *from = fl_map(x, FL_READ), *to = from ? fl_map(y, FL_WRITE) : NULL;
    fl__blocks b = {info, from, to, pack};
    if (to) fl_parallel(fl_numel(pack ? y : x), 1 << 10, fl__convert_blocks, &b);
    if (to) fl_unmap(y, FL_WRITE);
    if (from) fl_unmap(x, FL_READ);
    return to != NULL;
}

static fl_tensor *fl__cast_blocks(fl_tensor *t, fl_dtype dtype) {
    bool pack = t->dtype < FL_DTYPE_COUNT;
    const fl_dtype_info *info = fl_dtype_registered(pack ? dtype : t->dtype);
    fl_shape shape = fl_shape_of(t);
    int64_t *last = &shape.dim[shape.ndim ? shape.ndim - 1 : 0];
    const bool single = info && info->block == 1; /* blocks of one number do not need an axis */
    if (!info || (shape.ndim == 0 && !single) || (pack && shape.ndim && *last % info->block))
        return fl_err_null("fl_cast: %s to %s: the last axis of shape %s must be a multiple of %d",
                       fl_dtype_name(t->dtype), fl_dtype_name(dtype), FL_SHAPE_TEXT(t),
                       info ? info->block : 0);
    if (pack && !info->pack)
        return fl_err_null("fl_cast: cannot cast %s to %s, which has no `pack` function",
                           fl_dtype_name(t->dtype), info->name);
    if (single || pack) *last /= info->block;
    else if (__builtin_mul_overflow(*last, info->block, last) || fl_shape_numel(shape) < 0)
        return fl_err_null("fl_cast: shape %s of blocks has more than 2^62 numbers", FL_SHAPE_TEXT(t));
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_contiguous(pack ? fl_cast(t, FL_F32) : t);
    fl_tensor *y = x ? fl_out_on(t->backend, shape, pack ? dtype : FL_F32) : NULL;
    if (y && (!fl_out_allocate(y) || !fl__convert(y, x, info, pack))) y = fl_raise();
    return fl_scope_return(&s, y && !pack ? fl_cast(y, dtype) : y);
}

fl_tensor *fl_cast(fl_tensor *t, fl_dtype dtype) {
    if (fl_is_null_arg("fl_cast", t) || !(t = fl_materialise(t))) return NULL;
    if (fl_dtype_size(dtype) == 0) return fl_err_null("fl_cast: unknown dtype %d", (int)dtype);
    if (t->dtype == dtype) return t;
    if (t->dtype >= FL_DTYPE_COUNT || dtype >= FL_DTYPE_COUNT) return fl__cast_blocks(t, dtype);
    const bool part = t->ndim == 4 && t->stride[1] == 1 && !fl_is_contiguous(t); /* channels-last image,
                                                                                    maybe sliced */
    fl_tensor *y = fl_out_like(t, dtype);
    y = part ? fl_out_order_as(y, t) : fl_out_layout_like(y, t);
    return fl_call_into(FL_OP_copy, y, t, NULL, NULL);
}

fl_tensor *fl_clone(fl_tensor *t) {
    if (fl_is_null_arg("fl_clone", t) || !(t = fl_materialise(t))) return NULL;
    return fl_call_into(FL_OP_copy, fl_out_like(t, t->dtype), t, NULL, NULL);
}

fl_tensor *fl_contiguous(fl_tensor *t) {
    if (fl_is_null_arg("fl_contiguous", t) || !(t = fl_materialise(t))) return NULL;
    return fl_is_contiguous(t) ? t : fl_clone(t);
}

/* True for views of the same storage, unless they are the same elements in the same order. */
static bool fl__may_overlap(const fl_tensor *a, const fl_tensor *b) {
    const fl_tensor *ra = a->base_ ? a->base_ : a, *rb = b->base_ ? b->base_ : b;
    bool one_storage = a->buffer ? a->buffer == b->buffer : ra == rb;
    if (!one_storage) return false;
    bool same = a->offset == b->offset && fl_same_shape(a, b);
    for (int i = 0; same && i < a->ndim; i++) same = a->stride[i] == b->stride[i];
    return !same;
}

fl_tensor *fl_assign(fl_tensor *dst, fl_tensor *src) {
    static const char fn[] = "fl_assign";
    if (fl_is_null_arg(fn, dst) || fl_is_null_arg(fn, src) || !fl_is_writable(fn, dst)) return NULL;
    fl_scope s = fl_scope_of(__func__);
    fl_shape shape = fl_shape_of(dst);
    if (src->weak && src->dtype != FL_I64 && dst->dtype == FL_F64) /* the full precision of the number */
        src = fl_to(fl_full(FL_SCALAR_SHAPE, src->f64, FL_F64), fl_backend_name(dst));
    bool ok = (src = fl_materialise(src)) && fl_same_backend("assign", dst, src);
    if (ok && (src->dtype >= FL_DTYPE_COUNT || dst->dtype >= FL_DTYPE_COUNT)) /* the op copy does not convert
                                                                                 blocks */
        ok = (src = fl_cast(src, dst->dtype)) != NULL;
    if (ok && (!fl_broadcast_shape(&shape, src) || !fl_shape_is(dst, shape)))
        ok = fl_err_false("fl_assign: shape %s does not broadcast to %s", FL_SHAPE_TEXT(src),
                     FL_SHAPE_TEXT(dst));
    ok = ok && (src = fl_expand(src, fl_shape_of(dst)));
    if (ok && fl__may_overlap(dst, src)) ok = (src = fl_clone(src)) != NULL;
    fl_call c = {.op = FL_OP_copy, .n_out = 1, .n_in = 1, .out = {dst}, .in = {src}};
    if (ok && !fl_call_run(&c)) ok = fl_raise() != NULL;
    fl_scope_end(&s);
    return ok ? dst : NULL;
}

/* True if t is all of its buffer, and its backend has no further state for it. */
static bool fl__is_whole(const fl_tensor *t) {
    const fl_backend *be = fl_backend_at(t->backend);
    return t->buffer && !be->map && !t->offset && fl_is_contiguous(t) &&
           t->buffer->bytes == (size_t)fl_numel(t) * fl_dtype_size(t->dtype);
}

fl_tensor *fl_move_into(fl_tensor *dst, fl_tensor *src) {
    static const char fn[] = "fl_move_into";
    if (fl_is_null_arg(fn, dst) || fl_is_null_arg(fn, src) || !fl_is_writable(fn, dst)) return NULL;
    const bool same_kind = !src->weak && dst->backend == src->backend && dst->dtype == src->dtype &&
                       fl_same_shape(dst, src);
    if (same_kind && fl__is_whole(dst) && fl__is_whole(src) && fl_buffer_swap(dst->buffer, src->buffer))
        return dst;
    return fl_assign(dst, src);
}

/* Prepares an operand of an in-place op: a weak number, or cast and expanded to dst, and copied if it
   overlaps dst. */
static fl_tensor *fl__assigned(const fl_tensor *dst, fl_tensor *x) {
    if (fl_dtype_is_float(x->dtype) && !fl_dtype_is_float(dst->dtype))
        return fl_err_null("fl_assign_op: cannot cast an operand of %s to dst's %s", fl_dtype_name(x->dtype),
                           fl_dtype_name(dst->dtype));
    if (x->weak) return x;
    if (!fl_same_backend("assign_op", dst, x) || !(x = fl_cast(x, dst->dtype))) return NULL;
    x = fl_expand(x, fl_shape_of(dst));
    return x && fl__may_overlap(dst, x) ? fl_clone(x) : x;
}

fl_tensor *fl_assign_op(fl_tensor *dst, fl_op op, fl_tensor *a, fl_tensor *b) {
    static const char fn[] = "fl_assign_op";
    const fl_op_info *info = fl_op_get_info(op);
    if (fl_is_null_arg(fn, dst) || fl_is_null_arg(fn, a) || fl_is_null_arg(fn, b)) return NULL;
    if (!fl_is_writable(fn, dst)) return NULL;
    if (!info || info->arity != 2) return fl_err_null("%s: '%s' is not a binary op", fn, fl_op_name(op));
    const bool same = info->cls != FL_CLASS_CMP && dst->dtype != FL_U64 && /* u64 ops are composed */
                      fl_compute_dtype(info->cls, dst->dtype) == dst->dtype;
    if (!same)
        return fl_err_null("%s: %s cannot compute in dst's dtype, %s", fn, info->name,
                           fl_dtype_name(dst->dtype));
    if (a->weak && b->weak) return fl_assign(dst, fl_binary_op(op, a, b));
    fl_scope s = fl_scope_of(__func__);
    const bool ok = (a = fl__assigned(dst, a)) && (b = fl__assigned(dst, b)) &&
                    fl_call_into(op, dst, a, b, NULL);
    fl_scope_end(&s);
    return ok ? dst : NULL;
}
#endif /* FL_TENSOR_COPY_IMPL */
#endif
/* MIT licence: see LICENSE. */
