/* split.h - pre-tokenizers: where text may be cut, and where models may not join */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TEXT_SPLIT_H
#define FL_TEXT_SPLIT_H
#include "steps.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The steps of a "pre_tokenizer". */
FL_API bool fl_text_splits_of(fl_text_steps *out, const fl_text_tree *t, const char *where);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_SPLIT_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_SPLIT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_SPLIT_IMPL
#define FL_TEXT_SPLIT_IMPL
#include "unicode.h"
#include "utf8.h"
#include <string.h>

/* ---- runs of characters ---- */

static bool fl__split_space_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    const unsigned char *cls = s->data;
    int64_t begin = p.begin;
    int len;
    bool ok = true;
    for (int64_t i = p.begin; ok && i < p.end; i += len) {
        const int32_t c = fl_text_char(w->p + i, p.end - i, &len);
        if (c < 0 || !(cls[c] & FL_TEXT_WHITE_SPACE)) continue;
        ok = begin == i || fl_text_work_cut(w, begin, i, -1);
        begin = i + len;
    }
    return ok && (begin == p.end || fl_text_work_cut(w, begin, p.end, -1));
}

static bool fl__split_space(const fl_text_step *s, fl_text_work *w) {
    return fl_text_work_each(s, w, false, fl__split_space_one);
}

static bool fl__split_classes(fl_text_step *s, const char *where) {
    (void)where;
    s->data = (void *)(uintptr_t)fl_text_classes();
    return true;
}

/* ---- lengths ---- */

static bool fl__split_length_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    int64_t begin = p.begin, chars = 0;
    int len;
    bool ok = true;
    for (int64_t i = p.begin; ok && i < p.end; i += len) {
        fl_text_char(w->p + i, p.end - i, &len);
        if (++chars % s->value) continue;
        ok = fl_text_work_cut(w, begin, i + len, -1);
        begin = i + len;
    }
    return ok && (begin == p.end || fl_text_work_cut(w, begin, p.end, -1));
}

static bool fl__split_length(const fl_text_step *s, fl_text_work *w) {
    return fl_text_work_each(s, w, false, fl__split_length_one);
}

static bool fl__split_make_length(fl_text_step *s, const char *where) {
    s->value = fl_text_tree_int(s->options, "length", 5);
    return s->value > 0 || fl_fail("%s: FixedLength of length %lld", where, (long long)s->value);
}

/* ---- bytes ---- */

static bool fl__split_bytes_one(const fl_text_step *s, fl_text_work *w, fl_text_piece p) {
    (void)s;
    return fl_text_work_cut(w, p.begin, p.end, -1);
}

static bool fl__split_bytes(const fl_text_step *s, fl_text_work *w) {
    return fl_text_work_each(s, w, false, fl__split_bytes_one);
}

static const fl_text_kind fl__split_kinds[] = {
    {"WhitespaceSplit", fl__split_space, fl__split_classes},
    {"FixedLength", fl__split_length, fl__split_make_length},
    {"ByteLevel", fl__split_bytes, NULL},
    {NULL, NULL, NULL},
};

FL_API bool fl_text_splits_of(fl_text_steps *out, const fl_text_tree *t, const char *where) {
    return fl_text_steps_of(out, t, "pretokenizers", fl__split_kinds, where);
}

#endif
#endif

/* MIT licence: see LICENSE. */
