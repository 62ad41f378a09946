/* test_modes.c - the models of bench/models in every mode of execution: the bits of eager training

   Each tiny preset takes STEPS training steps (dropout on, Adam with clipping, a learning rate and a batch
   that change at each step, written into the same tensors) eagerly, deferred (fl_lazy), recorded at each step
   (fl_graph_begin, fl_graph_end) and replayed. Losses, weights, buffers, optimizer state, gradients and
   generator must be equal in every bit, and as many calls run. A model that cannot be replayed stands in
   `refusals`. Then the deferred modes once more with compiled kernels, and six models that mix the modes
   within a step in twelve ways. */
#include "../fl_backend.h"
#include "compiler.h"
#include "training.h"

#include <time.h>

/* ---- a training of the tiny preset ---- */

enum { STEPS = 5, LAUNCHED_STEPS = 8, HYBRID_STEPS = 9 };
extern int64_t cuda_emu_launches(void) __attribute__((weak));

/* What training must give alike in every mode. */
typedef struct bits {
    double loss[HYBRID_STEPS], gradient[HYBRID_STEPS]; /* the latter: numbers that hybrids read */
    uint64_t weights, state, gradients; /* digests; buffers belong to the weights */
    fl_rng generator;
} bits;

/* FNV-1a over the bytes of t, row-major. */
static bool digest(uint64_t *h, fl_tensor *t) {
    fl_scope s = fl_scope_begin();
    fl_tensor *c = fl_contiguous(t);
    const uint8_t *p = c ? fl_map(c, FL_READ) : NULL;
    for (size_t i = 0; p && i < (size_t)fl_numel(c) * fl_dtype_size(c->dtype); i++)
        *h = (*h ^ p[i]) * 0x100000001b3u;
    if (p) fl_unmap(c, FL_READ);
    fl_scope_end(&s);
    return p;
}

static uint64_t digest_state(const fl_nn_state *s) {
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < s->n; i++)
        if (s->item[i].tensor) CHECK(digest(&h, s->item[i].tensor));
    return h;
}

static void digest_all(training *t, bits *b) {
    fl_nn_state weights = {0}, state = {0};
    CHECK(fl_nn_state_add_module(&weights, "", t->net));
    CHECK(fl_optim_state(t->optim, "", &state));
    b->weights = digest_state(&weights);
    b->state = digest_state(&state);
    b->gradients = 0xcbf29ce484222325u;
    const fv_list p = fl_nn_parameters(t->net);
    for (int i = 0; i < p.n; i++)
        if (fv_grad(p.v[i])) CHECK(digest(&b->gradients, fv_grad(p.v[i])));
    b->generator = fl_rng_state();
    fl_nn_state_free(&weights);
    fl_nn_state_free(&state);
}

static bool same_bits(const bits *a, const bits *b, int steps) {
    bool same = CHECK(!memcmp(a->loss, b->loss, (size_t)steps * sizeof *a->loss));
    same &= CHECK(a->weights == b->weights);
    same &= CHECK(a->state == b->state);
    same &= CHECK_EQ_INT(a->generator.key, b->generator.key);
    same &= CHECK_EQ_INT(a->generator.counter, b->generator.counter);
    return same;
}

/* ---- whole steps in one mode ---- */

typedef enum mode { EAGER, LAZY, ROUNDS, REPLAYS, MODES } mode;
static const char *const mode_names[MODES] = {"eager", "lazy", "rounds", "replays"};

typedef struct outcome {
    bits bits;
    double ms;           /* processor time of a step, the least of the last two */
    int64_t peak, calls; /* bytes above the start in the last two steps; calls that ran in steps 3 and 4 */
    int64_t launches;    /* of the emulated device, in the last step */
    int replays;
    char reason[400];
} outcome;

static void count_call(const fl_call *c, void *calls) { (void)c, ++*(int64_t *)calls; }

/* Memory of tensors on the default backend. */
static fl_mem_manager *memory(void) {
    fl_scope s = fl_scope_begin();
    fl_mem_manager *m = fl_empty(FL_SHAPE(1), FL_F32)->buffer->device->manager;
    fl_scope_end(&s);
    return m;
}

/* Where steps can be launches, three more follow those that are watched: watched calls run one by one. */
static int steps(void) {
    return fl_backend_at(fl_backend_default())->replay ? LAUNCHED_STEPS : STEPS;
}

static double step_in(training *t, mode m, outcome *o) {
    fl_graph *g = t->graph[0];
    if (m == REPLAYS && fl_graph_ready(g)) {
        o->replays++;
        return CHECK(fl_graph_replay(g)) ? fl_item(t->loss) : (double)NAN;
    }
    fl_drop(t->loss);
    fl_lazy(m == LAZY);
    if (m >= ROUNDS) CHECK(fl_graph_begin(g));
    t->loss = step(t);
    if (m >= ROUNDS) CHECK(fl_graph_end(g));
    if (m == LAZY) CHECK(fl_lazy_calls().n > 0);
    const double loss = t->loss ? fl_item(t->loss) : (double)NAN;
    fl_lazy(false);
    return loss;
}

/* Watched calls are counted, and run one by one. */
static void train(const model *m, bool plain, mode in, bool watched, outcome *o) {
    training t;
    fl_call_watcher counter = {.before = count_call, .user = &o->calls};
    fl_scope s = fl_scope_begin();
    fl_mem_manager *const mem = memory();
    bool ok = CHECK(training_new(&t, m, plain));
    fl_mem_trim();
    const int64_t start = fl_mem_stats_of(mem).in_use;
    for (int i = 0; ok && i < steps(); i++) {
        ok = CHECK(prepare(&t, i));
        if (i == steps() - 2) fl_mem_stats_reset_peak(mem);
        if (watched && (i == 3 || i == 4)) fl_watch_calls(&counter);
        const int64_t launched = cuda_emu_launches ? cuda_emu_launches() : 0;
        const clock_t from = clock();
        o->bits.loss[i] = step_in(&t, in, o);
        const double ms = 1e3 * (double)(clock() - from) / CLOCKS_PER_SEC;
        fl_unwatch_calls(&counter);
        if (i < steps() - 1 || ms < o->ms) o->ms = ms;
        if (cuda_emu_launches) o->launches = cuda_emu_launches() - launched;
        ok = CHECK_NO_ERROR() && ok;
    }
    o->peak = fl_mem_stats_of(mem).peak_in_use - start;
    snprintf(o->reason, sizeof o->reason, "%s", fl_graph_reason(t.graph[0]));
    digest_all(&t, &o->bits);
    training_free(&t);
    fl_scope_end(&s);
}

/* Models whose step a replay could not repeat: part of the reason, and what stands in it before the place in
   this file. lm looks for the rows of each band, detr reads its mask, and the scores by which it pairs boxes,
   asr leaves out layers at random. */
static const struct {
    const char *name;
    bool plain;
    const char *reason, *where;
} refusals[] = {{"lm", false, "fl_sum at ", "fl_nn_adaptive_embedding 'embedding' at "},
                {"detr", false, "the host reads a tensor of shape [2, 96, 96]", "DETR at "},
                {"detr", true, "fl_copy at ", "the host reads a tensor of shape [2, 6, 9] in the step: at "},
                {"asr", false, "the host draws a random number", "fl_nn_layer_drop 'layers' at "}};

static void check_replays(const model *m, bool plain, const outcome *o) {
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        if (strcmp(refusals[i].name, m->name) || refusals[i].plain != plain) continue;
        CHECK_EQ_INT(o->replays, 0);
        CHECK_STR(o->reason, refusals[i].reason);
        CHECK_STR(o->reason, refusals[i].where);
        CHECK_STR(o->reason, "training.h:");
        return;
    }
    CHECK_EQ_INT(o->replays, steps() - 2);
    CHECK_STR(o->reason, "");
}

/* Groups, steps and composed gradients as compiled kernels. */
__attribute__((unused)) static void check_compiled(const model *m, bool plain, const outcome *eager) {
    setenv("XDG_CACHE_HOME", "/dev/null", 1); /* no cache */
    fl_compile(FL_COMPILE_NOW);
    for (int k = LAZY; k < MODES; k++) {
        outcome o = {.calls = 0};
        train(m, plain, (mode)k, false, &o);
        if (!(same_bits(&o.bits, &eager->bits, steps()) & CHECK(o.bits.gradients == eager->bits.gradients)))
            printf("  %s, %s, compiled\n", m->name, mode_names[k]);
    }
    fl_compile(FL_COMPILE_NEVER);
    const fl_compile_counts c = fl_compile_stats();
    CHECK_EQ_INT(c.failed, 0);
    printf("  %s: %lld kernels in %lld files, %.0f ms\n", m->name, (long long)c.compiled, (long long)c.runs,
           1e3 * c.seconds);
}

static void check_modes(const model *m, bool plain) {
    static outcome o[MODES];
    for (int k = 0; k < MODES; k++) {
        /* rounds that are launches copy their results, gradients included */
        const double limit = k == REPLAYS ? 1.3 : k == ROUNDS && steps() > STEPS ? 2 : 1.1;
        train(m, plain, (mode)k, true, &o[k]);
        bool same = same_bits(&o[k].bits, &o[EAGER].bits, steps());
        same &= CHECK(o[k].bits.gradients == o[EAGER].bits.gradients);
        same &= CHECK_EQ_INT(o[k].calls, o[EAGER].calls);
        same &= CHECK((double)o[k].peak <= limit * (double)o[EAGER].peak);
        if (!same) printf("  %s, %s\n", m->name, mode_names[k]);
    }
    check_replays(m, plain, &o[REPLAYS]);
    printf("  %s%s: %lld calls", m->name, plain ? ", plain" : "", (long long)o[EAGER].calls / 2);
    for (int k = 0; k < MODES; k++) printf("%s %.2f", k ? "," : "; ms:", o[k].ms);
    for (int k = 1; k < MODES; k++)
        printf("%s %.3f", k > 1 ? "," : "; peak over eager:", (double)o[k].peak / (double)o[EAGER].peak);
    if (cuda_emu_launches)
        printf("; launches %lld, rounds %lld, replays %lld", (long long)o[EAGER].launches,
               (long long)o[ROUNDS].launches, (long long)o[REPLAYS].launches);
    printf("%s%s\n", *o[REPLAYS].reason ? "; " : "", o[REPLAYS].reason);
#ifndef TEST_SANITIZED
    if (!cuda_emu_launches && test_has_compiler()) check_compiled(m, plain, &o[EAGER]);
    else if (!cuda_emu_launches) printf("  skipped: kernels of %s (a C compiler called cc)\n", m->name);
#endif
    fl_eval(); /* under FL_MODE=lazy the last values of the host still wait */
    CHECK_NOTHING_LIVES();
}

TEST(alexnet) { check_modes(&model_alexnet, false); }
TEST(vgg16) { check_modes(&model_vgg16, false); }
TEST(resnet50) { check_modes(&model_resnet50, false); }
TEST(resnet34) { check_modes(&model_resnet34, false); }
TEST(bert) { check_modes(&model_bert, false); }
TEST(asr) { check_modes(&model_asr, false); }
TEST(asr_without_layer_drop) { check_modes(&model_asr, true); }
TEST(vit) { check_modes(&model_vit, false); }
TEST(lm) { check_modes(&model_lm, false); }
TEST(detr) { check_modes(&model_detr, false); }
TEST(detr_without_mask) { check_modes(&model_detr, true); }
TEST(capsule) { check_modes(&model_capsule, false); }
TEST(gpt_small) { check_modes(&model_gpt_small, false); }
TEST(unet) { check_modes(&model_unet, false); }
TEST(dcgan) { check_modes(&model_dcgan, false); }
TEST(wgan) { check_modes(&model_wgan, false); }
TEST(vit_tiny) { check_modes(&model_vit_tiny, false); }
TEST(lstm_lm) { check_modes(&model_lstm_lm, false); }

/* ---- modes mixed within a step ---- */

/* How a part of a step runs: in a graph of its own, in that of the part before, deferred, or deferred in a
   scope of its own, so that eager ops meet what still waits. */
typedef enum place { EAGERLY, LAZILY, LAZILY_IN_SCOPE, IN_GRAPH, IN_THE_SAME } place;

typedef struct hybrid {
    const char *name;
    place part[PARTS];              /* forward, backward, update */
    bool read_loss, read_gradient;  /* as soon as they are there */
    bool replay;                    /* the first graph, once it is ready */
    int eager;                      /* each step of that number runs eagerly; 0: none */
} hybrid;

static const hybrid hybrids[] = {
    {"eager", {EAGERLY}, true, true, false, 0},
    {"forward deferred", {LAZILY}, false, false, false, 0},
    {"forward deferred in a scope", {LAZILY_IN_SCOPE}, false, false, false, 0},
    {"backward deferred", {EAGERLY, LAZILY}, false, false, false, 0},
    {"update deferred in a scope", {EAGERLY, EAGERLY, LAZILY_IN_SCOPE}, false, false, false, 0},
    {"all deferred, loss read", {LAZILY, LAZILY, LAZILY}, true, false, false, 0},
    {"all deferred, gradient read", {LAZILY, LAZILY, LAZILY}, false, true, false, 0},
    {"every second step eager", {LAZILY, LAZILY_IN_SCOPE, LAZILY}, false, false, false, 2},
    {"forward in a graph", {IN_GRAPH, EAGERLY, LAZILY}, true, false, false, 0},
    {"backward in a graph", {LAZILY_IN_SCOPE, IN_GRAPH}, false, false, false, 0},
    {"three graphs", {IN_GRAPH, IN_GRAPH, IN_GRAPH}, true, true, false, 0},
    {"reads in a graph", {IN_GRAPH, IN_THE_SAME, IN_THE_SAME}, true, true, false, 0},
    {"replays, every third step eager", {IN_GRAPH, IN_THE_SAME, IN_THE_SAME}, false, false, true, 3},
};
enum { HYBRIDS = sizeof hybrids / sizeof *hybrids };

/* Runs part k; the loss is made by the first, and used by the second. */
static bool run_part(training *t, int k, place where, fl_var **loss) {
    if (where == LAZILY_IN_SCOPE) {
        fl_scope s = fl_scope_begin();
        fl_lazy(true);
        const bool ok = run_part(t, k, LAZILY, loss);
        if (k == 0) fv_scope_return(&s, *loss);
        else fl_scope_end(&s);
        return ok;
    }
    fl_lazy(where == LAZILY);
    if (where == IN_GRAPH && !CHECK(fl_graph_begin(t->graph[k]))) return false;
    if (k == 0) return (*loss = forward(t)) != NULL;
    return k == 1 ? backward(t, *loss) : update(t);
}

/* The sum of the squares of the first parameter's gradient. */
static double read_gradient(training *t) {
    fl_tensor *g = fv_grad(fl_nn_parameters(t->net).v[0]);
    return g ? fl_item(fl_sum(fl_square(g), FL_ALL_AXES)) : (double)NAN;
}

static bool hybrid_step(training *t, const hybrid *h, int i, bits *b) {
    const bool eager = h->eager && i % h->eager == h->eager - 1;
    if (h->replay && !eager && fl_graph_ready(t->graph[0])) {
        const bool ok = CHECK(fl_graph_replay(t->graph[0]));
        b->loss[i] = fl_item(t->loss);
        return ok;
    }
    fl_scope s = fl_scope_begin();
    fl_var *loss = NULL;
    fl_graph *open = NULL;
    bool ok = true;
    for (int k = 0; ok && k < PARTS; k++) {
        const place where = eager ? EAGERLY : h->part[k];
        if (where == IN_GRAPH) open = t->graph[k];
        ok = CHECK(run_part(t, k, where, &loss));
        const bool goes_on = k + 1 < PARTS && h->part[k + 1] == IN_THE_SAME;
        if (open && !goes_on) ok = CHECK(fl_graph_end(open)) && ok, open = NULL;
        if (k == 0 && h->read_loss) b->loss[i] = fl_item(fv_value(loss));
        if (k == 1 && h->read_gradient) b->gradient[i] = read_gradient(t);
    }
    fl_lazy(false);
    if (loss && !h->read_loss) b->loss[i] = fl_item(fv_value(loss));
    if (!eager || !h->replay) {
        fl_drop(t->loss);
        t->loss = loss ? fl_keep(fv_value(loss)) : NULL;
    }
    fl_scope_end(&s);
    return ok;
}

static bool train_hybrid(const model *m, const hybrid *h, bits *b) {
    training t;
    fl_scope s = fl_scope_begin();
    bool ok = CHECK(training_new(&t, m, false));
    for (int i = 0; ok && i < HYBRID_STEPS; i++)
        ok = CHECK(prepare(&t, i)) && hybrid_step(&t, h, i, b) && CHECK_NO_ERROR();
    if (h->replay) ok = CHECK(fl_graph_ready(t.graph[0])) && ok;
    digest_all(&t, b);
    training_free(&t);
    fl_scope_end(&s);
    return ok;
}

static void check_hybrids(const model *m) {
    static bits b[HYBRIDS];
    for (int k = 0; k < HYBRIDS; k++) {
        bool same = train_hybrid(m, &hybrids[k], &b[k]) && same_bits(&b[k], &b[0], HYBRID_STEPS);
        if (hybrids[k].read_gradient)
            same &= CHECK(!memcmp(b[k].gradient, b[0].gradient, sizeof b[0].gradient));
        if (!same) printf("  %s: %s\n", m->name, hybrids[k].name);
    }
    fl_eval(); /* under FL_MODE=lazy the last values of the host still wait */
    CHECK_NOTHING_LIVES();
}

TEST(hybrids_of_gpt_small) { check_hybrids(&model_gpt_small); }
TEST(hybrids_of_alexnet) { check_hybrids(&model_alexnet); }
TEST(hybrids_of_resnet50) { check_hybrids(&model_resnet50); }
TEST(hybrids_of_vit) { check_hybrids(&model_vit); }
TEST(hybrids_of_unet) { check_hybrids(&model_unet); }
TEST(hybrids_of_bert) { check_hybrids(&model_bert); }

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
