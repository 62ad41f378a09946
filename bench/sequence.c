/* bench/sequence.c - recurrent layers, single steps, CTC, embeddings, gated linear units (make
   bench-sequence)

   Recurrent layers, forward and backward: milliseconds, alternating with bench/peers/torch_sequence.py if
   PEER_PYTHON names a Python with torch. ARGS: rnn for these alone, "rnn lstm_60" for those whose names begin
   so. CTC, as log softmax and loss, and a loop that reads one step after the other, are in milliseconds too.
   The rest: GB/s of the bytes that must be read and written, in the note the share of the copy bandwidth of
   the same seconds. */
#define _DEFAULT_SOURCE
#include "bench.h"
#include "peer.h"
#include <math.h>
#include <string.h>
#include <unistd.h>

static double copy_rate(void) {
    fl_scope s = fl_scope_begin();
    fl_tensor *a = fl_ones(FL_SHAPE(1 << 24), FL_F32);
    double best = INFINITY;
    for (int r = 0; r < 4; r++) {
        fl_scope inner = fl_scope_begin();
        double start = fl_data_now();
        fl_clone(a);
        double seconds = fl_data_now() - start;
        best = seconds < best && r ? seconds : best;
        fl_scope_end(&inner);
    }
    fl_scope_end(&s);
    return 8.0 * (1 << 24) / best;
}

typedef struct job {
    fl_var *x;
    fl_tensor *a, *b, *c;
    int kind;
} job;
enum { CTC, CTC_BOTH, EMBED, EMBED_GRAD, GLU, GLU_BOTH };

static void run(void *arg) {
    const job *j = arg;
    fl_scope s = fl_scope_begin();
    fl_var *y = NULL;
    if (j->kind <= CTC_BOTH) y = fv_ctc_loss(fv_log_softmax(j->x, 2), j->a, j->b, j->c);
    if (j->kind == EMBED) fl_embedding(j->a, j->x->value, -1);
    if (j->kind == EMBED_GRAD) fl_scatter_add(j->x->value, 0, j->a, j->b);
    if (j->kind >= GLU) y = fv_glu(j->x, 1);
    if (j->kind == CTC_BOTH) fl_backward(y);
    if (j->kind == GLU_BOTH) fl_backward(y, .grad = j->b);
    fv_zero_grad(j->x);
    fl_scope_end(&s);
}

static double best(job *j, int rounds) {
    double seconds = INFINITY;
    for (int r = -1; r < rounds; r++) {
        double start = fl_data_now();
        run(j);
        double now = fl_data_now() - start;
        if (r >= 0 && now < seconds) seconds = now;
    }
    return seconds;
}

static void ctc(int64_t t, int64_t n, int64_t c, int64_t l) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {1, 0};
    char name[60];
    job j = {fv_param(fl_uniform(FL_SHAPE(t, n, c), -1, 1, FL_F32, &rng)),
             fl_randint(FL_SHAPE(n, l), 1, c, &rng), fl_randint(FL_SHAPE(n), t, t + 1, &rng),
             fl_randint(FL_SHAPE(n), l, l + 1, &rng), CTC};
    for (; j.kind <= CTC_BOTH; j.kind++) {
        snprintf(name, sizeof name, "ctc_%lldx%lldx%lld_%s", (long long)t, (long long)n,
                 (long long)c, j.kind == CTC ? "forward" : "forward_backward");
        bench_line(name, 1e3 * best(&j, 7), "ms", "with log softmax, targets of 60 labels");
    }
    fl_scope_end(&s);
}

static void report(const char *name, job *j, double bytes) {
    char note[60];
    double seconds = best(j, 7), rate = bytes / seconds;
    snprintf(note, sizeof note, "%.3g ms, %.0f %% of the copy", seconds * 1e3,
             100 * rate / copy_rate());
    bench_line(name, rate / 1e9, "GB/s", note);
}

/* 16384 rows of 768 out of a vocabulary of 50265. */
static void embedding(void) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {2, 0};
    const double bytes = 16384 * 768 * 4.0;
    fl_tensor *index = fl_randint(FL_SHAPE(16384), 0, 50265, &rng);
    fl_tensor *rows = fl_expand(fl_unsqueeze(index, 1), FL_SHAPE(16384, 768));
    job j = {fv_param(fl_zeros(FL_SHAPE(50265, 768), FL_F32)), index, NULL, NULL, EMBED};
    report("embedding_16384x768", &j, 2 * bytes);
    j.kind = EMBED_GRAD;
    j.a = rows;
    j.b = fl_uniform(FL_SHAPE(16384, 768), -1, 1, FL_F32, &rng);
    report("embedding_gradient_16384x768", &j, 3 * bytes + 8.0 * 50265 * 768);
    fl_scope_end(&s);
}

static void glu(void) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {3, 0};
    job j = {.x = fv_param(fl_uniform(FL_SHAPE(16384, 1536), -1, 1, FL_F32, &rng)), .kind = GLU};
    const double half = 16384 * 768 * 4.0;
    report("glu_16384x768", &j, 3 * half);
    j.kind = GLU_BOTH;
    j.b = fl_uniform(FL_SHAPE(16384, 768), -1, 1, FL_F32, &rng);
    report("glu_forward_backward_16384x768", &j, 8 * half); /* 3, then x and dy read, dx written */
    fl_scope_end(&s);
}

/* A loop over 1,600 steps, each a part of one tensor, as a recurrent network takes its input. */
static void steps(void) {
    enum { STEPS = 1600 };
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_ones(FL_SHAPE(STEPS, 512), FL_F32)), *row = NULL;
    double forward = INFINITY, backward = INFINITY;
    for (int r = 0; r < 4; r++) {
        fl_scope inner = fl_scope_begin();
        double start = fl_data_now();
        fl_var *sum = fv_select(x, 0, 0);
        for (int t = 1; t < STEPS; t++) sum = fv_add(sum, row = fv_select(x, 0, t));
        double middle = fl_data_now();
        fl_backward(sum, .grad = row->value);
        double end = fl_data_now();
        forward = middle - start < forward ? middle - start : forward;
        backward = end - middle < backward ? end - middle : backward;
        fv_zero_grad(x);
        fl_scope_end(&inner);
    }
    bench_line("select_1600x512_forward", 1e3 * forward, "ms", "a loop of select and add");
    bench_line("select_1600x512_backward", 1e3 * backward, "ms", "its gradients added in place");
    fl_scope_end(&s);
}

static bench_peer peer;

typedef struct rnn {
    const char *name;
    fl_rnn_mode mode;
    int64_t t, n, in, hidden;
    int layers, ways, lengths;
} rnn;
typedef struct rnn_job {
    const rnn *r;
    fl_nn_module *net;
    fl_var *x;
    fl_tensor *dy, *lengths;
} rnn_job;

static void rnn_run(void *arg) {
    const rnn_job *j = arg;
    fl_scope s = fl_scope_begin();
    fl_nn_zero_grad(j->net);
    fv_zero_grad(j->x);
    const fl_vars in = {j->lengths ? 2 : 1, {j->x, fv_const(j->lengths)}};
    fl_backward(fl_nn_forward_vars(j->net, in).v[0], .grad = j->dy);
    fl_scope_end(&s);
}

static double rnn_peer(const rnn *r, int rounds) {
    return bench_peer_ask(&peer, "%s %d %d %d %d %d %d %d %d", r->name, (int)r->t, (int)r->n, (int)r->in,
                          (int)r->hidden, r->layers, r->ways, r->lengths, rounds);
}

static void rnn_row(const rnn *r, const char *only) {
    enum { PAIRS = 9 };
    char name[100], note[120] = "no peer: PEER_PYTHON is not set";
    snprintf(name, sizeof name, "%s_%d_%d_%d_%d_%d%s%s", r->name, (int)r->t, (int)r->n, (int)r->in,
             (int)r->hidden, r->layers, r->ways == 2 ? "_both" : "", r->lengths ? "_packed" : "");
    if (only && strncmp(name, only, strlen(only))) return;
    fl_scope s = fl_scope_begin();
    fl_rng rng = {4, 0};
    fl_nn_module *(*const make)(int64_t, int64_t, fl_nn_rnn_opts) = r->mode == FL_LSTM  ? fl_nn_lstm_opt
                                                                   : r->mode == FL_GRU ? fl_nn_gru_opt
                                                                                       : fl_nn_rnn_opt;
    rnn_job j = {r,
                 make(r->in, r->hidden,
                      (fl_nn_rnn_opts){.layers = r->layers,
                                       .bidirectional = r->ways == 2,
                                       .time_first = true,
                                       .output_only = true,
                                       .rng = &rng}),
                 fv_param(fl_uniform(FL_SHAPE(r->t, r->n, r->in), 0, 1, FL_F32, &rng)),
                 fl_uniform(FL_SHAPE(r->t, r->n, r->ways * r->hidden), 0, 1, FL_F32, &rng), NULL};
    int64_t *steps = malloc((size_t)r->n * sizeof *steps);
    for (int64_t i = 0; i < r->n; i++) steps[i] = r->t - i * 7919 % (r->t / 2 + 1);
    if (r->lengths) j.lengths = fl_from_host(steps, FL_SHAPE(r->n), FL_I64);
    free(steps);
    double once = bench_time(rnn_run, &j, 1, 1), ours[PAIRS], theirs[PAIRS], ratio[PAIRS];
    const int rounds = once > 0.1 ? 1 : (int)(0.1 / once) + 1;
    for (int i = 0; i < PAIRS; i++) {
        ours[i] = bench_time(rnn_run, &j, 1, rounds);
        if (!peer.to) continue;
        usleep(20000); /* threads that wait for more work go to sleep */
        theirs[i] = rnn_peer(r, rounds);
        usleep(20000);
        ratio[i] = theirs[i] / ours[i];
    }
    const double middle = peer.to ? bench_median(ratio, PAIRS) : 0; /* sorts them */
    if (peer.to)
        snprintf(note, sizeof note, "torch %.3g ms, ratio %.2f (%.2f to %.2f)",
                 1e3 * bench_median(theirs, PAIRS), middle, ratio[0], ratio[PAIRS - 1]);
    bench_line(name, 1e3 * bench_median(ours, PAIRS), "ms", note);
    fl_nn_free(j.net);
    fl_scope_end(&s);
}

static void processor(void) {
    char line[200] = "";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f) && strncmp(line, "model name", 10)) continue;
    if (f) fclose(f);
    printf("# %d threads, %s, %s", fl_threads(), fl_cpu_level(), *line ? line : "unknown processor\n");
}

static void recurrent(const char *only) {
    static const int64_t shapes[][5] = {
        {60, 32, 64, 128, 2}, {35, 20, 200, 200, 2}, {100, 64, 128, 256, 1}, {100, 32, 512, 512, 2}};
    static const int64_t longer[] = {100, 1000, 10000};
    char threads[20];
    snprintf(threads, sizeof threads, "%d", fl_threads());
    peer = bench_peer_begin("torch_sequence.py", threads, NULL);
    for (int i = 0; i < 16; i++) {
        const int64_t *s = shapes[i / 4];
        rnn_row(&(rnn){i & 2 ? "gru" : "lstm", i & 2 ? FL_GRU : FL_LSTM, s[0], s[1], s[2], s[3], (int)s[4],
                       1 + i % 2, 0},
                only);
    }
    rnn_row(&(rnn){"rnn", FL_RNN_TANH, 60, 32, 64, 128, 2, 1, 0}, only);
    rnn_row(&(rnn){"lstm", FL_LSTM, 60, 32, 64, 128, 2, 2, 1}, only);
    for (int i = 0; i < 3; i++) rnn_row(&(rnn){"lstm", FL_LSTM, longer[i], 8, 32, 64, 1, 1, 0}, only);
    bench_peer_end(&peer);
}

int main(int argc, char **argv) {
    processor();
    if (argc < 2 || !strcmp(argv[1], "rnn")) recurrent(argc > 2 ? argv[2] : NULL);
    if (argc > 1 && !strcmp(argv[1], "rnn")) return fl_error() != NULL;
    steps();
    ctc(500, 16, 32, 60);
    ctc(375, 10, 9999, 60);
    embedding();
    glu();
    return fl_error() != NULL;
}
/* MIT licence: see LICENSE. */
