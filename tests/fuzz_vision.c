/* fuzz_vision.c - damaged images, EXIF blocks, CIFAR records, COCO's JSON, run lengths, tar files and names
   of weights

   A file in memory is the input itself, or a sound one of ours with bytes changed, put in or cut off; the
   first byte tells the format, or FUZZ_FORMAT in the environment (jpeg, png, ppm, cifar, coco, rle, tar,
   names). What is read has the shape it says and is then used; what is refused left an error, and nothing
   calls the error handler. */
#include "fuzz.h"

static int file_list(void *user, const char *path, fl_data_name_fn each, void *arg) {
    (void)user, (void)path;
    each(arg, "train.bin", false);
    return 0;
}

/* 8 x 8 grey pixels of one colour, and what an EXIF block begins with. */
static const unsigned char jpeg[] = {
    255, 216, 255, 225,  0,   34,  'E', 'x', 'i', 'f', 0,  0,  'M', 'M', 0,  '*', 0,   0,   0,   8,
    0,   1,   1,   0x12, 0,   3,   0,   0,   0,   1,   0,  6,  0,   0,   0,  0,   0,   0,   255, 219,
    0,   67,  0,   16,   11,  10,  16,  24,  40,  51,  61, 12, 12,  14,  19, 26,  58,  60,  55,  14,
    13,  16,  24,  40,   57,  69,  56,  14,  17,  22,  29, 51, 87,  80,  62, 18,  22,  37,  56,  68,
    109, 103, 77,  24,   35,  55,  64,  81,  104, 113, 92, 49, 64,  78,  87, 103, 121, 120, 101, 72,
    92,  95,  98,  112,  100, 103, 99,  255, 192, 0,   11, 8,  0,   8,   0,  8,   1,   1,   17,  0,
    255, 196, 0,   20,   0,   1,   0,   0,   0,   0,   0,  0,  0,   0,   0,  0,   0,   0,   0,   0,
    0,   8,   255, 196,  0,   20,  16,  1,   0,   0,   0,  0,  0,   0,   0,  0,   0,   0,   0,   0,
    0,   0,   0,   0,    0,   255, 218, 0,   8,   1,   1,  0,  0,   63,  0,  84,  0,   255, 217};
static const char coco[] = "{\"images\":[{\"id\":7,\"height\":10,\"width\":20,\"file_name\":\"a\"}],"
                           "\"categories\":[{\"id\":3,\"name\":\"x\"}],"
                           "\"annotations\":[{\"id\":1,\"image_id\":7,\"category_id\":3,\"bbox\":[2,1,3.5e0,"
                           "4],\"area\":8,\"iscrowd\":0,"
                           "\"segmentation\":[[2,1,2,5,6,5,6,1]]},{\"id\":2,\"image_id\":7,\"category_id\":3,"
                           "\"bbox\":[0,0,5,5],\"iscrowd\":1,"
                           "\"segmentation\":{\"size\":[10,20],\"counts\":[8,4,188]}},{\"id\":4,\"image_id\":"
                           "7,\"category_id\":3,\"bbox\":[1,1,2,2],"
                           "\"segmentation\":{\"size\":[10,20],\"counts\":\"84l5\"}}]}";

enum { JPEG, PNG, PPM, CIFAR, COCO, RLE, TAR, NAMES, FORMATS };
static const char *const format_name[] = {"jpeg", "png", "ppm", "cifar", "coco", "rle", "tar", "names"};

static void put(const void *bytes, size_t n) {
    if (fuzz_mem.size + n > FUZZ_MEM_ROOM) fuzz_bug("a sound file of more than %d bytes", FUZZ_MEM_ROOM);
    memcpy(fuzz_mem.bytes + fuzz_mem.size, bytes, n), fuzz_mem.size += n;
}

/* A header of a tar file, its sum made right whatever else is in it. */
static void put_tar(const char *name, const char *bytes, size_t n) {
    char b[512] = {0};
    unsigned sum = 8 * ' ';
    snprintf(b, 100, "%s", name),
        snprintf(b + 124, 12, "%011o", (unsigned)n + (fuzz_rarely(8) ? fuzz_byte() : 0));
    for (int changes = fuzz_rarely(4) ? fuzz_below(4) : 0; changes > 0; changes--)
        b[fuzz_word(2) % 512] = (char)fuzz_byte();
    for (int i = 0; i < 512; i++) sum += i < 148 || i > 155 ? (unsigned char)b[i] : 0;
    snprintf(b + 148, 8, "%06o", sum);
    put(b, 512);
    memset(b, 0, 512), memcpy(b, bytes, n);
    put(b, 512);
}

static void put_sound(int format) {
    fl_data_text png = {0};
    char *ppm = fuzz_mem.bytes;
    fuzz_mem.size = 0;
    if (format == JPEG) put(jpeg, sizeof jpeg);
    if (format == PNG && fl_vision_encode_png(&png, fl_zeros(FL_SHAPE(1 + fuzz_below(4), 5, 6),
                                                             fuzz_below(2) ? FL_U8 : FL_U16)))
        put(png.p, (size_t)png.n);
    fl_heap_free(png.p);
    if (format == PPM)
        fuzz_mem.size =
            (size_t)snprintf(ppm, 100, "P%d # x\n3 2\n%d\n1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18",
                             fuzz_below(8), fuzz_rarely(4) ? 65535 : 255);
    if (format == CIFAR) memset(fuzz_mem.bytes, fuzz_below(12), fuzz_mem.size = 3073u * (1 + fuzz_below(3)));
    if (format == COCO) put(coco, sizeof coco - 1);
    if (format == RLE) put(":d0b0", 5);
    if (format == NAMES) {
        const char head[] = "{\"0.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}   ";
        const uint64_t n = sizeof head - 1;
        put(&n, 8), put(head, sizeof head - 1), put("abcd", 4);
    }
    if (format == TAR) put_tar("a.jpg", "xyz", 3), put_tar("a.cls", "12", 2), put_tar("b/c.png", "", 0);
}

static void fill(int format) {
    fuzz_mem.size = 0;
    if (fuzz_rarely(4))
        while (fuzz_input.left && fuzz_mem.size < FUZZ_MEM_ROOM)
            fuzz_mem.bytes[fuzz_mem.size++] = (char)fuzz_byte();
    else put_sound(format);
    for (int changes = fuzz_below(6); fuzz_mem.size && changes > 0; changes--) {
        const size_t at = fuzz_word(2) % fuzz_mem.size;
        if (fuzz_rarely(4) && fuzz_mem.size < FUZZ_MEM_ROOM)
            memmove(fuzz_mem.bytes + at + 1, fuzz_mem.bytes + at, fuzz_mem.size++ - at);
        fuzz_mem.bytes[at] =
            fuzz_below(2) ? (char)fuzz_byte() : "0123456789{}[]\",: \\\n\t-.eE"[fuzz_below(26)];
    }
    if (fuzz_mem.size && fuzz_rarely(4)) fuzz_mem.size = fuzz_word(2) % fuzz_mem.size;
}

static void refused_or(bool read) {
    if (!read && !fl_error()) fuzz_bug("refused without an error");
    if (read && fl_error()) fuzz_bug("an error beside a result");
    fl_error_clear();
}

static void image(void) {
    fl_vision_info info;
    fl_vision_read_opts o = {.mode = (fl_vision_mode)fuzz_below(4),
                             .partial = fuzz_rarely(3),
                             .as_stored = fuzz_below(2),
                             .depth = (int[]){0, 8, 16}[fuzz_below(3)],
                             .eighths = fuzz_rarely(3) ? fuzz_below(10) : 0,
                             .max_pixels = 1 << 15};
    if (fuzz_rarely(3)) o.y = fuzz_below(6), o.x = fuzz_below(6), o.h = fuzz_below(9), o.w = fuzz_below(9);
    fuzz_cost_begin();
    fl_tensor *t = fl_vision_decode_opt(fuzz_mem.bytes, fuzz_mem.size, o);
    fuzz_cost_end(fuzz_mem.size);
    refused_or(t != NULL);
    if (t && (t->ndim != 3 || t->shape[0] < 1 || t->shape[0] > 4 ||
              (o.h && (t->shape[1] != o.h || t->shape[2] != o.w))))
        fuzz_bug("an image of %s", FL_SHAPE_TEXT(t));
    if (t) fl_sum(t, FL_ALL_AXES);
    refused_or(fl_vision_inspect(fuzz_mem.bytes, fuzz_mem.size, false, &info));
}

static void runs(void) {
    fl_vision_rle r;
    static unsigned char mask[64 * 64];
    const int64_t h = fuzz_below(65), w = fuzz_below(65);
    fuzz_cost_begin();
    const bool ok = fl_vision_rle_parse(fuzz_mem.bytes, fuzz_mem.size, h, w, &r);
    fuzz_cost_end(fuzz_mem.size);
    refused_or(ok);
    if (!ok) return;
    double box[4];
    fl_vision_rle_decode(&r, mask), fl_vision_rle_box(&r, box);
    int64_t area = 0;
    for (int64_t i = 0; i < h * w; i++) area += mask[i];
    if (area != fl_vision_rle_area(&r)) fuzz_bug("a mask of %d cells, runs of another area", (int)area);
    fl_vision_rle_iou(&r, &r, false);
    fl_heap_free(r.run);
}

static void objects(void) {
    fl_vision_coco c = {0}, found = {0};
    fl_vision_ap ap = {.n_category = 0};
    fuzz_cost_begin();
    const bool ok = fl_vision_coco_load("c", &c);
    fuzz_cost_end(fuzz_mem.size);
    refused_or(ok);
    for (int64_t i = 0; ok && i < c.n_object; i++) {
        fl_vision_rle r;
        if (fl_vision_coco_find(&c, c.object[i].image) < 0) fuzz_bug("object %d of no image", (int)i);
        if (!fl_vision_coco_mask(&c, &c.object[i], &r)) refused_or(false);
        else fl_heap_free(r.run);
    }
    if (ok) refused_or(fl_vision_evaluate(&c, &c, false, &ap));
    fl_vision_ap_free(&ap);
    if (ok) refused_or(fl_vision_coco_results("r", &c, &found));
    fl_vision_coco_free(&found), fl_vision_coco_free(&c);
}

static void shards(void) {
    fuzz_cost_begin();
    fl_data_set *set = fl_vision_shards((const char *const[]){"a.tar"}, 1);
    fuzz_cost_end(fuzz_mem.size);
    refused_or(set != NULL);
    fl_data_sample b;
    for (int64_t i = 0; set && i < fl_data_size(set); i++) refused_or(fl_data_get(set, i, &b));
    fl_data_free(set);
}

/* A module somewhere in a tree of names that the rules know, mostly, whose weights the file lacks. */
static void names(void) {
    static const char *const word[] = {"encoder",
                                       "layers",
                                       "encoder_layer_12",
                                       "self_attention",
                                       "transformer",
                                       "layer1",
                                       "0",
                                       "conv2",
                                       "multihead_attn",
                                       "linear1",
                                       "norm2",
                                       "backbone",
                                       "body",
                                       "decoder",
                                       "7",
                                       "downsample",
                                       "ln_1",
                                       "mlp",
                                       "self_attn",
                                       "encoder_layer_99999999999"};
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_sequential_of(0, NULL), *at = m;
    for (int deep = 1 + fuzz_below(5); deep > 0; deep--) {
        char name[24] = "";
        if (fuzz_rarely(4))
            for (int i = fuzz_below(23); i >= 0; i--) name[i] = (char)(1 + fuzz_below(126));
        else snprintf(name, sizeof name, "%s", word[fuzz_below(20)]);
        fl_nn_module *next = fl_nn_add(at, name, fl_nn_sequential_of(0, NULL));
        if (next) at = next;
        fl_error_clear();
    }
    fl_nn_add(at, NULL, fl_nn_linear(1, 1));
    fl_error_clear();
    fuzz_cost_begin();
    const bool loaded = fl_vision_load(m, "w", (fl_vision_names)fuzz_below(3));
    fuzz_cost_end(fuzz_mem.size);
    refused_or(loaded);
    fl_nn_free(m);
    fl_quiet(-1);
}

/* What the changes start from is sound. */
static void sound_ones(void) {
    static bool done;
    fl_vision_coco c = {0};
    fl_vision_rle r;
    const size_t left = fuzz_input.left;
    if (done) return;
    done = true, fuzz_input.left = 0;
    put_sound(JPEG);
    if (!fl_vision_decode(fuzz_mem.bytes, fuzz_mem.size) && !strstr(fl_error(), "without libjpeg"))
        fuzz_bug("jpeg");
    fl_error_clear(), put_sound(PNG);
    if (!fl_vision_decode(fuzz_mem.bytes, fuzz_mem.size) && !strstr(fl_error(), "without libpng"))
        fuzz_bug("png");
    fl_error_clear(), put_sound(COCO);
    if (!fl_vision_coco_load("c", &c)) fuzz_bug("coco");
    for (int64_t i = 0; i < c.n_object; i++)
        if (!fl_vision_coco_mask(&c, &c.object[i], &r)) fuzz_bug("mask %d", (int)i);
        else fl_heap_free(r.run);
    fl_vision_coco_free(&c), put_sound(TAR);
    fl_data_set *set = fl_vision_shards((const char *const[]){"a.tar"}, 1);
    if (!set || fl_data_size(set) != 2) fuzz_bug("tar");
    fl_data_free(set), put_sound(RLE);
    if (!fl_vision_rle_parse(fuzz_mem.bytes, fuzz_mem.size, 6, 8, &r)) fuzz_bug("rle");
    fl_heap_free(r.run);
    fuzz_input.left = left;
}

static void fuzz_one(void) {
    fl_data_io io = fuzz_disk;
    io.list = file_list;
    const char *only = getenv("FUZZ_FORMAT"); /* one format alone */
    int format = fuzz_below(FORMATS);
    for (int k = 0; only && k < FORMATS; k++)
        if (!strcmp(only, format_name[k])) format = k;
    fl_vision_arrays a;
    fl_data_io_use(&io);
    fuzz_doing = format_name[format];
    fl_scope s = fl_scope_begin();
    sound_ones();
    fill(format);
    fl_error_clear();
    switch (format) {
    case CIFAR:
        fuzz_cost_begin();
        refused_or(fl_vision_cifar(".", "train", &a, .hundred = fuzz_below(2)));
        fuzz_cost_end(fuzz_mem.size);
        break;
    case COCO: objects(); break;
    case RLE: runs(); break;
    case TAR: shards(); break;
    case NAMES: names(); break;
    default: image();
    }
    fl_scope_end(&s);
    fl_data_io_use(NULL);
}
/* MIT licence: see LICENSE. */
