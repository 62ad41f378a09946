/* examples/research/experts_model.h - a layer of experts in several ways, and a transformer of such layers */
#ifndef RESEARCH_EXPERTS_MODEL_H
#define RESEARCH_EXPERTS_MODEL_H
#include "experts.h"
#include <math.h>

static struct {
    int64_t steps, experts, dim, hidden, tokens, choices, seed;
    const char *page;
    bool small;
} opt = {.steps = 300, .experts = 16, .dim = 64, .hidden = 256, .tokens = 2048, .choices = 1, .seed = 1,
         .page = ""};

/* ---- ways to run a layer of experts: x [n, dim], gate [n, k], w1, w2 as in experts.h ---- */

typedef enum kind { ONE_OP, LOOP, PADDED, DENSE } kind;
typedef struct way {
    const char *name;
    kind kind;
    double capacity; /* of PADDED; 0: the largest expert's rows */
} way;
static const way ways[] = {{"experts, one op", ONE_OP, 0}, {"a loop over experts", LOOP, 0},
                           {"padded to the largest", PADDED, 0}, {"capacity 1", PADDED, 1},
                           {"capacity 1.5", PADDED, 1.5}, {"capacity 2", PADDED, 2}, {"dense", DENSE, 0}};
enum { WAYS = sizeof ways / sizeof *ways };
static int64_t dropped; /* pairs of a token and a choice, by the last layer */

/* Batched products of `capacity` rows for each expert: the first ones that chose it, and any row where there
   are fewer; a pair without a row adds nothing. */
static fl_var *padded(fl_var *const in[4], fl_tensor *index, double factor) {
    experts_plan p;
    if (!experts_plan_of(&p, index, fv_value(in[2])->shape[0])) return fl_raise();
    const int64_t pairs = p.n * p.k, *token = fl_data(p.token), *pair = fl_data(p.pair);
    int64_t most = (int64_t)ceil(factor * (double)pairs / (double)p.experts);
    for (int64_t e = 0; factor == 0 && e < p.experts; e++)
        if (p.first[e + 1] - p.first[e] > most) most = p.first[e + 1] - p.first[e];
    fl_tensor *source = fl_zeros(FL_SHAPE(p.experts * most), FL_I64); /* token of each row */
    fl_tensor *place = fl_zeros(FL_SHAPE(pairs), FL_I64), *stays = fl_zeros(FL_SHAPE(p.n, p.k), FL_F32);
    if (!source || !place || !stays) return NULL;
    dropped = pairs;
    for (int64_t e = 0; e < p.experts; e++)
        for (int64_t r = p.first[e]; r < p.first[e + 1] && r < p.first[e] + most; r++, dropped--) {
            const int64_t row = e * most + r - p.first[e];
            ((int64_t *)fl_data(source))[row] = token[r];
            ((int64_t *)fl_data(place))[pair[r]] = row;
            ((float *)fl_data(stays))[pair[r]] = 1;
        }
    const int64_t d = fv_value(in[0])->shape[1];
    fl_var *x = fv_reshape(fv_index_select(in[0], 0, source), FL_SHAPE(p.experts, most, d));
    fl_var *y = fv_matmul(fv_gelu(fv_matmul(x, in[2])), in[3]);
    y = fv_index_select(fv_reshape(y, FL_SHAPE(p.experts * most, d)), 0, place);
    y = fv_mul(fv_reshape(y, FL_SHAPE(p.n, p.k, d)), fv_unsqueeze(fv_mul(in[1], fv_const(stays)), 2));
    return fv_sum(y, FL_AXES(1));
}

static fl_var *run_way(const way *w, fl_var *const in[4], fl_tensor *index) {
    dropped = 0;
    if (w->kind == ONE_OP) return experts(in[0], index, in[1], in[2], in[3]);
    if (w->kind == LOOP) return experts_loop(in, index, NULL);
    if (w->kind == PADDED) return padded(in, index, w->capacity);
    return fv_matmul(fv_gelu(fv_matmul(in[0], fv_select(in[2], 0, 0))), fv_select(in[3], 0, 0));
}

/* ---- a transformer on letters ---- */

enum { LETTERS = 24, CONTEXT = 64, BATCH = 32, HEADS = 4, TESTS = 20 };

/* Each letter is one of three that follow the two before it, with probabilities 0.7, 0.2, 0.1. */
static int64_t next_letter(int64_t a, int64_t b, fl_rng *rng) {
    const double u = fl_rng_uniform(rng);
    fl_rng table = {(uint64_t)(a * LETTERS + b + 1000003 * opt.seed), 0};
    const int64_t first = (int64_t)(fl_rng_uniform(&table) * LETTERS);
    const int64_t step = 1 + (int64_t)(fl_rng_uniform(&table) * (LETTERS / 2 - 1));
    return (first + (u < 0.7 ? 0 : u < 0.9 ? step : 2 * step)) % LETTERS;
}

/* x and the letters after x, i64 [BATCH, CONTEXT]. */
static bool draw_letters(fl_rng *rng, fl_tensor **x, fl_tensor **after) {
    static int64_t letter[BATCH][CONTEXT + 1];
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t <= CONTEXT; t++)
            letter[b][t] = t < 2 ? (int64_t)(fl_rng_uniform(rng) * LETTERS)
                                 : next_letter(letter[b][t - 2], letter[b][t - 1], rng);
    fl_tensor *all = fl_from_host(letter, FL_SHAPE(BATCH, CONTEXT + 1), FL_I64);
    *x = fl_slice(all, 1, 0, CONTEXT, 1), *after = fl_contiguous(fl_slice(all, 1, 1, CONTEXT + 1, 1));
    return *x && *after;
}

static int64_t all_dropped; /* by all layers */

/* experts * sum over e of (share of the tokens that e gets) (mean probability of e): Switch, equation 4. */
static fl_var *balance_of(fl_var *probability, fl_tensor *index) {
    fl_tensor *chosen = fl_cast(fl_one_hot(fl_select(index, 1, 0), opt.experts), FL_F32);
    fl_var *share = fv_const(fl_mean(chosen, FL_AXES(0)));
    return fv_mul(fv_num((double)opt.experts),
                  fv_sum(fv_mul(share, fv_mean(probability, FL_AXES(0))), FL_AXES(0)));
}

/* x, balance: x + attention(norm(x)), then x + experts(norm(x)); balance + that of this block */
static fl_vars block_forward(fl_nn_module *m, fl_vars in) {
    const way *w = *(const way **)m->data;
    fl_var *attended = fl_nn_forward(m->child[1], fl_nn_forward(m->child[0], in.v[0]));
    fl_var *x = fv_add(in.v[0], attended), *balance = in.v[1];
    fl_var *rows = fv_reshape(fl_nn_forward(m->child[2], x), FL_SHAPE(-1, opt.dim));
    fl_var *operand[4] = {rows, NULL, m->param[1].var, m->param[2].var};
    fl_tensor *index = NULL;
    if (w->kind != DENSE) {
        fl_var *probability = fv_softmax(fv_matmul(rows, m->param[0].var), 1);
        operand[1] = fv_topk(probability, opt.choices, 1, false, &index);
        balance = fv_add(balance, balance_of(probability, index));
    }
    fl_var *y = run_way(w, operand, index);
    all_dropped += dropped;
    return FL_VARS(y ? fv_add(x, fv_reshape(y, fl_shape_of(fv_value(x)))) : NULL, balance);
}

static fl_nn_module *block(const way *w) {
    static const fl_nn_type type = {.name = "Block", .maker = "block", .inputs = 2, .forward = block_forward};
    const bool dense = w->kind == DENSE;
    const int64_t e = dense ? 1 : opt.experts, d = opt.dim, h = opt.hidden * (dense ? opt.choices : 1);
    const fl_shape shape[] = {FL_SHAPE(d, e), FL_SHAPE(e, d, h), FL_SHAPE(e, h, d)};
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl_nn_module *m = fl_nn_new(&type, &w, sizeof w);
    bool ok = m && fl_nn_add(m, "norm1", fl_nn_layer_norm(FL_SHAPE(d))) &&
              fl_nn_add(m, "attention", fl_nn_attention(d, HEADS, .causal = true)) &&
              fl_nn_add(m, "norm2", fl_nn_layer_norm(FL_SHAPE(d)));
    for (int i = 0; ok && i < 3; i++) {
        const double std = 1 / sqrt((double)(i < 2 ? d : h));
        ok = fl_nn_add_param(m, (const char *[]){"router", "w1", "w2"}[i],
                             fv_param(fl_normal(shape[i], 0, std, FL_F32, NULL))) != NULL;
    }
    fl_scope_end(&s);
    return fl_nn_finish(m, ok);
}

/* The loss of a batch, and *balance. */
static fl_var *loss_of_batch(fl_nn_module *net, fl_tensor *x, fl_tensor *after, fl_var **balance) {
    all_dropped = 0;
    fl_var *embedded = fl_nn_forward(net->child[0], fv_const(x));
    const fl_vars y = fl_nn_forward_vars(net->child[1], FL_VARS(embedded, fv_num(0)));
    *balance = y.v[1];
    fl_var *score = fv_reshape(fl_nn_forward(net->child[2], y.v[0]), FL_SHAPE(-1, LETTERS));
    return fv_cross_entropy(score, fl_reshape(after, FL_SHAPE(-1)));
}

#endif /* MIT licence: see LICENSE. */
