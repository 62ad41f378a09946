/* kernels/linear_grad.h - linear_grad as products: the records that slots of several backends run */
#ifndef FL_KERNELS_LINEAR_GRAD_H
#define FL_KERNELS_LINEAR_GRAD_H
#include "../fl_backend.h"
#include "../fl/records/linear.h"

/* For slots of linear_grad: the records of which it consists, into its outputs. */
typedef struct fl__linear_grad {
    fl_call dx, dw, db;
    fl_tensor across; /* dz^T */
    fl_reduce_args rows;
} fl__linear_grad;
static inline void fl__linear_grad_parts(fl__linear_grad *p, const fl_call *c) {
    fl_tensor *dz = c->in[0];
    p->across = *dz;
    for (int d = 0; d < 2; d++) {
        p->across.shape[d] = dz->shape[1 - d];
        p->across.stride[d] = dz->stride[1 - d];
    }
    p->rows = (fl_reduce_args){.axes = 1};
    fl_call_begin(&p->dx, FL_OP_matmul, 1, 2, NULL);
    fl_call_begin(&p->dw, FL_OP_matmul, 1, 2, NULL);
    fl_call_begin(&p->db, FL_OP_sum, 1, 1, &p->rows);
    p->dx.out[0] = c->out[0], p->dx.in[0] = dz, p->dx.in[1] = c->in[2];
    p->dw.out[0] = c->out[1], p->dw.in[0] = &p->across, p->dw.in[1] = c->in[1];
    p->db.out[0] = c->out[2], p->db.in[0] = dz;
}

#endif
/* MIT licence: see LICENSE. */
