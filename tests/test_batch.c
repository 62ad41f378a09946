/* test_batch.c - examples/extend/batch.h: batches of trees and ragged sequences compared with the loop */
#include "../fl.h"
#include "../examples/extend/batch.h"

#include "test.h"

enum { WIDTH = 6, CLASSES = 3, PARAMS = 9, TREES = 25, STEPS = 7 };

/* A model of each kind below, and what its samples read. */
typedef struct model {
    fl_var *p[PARAMS];
    fl_tensor *target[TREES];
    int64_t length[TREES], fails; /* fails: the sample that does; -1: none */
    int how;                      /* it fails: 1 when it is called, 2 when its calls run */
    uint64_t seed;
    bool reads, transposed;
} model;

static uint32_t draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Devices gather by calls of their own, and tell of an index out of range only later. */
static bool on_cpu(const model *m) {
    return !strcmp(fl_backend_name(fv_value(m->p[0])), "cpu");
}

static fl_var *param(fl_shape shape) {
    return fv_param(fl_normal(shape, 0, 0.4, FL_F32, NULL));
}

static void model_init(model *m, uint64_t seed) {
    const int64_t w = WIDTH;
    const fl_shape shape[PARAMS] = {
        FL_SHAPE(TREES * STEPS, w), FL_SHAPE(5 * w, 2 * w), FL_SHAPE(5 * w), FL_SHAPE(5 * w, w),
        FL_SHAPE(5 * w), FL_SHAPE(CLASSES, w), FL_SHAPE(CLASSES), FL_SHAPE(w, w), FL_SHAPE(w)};
    *m = (model){.seed = seed, .fails = -1};
    fl_seed(seed);
    for (int i = 0; i < PARAMS; i++) m->p[i] = param(shape[i]);
    for (int64_t i = 0; i < TREES; i++) {
        const int64_t class = draw(&seed) % CLASSES;
        m->length[i] = 1 + draw(&seed) % STEPS;
        m->target[i] = fl_from_host(&class, FL_SHAPE(1), FL_I64);
    }
}

static fl_var *columns(fl_var *x, int64_t from, int64_t to) {
    return fv_slice(x, 1, from * WIDTH, to * WIDTH, 1);
}

/* h and c of a Tree-LSTM's node from its gates z and the children's c. */
static fl_var *node(fl_var *z, fl_var *const child[2], fl_var **c) {
    fl_var *s = fv_sigmoid(columns(z, 0, 4));
    *c = fv_mul(columns(s, 0, 1), fv_tanh(columns(z, 4, 5)));
    for (int i = 0; i < 2; i++)
        if (child[i]) *c = fv_add(*c, fv_mul(columns(s, 1 + i, 2 + i), child[i]));
    return fv_mul(columns(s, 3, 4), fv_tanh(*c));
}

static fl_var *subtree(const model *m, int64_t first, int64_t n, uint64_t *state, fl_var **c) {
    if (n == 1) {
        fl_var *x = fv_slice(m->p[0], 0, first, first + 1, 1);
        return node(fv_linear(x, m->p[3], m->p[4]), (fl_var *[2]){NULL, NULL}, c);
    }
    const int64_t left = 1 + draw(state) % (uint32_t)(n - 1);
    fl_var *h[2], *below[2];
    h[0] = subtree(m, first, left, state, &below[0]);
    h[1] = subtree(m, first + left, n - left, state, &below[1]);
    return node(fv_linear(fv_concat(h, 2, 1), m->p[1], m->p[2]), below, c);
}

/* The sample fails, or the host reads, if the model says so. */
static fl_var *loss_of_state(model *m, int64_t i, fl_var *h) {
    const int64_t beyond = CLASSES;
    fl_tensor *target = m->target[i];
    if (m->fails == i && m->how == 1) return fv_matmul(h, m->p[1]);
    if (m->fails == i && m->how == 2) target = fl_from_host(&beyond, FL_SHAPE(1), FL_I64);
    if (m->reads && i % 3 == 0) h = fv_mul(h, fv_num(fl_item(fl_sum(fv_value(h), FL_ALL_AXES)) > 0 ? 2 : 3));
    return fv_sum(fv_cross_entropy(fv_linear(h, m->p[5], m->p[6]), target), FL_ALL_AXES);
}

static fl_var *tree(void *user, int64_t i) {
    model *m = user;
    uint64_t state = m->seed + (uint64_t)i;
    fl_var *c;
    return loss_of_state(m, i, subtree(m, i * STEPS, m->length[i], &state, &c));
}

/* A recurrent network by matmul, then attention over its states: sizes differ from sample to sample. */
static fl_var *sequence(void *user, int64_t i) {
    model *m = user;
    fl_var *h = fv_const(fl_zeros(FL_SHAPE(1, WIDTH), FL_F32)), *state[STEPS], *w = m->p[7];
    if (m->transposed) w = fv_transpose(w, 0, 1);
    for (int64_t t = 0; t < m->length[i]; t++) {
        fl_var *x = fv_slice(m->p[0], 0, i * STEPS + t, i * STEPS + t + 1, 1);
        state[t] = h = fv_relu(fv_add(fv_add(fv_matmul(h, w), x), m->p[8]));
    }
    fl_var *all = fv_concat(state, (int)m->length[i], 0);
    all = fv_add(all, fv_linear(all, m->p[7], m->p[8])); /* rows differ in number */
    fl_var *weight = fv_softmax(fv_matmul(h, fv_transpose(all, 0, 1)), 1);
    return loss_of_state(m, i, fv_matmul(weight, all));
}

static int64_t calls;
static void count_call(const fl_call *c, void *user) {
    (void)c, (void)user;
    calls++;
}

/* Sum and gradients of the first n samples, by the loop or as a batch; the number of calls that ran. */
static double run(model *m, fl_batch_fn fn, int64_t n, bool batched, fl_tensor **grad) {
    fl_call_watcher w = {.before = count_call};
    fl_var *sum = NULL;
    calls = 0;
    fl_sync(NULL);
    fl_watch_calls(&w);
    if (batched) CHECK(fl_batch_each(fn, m, n, .sum = &sum, .backward = true));
    for (int64_t i = 0; !batched && i < n; i++) {
        fl_var *y = fn(m, i);
        sum = sum ? fv_add(sum, y) : y;
    }
    if (!batched) CHECK(fl_backward(sum));
    const double value = fl_item(fv_value(sum));
    fl_sync(NULL);
    fl_unwatch_calls(&w);
    for (int i = 0; i < PARAMS; i++) {
        grad[i] = fv_grad(m->p[i]) ? fl_clone(fv_grad(m->p[i])) : NULL;
        fv_zero_grad(m->p[i]);
    }
    return value;
}

/* The batch's sum and gradients are the loop's, within rounding. Returns how many times fewer calls ran. */
static double same_as_loop(model *m, fl_batch_fn fn, int64_t n) {
    fl_tensor *loop[PARAMS], *batched[PARAMS];
    const double value = run(m, fn, n, false, loop);
    const double by_loop = (double)calls;
    CHECK_NEAR(run(m, fn, n, true, batched), value, 1e-5 * fabs(value));
    const double ratio = by_loop / (double)calls;
    for (int i = 0; i < PARAMS; i++) {
        CHECK(!loop[i] == !batched[i]);
        if (!loop[i] || !batched[i]) continue;
        const double most = fl_item(fl_amax(fl_abs(loop[i]), FL_ALL_AXES));
        CHECK_NEAR(fl_item(fl_amax(fl_abs(fl_sub(loop[i], batched[i])), FL_ALL_AXES)), 0, 1e-5 * most);
    }
    return ratio;
}

/* 40 batches of 25 samples each. */
static void random_batches(fl_batch_fn fn, double fewer) {
    test_errors_return();
    for (uint64_t round = 0; round < 40; round++) {
        fl_scope s = fl_scope_begin();
        model m;
        model_init(&m, round);
        m.transposed = round % 2;
        m.reads = round % 8 == 7;
        const double ratio = same_as_loop(&m, fn, TREES);
        if (!m.reads && on_cpu(&m)) CHECK(ratio > fewer);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

/* The operands of a product are written in place after it, and before it is needed. */
static fl_var *overwritten(void *user, int64_t i) {
    (void)user;
    fl_tensor *a = fl_full(FL_SHAPE(2, 1), (double)i + 1, FL_F32), *b = fl_full(FL_SHAPE(1, 3), 2, FL_F32);
    fl_tensor *y = fl_matmul(a, b);
    fl_assign(b, fl_add(b, fl_num(1)));
    return fv_const(y);
}

TEST(writes_in_place) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_var *result[TREES], *sum;
    CHECK(fl_batch_each(overwritten, NULL, TREES, .results = result, .sum = &sum));
    for (int64_t i = 0; i < TREES; i++)
        CHECK_NEAR(fl_item(fl_amax(fv_value(result[i]), FL_ALL_AXES)), 2 * (double)(i + 1), 0);
    CHECK_NEAR(fl_item(fl_amin(fv_value(sum), FL_ALL_AXES)), TREES * (TREES + 1), 0);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(trees) {
    random_batches(tree, 3);
}

TEST(ragged_sequences) {
    random_batches(sequence, 2);
}

TEST(few_samples) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    model m;
    fl_var *sum = NULL;
    model_init(&m, 3);
    same_as_loop(&m, tree, 1);
    same_as_loop(&m, sequence, 1);
    same_as_loop(&m, sequence, 2);
    CHECK(fl_batch_each(tree, &m, 0, .sum = &sum, .backward = true));
    CHECK(fl_item(fv_value(sum)) == 0 && !fv_grad(m.p[1]));
    CHECK(fl_batch_each(tree, &m, 0));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Results without a sum, a second batch that adds to gradients, a gradient that is computed later. */
TEST(results) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    model m;
    fl_var *result[TREES], *sum;
    fl_tensor *loop[PARAMS], *twice[PARAMS];
    model_init(&m, 4);
    CHECK(fl_batch_each(tree, &m, TREES, .results = result));
    for (int64_t i = 0; i < TREES; i++)
        CHECK_NEAR(fl_item(fv_value(result[i])), fl_item(fv_value(tree(&m, i))), 1e-5);
    run(&m, tree, TREES, false, loop);
    fl_backward(fv_sum(fv_stack(result, TREES, 0), FL_ALL_AXES));
    CHECK(fl_batch_each(tree, &m, TREES, .sum = &sum, .backward = true));
    for (int i = 0; i < PARAMS; i++) {
        if (!loop[i]) continue;
        twice[i] = fl_sub(fv_grad(m.p[i]), fl_mul(loop[i], fl_num(2)));
        CHECK_NEAR(fl_item(fl_amax(fl_abs(twice[i]), FL_ALL_AXES)), 0,
                   1e-5 * fl_item(fl_amax(fl_abs(loop[i]), FL_ALL_AXES)));
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* A read of an earlier sample's result, and an error, leave nothing behind. */
TEST(errors) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    model m;
    fl_var *sum = NULL;
    for (int how = 1; how < 3; how++) {
        model_init(&m, 5);
        if (how == 2 && !on_cpu(&m)) break;
        m.fails = 17, m.how = how;
        CHECK(!fl_batch_each(tree, &m, TREES, .sum = &sum, .backward = true));
        CHECK(fl_error() && strstr(fl_error(), "fl_batch_each: sample 17: fl_"));
        CHECK_ERROR(how == 1 ? "inner dims differ" : "is out of range");
        m.fails = -1;
        for (int i = 0; i < PARAMS; i++) fv_zero_grad(m.p[i]);
        same_as_loop(&m, tree, TREES);
    }
    CHECK(!fl_batch_each(NULL, &m, 1));
    CHECK_ERROR("fl_batch_each: got 1 samples, and no function");
    CHECK(!fl_batch_each(tree, &m, -1));
    CHECK_ERROR("fl_batch_each: got -1 samples");
    fl_graph *g = fl_graph_new();
    CHECK(fl_graph_begin(g));
    CHECK(!fl_batch_each(tree, &m, 1));
    CHECK_ERROR("fl_graph_begin: a graph of this thread records already");
    CHECK(fl_graph_end(g));
    fl_graph_free(g);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
