/* parity_image.h - the lines of parity.c for convolution, pooling and sampling

   fl has one function for 1 to 3 spatial dims where PyTorch has three. */

static void settings_of(const parity_case *c, const char *name, int64_t *list) {
    fl_shape s = shape_of(c, name);
    for (int i = 0; i < s.ndim; i++) list[i] = or_i0(s.dim[i]);
}

static int conv(parity_case *c, fl_var **y) {
    fl_var *bias = c->n_in > 2 ? IN(2) : NULL;
    bool transposed = strstr(c->op, "transpose") != NULL;
    fl_conv_opts o = {.groups = INT("groups")};
    settings_of(c, "stride", o.stride);
    settings_of(c, "pad", o.pad);
    settings_of(c, "dilation", o.dilation);
    if (transposed) settings_of(c, "output_pad", o.output_pad);
    y[0] = transposed ? fv_conv_transpose_opt(IN(0), IN(1), bias, o)
                      : fv_conv_opt(IN(0), IN(1), bias, o);
    return 1;
}

static fl_pool_opts pool_opts(const parity_case *c, bool ignore_pad) {
    fl_pool_opts o = {.ignore_pad = ignore_pad};
    settings_of(c, "kernel", o.kernel);
    settings_of(c, "stride", o.stride);
    if (strncmp(c->op, "lp_", 3)) settings_of(c, "pad", o.pad);
    return o;
}

/* Those that the rows above leave out. */
static fl_pool_opts pool_options(const parity_case *c) {
    fl_pool_opts o = pool_opts(c, INT("inside") != 0);
    settings_of(c, "pad_hi", o.pad_hi);
    settings_of(c, "dilation", o.dilation);
    o.ceil_mode = INT("ceil") != 0;
    o.divisor_override = INT("divisor");
    return o;
}

static int max_pool_options(parity_case *c, fl_var **y) {
    fl_tensor *index = NULL;
    y[0] = fv_max_pool_opt(IN(0), NULL, pool_options(c));
    fl_max_pool_opt(T(0), &index, pool_options(c));
    y[1] = fv_const(index);
    return c->n_out;
}

static int avg_pool_options(parity_case *c, fl_var **y) {
    y[0] = fv_avg_pool_opt(IN(0), pool_options(c));
    return 1;
}

static int max_unpool(parity_case *c, fl_var **y) {
    y[0] = fv_max_unpool(IN(0), T(1), SHAPE("size"));
    return 1;
}

static int max_pool(parity_case *c, fl_var **y) {
    fl_tensor *index = NULL;
    y[0] = fv_max_pool_opt(IN(0), &index, pool_opts(c, false));
    y[1] = fv_const(index);
    return 2;
}

static int avg_pool(parity_case *c, fl_var **y) {
    y[0] = fv_avg_pool_opt(IN(0), pool_opts(c, strstr(c->op, "_inside") != NULL));
    return 1;
}

static int adaptive_max_pool(parity_case *c, fl_var **y) {
    y[0] = fv_adaptive_max_pool(IN(0), SHAPE("size"), NULL);
    return 1;
}

static int adaptive_avg_pool(parity_case *c, fl_var **y) {
    y[0] = fv_adaptive_avg_pool(IN(0), SHAPE("size"));
    return 1;
}

static int lp_pool(parity_case *c, fl_var **y) {
    y[0] = fv_lp_pool_opt(IN(0), NUM("p"), pool_opts(c, false));
    return 1;
}

static int interpolate(parity_case *c, fl_var **y) {
    bool linear = strstr(c->op, "linear") != NULL, cubic = strstr(c->op, "cubic") != NULL;
    fl_interpolation mode = linear  ? FL_LINEAR
                            : cubic ? FL_CUBIC
                            : strstr(c->op, "area") ? FL_AREA
                                                    : FL_NEAREST;
    y[0] = fv_interpolate(IN(0), SHAPE("size"), mode, linear || cubic ? INT("align") != 0 : false);
    return 1;
}

static int interpolate_options(parity_case *c, fl_var **y) {
    static const char *const modes[] = {"nearest", "linear", "cubic", "area", "exact"};
    const char *mode = text_of(c, "mode");
    int k = 0;
    while (strcmp(mode, modes[k])) k++;
    fl_shape scale = SHAPE("tenths");
    fl_interpolate_opts o = {.antialias = INT("antialias") != 0};
    for (int i = 0; i < scale.ndim; i++) o.scale[i] = (double)scale.dim[i] / 10;
    y[0] = fv_interpolate_opt(IN(0), SHAPE("size"), (fl_interpolation)k, INT("align") != 0, o);
    return 1;
}

static int fold(parity_case *c, fl_var **y) {
    fl_unfold_opts o = {0};
    settings_of(c, "kernel", o.kernel);
    settings_of(c, "stride", o.stride);
    settings_of(c, "pad", o.pad);
    settings_of(c, "dilation", o.dilation);
    y[0] = c->op[0] == 'f' ? fv_fold_opt(IN(0), SHAPE("size"), o) : fv_unfold_opt(IN(0), o);
    return 1;
}

static int grid_sample(parity_case *c, fl_var **y) {
    const char *outside = text_of(c, "padding");
    fl_grid_opts o = {.nearest = !strcmp(text_of(c, "mode"), "nearest"),
                      .cubic = !strcmp(text_of(c, "mode"), "bicubic"), .align = INT("align") != 0,
                      .outside = !strcmp(outside, "zeros")    ? FL_GRID_ZEROS
                                 : !strcmp(outside, "border") ? FL_GRID_BORDER
                                                              : FL_GRID_REFLECT};
    y[0] = fv_grid_sample_opt(IN(0), IN(1), o);
    return 1;
}

static int affine_grid(parity_case *c, fl_var **y) {
    fl_shape s = SHAPE("size"), size = {s.ndim - 2, {s.dim[2], s.dim[3], s.ndim > 4 ? s.dim[4] : 0}};
    y[0] = fv_affine_grid(IN(0), size, INT("align") != 0);
    return 1;
}

#define IMAGE_PARITY \
    {"unfold", fold, 0}, \
    {"fold", fold, 0}, \
    {"max_pool_options", max_pool_options, 0}, \
    {"avg_pool_options", avg_pool_options, 0}, \
    {"max_unpool", max_unpool, 2}, \
    {"grid_sample", grid_sample, 0}, \
    {"interpolate_options", interpolate_options, 0}, \
    {"affine_grid", affine_grid, 0}, \
    {"conv1d", conv, 0}, \
    {"conv3d", conv, 0}, \
    {"conv_transpose1d", conv, 0}, \
    {"conv_transpose2d", conv, 0}, \
    {"conv_transpose3d", conv, 0}, \
    {"max_pool1d", max_pool, 0}, \
    {"max_pool3d", max_pool, 0}, \
    {"avg_pool1d", avg_pool, 0}, \
    {"avg_pool1d_inside", avg_pool, 0}, \
    {"avg_pool3d", avg_pool, 0}, \
    {"avg_pool3d_inside", avg_pool, 0}, \
    {"adaptive_max_pool1d", adaptive_max_pool, 0}, \
    {"adaptive_max_pool2d", adaptive_max_pool, 0}, \
    {"adaptive_max_pool3d", adaptive_max_pool, 0}, \
    {"adaptive_avg_pool1d", adaptive_avg_pool, 0}, \
    {"adaptive_avg_pool2d", adaptive_avg_pool, 0}, \
    {"adaptive_avg_pool3d", adaptive_avg_pool, 0}, \
    {"lp_pool2d", lp_pool, 0}, \
    {"interpolate_nearest1d", interpolate, 0}, \
    {"interpolate_linear1d", interpolate, 0}, \
    {"interpolate_nearest", interpolate, 0}, \
    {"interpolate_bilinear", interpolate, 0}, \
    {"interpolate_bicubic", interpolate, 0}, \
    {"interpolate_area", interpolate, 0}, \
    {"interpolate_trilinear", interpolate, 0},
/* MIT licence: see LICENSE. */
