/* bench/models/capsule.c - the capsule network of arXiv 1710.09829 on MNIST-like images, without its decoder

   6.80 M parameters */
#include "model.h"

static fl_nn_module *squash(void) { return fl_nn_activation("Squash", fl_nn_squash); }

/* Primary capsules: each of 8 neighbouring channels' numbers at one place. Tiny: an eighth of the
   channels. */
static fl_nn_module *build(const model_preset *p) {
    const int64_t width = p->tiny ? 32 : 256, side = (p->size - 8 - 9) / 2 + 1;
    const int64_t capsules = width / 8 * side * side;
    fl_nn_module *net = fl_nn_sequential_of(0, NULL);
    fl_nn_add(net, "conv", fl_nn_conv2d(1, width, 9));
    fl_nn_add(net, "relu", fl_nn_relu());
    fl_nn_add(net, "primary", fl_nn_conv2d(width, width, 9, .stride = 2));
    /* [n, channels, side, side] -> [n, side side, width / 8, 8], a view of a channels-last image */
    fl_nn_add(net, "rows", fl_nn_transpose(1, 2));
    fl_nn_add(net, "columns", fl_nn_transpose(2, 3));
    fl_nn_add(net, "parts", fl_nn_view(FL_SHAPE(-1, side * side, width / 8, 8)));
    fl_nn_add(net, "transpose", fl_nn_transpose(1, 2));
    fl_nn_add(net, "capsules", fl_nn_view(FL_SHAPE(-1, capsules, 8)));
    fl_nn_add(net, "squash", squash());
    fl_nn_add(net, "digits", fl_nn_capsules(capsules, 8, 10, 16));
    return net;
}

static model_batch batch(const model_preset *p) {
    return (model_batch){{model_numbers("images", FL_SHAPE(p->batch, 1, p->size, p->size)),
                          model_integers("classes", FL_SHAPE(p->batch), 0, 10)}};
}

/* The length of a digit's capsule says whether it is there: above 0.9 for the right one, below 0.1
   for the others, which count half. */
static fl_var *loss(fl_nn_module *net, const model_preset *p, const model_batch *b) {
    fl_var *y = fl_nn_forward(net, fv_const(b->t[0]));
    fl_var *length = fv_sqrt(fv_sum(fv_square(y), FL_AXES(-1)));
    fl_var *right = fv_const(fl_cast(fl_one_hot(b->t[1], 10), FL_F32));
    fl_var *there = fv_square(fv_relu(fv_sub(fv_num(0.9), length)));
    fl_var *absent = fv_mul(fv_num(0.5), fv_square(fv_relu(fv_sub(length, fv_num(0.1)))));
    fl_var *all = fv_add(fv_mul(right, there), fv_mul(fv_sub(fv_num(1), right), absent));
    return fv_div(fv_sum(all, FL_ALL_AXES), fv_num((double)p->batch));
}

const model model_capsule = {
    .name = "capsule",
    .parameters = 6804224,
    .conversions = 2, /* one channel has no layout; a weight looks like an image */
    .preset = {{"cpu", 32, 28, false, false},
               {"paper", 128, 28, false, false},
               {"tiny", 2, 28, true, false}},
    .build = build,
    .batch = batch,
    .loss = loss,
};
/* MIT licence: see LICENSE. */
