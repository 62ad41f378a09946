/* conformance_nets.h - norms, attention, cells, embeddings, losses and CTC against loops in f64 */
#ifndef CONFORMANCE_NETS_H
#define CONFORMANCE_NETS_H

#include "../fl_nn.h"
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

/* Gradients of n w + b, n the rows of layer_norm_row, given dy: want[0] of x, [1] of w, [2] of b, with
   the sums of the absolute values of their terms in scale. */
static void layer_norm_back(const array *x, const double *w, const double *dy, array *want,
                            double **scale) {
    int64_t rows = x->shape.dim[0], c = x->shape.dim[1];
    for (int64_t r = 0; r < rows; r++) {
        const double *at = x->f + r * c, *g = dy + r * c;
        double n[64], mean = 0, rstd = 0, sum = 0, along = 0, size = 0, size_along = 0;
        for (int64_t i = 0; i < c; i++) mean += at[i] / (double)c;
        for (int64_t i = 0; i < c; i++) rstd += (at[i] - mean) * (at[i] - mean) / (double)c;
        rstd = 1 / sqrt(rstd + 0.1);
        for (int64_t i = 0; i < c; i++) {
            n[i] = (at[i] - mean) * rstd;
            sum += g[i] * w[i] / (double)c, size += fabs(g[i] * w[i]) / (double)c;
            along += g[i] * w[i] * n[i] / (double)c;
            size_along += fabs(g[i] * w[i]) * (1 + fabs(n[i])) / (double)c;
        }
        for (int64_t i = 0; i < c; i++) {
            want[0].f[r * c + i] = rstd * (g[i] * w[i] - sum - n[i] * along);
            scale[0][r * c + i] =
                (1 + rstd) * (fabs(g[i] * w[i]) + size + (1 + fabs(n[i])) * size_along);
            want[1].f[i] += g[i] * n[i], scale[1][i] += fabs(g[i]) * (1 + fabs(n[i]));
            want[2].f[i] += g[i], scale[2][i] += fabs(g[i]);
        }
    }
}

static void norm_grad_case(fl_dtype d, layout l, fl_shape s) {
    char text[100];
    if (!case_begin("layer_norm_grad", d, l, "%s", fl_shape_text(s, text, sizeof text))) return;
    operand x = make_operand(s, d, l, TAME), dy = make_operand(s, d, l, TAME);
    array w = random_array(FL_SHAPE(s.dim[1]), d, TAME), want[3];
    double *scale[3];
    for (int i = 0; i < 3; i++) {
        want[i] = new_array(i ? FL_SHAPE(s.dim[1]) : s, d);
        scale[i] = take((size_t)want[i].n * sizeof **scale + 8);
    }
    layer_norm_back(&x.a, w.f, dy.a.f, want, scale);
    fl_tensor *weight = dense_tensor(&w);
    fl_var *in[] = {fv_param(x.t), fv_param(weight), fv_param(fl_zeros_like(weight))};
    fl_var *y = fv_layer_norm(in[0], 1, in[1], in[2], 0.1);
    bool ok = y && fl_backward(y, .grad = dy.t);
    for (int i = 0; ok && i < 3; i++)
        ok = agrees(fv_grad(in[i]), &want[i], (tolerance){4, 32, 0}, scale[i], false);
    case_end(ok);
}

static void norm_group(int grad) {
    static const fl_shape rows[] = {
        {2, {3, 5}}, {2, {17, 33}}, {2, {1, 7}}, {2, {5, 1}}, {2, {2, 64}}, {2, {0, 3}}};
    for (int i = grad ? 2 : 0; i < (grad ? 3 : 2); i++) {
        const char *name = i == 2 ? "layer_norm_grad" : i ? "rms_norm" : "layer_norm";
        expect_row(name, FLOATS, UNWEAK & ~(1u << CHANNELS_LAST), 0, 0); /* rows are 2-d */
        snprintf(row_of(name)->tolerance, 64, "4 ulp + 32 eps%s", grad ? " of sum |terms|" : "");
    }
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; takes(FLOATS, all_dtypes[k]) && l <= BROADCAST; l++)
            for (int i = 0; i < 6; i++) {
                if (!layout_fits((layout)l, rows[i])) continue;
                if (grad) norm_grad_case(all_dtypes[k], (layout)l, rows[i]);
                for (int centred = 0; !grad && centred < 2; centred++)
                    norm_case(centred, all_dtypes[k], (layout)l, rows[i]);
            }
}

/* >>attention */

typedef struct attention_kind {
    int64_t queries;
    bool causal;
    int64_t offset, window;
    double softcap;
} attention_kind;
static const attention_kind attention_kinds[] = {
    {4, false, 0, 0, 0}, {4, true, 0, 0, 0},   {4, true, 1, 0, 0},   {4, true, 2, 2, 0},
    {4, false, 0, 2, 0}, {4, true, 9, 3, 0.8}, {4, false, 0, 0, 1.5}, {1, true, 3, 0, 0},
    {1, false, 0, 0, 2}, {1, true, 4, 2, 0}};
enum { ATTENTION_KINDS = sizeof attention_kinds / sizeof *attention_kinds, ATTENTION_KEYS = 5 };

/* Probabilities of the keys for query r, and what a change of the product brings to the score. */
static void attention_shares(const double *q, const array *k, int64_t r, const attention_kind *kind,
                             double *p, double *slope) {
    const int64_t d = k->shape.dim[1], place = kind->offset + r;
    double largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < ATTENTION_KEYS; j++) {
        double score = 0;
        for (int64_t i = 0; i < d; i++) score += q[r * d + i] * k->f[j * d + i] / sqrt((double)d);
        slope[j] = 1 / sqrt((double)d);
        if (kind->softcap > 0) {
            const double t = tanh(score / kind->softcap);
            score = kind->softcap * t;
            slope[j] *= 1 - t * t;
        }
        const bool hidden = (kind->causal && j > place) ||
                            (kind->window && llabs(place - j) >= kind->window);
        p[j] = hidden ? -INFINITY : score;
        if (p[j] > largest) largest = p[j];
    }
    for (int64_t j = 0; j < ATTENTION_KEYS; j++) sum += p[j] = largest > -INFINITY ? exp(p[j] - largest) : 0;
    for (int64_t j = 0; j < ATTENTION_KEYS; j++) p[j] = sum > 0 ? p[j] / sum : 0;
}

static fl_var *attention_of(const attention_kind *kind, fl_var *q, fl_var *k, fl_var *v) {
    return fv_attention(q, k, v, .causal = kind->causal, .offset = kind->offset, .window = kind->window,
                        .softcap = kind->softcap);
}

static void attention_case(fl_dtype d, layout l, const attention_kind *kind) {
    const int64_t n = kind->queries;
    if (!case_begin("attention", d, l, "%d queries, causal %d, from %d, window %d, cap %g", (int)n,
                    kind->causal, (int)kind->offset, (int)kind->window, kind->softcap))
        return;
    operand q = make_operand(FL_SHAPE(n, 3), d, l, TAME),
            k = make_operand(FL_SHAPE(ATTENTION_KEYS, 3), d, l, TAME),
            v = make_operand(FL_SHAPE(ATTENTION_KEYS, 2), d, l, TAME);
    array want = new_array(FL_SHAPE(n, 2), d);
    double scale[8], largest = 1, p[ATTENTION_KEYS], slope[ATTENTION_KEYS];
    for (int64_t i = 0; i < v.a.n; i++) largest = fmax(largest, fabs(v.a.f[i]));
    for (int64_t i = 0; i < q.a.n; i++) largest = fmax(largest, fabs(q.a.f[i]));
    for (int64_t i = 0; i < k.a.n; i++) largest = fmax(largest, fabs(k.a.f[i]));
    /* of half floats a slot may round the probabilities, as flash attention does */
    const double rounded = d == FL_BF16 ? 1 << 16 : d == FL_F16 ? 1 << 13 : 0;
    for (int i = 0; i < 8; i++) scale[i] = (1 + rounded / 16) * largest * largest * largest;
    for (int64_t r = 0; r < n; r++) {
        attention_shares(q.a.f, &k.a, r, kind, p, slope);
        for (int64_t j = 0; j < ATTENTION_KEYS; j++)
            for (int64_t i = 0; i < 2; i++) want.f[r * 2 + i] += p[j] * v.a.f[j * 2 + i];
    }
    fl_var *y = attention_of(kind, fv_const(q.t), fv_const(k.t), fv_const(v.t));
    case_end(agrees(fv_value(y), &want, (tolerance){4, 32, 0}, scale, false));
}

/* ds = p (dp - sum p dp), times the slope, of query r, and what they give. */
static void attention_back(const array *q, const array *k, const array *v, const double *dy,
                           int64_t r, const attention_kind *kind, array *want) {
    double p[ATTENTION_KEYS], slope[ATTENTION_KEYS], dp[ATTENTION_KEYS], delta = 0;
    attention_shares(q->f, k, r, kind, p, slope);
    for (int j = 0; j < ATTENTION_KEYS; j++) {
        dp[j] = dy[r * 2] * v->f[j * 2] + dy[r * 2 + 1] * v->f[j * 2 + 1];
        delta += p[j] * dp[j];
    }
    for (int j = 0; j < ATTENTION_KEYS; j++) {
        for (int i = 0; i < 3; i++) {
            want[0].f[r * 3 + i] += p[j] * (dp[j] - delta) * slope[j] * k->f[j * 3 + i];
            want[1].f[j * 3 + i] += p[j] * (dp[j] - delta) * slope[j] * q->f[r * 3 + i];
        }
        for (int i = 0; i < 2; i++) want[2].f[j * 2 + i] += p[j] * dy[r * 2 + i];
    }
}

static void attention_grad_case(fl_dtype d, layout l, const attention_kind *kind) {
    const int64_t n = kind->queries;
    if (!case_begin("attention_grad", d, l, "%d queries, causal %d, from %d, window %d, cap %g", (int)n,
                    kind->causal, (int)kind->offset, (int)kind->window, kind->softcap))
        return;
    operand q = make_operand(FL_SHAPE(n, 3), d, l, TAME),
            k = make_operand(FL_SHAPE(ATTENTION_KEYS, 3), d, l, TAME),
            v = make_operand(FL_SHAPE(ATTENTION_KEYS, 2), d, l, TAME);
    array dy = random_array(FL_SHAPE(n, 2), d, TAME);
    array want[] = {new_array(FL_SHAPE(n, 3), d), new_array(FL_SHAPE(ATTENTION_KEYS, 3), d),
                    new_array(FL_SHAPE(ATTENTION_KEYS, 2), d)};
    double scale[15], largest = 1;
    for (int64_t i = 0; i < v.a.n; i++) largest = fmax(largest, fabs(v.a.f[i]));
    for (int64_t i = 0; i < q.a.n; i++) largest = fmax(largest, fabs(q.a.f[i]));
    for (int64_t i = 0; i < k.a.n; i++) largest = fmax(largest, fabs(k.a.f[i]));
    for (int64_t i = 0; i < dy.n; i++) largest = fmax(largest, fabs(dy.f[i]));
    /* of half floats the slot reads y as it was rounded */
    const double rounded = d == FL_BF16 ? 1 << 16 : d == FL_F16 ? 1 << 13 : 1;
    for (int i = 0; i < 15; i++) scale[i] = rounded * pow(largest, 5);
    for (int64_t r = 0; r < n; r++) attention_back(&q.a, &k.a, &v.a, dy.f, r, kind, want);
    fl_var *in[] = {fv_param(q.t), fv_param(k.t), fv_param(v.t)};
    fl_var *y = attention_of(kind, in[0], in[1], in[2]);
    bool ok = y && fl_backward(y, .grad = dense_tensor(&dy));
    for (int i = 0; ok && i < 3; i++)
        ok = agrees(fv_grad(in[i]), &want[i], (tolerance){4, 64, 0}, scale, false);
    case_end(ok);
}

/* a s, or dy s and dy a s (1 - s), of the halves of [3, 8] */
static void glu_case(fl_dtype d, layout l, bool grad) {
    if (!case_begin(grad ? "glu_grad" : "glu", d, l, "[3, 8]")) return;
    operand x = make_operand(FL_SHAPE(3, 8), d, l, TAME);
    array dy = random_array(FL_SHAPE(3, 4), d, TAME);
    array want = new_array(grad ? FL_SHAPE(3, 8) : FL_SHAPE(3, 4), d);
    double scale[24];
    for (int i = 0; i < 12; i++) {
        const int at = i / 4 * 8 + i % 4;
        const double a = x.a.f[at], s = 1 / (1 + exp(-x.a.f[at + 4]));
        if (!grad) want.f[i] = a * s;
        else want.f[at] = dy.f[i] * s, want.f[at + 4] = dy.f[i] * a * s * (1 - s);
        if (!grad) scale[i] = fabs(a);
        else scale[at] = fabs(dy.f[i]), scale[at + 4] = fabs(dy.f[i] * a);
    }
    fl_var *in = fv_param(x.t), *y = fv_glu(in, -1);
    bool ok = y && (!grad || fl_backward(y, .grad = dense_tensor(&dy)));
    case_end(ok && agrees(grad ? fv_grad(in) : y->value, &want, (tolerance){4, 8, 0}, scale, false));
}

/* An op of a user's (backends.h), registered like ours. */
static void own_op_case(const own_op *op, fl_dtype d, layout l) {
    if (!case_begin(op->name, d, l, "%s", "")) return;
    operand in[3];
    fl_var *x[3];
    double *numbers[3], scale[64];
    array want = new_array(op->out, d);
    for (int i = 0; i < op->n_in; i++) {
        in[i] = make_operand(op->in[i], d, l, TAME);
        numbers[i] = in[i].a.f;
        x[i] = fv_param(in[i].t);
    }
    op->expect(numbers, want.f);
    for (int64_t i = 0; i < want.n; i++) scale[i] = 1 + fabs(want.f[i]);
    fl_var *y = op->call(x);
    case_end(y && agrees(y->value, &want, (tolerance){4, op->slack, 0}, scale, false));
}

static void own_op_group(int which) {
    const own_op *op = &own_ops[which];
    const unsigned dtypes = op->dtypes ? op->dtypes : FLOATS;
    const tolerance error = {4, op->slack, 0};
    const int64_t n = fl_shape_numel(op->out);
    if (!check(n >= 0 && n <= 64 && op->n_in >= 1 && op->n_in <= 3,
               "own_ops: 1 to 3 operands, 64 numbers")) return;
    expect_row(op->name, dtypes, UNWEAK, 0, 0);
    tell_tolerance(op->name, error, error);
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; takes(dtypes, all_dtypes[k]) && l <= BROADCAST; l++)
            own_op_case(op, all_dtypes[k], (layout)l);
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

/* share [t * batch * c], or NULL: gets the gradient, minus the part of the sum that has class c at t */
static double ctc_by_force(const array *x, int n, int t, const int64_t *target, int64_t length,
                           double *share) {
    int c = (int)x->shape.dim[2], batch = (int)x->shape.dim[1], path[6] = {0}, i = 0;
    double sum = 0;
    while (i < t) {
        double p = 0;
        for (int k = 0; k < t; k++) p += x->f[(k * batch + n) * c + path[k]];
        bool right = collapses(path, t, target, length);
        if (right) sum += exp(p);
        for (int k = 0; right && share && k < t; k++) share[(k * batch + n) * c + path[k]] -= exp(p);
        for (i = 0; i < t && ++path[i] == c; i++) path[i] = 0;
    }
    for (int k = 0; sum > 0 && share && k < t * c; k++)
        share[(k / c * batch + n) * c + k % c] /= sum;
    return -log(sum);
}

/* The losses; under the name ctc_grad the gradient of their sum. */
static void ctc_case(const char *name, fl_dtype d, layout l, int which) {
    if (!case_begin(name, d, l, "%d", which)) return;
    const bool grad = strcmp(name, "ctc_grad") == 0;
    operand x = make_operand(FL_SHAPE(5, 3, 3), d, l, TAME);
    array want = new_array(FL_SHAPE(3), d), share = new_array(FL_SHAPE(5, 3, 3), d);
    int64_t target[9], steps[3], lengths[3];
    for (int i = 0; i < 9; i++) target[i] = 1 + random_below(2);
    for (int i = 0; i < 3; i++) {
        steps[i] = 1 + random_below(5);
        lengths[i] = random_below(4);
        want.f[i] = ctc_by_force(&x.a, i, (int)steps[i], target + 3 * i, lengths[i], share.f);
    }
    fl_var *in = fv_param(x.t);
    fl_var *y = fv_ctc_loss(in, fl_from_host(target, FL_SHAPE(3, 3), FL_I64),
                            fl_from_host(steps, FL_SHAPE(3), FL_I64),
                            fl_from_host(lengths, FL_SHAPE(3), FL_I64), .reduction = FL_NONE);
    double scale[45];
    for (int i = 0; i < 45; i++) scale[i] = 200;
    bool ok = y && (!grad || fl_backward(y, .grad = fl_ones(FL_SHAPE(3), y->value->dtype)));
    case_end(ok && agrees(grad ? fv_grad(in) : y->value, grad ? &share : &want, (tolerance){8, 8, 0},
                          scale, false));
}

/* >>normalisation of images [n, c, rest...]: over groups of channels, or over n and rest */

static void channels_case(fl_dtype d, layout l, fl_shape s, bool batch, int64_t groups) {
    const char *name = batch ? "batch_norm" : "group_norm";
    char text[100];
    if (!case_begin(name, d, l, "%s %d", fl_shape_text(s, text, sizeof text), (int)groups)) return;
    operand x = make_operand(s, d, l, TAME);
    int64_t c = s.dim[1], rest = fl_shape_numel(s) / s.dim[0] / c;
    array w = random_array(FL_SHAPE(c), d, TAME), b = random_array(FL_SHAPE(c), d, TAME);
    array want = new_array(s, d), members = new_array(s, FL_I64);
    double *scale = take((size_t)want.n * 8 + 8), *mean = take(4096), *square = take(4096);
    double *count = take(4096);
    for (int64_t k = 0; k < x.a.n; k++) { /* the set of element k */
        int64_t channel = k / rest % c;
        members.i[k] = batch ? channel : k / rest / c * groups + channel / (c / groups);
        mean[members.i[k]] += x.a.f[k];
        count[members.i[k]]++;
    }
    for (int64_t k = 0; k < x.a.n; k++) {
        int64_t m = members.i[k];
        square[m] += pow(x.a.f[k] - mean[m] / count[m], 2) / count[m];
    }
    for (int64_t k = 0; k < x.a.n; k++) {
        int64_t m = members.i[k], channel = k / rest % c;
        double part = (x.a.f[k] - mean[m] / count[m]) / sqrt(square[m] + 0.1);
        want.f[k] = part * w.f[channel] + b.f[channel];
        scale[k] = 1 + fabs(w.f[channel]) + fabs(b.f[channel]);
    }
    fl_tensor *weight = dense_tensor(&w), *bias = dense_tensor(&b);
    fl_tensor *y = batch ? fl_batch_norm(x.t, weight, bias, .train = true, .eps = 0.1)
                         : fl_group_norm(x.t, groups, weight, bias, 0.1);
    case_end(agrees(y, &want, (tolerance){4, 32, 0}, scale, false));
}

/* Gradients for x, w, b of batch norm, or of group norm, as layer_norm_back; one mean's set at a time. */
static void channels_back(const array *x, int64_t groups, const double *w, const double *dy, array *want,
                          double **scale) {
    int64_t c = x->shape.dim[1], rest = x->n / x->shape.dim[0] / c, size = groups ? c / groups * rest : rest;
    for (int64_t set = 0; set < (groups ? x->n / size : c); set++) {
        const double count = (double)(groups ? size : x->n / c);
        double mean = 0, var = 0, sum = 0, along = 0, sizes = 0;
#define OF_SET(k) for (int64_t k = 0; k < x->n; k++) if ((groups ? k / size : k / rest % c) == set)
        OF_SET(k) mean += x->f[k] / count;
        OF_SET(k) var += pow(x->f[k] - mean, 2) / count;
        double rstd = 1 / sqrt(var + 0.1);
        OF_SET(k) {
            const int64_t channel = k / rest % c;
            double n = (x->f[k] - mean) * rstd, g = dy[k] * w[channel], most = fabs(dy[k]) * (1 + fabs(n));
            sum += g, along += g * n, sizes += most * (1 + fabs(w[channel]));
            want[1].f[channel] += dy[k] * n, want[2].f[channel] += dy[k];
            scale[1][channel] += most, scale[2][channel] += most;
        }
        OF_SET(k) {
            double n = (x->f[k] - mean) * rstd, weight = w[k / rest % c];
            want[0].f[k] = rstd * (dy[k] * weight - (sum + n * along) / count);
            scale[0][k] = (1 + rstd) * (1 + fabs(n)) *
                          (fabs(dy[k]) * (1 + fabs(weight)) + sizes * (1 + fabs(n)) / count);
        }
#undef OF_SET
    }
}

static void channels_grad_case(fl_dtype d, layout l, fl_shape s, int64_t groups) {
    char text[100];
    const char *name = groups ? "group_norm_grad" : "batch_norm_grad";
    if (!case_begin(name, d, l, "%s %d", fl_shape_text(s, text, sizeof text), (int)groups)) return;
    operand x = make_operand(s, d, l, TAME), dy = make_operand(s, d, l, TAME);
    array w = random_array(FL_SHAPE(s.dim[1]), d, TAME), want[3];
    double *scale[3];
    for (int i = 0; i < 3; i++) {
        want[i] = new_array(i ? FL_SHAPE(s.dim[1]) : s, d);
        scale[i] = take((size_t)want[i].n * sizeof **scale + 8);
    }
    channels_back(&x.a, groups, w.f, dy.a.f, want, scale);
    fl_tensor *weight = dense_tensor(&w);
    fl_var *in[] = {fv_param(x.t), fv_param(weight), fv_param(fl_zeros_like(weight))};
    fl_var *y = groups ? fv_group_norm(in[0], groups, in[1], in[2], 0.1)
                       : fv_batch_norm(in[0], in[1], in[2], .train = true, .eps = 0.1);
    bool ok = y && fl_backward(y, .grad = dy.t);
    for (int i = 0; ok && i < 3; i++)
        ok = agrees(fv_grad(in[i]), &want[i], (tolerance){4, 32, 0}, scale[i], false);
    case_end(ok);
}

/* batch_statistics, as running statistics that they replace: mean, and var n / (n - 1) */
static void statistics_case(fl_dtype d, layout l, fl_shape s) {
    char text[100];
    if (!case_begin("batch_statistics", d, l, "%s", fl_shape_text(s, text, sizeof text))) return;
    operand x = make_operand(s, d, l, TAME);
    const int64_t c = s.dim[1], count = x.a.n / c, rest = count / s.dim[0];
    fl_tensor *got[2];
    array want[2];
    double *scale[2];
    for (int i = 0; i < 2; i++) {
        got[i] = fl_zeros(FL_SHAPE(c), fl_dtype_wide(d));
        want[i] = new_array(FL_SHAPE(c), fl_dtype_wide(d));
        scale[i] = take((size_t)c * sizeof **scale);
        for (int64_t k = 0; k < x.a.n; k++) {
            const int64_t at = k / rest % c;
            const double one = x.a.f[k], off = one - want[0].f[at];
            want[i].f[at] += i ? off * off / (count - 1) : one / count;
            scale[i][at] += i ? (off * off + fabs(off * one) + one * one * 0x1p-24) / (count - 1)
                              : fabs(one) / count; /* 2^-24: off has the mean's rounding */
        }
    }
    bool ok = fl_batch_norm(x.t, NULL, NULL, .train = true, .momentum = 1, .mean = got[0], .var = got[1]);
    for (int i = 0; ok && i < 2; i++) ok = agrees(got[i], &want[i], (tolerance){4, 32, 0}, scale[i], false);
    case_end(ok);
}

/* >>cross_entropy of rows x [n, c]: the loss, or with dy [n] the gradient of the logits */

static void cross_entropy_row(const double *x, int64_t c, int64_t target, double smoothing,
                              double dy, double *loss, double *dx) {
    double largest = -INFINITY, sum = 0, mean = 0;
    for (int64_t i = 0; i < c; i++) largest = fmax(largest, x[i]);
    for (int64_t i = 0; i < c; i++) sum += exp(x[i] - largest), mean += x[i] / (double)c;
    double all = largest + log(sum);
    *loss = (1 - smoothing) * (all - x[target]) + smoothing * (all - mean);
    for (int64_t i = 0; i < c; i++)
        dx[i] = dy * (exp(x[i] - all) - (1 - smoothing) * (i == target) - smoothing / (double)c);
}

static void cross_entropy_case(fl_dtype d, layout l, fl_shape s, double smoothing, bool grad) {
    char text[100];
    if (!case_begin(grad ? "cross_entropy_grad" : "cross_entropy", d, l, "%s smoothing %g",
                    fl_shape_text(s, text, sizeof text), smoothing))
        return;
    int64_t n = s.dim[0], c = s.dim[1], target[32] = {0};
    operand x = make_operand(s, d, l, TAME);
    array dy = random_array(FL_SHAPE(n), d, TAME), loss = new_array(FL_SHAPE(n), d);
    array dx = new_array(s, d);
    double *scale = take((size_t)dx.n * sizeof *scale + 8), *size = take((size_t)n * 8 + 8);
    for (int64_t r = 0; r < n; r++) {
        const double *row = x.a.f + r * c;
        target[r] = random_below((int)c);
        if (r == 1) target[r] = -100; /* ignored: zeros */
        else cross_entropy_row(row, c, target[r], smoothing, dy.f[r], loss.f + r, dx.f + r * c);
        size[r] = 8;
        for (int64_t i = 0; i < c; i++) size[r] += fabs(row[i]);
        for (int64_t i = 0; i < c; i++) scale[r * c + i] = fabs(dy.f[r]) * size[r];
    }
    fl_tensor *to = fl_from_host(target, FL_SHAPE(n), FL_I64);
    fl_var *in = fv_param(x.t);
    fl_var *y = fv_cross_entropy(in, to, .smoothing = smoothing, .reduction = FL_NONE);
    bool ok = y != NULL;
    if (ok && grad) ok = fl_backward(y, .grad = dense_tensor(&dy));
    case_end(ok && (grad ? agrees(fv_grad(in), &dx, (tolerance){4, 8, 0}, scale, false)
                         : agrees(y->value, &loss, (tolerance){4, 8, 0}, size, false)));
}

static void cross_entropy_group(void) {
    static const fl_shape rows[] = {{2, {3, 5}}, {2, {17, 33}}, {2, {1, 1}}, {2, {2, 130}}};
    for (int grad = 0; grad < 2; grad++) {
        const char *name = grad ? "cross_entropy_grad" : "cross_entropy";
        expect_row(name, FLOATS, UNWEAK & ~(1u << CHANNELS_LAST), 0, 0); /* rows are 2-d */
        snprintf(row_of(name)->tolerance, 64, "4 ulp + 8 eps of sum |x|");
    }
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; takes(FLOATS, all_dtypes[k]) && l <= BROADCAST; l++)
            for (int i = 0; i < 8; i++) {
                if (!layout_fits((layout)l, rows[i % 4])) continue;
                for (int grad = 0; grad < 2; grad++)
                    cross_entropy_case(all_dtypes[k], (layout)l, rows[i % 4], i < 4 ? 0 : 0.1,
                                       grad);
            }
}

/* >>cells: x [n, in], h [n, hidden] */

/* Gate row g of one of the two products, with its bias. */
static double gate_part(const array *x, int64_t n, const array *w, const array *b, int64_t g) {
    int64_t in = x->shape.dim[1];
    double sum = b->f[g];
    for (int64_t i = 0; i < in; i++) sum += w->f[g * in + i] * x->f[n * in + i];
    return sum;
}

static double logistic(double x) { return 1 / (1 + exp(-x)); }

static void cell_case(fl_dtype d, layout l, bool lstm) {
    enum { N = 3, IN = 4, HIDDEN = 5 };
    if (!case_begin(lstm ? "lstm_cell" : "gru_cell", d, l, "[%d, %d]", N, IN)) return;
    int64_t gates = lstm ? 4 : 3;
    operand x = make_operand(FL_SHAPE(N, IN), d, l, TAME);
    operand h = make_operand(FL_SHAPE(N, HIDDEN), d, l, TAME);
    array c = random_array(FL_SHAPE(N, HIDDEN), d, TAME), w[4];
    for (int i = 0; i < 4; i++)
        w[i] = random_array(i < 2 ? FL_SHAPE(gates * HIDDEN, i ? HIDDEN : IN)
                                  : FL_SHAPE(gates * HIDDEN), d, TAME);
    array want = new_array(FL_SHAPE(N, HIDDEN), d), next = new_array(want.shape, d);
    double scale[N * HIDDEN];
    for (int64_t k = 0; k < want.n; k++) {
        double a[4] = {0}, b[4] = {0};
        for (int64_t g = 0; g < gates; g++) {
            a[g] = gate_part(&x.a, k / HIDDEN, &w[0], &w[2], g * HIDDEN + k % HIDDEN);
            b[g] = gate_part(&h.a, k / HIDDEN, &w[1], &w[3], g * HIDDEN + k % HIDDEN);
        }
        double first = logistic(a[0] + b[0]), second = logistic(a[1] + b[1]);
        next.f[k] = second * c.f[k] + first * tanh(a[2] + b[2]);
        if (lstm) want.f[k] = logistic(a[3] + b[3]) * tanh(next.f[k]);
        else want.f[k] = (1 - second) * tanh(a[2] + first * b[2]) + second * h.a.f[k];
        scale[k] = 64; /* the products' sizes */
    }
    fl_tensor *wt[4], *cell = NULL, *y;
    for (int i = 0; i < 4; i++) wt[i] = dense_tensor(&w[i]);
    if (lstm) y = fl_lstm_cell(x.t, h.t, dense_tensor(&c), wt, &cell);
    else y = fl_gru_cell(x.t, h.t, wt);
    tolerance tol = {4, 2, 0};
    bool ok = agrees(y, &want, tol, scale, false);
    case_end(ok && (!lstm || agrees(cell, &next, tol, scale, false)));
}

/* >>embeddings */

static void embedding_case(fl_dtype d, layout l, bool bag, bool mean) {
    if (!case_begin(bag ? "embedding_bag" : "embedding", d, l, "%d", mean)) return;
    operand w = make_operand(FL_SHAPE(7, 3), d, l, TAME);
    int64_t at[8];
    for (int i = 0; i < 8; i++) at[i] = random_below(7);
    array want = new_array(bag ? FL_SHAPE(2, 3) : FL_SHAPE(2, 4, 3), d);
    for (int64_t k = 0; k < 24; k++) {
        double v = w.a.f[at[k / 3] * 3 + k % 3];
        want.f[bag ? k / 12 * 3 + k % 3 : k] += mean ? v / 4 : v;
    }
    double scale[24];
    for (int i = 0; i < 24; i++) scale[i] = 8;
    fl_tensor *index = fl_from_host(at, FL_SHAPE(2, 4), FL_I64);
    fl_tensor *y = bag ? fl_embedding_bag(index, w.t, mean) : fl_embedding(index, w.t, -1);
    case_end(agrees(y, &want, bag ? (tolerance){1, 2, 0} : EXACT, scale, false));
}

/* Of 200 rows of a table of 30, most of which are read several times: halves are summed in f32. */
static void embedding_grad_case(fl_dtype d, layout l, int64_t width) {
    if (!case_begin("embedding_grad", d, l, "%d", (int)width)) return;
    operand dy = make_operand(FL_SHAPE(200, width), d, l, TAME);
    fl_var *w = fv_param(fl_zeros(FL_SHAPE(30, width), d));
    int64_t at[200];
    for (int i = 0; i < 200; i++) at[i] = random_below(29);
    array want = new_array(FL_SHAPE(30, width), d);
    double *scale = take((size_t)want.n * 8);
    for (int64_t k = 0; k < 200 * width; k++) {
        const int64_t to = at[k / width] * width + k % width;
        want.f[to] += dy.a.f[k], scale[to] += fabs(dy.a.f[k]);
    }
    fl_var *y = fv_embedding(fl_from_host(at, FL_SHAPE(200), FL_I64), w, -1);
    case_end(fl_backward(y, .grad = dy.t) &&
             agrees(fv_grad(w), &want, (tolerance){1, rounding(l, 200), 0}, scale, false));
}

/* >>losses of two operands, element by element */

static double r_mse(double x, double y) { return (x - y) * (x - y); }
static double r_l1(double x, double y) { return fabs(x - y); }
static double r_huber(double x, double y) {
    double d = fabs(x - y);
    return d < 0.7 ? d * d / 2 : 0.7 * (d - 0.35);
}
static double r_smooth(double x, double y) { return r_huber(x, y) / 0.7; }
static double r_bce(double x, double y) { return -y * log(x) - (1 - y) * log1p(-x); }
static double r_bce_logits(double x, double y) {
    return y * log1p(exp(-x)) + (1 - y) * log1p(exp(x));
}
static double r_kl(double x, double y) { return y * (log(y) - x); }
static double r_poisson(double x, double y) { return exp(x) - y * x; }
static double r_soft_margin(double x, double y) { return log1p(exp(-y * x)); }
static double r_hinge(double x, double y) { return y > 0 ? x : fmax(0, 1 - x); }

static fl_tensor *l_huber(fl_tensor *x, fl_tensor *y, fl_reduction r) {
    return fl_huber_loss(x, y, 0.7, r);
}
static fl_tensor *l_smooth(fl_tensor *x, fl_tensor *y, fl_reduction r) {
    return fl_smooth_l1_loss(x, y, 0.7, r);
}
static fl_tensor *l_kl(fl_tensor *x, fl_tensor *y, fl_reduction r) {
    return fl_kl_div(x, y, r);
}
static fl_tensor *l_poisson(fl_tensor *x, fl_tensor *y, fl_reduction r) {
    return fl_poisson_nll_loss(x, y, true, r);
}
static fl_tensor *l_hinge(fl_tensor *x, fl_tensor *y, fl_reduction r) {
    return fl_hinge_embedding_loss(x, y, 1, r);
}

static fl_tensor *l_bce(fl_tensor *x, fl_tensor *y, fl_reduction r) {
    return fl_binary_cross_entropy(x, y, r);
}
static fl_tensor *l_bce_logits(fl_tensor *x, fl_tensor *y, fl_reduction r) {
    return fl_binary_cross_entropy_with_logits(x, y, r);
}

/* The part of y three times, and half of all. */
static double r_bce_weighted(double x, double y) {
    return -(3 * y * fmax(log(x), -100) + (1 - y) * fmax(log(1 - x), -100)) / 2;
}
static double r_bce_logits_weighted(double x, double y) {
    return (3 * y * log1p(exp(-x)) + (1 - y) * log1p(exp(x))) / 2;
}
static fl_tensor *l_bce_weighted(fl_tensor *x, fl_tensor *y, fl_reduction r) {
    fl_tensor *half = fl_full(FL_SHAPE(1), 0.5, FL_F32), *three = fl_full(FL_SHAPE(1), 3, FL_F64);
    return fl_binary_cross_entropy(x, y, r, .weight = half, .pos_weight = three);
}
static fl_tensor *l_bce_logits_weighted(fl_tensor *x, fl_tensor *y, fl_reduction r) {
    fl_tensor *half = fl_full_like(x, 0.5), *three = fl_full(FL_SCALAR_SHAPE, 3, FL_F32);
    return fl_binary_cross_entropy_with_logits(x, y, r, .weight = half, .pos_weight = three);
}

/* Operands: r any, p in (0, 1), s 1 or -1. */
static const struct {
    const char *name;
    double (*f)(double, double);
    fl_tensor *(*run)(fl_tensor *, fl_tensor *, fl_reduction);
    char x, y;
} loss_refs[] = {
    {"mse_loss", r_mse, fl_mse_loss, 'r', 'r'},
    {"l1_loss", r_l1, fl_l1_loss, 'r', 'r'},
    {"huber_loss", r_huber, l_huber, 'r', 'r'},
    {"smooth_l1_loss", r_smooth, l_smooth, 'r', 'r'},
    {"bce", r_bce, l_bce, 'p', 'p'},
    {"bce_with_logits", r_bce_logits, l_bce_logits, 'r', 'p'},
    {"bce weighted", r_bce_weighted, l_bce_weighted, 'p', 'p'},
    {"bce_logits weighted", r_bce_logits_weighted, l_bce_logits_weighted, 'r', 'p'},
    {"kl_div", r_kl, l_kl, 'r', 'p'},
    {"poisson_nll_loss", r_poisson, l_poisson, 'r', 'p'},
    {"soft_margin_loss", r_soft_margin, fl_soft_margin_loss, 'r', 's'},
    {"hinge_embedding_loss", r_hinge, l_hinge, 'r', 's'},
};
enum { LOSSES = sizeof loss_refs / sizeof *loss_refs };

static array loss_operand(fl_shape s, fl_dtype d, char kind) {
    array a = random_array(s, d, TAME);
    for (int64_t k = 0; k < a.n && kind != 'r'; k++)
        a.f[k] = kind == 's' ? (a.f[k] < 0 ? -1 : 1) : rounded(0.06 + 0.4 * fabs(a.f[k]), d);
    return a;
}

static void loss_case(int which, fl_dtype d, layout l, fl_shape s) {
    char text[100];
    if (!case_begin(loss_refs[which].name, d, l, "%s", fl_shape_text(s, text, sizeof text))) return;
    array x = loss_operand(s, d, loss_refs[which].x), y = loss_operand(s, d, loss_refs[which].y);
    array want = new_array(s, d), mean = new_array(FL_SCALAR_SHAPE, d);
    double *scale = take((size_t)want.n * 8 + 8), size = 0;
    for (int64_t k = 0; k < want.n; k++) {
        want.f[k] = loss_refs[which].f(x.f[k], y.f[k]);
        mean.f[0] += want.f[k] / (double)want.n;
        size += (scale[k] = 8) / (double)want.n;
    }
    fl_tensor *a = lay_out(&x, l), *b = lay_out(&y, l);
    tolerance tol = {4, 4, 0};
    bool ok = agrees(loss_refs[which].run(a, b, FL_NONE), &want, tol, scale, false);
    case_end(ok && agrees(loss_refs[which].run(a, b, FL_MEAN), &mean, tol, &size, false));
}

static void layers_group(void) {
    static const char *const names[] = {"batch_norm", "group_norm",    "lstm_cell",
                                        "gru_cell",   "embedding_bag", "embedding"};
    static const fl_shape images[] = {{3, {2, 4, 3}}, {4, {2, 6, 3, 2}}, {5, {3, 2, 2, 1, 2}}};
    static const fl_shape of_losses[] = {{1, {17}}, {2, {3, 5}}, {3, {2, 3, 4}}};
    for (int i = 0; i < 3; i++) {
        const char *name = i == 2 ? "batch_statistics" : i ? "group_norm_grad" : "batch_norm_grad";
        expect_row(name, FLOATS, UNWEAK, 0, 0);
        snprintf(row_of(name)->tolerance, 64, "4 ulp + 32 eps of sum |terms|");
    }
    expect_row("embedding_grad", FLOATS, UNWEAK & ~(1u << CHANNELS_LAST), 0, 0);
    snprintf(row_of("embedding_grad")->tolerance, 64, "1 ulp + 18 eps of sum |dy|");
    for (int i = 0; i < 6 + LOSSES; i++) {
        const char *name = i < 6 ? names[i] : loss_refs[i - 6].name;
        bool flat = i > 1 && i < 6;
        expect_row(name, FLOATS, flat ? UNWEAK & ~(1u << CHANNELS_LAST) : i < 2 ? UNWEAK : STRIDED,
                   0, 0);
        snprintf(row_of(name)->tolerance, 64, "%s", i < 2    ? "4 ulp + 32 eps |w|"
                                                    : i < 4  ? "4 ulp + 128 eps"
                                                    : i == 4 ? "1 ulp + 16 eps"
                                                    : i == 5 ? "exact"
                                                             : "4 ulp + 32 eps");
    }
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; l <= BROADCAST && is_float(all_dtypes[k]); l++) {
            fl_dtype d = all_dtypes[k];
            for (int i = 0; i < 3; i++) {
                channels_case(d, (layout)l, images[i], true, 0);
                channels_grad_case(d, (layout)l, images[i], 0);
                statistics_case(d, (layout)l, images[i]);
                channels_case(d, (layout)l, images[i], false, 2);
                channels_grad_case(d, (layout)l, images[i], 2);
                for (int n = 0; n < LOSSES && l < BROADCAST; n++)
                    if (layout_fits((layout)l, of_losses[i]))
                        loss_case(n, d, (layout)l, of_losses[i]);
            }
            if (l == CHANNELS_LAST) continue;
            for (int i = 0; i < 3; i++) embedding_grad_case(d, (layout)l, i == 0 ? 9 : i == 1 ? 3 : 70);
            for (int i = 0; i < 4; i++) {
                cell_case(d, (layout)l, i & 1);
                embedding_case(d, (layout)l, i & 1, i == 3);
            }
        }
}

static void nets_group(void) {
    static const char *const names[] = {"ctc_loss", "ctc", "ctc_grad", "attention",
                                        "attention_grad", "glu", "glu_grad"};
    for (int i = 0; i < 7; i++) {
        expect_row(names[i], FLOATS, UNWEAK, 0, 0);
        snprintf(row_of(names[i])->tolerance, 64, i < 3 ? "8 ulp + 1600 eps" : "4 ulp + 64 eps");
    }
    for (int k = 0; k < DTYPES; k++) {
        fl_dtype d = all_dtypes[k];
        if (!takes(FLOATS, d)) continue;
        for (int l = DENSE; l <= BROADCAST; l++) {
            for (int i = 0; i < ATTENTION_KINDS; i++) {
                attention_case(d, (layout)l, &attention_kinds[i]);
                attention_grad_case(d, (layout)l, &attention_kinds[i]);
            }
            for (int i = 0; i < 2; i++) glu_case(d, (layout)l, i);
            for (int i = 0; i < 36; i++) ctc_case(names[i % 3], d, (layout)l, i);
        }
    }
}

#endif /* MIT licence: see LICENSE. */
