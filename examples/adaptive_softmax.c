/* examples/adaptive_softmax.c - adaptive softmax for large vocabularies

   cc -O2 -I. examples/adaptive_softmax.c fl.c -lm -lpthread

   Most of a language model's last layer works for words that hardly occur. The adaptive softmax (Grave et
   al. 2017) keeps the frequent words in a small head, and reaches the others through clusters of fewer dims.
   Here both kinds learn one language: half of the words are drawn by Zipf's law (word k as often as
   1 / (k + 1)), the others are half of their predecessor. So the best possible loss is known. */
#include "arguments.h"
#include "fl.h"
#include <math.h>
#include <stdio.h>

enum { WORDS = 2000, DIM = 32, TRAIN = 1 << 15, TEST = 1 << 12, BATCH = 256, EPOCHS = 3 };

/* Words with probability nearly proportional to 1 / (k + 1): the exponential of a uniform number. */
static int64_t zipf(double u) {
    const int64_t k = (int64_t)exp(u * log(WORDS + 1.0)) - 1;
    return k < WORDS ? k : WORDS - 1;
}
static double zipf_probability(int64_t k) {
    return log((double)(k + 2) / (double)(k + 1)) / log(WORDS + 1.0);
}

/* Pairs of a word and the next, both i64 [n], and the mean of -log P(next | word). */
static fl_data_set *language(uint64_t seed, int64_t n, double *best) {
    fl_scope s = fl_scope_begin();
    fl_tensor *draws = fl_uniform(FL_SHAPE(n, 3), 0, 1, FL_F64, &(fl_rng){seed, 0});
    fl_tensor *t[] = {fl_empty(FL_SHAPE(n), FL_I64), fl_empty(FL_SHAPE(n), FL_I64)};
    const double *u = fl_map(draws, FL_READ);
    int64_t *word = fl_map(t[0], FL_WRITE), *next = fl_map(t[1], FL_WRITE);
    fl_data_average mean = {0};
    for (int64_t i = 0; i < n; i++, u += 3) {
        word[i] = zipf(u[0]);
        next[i] = u[1] < 0.5 ? word[i] / 2 : zipf(u[2]);
        const double p = 0.5 * (next[i] == word[i] / 2) + 0.5 * zipf_probability(next[i]);
        fl_data_average_add(&mean, -log(p), 1);
    }
    fl_unmap(draws, FL_READ);
    fl_unmap(t[0], FL_WRITE);
    fl_unmap(t[1], FL_WRITE);
    fl_data_set *set = fl_data_batch(fl_data_tensors(t, 2), BATCH, true);
    fl_scope_end(&s);
    *best = mean.mean;
    return set;
}

/* A net is an embedding, and a head that gives either log P(next | word) itself or scores of all words. */
typedef struct model {
    const char *name;
    fl_nn_module *net;
    bool adaptive;
} model;

static fl_var *loss_of(const model *m, const fl_data_sample *b) {
    fl_nn_module *head = m->net->child[1];
    fl_var *x = fl_nn_forward(m->net->child[0], fv_const(b->t[0])), *next = fv_const(b->t[1]);
    if (!m->adaptive) return fv_cross_entropy(fl_nn_forward(head, x), b->t[1]);
    return fv_neg(fv_mean(fl_nn_forward_vars(head, FL_VARS(x, next)).v[0], FL_ALL_AXES));
}

static void train(const model *m, fl_data_set *set, fl_data_timer *time, fl_data_curve *curve) {
    fl_optim *optim = fl_optim_adam(fl_nn_parameters(m->net), .lr = 0.02);
    const int64_t steps = EPOCHS * fl_data_size(set);
    int64_t epoch = 0, index = 0;
    fl_data_timer_start(time);
    for (time->units = 0; time->units < steps; time->units++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        if (!fl_data_next(set, &epoch, &index, &b)) break;
        fl_var *loss = loss_of(m, &b);
        fl_optim_set_lr(optim, fl_optim_lr_cosine(0.02, 0, time->units, steps));
        fl_optim_zero_grad(optim);
        fl_backward(loss);
        fl_optim_step(optim);
        fl_data_curve_add(curve, (double)time->units, fl_item(fv_value(loss)));
        fl_scope_end(&s);
    }
    fl_data_timer_stop(time);
    fl_optim_free(optim);
}

static double test(const model *m, fl_data_set *set) {
    fl_data_average mean = {0};
    for (int64_t i = 0; i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_no_grad(true);
        fl_data_sample b;
        if (fl_data_get(set, i, &b)) fl_data_average_add(&mean, fl_item(fv_value(loss_of(m, &b))), 1);
        fl_scope_end(&s);
    }
    return mean.mean;
}

int main(int argc, char **argv) {
    if (!arguments_read(argc, argv, (argument[]){{NULL, .low = 0}})) return 2;
    static fl_data_curve curve[2] = {{.name = "adaptive"}, {.name = "full"}};
    fl_seed(1);
    double best, found[2];
    fl_data_set *test_set = language(2, TEST, &best), *train_set = language(1, TRAIN, &(double){0});
    const fl_shape cutoffs = FL_SHAPE(150, 600, WORDS); /* head, and two clusters of DIM / 4 and DIM / 16 */
    model m[2] = {{.name = "adaptive", .adaptive = true}, {.name = "full"}};
    puts("softmax   parameters of it  ms per step  test loss");
    for (int k = 0; k < 2; k++) {
        fl_nn_module *head = m[k].adaptive ? fl_nn_adaptive_softmax(DIM, cutoffs) : fl_nn_linear(DIM, WORDS);
        m[k].net = fl_nn_module_list(fl_nn_embedding(WORDS, DIM, .std = 0.1), head);
        fl_data_timer time = {0};
        train(&m[k], train_set, &time, &curve[k]);
        found[k] = test(&m[k], test_set);
        printf("%-9s %16lld %12.2f %10.3f\n", m[k].name, (long long)fl_nn_count(head),
               1000 * fl_data_timer_per_unit(&time), found[k]);
        fl_nn_free(m[k].net);
    }
    printf("the best possible %38.3f\n\n", best);
    fl_data_plot_print(stdout, FL_DATA_CURVES(&curve[0], &curve[1]), .title = "training loss");
    fl_data_free(train_set);
    fl_data_free(test_set);
    return !(found[0] < best + 1.25 && found[1] < best + 1.25);
}
/* MIT licence: see LICENSE. */
