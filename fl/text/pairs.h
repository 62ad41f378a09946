/* fl/text/pairs.h - hash table: a pair of ids -> rank and id */
#ifndef FL_TEXT_PAIRS_H
#define FL_TEXT_PAIRS_H
#include "dictionary.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FL_TEXT_NO_RANK UINT32_MAX /* rank of a free slot */
typedef struct fl_text_pair {
    int32_t left, right;
    uint32_t rank;
    int32_t id;
} fl_text_pair;
/* Starts zeroed; free it with fl_heap_free(slot). Once allocated it has mask + 1 slots, a power of two. */
typedef struct fl_text_pairs {
    fl_text_pair *slot;
    int64_t n, mask;
    uint64_t seed; /* differs between processes, so that a file cannot choose colliding pairs */
} fl_text_pairs;
/* Reserves capacity for that many pairs. */
FL_API bool fl_text_pairs_reserve(fl_text_pairs *t, int64_t pairs);
/* Returns the slot of a pair, or a free slot, which the caller gives a rank. Returns NULL after fl_fail. */
FL_API fl_text_pair *fl_text_pairs_add(fl_text_pairs *t, int32_t left, int32_t right);
/* Returns the slot of a pair, or the free slot where it would be: its rank tells. The table has slots. */
static inline fl_text_pair *fl_text_pairs_find(const fl_text_pairs *t, int32_t left, int32_t right) {
    const uint64_t h = (t->seed ^ ((uint64_t)(uint32_t)left << 32 | (uint32_t)right)) * 0x9e3779b97f4a7c15u;
    for (uint64_t at = h ^ h >> 29;; at++) {
        fl_text_pair *p = &t->slot[at & (uint64_t)t->mask];
        if ((p->left == left && p->right == right) || p->rank == FL_TEXT_NO_RANK) return p;
    }
}

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_PAIRS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_PAIRS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_PAIRS_IMPL
#define FL_TEXT_PAIRS_IMPL

FL_API bool fl_text_pairs_reserve(fl_text_pairs *t, int64_t pairs) {
    if (!fl_given(t, "fl_text_pairs_reserve", "the table")) return false;
    const fl_text_pairs old = *t;
    int64_t slots = old.slot ? old.mask + 1 : 16;
    while (slots < pairs + pairs / 2 + 8) slots *= 2;
    if (old.slot && slots == old.mask + 1) return true;
    t->slot = fl_heap_alloc((size_t)slots * sizeof *t->slot);
    if (!t->slot) return t->slot = old.slot, false;
    t->mask = slots - 1;
    if (!old.slot) t->seed = fl_text_seeded_hash("pairs", 5);
    for (int64_t i = 0; i < slots; i++) t->slot[i].rank = FL_TEXT_NO_RANK, t->slot[i].left = -1;
    for (int64_t i = 0; old.slot && i <= old.mask; i++)
        if (old.slot[i].rank != FL_TEXT_NO_RANK)
            *fl_text_pairs_find(t, old.slot[i].left, old.slot[i].right) = old.slot[i];
    fl_heap_free(old.slot);
    return true;
}

FL_API fl_text_pair *fl_text_pairs_add(fl_text_pairs *t, int32_t left, int32_t right) {
    if (!fl_given(t, "fl_text_pairs_add", "the table")) return NULL;
    if (3 * t->n >= 2 * t->mask && !fl_text_pairs_reserve(t, t->n + t->n / 8 + 8)) return NULL;
    fl_text_pair *p = fl_text_pairs_find(t, left, right);
    if (p->rank == FL_TEXT_NO_RANK) p->left = left, p->right = right, t->n++;
    return p;
}

#endif
#endif

/* MIT licence: see LICENSE. */
