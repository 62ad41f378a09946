/* errors_layers.h - rows of test_errors.c for the layers of fl/nn */
#ifndef ERRORS_LAYERS_H
#define ERRORS_LAYERS_H

/* A layer in a container, whose call must fail: what it says, and the layer's place. */
#define BAD_CALL(fn, made, x, ...) ROW(RAISES, #fn, !through(made, x), __VA_ARGS__)

/* The result of a module that is made for this call, on several inputs. */
static fl_var *through_all(fl_nn_module *m, fl_vars in) {
    fl_nn_module *volatile made = m;
    if (!made) return in.v[0];
    fl_quiet(+1);
    fl_var *y = fl_nn_forward_vars(made, in).v[0];
    fl_quiet(-1);
    fl_nn_free(made);
    return y ? y : fl_raise();
}

static void rows_of_sequences(void) {
    fl_rng rng = {1, 0};
    const fl_nn_conv_opts conv = {0};
    NO(fl_nn_conv1d_opt, (0, 4, 3, conv), "in 0");
    NO(fl_nn_conv1d_opt, (4, 4, -3, conv), "kernel [-3]");
    NO(fl_nn_conv1d_opt, (4, 4, 3, (fl_nn_conv_opts){.stride = -1}), "stride [-1]");
    NO(fl_nn_conv1d_opt, (4, 4, 3, (fl_nn_conv_opts){.groups = 3}), "by groups (3)");
    NO(fl_nn_conv1d_opt, (4, 4, 3, (fl_nn_conv_opts){.dtype = FL_I64}), "i64");
    BAD_CALL(fl_nn_conv1d_opt, fl_nn_conv1d(3, 4, 3, .rng = &rng), o.v23, "[2, 3]", "[n, 3, t]");
    NO_AS(fl_nn_adaptive_avg_pool2d, "fl_nn_adaptive_pool", (0, 3), "[0, 3]");
    ROW_OF(RAISES, "fl_nn_adaptive_avg_pool", "fl_nn_adaptive_pool '0'",
           !through(fl_nn_adaptive_avg_pool2d(2, 2), o.v23), "[2, 3]", "[n, c, h, w]");
    ROW_OF(RAISES, "fl_nn_glu", "GLU '0'", !through(fl_nn_glu(2), o.v23), "axis 2", "[2, 3]");
    ROW_OF(RAISES, "fl_nn_glu", "fl_glu", !through(fl_nn_glu(1), o.v23), "axis 1 has 3");
    BAD_CALL(fl_nn_transpose, fl_nn_transpose(0, -3), o.v23, "axis -3", "[2, 3]");
    NO(fl_nn_layer_drop_opt, (1.5, (fl_nn_dropout_opts){0}), "got 1.5");
    NO(fl_nn_drop_path_opt, ((double)NAN, (fl_nn_dropout_opts){0}), "nan");
    NO(fl_nn_rms_norm_opt, (FL_SCALAR_SHAPE, (fl_nn_layer_norm_opts){0}), "[]");
    NO(fl_nn_rms_norm_opt, (FL_SHAPE(3), (fl_nn_layer_norm_opts){.eps = -1}), "got [3] and -1");
    NO(fl_nn_add_norm, (NULL, NULL, NULL, NULL, NULL), NULLS);
    NO(fl_nn_add_norm, (NULL, NULL, NULL, o.v23, &(fl_var *){NULL}), NULLS);
    BAD_CALL(fl_nn_rms_norm_opt, fl_nn_rms_norm(FL_SHAPE(4)), o.v23, "[2, 3]", "[4]");
    NO(fl_nn_group_norm_opt, (2, 3, (fl_nn_layer_norm_opts){0}), "divisible by groups (2)");
    NO(fl_nn_group_norm_opt, (1, 3, (fl_nn_layer_norm_opts){.dtype = FL_U8}), "u8");
    BAD_CALL(fl_nn_group_norm_opt, fl_nn_group_norm(2, 4), o.v23, "[2, 3]", "[n, 4, ...]");
}

static void rows_of_convolutions(void) {
    fl_rng rng = {1, 0};
    const fl_nn_conv_opts plain = {0};
    NO(fl_nn_conv1d_opt, (2, 2, 3, (fl_nn_conv_opts){.causal = true, .pad = 1}), "pad 1");
    NO(fl_nn_conv1d_opt, (2, 2, 3, (fl_nn_conv_opts){.pad = FL_SAME, .pad_end = 2}), "2 at the end");
    NO(fl_nn_conv1d_opt, (2, 2, 3, (fl_nn_conv_opts){.pad_mode = (fl_pad_mode)9}), "mode 9");
    NO(fl_nn_conv1d_opt, (2, 2, 3, (fl_nn_conv_opts){.output_pad = 1}), "output_pad [1]");
    NO(fl_nn_conv3d_opt, (0, 2, 3, plain), "in 0");
    NO(fl_nn_conv3d_opt, (2, 2, 3, (fl_nn_conv_opts){.kernel_w = -1}), "kernel [3, 3, -1]");
    BAD_CALL(fl_nn_conv3d_opt, fl_nn_conv3d(2, 3, 1, .rng = &rng), o.image_v, "[1, 2, 4, 4]",
             "[n, 2, d, h, w]");
    NO(fl_nn_conv_transpose1d_opt, (2, 0, 3, plain), "out 0");
    NO(fl_nn_conv_transpose1d_opt, (2, 2, 3, (fl_nn_conv_opts){.pad_mode = FL_PAD_REFLECT}), "transposed");
    BAD_CALL(fl_nn_conv_transpose1d_opt, fl_nn_conv_transpose1d(3, 2, 2, .rng = &rng), o.v23, "[2, 3]",
             "[n, 3, t]");
    NO(fl_nn_conv_transpose2d_opt, (3, 2, 3, (fl_nn_conv_opts){.groups = 2}), "by groups (2)");
    NO(fl_nn_conv_transpose2d_opt, (2, 2, 0, plain), "kernel [0, 0]");
    ROW_OF(RAISES, "fl_nn_conv_transpose2d_opt", "fl_conv_transpose",
           !through(fl_nn_conv_transpose2d(2, 2, 2, .output_pad = 1, .rng = &rng), o.image_v),
           "output_pad 1");
    NO(fl_nn_conv_transpose3d_opt, (2, 2, 3, (fl_nn_conv_opts){.dtype = FL_I64}), "i64");
    NO(fl_nn_pool1d_opt, (0, (fl_nn_pool_opts){0}), "kernel 0");
    NO(fl_nn_pool1d_opt, (2, (fl_nn_pool_opts){.norm = -1}), "got -1");
    BAD_CALL(fl_nn_pool1d_opt, fl_nn_pool1d(2), o.v23, "[2, 3]", "[n, c, t]");
    NO(fl_nn_pool3d_opt, (2, (fl_nn_pool_opts){.stride = -2}), "stride -2");
    NO(fl_nn_pool3d_opt, (2, (fl_nn_pool_opts){.norm = 2, .average = true}), "got 2");
    NO(fl_nn_pool1d_opt, (2, (fl_nn_pool_opts){.average = true, .return_indices = true}), "for max pooling");
    BAD_CALL(fl_nn_pool3d_opt, fl_nn_pool3d(2), o.image_v, "[1, 2, 4, 4]", "[n, c, d, h, w]");
    NO_AS(fl_nn_adaptive_avg_pool, "fl_nn_adaptive_pool", (FL_SCALAR_SHAPE), "got []");
    NO_AS(fl_nn_adaptive_max_pool, "fl_nn_adaptive_pool", (FL_SHAPE(2, 0)), "got [2, 0]");
    ROW_OF(RAISES, "fl_nn_adaptive_max_pool", "fl_nn_adaptive_pool '0'",
           !through(fl_nn_adaptive_max_pool(FL_SHAPE(2)), o.v23), "[2, 3]");
    NO(fl_nn_conv1d_opt, (2, 2, 3, (fl_nn_conv_opts){.stride_w = 2}), "the layer of 1 spatial dims");
    NO(fl_nn_conv2d_opt, (2, 2, 3, (fl_nn_conv_opts){.kernel_h = 2}), "the layer of 2 spatial dims");
    NO(fl_nn_conv3d_opt, (2, 2, 3, (fl_nn_conv_opts){.causal = true}), "the layer of 3 spatial dims");
    NO(fl_nn_pool1d_opt, (2, (fl_nn_pool_opts){.pad_w = 1}), "got kernel 2, stride 0");
}

static void rows_of_plain_layers(void) {
    fl_rng rng = {1, 0};
    NO_AS(fl_nn_activation_axis, "fl_nn_activation", ("A", NULL, 0), "function is NULL");
    NO_AS(fl_nn_activation_1, "fl_nn_activation", ("A", "a", NULL, 0), "function is NULL");
    NO_AS(fl_nn_activation_2, "fl_nn_activation", ("A", "a, b", NULL, 0, 0), "function is NULL");
    ROW_OF(RAISES, "fl_nn_softmax", "Softmax '0'", !through(fl_nn_softmax(2), o.v23), "axis 2", "[2, 3]");
    ROW_OF(RAISES, "fl_nn_softmin", "Softmin '0'", !through(fl_nn_softmin(-3), o.v23), "axis -3");
    NO(fl_nn_hardtanh, (1, 0.5), "got 1 and 0.5");
    NO(fl_nn_rrelu, (0.5, 0.1, NULL), "got 0.5 and 0.1");
    NO(fl_nn_prelu_opt, (0, (fl_nn_prelu_opts){0}), "got 0");
    NO(fl_nn_prelu_opt, (2, (fl_nn_prelu_opts){.dtype = FL_I64}), "i64");
    BAD_CALL(fl_nn_prelu_opt, fl_nn_prelu(2), o.v23, "[2, 3]", "[n, 2, ...]");
    BAD_CALL(fl_nn_flatten, fl_nn_flatten(1, 4), o.v23, "axis 4", "[2, 3]");
    NO(fl_nn_permute, (FL_AXES(0, 0)), "2 axes");
    BAD_CALL(fl_nn_permute, fl_nn_permute(FL_AXES(2, 1, 0)), o.v23, "[2, 3]", "3 dims");
    NO(fl_nn_pad_opt, ((fl_pad_mode)7, (fl_pad_opts){0}), "mode 7");
    BAD_CALL(fl_nn_pad_opt, fl_nn_pad(FL_PAD_CONSTANT, .low = {0, 0, 1}), o.v23, "axis 2", "[2, 3]");
    NO(fl_nn_precision_cast, (FL_I64), "i64");
    NO(fl_nn_bilinear_opt, (2, 0, 3, (fl_nn_linear_opts){0}), "got 0");
    NO(fl_nn_bilinear_opt, (2, 2, 3, (fl_nn_linear_opts){.dtype = FL_I64}), "i64");
    ROW(RAISES, "fl_nn_bilinear_opt",
        !through_all(fl_nn_bilinear(3, 2, 4, .rng = &rng), FL_VARS(o.v23, o.v23)), "[2, 3] and [2, 3]",
        "[..., 3] and [..., 2]");
    NO(fl_nn_batch_norm1d_opt, (0, (fl_nn_batch_norm_opts){0}), "got 0, 0.1 and 1e-05");
    BAD_CALL(fl_nn_batch_norm1d_opt, fl_nn_batch_norm1d(2), o.v23, "[2, 3]", "[n, 2] or [n, c, t]");
    NO(fl_nn_batch_norm2d_opt, (2, (fl_nn_batch_norm_opts){.frozen = true, .no_affine = true}), "frozen");
    BAD_CALL(fl_nn_batch_norm3d_opt, fl_nn_batch_norm3d(2), o.image_v, "[1, 2, 4, 4]", "[n, 2, d, h, w]");
    NO(fl_nn_instance_norm_opt, (0, (fl_nn_instance_norm_opts){0}), "[0]");
    NO(fl_nn_instance_norm_opt, (3, (fl_nn_instance_norm_opts){.track = true, .momentum = 2}), "momentum");
    BAD_CALL(fl_nn_instance_norm_opt, fl_nn_instance_norm(3), o.v23, "[2, 3]", "[n, 3, t, ...]");
    BAD_CALL(fl_nn_instance_norm_opt, fl_nn_instance_norm(3, .track = true), fv_unsqueeze(o.v23, 2),
             "1 value per channel");
    NO(fl_nn_normalize_opt, (FL_AXES(1), (fl_nn_normalize_opts){.eps = -1}), "eps -1");
    BAD_CALL(fl_nn_normalize_opt, fl_nn_normalize(FL_AXES(1, 2)), o.v23, "axis 2", "[2, 3]");
    NO(fl_nn_weight_norm, (NULL, "weight", 0), NULLS);
}

/* A linear layer [3] -> [3] that is a stage of its own. */
static fl_nn_module *stage(void) { return fl_nn_linear(3, 3, .rng = &(fl_rng){1, 0}); }

static bool bad_shortcut(const char *from, const char *to, const char *name, bool project) {
    fl_nn_module *m = fl_nn_residual(stage(), fl_nn_relu());
    fl_quiet(+1);
    const bool ok = fl_nn_shortcut(m, from, to, name, project ? stage() : NULL);
    fl_quiet(-1);
    fl_nn_free(m);
    if (!ok) fl_raise();
    return ok;
}

static fl_nn_module *misfit(void) {
    fl_nn_module *m = fl_nn_residual(stage(), fl_nn_linear(3, 2, .rng = &(fl_rng){1, 0}));
    fl_nn_shortcut(m, "0", NULL, NULL, NULL);
    return m;
}

static void rows_of_containers(void) {
    NO_AS(fl_nn_module_list_of, "fl_nn_add", (1, &(fl_nn_module *){NULL}), NULLS);
    BAD_CALL(fl_nn_module_list_of, fl_nn_module_list(fl_nn_relu(), fl_nn_relu()), o.v23, "its 2 children");
    NO_AS(fl_nn_residual_of, "fl_nn_add", (1, &(fl_nn_module *){NULL}), NULLS);
    BAD_CALL(fl_nn_residual_of, misfit(), o.v23, "[2, 3] from stage 0", "[2, 2] at the result");
    ROW(RAISES, "fl_nn_shortcut", !bad_shortcut("2", NULL, NULL, false), "'2'", "Residual");
    ROW(RAISES, "fl_nn_shortcut", !bad_shortcut("1", "0", NULL, false), "from '1' to '0'");
    ROW(RAISES, "fl_nn_shortcut", !bad_shortcut("0", NULL, NULL, true), "the projection's name");
    ROW_OF(RAISES, "fl_nn_shortcut", "fl_nn_add", !bad_shortcut("0", NULL, "1", true),
           "already has a '1'");
    NO(fl_nn_shortcut, (NULL, NULL, NULL, NULL, NULL), NULLS);
    NO(fl_nn_weight_norm, (stage(), "bias", 0), "Linear", "'bias'");
    NO(fl_nn_weight_norm, (stage(), "weight", 2), "axis 2");
    NO(fl_nn_summary_opt, (NULL, FL_SHAPE(1), (fl_nn_summary_opts){0}), NULLS);
    NO_AS(fl_nn_summary_text, "fl_nn_summary", (NULL, FL_VARS(o.v23)), NULLS);
}

static void rows_of_embeddings(void) {
    fl_rng rng = {1, 0};
    const fl_nn_embedding_opts plain = {0};
    const fl_nn_position_opts position = {0};
    NO(fl_nn_embedding_opt, (0, 3, plain), "got 0, 3");
    NO(fl_nn_embedding_opt, (4, 3, (fl_nn_embedding_opts){.padding = 4}), "got 4, 3 and 4");
    NO(fl_nn_embedding_opt, (4, 3, (fl_nn_embedding_opts){.dtype = FL_I64}), "i64");
    BAD_CALL(fl_nn_embedding_opt, fl_nn_embedding(4, 3, .rng = &rng), o.v23, "f32 [2, 3]");
    ROW_OF(RAISES, "fl_nn_embedding_opt", "fl_nn_embedding '0': fl_embedding: ",
           !through(fl_nn_embedding(2, 3, .rng = &rng), o.vi), "size 2");
    NO(fl_nn_position_opt, (0, 3, position), "got 0 and 3");
    NO(fl_nn_position_opt, (2, 3, (fl_nn_position_opts){.dtype = FL_B8}), "b8");
    BAD_CALL(fl_nn_position_opt, fl_nn_position(5, 3, .rng = &rng), o.v23, "[2, 3]",
             "at most 5 steps");
    NO(fl_nn_sinusoid, (0, 1), "got 0");
    BAD_CALL(fl_nn_sinusoid, fl_nn_sinusoid(4, 0), o.v23, "[2, 3]", "[n, t, 4]");
}

static fl_var *one_sequence(void) { return fv_unsqueeze(o.v23, 0); }

/* n inputs for an attention of dim 3, the second longer than the others. */
static fl_vars sequences(int n) {
    fl_var *x = one_sequence(), *longer = fv_unsqueeze(fv_transpose(o.v34, 0, 1), 0);
    return (fl_vars){n, {x, longer, x, x, x}};
}

static fl_tensor *nines(void) { return fl_full(FL_SHAPE(2), 9, FL_I64); }

/* A step of more places than a cache of two has, or with what is missing. */
static bool step_of(bool module, bool cache) {
    fl_rng rng = {1, 0};
    fl_nn_module *m = fl_nn_attention(3, 1, .rng = &rng);
    if (!m) return true;
    fl_nn_cache *c = fl_nn_cache_new(m, 1, 1);
    fl_quiet(+1);
    fl_vars y = fl_nn_forward_cached(module ? m : NULL, sequences(1), cache ? c : NULL);
    fl_quiet(-1);
    fl_nn_cache_free(c);
    fl_nn_free(m);
    return y.n || fl_raise();
}

/* The same of what is done with a cache that has no place. */
static bool with_cache(int what) {
    fl_rng rng = {1, 0};
    fl_nn_module *m = fl_nn_attention(3, 1, .rng = &rng);
    fl_nn_cache *c = m ? fl_nn_cache_new(m, 1, 1) : NULL;
    if (!c) return true;
    fl_quiet(+1);
    const bool ok = what == 0 ? fl_nn_cache_rewind(c, 1) : what == 1 ? fl_nn_cache_reorder(c, o.f23)
                                                                       : fl_nn_cache_reorder(c, NULL);
    fl_quiet(-1);
    fl_nn_cache_free(c);
    fl_nn_free(m);
    return ok || fl_raise();
}

static void rows_of_caches(void) {
    const fl_nn_cache_opts plain = {0};
    NO_AS(fl_nn_cache_new_opt, "fl_nn_cache_new", (NULL, 1, 1, plain), NULLS);
    ROW(RAISES, "fl_nn_forward_cached", !step_of(false, true), "module is NULL");
    ROW(RAISES, "fl_nn_forward_cached", !step_of(true, false), "cache is NULL");
    ROW_OF(RAISES, "fl_nn_forward_cached", "fl_nn_attention", !step_of(true, true),
           "1 sequences of 1 positions", "no space");
    FINE(fl_nn_cached_position, fl_nn_cached_position() == 0);
    NO(fl_nn_cache_rewind, (NULL, 0), NULLS);
    ROW(RAISES, "fl_nn_cache_rewind", !with_cache(0), "got 1");
    NO(fl_nn_cache_reset, (NULL), NULLS);
    NO(fl_nn_cache_reorder, (NULL, o.f23), NULLS);
    ROW(RAISES, "fl_nn_cache_reorder", !with_cache(1), "got [2, 3]");
    ROW(RAISES, "fl_nn_cache_reorder", !with_cache(2), NULLS);
}

static void rows_of_attention(void) {
    const fl_nn_attention_opts plain = {0};
    fl_rng rng = {1, 0};
    NO(fl_nn_attention_opt, (6, 4, plain), "dim (6) is not divisible by heads (4)");
    NO(fl_nn_attention_opt, (6, 2, (fl_nn_attention_opts){.dropout = 2}), "got 2");
    NO(fl_nn_attention_opt, (6, 2, (fl_nn_attention_opts){.kdim = -4}), "got -4 and 0");
    NO(fl_nn_attention_opt, (6, 2, (fl_nn_attention_opts){.zero_attn = true, .window = 2}), "window");
    ROW(RAISES, "fl_nn_attention_opt",
        !through_all(fl_nn_attention(3, 1, .vdim = 2, .rng = &rng), sequences(1)),
        "1 inputs", "q, k and v");
    NO(fl_nn_attention_opt, (6, 2, (fl_nn_attention_opts){.dtype = FL_I64}), "i64");
    NO(fl_nn_attention_opt, (6, 2, (fl_nn_attention_opts){.n_kv_heads = 3}), "by n_kv_heads (3)");
    NO(fl_nn_attention_opt, (6, 2, (fl_nn_attention_opts){.window = -1}), "window -1");
    NO(fl_nn_attention_opt, (6, 2, (fl_nn_attention_opts){.softcap = (double)NAN}), "softcap nan");
    NO(fl_nn_attention_opt, (6, 2, (fl_nn_attention_opts){.relative = -1}), "relative -1");
    NO(fl_nn_attention_opt, (6, 2, (fl_nn_attention_opts){.buckets = 3}), "buckets 3, max_distance 128");
    BAD_CALL(fl_nn_attention_opt, fl_nn_attention(4, 2, .rng = &rng), o.v23, "[2, 3]", "[n, t, 4]");
    NO_AS(fl_nn_transformer_decoder_opt, "fl_nn_attention", (6, 4, 8, (fl_nn_transformer_opts){0}),
          "dim (6) is not divisible by heads (4)");
    ROW(RAISES, "fl_nn_transformer_decoder_opt",
        !through_all(fl_nn_transformer_decoder(3, 1, 2, .rng = &rng), sequences(1)),
        "got 1 inputs, expected 2 to 4");
    ROW(RAISES, "fl_nn_attention_opt",
        !through_all(fl_nn_attention(3, 1, .rng = &rng), sequences(5)), "5 inputs");
    ROW(RAISES, "fl_nn_attention_opt",
        !through_all(fl_nn_attention(3, 1, .rng = &rng), sequences(3)), "[1, 2, 3]", "[1, 4, 3]");
    NO_AS(fl_nn_transformer_opt, "fl_nn_attention", (6, 4, 8, (fl_nn_transformer_opts){0}),
          "by heads (4)");
    NO_AS(fl_nn_transformer_opt, "fl_nn_linear", (6, 2, 0, (fl_nn_transformer_opts){.rng = &rng}),
          "got 6 and 0");
    NO_AS(fl_nn_transformer_opt, "fl_nn_drop_path",
          (6, 2, 8, (fl_nn_transformer_opts){.drop_path = 2, .rng = &rng}), "got 2");
    ROW(RAISES, "fl_nn_transformer_opt",
        !through_all(fl_nn_transformer(3, 1, 2, .rng = &rng), sequences(3)),
        "got 3 inputs, expected 1 to 2");
}

/* n inputs for a recurrent layer of 3 numbers: x, two states of other shapes, lengths beyond the steps. */
static fl_vars to_recur(int n, bool lengths) {
    fl_var *x = one_sequence();
    return (fl_vars){n, {x, lengths && n == 2 ? fv_const(nines()) : x, x, x}};
}

static void rows_of_recurrence(void) {
    fl_rng rng = {1, 0};
    NO(fl_nn_rnn_opt, (0, 4, (fl_nn_rnn_opts){0}), "got in 0, hidden 4, layers 1, dropout 0");
    NO(fl_nn_rnn_opt, (3, 4, (fl_nn_rnn_opts){.layers = -1}), "got in 3, hidden 4, layers -1, dropout 0");
    NO(fl_nn_rnn_opt, (3, 4, (fl_nn_rnn_opts){.projection = 2}), "got 2 with hidden 4");
    NO(fl_nn_lstm_opt, (3, 4, (fl_nn_rnn_opts){.projection = 4}), "got 4 with hidden 4");
    NO(fl_nn_lstm_opt, (3, 4, (fl_nn_rnn_opts){.dropout = 2}), "dropout 2");
    NO(fl_nn_gru_opt, (3, 4, (fl_nn_rnn_opts){.dtype = FL_I64}), "i64");
    BAD_CALL(fl_nn_lstm_opt, fl_nn_lstm(4, 2, .rng = &rng), o.v23, "[2, 3]", "[n, t, in] with in = 4");
    BAD_CALL(fl_nn_gru_opt, fl_nn_gru(4, 2, .time_first = true, .rng = &rng), o.v23,
             "[t, n, in] with in = 4");
    ROW(RAISES, "fl_nn_lstm_opt", !through_all(fl_nn_lstm(3, 2, .rng = &rng), to_recur(2, false)),
        "got 2 inputs without lengths, expected x alone or with h0 and c0");
    ROW_OF(RAISES, "fl_nn_lstm_opt", "fl_rnn",
           !through_all(fl_nn_lstm(3, 2, .rng = &rng), to_recur(3, false)), "h0 [1, 2, 3]", "[1, 1, 2]");
    ROW_OF(RAISES, "fl_nn_gru_opt", "fl_rnn",
           !through_all(fl_nn_gru(3, 2, .rng = &rng), to_recur(2, true)), "lengths i64 [2]", "i64 [1]");
    ROW(RAISES, "fl_nn_gru_opt", !through_all(fl_nn_gru(3, 2, .rng = &rng), to_recur(3, false)),
        "x alone or with h0");
}

static void rows_of_vocabularies(void) {
    const fl_shape cuts = FL_SHAPE(2, 4);
    const fl_nn_adaptive_opts plain = {0};
    fl_rng rng = {1, 0};
    NO(fl_nn_adaptive_embedding_opt, (8, FL_SHAPE(4, 2), plain), "[4, 2]");
    NO(fl_nn_adaptive_embedding_opt, (2, cuts, plain), "got dim 2, divide 4, cutoffs [2, 4]");
    NO(fl_nn_adaptive_embedding_opt, (8, cuts, (fl_nn_adaptive_opts){.dtype = FL_I64}), "i64");
    BAD_CALL(fl_nn_adaptive_embedding_opt, fl_nn_adaptive_embedding(8, cuts, .rng = &rng), o.v23,
             "f32");
    BAD_CALL(fl_nn_adaptive_embedding_opt, fl_nn_adaptive_embedding(8, cuts, .rng = &rng),
             fv_const(nines()), "2 words are out of range [0, 4)");
    NO(fl_nn_adaptive_softmax_opt, (8, FL_SCALAR_SHAPE, plain), "cutoffs []");
    NO(fl_nn_adaptive_softmax_opt, (8, cuts, (fl_nn_adaptive_opts){.divide = -1}), "divide -1");
    NO(fl_nn_adaptive_softmax_opt, (8, cuts, (fl_nn_adaptive_opts){.dtype = FL_U8}), "u8");
    ROW(RAISES, "fl_nn_adaptive_softmax_opt",
        !through_all(fl_nn_adaptive_softmax(4, cuts, .rng = &rng),
                     FL_VARS(o.v23, fv_const(nines()))),
        "[2, 3]", "[k, 4]");
    ROW(RAISES, "fl_nn_adaptive_softmax_opt",
        !through_all(fl_nn_adaptive_softmax(3, FL_SHAPE(2), .rng = &rng),
                     FL_VARS(o.v23, fv_const(o.f2))),
        "f32");
    ROW(RAISES, "fl_nn_adaptive_softmax_opt",
        !through_all(fl_nn_adaptive_softmax(3, FL_SHAPE(2), .rng = &rng),
                     FL_VARS(o.v23, fv_const(nines()))),
        "2 words are out of range [0, 2)");
}

static void rows_of_capsules(void) {
    fl_rng rng = {1, 0};
    NO(fl_nn_squash, (NULL), NULLS);
    NO(fl_nn_capsules_opt, (0, 2, 3, 4, (fl_nn_capsules_opts){0}), "got 0, 2, 3, 4 and 3");
    NO(fl_nn_capsules_opt, (1, 2, 3, 4, (fl_nn_capsules_opts){.rounds = -1}), "got 1, 2, 3, 4 and -1");
    NO(fl_nn_capsules_opt, (1, 2, 3, 4, (fl_nn_capsules_opts){.dtype = FL_I64}), "i64");
    BAD_CALL(fl_nn_capsules_opt, fl_nn_capsules(2, 3, 2, 2, .rng = &rng), o.v23, "[2, 3]",
             "[n, 2, 3]");
}

#endif /* MIT licence: see LICENSE. */
