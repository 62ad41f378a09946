/* fl/nn/weight_norm.h - weight normalisation: magnitude and direction as separate parameters */
#ifndef FL_NN_WEIGHT_NORM_H
#define FL_NN_WEIGHT_NORM_H
#include "module.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Weight normalisation (arXiv 1602.07868) as torch.nn.utils.weight_norm: replaces m's own parameter `name` by
   name_g and name_v; each call uses g v / |v|, with norms over all axes but `axis` (PyTorch's dim, 0). g has
   size 1 along those axes and starts as that norm, v starts as the parameter. Call it before an optimizer is
   made and after fl_nn_channels_last. Returns m. After an error returns NULL, and frees m unless it has
   a parent. */
FL_API fl_nn_module *fl_nn_weight_norm(fl_nn_module *m, const char *name, int axis);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_WEIGHT_NORM_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_WEIGHT_NORM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_WEIGHT_NORM_IMPL
#define FL_NN_WEIGHT_NORM_IMPL
#include "../ops/norm.h"
#include "../ops/reduce.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Replaces a module's data; `type` wraps the original type, which runs on the combined parameter. */
typedef struct fl__nn_weight_norm {
    fl_nn_type type;
    const fl_nn_type *original;
    void *data;
    int64_t v, g; /* their indices among the parameters */
    int axis;
} fl__nn_weight_norm;

/* A copy of m with its original type and data; `param` has space for its parameters. */
static fl_nn_module fl__nn_unwrapped(const fl_nn_module *m, fl_nn_param *param) {
    const fl__nn_weight_norm *w = m->data;
    fl_nn_module inner = *m;
    inner.type = w->original;
    inner.data = w->data;
    inner.param = param;
    inner.n_param = 0;
    for (int64_t i = 0; i < m->n_param; i++)
        if (i != w->g) param[inner.n_param++] = m->param[i];
    return inner;
}

enum { FL__NN_MAX_WRAPPED = 16 }; /* most parameters of a module, copied for each call */

static fl_vars fl__nn_weight_norm_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_weight_norm *w = m->data;
    fl_nn_param param[FL__NN_MAX_WRAPPED];
    fl_nn_module inner = fl__nn_unwrapped(m, param);
    fl_var *weight = fv_weight_norm(m->param[w->v].var, m->param[w->g].var, w->axis);
    param[w->v].var = weight;
    return weight ? w->original->forward(&inner, in) : (fl_vars){0};
}

static void fl__nn_weight_norm_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_weight_norm *w = m->data;
    fl_nn_param param[FL__NN_MAX_WRAPPED];
    const fl_nn_module inner = fl__nn_unwrapped(m, param);
    if (w->original->describe) w->original->describe(&inner, buf, size);
}

static void *fl__nn_weight_norm_state(fl_nn_module *m, size_t *bytes) {
    fl_nn_param param[FL__NN_MAX_WRAPPED];
    fl_nn_module inner = fl__nn_unwrapped(m, param);
    return inner.type->state(&inner, bytes);
}

static void fl__nn_weight_norm_release(void *data) {
    fl__nn_weight_norm *w = data;
    if (w->original->release) w->original->release(w->data);
    fl_heap_free(w->data);
}

/* |v| over all axes but one, with keepdim. */
static fl_tensor *fl__nn_norms(fl_tensor *v, int axis) {
    fl_axes rest = {.keepdim = true};
    for (int i = 0; i < v->ndim; i++)
        if (i != axis) rest.axis[rest.n++] = i;
    return fl_norm(v, 2, rest);
}

/* Makes m run on a parameter combined from v and g, described by w. Returns false after an error. */
static bool fl__nn_wrap(fl_nn_module *m, const fl__nn_weight_norm *w, const char *name) {
    char v_name[FL_NN_NAME], g_name[FL_NN_NAME];
    snprintf(v_name, sizeof v_name, "%.*s_v", FL_NN_NAME - 3, name);
    snprintf(g_name, sizeof g_name, "%.*s_g", FL_NN_NAME - 3, name);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl__nn_weight_norm *data = fl_heap_alloc(sizeof *data);
    fl_tensor *g = data ? fl__nn_norms(fv_value(m->param[w->v].var), w->axis) : NULL;
    const bool ok = g && fl_nn_add_param(m, g_name, fv_param(g));
    fl_scope_end(&s);
    if (!ok) {
        fl_heap_free(data);
        return false;
    }
    *data = *w;
    memcpy(m->param[w->v].name, v_name, sizeof v_name);
    m->type = &data->type;
    m->data = data;
    return true;
}

FL_API fl_nn_module *fl_nn_weight_norm(fl_nn_module *m, const char *name, int axis) {
    if (!fl_given(m, "fl_nn_weight_norm", "the module")) return fl_raise();
    int64_t at = 0;
    while (at < m->n_param && strcmp(m->param[at].name, name ? name : "")) at++;
    const int ndim = at < m->n_param ? fv_value(m->param[at].var)->ndim : 0;
    const int one = axis < 0 ? axis + ndim : axis;
    fl_quiet(+1);
    bool ok = ndim >= 2 && one >= 0 && one < ndim && m->n_param < FL__NN_MAX_WRAPPED &&
              strlen(name) < FL_NN_NAME - 2;
    if (!ok)
        fl_fail("fl_nn_weight_norm: %s has no parameter '%s' with at least 2 dims and an axis %d", m->kind,
                name ? name : "", axis);
    fl__nn_weight_norm w = {*m->type, m->type, m->data, at, m->n_param, one};
    w.type.forward = fl__nn_weight_norm_forward;
    w.type.describe = fl__nn_weight_norm_describe;
    w.type.release = fl__nn_weight_norm_release;
    if (w.type.state) w.type.state = fl__nn_weight_norm_state;
    ok = ok && fl__nn_wrap(m, &w, name);
    fl_quiet(-1);
    if (ok) return m;
    if (!m->parent) fl_nn_free(m);
    return fl_raise();
}

#endif
#endif

/* MIT licence: see LICENSE. */
