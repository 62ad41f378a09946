/* kernels/speech/spectrum_loops.h - frames, window, FFT, bands and logarithm fused, per block of frames

   A task processes sixteen frames, vectorised across frames (spectrum.inc), from the samples to the
   logarithms, with all data in the cache. For f32; other floats use the composition. */
#ifndef FL_CPU_SPECTRUM_H
#define FL_CPU_SPECTRUM_H
#include "../../fl/speech/spectrum.h"
#include "../cpu/slots.h"
#include "../cpu/gemm/tile.h"
#include "../cpu/scratch.h"
/* Adds the slot of this file to the table. */
FL_PRIVATE void fl__cpu_spectrum_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_SPEECH_SPECTRUM_LOOPS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_SPECTRUM_IMPL
#define FL_CPU_SPECTRUM_IMPL
#include <math.h>
#include <string.h>
FL__LOOPS_BEGIN

enum { FL__GROUP = 16 }; /* frames in a block */

typedef struct fl__spectrum fl__spectrum;
typedef void (*fl__spectrum_fn)(const fl__spectrum *s, const float *x, int64_t frames, float *a, float *b,
                                float *y);
struct fl__spectrum {
    const fl_spectrum_args *a;
    fl__spectrum_fn run;
    const fl__kernels *ks; /* for its transposition */
    const float *x, *window, *bands, *cosine; /* bands [n_bands, width], cosine [n_bands, dims]; or NULL */
    const int64_t *first;
    float *y;
    int64_t samples, hop, win, frames, blocks; /* per line */
    int64_t m, bins, n_bands, width, dims;     /* m: complex numbers per transform */
    bool odd;
    int radix[64], passes;
    float *root, *twiddle; /* [m] exp(-2 pi i k / m), [bins] exp(-2 pi i k / n_fft) */
    int64_t *used;      /* [n_bands]: number of weights without trailing zeros */
    fl__scratch scratch;
};

#define FL__LEVEL_TEXT "../speech/spectrum.inc"
#define FL__UNIT spectrum
#include "../cpu/levels.inc"
FL__LOOPS_END

static const fl__spectrum_fn fl__spectrum_runs[FL__LEVEL_COUNT] = {FL__AT_LEVELS(fl__spectrum_frames_f32)};

static void fl__spectrum_task(void *arg, int64_t begin, int64_t end) {
    const fl__spectrum *s = arg;
    char *buffer = fl__scratch_take(&s->scratch);
    float *a = (float *)(void *)buffer,
          *b = a + fl__spectrum_rows(s->a, s->win, s->n_bands, s->dims) * FL__GROUP;
    const int64_t dims = s->dims + (s->a->energy && !s->a->energy_replaces);
    for (int64_t i = begin; i < end; i++) {
        const int64_t line = i / s->blocks, frame = i % s->blocks * FL__GROUP;
        s->run(s, s->x + line * s->samples + frame * s->hop, fl__min(s->frames - frame, FL__GROUP), a, b,
               s->y + (line * s->frames + frame) * dims);
    }
    fl__scratch_give_back(&s->scratch, buffer);
}

static void fl__spectrum_roots(float *to, int64_t n, int64_t of) {
    for (int64_t k = 0; k < n; k++) {
        const double angle = -6.283185307179586 * (double)k / (double)of;
        to[2 * k] = (float)cos(angle), to[2 * k + 1] = (float)sin(angle);
    }
}

/* Fills the tables, which are in the shared part of the workspace. */
static void fl__spectrum_tables(fl__spectrum *s) {
    s->used = (int64_t *)(void *)s->scratch.shared;
    s->root = (float *)(void *)(s->used + s->n_bands), s->twiddle = s->root + 2 * s->m;
    fl__spectrum_roots(s->root, s->m, s->m);
    fl__spectrum_roots(s->twiddle, s->bins, s->a->n_fft);
    int64_t left = s->m;
    while (left % 4 == 0) s->radix[s->passes++] = 4, left /= 4;
    for (int p = 2; left > 1; p++)
        for (; left % p == 0; left /= p) s->radix[s->passes++] = p;
    for (int64_t k = 0; s->bands && k < s->n_bands; k++) {
        s->used[k] = fl__min(s->width, s->bins - s->first[k]);
        while (s->used[k] && s->bands[k * s->width + s->used[k] - 1] == 0) s->used[k]--;
    }
}

static bool fl__cpu_spectrum(const fl_backend *self, const fl_call *c) {
    (void)self;
    const fl_spectrum_args *a = c->args;
    const fl_tensor *x = c->in[0], *window = c->in[1];
    if (x->dtype != FL_F32) return fl_call_compose(c);
    if (!fl_out_make(c->out[0])) return false;
    fl__spectrum s = {
        .a = a, .run = fl__spectrum_runs[fl__level()], .x = fl_data(x), .window = fl_data(window)};
    s.ks = fl__gemm_kernels(FL_F32);
    s.y = fl_data(c->out[0]);
    s.samples = x->shape[1], s.hop = a->hop, s.win = window->shape[0], s.frames = c->out[0]->shape[1];
    s.odd = a->n_fft % 2, s.m = s.odd ? a->n_fft : a->n_fft / 2, s.bins = a->n_fft / 2 + 1;
    s.dims = s.n_bands = s.bins;
    int next = 2;
    if (a->bands) {
        s.bands = fl_data(c->in[next]), s.width = c->in[next]->shape[1];
        s.dims = s.n_bands = c->in[next++]->shape[0];
        s.first = fl_data(c->in[next++]);
    }
    if (a->cosine) s.cosine = fl_data(c->in[next]), s.dims = c->in[next]->shape[1];
    for (int64_t k = 0; a->bands && k < s.n_bands; k++)
        if (s.first[k] < 0 || s.first[k] >= s.bins)
            return fl_fail("fl_spectrum: first bin %lld of band %lld is out of range, there are %lld bins",
                           (long long)s.first[k], (long long)k, (long long)s.bins);
    s.blocks = fl__ceil_div(s.frames, FL__GROUP);
    const int64_t tasks = s.blocks * x->shape[0];
    if (!tasks) return true;
    const int64_t rows = fl__spectrum_rows(a, s.win, s.n_bands, s.dims);
    if (!fl__scratch_open(&s.scratch, tasks, 2 * rows * FL__GROUP * 4, s.n_bands * 8 + (s.m + s.bins) * 8,
                          "fl_spectrum"))
        return false;
    fl__spectrum_tables(&s);
    fl_parallel(tasks, 2, fl__spectrum_task, &s);
    fl__scratch_close(&s.scratch);
    return true;
}

FL_PRIVATE void fl__cpu_spectrum_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_spectrum, fl__cpu_spectrum, FL_SLOT_CONTIGUOUS);
}

#endif
#endif
/* MIT licence: see LICENSE. */
