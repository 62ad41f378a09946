/* transforms.h - what is done to images on their way to a network, and the batches that they end in

   A transform is a step: a function with its numbers. A list of them is applied to an item, an image with
   what belongs to it, which all change together. Random numbers are a function of (seed, epoch, who the
   sample is). Names, defaults and meaning are torchvision's (transforms.v2, on tensors of u8).

    fl_vision_step steps[] = {fl_vision_random_crop(32, 4), fl_vision_random_horizontal_flip(0.5)};
    set = fl_vision_batch(set, 64, .steps = steps, .n_steps = 2, .mean = FL_VISION_CIFAR_MEAN,
                          .std = FL_VISION_CIFAR_STD, .seed = 1); */
#ifndef FL_VISION_TRANSFORMS_H
#define FL_VISION_TRANSFORMS_H
#include "images.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An image and what belongs to it; all but the image may be NULL. Values of the innermost scope. */
typedef struct fl_vision_item {
    fl_tensor *image;  /* u8 [c, h, w] */
    fl_tensor *boxes;  /* f32 [n, 4]: x0, y0, x1, y1 in pixels */
    fl_tensor *labels; /* i64 [n], of the boxes */
    fl_tensor *masks;  /* u8 [n, h, w]: 1 where the object is */
    fl_tensor *area;   /* f32 [n], of the objects in pixels */
} fl_vision_item;

typedef struct fl_vision_step fl_vision_step;
/* Replaces fields of the item by tensors of the innermost scope; false after fl_fail. Called from several
   threads. */
typedef bool (*fl_vision_step_fn)(const fl_vision_step *s, fl_vision_item *item, fl_rng *rng);
enum { FL_VISION_NUMBERS = 8 };
struct fl_vision_step {
    const char *name; /* for messages; a literal */
    fl_vision_step_fn apply;
    double p;         /* with this probability, else nothing happens */
    double a[FL_VISION_NUMBERS];
    int64_t n[FL_VISION_NUMBERS];
    const fl_vision_step *inner; /* borrowed: of steps that choose among others */
    int n_inner;
};
/* Applies n steps, one after the other. */
FL_API bool fl_vision_apply(const fl_vision_step *steps, int n, fl_vision_item *item, fl_rng *rng);

/* A part of h x w at a uniform place of the image with `pad` zeros around it, and more if it is too small. */
FL_API fl_vision_step fl_vision_random_crop(int64_t size, int64_t pad);
FL_API fl_vision_step fl_vision_random_horizontal_flip(double p);
FL_API fl_vision_step fl_vision_random_vertical_flip(double p);
/* A square of that side around a uniform pixel, as far as it is in the image, becomes `value` (arXiv
   1708.04552). */
FL_API fl_vision_step fl_vision_cutout(int64_t side, double value);

#define FL_VISION_IMAGENET_MEAN {0.485, 0.456, 0.406}
#define FL_VISION_IMAGENET_STD {0.229, 0.224, 0.225}
#define FL_VISION_CIFAR_MEAN {0.4914, 0.4822, 0.4465}
#define FL_VISION_CIFAR_STD {0.2470, 0.2435, 0.2616}

typedef struct fl_vision_batch_opts {
    fl_named _positional;
    const fl_vision_step *steps; /* n_steps of them, copied (what they point to is not) */
    int n_steps;
    uint64_t seed;       /* of the steps' random numbers */
    bool drop_last;      /* leaves out a shorter last batch */
    bool u8;             /* the pixels as they are; else f32 (x / 255 - mean) / std */
    double mean[4], std[4]; /* of each channel; std 0 -> 1 */
    char _end;
} fl_vision_batch_opts;
/* Batches of `size` samples of a set that gives an image, u8 [c, h, w] or encoded, u8 [bytes], and perhaps
   more fields: [n, c, h, w], stored n, h, w, c, so that a channels-last network converts nothing; the other
   fields are stacked. All images of a batch have one size after the steps. Decoding and all else runs in the
   threads of fl_data_prefetch above it. */
#define fl_vision_batch(...) FL__VISION_BATCH(__VA_ARGS__, ._end = 0)
#define FL__VISION_BATCH(set, size, ...) fl_vision_batch_opt(set, size, (fl_vision_batch_opts){__VA_ARGS__})
FL_API fl_data_set *fl_vision_batch_opt(fl_data_set *set, int64_t size, fl_vision_batch_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_VISION_TRANSFORMS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_VISION_TRANSFORMS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_TRANSFORMS_IMPL
#define FL_VISION_TRANSFORMS_IMPL
#include "../ops/copy.h"
#include "../ops/random.h"
#include "../ops/view.h"
#include <math.h>
#include <string.h>

/* ---- lists of steps ---- */

FL_API bool fl_vision_apply(const fl_vision_step *steps, int n, fl_vision_item *item, fl_rng *rng) {
    if (!item || !item->image || (n && !steps))
        return fl_fail("fl_vision_apply: item, image or steps is NULL");
    for (int i = 0; i < n; i++) {
        if (!steps[i].apply) return fl_fail("fl_vision_apply: step %d has no function", i);
        if (steps[i].p < 1 && !(fl_rng_uniform(rng) < steps[i].p)) continue;
        if (!steps[i].apply(&steps[i], item, rng)) return fl_fail("fl_vision_apply: step %d failed", i);
    }
    return true;
}

/* A whole number in [low, high]. */
static int64_t fl__vision_between(fl_rng *rng, int64_t low, int64_t high) {
    return low + (int64_t)(fl_rng_uniform(rng) * (double)(high - low + 1));
}

/* ---- crops and flips ---- */

/* The pixels at (y, x) to (y + h, x + w), zeros where the image has none. */
static bool fl__vision_crop(fl_vision_item *item, int64_t y, int64_t x, int64_t h, int64_t w) {
    fl_vision_pixels from, to;
    if (!fl_vision_pixels_of(&item->image, &from)) return false;
    fl_tensor *t = fl_vision_image(from.c, h, w, &to);
    if (!t) return false;
    const int64_t x0 = x > 0 ? x : 0, x1 = x + w < from.w ? x + w : from.w;
    for (int64_t i = 0; i < h; i++) {
        unsigned char *row = to.p + i * to.row;
        if (y + i < 0 || y + i >= from.h || x0 >= x1) {
            memset(row, 0, (size_t)to.row);
            continue;
        }
        memset(row, 0, (size_t)((x0 - x) * from.c));
        memcpy(row + (x0 - x) * from.c, from.p + (y + i) * from.row + x0 * from.c,
               (size_t)((x1 - x0) * from.c));
        memset(row + (x1 - x) * from.c, 0, (size_t)((x + w - x1) * from.c));
    }
    item->image = t;
    return true;
}

static bool fl__vision_random_crop(const fl_vision_step *s, fl_vision_item *item, fl_rng *rng) {
    const int64_t size = s->n[0], pad = s->n[1];
    const int64_t h = item->image->shape[1] + 2 * pad, w = item->image->shape[2] + 2 * pad;
    const int64_t more_h = size > h ? size - h : 0, more_w = size > w ? size - w : 0;
    const int64_t y = fl__vision_between(rng, 0, h + 2 * more_h - size),
                  x = fl__vision_between(rng, 0, w + 2 * more_w - size);
    return fl__vision_crop(item, y - pad - more_h, x - pad - more_w, size, size);
}

FL_API fl_vision_step fl_vision_random_crop(int64_t size, int64_t pad) {
    return (fl_vision_step){.name = "random_crop", .apply = fl__vision_random_crop, .p = 1, .n = {size, pad}};
}

static bool fl__vision_flip(const fl_vision_step *s, fl_vision_item *item, fl_rng *rng) {
    (void)rng;
    const bool rows = s->n[0];
    fl_vision_pixels from, to;
    if (!fl_vision_pixels_of(&item->image, &from)) return false;
    fl_tensor *t = fl_vision_image(from.c, from.h, from.w, &to);
    if (!t) return false;
    for (int64_t y = 0; y < to.h; y++) {
        const unsigned char *p = from.p + (rows ? from.h - 1 - y : y) * from.row;
        unsigned char *q = to.p + y * to.row;
        if (rows) memcpy(q, p, (size_t)to.row);
        else if (to.c == 3)
            for (int64_t x = 0, u = 3 * (to.w - 1); u >= 0; x += 3, u -= 3)
                q[x] = p[u], q[x + 1] = p[u + 1], q[x + 2] = p[u + 2];
        else
            for (int64_t x = 0; x < to.w; x++)
                for (int64_t k = 0; k < to.c; k++) q[x * to.c + k] = p[(to.w - 1 - x) * to.c + k];
    }
    item->image = t;
    return true;
}

FL_API fl_vision_step fl_vision_random_horizontal_flip(double p) {
    return (fl_vision_step){.name = "random_horizontal_flip", .apply = fl__vision_flip, .p = p};
}

FL_API fl_vision_step fl_vision_random_vertical_flip(double p) {
    return (fl_vision_step){.name = "random_vertical_flip", .apply = fl__vision_flip, .p = p, .n = {1}};
}

/* A copy of the image that may be written. */
static bool fl__vision_own(fl_vision_item *item, fl_vision_pixels *out) {
    return fl__vision_crop(item, 0, 0, item->image->shape[1], item->image->shape[2]) &&
           fl_vision_pixels_of(&item->image, out);
}

static void fl__vision_fill(const fl_vision_pixels *x, int64_t y0, int64_t x0, int64_t h, int64_t w,
                            int value) {
    for (int64_t y = y0 > 0 ? y0 : 0; y < y0 + h && y < x->h; y++) {
        const int64_t from = x0 > 0 ? x0 : 0, to = x0 + w < x->w ? x0 + w : x->w;
        if (from < to) memset(x->p + y * x->row + from * x->c, value, (size_t)((to - from) * x->c));
    }
}

static bool fl__vision_cutout(const fl_vision_step *s, fl_vision_item *item, fl_rng *rng) {
    fl_vision_pixels x;
    if (!fl__vision_own(item, &x)) return false;
    const int64_t side = s->n[0], cy = fl__vision_between(rng, 0, x.h - 1),
                  cx = fl__vision_between(rng, 0, x.w - 1);
    fl__vision_fill(&x, cy - side / 2, cx - side / 2, side, side, (int)s->a[0]);
    return true;
}

FL_API fl_vision_step fl_vision_cutout(int64_t side, double value) {
    return (fl_vision_step){.name = "cutout", .apply = fl__vision_cutout, .p = 1, .n = {side}, .a = {value}};
}

/* ---- batches ---- */

typedef struct fl__vision_batches {
    fl_vision_batch_opts o; /* steps is a copy */
    int64_t size, epoch;
    float table[4][256];    /* what each value of a channel becomes */
} fl__vision_batches;

static void fl__vision_batch_close(fl_data_set *self) {
    fl__vision_batches *b = self->user;
    if (b) fl_heap_free((void *)(uintptr_t)b->o.steps);
    fl_heap_free(b);
}

static bool fl__vision_batch_arrange(fl_data_set *self, int64_t epoch) {
    fl__vision_batches *b = self->user;
    const int64_t n = fl_data_size(fl_data_inner(self, 0));
    b->epoch = epoch;
    self->size = n / b->size + (!b->o.drop_last && n % b->size != 0);
    return true;
}

static int64_t fl__vision_batch_id(fl_data_set *self, int64_t i) {
    const fl__vision_batches *b = self->user;
    return fl_data_id(fl_data_inner(self, 0), i * b->size);
}

/* An image into its place of the batch. */
static void fl__vision_place(const fl__vision_batches *b, const fl_vision_pixels *x, void *to) {
    const int64_t line = x->w * x->c;
    for (int64_t y = 0; y < x->h; y++) {
        const unsigned char *p = x->p + y * x->row;
        if (b->o.u8) {
            memcpy((unsigned char *)to + y * line, p, (size_t)line);
            continue;
        }
        float *q = (float *)to + y * line;
        if (x->c == 3)
            for (int64_t i = 0; i < line; i += 3)
                q[i] = b->table[0][p[i]], q[i + 1] = b->table[1][p[i + 1]], q[i + 2] = b->table[2][p[i + 2]];
        else
            for (int64_t i = 0; i < line; i++) q[i] = b->table[i % x->c][p[i]];
    }
}

/* Sample i of the inner set, transformed. */
static bool fl__vision_sample(fl_data_set *self, int64_t i, fl_data_sample *out, fl_vision_pixels *pixels) {
    const fl__vision_batches *b = self->user;
    fl_data_set *inner = fl_data_inner(self, 0);
    fl_rng rng = fl_data_rng(b->o.seed, b->epoch, fl_data_id(inner, i));
    if (!fl_data_get(inner, i, out)) return false;
    fl_vision_item item = {.image = out->n ? out->t[0] : NULL};
    if (!item.image) return fl_fail("fl_vision_batch: sample %lld has no image", (long long)i);
    if (item.image->ndim == 1 && item.image->dtype == FL_U8 && fl_numel(item.image))
        item.image = fl_vision_decode(fl_data(item.image), (size_t)fl_numel(item.image), .depth = 8);
    if (!item.image || !fl_vision_apply(b->o.steps, b->o.n_steps, &item, &rng) ||
        !fl_vision_pixels_of(&item.image, pixels)) return false;
    out->t[0] = item.image;
    return true;
}

/* The other fields of n samples, stacked as they come: field k at out->t[k]. */
static bool fl__vision_stack(fl_data_sample *out, const fl_data_sample *one, int64_t at, int64_t n) {
    if (!at) {
        out->n = one->n;
        for (int k = 1; k < one->n; k++) {
            fl_shape s = fl_shape_of(one->t[k]), all = {s.ndim + 1, {n}};
            if (s.ndim == FL_MAX_DIMS) return fl_fail("fl_vision_batch: field %d has %d dims", k, s.ndim);
            memcpy(all.dim + 1, s.dim, (size_t)s.ndim * sizeof *s.dim);
            if (!(out->t[k] = fl_data_host_tensor(all, one->t[k]->dtype))) return false;
        }
    }
    if (one->n != out->n)
        return fl_fail("fl_vision_batch: a sample of %d fields behind one of %d", one->n, out->n);
    for (int k = 1; k < one->n; k++) {
        fl_tensor *t = one->t[k], *all = out->t[k];
        const int64_t bytes = fl_numel(t) * (int64_t)fl_dtype_size(t->dtype);
        if (t->dtype != all->dtype || t->ndim != all->ndim - 1 || fl_numel(t) * n != fl_numel(all))
            return fl_fail("fl_vision_batch: field %d is %s %s, in a batch of %s %s", k,
                           fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t), fl_dtype_name(all->dtype),
                           FL_SHAPE_TEXT(all));
        if (bytes && !fl_to_host(t, (char *)fl_data(all) + at * bytes, (size_t)bytes)) return false;
    }
    return true;
}

static bool fl__vision_batch_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    static const int planes[] = {0, 3, 1, 2};
    const fl__vision_batches *b = self->user;
    const int64_t all = fl_data_size(fl_data_inner(self, 0)), begin = i * b->size;
    const int64_t n = all - begin < b->size ? all - begin : b->size;
    fl_data_sample made = {0};
    fl_tensor *batch = NULL;
    int64_t c = 0, h = 0, w = 0;
    for (int64_t k = 0; k < n; k++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample one = {0};
        fl_vision_pixels x;
        bool ok = fl__vision_sample(self, begin + k, &one, &x);
        if (ok && !k) {
            c = x.c, h = x.h, w = x.w;
            ok = c <= 4 || fl_fail("fl_vision_batch: images of %lld channels", (long long)c);
            batch = ok ? fl_promote(&s, fl_data_host_tensor(FL_SHAPE(n, h, w, c), b->o.u8 ? FL_U8 : FL_F32))
                       : NULL;
            ok = batch != NULL;
        }
        if (ok && (x.c != c || x.h != h || x.w != w))
            ok = fl_fail(
                "fl_vision_batch: sample %lld is [%lld, %lld, %lld], the batch's first [%lld, %lld, %lld]",
                (long long)(begin + k), (long long)x.c, (long long)x.h, (long long)x.w, (long long)c,
                (long long)h, (long long)w);
        if (ok)
            fl__vision_place(
                b, &x, (char *)fl_data(batch) + k * c * h * w * (b->o.u8 ? 1 : (int64_t)sizeof(float)));
        ok = ok && fl__vision_stack(&made, &one, k, n);
        for (int f = 1; ok && !k && f < made.n; f++) ok = fl_promote(&s, made.t[f]) != NULL;
        fl_scope_end(&s);
        if (!ok) return false;
    }
    made.t[0] = fl_permute(batch, 4, planes);
    *out = made;
    return made.t[0] != NULL;
}

FL_API fl_data_set *fl_vision_batch_opt(fl_data_set *set, int64_t size, fl_vision_batch_opts o) {
    bool ok = set || fl_fail("fl_vision_batch: the set is NULL");
    if (ok && (size < 1 || size > INT32_MAX || o.n_steps < 0 || (o.n_steps && !o.steps)))
        ok = fl_fail("fl_vision_batch: batches of %lld, %d steps at %p", (long long)size, o.n_steps,
                     (const void *)o.steps);
    for (int k = 0; ok && k < 4; k++)
        ok = (isfinite(o.mean[k]) && o.std[k] >= 0 && isfinite(o.std[k])) ||
             fl_fail("fl_vision_batch: mean %g, std %g of channel %d", o.mean[k], o.std[k], k);
    fl__vision_batches *b = ok ? fl_heap_alloc(sizeof *b) : NULL;
    fl_vision_step *steps = b ? fl_heap_alloc((size_t)o.n_steps * sizeof *steps + 1) : NULL;
    if (!steps) {
        fl_heap_free(b);
        fl_data_free(set);
        return NULL;
    }
    if (o.n_steps) memcpy(steps, o.steps, (size_t)o.n_steps * sizeof *steps);
    b->o = o, b->o.steps = steps, b->size = size;
    for (int k = 0; k < 4; k++)
        for (int v = 0; v < 256; v++)
            b->table[k][v] = ((float)v / 255.0f - (float)o.mean[k]) / (o.std[k] ? (float)o.std[k] : 1.0f);
    return fl_data_set_new(&(fl_data_set){.get = fl__vision_batch_get,
                                          .arrange = fl__vision_batch_arrange,
                                          .id = fl__vision_batch_id,
                                          .close = fl__vision_batch_close,
                                          .user = b},
                           &set, 1);
}

#endif
#endif

/* MIT licence: see LICENSE. */
