/* examples/tokenize.c - trains tokenizers; encodes, decodes and counts with any tokenizer file

   tokenize train  --text FILE --save tokenizer.json [--model bpe|wordpiece|unigram|char] [--size 8192]
   tokenize encode --load PATH [--text FILE]        prints ids, one line per line of the text (or of stdin)
   tokenize decode --load PATH [--text FILE]        converts such ids back to text
   tokenize count  --load PATH [--text FILE]        bytes, characters, tokens, tokens per second

   PATH: a tokenizer file, or a folder with one (fl_text_tokenizer_open). Without arguments: trains on a
   built-in line and prints its tokens. */
#include "../fl_text.h"
#include "../fl.h"
#include "arguments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct options {
    const char *command, *text, *load, *save, *model;
    int64_t size;
} options;

static const char how[] = "train|encode|decode|count [--text FILE] [--load PATH] [--save FILE] [--model "
                          "bpe|wordpiece|unigram|char] [--size N]";

static int usage(void) {
    fprintf(stderr, "tokenize %s\n", how);
    return 2;
}

static bool parse(int argc, char **argv, options *o) {
    const argument list[] = {{"text", .text = &o->text},
                             {"load", .text = &o->load},
                             {"save", .text = &o->save},
                             {"model", .text = &o->model},
                             {"size", .whole = &o->size, .low = 1, .high = 1e9},
                             {NULL, .low = 0}};
    *o = (options){.command = argc > 1 ? argv[1] : "", .model = "bpe", .size = 8192};
    arguments_help(argc, argv, how, list);
    return argc < 2 || arguments_read(argc - 1, argv + 1, list);
}

/* Reads a file, or standard input. */
static char *text_of(const char *path, int64_t *n) {
    fl_data_text t = {0};
    char part[65536];
    if (path) return fl_text_read_file("tokenize", path, n);
    if (!fl_data_text_put(&t, "", 0)) return NULL;
    for (size_t got; (got = fread(part, 1, sizeof part, stdin)) > 0;)
        if (!fl_data_text_put(&t, part, got)) return fl_heap_free(t.p), NULL;
    *n = t.n;
    return t.p;
}

static bool train(const options *o, const char *text, int64_t n) {
    fl_text_tokenizer *t = NULL;
    if (!strcmp(o->model, "bpe")) t = fl_text_bpe_train(text, n, .size = o->size);
    else if (!strcmp(o->model, "wordpiece")) t = fl_text_wordpiece_train(text, n, .size = o->size);
    else if (!strcmp(o->model, "unigram")) t = fl_text_unigram_train(text, n, .size = o->size);
    else if (!strcmp(o->model, "char")) t = fl_text_char_tokenizer(text, n);
    else fl_fail("tokenize: unknown model '%s'; known: bpe, wordpiece, unigram, char", o->model);
    const bool ok = t && fl_text_tokenizer_save(t, o->save);
    if (ok) printf("%s: %lld tokens\n", o->save, (long long)fl_text_vocab_size(t));
    fl_text_tokenizer_free(t);
    return ok;
}

static bool encode(const fl_text_tokenizer *t, const char *text, int64_t n) {
    fl_text_encoding e = {0};
    bool ok = true;
    int64_t len;
    for (const char *p = text, *line; ok && (line = fl_text_line(&p, text + n, &len));) {
        ok = fl_text_encode(t, line, len, &e);
        for (int64_t i = 0; ok && i < e.n; i++) printf("%s%d", i ? " " : "", (int)e.id[i]);
        if (ok) putchar('\n');
    }
    fl_text_encoding_free(&e);
    return ok;
}

static bool decode(const fl_text_tokenizer *t, const char *text, int64_t n) {
    fl_data_text out = {0};
    int32_t *id = NULL;
    int64_t cap = 0;
    bool ok = true;
    int64_t size, len;
    for (const char *p = text, *line; ok && (line = fl_text_line(&p, text + n, &size));) {
        int64_t ids = 0;
        const char *stop = line + size;
        for (const char *word; ok && (word = fl_text_field(&line, stop, &len));) {
            ok = fl_heap_grow(&id, &cap, ids + 1, sizeof *id);
            if (ok) id[ids++] = (int32_t)strtol(word, NULL, 10);
        }
        out.n = 0;
        ok = ok && fl_text_decode(t, id, ids, true, &out);
        if (ok) fwrite(out.p, 1, (size_t)out.n, stdout), putchar('\n');
    }
    fl_heap_free(id);
    fl_heap_free(out.p);
    return ok;
}

static bool count(const fl_text_tokenizer *t, const char *text, int64_t n) {
    fl_text_encoding e = {0};
    const clock_t start = clock();
    const bool ok = fl_text_encode(t, text, n, &e);
    const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    if (ok)
        printf(
            "%lld bytes, %lld characters, %lld tokens, %.3g bytes per token, %.3g tokens per second\n",
            (long long)n, (long long)fl_text_utf8_count(text, n), (long long)e.n,
            e.n ? (double)n / (double)e.n : 0, seconds > 0 ? (double)e.n / seconds : 0);
    fl_text_encoding_free(&e);
    return ok;
}

/* Trains on one line; decoding must restore it. */
static bool show(void) {
    static const char text[] =
        "she sells sea shells by the sea shore; the shells she sells are sea shells, I'm sure";
    fl_text_tokenizer *t = fl_text_bpe_train(text, sizeof text - 1, .size = 280);
    fl_text_encoding e = {0};
    fl_data_text back = {0};
    bool ok = t && fl_text_encode(t, text, sizeof text - 1, &e) && fl_text_decode(t, e.id, e.n, false, &back);
    for (int64_t i = 0; ok && i < e.n; i++) printf("%.*s|", (int)(e.end[i] - e.begin[i]), text + e.begin[i]);
    if (ok) printf("\n%d tokens for %d bytes\n", (int)e.n, (int)sizeof text - 1);
    ok = ok && e.n < 50 && !strcmp(back.p, text);
    fl_text_encoding_free(&e);
    fl_heap_free(back.p);
    fl_text_tokenizer_free(t);
    return ok;
}

int main(int argc, char **argv) {
    options o;
    int64_t n = 0;
    bool ok = false;
    if (argc < 2) return !show();
    if (!parse(argc, argv, &o)) return usage();
    const bool training = !strcmp(o.command, "train");
    if (training ? !o.save || !o.text : !o.load) return usage();
    char *text = text_of(o.text, &n);
    fl_text_tokenizer *t = text && !training ? fl_text_tokenizer_open(o.load) : NULL;
    if (text && training) ok = train(&o, text, n);
    else if (t && !strcmp(o.command, "encode")) ok = encode(t, text, n);
    else if (t && !strcmp(o.command, "decode")) ok = decode(t, text, n);
    else if (t && !strcmp(o.command, "count")) ok = count(t, text, n);
    else if (t) return usage();
    fl_text_tokenizer_free(t);
    fl_heap_free(text);
    if (!ok) fprintf(stderr, "%s\n", fl_error() ? fl_error() : "tokenize: failed");
    return !ok;
}
/* MIT licence: see LICENSE. */
