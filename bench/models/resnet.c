/* bench/models/resnet.c - residual networks (arXiv 1512.03385), as in torchvision

   ResNet-50 v1.5 (the stride is in the 3x3 convolution), 25.56 M parameters, and ResNet-34, 21.80 M. */
#include "model.h"

/* Tiny: one block in each stage, an eighth of the width. */
static fl_nn_module *resnet(const char *name, const model_preset *p) {
    return fl_vision_model(name, .classes = model_classes(p), .divide = p->tiny ? 8 : 1,
                           .blocks = p->tiny ? 1 : 0);
}

static fl_nn_module *build50(const model_preset *p) { return resnet("resnet50", p); }

static fl_nn_module *build34(const model_preset *p) { return resnet("resnet34", p); }

const model model_resnet50 = {
    .name = "resnet50",
    .parameters = 25557032,
    .preset = {{"cpu", 4, 224, false, false},
               {"cpu32", 32, 224, false, false},
               {"paper", 32, 224, false, false},
               {"tiny", 2, 64, true, false}},
    .build = build50,
    .batch = model_images,
    .loss = model_class_loss,
};

const model model_resnet34 = {
    .name = "resnet34",
    .parameters = 21797672,
    .preset = {{"cpu", 4, 224, false, false},
               {"paper", 192, 224, false, false},
               {"tiny", 2, 64, true, false}},
    .build = build34,
    .batch = model_images,
    .loss = model_class_loss,
};
/* MIT licence: see LICENSE. */
