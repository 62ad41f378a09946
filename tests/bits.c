/* bits.c - a checksum of every op's bits, to compare compilers and numbers of threads

   usage: bits [threads [op ...]]   a line "op dtype checksum" for each; the last is "N passed, N failed"
          bits --level              the name of the level in force

   FL_DEVICE=cuda runs it on that backend; GROUPS_ONE_IN=n has about one op in n, drawn by SEED.

   Each op runs on all magnitudes and special values in each dtype that it takes, its backward pass
   on ordinary values. NaNs count as one: their sign and payload are the compiler's choice. `make
   bits` builds it with gcc and with clang and compares what they print at each level. */
#include "../fl_backend.h"
#include "arrays.h"
#include "sample.h"
#include "steps.h"

enum { ROWS = 61, COLUMNS = 1031, IMAGES = 3, SIDE = 29 };

static int passed, failed;
static fl_dtype dtype;                         /* of the operands now */
static fl_tensor *x_, *y_, *index_, *image, *kernel; /* the same for every op */

static unsigned one_in = 1;
static char **only; /* names, the last NULL; NULL: all */
static bool wanted(const char *op) {
    for (char **name = only; name && *name; name++)
        if (!strcmp(*name, op)) return true;
    return !only && in_sample(op, one_in);
}

static uint64_t mixed(uint64_t h, uint64_t v) { return (h ^ v) * 1099511628211u; }

static uint64_t hashed(uint64_t h, fl_tensor *t) {
    array a;
    pool_at = 0;
    if (!t || !read_tensor(t, &a)) return 0;
    for (int d = 0; d < a.shape.ndim; d++) h = mixed(h, (uint64_t)a.shape.dim[d]);
    for (int64_t k = 0; k < a.n; k++) {
        uint64_t bits = (uint64_t)a.i[k];
        if (is_float(a.dtype)) memcpy(&bits, &a.f[k], sizeof bits);
        h = mixed(h, is_float(a.dtype) && isnan(a.f[k]) ? 0x7ff8 : bits);
    }
    return h;
}

static void print_line(const char *op, uint64_t h) {
    if (fl_error()) {
        printf("%s %s: %s\n", op, fl_dtype_name(dtype), fl_error());
        fl_error_clear();
        failed++;
        return;
    }
    printf("%s %s %016llx\n", op, fl_dtype_name(dtype), (unsigned long long)h);
    passed++;
}

/* Values, and the gradient where there is one. */
static uint64_t with_gradient(uint64_t h, fl_var *y, fl_var *x) {
    h = hashed(h, fv_value(y));
    if (!y || !y->requires_grad) return h;
    fl_tensor *g = fl_uniform(fl_shape_of(fv_value(y)), -1, 1, FL_F32, &(fl_rng){3, 0});
    fl_var *dx = fl_backward(y, .grad = fl_cast(g, fv_value(y)->dtype)) ? x : NULL;
    return hashed(h, fv_grad(dx));
}

static fl_tensor *drawn(fl_shape s, values v, uint64_t seed) {
    pool_at = 0;
    random_state = seed;
    array a = random_array(s, dtype, v);
    return dense_tensor(&a);
}

/* Values in (0.1, 1.9), where every formula is defined. */
static fl_tensor *ordinary(fl_shape s, uint64_t seed) {
    return fl_cast(fl_uniform(s, 0.1, 1.9, FL_F32, &(fl_rng){seed, 0}), dtype);
}

/* >>the tables' ops */

static const struct {
    const char *name;
    fl_op_class cls;
    fl_var *(*run)(fl_var *);
} unary[] = {
#define UNARY(op, cls, ...) {#op, FL_CLASS_##cls, fv_##op},
    FL_UNARY_OPS(UNARY)
#undef UNARY
#define COMPOSED(op) {#op, FL_CLASS_FLOAT, fv_##op}
    COMPOSED(lgamma), COMPOSED(digamma), COMPOSED(erfc)
#undef COMPOSED
};
static const struct {
    const char *name;
    fl_op_class cls;
    fl_var *(*run)(fl_var *, fl_var *);
} binary[] = {
#define BINARY(op, cls, ...) {#op, FL_CLASS_##cls, fv_##op},
    FL_BINARY_OPS(BINARY)
#undef BINARY
    {"hypot", FL_CLASS_FLOAT, fv_hypot},
};

static bool class_takes(fl_op_class c) {
    return is_float(dtype) ? c != FL_CLASS_INT : dtype != FL_B8 || c != FL_CLASS_NUM;
}

static void run_unary(size_t i) {
    fl_scope s = fl_scope_begin();
    fl_var *wild = fv_const(x_), *x = is_float(dtype) ? fv_param(y_) : fv_const(y_);
    uint64_t h = hashed(1, fv_value(unary[i].run(wild)));
    h = with_gradient(h, unary[i].run(x), x);
    print_line(unary[i].name, h);
    fl_scope_end(&s);
}

/* Integers have no division by 0. */
static fl_tensor *divisor(fl_tensor *t) {
    if (is_float(dtype) || dtype == FL_B8) return t;
    return fl_where(fl_eq(t, fl_int(0)), fl_full_like(t, 3), t);
}

static void run_binary(size_t i) {
    fl_scope s = fl_scope_begin();
    fl_tensor *right = divisor(fl_reshape(fl_transpose(x_, 0, 1), FL_SHAPE(ROWS, COLUMNS)));
    fl_var *a = is_float(dtype) ? fv_param(y_) : fv_const(y_);
    fl_var *b = fv_const(divisor(fl_select(y_, 0, 3)));
    uint64_t h = hashed(1, fv_value(binary[i].run(fv_const(x_), fv_const(right))));
    h = with_gradient(h, binary[i].run(a, b), a);
    print_line(binary[i].name, h);
    fl_scope_end(&s);
}

/* >>the other ops, on x [ROWS, COLUMNS] or on an image */

static fl_var *f_sum(fl_var *x) { return fv_sum(x, FL_ALL_AXES); }
static fl_var *f_sum_0(fl_var *x) { return fv_sum(x, FL_AXES(0)); }
static fl_var *f_sum_1(fl_var *x) { return fv_sum(x, FL_AXES(1)); }
static fl_var *f_prod(fl_var *x) { return fv_prod(x, FL_AXES(0)); }
static fl_var *f_mean(fl_var *x) { return fv_mean(x, FL_AXES(1)); }
static fl_var *f_variance(fl_var *x) { return fv_variance(x, FL_AXES(0), 1); }
static fl_var *f_amax(fl_var *x) { return fv_amax(x, FL_AXES(1)); }
static fl_var *f_amin(fl_var *x) { return fv_amin(x, FL_ALL_AXES); }
static fl_var *f_logsumexp(fl_var *x) { return fv_logsumexp(x, FL_AXES(0)); }
static fl_var *f_argmax(fl_var *x) { return fv_const(fl_argmax(fv_value(x), 0, false)); }
static fl_var *f_argmin(fl_var *x) { return fv_const(fl_argmin(fv_value(x), 1, false)); }
static fl_var *f_cumsum(fl_var *x) { return fv_cumsum(x, 1); }
static fl_var *f_cumsum_0(fl_var *x) { return fv_cumsum(x, 0); }
static fl_var *f_cumprod(fl_var *x) { return fv_cumprod(x, 0); }
static fl_var *f_sort(fl_var *x) { return fv_sort(x, 1, true, NULL); }
static fl_var *f_sort_0(fl_var *x) { return fv_sort(x, 0, false, NULL); }
static fl_var *f_topk(fl_var *x) { return fv_topk(x, 100, 1, false, NULL); }
static fl_var *f_nonzero(fl_var *x) { return fv_const(fl_nonzero(fv_value(x))); }
static fl_var *f_gather(fl_var *x) { return fv_gather(x, 0, index_); }
static fl_var *f_scatter(fl_var *x) { return fv_scatter(x, 0, index_, fv_neg(x)); }
static fl_var *f_scatter_add(fl_var *x) { return fv_scatter_add(x, 0, index_, x); }
static fl_var *f_index_select(fl_var *x) { return fv_index_select(x, 0, fl_select(index_, 1, 0)); }
static fl_var *f_where(fl_var *x) { return fv_where(fv_gt(x, fv_num(1)), x, fv_num(3)); }
static fl_var *f_clip(fl_var *x) { return fv_clamp(x, fv_num(0.5), fv_num(1.5)); }
static fl_var *f_matmul(fl_var *x) { return fv_matmul(x, fv_transpose(x, 0, 1)); }
static fl_var *f_matmul_row(fl_var *x) { return fv_matmul(x, fv_select(x, 0, 0)); }
static fl_var *f_softmax(fl_var *x) { return fv_softmax(x, 1); }
static fl_var *f_softmax_0(fl_var *x) { return fv_softmax(x, 0); }
static fl_var *f_log_softmax(fl_var *x) { return fv_log_softmax(x, 1); }
static fl_var *f_dropout(fl_var *x) { return fv_dropout(x, 0.3, &(fl_rng){4, 2}); }
static fl_var *f_cast_f16(fl_var *x) { return fv_cast(x, FL_F16); }
static fl_var *f_cast_i32(fl_var *x) { return fv_cast(x, FL_I32); }
static fl_var *f_copy(fl_var *x) { return fv_square(fv_transpose(x, 0, 1)); }
static fl_var *f_concat(fl_var *x) { return fv_concat((fl_var *[]){x, x}, 2, 1); }
static fl_var *f_conv2d(fl_var *x) { return fv_conv(x, fv_const(kernel), NULL, .pad = {1}); }
static fl_var *f_conv2d_by(fl_var *x) {
    return fv_conv(x, fv_const(kernel), NULL, .stride = {2}, .dilation = {2});
}
static fl_var *f_conv2d_weight(fl_var *x) {
    fl_var *w = fv_slice(fv_slice(x, 2, 0, 3, 1), 3, 0, 5, 1);
    return fv_conv(fv_const(image), w, NULL);
}
static fl_var *f_max_pool2d(fl_var *x) {
    return fv_max_pool(x, NULL, .kernel = {3}, .stride = {2}, .pad = {1});
}
static fl_var *f_avg_pool2d(fl_var *x) {
    return fv_avg_pool(x, .kernel = {3}, .stride = {2}, .pad = {1});
}

/* Of the first steps and columns of x, 25 sequences of 1 to `steps` steps. */
static fl_var *recurrent(fl_var *x, fl_rnn_mode mode, int64_t steps, int64_t hidden, bool both) {
    const int64_t rows = (mode == FL_LSTM ? 4 : 3) * hidden;
    fl_rng rng = {6, 0};
    fl_var *w[8] = {NULL};
    for (int i = 0; i < 8; i++) {
        const fl_shape s = i % 4 > 1 ? FL_SHAPE(rows) : FL_SHAPE(rows, i % 4 ? hidden : 40);
        w[i] = fv_const(fl_cast(fl_uniform(s, -0.2, 0.2, FL_F32, &rng), dtype));
    }
    x = fv_slice(fv_slice(x, 0, 0, steps, 1), 1, 0, 1000, 1);
    return fv_rnn(mode, fv_reshape(x, FL_SHAPE(steps, 25, 40)), w, .bidirectional = both,
                  .lengths = both ? fl_randint(FL_SHAPE(25), 1, steps + 1, &rng) : NULL);
}
static fl_var *f_lstm(fl_var *x) { return recurrent(x, FL_LSTM, 20, 33, true); }
static fl_var *f_gru(fl_var *x) { return recurrent(x, FL_GRU, 20, 33, true); }
static fl_var *f_gru_large(fl_var *x) { return recurrent(x, FL_GRU, 3, 320, false); }

static const struct {
    const char *name;
    fl_var *(*run)(fl_var *);
    bool of_image, of_integers;
} others[] = {
#define F(op) {#op, f_##op, false, false}
#define N(op) {#op, f_##op, false, true}
#define I(op) {#op, f_##op, true, false}
    N(sum),        N(sum_0),   N(sum_1),     N(prod),         F(mean),    F(variance),
    N(amax),       N(amin),    F(logsumexp), N(argmax),       N(argmin),  N(cumsum),
    N(cumsum_0),   N(cumprod), N(sort),      N(sort_0),       N(topk),    N(nonzero),
    N(gather),     N(scatter), N(scatter_add), N(index_select), N(where), N(clip),
    N(matmul),     N(matmul_row), F(softmax), F(softmax_0),   F(log_softmax), F(dropout),
    N(cast_f16),   N(cast_i32), N(copy),     N(concat),       I(conv2d),  I(conv2d_by),
    I(conv2d_weight), I(max_pool2d), I(avg_pool2d), F(lstm), F(gru), F(gru_large),
#undef F
#undef N
#undef I
};

static void run_other(size_t i) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t = others[i].of_image ? image : y_;
    fl_var *x = is_float(dtype) ? fv_param(t) : fv_const(t);
    print_line(others[i].name, with_gradient(1, others[i].run(x), x));
    fl_scope_end(&s);
}

/* What has no operand, and what writes in place. */
static void run_rest(void) {
    fl_scope s = fl_scope_begin();
    const fl_shape big = FL_SHAPE(ROWS, COLUMNS);
    const adam_args adam = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
    const sgd_args sgd = {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true};
    fl_rng rng = {8, 5};
    print_line("uniform", hashed(1, fl_uniform(big, -3, 5, dtype, &rng)));
    print_line("normal", hashed(1, fl_normal(big, 1, 2, dtype, &rng)));
    print_line("arange", hashed(1, fl_arange(0, 9000, 0.7, dtype)));
    fl_tensor *p = fl_clone(y_), *m = fl_full_like(y_, 0), *v = fl_full_like(y_, 1);
    print_line("sgd_step", sgd_step(p, y_, m, &sgd) ? hashed(hashed(1, p), m) : 0);
    print_line("adam_step", adam_step(p, y_, m, v, &adam) ? hashed(hashed(1, p), v) : 0);
    fl_scope_end(&s);
}

static void run_dtype(void) {
    fl_scope s = fl_scope_begin();
    const fl_shape big = FL_SHAPE(ROWS, COLUMNS);
    x_ = drawn(big, WILD, 11);
    y_ = is_float(dtype) ? ordinary(big, 12) : drawn(big, TAME, 12);
    index_ = fl_randint(big, 0, ROWS, &(fl_rng){13, 0});
    for (size_t i = 0; i < sizeof unary / sizeof *unary; i++)
        if (class_takes(unary[i].cls) && wanted(unary[i].name)) run_unary(i);
    for (size_t i = 0; i < sizeof binary / sizeof *binary; i++)
        if (class_takes(binary[i].cls) && wanted(binary[i].name)) run_binary(i);
    if (is_float(dtype)) {
        image = ordinary(FL_SHAPE(IMAGES, 6, SIDE, SIDE + 2), 14);
        kernel = ordinary(FL_SHAPE(8, 6, 3, 5), 15);
        if (wanted("rest")) run_rest();
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if ((is_float(dtype) || (others[i].of_integers && dtype != FL_B8)) && wanted(others[i].name))
            run_other(i);
    fl_scope_end(&s);
}

/* A small language model goes on with a text, token by token: the ids, and the scores of the last one. */
static void run_text(void) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_text_lm(300, .layers = 2, .dim = 64, .heads = 4, .kv_heads = 2, .hidden = 160,
                                 .context = 40, .rms = true, .gated = true, .no_bias = true,
                                 .rng = &(fl_rng){16, 0});
    fl_text_decoder *r = fl_text_decoder_new(m, 1);
    fl_text_sequence text = {0};
    uint64_t h = 0;
    if (fl_text_sequence_add(&text, (int64_t[]){7, 3, 99, 250, 3}, 5) &&
        fl_text_generate(r, &text, 1, .most = 30, .sampler = {.temperature = FL_ZERO}))
        h = hashed(hashed(1, fl_from_host(text.id, FL_SHAPE(text.n), FL_I64)),
                   fl_from_host(fl_text_decoder_scores(r, 0), FL_SHAPE(300), FL_F32));
    dtype = FL_F32;
    print_line("text", h);
    fl_text_sequence_free(&text);
    fl_text_decoder_free(r);
    fl_nn_free(m);
    fl_scope_end(&s);
}

static void quiet(const char *text, void *user) { (void)text, (void)user; }

int main(int argc, char **argv) {
    static const fl_dtype dtypes[] = {FL_F32, FL_F64, FL_F16, FL_BF16, FL_I64, FL_I8, FL_B8};
    fl_set_error_handler(quiet, NULL);
    if (argc > 1 && strcmp(argv[1], "--level") == 0) return puts(fl_cpu_level()) < 0;
    if (!fl_set_threads(argc > 1 ? atoi(argv[1]) : 1)) return 2;
    if (getenv("GROUPS_ONE_IN")) one_in = (unsigned)atoi(getenv("GROUPS_ONE_IN"));
    only = argc > 2 ? argv + 2 : NULL;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        dtype = dtypes[i];
        run_dtype();
    }
    if (wanted("text")) run_text();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
/* MIT licence: see LICENSE. */
