/* examples/research/experts.c - mixture of experts: tokens dropped, padded, or neither

   make research-experts [ARGS="--steps 300 --experts 16 --dim 64 --hidden 256 --tokens 2048"]

   A mixture of experts sends each token to one of several feed-forward layers, so that a model has more
   weights for the same work. Batched products need as many rows for each expert, so that implementations
   give each a capacity, a factor times the mean, and drop what exceeds it (GShard; Switch Transformer), or
   pad to the largest expert (Tutel). MegaBlocks (Gale et al., MLSys 2023, arXiv 2211.15841) multiplies
   ragged groups instead, in products of its own; it trains up to 1.4 times as fast as Tutel and up to 2.4
   times as fast as dense models by Megatron-LM. experts.h is such an op for fl, with its gradient.

   1. Check: results and gradients of the op beside those of a loop over experts, and finite differences, f64.
   2. Time and bytes of forward and backward as the imbalance grows.
   3. Training: a small transformer on letters of which each depends on the two before it. All ways take a
      step in turn, so that load of the machine falls on all of them.

   The program fails if gradients differ, or if padding, the loop and the op disagree.

   To change it: a way is a row of ways[]; --choices 2 sends each token to two experts. */
#include "../html.h"
#include "../extend/training.h"
#include "experts_model.h"

/* ---- 1 and 2: the op alone ---- */

/* Operands, and experts drawn with probabilities as (e + 1)^-skew. */
static fl_tensor *draw(fl_var *in[4], int64_t n, int64_t k, int64_t e, int64_t d, int64_t h, double skew,
                       fl_dtype dtype) {
    fl_tensor *index = fl_zeros(FL_SHAPE(n, k), FL_I64);
    fl_rng rng = {(uint64_t)opt.seed, 0};
    double all = 0;
    for (int64_t i = 0; i < e; i++) all += pow((double)i + 1, -skew);
    for (int64_t i = 0; index && i < n * k; i++) {
        double left = fl_rng_uniform(&rng) * all;
        int64_t at = 0;
        while (at < e - 1 && (left -= pow((double)at + 1, -skew)) > 0) at++;
        ((int64_t *)fl_data(index))[i] = at;
    }
    in[0] = fv_param(fl_normal(FL_SHAPE(n, d), 0, 1, dtype, NULL));
    in[1] = fv_param(fl_uniform(FL_SHAPE(n, k), 0.2, 1, dtype, NULL));
    in[2] = fv_param(fl_normal(FL_SHAPE(e, d, h), 0, 1 / sqrt((double)d), dtype, NULL));
    in[3] = fv_param(fl_normal(FL_SHAPE(e, h, d), 0, 1 / sqrt((double)h), dtype, NULL));
    return index;
}

/* The largest difference, over the largest number of b. */
static double apart(fl_tensor *a, fl_tensor *b) {
    return fl_item(fl_amax(fl_abs(fl_sub(a, b)), FL_ALL_AXES)) / fl_item(fl_amax(fl_abs(b), FL_ALL_AXES));
}

/* The sum of the layer's results, each times a number; in[i] is moved by `step` times `to`. */
static double sum_of(fl_var *const in[4], fl_tensor *index, fl_tensor *times, int i, fl_tensor *to,
                     double step) {
    fl_var *at[] = {in[0], in[1], in[2], in[3]};
    at[i] = fv_const(fl_add(fv_value(in[i]), fl_mul(to, fl_num(step))));
    return fl_item(fl_sum(fl_mul(fv_value(run_way(&ways[0], at, index)), times), FL_ALL_AXES));
}

static bool check(void) {
    double loop = 0, slope = 0;
    for (int64_t k = 1; k <= 2; k++) {
        fl_scope s = fl_scope_begin();
        fl_var *in[4], *y[2], *d[2][4];
        fl_tensor *index = draw(in, 37, k, 9, 5, 7, 1.5, FL_F64); /* some experts have no token */
        fl_tensor *times = fl_normal(FL_SHAPE(37, 5), 0, 1, FL_F64, NULL);
        for (int w = 0; w < 2; w++) {
            y[w] = run_way(&ways[w], in, index);
            if (!fl_grads(FV_LIST(y[w]), fv_list_of(4, in), d[w], .given = FV_LIST(fv_const(times))))
                return false;
        }
        loop = fmax(loop, apart(fv_value(y[0]), fv_value(y[1])));
        for (int i = 0; i < 4; i++) {
            fl_tensor *to = fl_normal(fl_shape_of(fv_value(in[i])), 0, 1, FL_F64, NULL);
            const double ahead = sum_of(in, index, times, i, to, 1e-5);
            const double numeric = (ahead - sum_of(in, index, times, i, to, -1e-5)) / 2e-5;
            const double right = fl_item(fl_sum(fl_mul(to, fv_value(d[0][i])), FL_ALL_AXES));
            loop = fmax(loop, apart(fv_value(d[0][i]), fv_value(d[1][i])));
            slope = fmax(slope, fabs(numeric - right) / fmax(1, fabs(right)));
        }
        fl_scope_end(&s);
    }
    if (fl_error()) return false;
    printf("f64: op and loop differ by %.1e, gradients and finite differences by %.1e\n\n", loop, slope);
    return (loop < 1e-12 && slope < 1e-7) ||
           fl_fail("experts: gradients differ by %g and %g, expected less than 1e-12 and 1e-7", loop, slope);
}

static int by_size(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* ms and MiB of forward and backward of each way, the median of several passes in turn. */
static bool measure(double skew) {
    enum { TIMES = 9 };
    const int passes = opt.small ? 1 : TIMES;
    static double ms[WAYS][TIMES];
    double mib[WAYS], lost[WAYS];
    fl_scope all = fl_scope_begin();
    fl_var *routed[4], *dense[4];
    const int64_t d = 2 * opt.dim, h = 2 * opt.hidden, n = opt.tokens, pairs = n * opt.choices;
    draw(dense, n, 1, 1, d, h * opt.choices, 0, FL_F32);
    fl_tensor *index = draw(routed, n, opt.choices, opt.experts, d, h, skew, FL_F32);
    experts_plan p;
    bool ok = index && experts_plan_of(&p, index, opt.experts);
    fl_tensor *times = fl_normal(FL_SHAPE(n, d), 0, 1, FL_F32, NULL);
    for (int i = -1; ok && i < passes; i++)
        for (int w = 0; ok && w < WAYS; w++) {
            fl_scope s = fl_scope_begin();
            fl_var *const *in = ways[w].kind == DENSE ? dense : routed;
            for (int j = 0; j < 4; j++) fv_zero_grad(in[j]);
            fl_mem_stats_reset_peak(NULL);
            const int64_t before = fl_mem_stats_of(NULL).in_use;
            const double start = fl_data_now();
            fl_var *y = run_way(&ways[w], in, index);
            ok = y && fl_backward(y, .grad = times);
            if (i >= 0) ms[w][i] = (fl_data_now() - start) * 1e3;
            mib[w] = (double)(fl_mem_stats_of(NULL).peak_in_use - before) / (1 << 20);
            lost[w] = 100 * (double)dropped / (double)pairs;
            if (ok && ways[w].capacity == 0 && w && ways[w].kind != DENSE && i < 0) {
                fl_tensor *one = fv_value(experts(in[0], index, in[1], in[2], in[3]));
                ok = apart(one, fv_value(y)) < 1e-5 ||
                     fl_fail("%s: differs from the op by %g", ways[w].name, apart(one, fv_value(y)));
            }
            fl_scope_end(&s);
        }
    int64_t most = 0;
    for (int64_t e = 0; ok && e < opt.experts; e++)
        if (p.first[e + 1] - p.first[e] > most) most = p.first[e + 1] - p.first[e];
    for (int w = 0; ok && w < WAYS; w++) {
        qsort(ms[w], (size_t)passes, sizeof **ms, by_size);
        printf("%-7.2f %-22s %9.2f %9.2f %9.1f %8.1f %%\n", (double)(most * opt.experts) / (double)pairs,
               ways[w].name, ms[w][passes / 2], ms[w][passes / 2] / ms[0][passes / 2], mib[w], lost[w]);
    }
    fl_scope_end(&all);
    return ok;
}

/* ---- 3: training ---- */

typedef struct run {
    fl_nn_module *net;
    fl_optim *optim;
    double seconds, smooth, end; /* its own seconds; loss of training, of the test */
    int64_t dropped;
    fl_data_curve curve;
} run;

static bool train_step(run *r, const way *w, fl_tensor *x, fl_tensor *after) {
    fl_scope s = fl_scope_begin();
    const double start = fl_data_now();
    fl_var *balance, *loss = loss_of_batch(r->net, x, after, &balance);
    fl_optim_zero_grad(r->optim);
    bool ok = loss && fl_backward(w->kind == DENSE ? loss : fv_add(loss, fv_mul(balance, fv_num(0.01)))) &&
              fl_optim_step(r->optim);
    r->seconds += fl_data_now() - start;
    r->dropped += all_dropped;
    const double value = ok ? fl_item(fv_value(loss)) : 0;
    r->smooth = r->smooth == 0 ? value : 0.95 * r->smooth + 0.05 * value;
    fl_data_curve_add(&r->curve, r->seconds, r->smooth);
    fl_scope_end(&s);
    return ok;
}

/* Trains all ways, in turn step by step, and tests them. */
static bool train(run *r) {
    fl_rng rng = {(uint64_t)opt.seed, 0}, test = {12345, 0};
    bool ok = true;
    for (int w = 0; ok && w < WAYS; w++) {
        fl_seed((uint64_t)opt.seed);
        r[w].net = fl_nn_module_list(
            fl_nn_sequential(fl_nn_embedding(LETTERS, opt.dim), fl_nn_position(CONTEXT, opt.dim)),
            fl_nn_sequential(block(&ways[w]), block(&ways[w])),
            fl_nn_sequential(fl_nn_layer_norm(FL_SHAPE(opt.dim)), fl_nn_linear(opt.dim, LETTERS)));
        r[w].optim = r[w].net ? fl_optim_adam(fl_nn_parameters(r[w].net), .lr = 4e-3) : NULL;
        r[w].curve.name = ways[w].name;
        ok = r[w].optim != NULL;
    }
    for (int64_t i = 0; ok && i < opt.steps + TESTS; i++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x, *after;
        const bool trains = i < opt.steps;
        ok = draw_letters(trains ? &rng : &test, &x, &after);
        fl_no_grad(!trains);
        for (int j = 0; ok && j < WAYS; j++) {
            const int w = (int)((i + j) % WAYS); /* each is the first one in turn */
            fl_var *balance;
            if (ways[w].kind == LOOP) continue;
            if (trains) ok = train_step(&r[w], &ways[w], x, after);
            else r[w].end += fl_item(fv_value(loss_of_batch(r[w].net, x, after, &balance))) / TESTS;
        }
        ok = ok && !fl_error();
        fl_scope_end(&s);
    }
    return ok;
}

/* Seconds until the loss of training by the op was that of way w at its end. */
static double seconds_of_op(const run *r, int w) {
    int at = 0;
    while (at < r->curve.n - 1 && r->curve.y[at] > r[w].smooth) at++;
    return r->curve.x[at];
}

static bool report(const run *r, fl_data_text *page) {
    const double places = (double)(opt.steps * 2 * BATCH * CONTEXT * opt.choices);
    const double entropy = -(0.7 * log(0.7) + 0.2 * log(0.2) + 0.1 * log(0.1));
    fl_data_curves curves = {0};
    bool ok = true;
    printf("\n%-22s %9s %9s %9s %9s %9s  hash\n", "", "weights", "seconds", "dropped", "test", "op faster");
    for (int w = 0; ok && w < WAYS; w++) {
        uint64_t hash = 0;
        training_run t = {.net = r[w].net};
        if (ways[w].kind == LOOP) continue;
        ok = training_hash(&t, &hash);
        curves.v[curves.n++] = &r[w].curve;
        printf("%-22s %9lld %9.2f %8.1f%% %9.4f %9.2f  %016llx\n", ways[w].name,
               (long long)fl_nn_count(r[w].net), r[w].seconds, 100 * (double)r[w].dropped / places, r[w].end,
               r[w].seconds / seconds_of_op(r, w), (unsigned long long)hash);
    }
    printf("entropy of a letter: %.4f\npaper: up to 1.4 times as fast as padding, 2.4 as dense\n", entropy);
    char svg[1024];
    snprintf(svg, sizeof svg, "%s.svg", opt.page);
    return ok && html_begin(page, "Mixture of experts", "") &&
           html_plot(page, svg, curves, (fl_data_plot_opts){.x_label = "seconds", .y_label = "loss"}) &&
           fl_data_replace("experts", opt.page, page->p, (size_t)page->n);
}

int main(int argc, char **argv) {
    const argument list[] = {{"steps", .whole = &opt.steps, .low = 1, .high = 1e6},
                             {"experts", .whole = &opt.experts, .low = 1, .high = EXPERTS_MAX},
                             {"dim", .whole = &opt.dim, .low = 4, .high = 4096},
                             {"hidden", .whole = &opt.hidden, .low = 1, .high = 65536},
                             {"tokens", .whole = &opt.tokens, .low = 1, .high = 1e6},
                             {"choices", .whole = &opt.choices, .low = 1, .high = 8},
                             {"seed", .whole = &opt.seed, .low = 0, .high = 9e15},
                             {"page", .text = &opt.page, .about = "curves; the program.html if not given"},
                             {"small", .on = &opt.small, .about = "a few seconds"},
                             {NULL, .low = 0}};
    static run r[WAYS];
    const double start = fl_data_now();
    if (!arguments_read(argc, argv, list)) return 2;
    char beside[1000];
    fl_data_text page = {0};
    snprintf(beside, sizeof beside, "%s.html", argv[0]);
    if (!*opt.page) opt.page = beside;
    if (opt.small) opt.steps = 3, opt.tokens = 128, opt.hidden = 64;
    fl_seed((uint64_t)opt.seed);
    bool ok = experts_register() && check();
    if (ok) printf("largest %33s %9s %9s %11s\n", "ms", "of op's", "MiB", "dropped");
    for (int i = 0; ok && i < 4; i++) ok = measure((double[]){0, 0.5, 1, 2}[i]);
    ok = ok && train(r) && report(r, &page);
    for (int w = 0; w < WAYS; w++) fl_optim_free(r[w].optim), fl_nn_free(r[w].net);
    fl_heap_free(page.p);
    if (ok) printf("%.1f s, %s\n", fl_data_now() - start, opt.page);
    else fprintf(stderr, "%s\n", fl_error());
    return !ok;
}
/* MIT licence: see LICENSE. */
