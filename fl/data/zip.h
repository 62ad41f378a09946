/* fl/data/zip.h - reading and writing zip archives; archives read are untrusted */
#ifndef FL_DATA_ZIP_H
#define FL_DATA_ZIP_H
#include "pack.h"
#include "text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A member, from the archive's directory (PKWARE's APPNOTE 4.3.12, with zip64). */
typedef struct fl_data_member {
    const char *name;
    int64_t size, packed; /* bytes unpacked; bytes in the file */
    int64_t at, limit;    /* offsets of its local header, and of what follows it */
    uint32_t crc;         /* fl_data_crc32 of the unpacked bytes */
    bool deflated;        /* else stored */
} fl_data_member;
typedef struct fl_data_archive {
    fl_data_member *member;
    int64_t n, cap_;
    fl_data_arena names_;
} fl_data_archive;

/* Reads the directory into a zeroed archive. Checks that sizes and offsets are inside the file, nothing
   overlaps, names are UTF-8, nothing is encrypted, no size exceeds what deflate can reach, and nothing
   precedes or follows the archive. Returns false after fl_fail; z must be freed in any case. */
FL_API bool fl_data_archive_open(fl_data_archive *z, const fl_data_stream *f);
/* Begins reading a member; its local header must agree with the directory. */
FL_API bool fl_data_archive_source(const fl_data_member *m, const fl_data_stream *f, fl_data_source *s);
/* Writes a member of n pieces at offset *at, which becomes the offset of the next one. */
FL_API bool fl_data_archive_put(fl_data_archive *z, const fl_data_stream *f, int64_t *at, const char *name,
                            const fl_data_piece *piece, int n, bool deflate);
/* Writes the directory at offset at. */
FL_API bool fl_data_archive_finish(const fl_data_archive *z, const fl_data_stream *f, int64_t at);
FL_API void fl_data_archive_free(fl_data_archive *z);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_ZIP_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_ZIP) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_ZIP_IMPL
#define FL_DATA_ZIP_IMPL
#include "checksum.h"
#include "json.h"
#include <stdlib.h>
#include <string.h>

/* Sizes of the records without their texts. */
enum { FL__ZIP_LOCAL = 30, FL__ZIP_CENTRAL = 46, FL__ZIP_END = 22, FL__ZIP_END64 = 56, FL__ZIP_LOCATOR = 20 };

static uint64_t fl__zip_number(const unsigned char *p, int bytes) {
    uint64_t v = 0;
    for (int i = bytes; i-- > 0;) v = v << 8 | p[i];
    return v;
}

static bool fl__zip_bad(const fl_data_stream *f, int64_t at, const char *what) {
    return fl_fail("%s: %s: offset %lld: %s", f->who, f->path, (long long)at, what);
}

/* ---- reading ---- */

/* Finds the directory: n records, from offset *at to *end. */
static bool fl__zip_find(const fl_data_stream *f, int64_t *at, int64_t *end, int64_t *n) {
    unsigned char r[FL__ZIP_END + 65536];
    const size_t size = f->size < (int64_t)sizeof r ? (size_t)f->size : sizeof r;
    if (!fl_data_stream_read(f, r, size, f->size - (int64_t)size)) return false;
    int64_t i = (int64_t)size - FL__ZIP_END;
    while (i >= 0 && (fl__zip_number(r + i, 4) != 0x06054b50 ||
                      i + FL__ZIP_END + (int64_t)fl__zip_number(r + i + 20, 2) != (int64_t)size))
        i--;
    if (i < 0) return fl__zip_bad(f, f->size, "not a zip archive: it has no end record");
    *end = f->size - (int64_t)size + i;
    *n = (int64_t)fl__zip_number(r + i + 10, 2);
    uint64_t bytes = fl__zip_number(r + i + 12, 4), from = fl__zip_number(r + i + 16, 4);
    bool disks = fl__zip_number(r + i + 4, 4) != 0 || fl__zip_number(r + i + 8, 2) != (uint64_t)*n;
    if (i >= FL__ZIP_LOCATOR && fl__zip_number(r + i - FL__ZIP_LOCATOR, 4) == 0x07064b50) {
        const uint64_t at64 = fl__zip_number(r + i - FL__ZIP_LOCATOR + 8, 8);
        *end -= FL__ZIP_LOCATOR + FL__ZIP_END64;
        if (*end < 0 || at64 != (uint64_t)*end)
            return fl__zip_bad(f, *end, "the zip64 end record is not before its locator");
        if (!fl_data_stream_read(f, r, FL__ZIP_END64, *end)) return false;
        disks = fl__zip_number(r, 4) != 0x06064b50 || fl__zip_number(r + 16, 8) != 0 ||
                fl__zip_number(r + 24, 8) != fl__zip_number(r + 32, 8);
        *n = (int64_t)fl__zip_number(r + 32, 8);
        bytes = fl__zip_number(r + 40, 8), from = fl__zip_number(r + 48, 8);
    }
    if (disks) return fl__zip_bad(f, *end, "the archive has several disks, or its end record is damaged");
    if (from > (uint64_t)*end || bytes != (uint64_t)*end - from)
        return fl__zip_bad(f, *end, "the directory does not reach from its offset to the end record");
    if (*n < 0 || (uint64_t)*n > bytes / FL__ZIP_CENTRAL)
        return fl__zip_bad(f, *end, "more members than fit into the directory");
    *at = (int64_t)from;
    return true;
}

/* Numbers too large for their field are in the zip64 extra field, in this order. */
static bool fl__zip_extra(const unsigned char *p, size_t n, uint64_t *value[3]) {
    bool missing = false;
    for (int i = 0; i < 3; i++) missing |= *value[i] == 0xffffffff;
    while (missing && n >= 4) {
        const size_t size = (size_t)fl__zip_number(p + 2, 2);
        if (size > n - 4) return false;
        if (fl__zip_number(p, 2) == 1) {
            size_t at = 0;
            for (int i = 0; i < 3; i++)
                if (*value[i] == 0xffffffff) {
                    if (at + 8 > size) return false;
                    *value[i] = fl__zip_number(p + 4 + at, 8);
                    at += 8;
                }
            return true;
        }
        p += 4 + size, n -= 4 + size;
    }
    return !missing;
}

/* Parses the record at p, of which `left` bytes exist. Returns its size, 0 after fl_fail. end: of the
   members. */
static size_t fl__zip_record(fl_data_archive *z, const fl_data_stream *f, const unsigned char *p, size_t left,
                             int64_t at, int64_t end) {
    const size_t n_name = left < FL__ZIP_CENTRAL ? 0 : (size_t)fl__zip_number(p + 28, 2);
    const size_t n_extra = left < FL__ZIP_CENTRAL ? 0 : (size_t)fl__zip_number(p + 30, 2);
    const size_t size = left < FL__ZIP_CENTRAL
                            ? left + 1
                            : FL__ZIP_CENTRAL + n_name + n_extra + (size_t)fl__zip_number(p + 32, 2);
    const char *name = (const char *)p + FL__ZIP_CENTRAL, *fault = NULL;
    if (size > left || fl__zip_number(p, 4) != 0x02014b50)
        return fl__zip_bad(f, at, "the directory is damaged"), 0;
    const unsigned flags = (unsigned)fl__zip_number(p + 8, 2), method = (unsigned)fl__zip_number(p + 10, 2);
    uint64_t packed = fl__zip_number(p + 20, 4), unpacked = fl__zip_number(p + 24, 4);
    uint64_t offset = fl__zip_number(p + 42, 4);
    if (flags & 0x2041) fault = "an encrypted member";
    else if (method != 0 && method != 8) fault = "a member neither stored nor deflated";
    else if (!fl__zip_extra(p + FL__ZIP_CENTRAL + n_name, n_extra,
                            (uint64_t *[]){&unpacked, &packed, &offset}))
        fault = "a zip64 size is missing";
    else if (method == 0 ? packed != unpacked : unpacked / FL_DATA_DEFLATE_LIMIT > packed)
        fault = "a member larger than its bytes can hold";
    else if (offset > (uint64_t)end || packed > (uint64_t)end - offset ||
             (uint64_t)end - offset - packed < FL__ZIP_LOCAL + n_name)
        fault = "a member outside of the file";
    for (size_t i = 0, len; !fault && i < n_name; i += len)
        if (!(len = fl_data_utf8(name + i, n_name - i)) || !name[i]) fault = "a name that is not UTF-8";
    if (fault || !fl_heap_grow(&z->member, &z->cap_, z->n + 1, sizeof *z->member))
        return fault ? (size_t)fl__zip_bad(f, at, fault) : 0;
    fl_data_member *m = &z->member[z->n];
    *m = (fl_data_member){fl_data_arena_add(&z->names_, name, n_name), (int64_t)unpacked, (int64_t)packed,
                              (int64_t)offset, end, (uint32_t)fl__zip_number(p + 16, 4), method == 8};
    if (!m->name) return 0;
    z->n++;
    return size;
}

static int fl__zip_by_offset(const void *a, const void *b) {
    const fl_data_member *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

FL_API bool fl_data_archive_open(fl_data_archive *z, const fl_data_stream *f) {
    if (!fl_given(z, "fl_data_archive_open", "the archive") ||
        !fl_given(f, "fl_data_archive_open", "the stream")) return false;
    int64_t at, end, n;
    if (!fl__zip_find(f, &at, &end, &n)) return false;
    const size_t size = (size_t)(end - at);
    unsigned char *directory = fl_heap_alloc(size);
    size_t done = 0;
    bool ok = directory && fl_data_stream_read(f, directory, size, at);
    for (int64_t i = 0; ok && i < n; i++) {
        const size_t bytes = fl__zip_record(z, f, directory + done, size - done, at + (int64_t)done, at);
        ok = bytes > 0;
        done += bytes;
    }
    fl_heap_free(directory);
    if (ok && done != size) return fl__zip_bad(f, at + (int64_t)done, "unexpected bytes after the directory");
    if (ok && z->n > 1) qsort(z->member, (size_t)z->n, sizeof *z->member, fl__zip_by_offset);
    for (int64_t i = 0; ok && i < z->n; i++) {
        fl_data_member *m = &z->member[i];
        if (i + 1 < z->n) m->limit = m[1].at;
        if ((i == 0 && m->at) || m->limit - m->at - FL__ZIP_LOCAL < m->packed + (int64_t)strlen(m->name))
            ok = fl__zip_bad(f, m->at,
                             i || !m->at ? "members overlap" : "unexpected bytes before the first member");
    }
    return ok;
}

FL_API bool fl_data_archive_source(const fl_data_member *m, const fl_data_stream *f, fl_data_source *s) {
    if (!fl_given(m, "fl_data_archive_source", "the member") ||
        !fl_given(f, "fl_data_archive_source", "the stream") ||
        !fl_given(s, "fl_data_archive_source", "the source")) return false;
    unsigned char r[FL__ZIP_LOCAL];
    const size_t n_name = strlen(m->name);
    if (!fl_data_stream_read(f, r, sizeof r, m->at)) return false;
    const bool later = fl__zip_number(r + 6, 2) & 8; /* checksum and sizes follow the data */
    const int64_t data = m->at + FL__ZIP_LOCAL + (int64_t)n_name + (int64_t)fl__zip_number(r + 28, 2);
    char *name = fl_heap_alloc(n_name);
    bool ok = name && fl_data_stream_read(f, name, n_name, m->at + FL__ZIP_LOCAL);
    if (ok && (fl__zip_number(r, 4) != 0x04034b50 || fl__zip_number(r + 26, 2) != n_name ||
               memcmp(name, m->name, n_name) || fl__zip_number(r + 8, 2) != (m->deflated ? 8 : 0) ||
               (!later && fl__zip_number(r + 14, 4) != m->crc) || data + m->packed > m->limit))
        ok = fl__zip_bad(f, m->at, "the member's header differs from the directory");
    fl_heap_free(name);
    return ok && fl_data_source_begin(s, f, data, m->packed, m->deflated ? FL_DATA_DEFLATE : FL_DATA_PLAIN);
}

/* ---- writing: always with zip64 fields, for a single code path ---- */

/* Numbers of these sizes, little-endian. */
static bool fl__zip_put_numbers(fl_data_text *t, const char *sizes, const uint64_t *v) {
    bool ok = true;
    for (; ok && *sizes; sizes++, v++) {
        char bytes[8];
        for (int i = 0; i < *sizes - '0'; i++) bytes[i] = (char)(*v >> 8 * i);
        ok = fl_data_text_put(t, bytes, (size_t)(*sizes - '0'));
    }
    return ok;
}

enum { FL__ZIP_VERSION = 45, FL__ZIP_UTF8 = 0x800, FL__ZIP_1980 = 0x21 };
#define FL__ZIP_ELSEWHERE 0xffffffff /* the value is in the zip64 extra field */

FL_API bool fl_data_archive_put(fl_data_archive *z, const fl_data_stream *f, int64_t *at, const char *name,
                            const fl_data_piece *piece, int n, bool deflate) {
    if (!fl_given(z, "fl_data_archive_put", "the archive") ||
        !fl_given(f, "fl_data_archive_put", "the stream") ||
        !fl_given(at, "fl_data_archive_put", "the offset") ||
        !fl_given(name, "fl_data_archive_put", "the name")) return false;
    const size_t n_name = strlen(name);
    if (n_name > 65535) return fl_fail("%s: %s: a name must have at most 65535 bytes, got %zu", f->who,
                                       f->path, n_name);
    if (!fl_heap_grow(&z->member, &z->cap_, z->n + 1, sizeof *z->member)) return false;
    fl_data_member *m = &z->member[z->n];
    *m = (fl_data_member){
        .name = fl_data_arena_add(&z->names_, name, n_name), .at = *at, .deflated = deflate};
    const int64_t data = *at + FL__ZIP_LOCAL + (int64_t)n_name + 20;
    bool ok = m->name != NULL;
    if (ok && deflate) ok = (m->packed = fl_data_deflate(f, data, piece, n)) >= 0;
    for (int i = 0; ok && i < n; i++) {
        m->crc = fl_data_crc32(m->crc, piece[i].bytes, piece[i].n);
        if (!deflate) ok = fl_data_stream_write(f, piece[i].bytes, piece[i].n, data + m->size);
        m->size += (int64_t)piece[i].n;
    }
    if (!deflate) m->packed = m->size;
    const uint64_t head[] =
        {0x04034b50, FL__ZIP_VERSION,   FL__ZIP_UTF8,      deflate ? 8 : 0, 0, FL__ZIP_1980,
         m->crc,     FL__ZIP_ELSEWHERE, FL__ZIP_ELSEWHERE, n_name,          20},
                   extra[] = {1, 16, (uint64_t)m->size, (uint64_t)m->packed};
    fl_data_text t = {0};
    ok = ok && fl__zip_put_numbers(&t, "42222244422", head) && fl_data_text_put(&t, name, n_name) &&
         fl__zip_put_numbers(&t, "2288", extra) && fl_data_stream_write(f, t.p, (size_t)t.n, *at);
    fl_heap_free(t.p);
    *at = data + m->packed;
    z->n += ok;
    return ok;
}

FL_API bool fl_data_archive_finish(const fl_data_archive *z, const fl_data_stream *f, int64_t at) {
    if (!fl_given(z, "fl_data_archive_finish", "the archive") ||
        !fl_given(f, "fl_data_archive_finish", "the stream")) return false;
    fl_data_text t = {0};
    bool ok = true;
    for (int64_t i = 0; ok && i < z->n; i++) {
        const fl_data_member *m = &z->member[i];
        const size_t n_name = strlen(m->name);
        const uint64_t head[] = {0x02014b50,
                                 FL__ZIP_VERSION,
                                 FL__ZIP_VERSION,
                                 FL__ZIP_UTF8,
                                 m->deflated ? 8 : 0,
                                 0,
                                 FL__ZIP_1980,
                                 m->crc,
                                 FL__ZIP_ELSEWHERE,
                                 FL__ZIP_ELSEWHERE,
                                 n_name,
                                 28,
                                 0,
                                 0,
                                 0,
                                 0,
                                 FL__ZIP_ELSEWHERE},
                       extra[] = {1, 24, (uint64_t)m->size, (uint64_t)m->packed, (uint64_t)m->at};
        ok = fl__zip_put_numbers(&t, "42222224442222244", head) && fl_data_text_put(&t, m->name, n_name) &&
             fl__zip_put_numbers(&t, "22888", extra);
    }
    const uint64_t n = (uint64_t)z->n, bytes = (uint64_t)t.n, from = (uint64_t)at;
    const uint64_t end[] = {0x06064b50,
                            FL__ZIP_END64 - 12,
                            FL__ZIP_VERSION,
                            FL__ZIP_VERSION,
                            0,
                            0,
                            n,
                            n,
                            bytes,
                            from,
                            0x07064b50,
                            0,
                            from + bytes,
                            1,
                            0x06054b50,
                            0,
                            0,
                            0xffff,
                            0xffff,
                            FL__ZIP_ELSEWHERE,
                            FL__ZIP_ELSEWHERE,
                            0};
    ok = ok && fl__zip_put_numbers(&t, "4822448888" "4484" "42222442", end) &&
         fl_data_stream_write(f, t.p, (size_t)t.n, at);
    fl_heap_free(t.p);
    return ok;
}

FL_API void fl_data_archive_free(fl_data_archive *z) {
    if (!z) return;
    fl_heap_free(z->member);
    fl_data_arena_free(&z->names_);
    *z = (fl_data_archive){0};
}

#endif
#endif

/* MIT licence: see LICENSE. */
