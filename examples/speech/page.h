/* examples/speech/page.h - an HTML page of feature images with marked time intervals, sorted by rank */
#ifndef PAGE_H
#define PAGE_H
#include "../html.h"
#include <math.h>
#include <stdio.h>

enum { PAGE_ZOOM = 4 }; /* pixels per frame and per band */

/* Sections, shown in order of descending rank. */
typedef struct page {
    fl_data_text *part;
    double *rank;
    int64_t n, cap, rank_cap;
    bool full; /* out of memory */
} page;

#define page_put(p, ...) ((p)->full |= !fl_data_text_print(&(p)->part[(p)->n], __VA_ARGS__))

static inline bool page_begin(page *p, double rank) {
    if (!fl_heap_grow(&p->part, &p->cap, p->n + 1, sizeof *p->part) ||
        !fl_heap_grow(&p->rank, &p->rank_cap, p->n + 1, sizeof *p->rank))
        return false;
    p->part[p->n] = (fl_data_text){0}, p->rank[p->n] = rank;
    return true;
}

static inline bool page_end(page *p) {
    page_put(p, "</div>\n");
    p->n++;
    return !p->full;
}

/* Draws x [frames, bands], the minimum white, the maximum black. Follow it by marks, then page_end. */
static inline void page_picture(page *p, fl_tensor *features) {
    char size[60];
    double low = INFINITY, high = -INFINITY;
    const int64_t frames = features->shape[0], bands = features->shape[1];
    const float *x = fl_map(features, FL_READ);
    for (int64_t i = 0; x && i < frames * bands; i++)
        low = fmin(low, (double)x[i]), high = fmax(high, (double)x[i]);
    fl_scope s = fl_scope_begin();
    fl_tensor *image = fl_empty(FL_SHAPE(1, bands, frames), FL_U8);
    uint8_t *b = x && image ? fl_map(image, FL_WRITE) : NULL, *pixels = b;
    for (int64_t k = 0; b && k < bands; k++)
        for (int64_t t = 0; t < frames; t++) {
            const double v = ((double)x[t * bands + bands - 1 - k] - low) / (high - low);
            *b++ = (uint8_t)(v > 0 ? 255 - 255 * v : 255);
        }
    if (x) fl_unmap(features, FL_READ);
    if (pixels) fl_unmap(image, FL_WRITE);
    snprintf(size, sizeof size, "width=%lld height=%lld", (long long)(PAGE_ZOOM * frames),
             (long long)(PAGE_ZOOM * bands));
    page_put(p, "<div>");
    p->full |= !b || !html_image(&p->part[p->n], image, size);
    fl_scope_end(&s);
}

/* A letter below frames `begin` to `end`, on a background whose opacity is the confidence. */
static inline void page_mark(page *p, double begin, double end, char letter, double sure) {
    page_put(p, "<i style=\"left:%gpx;width:%gpx;background:rgba(110,165,255,%.2f)\">%c</i>",
             PAGE_ZOOM * begin, PAGE_ZOOM * (end - begin), sure, letter);
}

static inline bool page_save(page *p, const char *path, const char *title) {
    if (!page_begin(p, 0)) return false;
    p->full |= !html_begin(&p->part[p->n], title,
                           "div{position:relative;margin-bottom:2em}img{display:block;"
                           "image-rendering:pixelated}"
                           "i{position:absolute;top:100%;color:#000;text-align:center;"
                           "outline:1px solid #adf;outline-offset:-1px}");
    page_put(p, "<h1>%s</h1>\n", title);
    fl_data_text all = p->part[p->n];
    bool ok = !p->full;
    for (int64_t k = 0; ok && k < p->n; k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < p->n; i++)
            if (p->part[i].p && (best < 0 || p->rank[i] > p->rank[best])) best = i;
        ok = fl_data_text_put(&all, p->part[best].p, (size_t)p->part[best].n);
        fl_heap_free(p->part[best].p);
        p->part[best] = (fl_data_text){0};
    }
    ok = ok && fl_data_replace("page_save", path, all.p, (size_t)all.n);
    fl_heap_free(all.p);
    return ok;
}

static inline void page_free(page *p) {
    for (int64_t i = 0; i < p->n; i++) fl_heap_free(p->part[i].p);
    fl_heap_free(p->part);
    fl_heap_free(p->rank);
}

#endif
/* MIT licence: see LICENSE. */
