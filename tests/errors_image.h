/* errors_image.h - the rows of test_errors.c for convolution, pooling and sampling */

static void rows_of_image_conv(void) {
    const fl_conv_opts plain = {0};
    fl_tensor *line = fl_ones(FL_SHAPE(1, 2, 5), FL_F32), *w = fl_ones(FL_SHAPE(2, 2, 3), FL_F32);
    const fl_conv2d_args args = {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, false};
    NO(fl_conv_opt, (NULL, w, NULL, plain), NULLS);
    NO(fl_conv_opt, (line, NULL, NULL, plain), NULLS);
    NO(fl_conv_opt, (o.f23, w, NULL, plain), "f32 of shape [2, 3]");
    NO(fl_conv_opt, (fl_cast(line, FL_I64), w, NULL, plain), "i64 of shape [1, 2, 5]");
    NO(fl_conv_opt, (line, o.image, NULL, plain), "[1, 2, 5]");
    NO(fl_conv_opt, (line, fl_cast(w, FL_F64), NULL, plain), "f64 [2, 2, 3]");
    NO(fl_conv_opt, (line, w, NULL, (fl_conv_opts){.dilation = {3}}), "[1, 2, 5]", "dilation 3");
    NO(fl_conv_opt, (line, w, NULL, (fl_conv_opts){.stride = {-1}}), "stride -1");
    NO(fl_conv_opt, (line, w, NULL, (fl_conv_opts){.pad = {-2}}), "pad -2");
    NO(fl_conv_opt, (line, w, NULL, (fl_conv_opts){.pad = {INT64_MAX}}), "pad 9223372036854775807");
    NO(fl_conv_opt, (line, w, o.f4, plain), "bias [4]");
    NO(fl_conv_opt, (line, w, NULL, (fl_conv_opts){.groups = 2}), "2 groups");
    NO_AS(fv_conv_opt, "fv_conv", (NULL, o.v23, NULL, plain), NULLS);
    NO(fl_conv_transpose_opt, (NULL, w, NULL, plain), NULLS);
    NO(fl_conv_transpose_opt, (line, NULL, NULL, plain), NULLS);
    NO(fl_conv_transpose_opt, (line, o.image, NULL, plain), "[1, 2, 5]");
    NO(fl_conv_transpose_opt, (line, w, NULL, (fl_conv_opts){.pad = {FL_SAME}}), "pad -1");
    NO(fl_conv_transpose_opt, (line, w, NULL, (fl_conv_opts){.pad = {4}}), "pad 4");
    NO(fl_conv_transpose_opt, (line, w, NULL, (fl_conv_opts){.output_pad = {1}}), "output_pad 1");
    NO(fl_conv_transpose_opt, (line, w, NULL, (fl_conv_opts){.groups = -1}), "-1 groups");
    NO(fl_conv_transpose_opt, (line, w, o.f4, plain), "bias f32 [4], expected f32 [2]");
    NO_AS(fv_conv_transpose_opt, "fv_conv_transpose", (o.v23, NULL, NULL, plain), NULLS);
    NO(fv_conv2d_run, (NULL, o.kernel_v, NULL, args), NULLS);
    NO(fv_conv2d_run, (o.image_v, o.kernel_v, o.v4, args), "[4]");
    NO(fv_conv2d_grad_input, (NULL, o.kernel_v, FL_SHAPE(1, 2, 4, 4), args), NULLS);
    NO(fv_conv2d_grad_input, (o.image_v, o.kernel_v, FL_SHAPE(2, 3), args), "[2, 3]");
}

static void rows_of_image_pooling(void) {
    const fl_pool_opts two = {.kernel = {2}};
    const fl_interpolate_opts same = {.antialias = false};
    const fl_shape one = FL_SHAPE(2);
    fl_tensor *line = fl_ones(FL_SHAPE(1, 2, 5), FL_F32);
    fl_tensor *empty = fl_ones(FL_SHAPE(1, 2, 0), FL_F32);
    fl_tensor *at = fl_zeros(FL_SHAPE(4), FL_I64), *weights = fl_ones(FL_SHAPE(2, 2), FL_F32);
    const fl_resample_args last = {2, 2, false}, none = {3, 2, false}, long_one = {2, 3, false};
    NO(fl_resample, (NULL, at, weights, NULL, last), NULLS);
    NO(fl_resample, (line, at, weights, NULL, none), "[1, 2, 5]", "axis 3");
    NO(fl_resample, (line, at, weights, NULL, long_one), "[2, 2]", "of 3 elements");
    NO(fl_resample, (line, weights, weights, NULL, last), "[1, 2, 5]");
    NO_AS(fv_resample, "fl_resample", (NULL, at, weights, NULL, last), NULLS);
    NO(fl_max_pool_opt, (NULL, NULL, two), NULLS);
    NO(fl_max_pool_opt, (o.f23, NULL, two), "f32 of shape [2, 3]");
    NO(fl_max_pool_opt, (empty, NULL, two), "[1, 2, 0]");
    NO(fl_max_pool_opt, (line, NULL, (fl_pool_opts){0}), "[1, 2, 5]", "window 0");
    NO(fl_max_pool_opt, (line, NULL, (fl_pool_opts){.kernel = {6}}), "window 6");
    NO(fl_max_pool_opt, (line, NULL, (fl_pool_opts){.kernel = {2}, .pad = {2}}), "pad 2");
    NO(fl_max_pool_opt, (line, NULL, (fl_pool_opts){.kernel = {3}, .dilation = {3}}), "window 3");
    NO(fl_max_pool_opt, (line, NULL, (fl_pool_opts){.kernel = {2}, .pad_hi = {2}}), "window 2");
    NO(fl_avg_pool_opt, (line, (fl_pool_opts){.kernel = {2}, .stride = {INT64_MAX}, .ceil_mode = true}),
       "[1, 2, 5]");
    NO_AS(fv_max_pool_opt, "fv_max_pool", (NULL, NULL, two), NULLS);
    fl_tensor *places = fl_zeros(FL_SHAPE(1, 2, 5), FL_I64), *far = fl_full(FL_SHAPE(1, 2, 5), 9, FL_I64);
    NO(fl_max_unpool, (NULL, places, one), NULLS);
    NO(fl_max_unpool, (line, NULL, one), NULLS);
    NO(fl_max_unpool, (o.f23, places, one), "f32 of shape [2, 3]");
    NO(fl_max_unpool, (line, line, FL_SHAPE(9)), "f32 [1, 2, 5]", "size [9]");
    NO(fl_max_unpool, (line, places, FL_SHAPE(9, 9)), "size [9, 9]");
    NO(fl_max_unpool, (line, places, FL_SHAPE(0)), "size [0]");
    NO(fl_max_unpool, (line, far, FL_SHAPE(9)), "index 9", "size 9");
    NO(fv_max_unpool, (NULL, places, one), NULLS);
    NO(fl_avg_pool_opt, (NULL, two), NULLS);
    NO(fl_avg_pool_opt, (line, (fl_pool_opts){.kernel = {2}, .stride = {-3}}), "stride -3");
    NO_AS(fv_avg_pool_opt, "fv_avg_pool", (NULL, two), NULLS);
    NO(fl_lp_pool_opt, (NULL, 2, two), NULLS);
    NO(fl_lp_pool_opt, (line, 0, two), "p = 0");
    NO(fl_lp_pool_opt, (line, 2, (fl_pool_opts){.kernel = {6}}), "window 6");
    NO_AS(fv_lp_pool_opt, "fv_lp_pool", (NULL, 2, two), NULLS);
    NO(fl_adaptive_max_pool, (NULL, one, NULL), NULLS);
    NO(fl_adaptive_max_pool, (line, FL_SHAPE(2, 2), NULL), "[2, 2]", "[1, 2, 5]");
    NO(fv_adaptive_max_pool, (NULL, one, NULL), NULLS);
    NO(fl_adaptive_avg_pool, (NULL, one), NULLS);
    NO(fl_adaptive_avg_pool, (line, FL_SHAPE(0)), "[0]", "[1, 2, 5]");
    NO(fv_adaptive_avg_pool, (NULL, one), NULLS);
    NO_AS(fl_interpolate_opt, "fl_interpolate", (NULL, one, FL_LINEAR, false, same), NULLS);
    NO(fl_interpolate_opt, (line, FL_SHAPE(-1), FL_LINEAR, false, same), "[-1]");
    NO(fl_interpolate_opt, (line, one, (fl_interpolation)9, false, same), "mode 9");
    NO(fl_interpolate_opt, (line, one, FL_NEAREST, false, (fl_interpolate_opts){.antialias = true}),
       "antialias");
    NO(fl_interpolate_opt, (line, one, FL_LINEAR, false, (fl_interpolate_opts){.scale = {2}}), "scale 2",
       "size [2]");
    NO(fl_interpolate_opt, (line, FL_SCALAR_SHAPE, FL_LINEAR, false,
                            (fl_interpolate_opts){.scale = {0.1}}), "scale 0.1");
    NO(fl_interpolate_opt, (line, FL_SCALAR_SHAPE, FL_LINEAR, false,
                            (fl_interpolate_opts){.scale = {-1}}), "scale -1");
    NO(fl_interpolate_opt, (line, FL_SCALAR_SHAPE, FL_LINEAR, false, same), "size []");
    NO(fl_interpolate_opt, (empty, one, FL_CUBIC, false, same), "[1, 2, 0]");
    NO_AS(fv_interpolate_opt, "fv_interpolate", (NULL, one, FL_AREA, false, same), NULLS);
}

static void rows_of_image_places(void) {
    const fl_unfold_opts two = {.kernel = {2}};
    const fl_grid_opts plain = {0};
    const fl_shape five = FL_SHAPE(5), square = FL_SHAPE(2, 2);
    fl_tensor *line = fl_ones(FL_SHAPE(1, 2, 5), FL_F32);
    fl_tensor *image = fl_ones(FL_SHAPE(1, 2, 4, 4), FL_F32);
    NO(fl_unfold_opt, (NULL, two), NULLS);
    NO(fl_unfold_opt, (o.f23, two), "[2, 3]");
    NO(fl_unfold_opt, (line, (fl_unfold_opts){.kernel = {6}}), "[5]");
    NO_AS(fv_unfold_opt, "fv_unfold", (NULL, two), NULLS);
    NO(fl_fold_opt, (NULL, five, two), NULLS);
    NO(fl_fold_opt, (line, five, two), "[1, 2, 5]", "[n, c 2, 4]");
    NO(fl_fold_opt, (line, FL_SCALAR_SHAPE, two), "[]");
    NO(fl_fold_opt, (line, FL_SHAPE(1), two), "[1]");
    NO_AS(fv_fold_opt, "fv_fold", (NULL, five, two), NULLS);
    NO(fl_grid_sample_opt, (NULL, image, plain), NULLS);
    NO(fl_grid_sample_opt, (image, NULL, plain), NULLS);
    NO(fl_grid_sample_opt, (o.f23, image, plain), "[2, 3]");
    NO(fl_grid_sample_opt, (image, image, plain), "grid [1, 2, 4, 4]");
    fl_tensor *volume = fl_ones(FL_SHAPE(1, 2, 2, 2, 2), FL_F32),
        *grid = fl_ones(FL_SHAPE(1, 2, 2, 2, 3), FL_F32);
    NO(fl_grid_sample_opt, (volume, volume, plain), "grid [1, 2, 2, 2, 2]");
    NO(fl_grid_sample_opt, (volume, grid, (fl_grid_opts){.cubic = true}), "cubic", "[1, 2, 2, 2, 2]");
    NO_AS(fv_grid_sample_opt, "fv_grid_sample", (NULL, o.image_v, plain), NULLS);
    NO(fl_affine_grid, (NULL, square, false), NULLS);
    NO(fl_affine_grid, (o.f23, square, false), "[2, 3]");
    NO(fl_affine_grid, (o.f23, FL_SHAPE(2, 2, 2), false), "[2, 2, 2]");
    NO(fl_affine_grid, (fl_ones(FL_SHAPE(1, 2, 3), FL_F32), FL_SHAPE(0, 2), false), "[0, 2]");
    NO(fv_affine_grid, (NULL, square, false), NULLS);
}
/* MIT licence: see LICENSE. */
