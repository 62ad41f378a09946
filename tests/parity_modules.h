/* parity_modules.h - the golden files' further layers of fl/nn: lines for the table of parity.c */
#ifndef PARITY_MODULES_H
#define PARITY_MODULES_H

/* Entry i of a list, or 0 past its end. */
static int64_t entry(const parity_case *c, const char *name, int i) {
    fl_shape s = shape_of(c, name);
    return i < s.ndim ? s.dim[i] : 0;
}

static fl_nn_module *conv_of(const parity_case *c) {
    static fl_nn_module *(*const makers[2][3])(int64_t, int64_t, int64_t, fl_nn_conv_opts) = {
        {fl_nn_conv1d_opt, fl_nn_conv2d_opt, fl_nn_conv3d_opt},
        {fl_nn_conv_transpose1d_opt, fl_nn_conv_transpose2d_opt, fl_nn_conv_transpose3d_opt}};
    const fl_tensor *w = T(1);
    const int dims = w->ndim - 2, h = dims == 3, last = dims - 1; /* h: of no dim if it is 0 */
    const bool transposed = INT("transposed") != 0;
    const int64_t groups = INT("groups"), *k = w->shape + 2;
    const bool causal = dims == 1 && !transposed && !entry(c, "end", 0) && entry(c, "pad", 0);
#define OF(name, i) or_i0(entry(c, name, i))
#define THREE(to, name) \
    .to = OF(name, 0), .to##_h = h ? OF(name, 1) : 0, .to##_w = last ? OF(name, last) : 0
    fl_nn_conv_opts o = {.kernel_h = h ? k[1] : 0, .kernel_w = last ? k[last] : 0, THREE(stride, "stride"),
                         THREE(pad, "pad"), THREE(dilation, "dilation"), THREE(output_pad, "output_pad"),
                         .causal = causal, .groups = groups, .pad_mode = (fl_pad_mode)INT("mode"),
                         .no_bias = c->n_in < 3, .dtype = w->dtype};
    if (dims == 1 && !transposed && !causal) o.pad_end = OF("end", 0);
    if (causal) o.pad = 0;
#undef THREE
#undef OF
    return makers[transposed][dims - 1](transposed ? w->shape[0] : w->shape[1] * groups,
                                        transposed ? w->shape[1] * groups : w->shape[0], k[0], o);
}

static int nn_conv(parity_case *c, fl_var **y) {
    static const char *const names[] = {"weight", "bias"};
    fl_nn_module *m = conv_of(c);
    bind_all(c, m, 1, names);
    return forward(c, m, y);
}

/* The pooling module of a case: kernel, stride and pad of each dim, and the options o. */
static fl_nn_module *pool_of(parity_case *c, fl_nn_pool_opts o) {
    static fl_nn_module *(*const makers[])(int64_t, fl_nn_pool_opts) = {fl_nn_pool1d_opt, fl_nn_pool2d_opt,
                                                                        fl_nn_pool3d_opt};
    const int dims = T(0)->ndim - 2, last = dims - 1;
    o.stride = entry(c, "stride", 0), o.pad = or_i0(entry(c, "pad", 0));
    if (dims == 3) {
        o.kernel_h = entry(c, "kernel", 1), o.stride_h = entry(c, "stride", 1);
        o.pad_h = or_i0(entry(c, "pad", 1));
    }
    if (last) {
        o.kernel_w = entry(c, "kernel", last), o.stride_w = entry(c, "stride", last);
        o.pad_w = or_i0(entry(c, "pad", last));
    }
    return makers[last](entry(c, "kernel", 0), o);
}

static int nn_pool(parity_case *c, fl_var **y) {
    const int dims = T(0)->ndim - 2, last = dims - 1;
    fl_nn_pool_opts o = {.average = INT("average") != 0, .ignore_pad = INT("ignore_pad") != 0,
                         .norm = NUM("norm"), .dilation = entry(c, "dilation", 0),
                         .dilation_h = dims == 3 ? entry(c, "dilation", 1) : 0,
                         .dilation_w = last ? entry(c, "dilation", last) : 0,
                         .ceil_mode = INT("ceil_mode") != 0, .divisor_override = INT("divisor")};
    return forward(c, pool_of(c, o), y);
}

static int nn_pool_indices(parity_case *c, fl_var **y) {
    fl_nn_module *m = pool_of(c, (fl_nn_pool_opts){.return_indices = true});
    const fl_vars out = fl_nn_forward_vars(m, FL_VARS(IN(0)));
    y[0] = out.v[0], y[1] = out.v[1];
    fl_nn_free(m);
    return out.n;
}

static int nn_adaptive_pool(parity_case *c, fl_var **y) {
    const fl_shape size = SHAPE("size");
    return forward(c, INT("largest") ? fl_nn_adaptive_max_pool(size) : fl_nn_adaptive_avg_pool(size), y);
}

static int nn_batch_norm(parity_case *c, fl_var **y) {
    const fl_nn_batch_norm_opts o = {.momentum = NUM("momentum"), .eps = NUM("eps"),
                                     .frozen = INT("frozen") != 0};
    const int64_t n = T(1)->shape[0];
    fl_nn_module *m = T(0)->ndim < 4    ? fl_nn_batch_norm1d_opt(n, o)
                      : T(0)->ndim == 4 ? fl_nn_batch_norm2d_opt(n, o)
                                        : fl_nn_batch_norm3d_opt(n, o);
    static const char *const names[] = {"weight", "bias", "running_mean", "running_var"};
    for (int i = 0; i < 4; i++) {
        fl_tensor *buffer = fl_nn_get_buffer(m, names[i]);
        if (buffer) fl_assign(buffer, T(1 + i));
        else bind(c, m, names[i], 1 + i);
    }
    fl_nn_train(m, INT("train") != 0);
    y[0] = fl_nn_forward(m, IN(0));
    y[1] = fv_const(fl_clone(fl_nn_get_buffer(m, "running_mean")));
    y[2] = fv_const(fl_clone(fl_nn_get_buffer(m, "running_var")));
    fl_nn_free(m);
    return 3;
}

static int nn_instance_norm(parity_case *c, fl_var **y) {
    static const char *const names[] = {"weight", "bias", "running_mean", "running_var"};
    const bool track = c->n_in == 5;
    fl_nn_module *m = fl_nn_instance_norm(T(0)->shape[1], .eps = NUM("eps"), .affine = c->n_in > 1,
                                          .track = track,
                                          .momentum = track ? NUM("momentum") : 0, .dtype = T(0)->dtype);
    for (int i = 1; m && i < c->n_in; i++) {
        if (i < 3) bind(c, m, names[i - 1], i);
        else fl_assign(fl_nn_get_buffer(m, names[i - 1]), T(i));
    }
    if (!track) return forward(c, m, y);
    fl_nn_train(m, INT("train") != 0);
    y[0] = fl_nn_forward(m, IN(0));
    y[1] = fv_const(fl_clone(fl_nn_get_buffer(m, "running_mean")));
    y[2] = fv_const(fl_clone(fl_nn_get_buffer(m, "running_var")));
    fl_nn_free(m);
    return 3;
}

static int nn_rms_norm_default(parity_case *c, fl_var **y) {
    fl_nn_module *m = fl_nn_rms_norm(fl_shape_of(T(1)), .dtype = T(1)->dtype);
    bind(c, m, "weight", 1);
    return forward(c, m, y);
}

static int nn_bilinear(parity_case *c, fl_var **y) {
    static const char *const names[] = {"weight", "bias"};
    const int64_t *w = T(2)->shape;
    fl_nn_module *m = fl_nn_bilinear(w[1], w[2], w[0], .no_bias = c->n_in < 4, .dtype = T(2)->dtype);
    bind_all(c, m, 2, names);
    y[0] = m ? fl_nn_forward_vars(m, FL_VARS(IN(0), IN(1))).v[0] : NULL;
    fl_nn_free(m);
    return 1;
}

static int nn_activation(parity_case *c, fl_var **y) {
    static const struct {
        const char *name;
        fl_nn_module *(*plain)(void);
        fl_nn_module *(*one)(double a);
        fl_nn_module *(*two)(double a, double b);
        fl_nn_module *(*axis)(int axis);
    } makers[] = {{"relu", .plain = fl_nn_relu}, {"relu6", .plain = fl_nn_relu6},
                  {"gelu", .plain = fl_nn_gelu}, {"gelu_tanh", .plain = fl_nn_gelu_tanh},
                  {"tanh", .plain = fl_nn_tanh}, {"sigmoid", .plain = fl_nn_sigmoid},
                  {"silu", .plain = fl_nn_silu}, {"mish", .plain = fl_nn_mish},
                  {"selu", .plain = fl_nn_selu}, {"softsign", .plain = fl_nn_softsign},
                  {"logsigmoid", .plain = fl_nn_logsigmoid}, {"tanhshrink", .plain = fl_nn_tanhshrink},
                  {"hardsigmoid", .plain = fl_nn_hardsigmoid}, {"hardswish", .plain = fl_nn_hardswish},
                  {"leaky_relu", .one = fl_nn_leaky_relu}, {"elu", .one = fl_nn_elu},
                  {"celu", .one = fl_nn_celu}, {"swish", .one = fl_nn_swish},
                  {"hardshrink", .one = fl_nn_hardshrink}, {"softshrink", .one = fl_nn_softshrink},
                  {"softplus", .two = fl_nn_softplus}, {"threshold", .two = fl_nn_threshold},
                  {"hardtanh", .two = fl_nn_hardtanh}, {"softmax", .axis = fl_nn_softmax},
                  {"softmin", .axis = fl_nn_softmin}, {"log_softmax", .axis = fl_nn_log_softmax},
                  {"glu", .axis = fl_nn_glu}};
    const char *kind = text_of(c, "kind");
    const double a = NUM("a"), b = NUM("b");
    fl_nn_module *m = !strcmp(kind, "rrelu") ? fl_nn_rrelu(a, b, NULL) : NULL;
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        if (strcmp(makers[i].name, kind)) continue;
        m = makers[i].plain ? makers[i].plain() : makers[i].one ? makers[i].one(a)
            : makers[i].two ? makers[i].two(a, b) : makers[i].axis((int)a);
    }
    if (!m) fl_fail("parity: no activation %s", kind);
    fl_nn_train(m, false);
    return forward(c, m, y);
}

static int nn_prelu(parity_case *c, fl_var **y) {
    fl_nn_module *m = fl_nn_prelu(T(1)->shape[0], .dtype = T(1)->dtype);
    bind(c, m, "weight", 1);
    return forward(c, m, y);
}

static int nn_normalize(parity_case *c, fl_var **y) {
    const fl_shape list = SHAPE("axes");
    fl_axes axes = {.n = list.ndim};
    for (int i = 0; i < list.ndim; i++) axes.axis[i] = (int)list.dim[i];
    return forward(c, fl_nn_normalize(axes, .p = NUM("p"), .eps = NUM("eps"), .value = NUM("value")), y);
}

static int nn_weight_norm(parity_case *c, fl_var **y) {
    static const char *const names[] = {"weight_v", "weight_g", "bias"};
    const fl_tensor *v = T(1);
    fl_nn_module *m = v->ndim == 2 ? fl_nn_linear(v->shape[1], v->shape[0], .dtype = v->dtype)
                                   : fl_nn_conv2d(v->shape[1], v->shape[0], v->shape[2],
                                                  .kernel_w = v->shape[3], .dtype = v->dtype);
    m = fl_nn_weight_norm(m, "weight", AXIS("axis"));
    bind_all(c, m, 1, names);
    return forward(c, m, y);
}

static int nn_residual(parity_case *c, fl_var **y) {
    static const char *const names[] = {"first.weight", "first.bias", "second.weight",
                                        "second.bias",  "down.weight", "down.bias"};
    const fl_dtype d = T(0)->dtype;
    fl_nn_module *m = fl_nn_residual_of(0, NULL);
    fl_nn_add(m, "first", fl_nn_linear(3, 3, .dtype = d));
    fl_nn_add(m, "act", fl_nn_relu());
    fl_nn_add(m, "second", fl_nn_linear(3, 4, .dtype = d));
    fl_nn_shortcut(m, NULL, "second", NULL, NULL);
    fl_nn_shortcut(m, "first", NULL, "down", fl_nn_linear(3, 4, .dtype = d));
    bind_all(c, m, 1, names);
    return forward(c, m, y);
}

static int nn_pad(parity_case *c, fl_var **y) {
    const fl_shape low = SHAPE("low"), high = SHAPE("high");
    fl_pad_opts o = {.value = NUM("value")};
    for (int i = 0; i < low.ndim; i++) {
        o.low[T(0)->ndim - low.ndim + i] = low.dim[i];
        o.high[T(0)->ndim - low.ndim + i] = high.dim[i];
    }
    return forward(c, fl_nn_pad_opt((fl_pad_mode)INT("mode"), o), y);
}

/* Inputs: x, the targets, the parameters in the network's order. Output: the losses of ten steps. */
static int train_cnn(parity_case *c, fl_var **y) {
    const fl_dtype d = T(0)->dtype;
    fl_nn_module *net = fl_nn_sequential(
        fl_nn_conv2d(2, 4, 3, .pad = 1, .dtype = d), fl_nn_group_norm(2, 4, .dtype = d), fl_nn_relu(),
        fl_nn_pool2d(2), fl_nn_conv2d(4, 6, 3, .pad = 1, .groups = 2, .no_bias = true, .dtype = d),
        fl_nn_batch_norm2d(6, .dtype = d), fl_nn_prelu(1, .dtype = d),
        fl_nn_conv_transpose2d(6, 3, 3, .stride = 2, .pad = 1, .output_pad = 1, .dtype = d),
        fl_nn_instance_norm(3, .affine = true, .dtype = d), fl_nn_celu(0),
        fl_nn_adaptive_avg_pool(FL_SHAPE(2, 2)), fl_nn_flatten(1, -1),
        fl_nn_weight_norm(fl_nn_linear(12, 5, .dtype = d), "weight", 0));
    const fv_list p = net ? fl_nn_parameters(net) : FV_NONE;
    for (int i = 0; i < p.n && i + 2 < c->n_in; i++) fl_assign(fv_value(p.v[i]), T(i + 2));
    if (p.n != c->n_in - 2) fl_fail("parity: %d parameters", p.n);
    fl_optim *optim = fl_optim_sgd(p, .lr = 0.1, .momentum = 0.9);
    fl_tensor *loss[10] = {NULL};
    for (int i = 0; i < 10 && optim; i++) {
        fl_var *l = fv_cross_entropy(fl_nn_forward(net, IN(0)), T(1));
        fl_optim_zero_grad(optim);
        fl_backward(l);
        fl_optim_step(optim);
        loss[i] = fv_value(l);
    }
    y[0] = fv_const(fl_stack(loss, 10, 0));
    fl_optim_free(optim);
    fl_nn_free(net);
    return 1;
}

#define MODULES_PARITY \
    {"nn_conv", nn_conv, 2}, {"nn_pool", nn_pool, 1}, {"nn_pool_indices", nn_pool_indices, 1}, {"nn_adaptive_pool", nn_adaptive_pool, 1}, \
        {"nn_batch_norm", nn_batch_norm, 5}, {"nn_instance_norm", nn_instance_norm, 1}, \
        {"nn_rms_norm_default", nn_rms_norm_default, 2}, {"nn_bilinear", nn_bilinear, 3}, \
        {"nn_activation", nn_activation, 1}, {"nn_prelu", nn_prelu, 2}, {"nn_normalize", nn_normalize, 1}, \
        {"nn_weight_norm", nn_weight_norm, 4}, {"nn_residual", nn_residual, 7}, {"nn_pad", nn_pad, 1}, \
        {"train_cnn", train_cnn, 17},

#endif /* MIT licence: see LICENSE. */
