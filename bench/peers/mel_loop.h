/* mel_loop.h - log-mel features as a plain loop over FFTW's transforms, for bench/speech.c */
#ifndef MEL_LOOP_H
#define MEL_LOOP_H
#include <stdint.h>

typedef struct mel_loop {
    int n_fft, hop, bands;
    const float *window, *weight; /* [n_fft], [bands][n_fft / 2 + 1] */
} mel_loop;
/* Frames [bands] of x, ln of bands of |DFT|^2, into y; how many, 0 where FFTW is absent. */
int64_t mel_loop_run(const mel_loop *m, const float *x, int64_t samples, float *y);

#endif
/* MIT licence: see LICENSE. */
