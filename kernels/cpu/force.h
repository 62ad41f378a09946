/* kernels/cpu/force.h - the setting by which tests and benchmarks force an algorithm on the CPU kernels */
#ifndef FL_CPU_FORCE_H
#define FL_CPU_FORCE_H
#include "../../fl_mem.h"

#ifdef __cplusplus
extern "C" {
#endif
/* The kernels take one algorithm from now on wherever it can run, instead of choosing by size:
     "direct", "im2col", "winograd"   convolutions and their gradients
     "tiles"                          matrix products: OpenBLAS is not called
     NULL                             chosen by size again
   Another name is an error, and changes nothing. FL_CPU_FORCE in the environment names the algorithm until
   the first call. For tests and benchmarks: call it while no other thread computes. */
FL_API bool fl_cpu_force(const char *algorithm);
#ifdef __cplusplus
}
#endif

typedef enum fl__algorithm { FL__BY_SIZE, FL__DIRECT, FL__IM2COL, FL__WINOGRAD, FL__TILES } fl__algorithm;
/* The algorithm in force. */
FL_PRIVATE fl__algorithm fl__cpu_forced(void);

#endif /* FL_CPU_FORCE_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_FORCE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_FORCE_IMPL
#define FL_CPU_FORCE_IMPL
#include <stdlib.h>
#include <string.h>

static int fl__force = -1; /* -1: the environment was not read yet; every thread would read the same */

/* -1 for a name that is none */
static int fl__algorithm_named(const char *name) {
    static const char *const names[] = {"", "direct", "im2col", "winograd", "tiles"};
    for (int i = 0; i < 5; i++)
        if (strcmp(name ? name : "", names[i]) == 0) return i;
    return -1;
}

FL_API bool fl_cpu_force(const char *algorithm) {
    const int i = fl__algorithm_named(algorithm);
    if (i < 0) return fl_err_false("fl_cpu_force: there is no algorithm '%s'", algorithm);
    __atomic_store_n(&fl__force, i, __ATOMIC_RELAXED);
    return true;
}

static FL__COLD void fl__force_of_environment(void) {
    const char *name = getenv("FL_CPU_FORCE");
    const int i = fl__algorithm_named(name);
    if (i < 0) fl_message(FL_LOG_WARN, "FL_CPU_FORCE=%s is no algorithm: the cpu chooses by size", name);
    __atomic_store_n(&fl__force, i < 0 ? 0 : i, __ATOMIC_RELAXED);
}

FL_PRIVATE fl__algorithm fl__cpu_forced(void) {
    if (__atomic_load_n(&fl__force, __ATOMIC_RELAXED) < 0) fl__force_of_environment();
    return (fl__algorithm)__atomic_load_n(&fl__force, __ATOMIC_RELAXED);
}

#endif
#endif
/* MIT licence: see LICENSE. */
