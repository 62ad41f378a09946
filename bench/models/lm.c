/* lm.c - the language model of Flashlight's benchmark: 150,000 words in three parts, 16 causal
   transformer layers of 1024, 8 heads, 4096 hidden, and an adaptive softmax: 257.01 M parameters,
   0.22 M of them biases and weights of norms that the original leaves out */
#include "model.h"

#include <math.h>

static fl_shape cutoffs(const model_preset *p) {
    return p->tiny ? FL_SHAPE(10, 30, 60) : FL_SHAPE(10000, 50000, 150000);
}

static fl_nn_module *build(const model_preset *p) {
    const int64_t dim = p->tiny ? 32 : 1024, heads = p->tiny ? 2 : 8;
    const double drop = model_drop(p, 0.1);
    fl_nn_module *net = fl_nn_sequential_of(0, NULL), *layers = fl_nn_sequential_of(0, NULL);
    fl_nn_add(net, "embedding", fl_nn_adaptive_embedding(dim, cutoffs(p)));
    fl_nn_add(net, "position", fl_nn_sinusoid(dim, sqrt((double)dim)));
    fl_nn_add(net, "dropout", fl_nn_dropout(drop));
    for (int i = 0; i < (p->tiny ? 2 : 16); i++)
        fl_nn_add(layers, NULL,
                  fl_nn_transformer(dim, heads, 4 * dim, .dropout = drop, .causal = true));
    fl_nn_add(net, "layers", layers);
    /* takes the words to give too, so the loss calls it */
    fl_nn_module *both = fl_nn_sequential_of(0, NULL);
    fl_nn_add(both, "body", net);
    fl_nn_add(both, "softmax", fl_nn_adaptive_softmax(dim, cutoffs(p)));
    return both;
}

static model_batch batch(const model_preset *p) { return model_words(p, cutoffs(p).dim[2]); }

static fl_var *loss(fl_nn_module *net, const model_preset *p, const model_batch *b) {
    const int64_t n = p->batch * p->size;
    fl_var *y = fl_nn_forward(fl_nn_find(net, "body"), fv_const(b->t[0]));
    if (!y) return NULL;
    const int64_t dim = fv_value(y)->shape[2];
    const fl_vars in =
        FL_VARS(fv_reshape(y, FL_SHAPE(n, dim)), fv_const(fl_reshape(b->t[1], FL_SHAPE(n))));
    fl_var *logp = fl_nn_forward_vars(fl_nn_find(net, "softmax"), in).v[0];
    return fv_neg(fv_mean(logp, FL_ALL_AXES));
}

const model model_lm = {
    .name = "lm",
    .parameters = 257005568,
    .preset = {{"cpu", 1, 256, false, false},
               {"paper", 1, 2048, false, false},
               {"tiny", 2, 12, true, false}},
    .build = build,
    .batch = batch,
    .loss = loss,
};
