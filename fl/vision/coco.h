/* fl/vision/coco.h - COCO annotations (JSON), run-length masks, average precision of COCO and PASCAL VOC */
#ifndef FL_VISION_COCO_H
#define FL_VISION_COCO_H
#ifndef FL_DATA_H
#include "../../fl_data.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- run-length masks, in column order, starting with a run of zeros (pycocotools.mask) ---- */

/* A binary mask [h, w] as n run lengths, whose sum is h w. Functions that fill *out allocate out->run; free
   it with fl_heap_free. They return false after fl_fail. */
typedef struct fl_vision_rle {
    int64_t h, w, n;
    uint32_t *run; /* heap memory */
} fl_vision_rle;
/* Parses COCO's compressed text: run differences in 5 bits per character. Invalid characters, negative runs,
   or a sum that is not h w are errors. */
FL_API bool fl_vision_rle_parse(const char *text, size_t n, int64_t h, int64_t w, fl_vision_rle *out);
/* Appends the compressed text to t. */
FL_API bool fl_vision_rle_put(fl_data_text *t, const fl_vision_rle *r);
/* Encodes bytes [h, w]: zero or non-zero. */
FL_API bool fl_vision_rle_encode(const uint8_t *mask, int64_t h, int64_t w, fl_vision_rle *out);
/* Decodes into bytes [h, w], 0 or 1. */
FL_API void fl_vision_rle_decode(const fl_vision_rle *r, uint8_t *mask);
/* Rasterises a polygon of n corners x, y as COCO does: corners are scaled by 5 and rounded, edges are sampled
   pixel by pixel. */
FL_API bool fl_vision_rle_polygon(const double *xy, int64_t n, int64_t h, int64_t w, fl_vision_rle *out);
/* The union, or intersection, of n masks of the same size. */
FL_API bool fl_vision_rle_merge(const fl_vision_rle *r, int64_t n, bool intersect, fl_vision_rle *out);
/* Number of pixels in the mask. */
FL_API int64_t fl_vision_rle_area(const fl_vision_rle *r);
/* Bounding box: x, y, w, h; zeros for an empty mask. */
FL_API void fl_vision_rle_box(const fl_vision_rle *r, double box[4]);
/* Intersection over union; crowd: over a's area instead. -1 if the sizes differ. */
FL_API double fl_vision_rle_iou(const fl_vision_rle *a, const fl_vision_rle *b, bool crowd);

/* ---- files ---- */

typedef struct fl_vision_object {
    int64_t id, image, category; /* ids as in the file; results are numbered from 1 */
    double box[4];               /* x, y, w, h; w and h of a result may be negative */
    double area, score;
    bool crowd;
    int64_t seg, n_seg;          /* slice of fl_vision_coco.number: polygons, each after its count, or runs */
    const char *rle;             /* compressed run lengths instead, or NULL */
    int32_t h, w;                /* size of the mask */
} fl_vision_object;
typedef struct fl_vision_coco_image {
    int64_t id, h, w;
    const char *file;
} fl_vision_coco_image;
typedef struct fl_vision_category {
    int64_t id;
    const char *name;
} fl_vision_category;
/* A parsed file, which owns its strings and arrays: free it with fl_vision_coco_free. */
typedef struct fl_vision_coco {
    fl_vision_coco_image *image;  /* sorted by id */
    fl_vision_category *category; /* sorted by id */
    fl_vision_object *object;     /* in the order of the file */
    int64_t n_image, n_category, n_object;
    double *number;               /* segmentations of all objects */
    int64_t n_number, cap_[4];
    fl_data_arena text_;
} fl_vision_coco;
/* Reads annotations {images, annotations, categories}. False after fl_fail with file and offset; an unknown
   image id, or a file_name outside the image folder (fl_data_path_inside), is an error too. The file is
   streamed: only the result is held in memory. */
FL_API bool fl_vision_coco_load(const char *path, fl_vision_coco *out);
/* Reads a list of detections {image_id, category_id, bbox or segmentation, score} for the images of truth.
   False after fl_fail. */
FL_API bool fl_vision_coco_results(const char *path, const fl_vision_coco *truth, fl_vision_coco *out);
/* Frees the contents of *c, not c. */
FL_API void fl_vision_coco_free(fl_vision_coco *c);
/* The index of an image by its id, or -1. */
FL_API int64_t fl_vision_coco_find(const fl_vision_coco *c, int64_t image);
/* The mask of object o (the union of its polygons). False after fl_fail, also if it has no segmentation. */
FL_API bool fl_vision_coco_mask(const fl_vision_coco *c, const fl_vision_object *o, fl_vision_rle *out);

/* ---- average precision ---- */

enum { FL_VISION_IOUS = 10, FL_VISION_RECALLS = 101, FL_VISION_AREAS = 4, FL_VISION_LIMITS = 3 };
typedef struct fl_vision_ap {
    /* AP, AP50, AP75, APs, APm, APl, AR1, AR10, AR100, ARs, ARm, ARl; -1 if there are no such objects */
    double figure[12];
    int64_t n_category;
    double *precision; /* [10, 101, categories, 4, 3], -1 for classes without objects; heap memory */
    double *score;     /* of the same shape */
    double *recall;    /* [10, categories, 4, 3] */
} fl_vision_ap;
/* COCO's average precision of boxes, or of masks, as by pycocotools' COCOeval: IoU thresholds .5 to .95,
   recalls 0 to 1 in steps of .01, areas all, small, medium, large, at most 1, 10, 100 detections per image
   and class. Unlike there, an object may have the id 0. False after fl_fail, also for a NaN score; else free
   out with fl_vision_ap_free. */
FL_API bool fl_vision_evaluate(const fl_vision_coco *truth, const fl_vision_coco *found, bool masks,
                               fl_vision_ap *out);
/* Frees the contents of *a, not a. */
FL_API void fl_vision_ap_free(fl_vision_ap *a);
/* AP of class k: mean precision over thresholds and recalls; -1 without objects. */
FL_API double fl_vision_ap_class(const fl_vision_ap *a, int64_t k);
/* Appends to t pycocotools' twelve summary lines, then name<tab>value lines of the metrics, and of the
   classes if truth is not NULL; entries without objects are left out. */
FL_API bool fl_vision_ap_put(fl_data_text *t, const fl_vision_ap *a, const fl_vision_coco *truth);
typedef struct fl_vision_voc_opts {
    fl_opts_guard guard_;
    bool inclusive; /* boxes include their corners, as in VOC's files (w = xmax - xmin, h = ymax - ymin):
                       sides are w + 1 and h + 1, as in the devkit */
    char _end;
} fl_vision_voc_opts;
/* PASCAL VOC's AP of category k at threshold iou; -1 without objects, NaN after fl_fail. A detection can
   match only its best object; further matches of an object are false positives; crowds are ignored. points:
   11 (11-point interpolation, 2007) or 0 (area under the curve, 2010). */
#define fl_vision_voc(...) FL__VISION_VOC(__VA_ARGS__, ._end = 0)
#define FL__VISION_VOC(truth, found, k, iou, points, ...) \
    fl_vision_voc_opt(truth, found, k, iou, points, FL_LITERAL(fl_vision_voc_opts, __VA_ARGS__))
FL_API double fl_vision_voc_opt(const fl_vision_coco *truth, const fl_vision_coco *found, int64_t k,
                                double iou, int points, fl_vision_voc_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_VISION_COCO_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_VISION_COCO) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_COCO_IMPL
#define FL_VISION_COCO_IMPL
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- run lengths ---- */

/* Checks the size of a mask: h w pixels are limited so that every sum of runs fits 32 bits. */
static bool fl__rle_check_size(const char *fn, int64_t h, int64_t w) {
    return (h >= 0 && w >= 0 && h <= 65500 && w <= 65500 && h * w <= (int64_t)1 << 28) ||
           fl_fail("%s: mask of h, w = %" PRId64 ", %" PRId64 " pixels, expected sides 0 to 65500 and h * w "
                   "at most 2^28", fn, h, w);
}

static bool fl__rle_alloc(fl_vision_rle *r, int64_t h, int64_t w, int64_t most) {
    *r = (fl_vision_rle){h, w, 0, fl_heap_alloc((size_t)(most + 1) * sizeof *r->run)};
    return r->run != NULL;
}

FL_API bool fl_vision_rle_parse(const char *text, size_t n, int64_t h, int64_t w, fl_vision_rle *out) {
    fl_vision_rle r;
    int64_t sum = 0;
    if (!text || !out) return fl_fail("fl_vision_rle_parse: text or out is NULL");
    if (!fl__rle_check_size("fl_vision_rle_parse", h, w) || !fl__rle_alloc(&r, h, w, (int64_t)n))
        return false;
    bool ok = true;
    for (size_t at = 0; ok && at < n;) {
        int64_t x = 0;
        int bits = 0, c = 0;
        do {
            c = at < n ? (uint8_t)text[at++] - 48 : -1;
            ok = (c >= 0 && c < 64 && bits < 35) ||
                 fl_fail("fl_vision_rle_parse: offset %zu: invalid run, expected characters '0' to 'o'", at);
            if (!ok) break;
            x |= (int64_t)(c & 31) << bits;
            bits += 5;
        } while (c & 32);
        if (!ok) break;
        if (c & 16) x |= -((int64_t)1 << bits);
        if (r.n > 2) x += r.run[r.n - 2];
        ok = (x >= 0 && (sum += x) <= h * w) ||
             fl_fail("fl_vision_rle_parse: run %" PRId64 " is %" PRId64 ": negative, or past the end of the "
                     "mask of %" PRId64 " x %" PRId64 " pixels", r.n, x, h, w);
        if (ok) r.run[r.n++] = (uint32_t)x;
    }
    if (ok && sum != h * w)
        ok = fl_fail("fl_vision_rle_parse: the sum of the runs is %" PRId64 ", expected %" PRId64 " x %"
                     PRId64 " pixels", sum, h, w);
    if (ok) *out = r;
    else fl_heap_free(r.run);
    return ok;
}

FL_API bool fl_vision_rle_put(fl_data_text *t, const fl_vision_rle *r) {
    if (!t || !r) return fl_fail("fl_vision_rle_put: an argument is NULL");
    for (int64_t i = 0; i < r->n; i++) {
        int64_t x = (int64_t)r->run[i] - (i > 2 ? (int64_t)r->run[i - 2] : 0);
        for (bool more = true; more;) {
            int c = (int)(x & 31);
            x >>= 5;
            more = c & 16 ? x != -1 : x != 0;
            const char byte = (char)((more ? c | 32 : c) + 48);
            if (!fl_data_text_put(t, &byte, 1)) return false;
        }
    }
    return true;
}

FL_API bool fl_vision_rle_encode(const uint8_t *mask, int64_t h, int64_t w, fl_vision_rle *out) {
    int64_t changes = 1, before = 0;
    if (!mask || !out) return fl_fail("fl_vision_rle_encode: mask or out is NULL");
    if (!fl__rle_check_size("fl_vision_rle_encode", h, w)) return false;
    for (int pass = 0; pass < 2; pass++) {
        if (pass && !fl__rle_alloc(out, h, w, changes)) return false;
        int64_t run = 0;
        before = 0;
        for (int64_t x = 0; x < w; x++)
            for (int64_t y = 0; y < h; y++, run++) {
                const int now = mask[y * w + x] != 0;
                if (now == before) continue;
                if (pass) out->run[out->n++] = (uint32_t)run;
                else changes++;
                run = 0, before = now;
            }
        if (pass) out->run[out->n++] = (uint32_t)run;
    }
    return true;
}

FL_API void fl_vision_rle_decode(const fl_vision_rle *r, uint8_t *mask) {
    if (!fl_given(r, "fl_vision_rle_decode", "the mask") ||
        !fl_given(mask, "fl_vision_rle_decode", "the result")) return;
    int64_t at = 0;
    for (int64_t i = 0; i < r->n; i++)
        for (uint32_t k = 0; k < r->run[i]; k++, at++) mask[at % r->h * r->w + at / r->h] = i % 2;
}

/* A polygon's outline in the columns [first, first + n_columns) of its mask: n_columns h + 1 bits, column by
   column, set where pixels change between outside and inside. */
typedef struct fl__rle_outline {
    uint64_t *bit;
    int64_t first, n_columns, h;
    int64_t crossings; /* remaining budget of column crossings by edges, which bounds the time */
} fl__rle_outline;

/* Adds an edge of the polygon, scaled by 5. The edge is rounded to one (u, v) for each step t along its
   longer side; where u changes between 5 x + 2 and 5 x + 3 it crosses the middle of column x, and v gives the
   row. u and v are monotone in t, in floating point too, so only these steps are computed, however long the
   edge is. Returns false if the budget of crossings is used up. */
static bool fl__rle_edge(fl__rle_outline *o, int64_t xs, int64_t ys, int64_t xe, int64_t ye) {
    const double scale = 5;
    const int64_t dx = xe > xs ? xe - xs : xs - xe, dy = ye > ys ? ye - ys : ys - ye;
    const bool flat = dx >= dy;
    if (flat ? xs > xe : ys > ye) {
        const int64_t x = xs, y = ys;
        xs = xe, xe = x, ys = ye, ye = y;
    }
    if (!dx) return true;
    const double slope = flat ? (double)(ye - ys) / (double)dx : (double)(xe - xs) / (double)dy;
    const int64_t steps = flat ? dx : dy;
#define FL__RLE_AT(from, t) ((int64_t)((double)(from) + slope * (double)(t) + 0.5))
    const int64_t u0 = flat ? xs : FL__RLE_AT(xs, 0), u1 = flat ? xe : FL__RLE_AT(xs, steps);
    const int64_t low = u0 < u1 ? u0 : u1, high = u0 < u1 ? u1 : u0;
    const int64_t last = o->first + o->n_columns - 1;
    int64_t x = low <= 2 ? 0 : (low + 2) / 5; /* the first column with low <= 5 x + 2 */
    for (x = x < o->first ? o->first : x; x <= last && 5 * x + 3 <= high; x++) {
        int64_t t = 5 * x + 3 - xs, v;
        if (!o->crossings--) return false;
        if (flat) {
            const int64_t v0 = FL__RLE_AT(ys, t - 1), v1 = FL__RLE_AT(ys, t);
            v = v0 < v1 ? v0 : v1;
        } else { /* the first step on the other side of 5 x + 2.5 */
            t = (int64_t)(((double)(5 * x - xs) + 2.5) / slope);
            t = t < 1 ? 1 : t > steps ? steps : t;
            while (t > 1 && (FL__RLE_AT(xs, t - 1) > 5 * x + 2) == (u1 > u0)) t--;
            while ((FL__RLE_AT(xs, t) > 5 * x + 2) != (u1 > u0)) t++;
            v = t - 1 + ys;
        }
#undef FL__RLE_AT
        const double row = ((double)v + 0.5) / scale - 0.5;
        const int64_t y = row < 0 ? 0 : row > (double)o->h ? o->h : (int64_t)ceil(row);
        const int64_t bit_index = (x - o->first) * o->h + y;
        o->bit[bit_index / 64] ^= (uint64_t)1 << bit_index % 64;
    }
    return true;
}

/* The runs between the set bits of an outline, which starts at pixel first * h. */
static bool fl__rle_runs(const fl__rle_outline *o, int64_t h, int64_t w, fl_vision_rle *out) {
    const int64_t n_word = (o->n_columns * h) / 64 + 1, start = o->first * h;
    int64_t most = 1, before = 0;
    for (int64_t i = 0; i < n_word; i++) most += __builtin_popcountll(o->bit[i]);
    if (!fl__rle_alloc(out, h, w, most)) return false;
    for (int64_t i = 0; i < n_word; i++)
        for (uint64_t bits = o->bit[i]; bits; bits &= bits - 1) {
            const int64_t bit_index = start + 64 * i + __builtin_ctzll(bits);
            if (bit_index < h * w) out->run[out->n++] = (uint32_t)(bit_index - before), before = bit_index;
        }
    out->run[out->n++] = (uint32_t)(h * w - before);
    return true;
}

/* *crossings: in: budget of column crossings; out: what is left for the next polygon. */
static bool fl__rle_polygon(const double *xy, int64_t n, int64_t h, int64_t w, int64_t *crossings,
                            fl_vision_rle *out) {
    if (!xy || !out || n < 1)
        return fl_fail("fl_vision_rle_polygon: got %" PRId64 " corners, expected n >= 1, xy and out not NULL",
                       n);
    if (!fl__rle_check_size("fl_vision_rle_polygon", h, w)) return false;
    double low = 1e6, high = -1e6;
    for (int64_t i = 0; i < 2 * n; i++) {
        if (!(fabs(xy[i]) <= 1e6))
            return fl_fail("fl_vision_rle_polygon: corner %" PRId64 " is at %g, expected -1e6 to 1e6",
                           i / 2, xy[i]);
        if (i % 2 == 0) low = fmin(low, xy[i]), high = fmax(high, xy[i]);
    }
    fl__rle_outline o = {.h = h, .crossings = *crossings};
    o.first = low < 1 ? 0 : low > (double)w ? w : (int64_t)low - 1;
    const int64_t end = high < 0 ? 0 : high > (double)w ? w : (int64_t)high + 1;
    o.n_columns = end > w ? w - o.first : end > o.first ? end - o.first : 0;
    o.bit = fl_heap_alloc((size_t)(o.n_columns * h / 64 + 1) * sizeof *o.bit);
    bool ok = o.bit != NULL;
    for (int64_t i = 0; ok && i < n; i++) {
        const double *p = xy + 2 * i, *q = xy + 2 * ((i + 1) % n);
        ok = fl__rle_edge(&o, (int64_t)(5 * p[0] + .5), (int64_t)(5 * p[1] + .5), (int64_t)(5 * q[0] + .5),
                          (int64_t)(5 * q[1] + .5)) ||
             fl_fail("fl_vision_rle_polygon: edges cross the columns of %" PRId64 " x %" PRId64
                     " pixels more often than there are pixels", h, w);
    }
    ok = ok && fl__rle_runs(&o, h, w, out);
    *crossings = o.crossings;
    fl_heap_free(o.bit);
    return ok;
}

/* The budget of column crossings for n corners. Edges of a simple outline cross a column at most once per
   pixel; small masks and polygons of many corners may have more, bounded by their size in the file. */
static int64_t fl__rle_crossings(int64_t n, int64_t h, int64_t w) {
    return (h + 16) * w + 32 * n;
}

FL_API bool fl_vision_rle_polygon(const double *xy, int64_t n, int64_t h, int64_t w, fl_vision_rle *out) {
    int64_t crossings = fl__rle_crossings(n, h, w);
    return fl__rle_polygon(xy, n, h, w, &crossings, out);
}

static bool fl__rle_merge_two(const fl_vision_rle *a, const fl_vision_rle *b, bool intersect,
                              fl_vision_rle *out) {
    if (a->h != b->h || a->w != b->w)
        return fl_fail("fl_vision_rle_merge: sizes differ: %" PRId64 " x %" PRId64 " and %" PRId64 " x %"
                       PRId64, a->h, a->w, b->h, b->w);
    if (!fl__rle_alloc(out, a->h, a->w, a->n + b->n)) return false;
    int64_t i = 0, j = 0, left = a->h * a->w, run = 0;
    uint32_t ca = a->n ? a->run[i++] : 0, cb = b->n ? b->run[j++] : 0;
    bool va = false, vb = false, v = false;
    while (left > 0) {
        while (!ca && i < a->n) ca = a->run[i++], va = !va;
        while (!cb && j < b->n) cb = b->run[j++], vb = !vb;
        const bool now = intersect ? va && vb : va || vb;
        const uint32_t c = ca < cb ? ca : cb;
        if (!c) break;
        if (now != v) out->run[out->n++] = (uint32_t)run, run = 0, v = now;
        ca -= c, cb -= c, run += c, left -= c;
    }
    out->run[out->n++] = (uint32_t)run;
    return true;
}

/* Merges halves recursively, so that each run is copied log2 n times. */
FL_API bool fl_vision_rle_merge(const fl_vision_rle *r, int64_t n, bool intersect, fl_vision_rle *out) {
    if (!r || n < 1 || !out)
        return fl_fail("fl_vision_rle_merge: got %" PRId64 " masks, expected n >= 1, r and out not NULL", n);
    if (n == 1) {
        if (!fl__rle_alloc(out, r->h, r->w, r->n)) return false;
        if (r->n) memcpy(out->run, r->run, (size_t)r->n * sizeof *r->run);
        out->n = r->n;
        return true;
    }
    if (n == 2) return fl__rle_merge_two(r, r + 1, intersect, out);
    fl_vision_rle half[2];
    if (!fl_vision_rle_merge(r, n / 2, intersect, &half[0])) return false;
    bool ok = fl_vision_rle_merge(r + n / 2, n - n / 2, intersect, &half[1]);
    if (ok) {
        ok = fl__rle_merge_two(&half[0], &half[1], intersect, out);
        fl_heap_free(half[1].run);
    }
    fl_heap_free(half[0].run);
    return ok;
}

FL_API int64_t fl_vision_rle_area(const fl_vision_rle *r) {
    if (!fl_given(r, "fl_vision_rle_area", "the mask")) return -1;
    int64_t sum = 0;
    for (int64_t i = 1; i < r->n; i += 2) sum += r->run[i];
    return sum;
}

FL_API void fl_vision_rle_box(const fl_vision_rle *r, double box[4]) {
    if (!fl_given(r, "fl_vision_rle_box", "the mask") ||
        !fl_given(box, "fl_vision_rle_box", "the result")) return;
    const int64_t n = r->n / 2 * 2;
    int64_t xs = r->w, ys = r->h, xe = 0, ye = 0, at = 0, start = 0;
    memset(box, 0, 4 * sizeof *box);
    if (!n || !r->h) return;
    for (int64_t i = 0; i < n; i++) {
        at += r->run[i];
        const int64_t t = at - i % 2, y = t % r->h, x = (t - y) / r->h;
        if (i % 2 == 0) start = x;
        else if (start < x) ys = 0, ye = r->h - 1;
        xs = x < xs ? x : xs, xe = x > xe ? x : xe, ys = y < ys ? y : ys, ye = y > ye ? y : ye;
    }
    box[0] = (double)xs, box[1] = (double)ys, box[2] = (double)(xe - xs + 1), box[3] = (double)(ye - ys + 1);
}

FL_API double fl_vision_rle_iou(const fl_vision_rle *a, const fl_vision_rle *b, bool crowd) {
    if (!fl_given(a, "fl_vision_rle_iou", "the mask") ||
        !fl_given(b, "fl_vision_rle_iou", "the other mask")) return NAN;
    if (a->h != b->h || a->w != b->w) return -1;
    int64_t i = 0, j = 0, both = 0, any = 0;
    uint32_t ca = a->n ? a->run[i++] : 0, cb = b->n ? b->run[j++] : 0;
    bool va = false, vb = false;
    for (;;) {
        const uint32_t c = ca < cb ? ca : cb;
        if (va || vb) any += c, both += va && vb ? c : 0;
        ca -= c, cb -= c;
        if (!ca && i < a->n) ca = a->run[i++], va = !va;
        if (!cb && j < b->n) cb = b->run[j++], vb = !vb;
        if (!ca && !cb && i >= a->n && j >= b->n) break;
        if ((!ca && i >= a->n) || (!cb && j >= b->n)) break;
    }
    return both ? (double)both / (double)(crowd ? fl_vision_rle_area(a) : any) : 0;
}

/* ---- files ---- */

FL_API void fl_vision_coco_free(fl_vision_coco *c) {
    if (!c) return;
    fl_heap_free(c->image), fl_heap_free(c->category), fl_heap_free(c->object), fl_heap_free(c->number);
    fl_data_arena_free(&c->text_);
    *c = (fl_vision_coco){0};
}

static bool fl__coco_number(fl_vision_coco *c, double v) {
    if (c->n_number == c->cap_[3] &&
        !fl_heap_grow(&c->number, &c->cap_[3], c->n_number + 1, sizeof *c->number)) return false;
    c->number[c->n_number++] = v;
    return true;
}

/* Appends the numbers of the array being parsed, up to its end. */
static bool fl__coco_numbers(fl_vision_coco *c, fl_data_json *j) {
    double v;
    while (fl_data_json_more(j))
        if (!fl_data_json_double(j, &v) || !fl__coco_number(c, v)) return false;
    return j->event != FL_DATA_JSON_ERROR;
}

static bool fl__coco_box(fl_data_json *j, fl_vision_object *o, bool *empty) {
    int n = 0;
    double v;
    if (!fl_data_json_expect(j, FL_DATA_JSON_ARRAY)) return false;
    while (fl_data_json_more(j)) {
        if (!fl_data_json_double(j, &v)) return false;
        if (n < 4) o->box[n] = v;
        n++;
    }
    *empty = n == 0;
    return j->event != FL_DATA_JSON_ERROR &&
           (n == 4 || n == 0 || fl_data_json_fail(j, "bbox has %d numbers, expected 4", n));
}

static bool fl__coco_side(fl_data_json *j, int32_t *out) {
    int64_t v;
    if (!fl_data_json_int(j, &v)) return false;
    *out = (int32_t)v;
    return (v >= 0 && v <= 65500) || fl_data_json_fail(j, "size is %" PRId64 ", expected 0 to 65500", v);
}

/* [[x, y, ...], ...] or {size: [h, w], counts: text or [runs]}. */
static bool fl__coco_segmentation(fl_vision_coco *c, fl_data_json *j, fl_vision_object *o) {
    o->seg = c->n_number;
    const fl_data_json_event e = fl_data_json_next(j);
    if (e == FL_DATA_JSON_NULL) return true;
    if (e == FL_DATA_JSON_ARRAY) {
        while (fl_data_json_more(j)) {
            const int64_t head = c->n_number;
            if (!fl_data_json_expect(j, FL_DATA_JSON_ARRAY) || !fl__coco_number(c, 0) ||
                !fl__coco_numbers(c, j))
                return false;
            c->number[head] = (double)(c->n_number - head - 1);
        }
        o->n_seg = c->n_number - o->seg;
        return j->event != FL_DATA_JSON_ERROR;
    }
    if (e != FL_DATA_JSON_OBJECT)
        return fl_data_json_fail(j, "segmentation must be a list of polygons or an object of run lengths");
    while (fl_data_json_more(j)) {
        if (!strcmp(j->text, "size")) {
            if (!fl_data_json_expect(j, FL_DATA_JSON_ARRAY) || !fl__coco_side(j, &o->h) ||
                !fl__coco_side(j, &o->w) || !fl_data_json_expect(j, FL_DATA_JSON_ARRAY_END))
                return false;
        } else if (!strcmp(j->text, "counts")) {
            const fl_data_json_event kind = fl_data_json_next(j);
            if (kind == FL_DATA_JSON_STRING) {
                if (!(o->rle = fl_data_arena_add(&c->text_, j->text, (size_t)j->n))) return false;
            } else if (kind == FL_DATA_JSON_ARRAY) {
                if (!fl__coco_number(c, -1) || !fl__coco_numbers(c, j)) return false;
                o->n_seg = c->n_number - o->seg;
            } else return fl_data_json_fail(j, "counts must be a string or a list of numbers");
        } else if (!fl_data_json_skip(j)) return false;
    }
    return j->event != FL_DATA_JSON_ERROR;
}

static bool fl__coco_object(fl_vision_coco *c, fl_data_json *j, bool result) {
    fl_vision_object o = {.score = result ? NAN : 1, .area = -1};
    bool box = false, image = false, category = false, empty = false;
    if (!fl_data_json_expect(j, FL_DATA_JSON_OBJECT)) return false;
    while (fl_data_json_more(j)) {
        const char *key = j->text;
        bool ok;
        if (!strcmp(key, "id")) ok = fl_data_json_int(j, &o.id);
        else if (!strcmp(key, "image_id")) ok = image = fl_data_json_int(j, &o.image);
        else if (!strcmp(key, "category_id")) ok = category = fl_data_json_int(j, &o.category);
        else if (!strcmp(key, "area")) ok = fl_data_json_double(j, &o.area);
        else if (!strcmp(key, "score")) ok = fl_data_json_double(j, &o.score);
        else if (!strcmp(key, "bbox")) ok = fl__coco_box(j, &o, &empty), box = ok && !empty;
        else if (!strcmp(key, "segmentation")) ok = fl__coco_segmentation(c, j, &o);
        else if (!strcmp(key, "iscrowd")) {
            const fl_data_json_event e = fl_data_json_next(j);
            int64_t v = e == FL_DATA_JSON_TRUE;
            ok = e == FL_DATA_JSON_TRUE || e == FL_DATA_JSON_FALSE || fl_data_json_as_int(j, &v);
            o.crowd = v != 0;
        } else ok = fl_data_json_skip(j);
        if (!ok) return false;
    }
    if (j->event == FL_DATA_JSON_ERROR) return false;
    if (!image || !category) return fl_data_json_fail(j, "image_id or category_id is missing");
    if (result && !(o.score == o.score)) return fl_data_json_fail(j, "the result's score is missing");
    if (result)
        o.area = box ? o.box[2] * o.box[3] : NAN, o.id = c->n_object + 1, o.crowd = false;
    else if (o.area < 0) o.area = o.box[2] * o.box[3];
    if (!fl_heap_grow(&c->object, &c->cap_[2], c->n_object + 1, sizeof *c->object)) return false;
    c->object[c->n_object++] = o;
    return true;
}

static bool fl__coco_image(fl_vision_coco *c, fl_data_json *j) {
    fl_vision_coco_image m = {.file = ""};
    int32_t side;
    if (!fl_data_json_expect(j, FL_DATA_JSON_OBJECT)) return false;
    while (fl_data_json_more(j)) {
        bool ok;
        if (!strcmp(j->text, "id")) ok = fl_data_json_int(j, &m.id);
        else if (!strcmp(j->text, "height")) ok = fl__coco_side(j, &side), m.h = ok ? side : 0;
        else if (!strcmp(j->text, "width")) ok = fl__coco_side(j, &side), m.w = ok ? side : 0;
        else if (!strcmp(j->text, "file_name"))
            ok = fl_data_json_string(j) &&
                 (fl_data_path_inside(j->text, (size_t)j->n) ||
                  fl_data_json_fail(j, "file_name '%.200s' is outside the image folder", j->text)) &&
                 (m.file = fl_data_arena_add(&c->text_, j->text, (size_t)j->n));
        else ok = fl_data_json_skip(j);
        if (!ok) return false;
    }
    if (j->event == FL_DATA_JSON_ERROR || !fl_heap_grow(&c->image, &c->cap_[0], c->n_image + 1, sizeof m))
        return false;
    c->image[c->n_image++] = m;
    return true;
}

static bool fl__coco_category(fl_vision_coco *c, fl_data_json *j) {
    fl_vision_category k = {.name = ""};
    if (!fl_data_json_expect(j, FL_DATA_JSON_OBJECT)) return false;
    while (fl_data_json_more(j)) {
        bool ok;
        if (!strcmp(j->text, "id")) ok = fl_data_json_int(j, &k.id);
        else if (!strcmp(j->text, "name"))
            ok = fl_data_json_string(j) && (k.name = fl_data_arena_add(&c->text_, j->text, (size_t)j->n));
        else ok = fl_data_json_skip(j);
        if (!ok) return false;
    }
    if (j->event == FL_DATA_JSON_ERROR ||
        !fl_heap_grow(&c->category, &c->cap_[1], c->n_category + 1, sizeof k))
        return false;
    c->category[c->n_category++] = k;
    return true;
}

/* Images and categories begin with their id. */
static int fl__coco_by_id(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The index of an id in a sorted list of structs of `size` bytes that begin with their id, or -1. */
static int64_t fl__coco_search(const void *list, int64_t n, size_t size, int64_t id) {
    const char *found = n ? bsearch(&id, list, (size_t)n, size, fl__coco_by_id) : NULL;
    return found ? (int64_t)((size_t)(found - (const char *)list) / size) : -1;
}

FL_API int64_t fl_vision_coco_find(const fl_vision_coco *c, int64_t image) {
    return fl_given(c, "fl_vision_coco_find", "the annotations")
               ? fl__coco_search(c->image, c->n_image, sizeof *c->image, image)
               : -1;
}

static bool fl__coco_read(fl_vision_coco *c, fl_data_json *j) {
    if (!j || !fl_data_json_expect(j, FL_DATA_JSON_OBJECT)) return false;
    while (fl_data_json_more(j)) {
        const int kind = !strcmp(j->text, "images") ? 0 : !strcmp(j->text, "annotations") ? 1
                       : !strcmp(j->text, "categories") ? 2 : 3;
        if (kind == 3) {
            if (!fl_data_json_skip(j)) return false;
            continue;
        }
        if (!fl_data_json_expect(j, FL_DATA_JSON_ARRAY)) return false;
        while (fl_data_json_more(j))
            if (!(kind == 0   ? fl__coco_image(c, j)
                  : kind == 1 ? fl__coco_object(c, j, false)
                              : fl__coco_category(c, j)))
                return false;
    }
    return j->event != FL_DATA_JSON_ERROR && fl_data_json_next(j) == FL_DATA_JSON_END;
}

/* Checks that every object's image is one of truth's. */
static bool fl__coco_check_images(const char *path, const fl_vision_coco *c, const fl_vision_coco *truth) {
    for (int64_t i = 0; i < c->n_object; i++)
        if (fl_vision_coco_find(truth, c->object[i].image) < 0)
            return fl_fail("fl_vision_coco: %s: object %" PRId64 " has unknown image_id %" PRId64, path, i,
                           c->object[i].image);
    return true;
}

static int fl__coco_has_duplicates(const void *list, int64_t n, size_t size) {
    for (int64_t i = 1; i < n; i++)
        if (!fl__coco_by_id((const char *)list + (size_t)i * size,
                            (const char *)list + (size_t)(i - 1) * size))
            return 1;
    return 0;
}

FL_API bool fl_vision_coco_load(const char *path, fl_vision_coco *out) {
    fl_vision_coco c = {0};
    if (!out) return fl_fail("fl_vision_coco_load: out is NULL");
    fl_data_json *j = fl_data_json_open(path, .who = "fl_vision_coco", .c_strings = true);
    bool ok = fl__coco_read(&c, j);
    fl_data_json_close(j);
    if (ok && c.n_image) qsort(c.image, (size_t)c.n_image, sizeof *c.image, fl__coco_by_id);
    if (ok && c.n_category) qsort(c.category, (size_t)c.n_category, sizeof *c.category, fl__coco_by_id);
    if (ok && (fl__coco_has_duplicates(c.image, c.n_image, sizeof *c.image) ||
               fl__coco_has_duplicates(c.category, c.n_category, sizeof *c.category)))
        ok = fl_fail("fl_vision_coco: %s: two images or two categories have the same id", path);
    ok = ok && fl__coco_check_images(path, &c, &c);
    if (ok) *out = c;
    else fl_vision_coco_free(&c);
    return ok;
}

FL_API bool fl_vision_coco_mask(const fl_vision_coco *c, const fl_vision_object *o, fl_vision_rle *out) {
    if (!c || !o || !out) return fl_fail("fl_vision_coco_mask: an argument is NULL");
    const double *p = o->n_seg ? c->number + o->seg : NULL;
    if (o->rle) return fl_vision_rle_parse(o->rle, strlen(o->rle), o->h, o->w, out);
    if (o->n_seg && p[0] < 0) { /* a list of runs */
        int64_t sum = 0;
        if (!fl__rle_check_size("fl_vision_coco_mask", o->h, o->w) ||
            !fl__rle_alloc(out, o->h, o->w, o->n_seg))
            return false;
        for (int64_t i = 1; i < o->n_seg; i++) {
            if (!(p[i] >= 0 && p[i] <= 0x1p28) || (sum += (int64_t)p[i]) > (int64_t)o->h * o->w) break;
            out->run[out->n++] = (uint32_t)p[i];
        }
        if (sum == (int64_t)o->h * o->w && out->n == o->n_seg - 1) return true;
        fl_heap_free(out->run);
        return fl_fail("fl_vision_coco_mask: object %" PRId64 ": the sum of the runs is %" PRId64 ", "
                       "expected %d x %d pixels", o->id, sum, (int)o->h, (int)o->w);
    }
    if (!o->n_seg) return fl_fail("fl_vision_coco_mask: object %" PRId64 " has no segmentation", o->id);
    int64_t parts = 0, done = 0, crossings = fl__rle_crossings(o->n_seg / 2, o->h, o->w);
    for (int64_t i = 0; i < o->n_seg; i += 1 + (int64_t)p[i]) parts++;
    fl_vision_rle *r = fl_heap_alloc((size_t)parts * sizeof *r);
    bool ok = r != NULL;
    for (int64_t i = 0; ok && i < o->n_seg; i += 1 + (int64_t)p[i]) {
        ok = fl__rle_polygon(p + i + 1, (int64_t)p[i] / 2, o->h, o->w, &crossings, &r[done]);
        if (ok) done++;
    }
    ok = ok && fl_vision_rle_merge(r, parts, false, out);
    for (int64_t i = 0; i < done; i++) fl_heap_free(r[i].run);
    fl_heap_free(r);
    return ok;
}

/* Fills in the mask sizes of polygons, and the areas and boxes of results that only have masks. */
static bool fl__coco_finish(fl_vision_coco *c, const fl_vision_coco *truth, bool result) {
    for (int64_t i = 0; i < c->n_object; i++) {
        fl_vision_object *o = &c->object[i];
        const fl_vision_coco_image *m = &truth->image[fl_vision_coco_find(truth, o->image)];
        if (!o->h && !o->w) o->h = (int32_t)m->h, o->w = (int32_t)m->w;
        if (!result || !isnan(o->area)) continue;
        if (!o->n_seg && !o->rle)
            return fl_fail("fl_vision_coco_results: result %" PRId64 " has neither bbox nor segmentation",
                           i);
        fl_vision_rle r;
        if (!fl_vision_coco_mask(c, o, &r)) return false;
        o->area = (double)fl_vision_rle_area(&r);
        fl_vision_rle_box(&r, o->box);
        fl_heap_free(r.run);
    }
    return true;
}

FL_API bool fl_vision_coco_results(const char *path, const fl_vision_coco *truth, fl_vision_coco *out) {
    fl_vision_coco c = {0};
    if (!truth || !out) return fl_fail("fl_vision_coco_results: truth or out is NULL");
    fl_data_json *j = fl_data_json_open(path, .who = "fl_vision_coco", .c_strings = true);
    bool ok = j && fl_data_json_expect(j, FL_DATA_JSON_ARRAY);
    while (ok && fl_data_json_more(j)) ok = fl__coco_object(&c, j, true);
    ok = ok && j->event != FL_DATA_JSON_ERROR && fl_data_json_next(j) == FL_DATA_JSON_END;
    fl_data_json_close(j);
    ok = ok && fl__coco_check_images(path, &c, truth) && fl__coco_finish(&c, truth, true);
    if (ok) *out = c;
    else fl_vision_coco_free(&c);
    return ok;
}

/* ---- average precision ---- */

static const double fl__ap_area[FL_VISION_AREAS][2] = {
    {0, 1e10}, {0, 32 * 32}, {32 * 32, 96 * 96}, {96 * 96, 1e10}};
static const int fl__ap_limit[FL_VISION_LIMITS] = {1, 10, 100};
enum { FL__AP_MOST = 100 };

static double fl__ap_iou(int t) {
    return t == FL_VISION_IOUS - 1 ? 0.95 : 0.5 + t * ((0.95 - 0.5) / (FL_VISION_IOUS - 1));
}

static double fl__ap_recall(int r) {
    return r == FL_VISION_RECALLS - 1 ? 1.0 : r * (1.0 / (FL_VISION_RECALLS - 1));
}

/* An object as sorted: by class, image, then descending score (detections) or order in the file (truth). */
typedef struct fl__ap_entry {
    int64_t category, image, at; /* indices, not ids */
    double score;
} fl__ap_entry;

typedef struct fl__ap {
    const fl_vision_coco *truth, *found;
    bool masks;
    fl__ap_entry *gt, *dt;
    int64_t n_gt, n_dt;
    fl_vision_rle *gt_mask, *dt_mask; /* by index in the files */
    fl_vision_ap *out;
    int failed; /* atomic */
} fl__ap;

static int fl__ap_order(const void *a, const void *b) {
    const fl__ap_entry *x = a, *y = b;
    if (x->category != y->category) return x->category < y->category ? -1 : 1;
    if (x->image != y->image) return x->image < y->image ? -1 : 1;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

/* Sorts the objects of known classes and images. found_by: name of the calling function for detections, which
   are sorted by score; NULL for the truth. */
static bool fl__ap_sort(const fl_vision_coco *truth, const fl_vision_coco *c, const char *found_by,
                        fl__ap_entry **out, int64_t *n) {
    for (int64_t i = 0; found_by && i < c->n_object; i++)
        if (isnan(c->object[i].score))
            return fl_fail("%s: the score of result %" PRId64 " is NaN", found_by, i);
    fl__ap_entry *e = fl_heap_alloc((size_t)(c->n_object + 1) * sizeof *e);
    if (!e) return false;
    *n = 0;
    for (int64_t i = 0; i < c->n_object; i++) {
        const fl_vision_object *o = &c->object[i];
        const int64_t k =
            fl__coco_search(truth->category, truth->n_category, sizeof *truth->category, o->category);
        const int64_t image = fl_vision_coco_find(truth, o->image);
        if (k >= 0 && image >= 0) e[(*n)++] = (fl__ap_entry){k, image, i, found_by ? o->score : 0};
    }
    if (*n) qsort(e, (size_t)*n, sizeof *e, fl__ap_order);
    *out = e;
    return true;
}

/* pixel: added to the sides of boxes. */
static double fl__ap_box_iou(const double *d, const double *g, bool crowd, double pixel) {
    const double w = fmin(d[2] + d[0], g[2] + g[0]) - fmax(d[0], g[0]) + pixel;
    const double h = fmin(d[3] + d[1], g[3] + g[1]) - fmax(d[1], g[1]) + pixel;
    if (w <= 0 || h <= 0) return 0;
    const double i = w * h, a = (d[2] + pixel) * (d[3] + pixel);
    return i / (crowd ? a : a + (g[2] + pixel) * (g[3] + pixel) - i);
}

static double fl__ap_overlap(const fl__ap *p, int64_t d, int64_t g) {
    const fl_vision_object *a = &p->found->object[d], *b = &p->truth->object[g];
    if (!p->masks) return fl__ap_box_iou(a->box, b->box, b->crowd, 0);
    double x[4], y[4];
    fl_vision_rle_box(&p->dt_mask[d], x), fl_vision_rle_box(&p->gt_mask[g], y);
    return fl__ap_box_iou(x, y, b->crowd, 0) > 0 ? fl_vision_rle_iou(&p->dt_mask[d], &p->gt_mask[g], b->crowd)
                                                 : 0;
}

/* A detection of one class: its score, its rank in the image, and for each area range a bit for each
   threshold: hit (true positive), ignored. */
typedef struct fl__ap_hit {
    double score;
    int64_t order;
    int rank;
    uint16_t hit[FL_VISION_AREAS], ignored[FL_VISION_AREAS];
} fl__ap_hit;

/* Matches one image's detections to its objects of one class, for area range a. iou: [detections, objects];
   index, taken: workspace [objects]. Returns the number of objects that are not ignored. */
static int64_t fl__ap_match(const fl__ap *p, const fl__ap_entry *dt, int64_t nd, const fl__ap_entry *gt,
                            int64_t ng, int a, const double *iou, int64_t *index, uint16_t *taken,
                            fl__ap_hit *hit) {
    int64_t counted = 0, n = 0;
    for (int pass = 0; pass < 2; pass++) /* ignored objects last */
        for (int64_t g = 0; g < ng; g++) {
            const fl_vision_object *o = &p->truth->object[gt[g].at];
            const bool ignore = o->crowd || o->area < fl__ap_area[a][0] || o->area > fl__ap_area[a][1];
            if (ignore == (pass == 1)) index[n++] = g;
            if (!pass && !ignore) counted++;
        }
    memset(taken, 0, (size_t)ng * sizeof *taken);
    for (int64_t d = 0; d < nd; d++) hit[d].hit[a] = hit[d].ignored[a] = 0;
    for (int t = 0; t < FL_VISION_IOUS; t++)
        for (int64_t d = 0; d < nd; d++) {
            double best = fmin(fl__ap_iou(t), 1 - 1e-10);
            int64_t m = -1;
            for (int64_t k = 0; k < ng; k++) {
                const int64_t g = index[k];
                if (taken[g] >> t & 1 && !p->truth->object[gt[g].at].crowd) continue;
                if (m >= 0 && m < counted && k >= counted) break;
                if (iou[d * ng + g] < best) continue;
                best = iou[d * ng + g], m = k;
            }
            const double area = p->found->object[dt[d].at].area;
            const bool outside = area < fl__ap_area[a][0] || area > fl__ap_area[a][1];
            if (m >= 0) hit[d].hit[a] |= (uint16_t)(1 << t), taken[index[m]] |= (uint16_t)(1 << t);
            if (m >= 0 ? m >= counted : outside) hit[d].ignored[a] |= (uint16_t)(1 << t);
        }
    return counted;
}

static int fl__ap_by_score(const void *a, const void *b) {
    const fl__ap_hit *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Precision and recall of class k, area range a, detection limit m, threshold t, from the class's detections
   sorted by score. */
static void fl__ap_curve(const fl__ap *p, int64_t k, const fl__ap_hit *hit, int64_t n, int64_t objects,
                         int a, int m, int t, double *precision, double *score) {
    fl_vision_ap *out = p->out;
    const int64_t K = out->n_category;
    int64_t used = 0, tp = 0, fp = 0, at = 0;
    for (int64_t d = 0; d < n; d++) {
        if (hit[d].rank >= fl__ap_limit[m]) continue;
        if (!(hit[d].ignored[a] >> t & 1)) {
            if (hit[d].hit[a] >> t & 1) tp++;
            else fp++;
        }
        precision[2 * used] = (double)tp / (double)objects; /* recall */
        precision[2 * used + 1] = (double)tp / ((double)(fp + tp) + 2.220446049250313e-16);
        score[used++] = hit[d].score;
    }
    out->recall[((t * K + k) * FL_VISION_AREAS + a) * FL_VISION_LIMITS + m] =
        used ? precision[2 * used - 2] : 0;
    for (int64_t d = used - 1; d > 0; d--)
        if (precision[2 * d + 1] > precision[2 * d - 1]) precision[2 * d - 1] = precision[2 * d + 1];
    for (int r = 0; r < FL_VISION_RECALLS; r++) {
        while (at < used && precision[2 * at] < fl__ap_recall(r)) at++;
        const int64_t to =
            (((int64_t)(t * FL_VISION_RECALLS + r) * K + k) * FL_VISION_AREAS + a) * FL_VISION_LIMITS + m;
        out->precision[to] = at < used ? precision[2 * at + 1] : 0;
        out->score[to] = at < used ? score[at] : 0;
    }
}

/* Evaluates class k. False if memory is short. */
static bool fl__ap_class(fl__ap *p, int64_t k) {
    int64_t g0 = 0, g1, d0 = 0, d1, objects[FL_VISION_AREAS] = {0}, n = 0, most_gt = 0;
    while (g0 < p->n_gt && p->gt[g0].category < k) g0++;
    for (g1 = g0; g1 < p->n_gt && p->gt[g1].category == k;) g1++;
    while (d0 < p->n_dt && p->dt[d0].category < k) d0++;
    for (d1 = d0; d1 < p->n_dt && p->dt[d1].category == k;) d1++;
    for (int64_t g = g0, e; g < g1; g = e) {
        for (e = g; e < g1 && p->gt[e].image == p->gt[g].image;) e++;
        most_gt = e - g > most_gt ? e - g : most_gt;
    }
    fl__ap_hit *hit = fl_heap_alloc((size_t)(d1 - d0 + 1) * sizeof *hit);
    double *iou = fl_heap_alloc((size_t)(FL__AP_MOST * most_gt + 3 * (d1 - d0) + 1) * sizeof *iou);
    int64_t *index = fl_heap_alloc((size_t)(most_gt + 1) * (sizeof *index + sizeof(uint16_t)));
    const bool ok = hit && iou && index;
    uint16_t *taken = ok ? (uint16_t *)(index + most_gt) : NULL;
    for (int64_t g = g0, d = d0; ok && (g < g1 || d < d1);) {
        const int64_t gi = g < g1 ? p->gt[g].image : INT64_MAX, di = d < d1 ? p->dt[d].image : INT64_MAX;
        const int64_t image = gi < di ? gi : di;
        int64_t ge = g, de = d;
        while (ge < g1 && p->gt[ge].image == image) ge++;
        while (de < d1 && p->dt[de].image == image) de++;
        const int64_t nd = de - d < FL__AP_MOST ? de - d : FL__AP_MOST, ng = ge - g;
        for (int64_t i = 0; i < nd; i++) {
            hit[n + i] = (fl__ap_hit){.score = p->dt[d + i].score, .order = n + i, .rank = (int)i};
            for (int64_t j = 0; j < ng; j++)
                iou[i * ng + j] = fl__ap_overlap(p, p->dt[d + i].at, p->gt[g + j].at);
        }
        for (int a = 0; a < FL_VISION_AREAS; a++)
            objects[a] += fl__ap_match(p, p->dt + d, nd, p->gt + g, ng, a, iou, index, taken, hit + n);
        n += nd, g = ge, d = de;
    }
    if (ok && n) qsort(hit, (size_t)n, sizeof *hit, fl__ap_by_score);
    for (int a = 0; ok && a < FL_VISION_AREAS; a++)
        for (int m = 0; objects[a] && m < FL_VISION_LIMITS; m++)
            for (int t = 0; t < FL_VISION_IOUS; t++)
                fl__ap_curve(p, k, hit, n, objects[a], a, m, t, iou, iou + 2 * n);
    fl_heap_free(hit), fl_heap_free(iou), fl_heap_free(index);
    return ok;
}

static void fl__ap_classes(void *arg, int64_t begin, int64_t end) {
    fl__ap *p = arg;
    for (int64_t k = begin; k < end; k++)
        if (!fl__ap_class(p, k)) {
            fl_error_clear(); /* errors are per thread: the caller reports it */
            __atomic_store_n(&p->failed, 1, __ATOMIC_RELAXED);
        }
}

/* NumPy's pairwise summation, so that means round as NumPy's: eight partial sums for up to 128 numbers,
   halves above. */
static double fl__ap_sum(const double *v, int64_t n) {
    if (n > 128) {
        const int64_t half = n / 2 - n / 2 % 8;
        return fl__ap_sum(v, half) + fl__ap_sum(v + half, n - half);
    }
    double r[8] = {0}, sum = 0;
    int64_t i = 0;
    if (n >= 8) {
        for (; i + 8 <= n; i += 8)
            for (int k = 0; k < 8; k++) r[k] += v[i + k];
        sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    }
    for (; i < n; i++) sum += v[i];
    return sum;
}

/* The mean, ignoring -1, of precision or recall at threshold t (-1: all), area range a, detection limit m.
   list: workspace for all values. */
static double fl__ap_mean(const fl_vision_ap *out, bool recall, int t, int a, int m, double *list) {
    const int64_t K = out->n_category, rows = recall ? 1 : FL_VISION_RECALLS;
    int64_t n = 0;
    for (int64_t i = t < 0 ? 0 : t; i < (t < 0 ? FL_VISION_IOUS : t + 1); i++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < K; k++) {
                const int64_t at = (((i * rows + r) * K + k) * FL_VISION_AREAS + a) * FL_VISION_LIMITS + m;
                const double v = (recall ? out->recall : out->precision)[at];
                if (v > -1) list[n++] = v;
            }
    return n ? fl__ap_sum(list, n) / (double)n : -1;
}

FL_API void fl_vision_ap_free(fl_vision_ap *a) {
    if (!a) return;
    fl_heap_free(a->precision);
    *a = (fl_vision_ap){.n_category = 0};
}

static bool fl__ap_masks(const fl_vision_coco *c, const fl_vision_coco *truth, const fl__ap_entry *e,
                         int64_t n, fl_vision_rle **out) {
    *out = fl_heap_alloc((size_t)(c->n_object + 1) * sizeof **out);
    for (int64_t i = 0; *out && i < n; i++) {
        fl_vision_object o = c->object[e[i].at];
        const fl_vision_coco_image *m = &truth->image[e[i].image];
        if (!o.h && !o.w) o.h = (int32_t)m->h, o.w = (int32_t)m->w;
        const double *b = o.box, corners[] = {b[0],        b[1],        b[0],        b[1] + b[3],
                                              b[0] + b[2], b[1] + b[3], b[0] + b[2], b[1]};
        const bool made = o.n_seg || o.rle ? fl_vision_coco_mask(c, &o, &(*out)[e[i].at])
                                           : fl_vision_rle_polygon(corners, 4, m->h, m->w, &(*out)[e[i].at]);
        if (!made) return false;
    }
    return *out != NULL;
}

static void fl__ap_drop_masks(fl_vision_rle *r, int64_t n) {
    for (int64_t i = 0; r && i < n; i++) fl_heap_free(r[i].run);
    fl_heap_free(r);
}

FL_API bool fl_vision_evaluate(const fl_vision_coco *truth, const fl_vision_coco *found, bool masks,
                               fl_vision_ap *out) {
    if (!truth || !found || !out) return fl_fail("fl_vision_evaluate: an argument is NULL");
    const int64_t K = truth->n_category, cells = K * FL_VISION_AREAS * FL_VISION_LIMITS * FL_VISION_IOUS;
    fl_vision_ap made = {.n_category = K};
    fl__ap p = {.truth = truth, .found = found, .masks = masks, .out = &made};
    made.precision = fl_heap_alloc((size_t)(cells * (2 * FL_VISION_RECALLS + 1) + 1) * sizeof(double));
    double *list = fl_heap_alloc((size_t)(K * FL_VISION_IOUS * FL_VISION_RECALLS + 1) * sizeof *list);
    bool ok = list && made.precision && fl__ap_sort(truth, truth, NULL, &p.gt, &p.n_gt) &&
              fl__ap_sort(truth, found, "fl_vision_evaluate", &p.dt, &p.n_dt);
    ok = ok && (!masks || (fl__ap_masks(truth, truth, p.gt, p.n_gt, &p.gt_mask) &&
                           fl__ap_masks(found, truth, p.dt, p.n_dt, &p.dt_mask)));
    if (ok) {
        made.score = made.precision + cells * FL_VISION_RECALLS,
        made.recall = made.score + cells * FL_VISION_RECALLS;
        for (int64_t i = 0; i < cells * (2 * FL_VISION_RECALLS + 1); i++) made.precision[i] = -1;
        fl_parallel(K, 1, fl__ap_classes, &p);
        if (p.failed) ok = fl_fail("fl_vision_evaluate: out of memory");
    }
    if (ok) {
        static const int what[12][4] = {{0, -1, 0, 2}, {0, 0, 0, 2},  {0, 5, 0, 2},  {0, -1, 1, 2},
                                        {0, -1, 2, 2}, {0, -1, 3, 2}, {1, -1, 0, 0}, {1, -1, 0, 1},
                                        {1, -1, 0, 2}, {1, -1, 1, 2}, {1, -1, 2, 2}, {1, -1, 3, 2}};
        for (int i = 0; i < 12; i++)
            made.figure[i] = fl__ap_mean(&made, what[i][0], what[i][1], what[i][2], what[i][3], list);
        *out = made;
    } else fl_heap_free(made.precision);
    fl_heap_free(list);
    fl__ap_drop_masks(p.gt_mask, truth->n_object), fl__ap_drop_masks(p.dt_mask, found->n_object);
    fl_heap_free(p.gt), fl_heap_free(p.dt);
    return ok;
}

FL_API double fl_vision_ap_class(const fl_vision_ap *a, int64_t k) {
    if (!fl_given(a, "fl_vision_ap_class", "the result")) return NAN;
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = 0; k >= 0 && k < a->n_category && i < FL_VISION_IOUS * FL_VISION_RECALLS;
         i++, n++) {
        const double v = a->precision[((i * a->n_category + k) * FL_VISION_AREAS) * FL_VISION_LIMITS + 2];
        if (v < 0) return -1;
        sum += v;
    }
    return n ? sum / (double)n : -1;
}

FL_API bool fl_vision_ap_put(fl_data_text *t, const fl_vision_ap *a, const fl_vision_coco *truth) {
    static const char *const name[12] = {"AP",  "AP50", "AP75",  "APs", "APm", "APl",
                                         "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"};
    static const char *const area[12] = {"all", "all", "all", "small", "medium", "large",
                                         "all", "all", "all", "small", "medium", "large"};
    static const int limit[12] = {100, 100, 100, 100, 100, 100, 1, 10, 100, 100, 100, 100};
    char line[400];
    if (!t || !a) return fl_fail("fl_vision_ap_put: an argument is NULL");
    for (int i = 0; i < 12; i++) {
        const int n =
            snprintf(line, sizeof line, " %-18s %s @[ IoU=%-9s | area=%6s | maxDets=%3d ] = %0.3f\n",
                     i < 6 ? "Average Precision" : "Average Recall", i < 6 ? "(AP)" : "(AR)",
                     i == 1   ? "0.50"
                     : i == 2 ? "0.75"
                              : "0.50:0.95",
                     area[i], limit[i], a->figure[i]);
        if (!fl_data_text_put(t, line, (size_t)n)) return false;
    }
    for (int64_t i = 0; i < 12 + (truth ? a->n_category : 0); i++) {
        const double v = i < 12 ? a->figure[i] : fl_vision_ap_class(a, i - 12);
        if (v < 0) continue;
        const int n =
            i < 12 ? snprintf(line, sizeof line, "%s\t%.9f\n", name[i], v)
                   : snprintf(line, sizeof line, "AP %.300s\t%.9f\n", truth->category[i - 12].name, v);
        if (!fl_data_text_put(t, line, (size_t)n)) return false;
    }
    return true;
}

/* ---- PASCAL VOC ---- */

/* The curve of class k: (recall, precision) for each detection by descending score, and the number of
   objects. */
static bool fl__voc_curve(const fl__ap *p, int64_t k, double iou, double pixel, double **curve, int64_t *n,
                          int64_t *objects) {
    fl__ap_hit *hit = fl_heap_alloc((size_t)(p->n_dt + 1) * sizeof *hit);
    bool *taken = fl_heap_alloc((size_t)p->n_gt + 1);
    *curve = fl_heap_alloc((size_t)(p->n_dt + 1) * 2 * sizeof **curve);
    *n = *objects = 0;
    for (int64_t d = 0; hit && d < p->n_dt; d++)
        if (p->dt[d].category == k) hit[*n] = (fl__ap_hit){.score = p->dt[d].score, .order = d}, ++*n;
    for (int64_t g = 0; g < p->n_gt; g++)
        *objects += p->gt[g].category == k && !p->truth->object[p->gt[g].at].crowd;
    const bool ok = hit && taken && *curve;
    if (ok && *n) qsort(hit, (size_t)*n, sizeof *hit, fl__ap_by_score);
    int64_t tp = 0, fp = 0, used = 0;
    for (int64_t i = 0; ok && i < *n; i++) {
        const fl__ap_entry *d = &p->dt[hit[i].order];
        double best = -1;
        int64_t m = -1;
        for (int64_t g = 0; g < p->n_gt; g++) {
            if (p->gt[g].category != k || p->gt[g].image != d->image) continue;
            const double o =
                fl__ap_box_iou(p->found->object[d->at].box, p->truth->object[p->gt[g].at].box, false, pixel);
            if (o > best) best = o, m = g;
        }
        const bool meets = m >= 0 && best >= iou;
        if (meets && p->truth->object[p->gt[m].at].crowd) continue;
        if (meets && !taken[m]) tp++, taken[m] = true;
        else fp++;
        (*curve)[2 * used] = *objects ? (double)tp / (double)*objects : 0;
        (*curve)[2 * used + 1] = (double)tp / (double)(tp + fp), used++;
    }
    *n = used;
    fl_heap_free(hit), fl_heap_free(taken);
    return ok;
}

FL_API double fl_vision_voc_opt(const fl_vision_coco *truth, const fl_vision_coco *found, int64_t k,
                                double iou, int points, fl_vision_voc_opts o) {
    fl__ap p = {.truth = truth, .found = found};
    double *curve = NULL, ap = 0, high = 0;
    int64_t n = 0, objects = 0;
    if (!truth || !found || k < 0 || k >= truth->n_category || (points && points != 11)) {
        fl_fail("fl_vision_voc: got class %" PRId64 ", points %d, expected an existing class, points 0 or "
                "11, truth and found not NULL", k, points);
        return NAN;
    }
    const bool ok = fl__ap_sort(truth, truth, NULL, &p.gt, &p.n_gt) &&
                    fl__ap_sort(truth, found, "fl_vision_voc", &p.dt, &p.n_dt) &&
                    fl__voc_curve(&p, k, iou, o.inclusive, &curve, &n, &objects);
    for (int r = 0; ok && points && r < 11; r++, high = 0) {
        for (int64_t i = 0; i < n; i++)
            if (curve[2 * i] >= r * 0.1 && curve[2 * i + 1] > high) high = curve[2 * i + 1];
        ap += high / 11;
    }
    for (int64_t i = n - 1; ok && !points && i >= 0; i--) {
        high = curve[2 * i + 1] > high ? curve[2 * i + 1] : high;
        ap += high * (curve[2 * i] - (i ? curve[2 * i - 2] : 0));
    }
    fl_heap_free(p.gt), fl_heap_free(p.dt), fl_heap_free(curve);
    return !ok ? (double)NAN : objects ? ap : -1;
}

#endif
#endif

/* MIT licence: see LICENSE. */
