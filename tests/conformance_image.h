/* conformance_image.h - convolution, pooling and resampling of 1 to 3 spatial dims

   The references are loops over all positions and kernel places of three dims; what has fewer is
   an image of height and depth 1. */

typedef struct image_case {
    fl_shape x;
    int64_t outputs, groups, kernel[3], stride, pad, dilation, output_pad;
} image_case;

static const image_case image_cases[] = {
    {{3, {2, 3, 9}}, 4, 1, {3}, 1, 0, 1, 0},
    {{3, {1, 4, 8}}, 6, 2, {4}, 2, FL_SAME, 1, 1},
    {{3, {1, 2, 7}}, 2, 1, {2}, 1, FL_SAME, 3, 0},
    {{3, {0, 2, 7}}, 2, 1, {3}, 2, 1, 1, 1},
    {{4, {2, 2, 5, 7}}, 3, 1, {3, 2}, 2, 1, 1, 1},
    {{4, {1, 4, 6, 5}}, 4, 4, {2, 3}, 1, FL_SAME, 2, 0},
    {{5, {1, 2, 4, 5, 3}}, 3, 1, {2, 3, 1}, 1, 0, 1, 0},
    {{5, {2, 2, 5, 4, 4}}, 4, 2, {3, 2, 3}, 2, 1, 1, 1},
    {{5, {1, 1, 4, 5, 3}}, 2, 1, {2, 3, 2}, 1, FL_SAME, 2, 0},
    {{5, {0, 1, 4, 5, 3}}, 2, 1, {2, 2, 2}, 1, 0, 1, 0},
};
enum { IMAGES = sizeof image_cases / sizeof *image_cases };

/* A case in three dims: in strides over out, with k places of the kernel. */
typedef struct volume {
    int64_t in[3], out[3], k[3], low[3], stride[3], dilation[3];
} volume;

static volume volume_of(const image_case *c, bool transposed) {
    volume v = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 1, 1}};
    for (int i = 0; i < c->x.ndim - 2; i++) {
        int at = i + 5 - c->x.ndim;
        int64_t n = c->x.dim[2 + i], reach = c->dilation * (c->kernel[i] - 1) + 1;
        int64_t same = (n - 1) / c->stride * c->stride + reach - n, pads = 2 * c->pad;
        v.k[at] = c->kernel[i], v.stride[at] = c->stride, v.dilation[at] = c->dilation;
        if (c->pad == FL_SAME) pads = same > 0 ? same : 0;
        if (transposed) pads = c->pad == FL_SAME ? 0 : pads;
        v.low[at] = pads / 2;
        v.in[at] = n;
        v.out[at] = transposed ? (n - 1) * c->stride - pads + reach + c->output_pad
                               : (n + pads - reach) / c->stride + 1;
    }
    return v;
}

static fl_shape image_shape(const image_case *c, int64_t channels, const int64_t *dims) {
    fl_shape s = {c->x.ndim, {c->x.dim[0], channels}};
    for (int i = 2; i < s.ndim; i++) s.dim[i] = dims[i - 2 + 5 - s.ndim];
    return s;
}

/* The place in the strided image of place p of the other and kernel place k, both flat: row-major,
   -1 outside. */
static int64_t strided_place(const volume *v, const int64_t *over, const int64_t *image, int64_t p,
                             int64_t k) {
    int64_t at = 0, scale = 1;
    for (int i = 2; i >= 0; i--) {
        int64_t q = p % over[i] * v->stride[i] - v->low[i] + k % v->k[i] * v->dilation[i];
        if (q < 0 || q >= image[i]) return -1;
        at += q * scale, scale *= image[i];
        p /= over[i], k /= v->k[i];
    }
    return at;
}

static int64_t volume_size(const int64_t *d) { return d[0] * d[1] * d[2]; }

/* Adds x w to want; c channels of x to o of want in g groups. */
static void conv_reference(const volume *v, bool transposed, int64_t n, int64_t c, int64_t o,
                           int64_t g, const array *x, const array *w, array *want, double *scale) {
    int64_t in = volume_size(v->in), out = volume_size(v->out), k = volume_size(v->k);
    int64_t over = transposed ? in : out;
    for (int64_t e = 0; e < n * c * (o / g) * over * k; e++) {
        int64_t j = e % k, p = e / k % over, b = e / k / over % (o / g);
        int64_t a = e / k / over / (o / g) % c, image = e / k / over / (o / g) / c;
        int64_t y = a / (c / g) * (o / g) + b; /* the output channel */
        int64_t q = transposed ? strided_place(v, v->in, v->out, p, j)
                               : strided_place(v, v->out, v->in, p, j);
        if (q < 0) continue;
        int64_t wt = transposed ? (a * (o / g) + b) * k + j : (y * (c / g) + a % (c / g)) * k + j;
        int64_t xt = (image * c + a) * in + (transposed ? p : q);
        int64_t yt = (image * o + y) * out + (transposed ? q : p);
        want->f[yt] += x->f[xt] * w->f[wt];
        scale[yt] += fabs(x->f[xt] * w->f[wt]);
    }
}

static void image_conv_case(fl_dtype d, layout l, int which, bool transposed) {
    const image_case *c = &image_cases[which];
    if (!case_begin(transposed ? "conv_transpose" : "conv", d, l, "%d", which)) return;
    volume v = volume_of(c, transposed);
    int64_t channels = c->x.dim[1], g = c->groups, o = c->outputs;
    fl_shape sw = {c->x.ndim, {transposed ? channels : o, (transposed ? o : channels) / g}};
    for (int i = 2; i < sw.ndim; i++) sw.dim[i] = c->kernel[i - 2];
    operand x = make_operand(c->x, d, layout_fits(l, c->x) ? l : DENSE, TAME);
    operand w = make_operand(sw, d, layout_fits(l, sw) ? l : DENSE, TAME);
    array want = new_array(image_shape(c, o, v.out), d);
    double *scale = take((size_t)want.n * 8 + 8);
    conv_reference(&v, transposed, c->x.dim[0], channels, o, g, &x.a, &w.a, &want, scale);
    fl_conv_opts s = {.stride = {c->stride}, .pad = {c->pad}, .dilation = {c->dilation},
                      .groups = g};
    if (transposed && c->pad == FL_SAME) s.pad[0] = 0;
    for (int i = 0; transposed && i < sw.ndim - 2; i++) s.output_pad[i] = c->output_pad;
    fl_tensor *t = transposed ? fl_conv_transpose_opt(x.t, w.t, NULL, s)
                              : fl_conv_opt(x.t, w.t, NULL, s);
    int64_t terms = channels / g * volume_size(v.k);
    case_end(product_agrees(t, &want, scale, terms));
}

enum { MAX_POOL, AVG_POOL, AVG_POOL_INSIDE, LP_POOL };
static const char *const image_pools[] = {"max_pool", "avg_pool", "avg_pool inside", "lp_pool"};

/* Element e of a pooling; *place: of the largest; *sum: of sizes. */
static double pooled(int kind, const volume *v, const array *x, int64_t e, int64_t *place,
                     double *sum) {
    int64_t in = volume_size(v->in), out = volume_size(v->out), k = volume_size(v->k), inside = 0;
    double y = kind == MAX_POOL ? -(double)INFINITY : 0;
    for (int64_t j = 0; j < k; j++) {
        int64_t at = strided_place(v, v->out, v->in, e % out, j);
        if (at < 0) continue;
        double f = x->f[e / out * in + at];
        inside++;
        *sum += fabs(f);
        if (kind == LP_POOL) y += f * f;
        else if (kind != MAX_POOL) y += f;
        else if (f > y) y = f, *place = at;
    }
    if (kind == LP_POOL) return sqrt(y);
    return kind == MAX_POOL ? y : y / (double)(kind == AVG_POOL ? k : inside);
}

/* How many elements of a window lie in the image and its padding, hi behind each dim. */
static int64_t padded_taps(const volume *v, const int64_t *hi, int64_t p) {
    int64_t all = 1;
    for (int i = 2; i >= 0; p /= v->out[i], i--) {
        int64_t count = 0, start = p % v->out[i] * v->stride[i] - v->low[i];
        for (int64_t j = 0; j < v->k[i]; j++) count += start + j * v->dilation[i] < v->in[i] + hi[i];
        all *= count;
    }
    return all;
}

/* Poolings with gaps in their windows, padding behind the image alone, and rounded up. */
static void pool_options_case(fl_dtype d, layout l, int which, int kind, bool ceil_mode) {
    const image_case *c = &image_cases[which];
    volume v = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 1, 1}};
    int64_t hi[3] = {0, 0, 0};
    if (!case_begin(image_pools[kind], d, l, "%d options %d", which, ceil_mode)) return;
    for (int i = 0; i < c->x.ndim - 2; i++) {
        int at = i + 5 - c->x.ndim;
        v.in[at] = c->x.dim[2 + i], v.k[at] = 2, v.stride[at] = 2, v.dilation[at] = ceil_mode ? 1 : 2;
        hi[at] = ceil_mode ? 0 : 1;
        v.out[at] = (v.in[at] + hi[at] + ceil_mode - v.dilation[at] - 1) / 2 + 1;
    }
    operand x = make_operand(c->x, d, layout_fits(l, c->x) ? l : DENSE, TAME);
    fl_shape s = image_shape(c, c->x.dim[1], v.out);
    array want = new_array(s, d), place = new_array(s, FL_I64);
    double *scale = take((size_t)want.n * 8 + 8);
    for (int64_t e = 0; e < want.n; e++) {
        want.f[e] = pooled(kind, &v, &x.a, e, &place.i[e], &scale[e]);
        if (kind == AVG_POOL)
            want.f[e] *= (double)volume_size(v.k) / (double)padded_taps(&v, hi, e % volume_size(v.out));
    }
    fl_pool_opts o = {.kernel = {2}, .pad_hi = {hi[2]}, .dilation = {v.dilation[2]}, .ceil_mode = ceil_mode};
    fl_tensor *index = NULL;
    fl_tensor *t = kind == MAX_POOL ? fl_max_pool_opt(x.t, &index, o) : fl_avg_pool_opt(x.t, o);
    tolerance tol = {1, rounding(l, (double)volume_size(v.k)), 0};
    case_end(kind == MAX_POOL ? equals(t, &want) && equals(index, &place)
                              : agrees(t, &want, tol, scale, false));
}

static void max_unpool_case(fl_dtype d, layout l, fl_shape s) {
    if (!case_begin("max_unpool", d, l, "%d dims", s.ndim)) return;
    operand x = make_operand(s, d, l, TAME);
    fl_shape size = {s.ndim - 2, {2 * s.dim[2], 2 * s.dim[3], 2 * s.dim[4]}}, all = s;
    for (int i = 0; i < size.ndim; i++) all.dim[2 + i] = size.dim[i];
    array want = new_array(all, d), index = new_array(s, FL_I64);
    int64_t in = index.n / s.dim[0] / s.dim[1], out = want.n / s.dim[0] / s.dim[1];
    for (int64_t e = 0; e < index.n; e++) {
        put_int(&index, e, (e % in * 7 + 3) % out);
        want.f[e / in * out + index.i[e]] = x.a.f[e];
    }
    case_end(equals(fl_max_unpool(x.t, dense_tensor(&index), size), &want));
}

static void image_pool_case(fl_dtype d, layout l, int which, int kind) {
    const image_case *c = &image_cases[which];
    image_case plain = *c;
    plain.dilation = 1;
    volume v = volume_of(&plain, false);
    if (!case_begin(image_pools[kind], d, l, "%d", which)) return;
    operand x = make_operand(c->x, d, layout_fits(l, c->x) ? l : DENSE, TAME);
    fl_shape s = image_shape(c, c->x.dim[1], v.out);
    array want = new_array(s, d), place = new_array(s, FL_I64);
    double *scale = take((size_t)want.n * 8 + 8);
    for (int64_t e = 0; e < want.n; e++)
        want.f[e] = pooled(kind, &v, &x.a, e, &place.i[e], &scale[e]);
    fl_pool_opts o = {.stride = {c->stride}, .pad = {c->pad},
                      .ignore_pad = kind == AVG_POOL_INSIDE};
    for (int i = 0; i < 3; i++) o.kernel[i] = c->kernel[i];
    fl_tensor *index = NULL;
    fl_tensor *t = kind == MAX_POOL  ? fl_max_pool_opt(x.t, &index, o)
                   : kind == LP_POOL ? fl_lp_pool_opt(x.t, 2, o)
                                     : fl_avg_pool_opt(x.t, o);
    tolerance tol = {1, rounding(l, (double)volume_size(v.k)), 0};
    case_end(kind == MAX_POOL ? equals(t, &want) && equals(index, &place)
                              : agrees(t, &want, tol, scale, false));
}

/* unfold: [n, c k, positions]; fold: its adjoint, which sums. */
static void window_case(fl_dtype d, layout l, int which, bool fold) {
    const image_case *c = &image_cases[which];
    volume v = volume_of(c, false);
    int64_t in = volume_size(v.in), out = volume_size(v.out), k = volume_size(v.k);
    if (!case_begin(fold ? "fold" : "unfold", d, l, "%d", which)) return;
    fl_shape columns = FL_SHAPE(c->x.dim[0], c->x.dim[1] * k, out), from = fold ? columns : c->x;
    operand x = make_operand(from, d, layout_fits(l, from) ? l : DENSE, TAME);
    array want = new_array(fold ? c->x : columns, d);
    double *scale = take((size_t)want.n * 8 + 8);
    for (int64_t e = 0; e < (fold ? x.a.n : want.n); e++) {
        int64_t at = strided_place(&v, v.out, v.in, e % out, e / out % k);
        int64_t pixel = e / out / k * in + at;
        if (at < 0) continue;
        want.f[fold ? pixel : e] += x.a.f[fold ? e : pixel];
        scale[fold ? pixel : e] += fabs(x.a.f[fold ? e : pixel]);
    }
    fl_unfold_opts o = {.stride = {c->stride}, .dilation = {c->dilation}, .pad = {c->pad}};
    for (int i = 0; i < c->x.ndim - 2; i++) o.kernel[i] = c->kernel[i];
    fl_shape size = {c->x.ndim - 2, {0}};
    for (int i = 0; i < size.ndim; i++) size.dim[i] = c->x.dim[i + 2];
    fl_tensor *t = fold ? fl_fold_opt(x.t, size, o) : fl_unfold_opt(x.t, o);
    case_end(agrees(t, &want, (tolerance){0.5, rounding(l, (double)k), 0}, scale, false));
}

/* >>resampling: the weight of element i of n in element o of `out`, in one dim; a result is the sum
   over all elements of an image, weighted by the product of the dims' */

typedef enum sampling { NEAREST, LINEAR, CUBIC, AREA, CENTRE } sampling;

static double cubic_kernel(double d) {
    double a = -0.75;
    if (d <= 1) return (a + 2) * d * d * d - (a + 3) * d * d + 1;
    return d < 2 ? a * d * d * d - 5 * a * d * d + 8 * a * d - 4 * a : 0;
}

static double sample_weight(sampling how, bool align, int64_t n, int64_t out, int64_t o,
                            int64_t i) {
    double place = align ? out > 1 ? (double)(o * (n - 1)) / (double)(out - 1) : 0
                         : ((double)o + 0.5) * (double)n / (double)out - 0.5, sum = 0;
    if (how == NEAREST) return i == o * n / out;
    if (how == CENTRE) return i == (2 * o + 1) * n / (2 * out);
    if (how == AREA) {
        int64_t low = o * n / out, high = ((o + 1) * n + out - 1) / out;
        return i >= low && i < high ? 1 / (double)(high - low) : 0;
    }
    if (how == LINEAR && place < 0) place = 0;
    for (int64_t tap = (int64_t)floor(place) - 1; tap <= (int64_t)floor(place) + 2; tap++) {
        double far = fabs(place - (double)tap);
        bool here = i == (tap < 0 ? 0 : tap < n ? tap : n - 1);
        if (here) sum += how == CUBIC ? cubic_kernel(far) : far < 1 ? 1 - far : 0;
    }
    return sum;
}

static void sample_case(const char *name, fl_dtype d, layout l, int which, sampling how,
                        bool align) {
    const image_case *c = &image_cases[which];
    static const int64_t sizes[][3] = {{3, 2, 4}, {9, 7, 5}, {1, 8, 2}};
    volume v = volume_of(c, false);
    if (!case_begin(name, d, l, "%d way %d%s", which, how, align ? " align" : "")) return;
    operand x = make_operand(c->x, d, layout_fits(l, c->x) ? l : DENSE, TAME);
    fl_shape size = {c->x.ndim - 2, {0}};
    for (int i = 0; i < 3; i++) v.out[i] = i < 3 - size.ndim ? 1 : sizes[which % 3][i];
    for (int i = 0; i < size.ndim; i++) size.dim[i] = v.out[i + 3 - size.ndim];
    array want = new_array(image_shape(c, c->x.dim[1], v.out), d);
    int64_t in = volume_size(v.in), out = volume_size(v.out);
    double *scale = take((size_t)want.n * 8 + 8);
    for (int64_t e = 0; e < want.n * in; e++) {
        int64_t y = e / in, i = e % in, o = y % out;
        double w = 1;
        for (int at = 2; at >= 0; i /= v.in[at], o /= v.out[at], at--)
            w *= sample_weight(how, align, v.in[at], v.out[at], o % v.out[at], i % v.in[at]);
        want.f[y] += w * x.a.f[y / out * in + e % in];
        scale[y] += (e % in == 0) + /* weights of 0 round too */
                    fabs(w * x.a.f[y / out * in + e % in]);
    }
    bool adaptive = name[0] == 'a';
    fl_tensor *t = adaptive ? fl_adaptive_avg_pool(x.t, size)
                            : fl_interpolate(x.t, size, (fl_interpolation)how, align);
    case_end(agrees(t, &want, (tolerance){1, 64, 0}, scale, false));
}

/* Two taps of each of 5 elements, some outside, and back. */
static void resample_case(fl_dtype d, layout l, fl_shape s, int axis, bool adjoint) {
    if (!case_begin("resample", d, l, "axis %d%s", axis, adjoint ? " adjoint" : "")) return;
    operand x = make_operand(s, d, layout_fits(l, s) ? l : DENSE, TAME);
    enum { K = 2, SIZE = 5 };
    const int64_t n = adjoint ? 4 : s.dim[axis], rows = adjoint ? s.dim[axis] : SIZE;
    fl_shape to = s;
    to.dim[axis] = adjoint ? n : SIZE;
    array want = new_array(to, d), w = random_array(FL_SHAPE(rows, K), d, TAME);
    double *scale = take((size_t)want.n * 8 + 8);
    int64_t at[64], inner = 1;
    unsigned char inside[64];
    for (int64_t i = 0; i < rows * K; i++) at[i] = random_below((int)n), inside[i] = random_below(4) > 0;
    for (int i = axis + 1; i < s.ndim; i++) inner *= s.dim[i];
    for (int64_t i = 0; i < rows * K; i++)
        for (int64_t e = 0; inside[i] && e < fl_shape_numel(s) / s.dim[axis]; e++) {
            const int64_t o = e / inner, j = e % inner;
            const int64_t from = adjoint ? i / K : at[i], put = adjoint ? at[i] : i / K;
            const double part = w.f[i] * x.a.f[(o * s.dim[axis] + from) * inner + j];
            want.f[(o * to.dim[axis] + put) * inner + j] += part;
            scale[(o * to.dim[axis] + put) * inner + j] += fabs(part);
        }
    fl_tensor *y = fl_resample(x.t, fl_from_host(at, FL_SHAPE(rows * K), FL_I64), dense_tensor(&w),
                               fl_from_host(inside, FL_SHAPE(rows, K), FL_B8),
                               (fl_resample_args){axis, to.dim[axis], adjoint});
    case_end(agrees(y, &want, (tolerance){1, 8, 0}, scale, false));
}

static void adaptive_max_case(fl_dtype d, layout l, int which) {
    const image_case *c = &image_cases[which];
    volume v = volume_of(c, false);
    if (!case_begin("adaptive_max_pool", d, l, "%d", which)) return;
    operand x = make_operand(c->x, d, layout_fits(l, c->x) ? l : DENSE, TAME);
    fl_shape size = {c->x.ndim - 2, {3, 2, 2}};
    for (int i = 0; i < 3; i++) v.out[i] = i < 3 - size.ndim ? 1 : size.dim[i - 3 + size.ndim];
    fl_shape s = image_shape(c, c->x.dim[1], v.out);
    array want = new_array(s, d), place = new_array(s, FL_I64);
    int64_t in = volume_size(v.in), out = volume_size(v.out);
    for (int64_t e = 0; e < want.n * in; e++) {
        int64_t y = e / in, i = e % in, o = y % out;
        double w = 1, f = x.a.f[y / out * in + i];
        if (i == 0) want.f[y] = -(double)INFINITY;
        for (int at = 2; at >= 0; i /= v.in[at], o /= v.out[at], at--)
            w *= sample_weight(AREA, false, v.in[at], v.out[at], o % v.out[at], i % v.in[at]);
        if (w > 0 && f > want.f[y]) want.f[y] = f, place.i[y] = e % in;
    }
    fl_tensor *index = NULL, *t = fl_adaptive_max_pool(x.t, size, &index);
    case_end(equals(t, &want) && equals(index, &place));
}

/* >>grids */

/* The place along n elements that g in [-1, 1] stands for. */
static double grid_place(double g, int64_t n, bool align, fl_grid_padding outside) {
    double last = (double)(n - 1), low = align ? 0 : -0.5, length = align ? last : (double)n;
    double at = align ? (g + 1) / 2 * last : ((g + 1) * (double)n - 1) / 2;
    if (outside == FL_GRID_ZEROS) return at;
    if (outside == FL_GRID_REFLECT) {
        double turn = length > 0 ? fmod(fabs(at - low), 2 * length) : 0;
        at = low + (turn > length ? 2 * length - turn : turn);
    }
    return at < 0 ? 0 : at > last ? last : at;
}

static void grid_case(fl_dtype d, layout l, bool align, fl_grid_padding outside) {
    if (!case_begin("grid_sample", d, l, "%d %d", align, outside)) return;
    enum { N = 2, C = 3, H = 4, W = 5, OUT = 6 };
    operand x = make_operand(FL_SHAPE(N, C, H, W), d, l, TAME);
    array grid = random_array(FL_SHAPE(N, OUT, 1, 2), d, TAME);
    array want = new_array(FL_SHAPE(N, C, OUT, 1), d);
    double *scale = take((size_t)want.n * 8);
    for (int64_t e = 0; e < want.n * H * W; e++) {
        int64_t y = e / (H * W), row = e / W % H, column = e % W, o = y % OUT, n = y / OUT / C;
        double gx = grid_place(grid.f[(n * OUT + o) * 2], W, align, outside);
        double gy = grid_place(grid.f[(n * OUT + o) * 2 + 1], H, align, outside);
        double wx = fmax(0, 1 - fabs(gx - (double)column));
        double wy = fmax(0, 1 - fabs(gy - (double)row));
        double f = x.a.f[y / OUT * H * W + row * W + column];
        want.f[y] += wx * wy * f;
        scale[y] += 4; /* the places' rounding moves the weights */
    }
    fl_tensor *t = fl_grid_sample(x.t, dense_tensor(&grid), .align = align, .outside = outside);
    case_end(agrees(t, &want, (tolerance){1, 1, 0}, scale, false));
}

/* Weights of the four cubic neighbours, or of the two linear ones; a place outside is read at its bound. */
static double neighbour(double at, int64_t i, int64_t n, bool cubic, bool align, fl_grid_padding outside) {
    double sum = 0, low = floor(at) - cubic;
    for (int k = 0; k < (cubic ? 4 : 2); k++) {
        double far = fabs(at - low - k), place = low + k, length = align ? (double)(n - 1) : (double)n;
        if (cubic && outside == FL_GRID_REFLECT) {
            double edge = align ? 0 : -0.5, turn = fmod(fabs(place - edge), 2 * length);
            place = edge + (turn > length ? 2 * length - turn : turn);
        }
        if (cubic && outside != FL_GRID_ZEROS) place = fmin(fmax(place, 0), (double)(n - 1));
        if (place == (double)i) sum += cubic ? cubic_kernel(far) : 1 - far;
    }
    return sum;
}

/* Cubic in two dims, linear in three. */
static void grid_more_case(fl_dtype d, layout l, bool cubic, bool align, fl_grid_padding outside) {
    enum { N = 2, C = 2, OUT = 4 };
    const int nd = cubic ? 2 : 3;
    const int64_t size[] = {3, 4, 5}, *dim = size + 3 - nd; /* depth, height, width */
    if (!case_begin("grid_sample", d, l, "%d dims %d %d", nd, align, outside)) return;
    fl_shape sx = {2 + nd, {N, C, dim[0], dim[1], size[2]}}, sg = {2 + nd, {N, OUT, 1, 1, 1}}, sy = sg;
    if (cubic) sx.dim[3] = size[2];
    sg.dim[1 + nd] = nd, sy.dim[1] = C, sy.dim[2] = OUT;
    operand x = make_operand(sx, d, layout_fits(l, sx) ? l : DENSE, TAME);
    array grid = random_array(sg, d, TAME), want = new_array(sy, d);
    int64_t in = x.a.n / N / C;
    double *scale = take((size_t)want.n * 8);
    for (int64_t e = 0; e < want.n * in; e++) {
        int64_t y = e / in, o = y % OUT, n = y / OUT / C, i = e % in;
        double w = 1;
        for (int k = 0; k < nd; i /= dim[nd - 1 - k], k++) { /* x first */
            int64_t length = dim[nd - 1 - k];
            double at = grid_place(grid.f[(n * OUT + o) * nd + k], length, align,
                                   cubic ? FL_GRID_ZEROS : outside);
            w *= neighbour(at, i % length, length, cubic, align, outside);
        }
        want.f[y] += w * x.a.f[y / OUT * in + e % in];
        scale[y] += 8;
    }
    fl_tensor *t = fl_grid_sample(x.t, dense_tensor(&grid), .align = align, .outside = outside,
                                  .cubic = cubic);
    case_end(agrees(t, &want, (tolerance){1, 2, 0}, scale, false));
}

static void affine_case(fl_dtype d, layout l, int64_t h, int64_t w, bool align) {
    if (!case_begin("affine_grid", d, l, "[%d, %d] %d", (int)h, (int)w, align)) return;
    operand theta = make_operand(FL_SHAPE(2, 2, 3), d, l, TAME);
    array want = new_array(FL_SHAPE(2, h, w, 2), d);
    for (int64_t e = 0; e < want.n; e++) {
        int64_t x = e / 2 % w, y = e / 2 / w % h;
        const double *row = theta.a.f + (e / 2 / w / h * 2 + e % 2) * 3;
        double u = align ? w > 1 ? 2.0 * (double)x / (double)(w - 1) - 1 : 0
                         : (double)(2 * x + 1) / (double)w - 1;
        double v = align ? h > 1 ? 2.0 * (double)y / (double)(h - 1) - 1 : 0
                         : (double)(2 * y + 1) / (double)h - 1;
        want.f[e] = row[0] * u + row[1] * v + row[2];
    }
    fl_tensor *t = fl_affine_grid(theta.t, FL_SHAPE(h, w), align);
    case_end(agrees(t, &want, (tolerance){2, 16, 0}, NULL, false));
}

static void resampling_cases(fl_dtype d, layout l) {
    for (int n = 0; n < IMAGES; n++) {
        sample_case("adaptive_avg_pool", d, l, n, AREA, false);
        adaptive_max_case(d, l, n);
        for (int how = NEAREST; how <= CENTRE; how++) {
            sample_case("interpolate", d, l, n, (sampling)how, false);
            if (how == LINEAR || how == CUBIC)
                sample_case("interpolate", d, l, n, (sampling)how, true);
        }
        window_case(d, l, n, false);
        window_case(d, l, n, true);
    }
    for (int i = 0; i < 8 && (d == FL_F32 || d == FL_F64); i++)
        resample_case(d, l, i < 4 ? FL_SHAPE(2, 3, 4, 6) : FL_SHAPE(1, 17, 3, 3), i < 4 ? i : 2 + i % 2,
                      i % 3 == 0);
    max_unpool_case(d, layout_fits(l, FL_SHAPE(2, 3, 5)) ? l : DENSE, FL_SHAPE(2, 3, 5));
    if (layout_fits(l, FL_SHAPE(2, 2, 3, 2))) max_unpool_case(d, l, FL_SHAPE(2, 2, 3, 2));
    for (int i = 0; i < 6; i++) {
        grid_case(d, l, i % 2, (fl_grid_padding)(i / 2));
        grid_more_case(d, l, true, i % 2, (fl_grid_padding)(i / 2));
        grid_more_case(d, l, false, i % 2, (fl_grid_padding)(i / 2));
    }
    for (int i = 0; i < 4; i++) affine_case(d, l, 1 + i, 4 - i, i % 2);
}

static void resampling_group(void) {
    static const char *const names[] = {"avg_pool inside", "lp_pool", "unfold", "fold",
                                        "adaptive_avg_pool", "adaptive_max_pool", "interpolate",
                                        "grid_sample", "affine_grid", "max_unpool"};
    static const char *const bounds[] = {"1 ulp + (4 + sqrt n) eps, of sum |x|",
                                         "1 ulp + (4 + sqrt n) eps, of sum |x|", "exact",
                                         "0.5 ulp + (4 + sqrt n) eps, of sum |x|",
                                         "1 ulp + 64 eps, of 1 + sum |w x|", "exact",
                                         "1 ulp + 64 eps, of 1 + sum |w x|", "1 ulp + 80 eps",
                                         "2 ulp + 16 eps", "exact"};
    for (int i = 0; i < 10; i++) {
        expect_row(names[i], FLOATS, UNWEAK, 0, 0);
        snprintf(row_of(names[i])->tolerance, 64, "%s", bounds[i]);
    }
    expect_row("resample", WIDE_FLOATS, UNWEAK, 0, 0);
    snprintf(row_of("resample")->tolerance, 64, "1 ulp + 8 eps, of sum |w x|");
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; l <= BROADCAST && is_float(all_dtypes[k]); l++) {
            for (int n = 0; n < IMAGES; n++) {
                image_pool_case(all_dtypes[k], (layout)l, n, AVG_POOL_INSIDE);
                image_pool_case(all_dtypes[k], (layout)l, n, LP_POOL);
            }
            resampling_cases(all_dtypes[k], (layout)l);
        }
}

static void image_group(void) {
    static const char *const names[] = {"conv", "conv_transpose", "max_pool", "avg_pool"};
    for (int p = 0; p < 4; p++) {
        expect_row(names[p], FLOATS, UNWEAK, 0, STORED & ~FLOATS);
        snprintf(row_of(names[p])->tolerance, 64, "%s", p == 2 ? "exact" : product_tolerance);
        for (int k = 0; k < DTYPES; k++) {
            fl_dtype d = all_dtypes[k];
            for (int l = DENSE; l <= BROADCAST && is_float(d); l++)
                for (int n = 0; n < IMAGES; n++)
                    if (p < 2) image_conv_case(d, (layout)l, n, p == 1);
                    else {
                        image_pool_case(d, (layout)l, n, p == 2 ? MAX_POOL : AVG_POOL);
                        pool_options_case(d, (layout)l, n, p == 2 ? MAX_POOL : AVG_POOL, n % 2);
                    }
            if (is_float(d) || !case_begin(names[p], d, REFUSED, "[1, 1, 1]")) continue;
            fl_tensor *t = fl_ones(FL_SHAPE(1, 1, 1), d);
            case_end(was_refused(p == 0   ? fl_conv(t, t, NULL)
                                 : p == 1 ? fl_conv_transpose(t, t, NULL)
                                 : p == 2 ? fl_max_pool(t, NULL, .kernel = {1})
                                          : fl_avg_pool(t, .kernel = {1})));
        }
    }
}
/* MIT licence: see LICENSE. */
