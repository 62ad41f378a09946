/* bench/models/gpt_small.c - a small character-level GPT: 6 causal layers of 192, 6 heads, 65 characters

   2.72 M parameters */
#include "model.h"

static int64_t characters(const model_preset *p) { return p->tiny ? 20 : 65; }

static fl_nn_module *build(const model_preset *p) {
    const int64_t dim = p->tiny ? 32 : 192, heads = p->tiny ? 2 : 6;
    fl_nn_module *net = fl_nn_sequential_of(0, NULL), *layers = fl_nn_sequential_of(0, NULL);
    fl_nn_add(net, "embedding", fl_nn_embedding(characters(p), dim));
    fl_nn_add(net, "position", fl_nn_position(p->tiny ? 16 : 256, dim));
    for (int i = 0; i < (p->tiny ? 2 : 6); i++)
        fl_nn_add(layers, NULL,
                  fl_nn_transformer(dim, heads, 4 * dim, .causal = true, .norm_first = true,
                                    .activation = fv_gelu));
    fl_nn_add(net, "layers", layers);
    fl_nn_add(net, "norm", fl_nn_layer_norm(FL_SHAPE(dim)));
    fl_nn_add(net, "head", fl_nn_linear(dim, characters(p), .no_bias = true));
    return net;
}

static model_batch batch(const model_preset *p) { return model_words(p, characters(p)); }

const model model_gpt_small = {
    .name = "gpt_small",
    .parameters = 2743680,
    .preset = {{"cpu", 24, 128, false, false}, {"tiny", 2, 12, true, false}},
    .build = build,
    .batch = batch,
    .loss = model_words_loss,
};
/* MIT licence: see LICENSE. */
