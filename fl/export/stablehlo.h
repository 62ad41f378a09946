/* fl/export/stablehlo.h - a step as a module of StableHLO, the text that XLA's compilers take */
#ifndef FL_EXPORT_STABLEHLO_H
#define FL_EXPORT_STABLEHLO_H
#include "names.h"

#ifdef __cplusplus
extern "C" {
#endif

/* fl_graph_save_stablehlo(g, path, .state = &s, ...); options: fl_export_opts. Writes the step of g, which is
   ready, inference or training, as one module. Its function `main` takes the inputs, then the state, and
   returns the outputs, then the state after the step; comments say their names. The state ends with the
   generator of random numbers, key and counter as tensor<2xui64>, if it is used: numbers are fl's. Constants
   are in the text. Dtypes: f32, f64, integers and b8 (i1); random numbers f32. erf is chlo.erf. Results agree
   with fl's within rounding. False after an error, before anything is written: as fl_graph_open, or an op or
   dtype that is not written. */
#define fl_graph_save_stablehlo(...) FL_GRAPH__SAVE_STABLEHLO(__VA_ARGS__, ._end = 0)
#define FL_GRAPH__SAVE_STABLEHLO(g, path, ...) \
    fl_graph_save_stablehlo_opt(g, path, FL_LITERAL(fl_export_opts, __VA_ARGS__))
FL_API bool fl_graph_save_stablehlo_opt(const fl_graph *g, const char *path, fl_export_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_EXPORT_STABLEHLO_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_EXPORT_STABLEHLO) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_EXPORT_STABLEHLO_IMPL
#define FL_EXPORT_STABLEHLO_IMPL
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct fl__hlo {
    const char *fn;
    fl__export *e;
    const fl_graph_call *call; /* that is written */
    int *now; /* of each value: what its memory is now, a tensor of one dim; 0: not made yet */
    int n;    /* values of the text so far, from 1 */
    int rng;  /* the generator's */
    int *result; /* of the module's results */
    fl_strbuf *t; /* NULL: a first pass, which finds what is not written */
    bool failed;
} fl__hlo;

/* A value of the text. */
typedef struct fl__hlo_value {
    int id;
    fl_shape shape;
    fl_dtype dtype;
} fl__hlo_value;

typedef struct fl__hlo_text {
    char s[200];
} fl__hlo_text;

static const char *fl__hlo_dtype(fl_dtype d) {
    switch ((int)d) {
    case FL_F32: return "f32";
    case FL_F64: return "f64";
    case FL_B8: return "i1";
    case FL_U8: return "ui8";
    case FL_I8: return "i8";
    case FL_U16: return "ui16";
    case FL_I16: return "i16";
    case FL_U32: return "ui32";
    case FL_I32: return "i32";
    case FL_U64: return "ui64";
    case FL_I64: return "i64";
    default: return NULL;
    }
}

/* "tensor<2x3xf32>" */
static fl__hlo_text fl__hlo_type(fl_shape s, fl_dtype d) {
    fl__hlo_text t;
    const size_t size = sizeof t.s;
    int n = snprintf(t.s, size, "tensor<");
    for (int i = 0; i < s.ndim; i++) n += snprintf(t.s + n, size - (size_t)n, "%lldx", (long long)s.dim[i]);
    snprintf(t.s + n, size - (size_t)n, "%s>", fl__hlo_dtype(d) ? fl__hlo_dtype(d) : "none");
    return t;
}
#define FL__HLO_TYPE(v) (fl__hlo_type((v).shape, (v).dtype).s)

/* "[1, 2, 3]" of n numbers. */
static fl__hlo_text fl__hlo_list(const int64_t *x, int n) {
    fl__hlo_text t;
    const size_t size = sizeof t.s;
    int at = snprintf(t.s, size, "[");
    for (int i = 0; i < n; i++)
        at += snprintf(t.s + at, size - (size_t)at, "%s%lld", i ? ", " : "", (long long)x[i]);
    snprintf(t.s + at, size - (size_t)at, "]");
    return t;
}

FL_PRINTF(2, 3) static void fl__hlo_put(fl__hlo *h, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (h->t) fl_strbuf_vprintf(h->t, format, args);
    va_end(args);
}

static bool fl__hlo_refuse(fl__hlo *h, const char *what) {
    char text[200];
    if (!h->failed) fl_fail("%s: %s: %s", h->fn, fl_graph_call_text(h->call, text, sizeof text), what);
    h->failed = true;
    return false;
}

/* Writes "    %7 = op : type" and returns the value; format: the op with its operands, up to the type. */
FL_PRINTF(4, 5)
static fl__hlo_value fl__hlo_op(fl__hlo *h, fl_shape s, fl_dtype d, const char *format, ...) {
    const fl__hlo_value y = {++h->n, s, d};
    va_list args;
    fl__hlo_put(h, "    %%%d = ", y.id);
    va_start(args, format);
    if (h->t) fl_strbuf_vprintf(h->t, format, args);
    va_end(args);
    fl__hlo_put(h, "%s\n", FL__HLO_TYPE(y));
    return y;
}

static fl__hlo_value fl__hlo_unary(fl__hlo *h, const char *op, fl__hlo_value x) {
    return fl__hlo_op(h, x.shape, x.dtype, "stablehlo.%s %%%d : ", op, x.id);
}

static fl__hlo_value fl__hlo_binary(fl__hlo *h, const char *op, fl__hlo_value a, fl__hlo_value b) {
    return fl__hlo_op(h, a.shape, a.dtype, "stablehlo.%s %%%d, %%%d : ", op, a.id, b.id);
}

static fl__hlo_value fl__hlo_compare(fl__hlo *h, const char *how, fl__hlo_value a, fl__hlo_value b) {
    return fl__hlo_op(h, a.shape, FL_B8, "stablehlo.compare %s, %%%d, %%%d : (%s, %s) -> ", how, a.id, b.id,
                      FL__HLO_TYPE(a), FL__HLO_TYPE(b));
}

static fl__hlo_value fl__hlo_select(fl__hlo *h, fl__hlo_value c, fl__hlo_value a, fl__hlo_value b) {
    return fl__hlo_op(h, a.shape, a.dtype, "stablehlo.select %%%d, %%%d, %%%d : %s, ", c.id, a.id, b.id,
                      FL__HLO_TYPE(c));
}

static fl__hlo_value fl__hlo_reshape(fl__hlo *h, fl__hlo_value x, fl_shape s) {
    if (fl__export_same_shape(x.shape, s)) return x;
    return fl__hlo_op(h, s, x.dtype, "stablehlo.reshape %%%d : (%s) -> ", x.id, FL__HLO_TYPE(x));
}

static fl__hlo_value fl__hlo_convert(fl__hlo *h, fl__hlo_value x, fl_dtype d) {
    if (x.dtype == d) return x;
    return fl__hlo_op(h, x.shape, d, "stablehlo.convert %%%d : (%s) -> ", x.id, FL__HLO_TYPE(x));
}

/* All elements are one number: of an integer dtype i, else f. */
static fl__hlo_value fl__hlo_number(fl__hlo *h, fl_shape s, fl_dtype d, double f, int64_t i) {
    uint64_t bits = 0;
    const float narrow = (float)f;
    if (d == FL_F32) memcpy(&bits, &narrow, 4);
    if (d == FL_F64) memcpy(&bits, &f, 8);
    if (fl_dtype_is_float(d))
        return fl__hlo_op(h, s, d, "stablehlo.constant dense<0x%0*llX> : ", d == FL_F32 ? 8 : 16,
                          (unsigned long long)bits);
    if (d == FL_B8) return fl__hlo_op(h, s, d, "stablehlo.constant dense<%s> : ", f != 0 ? "true" : "false");
    if (d == FL_U64)
        return fl__hlo_op(h, s, d, "stablehlo.constant dense<%llu> : ", (unsigned long long)(uint64_t)i);
    return fl__hlo_op(h, s, d, "stablehlo.constant dense<%lld> : ", (long long)i);
}

static fl__hlo_value fl__hlo_iota(fl__hlo *h, fl_shape s, fl_dtype d, int dim) {
    return fl__hlo_op(h, s, d, "stablehlo.iota dim = %d : ", dim);
}

/* Dim i of the result is dim order[i] of x. */
static fl__hlo_value fl__hlo_transpose(fl__hlo *h, fl__hlo_value x, const int64_t *order) {
    fl_shape s = x.shape;
    bool same = true;
    for (int i = 0; i < s.ndim; i++) s.dim[i] = x.shape.dim[order[i]], same &= order[i] == i;
    if (same) return x;
    return fl__hlo_op(h, s, x.dtype, "stablehlo.transpose %%%d, dims = %s : (%s) -> ", x.id,
                      fl__hlo_list(order, s.ndim).s, FL__HLO_TYPE(x));
}

/* x's dim i becomes dim at[i]; the others are broadcast. */
static fl__hlo_value fl__hlo_broadcast(fl__hlo *h, fl__hlo_value x, fl_shape s, const int64_t *at) {
    bool same = x.shape.ndim == s.ndim;
    for (int i = 0; same && i < s.ndim; i++) same = x.shape.dim[i] == s.dim[i] && at[i] == i;
    if (same) return x;
    return fl__hlo_op(h, s, x.dtype, "stablehlo.broadcast_in_dim %%%d, dims = %s : (%s) -> ", x.id,
                      fl__hlo_list(at, x.shape.ndim).s, FL__HLO_TYPE(x));
}

static fl__hlo_value fl__hlo_reverse(fl__hlo *h, fl__hlo_value x, const int64_t *dims, int n) {
    if (!n) return x;
    return fl__hlo_op(h, x.shape, x.dtype, "stablehlo.reverse %%%d, dims = %s : ", x.id,
                      fl__hlo_list(dims, n).s);
}

/* The block of x from `start` of `size`. */
static fl__hlo_value fl__hlo_slice(fl__hlo *h, fl__hlo_value x, const int64_t *start, const int64_t *size) {
    fl_shape s = x.shape;
    char text[400] = "";
    int n = 0;
    for (int i = 0; i < s.ndim; i++) {
        s.dim[i] = size[i];
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%lld:%lld", i ? ", " : "", (long long)start[i],
                      (long long)(start[i] + size[i]));
    }
    return fl__hlo_op(h, s, x.dtype, "stablehlo.slice %%%d [%s] : (%s) -> ", x.id, text, FL__HLO_TYPE(x));
}

/* ---- views ---- */

/* The linear index of each element of a tensor of that shape, without axis `but`. */
static fl__hlo_value fl__hlo_index(fl__hlo *h, fl_shape s, const int64_t *stride, int64_t offset, int but) {
    fl__hlo_value at = fl__hlo_number(h, s, FL_I64, 0, offset);
    for (int i = 0; i < s.ndim; i++) {
        if (i == but || !stride[i] || s.dim[i] == 1) continue;
        const fl__hlo_value by = fl__hlo_number(h, s, FL_I64, 0, stride[i]);
        const fl__hlo_value n = fl__hlo_iota(h, s, FL_I64, i);
        at = fl__hlo_binary(h, "add", at, fl__hlo_binary(h, "multiply", n, by));
    }
    return at;
}

/* The elements of memory x at linear indices. */
static fl__hlo_value fl__hlo_take(fl__hlo *h, fl__hlo_value x, fl__hlo_value at) {
    const int64_t n = fl_shape_numel(at.shape);
    if (!n) return fl__hlo_number(h, at.shape, x.dtype, 0, 0); /* x may have no elements either */
    const fl__hlo_value flat = fl__hlo_reshape(h, at, FL_SHAPE(n, 1));
    const fl__hlo_value y =
        fl__hlo_op(h, FL_SHAPE(n), x.dtype,
                   "\"stablehlo.gather\"(%%%d, %%%d) <{dimension_numbers = #stablehlo.gather<"
                   "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, "
                   "slice_sizes = array<i64: 1>, indices_are_sorted = false}> : (%s, %s) -> ",
                   x.id, flat.id, FL__HLO_TYPE(x), FL__HLO_TYPE(flat));
    return fl__hlo_reshape(h, y, at.shape);
}

/* Memory x with the elements at linear indices replaced, or (add) increased. */
static fl__hlo_value fl__hlo_put_at(fl__hlo *h, fl__hlo_value x, fl__hlo_value at, fl__hlo_value src,
                                    bool add) {
    const int64_t n = fl_shape_numel(at.shape);
    if (!n) return x;
    const char *type = fl__hlo_dtype(x.dtype);
    const fl__hlo_value flat = fl__hlo_reshape(h, at, FL_SHAPE(n, 1));
    const fl__hlo_value of = fl__hlo_reshape(h, src, FL_SHAPE(n));
    const int y = ++h->n;
    fl__hlo_put(h, "    %%%d = \"stablehlo.scatter\"(%%%d, %%%d, %%%d) <{scatter_dimension_numbers = "
                "#stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
                "index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({\n"
                "    ^bb0(%%a: tensor<%s>, %%b: tensor<%s>):\n", y, x.id, flat.id, of.id, type, type);
    if (add) fl__hlo_put(h, "      %%c = stablehlo.add %%a, %%b : tensor<%s>\n", type);
    fl__hlo_put(h, "      stablehlo.return %%%s : tensor<%s>\n    }) : (%s, %s, %s) -> %s\n", add ? "c" : "b",
                type, FL__HLO_TYPE(x), FL__HLO_TYPE(flat), FL__HLO_TYPE(of), FL__HLO_TYPE(x));
    return (fl__hlo_value){y, x.shape, x.dtype};
}

/* The memory of a value now. */
static fl__hlo_value fl__hlo_memory(const fl__hlo *h, int v) {
    return (fl__hlo_value){h->now[v], FL_SHAPE(h->e->value[v].n), h->e->value[v].dtype};
}

static fl__hlo_value fl__hlo_view(fl__hlo *h, fl__hlo_value x, const fl_tensor *t) {
    fl__export_block b;
    fl_shape size = {0};
    int64_t at[FL_MAX_DIMS];
    const fl_shape s = fl_shape_of(t);
    if (!fl_numel(t)) return fl__hlo_number(h, s, t->dtype, 0, 0);
    if (!fl__export_block_of(t, x.shape.dim[0], &b))
        return fl__hlo_take(h, x, fl__hlo_index(h, s, t->stride, t->offset, -1));
    x = fl__hlo_reshape(h, x, b.dims);
    if (!b.whole) x = fl__hlo_slice(h, x, b.start, b.size);
    size.ndim = b.n;
    memcpy(size.dim, b.size, (size_t)b.n * sizeof *b.size);
    x = fl__hlo_reverse(h, fl__hlo_reshape(h, x, size), b.reversed, b.n_reversed);
    for (int i = 0; i < b.n; i++) at[i] = b.axis[b.to_view[i]];
    return fl__hlo_broadcast(h, fl__hlo_transpose(h, x, b.to_view), s, at);
}

/* in[k]; a weak number as dtype d in the shape s. */
static fl__hlo_value fl__hlo_in(fl__hlo *h, int k, fl_shape s, fl_dtype d) {
    const fl_tensor *t = h->call->call.in[k];
    if (t->weak) return fl__hlo_number(h, s, d, t->f64, t->i64);
    return fl__hlo_view(h, fl__hlo_memory(h, h->call->value[4 + k]), t);
}

/* Memory `old` with the block replaced by y. */
static fl__hlo_value fl__hlo_update(fl__hlo *h, fl__hlo_value old, fl__hlo_value y,
                                    const fl__export_block *b) {
    int start[FL_MAX_DIMS + 1];
    fl_shape part = b->dims;
    memcpy(part.dim, b->size, (size_t)b->dims.ndim * sizeof *b->size);
    y = fl__hlo_reshape(h, y, part);
    old = fl__hlo_reshape(h, old, b->dims);
    for (int i = 0; i < b->dims.ndim; i++)
        start[i] = fl__hlo_number(h, (fl_shape){0}, FL_I64, 0, b->start[i]).id;
    const int z = ++h->n;
    fl__hlo_put(h, "    %%%d = stablehlo.dynamic_update_slice %%%d, %%%d", z, old.id, y.id);
    for (int i = 0; i < b->dims.ndim; i++) fl__hlo_put(h, ", %%%d", start[i]);
    fl__hlo_put(h, " : (%s, %s", FL__HLO_TYPE(old), FL__HLO_TYPE(y));
    for (int i = 0; i < b->dims.ndim; i++) fl__hlo_put(h, ", tensor<i64>");
    fl__hlo_put(h, ") -> %s\n", FL__HLO_TYPE(old));
    return (fl__hlo_value){z, old.shape, old.dtype};
}

/* Writes y to out[k]. */
static bool fl__hlo_out_at(fl__hlo *h, int k, fl__hlo_value y) {
    const fl_tensor *t = h->call->call.out[k];
    const int v = h->call->value[k];
    const fl_shape flat = FL_SHAPE(h->e->value[v].n);
    fl__export_block b;
    fl_shape plain = {0};
    fl__hlo_value old = fl__hlo_memory(h, v);
    const bool some = fl_numel(t) > 0, block = some && fl__export_block_of(t, flat.dim[0], &b);
    if (!old.id && !(block && b.whole)) old = fl__hlo_number(h, flat, old.dtype, 0, 0);
    if (!some) return h->now[v] = old.id, true;
    if (!block) {
        const fl__hlo_value at = fl__hlo_index(h, fl_shape_of(t), t->stride, t->offset, -1);
        return h->now[v] = fl__hlo_put_at(h, old, at, y, false).id, true;
    }
    plain.ndim = b.n;
    for (int d = 0; d < b.n; d++) plain.dim[b.to_block[d]] = b.size[d];
    y = fl__hlo_transpose(h, fl__hlo_reshape(h, y, plain), b.to_block);
    y = fl__hlo_reverse(h, y, b.reversed, b.n_reversed);
    if (!b.whole) y = fl__hlo_update(h, old, y, &b);
    return h->now[v] = fl__hlo_reshape(h, y, flat).id, true;
}

static bool fl__hlo_out(fl__hlo *h, fl__hlo_value y) { return fl__hlo_out_at(h, 0, y); }

/* Writes a text: @ is a type, # a word. */
static void fl__hlo_put_text(fl__hlo *h, const char *text, const char *type, const char *word) {
    for (const char *p = text; *p; p++)
        if (*p == '@' || *p == '#') fl__hlo_put(h, "%s", *p == '@' ? type : word);
        else fl__hlo_put(h, "%c", *p);
}

/* ---- element-wise ops ---- */

static fl__hlo_value fl__hlo_zero(fl__hlo *h, fl__hlo_value like) {
    return fl__hlo_number(h, like.shape, like.dtype, 0, 0);
}

/* `moved` where r is not 0 and has not the sign of b, else `plain`. */
static fl__hlo_value fl__hlo_toward(fl__hlo *h, fl__hlo_value r, fl__hlo_value b, fl__hlo_value moved,
                                    fl__hlo_value plain) {
    const fl__hlo_value zero = fl__hlo_zero(h, r), rest = fl__hlo_compare(h, "NE", r, zero);
    const fl__hlo_value low = fl__hlo_compare(h, "LT", r, zero), down = fl__hlo_compare(h, "LT", b, zero);
    const fl__hlo_value differ = fl__hlo_compare(h, "NE", low, down);
    return fl__hlo_select(h, fl__hlo_binary(h, "and", rest, differ), moved, plain);
}

/* The remainder with b's sign; of integers 0 for b = 0. */
static fl__hlo_value fl__hlo_remainder(fl__hlo *h, fl__hlo_value a, fl__hlo_value b) {
    if (fl_dtype_is_float(a.dtype)) {
        const fl__hlo_value r = fl__hlo_binary(h, "remainder", a, b);
        return fl__hlo_toward(h, r, b, fl__hlo_binary(h, "add", r, b), r);
    }
    const fl__hlo_value zero = fl__hlo_zero(h, b), one = fl__hlo_number(h, b.shape, b.dtype, 1, 1);
    const fl__hlo_value none = fl__hlo_compare(h, "EQ", b, zero), by = fl__hlo_select(h, none, one, b);
    const fl__hlo_value r = fl__hlo_binary(h, "remainder", a, by);
    return fl__hlo_select(h, none, zero, fl__hlo_toward(h, r, by, fl__hlo_binary(h, "add", r, by), r));
}

/* floor(a / b) of integers; 0 for b = 0. */
static fl__hlo_value fl__hlo_divide(fl__hlo *h, fl__hlo_value a, fl__hlo_value b) {
    const fl__hlo_value zero = fl__hlo_zero(h, b), one = fl__hlo_number(h, b.shape, b.dtype, 1, 1);
    const fl__hlo_value none = fl__hlo_compare(h, "EQ", b, zero), by = fl__hlo_select(h, none, one, b);
    const fl__hlo_value r = fl__hlo_binary(h, "remainder", a, by), q = fl__hlo_binary(h, "divide", a, by);
    return fl__hlo_select(h, none, zero, fl__hlo_toward(h, r, by, fl__hlo_binary(h, "subtract", q, one), q));
}

static const struct fl__hlo_word {
    fl_op op;
    const char *name, *of_b8; /* of_b8 NULL: the same */
} fl__hlo_words[] = {
    {FL_OP_neg, "negate", NULL},
    {FL_OP_abs, "abs", NULL},
    {FL_OP_exp, "exponential", NULL},
    {FL_OP_log, "log", NULL},
    {FL_OP_log1p, "log_plus_one", NULL},
    {FL_OP_expm1, "exponential_minus_one", NULL},
    {FL_OP_sqrt, "sqrt", NULL},
    {FL_OP_sin, "sine", NULL},
    {FL_OP_cos, "cosine", NULL},
    {FL_OP_tanh, "tanh", NULL},
    {FL_OP_floor, "floor", NULL},
    {FL_OP_rint, "round_nearest_even", NULL},
    {FL_OP_bitwise_not, "not", NULL},
    {FL_OP_add, "add", "or"},
    {FL_OP_sub, "subtract", NULL},
    {FL_OP_mul, "multiply", "and"},
    {FL_OP_div, "divide", "and"},
    {FL_OP_atan2, "atan2", NULL},
    {FL_OP_pow, "power", NULL},
    {FL_OP_maximum, "maximum", "or"},
    {FL_OP_minimum, "minimum", "and"},
    {FL_OP_bitwise_and, "and", NULL},
    {FL_OP_bitwise_or, "or", NULL},
    {FL_OP_bitwise_xor, "xor", NULL},
    {FL_OP_shift_left, "shift_left", NULL},
    {FL_OP_shift_right, "shift_right_arithmetic", NULL},
};

static bool fl__hlo_elementwise(fl__hlo *h) {
    const fl_call *c = &h->call->call;
    const fl_shape s = fl_shape_of(c->out[0]);
    const fl_op op = c->op;
    fl_dtype d = c->out[0]->dtype;
    const char *name = NULL;
    for (int k = 0; k < c->n_in; k++)
        if (!c->in[k]->weak) d = c->in[k]->dtype;
    for (size_t i = 0; i < sizeof fl__hlo_words / sizeof *fl__hlo_words; i++) {
        const struct fl__hlo_word *w = &fl__hlo_words[i];
        if (w->op == op) name = d == FL_B8 && w->of_b8 ? w->of_b8 : w->name;
    }
    const char *compare = op == FL_OP_eq ? "EQ" : op == FL_OP_lt ? "LT" : op == FL_OP_le ? "LE" : NULL;
    const bool known = name || compare || op == FL_OP_erf || op == FL_OP_remainder;
    const bool whole = !fl_dtype_is_float(d);
    if (!known) return fl__hlo_refuse(h, "the op is not written");
    const fl__hlo_value a = fl__hlo_in(h, 0, s, d);
    if (op == FL_OP_erf)
        return fl__hlo_out(h, fl__hlo_op(h, s, d, "chlo.erf %%%d : %s -> ", a.id, FL__HLO_TYPE(a)));
    if (c->n_in == 1) {
        const bool itself = whole && (op == FL_OP_floor || op == FL_OP_rint);
        return fl__hlo_out(h, itself ? a : fl__hlo_unary(h, name, a));
    }
    const fl__hlo_value b = fl__hlo_in(h, 1, s, d);
    if (compare) return fl__hlo_out(h, fl__hlo_compare(h, compare, a, b));
    if (op == FL_OP_remainder) return fl__hlo_out(h, fl__hlo_remainder(h, a, b));
    if (op == FL_OP_div && whole && d != FL_B8) return fl__hlo_out(h, fl__hlo_divide(h, a, b));
    return fl__hlo_out(h, fl__hlo_binary(h, name, a, b));
}

/* The least or the largest integer of the dtype. */
static int64_t fl__hlo_limit(fl_dtype d, bool largest) {
    const bool positive = d == FL_B8 || d == FL_U8 || d == FL_U16 || d == FL_U32 || d == FL_U64;
    const int bits = d == FL_B8 ? 1 : 8 * (int)fl_dtype_size(d);
    const uint64_t most = UINT64_MAX >> (64 - bits + !positive);
    return largest ? (int64_t)most : positive ? 0 : -(int64_t)most - 1;
}

/* Of a float to an integer: NaN is 0, what is too large or small the nearest integer. */
static fl__hlo_value fl__hlo_saturate(fl__hlo *h, fl__hlo_value x, fl_dtype d) {
    const int bits = 8 * (int)fl_dtype_size(d);
    const double above = ldexp(1, bits - (fl__hlo_limit(d, false) != 0)),
                 low = (double)fl__hlo_limit(d, false);
    const fl__hlo_value most = fl__hlo_number(h, x.shape, d, 0, fl__hlo_limit(d, true));
    const fl__hlo_value least = fl__hlo_number(h, x.shape, d, 0, fl__hlo_limit(d, false));
    const fl__hlo_value large = fl__hlo_compare(h, "GE", x, fl__hlo_number(h, x.shape, x.dtype, above, 0));
    const fl__hlo_value small = fl__hlo_compare(h, "LE", x, fl__hlo_number(h, x.shape, x.dtype, low, 0));
    const fl__hlo_value number = fl__hlo_compare(h, "EQ", x, x);
    const fl__hlo_value y = fl__hlo_select(h, small, least, fl__hlo_convert(h, x, d));
    return fl__hlo_select(h, number, fl__hlo_select(h, large, most, y), fl__hlo_number(h, x.shape, d, 0, 0));
}

static bool fl__hlo_cast(fl__hlo *h) {
    const fl_tensor *y = h->call->call.out[0];
    const fl__hlo_value x = fl__hlo_in(h, 0, fl_shape_of(y), y->dtype);
    if (y->dtype == FL_B8 && x.dtype != FL_B8)
        return fl__hlo_out(h, fl__hlo_compare(h, "NE", x, fl__hlo_zero(h, x)));
    if (fl_dtype_is_float(x.dtype) && !fl_dtype_is_float(y->dtype))
        return fl__hlo_out(h, fl__hlo_saturate(h, x, y->dtype));
    return fl__hlo_out(h, fl__hlo_convert(h, x, y->dtype));
}

static bool fl__hlo_where(fl__hlo *h) {
    const fl_tensor *y = h->call->call.out[0];
    const fl_shape s = fl_shape_of(y);
    const fl__hlo_value c = fl__hlo_in(h, 0, s, FL_B8), a = fl__hlo_in(h, 1, s, y->dtype);
    return fl__hlo_out(h, fl__hlo_select(h, c, a, fl__hlo_in(h, 2, s, y->dtype)));
}

/* ---- reductions and indices ---- */

/* The shape without the reduced axes, which are the n of axes[]. */
static fl_shape fl__hlo_kept(const fl_tensor *x, uint32_t mask, int64_t *axes, int *n) {
    fl_shape kept = {0};
    *n = 0;
    for (int i = 0; i < x->ndim; i++)
        if (mask >> i & 1) axes[(*n)++] = i;
        else kept.dim[kept.ndim++] = x->shape[i];
    return kept;
}

static bool fl__hlo_reduce(fl__hlo *h) {
    const fl_call *c = &h->call->call;
    const fl_tensor *y = c->out[0];
    const bool most = c->op == FL_OP_amax, least = c->op == FL_OP_amin, product = c->op == FL_OP_prod;
    int64_t axes[FL_MAX_DIMS];
    int n;
    const fl_shape kept = fl__hlo_kept(c->in[0], ((const fl_reduce_args *)c->args)->axes, axes, &n);
    fl__hlo_value x = fl__hlo_in(h, 0, fl_shape_of(c->in[0]), c->in[0]->dtype);
    if (!most && !least) x = fl__hlo_convert(h, x, y->dtype);
    const double real = most ? -HUGE_VAL : least ? HUGE_VAL : product;
    const int64_t whole = most || least ? fl__hlo_limit(x.dtype, least) : product;
    const fl__hlo_value from = fl__hlo_number(h, (fl_shape){0}, x.dtype, real, whole);
    const fl__hlo_value z = fl__hlo_op(
        h, kept, x.dtype,
        "stablehlo.reduce(%%%d init: %%%d) applies stablehlo.%s across dimensions = %s : (%s, %s) -> ", x.id,
        from.id, most ? "maximum" : least ? "minimum" : product ? "multiply" : "add",
        fl__hlo_list(axes, n).s, FL__HLO_TYPE(x), FL__HLO_TYPE(from));
    return fl__hlo_out(h, z);
}

/* The index of the first extreme; NaN is the most extreme. */
static bool fl__hlo_argmax(fl__hlo *h) {
    static const char rule[] =
        "     reducer(%a: tensor<@>, %b: tensor<@>) (%i: tensor<i64>, %j: tensor<i64>) {\n"
        "      %more = stablehlo.compare #, %a, %b : (tensor<@>, tensor<@>) -> tensor<i1>\n"
        "      %even = stablehlo.compare EQ, %a, %b : (tensor<@>, tensor<@>) -> tensor<i1>\n"
        "      %na = stablehlo.compare NE, %a, %a : (tensor<@>, tensor<@>) -> tensor<i1>\n"
        "      %nb = stablehlo.compare NE, %b, %b : (tensor<@>, tensor<@>) -> tensor<i1>\n"
        "      %first = stablehlo.compare LT, %i, %j : (tensor<i64>, tensor<i64>) -> tensor<i1>\n"
        "      %both = stablehlo.and %na, %nb : tensor<i1>\n"
        "      %same = stablehlo.or %even, %both : tensor<i1>\n"
        "      %number = stablehlo.not %nb : tensor<i1>\n"
        "      %only = stablehlo.and %na, %number : tensor<i1>\n"
        "      %won = stablehlo.or %more, %only : tensor<i1>\n"
        "      %tied = stablehlo.and %same, %first : tensor<i1>\n"
        "      %pick = stablehlo.or %won, %tied : tensor<i1>\n"
        "      %v = stablehlo.select %pick, %a, %b : tensor<i1>, tensor<@>\n"
        "      %k = stablehlo.select %pick, %i, %j : tensor<i1>, tensor<i64>\n"
        "      stablehlo.return %v, %k : tensor<@>, tensor<i64>\n    }\n";
    const fl_call *c = &h->call->call;
    const bool largest = c->op == FL_OP_argmax;
    int64_t axes[FL_MAX_DIMS];
    int n;
    const fl_shape kept = fl__hlo_kept(c->in[0], ((const fl_reduce_args *)c->args)->axes, axes, &n);
    const fl__hlo_value x = fl__hlo_in(h, 0, fl_shape_of(c->in[0]), c->in[0]->dtype);
    const fl__hlo_value from = fl__hlo_number(h, (fl_shape){0}, x.dtype, largest ? -HUGE_VAL : HUGE_VAL,
                                              fl__hlo_limit(x.dtype, !largest));
    const fl__hlo_value at = fl__hlo_iota(h, x.shape, FL_I64, (int)axes[0]);
    const fl__hlo_value last = fl__hlo_number(h, (fl_shape){0}, FL_I64, 0, INT64_MAX);
    const fl__hlo_value best = {++h->n, kept, x.dtype}, place = {best.id, kept, FL_I64};
    fl__hlo_put(h, "    %%%d:2 = stablehlo.reduce(%%%d init: %%%d), (%%%d init: %%%d) across dimensions = "
                "[%d] : (%s, %s, %s, %s) -> (%s, %s)\n", best.id, x.id, from.id, at.id, last.id, (int)axes[0],
                FL__HLO_TYPE(x), FL__HLO_TYPE(at), FL__HLO_TYPE(from), FL__HLO_TYPE(last), FL__HLO_TYPE(best),
                FL__HLO_TYPE(place));
    fl__hlo_put_text(h, rule, fl__hlo_dtype(x.dtype), largest ? "GT" : "LT");
    return fl__hlo_out(h, fl__hlo_op(h, fl_shape_of(c->out[0]), FL_I64, "stablehlo.reshape %%%d#1 : (%s) -> ",
                                     best.id, FL__HLO_TYPE(place)));
}

/* Sums or products of windows that end at each element. */
static bool fl__hlo_scan(fl__hlo *h) {
    static const char rule[] = "    ^bb0(%a: tensor<@>, %b: tensor<@>):\n"
                               "      %c = stablehlo.# %a, %b : tensor<@>\n"
                               "      stablehlo.return %c : tensor<@>\n    }";
    const fl_call *c = &h->call->call;
    const bool product = c->op == FL_OP_cumprod;
    const int axis = ((const fl_axis_args *)c->args)->axis;
    const fl_shape s = fl_shape_of(c->out[0]);
    const fl__hlo_value x = fl__hlo_convert(h, fl__hlo_in(h, 0, s, c->in[0]->dtype), c->out[0]->dtype);
    if (!s.ndim || !fl_shape_numel(s)) return fl__hlo_out(h, x);
    const fl__hlo_value from = fl__hlo_number(h, (fl_shape){0}, x.dtype, product, product),
                        y = {++h->n, s, x.dtype};
    fl__hlo_put(
        h, "    %%%d = \"stablehlo.reduce_window\"(%%%d, %%%d) <{window_dimensions = array<i64",
        y.id, x.id, from.id);
    for (int i = 0; i < s.ndim; i++)
        fl__hlo_put(h, "%s%lld", i ? ", " : ": ", i == axis ? (long long)s.dim[i] : 1);
    fl__hlo_put(h, ">, padding = dense<[");
    for (int i = 0; i < s.ndim; i++)
        fl__hlo_put(h, "%s[%lld, 0]", i ? ", " : "", i == axis ? (long long)s.dim[i] - 1 : 0);
    fl__hlo_put(h, "]> : tensor<%dx2xi64>}> ({\n", s.ndim);
    fl__hlo_put_text(h, rule, fl__hlo_dtype(x.dtype), product ? "multiply" : "add");
    fl__hlo_put(h, ") : (%s, %s) -> %s\n", FL__HLO_TYPE(x), FL__HLO_TYPE(from), FL__HLO_TYPE(y));
    return fl__hlo_out(h, y);
}

/* Stable; NaN is the largest. */
static bool fl__hlo_sort(fl__hlo *h) {
    static const char up[] = "    ^bb0(%a: tensor<@>, %b: tensor<@>, %i: tensor<i64>, %j: tensor<i64>):\n";
    static const char down[] = "    ^bb0(%b: tensor<@>, %a: tensor<@>, %i: tensor<i64>, %j: tensor<i64>):\n";
    static const char rule[] =
        "      %less = stablehlo.compare LT, %a, %b : (tensor<@>, tensor<@>) -> tensor<i1>\n"
        "      %na = stablehlo.compare NE, %a, %a : (tensor<@>, tensor<@>) -> tensor<i1>\n"
        "      %nb = stablehlo.compare NE, %b, %b : (tensor<@>, tensor<@>) -> tensor<i1>\n"
        "      %number = stablehlo.not %na : tensor<i1>\n"
        "      %only = stablehlo.and %number, %nb : tensor<i1>\n"
        "      %first = stablehlo.or %less, %only : tensor<i1>\n"
        "      stablehlo.return %first : tensor<i1>\n    }";
    const fl_call *c = &h->call->call;
    const fl_sort_args *a = c->args;
    const fl__hlo_value x = fl__hlo_in(h, 0, fl_shape_of(c->in[0]), c->in[0]->dtype);
    const fl__hlo_value at = fl__hlo_iota(h, x.shape, FL_I64, a->axis), y = {++h->n, x.shape, x.dtype};
    fl__hlo_put(h,
                "    %%%d:2 = \"stablehlo.sort\"(%%%d, %%%d) <{dimension = %d : i64, is_stable = "
                "true}> ({\n",
                y.id, x.id, at.id, a->axis);
    fl__hlo_put_text(h, a->descending ? down : up, fl__hlo_dtype(x.dtype), "");
    fl__hlo_put_text(h, rule, fl__hlo_dtype(x.dtype), "");
    fl__hlo_put(h, ") : (%s, %s) -> (%s, %s)\n", FL__HLO_TYPE(x), FL__HLO_TYPE(at), FL__HLO_TYPE(y),
                FL__HLO_TYPE(at));
    for (int k = 0; k < 2; k++) {
        static const int64_t start[FL_MAX_DIMS] = {0};
        const fl_tensor *t = c->out[k];
        const fl__hlo_value of = k ? at : y;
        if (!t) continue;
        const fl__hlo_value all =
            fl__hlo_op(h, of.shape, of.dtype, "stablehlo.reshape %%%d#%d : (%s) -> ", y.id, k,
                       FL__HLO_TYPE(of));
        const bool part = t->shape[a->axis] < of.shape.dim[a->axis]; /* of topk */
        fl__hlo_out_at(h, k, part ? fl__hlo_slice(h, all, start, t->shape) : all);
    }
    return true;
}

/* The linear index of the elements at in[1] along the axis, with those strides. */
static fl__hlo_value fl__hlo_indexed(fl__hlo *h, const int64_t *stride, int64_t offset) {
    const fl_call *c = &h->call->call;
    const int axis = ((const fl_axis_args *)c->args)->axis;
    const fl_shape s = fl_shape_of(c->in[1]);
    const fl__hlo_value k = fl__hlo_in(h, 1, s, FL_I64), by = fl__hlo_number(h, s, FL_I64, 0, stride[axis]);
    const fl__hlo_value others = fl__hlo_index(h, s, stride, offset, axis);
    return fl__hlo_binary(h, "add", others, fl__hlo_binary(h, "multiply", k, by));
}

static bool fl__hlo_gather(fl__hlo *h) {
    const fl_tensor *x = h->call->call.in[0];
    const fl__hlo_value at = fl__hlo_indexed(h, x->stride, x->offset);
    return fl__hlo_out(h, fl__hlo_take(h, fl__hlo_memory(h, h->call->value[4]), at));
}

static bool fl__hlo_scatter(fl__hlo *h) {
    const fl_call *c = &h->call->call;
    const fl_tensor *x = c->in[0];
    int64_t stride[FL_MAX_DIMS], n = 1;
    for (int i = x->ndim - 1; i >= 0; n *= x->shape[i--]) stride[i] = n;
    const fl__hlo_value from = fl__hlo_in(h, 0, fl_shape_of(c->out[0]), x->dtype);
    const fl__hlo_value src = fl__hlo_in(h, 2, fl_shape_of(c->in[1]), x->dtype);
    const fl__hlo_value at = fl__hlo_indexed(h, stride, 0), flat = fl__hlo_reshape(h, from, FL_SHAPE(n));
    const fl__hlo_value y = fl__hlo_put_at(h, flat, at, src, c->op == FL_OP_scatter_add);
    return fl__hlo_out(h, fl__hlo_reshape(h, y, from.shape));
}

/* ---- creation ---- */

static bool fl__hlo_fill(fl__hlo *h) {
    const fl_tensor *y = h->call->call.out[0];
    const fl_number x = fl__export_filled(h->call);
    return fl__hlo_out(h, fl__hlo_number(h, fl_shape_of(y), y->dtype, x.f, x.i));
}

static bool fl__hlo_count(fl__hlo *h) {
    const fl_tensor *y = h->call->call.out[0];
    const fl_iota_args *a = h->call->call.args;
    const fl_shape flat = FL_SHAPE(fl_numel(y));
    const fl_dtype d = fl_dtype_is_float(y->dtype) ? FL_F64 : FL_I64;
    const fl__hlo_value n = fl__hlo_iota(h, flat, d, 0);
    const fl__hlo_value by = fl__hlo_number(h, flat, d, a->f_step, a->i_step);
    const fl__hlo_value from = fl__hlo_number(h, flat, d, a->f_start, a->i_start);
    const fl__hlo_value z = fl__hlo_binary(h, "add", from, fl__hlo_binary(h, "multiply", n, by));
    return fl__hlo_out(h, fl__hlo_reshape(h, fl__hlo_convert(h, z, y->dtype), fl_shape_of(y)));
}

/* Words of 32 bits in 64: x times or plus a number, x shifted down, its lower half. */
static fl__hlo_value fl__hlo_word(fl__hlo *h, const char *op, fl__hlo_value x, uint64_t number) {
    return fl__hlo_binary(h, op, x, fl__hlo_number(h, x.shape, FL_U64, 0, (int64_t)number));
}
static fl__hlo_value fl__hlo_high(fl__hlo *h, fl__hlo_value x) {
    return fl__hlo_word(h, "shift_right_logical", x, 32);
}
static fl__hlo_value fl__hlo_low(fl__hlo *h, fl__hlo_value x) {
    return fl__hlo_word(h, "and", x, UINT32_MAX);
}

/* Key (0) or counter (1) of the generator of the call, of that shape. */
static fl__hlo_value fl__hlo_generator(fl__hlo *h, const fl_rng *rng, int which, fl_shape s) {
    if (h->call->fixed_rng)
        return fl__hlo_number(h, s, FL_U64, 0, (int64_t)(which ? rng->counter : rng->key));
    const fl__hlo_value all = {h->rng, FL_SHAPE(2), FL_U64};
    const int64_t at = which, one = 1;
    const fl__hlo_value x = fl__hlo_reshape(h, fl__hlo_slice(h, all, &at, &one), (fl_shape){0});
    const fl__hlo_value y = fl__hlo_broadcast(h, x, s, NULL);
    return which ? fl__hlo_word(h, "add", y, rng->counter - h->e->begin.counter) : y;
}

/* The words of `blocks` blocks of Philox 4x32-10 (flm_philox in kernels/fl_math.h): [blocks, 4]. */
static fl__hlo_value fl__hlo_philox(fl__hlo *h, int64_t blocks, const fl_rng *rng) {
    const fl_shape s = FL_SHAPE(blocks);
    const fl__hlo_value key = fl__hlo_generator(h, rng, 0, s), from = fl__hlo_generator(h, rng, 1, s);
    const fl__hlo_value at = fl__hlo_binary(h, "add", from, fl__hlo_iota(h, s, FL_U64, 0));
    fl__hlo_value k[2] = {fl__hlo_low(h, key), fl__hlo_high(h, key)}, c[4];
    c[0] = fl__hlo_low(h, at), c[1] = fl__hlo_high(h, at);
    c[2] = c[3] = fl__hlo_zero(h, at);
    for (int round = 0; round < 10; round++) {
        const fl__hlo_value a = fl__hlo_word(h, "multiply", c[0], 0xd2511f53);
        const fl__hlo_value b = fl__hlo_word(h, "multiply", c[2], 0xcd9e8d57);
        c[0] = fl__hlo_binary(h, "xor", fl__hlo_binary(h, "xor", fl__hlo_high(h, b), c[1]), k[0]);
        c[1] = fl__hlo_low(h, b);
        c[2] = fl__hlo_binary(h, "xor", fl__hlo_binary(h, "xor", fl__hlo_high(h, a), c[3]), k[1]);
        c[3] = fl__hlo_low(h, a);
        k[0] = fl__hlo_low(h, fl__hlo_word(h, "add", k[0], 0x9e3779b9));
        k[1] = fl__hlo_low(h, fl__hlo_word(h, "add", k[1], 0xbb67ae85));
    }
    for (int i = 0; i < 4; i++) c[i] = fl__hlo_reshape(h, c[i], FL_SHAPE(blocks, 1));
    const fl__hlo_text type = fl__hlo_type(c[0].shape, FL_U64);
    return fl__hlo_op(h, FL_SHAPE(blocks, 4), FL_U64,
                      "stablehlo.concatenate %%%d, %%%d, %%%d, %%%d, dim = 1 : (%s, %s, %s, %s) -> ", c[0].id,
                      c[1].id, c[2].id, c[3].id, type.s, type.s, type.s, type.s);
}

/* x * by + add */
static fl__hlo_value fl__hlo_affine(fl__hlo *h, fl__hlo_value x, double by, double add) {
    const fl__hlo_value y = fl__hlo_binary(h, "multiply", x, fl__hlo_number(h, x.shape, x.dtype, by, 0));
    return fl__hlo_binary(h, "add", y, fl__hlo_number(h, x.shape, x.dtype, add, 0));
}

/* The columns [n, 1] of x [n, `columns`]. */
static void fl__hlo_columns(fl__hlo *h, fl__hlo_value x, int columns, fl__hlo_value *to) {
    const int64_t size[2] = {x.shape.dim[0], 1};
    for (int i = 0; i < columns; i++) to[i] = fl__hlo_slice(h, x, (const int64_t[2]){0, i}, size);
}

/* radius * cos(angle), radius * sin(angle) of columns: [n, 2] */
static fl__hlo_value fl__hlo_turned(fl__hlo *h, fl__hlo_value radius, fl__hlo_value angle) {
    fl__hlo_value part[2];
    for (int i = 0; i < 2; i++) {
        const fl__hlo_value turned = fl__hlo_unary(h, i ? "sine" : "cosine", angle);
        part[i] = fl__hlo_binary(h, "multiply", radius, fl__hlo_convert(h, turned, radius.dtype));
    }
    const fl__hlo_text type = fl__hlo_type(radius.shape, radius.dtype);
    return fl__hlo_op(h, FL_SHAPE(radius.shape.dim[0], 2), radius.dtype,
                      "stablehlo.concatenate %%%d, %%%d, dim = 1 : (%s, %s) -> ", part[0].id,
                      part[1].id, type.s, type.s);
}

/* sqrt(-2 log(u)) */
static fl__hlo_value fl__hlo_radius(fl__hlo *h, fl__hlo_value u) {
    return fl__hlo_unary(h, "sqrt", fl__hlo_affine(h, fl__hlo_unary(h, "log", u), -2, 0));
}

/* Standard normals from words [n, 2]: see flm_normal_f32. */
static fl__hlo_value fl__hlo_normal(fl__hlo *h, fl__hlo_value words) {
    fl__hlo_value w[2];
    fl__hlo_columns(h, words, 2, w);
    const fl__hlo_value u = fl__hlo_convert(h, fl__hlo_word(h, "shift_right_logical", w[0], 1), FL_F32);
    /* the upper 2 bits are a quadrant, the others a place around its start, signed */
    const fl__hlo_value quadrant = fl__hlo_word(h, "and", w[1], 0xc0000000);
    const fl__hlo_value place = fl__hlo_word(h, "and", fl__hlo_word(h, "add", w[1], 1u << 29), 0x3fffffff);
    const fl__hlo_value turn = fl__hlo_convert(h, fl__hlo_binary(h, "add", quadrant, place), FL_F64);
    const double right = 1.5707963267948966;
    const fl__hlo_value angle = fl__hlo_affine(h, turn, right * 0x1p-30, -right / 2);
    return fl__hlo_turned(h, fl__hlo_radius(h, fl__hlo_affine(h, u, 0x1p-31, 0x1p-32)), angle);
}

/* Columns of words as uniform numbers: see flm_uniform_f64. */
static fl__hlo_value fl__hlo_uniform_f64(fl__hlo *h, fl__hlo_value u, fl__hlo_value v) {
    const fl__hlo_value high =
        fl__hlo_word(h, "multiply", fl__hlo_word(h, "shift_right_logical", u, 5), 1u << 26);
    const fl__hlo_value all = fl__hlo_binary(h, "add", high, fl__hlo_word(h, "shift_right_logical", v, 6));
    return fl__hlo_affine(h, fl__hlo_convert(h, all, FL_F64), 0x1p-53, 0);
}

/* The upper 64 bits of n times columns of words, v the upper one: see flm_bounded. */
static fl__hlo_value fl__hlo_bounded(fl__hlo *h, fl__hlo_value u, fl__hlo_value v, uint64_t n) {
    const uint64_t nl = n & UINT32_MAX, nh = n >> 32;
    const fl__hlo_value carry = fl__hlo_high(h, fl__hlo_word(h, "multiply", u, nl));
    const fl__hlo_value mid = fl__hlo_binary(h, "add", fl__hlo_word(h, "multiply", v, nl), carry);
    const fl__hlo_value low =
        fl__hlo_binary(h, "add", fl__hlo_low(h, mid), fl__hlo_word(h, "multiply", u, nh));
    const fl__hlo_value most =
        fl__hlo_binary(h, "add", fl__hlo_word(h, "multiply", v, nh), fl__hlo_high(h, mid));
    return fl__hlo_binary(h, "add", most, fl__hlo_high(h, low));
}

static bool fl__hlo_random(fl__hlo *h) {
    const fl_tensor *y = h->call->call.out[0];
    const fl_random_args *a = h->call->call.args;
    const bool narrow = y->dtype == FL_F32, normal = a->dist == FL_NORMAL;
    const int each = narrow ? 4 : 2; /* numbers of a block of 4 words */
    const int64_t n = fl_numel(y), blocks = (n + each - 1) / each, start = 0;
    fl__hlo_value z = fl__hlo_philox(h, blocks, &a->rng), w[4];
    if (narrow == normal) z = fl__hlo_reshape(h, z, FL_SHAPE(2 * blocks, 2));
    if (!narrow) fl__hlo_columns(h, z, normal ? 4 : 2, w);
    if (a->dist == FL_INTEGER) z = fl__hlo_bounded(h, w[0], w[1], (uint64_t)a->ib - (uint64_t)a->ia);
    else if (narrow && normal) z = fl__hlo_normal(h, z);
    else if (normal) {
        const fl__hlo_value u = fl__hlo_affine(h, fl__hlo_uniform_f64(h, w[0], w[1]), -1, 1);
        const fl__hlo_value angle =
            fl__hlo_affine(h, fl__hlo_uniform_f64(h, w[2], w[3]), 6.2831853071795865, 0);
        z = fl__hlo_turned(h, fl__hlo_radius(h, u), angle);
    } else if (narrow) {
        z = fl__hlo_convert(h, fl__hlo_word(h, "shift_right_logical", z, 8), FL_F32);
        z = fl__hlo_affine(h, z, 0x1p-24, 0);
    } else z = fl__hlo_uniform_f64(h, w[1], w[0]);
    if (a->dist == FL_INTEGER)
        z = fl__hlo_convert(h, fl__hlo_word(h, "add", z, (uint64_t)a->ia), y->dtype);
    else z = fl__hlo_affine(h, z, normal ? a->b : a->b - a->a, a->a);
    z = fl__hlo_reshape(h, z, FL_SHAPE(each * blocks));
    if (n < each * blocks) z = fl__hlo_slice(h, z, &start, &n);
    return fl__hlo_out(h, fl__hlo_reshape(h, z, fl_shape_of(y)));
}

/* ---- products ---- */

static bool fl__hlo_matmul(fl__hlo *h) {
    const fl_call *c = &h->call->call;
    const fl_tensor *y = c->out[0];
    const int n = y->ndim - 2;
    int64_t batch[FL_MAX_DIMS];
    for (int i = 0; i < n; i++) batch[i] = i;
    const fl__hlo_text dims = fl__hlo_list(batch, n);
    const fl__hlo_value a = fl__hlo_in(h, 0, fl_shape_of(c->in[0]), y->dtype);
    const fl__hlo_value b = fl__hlo_in(h, 1, fl_shape_of(c->in[1]), y->dtype);
    return fl__hlo_out(h, fl__hlo_op(h, fl_shape_of(y), y->dtype,
                                     "stablehlo.dot_general %%%d, %%%d, batching_dims = %s x %s, "
                                     "contracting_dims = [%d] x [%d] : (%s, %s) -> ", a.id, b.id, dims.s,
                                     dims.s, n + 1, n, FL__HLO_TYPE(a), FL__HLO_TYPE(b)));
}

/* The window of a convolution, by dim. */
typedef struct fl__hlo_window {
    int64_t stride[2], low[2], high[2], spread_x[2], spread_w[2], groups, batch_groups;
} fl__hlo_window;

static bool fl__hlo_window_out(fl__hlo *h, fl__hlo_value x, fl__hlo_value w, const char *dims,
                               const fl__hlo_window *q) {
    const fl_tensor *y = h->call->call.out[0];
    return fl__hlo_out(
        h, fl__hlo_op(
               h, fl_shape_of(y), y->dtype,
               "stablehlo.convolution(%%%d, %%%d) dim_numbers = %s, window = {stride = %s, "
               "pad = [[%lld, %lld], [%lld, %lld]], lhs_dilate = %s, rhs_dilate = %s} "
               "{batch_group_count = %lld : i64, feature_group_count = %lld : i64} : (%s, %s) -> ",
               x.id, w.id, dims, fl__hlo_list(q->stride, 2).s, (long long)q->low[0],
               (long long)q->high[0], (long long)q->low[1], (long long)q->high[1],
               fl__hlo_list(q->spread_x, 2).s, fl__hlo_list(q->spread_w, 2).s,
               (long long)q->batch_groups, (long long)q->groups, FL__HLO_TYPE(x), FL__HLO_TYPE(w)));
}

static bool fl__hlo_conv(fl__hlo *h) {
    const fl_call *c = &h->call->call;
    const fl_conv2d_args *a = c->args;
    const fl__hlo_value x = fl__hlo_in(h, 0, fl_shape_of(c->in[0]), FL_F32);
    const fl__hlo_value w = fl__hlo_in(h, 1, fl_shape_of(c->in[1]), FL_F32);
    fl__hlo_window q = {.spread_x = {1, 1}, .groups = a->groups, .batch_groups = 1};
    for (int k = 0; k < 2; k++) {
        q.stride[k] = a->stride[k], q.spread_w[k] = a->dilation[k];
        q.low[k] = a->pad_lo[k], q.high[k] = a->pad_hi[k];
    }
    return fl__hlo_window_out(h, x, w, "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]", &q);
}

/* dy, w -> dx: dy spread by the stride, and the kernel turned round. */
static bool fl__hlo_conv_grad_input(fl__hlo *h) {
    const fl_call *c = &h->call->call;
    const fl_conv2d_args *a = c->args;
    const fl_tensor *x = c->out[0], *dy = c->in[0], *w = c->in[1];
    const int64_t g = a->groups, o = w->shape[0], i = w->shape[1], u = w->shape[2], v = w->shape[3];
    const fl__hlo_value y = fl__hlo_in(h, 0, fl_shape_of(dy), FL_F32);
    fl__hlo_value k = fl__hlo_in(h, 1, fl_shape_of(w), FL_F32);
    k = fl__hlo_reshape(h, k, FL_SHAPE(g, o / g, i, u, v));
    k = fl__hlo_transpose(h, k, (const int64_t[]){0, 2, 1, 3, 4});
    k = fl__hlo_reverse(h, fl__hlo_reshape(h, k, FL_SHAPE(g * i, o / g, u, v)), (const int64_t[]){2, 3}, 2);
    fl__hlo_window q = {.stride = {1, 1}, .groups = g, .batch_groups = 1};
    for (int d = 0; d < 2; d++) {
        const int64_t reach = a->dilation[d] * (w->shape[2 + d] - 1);
        q.spread_x[d] = a->stride[d], q.spread_w[d] = a->dilation[d], q.low[d] = reach - a->pad_lo[d];
        q.high[d] = x->shape[2 + d] - (dy->shape[2 + d] - 1) * a->stride[d] - 1 - q.low[d] + reach;
    }
    return fl__hlo_window_out(h, y, k, "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]", &q);
}

/* x, dy -> dw: channels are the batch, images the features. */
static bool fl__hlo_conv_grad_weight(fl__hlo *h) {
    const fl_call *c = &h->call->call;
    const fl_conv2d_args *a = c->args;
    const fl_tensor *w = c->out[0], *x = c->in[0], *dy = c->in[1];
    const fl__hlo_value u = fl__hlo_in(h, 0, fl_shape_of(x), FL_F32);
    const fl__hlo_value v = fl__hlo_in(h, 1, fl_shape_of(dy), FL_F32);
    fl__hlo_window q = {.spread_x = {1, 1}, .groups = 1, .batch_groups = a->groups};
    for (int d = 0; d < 2; d++) {
        const int64_t reach = a->dilation[d] * (w->shape[2 + d] - 1) + a->stride[d] * (dy->shape[2 + d] - 1);
        q.stride[d] = a->dilation[d], q.spread_w[d] = a->stride[d];
        q.low[d] = a->pad_lo[d], q.high[d] = reach + 1 - x->shape[2 + d] - q.low[d];
    }
    return fl__hlo_window_out(h, u, v, "[f, b, 0, 1]x[i, o, 0, 1]->[f, b, 0, 1]", &q);
}

/* ---- the module ---- */

static bool fl__hlo_call(fl__hlo *h) {
    const fl_call *c = &h->call->call;
    for (int k = 0; k < 4 + c->n_in; k++) {
        const fl_tensor *t = k < 4 ? k < c->n_out ? c->out[k] : NULL : c->in[k - 4];
        if (t && !t->weak && !fl__hlo_dtype(t->dtype))
            return fl__hlo_refuse(h, "bf16, f16 and registered dtypes are not written");
    }
    switch ((int)c->op) {
    case FL_OP_copy: return fl__hlo_cast(h);
    case FL_OP_where: return fl__hlo_where(h);
    case FL_OP_sum:
    case FL_OP_prod:
    case FL_OP_amax:
    case FL_OP_amin: return fl__hlo_reduce(h);
    case FL_OP_argmax:
    case FL_OP_argmin: return fl__hlo_argmax(h);
    case FL_OP_gather: return fl__hlo_gather(h);
    case FL_OP_scatter:
    case FL_OP_scatter_add: return fl__hlo_scatter(h);
    case FL_OP_cumsum:
    case FL_OP_cumprod: return fl__hlo_scan(h);
    case FL_OP_sort: return fl__hlo_sort(h);
    case FL_OP_fill: return fl__hlo_fill(h);
    case FL_OP_iota: return fl__hlo_count(h);
    case FL_OP_random: return fl__hlo_random(h);
    case FL_OP_matmul: return fl__hlo_matmul(h);
    case FL_OP_conv2d: return fl__hlo_conv(h);
    case FL_OP_conv2d_grad_input: return fl__hlo_conv_grad_input(h);
    case FL_OP_conv2d_grad_weight: return fl__hlo_conv_grad_weight(h);
    }
    return fl__hlo_elementwise(h);
}

/* Argument or result i: inputs or outputs, then the state, then the generator (-2); -1 behind the last. */
static int fl__hlo_port(const fl__export *e, bool result, int i) {
    const fl__export_kind first = result ? FL__EXPORT_OUTPUT : FL__EXPORT_INPUT;
    if (i < e->n[first]) return fl__export_find(e, first, i);
    i -= e->n[first];
    if (i < e->n[FL__EXPORT_STATE]) return fl__export_find(e, FL__EXPORT_STATE, i);
    return i == e->n[FL__EXPORT_STATE] && e->random ? -2 : -1;
}

static fl__hlo_text fl__hlo_port_type(const fl__export *e, int v) {
    return v == -2 ? fl__hlo_type(FL_SHAPE(2), FL_U64) : fl__hlo_type(e->value[v].shape, e->value[v].dtype);
}

static void fl__hlo_ports(fl__hlo *h, bool result) {
    int v;
    for (int i = 0; (v = fl__hlo_port(h->e, result, i)) != -1; i++) {
        const fl__export_value *x = v == -2 ? NULL : &h->e->value[v];
        const char *name = !x ? "rng" : x->label ? x->label : x->name;
        fl__hlo_put(h, "  // %s %d: ", result ? "result" : "argument", i);
        for (; *name; name++) fl__hlo_put(h, "%c", (unsigned char)*name < ' ' ? ' ' : *name);
        fl__hlo_put(h, "\n");
    }
}

static void fl__hlo_constants(fl__hlo *h) {
    for (int i = 0; i < h->e->n[FL__EXPORT_CONSTANT]; i++) {
        const int v = fl__export_find(h->e, FL__EXPORT_CONSTANT, i);
        const fl__export_value *x = &h->e->value[v];
        fl_buffer *b = h->e->l.value[v].buffer;
        const unsigned char *p = fl_buffer_map(b);
        const bool truth = x->dtype == FL_B8;
        h->now[v] = ++h->n;
        fl__hlo_put(h, "    %%%d = stablehlo.constant dense<%s", h->now[v], truth ? "[" : "\"0x");
        for (int64_t k = 0; p && truth && k < x->n; k++)
            fl__hlo_put(h, "%s%s", k ? ", " : "", p[k] ? "true" : "false");
        for (size_t k = 0; p && !truth && k < b->bytes; k++) fl__hlo_put(h, "%02X", p[k]);
        fl__hlo_put(h, "%s> : %s\n", truth ? "]" : "\"", fl__hlo_type(FL_SHAPE(x->n), x->dtype).s);
        if (p) fl_buffer_unmap(b);
    }
}

/* The value of result v after the step, in its shape. */
static int fl__hlo_result(fl__hlo *h, int v) {
    if (v == -2) {
        const fl__hlo_value old = {h->rng, FL_SHAPE(2), FL_U64};
        const fl__hlo_value by = fl__hlo_op(h, FL_SHAPE(2), FL_U64, "stablehlo.constant dense<[0, %llu]> : ",
                                            (unsigned long long)h->e->draws);
        return fl__hlo_binary(h, "add", old, by).id;
    }
    return fl__hlo_reshape(h, fl__hlo_memory(h, v), h->e->value[v].shape).id;
}

static void fl__hlo_module(fl__hlo *h) {
    const fl__export *e = h->e;
    int v;
    h->n = 0;
    memset(h->now, 0, (size_t)e->l.n_values * sizeof *h->now);
    fl__hlo_put(h, "// A step of %lld calls, written by fl.\nmodule @step {\n", (long long)e->l.n);
    fl__hlo_ports(h, false), fl__hlo_ports(h, true);
    fl__hlo_put(h, "  func.func public @main(");
    for (int i = 0; (v = fl__hlo_port(e, false, i)) != -1; i++)
        fl__hlo_put(h, "%s%%arg%d: %s", i ? ", " : "", i, fl__hlo_port_type(e, v).s);
    fl__hlo_put(h, ") -> (");
    for (int i = 0; (v = fl__hlo_port(e, true, i)) != -1; i++)
        fl__hlo_put(h, "%s%s", i ? ", " : "", fl__hlo_port_type(e, v).s);
    fl__hlo_put(h, ") {\n");
    for (int i = 0; (v = fl__hlo_port(e, false, i)) != -1; i++) {
        const fl_shape flat = FL_SHAPE(v == -2 ? 2 : e->value[v].n);
        const fl_dtype d = v == -2 ? FL_U64 : e->value[v].dtype;
        const int id = fl__hlo_op(h, flat, d, "stablehlo.reshape %%arg%d : (%s) -> ", i,
                                  fl__hlo_port_type(e, v).s).id;
        *(v == -2 ? &h->rng : &h->now[v]) = id;
    }
    fl__hlo_constants(h);
    for (int64_t i = 0; i < e->l.n && !h->failed; i++) {
        h->call = &e->l.call[i];
        fl__hlo_call(h);
    }
    int n = 0; /* all results have a number before they are returned */
    while (!h->failed && (v = fl__hlo_port(e, true, n)) != -1) h->result[n++] = fl__hlo_result(h, v);
    fl__hlo_put(h, "    return ");
    for (int i = 0; i < n; i++) fl__hlo_put(h, "%s%%%d", i ? ", " : "", h->result[i]);
    fl__hlo_put(h, n ? " : " : "");
    for (int i = 0; i < n; i++)
        fl__hlo_put(h, "%s%s", i ? ", " : "", fl__hlo_port_type(e, fl__hlo_port(e, true, i)).s);
    fl__hlo_put(h, "\n  }\n}\n");
}

static void fl__hlo_put_file(fl_strbuf *t, void *user) {
    fl__hlo *h = user;
    h->t = t;
    fl__hlo_module(h);
}

FL_API bool fl_graph_save_stablehlo_opt(const fl_graph *g, const char *path, fl_export_opts o) {
    static const char fn[] = "fl_graph_save_stablehlo";
    if (!fl_given(path, fn, "the path")) return fl_raise();
    fl__hlo h = {.fn = fn, .e = fl__export_new(fn, g, NULL, &o)};
    const size_t bytes = h.e ? ((size_t)h.e->l.n_values + 2) * sizeof *h.now : 0;
    bool ok = h.e && (h.now = fl_heap_alloc(bytes)) && (h.result = fl_heap_alloc(bytes));
    if (ok) fl__hlo_module(&h); /* finds what is not written */
    ok = ok && !h.failed && fl_write_file_atomic(fn, path, fl__hlo_put_file, &h);
    fl__export_free(h.e);
    fl_heap_free(h.now);
    fl_heap_free(h.result);
    return ok || fl_raise();
}

#endif
#endif
/* MIT licence: see LICENSE. */
