/* kernels/cpu/reduce_loops.h - the inner loops of reductions for one dtype at one ISA level

   Included by reduce.h, which defines FL__T and FL__S (dtype), FL__SUM_T and FL__SUM_S (what its
   sums and products are accumulated in), FL__LEVEL and FL__TARGET. Each loop folds rows of x into
   one row of accumulators: acc[j] = acc[j] op x[r * stride + j], r in order. Wide rows fill
   vectors; a row of one is a plain sequential fold, a row of few stays in registers. */

#define FL__ROWS(name, op, A, S) \
    FL__TARGET static void FL__CAT3(fl__##name, FL__S, FL__LEVEL)( \
        void *acc, const void *x, int64_t rows, int64_t stride, int64_t width) { \
        const FL__T *v = x; \
        A *restrict a = acc; \
        if (width == 1) { \
            A one = a[0]; \
            for (int64_t r = 0; r < rows; r++) one = FL__CAT2(flm_##op, S)(one, (A)v[r * stride]); \
            a[0] = one; \
            return; \
        } \
        if (width == FL__FEW_LANES) { \
            A few[FL__FEW_LANES]; \
            memcpy(few, a, sizeof few); \
            for (int64_t r = 0; r < rows; r++) \
                for (int64_t j = 0; j < FL__FEW_LANES; j++) \
                    few[j] = FL__CAT2(flm_##op, S)(few[j], (A)v[r * stride + j]); \
            memcpy(a, few, sizeof few); \
            return; \
        } \
        for (int64_t r = 0; r < rows; r++) \
            for (int64_t j = 0; j < width; j++) \
                a[j] = FL__CAT2(flm_##op, S)(a[j], (A)v[r * stride + j]); \
    }
FL__ROWS(sum, add, FL__SUM_T, FL__SUM_S)
FL__ROWS(prod, mul, FL__SUM_T, FL__SUM_S)
FL__ROWS(amax, maximum, FL__T, FL__S)
FL__ROWS(amin, minimum, FL__T, FL__S)
#undef FL__ROWS
#undef FL__LEVEL
#undef FL__TARGET
/* MIT licence: see LICENSE. */
