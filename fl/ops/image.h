/* fl/ops/image.h - resampling, windows as columns, and sampling at places

   interpolate goes axis by axis, through the taps of taps.inc; unfold and fold are im2col and its
   adjoint; grid_sample reads at given places, affine_grid makes them. No records: texts alone. */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_IMAGE_H
#define FL_OPS_IMAGE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Resamples a float x [n, c, 1 to 3 dims] to size: nearest (rounded down), linear in each dim, cubic
   (a = -0.75), or the mean over areas. align: the centres of the corners stay where they are, else the
   edges do. */
typedef enum fl_interpolation { FL_NEAREST, FL_LINEAR, FL_CUBIC, FL_AREA } fl_interpolation;
FL_API fl_tensor *fl_interpolate(fl_tensor *x, fl_shape size, fl_interpolation mode, bool align);
FL_API fl_var *fv_interpolate(fl_var *x, fl_shape size, fl_interpolation mode, bool align);

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
    bool align;   /* -1 and 1 are the centres of the corners, else the edges */
    fl_grid_outside outside;
    char _end;
} fl_grid_opts;
/* x [n, c, h, w] at the places (x, y) in [-1, 1] of grid [n, oh, ow, 2] -> [n, c, oh, ow] */
#define fl_grid_sample(...) FL__GRID_SAMPLE(fl_, __VA_ARGS__, ._end = 0)
#define fv_grid_sample(...) FL__GRID_SAMPLE(fv_, __VA_ARGS__, ._end = 0)
#define FL__GRID_SAMPLE(p, x, grid, ...) p##grid_sample_opt(x, grid, (fl_grid_opts){__VA_ARGS__})
FL_API fl_tensor *fl_grid_sample_opt(fl_tensor *x, fl_tensor *grid, fl_grid_opts o);
FL_API fl_var *fv_grid_sample_opt(fl_var *x, fl_var *grid, fl_grid_opts o);
/* The grid [n, h, w, 2] of theta [n, 2, 3]: theta (x, y, 1) */
FL_API fl_tensor *fl_affine_grid(fl_tensor *theta, int64_t h, int64_t w, bool align);
FL_API fl_var *fv_affine_grid(fl_var *theta, int64_t h, int64_t w, bool align);

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
#include "reduce.h"
#include "view.h"
#include <math.h>
#include <string.h>
#define FL_TEXT "image.h"
#include "expand.h"
#endif
#endif
#else /* the text: see expand.h */
#include "taps.inc"

/* >>interpolation */

#ifdef FL_ON_TENSORS
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
#endif

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
    return at && o.outside != FL_GRID_ZEROS ? FL_W(clamp)(at, CONST(0), CONST(last)) : at;
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
    i = fl_to(i, fl_backend_name(like));
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
