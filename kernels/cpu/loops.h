/* kernels/cpu/loops.h - what the loops of the CPU kernels share: compiler options, sizes, copies of rows

   Loops work on plain memory: this header does not know tensors. */
#ifndef FL_CPU_LOOPS_H
#define FL_CPU_LOOPS_H
#include "../../fl_mem.h"
#include "../fl_math.h"
#include "levels.h"

#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FL__GRAIN = 16384,  /* elements per parallel chunk */
    FL__BLOCK = 512,    /* elements per buffered block */
    FL__OPERANDS = 12,  /* most operands of a pass: those of a record, 8 inputs and 4 outputs */
    FL__ELEMENT = 8     /* bytes of the largest element */
};

/* An inner loop; p[k]: n dense elements of operand k. */
typedef void (*fl__loop)(void *const p[], int64_t n, const void *arg);

/* Words of an element's size, for any dtype. */
typedef uint64_t __attribute__((may_alias)) fl__u64;
typedef uint32_t __attribute__((may_alias)) fl__u32;
typedef uint16_t __attribute__((may_alias)) fl__u16;

/* Copies n elements of `size` bytes; steps in bytes. Implemented in common.h. */
FL_PRIVATE void fl__copy_row(char *dst, int64_t dst_step, const char *src, int64_t src_step,
                             int64_t n, int size);
/* Fills dst with n copies of the element at src. Implemented in common.h. */
FL_PRIVATE void fl__fill_row(char *dst, const char *src, int64_t n, int size);

/* Register tiles: functions with constant arguments whose loops over registers are unrolled, and whose
   products and sums are fused. They are enclosed in FL__TILES_BEGIN and FL__TILES_END; functions that fuse
   begin with FL__CONTRACT. FL__BY_LANE marks loops over the lanes of a vector that become one instruction:
   unrolled for clang, as they are for gcc. Where a sanitizer checks each access, unrolled loops take minutes
   to compile: the Makefile defines FL__UNROLL then. */
#define FL__INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#ifndef FL__UNROLL
#define FL__UNROLL _Pragma("clang loop unroll(full)")
#endif
#define FL__BY_LANE FL__UNROLL
#define FL__CONTRACT _Pragma("clang fp contract(fast)")
#define FL__TILES_BEGIN
#define FL__TILES_END
#else
#ifndef FL__UNROLL
#define FL__UNROLL _Pragma("GCC unroll 32")
#endif
#define FL__BY_LANE
#define FL__CONTRACT
#ifdef FL_QUICK
#define FL__TILES_BEGIN
#define FL__TILES_END
#else
#define FL__TILES_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize(\"O2\", \"fp-contract=fast\")")
#define FL__TILES_END _Pragma("GCC pop_options")
#endif
#endif

enum {
    FL__SUM_BLOCK = 4096, /* elements of a row that are summed in their own dtype */
    FL__EXP_BLOCK = 1024, /* exponentials that are computed before they are summed */
    FL__EXP_PREFETCH = 256   /* and between prefetches */
};

/* A register of a template's FL__FN(vec), unaligned in memory: FL__FN(mem). */
#define FL__LOAD(p) (*(const FL__FN(mem) *)(p))
#define FL__STORE(p) (*(FL__FN(mem) *)(p))

#define FL__CAT2_(a, b) a##_##b
#define FL__CAT2(a, b) FL__CAT2_(a, b)
#define FL__CAT3(a, b, c) FL__CAT2(FL__CAT2(a, b), c)

static inline int64_t fl__min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t fl__max(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* a / b of non-negative numbers, b > 0. Small ops have time for few divisions: nearly all are of 32-bit
   numbers, which take half as long, and in many a < b. */
static inline int64_t fl__quotient(int64_t a, int64_t b) {
    if (a < b) return 0;
    return (a | b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}

static inline int64_t fl__ceil_div(int64_t a, int64_t b) {
    return a <= b ? a > 0 : fl__quotient(a + b - 1, b);
}

#ifdef __cplusplus
}
#endif
#endif /* FL_CPU_LOOPS_H */
/* MIT licence: see LICENSE. */
