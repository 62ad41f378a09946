/* examples/digits.h - MNIST or synthetic handwritten digits, and the network of the Flashlight paper

   digits_load reads MNIST's four idx files; digits_draw draws a synthetic data set from strokes, so that
   examples, tests and benchmarks need no download. Not part of the library. */
#ifndef DIGITS_H
#define DIGITS_H

#include "fl_backend.h"
#include "fl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct digits {
    fl_tensor *image; /* u8 [n, 28, 28] */
    fl_tensor *label; /* i64 [n] */
} digits;

enum { DIGITS_SIDE = 28, DIGITS_PIXELS = DIGITS_SIDE * DIGITS_SIDE };

/* Loads dir/name, or dir/name.gz if only that exists. */
static inline fl_tensor *digits_idx(const char *dir, const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    else snprintf(path, sizeof path, "%s/%s.gz", dir, name);
    return fl_data_load_idx(path);
}

/* Loads the part "train" or "t10k" of the MNIST files in dir. Returns false after fl_fail. */
static inline bool digits_load(const char *dir, const char *part, digits *out) {
    char name[64];
    snprintf(name, sizeof name, "%s-images-idx3-ubyte", part);
    fl_tensor *image = digits_idx(dir, name);
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", part);
    fl_tensor *label = image ? digits_idx(dir, name) : NULL;
    if (!label) return false;
    if (image->dtype != FL_U8 || image->ndim != 3 || image->shape[1] != DIGITS_SIDE ||
        image->shape[2] != DIGITS_SIDE || label->ndim != 1 || label->shape[0] != image->shape[0])
        return fl_fail("digits_load: %s: expected %s files with n images of 28 x 28 and n labels", dir, part);
    *out = (digits){image, fl_cast(label, FL_I64)};
    return out->label != NULL;
}

/* Each digit is up to three strokes of up to 9 points in the unit square (y down); -1 ends a stroke.
   Successive points are joined by a smooth curve (Catmull-Rom). */
#define DIGITS_END {-1, -1}
static const float digits_stroke[10][24][2] = {
    {{.50f, .08f}, {.24f, .22f}, {.16f, .52f}, {.26f, .82f}, {.50f, .92f}, {.74f, .80f}, {.84f, .50f},
     {.76f, .20f}, {.50f, .08f}, DIGITS_END},
    {{.34f, .26f}, {.54f, .08f}, DIGITS_END, {.54f, .08f}, {.53f, .50f}, {.52f, .92f}, DIGITS_END},
    {{.20f, .28f}, {.34f, .10f}, {.62f, .09f}, {.78f, .28f}, {.66f, .52f}, {.20f, .90f}, DIGITS_END,
     {.20f, .90f}, {.50f, .88f}, {.84f, .90f}, DIGITS_END},
    {{.22f, .18f}, {.44f, .08f}, {.72f, .16f}, {.74f, .36f}, {.46f, .48f}, DIGITS_END, {.46f, .48f},
     {.76f, .58f}, {.78f, .80f}, {.50f, .93f}, {.20f, .82f}, DIGITS_END},
    {{.60f, .08f}, {.38f, .36f}, {.18f, .62f}, DIGITS_END, {.18f, .62f}, {.50f, .62f}, {.86f, .60f},
     DIGITS_END, {.64f, .34f}, {.63f, .62f}, {.62f, .94f}, DIGITS_END},
    {{.78f, .09f}, {.54f, .09f}, {.30f, .10f}, DIGITS_END, {.30f, .10f}, {.28f, .28f}, {.26f, .46f},
     DIGITS_END, {.26f, .46f}, {.56f, .40f}, {.78f, .58f}, {.74f, .82f}, {.48f, .93f}, {.20f, .84f},
     DIGITS_END},
    {{.66f, .07f}, {.42f, .24f}, {.26f, .50f}, {.22f, .74f}, {.40f, .93f}, {.68f, .88f}, {.76f, .68f},
     {.58f, .52f}, {.30f, .62f}, DIGITS_END},
    {{.18f, .12f}, {.50f, .11f}, {.82f, .11f}, DIGITS_END, {.82f, .11f}, {.60f, .46f}, {.42f, .93f},
     DIGITS_END},
    {{.50f, .48f}, {.28f, .32f}, {.34f, .11f}, {.64f, .10f}, {.73f, .31f}, {.50f, .48f}, {.24f, .66f},
     {.30f, .90f}, DIGITS_END, {.30f, .90f}, {.52f, .94f}, {.74f, .84f}, {.76f, .66f}, {.50f, .48f},
     DIGITS_END},
    {{.74f, .30f}, {.56f, .09f}, {.30f, .16f}, {.26f, .38f}, {.46f, .50f}, {.70f, .40f}, {.74f, .30f},
     DIGITS_END, {.74f, .30f}, {.72f, .62f}, {.60f, .93f}, DIGITS_END},
};

/* Random parameters of a drawing: u[0..] are uniform in [0, 1). */
typedef struct digits_style {
    float a[2][3]; /* affine map of the unit square into pixels */
    float wobble_x, wobble_y, phase_x, phase_y, bend;
    float width, ink; /* of the pen: radius in pixels; darkness */
} digits_style;

static inline digits_style digits_make_style(const float *u) {
    float angle = (u[0] - .5f) * 1.2f, shear = (u[1] - .5f) * .8f, sx = 11 + 9 * u[2],
          sy = 12 + 9 * u[3];
    digits_style s = {.wobble_x = .09f * u[6],
                      .wobble_y = .09f * u[7],
                      .phase_x = 6.28f * u[8],
                      .phase_y = 6.28f * u[9]};
    float c = cosf(angle), n = sinf(angle), tx = 13.5f + 5 * (u[4] - .5f),
          ty = 13.5f + 5 * (u[5] - .5f);
    s.a[0][0] = c * sx;
    s.a[0][1] = (c * shear - n) * sy;
    s.a[1][0] = n * sx;
    s.a[1][1] = (n * shear + c) * sy;
    s.a[0][2] = tx - .5f * (s.a[0][0] + s.a[0][1]);
    s.a[1][2] = ty - .5f * (s.a[1][0] + s.a[1][1]);
    s.bend = 3 + 2 * u[10];
    s.width = .7f + .9f * u[11];
    s.ink = 150 + 105 * u[12];
    return s;
}

/* Point t in [0, 1] between p[1] and p[2] of a Catmull-Rom curve, bent and mapped into pixels. */
static inline void digits_point(const digits_style *s, const float *p0, const float *p1,
                                const float *p2, const float *p3, float t, float *out) {
    float q[2];
    for (int k = 0; k < 2; k++)
        q[k] = .5f * (2 * p1[k] + t * (p2[k] - p0[k] +
                                       t * (2 * p0[k] - 5 * p1[k] + 4 * p2[k] - p3[k] +
                                            t * (3 * p1[k] - p0[k] - 3 * p2[k] + p3[k]))));
    float x = q[0] + s->wobble_x * sinf(s->bend * q[1] + s->phase_x),
          y = q[1] + s->wobble_y * sinf(s->bend * q[0] + s->phase_y);
    for (int k = 0; k < 2; k++) out[k] = s->a[k][0] * x + s->a[k][1] * y + s->a[k][2];
}

/* Draws a segment: darkens pixels by their distance, with an anti-aliased edge of one pixel. */
static inline void digits_segment(float *ink, const float *p, const float *q, float width) {
    float reach = width + 1, dx = q[0] - p[0], dy = q[1] - p[1], length = dx * dx + dy * dy + 1e-9f;
    for (int y = (int)fmaxf(0, fminf(p[1], q[1]) - reach);
         y < DIGITS_SIDE && (float)y <= fmaxf(p[1], q[1]) + reach; y++)
        for (int x = (int)fmaxf(0, fminf(p[0], q[0]) - reach);
             x < DIGITS_SIDE && (float)x <= fmaxf(p[0], q[0]) + reach; x++) {
            float t = (((float)x - p[0]) * dx + ((float)y - p[1]) * dy) / length;
            t = fminf(1, fmaxf(0, t));
            float ex = (float)x - p[0] - t * dx, ey = (float)y - p[1] - t * dy;
            float d = fminf(1, fmaxf(0, width + .5f - sqrtf(ex * ex + ey * ey)));
            ink[y * DIGITS_SIDE + x] = fmaxf(ink[y * DIGITS_SIDE + x], d);
        }
}

/* Draws a digit's strokes with points moved by `jitter`. Points shared in the table stay shared. */
static inline void digits_strokes(float *ink, int digit, const digits_style *s,
                                  const float *jitter) {
    const float(*point)[2] = digits_stroke[digit];
    float p[24][2];
    for (int i = 0; i < 24; i++) {
        int first = 0;
        while (memcmp(point[first], point[i], sizeof point[i])) first++;
        for (int k = 0; k < 2; k++) p[i][k] = point[i][k] + .045f * jitter[2 * first + k];
    }
    for (int begin = 0, end; begin < 24 && point[begin][0] > 0; begin = end + 1) {
        for (end = begin; point[end][0] >= 0;) end++;
        for (int i = begin; i + 1 < end; i++)
            for (int k = 0; k < 6; k++) {
                const float *p0 = p[i > begin ? i - 1 : i], *p3 = p[i + 2 < end ? i + 2 : i + 1];
                float from[2], to[2];
                digits_point(s, p0, p[i], p[i + 1], p3, (float)k / 6, from);
                digits_point(s, p0, p[i], p[i + 1], p3, (float)(k + 1) / 6, to);
                digits_segment(ink, from, to, s->width);
            }
    }
}

/* Draws n random digits: strokes under a random affine map, bent, with a random pen and noise.
   Deterministic given the seed. Returns false after fl_fail. */
static inline bool digits_draw(int64_t n, uint64_t seed, digits *out) {
    fl_rng rng = {seed, 0};
    fl_tensor *image = fl_empty(FL_SHAPE(n, DIGITS_SIDE, DIGITS_SIDE), FL_U8),
              *label = fl_randint(FL_SHAPE(n), 0, 10, &rng);
    fl_tensor *style = fl_uniform(FL_SHAPE(n, 16), 0, 1, FL_F32, &rng);
    fl_tensor *jitter = fl_normal(FL_SHAPE(n, 48), 0, 1, FL_F32, &rng);
    fl_tensor *noise = fl_normal(FL_SHAPE(n, DIGITS_PIXELS), 0, 30, FL_F32, &rng);
    uint8_t *pixel = fl_map(image, FL_WRITE);
    const int64_t *digit = fl_map(label, FL_READ);
    const float *u = fl_map(style, FL_READ), *j = fl_map(jitter, FL_READ),
                *e = fl_map(noise, FL_READ);
    if (!pixel || !digit || !u || !j || !e) return false;
    for (int64_t i = 0; i < n; i++) {
        float ink[DIGITS_PIXELS] = {0};
        digits_style s = digits_make_style(u + i * 16);
        digits_strokes(ink, (int)digit[i], &s, j + i * 48);
        for (int k = 0; k < DIGITS_PIXELS; k++) {
            float v = ink[k] * s.ink + e[i * DIGITS_PIXELS + k];
            pixel[i * DIGITS_PIXELS + k] = (uint8_t)fminf(255, fmaxf(0, v));
        }
    }
    fl_unmap(image, FL_WRITE);
    fl_unmap(label, FL_READ);
    fl_unmap(style, FL_READ);
    fl_unmap(jitter, FL_READ);
    fl_unmap(noise, FL_READ);
    *out = (digits){image, label};
    return true;
}

/* Normalises pixels u8 [n, 28, 28] to f32 of about zero mean and unit deviation (MNIST's statistics); a
   fl_data_fn. */
static inline bool digits_normalize(fl_data_sample *sample, fl_rng *rng, void *user) {
    (void)rng, (void)user;
    fl_tensor *x = fl_mul(fl_cast(sample->t[0], FL_F32), fl_num(1 / (255 * 0.3081)));
    sample->t[0] = fl_sub(x, fl_num(0.1307 / 0.3081));
    return sample->t[0] != NULL;
}

/* Batches of samples offset .. offset + n - 1: this rank's part of each batch. seed 0: in order; else
   shuffled. Borrows d. */
static inline fl_data_set *digits_shard(digits d, int64_t offset, int64_t n, int64_t batch, uint64_t seed,
                                        int rank, int ranks) {
    if (batch % ranks) {
        fl_fail("digits_shard: batches of %lld are not divisible by %d ranks", (long long)batch, ranks);
        return NULL;
    }
    fl_data_set *set =
        fl_data_slice(fl_data_tensors((fl_tensor *[]){d.image, d.label}, 2), offset, n);
    if (seed) set = fl_data_shuffle(set, seed);
    if (ranks > 1) set = fl_data_shard(set, rank, ranks), batch /= ranks;
    set = fl_data_to(fl_data_batch(set, batch, false), fl_backend_at(fl_backend_default())->name);
    return fl_data_transform(set, digits_normalize, NULL);
}

static inline fl_data_set *digits_batches(digits d, int64_t offset, int64_t n, int64_t batch,
                                          uint64_t seed) {
    return digits_shard(d, offset, n, batch, seed, 0, 1);
}

/* The network of the paper's listing 8. */
static inline fl_nn_module *digits_net_of(double dropout) {
    fl_nn_module *net = fl_nn_sequential(
        fl_nn_view(FL_SHAPE(-1, 1, 28, 28)), fl_nn_conv2d(1, 32, 5, .pad = FL_SAME), fl_nn_relu(),
        fl_nn_pool2d(2), fl_nn_conv2d(32, 64, 5, .pad = FL_SAME), fl_nn_relu(), fl_nn_pool2d(2),
        fl_nn_view(FL_SHAPE(-1, 7 * 7 * 64)), fl_nn_linear(7 * 7 * 64, 1024), fl_nn_relu(),
        fl_nn_dropout(dropout), fl_nn_linear(1024, 10), fl_nn_log_softmax(1));
    fl_nn_pool_before_relu(net);
    return net;
}

static inline fl_nn_module *digits_net(void) {
    return digits_net_of(0.5);
}

#endif
/* MIT licence: see LICENSE. */
