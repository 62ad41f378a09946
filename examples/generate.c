/* examples/generate.c - generates text with a pretrained model: make generate ARGS="--weights F --prompt
   '...'"

   ./generate --weights stories260K --prompt "Once upon a time"     llama2.c's file and tokenizer ./generate
   --weights folder --tokens tokenizer.json              a Hugging Face folder, GPT-2 to Qwen2 ./generate
   --weights model.gguf      GGUF, with its tokenizer unless --tokens is given; weights stay quantised

   --temperature 0: greedy; --top-k, --top-p, --min-p, --repetition: sampling; --beams N: beam search; --ids
   "1 403 407": prompt as token ids. */
#include "arguments.h"
#include "fl_text.h"
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
    int n_ends; /* 2 if tokens 1 and 2 end a text, as in llama2.c */
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
    if (!o->weights) fputs("generate: --weights is missing, expected a file or folder\n", stderr);
    return o->weights != NULL;
}

/* ---- streaming output ---- */

typedef struct writer {
    fl_text_stream stream;
    const char *stop;
    fl_data_text text;
} writer;

/* Returns false when the stop string is complete. */
static bool write_token(int64_t text, int64_t id, void *user) {
    writer *w = user;
    const char *p = "";
    int64_t n = 0;
    (void)text;
    if (w->stream.tokenizer) p = fl_text_stream_add(&w->stream, (int32_t)id, &n);
    else {
        static char number[32];
        n = snprintf(number, sizeof number, "%" PRId64 " ", id), p = number;
    }
    if (!p) return false;
    fwrite(p, 1, (size_t)n, stdout);
    fflush(stdout);
    if (!w->stop) return true;
    return fl_data_text_put(&w->text, p, (size_t)n) && (!w->text.p || !strstr(w->text.p, w->stop));
}

static bool encode(const options *o, fl_text_tokenizer *t, fl_text_sequence *s) {
    fl_text_encoding e = {0};
    bool ok = true;
    if (o->ids)
        for (char *at = (char *)o->ids, *end; ok; at = end) {
            const int64_t id = strtoll(at, &end, 10);
            if (end == at) break;
            ok = fl_text_sequence_add(s, &id, 1);
        }
    else if (t) {
        ok = fl_text_encode(t, o->prompt, (int64_t)strlen(o->prompt), &e);
        for (int64_t i = 0; ok && i < e.n; i++) ok = fl_text_sequence_add(s, &(int64_t){e.id[i]}, 1);
    }
    fl_text_encoding_free(&e);
    return ok && (s->n ||
                  fl_fail("generate: no prompt, expected --ids, or --prompt and a tokenizer (--tokens)"));
}

/* Opens the tokenizer given by --tokens, or in the .gguf file or the folder: tokenizer.json, or llama2.c's
   of this vocabulary size. */
static bool find_tokenizer(options *o, int64_t vocabulary, fl_text_tokenizer **t) {
    char path[4096];
    if (o->ids && !o->tokens) return true;
    snprintf(path, sizeof path, "%s/tokenizer.json", o->weights);
    if (!o->tokens && fl_data_ends(o->weights, ".gguf")) o->tokens = o->weights;
    FILE *f = o->tokens ? NULL : fopen(path, "rb");
    if (f) fclose(f);
    if (o->tokens || f) return (*t = fl_text_tokenizer_open(o->tokens ? o->tokens : path)) != NULL;
    snprintf(path, sizeof path, "%s/tok%" PRId64 ".bin", o->weights, vocabulary);
    o->n_ends = 2;
    return (*t = fl_text_llama2c_load(path, vocabulary)) != NULL;
}

static bool generate(const options *o, fl_nn_module *m, fl_text_tokenizer *t) {
    static const int64_t ends[] = {1, 2};
    const int64_t beams = o->beams > 1 ? o->beams : 0;
    fl_text_sequence s = {0};
    writer w = {.stream = {.tokenizer = t}, .stop = o->stop};
    fl_text_decoder *r = fl_text_decoder_new(m, beams ? 2 * beams : 1, .length = o->context);
    bool ok = r && encode(o, t, &s);
    const int64_t prompt = s.n;
    for (int64_t i = 0; ok && i < s.n; i++) write_token(0, s.id[i], &w);
    const double start = fl_data_now();
    fl_text_generate_opts how = {
        .most = o->length, .seed = (uint64_t)o->seed, .stop = ends, .n_stop = o->n_ends, .beams = beams,
        .sampler = {.temperature = fl_option(o->temperature, FL_ZERO), .top_k = o->top_k, .top_p = o->top_p,
                    .min_p = o->min_p, .repetition = o->repetition}};
    if (o->temperature == 0) how.sampler.temperature = FL_ZERO;
    if (!beams) how.each = write_token, how.user = &w;
    ok = ok && (beams ? fl_text_beam_search_opt(r, &s, 1, how) : fl_text_generate_opt(r, &s, 1, how));
    const double seconds = fl_data_now() - start;
    for (int64_t i = prompt; ok && beams && i < s.n; i++) write_token(0, s.id[i], &w);
    if (ok) printf("\n");
    if (ok)
        fprintf(stderr, "%" PRId64 " tokens, %.1f tokens/s\n", s.n - prompt,
                (double)(s.n - prompt) / seconds);
    fl_text_decoder_free(r);
    fl_text_sequence_free(&s);
    fl_text_stream_free(&w.stream);
    fl_heap_free(w.text.p);
    return ok;
}

int main(int argc, char **argv) {
    options o = {.prompt = "", .length = 200, .temperature = 0.8, .seed = 1};
    if (!parse(argc, argv, &o)) return 2;
    int64_t vocabulary = 0;
    fl_text_tokenizer *t = NULL;
    fl_nn_module *m = fl_text_load(o.weights, .stored = !o.f32);
    if (m) fl_nn_train(m, false);
    const bool ok = m && fl_text_lm_info(m, &vocabulary) && find_tokenizer(&o, vocabulary, &t) &&
                    generate(&o, m, t);
    if (!ok) fprintf(stderr, "generate: %s\n", fl_error() ? fl_error() : "failed");
    fl_text_tokenizer_free(t);
    fl_nn_free(m);
    return !ok;
}
/* MIT licence: see LICENSE. */
