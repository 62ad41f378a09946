/* examples/ngram.c - trains n-gram language models and scores text with them

   ngram train --text FILE --save FILE.arpa [--order 3] [--prune 1]    modified Kneser-Ney; --prune N drops
                                                                       n-grams of order 3 and more that occur
                                                                       at most N times
   ngram score --load FILE --text FILE                                 ARPA or KenLM file: log10 probability,
                                                                       perplexity

   Without arguments: trains on generated sentences; a trigram model must have a lower perplexity on further
   ones than a unigram model. */
#include "../fl_text.h"
#include "../fl.h"
#include "arguments.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *command, *text, *load, *save;
    int64_t order, prune;
} options;

static const char how[] = "train|score [--text FILE] [--save FILE] [--load FILE] [--order N] [--prune N]";

static int usage(void) {
    fprintf(stderr, "ngram %s\n", how);
    return 2;
}

static bool parse(int argc, char **argv, options *o) {
    const argument list[] = {{"text", .text = &o->text},
                             {"load", .text = &o->load},
                             {"save", .text = &o->save},
                             {"order", .whole = &o->order, .low = 1, .high = FL_TEXT_NGRAM_MOST},
                             {"prune", .whole = &o->prune, .low = 0, .high = 1e9},
                             {NULL, .low = 0}};
    *o = (options){.command = argc > 1 ? argv[1] : "", .order = 3};
    arguments_help(argc, argv, how, list);
    return argc < 2 || arguments_read(argc - 1, argv + 1, list);
}

static bool train(const options *o, const char *text, int64_t n) {
    fl_text_ngram_opts t = {.order = (int)o->order};
    for (int k = 2; k < FL_TEXT_NGRAM_MOST; k++) t.prune[k] = o->prune;
    return fl_text_ngram_train_opt(text, n, o->save, t);
}

static double perplexity(const fl_text_ngram *m, const char *text, int64_t n, fl_text_ngram_sum *sum) {
    *sum = (fl_text_ngram_sum){0};
    fl_text_ngram_score_text(m, text, n, sum);
    return pow(10, -sum->log10 / (double)(sum->words + sum->sentences));
}

static bool score(const options *o, const char *text, int64_t n) {
    fl_text_ngram_sum sum;
    fl_text_ngram *m = fl_text_ngram_load(o->load);
    if (!m) return false;
    const double p = perplexity(m, text, n, &sum), known = -(sum.log10 - sum.log10_unknown);
    printf("order %d; %lld sentences, %lld words, %lld unknown\n", fl_text_ngram_order(m),
           (long long)sum.sentences, (long long)sum.words, (long long)sum.unknown);
    printf("log10 %.4f, perplexity %.3f, of known words %.3f\n", sum.log10, p,
           pow(10, known / (double)(sum.words - sum.unknown + sum.sentences)));
    fl_text_ngram_free(m);
    return true;
}

/* Generates sentences of four words, each drawn from five. */
static int64_t sentences(char *out, int64_t cap, uint64_t seed) {
    static const char *const word[4][5] = {{"the", "a", "every", "one", "no"},
                                           {"cat", "dog", "bird", "child", "ship"},
                                           {"sees", "likes", "follows", "finds", "leaves"},
                                           {"it", "her", "them", "us", "home"}};
    int64_t n = 0;
    while (n < cap - 60) {
        for (int k = 0; k < 4; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            n += snprintf(out + n, (size_t)(cap - n), "%s%c", word[k][(seed >> 33) % 5], k < 3 ? ' ' : '\n');
        }
    }
    return n;
}

static bool show(void) {
    static char text[20000], more[5000];
    const int64_t n = sentences(text, sizeof text, 1), m = sentences(more, sizeof more, 2);
    double p[2] = {0};
    fl_text_ngram_sum sum;
    bool ok = true;
    for (int k = 0; ok && k < 2; k++) {
        const char *path = "ngram.arpa";
        ok = fl_text_ngram_train(text, n, path, .order = k ? 3 : 1);
        fl_text_ngram *model = ok ? fl_text_ngram_load(path) : NULL;
        ok = model != NULL;
        if (ok) p[k] = perplexity(model, more, m, &sum);
        fl_text_ngram_free(model);
        fl_data_remove(path);
    }
    if (ok)
        printf("perplexity of new sentences: unigrams %.2f, trigrams %.2f (uniform over 5 words per "
               "position: %.2f)\n",
               p[0], p[1], pow(5, 0.8));
    return ok && p[1] < 0.3 * p[0];
}

int main(int argc, char **argv) {
    options o;
    int64_t n = 0;
    bool ok = false;
    if (argc > 1) {
        if (!parse(argc, argv, &o) || !o.text) return usage();
        char *text = fl_text_read_file("ngram", o.text, &n);
        if (text && !strcmp(o.command, "train") && o.save) ok = train(&o, text, n);
        else if (text && !strcmp(o.command, "score") && o.load) ok = score(&o, text, n);
        else if (text) return usage();
        fl_heap_free(text);
    } else ok = show();
    if (!ok) fprintf(stderr, "%s\n", fl_error() ? fl_error() : "ngram: failed");
    return !ok;
}
/* MIT licence: see LICENSE. */
