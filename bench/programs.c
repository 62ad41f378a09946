/* bench/programs.c - chains, softmax and norms written in ops: eager, in groups, compiled, and by peers

   make bench-programs ARGS="threads elements"     (1, 16 M and 16 K)
   PEER_PYTHON=a Python with torch and jax. Groups are replayed (fl_graph_replay), by the executor and compiled,
   or `deferred`: made anew in each call (fl_lazy), and compiled. Results are written where the last ones were,
   by the peers too. All run in turn, round by round. With one thread seconds are those of the processor, else
   of the clock. */
#include "fl_graph.h"
#include "peer.h"

enum { TENSORS = 4, ROW = 1024, ROUNDS = 9, WAYS = 4, PEERS = 2 };
static const char *const ways[WAYS + PEERS] = {"eager", "executor", "compiled", "deferred", "torch", "jax"};

typedef fl_tensor *(*function)(fl_tensor **t);

static fl_tensor *chain(fl_tensor **t) {
    fl_tensor *u = fl_add(fl_mul(t[0], t[1]), fl_num(1));
    u = fl_sub(fl_mul(u, u), t[0]);
    u = fl_maximum(fl_mul(u, fl_num(0.5)), t[1]);
    return fl_neg(fl_add(fl_abs(u), fl_mul(u, fl_num(0.1))));
}

static fl_tensor *gelu(fl_tensor **t) {
    fl_tensor *x = t[0], *u = fl_mul(fl_mul(x, x), fl_mul(x, fl_num(0.044715)));
    u = fl_mul(fl_add(x, u), fl_num(0.7978845608));
    return fl_mul(fl_mul(x, fl_num(0.5)), fl_add(fl_tanh(u), fl_num(1)));
}

/* Adam (Kingma and Ba, 2015) of the parameter t[0], its gradient and the two moments. */
static fl_tensor *adam(fl_tensor **t) {
    fl_tensor *m = fl_add(fl_mul(t[2], fl_num(0.9)), fl_mul(t[1], fl_num(0.1)));
    fl_tensor *v = fl_add(fl_mul(t[3], fl_num(0.999)), fl_mul(fl_mul(t[1], t[1]), fl_num(0.001)));
    fl_tensor *by = fl_add(fl_sqrt(fl_div(v, fl_num(0.3))), fl_num(1e-8));
    fl_tensor *p = fl_sub(t[0], fl_mul(fl_div(fl_div(m, fl_num(0.7)), by), fl_num(1e-3)));
    fl_assign(t[2], m), fl_assign(t[3], v);
    return fl_assign(t[0], p);
}

static fl_tensor *softmax(fl_tensor **t) {
    fl_tensor *e = fl_exp(fl_sub(t[0], fl_amax(t[0], FL_AXES_KEEP(-1))));
    return fl_div(e, fl_sum(e, FL_AXES_KEEP(-1)));
}

static fl_tensor *layer_norm(fl_tensor **t) {
    fl_tensor *d = fl_sub(t[0], fl_mean(t[0], FL_AXES_KEEP(-1)));
    fl_tensor *v = fl_mean(fl_mul(d, d), FL_AXES_KEEP(-1));
    d = fl_div(d, fl_sqrt(fl_add(v, fl_num(1e-5))));
    return fl_add(fl_mul(d, fl_select(t[1], 0, 0)), fl_select(t[2], 0, 0));
}

static void run(function f, fl_tensor **t, fl_tensor **result) {
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl_keep(f(t));
    fl_scope_end(&s);
    fl_drop(*result);
    *result = y;
}

static void run_way(int way, function f, fl_tensor **t, fl_tensor **result, fl_graph *g) {
    fl_lazy(way == 3);
    if (way % 3 == 0) {
        run(f, t, result);
    } else {
        for (int i = 0; !fl_graph_ready(g) && i < 4; i++) {
            fl_graph_begin(g);
            run(f, t, result);
            fl_graph_end(g);
        }
        fl_graph_replay(g); /* fails, with the reason, if the steps differ */
    }
    fl_lazy(false);
}

static double least(const double *x) {
    double m = x[0];
    for (int i = 1; i < ROUNDS; i++) m = fmin(m, x[i]);
    return m;
}

static void print(const char *name, int64_t n, double sample[][ROUNDS]) {
    for (int w = 0; w < WAYS + PEERS; w++) {
        double seconds[ROUNDS], eager[ROUNDS], compiled[ROUNDS];
        char figure[80], note[120];
        for (int r = 0; r < ROUNDS; r++) {
            seconds[r] = sample[w][r];
            eager[r] = sample[0][r] / sample[w][r], compiled[r] = sample[w][r] / sample[2][r];
        }
        if (seconds[0] != seconds[0]) continue;
        snprintf(figure, sizeof figure, "%s_%lld_%s", name, (long long)n, ways[w]);
        snprintf(note, sizeof note, "least %.4g; eager / it %.2f, least %.2f; it / compiled %.2f, least %.2f",
                 1e6 * least(seconds), bench_median(eager, ROUNDS), least(sample[0]) / least(seconds),
                 bench_median(compiled, ROUNDS), least(seconds) / least(sample[2]));
        bench_line(figure, 1e6 * bench_median(seconds, ROUNDS), "us", note);
    }
}

static void compare(const char *name, function f, int64_t n, int threads, const bench_peer *peer) {
    double sample[WAYS + PEERS][ROUNDS];
    fl_scope s = fl_scope_begin();
    fl_graph *g[WAYS] = {NULL, fl_graph_new(), fl_graph_new(), NULL};
    fl_tensor *t[WAYS][TENSORS], *result[WAYS] = {NULL};
    const int repeat = n > 1 << 20 ? 2 : 200;
    for (int w = 0; w < WAYS; w++) /* adam writes them: the ways have their own */
        for (int k = 0; k < TENSORS; k++)
            t[w][k] = w && f != adam ? t[0][k] : fl_uniform(FL_SHAPE(n / ROW, ROW), 0, 1, FL_F32, NULL);
    for (int r = -1; r < ROUNDS; r++)
        for (int w = 0; w < WAYS + PEERS; w++) {
            double seconds;
            if (w < WAYS) {
                fl_compile(w < 2 ? FL_COMPILE_NEVER : FL_COMPILE_NOW);
                if (r < 0) run_way(w, f, t[w], &result[w], g[w]);
                const clock_t used = clock();
                const double start = fl_data_now();
                for (int i = 0; i < repeat; i++) run_way(w, f, t[w], &result[w], g[w]);
                seconds = threads > 1 ? fl_data_now() - start : (double)(clock() - used) / CLOCKS_PER_SEC;
                seconds /= repeat;
            } else {
                seconds = bench_peer_ask(&peer[w - WAYS], "%s %lld %d", name, (long long)n, repeat);
            }
            if (r >= 0) sample[w][r] = seconds;
        }
    print(name, n, sample);
    for (int w = 0; w < WAYS; w++) fl_drop(result[w]), fl_graph_free(g[w]);
    fl_scope_end(&s);
}

int main(int argc, char **argv) {
    const struct {
        const char *name;
        function f;
    } cases[] = {{"chain", chain}, {"gelu", gelu}, {"adam", adam}, {"softmax", softmax},
                 {"layer_norm", layer_norm}};
    const char *threads = argc > 1 ? argv[1] : "1";
    const int64_t sizes[] = {argc > 2 ? atoll(argv[2]) : 1 << 24, 1 << 14};
    bench_peer peer[PEERS];
    fl_set_threads(atoi(threads));
    for (int i = 0; i < PEERS; i++) peer[i] = bench_peer_begin("programs.py", ways[WAYS + i], threads);
    for (int i = 0; i < (argc > 2 ? 1 : 2); i++)
        for (int c = 0; c < 5; c++) compare(cases[c].name, cases[c].f, sizes[i], atoi(threads), peer);
    for (int i = 0; i < PEERS; i++) bench_peer_end(&peer[i]);
    return fl_error() != NULL;
}
/* MIT licence: see LICENSE. */
