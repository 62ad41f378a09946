/* gradcheck_move.h - gradients of the ops of fl/ops/move.h

   squared afterwards, so that second order is not empty */

static fl_var *flip_all(fl_var *x) { return fv_flip(x, 2, (int[]){0, -1}); }
static fl_var *roll_one(fl_var *x) { return fv_roll(fv_roll(x, 1, 0), -2, 1); }
static fl_var *turned(fl_var *x) { return fv_rot90(x, 1, 0, 1); }
static fl_var *moved(fl_var *x) { return fv_movedim(x, 0, -1); }
static fl_var *narrowed(fl_var *x) { return fv_narrow(x, 1, 1, 2); }
static fl_var *unflattened(fl_var *x) { return fv_unflatten(x, 1, FL_SHAPE(2, -1)); }
static fl_var *tiled(fl_var *x) { return fv_tile(x, FL_SHAPE(2, 1, 2)); }
static fl_var *repeated(fl_var *x) { return fv_repeat(x, FL_SHAPE(2, 2)); }
static fl_var *interleaved(fl_var *x) { return fv_repeat_interleave(x, 2, 1); }
static fl_var *interleaved_each(fl_var *x) {
    return fv_repeat_interleave_each(x, fl_from_host((int64_t[]){2, 0, 3}, FL_SHAPE(3), FL_I64), 1);
}
static fl_var *pad_number(fl_var *x) {
    return fv_pad(x, .low = {1, -1}, .high = {0, 2}, .value = 0.5);
}
static fl_var *pad_edge(fl_var *x) {
    return fv_pad(x, .low = {1, 2}, .high = {2, -1}, .mode = FL_PAD_EDGE);
}
static fl_var *pad_reflect(fl_var *x) {
    return fv_pad(x, .low = {3, 2}, .high = {1, 5}, .mode = FL_PAD_REFLECT);
}
static fl_var *pad_symmetric(fl_var *x) {
    return fv_pad(x, .low = {0, 2}, .high = {1, 5}, .mode = FL_PAD_SYMMETRIC);
}
static fl_var *pad_circular(fl_var *x) {
    return fv_pad(x, .low = {3, 2}, .high = {1, 6}, .mode = FL_PAD_CIRCULAR);
}
static fl_var *windows(fl_var *x) { return fv_sliding_windows(x, 1, 2, 1, 2); }
static fl_var *windows_first(fl_var *x) { return fv_sliding_windows(x, 0, 2, 1, 1); }
static fl_var *shuffled(fl_var *x) { return fv_channel_shuffle(x, 2); }
static fl_var *pixels(fl_var *x) { return fv_pixel_shuffle(fv_reshape(x, FL_SHAPE(4, 1, -1)), 2); }
static fl_var *unpixels(fl_var *x) {
    return fv_pixel_unshuffle(fv_reshape(x, FL_SHAPE(1, 2, -1)), 2);
}
static fl_var *last_channels(fl_var *x) { return fv_channels_last(fv_unsqueeze(x, 0)); }
static fl_var *dense(fl_var *x) { return fv_contiguous(fv_transpose(x, 0, 1)); }
static fl_var *copied(fl_var *x) {
    return fv_mul(fv_clone(x), x);
}
static fl_var *diagonal(fl_var *x) { return fv_diagonal(x, 1, 0, 1); }
static fl_var *diagonal_below(fl_var *x) { return fv_diagonal(x, -1, 1, 0); }
static fl_var *diag_embed(fl_var *x) { return fv_diag_embed(x, -1); }
static fl_var *lower(fl_var *x) { return fv_tril(x, 1); }
static fl_var *upper(fl_var *x) { return fv_triu(x, 1); }

static fl_var *parts_joined(fl_var *x) {
    fl_var *part[3];
    int n = fv_split(x, 1, 3, part, 3);
    return n == 2 ? fv_matmul(part[0], fv_expand(part[1], FL_SHAPE(3, 1))) : NULL;
}

static fl_var *sized_parts(fl_var *x) {
    fl_var *part[3];
    int n = fv_split_with_sizes(x, -1, (int64_t[]){1, 0, 3}, 3, part);
    return n == 3 ? fv_mul(part[0], part[2]) : NULL;
}

static fl_var *rows_crossed(fl_var *x) {
    fl_var *row[3];
    return fv_unbind(x, 1, row, 3) == 3 ? fv_mul(fv_add(row[0], row[2]), row[0]) : NULL;
}

static fl_var *chunks_reversed(fl_var *x) {
    fl_var *part[4];
    int n = fv_chunk(x, 1, 4, part);
    fl_var *back[] = {part[3], part[1], part[0]};
    return n == 4 ? fv_concat(back, 3, 1) : NULL;
}

static fl_var *broadcast(fl_var *x) {
    fl_var *both[] = {fv_slice(x, 0, 0, 1, 1), fv_slice(x, 1, 0, 1, 1)};
    return fv_broadcast_tensors(both, 2, both) ? fv_mul(both[0], both[1]) : NULL;
}

static fl_var *grid(fl_var *x) {
    fl_var *both[] = {fv_select(x, 0, 1), fv_select(x, 1, 1)};
    return fv_meshgrid(both, 2, both) ? fv_mul(both[0], both[1]) : NULL;
}

static const struct {
    const char *name;
    fl_var *(*fn)(fl_var *);
    fl_shape shape;
} move_fns[] = {
    {"flip", flip_all, {2, {2, 3}}},
    {"roll", roll_one, {2, {2, 3}}},
    {"rot90", turned, {2, {2, 3}}},
    {"movedim", moved, {3, {2, 1, 3}}},
    {"narrow", narrowed, {2, {2, 4}}},
    {"unflatten", unflattened, {2, {2, 4}}},
    {"split", parts_joined, {2, {1, 4}}},
    {"split_with_sizes", sized_parts, {2, {2, 4}}},
    {"chunk", chunks_reversed, {2, {2, 4}}},
    {"unbind", rows_crossed, {2, {2, 3}}},
    {"tile", tiled, {2, {2, 2}}},
    {"repeat", repeated, {2, {2, 3}}},
    {"repeat_interleave", interleaved, {2, {2, 3}}},
    {"repeat_interleave_each", interleaved_each, {2, {2, 3}}},
    {"pad_constant", pad_number, {2, {2, 3}}},
    {"pad_edge", pad_edge, {2, {2, 3}}},
    {"pad_reflect", pad_reflect, {2, {2, 3}}},
    {"pad_symmetric", pad_symmetric, {2, {2, 3}}},
    {"pad_circular", pad_circular, {2, {2, 3}}},
    {"sliding_windows", windows, {2, {2, 5}}},
    {"sliding_windows", windows_first, {2, {4, 2}}},
    {"channel_shuffle", shuffled, {2, {2, 4}}},
    {"pixel_shuffle", pixels, {2, {2, 4}}},
    {"pixel_unshuffle", unpixels, {2, {2, 4}}},
    {"channels_last", last_channels, {3, {2, 2, 2}}},
    {"contiguous", dense, {2, {2, 3}}},
    {"clone", copied, {2, {2, 3}}},
    {"broadcast_tensors", broadcast, {2, {2, 3}}},
    {"meshgrid", grid, {2, {3, 2}}},
    {"diagonal", diagonal, {2, {2, 4}}},
    {"diagonal", diagonal_below, {3, {3, 2, 2}}},
    {"diag_embed", diag_embed, {2, {2, 2}}},
    {"tril", lower, {2, {3, 3}}},
    {"triu", upper, {3, {2, 2, 3}}},
};
enum { MOVE_FNS = sizeof move_fns / sizeof *move_fns };

static fl_var *run_move_fn(fl_var **x, const grad_case *c) {
    fl_var *y = move_fns[c->which].fn(x[0]);
    return y ? fv_mul(y, y) : NULL;
}

static void move_fn_cases(int which) {
    run_case(move_fns[which].name, (grad_case){.fn = run_move_fn, .which = which, .n_in = 1,
                                               .shape = {move_fns[which].shape}, .low = -2,
                                               .high = 2});
}
/* MIT licence: see LICENSE. */
