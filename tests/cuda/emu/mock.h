/* tests/cuda/emu/mock.h - what the mock libraries share: how they start work, numbers of any type, one loop
   over any tensors' places

   CUDA's and cuDNN's numbers of types so that one list does for them. */
#ifndef FL_CUDA_EMU_MOCK_H
#define FL_CUDA_EMU_MOCK_H
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOCK __attribute__((visibility("default"))) /* what the program and its tests see */
#define MOCK_DECLARE(result, name, args) MOCK result name args;

/* The program's. */
extern int cuda_emu_device(void) __attribute__((weak));
extern int cuda_emu_captures(void) __attribute__((weak)); /* whether this thread does */
extern int cuda_emu_device_of(const void *p) __attribute__((weak)); /* -1: not on a device */
extern int64_t cuda_emu_waiting_beside(void *stream) __attribute__((weak)); /* work of other streams */
extern int cuda_emu_start(void (*work)(void *), void *arg, void *stream, void (*done)(void *))
    __attribute__((weak));

/* ---- numbers ---- */

__extension__ typedef _Float16 f16;
enum { F32 = 0, F64 = 1, F16 = 2, I8 = 3, I32_OF_DNN = 4, U8 = 8, BF16_OF_DNN = 9, I32 = 10, B8 = 11,
       U32 = 12, BF16 = 14, I64 = 24, U64 = 26 };

typedef union number {
    float f32;
    double f64;
    f16 half;
    int8_t i8;
    int32_t i32;
    int64_t i64;
    uint64_t bits;
} number;

static inline size_t size_of(int type) {
    static const char sizes[] = {[F32] = 4, [F64] = 8, [F16] = 2, [I8] = 1, [I32_OF_DNN] = 4, [U8] = 1,
                                 [BF16_OF_DNN] = 2, [I32] = 4, [B8] = 1, [U32] = 4, [BF16] = 2, [I64] = 8,
                                 [U64] = 8};
    return (size_t)sizes[type];
}

static inline bool is_bf16(int type) { /* the upper half of an f32 */
    return type == BF16 || type == BF16_OF_DNN;
}

/* Exact, of all types. */
static inline long double load(int type, const void *p, int64_t i) {
    number n = {.bits = 0};
    memcpy((char *)&n + 2 * is_bf16(type), (const char *)p + i * (int64_t)size_of(type), size_of(type));
    switch (type) {
    case F64: return n.f64;
    case F16: return (float)n.half;
    case I8: return n.i8;
    case I32: case I32_OF_DNN: return n.i32;
    case I64: return (long double)n.i64;
    case U8: case B8: case U32: case U64: return (long double)n.bits;
    default: return n.f32;
    }
}

/* To the nearest with so many bits of an f32's fraction. */
static inline float rounded(float x, int bits) {
    uint32_t w, half = 1u << (22 - bits);
    if (!isfinite(x)) return x;
    memcpy(&w, &x, 4);
    w = (w + half - 1 + (w >> (23 - bits) & 1)) & ~(2 * half - 1);
    return memcpy(&x, &w, 4), x;
}

static inline void store(int type, void *p, int64_t i, long double v) {
    number n = {.f32 = is_bf16(type) ? rounded((float)v, 7) : (float)v};
    switch (type) {
    case F32: case BF16: case BF16_OF_DNN: break;
    case F64: n.f64 = (double)v; break;
    case F16: n.half = (f16)(float)v; break;
    default: n.bits = v < 0 ? (uint64_t)(int64_t)v : (uint64_t)v;
    }
    memcpy((char *)p + i * (int64_t)size_of(type), (char *)&n + 2 * is_bf16(type), size_of(type));
}

/* ---- tensors ---- */

typedef struct tensor {
    int32_t type;
    int64_t dim[4], stride[4];
    double *v; /* its elements, dense, with zeros around the last two dims, which begin at `first` */
    int64_t n, step[4], first;
} tensor;

/* Makes t's dense array, which the caller frees, with so many zeros before and after the last two dims. Steps
   are 0 where there is one element, which repeats. */
static inline void make_dense(tensor *t, const int64_t before[2], const int64_t after[2]) {
    t->n = 1;
    for (int i = 3; i >= 0; i--) {
        const int64_t dim = t->dim[i] + (i > 1 ? before[i - 2] + after[i - 2] : 0);
        t->step[i] = dim > 1 ? t->n : 0;
        t->n *= dim;
    }
    t->first = before[0] * t->step[2] + before[1] * t->step[3];
    t->v = calloc((size_t)t->n, sizeof *t->v);
}

/* Loads the array from memory, or stores it there. */
static inline void transfer(const tensor *t, void *p, bool stores) {
    int64_t i[4];
    for (i[0] = 0; i[0] < t->dim[0]; i[0]++)
        for (i[1] = 0; i[1] < t->dim[1]; i[1]++)
            for (i[2] = 0; i[2] < t->dim[2]; i[2]++)
                for (i[3] = 0; i[3] < t->dim[3]; i[3]++) {
                    int64_t at = 0, to = t->first;
                    for (int k = 0; k < 4; k++) at += i[k] * t->stride[k], to += i[k] * t->step[k];
                    if (stores) store(t->type, p, at, t->v[to]);
                    else t->v[to] = (double)load(t->type, p, at);
                }
}

/* A dim of the places that an operation visits, and the steps of a, b, c and y along it. */
typedef struct axis {
    int64_t n, step[4];
} axis;
typedef double mixer(int mode, double y, double a, double b, double c);

/* Visits the places of n axes: y = f(mode, y, a, b, c); without f: y + a * b. */
static inline void visit(const axis *x, int n, mixer *f, int mode, const double *a, const double *b,
                         const double *c, double *y) {
    const int64_t *s = x->step;
    for (int64_t i = 0; i < x->n; i++, a += s[0], b += s[1], c += s[2], y += s[3])
        if (n > 1) visit(x + 1, n - 1, f, mode, a, b, c, y);
        else *y = f ? f(mode, *y, *a, *b, *c) : *y + *a * *b;
}

/* ---- attributes ---- */

/* Of something that a library makes: where it is there, in how many bytes. */
typedef struct field {
    unsigned attribute;
    size_t at, bytes;
} field;
#define FIELD(attribute, type, name) {attribute, offsetof(type, name), sizeof(((type *)0)->name)}

/* Sets an attribute, all its bytes or, if `some`, the first ones. False if its number or size is unknown. */
static inline bool set_field(const field *f, size_t n, void *of, unsigned attribute, const void *v,
                             size_t bytes, bool some) {
    while (n && f->attribute != attribute) f++, n--;
    if (!n || bytes > f->bytes || (bytes < f->bytes && !some)) return false;
    return memcpy((char *)of + f->at, v, bytes), true;
}
#endif
/* MIT licence: see LICENSE. */
