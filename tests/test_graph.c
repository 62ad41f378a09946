/* test_graph.c - deferred and static execution: bits, order, errors, plans, replays, threads, memory */
#include "../fl_all.h"
#include "../fl_backend.h"
#include "../kernels/cpu/bf16.h"
#include "../fl/graph/rows.h"
#include "../kernels/cpu/force.h"
#include "paged.h"
#include "test.h"

#include <pthread.h>
#include <setjmp.h>

/* ---- shared ---- */

static bool same_bits(fl_tensor *a, fl_tensor *b) {
    if (!a || !b || a->dtype != b->dtype || !fl_same_shape(a, b)) return false;
    a = fl_contiguous(a), b = fl_contiguous(b);
    const void *x = fl_map(a, FL_READ), *y = fl_map(b, FL_READ);
    const bool same = x && y && !memcmp(x, y, (size_t)fl_numel(a) * fl_dtype_size(a->dtype));
    if (x) fl_unmap(a, FL_READ);
    if (y) fl_unmap(b, FL_READ);
    return same;
}

static int64_t waiting(void) { return fl_lazy_calls().n; }

static bool runs_a(const fl_backend *self, const fl_call *c);
static fl_slot add_of_cpu;
static int adds; /* that have run */
static bool runs_a(const fl_backend *self, const fl_call *c) {
    adds++;
    return add_of_cpu(self, c);
}

/* ---- deferred ---- */

TEST(calls_wait_until_a_value_is_read) {
    fl_scope s = fl_scope_begin();
    CHECK(!fl_lazy(true) && fl_lazy(true));
    fl_tensor *x = fl_full(FL_SHAPE(3), 2, FL_F32), *y = fl_mul(x, x), *z = fl_add(y, fl_num(1));
    CHECK_EQ_INT(waiting(), 3);
    CHECK(!z->buffer->ptr);
    CHECK_NEAR(fl_item(fl_sum(z, FL_ALL_AXES)), 15, 0);
    CHECK_EQ_INT(waiting(), 0);
    CHECK(z->buffer->ptr);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(the_mode_ends_with_its_scope_and_what_waits_runs) {
    fl_scope s = fl_scope_begin(), inner = fl_scope_begin();
    fl_lazy(true);
    fl_tensor *y = fl_add(fl_ones(FL_SHAPE(2), FL_F32), fl_num(1));
    fl_scope_return(&inner, y);
    CHECK_EQ_INT(waiting(), 2);
    fl_tensor *z = fl_mul(y, fl_num(3)); /* eager: what waits runs first */
    CHECK_EQ_INT(waiting(), 0);
    CHECK(z->buffer->ptr);
    CHECK_NEAR(fl_item(fl_sum(z, FL_ALL_AXES)), 12, 0);
    CHECK(!fl_lazy(true) && fl_lazy(false));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Writes through overlapping views, in the order of the program; versions count when recorded. */
TEST(writes_in_place_keep_the_order_of_the_program) {
    fl_tensor *result[2];
    uint32_t version[2];
    fl_scope s = fl_scope_begin();
    for (int lazy = 0; lazy < 2; lazy++) {
        fl_lazy(lazy);
        fl_tensor *a = fl_arange(0, 12, 1, FL_F32), *before = fl_clone(a);
        fl_assign(fl_slice(a, 0, 2, 8, 1), fl_slice(a, 0, 0, 6, 1));
        fl_tensor *sum = fl_add(a, before);
        fl_assign_op(fl_slice(a, 0, 0, 12, 3), FL_OP_mul, fl_slice(a, 0, 0, 12, 3), fl_num(-1));
        fl_assign(fl_slice(a, 0, 1, 5, 1), fl_slice(sum, 0, 4, 8, 1));
        version[lazy] = fl_version_of(a);
        result[lazy] = fl_concat((fl_tensor *[]){a, sum, before}, 3, 0);
        if (lazy) CHECK(waiting() > 5);
        fl_lazy(false);
    }
    CHECK(same_bits(result[0], result[1]));
    CHECK_EQ_INT(version[0], version[1]);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(the_host_reads_and_writes_what_waiting_calls_use) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_full(FL_SHAPE(2), 1, FL_F32);
    fl_lazy(true);
    fl_tensor *y = fl_add(x, fl_num(1));
    CHECK_NEAR(fl_item(fl_select(x, 0, 0)), 1, 0); /* no waiting call writes it */
    CHECK(waiting() > 0);
    CHECK(fl_set_host(x, (float[]){5, 5}, 8)); /* a waiting call reads it: that one first */
    CHECK_EQ_INT(waiting(), 0);
    CHECK_NEAR(fl_item(fl_select(y, 0, 1)), 2, 0);
    fl_tensor *host = fl_from_host((float[]){3, 4}, FL_SHAPE(2), FL_F32); /* new: nothing has to run */
    fl_tensor *z = fl_add(y, host);
    CHECK_EQ_INT(waiting(), 1);
    CHECK_NEAR(fl_item(fl_select(z, 0, 1)), 6, 0);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* A setting and a manager of memory that a call was made under are those that it runs under. */
TEST(what_waits_runs_before_a_setting_changes) {
    fl_scope s = fl_scope_begin();
    CHECK(fl_set_matmul_precision(FL_BF16));
    fl_tensor *a = fl_full(FL_SHAPE(64, 64), 1.001, FL_F32), *eager = fl_matmul(a, a);
    fl_lazy(true);
    fl_tensor *y = fl_matmul(a, a);
    CHECK_EQ_INT(waiting(), 1);
    CHECK(fl_set_matmul_precision(FL_BF16));
    CHECK_EQ_INT(waiting(), 1); /* nothing changes */
    CHECK(fl_set_matmul_precision(FL_F32));
    CHECK_EQ_INT(waiting(), 0);
    CHECK(same_bits(y, eager));
    y = fl_matmul(a, a);
    CHECK(fl_cpu_force_algorithm("tiles"));
    CHECK_EQ_INT(waiting(), 0);
    y = fl_matmul(a, a);
    CHECK(fl_cpu_force_algorithm(NULL));
    CHECK_EQ_INT(waiting(), 0);
    y = fl_matmul(a, a);
    CHECK(fl_cpu_set_bf16("f32"));
    CHECK_EQ_INT(waiting(), 0);
    CHECK(fl_cpu_set_bf16(NULL));
    fl_mem_manager *m = fl_mem_failing(NULL, 1000, false), *old = fl_mem_set_current(m);
    y = fl_add(a, fl_num(1));
    fl_mem_set_current(old);
    fl_mem_close(m);
    CHECK_EQ_INT(waiting(), 0);
    CHECK_NEAR(fl_item(fl_select(fl_select(y, 0, 3), 0, 5)), 2.001, 1e-6);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(memory_is_that_of_eager_execution) {
    int64_t peak[2];
    for (int lazy = 0; lazy < 2; lazy++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_ones(FL_SHAPE(1 << 20), FL_F32);
        fl_mem_stats_reset_peak(NULL);
        fl_lazy(lazy);
        for (int i = 0; i < 40; i++) {
            fl_scope inner = fl_scope_begin();
            fl_assign(x, fl_mul(fl_add(x, fl_num(1)), fl_num(0.5)));
            fl_scope_end(&inner);
        }
        fl_eval();
        CHECK_NEAR(fl_item(fl_select(x, 0, 7)), 1, 0);
        peak[lazy] = fl_mem_stats_of(NULL).peak_in_use;
        fl_scope_end(&s);
    }
    printf("  peak %lld bytes eager, %lld deferred\n", (long long)peak[0], (long long)peak[1]);
    CHECK((double)peak[1] <= 1.02 * (double)peak[0]);
    CHECK_NOTHING_LIVES();
}

/* 100,000 additions without a read: the list runs by itself, and memory stays flat. */
TEST(a_meter_that_nobody_reads_needs_no_memory) {
    fl_scope s = fl_scope_begin();
    fl_tensor *meter = fl_zeros(FL_SHAPE(256), FL_F32), *one = fl_ones(FL_SHAPE(256), FL_F32);
    fl_mem_stats_reset_peak(NULL);
    const int64_t start = fl_mem_stats_of(NULL).in_use;
    fl_lazy(true);
    for (int i = 0; i < 100000; i++) {
        fl_scope inner = fl_scope_begin();
        fl_assign(meter, fl_add(meter, one));
        fl_scope_end(&inner);
    }
    CHECK(waiting() <= 1024);
    CHECK_NEAR(fl_item(fl_select(meter, 0, 9)), 100000, 0);
    CHECK(fl_mem_stats_of(NULL).peak_in_use - start < 1 << 16);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Nor do values that the host makes and reads, or makes and forgets, without a call in between. */
/* Data of the host that the program has dropped is held by the calls that read it: so much at most. */
TEST(operands_that_wait_are_bounded) {
    fl_scope s = fl_scope_begin();
    fl_lazy(true);
    fl_tensor *sum = fl_zeros(FL_SHAPE(), FL_F32);
    CHECK(fl_eval());
    fl_mem_trim();
    fl_mem_stats_reset_peak(NULL);
    const int64_t before = fl_mem_stats_of(NULL).in_use;
    for (int i = 0; i < 200; i++) {
        fl_scope step = fl_scope_begin();
        fl_tensor *x = fl_data_host_tensor(FL_SHAPE(1 << 18), FL_F32); /* 1 MiB */
        float *p = fl_map(x, FL_WRITE);
        REQUIRE(p);
        memset(p, 0, 1 << 20);
        p[0] = (float)i;
        fl_unmap(x, FL_WRITE);
        fl_assign(sum, fl_add(sum, fl_sum(x, FL_ALL_AXES)));
        fl_scope_end(&step);
    }
    CHECK(fl_mem_stats_of(NULL).peak_in_use - before < 90 << 20);
    CHECK_NEAR(fl_item(sum), 199 * 100, 0);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(values_of_the_host_need_no_memory_once_dropped) {
    fl_scope s = fl_scope_begin();
    fl_lazy(true);
    fl_tensor *y = fl_add(fl_ones(FL_SHAPE(256), FL_F32), fl_num(1)); /* waits meanwhile */
    fl_mem_stats_reset_peak(NULL);
    const int64_t start = fl_mem_stats_of(NULL).in_use;
    double sum = 0;
    for (int i = 0; i < 20000; i++) {
        fl_scope inner = fl_scope_begin();
        fl_tensor *x = fl_from_host((float[256]){(float)i}, FL_SHAPE(256), FL_F32);
        sum += fl_item(fl_select(x, 0, 0));
        CHECK(fl_empty(FL_SHAPE(1), FL_F32) && fl_lazy_calls().n_values <= 8192);
        fl_scope_end(&inner);
    }
    CHECK_NEAR(sum, 19999 * 10000.0, 0);
    CHECK(fl_mem_stats_of(NULL).peak_in_use - start < 1 << 16);
    CHECK(fl_mem_live_buffers() < 8200);
    CHECK_NEAR(fl_item(fl_select(y, 0, 9)), 2, 0);
    CHECK(fl_eval());
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* What only data can tell comes when the value is read, again and again; the rest is computed. */
TEST(errors_that_data_cause_come_with_the_value) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_arange(0, 4, 1, FL_F32), *far = fl_full(FL_SHAPE(2), 9, FL_I64);
    fl_lazy(true);
    CHECK(!fl_matmul(x, fl_ones(FL_SHAPE(3, 3), FL_F32))); /* shapes: at once */
    fl_error_clear();
    fl_tensor *good = fl_add(x, fl_num(1)), *bad = fl_gather(x, 0, far), *worse = fl_mul(bad, fl_num(2));
    CHECK(good && bad && worse);
    CHECK_NEAR(fl_item(fl_select(good, 0, 3)), 4, 0);
    CHECK_NO_ERROR();
    for (int i = 0; i < 2; i++) {
        CHECK(isnan(fl_item(fl_select(bad, 0, 0))));
        CHECK_ERROR("fl_gather: index 9 is out of range for axis 0 of size 4");
        CHECK(isnan(fl_item(fl_select(worse, 0, 1))));
        CHECK_ERROR("fl_gather: index 9 is out of range for axis 0 of size 4");
    }
    fl_tensor *later = fl_add(worse, fl_slice(good, 0, 0, 2, 1)); /* recorded: its operand has failed */
    CHECK(later && !fl_eval());
    CHECK_ERROR("index 9 is out of range");
    fl_tensor *written = fl_clone(x);
    fl_assign(fl_slice(written, 0, 0, 2, 1), fl_gather(x, 0, far)); /* nobody would see it with a value */
    CHECK(!fl_eval());
    CHECK_STR(fl_error(), "index 9 is out of range");
    fl_error_clear();
    CHECK_NEAR(fl_item(fl_select(good, 0, 0)), 1, 0); /* the mode goes on */
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* The module and its frame number at the latest mul and linear that ran, and the number of calls. */
static struct {
    char mul[200], linear[200];
    int64_t mul_number;
    int n;
} ran;
static void note_module(const fl_call *c, void *user) {
    fl_call_frame frame[8];
    const int n = fl_call_stack(frame, 8);
    char *text = c->op == FL_OP_mul ? ran.mul : c->op == fl_op_linear ? ran.linear : NULL;
    (void)user;
    ran.n++;
    if (!text) return;
    *text = 0;
    for (int i = 0; i < n; i++) {
        if (i) strcat(text, " > ");
        frame[i].at.describe(frame[i].at.of, text + strlen(text), 80);
    }
    if (text == ran.mul) ran.mul_number = n ? frame[n - 1].number : -1;
}
static int64_t number_within; /* of the frame of mul_eval_mul */
static fl_vars mul_eval_mul(fl_nn_module *m, fl_vars in) {
    fl_call_frame frame[8];
    const int n = fl_call_stack(frame, 8);
    (void)m;
    number_within = n ? frame[n - 1].number : -2;
    fl_var *y = fv_mul(in.v[0], in.v[0]);
    CHECK(fl_eval());
    CHECK_EQ_INT(ran.mul_number, number_within);
    return (fl_vars){1, {fv_mul(y, y)}};
}
static void describe_reader(const void *of, char *buf, size_t size) { snprintf(buf, size, "%s", (char *)of); }

/* Watchers, profiles and errors name the module that made a call, not the one that runs it, although that
   module is freed before. */
TEST(calls_run_in_the_module_that_made_them) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_call_watcher w = {.before = note_module};
    fl_nn_module *twice = fl_nn_function("Twice", mul_eval_mul, NULL, NULL),
                 *net = fl_nn_sequential(fl_nn_linear(2, 2), twice),
                 *table = fl_nn_sequential(fl_nn_embedding(3, 2));
    fl_var *x = fv_const(fl_ones(FL_SHAPE(1, 2), FL_F32));
    fl_graph *g = fl_graph_new();
    fl_lazy(true);
    fl_watch_calls(&w);
    fl_tensor *y = fv_value(fl_nn_forward(net, x));
    CHECK(!strcmp(ran.linear, "fl_nn_sequential > fl_nn_linear '0'"));
    CHECK(!strcmp(ran.mul, "fl_nn_sequential > Twice '1'"));
    fl_tensor *bad = fv_value(fl_nn_forward(table, fv_const(fl_full(FL_SHAPE(1), 9, FL_I64))));
    fl_tensor *plain = fl_mul(y, y);
    fl_nn_free(net), fl_nn_free(table);
    strcpy(ran.mul, "has not run");
    ran.n = 0;
    fl_scope reader = fl_scope_in("reader", describe_reader);
    CHECK(isnan(fl_item(fl_select(fl_select(bad, 0, 0), 0, 0)))); /* runs all */
    CHECK_ERROR("fl_nn_embedding '0': fl_embedding: index 9");
    CHECK(ran.n > 2 && !*ran.mul); /* `plain`, the last one, was of no module */
    CHECK(isnan(fl_item(fl_select(fl_select(bad, 0, 0), 0, 1))));
    CHECK_ERROR("fl_nn_embedding '0': fl_embedding: index 9");
    fl_call_frame frame[2];
    CHECK(fl_call_stack(frame, 2) == 1 && !strcmp(frame[0].at.of, "reader"));
    CHECK(!fl_reshape(plain, FL_SHAPE(5)));
    CHECK_ERROR("reader: fl_reshape");
    fl_scope_end(&reader);
    fl_lazy(false);
    net = fl_nn_sequential(fl_nn_linear(2, 2));
    for (int i = 0; i < 2; i++) {
        fl_graph_begin(g);
        y = fv_value(fl_nn_forward(net, x));
        fl_graph_end(g);
    }
    fl_var *weight = fv_keep(fl_nn_get_param(net, "0.weight"));
    fl_var *bias = fv_keep(fl_nn_get_param(net, "0.bias"));
    fl_nn_free(net);
    *ran.linear = 0;
    CHECK(fl_graph_replay(g));
    CHECK(!strcmp(ran.linear, "fl_nn_sequential > fl_nn_linear '0'"));
    CHECK_EQ_INT(fl_call_stack(frame, 2), 0);
    fl_unwatch_calls(&w);
    fl_graph_free(g);
    fv_drop(weight), fv_drop(bias);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static int before_runs, before_recorded;
static void count_run(const fl_call *c, void *user) { (void)c, (void)user, before_runs++; }
static void count_recorded(const fl_call *c, void *user) { (void)c, (void)user, before_recorded++; }

TEST(watchers_see_calls_when_they_run_or_as_recorded) {
    fl_call_watcher run = {.before = count_run}, recorded = {.before = count_recorded, .recorded = true};
    fl_scope s = fl_scope_begin();
    fl_watch_calls(&run), fl_watch_calls(&recorded);
    fl_lazy(true);
    fl_tensor *x = fl_ones(FL_SHAPE(2), FL_F32), *y = fl_add(x, x);
    CHECK_EQ_INT(before_runs, 0);
    CHECK_EQ_INT(before_recorded, 2);
    CHECK(fl_item(fl_select(y, 0, 0)) == 2);
    CHECK_EQ_INT(before_runs, 2);
    CHECK_EQ_INT(before_recorded, 2);
    fl_unwatch_calls(&run), fl_unwatch_calls(&recorded);
    fl_scope_end(&s);
}

TEST(a_replaced_op_is_called_as_often_in_every_mode) {
    fl_backend mine = *fl_backend_at(0), old;
    add_of_cpu = mine.op[FL_OP_add];
    REQUIRE(fl_backend_override(&mine, FL_OP_add, runs_a) && fl_backend_use(&mine, &old));
    int count[4] = {0};
    for (int mode = 0; mode < 4; mode++) {
        fl_scope s = fl_scope_begin();
        fl_graph *g = fl_graph_new();
        fl_tensor *x = fl_full(FL_SHAPE(3), 0.5, FL_F32), *y = NULL;
        for (int i = 0; i < 5; i++) { /* the first call after an override also checks the op's `uses` */
            adds = 0;
            fl_scope inner = fl_scope_begin();
            fl_lazy(mode == 1);
            if (mode == 3 && i == 4) {
                CHECK(fl_graph_ready(g) && fl_graph_replay(g));
            } else {
                if (mode >= 2) CHECK(fl_graph_begin(g));
                fl_drop(y);
                y = fl_keep(fl_softplus(fl_add(fl_logsumexp(x, FL_AXES_KEEP(0)), x)));
                if (mode >= 2) CHECK(fl_graph_end(g));
            }
            fl_eval();
            fl_scope_end(&inner);
            count[mode] = adds;
        }
        fl_drop(y);
        fl_graph_free(g);
        fl_scope_end(&s);
    }
    CHECK(count[0] > 0);
    for (int mode = 1; mode < 4; mode++) CHECK_EQ_INT(count[mode], count[0]);
    fl_backend_use(&old, NULL);
}

static int host_calls;
static bool host_step(void *user) {
    host_calls++;
    *(double *)user = 1;
    return true;
}

/* Ten element-wise ops, of which nobody sees but the last. */
static fl_tensor *chain(fl_tensor *x, fl_tensor *y) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_tanh(fl_add(fl_mul(x, y), fl_num(1)));
    t = fl_maximum(fl_sub(fl_mul(t, x), y), fl_num(-0.5));
    t = fl_where(fl_lt(t, x), fl_exp(t), fl_mul(t, fl_num(0.25)));
    return fl_scope_return(&s, fl_add(t, y));
}

TEST(groups_store_what_is_used_and_call_what_is_replaced) {
    enum { N = 1 << 16, STEPS = 6 };
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_normal(FL_SHAPE(N), 0, 1, FL_F32, NULL);
    fl_tensor *y = fl_normal(FL_SHAPE(N), 0, 1, FL_F32, NULL), *want = chain(x, y);
    fl_backend mine = *fl_backend_at(0), old;
    add_of_cpu = mine.op[FL_OP_add];
    CHECK(fl_backend_set(&mine, FL_OP_add, runs_a, mine.flags[FL_OP_add]));
    for (int mode = 1; mode < 4; mode++) {
        fl_graph *g = fl_graph_new();
        fl_tensor *got = NULL;
        for (int i = 0; i < STEPS; i++) {
            if (i == 4) CHECK(fl_backend_use(&mine, &old));
            adds = 0;
            fl_lazy(mode == 1);
            fl_mem_stats_reset_peak(NULL);
            const int64_t before = fl_mem_stats_of(NULL).in_use;
            if (mode == 3 && fl_graph_ready(g)) {
                CHECK(fl_graph_replay(g));
            } else {
                fl_drop(got);
                if (mode > 1) CHECK(fl_graph_begin(g));
                fl_scope inner = fl_scope_begin();
                got = fl_keep(chain(x, y));
                fl_scope_end(&inner);
                if (mode > 1) CHECK(fl_graph_end(g));
            }
            fl_lazy(false);
            const int64_t most = fl_mem_stats_of(NULL).peak_in_use - before;
            if (mode == 1 ? i < 4 : mode == 2 ? i == 2 || i == 3 : false) /* the result alone */
                if (!CHECK(most < 6 * N))
                    printf("  mode %d, step %d: %lld bytes\n", mode, i, (long long)most);
            CHECK_EQ_INT(adds, i < 4 ? 0 : 2);
            CHECK(same_bits(got, want));
        }
        CHECK(fl_backend_use(&old, NULL));
        fl_drop(got);
        fl_graph_free(g);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static fl_tensor *gelu_of_shares(fl_tensor *x, double number) {
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl_gelu(fl_mul(x, fl_num(number)));
    return fl_scope_return(&s, fl_div(y, fl_add(fl_sum(y, FL_AXES_KEEP(0)), fl_num(number))));
}

/* A number of the program that was a formula's constant too, gelu's 0.5, when the group was made. */
TEST(a_number_that_changes_is_not_a_constant_of_a_formula) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_full(FL_SHAPE(8), 0.3, FL_F32);
    fl_graph *g = fl_graph_new();
    for (int i = 0; i < 4; i++) {
        const double number = i < 2 ? 0.5 : 0.125 * i;
        CHECK(fl_graph_begin(g));
        fl_scope inner = fl_scope_begin();
        fl_tensor *y = fl_scope_return(&inner, gelu_of_shares(x, number));
        CHECK(fl_graph_end(g));
        CHECK(same_bits(y, gelu_of_shares(x, number)));
    }
    fl_graph_free(g);
    fl_scope_end(&s);
}

/* Softmax in 5 ops, layer norm in 9, the former's gradient in 4: nobody sees but the last. */
static fl_tensor *softmax_by_hand(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *e = fl_exp(fl_sub(x[0], fl_amax(x[0], FL_AXES_KEEP(-1))));
    return fl_scope_return(&s, fl_div(e, fl_sum(e, FL_AXES_KEEP(-1))));
}

static fl_tensor *layer_norm_by_hand(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *d = fl_sub(x[0], fl_mean(x[0], FL_AXES_KEEP(-1)));
    fl_tensor *scale = fl_rsqrt(fl_add(fl_mean(fl_mul(d, d), FL_AXES_KEEP(-1)), fl_num(1e-5)));
    return fl_scope_return(&s, fl_add(fl_mul(fl_mul(d, scale), x[1]), x[2]));
}

static fl_tensor *softmax_gradient_by_hand(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl_sum(fl_mul(x[0], x[3]), FL_AXES_KEEP(-1));
    return fl_scope_return(&s, fl_mul(x[0], fl_sub(x[3], y)));
}

static fl_tensor *largest_products(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_mul(x[0], x[3]), *high = fl_argmax(t, 1, true), *low = fl_argmin(t, 1, true);
    return fl_scope_return(&s, fl_sub(fl_gather(x[0], 1, high), fl_gather(x[3], 1, low)));
}

typedef fl_tensor *(*rows_fn)(fl_tensor **x);

/* Runs fn on x in mode 0 to 3: eager, deferred, rounds, replay. `steps` times; *most: bytes of the last. */
static fl_tensor *in_mode(int mode, rows_fn fn, fl_tensor **x, int steps, int64_t *most) {
    fl_graph *g = fl_graph_new();
    fl_tensor *y = NULL;
    for (int i = 0; i < steps; i++) {
        if (mode != 3 || i < 2) fl_drop(y);
        fl_scope inner = fl_scope_begin();
        fl_mem_stats_reset_peak(NULL);
        const int64_t before = fl_mem_stats_of(NULL).in_use;
        if (mode == 3 && i >= 2) {
            CHECK(fl_graph_replay(g));
        } else {
            if (mode > 1) CHECK(fl_graph_begin(g));
            fl_lazy(mode == 1);
            y = fl_keep(fn(x));
            fl_lazy(false);
            if (mode > 1) CHECK(fl_graph_end(g));
        }
        *most = fl_mem_stats_of(NULL).peak_in_use - before;
        fl_scope_end(&inner);
    }
    fl_graph_free(g);
    return y;
}

TEST(reductions_of_rows_run_in_the_cache) {
    static const rows_fn fns[] = {softmax_by_hand, layer_norm_by_hand, softmax_gradient_by_hand,
                                  largest_products};
    static const int64_t sizes[][2] = {{64, 1024}, {512, 1024}, {4096, 16}, {3, 7}, {1, 1000}, {700, 33},
                                       {33, 700}, {20000, 2}, {9, 16384}, {9, 16385}, {9, 40000}, {9, 65536},
                                       {9, 65537}};
    for (int f64 = 0; f64 < 2; f64++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            fl_scope s = fl_scope_begin();
            const fl_dtype d = f64 ? FL_F64 : FL_F32;
            const int64_t rows = sizes[k][0], n = sizes[k][1], bytes = rows * n * (f64 ? 8 : 4);
            const fl_shape whole = FL_SHAPE(rows, n), row = FL_SHAPE(n);
            fl_tensor *x[] = {fl_normal(whole, 0, 1, d, NULL), fl_normal(row, 1, 1, d, NULL),
                              fl_normal(row, 0, 1, d, NULL), fl_normal(whole, 0, 1, d, NULL)};
            for (size_t f = 0; f < sizeof fns / sizeof *fns; f++) {
                int64_t eager = 0, most = 0;
                fl_tensor *want = in_mode(0, fns[f], x, 1, &eager);
                for (int mode = 1; mode < 4; mode++) {
                    const int64_t before = fl__rows_count();
                    fl_tensor *got = in_mode(mode, fns[f], x, 4, &most);
                    const int64_t row = n * (f64 ? 8 : 4); /* in the cache: 2, 2, 1, or 0, t being stored */
                    const bool fits = n <= 16384 || (n <= 65536 && rows >= fl_threads() &&
                                                     (f < 2 ? 2 : f < 3 ? 1 : 0) * row < 512 << 10);
                    const bool joined = fits && (mode > 1 || rows * n >= 4096);
                    bool ok = CHECK_EQ_INT(fl__rows_count() - before, joined ? mode == 1 ? 4 : 3 : 0);
                    ok &= CHECK(same_bits(got, want));
                    if (joined && mode < 3 && rows == 512) /* the result, columns */
                        ok &= CHECK(most < bytes + bytes / 2 && most <= eager);
                    if (!ok)
                        printf("  %lld x %lld, fn %d, mode %d: %lld bytes of %lld\n", (long long)rows,
                               (long long)n, (int)f, mode, (long long)most, (long long)eager);
                    fl_drop(got);
                }
                fl_drop(want);
            }
            fl_scope_end(&s);
        }
    CHECK_NOTHING_LIVES();
}

/* Row 0 of x is read by all rows, and x then written. */
static fl_tensor *row_read_by_all_then_written(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *e = fl_exp(fl_sub(x[1], fl_slice(x[0], 0, 0, 1, 1)));
    fl_assign(x[0], fl_div(fl_mul(e, x[0]), fl_sum(e, FL_AXES_KEEP(-1))));
    return fl_scope_return(&s, fl_mul(x[0], fl_num(1)));
}

/* Row 1 of what is summed is read by all rows. */
static fl_tensor *row_of_the_value_summed(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *e = fl_exp(x[0]), *sum = fl_sum(e, FL_AXES_KEEP(-1));
    return fl_scope_return(&s, fl_div(fl_sub(e, fl_slice(e, 0, 1, 2, 1)), sum));
}

/* Sums, as a column, are read as the row of another one. */
static fl_tensor *sums_across(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *sum = fl_sum(fl_exp(x[0]), FL_AXES(-1));
    return fl_scope_return(&s, fl_sub(x[1], sum));
}

static fl_tensor *storage;
/* Storage that is never written, and read by a call that nobody needs. */
static fl_tensor *storage_never_written(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *empty = fl_empty(fl_shape_of(x[0]), FL_F32), *e = fl_exp(x[0]);
    fl_mul(empty, x[0]);
    storage = fl_keep(empty);
    return fl_scope_return(&s, fl_div(e, fl_sum(e, FL_AXES_KEEP(-1))));
}

/* A result that is stored, over whose operand, which dies, it could be written, were that not read again. */
static fl_tensor *operand_read_again(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_cumsum(x[0], 1), *e = fl_tanh(t), *z = fl_div(t, fl_sum(e, FL_AXES_KEEP(-1)));
    z = fl_cumsum(z, 0);
    return fl_scope_return(&s, fl_add(fl_cumsum(e, 0), z));
}

/* x is overwritten by its softmax, twice, of which the second is read through a reshaped view. */
static fl_tensor *softmax_in_place(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    const int64_t n = x[0]->shape[1];
    for (int i = 0; i < 2; i++) {
        fl_tensor *e = fl_exp(fl_sub(x[0], fl_amax(x[0], FL_AXES_KEEP(-1))));
        fl_assign(x[0], fl_div(e, fl_sum(e, FL_AXES_KEEP(-1))));
    }
    return fl_scope_return(&s, fl_sum(fl_sqrt(fl_reshape(x[0], FL_SHAPE(-1, 1, n))), FL_AXES(2)));
}

TEST(rows_touch_memory_as_their_calls_do) {
    static const struct {
        rows_fn fn;
        int groups; /* of rows, in each round */
    } cases[] = {{row_read_by_all_then_written, 1}, {row_of_the_value_summed, 1}, {sums_across, 1},
                 {storage_never_written, 1}, {operand_read_again, 1}, {softmax_in_place, 1}};
    fl_scope s = fl_scope_begin();
    fl_tensor *start = fl_normal(FL_SHAPE(72, 72), 0, 1, FL_F32, NULL);
    fl_tensor *x[] = {fl_clone(start), fl_normal(FL_SHAPE(72, 72), 0, 1, FL_F32, NULL)};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        fl_tensor *want = NULL, *want_x = NULL, *y = NULL;
        for (int mode = 0; mode < 4; mode++) { /* eager, deferred, rounds, replay */
            fl_graph *g = fl_graph_new();
            for (int i = 0; i < 4; i++) {
                const int64_t before = fl__rows_count();
                fl_assign(x[0], start);
                if (mode == 3 && i >= 2) {
                    CHECK(fl_graph_replay(g));
                } else {
                    if (mode > 1) CHECK(fl_graph_begin(g));
                    fl_lazy(mode == 1);
                    storage = NULL;
                    y = cases[k].fn(x);
                    fl_lazy(false);
                    if (mode > 1) CHECK(fl_graph_end(g));
                }
                CHECK_EQ_INT(fl__rows_count() - before, mode == 1 || (mode && i) ? cases[k].groups : 0);
                if (!want) want = y, want_x = fl_clone(x[0]);
                CHECK(same_bits(y, want) && same_bits(x[0], want_x));
                if (storage && CHECK(fl_map(storage, FL_READ))) fl_unmap(storage, FL_READ);
                if (mode < 3 || !i || i == 3) fl_drop(storage);
            }
            fl_graph_free(g);
        }
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(rows_of_values_that_are_paged_out) {
    REQUIRE(paged_begin());
    fl_call_hook(NULL, NULL, NULL); /* calls that are watched run one by one */
    fl_scope s = fl_scope_begin();
    const fl_shape whole = FL_SHAPE(72, 72), row = FL_SHAPE(72);
    fl_tensor *x[] = {fl_normal(whole, 0, 1, FL_F32, NULL), fl_normal(row, 1, 1, FL_F32, NULL),
                      fl_normal(row, 0, 1, FL_F32, NULL)};
    fl_tensor *want = layer_norm_by_hand(x);
    for (int mode = 1; mode < 4; mode++) {
        int64_t most;
        const int64_t before = fl__rows_count();
        page_out_all();
        CHECK(x[0]->buffer->state == FL_EVICTED);
        fl_tensor *got = in_mode(mode, layer_norm_by_hand, x, 3, &most);
        CHECK_EQ_INT(fl__rows_count() - before, mode == 1 ? 3 : 2);
        CHECK(same_bits(got, want));
        page_out_all(); /* nothing is pinned any more */
        CHECK(x[0]->buffer->state == FL_EVICTED && x[1]->buffer->state == FL_EVICTED);
        fl_drop(got);
    }
    fl_scope_end(&s);
    paged_end();
    CHECK_NOTHING_LIVES();
}

/* Values that are one number: all of a tensor, expanded from a row or from one element, copied, rounded. */
static fl_tensor *numbers_inside(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *z = fl_full_like(x[0], 0.1), *copy = fl_empty(fl_shape_of(x[0]), x[0]->dtype);
    fl_assign(copy, fl_num(-0.3));
    fl_tensor *row = fl_full(FL_SHAPE(x[0]->shape[1]), 1 / 3., x[0]->dtype);
    fl_tensor *one = fl_new_full(x[0], FL_SCALAR_SHAPE, 0.7);
    fl_tensor *t = fl_mul(fl_add(fl_mul(x[0], z), row), fl_sub(one, fl_tanh(x[0])));
    return fl_scope_return(&s, fl_where(fl_lt(t, z), fl_exp(fl_mul(z, fl_num(3))), fl_mul(t, copy)));
}

/* A sum that begins with zeros. */
static fl_tensor *added_to_zeros(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl_zeros(fl_shape_of(x[0]), x[0]->dtype);
    fl_assign(y, fl_add(y, fl_mul(x[0], x[0])));
    return fl_scope_return(&s, y);
}

/* A number of a part of a value, a value that is another number afterwards, and one that an op reads. */
static fl_tensor *numbers_stored(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl_full_like(x[0], 2), *z = fl_ones_like(x[0]);
    fl_tensor *t = fl_mul(fl_tanh(x[0]), y);
    fl_assign(fl_slice(y, 0, 1, 2, 1), fl_num(5));
    fl_assign(z, fl_num(0.25));
    t = fl_add(fl_mul(t, y), fl_sub(fl_mul(z, x[0]), fl_sum(z, FL_AXES_KEEP(0))));
    fl_tensor *row = fl_full(FL_SHAPE(1, x[0]->shape[1]), 0.5, x[0]->dtype);
    fl_tensor *alone = fl_mul(row, fl_slice(x[0], 0, 0, 1, 1)); /* in a group without others */
    fl_assign(row, fl_num(4));
    return fl_scope_return(&s, fl_add(t, fl_cumsum(alone, 1)));
}

static fl_slot fill_of_cpu;
static int fills; /* that have run */
static bool counts_fills(const fl_backend *self, const fl_call *c) {
    fills++;
    return fill_of_cpu(self, c);
}

TEST(a_value_that_is_one_number_is_a_constant_of_groups) {
    enum { ROWS = 64, N = 512 };
    static const rows_fn fns[] = {numbers_inside, added_to_zeros, numbers_stored};
    fl_backend mine = *fl_backend_at(0), old;
    fill_of_cpu = mine.op[FL_OP_fill];
    CHECK(fl_backend_set(&mine, FL_OP_fill, counts_fills, mine.flags[FL_OP_fill]));
    for (int f64 = 0; f64 < 2; f64++)
        for (size_t f = 0; f < sizeof fns / sizeof *fns; f++) {
            fl_scope s = fl_scope_begin();
            const int64_t bytes = (int64_t)ROWS * N * (f64 ? 8 : 4);
            fl_tensor *x[] = {fl_normal(FL_SHAPE(ROWS, N), 0, 1, f64 ? FL_F64 : FL_F32, NULL)};
            int64_t eager = 0, most = 0;
            fl_tensor *want = in_mode(0, fns[f], x, 1, &eager);
            for (int mode = 1; mode < 4; mode++)
                for (int replaced = 0; replaced < 2; replaced++) {
                    if (replaced) CHECK(fl_backend_use(&mine, &old));
                    fills = 0;
                    fl_tensor *got = in_mode(mode, fns[f], x, 4, &most);
                    bool ok = CHECK(same_bits(got, want)) & CHECK(!replaced || fills >= 4);
                    if (f < 2 && mode < 3 && !replaced) /* the result alone */
                        ok &= CHECK(most < bytes + bytes / 2);
                    if (replaced) CHECK(fl_backend_use(&old, NULL));
                    if (!ok) printf("  fn %d, mode %d: %lld bytes, %lld eager\n", (int)f, mode,
                                    (long long)most, (long long)eager);
                    fl_drop(got);
                }
            fl_drop(want);
            fl_scope_end(&s);
        }
    CHECK_NOTHING_LIVES();
}

/* Numbers that calls draw or count, which nobody sees. */
static fl_tensor *dropped_and_added(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl_add(fl_dropout(x[0], 0.25, NULL), fl_dropout(x[0], 0.1, NULL));
    return fl_scope_return(&s, fl_mul(fl_sub(y, x[0]), fl_num(3)));
}

static fl_tensor *noisy_and_counted(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    const fl_dtype d = x[0]->dtype;
    const int64_t n = fl_numel(x[0]);
    fl_tensor *y = fl_uniform(FL_SHAPE(n), -1, 2, d, NULL);
    y = fl_add(fl_reshape(x[0], FL_SHAPE(n)), y);
    y = fl_mul(y, fl_arange(0.5, (double)n + 0.5, 1, d));
    return fl_scope_return(&s, fl_maximum(y, fl_normal(FL_SHAPE(n), 1, 2, d, NULL)));
}

/* Casts from and to b8, and between f32 and f64, that the group computes, reads, writes and reads again. */
static fl_tensor *cast_conditions(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    const fl_dtype d = x[0]->dtype;
    fl_tensor *mask = fl_cast(fl_gt(x[0], fl_num(0)), d), *odd = fl_cast(fl_floor(x[0]), FL_B8);
    return fl_scope_return(&s, fl_where(odd, fl_mul(mask, x[0]), fl_sub(fl_num(1), fl_cast(odd, d))));
}

static fl_tensor *cast_numbers(fl_tensor **x) {
    fl_scope s = fl_scope_begin();
    const fl_dtype d = x[0]->dtype, other = d == FL_F32 ? FL_F64 : FL_F32;
    fl_tensor *a = fl_exp(fl_cast(x[0], other)), *b = fl_cast(fl_mul(a, fl_num(1 / 3.)), d);
    fl_tensor *c = fl_mul(b, x[0]); /* not an argument of fl_add: compilers differ in their order */
    return fl_scope_return(&s, fl_add(fl_cast(fl_cast(b, other), d), c));
}

/* In every mode fn has eager's bits, and in groups it takes less memory than `limit` results. */
static void check_groups(rows_fn fn, fl_dtype d, double limit) {
    enum { ROWS = 70, N = 1003, STEPS = 4 };
    fl_scope s = fl_scope_begin();
    fl_tensor *x[] = {fl_normal(FL_SHAPE(ROWS, N), 0, 1, d, NULL)};
    int64_t eager = 0, most = 0;
    fl_seed(3);
    fl_tensor *want = in_mode(0, fn, x, STEPS, &eager);
    for (int mode = 1; mode < 4; mode++) {
        fl_seed(3);
        fl_tensor *got = in_mode(mode, fn, x, STEPS, &most);
        bool ok = CHECK(same_bits(got, want));
        if (mode < 3) ok &= CHECK((double)most < limit * ROWS * N * (double)fl_dtype_size(d));
        if (!ok) printf("  mode %d: %lld bytes, %lld eager\n", mode, (long long)most, (long long)eager);
        fl_drop(got);
    }
    fl_drop(want);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(casts_join_groups) {
    for (int f64 = 0; f64 < 2; f64++) {
        check_groups(cast_conditions, f64 ? FL_F64 : FL_F32, 1.5); /* the result alone */
        check_groups(cast_numbers, f64 ? FL_F64 : FL_F32, 3);      /* and what its two groups share */
    }
}

TEST(groups_draw_the_numbers_of_their_calls) {
    for (int f64 = 0; f64 < 2; f64++) {
        check_groups(dropped_and_added, f64 ? FL_F64 : FL_F32, 1.5);
        check_groups(noisy_and_counted, f64 ? FL_F64 : FL_F32, 1.5);
    }
}

/* x is read, written, and read again from what has been written over it: it dies in the first group, which
   writes it too. */
static void written_over(fl_tensor *a, fl_tensor *b, fl_tensor *y[3]) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_cumsum(a, 0);
    y[0] = fl_keep(fl_div(x, b));
    fl_assign(x, x);
    y[1] = fl_keep(fl_cumsum(y[0], 0));
    fl_assign(x, b);
    y[2] = fl_keep(fl_mul(fl_tanh(x), a));
    fl_scope_end(&s);
}

TEST(groups_keep_apart_what_they_write) {
    enum { N = 1 << 14 };
    fl_scope s = fl_scope_begin();
    fl_tensor *a = fl_normal(FL_SHAPE(N), 0, 1, FL_F32, NULL);
    fl_tensor *b = fl_normal(FL_SHAPE(N), 0, 1, FL_F32, NULL), *want[3], *got[3];
    written_over(a, b, want);
    fl_graph *g = fl_graph_new();
    for (int i = 0; i < 5; i++) {
        fl_lazy(i == 0);
        if (i) CHECK(fl_graph_begin(g));
        written_over(a, b, got);
        if (i) CHECK(fl_graph_end(g));
        fl_lazy(false);
        for (int k = 0; k < 3; k++) {
            CHECK(same_bits(got[k], want[k]));
            fl_drop(got[k]);
        }
    }
    for (int k = 0; k < 3; k++) fl_drop(want[k]);
    fl_graph_free(g);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(functions_of_the_host_run_in_their_place) {
    fl_scope s = fl_scope_begin();
    double done = 0;
    CHECK(fl_graph_host(host_step, &done) && host_calls == 1);
    fl_lazy(true);
    fl_tensor *x = fl_ones(FL_SHAPE(1), FL_F32);
    CHECK(fl_graph_host(host_step, &done) && host_calls == 1);
    CHECK_EQ_INT(waiting(), 2);
    CHECK(fl_item(x) == 1 && host_calls == 2);
    fl_scope_end(&s);
}

static bool host_adds(void *w) { return fl_assign(w, fl_add(w, fl_num(1))) != NULL; }

/* Their ops run at once, whatever the mode: alone, as what waits runs, and in a replay. */
TEST(functions_of_the_host_call_ops) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(3), FL_F32), *w = fl_ones(FL_SHAPE(3), FL_F32), *y = NULL;
    fl_graph *g = fl_graph_new();
    for (int round = 0; round < 4; round++) {
        fl_lazy(round == 3);
        if (round == 2) {
            CHECK(fl_graph_ready(g) && fl_graph_replay(g));
        } else {
            if (round < 2) CHECK(fl_graph_begin(g));
            y = fl_add(x, w);
            CHECK(fl_graph_host(host_adds, w));
            y = fl_mul(y, w);
            if (round < 2) CHECK(fl_graph_end(g));
        }
        CHECK_NEAR(fl_item(fl_select(y, 0, 1)), (round + 2) * (round + 2), 0);
    }
    fl_lazy(false);
    fl_graph_free(g);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static jmp_buf after_error;
static void leaves(const char *text, void *user) {
    (void)text, (void)user;
    longjmp(after_error, 1);
}
static bool host_fails(void *fails) {
    fl_tensor *x = fl_ones(FL_SHAPE(2, 3), FL_F32);
    return !*(bool *)fails || fl_matmul(x, x);
}

/* The handler of the errors may leave: it is called when the calls have ended. */
TEST(functions_of_the_host_fail) {
    static bool fails;
    static fl_tensor *y;
    fl_set_error_handler(leaves, NULL);
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(3), FL_F32);
    fl_graph *g = fl_graph_new();
    for (int round = 0; round < 6; round++) {
        fails = round == 2 || round == 4;
        if (!setjmp(after_error)) {
            fl_lazy(round == 4);
            if (round == 2 || round == 3) {
                fl_graph_replay(g);
            } else {
                if (round < 2) fl_graph_begin(g);
                fl_graph_host(host_fails, &fails);
                y = fl_add(x, x);
                if (round < 2) fl_graph_end(g);
            }
            fl_eval();
            CHECK(!fails);
        }
        if (fails) CHECK_ERROR("inner dims differ");
        fl_lazy(false);
        CHECK(fl_item(fl_select(y, 0, 0)) == 2);
    }
    fl_graph_free(g);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static bool counts_calls(fl_graph_list *l, void *user) {
    *(int64_t *)user += l->n;
    return true;
}

static bool fails_once(fl_graph_list *l, void *user) {
    (void)l;
    return (*(int *)user)++ > 0 || fl_fail("fails_once: not this list");
}

TEST(passes_see_every_list_before_it_runs) {
    fl_scope s = fl_scope_begin();
    int64_t seen = 0;
    CHECK(fl_graph_use((fl_graph_pass[]){counts_calls}, (void *[]){&seen}, 1));
    fl_lazy(true);
    CHECK(fl_item(fl_sum(fl_ones(FL_SHAPE(4), FL_F32), FL_ALL_AXES)) == 4);
    CHECK_EQ_INT(seen, 2);
    test_errors_return();
    int lists = 0;
    CHECK(fl_graph_use((fl_graph_pass[]){fails_once}, (void *[]){&lists}, 1));
    fl_tensor *y = fl_add(fl_ones(FL_SHAPE(1), FL_F32), fl_num(1));
    CHECK(!fl_eval());
    CHECK_ERROR("fails_once: not this list");
    CHECK(fl_item(y) == 2 && fl_item(fl_add(y, y)) == 4); /* the calls have run, and the mode goes on */
    CHECK_NO_ERROR();
    CHECK(fl_graph_use(NULL, NULL, 0));
    CHECK(!fl_graph_use(NULL, NULL, 9));
    CHECK_ERROR("got 9 passes, expected 0 to 8");
    fl_scope_end(&s);
}

/* ---- two threads ---- */

enum { ROUNDS = 300 };
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    fl_tensor *from[2]; /* what the other thread may read and write now */
    int turn;
} shared = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {NULL, NULL}, 0};

/* Each records on its own and the other's value in turn, without running its list. */
static void *takes_turns(void *arg) {
    const int me = (int)(intptr_t)arg;
    fl_scope s = fl_scope_begin();
    fl_lazy(true);
    fl_tensor *own = shared.from[me], *other = shared.from[!me];
    for (int i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&shared.lock);
        while (shared.turn != me) pthread_cond_wait(&shared.changed, &shared.lock);
        fl_scope inner = fl_scope_begin();
        fl_assign(own, fl_add(own, fl_mul(other, fl_num(0.5)))); /* reads what the other's list writes */
        if (i % 7 == me) fl_assign(other, fl_sub(other, fl_num(1)));
        if (i % 31 == 30) fl_item(fl_sum(other, FL_ALL_AXES));
        fl_assign(own, fl_mul(own, fl_num(0.25)));
        fl_scope_end(&inner);
        shared.turn = !me;
        pthread_cond_broadcast(&shared.changed);
        pthread_mutex_unlock(&shared.lock);
        fl_scope busy = fl_scope_begin(); /* and at the same time as the other, on nobody else's values */
        fl_tensor *x = fl_full(FL_SHAPE(16), i, FL_F32);
        for (int k = 0; k < 5; k++) x = fl_add(x, fl_num(1));
        if (i % 5 == 0) CHECK(fl_item(fl_select(x, 0, 3)) == i + 5);
        fl_scope_end(&busy);
    }
    fl_scope_end(&s);
    return NULL;
}

/* The same in one thread, eagerly. */
static void alone(float *a, float *b) {
    float *v[2] = {a, b};
    for (int i = 0; i < ROUNDS; i++)
        for (int me = 0; me < 2; me++) {
            *v[me] += *v[!me] * 0.5f;
            if (i % 7 == me) *v[!me] -= 1;
            *v[me] *= 0.25f;
        }
}

TEST(threads_that_record_read_and_write_each_others_values) {
    float a = 1, b = 2;
    alone(&a, &b);
    fl_scope s = fl_scope_begin();
    shared.from[0] = fl_full(FL_SHAPE(8), 1, FL_F32);
    shared.from[1] = fl_full(FL_SHAPE(8), 2, FL_F32);
    pthread_t t[2];
    for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&t[i], NULL, takes_turns, (void *)(intptr_t)i) == 0);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    CHECK_NEAR(fl_item(fl_select(shared.from[0], 0, 5)), a, 0);
    CHECK_NEAR(fl_item(fl_select(shared.from[1], 0, 5)), b, 0);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static void *leaves_a_value(void *arg) {
    fl_scope s = fl_scope_begin();
    fl_lazy(true);
    fl_tensor **out = arg;
    *out = fl_keep(fl_add(fl_full(FL_SHAPE(2), 3, FL_F32), fl_num(4)));
    CHECK_EQ_INT(waiting(), 2);
    fl_scope_end(&s);
    return NULL;
}

TEST(a_thread_that_ends_runs_what_waits) {
    pthread_t t;
    fl_tensor *left = NULL;
    REQUIRE(pthread_create(&t, NULL, leaves_a_value, &left) == 0);
    pthread_join(t, NULL);
    fl_scope s = fl_scope_begin();
    CHECK(left && fl_item(fl_select(left, 0, 1)) == 7);
    fl_scope_end(&s);
    fl_drop(left);
    CHECK_NOTHING_LIVES();
}

static void take_turn(int me) {
    pthread_mutex_lock(&shared.lock);
    while (shared.turn != me) pthread_cond_wait(&shared.changed, &shared.lock);
    pthread_mutex_unlock(&shared.lock);
}

static void give_turn(int to) {
    pthread_mutex_lock(&shared.lock);
    shared.turn = to;
    pthread_cond_broadcast(&shared.changed);
    pthread_mutex_unlock(&shared.lock);
}

/* Defers calls on x and on its square y, which another thread's replay then writes. */
static void *reads_before_the_replay(void *arg) {
    fl_scope s = fl_scope_begin();
    fl_lazy(true);
    take_turn(1);
    fl_tensor *z = fl_add(shared.from[1], fl_num(1));
    give_turn(0);
    take_turn(1);
    CHECK_NEAR(fl_item(fl_select(z, 0, 0)), 5, 0);
    fl_scope_end(&s);
    return arg;
}

TEST(a_replay_waits_for_other_threads_that_read_its_results) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = shared.from[0] = fl_full(FL_SHAPE(2), 2, FL_F32);
    fl_graph *g = fl_graph_new();
    for (int i = 0; i < 2; i++) {
        CHECK(fl_graph_begin(g));
        shared.from[1] = fl_mul(x, x);
        CHECK(fl_graph_end(g));
    }
    pthread_t t;
    REQUIRE(pthread_create(&t, NULL, reads_before_the_replay, NULL) == 0);
    give_turn(1);
    take_turn(0);
    CHECK(fl_assign(x, fl_num(3)) && fl_graph_replay(g));
    CHECK_NEAR(fl_item(fl_select(shared.from[1], 0, 0)), 9, 0);
    give_turn(1);
    pthread_join(t, NULL);
    fl_graph_free(g);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- begin, end, replay ---- */

typedef struct net {
    fl_tensor *x, *w, *lr;
} net;

/* A step with views, dropout, a reduction and a write in place; the loss. */
static fl_tensor *net_step(net *n) {
    fl_tensor *h = fl_dropout(fl_relu(fl_matmul(n->x, n->w)), 0.3, NULL);
    fl_tensor *loss = fl_mean(fl_mul(h, fl_slice(n->x, 1, 0, 4, 1)), FL_ALL_AXES);
    fl_tensor *g = fl_matmul(fl_transpose(n->x, 0, 1), h);
    fl_assign(n->w, fl_sub(n->w, fl_mul(g, n->lr)));
    return loss;
}

static net net_new(void) {
    fl_rng rng = {5, 0};
    fl_seed(3);
    return (net){fl_normal(FL_SHAPE(6, 8), 0, 1, FL_F32, &rng), fl_normal(FL_SHAPE(8, 4), 0, 1, FL_F32, &rng),
                 fl_full(FL_SCALAR_SHAPE, 0.01, FL_F32)};
}

/* A thousand replays are a thousand eager steps: losses, weights, generator, versions. */
TEST(replays_are_steps) {
    enum { STEPS = 1000 };
    static double loss[2][STEPS];
    fl_tensor *w[2];
    fl_rng rng[2];
    uint32_t version[2];
    fl_scope s = fl_scope_begin();
    for (int mode = 0; mode < 2; mode++) {
        net n = net_new();
        fl_graph *g = fl_graph_new();
        fl_tensor *y = NULL;
        for (int i = 0; i < STEPS; i++) {
            fl_scope inner = fl_scope_begin();
            fl_assign(n.lr, fl_num(0.01 / (1 + i)));
            if (i % 10 == 0) fl_assign(n.x, fl_add(n.x, fl_num(0.125)));
            if (mode && fl_graph_ready(g)) {
                CHECK(fl_graph_replay(g));
            } else {
                if (mode) CHECK(fl_graph_begin(g));
                fl_drop(y);
                y = fl_keep(net_step(&n));
                if (mode) CHECK(fl_graph_end(g));
            }
            loss[mode][i] = fl_item(y);
            fl_scope_end(&inner);
        }
        if (mode) CHECK(fl_graph_ready(g)), CHECK_STR("", fl_graph_reason(g));
        w[mode] = n.w, rng[mode] = fl_rng_state(), version[mode] = fl_version_of(n.w);
        fl_drop(y);
        fl_graph_free(g);
    }
    CHECK(!memcmp(loss[0], loss[1], sizeof loss[0]));
    CHECK(same_bits(w[0], w[1]));
    CHECK_EQ_INT(rng[0].counter, rng[1].counter);
    CHECK_EQ_INT(version[0], version[1]);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Replays draw on where the step before ended: a fill, dropout, and dropout inside of attention. */
static fl_tensor *noisy_step(fl_tensor *x, fl_tensor *state) {
    fl_scope s = fl_scope_begin();
    fl_tensor *noise = fl_normal(FL_SHAPE(64), 0, 1, FL_F32, NULL);
    fl_tensor *d = fl_dropout(fl_add(fl_tanh(x), noise), 0.3, NULL), *q = fl_reshape(d, FL_SHAPE(8, 8));
    d = fl_add(d, fl_reshape(fl_attention(q, q, q, .dropout = 0.4), FL_SHAPE(64)));
    fl_assign(state, fl_add(fl_mul(state, fl_num(0.9)), d));
    return fl_scope_return(&s, fl_sum(fl_square(state), FL_ALL_AXES));
}

TEST(replays_draw_the_numbers_of_steps) {
    enum { STEPS = 6 };
    double loss[2][STEPS];
    fl_tensor *state[2];
    fl_rng rng[2];
    fl_scope s = fl_scope_begin();
    for (int mode = 0; mode < 2; mode++) {
        fl_seed(3);
        fl_tensor *x = fl_empty(FL_SHAPE(64), FL_F32), *y = NULL;
        state[mode] = fl_zeros(FL_SHAPE(64), FL_F32);
        fl_graph *g = fl_graph_new();
        int64_t buffers = 0;
        for (int i = 0; i < STEPS; i++) {
            float host[64];
            for (int k = 0; k < 64; k++) host[k] = sinf((float)(i * 64 + k));
            CHECK(fl_set_host(x, host, sizeof host));
            if (mode && i >= 2) {
                CHECK(fl_graph_ready(g) && fl_graph_replay(g));
                if (i > 2) CHECK_EQ_INT(test_live_buffers(), buffers); /* the first makes the plan's memory */
                buffers = test_live_buffers();
            } else {
                if (mode) CHECK(fl_graph_begin(g));
                y = noisy_step(x, state[mode]);
                if (mode) CHECK(fl_graph_end(g));
            }
            loss[mode][i] = fl_item(y);
        }
        rng[mode] = fl_rng_state();
        fl_graph_free(g);
        CHECK(fl_item(y) == loss[mode][STEPS - 1]); /* outlives the graph */
    }
    CHECK(!memcmp(loss[0], loss[1], sizeof loss[0]));
    CHECK(same_bits(state[0], state[1]));
    CHECK_EQ_INT(rng[0].counter, rng[1].counter);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Traps of frozen graphs. A round does what the program says; a replay does so too, or refuses by name. */
typedef struct trap {
    const char *name;
    fl_tensor *(*step)(net *n, int round);
    const char *reason; /* part of it; NULL: it may be replayed */
} trap;

static fl_tensor *plain(net *n, int round) {
    return (void)round, fl_mul(n->x, n->x);
}
static fl_tensor *branch_by_value(net *n, int round) {
    fl_assign(n->lr, fl_num(round));
    return fl_item(n->lr) > 1 ? fl_add(n->x, fl_num(1)) : fl_sub(n->x, fl_num(1));
}
static fl_tensor *number_changes(net *n, int round) { return fl_mul(n->x, fl_num(1 + round)); }
static fl_tensor *one_input_twice(net *n, int round) { return fl_add(plain(n, round), fl_mul(n->x, n->x)); }
static fl_tensor *views_at_other_offsets(net *n, int round) {
    return fl_add(fl_slice(n->x, 0, round % 3, round % 3 + 2, 1), fl_num(1));
}
static fl_tensor *shape_changes(net *n, int round) { return fl_exp(fl_slice(n->x, 1, 0, 2 + round, 1)); }
static fl_tensor *constant_changes(net *n, int round) {
    return fl_add(fl_slice(n->x, 0, 0, 1, 1),
                  fl_from_host((float[]){(float)round, 0, 0, 0, 0, 0, 0, 1}, FL_SHAPE(1, 8), FL_F32));
}
static fl_tensor *constant_stays(net *n, int round) {
    (void)round;
    return fl_add(fl_slice(n->x, 0, 0, 1, 1),
                  fl_from_host((float[]){2, 0, 0, 0, 0, 0, 0, 1}, FL_SHAPE(1, 8), FL_F32));
}
static fl_tensor *constant_dropped(net *n, int round) {
    fl_scope s = fl_scope_begin(); /* ends before the step does */
    fl_tensor *y = fl_mul(constant_stays(n, round), fl_from_host(&(float){3}, FL_SHAPE(1), FL_F32));
    fl_scope_return(&s, y);
    return y;
}
static fl_tensor *constant_written(net *n, int round) {
    fl_tensor *sum = fl_from_host(&(float){2}, FL_SHAPE(1), FL_F32);
    fl_assign(sum, fl_add(sum, fl_slice(fl_select(n->x, 0, 0), 0, 0, 1, 1)));
    return (void)round, fl_mul(sum, sum);
}
static fl_tensor *generator_of_the_program(net *n, int round) {
    fl_rng rng = {(uint64_t)round + 9, 0};
    return fl_dropout(n->x, 0.5, &rng);
}
/* The same numbers at each step, of the process's key too, beside numbers of the process's generator. */
static fl_tensor *generator_that_starts_again(net *n, int round) {
    fl_rng other = {9, 0}, same_key = {3, 0};
    (void)round;
    return fl_add(fl_dropout(fl_dropout(n->x, 0.2, &other), 0.2, &same_key), fl_dropout(n->x, 0.2, NULL));
}
static fl_tensor *only_a_generator_of_its_own(net *n, int round) {
    fl_rng same_key = {3, 0};
    return (void)round, fl_dropout(n->x, 0.5, &same_key);
}
static fl_tensor *process_seeded_at_each_step(net *n, int round) {
    fl_seed(3);
    return (void)round, fl_dropout(n->x, 0.5, NULL);
}
static fl_tensor *attention_without_dropout(net *n, int round) {
    (void)round;
    return fl_add(fl_attention(n->x, n->x, n->x), fl_dropout(n->x, 0.2, NULL));
}
static fl_tensor *host_draws(net *n, int round) {
    (void)round;
    return fl_rng_uniform(NULL) < 2 ? fl_mul(n->x, fl_num(2)) : n->x;
}
static fl_tensor *host_reads(net *n, int round) {
    (void)round;
    return fl_mul(n->x, fl_num(fl_item(fl_sum(n->w, FL_ALL_AXES)) > 0 ? 1 : 1));
}
static fl_tensor *state_by_handle(net *n, int round) {
    return (void)round, n->x = fl_mul(n->x, fl_num(2));
}
static fl_tensor *without_output(net *n, int round) {
    fl_assign(n->w, fl_mul(n->w, fl_num(0.5)));
    return (void)round, NULL;
}
static fl_tensor *frozen_shape(net *n, int round) {
    return (void)round, fl_nonzero(fl_gt(n->x, fl_num(0)));
}

static const trap traps[] = {
    {"plain", plain, NULL},
    {"a branch by value", branch_by_value, "the host reads"},
    {"a number changes", number_changes, "fl_mul"},
    {"one input twice", one_input_twice, NULL},
    {"views at other offsets", views_at_other_offsets, "the calls differ"},
    {"the shape changes", shape_changes, "the calls differ"},
    {"a constant changes", constant_changes, "a constant that the program writes"},
    {"a constant stays", constant_stays, NULL},
    {"a constant is dropped", constant_dropped, NULL},
    {"a constant is written", constant_written, "the step writes into a constant"},
    {"a generator that starts again", generator_that_starts_again, NULL},
    {"only a generator of its own", only_a_generator_of_its_own, NULL},
    {"a seed at each step", process_seeded_at_each_step, NULL},
    {"attention without dropout", attention_without_dropout, NULL},
    {"a generator of the program", generator_of_the_program, "a generator of the program"},
    {"the host draws", host_draws, "the host draws a random number"},
    {"the host reads", host_reads, "the host reads"},
    {"state by handle", state_by_handle, "another tensor than in the step before"},
    {"no output", without_output, NULL},
    {"a shape by values", frozen_shape, "the host reads"}};

TEST(traps_of_frozen_graphs) {
    enum { TRAP_ROUNDS = 5 };
    for (size_t k = 0; k < sizeof traps / sizeof *traps; k++) {
        const trap *t = &traps[k];
        fl_scope s = fl_scope_begin();
        fl_tensor *y[2][TRAP_ROUNDS], *w[2];
        uint64_t counter[2];
        bool right = true, replayed = false;
        for (int mode = 0; mode < 2; mode++) {
            net n = net_new();
            fl_graph *g = fl_graph_new();
            fl_tensor *last = NULL;
            for (int i = 0; i < TRAP_ROUNDS; i++) {
                if (mode && fl_graph_ready(g)) {
                    right &= CHECK(fl_graph_replay(g));
                    replayed = true;
                    y[mode][i] = last ? fl_clone(last) : NULL;
                    continue;
                }
                if (mode) right &= CHECK(fl_graph_begin(g));
                last = t->step(&n, i);
                if (mode) right &= CHECK(fl_graph_end(g));
                y[mode][i] = last ? fl_clone(last) : NULL;
            }
            if (mode && t->reason) right &= CHECK_STR(fl_graph_reason(g), t->reason);
            w[mode] = n.w, counter[mode] = fl_rng_state().counter;
            fl_graph_free(g);
        }
        right &= CHECK_EQ_INT(counter[0], counter[1]);
        for (int i = 0; i < TRAP_ROUNDS; i++)
            right &= (!y[0][i] && !y[1][i]) || CHECK(same_bits(y[0][i], y[1][i]));
        right &= CHECK(same_bits(w[0], w[1])) && CHECK(replayed == !t->reason);
        if (!right) printf("  %s\n", t->name);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

/* Results of two rounds are two tensors. */
TEST(a_round_overwrites_nothing) {
    fl_scope s = fl_scope_begin();
    net n = net_new();
    fl_graph *g = fl_graph_new();
    fl_tensor *y[3];
    for (int i = 0; i < 3; i++) {
        CHECK(fl_set_host(n.lr, &(float){(float)i}, 4));
        CHECK(fl_graph_begin(g));
        y[i] = fl_add(n.lr, fl_num(10));
        CHECK(fl_graph_end(g));
    }
    for (int i = 0; i < 3; i++) CHECK(fl_item(y[i]) == 10 + i);
    CHECK(fl_graph_ready(g));
    fl_graph_list l = fl_graph_calls(g);
    CHECK(l.n == 1 && l.call[0].call.op == FL_OP_add && l.value[0].role == FL_GRAPH_OUTPUT &&
          l.value[1].role == FL_GRAPH_INPUT);
    fl_graph_free(g);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* The graph does not hold the results of the round before while the next one runs. */
TEST(rounds_need_the_memory_of_eager_steps) {
    int64_t peak[2];
    for (int mode = 0; mode < 2; mode++) {
        fl_scope s = fl_scope_begin();
        fl_graph *g = fl_graph_new();
        fl_tensor *x = fl_ones(FL_SHAPE(1 << 16), FL_F32), *y = NULL;
        fl_mem_stats_reset_peak(NULL);
        for (int i = 0; i < 4; i++) {
            fl_scope inner = fl_scope_begin();
            fl_drop(y);
            if (mode) CHECK(fl_graph_begin(g));
            y = fl_keep(fl_add(x, fl_num(1)));
            if (mode) CHECK(fl_graph_end(g));
            fl_scope_end(&inner);
        }
        peak[mode] = fl_mem_stats_of(NULL).peak_in_use;
        if (mode) CHECK(fl_graph_ready(g) && fl_graph_replay(g));
        CHECK_NEAR(fl_item(fl_select(y, 0, 9)), 2, 0);
        fl_drop(y);
        fl_graph_free(g);
        fl_scope_end(&s);
    }
    CHECK((double)peak[1] <= 1.02 * (double)peak[0]);
    CHECK_NOTHING_LIVES();
}

/* A read by the host is named with its place, and with the op that has made the value. */
TEST(refusals_name_op_and_place) {
    fl_scope s = fl_scope_begin();
    fl_graph *g = fl_graph_new();
    fl_tensor *x = fl_ones(FL_SHAPE(3), FL_F32);
    for (int made = 0; made < 3; made++) {
        CHECK(fl_graph_begin(g));
        fl_site_push("net.c", 41);
        fl_tensor *y = made ? fl_sum(x, FL_ALL_AXES) : fl_select(x, 0, 1);
        fl_site_pop(NULL);
        fl_site_push("net.c", 42);
        const double value = made < 2 ? fl_item(y) : fl_rng_uniform(NULL);
        fl_site_pop(NULL);
        CHECK(fl_graph_end(g) && value <= 3 && !fl_graph_ready(g));
        CHECK_STR(fl_graph_reason(g), made < 2
                                          ? "the host reads a tensor of shape [] in the step: at net.c:42"
                                          : "the host draws a random number: at net.c:42");
        if (made == 1) CHECK_STR(fl_graph_reason(g), "fl_sum at net.c:41: the host reads");
    }
    fl_graph_free(g);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

static void *replays(void *g) {
    CHECK(!fl_graph_replay(g));
    CHECK_ERROR("another thread has recorded the graph");
    CHECK(!fl_graph_end(g));
    CHECK_ERROR("does not record");
    return NULL;
}

static bool own_make(const fl_backend *self, fl_tensor *out, const fl_mem_info *info) {
    (void)self;
    return (out->buffer = fl_buffer_new((size_t)fl_numel(out) * fl_dtype_size(out->dtype), info)) != NULL;
}

TEST(calls_of_a_backend_that_makes_its_storage_run_at_once) {
    fl_backend own = *fl_backend_at(fl_backend_index("cpu"));
    own.name = "own";
    own.make = own_make;
    CHECK(fl_backend_use(&own, NULL));
    fl_tensor *x = fl_to(fl_ones(FL_SHAPE(3), FL_F32), "own");
    fl_graph *g = fl_graph_new();
    for (int i = 0; i < 3; i++) {
        fl_scope s = fl_scope_begin();
        CHECK(fl_graph_begin(g) && fl_assign_op(x, FL_OP_add, x, fl_num(1)));
        CHECK_EQ_INT(fl_lazy_calls().n, 0);
        CHECK(fl_graph_end(g) && !fl_graph_ready(g));
        CHECK_STR(fl_graph_reason(g), "a call runs at once, on a backend with storage of its own");
        fl_scope_end(&s);
    }
    CHECK_EQ_INT(fl_item(fl_sum(x, FL_ALL_AXES)), 12);
    fl_graph_free(g);
}

TEST(misuse_of_graphs) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_graph *g = fl_graph_new(), *other = fl_graph_new();
    CHECK(!fl_graph_end(g));
    CHECK_ERROR("fl_graph_end: the graph does not record");
    CHECK(!fl_graph_replay(g));
    CHECK_ERROR("fl_graph_replay: the graph is not ready: no step has been recorded");
    net n = net_new();
    for (int i = 0; i < 2; i++) {
        CHECK(fl_graph_begin(g));
        CHECK(!fl_graph_begin(g));
        CHECK_ERROR("this graph records already");
        CHECK(!fl_graph_begin(other));
        CHECK_ERROR("a graph of this thread records already");
        CHECK(!fl_graph_replay(g));
        CHECK_ERROR("it records");
        fl_graph_free(g);
        CHECK_ERROR("fl_graph_free: the graph records");
        net_step(&n);
        CHECK(fl_graph_end(g));
    }
    CHECK(fl_graph_ready(g) && fl_graph_replay(g));
    pthread_t t;
    REQUIRE(pthread_create(&t, NULL, replays, g) == 0);
    pthread_join(t, NULL);
    fl_seed(8);
    CHECK(!fl_graph_replay(g));
    CHECK_ERROR("the generator has another key");
    fl_seed(3);
    CHECK(fl_graph_replay(g));
    fl_graph_free(g);
    g = fl_graph_new();
    fl_tensor *x = fl_keep(fl_ones(FL_SHAPE(2), FL_F32)), *y = NULL;
    fl_scope_end(&s);
    s = fl_scope_begin();
    for (int i = 0; i < 2; i++) {
        CHECK(fl_graph_begin(g));
        y = fl_add(x, fl_num(1));
        CHECK(fl_graph_end(g));
    }
    fl_drop(x);
    CHECK_STR(fl_graph_reason(g), "");
    CHECK(fl_graph_ready(g) && !fl_graph_replay(g) && y);
    CHECK_ERROR("an input of fl_add has been freed");
    CHECK(!fl_graph_begin(NULL));
    CHECK_ERROR("the graph is NULL");
    CHECK(!fl_graph_end(NULL));
    CHECK_ERROR("the graph is NULL");
    CHECK(!fl_graph_replay(NULL));
    CHECK_ERROR("the graph is NULL");
    fl_graph_free(NULL);
    fl_graph_free(g), fl_graph_free(other);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- plans ---- */

TEST(plans_of_memory_do_not_overlap) {
    uint64_t state = 1;
    for (int round = 0; round < 300; round++) {
        fl_plan_value v[60];
        int64_t most = 0;
        const int n = 1 + round % 60;
        for (int i = 0; i < n; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            v[i] = (fl_plan_value){.bytes = (int64_t)(state >> 50), .first = (int)(state >> 33) % 40};
            v[i].last = v[i].first + (int)(state >> 40) % 9;
        }
        const int64_t bytes = fl_plan_memory(v, n);
        for (int i = 0; i < n; i++) {
            CHECK(v[i].offset >= 0 && v[i].offset % FL_ALIGN == 0 &&
                  v[i].offset + v[i].bytes + FL_ALIGN <= bytes);
            for (int k = 0; k < i; k++)
                CHECK(v[i].last < v[k].first || v[k].last < v[i].first ||
                      v[i].offset + v[i].bytes + FL_ALIGN <= v[k].offset ||
                      v[k].offset + v[k].bytes + FL_ALIGN <= v[i].offset);
        }
        for (int at = 0; at < 50; at++) { /* at least what lives at one time */
            int64_t live = 0;
            for (int i = 0; i < n; i++) live += v[i].first <= at && at <= v[i].last ? v[i].bytes : 0;
            most = live > most ? live : most;
        }
        CHECK(bytes >= most);
    }
    CHECK_EQ_INT(fl_plan_memory(NULL, 0), 0);
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
