/* fl/data/blob.h - a data set in one file, with random access to samples

   Format: the magic "flblob1\n"; each tensor's bytes, row-major, little-endian, aligned to 8; an index; the
   tail (24 bytes): offset of the index, number of samples, the magic again. The index is 64-bit words: for
   each sample its number of fields; for each field the dtype's name in 8 bytes, the number of dims, the
   offset of its bytes, the dims. */
#ifndef FL_DATA_BLOB_H
#define FL_DATA_BLOB_H
#include "file.h"
#include "set.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes all samples of a set (which is not freed), one at a time, so that it may be larger than memory. The
   file is replaced atomically: data goes to "<path>.tmp", is synced to disk and renamed. */
FL_API bool fl_data_save_blob(const char *path, fl_data_set *set);
/* Opens such a file as a set: the index is read and checked now, samples on demand, into new tensors. */
FL_API fl_data_set *fl_data_open_blob(const char *path);
/* The same for n bytes in memory, which must outlive the set. */
FL_API fl_data_set *fl_data_blob_of(const void *bytes, size_t n);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_BLOB_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_BLOB) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_BLOB_IMPL
#define FL_DATA_BLOB_IMPL
#include "../ops/copy.h"
#include <stdio.h>
#include <string.h>

#define FL__BLOB_MAGIC "flblob1\n"
enum { FL__BLOB_HEAD = 8, FL__BLOB_TAIL = 24 };

/* ---- writing ---- */

typedef struct fl__blob_writer {
    fl_data_replacement r;
    int64_t at;
    int64_t *word, n, cap; /* index words */
} fl__blob_writer;

static bool fl__blob_put(fl__blob_writer *w, int64_t word) {
    if (!fl_heap_grow(&w->word, &w->cap, w->n + 1, sizeof *w->word)) return false;
    w->word[w->n++] = word;
    return true;
}

static bool fl__blob_write(fl__blob_writer *w, const void *bytes, size_t n) {
    const char zero[8] = {0};
    const size_t rest = (8 - n % 8) % 8;
    bool ok = fl_data_stream_write(&w->r.f, bytes, n, w->at) &&
              fl_data_stream_write(&w->r.f, zero, rest, w->at + (int64_t)n);
    w->at += (int64_t)(n + rest);
    return ok;
}

static bool fl__blob_write_tensor(fl__blob_writer *w, fl_tensor *t) {
    int64_t name = 0;
    const char *dtype = fl_dtype_name(t->dtype);
    if (strlen(dtype) > sizeof name)
        return fl_fail("%s: %s: the name of dtype %s is longer than 8 bytes", w->r.f.who, w->r.f.path, dtype);
    memcpy(&name, dtype, strlen(dtype));
    bool ok = fl__blob_put(w, name) && fl__blob_put(w, t->ndim) && fl__blob_put(w, w->at);
    for (int d = 0; ok && d < t->ndim; d++) ok = fl__blob_put(w, t->shape[d]);
    if (!ok || !(t = fl_contiguous(t))) return false;
    const size_t bytes = (size_t)fl_numel(t) * fl_dtype_size(t->dtype);
    void *p = bytes ? fl_map(t, FL_READ) : NULL;
    if (p) ok = fl__blob_write(w, p, bytes);
    if (p) fl_unmap(t, FL_READ);
    return ok && (p || !bytes);
}

static bool fl__blob_write_sample(fl__blob_writer *w, fl_data_set *set, int64_t i) {
    fl_scope scope = fl_scope_begin();
    fl_data_sample s;
    bool ok = scope.depth_ > 0 && fl_data_get(set, i, &s) && fl__blob_put(w, s.n);
    for (int k = 0; ok && k < s.n; k++) ok = fl__blob_write_tensor(w, s.t[k]);
    fl_scope_end(&scope);
    return ok;
}

static bool fl__blob_write_all(fl__blob_writer *w, fl_data_set *set) {
    bool ok = fl__blob_write(w, FL__BLOB_MAGIC, FL__BLOB_HEAD);
    for (int64_t i = 0; ok && i < fl_data_size(set); i++) ok = fl__blob_write_sample(w, set, i);
    int64_t tail[3] = {w->at, fl_data_size(set)};
    memcpy(&tail[2], FL__BLOB_MAGIC, 8);
    return ok && fl__blob_write(w, w->word, (size_t)w->n * sizeof *w->word) &&
           fl__blob_write(w, tail, sizeof tail);
}

FL_API bool fl_data_save_blob(const char *path, fl_data_set *set) {
    const char *who = "fl_data_save_blob";
    if (!path || !set) return fl_fail("%s: path or set is NULL", who);
    fl__blob_writer w = {0};
    fl_quiet(+1);
    const bool ok = fl_data_replace_begin(&w.r, who, path) &&
                    fl_data_replace_end(&w.r, fl__blob_write_all(&w, set));
    fl_quiet(-1);
    fl_heap_free(w.word);
    return ok;
}

/* ---- reading ---- */

typedef struct fl__blob {
    fl_data_stream f;
    char *path;
    const char *bytes; /* of a blob in memory, or NULL */
    int64_t index, n;  /* offset and number of words of the index */
    int64_t *word, *first; /* first[i]: first word of sample i */
    int64_t samples;
} fl__blob;

static int64_t fl__blob_memory_read(void *user, void *file, void *dst, size_t n, int64_t at) {
    (void)user;
    memcpy(dst, ((const fl__blob *)file)->bytes + at, n); /* in range: all ranges were checked */
    return (int64_t)n;
}

static int fl__blob_memory_close(void *user, void *file) {
    (void)user, (void)file;
    return 0;
}

/* One field, from the index. */
typedef struct fl__blob_field {
    fl_dtype dtype;
    fl_shape shape;
    int64_t at, bytes;
} fl__blob_field;

/* Parses the field at word *k and advances *k. */
static bool fl__blob_parse_field(const fl__blob *b, int64_t *k, fl__blob_field *f) {
    char name[9] = {0};
    const int64_t *w = b->word + *k;
    if (b->n - *k < 3) return false;
    memcpy(name, w, 8);
    f->dtype = fl_dtype_by_name(name);
    f->at = w[2];
    if (f->dtype == FL_DTYPE_NONE || w[1] < 0 || w[1] > FL_MAX_DIMS || b->n - *k - 3 < w[1]) return false;
    f->shape = (fl_shape){(int)w[1], {0}};
    memcpy(f->shape.dim, w + 3, (size_t)w[1] * sizeof *w);
    const int64_t numel = fl_shape_numel(f->shape);
    *k += 3 + w[1];
    return numel >= 0 && !__builtin_mul_overflow(numel, (int64_t)fl_dtype_size(f->dtype), &f->bytes) &&
           f->at >= FL__BLOB_HEAD && f->at <= b->index && f->bytes <= b->index - f->at;
}

/* Checks all samples and fields of the index, once. */
static bool fl__blob_check(fl__blob *b) {
    int64_t k = 0;
    for (int64_t i = 0; i < b->samples; i++) {
        const int64_t fields = k < b->n ? b->word[k] : -1;
        bool ok = fields >= 0 && fields <= FL_DATA_FIELDS;
        b->first[i] = k++;
        fl__blob_field f;
        for (int64_t j = 0; ok && j < fields; j++) ok = fl__blob_parse_field(b, &k, &f);
        if (!ok)
            return fl_fail("%s: %s: offset %lld: the index of sample %lld is not valid", b->f.who, b->f.path,
                           (long long)(b->index + 8 * b->first[i]), (long long)i);
    }
    return k == b->n || fl_fail("%s: %s: offset %lld: unexpected words after the index of the last sample",
                                b->f.who, b->f.path, (long long)(b->index + 8 * k));
}

static bool fl__blob_read_index(fl__blob *b) {
    char head[8];
    int64_t tail[3];
    const fl_data_stream *f = &b->f;
    if (f->size < FL__BLOB_HEAD + FL__BLOB_TAIL)
        return fl_fail("%s: %s: not a blob: got %lld bytes, expected at least %d", f->who, f->path,
                       (long long)f->size, FL__BLOB_HEAD + FL__BLOB_TAIL);
    if (!fl_data_stream_read(f, head, sizeof head, 0) ||
        !fl_data_stream_read(f, tail, sizeof tail, f->size - FL__BLOB_TAIL)) return false;
    if (memcmp(head, FL__BLOB_MAGIC, 8) != 0) return fl_fail("%s: %s: offset 0: not a blob", f->who, f->path);
    if (memcmp(&tail[2], FL__BLOB_MAGIC, 8) != 0)
        return fl_fail("%s: %s: offset %lld: the end marker is missing (truncated file?)", f->who, f->path,
                       (long long)(f->size - 8));
    const int64_t end = f->size - FL__BLOB_TAIL;
    if (tail[0] < FL__BLOB_HEAD || tail[0] > end || (end - tail[0]) % 8 || tail[1] < 0 ||
        tail[1] > (end - tail[0]) / 8)
        return fl_fail("%s: %s: offset %lld: not a valid index: %lld samples at offset %lld", f->who, f->path,
                       (long long)end, (long long)tail[1], (long long)tail[0]);
    b->index = tail[0], b->samples = tail[1], b->n = (end - tail[0]) / 8;
    b->word = fl_heap_alloc((size_t)b->n * sizeof *b->word + 1);
    b->first = fl_heap_alloc((size_t)b->samples * sizeof *b->first + 1);
    return b->word && b->first && fl_data_stream_read(f, b->word, (size_t)(end - tail[0]), tail[0]) &&
           fl__blob_check(b);
}

static fl_tensor *fl__blob_tensor(const fl__blob *b, const fl__blob_field *f) {
    fl_tensor *t = fl_data_host_tensor(f->shape, f->dtype);
    unsigned char *p = t && f->bytes ? fl_map(t, FL_WRITE) : NULL;
    bool ok = p && fl_data_stream_read(&b->f, p, (size_t)f->bytes, f->at);
    for (int64_t i = 0; ok && f->dtype == FL_B8 && i < f->bytes; i++)
        ok = p[i] <= 1 || fl_fail("%s: %s: offset %lld: a bool must be 0 or 1, got %d", b->f.who, b->f.path,
                                  (long long)(f->at + i), p[i]);
    if (p) fl_unmap(t, FL_WRITE);
    return ok || (t && !f->bytes) ? t : NULL;
}

static bool fl__blob_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__blob *b = self->user;
    int64_t k = b->first[i];
    for (int64_t fields = b->word[k++]; out->n < fields; out->n++) {
        fl__blob_field f;
        if (!fl__blob_parse_field(b, &k, &f) || !(out->t[out->n] = fl__blob_tensor(b, &f))) return false;
    }
    return true;
}

/* The first dim of field 0, from the index. */
static int64_t fl__blob_length(fl_data_set *self, int64_t i) {
    const fl__blob *b = self->user;
    int64_t k = b->first[i];
    fl__blob_field f;
    if (b->word[k++] == 0 || !fl__blob_parse_field(b, &k, &f)) return -1;
    return f.shape.ndim ? f.shape.dim[0] : 1;
}

static void fl__blob_free(fl__blob *b) {
    if (!b) return;
    if (b->f.file) b->f.io.close(b->f.io.user, b->f.file);
    fl_heap_free(b->path);
    fl_heap_free(b->word);
    fl_heap_free(b->first);
    fl_heap_free(b);
}

static void fl__blob_close(fl_data_set *self) {
    fl__blob_free(self->user);
}

static fl_data_set *fl__blob_set(fl__blob *b) {
    if (!b || !b->f.file || !fl__blob_read_index(b)) {
        fl__blob_free(b);
        return NULL;
    }
    return fl_data_set_new(&(fl_data_set){.size = b->samples, .get = fl__blob_get, .length = fl__blob_length,
                                          .close = fl__blob_close, .user = b}, NULL, 0);
}

FL_API fl_data_set *fl_data_open_blob(const char *path) {
    fl__blob *b = path ? fl_heap_alloc(sizeof *b) : NULL;
    if (!path) fl_fail("fl_data_open_blob: path is NULL");
    if (b) b->path = fl_heap_alloc(strlen(path) + 1);
    if (b && b->path) memcpy(b->path, path, strlen(path) + 1);
    if (b && b->path) fl_data_stream_open(&b->f, "fl_data_open_blob", b->path, FL_DATA_READ);
    return fl__blob_set(b);
}

FL_API fl_data_set *fl_data_blob_of(const void *bytes, size_t n) {
    if (!bytes || n > INT64_MAX) fl_fail("fl_data_blob_of: bytes is NULL, or n is too large");
    fl__blob *b = bytes && n <= INT64_MAX ? fl_heap_alloc(sizeof *b) : NULL;
    if (!b) return NULL;
    b->bytes = bytes;
    b->f = (fl_data_stream){.who = "fl_data_blob_of", .path = "memory", .size = (int64_t)n, .file = b};
    b->f.io.read = fl__blob_memory_read;
    b->f.io.close = fl__blob_memory_close;
    return fl__blob_set(b);
}

#endif
#endif

/* MIT licence: see LICENSE. */
