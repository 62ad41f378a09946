/* arrays.h - host arrays with exact values of every dtype, and tensors of them in every layout

   What conformance and gradcheck share: values live on the host, and lay_out puts them behind the
   strides that a test wants. Memory of arrays lasts until pool_at is set back. */
#ifndef ARRAYS_H
#define ARRAYS_H

#include "../fl_all.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELPER __attribute__((unused)) static

/* >>operands: on the backend under test, which need not be the default one. An op that makes a constant on
   the default instead of its operands' backend fails then. The macros change the calls of the tests alone. */

static const char *operands_on; /* NULL: the default */

HELPER fl_tensor *as_operand(fl_tensor *t) {
    return t && operands_on ? fl_to(t, operands_on) : t;
}
#define fl_from_host(...) as_operand(fl_from_host(__VA_ARGS__))
#define fl_empty(...) as_operand(fl_empty(__VA_ARGS__))
#define fl_full(...) as_operand(fl_full(__VA_ARGS__))
#define fl_zeros(...) as_operand(fl_zeros(__VA_ARGS__))
#define fl_ones(...) as_operand(fl_ones(__VA_ARGS__))
#define fl_arange(...) as_operand(fl_arange(__VA_ARGS__))
#define fl_hann_window(...) as_operand(fl_hann_window(__VA_ARGS__))
#define fl_permutation(...) as_operand(fl_permutation(__VA_ARGS__))
#define fl_eye(...) as_operand(fl_eye(__VA_ARGS__))
#define fl_uniform(...) as_operand(fl_uniform(__VA_ARGS__))
#define fl_normal(...) as_operand(fl_normal(__VA_ARGS__))
#define fl_randint(...) as_operand(fl_randint(__VA_ARGS__))

HELPER int operand_backend(void) {
    return operands_on ? fl_backend_index(operands_on) : fl_backend_default();
}

/* >>arrays: row-major values on the host. f has every value as a double, i the integer ones
   exactly. */

typedef struct array {
    fl_shape shape;
    fl_dtype dtype;
    int64_t n;
    double *f;
    int64_t *i;
} array;

static char *pool;
static size_t pool_at;
enum { POOL_BYTES = 256 << 20 };

/* Zeroed memory until the end of the case. */
HELPER void *take(size_t bytes) {
    if (!pool) pool = malloc(POOL_BYTES);
    void *p = pool + pool_at;
    pool_at += (bytes + 63) / 64 * 64;
    if (!pool || pool_at > POOL_BYTES) {
        fprintf(stderr, "conformance: a case needs more than %d bytes\n", POOL_BYTES);
        exit(2);
    }
    return memset(p, 0, bytes);
}

HELPER bool is_float(fl_dtype d) {
    return d == FL_F16 || d == FL_BF16 || d == FL_F32 || d == FL_F64;
}

HELPER array new_array(fl_shape shape, fl_dtype dtype) {
    array a = {shape, dtype, 1, NULL, NULL};
    for (int d = 0; d < shape.ndim; d++) a.n *= shape.dim[d];
    a.f = take((size_t)a.n * sizeof *a.f);
    a.i = take((size_t)a.n * sizeof *a.i);
    return a;
}

/* What a float dtype can hold. */
typedef struct float_format {
    int digits, lowest; /* bits of a significand; exponent of the smallest denormal number */
    double largest;
} float_format;

HELPER float_format format_of(fl_dtype d) {
    return d == FL_F16    ? (float_format){11, -24, 65504}
           : d == FL_BF16 ? (float_format){8, -133, 0x1.fep127}
           : d == FL_F32  ? (float_format){24, -149, (double)FLT_MAX}
                          : (float_format){53, -1074, DBL_MAX};
}

/* The distance of the dtype's numbers around v. */
HELPER double unit(double v, fl_dtype d) {
    float_format f = format_of(d);
    int e = 0;
    frexp(v, &e);
    e -= f.digits;
    return ldexp(1, e < f.lowest ? f.lowest : e);
}

/* f16 and bf16 are rounded from f32, as PyTorch's are. */
HELPER double rounded(double v, fl_dtype dtype) {
    if (dtype == FL_F64) return v;
    v = (double)(float)v;
    if (dtype == FL_F32 || isnan(v) || isinf(v)) return v;
    double step = unit(v, dtype), r = rint(v / step) * step;
    return fabs(r) > format_of(dtype).largest ? copysign(INFINITY, v) : r;
}

/* Values as a cast keeps them: float to integer saturates, NaN gives 0, integers wrap, b8 is x !=
   0. */
HELPER int64_t saturated(double v, double low, double high) {
    if (isnan(v)) return 0;
    if (v <= low) return (int64_t)low;
    if (high == 0x1p64) return v >= high ? -1 : (int64_t)(uint64_t)v; /* the bits of a u64 */
    if (v < high) return (int64_t)v;
    return high >= 0x1p63 ? INT64_MAX : (int64_t)high;
}

/* i holds the bits of a u64. */
HELPER double integer_as_double(int64_t i, fl_dtype d) {
    return d == FL_U64 ? (double)(uint64_t)i : (double)i;
}

HELPER void put_float(array *a, int64_t k, double v) {
    switch (a->dtype) {
    case FL_B8: a->i[k] = v != 0; break;
    case FL_U8: a->i[k] = saturated(v, 0, 255); break;
    case FL_I8: a->i[k] = saturated(v, -128, 127); break;
    case FL_I16: a->i[k] = saturated(v, -32768, 32767); break;
    case FL_I32: a->i[k] = saturated(v, INT32_MIN, INT32_MAX); break;
    case FL_I64: a->i[k] = saturated(v, -0x1p63, 0x1p63); break;
    case FL_U16: a->i[k] = saturated(v, 0, 65535); break;
    case FL_U32: a->i[k] = saturated(v, 0, UINT32_MAX); break;
    case FL_U64: a->i[k] = saturated(v, 0, 0x1p64); break;
    default: a->f[k] = rounded(v, a->dtype); return;
    }
    a->f[k] = integer_as_double(a->i[k], a->dtype);
}

HELPER void put_int(array *a, int64_t k, int64_t v) {
    switch (a->dtype) {
    case FL_B8: a->i[k] = v != 0; break;
    case FL_U8: a->i[k] = (int64_t)(uint8_t)v; break;
    case FL_I8: a->i[k] = (int64_t)(int8_t)(uint8_t)v; break;
    case FL_I16: a->i[k] = (int64_t)(int16_t)(uint16_t)v; break;
    case FL_I32: a->i[k] = (int64_t)(int32_t)(uint32_t)v; break;
    case FL_U16: a->i[k] = (int64_t)(uint16_t)v; break;
    case FL_U32: a->i[k] = (int64_t)(uint32_t)v; break;
    case FL_I64:
    case FL_U64: a->i[k] = v; break;
    case FL_F64: a->f[k] = (double)v; return;
    default: a->f[k] = rounded((double)(float)v, a->dtype); return;
    }
    a->f[k] = integer_as_double(a->i[k], a->dtype);
}

HELPER void put_from(array *a, int64_t k, const array *from, int64_t j) {
    if (from->dtype == FL_U64 && is_float(a->dtype))
        a->f[k] = a->dtype == FL_F64 ? from->f[j]
                                     : rounded((double)(float)(uint64_t)from->i[j], a->dtype);
    else if (is_float(from->dtype)) put_float(a, k, from->f[j]);
    else put_int(a, k, from->i[j]);
}

HELPER array cast_array(const array *a, fl_dtype dtype) {
    array r = new_array(a->shape, dtype);
    for (int64_t k = 0; k < a->n; k++) put_from(&r, k, a, k);
    return r;
}

/* Coordinates of element k of a shape, and back; dims of size 1 (or missing in front) broadcast. */
HELPER void coords_of(fl_shape s, int64_t k, int64_t *c) {
    for (int d = s.ndim - 1; d >= 0; d--) {
        c[d] = k % s.dim[d];
        k /= s.dim[d];
    }
}

HELPER int64_t index_of(fl_shape s, const int64_t *c) {
    int64_t k = 0;
    for (int d = 0; d < s.ndim; d++) k = k * s.dim[d] + (s.dim[d] == 1 ? 0 : c[d]);
    return k;
}

HELPER array expand_array(const array *a, fl_shape to) {
    array r = new_array(to, a->dtype);
    int64_t c[FL_MAX_DIMS] = {0};
    for (int64_t k = 0; k < r.n; k++) {
        coords_of(to, k, c);
        put_from(&r, k, a, index_of(a->shape, c + (to.ndim - a->shape.ndim)));
    }
    return r;
}

HELPER fl_shape broadcast_shape(fl_shape a, fl_shape b) {
    fl_shape r = {a.ndim > b.ndim ? a.ndim : b.ndim, {0}};
    for (int d = 1; d <= r.ndim; d++) {
        int64_t x = d <= a.ndim ? a.dim[a.ndim - d] : 1, y = d <= b.ndim ? b.dim[b.ndim - d] : 1;
        r.dim[r.ndim - d] = x == 1 ? y : x;
    }
    return r;
}

/* >>random values, the same for a case whatever else runs */

static uint64_t random_state;
HELPER uint64_t random_bits(void) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
HELPER double random_in(double low, double high) {
    return low + (high - low) * (double)(random_bits() >> 11) * 0x1p-53;
}
HELPER int64_t random_below(int64_t n) {
    return (int64_t)(random_bits() % (uint64_t)n);
}

/* TAME: [-2, 2] and small integers. WILD: all magnitudes, ties, and the special values. */
typedef enum values { TAME, WILD } values;

HELPER double wild_float(fl_dtype dtype) {
    static const double special[] = {NAN,
                                     INFINITY,
                                     -INFINITY,
                                     0.0,
                                     -0.0,
                                     1,
                                     -1,
                                     0.5,
                                     -0.5,
                                     1.5,
                                     2.5,
                                     -1.5,
                                     -2.5,
                                     1e-40,
                                     -1e-40,
                                     1e-45,
                                     1e30,
                                     -1e30,
                                     88.7,
                                     -87.5,
                                     103,
                                     -103,
                                     700,
                                     -700,
                                     0.999999940395355,
                                     -0.999999940395355,
                                     8388609,
                                     -8388607.5,
                                     16777217,
                                     1e-8,
                                     3.14159265358979,
                                     -1.57079632679490,
                                     1e5,
                                     4.5,
                                     -18.5};
    switch (random_below(8)) {
    case 0: return special[random_below(sizeof special / sizeof *special)];
    case 1: return (double)(random_below(9) - 4) * 0.5;
    case 2: {
        int range = dtype == FL_F64 ? 1000 : dtype == FL_F16 ? 22 : 125;
        int e = (int)random_below(2 * range) - range; /* before the fraction, in every compiler */
        double v = ldexp(random_in(1, 2), e);
        return random_below(2) ? v : -v;
    }
    case 3: {
        int e = (int)random_below(24) - 12;
        return ldexp(random_in(-1, 1), e);
    }
    default: return random_in(-4, 4);
    }
}

HELPER int64_t wild_int(void) {
    static const int64_t special[] = {
        0,         1,   -1,  2,  -2, INT64_MIN, INT64_MAX,     INT64_MIN + 1,          INT32_MIN,
        INT32_MAX, 255, 256, -7, 7,  1 << 24,   (1 << 24) + 1, ((int64_t)1 << 53) + 1, 3037000500,
        -128,      127, INT16_MIN,   INT16_MAX, UINT16_MAX,    UINT32_MAX};
    switch (random_below(4)) {
    case 0: return special[random_below(sizeof special / sizeof *special)];
    case 1: return (int64_t)random_bits();
    default: return random_below(21) - 10;
    }
}

HELPER bool is_unsigned(fl_dtype d) {
    return d == FL_U8 || d == FL_U16 || d == FL_U32 || d == FL_U64;
}

HELPER array random_array(fl_shape shape, fl_dtype dtype, values v) {
    array a = new_array(shape, dtype);
    for (int64_t k = 0; k < a.n; k++) {
        if (is_float(dtype)) {
            double x = random_below(8) ? random_in(-2, 2) : (double)(random_below(5) - 2);
            put_float(&a, k, v == TAME ? x : wild_float(dtype));
        } else if (dtype == FL_B8) put_int(&a, k, random_below(2));
        else if (v == TAME) put_int(&a, k, random_below(9) - (is_unsigned(dtype) ? 0 : 4));
        else put_int(&a, k, wild_int());
    }
    return a;
}

/* >>layouts: the same values behind different strides */

typedef enum layout {
    DENSE,
    TRANSPOSED,
    STEPPED,
    REVERSED,
    OFFSET,
    CHANNELS_LAST,
    BROADCAST,
    BROADCAST_RIGHT,
    WEAK,
    WEAK_RIGHT,
    REFUSED, /* not a layout: the dtype is not taken, an error is what is expected */
    LAYOUTS
} layout;
static const char *const layout_names[] = {"dense", "transp", "step", "revers", "offset", "ch-last",
                                           "bcast-l", "bcast-r", "weak-l", "weak-r", "refused"};
/* As bits, for the rows of the matrix. */
enum {
    PLAIN = 1 << DENSE,
    STRIDED = PLAIN | 1 << TRANSPOSED | 1 << STEPPED | 1 << REVERSED | 1 << OFFSET |
              1 << CHANNELS_LAST,
    ONE_OPERAND = STRIDED | 1 << BROADCAST | 1 << WEAK,
    UNWEAK = STRIDED | 1 << BROADCAST,
    TWO_OPERANDS = STRIDED | 1 << BROADCAST | 1 << BROADCAST_RIGHT | 1 << WEAK | 1 << WEAK_RIGHT
};

/* Sixteen bits of a number that they can hold: sign, exponent with its bias, fraction. */
HELPER uint16_t half_bits(double v, int fraction, int bias) {
    int e = 0, sign = signbit(v) ? 0x8000 : 0, top = (2 * bias + 1) << fraction;
    if (isnan(v)) return (uint16_t)(sign | top | 1 << (fraction - 1));
    if (isinf(v)) return (uint16_t)(sign | top);
    if (v == 0) return (uint16_t)sign;
    double m = frexp(fabs(v), &e); /* m in [0.5, 1) */
    int exponent = e - 1 + bias, all = (int)ldexp(m, fraction + 1);
    if (exponent < 1) return (uint16_t)(sign | (int)ldexp(m, e + bias - 1 + fraction));
    return (uint16_t)(sign | exponent << fraction | (all - (1 << fraction)));
}

HELPER double half_value(uint16_t bits, int fraction, int bias) {
    int exponent = (bits & 0x7fff) >> fraction, rest = bits & ((1 << fraction) - 1);
    double v = exponent == 2 * bias + 1 ? (rest ? NAN : INFINITY)
               : exponent == 0          ? ldexp(rest, 1 - bias - fraction)
                                        : ldexp((1 << fraction) + rest, exponent - bias - fraction);
    return bits & 0x8000 ? -v : v;
}

HELPER void store(char *dst, const array *a, int64_t k) {
    switch (a->dtype) {
    case FL_F16: *(uint16_t *)(void *)dst = half_bits(a->f[k], 10, 15); break;
    case FL_BF16: *(uint16_t *)(void *)dst = half_bits(a->f[k], 7, 127); break;
    case FL_F32: *(float *)(void *)dst = (float)a->f[k]; break;
    case FL_F64: *(double *)(void *)dst = a->f[k]; break;
    case FL_I16:
    case FL_U16: *(uint16_t *)(void *)dst = (uint16_t)a->i[k]; break;
    case FL_I32:
    case FL_U32: *(uint32_t *)(void *)dst = (uint32_t)a->i[k]; break;
    case FL_I64:
    case FL_U64: *(int64_t *)(void *)dst = a->i[k]; break;
    default: *dst = (char)a->i[k]; break;
    }
}

HELPER void load(array *a, int64_t k, const char *src) {
    switch (a->dtype) {
    case FL_F16: a->f[k] = half_value(*(const uint16_t *)(const void *)src, 10, 15); return;
    case FL_BF16: a->f[k] = half_value(*(const uint16_t *)(const void *)src, 7, 127); return;
    case FL_F32: a->f[k] = (double)*(const float *)(const void *)src; return;
    case FL_F64: a->f[k] = *(const double *)(const void *)src; return;
    case FL_I8: a->i[k] = *(const int8_t *)src; break;
    case FL_I16: a->i[k] = *(const int16_t *)(const void *)src; break;
    case FL_U16: a->i[k] = *(const uint16_t *)(const void *)src; break;
    case FL_I32: a->i[k] = *(const int32_t *)(const void *)src; break;
    case FL_U32: a->i[k] = *(const uint32_t *)(const void *)src; break;
    case FL_I64:
    case FL_U64: a->i[k] = *(const int64_t *)(const void *)src; break;
    default: a->i[k] = *(const uint8_t *)src; break;
    }
    a->f[k] = integer_as_double(a->i[k], a->dtype);
}

HELPER fl_tensor *dense_tensor(const array *a) {
    size_t size = fl_dtype_size(a->dtype);
    char *p = take((size_t)a->n * size + 1);
    for (int64_t k = 0; k < a->n; k++) store(p + (size_t)k * size, a, k);
    return fl_from_host(p, a->shape, a->dtype);
}

/* Where the elements of a lie in a larger array `base`: axis d of a is axis `to[d]` of base, from
   start[d] by step[d]. */
typedef struct placing {
    fl_shape base;
    int to[FL_MAX_DIMS];
    int64_t start[FL_MAX_DIMS], step[FL_MAX_DIMS];
} placing;

HELPER placing place(fl_shape s, layout l) {
    placing p = {.base = {s.ndim, {0}}};
    for (int d = 0; d < s.ndim; d++) {
        p.to[d] = l == TRANSPOSED ? s.ndim - 1 - d : d;
        if (l == CHANNELS_LAST && d > 0) p.to[d] = d == 1 ? s.ndim - 1 : d - 1;
        p.step[d] = l == STEPPED    ? (d == s.ndim - 1 ? 2 : 1 + d % 3)
                    : l == REVERSED ? (d % 2 == s.ndim % 2 ? -1 : 1)
                                    : 1;
        if (l == REVERSED && s.ndim == 1) p.step[d] = -1;
        p.start[d] = p.step[d] < 0 ? s.dim[d] - 1 : l == OFFSET || l == STEPPED ? 1 : 0;
        int64_t span = s.dim[d] ? (s.dim[d] - 1) * llabs(p.step[d]) + 1 : 0;
        p.base.dim[p.to[d]] = span + (l == OFFSET || l == STEPPED ? 2 : 0);
    }
    return p;
}

/* a's values with the strides that l stands for; gaps hold values of their own. 0-d: an element of
   a row. */
HELPER fl_tensor *lay_out(const array *a, layout l) {
    fl_shape s = a->shape;
    if (l > CHANNELS_LAST || l == DENSE) return dense_tensor(a);
    if (s.ndim == 0) {
        array row = random_array(FL_SHAPE(3), a->dtype, WILD);
        put_from(&row, 1, a, 0);
        return fl_select(dense_tensor(&row), 0, 1);
    }
    placing p = place(s, l);
    array base = random_array(p.base, a->dtype, WILD);
    int64_t c[FL_MAX_DIMS] = {0}, at[FL_MAX_DIMS] = {0};
    for (int64_t k = 0; k < a->n; k++) {
        coords_of(s, k, c);
        for (int d = 0; d < s.ndim; d++) at[p.to[d]] = p.start[d] + c[d] * p.step[d];
        int64_t j = 0;
        for (int d = 0; d < s.ndim; d++) j = j * p.base.dim[d] + at[d];
        put_from(&base, j, a, k);
    }
    fl_tensor *t = fl_permute(dense_tensor(&base), s.ndim, p.to);
    for (int d = 0; d < s.ndim && t; d++) {
        int64_t stop = p.step[d] < 0 ? FL_SLICE_END : p.start[d] + (s.dim[d] - 1) * p.step[d] + 1;
        if (s.dim[d] == 0) stop = p.start[d];
        if (s.dim[d] == 0 || p.step[d] != 1 || stop != t->shape[d])
            t = fl_slice(t, d, s.dim[d] ? p.start[d] : 0, s.dim[d] ? stop : 0,
                         s.dim[d] ? p.step[d] : 1);
    }
    return t;
}

/* False where a layout does not differ from a dense one, or cannot be had. */
HELPER bool layout_fits(layout l, fl_shape s) {
    if (l == TRANSPOSED) return s.ndim >= 2;
    if (l == CHANNELS_LAST) return s.ndim >= 3;
    if (l == STEPPED || l == REVERSED || l == BROADCAST || l == BROADCAST_RIGHT) return s.ndim >= 1;
    return true;
}

/* s with dims of size 1 where the bits of `which` are set. */
HELPER fl_shape with_ones(fl_shape s, unsigned which) {
    for (int d = 0; d < s.ndim; d++)
        if (which >> d & 1) s.dim[d] = 1;
    return s;
}

typedef struct operand {
    array a;
    fl_tensor *t;
} operand;

HELPER operand make_operand(fl_shape s, fl_dtype dtype, layout l, values v) {
    operand o;
    if (l == WEAK || l == WEAK_RIGHT) {
        o.a = random_array(FL_SCALAR_SHAPE, dtype, v);
        o.t = is_float(dtype) ? fl_num(o.a.f[0]) : fl_int(o.a.i[0]);
        return o;
    }
    if (l == BROADCAST || l == BROADCAST_RIGHT) {
        array small = random_array(with_ones(s, (unsigned)random_below((1 << s.ndim) - 1) + 1),
                                   dtype, v);
        o.a = expand_array(&small, s);
        o.t = fl_expand(dense_tensor(&small), s);
        return o;
    }
    o.a = random_array(s, dtype, v);
    o.t = lay_out(&o.a, l);
    return o;
}

/* All elements of t, row-major. */
HELPER bool read_tensor(fl_tensor *t, array *a) {
    size_t size = fl_dtype_size(t->dtype);
    *a = new_array(fl_shape_of(t), t->dtype);
    char *p = take((size_t)a->n * size + 1);
    if (!fl_to_host(t, p, (size_t)a->n * size)) return false;
    for (int64_t k = 0; k < a->n; k++) load(a, k, p + (size_t)k * size);
    return true;
}

#endif /* MIT licence: see LICENSE. */
