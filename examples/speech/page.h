/* page.h - a page of HTML that shows features as pictures, with marks of when what was said, in any order

   Pictures are BMP within the page, so that it is one file without scripts. */
#ifndef PAGE_H
#define PAGE_H
#include "fl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_ZOOM = 4 }; /* pixels of a frame, and of a band */

/* Parts, of which those with the highest rank come first. */
typedef struct page {
    fl_data_text *part;
    double *rank;
    int64_t n, cap, rank_cap;
    bool full; /* memory ran out */
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

static inline void page_base64(page *p, const uint8_t *b, int64_t n) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int64_t i = 0; i < n; i += 3) {
        const unsigned second = i + 1 < n ? b[i + 1] : 0u, third = i + 2 < n ? b[i + 2] : 0u;
        const unsigned v = (unsigned)b[i] << 16 | second << 8 | third;
        const char c[] = {digit[v >> 18], digit[v >> 12 & 63], i + 1 < n ? digit[v >> 6 & 63] : '=',
                          i + 2 < n ? digit[v & 63] : '='};
        p->full |= !fl_data_text_put(&p->part[p->n], c, 4);
    }
}

/* x [frames, bands], from low (white) to high (black); marks follow, then page_end. */
static inline void page_picture(page *p, const float *x, int64_t frames, int64_t bands, double low,
                                double high) {
    enum { HEAD = 54, COLOURS = 64 };
    const int64_t row = (frames + 3) / 4 * 4, size = HEAD + 4 * COLOURS + row * bands;
    uint8_t *b = fl_heap_alloc((size_t)size);
    p->full |= !b;
    if (!b) return;
    memset(b, 0, (size_t)size);
    const int64_t field[][2] = {{2, size},   {10, HEAD + 4 * COLOURS}, {14, 40}, {18, frames}, {22, bands},
                                {26, 1 | 8 << 16}, {46, COLOURS}};
    b[0] = 'B', b[1] = 'M';
    for (size_t i = 0; i < sizeof field / sizeof *field; i++)
        for (int k = 0; k < 4; k++) b[field[i][0] + k] = (uint8_t)(field[i][1] >> 8 * k);
    for (int i = 0; i < COLOURS; i++) memset(b + HEAD + 4 * i, 255 - 255 * i / (COLOURS - 1), 3);
    for (int64_t t = 0; t < frames; t++)
        for (int64_t k = 0; k < bands; k++) {
            const double v = (x[t * bands + k] - low) / (high - low) * COLOURS;
            b[HEAD + 4 * COLOURS + k * row + t] = (uint8_t)(v < 0 ? 0 : v >= COLOURS ? COLOURS - 1 : v);
        }
    page_put(p, "<div><img width=%lld height=%lld src=\"data:image/bmp;base64,",
             (long long)(PAGE_ZOOM * frames), (long long)(PAGE_ZOOM * bands));
    page_base64(p, b, size);
    page_put(p, "\">");
    fl_heap_free(b);
}

/* A letter from frame begin to end; the surer the darker. */
static inline void page_mark(page *p, double begin, double end, char letter, double sure) {
    page_put(p, "<i style=\"left:%gpx;width:%gpx;background:rgba(40,90,200,%.2f)\">%c</i>",
             PAGE_ZOOM * begin, PAGE_ZOOM * (end - begin), sure, letter);
}

static inline bool page_save(page *p, const char *path, const char *title) {
    if (!page_begin(p, 0)) return false;
    page_put(p, "<!doctype html><meta charset=utf-8><title>%s</title><style>body{font:14px sans-serif}"
                "div{position:relative;margin-bottom:2em}img{display:block;image-rendering:pixelated}"
                "i{position:absolute;top:100%%;color:#fff;text-align:center}</style>\n<h1>%s</h1>\n",
             title, title);
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
