/* conformance_neural.h - matrix products, convolution, pooling, softmax, randomness, optimizer
   steps */

/* Sums of products: 1 ulp and (4 + sqrt(terms)) eps of the sum of their absolute values. */
static const char *const product_tolerance = "1 ulp + (4 + sqrt n) eps, of sum |ab|";
static bool product_agrees(fl_tensor *t, const array *want, const double *scale, int64_t terms) {
    return agrees(t, want, (tolerance){1, rounding(case_layout, (double)terms), 0}, scale, false);
}

/* >>matmul */

static const fl_shape matmul_shapes[][2] = {
    {{2, {3, 4}}, {2, {4, 5}}},
    {{2, {1, 1}}, {2, {1, 1}}},
    {{2, {17, 33}}, {2, {33, 19}}},
    {{2, {70, 65}}, {2, {65, 130}}},
    {{1, {4}}, {1, {4}}},
    {{1, {4}}, {2, {4, 5}}},
    {{2, {3, 4}}, {1, {4}}},
    {{1, {4}}, {3, {2, 4, 5}}},
    {{3, {2, 3, 4}}, {1, {4}}},
    {{3, {2, 3, 4}}, {2, {4, 5}}},
    {{2, {3, 4}}, {3, {2, 4, 5}}},
    {{4, {2, 1, 3, 4}}, {3, {5, 4, 2}}},
    {{3, {1, 3, 4}}, {3, {6, 4, 1}}},
    {{2, {3, 0}}, {2, {0, 5}}},
    {{2, {0, 4}}, {2, {4, 5}}},
    {{3, {0, 3, 4}}, {2, {4, 5}}},
    {{2, {1, 300}}, {2, {300, 1}}},
    {{2, {2, 513}}, {2, {513, 7}}},
    {{8, {1, 2, 1, 2, 1, 1, 2, 3}}, {2, {3, 2}}},
    {{2, {257, 3}}, {2, {3, 129}}},
    {{2, {17, 300}}, {2, {300, 1024}}}, /* two chunks of k, rows of b a page apart */
};
enum { MATMULS = sizeof matmul_shapes / sizeof *matmul_shapes };

static void matmul_reference(const array *a, const array *b, array *want, double *scale) {
    int64_t k = a->shape.dim[a->shape.ndim - 1],
            n = b->shape.ndim > 1 ? b->shape.dim[b->shape.ndim - 1] : 1;
    int64_t m = a->shape.ndim > 1 ? a->shape.dim[a->shape.ndim - 2] : 1, c[FL_MAX_DIMS] = {0};
    fl_shape ba = a->shape, bb = b->shape;
    ba.ndim = ba.ndim > 2 ? ba.ndim - 2 : 0;
    bb.ndim = bb.ndim > 2 ? bb.ndim - 2 : 0;
    fl_shape batch = broadcast_shape(ba, bb);
    for (int64_t e = 0; e < want->n; e++) {
        coords_of(batch, e / (m * n), c);
        const int64_t at = index_of(ba, c + batch.ndim - ba.ndim) * m * k + e / n % m * k;
        const int64_t bt = index_of(bb, c + batch.ndim - bb.ndim) * k * n + e % n;
        for (int64_t i = 0; i < k; i++) {
            double p = a->f[at + i] * b->f[bt + i * n];
            if (is_float(want->dtype)) want->f[e] += p;
            else put_int(want, e, i_add(want->i[e], i_mul(a->i[at + i], b->i[bt + i * n])));
            scale[e] += fabs(p);
        }
    }
}

static void matmul_case(fl_dtype d, layout l, int which) {
    fl_shape sa = matmul_shapes[which][0], sb = matmul_shapes[which][1], s = {0, {0}};
    if (!case_begin("matmul", d, l, "%d", which)) return;
    bool left = random_below(3) != 0, right = !left || random_below(2);
    operand a = make_operand(sa, d, left && layout_fits(l, sa) ? l : DENSE, TAME);
    operand b = make_operand(sb, d, right && layout_fits(l, sb) ? l : DENSE, TAME);
    fl_shape ba = sa, bb = sb;
    ba.ndim = ba.ndim > 2 ? ba.ndim - 2 : 0;
    bb.ndim = bb.ndim > 2 ? bb.ndim - 2 : 0;
    s = broadcast_shape(ba, bb);
    if (sa.ndim > 1) s.dim[s.ndim++] = sa.dim[sa.ndim - 2];
    if (sb.ndim > 1) s.dim[s.ndim++] = sb.dim[sb.ndim - 1];
    array want = new_array(s, d);
    double *scale = take((size_t)want.n * 8 + 8);
    matmul_reference(&a.a, &b.a, &want, scale);
    case_end(product_agrees(fl_matmul(a.t, b.t), &want, scale, sa.dim[sa.ndim - 1]));
}

static void matmul_group(void) {
    expect_row("matmul", NUMBERS, UNWEAK, 0, STORED & ~NUMBERS);
    snprintf(row_of("matmul")->tolerance, 64, "%s", product_tolerance);
    for (int k = 0; k < DTYPES; k++) {
        fl_dtype d = all_dtypes[k];
        for (int l = DENSE; l <= BROADCAST && takes(NUMBERS, d); l++)
            for (int n = 0; n < MATMULS; n++)
                if (layout_fits((layout)l, matmul_shapes[n][0]) ||
                    layout_fits((layout)l, matmul_shapes[n][1]))
                    matmul_case(d, (layout)l, n);
        if (takes(NUMBERS, d) || !case_begin("matmul", d, REFUSED, "[2, 2]")) continue;
        array x = random_array(FL_SHAPE(2, 2), d, TAME);
        case_end(was_refused(fl_matmul(dense_tensor(&x), dense_tensor(&x))));
    }
    fl_scope s = fl_scope_begin();
    fl_tensor *a = fl_ones(FL_SHAPE(2, 3), FL_F32);
    check(fails(fl_matmul(a, a)), "matmul of [2, 3] and [2, 3]");
    check(fails(fl_matmul(a, fl_ones(FL_SCALAR_SHAPE, FL_F32))), "matmul of a 0-d tensor");
    check(fails(fl_matmul(fl_ones(FL_SHAPE(2, 2, 3), FL_F32), fl_ones(FL_SHAPE(3, 3, 2), FL_F32))),
          "matmul of batches 2 and 3");
    fl_scope_end(&s);
}

/* >>conv2d */

typedef struct conv_case {
    int64_t n, c, h, w, o, kh, kw, stride, stride_w, pad, pad_w, dilation, dilation_w, groups;
} conv_case;
static const conv_case conv_cases[] = {
    {2, 3, 5, 6, 4, 3, 3, 1, 1, 0, 0, 1, 1, 1},
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1},
    {2, 2, 7, 8, 3, 3, 2, 2, 1, 1, 0, 1, 1, 1},
    {1, 4, 6, 6, 6, 3, 3, 1, 1, 1, 1, 1, 1, 2},
    {2, 4, 5, 5, 4, 3, 3, 1, 1, 1, 1, 1, 1, 4},
    {1, 2, 9, 9, 2, 3, 3, 1, 1, 2, 2, 2, 2, 1},
    {1, 3, 8, 7, 2, 5, 5, 1, 1, FL_SAME, FL_SAME, 1, 1, 1},
    {1, 2, 8, 7, 3, 4, 3, 2, 3, FL_SAME, FL_SAME, 1, 1, 1},
    {3, 2, 6, 5, 5, 1, 1, 1, 1, 0, 0, 1, 1, 1},
    {1, 2, 10, 11, 2, 3, 2, 3, 2, 1, 2, 2, 3, 1},
    {2, 3, 4, 4, 2, 4, 4, 1, 1, 0, 0, 1, 1, 1},
    {0, 2, 5, 5, 3, 3, 3, 1, 1, 0, 0, 1, 1, 1},
    {1, 16, 12, 12, 20, 3, 3, 1, 1, 1, 1, 1, 1, 1},
    {1, 8, 14, 14, 8, 3, 3, 2, 2, 1, 1, 1, 1, 8},
};
enum { CONVS = sizeof conv_cases / sizeof *conv_cases };

static int64_t padding(int64_t pad, int64_t n, int64_t k, int64_t dilation, int64_t stride,
                       bool high) {
    if (pad != FL_SAME) return pad;
    int64_t out = (n + stride - 1) / stride, all = (out - 1) * stride + dilation * (k - 1) + 1 - n;
    if (all < 0) all = 0;
    return high ? all - all / 2 : all / 2;
}

/* The convolution as triples of elements: y[y_at] += x[x_at] * w[w_at], for all of them. */
typedef void (*triple_fn)(void *user, int64_t y_at, int64_t x_at, int64_t w_at);
static fl_shape conv_output(const conv_case *c) {
    int64_t oh = (c->h + padding(c->pad, c->h, c->kh, c->dilation, c->stride, false) +
                  padding(c->pad, c->h, c->kh, c->dilation, c->stride, true) -
                  c->dilation * (c->kh - 1) - 1) /
                     c->stride +
                 1;
    int64_t ow = (c->w + padding(c->pad_w, c->w, c->kw, c->dilation_w, c->stride_w, false) +
                  padding(c->pad_w, c->w, c->kw, c->dilation_w, c->stride_w, true) -
                  c->dilation_w * (c->kw - 1) - 1) /
                     c->stride_w +
                 1;
    return FL_SHAPE(c->n, c->o, oh, ow);
}

static void each_triple(const conv_case *c, triple_fn fn, void *user) {
    fl_shape y = conv_output(c), w = FL_SHAPE(c->o, c->c / c->groups, c->kh, c->kw);
    int64_t top = padding(c->pad, c->h, c->kh, c->dilation, c->stride, false);
    int64_t left = padding(c->pad_w, c->w, c->kw, c->dilation_w, c->stride_w, false);
    int64_t at[4], k[4], y_n = y.dim[0] * y.dim[1] * y.dim[2] * y.dim[3],
                         w_n = w.dim[1] * w.dim[2] * w.dim[3];
    for (int64_t i = 0; i < y_n; i++) {
        coords_of(y, i, at);
        for (int64_t j = 0; j < w_n; j++) {
            coords_of(w, at[1] * w_n + j, k);
            int64_t row = at[2] * c->stride - top + k[2] * c->dilation,
                    col = at[3] * c->stride_w - left + k[3] * c->dilation_w;
            int64_t channel = at[1] / (c->o / c->groups) * (c->c / c->groups) + k[1];
            if (row < 0 || row >= c->h || col < 0 || col >= c->w) continue;
            fn(user, i, ((at[0] * c->c + channel) * c->h + row) * c->w + col, at[1] * w_n + j);
        }
    }
}

enum { CONV_GRAD_INPUT, CONV_GRAD_WEIGHT, CONV_PLAIN, CONV_BIAS, CONV_OPS };
static const char *const conv_names[] = {"conv2d_grad_input", "conv2d_grad_weight", "conv2d",
                                         "conv2d_bias"};

/* What one of the three products adds up: out += a * b over the triples. */
typedef struct conv_sum {
    array *out;
    const array *a, *b;
    double *scale;
    int op; /* y from x, w; dx from dy, w; dw from x, dy */
} conv_sum;
static void add_triple(void *user, int64_t y_at, int64_t x_at, int64_t w_at) {
    conv_sum *s = user;
    const bool data = s->op == CONV_GRAD_INPUT, weight = s->op == CONV_GRAD_WEIGHT;
    int64_t out = data ? x_at : weight ? w_at : y_at;
    double p = s->a->f[data ? y_at : x_at] * s->b->f[weight ? y_at : w_at];
    s->out->f[out] += p;
    s->scale[out] += fabs(p);
}

static fl_conv_opts conv_options(const conv_case *c, bool relu) {
    return (fl_conv_opts){.stride = {c->stride, c->stride_w},
                          .pad = {c->pad ? c->pad : FL_I0, c->pad_w ? c->pad_w : FL_I0},
                          .dilation = {c->dilation, c->dilation_w},
                          .groups = c->groups,
                          .relu = relu};
}

static fl_conv2d_args conv_args(const conv_case *c) {
    fl_conv2d_args a = {.stride = {c->stride, c->stride_w}, .dilation = {c->dilation, c->dilation_w},
                        .groups = c->groups};
    for (int high = 0; high < 2; high++) {
        int64_t *pad = high ? a.pad_hi : a.pad_lo;
        pad[0] = padding(c->pad, c->h, c->kh, c->dilation, c->stride, high);
        pad[1] = padding(c->pad_w, c->w, c->kw, c->dilation_w, c->stride_w, high);
    }
    return a;
}

static void conv_case_run(fl_dtype d, layout l, int which, int op) {
    const conv_case *c = &conv_cases[which];
    if (!case_begin(conv_names[op], d, l, "%d", which)) return;
    fl_shape sx = FL_SHAPE(c->n, c->c, c->h, c->w),
             sw = FL_SHAPE(c->o, c->c / c->groups, c->kh, c->kw), sy = conv_output(c);
    operand a = make_operand(op == CONV_GRAD_INPUT ? sy : sx, d, l, TAME),
            b = make_operand(op == CONV_GRAD_WEIGHT ? sy : sw, d, l, TAME);
    array want = new_array(op == CONV_GRAD_INPUT ? sx : op == CONV_GRAD_WEIGHT ? sw : sy, d),
          bias = random_array(FL_SHAPE(c->o), d, TAME);
    conv_sum sum = {&want, &a.a, &b.a, take((size_t)want.n * 8 + 8), op};
    if (op == CONV_BIAS)
        for (int64_t k = 0; k < want.n; k++)
            want.f[k] = bias.f[k / (sy.dim[2] * sy.dim[3]) % c->o], sum.scale[k] = 2;
    each_triple(c, add_triple, &sum);
    const bool relu = op == CONV_BIAS && which % 2;
    for (int64_t k = 0; relu && k < want.n; k++) want.f[k] = fmax(want.f[k], 0);
    const fl_conv2d_args args = conv_args(c);
    fl_tensor *more = op == CONV_BIAS ? lay_out(&bias, l == REVERSED ? REVERSED : DENSE) : NULL;
    fl_tensor *t = op == CONV_GRAD_INPUT    ? fl_conv2d_grad_input(a.t, b.t, sx, args)
                   : op == CONV_GRAD_WEIGHT ? fl_conv2d_grad_weight(a.t, b.t, sw, args)
                                            : fl_conv_opt(a.t, b.t, more, conv_options(c, relu));
    int64_t terms = op == CONV_GRAD_WEIGHT ? sy.dim[0] * sy.dim[2] * sy.dim[3] : c->c * c->kh * c->kw;
    case_end(product_agrees(t, &want, sum.scale, terms));
}

static void conv_group(void) {
    for (int op = 0; op < CONV_OPS; op++) {
        expect_row(conv_names[op], FLOATS, UNWEAK, 0, STORED & ~FLOATS);
        snprintf(row_of(conv_names[op])->tolerance, 64, "%s", product_tolerance);
        for (int k = 0; k < DTYPES; k++) {
            fl_dtype d = all_dtypes[k];
            for (int l = DENSE; l <= BROADCAST && is_float(d); l++)
                for (int n = 0; n < CONVS; n++) conv_case_run(d, (layout)l, n, op);
            if (is_float(d) || !case_begin(conv_names[op], d, REFUSED, "[1, 1, 1, 1]")) continue;
            fl_tensor *t = fl_ones(FL_SHAPE(1, 1, 1, 1), d), *bias = fl_ones(FL_SHAPE(1), d);
            fl_conv2d_args a = {{1, 1}, {0, 0}, {0, 0}, {1, 1}, 1, false};
            case_end(was_refused(
                op == CONV_GRAD_INPUT    ? fl_conv2d_grad_input(t, t, fl_shape_of(t), a)
                : op == CONV_GRAD_WEIGHT ? fl_conv2d_grad_weight(t, t, fl_shape_of(t), a)
                                         : fl_conv(t, t, op == CONV_BIAS ? bias : NULL)));
        }
    }
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(1, 4, 5, 5), FL_F32),
              *w = fl_ones(FL_SHAPE(2, 4, 3, 3), FL_F32);
    check(fails(fl_conv(x, fl_ones(FL_SHAPE(2, 3, 3, 3), FL_F32), NULL)), "conv2d of 4 channels by 3");
    check(fails(fl_conv(x, w, NULL, .groups = 2)), "conv2d of 4 channels by 2 groups of 4");
    check(fails(fl_conv(x, w, NULL, .dilation = {3})), "conv2d of a kernel larger than the image");
    check(fails(fl_conv(x, w, NULL, .stride = {-1})), "conv2d of a negative stride");
    check(fails(fl_conv(x, w, fl_ones(FL_SHAPE(3), FL_F32))),
          "conv2d of a bias of 3 for 2");
    check(fails(fl_conv(x, fl_ones(FL_SHAPE(4, 3, 3), FL_F32), NULL)),
          "conv2d of a kernel of three dims");
    fl_scope_end(&s);
}

/* >>pooling */

typedef struct pool_case {
    int64_t n, c, h, w, kernel, kernel_w, stride, stride_w, pad, pad_w;
    bool ignore_pad;
} pool_case;
static const pool_case pool_cases[] = {
    {2, 3, 6, 8, 2, 2, 2, 2, 0, 0, false},
    {1, 2, 7, 5, 3, 2, 2, 1, 1, 1, false},
    {1, 1, 1, 1, 1, 1, 1, 1, 0, 0, false},
    {2, 2, 5, 5, 3, 3, 1, 1, 1, 1, true},
    {1, 2, 9, 7, 3, 3, 2, 2, FL_SAME, FL_SAME, true},
    {1, 1, 4, 4, 4, 4, 4, 4, 0, 0, false},
    {2, 1, 5, 6, 2, 3, 3, 2, 0, 1, false},
    {0, 2, 4, 4, 2, 2, 2, 2, 0, 0, false},
    {1, 3, 20, 33, 2, 2, 2, 2, 0, 0, false},
};
enum { POOLS = sizeof pool_cases / sizeof *pool_cases };

static fl_pool_opts pool_options(const pool_case *c) {
    return (fl_pool_opts){.kernel = {c->kernel, c->kernel_w},
                          .stride = {c->stride, c->stride_w},
                          .pad = {c->pad ? c->pad : FL_I0, c->pad_w ? c->pad_w : FL_I0},
                          .ignore_pad = c->ignore_pad};
}

static int64_t pool_low(const pool_case *c, int i) {
    return i ? padding(c->pad_w, c->w, c->kernel_w, 1, c->stride_w, false)
             : padding(c->pad, c->h, c->kernel, 1, c->stride, false);
}

static fl_shape pool_output(const pool_case *c) {
    int64_t high = padding(c->pad, c->h, c->kernel, 1, c->stride, true);
    int64_t high_w = padding(c->pad_w, c->w, c->kernel_w, 1, c->stride_w, true);
    return FL_SHAPE(c->n, c->c, (c->h + pool_low(c, 0) + high - c->kernel) / c->stride + 1,
                    (c->w + pool_low(c, 1) + high_w - c->kernel_w) / c->stride_w + 1);
}

/* The window of output element i: first row and column (may be outside), its image's start in x. */
static void window_of(const pool_case *c, int64_t i, int64_t *row, int64_t *col, int64_t *image) {
    int64_t at[4];
    coords_of(pool_output(c), i, at);
    *row = at[2] * c->stride - pool_low(c, 0);
    *col = at[3] * c->stride_w - pool_low(c, 1);
    *image = (at[0] * c->c + at[1]) * c->h * c->w;
}

/* Sum, number inside and first maximum of a window. */
static void window_read(const pool_case *c, const array *x, int64_t i, double *sum, double *size,
                        int64_t *inside, int64_t *best) {
    int64_t row, col, image;
    window_of(c, i, &row, &col, &image);
    *sum = *size = 0;
    *inside = 0;
    *best = -1;
    for (int64_t r = row; r < row + c->kernel; r++)
        for (int64_t k = col; k < col + c->kernel_w; k++) {
            if (r < 0 || r >= c->h || k < 0 || k >= c->w) continue;
            int64_t at = r * c->w + k;
            double v = x->f[image + at], b = *best < 0 ? -INFINITY : x->f[image + *best];
            *sum += v;
            *size += fabs(v);
            ++*inside;
            if (*best < 0 || (!isnan(b) && (isnan(v) || v > b))) *best = at;
        }
}

static void max_pool_case(fl_dtype d, layout l, int which) {
    const pool_case *c = &pool_cases[which];
    if (!case_begin("max_pool2d", d, l, "%d", which)) return;
    operand x = make_operand(FL_SHAPE(c->n, c->c, c->h, c->w), d, l, which % 2 ? WILD : TAME);
    array want = new_array(pool_output(c), d), index = new_array(want.shape, FL_I64);
    for (int64_t i = 0; i < want.n; i++) {
        double sum, size;
        int64_t inside, best, row, col, image;
        window_read(c, &x.a, i, &sum, &size, &inside, &best);
        window_of(c, i, &row, &col, &image);
        put_from(&want, i, &x.a, image + best);
        put_int(&index, i, best);
    }
    fl_tensor *at = NULL, *y = fl_max_pool_opt(x.t, &at, pool_options(c));
    case_end(equals(y, &want) && equals(at, &index));
}

static void max_pool_grad_case(fl_dtype d, layout l, int which) {
    const pool_case *c = &pool_cases[which];
    if (!case_begin("max_pool2d_grad", d, l, "%d", which)) return;
    fl_shape sx = FL_SHAPE(c->n, c->c, c->h, c->w), sy = pool_output(c);
    operand dy = make_operand(sy, d, l, TAME);
    array index = random_index(sy, c->h * c->w), want = new_array(sx, d);
    double *scale = take((size_t)want.n * 8 + 8);
    for (int64_t i = 0; i < dy.a.n; i++) {
        int64_t at = i / (sy.dim[2] * sy.dim[3]) * c->h * c->w + index.i[i];
        want.f[at] += dy.a.f[i];
        scale[at] += fabs(dy.a.f[i]);
    }
    fl_tensor *t = fl_max_pool2d_grad(dy.t, lay_out(&index, l > CHANNELS_LAST ? DENSE : l), sx);
    case_end(agrees(t, &want, (tolerance){1, 4, 0}, scale, false));
}

static void avg_pool_case(fl_dtype d, layout l, int which, bool grad) {
    const pool_case *c = &pool_cases[which];
    if (!case_begin(grad ? "avg_pool2d_grad" : "avg_pool2d", d, l, "%d", which)) return;
    fl_shape sx = FL_SHAPE(c->n, c->c, c->h, c->w), sy = pool_output(c);
    operand in = make_operand(grad ? sy : sx, d, l, TAME);
    array want = new_array(grad ? sx : sy, d), x = grad ? new_array(sx, d) : in.a;
    double *scale = take((size_t)want.n * 8 + 8);
    int64_t windows = grad ? in.a.n : want.n;
    for (int64_t i = 0; i < windows; i++) {
        double sum, size;
        int64_t inside, best, row, col, image;
        window_read(c, &x, i, &sum, &size, &inside, &best);
        window_of(c, i, &row, &col, &image);
        double count = c->ignore_pad ? (double)inside : (double)(c->kernel * c->kernel_w);
        if (!grad) want.f[i] = sum / count, scale[i] = size / count;
        for (int64_t r = row; grad && r < row + c->kernel; r++)
            for (int64_t k = col; k < col + c->kernel_w; k++) {
                if (r < 0 || r >= c->h || k < 0 || k >= c->w) continue;
                want.f[image + r * c->w + k] += in.a.f[i] / count;
                scale[image + r * c->w + k] += fabs(in.a.f[i] / count);
            }
    }
    const fl_pool2d_args a = {{c->kernel, c->kernel_w}, {c->stride, c->stride_w},
                              {pool_low(c, 0), pool_low(c, 1)},
                              {padding(c->pad, c->h, c->kernel, 1, c->stride, true),
                               padding(c->pad_w, c->w, c->kernel_w, 1, c->stride_w, true)},
                              !c->ignore_pad, false};
    fl_tensor *t = grad ? fl_avg_pool2d_grad(in.t, sx, a) : fl_avg_pool_opt(in.t, pool_options(c));
    case_end(agrees(t, &want, (tolerance){1, 8, 0}, scale, false));
}

static void pool_refused(const char *name, fl_dtype d, int which) {
    if (!case_begin(name, d, REFUSED, "[1, 1, 2, 2]")) return;
    fl_tensor *t = fl_ones(FL_SHAPE(1, 1, 2, 2), d), *i = fl_zeros(FL_SHAPE(1, 1, 2, 2), FL_I64);
    fl_pool2d_args a = {{1, 1}, {1, 1}, {0, 0}, {0, 0}, true, false};
    fl_shape s = FL_SHAPE(1, 1, 2, 2);
    case_end(was_refused(which == 0   ? fl_max_pool(t, NULL, .kernel = {2})
                         : which == 1 ? fl_max_pool2d_grad(t, i, s)
                         : which == 2 ? fl_avg_pool(t, .kernel = {2})
                                      : fl_avg_pool2d_grad(t, s, a)));
}

static void pool_group(int which) {
    static const char *const names[] = {"max_pool2d", "max_pool2d_grad", "avg_pool2d",
                                        "avg_pool2d_grad"};
    expect_row(names[which], FLOATS, UNWEAK, 0, STORED & ~FLOATS);
    snprintf(row_of(names[which])->tolerance, 64, "%s",
             which ? "1 ulp + 8 eps, of sum |x|" : "exact");
    for (int k = 0; k < DTYPES; k++) {
        fl_dtype d = all_dtypes[k];
        if (!is_float(d)) pool_refused(names[which], d, which);
        for (int l = DENSE; l <= BROADCAST && is_float(d); l++)
            for (int n = 0; n < POOLS; n++) {
                if (which == 0) max_pool_case(d, (layout)l, n);
                else if (which == 1) max_pool_grad_case(d, (layout)l, n);
                else avg_pool_case(d, (layout)l, n, which == 3);
            }
    }
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(1, 1, 4, 4), FL_F32);
    check(fails(fl_max_pool(x, NULL, .kernel = {5})), "a window larger than the image");
    check(fails(fl_avg_pool(x, .kernel = {2}, .pad = {2})), "padding of more than half a window");
    check(fails(fl_max_pool(fl_ones(FL_SHAPE(4, 4), FL_F32), NULL, .kernel = {2})), "pooling of a matrix");
    fl_scope_end(&s);
}

/* >>softmax */

/* Rows along axis: for result j of the reduction, the elements k with result_of(...) == j. */
static void soft_reference(const array *x, int axis, bool log_, array *y) {
    array max = new_array(with_ones(x->shape, 1u << axis), x->dtype);
    long double *sum = take((size_t)max.n * sizeof *sum);
    for (int64_t j = 0; j < max.n; j++) max.f[j] = -INFINITY;
    for (int64_t k = 0; k < x->n; k++) {
        int64_t j = result_of(x->shape, 1u << axis, k);
        max.f[j] = f_max(max.f[j], x->f[k]);
    }
    for (int64_t k = 0; k < x->n; k++) {
        int64_t j = result_of(x->shape, 1u << axis, k);
        sum[j] += exp(x->f[k] - max.f[j]);
    }
    for (int64_t k = 0; k < x->n; k++) {
        int64_t j = result_of(x->shape, 1u << axis, k);
        double d = x->f[k] - max.f[j];
        y->f[k] = log_ ? d - log((double)sum[j]) : exp(d) / (double)sum[j];
    }
}

static void softmax_case(fl_dtype d, layout l, fl_shape s, int axis, bool log_, double stretch) {
    char text[100];
    if (!case_begin(log_ ? "log_softmax" : "softmax", d, l, "%s axis %d times %g",
                    fl_shape_text(s, text, sizeof text), axis, stretch))
        return;
    operand x = make_operand(s, d, l, TAME);
    for (int64_t k = 0; k < x.a.n; k++) put_float(&x.a, k, x.a.f[k] * stretch);
    if (stretch != 1) x.t = fl_mul(x.t, fl_num(stretch));
    array y = new_array(s, is_float(d) ? d : FL_F32);
    double *scale = take((size_t)y.n * 8 + 8), n = s.dim[axis] ? (double)s.dim[axis] : 1;
    soft_reference(&x.a, axis, log_, &y);
    for (int64_t k = 0; k < y.n; k++)
        scale[k] = log_ ? 1 + fabs(x.a.f[k]) : fabs(y.f[k]) * (1 + fabs(x.a.f[k])) + FLT_MIN;
    fl_tensor *t = log_ ? fl_log_softmax(x.t, axis - s.ndim) : fl_softmax(x.t, axis);
    case_end(agrees(t, &y, (tolerance){2, 4 + rounding(l, n), 0}, scale, false));
}

static void softmax_grad_case(fl_dtype d, layout l, fl_shape s, int axis, bool log_) {
    char text[100];
    if (!case_begin(log_ ? "log_softmax_grad" : "softmax_grad", d, l, "%s axis %d",
                    fl_shape_text(s, text, sizeof text), axis))
        return;
    operand y = make_operand(s, d, l, TAME), dy = make_operand(s, d, l, TAME);
    array want = new_array(s, d), size = new_array(with_ones(s, 1u << axis), d);
    long double *sum = take((size_t)size.n * sizeof *sum);
    double *scale = take((size_t)want.n * 8 + 8);
    for (int64_t k = 0; k < want.n; k++) {
        int64_t j = result_of(s, 1u << axis, k);
        double v = log_ ? dy.a.f[k] : dy.a.f[k] * y.a.f[k];
        sum[j] += v;
        size.f[j] += fabs(v);
    }
    for (int64_t k = 0; k < want.n; k++) {
        int64_t j = result_of(s, 1u << axis, k);
        double yk = y.a.f[k], gk = dy.a.f[k];
        want.f[k] = log_ ? gk - exp(yk) * (double)sum[j] : yk * (gk - (double)sum[j]);
        scale[k] = log_ ? fabs(gk) + exp(yk) * size.f[j] : fabs(yk) * (fabs(gk) + size.f[j]);
    }
    fl_tensor *t = log_ ? fl_log_softmax_grad(y.t, dy.t, axis)
                        : fl_softmax_grad(y.t, dy.t, axis - s.ndim);
    case_end(agrees(t, &want,
                    (tolerance){2, 4 + rounding(l, s.dim[axis] ? (double)s.dim[axis] : 1), 0},
                    scale, false));
}

static void softmax_group(int which) {
    static const char *const names[] = {"softmax", "log_softmax", "softmax_grad",
                                        "log_softmax_grad"};
    bool grad = which >= 2;
    expect_row(names[which], grad ? FLOATS : STORED, UNWEAK, 0, grad ? STORED & ~FLOATS : 0);
    snprintf(row_of(names[which])->tolerance, 64, "2 ulp + (8 + sqrt n) eps, of %s",
             which ? "1 + |x|" : "y (1 + |x|)");
    for (int k = 0; k < DTYPES; k++) {
        fl_dtype d = all_dtypes[k];
        if (grad && !is_float(d)) {
            if (!case_begin(names[which], d, REFUSED, "[3]")) continue;
            fl_tensor *t = fl_ones(FL_SHAPE(3), d);
            case_end(
                was_refused(which == 2 ? fl_softmax_grad(t, t, 0) : fl_log_softmax_grad(t, t, 0)));
            continue;
        }
        for (int l = DENSE; l <= BROADCAST; l++)
            for (int s = 0; s < SHAPES - 1; s++)
                for (int axis = 0; axis < shapes[s].ndim; axis++) {
                    if (!layout_fits((layout)l, shapes[s]) ||
                        (!is_float(d) && d != FL_I64 && s % 4))
                        continue;
                    if (grad) softmax_grad_case(d, (layout)l, shapes[s], axis, which == 3);
                    else softmax_case(d, (layout)l, shapes[s], axis, which == 1, 1);
                }
    }
    if (!grad) softmax_case(FL_F32, DENSE, FL_SHAPE(4, 9), 1, which == 1, 1e4);
}

/* >>randomness: Philox 4x32-10 from the paper, and its use from fl_random_args */

static void philox(uint64_t key, uint64_t counter, uint32_t out[4]) {
    uint32_t x[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0},
             k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53 * x[0], p1 = (uint64_t)0xCD9E8D57 * x[2];
        uint32_t y[4] = {(uint32_t)(p1 >> 32) ^ x[1] ^ k[0], (uint32_t)p1,
                         (uint32_t)(p0 >> 32) ^ x[3] ^ k[1], (uint32_t)p0};
        memcpy(x, y, sizeof x);
        k[0] += 0x9E3779B9;
        k[1] += 0xBB67AE85;
    }
    memcpy(out, x, sizeof x);
}

static uint32_t philox_word(fl_rng r, int64_t i) {
    uint32_t w[4];
    philox(r.key, r.counter + (uint64_t)i / 4, w);
    return w[i % 4];
}

static double uniform_01(fl_rng r, int64_t i, fl_dtype d) {
    if (d == FL_F32) return (double)(philox_word(r, i) >> 8) * 0x1p-24;
    uint64_t low = philox_word(r, 2 * i) >> 6, high = philox_word(r, 2 * i + 1) >> 5;
    return (double)(high << 26 | low) * 0x1p-53;
}

/* Pair j: radius from the first uniform, angle from the second. f32: 31 bits and a half for the
   radius; the angle's top two bits are its quadrant, the other 30, signed, its place around the
   quadrant's middle. f64: 53 bits for each. */
static double normal_01(fl_rng r, int64_t i, fl_dtype d) {
    double u, turn, two_pi = 2 * acos(-1);
    if (d == FL_F32) {
        uint32_t angle = philox_word(r, i | 1);
        u = (double)((float)(philox_word(r, i & ~1) >> 1) * 0x1p-31f + 0x1p-32f);
        turn = ((double)(angle >> 30) + (double)(int32_t)(angle << 2) * 0x1p-32) / 4;
    } else {
        uint64_t w[4];
        for (int k = 0; k < 4; k++) w[k] = philox_word(r, 2 * (i & ~1) + k);
        u = 1 - (double)(w[0] >> 5 << 26 | w[1] >> 6) * 0x1p-53;
        turn = (double)(w[2] >> 5 << 26 | w[3] >> 6) * 0x1p-53;
    }
    return sqrt(-2 * log(u)) * (i % 2 ? sin(turn * two_pi) : cos(turn * two_pi));
}

__extension__ typedef unsigned __int128 two_words;
static int64_t integer_in(fl_rng r, int64_t i, int64_t low, int64_t high) {
    uint64_t bits = (uint64_t)philox_word(r, 2 * i + 1) << 32 | philox_word(r, 2 * i),
             n = (uint64_t)high - (uint64_t)low;
    return (int64_t)((uint64_t)low + (uint64_t)((two_words)bits * n >> 64));
}

static void random_case(fl_dtype d, int dist, int s, fl_rng rng) {
    char text[100];
    if (!case_begin("random", d, DENSE, "dist %d %s", dist,
                    fl_shape_text(shapes[s], text, sizeof text)))
        return;
    fl_rng r = rng;
    double a = s % 2 ? -1 : 0, b = s % 2 ? 2.5 : 1;
    int64_t low = s % 2 ? -5 : INT64_MIN, high = s % 2 ? 12 : INT64_MAX;
    fl_tensor *t = dist == FL_UNIFORM ? fl_uniform(shapes[s], a, b, d, &r)
                   : dist == FL_NORMAL ? fl_normal(shapes[s], a, b, d, &r)
                                       : fl_randint(shapes[s], low, high, &r);
    array want = new_array(shapes[s], d);
    double *scale = take((size_t)want.n * 8 + 8);
    for (int64_t i = 0; i < want.n; i++) {
        if (dist == FL_INTEGER) {
            put_int(&want, i, integer_in(rng, i, low, high));
            continue;
        }
        double z = dist == FL_UNIFORM ? uniform_01(rng, i, d) : normal_01(rng, i, d);
        double width = dist == FL_UNIFORM ? b - a : b, product = rounded(rounded(width, d) * z, d);
        want.f[i] = dist == FL_UNIFORM ? rounded(a + product, d) : a + width * z;
        scale[i] = fabs(width) * (1 + fabs(z));
    }
    bool exact = dist != FL_NORMAL,
         ok = exact ? equals(t, &want) : agrees(t, &want, (tolerance){4, 4, 0}, scale, false);
    if (ok && r.counter == rng.counter && want.n) ok = say("the generator did not advance");
    case_end(ok);
}

static void random_group(void) {
    expect_row("random", WIDE_FLOATS | I64, PLAIN, 0, STORED & ~FLOATS & ~I64);
    snprintf(row_of("random")->tolerance, 64, "exact; normals 4 ulp + 4 eps, of 1 + |x|");
    for (int s = 0; s < SHAPES; s++) {
        fl_rng rng = {0x0123456789abcdefu * (uint64_t)(s + 1),
                      s % 3 == 2 ? 0xfffffffeu : (uint64_t)s << 33};
        for (int d = FL_F32; d <= FL_F64; d++)
            for (int dist = FL_UNIFORM; dist <= FL_NORMAL; dist++)
                random_case((fl_dtype)d, dist, s, rng);
        random_case(FL_I64, FL_INTEGER, s, rng);
    }
    for (int k = 0; k < DTYPES; k++) {
        if (is_float(all_dtypes[k]) || all_dtypes[k] == FL_I64) continue;
        if (!case_begin("random", all_dtypes[k], REFUSED, "[3]")) continue;
        case_end(was_refused(fl_uniform(FL_SHAPE(3), 0, 1, all_dtypes[k], NULL)));
        if (!case_begin("random", all_dtypes[k], REFUSED, "[3] normal")) continue;
        case_end(was_refused(fl_normal(FL_SHAPE(3), 0, 1, all_dtypes[k], NULL)));
    }
    fl_scope s = fl_scope_begin();
    array a, b;
    fl_seed(7);
    fl_tensor *x = fl_uniform(FL_SHAPE(9), 0, 1, FL_F32, NULL),
              *y = fl_uniform(FL_SHAPE(9), 0, 1, FL_F32, NULL);
    fl_seed(7);
    check(read_tensor(x, &a) && read_tensor(fl_uniform(FL_SHAPE(9), 0, 1, FL_F32, NULL), &b) &&
              !memcmp(a.f, b.f, 9 * 8),
          "the same seed, the same numbers");
    check(read_tensor(y, &b) && memcmp(a.f, b.f, 9 * 8), "the next call, other numbers");
    check(fails(fl_randint(FL_SHAPE(2), 3, 3, NULL)), "randint of an empty range");
    fl_scope_end(&s);
}

static void dropout_case(fl_dtype d, layout l, fl_shape s, double p) {
    char text[100];
    if (!case_begin("dropout", d, l, "%s p %g", fl_shape_text(s, text, sizeof text), p)) return;
    operand x = make_operand(s, d, l, TAME);
    fl_rng rng = {random_bits(), random_bits() >> 20};
    array want = new_array(s, d);
    for (int64_t k = 0; k < want.n; k++)
        want.f[k] = uniform_01(rng, k, FL_F32) >= (double)(float)p ? x.a.f[k] / (1 - p) : 0;
    case_end(agrees(fl_dropout_at(x.t, p, rng), &want, (tolerance){1.5, 0, 0}, NULL, false));
}

static void dropout_group(void) {
    static const double ps[] = {0.5, 0, 0.1, 0.9};
    expect_row("dropout", FLOATS, UNWEAK, 0, STORED & ~FLOATS);
    snprintf(row_of("dropout")->tolerance, 64, "1.5 ulp");
    for (int k = 0; k < DTYPES; k++) {
        if (is_float(all_dtypes[k])) continue;
        if (!case_begin("dropout", all_dtypes[k], REFUSED, "[3]")) continue;
        case_end(was_refused(fl_dropout(fl_ones(FL_SHAPE(3), all_dtypes[k]), 0.5, NULL)));
    }
    for (int d = FL_F16; d <= FL_F64; d++)
        for (int l = DENSE; l <= BROADCAST; l++)
            for (int s = 0; s < SHAPES; s++)
                if (layout_fits((layout)l, shapes[s]))
                    dropout_case((fl_dtype)d, (layout)l, shapes[s], ps[s % 4]);
    fl_scope s = fl_scope_begin();
    check(fails(fl_dropout(fl_ones(FL_SHAPE(3), FL_F32), 1.5, NULL)), "dropout of 1.5");
    fl_scope_end(&s);
}

/* The record itself, which functions run only where a backend has it: quarters add up exactly in all floats.
   */
static void add_norm_case(fl_dtype d, layout l, fl_shape s, double p) {
    const int64_t n = s.dim[1];
    if (!case_begin("add_layer_norm", d, l, "[%d, %d] p %g", (int)s.dim[0], (int)n, p)) return;
    const fl_add_norm_args args = {{1, 0.1, false}, p, {random_bits(), random_bits() >> 20}};
    array x = random_array(s, d, TAME), add = random_array(s, d, TAME), sum = new_array(s, d);
    array w = random_array(FL_SHAPE(n), fl_dtype_wide(d), TAME), want = new_array(s, d);
    double *scale = take((size_t)want.n * sizeof *scale + 8);
    for (int64_t k = 0; k < want.n; k++) {
        x.f[k] = rint(4 * x.f[k]) / 4, add.f[k] = rint(4 * add.f[k]) / 4;
        sum.f[k] = add.f[k] + (uniform_01(args.rng, k, FL_F32) >= p ? x.f[k] / (1 - p) : 0);
        scale[k] = 1 + fabs(w.f[k % n]);
    }
    for (int64_t r = 0; r < s.dim[0]; r++) layer_norm_row(sum.f + r * n, n, true, 0.1, want.f + r * n);
    for (int64_t k = 0; k < want.n; k++) want.f[k] *= w.f[k % n];
    fl_call c = {.op = fl_op_add_layer_norm, .n_out = 4, .n_in = 4, .args = &args,
                 .in = {lay_out(&x, l), dense_tensor(&w), fl_num(0), lay_out(&add, l)}};
    for (int i = 0; i < 4; i++)
        c.out[i] = i % 3 ? fl_out_on(c.in[0]->backend, FL_SHAPE(s.dim[0], 1), fl_dtype_wide(d))
                         : fl_out_like(c.in[0], d);
    case_end(fl_call_run(&c) && equals(c.out[3], &sum) &&
             agrees(c.out[0], &want, (tolerance){4, 32, 0}, scale, false));
}

static void add_norm_group(int unused) {
    static const fl_shape rows[] = {{2, {3, 5}}, {2, {17, 33}}, {2, {1, 7}}, {2, {5, 1}}, {2, {2, 64}}};
    (void)unused;
    expect_row("add_layer_norm", FLOATS, STRIDED & ~(1u << CHANNELS_LAST), 0, 0);
    snprintf(row_of("add_layer_norm")->tolerance, 64, "4 ulp + 32 eps");
    for (int d = FL_F16; d <= FL_F64; d++)
        for (int l = DENSE; l < CHANNELS_LAST; l++)
            for (int i = 0; i < 2 * 5; i++) add_norm_case((fl_dtype)d, (layout)l, rows[i / 2], i % 2 * 0.5);
}

/* >>optimizer steps: three steps on one parameter, states and all */

static bool steps_agree(fl_tensor *const *t, const array *want, int n, double size) {
    for (int i = 0; i < n; i++)
        if (!agrees(t[i], &want[i], (tolerance){2, size, 0}, NULL, false))
            return say("state %d", i);
    return true;
}

static void sgd_case(fl_dtype d, layout l, fl_shape s, int variant) {
    static const sgd_args settings[] = {{0.1, 0, 0, 0, false, true},
                                           {0.1, 0.9, 0, 0, false, true},
                                           {0.05, 0.9, 0.5, 0.01, false, true},
                                           {0.1, 0.8, 0, 0.02, true, true},
                                           {0.2, 0, 0, 0.1, false, true}};
    sgd_args a = settings[variant];
    char text[100];
    if (!case_begin("step", d, l, "%s %d", fl_shape_text(s, text, sizeof text), variant))
        return;
    operand p = make_operand(s, d, l, TAME);
    array want[2] = {p.a, random_array(s, d, TAME)};
    fl_tensor *state[2] = {p.t, a.momentum != 0 ? lay_out(&want[1], l) : NULL};
    bool ok = true, copied = p.t && p.t->copied;
    for (int step = 0; ok && step < 3; step++, a.first = false) {
        operand g = make_operand(s, d, l, TAME);
        ok = sgd_step(p.t, g.t, state[1], &a);
        for (int64_t k = 0; k < want[0].n; k++) {
            double grad = g.a.f[k] + a.weight_decay * want[0].f[k], m = grad;
            if (state[1]) {
                m = want[1].f[k] = a.momentum * want[1].f[k] +
                                   (a.first ? 1 : 1 - a.dampening) * grad;
                if (a.nesterov) m = grad + a.momentum * m;
            }
            want[0].f[k] -= a.lr * m;
        }
    }
    if (copied && !ok) case_end(was_refused(NULL));
    else case_end(ok && steps_agree(state, want, state[1] ? 2 : 1, 32));
}

static void adam_case(fl_dtype d, layout l, fl_shape s, int variant) {
    double lr = 0.05, b1 = 0.9, b2 = 0.99, eps = variant % 2 ? 1e-3 : 1e-8, wd = variant / 2 * 0.1;
    char text[100];
    if (!case_begin("step adam", d, l, "%s %d", fl_shape_text(s, text, sizeof text), variant))
        return;
    operand p = make_operand(s, d, l, TAME);
    array want[3] = {p.a, random_array(s, d, TAME), random_array(s, d, TAME)};
    for (int64_t k = 0; k < want[2].n; k++) want[2].f[k] = fabs(want[2].f[k]) + 0.5;
    fl_tensor *state[3] = {p.t, lay_out(&want[1], l), lay_out(&want[2], l)};
    bool ok = true, copied = p.t && p.t->copied;
    for (int step = 1; ok && step < 4; step++) {
        operand g = make_operand(s, d, l, TAME);
        const double bias1 = 1 - pow(b1, step), bias2 = 1 - pow(b2, step);
        adam_args a = {lr, b1, b2, eps, wd, step - 1, variant == 3};
        ok = adam_step(p.t, g.t, state[1], state[2], &a);
        for (int64_t k = 0; k < want[0].n; k++) {
            double w = want[0].f[k], grad = g.a.f[k] + (a.decoupled ? 0 : wd * w);
            double m = want[1].f[k] = b1 * want[1].f[k] + (1 - b1) * grad;
            double v = want[2].f[k] = b2 * want[2].f[k] + (1 - b2) * grad * grad;
            if (a.decoupled) w -= lr * wd * w;
            want[0].f[k] = w - lr * (m / bias1) / (sqrt(v / bias2) + eps);
        }
    }
    if (copied && !ok) case_end(was_refused(NULL));
    else case_end(ok && steps_agree(state, want, 3, 64));
}

static void step_group(bool adam) {
    const char *name = adam ? "step adam" : "step";
    expect_row(name, WIDE_FLOATS, STRIDED, 0, STORED & ~FLOATS);
    snprintf(row_of(name)->tolerance, 64, "2 ulp + %d eps after three steps", adam ? 64 : 32);
    for (int k = 0; k < DTYPES; k++) {
        fl_dtype d = all_dtypes[k];
        for (int l = DENSE; l <= CHANNELS_LAST && takes(WIDE_FLOATS, d); l++)
            for (int s = 0; s < SHAPES; s++)
                for (int v = 0; v < (adam ? 4 : 5); v++) {
                    if (!layout_fits((layout)l, shapes[s]) || (s == SHAPES - 1 && v != 2)) continue;
                    if (adam) adam_case(d, (layout)l, shapes[s], v);
                    else sgd_case(d, (layout)l, shapes[s], v);
                }
        if (is_float(d) || !case_begin(name, d, REFUSED, "[3]")) continue;
        fl_tensor *t[4] = {fl_ones(FL_SHAPE(3), d), fl_ones(FL_SHAPE(3), d),
                           fl_ones(FL_SHAPE(3), d), fl_ones(FL_SHAPE(3), d)};
        bool done = adam ? adam_step(t[0], t[1], t[2], t[3],
                                        &(adam_args){0.1, 0.9, 0.9, 1e-8, 0, 0, false})
                         : sgd_step(t[0], t[1], NULL, &(sgd_args){0.1, 0, 0, 0, false, true});
        case_end(was_refused(done ? t[0] : NULL));
    }
}

/* On top of the squares of a number. */
static void squares_case(fl_dtype d, layout l, fl_shape s) {
    char text[100];
    if (!case_begin("sum_squares", d, l, "%s", fl_shape_text(s, text, sizeof text))) return;
    operand x = make_operand(s, d, l, TAME);
    array want = new_array(FL_SCALAR_SHAPE, FL_F64);
    want.f[0] = 9;
    for (int64_t i = 0; i < x.a.n; i++) want.f[0] += x.a.f[i] * x.a.f[i];
    fl_tensor *y = fl_add_squares(fl_sum_squares(fl_full(FL_SHAPE(1), 3, d)), x.t);
    const double got = y && y->dtype == FL_F64 ? fl_item(y) : NAN, eps = d == FL_F64 ? 1e-14 : 1e-6;
    case_end(fabs(got - want.f[0]) <= eps * want.f[0]);
}

static void squares_group(void) {
    expect_row("sum_squares", FLOATS, STRIDED, 0, STORED & ~FLOATS);
    snprintf(row_of("sum_squares")->tolerance, 64, "1e-6 (f64 1e-14) of the sum");
    for (int k = 0; k < DTYPES; k++) {
        const fl_dtype d = all_dtypes[k];
        for (int l = DENSE; l <= CHANNELS_LAST && takes(FLOATS, d); l++)
            for (int s = 0; s < SHAPES; s++)
                if (layout_fits((layout)l, shapes[s])) squares_case(d, (layout)l, shapes[s]);
        if (is_float(d) || !case_begin("sum_squares", d, REFUSED, "[3]")) continue;
        case_end(was_refused(fl_sum_squares(fl_ones(FL_SHAPE(3), d))));
    }
}

/* A rule of every word that a rule may have, and a step that is skipped. */
static void step_words(void) {
#define SUM(a, b) "ADD(" a ", " b ")"
    static fl_step_rule rule = {
        .reads = "x", .writes = "p", .numbers = "factor a",
        .formula = SUM(SUM(SUM(SUM("NEG(p)", "EXP(x)"), SUM("LOG(ABS(x))", "LOG1P(ABS(x))")),
                           SUM(SUM("EXPM1(x)", "SQRT(ABS(x))"), SUM("SIN(x)", "COS(x)"))),
                       SUM(SUM(SUM("TANH(x)", "ERF(x)"), SUM("ATAN2(x, a)", "POW(ABS(x), a)")),
                           SUM(SUM("MOD(x, a)", "MAX(x, a)"), SUM("MIN(x, a)", "FLOOR(x)"))))
    };
    static fl_step_rule choice = {
        .reads = "x", .writes = "p", .numbers = "factor a",
        .formula = "ADD(RINT(x), SELECT(LT(x, a), MUL(x, a), SELECT(LE(x, a), CONST(9), "
                   "SELECT(EQ(x, a), CONST(5), DIV(SUB(x, a), CONST(2))))))"};
#undef SUM
    const double a = 1.5;
    for (int skip = 0; skip < 2; skip++)
        for (int d = FL_F32; d <= FL_F64; d++)
            for (int which = 0; which < 2; which++) {
                if (!case_begin("step", (fl_dtype)d, DENSE, "words %d %d", which, skip)) continue;
                operand p = make_operand(FL_SHAPE(7, 5), (fl_dtype)d, DENSE, TAME);
                operand x = make_operand(FL_SHAPE(7, 5), (fl_dtype)d, DENSE, TAME);
                fl_tensor *number[] = {skip ? fl_zeros(FL_SCALAR_SHAPE, FL_F64) : fl_num(1), fl_num(a)};
                bool ok = fl_step(which ? &choice : &rule, (fl_tensor *[]){x.t, p.t}, 2, number, NULL);
                for (int64_t k = 0; k < p.a.n && !skip; k++) {
                    const double v = x.a.f[k], u = fabs(v), mod = fmod(v, a);
                    p.a.f[k] = which ? rint(v) + (v < a ? v * a : v == a ? 9 : (v - a) / 2)
                                     : -p.a.f[k] + exp(v) + log(u) + log1p(u) + expm1(v) + sqrt(u) + sin(v) +
                                           cos(v) + tanh(v) + erf(v) + atan2(v, a) + pow(u, a) +
                                           (mod < 0 ? mod + a : mod) + fmax(v, a) + fmin(v, a) + floor(v);
                }
                case_end(ok && agrees(p.t, &p.a, (tolerance){8, 400, 0}, NULL, false));
            }
}

/* Copies the arguments of the step that runs. */
static void copy_step_args(const fl_call *c, void *user) {
    if (c->op == fl_op_step) memcpy(user, c->args, sizeof(fl_step_args));
}

/* A record of `step` is plain values: a copy of it runs when rule and texts are gone, to the same bits. One
   of
   a rule that was not parsed, or for other operands, is refused. */
static void step_records(void) {
    if (!case_begin("step", FL_F32, DENSE, "copied record")) return;
    char numbers[] = "factor lr", formula[] = "SUB(p, MUL(lr, MUL(factor, g)))";
    fl_step_rule rule = {.reads = "g", .writes = "p", .numbers = numbers, .formula = formula};
    fl_step_args copy = {0};
    operand p = make_operand(FL_SHAPE(7, 5), FL_F32, DENSE, TAME);
    operand g = make_operand(FL_SHAPE(7, 5), FL_F32, DENSE, TAME);
    fl_tensor *first = fl_clone(p.t), *second = fl_clone(p.t), *number[] = {fl_num(2), fl_num(0.1)};
    const fl_call_hooks before = fl_call_hook(copy_step_args, NULL, &copy);
    bool ok = fl_step(&rule, (fl_tensor *[]){g.t, first}, 2, number, NULL);
    fl_call_hook(before.before, before.after, before.user);
    memset(&rule, 0xA5, sizeof rule);
    memset(numbers, 'x', sizeof numbers - 1);
    memset(formula, 'x', sizeof formula - 1);
    fl_call c = {.op = fl_op_step, .n_out = 1, .n_in = 4, .out = {second},
                 .in = {g.t, second, number[0], number[1]}, .args = &copy};
    ok = ok && fl_call_run(&c) && fl_item(fl_sum(fl_cast(fl_ne(first, second), FL_F32), FL_ALL_AXES)) == 0 &&
         fl_item(fl_sum(fl_cast(fl_ne(first, p.t), FL_F32), FL_ALL_AXES)) > 0;
    const fl_step_args none = {0};
    for (int i = 0; i < 3; i++) {
        c.args = i ? &copy : &none;
        c.n_in = i == 1 ? 3 : 4;
        if (i == 2) c.in[3] = fl_ones(FL_SHAPE(100), FL_F64);
        fl_quiet(+1);
        ok = !(fl_call_run(&c) && fl_item(second) > -INFINITY) && ok;
        fl_quiet(-1);
        ok = was_refused(NULL) && ok;
    }
    case_end(ok);
}
/* MIT licence: see LICENSE. */
