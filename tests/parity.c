/* parity.c - every op against the golden files that parity.py wrote with PyTorch

   usage: parity [--all] [--dir DIR] [op ...]
     --all  a case that fl cannot run yet (its op or dtype is not there) is a failure; else it is
            counted as skipped, and the last lines name the ops
     --dir  of the golden files, default tests/golden

   The files' format, the weights of the gradients and the measure of errors stand in parity.py. An
   op is a line of a table below, an expression of the case's inputs and arguments; the element-wise
   ops of fl's own tables are here already. A case named op.variant runs the line of op. Checked:
   number, dtype, shape and values of the outputs, gradients, second gradients. Printed for each op:
   cases, those whose values are PyTorch's own, and the largest errors of outputs, first and second
   gradients in units in the last place, each with the tolerance of that case. The last line is
   "N passed, N failed, N skipped". */
#include "../fl_all.h"
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TENSORS = 32, MAX_ARGS = 16, MAX_OPS = 1024, SHOWN_PER_OP = 3 };

/* >>files -------------------------------------------------------------------------------------- */

/* A tensor of a golden file, or a weak number. */
typedef struct golden {
    char dtype[8]; /* "": a weak number */
    fl_shape shape;
    int64_t n;
    const unsigned char *bytes;
    double number;
    bool integer;
} golden;

typedef struct arg {
    const char *name, *value;
} arg;

typedef struct parity_case {
    const char *op;
    bool torch, loose, sign;
    double tol[3]; /* outputs, first and second gradients */
    int n_args, n_in, n_out;
    arg args[MAX_ARGS];
    golden in[MAX_TENSORS], out[MAX_TENSORS];
    bool has[2][MAX_TENSORS]; /* a first, a second gradient of input i */
    golden grad[2][MAX_TENSORS];
    fl_var *x[MAX_TENSORS]; /* the inputs; an op may put a module's parameter in their place */
} parity_case;

typedef struct golden_file {
    char *text; /* lines, 0 at the end of each, then the data */
    const unsigned char *data;
    size_t bytes;
    long cases;
} golden_file;

/* Bytes of an element of a golden dtype, which fl may not know; 0: no such dtype. */
static size_t golden_size(const char *dtype) {
    static const struct {
        const char *name;
        size_t size;
    } sizes[] = {{"b8", 1},  {"u8", 1},   {"i8", 1},  {"i16", 2}, {"i32", 4},
                 {"i64", 8}, {"f16", 2}, {"bf16", 2}, {"f32", 4}, {"f64", 8}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(dtype, sizes[i].name)) return sizes[i].size;
    return 0;
}

static char *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    long n = fseek(f, 0, SEEK_END) ? -1 : ftell(f);
    char *text = n >= 0 && n < 1 << 28 ? malloc((size_t)n + 1) : NULL;
    if (text && (fseek(f, 0, SEEK_SET) || fread(text, 1, (size_t)n, f) != (size_t)n)) {
        free(text);
        text = NULL;
    }
    fclose(f);
    if (text) text[*size = (size_t)n] = 0;
    return text;
}

/* Reads a file and cuts its text into lines. False: not a golden file, or cut short. */
static bool open_golden(golden_file *f, const char *path) {
    size_t size = 0;
    unsigned long bytes = 0;
    *f = (golden_file){.text = read_file(path, &size)};
    if (!f->text || sscanf(f->text, "fl golden 1 %ld %lu\n", &f->cases, &bytes) != 2) return false;
    char *p = f->text, *end = f->text + size;
    for (long line = 0; line <= f->cases && p; line++) {
        p = memchr(p, '\n', (size_t)(end - p));
        if (p) *p++ = 0;
    }
    if (!p || f->cases < 0 || (size_t)(end - p) != bytes) return false;
    f->data = (const unsigned char *)p;
    f->bytes = bytes;
    return true;
}

/* "[2,3]" into list; the number of entries, -1 if it is no list of at most n numbers. */
static int read_list(const char *text, int64_t *list, int n) {
    int count = 0;
    if (*text++ != '[') return -1;
    while (*text != ']') {
        char *end;
        if (count == n) return -1;
        list[count++] = strtoll(text, &end, 10);
        if (end == text || (*end != ',' && *end != ']')) return -1;
        text = end + (*end == ',');
    }
    return count;
}

/* "f32[2,3]@64", or "2.5" and "3": a weak number. False if it does not lie within the data. */
static bool read_golden(golden *g, const golden_file *f, char *text) {
    char *at = strchr(text, '@'), *dims = strchr(text, '[');
    *g = (golden){.n = 1};
    if (!at) {
        g->integer = !strpbrk(text, ".enf");
        g->number = strtod(text, &at);
        return at != text && !*at;
    }
    if (!dims || dims > at || (size_t)(dims - text) >= sizeof g->dtype) return false;
    memcpy(g->dtype, text, (size_t)(dims - text));
    g->shape.ndim = read_list(dims, g->shape.dim, FL_MAX_DIMS);
    size_t size = golden_size(g->dtype), offset = strtoull(at + 1, NULL, 10);
    g->n = g->shape.ndim < 0 ? -1 : fl_shape_numel(g->shape);
    if (!size || g->n < 0 || offset > f->bytes || (size_t)g->n > (f->bytes - offset) / size)
        return false;
    g->bytes = f->data + offset;
    return true;
}

/* One word of a case's line, name=value. */
static bool read_word(parity_case *c, const golden_file *f, char *name, char *value) {
    int order = name[0] == 'h', i = atoi(name + 1);
    bool gradient = (name[0] == 'g' || name[0] == 'h') && name[1] >= '0' && name[1] <= '9';
    if (!strcmp(name, "tol"))
        return sscanf(value, "%lf/%lf/%lf", &c->tol[0], &c->tol[1], &c->tol[2]) == 3;
    if (!strcmp(name, "in"))
        return c->n_in < MAX_TENSORS && read_golden(&c->in[c->n_in++], f, value);
    if (!strcmp(name, "out"))
        return c->n_out < MAX_TENSORS && read_golden(&c->out[c->n_out++], f, value);
    if (gradient) {
        if (i >= c->n_in) return false;
        c->has[order][i] = true;
        return read_golden(&c->grad[order][i], f, value);
    }
    if (c->n_args == MAX_ARGS) return false;
    c->args[c->n_args++] = (arg){name, value};
    return true;
}

static bool read_case(parity_case *c, const golden_file *f, char *line) {
    char *word = strtok(line, " "), *source = strtok(NULL, " ");
    memset(c, 0, sizeof *c);
    if (!word || !source) return false;
    c->op = word;
    c->torch = !strcmp(source, "torch");
    while ((word = strtok(NULL, " "))) {
        char *value = strchr(word, '=');
        if (!strcmp(word, "loose")) c->loose = true;
        else if (!strcmp(word, "sign")) c->sign = true;
        else if (!value) return false;
        else {
            *value = 0;
            if (!read_word(c, f, word, value + 1)) return false;
        }
    }
    return c->n_out > 0;
}

/* >>arguments: what the op table below says of a case ------------------------------------------ */

static const char *text_of(const parity_case *c, const char *name) {
    for (int i = 0; i < c->n_args; i++)
        if (!strcmp(c->args[i].name, name)) return c->args[i].value;
    fl_fail("parity: the case has no argument %s", name);
    return "";
}

static double number_of(const parity_case *c, const char *name) {
    return strtod(text_of(c, name), NULL);
}

static int64_t int_of(const parity_case *c, const char *name) {
    return strtoll(text_of(c, name), NULL, 10);
}

/* An argument that only some cases have. */
static double number_or(const parity_case *c, const char *name, double otherwise) {
    for (int i = 0; i < c->n_args; i++)
        if (!strcmp(c->args[i].name, name)) return number_of(c, name);
    return otherwise;
}

static int64_t int_or(const parity_case *c, const char *name, int64_t otherwise) {
    return (int64_t)number_or(c, name, (double)otherwise);
}

/* Entry i of a list of numbers. */
static int64_t item_of(const parity_case *c, const char *name, int i) {
    int64_t list[FL_MAX_DIMS] = {0};
    int n = read_list(text_of(c, name), list, FL_MAX_DIMS);
    if (i >= n) fl_fail("parity: argument %s has no entry %d", name, i);
    return list[i];
}

static fl_shape shape_of(const parity_case *c, const char *name) {
    fl_shape s = {0, {0}};
    s.ndim = read_list(text_of(c, name), s.dim, FL_MAX_DIMS);
    return s;
}

static fl_axes axes_of(const parity_case *c) {
    fl_axes a = {0, {0}, int_of(c, "keepdim") != 0};
    fl_shape list = shape_of(c, "axes");
    a.n = list.ndim;
    for (int i = 0; i < a.n; i++) a.axis[i] = (int)list.dim[i];
    return a;
}

static fl_dtype dtype_of(const parity_case *c, const char *name) {
    return fl_dtype_by_name(text_of(c, name));
}

/* 0 as an option that means 0. */
static int64_t or_i0(int64_t v) {
    return v ? v : FL_I0;
}

static double or_zero(double v) {
    return v != 0 ? v : FL_ZERO;
}

#define IN(i) (c->x[i])
#define T(i) fv_value(c->x[i])
#define MAYBE(i) (c->n_in > (i) ? T(i) : NULL)
#define INT(name) int_of(c, name)
#define AXIS(name) ((int)int_of(c, name))
#define NUM(name) number_of(c, name)
#define SHAPE(name) shape_of(c, name)
#define DTYPE(name) dtype_of(c, name)
#define AXES axes_of(c)
#define CONST_OF(t) fv_const(t)

/* >>ops with a few lines of their own ---------------------------------------------------------- */

static fl_var *permute(const parity_case *c) {
    fl_shape list = SHAPE("axes");
    int axes[FL_MAX_DIMS];
    for (int i = 0; i < list.ndim; i++) axes[i] = (int)list.dim[i];
    return fv_permute(IN(0), list.ndim, axes);
}

static fl_tensor *assign_slice(const parity_case *c) {
    fl_tensor *y = fl_clone(T(0));
    fl_tensor *at = fl_slice(y, AXIS("axis"), INT("start"), INT("stop"), INT("step"));
    return fl_assign(at, T(1)) ? y : NULL;
}

static fl_conv_opts conv2d_opts(const parity_case *c) {
    return (fl_conv_opts){.stride = {item_of(c, "stride", 0), item_of(c, "stride", 1)},
                          .pad = {item_of(c, "pad", 0), or_i0(item_of(c, "pad", 1))},
                          .dilation = {item_of(c, "dilation", 0), item_of(c, "dilation", 1)},
                          .groups = INT("groups")};
}

static fl_pool_opts pool2d_opts(const parity_case *c, bool ignore_pad) {
    return (fl_pool_opts){.kernel = {item_of(c, "kernel", 0), item_of(c, "kernel", 1)},
                          .stride = {item_of(c, "stride", 0), item_of(c, "stride", 1)},
                          .pad = {item_of(c, "pad", 0), or_i0(item_of(c, "pad", 1))},
                          .ignore_pad = ignore_pad};
}

static int max_pool2d(parity_case *c, fl_var **y) {
    fl_tensor *index = NULL;
    y[0] = fv_max_pool_opt(IN(0), NULL, pool2d_opts(c, false));
    fl_max_pool_opt(T(0), &index, pool2d_opts(c, false));
    y[1] = fv_const(index);
    return 2;
}

static int sort(parity_case *c, fl_var **y) {
    fl_tensor *index = NULL;
    y[0] = fv_sort(IN(0), AXIS("axis"), INT("descending") != 0, &index);
    y[1] = fv_const(index);
    return 2;
}

static int argsort(parity_case *c, fl_var **y) {
    y[0] = CONST_OF(fl_argsort(T(0), AXIS("axis"), INT("descending") != 0));
    return 1;
}

static int topk(parity_case *c, fl_var **y) {
    fl_tensor *index = NULL;
    y[0] = fv_topk(IN(0), INT("k"), AXIS("axis"), !INT("largest"), &index);
    y[1] = fv_const(index);
    return 2;
}

static fl_reduction reduction_of(const parity_case *c) {
    const char *r = text_of(c, "reduction");
    return !strcmp(r, "mean") ? FL_MEAN : !strcmp(r, "sum") ? FL_SUM : FL_NONE;
}

/* >>layers: parameters take the values of inputs and stand in for them ------------------------- */

static void bind(parity_case *c, fl_nn_module *m, const char *name, int i) {
    fl_var *p = fl_nn_get_param(m, name);
    bool before = fl_no_grad(true);
    if (p && fl_assign(fv_value(p), T(i)) && fl_scope_adopt(&fv_keep(p)->obj)) c->x[i] = p;
    else fl_fail("parity: no parameter %s", name);
    fl_no_grad(before);
}

static int forward(parity_case *c, fl_nn_module *m, fl_var **y) {
    y[0] = m ? fl_nn_forward(m, IN(0)) : NULL;
    fl_nn_free(m);
    return 1;
}

static int nn_linear(parity_case *c, fl_var **y) {
    fl_nn_module *m = fl_nn_linear(T(1)->shape[1], T(1)->shape[0], .no_bias = c->n_in < 3,
                                   .dtype = T(0)->dtype);
    bind(c, m, "weight", 1);
    if (c->n_in > 2) bind(c, m, "bias", 2);
    return forward(c, m, y);
}

static int nn_conv2d(parity_case *c, fl_var **y) {
    fl_conv_opts o = conv2d_opts(c);
    fl_tensor *w = T(1);
    fl_nn_module *m = fl_nn_conv2d(w->shape[1] * o.groups, w->shape[0], w->shape[2],
                                   .kernel_w = w->shape[3], .stride = o.stride[0],
                                   .stride_w = o.stride[1], .pad = o.pad[0], .pad_w = o.pad[1],
                                   .dilation = o.dilation[0], .dilation_w = o.dilation[1],
                                   .groups = o.groups, .no_bias = c->n_in < 3, .dtype = w->dtype);
    bind(c, m, "weight", 1);
    if (c->n_in > 2) bind(c, m, "bias", 2);
    return forward(c, m, y);
}

static int nn_batch_norm2d(parity_case *c, fl_var **y) {
    fl_nn_module *m = fl_nn_batch_norm2d(T(1)->shape[0], .momentum = NUM("momentum"),
                                         .eps = NUM("eps"));
    fl_tensor *mean = fl_nn_get_buffer(m, "running_mean");
    fl_tensor *var = fl_nn_get_buffer(m, "running_var");
    bind(c, m, "weight", 1);
    bind(c, m, "bias", 2);
    fl_assign(mean, T(3));
    fl_assign(var, T(4));
    fl_nn_train(m, INT("train") != 0);
    y[0] = fl_nn_forward(m, IN(0));
    y[1] = fv_const(fl_clone(mean));
    y[2] = fv_const(fl_clone(var));
    fl_nn_free(m);
    return 3;
}

static int nn_layer_norm(parity_case *c, fl_var **y) {
    fl_nn_module *m = fl_nn_layer_norm(fl_shape_of(T(1)), .eps = NUM("eps"), .dtype = T(1)->dtype);
    bind(c, m, "weight", 1);
    bind(c, m, "bias", 2);
    return forward(c, m, y);
}

static int dropout_off(parity_case *c, fl_var **y) {
    fl_nn_module *m = fl_nn_dropout(NUM("p"));
    fl_nn_train(m, false);
    return forward(c, m, y);
}

/* >>initial values: largest, smallest, mean and deviation of what an initialiser wrote --------- */

static int measured(fl_tensor *t, bool bounded, fl_var **y) {
    double m[4] = {fl_item(fl_amax(t, FL_ALL_AXES)), fl_item(fl_amin(t, FL_ALL_AXES)),
                   fl_item(fl_mean(t, FL_ALL_AXES)),
                   sqrt(fl_item(fl_variance(t, FL_ALL_AXES, 1)))};
    float f[4];
    for (int i = 0; i < 4; i++) f[i] = bounded || i > 1 ? (float)m[i] : NAN;
    y[0] = fv_const(fl_from_host(f, FL_SHAPE(4), FL_F32));
    return 1;
}

static int initialise(parity_case *c, fl_var **y) {
    const char *kind = c->op + strlen("init_");
    fl_rng rng = {1, 0};
    fl_var *p = fv_param(fl_zeros(SHAPE("shape"), FL_F32));
    bool ok = !strcmp(kind, "uniform") ? fl_nn_init_uniform(p, NUM("low"), NUM("high"), &rng)
              : !strcmp(kind, "normal") ? fl_nn_init_normal(p, NUM("mean"), NUM("std"), &rng)
              : !strcmp(kind, "kaiming_uniform") ? fl_nn_init_kaiming_uniform(p, NUM("a"), &rng)
              : !strcmp(kind, "kaiming_normal") ? fl_nn_init_kaiming_normal(p, NUM("a"), &rng)
              : !strcmp(kind, "glorot_uniform") ? fl_nn_init_glorot_uniform(p, NUM("gain"), &rng)
              : !strcmp(kind, "glorot_normal") ? fl_nn_init_glorot_normal(p, NUM("gain"), &rng)
                                               : fl_nn_init_constant(p, NUM("value"));
    return ok ? measured(fv_value(p), !strstr(kind, "normal"), y) : 0;
}

static int init_default(parity_case *c, fl_var **y) {
    fl_shape s = SHAPE("shape");
    fl_rng rng = {1, 0};
    int64_t in = s.dim[1] * s.dim[2] * s.dim[3];
    fl_nn_module *m = strstr(c->op, "linear") ? fl_nn_linear(in, s.dim[0], .rng = &rng)
                                              : fl_nn_conv2d(s.dim[1], s.dim[0], s.dim[2],
                                                             .kernel_w = s.dim[3], .rng = &rng);
    int n = measured(fv_value(fl_nn_get_param(m, "weight")), true, y);
    fl_nn_free(m);
    return n;
}

/* >>training ----------------------------------------------------------------------------------- */

static bool is(const parity_case *c, const char *op) {
    const size_t n = strlen(op);
    return !strncmp(c->op, op, n) && (!c->op[n] || c->op[n] == '.');
}

static fl_optim *optimizer_of(const parity_case *c, fl_var *p) {
    fv_list list = FV_LIST(p);
    const double lr = NUM("lr"), decay = or_zero(number_or(c, "decay", 0));
    if (is(c, "sgd"))
        return fl_optim_sgd(list, .lr = lr, .momentum = NUM("momentum"), .dampening = NUM("dampening"),
                            .weight_decay = decay, .nesterov = INT("nesterov") != 0, .master = true);
    if (is(c, "rmsprop"))
        return fl_optim_rmsprop(list, .lr = lr, .alpha = NUM("alpha"), .eps = NUM("eps"),
                                .weight_decay = decay, .momentum = NUM("momentum"),
                                .centered = INT("centered") != 0, .master = true);
    if (is(c, "adagrad"))
        return fl_optim_adagrad(list, .lr = lr, .lr_decay = NUM("lr_decay"), .eps = NUM("eps"),
                                .weight_decay = decay, .master = true);
    if (is(c, "adadelta"))
        return fl_optim_adadelta(list, .lr = lr, .rho = NUM("rho"), .eps = NUM("eps"), .weight_decay = decay,
                                 .master = true);
    if (is(c, "rprop"))
        return fl_optim_rprop(list, .lr = lr, .etaminus = NUM("minus"), .etaplus = NUM("plus"),
                              .step_min = NUM("least"), .step_max = NUM("most"), .master = true,
                              .maximize = INT("maximize") != 0);
    if (is(c, "asgd"))
        return fl_optim_asgd(list, .lr = lr, .lambd = NUM("lambd"), .alpha = NUM("alpha"), .t0 = NUM("t0"),
                             .weight_decay = decay, .master = true, .maximize = INT("maximize") != 0);
    if (is(c, "adafactor"))
        return fl_optim_adafactor(list, .lr = lr, .beta2_decay = NUM("decay2"), .eps1 = NUM("eps1"),
                                  .eps2 = NUM("eps2"), .d = NUM("d"), .weight_decay = decay, .master = true);
    if (is(c, "muon"))
        return fl_optim_muon(list, .lr = lr, .momentum = NUM("momentum"), .weight_decay = decay,
                             .no_nesterov = !INT("nesterov"), .match_adamw = INT("match") != 0,
                             .master = true);
    const double beta1 = or_zero(NUM("beta1")), beta2 = or_zero(NUM("beta2"));
    if (is(c, "lion"))
        return fl_optim_lion(list, .lr = lr, .beta1 = beta1, .beta2 = beta2, .weight_decay = decay,
                             .master = true);
    if (is(c, "lamb"))
        return fl_optim_lamb(list, .lr = lr, .beta1 = beta1, .beta2 = beta2, .eps = NUM("eps"),
                             .weight_decay = decay, .master = true);
    if (is(c, "novograd"))
        return fl_optim_novograd(list, .lr = lr, .beta1 = beta1, .beta2 = beta2, .eps = NUM("eps"),
                                 .weight_decay = decay, .master = true);
    fl_optim_adam_opts o = {.lr = lr, .beta1 = beta1, .beta2 = beta2, .eps = NUM("eps"),
                            .weight_decay = decay, .amsgrad = is(c, "amsgrad"), .master = true};
    return is(c, "adamw")    ? fl_optim_adamw_opt(list, o)
           : is(c, "adamax") ? fl_optim_adamax_opt(list, o)
           : is(c, "nadam")  ? fl_optim_nadam_opt(list, o)
           : is(c, "radam")  ? fl_optim_radam_opt(list, o)
                             : fl_optim_adam_opt(list, o);
}

/* Inputs: a parameter, and a gradient for each step. Output: the parameter after each. */
static int trajectory(parity_case *c, fl_var **y) {
    fl_var *p = fv_param(fl_clone(T(0)));
    fl_tensor *steps[16];
    int n = (int)T(1)->shape[0];
    fl_optim *o = optimizer_of(c, p);
    for (int i = 0; o && i < n && i < 16; i++) {
        fv_set_grad(p, fv_const(fl_contiguous(fl_select(T(1), 0, i))));
        fl_optim_step(o);
        steps[i] = fl_clone(fv_value(p));
    }
    y[0] = o && n <= 16 ? fv_const(fl_stack(steps, n, 0)) : NULL;
    fl_optim_free(o);
    return 1;
}

typedef struct valley {
    fl_optim *optim;
    fl_var *p;
} valley;
static fl_var *rosenbrock(void *user) {
    const valley *v = user;
    const int64_t n = fl_numel(fv_value(v->p));
    fl_optim_zero_grad(v->optim);
    fl_var *low = fv_slice(v->p, 0, 0, n - 1, 1), *high = fv_slice(v->p, 0, 1, n, 1);
    fl_var *a = fv_square(fv_sub(high, fv_square(low))), *b = fv_square(fv_sub(fv_num(1), low));
    fl_var *loss = fv_sum(fv_add(fv_mul(fv_num(100), a), b), FL_ALL_AXES);
    return fl_backward(loss) ? loss : NULL;
}

/* Output: the parameter and the first loss of each step. */
static int lbfgs(parity_case *c, fl_var **y) {
    valley v = {.p = fv_param(fl_clone(T(0)))};
    fl_tensor *steps[16];
    const int n = (int)INT("steps");
    v.optim = fl_optim_lbfgs(FV_LIST(v.p), .lr = NUM("lr"), .max_iter = INT("iters"),
                             .max_eval = INT("evals"), .history = INT("history"), .strong_wolfe = INT("wolfe") != 0);
    for (int i = 0; v.optim && i < n; i++) {
        double loss = NAN;
        fl_optim_step_closure(v.optim, rosenbrock, &v, &loss);
        fl_tensor *pair[] = {fl_clone(fv_value(v.p)), fl_full(FL_SHAPE(1), loss, FL_F64)};
        steps[i] = fl_concat(pair, 2, 0);
    }
    y[0] = v.optim ? fv_const(fl_stack(steps, n, 0)) : NULL;
    fl_optim_free(v.optim);
    return 1;
}

static int clip_grad_norm(parity_case *c, fl_var **y) {
    fl_var *p[MAX_TENSORS];
    for (int i = 0; i < c->n_in; i++) {
        p[i] = fv_param(fl_full_like(T(i), 0));
        fv_set_grad(p[i], IN(i));
    }
    double norm = fl_item(fl_optim_clip_grad_norm((fv_list){c->n_in, p}, NUM("max_norm")));
    y[0] = fv_const(fl_full(FL_SCALAR_SHAPE, norm, T(0)->dtype));
    for (int i = 0; i < c->n_in; i++) y[i + 1] = fv_const(fv_grad(p[i]));
    return c->n_in + 1;
}

/* A schedule as an object gives what its plain function does. */
static double rate(const parity_case *c, fl_optim_schedule *s, int64_t t) {
    const double lr = NUM("lr");
    const int64_t at[] = {int_or(c, "a", 0), int_or(c, "b", 0)};
    *s = (fl_optim_schedule){.lr = lr, .total = int_or(c, "total", 0), .every = int_or(c, "every", 0),
                             .low = number_or(c, "low", 0), .gamma = number_or(c, "gamma", 0),
                             .power = number_or(c, "power", 0), .grow = int_or(c, "grow", 0),
                             .warmup = int_or(c, "warmup", 0), .decay = int_or(c, "decay", 0),
                             .rise = number_or(c, "rise", 0), .milestone = {at[0], at[1]}};
    switch (s->kind = is(c, "lr_step")              ? FL_LR_STEP
                      : is(c, "lr_cosine")          ? FL_LR_COSINE
                      : is(c, "lr_multi_step")      ? FL_LR_MULTI_STEP
                      : is(c, "lr_exponential")     ? FL_LR_EXPONENTIAL
                      : is(c, "lr_polynomial")      ? FL_LR_POLYNOMIAL
                      : is(c, "lr_cosine_restarts") ? FL_LR_COSINE_RESTARTS
                      : is(c, "lr_inverse_sqrt")    ? FL_LR_INVERSE_SQRT
                      : is(c, "lr_wsd")             ? FL_LR_WSD
                      : is(c, "lr_one_cycle")       ? FL_LR_ONE_CYCLE
                                                    : FL_LR_CONSTANT) {
    case FL_LR_STEP: return fl_optim_lr_step(lr, t, s->every, s->gamma);
    case FL_LR_COSINE: return fl_optim_lr_cosine(lr, s->low, t, s->total);
    case FL_LR_MULTI_STEP: return fl_optim_lr_multi_step(lr, t, 2, at, s->gamma);
    case FL_LR_EXPONENTIAL: return fl_optim_lr_exponential(lr, t, s->gamma);
    case FL_LR_POLYNOMIAL: return fl_optim_lr_polynomial(lr, t, s->total, s->power);
    case FL_LR_COSINE_RESTARTS: return fl_optim_lr_cosine_restarts(lr, s->low, t, s->every, s->grow);
    case FL_LR_INVERSE_SQRT: return fl_optim_lr_inverse_sqrt(lr, t, s->warmup);
    case FL_LR_WSD: return fl_optim_lr_wsd(lr, s->low, t, s->warmup, s->decay, s->total);
    case FL_LR_ONE_CYCLE: return fl_optim_lr_one_cycle(lr, t, s->total, s->rise);
    default: return fl_optim_lr_warmup(lr, t, s->warmup);
    }
}

static int rates(parity_case *c, fl_var **y) {
    double lr[32];
    int64_t n = INT("steps");
    for (int64_t t = 0; t < n && t < 32; t++) {
        fl_optim_schedule s;
        lr[t] = rate(c, &s, t);
        if (lr[t] != fl_optim_schedule_at(&s, t)) return 0;
    }
    y[0] = n <= 32 ? fv_const(fl_from_host(lr, FL_SHAPE(n), FL_F64)) : NULL;
    return 1;
}

static int momentums(parity_case *c, fl_var **y) {
    double momentum[32];
    fl_var *p = fv_param(fl_ones(FL_SHAPE(1), FL_F32));
    fl_optim *o = fl_optim_sgd(FV_LIST(p), .lr = NUM("lr"), .momentum = 0.5);
    fl_optim_schedule s = {.kind = FL_LR_ONE_CYCLE, .total = INT("total"), .rise = NUM("rise"),
                           .momentum_low = NUM("low"), .momentum_high = NUM("high")};
    const int64_t n = INT("steps");
    bool ok = n <= 32 && fl_optim_schedule_start(&s, o);
    for (int64_t t = 0; ok && t < n; t++) {
        momentum[t] = o->group[0].hyper[0];
        ok = fl_optim_schedule_step(&s);
    }
    fl_optim_free(o);
    y[0] = ok ? fv_const(fl_from_host(momentum, FL_SHAPE(n), FL_F64)) : NULL;
    return 1;
}

static int plateau(parity_case *c, fl_var **y) {
    double lr[32];
    fl_var *p = fv_param(fl_ones(FL_SHAPE(1), FL_F32));
    fl_optim *o = fl_optim_sgd(FV_LIST(p), .lr = NUM("lr"));
    const bool maximize = INT("maximize") != 0;
    fl_optim_schedule s = {.kind = FL_LR_PLATEAU, .gamma = NUM("gamma"), .patience = INT("patience"),
                           .cooldown = INT("cooldown"), .low = NUM("low"), .maximize = maximize};
    const int64_t n = INT("steps");
    bool ok = n <= 32 && fl_optim_schedule_start(&s, o);
    for (int64_t t = 0; ok && t < n; t++) {
        lr[t] = fl_optim_lr(o);
        const double slope = maximize ? 1 : 1 + 1.0 / (double)(t + 1);
        ok = fl_optim_schedule_metric(&s, (cos(0.7 * (double)t) + 2) * slope);
    }
    fl_optim_free(o);
    y[0] = ok ? fv_const(fl_from_host(lr, FL_SHAPE(n), FL_F64)) : NULL;
    return 1;
}

#include "parity_move.h"
#include "parity_neural.h"
#include "parity_layers.h"
#include "parity_modules.h"
#include "parity_passes.h"
#include "parity_recurrent.h"

/* >>the table: op, its output as a variable (CONST_OF: of a tensor, without gradient) ---------- */

#define OPS(OP) \
    OP(zeros, CONST_OF(fl_zeros(SHAPE("shape"), DTYPE("dtype")))) \
    OP(ones, CONST_OF(fl_ones(SHAPE("shape"), DTYPE("dtype")))) \
    OP(full, CONST_OF(fl_full(SHAPE("shape"), NUM("value"), DTYPE("dtype")))) \
    OP(full_like, CONST_OF(fl_full_like(T(0), NUM("fill_value")))) \
    OP(arange, CONST_OF(fl_arange(NUM("start"), NUM("stop"), NUM("step"), DTYPE("dtype")))) \
    OP(eye, CONST_OF(fl_eye(INT("n"), INT("m"), DTYPE("dtype")))) \
    OP(cast, fv_cast(IN(0), DTYPE("dtype"))) \
    OP(clip, fv_clamp(IN(0), fv_num(NUM("low")), fv_num(NUM("high")))) \
    OP(where, fv_where(IN(0), IN(1), IN(2))) \
    OP(softmax, fv_softmax(IN(0), AXIS("axis"))) \
    OP(log_softmax, fv_log_softmax(IN(0), AXIS("axis"))) \
    OP(sum, fv_sum(IN(0), AXES)) \
    OP(prod, fv_prod(IN(0), AXES)) \
    OP(mean, fv_mean(IN(0), AXES)) \
    OP(variance, fv_variance(IN(0), AXES, INT("correction"))) \
    OP(amax, fv_amax(IN(0), AXES)) \
    OP(amin, fv_amin(IN(0), AXES)) \
    OP(all, CONST_OF(fl_all(T(0), AXES))) \
    OP(any, CONST_OF(fl_any(T(0), AXES))) \
    OP(logsumexp, fv_logsumexp(IN(0), AXES)) \
    OP(argmax, CONST_OF(fl_argmax(T(0), AXIS("axis"), INT("keepdim") != 0))) \
    OP(argmin, CONST_OF(fl_argmin(T(0), AXIS("axis"), INT("keepdim") != 0))) \
    OP(reshape, fv_reshape(IN(0), SHAPE("shape"))) \
    OP(permute, permute(c)) \
    OP(transpose, fv_transpose(IN(0), AXIS("a"), AXIS("b"))) \
    OP(expand, fv_expand(IN(0), SHAPE("shape"))) \
    OP(slice, fv_slice(IN(0), AXIS("axis"), INT("start"), INT("stop"), INT("step"))) \
    OP(select, fv_select(IN(0), AXIS("axis"), INT("index"))) \
    OP(squeeze, fv_squeeze(IN(0), AXIS("axis"))) \
    OP(unsqueeze, fv_unsqueeze(IN(0), AXIS("axis"))) \
    OP(flatten, fv_flatten(IN(0), AXIS("first"), AXIS("last"))) \
    OP(concat, fv_concat(c->x, c->n_in, AXIS("axis"))) \
    OP(stack, fv_stack(c->x, c->n_in, AXIS("axis"))) \
    OP(assign_slice, CONST_OF(assign_slice(c))) \
    OP(gather, fv_gather(IN(0), AXIS("axis"), T(1))) \
    OP(scatter_add, fv_scatter_add(IN(0), AXIS("axis"), T(1), IN(2))) \
    OP(index_select, fv_index_select(IN(0), AXIS("axis"), T(1))) \
    OP(scatter, fv_scatter(IN(0), AXIS("axis"), T(1), IN(2))) \
    OP(cumsum, fv_cumsum(IN(0), AXIS("axis"))) \
    OP(cumprod, fv_cumprod(IN(0), AXIS("axis"))) \
    OP(nonzero, CONST_OF(fl_nonzero(T(0)))) \
    OP(one_hot, CONST_OF(fl_one_hot(T(0), INT("classes")))) \
    OP(matmul, fv_matmul(IN(0), IN(1))) \
    OP(matmul_transposed, fv_matmul(fv_transpose(IN(0), -1, -2), fv_transpose(IN(1), -1, -2))) \
    OP(conv2d, fv_conv_opt(IN(0), IN(1), c->n_in > 2 ? IN(2) : NULL, conv2d_opts(c))) \
    OP(conv2d_same, fv_conv(IN(0), IN(1), NULL, .pad = {FL_SAME})) \
    OP(avg_pool2d, fv_avg_pool_opt(IN(0), pool2d_opts(c, false))) \
    OP(avg_pool2d_inside, fv_avg_pool_opt(IN(0), pool2d_opts(c, true))) \
    OP(mse, fv_mse_loss(IN(0), IN(1), reduction_of(c))) \
    OP(nll, fv_nll_loss(IN(0), T(1), .reduction = reduction_of(c), .weight = MAYBE(2), \
                      .ignore = or_i0(INT("ignore_index")))) \
    OP(cross_entropy, fv_cross_entropy(IN(0), T(1), .reduction = reduction_of(c), \
                                          .ignore = INT("ignore_index"), .weight = MAYBE(2), \
                                          .smoothing = NUM("label_smoothing")))

#include "parity_reduce.h"

#define UNARY_OP(op, ...) OP_BODY(op, fv_##op(IN(0)))
#define BINARY_OP(op, ...) OP_BODY(op, fv_##op(IN(0), IN(1)))
#define OP_BODY(op, expression) \
    static int op_##op(parity_case *c, fl_var **y) { \
        y[0] = (expression); \
        return 1; \
    }
OPS(OP_BODY)
REDUCE_OPS(OP_BODY)
NEURAL_OPS(OP_BODY)
LOSS_OPS(OP_BODY)
FL_UNARY_OPS(UNARY_OP)
FL_BINARY_OPS(BINARY_OP)
#include "parity_index.h"
#include "parity_image.h"
#include "parity_linear.h"

/* An op writes its outputs to y and returns their number. inputs: it looks into so many. */
typedef struct op_line {
    const char *name;
    int (*run)(parity_case *c, fl_var **y);
    int inputs;
} op_line;
#define OP_LINE(op, ...) {#op, op_##op, 0},
static const op_line table[] = {
    REDUCE_PARITY
    OPS(OP_LINE) REDUCE_OPS(OP_LINE) FL_UNARY_OPS(OP_LINE) FL_BINARY_OPS(OP_LINE)
    INDEX_PARITY
    IMAGE_PARITY
    NEURAL_OPS(OP_LINE) LOSS_OPS(OP_LINE)
    LINEAR_PARITY
    MOVE_PARITY
    NEURAL_PARITY
    LAYERS_PARITY
    MODULES_PARITY
    PASSES_PARITY
    RECURRENT_PARITY
    {"max_pool2d", max_pool2d, 0},
    {"sort", sort, 0},
    {"argsort", argsort, 0},
    {"topk", topk, 0},
    {"dropout_off", dropout_off, 0},
    {"nn_linear", nn_linear, 2},
    {"nn_conv2d", nn_conv2d, 2},
    {"nn_batch_norm2d", nn_batch_norm2d, 5},
    {"nn_layer_norm", nn_layer_norm, 3},
    {"init_uniform", initialise, 0},
    {"init_normal", initialise, 0},
    {"init_kaiming_uniform", initialise, 0},
    {"init_kaiming_normal", initialise, 0},
    {"init_glorot_uniform", initialise, 0},
    {"init_glorot_normal", initialise, 0},
    {"init_constant", initialise, 0},
    {"init_default_linear", init_default, 0},
    {"init_default_conv2d", init_default, 0},
    {"sgd", trajectory, 2},
    {"adam", trajectory, 2},
    {"adamw", trajectory, 2},
    {"nadam", trajectory, 2},
    {"radam", trajectory, 2},
    {"rprop", trajectory, 2},
    {"asgd", trajectory, 2},
    {"adafactor", trajectory, 2},
    {"lbfgs", lbfgs, 1},
    {"adamax", trajectory, 2},
    {"amsgrad", trajectory, 2},
    {"rmsprop", trajectory, 2},
    {"adagrad", trajectory, 2},
    {"adadelta", trajectory, 2},
    {"lion", trajectory, 2},
    {"lamb", trajectory, 2},
    {"novograd", trajectory, 2},
    {"muon", trajectory, 2},
    {"clip_grad_norm", clip_grad_norm, 1},
    {"lr_step", rates, 0},
    {"lr_cosine", rates, 0},
    {"lr_warmup", rates, 0},
    {"lr_multi_step", rates, 0},
    {"lr_exponential", rates, 0},
    {"lr_polynomial", rates, 0},
    {"lr_cosine_restarts", rates, 0},
    {"lr_inverse_sqrt", rates, 0},
    {"lr_wsd", rates, 0},
    {"lr_one_cycle", rates, 0},
    {"momentum_one_cycle", momentums, 0},
    {"lr_plateau", plateau, 0},
};

static const op_line *find_op(const char *name) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name)) return &table[i];
    return NULL;
}

/* >>comparison --------------------------------------------------------------------------------- */

/* The worst of one op. */
typedef struct tally {
    char name[40];
    int passed, failed, missing, torch, graded[2]; /* graded: cases with first, second gradients */
    double worst[3], tol[3]; /* of the case whose error is the largest part of its tolerance */
} tally;

static tally tallies[MAX_OPS];
static int n_tallies;

static tally *tally_of(const char *name) {
    for (int i = 0; i < n_tallies; i++)
        if (!strcmp(tallies[i].name, name)) return &tallies[i];
    if (n_tallies == MAX_OPS) {
        fprintf(stderr, "parity: more than %d ops\n", MAX_OPS);
        exit(2);
    }
    snprintf(tallies[n_tallies].name, sizeof tallies->name, "%s", name);
    return &tallies[n_tallies++];
}

static double from_f16(uint16_t b) {
    int e = b >> 10 & 31, m = b & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return b >> 15 ? -v : v;
}

static double from_bf16(uint16_t b) {
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Element i of row-major floats; the bytes need no alignment. */
static double load(const char *dtype, const unsigned char *bytes, int64_t i) {
    uint16_t half;
    float f;
    double d;
    if (!strcmp(dtype, "f64")) return memcpy(&d, bytes + 8 * i, 8), d;
    if (!strcmp(dtype, "f32")) return memcpy(&f, bytes + 4 * i, 4), f;
    memcpy(&half, bytes + 2 * i, 2);
    return !strcmp(dtype, "f16") ? from_f16(half) : from_bf16(half);
}

/* The unit in the last place of values like v. */
static double unit_of(const char *dtype, double v) {
    static const struct {
        const char *name;
        int digits, least;
    } kinds[] = {{"f16", 11, -24}, {"bf16", 8, -133}, {"f32", 24, -149}, {"f64", 53, -1074}};
    int e, k = 0;
    while (strcmp(kinds[k].name, dtype)) k++;
    frexp(v, &e);
    return ldexp(1, e - kinds[k].digits > kinds[k].least && v != 0 ? e - kinds[k].digits
                                                                   : kinds[k].least);
}

/* Of the largest finite value of a tensor, at least 1. */
static double unit_of_all(const golden *want) {
    double largest = 1;
    for (int64_t i = 0; i < want->n; i++) {
        double v = fabs(load(want->dtype, want->bytes, i));
        if (v < INFINITY && v > largest) largest = v;
    }
    return unit_of(want->dtype, largest);
}

/* The largest error of floats in units; *at: where it is. */
static double error_of(const golden *want, const unsigned char *got, bool loose, bool sign,
                       int64_t *at) {
    double worst = 0, common = loose ? unit_of_all(want) : 0;
    for (int64_t i = 0; i < want->n; i++) {
        double a = load(want->dtype, got, i), b = load(want->dtype, want->bytes, i), e;
        bool same = a == b || (isnan(a) && isnan(b));
        bool flipped = sign && a == 0 && b == 0 && signbit(a) != signbit(b);
        e = same ? 0 : fabs(a - b) / (loose ? common : unit_of(want->dtype, fabs(b)));
        if (flipped || isnan(e)) e = INFINITY;
        if (e > worst) worst = e, *at = i;
    }
    return worst;
}

typedef struct verdict {
    bool ok;
    double worst[3]; /* error of outputs, first and second gradients */
    char why[400];
} verdict;

__attribute__((format(printf, 2, 3))) static bool wrong(verdict *v, const char *format, ...) {
    va_list args;
    if (v->ok) {
        va_start(args, format);
        vsnprintf(v->why, sizeof v->why, format, args);
        va_end(args);
    }
    return v->ok = false;
}

static void compare_values(verdict *v, const parity_case *c, int order, const char *what,
                           const golden *want, const unsigned char *got) {
    bool is_float = want->dtype[0] == 'f' || !strcmp(want->dtype, "bf16");
    size_t size = golden_size(want->dtype), same = 0;
    int64_t at = 0;
    if (!is_float) {
        while (same < (size_t)want->n * size && got[same] == want->bytes[same]) same++;
        if (same == (size_t)want->n * size) return;
        v->worst[order] = INFINITY;
        wrong(v, "%s: element %zu differs", what, same / size);
        return;
    }
    double e = error_of(want, got, order || c->loose, !order && c->sign, &at);
    if (e > v->worst[order]) v->worst[order] = e;
    if (e > c->tol[order])
        wrong(v, "%s: element %lld is %.9g, not %.9g: %.3g ulp > %g", what, (long long)at,
              load(want->dtype, got, at), load(want->dtype, want->bytes, at), e, c->tol[order]);
}

static void compare(verdict *v, const parity_case *c, int order, const char *what,
                    const golden *want, fl_tensor *got) {
    char a[128], b[128];
    if (!got) {
        wrong(v, "%s: %s", what, fl_error() ? fl_error() : "nothing");
        return;
    }
    if (strcmp(fl_dtype_name(got->dtype), want->dtype)) {
        wrong(v, "%s is %s, not %s", what, fl_dtype_name(got->dtype), want->dtype);
        return;
    }
    fl_shape_text(fl_shape_of(got), a, sizeof a);
    fl_shape_text(want->shape, b, sizeof b);
    if (strcmp(a, b)) {
        wrong(v, "%s has shape %s, not %s", what, a, b);
        return;
    }
    size_t bytes = (size_t)want->n * golden_size(want->dtype);
    unsigned char *host = malloc(bytes + 1);
    if (!host || !fl_to_host(got, host, bytes)) wrong(v, "%s: cannot be read", what);
    else compare_values(v, c, order, what, want, host);
    free(host);
}

/* >>running ------------------------------------------------------------------------------------ */

/* The weights that parity.py gives output, or gradient, k. */
static fl_var *weights(const fl_tensor *like, int order, int k) {
    int64_t n = fl_numel(like);
    float *w = malloc((size_t)n * sizeof *w + 1);
    if (!w) return NULL;
    for (int64_t i = 0; i < n; i++)
        w[i] = (float)(order == 0 ? 2 * ((7 * i + 3 * k + 3) % 17) - 17
                                  : 2 * ((5 * i + 3 * k + 1) % 13) - 13) / 8;
    fl_tensor *t = fl_from_host(w, fl_shape_of(like), FL_F32);
    free(w);
    return fv_const(fl_cast(t, like->dtype));
}

/* Sum of the weighted elements of the float ones of n variables. */
static fl_var *weighted(fl_var **y, int n, int order) {
    fl_var *sum = NULL;
    for (int i = 0, k = 0; i < n; i++) {
        if (!y[i] || !fl_dtype_is_float(fv_value(y[i])->dtype)) continue;
        fl_var *w = weights(fv_value(y[i]), order, k++);
        fl_var *part = fv_sum(fv_mul(w, y[i]), FL_ALL_AXES);
        sum = sum ? fv_add(sum, part) : part;
    }
    return sum;
}

/* Checks the gradients of one order of root; g (may be NULL) gets them. Returns their number. */
static int check_gradients(verdict *v, const parity_case *c, fl_var *root, int order, fl_var **g) {
    int n = 0;
    for (int i = 0; i < c->n_in; i++) {
        if (!c->has[order][i]) continue;
        char what[32];
        snprintf(what, sizeof what, "%s gradient %d", order ? "second" : "first", i);
        fl_var *d = root ? fl_grad(root, c->x[i], g != NULL) : NULL;
        if (!d && !fl_error()) d = fv_const(fl_full_like(T(i), 0));
        compare(v, c, order + 1, what, &c->grad[order][i], fv_value(d));
        if (g) g[n] = d;
        n++;
    }
    return n;
}

static bool any_gradient(const parity_case *c, int order) {
    for (int i = 0; i < c->n_in; i++)
        if (c->has[order][i]) return true;
    return false;
}

static void check_case(verdict *v, parity_case *c, const op_line *op) {
    fl_var *y[MAX_TENSORS] = {0}, *g[MAX_TENSORS] = {0};
    int n = c->n_in < op->inputs ? 0 : op->run(c, y);
    if (fl_error()) {
        wrong(v, "%s", fl_error());
        return;
    }
    if (n != c->n_out) wrong(v, "%d outputs, not %d", n, c->n_out);
    for (int i = 0; i < n && i < c->n_out; i++) {
        char what[32];
        snprintf(what, sizeof what, "output %d", i);
        compare(v, c, 0, what, &c->out[i], fv_value(y[i]));
    }
    if (!v->ok || !any_gradient(c, 0)) return;
    bool twice = any_gradient(c, 1);
    int n_grads = check_gradients(v, c, weighted(y, n, 0), 0, twice ? g : NULL);
    if (v->ok && twice) check_gradients(v, c, weighted(g, n_grads, 1), 1, NULL);
    if (fl_error()) wrong(v, "%s", fl_error());
}

/* Inputs as variables; those with a gradient are parameters. */
static bool make_inputs(parity_case *c) {
    for (int i = 0; i < c->n_in; i++) {
        const golden *g = &c->in[i];
        fl_tensor *t = *g->dtype ? fl_from_host(g->bytes, g->shape, fl_dtype_by_name(g->dtype))
                       : g->integer ? fl_int((int64_t)g->number) : fl_num(g->number);
        c->x[i] = c->has[0][i] ? fv_param(t) : fv_const(t);
    }
    return !fl_error();
}

/* fl has the dtype, and more than its storage: it can add. */
static bool computes(const char *dtype) {
    fl_dtype d = fl_dtype_by_name(dtype);
    fl_scope s = fl_scope_begin();
    bool ok = d != FL_DTYPE_NONE && fl_add(fl_zeros(FL_SHAPE(1), d), fl_zeros(FL_SHAPE(1), d));
    fl_error_clear();
    fl_scope_end(&s);
    return ok;
}

/* The first dtype of a case that fl lacks (or, with `compute`, cannot compute in); NULL: none. */
static const char *lacking(const parity_case *c, bool compute) {
    for (int i = 0; i < c->n_in + c->n_out; i++) {
        const char *d = i < c->n_in ? c->in[i].dtype : c->out[i - c->n_in].dtype;
        if (*d && (fl_dtype_by_name(d) == FL_DTYPE_NONE || (compute && !computes(d)))) return d;
    }
    for (int i = 0; i < c->n_args; i++)
        if (!strcmp(c->args[i].name, "dtype") && fl_dtype_by_name(c->args[i].value) == FL_DTYPE_NONE)
            return c->args[i].value;
    return NULL;
}

static bool all_wanted;
static int missing_dtype; /* cases */
static char missing_ops[16384], missing_dtypes[128];
static int n_missing_ops;

/* Appends a name to a list, once. True if it is new. */
static bool list_name(char *list, size_t size, const char *name) {
    char word[64];
    snprintf(word, sizeof word, " %s,", name);
    if (strstr(list, word)) return false;
    if (strlen(list) + strlen(word) < size) strcat(list, word);
    return true;
}

static void skip_case(tally *t, const char *op, const char *dtype) {
    if (dtype) {
        missing_dtype++;
        list_name(missing_dtypes, sizeof missing_dtypes, dtype);
    } else {
        n_missing_ops += list_name(missing_ops, sizeof missing_ops, op);
    }
    t->missing++;
}

static void settle(tally *t, const parity_case *c, const verdict *v, long line, const char *file) {
    t->torch += c->torch;
    if (v->ok) t->passed++;
    else if (t->failed++ < SHOWN_PER_OP) printf("%s:%ld: %s: %s\n", file, line, c->op, v->why);
    for (int k = 0; k < 2; k++) t->graded[k] += any_gradient(c, k);
    for (int k = 0; k < 3; k++) {
        double now = v->worst[k] / (c->tol[k] > 0 ? c->tol[k] : 1e-9);
        double before = t->worst[k] / (t->tol[k] > 0 ? t->tol[k] : 1e-9);
        if (now > before || t->tol[k] == 0) t->worst[k] = v->worst[k], t->tol[k] = c->tol[k];
    }
}

/* Reads and runs one line of a file. False if it cannot be read. */
static bool run_line(const golden_file *f, char *text, long line, const char *file, int n_names,
                     char **names) {
    parity_case c;
    verdict v = {.ok = true};
    char base[40];
    if (!read_case(&c, f, text)) return false;
    snprintf(base, sizeof base, "%.*s", (int)strcspn(c.op, "."), c.op);
    bool chosen = n_names == 0;
    for (int i = 0; i < n_names; i++) chosen |= !strcmp(names[i], base);
    if (!chosen) return true;
    const op_line *op = find_op(base);
    tally *t = tally_of(base);
    const char *dtype = lacking(&c, false);
    if (!op || dtype) {
        skip_case(t, base, op ? dtype : NULL);
        return true;
    }
    fl_scope s = fl_scope_begin();
    if (make_inputs(&c)) check_case(&v, &c, op);
    else wrong(&v, "%s", fl_error());
    bool refused = !v.ok && fl_error();
    fl_error_clear();
    fl_scope_end(&s);
    dtype = refused ? lacking(&c, true) : NULL;
    if (dtype || strstr(v.why, "without LAPACK")) skip_case(t, base, dtype);
    else settle(t, &c, &v, line, file);
    return true;
}

/* Returns the number of broken lines; a broken file is one. */
static int run_file(const char *path, int n_names, char **names) {
    golden_file f;
    int broken = !open_golden(&f, path);
    char *text = broken ? NULL : f.text;
    if (broken) printf("%s: not a golden file\n", path);
    for (long line = 2; text && line <= f.cases + 1; line++) {
        text += strlen(text) + 1;
        size_t length = strlen(text); /* strtok cuts the copy */
        char *copy = malloc(length + 1);
        if (!copy || !run_line(&f, memcpy(copy, text, length + 1), line, path, n_names, names)) {
            printf("%s:%ld: not a case\n", path, line);
            broken++;
        }
        free(copy);
    }
    free(f.text);
    return broken;
}

/* >>report ------------------------------------------------------------------------------------- */

static void report(const tally *t) {
    if (!t->passed && !t->failed) return;
    printf("%-22s %4d of %-4d %4d torch", t->name, t->passed, t->passed + t->failed, t->torch);
    for (int k = 0; k < 3; k++)
        if (k == 0 || t->worst[k] > 0) printf("  %8.3g / %-6g", t->worst[k], t->tol[k]);
    printf("%s\n", t->failed ? "  FAILED" : "");
}

static int summary(int broken) {
    int passed = 0, failed = broken, missing = 0, ops = 0, graded[2] = {0};
    printf("op                      cases        values    worst error / tolerance, ulp: outputs, "
           "first and second gradients\n");
    for (int i = 0; i < n_tallies; i++) {
        report(&tallies[i]);
        passed += tallies[i].passed, failed += tallies[i].failed, missing += tallies[i].missing;
        ops += tallies[i].passed + tallies[i].failed > 0;
        for (int k = 0; k < 2; k++) graded[k] += tallies[i].graded[k];
    }
    size_t end = strlen(missing_ops), last = strlen(missing_dtypes);
    if (end) missing_ops[end - 1] = 0;
    if (last) missing_dtypes[last - 1] = 0;
    printf("%d ops checked, %d cases with gradients, %d with second ones\n", ops, graded[0],
           graded[1]);
    if (n_missing_ops) printf("not in fl yet: %d ops:%s\n", n_missing_ops, missing_ops);
    if (missing_dtype) printf("not in fl yet: dtypes%s: %d cases\n", missing_dtypes, missing_dtype);
    if (all_wanted) failed += missing, missing = 0;
    printf("%d passed, %d failed, %d skipped\n", passed, failed, missing);
    return failed || !passed;
}

static void ignore_error(const char *text, void *user) {
    (void)text, (void)user;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Runs the golden files of a folder in the order of their names; the number of broken lines. */
static int run_folder(const char *dir, int n_names, char **names) {
    DIR *d = opendir(dir);
    char *files[64];
    int n = 0, broken = 0;
    for (struct dirent *e; d && n < 64 && (e = readdir(d));) {
        size_t length = strlen(e->d_name);
        if (length < 8 || strcmp(e->d_name + length - 7, ".golden")) continue;
        size_t size = strlen(dir) + length + 2;
        files[n] = malloc(size);
        if (files[n]) snprintf(files[n++], size, "%s/%s", dir, e->d_name);
    }
    if (d) closedir(d);
    if (!n) printf("%s: no golden files\n", dir);
    qsort(files, (size_t)n, sizeof *files, by_name);
    for (int i = 0; i < n; i++) {
        broken += run_file(files[i], n_names, names);
        free(files[i]);
    }
    return n ? broken : 1;
}

int main(int argc, char **argv) {
    const char *dir = "tests/golden";
    int n_names = 0;
    setvbuf(stdout, NULL, _IOLBF, 1 << 12);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--all")) all_wanted = true;
        else if (!strcmp(argv[i], "--dir") && i + 1 < argc) dir = argv[++i];
        else argv[1 + n_names++] = argv[i];
    }
    fl_set_error_handler(ignore_error, NULL);
    return summary(run_folder(dir, n_names, argv + 1));
}

/* MIT licence: see LICENSE. */
