/* fl/data/text.h - growing text buffers; string arenas */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_DATA_TEXT_H
#define FL_DATA_TEXT_H

#ifdef __cplusplus
extern "C" {
#endif

/* A growing text buffer: n bytes at p, followed by a NUL. Initialise with {0}; free by fl_heap_free(t.p). */
typedef struct fl_data_text {
    char *p;
    int64_t n, cap_;
} fl_data_text;
FL_API bool fl_data_text_put(fl_data_text *t, const void *bytes, size_t n);
/* Appends formatted text of any length, as printf. */
FL_API bool fl_data_text_print(fl_data_text *t, const char *format, ...) FL_PRINTF(2, 3);

/* Strings at stable addresses, freed together. Initialise with {0}. */
typedef struct fl_data_arena {
    void *block_;
    size_t left_; /* free bytes at the end of the newest block */
} fl_data_arena;
/* A copy of n bytes, followed by a NUL; NULL after fl_fail. */
FL_API char *fl_data_arena_add(fl_data_arena *a, const char *text, size_t n);
FL_API void fl_data_arena_free(fl_data_arena *a);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_TEXT_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_TEXT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_TEXT_IMPL
#define FL_DATA_TEXT_IMPL
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

FL_API bool fl_data_text_put(fl_data_text *t, const void *bytes, size_t n) {
    if (!fl_given(t, "fl_data_text_put", "the text")) return false;
    if (!fl_heap_grow(&t->p, &t->cap_, t->n + (int64_t)n + 1, 1)) return false;
    if (n) memcpy(t->p + t->n, bytes, n);
    t->n += (int64_t)n;
    t->p[t->n] = 0;
    return true;
}

FL_API bool fl_data_text_print(fl_data_text *t, const char *format, ...) {
    if (!fl_given(t, "fl_data_text_print", "the text") ||
        !fl_given(format, "fl_data_text_print", "the format"))
        return false;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) return fl_fail("fl_data_text_print: '%s' cannot be printed", format);
    if (!fl_heap_grow(&t->p, &t->cap_, t->n + n + 1, 1)) return false;
    va_start(args, format);
    vsnprintf(t->p + t->n, (size_t)n + 1, format, args);
    va_end(args);
    t->n += n;
    return true;
}

#define FL__DATA_BLOCK ((size_t)4000) /* size of an arena's block, unless a text needs more */

typedef struct fl__data_block {
    struct fl__data_block *next;
    size_t size;
    char bytes[];
} fl__data_block;

FL_API char *fl_data_arena_add(fl_data_arena *a, const char *text, size_t n) {
    if (!fl_given(a, "fl_data_arena_add", "the arena") ||
        !fl_given(text, "fl_data_arena_add", "the text")) return NULL;
    fl__data_block *b = a->block_;
    if (!b || n >= a->left_) {
        const size_t size = n < FL__DATA_BLOCK ? FL__DATA_BLOCK : n + 1;
        b = fl_heap_alloc(sizeof *b + size);
        if (!b) return NULL;
        *b = (fl__data_block){.next = a->block_, .size = size};
        a->block_ = b, a->left_ = size;
    }
    char *p = b->bytes + b->size - a->left_;
    if (n) memcpy(p, text, n);
    p[n] = 0;
    a->left_ -= n + 1;
    return p;
}

FL_API void fl_data_arena_free(fl_data_arena *a) {
    if (!a) return;
    for (fl__data_block *b = a->block_, *next; b; b = next) {
        next = b->next;
        fl_heap_free(b);
    }
    *a = (fl_data_arena){0};
}

#endif
#endif
/* MIT licence: see LICENSE. */
