/* parity_move.h - lines of parity.c's table for the ops of fl/ops/move.h
   and create.h */

static int movedim(parity_case *c, fl_var **y) {
    y[0] = fv_movedim(IN(0), AXIS("a"), AXIS("b"));
    return 1;
}

static int narrow(parity_case *c, fl_var **y) {
    y[0] = fv_narrow(IN(0), AXIS("axis"), INT("start"), INT("length"));
    return 1;
}

static int flip(parity_case *c, fl_var **y) {
    fl_shape list = SHAPE("axes");
    int axes[FL_MAX_DIMS];
    for (int i = 0; i < list.ndim; i++) axes[i] = (int)list.dim[i];
    y[0] = fv_flip(IN(0), list.ndim, axes);
    return 1;
}

static int roll(parity_case *c, fl_var **y) {
    fl_shape shifts = SHAPE("shifts"), axes = SHAPE("axes");
    y[0] = IN(0);
    for (int i = 0; i < axes.ndim; i++) y[0] = fv_roll(y[0], shifts.dim[i], (int)axes.dim[i]);
    return 1;
}

static int rot90(parity_case *c, fl_var **y) {
    y[0] = fv_rot90(IN(0), INT("k"), AXIS("a"), AXIS("b"));
    return 1;
}

static int unflatten(parity_case *c, fl_var **y) {
    y[0] = fv_unflatten(IN(0), AXIS("axis"), SHAPE("shape"));
    return 1;
}

static int split(parity_case *c, fl_var **y) {
    return fv_split(IN(0), AXIS("axis"), INT("size"), y, MAX_TENSORS);
}

static int split_with_sizes(parity_case *c, fl_var **y) {
    fl_shape s = SHAPE("sizes");
    return fv_split_with_sizes(IN(0), AXIS("axis"), s.dim, s.ndim, y);
}

static int chunk(parity_case *c, fl_var **y) {
    return fv_chunk(IN(0), AXIS("axis"), (int)INT("n"), y);
}

static int tile(parity_case *c, fl_var **y) {
    y[0] = fv_tile(IN(0), SHAPE("reps"));
    return 1;
}

static int repeat(parity_case *c, fl_var **y) {
    y[0] = fv_repeat(IN(0), SHAPE("reps"));
    return 1;
}

static int repeat_interleave_each(parity_case *c, fl_var **y) {
    y[0] = fv_repeat_interleave_each(IN(0), T(1), AXIS("axis"));
    return 1;
}

static int repeat_interleave(parity_case *c, fl_var **y) {
    y[0] = fv_repeat_interleave(IN(0), INT("n"), AXIS("axis"));
    return 1;
}

/* PyTorch lists the pads from the last axis on. */
static int pad(parity_case *c, fl_var **y) {
    static const char *const modes[] = {"constant", "edge", "reflect", "symmetric", "circular"};
    fl_shape pads = SHAPE("pads");
    fl_pad_opts o = {.mode = FL_PAD_CONSTANT};
    for (int i = 0; i < pads.ndim; i++)
        (i % 2 ? o.high : o.low)[T(0)->ndim - 1 - i / 2] = pads.dim[i];
    for (int i = 0; i < 5; i++)
        if (!strncmp(c->op + strlen("pad_"), modes[i], strlen(modes[i]))) o.mode = (fl_pad_mode)i;
    if (o.mode == FL_PAD_CONSTANT) o.value = NUM("value");
    y[0] = fv_pad_opt(IN(0), o);
    return 1;
}

static int sliding_windows(parity_case *c, fl_var **y) {
    y[0] = fv_sliding_windows(IN(0), AXIS("axis"), INT("size"), INT("step"), 1);
    return 1;
}

static int pixel_shuffle(parity_case *c, fl_var **y) {
    y[0] = fv_pixel_shuffle(IN(0), INT("upscale_factor"));
    return 1;
}

static int pixel_unshuffle(parity_case *c, fl_var **y) {
    y[0] = fv_pixel_unshuffle(IN(0), INT("downscale_factor"));
    return 1;
}

static int channel_shuffle(parity_case *c, fl_var **y) {
    y[0] = fv_channel_shuffle(IN(0), INT("groups"));
    return 1;
}

static int swap_axes_contiguous(parity_case *c, fl_var **y) {
    y[0] = fv_contiguous(fv_transpose(IN(0), 0, -1));
    return 1;
}

static int broadcast_tensors(parity_case *c, fl_var **y) {
    return fv_broadcast_tensors(c->x, c->n_in, y) ? c->n_in : 0;
}

static int meshgrid(parity_case *c, fl_var **y) {
    return fv_meshgrid(c->x, c->n_in, y) ? c->n_in : 0;
}

static int diagonal(parity_case *c, fl_var **y) {
    y[0] = fv_diagonal(IN(0), INT("offset"), AXIS("a"), AXIS("b"));
    return 1;
}

static int diag_embed(parity_case *c, fl_var **y) {
    y[0] = fv_diag_embed(IN(0), INT("offset"));
    return 1;
}

static int triangle(parity_case *c, fl_var **y) {
    y[0] = strcmp(c->op, "tril") ? fv_triu(IN(0), INT("k")) : fv_tril(IN(0), INT("k"));
    return 1;
}

static int add_into_slice(parity_case *c, fl_var **y) {
    fl_tensor *t = fl_clone(T(0));
    fl_tensor *at = fl_slice(t, AXIS("axis"), INT("start"), INT("stop"), INT("step"));
    y[0] = fv_const(fl_accumulate(at, T(1)) ? t : NULL);
    return 1;
}

static int linspace(parity_case *c, fl_var **y) {
    double start = NUM("start"), stop = NUM("stop");
    fl_dtype d = DTYPE("dtype");
    y[0] = fv_const(!strcmp(c->op, "logspace") ? fl_logspace(start, stop, INT("n"), NUM("base"), d)
                                               : fl_linspace(start, stop, INT("n"), d));
    return 1;
}

static int tri(parity_case *c, fl_var **y) {
    y[0] = fv_const(fl_tri(INT("n"), INT("m"), INT("k"), DTYPE("dtype")));
    return 1;
}

static int window(parity_case *c, fl_var **y) {
    bool periodic = INT("periodic") != 0;
    int64_t n = INT("n");
    y[0] = fv_const(!strcmp(c->op, "hann_window") ? fl_hann_window(n, periodic, FL_F32)
                    : !strcmp(c->op, "hamming_window") ? fl_hamming_window(n, periodic, FL_F32)
                    : !strcmp(c->op, "blackman_window") ? fl_blackman_window(n, periodic, FL_F32)
                                                        : fl_bartlett_window(n, periodic, FL_F32));
    return 1;
}

static int truncated_normal(parity_case *c, fl_var **y) {
    fl_rng rng = {1, 0};
    return measured(fl_truncated_normal(SHAPE("shape"), NUM("mean"), NUM("std"), NUM("low"),
                                        NUM("high"), FL_F32, &rng), true, y);
}

#define MOVE_PARITY                                                                      \
    {"movedim", movedim, 1}, {"narrow", narrow, 1}, {"flip", flip, 1}, {"roll", roll, 1}, \
    {"rot90", rot90, 1}, {"unflatten", unflatten, 1}, {"split", split, 1},               \
    {"split_with_sizes", split_with_sizes, 1},                                           \
    {"chunk", chunk, 1}, {"tile", tile, 1}, {"repeat", repeat, 1},                       \
    {"repeat_interleave", repeat_interleave, 1}, \
    {"repeat_interleave_each", repeat_interleave_each, 2}, {"pad_constant", pad, 1},               \
    {"pad_edge", pad, 1}, {"pad_reflect", pad, 1}, {"pad_symmetric", pad, 1},            \
    {"pad_circular", pad, 1}, {"sliding_windows", sliding_windows, 1},                   \
    {"pixel_shuffle", pixel_shuffle, 1}, {"pixel_unshuffle", pixel_unshuffle, 1},        \
    {"channel_shuffle", channel_shuffle, 1},                                             \
    {"swap_axes_contiguous", swap_axes_contiguous, 1},                                   \
    {"broadcast_tensors", broadcast_tensors, 1}, {"meshgrid", meshgrid, 1},              \
    {"diagonal", diagonal, 1}, {"diag_embed", diag_embed, 1}, {"tril", triangle, 1},     \
    {"triu", triangle, 1}, {"add_into_slice", add_into_slice, 2},           \
    {"linspace", linspace, 0}, {"logspace", linspace, 0}, {"tri", tri, 0},               \
    {"hann_window", window, 0}, {"hamming_window", window, 0},                           \
    {"blackman_window", window, 0}, {"bartlett_window", window, 0},                      \
    {"init_truncated_normal", truncated_normal, 0},
/* MIT licence: see LICENSE. */
