/* fl/text/tokenizers/trie.h - trie (double array): which keys are prefixes of a text */
#ifndef FL_TENSOR_H
#include "../../../fl_tensor.h"
#endif
#ifndef FL_TEXT_TOKENIZERS_TRIE_H
#define FL_TEXT_TOKENIZERS_TRIE_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_text_key {
    const char *text;
    int64_t n;
    int32_t value; /* >= 0 */
} fl_text_key;

/* A double array (Aoe 1989): the child of node k for byte c is at base[k] + c, if check there is k. Node 0
   is the root. The node of a key has its value, others -1. */
typedef struct fl_text_trie_node {
    int32_t base, check, value;
} fl_text_trie_node;
typedef struct fl_text_trie {
    fl_text_trie_node *node;
    int64_t n, cap_;
} fl_text_trie;
/* Builds a trie, which starts zeroed. Sorts the keys, distinct and not empty. Returns false after fl_fail. */
FL_API bool fl_text_trie_build(fl_text_trie *t, fl_text_key *key, int64_t n);
FL_API void fl_text_trie_free(fl_text_trie *t);
/* The child for byte c; -1: none. */
static inline int32_t fl_text_trie_step(const fl_text_trie *t, int32_t node, uint8_t c) {
    const int64_t to = (int64_t)t->node[node].base + c;
    return to < t->n && t->node[to].check == node ? (int32_t)to : -1;
}
/* The value of the longest key that is a prefix of s, its length in *len; -1: none. *left is decreased by 4
   per byte examined. */
FL_API int32_t fl_text_trie_longest(const fl_text_trie *t, const char *s, int64_t n, int64_t *len,
                                    int64_t *left);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_TRIE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_TRIE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_TRIE_IMPL
#define FL_TEXT_TOKENIZERS_TRIE_IMPL
#include <stdlib.h>
#include <string.h>

static int fl__trie_by_text(const void *a, const void *b) {
    const fl_text_key *x = a, *y = b;
    const int order = memcmp(x->text, y->text, (size_t)(x->n < y->n ? x->n : y->n));
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

/* A node whose children are not built yet: keys [low, high) share its first depth bytes. */
typedef struct fl__trie_task {
    int32_t node;
    int64_t low, high, depth;
} fl__trie_task;

/* Free nodes form a list in the order of their indices: base is the next one, value the previous one (-1:
   none), check is -1 minus the number of failed searches at the node. */
typedef struct fl__trie_builder {
    fl_text_trie *t;
    const fl_text_key *key;
    fl__trie_task *task;
    int64_t n_tasks, cap;
    int32_t first, last;
} fl__trie_builder;

/* A free node is given up after this many failed searches. This bounds the time of a search and wastes little
   memory: the nodes around it are mostly taken. */
enum { FL__TRIE_TRIES = 32 };

static void fl__trie_unlink(fl__trie_builder *m, int64_t i) {
    fl_text_trie_node *node = m->t->node;
    const int32_t next = node[i].base, before = node[i].value;
    *(before < 0 ? &m->first : &node[before].base) = next;
    *(next < 0 ? &m->last : &node[next].value) = before;
    node[i] = (fl_text_trie_node){0, -1, -1};
}

static bool fl__trie_reserve(fl__trie_builder *m, int64_t n) {
    fl_text_trie *t = m->t;
    if (n > INT32_MAX - 512) return fl_fail("fl_text_trie_build: more than 2^31 - 513 nodes");
    if (!fl_heap_grow(&t->node, &t->cap_, n, sizeof *t->node)) return false;
    for (; t->n < n; m->last = (int32_t)t->n++) {
        t->node[t->n] = (fl_text_trie_node){-1, -1, m->last};
        *(m->last < 0 ? &m->first : &t->node[m->last].base) = (int32_t)t->n;
    }
    return true;
}

/* A base for which the slots of all children are free. */
static int64_t fl__trie_base(fl__trie_builder *m, const uint8_t *child, int n) {
    fl_text_trie *t = m->t;
    for (int32_t at = m->first, next; at >= 0; at = next) {
        const int64_t base = at - child[0];
        int i = 1;
        while (i < n && (base + child[i] >= t->n || t->node[base + child[i]].check < 0)) i++;
        if (i == n && base > 0) return base;
        next = t->node[at].base;
        if (--t->node[at].check < -FL__TRIE_TRIES) fl__trie_unlink(m, at);
    }
    return t->n > child[0] ? t->n - child[0] : 1;
}

static bool fl__trie_expand(fl__trie_builder *m, fl__trie_task task) {
    fl_text_trie *t = m->t;
    uint8_t child[256];
    int n = 0;
    if (m->key[task.low].n == task.depth) t->node[task.node].value = m->key[task.low++].value;
    for (int64_t i = task.low; i < task.high; i++) {
        const uint8_t c = (uint8_t)m->key[i].text[task.depth];
        if (!n || child[n - 1] != c) child[n++] = c;
    }
    if (!n) return true;
    const int64_t base = fl__trie_base(m, child, n);
    if (!fl__trie_reserve(m, base + child[n - 1] + 1)) return false;
    t->node[task.node].base = (int32_t)base;
    int64_t low = task.low;
    for (int i = 0; i < n; i++) {
        int64_t high = low;
        while (high < task.high && (uint8_t)m->key[high].text[task.depth] == child[i]) high++;
        fl__trie_unlink(m, base + child[i]);
        t->node[base + child[i]].check = task.node;
        if (!fl_heap_grow(&m->task, &m->cap, m->n_tasks + 1, sizeof *m->task)) return false;
        m->task[m->n_tasks++] = (fl__trie_task){(int32_t)(base + child[i]), low, high, task.depth + 1};
        low = high;
    }
    return true;
}

FL_API bool fl_text_trie_build(fl_text_trie *t, fl_text_key *key, int64_t n) {
    if (!fl_given(t, "fl_text_trie_build", "the trie")) return false;
    fl__trie_builder m = {.t = t, .key = key, .first = -1, .last = -1};
    int64_t nodes = 1;
    if (n) qsort(key, (size_t)n, sizeof *key, fl__trie_by_text);
    for (int64_t i = 0; i < n; i++) {
        int64_t same = 0;
        while (i && same < key[i].n && same < key[i - 1].n &&
               key[i].text[same] == key[i - 1].text[same])
            same++;
        nodes += key[i].n - same;
        if (!key[i].n || (i && same == key[i].n))
            return fl_fail("fl_text_trie_build: %s key '%.*s'", key[i].n ? "duplicate" : "empty",
                           (int)(key[i].n < 100 ? key[i].n : 100), key[i].text);
    }
    bool ok = fl_heap_grow(&t->node, &t->cap_, nodes + nodes / 16 + 256, sizeof *t->node) &&
              fl__trie_reserve(&m, 1);
    if (ok) fl__trie_unlink(&m, 0), t->node[0].check = 0; /* the root: no child, but not free */
    ok = ok && (!n || fl__trie_expand(&m, (fl__trie_task){0, 0, n, 0}));
    while (ok && m.n_tasks) ok = fl__trie_expand(&m, m.task[--m.n_tasks]);
    fl_heap_free(m.task);
    if (!ok) fl_text_trie_free(t);
    return ok;
}

FL_API void fl_text_trie_free(fl_text_trie *t) {
    if (!t) return;
    fl_heap_free(t->node);
    *t = (fl_text_trie){0};
}

FL_API int32_t fl_text_trie_longest(const fl_text_trie *t, const char *s, int64_t n, int64_t *len,
                                    int64_t *left) {
    if (!fl_given(t, "fl_text_trie_longest", "the trie") ||
        !fl_given(len, "fl_text_trie_longest", "the length") ||
        !fl_given(left, "fl_text_trie_longest", "the budget")) return -1;
    int32_t node = 0, best = -1;
    int64_t i = 0;
    for (; t->n && i < n && (node = fl_text_trie_step(t, node, (uint8_t)s[i])) >= 0; i++)
        if (t->node[node].value >= 0) best = t->node[node].value, *len = i + 1;
    *left -= 4 * i;
    return best;
}

#endif
#endif

/* MIT licence: see LICENSE. */
