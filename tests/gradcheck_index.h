/* gradcheck_index.h - the cases of gradcheck.c for indices and masks */

static fl_tensor *numbers(fl_shape s, fl_dtype d, const int64_t *v) {
    return fl_cast(fl_from_host(v, s, FL_I64), d);
}
#define VECTOR(...)                                                            \
    numbers(FL_SHAPE((int64_t)(sizeof((int64_t[]){__VA_ARGS__}) / 8)), FL_I64, \
            (int64_t[]){__VA_ARGS__})

static fl_var *run_take(fl_var **x, const grad_case *c) {
    return (void)c, fv_take(x[0], VECTOR(0, 3, -1, 3));
}
static fl_var *run_take_along(fl_var **x, const grad_case *c) {
    return (void)c, fv_take_along(x[0], fl_reshape(VECTOR(1, 0, 1), FL_SHAPE(1, 3)), 1);
}
static fl_var *run_coords(fl_var **x, const grad_case *c) {
    return (void)c, fv_index(x[0], (fl_tensor *[]){VECTOR(1, -1, 0), VECTOR(1, 1, 0)}, 2);
}
static fl_var *run_put(fl_var **x, const grad_case *c) {
    fl_tensor *at[] = {VECTOR(1, 0, 1), VECTOR(1, 0, -2)};
    return fv_index_put(x[0], at, 2, x[1], c->which);
}
static fl_var *run_index_add(fl_var **x, const grad_case *c) {
    return (void)c, fv_index_add(x[0], -1, VECTOR(1, 0, 1), x[1], -0.5);
}
static fl_var *run_index_copy(fl_var **x, const grad_case *c) {
    return (void)c, fv_index_copy(x[0], -1, VECTOR(1, 0, 1), x[1]);
}
static fl_var *run_index_fill(fl_var **x, const grad_case *c) {
    return (void)c, fv_index_fill(x[0], 0, VECTOR(-1), 2);
}
static fl_var *run_masked(fl_var **x, const grad_case *c) {
    fl_tensor *mask = fl_cast(VECTOR(1, 0, 1), FL_B8);
    return c->which == 0   ? fv_masked_fill(x[0], mask, 3)
           : c->which == 1 ? fv_masked_select(x[0], mask)
                           : fv_masked_scatter(x[0], mask, x[1]);
}
static fl_var *run_bincount(fl_var **x, const grad_case *c) {
    return (void)c, fv_bincount(VECTOR(1, 0, 3, 1), x[0], 5);
}
static fl_var *run_scatter_reduce(fl_var **x, const grad_case *c) {
    return fv_scatter_reduce(x[0], 0, VECTOR(1, 0, 1, 1, 3), x[1], (fl_scatter_mode)(c->which / 2),
                             c->which % 2);
}
#undef VECTOR

static const struct {
    const char *name;
    grad_fn fn;
    int which, n_in;
    fl_shape shape[MAX_IN];
} index_table[] = {
    {"take", run_take, 0, 1, {{2, {2, 3}}}},
    {"take", run_take, 0, 1, {{1, {4}}}},
    {"take_along", run_take_along, 0, 1, {{2, {2, 2}}}},
    {"index", run_coords, 0, 1, {{2, {2, 3}}}},
    {"index", run_coords, 0, 1, {{3, {2, 2, 2}}}},
    {"index_put", run_put, 0, 2, {{2, {2, 3}}, {1, {3}}}},
    {"index_put", run_put, 0, 2, {{3, {2, 2, 2}}, {2, {3, 1}}}},
    {"index_put", run_put, 1, 2, {{2, {2, 3}}, {1, {1}}}},
    {"index_put", run_put, 1, 2, {{3, {2, 3, 2}}, {2, {3, 2}}}},
    {"index_add", run_index_add, 0, 2, {{2, {2, 2}}, {2, {2, 3}}}},
    {"index_copy", run_index_copy, 0, 2, {{2, {2, 2}}, {2, {2, 3}}}},
    {"index_fill", run_index_fill, 0, 1, {{2, {3, 2}}}},
    {"masked_fill", run_masked, 0, 1, {{2, {2, 3}}}},
    {"masked_select", run_masked, 1, 1, {{2, {2, 3}}}},
    {"masked_select", run_masked, 1, 1, {{2, {2, 1}}}},
    {"masked_scatter", run_masked, 2, 2, {{2, {2, 3}}, {1, {5}}}},
    {"scatter_reduce", run_scatter_reduce, 0, 2, {{1, {4}}, {1, {5}}}},
    {"scatter_reduce", run_scatter_reduce, 1, 2, {{1, {4}}, {1, {5}}}},
    {"scatter_reduce", run_scatter_reduce, 2, 2, {{1, {4}}, {1, {5}}}},
    {"scatter_reduce", run_scatter_reduce, 3, 2, {{1, {4}}, {1, {5}}}},
    {"scatter_reduce", run_scatter_reduce, 4, 2, {{1, {4}}, {1, {5}}}},
    {"scatter_reduce", run_scatter_reduce, 5, 2, {{1, {4}}, {1, {5}}}},
    {"scatter_reduce", run_scatter_reduce, 6, 2, {{1, {4}}, {1, {5}}}},
    {"scatter_reduce", run_scatter_reduce, 7, 2, {{1, {4}}, {1, {5}}}},
    {"scatter_reduce", run_scatter_reduce, 8, 2, {{1, {4}}, {1, {5}}}},
    {"scatter_reduce", run_scatter_reduce, 9, 2, {{1, {4}}, {1, {5}}}},
    {"bincount", run_bincount, 0, 1, {{1, {4}}}},
};

/* Squared: its second derivatives are not all zero. */
static fl_var *run_squared(fl_var **x, const grad_case *c) {
    grad_case of = *c;
    of.which = index_table[c->which].which;
    fl_var *y = index_table[c->which].fn(x, &of);
    return y ? fv_mul(y, y) : NULL;
}

static void index_table_group(int unused) {
    (void)unused;
    for (int i = 0; i < (int)(sizeof index_table / sizeof *index_table); i++) {
        grad_case c = {
            .fn = run_squared, .which = i, .n_in = index_table[i].n_in, .low = -2, .high = 2};
        for (int k = 0; k < c.n_in; k++) c.shape[k] = index_table[i].shape[k];
        run_case(index_table[i].name, c);
    }
}
/* MIT licence: see LICENSE. */
