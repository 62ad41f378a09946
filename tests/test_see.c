/* test_see.c - seeing what happens: costs, profiles, the first NaN, what is alive */
#include "../fl_all.h"
#include "test.h"
#include <pthread.h>
#include <setjmp.h>
#ifndef _WIN32
#include <sys/resource.h>
#include <signal.h>
#endif

#define CHECK_TEXT(text, want) CHECK(same_text(text, want))
static bool same_text(const char *text, const char *want) {
    if (!strcmp(text, want)) return true;
    printf("--- is\n%s--- should be\n%s---\n", text, want);
    return false;
}

/* A net of two layers, and a step of it. */
typedef struct job {
    fl_nn_module *net;
    fl_var *x;
} job;

static job job_new(void) {
    fl_rng rng = {7, 0};
    job j = {fl_nn_sequential(fl_nn_linear(4, 3, .rng = &rng), fl_nn_relu(), fl_nn_linear(3, 2, .rng = &rng)),
             NULL};
    fl_scope s = fl_scope_begin();
    j.x = fv_keep(fv_const(fl_uniform(FL_SHAPE(5, 4), -1, 1, FL_F32, &rng)));
    fl_scope_end(&s);
    return j;
}

static bool job_step(const job *j) {
    fl_scope s = fl_scope_begin();
    fl_nn_zero_grad(j->net);
    fl_var *y = fl_nn_forward(j->net, j->x);
    const bool ok = y && fl_backward(fv_mean(fv_mul(y, y), FL_ALL_AXES));
    fl_scope_end(&s);
    return ok;
}

static void job_free(job *j) {
    fl_nn_free(j->net);
    fv_drop(j->x);
}

/* ---- costs ---- */

static fl_cost seen_cost;
static fl_op seen_op;
static void note_cost(const fl_call *c, void *user) {
    (void)user;
    if (c->op != FL_OP_fill && c->op != FL_OP_copy) seen_cost = fl_call_cost(c), seen_op = c->op;
}

#define CHECK_COST(call, m, f, b) \
    do { \
        seen_op = 0; \
        CHECK((call) != NULL); \
        CHECK_EQ_INT(seen_cost.macs, m); \
        CHECK_EQ_INT(seen_cost.flops, f); \
        CHECK_EQ_INT(seen_cost.bytes, b); \
    } while (0)

TEST(costs_of_calls) {
    fl_scope s = fl_scope_begin();
    fl_tensor *a = fl_ones(FL_SHAPE(3, 4), FL_F32), *b = fl_ones(FL_SHAPE(4, 5), FL_F32);
    fl_tensor *x = fl_ones(FL_SHAPE(2, 3, 8, 8), FL_F32), *w = fl_ones(FL_SHAPE(6, 3, 3, 3), FL_F32);
    fl_tensor *row = fl_ones(FL_SHAPE(4), FL_F64);
    fl_call_hook(NULL, note_cost, NULL);
    CHECK_COST(fl_matmul(a, b), 60, 120, 4 * (12 + 20 + 15));
    CHECK_COST(fl_conv(x, w, NULL, .pad = {1, 1}), 2 * 6 * 64 * 27, 2 * 2 * 6 * 64 * 27,
               4 * (2 * 3 * 64 + 6 * 27 + 2 * 6 * 64));
    CHECK_COST(fl_add(fl_cast(a, FL_F64), row), 0, 12, 8 * (12 + 4 + 12)); /* a row is read once */
    CHECK_COST(fl_mul(a, fl_num(2)), 0, 12, 4 * 24);
    CHECK_COST(fl_sigmoid(a), 0, 4 * 12, 4 * 24); /* 1 / (1 + exp(-x)) */
    CHECK_COST(fl_sum(a, FL_AXES(0)), 0, 12, 4 * (12 + 4));
    fl_call_hook(NULL, NULL, NULL);
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

/* ---- watchers ---- */

static int watched[2], order_of[4], n_order;
static void watch_before(const fl_call *c, void *user) {
    (void)c;
    watched[*(int *)user]++;
    if (n_order < 4) order_of[n_order++] = *(int *)user;
}

static void *exp_on_a_thread(void *x) {
    fl_scope s = fl_scope_begin();
    fl_exp(x);
    fl_scope_end(&s);
    return x;
}

TEST(watchers_see_all_threads) {
    static int first = 0, second = 1;
    fl_call_watcher a = {.before = watch_before, .user = &first},
                    b = {.before = watch_before, .user = &second};
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(3), FL_F32);
    pthread_t t;
    fl_watch_calls(&a);
    fl_watch_calls(&b);
    fl_exp(x);
    CHECK(watched[0] == 1 && watched[1] == 1 && n_order == 2 && !order_of[0] && order_of[1]);
    fl_watch_calls(&a); /* goes to the end */
    fl_exp(x);
    CHECK(n_order == 4 && order_of[2] && !order_of[3]);
    REQUIRE(!pthread_create(&t, NULL, exp_on_a_thread, x));
    pthread_join(t, NULL);
    CHECK(watched[0] == 3 && watched[1] == 3);
    fl_unwatch_calls(&b);
    fl_unwatch_calls(&b);
    fl_exp(x);
    fl_unwatch_calls(&a);
    fl_exp(x);
    CHECK(watched[0] == 4 && watched[1] == 3);
    fl_scope_end(&s);
}

static void refuse_exp(const fl_call *c, void *user) {
    (void)user;
    if (c->op == FL_OP_exp) fl_fail("no exp today");
}

TEST(a_hook_may_refuse_a_call) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(3), FL_F32);
    fl_call_hook(NULL, refuse_exp, NULL);
    CHECK(fl_neg(x) && !fl_exp(x));
    CHECK_ERROR("no exp today");
    fl_call_hook(NULL, NULL, NULL);
    CHECK(fl_exp(x) != NULL);
    fl_scope_end(&s);
}

TEST(places_tell_what_runs) {
    fl_call_frame p[4];
    fl_scope s = fl_scope_begin();
    CHECK_EQ_INT(fl_call_stack(p, 4), 0);
    job j = job_new();
    fl_scope in = fl_scope_in(&j, NULL), deeper = fl_scope_begin(), second = fl_scope_in(&in, NULL);
    CHECK_EQ_INT(fl_call_stack(p, 4), 2);
    CHECK(p[0].at.of == &j && p[1].at.of == &in && p[0].number != p[1].number);
    CHECK_EQ_INT(fl_call_stack(p, 1), 1);
    const int64_t number = p[1].number;
    fl_scope_end(&second);
    second = fl_scope_in(&in, NULL);
    CHECK(fl_call_stack(p, 4) == 2 && p[1].number != number);
    fl_scope_end(&in);
    CHECK_EQ_INT(fl_call_stack(p, 4), 0);
    (void)deeper;
    job_free(&j);
    fl_scope_end(&s);
}

/* ---- profiles ---- */

/* Moves on by a microsecond whenever it is read. */
static int64_t tick(void *user) {
    return *(int64_t *)user += 1000;
}

static char text[20000];


/* Two steps by that clock: whole texts. */
TEST(tables_of_a_profile) {
    int64_t clock = 0;
    job j = job_new();
    CHECK(job_step(&j));
    REQUIRE(fl_profile_begin(0, .peak_flops = 1e9, .peak_bytes = FL_ZERO, .now = tick, .user = &clock));
    CHECK(job_step(&j) && job_step(&j));
    CHECK(fl_profile_format(text, sizeof text) == (int64_t)strlen(text));
    CHECK_EQ_INT(fl_profile_format(NULL, 0), (int64_t)strlen(text));
    fl_profile_end();
    CHECK_TEXT(
        text,
        "Profile: 0.028 ms in ops, of 0.085 ms; 1 threads\n"
        "Op             Calls  Forward ms  Backward ms    Share   GFLOP/s  of peak      GB/s  of "
        "peak  Slowest ms\n"
        "mul                6       0.002        0.004   21.4 %      0.01    1.0 %      0.10      "
        "  -       0.001  [5, 2] [5, 2] -> [5, 2]\n"
        "linear             4       0.004        0.000   14.3 %      0.09    9.0 %      0.17      "
        "  -       0.001  [5, 4] [3, 4] [3] -> [5, 3]\n"
        "div                4       0.002        0.002   14.3 %      0.00    0.1 %      0.01      "
        "  -       0.001  [] -> []\n"
        "linear_grad        4       0.000        0.004   14.3 %      0.12   12.0 %      0.21      "
        "  -       0.001  [5, 2] [5, 3] [2, 3] -> [5, 3] [2, 3] [2]\n"
        "relu               2       0.002        0.000    7.1 %      0.01    1.5 %      0.12      "
        "  -       0.001  [5, 3] -> [5, 3]\n"
        "sum                2       0.002        0.000    7.1 %      0.01    1.0 %      0.04      "
        "  -       0.001  [5, 2] -> []\n"
        "fill               2       0.002        0.000    7.1 %         -        -      0.00      "
        "  -       0.001  -> []\n"
        "add                2       0.000        0.002    7.1 %      0.01    1.0 %      0.12      "
        "  -       0.001  [5, 2] [5, 2] -> [5, 2]\n"
        "relu_grad          2       0.000        0.002    7.1 %      0.03    3.0 %      0.24      "
        "  -       0.001  [5, 3] [5, 3] [5, 3] -> [5, 3]\n"
        "Module              Calls  Forward ms  Backward ms    Share   GFLOP/s  of peak      GB/s  of peak\n"
        "no module               0       0.000        0.008   28.6 %      0.01    0.8 %      0.07        -\n"
        "fl_nn_linear '0'        2       0.002        0.002   14.3 %      0.12   12.0 %      0.20        -\n"
        "ReLU '1'                2       0.002        0.002   14.3 %      0.02    2.2 %      0.18        -\n"
        "fl_nn_linear '2'        2       0.002        0.002   14.3 %      0.09    9.0 %      0.17        -\n"
        "fl_nn_sequential        2       0.000        0.000    0.0 %         -        -         -        -\n");
    job_free(&j);
    CHECK_NO_ERROR();
}

/* The value of a key of an event that begins at p: its line has all of them. */
static double number_of(const char *p, const char *key) {
    const char *at = strstr(p, key), *end = strchr(p, '\n');
    return at && end && at < end ? strtod(at + strlen(key), NULL) : -1;
}

static char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    static char bytes[400000];
    bytes[fread(bytes, 1, sizeof bytes - 1, f)] = 0;
    fclose(f);
    return bytes;
}

/* Brackets and quotes close, and slices of a thread lie side by side or one within the other. */
static bool trace_is_sound(const char *json, int *slices) {
    char stack[100];
    int n = 0;
    bool in_text = false, ok = true;
    *slices = 0;
    for (const char *p = json; *p; p++) {
        if (in_text && *p == '\\') p++;
        else if (*p == '"') in_text = !in_text;
        else if (!in_text && strchr("{[", *p) && n < 100) stack[n++] = *p == '{' ? '}' : ']';
        else if (!in_text && strchr("}]", *p)) ok &= n > 0 && stack[--n] == *p;
    }
    for (const char *p = json; (p = strstr(p, "\"ph\":\"X\"")); p++, (*slices)++) {
        const char *line = p;
        while (line[-1] != '\n') line--;
        const double a = number_of(line, "\"ts\":"), b = a + number_of(line, "\"dur\":"),
                     t = number_of(line, "\"tid\":");
        for (const char *q = p + 1; (q = strstr(q, "\"ph\":\"X\"")); q++) {
            const char *other = q;
            while (other[-1] != '\n') other--;
            const double c = number_of(other, "\"ts\":"), d = c + number_of(other, "\"dur\":");
            if (t != number_of(other, "\"tid\":")) continue;
            const double e = 1e-4; /* of a nanosecond sums of microseconds know less */
            const bool apart = b <= c + e || d <= a + e,
                       within = (c >= a && d <= b + e) || (a >= c && b <= d + e);
            ok &= apart || within;
        }
    }
    return ok && !n && !in_text;
}

TEST(trace_of_a_profile) {
    int64_t clock = 0;
    int slices;
    job j = job_new();
    char path[] = "build/see_XXXXXX";
    REQUIRE(mkstemp(path) >= 0);
    REQUIRE(fl_profile_begin(0, .peak_flops = FL_ZERO, .peak_bytes = FL_ZERO, .now = tick, .user = &clock));
    CHECK(job_step(&j));
    CHECK(fl_profile_add("gpu \"0\"", "kernel\n", 1000, 5000));
    CHECK(fl_profile_save(path));
    const char *json = read_file(path);
    CHECK(trace_is_sound(json, &slices));
    CHECK_EQ_INT(slices, 14 + 9 + 1);
    CHECK_STR(
        json,
        "\n{\"name\":\"fl_nn_linear '0'\",\"cat\":\"module\",\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":1.000,"
        "\"dur\":2.000,\"args\":{\"bytes\":0}},\n{\"name\":\"linear\",\"cat\":\"op\",\"ph\":\"X\","
        "\"pid\":1,\"tid\":1,\"ts\":2.000,\"dur\":1.000,\"args\":{\"bytes\":200,\"flops\":120,"
        "\"shapes\":\"[5, 4] [3, 4] [3] -> [5, 3]\"}},\n");
    CHECK_STR(json, "\"cat\":\"op,backward\"");
    CHECK_STR(json, "{\"name\":\"memory in use\",\"cat\":\"memory\",\"ph\":\"C\",");
    CHECK_STR(json, "\"args\":{\"name\":\"gpu \\\"0\\\"\"}}");
    CHECK_STR(json,
              "{\"name\":\"kernel\\u000a\",\"cat\":\"device\",\"ph\":\"X\",\"pid\":1,\"tid\":1000,\"ts\":");
    fl_profile_end();
    remove(path);
    job_free(&j);
    CHECK_NO_ERROR();
}

TEST(profiles_one_at_a_time) {
    test_errors_return();
    job j = job_new();
    CHECK(!fl_profile_print() && fl_profile_format(text, 10) == -1);
    CHECK_ERROR("fl_profile_print: no profile is running");
    CHECK(!fl_profile_save("x") && !fl_profile_add("a", "b", 0, 1));
    CHECK_ERROR("fl_profile_save: no profile is running");
    REQUIRE(fl_profile_begin(3));
    CHECK(!fl_profile_begin(0));
    CHECK_ERROR("fl_profile_begin: a profile is running: call fl_profile_end first");
    CHECK(job_step(&j)); /* of which three events fit */
    CHECK(fl_profile_format(text, sizeof text) > 0);
    CHECK_STR(text, "fl_nn_linear '2'        1");
    CHECK_STR(text, "The trace lacks ");
    fl_profile_end();
    fl_profile_end();
    REQUIRE(fl_profile_begin(0, .sync = true)); /* nothing of the one before */
    CHECK(fl_profile_format(text, sizeof text) > 0 && !strstr(text, "linear"));
    fl_profile_end();
    job_free(&j);
    CHECK_NO_ERROR();
}

/* An op that fails by a jump, within a composition and within a module, leaves the profile in order. */
static jmp_buf leave;
static void jump(const char *message, void *user) {
    (void)message, (void)user;
    longjmp(leave, 1);
}
static fl_vars forward_fails(fl_nn_module *m, fl_vars in) {
    (void)m;
    fl_exp(fv_value(in.v[0]));
    fl_gather(fv_value(in.v[0]), 0, fl_from_host((int64_t[]){9}, FL_SHAPE(1, 1), FL_I64));
    return in;
}
TEST(a_profile_survives_a_jump) {
    int slices;
    job j = job_new();
    char path[] = "build/see_XXXXXX";
    fl_nn_module *bad = fl_nn_function("Bad", forward_fails, NULL, NULL);
    REQUIRE(mkstemp(path) >= 0);
    REQUIRE(fl_profile_begin(0, .peak_flops = FL_ZERO, .peak_bytes = FL_ZERO));
    fl_set_error_handler(jump, NULL);
    for (int i = 0; i < 30; i++) {
        fl_scope s = fl_scope_begin();
        if (!setjmp(leave)) fl_nn_forward(bad, j.x);
        fl_scope_end(&s);
        CHECK(fl_error());
        fl_error_clear();
    }
    fl_set_error_handler(NULL, NULL);
    CHECK(job_step(&j));
    CHECK(fl_profile_format(text, sizeof text) > 0 && strstr(text, "Bad                    30 "));
    CHECK(strstr(text, "fl_nn_linear '0'        1 "));
    CHECK(fl_profile_save(path) && trace_is_sound(read_file(path), &slices));
    CHECK_EQ_INT(slices, 30 * 3 + 23);
    fl_profile_end();
    remove(path);
    fl_nn_free(bad);
    job_free(&j);
}

/* ---- threads: for the thread sanitizer too ---- */

static bool double_it(fl_data_sample *sample, fl_rng *rng, void *user) {
    (void)rng, (void)user;
    return (sample->t[0] = fl_mul(sample->t[0], fl_num(2))) != NULL;
}

TEST(a_profile_of_prefetching_threads) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(40, 3), FL_F32);
    fl_data_set *set = fl_data_prefetch(fl_data_transform(fl_data_tensors(&x, 1), double_it, NULL), 3, 8);
    for (int round = 0; round < 3; round++) {
        REQUIRE(fl_profile_begin(0, .peak_flops = FL_ZERO, .peak_bytes = FL_ZERO));
        for (int64_t i = 0; i < 40; i++) {
            fl_data_sample sample;
            fl_scope one = fl_scope_begin();
            CHECK(fl_data_get(set, i, &sample));
            fl_scope_end(&one);
            if (i % 10 == 0) CHECK(fl_profile_format(text, sizeof text) > 0);
        }
        CHECK(fl_profile_format(text, sizeof text) > 0 && strstr(text, "\nmul "));
        fl_profile_end(); /* while workers may run */
    }
    fl_data_free(set);
    fl_scope_end(&s);
}

static void *make_and_drop(void *seed) {
    for (int i = 0; i < 200; i++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *t = fl_full(FL_SHAPE(1 + i % 7, 50), (double)(intptr_t)seed, FL_F32);
        fl_exp(t);
        if (i % 50 == 0) fl_alive_format(NULL, 0);
        fl_scope_end(&s);
    }
    return NULL;
}

TEST(tools_come_and_go_while_threads_work) {
    pthread_t t[3];
    for (intptr_t i = 0; i < 3; i++) REQUIRE(!pthread_create(&t[i], NULL, make_and_drop, (void *)i));
    for (int i = 0; i < 20; i++) {
        CHECK(fl_alive_begin());
        fl_detect_anomaly(FL_ANOMALY_NAN);
        REQUIRE(fl_profile_begin(0, .peak_flops = FL_ZERO, .peak_bytes = FL_ZERO));
        make_and_drop((void *)1);
        fl_profile_end();
        fl_detect_anomaly(0);
        fl_alive_end();
    }
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    fl_scope s = fl_scope_begin();
    CHECK(fl_alive_format(text, sizeof text) > 0);
    CHECK_TEXT(text, "Alive: 0 bytes in 0 buffers; scopes open on this thread: 1\n");
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

/* ---- the first NaN ---- */

TEST(the_first_nan) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_from_host((float[]){1, 4, -2, 9, 0, 0.5f}, FL_SHAPE(2, 3), FL_F32);
    CHECK_EQ_INT(fl_detect_anomaly(FL_ANOMALY_NAN), 0);
    CHECK(fl_log(fl_square(x)) && !fl_exp(fl_sqrt(x)));
    CHECK(!strcmp(fl_error(),
                  "fl_sqrt: result 0 has the first NaN, nan at [0, 2]: f32 [2, 3] in [0, 3], 1 NaN; "
                  "operand 0 f32 [2, 3] in [-2, 9]") ||
          !strcmp(fl_error(),
                  "fl_sqrt: result 0 has the first NaN, -nan at [0, 2]: f32 [2, 3] in [0, 3], 1 NaN; "
                  "operand 0 f32 [2, 3] in [-2, 9]"));
    fl_error_clear();
    CHECK(!fl_log(fl_transpose(x, 0, 1))); /* where it is, in a view of other strides */
    CHECK_ERROR(
        "at [2, 0]: f32 [3, 2] in [-0.693147, 2.19722], 1 NaN, 1 infinite; operand 0 f32 [3, 2] in [-2, 9]");
    CHECK(fl_full(FL_SHAPE(2), (double)NAN, FL_F32) && fl_add(x, fl_num((double)NAN))); /* it is named */
    fl_tensor *outside = fl_from_host((double[]){1, (double)NAN}, FL_SHAPE(2), FL_F64);
    CHECK(!fl_neg(outside));
    CHECK_ERROR("operand 0 f64 [2] in [1, 1], 1 NaN, which no checked call produced");
    CHECK_EQ_INT(fl_detect_anomaly(FL_ANOMALY_INF), FL_ANOMALY_NAN);
    CHECK(fl_neg(outside) && !fl_reciprocal(x));
    CHECK_ERROR("result 0 has the first infinity, inf at [1, 1]");
    fl_tensor *mask = fl_full(FL_SHAPE(2, 3), -(double)INFINITY, FL_F32);
    CHECK(fl_add(x, mask)); /* from an operand */
    fl_detect_anomaly(0);
    CHECK(fl_reciprocal(x) && fl_sqrt(x));
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

static fl_vars root_forward(fl_nn_module *m, fl_vars in) {
    (void)m;
    return FL_VARS(fv_sqrt(in.v[0]));
}

/* In backward it names the record and the module that made it: d sqrt(0) is infinite, times 0 it is NaN. */
TEST(the_first_nan_of_a_backward_pass) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = fl_nn_sequential(fl_nn_identity(), fl_nn_function("Root", root_forward, NULL, NULL));
    fl_var *x = fv_param(fl_from_host((float[]){4, 0}, FL_SHAPE(2), FL_F32));
    fl_detect_anomaly(FL_ANOMALY_NAN | FL_ANOMALY_INF);
    fl_var *y = fl_nn_forward(net, x);
    CHECK(y && !fl_backward(fv_sum(y, FL_ALL_AXES)));
    CHECK_STR(fl_error(),
              "Root '1': backward of sqrt: fl_sqrt's gradient: result 0 has the first infinity, inf at "
              "[1]: f32 [2] in [0.25, 0.25], 1 infinite; operand 0 ");
    fl_error_clear();
    fl_detect_anomaly(0);
    fl_nn_free(net);
    fl_scope_end(&s);
}

/* ---- what is alive ---- */

TEST(planted_leaks_are_listed) {
    job j = job_new();
    fl_tensor *kept[3];
    CHECK(fl_alive_begin());
    fl_scope outer = fl_scope_begin();
    for (int i = 0; i < 3; i++) {
        fl_mem_step();
        CHECK(job_step(&j)); /* leaves nothing but gradients */
        fl_nn_zero_grad(j.net);
        fl_scope s = fl_scope_begin();
        kept[i] = fl_keep(fl_exp(fl_ones(FL_SHAPE(10, 10), FL_F32)));
        fl_scope_end(&s);
        fl_scope_begin(); /* never ends */
        fl_arange(0, 7, 1, FL_F64);
    }
    CHECK(fl_alive_format(text, sizeof text) == (int64_t)strlen(text));
    fl_alive_end();
    CHECK_TEXT(text,
               "Alive: 1368 bytes in 6 buffers; scopes open on this thread: 4\n"
               "       Bytes  Buffers            Steps  Life     Op            Shape                 Made\n"
               "        1200        3       1 -      3  scope    exp           [10, 10]              \n"
               "         168        3       1 -      3  scope    iota          [7]                   \n");
    fl_scope_end(&outer);
    for (int i = 0; i < 3; i++) fl_drop(kept[i]);
    CHECK(fl_alive_format(text, sizeof text) > 0);
    CHECK_STR(text, "Alive: 0 bytes in 0 buffers");
    job_free(&j);
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

/* Of a module it says which. */
TEST(leaks_of_a_module_are_its_own) {
    test_errors_return();
    job j = job_new();
    CHECK(fl_alive_begin() && !fl_alive_begin());
    CHECK_ERROR("fl_alive_begin: recording is on already");
    fl_scope s = fl_scope_begin();
    fl_var *y = fv_keep(fl_nn_forward(j.net, j.x));
    fl_scope_end(&s);
    CHECK(fl_alive_format(text, sizeof text) > 0);
    CHECK_STR(text, "scope    linear        [5, 2]                fl_nn_linear '2'\n");
    fl_alive_end();
    fv_drop(y);
    job_free(&j);
}

/* ---- a heap that fails ---- */

static int64_t countdown;
static void *faulty_heap(void *user, void *p, size_t bytes) {
    (void)user;
    if (bytes) return countdown > 0 && !--countdown ? NULL : realloc(p, bytes);
    free(p);
    return NULL;
}

/* ---- gradients against differences ---- */

typedef struct wrong {
    int64_t at;   /* element whose gradient is off */
    double by;
    int calls;
} wrong;

static void wrong_back(fl_node *n, fl_var *dy) {
    const wrong *w = *(wrong *const *)fv_args(n);
    double off[6] = {0};
    off[w->at] = w->by;
    fl_var *g = fv_mul(dy, fv_mul(fv_num(2), fv_saved(n, 0)));
    fv_add_grad(n, 0, fv_add(g, fv_const(fl_from_host(off, FL_SHAPE(2, 3), FL_F64))));
}
static fl_var *wrong_square(fl_var *const *x, void *user) {
    ((wrong *)user)->calls++;
    return fv_record_args("square", fl_square(fv_value(x[0])), wrong_back, FV_IN(x[0]), FV_SAVE(x[0]), &user,
                          sizeof user);
}
static fl_var *product(fl_var *const *x, void *user) {
    (void)user;
    return fv_matmul(fv_tanh(x[0]), x[1]);
}
static fl_var *drifts(fl_var *const *x, void *user) {
    return fv_mul(x[0], fv_num((double)++*(int *)user));
}
static void drifting_back(fl_node *n, fl_var *dy) {
    static int passes;
    fv_add_grad(n, 0, fv_mul(dy, fv_num(1 + 1e-9 * ++passes)));
}
static fl_var *drifts_back(fl_var *const *x, void *user) {
    (void)user;
    return fv_record(fl_clone(fv_value(x[0])), drifting_back, FV_IN(x[0]), FV_NONE);
}

TEST(gradients_against_differences) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_rng rng = {3, 0};
    fl_var *a = fv_param(fl_uniform(FL_SHAPE(2, 3), -1, 1, FL_F64, &rng));
    fl_var *b = fv_param(fl_uniform(FL_SHAPE(3, 4), -1, 1, FL_F64, &rng)), *c = fv_const(fv_value(b));
    fl_tensor *before = fl_clone(fv_value(a));
    CHECK(fl_gradcheck(product, FV_LIST(a, b)));
    CHECK(fl_gradcheck(product, FV_LIST(a, c)));
    CHECK(fl_gradgradcheck(product, FV_LIST(a, b)));
    CHECK_NO_ERROR();
    CHECK(!fv_grad(a) && fl_item(fl_all(fl_eq(fv_value(a), before), FL_ALL_AXES)) == 1);
    wrong w = {4, 0, 0};
    CHECK(fl_gradcheck(wrong_square, FV_LIST(a), .user = &w));
    CHECK_EQ_INT(w.calls, 1 + 2 * 6);
    w.by = 0.25;
    CHECK(!fl_gradcheck(wrong_square, FV_LIST(a), .user = &w));
    CHECK_STR(fl_error(),
              "fl_gradcheck: d result[0, 0] / d input 0 [1, 1] is 0.25 by backward, 0 by differences");
    fl_error_clear();
    CHECK(fl_gradcheck(wrong_square, FV_LIST(a), .user = &w, .atol = 0.3));
    int n = 0;
    CHECK(!fl_gradcheck(drifts, FV_LIST(a), .user = &n));
    CHECK_ERROR("fl_gradcheck: d result[");
    CHECK(!fl_gradcheck(drifts_back, FV_LIST(a)));
    CHECK_ERROR("fl_gradcheck: two backward passes differ in the gradient of input 0");
    CHECK(!fl_gradcheck(product, FV_LIST(fv_param(fl_ones(FL_SHAPE(2), FL_F32)))));
    CHECK_ERROR("fl_gradcheck: input 0 is f32, expected f64, which finite differences need");
    double ja[8 * 6], jb[8 * 12], *j[] = {ja, jb};
    CHECK(fl_jacobian(product((fl_var *[]){a, b}, NULL), FV_LIST(a, b), j));
    for (int k = 0; k < 8; k++)
        for (int e = 0; e < 6; e++) {
            const double t = tanh(((double *)fl_data(fv_value(a)))[e]),
                         x = ((double *)fl_data(fv_value(b)))[e % 3 * 4 + k % 4];
            CHECK_NEAR(ja[k * 6 + e], k / 4 == e / 3 ? (1 - t * t) * x : 0, 1e-12);
        }
    fl_scope_end(&s);
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

/* ---- the tape ---- */

/* digraph name { statements }, each a node, an edge, an attribute or a subgraph; nodes of edges were named
   before. */
static bool dot_is_sound(const char *dot) {
    static char names[5000];
    int open = 0, edges = 0;
    char line[400], a[40], b[40];
    bool ok = !strncmp(dot, "digraph ", 8);
    *names = 0;
    for (const char *p = dot; *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : p + strlen(p)) {
        int quotes = 0;
        snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
        for (char *q = line; *q; q++) {
            if (*q == '\\' && q[1]) q++;
            else quotes += *q == '"';
            if (quotes % 2) continue;
            open += (*q == '{') - (*q == '}');
        }
        ok &= quotes % 2 == 0 && open >= 0;
        if (sscanf(line, " %39s -> %39[a-z0-9]", a, b) == 2) {
            char wanted[60];
            snprintf(wanted, sizeof wanted, " %s ", a);
            ok &= strstr(names, wanted) != NULL;
            snprintf(wanted, sizeof wanted, " %s ", b);
            ok &= strstr(names, wanted) != NULL;
            edges++;
        } else if (sscanf(line, " %39[a-z0-9] [", a) == 1 && strstr(line, "[label=")) {
            snprintf(names + strlen(names), sizeof names - strlen(names), " %s ", a);
        }
    }
    return ok && !open && edges > 0;
}

TEST(the_tape_as_a_graph) {
    test_errors_return();
    job j = job_new();
    fl_scope s = fl_scope_begin();
    fl_provenance_enable(1);
    fl_var *y = fv_sum(fl_nn_forward(j.net, j.x), FL_ALL_AXES);
    fl_provenance_enable(-1);
    CHECK(fl_tape_format(y, text, sizeof text, .name = fl_nn_param_path, .user = j.net) ==
          (int64_t)strlen(text));
    CHECK(dot_is_sound(text));
    CHECK_TEXT(text, "digraph tape {\n"
                     "  result [label=\"result\\nf32 []\", shape=box];\n"
                     "  n0 [label=\"sum\"];\n"
                     "  n3 [label=\"2.weight\\nf32 [2, 3]\", shape=box];\n"
                     "  n4 [label=\"2.bias\\nf32 [2]\", shape=box];\n"
                     "  n6 [label=\"0.weight\\nf32 [3, 4]\", shape=box];\n"
                     "  n7 [label=\"0.bias\\nf32 [3]\", shape=box];\n"
                     "  subgraph cluster_1 {\n  label=\"fl_nn_linear '2'\";\n"
                     "  n1 [label=\"linear\"];\n  }\n"
                     "  subgraph cluster_2 {\n  label=\"ReLU '1'\";\n"
                     "  n2 [label=\"relu\"];\n  }\n"
                     "  subgraph cluster_5 {\n  label=\"fl_nn_linear '0'\";\n"
                     "  n5 [label=\"linear\"];\n  }\n"
                     "  n0 -> result;\n"
                     "  n1 -> n0 [label=\"[5, 2]\"];\n"
                     "  n2 -> n1 [label=\"[5, 3]\"];\n"
                     "  n3 -> n1 [label=\"[2, 3]\"];\n"
                     "  n4 -> n1 [label=\"[2]\"];\n"
                     "  n5 -> n2 [label=\"[5, 3]\"];\n"
                     "  n6 -> n5 [label=\"[3, 4]\"];\n"
                     "  n7 -> n5 [label=\"[3]\"];\n"
                     "}\n");
    char path[] = "build/see_XXXXXX", command[100];
    REQUIRE(mkstemp(path) >= 0);
    CHECK(fl_tape_save(y, path) && dot_is_sound(read_file(path)));
    snprintf(command, sizeof command, "dot -Tsvg %s > /dev/null", path);
    if (!system("command -v dot > /dev/null 2>&1")) CHECK(system(command) == 0);
    else printf("  skipped: dot (graphviz) is absent\n");
    remove(path);
    CHECK(fl_tape_format(j.x, NULL, 0) > 0); /* nothing behind it */
    fl_heap_use(faulty_heap, NULL);
    for (int n = 1, ended = 0; !ended; n++) {
        countdown = n;
        ended = fl_tape_format(y, NULL, 0) > 0;
        if (!ended) CHECK_ERROR("out of memory");
    }
    for (int n = 1, ended = 0; !ended && n < 200; n++) {
        double ja[6], jb[2], *room[] = {ja, jb};
        countdown = n;
        ended = fl_jacobian(y, FV_LIST(fl_nn_get_param(j.net, "2.weight"), fl_nn_get_param(j.net, "2.bias")),
                            room);
        if (!ended) CHECK_ERROR("out of memory");
        else CHECK(jb[0] == 5 && jb[1] == 5);
    }
    countdown = 0;
    fl_scope_end(&s);
    job_free(&j);
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

/* ---- faults: memory at every request, a disk at every byte ---- */

static float sum_of_gradient(const job *j) {
    fl_scope s = fl_scope_begin();
    const float sum = (float)fl_item(fl_sum(fv_grad(fl_nn_get_param(j->net, "2.bias")), FL_ALL_AXES));
    fl_scope_end(&s);
    return sum;
}

/* Request n fails: the work goes on, and has the same results; what the tools say may lack something. */
TEST(tools_without_memory) {
    test_errors_return();
    fl_heap_use(faulty_heap, NULL);
    fl_set_threads(1);
    job j = job_new();
    CHECK(job_step(&j));
    const float want = sum_of_gradient(&j);
    int failed = 0;
    for (int n = 1; n < 200; n++) {
        fl_scope s = fl_scope_begin();
        int64_t clock = 0;
        countdown = n;
        const bool began =
            fl_profile_begin(0, .peak_flops = FL_ZERO, .peak_bytes = FL_ZERO, .now = tick, .user = &clock);
        fl_detect_anomaly(FL_ANOMALY_NAN);
        fl_alive_begin();
        const bool ok = job_step(&j);
        const bool listed = fl_alive_format(text, sizeof text) > 0;
        fl_alive_end();
        fl_detect_anomaly(0);
        failed += countdown == 0;
        countdown = 0;
        CHECK(ok || fl_error());
        CHECK(listed || fl_error());
        if (fl_error()) CHECK_STR(fl_error(), "out of memory");
        fl_error_clear();
        if (began) CHECK(fl_profile_format(text, sizeof text) > 0 && strstr(text, "Profile: "));
        fl_profile_end();
        CHECK(job_step(&j));
        CHECK(sum_of_gradient(&j) == want);
        fl_scope_end(&s);
    }
    CHECK(failed > 20);
    job_free(&j);
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

#ifndef _WIN32
TEST(traces_on_a_full_disk) {
    test_errors_return();
    job j = job_new();
    char folder[] = "build/see_XXXXXX", path[100], part[110];
    REQUIRE(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/t.json", folder);
    snprintf(part, sizeof part, "%s.part", path);
    REQUIRE(fl_profile_begin(0, .peak_flops = FL_ZERO, .peak_bytes = FL_ZERO));
    CHECK(job_step(&j) && fl_profile_save(path));
    const size_t size = strlen(read_file(path));
    CHECK(job_step(&j));
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    for (size_t n = 0; n <= size; n += 97) {
        limit = before;
        limit.rlim_cur = n;
        setrlimit(RLIMIT_FSIZE, &limit);
        const bool saved = fl_profile_save(path);
        setrlimit(RLIMIT_FSIZE, &before);
        CHECK(!saved);
        CHECK_ERROR("fl_profile_save: cannot write ");
        CHECK(strlen(read_file(path)) == size && access(part, F_OK)); /* the old one stays, whole */
    }
    CHECK(fl_profile_save(path) && strlen(read_file(path)) > size);
    CHECK(!fl_profile_save("no/folder/t.json"));
    CHECK_ERROR("fl_profile_save: cannot open no/folder/t.json.part: No such file or directory");
    memset(text, 'x', 2000);
    text[2000] = 0;
    CHECK(!fl_profile_save(text));
    CHECK_ERROR("fl_profile_save: the path is too long");
    fl_profile_end();
    remove(path);
    rmdir(folder);
    job_free(&j);
}
#endif

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
