/* fuzz_files.c - idx, safetensors, JSON, npy, npz, CSV files and logs of any content; what is saved is read

   Files live in memory behind fl_data's table of file operations, which does less than asked, is
   interrupted and fails when the input says so. The bytes of a file are the input itself, or
   made well enough to pass the first checks: an idx header, gzip, a safetensors header of tokens,
   a file that the library saved; then a few bytes are changed. Readers never call the error
   handler, and take no more memory than fl_data.h says: 16 times the file's size (1,032 times
   for gzip) plus 64 KiB. */
#include "fuzz.h"

#include <errno.h>

enum { FILES = 3, FILE_ROOM = 1 << 16, TENSORS = 4 };

/* ---- files in memory ---- */

typedef struct file {
    char path[24];
    size_t size;
    unsigned char bytes[FILE_ROOM];
} file;

static struct {
    file f[FILES]; /* path "" is free */
    int open;      /* handles */
    int fail;      /* operations until one that fails; 0: none does */
    int part;      /* at most so many bytes at a time; 0: all */
    bool interrupted;
} disk;

static file *disk_find(const char *path) {
    for (int i = 0; i < FILES; i++)
        if (!strcmp(disk.f[i].path, path)) return &disk.f[i];
    return NULL;
}

static bool disk_fails(void) {
    if (disk.fail == 0 || --disk.fail > 0) return false;
    errno = EIO;
    return true;
}

/* Every other call when the input asks for it. */
static bool disk_interrupts(void) {
    static int calls;
    errno = EINTR;
    return disk.interrupted && ++calls % 2;
}

static void *disk_open(void *user, const char *path, fl_data_mode mode) {
    (void)user;
    file *f = disk_find(path);
    const bool made = !f;
    if (disk_fails()) return NULL;
    if (!f && mode != FL_DATA_READ && strlen(path) < sizeof f->path && (f = disk_find("")))
        strcpy(f->path, path);
    if (f && (mode == FL_DATA_REPLACE || made)) f->size = 0;
    if (!f) errno = ENOENT;
    disk.open += f != NULL;
    return f;
}

static int64_t disk_read(void *user, void *handle, void *dst, size_t n, int64_t at) {
    const file *f = handle;
    (void)user;
    if (disk_interrupts() || disk_fails()) return -1;
    if (at < 0) fuzz_bug("a read at %" PRId64, at);
    if ((uint64_t)at >= f->size) return 0;
    if (n > f->size - (size_t)at) n = f->size - (size_t)at;
    if (disk.part && n > (size_t)disk.part) n = (size_t)disk.part;
    memcpy(dst, f->bytes + at, n);
    return (int64_t)n;
}

static int64_t disk_write(void *user, void *handle, const void *src, size_t n, int64_t at) {
    file *f = handle;
    (void)user;
    if (disk_interrupts() || disk_fails()) return -1;
    if (at < 0 || (size_t)at > FILE_ROOM || n > FILE_ROOM - (size_t)at) {
        errno = ENOSPC;
        return -1;
    }
    if (disk.part && n > (size_t)disk.part) n = (size_t)disk.part;
    memcpy(f->bytes + at, src, n);
    if ((size_t)at + n > f->size) f->size = (size_t)at + n;
    return (int64_t)n;
}

static int64_t disk_size(void *user, void *handle) {
    (void)user;
    return disk_fails() ? -1 : (int64_t)((file *)handle)->size;
}

static int disk_sync(void *user, void *handle) {
    (void)user;
    (void)handle;
    return disk_fails() ? -1 : 0;
}

static int disk_close(void *user, void *handle) {
    (void)user;
    (void)handle;
    if (disk.open-- < 1) fuzz_bug("a file was closed twice");
    return disk_fails() ? -1 : 0;
}

static int disk_remove(void *user, const char *path) {
    file *f = disk_find(path);
    (void)user;
    if (disk_fails()) return -1;
    if (f) f->path[0] = 0;
    errno = ENOENT;
    return f ? 0 : -1;
}

static int disk_rename(void *user, const char *from, const char *to) {
    file *f = disk_find(from), *old = disk_find(to);
    (void)user;
    if (disk_fails()) return -1;
    if (!f) fuzz_bug("rename of '%s', which is not there", from);
    if (old) old->path[0] = 0;
    snprintf(f->path, sizeof f->path, "%s", to);
    return 0;
}

static int disk_sync_dir(void *user, const char *path) {
    (void)user;
    (void)path;
    return disk_fails() ? -1 : 0;
}

static void *disk_map(void *user, void *handle, int64_t n) {
    (void)user;
    if (disk_fails()) return NULL;
    char *p = aligned_alloc(FL_ALIGN, ((size_t)n + 2 * FL_ALIGN - 1) / FL_ALIGN * FL_ALIGN);
    if (!p) return NULL;
    memcpy(p, ((file *)handle)->bytes, (size_t)n);
    memset(p + n, 0, FL_ALIGN);
    disk.open++;
    return p;
}

static void disk_unmap(void *user, void *p, int64_t n) {
    (void)user;
    (void)n;
    disk.open--;
    free(p);
}

/* ---- readers ---- */

/* Each file read: handles, memory and the error handler as they should be. */
static struct {
    int64_t memory, limit, factor;
    size_t size;
    int raised;
} reading;

static void begin_reading(const char *name, const file *f, int64_t factor) {
    fuzz_doing = name;
    fl_error_clear();
    reading.raised = fuzz_raised;
    reading.memory = fuzz_memory.in_use + fuzz_memory.heap;
    reading.limit = factor * (int64_t)f->size + (64 << 10);
    reading.size = f->size, reading.factor = factor;
    fuzz_cost_begin();
    fuzz_memory.budget = reading.memory + 2 * reading.limit;
}

static void end_reading(bool ok) {
    const int64_t took = fuzz_memory.peak - reading.memory;
    fuzz_memory.budget = FUZZ_BUDGET;
    if (fuzz_shows) fprintf(stderr, "%s: %s\n", fuzz_doing, ok ? "read" : fl_error());
    if (ok != !fl_error()) fuzz_bug(ok ? "gave a result and an error" : "failed without an error");
    if (fuzz_raised != reading.raised) fuzz_bug("the error handler was called");
    if (disk.open) fuzz_bug("%d files are left open", disk.open);
    if (took > reading.limit) fuzz_bug("took %" PRId64 " bytes of %" PRId64, took, reading.limit);
    fuzz_cost_end(reading.size);
    fl_error_clear();
}

static void read_idx(const file *f) {
    const bool gzip = f->size > 1 && f->bytes[0] == 0x1f && f->bytes[1] == 0x8b;
    begin_reading("fl_data_load_idx", f, gzip ? 1032 : 16);
    fl_tensor *t = fl_data_load_idx("f");
    if (t) fuzz_check_tensor(t);
    if (t) fuzz_note_tensor(t);
    end_reading(t != NULL);
}

/* Tensor i by its name: what the header says comes out. */
static bool read_named(fl_data_file *f, int64_t i) {
    const char *name = fl_data_name(f, i);
    const fl_shape s = fl_data_shape(f, i);
    if (!name || fl_data_find(f, name) != i) fuzz_bug("tensor %" PRId64 " is not found", i);
    fl_tensor *t = fl_data_read(f, name);
    if (!t) return false;
    fuzz_check_tensor(t);
    fuzz_note_tensor(t);
    if (t->dtype != fl_data_dtype(f, i) || t->ndim != s.ndim) fuzz_bug("'%s' differs", name);
    for (int k = 0; k < s.ndim; k++)
        if (t->shape[k] != s.dim[k]) fuzz_bug("dim %d of '%s' differs", k, name);
    return true;
}

static void read_safetensors(const file *bytes) {
    begin_reading("fl_data_open_safetensors", bytes, 16);
    fl_data_file *f = fl_data_open_safetensors("f");
    bool ok = f != NULL;
    fl_scope s = fl_scope_begin();
    for (int64_t i = 0; ok && i < fl_data_count(f); i++) ok = read_named(f, i);
    if (f && fl_data_find(f, "no such name") >= 0 && fl_error()) fuzz_bug("find failed");
    if (f && fl_data_meta(f, "format")) fuzz_note(fl_data_meta(f, "format"), 1);
    if (f && ok && fl_data_read(f, "no such\nname")) fuzz_bug("read what is not there");
    if (ok) fl_error_clear();
    fl_scope_end(&s);
    fl_data_close(f);
    end_reading(ok);
}

/* Into a module: a load that fails changes nothing. */
static void read_module(const file *f) {
    static const char *const prefixes[] = {NULL, "", "a", "model."};
    fl_rng rng = {1, 2};
    fl_nn_module *m = fl_nn_linear(2, 3, .rng = &rng);
    fl_var *w = fl_nn_get_param(m, "weight"), *b = fl_nn_get_param(m, "bias");
    const uint64_t before = fuzz_hash(fv_value(w)) ^ fuzz_hash(fv_value(b));
    const unsigned choice = fuzz_byte();
    begin_reading("fl_nn_load", f, 16);
    reading.limit += 1 << 12;
    const bool ok = fl_nn_load(m, "f", .partial = choice & 4, .prefix = prefixes[choice & 3]);
    end_reading(ok);
    if (!ok && (fuzz_hash(fv_value(w)) ^ fuzz_hash(fv_value(b))) != before)
        fuzz_bug("a load that failed changed the module");
    fl_nn_free(m);
}

/* Both ways in give the same events, unless operations fail. */
static uint64_t json_events(fl_data_json *j) {
    const uint64_t before = fuzz_trace;
    while (j && fl_data_json_next(j) > FL_DATA_JSON_END) {
        double x;
        int64_t i;
        if (j->event >= FL_DATA_JSON_KEY && j->event <= FL_DATA_JSON_NUMBER) fuzz_note(j->text, (size_t)j->n);
        if (j->event == FL_DATA_JSON_NUMBER && fl_data_json_as_double(j, &x)) fuzz_note(&x, sizeof x);
        if (j->event == FL_DATA_JSON_NUMBER && fl_data_json_as_int(j, &i)) fuzz_note(&i, sizeof i);
        if (j->depth < 0 || j->depth > 64 || j->at < 0 || j->line < 1) fuzz_bug("the reader is nowhere");
    }
    if (j) fuzz_note(&j->event, sizeof j->event);
    const uint64_t hash = fuzz_trace;
    fuzz_trace = before;
    return hash;
}

static void read_json(const file *f) {
    const fl_data_json_opts o = {.many = f->size & 1, .c_strings = f->size & 2};
    const bool disturbed = disk.fail || fuzz_memory.allocs;
    begin_reading("fl_data_json_open", f, 16);
    fl_data_json *j = fl_data_json_open_opt("f", o);
    const uint64_t hash = json_events(j);
    const bool ok = j && j->event == FL_DATA_JSON_END;
    fl_data_json_close(j);
    end_reading(ok);
    j = disturbed ? NULL : fl_data_json_of_opt(f->bytes, f->size, o);
    if (j && json_events(j) != hash) fuzz_bug("a text in memory reads differently");
    fl_data_json_close(j);
    fl_error_clear();
    fuzz_note(&hash, sizeof hash);
}

static void read_npy(const file *f) {
    begin_reading("fl_data_load_npy", f, 16);
    fl_tensor *t = fl_data_load_npy("f");
    if (t) fuzz_check_tensor(t);
    if (t) fuzz_note_tensor(t);
    end_reading(t != NULL);
}

static void read_npz(const file *bytes) {
    begin_reading("fl_data_open_npz", bytes, 1032);
    fl_data_file *f = fl_data_open_npz("f");
    bool ok = f != NULL;
    fl_scope s = fl_scope_begin();
    for (int64_t i = 0; ok && i < fl_data_count(f); i++) ok = read_named(f, i);
    fl_scope_end(&s);
    fl_data_close(f);
    end_reading(ok);
}

static uint64_t text_hash(uint64_t h, const char *text) {
    do h = (h ^ (unsigned char)*text) * 1099511628211u;
    while (*text++);
    return h;
}

/* What was read is written and read again: the same fields. */
static void read_csv(const file *f) {
    const fl_data_csv_opts o = {.delimiter = f->size & 1 ? ';' : 0, .no_header = f->size & 2};
    fl_data_text again = {0};
    begin_reading("fl_data_csv_open", f, 16);
    fl_data_csv *c = fl_data_csv_open_opt("f", o);
    int64_t rows = 0;
    uint64_t fields = 0; /* a hash of all */
    const bool disturbed = disk.fail || fuzz_memory.allocs;
    for (; c && fl_data_csv_next(c); rows++) {
        if (rows == 0 && c->name) fl_data_csv_put(&again, c->name, c->n, ',');
        fl_data_csv_put(&again, c->field, c->n, ',');
        for (int64_t i = 0; i < c->n; i++) {
            double x = 0;
            if (fl_data_csv_double(c, i, &x)) fuzz_note(&x, sizeof x);
            fl_error_clear();
            fields = text_hash(fields, c->field[i]);
        }
    }
    fuzz_note(&fields, sizeof fields);
    const bool ok = c && c->ended, named = c && c->name;
    fl_data_csv_close(c);
    reading.limit += 64 << 10; /* our text */
    end_reading(ok);
    const bool compare = ok && rows && !disturbed;
    file *g = compare && (size_t)again.n < FILE_ROOM ? disk_find("f") : NULL;
    if (g) {
        memcpy(g->bytes, again.p, g->size = (size_t)again.n);
        uint64_t same_fields = 0;
        fl_data_csv *d = fl_data_csv_open("f", .no_header = !named);
        for (; d && fl_data_csv_next(d); rows--)
            for (int64_t i = 0; i < d->n; i++) same_fields = text_hash(same_fields, d->field[i]);
        if (!d || !d->ended || rows || fields != same_fields)
            fuzz_bug("a table that was written is another one");
        fl_data_csv_close(d);
    }
    fl_heap_free(again.p);
}

/* ---- files to read ---- */

static file *new_file(void) {
    file *f = &disk.f[0];
    strcpy(f->path, "f");
    f->size = 0;
    return f;
}

static void put(file *f, const void *bytes, size_t n) {
    if (n > FILE_ROOM - f->size) n = FILE_ROOM - f->size;
    memcpy(f->bytes + f->size, bytes, n);
    f->size += n;
}

static void put_rest(file *f) {
    put(f, fuzz_input.p, fuzz_input.left);
}

/* Big-endian dims behind the type; often as many bytes as they say. */
static void make_idx(file *f) {
    static const unsigned char types[] = {8, 9, 11, 12, 13, 14, 0}, sizes[] = {1, 1, 2, 4, 4, 8, 1};
    static const unsigned char zeros[4096];
    const unsigned dims = (unsigned)fuzz_count_of(fuzz_byte(), 4) % 10;
    const int type = fuzz_below(7);
    uint64_t told = sizes[type];
    put(f, (unsigned char[]){0, 0, types[type], (unsigned char)dims}, 4);
    for (unsigned i = 0; i < dims; i++) {
        const uint32_t n = (uint32_t)fuzz_size();
        told *= n;
        put(f, (unsigned char[]){(unsigned char)(n >> 24), (unsigned char)(n >> 16),
                                 (unsigned char)(n >> 8), (unsigned char)n}, 4);
    }
    if (fuzz_rarely(8)) put_rest(f);
    else put(f, zeros, told < sizeof zeros ? told : sizeof zeros);
}

static void put_little(file *f, uint32_t v, int bytes) {
    unsigned char b[4];
    for (int i = 0; i < bytes; i++) b[i] = (unsigned char)(v >> 8 * i);
    put(f, b, (size_t)bytes);
}

static uint32_t crc32_of(const unsigned char *p, size_t n) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

/* An idx file as one stored block. */
static void make_gzip(file *f) {
    static unsigned char plain[FILE_ROOM];
    make_idx(f);
    const size_t n = f->size < 60000 ? f->size : 60000;
    memcpy(plain, f->bytes, n);
    f->size = 0;
    put(f, "\x1f\x8b\x08\0\0\0\0\0\0\3\1", 11);
    put_little(f, (uint32_t)n, 2);
    put_little(f, ~(uint32_t)n, 2);
    put(f, plain, n);
    put_little(f, crc32_of(plain, n), 4);
    put_little(f, (uint32_t)n, 4);
}

/* The header's length in front of it, right or nearly, and data behind. */
static void put_header(file *f, const char *json, size_t n, int64_t off) {
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((n + (uint64_t)off) >> 8 * i);
    put(f, length, sizeof length);
    put(f, json, n);
}

static void make_raw_header(file *f) {
    const int64_t off = fuzz_rarely(8) ? fuzz_int() : 0;
    const size_t n = fuzz_input.left > 300 ? 300 : fuzz_input.left;
    put_header(f, (const char *)fuzz_input.p, n, off);
    fuzz_input.p += n;
    fuzz_input.left -= n;
    put_rest(f);
}

static void make_tokens(file *f) {
    static const char *const token[] = {
        "{", "}", "[", "]", ",", ":", "\"a\":", "\"b\":", "\"__metadata__\":", "\"", "\\u0041",
        "\\ud800", "\\udc00", "\\\"", "\\n", "\\x", "\xff", "\xc3\xa9", "null", "true", "1e5", "-1",
        "0", "4", "8", "18446744073709551616", "9223372036854775807", " ", "\n", "\"dtype\":",
        "\"F32\"", "\"I64\"", "\"BOOL\"", "\"F16\"", "\"shape\":", "\"data_offsets\":", "[2]",
        "[0,4294967296,4294967296]", "[1,1,1,1,1,1,1,1,1]", "[0,8]", "[8,16]", "[0,0]", "[8,0]",
        "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}",
        "{\"data_offsets\":[8,16],\"shape\":[1],\"dtype\":\"I64\"}",
        "{\"dtype\":\"U8\",\"shape\":[0,9223372036854775807],\"data_offsets\":[8,8]}",
        "{\"format\":\"pt\"}", "\"crc32c\":\"00000000\"", "\"crc32c.a\":\"12345678\"", "[[[[[[[[",
        "\"weight\":", "\"bias\":", "{\"a\":", "],\"b\":", "},\"c\":{"};
    enum { TOKENS = sizeof token / sizeof token[0] };
    static char json[4096];
    const int64_t off = fuzz_rarely(8) ? fuzz_int() : 0;
    size_t n = 0;
    while (fuzz_input.left > 16) {
        const char *t = token[fuzz_below(TOKENS)];
        if (n + strlen(t) > sizeof json) break;
        memcpy(json + n, t, strlen(t));
        n += strlen(t);
    }
    put_header(f, json, n, off);
    put_rest(f);
}

/* A header that fits its data: names, dtypes, shapes, offsets one after the other. */
static void make_entries(file *f) {
    static const char *const names[] = {"weight", "bias", "a", "b", "a.weight", "\\u0041", "",
                                        "__metadata__"};
    static const struct {
        const char *name;
        int size;
    } types[] = {{"F32", 4}, {"F64", 8}, {"I64", 8}, {"I32", 4}, {"U8", 1}, {"BOOL", 1},
                 {"F16", 2}, {"BF16", 2}, {"I8", 1}, {"U16", 2}, {"U64", 8}, {"F8", 1}};
    static const unsigned char zeros[2048];
    static char json[2048];
    size_t at = 0;
    int64_t offset = 0;
    for (int i = 0, n = fuzz_below(5); i < n && at < sizeof json - 400; i++) {
        const char *name = names[fuzz_below(8)];
        const int type = fuzz_rarely(2) ? 0 : fuzz_below(12);
        const int64_t h = fuzz_size(), w = fuzz_size();
        const int64_t bytes = h > 0 && w > 0 && h < 16 && w < 16 ? h * w * types[type].size : 0;
        const int64_t from = fuzz_rarely(16) ? fuzz_int() : offset;
        at += (size_t)snprintf(json + at, sizeof json - at,
                               "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRId64 ",%" PRId64
                               "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}",
                               i ? ',' : '{', name, types[type].name, h, w, from, offset + bytes);
        offset += bytes;
    }
    at += (size_t)snprintf(json + at, sizeof json - at, "%s", at ? "}" : "{}");
    put_header(f, json, at, fuzz_rarely(16) ? fuzz_int() : 0);
    put(f, zeros, (size_t)offset < sizeof zeros ? (size_t)offset : sizeof zeros);
}

/* Tokens from a list, behind what is there. */
static void put_tokens(file *f, const char *const *token, int n) {
    for (int i = 0; i < 200 && fuzz_input.left > 0; i++) {
        const char *t = token[fuzz_below(n)];
        put(f, t, strlen(t));
    }
}

static void make_json(file *f) {
    static const char *const token[] = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "\"a\":",
                                        "\"",
                                        "\\u0041",
                                        "\\ud83d\\ude42",
                                        "\\ud800",
                                        "\\udc00",
                                        "\\n",
                                        "\\x",
                                        "\\u0000",
                                        "\xff",
                                        "\xc3\xa9",
                                        "null",
                                        "true",
                                        "false",
                                        "nul",
                                        "1e5",
                                        "-1.25",
                                        "0",
                                        "01",
                                        "-",
                                        "1e999",
                                        "1e-400",
                                        "9223372036854775807",
                                        "9223372036854775808",
                                        "12345678901234567890.5e-3",
                                        " ",
                                        "\n",
                                        "[[[[[[[[[[[[[[[[[[[[",
                                        "]]]]]]]]",
                                        "\"text\"",
                                        "{\"b\":[1,2]}"};
    put_tokens(f, token, sizeof token / sizeof token[0]);
    if (fuzz_rarely(4)) { /* beyond the reader's window */
        static char spaces[16300];
        memset(spaces, ' ', sizeof spaces);
        put(f, spaces, sizeof spaces);
        put_tokens(f, token, sizeof token / sizeof token[0]);
    }
}

static void make_csv(file *f) {
    static const char *const token[] = {
        "a", "b", ",",      ",",   ";",        "\"",   "\"\"",         "\"x\"", "\n",    "\r\n",     "\r",
        " ", "1", "-2.5e3", "nan", "\xc3\xa9", "\xff", "\xef\xbb\xbf", ",\n",   "1,2\n", "\"q,\n\","};
    put_tokens(f, token, sizeof token / sizeof token[0]);
}

static void make_npy(file *f) {
    static const char *const descr[] = {"<f4", ">f4", "<f8", "|b1", "|u1", "<i2", ">i8", "<f2",
                                        "<c8", "|O",  "<U3", "f4",  "<V2", "=i4", ""};
    static const unsigned char zeros[4096];
    char text[400];
    const int version = fuzz_rarely(8) ? (int)fuzz_byte() : 1 + fuzz_below(3), ndim = fuzz_below(4);
    int64_t bytes = 8;
    int n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': %s, 'shape': (",
                     descr[fuzz_below(15)], fuzz_below(2) ? "True" : "False");
    for (int i = 0; i < ndim; i++) {
        const int64_t dim = fuzz_size();
        bytes = dim >= 0 && dim < 16 ? bytes * dim : bytes;
        n += snprintf(text + n, sizeof text - (size_t)n, "%" PRId64 ", ", dim);
    }
    n += snprintf(text + n, sizeof text - (size_t)n, "), }%*s\n", fuzz_below(20), "");
    put(f, "\x93NUMPY", 6);
    put(f, (char[]){(char)version, 0}, 2);
    put_little(f, (uint32_t)n, version == 1 ? 2 : 4);
    put(f, text, (size_t)n);
    put(f, zeros, (size_t)(bytes < 4096 ? bytes >> fuzz_below(4) : 4096));
}

/* An archive that the library wrote, or the bytes of one around others. */
static void make_npz(file *f) {
    static char name[TENSORS][8];
    fl_data_named_tensor list[TENSORS];
    const int n = fuzz_below(TENSORS + 1);
    for (int i = 0; i < n; i++) {
        snprintf(name[i], sizeof name[i], "%c%d", 'a' + fuzz_below(26), i);
        list[i] = (fl_data_named_tensor){name[i], fuzz_tensor()};
        fl_error_clear();
    }
    f->path[0] = 0;
    fuzz_doing = "fl_data_save_npz";
    const int raised = fuzz_raised;
    const bool ok = fl_data_save_npz("f", list, n, fuzz_below(2));
    if (ok == (fl_error() != NULL)) fuzz_bug("the result %d and the error disagree", ok);
    if (fuzz_raised != raised) fuzz_bug("the error handler was called");
    if (disk.open) fuzz_bug("%d files are left open", disk.open);
    fl_error_clear();
}

/* ---- what is saved is read back ---- */

static bool same(const fl_tensor *a, const fl_tensor *b) {
    const uint64_t before = fuzz_trace;
    fuzz_note_tensor(a);
    const uint64_t of_a = fuzz_trace;
    fuzz_trace = before;
    fuzz_note_tensor(b);
    const bool equal = fuzz_trace == of_a;
    fuzz_trace = before;
    return equal && a->dtype == b->dtype;
}

static void check_saved(const fl_data_named_tensor *list, int n, const fl_data_key_value *meta) {
    fl_data_file *f = fl_data_open_safetensors("f");
    if (!f || fl_data_count(f) != n) fuzz_bug("what was saved cannot be read");
    for (int i = 0; i < n; i++) {
        fl_tensor *t = fl_data_read(f, list[i].name);
        if (!t || !same(t, list[i].tensor)) fuzz_bug("'%s' is not what was saved", list[i].name);
    }
    const char *value = fl_data_meta(f, meta->key);
    if (!value || strcmp(value, meta->value)) fuzz_bug("the metadata differ from what was saved");
    fl_data_close(f);
}

/* A letter, sometimes any byte but zero. */
static char character(void) {
    const unsigned b = fuzz_byte();
    return (char)(b < 250 ? 'a' + b % 26 : fuzz_byte() | 1);
}

/* Names and values of any bytes but zero; a save that fails leaves the old file, here none. */
static void make_saved(file *f) {
    static char name[TENSORS][8], value[8];
    fl_data_named_tensor list[TENSORS];
    const int n = fuzz_below(TENSORS + 1);
    for (int i = 0; i < n; i++) {
        memset(name[i], 0, sizeof name[i]);
        for (int k = 0, end = 1 + fuzz_below(6); k < end; k++) name[i][k] = character();
        list[i] = (fl_data_named_tensor){name[i], fuzz_tensor()};
        fl_error_clear();
    }
    for (int k = 0; k < 7; k++) value[k] = character();
    const fl_data_key_value meta = {"key", value};
    f->path[0] = 0;
    fuzz_doing = "fl_data_save_safetensors";
    const int raised = fuzz_raised;
    const bool ok = fl_data_save_safetensors("f", list, n, &meta, 1);
    if (fuzz_shows) fprintf(stderr, "%s: %s\n", fuzz_doing, ok ? "saved" : fl_error());
    if (ok == (fl_error() != NULL)) fuzz_bug("the result %d and the error disagree", ok);
    if (fuzz_raised != raised) fuzz_bug("the error handler was called");
    if (disk.open) fuzz_bug("%d files are left open", disk.open);
    if (ok && !disk.fail && !fuzz_memory.allocs && !fuzz_memory.gets) check_saved(list, n, &meta);
    fl_error_clear();
}

/* ---- the harness ---- */

static const fl_data_io memory_disk = {
    NULL,       disk_open,   disk_read,   disk_write,    disk_size, disk_sync,
    disk_close, disk_rename, disk_remove, disk_sync_dir, NULL, disk_map,  disk_unmap,
};

static void disturb(void) {
    const unsigned b = fuzz_byte();
    disk.fail = b < 32 ? 1 + (int)(b % 16) : 0;
    disk.part = b & 64 ? 1 + fuzz_below(40) : 0;
    disk.interrupted = b & 128;
    if (b >= 32 && b < 40) fuzz_faults(0, 1 + b % 8);
    if (b >= 40 && b < 44) fuzz_faults(1 + b % 4, 0);
}

static void change_bytes(file *f) {
    for (int i = fuzz_below(4); i > 0; i--) {
        const size_t at = fuzz_word(2);
        const unsigned with = fuzz_byte();
        if (f->size) f->bytes[at % f->size] = (unsigned char)with;
    }
    if (fuzz_rarely(8)) f->size -= f->size ? fuzz_word(2) % f->size : 0;
}

/* ---- logs that go on ---- */

static bool append(const char *path, int records) {
    fl_data_log *log = fl_data_log_open(path);
    bool ok = log != NULL;
    for (int i = 0; log && i < records; i++)
        ok = (i % 2 ? fl_data_log_add(log, i, "a", i) : fl_data_log_text(log, i, "b\n\"", "text")) && ok;
    return fl_data_log_close(log) && ok;
}

/* A log of any bytes, or a good one that was changed, is refused as it is, or goes on and is a good one. */
static void continue_log(void) {
    static const char *const names[] = {"f.csv", "f.jsonl", "tfevents"};
    const char *path = names[fuzz_below(3)];
    const bool good = fuzz_rarely(2);
    file *f = new_file();
    snprintf(f->path, sizeof f->path, "%s", path);
    if (good) append(path, fuzz_below(4));
    f = disk_find(path);
    if (!f) return;
    if (good) change_bytes(f);
    else put_rest(f);
    const size_t size = f->size;
    const bool disturbed = disk.fail || fuzz_memory.allocs || fuzz_memory.gets;
    begin_reading("fl_data_log_open", f, 16);
    reading.limit += 1 << 12;
    const bool ok = append(path, 3);
    end_reading(ok);
    f = disk_find(path);
    if (disturbed) return;
    if (!ok && (!f || f->size != size)) fuzz_bug("refused, and %zu bytes changed", size);
    if (!ok) return;
    begin_reading("fl_data_log_open again", f, 16);
    reading.limit += 1 << 12;
    if (!append(path, 1)) fuzz_bug("what was written does not go on: %s", fl_error());
    end_reading(true);
}

static void fuzz_one(void) {
    void (*const make[])(file *) = {put_rest,    make_idx,     make_gzip,  make_raw_header,
                                    make_tokens, make_entries, make_saved, make_json,
                                    make_csv,    make_npy,     make_npz,   make_npz};
    void (*const readers[])(const file *) = {read_idx, read_json, read_npy,
                                             read_npz, read_csv,  read_safetensors};
    const int kind = fuzz_below(12);
    const bool changed = fuzz_rarely(4);
    const unsigned reader = fuzz_byte();
    fl_data_io_use(&memory_disk);
    for (int i = 0; i < FILES; i++) disk.f[i].path[0] = 0;
    disk.open = disk.fail = disk.part = disk.interrupted = 0;
    disturb();
    if (reader >= 224 && reader < 255) {
        continue_log();
        return;
    }
    file *f = new_file();
    make[kind](f);
    f = disk_find("f");
    if (!f) return;
    if (changed) change_bytes(f);
    if (kind == 0 || reader == 255) readers[reader % 6](f);
    else if (kind < 3) read_idx(f);
    else if (kind >= 7) (kind == 7 ? read_json : kind == 8 ? read_csv : kind == 9 ? read_npy : read_npz)(f);
    else if (reader & 1) read_module(f);
    else read_safetensors(f);
}
/* MIT licence: see LICENSE. */
