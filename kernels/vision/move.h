/* kernels/vision/move.h - source pixels of a row under an affine transform (rotate, shear, translate) */
#ifndef FL_VISION_MOVE_H
#define FL_VISION_MOVE_H
#include "../../fl_mem.h"

/* Nearest source pixel of each of n pixels in an image of h x w: column u[x] and row v[x] of
   m (x - cx, dy, 1) + (cx, cy), rounded; u[x] is -1 if it is outside. */
FL_PRIVATE void fl__move_row(const double m[6], double cx, double cy, double dy, int64_t h, int64_t w,
                             int64_t n, int32_t *u, int32_t *v);

#endif /* FL_VISION_MOVE_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_VISION_MOVE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_MOVE_IMPL
#define FL_VISION_MOVE_IMPL
#include "../cpu/loops.h"
#include <math.h>

FL__LOOPS_BEGIN

FL__INLINE void fl__move_row_any(const double m[6], double cx, double cy, double dy, int64_t h, int64_t w,
                                 int64_t n, int32_t *u, int32_t *v) {
    const double m0 = m[0], m1 = m[1], m2 = m[2], m3 = m[3], m4 = m[4], m5 = m[5];
    const double high = (double)h, wide = (double)w;
    FL__VECTOR for (int32_t x = 0; x < (int32_t)n; x++) {
        const double dx = (double)x - cx;
        const double to_u = nearbyint(m0 * dx + m1 * dy + m2 + cx),
                     to_v = nearbyint(m3 * dx + m4 * dy + m5 + cy);
        const bool in = (to_u >= 0) & (to_v >= 0) & (to_u < wide) & (to_v < high);
        u[x] = (int32_t)(in ? to_u : -1), v[x] = (int32_t)(in ? to_v : 0);
    }
}

#define FL__MOVE_AT(level)                                                                                 \
    FL__TARGET_##level static void fl__move_row_##level(const double m[6], double cx, double cy, double dy, \
                                                        int64_t h, int64_t w, int64_t n, int32_t *u,       \
                                                        int32_t *v) {                                      \
        fl__move_row_any(m, cx, cy, dy, h, w, n, u, v);                                                    \
    }
FL__EACH_LEVEL(FL__MOVE_AT)
#undef FL__MOVE_AT
FL__LOOPS_END

FL_PRIVATE void fl__move_row(const double m[6], double cx, double cy, double dy, int64_t h, int64_t w,
                             int64_t n, int32_t *u, int32_t *v) {
    static void (*const at[])(const double *, double, double, double, int64_t, int64_t, int64_t, int32_t *,
                              int32_t *) = {FL__AT_LEVELS(fl__move_row)};
    at[fl__level()](m, cx, cy, dy, h, w, n, u, v);
}

#endif
#endif

/* MIT licence: see LICENSE. */
