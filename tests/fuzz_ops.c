/* fuzz_ops.c - the input as a program of calls of the public tensor functions

   Each step picks a row of the table, operands among a few registers, and arguments from bytes:
   random shapes, axes, dtypes, views, NULLs, huge sizes; requests for memory fail now and then.
   After each step: an error is pending exactly when the call failed; results lie in their buffers;
   operands are unchanged unless the op writes them and succeeded. After each program nothing is
   left. Every fourth program runs twice, over different fresh memory, with the same results.

   A new op is one line of `rows`: its form (how its arguments are drawn) and its name. Lines of
   FL_UNARY_OPS and FL_BINARY_OPS are here already. */
#include "../fl_backend.h"
#include "fuzz.h"

enum { REGISTERS = 8, STEPS = 48, SMALL = 512, SCOPES = 4 };

static struct {
    fl_tensor *r[REGISTERS]; /* kept */
    fl_scope scope[SCOPES];
    int n_scopes;
    fl_rng rng;
    bool views;         /* the row takes operands of any size */
    bool lacks;         /* memory failed while an argument was made, which then is NULL */
    int n_used;         /* operands of the step, and their contents before it */
    fl_tensor *used[16];
    uint64_t before[16];
} vm;

/* ---- arguments ---- */

/* A register; NULL now and then. Huge broadcasts only reach the rows that bear them. */
static fl_tensor *operand(void) {
    const unsigned b = fuzz_byte();
    fl_tensor *t = b < 252 ? vm.r[b % REGISTERS] : NULL;
    if (t && !vm.views && fl_numel(t) > SMALL) t = vm.r[0];
    fuzz_show(" ", t);
    if (t && vm.n_used < 16) {
        vm.used[vm.n_used] = t;
        vm.before[vm.n_used++] = fuzz_hash(t);
    }
    return t;
}

static fl_rng *rng(void) {
    return fuzz_byte() & 1 ? &vm.rng : NULL;
}

typedef fl_tensor *T;
typedef fl_attention_opts attention_opts;
typedef fl_rnn_opts rnn_opts;

static fl_tensor *value(T x) {
    return x;
}

static T fresh(fl_tensor *t) {
    if (!t) vm.lacks = true;
    return t;
}

#include "fuzz_composed.h"
#include "steps.h"

/* Arguments that nobody resolved. */
static fl_conv2d_args conv_args(void) {
    fl_conv2d_args a = {{1, 1}, {0, 0}, {0, 0}, {1, 1}, 1, false};
    const unsigned set = fuzz_byte();
    int64_t *field[] = {&a.stride[0], &a.stride[1], &a.pad_lo[0],   &a.pad_lo[1],
                        &a.pad_hi[0], &a.pad_hi[1], &a.dilation[0], &a.dilation[1]};
    for (int i = 0; i < 8; i++)
        if (set >> i & 1) *field[i] = fuzz_size();
    if (set % 5 == 0) a.groups = fuzz_size();
    return a;
}

static fl_pool2d_args pool_args(void) {
    fl_pool2d_args a = {{2, 2}, {1, 1}, {0, 0}, {0, 0}, false, false};
    const unsigned set = fuzz_byte();
    int64_t *field[] = {&a.kernel[0], &a.kernel[1], &a.stride[0], &a.stride[1],
                        &a.pad_lo[0], &a.pad_lo[1], &a.pad_hi[0], &a.pad_hi[1]};
    for (int i = 0; i < 8; i++)
        if (set >> i & 1) *field[i] = fuzz_size();
    a.count_pad = fuzz_byte() & 1;
    return a;
}

/* ---- forms: how a function of that signature is called ---- */

static T x_axis_keep(fn f) {
    T x = operand();
    const int axis = fuzz_axis();
    return CALL(f, (T, int, bool), x, axis, fuzz_byte() & 1);
}

static T x_backend(fn f) {
    static const char *const names[] = {"cpu", "", "cuda", NULL};
    T x = operand();
    return CALL(f, (T, const char *), x, names[fuzz_rarely(8) ? fuzz_below(4) : 0]);
}

static T shape_dtype(fn f) {
    const fl_shape s = fuzz_shape();
    return CALL(f, (fl_shape, fl_dtype), s, fuzz_dtype());
}

/* Uninitialised memory is written before anything reads it. */
static T x_written(fn f) {
    T t = x_(f);
    return t ? fl_assign(t, fl_int(1)) : t;
}

static T shape_dtype_written(fn f) {
    T t = shape_dtype(f);
    return t && fl_numel(t) <= FUZZ_BUDGET ? fl_assign(t, fl_int(1)) : t;
}

static T shape_number_dtype(fn f) {
    const fl_shape s = fuzz_shape();
    const double x = fuzz_double();
    return CALL(f, (fl_shape, double, fl_dtype), s, x, fuzz_dtype());
}

static T three_numbers_dtype(fn f) {
    const double a = fuzz_double(), b = fuzz_double(), c = fuzz_double();
    return CALL(f, (double, double, double, fl_dtype), a, b, c, fuzz_dtype());
}

static T sizes_dtype(fn f) {
    const int64_t n = fuzz_size(), m = fuzz_size();
    return CALL(f, (int64_t, int64_t, fl_dtype), n, m, fuzz_dtype());
}

static T number(fn f) {
    return CALL(f, (double), fuzz_double());
}

static T integer(fn f) {
    return CALL(f, (int64_t), fuzz_int());
}

static T shape_numbers_dtype_rng(fn f) {
    const fl_shape s = fuzz_shape();
    const double a = fuzz_double(), b = fuzz_double();
    const fl_dtype d = fuzz_dtype();
    return CALL(f, (fl_shape, double, double, fl_dtype, fl_rng *), s, a, b, d, rng());
}

static T shape_ints_rng(fn f) {
    const fl_shape s = fuzz_shape();
    const int64_t a = fuzz_int(), b = fuzz_int();
    return CALL(f, (fl_shape, int64_t, int64_t, fl_rng *), s, a, b, rng());
}

static T x_number_rng(fn f) {
    T x = operand();
    const double p = fuzz_double();
    return CALL(f, (T, double, fl_rng *), x, p, rng());
}

static T x_number_state(fn f) {
    T x = operand();
    const double p = fuzz_double();
    const int64_t counter = fuzz_int();
    return CALL(f, (T, double, fl_rng), x, p, (fl_rng){7, (uint64_t)counter});
}

static T numbers_int_dtype(fn f) {
    const double a = fuzz_double(), b = fuzz_double();
    const int64_t n = fuzz_size();
    return CALL(f, (double, double, int64_t, fl_dtype), a, b, n, fuzz_dtype());
}

static T numbers_int_number_dtype(fn f) {
    const double a = fuzz_double(), b = fuzz_double(), base = fuzz_double();
    const int64_t n = fuzz_size();
    return CALL(f, (double, double, int64_t, double, fl_dtype), a, b, n, base, fuzz_dtype());
}

static T ints_dtype(fn f) {
    const int64_t n = fuzz_size(), m = fuzz_size(), k = fuzz_int();
    return CALL(f, (int64_t, int64_t, int64_t, fl_dtype), n, m, k, fuzz_dtype());
}

static T int_flag_dtype(fn f) {
    const int64_t n = fuzz_size();
    const bool flag = flip_coin();
    return CALL(f, (int64_t, bool, fl_dtype), n, flag, fuzz_dtype());
}

static T int_rng(fn f) {
    const int64_t n = fuzz_size();
    return CALL(f, (int64_t, fl_rng *), n, rng());
}

static T x_rng(fn f) {
    T x = operand();
    return CALL(f, (T, fl_rng *), x, rng());
}

static T x_int_flag_rng(fn f) {
    T x = operand();
    const int64_t n = fuzz_size();
    const bool flag = flip_coin();
    return CALL(f, (T, int64_t, bool, fl_rng *), x, n, flag, rng());
}

static T shape_4numbers_dtype_rng(fn f) {
    const fl_shape s = fuzz_shape();
    const double a = fuzz_double(), b = fuzz_double(), low = fuzz_double(), high = fuzz_double();
    const fl_dtype d = fuzz_dtype();
    return CALL(f, (fl_shape, double, double, double, double, fl_dtype, fl_rng *), s, a, b, low,
                high, d, rng());
}

static T xy_numbers_flag(fn f) {
    T x = operand(), y = operand();
    const double a = fuzz_double(), b = fuzz_double();
    return CALL(f, (T, T, double, double, bool), x, y, a, b, flip_coin());
}

static T searchsorted(fn f) {
    T x = operand(), y = operand();
    fl_searchsorted_opts o = {.sorter = flip_coin() ? operand() : NULL};
    return CALL(f, (T, T, bool, fl_searchsorted_opts), x, y, flip_coin(), o);
}

static T x_int_numbers(fn f) {
    T x = operand();
    const int64_t n = fuzz_size();
    const double a = fuzz_double(), b = fuzz_double();
    return CALL(f, (T, int64_t, double, double), x, n, a, b);
}

static T indices_to_grid(fn f) {
    T list[4] = {NULL}, grid[4] = {NULL};
    const int n = 1 + fuzz_below(4);
    for (int i = 0; i < n; i++) list[i] = fuzz_byte() < 240 ? fuzz_index(1) : operand();
    return ((bool (*)(T const *, int, T *))f)(list, n, grid) ? grid[fuzz_below(n)] : NULL;
}

/* What is distinct; or its places, or how many of each. */
static T x_outs(fn f) {
    T x = operand(), inverse = NULL, counts = NULL;
    const unsigned b = fuzz_byte();
    T y = CALL(f, (T, T *, T *), x, b & 2 ? &inverse : NULL, b & 8 ? &counts : NULL);
    return either(either(y, inverse, b), counts, b >> 2);
}

static T x_axis_outs(fn f) {
    T x = operand(), inverse = NULL, counts = NULL;
    const unsigned b = fuzz_byte();
    T y = CALL(f, (T, int, T *, T *), x, axis_of(x), b & 2 ? &inverse : NULL, b & 8 ? &counts : NULL);
    return either(either(y, inverse, b), counts, b >> 2);
}

/* An operand, or often an image that is not in a register. */
static T image_operand(void) {
    return fuzz_byte() & 1 ? fuzz_image() : operand();
}

static T xy_conv(fn f) {
    T x = image_operand(), w = image_operand(), bias = fuzz_byte() & 1 ? operand() : NULL;
    return CALL(f, (T, T, T, fl_conv_opts), x, w, bias, fuzz_conv());
}

static T xyz_conv_args(fn f) {
    T x = image_operand(), w = image_operand(), bias = fuzz_byte() & 1 ? operand() : NULL;
    return CALL(f, (T, T, T, fl_conv2d_args), x, w, bias, conv_args());
}

static T xy_shape_conv(fn f) {
    T x = operand(), y = operand();
    const fl_shape s = fuzz_shape_for(operand());
    return CALL(f, (T, T, fl_shape, fl_conv2d_args), x, y, s, conv_args());
}

/* The position of each maximum comes out as well; either result may be the step's. */
static T x_pool_index(fn f) {
    T x = image_operand(), index = NULL;
    const int64_t kernel = fuzz_size();
    const unsigned b = fuzz_byte();
    T y = CALL(f, (T, T *, fl_pool_opts), x, b & 1 ? &index : NULL, fuzz_pool(kernel));
    if (!y && index) fuzz_bug("failed with an index");
    return index ? index : y;
}

static T x_pool(fn f) {
    T x = image_operand();
    const int64_t kernel = fuzz_size();
    return CALL(f, (T, fl_pool_opts), x, fuzz_pool(kernel));
}

static T x_pool_args(fn f) {
    T x = image_operand();
    return CALL(f, (T, fl_pool2d_args), x, pool_args());
}

static T xy_shape(fn f) {
    T x = operand(), y = operand();
    return CALL(f, (T, T, fl_shape), x, y, fuzz_shape_for(operand()));
}

static T x_shape_pool(fn f) {
    T x = operand();
    const fl_shape s = fuzz_shape_for(operand());
    return CALL(f, (T, fl_shape, fl_pool2d_args), x, s, pool_args());
}

/* ---- functions that do not return their result: dressed as ones that do ---- */

static T done(bool ok, T t) {
    return ok ? t : NULL;
}

static T raw_tensor(fn f) {
    (void)f;
    return fuzz_tensor();
}

static T index_tensor(fn f) {
    (void)f;
    return fuzz_index(fuzz_below(4));
}

static T image(fn f) {
    (void)f;
    return fuzz_image();
}

static T one(fn f) {
    (void)f;
    return fl_num(1);
}

/* A convolution and its gradients, with the same arguments. */
static T conv_chain(fn f) {
    T x = fuzz_image(), w = fuzz_image();
    const unsigned b = fuzz_byte();
    fl_conv2d_args a = conv_args();
    (void)f;
    if (!x || !w) return NULL;
    T y = fl_conv2d_run(x, w, NULL, a);
    T dx = fl_conv2d_grad_input(y, w, fl_shape_of(x), a);
    T dw = fl_conv2d_grad_weight(x, y, fl_shape_of(w), a);
    if (dx) fuzz_note_tensor(dx);
    return !dx || !dw ? NULL : b & 1 ? dx : dw;
}

static T max_pool_chain(fn f) {
    T x = fuzz_image(), index = NULL;
    const int64_t kernel = 1 + fuzz_below(4);
    const bool altered = fuzz_rarely(4);
    (void)f;
    T y = fl_max_pool_opt(x, &index, fuzz_pool(kernel));
    if (!y) return NULL;
    return fl_max_pool2d_grad(y, index, altered ? fuzz_shape_for(x) : fl_shape_of(x));
}

static T avg_pool_chain(fn f) {
    T x = fuzz_image();
    fl_pool2d_args a = pool_args();
    (void)f;
    if (!x) return NULL;
    T y = fl_avg_pool2d_run(x, a);
    return fl_avg_pool2d_grad(y, fl_shape_of(x), a);
}

/* The places of the elements come out as well; either result may be the step's. */
static T chosen(T y, T index, unsigned b) {
    if (b & 2 && !y != !index) fuzz_bug("values and places disagree");
    return index && b & 4 ? index : y;
}

static T x_sort(fn f) {
    T x = operand(), index = NULL;
    const int axis = fuzz_axis();
    const unsigned b = fuzz_byte();
    T y = CALL(f, (T, int, bool, T *), x, axis, b & 1, b & 2 ? &index : NULL);
    return chosen(y, index, b);
}

static T x_topk(fn f) {
    T x = operand(), index = NULL;
    const int axis = fuzz_axis();
    const int64_t k = fuzz_size();
    const unsigned b = fuzz_byte();
    T y = CALL(f, (T, int64_t, int, bool, T *), x, k, axis, b & 1, b & 2 ? &index : NULL);
    return chosen(y, index, b);
}

/* NULL without an error says that the backend has no slot: the step then gives what it has. */
static T fused_grad1(fn f) {
    const fl_op op = (fl_op)fuzz_below(fl_op_count() + 1);
    T x = operand(), y = operand(), dy = operand();
    (void)f;
    T dx = fl_grad1(op, x, y, dy, NULL);
    return dx || fl_error() ? dx : one(NULL);
}

static T fused_grad2(fn f) {
    const fl_op op = (fl_op)fuzz_below(fl_op_count() + 1);
    const int want = fuzz_below(4);
    T a = operand(), b = operand(), y = operand(), dy = operand(), da = NULL, db = NULL;
    (void)f;
    const bool ok = fl_grad2(op, want, a, b, y, dy, &da, &db);
    if (!ok) return fl_error() ? NULL : one(NULL);
    if ((want & 1 && !da) || (want & 2 && !db)) fuzz_bug("a gradient is missing");
    return want & 1 ? da : want & 2 ? db : one(NULL);
}

/* A record made by hand, as a replay runs it: element-wise, of one shape. */
static T run_record(fn f) {
    T x = operand();
    (void)f;
    if (!x || x->weak || x->dtype != FL_F32) return fl_clone(x);
    T y = fl_out_on(x->backend, fl_shape_of(x), x->dtype);
    if (!y) return NULL;
    const fl_call c = {.op = FL_OP_neg, .n_out = 1, .n_in = 1, .out = {y}, .in = {x}};
    return done(fl_call_run(&c), y) ? y : (T)fl_raise();
}

/* ---- readers and in-place ops ---- */

/* The op writes t: what it shares storage with may change, if it succeeds. */
static void wrote(bool ok) {
    if (ok) vm.n_used = 0;
}

static T written(fn f) {
    T dst = operand(), src = operand();
    T t = CALL(f, (T, T), dst, src);
    wrote(t != NULL);
    return t;
}

static T set_host(fn f) {
    static const char zeros[FUZZ_BUDGET];
    T t = operand();
    const int64_t n = fl_numel(t) * (int64_t)fl_dtype_size(t ? t->dtype : FL_F32);
    const int64_t bytes = fuzz_rarely(8) ? fuzz_size() : n;
    (void)f;
    const bool ok = bytes <= FUZZ_BUDGET && fl_set_host(t, zeros, (size_t)bytes);
    if (bytes > FUZZ_BUDGET || (!ok && !fl_error())) return bytes > FUZZ_BUDGET ? one(NULL) : NULL;
    wrote(ok);
    return done(ok, t);
}

static T to_host(fn f) {
    static char data[FUZZ_BUDGET];
    T t = operand();
    const int64_t n = fl_numel(t) * (int64_t)fl_dtype_size(t ? t->dtype : FL_F32);
    const size_t bytes = (size_t)(fuzz_rarely(8) ? fuzz_size() : n);
    (void)f;
    return bytes > sizeof data ? one(NULL) : done(fl_to_host(t, data, bytes), t);
}

static T from_host(fn f) {
    static const char zeros[1 << 16];
    const fl_dtype d = fuzz_dtype();
    const fl_shape s = fuzz_shape();
    const int64_t n = fl_shape_numel(s);
    (void)f;
    if (n > (1 << 13)) return fl_from_host(zeros, (fl_shape){1, {-1}}, d);
    return fl_from_host(n == 0 && fuzz_byte() & 1 ? NULL : zeros, s, d);
}

static T map_write(fn f) {
    T t = operand();
    const int access = 1 + fuzz_below(3);
    (void)f;
    void *p = fl_map(t, access);
    if (p) fl_unmap(t, access);
    return done(p != NULL, t);
}

/* Everything that reads a handle without failing. */
static T look(fn f) {
    char text[64];
    T t = operand();
    (void)f;
    if (!t) return fl_clone(t);
    fl_shape_text(fl_shape_of(t), text, 1 + (size_t)fuzz_below(64));
    const bool plain = fl_is_contiguous(t);
    const uint32_t version = fl_version_of(t);
    fuzz_note(&plain, sizeof plain);
    fuzz_note(&version, sizeof version);
    if (!fl_backend_name(t)) fuzz_bug("a tensor without a backend");
    if (!fl_sync(t)) return NULL;
    return t;
}

static T item(fn f) {
    T t = operand();
    (void)f;
    if (fuzz_byte() & 1) {
        const double x = fl_item(t);
        fuzz_note(&x, sizeof x);
    } else {
        const int64_t i = fl_item_int(t);
        fuzz_note(&i, sizeof i);
    }
    return fl_error() ? NULL : t;
}

static T format(fn f) {
    static char text[2048];
    T t = operand();
    const size_t room = fuzz_byte() & 1 ? sizeof text : (size_t)fuzz_below(64);
    (void)f;
    const int64_t n = fl_format(t, room ? text : NULL, room);
    if (n >= 0 && room) fuzz_note(text, strlen(text));
    return done(n >= 0 && !fl_error(), t);
}

static T step_of_sgd(fn f) {
    T p = operand(), g = operand(), m = fuzz_byte() & 1 ? operand() : NULL;
    const unsigned b = fuzz_byte();
    const sgd_args a = {0.5, b & 1 ? 0.5 : 0, 0.5, 0.25, b & 2, b & 4};
    (void)f;
    const bool ok = sgd_step(p, g, m, &a);
    wrote(ok);
    return done(ok, p);
}

static T step_of_adam(fn f) {
    T p = operand(), g = operand(), m = operand(), v = operand();
    const adam_args a = {0.1, 0.5, 0.75, 1e-8, 0.25, 0, fuzz_byte() & 1};
    (void)f;
    const bool ok = adam_step(p, g, m, v, &a);
    wrote(ok);
    return done(ok, p);
}

/* ---- scopes ---- */

static T scope_begin(fn f) {
    (void)f;
    if (vm.n_scopes < SCOPES) vm.scope[vm.n_scopes++] = fl_scope_begin();
    return one(NULL);
}

/* Ends one, and with it those inside. */
static T scope_end(fn f) {
    (void)f;
    if (!vm.n_scopes) return one(NULL);
    const int i = fuzz_below(vm.n_scopes);
    T t = fl_num(2);
    vm.n_scopes = i;
    if (!t || fuzz_byte() & 1) {
        fl_scope_end(&vm.scope[i]);
        return one(NULL);
    }
    return fl_scope_return(&vm.scope[i], t);
}

static T promote(fn f) {
    T t = fl_num(3);
    (void)f;
    return vm.n_scopes ? fl_scope_escape(&vm.scope[vm.n_scopes - 1], t) : t;
}

/* ---- the table ---- */

typedef struct row {
    const char *name;
    T (*form)(fn f);
    fn f;
    bool views;
} row;

#define OP(form, name) {#name, form, (fn)fl_##name, false}   /* operands of up to SMALL elements */
#define VIEW(form, name) {#name, form, (fn)fl_##name, true}  /* any: a view, or a result as large */
#define SELF(form) {#form, form, NULL, false}
#define UNARY(op, ...) OP(x_, op),
#define BINARY(op, ...) OP(xy_, op),

static const row rows[] = {
    FL_UNARY_OPS(UNARY) FL_BINARY_OPS(BINARY) COMPOSED_ROWS
    SELF(raw_tensor), SELF(raw_tensor), SELF(raw_tensor), SELF(index_tensor), SELF(index_tensor),
    SELF(image), SELF(image), SELF(conv_chain), SELF(max_pool_chain), SELF(avg_pool_chain),
    /* create */
    VIEW(shape_dtype_written, empty), VIEW(shape_number_dtype, full), VIEW(shape_dtype, zeros),
    VIEW(shape_dtype, ones), VIEW(x_number, full_like), VIEW(three_numbers_dtype, arange),
    VIEW(sizes_dtype, eye), SELF(from_host), VIEW(number, num), VIEW(integer, int),
    VIEW(x_backend, to), OP(x_written, empty_like), VIEW(x_, zeros_like), VIEW(x_, ones_like),
    OP(numbers_int_dtype, linspace), OP(numbers_int_number_dtype, logspace), OP(ints_dtype, tri),
    OP(int_flag_dtype, hann_window), OP(int_flag_dtype, hamming_window),
    OP(int_flag_dtype, blackman_window), OP(int_flag_dtype, bartlett_window),
    /* read */
    SELF(look), SELF(item), SELF(format), SELF(to_host), SELF(map_write),
    /* move */
    VIEW(x_shape, reshape), VIEW(x_perm, permute), VIEW(x_axis_axis, transpose),
    VIEW(x_shape, expand), VIEW(x_slice, slice), VIEW(x_slice, slice), VIEW(x_axis_int, select),
    VIEW(x_axis, squeeze), VIEW(x_axis, unsqueeze), VIEW(x_axis_axis, flatten),
    VIEW(list_axis, concat), VIEW(list_axis, stack), VIEW(x_dtype, cast), VIEW(x_, contiguous),
    VIEW(x_, clone), SELF(set_host), OP(written, assign), OP(written, assign),
    OP(written, accumulate),
    /* element-wise, as large as their operands */
    VIEW(x_, exp), VIEW(xy_, mul), VIEW(xy_, lt), OP(xyz_, where),
    OP(xy_numbers_flag, isclose),
    /* reduce */
    OP(x_axes, sum), OP(x_axes, prod), OP(x_axes, mean), OP(x_axes_int, variance),
    OP(x_axes, amax), OP(x_axes, amin), OP(x_axes, all), OP(x_axes, any), OP(x_axes, logsumexp),
    OP(x_axis_keep, argmax), OP(x_axis_keep, argmin), OP(x_axes, count_nonzero),
    /* index */
    OP(x_axis_index, gather), OP(x_axis_index_src, scatter_add), OP(x_axis_index, index_select),
    OP(x_axis_index_src, scatter), OP(x_int, one_hot),
    OP(x_int_numbers, histc), OP(x_outs, unique), OP(x_outs, unique_consecutive),
    OP(x_axis_outs, unique_dim), OP(x_axis_outs, unique_consecutive_dim),
    OP(searchsorted, searchsorted_opt), OP(xy_, isin), OP(indices_to_grid, ix), OP(m_out, lu_factor),
    OP(x_numbers, matrix_rank),
    /* order */
    OP(x_axis, cumsum), OP(x_axis, cumprod), OP(x_sort, sort), OP(x_axis_keep, argsort),
    OP(x_topk, topk), OP(x_, nonzero),
    /* linear, neural */
    OP(xy_, matmul), OP(xy_, matmul), OP(xy_conv, conv_opt), OP(xy_conv, conv_opt),
    OP(xyz_conv_args, conv2d_run), OP(xy_shape_conv, conv2d_grad_input),
    OP(xy_shape_conv, conv2d_grad_weight), OP(x_pool_index, max_pool_opt),
    OP(x_pool, avg_pool_opt), OP(x_pool_args, avg_pool2d_run), OP(xy_shape, max_pool2d_grad),
    OP(x_shape_pool, avg_pool2d_grad), OP(x_axis, softmax),
    OP(x_axis, log_softmax), OP(xy_axis, softmax_grad), OP(xy_axis, log_softmax_grad),
    SELF(fused_grad1), SELF(fused_grad2), SELF(run_record),
    /* random */
    VIEW(shape_numbers_dtype_rng, uniform), VIEW(shape_numbers_dtype_rng, normal),
    VIEW(shape_ints_rng, randint), OP(x_number_rng, dropout), OP(x_number_state, dropout_at),
    OP(x_rng, bernoulli), OP(int_rng, permutation), OP(x_int_flag_rng, multinomial),
    VIEW(shape_4numbers_dtype_rng, truncated_normal),
    /* step */
    SELF(step_of_sgd), SELF(step_of_adam),
    /* scopes */
    SELF(scope_begin), SELF(scope_end), SELF(promote),
};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* ---- the machine ---- */

static void keep_in(int i, fl_tensor *t) {
    fl_keep(t);
    fl_drop(vm.r[i]);
    vm.r[i] = t;
}

static void check_operands(void) {
    for (int i = 0; i < vm.n_used; i++)
        if (fuzz_hash(vm.used[i]) != vm.before[i]) fuzz_bug("operand %d was written", i);
}

/* One call. An error that an earlier step left pending may fail it, and passes NULLs silently. */
static void step(void) {
    const row *r = &rows[fuzz_word(2) % ROWS];
    const unsigned b = fuzz_byte();
    if (b < 230) fl_error_clear();
    if (b >= 200 && b < 216) fuzz_faults(1 + b % 8, 0);
    if (b >= 216 && b < 230) fuzz_faults(0, 1 + b % 7);
    const bool pending = fl_error() != NULL;
    const int raised = fuzz_raised;
    fuzz_doing = r->name;
    vm.views = r->views;
    vm.n_used = 0;
    vm.lacks = false;
    if (fuzz_shows) fprintf(stderr, "%s(", r->name);
    fl_tensor *t = r->form(r->f);
    fuzz_faults(0, 0);
    fuzz_show(" ) ->", t);
    if (!t && !fl_error()) fuzz_bug("failed without an error");
    if (t && fl_error() && !pending && !vm.lacks) fuzz_bug("gave a result and an error");
    if (!pending && !vm.lacks && r->f && fuzz_raised - raised != !t)
        fuzz_bug("the handler was not called once");
    check_operands();
    if (!t) {
        fuzz_show_end();
        return;
    }
    fuzz_check_tensor(t);
    fuzz_note_tensor(t);
    fuzz_show_end();
    keep_in(fuzz_below(REGISTERS), t);
}

static void fuzz_one(void) {
    memset(&vm, 0, sizeof vm);
    for (int i = 0; i < STEPS && fuzz_input.left; i++) step();
    fl_error_clear();
    while (vm.n_scopes) fl_scope_end(&vm.scope[--vm.n_scopes]);
    for (int i = 0; i < REGISTERS; i++) keep_in(i, NULL);
}
/* MIT licence: see LICENSE. */
