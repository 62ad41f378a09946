/* parity_reduce.h - the lines of parity.c for reductions, scans and the rest of the element-wise
   ops */

static fl_quantile_method method_of(const parity_case *c) {
    static const char *const names[] = {"linear", "lower", "higher", "nearest", "midpoint"};
    int i = 0;
    while (i < 4 && strcmp(names[i], text_of(c, "method"))) i++;
    return (fl_quantile_method)i;
}

/* The largest finite value of x's dtype. */
static double largest_of(const fl_tensor *x) {
    return x->dtype == FL_F64 ? 0x1.fffffffffffffp1023 : x->dtype == FL_F16 ? 65504
           : x->dtype == FL_BF16 ? 0x1.fep127 : 0x1.fffffep127;
}

/* Ops of a value and an index along an axis: the index is the second output. */
#define WITH_INDEX(op, call) \
    static int op_##op(parity_case *c, fl_var **y) { \
        fl_tensor *index = NULL; \
        y[0] = (call); \
        y[1] = fv_const(index); \
        return 2; \
    }
WITH_INDEX(max_along, fv_max_along(IN(0), AXIS("axis"), INT("keepdim") != 0, &index))
WITH_INDEX(min_along, fv_min_along(IN(0), AXIS("axis"), INT("keepdim") != 0, &index))
WITH_INDEX(cummax, fv_cummax(IN(0), AXIS("axis"), &index))
WITH_INDEX(cummin, fv_cummin(IN(0), AXIS("axis"), &index))
WITH_INDEX(kthvalue, fv_kthvalue(IN(0), INT("k"), AXIS("axis"), false, &index))

#define REDUCE_OPS(OP) \
    OP(std, fv_std(IN(0), AXES, INT("correction"))) \
    OP(norm, fv_norm(IN(0), NUM("p"), AXES)) \
    OP(count_nonzero, CONST_OF(fl_count_nonzero(T(0), AXES))) \
    OP(nansum, fv_nansum(IN(0), AXES)) \
    OP(nanmean, fv_nanmean(IN(0), AXES)) \
    OP(median, fv_median(IN(0), AXIS("axis"), INT("keepdim") != 0, NULL)) \
    OP(median_axes, fv_median_axes(IN(0), AXES)) \
    OP(trunc_divide, fv_trunc_divide(IN(0), IN(1))) \
    OP(nanmedian, fv_nanmedian(IN(0), AXIS("axis"), INT("keepdim") != 0, NULL)) \
    OP(quantile, fv_quantile(IN(0), NUM("q"), AXIS("axis"), INT("keepdim") != 0, method_of(c))) \
    OP(nanquantile, fv_nanquantile(IN(0), NUM("q"), AXIS("axis"), INT("keepdim") != 0, FL_QUANTILE_LINEAR)) \
    OP(logcumsumexp, fv_logcumsumexp(IN(0), AXIS("axis"))) \
    OP(diff, fv_diff(IN(0), AXIS("axis"))) \
    OP(trapezoid, fv_trapezoid(IN(0), 1, AXIS("axis"))) \
    OP(cumulative_trapezoid, fv_cumulative_trapezoid(IN(0), 1, AXIS("axis"))) \
    OP(cumulative_trapezoid_x, fv_cumulative_trapezoid_x(IN(0), IN(1), AXIS("axis"))) \
    OP(trapezoid_x, fv_trapezoid_x(IN(0), IN(1), AXIS("axis"))) \
    OP(prelu_channels, fv_prelu_channels(IN(0), IN(1))) \
    OP(log_sigmoid, fv_logsigmoid(IN(0))) \
    OP(elu, fv_elu(IN(0), NUM("alpha"))) \
    OP(celu, fv_celu(IN(0), NUM("alpha"))) \
    OP(leaky_relu, fv_leaky_relu(IN(0), NUM("slope"))) \
    OP(hardtanh, fv_clamp(IN(0), fv_num(NUM("low")), fv_num(NUM("high")))) \
    OP(hardshrink, fv_hardshrink(IN(0), NUM("lambd"))) \
    OP(softshrink, fv_softshrink(IN(0), NUM("lambd"))) \
    OP(threshold, fv_threshold(IN(0), NUM("threshold"), NUM("value"))) \
    OP(swish, fv_swish(IN(0), NUM("beta"))) \
    OP(glu, fv_glu(IN(0), AXIS("axis"))) \
    OP(softmin, fv_softmax(fv_neg(IN(0)), AXIS("axis"))) \
    OP(floor_divide, fv_floor_divide(IN(0), IN(1))) \
    OP(hypot, fv_hypot(IN(0), IN(1))) \
    OP(isclose, CONST_OF(fl_isclose(T(0), T(1), NUM("rtol"), NUM("atol"), INT("equal_nan") != 0))) \
    OP(lerp, fv_lerp(IN(0), IN(1), IN(2))) \
    OP(addcmul, fv_addcmul(IN(0), IN(1), IN(2), NUM("value"))) \
    OP(addcdiv, fv_addcdiv(IN(0), IN(1), IN(2), NUM("value"))) \
    OP(clip_tensor, fv_clamp(IN(0), IN(1), IN(2))) \
    OP(squared_difference, fv_square(fv_sub(IN(0), IN(1)))) \
    OP(round_decimals, fv_round(IN(0), AXIS("decimals"))) \
    OP(erfc, fv_erfc(IN(0))) \
    OP(softplus_beta, fv_softplus_beta(IN(0), NUM("beta"), NUM("threshold"))) \
    OP(xlog1py, fv_xlog1py(IN(0), IN(1))) \
    OP(float_power, fv_float_power(IN(0), IN(1))) \
    OP(entr, fv_entr(IN(0))) \
    OP(ndtr, fv_ndtr(IN(0))) \
    OP(log_ndtr, fv_log_ndtr(IN(0))) \
    OP(i0, fv_i0(IN(0))) \
    OP(erfinv, fv_erfinv(IN(0))) \
    OP(lgamma, fv_lgamma(IN(0))) \
    OP(digamma, fv_digamma(IN(0))) \
    OP(gcd, CONST_OF(fl_gcd(T(0), T(1)))) \
    OP(lcm, CONST_OF(fl_lcm(T(0), T(1)))) \
    OP(nextafter, CONST_OF(fl_nextafter(T(0), T(1)))) \
    OP(histogram, CONST_OF(fl_histc(T(0), INT("bins"), NUM("low"), NUM("high")))) \
    OP(bincount, CONST_OF(fl_bincount(T(0), NULL, INT("minlength")))) \
    OP(bincount_weights, CONST_OF(fl_bincount(T(0), T(1), INT("minlength")))) \
    OP(positive, IN(0)) \
    OP(nan_to_num, fv_nan_to_num(IN(0), 0, largest_of(T(0)), -largest_of(T(0)))) \
    OP(nan_to_num_with, fv_nan_to_num(IN(0), NUM("nan"), NUM("posinf"), NUM("neginf")))

#define REDUCE_PARITY \
    {"prelu", op_prelu_channels, 0}, \
    {"max_along", op_max_along, 0}, \
    {"min_along", op_min_along, 0}, \
    {"cummax", op_cummax, 0}, \
    {"cummin", op_cummin, 0}, \
    {"kthvalue", op_kthvalue, 0},
/* MIT licence: see LICENSE. */
