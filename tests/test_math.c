/* test_math.c - kernels/fl_math.h and fl_primitives.h: error bounds over all floats, special values, the
   same bits everywhere

     test_math [filter]        a strided set of floats and every exponent boundary: seconds
     test_math --all [names]   every float for each one-argument f32 function, or those whose names
                               start so: a minute each

   Each sweep prints the largest error in ulp, where it is, and a hash of all results: the hashes
   of builds by different compilers must be equal. References are libm's double functions, or
   exact arithmetic written out by hand. */
#include "test.h"

#define MAX(a, b) own_macro /* of the program: must survive fl_primitives.h */
#include "../kernels/fl_math.h"
#include "../kernels/fl_primitives.h"

#include <float.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the vocabulary: one text, expanded as scalar C and as another backend's calls ---- */

#define FL_FN(name) flm_##name##_f32
static float sigmoid(float x) { return DIV(CONST(1), ADD(CONST(1), EXP(NEG(x)))); }
static float larger(float x, float y) { return MAX(x, y); }
static float clipped(float x) {
    return SELECT(AND(LE(CONST(-1), x), NOT(LT(CONST(1), x))), x, CONST(0));
}
#undef FL_FN

enum { own_macro = 99 };
static int calls_of_add, calls_of_mul;
static int count_add(int a, int b) { return calls_of_add++, a + b; }
static int count_mul(int a, int b) { return calls_of_mul++, a * b; }

#define FL_FN(name) count_##name
static int polynomial(int x) { return ADD(MUL(x, x), ADD(MUL(x, 3), 5)); }

#define FL_PRIMITIVES_END
#include "../kernels/fl_primitives.h"
#if defined(ADD) || defined(CONST) || defined(FL_FN) || defined(FL_PRIMITIVES_END) || !defined(MAX)
#error "fl_primitives.h left words behind or lost the program's MAX"
#endif

TEST(words_expand_to_any_set_of_functions) {
    CHECK_NEAR(sigmoid(0.0f), 0.5, 0);
    CHECK_NEAR(sigmoid(2.0f), 1 / (1 + exp(-2.0)), 1e-7);
    CHECK_NEAR(larger(2.0f, 3.0f), 3, 0);
    CHECK_EQ_INT(MAX(2, 3), own_macro);
    CHECK_NEAR(clipped(0.5f), 0.5, 0);
    CHECK_NEAR(clipped(1.5f), 0, 0);
    CHECK_NEAR(clipped(-1.5f), 0, 0);
    CHECK_EQ_INT(polynomial(7), 75);
    CHECK_EQ_INT(calls_of_add, 2);
    CHECK_EQ_INT(calls_of_mul, 2);
}

/* ---- loops over every f32 function, plain and fused (f32_fma), at every ISA level that the
   compiler and the machine have: the fused ones above the base only ---- */

typedef void (*loop1)(float *y, const float *x, int n);
typedef void (*loop2)(float *y, const float *a, const float *b, int n);
enum { BASE, AVX2, AVX512, LEVELS };

#if defined(__x86_64__)
#define TARGET(isa) __attribute__((target(isa)))
static bool has_level(int level) {
    if (level == AVX512) return __builtin_cpu_supports("avx512f");
    if (level == AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return true;
}
#else
#define TARGET(isa)
static bool has_level(int level) { return level == BASE; }
#endif

#define LOOP1(name, t, level)                                                                      \
    static void name##_##t##_##level(float *restrict y, const float *restrict x, int n) {          \
        for (int i = 0; i < n; i++) y[i] = flm_##name##_##t(x[i]);                                 \
    }
#define LOOP2(name, t, level)                                                                      \
    static void name##_##t##_##level(float *restrict y, const float *restrict a,                   \
                                     const float *restrict b, int n) {                             \
        for (int i = 0; i < n; i++) y[i] = flm_##name##_##t(a[i], b[i]);                           \
    }
#define ONE1(name, t)                                                                              \
    __attribute__((noinline)) static float name##_##t(float x) { return flm_##name##_##t(x); }
#define ONE2(name, t)                                                                              \
    __attribute__((noinline)) static float name##_##t(float a, float b) {                          \
        return flm_##name##_##t(a, b);                                                             \
    }
#define UPPER(LOOP, name, t)                                                                       \
    TARGET("avx2,fma") LOOP(name, t, avx2) TARGET("avx512f,fma") LOOP(name, t, avx512)
#define LOOPS(ONE, LOOP, name)                                                                     \
    ONE(name, f32) LOOP(name, f32, base) UPPER(LOOP, name, f32)                                    \
    TARGET("avx2,fma") ONE(name, f32_fma) UPPER(LOOP, name, f32_fma)
#define LOOPS1(name) LOOPS(ONE1, LOOP1, name)
#define LOOPS2(name) LOOPS(ONE2, LOOP2, name)

FL_KERNEL_BEGIN
LOOPS1(abs)
LOOPS1(sqrt)
LOOPS1(exp)
LOOPS1(log)
LOOPS1(log1p)
LOOPS1(expm1)
LOOPS1(tanh)
LOOPS1(erf)
LOOPS1(sin)
LOOPS1(cos)
LOOPS1(floor)
LOOPS1(rint)
LOOPS2(atan2)
LOOPS2(pow)
LOOPS2(remainder)
LOOPS2(maximum)
LOOPS2(minimum)
ONE1(exp_share, f32)
TARGET("avx2,fma") ONE1(exp_share, f32_fma)
FL_KERNEL_END

/* Functions of each kind come in pairs, the plain one first. */
typedef struct {
    const char *name;
    float (*one)(float);
    loop1 loop[LEVELS];
    double (*ref)(double);
    double bound; /* ulp; what is promised is 2 for exp and log, 4 for the others */
} unary;

#define ROWS(name, ref, bound)                                                                     \
    { #name, name##_f32, { name##_f32_base, name##_f32_avx2, name##_f32_avx512 }, ref, bound },    \
    { #name "_fma", name##_f32_fma, { NULL, name##_f32_fma_avx2, name##_f32_fma_avx512 },          \
      ref, bound }
static const unary unaries[] = {
    ROWS(abs, fabs, 0),      ROWS(floor, floor, 0),  ROWS(rint, rint, 0),
    ROWS(exp, exp, 1.05),    ROWS(log, log, 1),      ROWS(sqrt, sqrt, 0.501),
    ROWS(log1p, log1p, 1.5), ROWS(expm1, expm1, 2),  ROWS(tanh, tanh, 3),
    ROWS(erf, erf, 2.25),    ROWS(sin, sin, 0.51),   ROWS(cos, cos, 0.51),
};
enum { N_UNARY = sizeof unaries / sizeof *unaries };

/* Bits of x with one NaN: which operand's payload survives is the machine's choice. */
static uint32_t bits(float x) { return x != x ? 0x7fc00000u : flm__bits32(x); }

/* |y - ref| in units of the float spacing at ref; infinity counts as 2^128; 1e9 where NaN or the
   sign of 0 is wrong */
static double ulp_error(float y, double ref) {
    double diff;
    int e;
    if (y != y || ref != ref) return y != y && ref != ref ? 0 : 1e9;
    if (!signbit(y) != !signbit(ref)) return 1e9;
    if (y == ref) return 0;
    ref = fmin(fmax(ref, -0x1p128), 0x1p128);
    e = (int)(flm__bits64(ref) >> 52 & 0x7ff) - 1023;
    e = e < -126 ? -126 : e > 127 ? 127 : e;
    diff = fabs((isinf(y) ? copysign(0x1p128, y) : y) - ref);
    return diff * flm__double((uint64_t)(1023 + 23 - e) << 52);
}

/* ---- sweeps ---- */

enum { STEP = 4093, NEAR = 4, BLOCK = 4096 };
static bool all_floats;
static char **chosen; /* start of the name of a function, or NULL */

static uint64_t n_strided(void) {
    return all_floats ? UINT64_C(1) << 32 : (UINT64_C(1) << 32) / STEP + 1;
}
static uint64_t n_samples(void) { return n_strided() + 512 * (2 * NEAR + 1); }

/* The strided floats, then those next to 2^e for every sign and exponent. */
static float sample(uint64_t k) {
    uint32_t rest;
    if (k < n_strided()) return flm__float((uint32_t)(k * (all_floats ? 1 : STEP)));
    rest = (uint32_t)(k - n_strided());
    return flm__float((rest / (2 * NEAR + 1) << 23) + rest % (2 * NEAR + 1) - NEAR);
}

static uint64_t mixed(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

typedef struct {
    const unary *f;
    atomic_uint_fast64_t *next; /* block to take */
    double worst;
    float worst_x;
    uint64_t hash;
    int64_t split; /* results whose bits depend on the loop */
} sweep;

static int64_t count_split(const float *y, const float *z, int n) {
    int64_t split = 0;
    if (memcmp(y, z, (size_t)n * sizeof *y) == 0) return 0;
    for (int i = 0; i < n; i++) split += bits(y[i]) != bits(z[i]);
    return split;
}

/* Single calls are compared with the loops on the strided set only: they would double the time
   of --all. */
static void sweep_block(sweep *s, uint64_t begin, int n) {
    float x[BLOCK], y[BLOCK], z[BLOCK];
    for (int i = 0; i < n; i++) x[i] = sample(begin + (uint64_t)i);
    int first = s->f->loop[BASE] ? BASE : AVX2;
    s->f->loop[first](y, x, n);
    for (int level = first + 1; level < LEVELS; level++) {
        if (!has_level(level)) continue;
        s->f->loop[level](z, x, n);
        s->split += count_split(y, z, n);
    }
    if (!all_floats) {
        for (int i = 0; i < n; i++) z[i] = s->f->one(x[i]);
        s->split += count_split(y, z, n);
    }
    for (int i = 0; i < n; i++) {
        double e = ulp_error(y[i], s->f->ref(x[i]));
        if (e > s->worst) s->worst = e, s->worst_x = x[i];
        s->hash += mixed((uint64_t)bits(x[i]) << 32 | bits(y[i]));
    }
}

static void *sweep_thread(void *arg) {
    sweep *s = arg;
    uint64_t total = n_samples(), begin;
    while ((begin = atomic_fetch_add(s->next, 1) * BLOCK) < total)
        sweep_block(s, begin, total - begin < BLOCK ? (int)(total - begin) : BLOCK);
    return NULL;
}

static void sweep_function(const unary *f) {
    atomic_uint_fast64_t next = 0;
    sweep s[2] = { { .f = f, .next = &next }, { .f = f, .next = &next } };
    pthread_t thread;
    bool second = pthread_create(&thread, NULL, sweep_thread, &s[1]) == 0;
    sweep_thread(&s[0]);
    if (second) pthread_join(thread, NULL);
    if (s[1].worst > s[0].worst) s[0].worst = s[1].worst, s[0].worst_x = s[1].worst_x;
    printf("  flm_%-9s max %.3f ulp at %-15a bits %016llx\n", f->name, s[0].worst,
           (double)s[0].worst_x, (unsigned long long)(s[0].hash + s[1].hash));
    fflush(stdout);
    CHECK(s[0].worst <= f->bound);
    CHECK_EQ_INT(s[0].split + s[1].split, 0);
}

static bool is_chosen(const char *name) {
    for (char **c = chosen; c && *c; c++)
        if (strncmp(name, *c, strlen(*c)) == 0) return true;
    return !chosen || !*chosen;
}

TEST(one_argument_functions_meet_their_bounds_at_every_isa_level) {
    for (int i = 0; i < N_UNARY; i++)
        if ((unaries[i].loop[BASE] || has_level(AVX2)) && is_chosen(unaries[i].name))
            sweep_function(&unaries[i]);
}

/* Within an ulp of e^x, but that it may be 0 from where denormals begin and is from -87.7 on. */
TEST(exponentials_of_shares) {
    float (*const share[])(float) = { exp_share_f32, exp_share_f32_fma };
    for (int fused = 0; fused <= has_level(AVX2) && is_chosen("exp_share"); fused++)
        for (uint64_t k = 0; k < n_samples(); k++) {
            float x = sample(k), y;
            if (x > 1) continue;
            y = share[fused](x);
            CHECK(x < -87.7f ? y == 0 : ulp_error(y, exp(x)) <= 1.05 || (x < -87.33f && y == 0));
        }
}

/* 16367173 * 2^72 is nearer to a multiple of pi/2 than any other float: 1.6e-9. */
TEST(sin_and_cos_of_huge_arguments) {
    static const float x[] = { 0x1.f37c8ap+95f, 3.14159274f, 1.57079637f, 1e22f, 3e38f, FLT_MAX };
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        CHECK(ulp_error(sin_f32(x[i]), sin(x[i])) <= 0.51);
        CHECK(ulp_error(cos_f32(x[i]), cos(x[i])) <= 0.51);
        CHECK(sin_f32(-x[i]) == -sin_f32(x[i]) && cos_f32(-x[i]) == cos_f32(x[i]));
    }
    CHECK_NEAR(cos_f32(x[0]), 0, 1.7e-9);
}

/* The fused sibling of a plain function, where it runs. */
static float (*fused_one(float (*f)(float)))(float) {
    for (int i = 0; has_level(AVX2) && i < N_UNARY; i++)
        if (unaries[i].one == f) return unaries[i + 1].one;
    return f;
}

TEST(special_values) {
    static const struct {
        float (*f)(float);
        float x, y;
    } cases[] = {
        { exp_f32, 0.0f, 1.0f },               { exp_f32, -0.0f, 1.0f },
        { exp_f32, INFINITY, INFINITY },       { exp_f32, -INFINITY, 0.0f },
        { exp_f32, 0x1.62e42ep6f, 0x1.ffff08p127f }, { exp_f32, 88.722847f, INFINITY },
        { exp_f32, -103.97207f, 0x1p-149f },   { exp_f32, -103.97212f, 0.0f },
        { exp_f32, FLT_MAX, INFINITY },        { exp_f32, -FLT_MAX, 0.0f },
        { exp_f32, 0x1p-149f, 1.0f },          { log_f32, 1.0f, 0.0f },
        { log_f32, 0.0f, -INFINITY },          { log_f32, -0.0f, -INFINITY },
        { log_f32, INFINITY, INFINITY },       { log_f32, -INFINITY, NAN },
        { log_f32, -0x1p-149f, NAN },          { log_f32, -1.0f, NAN },
        { log_f32, 0x1p-149f, -103.27893f },   { log_f32, FLT_MAX, 88.72284f },
        { log1p_f32, -1.0f, -INFINITY },       { log1p_f32, -1.0000001f, NAN },
        { log1p_f32, -0.0f, -0.0f },           { log1p_f32, 0.0f, 0.0f },
        { log1p_f32, INFINITY, INFINITY },     { log1p_f32, -INFINITY, NAN },
        { log1p_f32, 0x1p-149f, 0x1p-149f },   { log1p_f32, FLT_MAX, 88.72284f },
        { expm1_f32, -0.0f, -0.0f },           { expm1_f32, 0x1p-149f, 0x1p-149f },
        { expm1_f32, -INFINITY, -1.0f },       { expm1_f32, INFINITY, INFINITY },
        { expm1_f32, 88.722847f, INFINITY },   { expm1_f32, -FLT_MAX, -1.0f },
        { tanh_f32, -0.0f, -0.0f },            { tanh_f32, -0x1p-149f, -0x1p-149f },
        { tanh_f32, INFINITY, 1.0f },          { tanh_f32, -INFINITY, -1.0f },
        { tanh_f32, FLT_MAX, 1.0f },           { erf_f32, -0.0f, -0.0f },
        { erf_f32, INFINITY, 1.0f },           { erf_f32, -INFINITY, -1.0f },
        { erf_f32, FLT_MAX, 1.0f },            { erf_f32, -FLT_MAX, -1.0f },
        { sqrt_f32, -0.0f, -0.0f },            { sqrt_f32, -1.0f, NAN },
        { sqrt_f32, INFINITY, INFINITY },      { sqrt_f32, 0x1p-148f, 0x1p-74f },
        { sin_f32, -0.0f, -0.0f },             { sin_f32, INFINITY, NAN },
        { sin_f32, -INFINITY, NAN },           { sin_f32, 0x1p-149f, 0x1p-149f },
        { cos_f32, 0.0f, 1.0f },               { cos_f32, INFINITY, NAN },
        { floor_f32, -0.0f, -0.0f },           { floor_f32, -0x1p-149f, -1.0f },
        { floor_f32, 0.99999994f, 0.0f },      { floor_f32, -INFINITY, -INFINITY },
        { floor_f32, FLT_MAX, FLT_MAX },       { rint_f32, 0.5f, 0.0f },
        { rint_f32, 1.5f, 2.0f },              { rint_f32, 2.5f, 2.0f },
        { rint_f32, -0.5f, -0.0f },            { rint_f32, -2.5f, -2.0f },
        { rint_f32, 8388607.5f, 8388608.0f },  { rint_f32, INFINITY, INFINITY },
        { abs_f32, -0.0f, 0.0f },              { abs_f32, -INFINITY, INFINITY },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double x = cases[i].x, y = cases[i].f(cases[i].x), expected = cases[i].y;
        double fused = fused_one(cases[i].f)(cases[i].x);
        if (!CHECK(bits((float)y) == bits((float)expected) && bits((float)fused) == bits((float)y)))
            printf("  case %zu: f(%a) = %a, fused %a, not %a\n", i, x, y, fused, expected);
    }
    for (int i = 0; i < N_UNARY; i += 2)
        CHECK(isnan(unaries[i].one(NAN)) && isnan(fused_one(unaries[i].one)(NAN)));
}

/* ---- two arguments ---- */

/* a - b floor(a / b) by way of the IEEE remainder, which is exact */
static double ref_remainder(double a, double b) {
    double r = remainder(a, b);
    return r != 0 && !signbit(r) != !signbit(b) ? r + b : r;
}

static double ref_maximum(double a, double b) {
    if (isnan(a) || isnan(b)) return NAN;
    if (a == b) return signbit(a) ? b : a;
    return a < b ? b : a;
}

static double ref_minimum(double a, double b) { return -ref_maximum(-a, -b); }

typedef struct {
    const char *name;
    float (*one)(float, float);
    loop2 loop[LEVELS];
    double (*ref)(double, double);
    double bound;
} binary;

static const binary binaries[] = {
    ROWS(atan2, atan2, 0.51),
    ROWS(pow, pow, 4),
    ROWS(remainder, ref_remainder, 0.501),
    ROWS(maximum, ref_maximum, 0),
    ROWS(minimum, ref_minimum, 0),
};

enum { N_EDGES = 40, N_PAIRS = 1 << 17 };

static int edges(float *x) {
    static const float positive[N_EDGES / 2] = {
        0.0f, 0x1p-149f, 0x1p-127f, FLT_MIN, 1e-20f, 0.1f, 0.5f, 0.99999994f, 1.0f, 1.0000001f,
        1.5f, 2.0f, 2.5f, 3.0f, 127.0f, 16777215.0f, 16777216.0f, 1e20f, FLT_MAX, INFINITY };
    for (int i = 0; i < N_EDGES / 2; i++) x[2 * i] = positive[i], x[2 * i + 1] = -positive[i];
    x[N_EDGES] = NAN;
    return N_EDGES + 1;
}

/* Edge grid, pairs of any bits, then pairs that keep pow in range: a in (0, 100), |b| <= 20,
   every other one whole. */
static int pairs(float *a, float *b) {
    float e[N_EDGES + 1];
    int n_edges = edges(e), n = 0;
    for (int i = 0; i < n_edges; i++)
        for (int j = 0; j < n_edges; j++) a[n] = e[i], b[n++] = e[j];
    for (; n < N_PAIRS; n++) {
        uint32_t w[4];
        flm_philox(7, (uint64_t)n, w);
        a[n] = n % 2 ? flm__float(w[0]) : flm_uniform_f32(w[0]) * (n % 4 ? 100.0f : -100.0f);
        b[n] = n % 2 ? flm__float(w[1]) : (flm_uniform_f32(w[1]) - 0.5f) * 40.0f;
        if (n % 8 < 4) b[n] = rintf(b[n]);
    }
    return n;
}

static void check_pairs(const binary *f, const float *a, const float *b, int n) {
    static float y[N_PAIRS], z[N_PAIRS];
    uint64_t hash = 0;
    int64_t split = 0;
    double worst = 0;
    int at = 0;
    for (int i = 0; i < n; i++) {
        double e = ulp_error(y[i] = f->one(a[i], b[i]), f->ref(a[i], b[i]));
        if (e > worst) worst = e, at = i;
        hash += mixed((uint64_t)i << 32 | bits(y[i]));
    }
    for (int level = 0; level < LEVELS; level++) {
        if (!has_level(level) || !f->loop[level]) continue;
        f->loop[level](z, a, b, n);
        split += count_split(y, z, n);
    }
    printf("  flm_%-13s max %.3f ulp at (%a, %a) bits %016llx\n", f->name, worst, (double)a[at],
           (double)b[at], (unsigned long long)hash);
    CHECK(worst <= f->bound);
    CHECK_EQ_INT(split, 0);
}

TEST(two_argument_functions_on_edges_and_random_pairs) {
    static float a[N_PAIRS], b[N_PAIRS];
    int n = pairs(a, b);
    for (size_t i = 0; i < sizeof binaries / sizeof *binaries; i++)
        if (binaries[i].loop[BASE] || has_level(AVX2)) check_pairs(&binaries[i], a, b, n);
}

/* ---- f64 ---- */

TEST(f64_special_rules) {
    static const double x[] = { 0.0, 0.3, 0.5, 0.99999999999999989, 1.5, 2.5, 3.0, 1e300, 0x1p-1074,
                                4503599627370495.5, 4503599627370496.0, DBL_MAX, INFINITY };
    for (size_t i = 0; i < 2 * (sizeof x / sizeof *x); i++) {
        double a = i % 2 ? -x[i / 2] : x[i / 2], r = flm_rint_f64(a), f = flm_floor_f64(a);
        CHECK(r == rint(a) && !signbit(r) == !signbit(a));
        CHECK(f == floor(a) && !signbit(f) == !signbit(floor(a)));
        for (size_t j = 0; j < 2 * (sizeof x / sizeof *x); j++) {
            double b = j % 2 ? -x[j / 2] : x[j / 2];
            CHECK(flm__bits64(flm_maximum_f64(a, b)) == flm__bits64(ref_maximum(a, b)));
            CHECK(flm__bits64(flm_minimum_f64(a, b)) == flm__bits64(ref_minimum(a, b)));
        }
        CHECK(isnan(flm_maximum_f64(a, NAN)) && isnan(flm_maximum_f64(NAN, a)));
        CHECK(isnan(flm_minimum_f64(a, NAN)) && isnan(flm_minimum_f64(NAN, a)));
    }
    CHECK(isnan(flm_rint_f64(NAN)) && isnan(flm_floor_f64(NAN)));
    CHECK_NEAR(flm_remainder_f64(-7, 3), 2, 0);
    CHECK_NEAR(flm_remainder_f64(7, -3), -2, 0);
    CHECK_NEAR(flm_remainder_f64(5.5, 2), 1.5, 0);
    CHECK(isnan(flm_remainder_f64(1, 0)) && isinf(flm_remainder_f64(-1, INFINITY)));
    CHECK(flm_sqrt_f64(2) == sqrt(2.0) && isnan(flm_sqrt_f64(-1)));
}

TEST(f64_functions_are_the_ones_they_say) {
    CHECK_NEAR(flm_exp_f64(1), 2.718281828459045, 1e-15);
    CHECK_NEAR(flm_log_f64(10), 2.302585092994046, 1e-15);
    CHECK_NEAR(flm_log1p_f64(1e-10), 9.9999999995e-11, 1e-25);
    CHECK_NEAR(flm_expm1_f64(1e-10), 1.00000000005e-10, 1e-25);
    CHECK_NEAR(flm_sin_f64(1), 0.8414709848078965, 1e-15);
    CHECK_NEAR(flm_cos_f64(1), 0.5403023058681398, 1e-15);
    CHECK_NEAR(flm_tanh_f64(0.5), 0.46211715726000973, 1e-15);
    CHECK_NEAR(flm_erf_f64(0.5), 0.5204998778130465, 1e-15);
    CHECK_NEAR(flm_atan2_f64(1, -1), 2.356194490192345, 1e-15);
    CHECK_NEAR(flm_pow_f64(2, 0.5), 1.4142135623730951, 1e-15);
    CHECK_NEAR(flm_abs_f64(-3), 3, 0);
    CHECK_NEAR(flm_sub_f64(7, 2), 5, 0);
    CHECK_NEAR(flm_div_f32(flm_mul_f32(6, 2), flm_add_f32(1, 2)), 4, 0);
    CHECK(flm_bitwise_xor_f32(1, 0) && !flm_bitwise_xor_f64(1, 1) && flm_bitwise_or_f32(0, 1));
    CHECK(!flm_lt_f32(NAN, 1) && !flm_le_f32(1, NAN) && !flm_eq_f64(NAN, NAN));
    CHECK(flm_eq_f32(-0.0f, 0.0f));
}

/* ---- integers and booleans ---- */

__extension__ typedef __int128 wide;
__extension__ typedef unsigned __int128 uwide;

static wide floor_div(wide a, wide b) {
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

TEST(i64_wraps_and_rounds_down) {
    static const int64_t x[] = { INT64_MIN, INT64_MIN + 1, -4294967297, -7, -3, -2, -1, 0, 1, 2, 3,
                                 7, 4294967296, INT64_MAX - 1, INT64_MAX };
    enum { N = sizeof x / sizeof *x };
    for (int i = 0; i < N * N; i++) {
        int64_t a = x[i / N], b = x[i % N];
        wide q = b ? floor_div(a, b) : 0;
        CHECK(flm_add_i64(a, b) == (int64_t)((wide)a + b));
        CHECK(flm_sub_i64(a, b) == (int64_t)((wide)a - b));
        CHECK(flm_mul_i64(a, b) == (int64_t)((wide)a * b));
        CHECK(flm_div_i64(a, b) == (int64_t)q);
        CHECK(flm_remainder_i64(a, b) == (b ? (int64_t)(a - q * b) : 0));
        CHECK(flm_maximum_i64(a, b) == (a < b ? b : a) && flm_minimum_i64(a, b) == (a < b ? a : b));
        CHECK(flm_lt_i64(a, b) == (a < b) && flm_le_i64(a, b) == (a <= b));
        CHECK(flm_eq_i64(a, b) == (a == b));
        CHECK(flm_where_i64(flm_lt_i64(a, b), a, b) == (a < b ? a : b));
        CHECK((flm_bitwise_or_i64(a, b) ^ flm_bitwise_and_i64(a, b)) == flm_bitwise_xor_i64(a, b));
        CHECK(flm_bitwise_and_i64(a, flm_bitwise_not_i64(a)) == 0);
        CHECK(flm_bitwise_and_i64(a, -1) == a);
    }
    CHECK_EQ_INT(flm_neg_i64(INT64_MIN), INT64_MIN);
    CHECK_EQ_INT(flm_abs_i64(INT64_MIN), INT64_MIN);
    CHECK_EQ_INT(flm_abs_i64(-5), 5);
    CHECK_EQ_INT(flm_floor_i64(-5), -5);
    CHECK_EQ_INT(flm_rint_i64(7), 7);
    CHECK_EQ_INT(flm_num_i64(-3), -3);
}

TEST(i64_shifts) {
    for (int n = 0; n < 64; n++) {
        CHECK(flm_shift_left_i64(-3, n) == (int64_t)(UINT64_C(0) - 3 * (UINT64_C(1) << n)));
        CHECK(flm_shift_right_i64(INT64_MIN + 1, n) == (int64_t)floor_div(INT64_MIN + 1, (wide)1 << n));
        CHECK(flm_shift_right_i64(INT64_MAX, n) == (int64_t)(INT64_MAX / ((wide)1 << n)));
    }
    static const int64_t past[] = { 64, 65, INT64_MAX, -1, INT64_MIN };
    for (size_t i = 0; i < sizeof past / sizeof *past; i++) {
        CHECK_EQ_INT(flm_shift_left_i64(-1, past[i]), 0);
        CHECK_EQ_INT(flm_shift_right_i64(-5, past[i]), -1);
        CHECK_EQ_INT(flm_shift_right_i64(5, past[i]), 0);
    }
}

TEST(i64_powers) {
    for (int64_t a = -9; a <= 9; a++) {
        uint64_t product = 1;
        for (int64_t n = 0; n < 80; n++, product *= (uint64_t)a)
            CHECK(flm_pow_i64(a, n) == (int64_t)product);
    }
    CHECK_EQ_INT(flm_pow_i64(3, INT64_C(1) << 62), 1); /* 3 has order 2^62 mod 2^64 */
    CHECK_EQ_INT(flm_pow_i64(1, -5), 1);
    CHECK_EQ_INT(flm_pow_i64(-1, -5), -1);
    CHECK_EQ_INT(flm_pow_i64(-1, -6), 1);
    CHECK_EQ_INT(flm_pow_i64(-1, INT64_MIN), 1);
    CHECK_EQ_INT(flm_pow_i64(2, -1), 0);
    CHECK_EQ_INT(flm_pow_i64(0, -1), 0);
}

TEST(b8_truth_tables) {
    for (int i = 0; i < 4; i++) {
        uint8_t a = (uint8_t)(i / 2), b = (uint8_t)(i % 2);
        CHECK_EQ_INT(flm_add_b8(a, b), a || b);
        CHECK_EQ_INT(flm_mul_b8(a, b), a && b);
        CHECK_EQ_INT(flm_maximum_b8(a, b), a || b);
        CHECK_EQ_INT(flm_minimum_b8(a, b), a && b);
        CHECK_EQ_INT(flm_bitwise_and_b8(a, b), a && b);
        CHECK_EQ_INT(flm_bitwise_or_b8(a, b), a || b);
        CHECK_EQ_INT(flm_bitwise_xor_b8(a, b), a != b);
        CHECK_EQ_INT(flm_bitwise_not_b8(a), !a);
        CHECK_EQ_INT(flm_shift_left_b8(a, b), a << b != 0);
        CHECK_EQ_INT(flm_shift_right_b8(a, b), a >> b);
        CHECK_EQ_INT(flm_lt_b8(a, b), a < b);
        CHECK_EQ_INT(flm_le_b8(a, b), a <= b);
        CHECK_EQ_INT(flm_eq_b8(a, b), a == b);
        CHECK_EQ_INT(flm_where_b8(1, a, b), a);
    }
    CHECK_EQ_INT(flm_num_b8(0.5), 1);
    CHECK_EQ_INT(flm_num_b8(0), 0);
}

TEST(casts_saturate_and_nan_is_zero) {
    CHECK_EQ_INT(flm_f32_to_i64(NAN), 0);
    CHECK_EQ_INT(flm_f32_to_i64(INFINITY), INT64_MAX);
    CHECK_EQ_INT(flm_f32_to_i64(-INFINITY), INT64_MIN);
    CHECK_EQ_INT(flm_f32_to_i64(0x1p63f), INT64_MAX);
    CHECK_EQ_INT(flm_f32_to_i64(-0x1p63f), INT64_MIN);
    CHECK_EQ_INT(flm_f32_to_i64(0x1.fffffep62f), 0x7fffff8000000000);
    CHECK_EQ_INT(flm_f32_to_i64(-2.9f), -2);
    CHECK_EQ_INT(flm_f64_to_i64(1e19), INT64_MAX);
    CHECK_EQ_INT(flm_f64_to_i64(-1e19), INT64_MIN);
    CHECK_EQ_INT(flm_f64_to_i64(NAN), 0);
    CHECK_EQ_INT(flm_f64_to_i64(2.9), 2);
    CHECK_EQ_INT(flm_f32_to_i32(3e9f), INT32_MAX);
    CHECK_EQ_INT(flm_f32_to_i32(-3e9f), INT32_MIN);
    CHECK_EQ_INT(flm_f64_to_i32(2147483646.9), 2147483646);
    CHECK_EQ_INT(flm_f64_to_i32(-2147483648.9), INT32_MIN);
    CHECK_EQ_INT(flm_f32_to_i32(NAN), 0);
    CHECK_EQ_INT(flm_f32_to_i8(-128.9f), -128);
    CHECK_EQ_INT(flm_f32_to_i8(127.9f), 127);
    CHECK_EQ_INT(flm_f32_to_i16(-40000.0f), INT16_MIN);
    CHECK_EQ_INT(flm_f32_to_u16(65535.9f), UINT16_MAX);
    CHECK_EQ_INT(flm_f64_to_u32(-1.0), 0);
    CHECK_EQ_INT(flm_f64_to_u32(4294967295.5), UINT32_MAX);
    CHECK(flm_f64_to_u64(0x1p64) == UINT64_MAX && flm_f64_to_u64(0x1p63) == (uint64_t)1 << 63);
    CHECK(flm_u64_to_f32(UINT64_MAX) == 0x1p64f && flm_u64_to_f64((uint64_t)1 << 63) == 0x1p63);
    CHECK_EQ_INT(flm_i64_to_i8(200), -56);
    CHECK_EQ_INT(flm_f32_to_u8(-0.9f), 0);
    CHECK_EQ_INT(flm_f32_to_u8(-7.0f), 0);
    CHECK_EQ_INT(flm_f32_to_u8(254.9f), 254);
    CHECK_EQ_INT(flm_f32_to_u8(255.5f), 255);
    CHECK_EQ_INT(flm_f64_to_u8(1e9), 255);
    CHECK_EQ_INT(flm_f64_to_u8(NAN), 0);
    CHECK_EQ_INT(flm_f32_to_b8(NAN), 1);
    CHECK_EQ_INT(flm_f32_to_b8(-0.0f), 0);
    CHECK_EQ_INT(flm_f64_to_b8(1e-320), 1);
    CHECK_EQ_INT(flm_i64_to_b8(256), 1);
    CHECK_EQ_INT(flm_i64_to_u8(257), 1);
    CHECK_EQ_INT(flm_i64_to_i32(INT64_C(0x180000000)), INT32_MIN);
    CHECK(flm_i64_to_f32(16777217) == 16777216.0f && flm_f64_to_f32(1e300) == INFINITY);
    CHECK(flm_b8_to_f32(1) == 1.0f && flm_b8_to_i64(1) == 1);
    CHECK(flm_f32_to_f64(0.1f) == (double)0.1f);
}

/* ---- randomness ---- */

TEST(philox_known_answers) { /* Random123's kat_vectors, philox4x32 10 */
    uint32_t w[4];
    flm_philox(0, 0, w);
    CHECK(w[0] == 0x6627e8d5 && w[1] == 0xe169c58d && w[2] == 0xbc57ac4c && w[3] == 0x9b00dbd8);
    flm_philox_stream(UINT64_MAX, UINT64_MAX, UINT64_MAX, w);
    CHECK(w[0] == 0x408f276d && w[1] == 0x41c83b0e && w[2] == 0xa20bc7c6 && w[3] == 0x6d5451fd);
    flm_philox_stream(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, w);
    CHECK(w[0] == 0xd16cfe09 && w[1] == 0x94fdcceb && w[2] == 0x5001e420 && w[3] == 0x24126ea1);
}

TEST(uniforms_stay_below_one) {
    CHECK(flm_uniform_f32(0) == 0 && flm_uniform_f32(UINT32_MAX) == 1 - 0x1p-24f);
    CHECK(flm_uniform_f32(0x80000000u) == 0.5f && flm_uniform_f32(0x100) == 0x1p-24f);
    CHECK(flm_uniform_f64(0, 0) == 0 && flm_uniform_f64(UINT32_MAX, UINT32_MAX) == 1 - 0x1p-53);
    CHECK(flm_uniform_f64(0, 0x40) == 0x1p-53 && flm_uniform_f64(0x20, 0) == 0x1p-27);
}

TEST(bounded_integers) {
    for (int i = 0; i < 1000; i++) {
        uint32_t w[4];
        uint64_t a, n;
        flm_philox(3, (uint64_t)i, w);
        a = (uint64_t)w[0] << 32 | w[1];
        n = ((uint64_t)w[2] << 32 | w[3]) >> (i % 64);
        CHECK(flm_bounded(w[0], w[1], n) == (uint64_t)((uwide)a * n >> 64));
    }
    CHECK(flm_bounded(UINT32_MAX, UINT32_MAX, 10) == 9 && flm_bounded(0, 0, 10) == 0);
    CHECK(flm_bounded(UINT32_MAX, UINT32_MAX, UINT64_MAX) == UINT64_MAX - 1);
    CHECK(flm_bounded(1, 1, 0) == 0);
}

TEST(normals_follow_box_muller) {
    double worst = 0;
    for (int i = 0; i < 100000; i++) {
        uint32_t w[4];
        float z[2];
        double d[2], radius, angle;
        flm_philox(5, (uint64_t)i, w);
        flm_normal_f32(w[0], w[1], z);
        radius = sqrt(-2 * log((float)(w[0] >> 1) * 0x1p-31f + 0x1p-32f));
        angle = (int32_t)(w[1] << 2) * 0x1p-31 * 0.7853981633974483;
        angle += (w[1] >> 30) * 1.5707963267948966;
        worst = fmax(worst, ulp_error(z[0], radius * cos(angle)));
        worst = fmax(worst, ulp_error(z[1], radius * sin(angle)));
        flm_normal_f64(w, d);
        radius = sqrt(-2 * log1p(-((w[0] >> 5) * 0x1p-27 + (w[1] >> 6) * 0x1p-53)));
        angle = ((w[2] >> 5) * 0x1p-27 + (w[3] >> 6) * 0x1p-53) * 2 * acos(-1.0);
        CHECK_NEAR(d[0], radius * cos(angle), 1e-13);
        CHECK_NEAR(d[1], radius * sin(angle), 1e-13);
    }
    printf("  flm_normal max %.3f ulp\n", worst);
    CHECK(worst <= 4);
}

/* Moments of 400,000 draws; a standard error of the fourth is 0.0155. */
TEST(normals_have_normal_moments) {
    double m32[5] = { 0 }, m64[5] = { 0 }, n = 400000;
    for (int i = 0; i < 200000; i++) {
        uint32_t w[4];
        float z[2];
        double d[2];
        flm_philox(6, (uint64_t)i, w);
        flm_normal_f32(w[0], w[1], z);
        flm_normal_f64(w, d);
        for (int k = 1; k <= 4; k++)
            for (int j = 0; j < 2; j++) m32[k] += pow(z[j], k) / n, m64[k] += pow(d[j], k) / n;
    }
    CHECK_NEAR(m32[1], 0, 0.007);
    CHECK_NEAR(m32[2], 1, 0.01);
    CHECK_NEAR(m32[3], 0, 0.03);
    CHECK_NEAR(m32[4], 3, 0.07);
    CHECK_NEAR(m64[1], 0, 0.007);
    CHECK_NEAR(m64[2], 1, 0.01);
    CHECK_NEAR(m64[3], 0, 0.03);
    CHECK_NEAR(m64[4], 3, 0.07);
}

TEST(normals_at_the_extreme_words) {
    static const uint32_t ends[2] = { 0, UINT32_MAX };
    for (int i = 0; i < 16; i++) {
        uint32_t w[4] = { ends[i & 1], ends[i >> 1 & 1], ends[i >> 2 & 1], ends[i >> 3] };
        float z[2];
        double d[2];
        flm_normal_f32(w[0], w[1], z);
        flm_normal_f64(w, d);
        CHECK(fabsf(z[0]) < 6.7f && fabsf(z[1]) < 6.7f && fabs(d[0]) < 8.6 && fabs(d[1]) < 8.6);
    }
}

/* >>halves: f16 has 10 bits of fraction and bias 15, bf16 has 7 and 127 */

/* The value of sixteen bits, from their definition. */
static double half_value(uint16_t bits, int fraction, int bias) {
    int exponent = (bits & 0x7fff) >> fraction, rest = bits & ((1 << fraction) - 1);
    double v = exponent == 2 * bias + 1 ? (rest ? NAN : INFINITY)
               : exponent == 0          ? ldexp(rest, 1 - bias - fraction)
                                        : ldexp((1 << fraction) + rest, exponent - bias - fraction);
    return bits & 0x8000 ? -v : v;
}

/* The bits nearest to v, ties to the even one: by search among all positive ones, whose order is
   that of their values. */
static uint16_t nearest_half(double v, int fraction, int bias) {
    int low = 0, high = (2 * bias + 1) << fraction; /* infinity stands for 2^(bias + 1) */
    double size = fabs(v), last = ldexp(1, bias + 1);
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (half_value((uint16_t)middle, fraction, bias) <= size) low = middle;
        else high = middle;
    }
    bool past = high == (2 * bias + 1) << fraction;
    double above = past ? last : half_value((uint16_t)high, fraction, bias);
    double down = size - half_value((uint16_t)low, fraction, bias), up = above - size;
    int best = isinf(v) || down > up || (down == up && low % 2) ? high : low;
    return (uint16_t)(best | (signbit(v) ? 0x8000 : 0));
}

static void check_half(float v) {
    uint16_t f16 = flm_f32_to_f16(v), bf16 = flm_f32_to_bf16(v);
    if (isnan(v)) {
        CHECK((f16 & 0x7fff) > 0x7c00 && (bf16 & 0x7fff) > 0x7f80);
        return;
    }
    CHECK_EQ_INT(f16, nearest_half((double)v, 10, 15));
    CHECK_EQ_INT(bf16, nearest_half((double)v, 7, 127));
}

TEST(halves) {
    for (uint32_t k = 0; k < 1 << 16; k++) {
        uint16_t bits = (uint16_t)k;
        double f16 = half_value(bits, 10, 15), bf16 = half_value(bits, 7, 127);
        double got = (double)flm_f16_to_f32(bits), brain = (double)flm_bf16_to_f32(bits);
        CHECK(isnan(f16) ? isnan(got) : got == f16 && signbit(got) == signbit(f16));
        CHECK(isnan(bf16) ? isnan(brain) : brain == bf16 && signbit(brain) == signbit(bf16));
        if (!isnan(f16)) CHECK_EQ_INT(flm_f32_to_f16(flm_f16_to_f32(bits)), bits);
        if (!isnan(bf16)) CHECK_EQ_INT(flm_f32_to_bf16(flm_bf16_to_f32(bits)), bits);
    }
    static const float edges[] = {
        65504,       65519.99f,       65520,       65536,     0x1p-24f,       0x1p-25f,
        0x1.8p-25f,  0x1.000002p-25f, 0x1p-14f,    0x1.ffcp-15f, 0x1.ffep-15f, 0x1.fep127f,
        0x1.fefffep127f, 0x1.ffp127f, 0x1p-133f,   0x1p-134f, 0x1.8p-134f,    INFINITY,
        NAN,         0,               1,           1.00048828125f, 1.00146484375f};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        check_half(edges[i]);
        check_half(-edges[i]);
    }
    for (uint32_t u = 0; u < UINT32_MAX - 8191; u += 8191) check_half(flm__float(u));
}

int main(int argc, char **argv) {
    all_floats = argc > 1 && strcmp(argv[1], "--all") == 0;
    if (all_floats) {
        setenv("TEST_TIMEOUT", "7200", 0);
        chosen = argv + 2;
        argc = 1;
    }
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
