/* vgg16.c - VGG with 16 layers, configuration D (arXiv 1409.1556), as in torchvision: 138.36 M
   parameters */
#include "model.h"

/* Two or three 3x3 convolutions and a pooling, five times. Tiny: an eighth of the channels. */
static fl_nn_module *features(int64_t divide) {
    static const int64_t width[] = {64, 128, 256, 512, 512}, depth[] = {2, 2, 3, 3, 3};
    fl_nn_module *m = fl_nn_sequential_of(0, NULL);
    int64_t in = 3;
    for (int stage = 0; stage < 5; stage++) {
        for (int64_t i = 0; i < depth[stage]; i++, in = width[stage] / divide) {
            fl_nn_add(m, NULL, fl_nn_conv2d(in, width[stage] / divide, 3, .pad = 1));
            fl_nn_add(m, NULL, fl_nn_relu());
        }
        fl_nn_add(m, NULL, fl_nn_pool2d(2));
    }
    return m;
}

static fl_nn_module *classifier(const model_preset *p) {
    const int64_t in = 49 * (p->tiny ? 512 / 8 : 512), hidden = p->tiny ? 64 : 4096;
    return fl_nn_sequential(fl_nn_linear(in, hidden), fl_nn_relu(),
                            fl_nn_dropout(model_drop(p, 0.5)), fl_nn_linear(hidden, hidden),
                            fl_nn_relu(), fl_nn_dropout(model_drop(p, 0.5)),
                            fl_nn_linear(hidden, model_classes(p)));
}

static fl_nn_module *build(const model_preset *p) {
    fl_nn_module *net = fl_nn_sequential_of(0, NULL);
    fl_nn_add(net, "features", features(p->tiny ? 8 : 1));
    fl_nn_add(net, "avgpool", fl_nn_adaptive_avg_pool2d(7, 7));
    fl_nn_add(net, "flatten", fl_nn_view(FL_SHAPE(-1, -1)));
    fl_nn_add(net, "classifier", classifier(p));
    fl_nn_pool_before_relu(net);
    return net;
}

const model model_vgg16 = {
    .name = "vgg16",
    .parameters = 138357544,
    .conversions = 2, /* the flattened image, the smallest of all, and its gradient */
    .preset = {{"cpu", 4, 224, false, false},
               {"paper", 32, 224, false, false},
               {"tiny", 2, 32, true, false}},
    .build = build,
    .batch = model_images,
    .loss = model_class_loss,
};
