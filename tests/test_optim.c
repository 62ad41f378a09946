/* test_optim.c - optimizers against loops in double, clipping, schedules, resuming bit by bit */
#include "../fl_all.h"
#include "heap.h"
#include <float.h>

/* helpers */

enum { WIDTH = 5, STEPS = 20 };

static fl_tensor *f64(const double *v, int64_t n) { return fl_from_host(v, FL_SHAPE(n), FL_F64); }

static void read_f64(fl_tensor *t, double *out) {
    fl_scope s = fl_scope_begin();
    fl_tensor *d = fl_cast(t, FL_F64);
    CHECK(d && fl_to_host(d, out, (size_t)fl_numel(d) * sizeof *out));
    fl_scope_end(&s);
}

static void check_values(fl_tensor *t, const double *want, int64_t n, double tol, int line) {
    double have[64];
    bool ok = CHECK_EQ_INT(fl_numel(t), n) && n <= 64;
    if (ok) read_f64(t, have);
    for (int64_t i = 0; ok && i < n; i++) ok = CHECK_NEAR(have[i], want[i], tol);
    if (!ok) printf("  called from line %d\n", line);
}
#define CHECK_VALUES(t, want, n, tol) check_values((t), (want), (n), (tol), __LINE__)

static const double start[WIDTH] = {1, -0.5, 0.25, 2, -3};

/* The gradient at step t: depends on where p is, so an error would feed back. */
static double slope(double p, int i, int t) { return 0.7 * p + 0.3 * sin(1.7 * i + 0.9 * t); }

/* Runs STEPS steps of optim on p. */
static void run(fl_optim *optim, fl_var *p) {
    for (int t = 0; t < STEPS; t++) {
        double v[WIDTH], g[WIDTH];
        fl_scope s = fl_scope_begin();
        read_f64(fv_value(p), v);
        for (int i = 0; i < WIDTH; i++) g[i] = slope(v[i], i, t);
        CHECK(fv_set_grad(p, fv_const(f64(g, WIDTH))));
        const int64_t depth = fl_scope_depth();
        CHECK(fl_optim_step(optim));
        CHECK_EQ_INT(fl_scope_depth(), depth);
        fl_optim_zero_grad(optim);
        CHECK(!fv_grad(p));
        fl_scope_end(&s);
    }
}

/* optimizers against loops */

TEST(sgd_is_pytorchs) {
    static const fl_optim_sgd_opts cases[] = {
        {.lr = .1},
        {.lr = .1, .weight_decay = .05},
        {.lr = .05, .momentum = .9},
        {.lr = .05, .momentum = .9, .dampening = .3},
        {.lr = .05, .momentum = .9, .nesterov = true},
        {.lr = .05, .momentum = .9, .nesterov = true, .weight_decay = .1},
        {.momentum = .5, .weight_decay = .1, .dampening = FL_ZERO}, /* lr 1e-3 */
    };
    for (int k = 0; k < 7; k++) {
        const fl_optim_sgd_opts *o = &cases[k];
        const double lr = o->lr != 0 ? o->lr : 1e-3;
        double p[WIDTH], m[WIDTH];
        memcpy(p, start, sizeof p);
        for (int t = 0; t < STEPS; t++)
            for (int i = 0; i < WIDTH; i++) {
                double g = slope(p[i], i, t) + o->weight_decay * p[i];
                m[i] = t ? o->momentum * m[i] + (1 - o->dampening) * g : g;
                if (o->momentum != 0) g = o->nesterov ? g + o->momentum * m[i] : m[i];
                p[i] -= lr * g;
            }
        fl_scope s = fl_scope_begin();
        fl_var *v = fv_param(f64(start, WIDTH));
        fl_optim *optim = fl_optim_sgd_opt(FV_LIST(v), *o);
        run(optim, v);
        CHECK_VALUES(fv_value(v), p, WIDTH, 1e-14);
        fl_optim_free(optim);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(adam_is_pytorchs) {
    static const struct {
        bool decoupled;
        fl_optim_adam_opts o;
        double beta1, beta2, eps, decay; /* what the options mean */
    } cases[] = {
        {false, {.lr = .05}, .9, .999, 1e-8, 0},
        {false, {.lr = .05, .weight_decay = .1}, .9, .999, 1e-8, .1},
        {false, {.lr = .05, .beta1 = .5, .beta2 = .8, .eps = 1e-3}, .5, .8, 1e-3, 0},
        {false, {.lr = .05, .beta1 = FL_ZERO}, 0, .999, 1e-8, 0},
        {false, {.lr = .05, .beta2 = FL_ZERO}, .9, 0, 1e-8, 0},
        {false, {.lr = .05, .eps = FL_ZERO}, .9, .999, 0, 0},
        {true, {.lr = .05}, .9, .999, 1e-8, .01},
        {true, {.lr = .05, .weight_decay = .2}, .9, .999, 1e-8, .2},
        {true, {.lr = .05, .weight_decay = FL_ZERO}, .9, .999, 1e-8, 0},
        {true, {.beta1 = .7}, .7, .999, 1e-8, .01}, /* lr 1e-3 */
    };
    for (int k = 0; k < 10; k++) {
        const double lr = cases[k].o.lr != 0 ? cases[k].o.lr : 1e-3, b1 = cases[k].beta1,
                     b2 = cases[k].beta2;
        double p[WIDTH], m[WIDTH] = {0}, v[WIDTH] = {0};
        memcpy(p, start, sizeof p);
        for (int t = 0; t < STEPS; t++)
            for (int i = 0; i < WIDTH; i++) {
                double g = slope(p[i], i, t);
                if (cases[k].decoupled) p[i] -= lr * cases[k].decay * p[i];
                else g += cases[k].decay * p[i];
                m[i] = b1 * m[i] + (1 - b1) * g;
                v[i] = b2 * v[i] + (1 - b2) * g * g;
                p[i] -= lr * (m[i] / (1 - pow(b1, t + 1))) /
                        (sqrt(v[i] / (1 - pow(b2, t + 1))) + cases[k].eps);
            }
        fl_scope s = fl_scope_begin();
        fl_var *x = fv_param(f64(start, WIDTH));
        fl_optim *optim = cases[k].decoupled ? fl_optim_adamw_opt(FV_LIST(x), cases[k].o)
                                             : fl_optim_adam_opt(FV_LIST(x), cases[k].o);
        run(optim, x);
        CHECK_VALUES(fv_value(x), p, WIDTH, 1e-13);
        fl_optim_free(optim);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(radam_is_pytorchs) {
    static const struct {
        double beta2, decay;
    } cases[] = {{.999, 0}, {.9, .1}, {.5, 0}}; /* rectified from step 6, from step 7, never */
    for (int k = 0; k < 3; k++) {
        const double b1 = .9, b2 = cases[k].beta2, most = 2 / (1 - b2) - 1;
        double p[WIDTH], m[WIDTH] = {0}, v[WIDTH] = {0};
        memcpy(p, start, sizeof p);
        for (int t = 1; t <= STEPS; t++)
            for (int i = 0; i < WIDTH; i++) {
                const double g = slope(p[i], i, t - 1) + cases[k].decay * p[i], bias = 1 - pow(b2, t);
                const double rho = most - 2 * t * pow(b2, t) / bias;
                m[i] = b1 * m[i] + (1 - b1) * g;
                v[i] = b2 * v[i] + (1 - b2) * g * g;
                const double rect = (rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho);
                const double factor = rho > 5 ? sqrt(rect * bias) / (sqrt(v[i]) + 1e-8) : 1;
                p[i] -= .05 * m[i] / (1 - pow(b1, t)) * factor;
            }
        fl_scope s = fl_scope_begin();
        fl_var *x = fv_param(f64(start, WIDTH));
        fl_optim *optim = fl_optim_radam(FV_LIST(x), .lr = .05, .beta2 = b2, .weight_decay = cases[k].decay);
        run(optim, x);
        CHECK_VALUES(fv_value(x), p, WIDTH, 1e-13);
        fl_optim_free(optim);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(rprop_is_pytorchs) {
    for (int k = 0; k < 2; k++) {
        const double minus = k ? .3 : .5, plus = k ? 2 : 1.2, least = k ? .02 : 1e-6, most = k ? .1 : 50;
        double p[WIDTH], last[WIDTH] = {0}, size[WIDTH];
        int turned = 0;
        memcpy(p, start, sizeof p);
        for (int t = 0; t < STEPS; t++)
            for (int i = 0; i < WIDTH; i++) {
                double g = slope(p[i], i, t), turn = g * last[i];
                size[i] = (t ? size[i] : .05) * (turn > 0 ? plus : turn < 0 ? minus : 1);
                size[i] = fmin(fmax(size[i], least), most);
                turned += turn < 0;
                last[i] = g = turn < 0 ? 0 : g;
                p[i] -= size[i] * ((g > 0) - (g < 0));
            }
        CHECK(turned > 3);
        fl_scope s = fl_scope_begin();
        fl_var *x = fv_param(f64(start, WIDTH));
        fl_optim *optim = k ? fl_optim_rprop(FV_LIST(x), .lr = .05, .etaminus = .3, .etaplus = 2,
                                             .step_min = .02, .step_max = .1)
                            : fl_optim_rprop(FV_LIST(x), .lr = .05);
        run(optim, x);
        CHECK_VALUES(fv_value(x), p, WIDTH, 1e-14);
        CHECK_VALUES(optim->slot[0].state[1], size, WIDTH, 1e-14);
        fl_optim_free(optim);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(asgd_is_pytorchs) {
    for (int k = 0; k < 2; k++) {
        const double lr = .1, lambd = k ? .2 : 1e-4, alpha = k ? .5 : .75, t0 = k ? 5 : 1e6, decay = k * .05;
        double p[WIDTH], mean[WIDTH] = {0};
        memcpy(p, start, sizeof p);
        for (int t = 0; t < STEPS; t++)
            for (int i = 0; i < WIDTH; i++) {
                const double g = slope(p[i], i, t) + decay * p[i], eta = lr / pow(1 + lambd * lr * t, alpha);
                p[i] = p[i] * (1 - lambd * eta) - eta * g;
                mean[i] += (p[i] - mean[i]) / fmax(1, t - t0);
            }
        fl_scope s = fl_scope_begin();
        fl_var *x = fv_param(f64(start, WIDTH));
        fl_optim *optim = k ? fl_optim_asgd(FV_LIST(x), .lr = lr, .lambd = lambd, .alpha = alpha, .t0 = t0,
                                            .weight_decay = decay)
                            : fl_optim_asgd(FV_LIST(x), .lr = lr);
        run(optim, x);
        CHECK_VALUES(fv_value(x), p, WIDTH, 1e-13);
        CHECK_VALUES(optim->slot[0].state[0], mean, WIDTH, 1e-13);
        fl_optim_free(optim);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

/* A matrix, a batch of matrices and a vector; the divisor's least is the epsilon of f64. */
TEST(adafactor_is_pytorchs) {
    const fl_shape shapes[] = {FL_SHAPE(2, 3), FL_SHAPE(2, 3, 2), FL_SHAPE(6), FL_SHAPE(1, 6)};
    for (int k = 0; k < 4; k++) {
        const int dims = shapes[k].ndim, m = dims > 1 ? (int)shapes[k].dim[dims - 1] : 6;
        const int n = dims > 1 ? (int)shapes[k].dim[dims - 2] : 1, batch = k == 1 ? 2 : 1;
        const int all = batch * n * m;
        const double lr = k == 3 ? .01 : .2, decay = k == 2 ? .1 : 0, d = k == 0 ? 1.1 : 1;
        double p[12], g[12], u[12], row[12] = {0}, col[12] = {0}, v[12] = {0};
        fl_scope s = fl_scope_begin();
        for (int i = 0; i < all; i++) p[i] = start[i % WIDTH] * (k == 2 ? 1e-5 : 1);
        fl_var *x = fv_param(fl_from_host(p, shapes[k], FL_F64));
        fl_optim *optim = fl_optim_adafactor(FV_LIST(x), .lr = lr, .weight_decay = decay, .d = d);
        for (int t = 1; t <= 8; t++) {
            const double w = pow(t, -.8);
            double pp = 0, uu = 0;
            fl_scope inner = fl_scope_begin();
            for (int i = 0; i < all; i++) g[i] = slope(p[i], i, t) * (i == 4 ? 1e-20 : 1);
            for (int b = 0; b < batch; b++) {
                double *gb = g + b * n * m, *r = row + b * n, *c = col + b * m, mean = 0;
                for (int i = 0; i < n; i++) {
                    double sum = 0;
                    for (int j = 0; j < m; j++) sum += gb[i * m + j] * gb[i * m + j];
                    r[i] += w * (sum / m - r[i]);
                    mean += r[i] / n;
                }
                for (int j = 0; j < m; j++) {
                    double sum = 0;
                    for (int i = 0; i < n; i++) sum += gb[i * m + j] * gb[i * m + j];
                    c[j] += w * (sum / n - c[j]);
                }
                for (int i = 0; i < n * m; i++)
                    v[b * n * m + i] = r[i / m] * c[i % m] / fmax(mean, DBL_EPSILON);
            }
            for (int i = 0; i < all; i++) {
                if (dims == 1) v[i] = col[i]; /* of one row: its squares */
                u[i] = g[i] / fmax(sqrt(v[i]), DBL_EPSILON);
                pp += p[i] * p[i];
                uu += u[i] * u[i];
            }
            const double rate = fmin(lr, 1 / sqrt(t)) * fmax(1e-3, sqrt(pp / all));
            const double size = rate / fmax(1, sqrt(uu / all) / d);
            CHECK(fv_set_grad(x, fv_const(fl_from_host(g, shapes[k], FL_F64))) && fl_optim_step(optim));
            for (int i = 0; i < all; i++) p[i] = p[i] * (1 - lr * decay) - size * u[i];
            CHECK_VALUES(fv_value(x), p, all, 1e-13);
            fl_scope_end(&inner);
        }
        fl_tensor **state = optim->slot[0].state;
        CHECK(!state[0] == (dims == 1) && !state[1] == (dims == 1) && !state[2] == (dims > 1));
        if (dims > 1) CHECK_EQ_INT(fl_numel(state[0]) + fl_numel(state[1]), batch * (n + m));
        fl_optim_free(optim);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

TEST(parameters_without_gradient_stand_still) {
    fl_scope s = fl_scope_begin();
    const double one = 1;
    fl_var *a = fv_param(f64(&one, 1)), *b = fv_param(f64(&one, 1));
    fl_optim *optim = fl_optim_adam(FV_LIST(a, b), .lr = .1);
    for (int t = 0; t < 3; t++) {
        fl_optim_zero_grad(optim);
        fv_set_grad(a, fv_const(f64(&one, 1)));
        if (t == 2) fv_set_grad(b, fv_const(f64(&one, 1)));
        CHECK(fl_optim_step(optim));
        if (t < 2) CHECK_VALUES(fv_value(b), &one, 1, 0);
    }
    CHECK_NEAR(fl_item(optim->slot[0].steps), 3, 0);
    CHECK_NEAR(fl_item(optim->slot[1].steps), 1, 0);
    /* A constant gradient makes Adam walk by lr; b's first step is corrected as a first one. */
    CHECK_VALUES(fv_value(a), ((double[]){.7}), 1, 1e-7);
    CHECK_VALUES(fv_value(b), ((double[]){.9}), 1, 1e-7);
    fl_optim_free(optim);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(steps_write_in_place_in_f32_and_take_broadcast_gradients) {
    fl_scope s = fl_scope_begin();
    fl_var *p = fv_param(fl_ones(FL_SHAPE(2, 3), FL_F32));
    fl_tensor *value = fv_value(p);
    const uint32_t version = fl_version_of(value);
    fl_optim *optim = fl_optim_sgd(FV_LIST(p), .lr = .5);
    CHECK(fv_set_grad(p, fv_const(fl_expand(fl_ones(FL_SHAPE(1), FL_F32), FL_SHAPE(2, 3)))));
    CHECK(fl_optim_step(optim));
    CHECK(fv_value(p) == value && fl_version_of(value) > version);
    CHECK_VALUES(value, ((double[]){.5, .5, .5, .5, .5, .5}), 6, 0);
    fl_optim_free(optim);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* An optimizer of one's own: p -= lr sign(beta m + (1 - beta) g), m = beta m + (1 - beta) g. */
static bool sign_step(fl_optim *o, fl_optim_slot *p) {
    fl_tensor *m =
        fl_add(fl_mul(p->state[0], fl_num(p->group->hyper[0])),
               fl_mul(p->grad, fl_num(1 - p->group->hyper[0])));
    return fl_assign(p->state[0], m) &&
           fl_assign(fv_value(p->param),
                     fl_sub(fv_value(p->param), fl_mul(fl_sign(m), fl_num(o->lr))));
}
static const fl_optim_type sign_type = {
    .name = "sign", .state = {"average"}, .hyper = {"beta"}, .step = sign_step};

TEST(an_optimizer_of_ones_own) {
    fl_scope s = fl_scope_begin();
    fl_var *p = fv_param(f64(start, WIDTH));
    const double beta = .8;
    fl_optim *optim = fl_optim_new(&sign_type, FV_LIST(p), .01, &beta);
    double want[WIDTH], m[WIDTH] = {0};
    memcpy(want, start, sizeof want);
    for (int t = 0; t < STEPS; t++)
        for (int i = 0; i < WIDTH; i++) {
            m[i] = beta * m[i] + (1 - beta) * slope(want[i], i, t);
            want[i] -= .01 * (m[i] > 0 ? 1 : -1);
        }
    run(optim, p);
    CHECK_VALUES(fv_value(p), want, WIDTH, 1e-14);
    fl_nn_state state = {0};
    CHECK(fl_optim_state(optim, "o.", &state));
    static const char *const names[] = {"o.lr", "o.beta", "o.0.average", "o.0.step"};
    if (CHECK_EQ_INT(state.n, 4))
        for (int i = 0; i < 4; i++) CHECK(!strcmp(state.item[i].name, names[i]));
    fl_nn_state_free(&state);
    fl_optim_free(optim);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* clipping and schedules */

TEST(clip_scales_all_gradients) {
    fl_scope s = fl_scope_begin();
    fl_var *a = fv_param(fl_zeros(FL_SHAPE(2), FL_F64)),
           *b = fv_param(fl_zeros(FL_SHAPE(1), FL_F64));
    fl_var *none = fv_param(fl_zeros(FL_SHAPE(3), FL_F64));
    const double ga[] = {3, -4}, gb = 12;
    fv_set_grad(a, fv_const(f64(ga, 2)));
    fv_set_grad(b, fv_const(f64(&gb, 1)));
    CHECK_NEAR(fl_item(fl_optim_clip_grad_norm(FV_LIST(a, none, b), 14)), 13, 1e-14);
    CHECK_VALUES(fv_grad(a), ga, 2, 0); /* below the limit: the same bits */
    CHECK_NEAR(fl_item(fl_optim_clip_grad_norm(FV_LIST(a, none, b), 2)), 13, 1e-14);
    const double k = 2 / (13 + 1e-6), want[] = {3 * k, -4 * k}, want_b = 12 * k;
    CHECK_VALUES(fv_grad(a), want, 2, 1e-15);
    CHECK_VALUES(fv_grad(b), &want_b, 1, 1e-15);
    CHECK(!fv_grad(none));
    CHECK_NEAR(fl_item(fl_optim_clip_grad_norm(FV_LIST(a, b), 0)), 2, 1e-6);
    CHECK_VALUES(fv_grad(b), &(double){0}, 1, 0);
    CHECK_NEAR(fl_item(fl_optim_clip_grad_norm(FV_LIST(none), 1)), 0, 0);
    /* PyTorch lets a norm that is no number into every gradient. */
    fv_set_grad(a, fv_const(f64((double[]){NAN, 1}, 2)));
    CHECK(isnan(fl_item(fl_optim_clip_grad_norm(FV_LIST(a, b), 1))));
    CHECK_NO_ERROR();
    CHECK(isnan(fl_item(fv_grad(b))));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(schedules) {
    CHECK_NEAR(fl_optim_lr_step(.1, 0, 30, .5), .1, 0);
    CHECK_NEAR(fl_optim_lr_step(.1, 29, 30, .5), .1, 0);
    CHECK_NEAR(fl_optim_lr_step(.1, 60, 30, .5), .025, 1e-17);
    CHECK_NEAR(fl_optim_lr_step(.1, 60, 0, .5), .1, 0);
    CHECK_NEAR(fl_optim_lr_cosine(1, .2, 0, 100), 1, 1e-15);
    CHECK_NEAR(fl_optim_lr_cosine(1, .2, 50, 100), .6, 1e-15);
    CHECK_NEAR(fl_optim_lr_cosine(1, .2, 25, 100), .2 + .4 * (1 + sqrt(.5)), 1e-15);
    CHECK_NEAR(fl_optim_lr_cosine(1, .2, 100, 100), .2, 0);
    CHECK_NEAR(fl_optim_lr_cosine(1, .2, 5, 0), .2, 0);
    for (int t = 0; t < 70; t++) { /* periods of 10, 20 and 40 */
        const int from = t < 10 ? 0 : t < 30 ? 10 : 30, period = t < 10 ? 10 : t < 30 ? 20 : 40;
        const double want = fl_optim_lr_cosine(1, .2, t - from, period);
        CHECK_NEAR(fl_optim_lr_cosine_restarts(1, .2, t, 10, 2), want, 0);
        CHECK_NEAR(fl_optim_lr_cosine_restarts(1, .2, t, 10, 1), fl_optim_lr_cosine(1, .2, t % 10, 10), 0);
        CHECK_NEAR(fl_optim_lr_cosine_restarts(1, .2, t, 1, 0), 1, 0);
        CHECK_NEAR(fl_optim_lr_cosine_restarts(1, .2, t, 0, 2), 1, 0);
    }
    CHECK_NEAR(fl_optim_lr_warmup(.8, 0, 4), .2, 1e-16);
    CHECK_NEAR(fl_optim_lr_warmup(.8, 3, 4), .8, 0);
    CHECK_NEAR(fl_optim_lr_warmup(.8, 99, 4), .8, 0);
    CHECK_NEAR(fl_optim_lr_warmup(.8, 0, 0), .8, 0);
}

TEST(schedules_by_their_defaults) {
    const fl_optim_schedule steps = {.kind = FL_LR_STEP, .lr = 1, .every = 10};
    const fl_optim_schedule power = {.kind = FL_LR_EXPONENTIAL, .lr = 1};
    CHECK_NEAR(fl_optim_schedule_at(&steps, 10), .1, 1e-15);
    CHECK_NEAR(fl_optim_schedule_at(&power, 2), .01, 1e-15);
    const fl_optim_schedule line = {.kind = FL_LR_POLYNOMIAL, .lr = 1, .total = 4};
    for (int t = 0; t < 6; t++) CHECK_NEAR(fl_optim_schedule_at(&line, t), t < 4 ? 1 - t / 4. : 0, 1e-15);
    CHECK_NEAR(fl_optim_lr_polynomial(1, 3, 4, 0), 1, 0);
    CHECK_NEAR(fl_optim_lr_polynomial(1, 4, 4, 0), 0, 0);
    fl_optim_schedule again = {.kind = FL_LR_COSINE_RESTARTS, .lr = 1, .every = 4};
    for (int t = 0; t < 12; t++)
        CHECK_NEAR(fl_optim_schedule_at(&again, t), fl_optim_lr_cosine(1, 0, t % 4, 4), 0);
    again.grow = 3;
    CHECK_NEAR(fl_optim_schedule_at(&again, 10), .5, 1e-15);
    const fl_optim_schedule cycle = {.kind = FL_LR_ONE_CYCLE, .lr = 1, .total = 11};
    const double bottom = 1 / 25. / 1e4;
    for (int t = 0; t < 13; t++)
        CHECK_NEAR(fl_optim_schedule_at(&cycle, t), fl_optim_lr_one_cycle(1, t, 11, .3), 0);
    CHECK_NEAR(fl_optim_schedule_at(&cycle, 0), 1 / 25., 1e-15);
    CHECK_NEAR(fl_optim_lr_one_cycle(1, 4, 10, .5), 1, 1e-15);
    CHECK_NEAR(fl_optim_lr_one_cycle(1, 2, 10, .5), (1 + 1 / 25.) / 2, 1e-15); /* halfway up, */
    const double down = bottom + (1 - bottom) * (1 + cos(M_PI * .4)) / 2;
    CHECK_NEAR(fl_optim_lr_one_cycle(1, 7, 11, 6 / 11.), down, 1e-15);
    CHECK_NEAR(fl_optim_lr_one_cycle(1, 9, 10, .5), bottom, 1e-18);
}

/* Momentum falls while the rate rises: Adam's beta1, that of others by its name, in every group. */
TEST(one_cycle_turns_momentum) {
    for (int kind = 0; kind < 3; kind++) {
        fl_scope s = fl_scope_begin();
        fl_nn_module *m = fl_nn_linear(2, 2);
        fv_list p = fl_nn_parameters(m);
        fl_optim *o = kind == 0   ? fl_optim_sgd(p, .momentum = .5)
                      : kind == 1 ? fl_optim_adamw(p)
                                  : fl_optim_muon(FV_LIST(fl_nn_get_param(m, "weight")));
        if (kind < 2) CHECK_EQ_INT(fl_optim_group_of(o, m, "bias"), 1);
        fl_optim_schedule c = {.kind = FL_LR_ONE_CYCLE, .lr = 1, .total = 20, .momentum_low = .85,
                               .momentum_high = .95};
        CHECK(fl_optim_schedule_start(&c, o));
        for (int t = 0; t < 22; t++) {
            const double want = fl_optim_momentum_one_cycle(.85, .95, t, 20, .3);
            for (int g = 0; g < o->n_groups; g++) CHECK_NEAR(o->group[g].hyper[kind == 2], want, 0);
            CHECK_NEAR(fl_optim_lr(o), fl_optim_lr_one_cycle(1, t, 20, .3), 0);
            CHECK(fl_optim_schedule_step(&c));
        }
        fl_optim_free(o);
        fl_nn_free(m);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

/* What the headers promise, which are PyTorch's defaults where it has such an optimizer. */
TEST(defaults) {
    fl_scope s = fl_scope_begin();
    fl_var *w = fv_param(fl_zeros(FL_SHAPE(2, 2), FL_F32));
    const fv_list p = FV_LIST(w);
    const struct { fl_optim *o; double lr, hyper[6]; } makers[] = {
        {fl_optim_sgd(p), 1e-3, {0}},
        {fl_optim_adam(p), 1e-3, {.9, .999, 1e-8, 0}},
        {fl_optim_adamw(p), 1e-3, {.9, .999, 1e-8, .01}},
        {fl_optim_adamax(p), 2e-3, {.9, .999, 1e-8, 0}},
        {fl_optim_nadam(p), 2e-3, {.9, .999, 1e-8, 0}},
        {fl_optim_adadelta(p), 1, {.9, 1e-6, 0}},
        {fl_optim_adagrad(p), .01, {0, 1e-10, 0}},
        {fl_optim_rmsprop(p), .01, {.99, 1e-8, 0}},
        {fl_optim_lion(p), 1e-4, {.9, .99, 0}},
        {fl_optim_lamb(p), 1e-3, {.9, .999, 1e-6, 0}},
        {fl_optim_novograd(p), 1e-3, {.95, .98, 1e-8, 0}},
        {fl_optim_muon(p), 1e-3, {.1, .95, 1e-7, 5, 1, 0}},
        {fl_optim_radam(p), 1e-3, {.9, .999, 1e-8, 0}},
        {fl_optim_rprop(p), .01, {.5, 1.2, 1e-6, 50}},
        {fl_optim_asgd(p), .01, {1e-4, .75, 1e6, 0}},
        {fl_optim_adafactor(p), .01, {-.8, 0, 1e-3, 1, 0}},
    };
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        if (!CHECK(makers[i].o)) continue;
        CHECK_NEAR(fl_optim_lr(makers[i].o), makers[i].lr, 0);
        for (int k = 0; k < 6 && makers[i].o->type->hyper[k]; k++)
            if (!CHECK_NEAR(makers[i].o->group[0].hyper[k], makers[i].hyper[k], 0))
                printf("  %s: %s\n", makers[i].o->type->name, makers[i].o->type->hyper[k]);
        fl_optim_free(makers[i].o);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* >>groups, masters, factors, averages */

/* One of each kind, over the parameters of a linear layer without bias. */
enum { KINDS = 22 };
static fl_optim *optim_of(int kind, fv_list p) {
    switch (kind) {
    case 0: return fl_optim_sgd(p, .lr = .05, .momentum = .9, .nesterov = true, .weight_decay = 1e-3);
    case 1: return fl_optim_adam(p, .lr = .01);
    case 2: return fl_optim_adamw(p, .lr = .01, .beta1 = .8);
    case 3: return fl_optim_adam(p, .lr = .01, .amsgrad = true, .master = true);
    case 4: return fl_optim_adadelta(p, .weight_decay = .01, .master = true);
    case 5: return fl_optim_adagrad(p, .lr_decay = .1);
    case 6: return fl_optim_rmsprop(p);
    case 7: return fl_optim_rmsprop(p, .centered = true, .momentum = .9, .master = true);
    case 8: return fl_optim_lion(p, .lr = .01, .weight_decay = .1);
    case 9: return fl_optim_lamb(p, .lr = .01, .weight_decay = .1);
    case 10: return fl_optim_novograd(p, .lr = .01, .weight_decay = .1);
    case 11: return fl_optim_adamax(p);
    case 12: return fl_optim_nadam(p);
    case 13: return fl_optim_sgd(p, .lr = .05, .momentum = .9, .decoupled = true, .weight_decay = 1e-3);
    case 14: return fl_optim_rmsprop(p, .momentum = .9);
    case 15: return fl_optim_sgd(p, .lr = .05, .master = true);
    case 16: return fl_optim_radam(p, .beta2 = .5, .weight_decay = .01);
    case 17: return fl_optim_rprop(p, .step_max = .015);
    case 18: return fl_optim_asgd(p, .lambd = .1, .t0 = 1, .master = true);
    case 19: return fl_optim_adafactor(p, .lr = .1, .weight_decay = .1);
    case 20: return fl_optim_adafactor(p, .lr = .1, .master = true);
    default: return fl_optim_muon(p, .lr = .01);
    }
}

static void set_gradient(fl_var *p, int t) {
    fl_rng rng = {5, (uint64_t)t * 100};
    fl_tensor *v = fv_value(p);
    CHECK(fv_set_grad(p, fv_const(fl_normal(fl_shape_of(v), 0, 1, v->dtype, &rng))));
}

static bool same_values(fl_tensor *a, fl_tensor *b) {
    return fl_item(fl_all(fl_eq(a, b), FL_ALL_AXES)) == 1;
}

/* A factor of 0 skips a step: parameters, states and counts keep their bits, whatever the gradients. One of
   0.5 halves them. */
TEST(factors_scale_and_skip) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int d = 0; d < 2; d++) {
            fl_scope s = fl_scope_begin();
            fl_rng rng = {7, 0};
            fl_tensor *start_at = fl_normal(FL_SHAPE(4, 3), 0, 1, d ? FL_BF16 : FL_F32, &rng);
            fl_var *a = fv_param(fl_clone(start_at)), *b = fv_param(fl_clone(start_at));
            fl_optim *one = optim_of(kind, FV_LIST(a)), *two = optim_of(kind, FV_LIST(b));
            for (int t = 0; t < 4; t++) {
                set_gradient(a, t);
                fl_tensor *g = fv_grad(a);
                fv_set_grad(b, fv_const(fl_mul(g, fl_num(2))));
                CHECK(fl_optim_step(one));
                CHECK(fl_optim_scale(two, fl_full(FL_SCALAR_SHAPE, .5, FL_F32)) && fl_optim_step(two));
                fv_set_grad(b, fv_const(fl_full_like(g, (double)INFINITY)));
                CHECK(fl_optim_scale(two, fl_zeros(FL_SCALAR_SHAPE, FL_F32)) && fl_optim_step(two));
                if (!CHECK(same_values(fv_value(a), fv_value(b)))) printf("kind %d step %d\n", kind, t);
            }
            for (int k = 0; k < FL_OPTIM_STATES; k++)
                if (one->slot[0].state[k])
                    CHECK(same_values(one->slot[0].state[k], two->slot[0].state[k]));
            CHECK_NEAR(fl_item(two->slot[0].steps), 4, 0);
            CHECK(!same_values(fv_value(a), start_at));
            fl_optim_free(one);
            fl_optim_free(two);
            fl_scope_end(&s);
        }
    CHECK_NOTHING_LIVES();
}

/* To maximize is to minimize with the gradient of the other sign, bit for bit, with a factor too; the clipped
   norm is not negative. */
TEST(maximizing_goes_up) {
    test_errors_return();
    for (int kind = 0; kind < KINDS; kind++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = {7, 0};
        fl_tensor *start_at = fl_normal(FL_SHAPE(4, 3), 0, 1, FL_F32, &rng);
        fl_var *a = fv_param(fl_clone(start_at)), *b = fv_param(fl_clone(start_at));
        fl_optim *up = optim_of(kind, FV_LIST(a)), *down = optim_of(kind, FV_LIST(b));
        CHECK(fl_optim_maximize(up, true));
        for (int t = 0; t < 4; t++) {
            set_gradient(a, t);
            fv_set_grad(b, fv_const(fl_neg(fv_grad(a))));
            if (t > 1) CHECK_NEAR(fl_item(fl_optim_clip(up, .5)), fl_item(fl_optim_clip(down, .5)), 0);
            if (t > 2) CHECK(fl_optim_scale(up, fl_num(2)) && fl_optim_scale(down, fl_num(2)));
            if (t > 1) CHECK(!fl_optim_maximize(up, false)), CHECK_ERROR("a factor is already set");
            CHECK(fl_optim_step(up) && fl_optim_step(down));
            if (!CHECK(same_values(fv_value(a), fv_value(b)))) printf("kind %d step %d\n", kind, t);
        }
        CHECK(!same_values(fv_value(a), start_at));
        fl_optim_free(up);
        fl_optim_free(down);
        fl_scope_end(&s);
    }
    fl_scope s = fl_scope_begin();
    fl_var *w = fv_param(fl_eye(2, 2, FL_F32));
    const fv_list p = FV_LIST(w);
    fl_optim *makers[] = {
        fl_optim_sgd(p, .maximize = true),      fl_optim_adam(p, .maximize = true),
        fl_optim_adamw(p, .maximize = true),    fl_optim_adamax(p, .maximize = true),
        fl_optim_nadam(p, .maximize = true),    fl_optim_adadelta(p, .maximize = true),
        fl_optim_adagrad(p, .maximize = true),  fl_optim_rmsprop(p, .maximize = true),
        fl_optim_lion(p, .maximize = true),     fl_optim_lamb(p, .maximize = true),
        fl_optim_novograd(p, .maximize = true), fl_optim_muon(p, .weight_decay = FL_ZERO, .maximize = true),
        fl_optim_radam(p, .maximize = true),    fl_optim_rprop(p, .maximize = true),
        fl_optim_asgd(p, .maximize = true),     fl_optim_adafactor(p, .maximize = true),
    };
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        fl_assign(fv_value(w), fl_eye(2, 2, FL_F32));
        fv_set_grad(w, fv_const(fl_eye(2, 2, FL_F32)));
        CHECK(fl_optim_step(makers[i]));
        if (!CHECK(fl_item(fl_sum(fv_value(w), FL_ALL_AXES)) > 2)) puts(makers[i]->type->name);
        fl_optim_free(makers[i]);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* The formulas as compositions give the kernel's values: on a backend without the slot. */
TEST(rules_compose) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int d = 0; d < 2; d++) {
            fl_scope s = fl_scope_begin();
            fl_rng rng = {7, 0};
            fl_tensor *start_at = fl_normal(FL_SHAPE(4, 3), 0, 1, d ? FL_BF16 : FL_F32, &rng);
            fl_var *p[2] = {fv_param(fl_clone(start_at)), fv_param(fl_clone(start_at))};
            for (int composed = 0; composed < 2; composed++) {
                fl_backend bare = *fl_backend_cpu(), old;
                fl_optim *optim = optim_of(kind, FV_LIST(p[composed]));
                bare.op[fl_op_step] = NULL;
                if (composed) fl_backend_use(&bare, &old);
                for (int t = 0; t < 3; t++) {
                    set_gradient(p[composed], t);
                    CHECK(fl_optim_scale(optim, fl_full(FL_SCALAR_SHAPE, .5, FL_F32)));
                    CHECK(fl_optim_step(optim));
                }
                if (composed) fl_backend_use(&old, NULL);
                fl_optim_free(optim);
            }
            fl_tensor *gap = fl_abs(fl_sub(fv_value(p[0]), fv_value(p[1])));
            if (!CHECK_NEAR(fl_item(fl_amax(gap, FL_ALL_AXES)), 0, d ? 1e-2 : 2e-6))
                printf("kind %d\n", kind);
            fl_scope_end(&s);
        }
    CHECK_NOTHING_LIVES();
}

/* A scaled step, replayed with another rate, scale and other gradients, does what an eager one does. */
TEST(replayed_steps_follow_their_numbers) {
    enum { ROUNDS = 6 };
    for (int kind = 0; kind < KINDS; kind++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = {7, 0};
        fl_tensor *start_at = fl_normal(FL_SHAPE(4, 3), 0, 1, FL_F32, &rng);
        fl_tensor *g = fl_zeros(FL_SHAPE(4, 3), FL_F32), *factor = fl_ones(FL_SCALAR_SHAPE, FL_F32);
        fl_var *a = fv_param(fl_clone(start_at)), *b = fv_param(fl_clone(start_at));
        fl_optim *one = optim_of(kind, FV_LIST(a)), *two = optim_of(kind, FV_LIST(b));
        fl_graph *graph = fl_graph_new();
        int replays = 0;
        for (int t = 0; t < ROUNDS; t++) {
            const bool skipped = t == ROUNDS - 2; /* by a scale of 0 */
            set_gradient(a, t);
            CHECK(fl_assign(g, fv_grad(a)));
            CHECK(fl_assign(factor, fl_num(skipped ? 0 : 1)));
            fv_set_grad(b, fv_const(g));
            CHECK(fl_optim_set_lr(one, .1 / (t + 1)) && fl_optim_set_lr(two, .1 / (t + 1)));
            if (!skipped) CHECK(fl_optim_step(one));
            if (fl_graph_ready(graph)) {
                CHECK(fl_graph_replay(graph));
                replays++;
            } else {
                fl_scope step = fl_scope_begin();
                CHECK(fl_graph_begin(graph) && fl_optim_scale(two, factor) && fl_optim_step(two));
                fl_scope_end(&step);
                CHECK(fl_graph_end(graph));
            }
            if (!CHECK(same_values(fv_value(a), fv_value(b)))) printf("kind %d step %d\n", kind, t);
        }
        if (!CHECK(replays >= ROUNDS - 3)) printf("kind %d: %s\n", kind, fl_graph_reason(graph));
        fl_graph_free(graph);
        fl_optim_free(one);
        fl_optim_free(two);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

/* x w0 w1 w1, two parameters that are used, one of them twice, and one that is not; steps 0 to 3, that of 2
   without a gradient for w0. */
static void train_three(fl_optim *optim, fl_var **w, const fl_tensor *x, bool early) {
    CHECK(fl_optim_step_in_backward(optim, early));
    for (int t = 0; t < 4; t++) {
        fl_scope s = fl_scope_begin();
        fl_var *in = fv_const((fl_tensor *)(uintptr_t)x), *first = t == 2 ? fv_detach(w[0]) : w[0];
        fl_var *y = fv_matmul(fv_matmul(fv_matmul(in, first), w[1]), w[1]);
        fl_optim_zero_grad(optim);
        CHECK(fl_backward(fv_mean(fv_mul(y, y), FL_ALL_AXES)));
        CHECK(early == !fv_grad(w[1]));
        CHECK(fl_optim_step(optim));
        fl_scope_end(&s);
    }
}

TEST(early_steps_have_the_bits_of_late_ones) {
    static const int updates[] = {3, 4, 0};
    for (int kind = 0; kind < KINDS; kind++)
        for (int d = 0; d < 2; d++) {
            fl_scope s = fl_scope_begin();
            fl_rng rng = {7, 0};
            const fl_dtype dtype = d ? FL_BF16 : FL_F32;
            fl_tensor *start_at = fl_normal(FL_SHAPE(4, 4), 0, .5, dtype, &rng);
            fl_tensor *x = fl_normal(FL_SHAPE(3, 4), 0, 1, dtype, &rng);
            fl_var *w[2][3];
            fl_optim *optim[2];
            for (int k = 0; k < 6; k++) w[k / 3][k % 3] = fv_param(fl_clone(start_at));
            for (int early = 0; early < 2; early++) {
                optim[early] = optim_of(kind, (fv_list){3, w[early]});
                CHECK(!d || fl_optim_use_masters(optim[early]));
                train_three(optim[early], w[early], x, early);
            }
            for (int i = 0; i < 3; i++) {
                if (!CHECK(same_values(fv_value(w[0][i]), fv_value(w[1][i])))) printf("kind %d\n", kind);
                CHECK_EQ_INT(fl_item(optim[1]->slot[i].steps), updates[i]);
            }
            CHECK(!same_values(fv_value(w[1][1]), start_at));
            fl_optim_free(optim[0]);
            fl_optim_free(optim[1]);
            fl_scope_end(&s);
        }
    CHECK_NOTHING_LIVES();
}

static void not_ready(fv_watcher *w, fl_var *x) { (void)w, (void)x; }
static void no_end(fv_watcher *w, const char *error) { (void)w, (void)error; }

TEST(early_steps_refuse_what_wants_all_gradients) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_var *p = fv_param(f64(start, WIDTH));
    fl_optim *optim = fl_optim_sgd(FV_LIST(p), .lr = .1);
    fv_watcher other = {.leaf_ready = not_ready, .end = no_end};
    CHECK(fl_optim_step_in_backward(optim, true) && fl_backward(fv_sum(p, FL_ALL_AXES)));
    CHECK(!fl_optim_clip(optim, 1));
    CHECK_ERROR("fl_optim_scale: gradients were already used: fl_optim_step_in_backward is on");
    CHECK(!fl_backward(fv_sum(p, FL_ALL_AXES)));
    CHECK_ERROR("fl_optim_step_in_backward: a second backward pass before fl_optim_step");
    fl_optim_zero_grad(optim);
    fv_watch(&other);
    CHECK(!fl_backward(fv_sum(p, FL_ALL_AXES)));
    CHECK_ERROR("fl_optim_step_in_backward: gradients of this pass are not yet summed over all processes");
    fv_unwatch(&other);
    fl_optim_zero_grad(optim);
    CHECK(fl_optim_step_in_backward(optim, false) && fl_backward(fv_sum(p, FL_ALL_AXES)) && fv_grad(p));
    CHECK(fl_optim_clip(optim, 1) && fl_optim_step(optim));
    fl_optim_free(optim);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(groups_have_numbers_of_their_own) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *net =
        fl_nn_sequential(fl_nn_linear(3, 4), fl_nn_layer_norm(FL_SHAPE(4)), fl_nn_linear(4, 2));
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(net), .lr = .5, .weight_decay = .1);
    CHECK_EQ_INT(fl_optim_group_of(optim, net, "*.bias", .weight_decay = FL_ZERO), 1);
    CHECK_EQ_INT(fl_optim_group_of(optim, net, "?.weight", .lr = .25), 2);
    CHECK_EQ_INT(fl_optim_group_of(optim, net, "1.*", .lr = FL_ZERO), 3);
    fl_optim_set_lr(optim, 1); /* 1, 1, 0.5, 0 */
    const double lr[] = {1, .5, 0, 0, .5, 1}, decay[] = {0, .1, .1, .1, .1, 0};
    static const char *const path[] = {"0.bias", "0.weight", "1.bias", "1.weight", "2.weight", "2.bias"};
    double before[6];
    for (int i = 0; i < 6; i++) {
        fl_var *p = fl_nn_get_param(net, path[i]);
        before[i] = fl_item(fl_amax(fv_value(p), FL_ALL_AXES));
        CHECK(fv_set_grad(p, fv_const(fl_full_like(fv_value(p), 2))));
    }
    CHECK(fl_optim_step(optim));
    for (int i = 0; i < 6; i++) {
        const double now = fl_item(fl_amax(fv_value(fl_nn_get_param(net, path[i])), FL_ALL_AXES));
        CHECK_NEAR(now, before[i] - lr[i] * (2 + decay[i] * before[i]), 1e-6);
    }
    CHECK(fl_optim_set(optim, 3, "lr", .125) && optim->group[3].lr_scale == .125);
    test_errors_return();
    CHECK(fl_optim_set(optim, 0, "weight_decay", .5) && optim->group[0].hyper[2] == .5); /* the first */
    CHECK(!fl_optim_set(optim, -1, "weight_decay", .5) && CHECK_ERROR("fl_optim_set: group must be"));
    CHECK(!fl_optim_set(optim, 4, "weight_decay", .5) && CHECK_ERROR("fl_optim_set: group must be"));
    fl_nn_free(net);
    fl_optim_free(optim);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* k parts of a batch, each by loss / k, give the gradient and so the step of the whole. */
TEST(gradients_of_parts_add_up) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {3, 0};
    fl_tensor *x = fl_normal(FL_SHAPE(8, 3), 0, 1, FL_F64, &rng);
    fl_tensor *y = fl_normal(FL_SHAPE(8, 1), 0, 1, FL_F64, &rng);
    fl_tensor *w = fl_normal(FL_SHAPE(3, 1), 0, 1, FL_F64, &rng);
    fl_var *p[2] = {fv_param(fl_clone(w)), fv_param(fl_clone(w))};
    for (int k = 0; k < 2; k++) {
        const int parts = k ? 4 : 1, rows = 8 / parts;
        fl_optim *optim = fl_optim_adam(FV_LIST(p[k]), .lr = .1);
        for (int step = 0; step < 3; step++) {
            fl_optim_zero_grad(optim);
            for (int i = 0; i < parts; i++) {
                fl_var *a = fv_const(fl_slice(x, 0, i * rows, (i + 1) * rows, 1));
                fl_var *b = fv_const(fl_slice(y, 0, i * rows, (i + 1) * rows, 1));
                fl_var *loss = fv_mse_loss(fv_matmul(a, p[k]), b, FL_MEAN);
                CHECK(fl_backward(fv_div(loss, fv_num(parts))));
            }
            CHECK(fl_optim_clip(optim, .5) != NULL && fl_optim_step(optim));
        }
        fl_optim_free(optim);
    }
    CHECK_NEAR(fl_item(fl_amax(fl_abs(fl_sub(fv_value(p[0]), fv_value(p[1]))), FL_ALL_AXES)), 0, 1e-12);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* fl_optim_clip scales in the step what fl_optim_clip_grad_norm scales in memory. */
TEST(clip_by_factor_and_by_value) {
    fl_scope s = fl_scope_begin();
    const double g[] = {3, -4}, zero[] = {0, 0};
    fl_var *p = fv_param(f64(zero, 2));
    fl_optim *optim = fl_optim_sgd(FV_LIST(p), .lr = 1);
    fv_set_grad(p, fv_const(f64(g, 2)));
    CHECK(fl_optim_scale(optim, fl_full(FL_SCALAR_SHAPE, .5, FL_F64)));
    CHECK_NEAR(fl_item(fl_optim_clip(optim, 1)), 2.5, 1e-15);
    CHECK(fl_optim_step(optim));
    CHECK_VALUES(fv_value(p), ((double[]){-.6, .8}), 2, 1e-6);
    CHECK_VALUES(fv_grad(p), g, 2, 0);
    CHECK_NEAR(fl_item(fl_optim_grad_norm(FV_LIST(p))), 5, 1e-15);
    CHECK(fl_optim_clip_grad_value(FV_LIST(p), 3.5));
    CHECK_VALUES(fv_grad(p), ((double[]){3, -3.5}), 2, 0);
    fl_optim_free(optim);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(averages_follow_and_swap) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_var *p = fv_param(f64((double[]){1, 2}, 2)), *q = fv_param(fl_full(FL_SHAPE(2), 1, FL_BF16));
    fl_optim_ema *e = fl_optim_ema_new(FV_LIST(p, q), .75);
    fl_assign(fv_value(p), f64((double[]){5, 6}, 2));
    CHECK(fl_optim_ema_update(e));
    CHECK_VALUES(e->average[0], ((double[]){2, 3}), 2, 0);
    CHECK(e->average[1]->dtype == FL_F32 && fl_optim_ema_swap(e));
    CHECK_VALUES(fv_value(p), ((double[]){2, 3}), 2, 0);
    CHECK(!fl_optim_ema_update(e));
    CHECK_ERROR("swapped");
    CHECK(fl_optim_ema_swap(e));
    CHECK_VALUES(fv_value(p), ((double[]){5, 6}), 2, 0);
    CHECK_VALUES(e->average[0], ((double[]){2, 3}), 2, 0);
    fl_optim_ema_free(e);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Two optimizers with groups and masters, a schedule, an average, a number and a tensor in one file; training
   goes on bit by bit, of every kind of optimizer. */
typedef struct whole_state {
    fl_var *a, *b;
    fl_optim *one, *two;
    fl_optim_schedule schedule;
    fl_optim_ema *ema;
    double best;
    fl_tensor *history;
} whole_state;

static whole_state whole_new(int kind, uint64_t seed) {
    fl_rng rng = {seed, 0};
    whole_state w = {.a = fv_keep(fv_param(fl_normal(FL_SHAPE(4, 3), 0, 1, FL_BF16, &rng))),
                     .b = fv_keep(fv_param(fl_normal(FL_SHAPE(3, 4), 0, 1, FL_F32, &rng))),
                     .schedule = {.kind = FL_LR_COSINE, .total = 20, .warmup = 3},
                     .best = (double)seed,
                     .history = fl_keep(fl_full(FL_SHAPE(2), (double)seed, FL_F32))};
    w.one = optim_of(kind, FV_LIST(w.a, w.b));
    w.two = fl_optim_adamw(FV_LIST(w.b));
    w.ema = fl_optim_ema_new(FV_LIST(w.a, w.b), .9);
    CHECK(fl_optim_schedule_start(&w.schedule, w.one));
    return w;
}

static void whole_train(whole_state *w, int from, int to) {
    for (int t = from; t < to; t++) {
        set_gradient(w->a, t);
        set_gradient(w->b, t + 50);
        CHECK(fl_optim_step(w->one) && fl_optim_step(w->two) && fl_optim_ema_update(w->ema) &&
              fl_optim_schedule_step(&w->schedule));
    }
}

static void whole_free(whole_state *w) {
    fl_optim_free(w->one);
    fl_optim_free(w->two);
    fl_optim_ema_free(w->ema);
    fl_drop(w->history);
    fv_drop(w->a);
    fv_drop(w->b);
}

static bool whole_list(whole_state *w, fl_optim_checkpoint *c) {
    return fl_nn_state_add(&c->state, "model.", "a", fv_value(w->a)) &&
           fl_nn_state_add(&c->state, "model.", "b", fv_value(w->b)) &&
           fl_optim_checkpoint_add(c, "one.", w->one) && fl_optim_checkpoint_add(c, "two.", w->two) &&
           fl_optim_schedule_state(&w->schedule, "lr.", &c->state) &&
           fl_optim_ema_state(w->ema, "ema.", &c->state) &&
           fl_nn_state_add_host(&c->state, "", "best", &w->best, FL_SCALAR_SHAPE, FL_F64) &&
           fl_nn_state_add(&c->state, "", "history", w->history);
}

TEST(checkpoints_of_everything) {
    for (int kind = 0; kind < KINDS; kind++) {
        fl_scope s = fl_scope_begin();
        whole_state w = whole_new(kind, 1), v = whole_new(kind, 2);
        fl_optim_checkpoint c = {.at = NULL}, d = {.at = NULL};
        whole_train(&w, 0, 4);
        CHECK(whole_list(&w, &c) && fl_optim_checkpoint_save(&c, test_file("a")));
        whole_train(&w, 4, 9);
        CHECK(whole_list(&v, &d) && fl_optim_checkpoint_load(&d, test_file("a")));
        CHECK(v.best == 1 && fl_item(fl_select(v.history, 0, 1)) == 1 && v.schedule.t == 4);
        whole_train(&v, 4, 9);
        if (!CHECK(same_values(fv_value(w.a), fv_value(v.a)) && same_values(fv_value(w.b), fv_value(v.b)) &&
                   same_values(w.ema->average[0], v.ema->average[0])))
            printf("kind %d\n", kind);
        CHECK(fl_optim_lr(w.one) == fl_optim_lr(v.one));
        fl_optim_checkpoint_free(&c);
        fl_optim_checkpoint_free(&d);
        whole_free(&w);
        whole_free(&v);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

/* resuming */

typedef struct trainer {
    fl_nn_module *net;
    fl_optim *optim;
    fl_optim_progress at;
} trainer;

/* kind 0: Nesterov SGD, 1: Adam, 2: AdamW. */
static trainer trainer_new(uint64_t seed, int kind) {
    fl_seed(seed);
    trainer t = {.net = fl_nn_sequential(fl_nn_view(FL_SHAPE(-1, 2, 3, 3)), fl_nn_batch_norm2d(2),
                                         fl_nn_view(FL_SHAPE(-1, 18)), fl_nn_linear(18, 16),
                                         fl_nn_gelu(), fl_nn_dropout(.3),
                                         fl_nn_layer_norm(FL_SHAPE(16)), fl_nn_linear(16, 3))};
    const fv_list p = fl_nn_parameters(t.net);
    t.optim = kind == 0   ? fl_optim_sgd(p, .lr = .05, .momentum = .9, .nesterov = true,
                                         .weight_decay = 1e-3)
              : kind == 1 ? fl_optim_adam(p, .lr = .01)
                          : fl_optim_adamw(p, .lr = .01, .beta1 = .8);
    return t;
}

static void trainer_free(trainer *t) {
    fl_optim_free(t->optim);
    fl_nn_free(t->net);
}

/* The batch is a function of the position, dropout of the process's generator, lr of the step. */
static void train(trainer *t, int steps) {
    for (int i = 0; i < steps; i++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = {77, (uint64_t)t->at.position * 1000};
        fl_var *x = fv_const(fl_normal(FL_SHAPE(6, 18), 0, 1, FL_F32, &rng));
        fl_tensor *target = fl_randint(FL_SHAPE(6), 0, 3, &rng);
        fl_optim_set_lr(t->optim, fl_optim_lr_warmup(.02, t->at.step, 8));
        fl_optim_zero_grad(t->optim);
        CHECK(fl_backward(fv_cross_entropy(fl_nn_forward(t->net, x), target)));
        fl_optim_clip_grad_norm(fl_nn_parameters(t->net), 1);
        CHECK(fl_optim_step(t->optim));
        fl_scope_end(&s);
        t->at.step++;
        t->at.position++;
    }
}

typedef struct dump {
    float v[1024];
    int64_t n;
} dump;
static bool dump_value(const char *path, fl_var *param, fl_tensor *buffer, void *user) {
    dump *d = user;
    (void)path;
    fl_tensor *t = fl_cast(param ? fv_value(param) : buffer, FL_F32);
    CHECK(fl_to_host(t, d->v + d->n, (size_t)fl_numel(t) * sizeof *d->v));
    d->n += fl_numel(t);
    return true;
}
static dump dump_of(const trainer *t) {
    dump d = {.n = 0};
    fl_scope s = fl_scope_begin();
    fl_nn_visit_tensors(t->net, dump_value, &d);
    for (int64_t i = 0; i < t->optim->n; i++) {
        for (int k = 0; k < FL_OPTIM_STATES && t->optim->slot[i].state[k] && d.n < 900; k++) {
            fl_tensor *sum = fl_sum(t->optim->slot[i].state[k], FL_ALL_AXES);
            d.v[d.n++] = (float)fl_item(sum);
        }
        d.v[d.n++] = (float)fl_item(t->optim->slot[i].steps);
    }
    d.v[d.n++] = (float)fl_optim_lr(t->optim);
    fl_scope_end(&s);
    return d;
}
static bool same_dump(const dump *a, const dump *b) {
    return a->n == b->n && !memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v);
}

TEST(resumed_training_gives_the_same_bits) {
    for (int kind = 0; kind < 3; kind++) {
        trainer whole = trainer_new(1, kind);
        train(&whole, 5);
        whole.at.epoch = 3;
        CHECK(fl_optim_save_checkpoint(test_file("a"), whole.net, whole.optim, &whole.at));
        train(&whole, 7);
        const dump want = dump_of(&whole);
        /* Another process, as it were: other weights, other random numbers, other hyperparameters.
           */
        trainer resumed = trainer_new(99, kind);
        fl_optim_set_lr(resumed.optim, 123);
        resumed.optim->group[0].hyper[0] = .123;
        CHECK(fl_optim_load_checkpoint(test_file("a"), resumed.net, resumed.optim, &resumed.at));
        CHECK_EQ_INT(resumed.at.step, 5);
        CHECK_EQ_INT(resumed.at.epoch, 3);
        CHECK_EQ_INT(resumed.at.position, 5);
        CHECK_NEAR(fl_optim_lr(resumed.optim), .0125, 1e-17);
        train(&resumed, 7);
        const dump have = dump_of(&resumed);
        CHECK(same_dump(&want, &have));
        /* Weights alone come out of the same file. */
        trainer third = trainer_new(5, kind);
        CHECK(fl_nn_load(third.net, test_file("a"), .prefix = "model."));
        trainer_free(&whole);
        trainer_free(&resumed);
        trainer_free(&third);
    }
    CHECK_NOTHING_LIVES();
}

/* Rosenbrock's valley of parameters of several shapes, whose least is 0 where all are 1. */
typedef struct valley {
    fl_optim *optim;
    fl_var *p[3];
    int calls;
} valley;
static fl_var *valley_loss(void *user) {
    valley *v = user;
    fl_var *x[3];
    v->calls++;
    fl_optim_zero_grad(v->optim);
    for (int i = 0; i < 3; i++) x[i] = fv_reshape(fv_cast(v->p[i], FL_F64), FL_SHAPE(-1));
    fl_var *all = fv_concat(x, 3, 0), *low = fv_slice(all, 0, 0, 6, 1), *high = fv_slice(all, 0, 1, 7, 1);
    fl_var *a = fv_square(fv_sub(high, fv_square(low))), *b = fv_square(fv_sub(fv_num(1), low));
    fl_var *loss = fv_sum(fv_add(fv_mul(fv_num(100), a), b), FL_ALL_AXES);
    if (v->optim->sign->f64 < 0) loss = fv_neg(loss);
    return fl_backward(loss) ? loss : NULL;
}
static valley valley_new(fl_dtype d) {
    return (valley){.p = {fv_param(fl_full(FL_SHAPE(2, 2), -1.2, d)),
                          fv_param(fl_full(FL_SHAPE(1, 2), .7, d)), fv_param(fl_full(FL_SCALAR_SHAPE, 2,
                                                                                     d))}};
}

TEST(lbfgs_ends_in_the_valley) {
    for (int kind = 0; kind < 4; kind++) {
        const bool wide = kind < 2;
        double loss = 0, v[4];
        fl_scope s = fl_scope_begin();
        valley a = valley_new(wide ? FL_F64 : kind == 2 ? FL_F32 : FL_BF16);
        a.optim = fl_optim_lbfgs(fv_list_of(3, a.p), .history = 7, .strong_wolfe = true, .master = true,
                                 .maximize = kind == 1);
        for (int t = 0; t < (kind == 3 ? 1 : 8); t++) {
            const int before = a.calls;
            CHECK(fl_optim_step_closure(a.optim, valley_loss, &a, &loss));
            CHECK(a.calls - before < 25 + 25);
        }
        if (kind == 3) CHECK(fl_optim_step_closure(a.optim, valley_loss, &a, &loss) && loss < 100);
        else CHECK_NEAR(loss, 0, 1e-9);
        for (int i = 0; kind < 3 && i < 3; i++) {
            read_f64(fv_value(a.p[i]), v);
            for (int64_t k = 0; k < fl_numel(fv_value(a.p[i])); k++) CHECK_NEAR(v[k], 1, wide ? 1e-5 : 1e-3);
        }
        fl_optim_free(a.optim);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

/* With more pairs than the history holds; and any optimizer steps by a closure. */
TEST(lbfgs_goes_on_with_the_same_bits) {
    fl_scope s = fl_scope_begin();
    valley a = valley_new(FL_F32), b = valley_new(FL_F32), c = valley_new(FL_F32);
    double la, lb, lc;
    a.optim = fl_optim_lbfgs(fv_list_of(3, a.p), .max_iter = 4, .history = 3);
    b.optim = fl_optim_lbfgs(fv_list_of(3, b.p), .max_iter = 4, .history = 3);
    fl_optim_set_lr(a.optim, .3);
    for (int t = 0; t < 6; t++) {
        if (t == 3) {
            fl_optim_checkpoint to = {0}, from = {0};
            CHECK(fl_optim_checkpoint_add(&to, "o.", a.optim) &&
                  fl_optim_checkpoint_add(&from, "o.", b.optim) &&
                  fl_optim_checkpoint_save(&to, test_file("lbfgs")) &&
                  fl_optim_checkpoint_load(&from, test_file("lbfgs")));
            for (int i = 0; i < 3; i++) fl_assign(fv_value(b.p[i]), fv_value(a.p[i]));
            fl_optim_checkpoint_free(&to);
            fl_optim_checkpoint_free(&from);
        }
        CHECK(fl_optim_step_closure(a.optim, valley_loss, &a, &la));
        if (t >= 3) CHECK(fl_optim_step_closure(b.optim, valley_loss, &b, &lb) && la == lb);
    }
    for (int i = 0; i < 3; i++) CHECK(same_values(fv_value(a.p[i]), fv_value(b.p[i])));
    CHECK_EQ_INT(fl_item_int(a.optim->slot[2].steps), 24);
    c.optim = fl_optim_sgd(fv_list_of(3, c.p), .lr = 1e-4);
    fl_optim_step_closure(c.optim, valley_loss, &c, &la);
    fl_optim_step_closure(c.optim, valley_loss, &c, &lc);
    CHECK(c.calls == 2 && lc < la);
    fl_optim_free(a.optim);
    fl_optim_free(b.optim);
    fl_optim_free(c.optim);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Shampoo (Gupta et al. 2018): a factor for each axis of a matrix, for vectors one alone.
   left += g g^T;  right += g^T g;  m = 0.9 m + left^-1/4 g right^-1/4;  p -= lr m */
static int shampoos_destroyed;
static void shampoo_destroy(fl_optim *o) {
    shampoos_destroyed++;
    free(o->user);
}
static fl_tensor *shampoo_init(fl_optim *o, fl_tensor *param, int k) {
    if (k >= param->ndim) return NULL;
    return fl_mul(fl_eye(param->shape[k], param->shape[k], param->dtype), fl_num(o->group[0].hyper[0]));
}
static fl_tensor *root(fl_tensor *x) {
    fl_tensor *v, *w = fl_eigh(x, &v);
    return fl_matmul(fl_mul(v, fl_pow(w, fl_num(-.25))), fl_transpose(v, 0, 1));
}
static bool shampoo_step(fl_optim *o, fl_optim_slot *p) {
    fl_tensor *value = fv_value(p->param), *left = p->state[0], *right = p->state[1], *m = p->state[2];
    fl_tensor *g = fl_reshape(p->grad, FL_SHAPE(value->shape[0], -1)), *gt = fl_transpose(g, 0, 1), *u = g;
    ++*(int64_t *)o->user;
    if (!fl_assign(left, fl_add(left, fl_matmul(g, gt)))) return false;
    u = fl_matmul(root(left), u);
    if (right && fl_assign(right, fl_add(right, fl_matmul(gt, g)))) u = fl_matmul(u, root(right));
    return fl_assign(m, fl_add(fl_mul(m, fl_num(.9)), fl_reshape(u, fl_shape_of(m)))) &&
           fl_assign(value, fl_sub(value, fl_mul(m, fl_num(fl_optim_lr(o)))));
}
static const fl_optim_type shampoo_type = {
    .name = "shampoo", .state = {"left", "right", "momentum"}, .hyper = {"eps"}, .limits = "n", .apart = 3,
    .init = shampoo_init, .step = shampoo_step, .destroy = shampoo_destroy};

/* Two factors of other shapes for a matrix, one for a vector, are saved and resumed to the same bits; what
   the optimizer owns is freed once. */
TEST(states_of_any_shape) {
    static const char *const names[] = {"o.0.left", "o.0.right", "o.0.momentum", "o.0.step",
                                        "o.1.left", "o.1.momentum", "o.1.step"};
    fl_nn_module *net[2];
    fl_optim *optim[2];
    shampoos_destroyed = 0;
    for (int run = 0; run < 2; run++) {
        fl_seed(5 + (uint64_t)run);
        net[run] = fl_nn_linear(3, 2);
        optim[run] = fl_optim_new(&shampoo_type, fl_nn_parameters(net[run]), .1, (double[]){1e-3});
        optim[run]->user = calloc(1, sizeof(int64_t));
        if (run) CHECK(fl_optim_load_checkpoint(test_file("shampoo"), net[1], optim[1], NULL));
        for (int t = run ? 4 : 0; t < 8; t++) {
            if (t == 4 && !run) CHECK(fl_optim_save_checkpoint(test_file("shampoo"), net[0], optim[0], NULL));
            fl_scope s = fl_scope_begin();
            for (int i = 0; i < 2; i++) set_gradient(optim[run]->slot[i].param, t);
            CHECK(fl_optim_step(optim[run]));
            fl_scope_end(&s);
        }
        CHECK_EQ_INT(*(int64_t *)optim[run]->user, run ? 8 : 16);
    }
    fl_scope s = fl_scope_begin();
    fl_optim_slot *a = optim[0]->slot, *b = optim[1]->slot;
    CHECK(a[0].state[0]->shape[1] == 2 && a[0].state[1]->shape[1] == 3 && !a[1].state[1]);
    for (int i = 0; i < 2; i++) {
        CHECK(same_values(fv_value(a[i].param), fv_value(b[i].param)));
        for (int k = 0; k < 3; k++) CHECK(!a[i].state[k] || same_values(a[i].state[k], b[i].state[k]));
    }
    fl_nn_state state = {0};
    CHECK(fl_optim_state(optim[0], "o.", &state));
    if (CHECK_EQ_INT(state.n, 9)) /* lr and eps come first */
        for (int i = 0; i < 7; i++) CHECK(!strcmp(state.item[i + 2].name, names[i]));
    fl_nn_state_free(&state);
    /* The file of a net of other widths does not fit. */
    fl_nn_module *wide = fl_nn_linear(4, 2);
    fl_optim *other = fl_optim_new(&shampoo_type, fl_nn_parameters(wide), .1, (double[]){1e-3});
    fl_optim_checkpoint mine = {0}, theirs = {0};
    CHECK(fl_optim_checkpoint_add(&mine, "o.", optim[0]) && fl_optim_checkpoint_add(&theirs, "o.", other));
    CHECK(fl_optim_checkpoint_save(&mine, test_file("shampoo")));
    CHECK(!fl_optim_checkpoint_load(&theirs, test_file("shampoo")));
    CHECK_ERROR("o.0.right");
    fl_optim_checkpoint_free(&mine);
    fl_optim_checkpoint_free(&theirs);
    fl_optim_free(other); /* has nothing of its own */
    CHECK_EQ_INT(shampoos_destroyed, 0);
    for (int i = 0; i < 2; i++) fl_optim_free(optim[i]), fl_nn_free(net[i]);
    CHECK_EQ_INT(shampoos_destroyed, 2);
    fl_nn_free(wide);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Loading must fail with that text and leave model, optimizer, progress and generator alone. */
static void check_load_fails(trainer *t, const char *path, const char *text, int line) {
    const dump before = dump_of(t);
    const fl_rng rng = fl_rng_state();
    fl_optim_progress at = {7, 8, 9};
    bool ok = CHECK(!fl_optim_load_checkpoint(path, t->net, t->optim, &at)) && CHECK_ERROR(text);
    const dump after = dump_of(t);
    const fl_rng now = fl_rng_state();
    ok = CHECK(same_dump(&before, &after)) &&
         CHECK(at.step == 7 && at.epoch == 8 && at.position == 9) && ok;
    ok = CHECK(now.key == rng.key && now.counter == rng.counter) && ok;
    if (!ok) printf("  called from line %d\n", line);
}
#define CHECK_LOAD_FAILS(t, path, text) check_load_fails(t, path, text, __LINE__)

static int64_t copy_part(const char *from, const char *to, int64_t n, int64_t flip) {
    static char buf[1 << 17];
    FILE *f = fopen(from, "rb");
    if (!f) return -1;
    const int64_t all = (int64_t)fread(buf, 1, sizeof buf, f);
    fclose(f);
    if (flip >= 0 && flip < all) buf[flip] ^= 1;
    f = fopen(to, "wb");
    if (!f) return -1;
    if (fwrite(buf, 1, (size_t)(n < all ? n : all), f) == 0 && n) perror("fwrite");
    fclose(f);
    return all;
}

TEST(checkpoints_are_checked_before_they_are_loaded) {
    char a[128], b[128];
    snprintf(a, sizeof a, "%s", test_file("a"));
    snprintf(b, sizeof b, "%s", test_file("b"));
    trainer sgd = trainer_new(1, 0), adam = trainer_new(2, 1), adamw = trainer_new(3, 2);
    train(&sgd, 2);
    train(&adam, 2);
    train(&adamw, 1);
    CHECK(fl_optim_save_checkpoint(a, sgd.net, sgd.optim, &sgd.at));
    CHECK_LOAD_FAILS(&adam, a, "is 'sgd' in the file, but 'adam' here");
    CHECK(fl_optim_save_checkpoint(a, adam.net, adam.optim, &adam.at));
    CHECK_LOAD_FAILS(&adamw, a, "is 'adam' in the file, but 'adamw' here");
    CHECK(fl_nn_save(adam.net, b));
    CHECK_LOAD_FAILS(&adam, b, "not a checkpoint: metadata 'checkpoint.version' is missing");
    CHECK_LOAD_FAILS(&adam, test_file("none"), "none");
    CHECK_LOAD_FAILS(&adam, NULL, "NULL");
    /* Other groups; and a rate that is no number. */
    trainer grouped = trainer_new(4, 1);
    CHECK_EQ_INT(fl_optim_group_of(grouped.optim, grouped.net, "*.bias", .lr = .5), 1);
    CHECK_LOAD_FAILS(&grouped, a, "has parameter groups");
    CHECK(fl_optim_save_checkpoint(b, grouped.net, grouped.optim, NULL));
    CHECK_LOAD_FAILS(&adam, b, "has parameter groups");
    CHECK(fl_optim_load_checkpoint(b, grouped.net, grouped.optim, NULL));
    grouped.optim->lr = (double)INFINITY;
    CHECK(fl_optim_save_checkpoint(b, grouped.net, grouped.optim, NULL));
    grouped.optim->lr = .01;
    CHECK_LOAD_FAILS(&grouped, b, "'optim.lr' is out of range: got inf");
    trainer_free(&grouped);
    /* The optimizer of fewer parameters. */
    fl_optim *some = fl_optim_adam(((fv_list){3, fl_nn_parameters(adam.net).v}));
    trainer fewer = {.net = adam.net, .optim = some};
    CHECK_LOAD_FAILS(&fewer, a, "unexpected: optim.");
    fl_optim_free(some);
    const int64_t size = copy_part(a, b, 0, -1);
    CHECK(size > 1000);
    for (int64_t cut = 0; cut < size; cut += 211) {
        copy_part(a, b, cut, -1);
        CHECK_LOAD_FAILS(&adam, b, "b");
    }
    copy_part(a, b, size, size - 1);
    CHECK_LOAD_FAILS(&adam, b, "b");
    CHECK(fl_optim_load_checkpoint(a, adam.net, adam.optim, NULL));
    CHECK(fl_optim_save_checkpoint(a, adam.net, adam.optim, NULL));
    CHECK(!fl_optim_save_checkpoint(NULL, adam.net, adam.optim, NULL));
    CHECK_ERROR("NULL");
    CHECK(!fl_optim_save_checkpoint(a, NULL, adam.optim, NULL));
    CHECK_ERROR("the module is NULL");
    CHECK(!fl_optim_save_checkpoint(a, adam.net, NULL, NULL));
    CHECK_ERROR("fl_optim_save_checkpoint: the optimizer is NULL");
    CHECK(!fl_optim_load_checkpoint(a, adam.net, NULL, NULL));
    CHECK_ERROR("fl_optim_load_checkpoint: the optimizer is NULL");
    CHECK(!fl_optim_load_checkpoint(a, NULL, adam.optim, NULL));
    CHECK_ERROR("the module is NULL");
    trainer_free(&sgd);
    trainer_free(&adam);
    trainer_free(&adamw);
    CHECK_NOTHING_LIVES();
}

/* errors */

TEST(wrong_arguments) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_var *p = fv_param(f64(start, WIDTH));
    CHECK(!fl_optim_sgd(FV_NONE));
    CHECK_ERROR("fl_optim_sgd: the list of parameters is empty");
    CHECK(!fl_optim_adam(FV_LIST(p, NULL)));
    CHECK_ERROR("fl_optim_adam: a parameter is NULL");
    CHECK(!fl_optim_adam(FV_LIST(p, fv_num(1))));
    CHECK_ERROR("fl_optim_adam: a parameter is a scalar constant without storage");
    CHECK(!fl_optim_sgd(FV_LIST(p), .lr = -1));
    CHECK_ERROR("fl_optim_sgd: lr must be finite and not negative, got -1");
    CHECK(!fl_optim_sgd(FV_LIST(p), .momentum = -1));
    CHECK_ERROR("fl_optim_sgd: momentum must be finite and not negative, got -1");
    CHECK(!fl_optim_sgd(FV_LIST(p), .nesterov = true));
    CHECK_ERROR("nesterov requires momentum > 0 and dampening 0");
    CHECK(!fl_optim_sgd(FV_LIST(p), .nesterov = true, .momentum = .9, .dampening = .1));
    CHECK_ERROR("nesterov requires momentum > 0 and dampening 0");
    CHECK(!fl_optim_adam(FV_LIST(p), .beta1 = 1));
    CHECK_ERROR("fl_optim_adam: beta1 must be in [0, 1), got 1");
    CHECK(!fl_optim_adamw(FV_LIST(p), .weight_decay = -1));
    CHECK_ERROR("fl_optim_adamw: weight_decay must be finite and not negative, got -1");
    CHECK(!fl_optim_step(NULL));
    CHECK_ERROR("fl_optim_step: the optimizer is NULL");
    CHECK(!fl_optim_set_lr(NULL, 1));
    CHECK_ERROR("fl_optim_set_lr: the optimizer is NULL");
    CHECK(isnan(fl_optim_lr(NULL)));
    CHECK(!fl_optim_clip_grad_norm(FV_NONE, 1));
    CHECK_ERROR("fl_optim_clip_grad_norm: the list of parameters is empty");
    CHECK(!fl_optim_clip_grad_norm(FV_LIST(p), -1));
    CHECK_ERROR("fl_optim_clip_grad_norm: max_norm must not be negative, got -1");
    fl_nn_state state = {0};
    CHECK(!fl_optim_state(NULL, "", &state));
    CHECK_ERROR("fl_optim_state: the optimizer is NULL");
    CHECK_EQ_INT(state.n, 0);
    fl_optim_free(NULL);
    fl_optim_zero_grad(NULL);
    fl_optim *optim = fl_optim_sgd(FV_LIST(p), .lr = .25);
    CHECK(!fl_optim_set_lr(optim, -1));
    CHECK_ERROR("fl_optim_set_lr: lr must be finite and not negative, got -1");
    CHECK_NEAR(fl_optim_lr(optim), .25, 0);
    fl_optim_free(optim);
    CHECK_VALUES(fv_value(p), start, WIDTH, 0);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(nothing_is_written_while_an_error_is_pending) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_var *p = fv_param(f64(start, WIDTH));
    fl_optim *optim = fl_optim_adam(FV_LIST(p));
    fv_set_grad(p, fv_const(f64(start, WIDTH)));
    fl_fail("something before");
    CHECK(!fl_optim_step(optim));
    CHECK(!fl_optim_clip_grad_norm(FV_LIST(p), .1));
    CHECK_ERROR("something before");
    CHECK_VALUES(fv_value(p), start, WIDTH, 0);
    CHECK_VALUES(fv_grad(p), start, WIDTH, 0);
    CHECK_NEAR(fl_item(optim->slot[0].steps), 0, 0);
    CHECK(fl_optim_step(optim));
    fl_optim_free(optim);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(memory_runs_out_anywhere) {
    test_errors_return();
    fl_heap_use(heap_fn, NULL);
    bool made = false, saved = false;
    int64_t n;
    for (n = 1; !(made && saved) && n < 2000; n++) {
        trainer t = trainer_new(1, 1);
        fl_optim_free(t.optim);
        const fv_list params = fl_nn_parameters(t.net);
        heap_fail_at(n);
        t.optim = fl_optim_adam(params);
        made = t.optim && heap.calls < n;
        heap_fail_at(0);
        if (!t.optim) t.optim = CHECK_ERROR("memory") ? fl_optim_adam(params) : NULL;
        if (!t.optim) break;
        train(&t, 1);
        const dump before = dump_of(&t);
        heap_fail_at(n);
        saved = fl_optim_save_checkpoint(test_file("a"), t.net, t.optim, NULL) &&
                fl_optim_load_checkpoint(test_file("a"), t.net, t.optim, NULL) &&
                heap.calls < n;
        heap_fail_at(0);
        fl_error_clear();
        const dump after = dump_of(&t);
        CHECK(same_dump(&before, &after));
        trainer_free(&t);
        if (!CHECK_EQ_INT(fl_live_tensors(), 0)) break;
    }
    CHECK(made && saved);
    CHECK(n > 20);
    fl_heap_use(NULL, NULL);
    CHECK_NOTHING_LIVES();
}

/* As many operands as a record holds: 8 inputs, and a copy of the first of the writes in bf16. */
TEST(a_rule_of_nine_operands) {
    static fl_step_rule rule = {.reads = "a b c d e f g", .writes = "p", .numbers = "",
                                .formula = "ADD(p, ADD(a, ADD(b, ADD(c, ADD(d, ADD(e, ADD(f, g)))))))"};
    for (int64_t n = 5; n < 50000; n *= 9973) { /* by one call of the loop, and block by block */
        fl_tensor *t[8], *narrow = fl_zeros(FL_SHAPE(n), FL_BF16);
        for (int i = 0; i < 8; i++) t[i] = fl_full(FL_SHAPE(n), 1 << i, FL_F32);
        CHECK(fl_step(&rule, t, 0, NULL, narrow));
        CHECK_EQ_INT(fl_item(fl_amin(t[7], FL_ALL_AXES)), 255);
        CHECK_EQ_INT(fl_item(fl_amax(t[7], FL_ALL_AXES)), 255);
        CHECK_EQ_INT(fl_item(fl_amin(narrow, FL_ALL_AXES)), 255);
    }
}

/* Every request of a step may fail: then no parameter has moved, and the step that follows gives
   the same bits. */
TEST(a_step_that_fails_moves_nothing) {
    test_errors_return();
    dump want = {.n = 0};
    int failures = 0;
    bool done = false;
    for (int64_t n = 0; !done && n < 500; n++) {
        trainer t = trainer_new(1, 1);
        train(&t, 1);
        fl_scope s = fl_scope_begin();
        for (int64_t i = 0; i < t.optim->n; i++) {
            fl_tensor *p = fv_value(t.optim->slot[i].param);
            fv_set_grad(t.optim->slot[i].param,
                        fv_const(fl_expand(fl_full(FL_SHAPE(1), .5, FL_F32), fl_shape_of(p))));
        }
        const dump before = dump_of(&t);
        fl_mem_manager *failing = n ? fl_mem_failing(NULL, n, false) : NULL,
                       *old = n ? fl_mem_set_current(failing) : NULL;
        const bool ok = fl_optim_step(t.optim);
        if (n) fl_mem_set_current(old);
        if (!ok) {
            failures++;
            CHECK_ERROR("memory");
            const dump after = dump_of(&t);
            CHECK(same_dump(&before, &after));
            CHECK(fl_optim_step(t.optim));
        }
        const dump have = dump_of(&t);
        if (!n) want = have;
        CHECK(same_dump(&want, &have));
        done = n && ok;
        fl_scope_end(&s);
        trainer_free(&t);
        if (failing) fl_mem_close(failing);
    }
    CHECK(done);
    CHECK(failures > 0);
    CHECK_NOTHING_LIVES();
}

static void count_copies(const fl_call *c, void *user) {
    *(int *)user += c->op == FL_OP_copy && fl_numel(c->out[0]) > 1; /* not of norms */
}

/* A weight that lies channels-last keeps its state and gradient so: no step converts, and the
   numbers are those of a dense one. */
TEST(layouts_are_kept) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {9, 0};
    fl_tensor *plain = fl_normal(FL_SHAPE(4, 3, 5, 5), 0, 1, FL_F32, &rng);
    fl_tensor *last = fl_permute(fl_clone(fl_permute(plain, 4, (int[]){0, 2, 3, 1})), 4,
                                 (int[]){0, 3, 1, 2});
    fl_var *a = fv_param(fl_clone(plain)), *b = fv_param(last);
    fl_var *x = fv_const(fl_normal(FL_SHAPE(4, 3, 5, 5), 0, 1, FL_F32, &rng));
    fl_optim *one = fl_optim_adam(FV_LIST(a), .lr = .1), *two = fl_optim_adam(FV_LIST(b), .lr = .1);
    int copies = 0;
    for (int i = 0; i < 3; i++) {
        fl_optim_zero_grad(one);
        fl_optim_zero_grad(two);
        CHECK(fl_backward(fv_sum(fv_square(fv_mul(a, x)), FL_ALL_AXES)));
        CHECK(fl_backward(fv_sum(fv_square(fv_mul(b, x)), FL_ALL_AXES)));
        fl_call_hook(NULL, count_copies, &copies);
        const double norm = fl_item(fl_optim_clip_grad_norm(FV_LIST(b), 1));
        CHECK(fl_optim_step(two));
        fl_call_hook(NULL, NULL, NULL);
        CHECK_NEAR(fl_item(fl_optim_clip_grad_norm(FV_LIST(a), 1)), norm, 1e-5);
        CHECK(fl_optim_step(one));
    }
    CHECK_EQ_INT(copies, 0);
    CHECK(two->slot[0].state[0]->stride[1] == 1 && fv_value(b)->stride[1] == 1);
    CHECK_NEAR(fl_item(fl_amax(fl_abs(fl_sub(fv_value(a), fv_value(b))), FL_ALL_AXES)), 0, 1e-5);
    fl_optim_free(one);
    fl_optim_free(two);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* memory */

enum { DEPTH = 8, UNITS = 128, ROWS = 4096 };

static void deep_step(fl_nn_module *net, fl_optim *optim, fl_var *x, fl_tensor *target) {
    fl_scope s = fl_scope_begin();
    fl_var *loss = fv_mse_loss(fl_nn_forward(net, x), fv_const(target), FL_MEAN);
    CHECK(fl_backward(loss));
    CHECK(fl_optim_step(optim));
    fl_optim_zero_grad(optim);
    fl_scope_end(&s);
}

/* From the second step on nothing comes from the device, and the peak is one activation a layer
   (relu and the next layer save the same one) and a few for the layer that backward is in. */
TEST(training_takes_its_memory_in_the_first_step) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *layer[2 * DEPTH + 1], *net;
    for (int i = 0; i < DEPTH; i++) {
        layer[2 * i] = fl_nn_linear(i ? UNITS : 64, UNITS);
        layer[2 * i + 1] = fl_nn_relu();
    }
    layer[2 * DEPTH] = fl_nn_linear(UNITS, 8);
    net = fl_nn_sequential_of(2 * DEPTH + 1, layer);
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(net), .lr = 1e-3, .momentum = .9);
    fl_var *x = fv_const(fl_ones(FL_SHAPE(ROWS, 64), FL_F32));
    fl_tensor *target = fl_ones(FL_SHAPE(ROWS, 8), FL_F32);
    for (int i = 0; i < 2; i++) deep_step(net, optim, x, target);
    fl_mem_stats_reset_peak(NULL);
    const fl_mem_stats before = fl_mem_stats_of(NULL);
    for (int i = 0; i < 5; i++) deep_step(net, optim, x, target);
    const fl_mem_stats after = fl_mem_stats_of(NULL);
    CHECK_EQ_INT(after.device_gets, before.device_gets);
    CHECK_EQ_INT(after.reserved, before.reserved);
    CHECK_EQ_INT(after.in_use, before.in_use);
    const double activation = 4.0 * ROWS * UNITS, above = (double)(after.peak_in_use - before.in_use);
    CHECK(above < (DEPTH + 4) * activation);
    if (above >= (DEPTH + 4) * activation) printf("%.2f activations\n", above / activation);
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* A step that the op refuses, here because a state has another shape, is refused. */
TEST(steps_that_fail) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_var *p = fv_param(fl_ones(FL_SHAPE(4), FL_F32));
    fl_optim *optim = fl_optim_adam(FV_LIST(p), .lr = .1);
    fl_tensor *state = optim->slot[0].state[0];
    CHECK(fv_set_grad(p, fv_const(fl_ones(FL_SHAPE(4), FL_F32))));
    optim->slot[0].state[0] = fl_zeros(FL_SHAPE(3), FL_F32);
    CHECK(!fl_optim_step(optim) && fl_error());
    fl_error_clear();
    optim->slot[0].state[0] = state;
    fl_optim_free(optim);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* The ends of the ranges of a scaler's numbers. */
TEST(numbers_of_a_scaler) {
    static const struct {
        double init;
        fl_optim_scaler_opts o;
        bool fine;
    } cases[] = {
        {2, {.least = 2}, true},          {1, {.least = 2}, false},          {2, {.least = FL_ZERO}, false},
        {2, {.least = -1}, false},        {0x1p126, {.least = 1}, true},     {0x1p127, {.least = 1}, false},
        {2, {.growth = 1}, true},         {2, {.growth = .999}, false},      {2, {.growth = 0x1p126}, true},
        {2, {.growth = 0x1p127}, false},  {2, {.backoff = FL_ZERO}, false},  {2, {.backoff = 1e-9}, true},
        {2, {.backoff = .999}, true},     {2, {.backoff = 1}, false},        {2, {.backoff = -1}, false},
        {2, {.interval = 1}, true},       {2, {.interval = -1}, false},
    };
    test_errors_return();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_optim_scaler *scaler = fl_optim_scaler_new_opt(cases[i].init, cases[i].o);
        if (!CHECK(!scaler == !cases[i].fine)) printf("  case %zu\n", i);
        if (!cases[i].fine) CHECK_ERROR("fl_optim_scaler_new: expected init");
        fl_optim_scaler_free(scaler);
    }
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
