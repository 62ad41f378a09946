/* examples/vision.h - shared by vision_*.c: synthetic images, class names, drawing and evaluation of
   detections

   Not part of the library. */
#ifndef EXAMPLES_VISION_H
#define EXAMPLES_VISION_H

#include "arguments.h"
#include "fl_text.h"
#include "fl_vision.h"
#include "fl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- synthetic images: ten classes of figures with random rotation, size, position and colour, and noise
   ---- */

static const char *const vision_class_names[] = {"disc",    "ring",   "square", "triangle", "cross",
                                                 "stripes", "checks", "dots",   "star",     "waves"};

/* Whether (u, v) is inside figure k, which is about as large as the unit circle. */
static inline bool vision_figure(int k, double u, double v) {
    const double r = sqrt(u * u + v * v), a = fabs(u), b = fabs(v);
    switch (k) {
    case 0: return r < 0.9;
    case 1: return r < 0.95 && r > 0.55;
    case 2: return a < 0.8 && b < 0.8;
    case 3: return v < 0.6 && v > 1.9 * a - 1;
    case 4: return (a < 0.28 && b < 1) || (b < 0.28 && a < 1);
    case 5: return sin(6 * u) > 0;
    case 6: return sin(4.5 * u) * sin(4.5 * v) > 0;
    case 7: return sin(6 * u) + sin(6 * v) > 1.1;
    case 8: return r < 0.6 + 0.4 * cos(5 * atan2(v, u));
    default: return sin(8 * r) > 0;
    }
}

/* Draws a figure of class `kind` as RGB, side x side. */
static inline void vision_draw(unsigned char *rgb, int side, int kind, fl_rng *rng) {
    const double angle = 6.2832 * fl_rng_uniform(rng), size = side * (0.25 + 0.2 * fl_rng_uniform(rng));
    const double cy = side * (0.4 + 0.2 * fl_rng_uniform(rng)), cx = side * (0.4 + 0.2 * fl_rng_uniform(rng));
    double colour[2][3], apart = 0;
    while (apart < 0.5)
        for (int i = apart = 0; i < 3; i++) {
            colour[0][i] = fl_rng_uniform(rng), colour[1][i] = fl_rng_uniform(rng);
            apart += fabs(colour[0][i] - colour[1][i]);
        }
    uint64_t state = (uint64_t)(fl_rng_uniform(rng) * 0x1p53) | 1;
    for (int y = 0; y < side; y++)
        for (int x = 0; x < side; x++) {
            const double dy = (y - cy) / size, dx = (x - cx) / size;
            const bool in =
                vision_figure(kind, cos(angle) * dx + sin(angle) * dy, cos(angle) * dy - sin(angle) * dx);
            for (int i = 0; i < 3; i++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                const double noise = (double)(state >> 40) / 0x1p24 - 0.5;
                const double v = 255 * (0.1 + 0.8 * colour[in][i] + 0.25 * noise);
                *rgb++ = (unsigned char)(v < 0 ? 0 : v > 255 ? 255 : v);
            }
        }
}

/* Draws n images of 32 x 32 with labels i % 10, owned by the innermost scope. */
static inline bool vision_draw_all(int64_t n, uint64_t seed, fl_vision_arrays *out) {
    static const int planes[] = {0, 3, 1, 2};
    enum { SIDE = 32 };
    fl_tensor *image = fl_data_host_tensor(FL_SHAPE(n, SIDE, SIDE, 3), FL_U8);
    fl_tensor *label = fl_data_host_tensor(FL_SHAPE(n), FL_I64);
    if (!image || !label) return false;
    for (int64_t i = 0; i < n; i++) {
        fl_rng rng = fl_data_rng(seed, 0, i);
        vision_draw((unsigned char *)fl_data(image) + i * SIDE * SIDE * 3, SIDE, (int)(i % 10), &rng);
        ((int64_t *)fl_data(label))[i] = i % 10;
    }
    *out = (fl_vision_arrays){fl_permute(image, 4, planes), label};
    return out->image != NULL;
}

/* ---- class names ---- */

/* Class names from a text file, where line k ends with a tab and the name of class k (ImageNet's
   synsets.tsv), or from COCO's JSON, where classes are category ids; else "class 7". */
typedef struct vision_labels {
    char *text;
    int64_t n;
    fl_vision_coco coco;
} vision_labels;

/* Reads the names; path NULL: no names. False after fl_fail. */
static inline bool vision_labels_read(const char *program, const char *path, vision_labels *l) {
    const size_t n = path ? strlen(path) : 0;
    if (n > 5 && !strcmp(path + n - 5, ".json")) return fl_vision_coco_load(path, &l->coco);
    return !path || (l->text = fl_text_read_file(program, path, &l->n)) != NULL;
}

static inline void vision_labels_free(vision_labels *l) {
    fl_heap_free(l->text), fl_vision_coco_free(&l->coco);
}

/* The name of class k. */
static inline void vision_label(const vision_labels *l, int64_t k, char *name, size_t size) {
    const char *line = l->text, *end = line ? line + l->n : NULL;
    *name = 0;
    for (int64_t i = 0; line && line < end && i < k; i++) {
        line = memchr(line, '\n', (size_t)(end - line));
        line = line ? line + 1 : end;
    }
    if (line && line < end) {
        size_t n = 0;
        while (line + n < end && line[n] != '\n' && line[n] != '\r')
            if (line[n++] == '\t') line += n, n = 0;
        snprintf(name, size, "%.*s", (int)n, line);
    }
    for (int64_t i = 0; i < l->coco.n_category; i++)
        if (l->coco.category[i].id == k) snprintf(name, size, "%s", l->coco.category[i].name);
    if (!*name) snprintf(name, size, "class %lld", (long long)k);
}

/* ---- detections ---- */

/* Boxes with labels, to be drawn into an image. */
enum { VISION_FRAMES = 100 };
typedef struct vision_frames {
    int64_t n;
    char text[VISION_FRAMES][40];
    uint8_t colour[VISION_FRAMES][3];
    float box[VISION_FRAMES][4];
} vision_frames;

/* Adds a box; a score of 1 is not shown. */
static inline void vision_frame(vision_frames *f, const char *name, int64_t kind, double score,
                                const float box[4]) {
    if (f->n == VISION_FRAMES) return;
    snprintf(f->text[f->n], sizeof *f->text, score < 1 ? "%.30s %.2f" : "%.30s", name, score);
    fl_vision_colour(kind, f->colour[f->n]), memcpy(f->box[f->n++], box, sizeof *f->box);
}

/* Draws the boxes; line width and font size scale with the image. */
static inline fl_tensor *vision_draw_frames(fl_tensor *image, const vision_frames *f) {
    const char *labels[VISION_FRAMES];
    const int64_t shorter = image->shape[1] < image->shape[2] ? image->shape[1] : image->shape[2];
    const int64_t scale = shorter > 400 ? shorter / 200 : 1;
    for (int64_t i = 0; i < f->n; i++) labels[i] = f->text[i];
    return fl_vision_draw_boxes(image, fl_from_host(f->box, FL_SHAPE(f->n, 4), FL_F32), .labels = labels,
                                .colours = f->colour[0], .width = 1 + scale, .scale = scale);
}

/* Runs the detector on all batches of an objects set: `queries` detections per image, in heap memory at
   found->object. */
static inline bool vision_find_all(fl_nn_module *net, fl_data_set *test, int64_t images, int64_t queries,
                                   fl_vision_coco *found) {
    bool ok = true;
    const bool before = fl_no_grad(true);
    fl_nn_train(net, false);
    *found =
        (fl_vision_coco){.object = fl_heap_alloc((size_t)(images * queries + 1) * sizeof *found->object)};
    ok = found->object != NULL;
    for (int64_t i = 0; ok && i < fl_data_size(test); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        fl_vision_detections d;
        ok = fl_data_get(test, i, &b);
        const fl_vars y =
            ok ? fl_nn_forward_vars(net, FL_VARS(fv_const(b.t[0]), fv_const(b.t[1]))) : (fl_vars){0};
        ok = y.n && fl_vision_detr_postprocess(fv_value(y.v[0]), fv_value(y.v[1]),
                                               fl_slice(b.t[5], 1, 1, 3, 1), &d);
        const float *boxes = ok ? fl_map(d.boxes, FL_READ) : NULL;
        const float *score = ok ? fl_map(d.scores, FL_READ) : NULL;
        const int64_t *label = ok ? fl_map(d.labels, FL_READ) : NULL;
        const int64_t *size = ok ? fl_map(b.t[5], FL_READ) : NULL;
        ok = boxes && score && label && size;
        for (int64_t k = 0; ok && k < fl_numel(d.scores); k++) {
            const float *box = boxes + 4 * k;
            found->object[found->n_object] = (fl_vision_object){
                .id = found->n_object + 1,
                .image = size[k / queries * 3],
                .category = label[k],
                .score = (double)score[k],
                .box = {(double)box[0], (double)box[1], (double)(box[2] - box[0]), (double)(box[3] - box[1])},
                .area = (double)((box[2] - box[0]) * (box[3] - box[1]))};
            found->n_object++;
        }
        if (boxes) fl_unmap(d.boxes, FL_READ);
        if (score) fl_unmap(d.scores, FL_READ);
        if (label) fl_unmap(d.labels, FL_READ);
        if (size) fl_unmap(b.t[5], FL_READ);
        fl_scope_end(&s);
    }
    fl_no_grad(before);
    return ok;
}

/* DETR's losses of a batch of an objects set. */
static inline bool vision_losses(fl_nn_module *net, const fl_data_sample *b, double objects,
                                 fl_vision_losses *l) {
    const fl_vision_targets target = {b->t[3], b->t[2], fl_data(b->t[4]), fl_numel(b->t[4])};
    const fl_vars y = fl_nn_forward_vars(net, FL_VARS(fv_const(b->t[0]), fv_const(b->t[1])));
    return y.n && fl_vision_criterion(y, &target, l, .objects = objects);
}

#endif /* MIT licence: see LICENSE. */
