/* kernels/cpu/conv/depthwise.h - depthwise convolutions: each channel has a kernel of its own

   All results are sums over pairs of lines of channels, y[c] = sum over i of a[i][c] b[i][c]: for a pixel of
   y over its taps of x and w, for one of dx over its taps of dy and w, for a tap of dw over pixels of x and
   dy. Images are channels-last; weights and their gradient are transposed, [tap][channel]. */
#ifndef FL_CPU_CONV_DEPTHWISE_H
#define FL_CPU_CONV_DEPTHWISE_H
#include "common.h"

/* Whether y, dx or dw can be computed here, which then is the fastest algorithm. */
FL_PRIVATE bool fl__depthwise_can(const fl__conv *v);
FL_PRIVATE bool fl__depthwise_run(const fl__conv *v);

#endif /* FL_CPU_CONV_DEPTHWISE_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_CONV_DEPTHWISE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_CONV_DEPTHWISE_IMPL
#define FL_CPU_CONV_DEPTHWISE_IMPL
#include "../../../fl/tensor/op_table.h"
#define FL__DEPTHWISE_ROWS 16 /* rows of a split */

typedef struct fl__depthwise {
    const fl__conv *v;
    char *w;        /* [tap][channel] */
    int64_t splits; /* of the rows of y, for dw: partial sums [split][tap][channel] */
    fl__scratch scratch;
} fl__depthwise;

FL_PRIVATE bool fl__depthwise_can(const fl__conv *v) {
    return v->groups > 1 && v->c == 1 && v->o == 1 && v->x.c == 1 && v->y.c == 1 &&
           (!v->bias || v->bias->stride[0] == 1);
}

static char *fl__depthwise_pixel(const fl__conv *v, const fl__image *x, int64_t n, int64_t r, int64_t q) {
    return x->data + (n * x->n + r * x->h + q * x->w) * v->size;
}

/* Lists the pairs of lines to sum for pixel (r, q) of image n of y or dx; returns their number. */
static int64_t fl__depthwise_pairs(const fl__depthwise *p, int64_t n, int64_t r, int64_t q, const void **a,
                                   const void **b) {
    const fl__conv *v = p->v;
    const bool forward = v->direction == FL__CONV_FORWARD;
    int64_t count = 0;
    for (int64_t t = 0; t < v->kh * v->kw; t++) {
        const int64_t i = t / v->kw, j = t % v->kw;
        int64_t h = forward ? r * v->stride[0] - v->pad[0] + i * v->dilation[0] : fl__conv_reach(v, 0, r, i);
        int64_t w = forward ? q * v->stride[1] - v->pad[1] + j * v->dilation[1] : fl__conv_reach(v, 1, q, j);
        if (h < 0 || w < 0 || (forward && (h >= v->h || w >= v->w))) continue;
        a[count] = fl__depthwise_pixel(v, forward ? &v->x : &v->y, n, h, w);
        b[count++] = p->w + t * v->groups * v->size;
    }
    return count;
}

/* Task: a range of rows of y or dx. */
static void fl__depthwise_task(void *arg, int64_t begin, int64_t end) {
    const fl__depthwise *p = arg;
    const fl__conv *v = p->v;
    const bool forward = v->direction == FL__CONV_FORWARD;
    const fl__image *to = forward ? &v->y : &v->x;
    const int64_t rows = forward ? v->oh : v->h, cols = forward ? v->ow : v->w;
    const void *bias = v->bias ? fl_data(v->bias) : NULL;
    const fl__loop relu = v->relu ? fl__formula_loop(FL_OP_relu, v->dtype) : NULL;
    char *workspace = fl__scratch_take(&p->scratch);
    const void **a = (const void **)(void *)workspace, **b = a + v->kh * v->kw;
    for (int64_t row = begin; row < end; row++)
        for (int64_t q = 0; q < cols; q++) {
            const int64_t n = row / rows, r = row % rows, count = fl__depthwise_pairs(p, n, r, q, a, b);
            char *line = fl__depthwise_pixel(v, to, n, r, q);
            v->ck->line(line, bias, a, b, count, v->groups);
            if (relu) relu((void *[]){line, line}, v->groups, NULL);
        }
    fl__scratch_give_back(&p->scratch, workspace);
}

/* Adds the contribution of row r of image n of dy to all taps of a split's dw; `first`: overwrites dw. a: 2
   ow pointers. */
static void fl__depthwise_row(const fl__depthwise *p, char *dw, int64_t n, int64_t r, bool first,
                              const void **a) {
    const fl__conv *v = p->v;
    const void **b = a + v->ow;
    for (int64_t t = 0; t < v->kh * v->kw; t++, dw += v->groups * v->size) {
        int64_t h = r * v->stride[0] - v->pad[0] + t / v->kw * v->dilation[0], count = 0;
        for (int64_t q = 0; q < v->ow && h >= 0 && h < v->h; q++) {
            int64_t w = q * v->stride[1] - v->pad[1] + t % v->kw * v->dilation[1];
            if (w < 0 || w >= v->w) continue;
            a[count] = fl__depthwise_pixel(v, &v->x, n, h, w);
            b[count++] = fl__depthwise_pixel(v, &v->y, n, r, q);
        }
        if (first || count > 0) v->ck->line(dw, first ? NULL : dw, a, b, count, v->groups);
    }
}

/* Task: a range of splits. */
static void fl__depthwise_weight_task(void *arg, int64_t begin, int64_t end) {
    const fl__depthwise *p = arg;
    const fl__conv *v = p->v;
    const int64_t rows = v->images * v->oh;
    char *workspace = fl__scratch_take(&p->scratch);
    for (int64_t split = begin; split < end; split++) {
        char *dw = p->w + split * v->kh * v->kw * v->groups * v->size;
        int64_t first = split * rows / p->splits, last = (split + 1) * rows / p->splits;
        for (int64_t row = first; row < last; row++)
            fl__depthwise_row(p, dw, row / v->oh, row % v->oh, row == first,
                              (const void **)(void *)workspace);
    }
    fl__scratch_give_back(&p->scratch, workspace);
}

/* Allocates workspaces: tables of 2 `pairs` pointers per task, and the weights of all splits. */
static bool fl__depthwise_open(fl__depthwise *p, int64_t pairs) {
    const fl__conv *v = p->v;
    if (!fl__scratch_open(&p->scratch, INT32_MAX, 2 * pairs * (int64_t)sizeof(void *),
                          p->splits * v->kh * v->kw * v->groups * v->size, v->op))
        return false;
    p->w = p->scratch.shared;
    return true;
}

/* y or dx. */
static bool fl__depthwise_forward(fl__depthwise *p) {
    const fl__conv *v = p->v;
    const bool forward = v->direction == FL__CONV_FORWARD;
    const int64_t taps = v->kh * v->kw, work = (forward ? v->ow : v->w) * taps * v->groups;
    p->splits = 1;
    if (!fl__depthwise_open(p, taps)) return false;
    for (int64_t t = 0; t < taps; t++)
        fl__conv_copy(p->w + t * v->groups * v->size, 1,
                      v->k.data + (t / v->kw * v->k.h + t % v->kw * v->k.w) * v->size, v->k.n, v->groups,
                      v->size);
    fl_parallel(v->images * (forward ? v->oh : v->h), fl__ceil_div(1 << 16, work), fl__depthwise_task, p);
    fl__scratch_close(&p->scratch);
    return true;
}

static bool fl__depthwise_weight(fl__depthwise *p) {
    const fl__conv *v = p->v;
    const int64_t taps = v->kh * v->kw, line = v->groups * v->size;
    p->splits = fl__ceil_div(v->images * v->oh, FL__DEPTHWISE_ROWS);
    if (!fl__depthwise_open(p, v->ow)) return false;
    fl_parallel(p->splits, fl__ceil_div(1 << 16, FL__DEPTHWISE_ROWS * v->ow * taps * v->groups),
                fl__depthwise_weight_task, p);
    for (int64_t s = 1; s < p->splits; s++) v->ks->add(p->w, p->w + s * taps * line, taps * v->groups);
    for (int64_t t = 0; t < taps; t++)
        fl__conv_copy(v->k.data + (t / v->kw * v->k.h + t % v->kw * v->k.w) * v->size, v->k.n,
                      p->w + t * line, 1, v->groups, v->size);
    fl__scratch_close(&p->scratch);
    return true;
}

FL_PRIVATE bool fl__depthwise_run(const fl__conv *v) {
    fl__depthwise p = {.v = v};
    return v->direction == FL__CONV_WEIGHT ? fl__depthwise_weight(&p) : fl__depthwise_forward(&p);
}

#endif
#endif
/* MIT licence: see LICENSE. */
