/* parity_linear.h - the lines of parity.c for linear algebra */

#define LINEAR_OPS(OP) \
    OP(dot, fv_dot(IN(0), IN(1))) \
    OP(outer, fv_outer(IN(0), IN(1))) \
    OP(kron, fv_kron(IN(0), IN(1))) \
    OP(cross, fv_cross(IN(0), IN(1), AXIS("axis"))) \
    OP(tensordot, fv_tensordot(IN(0), IN(1), AXIS("axes"), NULL, NULL)) \
    OP(einsum, fv_einsum(text_of(c, "equation"), c->x, c->n_in)) \
    OP(trace, fv_trace(IN(0))) \
    OP(addmm, fv_addmm(IN(0), IN(1), IN(2), NUM("beta"), NUM("alpha"))) \
    OP(cdist, fv_cdist(IN(0), IN(1), NUM("p"))) \
    OP(linear, fv_linear(IN(0), IN(1), c->n_in > 2 ? IN(2) : NULL)) \
    OP(bilinear, fv_bilinear(IN(0), IN(1), IN(2), IN(3)))
LINEAR_OPS(OP_BODY)

#define LINEAR_PARITY LINEAR_OPS(OP_LINE)
/* MIT licence: see LICENSE. */
