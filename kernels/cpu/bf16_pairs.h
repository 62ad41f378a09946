/* bf16_pairs.h - operands of register tiles that are pairs of bf16

   gemm_tile.h includes it for its name FL__FN and target FL__TARGET of FL__AVX512_BF16. A pair are
   two values one after the other along k, the first in the lower half of a word, and the word
   stands where a float would. Float -> bf16 rounds to nearest even, NaN stays NaN.

   FL_EMULATE_BF16 rounds as the instructions do, and sums as the manual says that vdpbf16ps does:
   two fused multiply-adds, the second values first. Only denormals, which it takes for 0, count. */

typedef uint32_t FL__FN(words) __attribute__((vector_size(64)));
typedef uint32_t FL__FN(words_mem) __attribute__((vector_size(64), aligned(4), may_alias));

/* A pair in all lanes. */
FL__INLINE FL__TARGET FL__FN(vec) FL__FN(spread)(const float *pair) {
    return (FL__FN(vec))(flm__bits32(*pair) | (FL__FN(words)){0});
}

/* What pack does value by value: s[0] and s[step], or 0 where only one value is left. */
FL__INLINE float FL__FN(one)(const float *s, int64_t step, int64_t left) {
    uint32_t second = left > 1 ? flm_f32_to_bf16(s[step]) : 0;
    return flm__float(second << 16 | flm_f32_to_bf16(*s));
}

#ifdef FL_EMULATE_BF16

/* acc + the products of two pairs */
FL__INLINE FL__TARGET FL__FN(vec) FL__FN(more)(FL__FN(vec) acc, FL__FN(vec) x, FL__FN(vec) y) {
    FL__CONTRACT
    FL__FN(words) a = (FL__FN(words))x, b = (FL__FN(words))y;
    acc += (FL__FN(vec))(a & 0xffff0000u) * (FL__FN(vec))(b & 0xffff0000u);
    return acc + (FL__FN(vec))(a << 16) * (FL__FN(vec))(b << 16);
}

/* Sixteen values, each rounded in the upper half of its lane. */
FL__INLINE FL__TARGET FL__FN(words) FL__FN(rounded)(const float *s) {
    FL__FN(words) u = *(const FL__FN(words_mem) *)(const void *)s;
    FL__FN(words) nan = (FL__FN(words))((u & 0x7fffffffu) > 0x7f800000u);
    return (nan & (u | 0x400000u)) | (~nan & (u + 0x7fff + (u >> 16 & 1)));
}

/* Sixteen pairs of s[i] and s[step + i]. */
FL__INLINE FL__TARGET FL__FN(vec) FL__FN(across)(const float *s, int64_t step) {
    return (FL__FN(vec))(FL__FN(rounded)(s) >> 16 | (FL__FN(rounded)(s + step) & 0xffff0000u));
}

/* Eight pairs of what stands side by side. */
FL__INLINE FL__TARGET void FL__FN(along)(FL__FN(eight) *to, const float *s) {
    typedef uint64_t doubled __attribute__((vector_size(64)));
    typedef uint32_t eight __attribute__((vector_size(32)));
    doubled u = (doubled)FL__FN(rounded)(s);
    u = (u >> 16 & 0xffff) | (u >> 32 & 0xffff0000u);
    *to = (FL__FN(eight))__builtin_convertvector(u, eight);
}

#else

FL__INLINE FL__TARGET FL__FN(vec) FL__FN(more)(FL__FN(vec) acc, FL__FN(vec) x, FL__FN(vec) y) {
    return (FL__FN(vec))_mm512_dpbf16_ps((__m512)acc, (__m512bh)x, (__m512bh)y);
}

FL__INLINE FL__TARGET FL__FN(vec) FL__FN(across)(const float *s, int64_t step) {
    typedef uint16_t halves __attribute__((vector_size(64)));
    halves h = (halves)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(s + step), _mm512_loadu_ps(s));
    return (FL__FN(vec))FL__SHUFFLE(h, h, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8,
                                    24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

FL__INLINE FL__TARGET void FL__FN(along)(FL__FN(eight) *to, const float *s) {
    *to = (FL__FN(eight))_mm512_cvtneps_pbh(_mm512_loadu_ps(s));
}

#endif
/* MIT licence: see LICENSE. */
