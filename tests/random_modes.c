/* random_modes.c - random programs in every mode of execution; memory that fails or is paged out in them

   usage: random_modes [filter]     the tests whose name contains it
          random_modes 123          program 123 alone, with its steps

   A program is 40 to 60 steps, about 180 calls, over eight tensors, some of which share memory: arithmetic
   of mixed dtypes, reductions, casts, indexing, joins, random numbers, writes in place through overlapping
   views, gradients and updates. It reads nothing until its end. Each program runs five rounds from two sets
   of start values eagerly; then deferred, as a graph (rounds and replays), with the modes and reads of the
   host mixed at random, and deferred in two threads that take turns. Every bit of every tensor, their
   versions and the generator must be those of the eager round. 20,000 programs with FULL in the environment,
   else a sample from SEED on. A failing program is shortened by leaving out steps, and printed as a list of
   the rest. Programs of the dtypes that C and StableHLO have are written as both, the first few, or
   500 with PROGRAMS in the environment: with STABLEHLO=folder modules for tests/python/test_stablehlo.py. */
#include "../fl_all.h"
#include "../fl_backend.h"
#include "../fl/graph/rows.h"
#include "heap.h"
#include "paged.h"
#include "compiler.h"
#include "test.h"
#include "written.h"

#include <ctype.h>
#include <sys/stat.h>

typedef fl_tensor *T;

enum { REGISTERS = 8, MOST_STEPS = 60, ROUNDS = 5 };
typedef enum mode { EAGER, LAZY, GRAPH, MIXED, THREADS, MODES } mode;
static const char *const mode_names[] = {"eager", "lazy", "graph", "mixed", "threads"};

typedef struct program {
    uint64_t number, seed;
    int n_steps;
    uint64_t step[MOST_STEPS]; /* seeds; 0: left out */
    bool own_generator, constants; /* has steps that draw from one, that write constants */
    bool portable; /* of the dtypes that are written as C and StableHLO, without functions of the host */
} program;

/* What a round leaves. */
typedef struct result {
    uint64_t bits, versions, input_versions, counter, host, errors;
} result;

static struct {
    T r[REGISTERS], input[REGISTERS], start[REGISTERS];
    int64_t rows, cols;
    fl_rng rng; /* of the program, where it has one */
    uint64_t errors, host;
    const program *p;
    bool told; /* the steps are printed */
    bool one_nan; /* every NaN counts as the same */
    mode mode;
    int round;
    int64_t waits, waited; /* calls of a round before its first read; of the deferred one */
} vm;

static struct {
    int64_t calls, replays;
    int64_t errors, reported; /* of calls, in all rounds; rounds in which memory failed */
} count;

/* ---- random numbers of the test ---- */

static uint64_t random_state;

static uint64_t random_bits(void) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int64_t below(int64_t n) { return (int64_t)(random_bits() >> 1) % (n > 0 ? n : 1); }

static fl_dtype some_dtype(void) {
    static const fl_dtype d[] = {FL_F32, FL_F32, FL_F32, FL_F32,  FL_F64, FL_F16, FL_BF16,
                                 FL_F16, FL_I32, FL_I64, FL_BF16, FL_U8,  FL_B8};
    static const fl_dtype portable[] = {FL_F32, FL_F32, FL_F32, FL_F32, FL_F64, FL_I8,  FL_U16,
                                        FL_U32, FL_I32, FL_I64, FL_U64, FL_U8,  FL_B8};
    return (vm.p->portable ? portable : d)[below(13)];
}

static uint64_t hashed(uint64_t h, const void *p, size_t n) {
    const unsigned char *c = p;
    for (size_t i = 0; i < n; i++) h = (h ^ c[i]) * 0x100000001b3u;
    return h;
}

/* ---- steps: a and b are registers, k a small number; return the result, NULL after a write in place ---- */

static fl_shape whole(void) { return FL_SHAPE(vm.rows, vm.cols); }
static T full(T x) { return fl_expand(x, whole()); }
static fl_dtype float_of(T x) { return fl_dtype_is_float(x->dtype) ? x->dtype : FL_F32; }
static T as_float(T x) { return fl_cast(x, float_of(x)); }
static fl_axes along(int axis) { return FL_AXES_KEEP(axis); }
/* A part of a's rows or columns, which other parts overlap. */
static T part(T a) {
    const int axis = (int)below(2);
    const int64_t n = axis ? vm.cols : vm.rows, from = below(n), to = from + 1 + below(n - from);
    return fl_slice(full(a), axis, from, to, 1);
}
/* Two parts of one size. */
static void parts(T a, T b, T *x, T *y) {
    const int axis = (int)below(2);
    const int64_t n = axis ? vm.cols : vm.rows, size = 1 + below(n);
    const int64_t i = below(n - size + 1), j = below(n - size + 1);
    *x = fl_slice(a, axis, i, i + size, 1);
    *y = fl_slice(b, axis, j, j + size, 1);
}

static T do_add(T a, T b, double k) { return (void)k, fl_add(a, b); }
static T do_sub(T a, T b, double k) { return (void)k, fl_sub(a, b); }
static T do_mul(T a, T b, double k) { return (void)k, fl_mul(a, b); }
static T do_div(T a, T b, double k) { return fl_div(a, fl_add(fl_abs(as_float(b)), fl_num(k * k + 1))); }
static T do_mul_number(T a, T b, double k) { return (void)b, fl_mul(a, fl_num(k)); }
static T do_number_add(T a, T b, double k) { return (void)b, fl_add(fl_num(k), a); }
static T do_maximum(T a, T b, double k) { return (void)k, fl_maximum(a, b); }
static T do_minimum(T a, T b, double k) { return (void)b, fl_minimum(a, fl_num(k)); }
static T do_tanh(T a, T b, double k) { return (void)k, fl_mul(fl_tanh(as_float(a)), b); }
static T do_exp(T a, T b, double k) { return (void)b, (void)k, fl_exp(fl_minimum(as_float(a), fl_num(2))); }
static T do_gelu(T a, T b, double k) {
    return (void)k, fl_add(fl_gelu(as_float(a)), fl_sigmoid(as_float(b)));
}
static T do_relu(T a, T b, double k) { return (void)k, fl_sub(fl_relu(a), b); }
static T do_compare(T a, T b, double k) { return fl_cast(fl_lt(a, fl_add(b, fl_num(k))), some_dtype()); }
static T do_where(T a, T b, double k) { return fl_where(fl_lt(a, b), a, fl_mul(b, fl_num(k))); }
static T do_cast(T a, T b, double k) { return (void)b, (void)k, fl_cast(a, some_dtype()); }
static T do_casts(T a, T b, double k) {
    const fl_dtype d = some_dtype(), e = some_dtype();
    return (void)k, fl_add(fl_cast(a, d), fl_cast(b, e));
}

/* Between the dtypes that groups have, and b8. */
static T do_wide_casts(T a, T b, double k) {
    const fl_dtype wide[] = {FL_F32, FL_F64, FL_B8};
    T x = fl_mul(fl_cast(a, wide[below(2)]), fl_num(k));
    x = fl_mul(fl_cast(x, wide[below(3)]), fl_cast(b, wide[below(2)]));
    T y = fl_add(fl_cast(x, wide[below(3)]), x);
    return below(3) ? fl_sub(fl_cast(y, wide[below(2)]), fl_cast(fl_lt(x, y), wide[below(2)])) : y;
}
static T do_softmax_in_parts(T a, T b, double k) {
    T e = fl_exp(fl_sub(as_float(a), fl_amax(as_float(a), along(-1))));
    return (void)b, (void)k, fl_div(e, fl_sum(e, along(-1)));
}
static T do_norm_in_parts(T a, T b, double k) {
    T d = fl_sub(as_float(a), fl_mean(as_float(a), along(-1)));
    return (void)b, (void)k, fl_mul(d, fl_rsqrt(fl_add(fl_mean(fl_mul(d, d), along(-1)), fl_num(1e-3))));
}
static T do_sum(T a, T b, double k) { return (void)k, fl_add(fl_sum(a, along((int)below(2))), b); }
static T do_mean(T a, T b, double k) { return (void)k, fl_sub(b, fl_mean(as_float(a), FL_ALL_AXES)); }
static T do_variance(T a, T b, double k) { return (void)k, fl_add(fl_variance(as_float(a), along(0), 0), b); }
static T do_softmax(T a, T b, double k) { return (void)b, (void)k, fl_softmax(as_float(a), (int)below(2)); }
static T do_cumsum(T a, T b, double k) { return (void)b, (void)k, fl_cumsum(a, (int)below(2)); }
static T do_layer_norm(T a, T b, double k) {
    return (void)b, (void)k, fl_layer_norm(full(as_float(a)), 1, NULL, NULL, 1e-3);
}

static T do_sort(T a, T b, double k) {
    const int axis = (int)below(2);
    T index = NULL, y = fl_sort(full(a), axis, k > 0, &index);
    return fl_sub(fl_gather(full(b), axis, index), y);
}
static T do_gather(T a, T b, double k) {
    const int axis = (int)below(2);
    return (void)k, fl_mul(fl_gather(full(b), axis, fl_argmax(full(a), axis, true)), a);
}
static T do_scatter(T a, T b, double k) {
    const int axis = (int)below(2);
    T index = NULL;
    fl_sort(full(b), axis, false, &index);
    return (void)k, fl_scatter_add(full(a), axis, index, fl_cast(full(b), a->dtype));
}
static T do_matmul(T a, T b, double k) {
    T x = full(as_float(a)), y = full(fl_cast(b, float_of(a)));
    return fl_matmul(fl_mul(fl_matmul(x, fl_transpose(y, 0, 1)), fl_num(k / 8)), y);
}

static T do_concat(T a, T b, double k) {
    const int axis = (int)below(2);
    const int64_t n = axis ? vm.cols : vm.rows, at = below(n + 1);
    T both[] = {fl_slice(full(a), axis, 0, at, 1), fl_cast(fl_slice(full(b), axis, at, n, 1), a->dtype)};
    return (void)k, fl_concat(both, 2, axis);
}
static T do_stack(T a, T b, double k) {
    T both[] = {full(a), fl_cast(full(b), a->dtype)};
    return (void)k, fl_sum(fl_stack(both, 2, 0), FL_AXES(0));
}
static T do_empty(T a, T b, double k) {
    const int axis = (int)below(2);
    const int64_t n = axis ? vm.cols : vm.rows, at = below(n + 1);
    T y = fl_empty(whole(), some_dtype());
    fl_assign(fl_slice(y, axis, 0, at, 1), fl_slice(full(a), axis, 0, at, 1));
    fl_assign(fl_slice(y, axis, at, n, 1), k > 0 ? fl_num(k) : fl_slice(full(b), axis, at, n, 1));
    return y;
}
static T do_full(T a, T b, double k) { return (void)a, (void)b, fl_full(whole(), k, some_dtype()); }
/* Values that are one number: of all elements, of a row, of a column or alone. */
static T do_numbers(T a, T b, double k) {
    const fl_shape shapes[] = {whole(), FL_SHAPE(vm.cols), FL_SHAPE(vm.rows, 1), FL_SCALAR_SHAPE};
    T x = fl_full(shapes[below(4)], k / 3, float_of(a)), y = fl_full(whole(), k, float_of(b));
    fl_assign(y, below(2) ? fl_num(k / 7) : x);
    return fl_add(fl_mul(as_float(a), x), fl_sub(y, as_float(b)));
}
static T do_add_to_zeros(T a, T b, double k) {
    T y = fl_zeros(whole(), below(4) ? float_of(a) : some_dtype());
    if (below(3) == 0) fl_assign(part(y), fl_num(k));
    fl_assign_op(y, FL_OP_add, y, fl_mul(a, b));
    return below(2) ? fl_add(y, fl_num(k)) : y;
}
static T do_flip(T a, T b, double k) {
    const int axis = (int)below(2);
    return (void)k, fl_add(fl_flip(full(a), 1, &axis), b);
}
static T do_roll(T a, T b, double k) { return (void)k, fl_mul(fl_roll(full(a), 1, (int)below(2)), b); }
static T do_clone(T a, T b, double k) { return (void)b, (void)k, fl_clone(a); }

/* Views: registers that share memory from then on. */
static T reversed(T x, int axis) {
    return x ? fl_slice(x, axis, x->shape[axis] - 1, FL_SLICE_END, -1) : NULL;
}
static T do_reversed(T a, T b, double k) { return (void)b, (void)k, reversed(full(a), (int)below(2)); }
static T do_row(T a, T b, double k) {
    const int64_t i = below(vm.rows);
    return (void)b, (void)k, fl_slice(full(a), 0, i, i + 1, 1);
}
static T do_column(T a, T b, double k) {
    const int64_t i = below(vm.cols);
    return (void)b, (void)k, fl_slice(full(a), 1, i, i + 1, 1);
}
static T do_reshaped(T a, T b, double k) {
    return (void)b, (void)k, fl_reshape(fl_reshape(full(a), FL_SHAPE(-1)), whole());
}
static T do_transposed(T a, T b, double k) {
    return vm.rows == vm.cols ? fl_transpose(full(a), 0, 1) : fl_add(fl_mul(a, fl_num(k)), b);
}

/* Writes in place. */
static T do_scale(T a, T b, double k) { return (void)b, fl_assign(a, fl_mul(a, fl_num(k / 2))), NULL; }
static T do_assign(T a, T b, double k) { return (void)k, fl_assign(full(a), b), NULL; }
static T do_assign_part(T a, T b, double k) {
    T x = NULL, y = NULL;
    parts(full(a), full(b), &x, &y);
    return fl_assign(x, fl_add(x, fl_mul(y, fl_num(k)))), NULL;
}
static T do_move_part(T a, T b, double k) { /* overlapping */
    T x = NULL, y = NULL;
    parts(full(a), full(a), &x, &y);
    return (void)b, (void)k, fl_assign(x, y), NULL;
}
static T do_add_part(T a, T b, double k) {
    T x = NULL, y = NULL;
    parts(full(a), full(b), &x, &y);
    return (void)k, fl_assign_op(x, FL_OP_add, x, y), NULL;
}
static T do_fill_part(T a, T b, double k) { return (void)b, fl_assign(part(a), fl_num(k)), NULL; }
static T do_accumulate(T a, T b, double k) { return (void)k, fl_assign_op(a, FL_OP_mul, b, b), NULL; }

/* Random numbers. */
static fl_rng *generator(void) { return vm.p->own_generator && !below(3) ? &vm.rng : NULL; }
static T do_dropout(T a, T b, double k) {
    return (void)b, (void)k, fl_dropout(as_float(a), 0.3, generator());
}
static T do_dropped_sum(T a, T b, double k) {
    T x = fl_dropout(full(fl_mul(as_float(a), fl_num(k))), 0.5, generator());
    return fl_dropout(fl_maximum(fl_add(x, fl_cast(b, float_of(a))), fl_num(-1)), 0.1, generator());
}
static T do_noise(T a, T b, double k) {
    const int64_t n = vm.rows * vm.cols;
    T u = fl_mul(fl_uniform(FL_SHAPE(n), -1, 1, float_of(a), generator()), fl_num(k));
    u = fl_sub(fl_normal(FL_SHAPE(n), k, 2, float_of(a), generator()), u);
    u = fl_mul(u, fl_arange(k, (double)n + k, 1, float_of(b)));
    return fl_add(fl_reshape(u, whole()), b);
}
static T do_uniform(T a, T b, double k) {
    const fl_dtype d = some_dtype();
    T u = fl_uniform(whole(), -1, 1 + k * k, fl_dtype_is_float(d) ? d : FL_F32, generator());
    return (void)a, fl_mul(u, b);
}
static T do_normal(T a, T b, double k) {
    return (void)a, fl_add(fl_normal(fl_shape_of(b), k, 1, FL_F32, generator()), b);
}
static T do_randint(T a, T b, double k) {
    T index = fl_randint(whole(), 0, vm.rows, generator());
    return (void)b, (void)k, fl_gather(full(a), 0, index);
}

/* Gradients, and an update outside of them. */
static T do_train(T a, T b, double k) {
    fl_var *w = fv_param(as_float(a)), *x = fv_const(fl_cast(b, float_of(a)));
    fl_var *y = w && x ? fv_mul(fv_tanh(w), fv_add(x, fv_sigmoid(fv_mul(w, w)))) : NULL;
    fl_var *loss = y ? fv_mean(y, FL_ALL_AXES) : NULL;
    if (!loss || !fl_backward(loss)) return NULL;
    const bool was = fl_no_grad(true);
    fl_assign(fv_value(w), fl_sub(fv_value(w), fl_mul(fv_grad(w), fl_num(k))));
    fl_no_grad(was);
    return fv_value(loss);
}
static T do_dropped_gradient(T a, T b, double k) {
    fl_var *w = fv_param(fl_clone(as_float(a)));
    fl_var *y = w ? fv_sum(fv_mul(fv_dropout(w, 0.5, generator()), fv_softmax(w, -1)), FL_ALL_AXES) : NULL;
    return (void)b, (void)k, y && fl_backward(y) ? fv_grad(w) : NULL;
}

/* The host: constants, functions. */
static T constant(void) {
    float row[128];
    for (int64_t i = 0; i < vm.cols; i++) row[i] = (float)below(9) / 4 - 1;
    return fl_from_host(row, FL_SHAPE(vm.cols), FL_F32);
}
static T do_constant(T a, T b, double k) { return (void)b, (void)k, fl_add(a, constant()); }
static T do_new_constant(T a, T b, double k) {
    return (void)a, vm.p->constants ? constant() : fl_mul(constant(), fl_add(b, fl_num(k)));
}
static bool count_host(void *user) {
    vm.host += *(const int *)user;
    return true;
}
static T do_host(T a, T b, double k) {
    static const int numbers[] = {1, 100, 10000};
    if (!vm.p->portable) fl_graph_host(count_host, (void *)(uintptr_t)&numbers[below(3)]);
    return fl_sub(a, fl_mul(b, fl_num(k)));
}

static const struct {
    const char *name;
    T (*run)(T a, T b, double k);
    int weight;
} steps[] = {
#define S(name, weight) {#name, do_##name, weight}
    S(add, 6), S(sub, 4), S(mul, 6), S(div, 3), S(mul_number, 4), S(number_add, 3), S(maximum, 3),
    S(minimum, 3), S(tanh, 3), S(exp, 3), S(gelu, 2), S(relu, 2), S(compare, 2), S(where, 4), S(cast, 6),
    S(casts, 4), S(wide_casts, 5), S(softmax_in_parts, 4), S(norm_in_parts, 4), S(sum, 4), S(mean, 3),
    S(variance, 2), S(softmax, 3), S(cumsum, 2), S(layer_norm, 2), S(sort, 2), S(gather, 3), S(scatter, 2),
    S(matmul, 3),
    S(concat, 4), S(stack, 2), S(empty, 5), S(full, 2), S(numbers, 5), S(add_to_zeros, 4),
    S(flip, 3), S(roll, 2), S(clone, 3), S(reversed, 3), S(row, 3), S(column, 3), S(reshaped, 3),
    S(transposed, 4), S(scale, 4), S(assign, 4), S(assign_part, 8), S(move_part, 6), S(add_part, 6),
    S(fill_part, 4), S(accumulate, 3), S(dropout, 5), S(dropped_sum, 4), S(noise, 3), S(uniform, 3),
    S(normal, 3), S(randint, 3), S(train, 5),
    S(dropped_gradient, 3), S(constant, 2), S(new_constant, 2), S(host, 2),
#undef S
};

/* An error of a call is a result too: the same in every mode, at the same call. */
static void note_error(void) {
    if (!fl_error()) return;
    count.errors++;
    if (vm.told) printf("      %s\n", fl_error());
    vm.errors = hashed(vm.errors, fl_error(), strlen(fl_error()));
    fl_error_clear();
}

static void run_step(uint64_t seed) {
    random_state = seed;
    int total = 0, i = 0;
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) total += steps[s].weight;
    for (int64_t at = below(total); at >= steps[i].weight; i++) at -= steps[i].weight;
    const int64_t a = below(REGISTERS), b = below(REGISTERS), to = below(REGISTERS);
    const double k = (double)below(9) / 4 - 1;
    fl_scope s = fl_scope_begin();
    T y = steps[i].run(vm.r[a], vm.r[b], k);
    note_error();
    if (y && fl_dtype_is_float(y->dtype) && below(2)) y = fl_clamp(y, fl_num(-50), fl_num(50));
    if (vm.told) {
        printf("    %s(r%d, r%d, %g)", steps[i].name, (int)a, (int)b, k);
        if (y) printf(" -> r%d %s %s", (int)to, fl_dtype_name(y->dtype), FL_SHAPE_TEXT(y));
        printf("\n");
    }
    if (y) {
        T old = vm.r[to];
        vm.r[to] = fl_keep(y);
        fl_drop(old);
    }
    note_error();
    fl_scope_end(&s);
}

/* ---- rounds ---- */

/* The tensors that a program starts with: some share memory, so that writes overlap. */
static void begin_program(const program *p) {
    fl_scope s = fl_scope_begin();
    random_state = p->seed;
    vm.p = p;
    vm.rows = 1 + below(9);
    vm.cols = 1 + below(3) * 37 + below(30);
    if (below(4) == 0) vm.rows = vm.cols = 5 + below(12);
    if (below(24) == 0) vm.rows = 0;
    fl_seed(p->seed);
    for (int i = 0; i < REGISTERS; i++) {
        const fl_dtype d = some_dtype();
        const int64_t rows = below(6) ? vm.rows : 1, cols = below(6) ? vm.cols : 1;
        const fl_shape shape = FL_SHAPE(rows, cols);
        T x = fl_cast(fl_mul(fl_normal(shape, 0, 1, FL_F32, NULL), fl_num(fl_dtype_is_float(d) ? 1 : 3)), d);
        if (fl_dtype_is_float(d) && below(16) == 0)
            x = fl_where(fl_gt(x, fl_num(1)), fl_num(below(2) ? (double)INFINITY : (double)NAN), x);
        if (i > 2 && below(3) == 0) x = reversed(vm.input[i - 3], (int)below(2));
        vm.input[i] = fl_keep(x);
        vm.start[i] = fl_keep(fl_clone(x));
        vm.r[i] = NULL;
    }
    fl_scope_end(&s);
}

static void end_program(void) {
    for (int i = 0; i < REGISTERS; i++) fl_drop(vm.r[i]), fl_drop(vm.input[i]), fl_drop(vm.start[i]);
}

/* Writes the start values of the round: the last two have others. */
static void restore_inputs(void) {
    fl_scope s = fl_scope_begin();
    for (int i = 0; i < REGISTERS; i++)
        fl_assign(vm.input[i], vm.round < 3 ? vm.start[i] : fl_roll(vm.start[i], 1, 1));
    fl_scope_end(&s);
    vm.host = 0;
}

static void begin_round(void) {
    restore_inputs();
    for (int i = 0; i < REGISTERS; i++) {
        fl_drop(vm.r[i]);
        vm.r[i] = fl_keep(vm.input[i]);
    }
    vm.errors = 0;
    vm.rng = (fl_rng){7, 0};
}

/* A compiler may swap the operands of a product, and with them which NaN it gives: NaN counts as one then. */
static T with_one_nan(T x) {
    return vm.one_nan && fl_dtype_is_float(x->dtype) ? fl_where(fl_eq(x, x), x, fl_num((double)NAN)) : x;
}

static uint64_t tensor_hash(uint64_t h, T x) {
    fl_scope s = fl_scope_begin();
    T c = fl_contiguous(with_one_nan(x));
    const void *p = c ? fl_map(c, FL_READ) : NULL;
    if (!p) note_error();
    h = hashed(h, &x->dtype, sizeof x->dtype);
    h = hashed(h, x->shape, (size_t)x->ndim * sizeof *x->shape);
    if (p) h = hashed(h, p, (size_t)fl_numel(c) * fl_dtype_size(c->dtype));
    if (p) fl_unmap(c, FL_READ);
    fl_scope_end(&s);
    return h;
}

static result result_of_round(void) {
    result r = {.counter = fl_rng_state().counter, .versions = 1, .input_versions = 1, .bits = 1};
    for (int i = 0; i < REGISTERS; i++) {
        r.versions = r.versions * 31 + fl_version_of(vm.r[i]);
        r.input_versions = r.input_versions * 31 + fl_version_of(vm.input[i]);
    }
    for (int i = 0; i < REGISTERS; i++) r.bits = tensor_hash(tensor_hash(r.bits, vm.r[i]), vm.input[i]);
    r.errors = vm.errors;
    r.host = vm.host;
    return r;
}

static void run_steps(const program *p) {
    for (int i = 0; i < p->n_steps; i++)
        if (p->step[i]) run_step(p->step[i]);
}

/* Turns modes on and off and reads in between, by random numbers of its own. */
static void run_mixed(const program *p, fl_graph *g) {
    uint64_t mix = p->seed ^ (uint64_t)vm.round;
    bool records = false;
    for (int i = 0; i < p->n_steps; i++) {
        random_state = mix;
        const int64_t what = below(24);
        const int64_t which = below(REGISTERS);
        mix = random_bits();
        if (what < 4) fl_lazy(!fl_lazy(true));
        else if (what == 4) tensor_hash(0, vm.r[which]);
        else if (what == 5) fl_eval();
        else if (what < 8) records ? fl_graph_end(g) : fl_graph_begin(g), records = !records;
        note_error();
        if (p->step[i]) run_step(p->step[i]);
    }
    if (records) fl_graph_end(g);
    note_error();
    fl_lazy(false);
}

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t step; /* that the other thread runs now; 0: none */
    bool ends;
} other = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false};

static void *other_thread(void *arg) {
    fl_scope s = fl_scope_begin();
    fl_lazy(true);
    pthread_mutex_lock(&other.lock);
    while (!other.ends) {
        if (other.step) run_step(other.step);
        other.step = 0;
        pthread_cond_broadcast(&other.changed);
        while (!other.step && !other.ends) pthread_cond_wait(&other.changed, &other.lock);
    }
    pthread_mutex_unlock(&other.lock);
    fl_scope_end(&s);
    return arg;
}

/* Each step in this thread or in another one, one at a time: both record what the other has made. */
static void run_in_threads(const program *p) {
    uint64_t turns = p->seed >> 7 | 1;
    fl_lazy(true);
    for (int i = 0; i < p->n_steps; i++) {
        turns = turns * 6364136223846793005u + 1442695040888963407u;
        if (!p->step[i]) continue;
        if (turns >> 62) {
            run_step(p->step[i]);
            continue;
        }
        pthread_mutex_lock(&other.lock);
        other.step = p->step[i];
        pthread_cond_broadcast(&other.changed);
        while (other.step) pthread_cond_wait(&other.changed, &other.lock);
        pthread_mutex_unlock(&other.lock);
    }
}

static void end_other(pthread_t thread) {
    pthread_mutex_lock(&other.lock);
    other.ends = true;
    pthread_cond_broadcast(&other.changed);
    pthread_mutex_unlock(&other.lock);
    pthread_join(thread, NULL);
    other.ends = false;
}

/* ---- comparing ---- */

static bool quiet, listed; /* a program is shortened; its steps are printed */

static bool differs(const program *p, const char *what, const char *how) {
    if (!quiet)
        printf("program %llu, %s, round %d: %s %s\n", (unsigned long long)p->number, mode_names[vm.mode],
               vm.round, what, how);
    return false;
}

static bool agrees(const program *p, const result *want, const result *r, bool replayed) {
    if (r->errors != want->errors) return differs(p, "errors", "differ");
    if (r->bits != want->bits) return differs(p, "bits", "differ");
    if (r->counter != want->counter) return differs(p, "the generator", "differs");
    if (r->host != want->host && vm.mode != THREADS) return differs(p, "calls of the host", "differ");
    if (r->input_versions != want->input_versions) return differs(p, "versions of inputs", "differ");
    return replayed || r->versions == want->versions || differs(p, "versions", "differ");
}

/* A replay that is refused for what the program does. */
static bool may_refuse(const program *p, const char *reason) {
    return (p->own_generator && strstr(reason, "a generator of the program")) ||
           (p->constants && strstr(reason, "constant"));
}

/* The program once, in mode m. */
static bool run_round(const program *p, mode m, fl_graph *g) {
    bool ok = true;
    begin_round();
    fl_lazy(m == LAZY);
    if (m == GRAPH) ok = fl_graph_begin(g);
    note_error();
    if (m == MIXED) run_mixed(p, g);
    else if (m == THREADS) run_in_threads(p);
    else run_steps(p);
    vm.waits = fl_lazy_calls().n;
    if (m == GRAPH && ok) ok = fl_graph_end(g);
    note_error();
    return ok;
}

/* Rounds in one mode, of which each must leave what `want` says. As a graph the third and the fourth are
   replays. */
static bool run_mode(const program *p, mode m, const result *want, result *got) {
    const int64_t live = fl_live_tensors(), buffers = fl_mem_live_buffers();
    fl_scope s = fl_scope_begin();
    fl_graph *g = fl_graph_new();
    bool ok = true;
    pthread_t thread;
    vm.mode = m;
    if (m == THREADS && pthread_create(&thread, NULL, other_thread, NULL)) return differs(p, "no", "thread");
    begin_program(p);
    for (vm.round = 0; ok && vm.round < (m == EAGER || m == GRAPH ? ROUNDS : 1); vm.round++) {
        const bool replays = m == GRAPH && (vm.round == 2 || vm.round == 3);
        if (replays && !fl_graph_ready(g)) {
            ok = may_refuse(p, fl_graph_reason(g)) || differs(p, "a replay is refused:", fl_graph_reason(g));
            break;
        }
        if (replays) restore_inputs();
        vm.told = listed && m == EAGER && vm.round == 0;
        ok = replays ? fl_graph_replay(g) : run_round(p, m, g);
        vm.told = false;
        count.replays += replays;
        const result r = result_of_round();
        fl_lazy(false);
        if (got) got[vm.round] = r;
        if (want) ok = ok && agrees(p, &want[vm.round], &r, replays);
        if (fl_error()) ok = differs(p, "error:", fl_error());
    }
    if (m == LAZY) vm.waited = vm.waits;
    if (m == GRAPH) count.calls += vm.waits;
    if (ok && m == GRAPH && vm.waits != vm.waited)
        ok = differs(p, "the number of calls that wait", "differs");
    if (m == THREADS) end_other(thread);
    if (m == THREADS && vm.host != want->host) ok = differs(p, "calls of the host", "differ");
    fl_graph_free(g);
    end_program();
    fl_scope_end(&s);
    vm.round = ROUNDS;
    if (ok && fl_live_tensors() != live) ok = differs(p, "handles", "are left");
    if (ok && fl_mem_live_buffers() != buffers) ok = differs(p, "buffers", "are left");
    return ok;
}

static bool run_program(const program *p, bool pages) {
    result want[ROUNDS];
    bool ok = run_mode(p, EAGER, NULL, want);
    if (pages && !paged_begin()) return false;
    const int modes = p->number % 4 ? THREADS : MODES; /* threads take long */
    for (int m = LAZY; m < modes && ok; m++) ok = run_mode(p, (mode)m, want, NULL);
    if (pages) paged_end();
    fl_error_clear();
    return ok;
}

static program program_of(uint64_t number) {
    program p = {.number = number};
    random_state = number * 0xd1342543de82ef95u;
    p.seed = random_bits();
    p.own_generator = below(16) == 0;
    p.constants = below(8) == 0;
    p.n_steps = 40 + (int)below(MOST_STEPS - 39);
    for (int i = 0; i < p.n_steps; i++) p.step[i] = random_bits() | 1;
    return p;
}

/* Leaves out what the failure of `run` does not need, and prints the rest. */
static void shorten(program *p, bool (*run)(const program *p, bool flag), bool flag) {
    quiet = true;
    for (int i = p->n_steps - 1; i >= 0; i--) {
        const uint64_t step = p->step[i];
        p->step[i] = 0;
        if (run(p, flag)) p->step[i] = step;
    }
    quiet = false;
    run(p, flag);
    printf("  the steps that it needs to fail (all: random_modes %llu):\n",
           (unsigned long long)p->number);
    listed = true;
    run_mode(p, EAGER, NULL, NULL);
    listed = false;
}

static const program *running;
static void say_which(int signal) {
    printf("program %llu, %s, round %d: signal %d\n", (unsigned long long)running->number,
           mode_names[vm.mode], vm.round, signal);
    fflush(stdout);
    _exit(1);
}

static uint64_t first_program(void) {
    const char *seed = getenv("SEED");
    return seed && !test_full() ? 1000000 + strtoull(seed, NULL, 10) % 1000000 * 1000 : 1;
}

static void run_programs(int64_t n, bool pages) {
    const uint64_t first = first_program();
    const int64_t rows_before = fl__rows_count();
    test_errors_return();
    signal(SIGSEGV, say_which);
    int failures = 0;
    for (uint64_t i = first; i < first + (uint64_t)n && failures < 5; i++) {
        program p = program_of(i);
        running = &p;
        if (CHECK(run_program(&p, pages))) continue;
        failures++;
        shorten(&p, run_program, pages);
    }
    const int64_t rows = fl__rows_count() - rows_before;
    printf("  %lld programs of %.0f calls, %lld replays, %lld calls refused, %lld groups of rows ran\n",
           (long long)n, (double)count.calls / (double)n, (long long)count.replays, (long long)count.errors,
           (long long)rows);
    CHECK(count.calls > 120 * n && count.replays > n);
    CHECK(pages || rows > n); /* paging out watches the calls, which so are not grouped */
}

#ifdef TEST_SANITIZED
enum { PROGRAMS = 1000, SAMPLE = 200 };
#else
enum { PROGRAMS = 20000, SAMPLE = 1000 };
#endif

TEST(programs_in_every_mode) { run_programs(test_full() ? PROGRAMS : SAMPLE, false); }

TEST(programs_with_values_paged_out) { run_programs((test_full() ? PROGRAMS : SAMPLE) / 20, true); }

TEST(programs_with_compiled_kernels) {
    NEEDS_COMPILER;
    setenv("XDG_CACHE_HOME", "/dev/null", 1); /* no cache */
    fl_compile(FL_COMPILE_NOW);
    vm.one_nan = true;
    run_programs(test_full() ? 100 : 20, false);
    const fl_compile_counts c = fl_compile_stats();
    printf("  %lld kernels in %lld files, %.0f ms\n", (long long)c.compiled, (long long)c.runs,
           1e3 * c.seconds);
    CHECK(c.failed == 0 && c.compiled > 20);
}

/* ---- programs written as C and StableHLO ---- */

/* Changes numbers by about their rounding. */
static void move_inputs(void) {
    fl_scope s = fl_scope_begin();
    for (int i = 0; i < REGISTERS; i++) {
        T x = vm.input[i];
        if (!fl_dtype_is_float(x->dtype)) continue;
        T by = fl_uniform(fl_shape_of(x), 1 - 2e-7, 1 + 2e-7, FL_F64, &(fl_rng){11, (uint64_t)i << 32});
        fl_assign(x, fl_cast(fl_mul(x, by), x->dtype));
    }
    fl_scope_end(&s);
}

/* Steps from inputs that differ by rounding, as name-near-VALUE. */
static bool run_near(const char *folder, const written *w, fl_graph *g, fl_export_opts o) {
    fl__export *e = fl__export_new("test", g, NULL, &o);
    restore_inputs();
    move_inputs();
    bool ok = e != NULL;
    for (int i = 0; ok && i < w->steps; i++) ok = fl_graph_replay(g);
    ok = ok && written_values(folder, w, e, "near");
    fl__export_free(e);
    return ok;
}

/* False: rounding makes out so much that nothing can be compared. */
static bool is_stable(const char *folder, const written *w) {
    for (int k = 0; k < w->n; k++) {
        double largest = 0;
        if (written_between(folder, w, k, "near", "after", &largest) > 1e-3 * largest) return false;
    }
    return true;
}

static void forget_case(const char *folder, const char *name) {
    char command[700];
    snprintf(command, sizeof command, "rm -f %s/%s*", folder, name);
    CHECK(!system(command));
}

/* Writes program p, and what two steps of it leave; false if it cannot be compared. */
static bool write_program(const program *p, const char *folder, written *w, bool c) {
    static const char *const names[REGISTERS] = {"r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7"};
    fl_scope s = fl_scope_begin();
    fl_graph *g = fl_graph_new();
    fl_nn_state state = {0};
    const fl_export_opts o = {.state = &state};
    snprintf(w->name, sizeof w->name, "program%llu_", (unsigned long long)p->number);
    w->steps = 2, vm.mode = GRAPH;
    begin_program(p);
    for (vm.round = 0; vm.round < 2; vm.round++) run_round(p, GRAPH, g);
    bool ok = CHECK(fl_graph_ready(g));
    for (int i = 0; ok && i < REGISTERS; i++) CHECK(fl_nn_state_add(&state, "", names[i], vm.input[i]));
    vm.round = 3;
    const fl_rng rng = fl_rng_state();
    restore_inputs();
    ok = ok && CHECK(written_case(folder, w, g, o, c));
    fl_rng_set_state(rng);
    ok = ok && CHECK(run_near(folder, w, g, o)) && is_stable(folder, w);
    if (!CHECK_NO_ERROR()) printf("  %s\n", w->name);
    if (!ok) forget_case(folder, w->name);
    fl_nn_state_free(&state);
    fl_graph_free(g);
    end_program();
    fl_scope_end(&s);
    return ok;
}

enum { PROGRAMS_AT_ONCE = 25 };

static program portable_program(uint64_t number) {
    program p = program_of(number);
    p.portable = true, p.own_generator = p.constants = false;
    return p;
}

/* Writes n programs, compiles and runs them at once. Returns how many could be compared. */
static int run_as_c(const program *p, int n, const char *cc, bool *failed) {
    char folder[200];
    snprintf(folder, sizeof folder, "%s", test_file("programs"));
    mkdir(folder, 0777);
    written *w = calloc((size_t)n, sizeof *w);
    int at = 0, of[PROGRAMS_AT_ONCE];
    for (int i = 0; i < n; i++) {
        running = &p[i];
        failed[i] = false;
        if (write_program(&p[i], folder, &w[at], true)) of[at++] = i;
    }
    written_run(folder, w, at, cc);
    for (int i = 0; i < at; i++) failed[of[i]] = !written_agrees(folder, &w[i], 1e-5, 1e-5);
    free(w);
    forget_case(folder, "");
    return at;
}

static bool agrees_as_c(const program *p, bool unused) {
    bool failed;
    (void)unused;
    run_as_c(p, 1, "cc", &failed);
    return !failed;
}

TEST(programs_as_c) {
    NEEDS_COMPILER;
    const bool all = getenv("PROGRAMS") != NULL;
    const int n = all ? PROGRAMS_AT_ONCE : 8, turns = all ? 500 / n : 1;
    int compared = 0;
    test_errors_return();
    for (int i = 0; i < turns; i++) {
        program p[PROGRAMS_AT_ONCE];
        bool failed[PROGRAMS_AT_ONCE];
        for (int k = 0; k < n; k++) p[k] = portable_program((uint64_t)(1 + i * n + k));
        compared += run_as_c(p, n, i ? "cc" : "cc" WRITTEN_SANITIZED, failed);
        for (int k = 0; k < n; k++)
            if (!CHECK(!failed[k])) shorten(&p[k], agrees_as_c, false);
    }
    printf("  %d of %d programs compared\n", compared, turns * n);
    CHECK(compared > turns * n / 2);
    CHECK_NOTHING_LIVES();
}

TEST(programs_as_stablehlo) {
    if (!getenv("STABLEHLO")) SKIP("JAX: tests/python/test_stablehlo.py runs this");
    written *w = calloc(1, sizeof *w);
    const int n = getenv("PROGRAMS") ? 500 : 10;
    test_errors_return();
    int compared = 0;
    for (int i = 0; i < n; i++) {
        const program p = portable_program((uint64_t)(1 + i));
        running = &p;
        compared += write_program(&p, getenv("STABLEHLO"), w, false);
    }
    free(w);
    CHECK(compared > n / 2);
    CHECK_NOTHING_LIVES();
}

/* One graph for steps of more structures than it keeps, in turn. */
TEST(more_structures_than_a_graph_keeps) {
    enum { TURNS = 33, STRUCTURES = 11 };
    test_errors_return();
    for (uint64_t i = 0; i < 5; i++) {
        result r[2][TURNS];
        for (int m = 0; m < 2; m++) {
            fl_scope s = fl_scope_begin();
            fl_graph *g = fl_graph_new();
            program p = program_of(first_program() + i);
            begin_program(&p);
            for (int k = 0; k < TURNS; k++) {
                p.n_steps = 3 * (1 + (k < 2 * STRUCTURES ? k % STRUCTURES : (k - 2 * STRUCTURES) / 3));
                CHECK(run_round(&p, m ? GRAPH : EAGER, g));
                if (m && k >= 2 * STRUCTURES && k % 3 == 0 && !p.constants && !p.own_generator)
                    CHECK(fl_graph_ready(g));
                r[m][k] = result_of_round();
                if (m) CHECK(agrees(&p, &r[0][k], &r[1][k], false));
            }
            fl_graph_free(g);
            end_program();
            fl_scope_end(&s);
        }
    }
    CHECK_NOTHING_LIVES();
}

/* ---- memory that fails ---- */

/* A step with a constant, random numbers, a join, writes in place through views; what it made, as y. False if
   a call failed. */
static bool small_step(T x, T w, T *y) {
    fl_scope s = fl_scope_begin();
    T scale = fl_from_host((float[]){2, 1, 0.5, -1}, FL_SHAPE(4), FL_F32);
    T h = fl_dropout(fl_relu(fl_matmul(x, w)), 0.3, NULL);
    T both = fl_concat((T[]){fl_mul(h, scale), x}, 2, 1), part = fl_empty(FL_SHAPE(4, 4), FL_F32);
    bool ok = fl_assign(fl_slice(part, 0, 0, 2, 1), fl_slice(h, 0, 0, 2, 1));
    ok &= fl_assign(fl_slice(part, 0, 2, 4, 1), fl_num(0.25)) != NULL;
    ok &= fl_assign(fl_slice(w, 0, 0, 4, 1), fl_sub(fl_slice(w, 0, 1, 5, 1), part)) != NULL;
    ok &= fl_assign_op(w, FL_OP_mul, w, fl_softmax(w, -1)) != NULL;
    *y = fl_add(fl_sum(both, FL_AXES_KEEP(1)), fl_slice(both, 1, 0, 3, 1));
    ok &= *y != NULL;
    fl_scope_return(&s, *y);
    return ok;
}

typedef enum fault_in { IN_LAZY, IN_FIRST_ROUND, IN_SECOND_ROUND, IN_REPLAY, FAULTS_IN } fault_in;
static const char *const fault_names[] = {"deferred", "the first round", "the second round", "a replay"};

static struct {
    T x, w, start;
    fault_in in;
    bool heap, for_ever;
    int64_t n;
    uint64_t want; /* eager's */
    bool failed;   /* the fault was an error */
} faulty;

static void rewind_step(void) {
    fl_scope s = fl_scope_begin();
    CHECK(fl_assign(faulty.w, faulty.start));
    fl_seed(5);
    fl_scope_end(&s);
}

static uint64_t hash_step(T y) { return tensor_hash(tensor_hash(1, y), faulty.w) ^ fl_rng_state().counter; }

static bool a_round(fl_graph *g, T *y) {
    if (!fl_graph_begin(g)) return false;
    const bool ok = small_step(faulty.x, faulty.w, y); /* the graph ends in either case */
    return fl_graph_end(g) && ok;
}

static bool faulty_action(fl_graph **g, T *y) {
    if (faulty.in == IN_LAZY) {
        fl_lazy(true);
        bool ok = !fl_error() && small_step(faulty.x, faulty.w, y);
        ok &= fl_eval();
        fl_lazy(false);
        return ok;
    }
    if (faulty.in == IN_FIRST_ROUND && !(*g = fl_graph_new())) return false;
    return faulty.in == IN_REPLAY ? fl_graph_replay(*g) : a_round(*g, y);
}

/* Without a fault: the rounds before and after it have eager's bits. */
static void good_round(fl_graph *g, T *y) {
    rewind_step();
    if (!CHECK(a_round(g, y)) || !CHECK(hash_step(*y) == faulty.want)) printf("  %s\n", fl_error());
}

static void *fault_in_thread(void *arg) {
    const int64_t live = fl_live_tensors(), buffers = fl_mem_live_buffers();
    fl_scope s = fl_scope_begin();
    fl_graph *g = faulty.in == IN_LAZY || faulty.in == IN_FIRST_ROUND ? NULL : fl_graph_new();
    T y = NULL;
    for (int i = 0; g && i < (faulty.in == IN_REPLAY ? 2 : 1); i++) good_round(g, &y);
    rewind_step();
    fl_mem_trim(); /* as many requests as possible */
    fl_mem_manager *failing = NULL, *before = NULL;
    if (!faulty.heap) failing = fl_mem_failing(NULL, faulty.n, faulty.for_ever);
    if (failing) before = fl_mem_set_current(failing);
    else heap_fail_at(faulty.n), heap.for_ever = faulty.for_ever;
    if (faulty.in == IN_REPLAY) fl_rng_set_state((fl_rng){5, 100}); /* other numbers, also where it fails */
    else y = NULL;
    const bool ok = faulty_action(&g, &y);
    heap.fail_at = 0;
    if (failing) fl_mem_set_current(before);
    faulty.failed = !ok || (faulty.heap && heap.calls >= faulty.n);
    CHECK(ok == !fl_error());
    if (!ok) CHECK_STR(fl_error(), "out of memory");
    fl_error_clear();
    if (ok && faulty.in != IN_REPLAY) CHECK(hash_step(y) == faulty.want);
    else if (y) tensor_hash(0, y); /* an error, or values */
    fl_error_clear();
    tensor_hash(0, faulty.w);
    CHECK_NO_ERROR();
    /* the mode goes on */
    rewind_step();
    if (faulty.in == IN_REPLAY) CHECK(fl_graph_replay(g) && hash_step(y) == faulty.want);
    faulty.in = IN_LAZY;
    rewind_step();
    CHECK(faulty_action(&g, &y) && hash_step(y) == faulty.want);
    if (!g) g = fl_graph_new();
    for (int i = 0; i < 2; i++) good_round(g, &y);
    for (int i = 0; i < 2; i++) {
        rewind_step();
        CHECK(fl_graph_ready(g) && fl_graph_replay(g) && hash_step(y) == faulty.want);
    }
    CHECK_NO_ERROR();
    fl_graph_free(g);
    fl_scope_end(&s);
    CHECK_EQ_INT(fl_live_tensors(), live);
    CHECK_EQ_INT(fl_mem_live_buffers(), buffers);
    if (failing) fl_mem_close(failing);
    return arg;
}

/* The n-th request fails, for every n; in threads that have nothing cached. */
static void fail_everywhere(fault_in in) {
    test_errors_return();
    fl_heap_use(heap_fn, NULL);
    fl_scope s = fl_scope_begin();
    faulty.x = fl_uniform(FL_SHAPE(4, 5), -1, 1, FL_F32, &(fl_rng){2, 0});
    faulty.w = fl_uniform(FL_SHAPE(5, 4), -1, 1, FL_F32, &(fl_rng){3, 0});
    faulty.start = fl_clone(faulty.w);
    rewind_step();
    T y = NULL;
    REQUIRE(small_step(faulty.x, faulty.w, &y));
    faulty.want = hash_step(y);
    for (int of_heap = 0; of_heap < 2; of_heap++) {
        int64_t points = 1; /* the first number without a fault */
        for (int once = 0; once < 2; once++) {
            faulty.heap = of_heap, faulty.for_ever = !once;
            for (faulty.n = 1; once ? faulty.n < points : faulty.n < 1000; faulty.n++) {
                const int failures = test__failures;
                pthread_t thread;
                faulty.in = in;
                REQUIRE(pthread_create(&thread, NULL, fault_in_thread, NULL) == 0);
                pthread_join(thread, NULL);
                if (test__failures > failures) {
                    printf("  in %s: request %lld of the %s fails %s\n", fault_names[in], (long long)faulty.n,
                           of_heap ? "heap" : "memory manager", once ? "once" : "from then on");
                    break;
                }
                if (!once && !faulty.failed) break;
            }
            if (!once) points = faulty.n;
        }
        printf("  %s: %lld requests of the %s\n", fault_names[in], (long long)points - 1,
               of_heap ? "heap" : "memory manager");
        CHECK(points > 1);
    }
    fl_scope_end(&s);
    CHECK_EQ_INT(fl_live_tensors(), 0);
    CHECK_EQ_INT(fl_mem_live_buffers(), 0);
}

/* A request fails somewhere in a random program: an error, or the bits of the eager round. Then the program
   again, without a fault. */
static bool run_faulty(const program *p, mode m, const result *want, bool of_heap, int64_t n) {
    const int64_t live = fl_live_tensors(), buffers = fl_mem_live_buffers();
    fl_scope s = fl_scope_begin();
    fl_graph *g = fl_graph_new();
    vm.mode = m;
    vm.round = 0;
    begin_program(p);
    const fl_rng start = fl_rng_state();
    if (of_heap) fl_mem_trim();
    fl_mem_manager *failing = of_heap ? NULL : fl_mem_failing(NULL, n, n & 1), *before = NULL;
    if (failing) before = fl_mem_set_current(failing);
    else heap_fail_at(n), heap.for_ever = n & 1;
    bool ok = true;
    for (int round = 0; ok && round < 2; round++) {
        fl_rng_set_state(start);
        const bool ended = run_round(p, m, g);
        fl_eval();
        note_error();
        if (!round && failing) fl_mem_set_current(before);
        heap.fail_at = 0;
        const result r = result_of_round();
        fl_lazy(false);
        note_error();
        const bool reported = vm.errors != want->errors;
        if (!ended && !reported) ok = differs(p, "an error", "is missing");
        if (round == 1 && reported) ok = differs(p, "an error", "is left");
        count.reported += reported;
        if (reported) continue;
        if (r.bits != want->bits || r.errors != want->errors) ok = differs(p, "bits", "differ after a fault");
        if (r.counter != want->counter) ok = differs(p, "the generator", "differs after a fault");
    }
    fl_graph_free(g);
    end_program();
    fl_scope_end(&s);
    fl_mem_close(failing);
    if (ok && fl_live_tensors() != live) ok = differs(p, "handles", "are left after a fault");
    if (ok && fl_mem_live_buffers() != buffers) ok = differs(p, "buffers", "are left after a fault");
    return ok;
}

TEST(memory_fails_in_random_programs) {
    test_errors_return();
    signal(SIGSEGV, say_which);
    fl_heap_use(heap_fn, NULL);
    const int64_t programs = (test_full() ? PROGRAMS : SAMPLE) / 10;
    for (int64_t i = 0; i < programs; i++) {
        result want[ROUNDS];
        const program p = program_of(first_program() + (uint64_t)i);
        running = &p;
        REQUIRE(run_mode(&p, EAGER, NULL, want));
        random_state = p.seed;
        for (int m = LAZY; m <= MIXED; m++)
            for (int k = 0; k < 4; k++) {
                const int64_t n = 1 + (int64_t)(p.step[k] >> 8) % 300;
                if (!CHECK(run_faulty(&p, (mode)m, want, k & 1, n)))
                    printf("  request %lld of the %s\n", (long long)n, k & 1 ? "heap" : "memory manager");
                REQUIRE(test__failures < 5);
            }
    }
    printf("  %lld programs, %lld of %lld faults reported\n", (long long)programs, (long long)count.reported,
           (long long)programs * 12);
    CHECK(count.reported > programs * 2);
}

TEST(memory_fails_in_deferred_execution) { fail_everywhere(IN_LAZY); }
TEST(memory_fails_in_the_first_round_of_a_graph) { fail_everywhere(IN_FIRST_ROUND); }
TEST(memory_fails_in_the_second_round_of_a_graph) { fail_everywhere(IN_SECOND_ROUND); }
TEST(memory_fails_in_a_replay) { fail_everywhere(IN_REPLAY); }

int main(int argc, char **argv) {
    if (argc == 2 && isdigit((unsigned char)*argv[1])) {
        program p = program_of(strtoull(argv[1], NULL, 10));
        test_errors_return();
        listed = true;
        const bool ok = run_program(&p, false);
        printf("%d passed, %d failed\n", ok, !ok);
        return !ok;
    }
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
