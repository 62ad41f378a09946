/* bench/models/unet.c - a U-Net as in diffusion models: three scales of 32, 64 and 128 channels

   Each scale has two 3 x 3 convolutions with group norm and SiLU, average pooling down, bilinear resizing up:
   0.47 M parameters. It learns to map one image to another. */
#include "model.h"

#include <stdlib.h>

enum { SCALES = 3, GROUPS = 8 };

/* Children, the tree's. */
typedef struct parts {
    fl_nn_module *down[SCALES], *up[SCALES - 1], *pool, *head;
} parts;

static fl_vars forward(fl_nn_module *m, fl_vars in) {
    const parts *u = fl_nn_user(m);
    fl_var *x = in.v[0], *seen[SCALES];
    for (int i = 0; i < SCALES; i++)
        x = seen[i] = fl_nn_forward(u->down[i], i ? fl_nn_forward(u->pool, x) : x);
    for (int i = SCALES - 1; i-- > 0;) {
        fl_var *both[] = {seen[i], fv_interpolate(x, FL_SCALAR_SHAPE, FL_LINEAR, false, .scale = {2})};
        x = both[0] && both[1] ? fl_nn_forward(u->up[i], fv_concat(both, 2, 1)) : NULL;
    }
    return FL_VARS(fl_nn_forward(u->head, x));
}

static fl_nn_module *block(int64_t in, int64_t out) {
    fl_nn_module *m = fl_nn_sequential_of(0, NULL);
    for (int i = 0; i < 2; i++) {
        fl_nn_add(m, NULL, fl_nn_conv2d(i ? out : in, out, 3, .pad = 1));
        fl_nn_add(m, NULL, fl_nn_group_norm(GROUPS, out));
        fl_nn_add(m, NULL, fl_nn_silu());
    }
    return m;
}

static fl_nn_module *build(const model_preset *p) {
    static const char *const down[] = {"down1", "down2", "down3"}, *const up[] = {"up1", "up2"};
    const int64_t width = p->tiny ? 8 : 32;
    parts *u = calloc(1, sizeof *u);
    fl_nn_module *net = fl_nn_function("UNet", forward, u, free);
    for (int i = 0; i < SCALES; i++)
        u->down[i] = fl_nn_add(net, down[i], block(i ? width << (i - 1) : 3, width << i));
    for (int i = 0; i < SCALES - 1; i++) u->up[i] = fl_nn_add(net, up[i], block(3 * width << i, width << i));
    u->pool = fl_nn_add(net, "pool", fl_nn_pool2d(2, .average = true));
    u->head = fl_nn_add(net, "head", fl_nn_conv2d(width, 3, 1));
    return net;
}

static model_batch batch(const model_preset *p) {
    const fl_shape shape = FL_SHAPE(p->batch, 3, p->size, p->size);
    return (model_batch){{model_numbers("images", shape), model_numbers("next images", shape)}};
}

static fl_var *loss(fl_nn_module *net, const model_preset *p, const model_batch *b) {
    (void)p;
    return fv_mse_loss(fl_nn_forward(net, fv_const(b->t[0])), fv_const(b->t[1]), FL_MEAN);
}

const model model_unet = {
    .name = "unet",
    .conversions = 3, /* parts of the gradients of joined images */
    .parameters = 472899,
    .preset = {{"cpu", 8, 64, false, false}, {"tiny", 2, 16, true, false}},
    .build = build,
    .batch = batch,
    .loss = loss,
};
/* MIT licence: see LICENSE. */
