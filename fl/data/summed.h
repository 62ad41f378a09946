/* summed.h - reading and writing large blocks with their checksums, by several threads */
#ifndef FL_DATA_SUMMED_H
#define FL_DATA_SUMMED_H
#include "file.h"

#ifdef __cplusplus
extern "C" {
#endif

/* fl_data_stream_read and _write with the CRC32C of the bytes in *sum; the table's read and write are called
   from several threads at once. */
FL_API bool fl_data_stream_read_summed(const fl_data_stream *f, void *dst, size_t n, int64_t at,
                                       uint32_t *sum);
FL_API bool fl_data_stream_write_summed(const fl_data_stream *f, const void *src, size_t n, int64_t at,
                                        uint32_t *sum);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_SUMMED_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_SUMMED) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_SUMMED_IMPL
#define FL_DATA_SUMMED_IMPL
#include "checksum.h"
#include <stdio.h>

/* n bytes at p in pieces that a processor's cache holds, so that each is in it for the second look. */
typedef struct fl__data_pieces {
    const fl_data_stream *f;
    char *p;
    size_t n;
    int64_t at;
    bool write;
    uint32_t *sum; /* of each piece */
    bool failed;
    char error[1024];
} fl__data_pieces;

enum { FL__DATA_SUMMED = 1 << 18 }; /* bytes of a piece */

static bool fl__data_piece(const fl__data_pieces *t, size_t from, size_t n, uint32_t *sum) {
    char *p = t->p + from;
    if (t->write) *sum = fl_data_crc32c(0, p, n);
    if (t->write) return fl_data_stream_write(t->f, p, n, t->at + (int64_t)from);
    if (!fl_data_stream_read(t->f, p, n, t->at + (int64_t)from)) return false;
    *sum = fl_data_crc32c(0, p, n);
    return true;
}

/* A thread's first error is carried to whoever waits for it. */
static void fl__data_run_pieces(void *arg, int64_t begin, int64_t end) {
    fl__data_pieces *t = arg;
    for (int64_t i = begin; i < end && !__atomic_load_n(&t->failed, __ATOMIC_RELAXED); i++) {
        const size_t from = (size_t)i * FL__DATA_SUMMED, left = t->n - from;
        const bool pending = fl_error() != NULL;
        if (fl__data_piece(t, from, left < FL__DATA_SUMMED ? left : FL__DATA_SUMMED, &t->sum[i])) continue;
        if (!__atomic_exchange_n(&t->failed, true, __ATOMIC_RELAXED))
            snprintf(t->error, sizeof t->error, "%.*s", (int)sizeof t->error - 1, fl_error());
        if (!pending) fl_error_clear();
    }
}

static bool fl__data_summed(fl__data_pieces *t, uint32_t *sum) {
    const size_t pieces = t->n / FL__DATA_SUMMED + (t->n % FL__DATA_SUMMED != 0);
    *sum = 0;
    if (pieces < 2) return fl__data_piece(t, 0, t->n, sum);
    t->sum = fl_heap_alloc(pieces * sizeof *t->sum);
    if (!t->sum) return false;
    fl_parallel((int64_t)pieces, 1, fl__data_run_pieces, t);
    for (size_t i = 0; i < pieces; i++) {
        const size_t left = t->n - i * FL__DATA_SUMMED;
        *sum = fl_data_crc32c_join(*sum, t->sum[i], left < FL__DATA_SUMMED ? left : FL__DATA_SUMMED);
    }
    fl_heap_free(t->sum);
    return !t->failed || fl_fail("%s", t->error);
}

FL_API bool fl_data_stream_read_summed(const fl_data_stream *f, void *dst, size_t n, int64_t at,
                                       uint32_t *sum) {
    return fl__data_summed(&(fl__data_pieces){.f = f, .p = dst, .n = n, .at = at}, sum);
}

FL_API bool fl_data_stream_write_summed(const fl_data_stream *f, const void *src, size_t n, int64_t at,
                                        uint32_t *sum) {
    return fl__data_summed(&(fl__data_pieces){.f = f, .p = (char *)(uintptr_t)src, .n = n, .at = at,
                                              .write = true}, sum);
}

#endif
#endif

/* MIT licence: see LICENSE. */
