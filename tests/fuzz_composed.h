/* fuzz_composed.h - forms and rows that fuzz_ops.c and fuzz_autograd.c share: how the ops that
   exist on tensors and on variables are called, and those of fl_composed.h by name

   The harness defines T (fl_tensor * or fl_var *), attention_opts, rnn_opts, operand(), value(), fresh(),
   rng(), and OP and VIEW, a row of a form and a name. Most arguments fit each other; each may be
   something else. */
#ifndef FUZZ_COMPOSED_H
#define FUZZ_COMPOSED_H

typedef void (*fn)(void);
#define CALL(f, type, ...) (((T(*) type)(f))(__VA_ARGS__))

/* ---- arguments ---- */

static fl_tensor *plain(void) {
    return value(operand());
}

static bool flip_coin(void) {
    return fuzz_byte() & 1;
}

/* A new float tensor of that shape, or any operand. */
static T of_shape(fl_shape s) {
    const unsigned b = fuzz_byte();
    return b < 24 ? operand() : fresh(fuzz_fill(s, b & 1 ? FL_F32 : FL_F64));
}

static T float_of_shape(fl_shape s) {
    const unsigned b = fuzz_byte();
    return b < 8 ? operand() : fresh(fuzz_fill(s, FL_F32));
}

static T maybe_of_shape(fl_shape s) {
    return flip_coin() ? float_of_shape(s) : NULL;
}

/* Another operand, x itself, or a new tensor of x's dtype and its shape or a part of it. */
static T peer(T x) {
    const fl_tensor *t = value(x);
    const unsigned b = fuzz_byte();
    if (b < 100 || !t || (b < 140 && t->ndim == 0)) return operand();
    if (b < 120) return x;
    fl_shape s = fl_shape_of(t);
    if (b < 140) s = (fl_shape){1, {s.dim[b % (unsigned)s.ndim]}};
    return fresh(fuzz_fill(s, t->dtype));
}

/* Indices of that shape, mostly 0 to 2. */
static fl_tensor *indices(fl_shape s) {
    int64_t data[64];
    const int64_t n = fl_shape_numel(s);
    if (fuzz_rarely(16)) return plain();
    if (n < 0 || n > 64) return fl_full(s, 0, FL_I64);
    for (int i = 0; i < 8; i++) data[i] = fuzz_rarely(16) ? fuzz_int() : fuzz_below(3);
    for (int i = 8; i < 64; i++) data[i] = data[i - 8];
    return fl_from_host(data, s, FL_I64);
}

/* Indices in as many dims as x has, in one, or any operand. */
static fl_tensor *indices_for(T x) {
    const fl_tensor *t = value(x);
    const unsigned b = fuzz_byte();
    return b < 20 || !t ? plain() : fuzz_index(b & 1 ? t->ndim : 1);
}

/* Of x's shape, or of one that broadcasts to it. */
static fl_tensor *mask_for(T x) {
    const fl_tensor *t = value(x);
    fl_shape s = t ? fl_shape_of(t) : FL_SHAPE(1);
    const unsigned b = fuzz_byte();
    if (b < 20) return plain();
    if (b < 80 && s.ndim) s.dim[b % (unsigned)s.ndim] = 1;
    return fuzz_fill(s, FL_B8);
}

/* Batches of small matrices, square in most cases, with a diagonal that dominates in many. */
static T matrix(void) {
    const unsigned b = fuzz_byte();
    const int64_t n = b & 3, m = b & 4 ? n : fuzz_below(4);
    const fl_shape s = {2 + (int)(b >> 3 & 1), {b & 8 ? b >> 4 & 3 : n, b & 8 ? n : m, m}};
    const fl_dtype d = b & 128 ? FL_F32 : FL_F64;
    if (fuzz_rarely(8)) return operand();
    fl_tensor *t = fuzz_fill(s, d);
    return fresh(n == m && flip_coin() ? fl_add(t, fl_mul(fl_eye(n, n, d), fl_num(16))) : t);
}

/* [n, c] and 1 to 3 spatial dims. */
static T spatial(void) {
    const unsigned b = fuzz_byte();
    fl_shape s = {3 + (int)(b % 3), {1 + (b >> 2 & 1), 1 + (b >> 3 & 1), 1 + (b >> 4 & 3)}};
    s.dim[3] = s.dim[4] = 1 + (b >> 6 & 3);
    return of_shape(s);
}

/* Of x in most cases. */
static int axis_of(T x) {
    const unsigned b = fuzz_byte();
    const int ndim = x ? value(x)->ndim : 0;
    return b < 24 || !ndim ? fuzz_axis() : (int)(b % (unsigned)(2 * ndim)) - ndim;
}

/* One to three numbers, often 0. */
static void numbers_3d(int64_t *to) {
    const unsigned set = fuzz_byte();
    for (int i = 0; i < 3; i++)
        if (set >> i & 1) to[i] = set & 64 ? fuzz_size() : 1 + (set >> 3 & 1);
    if (set > 250) to[0] = fuzz_int();
}

static fl_conv_opts conv_opts(void) {
    fl_conv_opts o = {0};
    numbers_3d(o.stride);
    numbers_3d(o.dilation);
    numbers_3d(o.pad);
    numbers_3d(o.output_pad);
    if (fuzz_rarely(4)) o.groups = fuzz_size();
    return o;
}

static fl_pool_opts pool_opts(void) {
    fl_pool_opts o = {0};
    numbers_3d(o.kernel);
    numbers_3d(o.stride);
    numbers_3d(o.pad);
    numbers_3d(o.pad_hi);
    numbers_3d(o.dilation);
    o.ignore_pad = flip_coin();
    o.ceil_mode = flip_coin();
    if (fuzz_rarely(4)) o.divisor_override = fuzz_size();
    return o;
}

static fl_unfold_opts window_opts(void) {
    fl_unfold_opts o = {0};
    numbers_3d(o.kernel);
    numbers_3d(o.stride);
    numbers_3d(o.dilation);
    numbers_3d(o.pad);
    return o;
}

static fl_reduction reduction(void) {
    return (fl_reduction)fuzz_below(4);
}

/* ---- forms: how a function of that signature is called ---- */

static T x_(fn f) {
    return CALL(f, (T), operand());
}

static T xy_(fn f) {
    T x = operand(), y = peer(x);
    return CALL(f, (T, T), x, y);
}

static T xyz_(fn f) {
    T x = operand(), y = peer(x), z = peer(x);
    return CALL(f, (T, T, T), x, y, z);
}

static T x_axis(fn f) {
    T x = operand();
    return CALL(f, (T, int), x, axis_of(x));
}

static T x_axis_axis(fn f) {
    T x = operand();
    const int a = axis_of(x), b = axis_of(x);
    return CALL(f, (T, int, int), x, a, b);
}

static T xy_axis(fn f) {
    T x = operand(), y = peer(x);
    return CALL(f, (T, T, int), x, y, axis_of(x));
}

static T x_axes(fn f) {
    T x = operand();
    return CALL(f, (T, fl_axes), x, fuzz_axes());
}

static T x_axes_int(fn f) {
    T x = operand();
    const fl_axes a = fuzz_axes();
    return CALL(f, (T, fl_axes, int64_t), x, a, fuzz_int());
}

static T x_number_axes(fn f) {
    T x = operand();
    const double p = fuzz_double();
    return CALL(f, (T, double, fl_axes), x, p, fuzz_axes());
}

static T x_shape(fn f) {
    T x = operand();
    return CALL(f, (T, fl_shape), x, fuzz_shape_for(value(x)));
}

static T x_axis_shape(fn f) {
    T x = operand();
    const int axis = axis_of(x);
    const fl_shape s = flip_coin() ? FL_SHAPE(1 + fuzz_below(2), -1) : fuzz_shape();
    return CALL(f, (T, int, fl_shape), x, axis, s);
}

static T x_perm(fn f) {
    T x = operand();
    int list[16];
    const int n = fuzz_rarely(16) ? fuzz_below(11) - 1 : x ? value(x)->ndim : 0;
    const int turn = fuzz_below(16);
    for (int i = 0; i < n; i++) list[i] = turn < 12 ? (i + turn) % n : axis_of(x);
    return CALL(f, (T, int, const int *), x, n, list);
}

static T x_slice(fn f) {
    T x = operand();
    const int axis = axis_of(x);
    const int64_t start = fuzz_int(), stop = fuzz_int(), step = fuzz_int();
    return CALL(f, (T, int, int64_t, int64_t, int64_t), x, axis, start, stop, step);
}

static T x_windows(fn f) {
    T x = operand();
    const int axis = axis_of(x);
    const int64_t size = fuzz_size(), step = fuzz_size(), dilation = fuzz_size();
    return CALL(f, (T, int, int64_t, int64_t, int64_t), x, axis, size, step, dilation);
}

static T x_axis_int(fn f) {
    T x = operand();
    const int axis = axis_of(x);
    return CALL(f, (T, int, int64_t), x, axis, fuzz_int());
}

static T x_axis_ints(fn f) {
    T x = operand();
    const int axis = axis_of(x);
    const int64_t a = fuzz_size(), b = fuzz_size();
    return CALL(f, (T, int, int64_t, int64_t), x, axis, a, b);
}

static T x_int(fn f) {
    T x = operand();
    return CALL(f, (T, int64_t), x, flip_coin() ? fuzz_size() : fuzz_int());
}

static T x_int_axis(fn f) {
    T x = operand();
    const int64_t n = fuzz_int();
    return CALL(f, (T, int64_t, int), x, n, axis_of(x));
}

static T x_int_axis_axis(fn f) {
    T x = operand();
    const int64_t n = fuzz_int();
    const int a = axis_of(x), b = axis_of(x);
    return CALL(f, (T, int64_t, int, int), x, n, a, b);
}

static T x_ints_flag(fn f) {
    const int nd = 2 + fuzz_below(2);
    T x = of_shape(FL_SHAPE(2, nd, nd + 1));
    const fl_shape size = {nd, {fuzz_size(), fuzz_size(), fuzz_size()}};
    return CALL(f, (T, fl_shape, bool), x, size, flip_coin());
}

static T x_dtype(fn f) {
    T x = operand();
    return CALL(f, (T, fl_dtype), x, fuzz_dtype());
}

static T x_number(fn f) {
    T x = operand();
    return CALL(f, (T, double), x, fuzz_double());
}

static T x_numbers(fn f) {
    T x = operand();
    const double a = fuzz_double(), b = fuzz_double();
    return CALL(f, (T, double, double), x, a, b);
}

static T x_3numbers(fn f) {
    T x = operand();
    const double a = fuzz_double(), b = fuzz_double(), c = fuzz_double();
    return CALL(f, (T, double, double, double), x, a, b, c);
}

static T x_int_3numbers(fn f) {
    T x = operand();
    const int64_t n = fuzz_size();
    const double a = fuzz_double(), b = fuzz_double(), c = fuzz_double();
    return CALL(f, (T, int64_t, double, double, double), x, n, a, b, c);
}

static T x_number_axis(fn f) {
    T x = operand();
    const double a = fuzz_double();
    return CALL(f, (T, double, int), x, a, axis_of(x));
}

static T x_number_axis_number(fn f) {
    T x = operand();
    const double p = fuzz_double(), eps = fuzz_double();
    return CALL(f, (T, double, int, double), x, p, axis_of(x), eps);
}

static T x_quantile(fn f) {
    T x = operand();
    const double q = flip_coin() ? fuzz_below(9) / 8.0 : fuzz_double();
    const int axis = axis_of(x);
    const bool keep = flip_coin();
    return CALL(f, (T, double, int, bool, fl_quantile_method), x, q, axis, keep,
                (fl_quantile_method)fuzz_below(6));
}

static T xy_numbers(fn f) {
    T x = operand(), y = peer(x);
    const double a = fuzz_double(), b = fuzz_double();
    return CALL(f, (T, T, double, double), x, y, a, b);
}

static T xy_axis_number(fn f) {
    T x = operand(), y = peer(x);
    const int axis = axis_of(x);
    return CALL(f, (T, T, int, double), x, y, axis, fuzz_double());
}

static T xyz_number(fn f) {
    T x = operand(), y = peer(x), z = peer(x);
    return CALL(f, (T, T, T, double), x, y, z, fuzz_double());
}

static T xyz_numbers(fn f) {
    T x = operand(), y = peer(x), z = peer(x);
    const double a = fuzz_double(), b = fuzz_double();
    return CALL(f, (T, T, T, double, double), x, y, z, a, b);
}

static T list_axis(fn f) {
    T list[10];
    const int n = fuzz_rarely(32) ? fuzz_below(11) - 1 : 1 + fuzz_below(3);
    for (int i = 0; i < n; i++) list[i] = operand();
    return CALL(f, (T const *, int, int), list, n, fuzz_axis());
}

/* Gives several results: one of them. */
static T list_to_list(fn f) {
    T list[10] = {NULL}, out[10] = {NULL};
    const int n = fuzz_rarely(32) ? fuzz_below(11) - 1 : 1 + fuzz_below(3);
    for (int i = 0; i < n; i++) list[i] = i ? peer(list[0]) : operand();
    const bool inside = flip_coin();
    T *to = inside ? list : out;
    const bool ok = ((bool (*)(T const *, int, T *))f)(list, n, to);
    return !ok ? NULL : n > 0 ? to[fuzz_below(n)] : fresh(fl_num(1));
}

static T x_split(fn f) {
    T x = operand(), out[16];
    const int axis = axis_of(x), max = fuzz_below(17) - fuzz_rarely(8);
    const int64_t size = fuzz_size();
    const int n = ((int (*)(T, int, int64_t, T *, int))f)(x, axis, size, out, max);
    if (n > max && n) fuzz_bug("%d parts in %d places", n, max);
    return n > 0 ? out[fuzz_below(n)] : NULL;
}

static T x_sizes(fn f) {
    T x = operand(), out[4];
    const int axis = axis_of(x), n = fuzz_below(5);
    const int64_t sizes[4] = {fuzz_size(), fuzz_below(3), fuzz_below(3), fuzz_below(3)};
    const int parts = ((int (*)(T, int, const int64_t *, int, T *))f)(x, axis, sizes, n, out);
    if (parts && parts != n) fuzz_bug("%d parts of %d sizes", parts, n);
    return parts > 0 ? out[fuzz_below(parts)] : NULL;
}

static T x_scatter_reduce(fn f) {
    T x = operand();
    const int axis = axis_of(x);
    fl_tensor *index = indices_for(x);
    T src = index ? of_shape(fl_shape_of(index)) : operand();
    const int way = fuzz_below(6);
    return CALL(f, (T, int, fl_tensor *, T, fl_scatter_mode, bool), x, axis, index, src, (fl_scatter_mode)way,
                flip_coin());
}

static T x_fake_quantize(fn f) {
    T x = operand();
    fl_tensor *scale = flip_coin() ? fl_full(FL_SCALAR_SHAPE, fuzz_double(), FL_F32) : plain();
    fl_tensor *zero = flip_coin() ? fl_full(FL_SCALAR_SHAPE, 3, FL_I32) : NULL;
    const int64_t low = fuzz_int(), high = fuzz_int();
    return CALL(f, (T, fl_tensor *, fl_tensor *, int, int64_t, int64_t), x, scale, zero, axis_of(x), low,
                high);
}

static T x_chunk(fn f) {
    T x = operand(), out[16];
    const int axis = axis_of(x), most = fuzz_below(17) - fuzz_rarely(8);
    const int n = ((int (*)(T, int, int, T *))f)(x, axis, most, out);
    if (n > most && n) fuzz_bug("%d parts in %d places", n, most);
    return n > 0 ? out[fuzz_below(n)] : NULL;
}

static T x_pad(fn f) {
    T x = operand();
    fl_pad_opts o = {0};
    const unsigned b = fuzz_byte();
    for (int i = 0; i < 4; i++) {
        if (b >> i & 1) o.low[i] = fuzz_int();
        if (b >> (i + 4) & 1) o.high[i] = fuzz_size();
    }
    o.mode = (fl_pad_mode)fuzz_below(6);
    o.value = fuzz_double();
    return CALL(f, (T, fl_pad_opts), x, o);
}

/* ---- with indices and masks ---- */

static T x_index(fn f) {
    T x = operand();
    return CALL(f, (T, fl_tensor *), x, indices_for(x));
}

static T x_index_axis(fn f) {
    T x = operand();
    fl_tensor *index = indices_for(x);
    return CALL(f, (T, fl_tensor *, int), x, index, axis_of(x));
}

static T x_axis_index(fn f) {
    T x = operand();
    fl_tensor *index = indices_for(x);
    return CALL(f, (T, int, fl_tensor *), x, axis_of(x), index);
}

static T x_axis_index_number(fn f) {
    T x = operand();
    fl_tensor *index = indices_for(x);
    const double a = fuzz_double();
    return CALL(f, (T, int, fl_tensor *, double), x, axis_of(x), index, a);
}

/* What is written has the shape of the index, or x's but for axis, or any. */
static T source_for(T x, int axis, fl_tensor *index) {
    const unsigned b = fuzz_byte();
    const fl_tensor *t = value(x);
    if (b < 40 || !t || !index) return operand();
    fl_shape s = fl_shape_of(b & 1 ? index : t);
    const int k = axis < 0 ? axis + s.ndim : axis;
    if (!(b & 1) && k >= 0 && k < s.ndim) s.dim[k] = fl_numel(index);
    return fresh(fuzz_fill(s, t->dtype));
}

static T x_axis_index_src(fn f) {
    T x = operand();
    fl_tensor *index = indices_for(x);
    const int axis = axis_of(x);
    return CALL(f, (T, int, fl_tensor *, T), x, axis, index, source_for(x, axis, index));
}

static T x_axis_index_src_number(fn f) {
    T x = operand();
    fl_tensor *index = indices_for(x);
    const int axis = axis_of(x);
    T src = source_for(x, axis, index);
    const double a = fuzz_double();
    return CALL(f, (T, int, fl_tensor *, T, double), x, axis, index, src, a);
}

static int index_list(fl_tensor **list) {
    const int n = fuzz_rarely(32) ? fuzz_below(11) - 1 : 1 + fuzz_below(3);
    for (int i = 0; i < n; i++) list[i] = indices(FL_SHAPE(1 + fuzz_below(3)));
    return n;
}

static T x_indices(fn f) {
    T x = operand();
    fl_tensor *list[10];
    const int n = index_list(list);
    return CALL(f, (T, fl_tensor *const *, int), x, list, n);
}

static T x_indices_src_flag(fn f) {
    T x = operand(), src = fuzz_byte() & 1 ? fresh(fl_num(2)) : peer(x);
    fl_tensor *list[10];
    const int n = index_list(list);
    return CALL(f, (T, fl_tensor *const *, int, T, bool), x, list, n, src, flip_coin());
}

static T x_mask(fn f) {
    T x = operand();
    return CALL(f, (T, fl_tensor *), x, mask_for(x));
}

static T x_mask_number(fn f) {
    T x = operand();
    fl_tensor *mask = mask_for(x);
    return CALL(f, (T, fl_tensor *, double), x, mask, fuzz_double());
}

static T x_mask_src(fn f) {
    T x = operand();
    fl_tensor *mask = mask_for(x);
    return CALL(f, (T, fl_tensor *, T), x, mask, operand());
}

static T index_weights_int(fn f) {
    const int64_t n = fuzz_below(4);
    fl_tensor *index = indices(FL_SHAPE(n));
    T w = maybe_of_shape(FL_SHAPE(n));
    return CALL(f, (fl_tensor *, T, int64_t), index, w, fuzz_size());
}

static T index_table_int(fn f) {
    fl_tensor *index = indices(fuzz_shape());
    T w = of_shape(FL_SHAPE(3, 2));
    return CALL(f, (fl_tensor *, T, int64_t), index, w, fuzz_int());
}

static T index_table_flag(fn f) {
    fl_tensor *index = indices(fuzz_shape());
    T w = of_shape(FL_SHAPE(3, 2));
    return CALL(f, (fl_tensor *, T, bool), index, w, flip_coin());
}

/* ---- that give more than one result: either may be the step's ---- */

static T tensor_or(T y, fl_tensor *other, unsigned b) {
    if (b & 2 && !y != !other) fuzz_bug("one of two results is missing");
    return other && b & 4 ? fresh(other) : y;
}

static T either(T y, T other, unsigned b) {
    if (b & 2 && !y != !other) fuzz_bug("one of two results is missing");
    return other && b & 4 ? other : y;
}

static T x_axis_out(fn f) {
    T x = operand();
    fl_tensor *out = NULL;
    const int axis = axis_of(x);
    const unsigned b = fuzz_byte();
    T y = CALL(f, (T, int, fl_tensor **), x, axis, b & 2 ? &out : NULL);
    return tensor_or(y, out, b);
}

static T x_axis_flag_out(fn f) {
    T x = operand();
    fl_tensor *out = NULL;
    const int axis = axis_of(x);
    const unsigned b = fuzz_byte();
    T y = CALL(f, (T, int, bool, fl_tensor **), x, axis, b & 1, b & 2 ? &out : NULL);
    return tensor_or(y, out, b);
}

static T x_int_axis_flag_out(fn f) {
    T x = operand();
    fl_tensor *out = NULL;
    const int axis = axis_of(x);
    const int64_t k = fuzz_size();
    const unsigned b = fuzz_byte();
    T y = CALL(f, (T, int64_t, int, bool, fl_tensor **), x, k, axis, b & 1, b & 2 ? &out : NULL);
    return tensor_or(y, out, b);
}

/* ---- matrices ---- */

/* Factors that fit each other: inner sizes from one byte. */
static T ab_(fn f) {
    const unsigned b = fuzz_byte();
    const int64_t m = 1 + (b & 1), k = 1 + (b >> 1 & 3), n = 1 + (b >> 3 & 1);
    T x = of_shape(b & 16 ? FL_SHAPE(m, k) : FL_SHAPE(2, m, k));
    T y = of_shape(b & 32 ? FL_SHAPE(n, k) : FL_SHAPE(2, n, k));
    return CALL(f, (T, T, double), x, y, fuzz_double());
}

static T x_weight_bias(fn f) {
    const int64_t in = fuzz_below(4), out = fuzz_below(4);
    T x = float_of_shape(FL_SHAPE(2, in)), w = float_of_shape(FL_SHAPE(out, in));
    return CALL(f, (T, T, T), x, w, maybe_of_shape(FL_SHAPE(out)));
}

static T x_weight_bias_act(fn f) {
    static const fl_op acts[] = {FL_OP_relu, FL_OP_gelu,    FL_OP_gelu_tanh, FL_OP_silu,
                                 FL_OP_tanh, FL_OP_sigmoid, FL_OP_exp,       FL_OP_NONE};
    const int64_t in = fuzz_below(4), out = fuzz_below(4);
    T x = float_of_shape(FL_SHAPE(2, in)), w = float_of_shape(FL_SHAPE(out, in));
    return CALL(f, (T, T, T, fl_op), x, w, maybe_of_shape(FL_SHAPE(out)), acts[fuzz_below(8)]);
}

static T ab_weight_bias(fn f) {
    const int64_t i = fuzz_below(4), j = fuzz_below(4), out = fuzz_below(4);
    T a = float_of_shape(FL_SHAPE(2, i)), b = float_of_shape(FL_SHAPE(2, j));
    T w = float_of_shape(FL_SHAPE(out, i, j));
    return CALL(f, (T, T, T, T), a, b, w, maybe_of_shape(FL_SHAPE(out)));
}

static T vectors(fn f) {
    const int64_t n = fuzz_below(5), m = flip_coin() ? n : fuzz_below(5);
    T x = of_shape(FL_SHAPE(n)), y = of_shape(FL_SHAPE(m));
    return CALL(f, (T, T), x, y);
}

static T triples(fn f) {
    T x = of_shape(FL_SHAPE(2, 3, 1)), y = of_shape(FL_SHAPE(3, 1 + fuzz_below(2)));
    return CALL(f, (T, T, int), x, y, axis_of(y));
}

static fl_fft_opts fft_opts(void) {
    fl_fft_opts o = {0};
    if (flip_coin()) o.n = fuzz_size();
    o.norm = (fl_fft_norm)fuzz_below(4);
    return o;
}

static T pairs_axis(fn f) {
    T x = of_shape(FL_SHAPE(fuzz_below(3), fuzz_below(6), 2));
    return CALL(f, (T, int, fl_fft_opts), x, axis_of(x), fft_opts());
}

static T pairs(fn f) {
    T x = of_shape(FL_SHAPE(fuzz_below(3), fuzz_below(6), fuzz_below(6), 2));
    return CALL(f, (T, fl_fft_opts), x, fft_opts());
}

static fl_fftn_opts fftn_opts(void) {
    fl_fftn_opts o = {.norm = (fl_fft_norm)fuzz_below(4)};
    if (flip_coin()) o.axes = fuzz_axes();
    if (flip_coin()) o.s = FL_SHAPE(fuzz_size(), fuzz_size());
    return o;
}

static T planes(fn f) {
    T x = of_shape(FL_SHAPE(fuzz_below(3), fuzz_below(6), fuzz_below(6), 2));
    return CALL(f, (T, fl_fftn_opts), x, fftn_opts());
}

static T x_axis_fft(fn f) {
    T x = operand();
    return CALL(f, (T, int, fl_fft_opts), x, axis_of(x), fft_opts());
}

static T pairs_int_axis(fn f) {
    T x = of_shape(FL_SHAPE(fuzz_below(3), fuzz_below(6), 2));
    const int64_t n = fuzz_size();
    fl_fft_opts o = fft_opts();
    if (!fuzz_rarely(4)) o.n = 0;
    return CALL(f, (T, int64_t, int, fl_fft_opts), x, n, axis_of(x), o);
}

static fl_stft_opts stft_opts(void) {
    fl_stft_opts o = {0};
    const unsigned b = fuzz_byte();
    o.no_center = b & 1, o.normalized = b >> 1 & 1, o.two_sided = b >> 2 & 1;
    if (b & 8) o.hop = fuzz_size();
    if (b & 16) o.win_length = fuzz_size();
    if (b & 32) o.length = fuzz_size();
    if (b & 64) o.window = fuzz_fill(FL_SHAPE(fuzz_below(6)), FL_F32);
    return o;
}

static T x_frames(fn f) {
    T x = of_shape(FL_SHAPE(fuzz_below(3), fuzz_below(12)));
    const int64_t n = fuzz_below(8);
    return CALL(f, (T, int64_t, fl_stft_opts), x, n, stft_opts());
}

static T pairs_frames(fn f) {
    const int64_t n = fuzz_below(8);
    T x = of_shape(FL_SHAPE(fuzz_below(3), n / 2 + 1, fuzz_below(4), 2));
    return CALL(f, (T, int64_t, fl_stft_opts), x, n, stft_opts());
}

/* Channels and sides that a factor of 1 or 2 divides. */
static T pixels_int(fn f) {
    const unsigned b = fuzz_byte();
    T x = of_shape(FL_SHAPE(1 + (b & 1), b & 12, b >> 4 & 6, b >> 6 & 2));
    return CALL(f, (T, int64_t), x, fuzz_size());
}

static T ab_axes(fn f) {
    T x = operand(), y = peer(x);
    int a[10], b[10];
    const int n = fuzz_rarely(16) ? fuzz_below(11) - 1 : fuzz_below(3);
    const bool given = flip_coin();
    for (int i = 0; given && i < n; i++) a[i] = fuzz_axis();
    for (int i = 0; given && i < n; i++) b[i] = fuzz_axis();
    return CALL(f, (T, T, int, const int *, const int *), x, y, n, given ? a : NULL,
                given ? b : NULL);
}

/* Letters for each operand's dims, or any text. */
static void equation(char *to, const T *xs, int n) {
    static const char letters[] = "ijkijkIz", odd[] = "ij,->. .,-a\x80@";
    char *p = to;
    if (fuzz_rarely(4)) {
        for (int i = fuzz_below(24); i > 0; i--) *p++ = odd[fuzz_below(sizeof odd)];
        *p = 0;
        return;
    }
    for (int i = 0; i < n; i++) {
        const int ndim = xs[i] ? value(xs[i])->ndim : 1;
        if (i) *p++ = ',';
        if (fuzz_rarely(16)) p += sprintf(p, "...");
        for (int k = fuzz_rarely(16) ? 1 : 0; k < ndim; k++) *p++ = letters[fuzz_below(8)];
    }
    if (flip_coin()) p += sprintf(p, fuzz_rarely(8) ? "->..." : "->");
    for (int i = fuzz_below(4); i > 0; i--) *p++ = letters[fuzz_below(8)];
    *p = 0;
}

static T einsum_(fn f) {
    T xs[9];
    char text[256];
    const int n = fuzz_rarely(32) ? 9 : 1 + fuzz_below(3);
    for (int i = 0; i < n; i++) xs[i] = i ? peer(xs[0]) : operand();
    equation(text, xs, n);
    if (fuzz_shows) fprintf(stderr, " \"%s\"", text);
    return CALL(f, (const char *, T const *, int), fuzz_rarely(64) ? NULL : text, xs, n);
}

static T m_(fn f) {
    return CALL(f, (T), matrix());
}

static T m_int(fn f) {
    T x = matrix();
    return CALL(f, (T, int64_t), x, fuzz_int());
}

static T m_number(fn f) {
    T x = matrix();
    return CALL(f, (T, double), x, fuzz_double());
}

static T right_side(T a) {
    const fl_tensor *t = value(a);
    if (!t || t->ndim < 2 || fuzz_rarely(8)) return operand();
    fl_shape s = fl_shape_of(t);
    if (flip_coin()) s.ndim--;
    else s.dim[s.ndim - 1] = fuzz_below(3);
    return fresh(fuzz_fill(s, t->dtype));
}

static T mb_(fn f) {
    T a = matrix(), b = right_side(a);
    return CALL(f, (T, T), a, b);
}

static T mb_flags(fn f) {
    T a = matrix(), b = right_side(a);
    const unsigned flags = fuzz_byte();
    return CALL(f, (T, T, bool, bool), a, b, flags & 1, flags & 2);
}

static T m_tensor_out(fn f) {
    T x = matrix();
    fl_tensor *out = NULL;
    T y = CALL(f, (T, fl_tensor **), x, &out);
    return tensor_or(y, out, fuzz_byte() | 2);
}

static T m_out(fn f) {
    T x = matrix(), out = NULL;
    T y = CALL(f, (T, T *), x, &out);
    return either(y, out, fuzz_byte() | 2);
}

static T m_outs(fn f) {
    T x = matrix(), s = NULL, vt = NULL;
    T u = CALL(f, (T, T *, T *), x, &s, &vt);
    const unsigned b = fuzz_byte() | 2;
    return either(either(u, s, b), vt, b >> 3 | 2);
}

static T m_out_tensor(fn f) {
    T x = matrix(), u = NULL;
    fl_tensor *p = NULL;
    T l = CALL(f, (T, T *, fl_tensor **), x, &u, &p);
    const unsigned b = fuzz_byte() | 2;
    return tensor_or(either(l, u, b), p, b >> 3 | 2);
}

static T m_3outs(fn f) {
    T x = matrix(), w_im = NULL, v = NULL, v_im = NULL;
    T w = CALL(f, (T, T *, T *, T *), x, &w_im, &v, &v_im);
    const unsigned b = fuzz_byte() | 2;
    return either(either(w, w_im, b), either(v, v_im, b >> 3 | 2), b >> 5 | 2);
}

/* ---- images ---- */

static T conv_(fn f) {
    const unsigned b = fuzz_byte();
    const int64_t c = 1 + (b >> 2 & 1), o = 1 + (b >> 3 & 1), k = 1 + (b >> 4 & 1);
    const int64_t l = 1 + (b >> 5 & 3);
    const fl_shape s = {3 + (int)(b % 3), {1, c, l + 1, l, l}}, ws = {s.ndim, {o, c, k, 2, 1}};
    T x = float_of_shape(s), w = float_of_shape(ws), bias = maybe_of_shape(FL_SHAPE(o));
    return CALL(f, (T, T, T, fl_conv_opts), x, w, bias, conv_opts());
}

static T image_pool(fn f) {
    T x = spatial();
    return CALL(f, (T, fl_pool_opts), x, pool_opts());
}

static T image_number_pool(fn f) {
    T x = spatial();
    const double p = fuzz_double();
    return CALL(f, (T, double, fl_pool_opts), x, p, pool_opts());
}

static T image_out_pool(fn f) {
    T x = spatial();
    fl_tensor *out = NULL;
    const unsigned b = fuzz_byte();
    T y = CALL(f, (T, fl_tensor **, fl_pool_opts), x, b & 2 ? &out : NULL, pool_opts());
    return tensor_or(y, out, b);
}

/* As many sizes as x has spatial dims, in most cases. */
static fl_shape size_for(T x) {
    fl_shape s = fuzz_shape();
    if (x && !fuzz_rarely(8)) {
        s.ndim = value(x)->ndim - 2;
        for (int i = 0; i < s.ndim; i++) s.dim[i] = fuzz_size();
    }
    return s;
}

static T image_size(fn f) {
    T x = spatial();
    return CALL(f, (T, fl_shape), x, size_for(x));
}

static T image_size_out(fn f) {
    T x = spatial();
    fl_tensor *out = NULL;
    const fl_shape s = size_for(x);
    const unsigned b = fuzz_byte();
    T y = CALL(f, (T, fl_shape, fl_tensor **), x, s, b & 2 ? &out : NULL);
    return tensor_or(y, out, b);
}

static T x_unpooled(fn f) {
    T x = spatial();
    fl_tensor *index = value(x) ? indices(fl_shape_of(value(x))) : plain();
    return CALL(f, (T, fl_tensor *, fl_shape), x, index, size_for(x));
}

static T image_resized(fn f) {
    T x = spatial();
    const fl_shape s = size_for(x);
    const unsigned b = fuzz_byte();
    fl_interpolate_opts o = {0};
    o.antialias = b >> 4 & 1;
    if (b >> 5 & 1) o.scale[b >> 6 & 1] = fuzz_double();
    return CALL(f, (T, fl_shape, fl_interpolation, bool, fl_interpolate_opts), x, s,
                (fl_interpolation)(b % 6), b & 8, o);
}

static T image_windows(fn f) {
    T x = spatial();
    return CALL(f, (T, fl_unfold_opts), x, window_opts());
}

/* The windows of an image with a kernel of 2, or any operand, summed to a size. */
static T windows_size(fn f) {
    const unsigned b = fuzz_byte();
    const int64_t l = 2 + (b & 1);
    T x = of_shape(FL_SHAPE(1, 4, (l - 1) * (l - 1)));
    fl_unfold_opts o = window_opts();
    if (b & 2) o = (fl_unfold_opts){.kernel = {2, 2}};
    const fl_shape s = b & 4 ? FL_SHAPE(l, l) : fuzz_shape();
    return CALL(f, (T, fl_shape, fl_unfold_opts), x, s, o);
}

static T image_grid(fn f) {
    const unsigned b = fuzz_byte();
    const int64_t n = 1 + (b & 1), h = b >> 1 & 3, w = b >> 3 & 3;
    T x = float_of_shape(FL_SHAPE(n, 1, h, w)), grid = float_of_shape(FL_SHAPE(n, 2, 1, 2));
    const fl_grid_opts o = {
        .nearest = b & 32, .align = b & 64, .outside = (fl_grid_padding)fuzz_below(4)};
    return CALL(f, (T, T, fl_grid_opts), x, grid, o);
}

/* ---- layers ---- */

static T x_dims_weights_number(fn f) {
    const int64_t n = fuzz_below(4);
    T x = of_shape(FL_SHAPE(2, n, 2));
    const int dims = fuzz_rarely(4) ? fuzz_axis() : 1 + fuzz_below(2);
    const fl_shape s = dims == 1 ? FL_SHAPE(2) : FL_SHAPE(n, 2);
    T w = maybe_of_shape(s), bias = maybe_of_shape(s);
    return CALL(f, (T, int, T, T, double), x, dims, w, bias, fuzz_double());
}

static T x_dims_weight_number(fn f) {
    T x = of_shape(FL_SHAPE(2, 3, 2));
    const int dims = fuzz_rarely(4) ? fuzz_axis() : 1;
    T w = maybe_of_shape(FL_SHAPE(2));
    return CALL(f, (T, int, T, double), x, dims, w, fuzz_double());
}

static T channels(int64_t c) {
    const unsigned b = fuzz_byte();
    return of_shape((fl_shape){2 + (int)(b & 3), {b >> 2 & 3, c, 2, b >> 4 & 3, 1}});
}

static T x_groups_weights_number(fn f) {
    const int64_t c = fuzz_below(5), groups = flip_coin() ? fuzz_size() : 1;
    T x = channels(c), w = maybe_of_shape(FL_SHAPE(c)), bias = maybe_of_shape(FL_SHAPE(c));
    return CALL(f, (T, int64_t, T, T, double), x, groups, w, bias, fuzz_double());
}

static T x_weights_number(fn f) {
    const int64_t c = fuzz_below(5);
    T x = channels(c), w = maybe_of_shape(FL_SHAPE(c)), bias = maybe_of_shape(FL_SHAPE(c));
    return CALL(f, (T, T, T, double), x, w, bias, fuzz_double());
}

/* The statistics are written: they are new tensors. */
static T x_weights_statistics(fn f) {
    const int64_t c = fuzz_below(5);
    T x = channels(c), w = maybe_of_shape(FL_SHAPE(c)), bias = maybe_of_shape(FL_SHAPE(c));
    const unsigned b = fuzz_byte();
    fl_batch_norm_opts o = {.train = b & 1};
    if (b & 2) o.mean = value(fresh(fuzz_fill(FL_SHAPE(c), FL_F32)));
    if (b & 4) o.var = value(fresh(fuzz_fill(FL_SHAPE(b < 240 ? c : 2), FL_F32)));
    if (b & 8) o.momentum = fuzz_double();
    if (b & 16) o.eps = fuzz_double();
    return CALL(f, (T, T, T, fl_batch_norm_opts), x, w, bias, o);
}

static T attention_(fn f) {
    const unsigned b = fuzz_byte();
    const int64_t n = b & 3, m = b >> 2 & 3, d = b >> 4 & 3;
    T q = float_of_shape(FL_SHAPE(2, n, d)), k = float_of_shape(FL_SHAPE(2, m, d));
    T v = float_of_shape(FL_SHAPE(2, m, 2)), mask = maybe_of_shape(FL_SHAPE(n, m));
    if (b & 64 && mask) mask = fresh(fl_cast(value(mask), FL_B8));
    attention_opts o = {.mask = mask, .causal = b & 128, .scale = flip_coin() ? fuzz_double() : 0};
    if (flip_coin()) {
        const unsigned more = fuzz_byte();
        o.offset = (int64_t)(more & 3) - 1, o.window = (int64_t)(more >> 2 & 3) - 1;
        o.softcap = more & 16 ? fuzz_double() : 0;
    }
    return CALL(f, (T, T, T, attention_opts), q, k, v, o);
}

/* Weights of `rows` = gates hidden rows: one layer and direction. */
static void recurrent_weights(T *w, int64_t rows, int64_t in, int64_t hidden) {
    w[0] = float_of_shape(FL_SHAPE(rows, in));
    w[1] = float_of_shape(FL_SHAPE(rows, hidden));
    w[2] = maybe_of_shape(FL_SHAPE(rows));
    w[3] = maybe_of_shape(FL_SHAPE(rows));
}

static T cell(fn f, int64_t gates) {
    T w[4];
    const int64_t n = fuzz_below(3), in = fuzz_below(3), hidden = fuzz_below(3);
    T x = float_of_shape(FL_SHAPE(n, in)), h = float_of_shape(FL_SHAPE(n, hidden)), c_out = NULL;
    recurrent_weights(w, gates * hidden, in, hidden);
    if (gates < 4) return CALL(f, (T, T, T const *), x, h, w);
    T c = float_of_shape(FL_SHAPE(n, hidden));
    T y = CALL(f, (T, T, T, T const *, T *), x, h, c, w, &c_out);
    return either(y, c_out, fuzz_byte() | 2);
}

static T rnn_cell_(fn f) {
    return cell(f, 1);
}

static T gru_cell_(fn f) {
    return cell(f, 3);
}

static T lstm_cell_(fn f) {
    return cell(f, 4);
}

static T rnn_(fn f) {
    static const int gates[] = {1, 1, 3, 4};
    T w[20] = {NULL}, h_out = NULL, c_out = NULL;
    const int64_t n = fuzz_below(3), in = fuzz_below(3), hidden = fuzz_below(3);
    const int layers = 1 + fuzz_below(2), ways = 1 + fuzz_below(2), mode = fuzz_below(4);
    const unsigned b = fuzz_byte(), more = fuzz_byte();
    const bool projected = more & 1;
    const int64_t t = b >> 3 & 3, out = projected ? 1 : hidden;
    T x = float_of_shape(more & 2 ? FL_SHAPE(n, t, in) : FL_SHAPE(t, n, in));
    for (int i = 0; i < 4; i++) {
        T *at = w + (projected ? 5 : 4) * i;
        recurrent_weights(at, gates[mode] * hidden, i < ways ? in : ways * out, out);
        if (projected) at[4] = float_of_shape(FL_SHAPE(out, hidden));
    }
    rnn_opts o = {.layers = fuzz_rarely(16) ? -fuzz_below(2) : layers, .bidirectional = ways == 2,
                  .batch_first = more & 2, .projected = projected, .dropout = more & 4 ? 0.5 : 0,
                  .h_out = b & 1 ? &h_out : NULL, .c_out = b & 2 ? &c_out : NULL};
    if (more & 8) o.h0 = float_of_shape(FL_SHAPE(layers * ways, n, out));
    if (more & 16) o.c0 = float_of_shape(FL_SHAPE(layers * ways, n, hidden));
    if (more & 32) o.lengths = fl_randint(FL_SHAPE(n), more & 64 ? 0 : 1, t + 1 + (more >> 7), NULL);
    T y = CALL(f, (fl_rnn_mode, T, T const *, rnn_opts), (fl_rnn_mode)mode, x, w, o);
    return either(either(y, h_out, b << 1), c_out, mode == FL_LSTM ? b : 0);
}

/* ---- losses ---- */

static T xy_reduced(fn f) {
    T x = operand(), y = peer(x);
    return CALL(f, (T, T, fl_reduction), x, y, reduction());
}

static T xy_weighted(fn f) {
    T x = operand(), y = peer(x);
    fl_binary_cross_entropy_opts o = {0};
    if (flip_coin()) o.weight = indices(fuzz_shape());
    if (flip_coin()) o.pos_weight = fl_num(fuzz_double());
    return CALL(f, (T, T, fl_reduction, fl_binary_cross_entropy_opts), x, y, reduction(), o);
}

static T kl_div(fn f) {
    T x = operand(), y = peer(x);
    fl_kl_div_opts o = {.log_target = flip_coin(), .batch_mean = flip_coin()};
    return CALL(f, (T, T, fl_reduction, fl_kl_div_opts), x, y, reduction(), o);
}

static T poisson(fn f) {
    T x = operand(), y = peer(x);
    fl_poisson_nll_loss_opts o = {.full = flip_coin(), .eps = fuzz_double()};
    const bool flag = flip_coin();
    return CALL(f, (T, T, bool, fl_reduction, fl_poisson_nll_loss_opts), x, y, flag, reduction(), o);
}

static T xy_number_reduced(fn f) {
    T x = operand(), y = peer(x);
    const double a = fuzz_double();
    return CALL(f, (T, T, double, fl_reduction), x, y, a, reduction());
}

static T gaussian(fn f) {
    T x = operand(), y = peer(x), z = peer(x);
    fl_gaussian_nll_loss_opts o = {.full = flip_coin(), .eps = fuzz_double()};
    return CALL(f, (T, T, T, fl_reduction, fl_gaussian_nll_loss_opts), x, y, z, reduction(), o);
}

static T xyz_number_reduced(fn f) {
    T x = operand(), y = peer(x), z = peer(x);
    const double a = fuzz_double();
    return CALL(f, (T, T, T, double, fl_reduction), x, y, z, a, reduction());
}

static T triplet(fn f) {
    T x = operand(), y = peer(x), z = peer(x);
    fl_triplet_margin_loss_opts o = {.p = fuzz_double(), .swap = flip_coin()};
    const double a = fuzz_double();
    return CALL(f, (T, T, T, double, fl_reduction, fl_triplet_margin_loss_opts), x, y, z, a, reduction(), o);
}

static T multi_margin(fn f) {
    const int64_t n = fuzz_below(4);
    T x = of_shape(FL_SHAPE(n, 3));
    fl_tensor *target = indices(FL_SHAPE(n));
    fl_multi_margin_loss_opts o = {.p = (int)fuzz_below(4)};
    if (flip_coin()) o.weight = fl_full(FL_SHAPE(3), fuzz_double(), FL_F32);
    const double a = fuzz_double();
    return CALL(f, (T, fl_tensor *, double, fl_reduction, fl_multi_margin_loss_opts), x, target, a,
                reduction(), o);
}

static T ctc(fn f) {
    const int64_t n = fuzz_below(3);
    T logp = float_of_shape(FL_SHAPE(fuzz_below(4), n, 3));
    fl_tensor *target = indices(FL_SHAPE(n, fuzz_below(3)));
    fl_tensor *steps = indices(FL_SHAPE(n)), *lengths = indices(FL_SHAPE(n));
    fl_ctc_loss_opts o = {0};
    o.blank = fuzz_size();
    o.reduction = reduction();
    o.zero_infinity = flip_coin();
    return CALL(f, (T, fl_tensor *, fl_tensor *, fl_tensor *, fl_ctc_loss_opts), logp, target,
                steps, lengths, o);
}

/* ---- the rows of both tables ---- */

#define COMPOSED_ROWS \
    /* element-wise */ \
    OP(xyz_, clamp), OP(x_number, elu), OP(x_number, celu), OP(x_number, leaky_relu), \
    OP(xy_, prelu_channels), OP(x_numbers, threshold), OP(x_number, hardshrink), \
    OP(x_number, softshrink), OP(x_number, swish), OP(x_axis, glu), OP(x_axis, round), \
    OP(x_3numbers, nan_to_num), OP(xy_, hypot), OP(xyz_, lerp), OP(xyz_number, addcmul), \
    OP(xyz_number, addcdiv), OP(x_numbers, softplus_beta), OP(xy_, xlog1py), \
    OP(xy_, float_power), OP(x_, entr), OP(x_, ndtr), OP(x_, lgamma), OP(x_, digamma), \
    OP(x_, erfc), OP(x_, erfinv), OP(xy_, floor_divide), OP(xy_, trunc_divide), \
    /* move */ \
    VIEW(x_axis_axis, movedim), VIEW(x_axis_ints, narrow), VIEW(x_perm, flip), \
    OP(x_int_axis, roll), VIEW(x_int_axis_axis, rot90), VIEW(x_axis_shape, unflatten), \
    VIEW(x_split, split), VIEW(x_sizes, split_with_sizes), VIEW(x_chunk, chunk), OP(x_shape, tile), \
    OP(x_shape, repeat), \
    OP(x_int_axis, repeat_interleave), OP(x_pad, pad_opt), VIEW(x_windows, sliding_windows), \
    OP(pixels_int, pixel_shuffle), OP(pixels_int, pixel_unshuffle), OP(pixels_int, channel_shuffle), \
    OP(x_, channels_last), VIEW(list_to_list, broadcast_tensors), VIEW(list_to_list, meshgrid), \
    VIEW(x_int_axis_axis, diagonal), OP(x_int, diag_embed), OP(x_int, tril), OP(x_int, triu), \
    /* reduce */ \
    OP(x_axes_int, std), OP(x_number_axes, norm), OP(x_axes, nansum), OP(x_axes, nanmean), \
    OP(x_axis_flag_out, max_along), OP(x_axis_flag_out, min_along), \
    OP(x_int_axis_flag_out, kthvalue), OP(x_axis_flag_out, median), \
    OP(x_axis_flag_out, nanmedian), OP(x_quantile, quantile), OP(x_quantile, nanquantile), \
    OP(x_axis_out, cummax), OP(x_axis_out, cummin), OP(x_axis, logcumsumexp), OP(x_axis, diff), \
    OP(x_number_axis, trapezoid), OP(xy_axis, trapezoid_x), \
    OP(x_number_axis, cumulative_trapezoid), OP(xy_axis, cumulative_trapezoid_x), OP(x_axes, median_axes), \
    /* index */ \
    OP(x_scatter_reduce, scatter_reduce), OP(x_fake_quantize, fake_quantize), \
    OP(x_index, take), OP(x_index_axis, take_along), OP(x_indices, index), \
    OP(x_index_axis, repeat_interleave_each), \
    OP(x_indices_src_flag, index_put), OP(x_axis_index_src_number, index_add), \
    OP(x_axis_index_src, index_copy), OP(x_axis_index_number, index_fill), \
    OP(x_mask_number, masked_fill), OP(x_mask, masked_select), OP(x_mask_src, masked_scatter), \
    OP(index_weights_int, bincount), \
    /* linear, factor, fft */ \
    OP(vectors, dot), OP(vectors, outer), OP(xy_, kron), OP(triples, cross), OP(ab_axes, tensordot), \
    OP(einsum_, einsum), OP(einsum_, einsum), OP(einsum_, einsum), OP(m_, trace), \
    OP(xyz_numbers, addmm), OP(ab_, cdist), OP(x_weight_bias, linear), \
    OP(x_weight_bias_act, linear_act), \
    OP(ab_weight_bias, bilinear), OP(mb_, solve), OP(mb_flags, solve_triangular), \
    OP(m_, inverse), OP(m_int, matrix_power), OP(m_, matrix_exp), OP(m_, det), \
    OP(m_tensor_out, slogdet), OP(m_, cholesky), OP(mb_, cholesky_solve), OP(m_number, cond), \
    OP(m_3outs, eig), OP(m_out, eigvals), OP(m_out_tensor, lu), OP(m_out, qr), OP(m_outs, svd), OP(m_, svdvals), OP(m_out, eigh), \
    OP(mb_, lstsq), OP(m_number, pinv), OP(m_number, matrix_norm), OP(m_, nuclear_norm), \
    OP(pairs_axis, fft_opt), OP(pairs_axis, ifft_opt), \
    OP(pairs, fft2_opt), OP(pairs, ifft2_opt), OP(x_axis_fft, rfft_opt), \
    OP(planes, fftn_opt), OP(planes, ifftn_opt), OP(planes, rfftn_opt), OP(planes, rfft2_opt), \
    OP(planes, irfftn_opt), OP(planes, irfft2_opt), \
    OP(pairs_int_axis, irfft_opt), OP(x_frames, stft_opt), OP(pairs_frames, istft_opt), \
    /* image */ \
    OP(conv_, conv_opt), OP(conv_, conv_transpose_opt), OP(image_out_pool, max_pool_opt), \
    OP(image_pool, avg_pool_opt), OP(image_number_pool, lp_pool_opt), \
    OP(image_size_out, adaptive_max_pool), OP(image_size, adaptive_avg_pool), \
    OP(image_resized, interpolate_opt), OP(x_unpooled, max_unpool), OP(image_windows, unfold_opt), \
    OP(windows_size, fold_opt), \
    OP(image_grid, grid_sample_opt), OP(x_ints_flag, affine_grid), \
    /* neural, recurrent */ \
    OP(x_dims_weights_number, layer_norm), OP(x_dims_weight_number, rms_norm), \
    OP(x_groups_weights_number, group_norm), OP(x_weights_number, instance_norm), \
    OP(x_weights_statistics, batch_norm_opt), OP(x_int_3numbers, local_response_norm), \
    OP(x_number_axis_number, normalize), OP(xy_axis, weight_norm), \
    OP(xy_axis_number, cosine_similarity), OP(xy_numbers, pairwise_distance), \
    OP(index_table_int, embedding), OP(index_table_flag, embedding_bag), \
    OP(attention_, attention_opt), OP(rnn_cell_, rnn_tanh_cell), OP(rnn_cell_, rnn_relu_cell), \
    OP(gru_cell_, gru_cell), OP(lstm_cell_, lstm_cell), OP(rnn_, rnn_opt), \
    /* losses */ \
    OP(xy_reduced, mse_loss), OP(xy_reduced, l1_loss), OP(xy_number_reduced, huber_loss), \
    OP(xy_number_reduced, smooth_l1_loss), OP(xy_weighted, binary_cross_entropy_opt), \
    OP(xy_weighted, binary_cross_entropy_with_logits_opt), OP(kl_div, kl_div_opt), \
    OP(poisson, poisson_nll_loss_opt), OP(gaussian, gaussian_nll_loss_opt), \
    OP(xy_reduced, soft_margin_loss), OP(xy_number_reduced, hinge_embedding_loss), \
    OP(xyz_number_reduced, margin_ranking_loss), OP(xyz_number_reduced, cosine_embedding_loss), \
    OP(triplet, triplet_margin_loss_opt), \
    OP(multi_margin, multi_margin_loss_opt), OP(ctc, ctc_loss_opt),

#endif
/* MIT licence: see LICENSE. */
