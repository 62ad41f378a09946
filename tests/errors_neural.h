/* errors_neural.h - rows of test_errors.c for the neural ops and losses of fl_composed.h */
#ifndef ERRORS_NEURAL_H
#define ERRORS_NEURAL_H

static void rows_of_nets(void) {
    fl_tensor *const w[4] = {o.f34, o.f23}, *const none[4] = {0};
    const fl_norm_args rows = {1, 1e-5, false};
    const fl_batch_norm_opts norm = {0}, train = {.train = true}, other = {.mean = o.f4};
    const fl_batch_norm_opts counted = {.train = true, .batches = o.f4};
    NO(fl_layer_norm, (NULL, 1, NULL, NULL, 1e-5), NULLS);
    NO(fl_add_layer_norm, (o.f23, NULL, NULL, NULL, rows, 0, NULL, NULL), NULLS);
    NO(fl_add_layer_norm, (o.f23, o.f23, o.f4, NULL, rows, 0, NULL, NULL), "[2, 3]", "[4]");
    NO_AS(fl_add_layer_norm, "fl_dropout", (o.f23, o.f23, NULL, NULL, rows, 2, NULL, NULL), "p 2");
    NO(fv_add_layer_norm, (NULL, o.v23, NULL, NULL, rows, 0, NULL, NULL), NULLS);
    NO(fl_layer_norm, (o.f23, 3, NULL, NULL, 1e-5), "last 3 dims", "[2, 3]");
    NO(fl_layer_norm, (o.f23, 1, o.f4, NULL, 1e-5), "[2, 3]", "[4]");
    NO(fl_layer_norm, (o.f23, 1, NULL, o.f4, 1e-5), "[2, 3]", "[4]");
    NO(fl_rms_norm, (NULL, 1, NULL, 1e-5), NULLS);
    NO(fl_rms_norm, (o.f23, 0, NULL, 1e-5), "last 0 dims", "[2, 3]");
    NO(fl_rms_norm, (o.f23, 1, o.f4, 1e-5), "[2, 3]", "[4]");
    NO(fl_group_norm, (NULL, 1, NULL, NULL, 1e-5), NULLS);
    NO(fl_group_norm, (o.f23, 2, NULL, NULL, 1e-5), "2 groups", "[2, 3]");
    NO(fl_group_norm, (o.f23, 1, o.f4, NULL, 1e-5), "[2, 3]", "[4]");
    NO(fl_instance_norm, (NULL, NULL, NULL, 1e-5), NULLS);
    NO(fl_instance_norm, (o.f4, NULL, NULL, 1e-5), "[4]");
    NO(fl_instance_norm, (o.f23, NULL, o.f4, 1e-5), "[2, 3]", "[4]");
    NO(fl_batch_norm_opt, (NULL, NULL, NULL, norm), NULLS);
    NO(fl_batch_norm_opt, (o.f23, o.f4, NULL, norm), "[2, 3]", "[4]");
    NO(fl_batch_norm_opt, (o.f23, NULL, NULL, norm), "running mean");
    NO(fl_batch_norm_opt, (o.f23, NULL, NULL, counted), "batches must be i64 of shape []", "f32", "[4]");
    NO(fl_batch_norm_add_opt, (NULL, NULL, NULL, o.f23, train), NULLS);
    NO(fl_batch_norm_add_opt, (o.f23, NULL, NULL, NULL, train), NULLS);
    NO(fl_batch_norm_add_opt, (o.f23, NULL, NULL, o.f34, train), "[2, 3]", "[3, 4]");
    NO(fl_batch_norm_opt, (o.f23, NULL, NULL, other), "[2, 3]", "[4]");
    NO(fl_batch_norm_opt, (fl_reshape(o.f4, FL_SHAPE(1, 4)), NULL, NULL, train),
       "1 values per channel");
    NO(fl_local_response_norm, (NULL, 1, 1, 1, 1), NULLS);
    NO(fl_local_response_norm, (o.f23, 0, 1, 1, 1), "size 0");
    NO(fl_local_response_norm, (o.f4, 3, 1, 1, 1), "[4]");
    NO(fl_normalize, (NULL, 2, 0, 1e-12), NULLS);
    NO(fl_weight_norm, (NULL, o.f23, 0), NULLS);
    NO(fl_weight_norm, (o.f23, NULL, 0), NULLS);
    NO(fl_weight_norm, (o.f23, o.f23, 2), "axis 2", "[2, 3]");
    NO(fl_cosine_similarity, (NULL, o.f23, 0, 1e-8), NULLS);
    NO(fl_cosine_similarity, (o.f23, NULL, 0, 1e-8), NULLS);
    NO(fl_pairwise_distance, (NULL, o.f23, 2, 1e-6), NULLS);
    NO(fl_pairwise_distance, (o.f23, NULL, 2, 1e-6), NULLS);
    NO(fl_embedding, (NULL, o.f23, -1), NULLS);
    NO(fl_embedding, (o.i23, NULL, -1), NULLS);
    NO(fl_embedding, (o.i23, o.f4, -1), "[2, 3]", "[4]");
    NO(fl_embedding_bag, (NULL, o.f23, true), NULLS);
    NO(fl_embedding_bag, (o.i23, NULL, true), NULLS);
    NO(fl_embedding_bag, (fl_zeros(FL_SCALAR_SHAPE, FL_I64), o.f23, true), "[]");
    const fl_attention_opts exact = {.causal = false}, lossy = {.dropout = 1.5};
    NO_AS(fl_attention_opt, "fl_attention", (NULL, o.f23, o.f23, exact), NULLS);
    NO_AS(fl_attention_opt, "fl_attention", (o.f23, NULL, o.f23, exact), NULLS);
    NO_AS(fl_attention_opt, "fl_attention", (o.f23, o.f23, NULL, exact), NULLS);
    NO_AS(fl_attention_opt, "fl_attention", (o.f23, o.f34, o.f23, exact), "[2, 3]", "[3, 4]");
    NO_AS(fl_attention_opt, "fl_attention", (o.f23, o.f23, o.f23, lossy), "1.5");
    NO_AS(fl_attention_opt, "fl_attention", (o.f23, o.f23, o.f23, (fl_attention_opts){.offset = -1}),
          "offset -1");
    NO_AS(fl_attention_opt, "fl_attention", (o.f23, o.f23, o.f23, (fl_attention_opts){.window = -2}),
          "window -2");
    NO_AS(fl_attention_opt, "fl_attention",
          (o.f23, o.f23, o.f23, (fl_attention_opts){.softcap = (double)NAN}),
          "softcap nan");
    NO_AS(fl_attention_packed_opt, "fl_attention_packed", (NULL, exact), NULLS);
    NO_AS(fl_attention_packed_opt, "fl_attention_packed", (o.f23, exact), "[2, 3]", "[3, ..., n, d]");
    NO_AS(fl_rotary_opt, "fl_rotary", (NULL, (fl_rotary_opts){0}), NULLS);
    NO_AS(fl_rotary_opt, "fl_rotary", (o.f23, (fl_rotary_opts){0}), "[2, 3]", "dim 3", "[..., t, d]");
    NO_AS(fl_rotary_opt, "fl_rotary", (o.f23, (fl_rotary_opts){.dim = 4}), "dim 4");
    NO_AS(fl_rotary_opt, "fl_rotary", (o.f34, (fl_rotary_opts){.base = -1}), "base -1");
    NO_AS(fl_rotary_opt, "fl_rotary", (o.f34, (fl_rotary_opts){.offset = -3}), "offset -3");
    NO_AS(fl_rotary_opt, "fl_rotary", (o.f34, (fl_rotary_opts){.kind = FL_ROTARY_YARN}), "trained for 0");
    NO(fl_length_mask, (NULL, 3), NULLS);
    NO(fl_length_mask, (o.f23, 3), "[2, 3]", "i64 [batch]");
    NO(fl_alibi, (0, 2, 2, 0), "0 heads");
    NO(fl_alibi, (2, 2, -1, 0), "-1 keys");
    NO(fl_relative_buckets, (2, 2, 0, 1, 8, true), "1 buckets up to 8");
    NO(fl_relative_buckets, (2, 2, 0, 16, 4, false), "16 buckets up to 4");
    NO(fl_relative_buckets, (-2, 2, 0, 16, 40, false), "-2 queries");
    NO_AS(fl_relative_scores, "fl_relative_scores", (NULL, o.f23, 2, 0), NULLS);
    NO_AS(fl_relative_scores, "fl_relative_scores", (o.f23, NULL, 2, 0), NULLS);
    NO_AS(fl_relative_scores, "fl_relative_scores", (o.f23, o.f23, 2, 0), "table [2, 3]", "[2 c - 1, d]");
    const fl_kl_div_opts kl = {0};
    const fl_poisson_nll_loss_opts poisson = {0};
    const fl_gaussian_nll_loss_opts gauss = {0};
    const fl_triplet_margin_loss_opts triplet = {0};
    const fl_multi_margin_loss_opts margins = {0};
    const fl_binary_cross_entropy_opts bce = {0}, weight = {.weight = o.f4}, positive = {.pos_weight = o.f4};
    NO(fl_mse_loss, (NULL, o.f23, FL_MEAN), NULLS);
    NO(fl_mse_loss, (o.f23, NULL, FL_MEAN), NULLS);
    NO(fl_mse_loss, (o.f23, o.f34, FL_SUM), "[2, 3]", "[3, 4]");
    NO(fl_l1_loss, (NULL, o.f23, FL_MEAN), NULLS);
    NO(fl_l1_loss, (o.f23, NULL, FL_MEAN), NULLS);
    NO(fl_l1_loss, (o.f23, o.f34, FL_SUM), "[2, 3]", "[3, 4]");
    NO(fl_huber_loss, (NULL, o.f23, 1, FL_MEAN), NULLS);
    NO(fl_huber_loss, (o.f23, NULL, 1, FL_MEAN), NULLS);
    NO(fl_huber_loss, (o.f23, o.f34, 1, FL_SUM), "[2, 3]", "[3, 4]");
    NO(fl_smooth_l1_loss, (NULL, o.f23, 1, FL_MEAN), NULLS);
    NO(fl_smooth_l1_loss, (o.f23, NULL, 1, FL_MEAN), NULLS);
    NO(fl_smooth_l1_loss, (o.f23, o.f34, 1, FL_SUM), "[2, 3]", "[3, 4]");
    NO_AS(fl_binary_cross_entropy_opt, "fl_binary_cross_entropy", (NULL, o.f23, FL_MEAN, bce), NULLS);
    NO_AS(fl_binary_cross_entropy_opt, "fl_binary_cross_entropy", (o.f23, NULL, FL_MEAN, bce), NULLS);
    NO_AS(fl_binary_cross_entropy_opt, "fl_binary_cross_entropy", (o.f23, o.f34, FL_SUM, bce), "[2, 3]",
          "[3, 4]");
    NO_AS(fl_binary_cross_entropy_opt, "fl_binary_cross_entropy", (o.f23, o.f23, FL_SUM, weight),
          "weight [4]", "[2, 3]");
    NO_AS(fl_binary_cross_entropy_with_logits_opt, "fl_binary_cross_entropy_with_logits",
          (NULL, o.f23, FL_MEAN, bce), NULLS);
    NO_AS(fl_binary_cross_entropy_with_logits_opt, "fl_binary_cross_entropy_with_logits",
          (o.f23, NULL, FL_MEAN, bce), NULLS);
    NO_AS(fl_binary_cross_entropy_with_logits_opt, "fl_binary_cross_entropy_with_logits",
          (o.f23, o.f34, FL_SUM, bce), "[2, 3]", "[3, 4]");
    NO_AS(fl_binary_cross_entropy_with_logits_opt, "fl_binary_cross_entropy_with_logits",
          (o.f23, o.f23, FL_SUM, positive), "pos_weight [4]", "[2, 3]");
    NO_AS(fl_kl_div_opt, "fl_kl_div", (NULL, o.f23, FL_MEAN, kl), NULLS);
    NO_AS(fl_kl_div_opt, "fl_kl_div", (o.f23, NULL, FL_MEAN, kl), NULLS);
    NO_AS(fl_kl_div_opt, "fl_kl_div", (o.f23, o.f34, FL_SUM, kl), "[2, 3]", "[3, 4]");
    NO(fl_soft_margin_loss, (NULL, o.f23, FL_MEAN), NULLS);
    NO(fl_soft_margin_loss, (o.f23, NULL, FL_MEAN), NULLS);
    NO(fl_soft_margin_loss, (o.f23, o.f34, FL_SUM), "[2, 3]", "[3, 4]");
    NO(fl_hinge_embedding_loss, (NULL, o.f23, 1, FL_MEAN), NULLS);
    NO(fl_hinge_embedding_loss, (o.f23, NULL, 1, FL_MEAN), NULLS);
    NO(fl_hinge_embedding_loss, (o.f23, o.f34, 1, FL_SUM), "[2, 3]", "[3, 4]");
    NO_AS(fl_poisson_nll_loss_opt, "fl_poisson_nll_loss", (NULL, o.f23, true, FL_MEAN, poisson), NULLS);
    NO_AS(fl_poisson_nll_loss_opt, "fl_poisson_nll_loss",
          (o.f23, o.f34, true, FL_MEAN, poisson), "[2, 3]", "[3, 4]");
    NO_AS(fl_gaussian_nll_loss_opt, "fl_gaussian_nll_loss", (o.f23, o.f23, NULL, FL_MEAN, gauss), NULLS);
    NO_AS(fl_gaussian_nll_loss_opt, "fl_gaussian_nll_loss",
          (o.f23, o.f23, o.f34, FL_MEAN, gauss), "[2, 3]", "[3, 4]");
    NO(fl_margin_ranking_loss, (o.f23, NULL, o.f23, 0, FL_MEAN), NULLS);
    NO(fl_margin_ranking_loss, (o.f23, o.f23, o.f34, 0, FL_MEAN), "[2, 3]", "[3, 4]");
    NO(fl_cosine_embedding_loss, (o.f23, o.f23, NULL, 0, FL_MEAN), NULLS);
    NO(fl_cosine_embedding_loss, (o.f23, o.f34, o.f23, 0, FL_MEAN), "[2, 3]", "[3, 4]");
    NO_AS(fl_triplet_margin_loss_opt, "fl_triplet_margin_loss",
          (NULL, o.f23, o.f23, 0, FL_MEAN, triplet), NULLS);
    NO_AS(fl_triplet_margin_loss_opt, "fl_triplet_margin_loss",
          (o.f23, o.f23, o.f34, 0, FL_MEAN, triplet), "[2, 3]", "[3, 4]");
    NO_AS(fl_multi_margin_loss_opt, "fl_multi_margin_loss", (NULL, o.index, 1, FL_MEAN, margins), NULLS);
    NO_AS(fl_multi_margin_loss_opt, "fl_multi_margin_loss", (o.f23, NULL, 1, FL_MEAN, margins), NULLS);
    NO_AS(fl_kl_div_opt, "fl_kl_div",
          (o.f23, o.f23, FL_SUM, (fl_kl_div_opts){.batch_mean = true}), "FL_MEAN");
    NO_AS(fl_poisson_nll_loss_opt, "fl_poisson_nll_loss",
          (o.f23, o.f23, true, FL_SUM, (fl_poisson_nll_loss_opts){.eps = -1}), "at least 0, got -1");
    NO_AS(fl_gaussian_nll_loss_opt, "fl_gaussian_nll_loss",
          (o.f23, o.f23, o.f23, FL_SUM, (fl_gaussian_nll_loss_opts){.eps = FL_ZERO}), "above 0, got -0");
    NO_AS(fl_multi_margin_loss_opt, "fl_multi_margin_loss",
          (o.f23, o.index, 1, FL_MEAN, (fl_multi_margin_loss_opts){.p = 3}), "p must be 1 or 2, got 3");
    NO_AS(fl_multi_margin_loss_opt, "fl_multi_margin_loss",
          (o.f23, fl_select(o.index, 1, 0), 1, FL_MEAN, (fl_multi_margin_loss_opts){.weight = o.f4}),
          "expected floats [3]");
    NO_AS(fl_multi_margin_loss_opt, "fl_multi_margin_loss",
          (o.f23, o.index, 1, FL_MEAN, margins), "[2, 3]", "[2, 1]");
    NO_AS(fl_multi_margin_loss_opt, "fl_multi_margin_loss",
          (o.f4, fl_select(o.index, 1, 0), 1, FL_MEAN, margins), "input [4], target [2]");
    NO(fl_rnn_tanh_cell, (NULL, o.f23, w), NULLS);
    NO(fl_rnn_tanh_cell, (o.f23, NULL, w), NULLS);
    NO(fl_rnn_tanh_cell, (o.f23, o.f23, NULL), NULLS);
    NO(fl_rnn_tanh_cell, (o.f23, o.f23, none), NULLS);
    NO(fl_rnn_tanh_cell, (o.f23, o.f23, w), "[2, 3]", "[3, 4]");
    NO(fl_rnn_relu_cell, (NULL, o.f23, w), NULLS);
    NO(fl_rnn_relu_cell, (o.f23, NULL, w), NULLS);
    NO(fl_rnn_relu_cell, (o.f23, o.f23, NULL), NULLS);
    NO(fl_rnn_relu_cell, (o.f23, o.f23, none), NULLS);
    NO(fl_rnn_relu_cell, (o.f23, o.f23, w), "[2, 3]", "[3, 4]");
    NO(fl_gru_cell, (NULL, o.f23, w), NULLS);
    NO(fl_gru_cell, (o.f23, NULL, w), NULLS);
    NO(fl_gru_cell, (o.f23, o.f23, NULL), NULLS);
    NO(fl_gru_cell, (o.f23, o.f23, none), NULLS);
    NO(fl_gru_cell, (o.f23, o.f23, w), "[2, 3]", "[3, 4]");
    NO(fl_lstm_cell, (NULL, o.f23, o.f23, w, NULL), NULLS);
    NO(fl_lstm_cell, (o.f23, o.f23, NULL, w, NULL), NULLS);
    NO(fl_lstm_cell, (o.f23, o.f23, o.f34, w, NULL), "[2, 3]", "[3, 4]");
    NO(fl_lstm_cell, (o.f23, o.f23, o.f23, w, NULL), "do not fit");
    const fl_rnn_opts once = {0}, many = {.layers = -1}, lossy_rnn = {.dropout = 2},
                      narrow = {.projected = true};
    fl_tensor *const steps = fl_zeros(FL_SHAPE(3, 2, 5), FL_F32);
    fl_tensor *const lstm[] = {fl_zeros(FL_SHAPE(8, 5), FL_F32), fl_zeros(FL_SHAPE(8, 2), FL_F32),
                               fl_zeros(FL_SHAPE(8), FL_F32), fl_zeros(FL_SHAPE(8), FL_F32)};
    fl_tensor *const half[] = {lstm[0], lstm[1], lstm[2], NULL}, *const few[] = {lstm[1], lstm[1], NULL,
                                                                                 NULL};
    fl_tensor *const state = fl_zeros(FL_SHAPE(2, 2, 2), FL_F32);
    const fl_rnn_opts h_only = {.h0 = state}, c_only = {.c0 = state}, other_dtype = {.lengths = o.f4};
    const fl_rnn_opts none_left = {.lengths = fl_from_host((int64_t[]){3, 0}, FL_SHAPE(2), FL_I64)};
    const fl_rnn_opts beyond = {.lengths = fl_from_host((int64_t[]){4, 1}, FL_SHAPE(2), FL_I64)};
    const fl_rnn_opts too_many = {.lengths = fl_from_host((int64_t[]){3, 1, 2}, FL_SHAPE(3), FL_I64)};
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, NULL, lstm, once), NULLS);
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, steps, NULL, once), NULLS);
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, steps, none, once), NULLS);
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, o.f23, lstm, once), "[2, 3]", "[t, n, in]");
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, steps, lstm, many), "-1 layers");
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, steps, lstm, lossy_rnn), "dropout 2");
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_GRU, steps, lstm, narrow), "projected");
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_GRU, steps, lstm, once), "[8, 2]", "3 gates");
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, steps, lstm, narrow), "projected to fewer");
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, steps, half, once), "all biases");
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, steps, few, once), "[8, 2]", "[8, 5]");
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, steps, lstm, h_only), "h0 [2, 2, 2]", "[1, 2, 2]");
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, steps, lstm, c_only), "c0 [2, 2, 2]", "[1, 2, 2]");
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, steps, lstm, other_dtype), "f32 [4]", "i64 [2]");
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, steps, lstm, too_many), "i64 [3]", "i64 [2]");
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, steps, lstm, none_left), "sequence 1 has 0 steps");
    NO_AS(fl_rnn_opt, "fl_rnn", (FL_LSTM, steps, lstm, beyond), "sequence 0 has 4 steps, expected 1 to 3");
    fl_tensor *two = fl_zeros(FL_SHAPE(2), FL_I64), *seven = fl_full(FL_SHAPE(2), 7, FL_I64);
    const fl_ctc_loss_opts plain = {0}, fifth = {.blank = 4};
    fl_tensor *cube = fl_ones(FL_SHAPE(3, 2, 4), FL_F32);
    NO(fl_ctc_loss_opt, (NULL, o.i23, two, two, plain), NULLS);
    NO(fl_ctc_loss_opt, (cube, NULL, two, two, plain), NULLS);
    NO(fl_ctc_loss_opt, (cube, o.i23, NULL, two, plain), NULLS);
    NO(fl_ctc_loss_opt, (cube, o.i23, two, NULL, plain), NULLS);
    NO(fl_ctc_loss_opt, (o.f23, o.i23, two, two, plain), "[2, 3]");
    NO(fl_ctc_loss_opt, (cube, o.i23, two, two, fifth), "blank 4 of 4 classes");
    NO_AS(fl_ctc_loss_opt, "fl_ctc_loss", (cube, o.i23, two, seven, plain), "out of range");
}

static void rows_of_var_nets(void) {
    fl_var *const w[4] = {o.v34, o.v23}, *const none[4] = {0};
    const fl_batch_norm_opts norm = {0}, train = {.train = true}, other = {.mean = o.f4};
    NO(fv_layer_norm, (NULL, 1, NULL, NULL, 1e-5), NULLS);
    NO(fv_layer_norm, (o.v23, 3, NULL, NULL, 1e-5), "last 3 dims", "[2, 3]");
    NO(fv_layer_norm, (o.v23, 1, o.v4, NULL, 1e-5), "[2, 3]", "[4]");
    NO(fv_layer_norm, (o.v23, 1, NULL, o.v4, 1e-5), "[2, 3]", "[4]");
    NO(fv_rms_norm, (NULL, 1, NULL, 1e-5), NULLS);
    NO(fv_rms_norm, (o.v23, 0, NULL, 1e-5), "last 0 dims", "[2, 3]");
    NO(fv_rms_norm, (o.v23, 1, o.v4, 1e-5), "[2, 3]", "[4]");
    NO(fv_group_norm, (NULL, 1, NULL, NULL, 1e-5), NULLS);
    NO(fv_group_norm, (o.v23, 2, NULL, NULL, 1e-5), "2 groups", "[2, 3]");
    NO(fv_group_norm, (o.v23, 1, o.v4, NULL, 1e-5), "[2, 3]", "[4]");
    NO(fv_instance_norm, (NULL, NULL, NULL, 1e-5), NULLS);
    NO(fv_instance_norm, (o.v4, NULL, NULL, 1e-5), "[4]");
    NO(fv_instance_norm, (o.v23, NULL, o.v4, 1e-5), "[2, 3]", "[4]");
    NO(fv_batch_norm_opt, (NULL, NULL, NULL, norm), NULLS);
    NO(fv_batch_norm_opt, (o.v23, o.v4, NULL, norm), "[2, 3]", "[4]");
    NO(fv_batch_norm_opt, (o.v23, NULL, NULL, norm), "running mean");
    NO(fv_batch_norm_add_opt, (NULL, NULL, NULL, o.v23, train), NULLS);
    NO(fv_batch_norm_add_opt, (o.v23, NULL, NULL, NULL, train), NULLS);
    NO(fv_batch_norm_add_opt, (o.v23, NULL, NULL, o.v34, train), "[2, 3]", "[3, 4]");
    NO(fv_batch_norm_opt, (o.v23, NULL, NULL, other), "[2, 3]", "[4]");
    NO(fv_batch_norm_opt, (fv_reshape(o.v4, FL_SHAPE(1, 4)), NULL, NULL, train),
       "1 values per channel");
    NO(fv_local_response_norm, (NULL, 1, 1, 1, 1), NULLS);
    NO(fv_local_response_norm, (o.v23, 0, 1, 1, 1), "size 0");
    NO(fv_local_response_norm, (o.v4, 3, 1, 1, 1), "[4]");
    NO(fv_normalize, (NULL, 2, 0, 1e-12), NULLS);
    NO(fv_weight_norm, (NULL, o.v23, 0), NULLS);
    NO(fv_weight_norm, (o.v23, NULL, 0), NULLS);
    NO(fv_weight_norm, (o.v23, o.v23, 2), "axis 2", "[2, 3]");
    NO(fv_cosine_similarity, (NULL, o.v23, 0, 1e-8), NULLS);
    NO(fv_cosine_similarity, (o.v23, NULL, 0, 1e-8), NULLS);
    NO(fv_pairwise_distance, (NULL, o.v23, 2, 1e-6), NULLS);
    NO(fv_pairwise_distance, (o.v23, NULL, 2, 1e-6), NULLS);
    NO(fv_embedding, (NULL, o.v23, -1), NULLS);
    NO(fv_embedding, (o.i23, NULL, -1), NULLS);
    NO(fv_embedding, (o.i23, o.v4, -1), "[2, 3]", "[4]");
    NO(fv_embedding_bag, (NULL, o.v23, true), NULLS);
    NO(fv_embedding_bag, (o.i23, NULL, true), NULLS);
    NO(fv_embedding_bag, (fl_zeros(FL_SCALAR_SHAPE, FL_I64), o.v23, true), "[]");
    const fv_attention_opts exact = {.causal = false}, lossy = {.dropout = 1.5};
    NO_AS(fv_attention_opt, "fv_attention", (NULL, o.v23, o.v23, exact), NULLS);
    NO_AS(fv_attention_opt, "fv_attention", (o.v23, NULL, o.v23, exact), NULLS);
    NO_AS(fv_attention_opt, "fv_attention", (o.v23, o.v23, NULL, exact), NULLS);
    NO_AS(fv_attention_opt, "fv_attention", (o.v23, o.v34, o.v23, exact), "[2, 3]", "[3, 4]");
    NO_AS(fv_attention_opt, "fl_attention", (o.v23, o.v23, o.v23, lossy), "1.5");
    NO_AS(fv_attention_opt, "fl_attention", (o.v23, o.v23, o.v23, (fv_attention_opts){.offset = -1}),
          "offset -1");
    NO_AS(fv_attention_opt, "fl_attention", (o.v23, o.v23, o.v23, (fv_attention_opts){.window = -2}),
          "window -2");
    NO_AS(fv_attention_opt, "fl_attention",
          (o.v23, o.v23, o.v23, (fv_attention_opts){.softcap = (double)NAN}),
          "softcap nan");
    NO_AS(fv_attention_packed_opt, "fv_attention_packed", (NULL, exact), NULLS);
    NO_AS(fv_attention_packed_opt, "fl_attention_packed", (o.v23, exact), "[2, 3]", "[3, ..., n, d]");
    NO_AS(fv_rotary_opt, "fv_rotary", (NULL, (fl_rotary_opts){0}), NULLS);
    NO_AS(fv_rotary_opt, "fl_rotary", (o.v23, (fl_rotary_opts){0}), "[2, 3]");
    NO_AS(fv_relative_scores, "fv_relative_scores", (NULL, o.v23, 2, 0), NULLS);
    NO_AS(fv_relative_scores, "fl_relative_scores", (o.v23, o.v23, 2, 0), "table [2, 3]");
    fl_var *packed = fv_const(fl_zeros(FL_SHAPE(3, 2, 2), FL_F32));
    NO_AS(fv_attention_packed_opt, "fl_attention", (packed, lossy), "1.5");
    const fl_kl_div_opts kl = {0};
    const fl_poisson_nll_loss_opts poisson = {0};
    const fl_gaussian_nll_loss_opts gauss = {0};
    const fl_triplet_margin_loss_opts triplet = {0};
    const fl_multi_margin_loss_opts margins = {0};
    const fl_binary_cross_entropy_opts bce = {0};
    NO(fv_mse_loss, (NULL, o.v23, FL_MEAN), NULLS);
    NO(fv_mse_loss, (o.v23, NULL, FL_MEAN), NULLS);
    NO(fv_mse_loss, (o.v23, o.v34, FL_SUM), "[2, 3]", "[3, 4]");
    NO(fv_l1_loss, (NULL, o.v23, FL_MEAN), NULLS);
    NO(fv_l1_loss, (o.v23, NULL, FL_MEAN), NULLS);
    NO(fv_l1_loss, (o.v23, o.v34, FL_SUM), "[2, 3]", "[3, 4]");
    NO(fv_huber_loss, (NULL, o.v23, 1, FL_MEAN), NULLS);
    NO(fv_huber_loss, (o.v23, NULL, 1, FL_MEAN), NULLS);
    NO(fv_huber_loss, (o.v23, o.v34, 1, FL_SUM), "[2, 3]", "[3, 4]");
    NO(fv_smooth_l1_loss, (NULL, o.v23, 1, FL_MEAN), NULLS);
    NO(fv_smooth_l1_loss, (o.v23, NULL, 1, FL_MEAN), NULLS);
    NO(fv_smooth_l1_loss, (o.v23, o.v34, 1, FL_SUM), "[2, 3]", "[3, 4]");
    NO(fv_binary_cross_entropy_opt, (NULL, o.v23, FL_MEAN, bce), NULLS);
    NO(fv_binary_cross_entropy_opt, (o.v23, NULL, FL_MEAN, bce), NULLS);
    NO(fv_binary_cross_entropy_opt, (o.v23, o.v34, FL_SUM, bce), "[2, 3]", "[3, 4]");
    NO(fv_binary_cross_entropy_with_logits_opt, (NULL, o.v23, FL_MEAN, bce), NULLS);
    NO(fv_binary_cross_entropy_with_logits_opt, (o.v23, NULL, FL_MEAN, bce), NULLS);
    NO(fv_binary_cross_entropy_with_logits_opt, (o.v23, o.v34, FL_SUM, bce), "[2, 3]", "[3, 4]");
    NO(fv_kl_div_opt, (NULL, o.v23, FL_MEAN, kl), NULLS);
    NO(fv_kl_div_opt, (o.v23, NULL, FL_MEAN, kl), NULLS);
    NO(fv_kl_div_opt, (o.v23, o.v34, FL_SUM, kl), "[2, 3]", "[3, 4]");
    NO(fv_soft_margin_loss, (NULL, o.v23, FL_MEAN), NULLS);
    NO(fv_soft_margin_loss, (o.v23, NULL, FL_MEAN), NULLS);
    NO(fv_soft_margin_loss, (o.v23, o.v34, FL_SUM), "[2, 3]", "[3, 4]");
    NO(fv_hinge_embedding_loss, (NULL, o.v23, 1, FL_MEAN), NULLS);
    NO(fv_hinge_embedding_loss, (o.v23, NULL, 1, FL_MEAN), NULLS);
    NO(fv_hinge_embedding_loss, (o.v23, o.v34, 1, FL_SUM), "[2, 3]", "[3, 4]");
    NO(fv_poisson_nll_loss_opt, (NULL, o.v23, true, FL_MEAN, poisson), NULLS);
    NO(fv_poisson_nll_loss_opt, (o.v23, o.v34, true, FL_MEAN, poisson), "[2, 3]", "[3, 4]");
    NO(fv_gaussian_nll_loss_opt, (o.v23, o.v23, NULL, FL_MEAN, gauss), NULLS);
    NO(fv_gaussian_nll_loss_opt, (o.v23, o.v23, o.v34, FL_MEAN, gauss), "[2, 3]", "[3, 4]");
    NO(fv_margin_ranking_loss, (o.v23, NULL, o.v23, 0, FL_MEAN), NULLS);
    NO(fv_margin_ranking_loss, (o.v23, o.v23, o.v34, 0, FL_MEAN), "[2, 3]", "[3, 4]");
    NO(fv_cosine_embedding_loss, (o.v23, o.v23, NULL, 0, FL_MEAN), NULLS);
    NO(fv_cosine_embedding_loss, (o.v23, o.v34, o.v23, 0, FL_MEAN), "[2, 3]", "[3, 4]");
    NO(fv_triplet_margin_loss_opt, (NULL, o.v23, o.v23, 0, FL_MEAN, triplet), NULLS);
    NO(fv_triplet_margin_loss_opt, (o.v23, o.v23, o.v34, 0, FL_MEAN, triplet), "[2, 3]", "[3, 4]");
    NO(fv_multi_margin_loss_opt, (NULL, o.index, 1, FL_MEAN, margins), NULLS);
    NO(fv_multi_margin_loss_opt, (o.v23, NULL, 1, FL_MEAN, margins), NULLS);
    NO(fv_multi_margin_loss_opt, (o.v23, o.index, 1, FL_MEAN, margins), "[2, 3]", "[2, 1]");
    NO(fv_rnn_tanh_cell, (NULL, o.v23, w), NULLS);
    NO(fv_rnn_tanh_cell, (o.v23, NULL, w), NULLS);
    NO(fv_rnn_tanh_cell, (o.v23, o.v23, NULL), NULLS);
    NO(fv_rnn_tanh_cell, (o.v23, o.v23, none), NULLS);
    NO(fv_rnn_tanh_cell, (o.v23, o.v23, w), "[2, 3]", "[3, 4]");
    NO(fv_rnn_relu_cell, (NULL, o.v23, w), NULLS);
    NO(fv_rnn_relu_cell, (o.v23, NULL, w), NULLS);
    NO(fv_rnn_relu_cell, (o.v23, o.v23, NULL), NULLS);
    NO(fv_rnn_relu_cell, (o.v23, o.v23, none), NULLS);
    NO(fv_rnn_relu_cell, (o.v23, o.v23, w), "[2, 3]", "[3, 4]");
    NO(fv_gru_cell, (NULL, o.v23, w), NULLS);
    NO(fv_gru_cell, (o.v23, NULL, w), NULLS);
    NO(fv_gru_cell, (o.v23, o.v23, NULL), NULLS);
    NO(fv_gru_cell, (o.v23, o.v23, none), NULLS);
    NO(fv_gru_cell, (o.v23, o.v23, w), "[2, 3]", "[3, 4]");
    NO(fv_lstm_cell, (NULL, o.v23, o.v23, w, NULL), NULLS);
    NO(fv_lstm_cell, (o.v23, o.v23, NULL, w, NULL), NULLS);
    NO(fv_lstm_cell, (o.v23, o.v23, o.v34, w, NULL), "[2, 3]", "[3, 4]");
    NO(fv_lstm_cell, (o.v23, o.v23, o.v23, w, NULL), "do not fit");
    const fv_rnn_opts once = {0}, many = {.layers = -1}, lossy_rnn = {.dropout = 2},
                      narrow = {.projected = true};
    fl_var *const steps = fv_const(fl_zeros(FL_SHAPE(3, 2, 5), FL_F32));
    fl_var *const lstm[] = {
        fv_const(fl_zeros(FL_SHAPE(8, 5), FL_F32)), fv_const(fl_zeros(FL_SHAPE(8, 2), FL_F32)),
        fv_const(fl_zeros(FL_SHAPE(8), FL_F32)), fv_const(fl_zeros(FL_SHAPE(8), FL_F32))};
    fl_var *const half[] = {lstm[0], lstm[1], lstm[2], NULL}, *const few[] = {lstm[1], lstm[1], NULL, NULL};
    fl_var *const state = fv_const(fl_zeros(FL_SHAPE(2, 2, 2), FL_F32));
    const fv_rnn_opts h_only = {.h0 = state}, c_only = {.c0 = state}, other_dtype = {.lengths = o.f4};
    const fv_rnn_opts none_left = {.lengths = fl_from_host((int64_t[]){3, 0}, FL_SHAPE(2), FL_I64)};
    const fv_rnn_opts beyond = {.lengths = fl_from_host((int64_t[]){4, 1}, FL_SHAPE(2), FL_I64)};
    const fv_rnn_opts too_many = {.lengths = fl_from_host((int64_t[]){3, 1, 2}, FL_SHAPE(3), FL_I64)};
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, NULL, lstm, once), NULLS);
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, steps, NULL, once), NULLS);
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, steps, none, once), NULLS);
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, o.v23, lstm, once), "[2, 3]", "[t, n, in]");
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, steps, lstm, many), "-1 layers");
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, steps, lstm, lossy_rnn), "dropout 2");
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_GRU, steps, lstm, narrow), "projected");
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_GRU, steps, lstm, once), "[8, 2]", "3 gates");
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, steps, lstm, narrow), "projected to fewer");
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, steps, half, once), "all biases");
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, steps, few, once), "[8, 2]", "[8, 5]");
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, steps, lstm, h_only), "h0 [2, 2, 2]", "[1, 2, 2]");
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, steps, lstm, c_only), "c0 [2, 2, 2]", "[1, 2, 2]");
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, steps, lstm, other_dtype), "f32 [4]", "i64 [2]");
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, steps, lstm, too_many), "i64 [3]", "i64 [2]");
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, steps, lstm, none_left), "sequence 1 has 0 steps");
    NO_AS(fv_rnn_opt, "fv_rnn", (FL_LSTM, steps, lstm, beyond), "sequence 0 has 4 steps, expected 1 to 3");
    fl_tensor *two = fl_zeros(FL_SHAPE(2), FL_I64), *seven = fl_full(FL_SHAPE(2), 7, FL_I64);
    const fl_ctc_loss_opts plain = {0}, fifth = {.blank = 4};
    fl_var *cube = fv_const(fl_ones(FL_SHAPE(3, 2, 4), FL_F32));
    NO(fv_ctc_loss_opt, (NULL, o.i23, two, two, plain), NULLS);
    NO(fv_ctc_loss_opt, (cube, NULL, two, two, plain), NULLS);
    NO(fv_ctc_loss_opt, (cube, o.i23, NULL, two, plain), NULLS);
    NO(fv_ctc_loss_opt, (cube, o.i23, two, NULL, plain), NULLS);
    NO(fv_ctc_loss_opt, (o.v23, o.i23, two, two, plain), "[2, 3]");
    NO(fv_ctc_loss_opt, (cube, o.i23, two, two, fifth), "blank 4 of 4 classes");
    NO_AS(fv_ctc_loss_opt, "fl_ctc_loss", (cube, o.i23, two, seven, plain), "out of range");
}

#endif /* MIT licence: see LICENSE. */
