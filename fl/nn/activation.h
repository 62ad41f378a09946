/* fl/nn/activation.h - activation layers */
#ifndef FL_NN_ACTIVATION_H
#define FL_NN_ACTIVATION_H
#include "module.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A function of one variable as a layer, e.g. fl_nn_activation("Log", fv_log); kind is the printed name. The
   others also pass an axis, or scalars, which are printed under the names of a list:
   fl_nn_activation_2("Scale", "factor, shift", scaled, 2, 1) with fl_var *scaled(fl_var *x, double factor,
   double shift). All texts are literals. For functions with state or several inputs use fl_nn_function. */
FL_API fl_nn_module *fl_nn_activation(const char *kind, fl_var *(*fn)(fl_var *x));
FL_API fl_nn_module *fl_nn_activation_axis(const char *kind, fl_var *(*fn)(fl_var *x, int axis), int axis);
FL_API fl_nn_module *fl_nn_activation_1(const char *kind, const char *names,
                                        fl_var *(*fn)(fl_var *x, double a), double a);
FL_API fl_nn_module *fl_nn_activation_2(const char *kind, const char *names,
                                        fl_var *(*fn)(fl_var *x, double a, double b), double a, double b);
/* The function given to fl_nn_activation; NULL for any other module. */
typedef fl_var *(*fl_nn_activation_fn)(fl_var *x);
FL_API fl_nn_activation_fn fl_nn_activation_of(const fl_nn_module *m);

/* Layers of fv_relu, and so on; fl/ops/activation.h has the formulas. */
FL_API fl_nn_module *fl_nn_relu(void);
FL_API fl_nn_module *fl_nn_relu6(void);
FL_API fl_nn_module *fl_nn_gelu(void);
FL_API fl_nn_module *fl_nn_gelu_tanh(void);
FL_API fl_nn_module *fl_nn_tanh(void);
FL_API fl_nn_module *fl_nn_sigmoid(void);
FL_API fl_nn_module *fl_nn_silu(void);
FL_API fl_nn_module *fl_nn_mish(void);
FL_API fl_nn_module *fl_nn_selu(void);
FL_API fl_nn_module *fl_nn_softsign(void);
FL_API fl_nn_module *fl_nn_logsigmoid(void);
FL_API fl_nn_module *fl_nn_tanhshrink(void);
FL_API fl_nn_module *fl_nn_hardsigmoid(void);
FL_API fl_nn_module *fl_nn_hardswish(void);
/* With parameters: 0 is PyTorch's default, FL_ZERO is 0. */
FL_API fl_nn_module *fl_nn_leaky_relu(double slope);                     /* 0 -> 0.01 */
FL_API fl_nn_module *fl_nn_elu(double alpha);                            /* 0 -> 1 */
FL_API fl_nn_module *fl_nn_celu(double alpha);                           /* 0 -> 1 */
FL_API fl_nn_module *fl_nn_swish(double beta);                           /* 0 -> 1 */
FL_API fl_nn_module *fl_nn_hardshrink(double lambda);                    /* 0 -> 0.5 */
FL_API fl_nn_module *fl_nn_softshrink(double lambda);                    /* 0 -> 0.5 */
FL_API fl_nn_module *fl_nn_softplus(double beta, double threshold);      /* 0, 0 -> 1, 20 */
FL_API fl_nn_module *fl_nn_threshold(double threshold, double value);    /* x > threshold ? x : value */
/* min(max(x, low), high), with gradient 0 at both bounds; low < high; 0, 0 -> -1, 1 */
FL_API fl_nn_module *fl_nn_hardtanh(double low, double high);
/* Along an axis; softmin is the softmax of -x; glu is a sigmoid(b), a and b being the halves of x. */
FL_API fl_nn_module *fl_nn_softmax(int axis);
FL_API fl_nn_module *fl_nn_softmin(int axis);
FL_API fl_nn_module *fl_nn_log_softmax(int axis);
FL_API fl_nn_module *fl_nn_glu(int axis);

typedef struct fl_nn_prelu_opts {
    fl_opts_guard guard_;
    double init; /* 0 -> 0.25 */
    fl_dtype dtype;
    char _end;
} fl_nn_prelu_opts;
/* x > 0 ? x : weight x with weight [n]: one for all (n = 1), or one per channel, axis 1 (PyTorch's PReLU). */
#define fl_nn_prelu(...) FL_NN__PRELU(__VA_ARGS__, ._end = 0)
#define FL_NN__PRELU(n, ...) fl_nn_prelu_opt(n, FL_LITERAL(fl_nn_prelu_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_prelu_opt(int64_t n, fl_nn_prelu_opts o);
/* x > 0 ? x : a x; in training each a is uniform in [low, high), in evaluation their mean (PyTorch's RReLU;
   arXiv 1505.00853). 0, 0 -> 1 / 8, 1 / 3. rng NULL: the global generator; otherwise it must outlive the
   layer. */
FL_API fl_nn_module *fl_nn_rrelu(double low, double high, fl_rng *rng);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_ACTIVATION_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_ACTIVATION) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_ACTIVATION_IMPL
#define FL_NN_ACTIVATION_IMPL
#include "../ops/activation.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/random.h"
#include "../ops/softmax.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A function and its arguments besides x; form selects the member of fn. */
typedef struct fl__nn_activation {
    enum { FL__NN_PLAIN, FL__NN_AXIS, FL__NN_ONE, FL__NN_TWO } form;
    union {
        fl_nn_activation_fn plain;
        fl_var *(*axis)(fl_var *x, int axis);
        fl_var *(*one)(fl_var *x, double a);
        fl_var *(*two)(fl_var *x, double a, double b);
    } fn;
    const char *names;
    int axis;
    double a[2];
} fl__nn_activation;

static fl_vars fl__nn_activation_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_activation *f = m->data;
    fl_var *x = in.v[0];
    const int ndim = fv_value(x)->ndim ? fv_value(x)->ndim : 1; /* a scalar has the axes 0 and -1 */
    if (f->form == FL__NN_PLAIN) return FL_VARS(f->fn.plain(x));
    if (f->form == FL__NN_ONE) return FL_VARS(f->fn.one(x, f->a[0]));
    if (f->form == FL__NN_TWO) return FL_VARS(f->fn.two(x, f->a[0], f->a[1]));
    if (f->axis < -ndim || f->axis >= ndim) {
        char text[FL_NN_SHAPE];
        return fl_nn_fail(m, "axis %d is out of range for input %s", f->axis, fl_nn_shape_text(x, text));
    }
    return FL_VARS(f->fn.axis(x, f->axis));
}

/* "beta=1, threshold=20" of the names "beta, threshold" */
static void fl__nn_activation_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_activation *f = m->data;
    fl_nn_text t = {buf, size, 0};
    const char *name = f->names ? f->names : "";
    if (f->form == FL__NN_AXIS) fl_nn_put(&t, "dim=%d", f->axis);
    for (int i = 0; f->form >= FL__NN_ONE && i <= (int)f->form - FL__NN_ONE; i++) {
        const int n = (int)strcspn(name, ",");
        fl_nn_put(&t, "%s%.*s=%g", i ? ", " : "", n, name, f->a[i]);
        name += n;
        name += strspn(name, ", ");
    }
}

static const fl_nn_type fl__nn_activation_type = {.name = "Activation", .inputs = 1,
                                                  .forward = fl__nn_activation_forward,
                                                  .describe = fl__nn_activation_describe};

static fl_nn_module *fl__nn_activation_new(const char *kind, const fl__nn_activation *f) {
    if (!f->fn.plain) return fl_err_null("fl_nn_activation: the function is NULL");
    fl_nn_module *m = fl_nn_new(&fl__nn_activation_type, f, sizeof *f);
    if (m && kind) m->kind = kind;
    return m;
}

FL_API fl_nn_module *fl_nn_activation(const char *kind, fl_var *(*fn)(fl_var *x)) {
    return fl__nn_activation_new(kind, &(fl__nn_activation){.form = FL__NN_PLAIN, .fn.plain = fn});
}

FL_API fl_nn_module *fl_nn_activation_axis(const char *kind, fl_var *(*fn)(fl_var *x, int axis), int axis) {
    return fl__nn_activation_new(kind,
                                 &(fl__nn_activation){.form = FL__NN_AXIS, .fn.axis = fn, .axis = axis});
}

FL_API fl_nn_module *fl_nn_activation_1(const char *kind, const char *names,
                                        fl_var *(*fn)(fl_var *x, double a), double a) {
    return fl__nn_activation_new(
        kind, &(fl__nn_activation){.form = FL__NN_ONE, .fn.one = fn, .names = names, .a = {a}});
}

FL_API fl_nn_module *fl_nn_activation_2(const char *kind, const char *names,
                                        fl_var *(*fn)(fl_var *x, double a, double b), double a, double b) {
    return fl__nn_activation_new(
        kind, &(fl__nn_activation){.form = FL__NN_TWO, .fn.two = fn, .names = names, .a = {a, b}});
}

FL_API fl_nn_activation_fn fl_nn_activation_of(const fl_nn_module *m) {
    if (!m || m->type != &fl__nn_activation_type) return NULL;
    const fl__nn_activation *f = m->data;
    return f->form == FL__NN_PLAIN ? f->fn.plain : NULL;
}

static fl_var *fl__nn_softmin(fl_var *x, int axis) {
    return fv_softmax(fv_neg(x), axis);
}

/* No gradient at the bounds, as in PyTorch. */
static fl_var *fl__nn_hardtanh(fl_var *x, double low, double high) {
    fl_var *inside = fv_logical_and(fv_gt(x, fv_num(low)), fv_lt(x, fv_num(high)));
    return fv_where(inside, x, fv_const(fl_clamp(fv_value(x), fl_num(low), fl_num(high))));
}

/* X(function, kind), then X(function, kind, parameter names, default) */
#define FL__NN_ACTIVATIONS(X) \
    X(relu, "ReLU") X(relu6, "ReLU6") X(gelu, "GELU") X(gelu_tanh, "GELUTanh") X(tanh, "Tanh") \
    X(sigmoid, "Sigmoid") X(silu, "SiLU") X(mish, "Mish") X(selu, "SELU") X(softsign, "Softsign") \
    X(logsigmoid, "LogSigmoid") X(tanhshrink, "Tanhshrink") X(hardsigmoid, "Hardsigmoid") \
    X(hardswish, "Hardswish")
#define FL__NN_ACTIVATIONS_1(X) \
    X(leaky_relu, "LeakyReLU", "negative_slope", 0.01) \
    X(elu, "ELU", "alpha", 1) \
    X(celu, "CELU", "alpha", 1) \
    X(swish, "Swish", "beta", 1) \
    X(hardshrink, "Hardshrink", "lambd", 0.5) \
    X(softshrink, "Softshrink", "lambd", 0.5)
#define FL__NN_MAKE(name, kind) \
    FL_API fl_nn_module *fl_nn_##name(void) { return fl_nn_activation(kind, fv_##name); }
#define FL__NN_MAKE_1(name, kind, names, otherwise) \
    FL_API fl_nn_module *fl_nn_##name(double a) { \
        return fl_nn_activation_1(kind, names, fv_##name, fl_option(a, otherwise)); \
    }
FL__NN_ACTIVATIONS(FL__NN_MAKE)
FL__NN_ACTIVATIONS_1(FL__NN_MAKE_1)
#undef FL__NN_MAKE
#undef FL__NN_MAKE_1

FL_API fl_nn_module *fl_nn_softplus(double beta, double threshold) {
    return fl_nn_activation_2("Softplus", "beta, threshold", fv_softplus_beta, fl_option(beta, 1),
                              fl_option(threshold, 20));
}
FL_API fl_nn_module *fl_nn_threshold(double threshold, double value) {
    return fl_nn_activation_2("Threshold", "threshold, value", fv_threshold, threshold, value);
}
FL_API fl_nn_module *fl_nn_hardtanh(double low, double high) {
    low = fl_option(low, -1), high = fl_option(high, 1);
    if (!(low < high)) return fl_err_null("fl_nn_hardtanh: low must be less than high, got %g and %g", low,
                                          high);
    return fl_nn_activation_2("Hardtanh", "min_val, max_val", fl__nn_hardtanh, low, high);
}
FL_API fl_nn_module *fl_nn_softmax(int axis) {
    return fl_nn_activation_axis("Softmax", fv_softmax, axis);
}
FL_API fl_nn_module *fl_nn_softmin(int axis) {
    return fl_nn_activation_axis("Softmin", fl__nn_softmin, axis);
}
FL_API fl_nn_module *fl_nn_log_softmax(int axis) {
    return fl_nn_activation_axis("LogSoftmax", fv_log_softmax, axis);
}
FL_API fl_nn_module *fl_nn_glu(int axis) {
    return fl_nn_activation_axis("GLU", fv_glu, axis);
}

static fl_vars fl__nn_prelu_forward(fl_nn_module *m, fl_vars in) {
    const fl_tensor *x = fv_value(in.v[0]);
    fl_var *w = fl_nn_param_at(m, 0);
    const int64_t n = fl_numel(fv_value(w));
    if (n != 1 && (x->ndim < 2 || x->shape[1] != n)) {
        char text[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s, expected [n, %" PRId64 ", ...]", fl_nn_shape_text(in.v[0], text), n);
    }
    return FL_VARS(fv_prelu_channels(in.v[0], w));
}

static void fl__nn_prelu_describe(const fl_nn_module *m, char *buf, size_t size) {
    snprintf(buf, size, "num_parameters=%" PRId64, fl_numel(fv_value(fl_nn_param_at(m, 0))));
}

static const fl_nn_type fl__nn_prelu_type = {.name = "PReLU", .maker = "fl_nn_prelu", .inputs = 1,
                                             .forward = fl__nn_prelu_forward,
                                             .describe = fl__nn_prelu_describe};

FL_API fl_nn_module *fl_nn_prelu_opt(int64_t n, fl_nn_prelu_opts o) {
    if (n < 1) return fl_err_null("fl_nn_prelu: n must be positive, got %" PRId64, n);
    if (!fl_nn_dtype_ok("fl_nn_prelu", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl_nn_module *m = fl_nn_new(&fl__nn_prelu_type, NULL, 0);
    fl_tensor *w = m ? fl_full(FL_SHAPE(n), fl_option(o.init, 0.25), o.dtype ? o.dtype : FL_F32) : NULL;
    const bool ok = w && fl_nn_add_param(m, "weight", fv_param(w));
    fl_scope_end(&s);
    return fl_nn_finish(m, ok);
}

typedef struct fl__nn_rrelu {
    double low, high;
    fl_rng *rng;
} fl__nn_rrelu;

static fl_vars fl__nn_rrelu_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_rrelu *r = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    if (!m->train) return FL_VARS(fv_leaky_relu(in.v[0], (r->low + r->high) / 2));
    fl_tensor *a = fl_uniform(fl_shape_of(x), r->low, r->high, x->dtype, r->rng);
    return FL_VARS(fv_prelu(in.v[0], fv_const(a ? fl_to(a, fl_backend_name(x)) : NULL)));
}

static void fl__nn_rrelu_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_rrelu *r = m->data;
    snprintf(buf, size, "lower=%g, upper=%g", r->low, r->high);
}

static const fl_nn_type fl__nn_rrelu_type = {.name = "RReLU", .maker = "fl_nn_rrelu", .inputs = 1,
                                             .forward = fl__nn_rrelu_forward,
                                             .describe = fl__nn_rrelu_describe};

FL_API fl_nn_module *fl_nn_rrelu(double low, double high, fl_rng *rng) {
    const fl__nn_rrelu r = {fl_option(low, 1.0 / 8), fl_option(high, 1.0 / 3), rng};
    if (!(r.low <= r.high)) return fl_err_null("fl_nn_rrelu: low must not exceed high, got %g and %g", r.low,
                                               r.high);
    return fl_nn_new(&fl__nn_rrelu_type, &r, sizeof r);
}

#endif
#endif

/* MIT licence: see LICENSE. */
