/* bench/models/asr.c - the speech recogniser of the Flashlight paper

   80 mel filter banks, normalised over the utterance, a convolution to 1536 channels with a stride of 3
   frames, GLU, 36 transformer layers of 768, 4 heads, 3072 hidden, to 9,000 word pieces, the first of which
   is CTC's blank: 262.95 M parameters. In training 0.4 of the layers are dropped (layer drop). */
#include "model.h"

enum { BANKS = 80, STRIDE = 3, MOST = 100 /* pieces of a transcript */ };

/* Which layers are left out is the same in every iteration, so that all of them take as long: of
   36 layers 14, which this key draws. */
enum { DROP_KEY = 3 };
static fl_rng drop_rng;

static int64_t pieces(const model_preset *p) { return p->tiny ? 20 : 9000; }

static int64_t transcript(const model_preset *p) {
    const int64_t n = p->size / 12;
    return n < 1 ? 1 : n > MOST ? MOST : n;
}

static fl_nn_module *build(const model_preset *p) {
    const int64_t dim = p->tiny ? 32 : 768, heads = p->tiny ? 2 : 4;
    fl_nn_module *net = fl_nn_sequential_of(0, NULL);
    fl_nn_module *layers = fl_nn_layer_drop(model_drop(p, 0.4), .rng = &drop_rng);
    fl_nn_add(net, "norm", fl_nn_layer_norm(FL_SHAPE(BANKS, p->size), .no_affine = true));
    fl_nn_add(net, "conv", fl_nn_conv1d(BANKS, 2 * dim, 7, .stride = STRIDE, .pad = FL_SAME));
    fl_nn_add(net, "glu", fl_nn_glu(1));
    fl_nn_add(net, "dropout", fl_nn_dropout(model_drop(p, 0.3)));
    fl_nn_add(net, "transpose", fl_nn_transpose(1, 2));
    fl_nn_add(net, "position", fl_nn_sinusoid(dim, 1));
    for (int i = 0; i < (p->tiny ? 2 : 36); i++)
        fl_nn_add(layers, NULL,
                  fl_nn_transformer(dim, heads, 4 * dim, .dropout = model_drop(p, 0.4)));
    fl_nn_add(net, "layers", layers);
    fl_nn_add(net, "head", fl_nn_linear(dim, pieces(p)));
    return net;
}

static model_batch batch(const model_preset *p) {
    const int64_t length = transcript(p), steps = (p->size + STRIDE - 1) / STRIDE;
    return (model_batch){{model_numbers("sounds", FL_SHAPE(p->batch, BANKS, p->size)),
                          model_integers("pieces", FL_SHAPE(p->batch, length), 1, pieces(p)),
                          fl_full(FL_SHAPE(p->batch), (double)steps, FL_I64),
                          fl_full(FL_SHAPE(p->batch), (double)length, FL_I64)}};
}

static fl_var *loss(fl_nn_module *net, const model_preset *p, const model_batch *b) {
    (void)p;
    drop_rng = (fl_rng){DROP_KEY, 0};
    fl_var *logits = fl_nn_forward(net, fv_const(b->t[0])); /* [n, t, c] */
    fl_var *logp = fv_transpose(fv_log_softmax(logits, 2), 0, 1);
    return fv_ctc_loss(logp, b->t[1], b->t[2], b->t[3]);
}

const model model_asr = {
    .name = "asr",
    .parameters = 262946088,
    .preset = {{"cpu", 1, 600, false, false},
               {"paper", 10, 1500, false, false},
               {"tiny", 2, 48, true, false}},
    .build = build,
    .batch = batch,
    .loss = loss,
};
/* MIT licence: see LICENSE. */
