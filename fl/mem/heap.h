/* fl/mem/heap.h - small allocations, their hook, arrays that grow, freed objects */
#ifndef FL_MEM_HEAP_H
#define FL_MEM_HEAP_H
#include "build.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All heap use of the library besides buffers. p NULL allocates, bytes 0 frees; returns NULL when
   it cannot. */
typedef void *(*fl_heap_fn)(void *user, void *p, size_t bytes);
/* Replaces the heap (fault injection, accounting). NULL restores realloc/free. Blocks made before
   stay valid only if the new function can free them: wrap, do not replace, the C heap once fl has
   been used. Host blocks below 1 MiB come from here too. The function may be called with a lock of
   fl held: it must not call fl. */
FL_API void fl_heap_use(fl_heap_fn fn, void *user);
/* zeroed; records "out of memory" on failure */
FL_API void *fl_heap_alloc(size_t bytes);
/* p stays valid on failure */
FL_API void *fl_heap_realloc(void *p, size_t bytes);
FL_API void fl_heap_free(void *p);
/* The same for an object that users hold: a module, a data set, a tokenizer. Under FL_DEBUG its memory is
   kept for a while, so that fl_is_freed knows it. Its kind and name ("": none) are for errors. */
FL_API void fl_object_free(void *p, const char *kind, const char *name);
/* *array doubles until it holds need elements */
FL_API bool fl_heap_grow(void *array, int64_t *cap, int64_t need, size_t size);
/* the same, which records no error */
FL_PRIVATE bool fl__grow_raw(void *array, int64_t *cap, int64_t need, size_t size);
/* a * b without overflow; false (no error recorded) if it does not fit. */
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

/* The heap without an error record: p NULL allocates, bytes 0 frees. */
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
        fl_fail("out of memory: asked the heap for %zu bytes", bytes);
    else if (hooked)
        memset(p, 0, n);
    return p;
}

FL_API void *fl_heap_realloc(void *p, size_t bytes) {
    void *q = fl__heap_raw(p, bytes ? bytes : 1);
    if (!q) fl_fail("out of memory: asked the heap for %zu bytes", bytes);
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
    memcpy(&p, array, sizeof p); /* array is a T **: its pointer travels as bytes */
    p = fl__heap_raw(p, bytes);
    if (!p) return false;
    memcpy(array, &p, sizeof p);
    *cap = n;
    return true;
}

#ifdef FL_DEBUG
/* The objects that were freed last, by their addresses: one that comes to the place of another frees that. */
typedef struct fl__freed_object {
    void *p;
    char text[100];
} fl__freed_object;
static fl__freed_object fl__freed_objects[1 << 12]; /* by the 12 bits of fl__freed_at */
static pthread_mutex_t fl__freed_lock = PTHREAD_MUTEX_INITIALIZER;

static fl__freed_object *fl__freed_at(const void *p) {
    /* the high bits of a product: allocators place blocks at multiples of large powers of two */
    return &fl__freed_objects[(uint64_t)(uintptr_t)p * 0x9e3779b97f4a7c15u >> 52];
}

FL_API bool fl_is_freed(const void *p, const char *who, const char *what) {
    char text[100] = "";
    pthread_mutex_lock(&fl__freed_lock);
    const fl__freed_object *o = fl__freed_at(p);
    if (p && o->p == p) strcpy(text, o->text);
    pthread_mutex_unlock(&fl__freed_lock);
    return *text && !fl_err_false("%s: %s was freed before: %s", who, what, text);
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
FL_API bool fl_is_freed(const void *p, const char *who, const char *what) {
    return (void)p, (void)who, (void)what, false;
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
    return fl_fail("out of memory: asked the heap for %lld elements of %zu bytes", (long long)need,
                   size);
}

#endif
#endif

/* MIT licence: see LICENSE. */
