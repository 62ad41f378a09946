/* fuzz_autograd.c - the input as a program of variables: fv_ ops, backward and double backward,
   layers with random options, losses, optimizers

   As fuzz_ops.c: a step picks a row, operands and arguments; memory fails now and then; values are
   overwritten between an op and its backward pass. After each step an error is pending exactly when
   it failed, and gradients have the shape and dtype of their variables. After each program nothing
   is left. A new op is one line of `rows`. */
#include "../fl_backend.h"
#include "fuzz.h"

enum { REGISTERS = 8, STEPS = 40, SMALL = 256, LEAVES = 256, MODULES = 3 };

static struct {
    fl_var *r[REGISTERS];      /* kept */
    fl_var *leaf[LEAVES];      /* kept: gradients with graphs are dropped at the end */
    fl_nn_module *m[MODULES];
    int n_leaves;
    fl_rng rng;
    bool lacks;                /* memory failed while an argument was made, which then is NULL */
    bool none;                 /* the row may give nothing without an error */
} vm;

/* ---- arguments ---- */

static fl_var *operand(void) {
    const unsigned b = fuzz_byte();
    fl_var *x = b < 253 ? vm.r[b % REGISTERS] : NULL;
    if (x && fl_numel(fv_value(x)) > SMALL) x = vm.r[0];
    fuzz_show(" ", fv_value(x));
    return x && fl_numel(fv_value(x)) > SMALL ? NULL : x;
}

static fl_rng *rng(void) {
    return fuzz_byte() & 1 ? &vm.rng : NULL;
}

static double probability(void) {
    return fuzz_rarely(8) ? fuzz_double() : fuzz_below(5) / 4.0;
}

/* ---- forms ---- */

typedef fl_var *T;
typedef fv_attention_opts attention_opts;
typedef fv_rnn_opts rnn_opts;

/* A gradient may hold a graph that holds its variable: it is dropped at the end. False when no more
   can be remembered. */
static bool remember(T x) {
    if (vm.n_leaves == LEAVES) return false;
    vm.leaf[vm.n_leaves++] = fv_keep(x);
    return true;
}

static T new_leaf(fl_tensor *t) {
    T x = fv_param(t);
    return x && !remember(x) ? fv_detach(x) : x;
}

static fl_tensor *value(T x) {
    return fv_value(x);
}

static T fresh(fl_tensor *t) {
    T x = t && fl_dtype_is_float(t->dtype) ? new_leaf(t) : fv_const(t);
    if (!x) vm.lacks = true;
    return x;
}

#include "fuzz_composed.h"

/* Mostly floats with 2 to 4 dims of 1 to 3, so that operands fit each other. */
static T param(fn f) {
    const unsigned b = fuzz_byte();
    const fl_shape s = {2 + (int)(b & 1) * 2, {2, 1 + (b >> 1 & 1), 3, 2 + (b >> 2 & 1)}};
    (void)f;
    return new_leaf(fuzz_fill(s, b & 128 ? FL_F64 : FL_F32));
}

static T image(fn f) {
    (void)f;
    return new_leaf(fuzz_image());
}

static T x_number_rng(fn f) {
    T x = operand();
    const double p = probability();
    return CALL(f, (T, double, fl_rng *), x, p, rng());
}

/* Classes along axis 1 of x, for each of its other positions. */
static fl_tensor *target_for(const fl_var *x) {
    const fl_tensor *t = fv_value(x);
    fl_shape s = t ? fl_shape_of(t) : FL_SHAPE(1);
    int64_t data[SMALL];
    if (s.ndim < 2 || fuzz_rarely(8)) return fuzz_index(1);
    for (int i = 1; i + 1 < s.ndim; i++) s.dim[i] = s.dim[i + 1];
    s.ndim--;
    for (int i = 0; i < SMALL; i++) data[i] = i < 8 ? fuzz_below(3) : data[i - 8];
    return fl_shape_numel(s) <= SMALL ? fl_from_host(data, s, FL_I64) : fl_full(s, 0, FL_I64);
}

/* The places of the elements come out as well, if asked for. */
static T x_sort(fn f) {
    T x = operand();
    const int axis = fuzz_axis();
    const unsigned b = fuzz_byte();
    fl_tensor *index = NULL;
    T y = CALL(f, (T, int, bool, fl_tensor **), x, axis, b & 1, b & 2 ? &index : NULL);
    if (b & 2 && !y != !index) fuzz_bug("values and places disagree");
    return y;
}

static T x_topk(fn f) {
    T x = operand();
    const int axis = fuzz_axis();
    const int64_t k = fuzz_size();
    const unsigned b = fuzz_byte();
    fl_tensor *index = NULL;
    T y = CALL(f, (T, int64_t, int, bool, fl_tensor **), x, k, axis, b & 1, b & 2 ? &index : NULL);
    if (b & 2 && !y != !index) fuzz_bug("values and places disagree");
    return y;
}

static T xyz_conv(fn f) {
    T x = operand(), w = fuzz_byte() & 1 ? image(NULL) : operand();
    T bias = fuzz_byte() & 1 ? operand() : NULL;
    return CALL(f, (T, T, T, fl_conv_opts), x, w, bias, fuzz_conv());
}

static T x_pool(fn f) {
    T x = operand();
    const int64_t kernel = fuzz_size();
    return CALL(f, (T, fl_pool_opts), x, fuzz_pool(kernel));
}

static T x_pool_index(fn f) {
    T x = operand();
    fl_tensor *index = NULL;
    const int64_t kernel = fuzz_size();
    const bool wanted = fuzz_byte() & 1;
    T y = CALL(f, (T, fl_tensor **, fl_pool_opts), x, wanted ? &index : NULL, fuzz_pool(kernel));
    if (wanted && !y != !index) fuzz_bug("values and places disagree");
    return y;
}

static T x_target_nll(fn f) {
    T x = operand();
    fl_nll_loss_opts o = {0};
    o.reduction = (fl_reduction)fuzz_below(3);
    if (fuzz_byte() & 1) o.ignore = fuzz_int();
    return CALL(f, (T, fl_tensor *, fl_nll_loss_opts), x, target_for(x), o);
}

static T x_target_entropy(fn f) {
    T x = operand();
    fl_cross_entropy_opts o = {0};
    o.reduction = (fl_reduction)fuzz_below(4);
    if (fuzz_byte() & 1) o.ignore = fuzz_int();
    if (fuzz_byte() & 1) o.smoothing = probability();
    return CALL(f, (T, fl_tensor *, fl_cross_entropy_opts), x, target_for(x), o);
}

/* ---- variables ---- */

static T odd_param(fn f) {
    (void)f;
    return new_leaf(fuzz_tensor());
}

static T constant(fn f) {
    (void)f;
    return fv_const(fuzz_tensor());
}

static T number(fn f) {
    (void)f;
    return fv_num(fuzz_double());
}

static T done(bool ok, T x) {
    return ok ? x : NULL;
}

static T overwrite(fn f) {
    T x = operand();
    (void)f;
    return done(fl_assign(fv_value(x), fl_num(fuzz_double())) != NULL, x);
}

static T set_grad(fn f) {
    T x = operand(), g = operand();
    (void)f;
    return x && remember(x) ? done(fv_set_grad(x, g), x) : fv_neg(x);
}

static T zero_grad(fn f) {
    T x = operand();
    (void)f;
    if (x) fv_zero_grad(x);
    return x ? x : fv_num(1);
}

static void double_it(fl_var *x, void *user) {
    (void)user;
    if (x->grad) fv_set_grad(x, fv_add(x->grad, x->grad));
}

static T hook(fn f) {
    T x = operand();
    (void)f;
    const unsigned b = fuzz_byte();
    if (x && !fv_hook(x, b & 1 ? double_it : NULL, NULL) && b & 1) return NULL;
    if (x && b & 2) fv_unhook(x, (int)(b >> 2 & 3));
    return x ? x : fv_num(1);
}

static T no_grad(fn f) {
    (void)f;
    fl_no_grad(fuzz_rarely(4));
    return fv_num(fl_grad_enabled() ? 1 : 0);
}

static T scoped(fn f) {
    fl_scope s = fl_scope_begin();
    (void)f;
    fl_no_grad(fuzz_byte() & 1);
    T x = operand();
    return fv_scope_return(&s, fv_exp(fv_add(x, x)));
}

/* An op of our own: y = 3 a b, whose backward reads two saved values, the output and arguments. */
static void triple_back(fl_node *n, fl_var *dy) {
    const double *k = fv_args(n);
    T g = fv_mul(dy, fv_num(*k));
    if (fv_needs(n, 0)) fv_add_grad(n, 0, fv_sum_to(fv_mul(g, fv_saved(n, 1)), fv_in_shape(n, 0)));
    if (fv_needs(n, 1)) fv_add_grad(n, 1, fv_mul(g, fv_saved(n, 0)));
    fv_saved(n, 2);
}

static T own_op(fn f) {
    T a = operand(), b = operand();
    const double k = 3;
    (void)f;
    fl_tensor *y = fl_mul(fl_mul(fv_value(a), fv_value(b)), fl_num(k));
    return fv_record_args("triple", y, triple_back, FV_IN(a, b), FV_SAVE(a, b, FV_OUT), &k,
                          sizeof k);
}

/* A node of two results: -a and a b. */
static void pair_back(fl_node *n, fl_var *dy) {
    T d = fv_grad_of(n, 1);
    (void)dy;
    if (fv_grad_of(n, 0)) fv_add_grad(n, 0, fv_neg(fv_grad_of(n, 0)));
    if (d && fv_needs(n, 0)) fv_add_grad(n, 0, fv_mul(d, fv_saved(n, 1)));
    if (d && fv_needs(n, 1)) fv_add_grad(n, 1, fv_mul(d, fv_saved(n, 0)));
    fv_saved(n, 2);
}

static T several(fn f) {
    T a = operand(), b = operand(), y[2];
    fl_tensor *value[2];
    (void)f;
    value[0] = fl_neg(fv_value(a));
    value[1] = fl_mul(fv_value(a), fv_value(b));
    const fv_record_opts o = {.name = "pair", .back = pair_back, .in = FV_IN(a, b),
                              .saved = FV_SAVE(a, b, FV_OUT_OF(1))};
    return fv_record_several(2, value, y, &o) ? y[fuzz_byte() & 1] : NULL;
}

/* ---- backward ---- */

static fl_backward_opts backward_opts(T root) {
    fl_backward_opts o = {0};
    const unsigned b = fuzz_byte();
    o.retain_graph = b & 1;
    o.create_graph = b & 2;
    if (b & 4) o.grad = fv_value(operand());
    if (b & 8 && root) o.grad = fl_full_like(fv_value(root), 0.5);
    return o;
}

/* Of the sum of an operand's elements, or of the operand itself. */
static T backward(fn f) {
    T x = operand();
    const bool summed = fuzz_byte() & 3;
    (void)f;
    T root = summed ? fv_sum(x, FL_ALL_AXES) : x;
    return done(fl_backward_opt(root, backward_opts(root)), root);
}

static T grad(fn f) {
    T root = operand(), x = operand();
    (void)f;
    if (fuzz_byte() & 1) root = fv_sum(root, FL_ALL_AXES);
    vm.none = true;
    return fl_grad(root, x, fuzz_byte() & 1);
}

static T grads(fn f) {
    T out[2], in[2], given[2], g[2] = {0};
    const unsigned b = fuzz_byte();
    (void)f;
    for (int i = 0; i < 2; i++) out[i] = operand();
    for (int i = 0; i < 2; i++) in[i] = operand();
    if (b & 1) out[0] = fv_sum(out[0], FL_ALL_AXES);
    fl_grads_opts o = {.retain_graph = b & 2, .create_graph = b & 4, .allow_unused = b & 8};
    given[0] = out[0];
    given[1] = b & 32 ? out[1] : NULL;
    if (b & 16) o.given = fv_list_of(1 + (b >> 6 & 1), given);
    vm.none = true;
    fl_grads_opt(fv_list_of(1 + (b >> 6 & 1), out), fv_list_of(1 + (b >> 7), in), g, o);
    return g[0] ? g[0] : g[1];
}

static T jvps(fn f) {
    T y[2], x[2], v[2], jv[2] = {0};
    const unsigned b = fuzz_byte();
    const int n = 1 + (b & 1);
    (void)f;
    for (int i = 0; i < 2; i++) y[i] = operand();
    for (int i = 0; i < 2; i++) x[i] = operand();
    for (int i = 0; i < 2; i++) v[i] = operand();
    if (b & 2) v[0] = x[0]; /* a direction that fits */
    if (b & 4) v[1] = NULL;
    vm.none = true;
    fl_jvps(fv_list_of(1 + (b >> 3 & 1), y), fv_list_of(n, x), fv_list_of(n, v), jv, b & 16);
    return jv[0] ? jv[0] : jv[1];
}

/* NULL passes. */
static T detach(fn f) {
    vm.none = true;
    (void)f;
    return fv_detach(operand());
}

static T gradient_of(fn f) {
    T x = operand();
    (void)f;
    return x && x->grad ? x->grad : fv_neg(x);
}

/* ---- layers ---- */

static int64_t width(void) {
    return fuzz_rarely(16) ? fuzz_int() : 1 + fuzz_below(4);
}

static fl_nn_module *new_conv(void) {
    const int64_t in = width(), out = width(), kernel = fuzz_size();
    const fl_conv_opts c = fuzz_conv();
    const unsigned b = fuzz_byte();
    fl_nn_conv_opts o = {.stride = c.stride[0], .stride_w = c.stride[1], .pad = c.pad[0],
                           .pad_w = c.pad[1], .dilation = c.dilation[0],
                           .dilation_w = c.dilation[1], .groups = c.groups, .no_bias = b & 1, .rng = &vm.rng};
    if (b & 2) o.kernel_w = fuzz_size();
    if (b & 4) o.dtype = fuzz_dtype();
    return fl_nn_conv2d_opt(in, out, kernel, o);
}

static fl_nn_module *new_pool(void) {
    const int64_t kernel = fuzz_size();
    const fl_pool_opts p = fuzz_pool(kernel);
    return fl_nn_pool2d(kernel, .kernel_w = p.kernel[1], .stride = p.stride[0],
                        .stride_w = p.stride[1], .pad = p.pad[0], .pad_w = p.pad[1],
                        .average = fuzz_byte() & 1, .ignore_pad = p.ignore_pad);
}

static fl_nn_module *new_linear(void) {
    const int64_t in = width(), out = width();
    const unsigned b = fuzz_byte();
    const fl_dtype d = b & 2 ? fuzz_dtype() : FL_DTYPE_NONE;
    return fl_nn_linear(in, out, .no_bias = b & 1, .dtype = d, .rng = rng());
}

static fl_nn_module *new_batch_norm(void) {
    const int64_t channels = width();
    const unsigned b = fuzz_byte();
    fl_nn_batch_norm_opts o = {.cumulative = b & 1, .no_affine = b & 2, .no_track = b & 4};
    if (b & 8) o.eps = fuzz_double();
    if (b & 16) o.momentum = fuzz_double();
    if (b & 32) o.dtype = fuzz_dtype();
    return fl_nn_batch_norm2d_opt(channels, o);
}

static fl_nn_module *new_layer_norm(void) {
    const fl_shape s = fuzz_shape();
    const unsigned b = fuzz_byte();
    fl_nn_layer_norm_opts o = {.no_affine = b & 1, .no_bias = b & 2};
    if (b & 8) o.eps = fuzz_double();
    if (b & 32) o.dtype = fuzz_dtype();
    return fl_nn_layer_norm_opt(s, o);
}

static fl_nn_module *new_view(void) {
    return fl_nn_view(fuzz_shape());
}

static fl_nn_module *new_dropout(void) {
    const double p = probability();
    return fl_nn_dropout(p, .rng = rng());
}

static fl_nn_module *new_softmax(void) {
    return fl_nn_log_softmax(fuzz_axis());
}

static fl_nn_module *new_silu(void) {
    return fl_nn_activation("SiLU", fv_silu);
}

static fl_nn_module *(*const makers[])(void) = {
    new_linear, new_linear, new_conv, new_conv, new_pool, new_batch_norm, new_layer_norm, new_view,
    new_dropout, new_softmax, new_silu, fl_nn_relu, fl_nn_gelu, fl_nn_tanh, fl_nn_sigmoid,
};
enum { MAKERS = sizeof makers / sizeof makers[0] };

/* A layer, or several in a row, in the place of another. */
static T make_module(fn f) {
    const int i = fuzz_below(MODULES), n = 1 + fuzz_below(3);
    (void)f;
    fl_nn_module *layers[3], *m;
    for (int k = 0; k < n; k++) layers[k] = makers[fuzz_below(MAKERS)]();
    m = n == 1 ? layers[0] : fl_nn_sequential_of(n, layers);
    fl_nn_free(vm.m[i]);
    vm.m[i] = m;
    if (!m) return NULL;
    const fv_list p = fl_nn_parameters(m);
    if (!p.v && fl_error()) return NULL;
    for (int k = 0; k < p.n; k++) p.v[k]->requires_grad = remember(p.v[k]);
    fl_nn_train(m, fuzz_byte() & 1);
    return fv_num((double)fl_nn_count(m));
}

static T forward(fn f) {
    fl_nn_module *m = vm.m[fuzz_below(MODULES)];
    T x = operand();
    (void)f;
    return m ? fl_nn_forward(m, x) : fv_neg(x);
}

/* Several inputs at once, which layers refuse. */
static T forward_many(fn f) {
    fl_nn_module *m = vm.m[fuzz_below(MODULES)];
    T x = operand();
    fl_vars in = {fuzz_below(4), {x, x, x}};
    (void)f;
    if (!m) return fv_num(1);
    const fl_vars out = fl_nn_forward_vars(m, in);
    return out.n ? out.v[0] : NULL;
}

static T parameter(fn f) {
    fl_nn_module *m = vm.m[fuzz_below(MODULES)];
    (void)f;
    const fv_list p = m ? fl_nn_parameters(m) : FV_NONE;
    return p.n ? p.v[fuzz_below(p.n)] : fl_error() ? NULL : fv_num(1);
}

/* Overwrites a parameter as initialisers do. */
static T initialise(fn f) {
    T x = operand();
    const unsigned how = fuzz_byte();
    const double a = fuzz_double(), b = fuzz_double();
    int64_t in, out;
    (void)f;
    switch (how % 8) {
    case 0: return done(fl_nn_init_constant(x, a), x);
    case 1: return done(fl_nn_init_uniform(x, a, b, &vm.rng), x);
    case 2: return done(fl_nn_init_normal(x, a, b, &vm.rng), x);
    case 3: return done(fl_nn_init_kaiming_uniform(x, a, &vm.rng), x);
    case 4: return done(fl_nn_init_kaiming_normal(x, a, &vm.rng), x);
    case 5: return done(fl_nn_init_glorot_uniform(x, a, &vm.rng), x);
    case 6: return done(fl_nn_init_glorot_normal(x, a, &vm.rng), x);
    default: return done(fl_nn_fan(x, &in, &out), x);
    }
}

/* ---- optimizers ---- */

static fl_optim *new_optim(fv_list params) {
    const unsigned b = fuzz_byte();
    const double lr = probability(), x = probability(), y = probability();
    if (b % 3 == 0) return fl_optim_adam(params, .lr = lr, .beta1 = x, .beta2 = y);
    if (b % 3 == 1) return fl_optim_adamw(params, .lr = lr, .eps = x, .weight_decay = y);
    return fl_optim_sgd(params, .lr = lr, .momentum = x, .weight_decay = y, .nesterov = b & 64,
                        .dampening = b & 128 ? 0.5 : 0);
}

/* Over a module's parameters, or over operands. */
static T optimize(fn f) {
    fl_nn_module *m = vm.m[fuzz_below(MODULES)];
    T list[2] = {operand(), NULL};
    (void)f;
    list[1] = operand();
    const fv_list p = m && fuzz_byte() & 1 ? fl_nn_parameters(m) : (fv_list){fuzz_below(3), list};
    fl_optim *o = new_optim(p);
    bool ok = o != NULL;
    if (ok && fuzz_byte() & 1) {
        fl_tensor *norms = fl_optim_clip_grad_norm(p, fuzz_double());
        const double norm = norms ? fl_item(norms) : (double)NAN;
        ok = !fl_error();
        fuzz_note(&norm, sizeof norm);
    }
    for (int i = fuzz_below(3); ok && i > 0; i--) ok = fl_optim_step(o);
    if (ok) fl_optim_zero_grad(o);
    fl_optim_free(o);
    return ok ? fv_num(1) : NULL;
}

/* ---- the table ---- */

typedef struct row {
    const char *name;
    T (*form)(fn f);
    fn f;
} row;

#define OP(form, name) {#name, form, (fn)fv_##name}
#define VIEW OP
#define SELF(form) {#form, form, NULL}
#define UNARY(op, ...) OP(x_, op),
#define BINARY(op, ...) OP(xy_, op),

static const row rows[] = {
    FL_UNARY_OPS(UNARY) FL_BINARY_OPS(BINARY) COMPOSED_ROWS
    SELF(param), SELF(param), SELF(param), SELF(param), SELF(param), SELF(param), SELF(image),
    SELF(image), SELF(odd_param),
    SELF(constant), SELF(number), SELF(overwrite), SELF(set_grad), SELF(zero_grad), SELF(hook),
    SELF(no_grad), SELF(scoped), SELF(own_op), SELF(detach),
    OP(xyz_, where), OP(x_dtype, cast), OP(x_, contiguous), OP(x_shape, reshape),
    OP(x_perm, permute), OP(x_axis_axis, transpose), OP(x_shape, expand), OP(x_slice, slice),
    OP(x_axis_int, select), OP(x_axis, squeeze), OP(x_axis, unsqueeze), OP(x_axis_axis, flatten),
    OP(list_axis, concat), OP(list_axis, stack),
    OP(x_axes, sum), OP(x_axes, prod), OP(x_axes, mean), OP(x_axes_int, variance),
    OP(x_axes, amax), OP(x_axes, amin), OP(x_axes, logsumexp), OP(x_shape, sum_to),
    OP(x_axis_index, gather), OP(x_axis_index_src, scatter_add),
    OP(x_axis_index_src, scatter), OP(x_axis, cumsum), OP(x_axis, cumprod), OP(x_sort, sort),
    OP(x_topk, topk), OP(x_axis_index, index_select),
    OP(xy_, matmul), OP(xy_, matmul), OP(xyz_conv, conv_opt), OP(xyz_conv, conv_opt),
    OP(x_pool_index, max_pool_opt), OP(x_pool, avg_pool_opt), OP(x_axis, softmax),
    OP(x_axis, log_softmax), OP(x_number_rng, dropout),
    SELF(backward), SELF(backward), SELF(backward), SELF(backward), SELF(backward), SELF(backward),
    SELF(grad), SELF(grad), SELF(grad), SELF(grad), SELF(gradient_of), SELF(gradient_of),
    SELF(make_module), SELF(make_module), SELF(make_module), SELF(forward), SELF(forward),
    SELF(forward), SELF(forward), SELF(forward_many), SELF(parameter), SELF(initialise),
    OP(x_target_nll, nll_loss_opt), OP(x_target_entropy, cross_entropy_opt),
    SELF(optimize), SELF(optimize),
    SELF(several), SELF(grads), SELF(grads), SELF(jvps), SELF(jvps),
};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* ---- the machine ---- */

static void keep_in(int i, fl_var *x) {
    fv_keep(x);
    fv_drop(vm.r[i]);
    vm.r[i] = x;
}

static void check_variable(const fl_var *x) {
    const fl_tensor *t = fv_value(x), *g = fv_grad(x);
    if (!t) fuzz_bug("a variable without a value");
    fuzz_check_tensor(t);
    fuzz_note_tensor(t);
    if (!g) return;
    fuzz_check_tensor(g);
    fuzz_note_tensor(g);
    if (g->dtype != t->dtype || g->ndim != t->ndim) fuzz_bug("a gradient of another kind");
    for (int i = 0; i < t->ndim; i++)
        if (g->shape[i] != t->shape[i]) fuzz_bug("dim %d of a gradient differs", i);
}

static void step(void) {
    const row *r = &rows[fuzz_word(2) % ROWS];
    const unsigned b = fuzz_byte();
    if (b < 240) fl_error_clear();
    if (b >= 200 && b < 216) fuzz_faults(1 + b % 16, 0);
    if (b >= 216 && b < 230) fuzz_faults(0, 1 + b % 14);
    const bool pending = fl_error() != NULL;
    fuzz_doing = r->name;
    vm.none = vm.lacks = false;
    if (fuzz_shows) fprintf(stderr, "%s(", r->name);
    fl_var *x = r->form(r->f);
    fuzz_faults(0, 0);
    fuzz_show(" ) ->", fv_value(x));
    if (!x && !fl_error() && !vm.none) fuzz_bug("failed without an error");
    if (x && fl_error() && !pending && !vm.lacks) fuzz_bug("gave a result and an error");
    if (x) check_variable(x);
    fuzz_show_end();
    if (x) keep_in(fuzz_below(REGISTERS), x);
}

static void fuzz_one(void) {
    memset(&vm, 0, sizeof vm);
    for (int i = 0; i < STEPS && fuzz_input.left; i++) step();
    fl_error_clear();
    fuzz_doing = "end of the program";
    for (int i = 0; i < vm.n_leaves; i++) check_variable(vm.leaf[i]);
    for (int i = 0; i < MODULES; i++) fl_nn_free(vm.m[i]);
    for (int i = 0; i < vm.n_leaves; i++) fv_zero_grad(vm.leaf[i]);
    for (int i = 0; i < REGISTERS; i++) keep_in(i, NULL);
    for (int i = 0; i < vm.n_leaves; i++) fv_drop(vm.leaf[i]);
}
/* MIT licence: see LICENSE. */
