/* examples/research/spelling.h - strings of spoken digits, and lattices whose paths spell texts as CTC does

     spelling p;
     spelling_words(&p);               // or spelling_any, spelling_text
     states g = spelling_states(&p);   // the caller frees g.label

   A position says its letter for one frame or more, then the blank for any number of frames. Two equal
   letters in a row need a blank between, as CTC merges them: with weights of 0 and logarithms of
   probabilities, the sum over the paths of a text is CTC's (spelling_check). */
#ifndef RESEARCH_SPELLING_H
#define RESEARCH_SPELLING_H
#include "../speech/recordings.h"
#include "lattice.h"

enum { MOST_POSITIONS = 64 };
typedef struct spelling {
    int n;
    int64_t letter[MOST_POSITIONS];
    bool begins[MOST_POSITIONS], ends[MOST_POSITIONS];
    bool next[MOST_POSITIONS][MOST_POSITIONS]; /* next[p][q]: q may follow p */
} spelling;

/* The weight of letter b after letter a, of the blank after a, of a after itself (a as `b`, after BLANK) and
   of the blank after itself. */
enum { WEIGHTS = 1 + CLASSES * CLASSES };
static inline int32_t weight_of(int64_t a, int64_t b) { return (int32_t)(1 + CLASSES * a + b); }

/* One text of n letters. */
static inline void spelling_text(spelling *p, const int64_t *letter, int64_t n) {
    *p = (spelling){.n = (int)n};
    memcpy(p->letter, letter, (size_t)n * sizeof *letter);
    p->begins[0] = p->ends[n - 1] = true;
    for (int64_t i = 1; i < n; i++) p->next[i - 1][i] = true;
}

/* All letters in any order. */
static inline void spelling_any(spelling *p) {
    *p = (spelling){.n = LETTERS};
    for (int i = 0; i < LETTERS; i++) {
        p->letter[i] = i, p->begins[i] = p->ends[i] = true;
        for (int k = 0; k < LETTERS; k++) p->next[i][k] = true;
    }
}

/* The words in any order; position 0 is the letter that separates two. */
static inline void spelling_words(spelling *p) {
    *p = (spelling){.n = 1};
    for (int d = 0; d < DIGITS; d++)
        for (const char *c = words[d]; *c; c++, p->n++) {
            const int i = p->n;
            p->letter[i] = strchr(letters, *c) - letters;
            if (c == words[d]) p->begins[i] = p->next[0][i] = true;
            else p->next[i - 1][i] = true;
            if (!c[1]) p->ends[i] = p->next[i][0] = true;
        }
}

static inline void states_add(states *g, int *k, int from, int32_t weight) {
    g->from[*k] = from, g->weight[(*k)++] = weight;
}

/* State 0 is the blank before the first letter, 1 + 2 p and 2 + 2 p are position p and the blank after it.
   label is NULL after an error. */
static inline states spelling_states(const spelling *p) {
    states g = {.n = 1 + 2 * p->n, .n_labels = CLASSES};
    const int most = 2 + p->n * (2 * p->n + 7);
    int k = 0;
    g.label = fl_heap_alloc((size_t)(2 * g.n + 2 + 2 * most) * sizeof *g.label);
    if (!g.label) return g;
    g.first = g.label + g.n, g.from = g.first + g.n + 2, g.weight = g.from + most;
    g.label[0] = BLANK, g.first[0] = 0;
    states_add(&g, &k, -1, 0);
    states_add(&g, &k, 0, weight_of(BLANK, BLANK));
    for (int i = 0; i < p->n; i++) {
        const int64_t letter = p->letter[i];
        g.label[1 + 2 * i] = (int32_t)letter, g.label[2 + 2 * i] = BLANK;
        g.first[1 + 2 * i] = k;
        states_add(&g, &k, 1 + 2 * i, weight_of(BLANK, letter));
        if (p->begins[i]) states_add(&g, &k, -1, 0), states_add(&g, &k, 0, 0);
        for (int q = 0; q < p->n; q++) {
            if (!p->next[q][i]) continue;
            states_add(&g, &k, 2 + 2 * q, weight_of(p->letter[q], letter));
            if (p->letter[q] != letter) states_add(&g, &k, 1 + 2 * q, weight_of(p->letter[q], letter));
        }
        g.first[2 + 2 * i] = k;
        states_add(&g, &k, 2 + 2 * i, weight_of(BLANK, BLANK));
        states_add(&g, &k, 1 + 2 * i, weight_of(letter, BLANK));
    }
    g.first[g.n] = k;
    for (int i = 0; i < p->n; i++)
        if (p->ends[i]) states_add(&g, &k, 1 + 2 * i, 0), states_add(&g, &k, 2 + 2 * i, 0);
    g.first[g.n + 1] = k;
    return g;
}

/* The words of n letters; -1: none of the words. Returns their number. */
static inline int64_t spelling_read(const int64_t *letter, int64_t n, int64_t *word) {
    int64_t count = 0;
    for (int64_t i = 0, end; i < n; i = end + 1) {
        for (end = i; end < n && letter[end]; end++) {}
        int d = DIGITS - 1;
        for (; d >= 0; d--) {
            int64_t k = 0;
            while (i + k < end && words[d][k] == letters[letter[i + k]]) k++;
            if (i + k == end && !words[d][k]) break;
        }
        word[count++] = d;
    }
    return count;
}

/* Compares CTC's loss of a text and its gradient, by fl's function, with those of the lattice. */
static inline bool spelling_check(void) {
    const int64_t letter[] = {13, 5, 9, 1, 1}, n = 5, frames = 30;
    int64_t nodes;
    spelling p;
    spelling_text(&p, letter, n);
    states g = spelling_states(&p);
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_normal(FL_SHAPE(frames, CLASSES), 0, 1, FL_F32, NULL));
    fl_var *no_weight = fv_const(fl_zeros(FL_SHAPE(WEIGHTS), FL_F32)), *logp = fv_log_softmax(x, 1);
    fl_var *ctc = fv_ctc_loss(fv_unsqueeze(logp, 1), fl_from_host(letter, FL_SHAPE(1, n), FL_I64),
                              fl_from_host(&frames, FL_SHAPE(1), FL_I64),
                              fl_from_host(&n, FL_SHAPE(1), FL_I64), .blank = BLANK, .reduction = FL_SUM);
    fl_var *sum = g.label ? fv_add(ctc, fv_lattice(logp, no_weight, &g, INFINITY, &nodes)) : NULL;
    const bool ok = sum && fl_backward(sum); /* of numbers that cancel */
    fl_tensor *most = ok ? fl_amax(fl_abs(fv_grad(x)), FL_ALL_AXES) : NULL;
    const double apart = most ? fmax(fabs(fl_item(fv_value(sum))), fl_item(most)) : NAN;
    if (ok) printf("CTC's loss and gradient and those of its lattice are at most %.1e apart\n\n", apart);
    fl_scope_end(&s);
    fl_heap_free(g.label);
    return ok && (apart < 1e-3 || fl_fail("CTC: %g apart from its lattice, expected less than 1e-3", apart));
}

/* ---- strings of digits ---- */

typedef struct string {
    fl_tensor *x, *letter; /* features [frames, BANDS]; i64 */
    int64_t digit[MAX_STRING], digits;
} string;

/* A recording of one of the two speakers that this seed holds out, or of one of the others. */
static inline int64_t draw_recording(const corpus *c, int64_t seed, bool held_out, fl_rng *rng) {
    for (;;) {
        const int64_t i = fl_speech_draw(rng, 0, c->n - 1);
        if ((c->r[i].speaker / 2 == seed % 3) == held_out) return i;
    }
}

/* n strings with random speed, level and noise. The innermost scope owns their tensors, the caller frees the
   list. NULL after an error. */
static inline string *make_strings(const corpus *c, const fl_speech_features *f, int64_t n, int64_t seed,
                                   bool held_out) {
    string *list = fl_heap_alloc((size_t)n * sizeof *list);
    for (int64_t i = 0; list && i < n; i++) {
        fl_rng rng = fl_data_rng((uint64_t)seed, held_out, i);
        int64_t index[MAX_STRING] = {draw_recording(c, seed, held_out, &rng)};
        double gap[MAX_STRING + 1];
        const int count = (int)fl_speech_draw(&rng, 2, 5);
        for (int k = 1; k < count; k++) index[k] = another(c, index[0], &rng);
        for (int k = 0; k <= count; k++) gap[k] = fl_speech_between(&rng, 0.05, 0.3);
        utterance u;
        string *one = &list[i];
        if (!join(c, index, count, gap, &u)) return fl_heap_free(list), NULL;
        fl_scope s = fl_scope_begin();
        one->x = fl_scope_return(&s, features_of(f, augmented(&u, &rng)));
        one->letter = fl_from_host(u.letter, FL_SHAPE(u.letter_count), FL_I64);
        for (int k = 0; k < count; k++) one->digit[k] = u.digit[k];
        one->digits = count;
        fl_heap_free(u.sound);
        if (!one->x || !one->letter) return fl_heap_free(list), NULL;
    }
    return list;
}

static inline bool give_string(int64_t i, fl_data_sample *out, void *user) {
    const string *s = (const string *)user + i;
    out->n = 2;
    out->t[0] = fl_clone(s->x), out->t[1] = fl_clone(s->letter);
    return out->t[0] && out->t[1];
}

#endif /* MIT licence: see LICENSE. */
