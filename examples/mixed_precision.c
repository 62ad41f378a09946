/* examples/mixed_precision.c - one network in f32, bf16, f16 and mixtures: loss, seconds, bytes

   cc -O2 -I.. mixed_precision.c ../fl.c -o mixed_precision -lm -lpthread
   ./mixed_precision [--data DIR] [--steps N] [--batch N]     DIR: MNIST's idx files; else digits drawn here
   ./mixed_precision --test                                   a few steps

   f32        everything
   bf16       fl_autocast: what layers multiply is rounded to bf16; weights, losses and steps stay f32
   f16        the same with f16, whose gradients need a scaled loss: fl_optim_scaler
   bf16 all   weights, activations and gradients bf16; the optimizer keeps f32 masters (.master)
   f16 all    the same with f16 and a scaler

   Same weights at the start, same batches. Seconds are fewer only where the processor multiplies halves
   (bf16: AVX-512 BF16). Bytes are the most that was in use above the data: of this net mostly activations. */
#include "arguments.h"
#include "digits.h"
#include <stdlib.h>

typedef struct mixture {
    const char *name;
    fl_dtype products, weights;
} mixture;

static const mixture mixtures[] = {{"f32", FL_F32, FL_F32},
                                   {"bf16", FL_BF16, FL_F32},
                                   {"f16", FL_F16, FL_F32},
                                   {"bf16 all", FL_F32, FL_BF16},
                                   {"f16 all", FL_F32, FL_F16}};
enum { MIXTURES = sizeof mixtures / sizeof mixtures[0] };

typedef struct training {
    const mixture *m;
    fl_nn_module *net;
    fl_optim *optim;
    fl_optim_scaler *scaler; /* NULL: not needed */
} training;

typedef struct result {
    double first, last; /* mean losses of the first and the last tenth of the steps */
    double seconds;
    int64_t bytes;
    int64_t skipped; /* steps whose scaled gradients passed f16's range */
} result;

static bool is_f16(const mixture *m) {
    return m->products == FL_F16 || m->weights == FL_F16;
}

/* Reads an image row by row. Most of its memory are activations; its norms stay f32 in any mixture. */
static fl_nn_module *rows_net(void) {
    return fl_nn_sequential(fl_nn_linear(28, 64), fl_nn_transformer(64, 4, 256, .activation = fv_gelu),
                            fl_nn_transformer(64, 4, 256, .activation = fv_gelu),
                            fl_nn_view(FL_SHAPE(-1, 28 * 64)), fl_nn_linear(28 * 64, 10),
                            fl_nn_log_softmax(1));
}

static bool training_begin(training *t, const mixture *m) {
    fl_seed(7);
    *t = (training){.m = m, .net = rows_net()};
    if (!t->net || !fl_nn_cast(t->net, m->weights)) return false;
    t->optim = fl_optim_adamw(fl_nn_parameters(t->net), .lr = 2e-3, .master = true);
    t->scaler = is_f16(m) ? fl_optim_scaler_new(0) : NULL;
    return t->optim && (t->scaler || !is_f16(m));
}

static void training_end(training *t) {
    fl_optim_scaler_free(t->scaler);
    fl_optim_free(t->optim);
    fl_nn_free(t->net);
}

/* The loss is taken of f32 scores in any mixture; that of the batch, NaN after an error. */
static double step(training *t, const fl_data_sample *b) {
    fl_autocast(t->m->products);
    fl_var *scores = fl_nn_forward(t->net, fv_cast(fv_const(b->t[0]), t->m->weights));
    fl_var *loss = fv_nll_loss(fv_cast(scores, FL_F32), b->t[1]);
    fl_optim_zero_grad(t->optim);
    bool ok;
    if (t->scaler)
        ok = fl_backward(fl_optim_scaler_scale(t->scaler, loss)) &&
             fl_optim_scaler_unscale(t->scaler, t->optim) && fl_optim_step(t->optim) &&
             fl_optim_scaler_update(t->scaler);
    else ok = fl_backward(loss) && fl_optim_step(t->optim);
    return ok ? fl_item(fv_value(loss)) : (double)NAN;
}

/* Steps that were made: each parameter counts its own. */
static int64_t steps_made(const training *t) {
    fl_scope s = fl_scope_begin();
    const int64_t n = fl_item_int(t->optim->slot[0].steps);
    fl_scope_end(&s);
    return n;
}

static bool train(const mixture *m, fl_data_set *set, int64_t steps, result *r) {
    training t;
    int64_t epoch = 0, index = 0;
    const int64_t tenth = steps / 10 > 0 ? steps / 10 : 1, before = fl_mem_stats_of(NULL).in_use;
    fl_mem_stats_reset_peak(NULL);
    bool ok = training_begin(&t, m);
    *r = (result){0};
    for (int64_t i = 0; ok && i < steps; i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        ok = fl_data_next(set, &epoch, &index, &b);
        const double start = fl_data_now(), loss = ok ? step(&t, &b) : (double)NAN;
        r->seconds += fl_data_now() - start;
        if (i < tenth) r->first += loss / (double)tenth;
        if (i >= steps - tenth) r->last += loss / (double)tenth;
        ok = ok && !fl_error();
        fl_scope_end(&s);
    }
    r->bytes = fl_mem_stats_of(NULL).peak_in_use - before;
    r->skipped = ok ? steps - steps_made(&t) : 0;
    training_end(&t);
    return ok;
}

int main(int argc, char **argv) {
    const char *data = NULL;
    int64_t steps = 100, batch = 64;
    bool testing = false;
    const argument list[] = {
        {"data", .text = &data, .about = "MNIST's idx files; without: digits drawn here"},
        {"steps", .whole = &steps, .low = 1, .high = 1e9},
        {"batch", .whole = &batch, .low = 1, .high = 1e6},
        {"test", .on = &testing, .about = "20 steps of 16"},
        {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    if (testing) steps = 20, batch = 16;
    fl_scope s = fl_scope_begin();
    digits all = {0};
    bool ok = data ? digits_load(data, "train", &all) : digits_draw(60 * batch, 1, &all);
    fl_data_set *set = ok ? digits_batches(all, 0, all.image->shape[0], batch, 3) : NULL;
    result r[MIXTURES];
    ok = set != NULL;
    printf("mixture    first loss  last loss  ms a step  MB at most  skipped\n");
    for (int i = 0; ok && i < MIXTURES; i++) {
        ok = train(&mixtures[i], set, steps, &r[i]);
        if (ok)
            printf("%-10s %10.4f %10.4f %10.1f %11.1f %8lld\n", mixtures[i].name, r[i].first, r[i].last,
                   1e3 * r[i].seconds / (double)steps, (double)r[i].bytes / 1e6, (long long)r[i].skipped);
        fflush(stdout);
    }
    /* Halves learn what f32 learns. */
    for (int i = 0; ok && i < MIXTURES; i++)
        if (!(r[i].last < r[i].first && fabs(r[i].last - r[0].last) < 0.25 * r[0].first))
            ok = fl_fail("%s ends at a loss of %g, f32 at %g", mixtures[i].name, r[i].last, r[0].last);
    if (!ok) fprintf(stderr, "mixed_precision: %s\n", fl_error() ? fl_error() : "failed");
    fl_data_free(set);
    fl_scope_end(&s);
    return ok ? 0 : 1;
}
/* MIT licence: see LICENSE. */
