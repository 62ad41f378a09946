/* examples/research/opencl.c - new hardware: networks trained on a backend that is one header, by OpenCL

   make research-opencl [DATA=folder of MNIST] [ARGS="--steps 300 --page f.html"]
   OPENCL_DEVICE=text make research-opencl         the first device whose name contains the text

   A framework that many may change must run on hardware that its authors do not have. The Flashlight paper
   (arXiv 2201.12465, section 4.1) argues for a tensor interface of a few dozen primitive ops: who implements
   these has everything that is written with them. fl's CORE ops are such a set, and examples/extend/opencl.h
   implements it, for GPUs and for processors (PoCL), without a change of fl and without a header or a library
   at build time: element-wise kernels are printed from the op table, the others are texts.

   Here a multilayer perceptron and the CNN of that paper, with dropout, learn digits, and a GPT of two layers
   learns to add, once on the cpu and once on the device, from the same seeds. Output, also as an HTML page:
   the required ops that the device has; losses of both and how far apart they ever are; ops that fell back on
   the cpu, which must be 0; seconds of both; kernels compiled and launched. Without OpenCL: one line.

   To change it: the networks are in `works`, and `fl_backend_set_default("opencl")` is all that a program of
   yours needs. */
#include "../extend/opencl.h"
#include "../../fl_all.h"
#include "../extend/training.h"
#include "../html.h"
#include <sys/stat.h>

static struct {
    const char *data, *page;
    int64_t steps, seed;
    bool small;
} opt = {"../shared/data/mnist", "", 200, 1, false};

/* One training: what it is given, and what came of it. */
typedef struct work {
    const char *name;
    fl_nn_module *(*net)(void);
    bool text;      /* learns sums, else digits */
    double differs; /* the relative difference of two losses that rounding may make */
    fl_data_curve curve[2];
    double seconds[2], first[2]; /* of all steps but the first; of the first, with what is compiled then */
    int64_t kernels, launches;
    uint64_t hash; /* of the device's losses */
} work;

static digits data;
static const char *const backend[] = {"cpu", "opencl"};

static fl_nn_module *perceptron(void) {
    return fl_nn_sequential(fl_nn_view(FL_SHAPE(-1, DIGITS_PIXELS)),
                            fl_nn_linear(DIGITS_PIXELS, 256), fl_nn_relu(), fl_nn_linear(256, 10),
                            fl_nn_log_softmax(1));
}

enum { VOCABULARY = 16, CONTEXT = 32, SENTENCES = 16 };
static fl_nn_module *gpt(void) {
    return fl_text_lm(VOCABULARY, .layers = 2, .dim = 64, .heads = 4, .context = CONTEXT);
}

/* Sums, such as "12+34=46;", as tokens: rows of CONTEXT + 1, which begin anywhere. */
static void write_sums(fl_rng *rng, int64_t *token) {
    static const char letters[] = "0123456789+=;";
    for (int row = 0; row < SENTENCES; row++) {
        char text[3 * CONTEXT] = "";
        for (size_t n = 0; n < 2 * CONTEXT; n = strlen(text)) {
            const int a = (int)(100 * fl_rng_uniform(rng)), b = (int)(100 * fl_rng_uniform(rng));
            snprintf(text + n, sizeof text - n, "%d+%d=%d;", a, b, a + b);
        }
        const int from = (int)(8 * fl_rng_uniform(rng));
        for (int i = 0; i <= CONTEXT; i++) *token++ = strchr(letters, text[from + i]) - letters;
    }
}

/* A step of the GPT on new sums. */
static bool text_step(training_run *r, fl_rng *rng, double *loss) {
    int64_t token[SENTENCES * (CONTEXT + 1)];
    write_sums(rng, token);
    fl_scope s = fl_scope_begin();
    fl_tensor *rows = fl_from_host(token, FL_SHAPE(SENTENCES, CONTEXT + 1), FL_I64);
    fl_tensor *x = rows ? fl_slice(rows, 1, 0, CONTEXT, 1) : NULL;
    fl_tensor *y = x ? fl_slice(rows, 1, 1, CONTEXT + 1, 1) : NULL;
    fl_var *value = y ? fl_text_loss(r->net, FL_VARS(fv_const(x)), y, FL_MEAN) : NULL;
    fl_optim_zero_grad(r->optim);
    bool ok = value && fl_backward(value) && fl_optim_step(r->optim);
    *loss = ok ? fl_item(fv_value(value)) : 0;
    fl_scope_end(&s);
    return ok && !fl_error();
}

static bool begin(training_run *r, const work *w) {
    fl_nn_module *net = w->net();
    if (!w->text) return training_begin_on(r, net, data, opt.small ? 8 : 32);
    *r = (training_run){.net = net,
                        .optim = net ? fl_optim_adam(fl_nn_parameters(net), .lr = 2e-3) : NULL};
    return r->optim != NULL;
}

static bool train(work *w, int on) {
    const int64_t kernels = opencl.kernels, launches = opencl.launches;
    fl_scope s = fl_scope_begin();
    training_run run = {0};
    fl_rng rng = {(uint64_t)opt.seed, 0};
    double loss = 0;
    fl_seed((uint64_t)opt.seed);
    bool ok = fl_backend_set_default(backend[on]) && begin(&run, w);
    w->curve[on].name = backend[on];
    double start = fl_data_now();
    w->hash = TRAINING_HASH;
    for (int64_t i = 0; ok && i < opt.steps; i++) {
        ok = w->text ? text_step(&run, &rng, &loss) : training_step(&run, i, &loss);
        fl_data_curve_add(&w->curve[on], (double)i + 1, loss);
        w->hash = training_mix(w->hash, &loss, sizeof loss);
        if (!i) w->first[on] = fl_data_now() - start, start = fl_data_now();
    }
    w->seconds[on] = fl_data_now() - start;
    w->kernels = opencl.kernels - kernels, w->launches = opencl.launches - launches;
    training_end(&run);
    fl_scope_end(&s);
    return ok;
}

/* The mean of the last ten losses. */
static double last(const fl_data_curve *c) {
    double sum = 0;
    for (int i = 0; i < 10; i++) sum += c->y[c->n - 1 - i] / 10;
    return sum;
}

/* Trains on both; an error if a loss differs by more than rounding explains, or an op fell back. */
static bool compare(work *w, fl_data_text *report) {
    const int64_t before = fl_backend_fallbacks();
    double early = 0, late = 0;
    if (!train(w, 0) || !train(w, 1)) return false;
    const fl_data_curve *a = &w->curve[0], *b = &w->curve[1];
    for (int i = 0; i < a->n; i++) {
        const double off = fabs(b->y[i] - a->y[i]) / fabs(a->y[i]);
        *(i < 10 ? &early : &late) = fmax(i < 10 ? early : late, off);
    }
    const int64_t fell = fl_backend_fallbacks() - before;
    fl_data_text_print(
        report, "%-11s %8.4f %8.4f %9.1e %9.1e %9lld %7.2f %7.2f %8.2f %7lld %8.0f  %016llx\n",
        w->name, last(a), last(b), early, late, (long long)fell, w->seconds[0], w->seconds[1],
        w->first[1], (long long)w->kernels, (double)w->launches / (double)opt.steps,
        (unsigned long long)w->hash);
    if (fell)
        return fl_fail("opencl: %lld ops of %s fell back on the cpu", (long long)fell, w->name);
    return early < w->differs || fl_fail("opencl: losses of %s differ by %g, expected less than %g",
                                         w->name, early, w->differs);
}

static void show(const fl_data_text *report) {
    static int64_t shown;
    fputs(report->p + shown, stdout), fflush(stdout);
    shown = report->n;
}

static const char table_head[] = "required ops with a kernel of the device: %d of %d\n\n"
                                 "%lld steps on %s: means of the last ten losses; the largest "
                                 "relative difference of two losses,\n"
                                 "in the first ten steps and after; seconds of all steps but the "
                                 "first, and of the device's first, in which\n"
                                 "kernels are compiled; their number; launches of a step\n"
                                 "             loss cpu   opencl  differ 10     after fallbacks    "
                                 " cpu  opencl    first kernels launches"
                                 "  hash\n";
static bool run(fl_data_text *report, fl_data_text *page) {
    static work works[] = {{"perceptron", perceptron, false, 1e-4, {{0}}, {0}, {0}, 0, 0, 0},
                           {"cnn", digits_net, false, 1e-3, {{0}}, {0}, {0}, 0, 0, 0},
                           {"gpt", gpt, true, 1e-3, {{0}}, {0}, {0}, 0, 0, 0}};
    enum { WORKS = sizeof works / sizeof *works };
    int required = 0, has = 0;
    struct stat found;
    const bool drawn = opt.small || stat(opt.data, &found);
    bool ok = drawn ? digits_draw(opt.small ? 256 : 4000, 1, &data)
                    : digits_load(opt.data, "train", &data);
    for (int i = 1; i < fl_op_count(); i++) {
        required += fl_op_get_info((fl_op)i)->required;
        has += fl_op_get_info((fl_op)i)->required &&
               fl_backend_has(fl_backend_index("opencl"), (fl_op)i);
    }
    ok = ok && fl_data_text_print(report, table_head, has, required, (long long)opt.steps,
                                  drawn ? "drawn digits" : "MNIST");
    ok = ok && html_begin(page, "Networks on a backend of OpenCL", "");
    for (int i = 0; ok && i < (opt.small ? 1 : WORKS); i++) {
        char svg[1100];
        show(report);
        snprintf(svg, sizeof svg, "%s.%s.svg", opt.page, works[i].name);
        const fl_data_plot_opts plot = {
            .title = works[i].name, .x_label = "step", .y_label = "loss"};
        ok = compare(&works[i], report) &&
             html_plot(page, svg, FL_DATA_CURVES(&works[i].curve[0], &works[i].curve[1]), plot);
    }
    if (ok) fl_data_text_print(report, "device: %s\n", opencl.name);
    show(report);
    return ok && fl_data_text_print(page, "<pre>%s</pre>\n", report->p) &&
           fl_data_replace("opencl", opt.page, page->p, (size_t)page->n);
}

int main(int argc, char **argv) {
    const argument list[] = {
        {"data", .text = &opt.data, .about = "folder of MNIST's files"},
        {"page", .text = &opt.page, .about = "HTML file [beside the program]"},
        {"steps", .whole = &opt.steps, .low = 10, .high = 1e6},
        {"seed", .whole = &opt.seed, .low = 0, .high = 1e9},
        {"small", .on = &opt.small, .about = "10 steps of the perceptron, on drawn digits"},
        {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    char beside[1000];
    snprintf(beside, sizeof beside, "%s.html", argv[0]);
    if (!*opt.page) opt.page = beside;
    if (opt.small) opt.steps = 10;
    const fl_backend *device = fl_backend_opencl();
    if (!device) return printf("skipped: %s\n", fl_error()), 0;
    const double start = fl_data_now();
    fl_data_text report = {0}, page = {0};
    const bool ok = fl_backend_use(device, NULL) && run(&report, &page);
    if (ok)
        printf("%.1f s, %s\n", fl_data_now() - start, opt.page);
    else
        fprintf(stderr, "opencl: %s\n", fl_error());
    fl_heap_free(report.p);
    fl_heap_free(page.p);
    return !ok;
}
/* MIT licence: see LICENSE. */
