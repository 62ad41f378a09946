/* fl/speech/targets.h - dataset lists, transcripts to tokens and back, error rates by speaker, sclite */
#ifndef FL_SPEECH_TARGETS_H
#define FL_SPEECH_TARGETS_H
#include "lexicon.h"
#ifndef FL_DATA_H
#include "../../fl_data.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- lists ---- */

typedef struct fl_speech_list_entry {
    const char *id, *path, *transcript; /* transcript: words separated by single spaces, possibly "" */
    double ms;
    int64_t line;
} fl_speech_list_entry;
/* A dataset list: lines "id path duration_ms [transcript ...]", split at white space; skips blank lines. */
typedef struct fl_speech_list fl_speech_list;
/* Loads a list; root is the folder of relative paths, NULL: the current one. Returns NULL after fl_fail with
   file and line. */
FL_API fl_speech_list *fl_speech_list_load(const char *path, const char *root);
FL_API void fl_speech_list_free(fl_speech_list *l); /* NULL is allowed */
FL_API int64_t fl_speech_list_size(const fl_speech_list *l);
/* Entry i, valid while l is. */
FL_API const fl_speech_list_entry *fl_speech_list_get(const fl_speech_list *l, int64_t i);
/* A data set of the sounds: f32 [t], the mean of the channels, resampled to `rate` (0: not resampled), and
   i64 [], the index. fl_data_length is the duration, so fl_data_batches can limit batches in milliseconds,
   and fl_data_sort_by_length make buckets. Borrows l. */
FL_API fl_data_set *fl_speech_list_sounds(const fl_speech_list *l, int64_t rate);

/* ---- targets ---- */

typedef struct fl_speech_target_opts {
    fl_opts_guard guard_;
    const fl_speech_lexicon *lexicon; /* of spellings; words that are not in it (NULL: all) are split into
                                         letters */
    const char *separator; /* token after each word; NULL: none */
    bool pieces;           /* put the separator before words, if possible joined with the first letter */
    const char *surround;  /* token added at the beginning and at the end */
    int64_t replabels;     /* up to this many repetitions of a token are replaced by one token "<k>" */
    bool asg;              /* merge equal neighbours */
    const char *eos;       /* token appended, such as "$" */
    double sample;         /* probability to use a random spelling of a word, not the first one */
    fl_rng *rng;           /* required if sample > 0 */
    bool skip;             /* skip letters that are not tokens; default: fail */
    int64_t *skipped;      /* incremented for each of them */
    char _end;
} fl_speech_target_opts;
/* Converts a transcript to tokens in *out, which is grown with fl_heap_grow; free it with fl_heap_free.
   Returns their number; -1 after fl_fail, which names word and letter. */
#define fl_speech_target(tokens, text, ...) FL__SPEECH_TARGET(tokens, text, __VA_ARGS__, ._end = 0)
#define FL__SPEECH_TARGET(tokens, text, out, cap, ...) \
    fl_speech_target_opt(tokens, text, out, cap, FL_LITERAL(fl_speech_target_opts, __VA_ARGS__))
FL_API int64_t fl_speech_target_opt(const fl_text_dictionary *tokens, const char *text, int64_t **out,
                                    int64_t *cap, fl_speech_target_opts o);
/* Merges equal neighbours of a path, then removes blanks (-1: none). out may be path. Returns the length. */
FL_API int64_t fl_speech_collapse(const int64_t *path, int64_t n, int64_t blank, int64_t *out);
/* Appends the words of tokens to *text, separated by spaces: expands replabels, removes surround and eos,
   replaces separators by spaces. Returns false after fl_fail. */
#define fl_speech_target_text(...) FL__SPEECH_TARGET_TEXT(__VA_ARGS__, ._end = 0)
#define FL__SPEECH_TARGET_TEXT(tokens, token, n, text, ...) \
    fl_speech_target_text_opt(tokens, token, n, text, FL_LITERAL(fl_speech_target_opts, __VA_ARGS__))
FL_API bool fl_speech_target_text_opt(const fl_text_dictionary *tokens, const int64_t *token, int64_t n,
                                      fl_data_text *text, fl_speech_target_opts o);

/* ---- error rates ---- */

/* Word and letter error rates by speaker. Words are separated by white space; letters are UTF-8 characters,
   with one more between words. */
typedef struct fl_speech_scores fl_speech_scores;
FL_API fl_speech_scores *fl_speech_scores_new(void);
FL_API void fl_speech_scores_free(fl_speech_scores *s); /* NULL is allowed */
/* Compares the words and letters of a hypothesis `guess` with the reference `target`. */
FL_API bool fl_speech_scores_add(fl_speech_scores *s, const char *speaker, const char *guess,
                                 const char *target);
/* Error counts of a speaker, NULL: of all; either result may be NULL. Returns false for unknown speakers. */
FL_API bool fl_speech_scores_of(const fl_speech_scores *s, const char *speaker, fl_data_edits *word,
                                fl_data_edits *letter);
/* Appends a table to *out: one line per speaker, in order of appearance, then "all". */
FL_API bool fl_speech_scores_table(const fl_speech_scores *s, fl_data_text *out);
/* Writes a file for NIST's sclite with lines "words (id)", for references or for hypotheses. */
FL_API bool fl_speech_save_trn(const char *path, const char *const *id, const char *const *text, int64_t n);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_TARGETS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_TARGETS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_TARGETS_IMPL
#define FL_SPEECH_TARGETS_IMPL
#include "audio.h"
#include "augment.h"
#include "../ops/random.h"
#include "../ops/view.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- lists ---- */

struct fl_speech_list {
    char *text; /* the file, cut into NUL-terminated fields */
    fl_data_text paths;
    fl_speech_list_entry *e;
    int64_t n, cap;
};

/* Parses a line in place: its fields become NUL-terminated strings. */
static bool fl__speech_list_line(fl_speech_list *l, const char *file, char *p, char *stop, int64_t number) {
    const char *at = p, *field[3];
    int64_t n[3], k = 0;
    while (k < 3 && (field[k] = fl_text_field(&at, stop, &n[k]))) k++;
    if (!k) return true;
    double ms;
    if (k < 3)
        return fl_fail("fl_speech_list_load: %s:%lld: got %lld fields, expected id, path, milliseconds", file,
                       (long long)number, (long long)k);
    if (!fl_data_parse_double(field[2], (size_t)n[2], &ms) || !(ms >= 0 && ms <= 1e12))
        return fl_fail("fl_speech_list_load: %s:%lld: invalid duration '%.*s', expected milliseconds in [0, "
                       "1e12]", file, (long long)number, (int)(n[2] < 99 ? n[2] : 99), field[2]);
    if (!fl_heap_grow(&l->e, &l->cap, l->n + 1, sizeof *l->e)) return false;
    char *to = p + (field[2] + n[2] - p), *words = to + (to < stop), *w = words; /* compact the words */
    const char *word;
    for (int64_t m; (word = fl_text_field(&at, stop, &m)); w += m) {
        if (w > words) *w++ = ' ';
        memmove(w, word, (size_t)m);
    }
    *w = 0, *to = 0;
    for (int i = 0; i < 2; i++) p[field[i] + n[i] - p] = 0;
    l->e[l->n++] = (fl_speech_list_entry){field[0], field[1], to < stop ? words : "", ms, number};
    return true;
}

static bool fl__speech_list_roots(fl_speech_list *l, const char *root) {
    for (int64_t i = 0; i < l->n; i++)
        if (!fl_data_text_put(&l->paths, root, strlen(root)) || !fl_data_text_put(&l->paths, "/", 1) ||
            !fl_data_text_put(&l->paths, l->e[i].path, strlen(l->e[i].path) + 1))
            return false;
    const char *p = l->paths.p;
    for (int64_t i = 0; i < l->n; i++, p += strlen(p) + 1) l->e[i].path = p;
    return true;
}

FL_API fl_speech_list *fl_speech_list_load(const char *path, const char *root) {
    fl_speech_list *l = fl_heap_alloc(sizeof *l);
    int64_t size, number = 1;
    if (!l) return NULL;
    *l = (fl_speech_list){.text = fl_text_read_file("fl_speech_list_load", path, &size)};
    bool ok = l->text != NULL;
    for (char *p = l->text, *end = ok ? p + size : p; ok && p < end; number++) {
        char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) stop = end;
        if (memchr(p, 0, (size_t)(stop - p)))
            ok = fl_fail("fl_speech_list_load: %s:%lld: the line has a NUL byte", path, (long long)number);
        ok = ok && fl__speech_list_line(l, path, p, stop, number);
        p = stop + 1;
    }
    if (ok && !l->n) ok = fl_fail("fl_speech_list_load: %s: the list is empty", path);
    if (ok && (!root || fl__speech_list_roots(l, root))) return l;
    fl_speech_list_free(l);
    return NULL;
}

FL_API void fl_speech_list_free(fl_speech_list *l) {
    if (!l) return;
    fl_heap_free(l->text);
    fl_heap_free(l->paths.p);
    fl_heap_free(l->e);
    fl_heap_free(l);
}

FL_API int64_t fl_speech_list_size(const fl_speech_list *l) {
    return fl_given(l, "fl_speech_list_size", "the list") ? l->n : 0;
}
FL_API const fl_speech_list_entry *fl_speech_list_get(const fl_speech_list *l, int64_t i) {
    return fl_given(l, "fl_speech_list_get", "the list") ? &l->e[i] : NULL;
}

typedef struct fl__speech_sounds {
    const fl_speech_list *list;
    int64_t rate;
} fl__speech_sounds;

static bool fl__speech_sounds_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__speech_sounds *s = self->user;
    fl_tensor *x = fl_speech_load_audio(s->list->e[i].path, .rate = s->rate, .channel = -1),
              *index = x ? fl_data_host_tensor(FL_SCALAR_SHAPE, FL_I64) : NULL;
    if (!index || !fl_set_host(index, &i, sizeof i)) return false;
    *out = (fl_data_sample){.n = 2, .t = {fl_select(x, 0, 0), index}};
    return true;
}

static int64_t fl__speech_sounds_length(fl_data_set *self, int64_t i) {
    return (int64_t)ceil(((const fl__speech_sounds *)self->user)->list->e[i].ms);
}

static void fl__speech_sounds_close(fl_data_set *self) { fl_heap_free(self->user); }

FL_API fl_data_set *fl_speech_list_sounds(const fl_speech_list *l, int64_t rate) {
    if (!fl_given(l, "fl_speech_list_sounds", "the list")) return NULL;
    fl__speech_sounds *s = fl_heap_alloc(sizeof *s);
    if (!s) return NULL;
    *s = (fl__speech_sounds){l, rate};
    return fl_data_set_new(&(fl_data_set){.size = l->n, .get = fl__speech_sounds_get,
                                          .length = fl__speech_sounds_length,
                                          .close = fl__speech_sounds_close, .user = s}, NULL, 0);
}

/* ---- targets ---- */

typedef struct fl__speech_writer {
    const fl_text_dictionary *tokens;
    const fl_speech_target_opts *o;
    int64_t **out, *cap, n;
} fl__speech_writer;

static bool fl__speech_put_token(fl__speech_writer *w, int64_t token) {
    if (!fl_heap_grow(w->out, w->cap, w->n + 1, sizeof **w->out)) return false;
    (*w->out)[w->n++] = token;
    return true;
}

/* Appends the token with that name; what: its role, for errors. */
static bool fl__speech_put_named(fl__speech_writer *w, const char *what, const char *name) {
    if (!name) return true;
    const int64_t k = fl_text_dictionary_find(w->tokens, name, (int64_t)strlen(name));
    return k >= 0 ? fl__speech_put_token(w, k) : fl_fail("fl_speech_target: %s '%s' is not a token", what,
                                                         name);
}

static bool fl__speech_put_letters(fl__speech_writer *w, const char *word, int64_t n) {
    const char *first = w->o->pieces && w->o->separator ? w->o->separator : "";
    for (int64_t i = 0; i < n;) {
        const int64_t utf8 = (int64_t)fl_data_utf8(word + i, (size_t)(n - i)), m = utf8 ? utf8 : 1;
        char joined[64];
        int64_t k = -1;
        if (!i && *first && strlen(first) + (size_t)m < sizeof joined) {
            const int length = snprintf(joined, sizeof joined, "%s%.*s", first, (int)m, word);
            k = fl_text_dictionary_find(w->tokens, joined, length);
        }
        if (!i && *first && k < 0 && !fl__speech_put_named(w, "the separator", first)) return false;
        if (k < 0) k = fl_text_dictionary_find(w->tokens, word + i, m);
        if (k >= 0 && !fl__speech_put_token(w, k)) return false;
        if (k < 0 && !w->o->skip)
            return fl_fail("fl_speech_target: word '%.*s': the letter '%.*s' is not a token",
                           (int)(n < 99 ? n : 99), word, (int)m, word + i);
        if (k < 0 && w->o->skipped) ++*w->o->skipped;
        i += m;
    }
    return w->o->pieces || fl__speech_put_named(w, "the separator", w->o->separator);
}

static bool fl__speech_put_word(fl__speech_writer *w, const char *word, int64_t n) {
    const fl_speech_lexicon *l = w->o->lexicon;
    const int64_t index = l ? fl_text_dictionary_find(fl_speech_lexicon_words(l), word, n) : -1;
    int64_t m, k = 0;
    if (index < 0) return fl__speech_put_letters(w, word, n);
    if (w->o->sample > 0 && w->o->rng && fl_rng_uniform(w->o->rng) < w->o->sample) {
        fl_speech_lexicon_spelling(l, index, INT64_MAX, &m);
        k = fl_speech_draw(w->o->rng, 0, m - 1);
    }
    const int32_t *token = fl_speech_lexicon_spelling(l, index, k, &m);
    for (int64_t i = 0; i < m; i++)
        if (!fl__speech_put_token(w, token[i])) return false;
    return true;
}

/* The token "<k>"; -1 after fl_fail. */
static int64_t fl__speech_replabel(const fl_text_dictionary *tokens, int64_t k) {
    char name[32];
    const int64_t token =
        fl_text_dictionary_find(tokens, name, snprintf(name, sizeof name, "<%lld>", (long long)k));
    return token >= 0 ? token : fl_fail("fl_speech_target: replabel '%s' is not a token", name) - 1;
}

static bool fl__speech_pack(fl__speech_writer *w) {
    int64_t n = 0, *t = *w->out;
    for (int64_t i = 0, run; i < w->n; i += run + 1) {
        for (run = 0; i + run + 1 < w->n && t[i + run + 1] == t[i] && run < w->o->replabels;) run++;
        const int64_t label = run ? fl__speech_replabel(w->tokens, run) : 0;
        if (label < 0) return false;
        t[n++] = t[i];
        if (run) t[n++] = label;
    }
    w->n = n;
    return true;
}

FL_API int64_t fl_speech_target_opt(const fl_text_dictionary *tokens, const char *text, int64_t **out,
                                    int64_t *cap, fl_speech_target_opts o) {
    if (!fl_given(tokens, "fl_speech_target", "the tokens") ||
        !fl_given(text, "fl_speech_target", "the text") || !fl_given(out, "fl_speech_target", "the result") ||
        !fl_given(cap, "fl_speech_target", "the capacity")) return -1;
    fl__speech_writer w = {tokens, &o, out, cap, 0};
    const char *p = text, *end = text + strlen(text), *word;
    int64_t n;
    bool ok = fl__speech_put_named(&w, "surround", o.surround);
    while (ok && (word = fl_text_field(&p, end, &n))) ok = fl__speech_put_word(&w, word, n);
    ok = ok && fl__speech_put_named(&w, "surround", o.surround);
    if (ok && o.surround && w.n > 1 && (*out)[w.n - 1] == (*out)[w.n - 2]) w.n--; /* already the last */
    ok = ok && (!o.replabels || fl__speech_pack(&w));
    if (ok && o.asg) w.n = fl_speech_collapse(*out, w.n, -1, *out);
    ok = ok && fl__speech_put_named(&w, "eos", o.eos);
    return ok ? w.n : -1;
}

FL_API int64_t fl_speech_collapse(const int64_t *path, int64_t n, int64_t blank, int64_t *out) {
    int64_t m = 0, before = INT64_MIN;
    for (int64_t i = 0; i < n; i++) {
        const int64_t now = path[i];
        if (now != before && now != blank) out[m++] = now;
        before = now;
    }
    return m;
}

/* k of "<k>"; 0 for other tokens. */
static int64_t fl__speech_repeats(const char *name, int64_t most) {
    long long k;
    char end;
    return most && sscanf(name, "<%lld%c", &k, &end) == 2 && end == '>' && k >= 1 && k <= most ? k : 0;
}

static bool fl__speech_put_text(fl_data_text *text, const char *from, size_t n, int64_t begin) {
    if (*from == ' ' && (text->n == begin || text->p[text->n - 1] == ' ')) from++, n--;
    return !n || fl_data_text_put(text, from, n);
}

FL_API bool fl_speech_target_text_opt(const fl_text_dictionary *tokens, const int64_t *token, int64_t n,
                                      fl_data_text *text, fl_speech_target_opts o) {
    if (!fl_given(tokens, "fl_speech_target_text", "the tokens") ||
        !fl_given(text, "fl_speech_target_text", "the text")) return false;
    const int64_t begin = text->n;
    const char *before = NULL;
    bool ok = true;
    for (int64_t i = 0; ok && i < n; i++) {
        const char *name = fl_text_dictionary_entry(tokens, token[i], NULL), *at;
        if (!name) return fl_fail("fl_speech_target_text: no token with index %lld", (long long)token[i]);
        if ((o.surround && !strcmp(name, o.surround) && (!o.separator || strcmp(name, o.separator))) ||
            (o.eos && !strcmp(name, o.eos)))
            continue;
        const int64_t times = before ? fl__speech_repeats(name, o.replabels) : 0;
        const char *say = times ? before : name;
        for (int64_t k = 0; ok && k < (times ? times : 1); k++) { /* tokens may contain separators */
            const char *p = say;
            while (ok && o.separator && *o.separator && (at = strstr(p, o.separator))) {
                ok = fl__speech_put_text(text, p, (size_t)(at - p), begin) &&
                     fl__speech_put_text(text, " ", 1, begin);
                p = at + strlen(o.separator);
            }
            ok = ok && (!*p || fl__speech_put_text(text, p, strlen(p), begin));
        }
        before = times ? NULL : name;
    }
    if (ok && text->n > begin && text->p[text->n - 1] == ' ') text->n--;
    return ok && fl_data_text_put(text, "", 1) && text->n--;
}

/* ---- error rates ---- */

struct fl_speech_scores {
    fl_text_dictionary *speakers, *words;
    fl_data_edits (*e)[2]; /* per speaker: words, letters */
    int64_t cap;
};

FL_API fl_speech_scores *fl_speech_scores_new(void) {
    fl_speech_scores *s = fl_heap_alloc(sizeof *s);
    if (!s) return NULL;
    *s = (fl_speech_scores){.speakers = fl_text_dictionary_new()};
    if (s->speakers && (s->words = fl_text_dictionary_new())) return s;
    fl_speech_scores_free(s);
    return NULL;
}

FL_API void fl_speech_scores_free(fl_speech_scores *s) {
    if (!s) return;
    fl_text_dictionary_free(s->speakers);
    fl_text_dictionary_free(s->words);
    fl_heap_free(s->e);
    fl_heap_free(s);
}

/* Maps the words or letters of a text to numbers; *n becomes their count. Returns NULL after fl_fail. */
static int64_t *fl__speech_numbers(fl_text_dictionary *d, const char *text, bool letters, int64_t *n) {
    const char *p = text, *end = text + strlen(text), *word;
    int64_t *out = fl_heap_alloc((strlen(text) + 1) * sizeof *out), m, step;
    for (*n = 0; out && (word = fl_text_field(&p, end, &m));) {
        if (letters && *n) out[(*n)++] = -1;
        for (int64_t i = 0; i < m; i += step) {
            const int64_t one = (int64_t)fl_data_utf8(word + i, (size_t)(m - i));
            step = letters ? one ? one : 1 : m;
            out[*n] = fl_text_dictionary_count(d, word + i, step, 1);
            if (out[(*n)++] < 0) return fl_heap_free(out), NULL;
        }
    }
    return out;
}

FL_API bool fl_speech_scores_add(fl_speech_scores *s, const char *speaker, const char *guess,
                                 const char *target) {
    if (!fl_given(s, "fl_speech_scores_add", "the scores") ||
        !fl_given(speaker, "fl_speech_scores_add", "the speaker") ||
        !fl_given(guess, "fl_speech_scores_add", "the guess") ||
        !fl_given(target, "fl_speech_scores_add", "the target")) return false;
    const int64_t n = (int64_t)strlen(speaker), known = fl_text_dictionary_find(s->speakers, speaker, n),
                  k = known < 0 ? fl_text_dictionary_size(s->speakers) : known;
    fl_data_edits e[2] = {{0}};
    bool ok = fl_heap_grow(&s->e, &s->cap, k + 1, sizeof *s->e);
    for (int letters = 0; ok && letters < 2; letters++) {
        int64_t count[2], *number[2];
        number[0] = fl__speech_numbers(s->words, guess, letters, &count[0]);
        number[1] = number[0] ? fl__speech_numbers(s->words, target, letters, &count[1]) : NULL;
        ok = number[1] && fl_data_edits_add(&e[letters], number[0], count[0], number[1], count[1]);
        fl_heap_free(number[0]);
        fl_heap_free(number[0] ? number[1] : NULL);
    }
    if (ok && known < 0) {
        ok = fl_text_dictionary_add(s->speakers, speaker, n) >= 0;
        if (ok) s->e[k][0] = s->e[k][1] = (fl_data_edits){0};
    }
    for (int i = 0; ok && i < 2; i++) fl_data_edits_merge(&s->e[k][i], &e[i]);
    return ok;
}

FL_API bool fl_speech_scores_of(const fl_speech_scores *s, const char *speaker, fl_data_edits *word,
                                fl_data_edits *letter) {
    if (!fl_given(s, "fl_speech_scores_of", "the scores")) return false;
    fl_data_edits sum[2] = {{0}};
    bool there = false;
    for (int64_t k = 0; k < fl_text_dictionary_size(s->speakers); k++) {
        if (speaker && strcmp(speaker, fl_text_dictionary_entry(s->speakers, k, NULL)) != 0) continue;
        for (int i = 0; i < 2; i++) fl_data_edits_merge(&sum[i], &s->e[k][i]);
        there = true;
    }
    if (word) *word = sum[0];
    if (letter) *letter = sum[1];
    return there;
}

FL_API bool fl_speech_scores_table(const fl_speech_scores *s, fl_data_text *out) {
    if (!fl_given(s, "fl_speech_scores_table", "the scores") ||
        !fl_given(out, "fl_speech_scores_table", "the text")) return false;
    static const char head[] =
        "speaker                     words     WER %     S     D     I   letters     LER %\n";
    bool ok = fl_data_text_put(out, head, sizeof head - 1);
    for (int64_t k = 0, n = fl_text_dictionary_size(s->speakers); ok && k <= n; k++) {
        fl_data_edits e[2];
        char line[256];
        const char *name = k < n ? fl_text_dictionary_entry(s->speakers, k, NULL) : NULL;
        fl_speech_scores_of(s, name, &e[0], &e[1]);
        const int m = snprintf(line, sizeof line, "%-23.99s %9lld %9.2f %5lld %5lld %5lld %9lld %9.2f\n",
                               name ? name : "all", (long long)e[0].tokens, fl_data_edits_percent(&e[0]),
                               (long long)e[0].substitutions, (long long)e[0].deletions,
                               (long long)e[0].insertions, (long long)e[1].tokens,
                               fl_data_edits_percent(&e[1]));
        ok = fl_data_text_put(out, line, (size_t)m);
    }
    return ok && fl_data_text_put(out, "", 1) && out->n--;
}

FL_API bool fl_speech_save_trn(const char *path, const char *const *id, const char *const *text, int64_t n) {
    fl_data_text t = {0};
    bool ok = true;
    for (int64_t i = 0; ok && i < n; i++) {
        if (strpbrk(text[i], "()\n") || strpbrk(id[i], "() \t\n"))
            ok = fl_fail("fl_speech_save_trn: %s: line %lld: '%s (%s)' has parentheses, line breaks or a "
                         "space in the id", path, (long long)i + 1, text[i], id[i]);
        ok = ok && fl_data_text_put(&t, text[i], strlen(text[i])) && fl_data_text_put(&t, " (", 2) &&
             fl_data_text_put(&t, id[i], strlen(id[i])) && fl_data_text_put(&t, ")\n", 2);
    }
    ok = ok && fl_data_replace("fl_speech_save_trn", path, t.p ? t.p : "", (size_t)t.n);
    fl_heap_free(t.p);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
