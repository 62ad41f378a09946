/* errors_index.h - the rows of test_errors.c for indices and masks */

static void rows_of_index_writes(void) {
    fl_tensor *seven = fl_full(FL_SHAPE(2), 7, FL_I64), *one = fl_ones(FL_SHAPE(2), FL_I64);
    fl_tensor *three = fl_ones(FL_SHAPE(3), FL_I64), *below = fl_full(FL_SHAPE(2), -1, FL_I64);
    fl_tensor *far[] = {one, seven}, *two[] = {one, three}, *none[] = {one, NULL};
    fl_tensor *ok[] = {one, one}, *floats[] = {o.f2, o.f2};
    NO(fl_index, (NULL, ok, 2), NULLS);
    NO(fl_index, (o.f23, NULL, 2), NULLS);
    NO(fl_index, (o.f23, none, 2), NULLS);
    NO(fl_index, (o.f23, ok, 3), "3 indices", "[2, 3]");
    NO(fl_index, (o.f23, ok, 0), "0 indices");
    NO(fl_index, (o.f23, far, 2), "index 7", "axis 1", "size 3");
    NO(fl_index, (o.f23, two, 2), "index 1 of shape [3]");
    NO(fl_index, (o.f23, floats, 1), "f32", "expected i64 or i32");
    NO(fv_index, (NULL, ok, 2), NULLS);
    NO_AS(fv_index, "fl_index", (o.v23, far, 2), "index 7");
    NO(fl_index_put, (NULL, ok, 2, o.f2, false), NULLS);
    NO(fl_index_put, (o.f23, ok, 2, NULL, false), NULLS);
    NO(fl_index_put, (o.f23, far, 2, o.f2, false), "index 7", "axis 1", "size 3");
    NO(fl_index_put, (o.f23, ok, 2, o.f4, true), "[4]", "[2]");
    NO(fl_index_put, (o.f23, ok, 2, fl_cast(o.f2, FL_F64), false), "f64");
    NO(fv_index_put, (o.v23, ok, 2, NULL, false), NULLS);
    NO(fl_index_add, (NULL, 0, one, o.f23, 1), NULLS);
    NO(fl_index_add, (o.f23, 0, NULL, o.f23, 1), NULLS);
    NO(fl_index_add, (o.f23, 0, one, NULL, 1), NULLS);
    NO(fl_index_add, (o.f23, 2, one, o.f23, 1), "axis 2");
    NO(fl_index_add, (o.f23, 0, three, o.f23, 1), "[2, 3], expected [3, 3]");
    NO(fl_index_add, (o.f23, 0, o.index, o.f23, 1), "[2, 1]", "expected one dim");
    NO(fl_index_add, (o.i23, 0, one, o.i23, 0.5), "alpha 0.5", "i64");
    NO(fl_index_add, (o.i23, 0, one, o.i23, 1e39), "alpha 1e+39", "i64");
    NO(fl_index_add, (o.f23, 0, seven, o.f23, 1), "index 7", "size 2");
    NO(fl_index_add, (o.f23, 0, below, o.f23, 1), "index -1");
    NO(fv_index_add, (o.v23, 0, one, NULL, 1), NULLS);
    NO(fl_index_copy, (NULL, 0, one, o.f23), NULLS);
    NO(fl_index_copy, (o.f23, 0, one, o.f34), "[3, 4], expected [2, 3]");
    NO(fl_index_copy, (o.f23, 0, seven, o.f23), "index 7", "size 2");
    NO(fv_index_copy, (o.v23, 0, one, NULL), NULLS);
    NO(fl_index_fill, (NULL, 0, one, 1), NULLS);
    NO(fl_index_fill, (o.f23, 0, NULL, 1), NULLS);
    NO(fl_index_fill, (o.f23, 5, one, 1), "axis 5");
    NO(fl_index_fill, (o.f23, 0, seven, 1), "index 7", "axis 0", "size 2");
    NO(fv_index_fill, (NULL, 0, one, 1), NULLS);
}

static void rows_of_scatter_reduce(void) {
    fl_tensor *at = fl_zeros(FL_SHAPE(2, 3), FL_I64), *far = fl_full(FL_SHAPE(2, 3), 7, FL_I64);
    fl_tensor *counts = NULL;
    NO(fl_scatter_reduce, (NULL, 0, at, o.f23, FL_SCATTER_SUM, true), NULLS);
    NO(fl_scatter_reduce, (o.f23, 0, NULL, o.f23, FL_SCATTER_SUM, true), NULLS);
    NO(fl_scatter_reduce, (o.f23, 0, at, NULL, FL_SCATTER_SUM, true), NULLS);
    NO(fl_scatter_reduce, (o.f23, 2, at, o.f23, FL_SCATTER_PROD, true), "axis 2");
    NO(fl_scatter_reduce, (o.f23, 0, o.f23, o.f23, FL_SCATTER_PROD, true), "f32, expected i64 or i32");
    NO(fl_scatter_reduce, (o.f34, 0, at, o.f34, FL_SCATTER_AMAX, true), "differ in shape");
    NO(fl_scatter_reduce, (o.f23, 0, at, o.i23, FL_SCATTER_AMAX, true), "x is f32, src i64");
    NO(fl_scatter_reduce, (fl_cast(o.f23, FL_B8), 0, at, fl_cast(o.f23, FL_B8), FL_SCATTER_AMIN, true), "b8");
    NO(fl_scatter_reduce, (o.f23, 0, at, o.f23, (fl_scatter_mode)7, true), "unknown mode 7");
    NO_AS(fl_scatter_reduce, "fl_scatter", (o.f23, 0, far, o.f23, FL_SCATTER_AMAX, true), "index 7");
    NO(fv_scatter_reduce, (NULL, 0, at, o.v23, FL_SCATTER_SUM, true), NULLS);
    NO(fl_unique_dim, (NULL, 0, NULL, &counts), NULLS);
    NO(fl_unique_dim, (o.f23, 2, NULL, &counts), "axis 2");
}

static void rows_of_quantized(void) {
    fl_tensor *one = fl_ones(FL_SCALAR_SHAPE, FL_F32), *q = fl_zeros(FL_SHAPE(2, 3), FL_I8);
    fl_tensor *zero = fl_zeros(FL_SCALAR_SHAPE, FL_I64);
    NO(fl_quantize, (NULL, one, zero, 0, FL_I8), NULLS);
    NO(fl_quantize, (o.f23, NULL, zero, 0, FL_I8), NULLS);
    NO(fl_quantize, (o.i23, one, zero, 0, FL_I8), "x is i64");
    NO(fl_quantize, (o.f23, one, zero, 0, FL_F32), "got f32");
    NO(fl_quantize, (o.f23, o.f4, zero, 0, FL_U8), "scale f32 [4]", "[2, 3]");
    NO(fl_quantize, (o.f23, o.f2, zero, 0, FL_U8), "scale f32 [2]", "zero point i64 []");
    NO(fl_quantize, (o.f23, o.f2, NULL, 2, FL_U8), "axis 2");
    NO(fl_quantize, (o.f23, one, one, 0, FL_U8), "zero point f32");
    NO(fl_dequantize, (NULL, one, zero, 0), NULLS);
    NO(fl_dequantize, (q, NULL, zero, 0), NULLS);
    NO(fl_dequantize, (o.f23, one, zero, 0), "q is f32");
    NO(fl_dequantize, (q, o.f23, NULL, 0), "scale f32 [2, 3]");
    NO(fl_fake_quantize, (NULL, one, zero, 0, 0, 255), NULLS);
    NO(fl_fake_quantize, (o.f23, NULL, zero, 0, 0, 255), NULLS);
    NO(fl_fake_quantize, (o.f23, one, zero, 0, 5, 3), "from 5 to 3");
    NO(fl_fake_quantize, (o.i23, one, zero, 0, 0, 3), "x is i64");
    NO(fl_fake_quantize, (o.f23, zero, zero, 0, 0, 3), "scale i64");
    NO(fv_fake_quantize, (NULL, one, zero, 0, 0, 255), NULLS);
    NO(fv_fake_quantize, (o.v23, NULL, zero, 0, 0, 255), NULLS);
}

static void rows_of_index_reads(void) {
    fl_tensor *seven = fl_full(FL_SHAPE(2), 7, FL_I64), *grid[2], *flat[] = {o.index, seven};
    fl_tensor *far = fl_full(FL_SHAPE(2), -7, FL_I64), *below = fl_full(FL_SHAPE(2), -1, FL_I64);
    const fl_searchsorted_opts in_order = {0}, sorter = {.sorter = seven};
    NO(fl_take, (NULL, seven), NULLS);
    NO(fl_take, (o.f23, NULL), NULLS);
    NO(fl_take, (o.f23, seven), "index 7", "size 6");
    NO(fl_take, (o.f23, far), "index -7", "size 6");
    NO(fl_take, (o.f23, o.f2), "f32", "expected i64 or i32");
    NO(fv_take, (NULL, seven), NULLS);
    NO(fl_take_along, (NULL, o.index, 1), NULLS);
    NO(fl_take_along, (o.f23, NULL, 1), NULLS);
    NO(fl_take_along, (o.f23, o.index, 2), "axis 2");
    NO(fl_take_along, (o.f34, o.index, 1), "[2, 1]", "[3, 4]");
    NO(fl_take_along, (o.f23, o.index, 1), "index 7", "size 3");
    NO(fv_take_along, (NULL, o.index, 1), NULLS);
    ROW(RAISES, "fl_ix", !fl_ix(NULL, 2, grid), NULLS);
    ROW(RAISES, "fl_ix", !fl_ix(flat, 2, NULL), NULLS);
    ROW(RAISES, "fl_ix", !fl_ix(flat, 2, grid), "index 0", "[2, 1]");
    ROW(RAISES, "fl_ix", !fl_ix(flat, 9, grid), "9 indices");
    NO(fl_bincount, (NULL, NULL, 0), NULLS);
    NO(fl_bincount, (o.f4, NULL, 0), "f32", "[4]");
    NO(fl_bincount, (o.i23, NULL, 0), "[2, 3]");
    NO(fl_bincount, (seven, NULL, -1), "at least -1");
    NO(fl_bincount, (seven, o.f4, 0), "[4]", "[2]");
    NO(fl_bincount, (below, NULL, 0), "index -1");
    NO(fv_bincount, (NULL, o.v4, 0), NULLS);
    NO(fl_histc, (NULL, 4, 0, 1), NULLS);
    NO(fl_histc, (o.f4, 0, 0, 1), "0 bins");
    NO(fl_histc, (o.f4, 4, 1, 0), "from 1 to 0");
    NO(fl_histc, (o.f4, 4, 0, INFINITY), "from 0 to inf");
    NO(fl_unique, (NULL, NULL, NULL), NULLS);
    NO(fl_unique_consecutive, (NULL, NULL, NULL), NULLS);
    NO(fl_unique_consecutive_dim, (NULL, 0, NULL, NULL), NULLS);
    NO(fl_unique_consecutive_dim, (o.f23, 2, NULL, NULL), "axis 2");
    NO_AS(fl_searchsorted_opt, "fl_searchsorted", (NULL, o.f4, false, in_order), NULLS);
    NO_AS(fl_searchsorted_opt, "fl_searchsorted", (o.f4, NULL, false, in_order), NULLS);
    NO_AS(fl_searchsorted_opt, "fl_searchsorted", (o.f34, o.f23, false, in_order), "[2, 3] in [3, 4]");
    NO_AS(fl_searchsorted_opt, "fl_searchsorted", (o.f4, o.f4, false, sorter),
          "sorter of shape", "for [4]");
    NO_AS(fl_searchsorted_opt, "fl_searchsorted", (o.f2, o.f4, false, sorter),
          "index 7", "size 2");
    NO(fl_isin, (NULL, o.f4), NULLS);
    NO(fl_isin, (o.f4, NULL), NULLS);
}

static void rows_of_masks(void) {
    NO(fl_masked_fill, (NULL, o.b23, 1), NULLS);
    NO(fl_masked_fill, (o.f23, NULL, 1), NULLS);
    NO(fl_masked_fill, (o.f23, o.f23, 1), "f32", "expected b8");
    NO(fl_masked_fill, (o.f34, o.b23, 1), "[2, 3]", "[3, 4]");
    NO(fv_masked_fill, (NULL, o.b23, 1), NULLS);
    NO(fl_masked_select, (NULL, o.b23), NULLS);
    NO(fl_masked_select, (o.f23, NULL), NULLS);
    NO(fl_masked_select, (o.f34, o.b23), "[2, 3]", "[3, 4]");
    NO(fv_masked_select, (NULL, o.b23), NULLS);
    NO(fl_masked_scatter, (NULL, o.b23, o.f23), NULLS);
    NO(fl_masked_scatter, (o.f23, o.b23, NULL), NULLS);
    NO(fl_masked_scatter, (o.f23, o.f23, o.f23), "f32", "expected b8");
    NO(fl_masked_scatter, (o.f23, fl_ones(FL_SHAPE(3), FL_B8), o.f4), "4 elements for 6 places");
    NO(fv_masked_scatter, (o.v23, o.b23, NULL), NULLS);
}
/* MIT licence: see LICENSE. */
