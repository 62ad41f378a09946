/* fl/nn/init.h - parameter initialisation: constant, uniform, normal, Kaiming, Glorot */
#ifndef FL_NN_INIT_H
#define FL_NN_INIT_H
#include "module.h"

#ifdef __cplusplus
extern "C" {
#endif

/* These overwrite the value of p and return false after an error. rng NULL -> the global generator. */
FL_API bool fl_nn_init_constant(fl_var *p, double value);
FL_API bool fl_nn_init_uniform(fl_var *p, double low, double high, fl_rng *rng);
FL_API bool fl_nn_init_normal(fl_var *p, double mean, double std, fl_rng *rng);
/* Fan in and fan out of a weight [out, in, ...]: in and out times the product of the other dims. False after
   an error. */
FL_API bool fl_nn_fan(const fl_var *p, int64_t *fan_in, int64_t *fan_out);
/* Kaiming (He): standard deviation gain / sqrt(fan_in), gain = sqrt(2 / (1 + a^2)), where a is the negative
   slope of a leaky ReLU (0: ReLU). */
FL_API bool fl_nn_init_kaiming_uniform(fl_var *p, double a, fl_rng *rng);
FL_API bool fl_nn_init_kaiming_normal(fl_var *p, double a, fl_rng *rng);
/* Glorot (Xavier): standard deviation gain sqrt(2 / (fan_in + fan_out)). */
FL_API bool fl_nn_init_glorot_uniform(fl_var *p, double gain, fl_rng *rng);
FL_API bool fl_nn_init_glorot_normal(fl_var *p, double gain, fl_rng *rng);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_INIT_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_INIT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_INIT_IMPL
#define FL_NN_INIT_IMPL
#include "../ops/copy.h"
#include "../ops/random.h"
#include <math.h>

/* Overwrites p with t, which scope s holds, and ends the scope. */
static bool fl__nn_overwrite(fl_scope *s, fl_var *p, fl_tensor *t) {
    const bool ok = t && (fl_flags() & FL_SHAPES_ONLY || fl_assign(fv_value(p), t));
    fl_scope_end(s);
    if (!ok) fl_raise();
    return ok;
}

FL_API bool fl_nn_init_constant(fl_var *p, double value) {
    if (!fl_given(p, "fl_nn_init_constant", "the parameter")) return fl_raise();
    fl_scope s = fl_scope_begin();
    return fl__nn_overwrite(&s, p, fl_num(value));
}

FL_API bool fl_nn_init_uniform(fl_var *p, double low, double high, fl_rng *rng) {
    if (!fl_given(p, "fl_nn_init_uniform", "the parameter")) return fl_raise();
    fl_scope s = fl_scope_begin();
    const fl_tensor *t = fv_value(p);
    return fl__nn_overwrite(&s, p, fl_uniform(fl_shape_of(t), low, high, t->dtype, rng));
}

FL_API bool fl_nn_init_normal(fl_var *p, double mean, double std, fl_rng *rng) {
    if (!fl_given(p, "fl_nn_init_normal", "the parameter")) return fl_raise();
    fl_scope s = fl_scope_begin();
    const fl_tensor *t = fv_value(p);
    return fl__nn_overwrite(&s, p, fl_normal(fl_shape_of(t), mean, std, t->dtype, rng));
}

FL_API bool fl_nn_fan(const fl_var *p, int64_t *fan_in, int64_t *fan_out) {
    if (!fl_given(p, "fl_nn_fan", "the parameter")) return fl_raise();
    const fl_shape s = fl_shape_of(fv_value(p));
    if (s.ndim < 2) {
        char text[FL_NN_SHAPE];
        return fl_err_false("fl_nn_fan: the weight must have at least 2 dims, got %s",
                            fl_nn_shape_text(p, text));
    }
    int64_t field = 1;
    for (int i = 2; i < s.ndim; i++) field *= s.dim[i];
    *fan_in = s.dim[1] * field;
    *fan_out = s.dim[0] * field;
    return true;
}

/* U(-b, b) has standard deviation b / sqrt(3). */
FL_API bool fl_nn_init_kaiming_uniform(fl_var *p, double a, fl_rng *rng) {
    int64_t in, out;
    if (!fl_nn_fan(p, &in, &out)) return false;
    const double bound = sqrt(3.0) * sqrt(2 / (1 + a * a)) / sqrt((double)in);
    return fl_nn_init_uniform(p, -bound, bound, rng);
}

FL_API bool fl_nn_init_kaiming_normal(fl_var *p, double a, fl_rng *rng) {
    int64_t in, out;
    return fl_nn_fan(p, &in, &out) &&
           fl_nn_init_normal(p, 0, sqrt(2 / (1 + a * a)) / sqrt((double)in), rng);
}

FL_API bool fl_nn_init_glorot_uniform(fl_var *p, double gain, fl_rng *rng) {
    int64_t in, out;
    if (!fl_nn_fan(p, &in, &out)) return false;
    const double bound = sqrt(3.0) * gain * sqrt(2 / (double)(in + out));
    return fl_nn_init_uniform(p, -bound, bound, rng);
}

FL_API bool fl_nn_init_glorot_normal(fl_var *p, double gain, fl_rng *rng) {
    int64_t in, out;
    return fl_nn_fan(p, &in, &out) &&
           fl_nn_init_normal(p, 0, gain * sqrt(2 / (double)(in + out)), rng);
}

#endif
#endif

/* MIT licence: see LICENSE. */
