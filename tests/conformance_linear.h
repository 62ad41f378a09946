/* conformance_linear.h - products of vectors and tensors, einsum

   Sums of products are compared with loops over all their letters. */

/* >>sums of products */

/* Letters a to z only, one per dim; `out` may lack some. */
typedef struct sum_case {
    const char *op, *equation, *in[3], *out;
    fl_shape shape[3];
} sum_case;

static const sum_case sum_cases[] = {
    {"dot", "", {"i", "i"}, "", {{1, {5}}, {1, {5}}}},
    {"dot", "", {"i", "i"}, "", {{1, {0}}, {1, {0}}}},
    {"dot", "", {"i", "i"}, "", {{1, {1000}}, {1, {1000}}}},
    {"outer", "", {"i", "j"}, "ij", {{1, {3}}, {1, {4}}}},
    {"outer", "", {"i", "j"}, "ij", {{1, {0}}, {1, {4}}}},
    {"outer", "", {"i", "j"}, "ij", {{1, {33}}, {1, {17}}}},
    {"tensordot", "", {"ijk", "jkl"}, "il", {{3, {2, 3, 4}}, {3, {3, 4, 5}}}},
    {"tensordot", "", {"jbk", "kaj"}, "ba", {{3, {3, 2, 4}}, {3, {4, 2, 3}}}},
    {"linear", "", {"bi", "oi"}, "bo", {{2, {5, 3}}, {2, {4, 3}}}},
    {"linear", "", {"abi", "oi"}, "abo", {{3, {2, 5, 70}}, {2, {33, 70}}}},
    {"linear", "", {"i", "oi"}, "o", {{1, {3}}, {2, {4, 3}}}},
    {"linear", "", {"bi", "oi"}, "bo", {{2, {0, 3}}, {2, {4, 3}}}},
    {"bilinear", "", {"bi", "oij", "bj"}, "bo", {{2, {5, 3}}, {3, {2, 3, 4}}, {2, {5, 4}}}},
    {"bilinear", "", {"abi", "oij", "abj"}, "abo",
     {{3, {2, 2, 3}}, {3, {3, 3, 2}}, {3, {2, 2, 2}}}},
    {"einsum", "ij,jk->ik", {"ij", "jk"}, "ik", {{2, {3, 4}}, {2, {4, 5}}}},
    {"einsum", "jk,ij", {"jk", "ij"}, "ik", {{2, {3, 4}}, {2, {5, 3}}}},
    {"einsum", "bij,bkj->bki", {"bij", "bkj"}, "bki", {{3, {2, 3, 4}}, {3, {2, 5, 4}}}},
    {"einsum", "ij->ji", {"ij"}, "ji", {{2, {17, 33}}}},
    {"einsum", " i i -> i ", {"ii"}, "i", {{2, {5, 5}}}},
    {"einsum", "iji->j", {"iji"}, "j", {{3, {3, 4, 3}}}},
    {"einsum", "iii->i", {"iii"}, "i", {{3, {3, 3, 3}}}},
    {"einsum", "iijj->ji", {"iijj"}, "ji", {{4, {2, 2, 3, 3}}}},
    {"einsum", "ij,ij->", {"ij", "ij"}, "", {{2, {3, 5}}, {2, {3, 5}}}},
    {"einsum", "i,j,k->kji", {"i", "j", "k"}, "kji", {{1, {2}}, {1, {3}}, {1, {4}}}},
    {"einsum", "ij,jk,kl->li", {"ij", "jk", "kl"}, "li", {{2, {2, 3}}, {2, {3, 4}}, {2, {4, 5}}}},
    {"einsum", "ab,bc,ca", {"ab", "bc", "ca"}, "", {{2, {2, 3}}, {2, {3, 4}}, {2, {4, 2}}}},
    {"einsum", "iij,jj->ij", {"iij", "jj"}, "ij", {{3, {2, 2, 3}}, {2, {3, 3}}}},
    {"einsum", "ij,kl->", {"ij", "kl"}, "", {{2, {2, 3}}, {2, {3, 2}}}},
    {"einsum", "i...,...->i...", {"iab", "ab"}, "iab", {{3, {2, 3, 4}}, {2, {3, 4}}}},
    {"einsum", "...ij,...jk", {"abij", "bjk"}, "abik", {{4, {2, 3, 2, 3}}, {3, {3, 3, 2}}}},
    {"einsum", "...i->...", {"abi"}, "ab", {{3, {2, 3, 4}}}},
    {"einsum", "i...->i", {"iab"}, "i", {{3, {2, 3, 4}}}},
    {"einsum", "Ba,aB", {"ba", "ab"}, "", {{2, {2, 3}}, {2, {3, 2}}}},
    {"einsum", "Ba,ac", {"ba", "ac"}, "bc", {{2, {2, 3}}, {2, {3, 2}}}},
    {"einsum", "ij,jk->ik", {"ij", "jk"}, "ik", {{2, {3, 0}}, {2, {0, 5}}}},
    {"einsum", "abcdefgh->hgfedcba", {"abcdefgh"}, "hgfedcba", {{8, {2, 1, 2, 1, 3, 1, 2, 1}}}},
    {"trace", "", {"ii"}, "", {{2, {5, 5}}}},
    {"trace", "", {"ii"}, "", {{2, {0, 0}}}},
};
enum { SUM_CASES = sizeof sum_cases / sizeof *sum_cases };

/* Place in an operand of `letters` and this shape where the letters have the values v. */
static int64_t place_of(const char *letters, fl_shape s, const int64_t *v) {
    int64_t at = 0;
    for (int d = 0; letters[d]; d++) at = at * s.dim[d] + v[letters[d] - 'a'];
    return at;
}

/* Sums the products over all values of all letters; terms: how many each element has. */
static void sum_reference(const sum_case *c, int n, const array *x, array *want, double *scale,
                          int64_t *terms) {
    int64_t size[26] = {0}, v[26] = {0}, total = 1;
    for (int i = 0; i < n; i++)
        for (int d = 0; c->in[i][d]; d++) size[c->in[i][d] - 'a'] = x[i].shape.dim[d];
    for (int l = 0; l < 26; l++) total *= strchr(c->in[0], 'a' + l) || size[l] ? size[l] : 1;
    *terms = want->n ? total / want->n : 0;
    for (int64_t k = 0; k < total; k++) {
        int64_t rest = k;
        for (int l = 0; l < 26; l++)
            if (size[l]) v[l] = rest % size[l], rest /= size[l];
        int64_t at = place_of(c->out, want->shape, v), whole = 1;
        double p = 1;
        for (int i = 0; i < n; i++) {
            int64_t from = place_of(c->in[i], x[i].shape, v);
            p *= x[i].f[from];
            whole = i_mul(whole, is_float(want->dtype) ? 1 : x[i].i[from]);
        }
        if (is_float(want->dtype)) want->f[at] += p;
        else put_int(want, at, i_add(want->i[at], whole));
        scale[at] += fabs(p);
    }
}

static fl_tensor *run_sum(const sum_case *c, int n, fl_tensor **x) {
    static const int left[] = {0, -1}, right[] = {2, 0};
    if (!strcmp(c->op, "dot")) return fl_dot(x[0], x[1]);
    if (!strcmp(c->op, "outer")) return fl_outer(x[0], x[1]);
    if (!strcmp(c->op, "trace")) return fl_trace(x[0]);
    if (!strcmp(c->op, "linear")) return fl_linear(x[0], x[1], NULL);
    if (!strcmp(c->op, "bilinear")) return fl_bilinear(x[0], x[2], x[1], NULL);
    if (!strcmp(c->op, "tensordot"))
        return c->in[0][0] == 'i' ? fl_tensordot(x[0], x[1], 2, NULL, NULL)
                                  : fl_tensordot(x[0], x[1], 2, left, right);
    return fl_einsum(c->equation, x, n);
}

/* A letter of one operand is summed, as by fl_sum: integers become i64. */
static bool sums_alone(const sum_case *c) {
    for (char l = 'a'; l <= 'z'; l++) {
        int holders = 0;
        for (int i = 0; i < 3 && c->in[i]; i++) holders += strchr(c->in[i], l) != NULL;
        if (holders == 1 && !strchr(c->out, l)) return true;
    }
    return false;
}

static void sum_of_products_case(fl_dtype d, layout l, int which) {
    const sum_case *c = &sum_cases[which];
    if (!case_begin(c->op, d, l, "%d %s", which, c->equation)) return;
    operand o[3];
    array x[3];
    fl_tensor *t[3];
    fl_shape s = {(int)strlen(c->out), {0}};
    int n = 0;
    for (; n < 3 && c->in[n]; n++) {
        o[n] = make_operand(c->shape[n], d, layout_fits(l, c->shape[n]) ? l : DENSE, TAME);
        x[n] = o[n].a;
        t[n] = o[n].t;
        for (int k = 0; c->in[n][k]; k++)
            for (int i = 0; i < s.ndim; i++)
                if (c->out[i] == c->in[n][k]) s.dim[i] = c->shape[n].dim[k];
    }
    array want = new_array(s, is_float(d) || !sums_alone(c) ? d : FL_I64);
    double *scale = take((size_t)want.n * 8 + 8);
    int64_t terms;
    sum_reference(c, n, x, &want, scale, &terms);
    tolerance tol = {1, n * rounding(l, (double)terms), 0};
    case_end(agrees(run_sum(c, n, t), &want, tol, scale, false));
}

/* >>others */

static void addmm_case(fl_dtype d, layout l, double beta, double alpha) {
    if (!case_begin("addmm", d, l, "%g %g", beta, alpha)) return;
    fl_shape sc = FL_SHAPE(3, 5), sa = FL_SHAPE(3, 4), sb = FL_SHAPE(4, 5);
    operand c = make_operand(sc, d, l, TAME), a = make_operand(sa, d, l, TAME),
            b = make_operand(sb, d, l, TAME);
    array want = new_array(sc, d);
    double *scale = take((size_t)want.n * 8);
    for (int64_t k = 0; k < want.n; k++) {
        double sum = beta * c.a.f[k];
        int64_t whole = i_mul((int64_t)beta, c.a.i[k]);
        scale[k] = fabs(sum);
        for (int64_t i = 0; i < 4; i++) {
            double p = alpha * a.a.f[k / 5 * 4 + i] * b.a.f[i * 5 + k % 5];
            int64_t q = i_mul(a.a.i[k / 5 * 4 + i], b.a.i[i * 5 + k % 5]);
            whole = i_add(whole, i_mul((int64_t)alpha, q));
            sum += p;
            scale[k] += fabs(p);
        }
        if (is_float(d)) want.f[k] = sum;
        else put_int(&want, k, whole);
    }
    case_end(product_agrees(fl_addmm(c.t, a.t, b.t, beta, alpha), &want, scale, 6));
}

static void kron_case(fl_dtype d, layout l, fl_shape sa, fl_shape sb) {
    if (!case_begin("kron", d, l, "%d %d", sa.ndim, sb.ndim)) return;
    operand a = make_operand(sa, d, layout_fits(l, sa) ? l : DENSE, TAME);
    operand b = make_operand(sb, d, layout_fits(l, sb) ? l : DENSE, TAME);
    int n = sa.ndim > sb.ndim ? sa.ndim : sb.ndim;
    fl_shape wa = {n, {0}}, wb = wa, s = wa;
    for (int i = 0; i < n; i++) {
        wa.dim[i] = i < n - sa.ndim ? 1 : sa.dim[i - n + sa.ndim];
        wb.dim[i] = i < n - sb.ndim ? 1 : sb.dim[i - n + sb.ndim];
        s.dim[i] = wa.dim[i] * wb.dim[i];
    }
    array want = new_array(s, d);
    int64_t at[FL_MAX_DIMS] = {0};
    for (int64_t k = 0; k < want.n; k++) {
        int64_t p = 0, q = 0;
        coords_of(s, k, at);
        for (int i = 0; i < n; i++) {
            p = p * wa.dim[i] + at[i] / wb.dim[i];
            q = q * wb.dim[i] + at[i] % wb.dim[i];
        }
        if (is_float(d)) want.f[k] = a.a.f[p] * b.a.f[q];
        else put_int(&want, k, i_mul(a.a.i[p], b.a.i[q]));
    }
    case_end(agrees(fl_kron(a.t, b.t), &want, (tolerance){0.5, 0, 0}, NULL, false));
}

static void cross_case(fl_dtype d, layout l, fl_shape s, int axis) {
    if (!case_begin("cross", d, l, "%d %d", s.ndim, axis)) return;
    operand a = make_operand(s, d, l, TAME), b = make_operand(s, d, l, TAME);
    array want = new_array(s, d);
    double *scale = take((size_t)want.n * 8);
    int64_t step = 1, at[FL_MAX_DIMS] = {0};
    for (int i = axis + 1; i < s.ndim; i++) step *= s.dim[i];
    for (int64_t k = 0; k < want.n; k++) {
        coords_of(s, k, at);
        int64_t first = k - at[axis] * step, p = first + (at[axis] + 1) % 3 * step,
                q = first + (at[axis] + 2) % 3 * step;
        scale[k] = fabs(a.a.f[p] * b.a.f[q]) + fabs(a.a.f[q] * b.a.f[p]);
        if (is_float(d)) want.f[k] = a.a.f[p] * b.a.f[q] - a.a.f[q] * b.a.f[p];
        else put_int(&want, k, i_mul(a.a.i[p], b.a.i[q]) - i_mul(a.a.i[q], b.a.i[p]));
    }
    case_end(product_agrees(fl_cross(a.t, b.t, axis - s.ndim), &want, scale, 2));
}

static double p_norm(const double *a, const double *b, int64_t n, double p) {
    double sum = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        double apart = fabs(a[i] - b[i]);
        sum += p == 0 ? apart != 0 : pow(apart, p);
        most = fmax(most, apart);
    }
    return isinf(p) ? most : p == 0 ? sum : pow(sum, 1 / p);
}

static void cdist_case(fl_dtype d, layout l, int64_t k, double p) {
    if (!case_begin("cdist", d, l, "%d %g", (int)k, p)) return;
    operand a = make_operand(FL_SHAPE(2, 3, k), d, l, TAME);
    operand b = make_operand(FL_SHAPE(4, k), d, l, TAME);
    array want = new_array(FL_SHAPE(2, 3, 4), is_float(d) ? d : FL_F32);
    for (int64_t i = 0; i < want.n; i++)
        want.f[i] = p_norm(a.a.f + i / 4 * k, b.a.f + i % 4 * k, k, p);
    fl_tensor *y = fl_cdist(a.t, b.t, p);
    case_end(agrees(y, &want, (tolerance){4, rounding(l, (double)k), 0}, NULL, false));
}

/* >>linear: the product, a bias and an activation in one record */

static double activation_of(fl_op act, double z) {
    switch (act) {
    case FL_OP_relu: return z <= 0 ? 0 : z;
    case FL_OP_gelu: return 0.5 * z * (1 + erf(z * sqrt(0.5)));
    case FL_OP_gelu_tanh:
        return 0.5 * z * (1 + tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)));
    case FL_OP_silu: return z / (1 + exp(-z));
    case FL_OP_sigmoid: return 1 / (1 + exp(-z));
    case FL_OP_tanh: return tanh(z);
    default: return z;
    }
}

/* x [2, rows, in] and w [out, in]; scale: what the rounding of the sum and of act may move. */
static void linear_act_case(fl_dtype d, layout l, fl_op act, int64_t in, int64_t out) {
    const fl_op_info *info = fl_op_get_info(act);
    if (!case_begin("linear_act", d, l, "%s %d %d", info ? info->name : "", (int)in, (int)out)) return;
    operand x = make_operand(FL_SHAPE(2, 3, in), d, l, TAME);
    operand w = make_operand(FL_SHAPE(out, in), d, l, TAME);
    operand b = make_operand(FL_SHAPE(out), d, DENSE, TAME);
    array want = new_array(FL_SHAPE(2, 3, out), d);
    double *scale = take((size_t)want.n * 8);
    for (int64_t i = 0; i < want.n; i++) {
        double z = b.a.f[i % out];
        scale[i] = fabs(z) + 1;
        for (int64_t k = 0; k < in; k++) {
            double p = x.a.f[i / out * in + k] * w.a.f[i % out * in + k];
            z += p;
            scale[i] += 2 * fabs(p);
        }
        want.f[i] = activation_of(act, z);
    }
    fl_tensor *y = act == FL_OP_NONE ? fl_linear(x.t, w.t, b.t) : fl_linear_act(x.t, w.t, b.t, act);
    case_end(product_agrees(y, &want, scale, in + 8));
}

static void linear_act_group(int unused) {
    static const fl_op acts[] = {FL_OP_NONE, FL_OP_relu, FL_OP_gelu,   FL_OP_gelu_tanh,
                                 FL_OP_silu,  FL_OP_tanh, FL_OP_sigmoid};
    static const int64_t size[][2] = {{5, 4}, {70, 33}, {1, 1}};
    (void)unused;
    expect_row("linear_act", FLOATS, UNWEAK & ~(1u << CHANNELS_LAST), 0, 0);
    snprintf(row_of("linear_act")->tolerance, 64, "%s", product_tolerance);
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; l <= BROADCAST && is_float(all_dtypes[k]); l++)
            for (int i = 0; i < 7 * 3 && l != CHANNELS_LAST; i++)
                linear_act_case(all_dtypes[k], (layout)l, acts[i % 7], size[i / 7][0], size[i / 7][1]);
}

/* The gradients of x [rows, in] by w [out, in] and a bias to those three: which is 0 of x, 1 of w, 2 of the
   bias. */
static void linear_grad_case(fl_dtype d, layout l, const int64_t *size, int which) {
    const int64_t rows = size[0], in = size[1], out = size[2];
    if (!case_begin("linear_grad", d, l, "%d %d %d d%c", (int)rows, (int)in, (int)out, "xwb"[which])) return;
    operand x = make_operand(FL_SHAPE(rows, in), d, l, TAME), w = make_operand(FL_SHAPE(out, in), d, l, TAME);
    operand b = make_operand(FL_SHAPE(out), d, DENSE, TAME);
    operand dz = make_operand(FL_SHAPE(rows, out), d, l, TAME);
    fl_var *of[] = {fv_param(x.t), fv_param(w.t), fv_param(b.t)};
    array want = new_array(fl_shape_of(of[which]->value), d);
    double *scale = take((size_t)want.n * 8);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < out; j++)
            for (int64_t k = 0; k < (which == 2 ? 1 : in); k++) {
                const double by = which == 0 ? w.a.f[j * in + k] : which == 1 ? x.a.f[i * in + k] : 1;
                const int64_t at = which == 0 ? i * in + k : which == 1 ? j * in + k : j;
                want.f[at] += dz.a.f[i * out + j] * by;
                scale[at] += fabs(dz.a.f[i * out + j] * by);
            }
    const bool ok = fl_backward(fv_linear(of[0], of[1], of[2]), .grad = dz.t);
    case_end(ok && product_agrees(fv_grad(of[which]), &want, scale, (which ? rows : out) + 8));
}

/* The last two are packed, in one chunk and in two. */
static void linear_grad_group(int unused) {
    static const int64_t size[][3] = {{6, 5, 4}, {1, 1, 1}, {90, 40, 270}, {1100, 20, 300}};
    (void)unused;
    expect_row("linear_grad", FLOATS, UNWEAK & ~(1u << CHANNELS_LAST), 0, 0);
    snprintf(row_of("linear_grad")->tolerance, 64, "%s", product_tolerance);
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; l <= BROADCAST && is_float(all_dtypes[k]); l++)
            for (int i = 0; i < 4 * 3 && l != CHANNELS_LAST; i++)
                linear_grad_case(all_dtypes[k], (layout)l, size[i / 3], i % 3);
}

/* x [rows, in] of f32 and a weight [out, in] of d, f16 and bf16 being also shown as blocks of q8 and q4:
   the product of what is stored, and the gradient to x. */
static void linear_stored_case(fl_dtype d, layout l, int64_t rows, bool blocks, bool grad) {
    const int64_t in = blocks ? 96 : 70, out = 9;
    const fl_dtype packed = !blocks ? d : d == FL_F16 ? fl_q8() : fl_q4();
    if (!case_begin("linear_packed", d, l, "%d rows, %s%s", (int)rows, fl_dtype_name(packed),
                    grad ? " dx" : ""))
        return;
    operand x = make_operand(FL_SHAPE(rows, in), FL_F32, l, TAME);
    fl_tensor *stored = fl_cast(make_operand(FL_SHAPE(out, in), FL_F32, DENSE, TAME).t, packed);
    fl_tensor *wide = fl_cast(stored, FL_F32);
    float *w = take((size_t)(in * out) * sizeof *w);
    fl_to_host(wide, w, (size_t)(in * out) * sizeof *w);
    array dy = random_array(FL_SHAPE(rows, out), FL_F32, TAME);
    array want = new_array(FL_SHAPE(rows, grad ? in : out), FL_F32);
    double *scale = take((size_t)want.n * 8);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < out; j++)
            for (int64_t k = 0; k < in; k++) {
                const double a = grad ? dy.f[i * out + j] : x.a.f[i * in + k], p = a * (double)w[j * in + k];
                const int64_t at = grad ? i * in + k : i * out + j;
                want.f[at] += p, scale[at] += fabs(p);
            }
    fl_var *from = fv_param(x.t), *y = fv_linear(from, fv_const(stored), NULL);
    const bool ok = y && (!grad || fl_backward(y, .grad = dense_tensor(&dy)));
    case_end(ok && product_agrees(grad ? fv_grad(from) : fv_value(y), &want, scale, in + 8));
}

static void linear_stored_group(int unused) {
    static const int64_t rows[] = {1, 3, 8, 9};
    (void)unused;
    expect_row("linear_packed", F16 | BF16, UNWEAK & ~(1u << CHANNELS_LAST), 0, 0);
    snprintf(row_of("linear_packed")->tolerance, 64, "%s", product_tolerance);
    for (int k = 0; k < 2; k++)
        for (int l = DENSE; l <= BROADCAST; l++)
            for (int i = 0; i < 4 * 4 && l != CHANNELS_LAST; i++)
                linear_stored_case(k ? FL_BF16 : FL_F16, (layout)l, rows[i / 4], i & 1, i & 2);
}

static void linear_cases_of(fl_dtype d, layout l) {
    static const double norms[] = {0, 0.5, 1, 2, 3, INFINITY};
    for (int i = 0; i < SUM_CASES; i++)
        if (layout_fits(l, sum_cases[i].shape[0])) sum_of_products_case(d, l, i);
    if (l != CHANNELS_LAST) {
        addmm_case(d, l, 1, 1);
        addmm_case(d, l, 2, -3);
        addmm_case(d, l, 0, 1);
        kron_case(d, l, FL_SHAPE(2, 3), FL_SHAPE(3, 2));
        kron_case(d, l, FL_SHAPE(3, 2), FL_SHAPE(4));
        cross_case(d, l, FL_SHAPE(3, 4), 0);
    }
    cross_case(d, l, FL_SHAPE(2, 4, 3), 2);
    cross_case(d, l, FL_SHAPE(2, 3, 4), 1);
    for (int i = 0; i < 6 && (is_float(d) || d == FL_I64); i++) {
        if (l == CHANNELS_LAST) continue;
        cdist_case(d, l, 3, norms[i]);
        if (l == DENSE) cdist_case(d, l, 0, norms[i]);
    }
}

static void linear_group(void) {
    static const char *const sums[] = {"dot",    "outer",    "tensordot", "linear",
                                       "einsum", "bilinear", "trace",     "cross"};
    for (int i = 0; i < 8; i++) {
        unsigned layouts = i < 2 ? UNWEAK & ~(1u << TRANSPOSED | 1u << CHANNELS_LAST) : UNWEAK;
        if (i == 6) layouts &= ~(1u << CHANNELS_LAST);
        expect_row(sums[i], NUMBERS, layouts, 0, 0);
        snprintf(row_of(sums[i])->tolerance, 64, "%s", product_tolerance);
    }
    expect_row("addmm", NUMBERS, UNWEAK & ~(1u << CHANNELS_LAST), 0, 0);
    expect_row("kron", NUMBERS, UNWEAK & ~(1u << CHANNELS_LAST), 0, 0);
    expect_row("cdist", FLOATS | I64, UNWEAK & ~(1u << CHANNELS_LAST), 0, 0);
    snprintf(row_of("cdist")->tolerance, 64, "4 ulp + (4 + sqrt n) eps");
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; l <= BROADCAST && takes(NUMBERS, all_dtypes[k]); l++)
            linear_cases_of(all_dtypes[k], (layout)l);
    fl_scope s = fl_scope_begin();
    fl_tensor *nan = fl_full(FL_SHAPE(2), NAN, FL_F32), *a = fl_ones(FL_SHAPE(2, 2), FL_F32);
    check(fl_item(fl_sum(fl_addmm(nan, a, a, 0, 1), FL_ALL_AXES)) == 8, "addmm: beta 0, c is NaN");
    fl_scope_end(&s);
}
/* MIT licence: see LICENSE. */
