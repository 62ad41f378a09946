/* bench/models/lm.c - the language model of Flashlight's benchmark

   150,000 words in three parts, 16 causal transformer layers of 1024, 8 heads, 4096 hidden, and an adaptive
   softmax: 257.01 M parameters, 0.22 M of them biases and weights of norms that the original lacks. */
#include "model.h"

#include <math.h>

static fl_shape cutoffs(const model_preset *p) {
    return p->tiny ? FL_SHAPE(10, 30, 60) : FL_SHAPE(10000, 50000, 150000);
}

static fl_nn_module *build(const model_preset *p) {
    const int64_t dim = p->tiny ? 32 : 1024;
    return fl_text_lm(cutoffs(p).dim[2], .layers = p->tiny ? 2 : 16, .dim = dim, .heads = p->tiny ? 2 : 8,
                      .context = p->size, .place = FL_LM_SINUSOID, .embedding_scale = sqrt((double)dim),
                      .activation = fv_relu, .post_norm = true, .cutoffs = cutoffs(p),
                      .dropout = model_drop(p, 0.1));
}

static model_batch batch(const model_preset *p) { return model_words(p, cutoffs(p).dim[2]); }

static fl_var *loss(fl_nn_module *net, const model_preset *p, const model_batch *b) {
    (void)p;
    return fl_text_loss(net, FL_VARS(fv_const(b->t[0])), b->t[1], FL_MEAN);
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
/* MIT licence: see LICENSE. */
