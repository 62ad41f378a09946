/* test_determinism.c - the same bits: twice, with any number of threads, at every ISA level

     test_determinism [filter]
     test_determinism --train THREADS   prints the hash of a short training (for FL_CPU_LEVEL's test) */
#include "../fl_backend.h"
#include "../examples/digits.h"
#include "test.h"

#include <pthread.h>
#include <unistd.h>
#include "steps.h"

#ifdef TEST_SANITIZED
enum { STEPS = 3, ROWS = 41, SHORT = 1, SKIP_THREADS = 2 }; /* processes are slow to start */
#else
enum { STEPS = 100, ROWS = 137, SHORT = 8, SKIP_THREADS = 1 };
#endif
enum { BATCH = 2, COLUMNS = 1031 };

static uint64_t hash_tensor(uint64_t h, fl_tensor *t) {
    fl_scope s = fl_scope_begin();
    fl_tensor *dense = t ? fl_contiguous(t) : NULL;
    const unsigned char *p = dense ? fl_map(dense, FL_READ) : NULL;
    const int64_t n = p ? fl_numel(dense) * (int64_t)fl_dtype_size(dense->dtype) : 0;
    for (int64_t i = 0; i < n; i++) h = (h ^ p[i]) * 1099511628211u;
    if (p) fl_unmap(dense, FL_READ);
    CHECK(p || !t);
    fl_scope_end(&s);
    return h;
}

/* ---- training ---- */

typedef struct outcome {
    uint64_t parameters;
    double loss;
} outcome;

/* The MNIST network with dropout and momentum, on digits it draws, through the data pipeline. */
static outcome train(int threads, int64_t steps) {
    outcome r = {1469598103934665603u, 0};
    CHECK(fl_set_threads(threads));
    fl_seed(7);
    fl_scope s = fl_scope_begin();
    digits d;
    if (!CHECK(digits_draw(BATCH * 16, 5, &d))) return r;
    fl_data_set *set = fl_data_prefetch(digits_batches(d, 0, BATCH * 16, BATCH, 9), threads, 3);
    fl_nn_module *net = digits_net();
    fl_optim *optim =
        fl_optim_sgd(fl_nn_parameters(net), .lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4);
    for (int64_t i = 0; i < steps; i++) {
        fl_scope step = fl_scope_begin();
        fl_data_sample b;
        if (i && i % fl_data_size(set) == 0) CHECK(fl_data_set_epoch(set, i / fl_data_size(set)));
        CHECK(fl_data_get(set, i % fl_data_size(set), &b));
        fl_var *loss = fv_nll_loss(fl_nn_forward(net, fv_const(b.t[0])), b.t[1]);
        fl_optim_zero_grad(optim);
        CHECK(fl_backward(loss) && fl_optim_step(optim));
        r.loss = fl_item(fv_value(loss));
        fl_scope_end(&step);
    }
    const fv_list p = fl_nn_parameters(net);
    for (int i = 0; i < p.n; i++) r.parameters = hash_tensor(r.parameters, fv_value(p.v[i]));
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_data_free(set);
    fl_scope_end(&s);
    return r;
}

TEST(training_gives_the_same_bits) {
    const outcome first = train(1, STEPS);
    CHECK(first.loss > 0 && first.loss < 5);
    for (int threads = 1; threads <= 3; threads++) {
        const outcome again = train(threads, STEPS);
        if (!CHECK(again.parameters == first.parameters && again.loss == first.loss))
            printf("  with %d threads\n", threads);
    }
    CHECK(train(2, STEPS - 1).parameters != first.parameters);
}

/* What `test_determinism --train threads` prints in a process of its own. */
static uint64_t train_elsewhere(const char *isa, int threads) {
    char command[600], self[400];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) return 0;
    self[n] = 0;
    snprintf(command, sizeof command, "FL_CPU_LEVEL=%s '%s' --train %d", isa, self, threads);
    FILE *p = popen(command, "r");
    unsigned long long hash = 0;
    if (!p || fscanf(p, "%llx", &hash) != 1) hash = 0;
    if (p) CHECK_EQ_INT(pclose(p), 0);
    return hash;
}

TEST(every_instruction_set_level_agrees_with_itself) {
    /* at most what the processor has */
    static const char *const levels[] = {"portable", "avx2", "avx512"};
    if (access("/proc/self/exe", R_OK)) SKIP("no /proc/self/exe to start again");
    for (int i = 0; i < 3; i++) {
        const uint64_t want = train_elsewhere(levels[i], 1);
        CHECK(want != 0);
        for (int threads = 1; threads <= 3; threads += SKIP_THREADS)
            if (!CHECK(train_elsewhere(levels[i], threads) == want))
                printf("  FL_CPU_LEVEL=%s, %d threads\n", levels[i], threads);
    }
}

/* ---- every op, forward and backward ---- */

/* The same on every call. x [ROWS, COLUMNS] is in (0.1, 1.9), so that every formula is defined. */
static struct {
    fl_tensor *x, *y, *wide, *image, *kernel, *bias, *index, *rows, *truth, *whole;
} in;

static void make_operands(void) {
    fl_rng rng = {21, 0};
    in.x = fl_uniform(FL_SHAPE(ROWS, COLUMNS), 0.1, 1.9, FL_F32, &rng);
    in.y = fl_uniform(FL_SHAPE(ROWS, COLUMNS), 0.1, 1.9, FL_F32, &rng);
    in.wide = fl_uniform(FL_SHAPE(COLUMNS, ROWS), -1, 1, FL_F32, &rng);
    in.image = fl_uniform(FL_SHAPE(3, 6, 45, 47), -1, 1, FL_F32, &rng);
    in.kernel = fl_uniform(FL_SHAPE(8, 6, 5, 3), -1, 1, FL_F32, &rng);
    in.bias = fl_uniform(FL_SHAPE(8), -1, 1, FL_F32, &rng);
    in.index = fl_randint(FL_SHAPE(ROWS, COLUMNS), 0, ROWS, &rng);
    in.rows = fl_randint(FL_SHAPE(3 * ROWS), 0, ROWS, &rng);
    in.whole = fl_randint(FL_SHAPE(ROWS, COLUMNS), -9, 9, &rng);
    in.truth = fl_gt(in.x, fl_num(1));
}

static fl_var *f_clip(fl_var *x) { return fv_clamp(x, fv_num(0.5), fv_num(1.5)); }
static fl_var *f_where(fl_var *x) { return fv_where(fv_const(in.truth), x, fv_const(in.y)); }
static fl_var *f_cast(fl_var *x) { return fv_cast(x, FL_F64); }
static fl_var *f_row(fl_var *x) {
    return fv_mul(fv_select(x, 0, 1), x);
} /* broadcast: its gradient is summed */
static fl_var *f_column(fl_var *x) { return fv_add(fv_slice(x, 1, 3, 4, 1), x); }
static fl_var *f_reshape(fl_var *x) { return fv_reshape(fv_transpose(x, 0, 1), FL_SHAPE(-1)); }
static fl_var *f_permute(fl_var *x) {
    return fv_square(fv_permute(fv_unsqueeze(x, 1), 3, (int[]){2, 1, 0}));
}
static fl_var *f_expand(fl_var *x) {
    return fv_square(fv_expand(fv_unsqueeze(x, 0), FL_SHAPE(3, ROWS, COLUMNS)));
}
static fl_var *f_slice(fl_var *x) { return fv_slice(x, 1, -1, FL_SLICE_END, -2); }
static fl_var *f_flatten(fl_var *x) { return fv_flatten(fv_squeeze(fv_unsqueeze(x, 0), 0), 0, 1); }
static fl_var *f_concat(fl_var *x) { return fv_concat((fl_var *[]){x, fv_exp(x), x}, 3, 1); }
static fl_var *f_stack(fl_var *x) { return fv_stack((fl_var *[]){x, fv_exp(x)}, 2, 1); }
static fl_var *f_sum(fl_var *x) { return fv_sum(x, FL_ALL_AXES); }
static fl_var *f_sum_rows(fl_var *x) { return fv_sum(x, FL_AXES(0)); }
static fl_var *f_sum_columns(fl_var *x) { return fv_sum(x, FL_AXES(1)); }
static fl_var *f_prod(fl_var *x) { return fv_prod(x, FL_AXES(0)); }
static fl_var *f_mean(fl_var *x) { return fv_mean(x, FL_ALL_AXES); }
static fl_var *f_variance(fl_var *x) { return fv_variance(x, FL_AXES(1), 1); }
static fl_var *f_amax(fl_var *x) { return fv_amax(x, FL_ALL_AXES); }
static fl_var *f_amin(fl_var *x) { return fv_amin(x, FL_AXES(0)); }
static fl_var *f_logsumexp(fl_var *x) { return fv_logsumexp(x, FL_AXES(1)); }
static fl_var *f_sum_to(fl_var *x) { return fv_sum_to(x, FL_SHAPE(COLUMNS)); }
static fl_var *f_gather(fl_var *x) { return fv_gather(x, 0, in.index); }
static fl_var *f_scatter_add(fl_var *x) { return fv_scatter_add(x, 0, in.index, fv_square(x)); }
static fl_var *f_index_select(fl_var *x) { return fv_index_select(x, 0, in.rows); }
static fl_var *f_scatter(fl_var *x) { return fv_scatter(x, 0, in.index, fv_square(x)); }
static fl_var *f_cumsum(fl_var *x) { return fv_cumsum(x, 1); }
static fl_var *f_cumsum_rows(fl_var *x) { return fv_cumsum(x, 0); }
static fl_var *f_cumprod(fl_var *x) { return fv_cumprod(x, 0); }
static fl_var *f_sort(fl_var *x) { return fv_sort(x, 1, false, NULL); }
static fl_var *f_sort_rows(fl_var *x) { return fv_sort(x, 0, true, NULL); }
static fl_var *f_topk(fl_var *x) { return fv_topk(x, 50, 1, false, NULL); }
static fl_var *f_matmul(fl_var *x) { return fv_matmul(x, fv_const(in.wide)); }
static fl_var *f_matmul_right(fl_var *x) { return fv_matmul(fv_const(in.wide), x); }
static fl_var *f_linear(fl_var *x) {
    fl_var *w = fv_const(in.wide);
    return fv_linear_act(x, fv_transpose(w, 0, 1), fv_select(w, 0, 0), FL_OP_gelu);
}
static fl_var *f_matmul_vector(fl_var *x) { return fv_matmul(x, fv_select(x, 0, 0)); }
static fl_var *f_matmul_batch(fl_var *x) {
    return fv_matmul(fv_reshape(x, FL_SHAPE(COLUMNS, 1, ROWS)),
                     fv_reshape(x, FL_SHAPE(COLUMNS, ROWS, 1)));
}
static fl_var *f_softmax(fl_var *x) { return fv_softmax(x, 1); }
static fl_var *f_softmax_rows(fl_var *x) { return fv_softmax(x, 0); }
static fl_var *f_log_softmax(fl_var *x) { return fv_log_softmax(x, -1); }
static fl_var *f_dropout(fl_var *x) { return fv_dropout(x, 0.3, &(fl_rng){4, 2}); }
static fl_var *f_conv2d(fl_var *x) {
    return fv_conv(x, fv_const(in.kernel), fv_const(in.bias), .pad = {FL_SAME});
}
static fl_var *f_conv2d_stride(fl_var *x) {
    return fv_conv(x, fv_const(in.kernel), NULL, .stride = {2}, .dilation = {2});
}
static fl_var *f_conv2d_weight(fl_var *w) {
    return fv_conv(fv_const(in.image), w, fv_const(in.bias), .pad = {1});
}
static fl_var *f_conv2d_bias(fl_var *b) {
    return fv_conv(fv_const(in.image), fv_const(in.kernel), b, .groups = 1);
}
static fl_var *f_max_pool2d(fl_var *x) {
    return fv_max_pool(x, NULL, .kernel = {3}, .stride = {2}, .pad = {1});
}
static fl_var *f_avg_pool2d(fl_var *x) {
    return fv_avg_pool(x, .kernel = {3}, .stride = {2}, .pad = {1}, .ignore_pad = true);
}

typedef fl_var *(*var_fn)(fl_var *x);
enum { OF_X, OF_IMAGE, OF_KERNEL, OF_BIAS };
static const struct {
    const char *name;
    var_fn fn;
    int operand;
} ops[] = {
#define UNARY(op, ...) {#op, fv_##op, OF_X},
    FL_UNARY_OPS(UNARY)
#undef UNARY
#define F(op, ...) \
    { #op, f_##op, OF_##__VA_ARGS__ }
        F(clip, X),
    F(where, X),
    F(cast, X),
    F(row, X),
    F(column, X),
    F(reshape, X),
    F(permute, X),
    F(expand, X),
    F(slice, X),
    F(flatten, X),
    F(concat, X),
    F(stack, X),
    F(sum, X),
    F(sum_rows, X),
    F(sum_columns, X),
    F(prod, X),
    F(mean, X),
    F(variance, X),
    F(amax, X),
    F(amin, X),
    F(logsumexp, X),
    F(sum_to, X),
    F(gather, X),
    F(scatter_add, X),
    F(index_select, X),
    F(scatter, X),
    F(cumsum, X),
    F(cumsum_rows, X),
    F(cumprod, X),
    F(sort, X),
    F(sort_rows, X),
    F(topk, X),
    F(matmul, X),
    F(matmul_right, X),
    F(linear, X),
    F(matmul_vector, X),
    F(matmul_batch, X),
    F(softmax, X),
    F(softmax_rows, X),
    F(log_softmax, X),
    F(dropout, X),
    F(conv2d, IMAGE),
    F(conv2d_stride, IMAGE),
    F(conv2d_weight, KERNEL),
    F(conv2d_bias, BIAS),
    F(max_pool2d, IMAGE),
    F(avg_pool2d, IMAGE),
#undef F
};
enum { OPS = sizeof ops / sizeof *ops };

static const struct {
    const char *name;
    fl_op_class cls;
    fl_var *(*fn)(fl_var *a, fl_var *b);
} binary_ops[] = {
#define BINARY(op, cls, ...) {#op, FL_CLASS_##cls, fv_##op},
    FL_BINARY_OPS(BINARY)
#undef BINARY
};
enum { BINARIES = sizeof binary_ops / sizeof *binary_ops };

/* Value and gradients of y with respect to a and b. */
static uint64_t hash_of(fl_var *y, fl_var *a, fl_var *b) {
    uint64_t h = hash_tensor(1469598103934665603u, fv_value(y));
    if (y && y->requires_grad) {
        fl_rng rng = {99, 0};
        fl_tensor *g = fl_uniform(fl_shape_of(y->value), -1, 1, y->value->dtype, &rng);
        CHECK(fl_backward(y, .grad = g));
    }
    h = hash_tensor(h, fv_grad(a));
    return b ? hash_tensor(h, fv_grad(b)) : h;
}

static uint64_t hash_op(int i) {
    fl_tensor *operands[] = {in.x, in.image, in.kernel, in.bias};
    fl_scope s = fl_scope_begin();
    fl_tensor *t = operands[ops[i].operand];
    fl_var *x = ops[i].fn == fv_bitwise_not ? fv_const(in.whole) : fv_param(t);
    const uint64_t h = hash_of(ops[i].fn(x), x, NULL);
    if (!CHECK_NO_ERROR()) printf("  in %s\n", ops[i].name);
    fl_scope_end(&s);
    return h;
}

static uint64_t hash_binary(int i) {
    fl_scope s = fl_scope_begin();
    const bool integer = binary_ops[i].cls == FL_CLASS_INT;
    fl_var *a = integer ? fv_const(in.whole) : fv_param(in.x), *b = integer ? a : fv_param(in.y);
    const uint64_t h = hash_of(binary_ops[i].fn(a, b), a, b);
    if (!CHECK_NO_ERROR()) printf("  in %s\n", binary_ops[i].name);
    fl_scope_end(&s);
    return h;
}

/* What has no gradient. */
enum { PLAIN = 15 };
static uint64_t hash_plain(int i) {
    fl_scope s = fl_scope_begin();
    const fl_shape big = FL_SHAPE(ROWS, COLUMNS);
    fl_rng rng = {8, 5};
    fl_tensor *m = fl_zeros(big, FL_F32), *v = fl_ones(big, FL_F32), *p = fl_clone(in.x), *t = NULL;
    const adam_args adam = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
    const sgd_args sgd = {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true};
    switch (i) {
    case 0: t = fl_uniform(big, -3, 5, FL_F64, &rng); break;
    case 1: t = fl_normal(big, 1, 2, FL_F32, &rng); break;
    case 2: t = fl_normal(big, 1, 2, FL_F64, &rng); break;
    case 3: t = fl_randint(big, -100, 1000, &rng); break;
    case 4: t = fl_arange(0, ROWS * COLUMNS, 0.25, FL_F32); break;
    case 5: t = fl_eye(ROWS, COLUMNS, FL_F32); break;
    case 6: t = fl_argmax(in.x, 1, false); break;
    case 7: t = fl_argmin(in.x, 0, true); break;
    case 8: t = fl_all(in.truth, FL_AXES(0)); break;
    case 9: t = fl_sum(in.whole, FL_ALL_AXES); break;
    case 10: t = fl_one_hot(in.rows, ROWS); break;
    case 11: t = fl_full_like(in.x, 3); break;
    case 12: t = fl_nonzero(in.truth); break;
    case 13: t = sgd_step(p, in.y, m, &sgd) ? fl_add(p, m) : NULL; break;
    default: t = adam_step(p, in.y, m, v, &adam) ? fl_add(p, fl_mul(m, v)) : NULL; break;
    }
    CHECK(t != NULL);
    const uint64_t h = hash_tensor(1469598103934665603u, t);
    fl_scope_end(&s);
    return h;
}

/* Layers whose statistics are sums over the batch. */
enum { LAYERS = 4 };
static uint64_t hash_layer(int i) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {6, 0};
    fl_nn_module *m = i == 0   ? fl_nn_batch_norm2d(6)
                      : i == 1 ? fl_nn_layer_norm(FL_SHAPE(45, 47))
                      : i == 2 ? fl_nn_linear(47, 33, .rng = &rng)
                               : fl_nn_conv2d(6, 5, 3, .rng = &rng);
    fl_var *x = fv_param(in.image);
    uint64_t h = hash_of(fl_nn_forward(m, x), x, NULL);
    const fv_list p = fl_nn_parameters(m);
    for (int k = 0; k < p.n; k++) h = hash_tensor(h, fv_grad(p.v[k]));
    h = hash_tensor(h, fl_nn_get_buffer(m, "running_var"));
    fl_nn_free(m);
    fl_scope_end(&s);
    return h;
}

typedef uint64_t (*hash_fn)(int i);
static const char *op_name(int i) { return ops[i].name; }
static const char *binary_name(int i) { return binary_ops[i].name; }

/* All hashes with 1 thread, then again with each number of threads. */
static void check_threads(hash_fn hash, int n, const char *(*name)(int i)) {
    static const int threads[] = {1, 2, 3, 8};
    uint64_t want[256];
    fl_scope s = fl_scope_begin();
    CHECK(n <= 256 && fl_set_threads(1));
    make_operands();
    for (int i = 0; i < n; i++) want[i] = hash(i);
    for (int t = 0; t < 4; t++) {
        CHECK(fl_set_threads(threads[t]));
        for (int i = 0; i < n; i++)
            if (!CHECK(hash(i) == want[i]))
                printf("  %s %d with %d threads\n", name ? name(i) : "case", i, threads[t]);
    }
    fl_scope_end(&s);
}

TEST(ops_do_not_depend_on_threads) { check_threads(hash_op, OPS, op_name); }
TEST(binary_ops_do_not_depend_on_threads) { check_threads(hash_binary, BINARIES, binary_name); }
TEST(what_has_no_gradient_does_not_depend_on_threads) { check_threads(hash_plain, PLAIN, NULL); }
TEST(layers_do_not_depend_on_threads) { check_threads(hash_layer, LAYERS, NULL); }

/* The tests above mean something: with several threads the loops do run on several. */
static int chunks_elsewhere;
static pthread_t caller;
static void note_thread(void *arg, int64_t begin, int64_t end) {
    (void)arg, (void)begin, (void)end;
    if (!pthread_equal(pthread_self(), caller))
        __atomic_add_fetch(&chunks_elsewhere, 1, __ATOMIC_RELAXED);
    usleep(1000);
}

TEST(several_threads_do_the_work) {
    caller = pthread_self();
    CHECK(fl_set_threads(3) && fl_threads() == 3);
    fl_parallel(60, 1, note_thread, NULL);
    CHECK(chunks_elsewhere > 0);
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "--train")) {
        printf("%llx\n", (unsigned long long)train(atoi(argv[2]), SHORT).parameters);
        return test__failures != 0;
    }
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
