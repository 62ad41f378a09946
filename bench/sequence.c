/* sequence.c - CTC, embeddings, gated linear units, steps of a sequence (make bench-sequence)

   CTC as log softmax and loss, and a loop that reads one step after the other, are milliseconds. The
   rest: GB/s of the bytes that must be read and
   written, in the note the share of the copy bandwidth of the same seconds. */
#include "bench.h"
#include <math.h>
#include <string.h>

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

int main(void) {
    steps();
    ctc(500, 16, 32, 60);
    ctc(375, 10, 9999, 60);
    embedding();
    glu();
    return fl_error() != NULL;
}
/* MIT licence: see LICENSE. */
