/* bench/models/bert.c - a language model like BERT (arXiv 1810.04805)

   24 layers of 1024, 16 heads, 4096 hidden, 50,265 words, untied embedding and output: 406.83 M parameters.
   The loss is over all words. */
#include "model.h"

static int64_t vocabulary(const model_preset *p) { return p->tiny ? 50 : 50265; }

static fl_nn_module *build(const model_preset *p) {
    const int64_t dim = p->tiny ? 32 : 1024, heads = p->tiny ? 2 : 16, words = vocabulary(p);
    const double drop = model_drop(p, 0.1);
    fl_nn_module *net = fl_nn_sequential_of(0, NULL), *layers = fl_nn_sequential_of(0, NULL);
    fl_nn_add(net, "word_embeddings", fl_nn_embedding(words, dim, .std = 0.02));
    fl_nn_add(net, "position_embeddings", fl_nn_position(p->tiny ? 32 : 512, dim));
    fl_nn_add(net, "dropout", fl_nn_dropout(drop));
    for (int i = 0; i < (p->tiny ? 2 : 24); i++)
        fl_nn_add(layers, NULL,
                  fl_nn_transformer(dim, heads, 4 * dim, .dropout = drop, .norm_first = true,
                                    .activation = fv_gelu));
    fl_nn_add(net, "layers", layers);
    fl_nn_add(net, "norm", fl_nn_layer_norm(FL_SHAPE(dim)));
    fl_nn_add(net, "dense", fl_nn_linear(dim, dim));
    fl_nn_add(net, "gelu", fl_nn_gelu());
    fl_nn_add(net, "decoder", fl_nn_linear(dim, words, .no_bias = true));
    return net;
}

static model_batch batch(const model_preset *p) { return model_words(p, vocabulary(p)); }

const model model_bert = {
    .name = "bert",
    .parameters = 406828032,
    .preset = {{"cpu", 1, 128, false, false},
               {"cpu8", 8, 128, false, false},
               {"paper", 8, 128, false, false},
               {"long", 128, 128, false, false},
               {"tiny", 2, 12, true, false}},
    .build = build,
    .batch = batch,
    .loss = model_words_loss,
};
/* MIT licence: see LICENSE. */
