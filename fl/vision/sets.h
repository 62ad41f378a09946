/* sets.h - data sets of images */
#ifndef FL_VISION_SETS_H
#define FL_VISION_SETS_H
#include "images.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All images of a set that fits into memory. */
typedef struct fl_vision_arrays {
    fl_tensor *image; /* u8 [n, c, h, w], stored n, h, w, c */
    fl_tensor *label; /* i64 [n] */
} fl_vision_arrays;
typedef struct fl_vision_cifar_opts {
    fl_named _positional;
    bool hundred; /* CIFAR-100: two labels in front of each image, coarse (20) and fine (100) */
    bool coarse;  /* of CIFAR-100 the coarse one */
    char _end;
} fl_vision_cifar_opts;
/* The binary files of CIFAR in a folder, in the order of their names: part "train" is those that begin with
   "data_batch" or "train", part "test" those that begin with "test", all ending with ".bin". A record is
   the label and 3,072 bytes, the planes R, G, B of 32 x 32. The tensors are of the innermost scope. False
   after fl_fail: no file, one that does not end with a record, a label past the last class. */
#define fl_vision_cifar(...) FL__VISION_CIFAR(__VA_ARGS__, ._end = 0)
#define FL__VISION_CIFAR(folder, part, out, ...) \
    fl_vision_cifar_opt(folder, part, out, (fl_vision_cifar_opts){__VA_ARGS__})
FL_API bool fl_vision_cifar_opt(const char *folder, const char *part, fl_vision_arrays *out,
                                fl_vision_cifar_opts o);

/* A folder with one for each class (torchvision's ImageFolder; ImageNet's, where the classes are synsets):
   files that end with jpg, jpeg, png, ppm or pgm, in any case, in the order of their paths. A sample is the
   image as it is in the file, u8 [bytes], which fl_vision_batch decodes in the threads above it, and i64 [],
   the class: fl_data_class_name tells its name. */
FL_API fl_data_set *fl_vision_folder(const char *path);

#ifdef __cplusplus
}
#endif
#endif /* FL_VISION_SETS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_VISION_SETS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_SETS_IMPL
#define FL_VISION_SETS_IMPL
#include "../ops/view.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- folders ---- */

static bool fl__vision_listed(const fl_data_listed *e, fl_data_sample *out, void *user) {
    (void)user;
    out->n = 1;
    return (out->t[0] = fl_vision_read_bytes(e->path)) != NULL;
}

FL_API fl_data_set *fl_vision_folder(const char *path) {
    return fl_data_folder(path, fl__vision_listed, .extensions = "jpg,jpeg,png,ppm,pgm", .classes = true);
}

/* ---- CIFAR ---- */

enum { FL__CIFAR_SIDE = 32, FL__CIFAR_PLANE = 1024, FL__CIFAR_FILES = 64 };

typedef struct fl__cifar {
    const char *folder, *part;
    int n, labels, take, classes; /* files; bytes in front of an image, the one that is taken */
    char name[FL__CIFAR_FILES][64];
    int64_t records[FL__CIFAR_FILES];
} fl__cifar;

static bool fl__cifar_name(void *arg, const char *name, bool folder) {
    fl__cifar *c = arg;
    const size_t n = strlen(name);
    const bool train = !strcmp(c->part, "train");
    if (folder || n < 5 || n >= sizeof c->name[0] || strcmp(name + n - 4, ".bin")) return true;
    const bool mine = train ? !strncmp(name, "data_batch", 10) || !strncmp(name, "train", 5)
                            : !strncmp(name, c->part, strlen(c->part));
    if (!mine || c->n == FL__CIFAR_FILES) return true;
    memcpy(c->name[c->n++], name, n + 1);
    return true;
}

static int fl__cifar_by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

/* Opens file i: its records are counted, or read to their places, from number `at` on. */
static bool fl__cifar_file(fl__cifar *c, int i, uint8_t *image, int64_t *label, int64_t at) {
    enum { PIXELS = 3 * FL__CIFAR_PLANE };
    uint8_t record[2 + PIXELS];
    const size_t size = (size_t)c->labels + PIXELS, n_path = strlen(c->folder) + sizeof c->name[0] + 2;
    char *path = fl_heap_alloc(n_path);
    fl_data_stream f;
    if (!path) return false;
    snprintf(path, n_path, "%s/%s", c->folder, c->name[i]);
    bool ok = fl_data_stream_open(&f, "fl_vision_cifar", path, FL_DATA_READ);
    const bool opened = ok;
    if (ok && (f.size == 0 || f.size % (int64_t)size))
        ok = fl_fail("fl_vision_cifar: %s: %lld bytes are no whole records of %zu", path, (long long)f.size,
                     size);
    if (ok && !image) c->records[i] = f.size / (int64_t)size;
    for (int64_t k = 0; ok && image && k < c->records[i]; k++) {
        ok = fl_data_stream_read(&f, record, size, k * (int64_t)size);
        if (ok && record[c->take] >= c->classes)
            ok = fl_fail("fl_vision_cifar: %s: offset %lld: class %d of %d", path,
                         (long long)(k * (int64_t)size), record[c->take], c->classes);
        if (!ok) break;
        label[at + k] = record[c->take];
        uint8_t *to = image + (at + k) * PIXELS;
        for (int p = 0; p < PIXELS; p++)
            to[p % FL__CIFAR_PLANE * 3 + p / FL__CIFAR_PLANE] = record[c->labels + p];
    }
    if (opened) f.io.close(f.io.user, f.file);
    fl_heap_free(path);
    return ok;
}

static bool fl__cifar_read(fl__cifar *c, fl_vision_arrays *out) {
    static const int planes[] = {0, 3, 1, 2};
    int64_t n = 0;
    if (!fl_data_folder_names("fl_vision_cifar", c->folder, fl__cifar_name, c)) return false;
    if (!c->n) return fl_fail("fl_vision_cifar: %s: no file of part '%s' (*.bin)", c->folder, c->part);
    qsort(c->name, (size_t)c->n, sizeof c->name[0], fl__cifar_by_name);
    for (int i = 0; i < c->n; i++) {
        if (!fl__cifar_file(c, i, NULL, NULL, 0)) return false;
        n += c->records[i];
    }
    fl_tensor *image = fl_data_host_tensor(FL_SHAPE(n, FL__CIFAR_SIDE, FL__CIFAR_SIDE, 3), FL_U8);
    fl_tensor *label = fl_data_host_tensor(FL_SHAPE(n), FL_I64);
    if (!image || !label) return false;
    int64_t at = 0;
    for (int i = 0; i < c->n; at += c->records[i++])
        if (!fl__cifar_file(c, i, fl_data(image), fl_data(label), at)) return false;
    *out = (fl_vision_arrays){fl_permute(image, 4, planes), label};
    return out->image != NULL;
}

FL_API bool fl_vision_cifar_opt(const char *folder, const char *part, fl_vision_arrays *out,
                                fl_vision_cifar_opts o) {
    if (!folder || !part || !out) return fl_fail("fl_vision_cifar: folder, part or out is NULL");
    fl__cifar *c = fl_heap_alloc(sizeof *c);
    if (!c) return false;
    c->folder = folder, c->part = part;
    c->labels = o.hundred ? 2 : 1, c->take = o.hundred && !o.coarse;
    c->classes = !o.hundred ? 10 : o.coarse ? 20 : 100;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_vision_arrays read = {0};
    const bool ok = s.depth_ > 0 && fl__cifar_read(c, &read);
    if (ok) *out = (fl_vision_arrays){fl_promote(&s, read.image), fl_promote(&s, read.label)};
    fl_scope_end(&s);
    fl_quiet(-1);
    fl_heap_free(c);
    return ok && out->image && out->label;
}

#endif
#endif

/* MIT licence: see LICENSE. */
