/* examples/html.h - HTML pages of the programs: header, inline pictures, no scripts */
#ifndef HTML_H
#define HTML_H
#include "fl_vision.h"

static inline bool html_begin(fl_data_text *t, const char *title, const char *style) {
    return fl_data_text_print(t,
                              "<!doctype html><meta charset=utf-8><title>%s</title><style>"
                              "body{font:14px sans-serif}%s</style>\n", title, style);
}

/* An image u8 [c, h, w]. */
static inline bool html_image(fl_data_text *t, fl_tensor *image, const char *attributes) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    fl_data_text png = {0};
    bool ok = fl_vision_encode_png(&png, image) &&
              fl_data_text_print(t, "<img %s src=\"data:image/png;base64,", attributes);
    for (int64_t i = 0; ok && i < png.n; i += 3) {
        const unsigned char *p = (const unsigned char *)png.p + i;
        const int64_t left = png.n - i;
        const unsigned v =
            (unsigned)p[0] << 16 | (left > 1 ? (unsigned)p[1] << 8 : 0) | (left > 2 ? p[2] : 0);
        const char four[] = {digit[v >> 18], digit[v >> 12 & 63], left > 1 ? digit[v >> 6 & 63] : '=',
                             left > 2 ? digit[v & 63] : '='};
        ok = fl_data_text_put(t, four, 4);
    }
    fl_heap_free(png.p);
    return ok && fl_data_text_print(t, "\">");
}

/* The curves, written to `path` as an SVG file and shown in the page. */
static inline bool html_plot(fl_data_text *t, const char *path, fl_data_curves curves, fl_data_plot_opts o) {
    fl_data_stream f;
    if (!fl_data_plot_svg_opt(path, curves, o) || !fl_data_stream_open(&f, "html_plot", path, FL_DATA_READ))
        return false;
    char *svg = fl_heap_alloc((size_t)f.size);
    const bool ok = svg && fl_data_stream_read(&f, svg, (size_t)f.size, 0) &&
                    fl_data_text_put(t, svg, (size_t)f.size);
    f.io.close(f.io.user, f.file);
    fl_heap_free(svg);
    return ok;
}

#endif /* MIT licence: see LICENSE. */
