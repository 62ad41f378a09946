/* kernels/composed/common.h - what the texts of compositions share, for tensors and for variables

   Included by twice.h; each form once in a translation unit. */
#if (defined(FL_ON_TENSORS) && !defined(FL_COMPOSED_TENSORS)) || (defined(FL_ON_VARS) && !defined(FL_COMPOSED_VARS))
#ifdef FL_ON_TENSORS
#define FL_COMPOSED_TENSORS
#else
#define FL_COMPOSED_VARS
#endif

/* x as a float: integers become f32, numbers a tensor */
static inline FL_T *FL_W(_floating)(FL_T *x) {
    bool is = !FL_VALUE(x)->weak && fl_dtype_is_float(FL_VALUE(x)->dtype);
    return is ? x : MUL(x, CONST(1));
}

/* For several steps: half floats become f32 before, and the result theirs again. */
static inline FL_T *FL_W(_widened)(FL_T *x) {
    fl_dtype d = FL_VALUE(x)->dtype;
    return d == FL_F16 || d == FL_BF16 ? FL_W(cast)(x, FL_F32) : FL_W(_floating)(x);
}
static inline FL_T *FL_W(_narrowed)(FL_T *y, FL_T *given) {
    fl_dtype d = FL_VALUE(given)->dtype;
    return y && (d == FL_F16 || d == FL_BF16) ? FL_W(cast)(y, d) : y;
}

/* x rounded to d, what it and other promote to, before the steps are done in its wide dtype; a
   number keeps all its digits */
static inline FL_T *FL_W(_matched)(FL_T *x, FL_T *other, fl_dtype d) {
    fl_tensor *t = FL_VALUE(x), *like = FL_VALUE(other);
    bool number = t->weak && !like->weak && like->dtype == d;
    FL_T *y = number ? FL_OF(fl_full_like(like, t->f64)) : FL_W(cast)(x, d);
    return y ? FL_W(_widened)(y) : NULL;
}

/* c0 + c1 x + ... of n coefficients */
static inline FL_T *FL_W(_poly)(FL_T *x, const double *c, int n) {
    FL_T *y = MUL(x, CONST(c[n - 1]));
    for (int i = n - 2; i > 0; i--) y = MUL(x, ADD(y, CONST(c[i])));
    return ADD(y, CONST(c[0]));
}

/* The diagonal of the last two dims, of one size: one element of n + 1 of them in a row. */
static inline FL_T *FL_W(_diagonal)(FL_T *x) {
    if (!x) return NULL;
    fl_shape flat = fl_shape_of(FL_VALUE(x));
    int64_t n = flat.dim[--flat.ndim];
    flat.dim[flat.ndim - 1] = n * n;
    return FL_W(slice)(FL_W(reshape)(x, flat), -1, 0, n * n, n + 1);
}
#endif
/* MIT licence: see LICENSE. */
