/* kernels/linear_grad.h - splits the record linear_grad into two matmuls and a sum, for several backends */
#ifndef FL_KERNELS_LINEAR_GRAD_H
#define FL_KERNELS_LINEAR_GRAD_H
#include "../fl_backend.h"
#include "../fl/records/linear.h"

/* The records of linear_grad: dx = dz w, dw = dz^T x, db = the sum of dz's rows. */
typedef struct fl__linear_grad {
    fl_call dx, dw, db;
    fl_tensor across;    /* dz^T */
    fl_reduce_args rows; /* of db */
} fl__linear_grad;
/* Fills in p from the record c; p's records write into c's outputs. p must not move afterwards. */
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
