/* gradcheck_reduce.h - composed reductions, order statistics and scans */

/* Along axis k[0] or over the axes; k[1]: which one. */
static fl_var *composed_reduction(fl_var **x, const grad_case *c) {
    fl_var *v = x[0], *square = fv_mul(v, v);
    int axis = (int)c->k[0];
    switch (c->which) {
    case 0: return fv_std(v, FL_AXES_KEEP(axis), 0);
    case 1: return fv_norm(v, 2, FL_AXES(axis));
    case 2: return fv_norm(v, 3, FL_AXES(axis));
    case 3: return fv_norm(square, 1, FL_AXES(axis));
    case 4: return fv_norm(square, (double)INFINITY, FL_AXES(axis));
    case 5: return fv_nansum(square, FL_AXES(axis));
    case 6: return fv_nanmean(square, FL_AXES(axis));
    case 7: return fv_max_along(square, axis, false, NULL);
    case 8: return fv_min_along(square, axis, true, NULL);
    case 9: return fv_kthvalue(square, 2, axis, false, NULL);
    case 10: return fv_median(square, axis, false, NULL);
    case 11: return fv_nanmedian(square, axis, true, NULL);
    case 12: return fv_quantile(square, 0.3, axis, false, FL_QUANTILE_LINEAR);
    case 13: return fv_nanquantile(square, 0.7, axis, true, FL_QUANTILE_MIDPOINT);
    case 14: return fv_cummax(square, axis, NULL);
    case 15: return fv_cummin(square, axis, NULL);
    case 16: return fv_logcumsumexp(v, axis);
    case 17: return fv_diff(square, axis);
    case 18: return fv_median_axes(square, v->value->ndim > 1 ? FL_AXES_KEEP(0, -1) : FL_ALL_AXES);
    case 19: return fv_trapezoid_x(square, fv_exp(v), axis);
    case 20: return fv_cumulative_trapezoid_x(square, fv_exp(v), axis);
    case 21: return fv_cumulative_trapezoid(square, 0.5, axis);
    default: return fv_trapezoid(square, 0.5, axis);
    }
}

static const char *const composed_reductions[] = {
    "std",       "norm",      "norm 3",   "norm 1",      "norm inf", "nansum", "nanmean",
    "max_along", "min_along", "kthvalue", "median",      "nanmedian", "quantile", "nanquantile",
    "cummax",    "cummin",    "logcumsumexp", "diff", "median_axes", "trapezoid_x",
    "cumulative_trapezoid_x", "cumulative_trapezoid", "trapezoid"};
enum { COMPOSED_REDUCTIONS = sizeof composed_reductions / sizeof *composed_reductions };

static void composed_reduction_cases(int which) {
    static const fl_shape shapes[] = {{1, {5}}, {2, {3, 4}}, {3, {2, 3, 2}}};
    for (int s = 0; s < 3; s++)
        for (int axis = 0; axis < shapes[s].ndim; axis++)
            run_case(composed_reductions[which],
                     (grad_case){.fn = composed_reduction, .which = which, .n_in = 1,
                                 .shape = {shapes[s]}, .low = 0.3, .high = 3, .k = {axis}});
}
/* MIT licence: see LICENSE. */
