/* fl/mem/build.h - build configuration: linkage, attributes, array literals, version */
#ifndef FL_MEM_BUILD_H
#define FL_MEM_BUILD_H

#if !defined(__GNUC__)
#error "fl needs gcc or clang (atomic builtins, thread-local storage): compile with one of them"
#endif
#ifdef __FAST_MATH__
#error "fl needs IEEE arithmetic: remove -ffast-math or -Ofast; the kernels enable its safe parts themselves"
#endif
#ifdef FL_STATIC
#ifndef FL_IMPLEMENTATION
#define FL_IMPLEMENTATION
#endif
#endif
#if (defined(FL_IMPLEMENTATION) || defined(FL_IMPL_ONLY)) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* effective only if this is the file's first include; checked in shared.h */
#endif

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
#include <initializer_list>
#endif
#include "literal.h"

#if defined(FL_STATIC)
#define FL_API static __attribute__((unused))
#elif defined(FL_BUILD_SHARED) && defined(_WIN32)
#define FL_API __declspec(dllexport)
#elif defined(FL_BUILD_SHARED) || (defined(FL_SHARED) && !defined(_WIN32))
#define FL_API __attribute__((visibility("default")))
#elif defined(_WIN32)
#define FL_API
#else
#define FL_API __attribute__((visibility("hidden")))
#endif
/* Public variables: FL_DATA int x; declares one, FL_DATA_DEFINED int x; defines it in the implementation. */
#if defined(FL_STATIC)
#define FL_DATA static __attribute__((unused))
#define FL_DATA_DEFINED FL_DATA
#else
#define FL_DATA extern FL_API
#define FL_DATA_DEFINED
#endif
#if defined(FL_STATIC)
#define FL_PRIVATE static __attribute__((unused))
#elif defined(_WIN32)
#define FL_PRIVATE
#else
#define FL_PRIVATE __attribute__((visibility("hidden")))
#endif

#if defined(FL_STATIC)
#define FL__PRIVATE_VARIABLE static __attribute__((unused))
#elif defined(_WIN32)
#define FL__PRIVATE_VARIABLE extern
#else
#define FL__PRIVATE_VARIABLE extern __attribute__((visibility("hidden")))
#endif

/* Put around includes of files that spend their run time in the ops they call: they are compiled with -O1,
   which saves a third of their compile time. The Makefile does the same for their objects. */
#if defined(FL_IMPLEMENTATION) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__) && !defined(__clang__)
#define FL__GLUE_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize(\"O1\")")
#define FL__GLUE_END _Pragma("GCC pop_options")
#else
#define FL__GLUE_BEGIN
#define FL__GLUE_END
#endif

/* FL__COLD keeps rare paths out of line; FL__HOT forces inlining. */
#define FL__COLD __attribute__((noinline, cold))
#define FL__HOT inline __attribute__((always_inline))

#if defined(_WIN32) && !defined(__clang__)
#define FL_PRINTF(text, first) __attribute__((format(gnu_printf, text, first)))
#else
#define FL_PRINTF(text, first) __attribute__((format(printf, text, first)))
#endif

/* FL_ARRAY(T, ...): address of a temporary array, for an argument `T const *`. In C++ it lives until the end
   of the full expression, in C until the end of the block. FL_COUNT: number of the elements, which are not
   evaluated. */
#ifdef __cplusplus
#define FL_ARRAY(T, ...) (std::initializer_list<T>{__VA_ARGS__}.begin())
#else
#define FL_ARRAY(T, ...) ((T[]){__VA_ARGS__})
#endif
#define FL_COUNT(T, ...) ((int)(sizeof FL_LITERAL(T[], __VA_ARGS__) / sizeof(T)))

#ifdef __cplusplus
extern "C" {
#endif

/* First field of every options struct. Options are named, f(x, .stride = 2); an unnamed one would initialise
   this field, where compilers warn about missing braces (C) or report an error (C++). The last field of the
   struct is `char _end`, set by the macros, so that C++ accepts the designators in order. */
typedef struct fl_opts_guard {
    char _;
} fl_opts_guard;

#define FL_VERSION_MAJOR 0
#define FL_VERSION_MINOR 1
#define FL_VERSION_PATCH 0
/* Version of the compiled implementation, "0.1.0". */
FL_API const char *fl_version(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_BUILD_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_BUILD) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_BUILD_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_BUILD_IMPL
#include "shared.h"

FL_PRIVATE pthread_mutex_t fl__lock = PTHREAD_MUTEX_INITIALIZER;

FL_API const char *fl_version(void) {
    return "0.1.0";
}

#endif
#endif

/* MIT licence: see LICENSE. */
