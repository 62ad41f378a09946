/* fl/tensor/copy.h - casts, clones, row-major copies, writes into a tensor: the record copy */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TENSOR_COPY_H
#define FL_TENSOR_COPY_H

#ifdef __cplusplus
extern "C" {
#endif

/* Other dtype: float to integer rounds towards 0 and saturates, NaN gives 0; integer to integer wraps;
   narrower floats round to nearest. The same tensor if it has it. A registered dtype's last axis counts
   blocks: [..., n] becomes [..., n / block], and back; blocks.h has such dtypes. The layout stays. */
FL_API fl_tensor *fl_cast(fl_tensor *t, fl_dtype dtype);
/* Row-major without gaps; the same tensor if it is. */
FL_API fl_tensor *fl_contiguous(fl_tensor *t);
/* A copy with storage of its own; its gradient is x's. */
FL_API fl_tensor *fl_clone(fl_tensor *t);
/* Writes src (broadcast, cast) into dst and through it into the tensor it views; returns dst. */
FL_API fl_tensor *fl_assign(fl_tensor *dst, fl_tensor *src);
/* The same of a src that nobody reads afterwards: its values are undefined then. If both are all that their
   buffers hold, of one shape, dtype and backend, these change places and nothing is copied. */
FL_API fl_tensor *fl_move_into(fl_tensor *dst, fl_tensor *src);
/* Writes op(a, b), op one of FL_BINARY_OPS (op_table.h), into dst as fl_assign does: a, b or both may be dst,
   so that fl_assign_op(x, FL_OP_mul, x, fl_num(2)) doubles x in place. The op computes in dst's dtype, to
   which operands are cast; an error if it gives another one, or if a float would become an integer. */
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

/* Both contiguous, one of blocks and one f32: on the host, for any backend. */
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
    const bool single = info && info->block == 1; /* blocks of one number need no axis */
    if (!info || (shape.ndim == 0 && !single) || (pack && shape.ndim && *last % info->block))
        return fl_err_null("fl_cast: %s to %s: the last axis of shape %s has no whole blocks of %d",
                       fl_dtype_name(t->dtype), fl_dtype_name(dtype), FL_SHAPE_TEXT(t),
                       info ? info->block : 0);
    if (pack && !info->pack)
        return fl_err_null("fl_cast: %s to %s: %s can be read, but not written", fl_dtype_name(t->dtype),
                           info->name, info->name);
    if (single || pack) *last /= info->block;
    else if (__builtin_mul_overflow(*last, info->block, last) || fl_shape_numel(shape) < 0)
        return fl_err_null("fl_cast: shape %s of blocks is too large", FL_SHAPE_TEXT(t));
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_contiguous(pack ? fl_cast(t, FL_F32) : t);
    fl_tensor *y = x ? fl_out_on(t->backend, shape, pack ? dtype : FL_F32) : NULL;
    if (y && (!fl_out_allocate(y) || !fl__convert(y, x, info, pack))) y = fl_raise();
    return fl_scope_return(&s, y && !pack ? fl_cast(y, dtype) : y);
}

fl_tensor *fl_cast(fl_tensor *t, fl_dtype dtype) {
    if (fl_is_null_arg("fl_cast", t) || !(t = fl_materialise(t))) return NULL;
    if (fl_dtype_size(dtype) == 0) return fl_err_null("fl_cast: dtype %d is not known", (int)dtype);
    if (t->dtype == dtype) return t;
    if (t->dtype >= FL_DTYPE_COUNT || dtype >= FL_DTYPE_COUNT) return fl__cast_blocks(t, dtype);
    const bool part = t->ndim == 4 && t->stride[1] == 1 && !fl_is_contiguous(t); /* of an image */
    fl_tensor *y = fl_out_like(t, dtype);
    y = part ? fl_out_order_as(y, t) : fl_out_lay_as(y, t);
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

/* Two views of one buffer that are not the same elements in the same order. */
static bool fl__may_overlap(const fl_tensor *a, const fl_tensor *b) {
    const fl_tensor *ra = a->base_ ? a->base_ : a, *rb = b->base_ ? b->base_ : b;
    bool one_storage = a->buffer ? a->buffer == b->buffer : ra == rb;
    if (!one_storage) return false;
    bool same = a->offset == b->offset && fl_same_shape(a, b);
    for (int i = 0; same && i < a->ndim; i++) same = a->stride[i] == b->stride[i];
    return !same;
}

fl_tensor *fl_assign(fl_tensor *dst, fl_tensor *src) {
    if (fl_is_null_arg("fl_assign", dst) || fl_is_null_arg("fl_assign", src) || !fl_is_writable("fl_assign", dst))
        return NULL;
    fl_scope s = fl_scope_of(__func__);
    fl_shape shape = fl_shape_of(dst);
    if (src->weak && src->dtype != FL_I64 && dst->dtype == FL_F64) /* all of the number, not its f32 */
        src = fl_to(fl_full(FL_SCALAR_SHAPE, src->f64, FL_F64), fl_backend_name(dst));
    bool ok = (src = fl_materialise(src)) && fl_same_backend("assign", dst, src);
    if (ok && (src->dtype >= FL_DTYPE_COUNT || dst->dtype >= FL_DTYPE_COUNT)) /* a copy converts no blocks */
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

/* t is all that its buffer holds, and its backend keeps nothing else about it. */
static bool fl__is_whole(const fl_tensor *t) {
    const fl_backend *be = fl_backend_at(t->backend);
    return t->buffer && !be->any && !be->map && !t->offset && fl_is_contiguous(t) &&
           t->buffer->bytes == (size_t)fl_numel(t) * fl_dtype_size(t->dtype);
}

fl_tensor *fl_move_into(fl_tensor *dst, fl_tensor *src) {
    if (fl_is_null_arg("fl_move_into", dst) || fl_is_null_arg("fl_move_into", src) || !fl_is_writable("fl_move_into", dst))
        return NULL;
    const bool alike = !src->weak && dst->backend == src->backend && dst->dtype == src->dtype &&
                       fl_same_shape(dst, src);
    if (alike && fl__is_whole(dst) && fl__is_whole(src) && fl_buffer_swap(dst->buffer, src->buffer))
        return dst;
    return fl_assign(dst, src);
}

/* An operand of what is written to dst: a number, or of dst's shape and dtype, and no other part of its
   storage. */
static fl_tensor *fl__assigned(const fl_tensor *dst, fl_tensor *x) {
    if (fl_dtype_is_float(x->dtype) && !fl_dtype_is_float(dst->dtype))
        return fl_err_null("fl_assign_op: an operand is %s, what is written %s", fl_dtype_name(x->dtype),
                           fl_dtype_name(dst->dtype));
    if (x->weak) return x;
    if (!fl_same_backend("assign_op", dst, x) || !(x = fl_cast(x, dst->dtype))) return NULL;
    x = fl_expand(x, fl_shape_of(dst));
    return x && fl__may_overlap(dst, x) ? fl_clone(x) : x;
}

fl_tensor *fl_assign_op(fl_tensor *dst, fl_op op, fl_tensor *a, fl_tensor *b) {
    static const char fn[] = "fl_assign_op";
    const fl_op_info *info = fl_op_get_info(op);
    if (fl_is_null_arg(fn, dst) || fl_is_null_arg(fn, a) || fl_is_null_arg(fn, b) || !fl_is_writable(fn, dst)) return NULL;
    if (!info || info->arity != 2) return fl_err_null("%s: '%s' is no op of two operands", fn, fl_op_name(op));
    const bool same = info->cls != FL_CLASS_CMP && dst->dtype != FL_U64 && /* whose ops are compositions */
                      fl_compute_dtype(info->cls, dst->dtype) == dst->dtype;
    if (!same) return fl_err_null("%s: %s does not give %s", fn, info->name, fl_dtype_name(dst->dtype));
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
