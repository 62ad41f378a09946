/* examples/research/communication.c - fewer bytes between ranks: DiLoCo and an 8-bit all-reduce

   make research-communication [DATA=folder of MNIST] [ARGS="--steps 800 --inner 50 --mbits 100"]

   Four processes train one network, each on a quarter of the digits, in four ways:

     every step   the mean of the gradients, f32, after each step
     THC          the same by bytes. Each rank rotates its gradient (random signs, then Hadamard's matrix),
                  which makes its numbers about normal, and rounds them at random, without bias, to levels
                  that all ranks share: bytes are added as they travel, and no rank unpacks what it hands
                  on. What rounding lost is added to the next gradient. (Li et al., NSDI 2024.)
     DiLoCo       each rank takes `inner` steps of AdamW alone. Then the mean of what they changed is the
                  gradient of one step with Nesterov's momentum. (Douillard et al., arXiv 2311.08105.)
     DiLoCo, 3    the same, but rank 3 is killed in the middle: the others learn it from the failed call, form
                  a group of three, and repeat that round.

   An implementation of fl_dist.h counts bytes, and seconds of a network of so many Mbit/s and ms a message,
   and hands each exchange on. For another scheme write a function like thc_mean or outer_step. */
#include "fl_dist.h"
#include "../extend/training.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EVERY_STEP, THC, DILOCO, DILOCO_KILLED, WAYS, RANKS = 4, BATCH = 16 /* of a rank */, BLOCK = 4096 };
static const char *const way_name[WAYS] = {"every step", "THC, 8 bits", "DiLoCo", "DiLoCo, 3"};

static struct {
    const char *data;
    int64_t steps, inner;
    double mbits, ms; /* of the network: Mbit/s, and ms of each message */
} options = {.steps = 800, .inner = 50, .mbits = 100, .ms = 10};

/* What rank 0 of a way (hash: each rank) leaves in shared memory for the process that started it. */
typedef struct outcome {
    fl_data_curve loss;
    int ranks; /* at the end */
    double seconds, bytes, network; /* bytes sent; seconds of the network */
    uint64_t hash[RANKS];           /* of the weights */
} outcome;

static const fl_dist_impl *below;
static double bytes_sent, network_seconds;

static bool counted_exchange(void *self, int to, const void *out, size_t out_bytes, int from, void *in,
                             size_t in_bytes, uint64_t tag, double deadline) {
    const double most = fmax((double)out_bytes, (double)in_bytes); /* both ways at once; none are 0 bytes */
    bytes_sent += (double)out_bytes;
    network_seconds += options.ms / 1e3 + most * 8 / (options.mbits * 1e6);
    return below->exchange(self, to, out, out_bytes, from, in, in_bytes, tag, deadline);
}

/* The group of `size` ranks that meet in the folder `store`. */
static fl_dist_group *join(int rank, int size, const char *store) {
    static fl_dist_impl counted;
    if (!counted.name && (below = fl_dist_impl_named(NULL))) {
        counted = *below, counted.name = "counted", counted.exchange = counted_exchange;
        counted.run = NULL; /* of its collectives: fl composes them of exchanges */
        if (!fl_dist_impl_use(&counted)) return NULL;
    }
    return fl_dist_init(.impl = "counted", .rank = rank, .size = size, .store = store, .timeout = 120);
}

typedef struct rank_state {
    fl_dist_group *d;
    int rank;  /* in the first group */
    int64_t n; /* parameters, and zeros up to a multiple of BLOCK: the length of */
    float *flat, *lost, *start, *momentum;
    uint8_t *code;
    fl_nn_module *net;
    fl_optim *optim;
} rank_state;

/* x = op over the ranks of their n numbers x. */
static bool reduce(rank_state *r, void *x, int64_t n, fl_dtype dtype, fl_dist_reduction op) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_from_host(x, FL_SHAPE(n), dtype);
    const bool ok = t && fl_dist_all_reduce(r->d, t, .op = op) &&
                    fl_to_host(t, x, (size_t)n * fl_dtype_size(dtype));
    fl_scope_end(&s);
    return ok;
}

static bool mean(rank_state *r) { return reduce(r, r->flat, r->n, FL_F32, FL_DIST_AVG); }

static uint64_t mixed(uint64_t x) { /* of splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* x = H D x / sqrt(BLOCK), H of Hadamard, D of random signs; back: its inverse, D H x / sqrt(BLOCK). */
static void rotate(float *x, uint64_t seed, bool back) {
    for (int i = 0; !back && i < BLOCK; i++) x[i] *= mixed(seed + (uint64_t)i) & 1 ? -1 : 1;
    for (int half = 1; half < BLOCK; half *= 2)
        for (int i = 0; i < BLOCK; i += 2 * half)
            for (int k = i; k < i + half; k++) {
                const float a = x[k], b = x[k + half];
                x[k] = a + b, x[k + half] = a - b;
            }
    for (int i = 0; i < BLOCK; i++)
        x[i] *= (back && mixed(seed + (uint64_t)i) & 1 ? -1 : 1) / sqrtf(BLOCK);
}

/* flat = about the mean over ranks of flat. Levels 0 .. top are -most .. most; top * ranks fits a byte. */
static bool thc_mean(rank_state *r, int64_t step) {
    const int ranks = fl_dist_size(r->d), top = 255 / ranks;
    double square = 0;
    for (int64_t i = 0; i < r->n; i++) r->flat[i] += r->lost[i], square += (double)r->flat[i] * r->flat[i];
    if (!reduce(r, &square, 1, FL_F64, FL_DIST_MAX)) return false;
    /* Rotated numbers are about normal: 0.3 % of them are beyond 3 deviations, and are clipped. */
    const float most = 3 * (float)sqrt(square / (double)r->n) + 1e-30f, unit = 2 * most / (float)top;
    for (int64_t at = 0; at < r->n; at += BLOCK) {
        const uint64_t seed = mixed((uint64_t)(step * r->n + at)), own = mixed(seed + (uint64_t)r->rank + 1);
        float *x = r->flat + at, *lost = r->lost + at, sent[BLOCK];
        memcpy(lost, x, BLOCK * sizeof *x);
        rotate(x, seed, false);
        for (int i = 0; i < BLOCK; i++) {
            const float level = (fminf(fmaxf(x[i], -most), most) + most) / unit;
            const float draw = (float)(mixed(own + (uint64_t)i) >> 40) * 0x1p-24f;
            const int code = (int)fminf(level + draw, (float)top);
            r->code[at + i] = (uint8_t)code;
            sent[i] = (float)code * unit - most;
        }
        rotate(sent, seed, true);
        for (int i = 0; i < BLOCK; i++) lost[i] -= sent[i];
    }
    if (!reduce(r, r->code, r->n, FL_U8, FL_DIST_SUM)) return false;
    for (int64_t at = 0; at < r->n; at += BLOCK) {
        for (int i = 0; i < BLOCK; i++) r->flat[at + i] = (float)r->code[at + i] * unit / (float)ranks - most;
        rotate(r->flat + at, mixed((uint64_t)(step * r->n + at)), true);
    }
    return true;
}

/* Copies parameters (gradients: their gradients) to flat, or back. */
static bool copy(rank_state *r, bool gradients, bool back) {
    const fv_list p = fl_nn_parameters(r->net);
    float *at = r->flat;
    for (int64_t i = 0; i < p.n; i++) {
        fl_tensor *t = gradients ? fv_grad(p.v[i]) : fv_value(p.v[i]);
        const size_t bytes = t ? (size_t)fl_numel(t) * sizeof *at : 0;
        if (!t || !(back ? fl_set_host(t, at, bytes) : fl_to_host(t, at, bytes))) return false;
        at += fl_numel(t);
    }
    memset(at, 0, (size_t)(r->flat + r->n - at) * sizeof *at);
    return true;
}

/* The outer step of DiLoCo: start -= 0.7 (g + 0.9 m) with g = start - the mean of the ranks' weights and
   m = 0.9 m + g; weights = start. */
static bool outer_step(rank_state *r) {
    if (!copy(r, false, false) || !mean(r)) return false;
    for (int64_t i = 0; i < r->n; i++) {
        const float g = r->start[i] - r->flat[i];
        r->momentum[i] = 0.9f * r->momentum[i] + g;
        r->flat[i] = r->start[i] -= 0.7f * (g + 0.9f * r->momentum[i]);
    }
    return copy(r, false, true);
}

/* After a failed call: a group of those that are alive. */
static bool join_survivors(rank_state *r, const char *store) {
    const fl_dist_failure_info why = fl_dist_failure(r->d);
    const int ranks = fl_dist_size(r->d);
    char again[64];
    if (why.kind != FL_DIST_DEATH && why.kind != FL_DIST_BROKEN) return false;
    fl_error_clear();
    fl_dist_close(r->d);
    snprintf(again, sizeof again, "%s-again", store);
    mkdir(again, 0700); /* by the first who comes */
    return (r->d = join(r->rank - (r->rank > why.rank), ranks - 1, again)) != NULL;
}

/* The loss of the test digits, as another point of the curve. */
static bool evaluate(rank_state *r, digits test, int64_t step, outcome *to) {
    fl_scope s = fl_scope_begin();
    fl_no_grad(true);
    fl_data_sample b = {.n = 2, .t = {test.image, test.label}};
    const bool ok = digits_normalize(&b, NULL, NULL);
    fl_var *loss = ok ? fv_nll_loss(fl_nn_forward(r->net, fv_const(b.t[0])), b.t[1]) : NULL;
    if (loss) fl_data_curve_add(&to->loss, (double)step, fl_item(fv_value(loss)));
    fl_scope_end(&s);
    return loss != NULL;
}

/* Trains r->net, and leaves its weights in r->flat. */
static bool train(rank_state *r, int way, const char *store, outcome *to) {
    const int64_t drawn = BATCH * RANKS * (options.steps < 300 ? options.steps : 300);
    digits all, test;
    if (!(options.data ? digits_load(options.data, "train", &all) && digits_load(options.data, "t10k", &test)
                       : digits_draw(drawn, 1, &all) && digits_draw(1000, 2, &test)))
        return false;
    fl_data_set *set = digits_shard(all, 0, all.label->shape[0], BATCH * RANKS, 1, r->rank, RANKS);
    bool ok = set && copy(r, false, false);
    if (ok) memcpy(r->start, r->flat, (size_t)r->n * sizeof *r->flat);
    for (int64_t step = 1; ok && step <= options.steps; step++) {
        const bool ends_round = step % options.inner == 0 || step == options.steps;
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        const double start = fl_data_now();
        fl_optim_zero_grad(r->optim);
        ok = fl_data_get(set, (step - 1) % fl_data_size(set), &b) &&
             fl_backward(fv_nll_loss(fl_nn_forward(r->net, fv_const(b.t[0])), b.t[1]));
        if (ok && way < DILOCO)
            ok = copy(r, true, false) && (way == THC ? thc_mean(r, step) : mean(r)) && copy(r, true, true);
        ok = ok && fl_optim_step(r->optim);
        if (ok && way >= DILOCO && ends_round) {
            if (way == DILOCO_KILLED && r->rank == RANKS - 1 && step > options.steps / 2) raise(SIGKILL);
            ok = outer_step(r) || (join_survivors(r, store) && outer_step(r));
        }
        if (!r->rank) to->seconds += fl_data_now() - start;
        if (!r->rank && ends_round) ok = ok && evaluate(r, test, step, to);
        fl_scope_end(&s);
    }
    fl_data_free(set);
    return ok && copy(r, false, false);
}

/* The work of one rank; all of a way share `to`. */
static bool run_rank(int way, int rank, const char *store, outcome *to) {
    rank_state r = {.rank = rank, .d = join(rank, RANKS, store)};
    fl_seed(1);
    r.net = !r.d ? NULL : fl_nn_sequential(
        fl_nn_view(FL_SHAPE(-1, 1, 28, 28)), fl_nn_conv2d(1, 16, 5, .pad = FL_SAME), fl_nn_relu(),
        fl_nn_pool2d(2), fl_nn_conv2d(16, 32, 5, .pad = FL_SAME), fl_nn_relu(), fl_nn_pool2d(2),
        fl_nn_view(FL_SHAPE(-1, 7 * 7 * 32)), fl_nn_linear(7 * 7 * 32, 128), fl_nn_relu(),
        fl_nn_linear(128, 10), fl_nn_log_softmax(1));
    r.n = r.net ? (fl_nn_count(r.net) + BLOCK - 1) / BLOCK * BLOCK : 0;
    r.optim = r.net ? fl_optim_adamw(fl_nn_parameters(r.net), .lr = 1e-3) : NULL;
    r.flat = r.optim ? fl_heap_alloc((size_t)r.n * (4 * sizeof *r.flat + 1)) : NULL; /* zeros */
    if (r.flat) r.lost = r.flat + r.n, r.start = r.lost + r.n, r.momentum = r.start + r.n;
    r.code = r.flat ? (uint8_t *)(r.momentum + r.n) : NULL;
    const bool ok = r.flat && train(&r, way, store, to);
    if (!rank) to->ranks = fl_dist_size(r.d), to->bytes = bytes_sent, to->network = network_seconds;
    if (ok) to->hash[rank] = training_mix(TRAINING_HASH, r.flat, (size_t)r.n * sizeof *r.flat);
    else fprintf(stderr, "communication: rank %d: %s\n", rank, fl_error());
    fl_dist_close(r.d), fl_optim_free(r.optim), fl_nn_free(r.net);
    fl_heap_free(r.flat);
    return ok;
}

/* Runs the ranks of a way. True if all but the one that is killed end well, with the same weights. */
static bool run_way(int way, outcome *to) {
    char store[] = "/tmp/fl-communication-XXXXXX"; /* which the group removes */
    pid_t pid[RANKS];
    bool ok = mkdtemp(store) != NULL;
    for (int i = 0; ok && i < RANKS; i++)
        if (!(pid[i] = fork())) {
            fl_scope s = fl_scope_begin();
            const bool done = run_rank(way, i, store, to);
            fl_scope_end(&s);
            _exit(!done);
        }
    for (int i = 0, status = 1; ok && i < RANKS; i++) {
        const bool killed = way == DILOCO_KILLED && i == RANKS - 1;
        ok = waitpid(pid[i], &status, 0) == pid[i] &&
             (killed ? WIFSIGNALED(status) : status == 0 && to->hash[i] == to->hash[0]);
    }
    return ok && to->ranks == (way == DILOCO_KILLED ? RANKS - 1 : RANKS);
}

int main(int argc, char **argv) {
    bool small = false;
    const argument list[] = {
        {"data", .text = &options.data, .about = "a folder with MNIST's four files"},
        {"steps", .whole = &options.steps, .low = 2, .high = 1e6},
        {"inner", .whole = &options.inner, .low = 1, .high = 1e5, .about = "steps of a round"},
        {"mbits", .number = &options.mbits, .low = 1e-3, .high = 1e7, .about = "of the network, a second"},
        {"ms", .number = &options.ms, .low = 0, .high = 1e4, .about = "of the network, each message"},
        {"small", .on = &small, .about = "a few seconds"},
        {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    if (small) options.steps = 30, options.inner = 5;
    outcome *of = mmap(NULL, WAYS * sizeof *of, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool ok = of != MAP_FAILED;
    printf("%d ranks, %lld steps of %d digits (%s), %lld a round; a network of %g Mbit/s and %g ms\n\n"
           "%-12s %5s %9s %9s %9s %9s  hash of the weights\n",
           RANKS, (long long)options.steps, BATCH, options.data ? "MNIST" : "drawn here",
           (long long)options.inner, options.mbits, options.ms, "", "ranks", "MB sent", "network s", "wall s",
           "test loss");
    for (int way = 0; ok && way < WAYS; way++) {
        outcome *w = &of[way];
        w->loss.name = way_name[way];
        fflush(stdout); /* before fork */
        ok = run_way(way, w);
        printf("%-12s %5d %9.2f %9.2f %9.1f %9.4f  %016llx\n", w->loss.name, w->ranks, w->bytes / 1e6,
               w->network, w->seconds, w->loss.n ? w->loss.y[w->loss.n - 1] : (double)NAN,
               (unsigned long long)w->hash[0]);
    }
    char page[1024];
    snprintf(page, sizeof page, "%s.svg", argv[0]);
    ok = ok && fl_data_plot_svg(page, FL_DATA_CURVES(&of[0].loss, &of[1].loss, &of[2].loss, &of[3].loss),
                                .title = "loss of the test digits", .x_label = "step");
    printf("\n%s\n", ok ? page : "failed: see above");
    return !ok;
}
/* MIT licence: see LICENSE. */
