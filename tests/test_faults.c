/* test_faults.c - memory that runs out at every request of a training step, and for good

   A step of the MNIST network is run with the n-th request for memory failing, for every n: of the
   memory manager and of the heap, once and for ever, with a handler that returns and with one that
   leaves by longjmp. Nothing may crash or leak, and the same step, repeated, must give the bits of
   an undisturbed run. The same for the jobs of fault_scenarios.h, each on a thread that has nothing
   cached. */
#include "../fl_backend.h"
#include "../examples/digits.h"
#include "fault_scenarios.h"
#include "test.h"

#include <pthread.h>
#include <setjmp.h>
#include <sys/resource.h>

/* The first request that fails, and how many lie between it and the next. */
static int64_t first = 1;
#ifdef TEST_SANITIZED
static int64_t every = 9;
enum { EVERY_LARGE = 33 };
#else
static int64_t every = 1;
enum { EVERY_LARGE = 5 };
#endif

/* ---- a step of training, repeatable ---- */

typedef struct training {
    fl_nn_module *net;
    fl_optim *optim;
    fl_tensor *x, *target;
    fl_tensor *saved[16]; /* parameters before the step */
    fl_rng rng;
    int64_t live, buffers;
} training;

/* The layers of digits_net, smaller. */
static fl_nn_module *small_net(void) {
    return fl_nn_sequential(
        fl_nn_view(FL_SHAPE(-1, 1, 8, 8)), fl_nn_conv2d(1, 3, 5, .pad = FL_SAME), fl_nn_relu(),
        fl_nn_pool2d(2), fl_nn_conv2d(3, 4, 5, .pad = FL_SAME), fl_nn_relu(), fl_nn_pool2d(2),
        fl_nn_view(FL_SHAPE(-1, 2 * 2 * 4)), fl_nn_linear(2 * 2 * 4, 8), fl_nn_relu(),
        fl_nn_dropout(0.5), fl_nn_linear(8, 10), fl_nn_log_softmax(1));
}

static training training_new(fl_nn_module *net, int64_t side) {
    training t = {.net = net};
    fl_scope s = fl_scope_begin();
    fl_rng rng = {3, 0};
    t.optim = fl_optim_sgd(fl_nn_parameters(net), .lr = 0.1, .momentum = 0.9);
    t.x = fl_keep(fl_uniform(FL_SHAPE(2, side, side), -1, 1, FL_F32, &rng));
    t.target = fl_keep(fl_randint(FL_SHAPE(2), 0, 10, &rng));
    const fv_list p = fl_nn_parameters(net);
    CHECK(p.n == 8);
    for (int i = 0; i < p.n; i++) t.saved[i] = fl_keep(fl_clone(fv_value(p.v[i])));
    fl_scope_end(&s);
    t.rng = fl_rng_state();
    return t;
}

static void training_free(training *t) {
    for (int i = 0; i < 16; i++) fl_drop(t->saved[i]);
    fl_drop(t->x);
    fl_drop(t->target);
    fl_optim_free(t->optim);
    fl_nn_free(t->net);
}

/* Back to before the first step. */
static void rewind_training(training *t) {
    fl_scope s = fl_scope_begin();
    for (int64_t i = 0; i < t->optim->n; i++) {
        fl_optim_slot *slot = &t->optim->slot[i];
        CHECK(fl_assign(fv_value(slot->param), t->saved[i]));
        for (int k = 0; k < FL_OPTIM_STATES; k++)
            if (slot->state[k]) CHECK(fl_assign(slot->state[k], fl_num(0)));
        CHECK(fl_assign(slot->steps, fl_num(0)));
    }
    fl_optim_zero_grad(t->optim);
    fl_rng_set_state(t->rng);
    fl_scope_end(&s);
}

static double step(training *t) {
    fl_scope s = fl_scope_begin();
    fl_optim_zero_grad(t->optim);
    fl_var *loss = fv_nll_loss(fl_nn_forward(t->net, fv_const(t->x)), t->target);
    const bool ok = fl_backward(loss) && fl_optim_step(t->optim);
    const double value = ok ? fl_item(fv_value(loss)) : (double)NAN;
    fl_scope_end(&s);
    return value;
}

static uint64_t hash_tensor(uint64_t h, fl_tensor *t) {
    if (!t) return h;
    const unsigned char *p = fl_map(t, FL_READ); /* a device's needs memory, which may be what fails */
    if (!p) return 0;
    const int64_t n = fl_numel(t) * (int64_t)fl_dtype_size(t->dtype);
    for (int64_t i = 0; i < n; i++) h = (h ^ p[i]) * 1099511628211u;
    fl_unmap(t, FL_READ);
    return h;
}

/* Of parameters, optimizer state and gradients. */
static uint64_t hash_training(const training *t) {
    uint64_t h = 1469598103934665603u;
    for (int64_t i = 0; i < t->optim->n; i++) {
        h = hash_tensor(h, fv_value(t->optim->slot[i].param));
        h = hash_tensor(h, fv_grad(t->optim->slot[i].param));
        for (int k = 0; k < FL_OPTIM_STATES; k++) h = hash_tensor(h, t->optim->slot[i].state[k]);
    }
    return h;
}

/* ---- faults ---- */

static struct {
    int64_t countdown; /* the request that fails; 0: none */
    bool for_ever;
    int64_t blocks, failed;
} heap;

static void *faulty_heap(void *user, void *p, size_t bytes) {
    (void)user;
    if (!bytes) {
        if (p) __atomic_sub_fetch(&heap.blocks, 1, __ATOMIC_RELAXED);
        free(p);
        return NULL;
    }
    const int64_t left = __atomic_load_n(&heap.countdown, __ATOMIC_RELAXED);
    if (left > 0 && __atomic_sub_fetch(&heap.countdown, 1, __ATOMIC_RELAXED) <= 0) {
        if (heap.for_ever) __atomic_store_n(&heap.countdown, 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&heap.failed, 1, __ATOMIC_RELAXED);
        return NULL;
    }
    void *q = realloc(p, bytes);
    if (q && !p) __atomic_add_fetch(&heap.blocks, 1, __ATOMIC_RELAXED);
    return q;
}

static jmp_buf leave;
static int raised;
static void handler_returns(const char *text, void *user) {
    (void)user;
    raised += strlen(text) > 0;
}
static void handler_jumps(const char *text, void *user) {
    handler_returns(text, user);
    longjmp(leave, 1);
}

typedef struct sweep {
    bool heap, for_ever, jumps;
    int64_t every;
} sweep;

typedef enum outcome { REPORTED, ABSORBED, UNDISTURBED } outcome;

/* One step with fault n: an error, or a request that failed and was served after caches were
   trimmed, or fewer requests than n. */
static outcome faulty_step(training *t, const sweep *w, int64_t n, double *loss) {
    static fl_mem_manager *failing, *before;
    fl_scope s = fl_scope_begin();
    raised = 0;
    fl_set_error_handler(w->jumps ? handler_jumps : handler_returns, NULL);
    heap.failed = 0;
    if (w->heap) {
        heap.for_ever = w->for_ever;
        heap.countdown = n;
    } else {
        failing = fl_mem_failing(NULL, n, w->for_ever);
        before = fl_mem_set_current(failing);
    }
    *loss = (double)NAN;
    if (!setjmp(leave)) *loss = step(t);
    heap.countdown = 0;
    if (!w->heap) fl_mem_set_current(before);
    fl_set_error_handler(handler_returns, NULL);
    const bool reported = fl_error() || isnan(*loss);
    if (reported) {
        CHECK_STR(fl_error(), "out of memory");
        CHECK_EQ_INT(raised, 1);
    }
    fl_error_clear();
    fl_scope_end(&s);
    fl_optim_zero_grad(t->optim);
    if (!w->heap) fl_mem_close(failing);
    return reported ? REPORTED : heap.failed ? ABSORBED : UNDISTURBED;
}

/* A fault in the middle of a step, then the step again: the bits of an undisturbed one, and nothing
   more alive. */
static bool survives(training *t, const sweep *w, int64_t n, uint64_t want, double want_loss,
                     outcome *o) {
    double loss;
    const int failures = test__failures;
    rewind_training(t);
    *o = faulty_step(t, w, n, &loss);
    if (*o != REPORTED) CHECK(loss == want_loss);
    CHECK_EQ_INT(fl_live_tensors(), t->live);
    CHECK_EQ_INT(test_live_buffers(), t->buffers);
    CHECK(fl_grad_enabled() && fl_threads() > 0);
    rewind_training(t);
    CHECK(step(t) == want_loss && hash_training(t) == want);
    CHECK_NO_ERROR();
    return test__failures == failures;
}

static void run_sweep(training *t, const sweep *w) {
    rewind_training(t);
    const double loss = step(t);
    const uint64_t want = hash_training(t);
    fl_optim_zero_grad(t->optim);
    t->live = fl_live_tensors();
    t->buffers = test_live_buffers();
    CHECK(loss > 0 && loss < 10);
    outcome o = REPORTED;
    int64_t n = first, reported = 0;
    for (; o != UNDISTURBED && n < 20000; n += w->every) {
        if (w->heap) fl_mem_trim(); /* empty caches: as many requests as possible */
        const bool good = survives(t, w, n, want, loss, &o);
        reported += o == REPORTED;
        if (good) continue;
        printf("  request %lld of the %s, %s, handler %s\n", (long long)n,
               w->heap ? "heap" : "memory manager", w->for_ever ? "for ever" : "once",
               w->jumps ? "jumps" : "returns");
        break;
    }
    CHECK_EQ_INT(o, UNDISTURBED);
    CHECK(n > 15 && reported > 0);
}

static void run_sweeps(fl_nn_module *net, int64_t side, bool of_heap, int64_t step) {
    fl_seed(11);
    fl_heap_use(faulty_heap, NULL);
    fl_set_error_handler(handler_returns, NULL);
    training t = training_new(net, side);
    for (int i = 0; i < 4; i++) run_sweep(&t, &(sweep){of_heap, i & 1, i & 2, step});
    training_free(&t);
    CHECK_EQ_INT(fl_live_tensors(), 0);
    CHECK_EQ_INT(test_live_buffers(), 0);
}

TEST(the_memory_manager_fails_anywhere) { run_sweeps(small_net(), 8, false, every); }

/* The free lists of objects and records are warm: a step asks the heap for little. */
TEST(the_heap_fails_anywhere) { run_sweeps(small_net(), 8, true, every); }

TEST(the_memory_manager_fails_the_mnist_net) {
    if (fl_backend_default() > 0) SKIP("the mnist net: a small one is enough for this backend");
    fl_nn_module *net = digits_net();
    run_sweeps(net, 28, false, EVERY_LARGE);
}

/* A thread that has just begun has nothing cached: every object comes from the heap. */
static double cold_loss;
static bool cold_complete;

static void *cold_step(void *arg) {
    training *t = arg;
    fl_scope s = fl_scope_begin();
    cold_loss = step(t);
    cold_complete = !fl_error() && !heap.failed;
    fl_error_clear();
    fl_scope_end(&s);
    return NULL;
}

TEST(the_heap_fails_a_cold_thread) {
    fl_seed(11);
    fl_heap_use(faulty_heap, NULL);
    fl_set_error_handler(handler_returns, NULL);
    training t = training_new(small_net(), 8);
    const double want_loss = step(&t);
    const uint64_t want = hash_training(&t);
    fl_optim_zero_grad(t.optim);
    const int64_t live = fl_live_tensors(), buffers = test_live_buffers();
    int64_t n = first;
    for (cold_complete = false; !cold_complete && n < 20000; n += every) {
        pthread_t thread;
        rewind_training(&t);
        fl_mem_trim();
        heap.for_ever = n & 1;
        heap.failed = 0;
        heap.countdown = n;
        const int made = pthread_create(&thread, NULL, cold_step, &t);
        REQUIRE(made == 0);
        pthread_join(thread, NULL);
        heap.countdown = 0;
        fl_optim_zero_grad(t.optim);
        CHECK_EQ_INT(fl_live_tensors(), live);
        if (!CHECK_EQ_INT(test_live_buffers(), buffers)) break;
        rewind_training(&t);
        if (!CHECK(step(&t) == want_loss && hash_training(&t) == want)) break;
    }
    CHECK(cold_complete && n > 20);
    training_free(&t);
    CHECK(fl_live_tensors() == 0 && test_live_buffers() == 0);
}

/* Making the network and the optimizer fails anywhere too. */
TEST(memory_fails_the_makers) {
    fl_heap_use(faulty_heap, NULL);
    fl_set_error_handler(handler_returns, NULL);
    fl_nn_free(small_net()); /* the thread's stacks */
    for (int source = 0; source < 2; source++) {
        bool made = false;
        int64_t n = first;
        for (; !made && n < 5000; n += every) {
            fl_scope s = fl_scope_begin();
            fl_mem_manager *failing = source ? fl_mem_failing(NULL, n, n & 1) : NULL,
                           *before = NULL;
            if (failing) before = fl_mem_set_current(failing);
            heap.for_ever = n & 1;
            heap.failed = 0;
            heap.countdown = source ? 0 : n;
            fl_nn_module *net = small_net();
            fl_optim *optim = net ? fl_optim_adam(fl_nn_parameters(net)) : NULL;
            heap.countdown = 0;
            if (failing) fl_mem_set_current(before);
            made = optim && !heap.failed;
            if (!CHECK((optim == NULL) == (fl_error() != NULL)))
                printf("  request %lld of %d: %s\n", (long long)n, source,
                       fl_error() ? fl_error() : "no error");
            fl_error_clear();
            fl_optim_free(optim);
            fl_nn_free(net);
            fl_scope_end(&s);
            fl_mem_close(failing);
            if (!CHECK(fl_live_tensors() == 0 && test_live_buffers() == 0)) break;
        }
        CHECK(made && n > 10);
    }
}

/* ---- jobs of every kind ---- */

typedef struct job {
    int scenario;
    fl_tensor *x;
    uint64_t hash; /* of the result; 0: it failed */
    bool reported; /* with an error that says why */
    char why[200];
} job;

/* Runs on a thread of its own, so that every object comes from the heap. */
static void *run_job(void *arg) {
    job *j = arg;
    fl_scope s = fl_scope_begin();
    fl_tensor *t = scenarios[j->scenario].run(j->x);
    fl_tensor *dense = t ? fl_contiguous(t) : NULL;
    heap.countdown = 0;
    j->hash = dense ? hash_tensor(1469598103934665603u, dense) : 0;
    snprintf(j->why, sizeof j->why, "%s", fl_error() ? fl_error() : "");
    j->reported = strstr(j->why, "out of memory");
    fl_error_clear();
    fl_scope_end(&s);
    return NULL;
}

static bool run_thread(job *j) {
    pthread_t thread;
    fl_mem_trim();
    return CHECK(pthread_create(&thread, NULL, run_job, j) == 0 && !pthread_join(thread, NULL));
}

/* With request n failing: of the heap, or of the memory manager. */
static bool run_faulty(job *j, bool of_heap, bool for_ever, int64_t n) {
    fl_mem_manager *failing = of_heap ? NULL : fl_mem_failing(NULL, n, for_ever), *before = NULL;
    if (failing) before = fl_mem_set_current(failing);
    heap.failed = 0;
    heap.for_ever = for_ever;
    heap.countdown = of_heap ? n : 0;
    const bool ran = run_thread(j);
    if (failing) fl_mem_set_current(before);
    fl_mem_close(failing);
    return ran;
}

static void rewrite(void) {
    float data[24];
    for (int i = 0; i < 24; i++) data[i] = (float)(i * i) - 50;
    CHECK(fl_set_host(written, data, sizeof data));
}

/* What is alive and what `written` holds, for before and after. */
typedef struct state {
    int64_t live, buffers;
    uint64_t written;
} state;
static state state_now(void) {
    const uint64_t hash = hash_tensor(1, written); /* what waits on a device has run then */
    return (state){fl_live_tensors(), test_live_buffers(), hash};
}

/* All faults of one kind in one scenario; returns how many. */
static int64_t sweep_scenario(job *j, bool of_heap, bool for_ever) {
    rewrite();
    const state before = state_now();
    if (!run_thread(j) || !CHECK(j->hash != 0)) return printf("  %s\n", j->why), 0;
    const uint64_t want = j->hash;
    const state after = state_now();
    int64_t n = first, failed = 0;
    for (;; n += every) {
        rewrite();
        if (!run_faulty(j, of_heap, for_ever, n)) break;
        const state now = state_now();
        const bool complete = j->hash != 0;
        failed += !complete;
        bool good = CHECK(complete ? j->hash == want : j->reported);
        good &= CHECK(now.written == after.written || (!complete && now.written == before.written));
        good &= CHECK_EQ_INT(now.live, before.live) && CHECK_EQ_INT(now.buffers, before.buffers);
        rewrite();
        good &= run_thread(j) && CHECK(j->hash == want);
        if (!good) printf("  request %lld of the %s%s\n", (long long)n, of_heap ? "heap" : "memory manager",
                          for_ever ? ", for ever" : "");
        if (!good || (complete && !heap.failed)) break;
    }
    return failed;
}

TEST(memory_fails_every_kind_of_job) {
    int64_t points = 0;
    char folder[] = P_tmpdir "/fl-faults-XXXXXX";
    REQUIRE(mkdtemp(folder) != NULL);
    snprintf(fault_file, sizeof fault_file, "%s/m", folder);
    fl_heap_use(faulty_heap, NULL);
    fl_set_error_handler(handler_returns, NULL);
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_uniform(FL_SHAPE(4, 6), 0.1, 1.9, FL_F32, &(fl_rng){21, 0});
    written = fl_zeros(FL_SHAPE(4, 6), FL_F32);
    REQUIRE(x && written);
    for (int i = 0; i < SCENARIOS; i++) {
        job j = {.scenario = i, .x = x};
        const int before = test__failures;
        for (int k = 0; k < 4; k++) points += sweep_scenario(&j, k & 1, k & 2);
        if (test__failures > before) printf("  in %s\n", scenarios[i].name);
    }
    fl_scope_end(&s);
    remove(fault_file);
    CHECK(remove(folder) == 0 && fl_live_tensors() == 0 && test_live_buffers() == 0);
    printf("%d scenarios, %lld points of failure\n", SCENARIOS, (long long)points);
    CHECK(SCENARIOS >= 40 && points * every >= 5000);
}

/* ---- a process that may have so many bytes only ---- */

#ifndef TEST_SANITIZED /* they map terabytes */
/* Lets this process have `more` bytes of address space than it has now. */
static bool limit_process(int64_t more) {
    long long pages = 0;
    if (fl_backend_default() > 0) return false;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%lld", &pages) != 1) pages = 0;
    if (f) fclose(f);
    const rlim_t most = (rlim_t)(pages * (int64_t)sysconf(_SC_PAGESIZE) + more);
    return pages && !setrlimit(RLIMIT_AS, &(struct rlimit){most, most});
}

TEST(a_limit_on_the_process_is_reported) {
    fl_set_error_handler(handler_returns, NULL);
    if (!limit_process(400 << 20)) SKIP("the cpu's memory, by /proc/self/statm");
    fl_scope s = fl_scope_begin();
    int64_t made = 0;
    for (int i = 0; i < 100 && fl_ones(FL_SHAPE(4 << 20), FL_F32); i++) made++;
    CHECK(made >= 4 && made < 100);
    CHECK_EQ_INT(raised, 1);
    CHECK_STR(fl_error(), "out of memory: asked for 16777216 bytes, in use ");
    long long in_use = -1;
    const char *at = fl_error() ? strstr(fl_error(), "in use ") : NULL;
    CHECK(at && sscanf(at, "in use %lld", &in_use) == 1);
    CHECK(in_use >= made * (16 << 20) && in_use < 400 << 20);
    fl_error_clear();
    CHECK(fl_ones(FL_SHAPE(1000), FL_F32)); /* small things still fit */
    fl_scope_end(&s);
    fl_scope again = fl_scope_begin();
    int64_t second = 0;
    for (int i = 0; i < 100 && fl_ones(FL_SHAPE(4 << 20), FL_F32); i++) second++;
    CHECK_EQ_INT(second, made); /* all of it came back */
    fl_error_clear();
    fl_scope_end(&again);
    CHECK(fl_live_tensors() == 0 && test_live_buffers() == 0);
}

/* Blocks of another size: what the caches hold is given back and the request tried again. */
TEST(caches_are_trimmed_before_memory_is_out) {
    fl_set_error_handler(handler_returns, NULL);
    if (!limit_process(400 << 20)) SKIP("the cpu's memory, by /proc/self/statm");
    for (int64_t mib = 40; mib <= 200; mib *= 2) {
        fl_scope s = fl_scope_begin();
        CHECK(fl_ones(FL_SHAPE(mib << 18), FL_F32));
        fl_scope_end(&s);
        CHECK_NO_ERROR();
    }
}

TEST(training_survives_the_limit) {
    fl_set_error_handler(handler_returns, NULL);
    fl_seed(4);
    training t = training_new(digits_net(), 28);
    const double want = step(&t);
    const uint64_t hash = hash_training(&t);
    if (!limit_process(300 << 20)) SKIP("the cpu's memory, by /proc/self/statm");
    fl_scope s = fl_scope_begin();
    fl_rng rng = {5, 0};
    fl_tensor *much =
        fl_uniform(FL_SHAPE(1 << 15, 28, 28), 0, 1, FL_F32, &rng); /* 98 MiB; its conv has 3 GiB */
    CHECK(much && !fl_nn_forward(t.net, fv_const(much)));
    CHECK_ERROR("out of memory: asked for 3288334336 bytes");
    fl_scope_end(&s);
    rewind_training(&t);
    CHECK(step(&t) == want && hash_training(&t) == hash);
    training_free(&t);
    CHECK(fl_live_tensors() == 0 && test_live_buffers() == 0);
}
#endif

int main(int argc, char **argv) {
    fl_set_error_handler(handler_returns, NULL);
    if (argc > 1 && fl_backend_index(argv[1]) > 0 && fl_backend_set_default(argv[1])) {
        every *= 23;
        first += getenv("SEED") ? atoll(getenv("SEED")) % every : 0;
        argc--, argv++;
    }
    fl_error_clear();
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
