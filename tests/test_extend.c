/* test_extend.c - the extensions of examples/extend: a naive backend and an evicting memory manager */
#include "../fl_backend.h"
#include "../fl_graph.h"
#include "../examples/extend/evictor.h"
#include "../examples/extend/naive.h"
#include "../examples/extend/training.h"

#include "test.h"

#include <unistd.h>

/* ---- shared ---- */

static int warnings;
static char last_warning[256];

static void count_warning(fl_log_level level, const char *text, void *user) {
    (void)user;
    warnings += level == FL_LOG_WARN;
    snprintf(last_warning, sizeof last_warning, "%s", text);
}

/* All elements of t, as float or i64, equal those of the same work on the cpu. */
static bool same_bits(fl_tensor *a, fl_tensor *b) {
    static char x[1 << 16], y[1 << 16];
    size_t bytes = (size_t)fl_numel(a) * fl_dtype_size(a ? a->dtype : FL_F32);
    return a && b && fl_numel(a) == fl_numel(b) && a->dtype == b->dtype && bytes <= sizeof x &&
           fl_to_host(a, x, bytes) && fl_to_host(b, y, bytes) && !memcmp(x, y, bytes);
}

static bool begin(const fl_backend *b) {
    test_errors_return();
    fl_backend_strict(true);
    return fl_backend_use(b, NULL) && fl_backend_set_default(b->name);
}

static bool nothing_lives(void) {
    bool no_tensors = CHECK_EQ_INT(fl_live_tensors(), 0), no_buffers = CHECK_EQ_INT(test_live_buffers(), 0);
    return no_tensors && no_buffers;
}

/* A small program of many kinds of ops, views and in-place writes; results into out[RESULTS]. */
enum { RESULTS = 8 };
static void work(fl_tensor **out) {
    fl_rng rng = {7, 0};
    fl_tensor *a = fl_normal(FL_SHAPE(6, 5), 0, 1, FL_F32, &rng), *b = fl_clone(a);
    fl_tensor *strip = fl_slice(b, 0, 1, 4, 1);
    out[0] =
        fl_mul(strip, fl_transpose(fl_reshape(fl_arange(0, 15, 1, FL_F32), FL_SHAPE(5, 3)), 0, 1));
    fl_assign(b, fl_add(b, fl_num(1)));
    out[1] = fl_clone(fl_slice(b, 0, 1, 4, 1));
    out[2] = fl_matmul(a, fl_transpose(b, 0, 1));
    out[3] = fl_softmax(fl_sub(a, fl_mean(a, FL_AXES_KEEP(1))), 1);
    out[4] = fl_concat((fl_tensor *[]){a, b}, 2, 0);
    out[5] = fl_argmax(fl_gather(a, 0, fl_zeros(FL_SHAPE(2, 5), FL_I64)), 1, false);
    out[6] = fl_cast(fl_where(fl_lt(a, fl_num(0)), fl_int(-1), fl_int(1)), FL_U8);
    out[7] = fl_dropout(fl_max_pool(fl_reshape(a, FL_SHAPE(1, 1, 6, 5)), NULL, .kernel = {2}), 0.5, &rng);
}

/* Compares the work on a backend, deferred or not, with eager execution on the cpu. */
static void check_work(const char *backend, bool lazy, double tolerance) {
    fl_scope s = fl_scope_begin();
    fl_tensor *want[RESULTS], *got[RESULTS];
    fl_backend_set_default("cpu");
    work(want);
    fl_backend_set_default(backend);
    fl_lazy(lazy);
    work(got);
    if (lazy) CHECK(fl_lazy_calls().n > RESULTS);
    CHECK_NO_ERROR();
    for (int i = 0; i < RESULTS; i++) {
        CHECK_STR(fl_backend_name(got[i]), backend);
        got[i] = fl_to(got[i], "cpu");
        CHECK(got[i] && got[i]->dtype == want[i]->dtype);
        fl_tensor *off =
            fl_amax(fl_abs(fl_sub(fl_cast(got[i], FL_F64), fl_cast(want[i], FL_F64))), FL_ALL_AXES);
        CHECK(tolerance > 0 ? fl_item(off) <= tolerance : same_bits(got[i], want[i]));
    }
    fl_scope_end(&s);
    CHECK(nothing_lives());
}

/* ---- naive ---- */

TEST(naive_computes) {
    REQUIRE(begin(fl_backend_naive()));
    check_work("naive", false, 1e-5);
    CHECK_EQ_INT(fl_backend_fallbacks(), 0);
}

TEST(naive_has_required_ops_only) {
    const fl_backend *b = fl_backend_naive();
    for (int op = 1; op < fl_op_count(); op++)
        CHECK((b->op[op] != NULL) == fl_op_get_info((fl_op)op)->required);
}

TEST(naive_copies_views) {
    REQUIRE(begin(fl_backend_naive()));
    fl_scope s = fl_scope_begin();
    fl_tensor *a = fl_zeros(FL_SHAPE(3, 4), FL_F32), *row = fl_select(a, 0, 1);
    REQUIRE(row != NULL);
    CHECK(row->copied && !row->buffer && row->impl != a->impl);
    CHECK(!fl_assign(row, fl_num(1)));
    CHECK_ERROR("copies views");
    CHECK(!fl_map(row, FL_WRITE));
    CHECK_ERROR("copies views");
    CHECK(fl_assign(a, fl_num(2)) && fl_item(fl_sum(a, FL_ALL_AXES)) == 24 &&
          fl_item(fl_sum(row, FL_ALL_AXES)) == 0);
    fl_scope_end(&s);
    CHECK(nothing_lives());
}

TEST(naive_errors) {
    REQUIRE(begin(fl_backend_naive()));
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_arange(0, 3, 1, FL_I64);
    CHECK(!fl_gather(x, 0, fl_full(FL_SHAPE(1), 3, FL_I64)));
    CHECK_ERROR("index 3 is out of range");
    CHECK(!fl_remainder(x, x));
    CHECK_ERROR("division by zero");
    CHECK(!fl_empty(FL_SHAPE((int64_t)1 << 40, 1 << 20), FL_F64));
    CHECK_ERROR("out of memory");
    CHECK(fl_numel(fl_exp(fl_empty(FL_SHAPE(0, 3), FL_F32))) == 0);
    CHECK_NO_ERROR();
    fl_scope_end(&s);
    CHECK(nothing_lives());
}

/* Without one of its slots the backend still works, by way of the cpu: warned once, or an error
   when strict. */
TEST(naive_partial) {
    fl_backend partial = *fl_backend_naive();
    partial.op[FL_OP_exp] = NULL;
    partial.op[FL_OP_matmul] = NULL;
    REQUIRE(begin(&partial));
    fl_log_set_sink(count_warning, NULL, FL_LOG_WARN);
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_full(FL_SHAPE(2, 2), 1, FL_F32);
    CHECK(!fl_exp(x));
    CHECK_ERROR("backend 'naive' has no slot");
    fl_backend_strict(false);
    for (int i = 0; i < 3; i++)
        CHECK_NEAR(fl_item(fl_sum(fl_exp(x), FL_ALL_AXES)), 4 * exp(1), 1e-5);
    CHECK_EQ_INT(warnings, 1);
    CHECK_STR(last_warning, "exp");
    CHECK_NEAR(fl_item(fl_sum(fl_matmul(x, fl_transpose(x, 0, 1)), FL_ALL_AXES)), 8, 0);
    CHECK_EQ_INT(warnings, 2);
    CHECK_EQ_INT(fl_backend_fallbacks(), 4);
    CHECK_STR(fl_backend_name(fl_exp(x)), "naive");
    fl_scope_end(&s);
    CHECK(nothing_lives());
}

/* The fallback itself copies, so `copy` cannot fall back. */
TEST(naive_without_copy) {
    fl_backend partial = *fl_backend_naive();
    partial.op[FL_OP_copy] = NULL;
    test_errors_return();
    CHECK(!fl_backend_use(&partial, NULL));
    CHECK_ERROR("has no copy");
}

static bool train(const char *backend, int64_t batch, int64_t steps, double *loss, uint64_t *hash) {
    training_run run = {0};
    fl_scope s = fl_scope_begin();
    bool ok = fl_backend_set_default(backend) && training_begin(&run, batch, 2);
    for (int64_t i = 0; ok && i < steps; i++) ok = training_step(&run, i, &loss[i]);
    ok = ok && training_hash(&run, hash);
    training_end(&run);
    fl_scope_end(&s);
    return ok;
}

TEST(naive_trains) {
    enum { STEPS = 3 };
    double cpu[STEPS], naive[STEPS];
    uint64_t hash;
    REQUIRE(begin(fl_backend_naive()));
    CHECK(train("cpu", 4, STEPS, cpu, &hash) && train("naive", 4, STEPS, naive, &hash));
    for (int i = 0; i < STEPS; i++) CHECK_NEAR(naive[i], cpu[i], 1e-4);
    CHECK(naive[2] < naive[0]);
    CHECK_EQ_INT(fl_backend_fallbacks(), 0);
    CHECK(nothing_lives());
}

static struct {
    int asked, moved;
    bool refuses, fails;
} mover;

static bool moves(const fl_backend *self, fl_tensor *dst, fl_tensor *src) {
    (void)self;
    mover.asked++;
    if (mover.fails) return fl_fail("moves: the cable is out");
    if (mover.refuses) return false;
    const bool out = !strcmp(fl_backend_name(src), "naive");
    void *far_side = (out ? src : dst)->impl, *near_side = fl_map(out ? dst : src, out ? FL_WRITE : FL_READ);
    const size_t bytes = (size_t)fl_numel(src) * fl_dtype_size(src->dtype);
    memcpy(out ? near_side : far_side, out ? far_side : near_side, bytes);
    fl_unmap(out ? dst : src, out ? FL_WRITE : FL_READ);
    return ++mover.moved;
}

/* A backend that knows the way is asked wherever it takes part, before anything is mapped. */
TEST(a_backend_moves_its_tensors) {
    fl_backend b = *fl_backend_naive();
    b.move = moves;
    test_errors_return();
    REQUIRE(fl_backend_use(&b, NULL));
    fl_scope s = fl_scope_begin();
    for (int round = 0; round < 2; round++) {
        memset(&mover, 0, sizeof mover);
        mover.refuses = round == 1;
        fl_tensor *x = fl_arange(0, 6, 1, FL_F32), *there = fl_to(x, "naive"), *back = fl_to(there, "cpu");
        CHECK(same_bits(x, back));
        CHECK_EQ_INT(mover.moved, round ? 0 : 2);
        CHECK_EQ_INT(mover.asked, 2);
    }
    mover.fails = true;
    CHECK(!fl_to(fl_arange(0, 6, 1, FL_F32), "naive"));
    CHECK_STR(fl_error(), "the cable is out");
    fl_error_clear();
    fl_scope_end(&s);
    nothing_lives();
}

/* This program's first lines with FL_DEVICE set. */
static void says(const char *device, char *out, size_t size) {
    char self[1000] = "", command[1100];
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(command, sizeof command, "FL_DEVICE=%s '%s' --list 2>&1", device, self);
    FILE *f = popen(command, "r");
    REQUIRE(f);
    out[fread(out, 1, size - 1, f)] = 0;
    CHECK_EQ_INT(pclose(f), 0);
}

TEST(the_environment_names_the_backend_of_new_tensors) {
    char out[4000];
    says("nowhere", out, sizeof out);
    CHECK_STR(out, "FL_DEVICE: there is no backend 'nowhere'; known: cpu");
    says("cpu", out, sizeof out);
    CHECK(!strstr(out, "FL_DEVICE"));
}

/* ---- evictor ---- */

static fl_mem_manager *evictor_begin(size_t budget) {
    char path[64];
    snprintf(path, sizeof path, "test_extend.%ld.swap", (long)getpid());
    test_errors_return();
    fl_mem_manager *m = evictor_new(budget, path);
    if (m) fl_mem_set_current(m);
    return m;
}

static void evictor_end(fl_mem_manager *m) {
    fl_mem_set_current(NULL);
    CHECK_EQ_INT(fl_mem_stats_of(m).in_use, 0);
    CHECK_EQ_INT(fl_mem_stats_of(m).reserved, 0);
    fl_mem_close(m);
    CHECK(nothing_lives());
}

TEST(evictor_pages) {
    enum { N = 20, KIB = 1024 };
    fl_mem_manager *m = evictor_begin(5 * KIB);
    REQUIRE(m != NULL);
    evictor *e = m->user;
    fl_buffer *b[N];
    for (int i = 0; i < N; i++) {
        REQUIRE((b[i] = fl_buffer_new(KIB, NULL)) != NULL);
        memset(fl_buffer_map(b[i]), i, KIB);
        fl_buffer_unmap(b[i]);
    }
    CHECK_EQ_INT(e->written, N - 5);
    CHECK(b[0]->state == FL_EVICTED && !b[0]->ptr && b[N - 1]->state == FL_RESIDENT);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < N; i++) {
            const uint8_t *p = fl_buffer_map(b[i]);
            CHECK(p && p[0] == i && p[KIB - 1] == i);
            fl_buffer_unmap(b[i]);
        }
    CHECK(fl_mem_stats_of(m).peak_reserved <= 5 * KIB);
    CHECK(e->end <= N * KIB); /* places are used again */
    for (int i = 0; i < N; i++) fl_buffer_drop(b[i]);
    evictor_end(m);
}

/* A request that cannot be met is an error; with fewer buffers mapped it can be met. */
TEST(evictor_tiny_budget) {
    fl_mem_manager *m = evictor_begin(3 * 4000);
    REQUIRE(m != NULL);
    fl_scope s = fl_scope_begin();
    fl_tensor *a = fl_ones(FL_SHAPE(1000), FL_F32), *b = fl_ones(FL_SHAPE(1000), FL_F32),
              *c = fl_ones(FL_SHAPE(1000), FL_F32);
    CHECK(a && b && c);
    CHECK(!fl_ones(FL_SHAPE(3001), FL_F32));
    CHECK_ERROR("out of memory");
    CHECK(!fl_where(fl_lt(a, b), a, b)); /* 13,000 bytes at once */
    CHECK_ERROR("evictor");
    fl_tensor *sum = fl_add(a, fl_add(b, c));
    CHECK(sum && fl_item(fl_amax(sum, FL_ALL_AXES)) == 3 &&
          fl_item(fl_amin(sum, FL_ALL_AXES)) == 3);
    CHECK_NO_ERROR();
    fl_scope_end(&s);
    evictor_end(m);
}

TEST(evictor_file_errors) {
    fl_mem_manager *m = evictor_begin(4000);
    REQUIRE(m != NULL);
    evictor *e = m->user;
    FILE *file = e->file, *full = fopen("/dev/full", "w+b");
    if (!full) {
        evictor_end(m);
        SKIP("no /dev/full here");
    }
    setvbuf(full, NULL, _IONBF, 0);
    fl_scope s = fl_scope_begin();
    fl_tensor *a = fl_full(FL_SHAPE(1000), 7, FL_F32);
    e->file = full;
    CHECK(!fl_empty(FL_SHAPE(1000), FL_F32));
    CHECK_ERROR("cannot write 4000 bytes");
    CHECK(fl_item(fl_select(a, 0, 999)) == 7); /* still in memory */
    e->file = file;
    fl_tensor *b = fl_empty(FL_SHAPE(1000), FL_F32);
    CHECK(b && a->buffer->state == FL_EVICTED);
    FILE *empty = fopen("/dev/null", "r+b");
    e->file = empty;
    fl_drop(fl_keep(b));
    fl_scope_end(&s); /* both go, one of them away */
    e->file = file;
    fclose(empty);
    fclose(full);
    evictor_end(m);
    CHECK(!evictor_new(0, "no/such/folder/file"));
    CHECK_ERROR("cannot make the file");
}

/* Eight threads, each with layers of its own, one budget that holds about half of them: they evict
   each other's. */
enum { LAYERS = 8, SIDE = 48, LAYER_BYTES = SIDE * SIDE * 4 };
typedef struct evicted_model {
    fl_tensor *layer[LAYERS];
    int64_t sum;
} evicted_model;

static bool evicted_make(evicted_model *m) {
    fl_rng rng = {5, 0};
    for (int i = 0; i < LAYERS; i++)
        if (!(m->layer[i] = fl_normal(FL_SHAPE(SIDE, SIDE), 0, 0.2, FL_F32, &rng))) return false;
    return true;
}

static void *evicted_thread(void *arg) {
    evicted_model *m = arg;
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(SIDE, SIDE), FL_F32);
    for (int i = 0; i < 10 * LAYERS && x; i++) {
        fl_scope t = fl_scope_begin();
        fl_tensor *w = m->layer[i % LAYERS], *y = fl_tanh(fl_matmul(x, w));
        fl_assign(w, fl_add(w, fl_mul(y, fl_num(1e-2))));
        fl_assign(x, y);
        fl_scope_end(&t);
    }
    m->sum =
        fl_error() ? -1 : fl_item_int(fl_sum(fl_cast(fl_mul(x, fl_num(1e6)), FL_I64), FL_ALL_AXES));
    fl_scope_end(&s);
    return NULL;
}

TEST(evictor_threads) {
    enum { N = 8, BUDGET = 48 * LAYER_BYTES }; /* a thread maps up to four at once */
    evicted_model alone, model[N];
    pthread_t thread[N];
    test_errors_return();
    fl_scope s = fl_scope_begin();
    REQUIRE(evicted_make(&alone));
    evicted_thread(&alone);
    fl_mem_manager *m = evictor_begin(BUDGET);
    REQUIRE(m != NULL);
    for (int i = 0; i < N; i++) CHECK(evicted_make(&model[i]));
    int64_t written = ((evictor *)m->user)->written;
    for (int i = 0; i < N; i++) pthread_create(&thread[i], NULL, evicted_thread, &model[i]);
    for (int i = 0; i < N; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < N; i++) CHECK_EQ_INT(model[i].sum, alone.sum);
    CHECK(fl_mem_stats_of(m).peak_reserved <= BUDGET);
    CHECK(((evictor *)m->user)->written > written);
    fl_scope_end(&s);
    evictor_end(m);
}

TEST(evictor_trains_in_half) {
    enum { STEPS = 3, BATCH = 288 };
    double loss[2][STEPS];
    uint64_t hash[2];
    fl_mem_manager *m = evictor_begin(0);
    REQUIRE(m != NULL && train("cpu", BATCH, STEPS, loss[0], &hash[0]));
    size_t peak = (size_t)fl_mem_stats_of(m).peak_in_use;
    evictor_end(m);
    m = evictor_begin(peak / 2);
    REQUIRE(m != NULL);
    CHECK(train("cpu", BATCH, STEPS, loss[1], &hash[1]));
    CHECK_NO_ERROR();
    CHECK(hash[0] == hash[1] && !memcmp(loss[0], loss[1], sizeof loss[0]));
    CHECK((size_t)fl_mem_stats_of(m).peak_reserved <= peak / 2);
    CHECK(((evictor *)m->user)->written > 0 && ((evictor *)m->user)->read > 0);
    evictor_end(m);
}

/* Values that wait have no memory; once their calls have run, they are paged out as any others. */
TEST(deferred_values_are_paged_out) {
    test_errors_return();
    fl_mem_manager *m = evictor_begin(1500);
    REQUIRE(m != NULL);
    check_work("cpu", true, 0);
    CHECK(((evictor *)m->user)->written > 0);
    evictor_end(m);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
