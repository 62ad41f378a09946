/* kernels/cpu/force.h - forces an algorithm on the CPU kernels, for tests and benchmarks */
#ifndef FL_CPU_FORCE_H
#define FL_CPU_FORCE_H
#include "../../fl_mem.h"

#ifdef __cplusplus
extern "C" {
#endif
/* The kernels use one algorithm from now on wherever it applies, instead of choosing by size:
     "direct", "im2col", "winograd"   convolutions and their gradients
     "tiles"                          matrix products: OpenBLAS is not called
     NULL                             chosen by size again
   Deferred calls run first, by the old choice. Returns false, and changes nothing, if one fails, and for any
   other name. The environment variable FL_CPU_FORCE applies until the first call. Call it while no other
   thread computes. */
FL_API bool fl_cpu_force_algorithm(const char *algorithm);
#ifdef __cplusplus
}
#endif

typedef enum fl__algorithm { FL__BY_SIZE, FL__DIRECT, FL__IM2COL, FL__WINOGRAD, FL__TILES } fl__algorithm;
/* The forced algorithm. */
FL_PRIVATE fl__algorithm fl__cpu_forced(void);

#endif /* FL_CPU_FORCE_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_FORCE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_FORCE_IMPL
#define FL_CPU_FORCE_IMPL
#include <stdlib.h>
#include <string.h>

static int fl__force = -1; /* -1: environment not read yet; every thread would read the same */

/* Returns -1 for an unknown name. */
static int fl__algorithm_by_name(const char *name) {
    static const char *const names[] = {"", "direct", "im2col", "winograd", "tiles"};
    for (int i = 0; i < 5; i++)
        if (strcmp(name ? name : "", names[i]) == 0) return i;
    return -1;
}

FL_API bool fl_cpu_force_algorithm(const char *algorithm) {
    const int i = fl__algorithm_by_name(algorithm);
    if (i < 0)
        return fl_err_false("fl_cpu_force_algorithm: no algorithm '%s'; known: direct, im2col, winograd, tiles",
                            algorithm);
    if (!fl__await_all_calls()) return fl_raise() != NULL;
    __atomic_store_n(&fl__force, i, __ATOMIC_RELAXED);
    return true;
}

static FL__COLD void fl__force_from_env(void) {
    const char *name = getenv("FL_CPU_FORCE");
    const int i = fl__algorithm_by_name(name);
    if (i < 0)
        fl_log_message(FL_LOG_WARN, "FL_CPU_FORCE=%s is ignored; known: direct, im2col, winograd, tiles",
                       name);
    __atomic_store_n(&fl__force, i < 0 ? 0 : i, __ATOMIC_RELAXED);
}

FL_PRIVATE fl__algorithm fl__cpu_forced(void) {
    if (__atomic_load_n(&fl__force, __ATOMIC_RELAXED) < 0) fl__force_from_env();
    return (fl__algorithm)__atomic_load_n(&fl__force, __ATOMIC_RELAXED);
}

#endif
#endif
/* MIT licence: see LICENSE. */
