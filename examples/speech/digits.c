/* examples/speech/digits.c - spoken digit recognition: log-mel features, a small convolutional network, CTC

   make speech-digits DATA=dir [ARGS="..."]    dir holds fsdd/train.lst and fsdd/test.lst, whose paths are
                                               relative to the folder above it
   make speech-digits                          on synthesised digits (voices.h)

   Trains on recordings, single and concatenated to strings of two to four with random gaps. The last line is
   "Test WER: N.NN %": of single digits, with their ten spellings as the lexicon. --stream also decodes the
   tests in pieces of 10 to 400 ms and compares the words; --page FILE writes an HTML page of all tests, worst
   first. */
#include "../arguments.h"
#include "fl_speech.h"
#include "page.h"
#include "recordings.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *data, *save, *load, *leave_out, *page;
    int64_t epochs, batch, takes; /* takes: synthesised recordings per digit, without data */
    double lr;
    int64_t seed;
    bool eval, stream;
} options;

/* ---- training samples ---- */

typedef struct maker {
    const corpus *c;
    const fl_speech_features *features;
    int64_t seed;
} maker;

/* Sample i of an epoch: a recording alone, or at the start of a string. Strings of four are enough to learn
   word separators, and shorter than those of the test. */
static bool make_sample(fl_data_sample *s, fl_rng *rng, void *user) {
    const maker *m = user;
    const int64_t i = fl_item_int(s->t[0]);
    rng->key ^= m->seed * 0x9e3779b97f4a7c15u;
    int64_t index[MAX_STRING] = {i};
    double gap[MAX_STRING + 1];
    const int count = fl_rng_uniform(rng) < 0.6 ? 1 : (int)fl_speech_draw(rng, 2, 4);
    for (int k = 1; k < count; k++) index[k] = another(m->c, index[0], rng);
    for (int k = 0; k <= count; k++) gap[k] = fl_speech_between(rng, k && k < count ? -0.0 : 0.05, 0.3);
    utterance u;
    if (!join(m->c, index, count, gap, &u)) return false;
    fl_tensor *x = features_of(m->features, augmented(&u, rng));
    x = fl_speech_spec_augment(x, rng, .band_width = 4, .bands = 2, .frame_width = 5, .frames = 1 + count,
                               .mean = true);
    fl_heap_free(u.sound);
    s->n = 2;
    s->t[0] = x;
    s->t[1] = fl_from_host(u.letter, FL_SHAPE(u.letter_count), FL_I64);
    return x && s->t[1];
}

static bool give_index(int64_t i, fl_data_sample *out, void *user) {
    (void)user;
    out->n = 1;
    return (out->t[0] = fl_from_host(&i, FL_SCALAR_SHAPE, FL_I64)) != NULL;
}

/* Every batch mixes recordings and strings of all lengths, so that batch norm statistics are similar. */
static fl_data_set *training_set(const maker *m, const options *o) {
    fl_data_set *set = fl_data_shuffle(fl_data_callback(m->c->n, give_index, NULL), o->seed);
    set = fl_data_transform(set, make_sample, (void *)m);
    return fl_data_prefetch(
        fl_data_batches(set, .size = o->batch, .pad = true, .pad_value = {SILENCE * 0.25 + 2}, .lengths = 3),
        2, 6);
}

/* ---- training ---- */

static fl_var *training_loss(fl_nn_module *net, const fl_data_sample *b) {
    fl_var *logp = fv_log_softmax(fl_nn_forward(net, fv_const(b->t[0])), -1);
    fl_tensor *steps = fl_floor_divide(fl_add(b->t[2], fl_int(SUBSAMPLING - 1)), fl_int(SUBSAMPLING));
    return fv_ctc_loss(fv_transpose(logp, 0, 1), b->t[1], steps, b->t[3], .blank = BLANK,
                       .zero_infinity = true);
}

static bool train(fl_nn_module *net, const corpus *c, const fl_speech_features *features, const options *o) {
    const maker m = {c, features, o->seed};
    fl_data_set *set = training_set(&m, o);
    fl_optim *optim = fl_optim_adamw(fl_nn_parameters(net), .lr = o->lr, .weight_decay = 1e-3);
    const int64_t total = set ? fl_data_size(set) * o->epochs : 0;
    int64_t epoch = 0, index = 0, step = 0;
    bool ok = set && optim;
    double began = fl_data_now(), sum = 0;
    while (ok && epoch < o->epochs) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        const double warm = fmin(1, (double)(step + 1) / 100);
        const int64_t before = epoch;
        ok = fl_data_next(set, &epoch, &index, &b) &&
             fl_optim_set_lr(optim, warm * fl_optim_lr_cosine(o->lr, 0, step, total));
        fl_var *loss = ok ? training_loss(net, &b) : NULL;
        fl_optim_zero_grad(optim);
        ok = ok && fl_backward(loss) && fl_optim_clip(optim, 1) && fl_optim_step(optim);
        if (ok) sum += fl_item(fv_value(loss)), step++;
        fl_scope_end(&s);
        if (ok && epoch > before) {
            printf("Epoch %lld: loss %.4f, %.0f seconds\n", (long long)before,
                   sum / (double)fl_data_size(set), fl_data_now() - began);
            fflush(stdout);
            sum = 0;
        }
    }
    fl_optim_free(optim);
    fl_data_free(set);
    return ok;
}

/* ---- tests ---- */

/* Log probabilities [frames, CLASSES] of a sound. */
static fl_tensor *emissions(fl_nn_module *net, const fl_speech_features *f, const float *sound, int64_t n) {
    fl_tensor *x = fl_unsqueeze(features_of(f, fl_from_host(sound, FL_SHAPE(n), FL_F32)), 0);
    return fl_select(fl_log_softmax(fv_value(fl_nn_forward(net, fv_const(x))), -1), 0, 0);
}

/* Greedy decoding: equal neighbours merged, blanks removed, separators become spaces. */
static bool greedy(fl_tensor *logp, char *text, size_t size) {
    const float *p = fl_map(logp, FL_READ);
    int last = BLANK;
    size_t n = 0;
    for (int64_t t = 0; p && t < logp->shape[0]; t++) {
        int best = 0;
        for (int k = 1; k < CLASSES; k++)
            if (p[t * CLASSES + k] > p[t * CLASSES + best]) best = k;
        if (best != last && best != BLANK && n + 1 < size) text[n++] = best ? letters[best] : ' ';
        last = best;
    }
    text[n] = 0;
    if (p) fl_unmap(logp, FL_READ);
    return p != NULL;
}

/* The digit with the most likely spelling. */
static int likeliest(fl_tensor *logp) {
    int64_t target[DIGITS][8] = {{0}}, length[DIGITS], steps[DIGITS];
    for (int d = 0; d < DIGITS; d++) {
        utterance u = {0};
        spell(&u, d);
        memcpy(target[d], u.letter, (size_t)u.letter_count * sizeof *target[d]);
        length[d] = u.letter_count, steps[d] = logp->shape[0];
    }
    fl_tensor *each = fl_expand(fl_unsqueeze(logp, 1), FL_SHAPE(logp->shape[0], DIGITS, CLASSES));
    fl_tensor *loss =
        fl_ctc_loss(each, fl_from_host(target, FL_SHAPE(DIGITS, 8), FL_I64),
                    fl_from_host(steps, FL_SHAPE(DIGITS), FL_I64),
                    fl_from_host(length, FL_SHAPE(DIGITS), FL_I64), .blank = BLANK, .reduction = FL_NONE);
    return (int)fl_item_int(fl_argmin(loss, 0, false));
}

/* A decoder for the ten words in any order, separators optional, without a language model. */
static fl_speech_decoder *make_decoder(fl_speech_lexicon *l) {
    bool ok = l != NULL;
    for (int d = 0; ok && d < DIGITS; d++) {
        int32_t token[8];
        utterance u = {0};
        spell(&u, d);
        for (int64_t i = 0; i < u.letter_count; i++) token[i] = (int32_t)u.letter[i];
        ok = fl_speech_lexicon_add(l, words[d], token, u.letter_count) == d;
    }
    if (!ok || !fl_speech_lexicon_finish(l, FL_SPEECH_NO_SMEARING, NULL, false)) return NULL;
    return fl_speech_decoder_new(CLASSES, l, .beam = 100, .blank = BLANK, .separator = FL_I0,
                                 .log_add = true);
}

enum { MOST_WORDS = 256, FIXED_STRINGS = 200 };

/* The decoder's current words. Returns their number, -1 after fl_fail. */
static int64_t words_of(fl_speech_decoder *d, int64_t *word) {
    fl_speech_result r;
    int64_t n = 0;
    if (fl_speech_decoder_best(d, 1, &r) < 1) return -1;
    for (; n < r.words && n < MOST_WORDS; n++) word[n] = r.word[n].word;
    return n;
}

static bool decoder_step(fl_speech_decoder *d, fl_tensor *logp) {
    const float *p = fl_map(logp, FL_READ);
    const bool ok = p && fl_speech_decoder_step(d, p, logp->shape[0]);
    if (p) fl_unmap(logp, FL_READ);
    return ok;
}

static int64_t decode(fl_speech_decoder *d, fl_tensor *logp, int64_t *word) {
    if (!fl_speech_decoder_begin(d) || !decoder_step(d, logp) || !fl_speech_decoder_end(d)) return -1;
    return words_of(d, word);
}

static void print_words(const int64_t *word, int64_t n) {
    for (int64_t i = 0; i < n; i++) printf(" %s", words[word[i]]);
    putchar('\n');
}

/* ---- pieces ---- */

/* Streaming of a convolutional network: past frames it needs are computed again. */
typedef struct streamer {
    fl_nn_module *net;
    fl_speech_stream *in;
    float *frame;
    int64_t n, cap, first, given; /* number of frames held, index of the first; outputs returned */
} streamer;

/* The outputs that the available frames allow, [k, CLASSES], k >= 0. */
static fl_tensor *stream_outputs(streamer *l, const float *sound, int64_t n, bool end) {
    fl_tensor *x = fl_speech_stream_push(l->in, sound, n, end);
    if (!x || !fl_heap_grow(&l->frame, &l->cap, (l->n + x->shape[0] + 1) * BANDS, sizeof *l->frame))
        return NULL;
    x = scaled(x);
    const float *frame = x ? fl_map(x, FL_READ) : NULL;
    if (!frame) return NULL;
    memcpy(l->frame + l->n * BANDS, frame, (size_t)fl_numel(x) * sizeof *frame);
    fl_unmap(x, FL_READ);
    l->n += x->shape[0];
    const int64_t all = l->first + l->n, old = l->given;
    const int64_t ready = end           ? (all + 1) / SUBSAMPLING
                          : all > REACH ? (all - 1 - REACH) / SUBSAMPLING + 1
                                        : 0;
    if (ready <= old) return fl_zeros(FL_SHAPE(0, CLASSES), FL_F32);
    const int64_t begin = old * SUBSAMPLING > REACH ? old * SUBSAMPLING - REACH : 0, drop = begin - l->first;
    memmove(l->frame, l->frame + drop * BANDS, (size_t)((l->n - drop) * BANDS) * sizeof(float));
    l->n -= drop, l->first = begin, l->given = ready;
    x = fl_from_host(l->frame, FL_SHAPE(1, l->n, BANDS), FL_F32);
    x = fl_select(fl_log_softmax(fv_value(fl_nn_forward(l->net, fv_const(x))), -1), 0, 0);
    return fl_contiguous(fl_slice(x, 0, old - begin / SUBSAMPLING, ready - begin / SUBSAMPLING, 1));
}

/* Decodes an utterance in pieces, and increments *same if the words equal the n words of the whole. shows:
   prints partial results. */
static bool decode_stream(streamer *l, fl_speech_decoder *d, const utterance *u, fl_rng *rng,
                          const int64_t *word, int64_t n, bool shows, int64_t *same) {
    int64_t now[MOST_WORDS], before = 0, k = 0;
    bool ok = fl_speech_decoder_begin(d);
    l->n = l->first = l->given = 0;
    for (int64_t at = 0, piece; ok && at < u->n; at += piece) {
        piece = fl_speech_draw(rng, RATE / 100, RATE * 4 / 10);
        piece = piece < u->n - at ? piece : u->n - at;
        fl_scope s = fl_scope_begin();
        fl_tensor *logp = stream_outputs(l, u->sound + at, piece, at + piece == u->n);
        ok = logp && decoder_step(d, logp) && (k = words_of(d, now)) >= 0;
        if (ok && shows && k != before)
            printf("%6.2f s:", (double)(at + piece) / RATE), print_words(now, before = k);
        fl_scope_end(&s);
    }
    ok = ok && fl_speech_decoder_end(d) && (k = words_of(d, now)) >= 0;
    *same += ok && k == n && !memcmp(now, word, (size_t)n * sizeof *word);
    return ok;
}

/* The words of n digits, separated by spaces. */
static const char *text_of(const int64_t *word, int64_t n, char *text, size_t size) {
    size_t at = 0;
    *text = 0;
    for (int64_t i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? " " : "", words[word[i]]);
    return text;
}

typedef struct scores {
    fl_speech_scores *greedy, *lexicon;
} scores;

/* Test i: a recording surrounded by silence, or a string of three to seven; the same in each run. */
static bool test_utterance(const corpus *c, int64_t i, bool string, utterance *u) {
    fl_rng rng = fl_data_rng(1, 0, i);
    int64_t index[MAX_STRING] = {i};
    double gap[MAX_STRING + 1] = {0.1, 0.1};
    const int count = string ? (int)fl_speech_draw(&rng, 3, MAX_STRING) : 1;
    if (string) index[0] = fl_speech_draw(&rng, 0, c->n - 1);
    for (int k = 1; k < count; k++) index[k] = another(c, index[0], &rng);
    for (int k = 0; string && k <= count; k++) gap[k] = fl_speech_between(&rng, 0.05, 0.3);
    return join(c, index, count, gap, u);
}

/* Adds an utterance to the page: reference, hypothesis, features, and the alignment of the letters. */
static bool show(page *p, const fl_speech_features *f, const utterance *u, fl_tensor *logp,
                 const char *text, const int64_t *word, int64_t n) {
    static const char *const pause = "-";
    fl_speech_span span[8 * MAX_STRING];
    fl_data_edits e = {0};
    int64_t target[MAX_STRING];
    for (int i = 0; i < u->digits; i++) target[i] = u->digit[i];
    const float *emission = fl_map(logp, FL_READ);
    if (!emission) return false;
    const double score = fl_speech_align(emission, logp->shape[0], CLASSES, u->letter, u->letter_count, span,
                                         NULL, .blank = BLANK);
    fl_unmap(logp, FL_READ);
    if (isnan(score)) fl_error_clear(); /* more letters than frames */
    fl_tensor *x = features_of(f, fl_from_host(u->sound, FL_SHAPE(u->n), FL_F32));
    if (!x || !fl_data_edits_add(&e, word, n, target, u->digits)) return false;
    const double wrong = (double)(e.substitutions + e.insertions + e.deletions);
    const double unlikely = isnan(score) ? 9 : -score / (double)logp->shape[0];
    if (!page_begin(p, wrong * 1e3 + unlikely)) return false;
    page_put(p, "<p>%s:", speakers[u->speaker]);
    for (int i = 0; i < u->digits; i++) page_put(p, " <b>%s</b>", words[u->digit[i]]);
    page_put(p, "; heard:");
    for (int64_t i = 0; i < n; i++) page_put(p, " %s", words[word[i]]);
    page_put(p, "; letters: %s; score %.3f a frame", *text ? text : pause, -unlikely);
    page_picture(p, x);
    for (int64_t i = 0; i < u->letter_count && !isnan(score); i++)
        page_mark(p, (double)(span[i].begin * SUBSAMPLING), (double)(span[i].end * SUBSAMPLING),
                  letters[u->letter[i]], span[i].confidence);
    return page_end(p);
}

typedef struct test_run {
    fl_nn_module *net;
    const fl_speech_features *features;
    fl_speech_decoder *decoder;
    streamer streamer;
    page *page; /* NULL: no page */
    bool stream;
} test_run;

/* Scores test i, and increments *same if streaming gives the same words. */
static bool run_test(test_run *x, const corpus *c, int64_t i, bool string, const scores *s, int64_t *same) {
    utterance u;
    char text[256];
    int64_t word[MOST_WORDS], target[MAX_STRING], n = 1;
    bool ok = test_utterance(c, i, string, &u);
    fl_tensor *logp = ok ? fl_contiguous(emissions(x->net, x->features, u.sound, u.n)) : NULL;
    if ((ok = logp != NULL)) {
        char said[1024], guess[MOST_WORDS * 6];
        const char *const name = speakers[u.speaker];
        ok = greedy(logp, text, sizeof text);
        for (int k = 0; k < u.digits; k++) target[k] = u.digit[k];
        text_of(target, u.digits, said, sizeof said);
        *word = string ? 0 : likeliest(logp);
        ok = ok && (!string || (n = decode(x->decoder, logp, word)) >= 0) &&
             fl_speech_scores_add(s->greedy, name, text, said) &&
             fl_speech_scores_add(s->lexicon, name, text_of(word, n, guess, sizeof guess), said);
    }
    if (ok && x->page) ok = show(x->page, x->features, &u, logp, text, word, n);
    if (ok && x->stream) {
        fl_rng rng = fl_data_rng(2, string, i);
        ok = (n = decode(x->decoder, logp, word)) >= 0 &&
             decode_stream(&x->streamer, x->decoder, &u, &rng, word, n, string && i == 0, same);
    }
    fl_heap_free(u.sound);
    return ok;
}

static bool test(test_run *x, const corpus *c, bool string, double *wer) {
    const scores s = {fl_speech_scores_new(), fl_speech_scores_new()};
    fl_data_text table = {0};
    fl_data_edits e;
    bool ok = s.greedy && s.lexicon;
    int64_t same = 0;
    const int64_t n = string ? FIXED_STRINGS : c->n;
    for (int64_t i = 0; ok && i < n; i++) {
        fl_scope scope = fl_scope_begin();
        fl_no_grad(true);
        ok = run_test(x, c, i, string, &s, &same);
        fl_scope_end(&scope);
    }
    const char *what = string ? "strings" : "single digits";
    for (int k = 0; ok && k < 2; k++) {
        table.n = 0;
        ok = fl_speech_scores_table(k ? s.lexicon : s.greedy, &table);
        if (ok) printf("\n%s, %s\n%s", what, k ? "with the lexicon" : "greedy", table.p);
    }
    if (ok) fl_speech_scores_of(s.lexicon, NULL, &e, NULL), *wer = fl_data_edits_percent(&e);
    if (ok && x->stream)
        printf("in pieces of 10 to 400 ms: the same words in %lld of %lld, %.2f s late\n", (long long)same,
               (long long)n, (REACH + 2) * 0.01);
    fl_heap_free(table.p);
    fl_speech_scores_free(s.greedy);
    fl_speech_scores_free(s.lexicon);
    return ok && (!x->stream || same == n || fl_fail("digits: streaming gave other words in %lld tests",
                                                     (long long)(n - same)));
}

/* Tests strings, then single digits, whose WER is the result. */
static bool test_all(fl_nn_module *net, const fl_speech_features *f, const corpus *c, const options *o,
                     double *wer) {
    page p = {0};
    fl_speech_lexicon *lexicon = fl_speech_lexicon_new();
    test_run x = {net, f, make_decoder(lexicon), {net, fl_speech_stream_new(f), NULL, 0, 0, 0, 0},
                  o->page ? &p : NULL, o->stream};
    fl_nn_train(net, false);
    bool ok = x.decoder && x.streamer.in && test(&x, c, true, wer) && test(&x, c, false, wer);
    if (ok && o->page) {
        ok = page_save(&p, o->page, "What the digits' recogniser heard");
        if (ok) printf("\n%s: %lld utterances, the worst first\n", o->page, (long long)p.n);
    }
    page_free(&p);
    fl_heap_free(x.streamer.frame);
    fl_speech_stream_free(x.streamer.in);
    fl_speech_decoder_free(x.decoder);
    fl_speech_lexicon_free(lexicon);
    return ok;
}

/* ---- options ---- */

static bool parse(int argc, char **argv, options *o) {
    const argument list[] = {{"data", .text = &o->data},
                             {"save", .text = &o->save},
                             {"load", .text = &o->load},
                             {"page", .text = &o->page},
                             {"leave-out", .text = &o->leave_out}, /* use a speaker for testing only */
                             {"epochs", .whole = &o->epochs, .low = 1, .high = 1000},
                             {"batch", .whole = &o->batch, .low = 4, .high = 10000},
                             {"takes", .whole = &o->takes, .low = 1, .high = 10000}, /* of each digit */
                             {"lr", .number = &o->lr, .low = 0, .high = 1e3},
                             {"seed", .whole = &o->seed, .low = 0, .high = 9e15},
                             {"eval", .on = &o->eval},
                             {"stream", .on = &o->stream},
                             {NULL, .low = 0}};
    return arguments_read(argc, argv, list);
}

/* Moves the recordings of a speaker from one corpus to the other. */
static bool leave_out(corpus *train, corpus *test, const char *name) {
    int64_t n = 0, k = 0;
    const int speaker = speaker_of(name, strlen(name));
    for (int64_t i = 0; i < test->n; i++)
        if (test->r[i].speaker == speaker) test->r[k++] = test->r[i];
        else fl_heap_free(test->r[i].sound);
    test->n = k;
    for (int64_t i = 0; i < train->n; i++) {
        if (train->r[i].speaker != speaker) train->r[n++] = train->r[i];
        else if (fl_heap_grow(&test->r, &test->cap, test->n + 1, sizeof *test->r))
            test->r[test->n++] = train->r[i];
        else return false;
    }
    train->n = n;
    return test->n > 0 || fl_fail("digits: no speaker '%s'", name);
}

static bool get_corpora(const options *o, corpus *train, corpus *test) {
    if (!o->data) {
        puts("No --data given: training on digits spoken here.");
        return synthesise_corpus(train, o->takes, o->seed) && synthesise_corpus(test, 30, o->seed + 1000);
    }
    return load_list(o->data, "train.lst", train) && load_list(o->data, "test.lst", test) &&
           (!o->leave_out || leave_out(train, test, o->leave_out));
}

int main(int argc, char **argv) {
    options o = {.batch = 24, .takes = 200, .lr = 0.003, .seed = 1};
    if (!parse(argc, argv, &o)) return 2;
    if (!o.epochs) o.epochs = o.data ? 50 : 20;
    fl_seed(o.seed);
    fl_scope s = fl_scope_begin();
    corpus known = {0}, held_out = {0};
    double began = fl_data_now(), wer = 100;
    fl_speech_features *features = recordings_features();
    fl_nn_module *net = recordings_net(128, 5);
    bool ok = features && net && get_corpora(&o, &known, &held_out) && (!o.load || fl_nn_load(net, o.load));
    if (ok)
        printf("%lld parameters, %lld recordings to train with, %lld to test\n", (long long)fl_nn_count(net),
               (long long)known.n, (long long)held_out.n);
    if (ok && !o.eval) ok = train(net, &known, features, &o) && (!o.save || fl_nn_save(net, o.save));
    ok = ok && test_all(net, features, &held_out, &o, &wer);
    if (ok) printf("\n%.0f seconds\nTest WER: %.2f %%\n", fl_data_now() - began, wer);
    else fprintf(stderr, "digits: %s\n", fl_error() ? fl_error() : "failed");
    corpus_free(&known), corpus_free(&held_out);
    fl_nn_free(net);
    fl_speech_features_free(features);
    fl_scope_end(&s);
    return ok ? 0 : 1;
}
/* MIT licence: see LICENSE. */
