/* examples/research/beam_search.c - autograd over 10^7 scalars: a differentiable beam search

   make research-beam_search [ARGS="--frames 50000 --states 200 --steps 150 --beam 10"]

   The Flashlight paper (ICML 2022, section 5.2.1) names a workload that frameworks of tensors do not fit: the
   differentiable beam search decoder (Collobert, Hannun, Synnaeve, ICML 2019) builds a graph of millions of
   scalars for each step, whose shape depends on their values. Here that graph is a tape of its own
   (lattice.h), which fv_record_opt makes one node of fl's graph.

   1. Cost: a lattice of frames x states, each state from itself and the two before it: ns and bytes of a
      node, with new memory and with that of the step before; gradients beside a forward-backward algorithm
      written by hand, in f64. The program fails if they differ. Beside it one of fl's own scalar ops.
   2. Use: letters are recognised from noisy frames. The loss is log(paths that the search keeps) -
      log(paths that spell the target), with a weight for each pair of letters, with and without pruning. CTC
      is trained on the same sentences for as many seconds.

   To change it: lattices are arrays (`states`): a lexicon is another `spelling`. */
#include "../extend/training.h"
#include "lattice.h"

static struct {
    int64_t frames, states, steps, seed;
    double beam;
    bool small;
} options = {.frames = 50000, .states = 200, .steps = 150, .seed = 1, .beam = 10};

/* ---- 1: cost, and gradients beside a forward-backward algorithm written by hand ---- */

/* Each state from itself and the two before it; paths begin in state 0 and end in the last three. */
static states chain_states(int n) {
    states g = {.n = n, .n_ends = 3, .n_labels = n};
    g.label = fl_heap_alloc((size_t)n * 9 * sizeof *g.label);
    g.first = g.label + n, g.from = g.first + n + 1, g.weight = g.from + 3 * n;
    for (int s = 0, k = 0; s < n; s++) {
        g.label[s] = s;
        if (!s) g.from[k] = -1, g.weight[k++] = 0;
        for (int back = 0; back < 3 && back <= s; back++) g.from[k] = s - back, g.weight[k++] = 1 + back;
        g.first[s + 1] = k;
    }
    return g;
}

/* dx and dw (of weights 1 to 3) of the chain: products of the sums before, forward[], and after. */
static bool by_hand(const float *x, const float *w, int64_t frames, int n, float *dx, double dw[4]) {
    double *forward = fl_heap_alloc((size_t)(frames + 2) * (size_t)n * sizeof *forward), total = -INFINITY;
    if (!forward) return false;
    double *after = forward + frames * n, *next = after + n;
    for (int64_t f = 0; f < frames; f++)
        for (int s = 0; s < n; s++) {
            double sum = f ? -INFINITY : s ? -INFINITY : 0;
            for (int b = 0; f && b < 3 && b <= s; b++) {
                const double y = forward[(f - 1) * n + s - b] + w[1 + b], most = fmax(sum, y);
                if (most > -INFINITY) sum = most + log(exp(sum - most) + exp(y - most));
            }
            forward[f * n + s] = sum + x[f * n + s];
        }
    for (int s = n - 3; s < n; s++) {
        const double y = forward[(frames - 1) * n + s], most = fmax(total, y);
        if (most > -INFINITY) total = most + log(exp(total - most) + exp(y - most));
    }
    for (int s = 0; s < n; s++) after[s] = s < n - 3 ? -INFINITY : 0;
    for (int64_t f = frames - 1; f >= 0; f--) {
        for (int s = 0; s < n; s++) dx[f * n + s] = (float)exp(forward[f * n + s] + after[s] - total);
        for (int s = 0; f && s < n; s++) {
            next[s] = -INFINITY;
            for (int b = 0; b < 3 && s + b < n; b++) {
                const double y = after[s + b] + x[f * n + s + b] + w[1 + b], most = fmax(next[s], y);
                dw[1 + b] += exp(forward[(f - 1) * n + s] + y - total);
                if (most > -INFINITY) next[s] = most + log(exp(next[s] - most) + exp(y - most));
            }
        }
        memcpy(after, next, (size_t)n * sizeof *next);
    }
    fl_heap_free(forward);
    return true;
}

/* ns of one of fl's scalar ops: forward, backward. */
static bool scalar_ops(int ops, double ns[2]) {
    fl_scope s = fl_scope_begin();
    fl_var *y = fv_param(fl_full(FL_SCALAR_SHAPE, 0.5, FL_F64));
    const double start = fl_data_now();
    for (int i = 0; i < ops; i++) y = i % 2 ? fv_log(y) : fv_exp(y);
    const double middle = fl_data_now();
    const bool ok = fl_backward(y);
    ns[0] = (middle - start) * 1e9 / ops, ns[1] = (fl_data_now() - middle) * 1e9 / ops;
    fl_scope_end(&s);
    return ok;
}

static bool measure(void) {
    const int n = (int)options.states;
    const int64_t frames = options.frames;
    int64_t nodes;
    double op[2], dw[4] = {0}, apart = 0;
    states g = chain_states(n);
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_normal(FL_SHAPE(frames, n), 0, 1, FL_F32, NULL));
    fl_var *w = fv_param(fl_from_host((float[]){0, 0.1f, -0.2f, -0.4f}, FL_SHAPE(4), FL_F32));
    float *dx = fl_heap_alloc((size_t)(frames * n) * sizeof *dx);
    bool ok = dx && scalar_ops(20000, op);
    if (ok) printf("one scalar op of fl: forward %.0f ns, backward %.0f ns\n", op[0], op[1]);
    for (int again = 0; ok && again < 3; again++) {
        fl_scope step = fl_scope_begin();
        fv_zero_grad(x), fv_zero_grad(w);
        const double start = fl_data_now();
        fl_var *y = fv_lattice(x, w, &g, INFINITY, &nodes);
        const double middle = fl_data_now();
        ok = y && fl_backward(y);
        printf("%lld nodes of %.0f bytes, %s memory: forward %.0f ns, backward %.0f ns a node\n",
               (long long)nodes, (double)sizeof(node) + 3 * sizeof(arc), again ? "used" : "new",
               (middle - start) * 1e9 / (double)nodes, (fl_data_now() - middle) * 1e9 / (double)nodes);
        fl_scope_end(&step);
    }
    ok = ok && by_hand(fl_data(fv_value(x)), fl_data(fv_value(w)), frames, n, dx, dw);
    for (int64_t i = 0; ok && i < frames * n; i++)
        apart = fmax(apart, fabs(dx[i] - ((float *)fl_data(fv_grad(x)))[i]));
    for (int i = 1; ok && i < 4; i++)
        apart = fmax(apart, fabs(((float *)fl_data(fv_grad(w)))[i] / dw[i] - 1));
    if (ok) printf("gradients and those by hand are at most %.1e apart\n\n", apart);
    fl_heap_free(dx);
    fl_heap_free(g.label);
    fl_scope_end(&s);
    return ok && (apart < 1e-4 || fl_fail("gradients are %g apart, expected less than 1e-4", apart));
}

/* ---- 2: a decoder that is trained ---- */

enum { LETTERS = 12, DIMS = 16, LENGTH = 6, MOST = 5 * LENGTH, TESTS = 200, BATCH = 4 };
typedef struct sentence {
    int64_t frames, letter[LENGTH];
    float x[MOST * DIMS];
} sentence;

/* Each letter is followed by one of three, and lasts 2 to 5 frames: its place in `sound`, and noise. */
static sentence make_sentence(fl_rng *rng, const float *sound) {
    sentence s = {0};
    for (int i = 0; i < LENGTH; i++) {
        const int64_t step = 1 + (int64_t)(fl_rng_uniform(rng) * 3) * 2;
        s.letter[i] = i ? (s.letter[i - 1] * 5 + step) % LETTERS : (int64_t)(fl_rng_uniform(rng) * LETTERS);
        if (i && s.letter[i] == s.letter[i - 1]) s.letter[i] = (s.letter[i] + 1) % LETTERS;
        for (int n = 2 + (int)(fl_rng_uniform(rng) * 4); n > 0; n--, s.frames++)
            for (int d = 0; d < DIMS; d++) {
                double noise = -6; /* of 12 numbers: about normal */
                for (int k = 0; k < 12; k++) noise += fl_rng_uniform(rng);
                s.x[s.frames * DIMS + d] = sound[s.letter[i] * DIMS + d] + 1.6f * (float)noise;
            }
    }
    return s;
}

/* All letters in any order (letter NULL), or those of a sentence, each from itself and the one before.
   Weight 1 + LETTERS a + b is that of b after a. */
static states spelling(const int64_t *letter) {
    states g = {.n = letter ? LENGTH : LETTERS, .n_ends = letter ? 1 : LETTERS, .n_labels = LETTERS};
    g.label = fl_heap_alloc((size_t)(2 * g.n + 1 + 2 * g.n * (LETTERS + 1)) * sizeof *g.label);
    g.first = g.label + g.n, g.from = g.first + g.n + 1, g.weight = g.from + g.n * (LETTERS + 1);
    for (int s = 0, k = 0; s < g.n; s++) {
        g.label[s] = letter ? (int32_t)letter[s] : s;
        if (!letter || !s) g.from[k++] = -1;
        for (int from = letter ? (s ? s - 1 : 0) : 0; from < (letter ? s + 1 : g.n); from++, k++) {
            g.from[k] = from;
            g.weight[k] = 1 + LETTERS * g.label[from] + g.label[s];
        }
        g.first[s + 1] = k;
    }
    return g;
}

typedef struct decoder {
    fl_var *sound, *bias, *pair; /* of emissions [LETTERS, or one more for CTC's blank]; of pairs */
    fl_optim *optim;
    states all;
    double beam; /* 0: CTC */
    int64_t nodes;
} decoder;

static fl_var *emissions(const decoder *d, const sentence *s) {
    fl_tensor *x = fl_from_host(s->x, FL_SHAPE(s->frames, DIMS), FL_F32);
    return fv_linear(fv_const(x), d->sound, d->bias);
}

static fl_var *loss_of(decoder *d, const sentence *s) {
    fl_var *x = emissions(d, s);
    if (d->beam == 0)
        return fv_ctc_loss(fv_unsqueeze(fv_log_softmax(x, 1), 1),
                           fl_from_host(s->letter, FL_SHAPE(1, LENGTH), FL_I64),
                           fl_from_host(&s->frames, FL_SHAPE(1), FL_I64),
                           fl_from_host(&(int64_t){LENGTH}, FL_SHAPE(1), FL_I64), .blank = LETTERS);
    states target = spelling(s->letter);
    int64_t own, kept;
    fl_var *truth = fv_lattice(x, d->pair, &target, INFINITY, &own);
    fl_var *loss = fv_sub(fv_lattice(x, d->pair, &d->all, d->beam, &kept), truth);
    d->nodes += own + kept;
    fl_heap_free(target.label);
    return loss;
}

/* The letters: of each frame the likeliest, by its emission (CTC) or by the gradient of the search, which is
   the probability of each letter; repetitions and blanks are left out. */
static int64_t decode(const decoder *d, const sentence *s, int64_t *out) {
    int64_t n = 0, nodes;
    fl_scope scope = fl_scope_begin();
    fl_var *x = fv_param(fv_value(emissions(d, s)));
    if (d->beam > 0) fl_backward(fv_lattice(x, d->pair, &d->all, d->beam, &nodes));
    fl_tensor *best = fl_argmax(d->beam > 0 ? fv_grad(x) : fv_value(x), 1, false);
    const int64_t *at = fl_data(best);
    for (int64_t f = 0; f < s->frames; f++)
        if (at[f] < LETTERS && (!f || at[f] != at[f - 1])) out[n++] = at[f];
    fl_scope_end(&scope);
    return n;
}

/* Trains for `steps`, or for `seconds` if not 0, and prints a line. Returns the seconds, or NaN. */
static double train(const char *name, double beam, double seconds, const float *sound) {
    fl_scope all = fl_scope_begin();
    fl_rng rng = {7, 0};
    decoder d = {.all = spelling(NULL), .beam = beam};
    fl_data_edits edits = {0};
    int64_t steps = 0, out[MOST];
    fl_seed(2);
    const int64_t labels = LETTERS + (beam == 0);
    d.sound = fv_param(fl_normal(FL_SHAPE(labels, DIMS), 0, 0.1, FL_F32, NULL));
    d.bias = fv_param(fl_zeros(FL_SHAPE(labels), FL_F32));
    d.pair = fv_param(fl_zeros(FL_SHAPE(1 + LETTERS * LETTERS), FL_F32));
    d.optim = fl_optim_adam(FV_LIST(d.sound, d.bias, d.pair), .lr = 0.03);
    const double start = fl_data_now();
    while (!fl_error() && (seconds > 0 ? fl_data_now() - start < seconds : steps < options.steps)) {
        fl_scope s = fl_scope_begin();
        fl_var *loss = fv_num(0);
        for (int i = 0; i < BATCH; i++) {
            const sentence one = make_sentence(&rng, sound);
            loss = fv_add(loss, loss_of(&d, &one));
        }
        fl_optim_zero_grad(d.optim);
        if (fl_backward(loss)) fl_optim_step(d.optim);
        steps++;
        fl_scope_end(&s);
    }
    const double end = fl_data_now() - start;
    rng = (fl_rng){99, 0};
    for (int i = 0; i < TESTS && !fl_error(); i++) {
        const sentence one = make_sentence(&rng, sound);
        fl_data_edits_add(&edits, out, decode(&d, &one, out), one.letter, LENGTH);
    }
    const size_t bytes = sizeof(float[LETTERS][DIMS]);
    const uint64_t hash = fl_error() ? 0 : training_mix(TRAINING_HASH, fl_data(fv_value(d.sound)), bytes);
    printf("%-12s %6lld %8.2f %11lld %11.2f %%  %016llx\n", name, (long long)steps, end,
           (long long)(d.nodes / (steps ? steps * BATCH : 1)), fl_data_edits_percent(&edits),
           (unsigned long long)hash);
    fl_optim_free(d.optim);
    fl_heap_free(d.all.label);
    fl_scope_end(&all);
    return fl_error() ? (double)NAN : end;
}

static bool decoders(void) {
    float sound[LETTERS * DIMS];
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_normal(FL_SHAPE(LETTERS, DIMS), 0, 1, FL_F32, NULL);
    bool ok = t && fl_to_host(t, sound, sizeof sound);
    printf("%-12s %6s %8s %11s %13s  hash\n", "", "steps", "seconds", "nodes each", "letter error");
    const double seconds = ok ? train("all paths", INFINITY, 0, sound) : (double)NAN;
    ok = seconds > 0 && train("beam", options.beam, 0, sound) > 0 && train("CTC", 0, seconds, sound) > 0;
    fl_scope_end(&s);
    return ok;
}

int main(int argc, char **argv) {
    const argument list[] = {{"frames", .whole = &options.frames, .low = 4, .high = 1e6},
                             {"states", .whole = &options.states, .low = 4, .high = 2000},
                             {"steps", .whole = &options.steps, .low = 1, .high = 1e6},
                             {"beam", .number = &options.beam, .low = 1e-3, .high = 1e6},
                             {"seed", .whole = &options.seed, .low = 0, .high = 9e15},
                             {"small", .on = &options.small, .about = "a few seconds"},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    if (options.small) options.frames = 500, options.steps = 60;
    fl_seed((uint64_t)options.seed);
    const bool ok = measure() && decoders();
    if (!ok) fprintf(stderr, "beam_search: %s\n", fl_error());
    return !ok;
}
/* MIT licence: see LICENSE. */
