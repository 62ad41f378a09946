/* fl/data/plot.h - line plots in the terminal and as SVG */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_DATA_PLOT_H
#define FL_DATA_PLOT_H

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FL_DATA_CURVE 512
/* A series of any number of points: beyond FL_DATA_CURVE of them neighbours are averaged, and so are later
   ones. Start with {.name = "loss"}. */
typedef struct fl_data_curve {
    const char *name; /* borrowed */
    int n;
    double x[FL_DATA_CURVE], y[FL_DATA_CURVE];
    /* private */
    int64_t stride_, have_; /* points per stored point; points added to the last one */
} fl_data_curve;
/* Adds a point; x must increase. Points that are not finite, or exceed 1e300, are ignored. */
FL_API void fl_data_curve_add(fl_data_curve *c, double x, double y);

/* The curves of one plot: FL_DATA_CURVES(&train, &valid). */
#define FL_DATA_CURVES_MAX 16
typedef struct fl_data_curves {
    int n;
    const fl_data_curve *v[FL_DATA_CURVES_MAX];
} fl_data_curves;
#define FL_DATA_CURVES(...) \
    FL_LITERAL(fl_data_curves, FL_COUNT(const fl_data_curve *, __VA_ARGS__), {__VA_ARGS__})

typedef struct fl_data_plot_opts {
    fl_opts_guard guard_;
    const char *title, *x_label, *y_label; /* NULL: none */
    bool log_x, log_y;                     /* logarithmic axes; points that are not positive are left out */
    bool ascii;                            /* in the terminal: ASCII characters only */
    int width, height;                     /* of the plot area; 0 -> 64 x 16 characters, 640 x 320 pixels */
    char _end;
} fl_data_plot_opts;
/* Prints the curves as text, each with its own mark. Returns false after fl_fail. */
#define fl_data_plot_print(...) FL__DATA_PLOT_PRINT(__VA_ARGS__, ._end = 0)
#define FL__DATA_PLOT_PRINT(out, curves, ...) \
    fl_data_plot_print_opt(out, curves, FL_LITERAL(fl_data_plot_opts, __VA_ARGS__))
FL_API bool fl_data_plot_print_opt(FILE *out, fl_data_curves curves, fl_data_plot_opts o);
/* Writes them as one SVG file without scripts; a failure leaves the existing file. */
#define fl_data_plot_svg(...) FL__DATA_PLOT_SVG(__VA_ARGS__, ._end = 0)
#define FL__DATA_PLOT_SVG(path, curves, ...) \
    fl_data_plot_svg_opt(path, curves, FL_LITERAL(fl_data_plot_opts, __VA_ARGS__))
FL_API bool fl_data_plot_svg_opt(const char *path, fl_data_curves curves, fl_data_plot_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_PLOT_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_PLOT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_PLOT_IMPL
#define FL_DATA_PLOT_IMPL
#include "file.h"
#include "json.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- curves ---- */

FL_API void fl_data_curve_add(fl_data_curve *c, double x, double y) {
    if (!fl_given(c, "fl_data_curve_add", "the curve")) return;
    if (!(fabs(x) <= 1e300 && fabs(y) <= 1e300)) return;
    if (!c->stride_) c->stride_ = c->have_ = 1;
    if (c->have_ == c->stride_ && c->n == FL_DATA_CURVE) {
        c->n /= 2;
        c->stride_ *= 2, c->have_ = c->stride_;
        for (int i = 0; i < c->n; i++) {
            c->x[i] = c->x[2 * i] / 2 + c->x[2 * i + 1] / 2;
            c->y[i] = c->y[2 * i] / 2 + c->y[2 * i + 1] / 2;
        }
    }
    if (c->have_ == c->stride_) {
        c->have_ = 0;
        c->x[c->n] = x, c->y[c->n++] = y;
    }
    const double share = 1 / (double)++c->have_;
    c->x[c->n - 1] += (x - c->x[c->n - 1]) * share;
    c->y[c->n - 1] += (y - c->y[c->n - 1]) * share;
}

/* ---- axes ---- */

typedef struct fl__plot_axis {
    double low, high, step; /* for a logarithmic axis: exponents of 10 */
    bool log;
} fl__plot_axis;

/* The smallest 1, 2 or 5 times a power of ten that divides span into at most `most` steps. */
static double fl__plot_step(double span, int most) {
    const double tenth = pow(10, floor(log10(span / most)));
    for (int i = 0; i < 3; i++)
        if (span <= most * tenth * (double[]){1, 2, 5}[i] * (1 + 1e-9)) return tenth * (double[]){1, 2, 5}[i];
    return tenth * 10;
}

/* v on the axis' scale; NaN if it has no position there. */
static double fl__plot_scale(const fl__plot_axis *a, double v) {
    return !a->log ? v : v > 0 ? log10(v) : (double)NAN;
}

/* The range of all values (y of each curve, or x), widened to whole steps if loose (Heckbert 1990). */
static fl__plot_axis fl__plot_axis_of(const fl_data_curves *curves, bool of_y, bool log, int most) {
    fl__plot_axis a = {INFINITY, -INFINITY, 1, log};
    for (int c = 0; c < curves->n; c++)
        for (int i = 0; i < curves->v[c]->n; i++) {
            const double v = fl__plot_scale(&a, of_y ? curves->v[c]->y[i] : curves->v[c]->x[i]);
            if (v < a.low) a.low = v;
            if (v > a.high) a.high = v;
        }
    if (!(a.low <= a.high)) a.low = 0, a.high = 1;
    const double least = 1e-12 * fmax(fabs(a.low), fabs(a.high)) + 1e-300; /* smallest distance of ticks */
    if (a.high - a.low <= least) {
        const double middle = a.low, half = middle != 0 ? fabs(middle) / 2 : 1;
        a.low = middle - half, a.high = middle + half;
    }
    a.step = fl__plot_step(a.high - a.low, most);
    if (log && a.step < 1) a.step = 1;
    if (of_y || log) a.low = floor(a.low / a.step) * a.step, a.high = ceil(a.high / a.step) * a.step;
    return a;
}

/* Tick i: its position along the axis in [0, 1], and its text. Returns false if there are no more. */
static bool fl__plot_tick(const fl__plot_axis *a, int i, double *place, char text[32]) {
    const double v = (ceil(a->low / a->step - 1e-9) + i) * a->step;
    *place = (v - a->low) / (a->high - a->low);
    snprintf(text, 32, "%.6g", a->log ? pow(10, v) : v + 0.0);
    return i < 100 && *place <= 1 + 1e-9;
}

typedef struct fl__plot {
    fl__plot_axis x, y;
    fl_data_curves curves;
    int width, height;
    fl_data_plot_opts o;
    fl_data_text text;
    bool ok; /* so far */
} fl__plot;

static bool fl__plot_begin(fl__plot *p, const char *who, fl_data_curves curves, fl_data_plot_opts o,
                           int width, int height, int per_tick_x, int per_tick_y) {
    bool ok = curves.n >= 0 && curves.n <= FL_DATA_CURVES_MAX && o.width >= 0 && o.width <= 10000;
    ok = ok && o.height >= 0 && o.height <= 10000;
    for (int c = 0; ok && c < curves.n; c++) ok = curves.v[c] != NULL;
    if (!ok) return fl_fail("%s: a curve is NULL, or an option is out of range", who);
    *p = (fl__plot){.curves = curves, .o = o, .ok = true};
    p->width = o.width ? o.width : width;
    p->height = o.height ? o.height : height;
    p->x = fl__plot_axis_of(&curves, false, o.log_x, 1 + p->width / per_tick_x);
    p->y = fl__plot_axis_of(&curves, true, o.log_y, 1 + p->height / per_tick_y);
    return true;
}

/* Point i of a curve in [0, 1] x [0, 1]; false if it has no position on these axes. */
static bool fl__plot_point(const fl__plot *p, const fl_data_curve *c, int i, double at[2]) {
    at[0] = (fl__plot_scale(&p->x, c->x[i]) - p->x.low) / (p->x.high - p->x.low);
    at[1] = (fl__plot_scale(&p->y, c->y[i]) - p->y.low) / (p->y.high - p->y.low);
    if (isnan(at[0]) || isnan(at[1])) return false;
    for (int k = 0; k < 2; k++) at[k] = fmin(1, fmax(0, at[k])); /* rounding */
    return true;
}

FL_PRINTF(2, 3) static void fl__plot_put(fl__plot *p, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (int i = 0; i < n && i < (int)sizeof line; i++) /* some locales write 0,5 */
        if (line[i] == ',' && i && line[i - 1] >= '0' && line[i - 1] <= '9') line[i] = '.';
    p->ok = p->ok && n >= 0 && n < (int)sizeof line && fl_data_text_put(&p->text, line, (size_t)n);
}

/* Prints the user's text: control characters become spaces, invalid UTF-8 becomes '?'. */
static void fl__plot_text(fl__plot *p, const char *s, bool svg) {
    for (size_t n = strlen(s), len; p->ok && n; s += len, n -= len) {
        const char c = *s;
        const char *as = !svg ? NULL : c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : NULL;
        len = fl_data_utf8(s, n);
        if (!len) as = "?", len = 1;
        else if ((unsigned char)c < 0x20 || c == 0x7f) as = " ";
        p->ok = as ? fl_data_text_put(&p->text, as, strlen(as)) : fl_data_text_put(&p->text, s, len);
    }
}

/* ---- in the terminal ---- */

static const char fl__plot_marks[] = "*+ox#@%&";

/* Draws a mark in each column from point a to point b. */
static void fl__plot_stroke(const fl__plot *p, char *canvas, const double a[2], const double b[2],
                            char mark) {
    const int from = (int)lround(a[0] * (p->width - 1)), to = (int)lround(b[0] * (p->width - 1));
    for (int x = from; x <= to; x++) {
        const double share = to > from ? (double)(x - from) / (to - from) : 1;
        const long y = lround((a[1] + (b[1] - a[1]) * share) * (p->height - 1));
        canvas[(p->height - 1 - y) * p->width + x] = mark;
    }
}

static void fl__plot_strokes(const fl__plot *p, char *canvas) {
    memset(canvas, ' ', (size_t)p->width * (size_t)p->height);
    for (int c = p->curves.n - 1; c >= 0; c--) { /* the first curve on top */
        double last[2], at[2];
        bool begun = false;
        for (int i = 0; i < p->curves.v[c]->n; i++) {
            if (!fl__plot_point(p, p->curves.v[c], i, at)) continue;
            fl__plot_stroke(p, canvas, begun && last[0] <= at[0] ? last : at, at,
                            fl__plot_marks[c % (int)(sizeof fl__plot_marks - 1)]);
            memcpy(last, at, sizeof at);
            begun = true;
        }
    }
}

/* Row r with its tick, if any. */
static void fl__plot_row(fl__plot *p, const char *canvas, int r) {
    char label[32] = "", text[32];
    double place;
    for (int i = 0; fl__plot_tick(&p->y, i, &place, text); i++)
        if (p->height - 1 - lround(place * (p->height - 1)) == r) memcpy(label, text, sizeof label);
    const char *bar = p->o.ascii ? "|" : *label ? "\u2524" : "\u2502";
    int n = p->width;
    while (n && canvas[r * p->width + n - 1] == ' ') n--;
    fl__plot_put(p, "%12s %s", label, bar);
    p->ok = p->ok && fl_data_text_put(&p->text, canvas + r * p->width, (size_t)n);
    fl__plot_put(p, "\n");
}

static void fl__plot_below(fl__plot *p) {
    char text[32];
    double place;
    int end = 0;
    fl__plot_put(p, "%12s %s", "", p->o.ascii ? "+" : "\u2514");
    for (int x = 0; x < p->width; x++) fl__plot_put(p, "%s", p->o.ascii ? "-" : "\u2500");
    fl__plot_put(p, "\n%14s", "");
    for (int i = 0; fl__plot_tick(&p->x, i, &place, text); i++) {
        const int n = (int)strlen(text), at = (int)lround(place * (p->width - 1)) - n / 2;
        if (at < end + (end > 0) || at < 0) continue; /* no space next to its neighbour */
        fl__plot_put(p, "%*s%s", at - end, "", text);
        end = at + n;
    }
    if (p->o.x_label) fl__plot_put(p, "  "), fl__plot_text(p, p->o.x_label, false);
    fl__plot_put(p, "\n");
}

FL_API bool fl_data_plot_print_opt(FILE *out, fl_data_curves curves, fl_data_plot_opts o) {
    const char *who = "fl_data_plot_print";
    fl__plot p;
    if (!out) return fl_fail("%s: the stream is NULL", who);
    if (!fl__plot_begin(&p, who, curves, o, 64, 16, 10, 3)) return false;
    char *canvas = fl_heap_alloc((size_t)p.width * (size_t)p.height);
    p.ok = canvas != NULL;
    if (canvas) fl__plot_strokes(&p, canvas);
    fl__plot_put(&p, "%14s", "");
    if (o.title) fl__plot_text(&p, o.title, false), fl__plot_put(&p, "  ");
    if (o.y_label) fl__plot_text(&p, o.y_label, false), fl__plot_put(&p, ":  ");
    for (int c = 0; c < curves.n; c++) {
        fl__plot_put(&p, "%c ", fl__plot_marks[c % (int)(sizeof fl__plot_marks - 1)]);
        fl__plot_text(&p, curves.v[c]->name ? curves.v[c]->name : "", false);
        fl__plot_put(&p, "  ");
    }
    fl__plot_put(&p, "\n");
    for (int r = 0; p.ok && r < p.height; r++) fl__plot_row(&p, canvas, r);
    fl__plot_below(&p);
    if (p.ok && fwrite(p.text.p, 1, (size_t)p.text.n, out) != (size_t)p.text.n)
        p.ok = fl_fail("%s: cannot write to the stream", who);
    fl_heap_free(canvas);
    fl_heap_free(p.text.p);
    return p.ok;
}

/* ---- SVG ---- */

enum { FL__PLOT_LEFT = 72, FL__PLOT_TOP = 40, FL__PLOT_RIGHT = 24, FL__PLOT_BOTTOM = 48 };

/* Okabe and Ito's palette, which is safe for colour-blind readers. */
static const char *const fl__plot_colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                               "#e69f00", "#56b4e9", "#000000"};

static void fl__plot_svg_text(fl__plot *p, double x, double y, const char *more, const char *text) {
    fl__plot_put(p, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, more);
    fl__plot_text(p, text, true);
    fl__plot_put(p, "</text>\n");
}

static void fl__plot_svg_ticks(fl__plot *p) {
    char text[32];
    double place;
    for (int i = 0; fl__plot_tick(&p->x, i, &place, text); i++) {
        const double x = FL__PLOT_LEFT + place * p->width;
        fl__plot_put(p, "<path d=\"M%.1f %d v%d\" class=\"g\"/>\n", x, FL__PLOT_TOP, p->height);
        fl__plot_svg_text(p, x, FL__PLOT_TOP + p->height + 18, "text-anchor=\"middle\"", text);
    }
    for (int i = 0; fl__plot_tick(&p->y, i, &place, text); i++) {
        const double y = FL__PLOT_TOP + (1 - place) * p->height;
        fl__plot_put(p, "<path d=\"M%d %.1f h%d\" class=\"g\"/>\n", FL__PLOT_LEFT, y, p->width);
        fl__plot_svg_text(p, FL__PLOT_LEFT - 8, y + 4, "text-anchor=\"end\"", text);
    }
}

static void fl__plot_svg_curve(fl__plot *p, const fl_data_curve *c, const char *colour) {
    double at[2];
    int points = 0;
    fl__plot_put(p, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", colour);
    for (int i = 0; i < c->n; i++)
        if (fl__plot_point(p, c, i, at)) {
            fl__plot_put(p, "%.1f %.1f ", FL__PLOT_LEFT + at[0] * p->width,
                         FL__PLOT_TOP + (1 - at[1]) * p->height);
            points++;
        }
    fl__plot_put(p, "\"/>\n");
    for (int i = 0; points <= 20 && i < c->n; i++) /* with few points each is marked */
        if (fl__plot_point(p, c, i, at))
            fl__plot_put(p, "<circle r=\"3\" fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\"/>\n", colour,
                         FL__PLOT_LEFT + at[0] * p->width, FL__PLOT_TOP + (1 - at[1]) * p->height);
}

static void fl__plot_svg_all(fl__plot *p) {
    const int w = FL__PLOT_LEFT + p->width + FL__PLOT_RIGHT, h = FL__PLOT_TOP + p->height + FL__PLOT_BOTTOM;
    fl__plot_put(p, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                    "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"
                    "<style>.g{stroke:#ddd;fill:none}</style>\n"
                    "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n", w, h, w, h);
    fl__plot_svg_ticks(p);
    fl__plot_put(p, "<path d=\"M%d %d v%d h%d\" fill=\"none\" stroke=\"black\"/>\n", FL__PLOT_LEFT,
                 FL__PLOT_TOP, p->height, p->width);
    const double middle = FL__PLOT_LEFT + p->width / 2.0;
    if (p->o.title) fl__plot_svg_text(p, middle, 18, "text-anchor=\"middle\" font-size=\"15\"", p->o.title);
    if (p->o.x_label) fl__plot_svg_text(p, middle, h - 8, "text-anchor=\"middle\"", p->o.x_label);
    if (p->o.y_label) fl__plot_svg_text(p, 8, FL__PLOT_TOP - 12, "", p->o.y_label);
    for (int c = 0; c < p->curves.n; c++) {
        const char *colour = fl__plot_colours[c % 7];
        char style[64];
        fl__plot_svg_curve(p, p->curves.v[c], colour);
        snprintf(style, sizeof style, "text-anchor=\"end\" fill=\"%s\"", colour);
        fl__plot_svg_text(p, FL__PLOT_LEFT + p->width - 8, FL__PLOT_TOP + 16 * (c + 1), style,
                          p->curves.v[c]->name ? p->curves.v[c]->name : "");
    }
    fl__plot_put(p, "</svg>\n");
}

FL_API bool fl_data_plot_svg_opt(const char *path, fl_data_curves curves, fl_data_plot_opts o) {
    const char *who = "fl_data_plot_svg";
    fl__plot p;
    if (!path) return fl_fail("%s: path is NULL", who);
    if (!fl__plot_begin(&p, who, curves, o, 640, 320, 80, 40)) return false;
    fl__plot_svg_all(&p);
    const bool ok = p.ok && fl_data_replace(who, path, p.text.p, (size_t)p.text.n);
    fl_heap_free(p.text.p);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
