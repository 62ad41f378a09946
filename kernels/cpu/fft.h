/* kernels/cpu/fft.h - discrete Fourier transforms of complex numbers (re, im pairs), of any length

   A length with small prime factors goes through Stockham passes, one for each factor (4 2 3 5 7 11 13): a
   pass cuts every sequence into p interleaved ones and leaves the result in order, so nothing is permuted.
   Other lengths become a convolution of a length 2^k (Bluestein). f32 is computed in f64 and rounded. Lines
   run in parallel. */
#ifndef FL_CPU_FFT_H
#define FL_CPU_FFT_H
#include "../../fl/records/fft.h"
#include "slots.h"
/* Registers the slot of this file. */
FL_PRIVATE void fl__cpu_fft_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_FFT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_FFT_IMPL
#define FL_CPU_FFT_IMPL
#include <math.h>
FL__LOOPS_BEGIN

enum { FL__LARGEST_RADIX = 13, FL__FFT_TASKS = 64 };

typedef struct fl__complex {
    double re, im;
} fl__complex;

typedef struct fl__fft {
    const fl_tensor *x;
    fl_tensor *y;
    int64_t n, inner, lines, per_task;
    int64_t m;            /* length of the passes: n, or a power of 2 for Bluestein */
    int radix[64], passes;
    double sign;          /* -1 forward, 1 backward */
    fl__complex *root;    /* [m]: exp(-2 pi i k / m) */
    fl__complex *chirp;   /* [n]: exp(sign pi i k^2 / n); NULL if m is n */
    fl__complex *kernel;  /* [m]: the transform of the chirp's conjugate, over m */
    fl__complex *scratch; /* 2 m per task */
} fl__fft;

static fl__complex fl__fft_product(fl__complex a, fl__complex b) {
    return (fl__complex){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

static fl__complex fl__unit_root(double part) {
    const double angle = 6.283185307179586 * part;
    return (fl__complex){cos(angle), sin(angle)};
}

/* Finds the factors of n; returns false if a prime is larger than the largest radix. */
static bool fl__fft_factors(fl__fft *f, int64_t n) {
    static const int radix[] = {4, 2, 3, 5, 7, 11, FL__LARGEST_RADIX};
    f->passes = 0;
    for (int i = 0; i < 7; i++)
        for (; n % radix[i] == 0; n /= radix[i]) f->radix[f->passes++] = radix[i];
    return n == 1;
}

/* The sum over t of v[t] exp(-2 pi i t b / p), of p numbers with stride `apart`. */
static fl__complex fl__fft_sum(const fl__complex *v, int64_t apart, int p, int b,
                               const fl__complex *root, int64_t step) {
    fl__complex sum = v[0];
    for (int t = 1; t < p; t++) {
        fl__complex w = fl__fft_product(v[t * apart], root[t * b % p * step]);
        sum.re += w.re;
        sum.im += w.im;
    }
    return sum;
}

/* y[q + s (p j + b)] = root(j b s) sum over t of x[q + s (j + t m)] root_p(t b): s interleaved sequences of p
   m numbers become p s of m numbers. */
static void fl__fft_pass(const fl__fft *f, const fl__complex *x, fl__complex *y, int64_t s, int p,
                         int64_t m) {
    for (int64_t j = 0; j < m; j++)
        for (int b = 0; b < p; b++) {
            fl__complex w = f->root[j * b * s];
            for (int64_t q = 0; q < s; q++)
                y[q + s * (p * j + b)] =
                    fl__fft_product(w, fl__fft_sum(x + q + s * j, s * m, p, b, f->root, f->m / p));
        }
}

/* The same for p = 4, whose roots are 1, -i, -1, i. */
static void fl__fft_pass4(const fl__fft *f, const fl__complex *x, fl__complex *y, int64_t s,
                          int64_t m) {
    for (int64_t j = 0; j < m; j++) {
        const fl__complex *w = f->root, w1 = w[j * s], w2 = w[2 * j * s], w3 = w[3 * j * s];
        const fl__complex *from = x + s * j;
        fl__complex *to = y + 4 * s * j;
        for (int64_t q = 0; q < s; q++) {
            fl__complex a = from[q], b = from[q + s * m], c = from[q + 2 * s * m];
            fl__complex d = from[q + 3 * s * m];
            fl__complex ac = {a.re + c.re, a.im + c.im}, a_c = {a.re - c.re, a.im - c.im};
            fl__complex bd = {b.re + d.re, b.im + d.im}, b_d = {b.im - d.im, d.re - b.re};
            to[q] = (fl__complex){ac.re + bd.re, ac.im + bd.im};
            to[q + s] = fl__fft_product(w1, (fl__complex){a_c.re + b_d.re, a_c.im + b_d.im});
            to[q + 2 * s] = fl__fft_product(w2, (fl__complex){ac.re - bd.re, ac.im - bd.im});
            to[q + 3 * s] = fl__fft_product(w3, (fl__complex){a_c.re - b_d.re, a_c.im - b_d.im});
        }
    }
}

/* Transforms the m numbers of a, forward; b has the same size. Returns the one of the two that holds the
   result. */
static fl__complex *fl__fft_passes(const fl__fft *f, fl__complex *a, fl__complex *b) {
    int64_t s = 1, left = f->m;
    for (int i = 0; i < f->passes; i++) {
        int p = f->radix[i];
        left /= p;
        if (p == 4) fl__fft_pass4(f, a, b, s, left);
        else fl__fft_pass(f, a, b, s, p, left);
        s *= p;
        fl__complex *t = a;
        a = b;
        b = t;
    }
    return a;
}

static void fl__conjugate(fl__complex *a, int64_t n) {
    for (int64_t i = 0; i < n; i++) a[i].im = -a[i].im;
}

/* Transforms the n numbers of a, which has space for m; forward, or backward without 1 / n. */
static fl__complex *fl__fft_line(const fl__fft *f, fl__complex *a, fl__complex *b) {
    if (!f->chirp) { /* backward: the conjugate of the conjugate's transform */
        if (f->sign > 0) fl__conjugate(a, f->n);
        fl__complex *y = fl__fft_passes(f, a, b);
        if (f->sign > 0) fl__conjugate(y, f->n);
        return y;
    }
    for (int64_t i = 0; i < f->n; i++) a[i] = fl__fft_product(a[i], f->chirp[i]);
    for (int64_t i = f->n; i < f->m; i++) a[i] = (fl__complex){0, 0};
    fl__complex *y = fl__fft_passes(f, a, b);
    for (int64_t i = 0; i < f->m; i++) y[i] = fl__fft_product(y[i], f->kernel[i]);
    fl__conjugate(y, f->m);
    y = fl__fft_passes(f, y, y == a ? b : a);
    fl__conjugate(y, f->m);
    for (int64_t i = 0; i < f->n; i++) y[i] = fl__fft_product(y[i], f->chirp[i]);
    return y;
}

static void fl__fft_task(void *arg, int64_t begin, int64_t end) {
    const fl__fft *f = arg;
    const bool wide = f->x->dtype == FL_F64;
    const void *x = fl_data(f->x);
    void *y = fl_data(f->y);
    for (int64_t task = begin; task < end; task++) {
        fl__complex *a = f->scratch + task * 2 * f->m;
        int64_t last = fl__min((task + 1) * f->per_task, f->lines);
        for (int64_t line = task * f->per_task; line < last; line++) {
            int64_t first = (line / f->inner * f->n * f->inner + line % f->inner) * 2;
            for (int64_t i = 0, at = first; i < f->n; i++, at += 2 * f->inner)
                a[i] = wide ? (fl__complex){((const double *)x)[at], ((const double *)x)[at + 1]}
                            : (fl__complex){((const float *)x)[at], ((const float *)x)[at + 1]};
            const fl__complex *r = fl__fft_line(f, a, a + f->m);
            for (int64_t i = 0, at = first; i < f->n; i++, at += 2 * f->inner) {
                if (wide) ((double *)y)[at] = r[i].re, ((double *)y)[at + 1] = r[i].im;
                else ((float *)y)[at] = (float)r[i].re, ((float *)y)[at + 1] = (float)r[i].im;
            }
        }
    }
}

/* Computes the roots of unity and the tables of Bluestein's algorithm: jk = (j^2 + k^2 - (k - j)^2) / 2. */
static void fl__fft_tables(fl__fft *f) {
    for (int64_t k = 0; k < f->m; k++) {
        int64_t near = 2 * k > f->m ? k - f->m : k; /* small angles */
        f->root[k] = fl__unit_root(-(double)near / (double)f->m);
    }
    if (!f->chirp) return;
    for (int64_t k = 0; k < f->n; k++)
        f->chirp[k] = fl__unit_root(f->sign * (double)(k * k % (2 * f->n)) / (double)(2 * f->n));
    fl__complex *a = f->scratch;
    for (int64_t k = 0; k < f->m; k++) a[k] = (fl__complex){0, 0};
    for (int64_t k = 0; k < f->n; k++) {
        fl__complex c = {f->chirp[k].re / (double)f->m, -f->chirp[k].im / (double)f->m};
        a[k] = c;
        if (k) a[f->m - k] = c;
    }
    const fl__complex *kernel = fl__fft_passes(f, a, a + f->m);
    for (int64_t k = 0; k < f->m; k++) f->kernel[k] = kernel[k];
}

static bool fl__cpu_fft(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_fft_args *a = c->args;
    fl__fft f = {.x = c->in[0], .y = c->out[0], .inner = 1, .sign = a->inverse ? 1 : -1};
    if (f.x->dtype != FL_F32 && f.x->dtype != FL_F64) return fl__no_kernel(c, f.x->dtype);
    if (!fl_out_make(f.y)) return false;
    if (fl_numel(f.x) == 0) return true;
    f.n = f.m = f.x->shape[a->axis];
    for (int d = a->axis + 1; d < f.x->ndim - 1; d++) f.inner *= f.x->shape[d];
    f.lines = fl_numel(f.x) / (2 * f.n);
    bool direct = fl__fft_factors(&f, f.n);
    if (f.n > (int64_t)1 << 31)
        return fl_fail("fl_fft: length %lld is too large, at most 2^31", (long long)f.n);
    if (!direct) {
        for (f.m = 1; f.m < 2 * f.n;) f.m *= 2;
        fl__fft_factors(&f, f.m);
    }
    int64_t tasks = fl__min(f.lines, FL__FFT_TASKS);
    f.per_task = fl__ceil_div(f.lines, tasks);
    int64_t tables = f.m + (direct ? 0 : f.n + f.m);
    f.root = fl_heap_alloc((size_t)(tables + tasks * 2 * f.m) * sizeof *f.root);
    if (!f.root) return fl_fail("fl_fft: out of memory for %lld elements", (long long)f.m);
    f.chirp = direct ? NULL : f.root + f.m;
    f.kernel = direct ? NULL : f.chirp + f.n;
    f.scratch = f.root + tables;
    fl__fft_tables(&f);
    fl_parallel(tasks, fl__ceil_div(FL__GRAIN, f.per_task * f.m * 8), fl__fft_task, &f);
    fl_heap_free(f.root);
    return true;
}

FL_PRIVATE void fl__cpu_fft_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_fft, fl__cpu_fft, FL_SLOT_CONTIGUOUS);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
