/* fl/nn/convert.h - conversion of modules: dtype, backend, weight storage, freezing for inference */
#ifndef FL_NN_CONVERT_H
#define FL_NN_CONVERT_H
#include "conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Converts all float parameters and buffers of the tree to a float dtype, in place: optimizers and other
   holders of the parameters see the new values. For f16 and bf16, norms (types with `wide`) stay, or become,
   f32: their ops take such weights with narrow inputs. A registered dtype is also allowed, for a file or
   another program: all last axes must then be whole blocks, and parameters no longer require gradients; most
   layers must be cast back before they can compute, but see fl_nn_store. Layouts are preserved. Gradients are
   dropped, and graphs recorded before cannot run backward any more. Make optimizers afterwards: their state
   has the parameters' dtype and backend. Returns false after an error, with nothing changed. */
FL_API bool fl_nn_cast(fl_nn_module *m, fl_dtype dtype);
/* Moves parameters and buffers to the backend of that name, row-major, with the same consequences. */
FL_API bool fl_nn_to(fl_nn_module *m, const char *backend);
/* Stores the weights of the tree's linear layers as f16, bf16 or a registered dtype (fl_q8), for inference
   with few input rows, which is bound by reading weights (fl_op_linear_packed). Inputs, accumulators and
   everything else keep their dtype. These weights no longer require gradients. Returns false after an error,
   with nothing changed. */
FL_API bool fl_nn_store(fl_nn_module *m, fl_dtype dtype);
/* For inference, as the last step: sets evaluation mode and promises that the parameters stay as they are
   (fl_buffer_freeze), so that backends cache packed or transformed weights from the first call on; on the cpu
   backend as much memory again for weights, up to four times for 3 x 3 convolutions. Batch norms are folded
   into copies of the weights of the convolutions before them in a container (fl_nn_run_sequence). Writing to
   a
   parameter nevertheless, as an optimizer or fl_nn_load does, ends the promise for that one. on = false frees
   the caches; the mode stays. */
FL_API bool fl_nn_freeze(fl_nn_module *m, bool on);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_CONVERT_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_CONVERT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_CONVERT_IMPL
#define FL_NN_CONVERT_IMPL
#include "../ops/copy.h"
#include <string.h>

/* A planned replacement; all are made before anything is changed. Tied tensors stay tied. */
typedef struct fl__nn_change {
    fl_tensor **place, *to; /* to: an owned reference */
    fl_var *param;
} fl__nn_change;
typedef struct fl__nn_changes {
    fl__nn_change *all;
    int64_t n, cap;
    fl_dtype dtype;
    const char *backend; /* NULL: a cast to dtype */
    bool stored;         /* fl_nn_store: weights of linear layers only, which stop requiring gradients */
} fl__nn_changes;

static fl_tensor *fl__nn_converted(const fl__nn_changes *c, const fl_nn_module *m, fl_tensor *t) {
    for (int64_t i = 0; i < c->n; i++)
        if (*c->all[i].place == t) return fl_keep(c->all[i].to);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    const fl_dtype dtype = m->type->wide ? fl_dtype_wide(c->dtype) : c->dtype;
    const bool casts = fl_dtype_is_float(t->dtype) || fl_dtype_registered(t->dtype);
    fl_tensor *to = c->backend ? fl_to(t, c->backend) : casts ? fl_cast(t, dtype) : t;
    fl_keep(to);
    fl_scope_end(&s);
    return to;
}

static bool fl__nn_plan_change(fl__nn_changes *c, const fl_nn_module *m, fl_tensor **place, fl_var *param) {
    if (!fl_heap_grow(&c->all, &c->cap, c->n + 1, sizeof *c->all)) return false;
    fl_tensor *to = fl__nn_converted(c, m, *place);
    if (to) c->all[c->n++] = (fl__nn_change){place, to, param};
    return to != NULL;
}

static bool fl__nn_convert_each(fl_nn_module *m, const char *prefix, void *user) {
    bool ok = true;
    (void)prefix;
    const fl__nn_changes *c = user;
    if (c->stored && strcmp(m->type->name, "Linear") != 0) return true;
    for (int64_t i = 0; ok && i < m->n_param; i++)
        if (!c->stored || !strcmp(m->param[i].name, "weight"))
            ok = fl__nn_plan_change(user, m, &m->param[i].var->value, m->param[i].var);
    for (int64_t i = 0; ok && i < m->n_buffer; i++)
        ok = fl__nn_plan_change(user, m, &m->buffer[i].tensor, NULL);
    return ok;
}

static bool fl__nn_convert(fl_nn_module *m, fl__nn_changes c) {
    fl_quiet(+1);
    const bool ok = fl_nn_visit_modules(m, fl__nn_convert_each, &c);
    for (int64_t i = 0; i < c.n; i++) {
        fl__nn_change *change = &c.all[i];
        fl_tensor *old = *change->place;
        if (ok && old != change->to) {
            *change->place = change->to;
            change->to = old;
            fv_zero_grad(change->param);
            if (change->param && (c.stored || fl_dtype_registered((*change->place)->dtype)))
                change->param->requires_grad = false;
        }
        fl_drop(change->to);
    }
    fl_heap_free(c.all);
    fl_quiet(-1);
    return ok || fl_raise();
}

FL_API bool fl_nn_cast(fl_nn_module *m, fl_dtype dtype) {
    if (!fl_given(m, "fl_nn_cast", "the module")) return fl_raise();
    if (!fl_dtype_is_float(dtype) && !fl_dtype_registered(dtype))
        return fl_err_false("fl_nn_cast: dtype must be a float or registered, got %s", fl_dtype_name(dtype));
    return fl__nn_convert(m, (fl__nn_changes){.dtype = dtype});
}

FL_API bool fl_nn_store(fl_nn_module *m, fl_dtype dtype) {
    if (!fl_given(m, "fl_nn_store", "the module")) return fl_raise();
    if (dtype != FL_F16 && dtype != FL_BF16 && !fl_dtype_registered(dtype))
        return fl_err_false("fl_nn_store: dtype must be f16, bf16 or registered, got %s",
                            fl_dtype_name(dtype));
    return fl__nn_convert(m, (fl__nn_changes){.dtype = dtype, .stored = true});
}

FL_API bool fl_nn_to(fl_nn_module *m, const char *backend) {
    if (!fl_given(m, "fl_nn_to", "the module") || !fl_given(backend, "fl_nn_to", "the backend"))
        return fl_raise();
    int i = 0;
    while (fl_backend_name_of(i) && strcmp(fl_backend_name_of(i), backend)) i++;
    if (!fl_backend_name_of(i)) return fl_err_false("fl_nn_to: no backend '%s'", backend);
    return fl__nn_convert(m, (fl__nn_changes){.backend = backend});
}

static bool fl__nn_freeze_params(fl_nn_module *m, const char *prefix, void *user) {
    (void)prefix;
    fl__nn_conv_unfold(m);
    for (int64_t i = 0; i < m->n_param; i++) {
        fl_buffer *b = fv_value(m->param[i].var)->buffer;
        if (b && !fl_buffer_freeze(b, *(const bool *)user)) return false;
    }
    return true;
}

FL_API bool fl_nn_freeze(fl_nn_module *m, bool on) {
    if (!fl_given(m, "fl_nn_freeze", "the module")) return fl_raise();
    if (on) fl_nn_train(m, false);
    return fl_nn_visit_modules(m, fl__nn_freeze_params, &on);
}

#endif
#endif

/* MIT licence: see LICENSE. */
