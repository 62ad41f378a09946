/* gradcheck_image.h - the cases of gradcheck.c for convolution, pooling and sampling */

static const fl_conv_opts conv_settings[] = {
    {.groups = 1}, {.stride = {2}, .pad = {1}}, {.pad = {FL_SAME}}, {.dilation = {2}, .pad = {2}},
    {.stride = {2}, .pad = {1}, .output_pad = {1, 1, 1}}, {.groups = 2, .pad = {1}}};

static fl_var *run_image_conv(fl_var **x, const grad_case *c) {
    return fv_conv_opt(x[0], x[1], c->n_in > 2 ? x[2] : NULL, conv_settings[c->which]);
}
static fl_var *run_conv_transpose(fl_var **x, const grad_case *c) {
    return fv_conv_transpose_opt(x[0], x[1], c->n_in > 2 ? x[2] : NULL, conv_settings[c->which]);
}

static const fl_pool_opts pool_settings[] = {
    {.kernel = {2}}, {.kernel = {3}, .stride = {2}, .pad = {1}},
    {.kernel = {3}, .stride = {1}, .pad = {FL_SAME}, .ignore_pad = true},
    {.kernel = {2}, .ceil_mode = true, .pad_hi = {1}}, {.kernel = {2}, .stride = {1}, .dilation = {2}},
    {.kernel = {3}, .stride = {2}, .pad = {1}, .ceil_mode = true, .divisor_override = 4}};

static fl_var *run_image_max(fl_var **x, const grad_case *c) {
    fl_var *y = fv_max_pool_opt(x[0], NULL, pool_settings[c->which]);
    return y ? fv_mul(y, y) : NULL;
}
static fl_var *run_image_avg(fl_var **x, const grad_case *c) {
    fl_var *y = fv_avg_pool_opt(x[0], pool_settings[c->which]);
    return y ? fv_mul(y, y) : NULL;
}
static fl_var *run_lp_pool(fl_var **x, const grad_case *c) {
    return fv_lp_pool_opt(fv_exp(x[0]), 3, pool_settings[c->which]);
}

static fl_var *run_max_unpool(fl_var **x, const grad_case *c) {
    fl_tensor *index = NULL;
    fl_var *y = fv_max_pool_opt(x[0], &index, pool_settings[c->which]);
    return y ? fv_max_unpool(fv_mul(y, y), index, FL_SHAPE(4, 5)) : NULL;
}

/* A size for as many dims as x has. */
static fl_shape image_size(fl_var *x, int64_t first) {
    fl_shape s = {fv_value(x)->ndim - 2, {first, first + 1, first + 2}};
    return s;
}
static fl_var *run_adaptive_max(fl_var **x, const grad_case *c) {
    fl_var *y = fv_adaptive_max_pool(x[0], image_size(x[0], 1 + c->which), NULL);
    return y ? fv_mul(y, y) : NULL;
}
static fl_var *run_adaptive_avg(fl_var **x, const grad_case *c) {
    fl_var *y = fv_adaptive_avg_pool(x[0], image_size(x[0], 1 + c->which));
    return y ? fv_mul(y, y) : NULL;
}
static fl_var *run_interpolate(fl_var **x, const grad_case *c) {
    fl_interpolation mode = (fl_interpolation)(c->which / 2);
    if (c->which > 8) { /* by scale, antialiased */
        fl_var *z = fv_interpolate(x[0], FL_SCALAR_SHAPE, c->which % 2 ? FL_LINEAR : FL_CUBIC, false,
                                   .scale = {0.6, 1.4}, .antialias = true);
        return z ? fv_mul(z, z) : NULL;
    }
    fl_var *y = fv_interpolate(x[0], image_size(x[0], 2), mode, c->which % 2 != 0);
    return y ? fv_mul(y, y) : NULL;
}

static const fl_unfold_opts window_settings[] = {
    {.kernel = {2}}, {.kernel = {2, 3}, .stride = {2}, .pad = {1}},
    {.kernel = {2}, .dilation = {2}}};

static fl_var *run_unfold(fl_var **x, const grad_case *c) {
    fl_var *y = fv_unfold_opt(x[0], window_settings[c->which]);
    return y ? fv_mul(y, y) : NULL;
}
static fl_var *run_fold(fl_var **x, const grad_case *c) {
    fl_var *y = fv_fold_opt(x[0], FL_SHAPE(3, 2), window_settings[c->which]);
    return y ? fv_mul(y, y) : NULL;
}
static fl_var *run_grid_sample(fl_var **x, const grad_case *c) {
    fl_grid_opts o = {.align = c->which % 2 != 0, .outside = (fl_grid_padding)(c->which / 2 % 3),
                      .cubic = c->which >= 6};
    return fv_grid_sample_opt(x[0], fv_mul(x[1], fv_num(0.4)), o);
}
static fl_var *run_affine_grid(fl_var **x, const grad_case *c) {
    fl_shape size = fv_value(x[0])->shape[1] == 2 ? FL_SHAPE(2, 3) : FL_SHAPE(2, 1, 2);
    fl_var *y = fv_affine_grid(x[0], size, c->which != 0);
    return y ? fv_mul(y, y) : NULL;
}

static const struct {
    const char *name;
    grad_fn fn;
    int which, n_in;
    fl_shape shape[MAX_IN];
} image_cases[] = {
    {"conv", run_image_conv, 0, 3, {{3, {2, 1, 4}}, {3, {2, 1, 2}}, {1, {2}}}},
    {"conv", run_image_conv, 2, 2, {{3, {1, 2, 5}}, {3, {1, 2, 2}}}},
    {"conv", run_image_conv, 5, 2, {{3, {1, 2, 3}}, {3, {2, 1, 3}}}},
    {"conv", run_image_conv, 0, 2, {{3, {0, 1, 4}}, {3, {2, 1, 2}}}},
    {"conv", run_image_conv, 1, 3, {{4, {1, 1, 3, 3}}, {4, {1, 1, 2, 2}}, {1, {1}}}},
    {"conv", run_image_conv, 2, 3, {{5, {1, 1, 2, 2, 2}}, {5, {1, 1, 2, 2, 1}}, {1, {1}}}},
    {"conv", run_image_conv, 3, 2, {{5, {1, 1, 2, 1, 2}}, {5, {1, 1, 2, 1, 2}}}},
    {"conv", run_image_conv, 5, 2, {{5, {1, 2, 2, 1, 1}}, {5, {2, 1, 2, 1, 1}}}},
    {"conv_transpose", run_conv_transpose, 0, 3, {{3, {2, 1, 3}}, {3, {1, 2, 2}}, {1, {2}}}},
    {"conv_transpose", run_conv_transpose, 4, 2, {{3, {1, 1, 3}}, {3, {1, 1, 3}}}},
    {"conv_transpose", run_conv_transpose, 5, 2, {{3, {1, 2, 3}}, {3, {2, 1, 2}}}},
    {"conv_transpose", run_conv_transpose, 1, 3, {{4, {1, 1, 2, 2}}, {4, {1, 1, 3, 2}}, {1, {1}}}},
    {"conv_transpose", run_conv_transpose, 4, 2, {{5, {1, 1, 2, 1, 2}}, {5, {1, 1, 3, 2, 2}}}},
    {"conv_transpose", run_conv_transpose, 0, 2, {{5, {0, 1, 2, 1, 2}}, {5, {1, 1, 3, 2, 2}}}},
    {"max_pool", run_image_max, 0, 1, {{3, {1, 2, 5}}}},
    {"max_pool", run_image_max, 1, 1, {{5, {1, 1, 2, 3, 2}}}},
    {"avg_pool", run_image_avg, 0, 1, {{3, {1, 2, 5}}}},
    {"avg_pool", run_image_avg, 1, 1, {{5, {1, 1, 2, 3, 2}}}},
    {"avg_pool", run_image_avg, 2, 1, {{4, {1, 1, 3, 4}}}},
    {"max_pool", run_image_max, 3, 1, {{4, {1, 1, 5, 3}}}},
    {"max_pool", run_image_max, 4, 1, {{4, {1, 1, 4, 3}}}},
    {"avg_pool", run_image_avg, 3, 1, {{4, {1, 1, 5, 3}}}},
    {"avg_pool", run_image_avg, 4, 1, {{3, {1, 2, 5}}}},
    {"avg_pool", run_image_avg, 5, 1, {{4, {1, 1, 4, 4}}}},
    {"avg_pool", run_image_avg, 5, 1, {{5, {1, 1, 2, 3, 2}}}},
    {"max_unpool", run_max_unpool, 0, 1, {{4, {1, 1, 4, 4}}}},
    {"lp_pool", run_lp_pool, 3, 1, {{3, {1, 1, 5}}}},
    {"lp_pool", run_lp_pool, 0, 1, {{4, {1, 1, 4, 2}}}},
    {"adaptive_max_pool", run_adaptive_max, 1, 1, {{3, {1, 2, 5}}}},
    {"adaptive_max_pool", run_adaptive_max, 0, 1, {{5, {1, 1, 2, 3, 2}}}},
    {"adaptive_avg_pool", run_adaptive_avg, 1, 1, {{4, {1, 1, 5, 4}}}},
    {"adaptive_avg_pool", run_adaptive_avg, 0, 1, {{5, {1, 1, 2, 3, 2}}}},
    {"interpolate", run_interpolate, 0, 1, {{3, {1, 2, 3}}}},
    {"interpolate", run_interpolate, 2, 1, {{4, {1, 1, 3, 2}}}},
    {"interpolate", run_interpolate, 3, 1, {{5, {1, 1, 2, 1, 2}}}},
    {"interpolate", run_interpolate, 4, 1, {{4, {1, 1, 3, 2}}}},
    {"interpolate", run_interpolate, 5, 1, {{3, {1, 1, 5}}}},
    {"interpolate", run_interpolate, 6, 1, {{4, {1, 1, 5, 3}}}},
    {"interpolate", run_interpolate, 8, 1, {{3, {1, 1, 5}}}},
    {"interpolate", run_interpolate, 9, 1, {{4, {1, 1, 4, 3}}}},
    {"interpolate", run_interpolate, 10, 1, {{4, {1, 1, 5, 2}}}},
    {"unfold", run_unfold, 0, 1, {{3, {1, 2, 4}}}},
    {"unfold", run_unfold, 1, 1, {{4, {1, 1, 3, 3}}}},
    {"unfold", run_unfold, 2, 1, {{5, {1, 1, 3, 3, 3}}}},
    {"fold", run_fold, 0, 1, {{3, {1, 4, 2}}}},
    {"fold", run_fold, 1, 1, {{3, {1, 6, 2}}}},
    {"grid_sample", run_grid_sample, 0, 2, {{4, {1, 1, 3, 2}}, {4, {1, 1, 2, 2}}}},
    {"grid_sample", run_grid_sample, 3, 2, {{4, {1, 1, 3, 2}}, {4, {1, 1, 2, 2}}}},
    {"grid_sample", run_grid_sample, 0, 2, {{5, {1, 1, 2, 2, 2}}, {5, {1, 1, 1, 2, 3}}}},
    {"grid_sample", run_grid_sample, 3, 2, {{5, {1, 1, 2, 1, 3}}, {5, {1, 1, 2, 1, 3}}}},
    {"grid_sample", run_grid_sample, 6, 2, {{4, {1, 1, 3, 2}}, {4, {1, 1, 2, 2}}}},
    {"grid_sample", run_grid_sample, 11, 2, {{4, {1, 1, 3, 2}}, {4, {1, 1, 2, 2}}}},
    {"affine_grid", run_affine_grid, 1, 1, {{3, {1, 3, 4}}}},
    {"affine_grid", run_affine_grid, 0, 1, {{3, {1, 2, 3}}}},
    {"affine_grid", run_affine_grid, 1, 1, {{3, {1, 2, 3}}}},
};
enum { IMAGE_CASES = sizeof image_cases / sizeof *image_cases };

static void image_group(int unused) {
    (void)unused;
    for (int i = 0; i < IMAGE_CASES; i++) {
        grad_case c = {.fn = image_cases[i].fn, .which = image_cases[i].which,
                       .n_in = image_cases[i].n_in, .low = -2, .high = 2};
        for (int k = 0; k < c.n_in; k++) c.shape[k] = image_cases[i].shape[k];
        run_case(image_cases[i].name, c);
    }
}
/* MIT licence: see LICENSE. */
