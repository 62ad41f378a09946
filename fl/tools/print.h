/* fl/tools/print.h - formats and prints tensors as PyTorch does */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TOOLS_PRINT_H
#define FL_TOOLS_PRINT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Writes t as PyTorch prints it (line width 75, summarised above 1000 elements, precision 4) to buf. Returns
   the length as snprintf does; -1 after an error. */
FL_API int64_t fl_format(fl_tensor *t, char *buf, size_t size);
/* Prints it and a newline to stdout. False after an error. */
FL_API bool fl_print(fl_tensor *t);

#ifdef __cplusplus
}
#endif
#endif /* FL_TOOLS_PRINT_H */

#if defined(FL_IMPL_ONLY_TOOLS_PRINT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TOOLS_PRINT_IMPL
#define FL_TOOLS_PRINT_IMPL
#include "../../fl_backend.h"
#include "../ops/copy.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define FL__PRINT_WIDTH 75
#define FL__PRINT_EDGE 3 /* items printed at either end of a summarised dim */

typedef struct fl__printer {
    const fl_tensor *t;
    const char *data; /* element [0, ...] */
    char *buf;
    size_t size;
    int64_t length; /* of the whole text, including what did not fit */
    bool summary, integral, scientific;
    int width;       /* of an element */
    double max, min; /* of the absolute finite nonzero values */
} fl__printer;

__attribute__((format(printf, 2, 3))) static void fl__emit(fl__printer *pr, const char *format,
                                                           ...) {
    va_list args;
    va_start(args, format);
    size_t at = (size_t)pr->length < pr->size ? (size_t)pr->length : pr->size;
    pr->length += vsnprintf(pr->size ? pr->buf + at : NULL, pr->size - at, format, args);
    va_end(args);
}

/* Formats the element at offset `at`; its value as float in *f. */
static int fl__element_text(const fl__printer *pr, int64_t at, char *text, size_t size, double *f) {
    const char *p = pr->data + at * (int64_t)fl_dtype_size(pr->t->dtype);
    const fl_number v = fl_number_load(pr->t->dtype, p);
    *f = v.f;
    if (pr->t->dtype == FL_B8) return snprintf(text, size, "%s", v.i ? "True" : "False");
    if (pr->t->dtype == FL_U64) return snprintf(text, size, "%llu", (unsigned long long)v.i);
    if (!v.real) return snprintf(text, size, "%lld", (long long)v.i);
    if (!isfinite(*f))
        return snprintf(text, size, "%s", isnan(*f) ? "nan" : *f > 0 ? "inf" : "-inf");
    if (pr->scientific) return snprintf(text, size, "%.4e", *f);
    return pr->integral ? snprintf(text, size, "%.0f.", *f) : snprintf(text, size, "%.4f", *f);
}

/* Index of the k-th printed item of a dim of n; -1 for "...". *count: number of printed items, including
   "...". */
static int64_t fl__shown(const fl__printer *pr, int64_t n, int64_t k, int64_t *count) {
    bool cut = pr->summary && n > 2 * FL__PRINT_EDGE;
    *count = cut ? 2 * FL__PRINT_EDGE + 1 : n;
    if (!cut || k < FL__PRINT_EDGE) return k;
    return k == FL__PRINT_EDGE ? -1 : n - (2 * FL__PRINT_EDGE + 1 - k);
}

typedef void (*fl__element_fn)(fl__printer *pr, int64_t at);
static void fl__each_shown(fl__printer *pr, int dim, int64_t at, fl__element_fn fn) {
    if (dim == pr->t->ndim) {
        fn(pr, at);
        return;
    }
    if (fl_numel(pr->t) == 0) return;
    int64_t count = 1;
    for (int64_t k = 0; k < count; k++) {
        int64_t i = fl__shown(pr, pr->t->shape[dim], k, &count);
        if (k < count && i >= 0) fl__each_shown(pr, dim + 1, at + i * pr->t->stride[dim], fn);
    }
}

static void fl__measure_value(fl__printer *pr, int64_t at) {
    char text[64];
    double f = 0;
    fl__element_text(pr, at, text, sizeof text, &f);
    if (!isfinite(f) || f == 0) return;
    if (f != floor(f)) pr->integral = false;
    if (fabs(f) > pr->max) pr->max = fabs(f);
    if (fabs(f) < pr->min) pr->min = fabs(f);
}

static void fl__measure_width(fl__printer *pr, int64_t at) {
    char text[400];
    double f;
    int n = fl__element_text(pr, at, text, sizeof text, &f);
    if (n > pr->width) pr->width = n;
}

static void fl__print_dim(fl__printer *pr, int dim, int64_t at, int indent) {
    const fl_tensor *t = pr->t;
    char text[400];
    double f;
    if (dim == t->ndim) {
        fl__element_text(pr, at, text, sizeof text, &f);
        fl__emit(pr, "%*s", t->ndim ? pr->width : 0, text);
        return;
    }
    bool last = dim == t->ndim - 1;
    int64_t per_line = (FL__PRINT_WIDTH - indent) / (pr->width + 2), count = 1;
    if (per_line < 1) per_line = 1;
    fl__emit(pr, "[");
    for (int64_t k = 0; k < count; k++) {
        int64_t i = fl__shown(pr, t->shape[dim], k, &count);
        if (k >= count) break;
        if (k && last)
            fl__emit(pr, k % per_line ? ", " : ",\n%*s", indent + 1, "");
        else if (k) {
            fl__emit(pr, ",");
            for (int j = dim; j < t->ndim - 1; j++) fl__emit(pr, "\n");
            fl__emit(pr, "%*s", indent + 1, "");
        }
        if (i < 0)
            fl__emit(pr, "...");
        else
            fl__print_dim(pr, dim + 1, at + i * t->stride[dim], indent + 1);
    }
    fl__emit(pr, "]");
}

int64_t fl_format(fl_tensor *t, char *buf, size_t size) {
    if (fl_is_null_arg("fl_format", t)) return -1;
    fl_scope s = fl_scope_begin();
    fl__printer pr = {.buf = buf, .size = size, .integral = true, .min = (double)INFINITY};
    fl_dtype dtype = t->dtype;
    t = fl_materialise(t);
    if (t && t->dtype >= FL_DTYPE_COUNT) t = fl_cast(t, FL_F32); /* block dtypes: their numbers */
    pr.t = t;
    pr.data = t ? fl_map(t, FL_READ) : NULL;
    if (pr.data) {
        pr.summary = fl_numel(t) > 1000;
        fl__each_shown(&pr, 0, 0, fl__measure_value);
        double low = pr.integral ? 0 : 1e-4;
        pr.scientific =
            fl_dtype_is_float(t->dtype) && (pr.max > 1000 * pr.min || pr.max > 1e8 || pr.min < low);
        fl__each_shown(&pr, 0, 0, fl__measure_width);
        fl__emit(&pr, "tensor(");
        if (fl_numel(t) == 0 && t->ndim != 1)
            fl__emit(&pr, "[], size=%s", FL_SHAPE_TEXT(t));
        else
            fl__print_dim(&pr, 0, 0, 7);
        bool plain = dtype == FL_F32 || dtype == FL_I64 || dtype == FL_B8;
        if (!plain) fl__emit(&pr, ", dtype=%s", fl_dtype_name(dtype));
        fl__emit(&pr, ")");
        fl_unmap(t, FL_READ);
    }
    fl_scope_end(&s);
    return pr.data ? pr.length : -1;
}

bool fl_print(fl_tensor *t) {
    char small[4096], *text = small;
    int64_t n = fl_format(t, small, sizeof small);
    if (n < 0) return false;
    if (n >= (int64_t)sizeof small) {
        text = fl_heap_alloc((size_t)n + 1);
        if (!text) return fl_raise() != NULL;
        fl_format(t, text, (size_t)n + 1);
    }
    bool ok = printf("%s\n", text) >= 0;
    if (text != small) fl_heap_free(text);
    return ok || fl_fail("fl_print: cannot write to stdout");
}
#endif /* FL_TOOLS_PRINT_IMPL */
#endif
/* MIT licence: see LICENSE. */
