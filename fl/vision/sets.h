/* fl/vision/sets.h - image data sets: CIFAR, class folders, ImageNet, lists, COCO objects */
#ifndef FL_VISION_SETS_H
#define FL_VISION_SETS_H
#include "coco.h"
#include "images.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A data set in memory. */
typedef struct fl_vision_arrays {
    fl_tensor *image; /* u8 [n, c, h, w], stored n, h, w, c */
    fl_tensor *label; /* i64 [n] */
} fl_vision_arrays;
typedef struct fl_vision_cifar_opts {
    fl_opts_guard guard_;
    bool hundred; /* CIFAR-100: records have a coarse (20) and a fine (100) label */
    bool coarse;  /* use the coarse labels of CIFAR-100 */
    char _end;
} fl_vision_cifar_opts;
/* Reads CIFAR's binary files (*.bin) in a folder, sorted by name. part: "train" for names that begin with
   "data_batch" or "train", "test" for those that begin with "test". A record is the label(s) and 3,072 bytes,
   the planes R, G, B of 32 x 32. The innermost scope owns the tensors. False after fl_fail: no file, an
   incomplete record, a label out of range. */
#define fl_vision_cifar(...) FL__VISION_CIFAR(__VA_ARGS__, ._end = 0)
#define FL__VISION_CIFAR(folder, part, out, ...) \
    fl_vision_cifar_opt(folder, part, out, FL_LITERAL(fl_vision_cifar_opts, __VA_ARGS__))
FL_API bool fl_vision_cifar_opt(const char *folder, const char *part, fl_vision_arrays *out,
                                fl_vision_cifar_opts o);

/* A folder with a subfolder per class (torchvision's ImageFolder): files ending with jpg, jpeg, png, ppm or
   pgm, in any case, sorted by path. A sample is the encoded image, u8 [bytes], which fl_vision_batch decodes
   in the loader's threads, and the class, i64 [], whose name is fl_data_class_name. NULL after fl_fail. */
FL_API fl_data_set *fl_vision_folder(const char *path);
/* A class folder whose class indices come from a table: a text file whose line k is the folder name of class
   k, optionally a tab and a readable name (ImageNet's synsets). NULL after fl_fail, such as a folder that is
   not in the table. */
FL_API fl_data_set *fl_vision_imagenet(const char *path, const char *table);
/* The readable name of class k of a set by fl_vision_imagenet, or else its folder; NULL past the last
   class. */
FL_API const char *fl_vision_synset(const fl_data_set *imagenet, int64_t k);
/* A text file with a line per image: its path (relative to root if that is not NULL), a tab, and its class
   index. NULL after fl_fail, such as a path outside root (fl_data_path_inside). */
FL_API fl_data_set *fl_vision_list(const char *path, const char *root);
/* A name of sample i for messages: its file, if the set reads files (also through shuffling, sharding or
   prefetching wrappers), else "sample i". */
FL_API void fl_vision_sample_name(fl_data_set *set, int64_t i, char *buf, size_t size);

typedef struct fl_vision_objects_opts {
    fl_opts_guard guard_;
    bool masks; /* also return masks u8 [n, h, w], 1 inside the object */
    int64_t max_pixels; /* largest n h w of a sample's masks; 0 -> FL_VISION_MAX_PIXELS */
    char _end;
} fl_vision_objects_opts;
/* The images of a folder with their objects in coco (borrowed), prepared as for DETR: crowds are left out,
   boxes are clipped to the image, empty ones dropped. A sample is the encoded image, u8 [bytes]; boxes f32
   [n, 4], FL_VISION_XYXY in pixels; labels i64 [n], category ids; areas f32 [n]; the image's id, height and
   width, i64 [3]; and with .masks the masks. For fl_vision_batch with .objects. NULL after fl_fail. */
#define fl_vision_objects(...) FL__VISION_OBJECTS(__VA_ARGS__, ._end = 0)
#define FL__VISION_OBJECTS(coco, folder, ...) \
    fl_vision_objects_opt(coco, folder, FL_LITERAL(fl_vision_objects_opts, __VA_ARGS__))
FL_API fl_data_set *fl_vision_objects_opt(const fl_vision_coco *coco, const char *folder,
                                          fl_vision_objects_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_VISION_SETS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_VISION_SETS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_SETS_IMPL
#define FL_VISION_SETS_IMPL
#include "../ops/view.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- folders ---- */

static bool fl__vision_read_listed(const fl_data_list_entry *e, fl_data_sample *out, void *user) {
    (void)user;
    out->n = 1;
    return (out->t[0] = fl_vision_read_bytes(e->path)) != NULL;
}

FL_API fl_data_set *fl_vision_folder(const char *path) {
    return fl_data_folder(path, fl__vision_read_listed, .extensions = "jpg,jpeg,png,ppm,pgm",
                          .classes = true);
}

/* ---- ImageNet ---- */

typedef struct fl__synsets {
    char *text;
    const char **name; /* readable name of each class */
    int64_t n, *class_index; /* class index of each folder */
} fl__synsets;

static void fl__synsets_close(fl_data_set *self) {
    fl__synsets *t = self->user;
    if (t) fl_heap_free(t->text), fl_heap_free(t->name), fl_heap_free(t->class_index);
    fl_heap_free(t);
}

/* Reads the table and splits its lines in place: folder NUL name NUL. */
static bool fl__synsets_read(fl__synsets *t, const char *path, fl_data_set *folder) {
    fl_data_stream f;
    if (!fl_data_stream_open(&f, "fl_vision_imagenet", path, FL_DATA_READ)) return false;
    t->text = fl_heap_alloc((size_t)f.size + 2);
    const bool read = t->text && fl_data_stream_read(&f, t->text, (size_t)f.size, 0);
    const int64_t size = f.size;
    f.io.close(f.io.user, f.file);
    if (!read) return false;
    int64_t folders = 0, cap = 0;
    while (fl_data_class_name(folder, folders)) folders++;
    if (!(t->class_index = fl_heap_alloc((size_t)(folders + 1) * sizeof *t->class_index))) return false;
    for (int64_t k = 0; k < folders; k++) t->class_index[k] = -1;
    for (char *p = t->text, *end = t->text + size; p < end; t->n++) {
        char *stop = p + strcspn(p, "\r\n"), *tab = p + strcspn(p, "\t\r\n");
        if (!fl_heap_grow(&t->name, &cap, t->n + 1, sizeof *t->name)) return false;
        char *next = stop + (*stop == '\r' && stop[1] == '\n') + (*stop != 0);
        t->name[t->n] = *tab == '\t' ? tab + 1 : p;
        *tab = *stop = 0;
        for (int64_t k = 0; k < folders; k++)
            if (!strcmp(fl_data_class_name(folder, k), p)) t->class_index[k] = t->n;
        p = next > p ? next : end; /* a zero byte ends the table */
    }
    for (int64_t k = 0; k < folders; k++)
        if (t->class_index[k] < 0)
            return fl_fail("fl_vision_imagenet: %s has no line for the folder '%s'", path,
                           fl_data_class_name(folder, k));
    return true;
}

static bool fl__synsets_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__synsets *t = self->user;
    int64_t label;
    if (!fl_data_get(fl_data_inner(self, 0), i, out) || !fl_to_host(out->t[1], &label, sizeof label))
        return false;
    label = t->class_index[label];
    out->t[1] = fl_data_host_tensor(FL_SCALAR_SHAPE, FL_I64);
    return out->t[1] && fl_set_host(out->t[1], &label, sizeof label);
}

FL_API fl_data_set *fl_vision_imagenet(const char *path, const char *table) {
    fl_data_set *folder = fl_vision_folder(path);
    fl__synsets *t = folder ? fl_heap_alloc(sizeof *t) : NULL;
    if (t) *t = (fl__synsets){.n = 0};
    if (t && fl__synsets_read(t, table, folder))
        return fl_data_set_new(&(fl_data_set){.size = fl_data_size(folder), .get = fl__synsets_get,
                                              .close = fl__synsets_close, .user = t},
                               &folder, 1);
    fl__synsets_close(&(fl_data_set){.user = t});
    fl_data_free(folder);
    return NULL;
}

FL_API const char *fl_vision_synset(const fl_data_set *imagenet, int64_t k) {
    if (!imagenet || imagenet->get != fl__synsets_get) return NULL;
    const fl__synsets *t = imagenet->user;
    return k >= 0 && k < t->n ? t->name[k] : NULL;
}

/* ---- lists ---- */

static bool fl__vision_read_line(const fl_data_list_entry *e, fl_data_sample *out, void *user) {
    char *end = NULL;
    (void)user;
    errno = 0;
    const long long label = strtoll(e->field[1], &end, 10);
    if (end == e->field[1] || *end || errno)
        return fl_fail("fl_vision_list: line %lld: class '%s' is not an integer", (long long)e->line,
                       e->field[1]);
    const int64_t value = label;
    out->n = 2;
    return (out->t[0] = fl_vision_read_bytes(e->path)) &&
           (out->t[1] = fl_data_host_tensor(FL_SCALAR_SHAPE, FL_I64)) &&
           fl_set_host(out->t[1], &value, sizeof value);
}

FL_API fl_data_set *fl_vision_list(const char *path, const char *root) {
    return fl_data_list(path, fl__vision_read_line, .root = root, .columns = 2);
}

/* ---- CIFAR ---- */

enum { FL__CIFAR_SIDE = 32, FL__CIFAR_PLANE = 1024, FL__CIFAR_FILES = 64 };

typedef struct fl__cifar {
    const char *folder, *part;
    int n, labels, take, classes; /* files; label bytes per record, index of the one used */
    char name[FL__CIFAR_FILES][64];
    int64_t records[FL__CIFAR_FILES];
} fl__cifar;

static bool fl__cifar_name(void *arg, const char *name, bool folder) {
    fl__cifar *c = arg;
    const size_t n = strlen(name);
    const bool train = !strcmp(c->part, "train");
    if (folder || n < 5 || n >= sizeof c->name[0] || strcmp(name + n - 4, ".bin")) return true;
    const bool matches = train ? !strncmp(name, "data_batch", 10) || !strncmp(name, "train", 5)
                            : !strncmp(name, c->part, strlen(c->part));
    if (!matches || c->n == FL__CIFAR_FILES) return true;
    memcpy(c->name[c->n++], name, n + 1);
    return true;
}

static int fl__cifar_by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

/* Counts the records of file i (image NULL), or reads them to index at and following. */
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
        ok = fl_fail("fl_vision_cifar: %s: got %lld bytes, expected a multiple of the record's %zu", path,
                     (long long)f.size, size);
    if (ok && !image) c->records[i] = f.size / (int64_t)size;
    for (int64_t k = 0; ok && image && k < c->records[i]; k++) {
        ok = fl_data_stream_read(&f, record, size, k * (int64_t)size);
        if (ok && record[c->take] >= c->classes)
            ok = fl_fail("fl_vision_cifar: %s: offset %lld: label is %d, expected 0 to %d", path,
                         (long long)(k * (int64_t)size), record[c->take], c->classes - 1);
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
    if (!c->n) return fl_fail("fl_vision_cifar: %s: no *.bin file of part '%s'", c->folder, c->part);
    qsort(c->name, (size_t)c->n, sizeof c->name[0], fl__cifar_by_name);
    for (int i = 0; i < c->n; i++) {
        if (!fl__cifar_file(c, i, NULL, NULL, 0)) return false;
        n += c->records[i];
    }
    fl_tensor *image = fl_data_host_tensor(FL_SHAPE(n, FL__CIFAR_SIDE, FL__CIFAR_SIDE, 3), FL_U8);
    fl_tensor *label = fl_data_host_tensor(FL_SHAPE(n), FL_I64);
    uint8_t *pixel = image && label ? fl_map(image, FL_WRITE) : NULL;
    int64_t *class = pixel ? fl_map(label, FL_WRITE) : NULL, at = 0;
    bool ok = class != NULL;
    for (int i = 0; ok && i < c->n; at += c->records[i++]) ok = fl__cifar_file(c, i, pixel, class, at);
    if (class) fl_unmap(label, FL_WRITE);
    if (pixel) fl_unmap(image, FL_WRITE);
    if (ok) *out = (fl_vision_arrays){fl_permute(image, 4, planes), label};
    return ok && out->image;
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
    if (ok) *out = (fl_vision_arrays){fl_scope_escape(&s, read.image), fl_scope_escape(&s, read.label)};
    fl_scope_end(&s);
    fl_quiet(-1);
    fl_heap_free(c);
    return ok && out->image && out->label;
}

/* ---- images with objects ---- */

typedef struct fl__objects {
    const fl_vision_coco *coco;
    const char *folder; /* stored after this struct */
    bool masks;
    int64_t max_pixels;
    int64_t *first, *at; /* image i has objects at[first[i]] to at[first[i + 1] - 1] */
} fl__objects;

static void fl__objects_close(fl_data_set *self) {
    fl__objects *s = self->user;
    if (s) fl_heap_free(s->first);
    fl_heap_free(s);
}

/* The box of an object as corners, clipped to its image. False for crowds and if the box is empty. */
static bool fl__objects_box(const fl_vision_object *o, const fl_vision_coco_image *m, float out[4]) {
    const double most[] = {(double)m->w, (double)m->h};
    for (int d = 0; d < 4; d++) {
        const double v = o->box[d % 2] + (d < 2 ? 0 : o->box[d]);
        out[d] = (float)(v < 0 ? 0 : v > most[d % 2] ? most[d % 2] : v);
    }
    return !o->crowd && out[2] > out[0] && out[3] > out[1];
}

static bool fl__objects_mask(const fl__objects *s, const fl_vision_object *o, const fl_vision_coco_image *m,
                             uint8_t *to) {
    fl_vision_rle r;
    fl_vision_object sized = *o;
    if (!o->h && !o->w) sized.h = (int32_t)m->h, sized.w = (int32_t)m->w;
    if (sized.h != m->h || sized.w != m->w)
        return fl_fail("fl_vision_objects: object %lld has a mask of %d x %d, its image is %lld x %lld",
                       (long long)o->id, o->h, o->w, (long long)m->h, (long long)m->w);
    if (!fl_vision_coco_mask(s->coco, &sized, &r)) return false;
    fl_vision_rle_decode(&r, to);
    fl_heap_free(r.run);
    return true;
}

static bool fl__objects_fields(const fl__objects *s, int64_t i, fl_data_sample *out) {
    const fl_vision_coco_image *m = &s->coco->image[i];
    const int64_t begin = s->first[i], end = s->first[i + 1];
    int64_t n = 0;
    float box[4];
    for (int64_t k = begin; k < end; k++) n += fl__objects_box(&s->coco->object[s->at[k]], m, box);
    if (s->masks && n && m->h * m->w > s->max_pixels / n)
        return fl_fail("fl_vision_objects: image %lld: %lld masks of %lld x %lld pixels exceed max_pixels "
                       "(%lld)", (long long)m->id, (long long)n, (long long)m->h, (long long)m->w,
                       (long long)s->max_pixels);
    fl_tensor *boxes = fl_data_host_tensor(FL_SHAPE(n, 4), FL_F32),
              *area = fl_data_host_tensor(FL_SHAPE(n), FL_F32),
              *labels = fl_data_host_tensor(FL_SHAPE(n), FL_I64),
              *info = fl_data_host_tensor(FL_SHAPE(3), FL_I64),
              *masks = s->masks ? fl_data_host_tensor(FL_SHAPE(n, m->h, m->w), FL_U8) : NULL;
    if (!boxes || !area || !labels || !info || (s->masks && !masks)) return false;
    fl_tensor *const field[] = {boxes, area, labels, info, masks};
    void *p[5] = {NULL};
    int mapped = 0;
    const int fields = masks ? 5 : 4;
    while (mapped < fields && (p[mapped] = fl_map(field[mapped], FL_WRITE))) mapped++;
    bool ok = mapped == fields;
    float *corners = p[0], *size = p[1];
    int64_t *category = p[2];
    n = 0;
    for (int64_t k = begin; ok && k < end && n < boxes->shape[0]; k++) {
        const fl_vision_object *o = &s->coco->object[s->at[k]];
        if (!fl__objects_box(o, m, corners + 4 * n)) continue;
        category[n] = o->category, size[n] = (float)o->area;
        ok = !masks || fl__objects_mask(s, o, m, (uint8_t *)p[4] + n * m->h * m->w);
        n++;
    }
    if (ok) memcpy(p[3], (int64_t[]){m->id, m->h, m->w}, 3 * sizeof(int64_t));
    while (mapped-- > 0) fl_unmap(field[mapped], FL_WRITE);
    if (ok) *out = (fl_data_sample){s->masks ? 6 : 5, {out->t[0], boxes, labels, area, info, masks}};
    return ok;
}

static bool fl__objects_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__objects *s = self->user;
    const size_t n = strlen(s->folder) + strlen(s->coco->image[i].file) + 2;
    char *path = fl_heap_alloc(n);
    if (!path) return false;
    snprintf(path, n, "%s/%s", s->folder, s->coco->image[i].file);
    fl_data_sample made = {1, {fl_vision_read_bytes(path)}};
    const bool ok = made.t[0] && fl__objects_fields(s, i, &made);
    fl_heap_free(path);
    if (ok) *out = made;
    return ok;
}

FL_API fl_data_set *fl_vision_objects_opt(const fl_vision_coco *coco, const char *folder,
                                          fl_vision_objects_opts o) {
    if (!coco || !folder) {
        fl_fail("fl_vision_objects: coco or folder is NULL");
        return NULL;
    }
    const int64_t images = coco->n_image;
    const size_t size = strlen(folder) + 1;
    fl__objects *s = fl_heap_alloc(sizeof *s + size);
    if (!s) return NULL;
    *s = (fl__objects){.coco = coco, .folder = (char *)(s + 1), .masks = o.masks,
                       .max_pixels = o.max_pixels > 0 ? o.max_pixels : FL_VISION_MAX_PIXELS};
    memcpy(s + 1, folder, size);
    s->first = fl_heap_alloc((size_t)(images + 2 + coco->n_object) * sizeof *s->first);
    if (!s->first) {
        fl_heap_free(s);
        return NULL;
    }
    s->at = s->first + images + 2;
    /* Counting sort: first[i + 2] counts image i's objects, then first[i + 1] is its begin, advanced to its
       end. */
    for (int64_t i = 0; i < coco->n_object; i++)
        s->first[fl_vision_coco_find(coco, coco->object[i].image) + 2]++;
    for (int64_t i = 0; i < images; i++) s->first[i + 2] += s->first[i + 1];
    for (int64_t i = 0; i < coco->n_object; i++)
        s->at[s->first[fl_vision_coco_find(coco, coco->object[i].image) + 1]++] = i;
    return fl_data_set_new(
        &(fl_data_set){.size = images, .get = fl__objects_get, .close = fl__objects_close, .user = s}, NULL,
        0);
}

FL_API void fl_vision_sample_name(fl_data_set *set, int64_t i, char *buf, size_t size) {
    const int64_t id = fl_data_id(set, i);
    fl_data_set *leaf = set;
    while (leaf && fl_data_inner(leaf, 0) && !fl_data_inner(leaf, 1)) leaf = fl_data_inner(leaf, 0);
    if (leaf && leaf->get == fl__objects_get && id >= 0 && id < leaf->size) {
        const fl__objects *s = leaf->user;
        snprintf(buf, size, "%s/%s", s->folder, s->coco->image[id].file);
    } else if (!fl_data_listed_path(leaf, id, buf, size)) snprintf(buf, size, "sample %lld", (long long)id);
}

#endif
#endif

/* MIT licence: see LICENSE. */
