/* fl_tensor_ops.h - the second room of fl_tensor.h: shape rules and compositions of the ops, and
   printing

   The prototypes stand in fl_tensor.h, which includes this file. A function here checks its
   operands, infers the result's shape and dtype, and hands one record to fl_run; or composes other
   ops where the backend has no slot of its own.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_tensor_ops.h"
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_tensor *image = fl_reshape(fl_arange(0, 16, 1, FL_F32), FL_SHAPE(1, 1, 4, 4));
        fl_tensor *blur = fl_full(FL_SHAPE(1, 1, 3, 3), 1.0 / 9, FL_F32);
        fl_print(fl_max_pool2d(fl_conv2d(image, blur, .pad = FL_SAME), 2, NULL));
        fl_print(fl_softmax(fl_sum(image, FL_AXES(0, 1, 2)), 0));
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents: search for the marker.
     >>sequences >>writing >>blocks >>convolution
     >>gradients >>randomness >>composed >>printing */
#include "fl_tensor.h"

#if defined(FL_IMPL_ONLY_TENSOR_OPS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TENSOR_OPS_IMPL
#define FL_TENSOR_OPS_IMPL
#include "fl/ops/index.h"
#include "fl/ops/reduce.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "kernels/fl_math.h"

/* >>sequences ---------------------------------------------------------------------------------- */

fl_tensor *fl_arange(double start, double stop, double step, fl_dtype dtype) {
    double n = ceil((stop - start) / step);
    if (!(step != 0) || !(n < 4e18))
        return fl_bad("fl_arange: from %g to %g by %g", start, stop, step);
    if (dtype == FL_DTYPE_NONE) dtype = FL_I64;
    if ((unsigned)dtype < FL_DTYPE_COUNT && fl_compute_dtype(FL_CLASS_NUM, dtype) != dtype)
        return fl_bad("fl_arange: %s is not supported", fl_dtype_name(dtype));
    fl_tensor *t = fl__new("fl_arange", FL_SHAPE(n > 0 ? (int64_t)n : 0), dtype, FL_I64);
    fl_iota_args a = {start, step, flm_f64_to_i64(start), flm_f64_to_i64(step)};
    return t ? fl_run_to(FL_OP_iota, t, NULL, NULL, &a) : NULL;
}

fl_tensor *fl_eye(int64_t n, int64_t m, fl_dtype dtype) {
    if (dtype == FL_DTYPE_NONE) dtype = FL_F32;
    if (!fl__creatable("fl_eye", FL_SHAPE(n, m), dtype)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *rows = fl_unsqueeze(fl_arange(0, (double)n, 1, FL_I64), 1);
    fl_tensor *eq = fl_eq(rows, fl_arange(0, (double)m, 1, FL_I64));
    return fl_scope_return(&s, fl_cast(eq, dtype));
}

/* >>writing ------------------------------------------------------------------------------------ */

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
    fl_scope s = fl_scope_begin();
    fl_shape shape = fl_shape_of(dst);
    bool ok = (src = fl_stored(src)) && fl_same_family("assign", dst, src);
    if (ok && (!fl_broadcast_shape(&shape, src) || !fl_shape_is(dst, shape)))
        ok = fl_refuse("fl_assign: shape %s does not broadcast to %s", FL_SHAPE_TEXT(src),
                     FL_SHAPE_TEXT(dst));
    ok = ok && (src = fl_expand(src, fl_shape_of(dst)));
    if (ok && fl__may_overlap(dst, src)) ok = (src = fl_clone(src)) != NULL;
    fl_call c = {.op = FL_OP_copy, .n_out = 1, .n_in = 1, .out = {dst}, .in = {src}};
    if (ok && !fl_run(&c)) ok = fl_raise() != NULL;
    fl_scope_end(&s);
    return ok ? dst : NULL;
}

/* Writes src into elements [start, start + src's dim) of out along axis. */
static bool fl__write_part(fl_tensor *out, fl_tensor *src, int axis, int64_t start) {
    fl_tensor alias = *out; /* never leaves the call below */
    alias.shape[axis] = src->shape[axis];
    alias.offset += start * out->stride[axis];
    fl_call c = {.op = FL_OP_copy, .n_out = 1, .n_in = 1, .out = {&alias}, .in = {src}};
    return fl_numel(src) == 0 || fl_run(&c);
}

fl_tensor *fl_concat(fl_tensor *const *ts, int n, int axis) {
    if (fl_absent("fl_concat", ts)) return NULL;
    if (n < 1) return fl_bad("fl_concat: %d tensors", n);
    for (int i = 0; i < n; i++) {
        if (fl_absent("fl_concat", ts[i])) return NULL;
        if (ts[i]->weak) return fl_bad("fl_concat: tensor %d is a weak number", i);
        if (!fl_same_family("concat", ts[0], ts[i])) return NULL;
    }
    if ((axis = fl_axis_of("fl_concat", ts[0], axis)) < 0) return NULL;
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
    fl_tensor *out = fl_call_out(ts[0]->family, shape, fl_result_type(n, ts));
    if (!out || !fl_allocate(out)) return fl_raise();
    int64_t at = 0;
    for (int i = 0; i < n; at += ts[i++]->shape[axis])
        if (!fl__write_part(out, ts[i], axis, at)) return fl_raise();
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
    fl_scope s = fl_scope_begin();
    fl_tensor **rows = fl__alloc((size_t)n * sizeof *rows), *out = NULL;
    bool ok = rows != NULL;
    for (int i = 0; ok && i < n; i++) ok = (rows[i] = fl_unsqueeze(ts[i], at)) != NULL;
    if (ok) out = fl_concat(rows, n, at);
    fl__free(rows);
    fl_scope_return(&s, out);
    fl_quiet(-1);
    return out ? out : fl_raise();
}

/* >>blocks ------------------------------------------------------------------------------------- */

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

FL_PRIVATE fl_tensor *fl__cast_blocks(fl_tensor *t, fl_dtype dtype) {
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
    fl_tensor *y = x ? fl_call_out(t->family, shape, pack ? dtype : FL_F32) : NULL;
    if (y && (!fl_allocate(y) || !fl__convert(y, x, info, pack))) y = fl_raise();
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

/* t, or what the blocks of t hold. */
static fl_tensor *fl__unpacked(fl_tensor *t) {
    return t && t->dtype >= FL_DTYPE_COUNT ? fl_cast(t, FL_F32) : t;
}

/* >>convolution -------------------------------------------------------------------------------- */

double fl_option(double value, double otherwise) {
    return value != 0 ? value : signbit(value) ? 0 : otherwise;
}
int64_t fl_option_int(int64_t value, int64_t otherwise) {
    return value == FL_I0 ? 0 : value ? value : otherwise;
}

/* Padding of one dim: o is a count or FL_SAME. */
static void fl__resolve_pad(int64_t o, int64_t n, int64_t window, int64_t stride, int64_t *lo,
                            int64_t *hi) {
    *lo = *hi = o;
    if (o != FL_SAME) return;
    int64_t all = ((n + stride - 1) / stride - 1) * stride + window - n;
    all = all > 0 ? all : 0;
    *lo = all / 2;
    *hi = all - *lo;
}

/* Positions of a window over a padded dim; 0 or less if it does not fit. */
static int64_t fl__windows(int64_t n, int64_t lo, int64_t hi, int64_t window, int64_t stride) {
    return n + lo + hi < window ? 0 : (n + lo + hi - window) / stride + 1;
}

/* Settings stay far from overflow in the arithmetic above. */
static bool fl__sane(int64_t v, int64_t min) {
    return v >= min && v <= INT32_MAX;
}

bool fl_conv2d_resolve(fl_conv2d_opts o, int64_t h, int64_t w, int64_t kh, int64_t kw,
                       fl_conv2d_args *out) {
    int64_t sh = fl_option_int(o.stride, 1), sw = fl_option_int(o.stride_w, sh);
    int64_t dh = fl_option_int(o.dilation, 1), dw = fl_option_int(o.dilation_w, dh);
    int64_t ph = fl_option_int(o.pad, 0), pw = fl_option_int(o.pad_w, ph),
            groups = fl_option_int(o.groups, 1);
    bool ok = fl__sane(sh, 1) && fl__sane(sw, 1) && fl__sane(dh, 1) && fl__sane(dw, 1) &&
              fl__sane(ph, FL_SAME) && fl__sane(pw, FL_SAME) && fl__sane(groups, 1) &&
              fl__sane(kh, 1) && fl__sane(kw, 1) && fl__sane(h, 0) && fl__sane(w, 0);
    if (!ok)
        return fl_refuse("fl_conv2d: image %lld x %lld, kernel %lld x %lld, stride %lld x %lld, "
                       "dilation %lld x %lld, pad %lld x "
                       "%lld, %lld groups",
                       (long long)h, (long long)w, (long long)kh, (long long)kw, (long long)sh,
                       (long long)sw, (long long)dh, (long long)dw, (long long)ph, (long long)pw,
                       (long long)groups);
    *out = (fl_conv2d_args){{sh, sw}, {0, 0}, {0, 0}, {dh, dw}, groups};
    fl__resolve_pad(ph, h, dh * (kh - 1) + 1, sh, &out->pad_lo[0], &out->pad_hi[0]);
    fl__resolve_pad(pw, w, dw * (kw - 1) + 1, sw, &out->pad_lo[1], &out->pad_hi[1]);
    return true;
}

/* Resolved arguments may come from anywhere: nothing below divides by zero or overflows. */
static bool fl__window_args_ok(const char *fn, const int64_t *stride, const int64_t *lo,
                               const int64_t *hi, const int64_t *size) {
    bool ok = true;
    for (int i = 0; i < 2; i++)
        ok = ok && fl__sane(stride[i], 1) && fl__sane(lo[i], 0) && fl__sane(hi[i], 0) &&
             fl__sane(size[i], 1);
    if (ok) return true;
    return fl_refuse("%s: stride %lld x %lld, pad %lld x %lld, dilation or window %lld x %lld", fn,
                   (long long)stride[0], (long long)stride[1], (long long)lo[0], (long long)lo[1],
                   (long long)size[0], (long long)size[1]);
}

static bool fl__conv2d_args_ok(const char *fn, const fl_conv2d_args *a) {
    if (!fl__sane(a->groups, 1))
        return fl_refuse("%s: %lld groups", fn, (long long)a->groups);
    return fl__window_args_ok(fn, a->stride, a->pad_lo, a->pad_hi, a->dilation);
}

/* Floats of one dtype: the neural ops compute in nothing else. */
static bool fl__floats(const char *fn, const fl_tensor *a, const fl_tensor *b) {
    if (fl_dtype_is_float(a->dtype) && a->dtype == b->dtype) return fl_same_family(fn, a, b);
    return fl_refuse("fl_%s: %s and %s: both must be the same float", fn, fl_dtype_name(a->dtype),
                   fl_dtype_name(b->dtype));
}

/* True for an image stored [n, h, w, c] that cannot pass for row-major. */
static bool fl__is_channels_last(const fl_tensor *t) {
    static const int order[] = {1, 3, 2, 0};
    int64_t n = 1;
    for (int i = 0; i < 4; i++) {
        if (t->shape[order[i]] != 1 && t->stride[order[i]] != n) return false;
        n *= t->shape[order[i]];
    }
    return !fl_is_contiguous(t);
}

/* Lays out an image, which has no storage yet, channels-last if one of the operands is so. */
static fl_tensor *fl__image_as(fl_tensor *out, const fl_tensor *a, const fl_tensor *b) {
    static const int order[] = {1, 3, 2, 0};
    if (!out || (!fl__is_channels_last(a) && !fl__is_channels_last(b))) return out;
    int64_t n = 1;
    for (int i = 0; i < 4; i++) {
        out->stride[order[i]] = n;
        n *= out->shape[order[i]] ? out->shape[order[i]] : 1;
    }
    return out;
}

fl_tensor *fl_conv2d_opt(fl_tensor *x, fl_tensor *w, fl_conv2d_opts o) {
    if (fl_absent("fl_conv2d", x) || fl_absent("fl_conv2d", w) || fl_error()) return NULL;
    if (x->ndim != 4 || w->ndim != 4)
        return fl_bad("fl_conv2d: x %s and w %s: both need four dims", FL_SHAPE_TEXT(x),
                       FL_SHAPE_TEXT(w));
    fl_conv2d_args a;
    if (!fl_conv2d_resolve(o, x->shape[2], x->shape[3], w->shape[2], w->shape[3], &a)) return NULL;
    return fl_conv2d_run(x, w, o.bias, a);
}

fl_tensor *fl_conv2d_run(fl_tensor *x, fl_tensor *w, fl_tensor *bias, fl_conv2d_args a) {
    if (fl_absent("fl_conv2d", x) || fl_absent("fl_conv2d", w) || !fl__floats("conv2d", x, w) ||
        !fl__conv2d_args_ok("fl_conv2d", &a))
        return NULL;
    if (x->ndim != 4 || w->ndim != 4 || x->shape[1] != w->shape[1] * a.groups ||
        w->shape[0] % a.groups || w->shape[1] < 1 || w->shape[2] < 1 || w->shape[3] < 1)
        return fl_bad("fl_conv2d: x %s, w %s, %lld groups: channels do not match",
                       FL_SHAPE_TEXT(x), FL_SHAPE_TEXT(w), (long long)a.groups);
    if (bias &&
        (!fl__floats("conv2d", x, bias) || bias->ndim != 1 || bias->shape[0] != w->shape[0]))
        return fl_error() ? NULL
                          : fl_bad("fl_conv2d: bias %s for w %s", FL_SHAPE_TEXT(bias),
                                    FL_SHAPE_TEXT(w));
    fl_shape shape = {4, {x->shape[0], w->shape[0], 0, 0}};
    for (int i = 0; i < 2; i++) {
        shape.dim[2 + i] = fl__windows(x->shape[2 + i], a.pad_lo[i], a.pad_hi[i],
                                       a.dilation[i] * (w->shape[2 + i] - 1) + 1, a.stride[i]);
        if (shape.dim[2 + i] < 1)
            return fl_bad("fl_conv2d: the kernel of w %s is larger than the padded image of x %s",
                           FL_SHAPE_TEXT(w), FL_SHAPE_TEXT(x));
    }
    fl_call c = {
        .op = FL_OP_conv2d, .n_out = 1, .n_in = bias ? 3 : 2, .in = {x, w, bias}, .args = &a};
    c.out[0] = fl__image_as(fl_call_out(x->family, shape, x->dtype), x, w);
    return c.out[0] ? fl_run_result(&c) : fl_raise();
}

/* True if conv2d of x and w by a gives dy's shape. */
static bool fl__conv2d_shapes(const char *fn, fl_shape x, fl_shape w, const fl_tensor *dy,
                              const fl_conv2d_args *a) {
    bool ok = x.ndim == 4 && w.ndim == 4 && dy->ndim == 4 && x.dim[0] == dy->shape[0] &&
              w.dim[0] == dy->shape[1] && a->groups > 0 && x.dim[1] == w.dim[1] * a->groups &&
              w.dim[0] % a->groups == 0;
    for (int i = 0; ok && i < 2; i++)
        ok = fl__sane(x.dim[2 + i], 0) && fl__sane(w.dim[2 + i], 1) &&
             dy->shape[2 + i] == fl__windows(x.dim[2 + i], a->pad_lo[i], a->pad_hi[i],
                                             a->dilation[i] * (w.dim[2 + i] - 1) + 1, a->stride[i]);
    if (!ok)
        fl_bad("%s: x %s, w %s and dy %s do not belong together", fn, FL_TEXT_OF(x),
                FL_TEXT_OF(w), FL_SHAPE_TEXT(dy));
    return ok;
}

fl_tensor *fl_conv2d_grad_input(fl_tensor *dy, fl_tensor *w, fl_shape x_shape, fl_conv2d_args a) {
    if (fl_absent("fl_conv2d_grad_input", dy) || fl_absent("fl_conv2d_grad_input", w) ||
        !fl__floats("conv2d_grad_input", dy, w) ||
        !fl__conv2d_args_ok("fl_conv2d_grad_input", &a) ||
        !fl__conv2d_shapes("fl_conv2d_grad_input", x_shape, fl_shape_of(w), dy, &a))
        return NULL;
    fl_tensor *dx = fl__image_as(fl_call_out(dy->family, x_shape, dy->dtype), dy, w);
    return fl_run_to(FL_OP_conv2d_grad_input, dx, dy, w, &a);
}

fl_tensor *fl_conv2d_grad_weight(fl_tensor *x, fl_tensor *dy, fl_shape w_shape, fl_conv2d_args a) {
    if (fl_absent("fl_conv2d_grad_weight", x) || fl_absent("fl_conv2d_grad_weight", dy) ||
        !fl__floats("conv2d_grad_weight", x, dy) ||
        !fl__conv2d_args_ok("fl_conv2d_grad_weight", &a) ||
        !fl__conv2d_shapes("fl_conv2d_grad_weight", fl_shape_of(x), w_shape, dy, &a))
        return NULL;
    fl_tensor *dw = fl__image_as(fl_call_out(x->family, w_shape, x->dtype), x, dy);
    return fl_run_to(FL_OP_conv2d_grad_weight, dw, x, dy, &a);
}

bool fl_pool2d_resolve(int64_t kernel, fl_pool2d_opts o, int64_t h, int64_t w,
                       fl_pool2d_args *out) {
    int64_t kh = kernel, kw = fl_option_int(o.kernel_w, kh);
    int64_t sh = fl_option_int(o.stride, kh), sw = fl_option_int(o.stride_w, o.stride ? sh : kw);
    int64_t ph = fl_option_int(o.pad, 0), pw = fl_option_int(o.pad_w, ph);
    bool ok = fl__sane(kh, 1) && fl__sane(kw, 1) && fl__sane(sh, 1) && fl__sane(sw, 1) &&
              fl__sane(ph, FL_SAME) && fl__sane(pw, FL_SAME) && fl__sane(h, 0) && fl__sane(w, 0);
    fl_pool2d_args a = {{kh, kw}, {sh, sw}, {0, 0}, {0, 0}, !o.ignore_pad};
    if (ok) {
        fl__resolve_pad(ph, h, kh, sh, &a.pad_lo[0], &a.pad_hi[0]);
        fl__resolve_pad(pw, w, kw, sw, &a.pad_lo[1], &a.pad_hi[1]);
        /* half a window at most, so that no window lies outside the image */
        ok = a.pad_hi[0] <= kh / 2 && a.pad_hi[1] <= kw / 2 &&
             fl__windows(h, a.pad_lo[0], a.pad_hi[0], kh, sh) > 0 &&
             fl__windows(w, a.pad_lo[1], a.pad_hi[1], kw, sw) > 0;
    }
    if (!ok)
        return fl_refuse("fl_pool2d: image %lld x %lld, window %lld x %lld, stride %lld x %lld, pad "
                       "%lld x %lld (at most half a "
                       "window)",
                       (long long)h, (long long)w, (long long)kh, (long long)kw, (long long)sh,
                       (long long)sw, (long long)ph, (long long)pw);
    *out = a;
    return true;
}

static fl_shape fl__pooled_shape(const fl_tensor *x, const fl_pool2d_args *a) {
    fl_shape s = fl_shape_of(x);
    for (int i = 0; i < 2; i++)
        s.dim[2 + i] =
            fl__windows(x->shape[2 + i], a->pad_lo[i], a->pad_hi[i], a->kernel[i], a->stride[i]);
    return s;
}

FL_PRIVATE bool fl__poolable(const char *fn, const fl_tensor *x) {
    if (fl_absent(fn, x)) return false;
    if (x->ndim == 4 && fl_dtype_is_float(x->dtype)) return true;
    return fl_refuse("%s: x is %s of shape %s, not a float of four dims", fn, fl_dtype_name(x->dtype),
                   FL_SHAPE_TEXT(x));
}

/* Positions of one dim's windows: i64 [out, kernel] = o * stride - pad_lo + k. */
static fl_tensor *fl__window_index(const fl_pool2d_args *a, int i, int64_t out) {
    fl_tensor *o = fl_arange(0, (double)out, 1, FL_I64),
              *k = fl_arange(0, (double)a->kernel[i], 1, FL_I64);
    fl_tensor *start = fl_sub(fl_mul(o, fl_int(a->stride[i])), fl_int(a->pad_lo[i]));
    return fl_add(fl_unsqueeze(start, 1), k);
}

/* For x of the shape x_shape: i64 [oh, ow, kh * kw] positions h * w of each window's elements,
   clipped into the image; *inside b8 of the same shape. The pooling compositions gather and scatter
   with them. */
static fl_tensor *fl__windows_of(fl_shape x_shape, fl_shape y, const fl_pool2d_args *a,
                                 const char *family, fl_tensor **inside) {
    fl_tensor *pos[2], *in[2];
    for (int i = 0; i < 2; i++) {
        fl_shape s = {
            4, {i ? 1 : y.dim[2], i ? y.dim[3] : 1, i ? 1 : a->kernel[0], i ? a->kernel[1] : 1}};
        int64_t n = x_shape.dim[2 + i];
        fl_tensor *p = fl_reshape(fl__window_index(a, i, y.dim[2 + i]), s);
        in[i] = fl_logical_and(fl_ge(p, fl_int(0)), fl_lt(p, fl_int(n)));
        pos[i] = fl_minimum(fl_maximum(p, fl_int(0)), fl_int(n - 1));
    }
    fl_shape flat = FL_SHAPE(y.dim[2], y.dim[3], a->kernel[0] * a->kernel[1]);
    *inside = fl_to(fl_reshape(fl_logical_and(in[0], in[1]), flat), family);
    return fl_to(fl_reshape(fl_add(fl_mul(pos[0], fl_int(x_shape.dim[3])), pos[1]), flat), family);
}

/* The windows of x as values [n, c, oh * ow, k] with `outside` where they leave the image; *index
   (n, c expanded) and *inside as above, flat. */
static fl_tensor *fl__unfold_windows(fl_tensor *x, fl_shape y, const fl_pool2d_args *a,
                                     double outside, fl_tensor **index) {
    fl_tensor *inside;
    int64_t n = x->shape[0], c = x->shape[1], positions = y.dim[2] * y.dim[3],
            k = a->kernel[0] * a->kernel[1];
    fl_tensor *at = fl__windows_of(fl_shape_of(x), y, a, fl_family_name(x), &inside);
    at = fl_expand(fl_reshape(at, FL_SHAPE(1, 1, positions * k)), FL_SHAPE(n, c, positions * k));
    fl_tensor *v = fl_gather(fl_reshape(x, FL_SHAPE(n, c, x->shape[2] * x->shape[3])), 2, at);
    v = fl_where(fl_reshape(inside, FL_SHAPE(positions, k)),
                 fl_reshape(v, FL_SHAPE(n, c, positions, k)), fl_num(outside));
    *index = fl_reshape(at, FL_SHAPE(n, c, positions, k));
    return v;
}

static fl_tensor *fl__compose_max_pool(fl_tensor *x, fl_shape y, const fl_pool2d_args *a,
                                       fl_dtype d, fl_tensor **index) {
    fl_scope s = fl_scope_begin();
    fl_tensor *at;
    fl_tensor *v = fl__unfold_windows(x, y, a, -(double)INFINITY, &at);
    fl_tensor *best = fl_argmax(v, 3, true);
    fl_tensor *value = fl_reshape(fl_gather(v, 3, best), y);
    at = d == FL_I64 ? fl_gather(at, 3, best) : fl_cast(best, d);
    *index = fl_promote(&s, fl_reshape(at, y));
    return fl_scope_return(&s, *index ? value : NULL);
}

FL_PRIVATE fl_tensor *fl__max_pool2d(fl_tensor *x, fl_pool2d_args a, fl_dtype d,
                                     fl_tensor **index) {
    fl_shape shape = fl__pooled_shape(x, &a);
    if (!fl__by_slot(x, FL_OP_max_pool2d)) return fl__compose_max_pool(x, shape, &a, d, index);
    fl_call c = {.op = FL_OP_max_pool2d, .n_out = 2, .n_in = 1, .in = {x}, .args = &a};
    c.out[0] = fl__image_as(fl_call_out(x->family, shape, x->dtype), x, x);
    c.out[1] = *index = c.out[0] ? fl__image_as(fl_call_out(x->family, shape, d), x, x) : NULL;
    return *index ? fl_run_result(&c) : fl_raise();
}

fl_tensor *fl_max_pool2d_opt(fl_tensor *x, int64_t kernel, fl_tensor **index, fl_pool2d_opts o) {
    fl_pool2d_args a;
    if (!fl__poolable("fl_max_pool2d", x) ||
        !fl_pool2d_resolve(kernel, o, x->shape[2], x->shape[3], &a))
        return NULL;
    fl_tensor *at = NULL, *y = fl__max_pool2d(x, a, FL_I64, &at);
    if (index && y) *index = at;
    return y;
}

FL_PRIVATE fl_tensor *fl__pooled_places(fl_tensor *index, fl_shape x_shape, fl_pool2d_args a) {
    fl_scope s = fl_scope_begin();
    fl_shape y = fl_shape_of(index);
    int64_t n = y.dim[0], c = y.dim[1], m = y.dim[2] * y.dim[3], k = a.kernel[0] * a.kernel[1];
    fl_tensor *inside, *at = fl__windows_of(x_shape, y, &a, fl_family_name(index), &inside);
    at = fl_expand(fl_reshape(at, FL_SHAPE(1, 1, m, k)), FL_SHAPE(n, c, m, k));
    fl_tensor *tap = fl_reshape(fl_cast(index, FL_I64), FL_SHAPE(n, c, m, 1));
    return fl_scope_return(&s, fl_reshape(fl_gather(at, 3, tap), y));
}

/* Adds src [n, c, m] at positions index [n, c, m] of zero images of x_shape. */
static fl_tensor *fl__scatter_images(fl_tensor *src, fl_tensor *index, fl_shape x_shape) {
    fl_shape flat = FL_SHAPE(x_shape.dim[0], x_shape.dim[1], x_shape.dim[2] * x_shape.dim[3]);
    fl_tensor *zero = fl_call_out(src->family, flat, src->dtype);
    if (!zero) return fl_raise();
    return fl_reshape(fl_scatter_add(fl__fill(zero, 0), 2, index, src), x_shape);
}

fl_tensor *fl_max_pool2d_grad(fl_tensor *dy, fl_tensor *index, fl_shape x_shape) {
    if (fl_absent("fl_max_pool2d_grad", index) || !fl__poolable("fl_max_pool2d_grad", dy))
        return NULL;
    if (!fl_same_shape(dy, index) || index->dtype != FL_I64 || x_shape.ndim != 4 ||
        x_shape.dim[0] != dy->shape[0] || x_shape.dim[1] != dy->shape[1] ||
        fl_shape_numel(x_shape) < 0 || !fl_same_family("max_pool2d_grad", dy, index))
        return fl_bad("fl_max_pool2d_grad: dy %s, index %s (%s), x %s", FL_SHAPE_TEXT(dy),
                       FL_SHAPE_TEXT(index), fl_dtype_name(index->dtype),
                       FL_TEXT_OF(x_shape));
    return fl__max_pool2d_grad(dy, index, x_shape, (fl_pool2d_args){{0}, {0}, {0}, {0}, false});
}

FL_PRIVATE fl_tensor *fl__max_pool2d_grad(fl_tensor *dy, fl_tensor *index, fl_shape x_shape,
                                          fl_pool2d_args a) {
    if (fl__by_slot(dy, FL_OP_max_pool2d_grad)) {
        fl_tensor *dx = fl__image_as(fl_call_out(dy->family, x_shape, dy->dtype), dy, index);
        return fl_run_to(FL_OP_max_pool2d_grad, dx, dy, index, &a);
    }
    fl_scope s = fl_scope_begin();
    fl_shape flat = FL_SHAPE(dy->shape[0], dy->shape[1], dy->shape[2] * dy->shape[3]);
    if (index->dtype == FL_U8) index = fl__pooled_places(index, x_shape, a);
    fl_tensor *src = fl_reshape(dy, flat), *at = fl_reshape(index, flat);
    return fl_scope_return(&s, src && at ? fl__scatter_images(src, at, x_shape) : NULL);
}

/* One over the number of elements each window averages, [oh * ow, 1]; on x's family. */
static fl_tensor *fl__window_weights(fl_shape x_shape, fl_shape y, const fl_pool2d_args *a,
                                     fl_dtype dtype, const char *family) {
    fl_tensor *inside;
    if (!fl__windows_of(x_shape, y, a, family, &inside)) return NULL;
    fl_tensor *count = fl_sum(fl_cast(fl_reshape(inside, FL_SHAPE(y.dim[2] * y.dim[3], -1)), dtype),
                              FL_AXES_KEEP(1));
    if (a->count_pad) count = fl_full_like(count, (double)(a->kernel[0] * a->kernel[1]));
    return fl_reciprocal(count);
}

fl_tensor *fl_avg_pool2d_run(fl_tensor *x, fl_pool2d_args a) {
    if (!fl__poolable("fl_avg_pool2d", x) ||
        !fl__window_args_ok("fl_avg_pool2d", a.stride, a.pad_lo, a.pad_hi, a.kernel))
        return NULL;
    fl_shape shape = fl__pooled_shape(x, &a);
    if (fl__by_slot(x, FL_OP_avg_pool2d)) {
        fl_tensor *y = fl__image_as(fl_call_out(x->family, shape, x->dtype), x, x);
        return fl_run_to(FL_OP_avg_pool2d, y, x, NULL, &a);
    }
    fl_scope s = fl_scope_begin();
    fl_tensor *at, *v = fl__unfold_windows(x, shape, &a, 0, &at);
    fl_tensor *w = fl__window_weights(fl_shape_of(x), shape, &a, x->dtype, fl_family_name(x));
    return fl_scope_return(&s, fl_reshape(fl_mul(fl_sum(v, FL_AXES_KEEP(3)), w), shape));
}

fl_tensor *fl_avg_pool2d_opt(fl_tensor *x, int64_t kernel, fl_pool2d_opts o) {
    fl_pool2d_args a;
    if (!fl__poolable("fl_avg_pool2d", x) ||
        !fl_pool2d_resolve(kernel, o, x->shape[2], x->shape[3], &a))
        return NULL;
    return fl_avg_pool2d_run(x, a);
}

static fl_tensor *fl__compose_avg_pool_grad(fl_tensor *dy, fl_shape x_shape,
                                            const fl_pool2d_args *a) {
    fl_scope s = fl_scope_begin();
    fl_shape y = fl_shape_of(dy);
    int64_t n = y.dim[0], c = y.dim[1], positions = y.dim[2] * y.dim[3],
            k = a->kernel[0] * a->kernel[1];
    const char *family = fl_family_name(dy);
    fl_tensor *inside, *at = fl__windows_of(x_shape, y, a, family, &inside);
    fl_tensor *w = fl__window_weights(x_shape, y, a, dy->dtype, family);
    fl_tensor *share = fl_mul(fl_reshape(dy, FL_SHAPE(n, c, positions, 1)), w);
    share = fl_where(fl_reshape(inside, FL_SHAPE(positions, k)), share, fl_num(0));
    share = fl_reshape(share, FL_SHAPE(n, c, positions * k));
    at = fl_expand(fl_reshape(at, FL_SHAPE(1, 1, positions * k)), FL_SHAPE(n, c, positions * k));
    return fl_scope_return(&s, share && at ? fl__scatter_images(share, at, x_shape) : NULL);
}

fl_tensor *fl_avg_pool2d_grad(fl_tensor *dy, fl_shape x_shape, fl_pool2d_args a) {
    if (!fl__poolable("fl_avg_pool2d_grad", dy) ||
        !fl__window_args_ok("fl_avg_pool2d_grad", a.stride, a.pad_lo, a.pad_hi, a.kernel))
        return NULL;
    bool ok = x_shape.ndim == 4 && x_shape.dim[0] == dy->shape[0] && x_shape.dim[1] == dy->shape[1];
    for (int i = 0; ok && i < 2; i++)
        ok = fl__sane(x_shape.dim[2 + i], 0) && dy->shape[2 + i] ==
             fl__windows(x_shape.dim[2 + i], a.pad_lo[i], a.pad_hi[i], a.kernel[i], a.stride[i]);
    if (!ok)
        return fl_bad("fl_avg_pool2d_grad: dy %s, x %s", FL_SHAPE_TEXT(dy),
                       FL_TEXT_OF(x_shape));
    if (!fl__by_slot(dy, FL_OP_avg_pool2d_grad)) return fl__compose_avg_pool_grad(dy, x_shape, &a);
    fl_tensor *dx = fl__image_as(fl_call_out(dy->family, x_shape, dy->dtype), dy, dy);
    return fl_run_to(FL_OP_avg_pool2d_grad, dx, dy, NULL, &a);
}

/* >>gradients ---------------------------------------------------------------------------------- */

/* The fused gradient may run: the family has the slot and nobody replaced an op of the formula. */
static bool fl__grad_by_slot(const fl_tensor *dy, fl_op slot, fl_op op) {
    const fl_backend *be = fl_family_backend(dy->family);
    return (be->any || be->op[slot]) && !be->no_grad[op];
}

/* An operand of a fused gradient: a number, or a float like dy. */
static bool fl__grad_operand(const char *fn, const fl_tensor *t, const fl_tensor *dy) {
    if (fl_absent(fn, t) || fl_absent(fn, dy)) return false;
    if (!dy->weak && (t->weak || (t->dtype == dy->dtype && t->family == dy->family &&
                                  fl_dtype_is_float(dy->dtype) && fl_same_shape(t, dy))))
        return true;
    return fl_refuse("%s: operand %s %s and dy %s %s differ, or are no floats", fn,
                   fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t), fl_dtype_name(dy->dtype),
                   FL_SHAPE_TEXT(dy));
}

FL_PRIVATE fl_tensor *fl__grad1(fl_op op, fl_tensor *x, fl_tensor *y, fl_tensor *dy,
                                fl_tensor *out) {
    if (!fl_op_get_info(op) || fl_op_get_info(op)->arity != 1)
        return fl_bad("fl_grad1: op %d has no formula of x", (int)op);
    if (!fl__grad_operand("fl_grad1", x, dy) || !fl__grad_operand("fl_grad1", y, dy)) return NULL;
    if (!fl__grad_by_slot(dy, FL_OP_grad1, op)) return NULL;
    fl_grad_args a = {op};
    fl_call c = {.op = FL_OP_grad1, .n_out = 1, .n_in = 3, .in = {x, y, dy}, .args = &a};
    c.out[0] = out ? out : fl_lay_out_as(fl_out_like(dy, dy->dtype), dy);
    return c.out[0] ? fl_run_result(&c) : fl_raise();
}

fl_tensor *fl_grad1(fl_op op, fl_tensor *x, fl_tensor *y, fl_tensor *dy) {
    return fl__grad1(op, x, y, dy, NULL);
}

bool fl_grad2(fl_op op, int want, fl_tensor *a, fl_tensor *b, fl_tensor *y, fl_tensor *dy,
              fl_tensor **da, fl_tensor **db) {
    if (!fl_op_get_info(op) || fl_op_get_info(op)->arity != 2)
        return fl_refuse("fl_grad2: op %d has no formula of a and b", (int)op);
    if (!fl__grad_operand("fl_grad2", a, dy) || !fl__grad_operand("fl_grad2", b, dy) ||
        !fl__grad_operand("fl_grad2", y, dy))
        return false;
    if (!fl__grad_by_slot(dy, FL_OP_grad2, op)) return false;
    fl_grad_args args = {op};
    fl_call c = {.op = FL_OP_grad2, .n_out = 2, .n_in = 4, .in = {a, b, y, dy}, .args = &args};
    for (int i = 0; i < 2; i++)
        if (want >> i & 1 && !(c.out[i] = fl_lay_out_as(fl_out_like(dy, dy->dtype), dy)))
            return fl_raise() != NULL;
    if (!fl_run(&c)) return fl_raise() != NULL;
    if (want & 1) *da = c.out[0];
    if (want & 2) *db = c.out[1];
    return true;
}

/* >>randomness --------------------------------------------------------------------------------- */

static uint64_t fl__rng_key;
static uint64_t fl__rng_counter;

void fl_seed(uint64_t key) {
    fl_rng_set_state((fl_rng){key, 0});
}

fl_rng fl_rng_state(void) {
    return (fl_rng){__atomic_load_n(&fl__rng_key, __ATOMIC_RELAXED),
                    __atomic_load_n(&fl__rng_counter, __ATOMIC_RELAXED)};
}

void fl_rng_set_state(fl_rng r) {
    __atomic_store_n(&fl__rng_key, r.key, __ATOMIC_RELAXED);
    __atomic_store_n(&fl__rng_counter, r.counter, __ATOMIC_RELAXED);
}

fl_rng fl_rng_take(fl_rng *rng, int64_t n) {
    uint64_t blocks =
        n > 0 ? ((uint64_t)n + 1) / 2 : 0; /* two words an element at most, four a block */
    if (!rng)
        return (fl_rng){__atomic_load_n(&fl__rng_key, __ATOMIC_RELAXED),
                        __atomic_fetch_add(&fl__rng_counter, blocks, __ATOMIC_RELAXED)};
    fl_rng at = *rng;
    rng->counter += blocks;
    return at;
}

static fl_tensor *fl__random(fl_tensor *t, fl_random_args a, fl_rng *rng) {
    if (!t) return NULL;
    a.rng = fl_rng_take(rng, fl_numel(t));
    return fl_run_to(FL_OP_random, t, NULL, NULL, &a);
}

fl_tensor *fl_uniform(fl_shape shape, double low, double high, fl_dtype dtype, fl_rng *rng) {
    if (dtype != FL_DTYPE_NONE && !fl_dtype_is_float(dtype))
        return fl_bad("fl_uniform: %s is not a float", fl_dtype_name(dtype));
    fl_random_args a = {.dist = FL_UNIFORM, .a = low, .b = high};
    return fl__random(fl__new("fl_uniform", shape, dtype, FL_F32), a, rng);
}

fl_tensor *fl_normal(fl_shape shape, double mean, double std, fl_dtype dtype, fl_rng *rng) {
    if (dtype != FL_DTYPE_NONE && !fl_dtype_is_float(dtype))
        return fl_bad("fl_normal: %s is not a float", fl_dtype_name(dtype));
    fl_random_args a = {.dist = FL_NORMAL, .a = mean, .b = std};
    return fl__random(fl__new("fl_normal", shape, dtype, FL_F32), a, rng);
}

fl_tensor *fl_randint(fl_shape shape, int64_t low, int64_t high, fl_rng *rng) {
    if (low >= high)
        return fl_bad("fl_randint: [%lld, %lld) is empty", (long long)low, (long long)high);
    fl_random_args a = {.dist = FL_INTEGER, .ia = low, .ib = high};
    return fl__random(fl__new("fl_randint", shape, FL_I64, FL_I64), a, rng);
}

static bool fl__droppable(const fl_tensor *x, double p) {
    if (fl_absent("fl_dropout", x)) return false;
    if (fl_dtype_is_float(x->dtype) && p >= 0 && p <= 1) return true;
    return fl_refuse("fl_dropout: p %g, x %s", p, fl_dtype_name(x->dtype));
}

fl_tensor *fl_dropout(fl_tensor *x, double p, fl_rng *rng) {
    if (!fl__droppable(x, p)) return NULL;
    return fl_dropout_at(x, p, fl_rng_take(rng, fl_numel(x)));
}

fl_tensor *fl_dropout_at(fl_tensor *x, double p, fl_rng state) {
    if (!fl__droppable(x, p) || !(x = fl_stored(x))) return NULL;
    fl_dropout_args a = {p, state};
    if (fl__by_slot(x, FL_OP_dropout))
        return fl_run_to(FL_OP_dropout, fl_out_like(x, x->dtype), x, NULL, &a);
    fl_scope s = fl_scope_begin();
    fl_random_args r = {.dist = FL_UNIFORM, .a = 0, .b = 1, .rng = state};
    fl_tensor *u = fl_run_to(FL_OP_random, fl_out_like(x, FL_F32), NULL, NULL, &r);
    fl_tensor *y = fl_where(fl_ge(u, fl_num(p)), fl_mul(x, fl_num(1 / (1 - p))), fl_num(0));
    return fl_scope_return(&s, y);
}

/* >>composed ----------------------------------------------------------------------------------- */

/* The gradient formulas as compositions; fl_autograd.h has them on variables, these serve recorded
   calls. */
#include "kernels/fl_words.h"
#define FL_W(op) fl_##op
#define fl_num fl_constant
#define FL__U(op, class_, need, f, g)                                                \
    static fl_tensor *fl__gradient_##op(fl_tensor *x, fl_tensor *y, fl_tensor *dy) { \
        (void)x, (void)y, (void)dy;                                                  \
        return g;                                                                    \
    }
#define FL__B(op, class_, need, f, ga, gb)                                               \
    static fl_tensor *fl__gradient_##op(int i, fl_tensor *a, fl_tensor *b, fl_tensor *y, \
                                        fl_tensor *dy) {                                 \
        (void)a, (void)b, (void)y, (void)dy;                                             \
        return i == 0 ? ga : gb;                                                         \
    }
FL_UNARY_OPS(FL__U)
FL_BINARY_OPS(FL__B)
#undef FL__U
#undef FL__B
#undef fl_num
#undef FL_W
#define FL_WORDS_END
#include "kernels/fl_words.h"

static fl_tensor *fl__gradient1(fl_op op, fl_tensor *const *in) {
    switch (op) {
#define FL__U(op, ...) \
    case FL_OP_##op:   \
        return fl__gradient_##op(in[0], in[1], in[2]);
        FL_UNARY_OPS(FL__U)
#undef FL__U
    default:
        return fl_bad("fl_grad1: op %d has no formula of x", (int)op);
    }
}

static fl_tensor *fl__gradient2(fl_op op, int i, fl_tensor *const *in) {
    switch (op) {
#define FL__B(op, ...) \
    case FL_OP_##op:   \
        return fl__gradient_##op(i, in[0], in[1], in[2], in[3]);
        FL_BINARY_OPS(FL__B)
#undef FL__B
    default:
        return fl_bad("fl_grad2: op %d has no formula of a and b", (int)op);
    }
}

/* The value of output i of an OPT op's record by its composition: what the public function does
   without the slot. */
static fl_tensor *fl__composed_value(const fl_call *c, int i, fl_tensor **index) {
    fl_tensor *const *in = c->in;
    fl_shape shape = fl_shape_of(c->out[i]);
    if (fl_op_get_info(c->op)->arity) return fl__formula(c->op, in[0], in[1]);
    switch (c->op) {
    case FL_OP_max_pool2d:
        return i ? *index : fl__compose_max_pool(in[0], shape, c->args, c->out[1]->dtype, index);
    case FL_OP_max_pool2d_grad:
        return fl__max_pool2d_grad(in[0], in[1], shape, *(const fl_pool2d_args *)c->args);
    case FL_OP_avg_pool2d:
        return fl_avg_pool2d_run(in[0], *(const fl_pool2d_args *)c->args);
    case FL_OP_avg_pool2d_grad:
        return fl_avg_pool2d_grad(in[0], shape, *(const fl_pool2d_args *)c->args);
    case FL_OP_dropout:
        return fl_dropout_at(in[0], ((const fl_dropout_args *)c->args)->p,
                             ((const fl_dropout_args *)c->args)->rng);
    case FL_OP_grad1:
        return fl__gradient1(((const fl_grad_args *)c->args)->op, in);
    case FL_OP_grad2:
        return fl__gradient2(((const fl_grad_args *)c->args)->op, i, in);
    default:
        return fl_bad("fl_%s: it has no composition", fl_op_get_info(c->op)->name);
    }
}

/* y becomes v, which may be a number or broadcast. */
static bool fl__composed_out(fl_tensor *y, fl_tensor *v) {
    if (v && v->weak) { /* a formula that is a constant */
        fl_fill_args a = {v->f64, v->i64};
        fl_call fill = {.op = FL_OP_fill, .n_out = 1, .out = {y}, .args = &a};
        return fl_run(&fill);
    }
    v = v ? fl_expand(v, fl_shape_of(y)) : NULL;
    fl_call copy = {.op = FL_OP_copy, .n_out = 1, .n_in = 1, .out = {y}, .in = {v}};
    return v && fl_run(&copy);
}

/* Compositions of the ops that headers above this one have run so far. */
static fl_compose_fn fl__compositions[FL_TABLE_OPS];

FL_PRIVATE bool fl__run_fused(const fl_call *c, fl_compose_fn compose) {
    __atomic_store_n(&fl__compositions[c->op], compose, __ATOMIC_RELAXED);
    return fl_run(c) || fl_raise();
}

/* Runs the record of an OPT op that its backend has no slot for. */
bool fl_run_composed(const fl_call *c) {
    fl_compose_fn above = fl_op_get_info(c->op)->compose;
    if (!above) above = __atomic_load_n(&fl__compositions[c->op], __ATOMIC_RELAXED);
    fl_scope s = fl_scope_begin();
    fl_tensor *index = NULL, *value[4] = {NULL};
    bool ok = !above || above(c, value);
    for (int i = 0; ok && i < c->n_out; i++) {
        if (!c->out[i]) continue;
        ok = fl__composed_out(c->out[i], above ? value[i] : fl__composed_value(c, i, &index));
    }
    fl_scope_end(&s);
    return ok;
}

/* >>printing ----------------------------------------------------------------------------------- */

#define FL__PRINT_WIDTH 75
#define FL__PRINT_EDGE 3 /* items kept at either end of a long dim */

typedef struct fl__printer {
    const fl_tensor *t;
    const char *data; /* element [0, ...] */
    char *buf;
    size_t size;
    int64_t length; /* of the whole text, as snprintf counts */
    bool summary, integral, scientific;
    int width;       /* of an element */
    double max, min; /* of the absolute finite nonzero values */
} fl__printer;

__attribute__((format(printf, 2, 3))) static void fl__emit(fl__printer *pr, const char *format,
                                                           ...) {
    va_list args;
    va_start(args, format);
    size_t at = (size_t)pr->length < pr->size ? (size_t)pr->length : pr->size;
    pr->length += vsnprintf(pr->size ? pr->buf + at : NULL, pr->size - at, format, args);
    va_end(args);
}

/* The element `at` elements from the first one, as text; the value as a float in *f. */
static int fl__element_text(const fl__printer *pr, int64_t at, char *text, size_t size, double *f) {
    const char *p = pr->data + at * (int64_t)fl_dtype_size(pr->t->dtype);
    const fl_number v = fl_number_load(pr->t->dtype, p);
    *f = v.f;
    if (pr->t->dtype == FL_B8) return snprintf(text, size, "%s", v.i ? "True" : "False");
    if (pr->t->dtype == FL_U64) return snprintf(text, size, "%llu", (unsigned long long)v.i);
    if (!v.real) return snprintf(text, size, "%lld", (long long)v.i);
    if (!isfinite(*f))
        return snprintf(text, size, "%s", isnan(*f) ? "nan" : *f > 0 ? "inf" : "-inf");
    if (pr->scientific) return snprintf(text, size, "%.4e", *f);
    return pr->integral ? snprintf(text, size, "%.0f.", *f) : snprintf(text, size, "%.4f", *f);
}

/* Index of the k-th item that is shown of a dim; -1 stands for "...". *count: items shown, the dots
   included. */
static int64_t fl__shown(const fl__printer *pr, int64_t n, int64_t k, int64_t *count) {
    bool cut = pr->summary && n > 2 * FL__PRINT_EDGE;
    *count = cut ? 2 * FL__PRINT_EDGE + 1 : n;
    if (!cut || k < FL__PRINT_EDGE) return k;
    return k == FL__PRINT_EDGE ? -1 : n - (2 * FL__PRINT_EDGE + 1 - k);
}

typedef void (*fl__element_fn)(fl__printer *pr, int64_t at);
static void fl__each_shown(fl__printer *pr, int dim, int64_t at, fl__element_fn fn) {
    if (dim == pr->t->ndim) {
        fn(pr, at);
        return;
    }
    if (fl_numel(pr->t) == 0) return;
    int64_t count = 1;
    for (int64_t k = 0; k < count; k++) {
        int64_t i = fl__shown(pr, pr->t->shape[dim], k, &count);
        if (k < count && i >= 0) fl__each_shown(pr, dim + 1, at + i * pr->t->stride[dim], fn);
    }
}

static void fl__measure_value(fl__printer *pr, int64_t at) {
    char text[64];
    double f = 0;
    fl__element_text(pr, at, text, sizeof text, &f);
    if (!isfinite(f) || f == 0) return;
    if (f != floor(f)) pr->integral = false;
    if (fabs(f) > pr->max) pr->max = fabs(f);
    if (fabs(f) < pr->min) pr->min = fabs(f);
}

static void fl__measure_width(fl__printer *pr, int64_t at) {
    char text[400];
    double f;
    int n = fl__element_text(pr, at, text, sizeof text, &f);
    if (n > pr->width) pr->width = n;
}

static void fl__print_dim(fl__printer *pr, int dim, int64_t at, int indent) {
    const fl_tensor *t = pr->t;
    char text[400];
    double f;
    if (dim == t->ndim) {
        fl__element_text(pr, at, text, sizeof text, &f);
        fl__emit(pr, "%*s", t->ndim ? pr->width : 0, text);
        return;
    }
    bool last = dim == t->ndim - 1;
    int64_t per_line = (FL__PRINT_WIDTH - indent) / (pr->width + 2), count = 1;
    if (per_line < 1) per_line = 1;
    fl__emit(pr, "[");
    for (int64_t k = 0; k < count; k++) {
        int64_t i = fl__shown(pr, t->shape[dim], k, &count);
        if (k >= count) break;
        if (k && last)
            fl__emit(pr, k % per_line ? ", " : ",\n%*s", indent + 1, "");
        else if (k) {
            fl__emit(pr, ",");
            for (int j = dim; j < t->ndim - 1; j++) fl__emit(pr, "\n");
            fl__emit(pr, "%*s", indent + 1, "");
        }
        if (i < 0)
            fl__emit(pr, "...");
        else
            fl__print_dim(pr, dim + 1, at + i * t->stride[dim], indent + 1);
    }
    fl__emit(pr, "]");
}

int64_t fl_format(fl_tensor *t, char *buf, size_t size) {
    if (fl_absent("fl_format", t)) return -1;
    fl_scope s = fl_scope_begin();
    fl__printer pr = {.buf = buf, .size = size, .integral = true, .min = (double)INFINITY};
    fl_dtype dtype = t->dtype;
    pr.t = t = fl__unpacked(fl_stored(t));
    pr.data = t ? fl_map(t, FL_READ) : NULL;
    if (pr.data) {
        pr.summary = fl_numel(t) > 1000;
        fl__each_shown(&pr, 0, 0, fl__measure_value);
        double low = pr.integral ? 0 : 1e-4;
        pr.scientific =
            fl_dtype_is_float(t->dtype) && (pr.max > 1000 * pr.min || pr.max > 1e8 || pr.min < low);
        fl__each_shown(&pr, 0, 0, fl__measure_width);
        fl__emit(&pr, "tensor(");
        if (fl_numel(t) == 0 && t->ndim != 1)
            fl__emit(&pr, "[], size=%s", FL_SHAPE_TEXT(t));
        else
            fl__print_dim(&pr, 0, 0, 7);
        bool plain = dtype == FL_F32 || dtype == FL_I64 || dtype == FL_B8;
        if (!plain) fl__emit(&pr, ", dtype=%s", fl_dtype_name(dtype));
        fl__emit(&pr, ")");
        fl_unmap(t, FL_READ);
    }
    fl_scope_end(&s);
    return pr.data ? pr.length : -1;
}

bool fl_print(fl_tensor *t) {
    char small[4096], *text = small;
    int64_t n = fl_format(t, small, sizeof small);
    if (n < 0) return false;
    if (n >= (int64_t)sizeof small) {
        text = fl__alloc((size_t)n + 1);
        if (!text) return fl_raise() != NULL;
        fl_format(t, text, (size_t)n + 1);
    }
    bool ok = printf("%s\n", text) >= 0;
    if (text != small) fl__free(text);
    return ok || fl_fail("fl_print: cannot write to stdout");
}

#endif /* FL_TENSOR_OPS_IMPL */
#endif

/* MIT licence: see LICENSE. */
