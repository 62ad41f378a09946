/* trie.h - which keys begin at a place of a text */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TEXT_TRIE_H
#define FL_TEXT_TRIE_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_text_key {
    const char *text;
    int64_t n;
    int32_t value; /* from 0 */
} fl_text_key;

/* A double array (Aoe 1989): the child of node k by byte c is base[k] + c, if check there says k. Node 0 is
   the root. A key's node has its value, others -1. */
typedef struct fl_text_trie_node {
    int32_t base, check, value;
} fl_text_trie_node;
typedef struct fl_text_trie {
    fl_text_trie_node *node;
    int64_t n, cap_;
} fl_text_trie;
/* Starts zeroed. Sorts the keys; each must be there once, and none be empty. */
FL_API bool fl_text_trie_build(fl_text_trie *t, fl_text_key *key, int64_t n);
FL_API void fl_text_trie_free(fl_text_trie *t);
/* The node that byte c leads to; -1: none. */
static inline int32_t fl_text_trie_step(const fl_text_trie *t, int32_t node, uint8_t c) {
    const int64_t to = (int64_t)t->node[node].base + c;
    return to < t->n && t->node[to].check == node ? (int32_t)to : -1;
}
/* The longest key that s begins with: its value, and its bytes in *len; -1: none. */
FL_API int32_t fl_text_trie_longest(const fl_text_trie *t, const char *s, int64_t n, int64_t *len);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TRIE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TRIE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TRIE_IMPL
#define FL_TEXT_TRIE_IMPL
#include <stdlib.h>
#include <string.h>

static int fl__trie_by_text(const void *a, const void *b) {
    const fl_text_key *x = a, *y = b;
    const int order = memcmp(x->text, y->text, (size_t)(x->n < y->n ? x->n : y->n));
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

static bool fl__trie_room(fl_text_trie *t, int64_t n) {
    if (n > INT32_MAX - 512) return fl_fail("fl_text_trie_build: too many nodes");
    if (!fl_heap_grow(&t->node, &t->cap_, n, sizeof *t->node)) return false;
    for (; t->n < n; t->n++) t->node[t->n] = (fl_text_trie_node){0, -1, -1};
    return true;
}

/* Nodes that wait for their children: the keys [low, high) have its text as their first depth bytes. */
typedef struct fl__trie_task {
    int32_t node;
    int64_t low, high, depth;
} fl__trie_task;

/* The lowest base from `from` on where all children's places are free. */
static int64_t fl__trie_base(fl_text_trie *t, const uint8_t *child, int n, int64_t from) {
    for (int64_t base = from > child[0] ? from - child[0] : 1;; base++) {
        int i = 0;
        while (i < n && (base + child[i] >= t->n || t->node[base + child[i]].check < 0)) i++;
        if (i == n) return base;
    }
}

static bool fl__trie_expand(fl_text_trie *t, const fl_text_key *key, fl__trie_task task, int64_t *from,
                            fl__trie_task **stack, int64_t *n_stack, int64_t *cap) {
    uint8_t child[256];
    int n = 0;
    if (key[task.low].n == task.depth) t->node[task.node].value = key[task.low++].value;
    for (int64_t i = task.low; i < task.high; i++) {
        const uint8_t c = (uint8_t)key[i].text[task.depth];
        if (!n || child[n - 1] != c) child[n++] = c;
    }
    if (!n) return true;
    const int64_t base = fl__trie_base(t, child, n, *from);
    if (!fl__trie_room(t, base + child[n - 1] + 1)) return false;
    t->node[task.node].base = (int32_t)base;
    int64_t low = task.low;
    for (int i = 0; i < n; i++) {
        int64_t high = low;
        while (high < task.high && (uint8_t)key[high].text[task.depth] == child[i]) high++;
        t->node[base + child[i]].check = task.node;
        if (!fl_heap_grow(stack, cap, *n_stack + 1, sizeof **stack)) return false;
        (*stack)[(*n_stack)++] = (fl__trie_task){(int32_t)(base + child[i]), low, high, task.depth + 1};
        low = high;
    }
    while (*from < t->n && t->node[*from].check >= 0) ++*from;
    return true;
}

FL_API bool fl_text_trie_build(fl_text_trie *t, fl_text_key *key, int64_t n) {
    fl__trie_task *stack = NULL;
    int64_t n_stack = 0, cap = 0, from = 1, nodes = 1;
    if (n) qsort(key, (size_t)n, sizeof *key, fl__trie_by_text);
    for (int64_t i = 0; i < n; i++) {
        int64_t same = 0;
        while (i && same < key[i].n && same < key[i - 1].n &&
               key[i].text[same] == key[i - 1].text[same])
            same++;
        nodes += key[i].n - same;
        if (!key[i].n || (i && same == key[i].n))
            return fl_fail("fl_text_trie_build: '%.*s' is %s", (int)(key[i].n < 100 ? key[i].n : 100),
                           key[i].text, key[i].n ? "there twice" : "empty");
    }
    bool ok = fl_heap_grow(&t->node, &t->cap_, nodes + nodes / 16 + 256, sizeof *t->node) &&
              fl__trie_room(t, 1);
    if (ok) t->node[0].check = 0; /* nobody's child, but not free */
    ok = ok && (!n || fl__trie_expand(t, key, (fl__trie_task){0, 0, n, 0}, &from, &stack, &n_stack, &cap));
    while (ok && n_stack) ok = fl__trie_expand(t, key, stack[--n_stack], &from, &stack, &n_stack, &cap);
    fl_heap_free(stack);
    if (!ok) fl_text_trie_free(t);
    return ok;
}

FL_API void fl_text_trie_free(fl_text_trie *t) {
    fl_heap_free(t->node);
    *t = (fl_text_trie){0};
}

FL_API int32_t fl_text_trie_longest(const fl_text_trie *t, const char *s, int64_t n, int64_t *len) {
    int32_t node = 0, best = -1;
    for (int64_t i = 0; t->n && i < n && (node = fl_text_trie_step(t, node, (uint8_t)s[i])) >= 0; i++)
        if (t->node[node].value >= 0) best = t->node[node].value, *len = i + 1;
    return best;
}

#endif
#endif

/* MIT licence: see LICENSE. */
