/* parity_recurrent.h - the golden files' recurrent modules: lines for the table of parity.c */
#ifndef PARITY_RECURRENT_H
#define PARITY_RECURRENT_H

/* The inputs from `first` on stand in for the parameters, in their order. */
static void bind_in_order(parity_case *c, fl_nn_module *m, int first) {
    if (m && c->n_in - first != m->n_param) fl_fail("parity: %d parameters", (int)m->n_param);
    for (int i = first; m && i < c->n_in; i++) bind(c, m, m->param[i - first].name, i);
}

/* Inputs: x, the states if given, lengths if packed, the parameters. */
static int nn_recurrent(parity_case *c, fl_var **y) {
    const bool lstm = !strcmp(c->op, "nn_lstm"), gru = !strcmp(c->op, "nn_gru"), packed = INT("packed") != 0;
    const int first = 1 + (INT("given") ? 1 + lstm : 0) + packed, ways = INT("both") ? 2 : 1;
    const int64_t hidden = INT("hidden"), out = INT("proj"), layers = INT("layers");
    const int64_t weights = (c->n_in - first) / (layers * ways);
    const fl_nn_rnn_opts o = {.layers = (int)layers, .bidirectional = ways == 2, .relu = INT("relu") != 0,
                              .projection = out < hidden ? out : 0, .time_first = INT("time_first") != 0,
                              .no_bias = weights < 4, .dtype = T(0)->dtype};
    fl_nn_module *(*const make)(int64_t, int64_t, fl_nn_rnn_opts) = lstm  ? fl_nn_lstm_opt
                                                                   : gru ? fl_nn_gru_opt
                                                                         : fl_nn_rnn_opt;
    fl_nn_module *m = make(T(0)->shape[2], hidden, o);
    bind_in_order(c, m, first);
    fl_vars in = {.n = first};
    for (int i = 0; i < first; i++) in.v[i] = IN(i);
    const fl_vars results = m ? fl_nn_forward_vars(m, in) : (fl_vars){0};
    for (int i = 0; i < results.n; i++) y[i] = results.v[i];
    fl_nn_free(m);
    return 2 + lstm;
}

/* Inputs: x, lengths, classes, a linear layer's weight and bias, an LSTM's parameters. */
static int lstm_curve(parity_case *c, fl_var **y) {
    const fl_dtype d = T(0)->dtype;
    fl_nn_module *head = fl_nn_linear(T(3)->shape[1], T(3)->shape[0], .dtype = d), *net = fl_nn_sequential(
        fl_nn_lstm(T(0)->shape[2], T(6)->shape[1], .bidirectional = true, .dtype = d), head);
    fl_optim *optim = net ? fl_optim_sgd(fl_nn_parameters(net), .lr = NUM("lr"), .momentum = 0.9) : NULL;
    double losses[64];
    const int steps = (int)INT("steps");
    for (int i = 5; net && i < c->n_in; i++) fl_assign(fv_value(net->child[0]->param[i - 5].var), T(i));
    for (int i = 3; net && i < 5; i++) fl_assign(fv_value(head->param[i - 3].var), T(i));
    for (int k = 0; optim && k < steps && !fl_error(); k++) {
        fl_scope s = fl_scope_begin();
        fl_var *states = fl_nn_forward_vars(net->child[0], FL_VARS(IN(0), IN(1))).v[0];
        fl_var *loss = fv_cross_entropy(fl_nn_forward(head, fv_mean(states, FL_AXES(1))), T(2));
        losses[k] = loss ? fl_item(fv_value(loss)) : NAN;
        fl_optim_zero_grad(optim);
        if (loss && fl_backward(loss)) fl_optim_step(optim);
        fl_scope_end(&s);
    }
    fl_optim_free(optim);
    fl_nn_free(net);
    y[0] = fv_const(fl_cast(fl_from_host(losses, FL_SHAPE(steps), FL_F64), d));
    return 1;
}

#define RECURRENT_PARITY \
    {"nn_rnn", nn_recurrent, 3}, {"nn_gru", nn_recurrent, 3}, {"nn_lstm", nn_recurrent, 3}, \
        {"lstm_curve", lstm_curve, 5},

#endif
/* MIT licence: see LICENSE. */
