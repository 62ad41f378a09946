/* examples/research/mxfp4.c - two papers about training in MXFP4 that disagree, side by side

   make research-mxfp4 [DATA=file] [ARGS="--steps 1000 --seeds 5 --dim 256"]

   1: Tseng, Yu, Park (Training LLMs with MXFP4, AISTATS 2025, arXiv 2502.20586): if the two products of the
   backward pass of linear layers have operands in MXFP4, training degrades; it is near lossless with
   stochastic rounding after a random Hadamard transform, which spreads outliers over a block.
   2: Cim et al. (arXiv 2605.09825): with MXFP4 in the forward product and in the input's gradient a few more
   tokens are needed, but in the weight's gradient too, 26 % more; stochastic rounding and random transforms
   do not help, a fixed transform brings it to 8 %.

   Here the slots of linear layers and of their gradients are replaced by ones that round the operands of each
   of the three products, along the dim that is summed, and then call the shipped ones. A small GPT learns
   letters in eleven ways, with several seeds each. Transforms and stochastic rounding are those of gradients;
   the forward product rounds to nearest. The output projection, embeddings and attention stay f32.
   - one product made many times: its error, and that of the mean, which is the bias. The program fails if
     stochastic rounding is biased, if nearest is not what the dtype mxfp4_e2m1 of formats.h has, or if a
     product that is to be rounded is not
   - losses of letters not trained on, beside f32, and how far seeds differ; a page with the curves; a hash

   To change it: a line of `recipes`; mxfp4.h is the arithmetic. */
#include "fl_text.h"
#include "../html.h"
#include "../extend/training.h"
#include "mxfp4.h"

static struct {
    const char *data, *page;
    int64_t steps, seeds, dim, layers, batch;
    bool small;
} opt = {"../shared/data/text/tinyshakespeare/input.txt", "", 600, 3, 128, 2, 8, false};
enum { CONTEXT = 64, POINTS = 40, LETTERS = 1 << 20, SEEDS = 100 };

/* ---- linear layers whose operands are rounded ---- */

enum { FORWARD, INPUT, WEIGHT, PRODUCTS };
typedef struct recipe {
    const char *name, *claim;
    bool in[PRODUCTS];
    mxfp4_rounding gradients;
} recipe;
static const recipe recipes[] = {
    {"f32", "", {0, 0, 0}, {false, MXFP4_PLAIN}},
    {"backward, nearest", "1: degrades", {0, 1, 1}, {false, MXFP4_PLAIN}},
    {"backward, stochastic", "1: better", {0, 1, 1}, {true, MXFP4_PLAIN}},
    {"backward, stochastic, random", "1: near lossless", {0, 1, 1}, {true, MXFP4_RANDOM}},
    {"forward", "2: modest", {1, 0, 0}, {false, MXFP4_PLAIN}},
    {"forward, input", "2: modest", {1, 1, 0}, {false, MXFP4_PLAIN}},
    {"all, nearest", "2: 26 % more", {1, 1, 1}, {false, MXFP4_PLAIN}},
    {"all, stochastic", "2: no better", {1, 1, 1}, {true, MXFP4_PLAIN}},
    {"all, random", "2: no better", {1, 1, 1}, {false, MXFP4_RANDOM}},
    {"all, stochastic, random", "", {1, 1, 1}, {true, MXFP4_RANDOM}},
    {"all, fixed", "2: 8 % more", {1, 1, 1}, {false, MXFP4_FIXED}}};
enum { RECIPES = sizeof recipes / sizeof *recipes };
static const recipe *now = recipes;
static uint32_t key; /* of the next product's random numbers */
static int64_t rounded[PRODUCTS], vocabulary;

static fl_slot shipped_linear, shipped_linear_grad;

/* Runs the shipped kernel with operands a and b of q rounded, each along the given dim. */
static bool run_rounded(fl_slot shipped, const fl_backend *self, fl_call q, int product, int a, int axis_a,
                        int b, int axis_b) {
    const mxfp4_rounding how = product == FORWARD ? recipes[0].gradients : now->gradients;
    fl_scope s = fl_scope_begin();
    rounded[product]++, key++;
    const bool ok = (q.in[a] = mxfp4_rounded(q.in[a], axis_a, how, key, 0)) &&
                    (q.in[b] = mxfp4_rounded(q.in[b], axis_b, how, key, 1)) && shipped(self, &q);
    fl_scope_end(&s);
    return ok;
}

/* x [n, in], w [out, in] -> x w^T */
static bool linear(const fl_backend *self, const fl_call *c) {
    if (!now->in[FORWARD] || c->in[1]->shape[0] == vocabulary) return shipped_linear(self, c);
    return run_rounded(shipped_linear, self, *c, FORWARD, 0, 1, 1, 1);
}

/* dz [n, out], x [n, in], w [out, in] -> dz w, dz^T x, and the bias's gradient, one after the other */
static bool linear_grad(const fl_backend *self, const fl_call *c) {
    bool ok = true;
    for (int i = 0; ok && i < 3; i++) {
        fl_call q = *c;
        if (!c->out[i]) continue;
        for (int k = 0; k < 3; k++)
            if (k != i) q.out[k] = NULL;
        const bool hidden = c->in[0]->shape[1] != vocabulary;
        if (hidden && i == 0 && now->in[INPUT])
            ok = run_rounded(shipped_linear_grad, self, q, INPUT, 0, 1, 2, 0);
        else if (hidden && i == 1 && now->in[WEIGHT])
            ok = run_rounded(shipped_linear_grad, self, q, WEIGHT, 0, 0, 1, 0);
        else ok = shipped_linear_grad(self, &q);
    }
    return ok;
}

/* ---- one product, many times ---- */

/* dz^T x, with rows of dz of several sizes: the error, and that of the mean of all, in parts of the norm. */
static bool one_product(fl_data_text *report, uint64_t *hash) {
    static const int ways[] = {6, 10, 8, 7, 9}; /* recipes, of which the gradients' rounding counts */
    const int times = opt.small ? 50 : 1000;
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_normal(FL_SHAPE(512, 64), 0, 1, FL_F32, NULL);
    fl_tensor *size = fl_exp(fl_normal(FL_SHAPE(512, 1), 0, 1.5, FL_F32, NULL));
    fl_tensor *dz = fl_mul(size, fl_normal(FL_SHAPE(512, 64), 0, 1, FL_F32, NULL));
    fl_tensor *exact = fl_matmul(fl_transpose(dz, 0, 1), x);
    fl_tensor *ours = mxfp4_rounded(dz, 1, recipes[0].gradients, 0, 0);
    fl_tensor *cast = fl_cast(fl_cast(dz, format_dtype(FORMAT_mxfp4_e2m1)), FL_F32);
    if (ours && cast && fl_item(fl_all(fl_eq(ours, cast), FL_ALL_AXES)) != 1)
        fl_fail("mxfp4: numbers rounded to nearest are not those of the dtype");
    const double norm = exact ? fl_item(fl_sum(fl_square(exact), FL_ALL_AXES)) : 0;
    bool ok = !fl_error() && fl_data_text_print(report, "%-29s %8s of the mean of %d\n",
                                                "a weight's gradient", "error", times);
    for (int i = 0; ok && i < 5; i++) {
        const mxfp4_rounding how = recipes[ways[i]].gradients;
        fl_tensor *sum = fl_zeros(fl_shape_of(exact), FL_F64);
        double squares = 0;
        for (int k = 0; ok && k < times; k++, key++) {
            fl_scope each = fl_scope_begin();
            fl_tensor *a = mxfp4_rounded(dz, 0, how, key, 0);
            fl_tensor *b = mxfp4_rounded(x, 0, how, key, 1);
            fl_tensor *off = a && b ? fl_sub(fl_matmul(fl_transpose(a, 0, 1), b), exact) : NULL;
            ok = off && fl_assign(sum, fl_add(sum, off));
            squares += ok ? fl_item(fl_sum(fl_square(off), FL_ALL_AXES)) : 0;
            fl_scope_end(&each);
        }
        const double error = sqrt(squares / times / norm);
        const double mean = ok ? sqrt(fl_item(fl_sum(fl_square(sum), FL_ALL_AXES)) / norm) / times : 0;
        *hash = training_mix(*hash, &mean, sizeof mean);
        ok = ok && fl_data_text_print(report, "%-29s %8.4f %8.4f\n", recipes[ways[i]].name + 5, error, mean);
        if (ok && how.stochastic && !(mean < 1.2 * error / sqrt(times)))
            ok = fl_fail("mxfp4: stochastic rounding is biased: the mean is %g off, expected %g", mean,
                         error / sqrt(times));
    }
    fl_scope_end(&s);
    return ok;
}

/* ---- a small GPT ---- */

/* The file's bytes, numbered by first occurrence; without it a chain of letters, of which each pair has four
   successors with odds 4:2:1:1, 1.21 nats. */
static fl_text_tokens *letters(int64_t *n) {
    FILE *f = opt.small ? NULL : fopen(opt.data, "rb");
    fl_tensor *ids = fl_empty(FL_SHAPE(LETTERS), FL_I32);
    int32_t *id = ids ? fl_data(ids) : NULL, seen[256] = {0};
    int at = 'a', before = 'a';
    for (*n = 0, vocabulary = 0; id && *n < LETTERS; ++*n) {
        const uint32_t odds = format_noise(3, (uint32_t)*n), pair = (uint32_t)(before * 256 + at);
        const uint32_t next = odds >> 31 ? 0 : odds >> 30 & 1 ? 1 : 2 + (odds >> 29 & 1);
        before = at, at = f ? getc(f) : (int)('a' + format_noise(pair, next) % 26);
        if (at == EOF) break;
        if (!seen[at]) seen[at] = (int32_t)++vocabulary;
        id[*n] = seen[at] - 1;
    }
    printf("%lld letters of %s, %lld different ones\n", (long long)*n, f ? opt.data : "a chain",
           (long long)vocabulary);
    if (f) fclose(f);
    return id ? fl_text_tokens_of(fl_slice(ids, 0, 0, *n, 1), NULL, vocabulary) : NULL;
}

/* Whether every product that is to be rounded was, and no other: five layers of each block. */
static bool all_rounded(const recipe *r) {
    const int64_t all = 5 * opt.layers * opt.steps;
    for (int i = 0; i < PRODUCTS; i++)
        if (rounded[i] != (r->in[i] ? all : 0))
            return fl_fail("mxfp4: %s: %lld of %lld products of kind %d were rounded", r->name,
                           (long long)rounded[i], (long long)all, i);
    return true;
}

/* Adds the losses of a training to curve; *valid is the one of letters not trained on. */
static bool train(const recipe *r, const fl_text_tokens *text, int64_t n, int64_t seed, double *curve,
                  double *valid, uint64_t *hash) {
    fl_scope s = fl_scope_begin();
    fl_seed((uint64_t)seed);
    now = r, key = (uint32_t)seed << 24;
    memset(rounded, 0, sizeof rounded);
    const int64_t part = n / 10 * 9, every = opt.steps / POINTS;
    training_run run = {.net = fl_text_lm(vocabulary, .layers = opt.layers, .dim = opt.dim, .heads = 4,
                                          .hidden = 3 * opt.dim, .context = CONTEXT, .place = FL_LM_ROTARY,
                                          .rms = true, .gated = true, .no_bias = true)};
    fl_data_set *texts = fl_text_blocks(text, CONTEXT, .end = part, .random = true, .seed = (uint64_t)seed,
                                        .size = opt.steps * opt.batch);
    run.batches = fl_data_batch(texts, opt.batch, true);
    run.optim = fl_optim_adamw(fl_nn_parameters(run.net), .lr = 3e-3, .beta2 = 0.99, .weight_decay = 0.1);
    fl_optim_schedule schedule = {.kind = FL_LR_COSINE, .total = opt.steps, .warmup = opt.steps / 20 + 1,
                                  .low = 3e-4};
    fl_text_training t = {.model = run.net, .optim = run.optim, .set = run.batches, .schedule = &schedule,
                          .clip = 1};
    bool ok = run.optim && run.batches && fl_optim_schedule_start(&schedule, run.optim);
    double loss;
    for (int64_t i = 0; ok && i < opt.steps; i++) {
        ok = fl_text_training_step(&t, &loss);
        if (i / every < POINTS) curve[i / every] += loss / (double)(every * opt.seeds);
    }
    fl_text_loss_sum sum = {0};
    ok = ok && all_rounded(r) &&
         fl_text_evaluate(run.net, text, &sum, .begin = part, .end = part + (opt.small ? 1024 : 65536));
    *valid = sum.nats / (double)sum.tokens;
    uint64_t weights = 0;
    ok = ok && training_hash(&run, &weights);
    *hash = training_mix(*hash, &weights, sizeof weights);
    training_end(&run);
    fl_scope_end(&s);
    return ok;
}

static bool trainings(fl_data_text *report, fl_data_curves *curves, uint64_t *hash) {
    static double losses[RECIPES][POINTS];
    static fl_data_curve curve[RECIPES];
    static double plain[SEEDS];
    int64_t n;
    fl_text_tokens *text = letters(&n);
    bool ok = text && fl_data_text_print(report, "\n%-29s %-17s %7s %8s %17s %8s\n", "MXFP4 in", "papers",
                                         "loss", "- f32's", "of each seed", "seconds");
    for (int i = 0; ok && i < RECIPES; i++) {
        double low = INFINITY, high = -INFINITY, mean = 0, off = 0, valid;
        const double start = fl_data_now();
        for (int64_t seed = 1; ok && seed <= opt.seeds; seed++) {
            ok = train(&recipes[i], text, n, seed, losses[i], &valid, hash);
            if (!i) plain[seed - 1] = valid;
            low = fmin(low, valid - plain[seed - 1]), high = fmax(high, valid - plain[seed - 1]);
            mean += valid / (double)opt.seeds, off += (valid - plain[seed - 1]) / (double)opt.seeds;
        }
        curve[i].name = recipes[i].name, curves->v[curves->n++] = &curve[i];
        for (int k = 0; k < POINTS; k++)
            fl_data_curve_add(&curve[i], (double)((k + 1) * (opt.steps / POINTS)), losses[i][k]);
        const int64_t before = report->n;
        ok = ok && fl_data_text_print(report, "%-29s %-17s %7.4f %+8.4f %+8.4f %+8.4f %8.1f\n",
                                      recipes[i].name, recipes[i].claim, mean, off, low, high,
                                      fl_data_now() - start);
        if (ok) fputs(report->p + (i ? before : 0), stdout), fflush(stdout);
    }
    fl_text_tokens_free(text);
    return ok;
}

int main(int argc, char **argv) {
    const argument list[] = {{"data", .text = &opt.data, .about = "file of letters"},
                             {"page", .text = &opt.page, .about = "HTML file [beside the program]"},
                             {"steps", .whole = &opt.steps, .low = POINTS, .high = 1e6},
                             {"seeds", .whole = &opt.seeds, .low = 1, .high = SEEDS},
                             {"dim", .whole = &opt.dim, .low = 64, .high = 4096, .about = "a multiple of 64"},
                             {"layers", .whole = &opt.layers, .low = 1, .high = 100},
                             {"batch", .whole = &opt.batch, .low = 1, .high = 1000, .about = "of 64 letters"},
                             {"small", .on = &opt.small, .about = "40 steps on generated letters"},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    char beside[1000], svg[1024];
    snprintf(beside, sizeof beside, "%s.html", argv[0]);
    if (!*opt.page) opt.page = beside;
    snprintf(svg, sizeof svg, "%s.svg", opt.page);
    if (opt.small) opt.steps = POINTS, opt.seeds = 1, opt.dim = 64, opt.layers = 1, opt.batch = 2;
    const double start = fl_data_now();
    uint64_t hash = TRAINING_HASH;
    fl_data_text report = {0}, page = {0};
    fl_data_curves curves = {0};
    const fl_data_plot_opts plot = {.x_label = "step", .y_label = "loss", .log_y = true};
    fl_backend mine = *fl_backend_at(fl_backend_index("cpu"));
    shipped_linear = mine.op[fl_op_linear], shipped_linear_grad = mine.op[fl_op_linear_grad];
    fl_seed(1);
    const bool ok = fl_backend_override(&mine, fl_op_linear, linear) &&
                    fl_backend_override(&mine, fl_op_linear_grad, linear_grad) &&
                    fl_backend_use(&mine, NULL) && one_product(&report, &hash) &&
                    trainings(&report, &curves, &hash) &&
                    html_begin(&page, "Training in MXFP4", "") && html_plot(&page, svg, curves, plot) &&
                    fl_data_text_print(&page, "<pre>%s</pre>\n", report.p) &&
                    fl_data_replace("mxfp4", opt.page, page.p, (size_t)page.n);
    if (ok) printf("hash %016llx\n%.1f s, %s\n", (unsigned long long)hash, fl_data_now() - start, opt.page);
    else fprintf(stderr, "%s\n", fl_error());
    fl_heap_free(report.p);
    fl_heap_free(page.p);
    return !ok;
}
/* MIT licence: see LICENSE. */
