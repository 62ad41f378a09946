/* bench/optim.c - optimizers against the copy bandwidth of the same seconds (make bench-optim)

   Each line: GB/s of the bytes that a step must read and write (LAMB: in all its passes), and in the note the
   share of the copy, measured alternately (target: at least 85 %), and these bytes. One tensor of 2^24
   floats, 256 of 2^16, and 4096 of 64, where the overhead per tensor dominates. The fastest of 11 rounds. */
#include "bench.h"
#include <string.h>

enum { N = 1 << 24, ROUNDS = 11 };

typedef struct copying {
    char *to, *from;
} copying;

static void copy_part(void *arg, int64_t begin, int64_t end) {
    const copying *c = arg;
    memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

typedef struct job {
    const char *name;
    double bytes; /* per parameter element: read and written */
    fl_optim *optim;
    fv_list params;
    bool clip;
} job;

static void run(const job *j) {
    if (j->clip) fl_optim_clip_grad_norm(j->params, 1e-3);
    else fl_optim_step(j->optim);
}

static double seconds(double start) {
    return fl_data_now() - start;
}

static void report(const job *j, const char *shape, copying *c, int tensors, int64_t numel) {
    char figure[60], note[80];
    double best = 1e9, copy = 1e9;
    for (int r = 0; r < ROUNDS; r++) {
        double start = fl_data_now();
        fl_parallel((int64_t)N * 4, 1 << 20, copy_part, c);
        double t = seconds(start);
        copy = t < copy ? t : copy;
        start = fl_data_now();
        run(j);
        t = seconds(start);
        best = t < best ? t : best;
    }
    double n = (double)tensors * (double)numel, rate = n * j->bytes / best;
    snprintf(figure, sizeof figure, "%s_%s", j->name, shape);
    snprintf(note, sizeof note, "%.0f %% of copy; %.0f bytes an element; %.0f ns a tensor",
             100 * rate / (2.0 * N * 4 / copy), j->bytes, best / tensors * 1e9);
    bench_line(figure, rate / 1e9, "GB/s", note);
}

static void measure(const char *shape, int tensors, int64_t numel) {
    fl_scope s = fl_scope_begin();
    fl_var **p = calloc((size_t)tensors, sizeof(fl_var *)), **q = calloc((size_t)tensors, sizeof(fl_var *));
    fl_tensor *a = fl_ones(FL_SHAPE(N), FL_F32), *b = fl_ones(FL_SHAPE(N), FL_F32);
    copying c = {fl_map(a, FL_WRITE), fl_map(b, FL_READ)};
    for (int i = 0; i < tensors; i++) {
        p[i] = fv_param(fl_ones(FL_SHAPE(numel), FL_F32));
        fv_set_grad(p[i], fv_const(fl_full(FL_SHAPE(numel), 1e-3, FL_F32)));
        q[i] = fv_param(fl_ones(FL_SHAPE(numel), FL_BF16));
        fv_set_grad(q[i], fv_const(fl_full(FL_SHAPE(numel), 1e-3, FL_BF16)));
    }
    fv_list all = {tensors, p}, narrow = {tensors, q};
    job jobs[] = {{"sgd", 12, fl_optim_sgd(all), all, false},
                  {"sgd_momentum", 20, fl_optim_sgd(all, .momentum = 0.9), all, false},
                  {"adam", 28, fl_optim_adam(all), all, false},
                  {"adamw", 28, fl_optim_adamw(all), all, false},
                  {"amsgrad", 36, fl_optim_adam(all, .amsgrad = true), all, false},
                  {"adadelta", 28, fl_optim_adadelta(all), all, false},
                  {"adagrad", 20, fl_optim_adagrad(all), all, false},
                  {"rmsprop", 20, fl_optim_rmsprop(all), all, false},
                  {"rmsprop_centered", 36, fl_optim_rmsprop(all, .centered = true, .momentum = 0.9), all,
                   false},
                  {"lion", 20, fl_optim_lion(all), all, false},
                  {"novograd", 24, fl_optim_novograd(all), all, false},
                  {"lamb", 56, fl_optim_lamb(all), all, false},
                  {"sgd_bf16", 6, fl_optim_sgd(narrow), narrow, false},
                  {"adamw_bf16", 22, fl_optim_adamw(narrow), narrow, false},
                  {"adamw_bf16_master", 28, fl_optim_adamw(narrow, .master = true), narrow, false},
                  {"clip_grad_norm", 12, NULL, all, true}};
    for (size_t k = 0; k < sizeof jobs / sizeof *jobs; k++) {
        report(&jobs[k], shape, &c, tensors, numel);
        fl_optim_free(jobs[k].optim);
    }
    fl_unmap(a, FL_WRITE);
    fl_unmap(b, FL_READ);
    free(p);
    free(q);
    fl_scope_end(&s);
}

int main(void) {
    measure("one", 1, N);
    measure("256", 256, 1 << 16);
    measure("4096_small", 4096, 64);
    return fl_error() != NULL;
}
/* MIT licence: see LICENSE. */
