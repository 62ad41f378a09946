/* examples/vision_cifar.c - trains a small residual network on CIFAR-10 or on synthetic images

   make vision-cifar DATA=../shared/data/cifar10 ARGS="--epochs 30 --seed 1"
   cc -O2 -I.. vision_cifar.c ../fl.c -o vision_cifar -lm -lpthread     (-DFL_USE_ZLIB -lz: smaller HTML)
   ./vision_cifar --data dir     CIFAR-10's binary files in dir (train*.bin or data_batch*.bin, test*.bin)
   ./vision_cifar                synthetic images: ten classes of figures
   ./vision_cifar --load cifar.safetensors --eval
   ./vision_cifar --minutes 2    time limit, to which the learning rate schedule is fitted

   Augmentation: flip, crop with padding 4, cutout. SGD with Nesterov momentum, one-cycle learning rate, label
   smoothing 0.1. Writes the weights, the curves cifar.svg (loss) and cifar_accuracy.svg, and predictions.html
   with the confusion matrix and the worst errors. The last line is "Test accuracy: NN.NN %". */
#include "html.h"
#include "vision.h"

enum { CLASSES = 10, MOST_EPOCHS = 1000, SHOWN = 200, PARTS = 1 << 20 };

typedef struct options {
    const char *data, *save, *load, *page;
    double epochs, batch, seed, lr, width, minutes;
    bool eval;
} options;

/* Class names, one per line of CIFAR's batches.meta.txt. */
static char class_name[CLASSES][32];

static void read_names(const char *folder) {
    char path[1024];
    for (int k = 0; k < CLASSES; k++)
        snprintf(class_name[k], sizeof *class_name, "%s", folder ? "" : vision_class_names[k]);
    if (!folder) return;
    snprintf(path, sizeof path, "%s/batches.meta.txt", folder);
    FILE *f = fopen(path, "r");
    for (int k = 0; f && k < CLASSES && fgets(class_name[k], sizeof *class_name, f); k++)
        class_name[k][strcspn(class_name[k], "\r\n")] = 0;
    if (f) fclose(f);
    for (int k = 0; k < CLASSES; k++)
        if (!*class_name[k]) snprintf(class_name[k], sizeof *class_name, "class %d", k);
}

/* ---- the network ---- */

static fl_nn_module *conv(int64_t in, int64_t out) {
    return fl_nn_conv2d(in, out, 3, .pad = 1, .no_bias = true);
}

static fl_nn_module *norm(int64_t channels) {
    return fl_nn_batch_norm2d(channels, .relu = true);
}

/* y = x + f(x), where f is two convolutions. */
static fl_nn_module *residual(int64_t channels) {
    fl_nn_module *m =
        fl_nn_residual(conv(channels, channels), norm(channels), conv(channels, channels), norm(channels));
    return m && fl_nn_shortcut(m, NULL, NULL, NULL, NULL) ? m : (fl_nn_free(m), NULL);
}

static fl_nn_module *network(int64_t w) {
    return fl_nn_sequential(conv(3, w), norm(w), conv(w, 2 * w), norm(2 * w), fl_nn_pool2d(2),
                            residual(2 * w), conv(2 * w, 4 * w), norm(4 * w), fl_nn_pool2d(2),
                            residual(4 * w), conv(4 * w, 8 * w), norm(8 * w), fl_nn_pool2d(2),
                            residual(8 * w), fl_nn_adaptive_avg_pool2d(1, 1),
                            fl_nn_view(FL_SHAPE(-1, 8 * w)), fl_nn_linear(8 * w, CLASSES));
}

/* ---- data ---- */

static fl_data_set *batches(fl_vision_arrays a, const options *o, bool train) {
    const fl_vision_transform steps[] = {fl_vision_random_crop(32, 4), fl_vision_random_horizontal_flip(0.5),
                                         fl_vision_cutout(8, 120)};
    fl_data_set *set = fl_data_tensors((fl_tensor *[]){a.image, a.label}, 2);
    if (train) set = fl_data_shuffle(set, (uint64_t)o->seed);
    set = fl_vision_batch(set, train ? (int64_t)o->batch : 250, .steps = steps, .n_steps = train ? 3 : 0,
                          .seed = (uint64_t)o->seed, .mean = FL_VISION_CIFAR_MEAN, .std = FL_VISION_CIFAR_STD,
                          .drop_last = train);
    return train ? fl_data_prefetch(set, 1, 4) : set;
}

static bool get_pictures(const options *o, fl_vision_arrays *train, fl_vision_arrays *test) {
    read_names(o->data);
    if (o->data) return fl_vision_cifar(o->data, "train", train) && fl_vision_cifar(o->data, "test", test);
    puts("No --data given: training on synthetic images.");
    return vision_draw_all(4000, 1, train) && vision_draw_all(1000, 2, test);
}

/* ---- training ---- */

/* Class probabilities of the whole set, f32 [n, classes], in evaluation mode; owned by the innermost
   scope. */
static fl_tensor *predict(fl_nn_module *net, fl_data_set *set) {
    fl_tensor *part[64];
    int n = 0;
    bool ok = fl_data_size(set) <= 64;
    fl_nn_train(net, false);
    for (int64_t i = 0; ok && i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_no_grad(true);
        fl_data_sample b;
        fl_var *y = fl_data_get(set, i, &b) ? fl_nn_forward(net, fv_const(b.t[0])) : NULL;
        part[n] = fl_scope_return(&s, y ? fl_softmax(fv_value(y), 1) : NULL);
        ok = part[n++] != NULL;
    }
    fl_nn_train(net, true);
    return ok ? fl_concat(part, n, 0) : NULL;
}

/* Accuracy of probabilities p in percent; NaN if p is NULL. */
static double accuracy(fl_tensor *p, fl_vision_arrays a) {
    fl_data_frame_error wrong = {0};
    return p && fl_data_frame_error_add(&wrong, p, a.label) ? fl_data_accuracy_percent(&wrong) : (double)NAN;
}

static bool train(fl_nn_module *net, const options *o, fl_vision_arrays images, fl_vision_arrays test) {
    static fl_data_curve loss_curve = {.name = "training loss"}, test_curve = {.name = "test accuracy, %"};
    fl_data_set *set = batches(images, o, true), *held_out = batches(test, o, false);
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(net), .lr = o->lr, .momentum = 0.9, .nesterov = true,
                                   .weight_decay = 5e-4);
    bool ok = set && held_out && optim;
    const int64_t steps = fl_data_size(set), total = steps * (int64_t)o->epochs;
    const double begin = fl_data_now();
    int64_t t = 0;
    double part = 0; /* progress of the schedule: of the steps or the minutes, whichever is further */
    for (int64_t e = 0; ok && part < 1; e++) {
        fl_data_average mean = {0};
        ok = fl_data_set_epoch(set, e);
        for (int64_t i = 0; ok && i < steps && part < 1; i++) {
            fl_scope s = fl_scope_begin();
            fl_data_sample b;
            ok = fl_optim_set_lr(optim, fl_optim_lr_one_cycle(o->lr, (int64_t)(part * PARTS), PARTS, 0.3)) &&
                 fl_data_get(set, i, &b);
            fl_var *y = ok ? fl_nn_forward(net, fv_const(b.t[0])) : NULL;
            fl_var *loss = y ? fv_cross_entropy(y, b.t[1], .smoothing = 0.1) : NULL;
            fl_optim_zero_grad(optim);
            ok = loss && fl_backward(loss) && fl_optim_step(optim);
            if (ok) fl_data_average_add(&mean, fl_item(fv_value(loss)), 1);
            fl_scope_end(&s);
            if (ok) fl_data_curve_add(&loss_curve, (double)t, mean.mean);
            part = (double)++t / (double)total;
            if (o->minutes) part = fmax(part, (fl_data_now() - begin) / (60 * o->minutes));
        }
        if (!ok) break;
        const bool look = (e + 1) % 5 == 0 || part >= 1;
        printf("Epoch %lld: loss %.4f, rate %.3g", (long long)e, mean.mean, fl_optim_lr(optim));
        if (look) {
            fl_scope s = fl_scope_begin();
            const double percent = accuracy(predict(net, held_out), test);
            fl_scope_end(&s);
            fl_data_curve_add(&test_curve, (double)t, percent);
            printf(", test accuracy %.2f %%", percent);
        }
        printf(", %.0f s\n", fl_data_now() - begin);
        fflush(stdout);
    }
    fl_optim_free(optim);
    fl_data_free(set);
    fl_data_free(held_out);
    return ok && fl_data_plot_print(stdout, FL_DATA_CURVES(&loss_curve), .x_label = "step") &&
           fl_data_plot_svg("cifar.svg", FL_DATA_CURVES(&loss_curve), .x_label = "step") &&
           fl_data_plot_svg("cifar_accuracy.svg", FL_DATA_CURVES(&test_curve), .x_label = "step") &&
           fl_nn_save(net, o->save);
}

/* ---- predictions.html ---- */

/* Sorted by the probability of the guess minus that of the target: the worst errors first. */
static const float *probabilities;
static const int64_t *targets;

static int guess_of(int64_t i) {
    int best = 0;
    for (int k = 1; k < CLASSES; k++)
        if (probabilities[i * CLASSES + k] > probabilities[i * CLASSES + best]) best = k;
    return best;
}

static int worst_first(const void *a, const void *b) {
    const int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
    const float x = probabilities[i * CLASSES + guess_of(i)] - probabilities[i * CLASSES + targets[i]];
    const float y = probabilities[j * CLASSES + guess_of(j)] - probabilities[j * CLASSES + targets[j]];
    return x > y ? -1 : x < y ? 1 : (i > j) - (i < j);
}

static bool put_confusion(fl_data_text *t, int64_t n) {
    int64_t count[CLASSES][CLASSES] = {{0}};
    for (int64_t i = 0; i < n; i++) count[targets[i]][guess_of(i)]++;
    bool ok = fl_data_text_print(t, "<table><tr><th>true \\ taken for</th>");
    for (int k = 0; ok && k < CLASSES; k++) ok = fl_data_text_print(t, "<th>%s</th>", class_name[k]);
    for (int i = 0; ok && i < CLASSES; i++) {
        ok = fl_data_text_print(t, "</tr>\n<tr><th>%s</th>", class_name[i]);
        for (int k = 0; ok && k < CLASSES; k++)
            ok = fl_data_text_print(t, "<td%s>%lld</td>", i == k ? " class=right" : "",
                                    (long long)count[i][k]);
    }
    return ok && fl_data_text_print(t, "</tr></table>\n");
}

static bool put_pictures(fl_data_text *t, fl_tensor *image, const int64_t *order, int64_t n) {
    bool ok = true;
    for (int64_t r = 0; ok && r < n; r++) {
        fl_scope s = fl_scope_begin();
        const int64_t i = order[r];
        const int guess = guess_of(i);
        ok = fl_data_text_print(t, "<figure class=%s>", guess == targets[i] ? "right" : "wrong") &&
             html_image(t, fl_select(image, 0, i), "width=96") &&
             fl_data_text_print(t, "<figcaption>%s%s%s", class_name[targets[i]],
                                guess == targets[i] ? "" : " &rarr; ",
                                guess == targets[i] ? "" : class_name[guess]);
        for (int k = 0; ok && k < CLASSES; k++)
            if (probabilities[i * CLASSES + k] >= 0.05f)
                ok = fl_data_text_print(t, "<br><i style=\"width:%.0fpx\"></i> %.2f %s",
                                        40 * (double)probabilities[i * CLASSES + k],
                                        (double)probabilities[i * CLASSES + k], class_name[k]);
        ok = ok && fl_data_text_print(t, "</figcaption></figure>\n");
        fl_scope_end(&s);
    }
    return ok;
}

static bool write_page(const char *path, fl_tensor *p, fl_vision_arrays a, double percent) {
    fl_data_text t = {0};
    const int64_t n = p->shape[0];
    int64_t *order = fl_heap_alloc((size_t)n * sizeof *order);
    fl_tensor *dense = fl_contiguous(p);
    probabilities = dense ? fl_map(dense, FL_READ) : NULL;
    targets = fl_map(a.label, FL_READ);
    bool ok = order && probabilities && targets;
    for (int64_t i = 0; ok && i < n; i++) order[i] = i;
    if (ok) qsort(order, (size_t)n, sizeof *order, worst_first);
    ok =
        ok &&
        html_begin(
            &t, "predictions",
            "figure{display:inline-block;width:130px;margin:4px;vertical-align:top;font-size:11px}"
            "img{image-rendering:pixelated}i{display:inline-block;height:7px;background:#47a}"
            "td,th{padding:2px 6px;text-align:right}.right{color:#070}.wrong{color:#a00}") &&
        fl_data_text_print(&t, "<h1>Test accuracy: %.2f %%</h1>\n", percent) &&
        put_confusion(&t, n) &&
        fl_data_text_print(&t, "<h2>The worst errors first, %lld of %lld pictures</h2>\n",
                           (long long)(n < SHOWN ? n : SHOWN), (long long)n) &&
        put_pictures(&t, a.image, order, n < SHOWN ? n : SHOWN) &&
        fl_data_replace("vision_cifar", path, t.p, (size_t)t.n);
    if (probabilities) fl_unmap(dense, FL_READ);
    if (targets) fl_unmap(a.label, FL_READ);
    fl_heap_free(order);
    fl_heap_free(t.p);
    return ok;
}

int main(int argc, char **argv) {
    options o = {.save = "cifar.safetensors", .page = "predictions.html", .batch = 64, .seed = 1, .lr = 0.1};
    const argument list[] = {
        {"data", .text = &o.data, .about = "folder of CIFAR-10's binary files; default: synthetic images"},
        {"save", .text = &o.save, .about = "output file for the weights"},
        {"load", .text = &o.load, .about = "initial weights"},
        {"page", .text = &o.page, .about = "output file for the predictions"},
        {"epochs", .number = &o.epochs, .low = 1, .high = MOST_EPOCHS,
         .about = "default: 40 with --data, else 6"},
        {"batch", .number = &o.batch, .low = 2, .high = 1000},
        {"seed", .number = &o.seed, .low = 0, .high = 9e15},
        {"lr", .number = &o.lr, .low = 1e-6, .high = 100, .about = "peak learning rate"},
        {"width", .number = &o.width, .low = 1, .high = 256,
         .about = "channels of the first layer; default: 32 with --data, else 12"},
        {"minutes", .number = &o.minutes, .low = 0.01, .high = 1e5,
         .about = "time limit, to which the schedule is fitted"},
        {"eval", .on = &o.eval, .about = "evaluate only"},
        {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    if (!o.epochs) o.epochs = o.data ? 40 : 6;
    if (!o.width) o.width = o.data ? 32 : 12;
    fl_seed((uint64_t)o.seed);
    fl_scope s = fl_scope_begin();
    fl_vision_arrays all = {0}, test = {0};
    fl_nn_module *net = network((int64_t)o.width);
    bool ok = net && fl_nn_channels_last(net) && get_pictures(&o, &all, &test) &&
              (!o.load || fl_nn_load(net, o.load));
    if (ok && !o.eval) {
        printf("%lld parameters, %lld training pictures, %lld epochs\n", (long long)fl_nn_count(net),
               (long long)all.image->shape[0], (long long)o.epochs);
        ok = train(net, &o, all, test);
    }
    fl_data_set *set = ok ? batches(test, &o, false) : NULL;
    fl_tensor *p = set ? predict(net, set) : NULL;
    const double percent = accuracy(p, test);
    ok = percent == percent && write_page(o.page, p, test, percent);
    fl_data_free(set);
    if (ok && !o.eval) printf("Weights: %s, curves: cifar.svg, cifar_accuracy.svg\n", o.save);
    if (ok) printf("Pictures: %s\nTest accuracy: %.2f %%\n", o.page, percent);
    else fprintf(stderr, "vision_cifar: %s\n", fl_error() ? fl_error() : "failed");
    fl_nn_free(net);
    fl_scope_end(&s);
    return ok ? 0 : 1;
}
/* MIT licence: see LICENSE. */
