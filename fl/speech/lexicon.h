/* fl/speech/lexicon.h - lexicon: spellings of words as tokens, and their prefix tree for decoders */
#ifndef FL_SPEECH_LEXICON_H
#define FL_SPEECH_LEXICON_H
#include "../text/dictionary.h"
#include "../text/scorer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Spellings of words. A word may have several, and several words the same one. Concurrent reads are safe. */
typedef struct fl_speech_lexicon fl_speech_lexicon;
FL_API fl_speech_lexicon *fl_speech_lexicon_new(void);
FL_API void fl_speech_lexicon_free(fl_speech_lexicon *l); /* NULL is allowed */
/* Adds a spelling of a word: n > 0 tokens >= 0. Returns the word's index, assigned at its first spelling; -1
   after fl_fail. Must precede the first fl_speech_lexicon_finish. */
FL_API int64_t fl_speech_lexicon_add(fl_speech_lexicon *l, const char *word, const int32_t *tokens,
                                     int64_t n);
typedef struct fl_speech_lexicon_opts {
    fl_opts_guard guard_;
    bool skip;        /* skip words with an unknown token; default: fail */
    int64_t *skipped; /* output: the number of skipped words */
    char _end;
} fl_speech_lexicon_opts;
/* Loads a file of lines "word token token ..."; the tokens are looked up in `tokens`. Returns NULL after
   fl_fail with file and line. */
#define fl_speech_lexicon_load(path, ...) FL__SPEECH_LEXICON_LOAD(path, __VA_ARGS__, ._end = 0)
#define FL__SPEECH_LEXICON_LOAD(path, tokens, ...) \
    fl_speech_lexicon_load_opt(path, tokens, FL_LITERAL(fl_speech_lexicon_opts, __VA_ARGS__))
FL_API fl_speech_lexicon *fl_speech_lexicon_load_opt(const char *path, const fl_text_dictionary *tokens,
                                                     fl_speech_lexicon_opts o);
/* Returns spelling k of a word, in order of addition, with its length in *n. If there are fewer, returns
   NULL, with the number of spellings in *n. Takes O(k) time. */
FL_API const int32_t *fl_speech_lexicon_spelling(const fl_speech_lexicon *l, int64_t word, int64_t k,
                                                 int64_t *n);
/* The words by index; owned by l. */
FL_API const fl_text_dictionary *fl_speech_lexicon_words(const fl_speech_lexicon *l);

/* Smearing: the score of a node for the words below it, before a word is complete: none; the maximum of the
   words' scores at the start of a sentence; or the logarithm of the sum of their exp. */
typedef enum fl_speech_smear {
    FL_SPEECH_NO_SMEARING,
    FL_SPEECH_SMEAR_MAX,
    FL_SPEECH_SMEAR_LOGADD
} fl_speech_smear;
/* Builds the prefix tree; call it before decoding, and again for another language model. lm scores words;
   NULL: no smearing. flashlight: as Flashlight does, adds up the scores of words with equal spelling even
   for MAX, and uses log10. */
FL_API bool fl_speech_lexicon_finish(fl_speech_lexicon *l, fl_speech_smear how, const fl_text_scorer *lm,
                                     bool flashlight);

/* Node of the prefix tree; node 0 is the root. The children of a node are contiguous and sorted by token. */
typedef struct fl_speech_node {
    int32_t token;
    int32_t child, children; /* index of the first child, and their number */
    int32_t word, words;     /* index of the first word in fl_speech_lexicon_list, and their number */
    float smeared;           /* the smeared score */
} fl_speech_node;
/* All nodes; *n becomes their number. Owned by l. */
FL_API const fl_speech_node *fl_speech_lexicon_nodes(const fl_speech_lexicon *l, int64_t *n);
/* Word indices of the nodes, concatenated. Owned by l. */
FL_API const int32_t *fl_speech_lexicon_list(const fl_speech_lexicon *l);
/* The child of a node with a given token; -1 if none. */
FL_API int32_t fl_speech_node_child(const fl_speech_node *nodes, int32_t node, int32_t token);
/* Checks that the lexicon is finished and its tokens are below `classes`; else false after fl_fail as fn. */
FL_API bool fl_speech_lexicon_fits(const char *fn, const fl_speech_lexicon *l, int64_t classes);

#ifdef __cplusplus
}
#endif
#endif /* FL_SPEECH_LEXICON_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_SPEECH_LEXICON) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_SPEECH_LEXICON_IMPL
#define FL_SPEECH_LEXICON_IMPL
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FL__SPEECH_HOMOPHONES = 6 }; /* maximal number of words per node */

/* Spellings are concatenated in `token`; sorted, they are the tree in depth-first order. */
typedef struct fl__speech_spelling {
    int64_t at;
    int32_t n, word, next; /* next: next spelling of the word; 0: none */
    const int32_t *token;  /* while sorting */
} fl__speech_spelling;

/* First and last spelling of a word. */
typedef struct fl__speech_spelling_range {
    int32_t first, last;
} fl__speech_spelling_range;

struct fl_speech_lexicon {
    fl_text_dictionary *words;
    fl__speech_spelling *spelling;
    fl__speech_spelling_range *spelled; /* [words] */
    int32_t *token, *list;
    fl_speech_node *node;
    int64_t n, cap, tokens, token_cap, nodes, node_cap, listed, list_cap, spelled_cap;
};

FL_API fl_speech_lexicon *fl_speech_lexicon_new(void) {
    fl_speech_lexicon *l = fl_heap_alloc(sizeof *l);
    if (!l) return NULL;
    *l = (fl_speech_lexicon){.words = fl_text_dictionary_new()};
    if (l->words) return l;
    fl_heap_free(l);
    return NULL;
}

FL_API void fl_speech_lexicon_free(fl_speech_lexicon *l) {
    if (!l) return;
    fl_text_dictionary_free(l->words);
    fl_heap_free(l->spelling);
    fl_heap_free(l->token);
    fl_heap_free(l->list);
    fl_heap_free(l->spelled);
    fl_heap_free(l->node);
    fl_heap_free(l);
}

FL_API int64_t fl_speech_lexicon_add(fl_speech_lexicon *l, const char *word, const int32_t *tokens,
                                     int64_t n) {
    if (!fl_given(l, "fl_speech_lexicon_add", "the lexicon") ||
        !fl_given(word, "fl_speech_lexicon_add", "the word")) return -1;
    const int64_t length = (int64_t)strlen(word);
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0)
            return fl_fail("fl_speech_lexicon_add: %s: token %lld must be >= 0, got %d", word, (long long)i,
                           (int)tokens[i]) - 1;
    if (n < 1 || n > INT16_MAX || l->tokens + n > INT32_MAX)
        return fl_fail("fl_speech_lexicon_add: %s: a spelling must have 1 to %d tokens, got %lld", word,
                       INT16_MAX, (long long)n) - 1;
    if (!fl_heap_grow(&l->spelling, &l->cap, l->n + 1, sizeof *l->spelling) ||
        !fl_heap_grow(&l->token, &l->token_cap, l->tokens + n, sizeof *l->token) ||
        !fl_heap_grow(&l->spelled, &l->spelled_cap, fl_text_dictionary_size(l->words) + 1,
                      sizeof *l->spelled)) return -1;
    int64_t index = fl_text_dictionary_find(l->words, word, length);
    if (index >= 0) l->spelling[l->spelled[index].last].next = (int32_t)l->n;
    else if ((index = fl_text_dictionary_add(l->words, word, length)) < 0) return -1;
    else l->spelled[index] = (fl__speech_spelling_range){.first = (int32_t)l->n};
    l->spelled[index].last = (int32_t)l->n;
    memcpy(l->token + l->tokens, tokens, (size_t)n * sizeof *tokens);
    l->spelling[l->n++] = (fl__speech_spelling){.at = l->tokens, .n = (int32_t)n, .word = (int32_t)index};
    l->tokens += n;
    return index;
}

FL_API fl_speech_lexicon *fl_speech_lexicon_load_opt(const char *path, const fl_text_dictionary *tokens,
                                                     fl_speech_lexicon_opts o) {
    const char *fn = "fl_speech_lexicon_load";
    enum { MOST = 4096 };
    int64_t size, n, skipped = 0, line = 0;
    char *text = fl_text_read_file(fn, path, &size), word[1024];
    int32_t *token = text ? fl_heap_alloc(MOST * sizeof *token) : NULL;
    fl_speech_lexicon *l = token ? fl_speech_lexicon_new() : NULL;
    bool ok = l != NULL;
    for (char *p = text, *end = text ? text + size : NULL; ok && p < end; line++) {
        char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) stop = end;
        const char *at = p, *w = fl_text_field(&at, stop, &n);
        p = stop + 1;
        if (!w) continue;
        if (n >= (int64_t)sizeof word) {
            ok = fl_fail("%s: %s:%lld: the word has %lld bytes, the maximum is %lld", fn, path,
                         (long long)line + 1, (long long)n, (long long)sizeof word - 1);
            break;
        }
        memcpy(word, w, (size_t)n), word[n] = 0;
        int64_t count = 0, bad = 0;
        for (const char *t; ok && (t = fl_text_field(&at, stop, &n)) && !bad;) {
            const int64_t k = fl_text_dictionary_find(tokens, t, n);
            bad = k < 0 || count == MOST;
            if (bad && !o.skip)
                ok = fl_fail("%s: %s:%lld: %s: unknown token '%.*s', or more than 4096 tokens", fn, path,
                             (long long)line + 1, word, (int)(n < 99 ? n : 99), t);
            if (!bad) token[count++] = (int32_t)k;
        }
        if (ok && !bad && !count)
            ok = fl_fail("%s: %s:%lld: %s: no tokens", fn, path, (long long)line + 1, word);
        skipped += bad;
        if (ok && !bad) ok = fl_speech_lexicon_add(l, word, token, count) >= 0;
    }
    fl_heap_free(text);
    fl_heap_free(token);
    if (ok && o.skipped) *o.skipped = skipped;
    if (ok) return l;
    fl_speech_lexicon_free(l);
    return NULL;
}

FL_API const int32_t *fl_speech_lexicon_spelling(const fl_speech_lexicon *l, int64_t word, int64_t k,
                                                 int64_t *n) {
    if (!fl_given(l, "fl_speech_lexicon_spelling", "the lexicon") ||
        !fl_given(n, "fl_speech_lexicon_spelling", "the count")) return NULL;
    if (word < 0 || word >= fl_text_dictionary_size(l->words)) return NULL;
    int64_t i = l->spelled[word].first, at = 0;
    for (; at < k && l->spelling[i].next; at++) i = l->spelling[i].next;
    *n = at == k ? l->spelling[i].n : at + 1;
    return at == k ? l->token + l->spelling[i].at : NULL;
}

FL_API const fl_text_dictionary *fl_speech_lexicon_words(const fl_speech_lexicon *l) {
    return fl_given(l, "fl_speech_lexicon_words", "the lexicon") ? l->words : NULL;
}
FL_API const int32_t *fl_speech_lexicon_list(const fl_speech_lexicon *l) {
    return fl_given(l, "fl_speech_lexicon_list", "the lexicon") ? l->list : NULL;
}
FL_API const fl_speech_node *fl_speech_lexicon_nodes(const fl_speech_lexicon *l, int64_t *n) {
    if (!fl_given(l, "fl_speech_lexicon_nodes", "the lexicon") ||
        !fl_given(n, "fl_speech_lexicon_nodes", "the count")) return NULL;
    *n = l->nodes;
    return l->node;
}

FL_API int32_t fl_speech_node_child(const fl_speech_node *nodes, int32_t node, int32_t token) {
    if (!fl_given(nodes, "fl_speech_node_child", "the nodes")) return -1;
    const int32_t first = nodes[node].child, end = first + nodes[node].children;
    int32_t low = first, high = end;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (nodes[middle].token < token) low = middle + 1;
        else high = middle;
    }
    return low < end && nodes[low].token == token ? low : -1;
}

FL_API bool fl_speech_lexicon_fits(const char *fn, const fl_speech_lexicon *l, int64_t classes) {
    if (!fl_given(l, "fl_speech_lexicon_fits", "the lexicon")) return false;
    if (!l->nodes) return fl_fail("%s: the lexicon is not finished: call fl_speech_lexicon_finish", fn);
    for (int64_t k = 1; k < l->nodes; k++)
        if (l->node[k].token >= classes)
            return fl_fail("%s: token %d of the lexicon is out of range, there are %lld classes", fn,
                           (int)l->node[k].token, (long long)classes);
    return true;
}

/* Orders by tokens, then by order of addition. */
static int fl__speech_by_tokens(const void *a, const void *b) {
    const fl__speech_spelling *x = a, *y = b;
    const int32_t n = x->n < y->n ? x->n : y->n;
    for (int32_t i = 0; i < n; i++)
        if (x->token[i] != y->token[i]) return x->token[i] < y->token[i] ? -1 : 1;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Work item of the construction: node `node` stands for the first `depth` tokens of sorted spellings begin to
   end, and needs its words and children. */
typedef struct fl__speech_branch {
    int64_t begin, end;
    int32_t node, depth;
} fl__speech_branch;

/* Adds the words that end at a node. */
static bool fl__speech_list_words(fl_speech_lexicon *l, const fl__speech_spelling *sorted,
                                  fl__speech_branch *b) {
    fl_speech_node *node = &l->node[b->node];
    node->word = (int32_t)l->listed;
    for (; b->begin < b->end && sorted[b->begin].n == b->depth; b->begin++) {
        bool seen = false;
        for (int i = 0; i < node->words; i++) seen |= l->list[node->word + i] == sorted[b->begin].word;
        if (seen || node->words == FL__SPEECH_HOMOPHONES) continue;
        if (!fl_heap_grow(&l->list, &l->list_cap, l->listed + 1, sizeof *l->list)) return false;
        l->list[l->listed++] = sorted[b->begin].word;
        node->words++;
    }
    return true;
}

/* Builds the tree from node 0, depth first, with an explicit stack because a spelling may have thousands of
   tokens. */
static bool fl__speech_build_tree(fl_speech_lexicon *l, const fl__speech_spelling *sorted) {
    fl__speech_branch *stack = NULL;
    int64_t n = 1, cap = 0;
    bool ok = fl_heap_grow(&stack, &cap, 1, sizeof *stack);
    if (ok) stack[0] = (fl__speech_branch){0, l->n, 0, 0};
    while (ok && n) {
        fl__speech_branch b = stack[--n];
        if (!(ok = fl__speech_list_words(l, sorted, &b))) break;
        const int64_t first = l->nodes, below = n;
        for (int64_t stop; ok && b.begin < b.end; b.begin = stop) {
            const int32_t token = sorted[b.begin].token[b.depth];
            for (stop = b.begin + 1; stop < b.end && sorted[stop].token[b.depth] == token;) stop++;
            ok = fl_heap_grow(&l->node, &l->node_cap, l->nodes + 1, sizeof *l->node) &&
                 fl_heap_grow(&stack, &cap, n + 1, sizeof *stack);
            if (!ok) break;
            stack[n++] = (fl__speech_branch){b.begin, stop, (int32_t)l->nodes, b.depth + 1};
            l->node[l->nodes++] = (fl_speech_node){.token = token};
        }
        l->node[b.node].child = (int32_t)first, l->node[b.node].children = (int32_t)(l->nodes - first);
        for (int64_t i = below, j = n - 1; i < j; i++, j--) { /* pop the first child first */
            const fl__speech_branch swap = stack[i];
            stack[i] = stack[j], stack[j] = swap;
        }
    }
    fl_heap_free(stack);
    return ok;
}

static double fl__speech_log_add(double a, double b) {
    const double most = a > b ? a : b, least = a > b ? b : a;
    return least == -INFINITY || least - most < -39.14 ? most : most + log1p(exp(least - most));
}

/* Iterates backwards, because children have higher indices than their parents. */
static bool fl__speech_smear_tree(fl_speech_lexicon *l, fl_speech_smear how, const fl_text_scorer *lm,
                                  bool flashlight) {
    fl_text_state start, next;
    if (!lm->start(lm, &start)) return false;
    for (int64_t k = l->nodes - 1; k >= 0; k--) {
        fl_speech_node *node = &l->node[k];
        double sum = -INFINITY;
        for (int i = 0; i < node->words; i++) {
            double s;
            if (!lm->score(lm, &start, l->list[node->word + i], &next, &s)) return false;
            if (flashlight) s *= 0.4342944819032518;
            sum = how == FL_SPEECH_SMEAR_LOGADD || flashlight ? fl__speech_log_add(sum, s)
                  : s > sum                                   ? s
                                                              : sum;
        }
        for (int i = 0; i < node->children; i++) {
            const double s = l->node[node->child + i].smeared;
            sum = how == FL_SPEECH_SMEAR_LOGADD ? fl__speech_log_add(sum, s) : s > sum ? s : sum;
        }
        node->smeared = (float)sum;
    }
    return true;
}

FL_API bool fl_speech_lexicon_finish(fl_speech_lexicon *l, fl_speech_smear how, const fl_text_scorer *lm,
                                     bool flashlight) {
    if (!fl_given(l, "fl_speech_lexicon_finish", "the lexicon")) return false;
    if (!l->n) return fl_fail("fl_speech_lexicon_finish: the lexicon is empty");
    if (!l->nodes) {
        fl__speech_spelling *sorted = fl_heap_alloc((size_t)l->n * sizeof *sorted);
        bool ok = sorted && fl_heap_grow(&l->node, &l->node_cap, 1, sizeof *l->node);
        for (int64_t i = 0; ok && i < l->n; i++)
            sorted[i] = l->spelling[i], sorted[i].token = l->token + sorted[i].at;
        if (ok) qsort(sorted, (size_t)l->n, sizeof *sorted, fl__speech_by_tokens);
        if (ok) l->node[0] = (fl_speech_node){.token = -1}, l->nodes = 1;
        ok = ok && fl__speech_build_tree(l, sorted);
        fl_heap_free(sorted);
        if (!ok) return l->nodes = l->listed = 0, false;
    }
    for (int64_t k = 0; k < l->nodes; k++) l->node[k].smeared = 0;
    return !lm || how == FL_SPEECH_NO_SMEARING || fl__speech_smear_tree(l, how, lm, flashlight);
}

#endif
#endif

/* MIT licence: see LICENSE. */
