/* gguf.h - files of the GGUF format, version 2 and 3 */
#ifndef FL_TEXT_GGUF_H
#define FL_TEXT_GGUF_H
#ifndef FL_DATA_H
#include "../../fl_data.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The tensors by name, of types f32, f16, bf16, q8_0 (fl_q8), q4_0 (fl_q4), others with an error that names
   them; shapes have the dims of weights [out, in], in blocks for the last two. Tensors are views of the
   mapped file, as those of fl_data_map_safetensors. fl_data_meta gives keys whose values are numbers, texts
   of less than 4,096 bytes and truth values ("1", "0") as text; arrays by the function below. Sizes are
   compared with the file's bytes before anything is allocated. NULL after fl_fail. */
FL_API fl_data_file *fl_text_open_gguf(const char *path);
/* Calls each for every element of the array of that key: a text of n bytes, or (text NULL) a number. -1 after
   fl_fail, or how many there were; 0 also where there is no such key. */
typedef bool (*fl_text_gguf_fn)(const char *text, int64_t n, double number, void *user);
FL_API int64_t fl_text_gguf_array(fl_data_file *f, const char *key, fl_text_gguf_fn each, void *user);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_GGUF_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_GGUF) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_GGUF_IMPL
#define FL_TEXT_GGUF_IMPL
#include "../ops/copy.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- reading ---- */

static const struct { int type; int64_t bytes, numbers; } fl__gguf_types[] = {
    {0, 4, 1}, {1, 2, 1}, {2, 18, 32}, {8, 34, 32}, {30, 2, 1}};

static fl_dtype fl__gguf_dtype(int type) {
    return type == 0 ? FL_F32 : type == 1 ? FL_F16 : type == 2 ? fl_q4() : type == 8 ? fl_q8() : FL_BF16;
}

typedef struct fl__gguf {
    fl_data_stream *f;
    int64_t at;
    const char *who;
    bool ok;
} fl__gguf;

static bool fl__gguf_fail(fl__gguf *g, const char *what) {
    if (g->ok) fl_fail("%s: %s: offset %" PRId64 ": %s", g->who, g->f->path, g->at, what);
    return g->ok = false;
}

static bool fl__gguf_bytes(fl__gguf *g, void *out, int64_t n) {
    if (!g->ok) return false;
    if (n < 0 || n > g->f->size - g->at) return fl__gguf_fail(g, "the file ends");
    g->ok = fl_data_stream_read(g->f, out, (size_t)n, g->at);
    g->at += n;
    return g->ok;
}

/* A count or length: at most what is left of the file, `least` bytes each. */
static int64_t fl__gguf_count(fl__gguf *g, int64_t least) {
    uint64_t n = 0;
    const int64_t at = g->at;
    if (!fl__gguf_bytes(g, &n, 8)) return 0;
    if (n > (uint64_t)((g->f->size - g->at) / least)) {
        g->at = at;
        fl__gguf_fail(g, "a count or length beyond the end of the file");
        return 0;
    }
    return (int64_t)n;
}

static const int fl__gguf_sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* A number of that type (neither 8, a text, nor 9, an array) as text. */
static bool fl__gguf_number(fl__gguf *g, uint32_t type, char *text, size_t size, double *number) {
    uint8_t b[8];
    if (type > 12 || !fl__gguf_sizes[type]) return fl__gguf_fail(g, "an unknown type of value");
    if (!fl__gguf_bytes(g, b, fl__gguf_sizes[type])) return false;
    static const fl_dtype dtypes[] = {FL_U8, FL_I8, FL_U16, FL_I16, FL_U32, FL_I32, FL_F32,
                                      FL_U8, 0, 0, FL_U64, FL_I64, FL_F64};
    const fl_number v = fl_number_load(dtypes[type], b);
    const bool real = type == 6 || type == 12;
    *number = real ? v.f : (double)v.i;
    if (!text) return true;
    if (real) snprintf(text, size, "%.17g", v.f);
    else if (type == 10) snprintf(text, size, "%" PRIu64, (uint64_t)v.i);
    else snprintf(text, size, "%" PRId64, (int64_t)v.i);
    return true;
}

/* A text of the file into buf, with a NUL; its length. Longer ones than size - 1 are passed over: -1. */
static int64_t fl__gguf_text(fl__gguf *g, char *buf, int64_t size) {
    const int64_t n = fl__gguf_count(g, 1);
    if (!g->ok) return -1;
    if (n >= size) return g->at += n, -1;
    fl__gguf_bytes(g, buf, n);
    buf[g->ok ? n : 0] = 0;
    return g->ok ? n : -1;
}

enum { FL__GGUF_TEXT = 1 << 12 }; /* longer texts are no metadata, and errors in arrays */

/* The elements of an array. */
static bool fl__gguf_elements(fl__gguf *g, int64_t *count, fl_text_gguf_fn each, void *user, char *buf) {
    uint32_t type = 0;
    if (!fl__gguf_bytes(g, &type, 4)) return false;
    if (type > 12 || type == 9) return fl__gguf_fail(g, "an array of arrays, or of an unknown type");
    *count = fl__gguf_count(g, type == 8 ? 8 : fl__gguf_sizes[type]);
    if (!each && type != 8) return g->at += *count * fl__gguf_sizes[type], g->ok;
    for (int64_t i = 0; g->ok && i < *count; i++) {
        double number = 0;
        int64_t n = 0;
        if (type == 8) n = fl__gguf_text(g, buf, each ? FL__GGUF_TEXT : 0);
        else fl__gguf_number(g, type, NULL, 0, &number);
        if (!g->ok || !each) continue;
        if (n < 0) return fl__gguf_fail(g, "a text of 4,096 bytes or more in an array");
        if (!each(type == 8 ? buf : NULL, n, number, user)) return g->ok = false;
    }
    return g->ok;
}

/* One key and its value: a pair of the metadata; of an array (each not NULL and key the one that is asked
   for) its elements. */
static bool fl__gguf_pair(fl__gguf *g, fl_data_file *f, char *buf, const char *key, fl_text_gguf_fn each,
                          void *user, int64_t *count) {
    char name[FL_DATA_MAX_NAME];
    uint32_t type = 0;
    double number;
    if (fl__gguf_text(g, name, sizeof name) < 0 && g->ok)
        return fl__gguf_fail(g, "a key of 4,096 bytes or more");
    if (!fl__gguf_bytes(g, &type, 4)) return false;
    const bool asked = key && !strcmp(key, name);
    if (type == 9) {
        int64_t n = 0;
        const bool ok = fl__gguf_elements(g, &n, asked ? each : NULL, user, buf);
        if (asked) *count = n;
        return ok;
    }
    if (type == 8) {
        if (fl__gguf_text(g, buf, FL__GGUF_TEXT) < 0) return g->ok; /* too long for metadata */
    } else if (!fl__gguf_number(g, type, buf, FL__GGUF_TEXT, &number)) return false;
    return key || (g->ok = fl_data_file_add_meta(f, name, buf));
}

static bool fl__gguf_tensor(fl__gguf *g, fl_data_file *f) {
    char name[FL_DATA_MAX_NAME];
    uint32_t dims = 0, type = 0;
    uint64_t offset = 0;
    if (fl__gguf_text(g, name, sizeof name) < 0 && g->ok)
        return fl__gguf_fail(g, "a name of 4,096 bytes or more");
    if (!fl__gguf_bytes(g, &dims, 4)) return false;
    if (dims < 1 || dims > 4) return fl__gguf_fail(g, "a tensor of less than 1 or more than 4 dims");
    fl_shape shape = {.ndim = (int)dims};
    for (int i = (int)dims - 1; i >= 0; i--)
        shape.dim[i] = fl__gguf_count(g, 1); /* no dim past the file's bytes */
    fl__gguf_bytes(g, &type, 4);
    fl__gguf_bytes(g, &offset, 8);
    size_t k = 0;
    const size_t types = sizeof fl__gguf_types / sizeof *fl__gguf_types;
    while (k < types && fl__gguf_types[k].type != (int)type) k++;
    if (!g->ok) return false;
    if (k == types) {
        fl_fail("%s: %s: tensor '%.100s' is of type %u: f32, f16, bf16, q8_0 and q4_0 are known", g->who,
                g->f->path, name, type);
        return g->ok = false;
    }
    int64_t *last = &shape.dim[dims - 1];
    if (*last % fl__gguf_types[k].numbers) return fl__gguf_fail(g, "rows of blocks that are not whole");
    *last /= fl__gguf_types[k].numbers;
    const int64_t n = fl_shape_numel(shape);
    if (n < 0 || n > g->f->size / fl__gguf_types[k].bytes || offset > (uint64_t)g->f->size)
        return fl__gguf_fail(g, "a tensor beyond the end of the file");
    fl_data_entry *e = fl_data_file_add(f, name, (int64_t)strlen(name));
    if (!e) return g->ok = false;
    e->dtype = fl__gguf_dtype((int)type), e->shape = shape;
    e->begin = (int64_t)offset, e->end = e->begin + n * fl__gguf_types[k].bytes;
    return e->dtype != FL_DTYPE_NONE || (g->ok = false);
}

/* The places of tensors are counted from an aligned end of the header; they must not overlap. */
static bool fl__gguf_place(fl__gguf *g, fl_data_file *f) {
    const char *text = fl_data_meta(f, "general.alignment");
    double align = 32;
    if (text && (!fl_data_parse_double(text, strlen(text), &align) || !(align >= 8 && align <= 1 << 20) ||
                 ((int64_t)align & ((int64_t)align - 1))))
        return fl__gguf_fail(g, "an alignment that is no power of two from 8 to 2^20");
    const int64_t by = (int64_t)align, start = (g->at + by - 1) / by * by;
    for (int64_t i = 0; i < f->n; i++) {
        fl_data_entry *e = &f->entry[i];
        if (e->begin % by) return fl__gguf_fail(g, "a tensor that is not aligned");
        if (e->begin < (i ? f->entry[i - 1].end - start : 0))
            return fl__gguf_fail(g, "tensors that overlap, or are not in the order of their names");
        e->begin += start, e->end += start;
        if (e->end > g->f->size) return fl__gguf_fail(g, "a tensor beyond the end of the file");
    }
    return true;
}

static bool fl__gguf_fill(const fl_data_file *f, const fl_data_entry *e, void *dst) {
    return fl_data_stream_read(&f->f, dst, (size_t)(e->end - e->begin), e->begin);
}

/* All of the header; or, with a key, its array only. */
static bool fl__gguf_header(fl__gguf *g, fl_data_file *f, const char *key, fl_text_gguf_fn each, void *user,
                            int64_t *count) {
    char magic[4];
    uint32_t version = 0;
    if (!fl__gguf_bytes(g, magic, 4)) return false;
    if (memcmp(magic, "GGUF", 4)) return g->at = 0, fl__gguf_fail(g, "is no GGUF file");
    if (!fl__gguf_bytes(g, &version, 4)) return false;
    if (version < 2 || version > 3) return fl__gguf_fail(g, "a version that is neither 2 nor 3");
    const int64_t tensors = fl__gguf_count(g, 24), keys = fl__gguf_count(g, 12);
    char *buf = fl_heap_alloc(FL__GGUF_TEXT);
    g->ok = g->ok && buf;
    for (int64_t i = 0; g->ok && i < keys; i++) fl__gguf_pair(g, f, buf, key, each, user, count);
    for (int64_t i = 0; g->ok && !key && i < tensors; i++) fl__gguf_tensor(g, f);
    fl_heap_free(buf);
    return g->ok;
}

FL_API fl_data_file *fl_text_open_gguf(const char *path) {
    fl_data_file *f = fl_data_file_new("fl_text_open_gguf", path);
    if (!f) return NULL;
    fl__gguf g = {.f = &f->f, .who = "fl_text_open_gguf", .ok = true};
    f->fill = fl__gguf_fill;
    if (fl__gguf_header(&g, f, NULL, NULL, NULL, NULL) && fl_data_file_ready(f) && fl__gguf_place(&g, f) &&
        fl_data_file_map(f, NULL))
        return f;
    fl_data_close(f);
    return NULL;
}

FL_API int64_t fl_text_gguf_array(fl_data_file *f, const char *key, fl_text_gguf_fn each, void *user) {
    if (!f || !key || !each) return fl_fail("fl_text_gguf_array: the file, key or each is NULL"), -1;
    fl__gguf g = {.f = &f->f, .who = "fl_text_gguf_array", .ok = true};
    int64_t count = 0;
    return fl__gguf_header(&g, f, key, each, user, &count) ? count : -1;
}

#endif
#endif

/* MIT licence: see LICENSE. */
