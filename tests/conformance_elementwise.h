/* conformance_elementwise.h - the ops of the formula tables, where, clip, their gradients, and
   promotion */

/* >>references: one element, written from the definitions */

typedef struct unary_ref {
    const char *op;
    char cls;                 /* F float, N number, A any, I integer, C comparison, B truth, T float of all */
    double (*f)(double);
    int64_t (*i)(int64_t);
    double ulp32, ulp64;      /* tolerance ... */
    double slack, tiny;       /* ... in epsilons of |x|, and in smallest normal numbers */
    double (*d)(double);      /* derivative; NULL: zero, or none */
    double d_slack;           /* in epsilons of |dy| (1 + |x|) */
} unary_ref;

static int64_t wrap_neg(int64_t x) { return (int64_t)(0 - (uint64_t)x); }
static double f_neg(double x) { return -x; }
static int64_t i_abs(int64_t x) { return x < 0 ? wrap_neg(x) : x; }
static int64_t i_same(int64_t x) { return x; }
static int64_t i_not(int64_t x) { return ~x; }
static double f_square(double x) { return x * x; }
static int64_t i_square(int64_t x) { return (int64_t)((uint64_t)x * (uint64_t)x); }
static double f_reciprocal(double x) { return 1 / x; }
static double f_rsqrt(double x) { return 1 / sqrt(x); }
static double f_sign(double x) { return (x > 0) - (x < 0); } /* 0 for NaN, as PyTorch */
static int64_t i_sign(int64_t x) { return (x > 0) - (x < 0); }
static double f_relu(double x) { return isnan(x) || x > 0 ? x : 0; }
static int64_t i_relu(int64_t x) { return x > 0 ? x : 0; }
static double f_sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double f_silu(double x) { return x * f_sigmoid(x); }
static double f_softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static double f_gelu(double x) { return x * (0.5 * erfc(-x / sqrt(2.0))); }
static double f_isnan(double x) { return isnan(x) != 0; }
static int64_t i_zero(int64_t x) { return (void)x, 0; }
static double f_logical_not(double x) { return x == 0; }
static int64_t i_logical_not(int64_t x) { return x == 0; }
static double f_rint(double x) {
    double low = floor(x), rest = x - low;
    if (isnan(x) || isinf(x)) return x;
    return copysign(rest < 0.5 ? low : rest > 0.5 ? low + 1 : fmod(low, 2) == 0 ? low : low + 1, x);
}

static double f_frac(double x) { return fmod(x, 1) + 0.0; }
static double f_deg2rad(double x) { return x / 180 * acos(-1); }
static double f_rad2deg(double x) { return x / acos(-1) * 180; }
static double f_sinc(double x) { /* sin(pi x) from the nearest even number */
    double r = remainder(x, 2), in = fabs(r) > 0.5 ? copysign(1, r) - r : r;
    return x == 0 ? 1 : sin(acos(-1) * in) / (acos(-1) * x);
}
static double f_logit(double x) {
    bool middle = x >= 0.25 && x <= 0.75;
    return (double)(middle ? 2 * atanhl(2 * (long double)x - 1) : logl(x) - log1pl(-(long double)x));
}
static double f_gelu_tanh(double x) {
    long double u = sqrtl(2 / acosl(-1)) * (x + 0.044715L * x * x * x);
    return (double)(x * (0.5L * (1 + tanhl(u))));
}
static double f_relu6(double x) { return isnan(x) ? x : x < 0 ? 0 : x > 6 ? 6 : x; }
static int64_t i_relu6(int64_t x) { return x < 0 ? 0 : x > 6 ? 6 : x; }
static double f_hardsigmoid(double x) {
    return x <= -3 ? 0 : x >= 3 ? 1 : (double)((3 + (long double)x) / 6);
}
static double f_hardswish(double x) { return x * f_hardsigmoid(x); }
static double f_mish(double x) { return x * tanh(f_softplus(x)); }
static const double selu_scale = 1.0507009873554805, selu_alpha = 1.6732632423543772;
static double f_selu(double x) { return selu_scale * (x > 0 ? x : selu_alpha * expm1(x)); }
static double f_softsign(double x) { return x / (1 + fabs(x)); }
static double f_logsigmoid(double x) { return x < 0 ? x - log1p(exp(x)) : 0 - log1p(exp(-x)); }
static double f_tanhshrink(double x) { return x - tanh(x); }
static double f_isfinite(double x) { return isfinite(x) != 0; }
static int64_t i_one(int64_t x) { return (void)x, 1; }
static double f_isinf(double x) { return isinf(x) != 0; }
static double f_isposinf(double x) { return x == INFINITY; }
static double f_isneginf(double x) { return x == -INFINITY; }
static double f_signbit(double x) { return signbit(x) && !isnan(x); }
static int64_t i_signbit(int64_t x) { return x < 0; }

static double d_one(double x) { return (void)x, 1; }
static double d_deg2rad(double x) { return (void)x, acos(-1) / 180; }
static double d_rad2deg(double x) { return (void)x, 180 / acos(-1); }
static double d_exp2(double x) { return exp2(x) * log(2); }
static double d_log2(double x) { return 1 / (x * log(2)); }
static double d_log10(double x) { return 1 / (x * log(10)); }
static double d_tan(double x) { return 1 / (cos(x) * cos(x)); }
static double d_asin(double x) { return 1 / sqrt(1 - x * x); }
static double d_acos(double x) { return -1 / sqrt(1 - x * x); }
static double d_atan(double x) { return 1 / (1 + x * x); }
static double d_asinh(double x) { return 1 / hypot(1, x); }
static double d_acosh(double x) { return 1 / sqrt(x * x - 1); }
static double d_atanh(double x) { return 1 / (1 - x * x); }
static double d_sinc(double x) {
    long double p = acosl(-1), t = p * x;
    if (fabs(x) < 1e-3) return (double)(-p * p * x / 3 * (1 - t * t / 10));
    return (double)((cosl(t) - sinl(t) / t) / x);
}
static double d_logit(double x) { return 1 / (x * (1 - x)); }
static double d_gelu_tanh(double x) {
    double k = sqrt(2 / acos(-1)), t = tanh(k * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
}
static double d_relu6(double x) { return x > 0 && x < 6; }
static double d_hardsigmoid(double x) { return fabs(x) < 3 ? 1 / 6.0 : 0; }
static double d_hardswish(double x) { return x <= -3 ? 0 : x >= 3 ? 1 : x / 3 + 0.5; }
static double d_mish(double x) {
    double t = tanh(f_softplus(x));
    return t + x * (1 - t * t) * f_sigmoid(x);
}
static double d_selu(double x) { return selu_scale * (x > 0 ? 1 : selu_alpha * exp(x)); }
static double d_softsign(double x) { return 1 / pow(1 + fabs(x), 2); }
static double d_logsigmoid(double x) { return f_sigmoid(-x); }
static double d_tanhshrink(double x) { return pow(tanh(x), 2); }
static double d_neg(double x) { return (void)x, -1; }
static double d_abs(double x) { return x == 0 ? 0 : copysign(1, x); }
static double d_log(double x) { return 1 / x; }
static double d_log1p(double x) { return 1 / (1 + x); }
static double d_sqrt(double x) { return 0.5 / sqrt(x); }
static double d_cos(double x) { return -sin(x); }
static double d_tanh(double x) { return 1 / (cosh(x) * cosh(x)); }
static double d_erf(double x) { return 2 / sqrt(acos(-1)) * exp(-x * x); }
static double d_square(double x) { return x + x; }
static double d_reciprocal(double x) { return -1 / (x * x); }
static double d_rsqrt(double x) { return -0.5 / (x * sqrt(x)); }
static double d_relu(double x) { return x > 0; }
static double d_sigmoid(double x) { return f_sigmoid(x) * f_sigmoid(-x); }
static double d_silu(double x) { return f_sigmoid(x) + x * d_sigmoid(x); }
static double d_gelu(double x) {
    return 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-x * x / 2) / sqrt(2 * acos(-1));
}

/* The compositions, with the settings that composed_fns gives them. */
static double f_elu(double x) { return x > 0 ? x : 1.5 * expm1(x); }
static double f_celu(double x) { return x > 0 ? x : 1.5 * expm1(x / 1.5); }
static double f_leaky_relu(double x) { return x > 0 ? x : x / 8; }
static double f_threshold(double x) { return x <= 0.5 ? 3 : x; }
static double f_hardshrink(double x) { return fabs(x) <= 0.75 ? 0 : x; }
static double f_softshrink(double x) {
    return x > 0.75 ? x - 0.75 : x < -0.75 ? x + 0.75 : isnan(x) ? x : 0;
}
static double f_swish(double x) { return x * f_sigmoid(1.5 * x); }
static double f_lgamma(double x) { return lgamma(x); }
static double f_digamma(double x) { /* the recurrence up to 20, then the asymptotic series */
    if (x == 0) return copysign(INFINITY, -x);
    if (x == -INFINITY || (x < 0 && x == floor(x))) return NAN;
    if (x < 0.5) { /* r in [-1/2, 1/2] */
        long double r = remainderl(x, 1), pi = acosl(-1);
        return (double)(f_digamma(1 - x) - pi * cosl(pi * r) / sinl(pi * r));
    }
    long double y = 0, z = x, q;
    for (; z < 20; z++) y -= 1 / z;
    q = 1 / (z * z);
    return (double)(y + logl(z) - 0.5L / z - q * (1 / 12.0L - q * (1 / 120.0L - q * (1 / 252.0L -
                    q * (1 / 240.0L - q / 132)))));
}
static double f_erfinv(double y) { /* bisection of erfc, which is precise on both sides */
    double low = 0, high = 7, a = fabs(y);
    if (!(a < 1)) return a == 1 ? copysign(INFINITY, y) : NAN;
    for (int i = 0; i < 200; i++) {
        double x = 0.5 * (low + high);
        bool above = a < 0.5 ? erf(x) > a : erfc(x) < 1 - a;
        *(above ? &high : &low) = x;
    }
    return copysign(a < 1e-30 ? a * sqrt(acos(-1)) / 2 : high, y);
}

static double f_i0(double x) { /* the power series up to 40, then the asymptotic one */
    long double y = 1, term = 1, a = fabs(x), z = a * a / 4;
    for (int k = 1; k <= 120 && a <= 40; k++) y += term *= z / ((long double)k * k);
    if (a <= 40 || isnan(x)) return (double)(y + (a - a));
    for (int k = 1; k <= 40; k++) y += term *= (2 * k - 1) * (2 * k - 1) / (8 * k * a);
    return isinf(x) ? (double)a : (double)(y * expl(a) / sqrtl(2 * acosl(-1) * a));
}
static double d_i0(double x) {
    long double term = 0.5L * x, y = term, z = 0.25L * x * x;
    for (int k = 1; k <= 60; k++) y += term *= z / ((long double)k * (k + 1));
    return (double)y;
}
static double f_log_ndtr(double x) {
    long double root = sqrtl(2), a = x, w = 1 / (a * a);
    if (x > 0) return (double)log1pl(-erfcl(a / root) / 2);
    if (!(x < -100)) return (double)logl(erfcl(-a / root) / 2);
    return (double)(-a * a / 2 - logl(-a * sqrtl(2 * acosl(-1))) + log1pl(w * (3 * w - 1)));
}
static double d_log_ndtr(double x) {
    return exp(-x * x / 2) * sqrt(2 / acos(-1)) / erfc(-x / sqrt(2));
}

static double d_elu(double x) { return x > 0 ? 1 : 1.5 * exp(x); }
static double d_celu(double x) { return x > 0 ? 1 : exp(x / 1.5); }
static double d_leaky_relu(double x) { return x > 0 ? 1 : 0.125; }
static double d_threshold(double x) { return x > 0.5; }
static double d_shrink(double x) { return fabs(x) > 0.75; }
static double d_swish(double x) { return f_sigmoid(1.5 * x) + 1.5 * x * d_sigmoid(1.5 * x); }
static double d_digamma(double x) { /* trigamma for x > 0, as above */
    long double y = 0, z = x, q;
    for (; z < 20; z++) y += 1 / (z * z);
    q = 1 / (z * z);
    return (double)(y + 1 / z + q / 2 + q / z * (1 / 6.0L - q * (1 / 30.0L - q * (1 / 42.0L - q / 30))));
}
static double d_erfc(double x) { return -d_erf(x); }
static double d_erfinv(double y) { return 1 / d_erf(f_erfinv(y)); }

static const unary_ref unary_references[] = {
    {"neg", 'N', f_neg, wrap_neg, 0, 0, 0, 0, d_neg, 0},
    {"abs", 'N', fabs, i_abs, 0, 0, 0, 0, d_abs, 0},
    {"exp", 'F', exp, NULL, 2, 1, 0, 0, exp, 4},
    {"log", 'F', log, NULL, 2, 1, 0, 0, d_log, 4},
    {"log1p", 'F', log1p, NULL, 4, 1, 0, 0, d_log1p, 4},
    {"expm1", 'F', expm1, NULL, 4, 1, 0, 0, exp, 4},
    {"sqrt", 'F', sqrt, NULL, 0.5, 0.5, 0, 0, d_sqrt, 4},
    {"sin", 'F', sin, NULL, 4, 1, 0, 0, cos, 4},
    {"cos", 'F', cos, NULL, 4, 1, 0, 0, d_cos, 4},
    {"tanh", 'F', tanh, NULL, 4, 2, 0, 0, d_tanh, 8},
    {"erf", 'F', erf, NULL, 4, 2, 0, 0, d_erf, 8},
    {"floor", 'N', floor, i_same, 0, 0, 0, 0, NULL, 0},
    {"rint", 'N', f_rint, i_same, 0, 0, 0, 0, NULL, 0},
    {"bitwise_not", 'I', NULL, i_not, 0, 0, 0, 0, NULL, 0},
    {"ceil", 'N', ceil, i_same, 0, 0, 0, 0, NULL, 0},
    {"trunc", 'N', trunc, i_same, 0, 0, 0, 0, NULL, 0},
    {"frac", 'N', f_frac, i_zero, 0, 0, 0, 0, d_one, 0},
    {"square", 'N', f_square, i_square, 0.5, 0.5, 0, 0, d_square, 4},
    {"reciprocal", 'F', f_reciprocal, NULL, 0.5, 0.5, 0, 0, d_reciprocal, 4},
    {"rsqrt", 'F', f_rsqrt, NULL, 1.5, 1.5, 0, 0, d_rsqrt, 8},
    {"sign", 'N', f_sign, i_sign, 0, 0, 0, 0, NULL, 0},
    {"deg2rad", 'F', f_deg2rad, NULL, 1.5, 2.5, 0, 0, d_deg2rad, 4},
    {"rad2deg", 'F', f_rad2deg, NULL, 1.5, 2.5, 0, 0, d_rad2deg, 4},
    {"exp2", 'F', exp2, NULL, 4, 1.5, 0, 0, d_exp2, 8},
    {"log2", 'F', log2, NULL, 3, 3, 0, 0, d_log2, 8},
    {"log10", 'F', log10, NULL, 3, 3, 0, 0, d_log10, 8},
    {"tan", 'F', tan, NULL, 4, 3, 0, 0, d_tan, 8},
    {"asin", 'F', asin, NULL, 4, 4, 0, 0, d_asin, 8},
    {"acos", 'F', acos, NULL, 4, 4, 0, 0, d_acos, 8},
    {"atan", 'F', atan, NULL, 4, 2, 0, 0, d_atan, 4},
    {"sinh", 'F', sinh, NULL, 4, 4, 0, 0, cosh, 8},
    {"cosh", 'F', cosh, NULL, 4, 4, 0, 0, sinh, 8},
    {"asinh", 'F', asinh, NULL, 4, 4, 0, 0, d_asinh, 8},
    {"acosh", 'F', acosh, NULL, 4, 4, 0, 0, d_acosh, 16},
    {"atanh", 'F', atanh, NULL, 4, 4, 0, 0, d_atanh, 8},
    {"sinc", 'F', f_sinc, NULL, 4, 4, 0, 0, d_sinc, 64},
    {"logit", 'F', f_logit, NULL, 4, 4, 0, 0, d_logit, 16},
    {"relu", 'N', f_relu, i_relu, 0, 0, 0, 0, d_relu, 0},
    {"sigmoid", 'F', f_sigmoid, NULL, 5, 4, 0, 1, d_sigmoid, 8},
    {"silu", 'F', f_silu, NULL, 6, 5, 0, 1024, d_silu, 16},
    {"softplus", 'F', f_softplus, NULL, 6, 4, 0, 0, f_sigmoid, 8},
    {"gelu", 'F', f_gelu, NULL, 5, 5, 2, 0, d_gelu, 16},
    {"gelu_tanh", 'F', f_gelu_tanh, NULL, 6, 6, 4, 0, d_gelu_tanh, 32},
    {"relu6", 'N', f_relu6, i_relu6, 0, 0, 0, 0, d_relu6, 0},
    {"hardsigmoid", 'F', f_hardsigmoid, NULL, 1.5, 1.5, 0, 0, d_hardsigmoid, 2},
    {"hardswish", 'F', f_hardswish, NULL, 2, 2.5, 0, 0, d_hardswish, 4},
    {"mish", 'F', f_mish, NULL, 6, 6, 2, 128, d_mish, 16},
    {"selu", 'F', f_selu, NULL, 4, 3, 0, 0, d_selu, 8},
    {"softsign", 'F', f_softsign, NULL, 1.5, 1.5, 0, 0, d_softsign, 4},
    {"logsigmoid", 'F', f_logsigmoid, NULL, 4, 4, 0, 0, d_logsigmoid, 8},
    {"tanhshrink", 'F', f_tanhshrink, NULL, 1, 1, 4, 0, d_tanhshrink, 8},
    {"isnan", 'C', f_isnan, i_zero, 0, 0, 0, 0, NULL, 0},
    {"isfinite", 'C', f_isfinite, i_one, 0, 0, 0, 0, NULL, 0},
    {"isinf", 'C', f_isinf, i_zero, 0, 0, 0, 0, NULL, 0},
    {"isposinf", 'C', f_isposinf, i_zero, 0, 0, 0, 0, NULL, 0},
    {"isneginf", 'C', f_isneginf, i_zero, 0, 0, 0, 0, NULL, 0},
    {"signbit", 'C', f_signbit, i_signbit, 0, 0, 0, 0, NULL, 0},
    {"logical_not", 'B', f_logical_not, i_logical_not, 0, 0, 0, 0, NULL, 0},
    {"elu", 'T', f_elu, NULL, 3, 3, 0, 0, d_elu, 8},
    {"celu", 'T', f_celu, NULL, 4, 4, 0, 0, d_celu, 8},
    {"leaky_relu", 'T', f_leaky_relu, NULL, 0.5, 0.5, 0, 0, d_leaky_relu, 0},
    {"threshold", 'T', f_threshold, NULL, 0, 0, 0, 0, d_threshold, 0},
    {"hardshrink", 'T', f_hardshrink, NULL, 0, 0, 0, 0, d_shrink, 0},
    {"softshrink", 'T', f_softshrink, NULL, 0.5, 0.5, 0, 0, d_shrink, 0},
    {"swish", 'T', f_swish, NULL, 6, 6, 2, 1024, d_swish, 16},
    {"lgamma", 'T', f_lgamma, NULL, 1, 64, 80, 0, f_digamma, 64},
    {"digamma", 'T', f_digamma, NULL, 1, 8, 80, 0, d_digamma, 256},
    {"erfc", 'T', erfc, NULL, 1, 8, 0, 0, d_erfc, 8},
    {"erfinv", 'T', f_erfinv, NULL, 1, 16, 0, 0, d_erfinv, 64},
    {"i0", 'T', f_i0, NULL, 1, 16, 0, 0, d_i0, 8},
    {"log_ndtr", 'T', f_log_ndtr, NULL, 1, 2048, 0, 1, d_log_ndtr, 32}, /* x / sqrt 2 rounds */
};

/* Where a derivative is tested, if not on [-2, 2]. */
static const struct {
    const char *op;
    double low, high;
} domains[] = {
    {"log2", 0.1, 4},
    {"log10", 0.1, 4},
    {"tan", -1.2, 1.2},
    {"asin", -0.9, 0.9},
    {"acos", -0.9, 0.9},
    {"acosh", 1.1, 4},
    {"atanh", -0.9, 0.9},
    {"logit", 0.05, 0.95},
    {"lgamma", 0.25, 6},
    {"digamma", 0.25, 6},
    {"erfinv", -0.9, 0.9},
};

static void into_domain(const char *op, array *x) {
    for (size_t i = 0; i < sizeof domains / sizeof *domains; i++)
        for (int64_t k = 0; k < x->n && !strcmp(op, domains[i].op); k++) {
            double size = domains[i].high - domains[i].low;
            x->f[k] = rounded(domains[i].low + (x->f[k] + 2) / 4 * size, x->dtype);
        }
}

typedef struct binary_ref {
    const char *op;
    char cls;
    double (*f)(double, double);
    int64_t (*i)(int64_t, int64_t);
    double ulp32, ulp64;
    double (*da)(double, double), (*db)(double, double); /* NULL: zero */
} binary_ref;

static double f_add(double a, double b) { return a + b; }
static double f_sub(double a, double b) { return a - b; }
static double f_mul(double a, double b) { return a * b; }
static double f_div(double a, double b) { return a / b; }
static int64_t i_add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static int64_t i_sub(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }
static int64_t i_mul(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
static int64_t i_pow(int64_t a, int64_t b) {
    uint64_t r = 1, x = (uint64_t)a;
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    for (uint64_t e = (uint64_t)b; e; e /= 2, x *= x)
        if (e % 2) r *= x;
    return (int64_t)r;
}
static double f_remainder(double a, double b) {
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
static int64_t i_remainder(int64_t a, int64_t b) {
    if (b == 0 || b == -1) return 0;
    int64_t r = a % b;
    return r != 0 && (r ^ b) < 0 ? r + b : r;
}
static double f_floor_divide(double a, double b) {
    double r = fmod(a, b), q = rint((a - r) / b);
    return b == 0 ? a / b : r != 0 && (r < 0) != (b < 0) ? q - 1 : q;
}
static int64_t i_floor_divide(int64_t a, int64_t b) {
    if (b == -1) return wrap_neg(a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
static double f_trunc_divide(double a, double b) { return b == 0 ? a / b : rint((a - fmod(a, b)) / b); }
static int64_t i_trunc_divide(int64_t a, int64_t b) { return b == -1 ? wrap_neg(a) : a / b; }
static double f_fmax(double a, double b) { return isnan(a) ? b : isnan(b) || a > b ? a : b; }
static double f_fmin(double a, double b) { return isnan(a) ? b : isnan(b) || a < b ? a : b; }
static int64_t i_fmod(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
static int64_t i_shift_left(int64_t a, int64_t n) {
    for (int64_t k = 0; k < (n < 0 || n > 64 ? 64 : n); k++) a = (int64_t)((uint64_t)a * 2);
    return a;
}
static int64_t i_shift_right(int64_t a, int64_t n) {
    for (int64_t k = 0; k < (n < 0 || n > 64 ? 64 : n); k++) a = a / 2 - (a % 2 < 0);
    return a;
}
static double f_copysign(double a, double b) { return isnan(b) ? fabs(a) : copysign(a, b); }
static double f_heaviside(double a, double b) { return a == 0 ? b : a > 0; }
static int64_t i_heaviside(int64_t a, int64_t b) { return a == 0 ? b : a > 0; }
static double f_ldexp(double a, double b) { return a == 0 || isinf(a) ? a : (double)(a * exp2l(b)); }
static double f_xlogy(double a, double b) { return a == 0 && !isnan(b) ? 0 : a * log(b); }
static double f_logaddexp(double a, double b) {
    double hi = a > b ? a : b, lo = a > b ? b : a;
    return a == b ? a + log(2) : (double)(hi + log1pl(expl((long double)lo - hi)));
}
static double f_logaddexp2(double a, double b) {
    double hi = a > b ? a : b, lo = a > b ? b : a;
    return a == b ? a + 1 : (double)(hi + log2l(1 + exp2l((long double)lo - hi)));
}
static double f_prelu(double a, double b) { return a > 0 ? a : b * a; }
static double f_max(double a, double b) { return isnan(a) || isnan(b) ? NAN : a > b ? a : b; }
static double f_min(double a, double b) { return isnan(a) || isnan(b) ? NAN : a < b ? a : b; }
static int64_t i_max(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t i_min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t i_and(int64_t a, int64_t b) { return a & b; }
static int64_t i_or(int64_t a, int64_t b) { return a | b; }
static int64_t i_xor(int64_t a, int64_t b) { return a ^ b; }
#define COMPARISON(name, sign) \
    static double f_##name(double a, double b) { return a sign b; } \
    static int64_t i_##name(int64_t a, int64_t b) { return a sign b; }
COMPARISON(eq, ==)
COMPARISON(ne, !=)
COMPARISON(lt, <)
COMPARISON(le, <=)
COMPARISON(gt, >)
COMPARISON(ge, >=)
#undef COMPARISON

static double one(double a, double b) { return (void)a, (void)b, 1; }
static double minus_one(double a, double b) { return (void)a, (void)b, -1; }
static double second(double a, double b) { return (void)a, b; }
static double first(double a, double b) { return (void)b, a; }
static double div_da(double a, double b) { return (void)a, 1 / b; }
static double div_db(double a, double b) { return -a / (b * b); }
static double pow_da(double a, double b) { return b == 0 ? 0 : b * pow(a, b - 1); }
static double pow_db(double a, double b) { return a == 0 && b >= 0 ? 0 : pow(a, b) * log(a); }
static double remainder_db(double a, double b) { return -floor(a / b); }
static double atan2_da(double a, double b) { return b / (a * a + b * b); }
static double atan2_db(double a, double b) { return -a / (a * a + b * b); }
static double fmod_db(double a, double b) { return -trunc(a / b); }
static double fmax_da(double a, double b) { return a >= b; }
static double fmax_db(double a, double b) { return a < b; }
static double fmin_da(double a, double b) { return a <= b; }
static double fmin_db(double a, double b) { return a > b; }
static double copysign_da(double a, double b) {
    return a == 0 ? 0 : copysign(1, a) * copysign(1, b);
}
static double heaviside_db(double a, double b) { return (void)b, a == 0; }
static double ldexp_da(double a, double b) { return (void)a, exp2(b); }
static double ldexp_db(double a, double b) { return a * exp2(b) * log(2); }
static double xlogy_da(double a, double b) { return a == 0 && b <= 0 ? 0 : log(b); }
static double xlogy_db(double a, double b) { return a / b; }
static double logaddexp_da(double a, double b) { return f_sigmoid(a - b); }
static double logaddexp_db(double a, double b) { return f_sigmoid(b - a); }
static double logaddexp2_da(double a, double b) { return 1 / (1 + exp2(b - a)); }
static double logaddexp2_db(double a, double b) { return 1 / (1 + exp2(a - b)); }
static double prelu_da(double a, double b) { return a > 0 ? 1 : b; }
static double prelu_db(double a, double b) { return (void)b, a > 0 ? 0 : a; }
static double hypot_da(double a, double b) { return a == 0 ? 0 : a / hypot(a, b); }
static double hypot_db(double a, double b) { return hypot_da(b, a); }
static double max_da(double a, double b) { return a > b ? 1 : a == b ? 0.5 : 0; }
static double max_db(double a, double b) { return max_da(b, a); }

static const binary_ref binary_references[] = {
    {"add", 'A', f_add, i_add, 0.5, 0.5, one, one},
    {"sub", 'N', f_sub, i_sub, 0.5, 0.5, one, minus_one},
    {"mul", 'A', f_mul, i_mul, 0.5, 0.5, second, first},
    {"div", 'F', f_div, NULL, 0.5, 0.5, div_da, div_db},
    {"pow", 'N', pow, i_pow, 4, 1, pow_da, pow_db},
    {"remainder", 'N', f_remainder, i_remainder, 1, 1, one, remainder_db},
    {"atan2", 'F', atan2, NULL, 1, 1, atan2_da, atan2_db},
    {"maximum", 'A', f_max, i_max, 0, 0, max_da, max_db},
    {"minimum", 'A', f_min, i_min, 0, 0, max_db, max_da},
    {"eq", 'C', f_eq, i_eq, 0, 0, NULL, NULL},
    {"lt", 'C', f_lt, i_lt, 0, 0, NULL, NULL},
    {"le", 'C', f_le, i_le, 0, 0, NULL, NULL},
    {"bitwise_and", 'I', NULL, i_and, 0, 0, NULL, NULL},
    {"bitwise_or", 'I', NULL, i_or, 0, 0, NULL, NULL},
    {"bitwise_xor", 'I', NULL, i_xor, 0, 0, NULL, NULL},
    {"shift_left", 'I', NULL, i_shift_left, 0, 0, NULL, NULL},
    {"shift_right", 'I', NULL, i_shift_right, 0, 0, NULL, NULL},
    {"fmod", 'N', fmod, i_fmod, 0, 0, one, fmod_db},
    {"fmax", 'A', f_fmax, i_max, 0, 0, fmax_da, fmax_db},
    {"fmin", 'A', f_fmin, i_min, 0, 0, fmin_da, fmin_db},
    {"copysign", 'F', f_copysign, NULL, 0, 0, copysign_da, NULL},
    {"heaviside", 'N', f_heaviside, i_heaviside, 0, 0, NULL, heaviside_db},
    {"ldexp", 'F', f_ldexp, NULL, 6, 4, ldexp_da, ldexp_db},
    {"xlogy", 'F', f_xlogy, NULL, 2, 2, xlogy_da, xlogy_db},
    {"logaddexp", 'F', f_logaddexp, NULL, 2, 2, logaddexp_da, logaddexp_db},
    {"logaddexp2", 'F', f_logaddexp2, NULL, 2, 2, logaddexp2_da, logaddexp2_db},
    {"prelu", 'F', f_prelu, NULL, 0.5, 0.5, prelu_da, prelu_db},
    {"ne", 'C', f_ne, i_ne, 0, 0, NULL, NULL},
    {"gt", 'C', f_gt, i_gt, 0, 0, NULL, NULL},
    {"ge", 'C', f_ge, i_ge, 0, 0, NULL, NULL},
    {"logical_and", 'B', NULL, i_and, 0, 0, NULL, NULL},
    {"logical_or", 'B', NULL, i_or, 0, 0, NULL, NULL},
    {"logical_xor", 'B', NULL, i_xor, 0, 0, NULL, NULL},
    {"hypot", 'T', hypot, NULL, 3, 3, hypot_da, hypot_db},
    {"floor_divide", 'N', f_floor_divide, i_floor_divide, 2, 2, NULL, NULL},
    {"trunc_divide", 'N', f_trunc_divide, i_trunc_divide, 2, 2, NULL, NULL},
};

#define COMPOSED(op, ...) \
    static fl_tensor *t_##op(fl_tensor *x) { return fl_##op(x, __VA_ARGS__); } \
    static fl_var *v_##op(fl_var *x) { return fv_##op(x, __VA_ARGS__); }
COMPOSED(elu, 1.5)
COMPOSED(celu, 1.5)
COMPOSED(leaky_relu, 0.125)
COMPOSED(threshold, 0.5, 3)
COMPOSED(hardshrink, 0.75)
COMPOSED(softshrink, 0.75)
COMPOSED(swish, 1.5)
#undef COMPOSED

/* The public functions by name: the lines of the tables, then the compositions of one operand. */
typedef fl_tensor *(*unary_fn)(fl_tensor *);
typedef fl_tensor *(*binary_fn)(fl_tensor *, fl_tensor *);
typedef fl_var *(*unary_var)(fl_var *);
typedef fl_var *(*binary_var)(fl_var *, fl_var *);
static const struct {
    const char *op;
    unary_fn run;
    unary_var var;
} unary_fns[] = {
#define ENTRY(op, ...) {#op, fl_##op, fv_##op},
    FL_UNARY_OPS(ENTRY)
#define COMPOSED(op) {#op, t_##op, v_##op},
    COMPOSED(elu) COMPOSED(celu) COMPOSED(leaky_relu) COMPOSED(threshold) COMPOSED(hardshrink)
    COMPOSED(softshrink) COMPOSED(swish)
#undef COMPOSED
    ENTRY(lgamma, ) ENTRY(digamma, ) ENTRY(erfc, ) ENTRY(erfinv, ) ENTRY(i0, )
    ENTRY(log_ndtr, )
};
static const struct {
    const char *op;
    binary_fn run;
    binary_var var;
} binary_fns[] = {FL_BINARY_OPS(ENTRY) ENTRY(hypot, ) ENTRY(floor_divide, ) ENTRY(trunc_divide, )
#undef ENTRY
};
enum {
#define ONE(...) +1
    UNARY_OPS = FL_UNARY_OPS(ONE),
    BINARY_OPS = FL_BINARY_OPS(ONE),
#undef ONE
    UNARY_FNS = sizeof unary_fns / sizeof *unary_fns,
    BINARY_FNS = sizeof binary_fns / sizeof *binary_fns,
    UNARY_REFERENCES = sizeof unary_references / sizeof *unary_references,
    BINARY_REFERENCES = sizeof binary_references / sizeof *binary_references
};
/* The reference of each function above, found by name; op is NULL where there is none. */
static unary_ref unary_refs[UNARY_FNS];
static binary_ref binary_refs[BINARY_FNS];

/* Says which ops have no reference; their number. */
static int find_references(void) {
    int absent = 0;
    for (int i = 0; i < UNARY_FNS; i++) {
        for (int k = 0; k < UNARY_REFERENCES; k++)
            if (!strcmp(unary_references[k].op, unary_fns[i].op)) unary_refs[i] = unary_references[k];
        if (!unary_refs[i].op) absent++, printf("op %s has no reference\n", unary_fns[i].op);
    }
    for (int i = 0; i < BINARY_FNS; i++) {
        for (int k = 0; k < BINARY_REFERENCES; k++)
            if (!strcmp(binary_references[k].op, binary_fns[i].op)) binary_refs[i] = binary_references[k];
        if (!binary_refs[i].op) absent++, printf("op %s has no reference\n", binary_fns[i].op);
    }
    return absent;
}

/* >>classes: which dtypes an op takes, and what it gives */

static unsigned dtypes_of(char cls) {
    switch (cls) {
    case 'N': return NUMBERS;
    case 'I': return INTEGERS | B8;
    case 'B':
    case 'C':
    case 'T': return STORED;
    default: return COMPUTED; /* F casts integers and b8 to f32 */
    }
}

/* Of u64 what is the same modulo 2^64, the larger and the smaller one, and remainders. */
static unsigned dtypes_of_op(const char *op, char cls) {
    static const char *const exact[] = {
        "add",         "sub",        "mul",     "neg",     "bitwise_and", "bitwise_or", "bitwise_xor",
        "bitwise_not", "shift_left", "maximum", "minimum", "fmax",        "fmin",       "remainder",
        "fmod"};
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        if (!strcmp(op, exact[i])) return dtypes_of(cls) | U64;
    return dtypes_of(cls);
}

static fl_dtype computes_in(char cls, fl_dtype d) {
    if (cls == 'B') return FL_B8;
    return (cls == 'F' || cls == 'T') && !is_float(d) ? FL_F32 : d;
}

static fl_dtype gives(char cls, fl_dtype d) {
    return cls == 'C' ? FL_B8 : computes_in(cls, d);
}

static char class_letter(fl_op_class c) {
    return "?FNAICB"[c];
}

static bool takes(unsigned set, fl_dtype d) {
    return set >> d & 1;
}

/* >>values */

static void unary_value(const unary_ref *r, const array *x, array *y, int64_t k) {
    if (r->cls == 'I' && x->dtype == FL_B8) put_int(y, k, !x->i[k]);
    else if (is_float(x->dtype) && is_float(y->dtype))
        y->f[k] = r->f(x->f[k]); /* unrounded: see agrees */
    else if (is_float(x->dtype)) put_float(y, k, r->f(x->f[k]));
    else put_int(y, k, r->i(x->i[k]));
}

static bool unary_agrees(const unary_ref *r, fl_tensor *t, const array *given) {
    fl_dtype out = gives(r->cls, given->dtype);
    array x = cast_array(given, computes_in(r->cls, given->dtype)), y = new_array(x.shape, out);
    double *scale = take((size_t)x.n * sizeof *scale);
    for (int64_t k = 0; k < x.n; k++) {
        unary_value(r, &x, &y, k);
        scale[k] = fabs(x.f[k]);
    }
    tolerance tol = {out == FL_F64 ? r->ulp64 : r->ulp32, r->slack, r->tiny};
    bool signs = strncmp(r->op, "relu", 4) && strcmp(r->op, "sinc") && !strstr(r->op, "shrink") &&
                 strcmp(r->op, "lgamma");
    return agrees(t, &y, tol, scale, signs);
}

static void unary_group(int which) {
    const unary_ref *r = &unary_refs[which];
    const unsigned dtypes = dtypes_of_op(r->op, r->cls);
    char text[100];
    expect_row(r->op, dtypes, ONE_OPERAND, F32 | I64, STORED & ~dtypes);
    tell_tolerance(r->op, (tolerance){r->ulp32, r->slack, r->tiny}, (tolerance){r->ulp64, 0, 0});
    for (int k = 0; k < DTYPES; k++) {
        fl_dtype d = all_dtypes[k];
        if (!takes(dtypes, d)) {
            if (!case_begin(r->op, d, REFUSED, "[3]")) continue;
            array a = random_array(FL_SHAPE(3), d, TAME);
            case_end(was_refused(unary_fns[which].run(dense_tensor(&a))));
            continue;
        }
        for (int l = DENSE; l <= WEAK; l++)
            for (int s = 0; s < SHAPES; s++) {
                bool weak = l == WEAK, number = takes(F32 | I64, d);
                if (l == BROADCAST_RIGHT || (weak && (s || !number)) ||
                    !layout_fits((layout)l, shapes[s]))
                    continue;
                if (!case_begin(r->op, d, (layout)l, "%s",
                                fl_shape_text(shapes[s], text, sizeof text)))
                    continue;
                operand x = make_operand(shapes[s], d, (layout)l, WILD);
                case_end(unary_agrees(r, unary_fns[which].run(x.t), &x.a));
            }
    }
}

static bool is_extreme(const char *op) {
    return !strcmp(op, "maximum") || !strcmp(op, "minimum") || !strcmp(op, "fmax") ||
           !strcmp(op, "fmin");
}

/* b8 add and mul are or and and. */
static void binary_value(const binary_ref *r, const array *a, const array *b, array *y, int64_t k) {
    if (is_float(a->dtype) && is_float(y->dtype)) y->f[k] = r->f(a->f[k], b->f[k]);
    else if (is_float(a->dtype)) put_float(y, k, r->f(a->f[k], b->f[k]));
    else if (a->dtype == FL_U64 && (r->cls == 'C' || is_extreme(r->op))) /* in the order of i64 */
        put_int(y, k, r->i(a->i[k] ^ INT64_MIN, b->i[k] ^ INT64_MIN) ^ (r->cls == 'C' ? 0 : INT64_MIN));
    else if (a->dtype == FL_U64 && (!strcmp(r->op, "remainder") || !strcmp(r->op, "fmod")))
        put_int(y, k, (int64_t)((uint64_t)a->i[k] % (uint64_t)b->i[k]));
    else put_int(y, k, r->i(a->i[k], b->i[k]));
}

/* Of a sum that may cancel, in epsilons of |a| + |b|. */
static double slack_of(const binary_ref *r) {
    return r->f == f_logaddexp || r->f == f_logaddexp2 ? 1 : 0;
}

/* a and b in the dtype that the op computes in; broadcast here. */
static bool binary_agrees(const binary_ref *r, fl_tensor *t, const array *a, const array *b) {
    fl_shape s = broadcast_shape(a->shape, b->shape);
    array x = expand_array(a, s), z = expand_array(b, s), y = new_array(s, gives(r->cls, a->dtype));
    double *scale = take((size_t)x.n * sizeof *scale);
    for (int64_t k = 0; k < x.n; k++) {
        binary_value(r, &x, &z, &y, k);
        scale[k] = fabs(x.f[k]) + fabs(z.f[k]);
    }
    bool signs = !is_extreme(r->op) && !strstr(r->op, "_divide");
    tolerance tol = {y.dtype == FL_F64 ? r->ulp64 : r->ulp32, slack_of(r), 0};
    return agrees(t, &y, tol, scale, signs);
}

/* Small divisors and exponents for integers, never zero: the error has a test of its own. */
static void tame_right(const binary_ref *r, array *b) {
    bool divides = !strcmp(r->op, "remainder") || !strcmp(r->op, "fmod") ||
                   strstr(r->op, "_divide");
    if (is_float(b->dtype) || !divides) return;
    for (int64_t k = 0; k < b->n; k++)
        if (b->i[k] == 0) put_int(b, k, 3);
}

static fl_shape last_dims(fl_shape s, int n) {
    fl_shape r = {n, {0}};
    for (int d = 0; d < n; d++) r.dim[d] = s.dim[s.ndim - n + d];
    return r;
}

static operand binary_operand(const binary_ref *r, fl_shape s, fl_dtype d, layout l, bool right) {
    operand o;
    bool weak = l == (right ? WEAK_RIGHT : WEAK),
         small = l == (right ? BROADCAST_RIGHT : BROADCAST);
    if (small && random_below(2)) s = with_ones(s, (unsigned)random_below(1 << s.ndim));
    else if (small) s = last_dims(s, (int)random_below(s.ndim + 1));
    o.a = random_array(weak ? FL_SCALAR_SHAPE : s, d, WILD);
    if (right) tame_right(r, &o.a);
    if (weak) o.t = is_float(d) ? fl_num(o.a.f[0]) : fl_int(o.a.i[0]);
    else o.t = lay_out(&o.a, l > CHANNELS_LAST ? (layout)random_below(OFFSET + 1) : l);
    return o;
}

/* Layout l on the left operand, the right one, or both. */
static void binary_case(int which, fl_dtype d, layout l, fl_shape s, int side) {
    const binary_ref *r = &binary_refs[which];
    char text[100];
    if (!case_begin(r->op, d, l, "%s %s", fl_shape_text(s, text, sizeof text),
                    &"both\0left\0right"[side * 5]))
        return;
    bool both = l > CHANNELS_LAST || side == 0;
    operand a = binary_operand(r, s, d, both || side == 1 ? l : DENSE, false);
    operand b = binary_operand(r, s, d, both || side == 2 ? l : DENSE, true);
    if (!strcmp(r->op, "logical_and") || d == FL_B8 ||
        random_below(2) == 0) /* some equal elements */
        for (int64_t k = 0; k < b.a.n && b.a.n == a.a.n && b.t && l <= CHANNELS_LAST; k += 3)
            put_from(&b.a, k, &a.a, k);
    tame_right(r, &b.a);
    if (l <= CHANNELS_LAST) b.t = lay_out(&b.a, both || side == 2 ? l : DENSE);
    fl_dtype c = computes_in(r->cls, d);
    array x = cast_array(&a.a, c), y = cast_array(&b.a, c);
    case_end(binary_agrees(r, binary_fns[which].run(a.t, b.t), &x, &y));
}

static void binary_group(int which) {
    const binary_ref *r = &binary_refs[which];
    const unsigned dtypes = dtypes_of_op(r->op, r->cls);
    expect_row(r->op, dtypes, TWO_OPERANDS, NUMBERS & dtypes, STORED & ~dtypes);
    tell_tolerance(r->op, (tolerance){r->ulp32, slack_of(r), 0},
                   (tolerance){r->ulp64, 0, 0});
    for (int k = 0; k < DTYPES; k++) {
        fl_dtype d = all_dtypes[k];
        if (!takes(dtypes, d)) {
            if (!case_begin(r->op, d, REFUSED, "[3]")) continue;
            array a = random_array(FL_SHAPE(3), d, TAME);
            case_end(was_refused(binary_fns[which].run(dense_tensor(&a), dense_tensor(&a))));
            continue;
        }
        for (int l = DENSE; l <= WEAK_RIGHT; l++)
            for (int s = 0; s < SHAPES; s++) {
                bool weak = l == WEAK || l == WEAK_RIGHT;
                if (!layout_fits((layout)l, shapes[s]) || (weak && !takes(NUMBERS, d))) continue;
                int sides = s < 15 && l != DENSE && l <= CHANNELS_LAST ? 3 : 1;
                for (int side = 0; side < sides; side++)
                    binary_case(which, d, (layout)l, shapes[s], side);
            }
    }
}

/* >>gradients: the fused slot and the composition, against the derivative */

/* dx by fl_grad1 (if the backend has the slot) and by a recorded backward pass, both close to want.
   */
static bool unary_grad_agrees(int which, const array *x, const array *dy, layout l,
                              const array *want, tolerance tol, const double *scale) {
    fl_op op = fl_op_by_name(unary_refs[which].op);
    fl_tensor *xt = lay_out(x, l), *yt = unary_fns[which].run(xt), *dyt = lay_out(dy, l);
    bool line = op != FL_OP_NONE;
    fl_tensor *fused = yt && dyt && line ? fl_grad1(op, xt, yt, dyt, NULL) : NULL;
    if (fused && !agrees(fused, want, tol, scale, false)) return false;
    if (fl_error()) return false;
    fl_var *v = fv_param(xt), *out = unary_fns[which].var(v);
    if (!out) return say("no variable");
    fl_var *g = fl_grad(fv_sum(fv_mul(out, fv_const(dyt)), FL_ALL_AXES), v, true);
    if (!g && !fl_error()) g = fv_const(fl_full_like(xt, 0));
    return agrees(fv_value(g), want, tol, scale, false);
}

static void unary_grad_group(int which) {
    static const fl_shape grad_shapes[] = {{0, {0}},    {1, {1}},          {1, {33}},
                                           {2, {3, 5}}, {4, {2, 3, 4, 5}}, {2, {0, 3}}};
    const unary_ref *r = &unary_refs[which];
    char name[64], text[100];
    if (!strchr("FTNA", r->cls)) return;
    snprintf(name, sizeof name, "%s dx", r->op);
    expect_row(name, WIDE_FLOATS, STRIDED, 0, 0);
    tell_tolerance(name, (tolerance){0.5, r->d_slack, 0}, (tolerance){0.5, r->d_slack, 0});
    for (int d = FL_F32; d <= FL_F64; d++)
        for (int l = DENSE; l <= CHANNELS_LAST; l++)
            for (int s = 0; s < 6; s++) {
                if (!layout_fits((layout)l, grad_shapes[s])) continue;
                if (!case_begin(name, (fl_dtype)d, (layout)l, "%s",
                                fl_shape_text(grad_shapes[s], text, sizeof text)))
                    continue;
                array x = random_array(grad_shapes[s], (fl_dtype)d, TAME),
                      dy = random_array(x.shape, x.dtype, TAME);
                array want = new_array(x.shape, x.dtype);
                double *scale = take((size_t)x.n * sizeof *scale);
                into_domain(r->op, &x);
                bool positive = r->f == log || r->f == sqrt || r->f == log1p || r->f == f_rsqrt;
                for (int64_t k = 0; k < x.n; k++) {
                    if (positive) x.f[k] = rounded(fabs(x.f[k]) + 0.125, x.dtype);
                    if (r->f == f_reciprocal && x.f[k] == 0) x.f[k] = 1;
                    want.f[k] = r->d ? dy.f[k] * r->d(x.f[k]) : 0;
                    scale[k] = fabs(dy.f[k]) * (1 + fabs(x.f[k]) + (r->d ? fabs(r->d(x.f[k])) : 0));
                }
                tolerance tol = {0.5, r->d_slack, 0};
                case_end(unary_grad_agrees(which, &x, &dy, (layout)l, &want, tol, scale));
            }
}

static bool binary_grad_agrees(int which, const array *a, const array *b, const array *dy, layout l,
                               const array want[2], tolerance tol, double *const scale[2]) {
    fl_op op = fl_op_by_name(binary_refs[which].op);
    fl_tensor *at = lay_out(a, l), *bt = lay_out(b, l), *yt = binary_fns[which].run(at, bt),
              *dyt = lay_out(dy, l);
    for (int ask = 1; ask <= 3 && dyt; ask++) {
        fl_tensor *d[2] = {NULL, NULL};
        if (op == FL_OP_NONE || !fl_grad2(op, ask, at, bt, yt, dyt, &d[0], &d[1])) break;
        for (int i = 0; i < 2; i++)
            if (ask >> i & 1 ? !agrees(d[i], &want[i], tol, scale[i], false) : d[i] != NULL)
                return say("fused d%d", i);
    }
    if (fl_error()) return false;
    fl_var *v[2] = {fv_param(at), fv_param(bt)}, *out = binary_fns[which].var(v[0], v[1]);
    if (!out) return say("no variable");
    fl_var *root = fv_sum(fv_mul(out, fv_const(dyt)), FL_ALL_AXES);
    for (int i = 0; i < 2; i++) {
        fl_var *g = fl_grad(root, v[i], true);
        if (!g && !fl_error()) g = fv_const(fl_full_like(at, 0));
        if (!agrees(fv_value(g), &want[i], tol, scale[i], false)) return say("composed d%d", i);
    }
    return true;
}

static void binary_grad_group(int which) {
    static const fl_shape grad_shapes[] = {{0, {0}}, {1, {33}}, {2, {3, 5}}, {4, {2, 3, 4, 5}}};
    static const double pairs[][2] = {{0, 0}, {0, 1},  {0, 2},  {0, -1}, {2, 0},
                                      {2, 2}, {-2, 3}, {-2, 2}, {1, -1}, {3, 0.5}};
    const binary_ref *r = &binary_refs[which];
    char name[64], text[100];
    if (!strchr("FTNA", r->cls)) return;
    snprintf(name, sizeof name, "%s da db", r->op);
    expect_row(name, WIDE_FLOATS, STRIDED, 0, 0);
    tell_tolerance(name, (tolerance){0.5, 16, 0}, (tolerance){0.5, 16, 0});
    bool power = !strcmp(r->op, "pow"),
         divides = !strcmp(r->op, "div") || !strcmp(r->op, "remainder") ||
                   !strcmp(r->op, "fmod") || !strcmp(r->op, "atan2") || !strcmp(r->op, "copysign"),
         logarithm = !strcmp(r->op, "xlogy");
    for (int d = FL_F32; d <= FL_F64; d++)
        for (int l = DENSE; l <= CHANNELS_LAST; l++)
            for (int s = 0; s < 4; s++) {
                if (!layout_fits((layout)l, grad_shapes[s])) continue;
                if (!case_begin(name, (fl_dtype)d, (layout)l, "%s",
                                fl_shape_text(grad_shapes[s], text, sizeof text)))
                    continue;
                array a = random_array(grad_shapes[s], (fl_dtype)d, TAME),
                      b = random_array(a.shape, a.dtype, TAME);
                array dy = random_array(a.shape, a.dtype, TAME);
                array want[2] = {new_array(a.shape, a.dtype), new_array(a.shape, a.dtype)};
                double *scale[2] = {take((size_t)a.n * 8 + 8), take((size_t)a.n * 8 + 8)};
                for (int64_t k = 0; k < a.n; k++) {
                    const double *p = pairs[random_below(10)];
                    bool special = k % 3 == 0 && (power || p[1] != 0 || !divides);
                    if (special) a.f[k] = p[0], b.f[k] = p[1];
                    else if (power) a.f[k] = rounded(fabs(a.f[k]) + 0.125, a.dtype);
                    if (divides && fabs(b.f[k]) < 0.25) b.f[k] = 0.75;
                    if (logarithm) b.f[k] = rounded(fabs(b.f[k]) + 0.125, b.dtype);
                    if (power && special) dy.f[k] = 1;
                    want[0].f[k] = r->da ? dy.f[k] * r->da(a.f[k], b.f[k]) : 0;
                    want[1].f[k] = r->db ? dy.f[k] * r->db(a.f[k], b.f[k]) : 0;
                    double size = (1 + fabs(a.f[k])) * (1 + fabs(b.f[k]));
                    for (int i = 0; i < 2; i++)
                        scale[i][k] = (fabs(dy.f[k]) + fabs(want[i].f[k])) * size;
                }
                case_end(binary_grad_agrees(which, &a, &b, &dy, (layout)l, want,
                                            (tolerance){0.5, 16, 0}, scale));
            }
}

/* >>where, clip */

/* By the op, or by a program of it. */
static void where_case(fl_dtype d, layout l, fl_shape s, bool program) {
    static const char *const function = "(c, a, b) { if (c) return a; return b; }";
    char text[100];
    if (!case_begin(program ? "formula" : "where", d, l, "%s", fl_shape_text(s, text, sizeof text))) return;
    fl_shape small = with_ones(s, (unsigned)random_below(1 << s.ndim));
    bool spread = l == BROADCAST || l == BROADCAST_RIGHT;
    array c = random_array(spread && l == BROADCAST ? small : s, FL_B8, TAME);
    array a = random_array(l == WEAK ? FL_SCALAR_SHAPE : l == BROADCAST ? small : s, d, WILD);
    array b = random_array(l == WEAK_RIGHT        ? FL_SCALAR_SHAPE
                           : l == BROADCAST_RIGHT ? small
                                                  : s,
                           d, WILD);
    fl_tensor *at = l != WEAK ? lay_out(&a, l) : is_float(d) ? fl_num(a.f[0]) : fl_int(a.i[0]);
    fl_tensor *bt = l != WEAK_RIGHT ? lay_out(&b, l)
                    : is_float(d)   ? fl_num(b.f[0])
                                    : fl_int(b.i[0]);
    array full = new_array(s, d), x = expand_array(&a, s), z = expand_array(&b, s),
          cond = expand_array(&c, s);
    for (int64_t k = 0; k < full.n; k++) put_from(&full, k, cond.i[k] ? &x : &z, k);
    fl_tensor *in[] = {lay_out(&c, l), at, bt};
    case_end(equals(program ? fl_apply(function, in, 3) : fl_where(in[0], at, bt), &full));
}

static void where_group(void) {
    expect_row("where", STORED, TWO_OPERANDS, NUMBERS, 0);
    expect_row("formula", NUMBERS, TWO_OPERANDS, NUMBERS, 0);
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; l <= WEAK_RIGHT; l++)
            for (int s = 0; s < SHAPES; s++) {
                fl_dtype d = all_dtypes[k];
                bool weak = l == WEAK || l == WEAK_RIGHT;
                if (!layout_fits((layout)l, shapes[s]) || (weak && !takes(NUMBERS, d))) continue;
                where_case(d, (layout)l, shapes[s], false);
                if (takes(NUMBERS, d)) where_case(d, (layout)l, shapes[s], true);
            }
    if (case_begin("where", FL_F32, REFUSED, "f32 condition")) {
        array a = random_array(FL_SHAPE(3), FL_F32, TAME);
        fl_tensor *t = dense_tensor(&a);
        case_end(was_refused(fl_where(t, t, t)));
    }
}

static void clip_case(fl_dtype d, layout l, fl_shape s, double low, double high) {
    char text[100];
    if (!case_begin("clip", d, l, "%s to %g, %g", fl_shape_text(s, text, sizeof text), low, high))
        return;
    operand x = make_operand(s, d, l, WILD);
    array from = cast_array(&x.a, is_float(d) ? d : FL_F32), y = new_array(s, from.dtype);
    for (int64_t k = 0; k < y.n; k++) {
        double v = from.f[k] < low ? low : from.f[k];
        put_float(&y, k, v > high ? high : v);
    }
    case_end(agrees(fl_clamp(x.t, fl_num(low), fl_num(high)), &y, EXACT, NULL, false));
}

static void clip_group(void) {
    static const double bounds[][2] = {{-1, 1}, {0, 2.5}, {-INFINITY, 0.5}, {1, -1}};
    expect_row("clip", STORED, UNWEAK, 0, 0);
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; l <= BROADCAST; l++)
            for (int s = 0; s < SHAPES; s++)
                if (layout_fits((layout)l, shapes[s]))
                    clip_case(all_dtypes[k], (layout)l, shapes[s], bounds[s % 4][0],
                              bounds[s % 4][1]);
}

/* >>gcd, lcm, nextafter, maxout */

/* The next number of d after a on the way to b; those of the other dtypes are exact in f64. */
static double next_of(double a, double b, fl_dtype d) {
    if (d == FL_F64 || isnan(a) || isnan(b) || a == b) return nextafter(a, b);
    double size = fabs(a), largest = format_of(d).largest;
    if (a == 0) return copysign(ldexp(1, format_of(d).lowest), b);
    if (isinf(a)) return copysign(largest, a);
    bool away = (b > a) == (a > 0);
    size = away ? size + unit(size, d) : size - unit(nextafter(size, 0), d);
    return copysign(size > largest ? INFINITY : size, a);
}

static uint64_t magnitude(int64_t i) { return i < 0 ? 0 - (uint64_t)i : (uint64_t)i; }
static uint64_t divisor_of(uint64_t a, uint64_t b) { return b ? divisor_of(b, a % b) : a; }

static void integer_pair(array *want, int64_t k, int64_t a, int64_t b, bool lcm) {
    uint64_t u = magnitude(a), v = magnitude(b), g = divisor_of(u, v);
    put_int(want, k, (int64_t)(!lcm ? g : g ? u / g * v : 0));
    if (want->i[k] < 0) put_int(want, k, i_sub(0, want->i[k]));
}

static void pair_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    char text[100];
    if (!case_begin(name, d, l, "%s", fl_shape_text(s, text, sizeof text))) return;
    bool real = is_float(d), lcm = !strcmp(name, "lcm");
    operand a = make_operand(s, d, l, random_below(2) ? WILD : TAME);
    operand b = make_operand(s, d, l, random_below(2) ? WILD : TAME);
    array want = new_array(s, d);
    for (int64_t k = 0; k < want.n; k++)
        if (real) want.f[k] = next_of(a.a.f[k], b.a.f[k], d);
        else integer_pair(&want, k, a.a.i[k], b.a.i[k], lcm);
    fl_tensor *y = real ? fl_nextafter(a.t, b.t) : lcm ? fl_lcm(a.t, b.t) : fl_gcd(a.t, b.t);
    case_end(equals(y, &want));
}

static void maxout_case(fl_dtype d, layout l, fl_shape s, int axis) {
    char text[100];
    if (!case_begin("maxout", d, l, "%s axis %d", fl_shape_text(s, text, sizeof text), axis))
        return;
    operand x = make_operand(s, d, l, WILD);
    int64_t n = s.dim[axis], pieces = n % 3 ? n % 2 ? n : 2 : 3, c[FL_MAX_DIMS] = {0};
    fl_shape to = s;
    to.dim[axis] /= pieces;
    array want = new_array(to, d);
    for (int64_t k = 0; k < x.a.n; k++) {
        coords_of(s, k, c);
        bool first = c[axis] % pieces == 0;
        c[axis] /= pieces;
        int64_t at = index_of(to, c);
        bool larger = is_float(d) ? isnan(x.a.f[k]) || x.a.f[k] > want.f[at]
                                  : x.a.i[k] > want.i[at];
        if (first || larger) put_from(&want, at, &x.a, k);
    }
    case_end(agrees(fl_maxout(x.t, pieces, axis - s.ndim), &want, EXACT, NULL, false));
}

static void pairs_group(void) {
    expect_row("gcd", INTEGERS, UNWEAK, 0, STORED & ~INTEGERS);
    expect_row("lcm", INTEGERS, UNWEAK, 0, STORED & ~INTEGERS);
    expect_row("nextafter", FLOATS, UNWEAK, 0, STORED & ~FLOATS);
    expect_row("maxout", NUMBERS, UNWEAK, 0, 0);
    for (int k = 0; k < DTYPES; k++) {
        fl_dtype d = all_dtypes[k];
        for (int i = 0; i < 3; i++) {
            static const char *const names[] = {"gcd", "lcm", "nextafter"};
            if (takes(i < 2 ? INTEGERS : FLOATS, d) || !case_begin(names[i], d, REFUSED, "[3]"))
                continue;
            fl_tensor *t = fl_ones(FL_SHAPE(3), d);
            case_end(was_refused(i == 0 ? fl_gcd(t, t) : i == 1 ? fl_lcm(t, t)
                                                                : fl_nextafter(t, t)));
        }
        for (int l = DENSE; l <= BROADCAST; l++)
            for (int s = 0; s < SHAPES && takes(NUMBERS, d); s++) {
                if (!layout_fits((layout)l, shapes[s])) continue;
                pair_case(is_float(d) ? "nextafter" : "gcd", d, (layout)l, shapes[s]);
                if (!is_float(d)) pair_case("lcm", d, (layout)l, shapes[s]);
                for (int axis = 0; axis < shapes[s].ndim && shapes[s].ndim < FL_MAX_DIMS; axis++)
                    if (shapes[s].dim[axis]) maxout_case(d, (layout)l, shapes[s], axis);
            }
    }
}

/* >>other compositions, by their values */

static bool gives_values(fl_tensor *t, int n, const double *want) {
    array got;
    bool ok = t && fl_numel(t) == n && read_tensor(t, &got);
    for (int k = 0; ok && k < n; k++)
        ok = is_float(t->dtype) ? close_enough(got.f[k], want[k], t->dtype, (tolerance){2, 0, 0}, 0)
                                : got.i[k] == (int64_t)want[k];
    return ok;
}

static void composition_group(void) {
    fl_scope s = fl_scope_begin();
    pool_at = 0;
    const double v[] = {1.25, -0.35, 15, NAN, INFINITY, -INFINITY};
    fl_tensor *x = fl_from_host(v, FL_SHAPE(6), FL_F64), *i = fl_arange(-2, 4, 1, FL_I64);
    const double half[] = {0.5, -1, 2, 0.25, 1, 4};
    fl_tensor *h = fl_from_host(half, FL_SHAPE(6), FL_F64);
    check(gives_values(fl_round(x, 1), 6, (double[]){1.2, -0.4, 15, NAN, INFINITY, -INFINITY}),
          "round to tenths, halves to even");
    check(gives_values(fl_round(x, -1), 6, (double[]){0, 0, 20, NAN, INFINITY, -INFINITY}),
          "round to tens");
    check(gives_values(fl_round(i, 0), 6, (double[]){-2, -1, 0, 1, 2, 3}), "integers are round");
    check(gives_values(fl_nan_to_num(x, 7, 8, 9), 6, (double[]){1.25, -0.35, 15, 7, 8, 9}),
          "nan_to_num");
    check(gives_values(fl_clamp(h, fl_num(0.5), i), 6, (double[]){-2, -1, 0, 0.5, 1, 3}),
          "clamp between a number and a tensor");
    check(gives_values(fl_clamp(h, NULL, fl_num(1)), 6, (double[]){0.5, -1, 1, 0.25, 1, 1}),
          "clamp from above");
    check(gives_values(fl_lerp(fl_num(2), h, fl_full(FL_SCALAR_SHAPE, 0.25, FL_F64)), 6,
                       (double[]){1.625, 1.25, 2, 1.5625, 1.75, 2.5}), "lerp");
    check(gives_values(fl_lerp(h, fl_num(0.7), fl_num(1)), 6,
                       (double[]){0.7, 0.7, 0.7, 0.7, 0.7, 0.7}), "lerp reaches its end");
    check(gives_values(fl_addcmul(i, i, i, 1), 6, (double[]){2, 0, 0, 2, 6, 12}),
          "addcmul of integers");
    check(gives_values(fl_addcmul(h, h, h, 2), 6, (double[]){1, 1, 10, 0.375, 3, 36}), "addcmul");
    check(gives_values(fl_addcdiv(h, fl_num(1), h, 0.5), 6,
                       (double[]){1.5, -1.5, 2.25, 2.25, 1.5, 4.125}), "addcdiv");
    check(gives_values(fl_isclose(x, x, 0, 0, false), 6, (double[]){1, 1, 1, 0, 1, 1}),
          "isclose: NaN is close to nothing");
    check(gives_values(fl_isclose(x, x, 0, 0, true), 6, (double[]){1, 1, 1, 1, 1, 1}),
          "isclose with equal_nan");
    check(gives_values(fl_isclose(h, fl_num(0.75), 0.1, 0.2, false), 6,
                       (double[]){1, 0, 0, 0, 1, 0}), "isclose within 0.275");
    check(gives_values(fl_glu(h, 0), 3, (double[]){0.5 / (1 + exp(-0.25)), -1 / (1 + exp(-1.0)),
                                                   2 / (1 + exp(-4.0))}), "glu");
    check(gives_values(fl_shift_left(i, fl_int(62)), 6,
                       (double[]){-0x1p63, -0x1p62, 0, 0x1p62, -0x1p63, -0x1p62}),
          "shifts wrap");
    fl_scope_end(&s);
}

/* >>promotion: the whole table, and what 0-d tensors and numbers do to it */

/* Letters of all_dtypes in its order; rows are the left operand, columns the right one. PyTorch's
   lattice, and where it has none (u16 u32 u64 beside others) the narrowest that holds both. */
static const char dtype_letters[] = "bucsilvwxhgfd";
static const char *const promoted[DTYPES] = {
    "bucsilvwxhgfd", "uussilvwxhgfd", "cscsilillhgfd", "ssssilillhgfd", "iiiiilillhgfd",
    "lllllllllhgfd", "vviiilvwxhgfd", "wwllllwwxhgfd", "xxllllxxxhgfd", "hhhhhhhhhhffd",
    "gggggggggfgfd", "ffffffffffffd", "ddddddddddddd"};
/* The right operand has no dims, the left one has: it counts only if its category is higher. */
static const char *const promoted_0d[DTYPES] = {
    "bucsilvwxhgfd", "uuuuuuuuuhgfd", "ccccccccchgfd", "ssssssssshgfd", "iiiiiiiiihgfd",
    "lllllllllhgfd", "vvvvvvvvvhgfd", "wwwwwwwwwhgfd", "xxxxxxxxxhgfd", "hhhhhhhhhhhhh",
    "ggggggggggggg", "fffffffffffff", "ddddddddddddd"};

static fl_dtype dtype_of_letter(char c) {
    const char *p = strchr(dtype_letters, c);
    return c != '-' && p ? all_dtypes[p - dtype_letters] : FL_DTYPE_NONE;
}

/* What add, div and lt give for operands that promote to d; NONE: an error. */
static fl_dtype expected_of(int op, fl_dtype d) {
    if (op == 2) return FL_B8;
    if (op == 1 && d == FL_U64) return FL_DTYPE_NONE;
    return op == 0 || is_float(d) ? d : FL_F32;
}

static void promotion_check(int op, fl_tensor *a, fl_tensor *b, fl_dtype joint, const char *what) {
    static const binary_fn fns[] = {fl_add, fl_div, fl_lt};
    char text[160];
    fl_tensor *t = fns[op](a, b);
    fl_dtype want = expected_of(op, joint);
    snprintf(text, sizeof text, "%s(%s, %s) %s gives %s, not %s", &"add\0div\0lt\0"[op * 4],
             fl_dtype_name(a->dtype), fl_dtype_name(b->dtype), what,
             t ? fl_dtype_name(t->dtype) : "an error", want ? fl_dtype_name(want) : "an error");
    check(want ? t && t->dtype == want : fails(t), text);
}

static void promotion_group(void) {
    fl_scope s = fl_scope_begin();
    for (int op = 0; op < 3; op++)
        for (int i = 0; i < DTYPES; i++)
            for (int j = 0; j < DTYPES; j++) {
                fl_dtype d = all_dtypes[i], e = all_dtypes[j];
                fl_tensor *a = fl_ones(FL_SHAPE(2), d), *b = fl_ones(FL_SHAPE(2), e);
                fl_tensor *a0 = fl_ones(FL_SCALAR_SHAPE, d), *b0 = fl_ones(FL_SCALAR_SHAPE, e);
                promotion_check(op, a, b, dtype_of_letter(promoted[i][j]), "");
                promotion_check(op, a0, b0, dtype_of_letter(promoted[i][j]), "both 0-d");
                promotion_check(op, a, b0, dtype_of_letter(promoted_0d[i][j]), "right 0-d");
                promotion_check(op, b0, a, dtype_of_letter(promoted_0d[i][j]), "left 0-d");
            }
    for (int op = 0; op < 3; op++)
        for (int i = 0; i < DTYPES; i++) {
            fl_dtype d = all_dtypes[i], with_num = is_float(d) ? d : FL_F32,
                     with_int = d == FL_B8 ? FL_I64 : d;
            for (int dims = 0; dims < 2; dims++) {
                fl_tensor *a = fl_ones(dims ? FL_SHAPE(2) : FL_SCALAR_SHAPE, d);
                promotion_check(op, a, fl_num(2), with_num, "right a number");
                promotion_check(op, fl_num(2), a, with_num, "left a number");
                promotion_check(op, a, fl_int(2), with_int, "right an integer");
                promotion_check(op, fl_int(2), a, with_int, "left an integer");
            }
        }
    check(fl_item(fl_add(fl_num(1.5), fl_int(2))) == 3.5, "a number and an integer add up");
    check(fl_item(fl_div(fl_int(7), fl_int(2))) == 3.5, "two integers divide truly");
    fl_tensor *i = fl_full(FL_SHAPE(2), 7, FL_I64);
    check(fails(fl_remainder(i, fl_int(0))), "integer x % 0 is an error");
    check(fails(fl_remainder(i, fl_from_host((int64_t[]){2, 0}, FL_SHAPE(2), FL_I64))),
          "integer x % [2, 0] is an error");
    check(fails(fl_add(fl_ones(FL_SHAPE(2), FL_F32), fl_ones(FL_SHAPE(3), FL_F32))),
          "[2] + [3] is an error");
    fl_scope_end(&s);
}
/* MIT licence: see LICENSE. */
