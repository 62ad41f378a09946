/* examples/research/experts.h - feed-forward experts as one op: no token is dropped, none is padded

     experts_register();                               // once, before other threads start
     fl_var *y = experts(x, index, gate, w1, w2);      // y_t = sum over j of gate[t][j] f_index[t][j](x_t)

   Expert e is f_e(x) = gelu(x w1_e) w2_e. Tokens are sorted by expert; products run on the rows that each
   expert has, maybe none, and write into one tensor for all; so do those of the gradient. fl is not edited.
   Backends without the kernel, and second derivatives, run experts_loop, of fl's plain ops. */
#ifndef RESEARCH_EXPERTS_H
#define RESEARCH_EXPERTS_H
#include "../../fl_backend.h"
#include "../../fl.h"
#include <math.h>
#include <string.h>

enum { EXPERTS_MAX = 256 };
static fl_op op_experts, op_experts_grad;

/* The n k pairs of a token and a choice, sorted by expert: e has the rows first[e] to first[e + 1] - 1. */
typedef struct experts_plan {
    int64_t n, k, experts, first[EXPERTS_MAX + 1];
    fl_tensor *token, *pair, *row; /* i64 [n k]: the token and pair of each row, the row of each pair */
} experts_plan;

static inline fl_tensor *experts_indices(const int64_t *at, int64_t n, const fl_tensor *like) {
    return fl_to(fl_from_host(at, FL_SHAPE(n), FL_I64), fl_backend_name(like));
}

/* Sorts by counting, stable. index: i64 [n, k]. False after an error. */
static inline bool experts_plan_of(experts_plan *p, fl_tensor *index, int64_t experts) {
    const int64_t pairs = fl_numel(index);
    *p = (experts_plan){.n = index->shape[0], .k = index->shape[1], .experts = experts};
    int64_t *at = fl_heap_alloc((size_t)(4 * pairs + 1) * sizeof *at), next[EXPERTS_MAX];
    int64_t *token = at + pairs, *pair = token + pairs, *row = pair + pairs;
    bool ok = at && fl_to_host(index, at, (size_t)pairs * sizeof *at);
    for (int64_t i = 0; ok && i < pairs; i++)
        if (at[i] >= 0 && at[i] < experts) p->first[at[i] + 1]++;
        else ok = fl_fail("experts: the expert of token %lld is out of range: got %lld, expected 0 to %lld",
                          (long long)(i / p->k), (long long)at[i], (long long)experts - 1);
    for (int64_t e = 0; e < experts; e++) p->first[e + 1] += p->first[e];
    memcpy(next, p->first, sizeof next);
    for (int64_t i = 0; ok && i < pairs; i++) {
        const int64_t r = next[at[i]]++;
        token[r] = i / p->k, pair[r] = i, row[i] = r;
    }
    ok = ok && (p->token = experts_indices(token, pairs, index)) &&
         (p->pair = experts_indices(pair, pairs, index)) && (p->row = experts_indices(row, pairs, index));
    fl_heap_free(at);
    return ok;
}

/* ---- the composition ---- */

/* x [n, d], gate [n, k], w1 [experts, d, h], w2 [experts, h, d] -> [n, d]. z, if not NULL, receives x w1 of
   all rows, sorted. */
static inline fl_var *experts_loop(fl_var *const in[4], fl_tensor *index, fl_var **z) {
    experts_plan p;
    fl_var *hidden[EXPERTS_MAX], *part[EXPERTS_MAX];
    if (!experts_plan_of(&p, index, fv_value(in[2])->shape[0])) return fl_raise();
    const int64_t pairs = p.n * p.k;
    fl_var *rows = fv_index_select(in[0], 0, p.token);
    for (int64_t e = 0; e < p.experts; e++) {
        fl_var *own = fv_slice(rows, 0, p.first[e], p.first[e + 1], 1);
        hidden[e] = fv_matmul(own, fv_select(in[2], 0, e));
        part[e] = fv_matmul(fv_gelu(hidden[e]), fv_select(in[3], 0, e));
    }
    if (z) *z = fv_concat(hidden, (int)p.experts, 0);
    fl_var *gate = fv_index_select(fv_reshape(in[1], FL_SHAPE(pairs, 1)), 0, p.pair);
    fl_var *y = fv_index_select(fv_mul(fv_concat(part, (int)p.experts, 0), gate), 0, p.row);
    return fv_sum(fv_reshape(y, FL_SHAPE(p.n, p.k, fv_value(in[0])->shape[1])), FL_AXES(1));
}

/* d[i]: the gradients of the loop in the operands with want[i]; recorded if gradients are. */
static inline bool experts_loop_grad(fl_var *const in[4], fl_tensor *index, fl_var *dy, const bool *want,
                                     fl_var **d) {
    const bool create_graph = fl_grad_enabled(), recorded = fl_no_grad(false);
    fl_var *x[4], *of[4], *got[4];
    int n = 0, m = 0;
    for (int i = 0; i < 4; i++) {
        x[i] = create_graph ? in[i] : fv_param(fv_value(in[i]));
        if (want[i]) of[n++] = x[i];
    }
    fl_var *y = experts_loop(x, index, NULL);
    const bool ok = y && fl_grads(FV_LIST(y), fv_list_of(n, of), got, .given = FV_LIST(dy),
                                  .create_graph = create_graph);
    for (int i = 0; ok && i < 4; i++)
        if (want[i]) d[i] = got[m++];
    fl_no_grad(recorded);
    return ok;
}

/* Record: x, index, gate, w1, w2 -> y, [z] */
static inline bool experts_compose(const fl_call *c, fl_tensor **value) {
    fl_var *z, *in[] = {fv_const(c->in[0]), fv_const(c->in[2]), fv_const(c->in[3]), fv_const(c->in[4])};
    fl_var *y = experts_loop(in, c->in[1], &z);
    return y && (value[0] = fv_value(y)) && (value[1] = fv_value(z));
}

/* Record: x, index, gate, w1, w2, z, dy -> [dx], [dgate], [dw1], [dw2] */
static inline bool experts_compose_grad(const fl_call *c, fl_tensor **value) {
    fl_var *in[] = {fv_const(c->in[0]), fv_const(c->in[2]), fv_const(c->in[3]), fv_const(c->in[4])}, *d[4];
    const bool want[] = {c->out[0], c->out[1], c->out[2], c->out[3]}, recorded = fl_no_grad(true);
    const bool ok = experts_loop_grad(in, c->in[1], fv_const(c->in[6]), want, d);
    fl_no_grad(recorded);
    for (int i = 0; ok && i < 4; i++)
        if (want[i]) value[i] = fv_value(d[i]);
    return ok;
}

/* ---- the kernel: grouped products, each expert's on views of its rows ---- */

/* Expert e's part of t: its matrix of weights [experts, ...], or its rows. */
static inline fl_tensor *experts_part(const experts_plan *p, fl_tensor *t, int64_t e) {
    return t->ndim == 3 ? fl_select(t, 0, e) : fl_slice(t, 0, p->first[e], p->first[e + 1], 1);
}

/* For each expert: rows y = rows a times matrix b; or, if y has matrices, y = a^T b, summed over its rows. */
static inline bool experts_product(const experts_plan *p, fl_tensor *y, fl_tensor *a, fl_tensor *b) {
    bool ok = y && a && b;
    for (int64_t e = 0; ok && e < p->experts; e++) {
        if (y->ndim == 2 && p->first[e] == p->first[e + 1]) continue;
        fl_scope s = fl_scope_begin();
        fl_tensor *own = experts_part(p, a, e);
        ok = fl_call_into(FL_OP_matmul, experts_part(p, y, e), y->ndim == 3 ? fl_transpose(own, 0, 1) : own,
                          experts_part(p, b, e), NULL) != NULL;
        fl_scope_end(&s);
    }
    return ok;
}

/* A matrix without numbers yet, for all rows. */
static inline fl_tensor *experts_rows(const experts_plan *p, const fl_tensor *like, int64_t columns) {
    fl_tensor *t = fl_out_on(like->backend, FL_SHAPE(p->n * p->k, columns), like->dtype);
    return t && fl_out_allocate(t) ? t : NULL;
}

/* y [n, columns] = of each token the sum of its rows. */
static inline bool experts_unsort(const experts_plan *p, fl_tensor *y, fl_tensor *rows) {
    const int64_t pairs = p->n * p->k, columns = rows->shape[1];
    fl_tensor *at = fl_expand(fl_reshape(p->row, FL_SHAPE(pairs, 1)), FL_SHAPE(pairs, columns));
    if (p->k == 1) return fl_call_into(FL_OP_gather, y, rows, at, &(fl_axis_args){0}) != NULL;
    fl_tensor *each = fl_reshape(fl_gather(rows, 0, at), FL_SHAPE(p->n, p->k, columns));
    return each && fl_call_into(FL_OP_sum, y, each, NULL, &(fl_reduce_args){.axes = 1 << 1});
}

/* The gate multiplies rows of y, which are shorter than the hidden ones. */
static inline bool experts_kernel(const fl_backend *self, const fl_call *c) {
    fl_tensor *x = c->in[0], *w1 = c->in[3], *w2 = c->in[4], *z = c->out[1];
    (void)self;
    experts_plan p;
    fl_scope s = fl_scope_begin();
    bool ok = experts_plan_of(&p, c->in[1], w1->shape[0]) && fl_out_make(c->out[0]) &&
              (z ? fl_out_make(z) : (z = experts_rows(&p, x, w1->shape[2])) != NULL) &&
              experts_product(&p, z, fl_index_select(x, 0, p.token), w1);
    fl_tensor *y = ok ? experts_rows(&p, x, x->shape[1]) : NULL;
    fl_tensor *gate = ok ? fl_index_select(fl_reshape(c->in[2], FL_SHAPE(p.n * p.k, 1)), 0, p.pair) : NULL;
    ok = gate && experts_product(&p, y, fl_gelu(z), w2) && fl_assign_op(y, FL_OP_mul, y, gate) &&
         experts_unsort(&p, c->out[0], y);
    fl_scope_end(&s);
    return ok;
}

/* With a = gelu(z) and dy of each row:  dw2_e = a^T (gate dy),  u = dy w2_e^T,  dgate = sum of u a,
   dz = gelu'(z) u,  dw1_e = (gate x)^T dz,  dx = gate (dz w1_e^T) */
static inline bool experts_grad_kernel(const fl_backend *self, const fl_call *c) {
    (void)self;
    fl_tensor *x = c->in[0], *w1 = c->in[3], *w2 = c->in[4], *z = c->in[5], *dx = NULL;
    fl_tensor *const *out = c->out;
    experts_plan p;
    fl_scope s = fl_scope_begin();
    bool ok = experts_plan_of(&p, c->in[1], w1->shape[0]);
    for (int i = 0; ok && i < 4; i++) ok = !out[i] || fl_out_make(out[i]);
    fl_tensor *gate = ok ? fl_index_select(fl_reshape(c->in[2], FL_SHAPE(p.n * p.k, 1)), 0, p.pair) : NULL;
    fl_tensor *a = gate ? fl_gelu(z) : NULL;
    fl_tensor *dy = a ? fl_index_select(c->in[6], 0, p.token) : NULL;
    fl_tensor *u = dy ? experts_rows(&p, x, w1->shape[2]) : NULL;
    ok = u && experts_product(&p, u, dy, fl_transpose(w2, 1, 2)) &&
         (!out[3] || (fl_assign_op(dy, FL_OP_mul, dy, gate) && experts_product(&p, out[3], a, dy)));
    if (ok && out[1]) {
        fl_tensor *sum = fl_assign_op(a, FL_OP_mul, a, u) ? fl_sum(a, FL_AXES(1)) : NULL;
        fl_tensor *to = fl_reshape(out[1], FL_SHAPE(p.n * p.k));
        ok = sum && fl_call_into(FL_OP_gather, to, sum, p.row, &(fl_axis_args){0});
    }
    fl_call slope = {FL_OP_grad1, 1, 3, {u}, {z, z, u}, &(fl_grad_args){FL_OP_gelu}};
    ok = ok && fl_call_run(&slope);
    if (ok && out[2]) {
        fl_tensor *rows = fl_index_select(x, 0, p.token);
        ok = rows && fl_assign_op(rows, FL_OP_mul, rows, gate) && experts_product(&p, out[2], rows, u);
    }
    if (ok && out[0])
        ok = (dx = experts_rows(&p, x, x->shape[1])) && experts_product(&p, dx, u, fl_transpose(w1, 1, 2)) &&
             fl_assign_op(dx, FL_OP_mul, dx, gate) && experts_unsort(&p, out[0], dx);
    fl_scope_end(&s);
    return ok;
}

static inline void experts_back(fl_node *n, fl_var *dy) {
    fl_var *saved[6], *d[4] = {NULL};
    bool want[4];
    fl_call c = {.op = op_experts_grad, .n_out = 4, .n_in = 7};
    for (int i = 0; i < 6; i++) {
        if (!(saved[i] = fv_saved(n, i))) return;
        c.in[i] = fv_value(saved[i]);
    }
    c.in[6] = fv_value(dy);
    fl_var *in[] = {saved[0], saved[2], saved[3], saved[4]};
    const bool recorded = fl_grad_enabled();
    for (int i = 0; i < 4; i++) {
        want[i] = fv_needs(n, i);
        if (want[i] && !recorded && !(c.out[i] = fl_out_like(fv_value(in[i]), c.in[0]->dtype))) return;
    }
    const bool ok = recorded ? experts_loop_grad(in, c.in[1], dy, want, d) : fl_call_run(&c);
    if (!ok && !recorded) fl_raise();
    for (int i = 0; ok && i < 4; i++)
        if (want[i]) fv_add_grad(n, i, recorded ? d[i] : fv_const(c.out[i]));
}

static inline bool experts_are_valid(fl_tensor *const v[5]) {
    const fl_tensor *x = v[0], *index = v[1], *gate = v[2], *w1 = v[3], *w2 = v[4];
    if (x->ndim == 2 && index->ndim == 2 && index->dtype == FL_I64 && index->shape[0] == x->shape[0] &&
        fl_same_shape(index, gate) && w1->ndim == 3 && w1->shape[1] == x->shape[1] && w1->shape[0] >= 1 &&
        fl_shape_is(w2, FL_SHAPE(w1->shape[0], w1->shape[2], x->shape[1])) && w1->shape[0] <= EXPERTS_MAX &&
        fl_dtype_is_float(x->dtype) && gate->dtype == x->dtype && w1->dtype == x->dtype &&
        w2->dtype == x->dtype)
        return true;
    return fl_err_false("experts: got x %s, index %s, gate %s, w1 %s, w2 %s, expected [n, d], i64 [n, k], "
                        "[n, k], [experts, d, h], [experts, h, d], floats of one dtype, up to %d experts",
                        FL_SHAPE_TEXT(x), FL_SHAPE_TEXT(index), FL_SHAPE_TEXT(gate), FL_SHAPE_TEXT(w1),
                        FL_SHAPE_TEXT(w2), EXPERTS_MAX);
}

/* NULL after an error. */
static inline fl_var *experts(fl_var *x, fl_tensor *index, fl_var *gate, fl_var *w1, fl_var *w2) {
    fl_tensor *v[] = {fv_value(x), index, fv_value(gate), fv_value(w1), fv_value(w2)}, *z = NULL;
    for (int i = 0; i < 5; i++)
        if (fl_is_null_arg("experts", v[i])) return NULL;
    if (!experts_are_valid(v)) return NULL;
    const bool recorded = fl_grad_enabled() && (x->requires_grad || gate->requires_grad ||
                                                w1->requires_grad || w2->requires_grad);
    if (recorded) z = fl_out_on(v[0]->backend, FL_SHAPE(fl_numel(index), v[3]->shape[2]), v[0]->dtype);
    if (recorded && !z) return fl_raise();
    fl_call c = {op_experts, 2, 5, {fl_out_like(v[0], v[0]->dtype), z}, {0}, NULL};
    memcpy(c.in, v, sizeof v);
    fl_tensor *y = c.out[0] ? fl_call_result(&c) : fl_raise();
    if (!recorded || !y) return y ? fv_const(y) : NULL;
    return fv_record_op(op_experts, y, FV_IN(x, gate, w1, w2),
                        FV_SAVE(x, fv_const(index), gate, w1, w2, fv_const(z)), NULL);
}

/* Two products, or of the gradient one for u and one for each of dx, dw1 and dw2. */
static inline int64_t experts_macs(const fl_call *c) {
    const int64_t one = fl_numel(c->in[1]) * c->in[3]->shape[1] * c->in[3]->shape[2];
    if (c->op == op_experts) return 2 * one;
    return one * (1 + (c->out[0] != NULL) + (c->out[2] != NULL) + (c->out[3] != NULL));
}

/* Before other threads start. */
static inline bool experts_register(void) {
    static const fl_op_info info = {.name = "experts", .uses = "gather matmul gelu erf add mul concat sum",
                                    .compose = experts_compose, .gradient = experts_back,
                                    .macs = experts_macs};
    static const fl_op_info grad = {
        .name = "experts_grad", .uses = "gather scatter_add matmul gelu erf exp add mul concat sum grad1",
        .compose = experts_compose_grad, .macs = experts_macs};
    op_experts = fl_op_register(&info), op_experts_grad = fl_op_register(&grad);
    fl_backend cpu = *fl_backend_at(fl_backend_index("cpu"));
    return op_experts && op_experts_grad && fl_backend_set(&cpu, op_experts, experts_kernel, 0) &&
           fl_backend_set(&cpu, op_experts_grad, experts_grad_kernel, 0) && fl_backend_use(&cpu, NULL);
}

/* What the suites try: make conformance gradcheck OPS_H=examples/research/experts.h */
#ifdef OWN_OPS
static const int64_t own_index[] = {2, 0, 0, 2, 2, 2, 0, 2, 2, 0}; /* expert 1 has no token */
/* x [5, 2], gate [5, k], w [2, 3, 2, 3]: w1, and w2 transposed */
static inline fl_var *experts_call(fl_var **x, int64_t k) {
    fl_tensor *index = experts_indices(own_index, 5 * k, fv_value(x[0]));
    return experts(x[0], fl_reshape(index, FL_SHAPE(5, k)), x[1], fv_select(x[2], 0, 0),
                   fv_transpose(fv_select(x[2], 0, 1), 1, 2));
}
static fl_var *experts_call_1(fl_var **x) { return experts_call(x, 1); }
static fl_var *experts_call_2(fl_var **x) { return experts_call(x, 2); }
static inline void experts_expect(double *const *x, double *y, int k) {
    memset(y, 0, 10 * sizeof *y);
    for (int i = 0; i < 5 * k; i++)
        for (int h = 0; h < 3; h++) {
            const double *w = x[2] + own_index[i] * 6 + h, *row = x[0] + i / k * 2;
            const double z = row[0] * w[0] + row[1] * w[3], a = z * 0.5 * erfc(-z * sqrt(0.5)) * x[1][i];
            for (int d = 0; d < 2; d++) y[i / k * 2 + d] += a * w[18 + d * 3];
        }
}
static void experts_expect_1(double *const *x, double *y) { experts_expect(x, y, 1); }
static void experts_expect_2(double *const *x, double *y) { experts_expect(x, y, 2); }
static const own_op own_ops[] = {
    {"experts", experts_register, experts_call_1, 3, {{2, {5, 2}}, {2, {5, 1}}, {4, {2, 3, 2, 3}}},
     {2, {5, 2}}, experts_expect_1, .slack = 64},
    {"experts", experts_register, experts_call_2, 3, {{2, {5, 2}}, {2, {5, 2}}, {4, {2, 3, 2, 3}}},
     {2, {5, 2}}, experts_expect_2, .slack = 64},
};
#endif
#endif /* MIT licence: see LICENSE. */
