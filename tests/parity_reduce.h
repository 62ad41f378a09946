/* parity_reduce.h - the lines of parity.c for reductions, scans and the rest of the element-wise
   ops */

#define REDUCE_OPS(OP) \
    OP(prelu_channels, fv_prelu_channels(IN(0), IN(1)))

#define REDUCE_PARITY \
    {"prelu", op_prelu_channels, 0},
