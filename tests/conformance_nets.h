/* conformance_nets.h - norms, attention, a recurrent cell and CTC against loops in f64 */
#ifndef CONFORMANCE_NETS_H
#define CONFORMANCE_NETS_H

#include "conformance.h"

/* >>norms: of rows [n, c], each over all of it */

static void layer_norm_row(const double *x, int64_t c, bool centred, double eps, double *y) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < c; i++) mean += centred ? x[i] / (double)c : 0;
    for (int64_t i = 0; i < c; i++) square += (x[i] - mean) * (x[i] - mean) / (double)c;
    for (int64_t i = 0; i < c; i++) y[i] = (x[i] - mean) / sqrt(square + eps);
}

static void norm_case(bool centred, fl_dtype d, layout l, fl_shape s) {
    const char *name = centred ? "layer_norm" : "rms_norm";
    if (!case_begin(name, d, l, "[%lld, %lld]", (long long)s.dim[0], (long long)s.dim[1])) return;
    operand x = make_operand(s, d, l, TAME);
    array w = random_array(FL_SHAPE(s.dim[1]), d, TAME), want = new_array(s, d);
    for (int64_t r = 0; r < s.dim[0]; r++) {
        double *y = want.f + r * s.dim[1];
        layer_norm_row(x.a.f + r * s.dim[1], s.dim[1], centred, 0.1, y);
        for (int64_t i = 0; i < s.dim[1]; i++) y[i] *= w.f[i];
    }
    fl_tensor *weight = dense_tensor(&w);
    fl_tensor *y =
        centred ? fl_layer_norm(x.t, 1, weight, NULL, 0.1) : fl_rms_norm(x.t, 1, weight, 0.1);
    double *scale = take((size_t)want.n * sizeof *scale + 8);
    for (int64_t k = 0; k < want.n; k++) scale[k] = 1 + fabs(w.f[k % s.dim[1]]);
    case_end(agrees(y, &want, (tolerance){4, 32, 0}, scale, false));
}

/* >>attention */

static void attention_row(const double *q, const array *k, const array *v, int64_t last,
                          double *y) {
    int64_t m = k->shape.dim[0], d = k->shape.dim[1], e = v->shape.dim[1];
    double largest = -INFINITY, sum = 0, score[16];
    for (int64_t j = 0; j < m; j++) {
        score[j] = 0;
        for (int64_t i = 0; i < d; i++) score[j] += q[i] * k->f[j * d + i] / sqrt((double)d);
        if (j <= last && score[j] > largest) largest = score[j];
    }
    for (int64_t j = 0; j < m; j++) sum += score[j] = j <= last ? exp(score[j] - largest) : 0;
    for (int64_t i = 0; i < e; i++) y[i] = 0;
    for (int64_t j = 0; j < m && sum > 0; j++)
        for (int64_t i = 0; i < e; i++) y[i] += score[j] / sum * v->f[j * e + i];
}

static void attention_case(fl_dtype d, layout l, bool causal) {
    if (!case_begin("attention", d, l, "%d", causal)) return;
    operand q = make_operand(FL_SHAPE(4, 3), d, l, TAME),
            k = make_operand(FL_SHAPE(5, 3), d, l, TAME),
            v = make_operand(FL_SHAPE(5, 2), d, l, TAME);
    array want = new_array(FL_SHAPE(4, 2), d);
    double scale[8], largest = 1;
    for (int64_t i = 0; i < v.a.n; i++) largest = fmax(largest, fabs(v.a.f[i]));
    for (int64_t i = 0; i < q.a.n; i++) largest = fmax(largest, fabs(q.a.f[i]));
    for (int64_t i = 0; i < k.a.n; i++) largest = fmax(largest, fabs(k.a.f[i]));
    for (int i = 0; i < 8; i++) scale[i] = largest * largest * largest;
    for (int64_t r = 0; r < 4; r++)
        attention_row(q.a.f + r * 3, &k.a, &v.a, causal ? r : 5, want.f + r * 2);
    fl_tensor *y = fl_attention(q.t, k.t, v.t, NULL, causal, 0);
    case_end(agrees(y, &want, (tolerance){4, 32, 0}, scale, false));
}

/* >>ctc: the sum over every path of classes that collapses to the target */

static bool collapses(const int *path, int t, const int64_t *target, int64_t length) {
    int64_t at = 0;
    for (int i = 0; i < t; i++) {
        if (path[i] == 0 || (i && path[i] == path[i - 1])) continue;
        if (at == length || target[at++] != path[i]) return false;
    }
    return at == length;
}

static double ctc_by_force(const array *x, int n, int t, const int64_t *target, int64_t length) {
    int c = (int)x->shape.dim[2], batch = (int)x->shape.dim[1], path[6] = {0}, i = 0;
    double sum = 0;
    while (i < t) {
        double p = 0;
        for (int k = 0; k < t; k++) p += x->f[(k * batch + n) * c + path[k]];
        if (collapses(path, t, target, length)) sum += exp(p);
        for (i = 0; i < t && ++path[i] == c; i++) path[i] = 0;
    }
    return -log(sum);
}

static void ctc_case(fl_dtype d, layout l, int which) {
    if (!case_begin("ctc_loss", d, l, "%d", which)) return;
    operand x = make_operand(FL_SHAPE(5, 3, 3), d, l, TAME);
    array want = new_array(FL_SHAPE(3), d);
    int64_t target[9], steps[3], lengths[3];
    for (int i = 0; i < 9; i++) target[i] = 1 + random_below(2);
    for (int i = 0; i < 3; i++) {
        steps[i] = 1 + random_below(5);
        lengths[i] = random_below(4);
        want.f[i] = ctc_by_force(&x.a, i, (int)steps[i], target + 3 * i, lengths[i]);
    }
    fl_tensor *y = fl_ctc_loss(x.t, fl_from_host(target, FL_SHAPE(3, 3), FL_I64),
                               fl_from_host(steps, FL_SHAPE(3), FL_I64),
                               fl_from_host(lengths, FL_SHAPE(3), FL_I64), .reduction = FL_NONE);
    double scale[3] = {200, 200, 200};
    case_end(agrees(y, &want, (tolerance){8, 8, 0}, scale, false));
}

static void nets_group(void) {
    static const char *const names[] = {"layer_norm", "rms_norm", "attention", "ctc_loss"};
    static const fl_shape rows[] = {
        {2, {3, 5}}, {2, {17, 33}}, {2, {1, 7}}, {2, {5, 1}}, {2, {0, 3}}};
    for (int i = 0; i < 4; i++) {
        unsigned layouts = i < 2 ? UNWEAK & ~(1u << CHANNELS_LAST) : UNWEAK; /* rows are 2-d */
        expect_row(names[i], FLOATS, layouts, 0, 0);
        snprintf(row_of(names[i])->tolerance, 64, i < 3 ? "4 ulp + 32 eps" : "8 ulp + 1600 eps");
    }
    for (int k = 0; k < DTYPES; k++) {
        fl_dtype d = all_dtypes[k];
        if (!takes(FLOATS, d)) continue;
        for (int l = DENSE; l <= BROADCAST; l++) {
            for (int i = 0; i < 5; i++)
                for (int centred = 0; layout_fits((layout)l, rows[i]) && centred < 2; centred++)
                    norm_case(centred, d, (layout)l, rows[i]);
            for (int i = 0; i < 2; i++) attention_case(d, (layout)l, i);
            for (int i = 0; i < 12; i++) ctc_case(d, (layout)l, i);
        }
    }
}

#endif /* MIT licence: see LICENSE. */
