/* examples/research/allocators.h - allocators as plain C over a range of addresses, without memory behind it

   A policy is a line of numbers; one engine follows them all: blocks in address order within their segment, a
   list of free blocks per pool. What a device has is a budget of bytes, so that a trace of requests
   (fragmentation.c records them) can be replayed on a device of any size.

     heap *h = heap_new(&policy, budget, n, NULL, 0, NULL); // n requests
     if (!heap_get(h, i, bytes)) ... // the device is full
     h->of[i]->at, h->of[i]->bytes   // the block of request i
     heap_put(h, i);
     heap_free(h); */
#ifndef RESEARCH_ALLOCATORS_H
#define RESEARCH_ALLOCATORS_H
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEAP_POOLS = 256, HEAP_RUN = 512 << 10, HEAP_ALIGN = 64 };
#define HEAP_NO_LIMIT (INT64_MAX / 4)

static inline void *array_new(int64_t n, size_t size) {
    void *p = calloc((size_t)n + 1, size);
    if (!p) fprintf(stderr, "out of memory\n"), exit(1);
    return p;
}

typedef struct policy {
    const char *name;
    int64_t round, spare;           /* blocks are multiples of round, with bytes for headers */
    int64_t page;                   /* segments without another size are multiples of it */
    int64_t classes;                /* requests below have size classes */
    int64_t small, middle, slab[2]; /* requests up to small, up to middle: bytes of their segments */
    int64_t rest[2];                /* least bytes to split off, of small requests and of others */
    int64_t limit, close;           /* larger blocks do not serve requests up to limit; close: nor are they
                                       split, and less must be left over */
    bool first, grows, buddy;       /* first fit, not best; one range, not segments; halves */
    int plan;                       /* 1: of all requests; 2: of those of the first two steps */
} policy;

typedef struct block block;
struct block {
    int64_t at, bytes, base, segment;  /* base and bytes of its segment */
    int pool;                          /* small ones, others, then the size classes */
    bool is_free, planned;
    block *left, *right, *next, *prev; /* neighbours in the segment; in the pool's list of free blocks */
};

typedef struct heap {
    const policy *p;
    int64_t top, reserved, peak, budget; /* top: end of all addresses; budget: of reserved */
    block *free[HEAP_POOLS], *last, *spare, *chunks, **of; /* of: block of each request */
    block *plan, *live;   /* planned blocks by request, those in use */
    const int64_t *match; /* the request whose planned block each request takes; -1: none */
} heap;

static inline int64_t up(int64_t bytes, int64_t multiple) {
    return (bytes + multiple - 1) / multiple * multiple;
}

static inline int log_of(int64_t x) {
    return 63 - __builtin_clzll((unsigned long long)x);
}

static inline void push(block **list, block *k) {
    k->prev = NULL;
    k->next = *list;
    if (k->next) k->next->prev = k;
    *list = k;
}

static inline void pull(block **list, block *k) {
    *(k->prev ? &k->prev->next : list) = k->next;
    if (k->next) k->next->prev = k->prev;
}

static inline void set_free(heap *h, block *k, bool on) {
    (on ? push : pull)(&h->free[k->pool], k);
    k->is_free = on;
}

static inline block *new_block(heap *h, block value) {
    if (!h->spare) {
        block *chunk = array_new(512, sizeof *chunk); /* the first block links the chunks */
        push(&h->chunks, chunk);
        for (int i = 1; i < 512; i++) push(&h->spare, &chunk[i]);
    }
    block *k = h->spare;
    pull(&h->spare, k);
    *k = value;
    return k;
}

/* A segment from the device, in no list; NULL if it has too little even after unused ones went back. */
static inline block *segment(heap *h, int pool, int64_t bytes) {
    for (int i = 0; h->reserved + bytes > h->budget && i < HEAP_POOLS; i++)
        for (block *k = h->free[i], *next; k; k = next) {
            next = k->next;
            if (k->bytes != k->segment) continue;
            set_free(h, k, false);
            h->reserved -= k->bytes;
            push(&h->spare, k);
        }
    if (h->reserved + bytes > h->budget) return NULL;
    h->reserved += bytes;
    if (h->reserved > h->peak) h->peak = h->reserved;
    const int64_t at = h->top;
    h->top += bytes;
    return new_block(h, (block){.at = at, .bytes = bytes, .base = at, .segment = bytes, .pool = pool});
}

/* The end of the range that grows, made large enough; NULL as above. */
static inline block *grow(heap *h, int64_t need) {
    block *k = h->last;
    if (k && (!k->is_free || (k->bytes > h->p->limit && need <= h->p->limit))) k = NULL;
    const int64_t more = need - (k ? k->bytes : 0), reserved = up(h->top + more, h->p->page);
    if (reserved > h->budget) return NULL;
    if (k) set_free(h, k, false);
    else k = new_block(h, (block){.at = h->top, .pool = 1, .left = h->last});
    if (k->left) k->left->right = k;
    h->last = k;
    k->bytes += more;
    h->top += more;
    h->reserved = h->peak = reserved;
    return k;
}

static inline block *find(heap *h, int pool, int64_t need) {
    const policy *p = h->p;
    block *best = NULL;
    for (block *k = h->free[pool]; k; k = k->next) {
        if (k->bytes < need) continue;
        if (k->bytes > p->limit && (need <= p->limit || (p->close && k->bytes - need >= p->close))) continue;
        if (!best || (p->first || k->bytes == best->bytes ? k->at < best->at : k->bytes < best->bytes))
            best = k;
    }
    if (best) set_free(h, best, false);
    return best;
}

static inline void split(heap *h, block *k, int64_t need) {
    block *rest = new_block(h, *k);
    rest->at += need;
    rest->bytes -= need;
    rest->left = k;
    if (rest->right) rest->right->left = rest;
    if (h->last == k) h->last = rest;
    k->bytes = need;
    k->right = rest;
    set_free(h, rest, true);
}

/* Gives request i its planned block; false if the plan has none of that size or its place is in use. */
static inline bool heap_planned(heap *h, int64_t i, int64_t bytes) {
    block *k = h->match[i] < 0 ? NULL : &h->plan[h->match[i]];
    if (!k || k->bytes != up(bytes, h->p->round)) return false;
    for (const block *l = h->p->plan > 1 ? h->live : NULL; l; l = l->next)
        if (l->at < k->at + k->bytes && k->at < l->at + l->bytes) return false;
    push(&h->live, k);
    h->of[i] = k;
    return true;
}

/* Gives request i its block; false if the device is full. */
static inline bool heap_get(heap *h, int64_t i, int64_t bytes) {
    const policy *p = h->p;
    if (h->plan && heap_planned(h, i, bytes)) return true;
    int64_t need = up(bytes + p->spare, p->round), rest = p->rest[need > p->small];
    int pool = need > p->small;
    int64_t size = !pool ? p->slab[0] : need <= p->middle ? p->slab[1] : up(need, p->page);
    if (p->buddy && need & (need - 1)) need = (int64_t)2 << log_of(need);
    if (p->buddy) size = need > p->page ? need : p->page;
    if (bytes + p->spare < p->classes) { /* four per power of two, each with segments of its own */
        need = up(bytes + p->spare, HEAP_ALIGN);
        rest = need = up(need, (int64_t)1 << (log_of(need) - 2));
        pool = 2 + 4 * log_of(need) + (int)(need >> (log_of(need) - 2) & 3);
        size = need > HEAP_RUN / 8 ? need : HEAP_RUN;
    }
    block *k = find(h, pool, need);
    if (!k) k = p->grows ? grow(h, need) : segment(h, pool, size);
    while (k && p->buddy && k->bytes > need) split(h, k, k->bytes / 2);
    if (k && k->bytes - need >= rest && !(p->close && k->bytes > p->limit)) split(h, k, need);
    h->of[i] = k;
    return k != NULL;
}

/* Frees the block of request i, and merges it with free neighbours, or with the other half. */
static inline void heap_put(heap *h, int64_t i) {
    block *k = h->of[i], *other;
    if (k->planned) {
        pull(&h->live, k);
        return;
    }
    for (;;) {
        if (h->p->buddy) other = (k->at - k->base) & k->bytes ? k->left : k->right;
        else other = k->right && k->right->is_free ? k->right : k->left;
        if (!other || !other->is_free || (h->p->buddy && other->bytes != k->bytes)) break;
        set_free(h, other, false);
        block *low = other->at < k->at ? other : k, *high = low == k ? other : k;
        low->bytes += high->bytes;
        low->right = high->right;
        if (low->right) low->right->left = low;
        if (h->last == high) h->last = low;
        push(&h->spare, high);
        k = low;
    }
    set_free(h, k, true);
}

/* A heap for n requests; with a plan: its blocks by request, the bytes they take, and h->match. */
static inline heap *heap_new(const policy *p, int64_t budget, int64_t n, block *plan, int64_t range,
                             const int64_t *match) {
    heap *h = array_new(1, sizeof *h);
    *h = (heap){.p = p, .budget = budget, .of = array_new(n, sizeof *h->of), .plan = plan, .match = match};
    h->top = range;
    h->reserved = h->peak = up(range, p->page);
    return h;
}

static inline void heap_free(heap *h) {
    for (block *chunk = h->chunks, *next; chunk; chunk = next) next = chunk->next, free(chunk);
    free(h->of);
    free(h);
}

/* ---- a plan: addresses of requests whose life times are known ---- */

typedef struct place {
    int64_t i, bytes, at, get, put; /* request i lives from event get to event put */
} place;

static inline int larger_first(const void *a, const void *b) {
    const place *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes ? 1 : -1) : x->i < y->i ? -1 : x->i > y->i;
}

/* Sets plan[i] for the n requests: the largest first, each in the smallest gap between those that live at the
   same time. Returns the bytes that they take. Sorts request. */
static inline int64_t heap_plan(place *request, int64_t n, block *plan) {
    place *by_address = array_new(n, sizeof *by_address);
    int64_t range = 0;
    qsort(request, (size_t)n, sizeof *request, larger_first);
    for (int64_t m = 0; m < n; m++) {
        place r = request[m];
        int64_t end = 0, gap = INT64_MAX, k = m;
        for (int64_t j = 0; j < m; j++) {
            const place *q = &by_address[j];
            if (q->put < r.get || r.put < q->get) continue;
            if (q->at - end >= r.bytes && q->at - end < gap) gap = q->at - end, r.at = end;
            if (q->at + q->bytes > end) end = q->at + q->bytes;
        }
        if (gap == INT64_MAX) r.at = end;
        for (; k > 0 && by_address[k - 1].at > r.at; k--) by_address[k] = by_address[k - 1];
        by_address[k] = r;
        plan[r.i] = (block){.at = r.at, .bytes = r.bytes, .planned = true};
        if (r.at + r.bytes > range) range = r.at + r.bytes;
    }
    free(by_address);
    return range;
}

#endif /* MIT licence: see LICENSE. */
