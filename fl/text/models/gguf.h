/* fl/text/models/gguf.h - GGUF files, versions 2 and 3: reading and writing tensors and metadata */
#ifndef FL_TEXT_MODELS_GGUF_H
#define FL_TEXT_MODELS_GGUF_H
#ifndef FL_DATA_H
#include "../../../fl_data.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a GGUF file. Tensors: floats, integers, and the quantised blocks of fl/tensor/blocks.h (Q4_0 to
   Q8_0, Q2_K to Q8_K, IQ4_NL, IQ4_XS, MXFP4); other types are errors. Shapes are [out, in] for weights, in
   blocks for quantised dtypes. Tensors are views of the memory-mapped file, as with fl_data_map_safetensors.
   fl_data_meta returns keys with numbers, strings of less than 4,096 bytes and booleans ("1", "0") as text;
   for arrays see below. Sizes are checked against the file's size before anything is allocated. NULL after
   fl_fail. */
FL_API fl_data_file *fl_text_open_gguf(const char *path);
/* Calls `each` for every element of the array of a key: a string of n bytes, or (text NULL) a number.
   Returns the number of elements, 0 if the key is missing; -1 after fl_fail. */
typedef bool (*fl_text_gguf_fn)(const char *text, int64_t n, double number, void *user);
FL_API int64_t fl_text_gguf_array(fl_data_file *f, const char *key, fl_text_gguf_fn each, void *user);

/* A key and its value for writing: a string, or (text NULL) a number of that dtype (0 -> u32),
   or (array not NULL) an array. */
typedef struct fl_text_gguf_pair {
    const char *key, *text;
    double number;
    fl_dtype dtype;
    const void *array; /* n numbers of the dtype, or (dtype 0) n strings: const char *const * */
    int64_t n;
} fl_text_gguf_pair;
/* Writes n tensors in the order given, of 1 to 4 dims and the dtypes that fl_text_open_gguf reads, and n_meta
   keys; an existing file is replaced atomically (fl_data_replacement). Quantised weights are casts:

    fl_data_named_tensor list[] = {{"blk.0.ffn_up.weight", fl_cast(w, fl_q4_k())}};
    fl_text_gguf_pair meta[] = {{"general.architecture", .text = "llama"},
                                {"llama.block_count", .number = 1}};
    bool ok = fl_text_save_gguf("model.gguf", list, 1, meta, 2);

   Returns false after fl_fail: an unsupported dtype or array, a name longer than 63 bytes, a
   duplicate name or key, a number that its dtype cannot represent, or the key general.alignment. */
FL_API bool fl_text_save_gguf(const char *path, const fl_data_named_tensor *tensors, int n,
                              const fl_text_gguf_pair *meta, int n_meta);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_MODELS_GGUF_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_MODELS_GGUF) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_MODELS_GGUF_IMPL
#define FL_TEXT_MODELS_GGUF_IMPL
#include "../../tensor/blocks.h"
#include "../../ops/copy.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- reading ---- */

/* Tensor types by their number in the file: a dtype, or the function that registers it. */
static const struct {
    uint32_t type;
    fl_dtype dtype;
    fl_dtype (*blocks)(void);
} fl__gguf_types[] = {{0, FL_F32, NULL},    {1, FL_F16, NULL},    {30, FL_BF16, NULL},  {28, FL_F64, NULL},
                      {24, FL_I8, NULL},    {25, FL_I16, NULL},   {26, FL_I32, NULL},   {27, FL_I64, NULL},
                      {2, 0, fl_q4},        {3, 0, fl_q4_1},      {6, 0, fl_q5_0},      {7, 0, fl_q5_1},
                      {8, 0, fl_q8},        {10, 0, fl_q2_k},     {11, 0, fl_q3_k},     {12, 0, fl_q4_k},
                      {13, 0, fl_q5_k},     {14, 0, fl_q6_k},     {15, 0, fl_q8_k},     {20, 0, fl_iq4_nl},
                      {23, 0, fl_iq4_xs},   {39, 0, fl_mxfp4}};
enum { FL__GGUF_TYPES = sizeof fl__gguf_types / sizeof *fl__gguf_types };

static fl_dtype fl__gguf_dtype(int i) {
    return fl__gguf_types[i].blocks ? fl__gguf_types[i].blocks() : fl__gguf_types[i].dtype;
}

typedef struct fl__gguf {
    fl_data_stream *f;
    int64_t at;
    const char *who;
    bool ok;
} fl__gguf;

static bool fl__gguf_fail(fl__gguf *g, const char *message) {
    if (g->ok) fl_fail("%s: %s: offset %" PRId64 ": %s", g->who, g->f->path, g->at, message);
    return g->ok = false;
}

static bool fl__gguf_bytes(fl__gguf *g, void *out, int64_t n) {
    if (!g->ok) return false;
    if (n < 0 || n > g->f->size - g->at) return fl__gguf_fail(g, "unexpected end of file");
    g->ok = fl_data_stream_read(g->f, out, (size_t)n, g->at);
    g->at += n;
    return g->ok;
}

/* A count or length of items of `least` bytes or more, checked against the rest of the file. */
static int64_t fl__gguf_count(fl__gguf *g, int64_t least) {
    uint64_t n = 0;
    const int64_t at = g->at;
    if (!fl__gguf_bytes(g, &n, 8)) return 0;
    if (n > (uint64_t)((g->f->size - g->at) / least)) {
        g->at = at;
        fl__gguf_fail(g, "count or length exceeds the file");
        return 0;
    }
    return (int64_t)n;
}

/* Value types by their number in the file; 8 is a string, 9 an array. */
static const fl_dtype fl__gguf_values[] = {FL_U8, FL_I8, FL_U16, FL_I16, FL_U32, FL_I32, FL_F32,
                                           FL_B8, 0,     0,      FL_U64, FL_I64, FL_F64};
enum { FL__GGUF_VALUES = sizeof fl__gguf_values / sizeof *fl__gguf_values };

static int64_t fl__gguf_size(uint32_t type) {
    return type < FL__GGUF_VALUES ? (int64_t)fl_dtype_size(fl__gguf_values[type]) : 0;
}

/* A number of that type (not 8, a string, nor 9, an array) as text. */
static bool fl__gguf_number(fl__gguf *g, uint32_t type, char *text, size_t size, double *number) {
    uint8_t b[8];
    if (!fl__gguf_size(type)) return fl__gguf_fail(g, "unknown value type");
    if (!fl__gguf_bytes(g, b, fl__gguf_size(type))) return false;
    const fl_number v = fl_number_load(fl__gguf_values[type] == FL_B8 ? FL_U8 : fl__gguf_values[type], b);
    const bool real = type == 6 || type == 12;
    *number = real ? v.f : (double)v.i;
    if (!text) return true;
    if (real) snprintf(text, size, "%.17g", v.f);
    else if (type == 10) snprintf(text, size, "%" PRIu64, (uint64_t)v.i);
    else snprintf(text, size, "%" PRId64, (int64_t)v.i);
    return true;
}

/* Reads a string into buf, NUL-terminated; its length. Strings longer than size - 1 are skipped: -1. */
static int64_t fl__gguf_text(fl__gguf *g, char *buf, int64_t size) {
    const int64_t n = fl__gguf_count(g, 1);
    if (!g->ok) return -1;
    if (n >= size) return g->at += n, -1;
    fl__gguf_bytes(g, buf, n);
    buf[g->ok ? n : 0] = 0;
    return g->ok ? n : -1;
}

enum { FL__GGUF_TEXT = 1 << 12 }; /* longer strings are skipped in metadata, and errors in arrays */

/* Reads the elements of an array. */
static bool fl__gguf_elements(fl__gguf *g, int64_t *count, fl_text_gguf_fn each, void *user, char *buf) {
    uint32_t type = 0;
    if (!fl__gguf_bytes(g, &type, 4)) return false;
    const int64_t size = type == 8 ? 8 : fl__gguf_size(type);
    if (!size) return fl__gguf_fail(g, "unsupported array: of arrays, or of an unknown type");
    *count = fl__gguf_count(g, size);
    if (!each && type != 8) return g->at += *count * size, g->ok;
    for (int64_t i = 0; g->ok && i < *count; i++) {
        double number = 0;
        int64_t n = 0;
        if (type == 8) n = fl__gguf_text(g, buf, each ? FL__GGUF_TEXT : 0);
        else fl__gguf_number(g, type, NULL, 0, &number);
        if (!g->ok || !each) continue;
        if (n < 0) return fl__gguf_fail(g, "a string in an array is 4,096 bytes or longer");
        if (!each(type == 8 ? buf : NULL, n, number, user)) return g->ok = false;
    }
    return g->ok;
}

/* Reads one key and its value: metadata; or, if each is not NULL and the key is `key`, its elements. */
static bool fl__gguf_pair(fl__gguf *g, fl_data_file *f, char *buf, const char *key, fl_text_gguf_fn each,
                          void *user, int64_t *count) {
    char name[FL_DATA_MAX_NAME];
    uint32_t type = 0;
    double number;
    if (fl__gguf_text(g, name, sizeof name) < 0 && g->ok)
        return fl__gguf_fail(g, "key is 4,096 bytes or longer");
    if (!fl__gguf_bytes(g, &type, 4)) return false;
    const bool wanted = key && !strcmp(key, name);
    if (type == 9) {
        int64_t n = 0;
        const bool ok = fl__gguf_elements(g, &n, wanted ? each : NULL, user, buf);
        if (wanted) *count = n;
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
        return fl__gguf_fail(g, "tensor name is 4,096 bytes or longer");
    if (!fl__gguf_bytes(g, &dims, 4)) return false;
    if (dims < 1 || dims > 4) return fl__gguf_fail(g, "tensor must have 1 to 4 dims");
    fl_shape shape = {.ndim = (int)dims};
    for (int i = (int)dims - 1; i >= 0; i--) fl__gguf_bytes(g, &shape.dim[i], 8);
    fl__gguf_bytes(g, &type, 4);
    fl__gguf_bytes(g, &offset, 8);
    if (!g->ok) return false;
    int k = 0;
    while (k < FL__GGUF_TYPES && fl__gguf_types[k].type != type) k++;
    if (k == FL__GGUF_TYPES) {
        fl_fail("%s: %s: tensor '%.100s' has unsupported type %u, expected a float, an integer, Q4_0 to "
                "Q8_0, "
                "Q2_K to Q8_K, IQ4_NL, IQ4_XS or MXFP4", g->who, g->f->path, name, type);
        return g->ok = false;
    }
    const fl_dtype dtype = fl__gguf_dtype(k);
    if (dtype == FL_DTYPE_NONE) return g->ok = false;
    const fl_dtype_info *blocks = fl_dtype_registered(dtype);
    const int64_t bytes = (int64_t)fl_dtype_size(dtype), numbers = blocks ? blocks->block : 1;
    int64_t *last = &shape.dim[dims - 1];
    if (*last % numbers) return fl__gguf_fail(g, "last dim is not a multiple of the block size");
    *last /= numbers;
    /* An element or block has at least one byte: no dim exceeds the file's size. */
    bool fits = offset <= (uint64_t)g->f->size;
    for (int i = 0; i < (int)dims; i++) fits = fits && shape.dim[i] >= 0 && shape.dim[i] <= g->f->size;
    const int64_t n = fits ? fl_shape_numel(shape) : -1;
    if (n < 0 || n > g->f->size / bytes) return fl__gguf_fail(g, "tensor data exceeds the file");
    fl_data_entry *e = fl_data_file_add(f, name, (int64_t)strlen(name));
    if (!e) return g->ok = false;
    e->dtype = dtype, e->shape = shape;
    e->begin = (int64_t)offset, e->end = e->begin + n * bytes;
    return true;
}

/* Offsets of tensors are relative to the aligned end of the header; tensors must not overlap. */
static bool fl__gguf_check_offsets(fl__gguf *g, fl_data_file *f) {
    const char *text = fl_data_meta(f, "general.alignment");
    double align = 32;
    if (text && (!fl_data_parse_double(text, strlen(text), &align) || !(align >= 8 && align <= 1 << 20) ||
                 ((int64_t)align & ((int64_t)align - 1))))
        return fl__gguf_fail(g, "general.alignment must be a power of two in [8, 2^20]");
    const int64_t by = (int64_t)align, start = (g->at + by - 1) / by * by;
    for (int64_t i = 0; i < f->n; i++) {
        fl_data_entry *e = &f->entry[i];
        if (e->begin % by) return fl__gguf_fail(g, "tensor data is not aligned");
        if (e->begin < (i ? f->entry[i - 1].end - start : 0))
            return fl__gguf_fail(g, "tensor data overlaps, or is not in the order of the header");
        e->begin += start, e->end += start;
        if (e->end > g->f->size) return fl__gguf_fail(g, "tensor data exceeds the file");
    }
    return true;
}

static bool fl__gguf_fill(const fl_data_file *f, const fl_data_entry *e, void *dst) {
    return fl_data_stream_read(&f->f, dst, (size_t)(e->end - e->begin), e->begin);
}

/* Reads the whole header; or, with a key, only its array. */
static bool fl__gguf_header(fl__gguf *g, fl_data_file *f, const char *key, fl_text_gguf_fn each, void *user,
                            int64_t *count) {
    char magic[4];
    uint32_t version = 0;
    if (!fl__gguf_bytes(g, magic, 4)) return false;
    if (memcmp(magic, "GGUF", 4)) return g->at = 0, fl__gguf_fail(g, "not a GGUF file");
    if (!fl__gguf_bytes(g, &version, 4)) return false;
    if (version < 2 || version > 3) return fl__gguf_fail(g, "unsupported version, expected 2 or 3");
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
    if (fl__gguf_header(&g, f, NULL, NULL, NULL, NULL) && fl_data_file_ready(f) &&
        fl__gguf_check_offsets(&g, f) && fl_data_file_map(f, NULL))
        return f;
    fl_data_close(f);
    return NULL;
}

FL_API int64_t fl_text_gguf_array(fl_data_file *f, const char *key, fl_text_gguf_fn each, void *user) {
    if (!f || !key || !each) return fl_fail("fl_text_gguf_array: f, key or each is NULL"), -1;
    fl__gguf g = {.f = &f->f, .who = "fl_text_gguf_array", .ok = true};
    int64_t count = 0;
    return fl__gguf_header(&g, f, key, each, user, &count) ? count : -1;
}

/* ---- writing ---- */

enum { FL__GGUF_ALIGN = 32, FL__GGUF_NAME = 63 /* ggml's limit of a name in bytes */ };

static int64_t fl__gguf_aligned(int64_t n) {
    return (n + FL__GGUF_ALIGN - 1) / FL__GGUF_ALIGN * FL__GGUF_ALIGN;
}

static bool fl__gguf_put(fl_data_text *t, uint64_t v, size_t bytes) {
    return fl_data_text_put(t, &v, bytes);
}

static bool fl__gguf_put_text(fl_data_text *t, const char *s) {
    return fl__gguf_put(t, strlen(s), 8) && fl_data_text_put(t, s, strlen(s));
}

/* The number of a dtype among value types; FL__GGUF_VALUES: none. */
static uint32_t fl__gguf_type_of(fl_dtype d) {
    uint32_t type = 0;
    while (type < FL__GGUF_VALUES && (!d || fl__gguf_values[type] != d)) type++;
    return type;
}

static bool fl__gguf_put_array(fl_data_text *t, const fl_data_file *f, const fl_text_gguf_pair *p) {
    const char *const *text = p->array;
    const uint32_t type = p->dtype ? fl__gguf_type_of(p->dtype) : 8;
    if (p->n < 0 || type == FL__GGUF_VALUES)
        return fl_fail("%s: %s: key '%.100s': unsupported array: got %" PRId64 " values of %s", f->f.who,
                       f->f.path, p->key, p->n, fl_dtype_name(p->dtype));
    bool ok = fl__gguf_put(t, 9, 4) && fl__gguf_put(t, type, 4) && fl__gguf_put(t, (uint64_t)p->n, 8);
    if (p->dtype) return ok && fl_data_text_put(t, p->array, (size_t)p->n * fl_dtype_size(p->dtype));
    for (int64_t i = 0; ok && i < p->n; i++)
        ok = text[i] ? fl__gguf_put_text(t, text[i])
                     : fl_fail("%s: %s: key '%.100s': string %" PRId64 " is NULL", f->f.who, f->f.path,
                               p->key, i);
    return ok;
}

static bool fl__gguf_put_pair(fl_data_text *t, fl_data_file *f, const fl_text_gguf_pair *p) {
    if (!p->key || !strcmp(p->key, "general.alignment"))
        return fl_fail("%s: %s: key must not be NULL or general.alignment: got %s", f->f.who, f->f.path,
                       p->key ? p->key : "NULL");
    if (!fl_data_file_add_meta(f, p->key, "") || !fl__gguf_put_text(t, p->key)) return false;
    if (p->array) return fl__gguf_put_array(t, f, p);
    if (p->text) return fl__gguf_put(t, 8, 4) && fl__gguf_put_text(t, p->text);
    const fl_dtype d = p->dtype ? p->dtype : FL_U32;
    const uint32_t type = fl__gguf_type_of(d);
    const bool real = d == FL_F32 || d == FL_F64;
    const double x = p->number;
    union { uint64_t u; float f; double d; } v = {0};
    bool fits = type < FL__GGUF_VALUES && (real || x == floor(x)); /* false for NaN */
    if (d == FL_F32) v.f = (float)x;
    else if (d == FL_F64) v.d = x;
    else if (fits) {
        const int bits = d == FL_B8 ? 1 : 8 * (int)fl_dtype_size(d);
        const bool negative = d == FL_I8 || d == FL_I16 || d == FL_I32 || d == FL_I64;
        const double top = ldexp(1, bits - negative);
        fits = x < top && x >= (negative ? -top : 0);
        if (fits) v.u = x < 0 ? (uint64_t)(int64_t)x : (uint64_t)x;
    }
    if (!fits)
        return fl_fail("%s: %s: key '%.100s': %g cannot be represented in %s", f->f.who, f->f.path, p->key, x,
                       fl_dtype_name(d));
    return fl__gguf_put(t, type, 4) && fl_data_text_put(t, &v, fl_dtype_size(d));
}

static bool fl__gguf_put_tensor(fl_data_text *t, fl_data_file *f, const fl_data_named_tensor *of,
                                int64_t *at) {
    const fl_tensor *x = of->tensor;
    if (!of->name || !*of->name || strlen(of->name) > FL__GGUF_NAME)
        return fl_fail("%s: %s: tensor name has the wrong length: got '%.100s', expected 1 to 63 bytes",
                       f->f.who,
                       f->f.path, of->name ? of->name : "NULL");
    int k = 0;
    while (x && k < FL__GGUF_TYPES && fl__gguf_dtype(k) != x->dtype) k++;
    if (!x || x->weak || x->ndim < 1 || x->ndim > 4 || k == FL__GGUF_TYPES)
        return fl_fail("%s: %s: tensor '%s' is %s, expected 1 to 4 dims and a dtype that GGUF supports",
                       f->f.who, f->f.path, of->name,
                       !x ? "NULL" : x->weak ? "a number" : fl_dtype_name(x->dtype));
    const fl_dtype_info *blocks = fl_dtype_registered(x->dtype);
    fl_data_entry *e = fl_data_file_add(f, of->name, (int64_t)strlen(of->name));
    bool ok = e && fl__gguf_put_text(t, of->name) && fl__gguf_put(t, (uint64_t)x->ndim, 4);
    for (int i = x->ndim - 1; ok && i >= 0; i--) {
        const int64_t numbers = blocks && i == x->ndim - 1 ? blocks->block : 1;
        ok = fl__gguf_put(t, (uint64_t)(x->shape[i] * numbers), 8);
    }
    ok = ok && fl__gguf_put(t, fl__gguf_types[k].type, 4) && fl__gguf_put(t, (uint64_t)*at, 8);
    if (ok) e->begin = *at, e->end = *at + fl_numel(x) * (int64_t)fl_dtype_size(x->dtype);
    if (ok) *at = fl__gguf_aligned(e->end);
    return ok;
}

/* Writes zeros from byte `at` to the next multiple of 32. */
static bool fl__gguf_pad(const fl_data_stream *f, int64_t at) {
    static const char zeros[FL__GGUF_ALIGN];
    return fl_data_stream_write(f, zeros, (size_t)(fl__gguf_aligned(at) - at), at);
}

static bool fl__gguf_write(const fl_data_stream *to, const fl_data_file *f, const fl_data_text *head,
                           const fl_data_named_tensor *tensors) {
    const int64_t start = fl__gguf_aligned(head->n);
    bool ok = fl_data_stream_write(to, head->p, (size_t)head->n, 0) && fl__gguf_pad(to, head->n);
    for (int64_t i = 0; ok && i < f->n; i++) {
        const fl_data_entry *e = &f->entry[i];
        if (e->begin == e->end) continue;
        fl_scope scope = fl_scope_begin();
        fl_tensor *t = fl_contiguous(tensors[i].tensor);
        const void *p = t ? fl_map(t, FL_READ) : NULL;
        ok = p && fl_data_stream_write(to, p, (size_t)(e->end - e->begin), start + e->begin) &&
             fl__gguf_pad(to, start + e->end);
        if (p) fl_unmap(t, FL_READ);
        fl_scope_end(&scope);
    }
    return ok;
}

FL_API bool fl_text_save_gguf(const char *path, const fl_data_named_tensor *tensors, int n,
                              const fl_text_gguf_pair *meta, int n_meta) {
    static const char who[] = "fl_text_save_gguf";
    if (!path || n < 0 || n_meta < 0 || (n && !tensors) || (n_meta && !meta))
        return fl_fail("%s: path, tensors or meta is NULL, or a count is negative", who);
    fl_data_file f = {.f = {.who = who, .path = path}}; /* describes the new file; nothing is open */
    fl_data_text head = {0};
    fl_data_replacement r;
    int64_t at = 0;
    fl_quiet(+1);
    bool ok = fl_data_text_put(&head, "GGUF", 4) && fl__gguf_put(&head, 3, 4) &&
              fl__gguf_put(&head, (uint64_t)n, 8) && fl__gguf_put(&head, (uint64_t)n_meta, 8);
    for (int i = 0; ok && i < n_meta; i++) ok = fl__gguf_put_pair(&head, &f, &meta[i]);
    for (int i = 0; ok && i < n; i++) ok = fl__gguf_put_tensor(&head, &f, &tensors[i], &at);
    ok = ok && fl_data_file_ready(&f) && fl_data_replace_begin(&r, who, path) &&
         fl_data_replace_end(&r, fl__gguf_write(&r.f, &f, &head, tensors));
    fl_quiet(-1);
    fl_heap_free(head.p);
    fl_data_file_clear(&f);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
