/* examples/research/multiplier.h - matrix products and 2-d convolutions as loops over `multiply` */
#ifndef MULTIPLIER_H
#define MULTIPLIER_H
#include "fl_backend.h"
#include "fl.h"

#include <string.h>

/* What every product is made by, and how many ops have used it. */
static float (*multiply)(float a, float b);
static int64_t multiply_calls;

/* The slots are set with FL_SLOT_CONTIGUOUS, so only dtype and dims remain to be checked. */
static bool multiply_fits(const fl_call *c, int ndim) {
    for (int i = 0; i < 3; i++) {
        const fl_tensor *t = i < 2 ? c->in[i] : c->out[0];
        if (t->ndim != ndim || t->dtype != FL_F32 || !fl_is_contiguous(t))
            return fl_fail("multiplier: a product has an operand %s of shape %s: extend the loops",
                           fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t));
    }
    return true;
}

static void multiply_rows(void *call, int64_t begin, int64_t end) {
    const fl_call *c = call;
    const int64_t n = c->out[0]->shape[1], k = c->in[1]->shape[0];
    const float *a = fl_data(c->in[0]), *b = fl_data(c->in[1]);
    float *y = fl_data(c->out[0]);
    for (int64_t i = begin; i < end; i++) {
        for (int64_t j = 0; j < n; j++) y[i * n + j] = 0;
        for (int64_t p = 0; p < k; p++)
            for (int64_t j = 0; j < n; j++) y[i * n + j] += multiply(a[i * k + p], b[p * n + j]);
    }
}

static bool multiply_matmul(const fl_backend *self, const fl_call *c) {
    (void)self, multiply_calls++;
    if (!multiply_fits(c, 2) || !fl_out_make(c->out[0])) return false;
    fl_parallel(c->out[0]->shape[0], 4, multiply_rows, (void *)c);
    return true;
}

/* x [n, in, h, w], w [out, in, kh, kw], y [n, out, oh, ow] */
typedef struct multiply_planes {
    fl_op op;
    const fl_conv2d_args *a;
    const fl_tensor *x, *w, *y;
} multiply_planes;

/* All products of image n and output channel o; each is added to the number that the op computes. */
static void multiply_channel(const multiply_planes *c, int64_t n, int64_t o) {
    const int64_t *xs = c->x->shape, *ws = c->w->shape, *ys = c->y->shape, *pad = c->a->pad_lo;
    const int64_t *stride = c->a->stride;
    float *y = (float *)fl_data(c->y) + (n * ys[1] + o) * ys[2] * ys[3];
    for (int64_t i = 0; i < ws[1] * ws[2] * ws[3]; i++) {
        const int64_t in = i / (ws[2] * ws[3]), ky = i / ws[3] % ws[2], kx = i % ws[3];
        float *w = (float *)fl_data(c->w) + o * ws[1] * ws[2] * ws[3] + i;
        for (int64_t oy = 0; oy < ys[2]; oy++) {
            const int64_t iy = oy * stride[0] + ky * c->a->dilation[0] - pad[0];
            int64_t ix = kx * c->a->dilation[1] - pad[1];
            if (iy < 0 || iy >= xs[2]) continue;
            float *x = (float *)fl_data(c->x) + ((n * xs[1] + in) * xs[2] + iy) * xs[3];
            float *to = y + oy * ys[3];
            for (int64_t ox = 0; ox < ys[3]; ox++, ix += stride[1]) {
                if (ix < 0 || ix >= xs[3]) continue;
                if (c->op == FL_OP_conv2d) to[ox] += multiply(x[ix], *w);
                else if (c->op == FL_OP_conv2d_grad_input) x[ix] += multiply(to[ox], *w);
                else *w += multiply(x[ix], to[ox]);
            }
        }
    }
}

/* Images, or output channels of the weight's gradient: threads never write to the same number. */
static void multiply_images(void *arg, int64_t begin, int64_t end) {
    const multiply_planes *c = arg;
    const bool weight = c->op == FL_OP_conv2d_grad_weight;
    for (int64_t i = begin; i < end; i++)
        for (int64_t k = 0; k < (weight ? c->x->shape[0] : c->w->shape[0]); k++)
            multiply_channel(c, weight ? k : i, weight ? i : k);
}

/* x, w -> y;  dy, w -> dx;  x, dy -> dw */
static bool multiply_conv2d(const fl_backend *self, const fl_call *c) {
    const bool forward = c->op == FL_OP_conv2d, input = c->op == FL_OP_conv2d_grad_input;
    fl_tensor *out = c->out[0];
    multiply_planes v = {c->op, c->args, input ? out : c->in[0], forward || input ? c->in[1] : out,
                     forward ? out : c->in[!input]};
    (void)self, multiply_calls++;
    if (v.a->groups != 1) return fl_fail("multiplier: got %lld groups, expected 1", (long long)v.a->groups);
    if (!multiply_fits(c, 4) || !fl_out_make(out)) return false;
    memset(fl_data(out), 0, (size_t)fl_numel(out) * sizeof(float));
    fl_parallel(forward || input ? v.x->shape[0] : v.w->shape[0], 1, multiply_images, &v);
    return true;
}
#endif
/* MIT licence: see LICENSE. */
