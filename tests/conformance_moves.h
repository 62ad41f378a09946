/* conformance_moves.h - the ops of fl/ops/move.h and create.h: where each element comes
   from, walked coordinate by coordinate, and distributions of random draws */

/* Settings of one case, drawn at random. */
typedef struct moving_args {
    int axis, other;
    int64_t n, low, high, reps[FL_MAX_DIMS];
} moving_args;

/* An op: of how many dims; *to, the result's shape, from settings it chooses; where coordinate c of
   the result comes from (false: it is 0); and the call. */
typedef struct moving {
    const char *name;
    int least, most;
    void (*choose)(moving_args *a, fl_shape s, fl_shape *to);
    bool (*source)(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at);
    fl_tensor *(*run)(fl_tensor *x, const moving_args *a);
} moving;

static void any_number(moving_args *a, fl_shape s, fl_shape *to) {
    (void)s, (void)to;
    a->n = random_below(9) - 4;
}

static bool flip_source(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at) {
    at[a->axis] = s.dim[a->axis] - 1 - c[a->axis];
    return true;
}
static fl_tensor *flip_run(fl_tensor *x, const moving_args *a) { return fl_flip(x, 1, &a->axis); }

static bool roll_source(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at) {
    int64_t n = s.dim[a->axis], p = c[a->axis] - a->n;
    while (p < 0) p += n;
    while (p >= n) p -= n;
    at[a->axis] = p;
    return true;
}
static fl_tensor *roll_run(fl_tensor *x, const moving_args *a) {
    return fl_roll(x, a->n, a->axis - x->ndim);
}

static void turn_choose(moving_args *a, fl_shape s, fl_shape *to) {
    a->n = random_below(4);
    a->other = (a->axis + 1) % s.ndim;
    if (a->n % 2) to->dim[a->axis] = s.dim[a->other], to->dim[a->other] = s.dim[a->axis];
}
/* Each turn puts (j, width - 1 - i) at (i, j). */
static bool turn_source(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at) {
    int64_t i = c[a->axis], j = c[a->other];
    for (int64_t turn = a->n; turn > 0; turn--) {
        int64_t width = s.dim[turn % 2 ? a->other : a->axis], row = i;
        i = j, j = width - 1 - row;
    }
    at[a->axis] = i, at[a->other] = j;
    return true;
}
static fl_tensor *turn_run(fl_tensor *x, const moving_args *a) {
    return fl_rot90(x, a->n - 4, a->axis, a->other);
}

static void movedim_choose(moving_args *a, fl_shape s, fl_shape *to) {
    a->other = (int)random_below(s.ndim);
    for (int i = 0, next = 0; i < s.ndim; i++) {
        next += next == a->axis;
        to->dim[i] = s.dim[i == a->other ? a->axis : next++];
    }
}
static bool movedim_source(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at) {
    for (int i = 0, next = 0; i < s.ndim; i++) {
        next += next == a->axis;
        at[i == a->other ? a->axis : next++] = c[i];
    }
    return true;
}
static fl_tensor *movedim_run(fl_tensor *x, const moving_args *a) {
    return fl_movedim(x, a->axis, a->other - x->ndim);
}

static void narrow_choose(moving_args *a, fl_shape s, fl_shape *to) {
    a->low = random_below(s.dim[a->axis] + 1);
    a->n = to->dim[a->axis] = random_below(s.dim[a->axis] - a->low + 1);
}
static bool narrow_source(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at) {
    (void)s;
    at[a->axis] = c[a->axis] + a->low;
    return true;
}
static fl_tensor *narrow_run(fl_tensor *x, const moving_args *a) {
    return fl_narrow(x, a->axis, a->low, a->n);
}

static void tile_choose(moving_args *a, fl_shape s, fl_shape *to) {
    for (int i = 0; i < s.ndim; i++) to->dim[i] *= a->reps[i] = 1 + random_below(2);
}
static bool tile_source(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at) {
    (void)a;
    for (int i = 0; i < s.ndim; i++) at[i] = c[i] % s.dim[i];
    return true;
}
static fl_tensor *tile_run(fl_tensor *x, const moving_args *a) {
    fl_shape reps = {x->ndim, {0}};
    memcpy(reps.dim, a->reps, sizeof reps.dim);
    return a->reps[0] == 1 ? fl_repeat(x, reps) : fl_tile(x, reps);
}

static void interleave_choose(moving_args *a, fl_shape s, fl_shape *to) {
    (void)s;
    to->dim[a->axis] *= a->n = random_below(4);
}
static bool interleave_source(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at) {
    (void)s;
    at[a->axis] = c[a->axis] / a->n;
    return true;
}
static fl_tensor *interleave_run(fl_tensor *x, const moving_args *a) {
    return fl_repeat_interleave(x, a->n, a->axis);
}

/* Element i of the axis i mod 3 times. */
static void each_choose(moving_args *a, fl_shape s, fl_shape *to) {
    to->dim[a->axis] = 0;
    for (int64_t i = 0; i < s.dim[a->axis]; i++) to->dim[a->axis] += i % 3;
}
static bool each_source(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at) {
    (void)s;
    at[a->axis] = 0;
    for (int64_t left = c[a->axis]; left >= at[a->axis] % 3; at[a->axis]++) left -= at[a->axis] % 3;
    return true;
}
static fl_tensor *each_run(fl_tensor *x, const moving_args *a) {
    fl_tensor *times = fl_remainder(fl_arange(0, (double)x->shape[a->axis], 1, FL_I32), fl_int(3));
    return fl_repeat_interleave_each(x, fl_to(times, fl_backend_name(x)), a->axis);
}

static void pad_choose(moving_args *a, fl_shape s, fl_shape *to) {
    int64_t n = s.dim[a->axis];
    a->n = n ? random_below(5) : FL_PAD_CONSTANT;
    a->low = random_below(9) - (n > 2), a->high = random_below(9) - (n > 2);
    to->dim[a->axis] += a->low + a->high;
}
/* Steps back into the axis, or what a negative side left of a circular one, one mirror or turn at a time. */
static bool pad_source(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at) {
    int64_t n = s.dim[a->axis], p = c[a->axis] - a->low;
    if (a->n == FL_PAD_CONSTANT && (p < 0 || p >= n)) return false;
    if (a->n == FL_PAD_CIRCULAR) {
        const int64_t first = a->low < 0 ? -a->low : 0, last = a->high < 0 ? n + a->high : n;
        while (p < first) p += last - first;
        while (p >= last) p -= last - first;
    }
    while (p < 0 || p >= n) {
        if (a->n == FL_PAD_EDGE || n == 1) p = p < 0 ? 0 : n - 1;
        else if (a->n == FL_PAD_REFLECT) p = p < 0 ? -p : 2 * (n - 1) - p;
        else if (a->n == FL_PAD_SYMMETRIC) p = p < 0 ? -1 - p : 2 * n - 1 - p;
        else p = p < 0 ? p + n : p - n;
    }
    at[a->axis] = p;
    return true;
}
static fl_tensor *pad_run(fl_tensor *x, const moving_args *a) {
    fl_pad_opts o = {.mode = (fl_pad_mode)a->n};
    o.low[a->axis] = a->low, o.high[a->axis] = a->high;
    return fl_pad_opt(x, o);
}

static void windows_choose(moving_args *a, fl_shape s, fl_shape *to) {
    int64_t n = s.dim[a->axis];
    a->low = 1 + random_below(3), a->high = 1 + random_below(3); /* step, dilation */
    a->n = n ? 1 + random_below((n - 1) / a->high + 1) : 1;
    to->dim[a->axis] = n ? (n - 1 - (a->n - 1) * a->high) / a->low + 1 : 0;
    to->dim[to->ndim++] = a->n;
}
static bool windows_source(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at) {
    at[a->axis] = c[a->axis] * a->low + c[s.ndim] * a->high;
    return true;
}
static fl_tensor *windows_run(fl_tensor *x, const moving_args *a) {
    return fl_sliding_windows(x, a->axis, a->n, a->low, a->high);
}

static void diagonal_choose(moving_args *a, fl_shape s, fl_shape *to) {
    any_number(a, s, to);
    a->other = (a->axis + 1) % s.ndim;
    int64_t count = 0;
    for (int64_t i = 0; i < s.dim[a->axis]; i++)
        count += i + a->n >= 0 && i + a->n < s.dim[a->other];
    to->ndim = 0;
    for (int i = 0; i < s.ndim; i++)
        if (i != a->axis && i != a->other) to->dim[to->ndim++] = s.dim[i];
    to->dim[to->ndim++] = count;
}
static bool diagonal_source(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at) {
    for (int i = 0, next = 0; i < s.ndim; i++)
        if (i != a->axis && i != a->other) at[i] = c[next++];
    int64_t k = c[s.ndim - 2];
    at[a->axis] = a->n < 0 ? k - a->n : k, at[a->other] = a->n < 0 ? k : k + a->n;
    return true;
}
static fl_tensor *diagonal_run(fl_tensor *x, const moving_args *a) {
    return fl_diagonal(x, a->n, a->axis, a->other);
}

static void embed_choose(moving_args *a, fl_shape s, fl_shape *to) {
    any_number(a, s, to);
    to->dim[s.ndim - 1] += a->n < 0 ? -a->n : a->n;
    to->dim[to->ndim++] = to->dim[s.ndim - 1];
}
static bool embed_source(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at) {
    int64_t row = c[s.ndim - 1], column = c[s.ndim];
    at[s.ndim - 1] = a->n < 0 ? column : row;
    return column - row == a->n;
}
static fl_tensor *embed_run(fl_tensor *x, const moving_args *a) {
    return fl_diag_embed(x, a->n);
}

static bool tril_source(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at) {
    (void)at;
    return c[s.ndim - 1] - c[s.ndim - 2] <= a->n;
}
static bool triu_source(const moving_args *a, fl_shape s, const int64_t *c, int64_t *at) {
    (void)at;
    return c[s.ndim - 1] - c[s.ndim - 2] >= a->n;
}
static fl_tensor *tril_run(fl_tensor *x, const moving_args *a) { return fl_tril(x, a->n); }
static fl_tensor *triu_run(fl_tensor *x, const moving_args *a) { return fl_triu(x, a->n); }

static const moving movings[] = {
    {"flip", 1, 8, any_number, flip_source, flip_run},
    {"roll", 1, 8, any_number, roll_source, roll_run},
    {"rot90", 2, 8, turn_choose, turn_source, turn_run},
    {"movedim", 1, 8, movedim_choose, movedim_source, movedim_run},
    {"narrow", 1, 8, narrow_choose, narrow_source, narrow_run},
    {"tile", 1, 8, tile_choose, tile_source, tile_run},
    {"repeat_interleave", 1, 8, interleave_choose, interleave_source, interleave_run},
    {"repeat_interleave_each", 1, 8, each_choose, each_source, each_run},
    {"pad", 1, 8, pad_choose, pad_source, pad_run},
    {"sliding_windows", 1, 7, windows_choose, windows_source, windows_run},
    {"diagonal", 2, 8, diagonal_choose, diagonal_source, diagonal_run},
    {"diag_embed", 1, 7, embed_choose, embed_source, embed_run},
    {"tril", 2, 8, any_number, tril_source, tril_run},
    {"triu", 2, 8, any_number, triu_source, triu_run},
};
enum { MOVINGS = sizeof movings / sizeof *movings };

static void moving_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    char text[100];
    const moving *m = movings;
    while (strcmp(m->name, name)) m++;
    if (s.ndim < m->least || s.ndim > m->most || s.dim[0] > 100 ||
        (s.dim[0] == 0 && m->choose == windows_choose) || /* no window fits */
        !case_begin(name, d, l, "%s", fl_shape_text(s, text, sizeof text)))
        return;
    operand x = make_operand(s, d, l, WILD);
    moving_args a = {.axis = (int)random_below(s.ndim)};
    fl_shape to = s;
    if (m->choose == windows_choose)
        while (s.dim[a.axis] == 0) a.axis = (a.axis + 1) % s.ndim;
    m->choose(&a, s, &to);
    array want = new_array(to, d);
    for (int64_t k = 0; k < want.n; k++) {
        int64_t c[FL_MAX_DIMS] = {0}, at[FL_MAX_DIMS];
        coords_of(to, k, c);
        memcpy(at, c, sizeof at);
        if (m->source(&a, s, c, at)) put_from(&want, k, &x.a, index_of(s, at));
    }
    case_end(equals(m->run(x.t, &a), &want));
}

static void run_moving(int i) {
    each_move(movings[i].name, UNWEAK, moving_case);
}

/* >>parts, views that are written, memory */

static void check_parts(void) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_arange(0, 14, 1, FL_I64), *part[8], *sum = fl_num(0);
    check(fl_split(x, 0, 4, part, 8) == 4 && fl_numel(part[3]) == 2 &&
              fl_item(fl_select(part[3], 0, 0)) == 12,
          "split: the last part is smaller");
    check(fl_split_with_sizes(x, 0, (int64_t[]){9, 0, 5}, 3, part) == 3 && fl_numel(part[0]) == 9 &&
              fl_numel(part[1]) == 0 && fl_item(fl_slice(part[2], 0, 0, 1, 1)) == 9,
          "split_with_sizes: parts of 9, 0 and 5");
    check(fl_chunk(x, 0, 4, part) == 4 && fl_numel(part[0]) == 4, "chunk: parts of ceil(14 / 4)");
    check(fl_chunk(x, 0, 8, part) == 7 && fl_numel(part[6]) == 2, "chunk: fewer parts than asked");
    fl_tensor *m = fl_zeros(FL_SHAPE(3, 4), FL_F32), *d = fl_diagonal(m, 1, 0, 1);
    bool aliases = d && !d->copied; /* a backend may refuse views: then writing one is an error */
    check(!aliases || (fl_accumulate(d, fl_num(2)) && fl_accumulate(d, fl_arange(0, 3, 1, FL_F32))),
          "accumulate into a diagonal");
    sum = fl_sum(fl_mul(m, m), FL_ALL_AXES);
    if (d && !d->copied) check(fl_item(sum) == 4 + 9 + 16, "the matrix holds what was added");
    fl_tensor *image = fl_uniform(FL_SHAPE(2, 3, 4, 5), 0, 1, FL_F32, &(fl_rng){1, 0});
    fl_tensor *last = fl_channels_last(image);
    check(fl_item(fl_all(fl_eq(image, last), FL_ALL_AXES)) == 1, "channels_last: the same values");
    if (last && !last->copied) {
        check(fl_is_contiguous(fl_movedim(last, 1, -1)), "channels_last: stored [n, h, w, c]");
        check(fl_is_channels_last(last), "channels_last: is_channels_last says so");
    }
    fl_scope_end(&s);
}

/* >>draws: sums of ((count - expected)^2 / expected) of k cells stay below the 99.99 % quantile */

static double chi_square(const int64_t *count, const double *p, int k, int64_t draws) {
    double sum = 0;
    for (int i = 0; i < k; i++) {
        double expected = p[i] * (double)draws, off = (double)count[i] - expected;
        sum += expected > 0 ? off * off / expected : count[i] ? INFINITY : 0;
    }
    return sum;
}

static void tally_draws(fl_tensor *t, int64_t *count, int k) {
    array a;
    memset(count, 0, (size_t)k * sizeof *count);
    if (!t || !read_tensor(t, &a)) return;
    for (int64_t i = 0; i < a.n; i++)
        if (a.i[i] >= 0 && a.i[i] < k) count[a.i[i]]++;
}

static void check_multinomial(void) {
    static const double p[] = {0.1, 0, 0.4, 0.25, 0.25};
    /* the second of two draws without replacement: sum over the first of p_i p_j / (1 - p_i) */
    double second[5] = {0};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) second[j] += i == j ? 0 : p[i] * p[j] / (1 - p[i]);
    int64_t count[5];
    fl_scope s = fl_scope_begin();
    fl_rng rng = {7, 0}, again = {7, 0};
    fl_tensor *w = fl_mul(fl_num(3), fl_from_host(p, FL_SHAPE(5), FL_F64));
    fl_tensor *many = fl_multinomial(w, 20000, true, &rng);
    tally_draws(many, count, 5);
    check(chi_square(count, p, 5, 20000) < 21.1, "multinomial: chi-square, 3 degrees of freedom");
    fl_tensor *same = fl_multinomial(w, 20000, true, &again);
    check(fl_item(fl_all(fl_eq(many, same), FL_ALL_AXES)) == 1, "multinomial: the same rng");
    fl_tensor *rows = fl_expand(w, FL_SHAPE(20000, 5)), *two = fl_multinomial(rows, 2, false, &rng);
    tally_draws(fl_select(two, 1, 0), count, 5);
    check(chi_square(count, p, 5, 20000) < 21.1, "multinomial without replacement: first draw");
    tally_draws(fl_select(two, 1, 1), count, 5);
    check(chi_square(count, second, 5, 20000) < 21.1, "multinomial without replacement: second");
    check(fl_item(fl_any(fl_eq(fl_select(two, 1, 0), fl_select(two, 1, 1)), FL_ALL_AXES)) == 0,
          "multinomial without replacement: no index twice");
    fl_scope_end(&s);
}

/* All 24 orders of four, and one of a thousand. */
static void check_permutation(void) {
    int64_t count[256] = {0}, orders[24];
    double p[24];
    int n = 0;
    fl_rng rng = {11, 0}, again = {11, 0};
    for (int i = 0; i < 6000; i++) {
        fl_scope s = fl_scope_begin();
        int64_t at[4] = {0};
        fl_tensor *t = fl_permutation(4, &rng);
        if (t && fl_to_host(t, at, sizeof at)) count[at[0] + 4 * at[1] + 16 * at[2] + 64 * at[3]]++;
        fl_scope_end(&s);
    }
    for (int i = 0; i < 256; i++)
        if (count[i] && n < 24) p[n] = 1 / 24.0, orders[n++] = count[i];
    check(n == 24 && chi_square(orders, p, 24, 6000) < 60.1, "permutation: 24 orders of four");
    fl_scope s = fl_scope_begin();
    rng = again;
    fl_tensor *t = fl_permutation(1000, &rng), *in_order = fl_sort(t, 0, false, NULL);
    fl_tensor *all = fl_eq(in_order, fl_arange(0, 1000, 1, FL_I64));
    check(fl_item(fl_all(all, FL_ALL_AXES)) == 1, "permutation: each number once");
    all = fl_eq(t, fl_permutation(1000, &again));
    check(fl_item(fl_all(all, FL_ALL_AXES)) == 1, "permutation: the same rng, the same order");
    check(fl_numel(fl_permutation(0, &rng)) == 0, "permutation: of nothing");
    fl_scope_end(&s);
}

static void check_bernoulli(void) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {3, 0};
    const float p[] = {0, 0.25f, 0.5f, 0.9f, 1};
    fl_tensor *t = fl_expand(fl_from_host(p, FL_SHAPE(5), FL_F32), FL_SHAPE(20000, 5));
    fl_tensor *y = fl_bernoulli(t, &rng), *mean = fl_mean(y, FL_AXES(0));
    float got[5] = {-1};
    check(y && y->dtype == FL_F32 && fl_to_host(mean, got, sizeof got), "bernoulli: floats");
    check(got[0] == 0 && got[4] == 1, "bernoulli: never and always");
    for (int i = 1; i < 4; i++) /* four standard deviations */
        check(fabs(got[i] - p[i]) < 4 * sqrt(p[i] * (1 - p[i]) / 20000), "bernoulli: its mean");
    fl_scope_end(&s);
}

/* Against the distribution function, in ten cells of equal probability. */
static void check_truncated_normal(double mean, double std, double low, double high) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {5, 0};
    int64_t count[10] = {0};
    double p[10], r = sqrt(0.5) / std;
    double from = erfc((mean - low) * r), to = erfc((mean - high) * r);
    array a;
    fl_tensor *t = fl_truncated_normal(FL_SHAPE(20000), mean, std, low, high, FL_F64, &rng);
    bool inside = t && read_tensor(t, &a);
    for (int64_t i = 0; inside && i < a.n; i++) {
        inside = a.f[i] >= low && a.f[i] <= high;
        double part = (erfc((mean - a.f[i]) * r) - from) / (to - from) * 10;
        count[part < 0 ? 0 : part >= 10 ? 9 : (int)part]++;
    }
    for (int i = 0; i < 10; i++) p[i] = 0.1;
    check(inside, "truncated_normal: within its bounds");
    check(chi_square(count, p, 10, 20000) < 33.8, "truncated_normal: chi-square, 9 degrees");
    fl_scope_end(&s);
}

static void moves_group(void) {
    check_parts();
    check_multinomial();
    check_permutation();
    check_bernoulli();
    check_truncated_normal(0, 1, -2, 2);
    check_truncated_normal(1, 2, 3, 20);
    check_truncated_normal(-1, 0.5, -INFINITY, -1.5);
}
/* MIT licence: see LICENSE. */
