/* test_cpu.c - the slots of the CPU backend against hand-written loops in double, over layouts,
   dtypes, threads and ISA levels */
#include "../fl_backend.h"
#include "../fl_tensor.h"
#include "../kernels/cpu/levels.h"
#include "test.h"
#include "steps.h"

/* >>harness: records run on the slot itself; elements are read through shape and strides */

static bool run(fl_call c) {
    return fl_backend_cpu()->op[c.op](fl_backend_cpu(), &c);
}

static fl_tensor *out_of(fl_shape shape, fl_dtype d) {
    return fl_out_on(fl_backend_index("cpu"), shape, d);
}

static fl_tensor *run_args(fl_op op, fl_shape shape, fl_dtype d, const void *args, int n,
                           fl_tensor *const in[]) {
    fl_tensor *y = out_of(shape, d);
    fl_call c = {.op = op, .n_out = 1, .n_in = n, .out = {y}, .args = args};
    for (int i = 0; i < n; i++) c.in[i] = in[i];
    return run(c) ? y : NULL;
}

static const char *place(const fl_tensor *t, int64_t flat) {
    int64_t at = 0;
    for (int i = t->ndim - 1; i >= 0; i--) {
        at += flat % t->shape[i] * t->stride[i];
        flat /= t->shape[i];
    }
    return (const char *)fl_data(t) + at * (int64_t)fl_dtype_size(t->dtype);
}

/* Conformance reads all dtypes by hand; here fl_number_load will do. */
static int64_t get_int(const fl_tensor *t, int64_t flat) {
    return t->weak ? t->i64 : fl_number_load(t->dtype, place(t, flat)).i;
}

static double get(const fl_tensor *t, int64_t flat) {
    return t->weak ? t->f64 : fl_number_load(t->dtype, place(t, flat)).f;
}

static uint64_t test_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static const double specials[] = {NAN,  INFINITY, -INFINITY, -0.0, 0.0,    1e-40, -1e-310, 1.0,
                                  -1.0, 0.5,      -0.5,      2.5,  -200.0, 1e30,  3.0,     -1e-3};
static const int64_t int_specials[] = {INT64_MIN, INT64_MAX, -1, 0, 1, 2, -7, 3, 1000003, -12};

/* Random values; every third a special one if `wild`. */
static fl_tensor *fresh(fl_shape shape, fl_dtype d, uint64_t seed, bool wild) {
    int64_t n = fl_shape_numel(shape);
    char *bytes = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++) {
        uint64_t r = test_random(&seed);
        bool special = wild && r % 3 == 0;
        double x = special ? specials[test_random(&seed) % 16] : (double)(r % 80001) / 10000 - 4;
        int64_t k = special ? int_specials[test_random(&seed) % 10] : (int64_t)(r % 41) - 20;
        if (d == FL_B8) k = r & 1;
        fl_number_store(d, bytes + (size_t)i * fl_dtype_size(d),
                        (fl_number){fl_dtype_is_float(d), fl_dtype_is_float(d) ? x : (double)k, k});
    }
    fl_tensor *t = fl_from_host(bytes, shape, d);
    free(bytes);
    return t;
}

enum {
    CONTIGUOUS,
    TRANSPOSED,
    REPEATED,
    CONSTANT,
    NEGATIVE,
    STRIDED,
    SCALAR,
    EMPTY,
    SINGLE,
    EIGHT,
    LONG,
    LONG_T,
    LAYOUTS
};
static const char *const layout_name[] = {
    "contiguous", "transposed", "repeated", "constant", "negative", "strided",
    "0-d",        "empty",      "single",   "8-d",      "long",     "long transposed"};

static fl_shape layout_shape(int layout) {
    switch (layout) {
    case SCALAR: return FL_SCALAR_SHAPE;
    case EMPTY: return FL_SHAPE(3, 0, 2);
    case SINGLE: return FL_SHAPE(1, 1);
    case EIGHT: return FL_SHAPE(2, 1, 3, 2, 1, 2, 2, 3);
    case LONG: return FL_SHAPE(40001);
    case LONG_T: return FL_SHAPE(200, 133);
    default: return FL_SHAPE(6, 5, 7);
    }
}

/* A tensor of the layout's shape whose elements lie as its name says. */
static fl_tensor *laid_out(int layout, fl_dtype d, uint64_t seed, bool wild) {
    fl_shape s = layout_shape(layout);
    switch (layout) {
    case TRANSPOSED:
        return fl_permute(fresh(FL_SHAPE(7, 6, 5), d, seed, wild), 3, (int[]){1, 2, 0});
    case REPEATED: return fl_expand(fresh(FL_SHAPE(5, 1), d, seed, wild), s);
    case CONSTANT: return fl_expand(fresh(FL_SHAPE(1), d, seed, wild), s);
    case NEGATIVE:
        return fl_slice(fl_slice(fresh(s, d, seed, wild), 2, -1, FL_SLICE_END, -1), 0, -1,
                        FL_SLICE_END, -1);
    case STRIDED: return fl_slice(fresh(FL_SHAPE(6, 5, 15), d, seed, wild), 2, 1, 15, 2);
    case EIGHT: return fl_transpose(fresh(FL_SHAPE(2, 1, 3, 3, 1, 2, 2, 2), d, seed, wild), 3, 7);
    case LONG_T: return fl_transpose(fresh(FL_SHAPE(133, 200), d, seed, wild), 0, 1);
    default: return fresh(s, d, seed, wild);
    }
}

static bool near(double got, double want, fl_dtype d) {
    if (d == FL_F32) want = (double)(float)want;
    if (isnan(want)) return isnan(got);
    if (got == want) return got != 0 || !fl_dtype_is_float(d) || signbit(got) == signbit(want);
    double rel = d == FL_F64 ? 1e-12 : d == FL_F32 ? 1e-5 : 0;
    return fabs(got - want) <= rel * (fabs(want) + (d == FL_F64 ? 1e-3 : 0.1));
}

/* A wrong element is printed with what led to it. */
static void check_element(double got, double want, fl_dtype d, const char *op, const char *where,
                          int64_t i) {
    if (near(got, want, d)) return;
    CHECK(!"element differs");
    if (test__failures < 20)
        printf("  %s %s %s element %lld: got %.9g, want %.9g\n", op, fl_dtype_name(d), where,
               (long long)i, got, want);
}

/* >>references */

static double ref_unary(fl_op op, double x) {
    switch (op) {
    case FL_OP_neg: return -x;
    case FL_OP_abs: return fabs(x);
    case FL_OP_exp: return exp(x);
    case FL_OP_log: return log(x);
    case FL_OP_log1p: return log1p(x);
    case FL_OP_expm1: return expm1(x);
    case FL_OP_sqrt: return sqrt(x);
    case FL_OP_sin: return sin(x);
    case FL_OP_cos: return cos(x);
    case FL_OP_tanh: return tanh(x);
    case FL_OP_erf: return erf(x);
    case FL_OP_floor: return floor(x);
    case FL_OP_rint: return nearbyint(x);
    case FL_OP_square: return x * x;
    case FL_OP_reciprocal: return 1 / x;
    case FL_OP_rsqrt: return 1 / sqrt(x);
    case FL_OP_sign: return (x > 0) - (x < 0);
    case FL_OP_relu: return isnan(x) || x > 0 ? x : 0;
    case FL_OP_sigmoid: return x >= 0 ? 1 / (1 + exp(-x)) : 1 - 1 / (1 + exp(x));
    case FL_OP_silu: return x / (1 + exp(-x));
    case FL_OP_softplus: return isnan(x) ? x : x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
    case FL_OP_gelu: return x * 0.5 * (1 + erf(x * sqrt(0.5)));
    case FL_OP_ceil: return ceil(x);
    case FL_OP_trunc: return trunc(x);
    case FL_OP_gelu_tanh:
        return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    case FL_OP_relu6: return x > 6 ? 6 : isnan(x) || x > 0 ? x : 0;
    case FL_OP_hardswish: return x <= -3 ? x * 0 : x >= 3 ? x : x * (x + 3) / 6;
    case FL_OP_isnan: return isnan(x);
    default: return x == 0; /* logical_not */
    }
}

static int64_t ref_unary_int(fl_op op, int64_t x, fl_dtype d) {
    switch (op) {
    case FL_OP_neg: return (int64_t)(0 - (uint64_t)x);
    case FL_OP_abs: return x < 0 ? (int64_t)(0 - (uint64_t)x) : x;
    case FL_OP_bitwise_not: return d == FL_B8 ? !x : -1 - x;
    case FL_OP_square: return (int64_t)((uint64_t)x * (uint64_t)x);
    case FL_OP_sign: return (x > 0) - (x < 0);
    case FL_OP_relu: return x > 0 ? x : 0;
    case FL_OP_relu6: return x < 0 ? 0 : x > 6 ? 6 : x;
    case FL_OP_isnan: return 0;
    case FL_OP_logical_not: return !x;
    default: return x; /* floor, rint, ceil, trunc */
    }
}

/* The other formulas are conformance's: here stand those that came with loops of their own. */
static bool has_reference(fl_op op) {
    static const char *const names =
        " ceil trunc square reciprocal rsqrt sign relu sigmoid silu softplus gelu gelu_tanh relu6 "
        "hardswish isnan logical_not prelu ne gt ge logical_and logical_or logical_xor ";
    char name[40];
    snprintf(name, sizeof name, " %s ", fl_op_get_info(op)->name);
    return fl_backend_has(0, op) && (fl_op_get_info(op)->required || strstr(names, name));
}

static double ref_remainder(double a, double b) {
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static double ref_extreme(double a, double b, bool largest) {
    if (isnan(a) || isnan(b)) return NAN;
    if (a == b) return (signbit(a) != 0) == largest ? b : a; /* +0 is above -0 */
    return (a > b) == largest ? a : b;
}

static double ref_binary(fl_op op, double a, double b) {
    switch (op) {
    case FL_OP_add: return a + b;
    case FL_OP_sub: return a - b;
    case FL_OP_mul: return a * b;
    case FL_OP_div: return a / b;
    case FL_OP_pow: return pow(a, b);
    case FL_OP_remainder: return ref_remainder(a, b);
    case FL_OP_maximum: return ref_extreme(a, b, true);
    case FL_OP_minimum: return ref_extreme(a, b, false);
    case FL_OP_atan2: return atan2(a, b);
    case FL_OP_prelu: return a > 0 ? a : b * a;
    case FL_OP_eq: return a == b;
    case FL_OP_ne: return a != b;
    case FL_OP_lt: return a < b;
    case FL_OP_le: return a <= b;
    case FL_OP_gt: return a > b;
    default: return a >= b; /* ge */
    }
}

static int64_t ref_power(int64_t a, int64_t n) {
    uint64_t y = 1;
    if (n < 0) return a == 1 ? 1 : a == -1 ? (n % 2 ? -1 : 1) : 0;
    if (a == 0 || a == 1) return n ? a : 1;
    if (a == -1) return n % 2 ? -1 : 1;
    for (int64_t i = 0; i < n && i < 64 * 1000; i++) y *= (uint64_t)a;
    return a % 2 == 0 && n >= 64 ? 0 : (int64_t)y;
}

static int64_t ref_binary_int(fl_op op, int64_t a, int64_t b, fl_dtype d) {
    int64_t r;
    switch (op) {
    case FL_OP_add: return d == FL_B8 ? a || b : (int64_t)((uint64_t)a + (uint64_t)b);
    case FL_OP_sub: return (int64_t)((uint64_t)a - (uint64_t)b);
    case FL_OP_mul: return d == FL_B8 ? a && b : (int64_t)((uint64_t)a * (uint64_t)b);
    case FL_OP_pow: return ref_power(a, b);
    case FL_OP_remainder:
        r = b == 0 || b == -1 ? 0 : a % b;
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    case FL_OP_maximum: return a > b ? a : b;
    case FL_OP_minimum: return a < b ? a : b;
    case FL_OP_eq: return a == b;
    case FL_OP_ne: return a != b;
    case FL_OP_lt: return a < b;
    case FL_OP_le: return a <= b;
    case FL_OP_gt: return a > b;
    case FL_OP_ge: return a >= b;
    case FL_OP_bitwise_and: return a & b;
    case FL_OP_bitwise_or: return a | b;
    case FL_OP_bitwise_xor: return a ^ b;
    case FL_OP_shift_left: return d == FL_B8 ? a : b < 0 || b > 63 ? 0 : (int64_t)((uint64_t)a << b);
    case FL_OP_shift_right: return a >> (b < 0 || b > 63 ? 63 : b);
    case FL_OP_logical_and: return a && b;
    case FL_OP_logical_or: return a || b;
    default: return !a != !b; /* logical_xor */
    }
}

/* >>elementwise: the lines of the tables that the backend has loops for */

static bool takes(fl_op_class cls, fl_dtype d) {
    bool real = d == FL_F32 || d == FL_F64;
    switch (cls) {
    case FL_CLASS_FLOAT: return real;
    case FL_CLASS_NUM: return real || d == FL_I64;
    case FL_CLASS_INT: return !real;
    case FL_CLASS_BOOL: return d == FL_B8;
    default: return true;
    }
}

static fl_dtype gives(fl_op_class cls, fl_dtype d) {
    return cls == FL_CLASS_CMP || cls == FL_CLASS_BOOL ? FL_B8 : d;
}

static const fl_dtype computed[] = {FL_F32, FL_F64, FL_I64, FL_B8};

static void check_unary(fl_op op, fl_dtype d, int layout) {
    const fl_op_info *info = fl_op_get_info(op);
    fl_dtype yd = gives(info->cls, d);
    fl_tensor *x = laid_out(layout, d, 11u + (uint64_t)op, true);
    fl_tensor *y = run_args(op, layout_shape(layout), yd, NULL, 1, &x);
    if (!CHECK(y)) return;
    bool real = fl_dtype_is_float(d);
    for (int64_t i = 0; i < fl_numel(y); i++) {
        if (!real) {
            int64_t want = ref_unary_int(op, get_int(x, i), d), got = get_int(y, i);
            if (!CHECK_EQ_INT(got, want))
                printf("%s %s %s\n", info->name, fl_dtype_name(d), layout_name[layout]);
            continue;
        }
        if (op == FL_OP_silu && get(x, i) < -80)
            continue; /* e^-x overflows f32 where the product is tiny */
        check_element(get(y, i), ref_unary(op, get(x, i)), yd, info->name, layout_name[layout], i);
    }
}

TEST(unary_over_layouts) {
    for (fl_op op = 1; op < fl_op_count(); op++) {
        const fl_op_info *info = fl_op_get_info(op);
        for (int d = 0; d < 4 && info->arity == 1 && has_reference(op); d++)
            for (int layout = 0; layout < LAYOUTS && takes(info->cls, computed[d]); layout++) {
                fl_scope s = fl_scope_begin();
                check_unary(op, computed[d], layout);
                fl_scope_end(&s);
            }
    }
}

static void check_binary(fl_op op, fl_dtype d, fl_tensor *a, fl_tensor *b, int layout,
                         bool may_fail) {
    const fl_op_info *info = fl_op_get_info(op);
    fl_dtype yd = gives(info->cls, d);
    bool real = fl_dtype_is_float(d), zero = false;
    fl_tensor *y = out_of(layout_shape(layout), yd);
    bool ok = run((fl_call){.op = op, .n_out = 1, .n_in = 2, .out = {y}, .in = {a, b}});
    for (int64_t i = 0; i < fl_numel(y); i++) {
        zero |= get_int(b, i) == 0;
        if (!real) {
            int64_t want = ref_binary_int(op, get_int(a, i), get_int(b, i), d), got = get_int(y, i);
            if (!CHECK_EQ_INT(got, want))
                printf("%s %s %s\n", info->name, fl_dtype_name(d), layout_name[layout]);
        } else {
            check_element(get(y, i), ref_binary(op, get(a, i), get(b, i)), yd, info->name,
                          layout_name[layout], i);
        }
    }
    if (may_fail && zero) {
        CHECK(!ok);
        CHECK_ERROR("integer division by zero");
    } else {
        CHECK(ok);
    }
}

TEST(binary_over_layouts) {
    test_errors_return();
    for (fl_op op = 1; op < fl_op_count(); op++) {
        const fl_op_info *info = fl_op_get_info(op);
        for (int k = 0; k < 4 && info->arity == 2 && has_reference(op); k++) {
            fl_dtype d = computed[k];
            bool divides = op == FL_OP_remainder && d == FL_I64,
                 wild = op != FL_OP_pow || d != FL_I64;
            for (int layout = 0; layout < LAYOUTS && takes(info->cls, d); layout++) {
                fl_scope s = fl_scope_begin();
                int other = layout <= STRIDED ? (layout * 5 + (int)op) % (STRIDED + 1) : layout;
                fl_tensor *a = laid_out(layout, d, 3, wild), *b = laid_out(other, d, 99, wild);
                check_binary(op, d, a, b, layout, divides);
                if (d != FL_B8) {
                    fl_tensor *w = fl_dtype_is_float(d) ? fl_num(2.5) : fl_int(3);
                    check_binary(op, d, a, w, layout, false);
                    check_binary(op, d, w, b, layout, divides);
                }
                fl_scope_end(&s);
            }
        }
    }
}

/* 2^b overflows there, and 2^(b / 2) too. */
TEST(ldexp_reaches_from_denormals_to_the_largest) {
    const struct {
        fl_dtype d;
        double least;
        int from, to;
    } of[] = {{FL_F32, 0x1p-149, 240, 290}, {FL_F64, 0x1p-1074, 2030, 2110}};
    for (int k = 0; k < 2; k++)
        for (int e = of[k].from; e < of[k].to; e++) {
            fl_scope s = fl_scope_begin();
            fl_tensor *a = fl_full(FL_SHAPE(1), -3 * of[k].least, of[k].d);
            double want = ldexp(-3 * of[k].least, e);
            if (of[k].d == FL_F32) want = (float)want;
            CHECK(fl_item(fl_ldexp(a, fl_num(e))) == want);
            fl_scope_end(&s);
        }
}

#define USERS_LOOP(name, T) \
    static void name(void *const p[], int64_t n, const void *arg) { \
        for (int64_t i = 0; i < n; i++) \
            ((T *)p[0])[i] = ((const T *)p[1])[i] - *(const int *)arg * ((const T *)p[2])[i]; \
    }
USERS_LOOP(users_f32, float)
USERS_LOOP(users_f64, double)
USERS_LOOP(users_i64, int64_t)

static bool users_slot(const fl_backend *self, const fl_call *c) {
    static const int three = 3;
    const fl_dtype wide = fl_dtype_wide(c->out[0]->dtype);
    (void)self;
    return fl_cpu_loop(c, wide == FL_F64 ? users_f64 : wide == FL_I64 ? users_i64 : users_f32, &three);
}

/* New memory, an input or a view to write to. */
static fl_tensor *place_for(fl_tensor *a, int layout, int way) {
    if (way == 0 && layout != REPEATED && layout != CONSTANT) return a;
    if (way == 1 && a->ndim > 1) {
        fl_tensor *turned = fl_transpose(a, 0, -1);
        return fl_transpose(fl_empty(fl_shape_of(turned), a->dtype), 0, -1);
    }
    return out_of(fl_shape_of(a), a->dtype);
}

TEST(users_loop_over_layouts) {
    test_errors_return();
    const fl_dtype of[] = {FL_F32, FL_F64, FL_F16, FL_BF16, FL_I32, FL_I64};
    for (int k = 0; k < 6 * LAYOUTS * 4; k++) {
        const int layout = k / 4 % LAYOUTS, way = k % 4;
        const int other = layout <= STRIDED ? (layout * 5 + 2) % (STRIDED + 1) : layout;
        const fl_dtype d = of[k / 4 / LAYOUTS];
        const bool real = fl_dtype_is_float(d);
        fl_scope s = fl_scope_begin();
        fl_tensor *a = laid_out(layout, d, 3, false), *before = fl_clone(a), *y = place_for(a, layout, way);
        fl_tensor *b = way < 3 ? laid_out(other, d, 99, false) : real ? fl_num(2.5) : fl_int(2);
        CHECK(users_slot(NULL,
                         &(fl_call){.op = FL_OP_sub, .n_out = 1, .n_in = 2, .out = {y}, .in = {a, b}}));
        for (int64_t i = 0; i < fl_numel(y); i++) {
            const int64_t whole = real ? 0 : get_int(before, i) - 3 * get_int(b, i);
            uint64_t want = 0; /* in d */
            fl_number_store(d, &want, (fl_number){real, get(before, i) - 3 * get(b, i), whole});
            check_element(get(y, i), fl_number_load(d, &want).f, d, "a - 3 b", layout_name[layout], i);
        }
        fl_scope_end(&s);
    }
    fl_tensor *a = fl_ones(FL_SHAPE(2, 3), FL_F32), *row = fl_ones(FL_SHAPE(3), FL_F32);
    fl_tensor *y = out_of(FL_SHAPE(2, 3), FL_F32);
    CHECK(!users_slot(NULL, &(fl_call){.op = FL_OP_sub, .n_out = 1, .n_in = 2, .out = {y}, .in = {a, row}}));
    CHECK_ERROR("fl_cpu_loop: operand 2 of sub: got f32 [3], expected a built-in dtype and shape [2, 3]");
}

TEST(binary_in_place) {
    for (int layout = 0; layout < LAYOUTS; layout++) {
        if (layout == REPEATED || layout == CONSTANT) continue;
        fl_tensor *a = laid_out(layout, FL_F32, 5, false), *b = laid_out(layout, FL_F32, 6, false);
        fl_tensor *before = fl_clone(a);
        CHECK(run((fl_call){.op = FL_OP_sub, .n_out = 1, .n_in = 2, .out = {a}, .in = {b, a}}));
        for (int64_t i = 0; i < fl_numel(a); i++)
            check_element(get(a, i), get(b, i) - get(before, i), FL_F32, "b - a into a",
                          layout_name[layout], i);
    }
}

TEST(where_over_layouts) {
    for (int k = 0; k < 4; k++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            fl_dtype d = computed[k];
            int other = layout <= STRIDED ? (layout + 1) % (STRIDED + 1) : layout;
            fl_tensor *c = laid_out(other, FL_B8, 1, false), *a = laid_out(layout, d, 2, true);
            fl_tensor *b = k % 2 ? fl_num(7) : laid_out(other, d, 3, true);
            if (d == FL_B8) b = laid_out(layout, d, 3, true);
            fl_tensor *y =
                run_args(FL_OP_where, layout_shape(layout), d, NULL, 3, (fl_tensor *[]){c, a, b});
            for (int64_t i = 0; CHECK(y) && i < fl_numel(y); i++)
                check_element(get(y, i), get_int(c, i) ? get(a, i) : get(b, i), d, "where",
                              layout_name[layout], i);
        }
}

/* >>gradients: the derivative of the reference by a central difference */

static bool smooth(fl_op op) {
    const fl_op_info *info = fl_op_get_info(op);
    return info->cls == FL_CLASS_FLOAT || op == FL_OP_neg || op == FL_OP_abs ||
           op == FL_OP_square || op == FL_OP_relu || op == FL_OP_add || op == FL_OP_sub ||
           op == FL_OP_mul || op == FL_OP_pow || op == FL_OP_maximum || op == FL_OP_minimum;
}

static void check_slope(double got, double above, double below, double h, double dy, fl_dtype d,
                        const char *op) {
    double want = dy * (above - below) / (2 * h);
    if (fabs(got - want) <= (d == FL_F32 ? 2e-5 : 1e-7) * (1 + fabs(want))) return;
    printf("%s %s: gradient %.9g, by differences %.9g\n", op, fl_dtype_name(d), got, want);
    CHECK(!"gradient differs");
}

TEST(unary_gradients) {
    const double h = 1e-6;
    for (fl_op op = 1; op < fl_op_count(); op++)
        for (int k = 0; k < 2 * LAYOUTS; k++) {
            fl_dtype d = computed[k % 2];
            int layout = k / 2;
            const fl_op_info *info = fl_op_get_info(op);
            if (info->arity != 1 || !smooth(op) || !has_reference(op)) continue;
            fl_scope s = fl_scope_begin();
            fl_tensor *x = laid_out(layout, d, 7, false), *dy = laid_out(layout, d, 8, false);
            if (op == FL_OP_log || op == FL_OP_log1p || op == FL_OP_sqrt || op == FL_OP_rsqrt)
                x = fl_add(fl_abs(x), fl_num(0.25));
            fl_tensor *y = run_args(op, layout_shape(layout), d, NULL, 1, &x);
            fl_tensor *dx = run_args(FL_OP_grad1, layout_shape(layout), d, &(fl_grad_args){op}, 3,
                                     (fl_tensor *[]){x, y, dy});
            for (int64_t i = 0; CHECK(dx) && i < fl_numel(dx); i++) {
                double v = get(x, i);
                if (fabs(v) < 0.01) continue; /* kinks and poles */
                check_slope(get(dx, i), ref_unary(op, v + h), ref_unary(op, v - h), h, get(dy, i),
                            d, info->name);
            }
            fl_scope_end(&s);
        }
}

TEST(binary_gradients) {
    const double h = 1e-6;
    for (fl_op op = 1; op < fl_op_count(); op++)
        for (int k = 0; k < 2 * LAYOUTS * 3; k++) {
            fl_dtype d = computed[k % 2];
            int layout = k / 2 % LAYOUTS, want = k / 2 / LAYOUTS + 1;
            const fl_op_info *info = fl_op_get_info(op);
            if (info->arity != 2 || !smooth(op) || !has_reference(op)) continue;
            fl_scope s = fl_scope_begin();
            fl_tensor *a = fl_add(fl_abs(laid_out(layout, d, 7, false)), fl_num(0.5));
            fl_tensor *b = laid_out(layout, d, 9, false), *dy = laid_out(layout, d, 8, false);
            fl_tensor *y = run_args(op, layout_shape(layout), d, NULL, 2, (fl_tensor *[]){a, b});
            fl_tensor *da = want & 1 ? out_of(layout_shape(layout), d) : NULL;
            fl_tensor *db = want & 2 ? out_of(layout_shape(layout), d) : NULL;
            fl_call c = {
                .op = FL_OP_grad2, .n_out = 2, .n_in = 4, .out = {da, db}, .in = {a, b, y, dy}};
            c.args = &(fl_grad_args){op};
            CHECK(run(c));
            for (int64_t i = 0; i < fl_numel(y); i++) {
                double u = get(a, i), v = get(b, i), g = get(dy, i);
                if (fabs(v) < 0.1 || fabs(u - v) < 0.01) continue;
                if (da)
                    check_slope(get(da, i), ref_binary(op, u + h, v), ref_binary(op, u - h, v), h,
                                g, d, info->name);
                if (db)
                    check_slope(get(db, i), ref_binary(op, u, v + h), ref_binary(op, u, v - h), h,
                                g, d, info->name);
            }
            fl_scope_end(&s);
        }
}

/* >>copy, create */

static double ref_cast(double x, int64_t k, bool real, fl_dtype to) {
    static const double low[FL_DTYPE_COUNT] = {
        [FL_I8] = -128, [FL_I16] = INT16_MIN, [FL_I32] = INT32_MIN, [FL_I64] = -0x1p63};
    static const double high[FL_DTYPE_COUNT] = {
        [FL_U8] = 255,     [FL_I8] = 127,          [FL_I16] = INT16_MAX,  [FL_I32] = INT32_MAX,
        [FL_I64] = 0x1p63, [FL_U16] = UINT16_MAX, [FL_U32] = UINT32_MAX, [FL_U64] = 0x1p64};
    if (to == FL_B8) return real ? x != 0 : k != 0;
    if (fl_dtype_is_float(to)) return x; /* of integers too, u64 included */
    if (real) return isnan(x) ? 0 : x <= low[to] ? low[to] : x >= high[to] ? high[to] : trunc(x);
    switch (to) {
    case FL_U8: return (uint8_t)k;
    case FL_I8: return (int8_t)k;
    case FL_I16: return (int16_t)k;
    case FL_I32: return (int32_t)k;
    case FL_U16: return (uint16_t)k;
    case FL_U32: return (uint32_t)k;
    case FL_U64: return (double)(uint64_t)k;
    default: return (double)k;
    }
}

/* want as the dtype holds it; conversions of halves have their own tests, in test_math.c. */
static double through(fl_dtype d, double want) {
    char bytes[8];
    fl_number_store(d, bytes, (fl_number){true, want, 0});
    return fl_number_load(d, bytes).f;
}

TEST(copies_and_casts) {
    for (fl_dtype from = FL_B8; from < FL_DTYPE_COUNT; from++)
        for (fl_dtype to = FL_B8; to < FL_DTYPE_COUNT; to++)
            for (int layout = 0; layout < LAYOUTS; layout++) {
                bool narrow = fl_dtype_wide(from) != from && fl_dtype_wide(to) != to;
                if (narrow && (int)(from + to) % LAYOUTS != layout) continue;
                fl_scope s = fl_scope_begin();
                fl_tensor *x = laid_out(layout, from, 21, true),
                          *y = out_of(layout_shape(layout), to);
                if (layout == LONG_T) y = fl_transpose(fl_empty(FL_SHAPE(133, 200), to), 0, 1);
                if (layout == STRIDED) y = laid_out(NEGATIVE, to, 4, false);
                CHECK(
                    run((fl_call){.op = FL_OP_copy, .n_out = 1, .n_in = 1, .out = {y}, .in = {x}}));
                bool real = fl_dtype_is_float(from);
                for (int64_t i = 0; i < fl_numel(y); i++) {
                    double want = ref_cast(get(x, i), get_int(x, i), real, to);
                    if (fl_dtype_is_float(to)) want = through(to, want);
                    if (fl_dtype_is_float(to) || fabs(want) < 1e18)
                        check_element(get(y, i), want, to, fl_dtype_name(from), layout_name[layout],
                                      i);
                    else
                        CHECK(get(y, i) == want);
                }
                fl_scope_end(&s);
            }
}

TEST(transposed_copies) {
    for (int k = 0; k < 3; k++) {
        fl_dtype d = (fl_dtype[]){FL_B8, FL_F32, FL_F64}[k];
        fl_tensor *x =
            fl_permute(fresh(FL_SHAPE(3, 70, 2, 95), d, 3, false), 4, (int[]){2, 3, 0, 1});
        fl_tensor *y = run_args(FL_OP_copy, FL_SHAPE(2, 95, 3, 70), d, NULL, 1, &x);
        for (int64_t i = 0; CHECK(y) && i < fl_numel(y); i++) CHECK(get(y, i) == get(x, i));
    }
}

TEST(fill_and_iota) {
    for (fl_dtype d = FL_B8; d < FL_DTYPE_COUNT; d++) {
        fl_tensor *y = run_args(FL_OP_fill, FL_SHAPE(40000), d, &(fl_fill_args){3, 3}, 0, NULL);
        fl_tensor *part = fl_slice(y, 0, 1, 40000, 3);
        CHECK(run(
            (fl_call){.op = FL_OP_fill, .n_out = 1, .out = {part}, .args = &(fl_fill_args){1, 1}}));
        for (int64_t i = 0; i < 40000; i++) CHECK(get(y, i) == (d == FL_B8 || i % 3 == 1 ? 1 : 3));
    }
    fl_iota_args a = {0.5, 0.25, -5, 3};
    fl_tensor *f = run_args(FL_OP_iota, FL_SHAPE(30000), FL_F32, &a, 0, NULL);
    fl_tensor *g = run_args(FL_OP_iota, FL_SHAPE(30000), FL_F64, &a, 0, NULL);
    fl_tensor *k = run_args(FL_OP_iota, FL_SHAPE(30000), FL_I64, &a, 0, NULL);
    for (int64_t i = 0; i < 30000; i++)
        CHECK(get(f, i) == 0.5 + 0.25 * (double)i && get(g, i) == get(f, i) &&
              get_int(k, i) == -5 + 3 * i);
}

/* >>reduce */

static fl_shape reduced_shape(const fl_tensor *x, uint32_t axes) {
    fl_shape s = {.ndim = x->ndim};
    for (int i = 0; i < x->ndim; i++) s.dim[i] = axes >> i & 1 ? 1 : x->shape[i];
    return s;
}

/* Output element that element `flat` of x goes to. */
static int64_t output_of(const fl_tensor *x, uint32_t axes, int64_t flat) {
    int64_t o = 0, scale = 1;
    for (int i = x->ndim - 1; i >= 0; i--) {
        if (!(axes >> i & 1)) {
            o += flat % x->shape[i] * scale;
            scale *= x->shape[i];
        }
        flat /= x->shape[i];
    }
    return o;
}

static double fold_one(fl_op op, double a, double x) {
    switch (op) {
    case FL_OP_sum: return a + x;
    case FL_OP_prod: return a * x;
    case FL_OP_amax: return ref_extreme(a, x, true);
    default: return ref_extreme(a, x, false);
    }
}

static int64_t fold_one_int(fl_op op, int64_t a, int64_t x) {
    switch (op) {
    case FL_OP_sum: return (int64_t)((uint64_t)a + (uint64_t)x);
    case FL_OP_prod: return (int64_t)((uint64_t)a * (uint64_t)x);
    case FL_OP_amax: return a > x ? a : x;
    default: return a < x ? a : x;
    }
}

static void check_reduction(fl_op op, fl_tensor *x, uint32_t axes, const char *where) {
    fl_reduce_args args = {axes, true};
    const char *name = fl_op_get_info(op)->name;
    int kind = op == FL_OP_sum ? 0 : op == FL_OP_prod ? 1 : op == FL_OP_amax ? 2 : 3;
    fl_tensor *y = run_args(op, reduced_shape(x, axes), x->dtype, &args, 1, &x);
    if (!CHECK(y)) return;
    int64_t n = fl_numel(y);
    double *f = malloc((size_t)n * 8 + 8), *scale = calloc((size_t)n + 1, 8);
    int64_t *k = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++) {
        f[i] = (double[]){0, 1, -INFINITY, INFINITY}[kind];
        k[i] = (int64_t[]){0, 1, INT64_MIN, INT64_MAX}[kind];
    }
    for (int64_t i = 0; i < fl_numel(x); i++) {
        int64_t o = output_of(x, axes, i);
        f[o] = fold_one(op, f[o], get(x, i));
        k[o] = fold_one_int(op, k[o], get_int(x, i));
        if (isfinite(get(x, i))) scale[o] += fabs(get(x, i));
    }
    for (int64_t i = 0; i < n; i++) {
        if (x->dtype == FL_I64) CHECK_EQ_INT(get_int(y, i), k[i]);
        else if (op == FL_OP_sum && isfinite(f[i]))
            CHECK_NEAR(get(y, i), f[i],
                       (x->dtype == FL_F32 ? 1e-7 * fabs(f[i]) : 0) + 1e-14 * scale[i] + 1e-45);
        else
            check_element(get(y, i), f[i], x->dtype, name, where, i);
    }
    free(f), free(k), free(scale);
}

TEST(reductions_over_axes_and_layouts) {
    static const fl_op ops[] = {FL_OP_sum, FL_OP_prod, FL_OP_amax, FL_OP_amin};
    for (int layout = 0; layout < LAYOUTS; layout++)
        for (int k = 0; k < 3; k++)
            for (int wild = 0; wild < 2; wild++) {
                fl_scope s = fl_scope_begin();
                fl_tensor *x = laid_out(layout, computed[k], 31, wild);
                for (uint32_t axes = 0; axes < 1u << x->ndim; axes++)
                    for (int i = 0; i < (layout == EMPTY ? 2 : 4); i++) {
                        /* floating-point products of these depend on their order: they overflow on
                           the way */
                        bool overflows =
                            ops[i] == FL_OP_prod && (wild || layout == LONG || layout == LONG_T);
                        if (!overflows || k == 2)
                            check_reduction(ops[i], x, axes, layout_name[layout]);
                    }
                fl_scope_end(&s);
            }
}

TEST(reductions_in_chunks) {
    static const struct {
        fl_shape shape;
        uint32_t axes;
    } cases[] = {{{1, {1000003}}, 1},    {{2, {70000, 5}}, 1},        {{2, {70000, 300}}, 1},
                 {{2, {3, 200001}}, 2},  {{4, {9, 10, 31, 33}}, 013}, {{4, {40, 3, 64, 64}}, 015},
                 {{3, {700, 40, 9}}, 5}, {{2, {2, 100000}}, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 3; k++) {
            fl_scope s = fl_scope_begin();
            fl_tensor *x = fresh(cases[i].shape, computed[k], 77, false);
            check_reduction(FL_OP_sum, x, cases[i].axes, "chunks");
            check_reduction(FL_OP_amax, x, cases[i].axes, "chunks");
            fl_scope_end(&s);
        }
}

/* Place of the first extreme among n elements of x from `first`, `step` elements apart. */
static int64_t ref_place(const fl_tensor *x, int64_t first, int64_t step, int64_t n, bool largest) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        double v = get(x, first + i * step), b = get(x, first + best * step);
        int64_t vi = get_int(x, first + i * step), bi = get_int(x, first + best * step);
        bool real = fl_dtype_is_float(x->dtype), wins = real && isnan(v) && !isnan(b);
        if (wins || (real ? (largest ? v > b : v < b) : (largest ? vi > bi : vi < bi))) best = i;
    }
    return best;
}

static void check_place(fl_tensor *x, int axis, bool largest, const char *where) {
    fl_reduce_args args = {1u << axis, true};
    fl_tensor *y = run_args(largest ? FL_OP_argmax : FL_OP_argmin, reduced_shape(x, args.axes),
                            FL_I64, &args, 1, &x);
    int64_t inner = 1, n = x->shape[axis];
    for (int i = axis + 1; i < x->ndim; i++) inner *= x->shape[i];
    for (int64_t o = 0; CHECK(y) && o < fl_numel(y); o++) {
        int64_t want = ref_place(x, o / inner * inner * n + o % inner, inner, n, largest);
        if (!CHECK_EQ_INT(get_int(y, o), want)) printf("  %s, axis %d\n", where, axis);
    }
}

TEST(argmax_and_argmin) {
    for (int layout = 0; layout < LAYOUTS; layout++)
        for (int k = 0; k < 3 * 2; k++) {
            fl_tensor *x = laid_out(layout, computed[k % 3], 41, k >= 3);
            for (int axis = 0; axis < x->ndim && fl_numel(x) > 0; axis++) {
                check_place(x, axis, true, layout_name[layout]);
                check_place(x, axis, false, layout_name[layout]);
            }
        }
}

/* The fold of n elements one by one, in the order that kernels/cpu/reduce.h describes. */
static double ref_fold(fl_op op, const double *x, int64_t n) {
    const int lanes = n < 16 ? 1 : n < 512 ? 8 : 64;
    double lane[64];
    for (int l = 0; l < lanes; l++) lane[l] = op == FL_OP_sum ? 0 : op == FL_OP_prod ? 1 : x[0];
    for (int64_t i = 0; i < n; i++) {
        const int64_t l = lanes == 8 && i >= n / 8 * 8 ? 0 : i % lanes;
        lane[l] = fold_one(op, lane[l], x[i]);
    }
    for (int l = 8; l < lanes; l++) lane[l % 8] = fold_one(op, lane[l % 8], lane[l]);
    for (int l = 1; l < lanes && l < 8; l++) lane[0] = fold_one(op, lane[0], lane[l]);
    return lane[0];
}

/* Element i of row r: numbers of many magnitudes; one NaN in each row; zeros of both signs, the higher or the
   lower one once, among numbers below or above; infinities. */
static double row_element(int kind, int64_t r, int64_t i, int64_t n, uint64_t *seed) {
    const bool here = i == r % n;
    const double x = ldexp((double)test_random(seed) / (1u << 30) - 1, (int)(test_random(seed) % 40) - 20);
    switch (kind) {
    case 0: return x;
    case 1: return here ? copysign(NAN, x) : x;
    case 2: return here ? 0.0 : i % 3 ? -0.0 : -fabs(x);
    case 3: return here ? -0.0 : i % 3 ? 0.0 : fabs(x);
    case 4: return r % 2 ? -0.0 : 0.0;
    case 5: return here ? INFINITY : i % 5 == 4 ? -INFINITY : x;
    case 6: return r % 2 ? INFINITY : -INFINITY;
    default: return -fabs(x);
    }
}

/* Rows of n elements in memory with a gap, folded to the same bits as one by one. */
static void check_rows(fl_dtype d, int64_t n, int kind) {
    static const fl_op ops[] = {FL_OP_sum, FL_OP_prod, FL_OP_amax, FL_OP_amin};
    const int64_t rows = n < 71 ? n + 4 : 7, gap = n % 3;
    uint64_t seed = (uint64_t)(n * 8 + kind);
    double *v = malloc((size_t)(rows * n) * sizeof *v);
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_full(FL_SHAPE(rows, n + gap), 1e30, d);
    for (int64_t k = 0; k < rows * n; k++) {
        char *at = (char *)fl_data(x) + (k / n * (n + gap) + k % n) * (int64_t)fl_dtype_size(d);
        const double e = row_element(kind, n < 71 ? k / n : k / n * 97, k % n, n, &seed);
        fl_number_store(d, at, (fl_number){.real = true, .f = e});
        v[k] = fl_number_load(d, at).f;
    }
    x = fl_slice(x, 1, 0, n, 1);
    for (int k = 0; k < 4; k++) {
        fl_tensor *y = run_args(ops[k], FL_SHAPE(rows), d, &(fl_reduce_args){2, false}, 1, &x);
        for (int64_t r = 0; CHECK(y) && r < rows; r++) {
            double got = get(y, r), want = ref_fold(ops[k], v + r * n, n);
            if (d == FL_F32) want = (float)want;
            if ((isnan(got) && isnan(want)) || memcmp(&got, &want, sizeof got) == 0) continue;
            CHECK(!"bits differ");
            printf("  %s %s, rows of %lld, kind %d, row %lld: got %a, want %a\n",
                   fl_op_get_info(ops[k])->name, fl_dtype_name(d), (long long)n, kind, (long long)r, got,
                   want);
        }
    }
    check_place(x, 1, kind % 2, "rows");
    fl_scope_end(&s);
    free(v);
}

TEST(rows_fold_as_one_by_one) {
    static const int64_t longer[] = {71,  127, 128,  129,  255,  256,  257,  511,  512, 513,
                                     575, 583, 1023, 1024, 1025, 4095, 4096, 4097, 8203};
    for (int level = FL__PORTABLE; level <= FL__AVX512; level++) {
        fl__level_cap(level);
        for (int kind = 0; kind < 8; kind++) {
            for (int64_t n = 1; n < 71; n++) check_rows(FL_F32, n, kind);
            for (size_t i = 0; i < sizeof longer / sizeof *longer; i++) check_rows(FL_F32, longer[i], kind);
            for (int64_t n = 1; n < 600 && level == FL__PORTABLE; n += n < 40 ? 1 : 59)
                check_rows(FL_F64, n, kind);
        }
    }
}

/* >>index */

static fl_tensor *random_index(fl_shape shape, int64_t size, uint64_t seed) {
    int64_t n = fl_shape_numel(shape), *k = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++) k[i] = (int64_t)(test_random(&seed) % (uint64_t)size);
    fl_tensor *t = fl_from_host(k, shape, FL_I64);
    free(k);
    return t;
}

/* Element of x that element `flat` of an index of shape `shape` names. */
static int64_t named(const fl_tensor *x, fl_shape shape, int axis, int64_t index, int64_t flat) {
    int64_t at[FL_MAX_DIMS], to = 0;
    for (int i = shape.ndim - 1; i >= 0; i--) {
        at[i] = flat % shape.dim[i];
        flat /= shape.dim[i];
    }
    at[axis] = index;
    for (int i = 0; i < shape.ndim; i++) to = to * x->shape[i] + at[i];
    return to;
}

static void check_gather(fl_tensor *x, fl_tensor *index, int axis) {
    fl_axis_args args = {axis};
    fl_shape shape = fl_shape_of(index);
    fl_tensor *y = run_args(FL_OP_gather, shape, x->dtype, &args, 2, (fl_tensor *[]){x, index});
    for (int64_t i = 0; CHECK(y) && i < fl_numel(y); i++)
        CHECK(get(y, i) == get(x, named(x, shape, axis, get_int(index, i), i)));
}

static void check_scatter(fl_tensor *x, fl_tensor *index, int axis) {
    fl_axis_args args = {axis};
    fl_shape shape = fl_shape_of(index);
    fl_tensor *src = fresh(shape, x->dtype, 15, false), *want = fl_cast(fl_contiguous(x), FL_F64);
    if (want == x) want = fl_clone(x);
    fl_tensor *y = run_args(FL_OP_scatter_add, fl_shape_of(x), x->dtype, &args, 3,
                            (fl_tensor *[]){x, index, src});
    double *sum = fl_data(want);
    for (int64_t i = 0; i < fl_numel(src); i++) {
        double *to = &sum[named(x, shape, axis, get_int(index, i), i)];
        *to += get(src, i);
        if (x->dtype == FL_B8) *to = *to != 0;
        if (x->dtype == FL_F32) *to = (double)(float)*to;
    }
    for (int64_t i = 0; CHECK(y) && i < fl_numel(y); i++) CHECK(get(y, i) == sum[i]);
}

TEST(gather_and_scatter_add) {
    for (int k = 0; k < 4; k++)
        for (int layout = 0; layout < 2; layout++)
            for (int axis = 0; axis < 3; axis++) {
                fl_tensor *x = laid_out(layout ? TRANSPOSED : CONTIGUOUS, computed[k], 51, false);
                int64_t size = x->shape[axis];
                fl_shape shape = {3, {6, 5, 7}};
                shape.dim[axis] = 11;
                fl_tensor *index = random_index(shape, size, 3);
                check_gather(x, index, axis);
                check_scatter(x, index, axis);
                shape.dim[(axis + 1) % 3] = 2; /* smaller than x beside the axis */
                check_gather(x, random_index(shape, size, 4), axis);
                check_scatter(x, random_index(shape, size, 5), axis);
                fl_tensor *line = random_index(FL_SHAPE(9), size, 6);
                fl_shape ones = {3, {1, 1, 1}}, full = {3, {6, 5, 7}};
                ones.dim[axis] = full.dim[axis] = 9;
                fl_tensor *rows = fl_expand(fl_reshape(line, ones), full);
                check_gather(x, rows, axis);
                check_scatter(x, rows, axis);
            }
    fl_tensor *table = fresh(FL_SHAPE(50, 64), FL_F32, 1, false);
    fl_tensor *words = fl_expand(fl_reshape(random_index(FL_SHAPE(3000), 50, 2), FL_SHAPE(3000, 1)),
                                 FL_SHAPE(3000, 64));
    check_gather(table, words, 0);
    check_scatter(table, words, 0);
    check_gather(table, random_index(FL_SHAPE(0, 64), 50, 2), 0);
    check_scatter(table, random_index(FL_SHAPE(0, 64), 50, 2), 0);
}

TEST(index_out_of_range_writes_nothing) {
    test_errors_return();
    for (int k = 0; k < 2; k++) {
        int64_t bad[] = {1, k ? -1 : 4, 0};
        fl_tensor *x = fl_ones(FL_SHAPE(4), FL_F32),
                  *index = fl_from_host(bad, FL_SHAPE(3), FL_I64);
        fl_tensor *src = fl_ones(FL_SHAPE(3), FL_F32);
        CHECK(!run_args(FL_OP_gather, FL_SHAPE(3), FL_F32, &(fl_axis_args){0}, 2,
                        (fl_tensor *[]){x, index}));
        CHECK_ERROR(k ? "gather: index -1 is out of range for axis 0 of size 4"
                      : "gather: index 4 is out");
        fl_call c = {
            .op = FL_OP_scatter_add, .n_out = 1, .n_in = 3, .out = {x}, .in = {x, index, src}};
        c.args = &(fl_axis_args){0};
        CHECK(!run(c));
        CHECK_ERROR("scatter_add: index");
        for (int i = 0; i < 4; i++) CHECK(get(x, i) == 1);
    }
}

/* >>random */

static void ref_philox(uint64_t key, uint64_t counter, uint32_t w[4]) {
    uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    for (int round = 0; round < 10; round++, k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u) {
        uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
        uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k[0], (uint32_t)p1,
                            (uint32_t)(p0 >> 32) ^ c[3] ^ k[1], (uint32_t)p0};
        memcpy(c, next, sizeof next);
    }
    memcpy(w, c, sizeof c);
}

static uint32_t ref_word(fl_rng rng, int64_t i) {
    uint32_t w[4];
    ref_philox(rng.key, rng.counter + (uint64_t)i / 4, w);
    return w[i % 4];
}

TEST(random_bits) {
    uint32_t w[4];
    ref_philox(0, 0, w); /* the known answer of Random123 */
    CHECK(w[0] == 0x6627e8d5 && w[1] == 0xe169c58d && w[2] == 0xbc57ac4c && w[3] == 0x9b00dbd8);
    fl_rng rng = {0x123456789abcdefull, 0xffffffffull - 3};
    fl_random_args u = {FL_UNIFORM, -2, 3, -5, 1000, rng};
    fl_tensor *f = run_args(FL_OP_random, FL_SHAPE(50001), FL_F32, &u, 0, NULL);
    fl_tensor *g = run_args(FL_OP_random, FL_SHAPE(50001), FL_F64, &u, 0, NULL);
    u.dist = FL_INTEGER;
    fl_tensor *k = run_args(FL_OP_random, FL_SHAPE(50001), FL_I64, &u, 0, NULL);
    fl_tensor *t = fl_transpose(fl_empty(FL_SHAPE(7, 143), FL_I64), 0,
                                1); /* the order is row-major, whatever the strides */
    CHECK(run((fl_call){.op = FL_OP_random, .n_out = 1, .out = {t}, .args = &u}));
    for (int64_t i = 0; i < 50001; i++) {
        uint64_t high = ref_word(rng, 2 * i + 1), low = ref_word(rng, 2 * i);
        CHECK(get(f, i) == (double)(-2.0f + 5.0f * ((float)(ref_word(rng, i) >> 8) * 0x1p-24f)));
        CHECK_NEAR(get(g, i), -2 + 5 * ((double)((high >> 5 << 26) + (low >> 6)) * 0x1p-53), 1e-15);
        int64_t want = -5 + (int64_t)((high * 1005 + (low * 1005 >> 32)) >>
                                      32); /* of the product's 64 upper bits */
        CHECK(get_int(k, i) == want && (i >= 1001 || get_int(t, i) == want));
    }
}

TEST(random_moments) {
    const int64_t n = 400000;
    for (int d = 0; d < 2; d++) {
        fl_random_args a = {FL_NORMAL, 3, 2, 0, 0, {42, 7}};
        fl_tensor *z = run_args(FL_OP_random, FL_SHAPE(n), computed[d], &a, 0, NULL);
        double m = 0, v = 0, s = 0, q = 0, lag = 0;
        for (int64_t i = 0; i < n; i++) {
            double x = (get(z, i) - 3) / 2;
            m += x, v += x * x, s += x * x * x, q += x * x * x * x;
            if (i) lag += x * (get(z, i - 1) - 3) / 2;
        }
        CHECK_NEAR(m / (double)n, 0, 0.01);
        CHECK_NEAR(v / (double)n, 1, 0.015);
        CHECK_NEAR(s / (double)n, 0, 0.03);
        CHECK_NEAR(q / (double)n, 3, 0.08);
        CHECK_NEAR(lag / (double)n, 0, 0.01);
    }
}

TEST(dropout) {
    fl_rng rng = {9, 1000};
    for (int d = 0; d < 2; d++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            fl_tensor *x = laid_out(layout, computed[d], 5, false);
            fl_dropout_args a = {0.3, rng};
            fl_tensor *y = run_args(fl_op_dropout, layout_shape(layout), computed[d], &a, 1, &x);
            int64_t zeros = 0;
            for (int64_t i = 0; CHECK(y) && i < fl_numel(y); i++) {
                bool keep = (float)(ref_word(rng, i) >> 8) * 0x1p-24f >= 0.3f;
                check_element(get(y, i), keep ? get(x, i) / 0.7 : 0, computed[d], "dropout",
                              layout_name[layout], i);
                zeros += !keep;
            }
            if (layout == LONG) CHECK_NEAR((double)zeros / 40001, 0.3, 0.01);
        }
    fl_tensor *x = fl_ones(FL_SHAPE(100), FL_F32);
    fl_tensor *all =
        run_args(fl_op_dropout, FL_SHAPE(100), FL_F32, &(fl_dropout_args){1, rng}, 1, &x);
    for (int i = 0; i < 100; i++) CHECK(get(all, i) == 0);
}

/* >>softmax */

/* NaN, and infinities that leave no share, spread over their row; elsewhere -infinity gives 0. */
TEST(softmax_of_special_rows) {
    enum { N = 70 };
    for (int row = 0; row < 4; row++)
        for (int log = 0; log < 2; log++) {
            float x[N];
            for (int i = 0; i < N; i++) x[i] = row == 2 ? -INFINITY : (float)(i % 7);
            x[66] = row == 0 ? NAN : row == 1 ? INFINITY : -INFINITY;
            fl_tensor *t = fl_from_host(x, FL_SHAPE(1, N), FL_F32);
            fl_op op = log ? fl_op_log_softmax : fl_op_softmax;
            fl_tensor *y = run_args(op, FL_SHAPE(1, N), FL_F32, &(fl_axis_args){1}, 1, &t);
            for (int i = 0; i < N; i++) CHECK(isnan(get(y, i)) == (row < 3));
            if (row == 3) CHECK(get(y, 66) == (log ? -INFINITY : 0));
        }
}

/* A row of many pieces, the first without a share, each with a larger maximum than those before. */
TEST(cross_entropy_of_rising_rows) {
    enum { N = 3300, HIDDEN = 1100 };
    float x[N];
    double sum = 0;
    for (int i = 0; i < N; i++) x[i] = i < HIDDEN ? -INFINITY : (float)i / 100;
    for (int i = HIDDEN; i < N; i++) sum += exp((double)x[i] - (double)x[N - 1]);
    fl_tensor *in[] = {fl_from_host(x, FL_SHAPE(1, N), FL_F32),
                       fl_from_host(&(int64_t){N - 1}, FL_SHAPE(1), FL_I64)};
    fl_cross_entropy_args args = {.ignore = -1};
    fl_call c = {
        .op = fl_op_cross_entropy, .n_out = 3, .n_in = 2, .in = {in[0], in[1]}, .args = &args};
    for (int i = 0; i < 3; i++) c.out[i] = out_of(FL_SHAPE(1), FL_F32);
    CHECK(run(c));
    CHECK_NEAR(get(c.out[0], 0), log(sum), 1e-5);
    CHECK(get(c.out[1], 0) == (double)x[N - 1]);
    CHECK_NEAR(get(c.out[2], 0) / sum, 1, 1e-6);
}

static void check_softmax(fl_shape shape, int axis, fl_dtype d, double scale) {
    fl_axis_args args = {axis};
    fl_tensor *x = fl_contiguous(fl_mul(fresh(shape, d, 61, false), fl_num(scale))),
              *dy = fresh(shape, d, 62, false);
    fl_tensor *y = run_args(fl_op_softmax, shape, d, &args, 1, &x),
              *l = run_args(fl_op_log_softmax, shape, d, &args, 1, &x);
    fl_tensor *dx = run_args(fl_op_softmax_grad, shape, d, &args, 2, (fl_tensor *[]){y, dy});
    fl_tensor *dl = run_args(fl_op_log_softmax_grad, shape, d, &args, 2, (fl_tensor *[]){l, dy});
    if (!CHECK(y && l && dx && dl)) return;
    int64_t n = shape.dim[axis], inner = 1;
    for (int i = axis + 1; i < shape.ndim; i++) inner *= shape.dim[i];
    double tol = d == FL_F32 ? 1e-5 : 1e-12;
    for (int64_t line = 0; line < fl_numel(x) / n; line++) {
        int64_t at = line / inner * inner * n + line % inner;
        double m = -INFINITY, sum = 0, dot = 0, total = 0;
        for (int64_t i = 0; i < n; i++) m = fmax(m, get(x, at + i * inner));
        for (int64_t i = 0; i < n; i++) sum += exp(get(x, at + i * inner) - m);
        for (int64_t i = 0; i < n; i++) {
            dot += exp(get(x, at + i * inner) - m) / sum * get(dy, at + i * inner);
            total += get(dy, at + i * inner);
        }
        for (int64_t i = 0; i < n; i++) {
            int64_t k = at + i * inner;
            double p = exp(get(x, k) - m) / sum;
            CHECK_NEAR(get(y, k), p, tol);
            CHECK_NEAR(get(l, k), get(x, k) - m - log(sum), tol * (1 + fabs(get(x, k) - m)));
            CHECK_NEAR(get(dx, k), p * (get(dy, k) - dot), tol);
            CHECK_NEAR(get(dl, k), get(dy, k) - p * total, tol * (1 + fabs(total)));
        }
    }
}

TEST(softmax_along_axes) {
    static const fl_shape shapes[] = {
        {2, {64, 10}}, {3, {5, 33, 7}}, {2, {3, 5000}}, {3, {2, 300, 600}}, {1, {1}}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int axis = 0; axis < shapes[i].ndim; axis++)
            for (int d = 0; d < 2; d++) {
                fl_scope s = fl_scope_begin();
                check_softmax(shapes[i], axis, computed[d], 1);
                check_softmax(shapes[i], axis, computed[d], 500);
                fl_scope_end(&s);
            }
}

/* >>step */

TEST(optimizer_steps) {
    for (int k = 0; k < 2 * 2 * 8; k++) {
        fl_scope s = fl_scope_begin();
        fl_dtype d = computed[k & 1];
        int layout = k & 2 ? TRANSPOSED : LONG;
        double tol = d == FL_F32 ? 2e-6 : 1e-12, wd = k & 4 ? 0.1 : 0;
        bool first = k & 8, flag = k & 16;
        fl_tensor *g = laid_out(k & 2 ? STRIDED : LONG, d, 1, false);
        fl_tensor *p[2], *m[2], *v = fl_abs(laid_out(layout, d, 4, false));
        for (int i = 0; i < 2; i++)
            p[i] = laid_out(layout, d, 2, false), m[i] = laid_out(layout, d, 3, false);
        sgd_args sgd = {.lr = 0.1,
                           .momentum = 0.9,
                           .dampening = 0.2,
                           .weight_decay = wd,
                           .nesterov = flag,
                           .first = first};
        CHECK(sgd_step(p[0], g, m[0], &sgd));
        for (int64_t i = 0; i < fl_numel(g); i++) {
            double gi = get(g, i) + wd * get(p[1], i),
                   mi = 0.9 * get(m[1], i) + (first ? 1 : 0.8) * gi;
            CHECK_NEAR(get(m[0], i), mi, tol * 4);
            CHECK_NEAR(get(p[0], i), get(p[1], i) - 0.1 * (flag ? gi + 0.9 * mi : mi), tol * 4);
        }
        p[0] = fl_clone(p[1]);
        sgd.momentum = 0;
        CHECK(sgd_step(p[0], g, NULL, &sgd));
        for (int64_t i = 0; i < fl_numel(g); i++)
            CHECK_NEAR(get(p[0], i), get(p[1], i) - 0.1 * (get(g, i) + wd * get(p[1], i)), tol * 4);
        adam_args a = {0.01, 0.9, 0.99, 1e-8, wd, .decoupled = flag};
        fl_tensor *w = fl_clone(p[1]), *m2 = fl_clone(m[1]), *v2 = fl_clone(v);
        CHECK(adam_step(w, g, m2, v2, &a));
        for (int64_t i = 0; i < fl_numel(g); i++) {
            double pi = get(p[1], i), gi = get(g, i) + (flag ? 0 : wd * pi);
            double mi = 0.9 * get(m[1], i) + 0.1 * gi, vi = 0.99 * get(v, i) + 0.01 * gi * gi;
            pi -= (flag ? 0.01 * wd * pi : 0) + 0.01 / 0.1 * mi / (sqrt(vi) / 0.1 + 1e-8);
            CHECK_NEAR(get(m2, i), mi, tol * 4);
            CHECK_NEAR(get(v2, i), vi, tol * 4);
            CHECK_NEAR(get(w, i), pi, tol * 4);
        }
        fl_scope_end(&s);
    }
}

/* >>bits: the same for any number of threads; levels differ where functions are fused */

static uint64_t hash_of(const fl_tensor *t) {
    uint64_t h = 1469598103934665603u;
    size_t size = fl_dtype_size(t->dtype);
    for (int64_t i = 0; i < fl_numel(t); i++) {
        const unsigned char *p = (const unsigned char *)place(t, i);
        bool nan = fl_dtype_is_float(t->dtype) &&
                   isnan(get(t, i)); /* the sign of a NaN is nobody's business */
        for (size_t k = 0; k < size; k++) h = (h ^ (nan ? 0xff : p[k])) * 1099511628211u;
    }
    return h;
}

/* Results of many calls, in a fixed order; returns how many. */
static int run_everything(fl_tensor **y) {
    int n = 0;
    fl_tensor *x = fresh(FL_SHAPE(300, 257), FL_F32, 1, true),
              *z = fl_transpose(fresh(FL_SHAPE(257, 300), FL_F32, 2, true), 0, 1);
    fl_tensor *calm = fresh(FL_SHAPE(300, 257), FL_F32, 3, false),
              *dy = fl_transpose(fresh(FL_SHAPE(257, 300), FL_F32, 4, false), 0, 1);
    fl_shape shape = FL_SHAPE(300, 257);
    for (fl_op op = 1; op < fl_op_count(); op++) {
        const fl_op_info *info = fl_op_get_info(op);
        fl_dtype d = gives(info->cls, FL_F32);
        if (info->arity && (!takes(info->cls, FL_F32) || !fl_backend_has(0, op))) continue;
        if (info->arity == 1) y[n++] = run_args(op, shape, d, NULL, 1, &x);
        if (info->arity == 2) y[n++] = run_args(op, shape, d, NULL, 2, (fl_tensor *[]){x, z});
        if (info->arity == 1 && smooth(op))
            y[n++] = run_args(FL_OP_grad1, shape, FL_F32, &(fl_grad_args){op}, 3,
                              (fl_tensor *[]){calm, calm, dy});
    }
    for (uint32_t axes = 0; axes < 4; axes++)
        for (int i = 0; i < 4; i++) {
            fl_op op = (fl_op[]){FL_OP_sum, FL_OP_prod, FL_OP_amax, FL_OP_amin}[i];
            y[n++] = run_args(op, reduced_shape(calm, axes), FL_F32, &(fl_reduce_args){axes, true}, 1,
                              &calm);
        }
    fl_tensor *long_one = fresh(FL_SHAPE(1000003), FL_F32, 8, false);
    y[n++] = run_args(FL_OP_sum, FL_SHAPE(1), FL_F32, &(fl_reduce_args){1, true}, 1, &long_one);
    /* of columns: rows are summed in the registers of the level, as those of layer norm are */
    const fl_axis_args columns = {0};
    y[n++] = run_args(fl_op_softmax, shape, FL_F32, &columns, 1, &calm);
    y[n++] = run_args(fl_op_log_softmax, shape, FL_F32, &columns, 1, &calm);
    fl_random_args normal = {FL_NORMAL, 0, 1, 0, 0, {3, 4}};
    y[n++] = run_args(FL_OP_random, FL_SHAPE(70001), FL_F32, &normal, 0, NULL);
    const adam_args adam = {0.01, 0.9, 0.99, 1e-8, 0.1, 0, false};
    fl_tensor *p = fl_clone(calm), *m = fl_clone(calm), *v = fl_abs(calm);
    CHECK(adam_step(p, calm, m, v, &adam));
    y[n++] = p;
    return n;
}

static void check_bits(fl_tensor **got, fl_tensor **want, int n) {
    for (int i = 0; i < n; i++)
        if (!CHECK(hash_of(got[i]) == hash_of(want[i]))) printf("call %d\n", i);
}

TEST(bits_do_not_depend_on_threads) {
    static const int threads[] = {2, 3, 8};
    fl_tensor *want[256], *got[256];
    for (int level = FL__PORTABLE; level <= FL__AVX512; level++) {
        fl_scope s = fl_scope_begin();
        fl__level_cap(level);
        CHECK(fl_set_threads(1));
        int n = run_everything(want);
        CHECK(n > 60 && n <= 256);
        for (int t = 0; t < (level == FL__AVX512 ? 3 : 1); t++) {
            CHECK(fl_set_threads(threads[t]));
            CHECK_EQ_INT(run_everything(got), n);
            check_bits(got, want, n);
        }
        fl_scope_end(&s);
    }
}

static bool near_everywhere(const fl_tensor *got, const fl_tensor *want) {
    for (int64_t i = 0; i < fl_numel(want); i++) {
        const double a = get(got, i), b = get(want, i);
        if (!(a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= 2e-6 * (fabs(b) + 1))) return false;
    }
    return true;
}

TEST(levels_differ_by_rounding_only) {
    fl_tensor *portable[256], *avx2[256], *avx512[256];
    fl__level_cap(FL__PORTABLE);
    int n = run_everything(portable);
    fl__level_cap(FL__AVX2);
    CHECK_EQ_INT(run_everything(avx2), n);
    fl__level_cap(FL__AVX512);
    CHECK_EQ_INT(run_everything(avx512), n);
    check_bits(avx512, avx2, n);
    for (int i = 0; i < n; i++)
        if (!CHECK(near_everywhere(avx2[i], portable[i]))) printf("call %d\n", i);
}

TEST(dtypes_without_kernel_fail) {
    test_errors_return();
    fl_tensor *x = fl_empty(FL_SHAPE(3), FL_U8);
    CHECK(!run_args(FL_OP_exp, FL_SHAPE(3), FL_U8, NULL, 1, &x));
    CHECK_ERROR("exp: the cpu has no kernel for u8");
    CHECK(!run_args(FL_OP_cumsum, FL_SHAPE(3), FL_U8, &(fl_axis_args){0}, 1, &x));
    CHECK_ERROR("cumsum: the cpu has no kernel for u8");
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
