/* fl/data/protobuf.h - writing Protocol Buffers: event files of TensorBoard, ONNX models

   A message is a list of fields: a varint field << 3 | wire type before each value. A nested message is
   preceded by its length, which is known last: four bytes of seven bits are reserved for it. Private to fl. */
#ifndef FL_DATA_PROTOBUF_H
#define FL_DATA_PROTOBUF_H
#include "text.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FL__PB_VARINT = 0, FL__PB_64 = 1, FL__PB_BYTES = 2, FL__PB_32 = 5 };
/* All return false after fl_fail. */
FL_PRIVATE bool fl__pb_varint(fl_data_text *t, uint64_t v);
FL_PRIVATE bool fl__pb_key(fl_data_text *t, int field, int kind);
FL_PRIVATE bool fl__pb_bytes(fl_data_text *t, int field, const void *bytes, size_t n);
/* Begins a nested message, which ends by fl__pb_close with the same *at; who: the function that fails. */
FL_PRIVATE bool fl__pb_open(fl_data_text *t, int field, int64_t *at);
FL_PRIVATE bool fl__pb_close(fl_data_text *t, int64_t at, const char *who);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_PROTOBUF_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_PROTOBUF) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_PROTOBUF_IMPL
#define FL_DATA_PROTOBUF_IMPL

FL_PRIVATE bool fl__pb_varint(fl_data_text *t, uint64_t v) {
    unsigned char b[10];
    size_t n = 0;
    do b[n++] = (unsigned char)((v & 127) | (v > 127 ? 128 : 0));
    while (v >>= 7);
    return fl_data_text_put(t, b, n);
}

FL_PRIVATE bool fl__pb_key(fl_data_text *t, int field, int kind) {
    return fl__pb_varint(t, (uint64_t)(field << 3 | kind));
}

FL_PRIVATE bool fl__pb_bytes(fl_data_text *t, int field, const void *bytes, size_t n) {
    return fl__pb_key(t, field, FL__PB_BYTES) && fl__pb_varint(t, n) && fl_data_text_put(t, bytes, n);
}

FL_PRIVATE bool fl__pb_open(fl_data_text *t, int field, int64_t *at) {
    if (!fl__pb_key(t, field, FL__PB_BYTES) || !fl_data_text_put(t, "\x80\x80\x80", 4)) return false;
    *at = t->n;
    return true;
}

FL_PRIVATE bool fl__pb_close(fl_data_text *t, int64_t at, const char *who) {
    int64_t n = t->n - at;
    if (n >> 28)
        return fl_fail("%s: a message of %lld bytes is too long, expected less than 2^28", who, (long long)n);
    for (int i = 4; i; i--, n >>= 7) t->p[at - i] = (char)((n & 127) | (i > 1 ? 128 : 0));
    return true;
}

#endif
#endif
/* MIT licence: see LICENSE. */
