/* fl/vision/draw.h - drawing of bounding boxes, masks and labels into images */
#ifndef FL_VISION_DRAW_H
#define FL_VISION_DRAW_H
#include "images.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Colour k modulo 255 of the palette that distinguishes objects (torchvision's), as red, green, blue. */
FL_API void fl_vision_colour(int64_t k, uint8_t rgb[3]);

typedef struct fl_vision_draw_opts {
    fl_opts_guard guard_;
    const char *const *labels; /* one per box, NULL for a box without a label; NULL: no labels */
    const uint8_t *colours;    /* RGB of each box or mask; NULL -> fl_vision_colour of its index */
    int64_t width;             /* line width of boxes, drawn inwards, in pixels; 0 -> 1 */
    int64_t scale;             /* pixels per dot of the 5 x 7 font; 0 -> 1 */
    double alpha;              /* opacity of masks, 0 to 1 (opaque); 0 -> 0.8 */
    char _end;
} fl_vision_draw_opts;
/* A copy of an image u8 [3, h, w] with boxes f32 [n, 4] drawn: left, top, right, bottom in pixels, inclusive,
   truncated to integers. Labels are drawn at the top left inside their box, on a background of its colour
   (torchvision's draw_bounding_boxes). NULL after fl_fail. */
#define fl_vision_draw_boxes(...) FL__VISION_DRAW_BOXES(__VA_ARGS__, ._end = 0)
#define FL__VISION_DRAW_BOXES(image, boxes, ...) \
    fl_vision_draw_boxes_opt(image, boxes, FL_LITERAL(fl_vision_draw_opts, __VA_ARGS__))
FL_API fl_tensor *fl_vision_draw_boxes_opt(fl_tensor *image, fl_tensor *boxes, fl_vision_draw_opts o);
/* A copy of an image u8 [3, h, w] with (1 - alpha) image + alpha colour, truncated, where masks [n, h, w], u8
   or b8, are not 0. Where masks overlap only the last one is blended (draw_segmentation_masks). NULL after
   fl_fail. */
#define fl_vision_draw_masks(...) FL__VISION_DRAW_MASKS(__VA_ARGS__, ._end = 0)
#define FL__VISION_DRAW_MASKS(image, masks, ...) \
    fl_vision_draw_masks_opt(image, masks, FL_LITERAL(fl_vision_draw_opts, __VA_ARGS__))
FL_API fl_tensor *fl_vision_draw_masks_opt(fl_tensor *image, fl_tensor *masks, fl_vision_draw_opts o);
/* Draws text in place, its upper left corner at (y, x), clipped to the image: characters of 5 x 7 dots of
   scale x scale pixels, one dot apart. Bytes that are not printable ASCII are drawn as a box. */
FL_API void fl_vision_draw_text(const fl_vision_pixels *to, int64_t y, int64_t x, const char *text,
                                const uint8_t rgb[3], int64_t scale);

#ifdef __cplusplus
}
#endif
#endif /* FL_VISION_DRAW_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_VISION_DRAW) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_DRAW_IMPL
#define FL_VISION_DRAW_IMPL
#include "../ops/copy.h"
#include "../ops/view.h"
#include <string.h>

/* 5 x 7 font, entry k for ASCII code k + 32: bit 5 y + x is the dot (y, x). */
static const uint64_t fl__font[95] = {
    0x0, 0x100421084, 0x294a, 0x295f57d4a, 0x11f4717c4, 0x672222273, 0x593511526, 0x884, 0x208210888,
    0x88842082, 0x9575480, 0x84f9080, 0x88400000, 0xf8000, 0x18c000000, 0x42222210, 0x3a33ae62e,
    0x3884210c4, 0x7c444422e, 0x3a304111f, 0x211f4a988, 0x3a3083c3f, 0x3a317844c, 0x8422221f, 0x3a317462e,
    0x1910f462e, 0xc6018c0, 0x886018c0, 0x208208888, 0x1f07c00, 0x88882082, 0x10044422e, 0x383daf62e,
    0x4631fc62e, 0x3e317c62f, 0x3a210862e, 0x1d318c527, 0x7c217843f, 0x4217843f, 0x7a31e862e, 0x4631fc631,
    0x38842108e, 0x19284211c, 0x452519531, 0x7c2108421, 0x4631ad771, 0x4639ace31, 0x3a318c62e, 0x4217c62f,
    0x59358c62e, 0x45257c62f, 0x3e107043e, 0x10842109f, 0x3a318c631, 0x11518c631, 0x4775ac631, 0x462a22a31,
    0x108422a31, 0x7c222221f, 0x38421084e, 0x420820821, 0x39084210e, 0x4544, 0x7c0000000, 0x2082,
    0x7a3e83800, 0x3e318bc21, 0x3a210b800, 0x7a318fa10, 0x383f8b800, 0x84213c4c, 0x3a1e8c7c0, 0x46318bc21,
    0x388421804, 0x192843008, 0x24a32a421, 0x388421086, 0x56b5aac00, 0x46318bc00, 0x3a318b800, 0x42f8c5e0,
    0x421e8c7c0, 0x4211b400, 0x3e0e0f800, 0x324213c42, 0x7a318c400, 0x11518c400, 0x2ab58c400, 0x454454400,
    0x3a30f4620, 0x7c4447c00, 0x208411088, 0x108421084, 0x88441082, 0x8a8800,
};
enum { FL__LETTER_W = 5, FL__LETTER_H = 7 };

FL_API void fl_vision_colour(int64_t k, uint8_t rgb[3]) {
    if (!fl_given(rgb, "fl_vision_colour", "the result")) return;
    static const int64_t step[] = {(1 << 25) - 1, (1 << 15) - 1, (1 << 21) - 1};
    for (int i = 0; i < 3; i++) rgb[i] = (uint8_t)((uint64_t)(k % 255 * step[i]) % 255);
}

/* Fills [y0, y1) x [x0, x1), clipped to the image. */
static void fl__draw_fill(const fl_vision_pixels *p, int64_t y0, int64_t x0, int64_t y1, int64_t x1,
                          const uint8_t rgb[3]) {
    y0 = y0 < 0 ? 0 : y0, x0 = x0 < 0 ? 0 : x0, y1 = y1 > p->h ? p->h : y1, x1 = x1 > p->w ? p->w : x1;
    for (int64_t y = y0; y < y1; y++)
        for (int64_t x = x0; x < x1; x++) memcpy(p->p + y * p->row + x * 3, rgb, 3);
}

FL_API void fl_vision_draw_text(const fl_vision_pixels *to, int64_t y, int64_t x, const char *text,
                                const uint8_t rgb[3], int64_t scale) {
    const uint64_t box = 0x7e318c63f;
    if (!to || to->c != 3 || !text || scale < 1 || scale > FL_VISION_MAX_SIDE) return;
    for (; *text && x < to->w; text++, x += (FL__LETTER_W + 1) * scale) {
        const unsigned c = (unsigned char)*text;
        const uint64_t dots = c >= 32 && c < 127 ? fl__font[c - 32] : box;
        for (int i = 0; i < FL__LETTER_W * FL__LETTER_H; i++) {
            const int64_t v = y + i / FL__LETTER_W * scale, u = x + i % FL__LETTER_W * scale;
            if (dots >> i & 1) fl__draw_fill(to, v, u, v + scale, u + scale, rgb);
        }
    }
}

/* A copy of an image of three channels, and its pixels. */
static fl_tensor *fl__draw_copy(const char *fn, fl_tensor *image, fl_vision_pixels *out) {
    fl_vision_pixels from;
    if (!fl_vision_pixels_of(&image, &from)) return NULL;
    if (from.c != 3) {
        fl_fail("%s: got an image %s, expected 3 channels", fn, FL_SHAPE_TEXT(image));
        return NULL;
    }
    fl_tensor *t = fl_vision_image(3, from.h, from.w, out);
    for (int64_t y = 0; t && y < from.h; y++)
        memcpy(out->p + y * out->row, from.p + y * from.row, (size_t)out->row);
    return t;
}

static const uint8_t *fl__draw_colour(const fl_vision_draw_opts *o, int64_t i, uint8_t scratch[3]) {
    if (o->colours) return o->colours + 3 * i;
    fl_vision_colour(i, scratch);
    return scratch;
}

/* v truncated and clamped to [-1, most]; NaN is -1. */
static int64_t fl__draw_clamp(float v, int64_t most) {
    return !(v > -1) ? -1 : v >= (float)most ? most : (int64_t)v;
}

static void fl__draw_label(const fl_vision_pixels *p, const int64_t b[4], const char *text,
                           const uint8_t rgb[3], const fl_vision_draw_opts *o) {
    static const uint8_t black[3] = {0, 0, 0}, white[3] = {255, 255, 255};
    const int64_t s = o->scale, n = (int64_t)strlen(text);
    const bool light = 299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2] > 128000;
    fl__draw_fill(p, b[1], b[0], b[1] + (FL__LETTER_H + 2) * s, b[0] + ((FL__LETTER_W + 1) * n + 1) * s, rgb);
    fl_vision_draw_text(p, b[1] + s, b[0] + s, text, light ? black : white, s);
}

FL_API fl_tensor *fl_vision_draw_boxes_opt(fl_tensor *image, fl_tensor *boxes, fl_vision_draw_opts o) {
    fl_vision_pixels p;
    uint8_t scratch[3];
    if (!boxes || boxes->dtype != FL_F32 || boxes->ndim != 2 || boxes->shape[1] != 4 || o.width < 0 ||
        o.scale < 0 || o.width > FL_VISION_MAX_SIDE || o.scale > FL_VISION_MAX_SIDE) {
        fl_fail("fl_vision_draw_boxes: got boxes %s %s, width %lld, scale %lld; expected boxes f32 [n, 4], "
                "width and scale 0 to %d", boxes ? fl_dtype_name(boxes->dtype) : "NULL",
                boxes ? FL_SHAPE_TEXT(boxes) : "", (long long)o.width, (long long)o.scale, FL_VISION_MAX_SIDE);
        return NULL;
    }
    o.width = o.width ? o.width : 1, o.scale = o.scale ? o.scale : 1;
    fl_tensor *t = fl__draw_copy("fl_vision_draw_boxes", image, &p), *b = t ? fl_contiguous(boxes) : NULL;
    const float *v = b && b->shape[0] ? fl_map(b, FL_READ) : NULL;
    for (int64_t i = 0; v && i < b->shape[0]; i++) {
        const int64_t c[] = {fl__draw_clamp(v[4 * i], p.w), fl__draw_clamp(v[4 * i + 1], p.h),
                             fl__draw_clamp(v[4 * i + 2], p.w) + 1, fl__draw_clamp(v[4 * i + 3], p.h) + 1};
        const int64_t w = o.width, y = c[1] + w < c[3] ? c[1] + w : c[3],
                      x = c[0] + w < c[2] ? c[0] + w : c[2];
        const uint8_t *rgb = fl__draw_colour(&o, i, scratch);
        fl__draw_fill(&p, c[1], c[0], y, c[2], rgb),
            fl__draw_fill(&p, c[3] - w > c[1] ? c[3] - w : c[1], c[0], c[3], c[2], rgb);
        fl__draw_fill(&p, c[1], c[0], c[3], x, rgb),
            fl__draw_fill(&p, c[1], c[2] - w > c[0] ? c[2] - w : c[0], c[3], c[2], rgb);
        if (o.labels && o.labels[i]) fl__draw_label(&p, c, o.labels[i], rgb, &o);
    }
    if (v) fl_unmap(b, FL_READ);
    return b ? t : NULL;
}

FL_API fl_tensor *fl_vision_draw_masks_opt(fl_tensor *image, fl_tensor *masks, fl_vision_draw_opts o) {
    fl_vision_pixels p;
    uint8_t scratch[3];
    const double alpha = fl_option(o.alpha, 0.8);
    fl_tensor *t = fl__draw_copy("fl_vision_draw_masks", image, &p);
    if (!t) return NULL;
    if (!masks || (masks->dtype != FL_U8 && masks->dtype != FL_B8) || masks->ndim != 3 ||
        masks->shape[1] != p.h || masks->shape[2] != p.w || !(alpha >= 0 && alpha <= 1)) {
        fl_fail("fl_vision_draw_masks: got masks %s %s, alpha %g; expected u8 or b8 [n, %lld, %lld], alpha "
                "in [0, 1]", masks ? fl_dtype_name(masks->dtype) : "NULL", masks ? FL_SHAPE_TEXT(masks) : "",
                alpha, (long long)p.h, (long long)p.w);
        return NULL;
    }
    fl_tensor *m = fl_contiguous(masks);
    const uint8_t *on = m && fl_numel(m) ? fl_map(m, FL_READ) : NULL;
    for (int64_t i = 0; on && i < p.h * p.w; i++) {
        int64_t k = m->shape[0] - 1;
        while (k >= 0 && !on[k * p.h * p.w + i]) k--;
        if (k < 0) continue;
        const uint8_t *rgb = fl__draw_colour(&o, k, scratch);
        uint8_t *to = p.p + i / p.w * p.row + i % p.w * 3;
        for (int j = 0; j < 3; j++)
            to[j] = (uint8_t)((float)to[j] * (float)(1 - alpha) + (float)rgb[j] * (float)alpha);
    }
    if (on) fl_unmap(m, FL_READ);
    return m ? t : NULL;
}

#endif
#endif

/* MIT licence: see LICENSE. */
