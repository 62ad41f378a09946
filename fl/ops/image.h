/* fl/ops/image.h - convolution, pooling and sampling of 1 to 3 spatial dims

   Prototypes and formulas stand in fl_composed.h. Pooling and resampling go axis by axis: the taps
   of an axis say which elements of it each output element looks at, and with what weights. */
#ifndef FL_T
#include "../../fl_composed.h"
#if defined(FL_IMPL_ONLY_OPS_IMAGE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_IMAGE_IMPL
#define FL_OPS_IMAGE_IMPL
#include "index.h"
#include "reduce.h"
#include <math.h>
#include <string.h>
#define FL_TEXT "image.h"
#include "expand.h"
#endif
#endif
#else /* the text: see expand.h */

#ifdef FL_ON_TENSORS
/* >>axes */

/* How the `out` elements of a result look at the n of an axis: through k taps each. */
typedef struct fl__axis_map fl__axis_map;
struct fl__axis_map {
    int64_t n, out, k;
    int64_t stride, lo, hi, dilation; /* sliding windows */
    bool ignore_pad;                  /* weights: one over the taps inside */
    bool align;                       /* interpolation: the corners stay */
    /* The place of tap j of element o, outside [0, n) where there is none, and its weight. */
    int64_t (*tap)(const fl__axis_map *m, int64_t o, int64_t j, double *weight);
};

/* The taps as tensors, [out * k] and [out, k]. */
typedef struct fl__axis_taps {
    int64_t out, k;
    fl_tensor *at, *inside, *weight; /* inside: NULL if all are */
} fl__axis_taps;

static int64_t fl__tap_window(const fl__axis_map *m, int64_t o, int64_t j, double *weight) {
    int64_t start = o * m->stride - m->lo, count = m->k;
    if (m->ignore_pad) {
        int64_t before = start < 0 ? -start : 0, end = start + m->k;
        count -= before + (end > m->n ? end - m->n : 0);
    }
    *weight = 1 / (double)count;
    return start + j * m->dilation;
}

/* Element o covers [o n / out, (o + 1) n / out), rounded outwards. */
static int64_t fl__tap_adaptive(const fl__axis_map *m, int64_t o, int64_t j, double *weight) {
    int64_t start = o * m->n / m->out, end = ((o + 1) * m->n + m->out - 1) / m->out;
    *weight = 1 / (double)(end - start);
    return start + j < end ? start + j : -1;
}

static int64_t fl__tap_nearest(const fl__axis_map *m, int64_t o, int64_t j, double *weight) {
    (void)j;
    *weight = 1;
    return o * m->n / m->out;
}

/* Where element o lies on the axis. */
static double fl__tap_place(const fl__axis_map *m, int64_t o) {
    if (m->align) return m->out > 1 ? (double)o * (double)(m->n - 1) / (double)(m->out - 1) : 0;
    return ((double)o + 0.5) * ((double)m->n / (double)m->out) - 0.5;
}

static int64_t fl__tap_linear(const fl__axis_map *m, int64_t o, int64_t j, double *weight) {
    double place = fl__tap_place(m, o), from = place > 0 ? floor(place) : 0;
    double part = place > 0 ? place - from : 0;
    int64_t at = (int64_t)from + j;
    *weight = j ? part : 1 - part;
    return at < m->n ? at : m->n - 1;
}

/* Keys' kernel of a = -0.75 at the distance d, 0 <= d <= 2. */
static double fl__cubic(double d) {
    const double a = -0.75;
    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
}

static int64_t fl__tap_cubic(const fl__axis_map *m, int64_t o, int64_t j, double *weight) {
    double place = fl__tap_place(m, o), from = floor(place);
    int64_t at = (int64_t)from - 1 + j;
    *weight = fl__cubic(fabs(place - from + 1 - (double)j));
    return at < 0 ? 0 : at < m->n ? at : m->n - 1;
}

/* The taps of a map, for operands like x. */
static bool fl__taps_of(const fl__axis_map *m, fl_tensor *x, fl__axis_taps *t) {
    fl_shape flat = FL_SHAPE(m->out, m->k);
    int64_t count = fl_shape_numel(flat);
    bool all = true;
    *t = (fl__axis_taps){.out = m->out, .k = m->k};
    if (count < 0 || count > INT32_MAX)
        return fl_refuse("fl_image: %lld windows of %lld elements", (long long)m->out,
                       (long long)m->k);
    int64_t *at = fl__alloc((size_t)count * (sizeof *at + sizeof(double) + 1) + 1);
    if (!at) return fl_raise() != NULL;
    double *weight = (double *)(at + count);
    unsigned char *inside = (unsigned char *)(weight + count);
    for (int64_t i = 0; i < count; i++) {
        at[i] = m->tap(m, i / m->k, i % m->k, &weight[i]);
        inside[i] = at[i] >= 0 && at[i] < m->n;
        if (!inside[i]) at[i] = 0, all = false;
    }
    const char *family = fl_family_name(x);
    t->at = fl_to(fl_from_host(at, FL_SHAPE(count), FL_I64), family);
    t->weight = fl_to(fl_cast(fl_from_host(weight, flat, FL_F64), x->dtype), family);
    t->inside = all ? NULL : fl_to(fl_from_host(inside, flat, FL_B8), family);
    fl__free(at);
    return t->at && t->weight && (all || t->inside);
}

/* A table of the taps, [out, k], beside `after` further dims. */
static fl_tensor *fl__taps_table(fl_tensor *table, int after) {
    fl_shape s = fl_shape_of(table);
    for (int i = 0; i < after; i++) s.dim[s.ndim++] = 1;
    return fl_reshape(table, s);
}

/* Entry i of settings per spatial dim: 0 is the dim's before. */
static int64_t fl__setting(const int64_t *list, int i, int64_t otherwise) {
    while (i > 0 && !list[i]) i--;
    return fl_option_int(list[i], otherwise);
}

static bool fl__in_range(int64_t v, int64_t low) {
    return v >= low && v <= INT32_MAX;
}

/* Places a sliding window on an axis of n elements; false without an error if it does not fit. */
static bool fl__slide(fl__axis_map *m, int64_t n, int64_t k, int64_t stride, int64_t pad,
                      int64_t dilation) {
    if (!fl__in_range(n, 1) || !fl__in_range(k, 1) || !fl__in_range(stride, 1) ||
        !fl__in_range(pad, FL_SAME) || !fl__in_range(dilation, 1))
        return false;
    int64_t window = dilation * (k - 1) + 1, lo = pad, hi = pad;
    if (pad == FL_SAME) {
        int64_t all = ((n + stride - 1) / stride - 1) * stride + window - n;
        lo = all > 0 ? all / 2 : 0;
        hi = all > 0 ? all - lo : 0;
    }
    *m = (fl__axis_map){.n = n, .k = k, .stride = stride, .lo = lo, .hi = hi,
                        .dilation = dilation, .tap = fl__tap_window};
    m->out = n + lo + hi < window ? 0 : (n + lo + hi - window) / stride + 1;
    return m->out > 0;
}

/* True for a float x [n, c, spatial...] of 1 to 3 spatial dims, none of them empty. */
static bool fl__is_image(const char *fn, const fl_tensor *x) {
    bool ok = x->ndim >= 3 && x->ndim <= 5 && fl_dtype_is_float(x->dtype) && !x->weak;
    for (int i = 2; i < x->ndim; i++) ok = ok && fl__in_range(x->shape[i], 1);
    if (ok) return true;
    return fl_refuse("%s: x is %s of shape %s, not a float [n, c, 1 to 3 dims]", fn,
                   fl_dtype_name(x->dtype), FL_SHAPE_TEXT(x));
}
#endif

/* >>taps */

/* The taps of each element beside it: [..., n, ...] -> [..., out, k, ...]. */
static FL_T *FL_W(_image_spread)(FL_T *x, int axis, const fl__axis_taps *t, double outside) {
    if (!x || !(x = FL_W(index_select)(x, axis, t->at))) return NULL;
    fl_shape s = fl_shape_of(FL_VALUE(x));
    int after = s.ndim++ - axis - 1;
    memmove(&s.dim[axis + 2], &s.dim[axis + 1], (size_t)after * sizeof *s.dim);
    s.dim[axis] = t->out;
    s.dim[axis + 1] = t->k;
    FL_T *y = FL_W(reshape)(x, s);
    if (!y || !t->inside) return y;
    return SELECT(FL_OF(fl__taps_table(t->inside, after)), y, CONST(outside));
}

/* Weighted sums along an axis. */
static FL_T *FL_W(_resample)(FL_T *x, int axis, const fl__axis_map *m) {
    fl__axis_taps t;
    if (!x || !fl__taps_of(m, FL_VALUE(x), &t)) return NULL;
    int after = FL_VALUE(x)->ndim - axis - 1;
    if (m->tap == fl__tap_nearest) return FL_W(index_select)(x, axis, t.at);
    FL_T *y = FL_W(_image_spread)(x, axis, &t, 0);
    y = y ? MUL(y, FL_OF(fl__taps_table(t.weight, after))) : NULL;
    return y ? FL_W(sum)(y, FL_AXES(axis + 1)) : NULL;
}

static FL_T *FL_W(_resample_all)(FL_T *x, const fl__axis_map *m) {
    fl_scope s = fl_scope_begin();
    FL_T *given = x;
    x = FL_W(_widened)(x);
    for (int i = 0; x && i < FL_VALUE(given)->ndim - 2; i++) x = FL_W(_resample)(x, 2 + i, &m[i]);
    return FL_GIVE(&s, FL_W(_narrowed)(x, given));
}

/* Largest taps, the last axis first, so that the first maximum in row-major order wins; *place, i64
   of x's shape, follows. */
static FL_T *FL_W(_largest)(FL_T *x, int axis, const fl__axis_map *m, fl_tensor **place) {
    fl__axis_taps t;
    if (!x || !fl__taps_of(m, FL_VALUE(x), &t)) return NULL;
    if (!(x = FL_W(_image_spread)(x, axis, &t, -(double)INFINITY))) return NULL;
    fl_tensor *best = fl_argmax(FL_VALUE(x), axis + 1, true);
    t.inside = NULL;
    *place = fl__image_spread(*place, axis, &t, 0);
    if (!best || !*place) return NULL;
    if (!(*place = fl_squeeze(fl_gather(*place, axis + 1, best), axis + 1))) return NULL;
    x = FL_W(gather)(x, axis + 1, best);
    return x ? FL_W(reshape)(x, fl_shape_of(*place)) : NULL;
}

static FL_T *FL_W(_largest_all)(FL_T *x, const fl__axis_map *m, fl_tensor **index) {
    fl_scope s = fl_scope_begin();
    fl_shape shape = fl_shape_of(FL_VALUE(x)), image = shape;
    int64_t count = 1;
    if (index) *index = NULL;
    image.dim[0] = image.dim[1] = 1;
    for (int i = 2; i < shape.ndim; i++) count *= shape.dim[i];
    fl_tensor *place = fl_reshape(fl_arange(0, (double)count, 1, FL_I64), image);
    place = fl_to(place, fl_family_name(FL_VALUE(x)));
    place = place ? fl_expand(place, shape) : NULL;
    for (int i = shape.ndim - 3; x && i >= 0; i--) x = FL_W(_largest)(x, 2 + i, &m[i], &place);
    if (x && index) *index = FL_PROMOTE(&s, place);
    return FL_GIVE(&s, !index || *index ? x : NULL);
}

/* >>convolution: 1d is conv2d of one row. 3d is one conv2d of the planes: the depths under the
   kernel become channels; transposed, the products' depths add up where they overlap. */

#ifdef FL_ON_TENSORS
/* True for floats x and w of the same 3 to 5 dims; the settings' ranges are checked later. */
static bool fl__conv_operands(const char *fn, fl_tensor *x, fl_tensor *w) {
    if (!fl__is_image(fn, x)) return false;
    if (w->ndim == x->ndim && w->dtype == x->dtype) return true;
    return fl_refuse("%s: x %s %s and w %s %s: both need the same dims and dtype", fn,
                   fl_dtype_name(x->dtype), FL_SHAPE_TEXT(x), fl_dtype_name(w->dtype),
                   FL_SHAPE_TEXT(w));
}

static bool fl__conv_maps(fl_tensor *x, fl_tensor *w, fl_conv_opts o, fl__axis_map *m) {
    if (!fl__conv_operands("fl_conv", x, w)) return false;
    for (int i = 0; i < x->ndim - 2; i++) {
        int64_t stride = fl__setting(o.stride, i, 1), pad = fl__setting(o.pad, i, 0);
        int64_t dilation = fl__setting(o.dilation, i, 1), k = w->shape[2 + i];
        if (!fl__slide(&m[i], x->shape[2 + i], k, stride, pad, dilation))
            return fl_refuse("fl_conv: x %s, w %s, dim %d: stride %lld, pad %lld, dilation %lld",
                           FL_SHAPE_TEXT(x), FL_SHAPE_TEXT(w), 2 + i, (long long)stride,
                           (long long)pad, (long long)dilation);
    }
    return true;
}

/* Of the result's axes: conv with these maps takes it back to x's shape. */
static bool fl__conv_transpose_maps(fl_tensor *x, fl_tensor *w, fl_conv_opts o, fl__axis_map *m) {
    if (!fl__conv_operands("fl_conv_transpose", x, w)) return false;
    for (int i = 0; i < x->ndim - 2; i++) {
        int64_t stride = fl__setting(o.stride, i, 1), pad = fl__setting(o.pad, i, 0);
        int64_t dilation = fl__setting(o.dilation, i, 1), k = w->shape[2 + i];
        int64_t more = fl__setting(o.output_pad, i, 0);
        bool ok = fl__in_range(stride, 1) && fl__in_range(pad, 0) && fl__in_range(dilation, 1) &&
                  fl__in_range(k, 1) && more >= 0 && more < stride;
        int64_t window = ok ? dilation * (k - 1) + 1 : 0;
        int64_t n = ok ? (x->shape[2 + i] - 1) * stride - 2 * pad + window + more : 0;
        if (!ok || !fl__slide(&m[i], n, k, stride, pad, dilation))
            return fl_refuse("fl_conv_transpose: x %s, w %s, dim %d: stride %lld, pad %lld, dilation "
                           "%lld, output_pad %lld (less than the stride)", FL_SHAPE_TEXT(x),
                           FL_SHAPE_TEXT(w), 2 + i, (long long)stride, (long long)pad,
                           (long long)dilation, (long long)more);
    }
    return true;
}

/* The last two of nd axes, for conv2d; of one axis: beside a row of height 1. */
static fl_conv2d_args fl__conv2d_args_of(const fl__axis_map *m, int nd, int64_t groups) {
    fl_conv2d_args a = {{1, 1}, {0, 0}, {0, 0}, {1, 1}, groups};
    for (int i = nd > 1 ? 0 : 1; i < 2; i++) {
        const fl__axis_map *from = &m[nd - 2 + i];
        a.stride[i] = from->stride;
        a.pad_lo[i] = from->lo;
        a.pad_hi[i] = from->hi;
        a.dilation[i] = from->dilation;
    }
    return a;
}

/* Channels of a bias before nd spatial dims. */
static fl_shape fl__bias_shape(int64_t channels, int nd) {
    fl_shape s = {nd + 1, {channels, 1, 1, 1}};
    return s;
}

static bool fl__bias_ok(const char *fn, fl_tensor *bias, fl_tensor *x, int64_t channels) {
    if (bias->ndim == 1 && bias->shape[0] == channels && bias->dtype == x->dtype) return true;
    return fl_refuse("%s: bias %s %s, not %s [%lld]", fn, fl_dtype_name(bias->dtype),
                   FL_SHAPE_TEXT(bias), fl_dtype_name(x->dtype), (long long)channels);
}
#endif

/* [n, c, d, k, h, w] -> [n d, c k, h, w] and back: depths as images, taps as channels */
static FL_T *FL_W(_image_planes)(FL_T *x) {
    if (!x || !(x = FL_W(permute)(x, 6, (int[]){0, 2, 1, 3, 4, 5}))) return NULL;
    const int64_t *d = FL_VALUE(x)->shape;
    return FL_W(reshape)(x, FL_SHAPE(d[0] * d[1], d[2] * d[3], d[4], d[5]));
}
static FL_T *FL_W(_volumes)(FL_T *x, int64_t n, int64_t depth, int64_t k) {
    if (!x) return NULL;
    const int64_t *d = FL_VALUE(x)->shape;
    x = FL_W(reshape)(x, FL_SHAPE(n, depth, d[1] / k, k, d[2], d[3]));
    return x ? FL_W(permute)(x, 6, (int[]){0, 2, 1, 3, 4, 5}) : NULL;
}

/* [a, b, l] -> [a, b, 1, l];  [a, b, k, h, w] -> [a, b k, h, w] */
static FL_T *FL_W(_as_2d)(FL_T *x) {
    fl_shape s = fl_shape_of(FL_VALUE(x));
    const int64_t *d = s.dim;
    if (s.ndim == 4) return x;
    if (s.ndim == 3) return FL_W(reshape)(x, FL_SHAPE(d[0], d[1], 1, d[2]));
    return FL_W(reshape)(x, FL_SHAPE(d[0], d[1] * d[2], d[3], d[4]));
}

FL_T *FL_W(conv_opt)(FL_T *x, FL_T *w, FL_T *bias, fl_conv_opts o) {
    fl__axis_map m[3];
    fl__axis_taps t;
    if (FL_ABSENT("conv", x) || FL_ABSENT("conv", w)) return NULL;
    fl_tensor *image = FL_VALUE(x);
    if (!fl__conv_maps(image, FL_VALUE(w), o, m)) return NULL;
    int nd = image->ndim - 2;
    int64_t groups = fl_option_int(o.groups, 1);
    fl_scope s = fl_scope_begin();
    if (nd == 3) x = fl__taps_of(m, image, &t) ? FL_W(_image_planes)(FL_W(_image_spread)(x, 2, &t, 0)) : NULL;
    else x = FL_W(_as_2d)(x);
    w = x ? FL_W(_as_2d)(w) : NULL;
    FL_T *y = w ? FL_W(conv2d_run)(x, w, bias, fl__conv2d_args_of(m, nd, groups)) : NULL;
    if (!y || nd == 2) return FL_GIVE(&s, y);
    if (nd == 1) return FL_GIVE(&s, FL_W(squeeze)(y, 2));
    y = FL_W(_volumes)(y, image->shape[0], m[0].out, 1);
    return FL_GIVE(&s, y ? FL_W(squeeze)(y, 3) : NULL);
}

/* The adjoint of _spread: [..., out, k, ...] -> [..., m.n, ...], sums. */
static FL_T *FL_W(_folded)(FL_T *x, int axis, const fl__axis_map *m) {
    fl__axis_taps t;
    if (!x || !fl__taps_of(m, FL_VALUE(x), &t)) return NULL;
    int after = FL_VALUE(x)->ndim - axis - 2;
    if (t.inside) x = SELECT(FL_OF(fl__taps_table(t.inside, after)), x, CONST(0));
    if (!x) return NULL;
    fl_shape flat = fl_shape_of(FL_VALUE(x)), all, column = {--flat.ndim, {0}};
    memmove(&flat.dim[axis + 1], &flat.dim[axis + 2], (size_t)after * sizeof *flat.dim);
    flat.dim[axis] = t.out * t.k;
    for (int i = 0; i < flat.ndim; i++) column.dim[i] = i == axis ? flat.dim[axis] : 1;
    all = flat;
    all.dim[axis] = m->n;
    fl_tensor *at = fl_reshape(t.at, column);
    fl_tensor *zeros = fl_to(fl_zeros(all, FL_VALUE(x)->dtype), fl_family_name(FL_VALUE(x)));
    at = at && zeros ? fl_expand(at, flat) : NULL;
    x = at ? FL_W(reshape)(x, flat) : NULL;
    return x ? FL_W(scatter_add)(FL_OF(zeros), axis, at, x) : NULL;
}

/* The adjoint of conv's planes: x's depths as images. */
static FL_T *FL_W(_depths)(FL_T *x) {
    fl_shape s = fl_shape_of(FL_VALUE(x));
    const int64_t *d = s.dim;
    return FL_W(_image_planes)(FL_W(reshape)(x, FL_SHAPE(d[0], d[1], d[2], 1, d[3], d[4])));
}

FL_T *FL_W(conv_transpose_opt)(FL_T *x, FL_T *w, FL_T *bias, fl_conv_opts o) {
    fl__axis_map m[3];
    if (FL_ABSENT("conv_transpose", x) || FL_ABSENT("conv_transpose", w)) return NULL;
    fl_tensor *image = FL_VALUE(x), *kernel = FL_VALUE(w);
    if (!fl__conv_transpose_maps(image, kernel, o, m)) return NULL;
    int nd = image->ndim - 2;
    int64_t groups = fl_option_int(o.groups, 1);
    if (!fl__in_range(groups, 1) || kernel->shape[1] > INT32_MAX)
        return fl_bad("fl_conv_transpose: w %s in %lld groups", FL_SHAPE_TEXT(kernel),
                       (long long)groups);
    int64_t depth = nd == 3 ? kernel->shape[2] : 1, channels = kernel->shape[1] * groups;
    if (bias && !fl__bias_ok("fl_conv_transpose", FL_VALUE(bias), image, channels)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *given = x; /* half floats sum up in f32 */
    x = FL_W(_widened)(x);
    w = x ? FL_W(_widened)(w) : NULL;
    if (w) x = nd == 3 ? FL_W(_depths)(x) : FL_W(_as_2d)(x);
    w = w && x ? FL_W(_as_2d)(w) : NULL;
    if (!w) return FL_GIVE(&s, NULL);
    fl_shape to = FL_SHAPE(FL_VALUE(x)->shape[0], channels * depth, nd > 1 ? m[nd - 2].n : 1,
                           m[nd - 1].n);
    FL_T *y = FL_W(conv2d_grad_input)(x, w, to, fl__conv2d_args_of(m, nd, groups));
    if (nd == 3) {
        y = FL_W(_volumes)(y, image->shape[0], image->shape[2], depth);
        y = FL_W(_folded)(y, 2, m);
    } else if (nd == 1 && y) y = FL_W(squeeze)(y, 2);
    if (!y || !bias) return FL_GIVE(&s, FL_W(_narrowed)(y, given));
    FL_T *column = FL_W(reshape)(bias, fl__bias_shape(channels, nd));
    return FL_GIVE(&s, column ? FL_W(_narrowed)(ADD(y, column), given) : NULL);
}

/* >>pooling */

#ifdef FL_ON_TENSORS
static bool fl__pool_maps(const char *fn, fl_tensor *x, fl_pool_opts o, fl__axis_map *m) {
    if (!fl__is_image(fn, x)) return false;
    for (int i = 0; i < x->ndim - 2; i++) {
        int64_t k = fl__setting(o.kernel, i, 0), stride = fl__setting(o.stride, i, k);
        int64_t pad = fl__setting(o.pad, i, 0);
        if (!fl__slide(&m[i], x->shape[2 + i], k, stride, pad, 1) || m[i].hi > k / 2)
            return fl_refuse("%s: x %s, dim %d: window %lld, stride %lld, pad %lld (at most half a "
                           "window)", fn, FL_SHAPE_TEXT(x), 2 + i, (long long)k,
                           (long long)stride, (long long)pad);
        m[i].ignore_pad = o.ignore_pad;
    }
    return true;
}

/* Maps to the sizes asked for, with `like`'s taps; none: as many as a share needs. */
static bool fl__size_maps(const char *fn, fl_tensor *x, fl_shape size, fl__axis_map *m,
                          fl__axis_map like) {
    char text[128];
    bool ok = size.ndim == x->ndim - 2;
    if (!fl__is_image(fn, x)) return false;
    for (int i = 0; ok && i < size.ndim; i++) ok = fl__in_range(size.dim[i], 1);
    if (!ok)
        return fl_refuse("%s: size %s for x %s", fn, fl_shape_text(size, text, sizeof text),
                       FL_SHAPE_TEXT(x));
    for (int i = 0; i < size.ndim; i++) {
        int64_t n = x->shape[2 + i], out = size.dim[i];
        m[i] = like;
        m[i].n = n;
        m[i].out = out;
        if (!like.k) m[i].k = n % out ? n / out + 2 : n / out; /* one more at either end */
    }
    return true;
}

/* All axes of an image behind its channels, which stay as 1. */
static fl_axes fl__spatial_axes(const fl_tensor *image) {
    fl_axes a = {.n = image->ndim - 2, .keepdim = true};
    for (int i = 0; i < a.n; i++) a.axis[i] = 2 + i;
    return a;
}
#endif

FL_T *FL_W(max_pool_opt)(FL_T *x, fl_tensor **index, fl_pool_opts o) {
    fl__axis_map m[3];
    if (FL_ABSENT("max_pool", x) || !fl__pool_maps("fl_max_pool", FL_VALUE(x), o, m)) return NULL;
    return FL_W(_largest_all)(x, m, index);
}

FL_T *FL_W(avg_pool_opt)(FL_T *x, fl_pool_opts o) {
    fl__axis_map m[3];
    if (FL_ABSENT("avg_pool", x) || !fl__pool_maps("fl_avg_pool", FL_VALUE(x), o, m)) return NULL;
    return FL_W(_resample_all)(x, m);
}

FL_T *FL_W(adaptive_max_pool)(FL_T *x, fl_shape size, fl_tensor **index) {
    fl__axis_map m[3], like = {.tap = fl__tap_adaptive};
    if (FL_ABSENT("adaptive_max_pool", x) ||
        !fl__size_maps("fl_adaptive_max_pool", FL_VALUE(x), size, m, like))
        return NULL;
    return FL_W(_largest_all)(x, m, index);
}

FL_T *FL_W(adaptive_avg_pool)(FL_T *x, fl_shape size) {
    fl__axis_map m[3], like = {.tap = fl__tap_adaptive};
    if (FL_ABSENT("adaptive_avg_pool", x) ||
        !fl__size_maps("fl_adaptive_avg_pool", FL_VALUE(x), size, m, like))
        return NULL;
    const fl_tensor *t = FL_VALUE(x);
    bool same = true, whole = true;
    for (int i = 0; i < size.ndim; i++) {
        same = same && size.dim[i] == t->shape[2 + i];
        whole = whole && size.dim[i] == 1;
    }
    if (same) return x;
    return whole ? FL_W(mean)(x, fl__spatial_axes(t)) : FL_W(_resample_all)(x, m);
}

FL_T *FL_W(lp_pool_opt)(FL_T *x, double p, fl_pool_opts o) {
    fl__axis_map m[3];
    double count = 1;
    o.ignore_pad = false;
    if (FL_ABSENT("lp_pool", x) || !fl__pool_maps("fl_lp_pool", FL_VALUE(x), o, m)) return NULL;
    if (!(p > 0)) return fl_bad("fl_lp_pool: p = %g is not above 0", p);
    for (int i = 0; i < FL_VALUE(x)->ndim - 2; i++) count *= (double)m[i].k;
    fl_scope s = fl_scope_begin();
    FL_T *given = x;
    if (!(x = FL_W(_widened)(x))) return FL_GIVE(&s, NULL);
    FL_T *powers = POW(x, CONST(p)), *mean = powers ? FL_W(_resample_all)(powers, m) : NULL;
    FL_T *y = mean ? POW(MUL(mean, CONST(count)), CONST(1 / p)) : NULL;
    return FL_GIVE(&s, FL_W(_narrowed)(y, given));
}

FL_T *FL_W(interpolate)(FL_T *x, fl_shape size, fl_interpolation mode, bool align) {
    static const fl__axis_map modes[] = {{.k = 1, .tap = fl__tap_nearest},
                                         {.k = 2, .tap = fl__tap_linear},
                                         {.k = 4, .tap = fl__tap_cubic},
                                         {.k = 0, .tap = fl__tap_adaptive}};
    fl__axis_map m[3], like;
    if (FL_ABSENT("interpolate", x)) return NULL;
    if ((int)mode < FL_NEAREST || (int)mode > FL_AREA)
        return fl_bad("fl_interpolate: there is no mode %d", (int)mode);
    like = modes[mode];
    like.align = align;
    if (!fl__size_maps("fl_interpolate", FL_VALUE(x), size, m, like)) return NULL;
    return FL_W(_resample_all)(x, m);
}

/* >>windows */

#ifdef FL_ON_TENSORS
static bool fl__window_maps(const char *fn, fl_shape size, fl_window_opts o, fl__axis_map *m) {
    char text[128];
    bool ok = size.ndim >= 1 && size.ndim <= 3;
    for (int i = 0; ok && i < size.ndim; i++)
        ok = fl__slide(&m[i], size.dim[i], fl__setting(o.kernel, i, 0),
                       fl__setting(o.stride, i, 1), fl__setting(o.pad, i, 0),
                       fl__setting(o.dilation, i, 1));
    if (ok) return true;
    return fl_refuse("%s: the windows do not fit an image of %s", fn,
                   fl_shape_text(size, text, sizeof text));
}

/* The axes n, c, out and kernel of each of nd dims in turn, sorted: n, c, kernels, outs. */
static void fl__window_order(int nd, int *sorted, int *back) {
    for (int i = 0; i < 2 + 2 * nd; i++)
        sorted[i] = i < 2 ? i : i < 2 + nd ? 2 * i - 1 : 2 * (i - nd) - 2;
    for (int i = 0; i < 2 + 2 * nd; i++) back[sorted[i]] = i;
}
#endif

FL_T *FL_W(unfold_opt)(FL_T *x, fl_window_opts o) {
    fl__axis_map m[3];
    fl__axis_taps t;
    int sorted[FL_MAX_DIMS], back[FL_MAX_DIMS];
    if (FL_ABSENT("unfold", x) || !fl__is_image("fl_unfold", FL_VALUE(x))) return NULL;
    fl_shape in = fl_shape_of(FL_VALUE(x)), size = {in.ndim - 2, {0}};
    for (int i = 0; i < size.ndim; i++) size.dim[i] = in.dim[2 + i];
    if (!fl__window_maps("fl_unfold", size, o, m)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_shape out = FL_SHAPE(in.dim[0], in.dim[1], 1);
    for (int i = size.ndim - 1; x && i >= 0; i--) {
        x = fl__taps_of(&m[i], FL_VALUE(x), &t) ? FL_W(_image_spread)(x, 2 + i, &t, 0) : NULL;
        out.dim[1] *= m[i].k;
        out.dim[2] *= m[i].out;
    }
    fl__window_order(size.ndim, sorted, back);
    x = x ? FL_W(permute)(x, 2 + 2 * size.ndim, sorted) : NULL;
    return FL_GIVE(&s, x ? FL_W(reshape)(x, out) : NULL);
}

FL_T *FL_W(fold_opt)(FL_T *x, fl_shape size, fl_window_opts o) {
    fl__axis_map m[3];
    int nd = size.ndim, sorted[FL_MAX_DIMS], back[FL_MAX_DIMS];
    if (FL_ABSENT("fold", x) || !fl__window_maps("fl_fold", size, o, m)) return NULL;
    fl_shape in = fl_shape_of(FL_VALUE(x)), apart = {2 + 2 * nd, {in.dim[0]}};
    int64_t k = 1, positions = 1;
    for (int i = 0; i < nd; i++) {
        k *= apart.dim[2 + i] = m[i].k;
        positions *= apart.dim[2 + nd + i] = m[i].out;
    }
    if (in.ndim != 3 || in.dim[1] % k || in.dim[2] != positions ||
        !fl_dtype_is_float(FL_VALUE(x)->dtype))
        return fl_bad("fl_fold: x %s %s is not a float [n, c %lld, %lld]",
                       fl_dtype_name(FL_VALUE(x)->dtype), FL_SHAPE_TEXT(FL_VALUE(x)),
                       (long long)k, (long long)positions);
    apart.dim[1] = in.dim[1] / k;
    fl__window_order(nd, sorted, back);
    fl_scope s = fl_scope_begin();
    FL_T *given = x;
    x = FL_W(_widened)(x);
    x = x ? FL_W(reshape)(x, apart) : NULL;
    x = x ? FL_W(permute)(x, 2 + 2 * nd, back) : NULL;
    for (int i = 0; i < nd; i++) x = FL_W(_folded)(x, 2 + i, &m[i]);
    return FL_GIVE(&s, FL_W(_narrowed)(x, given));
}

/* >>grids */

/* Places beyond the ends low and low + span folded back, as in mirrors. */
static FL_T *FL_W(_grid_mirrored)(FL_T *at, double low, double span) {
    if (span <= 0) return MUL(at, CONST(0));
    FL_T *off = ABS(SUB(at, CONST(low))), *turns = FLOOR(DIV(off, CONST(span)));
    FL_T *rest = SUB(off, MUL(turns, CONST(span)));
    FL_T *back = EQ(MOD(turns, CONST(2)), CONST(1));
    return ADD(SELECT(back, SUB(CONST(span), rest), rest), CONST(low));
}

/* Places on an axis of n of coordinate `axis` of a grid, [images, places]. */
static FL_T *FL_W(_grid_place)(FL_T *grid, int axis, int64_t n, fl_grid_opts o) {
    fl_shape g = fl_shape_of(FL_VALUE(grid));
    double last = (double)n - 1;
    FL_T *at = FL_W(select)(grid, 3, axis);
    if (!at || !(at = FL_W(reshape)(at, FL_SHAPE(g.dim[0], g.dim[1] * g.dim[2])))) return NULL;
    at = ADD(at, CONST(1));
    at = o.align ? MUL(at, CONST(last / 2)) : SUB(MUL(at, CONST((last + 1) / 2)), CONST(0.5));
    if (o.outside == FL_GRID_REFLECT)
        at = o.align ? FL_W(_grid_mirrored)(at, 0, last) : FL_W(_grid_mirrored)(at, -0.5, last + 1);
    return at && o.outside != FL_GRID_ZEROS ? FL_W(clip)(at, 0, last) : at;
}

/* x [n, c, h w] at the whole places (px, py) [n, p], 0 outside. */
static FL_T *FL_W(_grid_read)(FL_T *x, fl_tensor *px, fl_tensor *py, int64_t h, int64_t w) {
    if (!px || !py) return NULL;
    fl_tensor *in_x = fl_logical_and(fl_ge(px, fl_int(0)), fl_lt(px, fl_int(w)));
    fl_tensor *in_y = fl_logical_and(fl_ge(py, fl_int(0)), fl_lt(py, fl_int(h)));
    fl_tensor *inside = fl_logical_and(in_x, in_y), *zero = fl_num(0);
    px = fl_cast(fl_where(inside, px, zero), FL_I64);
    py = fl_cast(fl_where(inside, py, zero), FL_I64);
    fl_tensor *at = fl_unsqueeze(fl_add(fl_mul(py, fl_int(w)), px), 1);
    if (!at) return NULL;
    fl_shape s = fl_shape_of(FL_VALUE(x));
    s.dim[2] = at->shape[2];
    FL_T *v = FL_W(gather)(x, 2, fl_expand(at, s));
    return SELECT(FL_OF(fl_unsqueeze(inside, 1)), v, CONST(0));
}

/* The four neighbours, weighted; the weights carry the gradient of the places. */
static FL_T *FL_W(_grid_blend)(FL_T *x, FL_T *px, FL_T *py, int64_t h, int64_t w) {
    fl_tensor *left = fl_floor(FL_VALUE(px)), *top = fl_floor(FL_VALUE(py));
    if (!left || !top) return NULL;
    FL_T *fx = SUB(px, FL_OF(left)), *fy = SUB(py, FL_OF(top)), *y = NULL;
    for (int k = 0; k < 4; k++) {
        FL_T *wx = k & 1 ? fx : SUB(CONST(1), fx), *wy = k & 2 ? fy : SUB(CONST(1), fy);
        FL_T *weight = MUL(wx, wy);
        FL_T *v = FL_W(_grid_read)(x, fl_add(left, fl_num(k & 1)), fl_add(top, fl_num(k >> 1)), h,
                                   w);
        if (!v || !weight || !(v = MUL(v, FL_W(unsqueeze)(weight, 1)))) return NULL;
        y = k ? ADD(y, v) : v;
    }
    return y;
}

FL_T *FL_W(grid_sample_opt)(FL_T *x, FL_T *grid, fl_grid_opts o) {
    if (FL_ABSENT("grid_sample", x) || FL_ABSENT("grid_sample", grid)) return NULL;
    fl_tensor *image = FL_VALUE(x), *places = FL_VALUE(grid);
    fl_shape s = fl_shape_of(image), g = fl_shape_of(places);
    if (!fl__is_image("fl_grid_sample", image)) return NULL;
    if (s.ndim != 4 || g.ndim != 4 || g.dim[0] != s.dim[0] || g.dim[3] != 2 ||
        places->dtype != image->dtype)
        return fl_bad("fl_grid_sample: x %s [n, c, h, w] and grid %s [n, oh, ow, 2], of one dtype",
                       FL_SHAPE_TEXT(image), FL_SHAPE_TEXT(places));
    fl_scope scope = fl_scope_begin();
    FL_T *given = x, *y = NULL;
    grid = FL_W(_widened)(grid);
    x = grid ? FL_W(_widened)(x) : NULL;
    x = x ? FL_W(reshape)(x, FL_SHAPE(s.dim[0], s.dim[1], s.dim[2] * s.dim[3])) : NULL;
    FL_T *px = x ? FL_W(_grid_place)(grid, 0, s.dim[3], o) : NULL;
    FL_T *py = px ? FL_W(_grid_place)(grid, 1, s.dim[2], o) : NULL;
    if (py && o.nearest)
        y = FL_W(_grid_read)(x, fl_rint(FL_VALUE(px)), fl_rint(FL_VALUE(py)), s.dim[2], s.dim[3]);
    else if (py) y = FL_W(_grid_blend)(x, px, py, s.dim[2], s.dim[3]);
    y = y ? FL_W(reshape)(y, FL_SHAPE(s.dim[0], s.dim[1], g.dim[1], g.dim[2])) : NULL;
    return FL_GIVE(&scope, FL_W(_narrowed)(y, given));
}

#ifdef FL_ON_TENSORS
/* n coordinates from -1 to 1: the ends with align, else the middles of n places. */
static fl_tensor *fl__grid_axis(const fl_tensor *like, int64_t n, bool align) {
    double step = align ? (n > 1 ? 2 / (double)(n - 1) : 0) : 2 / (double)n;
    double first = align ? (n > 1 ? -1 : 0) : 1 / (double)n - 1;
    fl_tensor *i = fl_cast(fl_arange(0, (double)n, 1, FL_I64), like->dtype);
    i = fl_to(i, fl_family_name(like));
    return i ? fl_add(fl_mul(i, fl_num(step)), fl_num(first)) : NULL;
}
#endif

FL_T *FL_W(affine_grid)(FL_T *theta, int64_t h, int64_t w, bool align) {
    if (FL_ABSENT("affine_grid", theta)) return NULL;
    fl_tensor *t = FL_VALUE(theta);
    if (t->ndim != 3 || t->shape[1] != 2 || t->shape[2] != 3 || !fl_dtype_is_float(t->dtype) ||
        !fl__in_range(h, 1) || !fl__in_range(w, 1))
        return fl_bad("fl_affine_grid: theta %s is not [n, 2, 3], or no grid of %lld x %lld",
                       FL_SHAPE_TEXT(t), (long long)h, (long long)w);
    fl_scope s = fl_scope_begin();
    FL_T *given = theta;
    if (!(theta = FL_W(_widened)(theta))) return FL_GIVE(&s, NULL);
    t = FL_VALUE(theta);
    fl_tensor *x = fl__grid_axis(t, w, align), *y = fl__grid_axis(t, h, align);
    if (!x || !y || !(y = fl_unsqueeze(fl_unsqueeze(y, 1), 2)) || !(x = fl_unsqueeze(x, 1)))
        return FL_GIVE(&s, NULL);
    FL_T *part[3];
    for (int i = 0; i < 3; i++) {
        part[i] = FL_W(select)(theta, 2, i);
        part[i] = part[i] ? FL_W(reshape)(part[i], FL_SHAPE(t->shape[0], 1, 1, 2)) : NULL;
        if (!part[i]) return FL_GIVE(&s, NULL);
    }
    FL_T *grid = ADD(ADD(MUL(part[0], FL_OF(x)), MUL(part[1], FL_OF(y))), part[2]);
    return FL_GIVE(&s, FL_W(_narrowed)(grid, given));
}

#endif
/* MIT licence: see LICENSE. */
