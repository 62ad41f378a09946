/* test_criteria.c - ASG and transducers beside sums over every path, their gradients, criteria of speech */
#include "../fl_all.h"
#include "heap.h"

static uint64_t seed = 88172645463325252ull;
static double noise(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (double)(seed >> 11) * 0x1p-52 - 1;
}
static int64_t below(int64_t n) { return (int64_t)((noise() + 1) / 2 * (double)n) % n; }

static fl_tensor *numbers(fl_shape s, fl_dtype d, double scale) {
    double v[2048];
    for (int64_t i = 0; i < fl_shape_numel(s); i++) v[i] = scale * noise();
    return fl_cast(fl_from_host(v, s, FL_F64), d);
}

static fl_tensor *integers(const int64_t *v, int64_t n) { return fl_from_host(v, FL_SHAPE(n), FL_I64); }

static double log_add(double a, double b) {
    const double top = a > b ? a : b;
    return top == -INFINITY ? top : top + log(exp(a - top) + exp(b - top));
}

/* ---- ASG, CTC and LinSeg by every path of up to 6 frames ---- */

enum { T = 6, C = 3, N = 4, L = 3 };
/* CTC's blank is the last class; LinSeg is ASG of a target as long as the path. */
enum { ASG, CTC, LINSEG, TRANSDUCER };

/* The number of ways in which a path spells a target: of ASG more than one where letters are doubled. */
static double ways(const int *path, int t, const int64_t *target, int64_t length, int kind) {
    double count[T + 1] = {0};
    if (kind == CTC) {
        int64_t n = 0;
        for (int k = 0; k < t; k++) {
            if (path[k] == C - 1 || (k && path[k] == path[k - 1])) continue;
            if (n == length || path[k] != target[n++]) return 0;
        }
        return n == length;
    }
    if (!length || path[0] != target[0]) return 0;
    count[0] = 1;
    for (int k = 1; k < t; k++)
        for (int64_t s = length - 1; s >= 0; s--)
            count[s] = path[k] == target[s] ? count[s] + (s ? count[s - 1] : 0) : 0;
    return count[length - 1];
}

/* Sums over paths of sequence n; gradients by their shares are added to de and dw. */
static double by_force(const double *e, const double *w, int n, int t, const int64_t *target, int64_t length,
                       int kind, bool full, double sign, double *de, double *dw) {
    double total = -INFINITY;
    for (int pass = 0; pass < 2; pass++) {
        int path[T] = {0}, i = 0;
        while (i < t) {
            double p = full ? 0 : log(ways(path, t, target, length, kind));
            for (int k = 0; k < t; k++)
                p += e[(k * N + n) * C + path[k]] + (k ? w[path[k] * C + path[k - 1]] : 0);
            if (!pass) total = log_add(total, p);
            for (int k = 0; pass && total > -INFINITY && k < t; k++) {
                const double share = sign * exp(p - total);
                de[(k * N + n) * C + path[k]] += share;
                if (k) dw[path[k] * C + path[k - 1]] += share;
            }
            for (i = 0; i < t && ++path[i] == C; i++) path[i] = 0;
        }
    }
    return total;
}

static double distance(const fl_tensor *x, const double *want) {
    double worst = 0;
    fl_tensor *y = fl_contiguous(fl_cast((fl_tensor *)x, FL_F64));
    for (int64_t i = 0; i < fl_numel(y); i++) {
        const double got = ((double *)fl_data(y))[i];
        if (got != want[i]) worst = fmax(worst, fabs(got - want[i]));
        if (isnan(got)) worst = INFINITY;
    }
    return y ? worst : INFINITY;
}

/* Without kernels the compositions run. */
static bool kernels(bool on) {
    static fl_backend whole;
    if (!on) {
        whole = *fl_backend_at(fl_backend_index("cpu"));
        fl_backend b = whole;
        const fl_op off[] = {fl_op_asg,      fl_op_asg_grad,   fl_op_ctc,
                             fl_op_ctc_grad, fl_op_transducer, fl_op_transducer_grad};
        for (size_t i = 0; i < sizeof off / sizeof *off; i++) b.op[off[i]] = NULL;
        return fl_backend_use(&b, NULL);
    }
    return fl_backend_use(&whole, NULL);
}

/* A batch: the worst difference of losses and gradients. */
static double path_round(int kind, fl_dtype d, double scale, bool never) {
    fl_scope s = fl_scope_begin();
    int64_t target[N * L], steps[N], lengths[N];
    fl_tensor *e = numbers(FL_SHAPE(T, N, C), FL_F64, scale), *w = numbers(FL_SHAPE(C, C), FL_F64, scale);
    if (never) ((double *)fl_data(e))[4] = ((double *)fl_data(w))[1] = -INFINITY;
    if (kind == CTC) w = fl_zeros(FL_SHAPE(C, C), FL_F64);
    for (int i = 0; i < N * L; i++) target[i] = below(C - (kind == CTC));
    for (int i = 0; i < N; i++) {
        steps[i] = 1 + below(T);
        lengths[i] = kind == CTC ? below(L + 1) : 1 + below(kind == LINSEG && steps[i] < L ? steps[i] : L);
    }
    fl_tensor *rounded_e = fl_cast(e, d), *rounded_w = fl_cast(w, d);
    e = fl_contiguous(fl_cast(rounded_e, FL_F64)), w = fl_contiguous(fl_cast(rounded_w, FL_F64));
    double want[N], de[T * N * C] = {0}, dw[C * C] = {0}, one[N];
    for (int n = 0; n < N; n++) {
        const int64_t *y = target + n * L, t = steps[n];
        int64_t length = lengths[n], spread[T];
        for (int k = 0; kind == LINSEG && k < t; k++) spread[k] = y[k * length / t];
        if (kind == LINSEG) y = spread, length = t;
        const double forced =
            by_force(fl_data(e), fl_data(w), n, (int)t, y, length, kind, false, -1, de, dw);
        want[n] = INFINITY, one[n] = forced > -INFINITY;
        if (!one[n]) continue;
        want[n] = -forced;
        if (kind != CTC)
            want[n] += by_force(fl_data(e), fl_data(w), n, (int)t, y, length, kind, true, 1, de, dw);
    }
    fl_nn_module *m = kind == LINSEG ? fl_speech_criterion("asg", 0, C) : NULL;
    fl_var *x = fv_param(rounded_e), *v = m ? fl_speech_criterion_transitions(m) : fv_param(rounded_w), *loss;
    fl_tensor *of[] = {fl_from_host(target, FL_SHAPE(N, L), FL_I64), integers(steps, N),
                       integers(lengths, N)};
    double worst = 0;
    if (m) {
        double mean = 0;
        fl_assign(fv_value(v), rounded_w), fl_speech_criterion_warmup(m, 1);
        loss = fl_speech_criterion_loss(m, fv_transpose(x, 0, 1), of[1], of[0], of[2]);
        for (int n = 0; n < N; n++) mean += want[n] / N;
        worst = loss ? fabs(fl_item(fv_value(loss)) - mean) : INFINITY;
        loss = loss ? fv_mul(loss, fv_num(N)) : NULL;
    } else {
        loss = kind == CTC ? fv_ctc_loss(x, of[0], of[1], of[2], .blank = C - 1, .reduction = FL_NONE)
                           : fv_asg_loss(x, v, of[0], of[1], of[2], .reduction = FL_NONE);
        worst = loss ? distance(fv_value(loss), want) : INFINITY;
        /* only losses that are finite count, also in the gradient */
        fl_tensor *weight = fl_cast(fl_from_host(one, FL_SHAPE(N), FL_F64), d);
        loss = loss ? fv_sum(fv_where(fv_const(fl_gt(weight, fl_num(0))), loss, fv_num(0)), FL_ALL_AXES)
                    : NULL;
    }
    CHECK(fl_backward(loss));
    worst = fmax(worst, distance(fv_grad(x), de));
    if (kind != CTC) worst = fmax(worst, distance(fv_grad(v), dw));
    fl_nn_free(m);
    fl_scope_end(&s);
    return worst;
}

TEST(losses_of_frames_are_the_sums_over_all_paths) {
    static const struct { int kind; fl_dtype d; double scale, tolerance; bool never;
    } table[] = {{ASG, FL_F64, 1, 1e-12, false},   {ASG, FL_F32, 1, 1e-5, false},
                 {ASG, FL_F64, 60, 1e-11, false},  {ASG, FL_F64, 400, 1e-10, false},
                 {ASG, FL_F64, 1, 1e-12, true},    {CTC, FL_F64, 1, 1e-12, false},
                 {CTC, FL_F32, 1, 1e-5, false},    {CTC, FL_F64, 60, 1e-11, false},
                 {CTC, FL_F64, 400, 1e-10, false}, {CTC, FL_F64, 1, 1e-12, true},
                 {LINSEG, FL_F32, 1, 1e-5, false}, {LINSEG, FL_F32, 20, 1e-4, false}};
    for (int kernel = 1; kernel >= 0; kernel--) {
        fl_lattice_register();
        if (!kernel) kernels(false);
        for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
            double worst = 0;
            for (int round = 0; round < 12; round++)
                worst = fmax(worst, path_round(table[k].kind, table[k].d, table[k].scale, table[k].never));
            if (!CHECK(worst <= table[k].tolerance))
                printf("kernel %d, case %d: worst %g\n", kernel, (int)k, worst);
        }
        if (!kernel) kernels(true);
    }
    CHECK_NOTHING_LIVES();
}

/* ---- transducers ---- */

enum { TT = 4, UU = 3, TC = 4 };

/* Every path from (0, 0): returns log P, and puts into shares what each log probability has of it. */
static double walk(const double *p, int t, int u, int t_end, int u_end, const int64_t *y, double so_far,
                   double total, double *shares, int (*trail)[3], int n) {
    const int64_t at = (t * (UU + 1) + u) * TC;
    double sum = -INFINITY;
    if (t == t_end - 1 && u == u_end) {
        sum = so_far + p[at + TC - 1];
        for (int i = 0; shares && i < n; i++)
            shares[(trail[i][0] * (UU + 1) + trail[i][1]) * TC + trail[i][2]] += exp(sum - total);
        if (shares) shares[at + TC - 1] += exp(sum - total);
        return sum;
    }
    trail[n][0] = t, trail[n][1] = u;
    if (t + 1 < t_end) {
        trail[n][2] = TC - 1;
        sum = log_add(
            sum, walk(p, t + 1, u, t_end, u_end, y, so_far + p[at + TC - 1], total, shares, trail, n + 1));
    }
    if (u < u_end) {
        trail[n][2] = (int)y[u];
        sum = log_add(sum,
                      walk(p, t, u + 1, t_end, u_end, y, so_far + p[at + y[u]], total, shares, trail, n + 1));
    }
    return sum;
}

/* The loss of every path beside ours; d loss / d scores = softmax * (share of the cell) - its class */
static double transducer_round(fl_dtype d, double scale) {
    fl_scope s = fl_scope_begin();
    int64_t target[N * UU], steps[N], lengths[N];
    enum { CELL = (UU + 1) * TC, ALL = TT * CELL };
    for (int i = 0; i < N * UU; i++) target[i] = below(TC - 1);
    for (int i = 0; i < N; i++) steps[i] = 1 + below(TT), lengths[i] = below(UU + 1);
    fl_tensor *given = numbers(FL_SHAPE(N, TT, UU + 1, TC), d, scale);
    fl_tensor *p = fl_log_softmax(fl_cast(given, FL_F64), 3);
    double want[N], dx[N * ALL];
    for (int n = 0; n < N; n++) {
        int trail[TT + UU][3];
        double shares[ALL] = {0};
        const double *q = (const double *)fl_data(p) + n * ALL;
        want[n] = walk(q, 0, 0, (int)steps[n], (int)lengths[n], target + n * UU, 0, 0, NULL, trail, 0);
        walk(q, 0, 0, (int)steps[n], (int)lengths[n], target + n * UU, 0, want[n], shares, trail, 0);
        want[n] = -want[n];
        for (int cell = 0; cell < ALL; cell += TC) {
            double mass = 0;
            for (int c = 0; c < TC; c++) mass += shares[cell + c];
            for (int c = 0; c < TC; c++) dx[n * ALL + cell + c] = exp(q[cell + c]) * mass - shares[cell + c];
        }
    }
    fl_var *x = fv_param(given);
    fl_var *loss = fv_transducer_loss(x, fl_from_host(target, FL_SHAPE(N, UU), FL_I64), integers(steps, N),
                                      integers(lengths, N), .reduction = FL_NONE);
    double worst = loss ? distance(fv_value(loss), want) : INFINITY;
    CHECK(fl_backward(fv_sum(loss, FL_ALL_AXES)));
    worst = fmax(worst, distance(fv_grad(x), dx));
    fl_scope_end(&s);
    return worst;
}

TEST(transducer_is_the_sum_over_all_paths) {
    static const struct { fl_dtype d; double scale, tolerance; } table[] = {
        {FL_F64, 1, 1e-12}, {FL_F32, 1, 1e-5}, {FL_F64, 80, 1e-11}};
    for (int kernel = 1; kernel >= 0; kernel--) {
        fl_lattice_register();
        if (!kernel) kernels(false);
        for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
            double worst = 0;
            for (int round = 0; round < 12; round++)
                worst = fmax(worst, transducer_round(table[k].d, table[k].scale));
            if (!CHECK(worst <= table[k].tolerance))
                printf("kernel %d, case %d: worst %g\n", kernel, (int)k, worst);
        }
        if (!kernel) kernels(true);
    }
    CHECK_NOTHING_LIVES();
}

/* ---- gradients ---- */

static fl_var *asg_of(fl_var *const *x, void *user) {
    (void)user;
    fl_tensor *target = fl_from_host((int64_t[]){0, 1, 1, 2, 2, 2}, FL_SHAPE(2, 3), FL_I64);
    return fv_asg_loss(x[0], x[1], target, integers((int64_t[]){4, 3}, 2), integers((int64_t[]){3, 1}, 2),
                       .reduction = FL_NONE);
}

static fl_tensor *joint_target(void) { return fl_from_host((int64_t[]){0, 1, 2, 2}, FL_SHAPE(2, 2), FL_I64); }

static fl_var *joint_of(fl_var *const *x, void *user) {
    const int64_t cells = *(const int64_t *)user;
    fl_var *p = fv_transducer_joint(x[0], x[1], x[2], x[3], joint_target(), .cells = cells);
    return p ? fv_transducer_joint_loss(p, integers((int64_t[]){3, 2}, 2), integers((int64_t[]){2, 1}, 2),
                                        (fl_lattice_opts){.reduction = FL_SUM}) : NULL;
}

/* Scores that a layer rounded are summed in f32, where fl_autocast is on. */
TEST(asg_of_mixed_precision) {
    fl_scope s = fl_scope_begin();
    fl_tensor *e = fl_normal(FL_SHAPE(4, 2, 4), 0, 1, FL_F32, NULL), *w = fl_zeros(FL_SHAPE(4, 4), FL_F32);
    fl_var *wide[] = {fv_const(e), fv_const(w)}, *narrow[] = {fv_const(fl_cast(e, FL_BF16)), wide[1]};
    fl_var *loss = asg_of(wide, NULL);
    CHECK(fl_autocast(FL_BF16));
    fl_var *y = asg_of(narrow, NULL);
    CHECK(y && fv_value(y)->dtype == FL_F32);
    CHECK(fl_item(fl_amax(fl_abs(fl_sub(fv_value(y), fv_value(loss))), FL_ALL_AXES)) < 0.1);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* The first calls after an override compare the compositions with what the ops' `contains` names. */
TEST(fused_losses_name_what_they_run) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_var *e = fv_param(numbers(FL_SHAPE(4, 2, 3), FL_F64, 1));
    fl_var *w = fv_param(numbers(FL_SHAPE(3, 3), FL_F64, 1)), *ew[] = {e, w};
    CHECK(asg_of(ew, NULL)); /* registers them */
    fl_tensor *x = numbers(FL_SHAPE(2, 3, 3, 4), FL_F64, 1), *steps = integers((int64_t[]){3, 2}, 2);
    fl_var *joint = fv_param(x);
    fl_backend mine = *fl_backend_at(fl_backend_index("cpu"));
    REQUIRE(fl_backend_override(&mine, FL_OP_erf, mine.op[FL_OP_erf]) && fl_backend_use(&mine, NULL));
    CHECK(fl_backward(fv_sum(asg_of(ew, NULL), FL_ALL_AXES)));
    CHECK_NO_ERROR();
    CHECK(fl_backward(fv_transducer_loss(joint, joint_target(), steps, integers((int64_t[]){2, 1}, 2),
                                         .reduction = FL_SUM)));
    CHECK_NO_ERROR();
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(gradients_are_those_of_differences) {
    fl_scope s = fl_scope_begin();
    fl_var *e = fv_param(numbers(FL_SHAPE(4, 2, 3), FL_F64, 1)),
           *w = fv_param(numbers(FL_SHAPE(3, 3), FL_F64, 1));
    CHECK(fl_gradcheck(asg_of, FV_LIST(e, w)));
    CHECK(fl_gradgradcheck(asg_of, FV_LIST(e, w)));
    fl_var *a = fv_param(numbers(FL_SHAPE(2, 3, 2), FL_F64, 1)),
           *b = fv_param(numbers(FL_SHAPE(2, 3, 2), FL_F64, 1));
    fl_var *weight = fv_param(numbers(FL_SHAPE(4, 2), FL_F64, 1)),
           *bias = fv_param(numbers(FL_SHAPE(4), FL_F64, 1));
    CHECK(fl_gradcheck(joint_of, FV_LIST(a, b, weight, bias), .user = &(int64_t){1}));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* The joint is the loss of the scores that it does not make, whatever its pieces. */
TEST(the_fused_joint_is_the_plain_one) {
    fl_scope s = fl_scope_begin();
    fl_var *a = fv_param(numbers(FL_SHAPE(2, 3, 5), FL_F32, 1)),
           *b = fv_param(numbers(FL_SHAPE(2, 3, 5), FL_F32, 1));
    fl_var *weight = fv_param(numbers(FL_SHAPE(4, 5), FL_F32, 1)),
           *bias = fv_param(numbers(FL_SHAPE(4), FL_F32, 1));
    fl_var *in[] = {a, b, weight, bias}, *plain[4], *fused[4];
    fl_var *x = fv_linear(fv_tanh(fv_add(fv_unsqueeze(a, 2), fv_unsqueeze(b, 1))), weight, bias);
    fl_var *want = fv_transducer_loss(x, joint_target(), integers((int64_t[]){3, 2}, 2),
                                      integers((int64_t[]){2, 1}, 2), .reduction = FL_SUM);
    CHECK(fl_grads(FV_LIST(want), fv_list_of(4, in), plain));
    for (int64_t cells = 1; cells < 100; cells *= 9) {
        fl_var *got = joint_of(in, &cells);
        if (!CHECK(got != NULL)) continue;
        CHECK_NEAR(fl_item(fv_value(got)), fl_item(fv_value(want)), 1e-5);
        CHECK(fl_grads(FV_LIST(got), fv_list_of(4, in), fused));
        for (int i = 0; i < 4; i++)
            CHECK(fl_item(fl_amax(fl_abs(fl_sub(fv_value(plain[i]), fv_value(fused[i]))), FL_ALL_AXES)) <
                  1e-5);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* The loss of four labels in t frames, of a batch of one, the gradient of the scores in *dx. */
static double long_loss(int kind, int64_t t, fl_tensor **dx, fl_tensor **scores) {
    const int64_t labels = 4;
    fl_tensor *steps = integers(&t, 1), *length = integers(&labels, 1);
    fl_tensor *target = fl_from_host((int64_t[]){1, 2, 1, 1}, FL_SHAPE(1, 4), FL_I64);
    const fl_shape shape = kind == TRANSDUCER ? FL_SHAPE(1, t, 5, 5) : FL_SHAPE(t, 1, 5);
    *scores = fl_mul(fl_uniform(shape, -1, 1, FL_F32, NULL), fl_num(30));
    fl_var *x = fv_param(*scores), *w = fv_const(fl_zeros(FL_SHAPE(5, 5), FL_F32)), *loss;
    if (kind == TRANSDUCER) loss = fv_transducer_loss(x, target, steps, length, .reduction = FL_SUM);
    else if (kind == CTC) loss = fv_ctc_loss(fv_log_softmax(x, 2), target, steps, length, .blank = 4,
                                             .reduction = FL_SUM);
    else loss = fv_asg_loss(x, w, target, steps, length, .reduction = FL_SUM);
    const bool ok = loss && fl_backward(loss);
    *dx = ok ? fv_grad(x) : NULL;
    return ok ? fl_item(fv_value(loss)) : NAN;
}

/* Ten thousand frames: finite, gradients of each row of scores sum to 0 as those of normalised scores do, and
   twice the frames take twice the memory. */
TEST(long_sequences) {
    enum { LONG = 10000 };
    for (int kind = ASG; kind <= TRANSDUCER; kind++) {
        int64_t peak[2];
        if (kind == LINSEG) continue;
        for (int round = 0; round < 3; round++) { /* the first one meets what is made once */
            const int twice = round == 2;
            fl_scope s = fl_scope_begin();
            fl_tensor *dx, *x;
            fl_mem_stats_reset_peak(NULL);
            heap.bytes = 0;
            fl_heap_use(heap_fn, NULL);
            const int64_t before = fl_mem_stats_of(NULL).in_use, t = twice ? LONG : LONG / 2;
            const double loss = long_loss(kind, t, &dx, &x);
            fl_heap_use(NULL, NULL);
            peak[twice] = fl_mem_stats_of(NULL).peak_in_use - before + heap.bytes;
            if (!CHECK(isfinite(loss) && loss > 0 && dx)) puts(fl_error());
            fl_tensor *row = fl_sum(dx, FL_AXES(-1));
            CHECK(fl_item(fl_amax(fl_abs(row), FL_ALL_AXES)) < 1e-4);
            const double all = fl_item(fl_sum(fl_abs(dx), FL_ALL_AXES));
            CHECK(isfinite(all) && all > 1);
            fl_scope_end(&s);
        }
        printf("%d: %.1f MB\n", kind, (double)peak[1] / 1e6);
        CHECK_NEAR((double)peak[1] / (double)peak[0], 2, 0.2);
    }
    CHECK_NOTHING_LIVES();
}

TEST(odd_sequences) {
    fl_scope s = fl_scope_begin();
    fl_tensor *e = fl_mul(fl_uniform(FL_SHAPE(10000, 1, 5), -1, 1, FL_F32, NULL), fl_num(30));
    fl_tensor *w = fl_zeros(FL_SHAPE(5, 5), FL_F32), *one = integers((int64_t[]){10000}, 1);
    fl_tensor *target = fl_from_host((int64_t[]){1, 2, 1, 1}, FL_SHAPE(1, 4), FL_I64);
    const double full = fl_item(fl_asg_full(e, w, one));
    CHECK(fabs(full - fl_item(fl_sum(fl_logsumexp(e, FL_AXES(2)), FL_ALL_AXES))) < 0.02 * fabs(full) / 1000);
    fl_var *loss;
    /* a target that does not fit: infinite, or 0, with a gradient of 0 */
    fl_var *few = fv_param(fl_zeros(FL_SHAPE(2, 1, 5), FL_F32));
    fl_tensor *two = integers((int64_t[]){2}, 1), *four = integers((int64_t[]){4}, 1);
    CHECK(isinf(fl_item(fv_value(fv_asg_loss(few, fv_const(w), target, two, four)))));
    loss = fv_asg_loss(few, fv_const(w), target, two, four, .zero_infinity = true);
    CHECK(fl_item(fv_value(loss)) == 0 && fl_backward(loss));
    CHECK(fl_item(fl_amax(fl_abs(fv_grad(few)), FL_ALL_AXES)) == 0);
    CHECK(!fl_asg_loss(e, w, fl_from_host((int64_t[]){9}, FL_SHAPE(1, 1), FL_I64), one,
                       integers((int64_t[]){1}, 1)));
    CHECK_ERROR("label 9 of sequence 0 is out of range for 5 classes");
    CHECK(!fl_asg_loss(e, fl_zeros(FL_SHAPE(4, 5), FL_F32), target, one, one));
    CHECK_ERROR("transitions f32 [4, 5]");
    CHECK(!fl_transducer_loss(fl_zeros(FL_SHAPE(1, 3, 2, 4), FL_F32), target, one, one));
    CHECK_ERROR("scores [1, 3, 2, 4], targets [1, 4]");
    CHECK(!fl_transducer_loss(fl_zeros(FL_SHAPE(1, 3, 5, 4), FL_F32), target, integers((int64_t[]){0}, 1),
                              four));
    CHECK_ERROR("sequence 0 has 0 frames");
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- criteria ---- */

/* The score of the best path whose tokens are those; by every path of t frames. */
static double best_by_force(const float *e, const float *w, int t, int c, int blank, const int64_t *want,
                            int64_t n) {
    double best = -INFINITY;
    int path[T] = {0}, i = 0;
    while (i < t) {
        double p = 0;
        int64_t at = 0;
        bool same = true;
        for (int k = 0; k < t; k++) {
            p += e[k * c + path[k]] + (w && k ? w[path[k] * c + path[k - 1]] : 0);
            if (path[k] == blank || (k && path[k] == path[k - 1])) continue;
            same &= at < n && want[at] == path[k], at++;
        }
        if (!want || (same && at == n)) best = fmax(best, p);
        for (i = 0; i < t && ++path[i] == c; i++) path[i] = 0;
    }
    return best;
}

TEST(best_paths_and_alignments_are_those_of_all_paths) {
    fl_scope s = fl_scope_begin();
    for (int round = 0; round < 20; round++) {
        for (int asg = 0; asg < 2; asg++) {
            fl_nn_module *m = fl_speech_criterion(asg ? "asg" : "ctc", 0, 4);
            const int t = 1 + (int)below(T), blank = asg ? -1 : 3;
            fl_tensor *x = fl_contiguous(fl_log_softmax(numbers(FL_SHAPE(t, 4), FL_F32, 3), 1));
            fl_var *moves = fl_speech_criterion_transitions(m);
            if (moves) fl_assign(fv_value(moves), numbers(FL_SHAPE(4, 4), FL_F32, 2));
            const float *w = moves ? fl_data(fv_value(moves)) : NULL;
            int64_t best[T];
            fl_speech_span span[T];
            const int64_t n = fl_speech_criterion_best(m, x, best, T);
            const double top = best_by_force(fl_data(x), w, t, 4, blank, NULL, 0);
            CHECK_NEAR(best_by_force(fl_data(x), w, t, 4, blank, best, n), top, 1e-5);
            if (n > 0) CHECK_NEAR(fl_speech_criterion_align(m, x, best, n, span), top, 1e-5);
            for (int64_t k = 0; k < n; k++)
                CHECK(span[k].begin < span[k].end && span[k].end <= t &&
                      (!k || span[k - 1].end <= span[k].begin) && span[k].confidence > 0 &&
                      span[k].confidence <= 1 + 1e-6);
            fl_nn_free(m);
        }
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

enum { TOKENS = 5, WIDE = 16, SAYINGS = 3, LONGEST = 4 };
static const int64_t sayings[SAYINGS][LONGEST] = {{0, 1, 1, 2}, {3, 2, 0, -1}, {2, 4, -1, -1}};
static const int64_t said[SAYINGS] = {4, 3, 2};

/* Frames of the sayings: each token takes 4, of which the first 3 show it. */
static fl_tensor *spoken(int64_t *steps) {
    float x[SAYINGS * LONGEST * 4 * TOKENS] = {0};
    for (int i = 0; i < SAYINGS; i++) {
        steps[i] = said[i] * 4;
        for (int64_t t = 0; t < steps[i]; t++)
            if (t % 4 < 3) x[(i * LONGEST * 4 + t) * TOKENS + sayings[i][t / 4]] = 1;
    }
    return fl_from_host(x, FL_SHAPE(SAYINGS, LONGEST * 4, TOKENS), FL_F32);
}

typedef struct learner {
    const char *kind;
    fl_speech_criterion_opts o;
    int steps;
} learner;

/* Trains a linear layer and the criterion; how many of the sayings it says then. */
static int learn(const learner *l, int64_t *misplaced) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = fl_data_rng(5, 0, 0);
    fl_speech_criterion_opts o = l->o;
    o.rng = &rng;
    const bool frames = !strcmp(l->kind, "ctc") || !strcmp(l->kind, "asg");
    const bool twice = o.attend.attention && (strstr(o.attend.attention, "kv") || *o.attend.attention == 'k');
    const int64_t dim = frames ? TOKENS + 1 : twice ? 2 * WIDE : WIDE;
    fl_nn_module *net = fl_nn_linear(TOKENS, dim, .rng = &rng),
                 *m = fl_speech_criterion_opt(l->kind, dim, TOKENS + 1, o);
    fl_nn_module *both = fl_nn_module_list(net, m);
    /* at twice the rate the loss of attention leaps now and then */
    fl_optim *optim = fl_optim_adam(fl_nn_parameters(both), .lr = frames ? 0.02 : 0.01);
    int64_t steps[SAYINGS], right = 0;
    fl_tensor *x = spoken(steps), *of = integers(steps, SAYINGS), *lengths = integers(said, SAYINGS);
    fl_tensor *target = fl_from_host(sayings, FL_SHAPE(SAYINGS, LONGEST), FL_I64);
    if (frames) fl_speech_criterion_warmup(m, true);
    for (int k = 0; k < l->steps; k++) {
        fl_scope step = fl_scope_begin();
        if (k == l->steps / 4) fl_speech_criterion_warmup(m, false);
        fl_optim_zero_grad(optim);
        if (!fl_backward(fl_speech_criterion_loss(m, fl_nn_forward(net, fv_const(x)), of, target, lengths)) ||
            !fl_optim_step(optim)) puts(fl_error());
        fl_scope_end(&step);
    }
    fl_nn_train(both, false);
    for (int i = 0; i < SAYINGS; i++) {
        int64_t out[8];
        fl_speech_span span[LONGEST];
        fl_var *y = fl_nn_forward(net, fv_const(fl_slice(fl_select(x, 0, i), 0, 0, steps[i], 1)));
        const int64_t n = fl_speech_criterion_best(m, fv_value(y), out, 8);
        right += n == said[i] && !memcmp(out, sayings[i], (size_t)n * sizeof *out);
        CHECK(!isnan(fl_speech_criterion_align(m, fv_value(y), sayings[i], said[i], span)));
        for (int64_t k = 0; k < said[i]; k++)
            *misplaced +=
                span[k].begin >= 4 * k + 4 || span[k].end <= 4 * k || span[k].token != sayings[i][k];
    }
    fl_optim_free(optim);
    fl_nn_free(both);
    fl_scope_end(&s);
    return (int)right;
}

/* Attention may have more tokens than frames: several are at one, in their order. */
/* By padded frames or by tokens, while targets are stretched too, which Flashlight scales by frames. */
TEST(losses_are_scaled) {
    fl_scope s = fl_scope_begin();
    int64_t steps[SAYINGS];
    fl_var *x = fv_const(fl_slice(spoken(steps), 0, 1, 2, 1));
    fl_tensor *of[] = {integers(steps + 1, 1), fl_from_host(sayings[1], FL_SHAPE(1, LONGEST), FL_I64),
                       integers(said + 1, 1)};
    for (int k = 0; k < 4; k++) {
        const bool warm = k & 1, by_frames = k & 2;
        const double t = LONGEST * 4, l = warm && by_frames ? t : 3;
        const double want[] = {1, 1 / t, sqrt(1 / t), 1 / l, sqrt(1 / l)};
        double plain = 0;
        for (int mode = 0; mode < 5; mode++) {
            fl_nn_module *m = fl_speech_criterion("asg", 0, TOKENS, .scale = (fl_speech_scale_mode)mode,
                                                  .linseg_by_frames = by_frames);
            fl_speech_criterion_warmup(m, warm);
            fl_var *loss = fl_speech_criterion_loss(m, x, of[0], of[1], of[2]);
            const double got = loss ? fl_item(fv_value(loss)) : NAN;
            if (!mode) plain = got;
            CHECK_NEAR(got, want[mode] * plain, 1e-5 * plain);
            fl_nn_free(m);
        }
        CHECK(plain > 1);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(more_tokens_than_frames) {
    enum { FRAMES = 3, MANY = 7 };
    static const char *const kind[] = {"seq2seq", "transformer"};
    const int64_t tokens[MANY] = {0, 1, 1, 2, 0, 2, 3};
    fl_scope s = fl_scope_begin();
    for (int i = 0; i < 2; i++) {
        fl_nn_module *m = fl_speech_criterion(kind[i], WIDE, TOKENS);
        fl_tensor *x = numbers(FL_SHAPE(FRAMES, WIDE), FL_F32, 1);
        fl_speech_span span[MANY];
        fl_nn_train(m, false);
        CHECK(!isnan(fl_speech_criterion_align(m, x, tokens, MANY, span)));
        for (int k = 0; k < MANY; k++)
            CHECK(span[k].token == tokens[k] && span[k].begin >= (k ? span[k - 1].end - 1 : 0) &&
                  span[k].end > span[k].begin && span[k].end <= FRAMES);
        CHECK(span[0].begin == 0 && span[MANY - 1].end == FRAMES);
        fl_nn_free(m);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(every_criterion_learns_and_aligns) {
    static const learner table[] = {
        {"ctc", {.scale = FL_SPEECH_SCALE_TARGET}, 400},
        {"asg", {.diagonal = 0.1}, 100},
        {"transducer", {.hidden = WIDE}, 150},
        {"transducer", {.hidden = WIDE, .context = 2, .ctc_weight = 0.3}, 150},
        {"seq2seq", {.attend = {.window = "soft_pretrain", .width = 2}}, 150},
        {"seq2seq", {.attend = {.attention = "neuralloc", .input_feeding = true}}, 150},
        {"seq2seq",
         {.attend = {.attention = "multikv", .heads = 2, .sampling = "model", .replaced = 0.5}},
         150},
        {"seq2seq",
         {.attend = {.attention = "neural", .sampling = "gumbel", .replaced = 0.5, .rounds = 2}},
         150},
        {"transformer", {.attend = {.rounds = 2, .heads = 2, .window = "step", .smoothing = 0.05}}, 150},
        {"transformer", {.attend = {.rounds = 2, .heads = 2, .attend_last = true, .replaced = 0.1}}, 150},
        {"joint", {.attend = {.heads = 2, .transformer = true}}, 150}};
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        int64_t misplaced = 0;
        const int right = learn(&table[k], &misplaced);
        const bool free = strcmp(table[k].kind, "ctc") != 0 && strcmp(table[k].kind, "asg") != 0;
        printf("%s %d: %d of %d, %lld of 9 tokens misplaced\n", table[k].kind, (int)k, right, SAYINGS,
               (long long)misplaced);
        /* asg, and who knows few tokens and single frames, cannot say a token twice in a row */
        CHECK_EQ_INT(right, SAYINGS - (k == 1 || k == 3));
        CHECK(misplaced <= (free ? 6 : 0)); /* others may wait, or look elsewhere */
    }
    CHECK_NOTHING_LIVES();
}

/* What is said token by token, as a beam, is what is scored at once. */
TEST(steps_are_the_whole) {
    static const char *const names[] = {"content", "keyvalue", "neural", "simpleloc", "location", "neuralloc",
                                        "multi", "multikv", "multisplit", "multikvsplit"};
    static const char *const windows[] = {NULL, "soft", "step", "median"};
    fl_scope s = fl_scope_begin();
    for (int k = 0; k < 24; k++) {
        const bool transformer = k >= 20;
        const char *name = transformer ? names[6 + k % 4] : names[k % 10];
        const bool twice = strstr(name, "kv") || *name == 'k';
        fl_rng rng = fl_data_rng(9, 0, k);
        fl_nn_module *m = fl_speech_attend(
            8, 5, .attention = name, .transformer = transformer, .heads = 2, .rounds = 2, .layers = 2,
            .window = windows[transformer ? k % 3 : k % 4], .rate = 1, .left = 2, .right = 3,
            .window_always = true, .max_rate = 2, .input_feeding = !transformer && k >= 10, .rng = &rng);
        if (!CHECK(m != NULL)) continue;
        fl_nn_train(m, false);
        fl_tensor *x = numbers(FL_SHAPE(7, twice ? 16 : 8), FL_F32, 1);
        fl_tensor *target = fl_from_host((int64_t[]){1, 3, 3, 0}, FL_SHAPE(1, 4), FL_I64);
        fl_var *w, *y = fl_speech_attend_scores(m, fv_const(fl_unsqueeze(x, 0)), integers((int64_t[]){7}, 1),
                                                target, &w);
        if (!CHECK(y != NULL)) continue;
        fl_tensor *want = fl_log_softmax(fl_select(fv_value(y), 0, 0), 1);
        fl_speech_decoder_state *speaker = fl_speech_decoder_state_new(m, x, 2, 5);
        for (int64_t u = 0; u < 5; u++) {
            fl_tensor *last =
                u ? fl_full(FL_SHAPE(2), (double)((int64_t *)fl_data(target))[u - 1], FL_I64) : NULL;
            fl_tensor *p = fl_speech_decoder_state_next(speaker, last);
            fl_tensor *off = p ? fl_sub(p, fl_select(want, 0, (int)u)) : NULL;
            if (!CHECK(off && fl_item(fl_amax(fl_abs(off), FL_ALL_AXES)) < 1e-4))
                printf("%s, token %d\n", name, (int)u);
            CHECK(fl_speech_decoder_state_reorder(speaker, integers((int64_t[]){1, 0}, 2)));
            CHECK_NEAR(fl_item(fl_sum(fl_speech_decoder_state_weights(speaker), FL_ALL_AXES)), 2, 1e-5);
        }
        CHECK(!fl_speech_decoder_state_next(speaker, integers((int64_t[]){1, 1}, 2)));
        CHECK_ERROR("the state was made for 5 tokens");
        fl_speech_decoder_state_free(speaker);
        fl_nn_free(m);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- windows ---- */

static double window_of(int kind, int64_t u, int64_t of, double t, double steps) {
    if (kind == 0) return -pow(t - round(fmin(4 + 1.5 * (double)u, steps - 1.5)), 2) / (2 * 3 * 3);
    if (kind == 1) return -pow(t - (double)u * steps / (double)of, 2) / (2 * 3 * 3);
    const double from = round(fmin(steps - 3.2, 1.2 + 0.8 * (double)u)), to = round(6.2 + 3.2 * (double)u);
    return t >= fmax(0, from) && t < to ? 0 : -10000;
}

/* Frames of zeros score alike, so that the weights are the window alone, of each sequence over its steps. */
TEST(weights_of_windows) {
    static const char *const names[] = {"soft", "soft_pretrain", "step", "median"};
    enum { FRAMES = 23, U = 6, BATCH = 2 };
    static const int64_t steps[] = {FRAMES, 17};
    for (int kind = 0; kind < 4; kind++)
        for (int share = 0; share < 3; share++) { /* warm 0: no window, 0.5, and 1 */
            fl_scope s = fl_scope_begin();
            fl_nn_module *m = fl_speech_attend(4, 5, .window = names[kind], .width = 3, .rate = 1.5,
                                               .offset = 4, .min_frames = 1.2, .max_frames = 6.2,
                                               .min_rate = 0.8, .max_rate = 3.2, .left = 2, .right = 4);
            REQUIRE(m);
            CHECK(fl_speech_attend_warmup(m, share / 2.));
            fl_tensor *target = fl_zeros(FL_SHAPE(BATCH, U - 1), FL_I64);
            fl_var *w, *y = fl_speech_attend_scores(m, fv_const(fl_zeros(FL_SHAPE(BATCH, FRAMES, 4), FL_F32)),
                                                    integers(steps, BATCH), target, &w);
            REQUIRE(y);
            const float *got = fl_data(fl_contiguous(fv_value(w)));
            double last[FRAMES] = {0}, worst = 0;
            for (int64_t b = 0; b < BATCH; b++)
                for (int64_t u = 0; u < U; u++) {
                    double p[FRAMES], sum = 0;
                    int64_t middle = 0, from;
                    for (double half = last[0]; u && half < 0.5; half += last[++middle]) {}
                    from = middle - 2 < steps[b] - 6 ? middle - 2 : steps[b] - 6;
                    if (from < 0) from = 0;
                    for (int64_t t = 0; t < FRAMES; t++) {
                        const double window = window_of(kind, u, U, (double)t, (double)steps[b]);
                        double at = kind < 3 ? share / 2. * window : 0;
                        if (kind == 3 && u && share && (t < from || t >= from + 6)) at = -10000;
                        sum += p[t] = t < steps[b] ? exp(at) : 0;
                    }
                    for (int64_t t = 0; t < FRAMES; t++) {
                        last[t] = p[t] / sum;
                        worst = fmax(worst, fabs(got[(b * U + u) * FRAMES + t] - last[t]));
                    }
                }
            if (!CHECK(worst < 1e-5)) printf("%s, %d / 2: off by %g\n", names[kind], share, worst);
            fl_nn_free(m);
            fl_scope_end(&s);
        }
    CHECK_NOTHING_LIVES();
}

/* ---- memory ---- */

static fl_nn_module *swept;
static fl_tensor *swept_x;

static bool align_and_best(void) {
    static const int64_t target[] = {1, 0, 2};
    fl_speech_span span[3];
    int64_t out[16];
    return !isnan(fl_speech_criterion_align(swept, swept_x, target, 3, span)) &&
           fl_speech_criterion_best(swept, swept_x, out, 16) >= 0;
}

TEST(any_request_for_memory_may_fail) {
    static const char *const kinds[] = {"ctc", "asg", "transducer", "seq2seq", "transformer", "joint"};
    int64_t points = 0;
    for (int k = 0; k < 6; k++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = fl_data_rng(1, 0, k);
        swept = fl_speech_criterion(kinds[k], 4, 4, .attend = {.heads = 2}, .rng = &rng);
        swept_x = fl_normal(FL_SHAPE(6, 4), 0, 1, FL_F32, &rng);
        REQUIRE(swept);
        fl_nn_train(swept, false);
        CHECK(align_and_best());
        fl_heap_use(heap_fn, NULL);
        points += sweep_heap(align_and_best, false);
        fl_heap_use(NULL, NULL);
        /* and of the memory manager, whose blocks the heap does not see again */
        for (int64_t n = 1, ok = 0; !ok && n < 2000; n++, points++) {
            fl_scope inner = fl_scope_begin();
            fl_mem_manager *failing = fl_mem_failing(NULL, n, true), *before = fl_mem_set_current(failing);
            ok = align_and_best();
            fl_mem_set_current(before);
            fl_mem_close(failing);
            CHECK(ok ? !fl_error() : fl_error() != NULL);
            fl_error_clear();
            fl_scope_end(&inner);
        }
        CHECK(align_and_best());
        fl_nn_free(swept);
        fl_scope_end(&s);
    }
    printf("%lld points\n", (long long)points);
    CHECK(points > 100);
    CHECK_NOTHING_LIVES();
}

/* What a search finds has the score that training gives it; a wide beam finds no worse than a narrow one. */
TEST(searches_are_what_was_trained) {
    static const char *const kinds[] = {"transducer", "seq2seq", "transformer", "joint"};
    enum { FRAMES = 5, MOST = 6 };
    for (int kind = 0; kind < 4; kind++) {
        fl_scope s = fl_scope_begin();
        fl_rng rng = fl_data_rng(7, 0, kind);
        fl_nn_module *m = fl_speech_criterion(kinds[kind], 6, 5, .attend = {.heads = 2}, .rng = &rng);
        fl_tensor *x = fl_normal(FL_SHAPE(FRAMES, 6), 0, 2, FL_F32, &rng);
        fl_nn_train(m, false);
        double narrow = -INFINITY;
        for (int64_t beam = 1; beam <= 20; beam += 19) {
            fl_speech_predictor *p = fl_speech_criterion_predictor(m, x, beam, MOST);
            fl_speech_search *d = fl_speech_search_new(p, NULL, .beam = beam, .most = MOST, .log_add = true,
                                                       .threshold = 1e3);
            fl_speech_result r;
            CHECK(d && fl_speech_search_step(d, kind ? MOST + 1 : FRAMES) && fl_speech_search_end(d));
            CHECK_EQ_INT(fl_speech_search_best(d, 1, &r), 1);
            int64_t token[MOST * FRAMES], best[MOST + 1];
            const int64_t n = fl_speech_search_tokens(d, 0, token, MOST * FRAMES);
            CHECK_EQ_INT(n, r.words);
            fl_tensor *target = fl_from_host(token, FL_SHAPE(1, n), FL_I64);
            fl_nn_module *decoder = fl_speech_criterion_decoder(m);
            fl_var *batch = fv_const(fl_unsqueeze(x, 0));
            const int64_t t = FRAMES;
            fl_var *loss = decoder ? fl_speech_attend_loss(decoder, batch, integers(&t, 1), target,
                                                           integers(&n, 1))
                                   : fl_speech_criterion_loss(m, batch, integers(&t, 1), target,
                                                              integers(&n, 1));
            const double score = -fl_item(fv_value(loss));
            if (kind || beam > 1)
                CHECK_NEAR(r.score, score, 1e-4); /* a narrow beam does not see all the ways */
            if (kind && beam == 1 && n < MOST) {
                CHECK_EQ_INT(fl_speech_criterion_best(m, x, best, MOST), n);
                CHECK(!memcmp(best, token, (size_t)n * sizeof *token));
            }
            CHECK(r.score >= narrow - 1e-6);
            narrow = r.score;
            fl_speech_search_free(d);
            fl_speech_predictor_free(p);
        }
        fl_nn_free(m);
        fl_scope_end(&s);
    }
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_speech_criterion("ctc", 5, 5);
    CHECK(!fl_speech_criterion_predictor(m, fl_ones(FL_SHAPE(4, 5), FL_F32), 1, 1));
    CHECK_ERROR("got ctc, expected transducer");
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(targets_that_do_not_fit) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = numbers(FL_SHAPE(2, 3, 4), FL_F32, 1), *steps = integers((int64_t[]){3, 3}, 2);
    fl_tensor *target = fl_from_host((int64_t[]){0, 1, -1, 2, 2, 1}, FL_SHAPE(2, 3), FL_I64);
    fl_tensor *lengths = integers((int64_t[]){2, 3}, 2), *cut = integers((int64_t[]){2, 2}, 2);
    double loss[3];
    for (int k = 0; k < 3; k++) {
        fl_nn_module *m = fl_speech_criterion("ctc", 0, 4, .too_long = (fl_speech_too_long)k);
        fl_var *y = fl_speech_criterion_loss(m, fv_const(x), steps, target, lengths);
        if (!k) CHECK_ERROR("sequence 1: 3 tokens need 4 frames, got 3"), CHECK(!y);
        loss[k] = y ? fl_item(fv_value(y)) : 0;
        if (k == 1)
            CHECK_NEAR(loss[1],
                       fl_item(fv_value(fl_speech_criterion_loss(m, fv_const(x), steps, target, cut))), 0);
        fl_nn_free(m);
    }
    CHECK(loss[2] > 0 && loss[2] < loss[1]);
    static const struct { const char *kind; int64_t dim, classes; const char *text;
    } bad[] = {{"rnnt", 4, 4, "no criterion 'rnnt'; known: ctc, asg, transducer"},
               {"ctc", 5, 4, "ctc: got dim 5, classes 4"},
               {"transformer", 4, 4, "hidden 4, heads 8"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!fl_speech_criterion(bad[i].kind, bad[i].dim, bad[i].classes));
        CHECK_ERROR(bad[i].text);
    }
    CHECK(!fl_speech_attend(8, 4, .attention = "dot"));
    CHECK_ERROR("no attention 'dot'; known: content, keyvalue, neural");
    CHECK(!fl_speech_attend(8, 4, .window = "hard"));
    CHECK_ERROR("no window 'hard'; known: soft, soft_pretrain, step, median");
    CHECK(!fl_speech_attend(8, 4, .transformer = true, .attention = "location"));
    CHECK_ERROR("a transformer processes all tokens at once");
    fl_nn_module *m = fl_speech_criterion("asg", 0, 4);
    CHECK(!fl_speech_criterion_loss(m, fv_const(x), steps, fl_sub(target, fl_int(1)), lengths));
    CHECK_ERROR("sequence 0: token 0 is -1, expected a class below 4");
    CHECK(!fl_speech_criterion_loss(m, fv_const(numbers(FL_SHAPE(2, 3, 5), FL_F32, 1)), steps, target,
                                    lengths));
    CHECK_ERROR("asg: got frames [2, 3, 5]");
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) {
    fl_set_error_handler(test__ignore_error, NULL);
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
