/* kernels/cpu/elementwise.h - the formulas of the op tables, their gradients, and where

   One slot runs all one-operand formulas, one all two-operand formulas: c->op and the dtype pick
   the inner loop, for f32 with the ISA level. Contiguous operands go straight to it; a pass
   (common.h) takes the other layouts and the narrow dtypes. */
#include "common.h"
#ifndef FL_CPU_ELEMENTWISE_H
#define FL_CPU_ELEMENTWISE_H
#endif

#if defined(FL_IMPL_ONLY_CPU_ELEMENTWISE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_ELEMENTWISE_IMPL
#define FL_CPU_ELEMENTWISE_IMPL
FL__LOOPS_BEGIN
#include "../fl_words.h"

#define FL__YES(...) __VA_ARGS__
#define FL__NO(...)
/* Which lines have loops. */
#define FL__HAS_REQ FL__YES
#define FL__HAS_OPT FL__YES
#define FL__HAS_DEF FL__NO
/* Which classes have gradients: what gives floats. */
#define FL__GRAD_FLOAT FL__YES
#define FL__GRAD_NUM FL__YES
#define FL__GRAD_ANY FL__YES
#define FL__GRAD_INT FL__NO
#define FL__GRAD_CMP FL__NO
#define FL__GRAD_BOOL FL__NO

#define FL__GRADS
#define FL__TAKES_FLOAT FL__YES
#define FL__TAKES_NUM FL__YES
#define FL__TAKES_ANY FL__YES
#define FL__TAKES_CMP FL__YES
#define FL__TAKES_INT FL__NO
#define FL__TAKES_BOOL FL__NO
#define FL__T float
#define FL__S f32
#define FL__LEVEL portable
#define FL__TARGET
#include "elementwise_loops.h"
#undef FL__S
#ifdef FL__X86_LEVELS
#define FL__S f32_fma
#define FL__LEVEL avx2
#define FL__TARGET FL__TARGET_AVX2
#include "elementwise_loops.h"
#define FL__LEVEL avx512
#define FL__TARGET FL__TARGET_AVX512
#include "elementwise_loops.h"
#undef FL__S
#endif
#undef FL__T
#define FL__T double
#define FL__S f64
#define FL__LEVEL portable
#define FL__TARGET
#include "elementwise_loops.h"
#undef FL__T
#undef FL__S
#undef FL__GRADS

#undef FL__TAKES_FLOAT
#undef FL__TAKES_INT
#define FL__TAKES_FLOAT FL__NO
#define FL__TAKES_INT FL__YES
#define FL__T int64_t
#define FL__S i64
#define FL__LEVEL portable
#define FL__TARGET
#include "elementwise_loops.h"
#undef FL__T
#undef FL__S

#undef FL__TAKES_NUM
#undef FL__TAKES_BOOL
#define FL__TAKES_NUM FL__NO
#define FL__TAKES_BOOL FL__YES
#define FL__T uint8_t
#define FL__S b8
#define FL__LEVEL portable
#define FL__TARGET
#include "elementwise_loops.h"
#undef FL__T
#undef FL__S

/* Columns of the tables of loops: the ISA levels of f32 come first. */
enum { FL__COL_F64 = FL__AVX512 + 1, FL__COL_I64, FL__COL_B8, FL__COL_NONE, FL__COLUMNS };

#ifdef FL__X86_LEVELS
#define FL__ROW_F32(op) \
    fl__##op##_f32_portable, fl__##op##_f32_fma_avx2, fl__##op##_f32_fma_avx512
#else
#define FL__ROW_F32(op) fl__##op##_f32_portable, NULL, NULL
#endif
#define FL__ROW_FLOAT(op) {FL__ROW_F32(op), fl__##op##_f64_portable}
#define FL__ROW_NUM(op) {FL__ROW_F32(op), fl__##op##_f64_portable, fl__##op##_i64_portable}
#define FL__ROW_ANY(op) \
    {FL__ROW_F32(op), fl__##op##_f64_portable, fl__##op##_i64_portable, fl__##op##_b8_portable}
#define FL__ROW_CMP FL__ROW_ANY
#define FL__ROW_INT(op) {NULL, NULL, NULL, NULL, fl__##op##_i64_portable, fl__##op##_b8_portable}
#define FL__ROW_BOOL(op) {NULL, NULL, NULL, NULL, NULL, fl__##op##_b8_portable}
#define FL__ROW(op, cls, need, ...) FL__HAS_##need([FL_OP_##op] = FL__ROW_##cls(op), )
enum { FL__FORMULAS = FL_OP_copy }; /* the first op that is none */
static const fl__loop fl__formula_loops[FL__FORMULAS][FL__COLUMNS] = {FL_UNARY_OPS(FL__ROW)
                                                              FL_BINARY_OPS(FL__ROW)};
#undef FL__ROW

/* Gradients for operands 0 and 1. */
#define FL__ROW(op, cls, need, ...) \
    FL__HAS_##need([FL_OP_##op] = FL__GRAD_##cls({FL__ROW_FLOAT(op##_dx)}), )
#define FL__ROW2(op, cls, need, ...) \
    FL__HAS_##need([FL_OP_##op] = FL__GRAD_##cls({FL__ROW_FLOAT(op##_da), FL__ROW_FLOAT(op##_db)}), )
#undef FL__GRAD_INT
#undef FL__GRAD_CMP
#undef FL__GRAD_BOOL
#define FL__NO_GRAD(...) {{NULL}}
#define FL__GRAD_INT FL__NO_GRAD
#define FL__GRAD_CMP FL__NO_GRAD
#define FL__GRAD_BOOL FL__NO_GRAD
static const fl__loop fl__gradient_loops[FL__FORMULAS][2][FL__COLUMNS] = {FL_UNARY_OPS(FL__ROW)
                                                                  FL_BINARY_OPS(FL__ROW2)};

#define FL__CLASS(op, cls, ...) FL_CLASS_##cls,
static const uint8_t fl__classes[] = {FL_UNARY_OPS(FL__CLASS) FL_BINARY_OPS(FL__CLASS)};

#undef FL__ROW
#undef FL__ROW2
#undef FL__ROW_F32
#undef FL__ROW_FLOAT
#undef FL__ROW_NUM
#undef FL__ROW_ANY
#undef FL__ROW_CMP
#undef FL__ROW_INT
#undef FL__ROW_BOOL
#undef FL__CLASS
#undef FL__NO_GRAD
#undef FL__GRAD_FLOAT
#undef FL__GRAD_NUM
#undef FL__GRAD_ANY
#undef FL__GRAD_INT
#undef FL__GRAD_CMP
#undef FL__GRAD_BOOL
#undef FL__TAKES_FLOAT
#undef FL__TAKES_NUM
#undef FL__TAKES_ANY
#undef FL__TAKES_INT
#undef FL__TAKES_CMP
#undef FL__TAKES_BOOL
#undef FL__HAS_REQ
#undef FL__HAS_OPT
#undef FL__HAS_DEF
#undef FL__YES
#undef FL__NO
#define FL_WORDS_END
#include "../fl_words.h"

static inline int fl__column(fl_dtype d) {
    switch (d) {
    case FL_F32: return fl__cpu_isa();
    case FL_F64: return FL__COL_F64;
    case FL_I64: return FL__COL_I64;
    case FL_B8: return FL__COL_B8;
    default: return FL__COL_NONE;
    }
}

FL_PRIVATE fl__loop fl__formula_loop(fl_op op, fl_dtype d) {
    return fl__formula_loops[op][fl__column(d)];
}

/* The dtype that y is computed in, when all operands are weak numbers. */
static fl_dtype fl__dtype_of_numbers(const fl_call *c) {
    switch (fl__classes[c->op]) {
    case FL_CLASS_CMP: return FL_F64;
    case FL_CLASS_BOOL: return FL_B8;
    default: return c->out[0]->dtype;
    }
}

/* fl_data for dtypes that have loops, whose sizes are known here. */
static inline void *fl__bytes(const fl_tensor *t) {
    int shift = t->dtype == FL_F32 ? 2 : t->dtype == FL_B8 ? 0 : 3;
    return (char *)t->buffer->ptr + t->offset * ((int64_t)1 << shift);
}

/* True, with the number of elements, if all are contiguous: what nearly every call is. */
static inline bool fl__all_dense(const fl_tensor *y, const fl_tensor *a, const fl_tensor *b,
                                 int64_t *numel) {
    int64_t n = 1;
    if (a->weak | b->weak) return false;
    for (int i = y->ndim - 1; i >= 0; i--) {
        int64_t dim = y->shape[i];
        if (dim != 1 && ((y->stride[i] != n) | (a->stride[i] != n) | (b->stride[i] != n)))
            return false;
        n *= dim;
    }
    *numel = n;
    return true;
}

static bool fl__unary_pass(const fl_call *c) {
    fl_tensor *y = c->out[0];
    const fl_tensor *x = c->in[0];
    fl_dtype d = x->weak ? fl__dtype_of_numbers(c) : x->dtype;
    fl_dtype wide = fl_dtype_wide(d);
    fl__loop loop = fl__formula_loop(c->op, wide);
    fl__pass p;
    if (!loop) return fl__no_kernel(c, d);
    if (!fl_make(y)) return false;
    fl__pass_begin(&p, loop, NULL);
    fl__pass_follow(&p, y);
    fl__pass_add_wide(&p, y, FL_WRITE, wide);
    fl__pass_add_wide(&p, x, FL_READ, wide);
    fl__pass_run(&p, fl_numel(y));
    return true;
}

/* Small dense operands go straight to the loop. Narrow dtypes have none of their own. */
FL_PRIVATE bool fl__cpu_unary(const fl_backend *self, const fl_call *c) {
    fl_tensor *y = c->out[0];
    const fl_tensor *x = c->in[0];
    fl__loop loop = fl__formula_loop(c->op, x->dtype);
    int64_t n;
    (void)self;
    if (!loop || !fl__all_dense(y, x, x, &n) || n > FL__GRAIN) return fl__unary_pass(c);
    if (!fl_make(y)) return false;
    loop((void *[]){fl__bytes(y), fl__bytes(x)}, n, NULL);
    return true;
}

/* Sets *(bool *)arg if p[0] has a zero. Chunks of other threads set it too: to the same value. */
static void fl__find_zero(void *const p[], int64_t n, const void *arg) {
    const int64_t *x = p[0];
    bool *found = *(bool *const *)arg;
    int zero = 0;
    for (int64_t i = 0; i < n; i++) zero |= x[i] == 0;
    if (zero) __atomic_store_n(found, true, __ATOMIC_RELAXED);
}

static bool fl__check_divisor(const fl_tensor *b, int64_t numel) {
    bool zero = false, *found = &zero;
    fl__pass p;
    fl__pass_begin(&p, fl__find_zero, &found);
    fl__pass_add_wide(&p, b, FL_READ, FL_I64);
    fl__pass_run(&p, numel);
    return !zero || fl_fail("fl_remainder: integer division by zero");
}

static bool fl__binary_pass(const fl_call *c) {
    fl_tensor *y = c->out[0];
    const fl_tensor *a = c->in[0], *b = c->in[1];
    fl_dtype d = !a->weak ? a->dtype : !b->weak ? b->dtype : fl__dtype_of_numbers(c);
    fl_dtype wide = fl_dtype_wide(d);
    fl__loop loop = fl__formula_loop(c->op, wide);
    bool divides = c->op == FL_OP_remainder && wide == FL_I64;
    fl__pass p;
    if (!loop) return fl__no_kernel(c, d);
    if (!fl_make(y)) return false;
    bool ok = !divides || fl__check_divisor(b, fl_numel(y)); /* first: y may be b */
    fl__pass_begin(&p, loop, NULL);
    fl__pass_follow(&p, y);
    fl__pass_add_wide(&p, y, FL_WRITE, wide);
    fl__pass_add_wide(&p, a, FL_READ, wide);
    fl__pass_add_wide(&p, b, FL_READ, wide);
    fl__pass_run(&p, fl_numel(y));
    return ok;
}

FL_PRIVATE bool fl__cpu_binary(const fl_backend *self, const fl_call *c) {
    fl_tensor *y = c->out[0];
    const fl_tensor *a = c->in[0], *b = c->in[1];
    fl__loop loop = fl__formula_loop(c->op, a->dtype);
    bool checked = c->op == FL_OP_remainder; /* its divisor */
    int64_t n;
    (void)self;
    if (!loop || checked || !fl__all_dense(y, a, b, &n) || n > FL__GRAIN)
        return fl__binary_pass(c);
    if (!fl_make(y)) return false;
    loop((void *[]){fl__bytes(y), fl__bytes(a), fl__bytes(b)}, n, NULL);
    return true;
}

static bool fl__grad1_pass(const fl_call *c) {
    const fl_grad_args *args = c->args;
    fl_tensor *dx = c->out[0];
    fl_dtype wide = fl_dtype_wide(dx->dtype);
    fl__loop loop = fl__gradient_loops[args->op][0][fl__column(wide)];
    fl__pass p;
    if (!loop) return fl__no_kernel(c, dx->dtype);
    if (!fl_make(dx)) return false;
    fl__pass_begin(&p, loop, NULL);
    fl__pass_follow(&p, dx);
    fl__pass_add_wide(&p, dx, FL_WRITE, wide);
    for (int k = 0; k < 3; k++) fl__pass_add_wide(&p, c->in[k], FL_READ, wide);
    fl__pass_run(&p, fl_numel(dx));
    return true;
}

FL_PRIVATE bool fl__cpu_grad1(const fl_backend *self, const fl_call *c) {
    fl_tensor *dx = c->out[0], *x = c->in[0], *y = c->in[1], *dy = c->in[2];
    fl__loop loop = fl__gradient_loops[((const fl_grad_args *)c->args)->op][0][fl__column(dx->dtype)];
    int64_t n;
    (void)self;
    if (!loop || !fl__all_dense(dx, x, y, &n) || !fl__all_dense(dx, dy, dy, &n) || n > FL__GRAIN)
        return fl__grad1_pass(c);
    if (!fl_make(dx)) return false;
    loop((void *[]){fl__bytes(dx), fl__bytes(x), fl__bytes(y), fl__bytes(dy)}, n, NULL);
    return true;
}

/* Both gradients of a block while its operands are in the cache: p is da, db, a, b, y, dy. */
static void fl__grad2_block(void *const p[], int64_t n, const void *arg) {
    const fl__loop *loop = arg;
    loop[0]((void *[]){p[0], p[2], p[3], p[4], p[5]}, n, NULL);
    loop[1]((void *[]){p[1], p[2], p[3], p[4], p[5]}, n, NULL);
}

FL_PRIVATE bool fl__cpu_grad2(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_grad_args *args = c->args;
    fl_tensor *da = c->out[0], *db = c->out[1], *any = da ? da : db;
    if (!any) return true;
    fl_dtype wide = fl_dtype_wide(any->dtype);
    int column = fl__column(wide);
    const fl__loop loop[2] = {fl__gradient_loops[args->op][0][column],
                              fl__gradient_loops[args->op][1][column]};
    if (!loop[0]) return fl__no_kernel(c, any->dtype);
    if ((da && !fl_make(da)) || (db && !fl_make(db))) return false;
    fl__pass p;
    fl__pass_begin(&p, da && db ? fl__grad2_block : loop[da ? 0 : 1], loop);
    p.blocked = da && db;
    fl__pass_follow(&p, any);
    if (da) fl__pass_add_wide(&p, da, FL_WRITE, wide);
    if (db) fl__pass_add_wide(&p, db, FL_WRITE, wide);
    for (int k = 0; k < 4; k++) fl__pass_add_wide(&p, c->in[k], FL_READ, wide);
    fl__pass_run(&p, fl_numel(any));
    return true;
}

#define FL__WHERE(T, name) \
    static void fl__where_##name(void *const p[], int64_t n, const void *arg) { \
        (void)arg; \
        T *y = p[0]; \
        const uint8_t *c = p[1]; \
        const T *a = p[2], *b = p[3]; \
        FL__VECTOR for (int64_t i = 0; i < n; i++) { \
            const T yes = a[i], no = b[i]; \
            y[i] = c[i] ? yes : no; \
        } \
    }
FL__WHERE(uint8_t, b8)
FL__WHERE(int64_t, i64)
FL__WHERE(float, f32)
FL__WHERE(double, f64)
#undef FL__WHERE

FL_PRIVATE bool fl__cpu_where(const fl_backend *self, const fl_call *c) {
    static const fl__loop loops[FL_DTYPE_COUNT] = {[FL_B8] = fl__where_b8,
                                                   [FL_I64] = fl__where_i64,
                                                   [FL_F32] = fl__where_f32,
                                                   [FL_F64] = fl__where_f64};
    (void)self;
    fl_tensor *y = c->out[0];
    fl_dtype wide = fl_dtype_wide(y->dtype);
    fl__pass p;
    if (!loops[wide]) return fl__no_kernel(c, y->dtype);
    if (!fl_make(y)) return false;
    fl__pass_begin(&p, loops[wide], NULL);
    fl__pass_follow(&p, y);
    fl__pass_add_wide(&p, y, FL_WRITE, wide);
    fl__pass_add(&p, c->in[0], FL_READ, FL_B8);
    fl__pass_add_wide(&p, c->in[1], FL_READ, wide);
    fl__pass_add_wide(&p, c->in[2], FL_READ, wide);
    fl__pass_run(&p, fl_numel(y));
    return true;
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
