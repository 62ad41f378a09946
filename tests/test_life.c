/* test_life.c - life time: flat memory, scopes left early, threads, swapped operators, hooks */
#include "../fl_all.h"
#include "test.h"

#include <glob.h>
#include <pthread.h>
#include <setjmp.h>
#include <unistd.h>

#ifdef TEST_SANITIZED
enum { STEPS = 3000, HANDED = 40000 }; /* they keep freed memory: only counts are compared */
#else
enum { STEPS = 10000, HANDED = 1000000 };
#endif

/* ---- helpers ---- */

/* Blocks that the library has from the heap. */
static int64_t heap_blocks;
static void *counting_heap(void *user, void *p, size_t bytes) {
    (void)user;
    if (!bytes) {
        if (p) __atomic_sub_fetch(&heap_blocks, 1, __ATOMIC_RELAXED);
        free(p);
        return NULL;
    }
    void *q = realloc(p, bytes);
    if (q && !p) __atomic_add_fetch(&heap_blocks, 1, __ATOMIC_RELAXED);
    return q;
}

/* Within 1 %, or 1 MiB for a process so small that a stack page shows: what is looked for
   here grows by much more. */
static bool is_flat(int64_t before, int64_t now) {
    int64_t one_percent = before / 100, mib = 1 << 20;
    return now <= before + (one_percent > mib ? one_percent : mib);
}

/* What must not grow from one step to the next. */
typedef struct state {
    int64_t tensors, buffers, in_use, blocks, reserved, resident;
} state;

static state state_now(void) {
    const fl_mem_stats m = fl_mem_stats_of(NULL);
    test_resident_bytes(); /* its own first call takes memory */
    return (state){fl_live_tensors(), test_live_buffers(), m.in_use, heap_blocks, m.reserved,
                   test_resident_bytes()};
}

static void check_flat(state was, int64_t spare_blocks) {
    const state now = state_now();
    CHECK_EQ_INT(now.tensors, was.tensors);
    CHECK_EQ_INT(now.buffers, was.buffers);
    CHECK_EQ_INT(now.in_use, was.in_use);
    CHECK(now.blocks <= was.blocks + spare_blocks);
    CHECK_EQ_INT(now.reserved, was.reserved);
    CHECK(is_flat(was.resident, now.resident));
}

/* A small classifier on numbers of its own, with everything that a step of training touches. */
typedef struct trainer {
    fl_rng rng;
    fl_nn_module *net;
    fl_optim *optim;
} trainer;

enum { BATCH = 8, INPUTS = 12, CLASSES = 3 };

static trainer trainer_new(uint64_t seed) {
    trainer t = {.rng = {seed, 0}};
    fl_scope s = fl_scope_begin();
    t.net = fl_nn_sequential(fl_nn_linear(INPUTS, 16, .rng = &t.rng),
                             fl_nn_layer_norm(FL_SHAPE(16)), fl_nn_gelu(),
                             fl_nn_linear(16, CLASSES, .rng = &t.rng), fl_nn_log_softmax(1));
    t.optim = fl_optim_sgd(fl_nn_parameters(t.net), .lr = 0.05, .momentum = 0.9);
    fl_scope_end(&s);
    return t;
}

static void trainer_free(trainer *t) {
    fl_optim_free(t->optim);
    fl_nn_free(t->net);
}

/* The target is the place of the largest of the first inputs. */
static double train_on(trainer *t, fl_tensor *x) {
    fl_tensor *target = fl_argmax(fl_slice(x, 1, 0, CLASSES, 1), 1, false);
    fl_var *loss = fv_nll_loss(fl_nn_forward(t->net, fv_const(x)), target);
    fl_optim_zero_grad(t->optim);
    if (!fl_backward(loss) || !fl_optim_step(t->optim)) return (double)NAN;
    return fl_item(fv_value(loss));
}

static double train_step(trainer *t) {
    fl_scope s = fl_scope_begin();
    double loss = train_on(t, fl_normal(FL_SHAPE(BATCH, INPUTS), 0, 1, FL_F32, &t->rng));
    fl_scope_end(&s);
    return loss;
}

/* The first bytes of a hash over all parameters. */
static uint64_t hash_parameters(fl_nn_module *net) {
    uint64_t h = 1469598103934665603u;
    fl_scope s = fl_scope_begin();
    const fv_list p = fl_nn_parameters(net);
    for (int i = 0; i < p.n; i++) {
        fl_tensor *t = fv_value(p.v[i]);
        const size_t bytes = (size_t)fl_numel(t) * fl_dtype_size(t->dtype);
        const unsigned char *byte = fl_map(t, FL_READ);
        for (size_t k = 0; byte && k < bytes; k++) h = (h ^ byte[k]) * 1099511628211u;
        fl_unmap(t, FL_READ);
    }
    fl_scope_end(&s);
    return h;
}

static float first_element(fl_tensor *t) {
    const float *p = fl_map(t, FL_READ);
    float v = p ? *p : NAN;
    fl_unmap(t, FL_READ);
    return v;
}

/* ---- long runs ---- */

TEST(ten_thousand_steps_are_flat) {
    fl_heap_use(counting_heap, NULL);
    trainer t = trainer_new(1);
    double first = train_step(&t), last = 0;
    for (int i = 0; i < 300; i++) train_step(&t);
    const state warm = state_now();
    for (int i = 0; i < STEPS; i++) {
        last = train_step(&t);
        if (!CHECK(fl_live_tensors() == warm.tensors && test_live_buffers() == warm.buffers)) break;
    }
    check_flat(warm, 0);
    CHECK(last < first / 2);
    trainer_free(&t);
    CHECK_NOTHING_LIVES();
}

static bool to_double_and_back(fl_data_sample *sample, fl_rng *rng, void *user) {
    (void)rng, (void)user;
    sample->t[0] = fl_cast(fl_mul(fl_cast(sample->t[0], FL_F64), fl_num(2)), FL_F32);
    return sample->t[0] != NULL;
}

/* Worker threads make the batches, this one trains on them and drops them. */
TEST(ten_thousand_prefetched_batches_are_flat) {
    fl_heap_use(counting_heap, NULL);
    enum { SAMPLES = 1024, EPOCH = SAMPLES / BATCH };
    trainer t = trainer_new(2);
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_normal(FL_SHAPE(SAMPLES, INPUTS), 0, 1, FL_F32, &t.rng);
    fl_data_set *set = fl_data_shuffle(fl_data_tensors(&x, 1), 3);
    set = fl_data_transform(fl_data_batch(set, BATCH, true), to_double_and_back, NULL);
    set = fl_data_prefetch(set, 2, 4);
    REQUIRE(set && t.optim);
    state warm = {0};
    double loss = 0;
    for (int64_t i = 0, epochs = STEPS / EPOCH + 2; i < epochs * EPOCH && !isnan(loss); i++) {
        if (i % EPOCH == 0)
            CHECK(fl_data_set_epoch(set, i / EPOCH)); /* nothing is under way then */
        if (i == epochs / 2 * EPOCH) warm = state_now();
        fl_scope step = fl_scope_begin();
        fl_data_sample b;
        loss = fl_data_get(set, i % EPOCH, &b) ? train_on(&t, b.t[0]) : (double)NAN;
        fl_scope_end(&step);
    }
    CHECK(!isnan(loss));
    CHECK(fl_data_set_epoch(set, 0));
    /* Handles wander from the loader's threads to this one, whose cache of 1,024 a size may still
       fill, in any order; one block lost a batch would be 5,000. */
    check_flat(warm, 2048);
    fl_data_free(set);
    fl_scope_end(&s);
    trainer_free(&t);
    CHECK_NOTHING_LIVES();
}

/* ---- tensors that change threads ---- */

enum { HAND = 500 };
typedef struct channel {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    fl_tensor *box[HAND];
    bool full, failed;
    int64_t hands;
} channel;

static void *make_tensors(void *arg) {
    channel *c = arg;
    for (int64_t h = 0; h < c->hands; h++) {
        fl_tensor *made[HAND];
        fl_scope s = fl_scope_begin();
        for (int i = 0; i < HAND; i++)
            made[i] = fl_keep(fl_full(FL_SHAPE(1 + i % 40), (double)i, FL_F32));
        fl_scope_end(&s);
        pthread_mutex_lock(&c->lock);
        while (c->full) pthread_cond_wait(&c->changed, &c->lock);
        memcpy(c->box, made, sizeof made);
        c->full = true;
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->lock);
    }
    return NULL;
}

static void drop_tensors(channel *c) {
    pthread_mutex_lock(&c->lock);
    while (!c->full) pthread_cond_wait(&c->changed, &c->lock);
    for (int i = 0; i < HAND; i++) {
        if (!c->box[i] || !(first_element(c->box[i]) == (float)i)) c->failed = true;
        fl_drop(c->box[i]);
    }
    c->full = false;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

TEST(tensors_made_here_and_dropped_there) {
    fl_heap_use(counting_heap, NULL);
    channel c = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {NULL}, false, false, 0};
    c.hands = HANDED / HAND;
    pthread_t maker;
    state warm = {0}, now = {0};
    REQUIRE(pthread_create(&maker, NULL, make_tensors, &c) == 0);
    for (int64_t h = 0; h < c.hands; h++) {
        if (h == c.hands / 2) warm = state_now();
        if (h == c.hands - 1) now = state_now();
        drop_tensors(&c);
    }
    pthread_join(maker, NULL);
    CHECK(!c.failed);
    CHECK(now.blocks <= warm.blocks + 2 * HAND); /* what may be on its way */
    CHECK(is_flat(warm.resident, now.resident));
    CHECK_NOTHING_LIVES();
}

static void *leave_values_in_the_root(void *arg) {
    for (int i = 0; i < 100; i++)
        if (!fl_ones(FL_SHAPE(100), FL_F32)) return NULL;
    fl_scope open = fl_scope_begin(); /* never ended */
    return open.depth_ > 0 && fl_ones(FL_SHAPE(3), FL_F32) ? arg : NULL;
}

TEST(the_root_scope_ends_with_its_thread) {
    fl_heap_use(counting_heap, NULL);
    int64_t blocks = 0;
    for (int i = 0; i < 20; i++) {
        pthread_t t;
        void *ok = NULL;
        REQUIRE(pthread_create(&t, NULL, leave_values_in_the_root, &blocks) == 0);
        pthread_join(t, &ok);
        CHECK(ok == &blocks);
        CHECK_NOTHING_LIVES();
        if (i == 10) blocks = heap_blocks;
    }
    CHECK(heap_blocks <= blocks);
}

/* ---- two threads, two models ---- */

typedef struct lesson {
    uint64_t seed;
    uint64_t hash;
    double loss;
} lesson;

static void *take_lesson(void *arg) {
    lesson *l = arg;
    trainer t = trainer_new(l->seed);
    for (int i = 0; i < 300; i++) l->loss = train_step(&t);
    l->hash = hash_parameters(t.net);
    trainer_free(&t);
    return NULL;
}

TEST(two_threads_train_as_one_after_the_other) {
    lesson alone[2] = {{.seed = 5}, {.seed = 6}}, both[2] = {{.seed = 5}, {.seed = 6}};
    pthread_t t[2];
    for (int i = 0; i < 2; i++) take_lesson(&alone[i]);
    for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&t[i], NULL, take_lesson, &both[i]) == 0);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    CHECK(alone[0].hash == both[0].hash && alone[1].hash == both[1].hash);
    CHECK(alone[0].hash != alone[1].hash);
    CHECK(alone[0].loss < 1 && alone[0].loss == both[0].loss);
    CHECK_NOTHING_LIVES();
}

/* ---- scopes ---- */

static fl_tensor *returns_early(int depth) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_ones(FL_SHAPE(10), FL_F32);
    if (depth == 0) return t; /* leaves depth + 1 scopes open */
    return fl_add(returns_early(depth - 1), t), fl_scope_size() > 0 && s.depth_ > 0 ? t : NULL;
}

TEST(an_outer_scope_ends_the_inner_ones) {
    fl_tensor *root = fl_full(FL_SHAPE(1), 7, FL_F32);
    for (int i = 0; i < 100; i++) {
        fl_scope outer = fl_scope_begin();
        const int64_t live = fl_live_tensors();
        CHECK(returns_early(20) != NULL);
        CHECK_EQ_INT(fl_live_tensors(), live + 41); /* 21 ones, 20 sums */
        fl_scope_end(&outer);
        CHECK_EQ_INT(fl_live_tensors(), 1);
    }
    CHECK_EQ_INT(fl_scope_size(), 1); /* again of the root */
    CHECK(first_element(root) == 7);
}

TEST(a_scope_ends_once) {
    fl_scope a = fl_scope_begin(), b = fl_scope_begin();
    fl_ones(FL_SHAPE(2), FL_F32);
    fl_scope_end(&a);
    fl_scope c = fl_scope_begin();
    fl_tensor *kept = fl_ones(FL_SHAPE(2), FL_F32);
    fl_scope_end(&a); /* has ended */
    CHECK(fl_scope_size() == 1 && fl_live_tensors() == 1 && first_element(kept) == 1);
    fl_scope_end(NULL);
    fl_scope_end(&c);
    (void)b;
    CHECK_NOTHING_LIVES();
}

static jmp_buf leave;
/* Only what the innermost scope got last changes hands; what another owns is kept once more. */
TEST(the_last_value_of_a_scope_is_taken_from_it) {
    fl_scope a = fl_scope_begin();
    fl_tensor *first = fl_ones(FL_SHAPE(2), FL_F32), *last = fl_full(FL_SHAPE(2), 5, FL_F32);
    fl_obj_steal(&first->obj);
    CHECK(fl_scope_size() == 2 && first->obj.refs_ == 2);
    fl_obj_steal(&last->obj);
    CHECK(fl_scope_size() == 1 && last->obj.refs_ == 1);
    fl_scope b = fl_scope_begin();
    fl_obj_steal(&first->obj);
    CHECK(fl_scope_size() == 0 && first->obj.refs_ == 3);
    fl_scope_end(&b);
    fl_scope_end(&a);
    CHECK(fl_live_tensors() == 2 && first->obj.refs_ == 2 && first_element(last) == 5);
    fl_drop(first);
    fl_drop(first);
    fl_drop(last);
    CHECK_NOTHING_LIVES();
}

/* ... as by a variable that is made of it, which returns alone. */
TEST(a_variable_takes_its_value_along) {
    fl_scope a = fl_scope_begin(), b = fl_scope_begin();
    fl_tensor *t = fl_full(FL_SHAPE(2), 5, FL_F32);
    fl_var *x = fv_const(t), *again = fv_const(t);
    CHECK(fl_scope_size() == 2 && t->obj.refs_ == 2 && again->value == t);
    CHECK(fv_scope_return(&b, x) == x && fl_scope_size() == 1 && t->obj.refs_ == 1);
    CHECK(first_element(x->value) == 5);
    fl_scope_end(&a);
    CHECK_NOTHING_LIVES();
}

static void jump(const char *text, void *user) {
    (void)text, (void)user;
    longjmp(leave, 1);
}

static fl_var *fails_after(int depth, fl_var *x) {
    fl_scope s = fl_scope_begin();
    fl_no_grad(depth % 2 == 0);
    fl_var *y = depth ? fails_after(depth - 1, fv_exp(x)) : fv_matmul(x, x); /* [2, 3] x [2, 3] */
    return fv_scope_return(&s, y);
}

TEST(a_longjmp_leaves_all_scopes) {
    fl_set_error_handler(jump, NULL);
    for (int i = 0; i < 200; i++) {
        fl_scope outer = fl_scope_begin();
        if (setjmp(leave) == 0) {
            fails_after(12, fv_param(fl_ones(FL_SHAPE(2, 3), FL_F32)));
            CHECK(!"the handler came back");
        }
        CHECK_ERROR("fl_matmul: shapes [2, 3] and [2, 3]");
        fl_scope_end(&outer);
        CHECK(fl_grad_enabled() && fl_live_tensors() == 0);
    }
    fl_set_error_handler(NULL, NULL);
    CHECK_NOTHING_LIVES();
}

static bool jump_in_backward;
static void refusing_back(fl_node *n, fl_var *dy) {
    if (jump_in_backward) fv_mul(dy, fv_const(fl_ones(FL_SHAPE(5), FL_F32)));
    fv_add_grad(n, 0, dy);
}

static fl_vars refusing_forward(fl_nn_module *m, fl_vars in) {
    (void)m;
    fl_var *y = fv_relu(in.v[0]);
    return FL_VARS(fv_record(fl_clone(fv_value(y)), refusing_back, FV_IN(y), FV_NONE));
}

/* The handler leaves in the middle of a backward pass through modules; later passes are as ever. */
TEST(a_longjmp_out_of_backward) {
    fl_scope all = fl_scope_begin();
    trainer t = trainer_new(8);
    fl_nn_module *net =
        fl_nn_sequential(t.net, fl_nn_function("Refuse", refusing_forward, NULL, NULL));
    fl_tensor *x = fl_ones(FL_SHAPE(BATCH, INPUTS), FL_F32);
    int64_t live = 0, jumps = 0;
    fl_set_error_handler(jump, NULL);
    for (volatile int i = 0; i < 200; i++) {
        fl_scope s = fl_scope_begin();
        jump_in_backward = i % 2;
        fl_nn_zero_grad(net);
        if (setjmp(leave) == 0) {
            CHECK(fl_backward(fv_sum(fl_nn_forward(net, fv_const(x)), FL_ALL_AXES)));
            CHECK(i % 2 == 0 && fv_grad(fl_nn_get_param(net, "0.0.weight")));
        } else {
            jumps++;
            CHECK_ERROR("fl_mul: shapes [8, 3] and [5]");
        }
        fl_nn_zero_grad(net);
        fl_scope_end(&s);
        if (i == 1) live = fl_live_tensors();
        if (i >= 1 && !CHECK_EQ_INT(fl_live_tensors(), live)) break;
    }
    CHECK_EQ_INT(jumps, 100);
    fl_set_error_handler(NULL, NULL);
    fl_optim_free(t.optim);
    fl_nn_free(net);
    fl_scope_end(&all);
    CHECK_NOTHING_LIVES();
}

TEST(promotion_reaches_any_enclosing_scope) {
    fl_scope a = fl_scope_begin(), b = fl_scope_begin(), c = fl_scope_begin();
    fl_tensor *noise[3][4], *t[3];
    for (int i = 0; i < 3; i++) t[i] = fl_full(FL_SHAPE(4), i + 1, FL_F32);
    for (int i = 0; i < 4; i++) noise[0][i] = fl_ones(FL_SHAPE(2), FL_F32);
    fl_scope_escape(&c, t[0]); /* to b */
    fl_scope_escape(&b, t[1]); /* to a, from inside c */
    fl_scope_escape(&a, t[2]); /* to the root, from inside c */
    fl_scope_escape(&a, NULL);
    fl_scope_escape(NULL, t[0]);
    CHECK(noise[0][3] && fl_scope_size() == 7);
    fl_scope_end(&c);
    CHECK_EQ_INT(fl_scope_size(), 1);
    CHECK(first_element(t[0]) == 1 && first_element(t[1]) == 2 && first_element(t[2]) == 3);
    noise[1][0] = fl_ones(FL_SHAPE(2), FL_F32);
    CHECK(noise[1][0] && fl_scope_size() == 2 && fl_live_tensors() == 4);
    fl_scope_end(&b);
    CHECK(fl_scope_size() == 1 && fl_live_tensors() == 2 && first_element(t[1]) == 2);
    fl_scope_end(&a);
    CHECK(fl_scope_size() == 1 && fl_live_tensors() == 1 && first_element(t[2]) == 3);
    fl_scope_escape(&a, t[2]); /* ended: nothing happens */
    CHECK_EQ_INT(fl_scope_size(), 1);
}

/* Random scopes, promotions and returns against a plain model of who owns what. */
TEST(promotion_at_random) {
    enum { DEPTH = 6, MOST = 4000 };
    uint32_t random = 12345;
    fl_scope scope[DEPTH];
    static int owner_refs[MOST][DEPTH + 1]; /* references that each depth owns */
    static fl_tensor *value[MOST];
    int depth = 0, n = 0;
    while (n < MOST) {
        random = random * 1664525u + 1013904223u;
        const int what = (int)(random >> 28), pick = (int)(random >> 8 & 0xfffff);
        if (what < 3 && depth < DEPTH) {
            scope[depth++] = fl_scope_begin();
        } else if (what < 5 && depth > 0) {
            const int to = what == 3 ? pick % depth : depth - 1; /* also several at once */
            fl_scope_end(&scope[to]);
            for (int i = 0; i < n; i++)
                for (int d = to + 1; d <= depth; d++) owner_refs[i][d] = 0;
            depth = to;
        } else if (what < 9 && depth > 0 && n > 0) {
            const int i = n - 1 - pick % (n < 8 ? n : 8), d = pick / 8 % depth;
            bool alive = false;
            for (int k = 0; k <= depth; k++) alive = alive || owner_refs[i][k];
            if (!alive) continue;
            fl_scope_escape(&scope[d], value[i]);
            owner_refs[i][d]++;
        } else {
            value[n] = fl_num(n);
            owner_refs[n++][depth]++;
        }
        int64_t alive = 0, here = 0;
        for (int i = n > 200 ? n - 200 : 0; i < n; i++) here += owner_refs[i][depth];
        if (n % 50 == 0) {
            for (int i = 0; i < n; i++) {
                bool any = false;
                for (int k = 0; k <= depth; k++) any = any || owner_refs[i][k];
                alive += any;
                if (any) CHECK(value[i]->f64 == i);
            }
            if (!CHECK_EQ_INT(fl_live_tensors(), alive)) return;
        }
        if (!CHECK(fl_scope_size() >= here)) return;
    }
    while (depth > 0) fl_scope_end(&scope[--depth]);
}

TEST(kept_values_survive_their_scope) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_keep(fl_full(FL_SHAPE(3, 4), 5, FL_F32)), *view = fl_keep(fl_select(t, 0, 2));
    fl_var *x = fv_keep(fv_param(t)), *y = fv_keep(fv_sum(fv_square(x), FL_ALL_AXES));
    fl_scope_end(&s);
    fl_drop(t); /* view and x still hold the storage */
    CHECK(first_element(view) == 5 && fl_keep(NULL) == NULL);
    CHECK(fl_backward(y) && first_element(fv_grad(x)) == 10);
    fv_drop(y);
    fv_drop(x);
    CHECK_EQ_INT(test_live_buffers(), 1);
    CHECK(first_element(view) == 5);
    fl_drop(view);
    fl_drop(NULL);
    fv_drop(NULL);
    CHECK_NOTHING_LIVES();
}

TEST(flags_are_restored) {
    const uint64_t root = fl_flags();
    fl_scope a = fl_scope_begin();
    CHECK(!fl_no_grad(true) && !fl_grad_enabled());
    fl_scope b = fl_scope_begin();
    CHECK(fl_no_grad(false) && fl_grad_enabled());
    fl_set_flags(fl_flags() | (uint64_t)1 << 40);
    fl_scope c = fl_scope_begin();
    fl_set_flags(~(uint64_t)0);
    fl_tensor *t = fl_scope_return(&c, fl_ones(FL_SHAPE(1), FL_F32));
    CHECK(t && fl_grad_enabled() && fl_flags() == (root | (uint64_t)1 << 40));
    fl_scope_end(&a); /* with b inside */
    CHECK(fl_flags() == root && fl_grad_enabled());
    (void)b;
}

static int warnings;
static char warning[300];
static void count_warnings(fl_log_level level, const char *text, void *user) {
    (void)user;
    if (level == FL_LOG_WARN) warnings++;
    snprintf(warning, sizeof warning, "%s", text);
}

static void *fill_the_root(void *arg) {
    int *n = arg;
    for (int i = 0; i < *n; i++) fl_num(i);
    return NULL;
}

TEST(a_large_root_scope_is_warned_about_once) {
    fl_log_set_sink(count_warnings, NULL, FL_LOG_WARN);
    for (int i = 0; i < 3000; i++) { /* as many values in scopes are nobody's matter */
        fl_scope s = fl_scope_begin();
        for (int k = 0; k < 100; k++) fl_num(k);
        fl_scope_end(&s);
    }
    int n = 100000;
    fill_the_root(&n);
    CHECK_EQ_INT(warnings, 0);
    fl_num(0);
    CHECK_EQ_INT(warnings, 1);
    CHECK_STR(warning, "the root scope of this thread owns 100001 values");
    fill_the_root(&n);
    CHECK_EQ_INT(warnings, 1);
    pthread_t t;
    n++;
    REQUIRE(pthread_create(&t, NULL, fill_the_root, &n) == 0);
    pthread_join(t, NULL);
    CHECK_EQ_INT(warnings, 2); /* another thread, another root */
    fl_log_set_sink(NULL, NULL, FL_LOG_WARN);
    CHECK_EQ_INT(fl_live_tensors(), 200001);
}

/* ---- swapping operators ---- */

static fl_backend shipped;
static int64_t additions;
static bool counted_add(const fl_backend *self, const fl_call *c) {
    additions++;
    return shipped.op[FL_OP_add](self, c);
}

static void swap_add(bool mine) {
    fl_backend b = *fl_backend_cpu();
    if (mine) CHECK(fl_backend_override(&b, FL_OP_add, counted_add));
    CHECK(fl_backend_use(&b, mine ? &shipped : NULL));
}

typedef fl_tensor *(*unary_fn)(fl_tensor *);
typedef fl_var *(*unary_var_fn)(fl_var *);
static const struct {
    fl_op op;
    unary_fn fn;
    unary_var_fn var;
} unary_ops[] = {
#define UNARY(op, ...) {FL_OP_##op, fl_##op, fv_##op},
    FL_UNARY_OPS(UNARY)
#undef UNARY
};
enum { UNARIES = sizeof unary_ops / sizeof *unary_ops };

/* Within `tolerance` everywhere; NaN, outside an op's domain, equals NaN. */
static bool close_to(fl_tensor *a, fl_tensor *b, double tolerance) {
    return fl_item(fl_all(fl_isclose(a, b, 0, tolerance, true), FL_ALL_AXES)) == 1;
}

/* Every unary op whose formula or gradient adds passes through the swapped add. */
TEST(every_composition_passes_through_an_overridden_add) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {1, 0};
    fl_tensor *x = fl_uniform(FL_SHAPE(50), 0.1, 2, FL_F32, &rng);
    int forward = 0, backward = 0;
    for (int i = 0; i < UNARIES; i++) {
        const fl_op op = unary_ops[i].op;
        if (op == FL_OP_bitwise_not) continue; /* takes no floats */
        fl_tensor *want = fl_cast(unary_ops[i].fn(x), FL_F32);
        fl_var *p = fv_param(x), *q = fv_param(x);
        bool differentiable = unary_ops[i].var(p)->requires_grad;
        if (differentiable) CHECK(fl_backward(unary_ops[i].var(p), .grad = x));
        swap_add(true);
        additions = 0;
        fl_tensor *have = fl_cast(unary_ops[i].fn(x), FL_F32);
        if (fl_op_uses(op, FL_OP_add)) {
            forward++;
            if (!CHECK(additions > 0)) printf("fl_%s did not pass\n", fl_op_get_info(op)->name);
        }
        fl_no_grad(false);
        fl_var *y = unary_ops[i].var(q);
        additions = 0;
        if (differentiable) CHECK(fl_backward(y, .grad = x));
        if (differentiable && fl_op_grad_uses(op, 0, FL_OP_add)) {
            backward++;
            if (!CHECK(additions > 0))
                printf("gradient of %s did not pass\n", fl_op_get_info(op)->name);
        }
        swap_add(false);
        CHECK(close_to(want, have, 1e-5));
        CHECK(!fv_grad(p) == !fv_grad(q));
        if (fv_grad(p) && fv_grad(q)) CHECK(close_to(fv_grad(p), fv_grad(q), 1e-4));
    }
    CHECK(forward >= 4 && backward >= 3);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* The fused record of a convolution with a bias gives way to conv2d and add, in 1 to 3 dims. */
TEST(the_bias_of_a_convolution_passes_through_an_overridden_add) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {2, 0};
    for (int nd = 1; nd <= 3; nd++) {
        fl_tensor *x = fl_uniform((fl_shape){2 + nd, {2, 3, 5, 4, 3}}, -1, 1, FL_F32, &rng);
        fl_tensor *w = fl_uniform((fl_shape){2 + nd, {4, 3, 3, 3, 3}}, -1, 1, FL_F32, &rng);
        fl_tensor *bias = fl_uniform(FL_SHAPE(4), -1, 1, FL_F32, &rng);
        fl_tensor *want = fl_conv(x, w, bias, .pad = {1});
        fl_var *b = fv_param(bias);
        swap_add(true);
        additions = 0;
        fl_tensor *have = fl_conv(x, w, bias, .pad = {1});
        CHECK_EQ_INT(additions, 1);
        fl_var *y = fv_conv(fv_const(x), fv_const(w), b, .pad = {1});
        CHECK_EQ_INT(additions, 2);
        CHECK(fl_backward(fv_sum(y, FL_ALL_AXES)));
        swap_add(false);
        CHECK(close_to(want, have, 1e-5) && close_to(want, y->value, 1e-5));
        CHECK_NEAR(fl_item(fl_sum(fv_grad(b), FL_ALL_AXES)), (double)fl_numel(want), 1e-3);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* The swap reaches tensors and models that exist; afterwards the bits are the old ones again. */
TEST(add_is_swapped_in_the_middle_of_training) {
    trainer t = trainer_new(9), u = trainer_new(9);
    for (int i = 0; i < 10; i++) CHECK(train_step(&t) == train_step(&u));
    swap_add(true);
    additions = 0;
    double mine = 0, plain = 0;
    for (int i = 0; i < 10; i++) mine = train_step(&t);
    CHECK(additions >= 10 * 4);
    swap_add(false);
    additions = 0;
    for (int i = 0; i < 10; i++) plain = train_step(&u);
    CHECK_NEAR(mine, plain, 1e-3);
    CHECK_EQ_INT(additions, 0);
    CHECK_NEAR(train_step(&t), train_step(&u), 1e-3);
    trainer_free(&t);
    trainer_free(&u);
    CHECK_NOTHING_LIVES();
}

/* A call keeps its backend: a slot may swap the table under itself. */
static bool swapping_add(const fl_backend *self, const fl_call *c) {
    additions++;
    swap_add(false);
    return shipped.op[FL_OP_add](self, c);
}

TEST(a_slot_may_swap_itself_out) {
    fl_scope s = fl_scope_begin();
    fl_backend b = *fl_backend_cpu();
    CHECK(fl_backend_override(&b, FL_OP_add, swapping_add) && fl_backend_use(&b, &shipped));
    fl_tensor *x = fl_ones(FL_SHAPE(3), FL_F32);
    CHECK(first_element(fl_add(fl_add(x, x), fl_add(x, x))) == 4);
    CHECK_EQ_INT(additions, 1);
    fl_scope_end(&s);
}

/* ---- hooks ---- */

static struct {
    int before, after, elements;
    fl_op last;
    bool runs_ops;
} seen;

static void before_call(const fl_call *c, void *user) {
    CHECK(user == &seen);
    seen.before++;
    seen.last = c->op;
    if (seen.runs_ops) CHECK(fl_add(c->in[0], c->in[0]) != NULL);
}
static void after_call(const fl_call *c, void *user) {
    CHECK(user == &seen && c->op == seen.last && (fl_error() || c->out[0]->buffer));
    seen.after++;
    if (!fl_error()) seen.elements += (int)fl_numel(c->out[0]);
}

static void *call_on_another_thread(void *arg) {
    fl_scope s = fl_scope_begin();
    void *ok = fl_exp(arg) ? arg : NULL;
    fl_scope_end(&s);
    return ok;
}

TEST(hooks_observe_the_calls_of_their_thread) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(2, 3), FL_F32);
    fl_call_hook(before_call, after_call, &seen);
    CHECK(fl_exp(x) && fl_add(x, fl_num(1)));
    CHECK(fl_reshape(x, FL_SHAPE(6))); /* a view calls nothing */
    CHECK(seen.before == 2 && seen.after == 2 && seen.elements == 12 && seen.last == FL_OP_add);
    CHECK(!fl_add(x, fl_ones(FL_SHAPE(2), FL_F32))); /* refused before any call but fl_ones */
    CHECK(fl_error() && seen.before == 3 && seen.last == FL_OP_fill);
    fl_error_clear();
    fl_tensor *index = fl_from_host((int64_t[]){0, 9}, FL_SHAPE(2, 1), FL_I64);
    CHECK(!fl_gather(x, 1, index)); /* the slot fails: `after` finds the error */
    CHECK_ERROR("gather: index 9 is out of range for axis 1 of size 3");
    CHECK(seen.before == 4 && seen.after == 4 && seen.elements == 14 && seen.last == FL_OP_gather);
    seen.runs_ops = true;
    CHECK(fl_exp(x) && seen.before == 5 && seen.after == 5);
    seen.runs_ops = false;
    pthread_t t;
    void *ok = NULL;
    REQUIRE(pthread_create(&t, NULL, call_on_another_thread, x) == 0);
    pthread_join(t, &ok);
    CHECK(ok == x && seen.before == 5);
    fl_call_hook(NULL, after_call, &seen);
    seen.last = FL_OP_exp;
    CHECK(fl_exp(x) && seen.before == 5 && seen.after == 6);
    fl_call_hook(NULL, NULL, NULL);
    CHECK(fl_exp(x) && seen.after == 6);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Counts the calls of one op, and takes itself away after the third. */
static int wanted_calls;
static fl_op wanted;
static void count_wanted(const fl_call *c, void *user) {
    wanted_calls += c->op == wanted;
    if (user && wanted_calls == 3) fl_call_hook(NULL, NULL, NULL);
}

TEST(a_hook_removes_itself) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(2), FL_F32);
    wanted = FL_OP_exp, wanted_calls = 0;
    fl_call_hook(count_wanted, NULL, &wanted);
    for (int i = 0; i < 5; i++) fl_exp(x);
    CHECK_EQ_INT(wanted_calls, 3);
    fl_scope_end(&s);
}

/* A replaced op is seen wherever it runs: within the composition of a fused op that contains it too. */
TEST(hooks_see_the_calls_of_compositions) {
    fl_scope s = fl_scope_begin();
    fl_backend b = *fl_backend_cpu();
    fl_tensor *x = fl_ones(FL_SHAPE(2, 3), FL_F32), *half = fl_cast(x, FL_F16);
    CHECK(fl_backend_override(&b, FL_OP_sub, b.op[FL_OP_sub]) && fl_backend_use(&b, NULL));
    wanted = FL_OP_sub, wanted_calls = 0;
    fl_call_hook(count_wanted, NULL, NULL);
    CHECK(fl_softmax(x, 1));
    CHECK_EQ_INT(wanted_calls, 1);
    CHECK(fl_softmax(half, 1)); /* after a cast, which is not seen */
    CHECK_EQ_INT(wanted_calls, 2);
    wanted = FL_OP_copy, wanted_calls = 0;
    CHECK(fl_exp(half));
    CHECK_EQ_INT(wanted_calls, 0);
    fl_call_hook(NULL, NULL, NULL);
    CHECK(fl_backend_use(fl_backend_cpu(), NULL));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- registered ops beside overrides ---- */

static fl_op op_bump;
static int64_t bump_calls, other_calls;
static bool bump_kernel(const fl_backend *self, const fl_call *c) {
    bump_calls++;
    return (void)self, fl_call_compose(c);
}

/* exp(x^2), of which softmax is a part that changes nothing. */
static bool bump_compose(const fl_call *c, fl_tensor **y) {
    fl_tensor *x = c->in[0], *one = fl_sum(fl_softmax(x, 0), FL_AXES_KEEP(0));
    y[0] = fl_mul(fl_exp(fl_square(x)), one);
    return y[0] != NULL;
}

static bool bump_register(const char *contains) {
    static fl_op_info info;
    info = (fl_op_info){.name = "bump", .uses = contains, .compose = bump_compose};
    fl_backend cpu = *fl_backend_at(fl_backend_index("cpu"));
    op_bump = fl_op_register(&info);
    if (op_bump == FL_OP_NONE || !fl_backend_set(&cpu, op_bump, bump_kernel, 0)) return false;
    return fl_backend_use(&cpu, NULL);
}

static fl_tensor *bump(fl_tensor *x) {
    return fl_call_into(op_bump, fl_out_like(x, x->dtype), x, NULL, NULL);
}

static fl_backend before_override;
static bool counted_other(const fl_backend *self, const fl_call *c) {
    other_calls++;
    return before_override.op[c->op](self, c);
}

static bool override_in_use(fl_op op) {
    fl_backend mine = *fl_backend_at(fl_backend_index("cpu"));
    return fl_backend_override(&mine, op, counted_other) && fl_backend_use(&mine, &before_override);
}

/* A part that is not named is found by the first call after an override. */
TEST(a_registered_op_names_all_that_it_runs) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_full(FL_SHAPE(4), 0.5, FL_F32);
    test_errors_return();
    CHECK(!bump_register("exp sinus mul"));
    CHECK_ERROR("`uses` of 'bump' has 'sinus', which is not an op");
    REQUIRE(bump_register("exp square mul sum softmax"));
    CHECK(bump(x) && bump_calls == 1);
    REQUIRE(override_in_use(FL_OP_erf));
    CHECK(bump(x) && bump_calls == 2); /* all that it runs is named while softmax has a slot */
    REQUIRE(override_in_use(FL_OP_amax));
    CHECK(!bump(x)); /* and now softmax passes through amax, bump does not */
    CHECK_ERROR("fl_bump: `uses` in its fl_op_info lacks ops that its composition runs: amax abs eq");
    CHECK(!bump(fl_cast(x, FL_BF16)));
    CHECK_ERROR("lacks ops that its composition runs: amax");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(overrides_and_kernels_of_registered_ops_stay) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_full(FL_SHAPE(4), 0.5, FL_F32);
    test_errors_return();
    REQUIRE(bump_register("exp square mul sum softmax amax eq abs where sub div"));
    fl_backend mine = *fl_backend_cpu();
    CHECK(fl_backend_override(&mine, FL_OP_add, counted_add) && !fl_backend_use(&mine, NULL));
    CHECK_ERROR("this copy of fl_backend_cpu() lacks the current kernel of bump");
    CHECK(bump(x) && bump_calls == 1);
    REQUIRE(override_in_use(FL_OP_erf));
    CHECK(bump(x) && bump_calls == 2 && fl_erf(x) && other_calls == 1);
    mine = *fl_backend_at(fl_backend_index("cpu"));
    shipped = mine;
    CHECK(fl_backend_override(&mine, FL_OP_add, counted_add) && fl_backend_use(&mine, NULL));
    CHECK(fl_erf(x) && other_calls == 2 && fl_add(x, x) && additions == 1);
    CHECK(bump(x) && bump_calls == 3);
    REQUIRE(override_in_use(FL_OP_amax)); /* is seen in bump from now on, which has lost its slot */
    other_calls = 0;
    CHECK(bump(x) && bump_calls == 3 && other_calls == 1);
    CHECK(fl_backend_use(fl_backend_cpu(), NULL)); /* the shipped one as it is may come back */
    CHECK_NO_ERROR();
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* The shipped slot wants contiguous inputs, and gets them from a slot that calls it too. */
TEST(an_override_may_call_the_slot_before) {
    fl_scope s = fl_scope_begin();
    const fl_op softmax = fl_op_by_name("softmax");
    fl_tensor *x = fl_transpose(fl_reshape(fl_arange(0, 6, 1, FL_F32), FL_SHAPE(2, 3)), 0, 1);
    fl_tensor *want = fl_softmax(x, 1), *half = fl_softmax(fl_cast(x, FL_BF16), 1);
    REQUIRE(want && half && override_in_use(softmax));
    CHECK(fl_item(fl_all(fl_eq(fl_softmax(x, 1), want), FL_ALL_AXES)) == 1 && other_calls == 1);
    CHECK(fl_item(fl_all(fl_eq(fl_softmax(fl_cast(x, FL_BF16), 1), half), FL_ALL_AXES)) == 1 &&
          other_calls == 2);
    CHECK(fl_backend_use(&before_override, NULL));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* A handler that jumps leaves the hook in force. */
TEST(hooks_survive_a_jump) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(2, 3), FL_F32), *half = fl_cast(x, FL_F16);
    fl_tensor *index = fl_from_host((int64_t[]){0, 9}, FL_SHAPE(2, 1), FL_I64);
    wanted = FL_OP_exp, wanted_calls = 0;
    fl_call_hook(count_wanted, count_wanted, NULL);
    fl_set_error_handler(jump, NULL);
    for (int i = 0; i < 2; i++) {
        fl_scope inner = fl_scope_begin();
        if (!setjmp(leave)) fl_gather(i ? half : x, 1, index);
        fl_scope_end(&inner);
        CHECK(fl_error());
        fl_error_clear();
    }
    fl_set_error_handler(NULL, NULL);
    fl_exp(x);
    CHECK_EQ_INT(wanted_calls, 2);
    fl_call_hook(NULL, NULL, NULL);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* A first-NaN finder, as the design promises in a few lines. */
static char nan_op[40];
static void find_nan(const fl_call *c, void *user) {
    (void)user;
    if (nan_op[0] || !fl_dtype_is_float(c->out[0]->dtype)) return;
    fl_scope s = fl_scope_begin();
    if (fl_item(fl_any(fl_isnan(c->out[0]), FL_ALL_AXES)) != 0)
        snprintf(nan_op, sizeof nan_op, "%s", fl_op_get_info(c->op)->name);
    fl_scope_end(&s);
}

TEST(a_hook_finds_the_first_nan) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_full(FL_SHAPE(4), -1, FL_F32);
    fl_call_hook(NULL, find_nan, NULL);
    fl_exp(fl_sqrt(fl_neg(x)));
    CHECK(!nan_op[0]);
    fl_exp(fl_log(fl_mul(x, fl_num(2))));
    fl_call_hook(NULL, NULL, NULL);
    CHECK(!strcmp(nan_op, "log"));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- what memory managers are told, and the warning of a root scope ---- */

static fl_mem_info told;
static int64_t told_bytes;
static struct { const fl_buffer *buffer; int lifetime; } told_of[1 << 15];
static int n_told;

static bool spy_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    (void)self;
    told = *info;
    told_of[n_told].buffer = b, told_of[n_told].lifetime = info->lifetime;
    n_told += n_told + 1 < (int)(sizeof told_of / sizeof told_of[0]);
    __atomic_add_fetch(&told_bytes, (int64_t)b->bytes, __ATOMIC_RELAXED);
    return (b->ptr = aligned_alloc(FL_ALIGN, (b->bytes + 2 * FL_ALIGN - 1) / FL_ALIGN * FL_ALIGN)) != NULL;
}
static void spy_put(fl_mem_manager *self, fl_buffer *b) {
    (void)self;
    free(b->ptr);
}
static void spy_stats(fl_mem_manager *self, fl_mem_stats *out) {
    (void)self;
    out->in_use = __atomic_load_n(&told_bytes, __ATOMIC_RELAXED);
}
static fl_mem_manager spy = {.name = "spy", .get = spy_get, .put = spy_put, .stats = spy_stats};

TEST(managers_are_told_step_and_lifetime) {
    fl_mem_manager *before = fl_mem_set_current(&spy);
    const int64_t step = fl_mem_step();
    fl_drop(fl_keep(fl_empty(FL_SHAPE(3), FL_F32)));
    CHECK(told.step == step && told.lifetime == 0); /* of the root scope: nobody knows */
    fl_scope s = fl_scope_begin();
    fl_empty(FL_SHAPE(3), FL_F32);
    CHECK(told.step == step && told.lifetime == 2);
    fl_nn_module *m = fl_nn_linear(2, 3);
    CHECK(told.lifetime == 3);
    fl_nn_module *norm = fl_nn_layer_norm(FL_SHAPE(3));
    CHECK(told.lifetime == 3);
    fl_optim *o = fl_optim_adam(fl_nn_parameters(m), .lr = 0.1);
    CHECK(o && told.lifetime == 3);
    fl_empty(FL_SHAPE(3), FL_F32);
    CHECK(told.lifetime == 2 && fl_mem_step() == step + 1);
    fl_optim_free(o);
    fl_nn_free(m);
    fl_nn_free(norm);
    fl_scope_end(&s);
    fl_mem_set_current(before);
}

static bool is_persistent(const char *path, fl_var *param, fl_tensor *buffer, void *user) {
    const fl_buffer *b = (buffer ? buffer : fv_value(param))->buffer;
    int i = n_told - 1;
    while (i >= 0 && told_of[i].buffer != b) i--;
    const bool ok = CHECK(i >= 0 && told_of[i].lifetime == 3);
    if (!ok) printf("  %s of %s: lifetime %d\n", path, (const char *)user, i < 0 ? -1 : told_of[i].lifetime);
    return true;
}

/* Modules with parameters or buffers: every maker of fl/nn that makes some, and the packages' models. */
#define MODULES(X) \
    X(fl_nn_prelu(4)) X(fl_nn_attention(8, 2, .relative = 4, .buckets = 8)) X(fl_nn_capsules(2, 3, 4, 5)) \
    X(fl_nn_attention(8, 2, .kdim = 4, .bias_kv = true)) \
    X(fl_nn_conv1d(2, 3, 3)) X(fl_nn_conv2d(2, 3, 3)) X(fl_nn_conv3d(2, 3, 3)) \
    X(fl_nn_conv_transpose1d(2, 3, 3)) X(fl_nn_conv_transpose2d(2, 3, 3)) X(fl_nn_conv_transpose3d(2, 3, 3)) \
    X(fl_nn_embedding(5, 4, .padding = 1)) X(fl_nn_position(5, 4)) X(fl_nn_linear(2, 3)) X(fl_nn_bilinear(2, 3, 4)) \
    X(fl_nn_batch_norm1d(3)) X(fl_nn_batch_norm2d(3, .frozen = true)) X(fl_nn_batch_norm3d(3)) \
    X(fl_nn_layer_norm(FL_SHAPE(3))) X(fl_nn_rms_norm(FL_SHAPE(3))) X(fl_nn_group_norm(2, 4)) \
    X(fl_nn_instance_norm(4, .affine = true, .track = true)) X(fl_nn_rnn(2, 3)) X(fl_nn_lstm(2, 3, .projection = 2)) X(fl_nn_gru(2, 3)) \
    X(fl_nn_transformer(8, 2, 16)) X(fl_nn_transformer_decoder(8, 2, 16)) \
    X(fl_nn_adaptive_embedding(8, FL_SHAPE(4, 9))) X(fl_nn_adaptive_softmax(8, FL_SHAPE(4, 9))) \
    X(fl_nn_weight_norm(fl_nn_linear(2, 3), "weight", 0)) \
    X(fl_text_lm(10, .kind = FL_LM_TRANSFORMER, .dim = 8, .heads = 2, .layers = 1, .context = 4)) \
    X(fl_speech_criterion("asg", 4, 4)) X(fl_speech_attend(8, 5)) X(fl_vision_model("resnet18")) \
    X(fl_vision_model("vit_b_16", .blocks = 1)) X(fl_vision_detr(50, .layers = 1, .blocks = 1))
/* The makers of the rest, whose modules have none. */
static const char no_parameters[] =
    " activation activation_axis activation_1 activation_2 relu relu6 gelu gelu_tanh tanh sigmoid silu mish selu "
    "softsign logsigmoid tanhshrink hardsigmoid hardswish leaky_relu elu celu swish hardshrink softshrink softplus "
    "threshold hardtanh softmax softmin log_softmax glu rrelu sequential_of module_list_of residual_of dropout "
    "layer_drop drop_path sinusoid identity view flatten transpose permute pad precision_cast normalize pool1d "
    "pool2d pool3d adaptive_avg_pool adaptive_max_pool adaptive_avg_pool2d ";

TEST(parameters_and_buffers_are_persistent) {
    fl_mem_manager *before = fl_mem_set_current(&spy);
    char makers[8000] = " ";
#define MAKE_MODULE(call) { \
        n_told = 0; \
        fl_nn_module *m = call; \
        CHECK(m && fl_nn_visit_tensors(m, is_persistent, (void *)#call)); \
        if (!strcmp("fl_nn_linear", m->type->maker ? m->type->maker : "")) { \
            CHECK(fl_nn_cast(m, FL_F64) && fl_nn_visit_tensors(m, is_persistent, (void *)"fl_nn_cast")); \
        } \
        fl_nn_free(m); \
        strncat(makers, #call " ", sizeof makers - strlen(makers) - 1); \
    }
    fl_scope s = fl_scope_begin();
    MODULES(MAKE_MODULE)
    fl_empty(FL_SHAPE(3), FL_F32);
    CHECK(told.lifetime == 2);
    fl_scope_end(&s);
    fl_mem_set_current(before);
    if (access("fl/nn/norm.h", R_OK) != 0) SKIP("the headers are not in .");
    glob_t headers;
    int found = 0;
    CHECK(!glob("fl/nn/*.h", 0, NULL, &headers));
    for (size_t h = 0; h < headers.gl_pathc; h++) {
        FILE *f = fopen(headers.gl_pathv[h], "r");
        char line[300], name[100], with[120];
        while (f && !strstr(headers.gl_pathv[h], "module.h") && fgets(line, sizeof line, f)) {
            if (sscanf(line, "FL_API fl_nn_module *fl_nn_%99[a-z0-9_](", name) != 1) continue;
            if (strlen(name) > 4 && !strcmp(name + strlen(name) - 4, "_opt")) name[strlen(name) - 4] = 0;
            snprintf(with, sizeof with, " %s ", name);
            const bool plain = strstr(no_parameters, with);
            snprintf(with, sizeof with, "fl_nn_%s(", name);
            if (!CHECK(plain || strstr(makers, with))) printf("  fl_nn_%s is in neither list\n", name);
            found++;
        }
        if (f) fclose(f);
    }
    globfree(&headers);
    CHECK(found > 80);
}

static char warning[300];
static void keep_warning(fl_log_level level, const char *text, void *user) {
    (void)user;
    if (level == FL_LOG_WARN) snprintf(warning, sizeof warning, "%s", text);
}

/* A step that leaves a few large values is noticed long before there are 100,000. */
TEST(a_root_scope_warns_of_bytes) {
    fl_log_set_sink(keep_warning, NULL, FL_LOG_WARN);
    fl_mem_set_current(&spy);
    for (int i = 0; i < 1100; i++) fl_empty(FL_SHAPE(512), FL_F32);
    CHECK(!*warning);
    for (int i = 0; i < 1100; i++) fl_empty(FL_SHAPE(512, 1024), FL_F32);
    CHECK_STR(warning, "the root scope of this thread owns 2");
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
