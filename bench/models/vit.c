/* bench/models/vit.c - the vision transformer ViT-B/16 (arXiv 2010.11929), as in torchvision: 86.57 M
   parameters

   And ViT-Tiny, 192 wide, with patches of 4 x 4 of images of 32 x 32: 5.55 M. */
#include "model.h"

/* Tiny: two layers of 32 numbers. */
static fl_nn_module *build(const model_preset *p) {
    return fl_vision_model("vit_b_16", .classes = model_classes(p), .size = p->size,
                           .divide = p->tiny ? 24 : 1, .blocks = p->tiny ? 2 : 0);
}

static fl_nn_module *build_small(const model_preset *p) {
    return fl_vision_model("vit_ti_16", .classes = model_classes(p), .size = p->size, .patch = 4,
                           .divide = p->tiny ? 6 : 1, .blocks = p->tiny ? 2 : 0);
}

const model model_vit = {
    .name = "vit",
    .parameters = 86567656,
    .preset = {{"cpu", 4, 224, false, false},
               {"paper", 128, 224, false, false},
               {"tiny", 2, 48, true, false}},
    .build = build,
    .batch = model_images,
    .loss = model_class_loss,
};

const model model_vit_tiny = {
    .name = "vit_tiny",
    .parameters = 5553832,
    .preset = {{"cpu", 32, 32, false, false}, {"tiny", 2, 16, true, false}},
    .build = build_small,
    .batch = model_images,
    .loss = model_class_loss,
};
/* MIT licence: see LICENSE. */
