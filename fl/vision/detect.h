/* fl/vision/detect.h - bounding boxes, NMS, linear assignment, DETR's matcher and losses */
#ifndef FL_NN_H
#include "../../fl_nn.h"
#endif
#ifndef FL_VISION_DETECT_H
#define FL_VISION_DETECT_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- boxes, [..., 4] (torchvision.ops) ---- */

typedef enum fl_vision_box_format {
    FL_VISION_XYXY,  /* left, top, right, bottom */
    FL_VISION_XYWH,  /* left, top, width, height */
    FL_VISION_CXCYWH /* centre, width, height */
} fl_vision_box_format;
/* Converts between box formats. */
FL_API fl_tensor *fl_vision_box_convert(fl_tensor *boxes, fl_vision_box_format from, fl_vision_box_format to);
FL_API fl_var *fv_vision_box_convert(fl_var *boxes, fl_vision_box_format from, fl_vision_box_format to);
/* (right - left) (bottom - top) of boxes in FL_VISION_XYXY. */
FL_API fl_tensor *fl_vision_box_area(fl_tensor *boxes);
/* Elementwise intersection over union of boxes in FL_VISION_XYXY, broadcast. generalized: minus the fraction
   of the enclosing box that neither covers, in (-1, 1] (generalized_box_iou, arXiv 1902.09630). For all pairs
   of [n, 4] and [m, 4] pass [n, 1, 4] and [m, 4]. */
FL_API fl_tensor *fl_vision_box_iou(fl_tensor *a, fl_tensor *b, bool generalized);
FL_API fl_var *fv_vision_box_iou(fl_var *a, fl_var *b, bool generalized);
/* Non-maximum suppression: the indices i64 of the boxes f32 [n, 4] (FL_VISION_XYXY) kept, in descending order
   of scores f32 [n]. A box is removed if its IoU with a kept box of a higher score is above threshold. Boxes
   suppress only boxes of the same group, i64 [n]; NULL: one group (batched_nms). NULL after an error, such as
   a NaN score. */
FL_API fl_tensor *fl_vision_nms(fl_tensor *boxes, fl_tensor *scores, fl_tensor *group, double threshold);

/* Clips boxes (FL_VISION_XYXY) to an image of h x w pixels (clip_boxes_to_image). */
FL_API fl_tensor *fl_vision_box_clip(fl_tensor *boxes, int64_t h, int64_t w);
/* The bounding boxes f32 [n, 4] (FL_VISION_XYXY, inclusive) of the non-zero pixels of masks [n, h, w], u8 or
   b8; zeros for an empty mask (masks_to_boxes). */
FL_API fl_tensor *fl_vision_masks_to_boxes(fl_tensor *masks);

/* ---- assignment ---- */

/* Minimum-cost assignment for cost [rows, columns] (scipy's linear_sum_assignment): column[i] is the column
   of row i, or -1 if it has none (more rows than columns). False after fl_fail if a cost is not finite. */
FL_API bool fl_vision_linear_assignment(const double *cost, int64_t rows, int64_t columns, int64_t *column);

/* ---- DETR's criterion ---- */

/* The objects of a batch, concatenated image by image; borrowed. */
typedef struct fl_vision_targets {
    fl_tensor *labels;    /* i64 [objects] */
    fl_tensor *boxes;     /* f32 [objects, 4], FL_VISION_CXCYWH, relative to the image's size */
    const int64_t *count; /* objects per image [n] */
    int64_t n;            /* images */
} fl_vision_targets;
/* DETR's matcher: the query assigned to each object, i64 [objects], as image * queries + query. It minimises
   5 |box - target| - probability of the class - 2 giou for each image. logits [n, queries, classes + 1],
   boxes [n, queries, 4]. */
FL_API fl_tensor *fl_vision_match(fl_tensor *logits, fl_tensor *boxes, const fl_vision_targets *t);

typedef struct fl_vision_losses {
    fl_var *total;           /* ce + 5 l1 + 2 giou, summed over the layers */
    double ce, l1, giou;     /* of the last layer */
    double class_error;      /* percentage of matched queries with a wrong class, of the last layer */
} fl_vision_losses;
typedef struct fl_vision_criterion_opts {
    fl_opts_guard guard_;
    double nothing; /* weight of the "no object" class; 0 -> 0.1 */
    double objects; /* number of objects, averaged over ranks; 0 -> that of the targets, at least 1 */
    bool last_only; /* no auxiliary losses: only the last decoder layer */
    char _end;
} fl_vision_criterion_opts;
/* DETR's losses of y, the results of fl_vision_detr; each decoder layer is matched separately. ce: weighted
   mean of the cross-entropy over all queries; l1 and giou: sums of |box - target| and 1 - giou over the
   matched queries, divided by the number of objects. False after an error. */
#define fl_vision_criterion(...) FL__VISION_CRITERION(__VA_ARGS__, ._end = 0)
#define FL__VISION_CRITERION(y, t, out, ...) \
    fl_vision_criterion_opt(y, t, out, FL_LITERAL(fl_vision_criterion_opts, __VA_ARGS__))
FL_API bool fl_vision_criterion_opt(fl_vars y, const fl_vision_targets *t, fl_vision_losses *out,
                                    fl_vision_criterion_opts o);

typedef struct fl_vision_detections {
    fl_tensor *scores; /* f32 [n, queries]: the largest probability of a class, without "no object" */
    fl_tensor *labels; /* i64 [n, queries] */
    fl_tensor *boxes;  /* f32 [n, queries, 4], FL_VISION_XYXY in pixels of the original image */
} fl_vision_detections;
/* Post-processing (DETR's PostProcess): scores, labels and boxes from logits [n, queries, classes + 1] and
   boxes [n, queries, 4] of fl_vision_detr; sizes i64 [n, 2]: the images' height and width. False after an
   error. */
FL_API bool fl_vision_detr_postprocess(fl_tensor *logits, fl_tensor *boxes, fl_tensor *sizes,
                                       fl_vision_detections *out);

#ifdef __cplusplus
}
#endif
#endif /* FL_VISION_DETECT_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_VISION_DETECT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_DETECT_IMPL
#define FL_VISION_DETECT_IMPL
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/index.h"
#include "../ops/loss.h"
#include "../ops/reduce.h"
#include "../ops/softmax.h"
#include "../ops/view.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- boxes ---- */

static bool fl__boxes_ok(const char *fn, const fl_tensor *t) {
    if (fl_is_null_arg(fn, t)) return false;
    return (t->ndim >= 1 && t->shape[t->ndim - 1] == 4 && fl_dtype_is_float(t->dtype)) ||
           fl_fail("%s: got boxes %s %s, expected floats [..., 4]", fn, fl_dtype_name(t->dtype),
                   FL_SHAPE_TEXT(t));
}

/* boxes[..., from:from + 2]. */
static fl_var *fl__box_half(fl_var *boxes, int64_t from) {
    return fv_slice(boxes, -1, from, from + 2, 1);
}

FL_API fl_var *fv_vision_box_convert(fl_var *boxes, fl_vision_box_format from, fl_vision_box_format to) {
    if (!fl__boxes_ok("fl_vision_box_convert", fv_value(boxes))) return fl_raise();
    if ((unsigned)from > FL_VISION_CXCYWH || (unsigned)to > FL_VISION_CXCYWH)
        return fl_err_null("fl_vision_box_convert: unknown format: from %d, to %d, expected 0 to %d",
                           (int)from, (int)to, (int)FL_VISION_CXCYWH);
    if (from == to) return boxes;
    fl_var *half = fv_num(0.5), *a = fl__box_half(boxes, 0), *b = fl__box_half(boxes, 2), *low = a, *size = b;
    if (from == FL_VISION_XYXY) size = fv_sub(b, a);
    else if (from == FL_VISION_CXCYWH) low = fv_sub(a, fv_mul(half, b));
    fl_var *parts[2] = {low, size};
    if (to == FL_VISION_XYXY) parts[1] = from == FL_VISION_XYXY ? b : fv_add(low, size);
    else if (to == FL_VISION_CXCYWH) parts[0] = fv_add(low, fv_mul(half, size));
    return parts[0] && parts[1] ? fv_concat(parts, 2, -1) : NULL;
}

FL_API fl_tensor *fl_vision_box_convert(fl_tensor *boxes, fl_vision_box_format from,
                                        fl_vision_box_format to) {
    return fv_value(fv_vision_box_convert(fv_const(boxes), from, to));
}

static fl_var *fl__box_area(fl_var *boxes) {
    return fv_prod(fv_sub(fl__box_half(boxes, 2), fl__box_half(boxes, 0)), FL_AXES(-1));
}

FL_API fl_tensor *fl_vision_box_area(fl_tensor *boxes) {
    if (!fl__boxes_ok("fl_vision_box_area", boxes)) return fl_raise();
    return fv_value(fl__box_area(fv_const(boxes)));
}

FL_API fl_var *fv_vision_box_iou(fl_var *a, fl_var *b, bool generalized) {
    if (!fl__boxes_ok("fl_vision_box_iou", fv_value(a)) || !fl__boxes_ok("fl_vision_box_iou", fv_value(b)))
        return fl_raise();
    fl_var *a0 = fl__box_half(a, 0), *a1 = fl__box_half(a, 2), *b0 = fl__box_half(b, 0),
           *b1 = fl__box_half(b, 2);
    fl_var *inner = fv_prod(fv_relu(fv_sub(fv_minimum(a1, b1), fv_maximum(a0, b0))), FL_AXES(-1));
    fl_var *both = fv_sub(fv_add(fl__box_area(a), fl__box_area(b)), inner), *iou = fv_div(inner, both);
    if (!generalized) return iou;
    fl_var *hull = fv_prod(fv_sub(fv_maximum(a1, b1), fv_minimum(a0, b0)), FL_AXES(-1));
    return fv_sub(iou, fv_div(fv_sub(hull, both), hull));
}

FL_API fl_tensor *fl_vision_box_iou(fl_tensor *a, fl_tensor *b, bool generalized) {
    return fv_value(fv_vision_box_iou(fv_const(a), fv_const(b), generalized));
}

typedef struct fl__nms_entry {
    double score;
    int64_t at;
} fl__nms_entry;

static int fl__nms_order(const void *a, const void *b) {
    const fl__nms_entry *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

static double fl__nms_iou(const double *a, const double *b) {
    const double w = fmin(a[2], b[2]) - fmax(a[0], b[0]), h = fmin(a[3], b[3]) - fmax(a[1], b[1]);
    if (w <= 0 || h <= 0) return 0;
    return w * h / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h);
}

FL_API fl_tensor *fl_vision_nms(fl_tensor *boxes, fl_tensor *scores, fl_tensor *group, double threshold) {
    if (!fl__boxes_ok("fl_vision_nms", boxes) || fl_is_null_arg("fl_vision_nms", scores)) return fl_raise();
    const int64_t n = boxes->shape[0];
    if (boxes->ndim != 2 || scores->ndim != 1 || scores->shape[0] != n ||
        (group && (group->ndim != 1 || group->shape[0] != n)))
        return fl_err_null("fl_vision_nms: got boxes %s, scores %s, expected [n, 4], [n], group NULL or [n]",
                           FL_SHAPE_TEXT(boxes), FL_SHAPE_TEXT(scores));
    fl__nms_entry *e = fl_heap_alloc((size_t)(n + 1) * sizeof *e);
    int64_t *kept = fl_heap_alloc((size_t)(n + 1) * sizeof *kept), m = 0;
    fl_data_host_view b, s, g = {0};
    bool ok = fl_data_host_begin(&b, boxes, FL_F64);
    ok = fl_data_host_begin(&s, scores, FL_F64) && ok && e && kept;
    const bool grouped = group && ok;
    if (grouped) ok = fl_data_host_begin(&g, group, FL_I64);
    for (int64_t i = 0; ok && i < n; i++) {
        e[i] = (fl__nms_entry){s.f[i], i};
        ok = !isnan(s.f[i]) || fl_fail("fl_vision_nms: the score of box %" PRId64 " is NaN", i);
    }
    if (ok && n) qsort(e, (size_t)n, sizeof *e, fl__nms_order);
    for (int64_t i = 0; ok && i < n; i++) {
        bool keep = true;
        for (int64_t k = 0; keep && k < m; k++)
            keep = (grouped && g.i[kept[k]] != g.i[e[i].at]) ||
                    fl__nms_iou(b.f + 4 * kept[k], b.f + 4 * e[i].at) <= threshold;
        if (keep) kept[m++] = e[i].at;
    }
    if (grouped) fl_data_host_end(&g);
    fl_data_host_end(&s), fl_data_host_end(&b);
    fl_tensor *t = ok ? fl_from_host(kept, FL_SHAPE(m), FL_I64) : NULL;
    fl_heap_free(e), fl_heap_free(kept);
    return t ? t : fl_raise();
}

FL_API fl_tensor *fl_vision_box_clip(fl_tensor *boxes, int64_t h, int64_t w) {
    if (!fl__boxes_ok("fl_vision_box_clip", boxes)) return fl_raise();
    if (h < 0 || w < 0)
        return fl_err_null("fl_vision_box_clip: h and w must be >= 0, got %" PRId64 ", %" PRId64, h, w);
    const float most[] = {(float)w, (float)h, (float)w, (float)h};
    return fl_clamp(boxes, fl_num(0), fl_to(fl_from_host(most, FL_SHAPE(4), FL_F32), fl_backend_name(boxes)));
}

FL_API fl_tensor *fl_vision_masks_to_boxes(fl_tensor *masks) {
    if (fl_is_null_arg("fl_vision_masks_to_boxes", masks)) return fl_raise();
    if (masks->ndim != 3 || (masks->dtype != FL_U8 && masks->dtype != FL_B8))
        return fl_err_null("fl_vision_masks_to_boxes: got masks %s %s, expected u8 or b8 [n, h, w]",
                           fl_dtype_name(masks->dtype), FL_SHAPE_TEXT(masks));
    const int64_t n = masks->shape[0], h = masks->shape[1], w = masks->shape[2];
    fl_tensor *m = fl_contiguous(masks), *t = m ? fl_data_host_tensor(FL_SHAPE(n, 4), FL_F32) : NULL;
    const uint8_t *p = t ? fl_map(m, FL_READ) : NULL;
    float *box = p ? fl_map(t, FL_WRITE) : NULL;
    for (int64_t i = 0; box && i < n; i++) {
        int64_t low[2] = {w, h}, high[2] = {-1, -1};
        for (int64_t k = 0; k < h * w; k++) {
            const int64_t at[] = {k % w, k / w};
            for (int d = 0; p[i * h * w + k] && d < 2; d++) {
                low[d] = at[d] < low[d] ? at[d] : low[d];
                high[d] = at[d] > high[d] ? at[d] : high[d];
            }
        }
        for (int d = 0; d < 4; d++)
            box[4 * i + d] = high[0] < 0 ? 0 : (float)(d < 2 ? low[d] : high[d - 2]);
    }
    if (box) fl_unmap(t, FL_WRITE);
    if (p) fl_unmap(m, FL_READ);
    return box ? t : NULL;
}

/* ---- assignment ---- */

/* Shortest augmenting paths (Jonker and Volgenant 1987): adds one row at a time; the potentials u (rows) and
   v (columns) are updated once its path is found. n <= m; rows and columns count from 1, 0 means none. The
   cost of (i, j) is cost[(i - 1) * dn + (j - 1) * dm]. open: first the n_open columns not yet reached, then
   the reached ones. */
static void fl__assign(const double *cost, int64_t n, int64_t m, int64_t dn, int64_t dm, double *u,
                       double *v, double *least, int64_t *owner, int64_t *previous, int64_t *open) {
    for (int64_t row = 1; row <= n; row++) {
        int64_t at = 0, n_open = m;
        double low = 0;
        for (int64_t j = 1; j <= m; j++) least[j] = INFINITY, open[j - 1] = j;
        owner[0] = row;
        while (owner[at]) {
            const int64_t i = owner[at];
            const double *p = cost + (i - 1) * dn - dm, base = low - u[i];
            int64_t next = 0;
            double best = INFINITY;
            for (int64_t k = 0; k < n_open; k++) {
                const int64_t j = open[k];
                const double d = base + p[j * dm] - v[j];
                if (d < least[j]) least[j] = d, previous[j] = at;
                if (least[j] < best || (least[j] == best && !owner[j])) best = least[j], next = k;
            }
            low = best, at = open[next];
            open[next] = open[--n_open], open[n_open] = at;
        }
        u[row] += low;
        for (int64_t k = n_open; k < m; k++) {
            const int64_t j = open[k];
            if (owner[j]) u[owner[j]] += low - least[j];
            v[j] -= low - least[j];
        }
        for (; at; at = previous[at]) owner[at] = owner[previous[at]];
    }
}

FL_API bool fl_vision_linear_assignment(const double *cost, int64_t rows, int64_t columns, int64_t *column) {
    if (rows < 0 || columns < 0 || rows > 1 << 20 || columns > 1 << 20 || (rows && !column) ||
        (rows && columns && !cost))
        return fl_fail("fl_vision_linear_assignment: got %" PRId64 " x %" PRId64 " costs, expected 0 to %d rows and "
                       "columns, cost and column not NULL", rows, columns, 1 << 20);
    for (int64_t i = 0; i < rows * columns; i++)
        if (!isfinite(cost[i]))
            return fl_fail("fl_vision_linear_assignment: cost of row %" PRId64 ", column %" PRId64 " is not finite: %g",
                           i / columns, i % columns, cost[i]);
    for (int64_t i = 0; i < rows; i++) column[i] = -1;
    const bool transposed = rows > columns;
    const int64_t n = transposed ? columns : rows, m = transposed ? rows : columns;
    if (!n) return true;
    double *u = fl_heap_alloc((size_t)(n + 1 + 2 * (m + 1)) * sizeof *u);
    int64_t *owner = fl_heap_alloc((size_t)(m + 1) * 3 * sizeof *owner);
    const bool ok = u && owner;
    if (ok) {
        int64_t *previous = owner + m + 1;
        fl__assign(cost, n, m, transposed ? 1 : columns, transposed ? columns : 1, u, u + n + 1,
                   u + n + 1 + m + 1, owner, previous, previous + m + 1);
        for (int64_t j = 1; j <= m; j++)
            if (owner[j]) column[transposed ? j - 1 : owner[j] - 1] = transposed ? owner[j] - 1 : j - 1;
    }
    fl_heap_free(u), fl_heap_free(owner);
    return ok;
}

/* ---- DETR's criterion ---- */

static bool fl__targets_ok(const char *fn, const fl_tensor *logits, const fl_tensor *boxes,
                           const fl_vision_targets *t) {
    if (fl_is_null_arg(fn, logits) || fl_is_null_arg(fn, boxes)) return false;
    if (!t || !t->labels || !t->boxes || !t->count)
        return fl_fail("%s: targets, or its labels, boxes or count, is NULL", fn);
    int64_t sum = 0;
    for (int64_t i = 0; i < t->n; sum += t->count[i++])
        if (t->count[i] < 0 || t->count[i] > INT32_MAX)
            return fl_fail("%s: the count of image %" PRId64 " is %" PRId64 ", expected 0 to %" PRId32, fn,
                           i, t->count[i], INT32_MAX);
    return (logits->ndim == 3 && boxes->ndim == 3 && logits->shape[0] == t->n && boxes->shape[0] == t->n &&
            boxes->shape[1] == logits->shape[1] && boxes->shape[2] == 4 && t->labels->ndim == 1 &&
            t->labels->shape[0] == sum && t->boxes->ndim == 2 && t->boxes->shape[0] == sum &&
            t->boxes->shape[1] == 4) ||
           fl_fail("%s: shapes do not match: logits %s (expected [n, queries, classes + 1]), boxes %s ([n, "
                   "queries, 4]); %" PRId64 " objects in n = %" PRId64 " images: labels %s, boxes %s",
                   fn, FL_SHAPE_TEXT(logits), FL_SHAPE_TEXT(boxes), sum, t->n, FL_SHAPE_TEXT(t->labels),
                   FL_SHAPE_TEXT(t->boxes));
}

static void fl__box_corners(const double *b, double out[4]) {
    for (int d = 0; d < 2; d++) out[d] = b[d] - b[d + 2] / 2, out[d + 2] = b[d] + b[d + 2] / 2;
}

static double fl__match_cost(const double *box, const double *target, double probability) {
    double a[4], b[4], apart = 0;
    for (int k = 0; k < 4; k++) apart += fabs(box[k] - target[k]);
    fl__box_corners(box, a), fl__box_corners(target, b);
    const double w = fmax(0, fmin(a[2], b[2]) - fmax(a[0], b[0])),
                 h = fmax(0, fmin(a[3], b[3]) - fmax(a[1], b[1]));
    const double both = box[2] * box[3] + target[2] * target[3] - w * h;
    const double hull = (fmax(a[2], b[2]) - fmin(a[0], b[0])) * (fmax(a[3], b[3]) - fmin(a[1], b[1]));
    return 5 * apart - probability - 2 * (w * h / both - (hull - both) / hull);
}

FL_API fl_tensor *fl_vision_match(fl_tensor *logits, fl_tensor *boxes, const fl_vision_targets *t) {
    if (!fl__targets_ok("fl_vision_match", logits, boxes, t)) return fl_raise();
    const int64_t queries = logits->shape[1], classes = logits->shape[2] - 1, objects = t->labels->shape[0];
    int64_t most = 0, done = 0;
    for (int64_t i = 0; i < t->n; i++) most = t->count[i] > most ? t->count[i] : most;
    double *cost = fl_heap_alloc((size_t)(most * queries + 1) * sizeof *cost);
    int64_t *column = fl_heap_alloc((size_t)(objects + 1) * sizeof *column);
    fl_data_host_view p, b, want, label;
    bool ok = fl_data_host_begin(&p, fl_softmax(logits, -1), FL_F64);
    ok = fl_data_host_begin(&b, boxes, FL_F64) && ok;
    ok = fl_data_host_begin(&want, t->boxes, FL_F64) && ok;
    ok = fl_data_host_begin(&label, t->labels, FL_I64) && ok && cost && column;
    for (int64_t i = 0; ok && i < t->n; done += t->count[i++]) {
        for (int64_t k = 0; ok && k < t->count[i]; k++) {
            const int64_t c = label.i[done + k];
            if (c < 0 || c >= classes)
                ok = fl_fail("fl_vision_match: object %" PRId64 " has label %" PRId64 ", expected 0 to %"
                             PRId64, done + k, c, classes - 1);
            for (int64_t q = 0; ok && q < queries; q++)
                cost[k * queries + q] = fl__match_cost(b.f + 4 * (i * queries + q), want.f + 4 * (done + k),
                                                       p.f[(i * queries + q) * (classes + 1) + c]);
        }
        if (ok && t->count[i] > queries)
            ok = fl_fail("fl_vision_match: image %" PRId64 " has %" PRId64 " objects, more than the %" PRId64
                         " queries",
                         i, t->count[i], queries);
        ok = ok && fl_vision_linear_assignment(cost, t->count[i], queries, column + done);
        for (int64_t k = 0; ok && k < t->count[i]; k++) column[done + k] += i * queries;
    }
    fl_data_host_end(&label), fl_data_host_end(&want), fl_data_host_end(&b), fl_data_host_end(&p);
    fl_tensor *y = ok ? fl_from_host(column, FL_SHAPE(objects), FL_I64) : NULL;
    fl_heap_free(cost), fl_heap_free(column);
    return y ? y : fl_raise();
}

/* ce, l1 and giou of one decoder layer in loss. False after an error. */
static bool fl__criterion_layer(fl_var *logits, fl_var *boxes, const fl_vision_targets *t, double nothing,
                                double objects, fl_var *loss[3], double *class_error) {
    fl_tensor *query = fl_vision_match(fv_value(logits), fv_value(boxes), t);
    if (!query) return false;
    const int64_t *s = fv_value(logits)->shape, n = s[0] * s[1], kinds = s[2];
    const char *backend = fl_backend_name(fv_value(logits));
    query = fl_to(query, backend);
    fl_tensor *labels = fl_to(t->labels, backend), *want_boxes = fl_to(t->boxes, backend);
    fl_tensor *want = fl_to(fl_full(FL_SHAPE(n), (double)(kinds - 1), FL_I64), backend);
    fl_tensor *weight = fl_to(fl_ones(FL_SHAPE(kinds), FL_F32), backend);
    want = want && query && labels ? fl_scatter(want, 0, query, labels) : NULL;
    if (!want || !weight || !want_boxes ||
        !fl_assign(fl_slice(weight, 0, kinds - 1, kinds, 1), fl_num(nothing)))
        return false;
    fl_var *flat = fv_reshape(logits, FL_SHAPE(n, kinds)), *target = fv_const(want_boxes);
    fl_var *mine = fv_index_select(fv_reshape(boxes, FL_SHAPE(n, 4)), 0, query), *by = fv_num(objects);
    fl_var *giou = fv_vision_box_iou(fv_vision_box_convert(mine, FL_VISION_CXCYWH, FL_VISION_XYXY),
                                     fv_vision_box_convert(target, FL_VISION_CXCYWH, FL_VISION_XYXY), true);
    loss[0] = fv_cross_entropy(flat, want, .weight = weight);
    loss[1] = fv_div(fv_sum(fv_abs(fv_sub(mine, target)), FL_ALL_AXES), by);
    loss[2] = fv_div(fv_sum(fv_sub(fv_num(1), giou), FL_ALL_AXES), by);
    if (class_error) {
        fl_tensor *guess = fl_argmax(fl_index_select(fv_value(flat), 0, query), 1, false);
        fl_tensor *wrong = guess ? fl_sum(fl_ne(guess, labels), FL_ALL_AXES) : NULL;
        *class_error = wrong && fl_numel(guess) ? 100 * fl_item(wrong) / (double)fl_numel(guess) : 0;
    }
    return loss[0] && loss[1] && loss[2];
}

FL_API bool fl_vision_criterion_opt(fl_vars y, const fl_vision_targets *t, fl_vision_losses *out,
                                    fl_vision_criterion_opts o) {
    static const double factor[] = {1, 5, 2};
    if (y.n != 4 || !out)
        return fl_err_false("fl_vision_criterion: got %d network results%s, expected the 4 of fl_vision_detr",
                            y.n, out ? "" : " and NULL for out");
    if (!fl__targets_ok("fl_vision_criterion", fv_value(y.v[0]), fv_value(y.v[1]), t)) return fl_raise();
    const double nothing = fl_option(o.nothing, 0.1),
                 objects = o.objects > 0 ? o.objects : fmax(1, (double)t->labels->shape[0]);
    const int64_t layers = fv_value(y.v[2])->shape[0];
    fl_vision_losses made = {.class_error = 0};
    for (int64_t i = o.last_only ? layers - 1 : 0; i < layers; i++) {
        fl_var *loss[3], *kinds = fv_select(y.v[2], 0, i), *boxes = fv_select(y.v[3], 0, i);
        const bool last = i + 1 == layers;
        if (!kinds || !boxes ||
            !fl__criterion_layer(kinds, boxes, t, nothing, objects, loss, last ? &made.class_error : NULL))
            return false;
        for (int k = 0; k < 3; k++) {
            fl_var *part = fv_mul(loss[k], fv_num(factor[k]));
            made.total = made.total ? fv_add(made.total, part) : part;
        }
        if (last)
            made.ce = fl_item(fv_value(loss[0])), made.l1 = fl_item(fv_value(loss[1])),
            made.giou = fl_item(fv_value(loss[2]));
    }
    *out = made;
    return made.total != NULL;
}

/* ---- post-processing ---- */

FL_API bool fl_vision_detr_postprocess(fl_tensor *logits, fl_tensor *boxes, fl_tensor *sizes,
                                       fl_vision_detections *out) {
    if (fl_is_null_arg("fl_vision_detr_postprocess", logits) ||
        fl_is_null_arg("fl_vision_detr_postprocess", boxes) ||
        fl_is_null_arg("fl_vision_detr_postprocess", sizes)) return false;
    const int64_t n = logits->ndim ? logits->shape[0] : 0, kinds = logits->ndim == 3 ? logits->shape[2] : 0;
    if (!out || kinds < 2 || boxes->ndim != 3 || boxes->shape[0] != n ||
        boxes->shape[1] != logits->shape[1] || boxes->shape[2] != 4 || sizes->dtype != FL_I64 ||
        sizes->ndim != 2 || sizes->shape[0] != n || sizes->shape[1] != 2)
        return fl_err_false(
            "fl_vision_detr_postprocess: got logits %s, boxes %s, sizes %s %s, expected [n, queries, classes + 1], "
            "[n, queries, 4], i64 [n, 2], and out not NULL",
            FL_SHAPE_TEXT(logits), FL_SHAPE_TEXT(boxes), fl_dtype_name(sizes->dtype), FL_SHAPE_TEXT(sizes));
    fl_tensor *p = fl_slice(fl_softmax(logits, -1), -1, 0, kinds - 1, 1);
    fl_tensor *h = fl_slice(sizes, 1, 0, 1, 1), *w = fl_slice(sizes, 1, 1, 2, 1), *each[] = {w, h, w, h};
    fl_tensor *scale = h && w ? fl_reshape(fl_concat(each, 4, 1), FL_SHAPE(n, 1, 4)) : NULL;
    scale = fl_to(fl_cast(scale, boxes->dtype), fl_backend_name(boxes));
    fl_vision_detections made = {
        fl_amax(p, FL_AXES(-1)), fl_argmax(p, -1, false),
        fl_mul(fl_vision_box_convert(boxes, FL_VISION_CXCYWH, FL_VISION_XYXY), scale)};
    if (!made.scores || !made.labels || !made.boxes) return false;
    *out = made;
    return true;
}

#endif
#endif

/* MIT licence: see LICENSE. */
