/* kernels/cpu/levels.h - instruction-set levels of the CPU kernels: the list, and the current one

   A level is an instruction set and a register width. Loops that profit from it are written once, in a
   template (softmax.inc), and expanded for every level by levels.inc; each call selects its expansion by
   fl__variant. All levels are compiled, and the best one that the processor has is used, at most FL_CPU_LEVEL
   of the environment; fl_cpu_level() names it. If compiler flags select one (-march=native), or FL_LEVELS
   does (-DFL_LEVELS=avx2; portable, avx2, avx512, all), only that one is compiled: half the compile time, and
   a program for such processors only. FL_QUICK compiles the portable level without optimisation pragmas: for
   fast builds that may run slowly.

   A new level, such as NEON, is a block of >>list, a line of fl__processor_has and one of levels.inc. */
#ifndef FL_CPU_LEVELS_H
#define FL_CPU_LEVELS_H
#include "../../fl_mem.h"

/* >>list: for each level: its bit in FL_LEVELS, whether it is enabled, and what templates see of it: the
   target attribute, the registers that a tile may use, the lanes of a register for each element type, and the
   suffix of f32's functions in fl_math.h. */

enum {
    FL__PORTABLE,
    FL__AVX2,
    FL__AVX512,
    FL__LEVEL_COUNT,
    FL__AVX512_BF16 = FL__LEVEL_COUNT, /* the same as FL__AVX512 for all templates: see gemm/amx.h */
    FL__AMX,                           /* and AMX tiles */
    FL__TOP_LEVEL = FL__AMX
};
#define FL__LEVEL_NAMES {"portable", "avx2", "avx512", "avx512_bf16", "amx"}

/* gcc on Windows cannot align the stack for vectors of more than 16 bytes. */
#define FL__BIT_portable 1
#if defined(__x86_64__) && (!defined(_WIN32) || defined(__clang__))
#define FL__BIT_avx2 2
#define FL__BIT_avx512 4
#define FL__BIT_all 7
#else
#define FL__BIT_all 1
#endif
#define FL__BIT_(name) FL__BIT_##name
#define FL__BIT(name) FL__BIT_(name)

#if defined(FL_LEVELS)
#define FL__LEVELS_ON FL__BIT(FL_LEVELS)
#elif defined(FL_QUICK)
#define FL__LEVELS_ON FL__BIT_portable
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define FL__LEVELS_ON FL__BIT_avx512
#elif defined(__AVX2__) && defined(__FMA__)
#define FL__LEVELS_ON FL__BIT_avx2
#else
#define FL__LEVELS_ON FL__BIT_all
#endif
#if FL__LEVELS_ON + 0 == 0
#error "FL_LEVELS names no level of this target: portable, avx2, avx512 or all"
#endif

#if FL__LEVELS_ON & 1
#define FL__ON_portable(...) __VA_ARGS__
#else
#define FL__ON_portable(...)
#endif
#define FL__ISA_portable ""
#define FL__TARGET_portable
#define FL__REGISTERS_portable 12
#define FL__LANES_f32_portable 4
#define FL__LANES_f64_portable 2
#define FL__LANES_i64_portable 2
#define FL__LANES_b8_portable 16
#define FL__F32_portable f32

#if FL__LEVELS_ON & 2
#define FL__ON_avx2(...) __VA_ARGS__
#else
#define FL__ON_avx2(...)
#endif
#define FL__ISA_avx2 "avx2,fma"
#define FL__TARGET_avx2 __attribute__((target(FL__ISA_avx2)))
#define FL__REGISTERS_avx2 16
#define FL__LANES_f32_avx2 8
#define FL__LANES_f64_avx2 4
#define FL__F32_avx2 f32_fma

#if FL__LEVELS_ON & 4
#define FL__ON_avx512(...) __VA_ARGS__
#else
#define FL__ON_avx512(...)
#endif
#define FL__ISA_avx512 "avx2,fma,prfchw,avx512f,avx512bw,avx512dq,avx512vl"
#define FL__TARGET_avx512 __attribute__((target(FL__ISA_avx512)))
#define FL__REGISTERS_avx512 32
#define FL__LANES_f32_avx512 16
#define FL__LANES_f64_avx512 8
#define FL__F32_avx512 f32_fma

/* vdpbf16ps multiplies pairs of bf16 and sums them in f32: see gemm/amx.h. */
#if FL__LEVELS_ON & 4 && (defined(__clang__) || __GNUC__ >= 10)
#define FL__TARGET_vdpbf16 \
    __attribute__((target(FL__ISA_avx512 ",avx512bf16")))
#endif

/* AMX tiles have this target; the system must permit them, which gemm/amx.h requests. */
#if FL__LEVELS_ON & 4 && defined(__linux__) && \
    ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#define FL__TARGET_amx \
    __attribute__((target(FL__ISA_avx512 ",avx512bf16,amx-tile,amx-bf16")))
#endif

/* >>pick */

/* The expansions of a template: f32 at each level, other types at the portable one. Tables of them are
   {FL__AT_FLOATS(fl__unit_name), [FL__VARIANT_I64] = fl__unit_name_i64_portable}. */
enum {
    FL__VARIANT_F64 = FL__LEVEL_COUNT,
    FL__VARIANT_I64,
    FL__VARIANT_B8,
    FL__VARIANT_NONE, /* every other dtype */
    FL__VARIANTS
};
#define FL__AT_LEVELS(stem) \
    FL__ON_portable([FL__PORTABLE] = stem##_portable, ) FL__ON_avx2([FL__AVX2] = stem##_avx2, ) \
        FL__ON_avx512([FL__AVX512] = stem##_avx512, )
#define FL__AT_FLOATS(stem) \
    FL__AT_LEVELS(stem##_f32) [FL__VARIANT_F64] = stem##_f64_portable
/* macro(level), for each enabled level, and for those above the portable one: for small functions without a
   template file. */
#define FL__ABOVE_PORTABLE(macro) FL__ON_avx2(macro(avx2)) FL__ON_avx512(macro(avx512))
#define FL__EACH_LEVEL(macro) FL__ON_portable(macro(portable)) FL__ABOVE_PORTABLE(macro)

/* The current level, at most FL__AVX512. */
FL_PRIVATE int fl__level(void);
/* Its instructions, as the target attribute names them. */
FL_PRIVATE const char *fl__level_isa(void);
/* Whether the current level has vdpbf16ps, and AMX tiles. */
FL_PRIVATE bool fl__level_has_bf16(void);
FL_PRIVATE bool fl__level_has_amx(void);
/* Caps the level from now on, for tests; returns the current level, those above FL__AVX512 included. */
FL_PRIVATE int fl__level_cap(int level);

static inline int fl__variant(fl_dtype d) {
    return d == FL_F32   ? fl__level()
           : d == FL_F64 ? FL__VARIANT_F64
           : d == FL_I64 ? FL__VARIANT_I64
           : d == FL_B8  ? FL__VARIANT_B8
                         : FL__VARIANT_NONE;
}

#endif /* FL_CPU_LEVELS_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_LEVELS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_LEVELS_IMPL
#define FL_CPU_LEVELS_IMPL
#include "../../fl_tensor.h"
#include <stdlib.h>
#include <string.h>
#ifdef FL__TARGET_amx
#include <cpuid.h>
#endif

static const char *const fl__level_names[] = FL__LEVEL_NAMES;
static int fl__level_now = -1; /* -1: not looked up yet; every thread would find the same */

/* Whether this build has the kernels of a level. */
static bool fl__level_is_on(int level) {
    static const bool on[FL__TOP_LEVEL + 1] = {
        FL__ON_portable([FL__PORTABLE] = true, ) FL__ON_avx2([FL__AVX2] = true, )
            FL__ON_avx512([FL__AVX512] = true, )
#ifdef FL__TARGET_vdpbf16
                [FL__AVX512_BF16] = true,
#endif
#ifdef FL__TARGET_amx
        [FL__AMX] = true,
#endif
    };
    return on[level];
}

static bool fl__processor_has(int level) {
    if (level == FL__PORTABLE) return true;
#if FL__BIT_all > 1
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    if (level == FL__AVX2) return avx2;
    if (level == FL__AVX512) return avx512;
#ifdef FL__TARGET_vdpbf16
    const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
#ifdef FL__TARGET_amx
    unsigned a, b, c, d; /* edx 22: amx-bf16, 24: amx-tile */
    if (level == FL__AMX) return bf16 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 5 << 22) == 5 << 22;
#endif
    return bf16 && level == FL__AVX512_BF16;
#endif
#endif
    return false;
}

static int fl__level_from_env(void) {
    const char *name = getenv("FL_CPU_LEVEL");
    for (int level = 0; name && level < FL__TOP_LEVEL; level++)
        if (strcmp(name, fl__level_names[level]) == 0) return level;
    return FL__TOP_LEVEL;
}

/* The best level of this build and this processor up to the cap; if the build has none so low, its lowest. */
FL_PRIVATE int fl__level_cap(int level) {
    const int named = fl__level_from_env();
    int now = level < named ? level : named, lowest = 0;
    while (!fl__level_is_on(lowest)) lowest++;
    while (now > lowest && !(fl__level_is_on(now) && fl__processor_has(now))) now--;
    if (now < lowest) now = lowest;
    if (!fl__processor_has(now))
        fl_log_message(FL_LOG_ERROR, "this build of fl needs a processor with %s",
                       fl__level_names[now]);
    __atomic_store_n(&fl__level_now, now, __ATOMIC_RELAXED);
    return now;
}

static int fl__level_full(void) {
    int level = __atomic_load_n(&fl__level_now, __ATOMIC_RELAXED);
    return level >= 0 ? level : fl__level_cap(FL__TOP_LEVEL);
}

FL_PRIVATE int fl__level(void) {
    int level = fl__level_full();
    return level < FL__AVX512_BF16 ? level : FL__AVX512;
}

FL_PRIVATE const char *fl__level_isa(void) {
    static const char *const isa[FL__LEVEL_COUNT] = {
        FL__ISA_portable, FL__ON_avx2([FL__AVX2] = FL__ISA_avx2, )
        FL__ON_avx512([FL__AVX512] = FL__ISA_avx512, )};
    return isa[fl__level()];
}

FL_PRIVATE bool fl__level_has_bf16(void) { return fl__level_full() >= FL__AVX512_BF16; }
FL_PRIVATE bool fl__level_has_amx(void) { return fl__level_full() == FL__AMX; }

FL_API const char *fl_cpu_level(void) { return fl__level_names[fl__level_full()]; }

#endif /* FL_CPU_LEVELS_IMPL */
#endif
/* MIT licence: see LICENSE. */
