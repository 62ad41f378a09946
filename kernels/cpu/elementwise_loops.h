/* kernels/cpu/elementwise_loops.h - the inner loops of the op tables for one dtype at one ISA level

   Included once per pair, by elementwise.h, which defines
     FL__T        the C type, FL__S its flm_ suffix: float, f32
     FL__LEVEL    name of the level, FL__TARGET the function attribute that goes with it
     FL__TAKES_<class>(code)  code, or nothing where the class does not take the dtype
     FL__GRADS    if gradients are wanted
   and gets, for every op that takes the dtype and has loops, fl__<op>_<suffix>_<level>(p, n, arg):
   p[0] is y, the operands follow. */

#define FL__LOOP(op) FL__CAT3(fl__##op, FL__S, FL__LEVEL)
#define FL_W(name) FL__CAT2(flm_##name, FL__S)

/* A comparison is a condition: NOT of one among integer words leaves the truth in bit 0. */
#define FL__Y_FLOAT(y) FL__T, y
#define FL__Y_NUM(y) FL__T, y
#define FL__Y_ANY(y) FL__T, y
#define FL__Y_INT(y) FL__T, y
#define FL__Y_BOOL(y) FL__T, y
#define FL__Y_CMP(y) uint8_t, (uint8_t)((y) & 1)

#define FL__UNARY_LOOP(op, T, formula) \
    FL__TARGET static void FL__LOOP(op)(void *const p[], int64_t n, const void *arg) { \
        (void)arg; \
        T *out = p[0]; \
        const FL__T *xs = p[1]; \
        FL__VECTOR for (int64_t i = 0; i < n; i++) { \
            const FL__T x = xs[i]; \
            out[i] = formula; \
        } \
    }
#define FL__BINARY_LOOP(op, T, formula) \
    FL__TARGET static void FL__LOOP(op)(void *const p[], int64_t n, const void *arg) { \
        (void)arg; \
        T *out = p[0]; \
        const FL__T *as = p[1], *bs = p[2]; \
        FL__VECTOR for (int64_t i = 0; i < n; i++) { \
            const FL__T a = as[i], b = bs[i]; \
            out[i] = formula; \
        } \
    }
#define FL__EXPAND(macro, ...) macro(__VA_ARGS__)
#define FL__UNARY(op, cls, need, f, g) \
    FL__HAS_##need(FL__TAKES_##cls(FL__EXPAND(FL__UNARY_LOOP, op, FL__Y_##cls(f))))
#define FL__BINARY(op, cls, need, f, ga, gb) \
    FL__HAS_##need(FL__TAKES_##cls(FL__EXPAND(FL__BINARY_LOOP, op, FL__Y_##cls(f))))
FL_UNARY_OPS(FL__UNARY)
FL_BINARY_OPS(FL__BINARY)

#ifdef FL__GRADS
#define FL__UNARY_GRAD(op, cls, need, f, g) \
    FL__HAS_##need(FL__GRAD_##cls(FL__UNARY_GRAD_LOOP(op##_dx, g)))
#define FL__BINARY_GRAD(op, cls, need, f, ga, gb) \
    FL__HAS_##need(FL__GRAD_##cls(FL__BINARY_GRAD_LOOP(op##_da, ga) FL__BINARY_GRAD_LOOP(op##_db, gb)))
#define FL__UNARY_GRAD_LOOP(op, formula) \
    FL__TARGET static void FL__LOOP(op)(void *const p[], int64_t n, const void *arg) { \
        (void)arg; \
        FL__T *out = p[0]; \
        const FL__T *xs = p[1], *ys = p[2], *dys = p[3]; \
        FL__VECTOR for (int64_t i = 0; i < n; i++) { \
            const FL__T x = xs[i], y = ys[i], dy = dys[i]; \
            (void)x, (void)y, (void)dy; \
            out[i] = formula; \
        } \
    }
#define FL__BINARY_GRAD_LOOP(op, formula) \
    FL__TARGET static void FL__LOOP(op)(void *const p[], int64_t n, const void *arg) { \
        (void)arg; \
        FL__T *out = p[0]; \
        const FL__T *as = p[1], *bs = p[2], *ys = p[3], *dys = p[4]; \
        FL__VECTOR for (int64_t i = 0; i < n; i++) { \
            const FL__T a = as[i], b = bs[i], y = ys[i], dy = dys[i]; \
            (void)a, (void)b, (void)y, (void)dy; \
            out[i] = formula; \
        } \
    }
FL_UNARY_OPS(FL__UNARY_GRAD)
FL_BINARY_OPS(FL__BINARY_GRAD)
#undef FL__UNARY_GRAD
#undef FL__BINARY_GRAD
#undef FL__UNARY_GRAD_LOOP
#undef FL__BINARY_GRAD_LOOP
#endif

#undef FL__LOOP
#undef FL_W
#undef FL__Y_FLOAT
#undef FL__Y_NUM
#undef FL__Y_ANY
#undef FL__Y_INT
#undef FL__Y_BOOL
#undef FL__Y_CMP
#undef FL__UNARY_LOOP
#undef FL__BINARY_LOOP
#undef FL__EXPAND
#undef FL__UNARY
#undef FL__BINARY
#undef FL__LEVEL
#undef FL__TARGET
/* MIT licence: see LICENSE. */
