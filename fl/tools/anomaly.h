/* fl/tools/anomaly.h - anomaly detection: finds the op that produces the first NaN or infinity */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TOOLS_ANOMALY_H
#define FL_TOOLS_ANOMALY_H

#ifdef __cplusplus
extern "C" {
#endif

enum { FL_ANOMALY_NAN = 1, FL_ANOMALY_INF = 2 };
/* Checks the results of all calls, in all threads, forward and backward, for NaN (FL_ANOMALY_NAN),
   infinities (FL_ANOMALY_INF) or both; 0, the default, turns it off, without cost. Returns the previous
   setting. The first call that produces one fails with an error that gives the op, the element, the ranges
   of its operands and its call context, so that the default handler stops at the faulty call. Not reported:
   values that the program itself passes (fl_full, fl_num), and infinities that an operand already has, such
   as a mask. Deferred calls (fl_lazy) that wait run first, and while it is on none is deferred; those of a
   graph run at its end. As torch.autograd.set_detect_anomaly, which checks backward only. */
FL_API int fl_detect_anomaly(int what);

#ifdef __cplusplus
}
#endif
#endif /* FL_TOOLS_ANOMALY_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TOOLS_ANOMALY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TOOLS_ANOMALY_IMPL
#define FL_TOOLS_ANOMALY_IMPL
#include "../../fl_backend.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Summary of a tensor's values. Index 0: NaN, 1: infinity. */
typedef struct fl__value_summary {
    double least, most;        /* range of the finite values */
    int64_t finite, n[2];      /* number of finite values, of NaN and infinities */
    int64_t index[2];          /* row-major index of the first NaN, infinity, */
    double first[2];           /* and its value */
} fl__value_summary;

static int fl__anomalies; /* atomic */

static fl__value_summary fl__summarise(fl_tensor *t) {
    fl__value_summary l = {.least = (double)INFINITY, .most = -(double)INFINITY};
    int64_t index[FL_MAX_DIMS] = {0}, at = 0, size = (int64_t)fl_dtype_size(t->dtype);
    const char *p = t->weak ? NULL : fl_map(t, FL_READ);
    for (int64_t i = 0; (p || t->weak) && i < fl_numel(t); i++) {
        const double v = t->weak ? t->f64 : fl_number_load(t->dtype, p + at * size).f;
        const bool bad = !isfinite(v);
        const int kind = bad && !isnan(v);
        if (!bad) {
            l.least = v < l.least ? v : l.least;
            l.most = v > l.most ? v : l.most;
            l.finite++;
        } else if (!l.n[kind]++) {
            l.index[kind] = i;
            l.first[kind] = v;
        }
        for (int d = t->ndim - 1; d >= 0; d--) { /* advance to the next element */
            at += t->stride[d];
            if (++index[d] < t->shape[d]) break;
            at -= t->stride[d] * t->shape[d];
            index[d] = 0;
        }
    }
    if (p) fl_unmap(t, FL_READ);
    return l;
}

/* Writes "f32 [2, 3] in [-1, 4], 1 NaN". */
static void fl__put_summary(fl_strbuf *text, const fl_tensor *t, const fl__value_summary *l) {
    static const char *const kinds[] = {"NaN", "infinite"};
    fl_strbuf_printf(text, "%s %s", fl_dtype_name(t->dtype ? t->dtype : FL_F32), t->weak ? "number" :
                     FL_SHAPE_TEXT(t));
    if (l->finite) fl_strbuf_printf(text, " in [%.6g, %.6g]", l->least, l->most);
    for (int k = 0; k < 2; k++)
        if (l->n[k]) fl_strbuf_printf(text, ", %" PRId64 " %s", l->n[k], kinds[k]);
}

static void fl__report_anomaly(const fl_call *c, int k, const fl__value_summary *y, int kind,
                               const fl__value_summary *x) {
    char text[700];
    fl_strbuf lines = {.buf = text, .size = sizeof text};
    fl_shape s = fl_shape_of(c->out[k]), at = s;
    int64_t i = y->index[kind];
    for (int d = s.ndim - 1; d >= 0; i /= s.dim[d--]) at.dim[d] = i % s.dim[d];
    fl_strbuf_printf(&lines, "result %d has the first %s, %g at %s: ", k, kind ? "infinity" : "NaN",
                     y->first[kind],
                     FL_TEXT_OF(at));
    fl__put_summary(&lines, c->out[k], y);
    for (int n = 0; n < c->n_in; n++) {
        fl_strbuf_printf(&lines, "; operand %d ", n);
        fl__put_summary(&lines, c->in[n], &x[n]);
        if (x[n].n[kind]) fl_strbuf_printf(&lines, ", which no checked call produced");
    }
    const bool gradient = c->op == FL_OP_grad1 || c->op == FL_OP_grad2;
    const fl_op op = gradient ? ((const fl_grad_args *)c->args)->op : c->op;
    fl_fail("fl_%s%s: %s", fl_op_get_info(op)->name, gradient ? "'s gradient" : "", text);
}

static void fl__anomaly_after(const fl_call *c, void *user) {
    const int what = __atomic_load_n(&fl__anomalies, __ATOMIC_RELAXED);
    fl__value_summary x[8];
    (void)user;
    if (fl_error() || c->op == FL_OP_fill) return;
    for (int k = 0; k < c->n_out; k++) {
        if (!c->out[k] || !fl_dtype_is_float(c->out[k]->dtype)) continue;
        const fl__value_summary y = fl__summarise(c->out[k]);
        for (int kind = 0; kind < 2; kind++) {
            bool from_number = false, from_operand = false;
            if (!y.n[kind] || !(what >> kind & 1)) continue;
            for (int i = 0; i < c->n_in; i++) {
                x[i] = fl__summarise(c->in[i]);
                from_operand |= x[i].n[kind] > 0;
                from_number |= c->in[i]->weak && x[i].n[kind];
            }
            if (from_number || (kind && from_operand)) continue;
            fl__report_anomaly(c, k, &y, kind, x);
            return;
        }
    }
}

FL_API int fl_detect_anomaly(int what) {
    static fl_call_watcher watcher = {.after = fl__anomaly_after};
    if (!fl__await_all_calls()) fl_raise();
    __atomic_store_n(&fl__defers_nothing, what & 3, __ATOMIC_RELAXED);
    const int before = __atomic_exchange_n(&fl__anomalies, what & 3, __ATOMIC_RELAXED);
    if ((what & 3) && !before) fl_provenance_enable(1), fl_watch_calls(&watcher);
    if (!(what & 3) && before) fl_provenance_enable(-1), fl_unwatch_calls(&watcher);
    return before;
}

#endif
#endif
/* MIT licence: see LICENSE. */
