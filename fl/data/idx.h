/* idx.h - tensors of idx files, as MNIST's */
#ifndef FL_DATA_IDX_H
#define FL_DATA_IDX_H
#include "file.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The tensor of an idx file (MNIST's format), gzip-compressed or not (known by its first bytes;
   gzip wants FL_USE_ZLIB). Element types: unsigned byte -> u8, int -> i32, float -> f32, double ->
   f64; 1 to 8 dims. */
FL_API fl_tensor *fl_data_load_idx(const char *path);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_IDX_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_IDX) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_IDX_IMPL
#define FL_DATA_IDX_IMPL
#include <string.h>
#ifdef FL_USE_ZLIB
#include <zlib.h>
#endif

#define FL__IDX_PIECE ((size_t)1 << 28) /* bytes that zlib gets at once: its sizes are unsigned int */

typedef struct fl__idx_source {
    fl_data_stream f;
    int64_t at;   /* offset in the file, or in the unpacked data */
    bool gzipped;
#ifdef FL_USE_ZLIB
    z_stream z;
    int64_t in_at; /* offset in the file of the next bytes to unpack */
    bool ended;
    unsigned char in[1 << 14];
#endif
} fl__idx_source;

#ifdef FL_USE_ZLIB

static void *fl__z_alloc(void *user, unsigned items, unsigned size) {
    (void)user;
    size_t n;
    return fl__mul_size(items, size, &n) ? fl_heap_alloc(n) : NULL;
}

static void fl__z_free(void *user, void *p) {
    (void)user;
    fl_heap_free(p);
}

static bool fl__gz_begin(fl__idx_source *s) {
    s->z.zalloc = fl__z_alloc;
    s->z.zfree = fl__z_free;
    return inflateInit2(&s->z, 16 + MAX_WBITS) == Z_OK ||
           fl_fail("%s: %s: zlib does not start: out of memory", s->f.who, s->f.path);
}

/* Gives inflate more input; at the end of the file there is none. */
static bool fl__gz_refill(fl__idx_source *s) {
    int64_t left = s->f.size - s->in_at;
    size_t n = left < (int64_t)sizeof s->in ? (size_t)left : sizeof s->in;
    if (!fl_data_stream_read(&s->f, s->in, n, s->in_at)) return false;
    s->in_at += (int64_t)n;
    s->z.next_in = s->in;
    s->z.avail_in = (unsigned)n;
    return true;
}

/* Unpacks up to n bytes: fewer only at the end of the packed data. -1 after fl_fail. */
static int64_t fl__gz_read(fl__idx_source *s, void *dst, size_t n) {
    unsigned char *p = dst;
    size_t left = n;
    while (left && !s->ended) {
        if (!s->z.avail_in && !fl__gz_refill(s)) return -1;
        size_t piece = left < FL__IDX_PIECE ? left : FL__IDX_PIECE;
        s->z.next_out = p;
        s->z.avail_out = (unsigned)piece;
        int r = inflate(&s->z, Z_NO_FLUSH);
        size_t done = piece - s->z.avail_out;
        p += done, left -= done;
        if (r == Z_STREAM_END) s->ended = true;
        else if (r != Z_OK) {
            const char *what = r == Z_BUF_ERROR ? "it ends early" : "zlib error";
            if (s->z.msg) what = s->z.msg;
            fl_fail("%s: %s: bad gzip data before offset %lld: %s", s->f.who, s->f.path,
                    (long long)s->in_at, what);
            return -1;
        }
    }
    return (int64_t)(n - left);
}

static bool fl__gz_read_all(fl__idx_source *s, void *dst, size_t n) {
    int64_t got = fl__gz_read(s, dst, n);
    if (got < 0) return false;
    return got == (int64_t)n ||
           fl_fail("%s: %s: the unpacked data ends at offset %lld, %lld bytes early", s->f.who,
                   s->f.path, (long long)(s->at + got), (long long)((int64_t)n - got));
}

/* Nothing may follow; only here zlib compares its checksum. */
static bool fl__gz_finish(fl__idx_source *s) {
    char more;
    int64_t got = fl__gz_read(s, &more, 1);
    if (got < 0) return false;
    if (got > 0)
        return fl_fail(
            "%s: %s: unpacked data goes on at offset %lld, behind what its header declares",
            s->f.who, s->f.path, (long long)s->at);
    int64_t end = s->in_at - s->z.avail_in;
    return end == s->f.size || fl_fail("%s: %s: bytes behind the gzip data at offset %lld",
                                       s->f.who, s->f.path, (long long)end);
}

static void fl__gz_end(fl__idx_source *s) {
    inflateEnd(&s->z);
}

#else

static bool fl__gz_begin(fl__idx_source *s) {
    return fl_fail(
        "%s: %s is gzip-compressed and this program was built without zlib: install zlib "
        "(zlib1g-dev), then compile with -DFL_USE_ZLIB and link -lz, or unpack the file",
        s->f.who, s->f.path);
}

static bool fl__gz_read_all(fl__idx_source *s, void *dst, size_t n) {
    (void)s, (void)dst, (void)n;
    return false;
}

static bool fl__gz_finish(fl__idx_source *s) {
    (void)s;
    return false;
}

static void fl__gz_end(fl__idx_source *s) {
    (void)s;
}

#endif

static bool fl__idx_read(fl__idx_source *s, void *dst, size_t n) {
    bool ok = s->gzipped ? fl__gz_read_all(s, dst, n) : fl_data_stream_read(&s->f, dst, n, s->at);
    if (ok) s->at += (int64_t)n;
    return ok;
}

/* Compares the bytes that the header declares, `left` of them, with the file before anything is
   allocated. */
static bool fl__idx_check_size(const fl__idx_source *s, size_t left) {
    const int64_t deflate_limit = 1032; /* the most that deflate unpacks one byte to */
    if (s->gzipped)
        return (int64_t)(left / deflate_limit) <= s->f.size ||
               fl_fail("%s: %s: declares %zu bytes, more than its %lld compressed bytes can hold",
                       s->f.who, s->f.path, left, (long long)s->f.size);
    return (int64_t)left == s->f.size - s->at ||
           fl_fail("%s: %s: offset %lld: declares %zu bytes of data, the file has %lld", s->f.who,
                   s->f.path, (long long)s->at, left, (long long)(s->f.size - s->at));
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

/* Reads magic number and dims, and checks the size: *bytes of data follow. */
static bool fl__idx_header(fl__idx_source *s, fl_dtype *dtype, fl_shape *shape, size_t *bytes) {
    unsigned char head[4], dim[4];
    if (!fl__idx_read(s, head, 4)) return false;
    if (head[0] || head[1])
        return fl_fail("%s: %s: offset 0: not an idx file (it starts with %02x %02x)", s->f.who,
                       s->f.path, head[0], head[1]);
    *dtype = fl__idx_dtype(head[2]);
    if (*dtype == FL_DTYPE_NONE)
        return fl_fail("%s: %s: offset 2: element type 0x%02x is not supported (0x08 u8, 0x09 i8, "
                       "0x0b i16, 0x0c i32, 0x0d f32, 0x0e f64 are)", s->f.who, s->f.path, head[2]);
    shape->ndim = head[3];
    if (shape->ndim < 1 || shape->ndim > FL_MAX_DIMS)
        return fl_fail("%s: %s: offset 3: %d dims, 1 to %d are possible", s->f.who, s->f.path,
                       shape->ndim, FL_MAX_DIMS);
    for (int i = 0; i < shape->ndim; i++) {
        if (!fl__idx_read(s, dim, 4)) return false;
        shape->dim[i] = (int64_t)dim[0] << 24 | dim[1] << 16 | dim[2] << 8 | dim[3];
    }
    int64_t numel = fl_shape_numel(*shape);
    if (numel < 0 || !fl__mul_size((size_t)numel, fl_dtype_size(*dtype), bytes) ||
        *bytes > INT64_MAX)
        return fl_fail("%s: %s: offset 4: the dims multiply past 2^62", s->f.who, s->f.path);
    return fl__idx_check_size(s, *bytes);
}

/* Big-endian numbers to ours. */
static void fl__idx_swap(void *bytes, size_t n, size_t size) {
    char *p = bytes;
    for (size_t i = 0; i + size <= n; i += size)
        for (size_t k = 0; k < size / 2; k++) {
            char c = p[i + k];
            p[i + k] = p[i + size - 1 - k];
            p[i + size - 1 - k] = c;
        }
}

static fl_tensor *fl__idx_tensor(fl__idx_source *s) {
    fl_dtype dtype = FL_DTYPE_NONE;
    fl_shape shape = FL_SCALAR_SHAPE;
    size_t bytes = 0;
    if (!fl__idx_header(s, &dtype, &shape, &bytes)) return NULL;
    fl_tensor *t = fl_empty(shape, dtype);
    bool ok = t != NULL;
    if (ok && bytes) {
        void *p = fl_map(t, FL_WRITE);
        if (!p) return NULL;
        ok = fl__idx_read(s, p, bytes);
        fl__idx_swap(p, bytes, fl_dtype_size(dtype));
        fl_unmap(t, FL_WRITE);
    }
    if (ok && s->gzipped) ok = fl__gz_finish(s);
    return ok ? t : NULL;
}

static fl_tensor *fl__idx_load(fl__idx_source *s, const char *path) {
    unsigned char magic[2] = {0};
    if (!fl_data_stream_open(&s->f, "fl_data_load_idx", path, FL_DATA_READ)) return NULL;
    fl_tensor *t = NULL;
    if (s->f.size < 2 || fl_data_stream_read(&s->f, magic, 2, 0)) {
        s->gzipped = magic[0] == 0x1f && magic[1] == 0x8b;
        if (!s->gzipped) t = fl__idx_tensor(s);
        else if (fl__gz_begin(s)) {
            t = fl__idx_tensor(s);
            fl__gz_end(s);
        }
    }
    s->f.io.close(s->f.io.user, s->f.file);
    return t;
}

FL_API fl_tensor *fl_data_load_idx(const char *path) {
    fl__idx_source *s = fl_heap_alloc(sizeof *s);
    if (!s) return NULL;
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    fl_tensor *t = fl_scope_return(&scope, scope.depth_ > 0 ? fl__idx_load(s, path) : NULL);
    fl_quiet(-1);
    fl_heap_free(s);
    return t;
}

#endif
#endif

/* MIT licence: see LICENSE. */
