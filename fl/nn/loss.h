/* loss.h - losses of variables */
#include "module.h"
#ifndef FL_NN_LOSS_H
#define FL_NN_LOSS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_nn_nll_opts {
    fl_named _positional;
    fl_reduction reduction; /* FL_MEAN: over the targets that count */
    int64_t ignore_index;      /* targets of this value do not count; 0 -> -100, FL_I0 -> 0 */
    char _end;
} fl_nn_nll_opts;
/* -logp[i, target[i]]: log probabilities [n, c, ...], target i64 [n, ...] -> a number ([n, ...]
   with FL_NONE). */
#define fl_nn_nll(...) FL_NN__NLL(__VA_ARGS__, ._end = 0)
#define FL_NN__NLL(logp, target, ...) fl_nn_nll_opt(logp, target, (fl_nn_nll_opts){__VA_ARGS__})
FL_API fl_var *fl_nn_nll_opt(fl_var *logp, fl_tensor *target, fl_nn_nll_opts o);

typedef struct fl_nn_cross_entropy_opts {
    fl_named _positional;
    fl_reduction reduction;
    int64_t ignore_index;
    double label_smoothing; /* the part of the target's probability that all classes share */
    char _end;
} fl_nn_cross_entropy_opts;
/* The same on the log softmax of logits along axis 1. */
#define fl_nn_cross_entropy(...) FL_NN__CROSS_ENTROPY(__VA_ARGS__, ._end = 0)
#define FL_NN__CROSS_ENTROPY(logits, target, ...) \
    fl_nn_cross_entropy_opt(logits, target, (fl_nn_cross_entropy_opts){__VA_ARGS__})
FL_API fl_var *fl_nn_cross_entropy_opt(fl_var *logits, fl_tensor *target,
                                       fl_nn_cross_entropy_opts o);

typedef struct fl_nn_mse_opts {
    fl_named _positional;
    fl_reduction reduction;
    char _end;
} fl_nn_mse_opts;
/* (x - y)^2 of two variables of one shape. */
#define fl_nn_mse(...) FL_NN__MSE(__VA_ARGS__, ._end = 0)
#define FL_NN__MSE(x, y, ...) fl_nn_mse_opt(x, y, (fl_nn_mse_opts){__VA_ARGS__})
FL_API fl_var *fl_nn_mse_opt(fl_var *x, fl_var *y, fl_nn_mse_opts o);

/* fl_ctc_loss of the log softmax of logits [n, t, c]. target i64 [n, l]; steps and lengths i64 [n]:
   of each sequence the steps and the target's length. */
#define fl_nn_ctc(...) FL_NN__CTC(__VA_ARGS__, ._ = 0)
#define FL_NN__CTC(logits, target, steps, lengths, ...) \
    fl_nn_ctc_opt(logits, target, steps, lengths, (fl_ctc_loss_opts){__VA_ARGS__})
FL_API fl_var *fl_nn_ctc_opt(fl_var *logits, fl_tensor *target, fl_tensor *steps,
                             fl_tensor *lengths, fl_ctc_loss_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_LOSS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_LOSS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_LOSS_IMPL
#define FL_NN_LOSS_IMPL

#include "../ops/index.h"
#include "../ops/reduce.h"
#include "../ops/softmax.h"

typedef struct fl__nn_class_loss {
    const char *who;
    fl_reduction reduction;
    int64_t ignore;
    double smoothing;
} fl__nn_class_loss;

static bool fl__nn_loss_shapes_ok(const fl__nn_class_loss *l, const fl_tensor *x,
                                  const fl_tensor *target) {
    bool ok = x->ndim >= 2 && target->ndim == x->ndim - 1 && fl_dtype_is_float(x->dtype) &&
              target->dtype == FL_I64;
    for (int i = 0, j = 0; ok && i < x->ndim; i++)
        if (i != 1) ok = target->shape[j++] == x->shape[i];
    if (ok) return true;
    char a[FL_NN_SHAPE], b[FL_NN_SHAPE];
    return fl_fail("%s: input %s %s wants a target [n, ...] i64, has %s %s", l->who,
                   fl_dtype_name(x->dtype), fl_shape_text(fl_shape_of(x), a, sizeof a),
                   fl_dtype_name(target->dtype), fl_shape_text(fl_shape_of(target), b, sizeof b));
}

static fl_var *fl__nn_reduce(fl_var *loss, fl_reduction r) {
    if (r == FL_NONE) return loss;
    return r == FL_SUM ? fv_sum(loss, FL_ALL_AXES) : fv_mean(loss, FL_ALL_AXES);
}

/* Of each target, 0 where it does not count. No value is read on the host: a step can be recorded,
   and runs on a device without waiting. Gather refuses a target that is no class. */
static fl_var *fl__nn_class_losses(const fl__nn_class_loss *l, fl_var *logp, fl_tensor *target) {
    if (!logp) return NULL;
    const fl_tensor *x = fv_value(logp);
    fl_tensor *counts = fl_ne(target, fl_int(l->ignore));
    fl_tensor *class_of = fl_unsqueeze(fl_where(counts, target, fl_int(0)), 1);
    fl_var *loss = fv_neg(fv_squeeze(fv_gather(logp, 1, class_of), 1));
    if (l->smoothing > 0) {
        fl_var *all = fv_mul(fv_sum(logp, FL_AXES(1)), fv_num(-l->smoothing / (double)x->shape[1]));
        loss = fv_add(fv_mul(loss, fv_num(1 - l->smoothing)), all);
    }
    return fv_where(fv_const(counts), loss, fv_num(0));
}

/* The same of logits; one pass, in f32 for halves, where they are rows of classes. */
static fl_var *fl__nn_logit_losses(const fl__nn_class_loss *l, fl_var *x, fl_tensor *target) {
    const fl_tensor *t = fv_value(x);
    fl_cross_entropy_args a = {.smoothing = l->smoothing, .ignore = l->ignore};
    if (t->ndim != 2 || t->weak || fl_numel(t) == 0)
        return fl__nn_class_losses(l, fv_log_softmax(x, 1), target);
    fl_var *wide = fv_cast(x, fl_dtype_wide(t->dtype));
    return wide ? fv_cast(fv__cross_entropy(wide, target, a), t->dtype) : NULL;
}

/* logits: x goes through a log softmax first. */
static fl_var *fl__nn_class_loss_run(const fl__nn_class_loss *l, fl_var *x, fl_tensor *target,
                                     bool logits) {
    if (!fl_nn_given(x, l->who, "the input") || !fl_nn_given(target, l->who, "the target") ||
        !fl__nn_loss_shapes_ok(l, fv_value(x), target))
        return fl_raise();
    fl_scope s = fl_scope_begin();
    fl_var *each =
        logits ? fl__nn_logit_losses(l, x, target) : fl__nn_class_losses(l, x, target);
    if (l->reduction != FL_MEAN) return fv_scope_return(&s, fl__nn_reduce(each, l->reduction));
    fl_tensor *n = fl_sum(fl_ne(target, fl_int(l->ignore)), FL_ALL_AXES);
    n = n ? fl_cast(n, fv_value(x)->dtype) : NULL;
    return fv_scope_return(&s, fv_div(fv_sum(each, FL_ALL_AXES), fv_const(n)));
}

FL_API fl_var *fl_nn_nll_opt(fl_var *logp, fl_tensor *target, fl_nn_nll_opts o) {
    const fl__nn_class_loss l = {"fl_nn_nll", o.reduction, fl_option_int(o.ignore_index, -100), 0};
    return fl__nn_class_loss_run(&l, logp, target, false);
}

FL_API fl_var *fl_nn_cross_entropy_opt(fl_var *logits, fl_tensor *target,
                                       fl_nn_cross_entropy_opts o) {
    const fl__nn_class_loss l = {"fl_nn_cross_entropy", o.reduction,
                                 fl_option_int(o.ignore_index, -100), o.label_smoothing};
    if (!(o.label_smoothing >= 0 && o.label_smoothing <= 1))
        return fl_bad("fl_nn_cross_entropy: label_smoothing is %g, must be in [0, 1]", o.label_smoothing);
    return fl__nn_class_loss_run(&l, logits, target, true);
}

FL_API fl_var *fl_nn_mse_opt(fl_var *x, fl_var *y, fl_nn_mse_opts o) {
    if (!fl_nn_given(x, "fl_nn_mse", "the first operand") ||
        !fl_nn_given(y, "fl_nn_mse", "the second operand"))
        return fl_raise();
    const fl_shape a = fl_shape_of(fv_value(x)), b = fl_shape_of(fv_value(y));
    bool same = a.ndim == b.ndim;
    for (int i = 0; same && i < a.ndim; i++) same = a.dim[i] == b.dim[i];
    if (!same) {
        char first[FL_NN_SHAPE], second[FL_NN_SHAPE];
        return fl_bad("fl_nn_mse: shapes %s and %s", fl_nn_shape_text(x, first), fl_nn_shape_text(y, second));
    }
    return fv_mse_loss(x, y, o.reduction);
}

FL_API fl_var *fl_nn_ctc_opt(fl_var *logits, fl_tensor *target, fl_tensor *steps,
                             fl_tensor *lengths, fl_ctc_loss_opts o) {
    if (!fl_nn_given(logits, "fl_nn_ctc", "the input")) return fl_raise();
    if (fv_value(logits)->ndim != 3) {
        char text[FL_NN_SHAPE];
        return fl_bad("fl_nn_ctc: logits %s, wants [n, t, c]", fl_nn_shape_text(logits, text));
    }
    fl_scope s = fl_scope_begin();
    fl_var *logp = fv_transpose(fv_log_softmax(logits, 2), 0, 1);
    return fv_scope_return(&s, fv_ctc_loss_opt(logp, target, steps, lengths, o));
}

#endif
#endif

/* MIT licence: see LICENSE. */
