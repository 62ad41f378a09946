/* conv_tile.h - the inner loop of conv.h for one instruction set and one element type

   conv.h includes it once for each pair, after defining
     FL__T          the element: float or double
     FL__LANES      elements per register
     FL__HALF       7, 3 or 2: pixels of half a tile (4 FL__HALF + 3 registers must exist)
     FL__FN(name)   the name with a suffix of its own
     FL__TARGET     the target attribute
   and it defines FL__FN(conv_tile), and undefines them all. */

typedef FL__T FL__FN(conv_vec) __attribute__((vector_size(FL__LANES * sizeof(FL__T))));
typedef FL__T FL__FN(conv_mem) /* the same, anywhere in memory */
    __attribute__((vector_size(FL__LANES * sizeof(FL__T)), aligned(sizeof(FL__T)), may_alias));

/* Starts the accumulators of half h: from what c holds, from the bias, or from 0. */
FL__INLINE FL__TARGET void FL__FN(conv_start)(const fl__conv_tile *t, const int h,
                                              FL__FN(conv_vec) *acc) {
    const FL__T *c = t->c[h], *bias = t->bias;
    FL__UNROLL for (int i = 0; i < 2 * FL__HALF; i++) {
        const int64_t j = i % 2 * FL__LANES;
        if (t->add) acc[i] = *(const FL__FN(conv_mem) *)(c + i / 2 * t->ldc[h] + j);
        else if (bias) acc[i] = *(const FL__FN(conv_mem) *)(bias + j);
        else acc[i] = (FL__FN(conv_vec)){0};
    }
}

/* Two halves of FL__HALF pixels by two registers of channels:
   c[h][i][j] (+)= sum over segments s and q < k of a[h][segment[s] + i * pixel + q] w[s * k + q][j]
   Three pixels share a pointer, which leaves enough registers for the addresses. */
FL__TARGET static void FL__FN(conv_tile)(const fl__conv_tile *t) {
    FL__CONTRACT
    enum { H = FL__HALF, P = (H + 2) / 3 };
    FL__FN(conv_vec) acc[4 * H];
    const int64_t pixel = t->pixel;
    const FL__T *w = t->w;
    FL__FN(conv_start)(t, 0, acc);
    FL__FN(conv_start)(t, 1, acc + 2 * H);
    for (int64_t s = 0; s < t->segments; s++) {
        const FL__T *a[2 * P];
        FL__UNROLL for (int g = 0; g < 2 * P; g++)
            a[g] = (const FL__T *)t->a[g / P] + t->segment[s] + g % P * 3 * pixel;
        for (int64_t q = 0; q < t->k; q++, w += 2 * FL__LANES) {
            FL__FN(conv_vec) w0 = *(const FL__FN(conv_mem) *)w,
                             w1 = *(const FL__FN(conv_mem) *)(w + FL__LANES);
            __builtin_prefetch(w + 16 * FL__LANES);
            __builtin_prefetch(w + 17 * FL__LANES);
            FL__UNROLL for (int i = 0; i < 2 * H; i++) {
                FL__FN(conv_vec) x = a[i / H * P + i % H / 3][i % H % 3 * pixel] -
                                     (FL__FN(conv_vec)){0}; /* exact, and no instruction */
                acc[2 * i] += x * w0;
                acc[2 * i + 1] += x * w1;
            }
            FL__UNROLL for (int g = 0; g < 2 * P; g++) a[g]++;
        }
    }
    FL__UNROLL for (int i = 0; i < 4 * H; i++) {
        FL__T *c = (FL__T *)t->c[i / (2 * H)] + i % (2 * H) / 2 * t->ldc[i / (2 * H)];
        *(FL__FN(conv_mem) *)(c + i % 2 * FL__LANES) = acc[i];
    }
}

#undef FL__T
#undef FL__LANES
#undef FL__HALF
#undef FL__FN
#undef FL__TARGET
/* MIT licence: see LICENSE. */
