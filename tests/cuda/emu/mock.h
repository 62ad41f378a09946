/* tests/cuda/emu/mock.h - what the mock libraries share: how they start work, and numbers of any type

   cuBLASLt's and cuDNN's count types so that one list does for them. Loops that are long go over dense copies. */
#ifndef FL_CUDA_EMU_MOCK_H
#define FL_CUDA_EMU_MOCK_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOCK __attribute__((visibility("default"))) /* what the program and its tests see */

/* The program's. */
extern int cuda_emu_device(void) __attribute__((weak));
extern int cuda_emu_captures(void) __attribute__((weak)); /* whether this thread does */
extern int cuda_emu_device_of(const void *p) __attribute__((weak)); /* -1: not on a device */
extern int64_t cuda_emu_waiting_beside(void *stream) __attribute__((weak)); /* pieces of work of other streams */
extern int cuda_emu_start(void (*work)(void *), void *arg, void *stream, void (*done)(void *))
    __attribute__((weak));

/* For loops that are worth it. */
#ifdef __x86_64__
#define FAST __attribute__((optimize("O3"), target_clones("fma", "default")))
#else
#define FAST
#endif

__extension__ typedef _Float16 f16;
enum { F32 = 0, F64 = 1, F16 = 2, I32 = 4, BF16_OF_DNN = 9, B8 = 11, BF16_OF_LT = 14 };

static size_t size_of(int type) {
    return type == F64 ? 8 : type == F32 || type == I32 ? 4 : type == B8 ? 1 : 2;
}

static double load(int type, const void *p, int64_t i) {
    const char *at = (const char *)p + i * (int64_t)size_of(type);
    double d;
    float f;
    f16 h;
    int32_t n;
    uint16_t half;
    switch (type) {
    case F32: return memcpy(&f, at, 4), (double)f;
    case F64: return memcpy(&d, at, 8), d;
    case F16: return memcpy(&h, at, 2), (double)h;
    case I32: return memcpy(&n, at, 4), (double)n;
    case B8: return *(const unsigned char *)at;
    default: memcpy(&half, at, 2), n = (int32_t)((uint32_t)half << 16);
    }
    return memcpy(&f, &n, 4), (double)f;
}

/* To the nearest with so many bits of an f32's fraction. */
static float rounded(float x, int bits) {
    uint32_t w, half = 1u << (22 - bits);
    if (!isfinite(x)) return x;
    memcpy(&w, &x, 4);
    w = (w + half - 1 + (w >> (23 - bits) & 1)) & ~(2 * half - 1);
    return memcpy(&x, &w, 4), x;
}

static void store(int type, void *p, int64_t i, double v) {
    char *at = (char *)p + i * (int64_t)size_of(type);
    const float f = (float)v, b = rounded(f, 7);
    const f16 h = (f16)f;
    const int32_t n = type == I32 ? (int32_t)v : 0;
    switch (type) {
    case F32: memcpy(at, &f, 4); return;
    case F64: memcpy(at, &v, 8); return;
    case F16: memcpy(at, &h, 2); return;
    case I32: memcpy(at, &n, 4); return;
    case B8: *at = v != 0; return;
    default: memcpy(at, (const char *)&b + 2, 2); /* the upper half */
    }
}
#endif
/* MIT licence: see LICENSE. */
