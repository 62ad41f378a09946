/* conformance_move.h - creation, reading, views, copies, casts, joining: what moves elements
   without computing */

/* Element k of the result is element source[k] of x; -1: `fill`. */
static bool moved_agrees(fl_tensor *t, const array *x, fl_shape s, const int64_t *source) {
    array want = new_array(s, x->dtype);
    for (int64_t k = 0; k < want.n; k++) put_from(&want, k, x, source[k]);
    return equals(t, &want);
}

/* Calls fn for every dtype, layout of one operand, and shape. */
typedef void (*move_fn)(const char *name, fl_dtype d, layout l, fl_shape s);
static void each_move(const char *name, unsigned layouts, move_fn fn) {
    expect_row(name, STORED, layouts, 0, 0);
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; l <= BROADCAST; l++)
            for (int s = 0; s < SHAPES - 1; s++)
                if (layouts >> l & 1 && layout_fits((layout)l, shapes[s]))
                    fn(name, all_dtypes[k], (layout)l, shapes[s]);
}

static void permute_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    char text[100];
    bool transpose = !strcmp(name, "transpose");
    if ((transpose && s.ndim == 0) ||
        !case_begin(name, d, l, "%s", fl_shape_text(s, text, sizeof text)))
        return;
    operand x = make_operand(s, d, l, WILD);
    int axes[FL_MAX_DIMS];
    for (int i = 0; i < s.ndim; i++) axes[i] = i;
    for (int i = s.ndim - 1; i > 0 && !transpose; i--) {
        int j = (int)random_below(i + 1), keep = axes[i];
        axes[i] = axes[j];
        axes[j] = keep;
    }
    int a = (int)random_below(s.ndim + !s.ndim), b = (int)random_below(s.ndim + !s.ndim);
    if (transpose) axes[a] = b, axes[b] = a;
    fl_shape to = {s.ndim, {0}};
    for (int i = 0; i < s.ndim; i++) to.dim[i] = s.dim[axes[i]];
    int64_t *source = take((size_t)x.a.n * sizeof *source + 1), c[FL_MAX_DIMS] = {0},
            at[FL_MAX_DIMS] = {0};
    for (int64_t k = 0; k < x.a.n; k++) {
        coords_of(to, k, c);
        for (int i = 0; i < s.ndim; i++) at[axes[i]] = c[i];
        source[k] = index_of(s, at);
    }
    if (s.ndim && random_below(2)) axes[0] -= s.ndim;
    fl_tensor *t = transpose ? fl_transpose(x.t, a, b - s.ndim) : fl_permute(x.t, s.ndim, axes);
    case_end(moved_agrees(t, &x.a, to, source));
}

/* All elements in order, in a shape of the same size. */
static void reshape_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    char text[100];
    if (!case_begin(name, d, l, "%s", fl_shape_text(s, text, sizeof text))) return;
    operand x = make_operand(s, d, l, WILD);
    fl_shape to = {1, {x.a.n}}, asked;
    for (int64_t f = 2; f < 4; f++)
        if (to.dim[to.ndim - 1] % f == 0 && x.a.n) {
            to.dim[to.ndim] = f;
            to.dim[to.ndim++ - 1] /= f;
        }
    if (x.a.n == 1) to.ndim = (int)random_below(3), to.dim[0] = to.dim[1] = 1;
    if (x.a.n == 0) to = FL_SHAPE(4, 0);
    if (!strcmp(name, "flatten")) {
        int first = s.ndim ? (int)random_below(s.ndim) : 0,
            last = s.ndim ? first + (int)random_below(s.ndim - first) : 0;
        to = s.ndim ? s : FL_SHAPE(1);
        for (int i = first + 1; i <= last; i++) to.dim[first] *= s.dim[i];
        for (int i = last + 1; i < s.ndim; i++) to.dim[first + i - last] = s.dim[i];
        to.ndim -= last - first;
        array want = x.a;
        want.shape = to;
        case_end(equals(fl_flatten(x.t, first, last - s.ndim * (s.ndim > 0)), &want));
        return;
    }
    asked = to;
    if (to.ndim && x.a.n && random_below(2)) asked.dim[random_below(to.ndim)] = -1;
    array want = x.a;
    want.shape = to;
    case_end(equals(fl_reshape(x.t, asked), &want));
}

static void squeeze_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    char text[100];
    if (s.ndim == FL_MAX_DIMS || !case_begin(name, d, l, "%s", fl_shape_text(s, text, sizeof text)))
        return;
    operand x = make_operand(s, d, l, WILD);
    int axis = (int)random_below(s.ndim + 1);
    array want = x.a;
    want.shape.ndim++;
    for (int i = s.ndim; i > axis; i--) want.shape.dim[i] = s.dim[i - 1];
    want.shape.dim[axis] = 1;
    fl_tensor *t = fl_unsqueeze(x.t, random_below(2) ? axis : axis - s.ndim - 1);
    if (!strcmp(name, "squeeze")) t = fl_squeeze(t, random_below(2) ? axis : axis - s.ndim - 1);
    case_end(equals(t, strcmp(name, "squeeze") ? &want : &x.a));
}

static void expand_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    char text[100];
    if (!case_begin(name, d, l, "%s", fl_shape_text(s, text, sizeof text))) return;
    fl_shape small = with_ones(s, (unsigned)random_below(1 << s.ndim)), asked = s;
    operand x = make_operand(small, d, layout_fits(l, small) ? l : DENSE, WILD);
    for (int i = 0; i < s.ndim; i++)
        if (small.dim[i] == s.dim[i] && random_below(2)) asked.dim[i] = -1;
    if (s.ndim < 7 && random_below(2)) {
        memmove(asked.dim + 1, asked.dim, sizeof asked.dim - sizeof *asked.dim);
        asked.dim[0] = 2;
        asked.ndim++;
        memmove(s.dim + 1, s.dim, sizeof s.dim - sizeof *s.dim);
        s.dim[0] = 2;
        s.ndim++;
    }
    array want = expand_array(&x.a, s);
    case_end(equals(fl_expand(x.t, asked), &want));
}

/* Python's slice.indices. */
static int64_t slice_indices(int64_t n, int64_t *start, int64_t stop, int64_t step) {
    int64_t count = 0, i;
    if (*start < 0) *start += n;
    if (*start < 0) *start = step < 0 ? -1 : 0;
    if (*start >= n) *start = step < 0 ? n - 1 : n;
    if (stop == FL_SLICE_END) stop = step < 0 ? -1 : n;
    else if (stop < 0 && (stop += n) < 0) stop = step < 0 ? -1 : 0;
    for (i = *start; step > 0 ? i < stop && i < n : i > stop && i >= 0; i += step) count++;
    return count;
}

static void slice_once(const char *name, fl_dtype d, layout l, fl_shape s, int variant) {
    static const int64_t ranges[][3] = {
        {0, FL_SLICE_END, 2}, {1, -1, 1}, {-1, FL_SLICE_END, -1}, {-2, 0, -1},           {5, 2, 1},
        {-100, 100, 3},       {0, 0, 1},  {100, -100, -2},        {2, FL_SLICE_END, -1}, {1, 3, 1}};
    char text[100];
    const int64_t *r = ranges[variant];
    if (!case_begin(name, d, l, "%s %d", fl_shape_text(s, text, sizeof text), variant)) return;
    operand x = make_operand(s, d, l, WILD);
    int axis = (int)random_below(s.ndim);
    int64_t start = r[0], count = slice_indices(s.dim[axis], &start, r[1], r[2]),
            c[FL_MAX_DIMS] = {0};
    fl_shape to = s;
    to.dim[axis] = count;
    array want = new_array(to, d);
    for (int64_t k = 0; k < want.n; k++) {
        coords_of(to, k, c);
        c[axis] = start + c[axis] * r[2];
        put_from(&want, k, &x.a, index_of(s, c));
    }
    case_end(equals(fl_slice(x.t, axis - (int)random_below(2) * s.ndim, r[0], r[1], r[2]), &want));
}

static void slice_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    for (int v = 0; v < 10 && s.ndim; v++) slice_once(name, d, l, s, v);
}

static void select_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    char text[100];
    if (s.ndim == 0 || !case_begin(name, d, l, "%s", fl_shape_text(s, text, sizeof text))) return;
    operand x = make_operand(s, d, l, WILD);
    int axis = (int)random_below(s.ndim);
    if (s.dim[axis] == 0) {
        case_end(was_refused(fl_select(x.t, axis, 0)));
        return;
    }
    int64_t i = random_below(s.dim[axis]), c[FL_MAX_DIMS] = {0};
    fl_shape to = s;
    for (int k = axis; k + 1 < s.ndim; k++) to.dim[k] = s.dim[k + 1];
    to.ndim--;
    array want = new_array(to, d);
    for (int64_t k = 0; k < want.n; k++) {
        coords_of(to, k, c);
        memmove(c + axis + 1, c + axis, (size_t)(s.ndim - 1 - axis) * sizeof *c);
        c[axis] = i;
        put_from(&want, k, &x.a, index_of(s, c));
    }
    case_end(equals(fl_select(x.t, axis, random_below(2) ? i : i - s.dim[axis]), &want));
}

/* clone, contiguous, to_host, set_host: the same elements. */
static void copy_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    char text[100];
    if (!case_begin(name, d, l, "%s", fl_shape_text(s, text, sizeof text))) return;
    operand x = make_operand(s, d, l, WILD);
    bool clone = !strcmp(name, "copy"), contiguous = !strcmp(name, "contiguous");
    fl_tensor *t = clone        ? fl_clone(x.t)
                   : contiguous ? fl_contiguous(x.t)
                                : fl_to(fl_to(x.t, "cpu"), fl_backend_name(x.t));
    bool ok = equals(t, &x.a);
    if (ok && (clone || contiguous) && !fl_is_contiguous(t)) ok = say("not contiguous");
    if (ok && clone && t == x.t) ok = say("no storage of its own");
    case_end(ok);
}

static void cast_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    char text[100];
    for (int k = 0; k < DTYPES; k++) {
        if (!case_begin(name, d, l, "to %s %s", fl_dtype_name(all_dtypes[k]),
                        fl_shape_text(s, text, sizeof text)))
            return;
        operand x = make_operand(s, d, l, WILD);
        array want = cast_array(&x.a, all_dtypes[k]);
        case_end(equals(fl_cast(x.t, all_dtypes[k]), &want));
    }
}

/* dst of layout l, written from a dense or broadcast source of any dtype, through the view into its
   base. */
static void assign_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    char text[100];
    fl_dtype from = all_dtypes[(d + s.ndim) % DTYPES];
    if (!case_begin(name, d, l, "%s from %s", fl_shape_text(s, text, sizeof text),
                    fl_dtype_name(from)))
        return;
    operand dst = make_operand(s, d, l, WILD);
    fl_shape small = with_ones(s, (unsigned)random_below(1 << s.ndim));
    array src = random_array(random_below(2) ? s : small, from, WILD), full = expand_array(&src, s);
    array want = cast_array(&full, d);
    bool refused = dst.t && dst.t->copied;
    for (int i = 0; dst.t && i < s.ndim; i++) refused |= s.dim[i] > 1 && dst.t->stride[i] == 0;
    uint32_t version = fl_version_of(dst.t);
    fl_tensor *t = fl_assign(
        dst.t, lay_out(&src, layout_fits(TRANSPOSED, src.shape) ? TRANSPOSED : DENSE));
    if (refused) {
        case_end(was_refused(t) && fl_version_of(dst.t) == version && equals(dst.t, &dst.a));
        return;
    }
    case_end(t == dst.t && fl_version_of(dst.t) > version && equals(dst.t, &want));
}

/* Writing through a view changes the base, there and only there; a copied view refuses. */
static void write_through(const char *name, fl_dtype d) {
    if (!case_begin(name, d, OFFSET, "through a view")) return;
    array base = random_array(FL_SHAPE(4, 6), d, WILD),
          value = random_array(FL_SHAPE(3, 2), d, WILD);
    fl_tensor *t = dense_tensor(&base),
              *v = fl_slice(fl_slice(fl_transpose(t, 0, 1), 0, 1, 6, 2), 1, -1, 1, -1);
    array before = new_array(base.shape, d);
    for (int64_t k = 0; k < base.n; k++) put_from(&before, k, &base, k);
    if (v && v->copied) {
        bool ok = was_refused(fl_assign(v, dense_tensor(&value))) && !fl_map(v, FL_WRITE);
        fl_error_clear();
        case_end(ok && equals(t, &before));
        return;
    }
    for (int64_t i = 0; i < 3; i++)
        for (int64_t j = 0; j < 2; j++) put_from(&base, (3 - j) * 6 + 1 + 2 * i, &value, i * 2 + j);
    bool ok = fl_assign(v, dense_tensor(&value)) == v && equals(t, &base);
    /* overlap: a row onto the next one */
    array shifted = new_array(base.shape, d);
    for (int64_t k = 0; k < base.n; k++) put_from(&shifted, k, &base, k < 6 ? k : k - 6);
    ok = ok && fl_assign(fl_slice(t, 0, 1, 4, 1), fl_slice(t, 0, 0, 3, 1)) && equals(t, &shifted);
    case_end(ok);
}

static void join_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    char text[100];
    bool stack = !strcmp(name, "stack");
    if ((!stack && s.ndim == 0) || (stack && s.ndim == FL_MAX_DIMS)) return;
    if (!case_begin(name, d, l, "%s", fl_shape_text(s, text, sizeof text))) return;
    int n = 1 + (int)random_below(3), axis = (int)random_below(s.ndim + stack),
        ndim = s.ndim + stack;
    fl_tensor *ts[3];
    array parts[3];
    int64_t ends[3], end = 0;
    for (int i = 0; i < n; i++) {
        fl_shape part = s;
        if (!stack) part.dim[axis] = random_below(4);
        operand x = make_operand(part, d, l, WILD);
        ts[i] = x.t;
        parts[i] = x.a;
        ends[i] = end += stack ? 1 : part.dim[axis];
    }
    fl_shape to = s;
    if (stack) memmove(to.dim + axis + 1, to.dim + axis, (size_t)(s.ndim - axis) * sizeof *to.dim);
    to.ndim = ndim;
    to.dim[axis] = end;
    array want = new_array(to, d);
    int64_t c[FL_MAX_DIMS] = {0};
    for (int64_t k = 0; k < want.n; k++) {
        int i = 0;
        coords_of(to, k, c);
        while (c[axis] >= ends[i]) i++;
        c[axis] -= i ? ends[i - 1] : 0;
        if (stack) memmove(c + axis, c + axis + 1, (size_t)(ndim - 1 - axis) * sizeof *c);
        put_from(&want, k, &parts[i], index_of(parts[i].shape, c));
    }
    axis -= (int)random_below(2) * ndim;
    case_end(equals(stack ? fl_stack(ts, n, axis) : fl_concat(ts, n, axis), &want));
}

/* Tensors that nothing goes into: row `name`, dense only. */
static void create_group(void) {
    static const double values_[] = {0, 1, -1, 2.5, 300, -3e9, 1e20, NAN, INFINITY, -0.0};
    expect_row("fill", STORED, PLAIN, 0, 0);
    expect_row("full_like", STORED, STRIDED, 0, 0);
    expect_row("eye", STORED, PLAIN, 0, 0);
    expect_row("iota", NUMBERS, PLAIN, 0, STORED & ~NUMBERS);
    for (int k = 0; k < DTYPES; k++) {
        fl_dtype d = all_dtypes[k];
        for (int v = 0; v < 10; v++)
            for (int s = 0; s < SHAPES - 1; s += 3) {
                if (!case_begin("fill", d, DENSE, "%g shape %d", values_[v], s)) continue;
                array want = new_array(shapes[s], d);
                for (int64_t i = 0; i < want.n; i++) put_float(&want, i, values_[v]);
                fl_tensor *t = v == 0   ? fl_zeros(shapes[s], d)
                               : v == 1 ? fl_ones(shapes[s], d)
                                        : fl_full(shapes[s], values_[v], d);
                case_end(equals(t, &want));
            }
        for (int l = DENSE; l <= CHANNELS_LAST; l++) {
            if (!case_begin("full_like", d, (layout)l, "7")) continue;
            operand x = make_operand(FL_SHAPE(2, 3, 4), d, (layout)l, WILD);
            array want = new_array(x.a.shape, d);
            for (int64_t i = 0; i < want.n; i++) put_float(&want, i, 7);
            case_end(equals(fl_full_like(x.t, 7), &want));
        }
        for (int64_t n = 0; n < 4; n++) {
            if (!case_begin("eye", d, DENSE, "%d", (int)n)) continue;
            array want = new_array(FL_SHAPE(n, 5 - n), d);
            for (int64_t i = 0; i < n && i < 5 - n; i++) put_int(&want, i * (5 - n) + i, 1);
            case_end(equals(fl_eye(n, 5 - n, d), &want));
        }
    }
}

static void arange_case(fl_dtype d, double start, double stop, double step) {
    if (!case_begin("iota", d, takes(NUMBERS, d) ? DENSE : REFUSED, "%g %g %g", start, stop, step))
        return;
    if (!takes(NUMBERS, d)) {
        case_end(was_refused(fl_arange(start, stop, step, d)));
        return;
    }
    double n = ceil((stop - start) / step);
    array want = new_array(FL_SHAPE(n > 0 ? (int64_t)n : 0), d);
    for (int64_t i = 0; i < want.n; i++)
        if (is_float(d)) put_float(&want, i, start + (double)i * step);
        else put_int(&want, i, (int64_t)start + i * (int64_t)step);
    case_end(equals(fl_arange(start, stop, step, d), &want));
}

static void arange_group(void) {
    for (int k = 0; k < DTYPES; k++) {
        arange_case(all_dtypes[k], 0, 10, 1);
        arange_case(all_dtypes[k], 5, -7, -3);
        arange_case(all_dtypes[k], 0, 0, 1);
        arange_case(all_dtypes[k], 3, 3000, 1);
        if (is_float(all_dtypes[k])) arange_case(all_dtypes[k], 0, 1, 0.1);
    }
}

static void host_case(const char *name, fl_dtype d, layout l, fl_shape s) {
    char text[100];
    if (!case_begin(name, d, l, "%s", fl_shape_text(s, text, sizeof text))) return;
    operand x = make_operand(s, d, l, WILD);
    array value = random_array(s, d, WILD);
    size_t size = fl_dtype_size(d);
    char *p = take((size_t)value.n * size + 1);
    for (int64_t k = 0; k < value.n; k++) store(p + (size_t)k * size, &value, k);
    bool writes = x.t && !x.t->copied && l != BROADCAST,
         done = fl_set_host(x.t, p, (size_t)value.n * size);
    if (done || writes || !fl_error()) {
        case_end((done || say("not written")) && equals(x.t, &value));
        return;
    }
    fl_error_clear();
    case_end(equals(x.t, &x.a)); /* refused: nothing changed */
}

/* What must be refused, whatever the backend. */
static void move_errors(void) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_zeros(FL_SHAPE(2, 3), FL_F32),
              *pair[] = {t, fl_zeros(FL_SHAPE(2, 4), FL_F32)};
    check(fails(fl_reshape(t, FL_SHAPE(4, 2))), "reshape of 6 to 8 elements");
    check(fails(fl_reshape(t, FL_SHAPE(-1, -1))), "reshape with two unknowns");
    check(fails(fl_permute(t, 2, (int[]){0, 0})), "permute with an axis twice");
    check(fails(fl_permute(t, 1, (int[]){0})), "permute with too few axes");
    check(fails(fl_transpose(t, 0, 2)), "transpose of axis 2 of 2");
    check(fails(fl_expand(t, FL_SHAPE(2, 4))), "expand of 3 to 4");
    check(fails(fl_slice(t, 0, 0, 2, 0)), "slice by step 0");
    check(fails(fl_select(t, 1, 3)), "select past the end");
    check(fails(fl_squeeze(t, 0)), "squeeze of a dim of 2");
    check(fails(fl_concat(pair, 2, 0)), "concat of [2, 3] and [2, 4] along 0");
    check(fails(fl_stack(pair, 2, 0)), "stack of [2, 3] and [2, 4]");
    check(fails(fl_cast(t, FL_DTYPE_COUNT)), "cast to an unknown dtype");
    check(fails(fl_assign(t, pair[1])), "assign of [2, 4] to [2, 3]");
    check(fails(fl_zeros(FL_SHAPE(-1), FL_F32)), "a negative dim");
    check(fails(fl_zeros(FL_SHAPE(INT64_MAX, 8), FL_F32)), "a size that overflows");
    fl_scope_end(&s);
}
/* MIT licence: see LICENSE. */
