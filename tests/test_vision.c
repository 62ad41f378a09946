/* test_vision.c - images read and written, CIFAR, steps and batches */
#include "pictures.h"

#include <math.h>
#include <time.h>

TEST(png_that_is_written_is_read) {
    if (!reads_png()) SKIP("no libpng");
    begin();
    fl_scope s = fl_scope_begin();
    for (int c = 1; c <= 4; c++)
        for (int wide = 0; wide < 2; wide++) {
            fl_data_text png = {0};
            fl_tensor *t = patterned(c, 61, 300 * c, wide ? FL_U16 : FL_U8); /* more than one stored block */
            REQUIRE(fl_vision_encode_png(&png, t));
            fl_tensor *back = fl_vision_decode(png.p, (size_t)png.n, .mode = FL_VISION_ASIS);
            CHECK(back && same_bits(fl_contiguous(t), fl_contiguous(back)));
            back = fl_vision_decode(png.p, (size_t)png.n, .mode = FL_VISION_ASIS, .y = 7, .x = 5, .h = 9,
                                    .w = 11);
            CHECK(back && same_bits(fl_contiguous(fl_slice(fl_slice(t, 1, 7, 16, 1), 2, 5, 16, 1)),
                                    fl_contiguous(back)));
            back = fl_vision_decode(png.p, (size_t)png.n, .mode = FL_VISION_RGBA, .depth = 8);
            REQUIRE(back && back->dtype == FL_U8 && back->shape[0] == 4);
            CHECK_EQ_INT(at(back, 3, 3, 4), c % 2 ? 255 : at(t, c - 1, 3, 4) >> 8 * wide);
            CHECK_EQ_INT(at(back, 1, 3, 4), at(t, c < 3 ? 0 : 1, 3, 4) >> 8 * wide);
            fl_vision_info info;
            CHECK(fl_vision_inspect(png.p, (size_t)png.n, false, &info) && info.h == 61 &&
                  info.w == 300 * c && info.channels == c && info.depth == 8 + 8 * wide);
            fl_heap_free(png.p);
        }
    CHECK(fl_vision_write_png("a.png", patterned(3, 4, 5, FL_U8)) && fl_vision_read("a.png"));
    end(&s);
}

/* Text, how the pixels are read, and the first ones or the error. */
static const struct {
    const char *text;
    size_t n;
    int depth;
    const char *want;
} pnm[] = {
#define PNM(text, depth, want) {text, sizeof text - 1, depth, want}
    PNM("P5 2 1 255\n\x01\xff", 0, "1 255"),
    PNM("P5\n# one\n2 # two\n1\n255\n\x01\xff", 0, "1 255"),
    PNM("P6 1 1 255\n\x01\x02\x03", 0, "2"),
    PNM("P2 3 1 255 0 7 255", 0, "0 7 255"),
    PNM("P2 2 1 15 0 15", 0, "0 255"),
    PNM("P5 2 1 65535\n\x01\x02\xff\xff", 0, "258 65535"),
    PNM("P5 2 1 65535\n\x01\x02\xff\xff", 8, "1 255"),
    PNM("P5 2 1 255\n\x01\xff", 16, "257 65535"),
    PNM("P5 2 1 255\n\x01", 0, "offset 11: the image is truncated: got 1 of 2 bytes"),
    PNM("P5 2 1 255", 0, "the image is truncated"),
    PNM("P5 2 1", 0, "the image is truncated"),
    PNM("P5 2 x 255\n\x01", 0, "offset 5: expected a number"),
    PNM("P5 0 1 255\n", 0, "0 x 1 pixels, expected sides of 1 to 65500"),
    PNM("P5 65501 1 255\n", 0, "65501 x 1 pixels"),
    PNM("P5 60000 60000 255\n", 0, "60000 x 60000 pixels, more than max_pixels (178956970)"),
    PNM("P5 6000 6000 255\n", 0, "too many for a file of 17 bytes"),
    PNM("P5 1 1 0\n\x01", 0, "the maximum value is 0"),
    PNM("P5 1 1 65536\n\x01", 0, "number is too large: expected at most 65535"),
    PNM("P5 99999999999 1 255\n\x01", 0, "number is too large: expected at most 2147483647"),
    PNM("P2 2 1 255 0 70000", 0, "number is too large: expected at most 255"),
    PNM("P2 2 1 255 0 -", 0, "expected a number"),
    PNM("P1 1 1 1", 0, "unknown image format"),
    PNM("P4 8 1 \xff", 0, "unknown image format"),
    PNM("P55 1 1 255\n\x01", 0, "unknown image format"),
    PNM("P5", 0, "unknown image format"),
    PNM("P5 ", 0, "truncated"),
    PNM("P5 # no end", 0, "truncated"),
    PNM("P5 1 # a comment\n1 255\n\x07", 0, "7"),
    PNM("P5 -1 1 255\n\x01", 0, "offset 3: expected a number"),
    PNM("P5 1 -1 255\n\x01", 0, "offset 5: expected a number"),
    PNM("P5 1 1 -255\n\x01", 0, "offset 7: expected a number"),
    PNM("P5 1.5 1 255\n\x01", 0, "offset 4: expected a number"),
    PNM("P5 1 0 255\n", 0, "1 x 0 pixels"),
    PNM("P5 1 65501 255\n", 0, "1 x 65501 pixels"),
    PNM("P5 0x1 1 255\n\x01", 0, "expected a number"),
    PNM("P6 1 1 255\n\x01\x02", 0, "truncated: got 2 of 3 bytes"),
    PNM("P5 1 1 65535\n\x01", 0, "truncated: got 1 of 2 bytes"),
    PNM("P2 1 1 255", 0, "truncated"),
    PNM("P2 2 1 255 7", 0, "truncated"),
    PNM("P3 1 1 255 1 2", 0, "truncated"),
    PNM("P2 1 1 255 x", 0, "expected a number"),
    PNM("P2 1 1 255 256", 0, "number is too large: expected at most 255"),
    PNM("P5 1 1 255", 0, "truncated"),
    PNM("P7 1 1 255\n\x01", 0, "unknown image format"),
    PNM("P", 0, "unknown image format"),
    PNM("", 0, "unknown image format"),
    PNM("\xff\xd8\xff", 0, NULL),
    PNM("\x89PNG\r\n\x1a\n", 0, NULL),
    PNM("\x89PNG\r\n\x1a\n\0\0\0\xdIHDR\0\0\0\0", 0, NULL),
};

TEST(pnm_and_what_is_no_image) {
    begin();
    fl_scope s = fl_scope_begin();
    for (size_t i = 0; i < sizeof pnm / sizeof *pnm; i++) {
        char got[64] = "";
        fl_tensor *t = fl_vision_decode(pnm[i].text, pnm[i].n, .mode = FL_VISION_GREY, .depth = pnm[i].depth);
        if (!t) {
            CHECK_ERROR(pnm[i].want ? pnm[i].want : "fl_vision_read: image");
            fl_error_clear();
            continue;
        }
        for (int64_t k = 0; k < t->shape[2]; k++)
            snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", k ? " " : "", at(t, 0, 0, k));
        CHECK_STR(got, pnm[i].want ? pnm[i].want : "an error");
    }
    end(&s);
}

/* Every region of 3 x 4 pixels, and those that reach out of it by one. */
TEST(regions_of_an_image) {
    begin();
    fl_scope s = fl_scope_begin();
    enum { H = 3, W = 4 };
    static const char *const text[] = {"P2 4 3 15 0 1 2 3 4 5 6 7 8 9 10 11",
                                       "P6 4 3 255\nabcbcdcdedefefgfghghihijijkjklklmlmn"};
    for (int kind = 0; kind < 2; kind++)
        for (int64_t i = 0; i < (H + 3) * (W + 3) * (H + 3) * (W + 3); i++) {
            fl_scope one = fl_scope_begin();
            const int64_t y = i % (H + 3) - 1, x = i / (H + 3) % (W + 3) - 1,
                          h = i / (H + 3) / (W + 3) % (H + 3) - 1, w = i / (H + 3) / (W + 3) / (H + 3) - 1;
            fl_tensor *t = fl_vision_decode(text[kind], strlen(text[kind]), .mode = FL_VISION_ASIS, .y = y,
                                            .x = x, .h = h, .w = w);
            const bool all = h == 0, inside = y >= 0 && x >= 0 && h > 0 && w > 0 && y + h <= H && x + w <= W;
            CHECK_EQ_INT(t != NULL, all || inside);
            if (!t) CHECK_ERROR(" is outside the image of 4 x 3"), fl_error_clear();
            if (t) CHECK(t->shape[1] == (all ? H : h) && t->shape[2] == (all ? W : w));
            for (int64_t v = 0; t && v < t->shape[1]; v++)
                for (int64_t u = 0; u < t->shape[2]; u++) {
                    const int pixel = (int)((v + (all ? 0 : y)) * W + u + (all ? 0 : x));
                    CHECK_EQ_INT(at(t, 0, v, u), kind ? 'a' + pixel : 17 * pixel);
                    if (kind) CHECK_EQ_INT(at(t, 2, v, u), 'c' + pixel);
                }
            fl_scope_end(&one);
        }
    end(&s);
}

/* The JPEG with an EXIF block behind its first marker. */
static size_t turned(unsigned char *to, int orientation, bool little) {
    const unsigned char motorola[] = {0xff, 0xe1, 0, 34,  'E', 'x', 'i', 'f', 0, 0,
                                      'M',  'M',  0, '*', 0,   0,   0,   8,   0, 1,
                                      1,    0x12, 0, 3,   0,   0,   0,   1,   0, (unsigned char)orientation,
                                      0,    0,    0, 0,   0,   0};
    const unsigned char intel[] = {0xff, 0xe1, 0, 34, 'E', 'x', 'i', 'f', 0, 0,
                                   'I',  'I',  '*', 0, 8,  0,   0,   0,   1, 0,
                                   0x12, 1,    3, 0,   1,  0,   0,   0,   (unsigned char)orientation, 0,
                                   0,    0,    0, 0,   0,  0};
    memcpy(to, jpeg, 2);
    memcpy(to + 2, little ? intel : motorola, sizeof intel);
    memcpy(to + 2 + sizeof intel, jpeg + 2, sizeof jpeg - 2);
    return sizeof jpeg + sizeof intel;
}

TEST(jpeg_of_every_orientation) {
    if (!reads(jpeg, sizeof jpeg)) SKIP("no libjpeg");
    begin();
    fl_scope s = fl_scope_begin();
    unsigned char bytes[sizeof jpeg + 64];
    fl_tensor *plain = fl_vision_decode(jpeg, sizeof jpeg);
    REQUIRE(plain && plain->shape[1] == 21 && plain->shape[2] == 27);
    for (int64_t y = 0; y < 21; y += 4)
        for (int64_t x = 0; x < 27; x += 4)
            CHECK(abs(at(plain, 0, y, x) - 9 * (int)x) < 16 && abs(at(plain, 1, y, x) - 12 * (int)y) < 16);
    for (int o = 1; o <= 8; o++) {
        const size_t n = turned(bytes, o, o % 2);
        fl_tensor *t = fl_vision_decode(bytes, n), *raw = fl_vision_decode(bytes, n, .as_stored = true);
        REQUIRE(t && raw && t->shape[1] == (o < 5 ? 21 : 27));
        CHECK(same_bits(fl_contiguous(raw), fl_contiguous(plain)));
        const int64_t H = 20, W = 26;
        for (int64_t y = 0; y <= H; y += 5)
            for (int64_t x = 0; x <= W; x += 13) { /* where orientation o shows the stored pixel (y, x) */
                const int64_t to[9][2] = {{0}, {y, x}, {y, W - x}, {H - y, W - x}, {H - y, x},
                                          {x, y}, {x, H - y}, {W - x, H - y}, {W - x, y}};
                CHECK_EQ_INT(at(t, 0, to[o][0], to[o][1]), at(plain, 0, y, x));
                CHECK_EQ_INT(at(t, 2, to[o][0], to[o][1]), at(plain, 2, y, x));
            }
        fl_tensor *part = fl_vision_decode(bytes, n, .y = 3, .x = 2, .h = 10, .w = 7);
        REQUIRE(part);
        for (int64_t y = 0; y < 10; y++)
            for (int64_t x = 0; x < 7; x++) CHECK(abs(at(part, 1, y, x) - at(t, 1, y + 3, x + 2)) <= 1);
        CHECK(!fl_vision_decode(bytes, n, .y = 3, .h = 30, .w = 2));
        CHECK_ERROR("region w, h = 2, 30 at x, y = 0, 3");
        fl_error_clear();
    }
    fl_tensor *half = fl_vision_decode(jpeg, sizeof jpeg, .eighths = 4),
              *grey = fl_vision_decode(jpeg, sizeof jpeg, .mode = FL_VISION_GREY);
    CHECK(half && half->shape[1] == 11 && half->shape[2] == 14 && grey && grey->shape[0] == 1);
    CHECK(!fl_vision_decode(jpeg, sizeof jpeg, .max_pixels = 500));
    CHECK_ERROR("27 x 21 pixels");
    fl_error_clear();
    end(&s);
}

/* Every prefix is an error, or an image as large as it says; every flipped byte one of both. */
static void sweep_bytes(const unsigned char *bytes, size_t n, bool flips) {
    unsigned char *copy = malloc(n);
    int images = 0;
    for (size_t i = 0; i < n; i++)
        for (int partial = 0; partial < 2; partial++) {
            fl_scope s = fl_scope_begin();
            memcpy(copy, bytes, n);
            if (flips) copy[i] ^= (unsigned char)(1 << i % 8);
            fl_tensor *t = fl_vision_decode(copy, flips ? n : i, .partial = partial, .max_pixels = 100000);
            images += t && !partial;
            CHECK(t ? !fl_error() && t->ndim == 3 : fl_error() != NULL);
            fl_error_clear();
            fl_scope_end(&s);
        }
    free(copy);
    if (!flips) CHECK(images <= 12); /* what stands behind the pixels is not missed: IEND */
}

TEST(damaged_files_are_errors) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_data_text png = {0};
    REQUIRE(fl_vision_encode_png(&png, patterned(3, 5, 6, FL_U8)));
    const bool has_png = reads(png.p, (size_t)png.n);
    for (int flips = 0; flips < 2; flips++) {
        if (has_png) sweep_bytes((const unsigned char *)png.p, (size_t)png.n, flips);
        if (reads(jpeg, sizeof jpeg)) sweep_bytes(jpeg, sizeof jpeg - (flips ? 0 : 2), flips);
        sweep_bytes((const unsigned char *)"P2 3 2 255 0 7 255 1 2 3", 24, flips);
    }
    fl_heap_free(png.p);
    end(&s);
}

/* ---- faults ---- */

static bool read_it(void) {
    fl_scope s = fl_scope_begin();
    const bool ok = fl_vision_read("x") != NULL;
    fl_scope_end(&s);
    return ok;
}

static bool write_it(void) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_zeros(FL_SHAPE(3, 4, 5), FL_U8);
    const bool ok = t && fl_vision_write_png("y", t);
    fl_scope_end(&s);
    return ok;
}

TEST(readers_survive_failures) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_data_text png = {0};
    REQUIRE(fl_vision_encode_png(&png, patterned(3, 5, 6, FL_U8)));
    disk_write("x", "P5 2 2 255\nabcd", 15);
    sweep_reader(read_it);
    CHECK(sweep_heap(read_it, false) > 0);
    sweep_buffers(read_it, false);
    if (reads(png.p, (size_t)png.n)) {
        disk_write("x", png.p, (size_t)png.n);
        CHECK(sweep_heap(read_it, false) > 3);
        sweep_heap(read_it, true);
    }
    if (reads(jpeg, sizeof jpeg)) {
        disk_write("x", jpeg, sizeof jpeg);
        CHECK(sweep_heap(read_it, false) > 1);
        sweep_buffers(read_it, false);
    }
    CHECK(sweep_heap(write_it, false) > 1);
    sweep_buffers(write_it, true);
    fl_heap_free(png.p);
    end(&s);
}

/* ---- batches ---- */

/* A set of images with labels, in shuffled batches with every step. */
static fl_data_set *batches(int threads) {
    const fl_vision_transform steps[] = {fl_vision_random_crop(12, 2), fl_vision_random_horizontal_flip(0.5),
                                         fl_vision_random_vertical_flip(0.5), fl_vision_cutout(4, 7)};
    fl_scope s = fl_scope_begin();
    fl_tensor *image =
        fl_cast(fl_reshape(fl_arange(0, 10 * 3 * 12 * 14, 1, FL_I64), FL_SHAPE(10, 3, 12, 14)), FL_U8);
    fl_tensor *label = fl_arange(0, 10, 1, FL_I64);
    fl_data_set *set = fl_data_shuffle(fl_data_tensors((fl_tensor *[]){image, label}, 2), 3);
    set = fl_vision_batch(set, 4, .steps = steps, .n_steps = 4, .seed = 5, .mean = {0.5, 0.25, 0.125},
                          .std = {0.5, 1, 2});
    if (set && threads) set = fl_data_prefetch(set, threads, 2);
    fl_scope_end(&s);
    return set;
}

static bool batch_it(void) {
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    fl_data_set *set = batches(0);
    const bool ok = set && fl_data_get(set, 1, &b);
    fl_data_free(set);
    fl_scope_end(&s);
    return ok;
}

TEST(batches_are_a_function_of_seed_epoch_and_index) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_data_set *plain = batches(0), *threaded = batches(3);
    REQUIRE(plain && threaded);
    CHECK_EQ_INT(fl_data_size(plain), 3);
    for (int epoch = 0; epoch < 2; epoch++) {
        CHECK(fl_data_set_epoch(plain, epoch) && fl_data_set_epoch(threaded, epoch));
        for (int64_t i = 0; i < 3; i++) {
            fl_data_sample a, b;
            REQUIRE(fl_data_get(plain, i, &a) && fl_data_get(threaded, i, &b));
            CHECK(a.n == 2 && a.t[0]->shape[0] == (i < 2 ? 4 : 2) && a.t[0]->shape[2] == 12 &&
                  a.t[0]->shape[3] == 12);
            CHECK(a.t[0]->stride[1] == 1 && same_bits(fl_contiguous(a.t[0]), fl_contiguous(b.t[0])) &&
                  same_bits(a.t[1], b.t[1]));
        }
    }
    fl_data_free(plain), fl_data_free(threaded);
    CHECK(sweep_heap(batch_it, false) > 3);
    sweep_buffers(batch_it, false);
    /* (x / 255 - mean) / std, exactly, and nothing else without steps */
    fl_tensor *image = fl_cast(fl_reshape(fl_arange(0, 256, 1, FL_I64), FL_SHAPE(1, 1, 16, 16)), FL_U8);
    fl_data_set *set = fl_vision_batch(fl_data_tensors(&image, 1), 1, .mean = {0.4914}, .std = {0.247});
    fl_data_sample b;
    REQUIRE(set && fl_data_get(set, 0, &b));
    for (int v = 0; v < 256; v++)
        CHECK(((float *)fl_data(b.t[0]))[v] == ((float)v / 255.0f - 0.4914f) / 0.247f);
    fl_data_free(set);
    end(&s);
}

/* Boxes, masks and area go along; every step keeps the image's kind, and random ones are in their range. */
TEST(what_belongs_to_an_image_goes_along) {
    begin();
    fl_scope s = fl_scope_begin();
    const float boxes[] = {2, 3, 6, 9, 0, 0, 2, 2}, area[] = {20, 4};
    fl_tensor *masks = fl_zeros(FL_SHAPE(2, 12, 10), FL_U8);
    fl_assign(fl_slice(fl_slice(fl_select(masks, 0, 0), 0, 3, 9, 1), 1, 2, 6, 1),
              fl_ones(FL_SHAPE(6, 4), FL_U8));
    fl_vision_item item = {patterned(3, 12, 10, FL_U8), fl_from_host(boxes, FL_SHAPE(2, 4), FL_F32),
                           fl_arange(5, 7, 1, FL_I64), masks, fl_from_host(area, FL_SHAPE(2), FL_F32)},
                   x = item;
    const struct {
        fl_vision_transform step;
        float box[4], area;
        int64_t n, h, w;
    } cases[] = {{fl_vision_random_horizontal_flip(1), {4, 3, 8, 9}, 20, 2, 12, 10},
                 {fl_vision_random_vertical_flip(1), {2, 3, 6, 9}, 20, 2, 12, 10},
                 {fl_vision_resize_to(6, 20, FL_VISION_BILINEAR), {4, 1.5f, 12, 4.5f}, 20, 2, 6, 20},
                 {fl_vision_resize(20, 22, FL_VISION_BICUBIC), {3.6f, 5.5f, 10.8f, 16.5f}, 66, 2, 22, 18},
                 {fl_vision_center_crop(6), {0, 0, 4, 6}, 24, 1, 6, 6},
                 {fl_vision_pad(1, 2, 3, 4, 9), {4, 4, 8, 10}, 24, 2, 16, 16}};
    fl_rng rng = {1, 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        x = item;
        REQUIRE(fl_vision_apply(&cases[i].step, 1, &x, &rng));
        CHECK(x.image->shape[1] == cases[i].h && x.image->shape[2] == cases[i].w &&
              x.boxes->shape[0] == cases[i].n);
        CHECK(x.masks->shape[0] == cases[i].n && x.labels->shape[0] == cases[i].n &&
              x.area->shape[0] == cases[i].n);
        CHECK(x.masks->shape[1] == cases[i].h && x.masks->shape[2] == cases[i].w);
        for (int k = 0; k < 4; k++) CHECK_NEAR(((float *)fl_data(x.boxes))[k], cases[i].box[k], 1e-5);
        CHECK_NEAR(((float *)fl_data(x.area))[0], cases[i].area, 1e-3);
        CHECK_NEAR(fl_item(fl_sum(fl_select(x.masks, 0, 0), FL_ALL_AXES)),
                   (double)((cases[i].box[2] - cases[i].box[0]) * (cases[i].box[3] - cases[i].box[1])), 17);
    }
    const fl_vision_transform inner[] = {fl_vision_random_adjust(FL_VISION_INVERT, 0, 0, 1),
                                         fl_vision_rand_augment(0, 0)};
    const fl_vision_transform all[] = {fl_vision_random_resized_crop(9, 0, 0, FL_VISION_BICUBIC),
                                       fl_vision_rand_augment(3, 20),
                                       fl_vision_trivial_augment_wide(),
                                       fl_vision_deit_augment(),
                                       fl_vision_color_jitter(0.4, 0.4, 0.4, 0.1),
                                       fl_vision_random_affine(20, 0.1, 0.1, 0.8, 1.2),
                                       fl_vision_random_erasing(0.5, -1),
                                       fl_vision_random_choice(inner, 2),
                                       fl_vision_random_apply(inner, 2, 0.5),
                                       fl_vision_random_adjust(FL_VISION_BLUR, 0.1, 2, 0.5)};
    for (int64_t i = 0; i < 200; i++) {
        fl_scope step = fl_scope_begin();
        rng = fl_data_rng(7, 0, i);
        x = (fl_vision_item){.image = patterned(i % 4 == 3 ? 1 : 3, 1 + i % 23, 1 + i % 17, FL_U8)};
        CHECK(fl_vision_apply(all, sizeof all / sizeof *all, &x, &rng));
        CHECK(x.image && x.image->shape[1] == 9 && x.image->shape[2] == 9 && x.image->dtype == FL_U8);
        fl_scope_end(&step);
    }
    end(&s);
}

/* What the random steps make of 24 images by seed 7, as a sum of all bytes: a change that is not meant shows
   here. make parity-vision compares each with torchvision's. */
TEST(random_steps_stay_as_they_are) {
    begin();
    fl_scope s = fl_scope_begin();
    const fl_vision_transform inner[] = {fl_vision_random_adjust(FL_VISION_INVERT, 0, 0, 1),
                                         fl_vision_random_adjust(FL_VISION_BLUR, 0.3, 2, 1)};
    const struct {
        fl_vision_transform step;
        uint32_t sum;
    } golden[] = {{fl_vision_rand_augment(0, 0), 0x26e150be},
                  {fl_vision_rand_augment(3, 25), 0xfc1cd356},
                  {fl_vision_trivial_augment_wide(), 0xc7415854},
                  {fl_vision_auto_augment(), 0x3953a93b},
                  {fl_vision_deit_augment(), 0x565e4fb5},
                  {fl_vision_color_jitter(0.4, 0.4, 0.4, 0.1), 0xc7b5ee8e},
                  {fl_vision_random_affine(20, 0.1, 0.1, 0.8, 1.2), 0xe81cb75e},
                  {fl_vision_random_erasing(0.5, -1), 0x95d168e8},
                  {fl_vision_cutout(8, 7), 0x64202ba7},
                  {fl_vision_random_resized_crop(9, 0, 0, FL_VISION_BICUBIC), 0xa7a41a66},
                  {fl_vision_random_crop(12, 3), 0x0bfdd198},
                  {fl_vision_random_size_crop(3, 20), 0xcb306979},
                  {fl_vision_random_choice(inner, 2), 0x976561f9},
                  {fl_vision_random_apply(inner, 2, 0.5), 0xe63fbfae}};
    for (size_t k = 0; k < sizeof golden / sizeof *golden; k++) {
        uint32_t sum = 0;
        for (int64_t i = 0; i < 24; i++) {
            fl_rng rng = fl_data_rng(7, 0, i);
            fl_vision_item x = {.image = patterned(i % 8 == 7 ? 1 : 3, 23, 19, FL_U8)};
            fl_vision_pixels p;
            REQUIRE(fl_vision_apply(&golden[k].step, 1, &x, &rng) && fl_vision_pixels_of(&x.image, &p));
            for (int64_t y = 0; y < p.h; y++) sum = fl_data_crc32c(sum, p.p + y * p.row, (size_t)(p.w * p.c));
        }
        if (!CHECK_EQ_INT(sum, golden[k].sum)) printf("  %s: 0x%08x\n", golden[k].step.name, sum);
    }
    end(&s);
}

/* ---- masks and average precision ---- */

TEST(masks_as_run_lengths) {
    begin();
    fl_scope s = fl_scope_begin();
    for (uint64_t seed = 0; seed < 200; seed++) {
        const int64_t h = 1 + (int64_t)(seed % 13), w = 1 + (int64_t)(seed % 7);
        unsigned char mask[2][100], back[100];
        fl_vision_rle r[2], both, again;
        fl_data_text text = {0};
        int64_t area = 0, any = 0, all = 0;
        for (int k = 0; k < 2; k++) {
            fl_rng rng = fl_data_rng(seed, k, 0);
            const double p = 0.1 + 0.8 * fl_rng_uniform(&rng);
            for (int64_t i = 0; i < h * w; i++) mask[k][i] = fl_rng_uniform(&rng) < p;
            REQUIRE(fl_vision_rle_encode(mask[k], h, w, &r[k]));
            fl_vision_rle_decode(&r[k], back);
            CHECK(!memcmp(back, mask[k], (size_t)(h * w)));
        }
        for (int64_t i = 0; i < h * w; i++)
            area += mask[0][i], any += mask[0][i] | mask[1][i], all += mask[0][i] & mask[1][i];
        CHECK_EQ_INT(fl_vision_rle_area(&r[0]), area);
        int64_t corner[4] = {w, h, -1, -1}; /* the first and the last column and row */
        double box[4];
        for (int64_t i = 0; i < h * w; i++)
            for (int d = 0; d < 2 && mask[0][i]; d++) {
                const int64_t v = d ? i / w : i % w;
                corner[d] = v < corner[d] ? v : corner[d], corner[2 + d] = v > corner[2 + d] ? v : corner[2 + d];
            }
        fl_vision_rle_box(&r[0], box);
        for (int d = 0; area && d < 2; d++) {
            /* pycocotools: of runs that go on in the next column, the whole height */
            bool on = false;
            for (int64_t i = 1, at_run = r[0].run[0]; i < r[0].n; at_run += r[0].run[i++])
                on |= i % 2 && r[0].run[i] && at_run / h != (at_run + r[0].run[i] - 1) / h;
            CHECK_EQ_INT(box[d], d && on ? 0 : corner[d]);
            CHECK_EQ_INT(box[2 + d], d && on ? h : corner[2 + d] - corner[d] + 1);
        }
        CHECK_NEAR(fl_vision_rle_iou(&r[0], &r[1], false), all ? (double)all / (double)any : 0, 1e-15);
        CHECK_NEAR(fl_vision_rle_iou(&r[0], &r[1], true), all ? (double)all / (double)area : 0, 1e-15);
        for (int intersect = 0; intersect < 2; intersect++) {
            REQUIRE(fl_vision_rle_merge(r, 2, intersect, &both));
            fl_vision_rle_decode(&both, back);
            for (int64_t i = 0; i < h * w; i++)
                CHECK_EQ_INT(back[i], intersect ? mask[0][i] & mask[1][i] : mask[0][i] | mask[1][i]);
            fl_heap_free(both.run);
        }
        REQUIRE(fl_vision_rle_put(&text, &r[0]) && fl_vision_rle_parse(text.p, (size_t)text.n, h, w, &again));
        CHECK(again.n == r[0].n && !memcmp(again.run, r[0].run, (size_t)r[0].n * sizeof *again.run));
        fl_heap_free(again.run), fl_heap_free(text.p), fl_heap_free(r[0].run), fl_heap_free(r[1].run);
    }
    const double square[] = {1, 1, 1, 4, 3, 4, 3, 1};
    fl_vision_rle r;
    double box[4];
    REQUIRE(fl_vision_rle_polygon(square, 4, 6, 5, &r));
    fl_vision_rle_box(&r, box);
    CHECK_EQ_INT(fl_vision_rle_area(&r), 6);
    CHECK(box[0] == 1 && box[1] == 1 && box[2] == 2 && box[3] == 3);
    fl_heap_free(r.run);
    uint32_t none[2] = {0};
    fl_vision_rle_box(&(fl_vision_rle){.h = 0, .w = 3, .n = 2, .run = none}, box);
    CHECK(box[0] == 0 && box[1] == 0 && box[2] == 0 && box[3] == 0);
    end(&s);
}

/* pycocotools' rleFrPoly as it is written there: every pixel of every edge of the polygon enlarged five
   times, then
   a cell changes for each place at which an edge crosses the middle of a column. */
static void mask_by_pixels(const double *xy, int n, int h, int w, unsigned char *mask) {
    unsigned char *changes = calloc((size_t)(h * w) + 1, 1);
    for (int i = 0; i < n; i++) {
        const double *p = xy + 2 * i, *q = xy + 2 * ((i + 1) % n);
        int xs = (int)(5 * p[0] + .5), ys = (int)(5 * p[1] + .5), xe = (int)(5 * q[0] + .5),
            ye = (int)(5 * q[1] + .5), u0 = 0, v0 = 0;
        const int dx = abs(xe - xs), dy = abs(ye - ys);
        if ((dx >= dy && xs > xe) || (dx < dy && ys > ye)) {
            const int x = xs, y = ys;
            xs = xe, xe = x, ys = ye, ye = y;
        }
        const double s = dx >= dy ? dx ? (double)(ye - ys) / dx : 0 : (double)(xe - xs) / dy;
        for (int t = 0; t <= (dx >= dy ? dx : dy); t++) {
            const int u = dx >= dy ? t + xs : (int)(xs + s * t + .5),
                      v = dx >= dy ? (int)(ys + s * t + .5) : t + ys;
            const double x = ((u < u0 ? u : u - 1) + .5) / 5 - .5;
            if (t && u != u0 && floor(x) == x && x >= 0 && x <= w - 1) {
                const double y = ((v < v0 ? v : v0) + .5) / 5 - .5;
                changes[(int)x * h + (y < 0 ? 0 : y > h ? h : (int)ceil(y))] ^= 1;
            }
            u0 = u, v0 = v;
        }
    }
    for (int i = 0, inside = 0; i < h * w; i++) mask[i % h * w + i / h] = inside ^= changes[i];
    free(changes);
}

TEST(polygons_are_those_of_coco) {
    begin();
    fl_scope s = fl_scope_begin();
    enum { SIDE = 40, CORNERS = 12 };
    unsigned char want[SIDE * SIDE], got[SIDE * SIDE];
    for (uint64_t seed = 0; seed < 4000; seed++) {
        fl_rng rng = fl_data_rng(seed, 1, 0);
        static const double beyond[] = {-8, 0, 3, 60, 2000}; /* where corners lie, outside of the mask */
        const int h = 1 + (int)(fl_rng_uniform(&rng) * SIDE), w = 1 + (int)(fl_rng_uniform(&rng) * SIDE);
        const int n = 1 + (int)(fl_rng_uniform(&rng) * CORNERS), kind = (int)(seed % 4);
        const double m = beyond[seed % 5];
        double xy[2 * CORNERS];
        for (int i = 0; i < 2 * n; i++) {
            const double side = i % 2 ? h : w, v = fl_rng_uniform(&rng) * (side + 2 * m) - m;
            xy[i] = kind == 0 ? floor(v) : kind == 1 ? floor(v) + 0.5 : floor(v * 100) / 100;
            if (kind == 3 && i > 1 && fl_rng_uniform(&rng) < 0.3) xy[i] = xy[i - 2];
        }
        fl_vision_rle r, again;
        REQUIRE(fl_vision_rle_polygon(xy, n, h, w, &r));
        fl_vision_rle_decode(&r, got), mask_by_pixels(xy, n, h, w, want);
        if (!CHECK(!memcmp(got, want, (size_t)(h * w)))) printf("  seed %d\n", (int)seed);
        REQUIRE(fl_vision_rle_encode(want, h, w, &again)); /* no run is empty but the first one */
        CHECK(r.n == again.n && !memcmp(r.run, again.run, (size_t)r.n * sizeof *r.run));
        fl_heap_free(r.run), fl_heap_free(again.run);
    }
    /* 1e7 pixels an edge: 640 columns */
    const double far[] = {-1e6, -1e6, 1e6, -1e6, 1e6, 1e6, -1e6, 1e6};
    fl_vision_rle r;
    const clock_t start = clock();
    for (int i = 0; i < 100; i++) {
        REQUIRE(fl_vision_rle_polygon(far, 4, 480, 640, &r));
        CHECK_EQ_INT(fl_vision_rle_area(&r), 480 * 640);
        fl_heap_free(r.run);
    }
    CHECK((double)(clock() - start) / CLOCKS_PER_SEC < 1);
    double *comb = malloc(2 * 4000 * sizeof *comb); /* edges to and fro */
    for (int i = 0; i < 4000; i++) comb[2 * i] = i % 2 ? 2000 : 0, comb[2 * i + 1] = i % 5;
    CHECK(!fl_vision_rle_polygon(comb, 4000, 2, 2000, &r));
    CHECK_ERROR("fl_vision_rle_polygon: edges cross the columns of 2 x 2000 pixels more often");
    fl_error_clear(), free(comb);
    end(&s);
}

/* The union of many masks of one cell each, in the order in which they stand. */
TEST(masks_of_many_parts) {
    begin();
    fl_scope s = fl_scope_begin();
    enum { SIDE = 30, PARTS = 50 };
    unsigned char cells[SIDE * SIDE] = {0}, one[SIDE * SIDE], got[SIDE * SIDE];
    fl_vision_rle r[PARTS], all;
    for (int n = 1; n <= PARTS; n++) {
        memset(one, 0, sizeof one);
        one[n * 131 % (SIDE * SIDE)] = 1, cells[n * 131 % (SIDE * SIDE)] = 1;
        REQUIRE(fl_vision_rle_encode(one, SIDE, SIDE, &r[n - 1]) && fl_vision_rle_merge(r, n, false, &all));
        fl_vision_rle_decode(&all, got);
        CHECK(!memcmp(got, cells, sizeof cells));
        fl_heap_free(all.run);
    }
    REQUIRE(fl_vision_rle_merge(r, PARTS, true, &all));
    CHECK_EQ_INT(fl_vision_rle_area(&all), 0);
    fl_heap_free(all.run), r[PARTS - 1].h++;
    CHECK(!fl_vision_rle_merge(r, PARTS, false, &all)), CHECK_ERROR("sizes differ");
    fl_error_clear(), r[PARTS - 1].h--, r[0].w++;
    CHECK(!fl_vision_rle_merge(r, PARTS, false, &all)), CHECK_ERROR("sizes differ");
    fl_error_clear();
    for (int n = 0; n < PARTS; n++) fl_heap_free(r[n].run);
    end(&s);
}

/* Texts of a mask of 2 x 3, whose runs end elsewhere than it does, or are none. */
TEST(bad_run_lengths) {
    begin();
    static const struct {
        const char *text, *want;
    } bad[] = {{"", "the sum of the runs is 0, expected 2 x 3"},
               {"5", "the sum of the runs is 5"},
               {"7", "run 0 is 7: negative, or past the end of the mask of 2 x 3"},
               {"133", "run 2 is 3: negative, or past"},
               {"P", "offset 1: invalid run"},
               {"h", "offset 1: invalid run"},
               {"6P", "offset 2: invalid run"},
               {"6h", "offset 2: invalid run"},
               {"/", "offset 1: invalid run"},
               {" 6", "offset 1: invalid run"},
               {"6 ", "offset 2: invalid run"},
               {"6\n", "offset 2: invalid run"},
               {"p", "offset 1: invalid run"},
               {"\x7f", "offset 1: invalid run"},
               {"\xff", "offset 1: invalid run"},
               {"oooooooo0", "offset 8: invalid run"},
               {"ooooooo0", "offset 8: invalid run"},
               {"A", "run 0 is"},
               {"1A", "run 1 is"},
               {"O", "run 0 is -1: negative, or past"},
               {"00000O", "run 5 is -1: negative, or past"},
               {"0", "the sum of the runs is 0"},
               {"00", "the sum of the runs is 0"},
               {"01", "the sum of the runs is 1"},
               {"4", "the sum of the runs is 4"},
               {"05", "the sum of the runs is 5"},
               {"P0", "the sum of the runs is 0"},
               {"1111", "the sum of the runs is 5"}, /* from the fourth on what a run is more than that before the last */
               {"111O", "the sum of the runs is 3"},
               {"61", "run 1 is 1: negative, or past"},
               {"16", "run 1 is 6: negative, or past"},
               {"52", "run 1 is 2: negative, or past"},
               {"223", "run 2 is 3: negative, or past"},
               {"2220", "run 3 is 2: negative, or past"},
               {"11111", "run 4 is 2: negative, or past"},
               {"1234", "run 3 is 6: negative, or past"},
               {"?", "run 0 is 15: negative, or past"},
               {"P1", "run 0 is 32: negative, or past"},
               {"o0", "run 0 is 31: negative, or past"},
               {"N", "run 0 is -2: negative, or past"},
               {"@", "run 0 is -16: negative, or past"},
               {"6~", "offset 2: invalid run"},
               {"6\t", "offset 2: invalid run"},
               {"\x01", "offset 1: invalid run"}};
    fl_vision_rle r;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (!CHECK(!fl_vision_rle_parse(bad[i].text, strlen(bad[i].text), 2, 3, &r)) ||
            !CHECK_ERROR(bad[i].want))
            printf("  '%s'\n", bad[i].text);
    CHECK(!fl_vision_rle_parse("6", 1, -2, -3, &r)), CHECK_ERROR("mask of h, w = -2, -3 pixels");
    CHECK(!fl_vision_rle_parse("6", 1, 65501, 1, &r)), CHECK_ERROR("mask of h, w = 65501, 1 pixels");
    CHECK(!fl_vision_rle_parse("6", 1, 65500, 65500, &r)), CHECK_ERROR("mask of h, w = 65500, 65500 pixels");
    disk_reset();
    fl_scope s = fl_scope_begin();
    end(&s);
}

static const char truth_text[] =
    "{\"images\":[{\"id\":5,\"height\":100,\"width\":100,\"file_name\":\"a\"},{\"id\":2,\"height\":50,"
    "\"width\":60}],"
    "\"categories\":[{\"id\":3,\"name\":\"cat\"},{\"id\":1,\"name\":\"dog\"}],\"annotations\":["
    "{\"id\":0,\"image_id\":5,\"category_id\":3,\"bbox\":[10,10,20,20],\"area\":400,\"iscrowd\":0,"
    "\"segmentation\":[[10,10,10,30,30,30,30,10]]},"
    "{\"id\":1,\"image_id\":2,\"category_id\":3,\"bbox\":[0,0,40,40],\"area\":1600}]}";
static const char found_text[] =
    "[{\"image_id\":5,\"category_id\":3,\"bbox\":[10,10,20,20],\"score\":0.9},"
    "{\"image_id\":2,\"category_id\":3,\"bbox\":[100,0,9,9],\"score\":0.8},"
    "{\"image_id\":2,\"category_id\":3,\"bbox\":[0,0,40,30],\"score\":0.7}]";

static bool load_truth(void) {
    fl_vision_coco c = {0};
    const bool ok = fl_vision_coco_load("gt", &c);
    fl_vision_coco_free(&c);
    return ok;
}

static bool evaluate_it(void) {
    fl_vision_coco truth = {0}, found = {0};
    fl_vision_ap ap = {.n_category = 0};
    const bool ok = fl_vision_coco_load("gt", &truth) && fl_vision_coco_results("dt", &truth, &found) &&
                    fl_vision_evaluate(&truth, &found, false, &ap) &&
                    fl_vision_evaluate(&truth, &found, false, (fl_vision_ap_free(&ap), &ap));
    fl_vision_ap_free(&ap);
    fl_vision_coco_free(&truth), fl_vision_coco_free(&found);
    return ok;
}

TEST(average_precision_of_a_small_set) {
    begin();
    fl_scope s = fl_scope_begin();
    disk_write("gt", truth_text, sizeof truth_text - 1);
    disk_write("dt", found_text, sizeof found_text - 1);
    fl_vision_coco truth, found;
    fl_vision_ap ap;
    REQUIRE(fl_vision_coco_load("gt", &truth) && fl_vision_coco_results("dt", &truth, &found));
    CHECK(truth.n_image == 2 && truth.image[0].id == 2 && truth.category[0].id == 1 && truth.n_object == 2);
    REQUIRE(fl_vision_evaluate(&truth, &found, false, &ap));
    /* the object of id 0 is found; the second one at IoU .75, behind a false detection */
    CHECK_NEAR(ap.figure[1], (51 + 50 * 2.0 / 3) / 101, 1e-12);
    CHECK_NEAR(ap.figure[2], (51 + 50 * 2.0 / 3) / 101, 1e-12);
    CHECK_NEAR(ap.figure[8], (6 * 1 + 4 * 0.5) / 10, 1e-12);
    CHECK_NEAR(fl_vision_ap_class(&ap, 0), -1, 0);
    fl_data_text text = {
        0}; /* no row for the class without objects, nor for their sizes that there are none of */
    CHECK(fl_vision_ap_put(&text, &ap, &truth) && strstr(text.p, "AP cat\t0.") &&
          strstr(text.p, "\nAPs\t1.0"));
    CHECK(strstr(text.p, "area= large | maxDets=100 ] = -1.000") && !strstr(text.p, "dog") &&
          !strstr(text.p, "\nAPl"));
    fl_heap_free(text.p);
    CHECK_NEAR(fl_vision_voc(&truth, &found, 1, 0.5, 0), 0.5 + 0.5 * 2 / 3, 1e-12);
    CHECK_NEAR(fl_vision_voc(&truth, &found, 1, 0.5, 11), (6 + 5 * 2.0 / 3) / 11, 1e-12);
    fl_vision_ap_free(&ap);
    REQUIRE(fl_vision_evaluate(&truth, &found, true, &ap)); /* boxes stand for masks that are not there */
    CHECK_NEAR(ap.figure[0] > 0.3, 1, 0);
    fl_vision_ap_free(&ap);
    fl_vision_coco_free(&truth), fl_vision_coco_free(&found);
    sweep_reader(load_truth);
    CHECK(sweep_heap(evaluate_it, false) > 5);
    end(&s);
}

/* The devkit's boxes end at the last pixel that they hold: the side of one from 0 to 9 is 10, not 9. */
TEST(pascal_voc_with_inclusive_corners) {
    begin();
    fl_scope s = fl_scope_begin();
    static const char gt[] =
        "{\"images\":[{\"id\":1,\"height\":50,\"width\":50}],\"categories\":[{\"id\":1}],"
        "\"annotations\":[{\"image_id\":1,\"category_id\":1,\"bbox\":[0,0,9,9]},"
        "{\"image_id\":1,\"category_id\":1,\"bbox\":[20,20,0,0]}]}";
    static const char dt[] = "[{\"image_id\":1,\"category_id\":1,\"bbox\":[0,0,9,4],\"score\":0.9},"
                             "{\"image_id\":1,\"category_id\":1,\"bbox\":[20,20,0,0],\"score\":0.8},"
                             "{\"image_id\":1,\"category_id\":1,\"bbox\":[0,10,9,9],\"score\":0.7}]";
    disk_write("gt", gt, sizeof gt - 1);
    disk_write("dt", dt, sizeof dt - 1);
    fl_vision_coco truth, found;
    REQUIRE(fl_vision_coco_load("gt", &truth) && fl_vision_coco_results("dt", &truth, &found));
    CHECK_NEAR(fl_vision_voc(&truth, &found, 0, 0.5, 0), 0, 0); /* 36 of 81, and no area at all */
    CHECK_NEAR(fl_vision_voc(&truth, &found, 0, 0.5, 0, .inclusive = true), 1, 0); /* 50 of 100, one of one */
    CHECK_NEAR(fl_vision_voc(&truth, &found, 0, 0.501, 0, .inclusive = true), 0.25, 1e-12);
    CHECK_NEAR(fl_vision_voc(&truth, &found, 0, 0.501, 11, .inclusive = true), 6 * 0.5 / 11, 1e-12);
    fl_vision_coco_free(&truth), fl_vision_coco_free(&found);
    end(&s);
}

/* ---- VOC as its devkit computes it (VOCevaldet.m, VOCap.m), written again: corners, plain loops ---- */

enum { VOC_IMAGES = 6, VOC_BOXES = 60 };
typedef struct voc_box {
    int image, x0, y0, x1, y1; /* corners are pixels of the box */
    bool difficult, taken;
    double score;
} voc_box;

static double voc_overlap(const voc_box *a, const voc_box *b, int pixel) {
    const int x0 = a->x0 > b->x0 ? a->x0 : b->x0, y0 = a->y0 > b->y0 ? a->y0 : b->y0;
    const int x1 = a->x1 < b->x1 ? a->x1 : b->x1, y1 = a->y1 < b->y1 ? a->y1 : b->y1;
    const double w = x1 - x0 + pixel, h = y1 - y0 + pixel;
    if (w <= 0 || h <= 0) return 0;
    const double both = (double)(a->x1 - a->x0 + pixel) * (a->y1 - a->y0 + pixel) +
                        (double)(b->x1 - b->x0 + pixel) * (b->y1 - b->y0 + pixel) - w * h;
    return w * h / both;
}

/* The area under the curve with precision made to fall, or (points) the mean at recalls 0, 0.1, ... 1. Scores
   of found fall. */
static double voc_devkit(voc_box *truth, int n_truth, const voc_box *found, int n_found, double iou,
                         int pixel,
                         bool points) {
    double recall[VOC_BOXES + 2] = {0}, precision[VOC_BOXES + 2] = {0}, ap = 0;
    int positives = 0, n = 0, tp = 0, fp = 0;
    for (int g = 0; g < n_truth; g++) positives += !truth[g].difficult, truth[g].taken = false;
    for (int d = 0; d < n_found; d++) {
        voc_box *best = NULL;
        double most = -1;
        for (int g = 0; g < n_truth; g++) {
            if (truth[g].image != found[d].image) continue;
            const double o = voc_overlap(&found[d], &truth[g], pixel);
            if (o > most) most = o, best = &truth[g];
        }
        if (best && most >= iou && best->difficult) continue;
        if (best && most >= iou && !best->taken) tp++, best->taken = true;
        else fp++;
        n++, recall[n] = (double)tp / positives, precision[n] = (double)tp / (tp + fp);
    }
    if (points) {
        for (int r = 0; r <= 10; r++) {
            double high = 0;
            for (int i = 1; i <= n; i++)
                if (recall[i] >= r * 0.1 && precision[i] > high) high = precision[i];
            ap += high / 11;
        }
        return ap;
    }
    recall[n + 1] = 1;
    for (int i = n; i >= 0; i--) precision[i] = fmax(precision[i], precision[i + 1]);
    for (int i = 1; i <= n + 1; i++) ap += (recall[i] - recall[i - 1]) * precision[i];
    return ap;
}

/* Small boxes of whole pixels, so that the pixel more matters, and detections near them. */
static void voc_boxes(fl_rng *rng, voc_box *truth, int n_truth, voc_box *found, int n_found) {
    float u[VOC_BOXES * 8];
    fl_scope s = fl_scope_begin();
    REQUIRE(fl_to_host(fl_uniform(FL_SHAPE(VOC_BOXES * 8), 0, 1, FL_F32, rng), u, sizeof u));
    for (int i = 0; i < n_truth; i++) {
        const float *v = u + 4 * i;
        const int x = (int)(40 * v[0]), y = (int)(40 * v[1]);
        truth[i] = (voc_box){.image = (int)(VOC_IMAGES * v[2]), .x0 = x, .y0 = y, .x1 = x + (int)(8 * v[3]),
                             .y1 = y + (int)(13 * v[3]), .difficult = i % 7 == 0};
    }
    for (int i = 0; i < n_found; i++) {
        const float *v = u + 4 * VOC_BOXES + 4 * i;
        found[i] = truth[(int)((float)n_truth * v[0])];
        found[i].x1 += (int)(3 * v[1]), found[i].y0 -= (int)(3 * v[2]), found[i].x0 += v[3] < 0.2f;
        if (found[i].x1 < found[i].x0) found[i].x1 = found[i].x0;
        found[i].score = 1 - i / 100.;
    }
    fl_scope_end(&s);
}

static void voc_write(const char *path, const voc_box *box, int n, bool truth) {
    static char text[1 << 14];
    char *p = text, *const end = text + sizeof text;
    if (truth) p += snprintf(p, (size_t)(end - p), "{\"categories\":[{\"id\":1}],\"images\":[");
    for (int i = 0; truth && i < VOC_IMAGES; i++)
        p += snprintf(p, (size_t)(end - p), "%s{\"id\":%d,\"height\":60,\"width\":60}", i ? "," : "", i);
    p += snprintf(p, (size_t)(end - p), truth ? "],\"annotations\":[" : "[");
    for (int i = 0; i < n; i++)
        p += snprintf(p, (size_t)(end - p),
                      "%s{\"image_id\":%d,\"category_id\":1,\"bbox\":[%d,%d,%d,%d],\"%s\":%g}",
                      i ? "," : "", box[i].image, box[i].x0, box[i].y0, box[i].x1 - box[i].x0, box[i].y1 - box[i].y0,
                      truth ? "iscrowd" : "score", truth ? (double)box[i].difficult : box[i].score);
    p += snprintf(p, (size_t)(end - p), truth ? "]}" : "]");
    disk_write(path, text, (size_t)(p - text));
}

TEST(pascal_voc_as_the_devkit) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_rng rng = {23, 0};
    int differ = 0;
    for (int round = 0; round < 40; round++) {
        voc_box truth[VOC_BOXES], found[VOC_BOXES];
        const int n_truth = 5 + round, n_found = 20 + round;
        fl_vision_coco a, b;
        voc_boxes(&rng, truth, n_truth, found, n_found);
        voc_write("gt", truth, n_truth, true), voc_write("dt", found, n_found, false);
        REQUIRE(fl_vision_coco_load("gt", &a) && fl_vision_coco_results("dt", &a, &b));
        for (int points = 0; points < 2; points++) {
            double got[2];
            for (int pixel = 0; pixel < 2; pixel++) {
                got[pixel] = fl_vision_voc(&a, &b, 0, 0.5, points ? 11 : 0, .inclusive = pixel);
                CHECK_NEAR(got[pixel], voc_devkit(truth, n_truth, found, n_found, 0.5, pixel, points), 1e-12);
            }
            differ += got[0] != got[1];
        }
        fl_vision_coco_free(&a), fl_vision_coco_free(&b);
    }
    CHECK(differ > 40); /* the option matters here */
    end(&s);
}

/* A detector may give a width or height below 0: such a box meets nothing, and is in no range of areas, so it
   does not count, but for the number of detections of its image. */
TEST(detections_of_negative_size) {
    begin();
    fl_scope s = fl_scope_begin();
    static const char dt[] = "[{\"image_id\":5,\"category_id\":3,\"bbox\":[30,10,-20,20],\"score\":0.95},"
                             "{\"image_id\":5,\"category_id\":3,\"bbox\":[10,10,20,20],\"score\":0.9},"
                             "{\"image_id\":2,\"category_id\":3,\"bbox\":[40,40,-40,-40],\"score\":0.8},"
                             "{\"image_id\":2,\"category_id\":3,\"bbox\":[0,0,40,40],\"score\":0.7}]";
    disk_write("gt", truth_text, sizeof truth_text - 1);
    disk_write("dt", dt, sizeof dt - 1);
    fl_vision_coco truth, found;
    fl_vision_ap ap;
    REQUIRE(fl_vision_coco_load("gt", &truth) && fl_vision_coco_results("dt", &truth, &found));
    CHECK(found.object[0].area == -400 && found.object[2].area == 1600);
    REQUIRE(fl_vision_evaluate(&truth, &found, false, &ap));
    CHECK_NEAR(ap.figure[1], (51 + 50 * 2.0 / 3) / 101,
               1e-12); /* the third one, of an area above 0, is false */
    CHECK_NEAR(ap.figure[6], 0, 0);
    CHECK_NEAR(ap.figure[8], 1, 0);
    fl_vision_ap_free(&ap), fl_vision_coco_free(&found);
    static const char bare[] = "[{\"image_id\":5,\"category_id\":3,\"score\":0.9}]";
    disk_write("dt", bare, sizeof bare - 1);
    CHECK(!fl_vision_coco_results("dt", &truth, &found)),
        CHECK_ERROR("result 0 has neither bbox nor segmentation");
    fl_vision_coco_free(&truth);
    end(&s);
}

/* Of equal scores the detection of the earlier image is the first one, true or false. */
TEST(detections_of_equal_score) {
    begin();
    fl_scope s = fl_scope_begin();
    static const char gt[] =
        "{\"images\":[{\"id\":1,\"height\":9,\"width\":9},{\"id\":2,\"height\":9,\"width\":9}],"
        "\"categories\":[{\"id\":1},{\"id\":2}],\"annotations\":["
        "{\"image_id\":1,\"category_id\":1,\"bbox\":[1,1,5,5]},"
        "{\"image_id\":2,\"category_id\":2,\"bbox\":[1,1,5,5]}]}";
    static const char dt[] = "[{\"image_id\":2,\"category_id\":1,\"bbox\":[1,1,5,5],\"score\":0.5},"
                             "{\"image_id\":1,\"category_id\":1,\"bbox\":[1,1,5,5],\"score\":0.5},"
                             "{\"image_id\":2,\"category_id\":2,\"bbox\":[1,1,5,5],\"score\":0.5},"
                             "{\"image_id\":1,\"category_id\":2,\"bbox\":[1,1,5,5],\"score\":0.5}]";
    disk_write("gt", gt, sizeof gt - 1), disk_write("dt", dt, sizeof dt - 1);
    fl_vision_coco truth, found;
    fl_vision_ap ap;
    REQUIRE(fl_vision_coco_load("gt", &truth) && fl_vision_coco_results("dt", &truth, &found));
    REQUIRE(fl_vision_evaluate(&truth, &found, false, &ap));
    CHECK_NEAR(fl_vision_ap_class(&ap, 0), 1, 1e-12), CHECK_NEAR(fl_vision_ap_class(&ap, 1), 0.5, 1e-12);
    fl_vision_ap_free(&ap), fl_vision_coco_free(&found), fl_vision_coco_free(&truth);
    end(&s);
}

/* Four objects of one shape, a class each: a box, polygons, runs as text and as numbers; what is found has
   runs. */
static const char shapes_text[] =
    "{\"images\":[{\"id\":1,\"height\":6,\"width\":9}],\"categories\":[{\"id\":1},{\"id\":2},{\"id\":3},{\"id\":4}],"
    "\"annotations\":[{\"image_id\":1,\"category_id\":1,\"bbox\":[2,1,5,3]},"
    "{\"image_id\":1,\"category_id\":2,\"bbox\":[0,0,1,1],\"segmentation\":[[2,1,2,4,5,4,5,1],[5,1,5,4,7,4,7,1]]},"
    "{\"image_id\":1,\"category_id\":3,\"bbox\":[0,0,1,1],\"segmentation\":{\"size\":[6,9],\"counts\":\"%s\"}},"
    "{\"image_id\":1,\"category_id\":4,\"bbox\":[0,0,1,1],"
    "\"segmentation\":{\"size\":[6,9],\"counts\":[13,3,3,3,3,3,3,3,3,3,14]}}]}";

TEST(masks_of_every_kind_of_object) {
    begin();
    fl_scope s = fl_scope_begin();
    char text[4000], *end_of = text;
    fl_data_text runs = {0};
    uint32_t run[] = {13, 3, 3, 3, 3, 3, 3, 3, 3, 3, 14};
    REQUIRE(fl_vision_rle_put(&runs, &(fl_vision_rle){6, 9, 11, run}));
    snprintf(text, sizeof text, shapes_text, runs.p);
    disk_write("gt", text, strlen(text));
    for (int k = 1; k <= 4; k++) /* the box of what is found does not count */
        end_of += sprintf(end_of, "%c{\"image_id\":1,\"category_id\":%d,\"bbox\":[0,0,2,2],\"score\":1,"
                                  "\"segmentation\":{\"size\":[6,9],\"counts\":\"%s\"}}",
                          k == 1 ? '[' : ',', k, runs.p);
    strcpy(end_of, "]");
    disk_write("dt", text, strlen(text));
    fl_vision_coco truth, found;
    fl_vision_ap ap;
    REQUIRE(fl_vision_coco_load("gt", &truth) && fl_vision_coco_results("dt", &truth, &found));
    REQUIRE(fl_vision_evaluate(&truth, &found, true, &ap));
    for (int k = 0; k < 4; k++) CHECK_NEAR(fl_vision_ap_class(&ap, k), 1, 1e-12);
    fl_vision_ap_free(&ap);
    REQUIRE(fl_vision_evaluate(&truth, &found, false, &ap));
    for (int k = 0; k < 4; k++) CHECK_NEAR(fl_vision_ap_class(&ap, k), 0, 1e-12);
    fl_vision_ap_free(&ap), fl_vision_coco_free(&found);
    const char box[] = "[{\"image_id\":1,\"category_id\":4,\"bbox\":[2,1,5,3],\"score\":1},"
                       "{\"image_id\":1,\"category_id\":3,\"bbox\":[1,1,5,3],\"score\":1}]";
    disk_write("dt", box, sizeof box - 1); /* found boxes for masks; the second one is 4 columns of 6 right */
    REQUIRE(fl_vision_coco_results("dt", &truth, &found) && fl_vision_evaluate(&truth, &found, true, &ap));
    CHECK_NEAR(fl_vision_ap_class(&ap, 3), 1, 1e-12), CHECK_NEAR(fl_vision_ap_class(&ap, 2), 0.4, 1e-12);
    fl_vision_ap_free(&ap), fl_vision_coco_free(&found), fl_vision_coco_free(&truth), fl_heap_free(runs.p);
    end(&s);
}

/* Bad files and what is said about them. */
static const char *const bad_coco[][2] = {
    {"", "the text ends early"},
    {"[]", "offset 0, line 1: expected an object, got an array"},
    {"null", "expected an object, got null"},
    {"7", "expected an object, got a number"},
    {"{\"images\"", "expected ':'"},
    {"{\"images\":", "the text ends early"},
    {"{\"images\":{}}", "expected an array, got an object"},
    {"{\"annotations\":null}", "expected an array, got null"},
    {"{\"categories\":\"x\"}", "expected an array, got a string"},
    {"{\"images\":[7]}", "expected an object, got a number"},
    {"{\"annotations\":[[]]}", "expected an object, got an array"},
    {"{\"categories\":[true]}", "expected an object, got true"},
    {"{\"images\":[]} x", "unexpected text after the value"},
    {"{\"images\":[],}", "of a key"},
    {"{images:[]}", "of a key"},
    {"{'images':[]}", "of a key"},
    {"{\"images\":[} ]", "expected a value"},
    {"{\"info\":[1,2", "expected ',' or ']'"},
    {"{\"images\":[{\"id\":\"1\"}]}", "expected a number, got a string"},
    {"{\"images\":[{\"id\":1.5}]}", "integer, got '1.5'"},
    {"{\"images\":[{\"id\":99999999999999999999}]}", "out of range of int64"},
    {"{\"images\":[{\"height\":70000}]}", "size is 70000, expected 0 to 65500"},
    {"{\"images\":[{\"width\":-1}]}", "size is -1, expected 0 to 65500"},
    {"{\"images\":[{\"height\":1e3}]}", "integer, got '1e3'"},
    {"{\"images\":[{\"file_name\":7}]}", "expected a string, got a number"},
    {"{\"images\":[{\"file_name\":\"a\\u0000b\"}]}", "a NUL in a string"},
    {"{\"images\":[{\"file_name\":\"../a\"}]}",
     "offset 24, line 1: file_name '../a' is outside the image folder"},
    {"{\"images\":[{\"file_name\":\"a/../../b\"}]}", "file_name 'a/../../b' is outside"},
    {"{\"images\":[{\"file_name\":\"a/..\"}]}", "file_name 'a/..' is outside"},
    {"{\"images\":[{\"file_name\":\"\\u002e.\"}]}", "file_name '..' is outside"},
    {"{\"images\":[{\"file_name\":\"/etc/passwd\"}]}", "file_name '/etc/passwd' is outside"},
    {"{\"images\":[{\"file_name\":\"\\ud800\"}]}", "invalid escape in a string"},
    {"{\"images\":[{\"id\":1},{\"id\":1}]}", "have the same id"},
    {"{\"categories\":[{\"id\":4},{\"id\":4}]}", "have the same id"},
    {"{\"categories\":[{\"name\":null}]}", "expected a string, got null"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1}]}", "object 0 has unknown image_id 1"},
    {"{\"annotations\":[{\"image_id\":1}]}", "image_id or category_id is missing"},
    {"{\"annotations\":[{\"category_id\":1}]}", "image_id or category_id is missing"},
    {"{\"annotations\":[{\"image_id\":[]}]}", "expected a number, got an array"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"bbox\":[1,2,3]}]}",
     "bbox has 3 numbers, expected 4"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"bbox\":[1,2,3,4,5]}]}",
     "bbox has 5 numbers, expected 4"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"bbox\":{}}]}",
     "expected an array, got an object"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"bbox\":[1,2,\"3\",4]}]}",
     "expected a number, got a string"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"bbox\":[1,2,1e999,4]}]}",
     "'1e999' is out of range"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"area\":\"big\"}]}",
     "expected a number, got a string"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"area\":NaN}]}", "expected a value"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"iscrowd\":\"no\"}]}", "expected a number"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"segmentation\":7}]}",
     "must be a list of polygons"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"segmentation\":[1,2]}]}",
     "expected an array, got a number"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"segmentation\":[[1,[2]]]}]}",
     "expected a number, got an array"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"segmentation\":{\"counts\":true}}]}",
     "counts must be a string"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"segmentation\":{\"size\":[1]}}]}",
     "expected a number, got the end of an array"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"segmentation\":{\"size\":[1,2,3]}}]}",
     "expected the end of an array, got a number"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"segmentation\":{\"size\":[1,65501]}}]}",
     "size is 65501, expected 0 to 65500"},
    {"{\"annotations\":[{\"image_id\":1,\"category_id\":1,\"segmentation\":{\"counts\":[1,null]}}]}",
     "expected a number, got null"},
    {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
     "expected an object"},
    {"{\"x\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
     "deeper than max_depth"},
};

TEST(bad_coco_files) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_vision_coco c;
    for (size_t i = 0; i < sizeof bad_coco / sizeof *bad_coco; i++) {
        disk_write("gt", bad_coco[i][0], strlen(bad_coco[i][0]));
        if (!CHECK(!fl_vision_coco_load("gt", &c)) || !CHECK_ERROR(bad_coco[i][1]))
            printf("  %s\n", bad_coco[i][0]);
    }
    for (size_t n = 0; n < sizeof truth_text - 1; n++) { /* every prefix, every flipped bit */
        disk_write("gt", truth_text, n);
        CHECK(!fl_vision_coco_load("gt", &c));
        fl_error_clear();
        char copy[sizeof truth_text];
        memcpy(copy, truth_text, sizeof copy);
        copy[n] ^= (char)(1 << n % 8);
        disk_write("gt", copy, sizeof copy - 1);
        if (fl_vision_coco_load("gt", &c)) fl_vision_coco_free(&c);
        else fl_error_clear();
    }
    end(&s);
}

/* ---- the zoo ---- */

static bool load_it(void) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_vision_model("resnet18", .divide = 16, .blocks = 1, .classes = 4);
    const bool ok = m && fl_vision_load(m, "w", FL_VISION_TORCHVISION);
    fl_nn_free(m);
    fl_scope_end(&s);
    return ok;
}

/* Frozen, the norms go into the convolutions. */
TEST(frozen_resnet) {
    fl_nn_module *m = fl_vision_model("resnet50", .divide = 8, .blocks = 2, .classes = 4);
    fl_scope s = fl_scope_begin();
    fl_rng rng = {2, 0};
    fl_nn_channels_last(m);
    fl_var *x = fv_const(fl_channels_last(fl_normal(FL_SHAPE(2, 3, 64, 64), 0, 1, FL_F32, &rng)));
    fl_no_grad(true);
    fl_nn_forward(m, x);
    fl_nn_train(m, false);
    fl_tensor *want = fv_value(fl_nn_forward(m, x));
    CHECK(fl_nn_freeze(m, true));
    CHECK(fl_item(fl_all(fl_isclose(fv_value(fl_nn_forward(m, x)), want, 1e-4, 1e-5, false),
                         FL_ALL_AXES)) == 1);
    CHECK(fl_nn_freeze(m, false));
    CHECK(fl_item(fl_all(fl_eq(fv_value(fl_nn_forward(m, x)), want), FL_ALL_AXES)) == 1);
    fl_no_grad(false);
    fl_scope_end(&s);
    fl_nn_free(m);
}

TEST(networks_of_every_name) {
    static const struct {
        const char *name;
        int64_t parameters;
    } known[] = {{"alexnet", 61100840},
                 {"resnet18", 11689512},
                 {"mobilenet_v2", 3504872},
                 {"deit_ti", 5717416},
                 {"deit_s", 22050664}};
    begin();
    fl_scope s = fl_scope_begin();
    for (int i = 0; fl_vision_model_name(i); i++) {
        fl_scope step = fl_scope_begin();
        const char *who = fl_vision_model_name(i);
        const int64_t size = strstr(who, "it_") && strncmp(who, "detr", 4) ? 64 : 96;
        fl_nn_module *m = fl_vision_model(who, .divide = 8, .blocks = 1, .classes = 5, .size = size);
        REQUIRE(m);
        fl_vars y = fl_nn_forward_vars(m, FL_VARS(fv_const(fl_ones(FL_SHAPE(2, 3, size, size), FL_F32))));
        REQUIRE(y.n);
        CHECK_EQ_INT(fv_value(y.v[0])->shape[0], 2);
        CHECK_EQ_INT(fv_value(y.v[0])->shape[fv_value(y.v[0])->ndim - 1], strncmp(who, "detr", 4) ? 5 : 6);
        const bool detr = !strncmp(who, "detr", 4);
        for (int64_t divide = 16; divide <= 256 && m && fl_nn_count(m) > 400000; divide *= 2) {
            fl_nn_free(m); /* the disk here is small */
            m = detr ? fl_vision_detr(18, .divide = divide, .blocks = 1, .classes = 5, .dim = 32,
                                      .hidden = 32,
                                      .layers = 1)
                     : fl_vision_model(who, .divide = divide, .blocks = 1, .classes = 5);
        }
        REQUIRE(m && fl_nn_save(m, "w"));
        fl_nn_free(m);
        m = fl_vision_model(who, .divide = 8, .blocks = 1); /* as many classes as it has by itself */
        CHECK_EQ_INT(fl_vision_classes(m, "w", FL_VISION_TORCHVISION), 5);
        fl_nn_free(m);
        fl_scope_end(&step);
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        fl_nn_module *m = fl_vision_model(known[i].name);
        CHECK_EQ_INT(fl_nn_count(m), known[i].parameters);
        fl_nn_free(m);
    }
    fl_nn_module *m = fl_vision_model("resnet18", .divide = 16, .blocks = 1, .classes = 4);
    REQUIRE(m && fl_nn_save(m, "w"));
    fl_nn_free(m);
    m = fl_vision_model("resnet18", .divide = 16, .blocks = 1, .classes = 9); /* the head stays */
    CHECK(fl_vision_load(m, "w", FL_VISION_TORCHVISION));
    CHECK(!fl_vision_load(m, "w", FL_VISION_HUGGING_FACE));
    CHECK_ERROR("tensor 'resnet.embedder.embedder.convolution.weight' is missing (for conv1.weight)");
    fl_error_clear();
    CHECK_EQ_INT(fl_vision_classes(m, "w", FL_VISION_TIMM), 4); /* the same names */
    CHECK_EQ_INT(fl_vision_classes(m, "w", FL_VISION_HUGGING_FACE), -1);
    CHECK_ERROR("w: tensor 'classifier.1.weight' is missing (for fc.weight)"), fl_error_clear();
    CHECK_EQ_INT(fl_vision_classes(fl_nn_find(m, "conv1"), "w", FL_VISION_TORCHVISION), -1);
    CHECK_ERROR("no classification head"), fl_error_clear();
    fl_nn_free(m);
    CHECK(load_it());
    end(&s);
}

/* ---- detection ---- */

/* The least sum by trying everything. */
static double least_cost(const double *cost, int64_t rows, int64_t columns, int64_t row, unsigned taken) {
    double best = INFINITY;
    if (row == rows) return 0;
    for (int64_t j = 0; j < columns; j++)
        if (!(taken >> j & 1))
            best = fmin(best, cost[row * columns + j] +
                                  least_cost(cost, rows, columns, row + 1, taken | 1u << j));
    return best;
}

TEST(assignments_of_least_cost) {
    begin();
    fl_scope s = fl_scope_begin();
    for (int64_t seed = 0; seed < 2000; seed++) {
        fl_rng rng = fl_data_rng(3, 0, seed);
        const int64_t a = seed % 6, b = seed / 6 % 6, rows = a < b ? a : b, columns = a < b ? b : a;
        double cost[36], turned[36], sum = 0, back = 0;
        int64_t column[6], row[6];
        for (int64_t i = 0; i < rows * columns; i++) {
            cost[i] = seed % 3 ? fl_rng_uniform(&rng) - 0.5 : floor(4 * fl_rng_uniform(&rng)); /* ties */
            turned[i % columns * rows + i / columns] = cost[i];
        }
        REQUIRE(fl_vision_linear_assignment(cost, rows, columns, column) &&
                fl_vision_linear_assignment(turned, columns, rows, row));
        unsigned taken = 0;
        for (int64_t i = 0; i < rows; i++) {
            REQUIRE(column[i] >= 0 && column[i] < columns && !(taken >> column[i] & 1));
            taken |= 1u << column[i];
            sum += cost[i * columns + column[i]];
        }
        int64_t without = 0;
        for (int64_t j = 0; j < columns; j++)
            if (row[j] < 0) without++;
            else back += turned[j * rows + row[j]];
        CHECK_EQ_INT(without, columns - rows);
        CHECK_NEAR(sum, least_cost(cost, rows, columns, 0, 0), 1e-12);
        CHECK_NEAR(back, sum, 1e-12);
    }
    end(&s);
}

TEST(boxes_and_what_is_suppressed) {
    begin();
    fl_scope s = fl_scope_begin();
    const float corners[] = {0, 0, 10, 10, 1, 1, 11, 11, 20, 20, 30, 40, 0, 0, 10, 10},
                score[] = {0.5f, 0.9f, 0.1f, 0.4f};
    const int64_t groups[] = {0, 0, 0, 1};
    fl_tensor *b = fl_from_host(corners, FL_SHAPE(4, 4), FL_F32),
              *p = fl_from_host(score, FL_SHAPE(4), FL_F32);
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++) {
            fl_tensor *x = fl_vision_box_convert(b, FL_VISION_XYXY, (fl_vision_box_format)from);
            x = fl_vision_box_convert(
                fl_vision_box_convert(x, (fl_vision_box_format)from, (fl_vision_box_format)to),
                (fl_vision_box_format)to, FL_VISION_XYXY);
            CHECK(same_bits(fl_contiguous(x), b));
        }
    CHECK_NEAR(fl_item(fl_select(fl_vision_box_area(b), 0, 2)), 200, 0);
    fl_tensor *iou = fl_vision_box_iou(fl_unsqueeze(b, 1), b, false),
              *giou = fl_vision_box_iou(fl_unsqueeze(b, 1), b, true);
    CHECK_NEAR(fl_item(fl_select(fl_select(iou, 0, 0), 0, 1)), 81.0 / 119, 1e-6);
    CHECK_NEAR(fl_item(fl_select(fl_select(giou, 0, 0), 0, 2)), 0 - (1200.0 - 300) / 1200, 1e-6);
    fl_tensor *kept = fl_vision_nms(b, p, NULL, 0.5);
    CHECK(kept->shape[0] == 2 && ((int64_t *)fl_data(kept))[0] == 1 && ((int64_t *)fl_data(kept))[1] == 2);
    kept = fl_vision_nms(b, p, fl_from_host(groups, FL_SHAPE(4), FL_I64), 0.5);
    CHECK(kept->shape[0] == 3 && ((int64_t *)fl_data(kept))[1] == 3);
    end(&s);
}

/* A tiny DETR on two padded images, one without objects: losses are finite, and fall. */
TEST(a_tiny_detector_learns) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_seed(1);
    fl_nn_module *net = fl_vision_detr(18, .classes = 3, .queries = 5, .dim = 32, .heads = 2, .hidden = 64,
                                       .layers = 2, .dropout = FL_ZERO, .divide = 8, .blocks = 1);
    REQUIRE(net && fl_nn_channels_last(net));
    const int64_t labels[] = {2, 0}, count[] = {2, 0};
    const float boxes[] = {0.3f, 0.4f, 0.2f, 0.4f, 0.7f, 0.5f, 0.3f, 0.2f};
    fl_tensor *x = fl_normal(FL_SHAPE(2, 3, 64, 96), 0, 1, FL_F32, NULL),
              *mask = fl_zeros(FL_SHAPE(2, 64, 96), FL_B8);
    fl_assign(fl_slice(fl_select(mask, 0, 1), 1, 64, 96, 1), fl_ones(FL_SHAPE(64, 32), FL_B8));
    const fl_vision_targets t = {fl_from_host(labels, FL_SHAPE(2), FL_I64),
                                 fl_from_host(boxes, FL_SHAPE(2, 4), FL_F32), count, 2};
    fl_optim *optim = fl_optim_adamw(fl_nn_parameters(net), .lr = 1e-3);
    double first = 0, last = 0;
    for (int i = 0; i < 30; i++) {
        fl_scope step = fl_scope_begin();
        fl_vision_losses l;
        const fl_vars y = fl_nn_forward_vars(net, FL_VARS(fv_const(x), fv_const(mask)));
        REQUIRE(y.n == 4 && fl_vision_criterion(y, &t, &l));
        CHECK(isfinite(l.ce) && isfinite(l.l1) && isfinite(l.giou) && l.giou > 0);
        last = fl_item(fv_value(l.total));
        if (!i) first = last;
        fl_optim_zero_grad(optim);
        REQUIRE(fl_backward(l.total) && fl_optim_step(optim));
        fl_scope_end(&step);
    }
    CHECK(last < 0.6 * first);
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_scope_end(&s);
}

static bool criterion_it(void) {
    fl_scope s = fl_scope_begin();
    const int64_t labels[] = {1, 0, 1}, count[] = {2, 1};
    const float box[] = {0.3f, 0.4f, 0.2f, 0.4f, 0.7f, 0.5f, 0.3f, 0.2f, 0.5f, 0.5f, 0.5f, 0.5f};
    const fl_vision_targets t = {fl_from_host(labels, FL_SHAPE(3), FL_I64),
                                 fl_from_host(box, FL_SHAPE(3, 4), FL_F32), count, 2};
    fl_tensor *kinds = fl_ones(FL_SHAPE(2, 2, 4, 3), FL_F32), *boxes = fl_ones(FL_SHAPE(2, 2, 4, 4), FL_F32);
    fl_var *k = fv_const(kinds), *b = fv_const(boxes);
    fl_vision_losses l;
    const bool ok = t.labels && t.boxes &&
                    fl_vision_criterion(FL_VARS(fv_select(k, 0, 1), fv_select(b, 0, 1), k, b), &t, &l);
    if (ok) CHECK(l.giou > 0 && l.ce > 0 && fl_item(fv_value(l.total)) > l.ce);
    fl_scope_end(&s);
    return ok;
}

TEST(a_criterion_without_memory) {
    begin();
    fl_scope s = fl_scope_begin();
    CHECK(criterion_it());
    CHECK(sweep_heap(criterion_it, false) > 10), CHECK(sweep_buffers(criterion_it, false) > 3);
    end(&s);
}

/* ---- degenerate sizes and numbers: a result or an error, whatever is asked ---- */

static const double odd[] = {0, 1, -1, 0.5, 3, 1e5, 1e300, -1e300, INFINITY, -INFINITY, NAN};
static const int64_t odd_whole[] = {0, 1, -1, 2, 500, 65501, INT64_MAX, INT64_MIN};
enum { ODD = sizeof odd / sizeof *odd, ODD_WHOLE = sizeof odd_whole / sizeof *odd_whole };

static int apply_odd(fl_vision_transform step, fl_vision_item item) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = fl_data_rng(1, 0, 0);
    const bool ok = fl_vision_apply(&step, 1, &item, &rng);
    CHECK_EQ_INT(ok, !fl_error());
    if (ok) CHECK(item.image && item.image->dtype == FL_U8 && fl_numel(item.image) > 0);
    fl_error_clear();
    fl_scope_end(&s);
    return ok;
}

TEST(odd_sizes_and_numbers) {
    begin();
    fl_scope s = fl_scope_begin();
    static const int64_t size[][3] = {{3, 0, 5},  {3, 5, 0},  {0, 5, 5}, {3, 1, 1},
                                      {1, 1, 40}, {4, 40, 1}, {3, 9, 7}};
    int done = 0, tried = 0;
    for (size_t k = 0; k < sizeof size / sizeof *size; k++) {
        const int64_t h = size[k][1], w = size[k][2];
        const float box[] = {0, 0, 1, 1, NAN, 0, INFINITY, 1e30f};
        const fl_vision_item item = {
            fl_permute(fl_zeros(FL_SHAPE(h, w, size[k][0]), FL_U8), 3, (int[]){2, 0, 1}),
            fl_from_host(box, FL_SHAPE(2, 4), FL_F32), fl_zeros(FL_SHAPE(2), FL_I64),
            fl_zeros(FL_SHAPE(2, h, w), FL_U8), fl_zeros(FL_SHAPE(2), FL_F32)};
        for (int i = 0; i < ODD; i++) {
            const double v = odd[i];
            const fl_vision_transform steps[] = {
                fl_vision_random_resized_crop(4, v, 1, FL_VISION_BICUBIC), fl_vision_pad(1, 0, 2, 0, v),
                fl_vision_random_resized_crop(4, 0, v, FL_VISION_BOX), fl_vision_color_jitter(v, v, v, v),
                fl_vision_random_affine(v, 0.1, 0.1, 0, 0), fl_vision_random_affine(10, v, v, v, v),
                fl_vision_random_erasing(1, v), fl_vision_cutout(2, v), fl_vision_random_horizontal_flip(v)};
            for (size_t j = 0; j < sizeof steps / sizeof *steps; j++, tried++)
                done += apply_odd(steps[j], item);
            for (int how = FL_VISION_IDENTITY; how <= FL_VISION_BLUR; how++, tried++)
                done += apply_odd(fl_vision_random_adjust((fl_vision_adjustment)how, v, v, 1), item);
        }
        for (int i = 0; i < ODD_WHOLE; i++) {
            const int64_t v = odd_whole[i];
            const fl_vision_transform steps[] = {fl_vision_resize(v, 0, FL_VISION_BILINEAR),
                                                 fl_vision_resize(3, v, FL_VISION_LANCZOS),
                                                 fl_vision_resize_to(v, 3, FL_VISION_BOX),
                                                 fl_vision_center_crop(v),
                                                 fl_vision_random_crop(v, 0),
                                                 fl_vision_random_crop(2, v),
                                                 fl_vision_cutout(v, 0),
                                                 fl_vision_random_resized_crop(v, 0, 0, FL_VISION_BILINEAR),
                                                 fl_vision_pad(v, 1, 1, 1, 7),
                                                 fl_vision_pad(v, v, v, v, 7),
                                                 fl_vision_random_size_crop(v, 9),
                                                 fl_vision_random_size_crop(1, v),
                                                 fl_vision_rand_augment(3, v),
                                                 fl_vision_auto_augment(),
                                                 fl_vision_trivial_augment_wide(),
                                                 fl_vision_deit_augment(),
                                                 fl_vision_random_choice(NULL, (int)v % 2)};
            for (size_t j = 0; j < sizeof steps / sizeof *steps; j++, tried++)
                done += apply_odd(steps[j], item);
        }
    }
    CHECK(done > tried / 4 && done < tried);
    fl_vision_coco bare = {0}; /* a mask as text, in a file without a number */
    fl_vision_rle of_text;
    REQUIRE(fl_vision_coco_mask(&bare, &(fl_vision_object){.rle = "4", .h = 2, .w = 2}, &of_text));
    CHECK_EQ_INT(fl_vision_rle_area(&of_text), 0);
    fl_heap_free(of_text.run);
    fl_tensor *image = fl_zeros(FL_SHAPE(3, 5, 4), FL_U8);
    for (int i = 0; i < ODD; i++)
        for (int j = 0; j < ODD; j++) {
            const float v = (float)odd[i], u = (float)odd[j], box[] = {v, u, u, v, u, v, v, u};
            fl_tensor *b = fl_from_host(box, FL_SHAPE(2, 4), FL_F32);
            CHECK(fl_vision_draw_boxes(image, b, .width = 1 + i) != NULL && fl_vision_box_iou(b, b, true));
            fl_tensor *kept = fl_vision_nms(b, fl_from_host(box, FL_SHAPE(2), FL_F32), NULL, odd[j]);
            CHECK(!kept == (isnan(v) || isnan(u))); /* a score is NaN */
            fl_error_clear();
            fl_vision_resize_opts o = {.box = {odd[i], 0, odd[j], 4}};
            CHECK(!fl_vision_resize_image_opt(image, 3, 3, o) == !!fl_error());
            fl_error_clear();
            fl_vision_rle r;
            const double xy[] = {odd[i], odd[j], 1e5, odd[i], odd[j], -1e5};
            const bool ok = fl_vision_rle_polygon(xy, 3, 5 * (i % 2), 4 * (j % 2), &r);
            CHECK_EQ_INT(ok, !fl_error());
            fl_error_clear();
            if (!ok) continue;
            double around[4];
            unsigned char mask[20];
            fl_vision_rle all[] = {r, r}, both;
            fl_vision_rle_box(&r, around), fl_vision_rle_decode(&r, mask);
            CHECK(fl_vision_rle_merge(all, 2, j % 2, &both));
            CHECK(fl_vision_rle_area(&both) == fl_vision_rle_area(&r));
            fl_heap_free(r.run), fl_heap_free(both.run);
        }
    end(&s);
}

/* ---- objects and what is drawn ---- */

static const char objects_json[] =
    "{\"images\":[{\"id\":7,\"height\":10,\"width\":20,\"file_name\":\"a.ppm\"},{\"id\":9,\"height\":6,"
    "\"width\":8,"
    "\"file_name\":\"b.ppm\"}],\"categories\":[{\"id\":3,\"name\":\"x\"}],\"annotations\":["
    "{\"id\":1,\"image_id\":7,\"category_id\":3,\"bbox\":[2,1,30,4],\"area\":8,\"iscrowd\":0,"
    "\"segmentation\":[[2,1,2,5,6,5,6,1]]},{\"id\":2,\"image_id\":7,\"category_id\":3,\"bbox\":[0,0,5,5],"
    "\"iscrowd\":1},"
    "{\"id\":3,\"image_id\":7,\"category_id\":3,\"bbox\":[25,0,5,5]},{\"id\":4,\"image_id\":9,\"category_"
    "id\":3,"
    "\"bbox\":[1,1,2,2],\"segmentation\":{\"size\":[6,8],\"counts\":[8,4,36]}}]}";

TEST(batches_with_objects) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_vision_coco coco;
    char ppm[700] = "P5 20 10 255\n";
    memset(ppm + 13, 100, 200);
    disk_write("o.json", objects_json, sizeof objects_json - 1);
    disk_write("./a.ppm", ppm, 213);
    memcpy(ppm, "P5 8 6 255\n", 11);
    disk_write("./b.ppm", ppm, 11 + 48);
    REQUIRE(fl_vision_coco_load("o.json", &coco));
    const fl_vision_transform flip = fl_vision_random_horizontal_flip(1);
    fl_data_set *set = fl_vision_batch(fl_vision_objects(&coco, ".", .masks = true), 2, .objects = true,
                                       .steps = &flip, .n_steps = 1);
    fl_data_sample b;
    REQUIRE(set && fl_data_size(set) == 1 && fl_data_get(set, 0, &b) && b.n == 7);
    const int64_t counts[] = {1, 1}, info[] = {7, 10, 20, 9, 6, 8}, labels[] = {3, 3};
    const float boxes[] = {0.45f, 0.3f, 0.9f, 0.4f, 0.75f, 1.0f / 3, 0.25f, 1.0f / 3};
    CHECK(!memcmp(fl_data(b.t[3]), labels, sizeof labels) &&
          !memcmp(fl_data(b.t[4]), counts, sizeof counts) && !memcmp(fl_data(b.t[5]), info, sizeof info));
    for (int k = 0; k < 8; k++) CHECK_NEAR(((float *)fl_data(b.t[2]))[k], boxes[k], 1e-6);
    CHECK(b.t[0]->shape[2] == 10 && b.t[0]->shape[3] == 20 && b.t[6]->shape[1] == 10 &&
          b.t[6]->shape[2] == 20);
    const bool *none = fl_data(b.t[1]);
    const unsigned char *mask = fl_data(b.t[6]);
    int64_t cells[2] = {0, 0};
    for (int64_t i = 0; i < 200; i++) {
        CHECK_EQ_INT(none[i], 0);
        CHECK_EQ_INT(none[200 + i], i / 20 >= 6 || i % 20 >= 8);
        cells[0] += mask[i], cells[1] += mask[200 + i];
    }
    CHECK_EQ_INT(cells[0], 16),
        CHECK_EQ_INT(cells[1], 4); /* the second's: half of a column, at x 1, then at 6 */
    CHECK(mask[20 * 1 + 15] && !mask[20 * 1 + 18] && mask[200 + 20 * 2 + 6]);
    CHECK_NEAR(fl_item(fl_select(fl_select(fl_select(fl_select(b.t[0], 0, 1), 0, 0), 0, 7), 0, 3)), 0, 0);
    fl_data_free(set);
    set = fl_vision_objects(&coco, ".", .masks = true, .max_pixels = 10 * 20 - 1);
    CHECK(set && !fl_data_get(set, 0, &b));
    CHECK_ERROR("fl_vision_objects: image 7: 1 masks of 10 x 20 pixels exceed max_pixels (199)");
    fl_error_clear();
    CHECK(set && fl_data_get(set, 1, &b)); /* 6 x 8 */
    fl_data_free(set);
    set = fl_vision_batch(fl_vision_objects(&coco, ".", .masks = true), 1, .objects = true,
                          .max_pixels = 199);
    coco.image[0].h = 2736, coco.image[0].w = 65432;
    CHECK(set && !fl_data_get(set, 0, &b));
    CHECK_ERROR("image 7: 2 masks of 2736 x 65432 pixels exceed max_pixels (178956970)");
    fl_error_clear(), coco.image[0].h = 10, coco.image[0].w = 20;
    CHECK(set && !fl_data_get(set, 0, &b));
    CHECK_ERROR("./a.ppm: offset 12: image is 20 x 10 pixels, more than max_pixels (199)");
    fl_error_clear(), fl_data_free(set);
    set = fl_vision_batch(fl_data_tensors((fl_tensor *[]){fl_zeros(FL_SHAPE(2, 3, 4, 4), FL_U8)}, 1), 2,
                          .objects = true);
    CHECK(set && !fl_data_get(set, 0, &b));
    CHECK_ERROR("sample 0 has 1 fields, expected 5");
    fl_error_clear();
    fl_data_free(set);
    fl_vision_coco_free(&coco);
    end(&s);
}

/* Where no part of that area fits, the largest one in the middle that is not too wide or high is taken. */
TEST(random_resized_crops_that_do_not_fit) {
    begin();
    fl_scope s = fl_scope_begin();
    static const int64_t cases[][6] = {{3, 100, 0, 48, 3, 4},  {100, 3, 48, 0, 4, 3}, {6, 8, 0, 0, 6, 8},
                                       {8, 6, 0, 0, 8, 6},     {6, 9, 0, 0, 6, 8},    {9, 6, 0, 0, 8, 6},
                                       {10, 31, 0, 9, 10, 13}, {31, 10, 9, 0, 13, 10}, {7, 7, 0, 0, 7, 7}};
    const fl_vision_transform step = fl_vision_random_resized_crop(5, 2, 2, FL_VISION_BICUBIC);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t *c = cases[i];
        fl_vision_item item = {patterned(3, c[0], c[1], FL_U8), NULL, NULL, NULL, NULL};
        fl_tensor *part = fl_slice(fl_slice(item.image, 1, c[2], c[2] + c[4], 1), 2, c[3], c[3] + c[5], 1);
        fl_tensor *want = fl_vision_resize_image(part, 5, 5, .filter = FL_VISION_BICUBIC);
        fl_rng rng = fl_data_rng(i, 0, 0);
        CHECK(fl_vision_apply(&step, 1, &item, &rng) && want &&
              same_bits(fl_contiguous(item.image), fl_contiguous(want)));
    }
    end(&s);
}

TEST(wrong_batches) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_zeros(FL_SHAPE(3, 3, 2, 2), FL_U8), *set_of[] = {x, fl_arange(-1, 2, 1, FL_I64)};
    const fl_vision_transform step = fl_vision_cutout(1, 0);
    CHECK(!fl_vision_batch(NULL, 1)), CHECK_ERROR("the set is NULL");
    static const struct {
        int64_t size;
        int n_steps;
        bool steps;
        double mean, std;
        const char *want;
    } cases[] = {{1, 0, false, 0, 0, NULL},
                 {INT32_MAX, 1, true, 0, 1, NULL},
                 {1, 0, true, -5, 0.5, NULL},
                 {0, 0, false, 0, 0, "size 0, 0 steps"},
                 {-1, 0, false, 0, 0, "size -1, 0 steps"},
                 {(int64_t)INT32_MAX + 1, 0, false, 0, 0, "size 2147483648, 0 steps"},
                 {1, -1, true, 0, 0, "size 1, -1 steps"},
                 {1, 1, false, 0, 0, "size 1, 1 steps"},
                 {1, 0, false, (double)NAN, 0, "channel 3: mean nan, std 0"},
                 {1, 0, false, 0, -1, "channel 3: mean 0, std -1"},
                 {1, 0, false, 0, (double)NAN, "channel 3: mean"},
                 {1, 0, false, 0, (double)INFINITY, "channel 3: mean 0, std inf"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_data_set *set = fl_vision_batch(fl_data_tensors(&x, 1), cases[i].size,
                                           .steps = cases[i].steps ? &step : NULL, .n_steps = cases[i].n_steps,
                                           .mean = {0, 0, 0, cases[i].mean}, .std = {0, 0, 0, cases[i].std});
        CHECK_EQ_INT(set != NULL, !cases[i].want);
        if (cases[i].want) CHECK_ERROR(cases[i].want);
        fl_data_free(set);
    }
    /* classes -1, 0 and 1, in batches of one, of which two are known, or one */
    for (int classes = 1; classes <= 2; classes++) {
        fl_data_set *set = fl_vision_mixup(fl_vision_batch(fl_data_tensors(set_of, 2), 1), classes);
        fl_data_sample b;
        for (int64_t i = 0; i < 3; i++) {
            const bool ok = i == 1 || (i == 2 && classes == 2);
            CHECK_EQ_INT(set && fl_data_get(set, i, &b), ok);
            if (ok) CHECK_NEAR(((float *)fl_data(b.t[1]))[i - 1], 1 - 0.1 + 0.1 / classes, 1e-6);
            else CHECK_ERROR(i ? "fl_vision_mixup: label is 1, expected 0 to 0" :
                             "fl_vision_mixup: label is -1,");
        }
        fl_data_free(set);
    }
    end(&s);
}

TEST(mixed_batches_and_repeated_samples) {
    begin();
    fl_scope s = fl_scope_begin();
    enum { N = 64, K = 4 };
    fl_tensor *x = fl_data_host_tensor(FL_SHAPE(N, 6, 5, 1), FL_U8),
              *y = fl_data_host_tensor(FL_SHAPE(N), FL_I64);
    for (int64_t i = 0; i < N; i++) {
        memset((char *)fl_data(x) + 30 * i, (int)(i % K == 0 ? 255 : 0), 30);
        ((int64_t *)fl_data(y))[i] = i % K;
    }
    x = fl_permute(x, 4, (int[]){0, 3, 1, 2});
    double mean[2] = {0}, square[2] = {0};
    for (int cut = 0; cut < 2; cut++) {
        fl_data_set *set = fl_vision_batch(fl_data_tensors((fl_tensor *[]){x, y}, 2), 8);
        set = fl_vision_mixup(set, K, .mixup = cut ? FL_ZERO : 0.8, .cutmix = cut ? 1 : FL_ZERO, .seed = 3);
        REQUIRE(set);
        int64_t n = 0;
        uint32_t sum = 0; /* of the first epoch, in thousandths */
        for (int64_t e = 0; e < 50; e++) {
            CHECK(fl_data_set_epoch(set, e));
            for (int64_t i = 0; i < fl_data_size(set); i++, n++) {
                fl_scope step = fl_scope_begin();
                fl_data_sample b, again;
                REQUIRE(fl_data_get(set, i, &b) && fl_data_get(set, i, &again) &&
                        same_bits(b.t[0], again.t[0]));
                const float *t = fl_data(b.t[1]);
                for (int k = 0; !e && k < 2; k++) {
                    fl_tensor *whole = fl_cast(fl_mul(fl_contiguous(b.t[k]), fl_num(1000.3)), FL_I32);
                    sum = fl_data_crc32c(sum, fl_data(whole), (size_t)fl_numel(whole) * sizeof(int32_t));
                }
                /* image 0 is of class 0 and white, its partner of class 3 and black */
                const double v = ((double)t[0] - 0.025) / 0.9,
                             white = fl_item(fl_mean(fl_select(b.t[0], 0, 0), FL_ALL_AXES));
                CHECK_NEAR(white, v, 1e-5);
                CHECK_NEAR(t[0] + t[1] + t[2] + t[3], 1, 1e-5), CHECK_NEAR(t[1], 0.025, 1e-6);
                mean[cut] += v, square[cut] += v * v;
                fl_scope_end(&step);
            }
        }
        CHECK_EQ_INT(sum, cut ? 165100973 : 2541710892);
        mean[cut] /= (double)n, square[cut] /= (double)n;
        fl_data_free(set);
    }
    /* Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)) */
    CHECK_NEAR(mean[0], 0.5, 0.06), CHECK_NEAR(square[0] - mean[0] * mean[0], 1 / (4 * 2.6), 0.02);
    CHECK(mean[1] > 0.5 && mean[1] < 0.9); /* boxes are cut off at the border, and to whole pixels */
    fl_data_set *set = fl_vision_mixup(fl_data_tensors((fl_tensor *[]){x, y}, 2), K);
    fl_data_sample b;
    CHECK(set && !fl_data_get(set, 0, &b));
    CHECK_ERROR("batch 0: expected images f32");
    fl_error_clear(), fl_data_free(set);
    int seen[N] = {0}, ids[3 * N] = {0};
    for (int rank = 0; rank < 2; rank++) {
        set = fl_vision_repeated_augmentation(fl_data_tensors((fl_tensor *[]){y}, 1), 3, 1, rank, 2);
        REQUIRE(set && fl_data_set_epoch(set, 5) && fl_data_size(set) == N / 2);
        for (int64_t i = 0; i < N / 2; i++) {
            const int64_t id = fl_data_id(set, i);
            REQUIRE(id >= 0 && id < 3 * N && fl_data_get(set, i, &b));
            CHECK_EQ_INT((int64_t)fl_item(b.t[0]), id % N % K);
            seen[id % N]++, ids[id]++;
        }
        fl_data_free(set);
    }
    int three = 0;
    for (int i = 0; i < 3 * N; i++) CHECK(ids[i] < 2);
    for (int i = 0; i < N; i++) three += seen[i] == 3;
    CHECK_EQ_INT(three, N / 3);
    end(&s);
}

TEST(frames_masks_and_letters) {
    begin();
    fl_scope s = fl_scope_begin();
    const float boxes[] = {2, 3, 30, 25, -5, -5, 60, 60};
    const char *const labels[] = {"I", NULL};
    fl_tensor *image = fl_zeros(FL_SHAPE(3, 40, 50), FL_U8);
    fl_tensor *t = fl_vision_draw_boxes(image, fl_from_host(boxes, FL_SHAPE(2, 4), FL_F32), .labels = labels,
                                        .width = 2);
    uint8_t rgb[3];
    fl_vision_colour(0, rgb);
    CHECK(!rgb[0] && !rgb[1] && !rgb[2]);
    fl_vision_colour(1, rgb);
    REQUIRE(t);
    CHECK(fl_item(fl_sum(image, FL_ALL_AXES)) == 0);
    CHECK_EQ_INT(at(t, 0, 0, 20), rgb[0]), CHECK_EQ_INT(at(t, 1, 39, 49), rgb[1]),
        CHECK_EQ_INT(at(t, 0, 10, 10), 0);
    /* a white I of 5 x 7 dots, one dot from the corner of the box: its beam is three dots wide */
    CHECK_EQ_INT(at(t, 0, 4, 4), 255), CHECK_EQ_INT(at(t, 0, 4, 5), 255), CHECK_EQ_INT(at(t, 0, 7, 5), 255);
    CHECK_EQ_INT(at(t, 0, 7, 4), 0), CHECK_EQ_INT(at(t, 0, 10, 6), 255);
    fl_tensor *masks = fl_zeros(FL_SHAPE(2, 40, 50), FL_U8);
    CHECK(fl_assign(fl_slice(masks, 1, 10, 20, 1), fl_int(1)));
    const uint8_t colours[] = {10, 20, 30, 100, 0, 50};
    t = fl_vision_draw_masks(image, masks, .colours = colours, .alpha = 0.5);
    REQUIRE(t);
    CHECK_EQ_INT(at(t, 0, 15, 0), 50), CHECK_EQ_INT(at(t, 2, 15, 49), 25), CHECK_EQ_INT(at(t, 0, 25, 0), 0);
    fl_tensor *around = fl_vision_masks_to_boxes(masks),
              *cut = fl_vision_box_clip(fl_from_host(boxes, FL_SHAPE(2, 4), FL_F32), 20, 25);
    const float want[] = {0, 10, 49, 19, 0, 10, 49, 19}, clipped[] = {2, 3, 25, 20, 0, 0, 25, 20};
    CHECK(around && cut && !memcmp(fl_data(around), want, sizeof want) &&
          !memcmp(fl_data(cut), clipped, sizeof clipped));
    const float logits[] = {0, 9, 1, 5, 0, 9}, where[] = {0.5f, 0.5f, 0.2f, 0.4f, 0.25f, 0.75f, 0.5f, 0.5f};
    const int64_t size[] = {100, 200};
    fl_vision_detections d;
    REQUIRE(fl_vision_detr_postprocess(fl_from_host(logits, FL_SHAPE(1, 2, 3), FL_F32),
                                       fl_from_host(where, FL_SHAPE(1, 2, 4), FL_F32),
                                       fl_from_host(size, FL_SHAPE(1, 2), FL_I64), &d));
    CHECK(((int64_t *)fl_data(d.labels))[0] == 1 && ((int64_t *)fl_data(d.labels))[1] == 0);
    CHECK_NEAR(((float *)fl_data(d.scores))[1], exp(5) / (exp(5) + 1 + exp(9)), 1e-6);
    for (int k = 0; k < 4; k++)
        CHECK_NEAR(((float *)fl_data(d.boxes))[k], ((float[]){80, 30, 120, 70})[k], 1e-4);
    end(&s);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
