/* alexnet.c - AlexNet with one tower (arXiv 1404.5997), as in torchvision: 61.10 M parameters */
#include "model.h"

/* Tiny: an eighth of the channels. */
static fl_nn_module *features(const model_preset *p) {
    const int64_t d = p->tiny ? 8 : 1;
    return fl_nn_sequential(
        fl_nn_conv2d(3, 64 / d, 11, .stride = 4, .pad = 2), fl_nn_relu(),
        fl_nn_pool2d(3, .stride = 2), fl_nn_conv2d(64 / d, 192 / d, 5, .pad = 2), fl_nn_relu(),
        fl_nn_pool2d(3, .stride = 2), fl_nn_conv2d(192 / d, 384 / d, 3, .pad = 1), fl_nn_relu(),
        fl_nn_conv2d(384 / d, 256 / d, 3, .pad = 1), fl_nn_relu(),
        fl_nn_conv2d(256 / d, 256 / d, 3, .pad = 1), fl_nn_relu(), fl_nn_pool2d(3, .stride = 2));
}

static fl_nn_module *classifier(const model_preset *p) {
    const int64_t in = 36 * (p->tiny ? 256 / 8 : 256), hidden = p->tiny ? 64 : 4096;
    return fl_nn_sequential(fl_nn_dropout(model_drop(p, 0.5)), fl_nn_linear(in, hidden),
                            fl_nn_relu(), fl_nn_dropout(model_drop(p, 0.5)),
                            fl_nn_linear(hidden, hidden), fl_nn_relu(),
                            fl_nn_linear(hidden, model_classes(p)));
}

static fl_nn_module *build(const model_preset *p) {
    fl_nn_module *net = fl_nn_sequential_of(0, NULL);
    fl_nn_add(net, "features", features(p));
    fl_nn_add(net, "avgpool", fl_nn_adaptive_avg_pool2d(6, 6));
    fl_nn_add(net, "flatten", fl_nn_view(FL_SHAPE(-1, -1)));
    fl_nn_add(net, "classifier", classifier(p));
    fl_nn_pool_before_relu(net);
    return net;
}

const model model_alexnet = {
    .name = "alexnet",
    .parameters = 61100840,
    .conversions = 2, /* the flattened image, the smallest of all, and its gradient */
    .preset = {{"cpu", 32, 224, false, false}, {"tiny", 2, 95, true, false}},
    .build = build,
    .batch = model_images,
    .loss = model_class_loss,
};
