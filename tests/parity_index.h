/* parity_index.h - the lines of parity.c for indices and masks */

static int run_take(parity_case *c, fl_var **y) {
    return y[0] = fv_take(IN(0), T(1)), 1;
}
static int run_take_along(parity_case *c, fl_var **y) {
    return y[0] = fv_take_along(IN(0), T(1), AXIS("axis")), 1;
}
static int run_index_coords(parity_case *c, fl_var **y) {
    return y[0] = fv_index(IN(0), (fl_tensor *[]){T(1), T(2)}, 2), 1;
}
static int run_index_cartesian(parity_case *c, fl_var **y) {
    fl_tensor *grid[2];
    y[0] = fl_ix((fl_tensor *[]){T(1), T(2)}, 2, grid) ? fv_index(IN(0), grid, 2) : NULL;
    return 1;
}
static int run_index_put(parity_case *c, fl_var **y) {
    bool add = !strcmp(c->op, "index_put_add");
    return y[0] = fv_index_put(IN(0), (fl_tensor *[]){T(1), T(2)}, 2, IN(3), add), 1;
}
static int run_index_add(parity_case *c, fl_var **y) {
    return y[0] = fv_index_add(IN(0), AXIS("axis"), T(1), IN(2), NUM("alpha")), 1;
}
static int run_index_copy(parity_case *c, fl_var **y) {
    return y[0] = fv_index_copy(IN(0), AXIS("axis"), T(1), IN(2)), 1;
}
static int run_index_fill(parity_case *c, fl_var **y) {
    return y[0] = fv_index_fill(IN(0), AXIS("axis"), T(1), NUM("value")), 1;
}
static int run_masked_fill(parity_case *c, fl_var **y) {
    return y[0] = fv_masked_fill(IN(0), T(1), NUM("value")), 1;
}
static int run_masked_select(parity_case *c, fl_var **y) {
    return y[0] = fv_masked_select(IN(0), T(1)), 1;
}
static int run_masked_scatter(parity_case *c, fl_var **y) {
    return y[0] = fv_masked_scatter(IN(0), T(1), IN(2)), 1;
}
static int run_unique(parity_case *c, fl_var **y) {
    fl_tensor *inverse = NULL, *counts = NULL;
    y[0] = CONST_OF(!strcmp(c->op, "unique") ? fl_unique(T(0), &inverse, &counts)
                                             : fl_unique_consecutive(T(0), &inverse, &counts));
    y[1] = CONST_OF(inverse);
    y[2] = CONST_OF(counts);
    return 3;
}
static int run_unique_dim(parity_case *c, fl_var **y) {
    fl_tensor *inverse = NULL, *counts = NULL;
    y[0] = CONST_OF(!strcmp(c->op, "unique_dim")
                        ? fl_unique_dim(T(0), AXIS("axis"), &inverse, &counts)
                        : fl_unique_consecutive_dim(T(0), AXIS("axis"), &inverse, &counts));
    y[1] = CONST_OF(inverse);
    y[2] = CONST_OF(counts);
    return 3;
}
static int run_scatter_reduce(parity_case *c, fl_var **y) {
    static const char *const ways[] = {"sum", "prod", "mean", "amax", "amin"};
    int way = 0;
    while (strcmp(text_of(c, "way"), ways[way])) way++;
    y[0] = fv_scatter_reduce(IN(0), AXIS("axis"), T(1), IN(2), (fl_scatter_mode)way, INT("self") != 0);
    return 1;
}
static int run_quantize(parity_case *c, fl_var **y) {
    fl_tensor *q = fl_quantize(T(0), T(1), T(2), AXIS("axis"), DTYPE("dtype"));
    y[0] = CONST_OF(q);
    y[1] = CONST_OF(fl_dequantize(q, T(1), T(2), AXIS("axis")));
    return 2;
}
static int run_fake_quantize(parity_case *c, fl_var **y) {
    y[0] = fv_fake_quantize(IN(0), T(1), T(2), AXIS("axis"), INT("low"), INT("high"));
    return 1;
}
static int run_searchsorted(parity_case *c, fl_var **y) {
    return y[0] = CONST_OF(fl_searchsorted(T(0), T(1), INT("right") != 0, .sorter = MAYBE(2))), 1;
}
static int run_isin(parity_case *c, fl_var **y) {
    return y[0] = CONST_OF(fl_isin(T(0), T(1))), 1;
}

#define INDEX_PARITY                                                                        \
    {"take", run_take, 2}, {"take_along", run_take_along, 2},                               \
        {"index_coords", run_index_coords, 3}, {"index_cartesian", run_index_cartesian, 3}, \
        {"index_put", run_index_put, 4}, {"index_put_add", run_index_put, 4},               \
        {"index_add", run_index_add, 3}, {"index_copy", run_index_copy, 3},                 \
        {"index_fill", run_index_fill, 2}, {"masked_fill", run_masked_fill, 2},             \
        {"masked_select", run_masked_select, 2}, {"masked_scatter", run_masked_scatter, 3}, \
        {"unique_dim", run_unique_dim, 1}, {"unique_consecutive_dim", run_unique_dim, 1}, \
        {"scatter_reduce", run_scatter_reduce, 3},       \
        {"quantize", run_quantize, 3}, {"fake_quantize", run_fake_quantize, 3},             \
        {"unique", run_unique, 1}, {"unique_consecutive", run_unique, 1},                   \
        {"searchsorted", run_searchsorted, 2}, {"isin", run_isin, 2},
/* MIT licence: see LICENSE. */
