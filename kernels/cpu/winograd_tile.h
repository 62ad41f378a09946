/* winograd_tile.h - the transforms of winograd.h for one instruction set, f32

   conv.h includes it once for each level, after defining FL__LANES, FL__FN(name), FL__TARGET as for
   conv_tile.h, and it defines FL__FN(winograd), the transforms of kernels of 3 x 3 and of 5 x 5 by
   fl__winograd_kind, and undefines them all. */

typedef float FL__FN(wino_vec) __attribute__((vector_size(FL__LANES * sizeof(float))));
typedef float FL__FN(wino_mem)
    __attribute__((vector_size(FL__LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

/* One line of a transform: x of length 6, of the kernel's or the result's length, its elements `from`
   apart, gives y, `to` apart. five: kernels of 5, results of 2, instead of 3 and 4. */
FL__INLINE FL__TARGET void FL__FN(wino_line)(const int kind, const bool five,
                                             const FL__FN(wino_vec) *x, const int from,
                                             FL__FN(wino_vec) *y, const int to) {
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
        FL__FN(wino_vec) even = X(0) + X(2), odd = X(1),
                         far = X(0) * (1.f / 24) + X(2) * (1.f / 6), near = X(1) * (1.f / 12);
        if (five) {
            even += X(4), odd += X(3);
            far += X(4) * (2.f / 3), near += X(3) * (1.f / 3);
        }
        Y(0) = X(0) * 0.25f;
        Y(1) = (even + odd) * (-1.f / 6), Y(2) = (odd - even) * (1.f / 6);
        Y(3) = far + near, Y(4) = far - near;
        Y(5) = X(five ? 4 : 2);
    } else if (kind == FL__WINO_RESULT) { /* A' x */
        FL__FN(wino_vec) s = X(1) + X(2), d = X(1) - X(2), t = X(3) + X(4), e = X(3) - X(4);
        Y(0) = X(0) + s + t, Y(1) = d + 2 * e;
        if (five) Y(1) += X(5);
        else Y(2) = s + 4 * t, Y(3) = d + 8 * e + X(5);
    } else if (kind == FL__WINO_GRAD) { /* A x */
        FL__FN(wino_vec) s = X(0), d = X(1), t = X(0), e = 2 * X(1);
        if (!five) {
            s += X(2), d += X(3);
            t += 4 * X(2), e += 8 * X(3);
        }
        Y(0) = X(0), Y(1) = s + d, Y(2) = s - d;
        Y(3) = t + e, Y(4) = t - e, Y(5) = X(five ? 1 : 3);
    } else { /* G' x */
        FL__FN(wino_vec) s = (X(1) + X(2)) * (1.f / 6), d = (X(2) - X(1)) * (1.f / 6),
                         t = X(3) + X(4), e = X(3) - X(4);
        Y(0) = X(0) * 0.25f - s + t * (1.f / 24);
        Y(1) = d + e * (1.f / 12);
        Y(2) = t * (1.f / 6) - s;
        if (five) Y(3) = d + e * (1.f / 3), Y(4) = t * (2.f / 3) - s + X(5);
        else Y(2) += X(5);
    }
#undef X
#undef Y
}

/* Transforms the columns, then the rows, of a square of nx x nx into one of ny x ny, for n channels;
   from and to point at the channels of each element. */
FL__INLINE FL__TARGET void FL__FN(wino_square)(const int kind, const int nx, const int ny,
                                               const float *const *from, float *const *to,
                                               int64_t n, const float *bias) {
    const bool five = nx == 5 || ny == 5 || nx == 2 || ny == 2;
    for (int64_t c = 0; c < n; c += FL__LANES) {
        FL__FN(wino_vec) x[36], half[36], y[36];
        FL__UNROLL for (int j = 0; j < nx; j++) {
            FL__UNROLL for (int i = 0; i < nx; i++)
                x[i] = *(const FL__FN(wino_mem) *)(from[i * nx + j] + c);
            FL__FN(wino_line)(kind, five, x, 1, half + j, nx);
        }
        FL__FN(wino_vec) more = {0};
        if (bias) more = *(const FL__FN(wino_mem) *)(bias + c);
        FL__UNROLL for (int i = 0; i < ny; i++) {
            FL__FN(wino_line)(kind, five, half + i * nx, 1, y, 1);
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
FL__WINO(wino_kernel3, FL__WINO_KERNEL, 3, 6)
FL__WINO(wino_result4, FL__WINO_RESULT, 6, 4)
FL__WINO(wino_grad4, FL__WINO_GRAD, 4, 6)
FL__WINO(wino_kernel3_grad, FL__WINO_KERNEL_GRAD, 6, 3)
FL__WINO(wino_kernel5, FL__WINO_KERNEL, 5, 6)
FL__WINO(wino_result2, FL__WINO_RESULT, 6, 2)
FL__WINO(wino_grad2, FL__WINO_GRAD, 2, 6)
FL__WINO(wino_kernel5_grad, FL__WINO_KERNEL_GRAD, 6, 5)
#undef FL__WINO

static const fl__winograd_fn FL__FN(winograd)[2][5] = {
    {FL__FN(wino_image), FL__FN(wino_kernel3), FL__FN(wino_result4), FL__FN(wino_grad4),
     FL__FN(wino_kernel3_grad)},
    {FL__FN(wino_image), FL__FN(wino_kernel5), FL__FN(wino_result2), FL__FN(wino_grad2),
     FL__FN(wino_kernel5_grad)}};

#undef FL__LANES
#undef FL__FN
#undef FL__TARGET
/* MIT licence: see LICENSE. */
