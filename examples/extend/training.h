/* examples/extend/training.h - the training run that these programs and tests share */
#ifndef TRAINING_H
#define TRAINING_H

#include "../arguments.h"
#include "../digits.h"

#include <stdlib.h>

typedef struct training_run {
    fl_nn_module *net;
    fl_optim *optim;
    fl_data_set *batches;
    fl_tensor *x, *target; /* what a step trains on, rewritten for each */
} training_run;

/* Steps from the command line. */
static inline int64_t training_steps(int argc, char **argv, int64_t otherwise) {
    arguments_help(argc, argv, "[STEPS]", NULL);
    long long n = argc > 1 ? atoll(argv[1]) : 0;
    return n > 0 ? n : otherwise;
}

static inline void training_end(training_run *r) {
    fl_optim_free(r->optim);
    fl_nn_free(r->net);
    fl_data_free(r->batches);
}

/* net, its optimizer and the full batches of d, in order, on the default backend. The innermost scope owns
   the tensors. False after fl_fail, also if net is NULL; call training_end, which frees net, in any case. */
static inline bool training_begin_on(training_run *r, fl_nn_module *net, digits d, int64_t batch) {
    *r = (training_run){.net = net};
    if (!net) return false;
    r->optim = fl_optim_sgd(fl_nn_parameters(r->net), .lr = 0.02, .momentum = 0.9);
    r->batches = digits_batches(d, 0, d.label->shape[0] / batch * batch, batch, 0);
    r->x = fl_empty(FL_SHAPE(batch, DIGITS_SIDE, DIGITS_SIDE), FL_F32);
    r->target = fl_empty(FL_SHAPE(batch), FL_I64);
    return r->optim && r->batches && r->x && r->target;
}

/* The same on `count` batches of drawn digits, with the same numbers each time. */
static inline bool training_begin(training_run *r, int64_t batch, int64_t count) {
    digits d;
    *r = (training_run){0};
    fl_seed(1);
    return digits_draw(batch * count, 1, &d) && training_begin_on(r, digits_net(), d, batch);
}

/* Overwrites dst with src by way of the host: the backend of dst sees a write, not an op. */
static inline bool training_write(fl_tensor *dst, fl_tensor *src) {
    size_t bytes = (size_t)fl_numel(src) * fl_dtype_size(src->dtype);
    const void *p = fl_map(src, FL_READ);
    bool ok = p && fl_set_host(dst, p, bytes);
    if (p) fl_unmap(src, FL_READ);
    return ok;
}

/* The batch of step i into x and target. */
static inline bool training_load(training_run *r, int64_t i) {
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    bool ok = fl_data_get(r->batches, i % fl_data_size(r->batches), &b) &&
              training_write(r->x, b.t[0]) && training_write(r->target, b.t[1]);
    fl_scope_end(&s);
    return ok;
}

/* Forward, backward, update; returns the loss, owned by the innermost scope. NULL after an error.
 */
static inline fl_tensor *training_update(training_run *r) {
    fl_scope s = fl_scope_begin();
    fl_var *loss = fv_nll_loss(fl_nn_forward(r->net, fv_const(r->x)), r->target);
    fl_optim_zero_grad(r->optim);
    bool ok = fl_backward(loss) && fl_optim_step(r->optim);
    return fl_scope_return(&s, ok ? fv_value(loss) : NULL);
}

/* Step i, and its loss. */
static inline bool training_step(training_run *r, int64_t i, double *loss) {
    fl_scope s = fl_scope_begin();
    fl_tensor *value = training_load(r, i) ? training_update(r) : NULL;
    *loss = value ? fl_item(value) : 0;
    fl_scope_end(&s);
    return !fl_error();
}

/* Continues the FNV-1a hash h, which begins with TRAINING_HASH. */
#define TRAINING_HASH 0xcbf29ce484222325u
static inline uint64_t training_mix(uint64_t h, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
    return h;
}

/* The hash of the bytes of all parameters. */
static inline bool training_hash(training_run *r, uint64_t *out) {
    fv_list params = fl_nn_parameters(r->net);
    *out = TRAINING_HASH;
    for (int i = 0; i < params.n; i++) {
        fl_tensor *t = fv_value(params.v[i]);
        const void *p = fl_map(t, FL_READ);
        if (!p) return false;
        *out = training_mix(*out, p, (size_t)fl_numel(t) * fl_dtype_size(t->dtype));
        fl_unmap(t, FL_READ);
    }
    return true;
}

#endif
/* MIT licence: see LICENSE. */
