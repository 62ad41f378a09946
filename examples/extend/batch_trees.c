/* examples/extend/batch_trees.c - a Tree-LSTM whose trees are batched automatically by batch.h

   cc -O2 -I. examples/extend/batch_trees.c fl.c -lm -lpthread
   ./a.out --data input.txt --samples 256 --width 256

   Learns from the words of a sentence, without its punctuation, whether it ends with . ? or !. Sentences are
   binary trees: each part is cut after its strongest punctuation, before a conjunction, or in the middle. So
   every sample has a network of its own, written as a recursion; fl_batch_each runs all of them together.
   Each step is timed one sample after another and as a batch, and the gradients are compared. Exits with 1 if
   they differ. */
#include "../arguments.h"
#include "batch.h"
#include "fl.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>

enum { MAX_SAMPLES = 4096, MAX_WORDS = 40, BUCKETS = 2000, CLASSES = 3, PARAMS = 7 };

static const char sample_text[] =
    "Shall I compare thee to a summer's day? Thou art more lovely and more temperate: rough winds do shake "
    "the darling buds of May, and summer's lease hath all too short a date. Who is Silvia? what is she, that "
    "all our swains commend her? Holy, fair, and wise is she; the heaven such grace did lend her, that she "
    "might admired be. Friends, Romans, countrymen, lend me your ears! I come to bury Caesar, not to praise "
    "him. O, what a fall was there, my countrymen! Then I, and you, and all of us fell down, whilst bloody "
    "treason flourished over us. What's in a name? That which we call a rose by any other name would smell "
    "as sweet. Now is the winter of our discontent made glorious summer by this sun of York. A horse! a "
    "horse! my kingdom for a horse! If music be the food of love, play on; give me excess of it, that, "
    "surfeiting, the appetite may sicken, and so die.";

typedef struct sentence {
    int64_t first, n; /* words: of the corpus */
    int64_t end;      /* 0 .  1 ?  2 ! */
} sentence;
static struct {
    sentence s[MAX_SAMPLES];
    int64_t word[MAX_SAMPLES * MAX_WORDS]; /* bucket of its hash */
    int cut[MAX_SAMPLES * MAX_WORDS];      /* strength of a cut after it */
    int64_t n, words;
} corpus;

/* Reads up to `most` sentences of 2 to MAX_WORDS words. */
static void corpus_read(const char *text, int64_t most) {
    sentence s = {0};
    int64_t n = 0;
    while (*text && corpus.n < most) {
        const size_t letters = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ'");
        const char *mark = letters ? NULL : strchr(".?!", *text);
        if (letters && n < MAX_WORDS) {
            uint64_t hash = 1469598103934665603u;
            for (size_t i = 0; i < letters; i++) hash = (hash ^ (uint64_t)tolower(text[i])) * 1099511628211u;
            const bool conjunction = letters == 3 && !strncmp(text, "and", 3);
            int *before = n ? &corpus.cut[corpus.words + n - 1] : NULL;
            if (before && conjunction && *before < 2) *before = 2;
            corpus.word[corpus.words + n] = (int64_t)(hash % BUCKETS);
            corpus.cut[corpus.words + n++] = 1;
        } else if (n && !letters && strchr(",;:", *text)) {
            corpus.cut[corpus.words + n - 1] = *text == ',' ? 3 : 4;
        } else if (mark) {
            s = (sentence){corpus.words, n, *mark == '?' ? 1 : *mark == '!' ? 2 : 0};
            if (n > 1 && n < MAX_WORDS) corpus.s[corpus.n++] = s, corpus.words += n;
            n = 0;
        }
        text += letters ? letters : 1;
    }
}

typedef struct model {
    fl_var *p[PARAMS]; /* embedding, W and b of leaves, of nodes, and of the classes */
    fl_var *x;         /* the embedded words of all sentences */
    fl_tensor *end[MAX_SAMPLES];
    int64_t width, nodes;
} model;

/* h of a node from its gates, i o u and one f for each child: c = i u + sum f c_child, h = o tanh(c). */
static fl_var *tree_node(int64_t w, fl_var *gates, fl_var **below, fl_var **c) {
    fl_var *s = fv_sigmoid(fv_slice(gates, 1, 0, 4 * w, 1));
    fl_var *u = fv_tanh(fv_slice(gates, 1, 4 * w, 5 * w, 1));
    *c = fv_mul(fv_slice(s, 1, 0, w, 1), u);
    for (int64_t i = 0; below && i < 2; i++)
        *c = fv_add(*c, fv_mul(fv_slice(s, 1, (2 + i) * w, (3 + i) * w, 1), below[i]));
    return fv_mul(fv_slice(s, 1, w, 2 * w, 1), fv_tanh(*c));
}

static fl_var *tree(model *m, int64_t first, int64_t n, fl_var **c) {
    m->nodes++;
    if (n == 1) {
        fl_var *x = fv_slice(m->x, 0, first, first + 1, 1);
        return tree_node(m->width, fv_linear(x, m->p[1], m->p[2]), NULL, c);
    }
    int64_t left = n / 2;
    for (int64_t i = 1; i < n; i++)
        if (corpus.cut[first + i - 1] > corpus.cut[first + left - 1]) left = i;
    fl_var *h[2], *below[2];
    h[0] = tree(m, first, left, &below[0]);
    h[1] = tree(m, first + left, n - left, &below[1]);
    return tree_node(m->width, fv_linear(fv_concat(h, 2, 1), m->p[3], m->p[4]), below, c);
}

static fl_var *loss_of(void *user, int64_t i) {
    model *m = user;
    fl_var *c, *h = tree(m, corpus.s[i].first, corpus.s[i].n, &c);
    return fv_sum(fv_cross_entropy(fv_linear(h, m->p[5], m->p[6]), m->end[i]), FL_ALL_AXES);
}

/* Gradients of the sum of all losses, by a loop or as a batch; returns the sum. */
static fl_var *gradients(model *m, bool batched) {
    fl_var *sum = NULL;
    m->nodes = 0;
    if (batched) return fl_batch_each(loss_of, m, corpus.n, .sum = &sum, .backward = true) ? sum : NULL;
    for (int64_t i = 0; i < corpus.n; i++) sum = sum ? fv_add(sum, loss_of(m, i)) : loss_of(m, i);
    return fl_backward(sum) ? sum : NULL;
}

/* One step, by the loop, then as a batch; sets the seconds of both. Returns the largest difference of their
   gradients, relative to the largest number of each; -1 after an error. */
static double step(model *m, fl_optim *optim, double seconds[2], double *loss) {
    fl_tensor *grad[2][PARAMS];
    double worst = 0;
    for (int batched = 0; batched < 2; batched++) {
        fl_optim_zero_grad(optim);
        const double begin = fl_data_now();
        m->x = fv_embedding(fl_from_host(corpus.word, FL_SHAPE(corpus.words), FL_I64), m->p[0], -1);
        fl_var *sum = gradients(m, batched);
        if (!sum) return -1;
        *loss = fl_item(fv_value(sum)) / (double)corpus.n;
        seconds[batched] = fl_data_now() - begin;
        for (int k = 0; k < PARAMS; k++) grad[batched][k] = fl_clone(fv_grad(m->p[k]));
    }
    for (int k = 0; k < PARAMS; k++) {
        const double most = fl_item(fl_amax(fl_abs(grad[0][k]), FL_ALL_AXES));
        worst = fmax(worst, fl_item(fl_amax(fl_abs(fl_sub(grad[0][k], grad[1][k])), FL_ALL_AXES)) / most);
        fl_assign(fv_grad(m->p[k]), fl_div(fv_grad(m->p[k]), fl_num((double)corpus.n)));
    }
    return fl_optim_step(optim) ? worst : -1;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    enum { MAX_STEPS = 1000 };
    const char *data = NULL;
    int64_t samples = 64, width = 64, steps = 3;
    const argument table[] = {{"data", .text = &data, .about = "a text, else lines of Shakespeare"},
                              {"samples", .whole = &samples, .low = 1, .high = MAX_SAMPLES},
                              {"width", .whole = &width, .low = 1, .high = 4096},
                              {"steps", .whole = &steps, .low = 1, .high = MAX_STEPS}, {NULL, .low = 0}};
    if (!arguments_read(argc, argv, table)) return 2;
    static double seconds[2][MAX_STEPS];
    static model m;
    static char text[1 << 20]; /* as much of the file as fits */
    FILE *f = data ? fopen(data, "rb") : NULL;
    if (data && !f) return perror(data), 1;
    if (f && !fread(text, 1, sizeof text - 1, f)) return fprintf(stderr, "%s: cannot be read\n", data), 1;
    if (f) fclose(f);
    corpus_read(f ? text : sample_text, samples);
    if (!corpus.n) return fprintf(stderr, "%s: no sentences\n", data), 1;
    fl_scope s = fl_scope_begin();
    const double k = 1 / sqrt((double)width);
    const int64_t gates = 5 * width, shape[PARAMS][2] = {
        {BUCKETS, width}, {gates, width}, {gates, 1}, {gates, 2 * width}, {gates, 1}, {CLASSES, width},
        {CLASSES, 1}};
    m.width = width;
    for (int i = 0; i < PARAMS; i++) {
        const fl_shape is = i && i % 2 == 0 ? FL_SHAPE(shape[i][0]) : FL_SHAPE(shape[i][0], shape[i][1]);
        m.p[i] = fv_param(fl_uniform(is, -k, k, FL_F32, NULL));
    }
    for (int64_t i = 0; i < corpus.n; i++) m.end[i] = fl_from_host(&corpus.s[i].end, FL_SHAPE(1), FL_I64);
    fl_optim *optim = fl_optim_adam(fv_list_of(PARAMS, m.p), .lr = 0.01);
    double worst = 0, loss = 0;
    for (int64_t i = 0; i < steps && worst >= 0; i++) {
        double of[2];
        fl_scope one = fl_scope_begin();
        const double off = step(&m, optim, of, &loss);
        worst = off < 0 ? -1 : fmax(worst, off);
        for (int b = 0; b < 2; b++) seconds[b][i] = of[b];
        if (!i || i == steps - 1) printf("step %lld: loss %.4f\n", (long long)i + 1, loss);
        m.x = NULL;
        fl_scope_end(&one);
    }
    for (int b = 0; b < 2; b++) qsort(seconds[b], (size_t)steps, sizeof **seconds, by_size);
    const double loop = seconds[0][steps / 2], batched = seconds[1][steps / 2];
    if (worst < 0) fprintf(stderr, "batch_trees: %s\n", fl_error());
    else printf("%lld trees, %lld nodes, width %lld: %.1f ms one by one, %.1f as a batch, %.2f times as fast"
                "%s\n",
                (long long)corpus.n, (long long)m.nodes, (long long)width, 1e3 * loop, 1e3 * batched,
                loop / batched, loop < batched ? ": batching does not pay" : "");
    const bool ok = worst >= 0 && worst < 1e-4;
    if (worst >= 0) printf("%s: gradients within %.1e\n", ok ? "the same training" : "FAILED", worst);
    fl_optim_free(optim);
    fl_scope_end(&s);
    return !ok;
}
/* MIT licence: see LICENSE. */
