/* pictures.h - a JPEG file, patterned images, and which formats the build reads */
#ifndef TESTS_PICTURES_H
#define TESTS_PICTURES_H
#include "../fl_vision.h"
#include "disk.h"

/* 27 x 21 pixels, (9 x, 12 y, 5 (x + y)), with chroma of half the size. */
static const unsigned char jpeg[] = {
    255, 216, 255, 224, 0,   16,  74,  70,  73, 70,  0,   1,   1,   0,   0,   1,   0,   1,   0,  0,   255,
    219, 0,   67,  0,   13,  9,   10,  11,  10, 8,   13,  11,  10,  11,  14,  14,  13,  15,  19, 32,  21,
    19,  18,  18,  19,  39,  28,  30,  23,  32, 46,  41,  49,  48,  46,  41,  45,  44,  51,  58, 74,  62,
    51,  54,  70,  55,  44,  45,  64,  87,  65, 70,  76,  78,  82,  83,  82,  50,  62,  90,  97, 90,  80,
    96,  74,  81,  82,  79,  255, 219, 0,   67, 1,   14,  14,  14,  19,  17,  19,  38,  21,  21, 38,  79,
    53,  45,  53,  79,  79,  79,  79,  79,  79, 79,  79,  79,  79,  79,  79,  79,  79,  79,  79, 79,  79,
    79,  79,  79,  79,  79,  79,  79,  79,  79, 79,  79,  79,  79,  79,  79,  79,  79,  79,  79, 79,  79,
    79,  79,  79,  79,  79,  79,  79,  79,  79, 79,  79,  255, 192, 0,   17,  8,   0,   21,  0,  27,  3,
    1,   34,  0,   2,   17,  1,   3,   17,  1,  255, 196, 0,   23,  0,   1,   1,   1,   1,   0,  0,   0,
    0,   0,   0,   0,   0,   0,   0,   0,   0,  5,   0,   4,   6,   255, 196, 0,   27,  16,  0,  2,   3,
    1,   1,   1,   0,   0,   0,   0,   0,   0,  0,   0,   0,   0,   0,   4,   1,   3,   97,  2,  33,  17,
    255, 196, 0,   25,  1,   0,   2,   3,   1,  0,   0,   0,   0,   0,   0,   0,   0,   0,   0,  0,   0,
    4,   6,   2,   3,   5,   7,   255, 196, 0,  29,  17,  0,   2,   1,   4,   3,   0,   0,   0,  0,   0,
    0,   0,   0,   0,   0,   0,   0,   2,   4,  1,   3,   18,  49,  33,  81,  97,  255, 218, 0,  12,  3,
    1,   0,   2,   17,  3,   17,  0,   63,  0,  226, 40,  71,  4,   40,  71,  5,   104, 71,  4,  40,  71,
    8,   165, 194, 152, 147, 189, 10,  161, 28, 54,  66,  62,  71,  131, 52,  35,  134, 216, 71, 200, 240,
    33,  110, 12,  145, 231, 113, 179, 37,  11, 240, 33,  66,  252, 17,  25,  169, 83,  155, 68, 118, 236,
    66,  133, 248, 54,  194, 252, 124, 130, 32, 133, 168, 201, 29,  219, 29,  159, 255, 217};

static inline fl_tensor *patterned(int64_t c, int64_t h, int64_t w, fl_dtype dtype) {
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(h, w, c), dtype);
    void *p = fl_map(t, FL_WRITE);
    for (int64_t i = 0; p && i < h * w * c; i++)
        if (dtype == FL_U16) ((uint16_t *)p)[i] = (uint16_t)(i * 7919);
        else ((unsigned char *)p)[i] = (unsigned char)(i * 79 + i / 256);
    if (p) fl_unmap(t, FL_WRITE);
    return fl_permute(t, 3, (int[]){2, 0, 1});
}

static inline int at(fl_tensor *t, int64_t k, int64_t y, int64_t x) {
    return (int)fl_item(fl_select(fl_select(fl_select(t, 0, k), 0, y), 0, x));
}

/* Has the build a reader for these bytes? */
static inline bool reads(const void *bytes, size_t n) {
    fl_scope s = fl_scope_begin();
    const bool ok = fl_vision_decode(bytes, n) || !strstr(fl_error(), "was built without");
    fl_error_clear();
    fl_scope_end(&s);
    return ok;
}

static inline bool reads_png(void) {
    fl_scope s = fl_scope_begin();
    fl_data_text png = {0};
    const bool ok = fl_vision_encode_png(&png, patterned(1, 1, 1, FL_U8)) && reads(png.p, (size_t)png.n);
    fl_heap_free(png.p);
    fl_scope_end(&s);
    return ok;
}

#endif /* MIT licence: see LICENSE. */
