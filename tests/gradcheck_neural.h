/* gradcheck_neural.h - gradients of the neural ops and losses of fl_composed.h, for gradcheck.c */
#ifndef GRADCHECK_NEURAL_H
#define GRADCHECK_NEURAL_H

/* Inputs by their uses: x and y [3, 4] with w [4] or [3, 4]. */
static fl_var *net_layer_norm(fl_var **x) { return fv_layer_norm(x[0], 1, x[1], x[1], 0.1); }
static fl_var *net_layer_norm2(fl_var **x) { return fv_layer_norm(x[0], 2, NULL, NULL, 0.1); }
static fl_var *net_rms_norm(fl_var **x) { return fv_rms_norm(x[0], 1, x[1], 0.1); }
static fl_var *net_add_norm(fl_var **x) {
    fl_rng rng = {7, 3};
    fl_var *sum = NULL;
    const fl_norm_args a = {1, 0.1, false};
    fl_var *y = fv_add_layer_norm(x[0], x[1], NULL, NULL, a, 0.4, &rng, &sum);
    return y ? fv_mul(y, sum) : NULL;
}
static fl_var *net_resample(fl_var **x) {
    const int64_t at[] = {0, 1, 1, 0, 1, 1};
    const fl_tensor *t = fv_value(x[0]);
    fl_tensor *weight = fl_reshape(fl_arange(1, 7, 1, t->dtype), FL_SHAPE(3, 2));
    return fv_resample(x[0], fl_from_host(at, FL_SHAPE(6), FL_I64), weight, NULL,
                       (fl_resample_args){t->ndim - 1, 3, false});
}
static fl_var *net_group_norm(fl_var **x) { return fv_group_norm(x[0], 2, x[1], x[1], 0.1); }
static fl_var *net_instance_norm(fl_var **x) {
    fl_var *image = fv_reshape(x[0], FL_SHAPE(1, 4, 3));
    return fv_instance_norm(image, x[1], NULL, 0.1);
}
static fl_var *net_batch_norm(fl_var **x) {
    return fv_batch_norm(x[0], x[1], x[1], .train = true, .eps = 0.1);
}
static fl_var *net_batch_norm_add(fl_var **x) {
    fl_var *y = fv_mul(x[0], x[1]);
    return fv_batch_norm_add(x[0], x[1], NULL, y, .train = true, .eps = 0.1, .relu = true);
}
static fl_var *net_batch_norm_off(fl_var **x) {
    fl_tensor *mean = fl_full(FL_SHAPE(4), 0.25, FL_F64), *var = fl_full(FL_SHAPE(4), 2, FL_F64);
    return fv_batch_norm(x[0], x[1], x[1], .mean = mean, .var = var);
}
static fl_var *net_response_norm(fl_var **x) {
    return fv_local_response_norm(x[0], 3, 0.5, 0.75, 1);
}
static fl_var *net_normalize(fl_var **x) { return fv_normalize(x[0], 2, 1, 1e-12); }
static fl_var *net_normalize3(fl_var **x) { return fv_normalize(x[0], 3, 0, 1e-12); }
static fl_var *net_weight_norm(fl_var **x) { return fv_weight_norm(x[0], x[1], 1); }
static fl_var *net_cosine(fl_var **x) { return fv_cosine_similarity(x[0], x[1], 1, 1e-8); }
static fl_var *net_distance(fl_var **x) { return fv_pairwise_distance(x[0], x[1], 2, 1e-6); }

static fl_var *net_embedding(fl_var **x) {
    fl_tensor *index = fl_from_host((int64_t[]){2, 0, 2, 1}, FL_SHAPE(2, 2), FL_I64);
    fl_var *y = fv_embedding(index, x[0], -1);
    return y ? fv_mul(y, y) : NULL;
}
static fl_var *net_embedding_bag(fl_var **x) {
    fl_tensor *index = fl_from_host((int64_t[]){2, 0, 2, 1}, FL_SHAPE(2, 2), FL_I64);
    fl_var *y = fv_embedding_bag(index, x[0], true);
    return y ? fv_mul(y, y) : NULL;
}

static fl_var *net_attention(fl_var **x) {
    return fv_attention(x[0], x[1], x[1]);
}
static fl_var *net_attention_causal(fl_var **x) {
    return fv_attention(x[0], x[1], x[0], .causal = true, .scale = 0.5);
}
static fl_var *net_attention_masked(fl_var **x) { /* query 1 sees nothing */
    fl_tensor *mask = fl_from_host((uint8_t[]){1, 0, 1, 0, 0, 0, 1, 1, 1}, FL_SHAPE(3, 3), FL_B8);
    return fv_attention(x[0], x[1], x[1], .mask = fv_const(mask));
}
static fl_var *net_attention_added(fl_var **x) {
    fl_var *mask = fv_matmul(x[1], fv_transpose(x[1], 0, 1));
    return fv_attention(x[0], x[1], x[1], .mask = mask);
}

static fl_var *net_attention_dropped(fl_var **x) { /* each call drops the same */
    fl_rng rng = {3, 0};
    return fv_attention(x[0], x[1], x[1], .causal = true, .dropout = 0.4, .rng = &rng);
}

static fl_var *net_attention_packed(fl_var **x) { /* laid out as a product leaves it */
    fl_var *all[] = {x[0], x[1], fv_sub(x[0], x[1])};
    fl_rng rng = {3, 0};
    fl_var *qkv = fv_transpose(fv_stack(all, 3, 1), 0, 1);
    return fv_attention_packed(qkv, .causal = true, .dropout = 0.4, .rng = &rng);
}
static fl_var *net_attention_options(fl_var **x) {
    return fv_attention(x[0], x[1], x[0], .causal = true, .offset = 1, .window = 2, .softcap = 1.5);
}
static fl_var *net_attention_capped(fl_var **x) {
    fl_var *mask = fv_matmul(x[1], fv_transpose(x[1], 0, 1));
    return fv_attention(x[0], x[1], x[1], .window = 2, .softcap = 0.8, .mask = mask);
}
static fl_var *net_attention_shared(fl_var **x) { /* four heads of queries, two of keys */
    fl_var *q = fv_reshape(fv_concat((fl_var *[]){x[0], x[1]}, 2, 0), FL_SHAPE(4, 3, 2));
    fl_var *k = fv_reshape(x[1], FL_SHAPE(2, 3, 2)), *v = fv_reshape(x[0], FL_SHAPE(2, 3, 2));
    return fv_attention(q, k, v, .causal = true);
}
static fl_var *net_attention_step(fl_var **x) { /* one query */
    return fv_attention(fv_slice(x[0], 0, 0, 1, 1), x[1], x[0], .causal = true, .offset = 1, .softcap = 2);
}
static fl_var *net_rotary(fl_var **x) { return fv_rotary(x[0], .offset = 2, .base = 10); }
static fl_var *net_rotary_pairs(fl_var **x) {
    return fv_rotary(x[0], .interleaved = true, .dim = 2, .scale = 0.5);
}
static fl_var *net_relative(fl_var **x) { return fv_relative_scores(x[0], x[1], 5, 1); }
static fl_var *net_attention_packed_added(fl_var **x) {
    fl_var *all[] = {x[0], x[1], x[1]}, *mask = fv_matmul(x[1], fv_transpose(x[1], 0, 1));
    return fv_attention_packed(fv_stack(all, 3, 0), .mask = mask, .scale = 0.5);
}

/* Weights of n gates for inputs and states of 4, made of x [3, 4] and y [4, 4]. */
static void cell_weights(fl_var **w, fl_var *x, fl_var *y, int gates) {
    fl_var *bias = fv_mean(x, FL_AXES(0)), *ih[4], *hh[4], *b[4];
    for (int i = 0; i < gates; i++) {
        ih[i] = fv_mul(y, fv_num(0.5 - 0.2 * i));
        hh[i] = fv_mul(fv_transpose(y, 0, 1), fv_num(0.3 * i - 0.4));
        b[i] = fv_mul(bias, fv_num(i - 1.5));
    }
    w[0] = fv_concat(ih, gates, 0);
    w[1] = fv_concat(hh, gates, 0);
    w[2] = w[3] = fv_concat(b, gates, 0);
}
static fl_var *net_rnn_tanh_cell(fl_var **x) {
    fl_var *w[4];
    cell_weights(w, x[0], x[1], 1);
    return fv_rnn_tanh_cell(x[0], x[0], w);
}
static fl_var *net_gru_cell(fl_var **x) {
    fl_var *w[4];
    cell_weights(w, x[0], x[1], 3);
    return fv_gru_cell(x[0], x[0], w);
}
static fl_var *net_lstm_cell(fl_var **x) {
    fl_var *w[4], *c;
    cell_weights(w, x[0], x[1], 4);
    fl_var *h = fv_lstm_cell(x[0], x[0], x[0], w, &c);
    return h ? fv_add(h, c) : NULL;
}
static fl_var *net_lstm(fl_var **x) { /* three steps, one layer in both directions */
    fl_var *w[8], *h, *c;
    cell_weights(w, x[0], x[1], 4);
    cell_weights(w + 4, x[0], x[1], 4);
    fl_var *state = fv_expand(fv_select(x[0], 0, 1), FL_SHAPE(2, 1, 4));
    fl_var *y = fv_rnn(FL_LSTM, fv_unsqueeze(x[0], 1), w, .h0 = state, .c0 = state, .bidirectional = true,
                       .h_out = &h, .c_out = &c);
    return y ? fv_add(y, fv_reshape(fv_mul(h, c), FL_SHAPE(1, 1, 8))) : NULL;
}
static fl_var *net_gru(fl_var **x) { /* two layers */
    fl_var *w[8], *h;
    cell_weights(w, x[0], x[1], 3);
    cell_weights(w + 4, x[0], x[1], 3);
    fl_var *state = fv_expand(fv_select(x[0], 0, 1), FL_SHAPE(2, 1, 4));
    fl_var *y = fv_rnn(FL_GRU, fv_unsqueeze(x[0], 1), w, .h0 = state, .layers = 2, .h_out = &h);
    return y ? fv_mul(y, fv_select(h, 0, 0)) : NULL;
}

static fl_var *net_mse(fl_var **x) { return fv_mse_loss(x[0], x[1], FL_MEAN); }
static fl_var *net_l1(fl_var **x) { return fv_l1_loss(x[0], x[1], FL_NONE); }
static fl_var *net_huber(fl_var **x) { return fv_huber_loss(x[0], x[1], 0.7, FL_NONE); }
static fl_var *net_smooth_l1(fl_var **x) { return fv_smooth_l1_loss(x[0], x[1], 0.7, FL_SUM); }
static fl_var *net_bce(fl_var **x) {
    return fv_binary_cross_entropy(fv_sigmoid(x[0]), x[1], FL_NONE);
}
static fl_var *net_bce_logits(fl_var **x) {
    return fv_binary_cross_entropy_with_logits(x[0], x[1], FL_MEAN);
}
static fl_var *net_kl_div(fl_var **x) { return fv_kl_div(x[0], fv_sigmoid(x[1]), FL_NONE); }
static fl_var *net_kl_options(fl_var **x) {
    return fv_kl_div(x[0], x[1], FL_MEAN, .log_target = true, .batch_mean = true);
}
static fl_var *net_poisson(fl_var **x) { return fv_poisson_nll_loss(x[0], x[1], true, FL_SUM); }
static fl_var *net_gaussian(fl_var **x) {
    return fv_gaussian_nll_loss(x[0], x[1], fv_exp(x[0]), FL_NONE);
}
/* Targets on both sides of 1, from which on the approximation counts. */
static fl_var *net_nll_full(fl_var **x) {
    fl_var *y = fv_exp(x[1]);
    fl_var *p = fv_poisson_nll_loss(fv_exp(x[0]), y, false, FL_NONE, .full = true, .eps = 0.5);
    return fv_add(p, fv_gaussian_nll_loss(x[0], x[1], y, FL_NONE, .full = true, .eps = 1e-3));
}
static fl_var *net_soft_margin(fl_var **x) { return fv_soft_margin_loss(x[0], x[1], FL_MEAN); }
static fl_var *net_hinge(fl_var **x) {
    return fv_hinge_embedding_loss(fv_mul(x[0], x[0]), fv_sign(x[1]), 1.3, FL_NONE);
}
static fl_var *net_ranking(fl_var **x) {
    return fv_margin_ranking_loss(fv_mul(x[0], x[0]), x[1], fv_sign(x[0]), 0.1, FL_NONE);
}
static fl_var *net_cosine_loss(fl_var **x) {
    fl_tensor *sign = fl_from_host((double[]){1, -1, -1}, FL_SHAPE(3), FL_F64);
    return fv_cosine_embedding_loss(x[0], x[1], fv_const(sign), -1.5, FL_NONE);
}
static fl_var *net_triplet(fl_var **x) {
    return fv_triplet_margin_loss(x[0], x[1], fv_mul(x[1], x[0]), 9, FL_NONE);
}
static fl_var *net_triplet_options(fl_var **x) {
    fl_var *far = fv_mul(x[1], x[0]);
    fl_var *swapped = fv_triplet_margin_loss(x[0], x[1], far, 9, FL_NONE, .swap = true);
    return fv_add(swapped, fv_triplet_margin_loss(x[0], x[1], far, 9, FL_NONE, .p = 3, .eps = 0.1));
}
static fl_var *net_multi_margin(fl_var **x) {
    fl_tensor *target = fl_from_host((int64_t[]){3, 0, 1}, FL_SHAPE(3), FL_I64);
    return fv_multi_margin_loss(fv_mul(x[0], x[0]), target, 20, FL_NONE);
}

static fl_var *net_multi_margin_options(fl_var **x) {
    fl_tensor *target = fl_from_host((int64_t[]){3, 0, 1}, FL_SHAPE(3), FL_I64);
    fl_tensor *weight = fl_from_host((double[]){0.5, 1.5, 2, 0.25}, FL_SHAPE(4), FL_F64);
    return fv_multi_margin_loss(x[0], target, 20, FL_MEAN, .p = 2, .weight = weight);
}

static fl_var *net_cross_entropy(fl_var **x) {
    fl_tensor *target = fl_from_host((int64_t[]){3, -100, 1}, FL_SHAPE(3), FL_I64);
    return fv_cross_entropy(x[0], target, .smoothing = 0.1, .reduction = FL_NONE);
}
static fl_var *net_class_weights(fl_var **x) {
    fl_tensor *target = fl_from_host((uint8_t[]){3, 1, 2}, FL_SHAPE(3), FL_U8);
    fl_tensor *weight = fl_from_host((double[]){0.5, 1.5, 2, 0.25}, FL_SHAPE(4), FL_F64);
    fl_var *rows = fv_cross_entropy(x[0], target, .weight = weight, .ignore = 2);
    fl_var *smooth = fv_cross_entropy(x[0], target, .weight = weight, .smoothing = 0.2);
    return fv_mul(rows, fv_add(smooth, fv_nll_loss(x[0], target, .weight = weight)));
}
static fl_var *net_soft_targets(fl_var **x) {
    fl_tensor *p = fl_softmax(fl_arange(0, 12, 1, FL_F64), 0);
    fl_tensor *weight = fl_from_host((double[]){0.5, 1.5, 2, 0.25}, FL_SHAPE(4), FL_F64);
    return fv_cross_entropy(x[0], fl_reshape(p, FL_SHAPE(3, 4)), .weight = weight, .smoothing = 0.1);
}
static fl_var *net_bce_weights(fl_var **x) {
    fl_tensor *w = fl_from_host((double[]){0.5, 1.5, 2, 0.25}, FL_SHAPE(4), FL_F64);
    fl_var *logits = fv_binary_cross_entropy_with_logits(x[0], x[1], FL_SUM, .weight = w, .pos_weight = w);
    fl_var *p = fv_binary_cross_entropy(fv_sigmoid(x[0]), x[1], FL_MEAN, .weight = w, .pos_weight = w);
    return fv_mul(logits, p);
}
/* x as four steps of three sequences; y [4, 4] gives the steps' classes. */
static fl_var *net_ctc(fl_var **x) {
    fl_tensor *target = fl_from_host((int64_t[]){1, 1, 2, 1, 3, 0}, FL_SHAPE(3, 2), FL_I64);
    fl_tensor *steps = fl_from_host((int64_t[]){4, 4, 3}, FL_SHAPE(3), FL_I64);
    fl_tensor *lengths = fl_from_host((int64_t[]){2, 2, 0}, FL_SHAPE(3), FL_I64);
    fl_var *each = fv_mul(fv_unsqueeze(x[0], 0), fv_unsqueeze(x[1], 1));
    return fv_ctc_loss(each, target, steps, lengths, .reduction = FL_NONE);
}

/* The other elementary recurrent layers, two steps or both kinds of weights without biases. */
static fl_var *net_rnn(fl_var **x) {
    fl_var *w[] = {x[1], fv_mul(x[1], fv_num(0.25)), NULL, NULL}, *h;
    fl_var *state = fv_mul(fv_slice(fv_unsqueeze(x[0], 0), 1, 0, 1, 1), fv_num(0.5));
    fl_var *in = fv_unsqueeze(x[0], 1), *y = fv_rnn(FL_RNN_TANH, in, w, .h0 = state, .h_out = &h);
    return y ? fv_concat((fl_var *[]){y, h, fv_rnn(FL_RNN_RELU, in, w, .h0 = state)}, 3, 0) : NULL;
}
static fl_var *net_rnn_relu_cell(fl_var **x) {
    fl_var *w[] = {x[1], fv_mul(x[1], fv_num(0.25)), NULL, NULL};
    return fv_rnn_relu_cell(x[0], x[0], w);
}
static fl_var *net_glu(fl_var **x) { return fv_glu(x[0], 1); }
static fl_var *net_prelu_channels(fl_var **x) { return fv_prelu_channels(fv_sub(x[0], fv_num(1.26)), x[1]); }
/* A branch, a loop and an early return; x is positive. */
static fl_var *net_apply(fl_var **x) {
    return fv_apply(
        "(x, y) { if (x < y) x = tanh(x) * y; for (int i = 0; i < 3 && y < 1.5; i++) y += x * 0.25;"
        " if (y > 1.7) return exp(x) / y; return log2(1 + y * y) * x; }",
        x, 2);
}
static fl_var *net_lerp(fl_var **x) { return fv_lerp(x[0], x[1], fv_mul(x[0], x[1])); }
static fl_var *net_addcmul(fl_var **x) { return fv_addcmul(x[0], x[0], x[1], 1.5); }
static fl_var *net_addcdiv(fl_var **x) { return fv_addcdiv(x[1], x[1], x[0], 1.5); }
static fl_var *net_nll(fl_var **x) {
    fl_tensor *target = fl_from_host((int64_t[]){1, 3, 0}, FL_SHAPE(3), FL_I64);
    return fv_nll_loss(fv_log(x[0]), target, .reduction = FL_NONE);
}

/* y: its shape is [4] (VECTOR), [4, 4] (SQUARE), x's [3, 4] (ALIKE), or there is none. */
enum { ALONE, VECTOR, ALIKE, SQUARE };
static const struct {
    const char *name;
    fl_var *(*fn)(fl_var **x);
    int y;
} net_ops[] = {
    {"layer_norm", net_layer_norm, VECTOR},   {"layer_norm", net_layer_norm2, ALONE},
    {"add_layer_norm", net_add_norm, ALIKE},
    {"rms_norm", net_rms_norm, VECTOR},       {"group_norm", net_group_norm, VECTOR},
    {"instance_norm", net_instance_norm, VECTOR},
    {"batch_norm", net_batch_norm, VECTOR},   {"batch_norm", net_batch_norm_off, VECTOR},
    {"batch_norm_add", net_batch_norm_add, VECTOR},
    {"local_response_norm", net_response_norm, ALONE},
    {"normalize", net_normalize, ALONE},      {"normalize", net_normalize3, ALONE},
    {"weight_norm", net_weight_norm, VECTOR}, {"cosine_similarity", net_cosine, ALIKE},
    {"pairwise_distance", net_distance, ALIKE},
    {"embedding", net_embedding, ALONE},      {"embedding_bag", net_embedding_bag, ALONE},
    {"attention", net_attention, ALIKE},      {"attention", net_attention_causal, ALIKE},
    {"attention", net_attention_masked, ALIKE}, {"attention", net_attention_added, ALIKE},
    {"attention_opt", net_attention_dropped, ALIKE},
    {"attention_packed", net_attention_packed, ALIKE},
    {"attention_packed", net_attention_packed_added, ALIKE},
    {"attention", net_attention_options, ALIKE}, {"attention", net_attention_capped, ALIKE},
    {"attention", net_attention_shared, ALIKE}, {"attention", net_attention_step, ALIKE},
    {"rotary", net_rotary, ALONE}, {"rotary", net_rotary_pairs, ALONE},
    {"relative_scores", net_relative, ALIKE},
    {"rnn", net_rnn, SQUARE},                 {"rnn_relu_cell", net_rnn_relu_cell, SQUARE},
    {"resample", net_resample, ALONE},
    {"glu", net_glu, ALONE},                  {"prelu_channels", net_prelu_channels, VECTOR},
    {"apply", net_apply, ALIKE},
    {"lerp", net_lerp, ALIKE},                {"addcmul", net_addcmul, ALIKE},
    {"addcdiv", net_addcdiv, ALIKE},          {"nll_loss", net_nll, ALONE},
    {"rnn_tanh_cell", net_rnn_tanh_cell, SQUARE}, {"gru_cell", net_gru_cell, SQUARE},
    {"lstm_cell", net_lstm_cell, SQUARE},     {"lstm", net_lstm, SQUARE},
    {"gru", net_gru, SQUARE},                 {"mse_loss", net_mse, ALIKE},
    {"l1_loss", net_l1, ALIKE},               {"huber_loss", net_huber, ALIKE},
    {"smooth_l1_loss", net_smooth_l1, ALIKE}, {"binary_cross_entropy", net_bce, ALIKE},
    {"bce_with_logits", net_bce_logits, ALIKE}, {"kl_div", net_kl_div, ALIKE},
    {"poisson_nll_loss", net_poisson, ALIKE}, {"gaussian_nll_loss", net_gaussian, ALIKE},
    {"soft_margin_loss", net_soft_margin, ALIKE}, {"hinge_embedding_loss", net_hinge, ALIKE},
    {"margin_ranking_loss", net_ranking, ALIKE}, {"cosine_embedding_loss", net_cosine_loss, ALIKE},
    {"triplet_margin_loss", net_triplet, ALIKE}, {"multi_margin_loss", net_multi_margin, ALONE},
    {"kl_div options", net_kl_options, ALIKE}, {"full nll losses", net_nll_full, ALIKE},
    {"triplet options", net_triplet_options, ALIKE},
    {"multi_margin options", net_multi_margin_options, ALONE},
    {"cross_entropy", net_cross_entropy, ALONE},
    {"class weights", net_class_weights, ALONE}, {"soft targets", net_soft_targets, ALONE},
    {"bce weights", net_bce_weights, ALIKE}, {"ctc_loss", net_ctc, SQUARE}};
enum { NET_OPS = sizeof net_ops / sizeof *net_ops };

static fl_var *run_net(fl_var **x, const grad_case *c) {
    return net_ops[c->which].fn(x);
}

static void net_cases(int which) {
    static const fl_shape second[] = {{0, {0}}, {1, {4}}, {2, {3, 4}}, {2, {4, 4}}};
    int y = net_ops[which].y;
    run_case(net_ops[which].name, (grad_case){.fn = run_net,
                                              .which = which,
                                              .n_in = y == ALONE ? 1 : 2,
                                              .shape = {FL_SHAPE(3, 4), second[y]},
                                              .low = 0.55,
                                              .high = 1.95,
                                              .base = {0, y == ALIKE ? -0.9 : 0}});
}

/* Ops of a user's (backends.h). */
static fl_var *run_own(fl_var **x, const grad_case *c) {
    return own_ops[c->which].call(x);
}

static void own_cases(int which) {
    const own_op *op = &own_ops[which];
    grad_case c = {.fn = run_own, .which = which, .n_in = op->n_in, .low = 0.55, .high = 1.95};
    for (int i = 0; i < op->n_in; i++) c.shape[i] = op->in[i];
    run_case(op->name, c);
}

#endif /* MIT licence: see LICENSE. */
