/* fl/text/lines.h - data set of the lines of a text file, tokenized on the fly */
#ifndef FL_TEXT_LINES_H
#define FL_TEXT_LINES_H
#ifndef FL_DATA_H
#include "../../fl_data.h"
#endif
#include "tokenizers/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A data set of the lines of a text file, for language models. Sample i is line i of the file: x i64
   [length] and y i64 [length], the token after each token of x. Lines are framed by the id eos; with eos -1
   they are not, and a line without tokens is an error. Empty lines are skipped, line ends are not part of a
   line. Opening scans the file once for the offsets of lines (16 bytes each); fl_data_get reads and encodes
   the text (without special tokens), from any thread, so that the set can be combined with others:
     fl_data_prefetch(fl_data_batches(fl_data_shuffle(fl_data_shard(set, rank, ranks), seed), ...), 2, 4)
   A line that cannot be encoded is an error with its offset. Borrows t. Returns NULL after fl_fail. */
FL_API fl_data_set *fl_text_lines(const char *path, const fl_text_tokenizer *t, int64_t eos);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_LINES_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_LINES) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_LINES_IMPL
#define FL_TEXT_LINES_IMPL
#include "../ops/copy.h"
#include "../ops/view.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct fl__text_lines {
    const fl_text_tokenizer *t;
    fl_data_stream f;
    char *path;
    int64_t eos, *span; /* begin and end of each line */
    int64_t n, cap;
} fl__text_lines;

static void fl__text_lines_free(fl__text_lines *l) {
    if (l && l->f.file) l->f.io.close(l->f.io.user, l->f.file);
    if (l) fl_heap_free(l->path), fl_heap_free(l->span);
    fl_heap_free(l);
}

static void fl__text_lines_close(fl_data_set *self) { fl__text_lines_free(self->user); }

/* Records the line from begin to end, without a trailing CR, unless it is empty. */
static bool fl__text_lines_add(fl__text_lines *l, int64_t begin, int64_t end) {
    if (begin == end) return true;
    if (!fl_heap_grow(&l->span, &l->cap, 2 * l->n + 2, sizeof *l->span)) return false;
    l->span[2 * l->n] = begin, l->span[2 * l->n + 1] = end, l->n++;
    return true;
}

static bool fl__text_lines_find(fl__text_lines *l) {
    enum { PART = 1 << 16 };
    char *part = fl_heap_alloc(PART), last = 0;
    bool ok = part != NULL;
    int64_t begin = 0;
    for (int64_t at = 0, n; ok && at < l->f.size; at += n) {
        n = l->f.size - at < PART ? l->f.size - at : PART;
        ok = fl_data_stream_read(&l->f, part, (size_t)n, at);
        for (int64_t i = 0; ok && i < n; last = part[i++])
            if (part[i] == '\n')
                ok = fl__text_lines_add(l, begin, at + i - (last == '\r')), begin = at + i + 1;
    }
    fl_heap_free(part);
    return ok && fl__text_lines_add(l, begin, l->f.size);
}

/* Prefixes the tokenizer's error with path and offset. */
static bool fl__text_lines_fail(const fl__text_lines *l, int64_t at) {
    char why[400];
    snprintf(why, sizeof why, "%.399s", fl_error());
    fl_error_clear();
    return fl_fail("fl_text_lines: %s: offset %" PRId64 ": the line cannot be encoded: %s", l->path, at, why);
}

static bool fl__text_lines_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__text_lines *l = self->user;
    const int64_t begin = l->span[2 * i], n = l->span[2 * i + 1] - begin, more = l->eos >= 0;
    fl_text_encoding e = {0};
    char *text = fl_heap_alloc((size_t)n);
    bool ok = text && fl_data_stream_read(&l->f, text, (size_t)n, begin);
    if (ok && !fl_text_encode(l->t, text, n, &e, .plain = true)) ok = fl__text_lines_fail(l, begin);
    else if (ok && !e.n && !more)
        ok = fl_fail("fl_text_lines: %s: offset %" PRId64 ": the line has no tokens, and eos is -1", l->path,
                     begin);
    const int64_t all = e.n + 2 * more;
    fl_tensor *ids = ok ? fl_data_host_tensor(FL_SHAPE(all), FL_I64) : NULL;
    int64_t *id = ids ? fl_map(ids, FL_WRITE) : NULL;
    for (int64_t k = 0; id && k < e.n; k++) id[more + k] = e.id[k];
    if (id && more) id[0] = id[all - 1] = l->eos;
    if (id) fl_unmap(ids, FL_WRITE);
    for (int k = 0; id && k < 2; k++) id = (out->t[k] = fl_slice(ids, 0, k, all - 1 + k, 1)) ? id : NULL;
    out->n = 2;
    fl_text_encoding_free(&e);
    fl_heap_free(text);
    return id != NULL;
}

FL_API fl_data_set *fl_text_lines(const char *path, const fl_text_tokenizer *t, int64_t eos) {
    static const char fn[] = "fl_text_lines";
    if (!path || !t || eos < -1 || eos >= fl_text_vocab_size(t))
        return fl_fail("%s: path or tokenizer is NULL, or eos is not in [-1, vocabulary size): got %" PRId64,
                       fn,
                       eos), NULL;
    fl__text_lines *l = fl_heap_alloc(sizeof *l);
    const size_t n = strlen(path) + 1;
    if (l) l->t = t, l->eos = eos, l->path = fl_heap_alloc(n);
    if (l && l->path && memcpy(l->path, path, n) && fl_data_stream_open(&l->f, fn, l->path, FL_DATA_READ) &&
        fl__text_lines_find(l))
        return fl_data_set_new(&(fl_data_set){.size = l->n, .get = fl__text_lines_get,
                                              .close = fl__text_lines_close, .user = l}, NULL, 0);
    fl__text_lines_free(l);
    return NULL;
}

#endif
#endif

/* MIT licence: see LICENSE. */
