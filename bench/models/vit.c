/* vit.c - the vision transformer ViT-B/16 (arXiv 2010.11929), as in torchvision: 86.57 M
   parameters; and ViT-Tiny, 192 wide, with patches of 4 x 4 of images of 32 x 32: 5.55 M */
#include "model.h"

#include <stdlib.h>

/* Children, the tree's. */
typedef struct parts {
    fl_nn_module *patches, *position, *layers, *norm, *head;
    fl_var *first; /* [1, 1, dim]: what the first step holds, by whose result the image is judged */
} parts;

/* [n, 3, h, w] -> [n, 1 + patches, dim] */
static fl_var *steps_of(const parts *v, fl_var *image) {
    static const int channels_last[] = {0, 2, 3, 1};
    fl_var *x = fv_permute(fl_nn_forward(v->patches, image), 4, channels_last);
    if (!x) return NULL;
    const fl_tensor *t = fv_value(x);
    const int64_t n = t->shape[0], dim = t->shape[3];
    fl_var *steps[] = {fv_expand(v->first, FL_SHAPE(n, 1, dim)),
                       fv_reshape(x, FL_SHAPE(n, t->shape[1] * t->shape[2], dim))};
    return steps[0] && steps[1] ? fv_concat(steps, 2, 1) : NULL;
}

static fl_vars forward(fl_nn_module *m, fl_vars in) {
    const parts *v = fl_nn_user(m);
    fl_var *x = fl_nn_forward(v->position, steps_of(v, in.v[0]));
    x = fl_nn_forward(v->norm, fl_nn_forward(v->layers, x));
    return FL_VARS(fl_nn_forward(v->head, fv_select(x, 1, 0)));
}

static fl_nn_module *build(const model_preset *p, int64_t patch, int64_t dim, int64_t heads) {
    const int64_t side = p->size / patch;
    parts *v = calloc(1, sizeof *v);
    fl_nn_module *net = fl_nn_function("VisionTransformer", forward, v, free);
    fl_scope s = fl_scope_begin();
    v->first = fl_nn_add_param(net, "class_token", fv_param(fl_zeros(FL_SHAPE(1, 1, dim), FL_F32)));
    fl_scope_end(&s);
    v->patches = fl_nn_add(net, "conv_proj", fl_nn_conv2d(3, dim, patch, .stride = patch));
    v->position = fl_nn_add(net, "pos_embedding", fl_nn_position(1 + side * side, dim));
    v->layers = fl_nn_add(net, "layers", fl_nn_sequential_of(0, NULL));
    for (int i = 0; i < (p->tiny ? 2 : 12); i++)
        fl_nn_add(v->layers, NULL,
                  fl_nn_transformer(dim, heads, 4 * dim, .norm_first = true, .activation = fv_gelu,
                                    .eps = 1e-6));
    v->norm = fl_nn_add(net, "ln", fl_nn_layer_norm(FL_SHAPE(dim), .eps = 1e-6));
    v->head = fl_nn_add(net, "head", fl_nn_linear(dim, model_classes(p)));
    return net;
}

static fl_nn_module *build_base(const model_preset *p) {
    return p->tiny ? build(p, 16, 32, 2) : build(p, 16, 768, 12);
}

static fl_nn_module *build_tiny(const model_preset *p) {
    return p->tiny ? build(p, 4, 32, 2) : build(p, 4, 192, 3);
}

const model model_vit = {
    .name = "vit",
    .parameters = 86567656,
    .preset = {{"cpu", 4, 224, false, false},
               {"paper", 128, 224, false, false},
               {"tiny", 2, 48, true, false}},
    .build = build_base,
    .batch = model_images,
    .loss = model_class_loss,
};

const model model_vit_tiny = {
    .name = "vit_tiny",
    .parameters = 5553832,
    .preset = {{"cpu", 32, 32, false, false}, {"tiny", 2, 16, true, false}},
    .build = build_tiny,
    .batch = model_images,
    .loss = model_class_loss,
};
