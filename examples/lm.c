/* examples/lm.c - trains language models, evaluates them and samples: make lm [DATA=file or folder]
   [ARGS=...]

   ./lm                                  text generated from a toy grammar, whose entropy is known ./lm
   --data tinyshakespeare           a text file, or a folder with input.txt or train, valid and test.txt ./lm
   --data F --preset nano           nanoGPT's small recipe: 4 layers of 128, context 64, batch 12 ./lm --data
   F --tokens bpe:1024       BPE trained on the training part; word: words by descending frequency,
                                         compared with a 5-gram model
   ./lm --data F --model gcnn            gated convolutions; lstm; masked: masked LM, bidirectional; adaptive:
                                         Flashlight's transformer, adaptive embedding and softmax
   ./lm --load lm.safetensors --eval     evaluates a saved model and samples from it

   The last line is "Validation loss: x.xxxx nats per character". */
#include "arguments.h"
#include "fl_text.h"
#include "fl.h"
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *data, *preset, *model, *tokens, *save, *load, *log, *dtype, *prompt;
    int64_t steps, seed, sample, layers, dim, heads, context, batch, accumulate;
    double lr, dropout, temperature;
    bool eval;
} options;

/* ---- text ---- */

typedef struct text {
    char *p;
    int64_t n, train; /* bytes; bytes of the training part */
    double entropy;   /* nats per character, 0: unknown */
} text;

/* A context-free grammar: a capital letter is a nonterminal, with productions and their probabilities. It is
   unambiguous, because all words differ: so the entropy of the text is that of the choices. */
static const struct rule { char of; double p; const char *body; } grammar[] = {
    {'S', 0.5, "T.\n"}, {'S', 0.2, "T and T.\n"}, {'S', 0.3, "if T then T.\n"},
    {'T', 0.5, "OX"}, {'T', 0.5, "MY"},                         /* one does, many do */
    {'O', 0.7, "the AN"}, {'O', 0.3, "the AN thatX"},
    {'M', 0.7, "all ANs"}, {'M', 0.3, "all ANs thatY"},
    {'A', 0.6, ""}, {'A', 0.2, "small A"}, {'A', 0.1, "old A"}, {'A', 0.1, "green A"},
    {'N', 0.3, "cat"}, {'N', 0.2, "dog"}, {'N', 0.2, "bird"}, {'N', 0.2, "house"}, {'N', 0.1, "river"},
    {'X', 0.4, " Vs O"}, {'X', 0.3, " Vs M"}, {'X', 0.3, " Is"},
    {'Y', 0.4, " V O"}, {'Y', 0.3, " V M"}, {'Y', 0.3, " I"},
    {'V', 0.5, "see"}, {'V', 0.3, "follow"}, {'V', 0.2, "know"},
    {'I', 0.6, "sleep"}, {'I', 0.4, "wait"},
};
enum { RULES = sizeof grammar / sizeof *grammar };

static double uniform(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

static bool grow(text *t, int64_t *cap, char c) {
    if (t->n == *cap) {
        char *p = realloc(t->p, (size_t)(*cap = 2 * *cap + 1024));
        if (!p) return false;
        t->p = p;
    }
    t->p[t->n++] = c;
    return true;
}

static bool derive(text *t, int64_t *cap, char of, uint64_t *state) {
    double u = uniform(state);
    int i = 0;
    while (grammar[i].of != of) i++;
    while (u >= grammar[i].p && i + 1 < RULES && grammar[i + 1].of == of) u -= grammar[i++].p;
    for (const char *c = grammar[i].body; *c; c++)
        if (isupper((unsigned char)*c) ? !derive(t, cap, *c, state) : !grow(t, cap, *c)) return false;
    return true;
}

/* Expected entropy and length of each nonterminal, by fixed-point iteration over its productions. */
static double grammar_entropy(void) {
    double h[128] = {0}, n[128] = {0};
    for (int round = 0; round < 2000; round++) {
        double h2[128] = {0}, n2[128] = {0};
        for (int i = 0; i < RULES; i++) {
            const int of = grammar[i].of;
            h2[of] -= grammar[i].p * log(grammar[i].p);
            for (const char *c = grammar[i].body; *c; c++) {
                const bool letter = isupper((unsigned char)*c);
                h2[of] += letter ? grammar[i].p * h[(int)*c] : 0;
                n2[of] += grammar[i].p * (letter ? n[(int)*c] : 1);
            }
        }
        memcpy(h, h2, sizeof h), memcpy(n, n2, sizeof n);
    }
    return h['S'] / n['S'];
}

static bool write_grammar(text *t, int64_t n) {
    uint64_t state = 1;
    int64_t cap = 0;
    while (t->n < n)
        if (!derive(t, &cap, 'S', &state)) return false;
    t->entropy = grammar_entropy();
    t->train = t->n / 10 * 9;
    return true;
}

static bool read_file(const char *path, text *t) {
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    char part[65536];
    size_t n;
    while ((n = fread(part, 1, sizeof part, f)) > 0) {
        char *p = realloc(t->p, (size_t)t->n + n);
        if (!p) break;
        memcpy((t->p = p) + t->n, part, n);
        t->n += (int64_t)n;
    }
    const bool ok = !ferror(f) && !n;
    fclose(f);
    return ok;
}

/* Reads the file; or of a folder train.txt and valid.txt, or valid.txt and test.txt, or input.txt. In a
   single file the last tenth is for validation. */
static bool read_text(const char *path, text *t) {
    char name[4096];
    *t = (text){0};
    if (read_file(path, t)) return t->train = t->n / 10 * 9, t->n > 0;
    static const char *const parts[] = {"train", "valid", "test"};
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s/%s.txt", path, parts[i]);
        if (!read_file(name, t)) continue;
        t->train = t->n;
        snprintf(name, sizeof name, "%s/%s.txt", path, parts[i + 1]);
        return read_file(name, t);
    }
    snprintf(name, sizeof name, "%s/input.txt", path);
    return read_file(name, t) ? t->train = t->n / 10 * 9, t->n > 0 : false;
}

/* ---- tokens ---- */

typedef struct corpus {
    fl_text_tokenizer *tokenizer;
    fl_text_tokens *tokens;
    int64_t train;      /* tokens of the training part */
    double valid_chars; /* characters of the validation part */
} corpus;

static void corpus_free(corpus *c) {
    fl_text_tokens_free(c->tokens);
    fl_text_tokenizer_free(c->tokenizer);
}

/* Words of the training part by descending frequency, and <unk>. */
static fl_text_tokenizer *word_tokenizer(const text *t) {
    fl_text_dictionary *all = fl_text_dictionary_new();
    fl_text_dictionary *d = all && fl_text_dictionary_count(all, "<unk>", 5, 1) >= 0 &&
                                    fl_text_count_words(all, t->p, t->train)
                                ? fl_text_dictionary_pruned(all, 1, 1, 0) : NULL;
    fl_text_dictionary_free(all);
    if (d && fl_text_dictionary_set_default(d, fl_text_dictionary_find(d, "<unk>", 5)))
        return fl_text_word_tokenizer(d);
    fl_text_dictionary_free(d);
    return NULL;
}

static fl_text_tokenizer *make_tokenizer(const options *o, const text *t) {
    if (!strcmp(o->tokens, "char")) return fl_text_char_tokenizer(t->p, t->n);
    if (!strcmp(o->tokens, "word")) return word_tokenizer(t);
    if (!strncmp(o->tokens, "bpe:", 4))
        return fl_text_bpe_train(t->p, t->train, .size = atoll(o->tokens + 4));
    fl_fail("lm: unknown --tokens '%s'; known: char, word, bpe:N", o->tokens);
    return NULL;
}

/* Encodes both parts, one after the other. */
static bool encode(corpus *c, const text *t) {
    fl_text_encoding e[2] = {{0}};
    bool ok = true;
    for (int i = 0; ok && i < 2; i++)
        ok = fl_text_encode(c->tokenizer, t->p + (i ? t->train : 0), i ? t->n - t->train : t->train, &e[i],
                            .plain = true);
    for (int64_t i = t->train; i < t->n; i++) c->valid_chars += ((unsigned char)t->p[i] & 0xc0) != 0x80;
    fl_scope s = fl_scope_begin();
    fl_tensor *ids = ok ? fl_empty(FL_SHAPE(e[0].n + e[1].n), FL_I32) : NULL;
    int32_t *id = ids ? fl_map(ids, FL_WRITE) : NULL;
    for (int i = 0; id && i < 2; i++)
        if (e[i].n) memcpy(id + (i ? e[0].n : 0), e[i].id, (size_t)e[i].n * sizeof *id);
    if (id) fl_unmap(ids, FL_WRITE);
    c->train = e[0].n;
    c->tokens = id ? fl_text_tokens_of(ids, NULL, fl_text_vocab_size(c->tokenizer)) : NULL;
    fl_scope_end(&s);
    fl_text_encoding_free(&e[0]);
    fl_text_encoding_free(&e[1]);
    return c->tokens != NULL;
}

/* ---- models ---- */

static fl_nn_module *make_model(const options *o, int64_t vocabulary) {
    if (!strcmp(o->preset, "nano") ||
        !strcmp(o->preset, "baby")) /* GPT-2 without biases, as nanoGPT has it */
        return fl_text_lm(vocabulary, .layers = o->layers, .dim = o->dim, .heads = o->heads,
                          .context = o->context, .no_bias = true, .dropout = o->dropout,
                          .activation = fv_gelu);
    if (!strcmp(o->model, "masked")) /* one more id, for the mask token */
        return fl_text_lm(vocabulary + 1, .layers = o->layers, .dim = o->dim, .heads = o->heads,
                          .context = o->context, .place = FL_LM_ROTARY, .rms = true, .gated = true,
                          .no_bias = true, .hidden = o->dim * 8 / 3 / 32 * 32, .bidirectional = true,
                          .dropout = o->dropout);
    if (!strcmp(o->model, "adaptive"))
        return fl_text_lm(
            vocabulary, .layers = o->layers, .dim = o->dim, .heads = o->heads, .context = o->context,
            .place = FL_LM_SINUSOID, .embedding_scale = sqrt((double)o->dim), .dropout = o->dropout,
            .cutoffs = vocabulary > 4000 ? FL_SHAPE(1000, 4000, vocabulary) : FL_SHAPE(vocabulary));
    if (!strcmp(o->model, "lstm"))
        return fl_text_lm(vocabulary, .kind = FL_LM_LSTM, .layers = 2, .dim = o->dim, .context = o->context,
                             .dropout = o->dropout, .untied = true);
    if (!strcmp(o->model, "gcnn"))
        return fl_text_lm(vocabulary, .kind = FL_LM_GCNN, .layers = o->layers, .dim = o->dim,
                             .context = o->context, .dropout = o->dropout, .untied = true);
    return fl_text_lm(vocabulary, .layers = o->layers, .dim = o->dim, .heads = o->heads,
                      .context = o->context, .hidden = o->dim * 8 / 3 / 32 * 32, .place = FL_LM_ROTARY,
                      .rms = true, .gated = true, .no_bias = true, .dropout = o->dropout);
}

/* Saves weights and options to the file, and the tokenizer next to it. */
static bool save_model(fl_nn_module *m, const options *o, const corpus *c) {
    char config[256], path[4096];
    snprintf(path, sizeof path, "%s.tokenizer.json", o->save);
    snprintf(config, sizeof config, "%s %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64, o->preset, o->model,
             o->layers, o->dim, o->heads, o->context);
    const fl_data_key_value meta[] = {{"lm", config}};
    fl_nn_state s = {0};
    const bool ok = fl_nn_state_add_module(&s, "", m) && fl_nn_state_save(&s, o->save, meta, 1) &&
                    fl_text_tokenizer_save(c->tokenizer, path);
    fl_nn_state_free(&s);
    return ok;
}

static fl_nn_module *load_model(options *o, corpus *c) {
    static char preset[32], model[32];
    char path[4096];
    snprintf(path, sizeof path, "%s.tokenizer.json", o->load);
    fl_data_file *f = fl_data_open_safetensors(o->load);
    const char *config = f ? fl_data_meta(f, "lm") : NULL;
    bool ok = f && (config || fl_fail("%s: not saved by lm: no metadata 'lm'", o->load));
    if (ok)
        ok = sscanf(config, "%31s %31s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64, preset, model,
                    &o->layers, &o->dim, &o->heads, &o->context) == 6 ||
             fl_fail("%s: invalid metadata 'lm': got '%.80s', expected preset, model and 4 sizes", o->load,
                     config);
    fl_data_close(f);
    o->preset = preset, o->model = model;
    c->tokenizer = ok ? fl_text_tokenizer_load(path) : NULL;
    fl_nn_module *m = c->tokenizer ? make_model(o, fl_text_vocab_size(c->tokenizer)) : NULL;
    if (m && fl_nn_load(m, o->load)) return m;
    fl_nn_free(m);
    return NULL;
}

/* ---- training ---- */

static bool is_masked(const options *o) { return !strcmp(o->model, "masked"); }

/* Blocks of tokens begin to end - 1, masked for masked models. */
static fl_data_set *samples(const options *o, const corpus *c, int64_t begin, int64_t end, int64_t size) {
    fl_data_set *set = fl_text_blocks(c->tokens, o->context, .begin = begin, .end = end, .random = size > 0,
                                      .size = size, .seed = (uint64_t)o->seed, .drop_last = !size);
    const int64_t vocabulary = fl_text_vocab_size(c->tokenizer) + 1;
    if (is_masked(o))
        set = fl_text_mask(set, .vocabulary = vocabulary, .mask = vocabulary - 1, .seed = (uint64_t)o->seed);
    return fl_data_batch(set, o->batch, size > 0);
}

/* Entropy of the unigram distribution of the validation part. */
static double unigram_entropy(const corpus *c) {
    const int64_t n = fl_text_tokens_count(c->tokens) - c->train, size = fl_text_vocab_size(c->tokenizer);
    int64_t *id = calloc((size_t)(n + size), sizeof *id);
    double sum = 0;
    if (id && fl_text_tokens_read(c->tokens, c->train, n, id))
        for (int64_t i = 0; i < n; i++) id[n + id[i]]++;
    for (int64_t i = 0; id && i < size; i++)
        if (id[n + i]) sum -= (double)id[n + i] / (double)n * log((double)id[n + i] / (double)n);
    free(id);
    return sum;
}

/* Prints the validation loss of a 5-gram model of the training part. */
static void print_5gram(const text *t) {
    static const char path[] = "lm.5gram.arpa";
    fl_text_ngram_sum sum = {0};
    fl_text_ngram *m =
        fl_text_ngram_train(t->p, t->train, path, .order = 5) ? fl_text_ngram_load(path) : NULL;
    if (m) fl_text_ngram_score_text(m, t->p + t->train, t->n - t->train, &sum);
    if (m)
        printf("5-gram model: %.4f nats per word or line end, %.4f of the %lld known ones\n",
               -sum.log10 * log(10) / (double)(sum.words + sum.sentences),
               (sum.log10_unknown - sum.log10) * log(10) / (double)(sum.words - sum.unknown + sum.sentences),
               (long long)(sum.words - sum.unknown + sum.sentences));
    else printf("no 5-gram: %s\n", fl_error()), fl_error_clear();
    fl_text_ngram_free(m);
    fl_data_remove(path);
}

/* Evaluates the validation part: each of its tokens but the first is predicted once. */
static bool validate(fl_nn_module *m, const options *o, const corpus *c, double *loss) {
    fl_text_loss_sum r;
    if (is_masked(o)) {
        fl_data_set *set = samples(o, c, c->train, 0, 0);
        const bool done = set && fl_text_evaluate_set(m, set, &r, fl_dtype_by_name(o->dtype));
        fl_data_free(set);
        if (done) printf("unigram entropy: %.4f nats per token\n", unigram_entropy(c));
        return done && (*loss = r.nats / (double)r.tokens, true);
    }
    const bool ok = fl_text_evaluate(m, c->tokens, &r, .begin = c->train,
                                     .dtype = fl_dtype_by_name(o->dtype));
    const double per_token = ok ? r.nats / (double)r.tokens : 0;
    const int64_t all = ok ? fl_text_tokens_count(c->tokens) - c->train : 0;
    if (ok) *loss = per_token * (double)all / c->valid_chars;
    if (ok && (double)all != c->valid_chars) printf("Validation: %.4f nats per token\n", per_token);
    return ok;
}

static bool train(fl_nn_module *m, const options *o, const corpus *c) {
    static fl_data_curve curve = {.name = "training loss"};
    fl_data_set *set = samples(o, c, 0, c->train, o->steps * o->batch);
    fl_optim *optim = fl_optim_adamw(fl_nn_parameters(m), .lr = o->lr, .beta2 = 0.99, .weight_decay = 0.1);
    if (optim) fl_optim_group_of(optim, m, "*norm*", .weight_decay = FL_ZERO);
    fl_optim_schedule schedule = {.kind = FL_LR_COSINE, .total = o->steps, .warmup = o->steps / 20 + 1,
                                  .low = o->lr / 10};
    fl_text_training t = {.model = m, .optim = optim, .set = set, .schedule = &schedule, .clip = 1,
                          .dtype = fl_dtype_by_name(o->dtype), .accumulate = o->accumulate};
    fl_data_log *log = o->log ? fl_data_log_open(o->log) : NULL;
    bool ok = optim && set && (log || !o->log) && fl_optim_schedule_start(&schedule, optim);
    fl_data_progress bar = fl_data_progress_begin(stderr, "training", o->steps);
    const double start = fl_data_now();
    double loss = 0, smooth = 0;
    while (ok && t.at.step < o->steps) {
        ok = fl_text_training_step(&t, &loss);
        smooth = t.at.step == 1 ? loss : 0.95 * smooth + 0.05 * loss;
        fl_data_curve_add(&curve, (double)t.at.step, smooth);
        fl_data_progress_step(&bar, t.at.step, "loss %.3f, %.0f tokens/s", smooth,
                              (double)t.tokens / (fl_data_now() - start));
        if (ok && log) ok = fl_data_log_add(log, t.at.step, "loss", loss);
    }
    fl_data_progress_end(&bar);
    if (ok) {
        fl_data_plot_print(stdout, FL_DATA_CURVES(&curve), .x_label = "step");
        printf("%" PRId64 " steps, %.0f s, %.0f tokens/s\n", t.at.step, fl_data_now() - start,
               (double)t.tokens / (fl_data_now() - start));
    }
    ok = fl_data_log_close(log) && ok;
    fl_optim_free(optim);
    fl_data_free(set);
    return ok;
}

/* Prints the prompt and o->sample generated tokens. */
static bool write_sample(fl_nn_module *m, const options *o, const corpus *c) {
    const char *prompt = o->prompt ? o->prompt : "\n";
    fl_text_sequence s = {0};
    fl_text_encoding e = {0};
    fl_data_text out = {0};
    fl_text_decoder *decoder = fl_text_decoder_new(m, 1);
    bool ok = decoder && fl_text_encode(c->tokenizer, prompt, (int64_t)strlen(prompt), &e, .plain = true);
    for (int64_t i = 0; ok && i < e.n; i++) ok = fl_text_sequence_add(&s, &(int64_t){e.id[i]}, 1);
    int64_t first; /* the text's first token, if the prompt has none, as white space with words */
    if (ok && !s.n) ok = fl_text_tokens_read(c->tokens, 0, 1, &first) && fl_text_sequence_add(&s, &first, 1);
    ok = ok && fl_text_generate(decoder, &s, 1, .most = o->sample, .seed = (uint64_t)o->seed, .slide = true,
                                .sampler = {.temperature = o->temperature});
    int32_t *id = ok ? malloc((size_t)s.n * sizeof *id) : NULL;
    for (int64_t i = 0; id && i < s.n; i++) id[i] = (int32_t)s.id[i];
    ok = id && fl_text_decode(c->tokenizer, id, s.n, true, &out);
    if (ok) printf("%s\n", out.p ? out.p : "");
    free(id);
    fl_heap_free(out.p);
    fl_text_encoding_free(&e);
    fl_text_sequence_free(&s);
    fl_text_decoder_free(decoder);
    return ok;
}

static bool parse(int argc, char **argv, options *o) {
    const argument list[] = {{"data", .text = &o->data},
                             {"preset", .text = &o->preset},
                             {"model", .text = &o->model},
                             {"tokens", .text = &o->tokens},
                             {"save", .text = &o->save},
                             {"load", .text = &o->load},
                             {"log", .text = &o->log},
                             {"dtype", .text = &o->dtype},
                             {"prompt", .text = &o->prompt},
                             {"steps", .whole = &o->steps},
                             {"seed", .whole = &o->seed},
                             {"sample", .whole = &o->sample},
                             {"layers", .whole = &o->layers},
                             {"dim", .whole = &o->dim},
                             {"heads", .whole = &o->heads},
                             {"context", .whole = &o->context},
                             {"batch", .whole = &o->batch},
                             {"accumulate", .whole = &o->accumulate},
                             {"lr", .number = &o->lr},
                             {"dropout", .number = &o->dropout},
                             {"temperature", .number = &o->temperature},
                             {"eval", .on = &o->eval},
                             {NULL, .low = 0}};
    return arguments_read(argc, argv, list);
}

/* Sets options that were not given to the preset's values. */
static bool settle(options *o) {
    static const struct {
        const char *name;
        int64_t layers, dim, heads, context, batch, steps;
        double lr, dropout;
    } presets[] = {{"grammar", 2, 128, 4, 64, 32, 400, 3e-3, 0},
                   {"small", 6, 192, 6, 128, 16, 1900, 2e-3, 0},
                   {"nano", 4, 128, 4, 64, 12, 2000, 1e-3, 0},
                   {"baby", 6, 384, 6, 256, 64, 5000, 1e-3, 0.2}};
    if (!o->preset) o->preset = o->data ? "small" : "grammar";
    size_t i = 0;
    while (i < sizeof presets / sizeof *presets && strcmp(o->preset, presets[i].name)) i++;
    if (i == sizeof presets / sizeof *presets) return false;
    if (!o->layers) o->layers = presets[i].layers;
    if (!o->dim) o->dim = presets[i].dim;
    if (!o->heads) o->heads = presets[i].heads;
    if (!o->context) o->context = presets[i].context;
    if (!o->batch) o->batch = presets[i].batch;
    if (!o->steps) o->steps = presets[i].steps;
    if (o->lr == 0) o->lr = presets[i].lr;
    if (o->dropout < 0) o->dropout = presets[i].dropout;
    return true;
}

int main(int argc, char **argv) {
    options o = {.model = "gpt",
                 .tokens = "char",
                 .dtype = "f32",
                 .seed = 1,
                 .sample = 400,
                 .dropout = -1,
                 .temperature = 0.8};
    if (!parse(argc, argv, &o) || !settle(&o))
        return puts("lm [--data FILE] [--preset small|nano|baby] [--model gpt|gcnn|lstm|masked|adaptive]\n "
                    "  [--tokens char|word|bpe:N] [--steps N] [--save FILE] "
                    "[--load FILE] [--eval] [--dtype f32|bf16] ..."),
               2;
    fl_seed((uint64_t)o.seed);
    text t = {0};
    corpus c = {0};
    double loss = 0;
    bool ok = o.data ? read_text(o.data, &t) || fl_fail("lm: %s: cannot be read", o.data)
                     : write_grammar(&t, 1000000);
    if (ok && !o.load) ok = (c.tokenizer = make_tokenizer(&o, &t)) != NULL;
    fl_nn_module *m = !ok      ? NULL
                      : o.load ? load_model(&o, &c)
                               : make_model(&o, fl_text_vocab_size(c.tokenizer));
    ok = m && encode(&c, &t);
    if (ok) printf("%" PRId64 " bytes of text, vocabulary %" PRId64 ", %" PRId64 " tokens, %" PRId64
                   " for training; %" PRId64 " parameters\n", t.n, fl_text_vocab_size(c.tokenizer),
                   fl_text_tokens_count(c.tokens), c.train, fl_nn_count(m));
    if (ok && t.entropy > 0) printf("entropy of the grammar: %.4f nats per character\n", t.entropy);
    if (ok && !o.eval) ok = train(m, &o, &c) && (!o.save || save_model(m, &o, &c));
    ok = ok && (!o.sample || is_masked(&o) || write_sample(m, &o, &c)) && validate(m, &o, &c, &loss);
    if (ok && !strcmp(o.tokens, "word")) print_5gram(&t);
    if (ok) printf("Validation loss: %.4f nats per character\n", loss);
    else fprintf(stderr, "lm: %s\n", fl_error() ? fl_error() : "failed");
    corpus_free(&c);
    fl_nn_free(m);
    free(t.p);
    return !ok;
}
/* MIT licence: see LICENSE. */
