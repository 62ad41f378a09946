/* bench/models/vgg16.c - VGG with 16 layers, configuration D (arXiv 1409.1556), as in torchvision: 138.36 M
   parameters */
#include "model.h"

/* Tiny: an eighth of the channels. */
static fl_nn_module *build(const model_preset *p) {
    return fl_vision_model("vgg16", .classes = model_classes(p), .divide = p->tiny ? 8 : 1,
                           .dropout = p->plain ? FL_ZERO : 0);
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
/* MIT licence: see LICENSE. */
