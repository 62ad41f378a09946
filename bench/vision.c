/* bench/vision.c - decoding, transforms, batches, average precision, assignments and a DETR step

   Compared with Pillow, plain libjpeg-turbo, torchvision, DataLoader, pycocotools, faster-coco-eval, SciPy
   and transformers if PEER_PYTHON has them (make bench-vision ARGS="[part ...]"; all parts by default).

   CPU seconds, alternating, medians of the rounds; a ratio is theirs / ours. Transforms, decoding and the
   DETR step: one thread; batches: two threads, or workers, whose seconds count too; AP: two threads. JPEG
   files: ../shared/data/imagenet-sample/val, or FOLDER in the environment. MB=450: size of the JSON. */
#define _GNU_SOURCE
#include "bench.h"
#include "peer.h"
#ifdef FL_USE_JPEG
#include <jpeglib.h>
#endif
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { ROUNDS = 5, FILES = 99 };
static const char *folder = "../shared/data/imagenet-sample/val";
static fl_tensor *bytes[FILES], *image[FILES], *cut[2][8];
static int n_files, n_wanted;
static char **wanted;
static bench_peer peer;

static bool part(const char *name) {
    bool on = !n_wanted;
    for (int i = 0; i < n_wanted; i++) on = on || !strcmp(wanted[i], name);
    return on;
}

static void check(bool ok) {
    if (ok) return;
    fprintf(stderr, "%s\n", fl_error());
    exit(1);
}

/* CPU seconds, of all threads. */
static double cpu(void (*f)(void)) {
    const clock_t start = clock();
    f();
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

/* ---- decoding, resizing ---- */

static void decode(void) {
    for (int i = 0; i < n_files; i++) {
        fl_scope s = fl_scope_begin();
        check(fl_vision_decode(fl_data(bytes[i]), (size_t)fl_numel(bytes[i]), .as_stored = true) != NULL);
        fl_scope_end(&s);
    }
}

#ifdef FL_USE_JPEG
/* The same by the library alone: what it costs at least. */
static void decode_bare(void) {
    for (int i = 0; i < n_files; i++) {
        struct jpeg_decompress_struct c;
        struct jpeg_error_mgr e;
        c.err = jpeg_std_error(&e);
        jpeg_create_decompress(&c);
        jpeg_mem_src(&c, fl_data(bytes[i]), (unsigned long)fl_numel(bytes[i]));
        jpeg_read_header(&c, TRUE);
        c.out_color_space = JCS_RGB;
        jpeg_start_decompress(&c);
        unsigned char *p = fl_heap_alloc((size_t)c.output_width * c.output_height * 3);
        while (c.output_scanline < c.output_height) {
            JSAMPROW row = p + (size_t)c.output_scanline * c.output_width * 3;
            jpeg_read_scanlines(&c, &row, 1);
        }
        jpeg_finish_decompress(&c), jpeg_destroy_decompress(&c);
        fl_heap_free(p);
    }
}

static void beside_bare(void) {
    double ratio[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) ratio[r] = cpu(decode_bare), ratio[r] /= cpu(decode);
    bench_line("decode:libjpeg-turbo bare:ratio", bench_median(ratio, ROUNDS), "x", "theirs / ours");
}
#else
static void beside_bare(void) {}
#endif

static void resize(void) {
    for (int i = 0; i < n_files; i++) {
        fl_scope s = fl_scope_begin();
        check(fl_vision_resize_image(image[i], 224, 224) != NULL);
        fl_scope_end(&s);
    }
}

/* ---- transforms: a step on each of 8 images, 4 times ---- */

static fl_vision_transform step_now;
static int size_now;

static void transform(void) {
    for (int i = 0; i < 32; i++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = fl_data_rng(1, 0, i);
        fl_vision_item item = {.image = cut[size_now][i % 8]};
        check(fl_vision_apply(&step_now, 1, &item, &rng));
        fl_scope_end(&s);
    }
}

static void transforms(void) {
    const struct {
        const char *name;
        fl_vision_transform step;
    } all[] = {{"horizontal_flip", fl_vision_random_horizontal_flip(1)},
               {"vertical_flip", fl_vision_random_vertical_flip(1)},
               {"center_crop", fl_vision_center_crop(200)},
               {"pad", fl_vision_pad(16, 16, 16, 16, 0)},
               {"resize", fl_vision_resize_to(160, 160, FL_VISION_BILINEAR)},
               {"resize_bicubic", fl_vision_resize_to(160, 160, FL_VISION_BICUBIC)},
               {"resize_up", fl_vision_resize_to(400, 400, FL_VISION_BILINEAR)},
               {"brightness", fl_vision_random_adjust(FL_VISION_BRIGHTNESS, 1.3, 1.3, 1)},
               {"contrast", fl_vision_random_adjust(FL_VISION_CONTRAST, 1.3, 1.3, 1)},
               {"saturation", fl_vision_random_adjust(FL_VISION_SATURATION, 1.3, 1.3, 1)},
               {"hue", fl_vision_random_adjust(FL_VISION_HUE, 0.1, 0.1, 1)},
               {"grayscale", fl_vision_random_adjust(FL_VISION_GRAYSCALE, 0, 0, 1)},
               {"sharpness", fl_vision_random_adjust(FL_VISION_SHARPNESS, 1.5, 1.5, 1)},
               {"posterize", fl_vision_random_adjust(FL_VISION_POSTERIZE, 4, 4, 1)},
               {"solarize", fl_vision_random_adjust(FL_VISION_SOLARIZE, 128, 128, 1)},
               {"autocontrast", fl_vision_random_adjust(FL_VISION_AUTOCONTRAST, 0, 0, 1)},
               {"equalize", fl_vision_random_adjust(FL_VISION_EQUALIZE, 0, 0, 1)},
               {"invert", fl_vision_random_adjust(FL_VISION_INVERT, 0, 0, 1)},
               {"rotate", fl_vision_random_adjust(FL_VISION_ROTATE, 15, 15, 1)},
               {"shear", fl_vision_random_adjust(FL_VISION_SHEAR_X, 0.2, 0.2, 1)},
               {"blur", fl_vision_random_adjust(FL_VISION_BLUR, 1, 1, 1)}};
    double logs = 0, least = 1e9;
    int n = 0;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        for (size_now = 0; size_now < 2; size_now++, n++) {
            char job[64];
            const char *const theirs[] = {job, NULL};
            snprintf(job, sizeof job, "%s %s", all[k].name, size_now ? "375x500" : "224x224");
            step_now = all[k].step;
            const double ratio = bench_beside(&peer, 3, job, transform, theirs, 32, "images/s");
            logs += log(ratio), least = ratio < least ? ratio : least;
        }
    bench_line("transforms: geometric mean", exp(logs / n), "x", "theirs / ours");
    bench_line("transforms: least", least, "x", "theirs / ours");
}

/* ---- training batches ---- */

static bool region;

static fl_vision_transform train[2]; /* random resized crop 224, flip */
static int threads;

static void samples(void) {
    for (int64_t i = 0; i < n_files; i++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = fl_data_rng(1, 0, i);
        fl_vision_item item = {.image = fl_vision_decode(fl_data(bytes[i]), (size_t)fl_numel(bytes[i]))};
        check(item.image && fl_vision_apply(train, 2, &item, &rng));
        fl_scope_end(&s);
    }
}

/* Decoded, transformed, normalised. */
static void batches(void) {
    fl_data_set *set =
        fl_vision_batch(fl_vision_folder(folder), 16, .steps = train, .n_steps = 2, .region = region,
                        .mean = FL_VISION_IMAGENET_MEAN, .std = FL_VISION_IMAGENET_STD);
    set = fl_data_prefetch(set, threads, 4);
    for (int64_t i = 0; i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        check(fl_data_get(set, i, &b));
        fl_scope_end(&s);
    }
    fl_data_free(set);
}

static void cifar(void) {
    const fl_vision_transform steps[] = {fl_vision_random_crop(32, 4), fl_vision_random_horizontal_flip(0.5)};
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_permute(fl_zeros(FL_SHAPE(8192, 32, 32, 3), FL_U8), 4, (int[]){0, 3, 1, 2}),
              *y = fl_zeros(FL_SHAPE(8192), FL_I64);
    fl_data_set *set = fl_vision_batch(fl_data_shuffle(fl_data_tensors((fl_tensor *[]){x, y}, 2), 1), 128,
                                       .steps = steps, .n_steps = 2, .mean = FL_VISION_CIFAR_MEAN,
                                       .std = FL_VISION_CIFAR_STD);
    set = fl_data_prefetch(set, 2, 4);
    for (int64_t i = 0; i < fl_data_size(set); i++) {
        fl_scope one = fl_scope_begin();
        fl_data_sample b;
        check(fl_data_get(set, i, &b));
        fl_scope_end(&one);
    }
    fl_data_free(set);
    fl_scope_end(&s);
}

/* ---- average precision, JSON ---- */

static const char *const truth_path = "build/bench-vision/truth.json",
                  *const found_path = "build/bench-vision/found.json",
                  *const large_path = "build/bench-vision/large.json";
static fl_vision_coco truth, found;

static double some(fl_rng *rng, double low, double high) { return low + (high - low) * fl_rng_uniform(rng); }

/* 36,000 objects in 5,000 images, of 80 classes; every third of 100 detections an image lies near one. */
static void write_objects(void) {
    enum { IMAGES = 5000, CLASSES = 80, OBJECTS = 36000, FOUND = 100 };
    static double box[OBJECTS][4];
    fl_rng rng = fl_data_rng(1, 0, 0);
    FILE *f = fopen(truth_path, "w"), *d = fopen(found_path, "w");
    check(f && d);
    fprintf(f, "{\"images\":[");
    for (int i = 0; i < IMAGES; i++)
        fprintf(f, "%s{\"id\":%d,\"height\":480,\"width\":640,\"file_name\":\"%d.jpg\"}", i ? "," : "", i + 1,
                i);
    fprintf(f, "],\"categories\":[");
    for (int k = 0; k < CLASSES; k++) fprintf(f, "%s{\"id\":%d,\"name\":\"c%d\"}", k ? "," : "", k + 1, k);
    fprintf(f, "],\"annotations\":[");
    for (int i = 0; i < OBJECTS; i++) {
        double *b = box[i];
        b[2] = some(&rng, 5, 300), b[3] = some(&rng, 5, 300);
        b[0] = some(&rng, 0, 640 - b[2]), b[1] = some(&rng, 0, 480 - b[3]);
        fprintf(
            f,
            "%s{\"id\":%d,\"image_id\":%d,\"category_id\":%d,\"bbox\":[%.2f,%.2f,%.2f,%.2f],\"area\":%.2f,"
            "\"iscrowd\":%d}",
            i ? "," : "", i + 1, i % IMAGES + 1, i / IMAGES * 7 % CLASSES + 1, b[0], b[1], b[2], b[3],
            b[2] * b[3], i % 97 == 0);
    }
    fprintf(f, "]}"), fclose(f);
    for (int i = 0; i < IMAGES * FOUND; i++) {
        const int at = i / FOUND + IMAGES * (i % FOUND % 7), near = i % 3 == 0;
        double b[] = {some(&rng, 0, 500), some(&rng, 0, 400), some(&rng, 5, 140), some(&rng, 5, 80)};
        for (int k = 0; near && k < 4; k++) b[k] = box[at][k] + some(&rng, 0, 8);
        fprintf(d, "%s{\"image_id\":%d,\"category_id\":%d,\"bbox\":[%.2f,%.2f,%.2f,%.2f],\"score\":%.5f}",
                i ? "," : "[", at % IMAGES + 1,
                near ? at / IMAGES * 7 % CLASSES + 1 : (int)some(&rng, 1, CLASSES + 0.99), b[0], b[1], b[2],
                b[3], some(&rng, 0, 1));
    }
    fprintf(d, "]"), fclose(d);
}

static void evaluate(void) {
    fl_vision_ap ap;
    check(fl_vision_evaluate(&truth, &found, false, &ap));
    fl_vision_ap_free(&ap);
}

/* A file as COCO's own: polygons of 20 corners. */
static void write_large(double mb) {
    fl_rng rng = fl_data_rng(2, 0, 0);
    FILE *f = fopen(large_path, "w");
    check(f != NULL);
    fprintf(f, "{\"info\":{\"year\":2017},\"images\":[");
    for (int i = 0; i < 1000; i++)
        fprintf(f, "%s{\"id\":%d,\"height\":480,\"width\":640,\"file_name\":\"%012d.jpg\"}", i ? "," : "", i,
                i);
    fprintf(f, "],\"categories\":[{\"id\":1,\"name\":\"c\"}],\"annotations\":[");
    for (int i = 0; (double)ftell(f) < mb * 1e6; i++) {
        fprintf(f, "%s{\"segmentation\":[[", i ? "," : "");
        for (int k = 0; k < 40; k++) fprintf(f, "%s%.2f", k ? "," : "", some(&rng, 0, 640));
        fprintf(f,
                "]],\"area\":%.4f,\"iscrowd\":0,\"image_id\":%d,\"bbox\":[%.2f,%.2f,%.2f,%.2f],"
                "\"category_id\":1,\"id\":%d}",
                some(&rng, 1, 9e4), i % 1000, some(&rng, 0, 99), some(&rng, 0, 99), some(&rng, 0, 99),
                some(&rng, 0, 99), i + 1);
    }
    fprintf(f, "]}"), fclose(f);
}

/* In processes of their own, so that each has a peak. */
static void load_large(void) {
    const pid_t child = fork();
    if (child == 0) {
        fl_vision_coco c;
        const bool ok = fl_vision_coco_load(large_path, &c);
        if (ok) fl_vision_coco_free(&c);
        _exit(!ok);
    }
    int status;
    struct rusage u;
    check(wait4(child, &status, 0, &u) == child && status == 0);
    const double ours[] = {(double)u.ru_utime.tv_sec + 1e-6 * (double)u.ru_utime.tv_usec,
                           (double)u.ru_maxrss / 1e3};
    const double theirs[] = {bench_peer_ask(&peer, "load"), bench_peer_ask(&peer, "load memory")};
    static const char *const what[] = {"load JSON", "load JSON, peak memory"}, *const unit[] = {"s", "MB"};
    for (int k = 0; k < 2; k++) {
        bench_line(what[k], ours[k], unit[k], "ours");
        bench_line(what[k], theirs[k], unit[k], "pycocotools");
        bench_line(what[k], theirs[k] / ours[k], "x", "theirs / ours");
    }
}

static void assign(void) {
    static double cost[100 * 100];
    int64_t column[100];
    for (int k = 0; k < 100; k++) {
        uint64_t state = (uint64_t)k;
        for (int i = 0; i < 10000; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            cost[i] = (double)(state >> 33);
        }
        check(fl_vision_linear_assignment(cost, 100, 100, column));
    }
}

/* ---- a step of DETR: 800 x 800, 20 objects, forward, criterion, backward, AdamW ---- */

static fl_nn_module *detr;
static fl_optim *optim;

static void detr_step(void) {
    fl_scope s = fl_scope_begin();
    int64_t labels[20], counts[] = {20};
    float boxes[20][4];
    for (int i = 0; i < 20; i++) {
        labels[i] = i;
        for (int d = 0; d < 4; d++) boxes[i][d] = d < 2 ? 0.2f + 0.03f * (float)i : 0.1f + 0.01f * (float)i;
    }
    fl_tensor *x =
        fl_permute(fl_normal(FL_SHAPE(1, 800, 800, 3), 0, 1, FL_F32, NULL), 4, (int[]){0, 3, 1, 2});
    const fl_vision_targets t = {fl_from_host(labels, FL_SHAPE(20), FL_I64),
                                 fl_from_host(boxes, FL_SHAPE(20, 4), FL_F32), counts, 1};
    fl_vision_losses l;
    fl_optim_zero_grad(optim);
    const fl_vars y = fl_nn_forward_vars(
        detr, FL_VARS(fv_const(x), fv_const(fl_zeros(FL_SHAPE(1, 800, 800), FL_B8))));
    check(y.n && fl_vision_criterion(y, &t, &l) && fl_backward(l.total) && fl_optim_step(optim));
    fl_scope_end(&s);
}

int main(int argc, char **argv) {
    n_wanted = argc - 1, wanted = argv + 1;
    if (getenv("FOLDER")) folder = getenv("FOLDER");
    if (system("mkdir -p build/bench-vision") != 0) return 1;
    fl_scope s = fl_scope_begin();
    fl_data_set *set = fl_vision_folder(folder);
    if (!set) printf("skipped: %s\n", fl_error()), fl_error_clear();
    for (; set && n_files < FILES && n_files < fl_data_size(set); n_files++) {
        fl_data_sample one;
        check(fl_data_get(set, n_files, &one));
        bytes[n_files] = one.t[0];
        image[n_files] = fl_vision_decode(fl_data(one.t[0]), (size_t)fl_numel(one.t[0]));
        if (!image[n_files]) printf("skipped: %s\n", fl_error()), fl_error_clear(), set = NULL;
    }
    for (int i = 0; set && i < 8; i++)
        cut[0][i] = fl_vision_resize_image(image[i], 224, 224),
        cut[1][i] = fl_vision_resize_image(image[i], 375, 500);
    peer = bench_peer_begin("vision.py", folder, NULL);
    fl_set_threads(1);
#define THEIRS(...) (const char *const[]){__VA_ARGS__, NULL}
    if (set && part("decode")) {
        bench_beside(&peer, ROUNDS, "decode", decode, THEIRS("decode Pillow", "decode torchvision"), n_files,
                     "images/s");
        beside_bare();
    }
    if (set && part("resize"))
        bench_beside(&peer, ROUNDS, "resize 224", resize, THEIRS("resize Pillow", "resize torch"), n_files,
                     "images/s");
    if (set && part("transforms")) transforms();
    train[0] = fl_vision_random_resized_crop(224, 0, 0, FL_VISION_BILINEAR);
    train[1] = fl_vision_random_horizontal_flip(0.5);
    if (set && part("batches")) {
        double ratio[ROUNDS];
        threads = 1;
        for (int r = 0; r < ROUNDS; r++) ratio[r] = cpu(samples), ratio[r] /= cpu(batches);
        bench_line("batches:decoded and transformed alone:ratio", bench_median(ratio, ROUNDS), "x",
                   "alone / batches");
        threads = 2;
        for (int k = 0; k < 2; k++) {
            region = k;
            bench_beside(&peer, 3, k ? "batches, region" : "batches", batches,
                         THEIRS("loader Pillow 1", "loader Pillow 2", "loader Pillow 3",
                                "loader torchvision 1", "loader torchvision 2", "loader torchvision 3",
                                "tfdata"),
                         n_files, "images/s");
        }
    }
    if (part("cifar"))
        bench_beside(&peer, 3, "cifar batches", cifar, THEIRS("loader cifar"), 8192, "images/s");
    if (part("assign"))
        bench_beside(&peer, ROUNDS, "assignment 100 x 100", assign, THEIRS("assign"), 100, "1/s");
    if (part("ap")) {
        write_objects();
        check(fl_vision_coco_load(truth_path, &truth) && fl_vision_coco_results(found_path, &truth, &found));
        fl_set_threads(2);
        bench_beside(&peer, 1, "AP, 36,000 objects", evaluate, THEIRS("ap pycocotools", "ap faster"), 0,
                     "ms");
        fl_set_threads(1);
    }
    if (part("load")) write_large(getenv("MB") ? atof(getenv("MB")) : 100), load_large();
    if (part("detr")) {
        detr = fl_vision_detr(50);
        check(detr && fl_nn_channels_last(detr));
        optim = fl_optim_adamw(fl_nn_parameters(detr), .lr = 1e-4, .weight_decay = 1e-4);
        bench_beside(&peer, 3, "DETR step 800 x 800", detr_step, THEIRS("detr"), 0, "ms");
        fl_optim_free(optim), fl_nn_free(detr);
    }
    bench_peer_end(&peer);
    fl_scope_end(&s);
    return 0;
}
/* MIT licence: see LICENSE. */
