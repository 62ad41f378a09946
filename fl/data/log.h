/* fl/data/log.h - training logs: CSV, JSON lines, TensorBoard event files */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_DATA_LOG_H
#define FL_DATA_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_data_log fl_data_log;
/* Opens a log for appending; its name selects the format:
     *.csv        lines "step,name,value" after that header; names and texts are quoted as in RFC 4180, with
                  line ends replaced by spaces, so that a record is one line
     *.jsonl      lines {"step":1,"name":"loss","value":0.5}, or "text" instead of "value"
     *tfevents*   TensorBoard's; it reads every such file in its folder, "runs/1/events.out.tfevents.1"
   An incomplete last record, as a killed program may leave, is removed, so that a resumed run continues after
   the last complete one. Returns NULL after fl_fail, also if another process writes to the file or it has
   another format. Not thread-safe. */
FL_API fl_data_log *fl_data_log_open(const char *path);
/* Writes a record of one number, handed to the operating system before the call returns. Values that are not
   finite are nan, inf or -inf in CSV, and null in JSON; event files hold f32. Returns false after fl_fail,
   e.g. if the disk is full; up to 1 MiB of records are then kept and written before the next one. */
FL_API bool fl_data_log_add(fl_data_log *log, int64_t step, const char *name, double value);
/* Writes a record of text. */
FL_API bool fl_data_log_text(fl_data_log *log, int64_t step, const char *name, const char *text);
/* Writes a histogram of the finite values of t with 30 bins of equal width: in event files only. */
FL_API bool fl_data_log_histogram(fl_data_log *log, int64_t step, const char *name, fl_tensor *t);
/* Writes the records kept, and frees the log in any case; false after fl_fail. NULL is allowed. */
FL_API bool fl_data_log_close(fl_data_log *log);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_LOG_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_LOG) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_LOG_IMPL
#define FL_DATA_LOG_IMPL
#include "checksum.h"
#include "file.h"
#include "json.h"
#include "meter.h"
#include "protobuf.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef enum fl__log_kind { FL__LOG_CSV, FL__LOG_JSONL, FL__LOG_EVENTS } fl__log_kind;

struct fl_data_log {
    fl_data_stream f;
    fl__log_kind kind;
    fl_data_text text; /* records not yet written, at offset `at` */
    int64_t at;
    char *path;
};

#define FL__LOG_MAX_PENDING ((int64_t)1 << 20)
static const char fl__log_header[] = "step,name,value\n";

static bool fl__log_puts(fl_data_text *t, const char *text) {
    return fl_data_text_put(t, text, strlen(text));
}

/* ---- event files ----

   Records (TensorFlow's TFRecord) of messages: see protobuf.h. */

static bool fl__pb_double(fl_data_text *t, int field, double v) {
    return fl__pb_key(t, field, FL__PB_64) && fl_data_text_put(t, &v, sizeof v);
}

static bool fl__tb_close(fl_data_text *t, int64_t at) { return fl__pb_close(t, at, "fl_data_log"); }

static uint32_t fl__tb_sum(const void *bytes, size_t n) {
    const uint32_t c = fl_data_crc32c(0, bytes, n);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

typedef struct fl__tb_event {
    int64_t record, summary, value;
} fl__tb_event;

/* Length and its checksum are filled in at the end of the record. Event: wall_time = 1, step = 2. */
static bool fl__tb_begin(fl_data_text *t, fl__tb_event *e, int64_t step) {
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    e->record = t->n + 12;
    return fl_data_text_put(t, "0123456789a", 12) &&
           fl__pb_double(t, 1, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec) &&
           fl__pb_key(t, 2, FL__PB_VARINT) && fl__pb_varint(t, (uint64_t)step);
}

static bool fl__tb_end(fl_data_text *t, const fl__tb_event *e) {
    const uint64_t n = (uint64_t)(t->n - e->record);
    char *head = t->p + e->record - 12;
    memcpy(head, &n, 8);
    memcpy(head + 8, &(uint32_t){fl__tb_sum(head, 8)}, 4);
    return fl_data_text_put(t, &(uint32_t){fl__tb_sum(t->p + e->record, n)}, 4);
}

/* Event: summary = 5; Summary: value = 1; Value: tag = 1. */
static bool fl__tb_begin_value(fl_data_text *t, fl__tb_event *e, int64_t step, const char *name) {
    return fl__tb_begin(t, e, step) && fl__pb_open(t, 5, &e->summary) && fl__pb_open(t, 1, &e->value) &&
           fl__pb_bytes(t, 1, name, strlen(name));
}

static bool fl__tb_end_value(fl_data_text *t, const fl__tb_event *e) {
    return fl__tb_close(t, e->value) && fl__tb_close(t, e->summary) && fl__tb_end(t, e);
}

/* Event: file_version = 3 */
static bool fl__tb_version(fl_data_text *t) {
    fl__tb_event e;
    const char *version = "brain.Event:2";
    return fl__tb_begin(t, &e, 0) && fl__pb_bytes(t, 3, version, strlen(version)) && fl__tb_end(t, &e);
}

/* Value: simple_value = 2 */
static bool fl__tb_scalar(fl_data_text *t, int64_t step, const char *name, double value) {
    fl__tb_event e;
    return fl__tb_begin_value(t, &e, step, name) && fl__pb_key(t, 2, FL__PB_32) &&
           fl_data_text_put(t, &(float){(float)value}, 4) && fl__tb_end_value(t, &e);
}

/* Value: metadata = 9 { plugin_data = 1 { plugin_name = 1 } }, tensor = 8 { dtype = 1: DT_STRING is 7,
   tensor_shape = 2 { dim = 2 { size = 1 } }, string_val = 8 } */
static bool fl__tb_text(fl_data_text *t, int64_t step, const char *name, const char *text) {
    fl__tb_event e;
    int64_t tensor;
    return fl__tb_begin_value(t, &e, step, name) && fl__pb_bytes(t, 9, "\x0a\x06\x0a\x04text", 8) &&
           fl__pb_open(t, 8, &tensor) && fl_data_text_put(t, "\x08\x07\x12\x04\x12\x02\x08\x01", 8) &&
           fl__pb_bytes(t, 8, text, strlen(text)) && fl__tb_close(t, tensor) && fl__tb_end_value(t, &e);
}

enum { FL__TB_BUCKETS = 30 };

/* Fields of HistogramProto: min, max, num, sum, sum_squares = 1 to 5, bucket_limit = 6, bucket = 7. */
typedef struct fl__tb_histogram {
    double number[5], limit[FL__TB_BUCKETS], bucket[FL__TB_BUCKETS];
} fl__tb_histogram;

static void fl__tb_count(fl__tb_histogram *h, const double *x, int64_t n) {
    double low = INFINITY, high = -INFINITY;
    *h = (fl__tb_histogram){{0}, {0}, {0}};
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) continue;
        low = fmin(low, x[i]), high = fmax(high, x[i]);
        h->number[2]++;
        h->number[3] += x[i], h->number[4] += x[i] * x[i];
    }
    if (h->number[2] == 0) low = high = 0;
    h->number[0] = low, h->number[1] = high;
    const double width = high / FL__TB_BUCKETS - low / FL__TB_BUCKETS;
    for (int b = 0; b < FL__TB_BUCKETS; b++) h->limit[b] = low + width * (b + 1);
    h->limit[FL__TB_BUCKETS - 1] = high;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) continue;
        const double at = width > 0 ? (x[i] / 2 - low / 2) / (width / 2) : FL__TB_BUCKETS;
        h->bucket[at < FL__TB_BUCKETS ? (int)at : FL__TB_BUCKETS - 1]++;
    }
}

/* Value: histo = 5 */
static bool fl__tb_put_histogram(fl_data_text *t, int64_t step, const char *name,
                                    const fl__tb_histogram *h) {
    fl__tb_event e;
    int64_t histo;
    bool ok = fl__tb_begin_value(t, &e, step, name) && fl__pb_open(t, 5, &histo);
    for (int i = 0; ok && i < 5; i++) ok = fl__pb_double(t, i + 1, h->number[i]);
    return ok && fl__pb_bytes(t, 6, h->limit, sizeof h->limit) &&
           fl__pb_bytes(t, 7, h->bucket, sizeof h->bucket) && fl__tb_close(t, histo) &&
           fl__tb_end_value(t, &e);
}

/* ---- opening: finding the end of the complete records ---- */

/* Offset after the last line end. */
static bool fl__log_end_of_lines(const fl_data_log *log, int64_t *end) {
    char bytes[4096];
    for (int64_t to = log->f.size, from; to > 0; to = from) {
        from = to > (int64_t)sizeof bytes ? to - (int64_t)sizeof bytes : 0;
        if (!fl_data_stream_read(&log->f, bytes, (size_t)(to - from), from)) return false;
        for (int64_t i = to - from; i > 0; i--)
            if (bytes[i - 1] == '\n') return *end = from + i, true;
    }
    return *end = 0, true;
}

static bool fl__log_end_of_events(const fl_data_log *log, int64_t *end) {
    int64_t left;
    for (*end = 0; (left = log->f.size - *end) >= 12;) {
        unsigned char head[12];
        uint64_t n;
        uint32_t sum;
        if (!fl_data_stream_read(&log->f, head, sizeof head, *end)) return false;
        memcpy(&n, head, 8);
        memcpy(&sum, head + 8, 4);
        if (sum != fl__tb_sum(head, 8))
            return fl_fail("%s: %s: offset %lld: not a record of an event file", log->f.who, log->path,
                           (long long)*end);
        if (left < 16 || n > (uint64_t)(left - 16)) return true;
        *end += 16 + (int64_t)n;
    }
    return true;
}

/* Checks the beginning of the file, as far as it goes, against the format. */
static bool fl__log_check_header(const fl_data_log *log) {
    const char *const wants[] = {fl__log_header, "{\"step\":", ""}, *want = wants[log->kind];
    char head[sizeof fl__log_header];
    const size_t all = strlen(want), n = log->f.size < (int64_t)all ? (size_t)log->f.size : all;
    return fl_data_stream_read(&log->f, head, n, 0) &&
           (!memcmp(head, want, n) ||
            fl_fail("%s: %s: the file does not begin as a log of the format its name says", log->f.who,
                    log->path));
}

static bool fl__log_close_file(fl_data_log *log) {
    void *file = log->f.file;
    log->f.file = NULL;
    return !file || log->f.io.close(log->f.io.user, file) >= 0 ||
           fl_data_stream_fail(&log->f, "cannot close");
}

/* Truncates the file to the first `end` bytes. */
static bool fl__log_truncate(fl_data_log *log, int64_t end) {
    const char *who = log->f.who;
    char *bytes = fl_heap_alloc((size_t)end + 1);
    const bool ok = bytes && fl_data_stream_read(&log->f, bytes, (size_t)end, 0) && fl__log_close_file(log) &&
                    fl_data_replace(who, log->path, bytes, (size_t)end) &&
                    fl_data_stream_open(&log->f, who, log->path, FL_DATA_APPEND);
    fl_heap_free(bytes);
    return ok;
}

static bool fl__log_prepare(fl_data_log *log, const char *path) {
    const char *who = "fl_data_log_open", *slash = strrchr(path, '/');
    if (fl_data_ends(path, ".csv")) log->kind = FL__LOG_CSV;
    else if (fl_data_ends(path, ".jsonl")) log->kind = FL__LOG_JSONL;
    else if (strstr(slash ? slash : path, "tfevents")) log->kind = FL__LOG_EVENTS;
    else return fl_fail("%s: %s: the name must end with .csv or .jsonl, or contain tfevents", who, path);
    log->path = fl_heap_alloc(strlen(path) + 1);
    if (!log->path) return false;
    strcpy(log->path, path);
    if (!fl_data_stream_open(&log->f, who, log->path, FL_DATA_APPEND)) return false;
    bool ok = fl__log_check_header(log) && (log->kind == FL__LOG_EVENTS ? fl__log_end_of_events(log, &log->at)
                                                                      : fl__log_end_of_lines(log, &log->at));
    if (ok && log->at < log->f.size) ok = fl__log_truncate(log, log->at);
    if (!ok || log->at) return ok;
    if (log->kind == FL__LOG_CSV) return fl__log_puts(&log->text, fl__log_header);
    return log->kind == FL__LOG_JSONL || fl__tb_version(&log->text);
}

/* ---- records ---- */

/* Writes the pending records; they are kept on failure. */
static bool fl__log_flush(fl_data_log *log, const char *who) {
    log->f.who = who;
    if (!log->text.n) return true;
    if (!fl_data_stream_write(&log->f, log->text.p, (size_t)log->text.n, log->at)) return false;
    log->at += log->text.n;
    log->text.n = 0;
    return true;
}

FL_API fl_data_log *fl_data_log_open(const char *path) {
    fl_data_log *log = path ? fl_heap_alloc(sizeof *log) : NULL;
    if (!path) fl_fail("fl_data_log_open: path is NULL");
    if (log && fl__log_prepare(log, path) && fl__log_flush(log, "fl_data_log_open")) return log;
    if (log) log->text.n = 0;
    if (log && log->f.file) log->f.io.close(log->f.io.user, log->f.file), log->f.file = NULL;
    fl_data_log_close(log);
    return NULL;
}

/* Writes the record encoded after `start`, or discards it. */
static bool fl__log_record(fl_data_log *log, const char *who, int64_t start, bool encoded) {
    if (encoded && fl__log_flush(log, who)) return true;
    if (!encoded || log->text.n > FL__LOG_MAX_PENDING) log->text.n = start;
    return false;
}

static bool fl__log_given(const fl_data_log *log, const char *who, const char *name, const void *value) {
    return (log && name && value) || fl_fail("%s: the log, the name or the value is NULL", who);
}

/* text as it is, or quoted if necessary. */
static bool fl__log_cell(fl_data_text *t, const char *text) {
    if (!strpbrk(text, ",\"\r\n")) return fl__log_puts(t, text);
    bool ok = fl__log_puts(t, "\"");
    for (; ok && *text; text++) {
        const bool ends = *text == '\n' || *text == '\r';
        ok = (*text != '"' || fl__log_puts(t, "\"")) && fl_data_text_put(t, ends ? " " : text, 1);
    }
    return ok && fl__log_puts(t, "\"");
}

/* The beginning of a line, up to the value. */
static bool fl__log_line(fl_data_log *log, int64_t step, const char *name, const char *key) {
    fl_data_text *t = &log->text;
    char text[64];
    const bool csv = log->kind == FL__LOG_CSV;
    snprintf(text, sizeof text, csv ? "%lld," : "{\"step\":%lld,\"name\":", (long long)step);
    if (!fl__log_puts(t, text)) return false;
    if (csv) return fl__log_cell(t, name) && fl__log_puts(t, ",");
    snprintf(text, sizeof text, ",\"%s\":", key);
    return fl_data_json_put_string(t, name, strlen(name)) && fl__log_puts(t, text);
}

FL_API bool fl_data_log_add(fl_data_log *log, int64_t step, const char *name, double value) {
    const char *who = "fl_data_log_add";
    if (!fl__log_given(log, who, name, &value)) return false;
    fl_data_text *t = &log->text;
    const int64_t start = t->n;
    bool ok;
    if (log->kind == FL__LOG_EVENTS) ok = fl__tb_scalar(t, step, name, value);
    else {
        ok = fl__log_line(log, step, name, "value");
        if (log->kind == FL__LOG_CSV && !isfinite(value))
            ok = ok && fl__log_puts(t, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        else ok = ok && fl_data_json_put_double(t, value);
        ok = ok && fl__log_puts(t, log->kind == FL__LOG_CSV ? "\n" : "}\n");
    }
    return fl__log_record(log, who, start, ok);
}

FL_API bool fl_data_log_text(fl_data_log *log, int64_t step, const char *name, const char *text) {
    const char *who = "fl_data_log_text";
    if (!fl__log_given(log, who, name, text)) return false;
    fl_data_text *t = &log->text;
    const int64_t start = t->n;
    bool ok;
    if (log->kind == FL__LOG_EVENTS) ok = fl__tb_text(t, step, name, text);
    else if (!fl__log_line(log, step, name, "text")) ok = false;
    else if (log->kind == FL__LOG_CSV) ok = fl__log_cell(t, text) && fl__log_puts(t, "\n");
    else ok = fl_data_json_put_string(t, text, strlen(text)) && fl__log_puts(t, "}\n");
    return fl__log_record(log, who, start, ok);
}

FL_API bool fl_data_log_histogram(fl_data_log *log, int64_t step, const char *name, fl_tensor *t) {
    const char *who = "fl_data_log_histogram";
    if (!fl__log_given(log, who, name, t)) return false;
    if (log->kind != FL__LOG_EVENTS) return fl_fail("%s: %s: histograms are for event files only", who,
                                                    log->path);
    const int64_t start = log->text.n;
    fl__tb_histogram h;
    fl_data_host_view x;
    const bool ok = fl_data_host_begin(&x, t, FL_F64);
    if (ok) fl__tb_count(&h, x.f, x.n);
    fl_data_host_end(&x);
    return ok && fl__log_record(log, who, start, fl__tb_put_histogram(&log->text, step, name, &h));
}

FL_API bool fl_data_log_close(fl_data_log *log) {
    if (!log) return true;
    const bool written = fl__log_flush(log, "fl_data_log_close"), ok = fl__log_close_file(log) && written;
    fl_heap_free(log->path);
    fl_heap_free(log->text.p);
    fl_heap_free(log);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
