/* tests/bounds_vision.h - expensive files for the readers of fl_vision.h: rows of tests/test_bounds.c

   An image's header says how much memory its pixels take, up to max_pixels: images are read with so small a
   limit that the pixels are within the usual bound. Masks likewise: of images that are not large. */
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- images ---- */

enum { BOUNDS_PIXELS = 1 << 16 };

static void decode(const char *path, fl_vision_read_opts o) {
    fl_tensor *bytes = fl_vision_read_bytes(path);
    if (bytes) fl_vision_decode_opt(fl_data(bytes), (size_t)fl_numel(bytes), o);
}
static void read_image(const char *path) { decode(path, (fl_vision_read_opts){.max_pixels = BOUNDS_PIXELS}); }

static void put16(FILE *f, unsigned v) { fputc((int)(v >> 8), f), fputc((int)(v & 255), f); }
static void put32(FILE *f, uint32_t v) { put16(f, v >> 16), put16(f, v & 65535); }
static void put_image_zeros(FILE *f, int64_t n) {
    while (n-- > 0) fputc(0, f);
}

/* A chunk that says it has n bytes. */
static void put_chunk(FILE *f, const char *kind, const void *bytes, size_t size, size_t n) {
    put32(f, (uint32_t)n);
    fwrite(kind, 1, 4, f), fwrite(bytes, 1, size, f);
    put32(f, fl_data_crc32(fl_data_crc32(0, kind, 4), bytes, size));
}
static void begin_png(FILE *f, int w, int h, int bits, int colour, int interlace) {
    unsigned char head[13] = {0, 0, (unsigned char)(w >> 8), (unsigned char)w, 0, 0, (unsigned char)(h >> 8),
                              (unsigned char)h, (unsigned char)bits, (unsigned char)colour, 0, 0,
                              (unsigned char)interlace};
    fwrite("\x89PNG\r\n\x1a\n", 1, 8, f);
    put_chunk(f, "IHDR", head, 13, 13);
}
/* Zeros that about n bytes of a zlib stream stand for, as libpng's own packer makes them: the file's last
   chunk
   but one. *size: of the stream. Free the text. */
static fl_data_text png_of_zeros(int64_t n, size_t *size) {
    fl_scope s = fl_scope_begin();
    fl_data_text png = {0};
    const int64_t side = n < 4000 ? 900 : 8000;
    fl_vision_encode_png(&png, fl_zeros(FL_SHAPE(1, side, side), FL_U8));
    fl_scope_end(&s);
    *size = png.n > 57 ? (size_t)png.n - 57 : 0; /* signature, IHDR, IDAT's own 12 bytes and IEND */
    return png;
}
/* Packed text of megabytes, in chunk after chunk of that kind. */
static void put_packed_chunks(FILE *f, int64_t n, const char *kind, const char *front, size_t n_front) {
    size_t size;
    fl_data_text zeros = png_of_zeros(n, &size);
    char *chunk = malloc(n_front + size);
    memcpy(chunk, front, n_front), memcpy(chunk + n_front, zeros.p + 41, size);
    begin_png(f, 8, 8, 8, 0, 0);
    do put_chunk(f, kind, chunk, n_front + size, n_front + size);
    while (ftell(f) < n);
    put_chunk(f, "IDAT", "x", 1, 1);
    free(chunk), fl_heap_free(zeros.p);
}
static void write_png_ztxt(FILE *f, int64_t n) { put_packed_chunks(f, n, "zTXt", "k\0\0", 3); }
static void write_png_itxt(FILE *f, int64_t n) { put_packed_chunks(f, n, "iTXt", "k\0\1\0\0\0", 6); }
static void write_png_iccp(FILE *f, int64_t n) { put_packed_chunks(f, n, "iCCP", "k\0\0", 3); }
static void write_png_empty(FILE *f, int64_t n) {
    static const char *const kind[] = {"tEXt", "abCd", "IDAT", "tIME", "sPLT"};
    begin_png(f, 8, 8, 8, 0, 0);
    for (int k = 0; ftell(f) < n; k++) put_chunk(f, kind[ftell(f) * 5 / (n + 1)], "", 0, 0);
}
static void write_png_long_chunk(FILE *f, int64_t n) {
    begin_png(f, 8, 8, 8, 0, 0);
    put_chunk(f, "eXIf", "MM\0*", 4, 1 << 24);
    put_image_zeros(f, n - ftell(f));
}
static void write_png_pixels(FILE *f, int64_t n) {
    size_t size;
    fl_data_text zeros = png_of_zeros(n, &size);
    begin_png(f, 40000, 1, 16, 6, 1);
    put_chunk(f, "IDAT", zeros.p + 41, size, size);
    fl_heap_free(zeros.p), put_image_zeros(f, n - ftell(f));
}
static void write_png_too_large(FILE *f, int64_t n) {
    size_t size;
    fl_data_text zeros = png_of_zeros(n, &size);
    begin_png(f, 65500, 2700, 16, 6, 1);
    put_chunk(f, "IDAT", zeros.p + 41, size, size);
    fl_heap_free(zeros.p), put_image_zeros(f, n - ftell(f));
}

/* A grey JPEG, progressive, whose Huffman tables have one code each, of one bit: a difference of 0, and
   "nothing in
   this and the next 16383 to 32766 blocks". */
static void begin_jpeg(FILE *f, int w, int h, int components, int sampling) {
    put16(f, 0xffd8), put16(f, 0xffdb), put16(f, 67), fputc(0, f);
    for (int i = 0; i < 64; i++) fputc(1, f);
    put16(f, 0xffc2), put16(f, 8 + 3 * (unsigned)components), fputc(8, f);
    put16(f, (unsigned)h), put16(f, (unsigned)w), fputc(components, f);
    for (int k = 0; k < components; k++) fputc(k, f), fputc(sampling, f), fputc(0, f);
    for (int ac = 0; ac < 2; ac++) {
        put16(f, 0xffc4), put16(f, 20), fputc(16 * ac, f), fputc(1, f);
        put_image_zeros(f, 15), fputc(ac ? 0xe0 : 0, f);
    }
}
static void put_scan(FILE *f, int component, int from, int to, int bits, const void *data, size_t n) {
    put16(f, 0xffda), put16(f, 8), fputc(1, f), fputc(component, f), fputc(0, f);
    fputc(from, f), fputc(to, f), fputc(bits, f);
    fwrite(data, 1, n, f);
}
static void write_jpeg_scans(FILE *f, int64_t n) {
    const int side = n < 4000 ? 160 : 4000;
    begin_jpeg(f, side, side, 1, 0x11);
    put_scan(f, 0, 0, 0, 0, "", 0);
    while (ftell(f) < n) { /* a scan of 15 bits for every 32767 blocks: 0, and 14 bits of 1 */
        char data[64] = {0};
        size_t bits = 0;
        for (int64_t blocks = (int64_t)side * side / 64; blocks > 0; blocks -= 32767, bits++)
            for (int k = 0; k < 14; k++) bits++, data[bits / 8] |= (char)(128 >> bits % 8);
        put_scan(f, 0, 1, 63, 0x10, data, 0);
        for (size_t i = 0; i < (bits + 7) / 8; i++) {
            fputc(data[i], f);
            if (data[i] == (char)255) fputc(0, f);
        }
        if (ftell(f) > n - n / 2) break;
    }
    put_image_zeros(f, n - ftell(f) - 2), put16(f, 0xffd9);
}
static void write_jpeg_small_scans(FILE *f, int64_t n) {
    begin_jpeg(f, 8, 8, 1, 0x11);
    put_scan(f, 0, 0, 0, 0, "", 0);
    while (ftell(f) < n) put_scan(f, 0, 1, 63, 0x10, "", 0);
    put16(f, 0xffd9);
}
static void write_jpeg_thin(FILE *f, int64_t n) {
    begin_jpeg(f, 1, 65500, 4, 0x44);
    put_scan(f, 0, 0, 0, 0, "", 0);
    put_image_zeros(f, n - ftell(f) - 2), put16(f, 0xffd9);
}
static void write_jpeg_exif(FILE *f, int64_t n) {
    put16(f, 0xffd8);
    while (ftell(f) < n) put16(f, 0xffe1), put16(f, 65535), put_image_zeros(f, 65533);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BOUNDS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define BOUNDS_SANITIZED 1
#endif
#endif

/* KiB that a process of its own has at most, which reads a file, or does not. */
static int64_t peak_of_process(void (*read)(const char *path), const char *path) {
    struct rusage used = {0};
    fflush(stdout);
    const pid_t pid = fork();
    if (!pid) {
        for (int times = path ? 2 : 1; times > 0; times--) read(path ? path : "/dev/null");
        _exit(0);
    }
    return pid > 0 && wait4(pid, NULL, 0, &used) == pid ? used.ru_maxrss : 0;
}

/* libjpeg takes memory from malloc: what a process has more than one that reads nothing counts too. */
static void read_jpeg(const char *path) {
    decode(path, (fl_vision_read_opts){.mode = FL_VISION_GREY, .eighths = 1});
#ifndef BOUNDS_SANITIZED
    const int64_t bytes = 1024 * (peak_of_process(read_image, path) - peak_of_process(read_image, NULL));
    if (cost_take(bytes)) cost_take(-bytes);
#endif
}

static void write_pnm_text(FILE *f, int64_t n) {
    const int side = n < 4000 ? 16 : 250;
    fprintf(f, "P3 %d %d 65535", side, side);
    while (ftell(f) < n) fputs(" 1", f);
}
static void write_pnm_comments(FILE *f, int64_t n) {
    fputs("P3 ", f);
    while (ftell(f) < n) fputs("#\n", f);
}
static void write_pnm_digits(FILE *f, int64_t n) {
    fputs("P2 4 4 255 ", f);
    while (ftell(f) < n) fputc('0', f);
}

/* ---- sets ---- */

static void read_image_set(fl_data_set *set) {
    fl_data_sample b;
    for (int64_t i = 0; set && i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_get(set, i, &b);
        fl_error_clear();
        fl_scope_end(&s);
    }
    fl_data_free(set);
}

static void write_cifar(FILE *f, int64_t n) { put_image_zeros(f, n / 3073 * 3073 + 3073 * (n < 3073)); }
static void read_cifar(const char *path) {
    char folder[300];
    fl_vision_arrays a;
    const char *name = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", name ? (int)(name - path) : 1, name ? path : ".");
    fl_vision_cifar(folder, name ? name + 1 : path, &a);
}

/* A file of a tar archive without bytes. */
static void put_tar(FILE *f, const char *name) {
    char b[512] = {0};
    unsigned sum = 8 * ' ';
    snprintf(b, 100, "%s", name), snprintf(b + 124, 12, "%011o", 0u);
    for (int i = 0; i < 512; i++) sum += i < 148 || i > 155 ? (unsigned char)b[i] : 0;
    snprintf(b + 148, 8, "%06o", sum);
    fwrite(b, 1, sizeof b, f);
}
static void write_tar(FILE *f, int64_t n) {
    char name[30];
    for (int k = 0; ftell(f) < n; k++) snprintf(name, sizeof name, "%d.jpg", k), put_tar(f, name);
}
static void write_tar_parts(FILE *f, int64_t n) {
    put_tar(f, "a.jpg");
    while (ftell(f) < n) put_tar(f, "a.x");
}
static void read_tar(const char *path) { read_image_set(fl_vision_shards(&path, 1)); }

static void write_image_list(FILE *f, int64_t n) {
    while (ftell(f) < n) fputs("a\t1\n", f);
}
static void read_image_list(const char *path) { read_image_set(fl_vision_list(path, "/nowhere")); }

/* ---- COCO ---- */

static void write_images(FILE *f, int64_t n) {
    fputs("{\"images\":[{}", f);
    while (ftell(f) < n) fputs(",{}", f);
    fputs("]}", f);
}
static void write_image_ids(FILE *f, int64_t n) {
    fputs("{\"images\":[", f);
    for (int k = 0; ftell(f) < n; k++) fprintf(f, "%s{\"id\":%d}", k ? "," : "", k * 7919 % 1000003);
    fputs("]}", f);
}
static void write_categories(FILE *f, int64_t n) {
    fputs("{\"categories\":[", f);
    for (int k = 0; ftell(f) < n; k++) fprintf(f, "%s{\"id\":%d,\"name\":\"\"}", k ? "," : "", k);
    fputs("]}", f);
}
static void begin_objects(FILE *f) {
    fputs("{\"images\":[{\"id\":1,\"height\":480,\"width\":640}],\"categories\":[{\"id\":1}],\"annotations\":[", f);
}
static void write_objects(FILE *f, int64_t n) {
    begin_objects(f);
    fputs("{\"image_id\":1,\"category_id\":1}", f);
    while (ftell(f) < n) fputs(",{\"image_id\":1,\"category_id\":1}", f);
    fputs("]}", f);
}
/* One object, then as many as fit: its segmentation begins, goes on until n bytes are there, and ends. */
static void put_object(FILE *f, int64_t n, const char *begin, const char *again, const char *end) {
    begin_objects(f);
    fprintf(f, "{\"image_id\":1,\"category_id\":1,\"segmentation\":%s", begin);
    while (ftell(f) < n) fputs(again, f);
    fprintf(f, "%s}]}", end);
}
static void write_no_corners(FILE *f, int64_t n) { put_object(f, n, "[[1,1]", ",[]", "]"); }
static void write_corners(FILE *f, int64_t n) { put_object(f, n, "[[1,1", ",1", "]]"); }
static void write_far_corners(FILE *f, int64_t n) { put_object(f, n, "[[0,0", ",-1e6,-1e6,1e6,1e6", "]]"); }
static void write_steep_corners(FILE *f, int64_t n) { put_object(f, n, "[[0,0", ",1,-1e6,9,1e6", "]]"); }
static void write_wide_corners(FILE *f, int64_t n) { put_object(f, n, "[[0,0", ",0,0,640,9", "]]"); }
static void write_small_parts(FILE *f, int64_t n) { put_object(f, n, "[[1,1]", ",[1,1,9,1,9,9]", "]"); }
static void write_wide_parts(FILE *f, int64_t n) { put_object(f, n, "[[1,1]", ",[0,0,640,0,640,480]", "]"); }
static void write_runs(FILE *f,
                       int64_t n) { put_object(f, n, "{\"size\":[480,640],\"counts\":[1", ",1", "]}"); }
static void write_run_text(FILE *f,
                           int64_t n) { put_object(f, n, "{\"size\":[480,640],\"counts\":\"", "1", "\"}"); }
static void write_segmentations(FILE *f, int64_t n) { /* of which the last one counts */
    begin_objects(f);
    fputs("{\"image_id\":1,\"category_id\":1,\"segmentation\":{\"counts\":\"1\"", f);
    while (ftell(f) < n) fputs(",\"counts\":\"1\"", f);
    fputs("}}]}", f);
}
static void read_coco(const char *path) {
    fl_vision_coco c = {0};
    if (!fl_vision_coco_load(path, &c)) return;
    for (int64_t i = 0; i < c.n_object; i++) {
        fl_vision_rle r;
        if (fl_vision_coco_mask(&c, &(fl_vision_object){.seg = c.object[i].seg, .n_seg = c.object[i].n_seg,
                                                        .rle = c.object[i].rle, .h = 480, .w = 640}, &r))
            fl_heap_free(r.run);
        fl_error_clear();
    }
    fl_vision_coco_free(&c);
}

static void put_results(FILE *f, int64_t n, const char *what) {
    for (int k = 0; ftell(f) < n; k++) fprintf(f, "%c{\"image_id\":1,\"category_id\":1,\"score\":1,%s}", k
                                               ? ',' : '[', what);
    fputs("]", f);
}
static void write_results(FILE *f, int64_t n) { put_results(f, n, "\"bbox\":[1,2,3,4]"); }
static void write_result_polygons(FILE *f,
                                  int64_t n) { put_results(f, n, "\"segmentation\":[[0,0,640,0,640,480]]"); }
static void write_result_runs(FILE *f, int64_t n) {
    put_results(f, n, "\"segmentation\":{\"size\":[1,9],\"counts\":\"1111000\"}");
}
static void read_results(const char *path) {
    fl_vision_coco_image image = {1, 480, 640, ""};
    fl_vision_category category = {1, ""};
    const fl_vision_coco truth = {.image = &image, .n_image = 1, .category = &category, .n_category = 1};
    fl_vision_coco c = {0};
    if (fl_vision_coco_results(path, &truth, &c)) fl_vision_voc(&truth, &c, 0, 0.5, 11);
    fl_vision_coco_free(&c);
}

/* Text of runs alone, for a mask of many cells. */
static void write_bare_runs(FILE *f, int64_t n) {
    while (ftell(f) < n) fputs("11110000", f);
}
static void read_bare_runs(const char *path) {
    fl_tensor *bytes = fl_vision_read_bytes(path);
    fl_vision_rle r;
    if (bytes &&
        fl_vision_rle_parse(fl_data(bytes), (size_t)fl_numel(bytes), 16384, 16384, &r)) fl_heap_free(r.run);
}

static void write_weights(FILE *f, int64_t n) {
    const uint64_t header = (uint64_t)(n / 64 * 64);
    fwrite(&header, 1, 8, f), fputc('{', f);
    for (int k = 0; ftell(f) < (long)header - 70; k++)
        fprintf(f, "%s\"%x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}", k ? "," : "",
                (unsigned)k);
    fputc('}', f);
    while (ftell(f) < (long)header + 8) fputc(' ', f);
}
static void read_weights(const char *path) {
    fl_nn_module *m = fl_vision_model("resnet18", .divide = 16, .blocks = 1, .classes = 4);
    fl_vision_load(m, path, FL_VISION_TORCHVISION);
    fl_nn_free(m);
}

static const bounds_row vision_rows[] = {
    {"PNG: packed text (zTXt)", write_png_ztxt, read_image, NULL},
    {"PNG: packed text (iTXt)", write_png_itxt, read_image, NULL},
    {"PNG: packed profiles (iCCP)", write_png_iccp, read_image, NULL},
    {"PNG: empty chunks", write_png_empty, read_image, NULL},
    {"PNG: a chunk of 2^24 bytes", write_png_long_chunk, read_image, NULL},
    {"PNG: a long row, interlaced", write_png_pixels, read_image, NULL},
    {"PNG: 65500 x 2700 pixels", write_png_too_large, read_image, NULL},
    {"JPEG: many scans", write_jpeg_scans, read_jpeg, NULL},
    {"JPEG: many scans of one block", write_jpeg_small_scans, read_jpeg, NULL},
    {"JPEG: one pixel wide, four large parts", write_jpeg_thin, read_jpeg, NULL},
    {"JPEG: EXIF blocks", write_jpeg_exif, read_jpeg, NULL},
    {"PNM: pixels as text", write_pnm_text, read_image, NULL},
    {"PNM: comments", write_pnm_comments, read_image, NULL},
    {"PNM: a number of many digits", write_pnm_digits, read_image, NULL},
    {"CIFAR: records", write_cifar, read_cifar, ".bin"},
    {"tar: empty images", write_tar, read_tar, NULL},
    {"tar: a sample of many parts", write_tar_parts, read_tar, NULL},
    {"image list: short lines", write_image_list, read_image_list, NULL},
    {"COCO: images without an id", write_images, read_coco, NULL},
    {"COCO: images", write_image_ids, read_coco, NULL},
    {"COCO: categories", write_categories, read_coco, NULL},
    {"COCO: objects", write_objects, read_coco, NULL},
    {"COCO: polygons without corners", write_no_corners, read_coco, NULL},
    {"COCO: corners in one place", write_corners, read_coco, NULL},
    {"COCO: corners at 1e6", write_far_corners, read_coco, NULL},
    {"COCO: steep edges of 1e7 pixels", write_steep_corners, read_coco, NULL},
    {"COCO: edges to and fro", write_wide_corners, read_coco, NULL},
    {"COCO: small polygons of an object", write_small_parts, read_coco, NULL},
    {"COCO: wide polygons of an object", write_wide_parts, read_coco, NULL},
    {"COCO: runs as numbers", write_runs, read_coco, NULL},
    {"COCO: runs as text", write_run_text, read_coco, NULL},
    {"COCO: one segmentation after another", write_segmentations, read_coco, NULL},
    {"COCO results: boxes", write_results, read_results, NULL},
    {"COCO results: polygons", write_result_polygons, read_results, NULL},
    {"COCO results: runs", write_result_runs, read_results, NULL},
    {"run lengths", write_bare_runs, read_bare_runs, NULL},
    {"weights: many names", write_weights, read_weights, ".safetensors"},
};

/* MIT licence: see LICENSE. */
