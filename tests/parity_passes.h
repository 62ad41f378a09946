/* parity_passes.h - the golden files' rows about the tape: lines for the table of parity.c */
#ifndef PARITY_PASSES_H
#define PARITY_PASSES_H

static int unbind(parity_case *c, fl_var **y) {
    return fv_unbind(IN(0), AXIS("axis"), y, MAX_TENSORS);
}

static fl_var *small_net(fl_var *x, fl_var *const *p) {
    return fv_linear(fv_tanh(fv_linear(x, p[0], p[1])), p[2], p[3]);
}

/* mean over the batch of (|d critic / d x| - 1)^2 */
static fl_var *gradient_penalty(fl_tensor *between, fl_var *const *critic) {
    fl_var *x = fv_param(between), *g = NULL;
    fl_var *score = fv_sum(small_net(x, critic), FL_ALL_AXES);
    if (!fl_grads(FV_LIST(score), FV_LIST(x), &g, .create_graph = true)) return NULL;
    fl_var *norm = fv_sqrt(fv_sum(fv_square(g), FL_AXES(1)));
    return fv_mean(fv_square(fv_sub(norm, fv_num(1))), FL_ALL_AXES);
}

/* Inputs: real samples, noise and mixtures of each step, four parameters of critic and generator. */
static int wgan_penalty(parity_case *c, fl_var **y) {
    enum { MOST = 10 };
    fl_tensor *losses[2 * MOST];
    fl_var *p[8];
    const int n = (int)T(0)->shape[0];
    for (int i = 0; i < 8; i++) p[i] = fv_param(fl_clone(T(3 + i)));
    fl_optim *optim[2];
    for (int k = 0; k < 2; k++)
        optim[k] = fl_optim_adam(fv_list_of(4, p + 4 * k), .lr = NUM("lr"), .beta1 = 0.5, .beta2 = 0.9);
    for (int i = 0; i < n && i < MOST && !fl_error(); i++) {
        fl_var *real = fv_const(fl_select(T(0), 0, i)), *z = fv_const(fl_select(T(1), 0, i));
        fl_var *fake = fv_detach(small_net(z, p + 4));
        fl_tensor *e = fl_select(T(2), 0, i);
        fl_tensor *between = fl_add(fl_mul(e, fv_value(real)), fl_mul(fl_sub(fl_num(1), e), fv_value(fake)));
        fl_var *of_fake = fv_mean(small_net(fake, p), FL_ALL_AXES);
        fl_var *apart = fv_sub(of_fake, fv_mean(small_net(real, p), FL_ALL_AXES));
        fl_var *loss = fv_add(apart, fv_mul(fv_num(NUM("penalty")), gradient_penalty(between, p)));
        for (int k = 0; k < 2; k++) {
            if (k) loss = fv_neg(fv_mean(small_net(small_net(z, p + 4), p), FL_ALL_AXES));
            fl_optim_zero_grad(optim[k]);
            fl_backward(loss);
            fl_optim_step(optim[k]);
            losses[2 * i + k] = fv_value(loss);
        }
    }
    y[0] = fl_error() || n > MOST ? NULL : fv_const(fl_stack(losses, 2 * n, 0));
    for (int k = 0; k < 2; k++) fl_optim_free(optim[k]);
    return 1;
}

#define PASSES_PARITY {"unbind", unbind, 1}, {"wgan_penalty", wgan_penalty, 11},

#endif /* MIT licence: see LICENSE. */
