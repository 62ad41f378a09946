/* winograd_tile.h - the transforms of winograd.h for one instruction set, f32

   conv.h includes it once for each level, after defining FL__LANES, FL__FN(name), FL__TARGET as for
   conv_tile.h, and it defines FL__FN(winograd), the five transforms by fl__winograd_kind, and
   undefines them all. */

typedef float FL__FN(wino_vec) __attribute__((vector_size(FL__LANES * sizeof(float))));
typedef float FL__FN(wino_mem)
    __attribute__((vector_size(FL__LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

/* One line of a transform: x of length 6, 3 or 4, its elements `from` apart, gives y, `to` apart. */
FL__INLINE FL__TARGET void FL__FN(wino_line)(const int kind, const FL__FN(wino_vec) *x,
                                             const int from, FL__FN(wino_vec) *y, const int to) {
    FL__CONTRACT
#define X(i) x[(i) * from]
#define Y(i) y[(i) * to]
    if (kind == FL__WINO_IMAGE) { /* B' x */
        FL__FN(wino_vec) a = X(4) - 4 * X(2), b = X(3) - 4 * X(1), c = X(4) - X(2),
                         d = 2 * (X(3) - X(1));
        Y(0) = 4 * X(0) - 5 * X(2) + X(4);
        Y(1) = a + b, Y(2) = a - b;
        Y(3) = c + d, Y(4) = c - d;
        Y(5) = 4 * X(1) - 5 * X(3) + X(5);
    } else if (kind == FL__WINO_KERNEL) { /* G x */
        FL__FN(wino_vec) even = X(0) + X(2), far = X(0) * (1.f / 24) + X(2) * (1.f / 6);
        Y(0) = X(0) * 0.25f;
        Y(1) = (even + X(1)) * (-1.f / 6), Y(2) = (X(1) - even) * (1.f / 6);
        Y(3) = far + X(1) * (1.f / 12), Y(4) = far - X(1) * (1.f / 12);
        Y(5) = X(2);
    } else if (kind == FL__WINO_RESULT) { /* A' x */
        FL__FN(wino_vec) s = X(1) + X(2), d = X(1) - X(2), t = X(3) + X(4), e = X(3) - X(4);
        Y(0) = X(0) + s + t, Y(1) = d + 2 * e;
        Y(2) = s + 4 * t, Y(3) = d + 8 * e + X(5);
    } else if (kind == FL__WINO_GRAD) { /* A x */
        FL__FN(wino_vec) s = X(0) + X(2), d = X(1) + X(3), t = X(0) + 4 * X(2),
                         e = 2 * X(1) + 8 * X(3);
        Y(0) = X(0), Y(1) = s + d, Y(2) = s - d;
        Y(3) = t + e, Y(4) = t - e, Y(5) = X(3);
    } else { /* G' x */
        FL__FN(wino_vec) s = (X(1) + X(2)) * (1.f / 6), t = X(3) + X(4);
        Y(0) = X(0) * 0.25f - s + t * (1.f / 24);
        Y(1) = (X(2) - X(1)) * (1.f / 6) + (X(3) - X(4)) * (1.f / 12);
        Y(2) = t * (1.f / 6) - s + X(5);
    }
#undef X
#undef Y
}

/* Transforms the columns, then the rows, of a square of nx x nx into one of ny x ny, for n channels;
   from and to point at the channels of each element. */
FL__INLINE FL__TARGET void FL__FN(wino_square)(const int kind, const int nx, const int ny,
                                               const float *const *from, float *const *to,
                                               int64_t n, const float *bias) {
    for (int64_t c = 0; c < n; c += FL__LANES) {
        FL__FN(wino_vec) x[36], half[36], y[36];
        FL__UNROLL for (int j = 0; j < nx; j++) {
            FL__UNROLL for (int i = 0; i < nx; i++)
                x[i] = *(const FL__FN(wino_mem) *)(from[i * nx + j] + c);
            FL__FN(wino_line)(kind, x, 1, half + j, nx);
        }
        FL__FN(wino_vec) more = {0};
        if (bias) more = *(const FL__FN(wino_mem) *)(bias + c);
        FL__UNROLL for (int i = 0; i < ny; i++) {
            FL__FN(wino_line)(kind, half + i * nx, 1, y, 1);
            FL__UNROLL for (int j = 0; j < ny; j++)
                *(FL__FN(wino_mem) *)(to[i * ny + j] + c) = kind == FL__WINO_RESULT ? y[j] + more : y[j];
        }
    }
}

#define FL__WINO(name, kind, nx, ny) \
    FL__TARGET static void FL__FN(name)(const float *const *from, float *const *to, int64_t n, \
                                        const float *bias) { \
        FL__FN(wino_square)(kind, nx, ny, from, to, n, bias); \
    }
FL__WINO(wino_image, FL__WINO_IMAGE, 6, 6)
FL__WINO(wino_kernel, FL__WINO_KERNEL, 3, 6)
FL__WINO(wino_result, FL__WINO_RESULT, 6, 4)
FL__WINO(wino_grad, FL__WINO_GRAD, 4, 6)
FL__WINO(wino_kernel_grad, FL__WINO_KERNEL_GRAD, 6, 3)
#undef FL__WINO

static const fl__winograd_fn FL__FN(winograd)[] = {
    FL__FN(wino_image), FL__FN(wino_kernel), FL__FN(wino_result), FL__FN(wino_grad),
    FL__FN(wino_kernel_grad)};

#undef FL__LANES
#undef FL__FN
#undef FL__TARGET
/* MIT licence: see LICENSE. */
