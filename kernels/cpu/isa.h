/* isa.h - which instruction set the CPU kernels use, found at run time

   Kernels that pay for it exist at several levels; each call picks by fl__cpu_isa(). A function of
   one level is marked FL__TARGET_AVX2 or FL__TARGET_AVX512, so that the file itself compiles
   without -march. The levels above the portable one exist if FL__X86_LEVELS is defined: on x86-64,
   but not with gcc on Windows, which cannot align its stack for vectors of more than 16 bytes. */
#include "../../fl_mem.h"
#ifndef FL_CPU_ISA_H
#define FL_CPU_ISA_H

#if defined(__x86_64__) && (!defined(_WIN32) || defined(__clang__))
#define FL__X86_LEVELS 1
#define FL__TARGET_AVX2 __attribute__((target("avx2,fma")))
#define FL__TARGET_AVX512 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#endif

/* FL__AVX512_BF16 is FL__AVX512 and vdpbf16ps, which multiplies pairs of bf16: only matrix products
   know it. FL_EMULATE_BF16 computes what it does by FL__AVX512, slowly: to test it anywhere. */
#ifdef FL__X86_LEVELS
#if defined(FL_EMULATE_BF16)
#define FL__X86_BF16 1
#define FL__TARGET_BF16 FL__TARGET_AVX512
#elif defined(__clang__) || __GNUC__ >= 10
#define FL__X86_BF16 1
#define FL__TARGET_BF16 \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#endif
#endif

enum { FL__PORTABLE, FL__AVX2, FL__AVX512, FL__AVX512_BF16 };
/* The best level this processor has, at most FL_ISA=portable|avx2|avx512|avx512_bf16 of the
   environment, and FL__AVX512. */
FL_PRIVATE int fl__cpu_isa(void);
/* Whether the level is FL__AVX512_BF16. */
FL_PRIVATE bool fl__cpu_has_bf16(void);
/* Caps the level from now on, for tests; returns the level in force. */
FL_PRIVATE int fl__cpu_isa_cap(int level);

#endif /* FL_CPU_ISA_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_ISA) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_ISA_IMPL
#define FL_CPU_ISA_IMPL

#include <stdlib.h>
#include <string.h>

static int fl__isa_level = -1; /* -1: not looked up yet; every thread would find the same */

static int fl__isa_of_processor(void) {
#ifdef FL__X86_LEVELS
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return FL__PORTABLE;
    bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (!wide) return FL__AVX2;
#ifdef FL_EMULATE_BF16
    return FL__AVX512_BF16;
#elif defined(FL__X86_BF16)
    if (__builtin_cpu_supports("avx512bf16")) return FL__AVX512_BF16;
#endif
    return FL__AVX512;
#else
    return FL__PORTABLE;
#endif
}

static int fl__isa_of_environment(void) {
    const char *name = getenv("FL_ISA");
    if (name && strcmp(name, "portable") == 0) return FL__PORTABLE;
    if (name && strcmp(name, "avx2") == 0) return FL__AVX2;
    if (name && strcmp(name, "avx512") == 0) return FL__AVX512;
    return FL__AVX512_BF16;
}

FL_PRIVATE int fl__cpu_isa_cap(int level) {
    int cap = fl__isa_of_environment(), has = fl__isa_of_processor();
    if (level < cap) cap = level;
    int now = cap < has ? cap : has;
    __atomic_store_n(&fl__isa_level, now, __ATOMIC_RELAXED);
    return now;
}

static int fl__isa_now(void) {
    int level = __atomic_load_n(&fl__isa_level, __ATOMIC_RELAXED);
    return level >= 0 ? level : fl__cpu_isa_cap(FL__AVX512_BF16);
}

FL_PRIVATE int fl__cpu_isa(void) {
    int level = fl__isa_now();
    return level < FL__AVX512 ? level : FL__AVX512;
}

FL_PRIVATE bool fl__cpu_has_bf16(void) { return fl__isa_now() == FL__AVX512_BF16; }

#endif /* FL_CPU_ISA_IMPL */
#endif
/* MIT licence: see LICENSE. */
