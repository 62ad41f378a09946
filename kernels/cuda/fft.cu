/* kernels/cuda/fft.cu - FFT of complex numbers as pairs, of any length

   As kernels/cpu/fft.h: Stockham passes of small prime radices, other lengths by Bluestein's algorithm, in
   f64. A block has a line, in shared memory if it fits. Each call computes the roots again. */
#include "common.cuh"

enum { FLK_FFT_SHARED = 1024, FLK_FFT_BLOCKS = 256 /* for lines in device memory */ };

struct flk_complex {
    double re, im;
};
static __device__ __forceinline__ flk_complex flk_times(flk_complex a, flk_complex b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
static __device__ __forceinline__ flk_complex flk_plus(flk_complex a, flk_complex b) {
    return {a.re + b.re, a.im + b.im};
}
static __device__ __forceinline__ flk_complex flk_minus(flk_complex a, flk_complex b) {
    return {a.re - b.re, a.im - b.im};
}
static __device__ __forceinline__ flk_complex flk_conjugate(flk_complex a) { return {a.re, -a.im}; }
static __device__ __forceinline__ flk_complex flk_turned(double part) {
    return {cos(6.283185307179586 * part), sin(6.283185307179586 * part)};
}

/* Layout of work: root [m]; chirp [n] and kernel [m] if m differs from n; then two lines of m per block. */
static __host__ __device__ __forceinline__ flk_complex *flk_fft_root(const flk_fft &f) {
    return (flk_complex *)f.work;
}
static __host__ __device__ __forceinline__ flk_complex *flk_fft_chirp(const flk_fft &f) {
    return f.m == f.n ? NULL : flk_fft_root(f) + f.m;
}
static __host__ __device__ __forceinline__ flk_complex *flk_fft_lines(const flk_fft &f) {
    return flk_fft_root(f) + (f.m == f.n ? f.m : 2 * f.m + f.n);
}

/* y[q + s (p j + b)] = root(j b s) sum over t of x[q + s (j + t left)] root_p(t b). */
static __device__ void flk_fft_pass(const flk_fft &f, const flk_complex *x, flk_complex *y, int64_t s, int p,
                                    int64_t left) {
    const flk_complex *root = flk_fft_root(f);
    for (int64_t at = threadIdx.x; at < f.m; at += FLK_BLOCK) {
        int64_t q = at;
        const int64_t pj = flk_divide(&q, s), j = pj / p, b = pj % p;
        flk_complex sum = x[q + s * j];
        for (int t = 1; t < p; t++)
            sum = flk_plus(sum, flk_times(x[q + s * (j + t * left)], root[t * b % p * (f.m / p)]));
        y[at] = flk_times(root[j * b * s], sum);
    }
}

/* The same for p = 4, with roots 1, -i, -1, i. */
static __device__ void flk_fft_pass4(const flk_fft &f, const flk_complex *x, flk_complex *y, int64_t s,
                                     int64_t left) {
    const flk_complex *root = flk_fft_root(f);
    for (int64_t i = threadIdx.x; i < f.m / 4; i += FLK_BLOCK) {
        int64_t q = i;
        const int64_t j = flk_divide(&q, s);
        const flk_complex a = x[i], b = x[i + s * left], c = x[i + 2 * s * left], d = x[i + 3 * s * left];
        const flk_complex ac = flk_plus(a, c), a_c = flk_minus(a, c), bd = flk_plus(b, d);
        const flk_complex b_d = {b.im - d.im, d.re - b.re};
        flk_complex *to = y + q + 4 * s * j;
        to[0] = flk_plus(ac, bd);
        to[s] = flk_times(root[j * s], flk_plus(a_c, b_d));
        to[2 * s] = flk_times(root[2 * j * s], flk_minus(ac, bd));
        to[3 * s] = flk_times(root[3 * j * s], flk_minus(a_c, b_d));
    }
}

/* Transforms a, m numbers, with buffer b. Returns the one that has the result. */
static __device__ flk_complex *flk_fft_passes(const flk_fft &f, flk_complex *a, flk_complex *b) {
    int64_t s = 1, left = f.m;
    for (int i = 0; i < f.passes; i++) {
        const int p = f.radix[i];
        left /= p;
        __syncthreads();
        if (p == 4) flk_fft_pass4(f, a, b, s, left);
        else flk_fft_pass(f, a, b, s, p, left);
        s *= p;
        flk_complex *t = a;
        a = b;
        b = t;
    }
    __syncthreads();
    return a;
}

__global__ void flk_fft_roots_kernel(flk_fft f) {
    const int64_t k = flk_thread(), near = 2 * k > f.m ? k - f.m : k; /* small angles are more accurate */
    if (k >= f.m) return;
    flk_fft_root(f)[k] = flk_turned(-(double)near / (double)f.m);
    if (f.m != f.n && k < f.n)
        flk_fft_chirp(f)[k] =
            flk_turned((f.inverse ? 1. : -1.) * (double)(k * k % (2 * f.n)) / (double)(2 * f.n));
}

/* The transform of the conjugate chirp: jk = (j^2 + k^2 - (k - j)^2) / 2. */
__global__ void flk_fft_chirp_kernel(flk_fft f) {
    flk_complex *a = flk_fft_lines(f), *chirp = flk_fft_chirp(f);
    for (int64_t k = threadIdx.x; k < f.m; k += FLK_BLOCK) {
        const int64_t from = k < f.n ? k : f.m - k;
        const flk_complex c = from < f.n ? flk_conjugate(chirp[from]) : flk_complex{0, 0};
        a[k] = {c.re / (double)f.m, c.im / (double)f.m};
    }
    const flk_complex *y = flk_fft_passes(f, a, a + f.m);
    for (int64_t k = threadIdx.x; k < f.m; k += FLK_BLOCK) chirp[f.n + k] = y[k];
}

template <class T> __global__ void flk_fft_kernel(flk_fft f) {
    __shared__ flk_complex room[2 * FLK_FFT_SHARED];
    flk_complex *a = f.m <= FLK_FFT_SHARED ? room : flk_fft_lines(f) + blockIdx.x * 2 * f.m, *b = a + f.m;
    const flk_complex *chirp = flk_fft_chirp(f);
    const bool turns = f.inverse && !chirp; /* inverse: conjugate of the transform of the conjugate */
    for (int64_t line = blockIdx.x; line < f.lines; line += gridDim.x) {
        int64_t inside = line;
        const int64_t first = flk_divide(&inside, f.inner) * f.n * f.inner + inside;
        for (int64_t i = threadIdx.x; i < f.m; i += FLK_BLOCK) {
            flk_complex v = {0, 0};
            const T *x = (const T *)f.x + 2 * (first + i * f.inner);
            if (i < f.n) v = {(double)x[0], turns ? -(double)x[1] : (double)x[1]};
            a[i] = chirp && i < f.n ? flk_times(v, chirp[i]) : v;
        }
        flk_complex *r = flk_fft_passes(f, a, b);
        if (chirp) {
            for (int64_t i = threadIdx.x; i < f.m; i += FLK_BLOCK)
                r[i] = flk_conjugate(flk_times(r[i], chirp[f.n + i]));
            r = flk_fft_passes(f, r, r == a ? b : a);
        }
        for (int64_t i = threadIdx.x; i < f.n; i += FLK_BLOCK) {
            flk_complex v = turns || chirp ? flk_conjugate(r[i]) : r[i];
            if (chirp) v = flk_times(v, chirp[i]);
            T *y = (T *)f.y + 2 * (first + i * f.inner);
            y[0] = (T)v.re;
            y[1] = (T)v.im;
        }
        __syncthreads();
    }
}

static bool flk_fft_factors(flk_fft *f, int64_t n) {
    static const int radix[] = {4, 2, 3, 5, 7, 11, 13};
    f->passes = 0;
    for (int i = 0; i < 7; i++)
        for (; n % radix[i] == 0; n /= radix[i]) f->radix[f->passes++] = (uint8_t)radix[i];
    return n == 1;
}

size_t flk_fft_plan(flk_fft *f) {
    f->m = f->n;
    if (!flk_fft_factors(f, f->n)) {
        for (f->m = 1; f->m < 2 * f->n;) f->m *= 2;
        flk_fft_factors(f, f->m);
    }
    f->blocks = f->lines;
    if (f->m > FLK_FFT_SHARED && f->lines > FLK_FFT_BLOCKS) f->blocks = FLK_FFT_BLOCKS;
    const int64_t lines = f->m > FLK_FFT_SHARED ? f->blocks : f->m != f->n;
    return (size_t)((f->m == f->n ? f->m : 2 * f->m + f->n) + lines * 2 * f->m) * sizeof(flk_complex);
}

const char *flk_fft_run(const flk_fft *f, int dtype) {
    const char *why = FLK_LAUNCH(flk_fft_roots_kernel, flk_blocks(f->m), FLK_BLOCK, *f);
    if (!why && f->m != f->n) why = FLK_LAUNCH(flk_fft_chirp_kernel, 1, FLK_BLOCK, *f);
    return why ? why : FLK_BY_FLOAT(flk_fft_kernel, dtype, f->blocks, *f);
}
/* MIT licence: see LICENSE. */
