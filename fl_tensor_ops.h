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
#include "fl/ops/copy.h"
#include "fl/ops/create.h"
#include "fl/ops/index.h"
#include "fl/ops/random.h"
#include "fl/ops/reduce.h"
#include "fl/ops/view.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "kernels/fl_math.h"

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

/* >>composed ----------------------------------------------------------------------------------- */

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
    case FL_OP_grad1:
        return fl__formula_on(fl_op_program(((const fl_grad_args *)c->args)->op, FL_PROGRAM_DA), in);
    case FL_OP_grad2:
        return fl__formula_on(fl_op_program(((const fl_grad_args *)c->args)->op,
                                            i ? FL_PROGRAM_DB : FL_PROGRAM_DA), in);
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

#endif /* FL_TENSOR_OPS_IMPL */
#endif

/* MIT licence: see LICENSE. */
