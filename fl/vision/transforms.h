/* fl/vision/transforms.h - image transforms and augmentation, batching, mixup and CutMix

   A step is a transform with its parameters. A list of steps is applied to an item: an image with its boxes,
   labels and masks, which are transformed together. Random numbers depend on (seed, epoch, sample id) only.
   Names, defaults and semantics are torchvision's (transforms.v2 on u8 tensors).

    fl_vision_transform steps[] = {fl_vision_random_crop(32, 4), fl_vision_random_horizontal_flip(0.5)};
    set = fl_vision_batch(set, 64, .steps = steps, .n_steps = 2, .mean = FL_VISION_CIFAR_MEAN,
                          .std = FL_VISION_CIFAR_STD, .seed = 1); */
#ifndef FL_VISION_TRANSFORMS_H
#define FL_VISION_TRANSFORMS_H
#include "sets.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An image and its annotations; all but the image may be NULL. The innermost scope owns the tensors. */
typedef struct fl_vision_item {
    fl_tensor *image;  /* u8 [c, h, w] */
    fl_tensor *boxes;  /* f32 [n, 4]: x0, y0, x1, y1 in pixels */
    fl_tensor *labels; /* i64 [n], of the boxes */
    fl_tensor *masks;  /* u8 [n, h, w]: 1 where the object is */
    fl_tensor *area;   /* f32 [n], of the objects in pixels */
} fl_vision_item;

typedef struct fl_vision_transform fl_vision_transform;
/* Replaces fields of the item by tensors of the innermost scope. Returns false after fl_fail. Must be
   thread-safe. */
typedef bool (*fl_vision_transform_fn)(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng);
enum { FL_VISION_TRANSFORM_PARAMS = 8 };
struct fl_vision_transform {
    const char *name; /* for messages; a literal */
    fl_vision_transform_fn apply;
    double p;         /* probability of applying the step */
    double a[FL_VISION_TRANSFORM_PARAMS];  /* parameters */
    int64_t n[FL_VISION_TRANSFORM_PARAMS]; /* integer parameters */
    const fl_vision_transform *inner;  /* n_inner nested steps (random_choice, random_apply), borrowed */
    int n_inner;
};
/* Applies n steps in order. False after fl_fail. */
FL_API bool fl_vision_apply(const fl_vision_transform *steps, int n, fl_vision_item *item, fl_rng *rng);

/* ---- sizes ---- */

typedef enum fl_vision_filter {
    FL_VISION_BILINEAR,
    FL_VISION_BICUBIC,
    FL_VISION_BOX,
    FL_VISION_LANCZOS
} fl_vision_filter;
typedef struct fl_vision_resize_opts {
    fl_opts_guard guard_;
    fl_vision_filter filter;
    double box[4]; /* source region y0, x0, y1, x1, may be fractional; all 0: the whole image */
    char _end;
} fl_vision_resize_opts;
/* Resizes u8 [c, h, w] to h x w with antialiasing, bit-exact with Pillow's Image.resize per channel (bicubic
   with a = -0.5). Returns a new image, or NULL after fl_fail. */
#define fl_vision_resize_image(...) FL__VISION_RESIZE_IMAGE(__VA_ARGS__, ._end = 0)
#define FL__VISION_RESIZE_IMAGE(image, h, w, ...) \
    fl_vision_resize_image_opt(image, h, w, FL_LITERAL(fl_vision_resize_opts, __VA_ARGS__))
FL_API fl_tensor *fl_vision_resize_image_opt(fl_tensor *image, int64_t h, int64_t w, fl_vision_resize_opts o);

/* Step: resizes the shorter side to `size` and the longer one in proportion (truncated); both shrink further
   if the longer one would exceed `most` (0: no limit). Boxes and area are scaled, masks by nearest
   neighbour. */
FL_API fl_vision_transform fl_vision_resize(int64_t size, int64_t most, fl_vision_filter filter);
/* Step: resizes to h x w. */
FL_API fl_vision_transform fl_vision_resize_to(int64_t h, int64_t w, fl_vision_filter filter);
/* Step: central crop of size x size; a smaller image is padded with zeros. */
FL_API fl_vision_transform fl_vision_center_crop(int64_t size);
/* Step: crop of size x size at a uniform position, after zero padding by `pad`, or more if it is too
   small. */
FL_API fl_vision_transform fl_vision_random_crop(int64_t size, int64_t pad);
/* Step: crop of a fraction U(low, high) of the area (0 -> 0.08, 1) and aspect ratio exp U(log 3 / 4, log 4 /
   3), resized to size x size; after ten samples that do not fit, the largest central crop. */
FL_API fl_vision_transform fl_vision_random_resized_crop(int64_t size, double low, double high,
                                                         fl_vision_filter filter);
/* Step: mirrors left and right with probability p. */
FL_API fl_vision_transform fl_vision_random_horizontal_flip(double p);
/* Step: mirrors top and bottom with probability p. */
FL_API fl_vision_transform fl_vision_random_vertical_flip(double p);
/* Step: pads the four sides with `value`. */
FL_API fl_vision_transform fl_vision_pad(int64_t top, int64_t left, int64_t bottom, int64_t right,
                                         double value);
/* Step: applies one of n steps (borrowed), chosen uniformly. */
FL_API fl_vision_transform fl_vision_random_choice(const fl_vision_transform *steps, int n);
/* Step: applies all n steps (borrowed) with probability p, or none. */
FL_API fl_vision_transform fl_vision_random_apply(const fl_vision_transform *steps, int n, double p);

/* ---- colour and geometry ---- */

/* Adjustments with a parameter v. Results are clamped and truncated to u8, unless said otherwise. */
typedef enum fl_vision_adjustment {
    FL_VISION_IDENTITY,
    FL_VISION_BRIGHTNESS,   /* v x */
    FL_VISION_CONTRAST,     /* v x + (1 - v) mean of grey, grey = floor(.2989 R + .587 G + .114 B) */
    FL_VISION_SATURATION,   /* v x + (1 - v) grey */
    FL_VISION_SHARPNESS,    /* v x + (1 - v) s inside, s the mean of 3 x 3 (weights 1, centre 5), rounded */
    FL_VISION_HUE,          /* hue shifted by v in [-.5, .5] of a full circle */
    FL_VISION_GRAYSCALE,    /* grey in all channels */
    FL_VISION_POSTERIZE,    /* the upper v bits */
    FL_VISION_SOLARIZE,     /* x >= v: 255 - x */
    FL_VISION_SOLARIZE_ADD, /* x < 128: min(255, x + v) */
    FL_VISION_AUTOCONTRAST, /* each channel stretched to 0 to 255 */
    FL_VISION_EQUALIZE,     /* each channel's histogram equalised */
    FL_VISION_INVERT,       /* 255 - x */
    FL_VISION_ROTATE,       /* by v degrees, counter-clockwise */
    FL_VISION_SHEAR_X,      /* x' = x + v y, origin in the upper left corner */
    FL_VISION_SHEAR_Y,
    FL_VISION_TRANSLATE_X,  /* by v pixels */
    FL_VISION_TRANSLATE_Y,
    FL_VISION_BLUR,         /* Gaussian of sigma v over `size` pixels, reflected at the border, rounded */
} fl_vision_adjustment;
typedef struct fl_vision_adjust_opts {
    fl_opts_guard guard_;
    bool bilinear;   /* geometry: bilinear interpolation instead of nearest neighbour */
    double fill[4];  /* geometry: value of each channel outside the image */
    int size;        /* blur: kernel size, odd; 0 -> 2 ceil(3 v) + 1 */
    char _end;
} fl_vision_adjust_opts;
/* Adjusts u8 [c, h, w], c at most 4; returns a new image, or NULL after fl_fail. */
#define fl_vision_adjust(...) FL__VISION_ADJUST(__VA_ARGS__, ._end = 0)
#define FL__VISION_ADJUST(image, how, v, ...) \
    fl_vision_adjust_opt(image, how, v, FL_LITERAL(fl_vision_adjust_opts, __VA_ARGS__))
FL_API fl_tensor *fl_vision_adjust_opt(fl_tensor *image, fl_vision_adjustment how, double v,
                                       fl_vision_adjust_opts o);
/* Affine warp: output pixel (y, x) samples the input at m (x - cx, y - cy, 1) + (cx, cy), where cx = (w - 1)
   / 2 and cy = (h - 1) / 2; the rows of m [2, 3] give x and y. NULL after fl_fail. */
FL_API fl_tensor *fl_vision_affine(fl_tensor *image, const double m[6], fl_vision_adjust_opts o);

/* Step: adjusts by v = U(low, high) with probability p. */
FL_API fl_vision_transform fl_vision_random_adjust(fl_vision_adjustment how, double low, double high,
                                                   double p);
/* Step: brightness, contrast, saturation by U(max(0, 1 - v), 1 + v), hue by U(-v, v), in random order. */
FL_API fl_vision_transform fl_vision_color_jitter(double brightness, double contrast, double saturation,
                                                  double hue);
/* Step: rotates by U(-degrees, degrees), translates by up to these fractions of the width and height, scales
   by U(low, high) (0 -> 1). Boxes and masks do not change. */
FL_API fl_vision_transform fl_vision_random_affine(double degrees, double translate_x, double translate_y,
                                                   double low, double high);
/* Step: with probability p fills a rectangle, a fraction U(.02, 1 / 3) of the area with aspect ratio exp
   U(log .3, log 3.3), with `value`, or with uniform noise if value is -1. Like all steps it precedes
   normalisation. */
FL_API fl_vision_transform fl_vision_random_erasing(double p, double value);
/* Step: fills a square around a uniform pixel, clipped to the image, with `value` (arXiv 1708.04552). */
FL_API fl_vision_transform fl_vision_cutout(int64_t side, double value);
/* Step: torchvision's RandAugment: `changes` of 14 adjustments (0 -> 2), magnitude of 31 levels (0 -> 9). */
FL_API fl_vision_transform fl_vision_rand_augment(int64_t changes, int64_t magnitude);
/* Step: torchvision's TrivialAugmentWide. */
FL_API fl_vision_transform fl_vision_trivial_augment_wide(void);
/* Step: timm's rand-m9-mstd0.5-inc1, as used by DeiT. */
FL_API fl_vision_transform fl_vision_deit_augment(void);
/* Step: AutoAugment's policy for ImageNet (arXiv 1805.09501): one of 25 pairs of adjustments. */
FL_API fl_vision_transform fl_vision_auto_augment(void);
/* Step: crop of height and width U{low ... min(side, high)} each, at a uniform position. */
FL_API fl_vision_transform fl_vision_random_size_crop(int64_t low, int64_t high);
/* Step: DETR's augmentation: flip with probability 1/2; with probability 1/2 a resize to 400, 500 or 600 and
   a random_size_crop(384, 600); then a resize of the shorter side to one of 480, 512, ..., 800 (the longer at
   most 1333). */
FL_API fl_vision_transform fl_vision_detr_augment(void);

#define FL_VISION_IMAGENET_MEAN {0.485, 0.456, 0.406}
#define FL_VISION_IMAGENET_STD {0.229, 0.224, 0.225}
#define FL_VISION_CIFAR_MEAN {0.4914, 0.4822, 0.4465}
#define FL_VISION_CIFAR_STD {0.2470, 0.2435, 0.2616}

typedef struct fl_vision_batch_opts {
    fl_opts_guard guard_;
    const fl_vision_transform *steps; /* n_steps steps, copied (nested steps are borrowed) */
    int n_steps;
    uint64_t seed;               /* for the steps' random numbers */
    bool drop_last;              /* drop an incomplete last batch */
    bool region;                 /* if the first step is random_resized_crop, decode only its region of
                                    encoded images: faster, pixels differ by at most one level */
    bool u8;                     /* u8 pixels instead of f32 (x / 255 - mean) / std */
    bool objects;                /* samples are fl_vision_objects', batches are for fl_vision_detr */
    bool skip_bad;               /* replace a sample that cannot be read or decoded by the next one;
                                    fl_log_message reports it once */
    double mean[4], std[4];      /* of each channel; std 0 -> 1 */
    int64_t max_pixels;          /* limit for encoded images; 0 -> FL_VISION_MAX_PIXELS */
    char _end;
} fl_vision_batch_opts;
/* Decodes, transforms and batches `size` samples of a set (owned). A sample is an image, u8 [c, h, w] or
   encoded u8 [bytes], and optionally more fields, which are stacked. A batch is [n, c, h, w], stored n, h, w,
   c, so that a channels-last network needs no conversion; after the steps its images must have the same size.
   The work runs in the threads of an fl_data_prefetch around it. NULL after fl_fail. With objects images may
   differ in size and are padded with zeros to the right and below. Fields: images; b8 [n, h, w], true in the
   padding; boxes f32 [objects, 4], FL_VISION_CXCYWH relative to each image's size; labels i64 [objects];
   objects per image i64 [n]; the originals' id, height and width i64 [n, 3]; and masks u8 [objects, h, w] if
   the samples have them. */
#define fl_vision_batch(...) FL__VISION_BATCH(__VA_ARGS__, ._end = 0)
#define FL__VISION_BATCH(set, size, ...) \
    fl_vision_batch_opt(set, size, FL_LITERAL(fl_vision_batch_opts, __VA_ARGS__))
FL_API fl_data_set *fl_vision_batch_opt(fl_data_set *set, int64_t size, fl_vision_batch_opts o);
/* The number of samples skipped so far by an fl_vision_batch set, or by the one inside a wrapper such as
   fl_data_prefetch. */
FL_API int64_t fl_vision_skipped_samples(fl_data_set *batches);

typedef struct fl_vision_mixup_opts {
    fl_opts_guard guard_;
    double mixup, cutmix; /* alpha of Beta(alpha, alpha); 0 -> 0.8, 1; FL_ZERO: disabled */
    double p, cut;        /* probability of mixing a batch, 0 -> 1; of CutMix if both are enabled, 0 -> 0.5 */
    double smoothing;     /* label smoothing; 0 -> 0.1; FL_ZERO: none */
    uint64_t seed;
    char _end;
} fl_vision_mixup_opts;
/* Mixup and CutMix (timm's Mixup, as used by DeiT) for batches of a set (owned): f32 images [n, c, h, w] and
   labels i64 [n]; labels become targets f32 [n, classes]. Mixup: lambda x + (1 - lambda) x', x' the batch in
   reverse order, lambda ~ Beta(alpha, alpha). CutMix: a box of relative side sqrt(1 - lambda) around a
   uniform pixel is copied from x', and lambda becomes the remaining fraction of the area. Targets are 1 - s +
   s / classes and s / classes with smoothing s, mixed by lambda. NULL after fl_fail. */
#define fl_vision_mixup(...) FL__VISION_MIXUP(__VA_ARGS__, ._end = 0)
#define FL__VISION_MIXUP(set, classes, ...) \
    fl_vision_mixup_opt(set, classes, FL_LITERAL(fl_vision_mixup_opts, __VA_ARGS__))
FL_API fl_data_set *fl_vision_mixup_opt(fl_data_set *set, int64_t classes, fl_vision_mixup_opts o);
/* Repeated augmentation (DeiT's RASampler) of a set (owned): shuffles each epoch, repeats every sample
   `times` in a row, and deals them round-robin to ranks, floor(n / 256) 256 / ranks to each (n / ranks if n <
   256). Each repetition has its own random numbers. NULL after fl_fail. */
FL_API fl_data_set *fl_vision_repeated_augmentation(fl_data_set *set, int64_t times, uint64_t seed, int rank,
                                                    int ranks);

#ifdef __cplusplus
}
#endif
#endif /* FL_VISION_TRANSFORMS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_VISION_TRANSFORMS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_TRANSFORMS_IMPL
#define FL_VISION_TRANSFORMS_IMPL
#include "../../kernels/vision/colour.h"
#include "../../kernels/vision/move.h"
#include "../../kernels/vision/resize.h"
#include "../ops/copy.h"
#include "../ops/random.h"
#include "../ops/view.h"
#include <math.h>
#include <pthread.h>
#include <string.h>

/* ---- lists of steps ---- */

FL_API bool fl_vision_apply(const fl_vision_transform *steps, int n, fl_vision_item *item, fl_rng *rng) {
    if (!item || !item->image || (n && !steps))
        return fl_fail("fl_vision_apply: item, image or steps is NULL");
    fl_vision_pixels p;
    if (!fl_vision_pixels_of(&item->image, &p)) return false;
    for (int i = 0; i < n; i++) {
        if (!steps[i].apply) return fl_fail("fl_vision_apply: step %d: apply is NULL", i);
        if (steps[i].p < 1 && !(fl_rng_uniform(rng) < steps[i].p)) continue;
        if (!steps[i].apply(&steps[i], item, rng)) return fl_fail("fl_vision_apply: step %d failed", i);
    }
    return true;
}

/* A uniform integer in [low, high]. */
static int64_t fl__vision_between(fl_rng *rng, int64_t low, int64_t high) {
    return low + (int64_t)(fl_rng_uniform(rng) * (double)(high - low + 1));
}

/* A uniform number in [low, high). */
static double fl__vision_uniform(fl_rng *rng, double low, double high) {
    return low + (high - low) * fl_rng_uniform(rng);
}

static double fl__vision_normal(fl_rng *rng) { /* Box and Muller */
    const double u = 1 - fl_rng_uniform(rng), v = fl_rng_uniform(rng);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Clamps a number of pixels so that sums and differences do not overflow; fl_vision_image rejects the
   limit. */
static int64_t fl__vision_clamp_side(int64_t v) {
    const int64_t most = (int64_t)1 << 30;
    return v < -most ? -most : v > most ? most : v;
}

/* Clamps a pixel value to [low, 255]; NaN is low. */
static double fl__vision_clamp_level(double v, double low) {
    return v > low ? fmin(v, 255) : low;
}

static fl_vision_transform fl__vision_step_of(const char *name, fl_vision_transform_fn apply, double p) {
    return (fl_vision_transform){.name = name, .apply = apply, .p = p};
}

/* ---- annotations of an image ---- */

/* The rows of t whose keep is true. */
static fl_tensor *fl__vision_select_rows(fl_tensor *t, const bool *keep) {
    if (!t) return NULL;
    t = fl_contiguous(t);
    if (!t) return NULL;
    fl_shape s = fl_shape_of(t);
    const int64_t n = s.dim[0], bytes = n ? fl_numel(t) / n * (int64_t)fl_dtype_size(t->dtype) : 0;
    s.dim[0] = 0;
    for (int64_t i = 0; i < n; i++) s.dim[0] += keep[i];
    fl_tensor *y = fl_data_host_tensor(s, t->dtype);
    const char *from = y ? fl_map(t, FL_READ) : NULL;
    char *rows = from ? fl_map(y, FL_WRITE) : NULL, *to = rows;
    for (int64_t i = 0; to && i < n; i++)
        if (keep[i]) memcpy(to, from + i * bytes, (size_t)bytes), to += bytes;
    if (rows) fl_unmap(y, FL_WRITE);
    if (from) fl_unmap(t, FL_READ);
    return rows ? y : NULL;
}

/* Transforms boxes: scale * box + shift (x, y), mirrored within `mirror` if that is not 0. For a crop to h x
   w they are clipped, empty ones are removed with their labels and masks, and area is the box's. */
static bool fl__vision_move_boxes(fl_vision_item *item, const double scale[2], const double shift[2],
                                  const double mirror[2], int64_t h, int64_t w, bool crop) {
    if (!item->boxes) return true;
    fl_tensor *boxes = fl_contiguous(item->boxes);
    const int64_t n = boxes ? boxes->shape[0] : 0;
    fl_tensor *y = boxes ? fl_clone(boxes) : NULL;
    bool *keep = y ? fl_heap_alloc((size_t)n + 1) : NULL;
    if (!keep) return false;
    fl_tensor *area = crop ? fl_data_host_tensor(FL_SHAPE(n), FL_F32) : item->area;
    float *corners = area || (!crop && !item->area) ? fl_map(y, FL_READ | FL_WRITE) : NULL,
          *size = corners && crop ? fl_map(area, FL_WRITE) : NULL;
    bool ok = corners && (size || !crop);
    for (int64_t i = 0; ok && i < n; i++) {
        float *b = corners + 4 * i;
        for (int d = 0; d < 2; d++) {
            double low = scale[d] * (double)b[d] + shift[d], high = scale[d] * (double)b[d + 2] + shift[d];
            const double old = low, most = (double)(d ? h : w);
            if (mirror[d] > 0) low = mirror[d] - high, high = mirror[d] - old;
            if (crop) low = fmin(fmax(low, 0), most), high = fmin(fmax(high, 0), most);
            b[d] = (float)low, b[d + 2] = (float)high;
        }
        keep[i] = !crop || (b[2] > b[0] && b[3] > b[1]);
        if (crop) size[i] = (b[2] - b[0]) * (b[3] - b[1]);
    }
    if (size) fl_unmap(area, FL_WRITE);
    if (corners) fl_unmap(y, FL_READ | FL_WRITE);
    if (ok && crop) {
        fl_tensor **all[] = {&y, &item->labels, &item->masks, &area};
        for (int k = 0; ok && k < 4; k++)
            if (*all[k]) ok = (*all[k] = fl__vision_select_rows(*all[k], keep)) != NULL;
    } else if (ok && area && scale[0] * scale[1] != 1) {
        area = fl_clone(fl_contiguous(area));
        size = area ? fl_map(area, FL_READ | FL_WRITE) : NULL;
        for (int64_t i = 0; size && i < n; i++) size[i] *= (float)(scale[0] * scale[1]);
        if (size) fl_unmap(area, FL_READ | FL_WRITE);
        ok = size != NULL;
    }
    fl_heap_free(keep);
    if (ok) item->boxes = y, item->area = area;
    return ok;
}

/* Resamples masks to [n, h, w] by nearest neighbour: from row y0 + i sy and column x0 + j sx (rounded down,
   for a negative step from the end of the pixel); zeros outside. */
static bool fl__vision_move_masks(fl_vision_item *item, int64_t h, int64_t w, double y0, double sy,
                                  double x0, double sx) {
    if (!item->masks) return true;
    fl_tensor *m = fl_contiguous(item->masks);
    fl_tensor *t = m ? fl_data_host_tensor(FL_SHAPE(m->shape[0], h, w), FL_U8) : NULL;
    const uint8_t *source = t ? fl_map(m, FL_READ) : NULL;
    uint8_t *result = source ? fl_map(t, FL_WRITE) : NULL;
    const int64_t H = m ? m->shape[1] : 0, W = m ? m->shape[2] : 0;
    for (int64_t k = 0; result && k < m->shape[0]; k++)
        for (int64_t i = 0; i < h; i++) {
            const double fy = floor(y0 + (sy > 0 ? (double)i * sy : (double)(i + 1) * sy));
            const uint8_t *from = source + (k * H + (int64_t)fy) * W;
            uint8_t *to = result + (k * h + i) * w;
            for (int64_t j = 0; j < w; j++) {
                const double fx = floor(x0 + (sx > 0 ? (double)j * sx : (double)(j + 1) * sx));
                to[j] = fy >= 0 && fy < (double)H && fx >= 0 && fx < (double)W ? from[(int64_t)fx] : 0;
            }
        }
    if (result) fl_unmap(t, FL_WRITE), item->masks = t;
    if (source) fl_unmap(m, FL_READ);
    return result != NULL;
}

/* ---- resize ---- */

static double fl__vision_weight(fl_vision_filter f, double x) {
    x = fabs(x);
    switch (f) {
    case FL_VISION_BICUBIC:
        return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
    case FL_VISION_LANCZOS: {
        const double pi = 3.14159265358979323846, a = x * pi, b = x / 3.0 * pi;
        return x >= 3 ? 0 : (a == 0 ? 1 : sin(a) / a) * (b == 0 ? 1 : sin(b) / b);
    }
    default: return x < 1 ? 1 - x : 0;
    }
}

/* Filter taps of `out` pixels over [low, high) of `in` pixels; free with fl_heap_free(t->at). */
static bool fl__vision_taps(fl__resize_taps *t, int64_t in, double low, double high, int64_t out,
                            fl_vision_filter f) {
    static const double reach[] = {1, 2, 0.5, 3};
    const double scale = (double)((float)high - (float)low) / (double)out, stretch = scale > 1 ? scale : 1,
                 support = reach[f] * stretch;
    t->out = out, t->most = ((int64_t)ceil(support) * 2 + 4) / 4 * 4;
    t->at = fl_heap_alloc((size_t)out * sizeof *t->at * (size_t)(2 + t->most) +
                          (size_t)t->most * sizeof(double) + 8);
    if (!t->at) return false;
    t->n = t->at + out, t->weight = t->n + out;
    double *w = (double *)(void *)(((uintptr_t)(t->weight + out * t->most) + 7) & ~(uintptr_t)7);
    for (int64_t i = 0; i < out; i++) {
        const double centre = low + ((double)i + 0.5) * scale, inverse = 1.0 / stretch;
        int64_t from = (int64_t)(centre - support + 0.5), to = (int64_t)(centre + support + 0.5);
        double sum = 0;
        if (from < 0) from = 0;
        if (to > in) to = in;
        for (int64_t k = 0; k < to - from; k++) {
            const double x = ((double)(k + from) - centre + 0.5) * inverse;
            w[k] = f == FL_VISION_BOX ? (x > -0.5 && x <= 0.5) : fl__vision_weight(f, x);
            sum += w[k];
        }
        t->at[i] = (int32_t)from, t->n[i] = (int32_t)(to - from);
        for (int64_t k = 0; k < to - from; k++) {
            const double v = (sum != 0 ? w[k] / sum : w[k]) * (1 << 22);
            t->weight[i * t->most + k] = (int32_t)(v < 0 ? v - 0.5 : v + 0.5);
        }
    }
    return true;
}

/* Resamples the columns of x to y->h rows. */
static void fl__vision_resize_columns(const fl_vision_pixels *x, const fl_vision_pixels *y,
                                      const fl__resize_taps *t, int32_t *sums) {
    for (int64_t i = 0; i < y->h; i++)
        fl__resize_column(x->p, x->row, y->p + i * y->row, x->w * x->c, t, i, sums);
}

/* Two passes with u8 between them: first along rows (only the rows that the column pass needs), unless the
   height shrinks by more than twice as much as the width. The order is Pillow's since 13.0. */
static bool fl__vision_resize_pixels(const fl_vision_pixels *x, const fl_vision_pixels *y,
                                     const double box[4], fl_vision_filter f) {
    fl__resize_taps across = {0}, down = {0};
    const bool rows = x->w != y->w || box[1] != 0 || box[3] != (double)y->w;
    const bool columns = x->h != y->h || box[0] != 0 || box[2] != (double)y->h;
    const bool columns_first = columns && x->h > y->h && x->h - y->h > 2 * (x->w - y->w);
    bool ok = fl__vision_taps(&across, x->w, box[1], box[3], y->w, f) &&
              fl__vision_taps(&down, x->h, box[0], box[2], y->h, f);
    const int64_t first = ok && columns ? down.at[0] : 0;
    const int64_t last = ok && columns ? down.at[y->h - 1] + down.n[y->h - 1] : y->h;
    fl_vision_pixels middle = *y, from = *x;
    if (columns_first) middle.w = x->w;
    else middle.h = last - first, from.p += first * from.row;
    middle.row = middle.w * middle.c;
    uint8_t *scratch = NULL;
    int32_t *sums = ok ? fl_heap_alloc((size_t)middle.row * sizeof *sums + 1) : NULL;
    ok = sums != NULL;
    if (ok && rows && columns)
        ok = (middle.p = scratch = fl_heap_alloc((size_t)(middle.h * middle.row) + 4)) != NULL;
    for (int64_t i = 0; ok && columns && !columns_first && i < y->h; i++) down.at[i] -= (int32_t)first;
    if (ok && columns_first) {
        fl__vision_resize_columns(x, rows ? &middle : y, &down, sums);
        from = middle;
    }
    const fl_vision_pixels *to = columns && !columns_first ? &middle : y;
    for (int64_t i = 0; ok && rows && i < to->h; i += FL__RESIZE_ROWS)
        fl__resize_rows(from.p + i * from.row, from.row, to->p + i * to->row, to->row,
                        to->h - i < FL__RESIZE_ROWS ? to->h - i : FL__RESIZE_ROWS, x->c,
                        from.w * from.c, &across);
    if (ok && columns && !columns_first) fl__vision_resize_columns(rows ? &middle : &from, y, &down, sums);
    for (int64_t i = 0; ok && !rows && !columns && i < y->h; i++)
        memcpy(y->p + i * y->row, x->p + i * x->row, (size_t)(y->w * y->c));
    fl_heap_free(across.at), fl_heap_free(down.at), fl_heap_free(scratch), fl_heap_free(sums);
    return ok;
}

FL_API fl_tensor *fl_vision_resize_image_opt(fl_tensor *image, int64_t h, int64_t w,
                                             fl_vision_resize_opts o) {
    fl_vision_pixels x, y;
    if (!fl_vision_pixels_of(&image, &x)) return NULL;
    const bool whole = !o.box[0] && !o.box[1] && !o.box[2] && !o.box[3];
    const double box[] = {(double)(float)o.box[0], (double)(float)o.box[1], /* floats in Pillow too */
                          whole ? (double)x.h : (double)(float)o.box[2],
                          whole ? (double)x.w : (double)(float)o.box[3]};
    if (h < 1 || w < 1 || h > FL_VISION_MAX_SIDE || w > FL_VISION_MAX_SIDE || x.h < 1 || x.w < 1 ||
        o.filter > FL_VISION_LANCZOS ||
        !(box[0] >= 0 && box[1] >= 0 && box[2] > box[0] && box[3] > box[1] && box[2] <= (double)x.h &&
          box[3] <= (double)x.w)) {
        fl_fail("fl_vision_resize_image: got size %lld x %lld, box %g, %g, %g, %g of an image %s, filter %d; "
                "expected sides of 1 to %d, a box y0 < y1, x0 < x1 inside the image, filter 0 to %d",
                (long long)h, (long long)w, box[0], box[1], box[2], box[3], FL_SHAPE_TEXT(image),
                (int)o.filter, FL_VISION_MAX_SIDE, (int)FL_VISION_LANCZOS);
        return NULL;
    }
    fl_tensor *t = fl_vision_image(x.c, h, w, &y);
    return t && fl__vision_resize_pixels(&x, &y, box, o.filter) ? t : NULL;
}

static bool fl__vision_resize_item(fl_vision_item *item, int64_t h, int64_t w, fl_vision_filter f) {
    const int64_t H = item->image->shape[1], W = item->image->shape[2];
    const double scale[] = {(double)w / (double)W, (double)h / (double)H}, none[2] = {0};
    item->image = fl_vision_resize_image(item->image, h, w, .filter = f);
    return item->image && fl__vision_move_boxes(item, scale, none, none, h, w, false) &&
           fl__vision_move_masks(item, h, w, 0, (double)H / (double)h, 0, (double)W / (double)w);
}

static bool fl__vision_resize(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    (void)rng;
    const int64_t h = item->image->shape[1], w = item->image->shape[2], size = s->n[0], most = s->n[1];
    if (!size) return fl__vision_resize_item(item, s->n[3], s->n[4], (fl_vision_filter)s->n[2]);
    const int64_t low = h < w ? h : w, high = h < w ? w : h;
    int64_t small = size, large = low ? (int64_t)((double)size * (double)high / (double)low) : 1;
    if (most && large > most) small = (int64_t)((double)most * (double)small / (double)large), large = most;
    if (small < 1) small = 1;
    return fl__vision_resize_item(item, h < w ? small : large, h < w ? large : small,
                                  (fl_vision_filter)s->n[2]);
}

FL_API fl_vision_transform fl_vision_resize(int64_t size, int64_t most, fl_vision_filter filter) {
    return (fl_vision_transform){.name = "resize", .apply = fl__vision_resize, .p = 1,
                                 .n = {fl__vision_clamp_side(size), fl__vision_clamp_side(most), filter}};
}

FL_API fl_vision_transform fl_vision_resize_to(int64_t h, int64_t w, fl_vision_filter filter) {
    return (fl_vision_transform){.name = "resize", .apply = fl__vision_resize, .p = 1,
                                 .n = {0, 0, filter, fl__vision_clamp_side(h), fl__vision_clamp_side(w)}};
}

/* ---- crops, flips, padding ---- */

/* Replaces the image by a writable copy. */
static bool fl__vision_copy_image(fl_vision_item *item, fl_vision_pixels *to) {
    fl_vision_pixels from;
    if (!fl_vision_pixels_of(&item->image, &from)) return false;
    fl_tensor *t = fl_vision_image(from.c, from.h, from.w, to);
    for (int64_t y = 0; t && y < to->h; y++)
        memcpy(to->p + y * to->row, from.p + y * from.row, (size_t)to->row);
    if (t) item->image = t;
    return t != NULL;
}

/* A new image of h x w pixels from (y, x) on; `value` outside the image. */
static fl_tensor *fl__vision_crop_padded(const fl_vision_pixels *image, int64_t y, int64_t x, int64_t h,
                                         int64_t w, int value) {
    const fl_vision_pixels from = *image;
    fl_vision_pixels to;
    fl_tensor *t = fl_vision_image(from.c, h, w, &to);
    if (!t) return NULL;
    const int64_t x0 = x > 0 ? x : 0, x1 = x + w < from.w ? x + w : from.w;
    for (int64_t i = 0; i < h; i++) {
        uint8_t *row = to.p + i * to.row;
        if (y + i < 0 || y + i >= from.h || x0 >= x1) {
            memset(row, value, (size_t)to.row);
            continue;
        }
        const uint8_t *p = from.p + (y + i) * from.row + x0 * from.c;
        memset(row, value, (size_t)((x0 - x) * from.c));
        memcpy(row + (x0 - x) * from.c, p, (size_t)((x1 - x0) * from.c));
        memset(row + (x1 - x) * from.c, value, (size_t)((x + w - x1) * from.c));
    }
    return t;
}

/* Crops to (y, x) ... (y + h, x + w): a view if that is inside the image, else padded with `value`. */
static bool fl__vision_crop(fl_vision_item *item, int64_t y, int64_t x, int64_t h, int64_t w, int value) {
    fl_vision_pixels from;
    if (!fl_vision_pixels_of(&item->image, &from)) return false;
    const bool inside = y >= 0 && x >= 0 && h > 0 && w > 0 && y + h <= from.h && x + w <= from.w;
    fl_tensor *t = inside ? fl_slice(fl_slice(item->image, 1, y, y + h, 1), 2, x, x + w, 1)
                          : fl__vision_crop_padded(&from, y, x, h, w, value);
    if (!t) return false;
    item->image = t;
    const double one[] = {1, 1}, shift[] = {(double)-x, (double)-y}, none[2] = {0};
    return fl__vision_move_masks(item, h, w, (double)y, 1, (double)x, 1) &&
           fl__vision_move_boxes(item, one, shift, none, h, w, true);
}

static bool fl__vision_random_crop(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    const int64_t size = s->n[0], pad = s->n[1];
    const int64_t h = item->image->shape[1] + 2 * pad, w = item->image->shape[2] + 2 * pad;
    const int64_t more_h = size > h ? size - h : 0, more_w = size > w ? size - w : 0;
    const int64_t y = fl__vision_between(rng, 0, h + 2 * more_h - size);
    const int64_t x = fl__vision_between(rng, 0, w + 2 * more_w - size);
    return fl__vision_crop(item, y - pad - more_h, x - pad - more_w, size, size, 0);
}

FL_API fl_vision_transform fl_vision_random_crop(int64_t size, int64_t pad) {
    return (fl_vision_transform){.name = "random_crop", .apply = fl__vision_random_crop, .p = 1,
                                 .n = {fl__vision_clamp_side(size), fl__vision_clamp_side(pad)}};
}

static bool fl__vision_center_crop(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    (void)rng;
    const int64_t size = s->n[0], h = item->image->shape[1], w = item->image->shape[2];
    /* a smaller image is padded first; if the padding is odd, the larger half comes after it */
    const int64_t top = size > h ? (size - h) / 2 : 0, left = size > w ? (size - w) / 2 : 0;
    const double y = (double)((size > h ? size : h) - size) / 2,
                 x = (double)((size > w ? size : w) - size) / 2;
    return fl__vision_crop(item, (int64_t)nearbyint(y) - top, (int64_t)nearbyint(x) - left, size, size, 0);
}

FL_API fl_vision_transform fl_vision_center_crop(int64_t size) {
    return (fl_vision_transform){.name = "center_crop", .apply = fl__vision_center_crop, .p = 1,
                                 .n = {fl__vision_clamp_side(size)}};
}

/* Samples the region of a random resized crop of h x w pixels: y, x, h, w. */
static void fl__vision_sample_region(const fl_vision_transform *s, fl_rng *rng, int64_t h, int64_t w,
                                     int64_t out[4]) {
    const double low = log(3.0 / 4.0), high = log(4.0 / 3.0), area = (double)(h * w);
    for (int t = 0; t < 10; t++) {
        const double part = area * fl__vision_uniform(rng, s->a[0], s->a[1]);
        const double ratio = exp(fl__vision_uniform(rng, low, high));
        const double down = nearbyint(sqrt(part / ratio)), across = nearbyint(sqrt(part * ratio));
        if (!(down >= 1 && across >= 1 && down <= (double)h && across <= (double)w)) continue;
        out[2] = (int64_t)down, out[3] = (int64_t)across;
        out[0] = fl__vision_between(rng, 0, h - out[2]), out[1] = fl__vision_between(rng, 0, w - out[3]);
        return;
    }
    const double ratio = (double)w / (double)h;
    out[2] = h, out[3] = w;
    if (ratio < 3.0 / 4.0) out[2] = (int64_t)nearbyint((double)w / (3.0 / 4.0));
    else if (ratio > 4.0 / 3.0) out[3] = (int64_t)nearbyint((double)h * (4.0 / 3.0));
    out[0] = (h - out[2]) / 2, out[1] = (w - out[3]) / 2;
}

static bool fl__vision_random_resized_crop(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    int64_t part[4];
    fl__vision_sample_region(s, rng, item->image->shape[1], item->image->shape[2], part);
    return fl__vision_crop(item, part[0], part[1], part[2], part[3], 0) &&
           fl__vision_resize_item(item, s->n[0], s->n[0], (fl_vision_filter)s->n[2]);
}

FL_API fl_vision_transform fl_vision_random_resized_crop(int64_t size, double low, double high,
                                                         fl_vision_filter filter) {
    return (fl_vision_transform){.name = "random_resized_crop",
                                 .apply = fl__vision_random_resized_crop,
                                 .p = 1,
                                 .n = {fl__vision_clamp_side(size), 0, filter},
                                 .a = {low ? low : 0.08, high ? high : 1}};
}

static bool fl__vision_flip(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    (void)rng;
    const bool rows = s->n[0];
    fl_vision_pixels from, to;
    if (!fl_vision_pixels_of(&item->image, &from)) return false;
    fl_tensor *t = fl_vision_image(from.c, from.h, from.w, &to);
    if (!t) return false;
    for (int64_t y = 0; y < to.h; y++) {
        const uint8_t *p = from.p + (rows ? from.h - 1 - y : y) * from.row;
        uint8_t *q = to.p + y * to.row;
        if (rows) memcpy(q, p, (size_t)to.row);
        else fl__colour_mirror(p, to.w, to.c, q);
    }
    item->image = t;
    const double one[] = {1, 1}, none[2] = {0}, mirror[] = {rows ? 0 : (double)to.w, rows ? (double)to.h : 0};
    return fl__vision_move_masks(item, to.h, to.w, rows ? (double)to.h : 0, rows ? -1 : 1,
                                 rows ? 0 : (double)to.w, rows ? 1 : -1) &&
           fl__vision_move_boxes(item, one, none, mirror, to.h, to.w, false);
}

FL_API fl_vision_transform fl_vision_random_horizontal_flip(double p) {
    return fl__vision_step_of("random_horizontal_flip", fl__vision_flip, p);
}

FL_API fl_vision_transform fl_vision_random_vertical_flip(double p) {
    return (fl_vision_transform){.name = "random_vertical_flip", .apply = fl__vision_flip, .p = p, .n = {1}};
}

static bool fl__vision_size_crop(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    int64_t size[2];
    for (int d = 0; d < 2; d++) {
        const int64_t side = item->image->shape[1 + d], low = side < s->n[0] ? side : s->n[0];
        size[d] = fl__vision_between(rng, low, side < s->n[1] ? side : s->n[1]);
    }
    const int64_t y = fl__vision_between(rng, 0, item->image->shape[1] - size[0]),
                  x = fl__vision_between(rng, 0, item->image->shape[2] - size[1]);
    return fl__vision_crop(item, y, x, size[0], size[1], 0);
}

FL_API fl_vision_transform fl_vision_random_size_crop(int64_t low, int64_t high) {
    return (fl_vision_transform){
        .name = "random_size_crop", .apply = fl__vision_size_crop, .p = 1,
        .n = {fl__vision_clamp_side(low), fl__vision_clamp_side(high)}};
}

static bool fl__vision_detr_augment(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    (void)s;
    const int64_t first = 400 + 100 * fl__vision_between(rng, 0, 2),
                  last = 480 + 32 * fl__vision_between(rng, 0, 10);
    const bool cropped = fl_rng_uniform(rng) < 0.5;
    const fl_vision_transform steps[] = {fl_vision_random_horizontal_flip(0.5),
                                         fl_vision_resize(last, 1333, FL_VISION_BILINEAR),
                                         fl_vision_resize(first, 0, FL_VISION_BILINEAR),
                                         fl_vision_random_size_crop(384, 600)};
    return fl_vision_apply(steps, 1, item, rng) && (!cropped || fl_vision_apply(steps + 2, 2, item, rng)) &&
           fl_vision_apply(steps + 1, 1, item, rng);
}

FL_API fl_vision_transform fl_vision_detr_augment(void) {
    return fl__vision_step_of("detr_augment", fl__vision_detr_augment, 1);
}

static bool fl__vision_pad(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    (void)rng;
    const int64_t h = item->image->shape[1] + s->n[0] + s->n[2],
                  w = item->image->shape[2] + s->n[1] + s->n[3];
    return fl__vision_crop(item, -s->n[0], -s->n[1], h, w, (int)s->a[0]);
}

FL_API fl_vision_transform fl_vision_pad(int64_t top, int64_t left, int64_t bottom, int64_t right,
                                         double value) {
    return (fl_vision_transform){.name = "pad", .apply = fl__vision_pad, .p = 1,
                                 .a = {fl__vision_clamp_level(value, 0)},
                                 .n = {fl__vision_clamp_side(top), fl__vision_clamp_side(left),
                                       fl__vision_clamp_side(bottom), fl__vision_clamp_side(right)}};
}

static bool fl__vision_choice(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    if (s->n_inner < 1 || !s->inner)
        return fl_fail("fl_vision_random_choice: got %d steps%s, expected at least 1", s->n_inner,
                       s->inner ? "" : " at NULL");
    return fl_vision_apply(s->inner + fl__vision_between(rng, 0, s->n_inner - 1), 1, item, rng);
}

static bool fl__vision_all(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    return fl_vision_apply(s->inner, s->n_inner, item, rng);
}

FL_API fl_vision_transform fl_vision_random_choice(const fl_vision_transform *steps, int n) {
    return (fl_vision_transform){
        .name = "random_choice", .apply = fl__vision_choice, .p = 1, .inner = steps, .n_inner = n};
}

FL_API fl_vision_transform fl_vision_random_apply(const fl_vision_transform *steps, int n, double p) {
    return (fl_vision_transform){
        .name = "random_apply", .apply = fl__vision_all, .p = p, .inner = steps, .n_inner = n};
}

/* ---- colour ---- */

static uint8_t fl__vision_to_u8(float v) {
    return (uint8_t)(v > 0 ? v < 255 ? v : 255 : 0); /* NaN: 0 */
}

static void fl__vision_contrast(const fl_vision_pixels *x, double v) {
    const int64_t n = x->h * x->w;
    int64_t sum = 0;
    if (x->c >= 3) fl__colour_grey(x->p, n, x->c, &sum);
    for (int64_t i = 0; x->c < 3 && i < n; i++) sum += x->p[i * x->c];
    const float mean = (float)((double)sum / (double)n), rest = (float)(1 - v);
    fl__colour_scale(x->p, n * x->c, (float)v, rest * mean);
}

/* Maps each channel by a lookup table. */
static void fl__vision_apply_table(const fl_vision_pixels *x, uint8_t table[4][256]) {
    uint8_t *p = x->p, *const end = p + x->h * x->w * x->c;
    for (; x->c == 3 && p < end; p += 3) p[0] = table[0][p[0]], p[1] = table[1][p[1]], p[2] = table[2][p[2]];
    for (; p < end; p += x->c)
        for (int64_t k = 0; k < x->c; k++) p[k] = table[k][p[k]];
}

static void fl__vision_pointwise(const fl_vision_pixels *x, fl_vision_adjustment how, double v) {
    uint8_t table[4][256], mask = 255, flip = 0, from = 0;
    if (how == FL_VISION_BRIGHTNESS) fl__colour_scale(x->p, x->h * x->w * x->c, (float)v, 0);
    else if (how == FL_VISION_SOLARIZE_ADD) {
        for (int i = 0; i < 4 * 256; i++)
            table[i / 256][i % 256] =
                (uint8_t)(i % 256 < 128 ? fl__vision_to_u8((float)(i % 256 + v)) : i % 256);
        fl__vision_apply_table(x, table);
    } else {
        if (how == FL_VISION_POSTERIZE) mask = (uint8_t)(v >= 8 ? 255 : v <= 0 ? 0 : -(1 << (8 - (int)v)));
        if (how == FL_VISION_INVERT || (how == FL_VISION_SOLARIZE && v <= 255)) flip = 255;
        if (how == FL_VISION_SOLARIZE) from = fl__vision_to_u8(ceilf((float)v)); /* torchvision's f32 */
        fl__colour_bits(x->p, x->h * x->w * x->c, mask, flip, from);
    }
}

static void fl__vision_autocontrast(const fl_vision_pixels *x) {
    uint8_t table[4][256], low[4], high[4];
    fl__colour_range(x->p, x->h * x->w * x->c, x->c, low, high);
    for (int64_t k = 0; k < x->c; k++) {
        const float scale = (float)(high[k] - low[k]) * (1.0f / 255.0f);
        for (int i = 0; i < 256; i++)
            table[k][i] = high[k] > low[k] ? fl__vision_to_u8((float)(i - low[k]) / scale) : (uint8_t)i;
    }
    fl__vision_apply_table(x, table);
}

/* Histograms alternate between two tables, so that consecutive pixels do not wait for each other's update. */
static void fl__vision_equalize(const fl_vision_pixels *x) {
    const int64_t n = x->h * x->w, c = x->c;
    int32_t count[2][4][256] = {0};
    uint8_t table[4][256];
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < c; k++) count[i & 1][k][x->p[i * c + k]]++;
    for (int64_t k = 0; k < c; k++) {
        int64_t below = 0, last = 0;
        for (int i = 0; i < 256; i++) {
            count[0][k][i] += count[1][k][i];
            if (count[0][k][i]) last = count[0][k][i];
        }
        const int64_t step = (n - last) / 255;
        for (int i = 0; i < 256; below += count[0][k][i++]) {
            const int64_t y = step ? (step / 2 + below) / step : i;
            table[k][i] = (uint8_t)(y > 255 ? 255 : y);
        }
    }
    fl__vision_apply_table(x, table);
}

/* Sharpens the inside of x, a copy of `from`. */
static void fl__vision_sharpen(const fl_vision_pixels *from, const fl_vision_pixels *x, double v) {
    for (int64_t y = 1; y + 1 < x->h; y++) {
        const uint8_t *p = from->p + y * from->row, *const row[] = {p - from->row, p, p + from->row};
        fl__colour_sharpen(row, x->w * x->c, x->c, (float)(1 - v), x->p + y * x->row);
    }
}

static int64_t fl__vision_reflect(int64_t i, int64_t n) {
    if (n == 1) return 0;
    while (i < 0 || i >= n) i = i < 0 ? -i : 2 * (n - 1) - i;
    return i;
}

static bool fl__vision_blur(const fl_vision_pixels *from, const fl_vision_pixels *x, double sigma,
                            int64_t size) {
    const int64_t half = size / 2, line = x->w * x->c, wide = line + 2 * half * x->c;
    float *weight = fl_heap_alloc((size_t)(size + wide + line * (x->h + 1)) * sizeof *weight), sum = 0;
    if (!weight) return false;
    float *row = weight + size, *total = row + wide, *middle = total + line;
    for (int64_t k = 0; k < size; k++) {
        const float d = (float)(k - half) / (float)sigma;
        sum += weight[k] = expf(-0.5f * d * d);
    }
    for (int64_t k = 0; k < size; k++) weight[k] /= sum;
    for (int64_t y = 0; y < x->h; y++) {
        for (int64_t u = 0; u < x->w + 2 * half; u++)
            for (int64_t c = 0; c < x->c; c++)
                row[u * x->c + c] =
                    (float)from->p[y * from->row + fl__vision_reflect(u - half, x->w) * x->c + c];
        memset(middle + y * line, 0, (size_t)line * sizeof *middle);
        for (int64_t k = 0; k < size; k++)
            fl__colour_add(middle + y * line, row + k * x->c, weight[k], line);
    }
    for (int64_t y = 0; y < x->h; y++) {
        memset(total, 0, (size_t)line * sizeof *total);
        for (int64_t k = 0; k < size; k++)
            fl__colour_add(total, middle + fl__vision_reflect(y + k - half, x->h) * line, weight[k], line);
        fl__colour_round(total, line, x->p + y * x->row);
    }
    fl_heap_free(weight);
    return true;
}

/* ---- geometry ---- */

/* Row y by nearest neighbour; u, v: workspace of to->w numbers each. */
static void fl__vision_nearest_row(const fl_vision_pixels *from, const fl_vision_pixels *to, int64_t y,
                                   const double m[6], const uint8_t fill[4], int32_t *u, int32_t *v) {
    const double cx = (double)(from->w - 1) / 2, cy = (double)(from->h - 1) / 2;
    uint8_t *q = to->p + y * to->row;
    fl__move_row(m, cx, cy, (double)y - cy, from->h, from->w, to->w, u, v);
    for (int64_t x = 0; x < to->w; x++, q += to->c) {
        const uint8_t *p = u[x] < 0 ? fill : from->p + v[x] * from->row + u[x] * from->c;
        if (to->c == 3) memcpy(q, p, 3);
        else for (int64_t k = 0; k < to->c; k++) q[k] = p[k & (u[x] < 0 ? 3 : -1)];
    }
}

/* Row y by bilinear interpolation. */
static void fl__vision_bilinear_row(const fl_vision_pixels *from, const fl_vision_pixels *to, int64_t y,
                                    const double m[6], const double fill[4]) {
    const double cx = (double)(from->w - 1) / 2, cy = (double)(from->h - 1) / 2, dy = (double)y - cy;
    for (int64_t x = 0; x < to->w; x++) {
        const double dx = (double)x - cx;
        const double u = m[0] * dx + m[1] * dy + m[2] + cx, v = m[3] * dx + m[4] * dy + m[5] + cy;
        const double fu = floor(u), fv = floor(v);
        for (int64_t k = 0; k < to->c; k++) {
            double sum = 0, inside = 0;
            for (int d = 0; d < 4; d++) {
                const double pu = fu + (d & 1), pv = fv + (d >> 1);
                const double w = (d & 1 ? u - fu : 1 - (u - fu)) * (d >> 1 ? v - fv : 1 - (v - fv));
                if (!(pu >= 0 && pv >= 0 && pu < (double)from->w && pv < (double)from->h)) continue;
                sum += w * from->p[(int64_t)pv * from->row + (int64_t)pu * from->c + k], inside += w;
            }
            /* torchvision applies the weight of the inside twice */
            to->p[y * to->row + x * to->c + k] =
                fl__vision_to_u8((float)nearbyint(inside * (sum - fill[k & 3]) + fill[k & 3]));
        }
    }
}

FL_API fl_tensor *fl_vision_affine(fl_tensor *image, const double m[6], fl_vision_adjust_opts o) {
    fl_vision_pixels from, to;
    if (!fl_vision_pixels_of(&image, &from)) return NULL;
    fl_tensor *t = fl_vision_image(from.c, from.h, from.w, &to);
    int32_t *source = t ? fl_heap_alloc((size_t)(2 * to.w) * sizeof *source) : NULL;
    if (!source) return NULL;
    uint8_t fill[4];
    for (int k = 0; k < 4; k++) fill[k] = fl__vision_to_u8((float)o.fill[k]);
    for (int64_t y = 0; y < to.h; y++)
        if (o.bilinear) fl__vision_bilinear_row(&from, &to, y, m, o.fill);
        else fl__vision_nearest_row(&from, &to, y, m, fill, source, source + to.w);
    fl_heap_free(source);
    return t;
}

/* Inverse of the transform: translate (cx, cy) to the origin, shear, rotate, scale, translate back and by
   t. */
static void fl__vision_inverse_affine(double m[6], double degrees, double tx, double ty, double scale,
                                      double sx, double sy, double cx, double cy) {
    const double angle = degrees * (3.14159265358979323846 / 180);
    const double a = cos(angle - sy) / cos(sy), b = -cos(angle - sy) * tan(sx) / cos(sy) - sin(angle);
    const double c = sin(angle - sy) / cos(sy), d = -sin(angle - sy) * tan(sx) / cos(sy) + cos(angle);
    m[0] = d / scale, m[1] = -b / scale, m[3] = -c / scale, m[4] = a / scale;
    m[2] = m[0] * (-cx - tx) + m[1] * (-cy - ty) + cx;
    m[5] = m[3] * (-cx - tx) + m[4] * (-cy - ty) + cy;
}

static fl_tensor *fl__vision_warp(fl_tensor *image, fl_vision_adjustment how, double v,
                                  fl_vision_adjust_opts o) {
    double m[6];
    const double cx = -(double)image->shape[2] / 2, cy = -(double)image->shape[1] / 2;
    if (how == FL_VISION_ROTATE) fl__vision_inverse_affine(m, -v, 0, 0, 1, 0, 0, 0, 0);
    else if (how == FL_VISION_SHEAR_X) fl__vision_inverse_affine(m, 0, 0, 0, 1, atan(v), 0, cx, cy);
    else if (how == FL_VISION_SHEAR_Y) fl__vision_inverse_affine(m, 0, 0, 0, 1, 0, atan(v), cx, cy);
    else
        fl__vision_inverse_affine(m, 0, how == FL_VISION_TRANSLATE_X ? v : 0,
                                  how == FL_VISION_TRANSLATE_Y ? v : 0, 1, 0, 0, 0, 0);
    return fl_vision_affine(image, m, o);
}

FL_API fl_tensor *fl_vision_adjust_opt(fl_tensor *image, fl_vision_adjustment how, double v,
                                       fl_vision_adjust_opts o) {
    fl_vision_item item = {.image = image};
    fl_vision_pixels from, x;
    if (how > FL_VISION_BLUR || !(fabs(v) <= 1e6) || o.size < 0 || (o.size && o.size % 2 == 0)) {
        fl_fail("fl_vision_adjust: got adjustment %d, v %g, size %d; expected 0 to %d, |v| <= 1e6, an odd "
                "size or 0", (int)how, v, o.size, (int)FL_VISION_BLUR);
        return NULL;
    }
    if (!fl_vision_pixels_of(&image, &from)) return NULL;
    if (from.c > 4) {
        fl_fail("fl_vision_adjust: got %lld channels, expected at most 4", (long long)from.c);
        return NULL;
    }
    if (how >= FL_VISION_ROTATE && how <= FL_VISION_TRANSLATE_Y) return fl__vision_warp(image, how, v, o);
    if (!fl__vision_copy_image(&item, &x)) return NULL;
    const bool rgb = x.c >= 3;
    const int64_t n = x.h * x.w;
    switch (how) {
    case FL_VISION_CONTRAST: fl__vision_contrast(&x, v); break;
    case FL_VISION_SATURATION: if (rgb) fl__colour_saturate(x.p, n, x.c, (float)v, (float)(1 - v)); break;
    case FL_VISION_GRAYSCALE: if (rgb) fl__colour_saturate(x.p, n, x.c, 0, 1); break;
    case FL_VISION_HUE: if (rgb) fl__colour_hue(x.p, n, x.c, (float)v); break;
    case FL_VISION_SHARPNESS: fl__vision_sharpen(&from, &x, v); break;
    case FL_VISION_AUTOCONTRAST: fl__vision_autocontrast(&x); break;
    case FL_VISION_EQUALIZE: fl__vision_equalize(&x); break;
    case FL_VISION_BLUR:
        if (!(v > 0 && v <= 1e3 && o.size < 1 << 14)) {
            fl_fail("fl_vision_adjust: got blur sigma %g, size %d, expected sigma in (0, 1000], size < %d", v,
                    o.size, 1 << 14);
            return NULL;
        }
        if (!fl__vision_blur(&from, &x, v, o.size ? o.size : 2 * (int64_t)ceil(3 * v) + 1)) return NULL;
        break;
    default: fl__vision_pointwise(&x, how, v);
    }
    return item.image;
}

/* ---- random adjustments ---- */

static bool fl__vision_adjust_random(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    return (item->image = fl_vision_adjust(item->image, (fl_vision_adjustment)s->n[0],
                                           fl__vision_uniform(rng, s->a[0], s->a[1]))) != NULL;
}

FL_API fl_vision_transform fl_vision_random_adjust(fl_vision_adjustment how, double low, double high,
                                                   double p) {
    return (fl_vision_transform){
        .name = "change", .apply = fl__vision_adjust_random, .p = p, .n = {how}, .a = {low, high}};
}

static bool fl__vision_jitter(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    static const fl_vision_adjustment how[] = {FL_VISION_BRIGHTNESS, FL_VISION_CONTRAST, FL_VISION_SATURATION,
                                               FL_VISION_HUE};
    int order[] = {0, 1, 2, 3};
    for (int i = 3; i > 0; i--) {
        const int64_t k = fl__vision_between(rng, 0, i);
        const int swap = order[i];
        order[i] = order[k], order[k] = swap;
    }
    for (int i = 0; i < 4 && item->image; i++) {
        const int k = order[i];
        const double v = s->a[k], centre = k < 3;
        if (v > 0)
            item->image = fl_vision_adjust(
                item->image, how[k], fl__vision_uniform(rng, k < 3 ? fmax(0, 1 - v) : -v, centre + v));
    }
    return item->image != NULL;
}

FL_API fl_vision_transform fl_vision_color_jitter(double brightness, double contrast, double saturation,
                                                  double hue) {
    return (fl_vision_transform){.name = "color_jitter", .apply = fl__vision_jitter, .p = 1,
                                 .a = {brightness, contrast, saturation, hue}};
}

static bool fl__vision_affine_random(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    double m[6];
    const double h = (double)item->image->shape[1], w = (double)item->image->shape[2];
    const double angle = fl__vision_uniform(rng, -s->a[0], s->a[0]);
    const double tx = nearbyint(fl__vision_uniform(rng, -s->a[1] * w, s->a[1] * w));
    const double ty = nearbyint(fl__vision_uniform(rng, -s->a[2] * h, s->a[2] * h));
    fl__vision_inverse_affine(m, angle, tx, ty, fl__vision_uniform(rng, s->a[3], s->a[4]), 0, 0, 0, 0);
    return (item->image = fl_vision_affine(item->image, m, (fl_vision_adjust_opts){.size = 0})) != NULL;
}

FL_API fl_vision_transform fl_vision_random_affine(double degrees, double translate_x, double translate_y,
                                                   double low, double high) {
    return (fl_vision_transform){.name = "random_affine", .apply = fl__vision_affine_random, .p = 1,
                                 .a = {degrees, translate_x, translate_y, low ? low : 1, high ? high : 1}};
}

static void fl__vision_fill(const fl_vision_pixels *x, int64_t y0, int64_t x0, int64_t h, int64_t w,
                            int value, fl_rng *rng) {
    for (int64_t y = y0 > 0 ? y0 : 0; y < y0 + h && y < x->h; y++) {
        const int64_t from = x0 > 0 ? x0 : 0, to = x0 + w < x->w ? x0 + w : x->w;
        uint8_t *p = x->p + y * x->row + from * x->c;
        if (value >= 0 && from < to) memset(p, value, (size_t)((to - from) * x->c));
        for (int64_t i = 0; value < 0 && i < (to - from) * x->c; i++)
            p[i] = (uint8_t)fl__vision_between(rng, 0, 255);
    }
}

static bool fl__vision_erase(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    fl_vision_pixels x;
    if (!fl__vision_copy_image(item, &x)) return false;
    for (int t = 0; t < 10; t++) {
        const double area = (double)(x.h * x.w) * fl__vision_uniform(rng, 0.02, 1.0 / 3);
        const double ratio = exp(fl__vision_uniform(rng, log(0.3), log(3.3)));
        const int64_t h = (int64_t)nearbyint(sqrt(area * ratio)), w = (int64_t)nearbyint(sqrt(area / ratio));
        if (h >= x.h || w >= x.w) continue;
        const int64_t y0 = fl__vision_between(rng, 0, x.h - h), x0 = fl__vision_between(rng, 0, x.w - w);
        fl__vision_fill(&x, y0, x0, h, w, (int)s->a[0], rng);
        break;
    }
    return true;
}

FL_API fl_vision_transform fl_vision_random_erasing(double p, double value) {
    return (fl_vision_transform){.name = "random_erasing", .apply = fl__vision_erase, .p = p,
                                 .a = {fl__vision_clamp_level(value, -1)}};
}

static bool fl__vision_cutout(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    fl_vision_pixels x;
    if (!fl__vision_copy_image(item, &x)) return false;
    const int64_t side = s->n[0], cy = fl__vision_between(rng, 0, x.h - 1),
                  cx = fl__vision_between(rng, 0, x.w - 1);
    fl__vision_fill(&x, cy - side / 2, cx - side / 2, side, side, (int)s->a[0], rng);
    return true;
}

FL_API fl_vision_transform fl_vision_cutout(int64_t side, double value) {
    return (fl_vision_transform){.name = "cutout", .apply = fl__vision_cutout, .p = 1,
                                 .n = {fl__vision_clamp_side(side)}, .a = {fl__vision_clamp_level(value, 0)}};
}

/* ---- augmentation policies: adjustments by a magnitude m in [0, 1] ---- */

/* v = base + sign * most * m; most for RandAugment, TrivialAugmentWide, DeiT. part: relative to the size. */
typedef struct fl__vision_policy {
    fl_vision_adjustment how;
    double base, most[3];
    bool sign, part;
} fl__vision_policy;

enum { FL__RAND, FL__TRIVIAL, FL__DEIT };
static const fl__vision_policy fl__vision_policies[] = {
    {FL_VISION_IDENTITY, 0, {0, 0, -1}, false, false},
    {FL_VISION_SHEAR_X, 0, {0.3, 0.99, 0.3}, true, false},
    {FL_VISION_SHEAR_Y, 0, {0.3, 0.99, 0.3}, true, false},
    {FL_VISION_TRANSLATE_X, 0, {150.0 / 331, 32, 0.45}, true, true},
    {FL_VISION_TRANSLATE_Y, 0, {150.0 / 331, 32, 0.45}, true, true},
    {FL_VISION_ROTATE, 0, {30, 135, 30}, true, false},
    {FL_VISION_BRIGHTNESS, 1, {0.9, 0.99, 0.9}, true, false},
    {FL_VISION_SATURATION, 1, {0.9, 0.99, 0.9}, true, false},
    {FL_VISION_CONTRAST, 1, {0.9, 0.99, 0.9}, true, false},
    {FL_VISION_SHARPNESS, 1, {0.9, 0.99, 0.9}, true, false},
    {FL_VISION_POSTERIZE, 8, {-4, -6, -4}, false, false}, /* bits, rounded */
    {FL_VISION_SOLARIZE, 255, {-255, -255, -256}, false, false},
    {FL_VISION_AUTOCONTRAST, 0, {0, 0, 0}, false, false},
    {FL_VISION_EQUALIZE, 0, {0, 0, 0}, false, false},
    {FL_VISION_INVERT, 0, {-1, -1, 0}, false, false}, /* this and the next: DeiT only */
    {FL_VISION_SOLARIZE_ADD, 0, {-1, -1, 110}, false, false},
};
enum { FL__POLICIES = sizeof fl__vision_policies / sizeof *fl__vision_policies };

/* Number i of n from first to last, rounded as torch.linspace does. */
static double fl__vision_linspace(double first, double last, double i, int n) {
    const float step = ((float)last - (float)first) / (float)(n - 1);
    return i < n / 2 ? (float)first + step * (float)i : (float)last - step * (float)(n - 1 - i);
}

/* Applies policy p with magnitude m of 0 to n - 1; n 0: m in [0, 1]. */
static bool fl__vision_apply_policy(fl_vision_item *item, fl_rng *rng, int scheme, const fl__vision_policy *p,
                                    double m, int n) {
    const bool of_size = p->part && scheme != FL__TRIVIAL;
    const double most =
        p->most[scheme] * (of_size ? (double)item->image->shape[p->how == FL_VISION_TRANSLATE_X ? 2 : 1] : 1);
    double v = n ? fl__vision_linspace(0, most, m, n) : most * m;
    if (p->how == FL_VISION_SOLARIZE && n) v = 255 * fl__vision_linspace(1, 0, m, n) - 255;
    if (p->part && scheme != FL__DEIT) v = trunc(v);
    if (p->how == FL_VISION_POSTERIZE) v = scheme == FL__DEIT ? -4 - trunc(4 * m) : nearbyint(v);
    if (p->how == FL_VISION_SOLARIZE && scheme == FL__DEIT) v = 1 - trunc(256 * m);
    if (p->how == FL_VISION_SOLARIZE_ADD) v = trunc(v);
    if (p->sign && fl_rng_uniform(rng) < 0.5) v = -v;
    v += p->base;
    if (scheme == FL__DEIT && p->base == 1 && v < 0.1) v = 0.1;
    fl_vision_adjust_opts o = {.size = 0};
    if (scheme == FL__DEIT)
        for (int i = 0; i < 3; i++) o.fill[i] = (double[])FL_VISION_IMAGENET_MEAN[i] * 255;
    return (item->image = fl_vision_adjust_opt(item->image, p->how, v, o)) != NULL;
}

static bool fl__vision_augment(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    const int scheme = (int)s->n[0];
    const bool deit = scheme == FL__DEIT;
    bool ok = true;
    for (int64_t i = 0; ok && i < s->n[1]; i++) {
        double m = s->a[0];
        if (scheme == FL__TRIVIAL) m = (double)fl__vision_between(rng, 0, 30);
        if (deit) {
            if (fl_rng_uniform(rng) >= 0.5) continue;
            m = fmin(fmax(9 + 0.5 * fl__vision_normal(rng), 0), 10) / 10;
        }
        const int64_t k = fl__vision_between(rng, deit, deit ? FL__POLICIES - 1 : FL__POLICIES - 3);
        ok = fl__vision_apply_policy(item, rng, scheme, &fl__vision_policies[k], m, deit ? 0 : 31);
    }
    return ok;
}

/* AutoAugment: one adjustment of a pair, its probability, its magnitude of 10. */
typedef struct fl__vision_subpolicy {
    fl_vision_adjustment how;
    double p;
    int m;
} fl__vision_subpolicy;
static const fl__vision_subpolicy fl__vision_auto_policies[25][2] = {
    {{FL_VISION_POSTERIZE, .4, 8}, {FL_VISION_ROTATE, .6, 9}},
    {{FL_VISION_SOLARIZE, .6, 5}, {FL_VISION_AUTOCONTRAST, .6, 0}},
    {{FL_VISION_EQUALIZE, .8, 0}, {FL_VISION_EQUALIZE, .6, 0}},
    {{FL_VISION_POSTERIZE, .6, 7}, {FL_VISION_POSTERIZE, .6, 6}},
    {{FL_VISION_EQUALIZE, .4, 0}, {FL_VISION_SOLARIZE, .2, 4}},
    {{FL_VISION_EQUALIZE, .4, 0}, {FL_VISION_ROTATE, .8, 8}},
    {{FL_VISION_SOLARIZE, .6, 3}, {FL_VISION_EQUALIZE, .6, 0}},
    {{FL_VISION_POSTERIZE, .8, 5}, {FL_VISION_EQUALIZE, 1, 0}},
    {{FL_VISION_ROTATE, .2, 3}, {FL_VISION_SOLARIZE, .6, 8}},
    {{FL_VISION_EQUALIZE, .6, 0}, {FL_VISION_POSTERIZE, .4, 6}},
    {{FL_VISION_ROTATE, .8, 8}, {FL_VISION_SATURATION, .4, 0}},
    {{FL_VISION_ROTATE, .4, 9}, {FL_VISION_EQUALIZE, .6, 0}},
    {{FL_VISION_EQUALIZE, 0, 0}, {FL_VISION_EQUALIZE, .8, 0}},
    {{FL_VISION_INVERT, .6, 0}, {FL_VISION_EQUALIZE, 1, 0}},
    {{FL_VISION_SATURATION, .6, 4}, {FL_VISION_CONTRAST, 1, 8}},
    {{FL_VISION_ROTATE, .8, 8}, {FL_VISION_SATURATION, 1, 2}},
    {{FL_VISION_SATURATION, .8, 8}, {FL_VISION_SOLARIZE, .8, 7}},
    {{FL_VISION_SHARPNESS, .4, 7}, {FL_VISION_INVERT, .6, 0}},
    {{FL_VISION_SHEAR_X, .6, 5}, {FL_VISION_EQUALIZE, 1, 0}},
    {{FL_VISION_SATURATION, .4, 0}, {FL_VISION_EQUALIZE, .6, 0}},
    {{FL_VISION_EQUALIZE, .4, 0}, {FL_VISION_SOLARIZE, .2, 4}},
    {{FL_VISION_SOLARIZE, .6, 5}, {FL_VISION_AUTOCONTRAST, .6, 0}},
    {{FL_VISION_INVERT, .6, 0}, {FL_VISION_EQUALIZE, 1, 0}},
    {{FL_VISION_SATURATION, .6, 4}, {FL_VISION_CONTRAST, 1, 8}},
    {{FL_VISION_EQUALIZE, .8, 0}, {FL_VISION_EQUALIZE, .6, 0}},
};

static bool fl__vision_auto_augment(const fl_vision_transform *s, fl_vision_item *item, fl_rng *rng) {
    (void)s;
    const fl__vision_subpolicy *pair = fl__vision_auto_policies[fl__vision_between(rng, 0, 24)];
    for (int i = 0; i < 2; i++) {
        const bool skip = fl_rng_uniform(rng) >= pair[i].p;
        int64_t k = 0;
        while (fl__vision_policies[k].how != pair[i].how) k++;
        if (!skip && !fl__vision_apply_policy(item, rng, FL__RAND, &fl__vision_policies[k], pair[i].m, 10))
            return false;
    }
    return true;
}

FL_API fl_vision_transform fl_vision_auto_augment(void) {
    return fl__vision_step_of("auto_augment", fl__vision_auto_augment, 1);
}

FL_API fl_vision_transform fl_vision_rand_augment(int64_t changes, int64_t magnitude) {
    return (fl_vision_transform){.name = "rand_augment",
                                 .apply = fl__vision_augment,
                                 .p = 1,
                                 .n = {FL__RAND, changes ? changes : 2},
                                 .a = {(double)fl__vision_clamp_side(magnitude ? magnitude : 9)}};
}

FL_API fl_vision_transform fl_vision_trivial_augment_wide(void) {
    return (fl_vision_transform){
        .name = "trivial_augment_wide", .apply = fl__vision_augment, .p = 1, .n = {FL__TRIVIAL, 1}};
}

FL_API fl_vision_transform fl_vision_deit_augment(void) {
    return (fl_vision_transform){.name = "deit_augment", .apply = fl__vision_augment, .p = 1,
                                 .n = {FL__DEIT, 2}};
}

/* ---- batches ---- */

typedef struct fl__vision_batches {
    fl_vision_batch_opts o; /* steps is a copy */
    int64_t size, epoch;
    float table[4][256];    /* normalised value of each level, per channel */
    pthread_mutex_t lock;
    int64_t *bad, n_bad, cap_bad; /* ids of skipped samples, guarded by lock */
} fl__vision_batches;

static bool fl__vision_batch_get(fl_data_set *self, int64_t i, fl_data_sample *out);

static void fl__vision_batch_close(fl_data_set *self) {
    fl__vision_batches *b = self->user;
    if (b) fl_heap_free((void *)(uintptr_t)b->o.steps), fl_heap_free(b->bad), pthread_mutex_destroy(&b->lock);
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

/* Writes an image to its slice of the batch, normalised. */
static void fl__vision_write_image(const fl__vision_batches *b, const fl_vision_pixels *x, void *to) {
    const int64_t line = x->w * x->c;
    for (int64_t y = 0; y < x->h; y++) {
        const uint8_t *p = x->p + y * x->row;
        if (b->o.u8) {
            memcpy((uint8_t *)to + y * line, p, (size_t)line);
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

/* Decodes and resizes only the region of a random resized crop. */
static fl_tensor *fl__vision_decode_region(const fl__vision_batches *b, const void *bytes, size_t n,
                                           const char *name, fl_rng *rng) {
    const fl_vision_transform *s = b->o.steps;
    fl_vision_info info;
    int64_t part[4];
    if (!fl_vision_inspect(bytes, n, false, &info)) return NULL;
    fl__vision_sample_region(s, rng, info.h, info.w, part);
    fl_tensor *t = fl_vision_decode(bytes, n, .depth = 8, .name = name, .y = part[0], .x = part[1],
                                    .h = part[2], .w = part[3], .max_pixels = b->o.max_pixels);
    return t ? fl_vision_resize_image(t, s->n[0], s->n[0], .filter = (fl_vision_filter)s->n[2]) : NULL;
}

/* Sample i of the inner set, transformed. */
static bool fl__vision_sample(fl_data_set *self, int64_t i, fl_data_sample *out, fl_vision_pixels *pixels) {
    const fl__vision_batches *b = self->user;
    fl_data_set *inner = fl_data_inner(self, 0);
    fl_rng rng = fl_data_rng(b->o.seed, b->epoch, fl_data_id(inner, i));
    if (!fl_data_get(inner, i, out)) return false;
    fl_vision_item item = {.image = out->n ? out->t[0] : NULL};
    if (b->o.objects) {
        if (out->n < 5)
            return fl_fail("fl_vision_batch: sample %lld has %d fields, expected 5 or 6 with .objects",
                           (long long)i, out->n);
        item.boxes = out->t[1], item.labels = out->t[2], item.area = out->t[3];
        item.masks = out->n > 5 ? out->t[5] : NULL;
    }
    if (!item.image) return fl_fail("fl_vision_batch: sample %lld has no image", (long long)i);
    int done = 0;
    if (item.image->ndim == 1 && item.image->dtype == FL_U8 && fl_numel(item.image)) {
        const bool part = b->o.region && !b->o.objects && b->o.n_steps &&
                          b->o.steps->apply == fl__vision_random_resized_crop;
        char name[600];
        fl_vision_sample_name(inner, i, name, sizeof name);
        fl_tensor *file = item.image;
        const void *bytes = fl_map(file, FL_READ);
        const size_t n = (size_t)fl_numel(file);
        if (!bytes) return false;
        item.image = part ? fl__vision_decode_region(b, bytes, n, name, &rng)
                          : fl_vision_decode(bytes, n, .depth = 8, .name = name,
                                             .max_pixels = b->o.max_pixels);
        fl_unmap(file, FL_READ);
        done = part;
    }
    if (!item.image || !fl_vision_apply(b->o.steps + done, b->o.n_steps - done, &item, &rng) ||
        !fl_vision_pixels_of(&item.image, pixels)) return false;
    out->t[0] = item.image;
    if (b->o.objects) out->t[1] = item.boxes, out->t[2] = item.labels, out->t[3] = item.area;
    if (item.masks) out->t[5] = item.masks;
    return true;
}

/* Turns the current error about sample i into a message, once per sample. False if the sample is not its
   cause (out of memory). */
static bool fl__vision_report_bad(fl__vision_batches *b, fl_data_set *inner, int64_t i) {
    const int64_t id = fl_data_id(inner, i);
    char name[600];
    bool known = false, noted = true;
    if (strstr(fl_error(), "memory")) return false;
    pthread_mutex_lock(&b->lock);
    for (int64_t k = 0; k < b->n_bad && !known; k++) known = b->bad[k] == id;
    if (!known && (noted = fl_heap_grow(&b->bad, &b->cap_bad, b->n_bad + 1, sizeof *b->bad)))
        b->bad[b->n_bad++] = id;
    pthread_mutex_unlock(&b->lock);
    fl_vision_sample_name(inner, i, name, sizeof name);
    if (!known && noted) fl_log_message(FL_LOG_WARN, "%s is left out: %s", name, fl_error());
    if (noted) fl_error_clear();
    return noted;
}

/* Sample i, or with skip_bad the next good one. */
static bool fl__vision_next_good(fl_data_set *self, int64_t i, fl_data_sample *out,
                                 fl_vision_pixels *pixels) {
    fl__vision_batches *b = self->user;
    fl_data_set *inner = fl_data_inner(self, 0);
    const int64_t n = fl_data_size(inner);
    for (int64_t k = 0; k < n; k++) {
        *out = (fl_data_sample){0};
        if (fl__vision_sample(self, (i + k) % n, out, pixels)) return true;
        if (!b->o.skip_bad || !fl__vision_report_bad(b, inner, (i + k) % n)) return false;
    }
    return fl_fail("fl_vision_batch: all %lld samples are bad", (long long)n);
}

FL_API int64_t fl_vision_skipped_samples(fl_data_set *batches) {
    while (batches && batches->get != fl__vision_batch_get) batches = fl_data_inner(batches, 0);
    if (!batches) return 0;
    fl__vision_batches *b = batches->user;
    pthread_mutex_lock(&b->lock);
    const int64_t n = b->n_bad;
    pthread_mutex_unlock(&b->lock);
    return n;
}

/* Stacks the fields other than the image of sample `at` of n: field k into out->t[k]. */
static bool fl__vision_stack(fl_data_sample *out, const fl_data_sample *one, int64_t at, int64_t n) {
    if (!at) {
        out->n = one->n;
        for (int k = 1; k < one->n; k++) {
            fl_shape s = fl_shape_of(one->t[k]), all = {s.ndim + 1, {n}};
            if (s.ndim == FL_MAX_DIMS)
                return fl_fail("fl_vision_batch: field %d has %d axes, expected at most %d", k, s.ndim,
                               FL_MAX_DIMS - 1);
            memcpy(all.dim + 1, s.dim, (size_t)s.ndim * sizeof *s.dim);
            if (!(out->t[k] = fl_data_host_tensor(all, one->t[k]->dtype))) return false;
        }
    }
    if (one->n != out->n)
        return fl_fail("fl_vision_batch: sample has %d fields, expected %d as in the batch", one->n, out->n);
    for (int k = 1; k < one->n; k++) {
        fl_tensor *t = one->t[k], *all = out->t[k];
        const int64_t bytes = fl_numel(t) * (int64_t)fl_dtype_size(t->dtype);
        if (t->dtype != all->dtype || t->ndim != all->ndim - 1 || fl_numel(t) * n != fl_numel(all))
            return fl_fail("fl_vision_batch: field %d is %s %s, expected a row of the batch's %s %s", k,
                           fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t), fl_dtype_name(all->dtype),
                           FL_SHAPE_TEXT(all));
        char *to = fl_map(all, FL_READ | FL_WRITE);
        const bool ok = to && (!bytes || fl_to_host(t, to + at * bytes, (size_t)bytes));
        if (to) fl_unmap(all, FL_READ | FL_WRITE);
        if (!ok) return false;
    }
    return true;
}

/* ---- batches with objects ---- */

enum { FL__VISION_FIELDS = 7 }; /* of a batch with objects */

/* Maps the first n fields of a sample to p. False, with none mapped, after an error. */
static bool fl__vision_map_fields(const fl_data_sample *s, int n, int access, void **p) {
    int k = 0;
    while (k < n && (p[k] = fl_map(s->t[k], access))) k++;
    if (k == n) return true;
    while (k-- > 0) fl_unmap(s->t[k], access);
    return false;
}

static void fl__vision_unmap_fields(const fl_data_sample *s, int n, int access) {
    while (n-- > 0) fl_unmap(s->t[n], access);
}

/* Writes image k of a batch at its memory `to`, and its objects at index `at`: boxes relative to its size,
   labels and masks. Returns the number of objects, -1 after an error. */
static int64_t fl__vision_write_sample(const fl__vision_batches *b, const fl_data_sample *one,
                                       const fl_vision_pixels *x, const fl_data_sample *out, void **to,
                                       int64_t k, int64_t at) {
    const int64_t n = one->t[2]->shape[0], H = out->t[1]->shape[1], W = out->t[1]->shape[2];
    const int64_t row_bytes = W * x->c * (b->o.u8 ? 1 : (int64_t)sizeof(float));
    const int fields = out->n - 1;
    void *from[FL__VISION_FIELDS];
    if (!fl__vision_map_fields(one, fields, FL_READ, from)) return -1;
    for (int64_t y = 0; y < x->h; y++) {
        fl_vision_pixels row = *x;
        row.p += y * row.row, row.h = 1;
        fl__vision_write_image(b, &row, (char *)to[0] + (k * H + y) * row_bytes);
        memset((bool *)to[1] + (k * H + y) * W, false, (size_t)x->w);
    }
    const float *corner = from[1];
    float *box = (float *)to[2] + 4 * at;
    for (int64_t i = 0; i < n; i++, corner += 4, box += 4) {
        box[0] = (corner[0] + corner[2]) / 2 / (float)x->w;
        box[1] = (corner[1] + corner[3]) / 2 / (float)x->h;
        box[2] = (corner[2] - corner[0]) / (float)x->w, box[3] = (corner[3] - corner[1]) / (float)x->h;
    }
    memcpy((int64_t *)to[3] + at, from[2], (size_t)n * sizeof(int64_t));
    ((int64_t *)to[4])[k] = n;
    memcpy((int64_t *)to[5] + 3 * k, from[4], 3 * sizeof(int64_t));
    for (int64_t y = 0; fields > 5 && y < n * x->h; y++)
        memcpy((uint8_t *)to[6] + ((at + y / x->h) * H + y % x->h) * W,
               (const uint8_t *)from[5] + y * x->w, (size_t)x->w);
    fl__vision_unmap_fields(one, fields, FL_READ);
    return n;
}

/* Checks the fields' dtypes and shapes, and makes them contiguous. */
static bool fl__vision_objects_ok(fl_data_sample *one, const fl_vision_pixels *x) {
    static const fl_dtype dtype[] = {FL_U8, FL_F32, FL_I64, FL_F32, FL_I64, FL_U8};
    const int64_t n = one->t[2] && one->t[2]->ndim == 1 ? one->t[2]->shape[0] : -1;
    bool ok = n >= 0 && one->t[1] && fl_numel(one->t[1]) == 4 * n && one->t[4] && fl_numel(one->t[4]) == 3 &&
              (one->n < 6 || (one->t[5] && fl_numel(one->t[5]) == n * x->h * x->w));
    for (int k = 1; ok && k < one->n && k < 6; k++)
        ok = one->t[k] && one->t[k]->dtype == dtype[k] && (one->t[k] = fl_contiguous(one->t[k]));
    return ok ||
           fl_fail("fl_vision_batch: a sample's boxes f32 [n, 4], labels i64 [n], areas, i64 [3], masks do "
                   "not match each other, or its %lld x %lld pixels",
                   (long long)x->w, (long long)x->h);
}

/* Batches n samples, padded to the largest height and width. */
static bool fl__vision_pad_batch(const fl__vision_batches *b, const fl_data_sample *one,
                                 const fl_vision_pixels *x, int64_t n, fl_data_sample *out) {
    static const int planes[] = {0, 3, 1, 2};
    int64_t h = 0, w = 0, objects = 0, at = 0;
    const int64_t c = x->c, bytes = b->o.u8 ? 1 : (int64_t)sizeof(float);
    bool masks = true;
    for (int64_t k = 0; k < n; k++) {
        h = x[k].h > h ? x[k].h : h, w = x[k].w > w ? x[k].w : w, objects += one[k].t[2]->shape[0];
        masks = masks && one[k].n > 5;
        if (x[k].c != c || c > 4)
            return fl_fail("fl_vision_batch: got images of %lld and %lld channels, expected one number, at "
                           "most 4", (long long)c, (long long)x[k].c);
    }
    const fl_shape shape[] = {FL_SHAPE(n, h, w, c),   FL_SHAPE(n, h, w), FL_SHAPE(objects, 4),
                              FL_SHAPE(objects),      FL_SHAPE(n),       FL_SHAPE(n, 3),
                              FL_SHAPE(objects, h, w)};
    const fl_dtype dtype[] = {b->o.u8 ? FL_U8 : FL_F32, FL_B8, FL_F32, FL_I64, FL_I64, FL_I64, FL_U8};
    *out = (fl_data_sample){masks ? 7 : 6, {NULL}};
    for (int k = 0; k < out->n; k++)
        if (!(out->t[k] = fl_data_host_tensor(shape[k], dtype[k]))) return false;
    void *to[FL__VISION_FIELDS];
    if (!fl__vision_map_fields(out, out->n, FL_WRITE, to)) return false;
    memset(to[0], 0, (size_t)(n * h * w * c * bytes));
    memset(to[1], true, (size_t)(n * h * w));
    if (masks) memset(to[6], 0, (size_t)(objects * h * w));
    int64_t written = 0;
    for (int64_t k = 0; k < n && written >= 0; k++, at += written)
        written = fl__vision_write_sample(b, &one[k], &x[k], out, to, k, at);
    fl__vision_unmap_fields(out, out->n, FL_WRITE);
    return written >= 0 && (out->t[0] = fl_permute(out->t[0], 4, planes)) != NULL;
}

static bool fl__vision_objects_get(fl_data_set *self, int64_t begin, int64_t n, fl_data_sample *out) {
    const fl__vision_batches *b = self->user;
    fl_data_sample *one = fl_heap_alloc((size_t)n * (sizeof *one + sizeof(fl_vision_pixels)));
    fl_vision_pixels *x = one ? (fl_vision_pixels *)(void *)(one + n) : NULL;
    fl_scope s = fl_scope_begin();
    bool ok = x && s.depth_ > 0;
    for (int64_t k = 0; ok && k < n; k++)
        ok = fl__vision_next_good(self, begin + k, &one[k], &x[k]) && fl__vision_objects_ok(&one[k], &x[k]);
    fl_data_sample made = {0};
    ok = ok && fl__vision_pad_batch(b, one, x, n, &made);
    for (int k = 0; ok && k < made.n; k++) ok = fl_scope_escape(&s, made.t[k]) != NULL;
    fl_scope_end(&s);
    fl_heap_free(one);
    if (ok) *out = made;
    return ok;
}

static bool fl__vision_batch_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    static const int planes[] = {0, 3, 1, 2};
    const fl__vision_batches *b = self->user;
    const int64_t all = fl_data_size(fl_data_inner(self, 0)), begin = i * b->size;
    const int64_t n = all - begin < b->size ? all - begin : b->size;
    if (b->o.objects) return fl__vision_objects_get(self, begin, n, out);
    fl_data_sample made = {0};
    fl_tensor *batch = NULL;
    int64_t c = 0, h = 0, w = 0;
    for (int64_t k = 0; k < n; k++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample one = {0};
        fl_vision_pixels x;
        bool ok = fl__vision_next_good(self, begin + k, &one, &x);
        if (ok && !k) {
            c = x.c, h = x.h, w = x.w;
            ok = c <= 4 ||
                 fl_fail("fl_vision_batch: got images of %lld channels, expected at most 4", (long long)c);
            batch = ok ? fl_scope_escape(&s,
                                         fl_data_host_tensor(FL_SHAPE(n, h, w, c), b->o.u8 ? FL_U8 : FL_F32))
                       : NULL;
            ok = batch != NULL;
        }
        if (ok && (x.c != c || x.h != h || x.w != w))
            ok = fl_fail(
                "fl_vision_batch: sample %lld is [%lld, %lld, %lld], expected the first's [%lld, %lld, %lld]",
                (long long)(begin + k), (long long)x.c, (long long)x.h, (long long)x.w, (long long)c,
                (long long)h, (long long)w);
        char *to = ok ? fl_map(batch, FL_READ | FL_WRITE) : NULL;
        if (to) {
            fl__vision_write_image(b, &x, to + k * c * h * w * (b->o.u8 ? 1 : (int64_t)sizeof(float)));
            fl_unmap(batch, FL_READ | FL_WRITE);
        }
        ok = to && fl__vision_stack(&made, &one, k, n);
        for (int f = 1; ok && !k && f < made.n; f++) ok = fl_scope_escape(&s, made.t[f]) != NULL;
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
        ok = fl_fail("fl_vision_batch: got size %lld, %d steps%s; expected a size of 1 to %d, n_steps >= 0",
                     (long long)size, o.n_steps, o.n_steps && !o.steps ? " at NULL" : "", INT32_MAX);
    for (int k = 0; ok && k < 4; k++)
        ok = (isfinite(o.mean[k]) && o.std[k] >= 0 && isfinite(o.std[k])) ||
             fl_fail("fl_vision_batch: channel %d: mean %g, std %g, expected finite, std >= 0", k, o.mean[k],
                     o.std[k]);
    fl__vision_batches *b = ok ? fl_heap_alloc(sizeof *b) : NULL;
    fl_vision_transform *steps = b ? fl_heap_alloc((size_t)o.n_steps * sizeof *steps + 1) : NULL;
    if (!steps) {
        fl_heap_free(b);
        fl_data_free(set);
        return NULL;
    }
    if (o.n_steps) memcpy(steps, o.steps, (size_t)o.n_steps * sizeof *steps);
    b->o = o, b->o.steps = steps, b->size = size;
    pthread_mutex_init(&b->lock, NULL);
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

/* ---- mixup and CutMix ---- */

typedef struct fl__vision_mix {
    fl_vision_mixup_opts o;
    int64_t classes, epoch;
} fl__vision_mix;

static void fl__vision_user_close(fl_data_set *self) {
    fl_heap_free(self->user);
}

static bool fl__vision_mix_start(fl_data_set *self, int64_t epoch) {
    ((fl__vision_mix *)self->user)->epoch = epoch;
    return true;
}

/* Samples the gamma distribution of shape a (Marsaglia and Tsang 2000). */
static double fl__vision_gamma(fl_rng *rng, double a) {
    const double less = a < 1 ? pow(1 - fl_rng_uniform(rng), 1 / a) : 1, d = (a < 1 ? a + 1 : a) - 1.0 / 3,
                 c = 1 / sqrt(9 * d);
    for (;;) {
        const double x = fl__vision_normal(rng), v = (1 + c * x) * (1 + c * x) * (1 + c * x);
        if (v > 0 && log(1 - fl_rng_uniform(rng)) < x * x / 2 + d - d * v + d * log(v)) return less * d * v;
    }
}

/* Within box, images a and b, stored h, w, c, become v a + (1 - v) b and v b + (1 - v) a. */
static void fl__vision_mix_pair(float *a, float *b, int64_t w, int64_t c, const int64_t box[4], float v) {
    for (int64_t y = box[0]; y < box[2]; y++)
        for (int64_t i = (y * w + box[1]) * c; i < (y * w + box[3]) * c; i++) {
            const float p = a[i], q = b[i];
            a[i] = v * p + (1 - v) * q, b[i] = v * q + (1 - v) * p;
        }
}

static bool fl__vision_mix_targets(const fl__vision_mix *m, const int64_t *label, int64_t n, double v,
                                   float *to) {
    const double low = m->o.smoothing / (double)m->classes, high = 1 - m->o.smoothing + low;
    for (int64_t i = 0; i < n; i++) {
        const int64_t a = label[i], b = label[n - 1 - i];
        if (a < 0 || a >= m->classes)
            return fl_fail("fl_vision_mixup: label is %lld, expected 0 to %lld", (long long)a,
                           (long long)m->classes - 1);
        for (int64_t k = 0; k < m->classes; k++)
            to[i * m->classes + k] = (float)(v * (k == a ? high : low) + (1 - v) * (k == b ? high : low));
    }
    return true;
}

static bool fl__vision_mix_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    static const int pixels[] = {0, 2, 3, 1}, planes[] = {0, 3, 1, 2};
    const fl__vision_mix *m = self->user;
    fl_data_set *inner = fl_data_inner(self, 0);
    fl_rng rng = fl_data_rng(m->o.seed, m->epoch, fl_data_id(inner, i));
    fl_data_sample s;
    if (!fl_data_get(inner, i, &s)) return false;
    if (s.n < 2 || s.t[0]->ndim != 4 || s.t[0]->dtype != FL_F32 || s.t[1]->dtype != FL_I64 ||
        s.t[1]->ndim != 1 || s.t[1]->shape[0] != s.t[0]->shape[0])
        return fl_fail("fl_vision_mixup: batch %lld: expected images f32 [n, c, h, w] and labels i64 [n]",
                       (long long)i);
    const int64_t n = s.t[0]->shape[0], c = s.t[0]->shape[1], h = s.t[0]->shape[2], w = s.t[0]->shape[3];
    fl_tensor *x = fl_clone(fl_contiguous(fl_permute(s.t[0], 4, pixels))),
              *y = fl_data_host_tensor(FL_SHAPE(n, m->classes), FL_F32), *label = fl_contiguous(s.t[1]);
    if (!x || !y || !label) return false;
    const bool mixed = fl_rng_uniform(&rng) < m->o.p,
               cut = m->o.cutmix > 0 && (m->o.mixup <= 0 || fl_rng_uniform(&rng) < m->o.cut);
    const double alpha = cut ? m->o.cutmix : m->o.mixup;
    double v = 1;
    int64_t box[4] = {0, 0, h, w};
    if (mixed && alpha > 0) {
        const double a = fl__vision_gamma(&rng, alpha), b = fl__vision_gamma(&rng, alpha);
        v = a + b > 0 ? a / (a + b) : 1;
    }
    if (cut && v < 1) {
        const double side = sqrt(1 - v);
        const int64_t part[] = {(int64_t)((double)h * side) / 2, (int64_t)((double)w * side) / 2},
                      at[] = {fl__vision_between(&rng, 0, h - 1), fl__vision_between(&rng, 0, w - 1)},
                      most[] = {h, w};
        for (int d = 0; d < 2; d++) {
            box[d] = at[d] > part[d] ? at[d] - part[d] : 0;
            box[d + 2] = at[d] + part[d] < most[d] ? at[d] + part[d] : most[d];
        }
        v = 1 - (double)((box[2] - box[0]) * (box[3] - box[1])) / (double)(h * w);
    }
    float *p = fl_map(x, FL_READ | FL_WRITE), *target = p ? fl_map(y, FL_WRITE) : NULL;
    const int64_t *class = target ? fl_map(label, FL_READ) : NULL;
    for (int64_t k = 0; class && v < 1 && k < n / 2; k++)
        fl__vision_mix_pair(p + k * h * w * c, p + (n - 1 - k) * h * w * c, w, c, box, cut ? 0 : (float)v);
    const bool ok = class && fl__vision_mix_targets(m, class, n, v, target);
    if (class) fl_unmap(label, FL_READ);
    if (target) fl_unmap(y, FL_WRITE);
    if (p) fl_unmap(x, FL_READ | FL_WRITE);
    if (!ok) return false;
    s.t[0] = fl_permute(x, 4, planes), s.t[1] = y;
    *out = s;
    return s.t[0] != NULL;
}

FL_API fl_data_set *fl_vision_mixup_opt(fl_data_set *set, int64_t classes, fl_vision_mixup_opts o) {
    o.mixup = fl_option(o.mixup, 0.8), o.cutmix = fl_option(o.cutmix, 1),
    o.smoothing = fl_option(o.smoothing, 0.1);
    o.p = fl_option(o.p, 1), o.cut = fl_option(o.cut, 0.5);
    bool ok = set || fl_fail("fl_vision_mixup: the set is NULL");
    if (ok && !(classes > 0 && o.mixup >= 0 && o.mixup < 1e6 && o.cutmix >= 0 && o.cutmix < 1e6 &&
                o.smoothing >= 0 && o.smoothing < 1))
        ok = fl_fail("fl_vision_mixup: got %lld classes, mixup %g, cutmix %g, smoothing %g; expected classes "
                     "> 0, mixup and cutmix in [0, 1e6), smoothing in [0, 1)", (long long)classes, o.mixup,
                     o.cutmix, o.smoothing);
    fl__vision_mix *m = ok ? fl_heap_alloc(sizeof *m) : NULL;
    if (!m) {
        fl_data_free(set);
        return NULL;
    }
    *m = (fl__vision_mix){o, classes, 0};
    return fl_data_set_new(&(fl_data_set){.size = fl_data_size(set),
                                          .get = fl__vision_mix_get,
                                          .start = fl__vision_mix_start,
                                          .close = fl__vision_user_close,
                                          .user = m},
                           &set, 1);
}

/* ---- repeated augmentation ---- */

typedef struct fl__vision_repeat {
    int64_t times;
    int rank, ranks;
} fl__vision_repeat;

/* Index of this rank's sample i in the order with repetitions. */
static int64_t fl__vision_repeat_index(const fl_data_set *self, int64_t i) {
    const fl__vision_repeat *r = self->user;
    return r->rank + i * r->ranks;
}

static bool fl__vision_repeat_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__vision_repeat *r = self->user;
    return fl_data_get(fl_data_inner(self, 0), fl__vision_repeat_index(self, i) / r->times, out);
}

static int64_t fl__vision_repeat_id(fl_data_set *self, int64_t i) {
    const fl__vision_repeat *r = self->user;
    const int64_t at = fl__vision_repeat_index(self, i);
    return fl_data_id(fl_data_inner(self, 0), at / r->times) +
           at % r->times * fl_data_size(fl_data_inner(self, 0));
}

static bool fl__vision_repeat_arrange(fl_data_set *self, int64_t epoch) {
    (void)epoch;
    const fl__vision_repeat *r = self->user;
    const int64_t n = fl_data_size(fl_data_inner(self, 0));
    self->size = (n >= 256 ? n / 256 * 256 : n) / r->ranks;
    return true;
}

FL_API fl_data_set *fl_vision_repeated_augmentation(fl_data_set *set, int64_t times, uint64_t seed, int rank,
                                                    int ranks) {
    bool ok = set || fl_fail("fl_vision_repeated_augmentation: the set is NULL");
    if (ok && !(times > 0 && rank >= 0 && rank < ranks))
        ok = fl_fail("fl_vision_repeated_augmentation: got %lld times, rank %d of %d, expected times > 0, 0 <= rank < "
                     "ranks", (long long)times, rank, ranks);
    fl__vision_repeat *r = ok ? fl_heap_alloc(sizeof *r) : NULL;
    if (!r) {
        fl_data_free(set);
        return NULL;
    }
    *r = (fl__vision_repeat){times, rank, ranks};
    set = fl_data_shuffle(set, seed);
    return fl_data_set_new(&(fl_data_set){.get = fl__vision_repeat_get,
                                          .id = fl__vision_repeat_id,
                                          .arrange = fl__vision_repeat_arrange,
                                          .close = fl__vision_user_close,
                                          .user = r},
                           &set, 1);
}

#endif
#endif

/* MIT licence: see LICENSE. */
