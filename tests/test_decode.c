/* test_decode.c - lexicons and beam search: against all paths, in pieces, with bad input */
#include "../fl_all.h"
#include "heap.h"
#include <pthread.h>

enum { CLASSES = 4, SEP = 2, BLANK = 3, WORDS = 4, UNKNOWN = 7, MOST = 6 };
/* Tokens a b | #; words of them. */
static const struct { const char *name; int32_t token[4]; int n; } spelling[WORDS] = {
    {"a", {0}, 1}, {"ab", {0, 1}, 2}, {"ba", {1, 0}, 2}, {"aab", {0, 0, 1}, 3}};

static double uniform(uint64_t *s) {
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return (double)(*s >> 11) * 0x1p-53;
}

/* A model of pairs: the score of a word depends on the one before it. */
static double pair_score(int64_t before, int64_t word) {
    return -0.3 * (double)((before * 7 + word * 3 + 2) % 5) - 0.1;
}

static bool pairs_start(const fl_text_scorer *s, fl_text_state *out) {
    (void)s;
    *out = (fl_text_state){.n = 1, .word = {9}};
    return true;
}
static bool pairs_score(const fl_text_scorer *s, const fl_text_state *from, int64_t token, fl_text_state *to,
                        double *score) {
    (void)s;
    *score = pair_score(from->word[0], token);
    *to = (fl_text_state){.n = 1, .word = {(int32_t)token}};
    return true;
}
static bool pairs_finish(const fl_text_scorer *s, const fl_text_state *from, double *score) {
    (void)s;
    *score = pair_score(from->word[0], 5);
    return true;
}
static const fl_text_scorer pairs = {.start = pairs_start, .score = pairs_score, .finish = pairs_finish};

static fl_speech_lexicon *words_ending(fl_speech_smear how, bool separator) {
    fl_speech_lexicon *l = fl_speech_lexicon_new();
    for (int k = 0; k < WORDS; k++) {
        int32_t token[5] = {0};
        memcpy(token, spelling[k].token, sizeof spelling[k].token);
        token[spelling[k].n] = SEP;
        CHECK_EQ_INT(fl_speech_lexicon_add(l, spelling[k].name, token, spelling[k].n + separator), k);
    }
    CHECK(fl_speech_lexicon_finish(l, how, &pairs, false));
    return l;
}

static fl_speech_lexicon *words(fl_speech_smear how) { return words_ending(how, false); }

/* ---- all paths ---- */

typedef struct search {
    const float *e;
    int64_t frames;
    bool asg, lexical, open;
    const float *transitions;
    double lm_weight, word_score, unknown_score, sil_score, best;
} search;

/* The best way to cut tokens from i on into words, given the word before; separators may stand between
   words. */
static double cut(const search *s, const int *token, int n, int i, int64_t before) {
    if (i == n) return s->lm_weight * pair_score(before, 5);
    if (!s->lexical) return s->lm_weight * pair_score(before, token[i]) + cut(s, token, n, i + 1, token[i]);
    if (s->open && token[i] != SEP) { /* a word or none of them, and the separator behind it */
        int end = i, w = 0;
        while (end < n && token[end] != SEP) end++;
        if (end == n) return -INFINITY;
        for (; w < WORDS; w++) {
            int k = 0;
            while (k < spelling[w].n && i + k < end && token[i + k] == spelling[w].token[k]) k++;
            if (k == spelling[w].n && i + k == end) break;
        }
        if (w == WORDS) w = UNKNOWN;
        return s->lm_weight * pair_score(before, w) + (w < WORDS ? s->word_score : s->unknown_score) +
               cut(s, token, n, end + 1, w);
    }
    double best = token[i] == SEP ? cut(s, token, n, i + 1, before) : -INFINITY;
    for (int w = 0; w < WORDS && !s->open; w++) {
        int k = 0;
        while (k < spelling[w].n && i + k < n && token[i + k] == spelling[w].token[k]) k++;
        if (k == spelling[w].n)
            best =
                fmax(best, s->lm_weight * pair_score(before, w) + s->word_score + cut(s, token, n, i + k, w));
    }
    return best;
}

static void all_paths(search *s, int *path, int t, double score) {
    if (t < s->frames) {
        for (int k = 0; k < (s->asg ? BLANK : CLASSES); k++) {
            const double step = s->asg && t ? s->transitions[k * CLASSES + path[t - 1]] : 0;
            path[t] = k;
            all_paths(s, path, t + 1, score + s->e[t * CLASSES + k] + step + (k == SEP ? s->sil_score : 0));
        }
        return;
    }
    int token[MOST], n = 0;
    for (int i = 0; i < t; i++)
        if ((s->asg || path[i] != BLANK) && (!i || path[i] != path[i - 1])) token[n++] = path[i];
    s->best = fmax(s->best, score + cut(s, token, n, 0, 9));
}

TEST(the_search_finds_the_best_of_all_paths) {
    uint64_t seed = 5;
    int64_t count = 0;
    for (int round = 0; round < 180; round++) {
        float e[MOST * CLASSES], transitions[CLASSES * CLASSES];
        for (int i = 0; i < MOST * CLASSES; i++) e[i] = (float)(3 * uniform(&seed));
        for (int i = 0; i < CLASSES * CLASSES; i++) transitions[i] = (float)uniform(&seed);
        search s = {.e = e,
                    .frames = 1 + round % (round < 20 ? 6 : 5),
                    .asg = round % 2,
                    .lexical = round % 3,
                    .open = round >= 120 && round % 3,
                    .transitions = transitions,
                    .lm_weight = uniform(&seed) * 2,
                    .sil_score = uniform(&seed) - 0.5,
                    .best = -INFINITY};
        s.word_score = s.lexical ? uniform(&seed) - 0.5 : 0;
        s.unknown_score = -uniform(&seed);
        int path[MOST];
        if (s.asg)
            for (int t = 0; t < MOST; t++)
                e[t * CLASSES + BLANK] = -100; /* ASG has none: a class that never comes */
        all_paths(&s, path, 0, 0);
        fl_speech_lexicon *l = s.lexical ? words_ending((fl_speech_smear)(round / 3 % 3), s.open) : NULL;
        fl_speech_decoder *d =
            fl_speech_decoder_new(CLASSES, l, .beam = 100000, .threshold = 1e6, .lm_weight = s.lm_weight,
                                  .word_score = s.word_score, .sil_score = s.sil_score, .lm = &pairs,
                                  .asg = s.asg, .transitions = transitions, .separator = SEP,
                                  .open = s.open, .unknown = UNKNOWN, .unknown_score = s.unknown_score);
        fl_speech_result r;
        CHECK(d && fl_speech_decoder_step(d, e, s.frames) && fl_speech_decoder_end(d));
        CHECK_EQ_INT(fl_speech_decoder_best(d, 1, &r), 1);
        if (isfinite(s.best)) CHECK_NEAR(r.score, s.best, 1e-5), count++;
        fl_speech_decoder_free(d);
        fl_speech_lexicon_free(l);
    }
    printf("%lld of 180 cases with a path\n", (long long)count);
    CHECK(count > 165);
    CHECK_NOTHING_LIVES();
}

/* ---- token after token ---- */

/* A model of hashes: what comes next hangs on all that was said, and on the frame. */
enum { END = 3, PLACES = 200000, STEPS = 3, BESIDE = 2, LONGEST = STEPS * BESIDE };
static uint64_t said_at[PLACES];

static uint64_t say(uint64_t before, int token) {
    uint64_t h = (before ^ (uint64_t)(token + 2)) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static void guess(uint64_t said, int64_t frame, float *p) {
    double e[CLASSES], sum = 0;
    uint64_t h = say(said, 77 + (int)frame) | 1;
    for (int k = 0; k < CLASSES; k++) sum += e[k] = exp(3 * uniform(&h));
    for (int k = 0; k < CLASSES; k++) p[k] = (float)log(e[k] / sum);
}

static bool hashes_extend(const fl_speech_predictor *p, int64_t n, const int32_t *from, const int32_t *token,
                          const int32_t *to) {
    static uint64_t made[PLACES];
    const uint64_t start = *(const uint64_t *)p->self;
    for (int64_t i = 0; i < n; i++) made[i] = from[i] < 0 ? start : say(said_at[from[i]], token[i]);
    for (int64_t i = 0; i < n; i++) {
        CHECK(to[i] >= 0 && to[i] < PLACES && (p->transducer || to[i] == i));
        said_at[to[i]] = made[i];
    }
    return true;
}

static bool hashes_scores(const fl_speech_predictor *p, int64_t frame, int64_t n, const int32_t *at,
                          float *out) {
    for (int64_t i = 0; i < n; i++) guess(said_at[at[i]], p->transducer ? frame : 0, out + i * CLASSES);
    return true;
}

static double log_sum(double a, double b, bool add) {
    const double most = fmax(a, b), least = fmin(a, b);
    return add && most > -INFINITY ? most + log1p(exp(least - most)) : most;
}

/* Log probability of n tokens: of a sequence, or all ways of a transducer through its frames. */
static double model_score(const fl_speech_predictor *p, const int *token, int n, bool add) {
    uint64_t said = *(const uint64_t *)p->self;
    float e[CLASSES];
    double way[LONGEST + 1], next[LONGEST + 1], sum = 0;
    for (int k = 0; k <= n; k++) way[k] = k ? -INFINITY : 0;
    for (int t = 0; t < STEPS && p->transducer; t++) {
        uint64_t at = *(const uint64_t *)p->self;
        for (int k = 0; k <= n; k++) next[k] = -INFINITY;
        for (int k = 0; k <= n; k++) { /* from k tokens to k + m in this frame */
            double score = way[k];
            uint64_t h = at;
            for (int m = 0; m <= BESIDE && k + m <= n; m++) {
                guess(h, t, e);
                next[k + m] = log_sum(next[k + m], score + e[END], add);
                if (k + m < n) score += e[token[k + m]], h = say(h, token[k + m]);
            }
            if (k < n) at = say(at, token[k]);
        }
        memcpy(way, next, sizeof way);
    }
    for (int k = 0; k <= n && !p->transducer; k++) {
        guess(said, 0, e);
        sum += e[k < n ? token[k] : END];
        if (k < n) said = say(said, token[k]);
    }
    return p->transducer ? way[n] : sum;
}

TEST(searches_find_the_best_of_all_sequences) {
    uint64_t seed = 99;
    int64_t joined = 0, counted = 0;
    for (int round = 0; round < 120; round++) {
        uint64_t start = seed = seed * 6364136223846793005u + 1;
        const fl_speech_predictor p = {.self = &start, .classes = CLASSES, .end = END,
                                       .transducer = round % 2, .extend = hashes_extend,
                                       .scores = hashes_scores};
        const search s = {
            .lexical = round % 3, .lm_weight = 2 * uniform(&seed), .word_score = uniform(&seed)};
        const double end_score = uniform(&seed);
        const bool add = p.transducer && round / 2 % 2;
        double best[5] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
        const int longest = p.transducer ? LONGEST : 5;
        for (int n = 0; n <= longest; n++) {
            int token[LONGEST] = {0}, i = 0;
            while (i < n || n == 0) {
                bool can = true;
                for (int k = 0; k < n && s.lexical; k++) can &= token[k] != SEP;
                double x =
                    can ? model_score(&p, token, n, add) + end_score + cut(&s, token, n, 0, 9)
                        : -INFINITY;
                for (int k = 0; k < 5; k++)
                    if (x > best[k]) {
                        const double t = best[k];
                        best[k] = x, x = t;
                    }
                for (i = 0; i < n && ++token[i] == END; i++) token[i] = 0;
                if (n == 0) break;
            }
        }
        fl_speech_lexicon *l = s.lexical ? words((fl_speech_smear)(round / 3 % 3)) : NULL;
        fl_speech_search *d = fl_speech_search_new(
            &p, l, .beam = 100000, .threshold = 1e6, .most = p.transducer ? BESIDE : 5, .log_add = add,
            .lm = &pairs, .lm_weight = s.lm_weight, .word_score = s.word_score, .end_score = end_score);
        fl_speech_result r[5];
        for (int twice = 0; twice < 2; twice++) { /* in one piece, and step by step */
            CHECK(d && fl_speech_search_begin(d));
            for (int k = 0; k < (twice ? 6 : 1); k++)
                CHECK(fl_speech_search_step(d, twice          ? !p.transducer || k < STEPS
                                               : p.transducer ? STEPS
                                                              : 6));
            CHECK(fl_speech_search_end(d));
            const int64_t n = fl_speech_search_best(d, 5, r);
            CHECK_EQ_INT(n, 5);
            for (int k = 0; k < (s.lexical ? 1 : 5) && k < n; k++) CHECK_NEAR(r[k].score, best[k], 1e-5);
            counted += n;
            joined += add && r[0].score > r[0].acoustic + s.lm_weight * r[0].lm + end_score + 0.1 +
                                              (s.lexical ? s.word_score * (double)r[0].words : 0);
        }
        fl_speech_search_free(d);
        fl_speech_lexicon_free(l);
    }
    printf("%lld hypotheses; sums of ways in %lld\n", (long long)counted, (long long)joined);
    CHECK(joined > 20);
    CHECK_NOTHING_LIVES();
}

/* ---- pieces ---- */

static void noisy(float *e, int64_t frames, uint64_t seed) {
    for (int64_t i = 0; i < frames * CLASSES; i++) e[i] = (float)log(uniform(&seed) + 1e-3) * 2;
}

TEST(pieces_give_what_the_whole_gives) {
    enum { FRAMES = 60 };
    float e[FRAMES * CLASSES];
    int64_t final_words = 0;
    for (int round = 0; round < 20; round++) {
        noisy(e, FRAMES, (uint64_t)round + 1);
        fl_speech_lexicon *l = words(FL_SPEECH_SMEAR_MAX);
        fl_speech_decoder *d[2];
        for (int k = 0; k < 2; k++)
            d[k] = fl_speech_decoder_new(CLASSES, l, .beam = 40, .lm_weight = 1, .lm = &pairs,
                                         .separator = SEP, .log_add = round % 2);
        CHECK(fl_speech_decoder_step(d[0], e, FRAMES) && fl_speech_decoder_end(d[0]));
        int64_t said[FRAMES][3], n = 0;
        for (int64_t at = 0, m = 1; at < FRAMES; at += m, m = m * 3 % 11 + 1) {
            if (m > FRAMES - at) m = FRAMES - at;
            const fl_speech_word *w;
            CHECK(fl_speech_decoder_step(d[1], e + at * CLASSES, m));
            const int64_t more = fl_speech_decoder_prune(d[1], &w);
            for (int64_t i = 0; i < more; i++)
                said[n][0] = w[i].word, said[n][1] = w[i].begin, said[n++][2] = w[i].end;
        }
        final_words += n;
        CHECK(fl_speech_decoder_end(d[1]));
        fl_speech_result a, b;
        CHECK_EQ_INT(fl_speech_decoder_best(d[0], 1, &a), 1);
        CHECK_EQ_INT(fl_speech_decoder_best(d[1], 1, &b), 1);
        CHECK_NEAR(a.score, b.score, 1e-9);
        CHECK_EQ_INT(a.words, n + b.words);
        for (int64_t i = 0; i < a.words && i < n; i++)
            CHECK(a.word[i].word == said[i][0] && a.word[i].begin == said[i][1]); /* what was final stays */
        for (int64_t i = n; i < a.words; i++)
            CHECK(a.word[i].word == b.word[i - n].word && a.word[i].begin == b.word[i - n].begin);
        for (int k = 0; k < 2; k++) fl_speech_decoder_free(d[k]);
        fl_speech_lexicon_free(l);
    }
    printf("%lld words were final early\n", (long long)final_words);
    CHECK(final_words > 20);
    CHECK_NOTHING_LIVES();
}

TEST(times_and_confidences) {
    /* #  a  a  #  a  |  b  a  #: "a", "a", "ba", or the like */
    static const int path[] = {3, 0, 0, 3, 0, 2, 1, 0, 3};
    float e[9 * CLASSES];
    for (int i = 0; i < 9 * CLASSES; i++) e[i] = i % CLASSES == path[i / CLASSES] ? 0 : -20;
    fl_speech_lexicon *l = words(FL_SPEECH_NO_SMEARING);
    fl_speech_decoder *d = fl_speech_decoder_new(CLASSES, l, .separator = SEP, .threshold = 200);
    fl_speech_result r[3];
    CHECK(fl_speech_decoder_step(d, e, 9) && fl_speech_decoder_end(d));
    CHECK_EQ_INT(fl_speech_decoder_best(d, 3, r), 3);
    static const int64_t want[][3] = {{0, 1, 3}, {0, 4, 5}, {2, 6, 8}};
    CHECK_EQ_INT(r[0].words, 3);
    for (int i = 0; i < 3 && r[0].words == 3; i++) {
        CHECK_EQ_INT(r[0].word[i].word, want[i][0]);
        CHECK_EQ_INT(r[0].word[i].begin, want[i][1]);
        CHECK_EQ_INT(r[0].word[i].end, want[i][2]);
        CHECK(r[0].word[i].confidence > 0.9 && r[0].word[i].confidence <= 1);
    }
    int32_t token[9];
    CHECK(fl_speech_decoder_tokens(d, token));
    for (int i = 0; i < 9; i++) CHECK_EQ_INT(token[i], path[i]);
    fl_speech_decoder_free(d);
    fl_speech_lexicon_free(l);
    CHECK_NOTHING_LIVES();
}

/* ---- alignment ---- */

/* The best score of the paths that spell n tokens. */
static double best_spelling(const float *e, const float *transitions, bool asg, const int64_t *want, int n,
                            int frames, int *path, int t, double score) {
    if (t < frames) {
        double best = -INFINITY;
        for (int k = 0; k < (asg ? BLANK : CLASSES); k++) {
            path[t] = k;
            const double step = asg && t ? transitions[k * CLASSES + path[t - 1]] : 0;
            best = fmax(best, best_spelling(e, transitions, asg, want, n, frames, path, t + 1,
                                            score + e[t * CLASSES + k] + step));
        }
        return best;
    }
    int at = 0;
    for (int i = 0; i < t; i++) {
        if ((!asg && path[i] == BLANK) || (i && path[i] == path[i - 1])) continue;
        if (at == n || path[i] != want[at++]) return -INFINITY;
    }
    return at == n ? score : -INFINITY;
}

TEST(alignments_are_the_best_of_all_paths) {
    uint64_t seed = 17;
    int64_t refused = 0;
    for (int round = 0; round < 200; round++) {
        float e[MOST * CLASSES], transitions[CLASSES * CLASSES];
        for (int i = 0; i < MOST * CLASSES; i++) e[i] = (float)log(uniform(&seed) + 1e-3);
        for (int i = 0; i < CLASSES * CLASSES; i++) transitions[i] = (float)uniform(&seed);
        const bool asg = round % 2;
        const int frames = 1 + round / 2 % MOST, n = 1 + round % 4;
        int64_t want[4], said[MOST];
        for (int i = 0; i < n; i++) {
            want[i] = (int64_t)(uniform(&seed) * BLANK);
            if (asg && i && want[i] == want[i - 1])
                want[i] = (want[i] + 1) % BLANK; /* ASG cannot tell them apart */
        }
        int path[MOST];
        const double best = best_spelling(e, transitions, asg, want, n, frames, path, 0, 0);
        fl_speech_span span[4];
        const double got =
            fl_speech_align(e, frames, CLASSES, want, n, span, said, .asg = asg, .transitions = transitions);
        if (isinf(best)) {
            CHECK(isnan(got));
            CHECK_ERROR("frames, got");
            refused++;
            continue;
        }
        CHECK_NEAR(got, best, 1e-6);
        double sum = 0;
        for (int t = 0; t < frames; t++)
            sum += e[t * CLASSES + said[t]] + (asg && t ? transitions[said[t] * CLASSES + said[t - 1]] : 0);
        CHECK_NEAR(sum, best, 1e-6);
        for (int i = 0; i < n; i++) {
            CHECK(span[i].token == want[i] && span[i].begin < span[i].end &&
                  (!i || span[i].begin >= span[i - 1].end));
            CHECK(span[i].confidence > 0 && span[i].confidence < 1.01);
        }
    }
    printf("%lld did not fit\n", (long long)refused);
    CHECK(refused > 20 && refused < 120);
    fl_speech_span span[2];
    float e[2 * CLASSES] = {0};
    CHECK(isnan(fl_speech_align(e, 2, CLASSES, ((int64_t[]){0, BLANK}), 2, span, NULL)));
    CHECK_ERROR("token 1 is 3, expected a class below 4");
    e[5] = NAN;
    CHECK(isnan(fl_speech_align(e, 2, CLASSES, ((int64_t[]){0}), 1, span, NULL)));
    CHECK_ERROR("a score of frame 1 is NaN");
    CHECK_NOTHING_LIVES();
}

/* ---- memory ---- */

TEST(a_warm_search_allocates_nothing) {
    for (int transducer = 0; transducer < 2; transducer++) {
        uint64_t start = 12;
        const fl_speech_predictor p = {&start, CLASSES, END, transducer, hashes_extend, hashes_scores, NULL};
        fl_speech_lexicon *l = words(FL_SPEECH_SMEAR_MAX);
        fl_speech_search *d = fl_speech_search_new(&p, l, .lm = &pairs, .lm_weight = 1, .most = 30);
        heap_fail_at(0);
        for (int round = 0; round < 2; round++) {
            if (round) fl_heap_use(heap_fn, NULL);
            CHECK(fl_speech_search_begin(d) && fl_speech_search_step(d, 30) && fl_speech_search_end(d));
        }
        fl_heap_use(NULL, NULL);
        CHECK_EQ_INT(heap.calls, 0);
        fl_speech_search_free(d);
        fl_speech_lexicon_free(l);
    }
}

static const fl_speech_lexicon *of_words, *of_letters;

static bool search_something(void) {
    bool ok = true;
    for (int transducer = 0; ok && transducer < 2; transducer++) {
        uint64_t start = 12;
        const fl_speech_predictor p = {&start, CLASSES, END, transducer, hashes_extend, hashes_scores, NULL};
        fl_speech_search *d = fl_speech_search_new(&p, of_words, .lm = &pairs, .lm_weight = 1, .most = 9);
        fl_speech_result r[3];
        ok = d && fl_speech_search_step(d, 9) && fl_speech_search_end(d) &&
             fl_speech_search_best(d, 3, r) > 0;
        fl_speech_search_free(d);
    }
    return ok;
}

static bool decode_openly(void) {
    float e[30 * CLASSES];
    fl_speech_result r[3];
    noisy(e, 30, 5);
    fl_speech_decoder *d =
        fl_speech_decoder_new(CLASSES, of_letters, .beam = 40, .lm_weight = 1, .lm = &pairs, .separator = SEP,
                              .open = true, .unknown = UNKNOWN, .log_add = true);
    const bool ok = d && fl_speech_decoder_step(d, e, 30) && fl_speech_decoder_end(d) &&
                    fl_speech_decoder_best(d, 3, r) == 3;
    fl_speech_decoder_free(d);
    return ok;
}

TEST(searches_survive_a_heap_that_fails) {
    fl_speech_lexicon *l[] = {words(FL_SPEECH_SMEAR_MAX), words_ending(FL_SPEECH_SMEAR_MAX, true)};
    of_words = l[0], of_letters = l[1];
    fl_heap_use(heap_fn, NULL);
    const int64_t n = sweep_heap(search_something, false), m = sweep_heap(decode_openly, false);
    fl_heap_use(NULL, NULL);
    printf("%lld and %lld points of failure\n", (long long)n, (long long)m);
    CHECK(n > 20 && m > 8);
    for (int k = 0; k < 2; k++) fl_speech_lexicon_free(l[k]);
    CHECK_NOTHING_LIVES();
}

TEST(a_warm_decoder_allocates_nothing) {
    heap_fail_at(0);
    enum { FRAMES = 200 };
    static float e[FRAMES * CLASSES];
    noisy(e, FRAMES, 3);
    fl_speech_lexicon *l = words(FL_SPEECH_SMEAR_MAX);
    fl_speech_decoder *d =
        fl_speech_decoder_new(CLASSES, l, .beam = 40, .lm_weight = 1, .lm = &pairs, .separator = SEP);
    for (int round = 0; round < 2; round++) {
        if (round) fl_heap_use(heap_fn, NULL);
        CHECK(fl_speech_decoder_begin(d) && fl_speech_decoder_step(d, e, FRAMES) && fl_speech_decoder_end(d));
    }
    fl_heap_use(NULL, NULL);
    CHECK_EQ_INT(heap.calls, 0);
    fl_speech_decoder_free(d);
    fl_speech_lexicon_free(l);
}

/* ---- streams ---- */

/* A model whose states are whole histories, as a neural one's are: a hash of all that was said. It is asked
   only about states that it was told of. */
static int64_t batches, told, asked_untold, most_states;
static int32_t history[4096];
static bool histories_score(const fl_text_scorer *s, const fl_text_state *from, int64_t token,
                            fl_text_state *to, double *score) {
    bool known = from->word[0] == 9;
    for (int64_t i = 0; i < told && !known; i++) known = history[i] == from->word[0];
    asked_untold += !known;
    (void)s;
    *score = -1e-3 * (double)((uint32_t)from->word[0] % 97) - 0.1 * (double)token;
    *to = (fl_text_state){.n = 1, .word = {(int32_t)((uint32_t)from->word[0] * 31u + (uint32_t)token + 7u)}};
    return true;
}
static bool histories_batch(const fl_text_scorer *s, const fl_text_state *state, int64_t n) {
    (void)s;
    batches++, told = n;
    for (int64_t i = 0; i < n; i++) history[i] = state[i].word[0];
    for (int64_t i = 1; i < n; i++)
        for (int64_t k = 0; k < i; k++) CHECK(history[i] != history[k]);
    most_states = n > most_states ? n : most_states;
    return true;
}
static const fl_text_scorer histories = {
    .start = pairs_start, .score = histories_score, .batch = histories_batch, .finish = pairs_finish};

/* An endless utterance: memory stays as it is after the first part, and all that is final adds up to what the
   whole would say. */
TEST(an_hour_takes_the_memory_of_a_minute) {
    enum { PART = 250, PARTS = 360 }; /* 90,000 frames of 40 ms */
    static float e[PART * CLASSES];
    fl_speech_lexicon *l = words(FL_SPEECH_NO_SMEARING);
    fl_speech_decoder *d =
        fl_speech_decoder_new(CLASSES, l, .beam = 20, .lm_weight = 1, .lm = &histories, .separator = SEP);
    int64_t said = 0, last = 0;
    const int parts = test_full() ? PARTS : PARTS / 6;
    heap_fail_at(0);
    for (int i = 0; i < parts; i++) {
        noisy(e, PART, (uint64_t)i % 7 + 1);
        if (i == parts / 3) fl_heap_use(heap_fn, NULL);
        for (int at = 0; at < PART; at += 25) {
            const fl_speech_word *w;
            CHECK(fl_speech_decoder_step(d, e + at * CLASSES, 25));
            const int64_t n = fl_speech_decoder_prune(d, &w);
            CHECK(n >= 0);
            for (int64_t k = 0; k < n; k++) {
                CHECK(w[k].begin >= last && w[k].end > w[k].begin);
                last = w[k].end;
            }
            said += n;
        }
    }
    fl_heap_use(NULL, NULL);
    printf("%lld frames, %lld words, %lld batches of up to %lld states, %lld allocations behind the first "
           "third\n",
           (long long)fl_speech_decoder_frames(d), (long long)said, (long long)batches,
           (long long)most_states, (long long)heap.calls);
    CHECK(heap.calls <= 3); /* a longer stretch without a common word may come late */
    CHECK_EQ_INT(asked_untold, 0);
    CHECK_EQ_INT(batches, (int64_t)parts * PART);
    CHECK(said > parts * 20);
    CHECK(fl_speech_decoder_end(d));
    fl_speech_decoder_free(d);
    fl_speech_lexicon_free(l);
    CHECK_NOTHING_LIVES();
}

typedef struct listener {
    const fl_speech_lexicon *lexicon;
    uint64_t seed;
    double score;
    int64_t words;
} listener;

static void *listen(void *user) {
    enum { FRAMES = 300 };
    listener *x = user;
    float *e = malloc(FRAMES * CLASSES * sizeof *e);
    noisy(e, FRAMES, x->seed);
    fl_speech_decoder *d = fl_speech_decoder_new(CLASSES, x->lexicon, .beam = 60, .lm_weight = 1,
                                                 .lm = &pairs, .separator = SEP);
    fl_speech_result r;
    if (d && fl_speech_decoder_step(d, e, FRAMES) && fl_speech_decoder_end(d) &&
        fl_speech_decoder_best(d, 1, &r) == 1)
        x->score = r.score, x->words = r.words;
    fl_speech_decoder_free(d);
    free(e);
    return NULL;
}

TEST(threads_share_lexicon_and_model) {
    fl_speech_lexicon *l = words(FL_SPEECH_SMEAR_MAX);
    listener alone[8], beside[8];
    pthread_t thread[8];
    for (int i = 0; i < 8; i++) {
        alone[i] = beside[i] = (listener){l, (uint64_t)i + 1, 0, 0};
        listen(&alone[i]);
    }
    for (int i = 0; i < 8; i++) CHECK(pthread_create(&thread[i], NULL, listen, &beside[i]) == 0);
    for (int i = 0; i < 8; i++) {
        pthread_join(thread[i], NULL);
        CHECK(beside[i].score == alone[i].score && beside[i].words == alone[i].words && alone[i].words > 5);
    }
    fl_speech_lexicon_free(l);
    CHECK_NOTHING_LIVES();
}

TEST(hot_words_and_endpoints) {
    /* "ab" or "ba", as likely as each other but for a little. */
    float e[12 * CLASSES];
    for (int i = 0; i < 12 * CLASSES; i++) e[i] = -20;
    for (int t = 0; t < 12; t++) e[t * CLASSES + BLANK] = -3;
    e[0] = e[2 * CLASSES + 1] = -1, e[1] = e[2 * CLASSES] = -1.5f;
    for (int t = 3; t < 12; t++) e[t * CLASSES + BLANK] = 0;
    static const int64_t hot[] = {2}, bad[] = {-1};
    static const double bonus[] = {2};
    for (int k = 0; k < 4; k++) {
        fl_text_scorer *lm = fl_speech_hot_words(k / 2 ? &pairs : NULL, hot, bonus, k % 2);
        fl_speech_lexicon *l = words(FL_SPEECH_SMEAR_MAX);
        CHECK(fl_speech_lexicon_finish(l, FL_SPEECH_SMEAR_MAX, lm, false));
        fl_speech_decoder *d =
            fl_speech_decoder_new(CLASSES, l, .lm = lm, .lm_weight = 1, .separator = SEP, .threshold = 100);
        fl_speech_result r;
        CHECK_EQ_INT(fl_speech_decoder_endpoint(d, .frame = 1), 0);
        CHECK(fl_speech_decoder_step(d, e, 4));
        CHECK_EQ_INT(fl_speech_decoder_endpoint(d, .frame = 1, .trailing = 4), 0);
        CHECK(fl_speech_decoder_step(d, e + 4 * CLASSES, 8));
        CHECK(fl_speech_decoder_end(d));
        CHECK_EQ_INT(fl_speech_decoder_best(d, 1, &r), 1);
        CHECK_EQ_INT(r.words, 1);
        CHECK_EQ_INT(r.word[0].word, k ? 2 : 1); /* pairs likes "ba" too */
        CHECK_EQ_INT(fl_speech_decoder_endpoint(d, .frame = 1, .trailing = 9), 2);
        CHECK_EQ_INT(fl_speech_decoder_endpoint(d, .frame = 1, .trailing = 9.5, .longest = 13), 0);
        CHECK_EQ_INT(fl_speech_decoder_endpoint(d, .frame = 1, .trailing = 9.5, .longest = 12), 3);
        CHECK(fl_speech_decoder_begin(d) && fl_speech_decoder_step(d, e + 3 * CLASSES, 9));
        CHECK_EQ_INT(fl_speech_decoder_endpoint(d, .frame = 1, .nothing = 9), 1);
        CHECK_EQ_INT(fl_speech_decoder_endpoint(d, .frame = 1, .nothing = 10), 0);
        fl_speech_decoder_free(d);
        fl_speech_lexicon_free(l);
        fl_text_scorer_free(lm);
    }
    CHECK(!fl_speech_hot_words(NULL, bad, bonus, 1));
    CHECK_ERROR("word -1, bonus 2");
    CHECK_NOTHING_LIVES();
}

/* The history that stays is the best one's by its own score: of three that are joined the first two must not
   outweigh the third together. */
TEST(a_sum_does_not_choose_the_history) {
    /* Three ways to "a" in two frames: blank a, a blank, a a: they differ in when it begins. */
    float e[2 * CLASSES];
    for (int i = 0; i < 2 * CLASSES; i++) e[i] = -50;
    e[0] = -1, e[BLANK] = -1.2f, e[CLASSES] = -1, e[CLASSES + BLANK] = -40;
    fl_speech_decoder *d = fl_speech_decoder_new(CLASSES, NULL, .log_add = true, .threshold = 100);
    fl_speech_result r;
    CHECK(fl_speech_decoder_step(d, e, 2) && fl_speech_decoder_end(d));
    CHECK(fl_speech_decoder_best(d, 1, &r) == 1 && r.words == 1);
    CHECK_EQ_INT(r.word[0].begin, 0);
    CHECK_NEAR(r.score, log(exp(-2) + exp(-2.2)), 1e-5);
    fl_speech_decoder_free(d);
    CHECK_NOTHING_LIVES();
}

/* ---- errors ---- */

static bool broken(const fl_speech_predictor *p, int64_t frame, int64_t n, const int32_t *at, float *out) {
    static const float what[] = {-INFINITY, NAN, -INFINITY, INFINITY};
    for (int64_t i = 0; i < n * CLASSES; i++) out[i] = what[*(const uint64_t *)p->self];
    return *(const uint64_t *)p->self != 2 || (at && fl_fail("the model broke at %d", (int)frame));
}

TEST(searches_say_what_is_wrong) {
    uint64_t how = 0;
    const fl_speech_predictor bad = {&how, CLASSES, 9, false, hashes_extend, broken, NULL};
    fl_speech_predictor p = {&how, CLASSES, END, false, hashes_extend, broken, NULL};
    fl_speech_lexicon *l = words(FL_SPEECH_NO_SMEARING);
    CHECK(!fl_speech_search_new(&bad, l));
    CHECK_ERROR("classes 4, end 9");
    CHECK(!fl_speech_search_new(&p, l, .beam = -1));
    CHECK_ERROR("beam -1");
    CHECK(!fl_speech_search_new(&p, l, .threshold = NAN));
    CHECK_ERROR("threshold nan");
    CHECK(!fl_speech_search_step(NULL, 1));
    CHECK_ERROR("fl_speech_search_step: the search is NULL");
    CHECK(!fl_speech_rescore(&(fl_speech_result){0}, 1, NULL, 1, 1));
    CHECK_ERROR("fl_speech_rescore: the scorer is NULL");
    for (int transducer = 0; transducer < 2; transducer++) {
        p.transducer = transducer;
        fl_speech_search *d = fl_speech_search_new(&p, NULL);
        fl_speech_result r;
        CHECK(d && fl_speech_search_end(d)); /* nothing was heard */
        CHECK_EQ_INT(fl_speech_search_best(d, 1, &r), 1);
        CHECK_EQ_INT(r.words, 0);
        for (how = 0; how < 4; how++) {
            CHECK(fl_speech_search_begin(d));
            CHECK(fl_speech_search_step(d, 3) == (how == 0));
            if (how)
                CHECK_ERROR(how == 1   ? "step 0, class 0: the score is NaN"
                            : how == 2 ? "the model broke at 0"
                                       : "step 0, class 0: the score is inf");
            CHECK(fl_speech_search_end(d) && fl_speech_search_best(d, 1, &r) >= 0);
        }
        fl_speech_search_free(d);
    }
    fl_speech_lexicon_free(l);
    CHECK_NOTHING_LIVES();
}

/* Input of no sense: the words that are heard by their numbers, without a lexicon, with one, and with a beam
   of 1; "none": no hypothesis. Frames are lines of "a b | #": of each the token named is sure; - is a line of
   -inf, 0 one where only the token before is possible, ? NaN, + inf. */
TEST(decoders_of_odd_input) {
    static const struct { const char *frames, *heard[3], *asg[3]; } table[] = {
        {"", {"", "", ""}, {"", "", ""}},
        {"a", {"0", "0", ""}, {"0", "0", ""}},
        {"#", {"", "", ""}, {"3", "0", ""}},
        {"######", {"", "", ""}, {"3"}}, /* words of one score each */
        {"||||||", {"2", "", ""}, {"2", "", ""}},
        {"aaaaaa", {"0", "0", ""}, {"0", "0", ""}},
        {"a#b|ba", {"0 1 2 1 0", "1 2", "1 2"}, {"0 3 1 2 1 0", "1 2", "1 2"}},
        {"-", {"none", "none", "none"}, {"none", "none", "none"}},
        {"a-b", {"none", "none", "none"}, {"none", "none", "none"}},
        {"ab-", {"none", "none", "none"}, {"none", "none", "none"}},
        {"b0", {"1", "", ""}, {"1", "", ""}},
        {"#0", {"", "", ""}, {"3", "none", "none"}}, /* no word begins with it */
        {"a?b", {"frame 1, class 0: the score is NaN"}, {"frame 1, class 0: the score is NaN"}},
        {"ab+", {"frame 2, class 0: the score is inf"}, {"frame 2, class 0: the score is inf"}}};
    static const char tokens[] = "ab|#";
    for (size_t k = 0; k < sizeof table / sizeof *table; k++)
        for (int how = 0; how < 12; how++) {
            const int kind = how % 3, asg = how / 3 % 2;
            const char *frames = table[k].frames, *want = asg ? table[k].asg[kind] : table[k].heard[kind];
            const int64_t n = (int64_t)strlen(frames);
            float e[8 * CLASSES];
            for (int64_t i = 0; i < n * CLASSES; i++) {
                const char f = frames[i / CLASSES], token = tokens[i % CLASSES];
                e[i] = f == token ? 0 : -9;
                if (f == '0') e[i] = frames[i / CLASSES - 1] == token ? 0 : -INFINITY;
                if (f == '-') e[i] = -INFINITY;
                if (f == '?' || f == '+') e[i] = f == '?' ? NAN : INFINITY;
                if (frames[i / CLASSES + 1] == '0' && e[i] < 0) e[i] = -INFINITY;
            }
            fl_speech_lexicon *l = kind ? words(FL_SPEECH_NO_SMEARING) : NULL;
            fl_speech_decoder *d = fl_speech_decoder_new(CLASSES, l, .beam = kind == 2, .asg = asg,
                                                         .log_add = how >= 6, .separator = SEP);
            char text[64] = "none";
            fl_speech_result r;
            const fl_speech_word *w;
            const bool bad = strpbrk(frames, "?+") != NULL;
            CHECK(fl_speech_decoder_step(d, e, n) == !bad);
            if (bad) {
                CHECK_ERROR(table[k].heard[0]);
                CHECK_EQ_INT(fl_speech_decoder_frames(d), 0);
            } else {
                const int end = fl_speech_decoder_endpoint(d, .frame = 1, .nothing = 9, .longest = 1);
                CHECK_EQ_INT(end, n > 0 ? 3 : 0);
                CHECK(fl_speech_decoder_prune(d, &w) >= 0);
                CHECK(fl_speech_decoder_begin(d) && fl_speech_decoder_step(d, e, n));
                CHECK(fl_speech_decoder_end(d));
                if (fl_speech_decoder_best(d, 1, &r) == 1) {
                    *text = 0;
                    CHECK(isfinite(r.score));
                    for (int64_t i = 0; i < r.words; i++) {
                        sprintf(text + strlen(text), i ? " %d" : "%d", (int)r.word[i].word);
                        CHECK(r.word[i].confidence > 0 && r.word[i].confidence <= 1 + 1e-9);
                    }
                }
                if (want && !CHECK(!strcmp(text, want)))
                    printf("'%s' %d: %s, not %s\n", frames, how, text, want);
            }
            fl_speech_decoder_free(d);
            fl_speech_lexicon_free(l);
        }
    fl_speech_lexicon *l = fl_speech_lexicon_new();
    CHECK_EQ_INT(fl_speech_lexicon_add(l, "x", (int32_t[]){0, CLASSES}, 2), 0);
    CHECK(fl_speech_lexicon_finish(l, FL_SPEECH_NO_SMEARING, NULL, false));
    CHECK(!fl_speech_decoder_new(CLASSES, l));
    CHECK_ERROR("token 4 of the lexicon is out of range");
    fl_speech_lexicon_free(l);
    CHECK_NOTHING_LIVES();
}

/* Another model turns the order round. */
TEST(another_model_scores_again) {
    const fl_speech_word w[] = {{1, 0, 1, 1}, {0, 0, 1, 1}};
    fl_speech_result r[] = {{-1, -1, -0.5, 1, &w[0]}, {-1.5, -1.4, -0.1, 1, &w[1]}};
    const double a = pair_score(9, 1) + pair_score(1, 5), b = pair_score(9, 0) + pair_score(0, 5);
    CHECK(fl_speech_rescore(r, 2, &pairs, 5, 1));
    const double want[] = {-0.5 + 5 * a, -1.4 + 5 * b};
    CHECK(want[1] > want[0]);
    for (int i = 0; i < 2; i++) CHECK_NEAR(r[i].score, want[1 - i], 1e-12);
    CHECK_NEAR(r[0].lm, b, 1e-12);
    CHECK_NOTHING_LIVES();
}

/* The best k tokens of a frame alone are those of a frame that has no others. */
TEST(only_the_best_tokens_of_a_frame) {
    enum { FRAMES = 6, ALL = 9 };
    fl_rng rng = fl_data_rng(5, 0, 0);
    for (int round = 0; round < 60; round++) {
        const int64_t k = 1 + round % ALL;
        float e[FRAMES * ALL], few[FRAMES * ALL];
        for (int i = 0; i < FRAMES * ALL; i++) e[i] = (float)(-10 * fl_rng_uniform(&rng));
        for (int i = 0; i < FRAMES * ALL; i++) {
            int64_t better = 0;
            for (int j = i / ALL * ALL; j < (i / ALL + 1) * ALL; j++) better += e[j] > e[i];
            few[i] = better < k ? e[i] : -INFINITY;
        }
        fl_speech_result r[2][5];
        int32_t token[2][FRAMES];
        int64_t n[2];
        for (int which = 0; which < 2; which++) {
            fl_speech_decoder *d = fl_speech_decoder_new(ALL, NULL, .tokens = which ? 0 : k, .beam = 1000,
                                                         .threshold = 1e3);
            CHECK(d && fl_speech_decoder_step(d, which ? few : e, FRAMES) && fl_speech_decoder_end(d));
            n[which] = fl_speech_decoder_best(d, 5, r[which]);
            CHECK(fl_speech_decoder_tokens(d, token[which]));
            fl_speech_decoder_free(d);
        }
        CHECK(n[0] == n[1] && n[0] > 0 && !memcmp(token[0], token[1], sizeof token[0]));
        for (int64_t i = 0; i < n[0] && i < n[1]; i++) CHECK_NEAR(r[0][i].score, r[1][i].score, 1e-9);
    }
    CHECK_NOTHING_LIVES();
}

TEST(errors_say_what_is_wrong) {
    char path[128];
    snprintf(path, sizeof path, "%s", test_file("lexicon"));
    fl_text_dictionary *tokens = fl_text_dictionary_new();
    fl_text_dictionary_add(tokens, "a", 1);
    static const struct { const char *text, *error; } lexicon[] = {
        {"x a a\ny a b a\n", ":2: y: unknown token 'b'"}, {"x a\n\nz\n", ":3: z: no tokens"}};
    for (int k = 0; k < 2; k++) {
        FILE *f = fopen(path, "w");
        fputs(lexicon[k].text, f);
        fclose(f);
        CHECK(!fl_speech_lexicon_load(path, tokens));
        CHECK_ERROR(lexicon[k].error);
    }
    FILE *f = fopen(path, "w");
    fputs("x a a\ny a b a\nx a\n", f);
    fclose(f);
    int64_t skipped = 0;
    fl_speech_lexicon *l = fl_speech_lexicon_load(path, tokens, .skip = true, .skipped = &skipped);
    CHECK_EQ_INT(skipped, 1);
    CHECK_EQ_INT(fl_text_dictionary_entries(fl_speech_lexicon_words(l)), 1);
    CHECK(!fl_speech_decoder_new(3, l));
    CHECK_ERROR("not finished");
    CHECK(fl_speech_lexicon_finish(l, FL_SPEECH_NO_SMEARING, NULL, false));
    CHECK(!fl_speech_decoder_new(0, NULL));
    CHECK_ERROR("got classes 0");
    CHECK(!fl_speech_decoder_new(3, NULL, .beam = -1));
    CHECK_ERROR("beam -1");
    CHECK(!fl_speech_decoder_new(3, NULL, .separator = 3));
    CHECK_ERROR("separator 3");
    fl_speech_decoder *d = fl_speech_decoder_new(2, l);
    float e[] = {0, 0, 0, NAN};
    CHECK(!fl_speech_decoder_step(d, e, 2));
    CHECK_ERROR("frame 1, class 1: the score is NaN");
    CHECK_EQ_INT(fl_speech_decoder_frames(d), 0);
    e[3] = -INFINITY;
    CHECK(fl_speech_decoder_step(d, e, 2) && fl_speech_decoder_end(d));
    CHECK(!fl_speech_decoder_step(d, e, 1));
    CHECK_ERROR("has ended");
    fl_speech_decoder_free(d);
    fl_speech_lexicon_free(l);
    l = fl_speech_lexicon_new();
    CHECK(!fl_speech_lexicon_finish(l, FL_SPEECH_NO_SMEARING, NULL, false));
    CHECK_ERROR("the lexicon is empty");
    CHECK_EQ_INT(fl_speech_lexicon_add(l, "w", (int32_t[]){0, -1}, 2), -1);
    CHECK_ERROR("w: token 1 must be >= 0, got -1");
    CHECK_EQ_INT(fl_speech_lexicon_add(l, "w", NULL, 0), -1);
    CHECK_ERROR("1 to 32767 tokens, got 0");
    fl_speech_lexicon_free(l);
    fl_text_dictionary_free(tokens);
    remove(path);
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
