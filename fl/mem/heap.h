/* fl/mem/heap.h - heap allocation: the hook, growing arrays, detection of use after free */
#ifndef FL_MEM_HEAP_H
#define FL_MEM_HEAP_H
#include "build.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Allocator of all heap memory except buffers, a realloc: p NULL allocates, bytes 0 frees. Returns NULL on
   failure. */
typedef void *(*fl_heap_fn)(void *user, void *p, size_t bytes);
/* Replaces the allocator (fault injection, accounting); fn NULL restores realloc/free. The new function must
   be able to free blocks allocated before: once fl has been used, wrap the C heap rather than replace it.
   Host buffers below 1 MiB use it too. It may be called with a lock of fl held, so it must not call fl. */
FL_API void fl_heap_use(fl_heap_fn fn, void *user);
/* Allocates zeroed memory. NULL, with an "out of memory" error, on failure. */
FL_API void *fl_heap_alloc(size_t bytes);
/* Resizes p, not zeroed. NULL with an error on failure; p then stays valid. */
FL_API void *fl_heap_realloc(void *p, size_t bytes);
/* Frees p, which may be NULL. */
FL_API void fl_heap_free(void *p);
/* Frees an object that users hold: a module, a data set, a tokenizer. Under FL_DEBUG its memory is
   quarantined for a while, so that fl_is_freed detects uses after free. kind and name ("": none) appear in
   that error. */
FL_API void fl_object_free(void *p, const char *kind, const char *name);
/* Grows *array (a T **), by doubling, to at least `need` elements of `size` bytes; updates *cap. False with
   an error if out of memory; the array is then unchanged. */
FL_API bool fl_heap_grow(void *array, int64_t *cap, int64_t need, size_t size);
/* fl_heap_grow without recording an error. */
FL_PRIVATE bool fl__grow_raw(void *array, int64_t *cap, int64_t need, size_t size);
/* *out = a * b; false (no error) on overflow. */
FL_PRIVATE bool fl__mul_size(size_t a, size_t b, size_t *out);

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_HEAP_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_HEAP) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_HEAP_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_HEAP_IMPL
#include "shared.h"
#include "errors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

FL_PRIVATE struct fl__heap fl__heap;

FL_API void fl_heap_use(fl_heap_fn fn, void *user) {
    __atomic_store_n(&fl__heap.user, user, __ATOMIC_RELAXED);
    __atomic_store_n(&fl__heap.fn, fn, __ATOMIC_RELEASE);
}

/* Calls the allocator without recording an error: p NULL allocates, bytes 0 frees. */
void *fl__heap_raw(void *p, size_t bytes) {
    fl_heap_fn fn = __atomic_load_n(&fl__heap.fn, __ATOMIC_ACQUIRE);
    if (fn) return fn(__atomic_load_n(&fl__heap.user, __ATOMIC_RELAXED), p, bytes);
    if (bytes) return realloc(p, bytes);
    free(p);
    return NULL;
}

FL_API void *fl_heap_alloc(size_t bytes) {
    bool hooked = __atomic_load_n(&fl__heap.fn, __ATOMIC_ACQUIRE) != NULL;
    size_t n = bytes ? bytes : 1;
    void *p = hooked ? fl__heap_raw(NULL, n) : calloc(1, n);
    if (!p)
        fl_fail("out of memory: cannot allocate %zu bytes on the heap", bytes);
    else if (hooked)
        memset(p, 0, n);
    return p;
}

FL_API void *fl_heap_realloc(void *p, size_t bytes) {
    void *q = fl__heap_raw(p, bytes ? bytes : 1);
    if (!q) fl_fail("out of memory: cannot allocate %zu bytes on the heap", bytes);
    return q;
}

FL_API void fl_heap_free(void *p) {
    if (p) fl__heap_raw(p, 0);
}

FL_PRIVATE bool fl__mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

FL_PRIVATE bool fl__grow_raw(void *array, int64_t *cap, int64_t need, size_t size) {
    size_t bytes;
    void *p;
    if (need <= *cap) return true;
    int64_t n = *cap < 8 ? 8 : *cap;
    while (n < need) n = n > INT64_MAX / 2 ? need : 2 * n;
    if (!fl__mul_size((size_t)n, size, &bytes)) return false;
    memcpy(&p, array, sizeof p); /* array is a T **: copying bytes avoids an aliasing violation */
    p = fl__heap_raw(p, bytes);
    if (!p) return false;
    memcpy(array, &p, sizeof p);
    *cap = n;
    return true;
}

#ifdef FL_DEBUG
/* Quarantine of freed objects, hashed by address: a new entry frees the older one in its slot. */
typedef struct fl__freed_object {
    void *p;
    char text[100];
} fl__freed_object;
static fl__freed_object fl__freed_objects[1 << 12]; /* indexed by the 12-bit hash of fl__freed_at */
static pthread_mutex_t fl__freed_lock = PTHREAD_MUTEX_INITIALIZER;

static fl__freed_object *fl__freed_at(const void *p) {
    /* multiplicative hash, high bits: allocators place blocks at multiples of large powers of two */
    return &fl__freed_objects[(uint64_t)(uintptr_t)p * 0x9e3779b97f4a7c15u >> 52];
}

FL_API bool fl_is_freed(const void *p, const char *fn, const char *what) {
    char text[100] = "";
    pthread_mutex_lock(&fl__freed_lock);
    const fl__freed_object *o = fl__freed_at(p);
    if (p && o->p == p) strcpy(text, o->text);
    pthread_mutex_unlock(&fl__freed_lock);
    return *text && !fl_err_false("%s: %s was freed before: %s", fn, what, text);
}

FL_API void fl_object_free(void *p, const char *kind, const char *name) {
    if (!p) return;
    pthread_mutex_lock(&fl__freed_lock);
    fl__freed_object *o = fl__freed_at(p);
    void *old = o->p;
    o->p = p;
    snprintf(o->text, sizeof o->text, "%s%s%s%s", kind, *name ? " '" : "", name, *name ? "'" : "");
    pthread_mutex_unlock(&fl__freed_lock);
    fl_heap_free(old);
}
#else
FL_API bool fl_is_freed(const void *p, const char *fn, const char *what) {
    return (void)p, (void)fn, (void)what, false;
}

FL_API void fl_object_free(void *p, const char *kind, const char *name) {
    (void)kind, (void)name;
    fl_heap_free(p);
}
#endif

FL_API bool fl_heap_grow(void *array, int64_t *cap, int64_t need, size_t size) {
    if (!fl_given(array, "fl_heap_grow", "the array") || !fl_given(cap, "fl_heap_grow", "the capacity"))
        return false;
    if (fl__grow_raw(array, cap, need, size)) return true;
    return fl_fail("out of memory: cannot allocate %lld elements of %zu bytes on the heap", (long long)need,
                   size);
}

#endif
#endif

/* MIT licence: see LICENSE. */
