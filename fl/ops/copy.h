/* fl/ops/copy.h - copies: casts, clones, writes into a tensor, tensors end to end, blocks of numbers

   All run the record copy: x -> y, same shape, any strides and dtypes; and, where the backend has it, concat
   (fl_axis_args): up to 8 x -> y, which has them side by side along the axis. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_COPY_H
#define FL_OPS_COPY_H

#ifdef __cplusplus
extern "C" {
#endif

/* n tensors end to end along axis; dtypes promote. */
FL_API fl_tensor *fl_concat(fl_tensor *const *ts, int n, int axis);
FL_API fl_var *fv_concat(fl_var *const *xs, int n, int axis);
/* Along a new axis. */
FL_API fl_tensor *fl_stack(fl_tensor *const *ts, int n, int axis);
FL_API fl_var *fv_stack(fl_var *const *xs, int n, int axis);
/* Other dtype: float to integer rounds towards 0 and saturates, NaN gives 0; integer to integer wraps;
   narrower floats round to nearest. The same tensor if it has it. A registered dtype's last axis counts
   blocks: [..., n] becomes [..., n / block], and back. The layout stays. */
FL_API fl_tensor *fl_cast(fl_tensor *t, fl_dtype dtype);
FL_API fl_var *fv_cast(fl_var *x, fl_dtype dtype);
/* "q8": 32 numbers as 8-bit integers and an f16 scale, 34 bytes (ggml's Q8_0): scale = max |x| / 127.
   Registered at the first call. "q4": 32 numbers as an f16 scale and 16 bytes, whose low halves are numbers
   0 to 15 and whose high ones 16 to 31, each (n - 8) scale (ggml's Q4_0). */
FL_API fl_dtype fl_q8(void);
FL_API fl_dtype fl_q4(void);
/* Row-major without gaps; the same tensor if it is. */
FL_API fl_tensor *fl_contiguous(fl_tensor *t);
FL_API fl_var *fv_contiguous(fl_var *x);
/* A copy with storage of its own. */
FL_API fl_tensor *fl_clone(fl_tensor *t);
/* Writes src (broadcast, cast) into dst and through it into the tensor it views; returns dst. */
FL_API fl_tensor *fl_assign(fl_tensor *dst, fl_tensor *src);
/* dst += src, likewise. */
FL_API fl_tensor *fl_accumulate(fl_tensor *dst, fl_tensor *src);

FL_DATA fl_op fl_op_concat;
FL_PRIVATE void fl__register_copy(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_COPY_H */

#if defined(FL_IMPL_ONLY_OPS_COPY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_COPY_IMPL
#define FL_OPS_COPY_IMPL
#include "../../fl_autograd.h"
#include "elementwise.h"
#include "view.h"
#include "../../kernels/fl_math.h"
#include <math.h>
#include <string.h>

/* ---- blocks of registered dtypes ---- */

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
    if (!info || shape.ndim == 0 || (pack && *last % info->block))
        return fl_bad("fl_cast: %s to %s: the last axis of shape %s has no whole blocks of %d",
                       fl_dtype_name(t->dtype), fl_dtype_name(dtype), FL_SHAPE_TEXT(t),
                       info ? info->block : 0);
    if (pack) *last /= info->block;
    else if (__builtin_mul_overflow(*last, info->block, last) || fl_shape_numel(shape) < 0)
        return fl_bad("fl_cast: shape %s of blocks is too large", FL_SHAPE_TEXT(t));
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_contiguous(pack ? fl_cast(t, FL_F32) : t);
    fl_tensor *y = x ? fl_out_on(t->family, shape, pack ? dtype : FL_F32) : NULL;
    if (y && (!fl_out_allocate(y) || !fl__convert(y, x, info, pack))) y = fl_raise();
    return fl_scope_return(&s, y && !pack ? fl_cast(y, dtype) : y);
}

/* A scale past f16 stays its largest: the numbers saturate. NaN counts as 0. */
static void fl__q8_pack(const float *x, void *blocks, int64_t n) {
    char *to = blocks;
    for (int64_t b = 0; b < n; b++, x += 32, to += 34) {
        float most = 0;
        for (int i = 0; i < 32; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        uint16_t half = flm_f32_to_f16(most / 127 > 65504 ? 65504 : most / 127);
        float scale = flm_f16_to_f32(half);
        memcpy(to, &half, 2);
        for (int i = 0; i < 32; i++) {
            float v = scale > 0 ? rintf(x[i] / scale) : 0;
            to[2 + i] = (char)(int8_t)(v >= 127 ? 127 : v <= -127 ? -127 : v == v ? v : 0);
        }
    }
}

static void fl__q8_unpack(const void *blocks, float *x, int64_t n) {
    const char *from = blocks;
    for (int64_t b = 0; b < n; b++, x += 32, from += 34) {
        uint16_t half;
        memcpy(&half, from, 2);
        for (int i = 0; i < 32; i++) x[i] = flm_f16_to_f32(half) * (float)(int8_t)from[2 + i];
    }
}

fl_dtype fl_q8(void) {
    return fl_dtype_register(&(fl_dtype_info){"q8", 34, 32, fl__q8_unpack, fl__q8_pack});
}

static void fl__q4_unpack(const void *blocks, float *x, int64_t n) {
    const uint8_t *from = blocks;
    for (int64_t b = 0; b < n; b++, x += 32, from += 18) {
        uint16_t half;
        memcpy(&half, from, 2);
        const float scale = flm_f16_to_f32(half);
        for (int i = 0; i < 16; i++) {
            x[i] = (float)((from[2 + i] & 15) - 8) * scale;
            x[16 + i] = (float)((from[2 + i] >> 4) - 8) * scale;
        }
    }
}

static int fl__q4_code(float x, float by) {
    const float v = x * by + 8.5f;
    return v >= 15 ? 15 : v > 0 ? (int)v : 0;
}

static void fl__q4_pack(const float *x, void *blocks, int64_t n) {
    uint8_t *to = blocks;
    for (int64_t b = 0; b < n; b++, x += 32, to += 18) {
        float top = 0; /* the largest number becomes -8, whatever its sign */
        for (int i = 0; i < 32; i++)
            if (fabsf(x[i]) > fabsf(top)) top = x[i];
        const float scale = top / -8, by = scale != 0 ? 1 / scale : 0;
        const uint16_t half = flm_f32_to_f16(scale);
        memcpy(to, &half, 2);
        for (int i = 0; i < 16; i++)
            to[2 + i] = (uint8_t)(fl__q4_code(x[i], by) | fl__q4_code(x[16 + i], by) << 4);
    }
}

fl_dtype fl_q4(void) {
    return fl_dtype_register(&(fl_dtype_info){"q4", 18, 32, fl__q4_unpack, fl__q4_pack});
}

/* ---- copies ---- */

fl_tensor *fl_cast(fl_tensor *t, fl_dtype dtype) {
    if (fl_absent("fl_cast", t) || !(t = fl_stored(t))) return NULL;
    if (fl_dtype_size(dtype) == 0) return fl_bad("fl_cast: dtype %d is not known", (int)dtype);
    if (t->dtype == dtype) return t;
    if (t->dtype >= FL_DTYPE_COUNT || dtype >= FL_DTYPE_COUNT) return fl__cast_blocks(t, dtype);
    const bool part = t->ndim == 4 && t->stride[1] == 1 && !fl_is_contiguous(t); /* of an image */
    fl_tensor *y = fl_out_like(t, dtype);
    y = part ? fl_out_order_as(y, t) : fl_out_lay_as(y, t);
    return fl_call_into(FL_OP_copy, y, t, NULL, NULL);
}

fl_tensor *fl_clone(fl_tensor *t) {
    if (fl_absent("fl_clone", t) || !(t = fl_stored(t))) return NULL;
    return fl_call_into(FL_OP_copy, fl_out_like(t, t->dtype), t, NULL, NULL);
}

fl_tensor *fl_contiguous(fl_tensor *t) {
    if (fl_absent("fl_contiguous", t) || !(t = fl_stored(t))) return NULL;
    return fl_is_contiguous(t) ? t : fl_clone(t);
}

/* ---- writing and joining ---- */

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
    if (fl_absent("fl_assign", dst) || fl_absent("fl_assign", src) || !fl_writable("fl_assign", dst))
        return NULL;
    fl_scope s = fl_scope_of(__func__);
    fl_shape shape = fl_shape_of(dst);
    bool ok = (src = fl_stored(src)) && fl_same_family("assign", dst, src);
    if (ok && (!fl_broadcast_shape(&shape, src) || !fl_shape_is(dst, shape)))
        ok = fl_refuse("fl_assign: shape %s does not broadcast to %s", FL_SHAPE_TEXT(src),
                     FL_SHAPE_TEXT(dst));
    ok = ok && (src = fl_expand(src, fl_shape_of(dst)));
    if (ok && fl__may_overlap(dst, src)) ok = (src = fl_clone(src)) != NULL;
    fl_call c = {.op = FL_OP_copy, .n_out = 1, .n_in = 1, .out = {dst}, .in = {src}};
    if (ok && !fl_call_run(&c)) ok = fl_raise() != NULL;
    fl_scope_end(&s);
    return ok ? dst : NULL;
}

fl_tensor *fl_accumulate(fl_tensor *dst, fl_tensor *src) {
    if (fl_absent("fl_accumulate", dst) || fl_absent("fl_accumulate", src)) return NULL;
    fl_scope s = fl_scope_of(__func__);
    return fl_scope_return(&s, fl_assign(dst, fl_add(dst, src)));
}

/* Writes n tensors, side by side along axis, into out from element *at on, which moves on. */
static bool fl__write_parts(fl_tensor *out, fl_tensor *const *ts, int n, int axis, int64_t *at) {
    const fl_axis_args args = {axis};
    fl_tensor alias = *out; /* never leaves the call below */
    fl_call c = {.op = n > 1 ? fl_op_concat : FL_OP_copy, .n_out = 1, .n_in = n, .out = {&alias},
                 .args = &args};
    alias.offset += *at * out->stride[axis];
    alias.shape[axis] = 0;
    for (int i = 0; i < n; i++) alias.shape[axis] += (c.in[i] = ts[i])->shape[axis];
    *at += alias.shape[axis];
    return fl_numel(&alias) == 0 || fl_call_run(&c);
}

static bool fl__compose_concat(const fl_call *c, fl_tensor **y) {
    int64_t at = 0;
    y[0] = fl_out_lay_as(fl_out_like(c->out[0], c->out[0]->dtype), c->out[0]);
    bool ok = y[0] && fl_out_allocate(y[0]);
    for (int i = 0; ok && i < c->n_in; i++)
        ok = fl__write_parts(y[0], &c->in[i], 1, ((const fl_axis_args *)c->args)->axis, &at);
    return ok;
}

fl_tensor *fl_concat(fl_tensor *const *ts, int n, int axis) {
    if (fl_absent("fl_concat", ts)) return NULL;
    if (n < 1) return fl_bad("fl_concat: %d tensors", n);
    for (int i = 0; i < n; i++) {
        if (fl_absent("fl_concat", ts[i])) return NULL;
        if (ts[i]->weak) return fl_bad("fl_concat: tensor %d is a weak number", i);
        if (!fl_same_family("concat", ts[0], ts[i])) return NULL;
    }
    if ((axis = fl_own_axis_of("fl_concat", ts[0], axis)) < 0) return NULL;
    fl_shape shape = fl_shape_of(ts[0]);
    for (int i = 1; i < n; i++) {
        fl_shape rest = fl_shape_of(ts[i]);
        if (rest.ndim != shape.ndim ||
            __builtin_add_overflow(shape.dim[axis], rest.dim[axis], &shape.dim[axis]))
            return fl_bad("fl_concat: shapes %s and %s", FL_SHAPE_TEXT(ts[0]),
                           FL_SHAPE_TEXT(ts[i]));
        for (int d = 0; d < shape.ndim; d++)
            if (d != axis && rest.dim[d] != shape.dim[d])
                return fl_bad("fl_concat: shapes %s and %s differ besides axis %d",
                               FL_SHAPE_TEXT(ts[0]), FL_SHAPE_TEXT(ts[i]), axis);
    }
    fl_tensor *out = fl_out_on(ts[0]->family, shape, fl_result_type(n, ts));
    bool last = shape.ndim == 4; /* images that all have their channels innermost stay so */
    for (int i = 0; last && i < n; i++) last = fl_is_channels_last(ts[i]) && !fl_is_contiguous(ts[i]);
    if (out && last) out = fl_out_order_as(out, ts[0]);
    if (!out || !fl_out_allocate(out)) return fl_raise();
    const int most = out->buffer && fl_backend_has(out->family, fl_op_concat) ? 8 : 1; /* of a record */
    int64_t at = 0;
    for (int i = 0; i < n; i += most)
        if (!fl__write_parts(out, ts + i, n - i < most ? n - i : most, axis, &at)) return fl_raise();
    return out;
}

fl_tensor *fl_stack(fl_tensor *const *ts, int n, int axis) {
    if (fl_absent("fl_stack", ts)) return NULL;
    if (n < 1) return fl_bad("fl_stack: %d tensors", n);
    for (int i = 0; i < n; i++) {
        if (fl_absent("fl_stack", ts[i])) return NULL;
        if (!fl_same_shape(ts[0], ts[i]))
            return fl_bad("fl_stack: shapes %s and %s", FL_SHAPE_TEXT(ts[0]),
                           FL_SHAPE_TEXT(ts[i]));
    }
    int dims = ts[0]->ndim, at = axis < 0 ? axis + dims + 1 : axis;
    if (at < 0 || at > dims || dims == FL_MAX_DIMS)
        return fl_bad("fl_stack: axis %d for shape %s", axis, FL_SHAPE_TEXT(ts[0]));
    fl_quiet(+1); /* a handler that jumps must not lose the list */
    fl_scope s = fl_scope_of(__func__);
    fl_tensor **rows = fl_heap_alloc((size_t)n * sizeof *rows), *out = NULL;
    bool ok = rows != NULL;
    for (int i = 0; ok && i < n; i++) ok = (rows[i] = fl_unsqueeze(ts[i], at)) != NULL;
    if (ok) out = fl_concat(rows, n, at);
    fl_heap_free(rows);
    fl_scope_return(&s, out);
    fl_quiet(-1);
    return out ? out : fl_raise();
}

/* ---- gradients ---- */

/* fv_add_grad casts and sums. */
static void fv__cast_back(fl_node *n, fl_var *dy) {
    fv_add_grad(n, 0, dy);
}

FL_API fl_var *fv_cast(fl_var *x, fl_dtype dtype) {
    fl_tensor *value = fl_cast(fv_value(x), dtype);
    if (value && value == x->value) return x;
    return fv_record_args("cast", value, fv__cast_back, FV_IN(x), FV_NONE, NULL, 0);
}

fl_var *fv_contiguous(fl_var *x) {
    return fv_record_args("contiguous", fl_contiguous(fv_value(x)), fv__cast_back, FV_IN(x),
                          FV_NONE, NULL, 0);
}

static void fv__concat_back(fl_node *n, fl_var *dy) {
    int axis = *(const int *)fv_args(n);
    int64_t at = 0;
    for (int i = 0; i < fv_in_count(n); i++) {
        int64_t next = at + fv_in_shape(n, i).dim[axis];
        if (fv_needs(n, i)) fv_add_grad(n, i, fv_slice(dy, axis, at, next, 1));
        at = next;
    }
}

static void fv__stack_back(fl_node *n, fl_var *dy) {
    for (int i = 0; i < fv_in_count(n); i++)
        if (fv_needs(n, i)) fv_add_grad(n, i, fv_select(dy, *(const int *)fv_args(n), i));
}

typedef fl_tensor *(*fv__join_fn)(fl_tensor *const *ts, int n, int axis);

/* n <= FV_MAX */
static fl_var *fv__join(const char *name, fv__join_fn join, fl_back_fn back, fl_var *const *xs,
                        int n, int axis) {
    fl_tensor *ts[FV_MAX];
    if (!xs || n < 1) {
        if (!xs) fl_fail("fv_%s: the list of variables is NULL", name);
        else fl_fail("fv_%s: %d variables", name, n);
        return fl_raise();
    }
    for (int i = 0; i < n; i++) ts[i] = fv_value(xs[i]);
    fl_tensor *value = join(ts, n, axis);
    if (value && axis < 0) axis += value->ndim;
    return fv_record_args(name, value, back, (fv_list){n, xs}, FV_NONE, &axis, sizeof axis);
}

/* More than a node has inputs: groups of them are joined first. */
static fl_var *fv__join_groups(fl_var *(*join)(fl_var *const *xs, int n, int axis),
                               fl_var *const *xs, int n, int axis) {
    fl_scope s = fl_scope_begin();
    fl_var *group[FV_MAX];
    bool ok = true;
    for (int64_t i = 0; ok && i < FV_MAX; i++) {
        int from = (int)(n * i / FV_MAX), to = (int)(n * (i + 1) / FV_MAX);
        ok = (group[i] = join(xs + from, to - from, axis)) != NULL;
    }
    return fv_scope_return(&s, ok ? fv_concat(group, FV_MAX, axis) : NULL);
}

FL_API fl_var *fv_concat(fl_var *const *xs, int n, int axis) {
    if (xs && n > FV_MAX) return fv__join_groups(fv_concat, xs, n, axis);
    return fv__join("concat", fl_concat, fv__concat_back, xs, n, axis);
}

FL_API fl_var *fv_stack(fl_var *const *xs, int n, int axis) {
    if (xs && n > FV_MAX) return fv__join_groups(fv_stack, xs, n, axis);
    return fv__join("stack", fl_stack, fv__stack_back, xs, n, axis);
}

FL_DATA_DEFINED fl_op fl_op_concat;

FL_PRIVATE void fl__register_copy(void) {
    static const fl_op_info concat = {.name = "concat",
                                      .args_size = sizeof(fl_axis_args),
                                      .contains = "copy",
                                      .compose = fl__compose_concat,
                                      .gradient = fv__concat_back};
    fl_op_concat = fl_op_register(&concat);
}
#endif /* FL_OPS_COPY_IMPL */
#endif
/* MIT licence: see LICENSE. */
