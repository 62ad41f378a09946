/* normalize.h - normalizers: what is done to text before it is cut */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TEXT_NORMALIZE_H
#define FL_TEXT_NORMALIZE_H
#include "steps.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The steps of a "normalizer": BertNormalizer, Strip, StripAccents, NFC, NFD, NFKC, NFKD, Lowercase, Nmt,
   Precompiled, Replace, Prepend, ByteLevel, Sequence. */
FL_API bool fl_text_normalizers_of(fl_text_steps *out, const fl_text_tree *t, const char *where);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_NORMALIZE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_NORMALIZE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_NORMALIZE_IMPL
#define FL_TEXT_NORMALIZE_IMPL
#include "unicode.h"
#include "utf8.h"

static bool fl__norm_lowercase(const fl_text_step *s, fl_text_work *w) {
    (void)s;
    int len;
    bool ok = true;
    for (int64_t i = 0; ok && i < w->n; i += len) {
        int32_t lower[2];
        char bytes[8];
        const int32_t c = fl_text_char(w->p + i, w->n - i, &len);
        const int n = c < 0 ? 0 : fl_text_lower(c, lower);
        int size = 0;
        for (int k = 0; k < n; k++) size += fl_text_char_put(bytes + size, lower[k]);
        ok = c < 0 || (n == 1 && lower[0] == c)
                 ? fl_text_work_copy(w, i, i + len)
                 : fl_text_work_put(w, bytes, size, fl_text_work_from(w, i), fl_text_work_to(w, i + len - 1));
    }
    fl_text_work_turn(w);
    return ok;
}

static const fl_text_kind fl__norm_kinds[] = {
    {"Lowercase", fl__norm_lowercase, NULL},
    {NULL, NULL, NULL},
};

FL_API bool fl_text_normalizers_of(fl_text_steps *out, const fl_text_tree *t, const char *where) {
    return fl_text_steps_of(out, t, "normalizers", fl__norm_kinds, where);
}

#endif
#endif

/* MIT licence: see LICENSE. */
