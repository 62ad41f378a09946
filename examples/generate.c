/* generate.c - texts of a model that somebody has trained: make generate ARGS="--weights F --prompt '...'"

   ./generate --weights stories260K --prompt "Once upon a time"     llama2.c's file and its tokenizer
   ./generate --weights folder --tokens tokenizer.json              a folder of Hugging Face, GPT-2 to Qwen2
   ./generate --weights model.gguf --tokens tokenizer.json          GGUF; weights stay as they are stored

   --temperature 0 takes the best token each time; --top-k, --top-p, --min-p, --repetition; --beams N the
   best of N texts that are followed at once; --ids "1 403 407": tokens in place of text. */
#include "arguments.h"
#include "fl.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *weights, *tokens, *prompt, *ids, *stop;
    int64_t length, beams, seed, top_k, context;
    double temperature, top_p, min_p, repetition;
    bool f32;
} options;

static bool parse(int argc, char **argv, options *o) {
    const argument list[] = {{"weights", .text = &o->weights},
                             {"tokens", .text = &o->tokens},
                             {"prompt", .text = &o->prompt},
                             {"ids", .text = &o->ids},
                             {"stop", .text = &o->stop},
                             {"length", .whole = &o->length, .low = 1, .high = 1e9},
                             {"beams", .whole = &o->beams, .low = 0, .high = 64},
                             {"seed", .whole = &o->seed},
                             {"top-k", .whole = &o->top_k},
                             {"context", .whole = &o->context},
                             {"temperature", .number = &o->temperature},
                             {"top-p", .number = &o->top_p},
                             {"min-p", .number = &o->min_p},
                             {"repetition", .number = &o->repetition},
                             {"f32", .on = &o->f32},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return false;
    if (!o->weights) fputs("generate: --weights FOLDER or FILE is needed\n", stderr);
    return o->weights != NULL;
}

/* ---- llama2.c's tokenizer: pieces with scores, of which the neighbours that join to the best one are
   joined ---- */

typedef struct pieces {
    char **text;
    float *score;
    int n;
} pieces;

static void pieces_free(pieces *p) {
    for (int i = 0; i < p->n; i++) free(p->text[i]);
    free(p->text);
    free(p->score);
}

static bool pieces_read(pieces *p, const char *folder, int n) {
    char path[4096];
    int32_t longest, length;
    snprintf(path, sizeof path, "%s/tok512.bin", folder);
    FILE *f = fopen(path, "rb");
    *p = (pieces){calloc((size_t)n, sizeof *p->text), calloc((size_t)n, sizeof *p->score), n};
    bool ok = f && p->text && p->score && fread(&longest, 4, 1, f) == 1;
    for (int i = 0; ok && i < n; i++) {
        ok = fread(&p->score[i], 4, 1, f) == 1 && fread(&length, 4, 1, f) == 1 && length >= 0 &&
             length < 1000 && (p->text[i] = calloc((size_t)length + 1, 1)) != NULL;
        ok = ok && fread(p->text[i], 1, (size_t)length, f) == (size_t)length;
    }
    if (f) fclose(f);
    return ok || fl_fail("generate: %s: no tokenizer of %d pieces", path, n);
}

static int piece_of(const pieces *p, const char *text, size_t n) {
    for (int i = 0; i < p->n; i++)
        if (strlen(p->text[i]) == n && !memcmp(p->text[i], text, n)) return i;
    return -1;
}

static bool pieces_encode(const pieces *p, const char *text, fl_text_sequence *s) {
    char joined[2048];
    bool ok = fl_text_sequence_add(s, (int64_t[]){1, piece_of(p, " ", 1)}, *text ? 2 : 1);
    for (size_t n; ok && *text; text += n) {
        for (n = 1; (text[n] & 0xc0) == 0x80;) n++;
        const int id = piece_of(p, text, n);
        if (id >= 0) ok = fl_text_sequence_add(s, &(int64_t){id}, 1);
        for (size_t i = 0; ok && id < 0 && i < n; i++)
            ok = fl_text_sequence_add(s, &(int64_t){3 + (unsigned char)text[i]}, 1);
    }
    for (int64_t best = 0; ok && best >= 0;) {
        float top = -1e10f;
        int into = best = -1;
        for (int64_t i = 0; i + 1 < s->n; i++) {
            const int n = snprintf(joined, sizeof joined, "%s%s", p->text[s->id[i]], p->text[s->id[i + 1]]);
            const int id = piece_of(p, joined, (size_t)n);
            if (id >= 0 && p->score[id] > top) top = p->score[id], best = i, into = id;
        }
        if (best < 0) break;
        s->id[best] = into;
        memmove(s->id + best + 1, s->id + best + 2, (size_t)(s->n - best - 2) * sizeof *s->id);
        s->n--;
    }
    return ok;
}

/* ---- what is written as it comes ---- */

typedef struct writer {
    const pieces *pieces;
    fl_text_stream stream;
    int64_t last; /* token */
    const char *stop;
    fl_data_text text;
} writer;

/* False where the stop string is complete. */
static bool write_token(int64_t text, int64_t id, void *user) {
    writer *w = user;
    const char *p = "";
    int64_t n = 0;
    unsigned byte;
    char one[2] = {0};
    (void)text;
    if (w->pieces) {
        p = w->pieces->text[id];
        if (w->last == 1 && *p == ' ') p++;
        if (sscanf(p, "<0x%2x>", &byte) == 1) one[0] = (char)byte, p = one;
        n = id > 2 ? (int64_t)strlen(p) : 0;
    } else if (w->stream.tokenizer) p = fl_text_stream_add(&w->stream, (int32_t)id, &n);
    else {
        static char number[32];
        n = snprintf(number, sizeof number, "%" PRId64 " ", id), p = number;
    }
    w->last = id;
    if (!p) return false;
    fwrite(p, 1, (size_t)n, stdout);
    fflush(stdout);
    if (!w->stop) return true;
    return fl_data_text_put(&w->text, p, (size_t)n) && (!w->text.p || !strstr(w->text.p, w->stop));
}

static bool encode(const options *o, const pieces *p, fl_text_tokenizer *t, fl_text_sequence *s) {
    fl_text_encoding e = {0};
    bool ok = true;
    if (o->ids)
        for (char *at = (char *)o->ids, *end; ok; at = end) {
            const int64_t id = strtoll(at, &end, 10);
            if (end == at) break;
            ok = fl_text_sequence_add(s, &id, 1);
        }
    else if (p) ok = pieces_encode(p, o->prompt, s);
    else if (t) {
        ok = fl_text_encode(t, o->prompt, (int64_t)strlen(o->prompt), &e);
        for (int64_t i = 0; ok && i < e.n; i++) ok = fl_text_sequence_add(s, &(int64_t){e.id[i]}, 1);
    }
    fl_text_encoding_free(&e);
    return ok && (s->n ||
                  fl_fail("generate: there are no tokens to begin with: --ids, or --prompt with --tokens"));
}

/* The tokenizer that was named, or that is in the folder. */
static bool find_tokenizer(const options *o, int64_t vocabulary, pieces *p, fl_text_tokenizer **t) {
    char path[4096];
    snprintf(path, sizeof path, "%s/tokenizer.json", o->weights);
    FILE *f = o->tokens || o->ids ? NULL : fopen(path, "rb");
    if (f) fclose(f);
    if (o->tokens || f) return (*t = fl_text_tokenizer_load(o->tokens ? o->tokens : path)) != NULL;
    return o->ids || pieces_read(p, o->weights, (int)vocabulary);
}

static bool generate(const options *o, fl_nn_module *m, const pieces *p, fl_text_tokenizer *t) {
    static const int64_t ends[] = {1, 2};
    const int64_t beams = o->beams > 1 ? o->beams : 0;
    fl_text_sequence s = {0};
    writer w = {.pieces = p, .stream = {.tokenizer = t}, .last = 1, .stop = o->stop};
    fl_text_reader *r = fl_text_reader_new(m, beams ? 2 * beams : 1, .length = o->context);
    bool ok = r && encode(o, p, t, &s);
    const int64_t prompt = s.n;
    for (int64_t i = 0; ok && i < s.n; i++) write_token(0, s.id[i], &w);
    const double start = fl_data_now();
    fl_text_generate_opts how = {
        .most = o->length, .seed = (uint64_t)o->seed, .stop = ends, .n_stop = p ? 2 : 0, .beams = beams,
        .sampler = {.temperature = fl_option(o->temperature, FL_ZERO), .top_k = o->top_k, .top_p = o->top_p,
                    .min_p = o->min_p, .repetition = o->repetition}};
    if (o->temperature == 0) how.sampler.temperature = FL_ZERO;
    if (!beams) how.each = write_token, how.user = &w;
    ok = ok && (beams ? fl_text_beam_opt(r, &s, 1, how) : fl_text_generate_opt(r, &s, 1, how));
    const double seconds = fl_data_now() - start;
    for (int64_t i = prompt; ok && beams && i < s.n; i++) write_token(0, s.id[i], &w);
    if (ok) printf("\n");
    if (ok)
        fprintf(stderr, "%" PRId64 " tokens, %.1f tokens/s\n", s.n - prompt,
                (double)(s.n - prompt) / seconds);
    fl_text_reader_free(r);
    fl_text_sequence_free(&s);
    fl_text_stream_free(&w.stream);
    fl_heap_free(w.text.p);
    return ok;
}

int main(int argc, char **argv) {
    options o = {.prompt = "", .length = 200, .temperature = 0.8, .seed = 1};
    if (!parse(argc, argv, &o)) return 2;
    int64_t vocabulary = 0;
    pieces p = {0};
    fl_text_tokenizer *t = NULL;
    fl_nn_module *m = fl_text_load(o.weights, .stored = !o.f32);
    if (m) fl_nn_train(m, false);
    const bool ok = m && fl_text_lm_info(m, &vocabulary) && find_tokenizer(&o, vocabulary, &p, &t) &&
                    generate(&o, m, p.n ? &p : NULL, t);
    if (!ok) fprintf(stderr, "generate: %s\n", fl_error() ? fl_error() : "failed");
    pieces_free(&p);
    fl_text_tokenizer_free(t);
    fl_nn_free(m);
    return !ok;
}
/* MIT licence: see LICENSE. */
