/* kernels/cuda/plan.h - tables of plans by shape: open addressing, of fixed size

   An entry is at most FL__PLAN_PROBES places after that of its hash. If all of these are taken, the one that
   was used least recently is evicted, but none that a CUDA graph may contain. */
#ifndef FL_CUDA_PLAN_H
#define FL_CUDA_PLAN_H
#include "../../fl_backend.h"
enum { FL__PLAN_PROBES = 64 };
/* The first field of an entry; the second one is its key, without padding. */
typedef struct fl__cuda_plan {
    uint64_t hash, used; /* used: number of the last search; 0: free, UINT64_MAX: captured */
} fl__cuda_plan;
typedef struct fl__cuda_plans {
    void *entry; /* n of them, zeroed at the start */
    uint64_t n;
    size_t entry_size, key_size;
} fl__cuda_plans;
/* Finds the entry of a key, or one to overwrite (*found: false), free or evicted. Returns NULL if the table
   is full, or after fl_fail with the shapes of c's operands if the plan would be made while a graph is
   captured: that may load code. The caller holds the table's lock. */
FL_PRIVATE void *fl__cuda_plan_find(const fl__cuda_plans *t, const void *key, const fl_call *c, bool *found);
FL_PRIVATE int64_t fl__cuda_plan_evictions(void); /* of all tables so far */
#endif

#if defined(FL_IMPL_ONLY_CUDA_PLAN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_PLAN_IMPL
#define FL_CUDA_PLAN_IMPL
#include "../../fl/tensor/memo.h"
#include "memory.h"
#include <string.h>

static int64_t fl__plan_evicted; /* atomic */

FL_PRIVATE int64_t fl__cuda_plan_evictions(void) {
    return __atomic_load_n(&fl__plan_evicted, __ATOMIC_RELAXED);
}

FL_PRIVATE void *fl__cuda_plan_find(const fl__cuda_plans *t, const void *key, const fl_call *c, bool *found) {
    static uint64_t searches; /* atomic */
    const uint64_t hash = fl__memo_hash(key, t->key_size, 0);
    const uint64_t now = __atomic_add_fetch(&searches, 1, __ATOMIC_RELAXED);
    fl__cuda_plan *at = NULL;
    *found = false;
    for (uint64_t i = 0; i < FL__PLAN_PROBES && !*found && (!at || at->used); i++) {
        fl__cuda_plan *p = (fl__cuda_plan *)(void *)((char *)t->entry + (hash + i) % t->n * t->entry_size);
        *found = p->used && p->hash == hash && !memcmp(p + 1, key, t->key_size);
        if (*found || !at || p->used < at->used) at = p;
    }
    if (!*found && fl__cuda_captures())
        return fl_fail("fl_%s: cuda: the plan for %s and %s is not made yet, and cannot be made while a "
                       "graph is captured", fl_op_get_info(c->op)->name, FL_SHAPE_TEXT(c->in[0]),
                       FL_SHAPE_TEXT(c->in[1])), NULL;
    if (!*found && at->used == UINT64_MAX) return NULL;
    if (!*found && at->used) __atomic_add_fetch(&fl__plan_evicted, 1, __ATOMIC_RELAXED);
    at->hash = hash;
    if (!*found || at->used != UINT64_MAX) at->used = fl__cuda_captures() ? UINT64_MAX : now;
    return at;
}

#endif
#endif
/* MIT licence: see LICENSE. */
