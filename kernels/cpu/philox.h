/* kernels/cpu/philox.h - Philox 4x32-10 of many counters at once, at one ISA level of x86

   random.h includes it once for each, after defining FL__LANES (of 64 bits, in a register),
   FL__FN(name), FL__TARGET and FL__INTERLEAVED(p, q, at), which takes elements at, at + 1, ... of p
   and q in turns; it undefines them all but FL__FN. flm_philox has the formula.

   A word of the state is the lower half of a lane; the upper half holds garbage, which the
   multiplication does not read. Registers of FL__LANES / 2 sets of counters hide its latency. */

typedef uint64_t FL__FN(vec) __attribute__((vector_size(8 * FL__LANES)));
typedef uint64_t FL__FN(mem)
    __attribute__((vector_size(8 * FL__LANES), aligned(sizeof(uint32_t)), may_alias));

/* The products of the lower halves; gcc knows no other way to ask for it than intrinsics. */
FL__SUM_INLINE FL__TARGET FL__FN(vec) FL__FN(mul)(FL__FN(vec) a, FL__FN(vec) b) {
    FL__FN(vec) product;
    __asm__("vpmuludq %2, %1, %0" : "=v"(product) : "v"(a), "v"(b));
    return product;
}

FL__SUM_INLINE FL__TARGET void FL__FN(round)(FL__FN(vec) *c, uint32_t k0, uint32_t k1) {
    const FL__FN(vec) zero = {0};
    FL__FN(vec) a = FL__FN(mul)(c[0], zero + 0xd2511f53u);
    FL__FN(vec) b = FL__FN(mul)(c[2], zero + 0xcd9e8d57u);
    c[0] = (b >> 32) ^ c[1] ^ (zero + k0);
    c[1] = b;
    c[2] = (a >> 32) ^ c[3] ^ (zero + k1);
    c[3] = a;
}

/* The four words of each counter from `block` on, of n or a few less; returns of how many. */
FL__TARGET static int64_t FL__FN()(uint32_t *w, uint64_t key, uint64_t block, int64_t n) {
    enum { SETS = FL__LANES / 2 };
    const uint64_t low = 0xffffffffu;
    FL__FN(vec) lane = {0};
    for (int i = 0; i < FL__LANES; i++) lane[i] = (uint64_t)i;
    int64_t j = 0;
    for (; j + SETS * FL__LANES <= n; j += SETS * FL__LANES) {
        FL__FN(vec) c[SETS][4] = {{{0}}};
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        FL__SUM_UNROLL for (int s = 0; s < SETS; s++) {
            c[s][0] = lane + (block + (uint64_t)(j + s * FL__LANES));
            c[s][1] = c[s][0] >> 32;
        }
        for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u)
            FL__SUM_UNROLL for (int s = 0; s < SETS; s++) FL__FN(round)(c[s], k0, k1);
        FL__SUM_UNROLL for (int s = 0; s < SETS; s++) {
            FL__FN(mem) *to = (FL__FN(mem) *)(w + 4 * (j + s * FL__LANES));
            FL__FN(vec) p = (c[s][0] & low) | c[s][1] << 32, q = (c[s][2] & low) | c[s][3] << 32;
            to[0] = FL__INTERLEAVED(p, q, 0);
            to[1] = FL__INTERLEAVED(p, q, FL__LANES / 2);
        }
    }
    return j;
}

#undef FL__LANES
#undef FL__TARGET
#undef FL__INTERLEAVED
/* MIT licence: see LICENSE. */
