/* test_sequence.c - attention, CTC, recurrence and embeddings: each slot of the cpu against its
   composition, at every instruction set this processor has */
#include "../fl_all.h"
#include "../kernels/cpu/levels.h"
#include "test.h"

/* >>helpers */

static int levels(void) { return fl__level_cap(FL__AVX512); }

/* The cpu without the slots of two ops, whose compositions run then; undone by with_slots. */
static fl_backend whole_cpu;
static void without_slots(fl_op a, fl_op b) {
    fl_backend part = *fl_backend_cpu();
    part.op[a] = part.op[b] = NULL;
    CHECK(fl_backend_use(&part, &whole_cpu));
}
static void with_slots(void) { CHECK(fl_backend_use(&whole_cpu, NULL)); }

static double *values(fl_tensor *t) {
    double *v = malloc((size_t)(fl_numel(t) + 1) * sizeof *v);
    CHECK(t && fl_to_host(fl_cast(t, FL_F64), v, (size_t)fl_numel(t) * sizeof *v));
    return v;
}

/* The largest difference of a and b; NaN in both, or the same infinity, is none. */
static double difference(fl_tensor *a, fl_tensor *b) {
    if (!CHECK(a && b && fl_numel(a) == fl_numel(b))) return INFINITY;
    double *x = values(a), *y = values(b), most = 0;
    for (int64_t i = 0; i < fl_numel(a); i++) {
        bool same = x[i] == y[i] || (x[i] != x[i] && y[i] != y[i]);
        double d = same ? 0 : fabs(x[i] - y[i]);
        if (!(d <= most)) most = d == d ? d : INFINITY;
    }
    free(x);
    free(y);
    return most;
}

static bool close_to(const char *what, fl_tensor *a, fl_tensor *b, double tolerance) {
    double d = difference(a, b);
    if (!CHECK(d <= tolerance)) printf("    %s: differs by %g\n", what, d);
    return d <= tolerance;
}

/* >>attention */

typedef enum masking { NONE, KEYS, CHOSEN, ADDED, MASKINGS } masking;
typedef struct attention_case {
    int64_t batch, heads, n, m, d, e;
    masking mask;
    bool causal, heads_inside; /* q, k, v are views of [batch, rows, heads, columns] */
    double dropout;
    int64_t groups, offset, window; /* groups: heads that share a key, 0 -> 1 */
    double softcap;
} attention_case;

static const attention_case attention_cases[] = {
    {1, 1, 1, 1, 1, 1, NONE, false, false, 0, 0, 0, 0, 0},
    {2, 3, 5, 7, 3, 2, NONE, false, false, 0, 0, 0, 0, 0},
    {2, 3, 5, 7, 3, 2, ADDED, true, true, 0, 0, 0, 0, 0},
    {1, 2, 64, 128, 16, 16, NONE, false, true, 0, 0, 0, 0, 0},
    {1, 2, 65, 129, 17, 33, NONE, false, true, 0, 0, 0, 0, 0},
    {1, 2, 65, 129, 40, 47, CHOSEN, false, false, 0, 0, 0, 0, 0},
    {1, 2, 63, 127, 64, 64, KEYS, false, true, 0, 0, 0, 0, 0},
    {1, 1, 200, 200, 32, 32, NONE, true, true, 0, 0, 0, 0, 0},
    {1, 1, 130, 70, 9, 65, NONE, true, false, 0, 0, 0, 0, 0},
    {1, 1, 70, 300, 9, 80, NONE, true, false, 0, 0, 0, 0, 0},
    {2, 1, 197, 197, 64, 64, CHOSEN, true, true, 0, 0, 0, 0, 0},
    {2, 2, 81, 140, 300, 20, ADDED, false, true, 0, 0, 0, 0, 0},
    {1, 2, 33, 66, 130, 70, KEYS, false, false, 0.3, 0, 0, 0, 0},
    {2, 1, 150, 131, 8, 8, CHOSEN, true, true, 0.5, 0, 0, 0, 0},
    {1, 1, 7, 3, 4, 4, NONE, false, false, 1, 0, 0, 0, 0},
    {1, 2, 5, 0, 3, 2, NONE, false, false, 0, 0, 0, 0, 0},
    {1, 2, 0, 5, 3, 2, NONE, false, false, 0, 0, 0, 0, 0},
    {1, 2, 5, 4, 0, 2, NONE, false, false, 0, 0, 0, 0, 0},
    {1, 2, 5, 4, 2, 0, NONE, false, false, 0, 0, 0, 0, 0},
    {0, 2, 5, 4, 2, 3, NONE, true, false, 0, 0, 0, 0, 0},
    /* the place among the keys, windows, caps, shared keys */
    {1, 2, 5, 12, 3, 2, NONE, true, false, 0, 0, 7, 0, 0},
    {1, 1, 300, 420, 17, 33, NONE, true, true, 0, 0, 120, 0, 0},
    {1, 2, 5, 12, 3, 2, NONE, true, false, 0, 0, 2, 3, 0},
    {1, 1, 300, 300, 16, 16, NONE, true, true, 0, 0, 0, 40, 0},
    {1, 1, 300, 310, 16, 16, CHOSEN, false, true, 0, 0, 5, 7, 0},
    {1, 1, 600, 90, 8, 9, NONE, true, false, 0, 0, 20, 30, 0}, /* most see nothing */
    {1, 1, 9, 5, 8, 9, NONE, false, false, 0, 0, 40, 3, 0},    /* none sees anything */
    {2, 2, 65, 129, 17, 20, ADDED, true, true, 0, 0, 64, 100, 1.5},
    {1, 2, 33, 66, 9, 8, KEYS, false, false, 0.3, 0, 0, 0, 0.7},
    {2, 6, 5, 7, 3, 2, NONE, false, true, 0, 3, 0, 0, 0},
    {2, 4, 70, 150, 16, 16, CHOSEN, true, true, 0, 2, 80, 60, 2},
    {1, 4, 9, 9, 4, 4, ADDED, true, false, 0.2, 2, 0, 5, 2},
    /* one query */
    {1, 1, 1, 1, 1, 1, NONE, true, false, 0, 0, 0, 0, 0},
    {2, 3, 1, 70, 17, 33, NONE, false, false, 0, 0, 0, 0, 0},
    {2, 3, 1, 1300, 64, 130, NONE, true, false, 0, 0, 1299, 0, 0},
    {2, 3, 1, 1300, 40, 16, NONE, true, true, 0, 0, 600, 0, 0},
    {1, 4, 1, 900, 64, 64, KEYS, false, false, 0, 2, 0, 0, 0},
    {2, 6, 1, 600, 64, 47, CHOSEN, true, true, 0, 3, 590, 0, 1.5},
    {2, 2, 1, 1100, 130, 8, ADDED, true, false, 0, 0, 1000, 700, 2},
    {1, 2, 1, 20, 5, 3, NONE, true, false, 0, 0, 30, 4, 0}, /* sees nothing */
    {1, 8, 1, 33, 6, 6, ADDED, false, true, 0, 8, 0, 0, 0},
    {1, 2, 1, 40, 6, 6, NONE, false, false, 0.5, 0, 0, 0, 0},
};

/* [batch, heads, rows, columns] of small numbers */
static fl_var *operand(const attention_case *c, int64_t heads, int64_t rows, int64_t columns, fl_dtype d,
                       fl_rng *rng) {
    fl_shape s = c->heads_inside ? FL_SHAPE(c->batch, rows, heads, columns)
                                 : FL_SHAPE(c->batch, heads, rows, columns);
    fl_var *x = fv_param(fl_cast(fl_uniform(s, -2, 2, FL_F32, rng), d));
    return x;
}
static fl_var *as_heads(const attention_case *c, fl_var *x) {
    return c->heads_inside ? fv_transpose(x, 1, 2) : x;
}

static fl_tensor *mask_of(const attention_case *c, fl_dtype d, fl_rng *rng) {
    if (c->mask == NONE) return NULL;
    fl_shape s = c->mask == KEYS ? FL_SHAPE(c->batch, 1, 1, c->m) : FL_SHAPE(c->n, c->m);
    fl_tensor *u = fl_uniform(s, 0, 1, FL_F32, rng);
    if (c->mask == ADDED) return fl_cast(fl_where(fl_lt(u, fl_num(0.2)), fl_num(-INFINITY), u), d);
    return fl_gt(u, fl_num(0.7)); /* some queries see nothing */
}

/* y, dq, dk, dv; the caller owns them */
static void attend(const attention_case *c, fl_dtype d, fl_tensor *out[4]) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {5, 0}, drops = {6, 3};
    const int64_t shared = c->heads / (c->groups ? c->groups : 1);
    fl_var *q = operand(c, c->heads, c->n, c->d, d, &rng), *k = operand(c, shared, c->m, c->d, d, &rng);
    fl_var *v = operand(c, shared, c->m, c->e, d, &rng);
    fl_tensor *mask = mask_of(c, d, &rng);
    fl_var *y = fv_attention(as_heads(c, q), as_heads(c, k), as_heads(c, v),
                             .mask = mask ? fv_const(mask) : NULL, .causal = c->causal,
                             .offset = c->offset, .window = c->window, .softcap = c->softcap,
                             .scale = c->d > 64 ? 0 : 0.7, .dropout = c->dropout, .rng = &drops);
    CHECK(y != NULL);
    fl_tensor *dy = y ? fl_cast(fl_uniform(fl_shape_of(y->value), -1, 1, FL_F32, &rng), d) : NULL;
    CHECK(y && fl_backward(y, .grad = dy));
    fl_tensor *all[] = {y ? y->value : NULL, fv_grad(q), fv_grad(k), fv_grad(v)};
    for (int i = 0; i < 4; i++) out[i] = fl_keep(all[i]);
    fl_scope_end(&s);
}

static void drop_all(fl_tensor *t[4]) {
    for (int i = 0; i < 4; i++) fl_drop(t[i]);
}

static void check_attention(int which, fl_dtype d) {
    static const char *const parts[] = {"y", "dq", "dk", "dv"};
    const attention_case *c = &attention_cases[which];
    fl_tensor *want[4], *got[4];
    without_slots(fl_op_attention, fl_op_attention_grad);
    attend(c, FL_F64, want);
    with_slots();
    for (int level = 0, top = levels(); level <= top; level++) {
        fl__level_cap(level);
        attend(c, d, got);
        for (int i = 0; i < 4; i++) {
            char what[60];
            snprintf(what, sizeof what, "case %d %s %s level %d", which, fl_dtype_name(d), parts[i],
                     level);
            close_to(what, got[i], want[i], d == FL_F64 ? 1e-11 : 3e-5);
        }
        drop_all(got);
    }
    levels();
    drop_all(want);
}

TEST(attention_slot_is_its_composition) {
    for (int i = 0; i < (int)(sizeof attention_cases / sizeof *attention_cases); i++) {
        check_attention(i, FL_F32);
        check_attention(i, FL_F64);
    }
}

/* NaN and infinities in q, k, v: what sees them is NaN in both. */
TEST(attention_nan_and_infinity) {
    static const double odd[] = {NAN, INFINITY, -INFINITY};
    for (int level = 0, top = levels(); level <= top; level++)
        for (int k = 0; k < 9; k++) {
            fl_scope s = fl_scope_begin();
            fl_rng rng = {7, 0};
            fl_tensor *x[3], *y[2];
            for (int i = 0; i < 3; i++) x[i] = fl_uniform(FL_SHAPE(140, 20), -1, 1, FL_F32, &rng);
            fl_tensor *at = fl_select(fl_select(x[k / 3], 0, 130), 0, 3);
            CHECK(fl_assign(at, fl_num(odd[k % 3])) != NULL);
            fl__level_cap(level);
            for (int i = 0; i < 2; i++) {
                if (i) without_slots(fl_op_attention, fl_op_attention_grad);
                y[i] = fl_attention(x[0], x[1], x[2]);
                if (i) with_slots();
            }
            close_to("odd values", y[0], y[1], 1e-5);
            fl_scope_end(&s);
        }
    levels();
}

/* y, dq, dk, dv of the second of two heads, the first of which is NaN, or of the second alone. */
static void attend_behind_nan(bool alone, fl_tensor *out[4]) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {7, 0};
    fl_var *x[3];
    for (int i = 0; i < 3; i++) {
        fl_tensor *t = fl_uniform(FL_SHAPE(2, 200, 24), -1, 1, FL_F32, &rng);
        CHECK(fl_assign(fl_select(t, 0, 0), fl_num(NAN)) != NULL);
        x[i] = fv_param(alone ? fl_contiguous(fl_slice(t, 0, 1, 2, 1)) : t);
    }
    fl_var *y = fv_attention(x[0], x[1], x[2], .causal = true, .softcap = 2);
    CHECK(fl_backward(y, .grad = fl_ones(fl_shape_of(y->value), FL_F32)));
    fl_tensor *all[] = {y->value, fv_grad(x[0]), fv_grad(x[1]), fv_grad(x[2])};
    for (int i = 0; i < 4; i++) out[i] = fl_keep(fl_contiguous(fl_select(all[i], 0, alone ? 0 : 1)));
    fl_scope_end(&s);
}

/* A thread's workspace keeps what the head before left in it, also where a causal block computes nothing. */
TEST(attention_of_a_head_sees_nothing_of_the_one_before) {
    CHECK(fl_set_threads(1));
    for (int level = 0, top = levels(); level <= top; level++) {
        fl_tensor *got[4], *want[4];
        fl__level_cap(level);
        attend_behind_nan(false, got);
        attend_behind_nan(true, want);
        for (int i = 0; i < 4; i++) close_to("behind NaN", got[i], want[i], 1e-6);
        drop_all(got), drop_all(want);
    }
    fl_set_threads(0);
    levels();
}

static uint64_t hash_of(fl_tensor *t, uint64_t h) {
    size_t bytes = (size_t)fl_numel(t) * fl_dtype_size(t->dtype);
    unsigned char *data = malloc(bytes + 1);
    CHECK(fl_to_host(t, data, bytes));
    for (size_t i = 0; i < bytes; i++) h = (h ^ data[i]) * 1099511628211u;
    free(data);
    return h;
}

TEST(attention_bits_do_not_depend_on_threads) {
    for (int level = 0, top = levels(); level <= top; level++)
        for (int i = 3; i < 14; i++) {
            uint64_t first = 0;
            fl__level_cap(level);
            for (int threads = 1; threads <= 4; threads++) {
                fl_tensor *t[4];
                uint64_t h = 14695981039346656037u;
                CHECK(fl_set_threads(threads));
                attend(&attention_cases[i], FL_F32, t);
                for (int k = 0; k < 4; k++) h = hash_of(t[k], h);
                if (threads == 1) first = h;
                CHECK(h == first);
                drop_all(t);
            }
        }
    fl_set_threads(0);
    levels();
}

/* Keys and values of one sequence for all heads, columns that are not dense, half floats. */
TEST(attention_takes_any_operands) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {8, 0};
    fl_tensor *q = fl_uniform(FL_SHAPE(2, 3, 8, 70), -1, 1, FL_F32, &rng);
    fl_tensor *k = fl_uniform(FL_SHAPE(8, 80), -1, 1, FL_F32, &rng);
    fl_tensor *v = fl_uniform(FL_SHAPE(3, 6, 80), -1, 1, FL_F32, &rng), *y[2];
    q = fl_transpose(q, 2, 3), k = fl_transpose(k, 0, 1), v = fl_transpose(v, 1, 2);
    for (int i = 0; i < 2; i++) {
        if (i) without_slots(fl_op_attention, fl_op_attention_grad);
        y[i] = fl_attention(q, k, v, .causal = true);
        if (i) with_slots();
    }
    close_to("broadcast", y[0], y[1], 1e-6);
    fl_tensor *half = fl_attention(fl_cast(q, FL_BF16), k, v, .causal = true);
    CHECK(half && half->dtype == FL_BF16);
    close_to("bf16", half, y[1], 2e-2);
    fl_scope_end(&s);
}

/* Heads that are a view give a result that is one: they merge without a copy. */
TEST(attention_keeps_the_order_of_axes) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {9, 0};
    fl_tensor *qkv = fl_uniform(FL_SHAPE(2, 10, 3, 4, 8), -1, 1, FL_F32, &rng), *part[3];
    for (int i = 0; i < 3; i++) part[i] = fl_transpose(fl_select(qkv, 2, i), 1, 2);
    fl_tensor *y = fl_attention(part[0], part[1], part[2]);
    CHECK(y && fl_is_contiguous(fl_transpose(y, 1, 2)));
    fl_scope_end(&s);
}

/* >>ctc */

typedef struct ctc_case {
    int64_t t, n, c, l;
    bool odd; /* some log probabilities are -inf, some sequences have no steps or no labels */
} ctc_case;

static const ctc_case ctc_cases[] = {{1, 1, 2, 0, false}, {1, 2, 3, 1, false}, {7, 3, 4, 3, false},
                                     {40, 5, 6, 9, true}, {30, 2, 20, 40, false}, {90, 3, 5, 33, true},
                                     {12, 2, 3, 8, true}, {3, 0, 4, 2, false}};

/* The losses and the gradient of their weighted sum; the caller owns them. */
static void transcribe(const ctc_case *c, fl_dtype d, fl_reduction r, bool zero, fl_tensor *out[2]) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {11, 0};
    fl_tensor *u = fl_uniform(FL_SHAPE(c->n, c->t, c->c), -3, 3, FL_F32, &rng);
    if (c->odd) u = fl_where(fl_gt(u, fl_num(2.7)), fl_num(-INFINITY), u);
    fl_var *x = fv_param(fl_cast(u, d));
    fl_tensor *target = fl_randint(FL_SHAPE(c->n, c->l), c->odd ? 0 : 1, c->c, &rng);
    fl_tensor *steps = fl_randint(FL_SHAPE(c->n), c->odd ? 0 : c->t, c->t + 3, &rng);
    fl_tensor *lengths = fl_randint(FL_SHAPE(c->n), c->odd ? 0 : c->l, c->l + 1, &rng);
    fl_var *loss = fv_ctc_loss(fv_transpose(fv_log_softmax(x, 2), 0, 1), target, steps, lengths,
                               .blank = c->odd, .reduction = r, .zero_infinity = zero);
    fl_shape shape = loss ? fl_shape_of(loss->value) : FL_SCALAR_SHAPE;
    CHECK(loss && fl_backward(loss, .grad = fl_cast(fl_uniform(shape, 0, 1, FL_F32, &rng), d)));
    out[0] = fl_keep(loss ? loss->value : NULL);
    out[1] = fl_keep(fv_grad(x));
    fl_scope_end(&s);
}

static void check_ctc(int which, fl_dtype d, fl_reduction r, bool zero) {
    fl_tensor *want[2], *got[2];
    without_slots(fl_op_ctc, fl_op_ctc_grad);
    transcribe(&ctc_cases[which], FL_F64, r, zero, want);
    with_slots();
    for (int level = 0, top = levels(); level <= top; level++) {
        char what[60];
        fl__level_cap(level);
        transcribe(&ctc_cases[which], d, r, zero, got);
        snprintf(what, sizeof what, "ctc %d %s level %d", which, fl_dtype_name(d), level);
        close_to(what, got[0], want[0], d == FL_F64 ? 1e-10 : 1e-3);
        close_to(what, got[1], want[1], d == FL_F64 ? 1e-11 : 1e-3);
        fl_drop(got[0]);
        fl_drop(got[1]);
    }
    levels();
    fl_drop(want[0]);
    fl_drop(want[1]);
}

TEST(ctc_slot_is_its_composition) {
    for (int i = 0; i < (int)(sizeof ctc_cases / sizeof *ctc_cases); i++)
        for (int r = 0; r < 3; r++) {
            check_ctc(i, FL_F32, (fl_reduction)r, r == 1);
            check_ctc(i, FL_F64, (fl_reduction)r, r != 1);
        }
}

TEST(ctc_bits_do_not_depend_on_threads) {
    uint64_t first = 0;
    for (int threads = 1; threads <= 4; threads++) {
        fl_tensor *t[2];
        CHECK(fl_set_threads(threads));
        transcribe(&ctc_cases[3], FL_F32, FL_NONE, false, t);
        uint64_t h = hash_of(t[1], hash_of(t[0], 14695981039346656037u));
        if (threads == 1) first = h;
        CHECK(h == first);
        fl_drop(t[0]);
        fl_drop(t[1]);
    }
    fl_set_threads(0);
}

/* >>recurrent */

typedef struct rnn_case {
    fl_rnn_mode mode;
    int64_t t, n, in, hidden, out; /* out < hidden: projected */
    int layers;
    bool both, batch_first, lengths, biased, states;
} rnn_case;

static const rnn_case rnn_cases[] = {
    {FL_LSTM, 1, 1, 1, 1, 1, 1, false, false, false, true, true},
    {FL_LSTM, 7, 5, 3, 4, 4, 2, true, false, true, true, true},
    {FL_LSTM, 9, 6, 5, 70, 33, 2, true, true, true, true, true},
    {FL_LSTM, 4, 33, 40, 37, 11, 1, false, false, false, false, false},
    {FL_LSTM, 3, 19, 7, 320, 320, 1, true, true, false, true, false},
    {FL_GRU, 3, 19, 7, 448, 448, 1, false, false, true, true, true},
    {FL_GRU, 7, 5, 3, 4, 4, 2, true, true, true, true, true},
    {FL_GRU, 6, 40, 33, 65, 65, 1, true, false, false, false, false},
    {FL_RNN_TANH, 6, 17, 5, 33, 33, 2, true, false, true, true, true},
    {FL_RNN_RELU, 6, 17, 5, 33, 33, 1, false, true, false, true, false},
    {FL_LSTM, 3, 0, 2, 4, 4, 1, false, false, false, true, true},
    {FL_GRU, 2, 3, 0, 4, 4, 1, false, false, true, true, true},
};

enum { RNN_RESULTS = 6 + 20 };

/* y, h, c and the gradients of x, h0, c0 and all weights; the caller owns them. */
static void recur(const rnn_case *c, fl_dtype d, fl_tensor *out[RNN_RESULTS]) {
    static const int gates[] = {1, 1, 3, 4};
    fl_scope s = fl_scope_begin();
    fl_rng rng = {15, 0};
    const int ways = 1 + c->both, count = c->out < c->hidden ? 5 : 4;
    const int64_t rows = gates[c->mode] * c->hidden;
    fl_var *w[20] = {NULL}, *state[2] = {NULL}, *h = NULL, *last = NULL;
    for (int i = 0; i < c->layers * ways * count; i++) {
        const int64_t in = i < ways * count ? c->in : ways * c->out;
        const fl_shape shapes[] = {FL_SHAPE(rows, in), FL_SHAPE(rows, c->out), FL_SHAPE(rows), FL_SHAPE(rows),
                                   FL_SHAPE(c->out, c->hidden)};
        const int part = i % count;
        if (c->biased || part < 2 || part == 4)
            w[i] = fv_param(fl_cast(fl_uniform(shapes[part], -0.4, 0.4, FL_F32, &rng), d));
    }
    const fl_shape given = c->batch_first ? FL_SHAPE(c->n, c->t, c->in) : FL_SHAPE(c->t, c->n, c->in);
    fl_var *x = fv_param(fl_cast(fl_uniform(given, -2, 2, FL_F32, &rng), d));
    for (int i = 0; c->states && i < (c->mode == FL_LSTM ? 2 : 1); i++)
        state[i] = fv_param(fl_cast(
            fl_uniform(FL_SHAPE(c->layers * ways, c->n, i ? c->hidden : c->out), -1, 1, FL_F32, &rng), d));
    fl_tensor *lengths = c->lengths ? fl_randint(FL_SHAPE(c->n), 1, c->t + 1, &rng) : NULL;
    fl_var *y = fv_rnn(c->mode, x, w, .h0 = state[0], .c0 = state[1], .layers = c->layers,
                       .bidirectional = c->both, .batch_first = c->batch_first, .projected = count == 5,
                       .lengths = lengths, .dropout = 0.3, .rng = &rng, .h_out = &h, .c_out = &last);
    CHECK(y && h && (c->mode != FL_LSTM || last));
    fl_var *root = fv_mul(y, fv_const(fl_cast(fl_uniform(fl_shape_of(fv_value(y)), -1, 1, FL_F32, &rng), d)));
    root = fv_add(fv_sum(root, FL_ALL_AXES), fv_sum(fv_square(h), FL_ALL_AXES));
    if (last) root = fv_add(root, fv_sum(fv_square(last), FL_ALL_AXES));
    CHECK(fl_backward(root));
    fl_tensor *all[] = {fv_value(y), fv_value(h),       fv_value(last),
                        fv_grad(x),  fv_grad(state[0]), fv_grad(state[1])};
    for (int i = 0; i < RNN_RESULTS; i++) out[i] = fl_keep(i < 6 ? all[i] : fv_grad(w[i - 6]));
    fl_scope_end(&s);
}

static void drop_results(fl_tensor *t[RNN_RESULTS]) {
    for (int i = 0; i < RNN_RESULTS; i++) fl_drop(t[i]);
}

static void check_rnn(int which, fl_dtype d) {
    fl_tensor *want[RNN_RESULTS], *got[RNN_RESULTS];
    without_slots(fl_op_rnn, fl_op_rnn_grad);
    recur(&rnn_cases[which], FL_F64, want);
    with_slots();
    for (int level = 0, top = levels(); level <= top; level++) {
        fl__level_cap(level);
        recur(&rnn_cases[which], d, got);
        for (int i = 0; i < RNN_RESULTS; i++) {
            char what[60];
            snprintf(what, sizeof what, "rnn %d %s result %d level %d", which, fl_dtype_name(d), i, level);
            CHECK(!want[i] == !got[i]);
            if (want[i]) close_to(what, got[i], want[i], d == FL_F64 ? 1e-12 : 4e-4);
        }
        drop_results(got);
    }
    levels();
    drop_results(want);
}

TEST(rnn_slot_is_its_composition) {
    for (int i = 0; i < (int)(sizeof rnn_cases / sizeof *rnn_cases); i++) {
        check_rnn(i, FL_F32);
        check_rnn(i, FL_F64);
    }
}

/* The gradient of a reserve that another slot made, and a composition's. */
TEST(rnn_gradient_of_a_composed_forward) {
    fl_tensor *want[RNN_RESULTS], *got[RNN_RESULTS];
    recur(&rnn_cases[1], FL_F64, want);
    without_slots(fl_op_rnn, fl_op_rnn);
    recur(&rnn_cases[1], FL_F64, got);
    with_slots();
    for (int i = 0; i < RNN_RESULTS; i++)
        if (want[i]) close_to("composed forward", got[i], want[i], 1e-12);
    drop_results(want);
    drop_results(got);
}

/* Whatever a call was given, what it does not hand out is NULL. */
TEST(rnn_results_come_together) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_zeros(FL_SHAPE(3, 2, 5), FL_F32), *w_hh = fl_zeros(FL_SHAPE(12, 3), FL_F32);
    fl_tensor *w[5] = {fl_zeros(FL_SHAPE(12, 5), FL_F32), w_hh}, *cut[5] = {x, w_hh};
    fl_tensor *h = x, *c = x, *state = fl_zeros(FL_SHAPE(2, 3), FL_F32);
    CHECK(fl_rnn(FL_LSTM, x, w, .h_out = &h, .c_out = &c) && h && c);
    CHECK(fl_rnn(FL_GRU, x, ((fl_tensor *[]){fl_zeros(FL_SHAPE(9, 5), FL_F32),
                                             fl_zeros(FL_SHAPE(9, 3), FL_F32), NULL, NULL}),
                 .h_out = &h, .c_out = &c) && h && !c);
    c = x;
    CHECK(!fl_rnn(FL_LSTM, x, cut, .h_out = &h, .c_out = &c) && !h && !c);
    fl_error_clear();
    c = x;
    CHECK(!fl_lstm_cell(x, NULL, NULL, w, &c) && !c);
    fl_error_clear();
    c = x;
    CHECK(!fl_lstm_cell(state, state, state, w, &c) && !c);
    fl_error_clear();
    CHECK(fl_lstm_cell(fl_zeros(FL_SHAPE(2, 5), FL_F32), state, state, w, &c) && c);
    fl_scope_end(&s);
}

TEST(rnn_bits_do_not_depend_on_threads) {
    for (int level = 0, top = levels(); level <= top; level++)
        for (int k = 1; k < 10; k++) {
            uint64_t first = 0;
            fl__level_cap(level);
            for (int threads = 1; threads <= 5; threads++) {
                fl_tensor *t[RNN_RESULTS];
                uint64_t h = 14695981039346656037u;
                CHECK(fl_set_threads(threads));
                recur(&rnn_cases[k], FL_F32, t);
                for (int i = 0; i < RNN_RESULTS; i++)
                    if (t[i]) h = hash_of(t[i], h);
                if (threads == 1) first = h;
                CHECK(h == first);
                drop_results(t);
            }
        }
    fl_set_threads(0);
    levels();
}

/* >>glu */

/* y and dx of x [4, 6, 50], in a layout, gated along an axis; the caller owns them. */
static void gate(int axis, bool turned, fl_dtype d, fl_tensor *out[2]) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {13, 0};
    fl_tensor *u = fl_uniform(FL_SHAPE(50, 6, 4), -9, 9, FL_F32, &rng);
    u = fl_where(fl_gt(u, fl_num(8.9)), fl_num(-INFINITY), u);
    fl_var *x = fv_param(fl_cast(turned ? fl_permute(u, 3, (int[]){2, 1, 0}) : u, d));
    fl_var *y = fv_glu(x, axis);
    CHECK(y && fl_backward(y, .grad = fl_ones(fl_shape_of(y->value), d)));
    out[0] = fl_keep(y ? y->value : NULL);
    out[1] = fl_keep(fv_grad(x));
    fl_scope_end(&s);
}

TEST(glu_slot_is_its_composition) {
    static const fl_dtype dtypes[] = {FL_F32, FL_F64, FL_BF16};
    for (int i = 0; i < 3 * 2 * 3; i++) {
        const fl_dtype d = dtypes[i / 6];
        fl_tensor *want[2], *got[2];
        without_slots(fl_op_glu, fl_op_glu_grad);
        gate(i % 3 == 2 ? -1 : i % 3, i / 3 % 2, d, want);
        with_slots();
        for (int level = 0, top = levels(); level <= top; level++) {
            fl__level_cap(level);
            gate(i % 3 == 2 ? -1 : i % 3, i / 3 % 2, d, got);
            for (int k = 0; k < 2; k++) {
                close_to("glu", got[k], want[k], d == FL_BF16 ? 0.1 : d == FL_F32 ? 2e-6 : 1e-14);
                fl_drop(got[k]);
            }
        }
        levels();
        fl_drop(want[0]);
        fl_drop(want[1]);
    }
}

/* >>rows */

/* Rows of src [n, ...] added to rows of x by plain loops, in order. */
static double *rows_added(fl_tensor *x, fl_tensor *index, fl_tensor *src) {
    double *y = values(x), *at = values(index), *add = values(src);
    int64_t n = src->shape[0], row = n ? fl_numel(src) / n : 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < row; j++) y[(int64_t)at[i] * row + j] += add[i * row + j];
    free(at);
    free(add);
    return y;
}

static void check_rows(int64_t rows, int64_t n, int64_t a, int64_t b, fl_dtype d) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {12, 0};
    fl_tensor *x = fl_cast(fl_randint(FL_SHAPE(rows, a, b), -9, 9, &rng), d);
    fl_tensor *src = fl_cast(fl_randint(FL_SHAPE(n, a, b), -9, 9, &rng), d);
    fl_tensor *index = fl_reshape(fl_randint(FL_SHAPE(n), 0, rows, &rng), FL_SHAPE(n, 1, 1));
    double *want = rows_added(x, index, src);
    fl_tensor *sum = fl_from_host(want, fl_shape_of(x), FL_F64);
    for (int level = 0, top = levels(); level <= top; level++)
        for (int threads = 1; threads <= 3; threads++) {
            fl__level_cap(level);
            CHECK(fl_set_threads(threads));
            close_to("rows", fl_scatter_add(x, 0, fl_expand(index, fl_shape_of(src)), src), sum, 0);
        }
    fl_set_threads(0);
    levels();
    free(want);
    fl_scope_end(&s);
}

TEST(rows_are_added) {
    static const fl_dtype dtypes[] = {FL_F32, FL_F64, FL_I64, FL_BF16};
    for (int i = 0; i < 4; i++) {
        check_rows(1, 1, 1, 1, dtypes[i]);
        check_rows(7, 30, 3, 5, dtypes[i]);
        check_rows(3, 0, 3, 5, dtypes[i]);
    }
    check_rows(50, 3000, 40, 9, FL_F32);
    check_rows(100000, 900, 1, 128, FL_F32);
}

TEST(embedding_gradient_of_a_bad_index) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_tensor *index = fl_expand(fl_from_host((int64_t[]){1, 4}, FL_SHAPE(2, 1), FL_I64), FL_SHAPE(2, 9));
    CHECK(!fl_scatter_add(fl_zeros(FL_SHAPE(4, 9), FL_F32), 0, index, fl_ones(FL_SHAPE(2, 9), FL_F32)));
    CHECK_ERROR("fl_scatter_add: index 4 is out of range for axis 0 of size 4");
    fl_scope_end(&s);
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
