/* examples/research/lattice_cost.h - ns and bytes of a lattice's node, and gradients beside those by hand

   A lattice of frames x states, each state from itself and the two before it, with new memory and with that
   of the step before; one of fl's own scalar ops; and a forward-backward algorithm by hand, in f64. */
#ifndef RESEARCH_LATTICE_COST_H
#define RESEARCH_LATTICE_COST_H
#include "lattice.h"
#include <stdio.h>

/* Each state from itself and the two before it; paths begin in state 0 and end in the last three. */
static inline states chain_states(int n) {
    states g = {.n = n, .n_labels = n};
    g.label = fl_heap_alloc((size_t)(n * 8 + 10) * sizeof *g.label);
    g.first = g.label + n, g.from = g.first + n + 2, g.weight = g.from + 3 * n + 4;
    g.first[0] = 0;
    int k = 0;
    for (int s = 0; s < n; s++) {
        g.label[s] = s;
        if (!s) g.from[k] = -1, g.weight[k++] = 0;
        for (int back = 0; back < 3 && back <= s; back++) g.from[k] = s - back, g.weight[k++] = 1 + back;
        g.first[s + 1] = k;
    }
    for (int s = n - 3; s < n; s++) g.from[k] = s, g.weight[k++] = 0;
    g.first[n + 1] = k;
    return g;
}

/* dx and dw (of weights 1 to 3) of the chain: products of the sums before, forward[], and after. */
static inline bool by_hand(const float *x, const float *w, int64_t frames, int n, float *dx, double dw[4]) {
    double *forward = fl_heap_alloc((size_t)(frames + 2) * (size_t)n * sizeof *forward), total = -INFINITY;
    if (!forward) return false;
    double *after = forward + frames * n, *next = after + n;
    for (int64_t f = 0; f < frames; f++)
        for (int s = 0; s < n; s++) {
            double sum = f ? -INFINITY : s ? -INFINITY : 0;
            for (int b = 0; f && b < 3 && b <= s; b++) {
                const double y = forward[(f - 1) * n + s - b] + w[1 + b], most = fmax(sum, y);
                if (most > -INFINITY) sum = most + log(exp(sum - most) + exp(y - most));
            }
            forward[f * n + s] = sum + x[f * n + s];
        }
    for (int s = n - 3; s < n; s++) {
        const double y = forward[(frames - 1) * n + s], most = fmax(total, y);
        if (most > -INFINITY) total = most + log(exp(total - most) + exp(y - most));
    }
    for (int s = 0; s < n; s++) after[s] = s < n - 3 ? -INFINITY : 0;
    for (int64_t f = frames - 1; f >= 0; f--) {
        for (int s = 0; s < n; s++) dx[f * n + s] = (float)exp(forward[f * n + s] + after[s] - total);
        for (int s = 0; f && s < n; s++) {
            next[s] = -INFINITY;
            for (int b = 0; b < 3 && s + b < n; b++) {
                const double y = after[s + b] + x[f * n + s + b] + w[1 + b], most = fmax(next[s], y);
                dw[1 + b] += exp(forward[(f - 1) * n + s] + y - total);
                if (most > -INFINITY) next[s] = most + log(exp(next[s] - most) + exp(y - most));
            }
        }
        memcpy(after, next, (size_t)n * sizeof *next);
    }
    fl_heap_free(forward);
    return true;
}

/* ns of one of fl's scalar ops: forward, backward. */
static inline bool scalar_ops(int ops, double ns[2]) {
    fl_scope s = fl_scope_begin();
    fl_var *y = fv_param(fl_full(FL_SCALAR_SHAPE, 0.5, FL_F64));
    const double start = fl_data_now();
    for (int i = 0; i < ops; i++) y = i % 2 ? fv_log(y) : fv_exp(y);
    const double middle = fl_data_now();
    const bool ok = fl_backward(y);
    ns[0] = (middle - start) * 1e9 / ops, ns[1] = (fl_data_now() - middle) * 1e9 / ops;
    fl_scope_end(&s);
    return ok;
}

/* Prints the table of costs. False after an error, or if gradients differ from those by hand. */
static inline bool lattice_cost(int64_t frames, int n) {
    int64_t nodes;
    double op[2], dw[4] = {0}, apart = 0;
    states g = chain_states(n);
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(fl_normal(FL_SHAPE(frames, n), 0, 1, FL_F32, NULL));
    fl_var *w = fv_param(fl_from_host((float[]){0, 0.1f, -0.2f, -0.4f}, FL_SHAPE(4), FL_F32));
    float *dx = fl_heap_alloc((size_t)(frames * n) * sizeof *dx);
    bool ok = dx && scalar_ops(20000, op);
    if (ok) printf("one scalar op of fl: forward %.0f ns, backward %.0f ns\n", op[0], op[1]);
    for (int again = 0; ok && again < 3; again++) {
        fl_scope step = fl_scope_begin();
        fv_zero_grad(x), fv_zero_grad(w);
        const double start = fl_data_now();
        fl_var *y = fv_lattice(x, w, &g, INFINITY, &nodes);
        const double middle = fl_data_now();
        ok = y && fl_backward(y);
        printf("%lld nodes of %.0f bytes, %s memory: forward %.0f ns, backward %.0f ns a node\n",
               (long long)nodes, (double)sizeof(node) + 3 * sizeof(arc), again ? "used" : "new",
               (middle - start) * 1e9 / (double)nodes, (fl_data_now() - middle) * 1e9 / (double)nodes);
        fl_scope_end(&step);
    }
    ok = ok && by_hand(fl_data(fv_value(x)), fl_data(fv_value(w)), frames, n, dx, dw);
    for (int64_t i = 0; ok && i < frames * n; i++)
        apart = fmax(apart, fabs(dx[i] - ((float *)fl_data(fv_grad(x)))[i]));
    for (int i = 1; ok && i < 4; i++)
        apart = fmax(apart, fabs(((float *)fl_data(fv_grad(w)))[i] / dw[i] - 1));
    if (ok) printf("gradients and those by hand are at most %.1e apart\n\n", apart);
    fl_heap_free(dx);
    fl_heap_free(g.label);
    fl_scope_end(&s);
    return ok && (apart < 1e-4 || fl_fail("gradients are %g apart, expected less than 1e-4", apart));
}

#endif /* MIT licence: see LICENSE. */
