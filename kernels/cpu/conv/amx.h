/* kernels/cpu/conv/amx.h - convolutions as products of operands rounded to bf16, in the tiles of gemm/amx.h

     y[pixel][o] = x[pixel, tap][c] times w[o][tap, c] transposed,
     dx[pixel][c] = dy[pixel, tap][o] times w[tap, o][c],
     dw[o][tap, c] = dy[pixel][o] transposed times x[pixel][tap, c].

   The im2col matrix [pixel, tap] is never stored: packing looks up where the channels of a pixel and a tap
   are, or that they are padding. Everything is channels-last, in one group. */
#ifndef FL_CPU_CONV_AMX_H
#define FL_CPU_CONV_AMX_H
#include "common.h"

/* Whether y, dx or dw is computed here: rounding is allowed, and it is faster. */
FL_PRIVATE bool fl__conv_amx_takes(const fl__conv *v);
FL_PRIVATE bool fl__conv_amx_run(const fl__conv *v);

#endif /* FL_CPU_CONV_AMX_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_CONV_AMX) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_CONV_AMX_IMPL
#define FL_CPU_CONV_AMX_IMPL
#include "../../../fl/tensor/op_table.h"
#include "../bf16.h"
#include "../gemm/amx.h"

enum { FL__CONV_AMX_CHANNELS = 16 }; /* fewer channels leave more than half of a step of k empty */

FL_PRIVATE bool fl__conv_amx_takes(const fl__conv *v) {
    const int64_t least = fl__min(v->c, v->o), most = fl__max(v->c, v->o);
    /* The gradient of a strided convolution is mostly products with zeros, which cost vdpbf16ps more than it
       saves. */
    const bool zeros = v->direction == FL__CONV_DATA && v->stride[0] * v->stride[1] > 1 &&
                       fl__bf16_is_vdpbf16();
    return !zeros && v->groups == 1 && least >= FL__CONV_AMX_CHANNELS &&
           most <= FL__AMX_ZEROS / (int64_t)sizeof(float) && (!v->bias || v->bias->stride[0] == 1) &&
           (v->direction == FL__CONV_DATA ? fl__conv_dense(&v->x, v->images, v->c, v->h, v->w)
                                          : v->x.c == 1) &&
           fl__conv_dense(&v->y, v->images, v->o, v->oh, v->ow) &&
           fl__conv_dense(&v->k, v->o, v->c, v->kh, v->kw) && fl__bf16_tiles(v->dtype);
}

/* For pixels first .. first + n of a grid of `rows` x `columns` pixels per image: the address of pixel (row,
   column) * stride + (y, x) of `from`, an image of h x w pixels, or zeros. */
static void fl__conv_amx_find(const fl__conv *v, const fl__image *from, int64_t h, int64_t w, int64_t rows,
                              int64_t columns, const int64_t *stride, int64_t y, int64_t x, int64_t first,
                              int64_t n, const char **at) {
    const char *zeros = fl__amx_zeros();
    const int64_t step = from->w * v->raw;
    int64_t q = first % columns, r = first / columns % rows, image = first / columns / rows;
    for (int64_t i = 0; i < n; q = 0, r++) {
        if (r == rows) r = 0, image++;
        const int64_t end = i + fl__min(n - i, columns - q), row = r * stride[0] + y,
                      width = row >= 0 && row < h ? w : 0;
        const char *base = from->data + (image * from->n + row * from->h) * v->raw;
        for (int64_t p = q * stride[1] + x; i < end; i++, p += stride[1])
            at[i] = p >= 0 && p < width ? base + p * step : zeros;
    }
}

/* The pixels of x that tap `segment` reads for pixels first .. first + n of y. */
static void fl__conv_amx_x(const fl__amx_operand *op, int64_t segment, int64_t first, int64_t n,
                           const char **at) {
    const fl__conv *v = op->arg;
    const int64_t y = segment / v->kw * v->dilation[0] - v->pad[0],
                  x = segment % v->kw * v->dilation[1] - v->pad[1];
    fl__conv_amx_find(v, &v->x, v->h, v->w, v->oh, v->ow, v->stride, y, x, first, n, at);
}

/* The pixels of dy whose tap `segment` reads pixels first .. first + n of x. */
static void fl__conv_amx_dy(const fl__amx_operand *op, int64_t segment, int64_t first, int64_t n,
                            const char **at) {
    static const int64_t one[] = {1, 1};
    const fl__conv *v = op->arg;
    const int64_t i = segment / v->kw, j = segment % v->kw;
    if (v->stride[0] * v->stride[1] == 1) {
        fl__conv_amx_find(v, &v->y, v->oh, v->ow, v->h, v->w, one, v->pad[0] - i * v->dilation[0],
                          v->pad[1] - j * v->dilation[1], first, n, at);
        return;
    }
    int64_t x = first % v->w, y = first / v->w % v->h, image = first / v->w / v->h;
    int64_t r = fl__conv_reach(v, 0, y, i);
    for (int64_t p = 0; p < n; p++) {
        const int64_t q = r < 0 ? -1 : fl__conv_reach(v, 1, x, j);
        at[p] = q < 0 ? fl__amx_zeros() : v->y.data + (image * v->y.n + r * v->y.h + q * v->y.w) * v->raw;
        if (++x < v->w) continue;
        x = 0;
        if (++y == v->h) y = 0, image++;
        r = fl__conv_reach(v, 0, y, i);
    }
}

static const char *fl__conv_amx_weight(const fl__conv *v, int64_t o, int64_t tap) {
    return v->k.data + (o * v->k.n + tap / v->kw * v->k.h + tap % v->kw * v->k.w) * v->raw;
}

/* Weights of output channels first .. first + n, of one tap. */
static void fl__conv_amx_w(const fl__amx_operand *op, int64_t segment, int64_t first, int64_t n,
                           const char **at) {
    for (int64_t i = 0; i < n; i++) at[i] = fl__conv_amx_weight(op->arg, first + i, segment);
}

/* Lines [tap][o], padded with lines of zeros after the last o of each tap. */
static void fl__conv_amx_taps(const fl__amx_operand *op, int64_t segment, int64_t first, int64_t n,
                              const char **at) {
    const fl__conv *v = op->arg;
    const int64_t lines = fl__ceil_div(v->o, 32) * 32, tap = first / lines, o = first % lines;
    (void)segment;
    for (int64_t i = 0; i < n; i++)
        at[i] = o + i < v->o ? fl__conv_amx_weight(v, o + i, tap) : fl__amx_zeros();
}

FL_PRIVATE bool fl__conv_amx_run(const fl__conv *v) {
    const int64_t taps = v->kh * v->kw, pixels = v->images * v->oh * v->ow, all = v->images * v->h * v->w;
    const int64_t c32 = fl__ceil_div(v->c, 32) * 32, o32 = fl__ceil_div(v->o, 32) * 32;
    const fl__amx_operand x = {.size = v->raw, .lines = pixels, .inner = v->c, .segments = taps,
                               .find = fl__conv_amx_x, .arg = v};
    const fl__amx_operand dy = {.data = v->y.data,
                                .size = v->raw,
                                .lines = pixels,
                                .inner = v->o,
                                .segments = 1,
                                .step = v->o * v->raw};
    const fl__epilogue bias = {.size = sizeof(float), .n = v->o, .bias = v->bias ? fl_data(v->bias) : NULL,
                               .add = fl__formula_loop(FL_OP_add, FL_F32),
                               .act = v->relu ? fl__formula_loop(FL_OP_relu, FL_F32) : NULL};
    fl__amx_product p = {.ks = fl__bf16_tiles(v->dtype), .dtype = v->dtype, .a = dy, .b = x, .c = v->k.data,
                         .m = v->o, .n = taps * v->c, .k = pixels};
    if (v->direction == FL__CONV_FORWARD) {
        p.a = p.b = x;
        p.a.along = p.b.along = true;
        p.b.lines = v->o, p.b.find = fl__conv_amx_w;
        p.c = v->y.data, p.m = pixels, p.n = v->o, p.k = taps * c32;
        if (v->bias) p.epilogue = &bias;
    } else if (v->direction == FL__CONV_DATA) {
        p.a.along = true;
        p.a.lines = all, p.a.segments = taps, p.a.find = fl__conv_amx_dy, p.a.arg = v;
        p.b.lines = taps * o32, p.b.segments = 1, p.b.find = fl__conv_amx_taps;
        p.c = v->x.data, p.m = all, p.n = v->c, p.k = taps * o32;
    }
    return fl__amx_run(&p, v->op);
}

#endif
#endif
/* MIT licence: see LICENSE. */
