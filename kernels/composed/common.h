/* kernels/composed/common.h - what the texts of compositions share, for tensors and for variables

   Included by twice.h; each form once in a translation unit. */
#if (defined(FL_ON_TENSORS) && !defined(FL_COMPOSED_TENSORS)) || \
    (defined(FL_ON_VARS) && !defined(FL_COMPOSED_VARS))
#ifdef FL_ON_TENSORS
#define FL_COMPOSED_TENSORS

/* value as a 0-d tensor of dtype d beside t */
static inline fl_tensor *fl__number_beside(const fl_tensor *t, double value, fl_dtype d) {
    fl_tensor *y = fl_full(FL_SCALAR_SHAPE, value, d);
    return t->weak ? y : fl_to(y, fl_family_name(t));
}
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
static inline FL_T *FL_W(_halved)(FL_T *y, fl_dtype d) {
    return y && (d == FL_F16 || d == FL_BF16) ? FL_W(cast)(y, d) : y;
}
static inline FL_T *FL_W(_narrowed)(FL_T *y, FL_T *given) {
    return FL_W(_halved)(y, FL_VALUE(given)->dtype);
}

/* All of a list widened; NULLs stay. False after an error. */
static inline bool FL_W(_widen)(FL_T **x, int n) {
    for (int i = 0; i < n; i++)
        if (x[i] && !(x[i] = FL_W(_widened)(x[i]))) return false;
    return true;
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
#endif
/* MIT licence: see LICENSE. */
