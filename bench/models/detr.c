/* bench/models/detr.c - DETR (arXiv 2005.12872)

   A ResNet-50 with frozen norms, six encoder and six decoder layers of 256, 8 heads, 2048 hidden, 100
   queries, 91 object classes: 41.52 M parameters. Four objects per image; the losses of all decoder
   layers. */
#include "model.h"

enum { OBJECTS = 4 };

static int64_t kinds(const model_preset *p) { return p->tiny ? 8 : 91; }

/* Tiny: two layers of 32 numbers, 64 hidden, 6 queries, over an eighth of the ResNet's width. */
static fl_nn_module *build(const model_preset *p) {
    if (!p->tiny) return fl_vision_detr(50, .dropout = p->plain ? FL_ZERO : 0);
    return fl_vision_detr(50, .classes = kinds(p), .queries = 6, .dim = 32, .hidden = 64, .layers = 2,
                          .dropout = p->plain ? FL_ZERO : 0, .divide = 8, .blocks = 1);
}

/* Images, kinds, boxes, and where they are padded: tiny ones beyond 60 rows and 64 columns of the second. */
static model_batch batch(const model_preset *p) {
    const int64_t objects = p->batch * OBJECTS;
    fl_tensor *boxes = model_numbers("boxes", FL_SHAPE(objects, 4)),
              *mask = fl_zeros(FL_SHAPE(p->batch, p->size, p->size), FL_B8);
    if (p->tiny) {
        fl_tensor *second = fl_select(mask, 0, 1), *on = fl_ones(FL_SCALAR_SHAPE, FL_B8);
        fl_assign(fl_slice(second, 0, 60, p->size, 1), on);
        fl_assign(fl_slice(second, 1, 64, p->size, 1), on);
    }
    return (model_batch){{model_numbers("images", FL_SHAPE(p->batch, 3, p->size, p->size)),
                          model_integers("kinds", FL_SHAPE(objects), 0, kinds(p)),
                          fl_add(fl_mul(boxes, fl_num(0.1)), fl_num(0.4)), p->tiny ? mask : NULL}};
}

static fl_var *loss(fl_nn_module *net, const model_preset *p, const model_batch *b) {
    int64_t count[64];
    fl_vision_losses l;
    const fl_vars in = {b->t[3] ? 2 : 1, {fv_const(b->t[0]), fv_const(b->t[3])}};
    for (int64_t i = 0; i < p->batch; i++) count[i] = OBJECTS;
    const fl_vision_targets t = {b->t[1], b->t[2], count, p->batch};
    const fl_vars y = fl_nn_forward_vars(net, in);
    return y.n && fl_vision_criterion(y, &t, &l) ? l.total : NULL;
}

const model model_detr = {
    .name = "detr",
    .parameters = 41524768,
    .preset = {{"cpu", 1, 800, false, false},
               {"paper", 12, 800, false, false},
               {"tiny", 2, 96, true, false}},
    .build = build,
    .batch = batch,
    .loss = loss,
};
/* MIT licence: see LICENSE. */
