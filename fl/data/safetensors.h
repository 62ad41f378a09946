/* fl/data/safetensors.h - named tensors in safetensors files */
#ifndef FL_DATA_SAFETENSORS_H
#define FL_DATA_SAFETENSORS_H
#include "named.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FL_DATA_MAX_HEADER 100000000 /* most bytes of a safetensors header, the format's limit */
#define FL_DATA_MAX_NAME 4096        /* most bytes of a tensor's name */

/* For the dtypes F8_E4M3, F8_E5M2 and F8_E8M0 register dtypes named f8_e4m3, f8_e5m2 and f8_e8m0 (one byte,
   blocks of one number: fl_dtype_register) before a file is opened or saved. */

/* Saves n named tensors, in the order given, and n_meta pairs of metadata (UTF-8; keys may not start with
   "crc32c"). The file is replaced atomically (fl_data_replacement). __metadata__ also gets CRC32C checksums
   of each tensor and of the header, and "format", "pt" unless meta has another: Hugging Face's transformers
   rejects files with metadata but without it. A path that ends with .json is an index: fl_data_save_sharded
   with shards of 5 GB. */
FL_API bool fl_data_save_safetensors(const char *path, const fl_data_named_tensor *tensors, int n,
                                     const fl_data_key_value *meta, int n_meta);

/* Reads and checks the header only: sizes, names, dtypes, offsets, which must cover the data without overlaps
   or gaps, and the header's checksum, if the file has one. A path that ends with .json is an index of shards:
   fl_data_open_sharded. */
FL_API fl_data_file *fl_data_open_safetensors(const char *path);
/* The same, with tensors that are views of the memory-mapped file: pages are read when used, and the mapping
   lives until the file is closed and its last tensor freed. Writing to such a tensor changes memory only,
   never the file (copy on write). verify: fl_data_read compares a tensor's checksum, for which it reads all
   of it. Values are read as usual if the table of file operations cannot map, and for tensors that are not
   aligned in the file. A file that shrank is an error of the next fl_data_read; using a tensor whose bytes
   were truncated raises SIGBUS, as with every mapping. Replacing the file, as saving does, leaves mapped
   tensors unchanged. */
FL_API fl_data_file *fl_data_map_safetensors(const char *path, bool verify);
/* Private: the format's name of a dtype; NULL: it has none. */
FL_PRIVATE const char *fl__st_dtype_name(fl_dtype d);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_SAFETENSORS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_SAFETENSORS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_SAFETENSORS_IMPL
#define FL_DATA_SAFETENSORS_IMPL
#include "../ops/copy.h"
#include "checksum.h"
#include "json.h"
#include "shards.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "fl_data.h writes the bytes of tensors unchanged: safetensors needs a little-endian machine"
#endif

static bool fl__st_is_index(const char *path) {
    const size_t n = path ? strlen(path) : 0;
    return n >= 5 && !strcmp(path + n - 5, ".json");
}

/* ---- common to reading and writing ---- */

static const struct { const char *name; fl_dtype dtype; } fl__st_dtypes[] = {
    {"F16", FL_F16}, {"BF16", FL_BF16}, {"F32", FL_F32}, {"F64", FL_F64}, {"BOOL", FL_B8},
    {"U8", FL_U8},   {"U16", FL_U16},   {"U32", FL_U32}, {"U64", FL_U64}, {"I8", FL_I8},
    {"I16", FL_I16}, {"I32", FL_I32},   {"I64", FL_I64},
};
enum { FL__ST_DTYPES = sizeof fl__st_dtypes / sizeof fl__st_dtypes[0] };
/* Dtypes of the format that fl lacks, to be registered under these names. */
static const struct { const char *name, *registered; } fl__st_own_dtypes[] = {
    {"F8_E4M3", "f8_e4m3"}, {"F8_E5M2", "f8_e5m2"}, {"F8_E8M0", "f8_e8m0"},
};
enum { FL__ST_OWN_DTYPES = sizeof fl__st_own_dtypes / sizeof fl__st_own_dtypes[0] };

FL_PRIVATE const char *fl__st_dtype_name(fl_dtype d) {
    for (int i = 0; i < FL__ST_DTYPES; i++)
        if (fl__st_dtypes[i].dtype == d) return fl__st_dtypes[i].name;
    const fl_dtype_info *own = fl_dtype_registered(d);
    for (int i = 0; own && own->size == 1 && own->block == 1 && i < FL__ST_OWN_DTYPES; i++)
        if (!strcmp(fl__st_own_dtypes[i].registered, own->name)) return fl__st_own_dtypes[i].name;
    return NULL;
}

/* *needed: the dtype to register for it; NULL: none. */
static fl_dtype fl__st_dtype(const char *name, const char **needed) {
    *needed = NULL;
    for (int i = 0; i < FL__ST_DTYPES; i++)
        if (!strcmp(fl__st_dtypes[i].name, name)) return fl__st_dtypes[i].dtype;
    for (int i = 0; i < FL__ST_OWN_DTYPES; i++)
        if (!strcmp(fl__st_own_dtypes[i].name, name)) *needed = fl__st_own_dtypes[i].registered;
    const fl_dtype own = fl_dtype_by_name(*needed);
    return fl__st_dtype_name(own) ? own : FL_DTYPE_NONE;
}

static bool fl__st_is_utf8(const char *s) {
    size_t n = strlen(s);
    for (size_t len; n; s += len, n -= len)
        if (!(len = fl_data_utf8(s, n))) return false;
    return true;
}

/* The error in a tensor's name; NULL if it is valid. */
static const char *fl__st_name_fault(const char *name) {
    if (!*name) return "a tensor without name";
    if (!strcmp(name, "__metadata__")) return "a tensor named __metadata__";
    if (strlen(name) > FL_DATA_MAX_NAME) return "a name of more than 4096 bytes";
    return NULL;
}

#define FL__ST_CRC "crc32c" /* key of the header's checksum; "crc32c.<name>": a tensor's */

static bool fl__st_is_crc(const char *key) {
    return !strncmp(key, FL__ST_CRC, sizeof FL__ST_CRC - 1);
}

/* The header's checksum covers its contents in sorted order, so that other programs may rewrite the JSON. */
static uint32_t fl__st_header_crc(const fl_data_file *f) {
    uint32_t crc = 0;
    for (int64_t i = 0; i < f->n; i++) {
        const fl_data_entry *e = f->sorted_[i];
        crc = fl_data_crc32c(crc, e->name, strlen(e->name) + 1);
        const char *dtype = fl__st_dtype_name(e->dtype);
        crc = fl_data_crc32c(crc, dtype, strlen(dtype) + 1);
        crc = fl_data_crc32c(crc, e->shape.dim, (size_t)e->shape.ndim * sizeof(int64_t));
        crc = fl_data_crc32c(crc, &e->crc, sizeof e->crc);
    }
    for (int64_t i = 0; i < f->n_meta; i++) {
        if (fl__st_is_crc(f->meta[i].key)) continue;
        crc = fl_data_crc32c(crc, f->meta[i].key, strlen(f->meta[i].key) + 1);
        crc = fl_data_crc32c(crc, f->meta[i].value, strlen(f->meta[i].value) + 1);
    }
    return crc;
}

/* ---- saving ---- */

typedef struct fl__st_saver {
    fl_data_replacement r;
    fl_data_file file; /* the contents; no file is open */
    const fl_data_named_tensor *tensors;
    fl_data_text text;           /* the header */
    int64_t *digits, crc_digits; /* positions of the checksums in it, and of its own */
} fl__st_saver;

static bool fl__st_puts(fl__st_saver *s, const char *text) {
    return fl_data_text_put(&s->text, text, strlen(text));
}

/* Computes the header's checksum. */
static bool fl__st_put_crc(fl__st_saver *s, const char *name, int64_t *digits) {
    fl_data_text key = {0};
    bool ok = fl_data_text_put(&key, name ? FL__ST_CRC "." : FL__ST_CRC, sizeof FL__ST_CRC - !name) &&
              (!name || fl_data_text_put(&key, name, strlen(name))) &&
              fl_data_json_put_string(&s->text, key.p, (size_t)key.n) && fl__st_puts(s, ":\"00000000\"");
    *digits = s->text.n - 9;
    fl_heap_free(key.p);
    return ok;
}

static bool fl__st_put_entry(fl__st_saver *s, const fl_data_entry *e) {
    char text[400];
    int len = snprintf(text, sizeof text, ":{\"dtype\":\"%s\",\"shape\":[",
                       fl__st_dtype_name(e->dtype));
    for (int i = 0; i < e->shape.ndim; i++)
        len += snprintf(text + len, sizeof text - (size_t)len, i ? ",%lld" : "%lld",
                        (long long)e->shape.dim[i]);
    snprintf(text + len, sizeof text - (size_t)len, "],\"data_offsets\":[%lld,%lld]}",
             (long long)e->begin, (long long)e->end);
    return fl__st_puts(s, ",") && fl_data_json_put_string(&s->text, e->name, strlen(e->name)) &&
           fl__st_puts(s, text);
}

/* Writes the header with checksums of zero, overwritten when they are known. */
static bool fl__st_compose(fl__st_saver *s) {
    const fl_data_file *f = &s->file;
    bool ok = fl__st_puts(s, "{\"__metadata__\":{") && fl__st_put_crc(s, NULL, &s->crc_digits);
    for (int64_t i = 0; ok && i < f->n; i++)
        ok = fl__st_puts(s, ",") && fl__st_put_crc(s, f->entry[i].name, &s->digits[i]);
    for (int64_t i = 0; ok && i < f->n_meta; i++)
        ok = fl__st_puts(s, ",") &&
             fl_data_json_put_string(&s->text, f->meta[i].key, strlen(f->meta[i].key)) &&
             fl__st_puts(s, ":") &&
             fl_data_json_put_string(&s->text, f->meta[i].value, strlen(f->meta[i].value));
    ok = ok && fl__st_puts(s, "}");
    for (int64_t i = 0; ok && i < f->n; i++) ok = fl__st_put_entry(s, &f->entry[i]);
    ok = ok && fl__st_puts(s, "}");
    while (ok && s->text.n % 8) ok = fl__st_puts(s, " ");
    return ok && (s->text.n <= FL_DATA_MAX_HEADER ||
                  fl_fail("%s: %s: the header is longer than %d bytes", f->f.who, f->f.path,
                          FL_DATA_MAX_HEADER));
}

static void fl__st_put_digits(fl__st_saver *s, int64_t at, uint32_t crc) {
    char digits[9];
    snprintf(digits, sizeof digits, "%08x", (unsigned)crc);
    memcpy(s->text.p + at, digits, 8);
}

static bool fl__st_take_tensor(fl_data_file *f, const fl_data_named_tensor *t, int64_t begin) {
    if (!t->name) return fl_fail("%s: %s: a name is NULL", f->f.who, f->f.path);
    const char *fault = fl__st_is_utf8(t->name) ? fl__st_name_fault(t->name) : "a name that is not UTF-8";
    if (fault) return fl_fail("%s: %s: %s", f->f.who, f->f.path, fault);
    if (!t->tensor) return fl_fail("%s: %s: tensor '%s' is NULL", f->f.who, f->f.path, t->name);
    if (t->tensor->weak || !fl__st_dtype_name(t->tensor->dtype))
        return fl_fail("%s: %s: tensor '%s' is a scalar constant, or safetensors has no dtype %s",
                       f->f.who, f->f.path, t->name, fl_dtype_name(t->tensor->dtype));
    fl_data_entry *e = fl_data_file_add(f, t->name, (int64_t)strlen(t->name));
    if (!e) return false;
    e->shape = fl_shape_of(t->tensor);
    e->dtype = t->tensor->dtype;
    e->begin = begin;
    e->end = begin + fl_shape_numel(e->shape) * (int64_t)fl_dtype_size(e->dtype);
    return true;
}

static bool fl__st_take(fl_data_file *f, const fl_data_named_tensor *tensors, int n,
                        const fl_data_key_value *meta,
                        int n_meta) {
    bool format = false;
    for (int i = 0; i < n; i++)
        if (!fl__st_take_tensor(f, &tensors[i], i ? f->entry[i - 1].end : 0)) return false;
    for (int i = 0; i < n_meta; i++) {
        if (!meta[i].key || !meta[i].value)
            return fl_fail("%s: %s: metadata pair %d has a NULL key or value", f->f.who, f->f.path, i);
        if (fl__st_is_crc(meta[i].key) || !fl__st_is_utf8(meta[i].key) || !fl__st_is_utf8(meta[i].value))
            return fl_fail("%s: %s: metadata pair %d is not UTF-8, or its key starts with " FL__ST_CRC,
                           f->f.who, f->f.path, i);
        if (!fl_data_file_add_meta(f, meta[i].key, meta[i].value)) return false;
        format |= !strcmp(meta[i].key, "format");
    }
    return (format || fl_data_file_add_meta(f, "format", "pt")) && fl_data_file_ready(f);
}

/* Tensors are read and written in pieces that fit into the cache, where the checksum finds them. */
enum { FL__ST_PIECE = 1 << 18 };

static size_t fl__st_piece(size_t left) {
    return left < FL__ST_PIECE ? left : FL__ST_PIECE;
}

static bool fl__st_write_summed(const fl_data_stream *f, const char *p, size_t n, int64_t at, uint32_t *crc) {
    bool ok = true;
    *crc = 0;
    for (size_t piece; ok && (piece = fl__st_piece(n)); p += piece, at += (int64_t)piece, n -= piece) {
        *crc = fl_data_crc32c(*crc, p, piece);
        ok = fl_data_stream_write(f, p, piece, at);
    }
    return ok;
}

static bool fl__st_read_summed(const fl_data_stream *f, char *p, size_t n, int64_t at, uint32_t *crc) {
    bool ok = true;
    *crc = 0;
    for (size_t piece; ok && (piece = fl__st_piece(n)); p += piece, at += (int64_t)piece, n -= piece) {
        ok = fl_data_stream_read(f, p, piece, at);
        if (ok) *crc = fl_data_crc32c(*crc, p, piece);
    }
    return ok;
}

static bool fl__st_write_tensor(fl__st_saver *s, int64_t i) {
    fl_data_entry *e = &s->file.entry[i];
    const size_t bytes = (size_t)(e->end - e->begin);
    bool ok = true;
    if (bytes) {
        fl_scope scope = fl_scope_begin();
        fl_tensor *t = fl_contiguous(s->tensors[i].tensor);
        void *p = t ? fl_map(t, FL_READ) : NULL;
        if (p) {
            ok = fl__st_write_summed(&s->r.f, p, bytes, 8 + s->text.n + e->begin, &e->crc);
            fl_unmap(t, FL_READ);
        } else ok = false;
        fl_scope_end(&scope);
    }
    fl__st_put_digits(s, s->digits[i], e->crc);
    return ok;
}

static bool fl__st_write_header(fl__st_saver *s) {
    unsigned char size[8];
    fl__st_put_digits(s, s->crc_digits, fl__st_header_crc(&s->file));
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)s->text.n >> (8 * i));
    return fl_data_stream_write(&s->r.f, size, 8, 0) &&
           fl_data_stream_write(&s->r.f, s->text.p, (size_t)s->text.n, 8);
}

static bool fl__st_write(fl__st_saver *s) {
    if (!fl_data_replace_begin(&s->r, s->file.f.who, s->file.f.path)) return false;
    bool ok = true;
    for (int64_t i = 0; ok && i < s->file.n; i++) ok = fl__st_write_tensor(s, i);
    return fl_data_replace_end(&s->r, ok && fl__st_write_header(s));
}

FL_API bool fl_data_save_safetensors(const char *path, const fl_data_named_tensor *tensors, int n,
                                     const fl_data_key_value *meta, int n_meta) {
    static const char who[] = "fl_data_save_safetensors";
    if (!path || n < 0 || n_meta < 0 || (n && !tensors) || (n_meta && !meta))
        return fl_fail("%s: path, tensors or meta is NULL, or a count negative", who);
    if (fl__st_is_index(path)) return fl_data_save_sharded(path, tensors, n, meta, n_meta, 0);
    fl__st_saver s = {.file = {.f = {.who = who, .path = path}}, .tensors = tensors};
    fl_data_file *f = &s.file;
    fl_quiet(+1);
    s.digits = fl_heap_alloc((size_t)n * sizeof *s.digits);
    const bool ok =
        s.digits && fl__st_take(f, tensors, n, meta, n_meta) && fl__st_compose(&s) && fl__st_write(&s);
    fl_quiet(-1);
    fl_heap_free(s.digits);
    fl_heap_free(s.text.p);
    fl_data_file_clear(f);
    return ok;
}

/* ---- opening ---- */

static bool fl__st_parse_meta(fl_data_file *s, fl_data_json *j) {
    bool ok = s->meta ? fl_data_json_fail(j, "a second __metadata__")
                      : fl_data_json_expect(j, FL_DATA_JSON_OBJECT);
    ok = ok && fl_heap_grow(&s->meta, &s->meta_cap_, 1, sizeof *s->meta);
    while (ok && fl_data_json_more(j)) {
        ok = fl_data_file_add_meta(s, j->text, "") && fl_data_json_string(j);
        if (ok) s->meta[s->n_meta - 1].value = fl_data_arena_add(&s->texts, j->text, (size_t)j->n);
        ok = ok && s->meta[s->n_meta - 1].value;
    }
    return ok && j->event != FL_DATA_JSON_ERROR;
}

static bool fl__st_parse_dtype(fl_data_json *j, fl_data_entry *e) {
    const char *name = fl_data_json_string(j);
    if (!name) return false;
    const char *needed;
    e->dtype = fl__st_dtype(name, &needed);
    if (needed && e->dtype == FL_DTYPE_NONE)
        return fl_data_json_fail(j, "tensor '%.100s' has the dtype '%s': register '%s' (fl_dtype_register), "
                                 "one byte, blocks of one number, first", e->name, name, needed);
    return e->dtype != FL_DTYPE_NONE ||
           fl_data_json_fail(j, "tensor '%.100s' has the dtype '%.20s', which is not supported "
                             "(F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 BOOL are)", e->name, name);
}

/* [a, b, ...] of at most max non-negative integers. */
static bool fl__st_parse_numbers(fl_data_json *j, int64_t *out, int max, int *n) {
    *n = 0;
    if (!fl_data_json_expect(j, FL_DATA_JSON_ARRAY)) return false;
    while (fl_data_json_more(j)) {
        if (*n == max) return fl_data_json_fail(j, "expected at most %d numbers", max);
        if (!fl_data_json_int(j, &out[*n])) return false;
        if (out[(*n)++] < 0) return fl_data_json_fail(j, "expected a non-negative integer");
    }
    return j->event != FL_DATA_JSON_ERROR;
}

static bool fl__st_parse_field(fl_data_json *j, fl_data_entry *e, unsigned *seen) {
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    int64_t offsets[2];
    int n, k = 0;
    while (k < 3 && strcmp(j->text, fields[k])) k++;
    if (k == 3) return fl_data_json_fail(j, "unknown field of a tensor");
    if (*seen & 1u << k) return fl_data_json_fail(j, "duplicate field");
    *seen |= 1u << k;
    if (k == 0) return fl__st_parse_dtype(j, e);
    if (k == 1) return fl__st_parse_numbers(j, e->shape.dim, FL_MAX_DIMS, &e->shape.ndim);
    if (!fl__st_parse_numbers(j, offsets, 2, &n)) return false;
    e->begin = offsets[0], e->end = n == 2 ? offsets[1] : 0;
    return n == 2 || fl_data_json_fail(j, "expected two numbers for data_offsets");
}

static bool fl__st_parse_entry(fl_data_file *s, fl_data_json *j) {
    const char *fault = fl__st_name_fault(j->text);
    if (fault) return fl_data_json_fail(j, "%s", fault);
    fl_data_entry *e = fl_data_file_add(s, j->text, j->n);
    unsigned seen = 0;
    if (!e || !fl_data_json_expect(j, FL_DATA_JSON_OBJECT)) return false;
    while (fl_data_json_more(j))
        if (!fl__st_parse_field(j, e, &seen)) return false;
    if (j->event == FL_DATA_JSON_ERROR) return false;
    return seen == 7 || fl_data_json_fail(j, "a tensor lacks dtype, shape or data_offsets");
}

/* Checks that the header is padded with spaces only, as the format says. */
static bool fl__st_only_spaces(const fl_data_file *s, int64_t at, int64_t end) {
    char piece[256];
    for (int64_t n; at < end; at += n) {
        n = end - at < (int64_t)sizeof piece ? end - at : (int64_t)sizeof piece;
        if (!fl_data_stream_read(&s->f, piece, (size_t)n, at)) return false;
        for (int64_t i = 0; i < n; i++)
            if (piece[i] != ' ')
                return fl_fail("%s: %s: offset %lld: unexpected bytes after the header", s->f.who, s->f.path,
                               (long long)(at + i));
    }
    return true;
}

static bool fl__st_parse(fl_data_file *s, fl_data_json *j, int64_t end) {
    if (!fl_data_json_expect(j, FL_DATA_JSON_OBJECT)) return false;
    if (j->at != 8) return fl_data_json_fail(j, "expected '{' at offset 8");
    while (fl_data_json_more(j))
        if (!(strcmp(j->text, "__metadata__") ? fl__st_parse_entry(s, j) : fl__st_parse_meta(s, j)))
            return false;
    return j->event != FL_DATA_JSON_ERROR && fl__st_only_spaces(s, j->at + 1, end);
}

static int fl__st_by_offset(const void *a, const void *b) {
    const fl_data_entry *x = *(fl_data_entry *const *)a, *y = *(fl_data_entry *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Checks that every tensor's range has the size of its shape, and that the ranges cover the data exactly. */
static bool fl__st_check_ranges(fl_data_file *s, int64_t data_at) {
    const int64_t size = s->f.size - data_at;
    int64_t at = 0;
    if (s->n > 1) qsort(s->sorted_, (size_t)s->n, sizeof *s->sorted_, fl__st_by_offset);
    for (int64_t i = 0; i < s->n; i++) {
        fl_data_entry *e = s->sorted_[i];
        if (!fl_data_entry_fits(e))
            return fl_fail("%s: %s: tensor '%.100s': offsets %lld to %lld do not match its shape",
                           s->f.who, s->f.path, e->name, (long long)e->begin, (long long)e->end);
        if (e->begin != at || e->end > size)
            return fl_fail(
                "%s: %s: tensor '%.100s' starts at offset %lld of the data and ends at %lld: "
                "%lld was next, %lld is the end",
                s->f.who, s->f.path, e->name, (long long)e->begin, (long long)e->end, (long long)at,
                (long long)size);
        at = e->end;
    }
    for (int64_t i = 0; i < s->n; i++) s->entry[i].begin += data_at, s->entry[i].end += data_at;
    return at == size || fl_fail("%s: %s: %lld unexpected bytes after the last tensor", s->f.who, s->f.path,
                                 (long long)(size - at));
}

/* Parses eight hexadecimal digits, lower case. */
static bool fl__st_parse_crc(const char *digits, uint32_t *crc) {
    char written[9];
    *crc = (uint32_t)strtoul(digits, NULL, 16);
    snprintf(written, sizeof written, "%08x", (unsigned)*crc);
    return !strcmp(written, digits);
}

/* Reads the checksums; a file has all or none. Keys and entries have the same order, so one pass suffices. */
static bool fl__st_take_checksums(fl_data_file *s) {
    const size_t prefix = sizeof FL__ST_CRC - 1;
    int64_t at = 0, header = -1;
    uint32_t crc;
    for (int64_t i = 0; i < s->n_meta; i++) {
        const char *key = s->meta[i].key;
        if (!fl__st_is_crc(key)) continue;
        bool ok = fl__st_parse_crc(s->meta[i].value, &crc);
        if (ok && !key[prefix]) header = i;
        else if (ok && key[prefix] == '.' && at < s->n &&
                 !strcmp(key + prefix + 1, s->sorted_[at]->name))
            s->sorted_[at++]->crc = crc;
        else return fl_fail("%s: %s: invalid checksum entry '%.100s'", s->f.who, s->f.path, key);
    }
    if (at != (header >= 0 ? s->n : 0))
        return fl_fail("%s: %s: checksums must be given for all tensors or none", s->f.who,
                       s->f.path);
    if (header < 0) return true;
    fl__st_parse_crc(s->meta[header].value, &crc);
    return crc == fl__st_header_crc(s) ||
           fl_fail("%s: %s: the header's checksum does not match", s->f.who, s->f.path);
}

static bool fl__st_read_header(fl_data_file *s) {
    unsigned char size[8];
    uint64_t len = 0;
    if (!fl_data_stream_read(&s->f, size, 8, 0)) return false;
    for (int i = 7; i >= 0; i--) len = len << 8 | size[i];
    uint64_t most =
        s->f.size - 8 < FL_DATA_MAX_HEADER ? (uint64_t)s->f.size - 8 : FL_DATA_MAX_HEADER;
    if (len < 2 || len > most)
        return fl_fail("%s: %s: offset 0: the header's size must be in [2, %llu], got %llu", s->f.who,
                       s->f.path, (unsigned long long)most, (unsigned long long)len);
    const int64_t data_at = 8 + (int64_t)len;
    const fl_data_json_opts o = {.max_text = FL_DATA_MAX_HEADER, .c_strings = true};
    fl_data_json *j = fl_data_json_in(&s->f, 8, (int64_t)len, o);
    const bool ok = j && fl__st_parse(s, j, data_at);
    fl_data_json_close(j);
    return ok && fl_data_file_ready(s) && fl__st_check_ranges(s, data_at) && fl_data_file_ready(s) &&
           fl__st_take_checksums(s);
}

/* Checks that bools are 0 or 1. */
static bool fl__st_check_bools(const fl_data_file *f, const fl_data_entry *e, const unsigned char *p) {
    for (int64_t i = 0; e->dtype == FL_B8 && i < e->end - e->begin; i++)
        if (p[i] > 1)
            return fl_fail("fl_data_read: %s: offset %lld: got %d in the BOOL tensor '%.100s', expected 0 or "
                           "1", f->f.path, (long long)(e->begin + i), p[i], e->name);
    return true;
}

static bool fl__st_check(const fl_data_file *f, const fl_data_entry *e, const void *bytes, uint32_t crc) {
    if (fl_data_meta(f, FL__ST_CRC) && crc != e->crc)
        return fl_fail("fl_data_read: %s: the checksum of tensor '%.100s' does not match", f->f.path,
                       e->name);
    return fl__st_check_bools(f, e, bytes);
}

static bool fl__st_fill(const fl_data_file *f, const fl_data_entry *e, void *dst) {
    fl_data_stream stream = f->f;
    stream.who = "fl_data_read";
    uint32_t crc;
    return fl__st_read_summed(&stream, dst, (size_t)(e->end - e->begin), e->begin, &crc) &&
           fl__st_check(f, e, dst, crc);
}

static fl_data_file *fl__st_open(const char *who, const char *path) {
    fl_data_file *f = fl_data_file_new(who, path);
    if (f) f->fill = fl__st_fill;
    if (f && fl__st_read_header(f)) return f;
    fl_data_close(f);
    return NULL;
}

FL_API fl_data_file *fl_data_open_safetensors(const char *path) {
    if (fl__st_is_index(path)) return fl_data_open_sharded(path, false, true);
    return fl__st_open("fl_data_open_safetensors", path);
}

static bool fl__st_verify(const fl_data_file *f, const fl_data_entry *e, const char *bytes) {
    return fl__st_check(f, e, bytes, fl_data_crc32c(0, bytes, (size_t)(e->end - e->begin)));
}

FL_API fl_data_file *fl_data_map_safetensors(const char *path, bool verify) {
    if (fl__st_is_index(path)) return fl_data_open_sharded(path, true, verify);
    fl_data_file *f = fl__st_open("fl_data_map_safetensors", path);
    if (f && fl_data_file_map(f, verify ? fl__st_verify : NULL)) return f;
    fl_data_close(f);
    return NULL;
}

#endif
#endif

/* MIT licence: see LICENSE. */
