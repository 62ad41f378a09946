/* examples/research/swap_operator.c - replaces every addition, then every product, of six models

   cc -O2 -I. examples/research/swap_operator.c bench/models/?*.c fl.c -lm -lpthread
   make research-swap_operator [DATA=dir] [ARGS="--bits 3 --steps 1000"]

   The Flashlight paper (arXiv 2201.12465, section 5.2.4 and table 2) argues that operators can be studied
   only if a framework has few places that perform each: 55 operators of PyTorch perform additions, 20 of
   TensorFlow, 1 of Flashlight. Here one slot of the backend's table, FL_OP_add, gets a kernel that rounds its
   results to 7 bits of mantissa, up or down at random so that the mean is exact. fl_backend_override composes
   all fused kernels that add, so that they call it. The same is done to matrix products and convolutions.

   Output, also as an HTML page beside the program:
   - calls of the replacement in a step of each model: forward, backward, optimizer. A hook sees every call;
     the program fails if a kernel that contains the operator runs without calling it
   - how many ops contain an addition, a convolution, a sum, according to fl_op_uses and fl_op_grad_uses
   - losses of a small network on MNIST, or on drawn digits without MNIST: unchanged, and with each
     replacement. The last training runs twice, and must give the same bits
   - a hash of counts and weights: the same for the same seed and options

   To change it: --bits, --nearest (nothing random), the ops of `swaps`, or the body of `rounded`. */
#include "../../bench/models/model.h"
#include "../extend/training.h"
#include "../html.h"
#include <sys/stat.h>

enum { FORWARD, BACKWARD, OPTIMIZER, PHASES };
static struct {
    const char *data, *page, *preset;
    int64_t steps, bits, seed;
    bool nearest, small;
} opt = {"../shared/data/mnist", "", "tiny", 300, 7, 1, false, false};
static int phase;
static int64_t calls[PHASES], draws; /* of the replacement in a step; since a training began */

/* 32 random bits for element i of a call (the last step of murmur3); always one half with --nearest. */
static uint32_t noise(int64_t i) {
    uint32_t h = (uint32_t)i * 2654435761u + (uint32_t)draws * 40503u + (uint32_t)opt.seed;
    h = (h ^ h >> 16) * 2246822507u;
    h = (h ^ h >> 13) * 3266489909u;
    return opt.nearest ? 1u << 31 : h ^ h >> 16;
}

/* Where element i of t is. */
static int64_t offset_of(const fl_tensor *t, int64_t i) {
    int64_t offset = 0;
    for (int d = t->ndim - 1; d >= 0; i /= t->shape[d--]) offset += i % t->shape[d] * t->stride[d];
    return offset;
}

/* ---- the replacement: another kernel, which rounds the finite results, and its installation ---- */

enum { BEFORE = __LINE__ };
static fl_slot shipped[FL_MAX_OPS];
static bool rounded(const fl_backend *self, const fl_call *c) {
    const fl_tensor *y = c->out[0];
    calls[phase]++, draws++;
    if (!shipped[c->op](self, c)) return false;
    for (int64_t i = 0, n = y->dtype == FL_F32 ? fl_numel(y) : 0, dense = fl_is_dense(y); i < n; i++) {
        uint32_t *p = (uint32_t *)fl_data(y) + (dense ? i : offset_of(y, i));
        if (~*p & 0x7f800000) *p = (*p + (noise(i) >> (9 + opt.bits))) >> (23 - opt.bits) << (23 - opt.bits);
    }
    return true;
}
static bool replace_op(fl_backend *b, fl_op op) {
    shipped[op] = b->op[op];
    return fl_backend_override(b, op, rounded);
}
enum { REPLACEMENT = __LINE__ - BEFORE - 1 }; /* its lines */

/* Ops that make an operator: to be replaced, or to be counted. */
typedef struct operation {
    const char *name;
    fl_op op[4];
    int paper[3]; /* table 2: ops of PyTorch, TensorFlow and Flashlight that perform it */
} operation;
static const operation swaps[] = {
    {.name = "add", .op = {FL_OP_add}},
    {.name = "product",
     .op = {FL_OP_matmul, FL_OP_conv2d, FL_OP_conv2d_grad_input, FL_OP_conv2d_grad_weight}}};
static const operation counted[] = {
    {"ADD", {FL_OP_add}, {55, 20, 1}},
    {"CONV", {FL_OP_conv2d, FL_OP_conv2d_grad_input, FL_OP_conv2d_grad_weight}, {85, 30, 2}},
    {"SUM", {FL_OP_sum}, {25, 10, 1}}};
enum { SWAPS = 2, COUNTED = 3 };

static fl_backend original;
static bool replace(const operation *o) {
    static fl_backend mine;
    mine = *fl_backend_at(fl_backend_index("cpu"));
    for (int i = 0; i < 4 && o->op[i]; i++)
        if (!replace_op(&mine, o->op[i])) return false;
    return fl_backend_use(&mine, &original);
}

static bool is_same(fl_op op, fl_op part) {
    return op == part;
}
static bool grad_uses(fl_op op, fl_op part) {
    return fl_op_grad_uses(op, 0, part) || fl_op_grad_uses(op, 1, part);
}
static bool any(const operation *o, bool (*relation)(fl_op op, fl_op part), fl_op op) {
    for (int i = 0; i < 4 && o->op[i]; i++)
        if (relation(op, o->op[i])) return true;
    return false;
}
/* True if a kernel of op would perform o without calling it. */
static bool hides(const operation *o, fl_op op) {
    return !any(o, is_same, op) && any(o, fl_op_uses, op) && fl_backend_has(fl_backend_index("cpu"), op);
}

static bool count_ops(fl_data_text *report) {
    for (int i = 0; i < COUNTED; i++) {
        const operation *o = &counted[i];
        int parts = 0, contain = 0, kernels = 0, gradients = 0;
        for (fl_op op = 1; op < fl_op_count(); op++) {
            parts += any(o, is_same, op);
            contain += !any(o, is_same, op) && any(o, fl_op_uses, op);
            kernels += hides(o, op);
            gradients += any(o, grad_uses, op);
        }
        if (!fl_data_text_print(report, "%-9s %7d %10d %10d %8d %8d %8d %9d\n", o->name, o->paper[0],
                                o->paper[1], o->paper[2], parts, contain, kernels, gradients))
            return false;
    }
    return true;
}

/* What the hook sees: calls of an operator, and kernels that contain it. */
typedef struct seen {
    const operation *o;
    int64_t calls, kernels;
} seen;
static void see(const fl_call *c, void *user) {
    seen *s = user;
    const bool gradient = c->op == FL_OP_grad1 || c->op == FL_OP_grad2;
    s->calls += any(s->o, is_same, c->op);
    s->kernels += gradient ? any(s->o, grad_uses, ((const fl_grad_args *)c->args)->op) : hides(s->o, c->op);
}

static bool step(const model *m, const model_preset *p, fl_nn_module *net, fl_optim *optim, model_batch b) {
    fl_scope s = fl_scope_begin();
    memset(calls, 0, sizeof calls);
    phase = FORWARD;
    fl_var *loss = m->loss(net, p, &b);
    phase = BACKWARD;
    fl_optim_zero_grad(optim);
    bool ok = fl_backward(loss);
    phase = OPTIMIZER;
    ok = ok && fl_optim_step(optim);
    fl_scope_end(&s);
    return ok;
}

static bool report_calls(const char *name, const seen saw[2], const double seconds[2], fl_data_text *report) {
    const long long n[] = {calls[FORWARD], calls[BACKWARD], calls[OPTIMIZER], saw[1].calls};
    if (!n[3] || n[0] + n[1] + n[2] != n[3] || saw[1].kernels)
        return fl_fail("swap_operator: %s: %lld of %lld calls of %s are replaced, %lld kernels contain it",
                       name, n[0] + n[1] + n[2], n[3], saw[1].o->name, (long long)saw[1].kernels);
    return fl_data_text_print(report, "%-9s %-8s %7lld %8lld %9lld %7lld %8lld %8lld %7.3f %8.3f\n", name,
                              saw[1].o->name, n[0], n[1], n[2], n[3], (long long)saw[0].calls,
                              (long long)saw[0].kernels, seconds[0], seconds[1]);
}

/* Without and with each replacement two steps, of which the first makes the optimizer's state. */
static bool count_model(const char *name, fl_data_text *report, uint64_t *hash) {
    const model *m = model_find(name);
    const model_preset *p = model_preset_find(m, opt.preset);
    if (!p) return fl_fail("swap_operator: %s has no preset '%s'", name, opt.preset);
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = m->build(p);
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(net), .lr = 1e-4, .momentum = 0.9);
    const model_batch batch = m->batch(p);
    bool ok = optim != NULL;
    double seconds[2];
    seen saw[2];
    for (int i = 0; ok && i < 2 * SWAPS; i++) {
        saw[i % 2] = (seen){.o = &swaps[i / 2]};
        ok = (i % 2 == 0 || replace(&swaps[i / 2])) && step(m, p, net, optim, batch);
        const double start = fl_data_now();
        fl_call_hook(see, NULL, &saw[i % 2]);
        ok = ok && step(m, p, net, optim, batch);
        fl_call_hook(NULL, NULL, NULL);
        seconds[i % 2] = fl_data_now() - start;
        if (i % 2 == 0) continue;
        ok = ok && fl_backend_use(&original, NULL) && report_calls(name, saw, seconds, report);
        *hash = training_mix(*hash, calls, sizeof calls);
    }
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_scope_end(&s);
    return ok;
}

/* A point of the curve is the mean of a 40th of the steps; the report has the mean of the last 10. */
static bool train(digits d, const operation *o, fl_data_curve *curve, fl_data_text *report, uint64_t *hash) {
    training_run run;
    fl_scope s = fl_scope_begin();
    fl_seed((uint64_t)opt.seed);
    draws = 0;
    double loss, sum = 0;
    const int64_t every = opt.steps < 40 ? 1 : opt.steps / 40;
    bool ok = training_begin_on(&run, digits_net(), d, opt.small ? 8 : 32) && (!o || replace(o));
    const double start = fl_data_now();
    for (int64_t i = 1; ok && i <= opt.steps; i++) {
        ok = training_step(&run, i - 1, &loss);
        sum += loss;
        if (i % every) continue;
        fl_data_curve_add(curve, (double)i, sum / (double)every);
        sum = 0;
    }
    ok = ok && (!o || fl_backend_use(&original, NULL)) && training_hash(&run, hash);
    sum = 0;
    for (int i = curve->n < 10 ? 0 : curve->n - 10; i < curve->n; i++) sum += curve->y[i] / 10;
    training_end(&run);
    fl_scope_end(&s);
    return ok && fl_data_text_print(report, "%-18s %.4f %7.1f s  %016llx\n", curve->name,
                                    sum, fl_data_now() - start, (unsigned long long)*hash);
}

/* A quarter of the distance between 1 and its neighbour is rounded up in a quarter of the cases. */
static bool check_rounding(void) {
    const double n = 1 << 20, step = ldexp(1, -(int)opt.bits), part = opt.nearest ? 0 : 0.25;
    if (!replace(&swaps[0])) return false;
    fl_tensor *y = fl_add(fl_ones(FL_SHAPE(1 << 20), FL_F32), fl_full(FL_SHAPE(1 << 20), step / 4, FL_F32));
    if (!fl_backend_use(&original, NULL)) return false;
    const double up = fl_item(fl_sum(fl_eq(y, fl_num(1 + step)), FL_ALL_AXES)) / n;
    const double down = fl_item(fl_sum(fl_eq(y, fl_num(1)), FL_ALL_AXES)) / n;
    return (up + down == 1 && fabs(up - part) <= 5 * sqrt(part * (1 - part) / n)) ||
           fl_fail("swap_operator: %g of the additions were rounded up, %g down", up, down);
}

static void show(const fl_data_text *report) {
    static int64_t shown;
    if (report->n > shown) fputs(report->p + shown, stdout), fflush(stdout);
    shown = report->n;
}

static const char calls_head[] =
    "calls in a step: of the replacement (%d lines); without it, of the operator and of kernels with it\n"
    "model     replaced forward backward optimizer    step  without  kernels seconds replaced\n";
static const char ops_head[] =
    "\nops that perform it: table 2 of the paper; fl: to replace, with these inside, as a kernel, gradients\n"
    "          PyTorch TensorFlow Flashlight  replace  contain  kernels gradients\n";
static bool run(fl_data_text *report, fl_data_text *page) {
    static const char *const names[] = {"alexnet", "vgg16", "resnet50", "bert", "asr", "vit"};
    static fl_data_curve curve[] = {{.name = "unchanged"}, {.name = "additions rounded"},
                                    {.name = "products rounded"}, {.name = "the same again"}};
    const operation *const replaced[] = {NULL, &swaps[0], &swaps[1], &swaps[1]};
    uint64_t all = TRAINING_HASH, hash[4];
    struct stat found;
    digits d = {0};
    bool ok = check_rounding() && fl_data_text_print(report, calls_head, REPLACEMENT);
    for (int i = 0; ok && i < 6; i++) ok = count_model(names[i], report, &all), show(report);
    ok = ok && fl_data_text_print(report, ops_head) && count_ops(report);
    const bool drawn = opt.small || stat(opt.data, &found);
    ok = ok && (drawn ? digits_draw(opt.small ? 512 : 20000, 1, &d) : digits_load(opt.data, "train", &d)) &&
         fl_data_text_print(report, "\nloss at the end of %lld steps on %s\n", (long long)opt.steps,
                            drawn ? "drawn digits" : "MNIST");
    for (int i = 0; ok && i < 4; i++) {
        show(report);
        ok = train(d, replaced[i], &curve[i], report, &hash[i]);
        all = training_mix(all, &hash[i], sizeof hash[i]);
    }
    if (ok && hash[2] != hash[3]) return fl_fail("swap_operator: the same seed gave other bits");
    char svg[1024];
    snprintf(svg, sizeof svg, "%s.svg", opt.page);
    const fl_data_plot_opts plot = {.x_label = "step", .y_label = "loss", .log_y = true};
    return ok && fl_data_text_print(report, "hash %016llx\n", (unsigned long long)all) &&
           html_begin(page, "An operator replaced", "") &&
           html_plot(page, svg, FL_DATA_CURVES(&curve[0], &curve[1], &curve[2]), plot) &&
           fl_data_text_print(page, "<pre>%s</pre>\n", report->p) &&
           fl_data_replace("swap_operator", opt.page, page->p, (size_t)page->n);
}

int main(int argc, char **argv) {
    const argument list[] = {{"data", .text = &opt.data, .about = "folder of MNIST's files"},
                             {"page", .text = &opt.page, .about = "HTML file [beside the program]"},
                             {"preset", .text = &opt.preset, .about = "of the models: tiny, cpu"},
                             {"steps", .whole = &opt.steps, .low = 40, .high = 1e6},
                             {"bits", .whole = &opt.bits, .low = 1, .high = 22, .about = "of mantissa"},
                             {"seed", .whole = &opt.seed, .low = 0, .high = 1e9},
                             {"nearest", .on = &opt.nearest, .about = "rounds to nearest"},
                             {"small", .on = &opt.small, .about = "10 steps on 512 drawn digits"},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    char beside[1000];
    snprintf(beside, sizeof beside, "%s.html", argv[0]);
    if (!*opt.page) opt.page = beside;
    if (opt.small) opt.steps = 10;
    const double start = fl_data_now();
    fl_data_text report = {0}, page = {0};
    const bool ok = run(&report, &page);
    show(&report);
    if (ok) printf("%.1f s, %s\n", fl_data_now() - start, opt.page);
    else fprintf(stderr, "%s\n", fl_error());
    fl_heap_free(report.p);
    fl_heap_free(page.p);
    return !ok;
}
/* MIT licence: see LICENSE. */
