/* conformance_image.h - convolution and pooling of 1 to 3 spatial dims

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
    if (transposed) s.output_pad[0] = c->output_pad;
    fl_tensor *t = transposed ? fl_conv_transpose_opt(x.t, w.t, NULL, s)
                              : fl_conv_opt(x.t, w.t, NULL, s);
    int64_t terms = channels / g * volume_size(v.k);
    case_end(product_agrees(t, &want, scale, terms));
}

static void image_pool_case(fl_dtype d, layout l, int which, bool max) {
    const image_case *c = &image_cases[which];
    image_case plain = *c;
    plain.dilation = 1;
    volume v = volume_of(&plain, false);
    if (!case_begin(max ? "max_pool" : "avg_pool", d, l, "%d", which)) return;
    operand x = make_operand(c->x, d, layout_fits(l, c->x) ? l : DENSE, TAME);
    fl_shape s = image_shape(c, c->x.dim[1], v.out);
    array want = new_array(s, d), place = new_array(s, FL_I64);
    double *scale = take((size_t)want.n * 8 + 8);
    int64_t in = volume_size(v.in), out = volume_size(v.out), k = volume_size(v.k);
    for (int64_t e = 0; e < want.n; e++) {
        want.f[e] = max ? -(double)INFINITY : 0;
        for (int64_t j = 0; j < k; j++) {
            int64_t at = strided_place(&v, v.out, v.in, e % out, j);
            double f = at < 0 ? 0 : x.a.f[e / out * in + at];
            scale[e] += fabs(f) / (double)k;
            if (!max) want.f[e] += f / (double)k;
            else if (at >= 0 && f > want.f[e]) want.f[e] = f, place.i[e] = at;
        }
    }
    fl_pool_opts o = {.stride = {c->stride}, .pad = {c->pad}};
    for (int i = 0; i < 3; i++) o.kernel[i] = c->kernel[i];
    fl_tensor *index = NULL;
    fl_tensor *t = max ? fl_max_pool_opt(x.t, &index, o) : fl_avg_pool_opt(x.t, o);
    tolerance tol = {1, rounding(l, (double)k), 0};
    case_end(max ? equals(t, &want) && equals(index, &place) : agrees(t, &want, tol, scale, false));
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
                    else image_pool_case(d, (layout)l, n, p == 2);
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
