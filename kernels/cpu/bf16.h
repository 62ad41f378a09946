/* kernels/cpu/bf16.h - how f32 products round their operands to bf16, where that is allowed

   fl_set_matmul_precision(FL_BF16) permits it, as do tensors of bf16. At the first such product, each
   instruction set that the processor has is timed for some microseconds on operands in registers, less than a
   millisecond in all, and used if it is clearly faster than f32: there are processors whose vdpbf16ps runs at
   half the rate of their f32 multiply-adds, and others at twice. The choice is cached until the program
   ends. */
#ifndef FL_CPU_BF16_H
#define FL_CPU_BF16_H
#include "../../fl_mem.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Selects how products that may round to bf16 are computed from now on:
     "amx"       AMX tiles
     "vdpbf16"   vdpbf16ps of AVX-512
     "f32"       operands are not rounded
     "emulated"  the bits of "amx", in plain C on any processor: for tests, and very slow
     "emulated_vdpbf16"  the same for "vdpbf16"
     NULL        chosen by measurement again
   The environment variable FL_CPU_BF16 applies until the first call. Deferred calls run first, by the old
   selection. Returns false, and changes nothing, if one fails, `way` is unknown or the processor, the level or
   the system does not support it. Call it while no other thread computes. */
FL_API bool fl_cpu_set_bf16(const char *way);
/* The selected name, one of the above, used once products may round. */
FL_API const char *fl_cpu_bf16(void);
/* The name that the last product used; NULL if none was allowed to round so far. Checkpoints save it: another
   one gives other bits. */
FL_API const char *fl_cpu_bf16_used(void);
#ifdef __cplusplus
}
#endif

/* The kernels for products of operands of dtype d; NULL if rounding is not allowed, or f32 is fastest. */
FL_PRIVATE const struct fl__amx_kernels *fl__bf16_tiles(fl_dtype d);
/* Whether these kernels use vdpbf16ps, which is at most twice as fast as f32. */
FL_PRIVATE bool fl__bf16_is_vdpbf16(void);
/* A monotonic clock in seconds. */
FL_PRIVATE double fl__bf16_now(void);

#endif /* FL_CPU_BF16_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_BF16) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_BF16_IMPL
#define FL_CPU_BF16_IMPL
#include "../../fl_backend.h"
#include "../../fl/records/linear.h"
#include "gemm/tile.h"
#include "gemm/amx.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FL__WAY_F32, FL__WAY_VDPBF16, FL__WAY_AMX, FL__WAY_EMULATED, FL__WAY_EMULATED_VDPBF16, FL__WAYS,
       FL__WAY_MEASURED };
static const char *const fl__bf16_names[FL__WAYS] = {"f32", "vdpbf16", "amx", "emulated", "emulated_vdpbf16"};
static int fl__bf16_setting = -1; /* -1: environment not read yet; every thread would read the same */
static int fl__bf16_fastest[FL__TOP_LEVEL + 1]; /* fastest choice of each level + 1; 0: not measured yet */
static int fl__bf16_last;                       /* choice of the last product + 1; 0: none yet */

FL_PRIVATE double fl__bf16_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Multiply-adds per second of an f32 tile on operands in the L1 cache; the best of several runs, so that
   interrupts do not count. */
static double fl__bf16_rate(const fl__kernels *ks) {
    enum { ROUNDS = 40, K = FL__AMX_ZEROS / 128 };
    _Alignas(64) float c[FL__TILE_REGISTERS * 16];
    const fl__segment s = {fl__amx_zeros(), fl__amx_zeros()};
    const int rows = ks->rows, columns = 2 * ks->lanes;
    const fl__tile tile = {
        .segments = 1, .segment = &s, .k = K, .rsa = 1, .csa = rows, .ldb = columns, .c = c, .ldc = columns};
    double least = 1;
    for (int i = 0; i < ROUNDS; i++) {
        const double start = fl__bf16_now();
        for (int j = 0; j < 4; j++) fl__gemm_tile(ks, rows, columns, &tile);
        least = fmin(least, fl__bf16_now() - start);
    }
    return 4.0 * K * rows * columns / least;
}

/* vdpbf16 must be 20 % faster than f32 to be worth the rounding; AMX, for which packing weighs more, twice as
   fast. */
static int fl__bf16_measure(void) {
    const fl__amx_kernels *tiles = fl__amx_real(), *vdpbf16 = fl__vdpbf16_real();
    double best = fl__bf16_rate(fl__gemm_kernels(FL_F32)) * 1.2;
    int way = FL__WAY_F32;
    if (vdpbf16 && fl__amx_rate(vdpbf16) > best) way = FL__WAY_VDPBF16, best = fl__amx_rate(vdpbf16);
    if (tiles && fl__amx_rate(tiles) > 2 * best) way = FL__WAY_AMX;
    return way;
}

/* NULL for f32, and for what is not available here. */
static const fl__amx_kernels *fl__bf16_kernels(int way) {
    return way == FL__WAY_AMX                ? fl__amx_real()
           : way == FL__WAY_VDPBF16          ? fl__vdpbf16_real()
           : way == FL__WAY_EMULATED         ? fl__amx_emulated()
           : way == FL__WAY_EMULATED_VDPBF16 ? fl__vdpbf16_emulated()
                                             : NULL;
}

static bool fl__bf16_available(int way) {
    return way == FL__WAY_F32 || fl__bf16_kernels(way);
}

static int fl__bf16_by_name(const char *name) {
    for (int i = 0; i < FL__WAYS; i++)
        if (strcmp(name, fl__bf16_names[i]) == 0 && fl__bf16_available(i)) return i;
    return -1;
}

static FL__COLD int fl__bf16_from_env(void) {
    const char *name = getenv("FL_CPU_BF16");
    int way = name ? fl__bf16_by_name(name) : FL__WAY_MEASURED;
    if (way < 0)
        fl_log_message(FL_LOG_WARN, "FL_CPU_BF16=%s is unknown or unavailable here: measuring instead", name);
    if (way < 0) way = FL__WAY_MEASURED;
    __atomic_store_n(&fl__bf16_setting, way, __ATOMIC_RELAXED);
    return way;
}

static int fl__bf16_way(void) {
    int way = __atomic_load_n(&fl__bf16_setting, __ATOMIC_RELAXED);
    if (way < 0) way = fl__bf16_from_env();
    if (way != FL__WAY_MEASURED) return fl__bf16_available(way) ? way : FL__WAY_F32;
    int *cached = &fl__bf16_fastest[fl__level_has_amx()    ? FL__AMX
                                    : fl__level_has_bf16() ? FL__AVX512_BF16
                                                         : fl__level()];
    way = __atomic_load_n(cached, __ATOMIC_RELAXED) - 1;
    if (way < 0) {
        way = fl__bf16_measure();
        __atomic_store_n(cached, way + 1, __ATOMIC_RELAXED);
    }
    return way;
}

FL_API bool fl_cpu_set_bf16(const char *way) {
    const int i = way ? fl__bf16_by_name(way) : FL__WAY_MEASURED;
    if (i < 0)
        return fl_err_false("fl_cpu_set_bf16: '%s' is unknown or not supported here; known: f32, "
                            "vdpbf16, amx, emulated, emulated_vdpbf16", way);
    if (!fl__await_all_calls()) return fl_raise() != NULL;
    __atomic_store_n(&fl__bf16_setting, i, __ATOMIC_RELAXED);
    return true;
}

FL_API const char *fl_cpu_bf16(void) { return fl__bf16_names[fl__bf16_way()]; }

FL_API const char *fl_cpu_bf16_used(void) {
    const int way = __atomic_load_n(&fl__bf16_last, __ATOMIC_RELAXED) - 1;
    return way < 0 ? NULL : fl__bf16_names[way];
}

static FL__COLD void fl__bf16_log(int way) {
    __atomic_store_n(&fl__bf16_last, way + 1, __ATOMIC_RELAXED);
    fl_log_message(FL_LOG_INFO, "products that may round to bf16 use '%s' (%s)", fl__bf16_names[way],
                   fl__bf16_setting == FL__WAY_MEASURED ? "measured; FL_CPU_BF16 sets it" : "as set");
}

/* Tensors of bf16 need no permission: values that came from bf16 lose nothing when they are rounded again. */
static bool fl__bf16_allowed(void) {
    return fl_matmul_precision() == FL_BF16 || fl__of_bf16();
}

FL_PRIVATE const struct fl__amx_kernels *fl__bf16_tiles(fl_dtype d) {
    if (d != FL_BF16 && (d != FL_F32 || !fl__bf16_allowed())) return NULL;
    const int way = fl__bf16_way();
    if (__atomic_load_n(&fl__bf16_last, __ATOMIC_RELAXED) != way + 1) fl__bf16_log(way);
    return fl__bf16_kernels(way);
}

FL_PRIVATE bool fl__bf16_is_vdpbf16(void) {
    const int way = fl__bf16_way();
    return way == FL__WAY_VDPBF16 || way == FL__WAY_EMULATED_VDPBF16;
}

#endif
#endif
/* MIT licence: see LICENSE. */
