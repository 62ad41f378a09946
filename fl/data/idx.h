/* fl/data/idx.h - idx files (MNIST) */
#ifndef FL_DATA_IDX_H
#define FL_DATA_IDX_H
#include "file.h"
#include "pack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the tensor of an idx file (MNIST's format), plain or gzip-compressed (recognised by its first bytes;
   gzip needs FL_USE_ZLIB). Element types: unsigned byte -> u8, int -> i32, float -> f32, double -> f64; 1 to
   8 dims. */
#define fl_data_load_idx(...) FL__DATA_LOAD_IDX(__VA_ARGS__, ._end = 0)
#define FL__DATA_LOAD_IDX(path, ...) fl_data_load_idx_opt(path, FL_LITERAL(fl_data_unpack_opts, __VA_ARGS__))
FL_API fl_tensor *fl_data_load_idx_opt(const char *path, fl_data_unpack_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_IDX_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_IDX) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_IDX_IMPL
#define FL_DATA_IDX_IMPL
/* Compares the size that the header declares, `left` bytes, with the file before anything is allocated. */
static bool fl__idx_check_size(const fl_data_source *s, size_t left, const fl_data_unpack_opts *o) {
    if (s->packing == FL_DATA_GZIP)
        return ((int64_t)(left / FL_DATA_DEFLATE_LIMIT) <= s->f->size ||
                fl_fail("%s: %s: the header declares %zu bytes, more than its %lld compressed bytes can hold",
                        s->f->who, s->f->path, left, (long long)s->f->size)) &&
               fl_data_may_unpack(s->f, (int64_t)left, o);
    return (int64_t)left == s->f->size - s->at ||
           fl_fail("%s: %s: offset %lld: the header declares %zu bytes of data, but the file has %lld",
                   s->f->who, s->f->path, (long long)s->at, left, (long long)(s->f->size - s->at));
}

static fl_dtype fl__idx_dtype(int code) {
    switch (code) {
    case 0x08: return FL_U8;
    case 0x09: return FL_I8;
    case 0x0b: return FL_I16;
    case 0x0c: return FL_I32;
    case 0x0d: return FL_F32;
    case 0x0e: return FL_F64;
    default: return FL_DTYPE_NONE;
    }
}

/* Reads magic number and dims, and checks the size; *bytes of data follow. */
static bool fl__idx_header(fl_data_source *s, const fl_data_unpack_opts *o, fl_dtype *dtype, fl_shape *shape,
                           size_t *bytes) {
    unsigned char head[4], dim[4];
    if (!fl_data_source_read(s, head, 4)) return false;
    if (head[0] || head[1])
        return fl_fail("%s: %s: offset 0: not an idx file (it starts with %02x %02x)", s->f->who,
                       s->f->path, head[0], head[1]);
    *dtype = fl__idx_dtype(head[2]);
    if (*dtype == FL_DTYPE_NONE)
        return fl_fail("%s: %s: offset 2: element type 0x%02x is not supported (0x08 u8, 0x09 i8, "
                       "0x0b i16, 0x0c i32, 0x0d f32, 0x0e f64 are)", s->f->who, s->f->path, head[2]);
    shape->ndim = head[3];
    if (shape->ndim < 1 || shape->ndim > FL_MAX_DIMS)
        return fl_fail("%s: %s: offset 3: the number of dims must be in [1, %d], got %d", s->f->who,
                       s->f->path, FL_MAX_DIMS, shape->ndim);
    for (int i = 0; i < shape->ndim; i++) {
        if (!fl_data_source_read(s, dim, 4)) return false;
        shape->dim[i] = (int64_t)dim[0] << 24 | dim[1] << 16 | dim[2] << 8 | dim[3];
    }
    int64_t numel = fl_shape_numel(*shape);
    if (numel < 0 || !fl__mul_size((size_t)numel, fl_dtype_size(*dtype), bytes) ||
        *bytes > INT64_MAX)
        return fl_fail("%s: %s: offset 4: the product of the dims exceeds 2^62", s->f->who, s->f->path);
    return fl__idx_check_size(s, *bytes, o);
}

static fl_tensor *fl__idx_tensor(fl_data_source *s, const fl_data_unpack_opts *o) {
    fl_dtype dtype = FL_DTYPE_NONE;
    fl_shape shape = FL_SCALAR_SHAPE;
    size_t bytes = 0;
    if (!fl__idx_header(s, o, &dtype, &shape, &bytes)) return NULL;
    fl_tensor *t = fl_data_host_tensor(shape, dtype);
    bool ok = t != NULL;
    if (ok && bytes) {
        void *p = fl_map(t, FL_WRITE);
        if (!p) return NULL;
        ok = fl_data_source_read(s, p, bytes);
        fl_data_swap_bytes(p, bytes, fl_dtype_size(dtype));
        fl_unmap(t, FL_WRITE);
    }
    return ok && fl_data_source_finish(s) ? t : NULL;
}

static fl_tensor *fl__idx_load(const char *path, const fl_data_unpack_opts *o) {
    unsigned char magic[2] = {0};
    fl_data_stream f;
    fl_data_source s;
    if (!fl_data_stream_open(&f, "fl_data_load_idx", path, FL_DATA_READ)) return NULL;
    fl_tensor *t = NULL;
    if (f.size < 2 || fl_data_stream_read(&f, magic, 2, 0)) {
        const bool gzip = magic[0] == 0x1f && magic[1] == 0x8b;
        if (fl_data_source_begin(&s, &f, 0, f.size, gzip ? FL_DATA_GZIP : FL_DATA_PLAIN)) {
            t = fl__idx_tensor(&s, o);
            fl_data_source_end(&s);
        }
    }
    f.io.close(f.io.user, f.file);
    return t;
}

FL_API fl_tensor *fl_data_load_idx_opt(const char *path, fl_data_unpack_opts o) {
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    fl_tensor *t = fl_scope_return(&scope, scope.depth_ > 0 ? fl__idx_load(path, &o) : NULL);
    fl_quiet(-1);
    return t;
}

#endif
#endif

/* MIT licence: see LICENSE. */
