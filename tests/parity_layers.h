/* parity_layers.h - the golden files' layers of fl/nn: lines for the table of parity.c */
#ifndef PARITY_LAYERS_H
#define PARITY_LAYERS_H

/* The inputs from 1 on stand in for the parameters of these names. */
static void bind_all(parity_case *c, fl_nn_module *m, int first, const char *const *names) {
    for (int i = first; m && i < c->n_in; i++) bind(c, m, names[i - first], i);
}

static int nn_conv1d(parity_case *c, fl_var **y) {
    static const char *const names[] = {"weight", "bias"};
    const fl_tensor *w = T(1);
    fl_nn_module *m =
        fl_nn_conv1d(w->shape[1] * INT("groups"), w->shape[0], w->shape[2], .stride = INT("stride"),
                     .pad = INT("pad"), .dilation = INT("dilation"), .groups = INT("groups"),
                     .no_bias = c->n_in < 3, .dtype = w->dtype);
    bind_all(c, m, 1, names);
    return forward(c, m, y);
}

static int nn_adaptive_avg_pool2d(parity_case *c, fl_var **y) {
    return forward(c, fl_nn_adaptive_avg_pool2d(INT("h"), INT("w")), y);
}

static int nn_glu(parity_case *c, fl_var **y) { return forward(c, fl_nn_glu(AXIS("axis")), y); }

static int nn_rms_norm(parity_case *c, fl_var **y) {
    fl_nn_module *m = fl_nn_rms_norm(fl_shape_of(T(1)), .eps = NUM("eps"), .dtype = T(1)->dtype);
    bind(c, m, "weight", 1);
    return forward(c, m, y);
}

static int nn_group_norm(parity_case *c, fl_var **y) {
    static const char *const names[] = {"weight", "bias"};
    fl_nn_module *m =
        fl_nn_group_norm(INT("groups"), T(1)->shape[0], .eps = NUM("eps"), .dtype = T(1)->dtype);
    bind_all(c, m, 1, names);
    return forward(c, m, y);
}

static int nn_embedding(parity_case *c, fl_var **y) {
    const int64_t padding = INT("padding");
    fl_nn_module *m = fl_nn_embedding(T(1)->shape[0], T(1)->shape[1], .dtype = T(1)->dtype,
                                      .padding = padding < 0 ? 0
                                                 : padding   ? padding
                                                             : FL_I0);
    bind(c, m, "weight", 1);
    return forward(c, m, y);
}

static int nn_sinusoid(parity_case *c, fl_var **y) {
    return forward(c, fl_nn_sinusoid(T(0)->shape[2], NUM("scale")), y);
}

/* The first output of m, which is freed, for the first n inputs of the case. */
static int forward_of_n(parity_case *c, fl_nn_module *m, int n, fl_var **y) {
    fl_vars in = {.n = n};
    for (int i = 0; i < n; i++) in.v[i] = IN(i);
    y[0] = m ? fl_nn_forward_vars(m, in).v[0] : NULL;
    fl_nn_free(m);
    return 1;
}

/* Inputs: q, k, v, the mask if there is one, the parameters. q alone is also k and v. */
static int nn_attention(parity_case *c, fl_var **y) {
    static const char *const names[] = {"in_proj_weight", "in_proj_bias", "out_proj.weight",
                                        "out_proj.bias"};
    const int n = (int)INT("inputs");
    fl_nn_module *m = fl_nn_attention(T(0)->shape[2], INT("heads"), .causal = INT("causal") != 0,
                                      .no_bias = c->n_in < n + 4, .dtype = T(0)->dtype);
    if (c->n_in < n + 4) {
        bind(c, m, names[0], n);
        bind(c, m, names[2], n + 1);
    } else {
        bind_all(c, m, n, names);
    }
    return forward_of_n(c, m, n, y);
}

static int nn_attention_more(parity_case *c, fl_var **y) {
    const int n = (int)INT("inputs");
    const int64_t dim = T(0)->shape[2], kdim = INT("kdim"), vdim = INT("vdim");
    const bool apart = kdim != dim || vdim != dim, biased = INT("bias_kv") != 0;
    const char *names[8];
    int k = 0;
    if (!apart) names[k++] = "in_proj_weight";
    else names[k++] = "q_proj_weight", names[k++] = "k_proj_weight", names[k++] = "v_proj_weight";
    names[k++] = "in_proj_bias";
    if (biased) names[k++] = "bias_k", names[k++] = "bias_v";
    names[k++] = "out_proj.weight", names[k++] = "out_proj.bias";
    fl_nn_module *m = fl_nn_attention(dim, INT("heads"), .causal = INT("causal") != 0, .kdim = kdim,
                                      .vdim = vdim,
                                      .bias_kv = biased, .zero_attn = INT("zero_attn") != 0, .dtype = T(0)->dtype);
    bind_all(c, m, n, names);
    return forward_of_n(c, m, n, y);
}

static int nn_transformer(parity_case *c, fl_var **y) {
    static const char *const names[] = {"self_attn.in_proj_weight",
                                        "self_attn.in_proj_bias",
                                        "self_attn.out_proj.weight",
                                        "self_attn.out_proj.bias",
                                        "linear1.weight",
                                        "linear1.bias",
                                        "linear2.weight",
                                        "linear2.bias",
                                        "norm1.weight",
                                        "norm1.bias",
                                        "norm2.weight",
                                        "norm2.bias"};
    fl_nn_module *m = fl_nn_transformer(
        T(0)->shape[2], INT("heads"), T(5)->shape[0], .norm_first = INT("norm_first") != 0,
        .activation = INT("gelu") ? fv_gelu : NULL, .dtype = T(0)->dtype);
    bind_all(c, m, 1, names);
    return forward(c, m, y);
}

static int nn_transformer_decoder(parity_case *c, fl_var **y) {
    static const char *const names[] = {
        "self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight",
        "self_attn.out_proj.bias", "multihead_attn.in_proj_weight", "multihead_attn.in_proj_bias",
        "multihead_attn.out_proj.weight", "multihead_attn.out_proj.bias", "linear1.weight",
        "linear1.bias", "linear2.weight", "linear2.bias", "norm1.weight", "norm1.bias", "norm2.weight",
        "norm2.bias", "norm3.weight", "norm3.bias"};
    fl_nn_module *m = fl_nn_transformer_decoder(
        T(0)->shape[2], INT("heads"), T(10)->shape[0], .norm_first = INT("norm_first") != 0,
        .causal = INT("causal") != 0, .dtype = T(0)->dtype);
    bind_all(c, m, 2, names);
    y[0] = m ? fl_nn_forward_vars(m, FL_VARS(IN(0), IN(1))).v[0] : NULL;
    fl_nn_free(m);
    return 1;
}

static int nn_adaptive_softmax(parity_case *c, fl_var **y) {
    static const char *const names[] = {"head.weight", "tail.0.0.weight", "tail.0.1.weight",
                                        "tail.1.0.weight", "tail.1.1.weight"};
    fl_nn_module *m = fl_nn_adaptive_softmax(T(0)->shape[1], SHAPE("cutoffs"),
                                             .divide = INT("divide"), .dtype = T(0)->dtype);
    bind_all(c, m, 2, names);
    y[0] = m ? fl_nn_forward_vars(m, FL_VARS(IN(0), IN(1))).v[0] : NULL;
    fl_nn_free(m);
    return 1;
}

static int nn_adaptive_embedding(parity_case *c, fl_var **y) {
    static const char *const names[] = {"embeddings.0.0.weight", "embeddings.0.1.weight",
                                        "embeddings.1.0.weight", "embeddings.1.1.weight"};
    fl_nn_module *m = fl_nn_adaptive_embedding(T(2)->shape[0], SHAPE("cutoffs"),
                                               .divide = INT("divide"), .dtype = T(1)->dtype);
    bind_all(c, m, 1, names);
    return forward(c, m, y);
}

static int nn_capsules(parity_case *c, fl_var **y) {
    const int64_t *w = T(1)->shape;
    fl_nn_module *m =
        fl_nn_capsules(w[0], w[3], w[1], w[2], .rounds = INT("rounds"), .dtype = T(1)->dtype);
    bind(c, m, "weight", 1);
    return forward(c, m, y);
}

static int nn_ctc(parity_case *c, fl_var **y) {
    fl_var *logp = fv_transpose(fv_log_softmax(IN(0), 2), 0, 1); /* of logits [n, t, c] */
    y[0] = fv_ctc_loss(logp, T(1), T(2), T(3), .blank = INT("blank"), .reduction = reduction_of(c));
    return 1;
}

#define LAYERS_PARITY                                                                            \
    {"nn_conv1d", nn_conv1d, 2}, {"nn_adaptive_avg_pool2d", nn_adaptive_avg_pool2d, 1},          \
        {"nn_glu", nn_glu, 1}, {"nn_rms_norm", nn_rms_norm, 2},                                  \
        {"nn_group_norm", nn_group_norm, 3}, {"nn_embedding", nn_embedding, 2},                  \
        {"nn_sinusoid", nn_sinusoid, 1}, {"nn_attention", nn_attention, 3},                      \
        {"nn_attention_more", nn_attention_more, 5}, \
        {"nn_transformer", nn_transformer, 13},                                                  \
        {"nn_transformer_decoder", nn_transformer_decoder, 20},                                  \
        {"nn_adaptive_softmax", nn_adaptive_softmax, 3}, \
        {"nn_adaptive_embedding", nn_adaptive_embedding, 3}, {"nn_capsules", nn_capsules, 2},    \
        {"nn_ctc", nn_ctc, 4},

#endif /* MIT licence: see LICENSE. */
