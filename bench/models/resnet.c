/* resnet.c - residual networks (arXiv 1512.03385), as in torchvision: ResNet-50 v1.5 (the stride is
   that of the 3x3 convolution), 25.56 M parameters, and ResNet-34, 21.80 M */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- blocks ---- */

/* y = relu(branch(x) + shortcut(x)): convolutions conv1, conv2, ..., each with its norm bn1, ... and
   its relu; the last norm adds the shortcut first. Children, the tree's. */
typedef struct block {
    int n;
    fl_nn_module *conv[3], *norm[3], *downsample; /* NULL: the identity */
} block;

static fl_vars block_forward(fl_nn_module *m, fl_vars in) {
    const block *b = fl_nn_user(m);
    const int last = b->n - 1;
    fl_var *x = in.v[0], *y = x;
    for (int i = 0; i < last; i++) y = fl_nn_forward(b->norm[i], fl_nn_forward(b->conv[i], y));
    if (b->downsample) x = fl_nn_forward(b->downsample, x);
    return fl_nn_forward_vars(b->norm[last], FL_VARS(fl_nn_forward(b->conv[last], y), x));
}

static fl_nn_module *conv_of(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    return fl_nn_conv2d(in, out, kernel, .stride = stride, .pad = kernel / 2, .no_bias = true);
}

/* A frozen norm uses its running statistics: it is never in training mode, and learns nothing. */
static fl_nn_module *norm_of(int64_t channels, bool relu, bool frozen) {
    fl_nn_module *m = fl_nn_batch_norm2d(channels, .relu = relu, .no_affine = frozen);
    fl_nn_train(m, !frozen);
    return m;
}

static void add_pair(fl_nn_module *m, fl_nn_module *conv, fl_nn_module *norm) {
    block *b = fl_nn_user(m);
    char name[16];
    snprintf(name, sizeof name, "conv%d", b->n + 1);
    b->conv[b->n] = fl_nn_add(m, name, conv);
    snprintf(name, sizeof name, "bn%d", b->n + 1);
    b->norm[b->n++] = fl_nn_add(m, name, norm);
}

/* 3x3, 3x3, or with a bottleneck 1x1, 3x3, 1x1 to four times the width. */
static fl_nn_module *block_of(int64_t in, int64_t width, int64_t stride, bool bottleneck,
                              bool frozen) {
    const int64_t out = bottleneck ? 4 * width : width;
    fl_nn_module *m = fl_nn_function(bottleneck ? "Bottleneck" : "BasicBlock", block_forward,
                                     calloc(1, sizeof(block)), free);
    if (bottleneck) {
        add_pair(m, conv_of(in, width, 1, 1), norm_of(width, true, frozen));
        add_pair(m, conv_of(width, width, 3, stride), norm_of(width, true, frozen));
        add_pair(m, conv_of(width, out, 1, 1), norm_of(out, true, frozen));
    } else {
        add_pair(m, conv_of(in, width, 3, stride), norm_of(width, true, frozen));
        add_pair(m, conv_of(width, out, 3, 1), norm_of(out, true, frozen));
    }
    block *b = fl_nn_user(m);
    if (stride == 1 && in == out) return m;
    b->downsample =
        fl_nn_add(m, "downsample",
                  fl_nn_sequential(conv_of(in, out, 1, stride), norm_of(out, false, frozen)));
    return m;
}

/* ---- networks ---- */

/* Four stages of 3, 4, 6 and 3 blocks, each twice as wide and half as large as the one before.
   Tiny: one block each, an eighth of the width. */
static void add_body(fl_nn_module *net, const model_preset *p, bool bottleneck, bool frozen) {
    static const int depth[] = {3, 4, 6, 3};
    const int64_t first = p->tiny ? 8 : 64;
    int64_t in = first;
    fl_nn_add(net, "conv1", conv_of(3, first, 7, 2));
    fl_nn_add(net, "bn1", norm_of(first, true, frozen));
    fl_nn_add(net, "maxpool", fl_nn_pool2d(3, .stride = 2, .pad = 1));
    for (int s = 0; s < 4; s++) {
        const int64_t width = first << s;
        fl_nn_module *stage = fl_nn_sequential_of(0, NULL);
        for (int i = 0; i < (p->tiny ? 1 : depth[s]); i++) {
            fl_nn_add(stage, NULL, block_of(in, width, s && !i ? 2 : 1, bottleneck, frozen));
            in = bottleneck ? 4 * width : width;
        }
        char name[16];
        snprintf(name, sizeof name, "layer%d", s + 1);
        fl_nn_add(net, name, stage);
    }
}

static fl_nn_module *resnet(const model_preset *p, bool bottleneck) {
    const int64_t out = (p->tiny ? 64 : 512) * (bottleneck ? 4 : 1);
    fl_nn_module *net = fl_nn_sequential_of(0, NULL);
    add_body(net, p, bottleneck, false);
    fl_nn_add(net, "avgpool", fl_nn_adaptive_avg_pool2d(1, 1));
    fl_nn_add(net, "flatten", fl_nn_view(FL_SHAPE(-1, -1)));
    fl_nn_add(net, "fc", fl_nn_linear(out, model_classes(p)));
    return net;
}

fl_nn_module *model_resnet_body(const model_preset *p, bool frozen) {
    fl_nn_module *body = fl_nn_sequential_of(0, NULL);
    add_body(body, p, true, frozen);
    return body;
}

int64_t model_resnet_channels(const model_preset *p) { return p->tiny ? 256 : 2048; }

static fl_nn_module *build50(const model_preset *p) { return resnet(p, true); }

static fl_nn_module *build34(const model_preset *p) { return resnet(p, false); }

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
