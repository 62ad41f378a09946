/* kernels/cuda/pass.h - element-wise operands, and where their elements are; what a step over tensors is

   Also part of the text of kernels that are compiled while a program runs, as pass_text.inc. */
#ifndef FLK_PASS_H
#define FLK_PASS_H

enum { FLK_DIMS = 8, FLK_OPERANDS = 6, FLK_PROGRAM_OPERANDS = 12, FLK_PROGRAM_NUMBERS = 16, FLK_BLOCK = 256 };

/* Numbered as fl_dtype: backend.h checks it. */
enum {
    FLK_B8 = 1,
    FLK_U8,
    FLK_I8,
    FLK_I16,
    FLK_I32,
    FLK_I64,
    FLK_U16,
    FLK_U32,
    FLK_U64,
    FLK_F16,
    FLK_BF16,
    FLK_F32,
    FLK_F64
};

typedef struct flk_operand {
    void *p; /* NULL: a number, the same for all elements */
    int dtype;
    double f;
    int64_t i;
    int64_t stride[FLK_DIMS];
} flk_operand;

/* Operands of one shape, outputs first. Dims are outermost first; dims that are contiguous for all operands
   are merged. */
typedef struct flk_pass {
    int64_t n; /* elements */
    int ndim, op; /* fl_op, for errors and formulas */
    int each;        /* set by vectorised kernels: elements per vector, and number of vectors */
    int64_t vectors;
    int64_t shape[FLK_DIMS];
    flk_operand t[FLK_OPERANDS];
} flk_pass;

/* The same for a compiled program (nvrtc.h), with its numbers. Its kernel knows the dtypes. */
typedef struct flk_program {
    int64_t n;
    int ndim;
    int64_t shape[FLK_DIMS];
    flk_operand t[FLK_PROGRAM_OPERANDS];
    double number[FLK_PROGRAM_NUMBERS];
} flk_program;

enum { FLK_STEP_CELLS = 100, FLK_MANY = 192, FLK_STEP_RUNS = 8 };
/* What the kernel of an optimizer step's rule reads beside the tensors. The cells of a block are first the
   scalars of weak or 1-d tensors, then the constants, then what the rule computes from these. Tensors are
   reads, writes and, with narrow, an additional narrow copy of the first write. skips: scalar 0 may skip the
   step. */
typedef struct flk_step_rule {
    int n_reads, n_writes, narrow, skips, n_numbers, n_constants;
    int dtype[8], number_dtype[6], numbers[6], number_step[6];
    double weak[6], constant[16];
} flk_step_rule;
typedef struct flk_step_entry {
    int64_t n;
    void *p[8];
    const void *number[6];
} flk_step_entry;
typedef struct flk_step_list {
    int n, first[FLK_MANY]; /* first: workspace of flk_step */
    flk_step_entry entry[FLK_MANY];
} flk_step_list;

#if defined(__CUDACC__) || defined(FL_CUDA_EMU)
static __device__ __forceinline__ int64_t flk_thread(void) {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* Divides n: returns the quotient, *n becomes the remainder; in 32 bits if possible, much faster. */
static __device__ __forceinline__ int64_t flk_divide(int64_t *n, int64_t by) {
    int64_t q;
    if ((uint64_t)*n >> 32 || (uint64_t)by >> 32) q = *n / by;
    else q = (int64_t)((uint32_t)*n / (uint32_t)by);
    *n -= q * by;
    return q;
}

/* Offsets of element i in the N operands, in elements. */
template <int N, class P>
static __device__ __forceinline__ void flk_place(const P &p, int64_t i, int64_t *at) {
#pragma unroll
    for (int k = 0; k < N; k++) at[k] = 0;
#pragma unroll 1 /* usually there is one dim */
    for (int d = p.ndim - 1; d >= 0; d--) {
        const int64_t rest = d ? flk_divide(&i, p.shape[d]) : 0;
#pragma unroll
        for (int k = 0; k < N; k++) at[k] += i * p.t[k].stride[d];
        i = rest;
    }
}

static __device__ __forceinline__ void flk_number(const flk_operand &t, float *v) { *v = (float)t.f; }
static __device__ __forceinline__ void flk_number(const flk_operand &t, double *v) { *v = t.f; }
static __device__ __forceinline__ void flk_number(const flk_operand &t, int64_t *v) { *v = t.i; }
static __device__ __forceinline__ void flk_number(const flk_operand &t, uint8_t *v) { *v = t.i != 0; }

/* The offsets of this thread's element of a program; false if it has none. */
template <int N> static __device__ __forceinline__ bool flk_program_place(const flk_program &p, int64_t *at) {
    const int64_t i = flk_thread();
    if (i < p.n) flk_place<N>(p, i, at);
    return i < p.n;
}
template <class T> static __device__ __forceinline__ T flk_program_read(const flk_operand &t, int64_t at) {
    T v;
    if (t.p) return ((const T *)t.p)[at];
    flk_number(t, &v);
    return v;
}
#endif
#endif
/* MIT licence: see LICENSE. */
