/* conv_tile.h - the inner loop of conv.h for one instruction set and one element type

   conv.h includes it once for each pair, after defining
     FL__T          the element: float or double
     FL__LANES      elements per register
     FL__HALF       7, 3 or 2: pixels of half a tile (4 FL__HALF + 3 registers must exist)
     FL__FN(name)   the name with a suffix of its own
     FL__TARGET     the target attribute
   and it defines FL__FN(conv_tile) and FL__FN(conv_line), and undefines them all. */

typedef FL__T FL__FN(conv_vec) __attribute__((vector_size(FL__LANES * sizeof(FL__T))));
typedef FL__T FL__FN(conv_mem) /* the same, anywhere in memory */
    __attribute__((vector_size(FL__LANES * sizeof(FL__T)), aligned(sizeof(FL__T)), may_alias));

/* Starts the accumulators of half h: from what c holds, the bias, or 0; c is fetched while
   the sums run. */
FL__INLINE FL__TARGET void FL__FN(conv_start)(const fl__conv_tile *t, const int h,
                                              FL__FN(conv_vec) *acc) {
    const FL__T *c = t->c[h], *bias = t->bias;
    FL__UNROLL for (int i = 0; i < 2 * FL__HALF; i++) {
        const int64_t j = i % 2 * FL__LANES;
        if (t->add) acc[i] = *(const FL__FN(conv_mem) *)(c + i / 2 * t->ldc[h] + j);
        else if (bias) acc[i] = *(const FL__FN(conv_mem) *)(bias + j);
        else acc[i] = (FL__FN(conv_vec)){0};
        if (!t->add) __builtin_prefetch(c + i / 2 * t->ldc[h] + j, 1);
    }
}

/* Two halves of FL__HALF pixels by two registers of channels:
   c[h][i][j] (+)= sum over segments s and q < k of a[h][segment[s] + i * pixel + q] w[s * k + q][j]
   The processor follows too few of the pixels: each line of theirs is fetched one line ahead. */
FL__TARGET static void FL__FN(conv_tile)(const fl__conv_tile *t) {
    FL__CONTRACT
    enum { H = FL__HALF, LINE = 64 / sizeof(FL__T) };
    FL__FN(conv_vec) acc[4 * H];
    int64_t at[H]; /* bytes from the first pixel of a half */
    FL__UNROLL for (int i = 0; i < H; i++) at[i] = i * t->pixel * (int64_t)sizeof(FL__T);
    const FL__T *w = t->w;
    FL__FN(conv_start)(t, 0, acc);
    FL__FN(conv_start)(t, 1, acc + 2 * H);
    for (int64_t s = 0; s < t->segments; s++) {
        const char *a[2];
        for (int h = 0; h < 2; h++) a[h] = (const char *)((const FL__T *)t->a[h] + t->segment[s]);
        for (int64_t left = t->k; left > 0; left -= LINE) {
            const FL__T *end = w + (left < LINE ? left : LINE) * 2 * FL__LANES;
            FL__UNROLL for (int i = 0; i < 2 * H; i++)
                __builtin_prefetch(a[i / H] + at[i % H] + 64);
            for (; w < end; w += 2 * FL__LANES) {
                FL__FN(conv_vec) w0 = *(const FL__FN(conv_mem) *)w,
                                 w1 = *(const FL__FN(conv_mem) *)(w + FL__LANES);
                __builtin_prefetch(w + 16 * FL__LANES);
                __builtin_prefetch(w + 17 * FL__LANES);
                FL__UNROLL for (int i = 0; i < 2 * H; i++) {
                    FL__FN(conv_vec) x = *(const FL__T *)(a[i / H] + at[i % H]) -
                                         (FL__FN(conv_vec)){0}; /* exact, and no instruction */
                    acc[2 * i] += x * w0;
                    acc[2 * i + 1] += x * w1;
                }
                FL__UNROLL for (int h = 0; h < 2; h++) a[h] += sizeof(FL__T);
            }
        }
    }
    FL__UNROLL for (int i = 0; i < 4 * H; i++) {
        FL__T *c = (FL__T *)t->c[i / (2 * H)] + i % (2 * H) / 2 * t->ldc[i / (2 * H)];
        *(FL__FN(conv_mem) *)(c + i % 2 * FL__LANES) = acc[i];
    }
}

/* nv registers of channels from c on: y[j] = start[j] + sum over i < count of a[i][j] b[i][j] */
FL__INLINE FL__TARGET void FL__FN(conv_line_part)(const int nv, int64_t c, FL__T *y,
                                                  const FL__T *start, const void *const *a,
                                                  const void *const *b, int64_t count) {
    FL__CONTRACT
    FL__FN(conv_vec) acc[4];
    FL__UNROLL for (int j = 0; j < nv; j++) {
        acc[j] = (FL__FN(conv_vec)){0};
        if (start) acc[j] = *(const FL__FN(conv_mem) *)(start + c + j * FL__LANES);
    }
    for (int64_t i = 0; i < count; i++) {
        const FL__T *p = (const FL__T *)a[i] + c, *q = (const FL__T *)b[i] + c;
        FL__UNROLL for (int j = 0; j < nv; j++)
            acc[j] += *(const FL__FN(conv_mem) *)(p + j * FL__LANES) *
                      *(const FL__FN(conv_mem) *)(q + j * FL__LANES);
    }
    FL__UNROLL for (int j = 0; j < nv; j++)
        *(FL__FN(conv_mem) *)(y + c + j * FL__LANES) = acc[j];
}

/* The same for n channels; start: NULL for 0, or y itself. */
FL__TARGET static void FL__FN(conv_line)(void *y, const void *start, const void *const *a,
                                         const void *const *b, int64_t count, int64_t n) {
    FL__T *to = y;
    const FL__T *from = start;
    int64_t c = 0;
    for (; c + 4 * FL__LANES <= n; c += 4 * FL__LANES)
        FL__FN(conv_line_part)(4, c, to, from, a, b, count);
    for (; c + FL__LANES <= n; c += FL__LANES) FL__FN(conv_line_part)(1, c, to, from, a, b, count);
    for (; c < n; c++) {
        FL__T sum = from ? from[c] : 0;
        for (int64_t i = 0; i < count; i++)
            sum += ((const FL__T *)a[i])[c] * ((const FL__T *)b[i])[c];
        to[c] = sum;
    }
}

#undef FL__T
#undef FL__LANES
#undef FL__HALF
#undef FL__FN
#undef FL__TARGET
/* MIT licence: see LICENSE. */
