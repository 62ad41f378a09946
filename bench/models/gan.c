/* bench/models/gan.c - GANs: generator and critic both trained in one step

   DCGAN (arXiv 1511.06434), and WGAN with gradient penalty (arXiv 1704.00028), which takes a second
   derivative. Images of 64 x 64 (tiny: 16 x 16). */
#include "model.h"

#include <math.h>

enum { NOISE = 100, PENALTY = 10 };

typedef struct kind {
    bool norm;            /* batch norms in the critic; a penalty forbids them */
    int64_t width, scales; /* channels of the largest images; how often these double */
} kind;

static kind kind_of(const model_preset *p, bool norm) {
    return (kind){norm, p->tiny ? 8 : 64, p->tiny ? 1 : 3};
}

static fl_nn_module *generator(kind k) {
    fl_nn_module *m = fl_nn_sequential_of(0, NULL);
    int64_t channels = k.width << k.scales, in = NOISE;
    for (int64_t i = 0; i <= k.scales; i++, in = channels, channels /= 2) {
        fl_nn_add(m, NULL, fl_nn_conv_transpose2d(in, channels, 4, .stride = i ? 2 : 1, .pad = i ? 1 : FL_I0,
                                                  .no_bias = true));
        fl_nn_add(m, NULL, fl_nn_batch_norm2d(channels, .relu = true));
    }
    fl_nn_add(m, NULL, fl_nn_conv_transpose2d(in, 3, 4, .stride = 2, .pad = 1));
    fl_nn_add(m, NULL, fl_nn_tanh());
    return m;
}

static fl_nn_module *critic(kind k) {
    fl_nn_module *m = fl_nn_sequential_of(0, NULL);
    int64_t channels = k.width, in = 3;
    for (int64_t i = 0; i <= k.scales; i++, in = channels, channels *= 2) {
        const bool norm = k.norm && i;
        fl_nn_add(m, NULL, fl_nn_conv2d(in, channels, 4, .stride = 2, .pad = 1, .no_bias = norm));
        if (norm) fl_nn_add(m, NULL, fl_nn_batch_norm2d(channels));
        fl_nn_add(m, NULL, fl_nn_leaky_relu(0.2));
    }
    fl_nn_add(m, NULL, fl_nn_conv2d(in, 1, 4));
    fl_nn_add(m, NULL, fl_nn_flatten(0, -1));
    return m;
}

static fl_nn_module *build(const model_preset *p, bool norm) {
    fl_nn_module *net = fl_nn_sequential_of(0, NULL);
    fl_nn_add(net, "generator", generator(kind_of(p, norm)));
    fl_nn_add(net, "critic", critic(kind_of(p, norm)));
    return net;
}

static fl_nn_module *build_dcgan(const model_preset *p) { return build(p, true); }
static fl_nn_module *build_wgan(const model_preset *p) { return build(p, false); }

/* Images, noise, and where between a true image and a made one the penalty looks. */
static model_batch batch(const model_preset *p) {
    fl_tensor *mix = model_numbers("mix", FL_SHAPE(p->batch, 1, 1, 1));
    return (model_batch){{model_numbers("images", FL_SHAPE(p->batch, 3, p->size, p->size)),
                          model_numbers("noise", FL_SHAPE(p->batch, NOISE, 1, 1)),
                          fl_add(fl_mul(mix, fl_num(0.5 / sqrt(3))), fl_num(0.5))}};
}

static void learn(fl_nn_module *m, bool on) {
    const fv_list p = fl_nn_parameters(m);
    for (int i = 0; i < p.n; i++) p.v[i]->requires_grad = on;
}

/* What the critic says of made images; its parameters learn nothing from it. */
static fl_var *said_to_generator(fl_nn_module *c, fl_var *made) {
    learn(c, false);
    fl_var *score = fl_nn_forward(c, made);
    learn(c, true);
    return score;
}

static fl_var *judged(fl_var *score, double real) {
    return fv_binary_cross_entropy_with_logits(score, fv_const(fl_full_like(fv_value(score), real)), FL_MEAN);
}

static fl_var *dcgan_loss(fl_nn_module *net, const model_preset *p, const model_batch *b) {
    (void)p;
    fl_nn_module *c = fl_nn_find(net, "critic");
    fl_var *made = fl_nn_forward(fl_nn_find(net, "generator"), fv_const(b->t[1]));
    fl_var *right = judged(fl_nn_forward(c, fv_const(b->t[0])), 1);
    fl_var *caught = judged(fl_nn_forward(c, fv_detach(made)), 0);
    return fv_add(fv_add(right, caught), judged(said_to_generator(c, made), 1));
}

/* PENALTY times the mean of (|d critic / d image| - 1)^2 at images between true and made ones */
static fl_var *penalty(fl_nn_module *c, fl_tensor *real, fl_tensor *made, fl_tensor *mix) {
    fl_var *x = fv_param(fl_add(made, fl_mul(mix, fl_sub(real, made))));
    fl_var *slope = fl_grad(fv_sum(fl_nn_forward(c, x), FL_ALL_AXES), x, true);
    fl_var *length = fv_sqrt(fv_sum(fv_square(slope), FL_AXES(1, 2, 3)));
    return fv_mul(fv_num(PENALTY), fv_mean(fv_square(fv_sub(length, fv_num(1))), FL_ALL_AXES));
}

static fl_var *wgan_loss(fl_nn_module *net, const model_preset *p, const model_batch *b) {
    (void)p;
    fl_nn_module *c = fl_nn_find(net, "critic");
    fl_var *made = fl_nn_forward(fl_nn_find(net, "generator"), fv_const(b->t[1]));
    fl_var *real = fv_mean(fl_nn_forward(c, fv_const(b->t[0])), FL_ALL_AXES);
    fl_var *fake = fv_mean(fl_nn_forward(c, fv_detach(made)), FL_ALL_AXES);
    fl_var *critic_loss = fv_add(fv_sub(fake, real), penalty(c, b->t[0], fv_value(made), b->t[2]));
    return fv_sub(critic_loss, fv_mean(said_to_generator(c, made), FL_ALL_AXES));
}

const model model_dcgan = {
    .name = "dcgan",
    .parameters = 6342340,
    .conversions = 4, /* of the first and last images of 4 x 4, and the last weight */
    .preset = {{"cpu", 8, 64, false, false}, {"tiny", 2, 16, true, false}},
    .build = build_dcgan,
    .batch = batch,
    .loss = dcgan_loss,
};

const model model_wgan = {
    .name = "wgan",
    .parameters = 6341444,
    .conversions = 5, /* the same */
    .preset = {{"cpu", 8, 64, false, false}, {"tiny", 2, 16, true, false}},
    .build = build_wgan,
    .batch = batch,
    .loss = wgan_loss,
};
/* MIT licence: see LICENSE. */
