/* fl/data/named.h - files of named tensors, independent of the format */
#ifndef FL_DATA_NAMED_H
#define FL_DATA_NAMED_H
#include "file.h"
#include "text.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_data_named_tensor {
    const char *name;
    fl_tensor *tensor;
} fl_data_named_tensor;
typedef struct fl_data_key_value {
    const char *key, *value;
} fl_data_key_value;

/* A file of named tensors open for reading, from fl_data_open_safetensors or fl_data_open_npz.
   Thread-safe. */
typedef struct fl_data_file fl_data_file;
FL_API void fl_data_close(fl_data_file *f); /* NULL is allowed */
FL_API int64_t fl_data_count(const fl_data_file *f);
/* Name, dtype and shape of tensor i, in the file's order, 0 <= i < count. */
FL_API const char *fl_data_name(const fl_data_file *f, int64_t i);
FL_API fl_dtype fl_data_dtype(const fl_data_file *f, int64_t i);
FL_API fl_shape fl_data_shape(const fl_data_file *f, int64_t i);
/* Index of the tensor of that name; -1, without an error, if none. */
FL_API int64_t fl_data_find(const fl_data_file *f, const char *name);
/* Reads one tensor, and verifies its checksum if the file has one. */
FL_API fl_tensor *fl_data_read(fl_data_file *f, const char *name);
/* The metadata of that key; NULL, without an error, if none. Valid until fl_data_close. */
FL_API const char *fl_data_meta(const fl_data_file *f, const char *key);

/* For custom formats. */
typedef struct fl_data_entry {
    const char *name;
    fl_dtype dtype;
    fl_shape shape;
    int64_t begin, end; /* range of its bytes; the format defines the origin */
    uint32_t crc;
    int part;           /* for the format's use */
} fl_data_entry;
struct fl_data_file {
    fl_data_stream f; /* f.path is owned by this */
    fl_data_entry *entry;
    fl_data_key_value *meta;
    int64_t n, n_meta;
    fl_data_arena texts; /* freed with the file */
    /* One of these: fill writes the bytes of a tensor that was allocated, read makes the tensor in another
       way. */
    bool (*fill)(const fl_data_file *self, const fl_data_entry *e, void *dst);
    fl_tensor *(*read)(fl_data_file *self, const fl_data_entry *e);
    void (*close)(fl_data_file *self); /* frees `user`; may be NULL */
    void *user;
    /* private */
    fl_data_entry **sorted_;
    int64_t cap_, meta_cap_;
};
/* Opens a file for reading, without entries. */
FL_API fl_data_file *fl_data_file_new(const char *who, const char *path);
/* Appends an entry of that name (n bytes, copied), to be filled in by the caller. */
FL_API fl_data_entry *fl_data_file_add(fl_data_file *f, const char *name, int64_t n);
/* Appends a pair of metadata (copied). */
FL_API bool fl_data_file_add_meta(fl_data_file *f, const char *key, const char *value);
/* Sorts names and keys for lookup; duplicates are an error. */
FL_API bool fl_data_file_ready(fl_data_file *f);
/* Frees the contents of a file that is not a heap block, as writers have. */
FL_API void fl_data_file_clear(fl_data_file *f);
/* Whether the shape and dtype take end - begin bytes. */
FL_API bool fl_data_entry_fits(const fl_data_entry *e);
/* Allocates a tensor and fills it by f->fill. */
FL_API fl_tensor *fl_data_entry_read(fl_data_file *f, const fl_data_entry *e);
/* Makes the tensors of f views of the mapped file, as in fl_data_map_safetensors. Entries must be stored as
   they are, from `begin` on, and f must not use read, close or user; verify, unless NULL, checks the bytes of
   each tensor read. No effect if the table of file operations cannot map. */
FL_API bool fl_data_file_map(fl_data_file *f, bool (*verify)(const fl_data_file *f, const fl_data_entry *e,
                                                             const char *bytes));

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_NAMED_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_NAMED) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_NAMED_IMPL
#define FL_DATA_NAMED_IMPL
#include "../tensor/view.h"
#include <stdlib.h>
#include <string.h>

FL_API fl_data_file *fl_data_file_new(const char *who, const char *path) {
    if (!path) return fl_fail("%s: path is NULL", who), NULL;
    fl_data_file *f = fl_heap_alloc(sizeof *f);
    if (!f) return NULL;
    const char *own = fl_data_arena_add(&f->texts, path, strlen(path));
    if (own && fl_data_stream_open(&f->f, who, own, FL_DATA_READ)) return f;
    fl_data_close(f);
    return NULL;
}

FL_API fl_data_entry *fl_data_file_add(fl_data_file *f, const char *name, int64_t n) {
    if (!fl_given(f, "fl_data_file_add", "the file") ||
        !fl_given(name, "fl_data_file_add", "the name")) return NULL;
    if (!fl_heap_grow(&f->entry, &f->cap_, f->n + 1, sizeof *f->entry)) return NULL;
    fl_data_entry *e = &f->entry[f->n];
    *e = (fl_data_entry){.name = fl_data_arena_add(&f->texts, name, (size_t)n)};
    if (!e->name) return NULL;
    f->n++;
    return e;
}

FL_API bool fl_data_file_add_meta(fl_data_file *f, const char *key, const char *value) {
    if (!fl_given(f, "fl_data_file_add_meta", "the file") ||
        !fl_given(key, "fl_data_file_add_meta", "the key") ||
        !fl_given(value, "fl_data_file_add_meta", "the value")) return false;
    if (!fl_heap_grow(&f->meta, &f->meta_cap_, f->n_meta + 1, sizeof *f->meta)) return false;
    fl_data_key_value *p = &f->meta[f->n_meta];
    *p = (fl_data_key_value){fl_data_arena_add(&f->texts, key, strlen(key)),
                             fl_data_arena_add(&f->texts, value, strlen(value))};
    f->n_meta++;
    return p->key && p->value;
}

static int fl__named_by_name(const void *a, const void *b) {
    return strcmp((*(fl_data_entry *const *)a)->name, (*(fl_data_entry *const *)b)->name);
}

static int fl__named_by_key(const void *a, const void *b) {
    return strcmp(((const fl_data_key_value *)a)->key, ((const fl_data_key_value *)b)->key);
}

FL_API bool fl_data_file_ready(fl_data_file *f) {
    if (!fl_given(f, "fl_data_file_ready", "the file")) return false;
    if (!f->sorted_) f->sorted_ = fl_heap_alloc((size_t)f->n * sizeof *f->sorted_);
    if (!f->sorted_) return false;
    for (int64_t i = 0; i < f->n; i++) f->sorted_[i] = &f->entry[i];
    if (f->n > 1) qsort(f->sorted_, (size_t)f->n, sizeof *f->sorted_, fl__named_by_name);
    if (f->n_meta > 1) qsort(f->meta, (size_t)f->n_meta, sizeof *f->meta, fl__named_by_key);
    for (int64_t i = 1; i < f->n; i++)
        if (!strcmp(f->sorted_[i - 1]->name, f->sorted_[i]->name))
            return fl_fail("%s: %s: duplicate tensor name '%.100s'", f->f.who, f->f.path,
                           f->sorted_[i]->name);
    for (int64_t i = 1; i < f->n_meta; i++)
        if (!strcmp(f->meta[i - 1].key, f->meta[i].key))
            return fl_fail("%s: %s: duplicate metadata key '%.100s'", f->f.who, f->f.path, f->meta[i].key);
    return true;
}

FL_API bool fl_data_entry_fits(const fl_data_entry *e) {
    if (!fl_given(e, "fl_data_entry_fits", "the entry")) return false;
    const int64_t numel = fl_shape_numel(e->shape);
    size_t bytes;
    return numel >= 0 && fl__mul_size((size_t)numel, fl_dtype_size(e->dtype), &bytes) && e->begin <= e->end &&
           bytes == (uint64_t)(e->end - e->begin);
}

FL_API void fl_data_file_clear(fl_data_file *f) {
    if (!f) return;
    if (f->close) f->close(f);
    if (f->f.file) f->f.io.close(f->f.io.user, f->f.file);
    fl_data_arena_free(&f->texts);
    fl_heap_free(f->entry);
    fl_heap_free(f->sorted_);
    fl_heap_free(f->meta);
}

FL_API void fl_data_close(fl_data_file *f) {
    if (!f || fl_is_freed(f, "fl_data_close", "the file")) return;
    fl_data_file_clear(f);
    fl_object_free(f, "file", "");
}

FL_API int64_t fl_data_count(const fl_data_file *f) {
    return f ? f->n : 0;
}

static const fl_data_entry *fl__named_at(const fl_data_file *f, int64_t i, const char *who) {
    if (f && i >= 0 && i < f->n) return &f->entry[i];
    fl_fail("%s: tensor index must be in [0, %lld), got %lld", who, (long long)fl_data_count(f),
            (long long)i);
    return NULL;
}

FL_API const char *fl_data_name(const fl_data_file *f, int64_t i) {
    const fl_data_entry *e = fl__named_at(f, i, "fl_data_name");
    return e ? e->name : NULL;
}

FL_API fl_dtype fl_data_dtype(const fl_data_file *f, int64_t i) {
    const fl_data_entry *e = fl__named_at(f, i, "fl_data_dtype");
    return e ? e->dtype : FL_DTYPE_NONE;
}

FL_API fl_shape fl_data_shape(const fl_data_file *f, int64_t i) {
    const fl_data_entry *e = fl__named_at(f, i, "fl_data_shape");
    return e ? e->shape : FL_SCALAR_SHAPE;
}

FL_API int64_t fl_data_find(const fl_data_file *f, const char *name) {
    fl_data_entry key = {.name = name}, *k = &key, **found = NULL;
    if (f && name && f->n)
        found = bsearch(&k, f->sorted_, (size_t)f->n, sizeof *f->sorted_, fl__named_by_name);
    return found ? *found - f->entry : -1;
}

FL_API const char *fl_data_meta(const fl_data_file *f, const char *key) {
    fl_data_key_value k = {key, NULL}, *found = NULL;
    if (f && key && f->n_meta)
        found = bsearch(&k, f->meta, (size_t)f->n_meta, sizeof *f->meta, fl__named_by_key);
    return found ? found->value : NULL;
}

FL_API fl_tensor *fl_data_entry_read(fl_data_file *f, const fl_data_entry *e) {
    if (!fl_given(f, "fl_data_entry_read", "the file") ||
        !fl_given(e, "fl_data_entry_read", "the entry")) return NULL;
    fl_tensor *t = fl_data_host_tensor(e->shape, e->dtype);
    void *p = t ? fl_map(t, FL_WRITE) : NULL;
    if (!p) return NULL;
    const bool ok = f->fill(f, e, p);
    fl_unmap(t, FL_WRITE);
    return ok ? t : NULL;
}

/* ---- memory mapping ---- */

/* A mapped file: referenced by the open file and by each tensor. */
typedef struct fl__mapping {
    fl_data_io io;
    char *p;
    int64_t n;
    int refs;
    bool (*verify)(const fl_data_file *f, const fl_data_entry *e, const char *bytes);
} fl__mapping;

static void fl__mapping_drop(fl__mapping *m) {
    if (__atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL)) return;
    m->io.unmap(m->io.user, m->p, m->n);
    fl_heap_free(m);
}

/* Memory manager of one mapped tensor's buffer; freed with it. */
typedef struct fl__mapped {
    fl_mem_manager manager;
    fl__mapping *mapping;
    char *at;
} fl__mapped;

static bool fl__mapped_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    (void)info;
    b->ptr = ((fl__mapped *)self->user)->at;
    return true;
}

static void fl__mapped_put(fl_mem_manager *self, fl_buffer *b) {
    fl__mapped *v = self->user;
    b->ptr = NULL;
    fl__mapping_drop(v->mapping);
    fl_heap_free(v);
}

/* The buffer begins at a multiple of FL_ALIGN; for registered (block) dtypes at the tensor's first byte. */
static fl_tensor *fl__mapped_view(fl__mapping *m, const fl_data_entry *e) {
    const int64_t size = (int64_t)fl_dtype_size(e->dtype);
    const int64_t begin = fl_dtype_registered(e->dtype) ? e->begin : e->begin / FL_ALIGN * FL_ALIGN;
    fl__mapped *v = fl_heap_alloc(sizeof *v);
    if (!v) return NULL;
    *v = (fl__mapped){{.name = "mapped file", .get = fl__mapped_get, .put = fl__mapped_put, .user = v},
                      m, m->p + begin};
    fl_buffer *b = fl_buffer_from(&v->manager, (size_t)(e->end - begin), NULL);
    if (!b) return fl_heap_free(v), NULL;
    __atomic_add_fetch(&m->refs, 1, __ATOMIC_RELAXED);
    fl_quiet(+1);
    fl_tensor *t = fl_from_buffer(b, e->dtype, e->shape, NULL, (e->begin - begin) / size);
    fl_quiet(-1);
    if (!t) fl_buffer_drop(b);
    return t;
}

static fl_tensor *fl__read_mapped(fl_data_file *f, const fl_data_entry *e) {
    fl__mapping *m = f->user;
    const int64_t size = f->f.io.size(f->f.io.user, f->f.file);
    if (size < 0) return fl_data_stream_fail(&f->f, "cannot read its size"), NULL;
    if (size < m->n)
        return fl_fail("fl_data_read: %s: the file shrank from %lld to %lld bytes since it was opened",
                       f->f.path, (long long)m->n, (long long)size), NULL;
    const bool aligned = fl_dtype_registered(e->dtype) || e->begin % (int64_t)fl_dtype_size(e->dtype) == 0;
    if (e->begin == e->end || !aligned) return fl_data_entry_read(f, e);
    if (m->verify && !m->verify(f, e, m->p + e->begin)) return NULL;
    return fl__mapped_view(m, e);
}

static void fl__close_mapped(fl_data_file *f) {
    fl__mapping_drop(f->user);
}

FL_API bool fl_data_file_map(fl_data_file *f, bool (*verify)(const fl_data_file *f, const fl_data_entry *e,
                                                             const char *bytes)) {
    if (!fl_given(f, "fl_data_file_map", "the file")) return false;
    if (!f->f.io.map) return true;
    fl__mapping *m = fl_heap_alloc(sizeof *m);
    if (m)
        *m = (fl__mapping){f->f.io, f->f.io.map(f->f.io.user, f->f.file, f->f.size), f->f.size, 1, verify};
    if (m && m->p) {
        f->user = m, f->read = fl__read_mapped, f->close = fl__close_mapped;
        return true;
    }
    if (m) fl_data_stream_fail(&f->f, "cannot map");
    fl_heap_free(m);
    return false;
}

FL_API fl_tensor *fl_data_read(fl_data_file *f, const char *name) {
    if (fl_is_freed(f, "fl_data_read", "the file")) return NULL;
    const int64_t i = fl_data_find(f, name);
    if (i < 0) {
        fl_fail("fl_data_read: %s: there is no tensor '%.100s'", f ? f->f.path : "no file",
                name ? name : "(null)");
        return NULL;
    }
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    fl_tensor *t = scope.depth_ > 0 ? (f->read ? f->read : fl_data_entry_read)(f, &f->entry[i]) : NULL;
    t = fl_scope_return(&scope, t);
    fl_quiet(-1);
    return t;
}

#endif
#endif

/* MIT licence: see LICENSE. */
