/* examples/research/multiplier.c - a hardware multiplier, as a C function, under every product of a CNN

   make research-multiplier [DATA=folder of MNIST] [ARGS="--steps 2000 --retrain 500"]

   Multipliers that are not exact take less area and energy. AdaPT (Danopoulos et al., IEEE TCAD 2023, arXiv
   2203.04071) runs networks of PyTorch on models of them, as tables of products of small integers in layers
   of its own, and reports that training on with the multiplier recovers a substantial part of what is lost.

   Here the kernels of FL_OP_matmul, FL_OP_conv2d and of its two gradients are plain loops that call
   `float multiply(float, float)`, in multiplier.h; fl_backend_override composes linear layers so that they
   call them, too, forward and backward. For each multiplier: its relative error, mean and largest; the part
   of the test digits that is right when a network trained exactly runs on it; after some more steps with it;
   and of a network that was trained with nothing else.
   The program fails if loops with a b train to another loss than the shipped kernels, or if a hook counts
   other products than the loops. A page has the losses by step; the last line is a hash of the weights.

   To change it: a function and its line in `multipliers`. */
#include "../html.h"
#include "../extend/training.h"
#include "multiplier.h"
#include <sys/stat.h>

static struct {
    const char *data, *page;
    int64_t steps, retrain;
    bool small;
} opt = {"../shared/data/mnist", "", 600, 150, false};
enum { BATCH = 32, POINTS = 40 };

/* ---- multipliers ---- */

static uint32_t bits_of(float x) {
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    return word;
}

static float float_of(uint32_t word) {
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}

static float exact(float a, float b) {
    return a * b;
}

/* The product of the upper 3 bits of both fractions. */
static float truncated(float a, float b) {
    return float_of(bits_of(a) & 0xfff00000) * float_of(bits_of(b) & 0xfff00000);
}

/* The same with a bit set after them, so that errors cancel (DRUM: Hashemi et al., ICCAD 2015). */
static float drum(float a, float b) {
    return a == 0 || b == 0 ? 0 : float_of((bits_of(a) & 0xfff00000) | 1u << 19) *
                                      float_of((bits_of(b) & 0xfff00000) | 1u << 19);
}

/* log2 (1 + x) is about x, so the words of two floats are nearly logarithms: one addition (Mitchell, IRE
   Transactions on Electronic Computers, 1962). Results below 2^-126 are 0; for finite numbers. */
static float mitchell(float a, float b) {
    const uint32_t x = bits_of(a), y = bits_of(b), sign = (x ^ y) & 0x80000000;
    const int64_t sum = (int64_t)(x & 0x7fffffff) + (y & 0x7fffffff) - 0x3f800000;
    if (a == 0 || b == 0 || sum < 0x800000) return 0;
    return float_of(sign | (uint32_t)(sum < 0x7f800000 ? sum : 0x7f800000));
}

static const struct {
    const char *name;
    float (*multiply)(float a, float b);
} multipliers[] = {{"a b", exact}, {"truncated", truncated}, {"DRUM", drum}, {"Mitchell", mitchell}};
enum { MULTIPLIERS = sizeof multipliers / sizeof *multipliers };

/* ---- the loops instead of kernels ---- */

static const fl_op ops[] = {FL_OP_matmul, FL_OP_conv2d, FL_OP_conv2d_grad_input, FL_OP_conv2d_grad_weight};
static fl_backend original, replaced;

/* Every product by f; NULL: by the shipped kernels. */
static bool use(float (*f)(float a, float b)) {
    multiply = f;
    return fl_backend_use(f ? &replaced : &original, NULL);
}

static void see(const fl_call *c, void *user) {
    for (int i = 0; i < 4; i++) *(int64_t *)user += c->op == ops[i];
}

/* ---- training ---- */

typedef struct experiment {
    digits train;
    fl_data_set *test;
    training_run run;
    uint64_t hash;
} experiment;

/* A new network, the same each time. The innermost scope owns its tensors. */
static bool begin(experiment *e) {
    fl_seed(1);
    fl_nn_module *net = fl_nn_sequential(
        fl_nn_view(FL_SHAPE(-1, 1, 28, 28)), fl_nn_conv2d(1, 8, 5, .stride = 2, .pad = 2), fl_nn_relu(),
        fl_nn_conv2d(8, 16, 3, .stride = 2, .pad = 1), fl_nn_relu(), fl_nn_view(FL_SHAPE(-1, 16 * 7 * 7)),
        fl_nn_linear(16 * 7 * 7, 10), fl_nn_log_softmax(1));
    return training_begin_on(&e->run, net, e->train, BATCH);
}

/* Steps with f, NULL: with the shipped kernels. The means of a 40th of them go to curve, if any. */
static bool train(experiment *e, float (*f)(float a, float b), int64_t steps, fl_data_curve *curve) {
    const int64_t every = steps < POINTS ? 1 : steps / POINTS;
    double loss, sum = 0;
    bool ok = use(f);
    for (int64_t i = 1; ok && i <= steps; i++) {
        ok = training_step(&e->run, i - 1, &loss);
        sum += loss;
        if (!curve || i % every) continue;
        fl_data_curve_add(curve, (double)i, sum / (double)every);
        sum = 0;
    }
    return ok && use(NULL);
}

/* The part of 2,000 test digits that the network gets right with f; negative after an error. */
static double accuracy(experiment *e, float (*f)(float a, float b)) {
    double right = 0, n = 0;
    fl_scope s = fl_scope_begin();
    fl_no_grad(true);
    bool ok = use(f);
    for (int64_t i = 0; ok && i < fl_data_size(e->test); i++) {
        fl_scope each = fl_scope_begin();
        fl_data_sample b;
        fl_var *y = fl_data_get(e->test, i, &b) ? fl_nn_forward(e->run.net, fv_const(b.t[0])) : NULL;
        fl_tensor *same = y ? fl_eq(fl_argmax(fv_value(y), 1, false), b.t[1]) : NULL;
        ok = same != NULL;
        if (ok) right += fl_item(fl_sum(same, FL_ALL_AXES)), n += (double)fl_numel(same);
        fl_scope_end(&each);
    }
    fl_scope_end(&s);
    return ok && use(NULL) ? right / n : -1;
}

/* The loops with a b beside the shipped kernels: three steps, in which a hook sees all products. */
static bool check(experiment *e) {
    fl_data_curve curve[2] = {{.name = "shipped"}, {.name = "loops"}};
    int64_t seen = 0;
    bool ok = true;
    for (int i = 0; ok && i < 2; i++) {
        fl_scope s = fl_scope_begin();
        multiply_calls = seen = 0;
        fl_call_hook(see, NULL, &seen);
        ok = begin(e) && train(e, i ? exact : NULL, 3, &curve[i]);
        fl_call_hook(NULL, NULL, NULL);
        training_end(&e->run);
        fl_scope_end(&s);
    }
    if (ok && (!multiply_calls || multiply_calls != seen))
        return fl_fail("multiplier: a hook saw %lld products, the loops %lld", (long long)seen,
                       (long long)multiply_calls);
    for (int i = 0; ok && i < 3; i++)
        if (!(fabs(curve[1].y[i] - curve[0].y[i]) < 1e-4))
            return fl_fail("multiplier: loss %g with loops, %g with the shipped kernels", curve[1].y[i],
                           curve[0].y[i]);
    return ok;
}

/* Mean and largest relative error of products of numbers whose logarithms are uniform. */
static void errors(float (*f)(float a, float b), double *mean, double *most) {
    fl_rng r = {3, 0};
    *mean = *most = 0;
    for (int i = 0; i < 100000; i++) {
        const float a = (float)exp2(fl_rng_uniform(&r)), b = (float)exp2(fl_rng_uniform(&r));
        const double error = (double)f(a, b) / ((double)a * (double)b) - 1;
        *mean += error / 100000, *most = fmax(*most, fabs(error));
    }
}

/* A line of the table: f from the start, then the exact network with f, then that one trained on with f. */
static bool measure(experiment *e, int i, fl_data_curve *curve, fl_data_text *report) {
    float (*const f)(float, float) = multipliers[i].multiply;
    double mean, most, right[3] = {0};
    errors(f, &mean, &most);
    bool ok = true;
    double seconds = 0;
    for (int way = 0; ok && way < 2; way++) {
        fl_scope s = fl_scope_begin();
        const double start = fl_data_now();
        ok = begin(e) && train(e, way ? NULL : f, opt.steps, way ? NULL : curve);
        if (!way) seconds = fl_data_now() - start;
        ok = ok && (right[way] = accuracy(e, f)) >= 0;
        if (way) ok = ok && train(e, f, opt.retrain, NULL) && (right[2] = accuracy(e, f)) >= 0;
        uint64_t weights = 0;
        ok = ok && training_hash(&e->run, &weights);
        e->hash = training_mix(e->hash, &weights, sizeof weights);
        training_end(&e->run);
        fl_scope_end(&s);
    }
    return ok && fl_data_text_print(report, "%-10s %+7.2f %% %6.2f %% %8.2f %% %8.2f %% %8.2f %% %8.1f\n",
                                    multipliers[i].name, 100 * mean, 100 * most, 100 * right[1],
                                    100 * right[2], 100 * right[0], seconds);
}

static bool run(experiment *e, fl_data_text *report, fl_data_text *page) {
    static fl_data_curve curve[MULTIPLIERS + 1] = {{.name = "shipped kernels"}};
    struct stat found;
    digits test;
    const bool drawn = opt.small || stat(opt.data, &found);
    if (!(drawn ? digits_draw(opt.small ? 256 : 20000, 1, &e->train) &&
                  digits_draw(opt.small ? 100 : 2000, 2, &test)
                : digits_load(opt.data, "train", &e->train) && digits_load(opt.data, "t10k", &test)))
        return false;
    e->test = digits_batches(test, 0, opt.small ? 100 : 2000, 100, 0);
    if (!e->test || !check(e)) return false;
    fl_scope s = fl_scope_begin();
    const double start = fl_data_now();
    bool ok = begin(e) && train(e, NULL, opt.steps, &curve[0]);
    const double seconds = fl_data_now() - start, right = ok ? accuracy(e, NULL) : -1;
    training_end(&e->run);
    fl_scope_end(&s);
    ok = right >= 0 &&
         fl_data_text_print(report, "%s, %lld steps of %d, %lld more\n%-10s %9s %8s %10s %10s %10s %8s\n"
                            "%-10s %29s %21s %10.2f %% %7.1f\n", drawn ? "drawn digits" : "MNIST",
                            (long long)opt.steps, BATCH, (long long)opt.retrain, "multiplier", "error",
                            "most", "not seen", "retrained", "trained", "seconds", "shipped", "", "",
                            100 * right, seconds);
    fputs(ok ? report->p : "", stdout);
    fl_data_curves curves = {.n = 1, .v = {curve}};
    for (int i = 0; ok && i < MULTIPLIERS; i++) {
        const int64_t before = report->n;
        curve[i + 1].name = multipliers[i].name, curves.v[curves.n++] = &curve[i + 1];
        ok = measure(e, i, &curve[i + 1], report);
        if (ok) fputs(report->p + before, stdout), fflush(stdout);
    }
    char svg[1024];
    snprintf(svg, sizeof svg, "%s.svg", opt.page);
    const fl_data_plot_opts plot = {.x_label = "step", .y_label = "loss", .log_y = true};
    return ok && html_begin(page, "Approximate multipliers", "") && html_plot(page, svg, curves, plot) &&
           fl_data_text_print(page, "<pre>%s</pre>\n", report->p) &&
           fl_data_replace("multiplier", opt.page, page->p, (size_t)page->n);
}

int main(int argc, char **argv) {
    const argument list[] = {{"data", .text = &opt.data, .about = "folder of MNIST's files"},
                             {"page", .text = &opt.page, .about = "HTML file [beside the program]"},
                             {"steps", .whole = &opt.steps, .low = 1, .high = 1e6},
                             {"retrain", .whole = &opt.retrain, .low = 1, .high = 1e6, .about = "steps"},
                             {"small", .on = &opt.small, .about = "8 steps on drawn digits"},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    char beside[1000];
    snprintf(beside, sizeof beside, "%s.html", argv[0]);
    if (!*opt.page) opt.page = beside;
    if (opt.small) opt.steps = 8, opt.retrain = 2;
    const double start = fl_data_now();
    fl_data_text report = {0}, page = {0};
    experiment e = {.hash = TRAINING_HASH};
    original = replaced = *fl_backend_at(fl_backend_index("cpu"));
    bool ok = true;
    for (int i = 0; ok && i < 4; i++) /* the flag: operands as the loops read them */
        ok = fl_backend_override(&replaced, ops[i], i ? multiply_conv2d : multiply_matmul) &&
             fl_backend_set(&replaced, ops[i], i ? multiply_conv2d : multiply_matmul, FL_SLOT_CONTIGUOUS);
    ok = ok && run(&e, &report, &page);
    if (ok) printf("hash %016llx\n%.1f s, %s\n", (unsigned long long)e.hash, fl_data_now() - start, opt.page);
    else fprintf(stderr, "%s\n", fl_error());
    fl_data_free(e.test);
    fl_heap_free(report.p);
    fl_heap_free(page.p);
    return !ok;
}
/* MIT licence: see LICENSE. */
