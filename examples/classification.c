/* examples/classification.c - classifies three spirals: prefetching, schedules, meters, logs

   cc -O2 -I. examples/classification.c fl.c -lm -lpthread

   What most trainings are made of: a data set split in two, shuffled, batched and made ahead by a thread; a
   net, AdamW, a learning rate that falls along a cosine; meters on both parts, curves, a log for the
   notebook, and a look at what was learned.

   ./classification [--log FILE]     FILE.csv, FILE.jsonl, or TensorBoard's *tfevents* */
#include "arguments.h"
#include "fl.h"
#include <stdio.h>
#include <string.h>

enum { ARMS = 3, SAMPLES = 1500, TRAINED = 1200, BATCH = 50, EPOCHS = 20 };

/* Points [n, 2] and the arm i64 [n] that each lies on, in no order: any part of them is like the whole. */
static void spirals(fl_tensor **x, fl_tensor **y) {
    fl_tensor *t = fl_uniform(FL_SHAPE(SAMPLES), 0, 1, FL_F32, NULL); /* how far out along the arm */
    *y = fl_randint(FL_SHAPE(SAMPLES), 0, ARMS, NULL);
    fl_tensor *turn = fl_add(t, fl_div(fl_cast(*y, FL_F32), fl_num(ARMS)));
    fl_tensor *angle = fl_mul(turn, fl_num(2 * 3.14159265));
    fl_tensor *at[] = {fl_mul(t, fl_cos(angle)), fl_mul(t, fl_sin(angle))};
    *x = fl_add(fl_stack(at, 2, 1), fl_normal(FL_SHAPE(SAMPLES, 2), 0, 0.03, FL_F32, NULL));
}

/* Loss and confusion over all batches of a set, without training. */
static double evaluate(fl_nn_module *net, fl_data_set *set, fl_data_confusion *confusion) {
    fl_data_average loss = {0};
    fl_nn_train(net, false);
    for (int64_t i = 0; i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_no_grad(true);
        fl_data_sample b;
        if (!fl_data_get(set, i, &b)) break;
        fl_var *scores = fl_nn_forward(net, fv_const(b.t[0]));
        fl_data_average_add(&loss, fl_item(fv_value(fv_cross_entropy(scores, b.t[1]))),
                            (double)b.t[1]->shape[0]);
        fl_data_confusion_add(confusion, fv_value(scores), b.t[1]);
        fl_scope_end(&s);
    }
    fl_nn_train(net, true);
    return loss.mean;
}

/* The class of every point of the square, as letters. */
static void print_map(fl_nn_module *net) {
    enum { W = 48, H = 24 };
    static float at[H * W][2];
    static int64_t class[H * W];
    for (int i = 0; i < H * W; i++) {
        at[i][0] = 2.2f * (float)(i % W) / W - 1.1f;
        at[i][1] = 1.1f - 2.2f * (float)(i / W) / H;
    }
    fl_scope s = fl_scope_begin();
    fl_var *scores = fl_nn_forward(net, fv_const(fl_from_host(at, FL_SHAPE(H * W, 2), FL_F32)));
    fl_to_host(fl_argmax(fv_value(scores), 1, false), class, sizeof class);
    fl_scope_end(&s);
    for (int i = 0; i < H * W; i++) {
        putchar(".oX"[class[i]]);
        if (i % W == W - 1) putchar('\n');
    }
}

int main(int argc, char **argv) {
    const char *path = NULL;
    const argument list[] = {{"log", .text = &path, .about = ".csv, .jsonl or TensorBoard's *tfevents*"},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    fl_data_log *log = path ? fl_data_log_open(path) : NULL;
    if (path && !log) return fprintf(stderr, "classification: %s\n", fl_error()), 2;
    fl_seed(1);
    fl_scope all = fl_scope_begin();
    fl_tensor *t[2];
    spirals(&t[0], &t[1]);
    fl_data_set *train = fl_data_slice(fl_data_tensors(t, 2), 0, TRAINED);
    train = fl_data_prefetch(fl_data_batch(fl_data_shuffle(train, 1), BATCH, true), 1, 4);
    fl_data_set *test = fl_data_slice(fl_data_tensors(t, 2), TRAINED, SAMPLES - TRAINED);
    test = fl_data_batch(test, 100, false);
    fl_nn_module *net = fl_nn_sequential(fl_nn_linear(2, 64), fl_nn_relu(), fl_nn_linear(64, 64),
                                         fl_nn_relu(), fl_nn_linear(64, ARMS));
    fl_nn_print(net);
    fl_optim *optim = fl_optim_adamw(fl_nn_parameters(net), .lr = 0.01, .weight_decay = 0.01);
    fl_optim_schedule schedule = {.kind = FL_LR_COSINE, .total = EPOCHS * fl_data_size(train)};
    fl_optim_schedule_start(&schedule, optim);

    static fl_data_curve train_loss = {.name = "training loss"}, test_loss = {.name = "test loss"};
    fl_data_confusion confusion = {0};
    int64_t epoch = 0, index = 0, step = 0;
    fl_data_sample b;
    while (step < schedule.total) {
        fl_scope s = fl_scope_begin();
        if (!fl_data_next(train, &epoch, &index, &b)) break;
        fl_var *loss = fv_cross_entropy(fl_nn_forward(net, fv_const(b.t[0])), b.t[1]);
        fl_optim_zero_grad(optim);
        fl_backward(loss);
        fl_optim_step(optim);
        fl_optim_schedule_step(&schedule);
        const double value = fl_item(fv_value(loss));
        fl_data_curve_add(&train_loss, (double)++step, value);
        if (log) fl_data_log_add(log, step, "loss/train", value);
        fl_scope_end(&s);
        if (index) continue; /* an epoch ended */
        fl_data_confusion_free(&confusion);
        confusion.classes = ARMS;
        fl_data_curve_add(&test_loss, (double)step, evaluate(net, test, &confusion));
        if (log) fl_data_log_add(log, step, "loss/test", test_loss.y[test_loss.n - 1]);
    }

    fl_data_plot_print(stdout, FL_DATA_CURVES(&train_loss, &test_loss), .x_label = "step");
    print_map(net);
    puts("class  precision  recall  f1");
    for (int64_t c = 0; c < ARMS; c++) {
        const fl_data_f1 f = fl_data_confusion_class(&confusion, c);
        printf("%5lld  %9.3f  %6.3f  %.3f\n", (long long)c, f.precision, f.recall, f.f1);
    }
    const double accuracy = fl_data_confusion_micro(&confusion).f1;
    printf("test accuracy %.1f %%\n", 100 * accuracy);

    fl_data_confusion_free(&confusion);
    fl_data_log_close(log);
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_data_free(train);
    fl_data_free(test);
    fl_scope_end(&all);
    return !(accuracy > 0.9);
}
/* MIT licence: see LICENSE. */
