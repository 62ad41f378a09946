/* bench/models/alexnet.c - AlexNet with one tower (arXiv 1404.5997), as in torchvision: 61.10 M parameters */
#include "model.h"

/* Tiny: an eighth of the channels. */
static fl_nn_module *build(const model_preset *p) {
    return fl_vision_model("alexnet", .classes = model_classes(p), .divide = p->tiny ? 8 : 1,
                           .dropout = p->plain ? FL_ZERO : 0);
}

const model model_alexnet = {
    .name = "alexnet",
    .parameters = 61100840,
    .conversions = 2, /* the flattened image, the smallest of all, and its gradient */
    .preset = {{"cpu", 32, 224, false, false},
               {"paper", 32, 224, false, false},
               {"tiny", 2, 95, true, false}},
    .build = build,
    .batch = model_images,
    .loss = model_class_loss,
};
/* MIT licence: see LICENSE. */
