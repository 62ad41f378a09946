/* errors_move.h - rows of test_errors.c for the ops of fl/ops/move.h and create.h */

/* fl_x and fv_x with the same arguments after the first: NULL, and what is wrong with [2, 3]. */
#define MOVE_NULL(name, ...)                 \
    NO(fl_##name, (NULL, __VA_ARGS__), NULLS); \
    NO(fv_##name, (NULL, __VA_ARGS__), NULLS)
#define MOVE_BAD(name, args, ...)                                                 \
    ROW(RAISES, "fl_" #name, !fl_##name MOVE_WITH(o.f23, args), __VA_ARGS__);     \
    ROW(RAISES, "fv_" #name, !fv_##name MOVE_WITH(o.v23, args), __VA_ARGS__)
#define MOVE_WITH(x, args) (x, MOVE_BARE args)
#define MOVE_BARE(...) __VA_ARGS__

static const int axis_two[] = {2}, axis_twice[] = {1, -1};

static void rows_of_more_movement(void) {
    MOVE_NULL(movedim, 0, 1);
    MOVE_NULL(narrow, 0, 0, 1);
    MOVE_NULL(flip, 1, axis_two);
    MOVE_NULL(roll, 1, 0);
    MOVE_NULL(rot90, 1, 0, 1);
    MOVE_NULL(unflatten, 0, FL_SHAPE(1));
    MOVE_NULL(tile, FL_SHAPE(1));
    MOVE_NULL(repeat, FL_SHAPE(1));
    MOVE_NULL(repeat_interleave, 2, 0);
    MOVE_NULL(repeat_interleave_each, o.index, 0);
    NO(fl_pad_opt, (NULL, (fl_pad_opts){0}), NULLS);
    NO_AS(fv_pad_opt, "fv_pad", (NULL, (fl_pad_opts){0}), NULLS);
    MOVE_NULL(sliding_windows, 0, 1, 1, 1);
    MOVE_NULL(pixel_shuffle, 1);
    MOVE_NULL(pixel_unshuffle, 1);
    MOVE_NULL(channel_shuffle, 1);
    MOVE_NULL(diagonal, 0, 0, 1);
    MOVE_NULL(diag_embed, 0);
    MOVE_NULL(tril, 0);
    MOVE_NULL(triu, 0);
    NO(fl_channels_last, (NULL), NULLS);
    NO(fv_channels_last, (NULL), NULLS);
    NO(fv_contiguous, (NULL), NULLS);
    NO(fv_clone, (NULL), NULLS);
    NO(fl_accumulate, (NULL, o.f23), NULLS);
    NO(fl_accumulate, (o.f23, NULL), NULLS);
    NO(fl_accumulate, (o.f23, o.f34), "[2, 3]", "[3, 4]");
    NO(fl_accumulate, (o.f4, fl_ones(FL_SHAPE(3, 4), FL_F32)), "[4]", "[3, 4]");
    MOVE_BAD(movedim, (2, 0), "axis 2", "[2, 3]");
    MOVE_BAD(movedim, (0, -3), "axis -3", "[2, 3]");
    MOVE_BAD(narrow, (1, 2, 2), "2 elements from 2", "[2, 3]");
    MOVE_BAD(narrow, (1, 0, -1), "-1 elements", "[2, 3]");
    MOVE_BAD(narrow, (2, 0, 1), "axis 2", "[2, 3]");
    MOVE_BAD(flip, (1, axis_two), "axis 2", "[2, 3]");
    MOVE_BAD(flip, (2, axis_twice), "axis 1 appears twice");
    MOVE_BAD(flip, (1, NULL), NULLS);
    MOVE_BAD(roll, (1, 2), "axis 2", "[2, 3]");
    MOVE_BAD(rot90, (1, 0, -2), "axis 0 appears twice");
    MOVE_BAD(rot90, (1, 0, 2), "axis 2", "[2, 3]");
    MOVE_BAD(unflatten, (1, FL_SHAPE(2, 2)), "axis 1", "[2, 3]", "[2, 2]");
    MOVE_BAD(unflatten, (1, FL_SHAPE(2, -1)), "axis 1", "[2, 3]");
    MOVE_BAD(unflatten, (1, FL_SCALAR_SHAPE), "0 dims");
    MOVE_BAD(unflatten, (1, FL_SHAPE(1, 1, 1, 1, 1, 1, 1, 3)), "8 dims");
    MOVE_BAD(unflatten, (1, least), "dims");
    MOVE_BAD(tile, (FL_SHAPE(2, -1)), "-1 times", "[4, 3]");
    MOVE_BAD(tile, (too_long), "9 numbers");
    MOVE_BAD(repeat, (FL_SHAPE(2)), "1 numbers", "[2, 3]");
    MOVE_BAD(repeat, (FL_SHAPE(2, INT64_MAX)), "times", "[4, 3]");
    MOVE_BAD(repeat_interleave_each, (NULL, 0), NULLS);
    MOVE_BAD(repeat_interleave_each, (o.f2, 0), "times is f32 [2], expected integers [2]");
    MOVE_BAD(repeat_interleave_each, (fl_full(FL_SHAPE(2), -1, FL_I64), 0), "at least 0", "-1");
    MOVE_BAD(repeat_interleave_each, (fl_full(FL_SHAPE(2), 0x1p62, FL_I64), 0), "their sum fit");
    MOVE_BAD(repeat_interleave_each, (fl_ones(FL_SHAPE(3), FL_I64), 0), "[3]", "expected integers [2]");
    MOVE_BAD(repeat_interleave, (-1, 0), "-1 times", "[2, 3]");
    MOVE_BAD(repeat_interleave, (INT64_MAX / 2, 0), "times", "[2, 3]");
    MOVE_BAD(repeat_interleave, (2, 2), "axis 2", "[2, 3]");
    MOVE_BAD(pad_opt, ((fl_pad_opts){.low = {-3}}), "-3 before", "[2, 3]");
    MOVE_BAD(pad_opt, ((fl_pad_opts){.low = {-1}, .high = {-2}}), "-2 after", "[2, 3]");
    MOVE_BAD(pad_opt, ((fl_pad_opts){.high = {INT64_MAX}}), "after axis 0", "[2, 3]");
    MOVE_BAD(pad_opt, ((fl_pad_opts){.high = {0, 0, 1}}), "axis 2", "[2, 3]");
    MOVE_BAD(pad_opt, ((fl_pad_opts){.mode = (fl_pad_mode)7}), "mode 7");
    NO(fl_pad_opt, (o.f03, (fl_pad_opts){.low = {1}, .mode = FL_PAD_EDGE}), "[0, 3]");
    MOVE_BAD(sliding_windows, (1, 4, 1, 1), "size 4", "[2, 3]");
    MOVE_BAD(sliding_windows, (1, 2, 1, INT64_MAX), "dilation", "[2, 3]");
    MOVE_BAD(sliding_windows, (1, 2, 0, 1), "step 0", "[2, 3]");
    MOVE_BAD(sliding_windows, (2, 2, 1, 1), "axis 2", "[2, 3]");
    MOVE_BAD(pixel_shuffle, (2), "[2, 3]");
    MOVE_BAD(pixel_unshuffle, (2), "[2, 3]");
    MOVE_BAD(channel_shuffle, (2), "[2, 3]", "2 groups");
    NO(fl_pixel_shuffle, (o.image, 2), "[1, 2, 4, 4]", "by 2");
    NO(fl_pixel_unshuffle, (o.image, 3), "[1, 2, 4, 4]", "by 3");
    NO(fl_channels_last, (o.f23), "[2, 3]");
    NO(fv_channels_last, (o.v23), "[2, 3]");
    MOVE_BAD(diagonal, (0, 1, -1), "axis 1 appears twice");
    MOVE_BAD(diagonal, (0, 0, 2), "axis 2", "[2, 3]");
    MOVE_BAD(diag_embed, (INT64_MIN), "[2, 3]");
    NO(fl_diag_embed, (o.number, 0), "[]");
    NO(fl_tril, (o.f4, 0), "[4]");
    NO(fv_tril, (o.v4, 0), "[4]");
    NO(fl_triu, (o.f4, 0), "[4]");
    NO(fv_triu, (o.v4, 0), "[4]");
}

static void rows_of_parts(void) {
    fl_tensor *t[8], *pair[] = {o.f23, o.f4}, *none[] = {NULL};
    fl_var *v[8], *vars[] = {o.v23, o.v4}, *no_var[] = {NULL};
    NO(fl_split, (NULL, 0, 1, t, 8), NULLS);
    NO(fv_split, (NULL, 0, 1, v, 8), NULLS);
    NO(fl_split, (o.f23, 0, 1, NULL, 8), NULLS);
    NO(fl_split, (o.f23, 1, 1, t, 2), "parts of 1", "capacity 2");
    NO(fl_split, (o.f23, 1, 0, t, 8), "parts of 0", "[2, 3]");
    NO(fv_split, (o.v23, 2, 1, v, 8), "axis 2", "[2, 3]");
    const int64_t sizes[] = {1, 2}, below[] = {4, -1}, vast[] = {INT64_MAX, INT64_MAX};
    NO(fl_split_with_sizes, (NULL, 1, sizes, 2, t), NULLS);
    NO(fv_split_with_sizes, (NULL, 1, sizes, 2, v), NULLS);
    NO(fl_split_with_sizes, (o.f23, 1, NULL, 2, t), NULLS);
    NO(fl_split_with_sizes, (o.f23, 1, sizes, 2, NULL), NULLS);
    NO(fl_split_with_sizes, (o.f23, 0, sizes, 2, t), "2 sizes", "add up to 3", "axis 0", "[2, 3]");
    NO(fl_split_with_sizes, (o.f23, 1, below, 2, t), "add up to -1");
    NO(fl_split_with_sizes, (o.f23, 1, vast, 2, t), "add up to -1");
    NO(fl_split_with_sizes, (o.f23, 1, sizes, 0, t), "0 sizes");
    NO(fv_split_with_sizes, (o.v23, 2, sizes, 2, v), "axis 2", "[2, 3]");
    NO(fl_unbind, (NULL, 0, t, 8), NULLS);
    NO(fv_unbind, (NULL, 0, v, 8), NULLS);
    NO(fl_unbind, (o.f23, 0, NULL, 8), NULLS);
    NO(fl_unbind, (o.f23, 1, t, 2), "axis 1 of shape [2, 3]", "capacity 2");
    NO(fv_unbind, (o.v23, 2, v, 8), "axis 2", "[2, 3]");
    NO(fl_unbind, (o.number, 0, t, 8), "[]");
    NO(fl_chunk, (NULL, 0, 1, t), NULLS);
    NO(fv_chunk, (NULL, 0, 1, v), NULLS);
    NO(fl_chunk, (o.f23, 0, 1, NULL), NULLS);
    NO(fl_chunk, (o.f23, 0, 0, t), "0 parts");
    NO(fv_chunk, (o.v23, 2, 1, v), "axis 2", "[2, 3]");
    NO(fl_broadcast_tensors, (NULL, 2, t), NULLS);
    NO(fv_broadcast_tensors, (NULL, 2, v), NULLS);
    NO(fl_broadcast_tensors, (none, 1, t), NULLS);
    NO(fl_broadcast_tensors, (pair, 2, NULL), NULLS);
    NO(fl_broadcast_tensors, (pair, 2, t), "[4]", "[2, 3]");
    NO(fv_broadcast_tensors, (vars, 2, v), "[4]", "[2, 3]");
    NO(fl_meshgrid, (NULL, 2, t), NULLS);
    NO(fv_meshgrid, (no_var, 1, v), NULLS);
    NO(fl_meshgrid, (pair, 0, t), "0 axes");
    NO(fl_meshgrid, (pair, 9, t), "9 axes");
    NO(fl_meshgrid, (pair, 2, t), "[2, 3]");
    NO(fv_meshgrid, (vars, 2, v), "[2, 3]");
}

static void rows_of_more_creation(void) {
    NO(fl_empty_like, (NULL), NULLS);
    NO(fl_zeros_like, (NULL), NULLS);
    NO(fl_ones_like, (NULL), NULLS);
    NO(fl_linspace, (0, 1, -1, FL_F32), "-1 elements");
    NO(fl_linspace, (0, 1, INT64_MIN, FL_F32), "-9223372036854775808 elements");
    NO(fl_linspace, (0, 1, 2, (fl_dtype)99), "dtype 99");
    NO(fl_logspace, (0, 1, -1, 10, FL_F32), "-1 elements");
    NO(fl_tri, (-1, 2, 0, FL_F32), "[-1, 2]");
    NO(fl_hann_window, (-1, true, FL_F32), "-1 elements");
    NO(fl_hann_window, (INT64_MIN, false, FL_F32), "-9223372036854775808 elements");
    NO(fl_hamming_window, (-1, true, FL_F32), "-1 elements");
    NO(fl_blackman_window, (-1, true, FL_F32), "-1 elements");
    NO(fl_bartlett_window, (-1, true, FL_F32), "-1 elements");
    NO(fl_bernoulli, (NULL, NULL), NULLS);
    NO(fl_bernoulli, (o.i23, NULL), "i64");
    NO(fl_bernoulli, (o.f23, NULL), "not in [0, 1]");
    NO(fl_permutation, (-1, NULL), "-1 elements");
    NO(fl_multinomial, (NULL, 1, true, NULL), NULLS);
    NO(fl_multinomial, (o.f23, -1, true, NULL), "-1 draws", "[2, 3]");
    NO(fl_multinomial, (o.image, 1, true, NULL), "[1, 2, 4, 4]");
    NO(fl_multinomial, (o.f23, 4, false, NULL), "4 draws");
    NO(fl_multinomial, (fl_neg(o.f23), 1, true, NULL), "not negative");
    NO(fl_multinomial, (fl_zeros(FL_SHAPE(3), FL_F32), 1, true, NULL), "not all 0");
    NO(fl_truncated_normal, (FL_SHAPE(2), 0, 0, -1, 1, FL_F32, NULL), "std 0");
    NO(fl_truncated_normal, (FL_SHAPE(2), 0, 1, 1, -1, FL_F32, NULL), "[1, -1]");
    NO(fl_truncated_normal, (FL_SHAPE(2), 0, 1, 30, 40, FL_F32, NULL), "[30, 40]");
    NO(fl_truncated_normal, (FL_SHAPE(2), 0, 1, -1, 1, FL_I64, NULL), "i64");
    NO(fl_truncated_normal, (negative, 0, 1, -1, 1, FL_F32, NULL), "[2, -3]");
}

#undef MOVE_NULL
#undef MOVE_BAD
/* MIT licence: see LICENSE. */
