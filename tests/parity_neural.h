/* parity_neural.h - the golden files' neural ops and losses: lines for the table of parity.c */
#ifndef PARITY_NEURAL_H
#define PARITY_NEURAL_H

static int batch_norm(parity_case *c, fl_var **y) {
    fl_tensor *mean = fl_clone(T(3)), *var = fl_clone(T(4));
    y[0] = fv_batch_norm(IN(0), IN(1), IN(2), .mean = mean, .var = var, .train = INT("train") != 0,
                         .momentum = NUM("momentum"), .eps = NUM("eps"));
    y[1] = fv_const(mean);
    y[2] = fv_const(var);
    return 3;
}

static int rnn_tanh_cell(parity_case *c, fl_var **y) {
    y[0] = fv_rnn_tanh_cell(IN(0), IN(1), c->x + 2);
    return 1;
}

static int rnn_relu_cell(parity_case *c, fl_var **y) {
    y[0] = fv_rnn_relu_cell(IN(0), IN(1), c->x + 2);
    return 1;
}

static int gru_cell(parity_case *c, fl_var **y) {
    y[0] = fv_gru_cell(IN(0), IN(1), c->x + 2);
    return 1;
}

static int lstm_cell(parity_case *c, fl_var **y) {
    y[0] = fv_lstm_cell(IN(0), IN(1), IN(2), c->x + 3, &y[1]);
    return 2;
}

/* Inputs: x, h0, an LSTM's c0, then the weights. */
static int recurrent(parity_case *c, fl_var **y) {
    const fl_rnn_mode mode = !strcmp(c->op, "lstm") ? FL_LSTM : !strcmp(c->op, "gru") ? FL_GRU : FL_RNN_TANH;
    const int first = mode == FL_LSTM ? 3 : 2;
    y[0] = fv_rnn(mode, IN(0), c->x + first, .h0 = IN(1), .c0 = first == 3 ? IN(2) : NULL,
                  .layers = (int)INT("layers"), .bidirectional = INT("bidirectional") != 0, .h_out = &y[1],
                  .c_out = &y[2]);
    return first;
}

/* The ops of one line each, as in parity.c. */
#define NEURAL_OPS(OP) \
    OP(layer_norm, fv_layer_norm(IN(0), T(1)->ndim, IN(1), IN(2), NUM("eps"))) \
    OP(layer_norm_plain, fv_layer_norm(IN(0), AXIS("n"), NULL, NULL, NUM("eps"))) \
    OP(group_norm, fv_group_norm(IN(0), INT("groups"), IN(1), IN(2), NUM("eps"))) \
    OP(instance_norm, fv_instance_norm(IN(0), IN(1), IN(2), NUM("eps"))) \
    OP(rms_norm, fv_rms_norm(IN(0), 1, IN(1), NUM("eps"))) \
    OP(local_response_norm, fv_local_response_norm(IN(0), INT("size"), NUM("alpha"), NUM("beta"), \
                                                   NUM("k"))) \
    OP(normalize, fv_normalize(IN(0), NUM("p"), AXIS("axis"), NUM("eps"))) \
    OP(weight_norm, fv_weight_norm(IN(0), IN(1), AXIS("axis"))) \
    OP(cosine_similarity, fv_cosine_similarity(IN(0), IN(1), AXIS("axis"), NUM("eps"))) \
    OP(pairwise_distance, fv_pairwise_distance(IN(0), IN(1), NUM("p"), 1e-6)) \
    OP(embedding, fv_embedding(T(0), IN(1), -1)) \
    OP(embedding_padding, fv_embedding(T(0), IN(1), INT("padding"))) \
    OP(embedding_bag, fv_embedding_bag(T(0), IN(1), !strcmp(text_of(c, "mode"), "mean"))) \
    OP(attention, fv_attention(IN(0), IN(1), IN(2), .mask = c->n_in > 3 ? IN(3) : NULL, \
                               .causal = INT("causal") != 0, .scale = NUM("scale"))) \
    OP(attention_options, \
       fv_attention(IN(0), IN(1), IN(2), .mask = c->n_in > 3 ? IN(3) : NULL, .causal = INT("causal") != 0, \
                    .offset = INT("offset"), .window = INT("window"), .softcap = NUM("softcap"))) \
    OP(rotary, fv_rotary(IN(0), .base = NUM("base"), .offset = INT("offset"), .scale = NUM("scale"), \
                         .dim = INT("dim"), .interleaved = INT("interleaved") != 0)) \
    OP(relative_scores, fv_relative_scores(IN(0), IN(1), INT("m"), INT("offset"))) \
    OP(relative_buckets, CONST_OF(fl_relative_buckets(INT("n"), INT("m"), INT("offset"), INT("buckets"), \
                                                      INT("most"), INT("causal") != 0))) \
    OP(alibi, CONST_OF(fl_alibi(INT("heads"), INT("n"), INT("m"), INT("offset"))))

/* ctc: PyTorch's gradient holds that of a log softmax before it, which keeps log probabilities. */
#define REDUCTION reduction_of(c)
#define LOSS_OPS(OP) \
    OP(l1, fv_l1_loss(IN(0), IN(1), REDUCTION)) \
    OP(huber, fv_huber_loss(IN(0), IN(1), NUM("delta"), REDUCTION)) \
    OP(smooth_l1, fv_smooth_l1_loss(IN(0), IN(1), NUM("beta"), REDUCTION)) \
    OP(binary_cross_entropy, fv_binary_cross_entropy(IN(0), IN(1), REDUCTION, .weight = MAYBE(2))) \
    OP(binary_cross_entropy_logits, fv_binary_cross_entropy_with_logits(IN(0), IN(1), REDUCTION, \
       .weight = MAYBE(2), .pos_weight = MAYBE(3))) \
    OP(kl_div, fv_kl_div(IN(0), IN(1), REDUCTION, .log_target = int_or(c, "log_target", 0) != 0, \
                         .batch_mean = int_or(c, "batch_mean", 0) != 0)) \
    OP(poisson_nll, fv_poisson_nll_loss(IN(0), IN(1), INT("log_input") != 0, REDUCTION, \
                                        .full = int_or(c, "full", 0) != 0, .eps = number_or(c, "eps", 0))) \
    OP(gaussian_nll, fv_gaussian_nll_loss(IN(0), IN(1), IN(2), REDUCTION, \
                                          .full = int_or(c, "full", 0) != 0, .eps = number_or(c, "eps", 0))) \
    OP(soft_margin, fv_soft_margin_loss(IN(0), IN(1), REDUCTION)) \
    OP(hinge_embedding, fv_hinge_embedding_loss(IN(0), IN(1), NUM("margin"), REDUCTION)) \
    OP(margin_ranking, fv_margin_ranking_loss(IN(0), IN(1), IN(2), NUM("margin"), REDUCTION)) \
    OP(cosine_embedding, fv_cosine_embedding_loss(IN(0), IN(1), IN(2), NUM("margin"), REDUCTION)) \
    OP(triplet_margin, fv_triplet_margin_loss(IN(0), IN(1), IN(2), NUM("margin"), REDUCTION, \
                                              .p = number_or(c, "p_norm", 0), .eps = number_or(c, "eps", 0), \
                                              .swap = int_or(c, "swap", 0) != 0)) \
    OP(multi_margin, fv_multi_margin_loss(IN(0), T(1), NUM("margin"), REDUCTION, .weight = MAYBE(2), \
                                          .p = (int)int_or(c, "p", 0))) \
    OP(ctc, fv_ctc_loss(fv_log_softmax(IN(0), 2), T(1), T(2), T(3), .reduction = REDUCTION))

#define NEURAL_PARITY \
    {"batch_norm", batch_norm, 5}, {"rnn_tanh_cell", rnn_tanh_cell, 6}, \
        {"rnn_relu_cell", rnn_relu_cell, 6}, {"gru_cell", gru_cell, 6}, \
        {"lstm_cell", lstm_cell, 7}, {"rnn", recurrent, 6}, {"gru", recurrent, 6}, \
        {"lstm", recurrent, 7},

#endif /* MIT licence: see LICENSE. */
