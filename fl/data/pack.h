/* fl/data/pack.h - sequential reading of a file with decompression (gzip, deflate); compression */
#ifndef FL_DATA_PACK_H
#define FL_DATA_PACK_H
#include "file.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fl_data_packing {
    FL_DATA_PLAIN,
    FL_DATA_GZIP,   /* RFC 1952; this and the next need FL_USE_ZLIB */
    FL_DATA_DEFLATE /* RFC 1951, as in zip: without header and checksum */
} fl_data_packing;
#define FL_DATA_DEFLATE_LIMIT 1032 /* largest compression ratio of deflate */

typedef struct fl_data_source {
    const fl_data_stream *f;
    fl_data_packing packing;
    int64_t at;              /* number of unpacked bytes read */
    int64_t in_at_, in_end_; /* offsets in the file of the next packed byte and of the end */
    void *unpacker_;
} fl_data_source;
/* Begins reading n bytes of f at offset `at`; f must stay open. If it returns true, fl_data_source_end must
   follow. */
FL_API bool fl_data_source_begin(fl_data_source *s, const fl_data_stream *f, int64_t at, int64_t n,
                                 fl_data_packing packing);
/* Reads exactly n bytes. */
FL_API bool fl_data_source_read(fl_data_source *s, void *dst, size_t n);
/* Checks that nothing follows and, for gzip, the checksum. */
FL_API bool fl_data_source_finish(fl_data_source *s);
FL_API void fl_data_source_end(fl_data_source *s);

/* Options of readers of compressed files. */
typedef struct fl_data_unpack_opts {
    fl_opts_guard guard_;
    int64_t max_bytes; /* most unpacked bytes; 0 -> 60 times the file's size plus 2^19 */
    char _end;
} fl_data_unpack_opts;
/* Checks that f may unpack to so many bytes; false after fl_fail, which names max_bytes. */
FL_API bool fl_data_may_unpack(const fl_data_stream *f, int64_t bytes, const fl_data_unpack_opts *o);

/* Deflates n consecutive pieces to f at offset `at`. Returns the bytes written, -1 after fl_fail. */
typedef struct fl_data_piece {
    const void *bytes;
    size_t n;
} fl_data_piece;
FL_API int64_t fl_data_deflate(const fl_data_stream *f, int64_t at, const fl_data_piece *piece, int n);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_PACK_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_PACK) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_PACK_IMPL
#define FL_DATA_PACK_IMPL
#include <string.h>
#ifdef FL_USE_ZLIB
#include <zlib.h>
#endif

FL_API bool fl_data_may_unpack(const fl_data_stream *f, int64_t bytes, const fl_data_unpack_opts *o) {
    if (!fl_given(f, "fl_data_may_unpack", "the file") || !fl_given(o, "fl_data_may_unpack", "the options"))
        return false;
    const int64_t most = o->max_bytes > 0 ? o->max_bytes : 60 * f->size + (1 << 19);
    return bytes <= most || fl_fail("%s: %s: %lld bytes unpack to %lld, more than .max_bytes, %lld", f->who,
                                    f->path, (long long)f->size, (long long)bytes, (long long)most);
}

#define FL__PACK_PIECE ((size_t)1 << 28) /* bytes per call of zlib, whose sizes are unsigned int */

#ifdef FL_USE_ZLIB

typedef struct fl__unpacker {
    z_stream z;
    bool ended;
    unsigned char bytes[1 << 14];
} fl__unpacker;

static void *fl__z_alloc(void *user, unsigned items, unsigned size) {
    (void)user;
    size_t n;
    return fl__mul_size(items, size, &n) ? fl_heap_alloc(n) : NULL;
}

static void fl__z_free(void *user, void *p) {
    (void)user;
    fl_heap_free(p);
}

static bool fl__unpacker_begin(fl_data_source *s) {
    fl__unpacker *u = s->unpacker_ = fl_heap_alloc(sizeof *u);
    if (!u) return false;
    u->z.zalloc = fl__z_alloc;
    u->z.zfree = fl__z_free;
    if (inflateInit2(&u->z, s->packing == FL_DATA_GZIP ? 16 + MAX_WBITS : -MAX_WBITS) == Z_OK) return true;
    fl_heap_free(u);
    return fl_fail("%s: %s: cannot start zlib: out of memory", s->f->who, s->f->path);
}

/* Gives inflate more input, if there is any. */
static bool fl__unpacker_refill(fl_data_source *s, fl__unpacker *u) {
    const int64_t left = s->in_end_ - s->in_at_;
    const size_t n = left < (int64_t)sizeof u->bytes ? (size_t)left : sizeof u->bytes;
    if (!fl_data_stream_read(s->f, u->bytes, n, s->in_at_)) return false;
    s->in_at_ += (int64_t)n;
    u->z.next_in = u->bytes;
    u->z.avail_in = (unsigned)n;
    return true;
}

/* Unpacks up to n bytes, fewer only at the end of the packed data. -1 after fl_fail. */
static int64_t fl__unpack(fl_data_source *s, void *dst, size_t n) {
    fl__unpacker *u = s->unpacker_;
    unsigned char *p = dst;
    size_t left = n;
    while (left && !u->ended) {
        if (!u->z.avail_in && !fl__unpacker_refill(s, u)) return -1;
        const size_t piece = left < FL__PACK_PIECE ? left : FL__PACK_PIECE;
        u->z.next_out = p;
        u->z.avail_out = (unsigned)piece;
        const int r = inflate(&u->z, Z_NO_FLUSH);
        const size_t done = piece - u->z.avail_out;
        p += done, left -= done;
        if (r == Z_STREAM_END) u->ended = true;
        else if (r != Z_OK) {
            const char *what = u->z.msg ? u->z.msg : r == Z_BUF_ERROR ? "it ends early" : "zlib error";
            fl_fail("%s: %s: invalid packed data before offset %lld: %s", s->f->who, s->f->path,
                    (long long)s->in_at_, what);
            return -1;
        }
    }
    return (int64_t)(n - left);
}

static void fl__unpacker_end(fl_data_source *s) {
    inflateEnd(&((fl__unpacker *)s->unpacker_)->z);
    fl_heap_free(s->unpacker_);
}

static int64_t fl__unpacker_position(const fl_data_source *s) {
    return s->in_at_ - ((fl__unpacker *)s->unpacker_)->z.avail_in;
}

static int64_t fl__deflate_piece(const fl_data_stream *f, int64_t at, z_stream *z, fl_data_piece piece,
                                 bool last, unsigned char *buffer, size_t size) {
    const unsigned char *p = piece.bytes;
    const int64_t begin = at;
    do {
        const size_t n = piece.n < FL__PACK_PIECE ? piece.n : FL__PACK_PIECE;
        z->next_in = (unsigned char *)(uintptr_t)p;
        z->avail_in = (unsigned)n;
        p += n, piece.n -= n;
        do {
            z->next_out = buffer;
            z->avail_out = (unsigned)size;
            deflate(z, last && !piece.n ? Z_FINISH : Z_NO_FLUSH);
            const size_t done = size - z->avail_out;
            if (!fl_data_stream_write(f, buffer, done, at)) return -1;
            at += (int64_t)done;
        } while (!z->avail_out);
    } while (piece.n);
    return at - begin;
}

FL_API int64_t fl_data_deflate(const fl_data_stream *f, int64_t at, const fl_data_piece *piece, int n) {
    enum { SIZE = 1 << 16 };
    if (!fl_given(f, "fl_data_deflate", "the stream")) return -1;
    unsigned char *buffer = fl_heap_alloc(SIZE);
    z_stream z = {.zalloc = fl__z_alloc, .zfree = fl__z_free};
    const int64_t begin = at;
    if (!buffer) return -1;
    bool ok =
        deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK ||
        fl_fail("%s: %s: cannot start zlib: out of memory", f->who, f->path);
    for (int i = 0; ok && i < n; i++) {
        const int64_t done = fl__deflate_piece(f, at, &z, piece[i], i + 1 == n, buffer, SIZE);
        ok = done >= 0;
        at += done;
    }
    deflateEnd(&z);
    fl_heap_free(buffer);
    return ok ? at - begin : -1;
}

#else

static bool fl__without_zlib(const fl_data_stream *f) {
    return fl_fail(
        "%s: %s is compressed and this program was built without zlib: install zlib (zlib1g-dev), then "
        "compile with -DFL_USE_ZLIB and link -lz, or do not compress it",
        f->who, f->path);
}

static bool fl__unpacker_begin(fl_data_source *s) {
    return fl__without_zlib(s->f);
}

static int64_t fl__unpack(fl_data_source *s, void *dst, size_t n) {
    (void)s, (void)dst, (void)n;
    return -1;
}

static void fl__unpacker_end(fl_data_source *s) {
    (void)s;
}

static int64_t fl__unpacker_position(const fl_data_source *s) {
    return s->in_at_;
}

FL_API int64_t fl_data_deflate(const fl_data_stream *f, int64_t at, const fl_data_piece *piece, int n) {
    (void)at, (void)piece, (void)n;
    if (fl_given(f, "fl_data_deflate", "the stream")) fl__without_zlib(f);
    return -1;
}

#endif

FL_API bool fl_data_source_begin(fl_data_source *s, const fl_data_stream *f, int64_t at, int64_t n,
                                 fl_data_packing packing) {
    if (!fl_given(s, "fl_data_source_begin", "the source") ||
        !fl_given(f, "fl_data_source_begin", "the stream")) return false;
    *s = (fl_data_source){.f = f, .packing = packing, .in_at_ = at, .in_end_ = at + n};
    return packing == FL_DATA_PLAIN || fl__unpacker_begin(s);
}

FL_API bool fl_data_source_read(fl_data_source *s, void *dst, size_t n) {
    if (!fl_given(s, "fl_data_source_read", "the source")) return false;
    int64_t got = (int64_t)n;
    if (s->packing == FL_DATA_PLAIN) {
        if ((uint64_t)(s->in_end_ - s->in_at_) < n)
            return fl_fail("%s: %s: the file ends at offset %lld, %lld bytes early", s->f->who, s->f->path,
                           (long long)s->in_end_, (long long)(got - (s->in_end_ - s->in_at_)));
        if (!fl_data_stream_read(s->f, dst, n, s->in_at_)) return false;
        s->in_at_ += got;
    } else {
        got = fl__unpack(s, dst, n);
        if (got < 0) return false;
        if ((size_t)got < n)
            return fl_fail("%s: %s: the unpacked data ends at offset %lld, %lld bytes early", s->f->who,
                           s->f->path, (long long)(s->at + got), (long long)((int64_t)n - got));
    }
    s->at += got;
    return true;
}

FL_API bool fl_data_source_finish(fl_data_source *s) {
    if (!fl_given(s, "fl_data_source_finish", "the source")) return false;
    char more;
    if (s->packing != FL_DATA_PLAIN) { /* zlib verifies its checksum only here */
        const int64_t got = fl__unpack(s, &more, 1);
        if (got < 0) return false;
        if (got > 0)
            return fl_fail("%s: %s: the unpacked data is longer than its header declares, %lld bytes",
                           s->f->who, s->f->path, (long long)s->at);
    }
    const int64_t end = s->packing == FL_DATA_PLAIN ? s->in_at_ : fl__unpacker_position(s);
    return end == s->in_end_ || fl_fail("%s: %s: unexpected bytes after the data at offset %lld", s->f->who,
                                        s->f->path, (long long)end);
}

FL_API void fl_data_source_end(fl_data_source *s) {
    if (!fl_given(s, "fl_data_source_end", "the source")) return;
    if (s->packing != FL_DATA_PLAIN) fl__unpacker_end(s);
}

#endif
#endif

/* MIT licence: see LICENSE. */
