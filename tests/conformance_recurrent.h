/* conformance_recurrent.h - layers of recurrence against loops in f64, and their gradient against the
   same loops backwards */
#ifndef CONFORMANCE_RECURRENT_H
#define CONFORMANCE_RECURRENT_H

#include "../fl_nn.h"
#include "conformance.h"
#include "conformance_nets.h"

typedef struct rnn_kind {
    fl_rnn_mode mode;
    int ways;
    bool projected, lengths, states, batch_first, biased;
} rnn_kind;
static const rnn_kind rnn_kinds[] = {
    {FL_RNN_TANH, 1, false, false, true, false, true}, {FL_RNN_TANH, 2, false, true, false, true, false},
    {FL_RNN_RELU, 1, false, true, true, true, false},  {FL_RNN_RELU, 2, false, false, false, false, true},
    {FL_GRU, 1, false, false, false, true, true},      {FL_GRU, 2, false, true, true, false, true},
    {FL_GRU, 1, false, true, true, true, false},       {FL_LSTM, 1, false, false, false, false, false},
    {FL_LSTM, 2, false, true, true, true, true},       {FL_LSTM, 1, true, false, true, false, true},
    {FL_LSTM, 2, true, true, true, false, false},      {FL_LSTM, 2, true, true, false, true, true}};
enum {
    RNN_KINDS = sizeof rnn_kinds / sizeof *rnn_kinds,
    RNN_T = 4, RNN_N = 3, RNN_IN = 3, RNN_HIDDEN = 4, RNN_GATES = 4 * RNN_HIDDEN
};

/* A layer: values, and of the same shapes gradients. Weights as fl_rnn's, five of each direction. */
typedef struct rnn_values {
    array x, y, h0, c0, h, c, w[10];
} rnn_values;
typedef struct rnn_net {
    const rnn_kind *kind;
    int64_t gates, out, length[RNN_N];
    rnn_values v, d;
} rnn_net;
/* What a step leaves for its gradient: gates, h W_hn^T + b_hn of a GRU, states before and c, o tanh(c). */
typedef struct rnn_moment {
    double gate[RNN_GATES], h_n[RNN_HIDDEN], h[RNN_HIDDEN], c[RNN_HIDDEN], next[RNN_HIDDEN],
        whole[RNN_HIDDEN];
} rnn_moment;

static int64_t rnn_row(const rnn_net *r, int64_t t, int64_t n) {
    return r->kind->batch_first ? n * RNN_T + t : t * RNN_N + n;
}

/* One step: h and c become the next ones. */
static void rnn_forward_step(const rnn_net *r, const array *w, const double *x, double *h, double *c,
                             rnn_moment *m) {
    const fl_rnn_mode mode = r->kind->mode;
    for (int64_t i = 0; i < r->out; i++) m->h[i] = h[i];
    for (int64_t i = 0; i < RNN_HIDDEN; i++) m->c[i] = c[i];
    for (int64_t g = 0; g < r->gates * RNN_HIDDEN; g++) {
        double a = r->kind->biased ? w[2].f[g] : 0, b = r->kind->biased ? w[3].f[g] : 0;
        const int64_t unit = g % RNN_HIDDEN, gate = g / RNN_HIDDEN;
        for (int64_t i = 0; i < RNN_IN; i++) a += w[0].f[g * RNN_IN + i] * x[i];
        for (int64_t i = 0; i < r->out; i++) b += w[1].f[g * r->out + i] * m->h[i];
        if (mode == FL_GRU && gate == 2) m->h_n[unit] = b, b *= m->gate[unit];
        const bool squashed = mode == FL_RNN_TANH || (mode >= FL_GRU && gate == 2);
        m->gate[g] = squashed ? tanh(a + b) : mode == FL_RNN_RELU ? fmax(a + b, 0) : logistic(a + b);
    }
    for (int64_t k = 0; k < RNN_HIDDEN; k++) {
        const double *g = m->gate + k;
        if (mode == FL_LSTM) c[k] = g[RNN_HIDDEN] * c[k] + g[0] * g[2 * RNN_HIDDEN];
        m->next[k] = c[k];
        m->whole[k] = mode == FL_LSTM  ? g[3 * RNN_HIDDEN] * tanh(c[k])
                      : mode == FL_GRU ? g[2 * RNN_HIDDEN] +
                                             g[RNN_HIDDEN] * (m->h[k] - g[2 * RNN_HIDDEN])
                                       : g[0];
    }
    for (int64_t i = 0; i < r->out; i++) {
        h[i] = r->kind->projected ? 0 : m->whole[i];
        for (int64_t k = 0; r->kind->projected && k < RNN_HIDDEN; k++)
            h[i] += w[4].f[i * RNN_HIDDEN + k] * m->whole[k];
    }
}

/* The same backwards: dh and dc, of the next states, become those of the states before. */
static void rnn_back_step(const rnn_net *r, const array *w, array *dw, const double *x, const rnn_moment *m,
                          double *dx, double *dh, double *dc) {
    enum { H = RNN_HIDDEN };
    const fl_rnn_mode mode = r->kind->mode;
    double of_x[RNN_GATES] = {0}, of_h[RNN_GATES] = {0}, before[H] = {0}; /* of sums before the gates */
    for (int64_t k = 0; k < H; k++) {
        const double *g = m->gate + k;
        double d = r->kind->projected ? 0 : dh[k];
        for (int64_t i = 0; r->kind->projected && i < r->out; i++) {
            d += w[4].f[i * H + k] * dh[i];
            dw[4].f[i * H + k] += m->whole[k] * dh[i];
        }
        if (mode == FL_RNN_TANH) of_x[k] = d * (1 - g[0] * g[0]);
        if (mode == FL_RNN_RELU) of_x[k] = g[0] > 0 ? d : 0;
        if (mode == FL_GRU) {
            of_x[2 * H + k] = d * (1 - g[H]) * (1 - g[2 * H] * g[2 * H]);
            of_x[H + k] = d * (m->h[k] - g[2 * H]) * g[H] * (1 - g[H]);
            of_x[k] = of_x[2 * H + k] * m->h_n[k] * g[0] * (1 - g[0]);
            before[k] = d * g[H];
        }
        if (mode == FL_LSTM) {
            const double top = tanh(m->next[k]), cell = dc[k] + d * g[3 * H] * (1 - top * top);
            of_x[k] = cell * g[2 * H] * g[0] * (1 - g[0]);
            of_x[H + k] = cell * m->c[k] * g[H] * (1 - g[H]);
            of_x[2 * H + k] = cell * g[0] * (1 - g[2 * H] * g[2 * H]);
            of_x[3 * H + k] = d * top * g[3 * H] * (1 - g[3 * H]);
            dc[k] = cell * g[H];
        }
    }
    for (int64_t g = 0; g < r->gates * H; g++) {
        of_h[g] = mode == FL_GRU && g >= 2 * H ? of_x[g] * m->gate[g - 2 * H] : of_x[g];
        for (int64_t i = 0; i < RNN_IN; i++) {
            dx[i] += of_x[g] * w[0].f[g * RNN_IN + i];
            dw[0].f[g * RNN_IN + i] += of_x[g] * x[i];
        }
        for (int64_t i = 0; i < r->out; i++) {
            before[i] += of_h[g] * w[1].f[g * r->out + i];
            dw[1].f[g * r->out + i] += of_h[g] * m->h[i];
        }
        if (r->kind->biased) dw[2].f[g] += of_x[g], dw[3].f[g] += of_h[g];
    }
    for (int64_t i = 0; i < r->out; i++) dh[i] = before[i];
}

/* A sequence in one direction, forward into v, then backward from the y, h and c of d. */
static void rnn_sequence(rnn_net *r, int way, int64_t n) {
    rnn_values *v = &r->v, *d = &r->d;
    const int64_t steps = r->length[n], wide = r->kind->ways * r->out, own = way * RNN_N + n,
                  at = own * r->out, cell = own * RNN_HIDDEN;
    rnn_moment m[RNN_T] = {{{0}, {0}, {0}, {0}, {0}, {0}}};
    double h[RNN_HIDDEN] = {0}, c[RNN_HIDDEN] = {0}, dh[RNN_HIDDEN] = {0}, dc[RNN_HIDDEN] = {0};
    for (int64_t i = 0; i < r->out; i++) h[i] = v->h0.f[at + i], dh[i] = d->h.f[at + i];
    for (int64_t i = 0; i < RNN_HIDDEN; i++) c[i] = v->c0.f[cell + i], dc[i] = d->c.f[cell + i];
    for (int64_t k = 0; k < steps; k++) {
        const int64_t row = rnn_row(r, way ? steps - 1 - k : k, n);
        rnn_forward_step(r, v->w + 5 * way, v->x.f + row * RNN_IN, h, c, &m[k]);
        for (int64_t i = 0; i < r->out; i++) v->y.f[row * wide + way * r->out + i] = h[i];
    }
    for (int64_t i = 0; i < r->out; i++) v->h.f[at + i] = h[i];
    for (int64_t i = 0; i < RNN_HIDDEN; i++) v->c.f[cell + i] = c[i];
    for (int64_t k = steps - 1; k >= 0; k--) {
        const int64_t row = rnn_row(r, way ? steps - 1 - k : k, n);
        for (int64_t i = 0; i < r->out; i++) dh[i] += d->y.f[row * wide + way * r->out + i];
        rnn_back_step(r, v->w + 5 * way, d->w + 5 * way, v->x.f + row * RNN_IN, &m[k],
                      d->x.f + row * RNN_IN, dh, dc);
    }
    for (int64_t i = 0; i < r->out; i++) d->h0.f[at + i] = dh[i];
    for (int64_t i = 0; i < RNN_HIDDEN; i++) d->c0.f[cell + i] = dc[i];
}

/* Zeros of v's shapes; y, h and c of the gradients are random. */
static void rnn_make(rnn_net *r, fl_dtype d) {
    const rnn_kind *k = r->kind;
    const int64_t rows = r->gates * RNN_HIDDEN;
    const fl_shape parts[] = {FL_SHAPE(rows, RNN_IN), FL_SHAPE(rows, r->out), FL_SHAPE(rows), FL_SHAPE(rows),
                              FL_SHAPE(r->out, RNN_HIDDEN)};
    const fl_shape y = k->batch_first ? FL_SHAPE(RNN_N, RNN_T, k->ways * r->out)
                                      : FL_SHAPE(RNN_T, RNN_N, k->ways * r->out);
    const fl_shape h = FL_SHAPE(k->ways, RNN_N, r->out), c = FL_SHAPE(k->ways, RNN_N, RNN_HIDDEN);
    r->v.y = new_array(y, d), r->v.h = new_array(h, d), r->v.c = new_array(c, d);
    r->v.h0 = k->states ? random_array(h, d, TAME) : new_array(h, d);
    r->v.c0 = k->states && k->mode == FL_LSTM ? random_array(c, d, TAME) : new_array(c, d);
    r->d.x = new_array(r->v.x.shape, d), r->d.h0 = new_array(h, d), r->d.c0 = new_array(c, d);
    r->d.y = random_array(y, d, TAME), r->d.h = random_array(h, d, TAME);
    r->d.c = k->mode == FL_LSTM ? random_array(c, d, TAME) : new_array(c, d);
    for (int i = 0; i < 5 * k->ways; i++) {
        r->v.w[i] = random_array(parts[i % 5], d, TAME), r->d.w[i] = new_array(parts[i % 5], d);
        for (int64_t e = 0; e < r->v.w[i].n; e++) put_float(&r->v.w[i], e, r->v.w[i].f[e] / 4);
    }
    for (int64_t n = 0; n < RNN_N; n++) r->length[n] = k->lengths ? 1 + random_below(RNN_T) : RNN_T;
}

static void rnn_case(fl_dtype d, layout l, const rnn_kind *k, bool grad) {
    if (!case_begin(grad ? "rnn_grad" : "rnn", d, l, "mode %d, %d ways%s%s%s%s%s", k->mode, k->ways,
                    k->projected ? ", projected" : "", k->lengths ? ", lengths" : "",
                    k->states ? ", states" : "", k->batch_first ? ", batch first" : "",
                    k->biased ? ", biased" : ""))
        return;
    static const int64_t gates[] = {1, 1, 3, 4};
    const bool lstm = k->mode == FL_LSTM;
    operand x = make_operand(k->batch_first ? FL_SHAPE(RNN_N, RNN_T, RNN_IN) : FL_SHAPE(RNN_T, RNN_N, RNN_IN),
                             d, l, TAME);
    rnn_net r = {.kind = k, .gates = gates[k->mode], .out = k->projected ? 2 : RNN_HIDDEN, .v.x = x.a};
    rnn_make(&r, d);
    for (int way = 0; way < k->ways; way++)
        for (int64_t n = 0; n < RNN_N; n++) rnn_sequence(&r, way, n);
    fl_var *in = fv_param(x.t), *h = NULL, *c = NULL, *w[10] = {NULL};
    fl_var *h0 = k->states ? fv_param(lay_out(&r.v.h0, l)) : NULL;
    fl_var *c0 = k->states && lstm ? fv_param(lay_out(&r.v.c0, l)) : NULL;
    for (int i = 0, n = 0; i < 5 * k->ways; i++)
        if (i % 5 < 4 || k->projected) {
            const bool there = k->biased || (i % 5 != 2 && i % 5 != 3);
            w[n++] = there ? fv_param(lay_out(&r.v.w[i], l)) : NULL;
        }
    fl_tensor *lengths = k->lengths ? fl_from_host(r.length, FL_SHAPE(RNN_N), FL_I64) : NULL;
    fl_var *y = fv_rnn(k->mode, in, w, .h0 = h0, .c0 = c0, .bidirectional = k->ways == 2,
                       .batch_first = k->batch_first, .projected = k->projected, .lengths = lengths,
                       .h_out = &h, .c_out = &c);
    const tolerance tol = {4, 8, 0};
    double scale[256];
    for (int i = 0; i < 256; i++) scale[i] = grad ? 64 : 8; /* the sums' sizes */
    bool ok = y && h && !c == !lstm;
    if (ok && !grad)
        ok = agrees(y->value, &r.v.y, tol, scale, false) && agrees(h->value, &r.v.h, tol, scale, false) &&
             (!c || agrees(c->value, &r.v.c, tol, scale, false));
    if (!ok || !grad) {
        case_end(ok);
        return;
    }
    fl_var *root = fv_add(fv_sum(fv_mul(y, fv_const(dense_tensor(&r.d.y))), FL_ALL_AXES),
                          fv_sum(fv_mul(h, fv_const(dense_tensor(&r.d.h))), FL_ALL_AXES));
    if (c) root = fv_add(root, fv_sum(fv_mul(c, fv_const(dense_tensor(&r.d.c))), FL_ALL_AXES));
    ok = fl_backward(root) && agrees(fv_grad(in), &r.d.x, tol, scale, false) &&
         (!h0 || agrees(fv_grad(h0), &r.d.h0, tol, scale, false)) &&
         (!c0 || agrees(fv_grad(c0), &r.d.c0, tol, scale, false));
    for (int i = 0, n = 0; ok && i < 5 * k->ways; i++)
        if (i % 5 < 4 || k->projected) {
            ok = !w[n] || agrees(fv_grad(w[n]), &r.d.w[i], tol, scale, false);
            n++;
        }
    case_end(ok);
}

static void recurrent_group(int grad) {
    const char *name = grad ? "rnn_grad" : "rnn";
    expect_row(name, FLOATS, UNWEAK, 0, 0);
    snprintf(row_of(name)->tolerance, 64, "4 ulp + %d eps", grad ? 512 : 64);
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; takes(FLOATS, all_dtypes[k]) && l <= BROADCAST; l++)
            for (int i = 0; i < RNN_KINDS; i++)
                rnn_case(all_dtypes[k], (layout)l, &rnn_kinds[i], grad == 1);
}

#endif /* MIT licence: see LICENSE. */
