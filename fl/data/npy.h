/* fl/data/npy.h - NumPy files: npy and npz */
#ifndef FL_DATA_NPY_H
#define FL_DATA_NPY_H
#include "named.h"
#include "pack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the array of an .npy file, version 1, 2 or 3: numbers and bool of any byte order, in C or Fortran
   order. Complex numbers, text, records and objects are errors. */
FL_API fl_tensor *fl_data_load_npy(const char *path);
/* Saves one, in C order; the file is replaced atomically. NumPy has no bf16: such a tensor is written as f32,
   without loss. */
FL_API bool fl_data_save_npy(const char *path, fl_tensor *t);

/* Opens the .npy members of an .npz file (a zip archive), named without ".npy"; other members are ignored.
   Deflated members need FL_USE_ZLIB. */
#define fl_data_open_npz(...) FL__DATA_OPEN_NPZ(__VA_ARGS__, ._end = 0)
#define FL__DATA_OPEN_NPZ(path, ...) fl_data_open_npz_opt(path, FL_LITERAL(fl_data_unpack_opts, __VA_ARGS__))
FL_API fl_data_file *fl_data_open_npz_opt(const char *path, fl_data_unpack_opts o);
/* Saves n named tensors as np.savez does; deflate: as np.savez_compressed, with zlib. */
FL_API bool fl_data_save_npz(const char *path, const fl_data_named_tensor *tensors, int n, bool deflate);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_NPY_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_NPY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_NPY_IMPL
#define FL_DATA_NPY_IMPL
#include "../ops/copy.h"
#include "../ops/view.h"
#include "checksum.h"
#include "zip.h"
#include <stdio.h>
#include <string.h>

enum { FL__NPY_HEADER = 65536 }; /* most bytes of a header; with 8 dims 300 are usual */

static const struct { char kind; int size; fl_dtype dtype;
} fl__npy_dtypes[] = {
    {'f', 2, FL_F16}, {'f', 4, FL_F32}, {'f', 8, FL_F64}, {'b', 1, FL_B8},
    {'u', 1, FL_U8},  {'u', 2, FL_U16}, {'u', 4, FL_U32}, {'u', 8, FL_U64},
    {'i', 1, FL_I8},  {'i', 2, FL_I16}, {'i', 4, FL_I32}, {'i', 8, FL_I64},
};
enum { FL__NPY_DTYPES = sizeof fl__npy_dtypes / sizeof fl__npy_dtypes[0] };

/* ---- reading ---- */

/* The input: the bytes of a file, or of a member, whose checksum is computed on the way. */
typedef struct fl__npy {
    fl_data_source s;
    const char *name; /* of the member; "" */
    int64_t size;     /* bytes, unpacked */
    uint32_t crc;
    fl_dtype dtype;
    fl_shape shape;
    bool swapped, fortran;
    char *p; /* next byte of the header */
} fl__npy;

static bool fl__npy_bad(const fl__npy *a, const char *what) {
    return fl_fail("%s: %s: %s%s%s", a->s.f->who, a->s.f->path, a->name, *a->name ? ": " : "", what);
}

static bool fl__npy_read(fl__npy *a, void *dst, size_t n) {
    if (!fl_data_source_read(&a->s, dst, n)) return false;
    if (*a->name) a->crc = fl_data_crc32(a->crc, dst, n);
    return true;
}

static bool fl__npy_try(fl__npy *a, const char *text) {
    while (*a->p == ' ' || *a->p == '\n') a->p++;
    const size_t n = strlen(text);
    if (strncmp(a->p, text, n)) return false;
    a->p += n;
    return true;
}

/* '<f4' and the like; unsupported types of NumPy are named in the error. */
static bool fl__npy_parse_dtype(fl__npy *a) {
    char text[48], kind = 0;
    int size = 0, n = 0;
    if (fl__npy_try(a, "[")) return fl__npy_bad(a, "arrays of records are not supported");
    const char quote = fl__npy_try(a, "'") ? '\'' : fl__npy_try(a, "\"") ? '"' : 0;
    const char *from = a->p;
    while (quote && *a->p && *a->p != quote) a->p++;
    if (!quote || !*a->p) return fl__npy_bad(a, "the header's descr is not a string");
    const int len = (int)(a->p++ - from);
    const char order = len ? *from : 0;
    if (!order || !strchr("<>|=", order) || len > 8 || sscanf(from + 1, "%c%d%n", &kind, &size, &n) < 2 ||
        n + 1 != len)
        kind = len > 1 ? from[1] : 0, size = 0;
    a->swapped = order == '>' && size > 1;
    for (int i = 0; i < FL__NPY_DTYPES; i++)
        if (fl__npy_dtypes[i].kind == kind && fl__npy_dtypes[i].size == size) {
            a->dtype = fl__npy_dtypes[i].dtype;
            return true;
        }
    const char *what = kind == 'c'                  ? "complex numbers"
                       : kind == 'O'                ? "Python objects"
                       : kind == 'U' || kind == 'S' ? "text"
                                                    : "numbers that fl has no dtype for";
    snprintf(text, sizeof text, "it holds %s", what);
    return fl_fail("%s: %s: %s%s%s (descr '%.*s')", a->s.f->who, a->s.f->path, a->name,
                   *a->name ? ": " : "", text, len < 20 ? len : 20, from);
}

static bool fl__npy_parse_shape(fl__npy *a) {
    if (!fl__npy_try(a, "(")) return fl__npy_bad(a, "the header's shape is not a tuple");
    for (a->shape.ndim = 0; !fl__npy_try(a, ")"); a->shape.ndim++) {
        int64_t v = 0;
        const char *from = a->p;
        for (; *a->p >= '0' && *a->p <= '9'; a->p++)
            if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *a->p - '0', &v))
                return fl__npy_bad(a, "a dim overflows int64");
        if (a->p == from) return fl__npy_bad(a, "the header's shape is not a tuple of integers");
        if (a->shape.ndim == FL_MAX_DIMS) return fl__npy_bad(a, "more than 8 dims");
        a->shape.dim[a->shape.ndim] = v;
        fl__npy_try(a, "L"); /* written by Python 2 */
        if (!fl__npy_try(a, ",") && *a->p != ')') return fl__npy_bad(a, "the header's shape is not a tuple");
    }
    return true;
}

/* {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } */
static bool fl__npy_parse(fl__npy *a) {
    static const char *const keys[] = {"'descr'", "'fortran_order'", "'shape'"};
    unsigned seen = 0;
    if (!fl__npy_try(a, "{")) return fl__npy_bad(a, "the header is not a dict");
    while (!fl__npy_try(a, "}")) {
        int k = 0;
        while (k < 3 && !fl__npy_try(a, keys[k])) k++;
        if (k == 3 || seen & 1u << k) return fl__npy_bad(a, "the header has an unknown or duplicate key");
        seen |= 1u << k;
        if (!fl__npy_try(a, ":")) return fl__npy_bad(a, "the header lacks a ':'");
        if (k == 0 && !fl__npy_parse_dtype(a)) return false;
        if (k == 2 && !fl__npy_parse_shape(a)) return false;
        if (k == 1 && !(a->fortran = fl__npy_try(a, "True")) && !fl__npy_try(a, "False"))
            return fl__npy_bad(a, "the header's fortran_order is neither True nor False");
        if (!fl__npy_try(a, ",") && *a->p != '}') return fl__npy_bad(a, "the header lacks a ','");
    }
    fl__npy_try(a, "");
    if (seen != 7) return fl__npy_bad(a, "the header lacks descr, fortran_order or shape");
    return !*a->p || fl__npy_bad(a, "unexpected text after the header's dict");
}

/* Reads everything before the data, and checks that the data has the size of the shape. */
static bool fl__npy_header(fl__npy *a) {
    unsigned char magic[8], size[4] = {0};
    if (!fl__npy_read(a, magic, 8)) return false;
    if (memcmp(magic, "\x93NUMPY", 6))
        return fl__npy_bad(a, "not an npy file: it does not start with \\x93NUMPY");
    if (magic[6] < 1 || magic[6] > 3 || magic[7])
        return fl__npy_bad(a, "the npy version is not 1.0, 2.0 or 3.0");
    if (!fl__npy_read(a, size, magic[6] == 1 ? 2 : 4)) return false;
    const int64_t n = (int64_t)((uint32_t)size[0] | (uint32_t)size[1] << 8 | (uint32_t)size[2] << 16 |
                                (uint32_t)size[3] << 24);
    if (n > FL__NPY_HEADER || n > a->size - a->s.at)
        return fl__npy_bad(a, "the header is longer than the file, or than 65536 bytes");
    char *text = a->p = fl_heap_alloc((size_t)n + 1);
    const bool ok = text && fl__npy_read(a, text, (size_t)n) && fl__npy_parse(a);
    fl_heap_free(text);
    const fl_data_entry e = {.dtype = a->dtype, .shape = a->shape, .begin = a->s.at, .end = a->size};
    return ok && (fl_data_entry_fits(&e) ||
                  fl_fail("%s: %s: %s%sthe shape does not match the %lld bytes of data", a->s.f->who,
                          a->s.f->path, a->name, *a->name ? ": " : "", (long long)(a->size - a->s.at)));
}

/* Reads the data after the header. */
static fl_tensor *fl__npy_data(fl__npy *a) {
    fl_shape shape = a->shape;
    const int ndim = shape.ndim;
    for (int i = 0; a->fortran && i < ndim; i++) shape.dim[i] = a->shape.dim[ndim - 1 - i];
    fl_tensor *t = fl_data_host_tensor(shape, a->dtype);
    unsigned char *p = t ? fl_map(t, FL_WRITE) : NULL;
    if (!p) return NULL;
    const size_t bytes = (size_t)fl_numel(t) * fl_dtype_size(a->dtype);
    bool ok = fl__npy_read(a, p, bytes) && fl_data_source_finish(&a->s);
    for (size_t i = 0; ok && a->dtype == FL_B8 && i < bytes; i++)
        if (p[i] > 1) ok = fl__npy_bad(a, "a bool is neither 0 nor 1");
    if (a->swapped) fl_data_swap_bytes(p, bytes, fl_dtype_size(a->dtype));
    fl_unmap(t, FL_WRITE);
    if (!ok || !a->fortran || ndim < 2) return ok ? t : NULL;
    int order[FL_MAX_DIMS];
    for (int i = 0; i < ndim; i++) order[i] = ndim - 1 - i;
    return fl_contiguous(fl_permute(t, ndim, order));
}

FL_API fl_tensor *fl_data_load_npy(const char *path) {
    fl_data_stream f;
    if (!fl_data_stream_open(&f, "fl_data_load_npy", path, FL_DATA_READ)) return NULL;
    fl__npy a = {.name = "", .size = f.size};
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    const bool ok =
        scope.depth_ > 0 && fl_data_source_begin(&a.s, &f, 0, f.size, FL_DATA_PLAIN) && fl__npy_header(&a);
    fl_tensor *t = fl_scope_return(&scope, ok ? fl__npy_data(&a) : NULL);
    fl_quiet(-1);
    f.io.close(f.io.user, f.file);
    return t;
}

/* ---- npz ---- */

/* Begins to read member m as an array, including its header; must be ended if it returns true. */
static bool fl__npz_begin(fl__npy *a, const fl_data_stream *f, const fl_data_member *m) {
    *a = (fl__npy){.name = m->name, .size = m->size};
    if (!fl_data_archive_source(m, f, &a->s)) return false;
    if (fl__npy_header(a)) return true;
    fl_data_source_end(&a->s);
    return false;
}

static fl_tensor *fl__npz_read(fl_data_file *file, const fl_data_entry *e) {
    const fl_data_member *m = &((fl_data_archive *)file->user)->member[e->part];
    fl_data_stream f = file->f;
    fl__npy a;
    f.who = "fl_data_read";
    if (!fl__npz_begin(&a, &f, m)) return NULL;
    fl_tensor *t = fl__npy_data(&a);
    if (t && a.crc != m->crc) fl__npy_bad(&a, "the checksum does not match"), t = NULL;
    fl_data_source_end(&a.s);
    return t;
}

static void fl__npz_close(fl_data_file *f) {
    fl_data_archive_free(f->user);
    fl_heap_free(f->user);
}

static bool fl__npz_list(fl_data_file *f, fl_data_archive *z, const fl_data_unpack_opts *o) {
    f->user = z;
    f->read = fl__npz_read;
    f->close = fl__npz_close;
    if (!fl_data_archive_open(z, &f->f)) return false;
    int64_t unpacked = 0;
    for (int64_t i = 0; i < z->n; i++) unpacked += z->member[i].deflated ? z->member[i].size : 0;
    if (!fl_data_may_unpack(&f->f, unpacked, o)) return false;
    for (int64_t i = 0; i < z->n; i++) {
        const size_t n = strlen(z->member[i].name);
        fl__npy a;
        if (n < 4 || strcmp(z->member[i].name + n - 4, ".npy")) continue;
        if (!fl__npz_begin(&a, &f->f, &z->member[i])) return false;
        fl_data_source_end(&a.s);
        fl_data_entry *e = fl_data_file_add(f, a.name, (int64_t)n - 4);
        if (!e) return false;
        e->dtype = a.dtype, e->shape = a.shape, e->part = (int)i;
    }
    return fl_data_file_ready(f);
}

FL_API fl_data_file *fl_data_open_npz_opt(const char *path, fl_data_unpack_opts o) {
    fl_data_file *f = fl_data_file_new("fl_data_open_npz", path);
    fl_data_archive *z = f ? fl_heap_alloc(sizeof *z) : NULL;
    if (z && fl__npz_list(f, z, &o)) return f;
    fl_data_close(f);
    return NULL;
}

/* ---- writing ---- */

/* Version 1: 65,535 bytes suffice for the header of any tensor; the data begins at a multiple of 64. */
static size_t fl__npy_compose(char head[512], const fl_tensor *t) {
    int k = 0, n = 10;
    while (k < FL__NPY_DTYPES && fl__npy_dtypes[k].dtype != t->dtype) k++;
    if (k == FL__NPY_DTYPES) return 0;
    n += snprintf(head + n, 400, "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (",
                  fl__npy_dtypes[k].size > 1 ? '<' : '|', fl__npy_dtypes[k].kind, fl__npy_dtypes[k].size);
    for (int i = 0; i < t->ndim; i++)
        n += snprintf(head + n, 30, i ? " %lld%s" : "%lld%s", (long long)t->shape[i],
                      i + 1 < t->ndim || !i ? "," : "");
    n += snprintf(head + n, 8, "), }");
    while (n % 64 != 63) head[n++] = ' ';
    head[n++] = '\n';
    memcpy(head, "\x93NUMPY\1\0", 8);
    head[8] = (char)((n - 10) & 255), head[9] = (char)((n - 10) >> 8);
    return (size_t)n;
}

/* Writes t to f: as a file, or as member "<name>.npy" of z at *at. */
static bool fl__npy_write(const fl_data_stream *f, fl_tensor *t, const char *name, fl_data_archive *z,
                          int64_t *at, bool deflate) {
    char head[512];
    if (!t || t->weak) return fl_fail("%s: %s: tensor '%s' is NULL or a scalar constant", f->who, f->path,
                                      name);
    fl_scope scope = fl_scope_begin();
    fl_tensor *dense = fl_contiguous(t->dtype == FL_BF16 ? fl_cast(t, FL_F32) : t);
    const size_t n = dense ? fl__npy_compose(head, dense) : 0;
    bool ok = n > 0 || !dense ||
              fl_fail("%s: %s: NumPy has no dtype for tensor '%s', %s", f->who, f->path, name,
                      fl_dtype_name(t->dtype));
    void *p = n ? fl_map(dense, FL_READ) : NULL;
    if (p) {
        const fl_data_piece piece[] = {{head, n}, {p, (size_t)fl_numel(dense) * fl_dtype_size(dense->dtype)}};
        fl_data_text member = {0};
        if (!z)
            ok = fl_data_stream_write(f, head, n, 0) && fl_data_stream_write(f, p, piece[1].n, (int64_t)n);
        else ok = fl_data_text_put(&member, name, strlen(name)) && fl_data_text_put(&member, ".npy", 4) &&
                  fl_data_archive_put(z, f, at, member.p, piece, 2, deflate);
        fl_heap_free(member.p);
        fl_unmap(dense, FL_READ);
    } else ok = false;
    fl_scope_end(&scope);
    return ok;
}

FL_API bool fl_data_save_npy(const char *path, fl_tensor *t) {
    fl_data_replacement r;
    if (!fl_data_replace_begin(&r, "fl_data_save_npy", path)) return false;
    fl_quiet(+1);
    const bool ok = fl__npy_write(&r.f, t, "", NULL, NULL, false);
    fl_quiet(-1);
    return fl_data_replace_end(&r, ok);
}

FL_API bool fl_data_save_npz(const char *path, const fl_data_named_tensor *tensors, int n, bool deflate) {
    static const char who[] = "fl_data_save_npz";
    fl_data_replacement r;
    fl_data_archive z = {0};
    int64_t at = 0;
    if (n < 0 || (n && !tensors)) return fl_fail("%s: tensors is NULL, or their count negative", who);
    if (!fl_data_replace_begin(&r, who, path)) return false;
    fl_quiet(+1);
    bool ok = true;
    for (int i = 0; ok && i < n; i++) {
        ok = tensors[i].name || fl_fail("%s: %s: a name is NULL", who, path);
        for (int k = 0; ok && k < i; k++)
            if (!strcmp(tensors[k].name, tensors[i].name))
                ok = fl_fail("%s: %s: duplicate tensor name '%.100s'", who, path, tensors[i].name);
        ok = ok && fl__npy_write(&r.f, tensors[i].tensor, tensors[i].name, &z, &at, deflate);
    }
    fl_quiet(-1);
    ok = fl_data_replace_end(&r, ok && fl_data_archive_finish(&z, &r.f, at));
    fl_data_archive_free(&z);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
