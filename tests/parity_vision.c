/* parity_vision.c - transforms of images beside Pillow's and torchvision's: tests/parity_vision.py compares

   parity_vision                 runs the script by PEER_PYTHON (Pillow, torchvision); skips without
   parity_vision CASES OUT       for the script: a line is "resize h w c seed oh ow filter y0 x0 y1 x1",
                                 "change h w c seed how v bilinear size", "crop h w c seed size" or
                                 "policy h w c seed which magnitude" (0 RandAugment's, 1 TrivialAugmentWide's,
                                 2 AutoAugment's), by the random numbers that "draws 1 n 1 seed" tells, 8
                                 bytes each; OUT gets the numbers h, w, c (i32) and the pixels of each */
#include "../fl_vision.h"
#include "test.h"

static fl_tensor *picture(int64_t h, int64_t w, int64_t c, uint64_t state) {
    fl_vision_pixels x;
    fl_tensor *t = fl_vision_image(c, h, w, &x);
    for (int64_t i = 0; t && i < h * w * c; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const double smooth =
            128 + 90 * sin((double)(i % (w * c)) * 0.05) + 30 * cos((double)(i / (w * c)) * 0.1);
        x.p[i] = (unsigned char)((state >> 60) % 5 < 2 ? state >> 40 : (uint64_t)smooth);
    }
    return t;
}

static fl_tensor *result(const char *kind, const char *line) {
    long long h, w, c, seed, a, b, k;
    double v[4];
    int n = 0;
    sscanf(line, "%*s %lld %lld %lld %lld%n", &h, &w, &c, &seed, &n);
    fl_tensor *t = picture(h, w, c, (uint64_t)seed);
    line += n;
    if (!strcmp(kind, "resize") &&
        sscanf(line, "%lld %lld %lld %lf %lf %lf %lf", &a, &b, &k, v, v + 1, v + 2, v + 3) == 7)
        return fl_vision_resize_image(t, a, b, .filter = (fl_vision_filter)k,
                                      .box = {v[0], v[1], v[2], v[3]});
    if (!strcmp(kind, "change") && sscanf(line, "%lld %lf %lld %lld", &k, v, &a, &b) == 4)
        return fl_vision_adjust(t, (fl_vision_adjustment)k, v[0], .bilinear = a, .size = (int)b);
    if (!strcmp(kind, "crop") && sscanf(line, "%lld", &a) == 1) {
        fl_vision_item item = {.image = t};
        const fl_vision_transform step = fl_vision_center_crop(a);
        return fl_vision_apply(&step, 1, &item, NULL) ? item.image : NULL;
    }
    fl_rng rng = fl_data_rng((uint64_t)seed, 0, 0);
    if (!strcmp(kind, "draws")) {
        fl_vision_pixels x;
        t = fl_vision_image(1, 1, 8 * w, &x);
        for (int64_t i = 0; t && i < w; i++) {
            const double u = fl_rng_uniform(&rng);
            memcpy(x.p + 8 * i, &u, 8);
        }
        return t;
    }
    if (!strcmp(kind, "policy") && sscanf(line, "%lld %lld", &a, &b) == 2) {
        fl_vision_item item = {.image = t};
        const fl_vision_transform step[] = {fl_vision_rand_augment(1, b), fl_vision_trivial_augment_wide(),
                                            fl_vision_auto_augment()};
        return fl_vision_apply(&step[a], 1, &item, &rng) ? item.image : NULL;
    }
    return NULL;
}

static int run_cases(const char *cases, const char *out) {
    FILE *f = fopen(cases, "r"), *to = fopen(out, "wb");
    char line[400], kind[40];
    while (f && to && fgets(line, sizeof line, f) && sscanf(line, "%39s", kind) == 1) {
        fl_scope s = fl_scope_begin();
        fl_tensor *t = result(kind, line);
        fl_vision_pixels x = {0};
        if (t && fl_vision_pixels_of(&t, &x)) {
            const int32_t head[] = {(int32_t)x.h, (int32_t)x.w, (int32_t)x.c};
            fwrite(head, sizeof head, 1, to);
            for (int64_t y = 0; y < x.h; y++) fwrite(x.p + y * x.row, 1, (size_t)(x.w * x.c), to);
        } else fprintf(stderr, "%s%s\n", line, fl_error());
        fl_scope_end(&s);
    }
    return !f || !to || fclose(f) || fclose(to);
}

TEST(pillow_and_torchvision) {
    const char *python = getenv("PEER_PYTHON");
    char command[1000], self[500];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (!python || !*python || n < 0) SKIP("PEER_PYTHON is not set: Pillow and torchvision");
    self[n] = 0;
    snprintf(command, sizeof command, "%s tests/parity_vision.py '%s' %s", python, self,
             test_full() ? "500" : "40");
    CHECK_EQ_INT(system(command), 0);
}

int main(int argc, char **argv) {
    if (argc == 3 && argv[1][0] != '-') return run_cases(argv[1], argv[2]);
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
