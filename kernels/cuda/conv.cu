/* kernels/cuda/conv.cu - 2-D convolution and its gradients: reference kernels

   A thread computes an element of y or dx, a block one of dw, by direct summation, for any strides. They are
   the reference for cuDNN, and the fallback without it. */
#include "common.cuh"

/* An element of a tensor of 4 dims. */
template <class T>
static __device__ __forceinline__ T &flk_in(const flk_operand &t, int64_t i, int64_t j, int64_t k,
                                            int64_t l) {
    return ((T *)t.p)[i * t.stride[0] + j * t.stride[1] + k * t.stride[2] + l * t.stride[3]];
}

template <class T> __global__ void flk_conv_kernel(flk_conv c) {
    int64_t ox = flk_thread();
    if (ox >= c.shape_y[0] * c.shape_y[1] * c.shape_y[2] * c.shape_y[3]) return;
    int64_t oy = flk_divide(&ox, c.shape_y[3]), o = flk_divide(&oy, c.shape_y[2]);
    const int64_t n = flk_divide(&o, c.shape_y[1]), inputs = c.shape_w[1];
    const int64_t first = o / (c.shape_y[1] / c.groups) * inputs;
    T sum = 0;
    for (int64_t i = 0; i < inputs; i++)
        for (int64_t ky = 0; ky < c.shape_w[2]; ky++) {
            const int64_t row = oy * c.stride[0] + ky * c.dilation[0] - c.pad[0];
            if (row < 0 || row >= c.shape_x[2]) continue;
            for (int64_t kx = 0; kx < c.shape_w[3]; kx++) {
                const int64_t column = ox * c.stride[1] + kx * c.dilation[1] - c.pad[1];
                if (column < 0 || column >= c.shape_x[3]) continue;
                sum += flk_in<T>(c.x, n, first + i, row, column) * flk_in<T>(c.w, o, i, ky, kx);
            }
        }
    flk_in<T>(c.y, n, o, oy, ox) = sum;
}

/* The output along axis d to which tap k contributes input i; -1: none. */
static __device__ __forceinline__ int64_t flk_output_of(const flk_conv &c, int d, int64_t i, int64_t k) {
    const int64_t at = i + c.pad[d] - k * c.dilation[d], o = at / c.stride[d];
    return at >= 0 && at % c.stride[d] == 0 && o < c.shape_y[2 + d] ? o : -1;
}

template <class T> __global__ void flk_conv_grad_input_kernel(flk_conv c) {
    int64_t column = flk_thread();
    if (column >= c.shape_x[0] * c.shape_x[1] * c.shape_x[2] * c.shape_x[3]) return;
    int64_t row = flk_divide(&column, c.shape_x[3]), channel = flk_divide(&row, c.shape_x[2]);
    const int64_t n = flk_divide(&channel, c.shape_x[1]), inputs = c.shape_w[1];
    const int64_t outputs = c.shape_y[1] / c.groups, first = channel / inputs * outputs;
    const T *w = &flk_in<T>(c.w, first, channel % inputs, 0, 0), *y = &flk_in<T>(c.y, n, first, 0, 0);
    T sum = 0;
    for (int64_t ky = 0; ky < c.shape_w[2]; ky++) {
        const int64_t oy = flk_output_of(c, 0, row, ky);
        for (int64_t kx = 0; kx < c.shape_w[3] && oy >= 0; kx++) {
            const int64_t ox = flk_output_of(c, 1, column, kx);
            for (int64_t o = 0; o < outputs && ox >= 0; o++)
                sum += y[o * c.y.stride[1] + oy * c.y.stride[2] + ox * c.y.stride[3]] *
                       w[o * c.w.stride[0] + ky * c.w.stride[2] + kx * c.w.stride[3]];
        }
    }
    flk_in<T>(c.x, n, channel, row, column) = sum;
}

template <class T> __global__ void flk_conv_grad_weight_kernel(flk_conv c) {
    int64_t kx = blockIdx.x;
    int64_t ky = flk_divide(&kx, c.shape_w[3]), i = flk_divide(&ky, c.shape_w[2]);
    const int64_t o = flk_divide(&i, c.shape_w[1]), oh = c.shape_y[2], ow = c.shape_y[3];
    const int64_t channel = o / (c.shape_y[1] / c.groups) * c.shape_w[1] + i;
    const int me = (int)threadIdx.x;
    T sum = 0;
    for (int64_t at = me; at < c.shape_y[0] * oh * ow; at += FLK_BLOCK) {
        int64_t ox = at, oy = flk_divide(&ox, ow);
        const int64_t n = flk_divide(&oy, oh);
        const int64_t row = oy * c.stride[0] + ky * c.dilation[0] - c.pad[0];
        const int64_t column = ox * c.stride[1] + kx * c.dilation[1] - c.pad[1];
        if (row < 0 || row >= c.shape_x[2] || column < 0 || column >= c.shape_x[3]) continue;
        sum += flk_in<T>(c.y, n, o, oy, ox) * flk_in<T>(c.x, n, channel, row, column);
    }
    sum = flk_team<FLK_BLOCK>(sum, flk_sum_of());
    if (me == 0) flk_in<T>(c.w, o, i, ky, kx) = sum;
}

const char *flk_conv2d(const flk_conv *c, int which, int dtype) {
    const int64_t *s = which == FLK_CONV              ? c->shape_y
                       : which == FLK_CONV_GRAD_INPUT ? c->shape_x
                                                      : c->shape_w;
    const int64_t n = s[0] * s[1] * s[2] * s[3];
    return which == FLK_CONV              ? FLK_BY_FLOAT(flk_conv_kernel, dtype, flk_blocks(n), *c)
           : which == FLK_CONV_GRAD_INPUT ? FLK_BY_FLOAT(flk_conv_grad_input_kernel, dtype, flk_blocks(n), *c)
                                          : FLK_BY_FLOAT(flk_conv_grad_weight_kernel, dtype, n, *c);
}
/* MIT licence: see LICENSE. */
