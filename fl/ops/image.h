/* fl/ops/image.h - resampling, windows as columns, and sampling at places

   interpolate goes axis by axis, through the taps of taps.inc; unfold and fold are im2col and its
   adjoint; grid_sample reads at given places, affine_grid makes them.

   Record (fl_resample_args): resample x, at, weight, inside (b8, or a number) -> y */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_IMAGE_H
#define FL_OPS_IMAGE_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_resample_args {
    int axis;
    int64_t size; /* elements of the axis of the result */
    bool adjoint;
} fl_resample_args;
/* Sums along an axis of x: element o of the result is the sum over j of weight[o, j] times element at[o, j]
   of x. weight [size, k] of x's dtype, f32 or f64; at i64 [size k]; inside b8 [size, k], those that count,
   or NULL: all. adjoint: the gradient of that for x, given that of the result, which is x here. */
FL_API fl_tensor *fl_resample(fl_tensor *x, fl_tensor *at, fl_tensor *weight, fl_tensor *inside,
                              fl_resample_args a);
FL_API fl_var *fv_resample(fl_var *x, fl_tensor *at, fl_tensor *weight, fl_tensor *inside,
                           fl_resample_args a);

typedef enum fl_interpolation { FL_NEAREST, FL_LINEAR, FL_CUBIC, FL_AREA, FL_NEAREST_EXACT } fl_interpolation;
typedef struct fl_interpolate_opts {
    fl_named _positional;
    double scale[3]; /* in place of size, FL_SCALAR_SHAPE: floor(n scale) elements, scale apart; as kernels,
                        0 -> that of the dim before */
    bool antialias;  /* linear and cubic (then with a = -0.5, as PIL): smaller images blur what they skip */
    char _end;
} fl_interpolate_opts;
/* Resamples a float x [n, c, 1 to 3 dims] to size: nearest (rounded down; exact: the nearest centre), linear
   in each dim, cubic (a = -0.75), or the mean over areas. align: the centres of the corners stay where they
   are, else the edges do: fl_interpolate(x, FL_SHAPE(8, 8), FL_LINEAR, false) */
#define fl_interpolate(...) FL__INTERPOLATE(fl_, __VA_ARGS__, ._end = 0)
#define fv_interpolate(...) FL__INTERPOLATE(fv_, __VA_ARGS__, ._end = 0)
#define FL__INTERPOLATE(p, x, size, mode, align, ...) \
    p##interpolate_opt(x, size, mode, align, (fl_interpolate_opts){__VA_ARGS__})
FL_API fl_tensor *fl_interpolate_opt(fl_tensor *x, fl_shape size, fl_interpolation mode, bool align,
                                     fl_interpolate_opts o);
FL_API fl_var *fv_interpolate_opt(fl_var *x, fl_shape size, fl_interpolation mode, bool align,
                                  fl_interpolate_opts o);

typedef struct fl_window_opts {
    fl_named _positional;
    int64_t kernel[3], stride[3], dilation[3], pad[3]; /* as in fl_conv_opts */
    char _end;
} fl_window_opts;
/* im2col: x [n, c, spatial...] -> [n, c kernel..., positions], and its adjoint, which sums what
   overlaps to an image of size: fl_unfold(x, .kernel = {3}) */
#define fl_unfold(...) FL__UNFOLD(fl_, __VA_ARGS__, ._end = 0)
#define fv_unfold(...) FL__UNFOLD(fv_, __VA_ARGS__, ._end = 0)
#define FL__UNFOLD(p, x, ...) p##unfold_opt(x, (fl_window_opts){__VA_ARGS__})
FL_API fl_tensor *fl_unfold_opt(fl_tensor *x, fl_window_opts o);
FL_API fl_var *fv_unfold_opt(fl_var *x, fl_window_opts o);
#define fl_fold(...) FL__FOLD_TO(fl_, __VA_ARGS__, ._end = 0)
#define fv_fold(...) FL__FOLD_TO(fv_, __VA_ARGS__, ._end = 0)
#define FL__FOLD_TO(p, x, size, ...) p##fold_opt(x, size, (fl_window_opts){__VA_ARGS__})
FL_API fl_tensor *fl_fold_opt(fl_tensor *x, fl_shape size, fl_window_opts o);
FL_API fl_var *fv_fold_opt(fl_var *x, fl_shape size, fl_window_opts o);

typedef enum fl_grid_outside { FL_GRID_ZEROS, FL_GRID_BORDER, FL_GRID_REFLECT } fl_grid_outside;
typedef struct fl_grid_opts {
    fl_named _positional;
    bool nearest; /* else linear */
    bool cubic;   /* a = -0.75; of images of two dims */
    bool align;   /* -1 and 1 are the centres of the corners, else the edges */
    fl_grid_outside outside;
    char _end;
} fl_grid_opts;
/* x [n, c, h, w] at the places (x, y) in [-1, 1] of grid [n, oh, ow, 2] -> [n, c, oh, ow];  or x [n, c, d, h,
   w] at the places (x, y, z) of grid [n, od, oh, ow, 3] */
#define fl_grid_sample(...) FL__GRID_SAMPLE(fl_, __VA_ARGS__, ._end = 0)
#define fv_grid_sample(...) FL__GRID_SAMPLE(fv_, __VA_ARGS__, ._end = 0)
#define FL__GRID_SAMPLE(p, x, grid, ...) p##grid_sample_opt(x, grid, (fl_grid_opts){__VA_ARGS__})
FL_API fl_tensor *fl_grid_sample_opt(fl_tensor *x, fl_tensor *grid, fl_grid_opts o);
FL_API fl_var *fv_grid_sample_opt(fl_var *x, fl_var *grid, fl_grid_opts o);
/* The grid [n, h, w, 2] of theta [n, 2, 3]: theta (x, y, 1);  or [n, d, h, w, 3] of theta [n, 3, 4]. size:
   FL_SHAPE(h, w) or FL_SHAPE(d, h, w) */
FL_API fl_tensor *fl_affine_grid(fl_tensor *theta, fl_shape size, bool align);
FL_API fl_var *fv_affine_grid(fl_var *theta, fl_shape size, bool align);

FL_DATA fl_op fl_op_resample;
FL_PRIVATE void fl__register_image(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_IMAGE_H */

#if defined(FL_IMPL_ONLY_OPS_IMAGE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_IMAGE_IMPL
#define FL_OPS_IMAGE_IMPL
#include "../../fl_autograd.h"
#include "copy.h"
#include "create.h"
#include "elementwise.h"
#include "index.h"
#include "move.h"
#include "reduce.h"
#include "view.h"
#include <math.h>
#include <string.h>
#define FL_TEXT "image.h"
#include "expand.h"

FL_DATA_DEFINED fl_op fl_op_resample;

FL_PRIVATE void fl__register_image(void) {
    static const fl_op_info resample = {.name = "resample",
                                        .args_size = sizeof(fl_resample_args),
                                        .contains = "gather mul sum where scatter_add fill",
                                        .compose = fl__compose_resample,
                                        .gradient = fv__resample_back};
    fl_op_resample = fl_op_register(&resample);
}
#endif
#endif
#else /* the text: see expand.h */
#include "taps.inc"

/* >>interpolation */

#ifdef FL_ON_TENSORS
static bool fl__compose_resample(const fl_call *c, fl_tensor **y) {
    const fl_resample_args *a = c->args;
    fl_tensor *x = c->in[0], *w = c->in[2];
    const fl__axis_taps t = {w->shape[0], w->shape[1], c->in[1], c->in[3]->weak ? NULL : c->in[3], w};
    fl_tensor *table = fl__taps_table(w, x->ndim - a->axis - 1);
    if (a->adjoint) y[0] = fl__fold_taps(fl_mul(fl_unsqueeze(x, a->axis + 1), table), a->axis, &t, a->size);
    else y[0] = fl_sum(fl_mul(fl__image_spread(x, a->axis, &t, 0), table), FL_AXES(a->axis + 1));
    return y[0] != NULL;
}

fl_tensor *fl_resample(fl_tensor *x, fl_tensor *at, fl_tensor *weight, fl_tensor *inside,
                       fl_resample_args a) {
    const char *fn = "fl_resample";
    if (fl_absent(fn, x) || fl_absent(fn, at) || fl_absent(fn, weight)) return NULL;
    const bool fits = a.axis >= 0 && a.axis < x->ndim && a.size >= 0 && weight->ndim == 2 && !x->weak;
    if (!fits || weight->shape[0] != (a.adjoint ? x->shape[a.axis] : a.size) || at->dtype != FL_I64 ||
        fl_numel(at) != fl_numel(weight) || weight->dtype != x->dtype || fl_is_narrow(x) ||
        !fl_dtype_is_float(x->dtype) || (inside && !fl_same_shape(inside, weight)))
        return fl_bad("%s: x %s %s, weight %s %s, at %s, axis %d of %lld elements", fn,
                      fl_dtype_name(x->dtype), FL_SHAPE_TEXT(x), fl_dtype_name(weight->dtype),
                      FL_SHAPE_TEXT(weight), FL_SHAPE_TEXT(at), a.axis, (long long)a.size);
    fl_scope s = fl_scope_begin();
    /* channels-last, or a part of such an image */
    const bool last = x->ndim == 4 && x->stride[1] == 1 && !fl_is_contiguous(x);
    if (!(x = last ? fl_channels_last(x) : fl_contiguous(x))) return FL_GIVE(&s, NULL);
    fl_shape shape = fl_shape_of(x);
    shape.dim[a.axis] = a.size;
    fl_tensor *y = fl_out_on(x->family, shape, x->dtype);
    if (y && x->ndim == 4) y = fl__image_as(y, x, x);
    fl_call c = {.op = fl_op_resample, .n_out = 1, .n_in = 4, .out = {y}, .args = &a,
                 .in = {x, at, weight, inside ? inside : fl_num(1)}};
    return fl_scope_return(&s, y && c.in[3] ? fl_call_result(&c) : fl_raise());
}
#else
static void fv__resample_back(fl_node *n, fl_var *dy) {
    fl_resample_args a = *(const fl_resample_args *)fv_args(n);
    a.size = fv_in_shape(n, 0).dim[a.axis];
    a.adjoint = !a.adjoint;
    fl_var *inside = fv_saved_count(n) > 2 ? fv_saved(n, 2) : NULL;
    fl_tensor *at = fv_value(fv_saved(n, 0)), *weight = fv_value(fv_saved(n, 1));
    fv_add_grad(n, 0, fv_resample(dy, at, weight, fv_value(inside), a));
}

fl_var *fv_resample(fl_var *x, fl_tensor *at, fl_tensor *weight, fl_tensor *inside,
                    fl_resample_args a) {
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl_resample(fv_value(x), at, weight, inside, a);
    if (!y) return fv_scope_return(&s, NULL);
    fl_var *kept[] = {fv_const(at), fv_const(weight), inside ? fv_const(inside) : NULL};
    const fv_list saved = fv_list_of(inside ? 3 : 2, kept);
    return fv_scope_return(&s, fv_record_op(fl_op_resample, y, FV_IN(x), saved, &a));
}
#endif

#ifdef FL_ON_TENSORS
/* Where element o lies on the axis. */
static double fl__tap_place(const fl__axis_map *m, int64_t o) {
    if (m->align) return m->out > 1 ? (double)o * (double)(m->n - 1) / (double)(m->out - 1) : 0;
    return ((double)o + 0.5) * m->ratio - 0.5;
}

static int64_t fl__tap_scaled(const fl__axis_map *m, int64_t o, int64_t j, double *weight) {
    const int64_t at = (int64_t)floor((double)o * m->ratio);
    (void)j;
    *weight = 1;
    return at < m->n ? at : m->n - 1;
}

static int64_t fl__tap_exact(const fl__axis_map *m, int64_t o, int64_t j, double *weight) {
    const int64_t at = (int64_t)floor(((double)o + 0.5) * m->ratio);
    (void)j;
    *weight = 1;
    return at < m->n ? at : m->n - 1;
}

static int64_t fl__tap_linear(const fl__axis_map *m, int64_t o, int64_t j, double *weight) {
    double place = fl__tap_place(m, o), from = place > 0 ? floor(place) : 0;
    double part = place > 0 ? place - from : 0;
    int64_t at = (int64_t)from + j;
    *weight = j ? part : 1 - part;
    return at < m->n ? at : m->n - 1;
}

/* Keys' kernel of a at the distance d, 0 <= d <= 2. */
static double fl__cubic(double d, double a) {
    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
}

static int64_t fl__tap_cubic(const fl__axis_map *m, int64_t o, int64_t j, double *weight) {
    double place = fl__tap_place(m, o), from = floor(place);
    int64_t at = (int64_t)from - 1 + j;
    *weight = fl__cubic(fabs(place - from + 1 - (double)j), -0.75);
    return at < 0 ? 0 : at < m->n ? at : m->n - 1;
}

/* Antialiased, as PIL: the kernel stretched over `ratio` elements where there are fewer than before, its
   weights made to sum to 1. reach: 1 is linear, 2 cubic. */
static double fl__tap_blur(const fl__axis_map *m, double far) {
    const double d = fabs(far) / (m->ratio > 1 ? m->ratio : 1);
    if (d >= (double)m->reach) return 0;
    return m->reach == 1 ? 1 - d : fl__cubic(d, -0.5);
}

static int64_t fl__tap_antialias(const fl__axis_map *m, int64_t o, int64_t j, double *weight) {
    const double centre = ((double)o + 0.5) * m->ratio;
    const double reach = (double)m->reach * (m->ratio > 1 ? m->ratio : 1);
    const double low = floor(centre - reach + 0.5), high = floor(centre + reach + 0.5);
    const int64_t first = low > 0 ? (int64_t)low : 0, end = high < (double)m->n ? (int64_t)high : m->n;
    double sum = 0;
    for (int64_t i = first; i < end; i++) sum += fl__tap_blur(m, (double)i + 0.5 - centre);
    *weight = fl__tap_blur(m, (double)(first + j) + 0.5 - centre) / sum;
    return first + j < end ? first + j : -1;
}

/* The sizes of an image times the scales, which are filled up; false without an error if those are none. */
static bool fl__scaled_size(const fl_tensor *x, double *scale, fl_shape *size) {
    size->ndim = x->ndim - 2;
    for (int i = 0; i < size->ndim; i++) {
        if (i > 0 && scale[i] == 0) scale[i] = scale[i - 1];
        const double n = floor((double)x->shape[2 + i] * scale[i]);
        if (!(scale[i] > 0 && n >= 1 && n <= INT32_MAX)) return false;
        size->dim[i] = (int64_t)n;
    }
    return true;
}
#endif

FL_T *FL_W(interpolate_opt)(FL_T *x, fl_shape size, fl_interpolation mode, bool align,
                            fl_interpolate_opts o) {
    static const fl__axis_map modes[] = {{.k = 1, .tap = fl__tap_nearest},
                                         {.k = 2, .tap = fl__tap_linear},
                                         {.k = 4, .tap = fl__tap_cubic},
                                         {.k = 0, .tap = fl__tap_adaptive},
                                         {.k = 1, .tap = fl__tap_exact}};
    const char *fn = "fl_interpolate";
    fl__axis_map m[3], like;
    const bool scaled = o.scale[0] != 0;
    if (FL_ABSENT("interpolate", x) || !fl__is_image(fn, FL_VALUE(x))) return NULL;
    if ((int)mode < FL_NEAREST || (int)mode > FL_NEAREST_EXACT)
        return fl_bad("%s: there is no mode %d", fn, (int)mode);
    if (o.antialias && mode != FL_LINEAR && mode != FL_CUBIC)
        return fl_bad("%s: antialias is of linear and cubic interpolation", fn);
    if (scaled && (size.ndim || !fl__scaled_size(FL_VALUE(x), o.scale, &size)))
        return fl_bad("%s: x %s, scale %g, size %s: one of both, and at least one element", fn,
                      FL_SHAPE_TEXT(FL_VALUE(x)), o.scale[0], FL_TEXT_OF(size));
    like = modes[mode];
    like.align = align;
    if (scaled && mode == FL_NEAREST) like.tap = fl__tap_scaled;
    if (!fl__size_maps(fn, FL_VALUE(x), size, m, like)) return NULL;
    for (int i = 0; i < size.ndim; i++) {
        const double n = (double)m[i].n, out = (double)m[i].out;
        const bool stays = mode == FL_LINEAR && m[i].n == m[i].out && !o.antialias; /* as PyTorch */
        m[i].ratio = scaled && !stays ? 1 / o.scale[i] : n / out;
        if (!o.antialias) continue;
        if (align) m[i].ratio = out > 1 ? (n - 1) / (out - 1) : 0;
        m[i].tap = fl__tap_antialias;
        m[i].reach = mode == FL_LINEAR ? 1 : 2;
        m[i].k = 2 * (int64_t)ceil((double)m[i].reach * (m[i].ratio > 1 ? m[i].ratio : 1)) + 1;
    }
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
                       fl__setting(o.pad, i, 0), fl__setting(o.dilation, i, 1));
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

#ifdef FL_ON_TENSORS
/* What grid_sample looks at: images of nd dims, the last one first, made one. */
typedef struct fl__grid {
    fl_grid_opts o;
    int nd;
    int64_t size[3];
} fl__grid;
#endif

/* Places on axis `axis` beyond the image, as o.outside takes them. */
static FL_T *FL_W(_grid_bounded)(FL_T *at, int axis, const fl__grid *g) {
    const double last = (double)g->size[axis] - 1;
    if (!at) return NULL;
    if (g->o.outside == FL_GRID_REFLECT)
        at = g->o.align ? FL_W(_grid_mirrored)(at, 0, last) : FL_W(_grid_mirrored)(at, -0.5, last + 1);
    return at && g->o.outside != FL_GRID_ZEROS ? FL_W(clamp)(at, CONST(0), CONST(last)) : at;
}

/* Places on axis `axis` of a grid [images, places, nd] -> [images, places]. */
static FL_T *FL_W(_grid_place)(FL_T *grid, int axis, const fl__grid *g) {
    const double last = (double)g->size[axis] - 1;
    FL_T *at = FL_W(select)(grid, 2, axis);
    if (!at) return NULL;
    at = ADD(at, CONST(1));
    at = g->o.align ? MUL(at, CONST(last / 2)) : SUB(MUL(at, CONST((last + 1) / 2)), CONST(0.5));
    return g->o.cubic ? at : FL_W(_grid_bounded)(at, axis, g);
}

/* x [n, c, elements] at the whole places [n, p] of each axis, 0 outside. */
static FL_T *FL_W(_grid_read)(FL_T *x, fl_tensor *const *place, const fl__grid *g) {
    fl_tensor *inside = NULL, *at = NULL;
    for (int i = 0; i < g->nd; i++) {
        if (!place[i]) return NULL;
        fl_tensor *in = fl_logical_and(fl_ge(place[i], fl_int(0)), fl_lt(place[i], fl_int(g->size[i])));
        inside = i ? fl_logical_and(inside, in) : in;
    }
    for (int i = g->nd - 1; i >= 0; i--) {
        fl_tensor *k = fl_cast(fl_where(inside, place[i], fl_num(0)), FL_I64);
        at = i < g->nd - 1 ? fl_add(fl_mul(at, fl_int(g->size[i])), k) : k;
    }
    if (!at || !(at = fl_unsqueeze(at, 1))) return NULL;
    fl_shape s = fl_shape_of(FL_VALUE(x));
    s.dim[2] = at->shape[2];
    FL_T *v = FL_W(gather)(x, 2, fl_expand(at, s));
    return SELECT(FL_OF(fl_unsqueeze(inside, 1)), v, CONST(0));
}

/* The weight of neighbour j of a place that lies t behind a whole one: two of them, or four. */
static FL_T *FL_W(_grid_weight)(FL_T *t, int j, bool cubic) {
    if (!cubic) return j ? t : SUB(CONST(1), t);
    static const double near[] = {1, 0, -2.25, 1.25}, far[] = {3, -6, 3.75, -0.75};
    FL_T *d = j == 0 ? ADD(t, CONST(1)) : j == 1 ? t : SUB(CONST(j - 1), t);
    return FL_W(_poly)(d, j == 1 || j == 2 ? near : far, 4);
}

/* The neighbours, two or four in each dim, weighted; the weights carry the gradient of the places. */
static FL_T *FL_W(_grid_blend)(FL_T *x, FL_T *const *place, const fl__grid *g) {
    const int taps = g->o.cubic ? 4 : 2, n = g->nd == 3 ? taps * taps * taps : taps * taps;
    FL_T *w[3][4], *y = NULL;
    fl_tensor *at[3][4];
    for (int i = 0; i < g->nd; i++) {
        fl_tensor *low = fl_floor(FL_VALUE(place[i]));
        FL_T *t = low ? SUB(place[i], FL_OF(low)) : NULL;
        for (int j = 0; t && j < taps; j++) {
            w[i][j] = FL_W(_grid_weight)(t, j, g->o.cubic);
            at[i][j] = fl_add(low, fl_num(g->o.cubic ? j - 1 : j));
            if (g->o.cubic) at[i][j] = fl__grid_bounded(at[i][j], i, g);
        }
        if (!t) return NULL;
    }
    for (int k = 0; k < n; k++) {
        FL_T *weight = NULL;
        fl_tensor *p[3];
        for (int i = 0, of = k; i < g->nd; of /= taps, i++) {
            weight = i ? MUL(weight, w[i][of % taps]) : w[i][of % taps];
            p[i] = at[i][of % taps];
        }
        FL_T *v = FL_W(_grid_read)(x, p, g);
        if (!v || !weight || !(v = MUL(v, FL_W(unsqueeze)(weight, 1)))) return NULL;
        y = k ? ADD(y, v) : v;
    }
    return y;
}

FL_T *FL_W(grid_sample_opt)(FL_T *x, FL_T *grid, fl_grid_opts o) {
    if (FL_ABSENT("grid_sample", x) || FL_ABSENT("grid_sample", grid)) return NULL;
    fl_tensor *image = FL_VALUE(x), *places = FL_VALUE(grid), *nearest[3];
    fl_shape s = fl_shape_of(image), to = fl_shape_of(places);
    if (!fl__is_image("fl_grid_sample", image)) return NULL;
    fl__grid g = {.o = o, .nd = s.ndim - 2};
    if (g.nd < 2 || to.ndim != s.ndim || to.dim[0] != s.dim[0] || to.dim[s.ndim - 1] != g.nd ||
        places->dtype != image->dtype)
        return fl_bad("fl_grid_sample: x %s [n, c, h, w] and grid %s [n, oh, ow, 2], or both with a depth, "
                      "of one dtype", FL_SHAPE_TEXT(image), FL_SHAPE_TEXT(places));
    if (o.cubic && (g.nd != 2 || o.nearest))
        return fl_bad("fl_grid_sample: cubic is of two dims, and not nearest; x is %s", FL_SHAPE_TEXT(image));
    fl_shape flat = FL_SHAPE(s.dim[0], s.dim[1], 1), list = FL_SHAPE(s.dim[0], 1, g.nd);
    for (int i = 0; i < g.nd; i++) {
        flat.dim[2] *= g.size[g.nd - 1 - i] = s.dim[2 + i];
        list.dim[1] *= s.dim[2 + i] = to.dim[1 + i];
    }
    fl_scope scope = fl_scope_begin();
    FL_T *given = x, *y = NULL, *place[3];
    x = FL_W(_widened)(x);
    grid = x ? FL_W(_widened)(grid) : NULL;
    x = grid ? FL_W(reshape)(x, flat) : NULL;
    grid = x ? FL_W(reshape)(grid, list) : NULL;
    for (int i = 0; grid && i < g.nd; i++) {
        if (!(place[i] = FL_W(_grid_place)(grid, i, &g))) return FL_GIVE(&scope, NULL);
        nearest[i] = o.nearest ? fl_rint(FL_VALUE(place[i])) : NULL;
    }
    if (grid) y = o.nearest ? FL_W(_grid_read)(x, nearest, &g) : FL_W(_grid_blend)(x, place, &g);
    y = y ? FL_W(reshape)(y, s) : NULL;
    return FL_GIVE(&scope, FL_W(_narrowed)(y, given));
}

#ifdef FL_ON_TENSORS
/* n coordinates from -1 to 1: the ends with align, else the middles of n places; `after` dims of 1 follow. */
static fl_tensor *fl__grid_axis(const fl_tensor *like, int64_t n, bool align, int after) {
    double step = align ? (n > 1 ? 2 / (double)(n - 1) : 0) : 2 / (double)n;
    double first = align ? (n > 1 ? -1 : 0) : 1 / (double)n - 1;
    fl_tensor *i = fl_cast(fl_arange(0, (double)n, 1, FL_I64), like->dtype);
    i = i ? fl_reshape(i, (fl_shape){1 + after, {n, 1, 1, 1}}) : NULL;
    i = i ? fl_to(i, fl_backend_name(like)) : NULL;
    return i ? fl_add(fl_mul(i, fl_num(step)), fl_num(first)) : NULL;
}
#endif

FL_T *FL_W(affine_grid)(FL_T *theta, fl_shape size, bool align) {
    if (FL_ABSENT("affine_grid", theta)) return NULL;
    fl_tensor *t = FL_VALUE(theta);
    const int nd = size.ndim;
    bool ok = (nd == 2 || nd == 3) && t->ndim == 3 && t->shape[1] == nd && t->shape[2] == nd + 1 &&
              fl_dtype_is_float(t->dtype);
    for (int i = 0; ok && i < nd; i++) ok = fl__in_range(size.dim[i], 1);
    if (!ok)
        return fl_bad("fl_affine_grid: theta %s is not [n, 2, 3] or [n, 3, 4], or no grid of %s",
                      FL_SHAPE_TEXT(t), FL_TEXT_OF(size));
    fl_scope s = fl_scope_begin();
    FL_T *given = theta, *grid = NULL;
    if (!(theta = FL_W(_widened)(theta))) return FL_GIVE(&s, NULL);
    t = FL_VALUE(theta);
    fl_shape one = {nd + 2, {t->shape[0], 1, 1, 1, 1}};
    one.dim[nd + 1] = nd;
    for (int i = 0; i <= nd; i++) { /* x, y, z, 1 */
        FL_T *part = FL_W(select)(theta, 2, i);
        if (!part || !(part = FL_W(reshape)(part, one))) return FL_GIVE(&s, NULL);
        if (i < nd) part = MUL(part, FL_OF(fl__grid_axis(t, size.dim[nd - 1 - i], align, i + 1)));
        grid = i ? ADD(grid, part) : part;
    }
    return FL_GIVE(&s, FL_W(_narrowed)(grid, given));
}

#endif
/* MIT licence: see LICENSE. */
