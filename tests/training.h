/* training.h - training steps of the models of bench/models: tiny presets, dropout on, Adam with clipping, a
   learning rate and a batch that change at each step, written into the same tensors */
#ifndef TRAINING_H
#define TRAINING_H
#include "../bench/models/model.h"
#include "../fl_graph.h"
#include "test.h"

enum { PARTS = 3 };
typedef struct training {
    const model *m;
    model_preset p;
    fl_nn_module *net;
    fl_optim *optim;
    model_batch batch;
    fl_graph *graph[PARTS];
    fl_tensor *loss; /* of the latest step: replays write it */
} training;

/* plain: without dropout and layer drop, and detr without a mask. */
static bool training_new(training *t, const model *m, bool plain) {
    *t = (training){.m = m, .p = *model_preset_find(m, "tiny")};
    t->p.plain = plain;
    fl_seed(1);
    t->net = m->build(&t->p);
    t->batch = m->batch(&t->p);
    if (plain && m == &model_detr) t->batch.t[3] = NULL;
    if (t->batch.t[0]->ndim == 4) {
        fl_nn_channels_last(t->net);
        t->batch.t[0] = fl_channels_last(t->batch.t[0]);
    }
    t->optim = fl_optim_adam(fl_nn_parameters(t->net), .lr = 1e-3);
    for (int i = 0; i < PARTS; i++) t->graph[i] = fl_graph_new();
    return t->net && t->optim && t->graph[PARTS - 1];
}

static void training_free(training *t) {
    fl_drop(t->loss);
    for (int i = 0; i < PARTS; i++) fl_graph_free(t->graph[i]);
    fl_optim_free(t->optim);
    fl_nn_free(t->net);
}

/* The batch and the learning rate of step i: samples in reverse order, and smaller numbers than before. */
static bool prepare(training *t, int i) {
    fl_scope s = fl_scope_begin();
    bool ok = fl_optim_set_lr(t->optim, 1e-3 / (1 + 0.25 * i));
    for (int k = 0; k < MODEL_TENSORS; k++) {
        fl_tensor *x = t->batch.t[k];
        if (!x) continue;
        fl_tensor *next = fl_flip(x, 1, (int[]){0});
        if (fl_dtype_is_float(x->dtype)) next = fl_mul(next, fl_num(0.9375));
        ok = ok && fl_assign(x, next);
    }
    fl_scope_end(&s);
    return ok;
}

/* With the place in this file, as in a program that is compiled with FL_TRACE_CALLS. */
static fl_var *forward(training *t) {
    fl_site_push(__FILE__, __LINE__);
    fl_var *loss = t->m->loss(t->net, &t->p, &t->batch);
    fl_site_pop(NULL);
    return loss;
}

static bool backward(training *t, fl_var *loss) {
    fl_optim_zero_grad(t->optim);
    return fl_backward(loss);
}

static bool update(training *t) { return fl_optim_clip(t->optim, 1) && fl_optim_step(t->optim); }

static fl_tensor *step(training *t) {
    fl_scope s = fl_scope_begin();
    fl_var *loss = forward(t);
    const bool ok = loss && backward(t, loss) && update(t);
    fl_tensor *kept = ok ? fl_keep(fv_value(loss)) : NULL;
    fl_scope_end(&s);
    return kept;
}

#endif
/* MIT licence: see LICENSE. */
