/* mel_loop.c - log-mel features as whoever has FFTW would write them: frame by frame, its plan measured */
#include "mel_loop.h"
#ifndef FL_USE_FFTW
int64_t mel_loop_run(const mel_loop *m, const float *x, int64_t samples, float *y) {
    return (void)m, (void)x, (void)samples, (void)y, 0;
}
#else
#include <fftw3.h>
#include <math.h>

enum { MOST_BANDS = 256 };
static struct {
    int n, begin[MOST_BANDS], end[MOST_BANDS];
    float *in, *power;
    fftwf_complex *out;
    fftwf_plan plan;
} made;

static void make(const mel_loop *m) {
    const int bins = m->n_fft / 2 + 1;
    made.n = m->n_fft;
    made.in = fftwf_alloc_real((size_t)m->n_fft), made.out = fftwf_alloc_complex((size_t)bins);
    made.power = fftwf_alloc_real((size_t)bins);
    made.plan = fftwf_plan_dft_r2c_1d(m->n_fft, made.in, made.out, FFTW_PATIENT);
    for (int b = 0; b < m->bands && b < MOST_BANDS; b++) {
        const float *w = m->weight + b * bins;
        for (made.begin[b] = 0; made.begin[b] < bins && w[made.begin[b]] == 0;) made.begin[b]++;
        for (made.end[b] = bins; made.end[b] > made.begin[b] && w[made.end[b] - 1] == 0;) made.end[b]--;
    }
}

int64_t mel_loop_run(const mel_loop *m, const float *x, int64_t samples, float *y) {
    const int bins = m->n_fft / 2 + 1;
    int64_t frames = 0;
    if (made.n != m->n_fft) make(m);
    for (; frames * m->hop + m->n_fft <= samples; frames++, y += m->bands) {
        for (int i = 0; i < m->n_fft; i++) made.in[i] = x[frames * m->hop + i] * m->window[i];
        fftwf_execute(made.plan);
        for (int k = 0; k < bins; k++)
            made.power[k] = made.out[k][0] * made.out[k][0] + made.out[k][1] * made.out[k][1];
        for (int b = 0; b < m->bands; b++) {
            float sum = 0;
            for (int k = made.begin[b]; k < made.end[b]; k++) sum += m->weight[b * bins + k] * made.power[k];
            y[b] = sum > 1e-10f ? sum : 1e-10f;
        }
        for (int b = 0; b < m->bands; b++) y[b] = logf(y[b]);
    }
    return frames;
}
#endif
/* MIT licence: see LICENSE. */
