/* examples/mnist.c - trains the CNN of the Flashlight paper (listings 7-11) on MNIST, evaluates and saves it

   cc -O2 -I.. mnist.c ../fl.c -o mnist -lm -lpthread      (add -DFL_USE_ZLIB -lz to read .gz files)
   ./mnist --data dir            with MNIST's four idx files in dir
   ./mnist                       without: on digits that it draws itself
   ./mnist --load mnist.safetensors --eval
   ./mnist --dtype bf16          products of bf16 or f16, all else f32 (fl_autocast)
   ./mnist --steps 5             prints the losses of five steps and ends: for comparing builds
   launch 2 ./mnist              on two ranks, each with its part of every batch; rank 0 prints and saves

   The last line is "Test accuracy: 99.xx %", but of --steps. */
#include "fl_dist.h"
#include "arguments.h"
#include "digits.h"

typedef struct options {
    const char *data, *save, *load;
    int64_t epochs, batch, steps; /* steps: so many and no more, 0: whole epochs */
    double lr;
    int64_t seed;
    double dropout;
    fl_dtype dtype; /* of products */
    bool eval;
    fl_dist_group *d; /* of all ranks */
} options;

typedef struct epoch_result {
    double train_loss, loss, error, seconds;
} epoch_result;

enum { MAX_EPOCHS = 1000, HELD_OUT = 5000, DRAWN = 20000 };

static bool parse(int argc, char **argv, options *o) {
    const char *dtype = "f32";
    const argument list[] = {{"data", .text = &o->data},
                             {"save", .text = &o->save},
                             {"load", .text = &o->load},
                             {"epochs", .whole = &o->epochs, .low = 1, .high = MAX_EPOCHS},
                             {"batch", .whole = &o->batch, .low = 1, .high = 10000},
                             {"steps", .whole = &o->steps, .low = 1, .high = 1e6},
                             {"lr", .number = &o->lr, .low = 0, .high = 1e3},
                             {"seed", .whole = &o->seed, .low = 0, .high = 9e15},
                             {"dropout", .number = &o->dropout, .low = 0, .high = 1},
                             {"dtype", .text = &dtype},
                             {"eval", .on = &o->eval},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return false;
    o->dtype = fl_dtype_by_name(dtype);
    if (o->dtype == FL_F32 || o->dtype == FL_BF16 || o->dtype == FL_F16) return true;
    fprintf(stderr, "%s: --dtype %s is not f32, bf16 or f16\n", argv[0], dtype);
    return false;
}

/* The means over all ranks of n numbers. */
static bool mean_of_ranks(const options *o, double *x, int64_t n) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_from_host(x, FL_SHAPE(n), FL_F64);
    const bool ok = t && fl_dist_all_reduce(o->d, t, .op = FL_DIST_AVG) &&
                    fl_to_host(t, x, (size_t)n * sizeof *x);
    fl_scope_end(&s);
    return ok;
}

/* This rank's part of samples offset .. offset + n - 1, in order. */
static fl_data_set *own_part(const options *o, digits all, int64_t offset, int64_t n) {
    const int64_t rank = fl_dist_rank(o->d), ranks = fl_dist_size(o->d), begin = n * rank / ranks;
    return digits_batches(all, offset + begin, n * (rank + 1) / ranks - begin, 250, 0);
}

/* One pass without training: mean loss and percentage of errors over all ranks' sets. */
static bool evaluate(fl_nn_module *net, fl_data_set *set, const options *o, double *loss, double *error) {
    fl_data_average mean = {0};
    fl_data_frame_error wrong = {0};
    bool ok = true;
    fl_nn_train(net, false);
    for (int64_t i = 0; ok && i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_no_grad(true);
        fl_data_sample b;
        ok = fl_autocast(o->dtype) && fl_data_get(set, i, &b);
        fl_var *y = ok ? fl_nn_forward(net, fv_const(b.t[0])) : NULL;
        if (y)
            fl_data_average_add(&mean, fl_item(fv_value(fv_nll_loss(y, b.t[1]))),
                                (double)b.t[1]->shape[0]);
        ok = y && fl_data_frame_error_add(&wrong, fv_value(y), b.t[1]);
        fl_scope_end(&s);
    }
    fl_nn_train(net, true);
    const double n = mean.weight;
    double sums[3] = {mean.mean * n, fl_data_frame_error_percent(&wrong) * n, n};
    ok = ok && mean_of_ranks(o, sums, 3);
    *loss = sums[0] / sums[2];
    *error = sums[1] / sums[2];
    return ok;
}

/* What a step changes. */
typedef struct trainer {
    fl_nn_module *net;
    fl_optim *optim;
    fl_optim_scaler *scaler; /* for f16; else NULL */
    int64_t steps, total;
    fl_data_curve loss, error; /* by step, in training; by step, of the validation set */
} trainer;

static bool update(trainer *t, fl_var *loss) {
    fl_optim_zero_grad(t->optim);
    if (!t->scaler) return fl_backward(loss) && fl_optim_step(t->optim);
    return fl_backward(fl_optim_scaler_scale(t->scaler, loss)) &&
           fl_optim_scaler_unscale(t->scaler, t->optim) && fl_optim_step(t->optim) &&
           fl_optim_scaler_update(t->scaler);
}

/* Forward, backward, step on one batch; the loss, or NaN after an error. */
static double train_step(trainer *t, const fl_data_sample *b) {
    fl_var *loss = fv_nll_loss(fl_nn_forward(t->net, fv_const(b->t[0])), b->t[1]);
    return update(t, loss) ? fl_item(fv_value(loss)) : (double)NAN;
}

/* The learning rate falls along half a cosine from lr to 0 over the whole training. */
static bool train_epoch(trainer *t, fl_data_set *set, int64_t epoch, const options *o,
                        double *mean_loss) {
    fl_data_average mean = {0};
    char label[32];
    snprintf(label, sizeof label, "epoch %lld", (long long)epoch);
    FILE *to = fl_dist_rank(o->d) ? NULL : stderr;
    fl_data_progress bar = fl_data_progress_begin(to, label, fl_data_size(set));
    bool ok = fl_data_set_epoch(set, epoch);
    for (int64_t i = 0; ok && i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        ok = fl_optim_set_lr(t->optim, fl_optim_lr_cosine(o->lr, 0, t->steps, t->total)) &&
             fl_data_get(set, i, &b) && fl_autocast(o->dtype);
        double loss = ok ? train_step(t, &b) : (double)NAN;
        ok = ok && !fl_error();
        fl_scope_end(&s);
        fl_data_average_add(&mean, loss, 1);
        fl_data_curve_add(&t->loss, (double)t->steps++, loss);
        fl_data_progress_step(&bar, i + 1, "loss %.4f", mean.mean);
    }
    fl_data_progress_end(&bar);
    *mean_loss = mean.mean;
    return ok;
}

/* This rank's part of the shuffled batches. */
static fl_data_set *shard(const options *o, digits all, int64_t n) {
    return digits_shard(all, 0, n, o->batch, o->seed + 1, fl_dist_rank(o->d), fl_dist_size(o->d));
}

/* The losses of the first o->steps steps, at a rate that stays. */
static bool first_steps(fl_nn_module *net, const options *o, digits all, int64_t n_train) {
    fl_data_set *set = shard(o, all, n_train);
    fl_optim *optim =
        fl_optim_sgd(fl_nn_parameters(net), .lr = fl_option(o->lr, FL_ZERO), .momentum = 0.9);
    trainer t = {.net = net, .optim = optim, .scaler = o->dtype == FL_F16 ? fl_optim_scaler_new(0) : NULL};
    bool ok = set && optim && (t.scaler || o->dtype != FL_F16);
    for (int64_t i = 0; ok && i < o->steps; i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        ok = fl_data_get(set, i % fl_data_size(set), &b) && fl_autocast(o->dtype);
        double loss = ok ? train_step(&t, &b) : (double)NAN;
        ok = ok && !fl_error() && mean_of_ranks(o, &loss, 1);
        if (ok && !fl_dist_rank(o->d)) printf("Step %lld: loss %.5f\n", (long long)i, loss);
        fl_scope_end(&s);
    }
    fl_optim_scaler_free(t.scaler);
    fl_optim_free(optim);
    fl_data_free(set);
    return ok;
}

static void print_table(const epoch_result *r, int64_t epochs, int64_t images) {
    puts("\n epoch  train loss  valid loss  valid error  seconds  images/s");
    for (int64_t e = 0; e < epochs; e++)
        printf("%6lld  %10.4f  %10.4f  %9.2f %%  %7.1f  %8.0f\n", (long long)e, r[e].train_loss,
               r[e].loss, r[e].error, r[e].seconds, (double)images / r[e].seconds);
}

static bool train(fl_nn_module *net, const options *o, digits all, int64_t n_train) {
    static epoch_result result[MAX_EPOCHS];
    static trainer t = {.loss = {.name = "training loss"}, .error = {.name = "validation error, %"}};
    int64_t held_out = all.image->shape[0] - n_train;
    const bool first = fl_dist_rank(o->d) == 0;
    fl_data_set *set = fl_data_prefetch(shard(o, all, n_train), 1, 4);
    fl_data_set *valid = own_part(o, all, n_train, held_out);
    fl_optim *optim =
        fl_optim_sgd(fl_nn_parameters(net), .lr = fl_option(o->lr, FL_ZERO), .momentum = 0.9);
    t.net = net, t.optim = optim, t.total = fl_data_size(set) * o->epochs;
    t.scaler = o->dtype == FL_F16 ? fl_optim_scaler_new(0) : NULL;
    bool ok = set && valid && optim && (t.scaler || o->dtype != FL_F16);
    for (int64_t e = 0; ok && e < o->epochs; e++) {
        epoch_result *r = &result[e];
        double start = fl_data_now();
        ok = train_epoch(&t, set, e, o, &r->train_loss);
        r->seconds = fl_data_now() - start;
        ok = ok && mean_of_ranks(o, &r->train_loss, 1) && evaluate(net, valid, o, &r->loss, &r->error);
        fl_data_curve_add(&t.error, (double)t.steps, r->error);
        if (ok && first)
            printf("Epoch %lld: Avg Train Loss: %.4f Validation Loss: %.4f Validation Error (%%): "
                   "%.2f\n",
                   (long long)e, r->train_loss, r->loss, r->error);
        fflush(stdout);
    }
    fl_optim_scaler_free(t.scaler);
    fl_optim_free(optim);
    fl_data_free(set);
    fl_data_free(valid);
    if (!ok || !first) return ok;
    print_table(result, o->epochs, n_train);
    puts("");
    return fl_data_plot_print(stdout, FL_DATA_CURVES(&t.loss), .x_label = "step") &&
           fl_data_plot_svg("mnist.svg", FL_DATA_CURVES(&t.loss, &t.error), .x_label = "step") &&
           fl_nn_save(net, o->save);
}

/* Training and test images: MNIST's, or drawn ones. */
static bool get_digits(const options *o, digits *all, digits *test, int64_t *n_train) {
    if (o->data) {
        if (!digits_load(o->data, "train", all) || !digits_load(o->data, "t10k", test)) {
            if (!fl_dist_rank(o->d))
                printf("No MNIST there (%s): training on drawn digits instead.\n", fl_error());
            fl_error_clear();
        } else {
            *n_train = all->image->shape[0] - HELD_OUT;
            return *n_train > 0 ||
                   fl_fail("mnist: %lld images are too few", (long long)all->image->shape[0]);
        }
    } else if (!fl_dist_rank(o->d)) {
        puts("No --data given: training on digits drawn here.");
    }
    *n_train = DRAWN;
    return digits_draw(DRAWN + HELD_OUT / 5, 1, all) && digits_draw(HELD_OUT, 2, test);
}

/* All ranks print what is wrong; what goes well rank 0 does. */
static bool run(const options *o, digits *all, digits *test, fl_nn_module *net) {
    int64_t n_train;
    double loss = 0, error = 0;
    const bool first = fl_dist_rank(o->d) == 0;
    bool ok = net && get_digits(o, all, test, &n_train) && (!o->load || fl_nn_load(net, o->load));
    fl_dist_model *model = ok ? fl_dist_data_parallel(o->d, net) : NULL;
    ok = model != NULL;
    if (ok && o->steps) {
        ok = first_steps(net, o, *all, n_train);
    } else if (ok && !o->eval) {
        if (first) {
            fl_nn_print(net);
            printf("%lld parameters, %lld training images\n", (long long)fl_nn_count(net),
                   (long long)n_train);
        }
        ok = train(net, o, *all, n_train);
        if (ok && first) printf("\nWeights: %s, curve: mnist.svg\n", o->save);
    }
    if (ok && !o->steps) {
        fl_data_set *set = own_part(o, *test, 0, test->image->shape[0]);
        ok = set && evaluate(net, set, o, &loss, &error);
        fl_data_free(set);
    }
    if (ok && !o->steps && first) printf("Test loss: %.4f\nTest accuracy: %.2f %%\n", loss, 100 - error);
    fl_dist_model_free(model);
    return ok;
}

int main(int argc, char **argv) {
    options o = {.epochs = 3, .batch = 64, .lr = 0.03, .seed = 1, .dropout = 0.5, .dtype = FL_F32};
    o.save = "mnist.safetensors";
    if (!parse(argc, argv, &o)) return 2;
    fl_seed(o.seed);
    fl_scope s = fl_scope_begin();
    o.d = fl_dist_init();
    fl_nn_module *net = o.d ? digits_net_of(o.dropout) : NULL;
    digits all, test;
    const bool ok = net && run(&o, &all, &test, net);
    if (!ok) fprintf(stderr, "mnist: %s\n", fl_error() ? fl_error() : "failed");
    fl_dist_close(o.d);
    fl_nn_free(net);
    fl_scope_end(&s);
    return ok ? 0 : 1;
}
/* MIT licence: see LICENSE. */
