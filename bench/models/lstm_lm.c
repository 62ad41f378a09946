/* bench/models/lstm_lm.c - a language model of three LSTM layers of 256 over 10,000 words: 6.71 M
   parameters */
#include "model.h"

static int64_t vocabulary(const model_preset *p) { return p->tiny ? 40 : 10000; }

static fl_nn_module *build(const model_preset *p) {
    const int64_t dim = p->tiny ? 32 : 256;
    fl_nn_module *net = fl_nn_sequential_of(0, NULL);
    fl_nn_add(net, "embedding", fl_nn_embedding(vocabulary(p), dim));
    fl_nn_add(net, "lstm", fl_nn_lstm(dim, dim, .layers = 3, .output_only = true));
    fl_nn_add(net, "decoder", fl_nn_linear(dim, vocabulary(p)));
    return net;
}

static model_batch batch(const model_preset *p) { return model_words(p, vocabulary(p)); }

const model model_lstm_lm = {
    .name = "lstm_lm",
    .parameters = 6709008,
    .preset = {{"cpu", 20, 35, false, false}, {"tiny", 2, 12, true, false}},
    .build = build,
    .batch = batch,
    .loss = model_words_loss,
};
/* MIT licence: see LICENSE. */
