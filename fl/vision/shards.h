/* fl/vision/shards.h - tar shards of images (WebDataset): random access and writing */
#ifndef FL_VISION_SHARDS_H
#define FL_VISION_SHARDS_H
#include "images.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The samples of n tar files, concatenated. The entries of a sample are consecutive and share their name up
   to the first dot: key.jpg (jpeg, png, ppm, pgm) is the encoded image, u8 [bytes], for fl_vision_batch;
   key.cls, decimal digits, is the class, i64 [], -1 if absent; other entries are ignored. All headers are
   read here, and 24 bytes per sample are kept; images are read on demand. NULL after fl_fail with file and
   offset: an invalid ustar header or checksum, a size past the end, a sample without an image. Entry names
   are only keys: no file is opened or written by that name. */
FL_API fl_data_set *fl_vision_shards(const char *const *paths, int n);
/* Writes the samples of a set, encoded image u8 [bytes] and optionally class i64 [], in order, as tar files
   prefix-000000.tar, ... of at most `each` samples. Every file is replaced atomically. Returns the number of
   files, or -1 after fl_fail. */
FL_API int64_t fl_vision_pack(fl_data_set *set, const char *prefix, int64_t each);

#ifdef __cplusplus
}
#endif
#endif /* FL_VISION_SHARDS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_VISION_SHARDS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_SHARDS_IMPL
#define FL_VISION_SHARDS_IMPL
#include "../ops/copy.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { FL__TAR_BLOCK = 512, FL__TAR_NAME = 257, FL__TAR_SUM = 148 };

typedef struct fl__tar_sample {
    int64_t at, size; /* of the image */
    int32_t shard, label;
} fl__tar_sample;

typedef struct fl__tar_set {
    fl_data_stream *file;
    int n_file;
    fl__tar_sample *sample;
    int64_t n, cap;
} fl__tar_set;

/* ---- headers ---- */

/* Parses octal digits up to a blank or NUL; -1 if there are other characters. */
static int64_t fl__tar_number(const char *p, int n) {
    int64_t v = 0;
    int i = 0;
    while (i < n && p[i] == ' ') i++;
    for (; i < n && p[i] >= '0' && p[i] <= '7'; i++) v = 8 * v + p[i] - '0';
    return i == n || p[i] == ' ' || !p[i] ? v : -1;
}

/* The header checksum: the sum of its bytes, with blanks in the checksum field. */
static int64_t fl__tar_sum(const char *block) {
    int64_t sum = 8 * ' ';
    for (int i = 0; i < FL__TAR_BLOCK; i++)
        if (i < FL__TAR_SUM || i >= FL__TAR_SUM + 8) sum += (unsigned char)block[i];
    return sum;
}

typedef struct fl__tar_entry {
    char name[FL__TAR_NAME];
    int64_t size;
    char kind; /* type flag; '0': regular file */
} fl__tar_entry;

/* Reads the header at offset `at`; *end: end of the archive. */
static bool fl__tar_header(const fl_data_stream *f, int64_t at, fl__tar_entry *e, bool *end) {
    static const char zeros[FL__TAR_BLOCK];
    char b[FL__TAR_BLOCK];
    *end = at == f->size;
    if (*end) return true;
    if (f->size - at < FL__TAR_BLOCK)
        return fl_fail("fl_vision_shards: %s: offset %" PRId64 ": the archive is truncated", f->path, at);
    if (!fl_data_stream_read(f, b, sizeof b, at)) return false;
    *end = !memcmp(b, zeros, sizeof b);
    if (*end) return true;
    e->size = fl__tar_number(b + 124, 12), e->kind = b[156] ? b[156] : '0';
    if (fl__tar_number(b + FL__TAR_SUM, 8) != fl__tar_sum(b))
        return fl_fail("fl_vision_shards: %s: offset %" PRId64 ": tar header with a wrong checksum",
                       f->path, at);
    if (e->kind == 'L' || e->kind == 'K')
        return fl_fail("fl_vision_shards: %s: offset %" PRId64 ": GNU long name, expected a ustar header",
                       f->path, at);
    if (e->size < 0 || e->size > f->size - at - FL__TAR_BLOCK)
        return fl_fail("fl_vision_shards: %s: offset %" PRId64 ": entry of %" PRId64 " bytes, but %" PRId64
                       " are left",
                       f->path, at, e->size, f->size - at - FL__TAR_BLOCK);
    const bool ustar = !memcmp(b + 257, "ustar", 5) && b[345];
    snprintf(e->name, sizeof e->name, "%.*s%s%.*s", ustar ? 155 : 0, b + 345, ustar ? "/" : "", 100, b);
    return true;
}

/* ---- reading ---- */

/* Length of the key: the name up to the first dot after the last slash. */
static size_t fl__shard_key(const char *name) {
    const char *base = strrchr(name, '/'), *dot = strchr(base ? base : name, '.');
    return dot ? (size_t)(dot - name) : strlen(name);
}

static bool fl__shard_is_image(const char *extension) {
    static const char *const list[] = {".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".JPG", ".JPEG", ".PNG"};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!strcmp(extension, list[i])) return true;
    return false;
}

static bool fl__shard_label(const fl_data_stream *f, int64_t at, int64_t size, int32_t *out) {
    char text[12] = "";
    int64_t v = 0, i = 0;
    if (size < (int64_t)sizeof text && !fl_data_stream_read(f, text, (size_t)size, at)) return false;
    for (; text[i] >= '0' && text[i] <= '9'; i++) v = 10 * v + text[i] - '0';
    *out = (int32_t)v;
    const char *rest = text + i;
    const bool ended = i + (int64_t)strlen(rest) == size &&
                       (!*rest || !strcmp(rest, "\n") || !strcmp(rest, "\r\n"));
    return (i > 0 && ended && v <= INT32_MAX) ||
           fl_fail("fl_vision_shards: %s: offset %" PRId64 ": the class must be decimal digits", f->path, at);
}

/* Indexes the samples of file k. */
static bool fl__shard_index(fl__tar_set *s, int k) {
    const fl_data_stream *f = &s->file[k];
    char key[FL__TAR_NAME] = "";
    fl__tar_entry e;
    bool end, open = false;
    for (int64_t at = 0;;
         at += FL__TAR_BLOCK + (e.size + FL__TAR_BLOCK - 1) / FL__TAR_BLOCK * FL__TAR_BLOCK) {
        if (!fl__tar_header(f, at < f->size ? at : f->size, &e, &end)) return false;
        if (!end && e.kind != '0') continue;
        const size_t n = end ? 0 : fl__shard_key(e.name);
        if (open && (end || strlen(key) != n || strncmp(key, e.name, n)) && s->sample[s->n - 1].at < 0)
            return fl_fail("fl_vision_shards: %s: offset %" PRId64 ": sample '%s' ends without an image",
                           f->path, at, key);
        if (end) return true;
        if (!open || strlen(key) != n || strncmp(key, e.name, n)) {
            if (!fl_heap_grow(&s->sample, &s->cap, s->n + 1, sizeof *s->sample)) return false;
            s->sample[s->n++] = (fl__tar_sample){.at = -1, .shard = k, .label = -1};
            memcpy(key, e.name, n), key[n] = 0, open = true;
        }
        fl__tar_sample *now = &s->sample[s->n - 1];
        if (fl__shard_is_image(e.name + n)) now->at = at + FL__TAR_BLOCK, now->size = e.size;
        else if (!strcmp(e.name + n, ".cls") && !fl__shard_label(f, at + FL__TAR_BLOCK, e.size, &now->label))
            return false;
    }
}

static bool fl__tar_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__tar_set *s = self->user;
    const fl__tar_sample *e = &s->sample[i];
    const int64_t label = e->label;
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(e->size), FL_U8),
              *y = fl_data_host_tensor(FL_SCALAR_SHAPE, FL_I64);
    void *p = t && y && fl_set_host(y, &label, sizeof label) ? fl_map(t, FL_WRITE) : NULL;
    const bool ok =
        p && (!e->size || fl_data_stream_read(&s->file[e->shard], p, (size_t)e->size, e->at));
    if (p) fl_unmap(t, FL_WRITE);
    if (ok) *out = (fl_data_sample){2, {t, y}};
    return ok;
}

static void fl__tar_close(fl_data_set *self) {
    fl__tar_set *s = self->user;
    for (int k = 0; s && k < s->n_file; k++) s->file[k].io.close(s->file[k].io.user, s->file[k].file);
    if (s) fl_heap_free(s->file), fl_heap_free(s->sample);
    fl_heap_free(s);
}

FL_API fl_data_set *fl_vision_shards(const char *const *paths, int n) {
    if (!paths || n < 1) {
        fl_fail("fl_vision_shards: got %d paths, expected n >= 1, paths not NULL", n);
        return NULL;
    }
    size_t text = 0;
    for (int k = 0; k < n; k++) text += paths[k] ? strlen(paths[k]) + 1 : 1;
    fl__tar_set *s = fl_heap_alloc(sizeof *s);
    if (!s) return NULL;
    *s = (fl__tar_set){.file = fl_heap_alloc((size_t)n * sizeof *s->file + text)};
    bool ok = s->file != NULL;
    char *name = ok ? (char *)(s->file + n) : NULL; /* errors name the files for the lifetime of the set */
    for (int k = 0; ok && k < n; k++) {
        if (paths[k]) strcpy(name, paths[k]);
        ok = fl_data_stream_open(&s->file[k], "fl_vision_shards", paths[k] ? name : NULL, FL_DATA_READ);
        s->n_file += ok, name += strlen(name) + 1;
        ok = ok && fl__shard_index(s, k);
    }
    if (ok && !s->n) ok = fl_fail("fl_vision_shards: %s: the archive has no samples", paths[0]);
    if (ok)
        return fl_data_set_new(
            &(fl_data_set){.size = s->n, .get = fl__tar_get, .close = fl__tar_close, .user = s}, NULL,
            0);
    fl__tar_close(&(fl_data_set){.user = s});
    return NULL;
}

/* ---- writing ---- */

/* Writes an entry at *at: header, data and padding. */
static bool fl__tar_put(const fl_data_stream *f, int64_t *at, const char *name, const void *bytes,
                        int64_t n) {
    static const char zeros[FL__TAR_BLOCK];
    char b[FL__TAR_BLOCK] = {0};
    const int64_t rest = (FL__TAR_BLOCK - n % FL__TAR_BLOCK) % FL__TAR_BLOCK;
    snprintf(b, 100, "%s", name);
    memcpy(b + 100, "0000644\0" "0000000\0" "0000000\0", 24);
    snprintf(b + 124, 13, "%011" PRIo64 " ", (uint64_t)n);
    snprintf(b + 136, 13, "%011o ", 0u);
    memcpy(b + 156, "0", 1), memcpy(b + 257, "ustar\0" "00", 8);
    snprintf(b + FL__TAR_SUM, 8, "%06o", (unsigned)fl__tar_sum(b));
    b[FL__TAR_SUM + 7] = ' ';
    const bool ok = fl_data_stream_write(f, b, sizeof b, *at) &&
                    (!n || fl_data_stream_write(f, bytes, (size_t)n, *at + FL__TAR_BLOCK)) &&
                    (!rest || fl_data_stream_write(f, zeros, (size_t)rest, *at + FL__TAR_BLOCK + n));
    *at += FL__TAR_BLOCK + n + rest;
    return ok;
}

static bool fl__pack_sample(const fl_data_stream *f, int64_t *at, fl_data_set *set, int64_t i) {
    char name[40], text[24];
    fl_data_sample one;
    fl_vision_info info;
    if (!fl_data_get(set, i, &one)) return false;
    fl_tensor *t = one.n ? fl_contiguous(one.t[0]) : NULL;
    if (!t || t->dtype != FL_U8 || t->ndim != 1 ||
        (one.n > 1 && (one.t[1]->ndim || one.t[1]->dtype != FL_I64)))
        return fl_fail("fl_vision_pack: sample %" PRId64 ": expected an encoded image u8 [bytes], and "
                       "optionally a class i64 []", i);
    const void *bytes = fl_map(t, FL_READ);
    bool ok = bytes && fl_vision_inspect(bytes, (size_t)fl_numel(t), true, &info);
    if (ok) {
        snprintf(name, sizeof name, "%09" PRId64 ".%s", i,
                 !strcmp(info.format, "jpeg")  ? "jpg"
                 : !strcmp(info.format, "png") ? "png"
                                               : "ppm");
        ok = fl__tar_put(f, at, name, bytes, fl_numel(t));
    }
    if (bytes) fl_unmap(t, FL_READ);
    if (!ok || one.n < 2) return ok;
    int64_t label = 0;
    if (!fl_to_host(one.t[1], &label, sizeof label)) return false;
    snprintf(name, sizeof name, "%09" PRId64 ".cls", i), snprintf(text, sizeof text, "%" PRId64, label);
    return fl__tar_put(f, at, name, text, (int64_t)strlen(text));
}

FL_API int64_t fl_vision_pack(fl_data_set *set, const char *prefix, int64_t each) {
    static const char zeros[2 * FL__TAR_BLOCK];
    if (!set || !prefix || each < 1) {
        fl_fail("fl_vision_pack: got each %" PRId64 ", expected >= 1%s", each,
                set && prefix ? "" : "; set or prefix is NULL");
        return -1;
    }
    const size_t size = strlen(prefix) + 32;
    char *path = fl_heap_alloc(size);
    bool ok = path != NULL;
    int64_t files = 0;
    fl_quiet(+1);
    for (int64_t i = 0; ok && i < fl_data_size(set); files++) {
        fl_data_replacement r;
        int64_t at = 0;
        snprintf(path, size, "%s-%06" PRId64 ".tar", prefix, files);
        ok = fl_data_replace_begin(&r, "fl_vision_pack", path);
        if (!ok) break;
        for (const int64_t end = i + each; ok && i < end && i < fl_data_size(set); i++) {
            fl_scope s = fl_scope_begin();
            ok = s.depth_ > 0 && fl__pack_sample(&r.f, &at, set, i);
            fl_scope_end(&s);
        }
        ok = ok && fl_data_stream_write(&r.f, zeros, sizeof zeros, at);
        ok = fl_data_replace_end(&r, ok) && ok;
    }
    fl_quiet(-1);
    fl_heap_free(path);
    return ok ? files : -1;
}

#endif
#endif

/* MIT licence: see LICENSE. */
