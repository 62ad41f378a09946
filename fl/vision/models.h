/* fl/vision/models.h - image networks (ResNet, VGG, ViT, DETR ...) and loading of pretrained weights */
#ifndef FL_NN_H
#include "../../fl_nn.h"
#endif
#ifndef FL_VISION_MODELS_H
#define FL_VISION_MODELS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_vision_model_opts {
    fl_opts_guard guard_;
    int64_t classes;  /* 0 -> 1000; DETR: 91, without the class "no object" */
    int64_t channels; /* image channels; 0 -> 3 */
    int64_t size;     /* ViT: image height and width, for its position embedding; 0 -> 224. Others take any */
    int64_t patch;    /* ViT: patch size in pixels; 0 -> the network's default */
    double dropout;   /* 0 -> the network's default; FL_ZERO -> none */
    double drop_path; /* ViT: stochastic depth, linear from 0 in the first layer to this in the last */
    bool frozen;      /* ResNet: frozen batch norms, whose weights are buffers (as always in DETR) */
    int64_t divide;   /* divides all widths, for tests; 0 -> 1 */
    int64_t blocks;   /* largest number of blocks per stage or stack; 0 -> no limit */
    bool dilated;     /* ResNet: last stage with stride 1 and dilation 2 (DETR's DC5) */
    char _end;
} fl_vision_model_opts;
/* A network by name for x [n, channels, h, w] -> logits [n, classes]:
     alexnet, vgg11 vgg13 vgg16 vgg19, each with _bn too, resnet18 resnet34 resnet50 resnet101 resnet152
     mobilenet_v2, vit_ti_16 vit_s_16 vit_b_16 vit_b_32 vit_l_16, deit_ti deit_s deit_b (the same networks)
   and detr_resnet18 ... detr_resnet101, see fl_vision_detr. Parameters and buffers have torchvision's names
   (DETR: those of facebookresearch/detr), so that fl_nn_load reads its safetensors. NULL after an error. */
#define fl_vision_model(...) FL__VISION_MODEL(__VA_ARGS__, ._end = 0)
#define FL__VISION_MODEL(name, ...) fl_vision_model_opt(name, FL_LITERAL(fl_vision_model_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_vision_model_opt(const char *name, fl_vision_model_opts o);
/* Name i of the list above, or NULL past its end. */
FL_API const char *fl_vision_model_name(int i);

typedef struct fl_vision_detr_opts {
    fl_opts_guard guard_;
    int64_t classes, queries; /* 0 -> 91, 100 */
    int64_t dim, heads, hidden, layers; /* 0 -> 256, 8, 2048, 6 (each of encoder and decoder) */
    double dropout;           /* 0 -> 0.1; FL_ZERO -> none */
    int64_t divide, blocks;   /* of the backbone, as in fl_vision_model_opts */
    bool dilated;             /* dilated last stage: DETR-DC5 */
    bool live;                /* train the whole backbone, with its norms: for training from scratch */
    char _end;
} fl_vision_detr_opts;
/* DETR (arXiv 2005.12872) with a ResNet backbone of depth 18 to 101, whose norms, stem and first stage are
   frozen (requires_grad is false). Inputs: x [n, 3, h, w] and optionally a padding mask b8 [n, h, w], true
   outside the image. Results: logits [n, queries, classes + 1] and boxes [n, queries, 4] (FL_VISION_CXCYWH
   relative to the image's size); then both for all decoder layers, [layers, n, queries, ...], for auxiliary
   losses. NULL after an error. */
#define fl_vision_detr(...) FL__VISION_DETR(__VA_ARGS__, ._end = 0)
#define FL__VISION_DETR(depth, ...) fl_vision_detr_opt(depth, FL_LITERAL(fl_vision_detr_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_vision_detr_opt(int depth, fl_vision_detr_opts o);

typedef enum fl_vision_names {
    FL_VISION_TORCHVISION,
    FL_VISION_TIMM,
    FL_VISION_HUGGING_FACE
} fl_vision_names;
/* Loads weights (safetensors, or the .json index of a sharded checkpoint) with the given library's names.
   Separate q, k and v are concatenated, f16 and bf16 are converted to f32, and a position embedding of
   another size is resized (bicubic, except the class token). A head with a different number of classes is
   left
   unchanged, which is reported by fl_log_message at FL_LOG_INFO. Everything is read and checked before m
   changes. False after fl_fail, which names the missing or mismatched tensor. */
FL_API bool fl_vision_load(fl_nn_module *m, const char *path, fl_vision_names names);
/* The number of classes of the weights in such a file, as in fl_vision_model_opts. m: the network, with any
   number of classes. -1 after fl_fail. */
FL_API int64_t fl_vision_classes(fl_nn_module *m, const char *path, fl_vision_names names);

#ifdef __cplusplus
}
#endif
#endif /* FL_VISION_MODELS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_VISION_MODELS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_MODELS_IMPL
#define FL_VISION_MODELS_IMPL
#include "../data/shards.h"
#include "../nn/attention.h"
#include "../nn/container.h"
#include "../nn/conv.h"
#include "../nn/dropout.h"
#include "../nn/init.h"
#include "../nn/layers.h"
#include "../nn/norm.h"
#include "../nn/pool.h"
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/image.h"
#include "../ops/linear.h"
#include "../ops/move.h"
#include "../ops/random.h"
#include "../ops/reduce.h"
#include "../ops/view.h"
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* width / divide, at least 1. */
static int64_t fl__zoo_width(const fl_vision_model_opts *o, int64_t width) {
    const int64_t w = width / (o->divide ? o->divide : 1);
    return w ? w : 1;
}

static int64_t fl__zoo_blocks(const fl_vision_model_opts *o, int64_t n) {
    return o->blocks && o->blocks < n ? o->blocks : n;
}

static fl_nn_module *fl__zoo_dropout(const fl_vision_model_opts *o, double p) {
    return fl_nn_dropout(fl_option(o->dropout, p));
}

static fl_nn_module *fl__zoo_flatten(void) {
    return fl_nn_view(FL_SHAPE(-1, -1));
}

/* Adds a child named `name` + i. */
static fl_nn_module *fl__zoo_add(fl_nn_module *m, const char *name, int64_t i, fl_nn_module *child) {
    char text[FL_NN_NAME];
    snprintf(text, sizeof text, "%s%" PRId64, name, i);
    return fl_nn_add(m, text, child);
}

/* ---- AlexNet and VGG ---- */

static fl_nn_module *fl__zoo_classifier(fl_nn_module *features, int64_t side, fl_nn_module *classifier) {
    fl_nn_module *m = fl_nn_sequential_of(0, NULL);
    const bool ok = fl_nn_add(m, "features", features) &&
                    fl_nn_add(m, "avgpool", fl_nn_adaptive_avg_pool2d(side, side)) &&
                    fl_nn_add(m, "flatten", fl__zoo_flatten()) && fl_nn_add(m, "classifier", classifier) &&
                    fl_nn_pool_before_relu(m);
    if (ok) return m;
    fl_nn_free(m);
    return NULL;
}

static fl_nn_module *fl__zoo_alexnet(const fl_vision_model_opts *o) {
    const int64_t a = fl__zoo_width(o, 64), b = fl__zoo_width(o, 192), c = fl__zoo_width(o, 384),
                  d = fl__zoo_width(o, 256);
    const int64_t hidden = o->divide > 1 ? fl__zoo_width(o, 512) : 4096;
    return fl__zoo_classifier(
        fl_nn_sequential(fl_nn_conv2d(o->channels, a, 11, .stride = 4, .pad = 2), fl_nn_relu(),
                         fl_nn_pool2d(3, .stride = 2), fl_nn_conv2d(a, b, 5, .pad = 2), fl_nn_relu(),
                         fl_nn_pool2d(3, .stride = 2), fl_nn_conv2d(b, c, 3, .pad = 1), fl_nn_relu(),
                         fl_nn_conv2d(c, d, 3, .pad = 1), fl_nn_relu(), fl_nn_conv2d(d, d, 3, .pad = 1),
                         fl_nn_relu(), fl_nn_pool2d(3, .stride = 2)),
        6,
        fl_nn_sequential(fl__zoo_dropout(o, 0.5), fl_nn_linear(36 * d, hidden), fl_nn_relu(),
                         fl__zoo_dropout(o, 0.5), fl_nn_linear(hidden, hidden), fl_nn_relu(),
                         fl_nn_linear(hidden, o->classes)));
}

/* Five stages of convolutions and a pooling; kind: 11, 13, 16 or 19. */
static fl_nn_module *fl__zoo_vgg(int kind, bool norm, const fl_vision_model_opts *o) {
    static const int64_t width[] = {64, 128, 256, 512, 512};
    fl_nn_module *m = fl_nn_sequential_of(0, NULL);
    int64_t in = o->channels;
    for (int stage = 0; m && stage < 5; stage++) {
        const int depth = kind == 11 ? 1 + (stage > 1) : kind == 13 || stage < 2 ? 2 : kind == 16 ? 3 : 4;
        for (int i = 0; i < depth; i++, in = fl__zoo_width(o, width[stage])) {
            fl_nn_add(m, NULL, fl_nn_conv2d(in, fl__zoo_width(o, width[stage]), 3, .pad = 1));
            if (norm) fl_nn_add(m, NULL, fl_nn_batch_norm2d(fl__zoo_width(o, width[stage])));
            fl_nn_add(m, NULL, fl_nn_relu());
        }
        fl_nn_add(m, NULL, fl_nn_pool2d(2));
    }
    const int64_t hidden = o->divide > 1 ? fl__zoo_width(o, 512) : 4096;
    return fl__zoo_classifier(m, 7,
                              fl_nn_sequential(fl_nn_linear(49 * in, hidden), fl_nn_relu(),
                                               fl__zoo_dropout(o, 0.5), fl_nn_linear(hidden, hidden),
                                               fl_nn_relu(), fl__zoo_dropout(o, 0.5),
                                               fl_nn_linear(hidden, o->classes)));
}

/* ---- ResNet ---- */

/* y = relu(branch(x) + shortcut(x)). The branch is conv1, bn1, conv2, ..., each norm with a relu; the last
   norm adds the shortcut before its relu. The module tree owns the children. */
typedef struct fl__zoo_block {
    int n;
    fl_nn_module *conv[3], *norm[3], *downsample; /* NULL: identity */
} fl__zoo_block;

static fl_vars fl__zoo_block_forward(fl_nn_module *m, fl_vars in) {
    const fl__zoo_block *b = fl_nn_user(m);
    const int last = b->n - 1;
    fl_var *x = in.v[0], *y = fl_nn_run_sequence(m->child, 2 * last, in).v[0];
    if (b->downsample) x = fl_nn_forward(b->downsample, x);
    return fl_nn_forward_vars(b->norm[last], FL_VARS(fl_nn_forward(b->conv[last], y), x));
}

static fl_nn_module *fl__zoo_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    return fl_nn_conv2d(in, out, kernel, .stride = stride, .pad = kernel > 1 ? kernel / 2 : FL_I0,
                        .no_bias = true);
}

/* 3x3 convolution. */
static fl_nn_module *fl__zoo_conv3(int64_t in, int64_t out, int64_t stride, int64_t dilation) {
    return fl_nn_conv2d(in, out, 3, .stride = stride, .pad = dilation, .dilation = dilation, .no_bias = true);
}

static fl_nn_module *fl__zoo_norm(int64_t channels, bool relu, bool frozen) {
    return fl_nn_batch_norm2d(channels, .relu = relu, .frozen = frozen);
}

static bool fl__zoo_pair(fl_nn_module *m, fl_nn_module *conv, fl_nn_module *norm) {
    fl__zoo_block *b = fl_nn_user(m);
    const int i = b->n++;
    b->conv[i] = fl__zoo_add(m, "conv", i + 1, conv);
    b->norm[i] = fl__zoo_add(m, "bn", i + 1, norm);
    return b->conv[i] && b->norm[i];
}

/* Residual block: 3x3, 3x3; bottleneck: 1x1, 3x3, 1x1 to four times the width. */
static fl_nn_module *fl__zoo_residual(int64_t in, int64_t width, int64_t stride, int64_t dilation,
                                      bool bottleneck, bool frozen) {
    const int64_t out = bottleneck ? 4 * width : width;
    fl__zoo_block *b = fl_heap_alloc(sizeof *b);
    fl_nn_module *m =
        b ? fl_nn_function(bottleneck ? "Bottleneck" : "BasicBlock", fl__zoo_block_forward, b, fl_heap_free)
          : NULL;
    bool ok = m != NULL;
    if (ok && bottleneck)
        ok = fl__zoo_pair(m, fl__zoo_conv(in, width, 1, 1), fl__zoo_norm(width, true, frozen)) &&
             fl__zoo_pair(m, fl__zoo_conv3(width, width, stride, dilation),
                          fl__zoo_norm(width, true, frozen)) &&
             fl__zoo_pair(m, fl__zoo_conv(width, out, 1, 1), fl__zoo_norm(out, true, frozen));
    else if (ok)
        ok = fl__zoo_pair(m, fl__zoo_conv3(in, width, stride, dilation), fl__zoo_norm(width, true, frozen)) &&
             fl__zoo_pair(m, fl__zoo_conv3(width, out, 1, dilation), fl__zoo_norm(out, true, frozen));
    if (ok && (stride != 1 || in != out))
        ok = (b->downsample = fl_nn_add(m, "downsample",
                                        fl_nn_sequential(fl__zoo_conv(in, out, 1, stride),
                                                         fl__zoo_norm(out, false, frozen)))) != NULL;
    if (ok) return m;
    fl_nn_free(m);
    return NULL;
}

static const int fl__zoo_depths[][5] = {
    {18, 2, 2, 2, 2}, {34, 3, 4, 6, 3}, {50, 3, 4, 6, 3}, {101, 3, 4, 23, 3}, {152, 3, 8, 36, 3}};

/* The layers before the global pooling: [n, c, h, w] -> [n, *out, h / 32, w / 32]. */
static fl_nn_module *fl__zoo_backbone(int depth, const fl_vision_model_opts *o, bool frozen, int64_t *out) {
    const int64_t first = fl__zoo_width(o, 64);
    const bool bottleneck = depth >= 50;
    const int *n = NULL;
    for (int i = 0; i < 5; i++)
        if (fl__zoo_depths[i][0] == depth) n = fl__zoo_depths[i];
    if (!n) return fl_err_null("fl_vision_model: no ResNet of depth %d; known: 18, 34, 50, 101, 152", depth);
    fl_nn_module *m = fl_nn_sequential_of(0, NULL);
    bool ok = fl_nn_add(m, "conv1", fl__zoo_conv(o->channels, first, 7, 2)) &&
              fl_nn_add(m, "bn1", fl__zoo_norm(first, true, frozen)) &&
              fl_nn_add(m, "maxpool", fl_nn_pool2d(3, .stride = 2, .pad = 1));
    int64_t in = first;
    for (int s = 0; ok && s < 4; s++) {
        fl_nn_module *stage = fl__zoo_add(m, "layer", s + 1, fl_nn_sequential_of(0, NULL));
        ok = stage != NULL;
        for (int64_t i = 0; ok && i < fl__zoo_blocks(o, n[s + 1]); i++) {
            /* the first block of a dilated stage has the previous dilation, 1 */
            const bool wide = o->dilated && s == 3;
            ok = fl_nn_add(stage, NULL, fl__zoo_residual(in, first << s, s && !i && !wide ? 2 : 1,
                                                         wide && i ? 2 : 1, bottleneck, frozen)) != NULL;
            in = (first << s) * (bottleneck ? 4 : 1);
        }
    }
    *out = in;
    if (ok) return m;
    fl_nn_free(m);
    return NULL;
}

static fl_nn_module *fl__zoo_resnet(int depth, const fl_vision_model_opts *o) {
    int64_t out;
    fl_nn_module *m = fl__zoo_backbone(depth, o, o->frozen, &out);
    if (m && fl_nn_add(m, "avgpool", fl_nn_adaptive_avg_pool2d(1, 1)) &&
        fl_nn_add(m, "flatten", fl__zoo_flatten()) && fl_nn_add(m, "fc", fl_nn_linear(out, o->classes)))
        return m;
    fl_nn_free(m);
    return NULL;
}

/* ---- MobileNetV2 ---- */

static fl_nn_module *fl__zoo_conv_norm6(int64_t in, int64_t out, int64_t kernel, int64_t stride,
                                        int64_t groups) {
    return fl_nn_sequential(fl_nn_conv2d(in, out, kernel, .stride = stride,
                                         .pad = kernel > 1 ? kernel / 2 : FL_I0, .groups = groups,
                                         .no_bias = true),
                            fl_nn_batch_norm2d(out), fl_nn_relu6());
}

/* y = x + conv(x), or conv(x) if the shape changes. */
static fl_vars fl__zoo_inverted_forward(fl_nn_module *m, fl_vars in) {
    fl_var *y = fl_nn_forward(m->child[0], in.v[0]);
    return FL_VARS(fl_nn_user(m) ? fv_add(in.v[0], y) : y);
}

static fl_nn_module *fl__zoo_inverted(int64_t in, int64_t out, int64_t stride, int64_t wider) {
    static int adds;
    fl_nn_module *m = fl_nn_function("InvertedResidual", fl__zoo_inverted_forward,
                                     stride == 1 && in == out ? &adds : NULL, NULL);
    fl_nn_module *conv = fl_nn_add(m, "conv", fl_nn_sequential_of(0, NULL));
    const int64_t wide = in * wider;
    const bool ok = conv && (wider == 1 || fl_nn_add(conv, NULL, fl__zoo_conv_norm6(in, wide, 1, 1, 1))) &&
                    fl_nn_add(conv, NULL, fl__zoo_conv_norm6(wide, wide, 3, stride, wide)) &&
                    fl_nn_add(conv, NULL, fl__zoo_conv(wide, out, 1, 1)) &&
                    fl_nn_add(conv, NULL, fl_nn_batch_norm2d(out));
    if (ok) return m;
    fl_nn_free(m);
    return NULL;
}

static fl_nn_module *fl__zoo_mobilenet(const fl_vision_model_opts *o) {
    static const int64_t stage[7][4] = {{1, 16, 1, 1},  {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                                        {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
    const int64_t last = fl__zoo_width(o, 1280);
    int64_t in = fl__zoo_width(o, 32);
    fl_nn_module *m = fl_nn_sequential_of(0, NULL),
                 *f = fl_nn_add(m, "features", fl_nn_sequential_of(0, NULL));
    bool ok = f && fl_nn_add(f, NULL, fl__zoo_conv_norm6(o->channels, in, 3, 2, 1));
    for (int s = 0; s < 7; s++)
        for (int64_t i = 0; ok && i < fl__zoo_blocks(o, stage[s][2]); i++, in = fl__zoo_width(o, stage[s][1]))
            ok = fl_nn_add(f, NULL,
                           fl__zoo_inverted(in, fl__zoo_width(o, stage[s][1]), i ? 1 : stage[s][3],
                                            stage[s][0])) != NULL;
    ok = ok && fl_nn_add(f, NULL, fl__zoo_conv_norm6(in, last, 1, 1, 1)) &&
         fl_nn_add(m, "avgpool", fl_nn_adaptive_avg_pool2d(1, 1)) &&
         fl_nn_add(m, "flatten", fl__zoo_flatten()) &&
         fl_nn_add(m, "classifier",
                   fl_nn_sequential(fl__zoo_dropout(o, 0.2), fl_nn_linear(last, o->classes)));
    if (ok) return m;
    fl_nn_free(m);
    return NULL;
}

/* ---- ViT ---- */

/* Encoder layer; the module tree owns the children. */
typedef struct fl__zoo_layer {
    fl_nn_module *norm1, *attention, *dropout, *norm2, *mlp, *path;
} fl__zoo_layer;

static fl_vars fl__zoo_layer_forward(fl_nn_module *m, fl_vars in) {
    const fl__zoo_layer *l = fl_nn_user(m);
    fl_var *x = in.v[0];
    fl_var *y = fl_nn_forward(l->attention, fl_nn_forward(l->norm1, x));
    y = fl_nn_forward(l->mlp, fl_nn_add_norm(l->norm2, l->dropout, l->path, y, &x));
    return FL_VARS(fv_add(x, l->path ? fl_nn_forward(l->path, y) : y));
}

static fl_nn_module *fl__zoo_layer_of(int64_t dim, int64_t heads, double drop, double path) {
    fl__zoo_layer *l = fl_heap_alloc(sizeof *l);
    fl_nn_module *m = l ? fl_nn_function("EncoderBlock", fl__zoo_layer_forward, l, fl_heap_free) : NULL;
    if (m && (l->norm1 = fl_nn_add(m, "ln_1", fl_nn_layer_norm(FL_SHAPE(dim), .eps = 1e-6))) &&
        (l->attention = fl_nn_add(m, "self_attention", fl_nn_attention(dim, heads, .dropout = drop))) &&
        (l->dropout = fl_nn_add(m, "dropout", fl_nn_dropout(drop))) &&
        (l->norm2 = fl_nn_add(m, "ln_2", fl_nn_layer_norm(FL_SHAPE(dim), .eps = 1e-6))) &&
        (l->mlp = fl_nn_add(m, "mlp",
                            fl_nn_sequential(fl_nn_linear(dim, 4 * dim, .act = fv_linear_act_of(fv_gelu)),
                                             fl_nn_identity(), fl_nn_dropout(drop),
                                             fl_nn_linear(4 * dim, dim), fl_nn_dropout(drop)))) &&
        (path == 0 || (l->path = fl_nn_add(m, "drop_path", fl_nn_drop_path(path)))))
        return m;
    fl_nn_free(m);
    return NULL;
}

typedef struct fl__zoo_vit {
    fl_nn_module *patches, *layers, *norm, *heads;
    fl_var *token, *position; /* [1, 1, dim], [1, steps, dim] */
} fl__zoo_vit;

static fl_vars fl__zoo_vit_forward(fl_nn_module *m, fl_vars in) {
    static const int pixels[] = {0, 2, 3, 1};
    const fl__zoo_vit *v = fl_nn_user(m);
    fl_var *x = fv_permute(fl_nn_forward(v->patches, in.v[0]), 4, pixels);
    if (!x) return (fl_vars){0};
    const int64_t *s = fv_value(x)->shape, n = s[0], steps = s[1] * s[2], dim = s[3];
    if (steps + 1 != fv_value(v->position)->shape[1])
        return fl_nn_fail(m, "got %" PRId64 " patches, expected %" PRId64 " as in pos_embedding", steps,
                          fv_value(v->position)->shape[1] - 1);
    fl_var *parts[] = {fv_expand(v->token, FL_SHAPE(n, 1, dim)), fv_reshape(x, FL_SHAPE(n, steps, dim))};
    x = parts[0] && parts[1] ? fv_add(fv_concat(parts, 2, 1), v->position) : NULL;
    x = fl_nn_forward(v->norm, fl_nn_forward(v->layers, x));
    return FL_VARS(fl_nn_forward(v->heads, fv_select(x, 1, 0)));
}

static fl_nn_module *fl__zoo_vit_of(int64_t dim, int64_t layers, int64_t heads, int64_t patch,
                                    const fl_vision_model_opts *o) {
    const int64_t side = o->size / patch;
    dim = fl__zoo_width(o, dim), layers = fl__zoo_blocks(o, layers);
    while (dim % heads) heads--;
    fl__zoo_vit *v = fl_heap_alloc(sizeof *v);
    fl_nn_module *m = v ? fl_nn_function("VisionTransformer", fl__zoo_vit_forward, v, fl_heap_free) : NULL;
    fl_nn_module *encoder = m ? fl_nn_sequential_of(0, NULL) : NULL;
    if (!encoder) {
        fl_nn_free(m);
        return NULL;
    }
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    const double drop = fl_option(o->dropout, 0);
    bool ok =
        (v->token = fl_nn_add_param(m, "class_token", fv_param(fl_zeros(FL_SHAPE(1, 1, dim), FL_F32)))) &&
        (v->patches = fl_nn_add(m, "conv_proj", fl_nn_conv2d(o->channels, dim, patch, .stride = patch))) &&
        (encoder = fl_nn_add(m, "encoder", encoder)) &&
        (v->position = fl_nn_add_param(
             encoder, "pos_embedding",
             fv_param(fl_normal(FL_SHAPE(1, 1 + side * side, dim), 0, 0.02, FL_F32, NULL)))) &&
        (v->layers = fl_nn_add(encoder, "layers", fl_nn_sequential_of(0, NULL)));
    for (int64_t i = 0; ok && i < layers; i++)
        ok = fl__zoo_add(v->layers, "encoder_layer_", i,
                         fl__zoo_layer_of(dim, heads, drop,
                                          layers > 1 ? o->drop_path * (double)i / (double)(layers - 1)
                                                     : 0)) != NULL;
    ok = ok && (v->norm = fl_nn_add(encoder, "ln", fl_nn_layer_norm(FL_SHAPE(dim), .eps = 1e-6))) &&
         (v->heads = fl_nn_add(m, "heads", fl_nn_sequential_of(0, NULL))) &&
         fl_nn_add(v->heads, "head", fl_nn_linear(dim, o->classes));
    fl_scope_end(&s);
    if (ok) return m;
    fl_nn_free(m);
    return NULL;
}

/* ---- DETR ---- */

/* Positions are added to queries and keys, not to values. The module tree owns the children. */
typedef struct fl__detr_layer {
    fl_nn_module *self, *cross, *norm[3], *up, *down, *dropout;
} fl__detr_layer;

static fl_var *fl__detr_add_norm(const fl__detr_layer *l, int i, fl_var *x, fl_var *branch) {
    return fl_nn_add_norm(l->norm[i], l->dropout, NULL, branch, &x);
}

/* Inputs: x and its positions; in the decoder also the encoder's output and its positions; optionally an
   attention mask b8 [n, 1, 1, positions], true for visible positions. Returns x. */
static fl_vars fl__detr_layer_forward(fl_nn_module *m, fl_vars in) {
    const fl__detr_layer *l = fl_nn_user(m);
    fl_var *x = in.v[0], *q = fv_add(x, in.v[1]), *mask = in.n % 2 ? in.v[in.n - 1] : fv_num(0);
    x = fl__detr_add_norm(l, 0, x,
                          fl_nn_forward_vars(l->self, FL_VARS(q, q, x, l->cross ? fv_num(0) : mask)).v[0]);
    if (l->cross) {
        const fl_vars across = FL_VARS(fv_add(x, in.v[1]), fv_add(in.v[2], in.v[3]), in.v[2], mask);
        x = fl__detr_add_norm(l, 1, x, fl_nn_forward_vars(l->cross, across).v[0]);
    }
    fl_var *y = fl_nn_forward(l->dropout, fl_nn_forward(l->up, x));
    return FL_VARS(fl__detr_add_norm(l, l->cross ? 2 : 1, x, fl_nn_forward(l->down, y)));
}

static fl_nn_module *fl__detr_layer_of(const fl_vision_detr_opts *o, bool decoder) {
    fl__detr_layer *l = fl_heap_alloc(sizeof *l);
    fl_nn_module *m = l ? fl_nn_function(decoder ? "TransformerDecoderLayer" : "TransformerEncoderLayer",
                                         fl__detr_layer_forward, l, fl_heap_free) : NULL;
    bool ok =
        m &&
        (l->self = fl_nn_add(m, "self_attn", fl_nn_attention(o->dim, o->heads, .dropout = o->dropout))) &&
        (!decoder || (l->cross = fl_nn_add(m, "multihead_attn",
                                           fl_nn_attention(o->dim, o->heads, .dropout = o->dropout)))) &&
        (l->up =
             fl_nn_add(m, "linear1", fl_nn_linear(o->dim, o->hidden, .act = fv_linear_act_of(fv_relu)))) &&
        (l->down = fl_nn_add(m, "linear2", fl_nn_linear(o->hidden, o->dim))) &&
        (l->dropout = fl_nn_add(m, "dropout", fl_nn_dropout(o->dropout)));
    for (int i = 0; ok && i < (decoder ? 3 : 2); i++)
        ok = (l->norm[i] = fl__zoo_add(m, "norm", i + 1, fl_nn_layer_norm(FL_SHAPE(o->dim)))) != NULL;
    if (ok) return m;
    fl_nn_free(m);
    return NULL;
}

typedef struct fl__detr {
    fl_nn_module *body, *project, *encoder, *decoder, *norm, *kind, *box[3];
    fl_var *query; /* [queries, dim] */
    int64_t dim;
} fl__detr;

/* Sine embedding of y and x at [n, h, w] positions, each scaled to 0 ... 2 pi over the visible ones (seen
   NULL: all): [n, h w, dim], the first half for y. */
static fl_tensor *fl__detr_positions(const bool *seen, int64_t n, int64_t h, int64_t w, int64_t dim) {
    const int64_t half = dim / 2;
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(n, h * w, dim), FL_F32);
    float *at = t ? fl_heap_alloc((size_t)(2 * n * h * w + 1) * sizeof *at) : NULL,
          *to = at ? fl_map(t, FL_WRITE) : NULL;
    for (int64_t i = 0; to && i < n * h * w; i++) { /* cumulative sums along y and x */
        const int64_t y = i / w % h, x = i % w;
        const float one = !seen || seen[i];
        at[2 * i] = one + (y ? at[2 * (i - w)] : 0), at[2 * i + 1] = one + (x ? at[2 * (i - 1) + 1] : 0);
    }
    for (int64_t i = 0; to && i < n * h * w; i++) {
        const int64_t image = i / (h * w), last_y = (image * h + h - 1) * w + i % w,
                      last_x = i / w * w + w - 1;
        const double position[] = {at[2 * i] / (at[2 * last_y] + 1e-6f),
                                   at[2 * i + 1] / (at[2 * last_x + 1] + 1e-6f)};
        for (int64_t k = 0; k < dim; k++) {
            const int64_t j = k % half;
            const double angle =
                6.283185307179586 * position[k >= half] / pow(10000, (double)(j / 2 * 2) / (double)half);
            to[i * dim + k] = (float)(j % 2 ? cos(angle) : sin(angle));
        }
    }
    if (to) fl_unmap(t, FL_WRITE);
    fl_heap_free(at);
    return to ? t : NULL;
}

/* Visible positions of the backbone's output, b8 [n, h, w]: mask [n, H, W] negated, nearest neighbour. */
static fl_tensor *fl__detr_visible(fl_tensor *mask, int64_t h, int64_t w) {
    fl_tensor *m = fl_contiguous(fl_to(mask, "cpu"));
    fl_tensor *t = m ? fl_data_host_tensor(FL_SHAPE(m->shape[0], h, w), FL_B8) : NULL;
    const bool *from = t ? fl_map(m, FL_READ) : NULL;
    bool *to = from ? fl_map(t, FL_WRITE) : NULL;
    for (int64_t i = 0; to && i < fl_numel(t); i++) {
        const int64_t H = m->shape[1], W = m->shape[2];
        to[i] = !from[(i / (h * w) * H + i / w % h * H / h) * W + i % w * W / w];
    }
    if (to) fl_unmap(t, FL_WRITE);
    if (from) fl_unmap(m, FL_READ);
    return to ? t : NULL;
}

static fl_vars fl__detr_forward(fl_nn_module *m, fl_vars in) {
    static const int pixels[] = {0, 2, 3, 1};
    const fl__detr *d = fl_nn_user(m);
    if (in.n < 1 || in.n > 2) return fl_nn_fail(m, "got %d inputs, expected images, optionally a mask", in.n);
    fl_var *x = fl_nn_forward(d->project, fl_nn_forward(d->body, in.v[0]));
    x = fv_permute(x, 4, pixels);
    if (!x) return (fl_vars){0};
    const char *backend = fl_backend_name(fv_value(x));
    const int64_t n = fv_value(x)->shape[0], h = fv_value(x)->shape[1], w = fv_value(x)->shape[2];
    const fl_tensor *mask = in.n > 1 ? fv_value(in.v[1]) : NULL;
    if (mask && (mask->dtype != FL_B8 || mask->ndim != 3 || mask->shape[0] != n))
        return fl_nn_fail(m, "mask is %s %s, expected b8 [%" PRId64 ", h, w]", fl_dtype_name(mask->dtype),
                          FL_SHAPE_TEXT(mask), n);
    fl_tensor *seen = mask ? fl__detr_visible(fv_value(in.v[1]), h, w) : NULL;
    const bool *seen_at = seen ? fl_map(seen, FL_READ) : NULL;
    fl_tensor *positions = !mask || seen_at ? fl__detr_positions(seen_at, n, h, w, d->dim) : NULL;
    if (seen_at) fl_unmap(seen, FL_READ);
    fl_var *position = positions ? fv_const(fl_to(positions, backend)) : NULL;
    fl_var *visible =
        seen ? fv_const(fl_to(fl_reshape(seen, FL_SHAPE(n, 1, 1, h * w)), backend)) : fv_num(0);
    x = fv_reshape(x, FL_SHAPE(n, h * w, d->dim));
    if (!position || !x || !visible) return (fl_vars){0};
    for (int64_t i = 0; x && i < d->encoder->n_child; i++)
        x = fl_nn_forward_vars(d->encoder->child[i], FL_VARS(x, position, visible)).v[0];
    const fl_shape all = FL_SHAPE(n, fv_value(d->query)->shape[0], d->dim);
    fl_var *y = fv_const(fl_to(fl_zeros(all, FL_F32), backend)), *query = fv_expand(d->query, all), *each[64];
    const int64_t layers = d->decoder->n_child;
    for (int64_t i = 0; i < layers; i++) {
        y = fl_nn_forward_vars(d->decoder->child[i], FL_VARS(y, query, x, position, visible)).v[0];
        each[i] = fl_nn_forward(d->norm, y);
        if (!each[i]) return (fl_vars){0};
    }
    y = fv_stack(each, (int)layers, 0);
    fl_var *kinds = fl_nn_forward(d->kind, y), *boxes = y;
    for (int i = 0; i < 3; i++) boxes = fl_nn_forward(d->box[i], boxes);
    boxes = fv_sigmoid(boxes);
    return FL_VARS(fv_select(kinds, 0, layers - 1), fv_select(boxes, 0, layers - 1), kinds, boxes);
}

/* Freezes the stem and the first stage. */
static void fl__detr_freeze(fl_nn_module *body) {
    static const char *const names[] = {"conv1", "layer1"};
    for (int i = 0; i < 2; i++) {
        const fv_list p = fl_nn_parameters(fl_nn_find(body, names[i]));
        for (int k = 0; k < p.n; k++) p.v[k]->requires_grad = false;
    }
}

FL_API fl_nn_module *fl_vision_detr_opt(int depth, fl_vision_detr_opts o) {
    const fl_vision_model_opts body = {
        .channels = 3, .divide = o.divide, .blocks = o.blocks, .dilated = o.dilated};
    o.classes = o.classes ? o.classes : 91, o.queries = o.queries ? o.queries : 100,
    o.dim = o.dim ? o.dim : 256;
    o.heads = o.heads ? o.heads : 8, o.hidden = o.hidden ? o.hidden : 2048,
    o.layers = o.layers ? o.layers : 6;
    o.dropout = fl_option(o.dropout, 0.1);
    if (o.classes < 1 || o.queries < 1 || o.dim < 4 || o.dim % 4 || o.dim % o.heads || o.layers < 1 ||
        o.layers > 64 || depth > 101)
        return fl_err_null("fl_vision_detr: got depth %d, classes %" PRId64 ", queries %" PRId64 ", dim %"
                           PRId64 ", heads %" PRId64 ", layers %" PRId64 "; expected depth 18 to 101, "
                           "classes and queries >= 1, dim a multiple of 4 and of heads, layers 1 to 64",
                           depth, o.classes, o.queries, o.dim, o.heads, o.layers);
    int64_t channels = 0;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl__detr *d = fl_heap_alloc(sizeof *d);
    fl_nn_module *m = d ? fl_nn_function("DETR", fl__detr_forward, d, fl_heap_free) : NULL;
    fl_nn_module *t = m ? fl_nn_add(m, "transformer", fl_nn_sequential_of(0, NULL)) : NULL;
    fl_nn_module *encoder = t ? fl_nn_add(t, "encoder", fl_nn_sequential_of(0, NULL)) : NULL;
    fl_nn_module *decoder = t ? fl_nn_add(t, "decoder", fl_nn_sequential_of(0, NULL)) : NULL;
    bool ok = encoder && decoder &&
              (d->encoder = fl_nn_add(encoder, "layers", fl_nn_module_list_of(0, NULL))) &&
              (d->decoder = fl_nn_add(decoder, "layers", fl_nn_module_list_of(0, NULL)));
    for (int64_t i = 0; ok && i < o.layers; i++)
        ok = fl_nn_add(d->encoder, NULL, fl__detr_layer_of(&o, false)) &&
             fl_nn_add(d->decoder, NULL, fl__detr_layer_of(&o, true));
    ok = ok && (d->norm = fl_nn_add(decoder, "norm", fl_nn_layer_norm(FL_SHAPE(o.dim)))) &&
         (d->kind = fl_nn_add(m, "class_embed", fl_nn_linear(o.dim, o.classes + 1)));
    fl_nn_module *box = ok ? fl_nn_add(m, "bbox_embed", fl_nn_sequential_of(0, NULL)) : NULL;
    box = box ? fl_nn_add(box, "layers", fl_nn_module_list_of(0, NULL)) : NULL;
    for (int i = 0; box && i < 3; i++) {
        d->box[i] = fl_nn_add(box, NULL,
                              i < 2 ? fl_nn_linear(o.dim, o.dim, .act = fv_linear_act_of(fv_relu))
                                    : fl_nn_linear(o.dim, 4));
        if (!d->box[i]) box = NULL;
    }
    fl_nn_module *query = box ? fl_nn_add(m, "query_embed", fl_nn_module_list_of(0, NULL)) : NULL;
    d ? d->dim = o.dim : 0;
    ok = query &&
         (d->query = fl_nn_add_param(query, "weight",
                                     fv_param(fl_normal(FL_SHAPE(o.queries, o.dim), 0, 1, FL_F32, NULL))));
    fl_nn_module *backbone = ok ? fl_nn_add(m, "backbone", fl_nn_sequential_of(0, NULL)) : NULL;
    backbone = backbone ? fl_nn_add(backbone, "0", fl_nn_sequential_of(0, NULL)) : NULL;
    ok = backbone &&
         (d->body = fl_nn_add(backbone, "body", fl__zoo_backbone(depth, &body, !o.live, &channels))) &&
         (d->project = fl_nn_add(m, "input_proj", fl_nn_conv2d(channels, o.dim, 1)));
    if (ok && !o.live) fl__detr_freeze(d->body);
    fl_scope_end(&s);
    return fl_nn_finish(m, ok);
}

/* ---- by name ---- */

enum {
    FL__ZOO_ALEXNET,
    FL__ZOO_VGG,
    FL__ZOO_VGG_BN,
    FL__ZOO_RESNET,
    FL__ZOO_MOBILENET,
    FL__ZOO_VIT,
    FL__ZOO_DETR
};
static const struct fl__zoo_entry {
    const char *name;
    int arch, a[4]; /* depth; or dim, layers, heads, patch */
} fl__zoo[] = {
    {"alexnet", FL__ZOO_ALEXNET, {0}},
    {"vgg11", FL__ZOO_VGG, {11}},
    {"vgg13", FL__ZOO_VGG, {13}},
    {"vgg16", FL__ZOO_VGG, {16}},
    {"vgg19", FL__ZOO_VGG, {19}},
    {"vgg11_bn", FL__ZOO_VGG_BN, {11}},
    {"vgg13_bn", FL__ZOO_VGG_BN, {13}},
    {"vgg16_bn", FL__ZOO_VGG_BN, {16}},
    {"vgg19_bn", FL__ZOO_VGG_BN, {19}},
    {"resnet18", FL__ZOO_RESNET, {18}},
    {"resnet34", FL__ZOO_RESNET, {34}},
    {"resnet50", FL__ZOO_RESNET, {50}},
    {"resnet101", FL__ZOO_RESNET, {101}},
    {"resnet152", FL__ZOO_RESNET, {152}},
    {"mobilenet_v2", FL__ZOO_MOBILENET, {0}},
    {"vit_ti_16", FL__ZOO_VIT, {192, 12, 3, 16}},
    {"vit_s_16", FL__ZOO_VIT, {384, 12, 6, 16}},
    {"vit_b_16", FL__ZOO_VIT, {768, 12, 12, 16}},
    {"vit_b_32", FL__ZOO_VIT, {768, 12, 12, 32}},
    {"vit_l_16", FL__ZOO_VIT, {1024, 24, 16, 16}},
    {"deit_ti", FL__ZOO_VIT, {192, 12, 3, 16}},
    {"deit_s", FL__ZOO_VIT, {384, 12, 6, 16}},
    {"deit_b", FL__ZOO_VIT, {768, 12, 12, 16}},
    {"detr_resnet18", FL__ZOO_DETR, {18}},
    {"detr_resnet34", FL__ZOO_DETR, {34}},
    {"detr_resnet50", FL__ZOO_DETR, {50}},
    {"detr_resnet101", FL__ZOO_DETR, {101}},
};
enum { FL__ZOO_COUNT = sizeof fl__zoo / sizeof *fl__zoo };

FL_API const char *fl_vision_model_name(int i) {
    return i >= 0 && i < FL__ZOO_COUNT ? fl__zoo[i].name : NULL;
}

FL_API fl_nn_module *fl_vision_model_opt(const char *name, fl_vision_model_opts o) {
    const struct fl__zoo_entry *e = NULL;
    for (int i = 0; name && i < FL__ZOO_COUNT; i++)
        if (!strcmp(fl__zoo[i].name, name)) e = &fl__zoo[i];
    if (!e)
        return fl_err_null("fl_vision_model: unknown network '%s'; fl_vision_model_name lists the known ones",
                           name ? name : "NULL");
    const int64_t size = o.size ? o.size : 224;
    const int64_t patch = e->arch != FL__ZOO_VIT ? 1 : o.patch ? o.patch : e->a[3];
    if (o.classes < 0 || o.channels < 0 || patch < 1 || size < patch || size % patch || o.divide < 0 ||
        o.blocks < 0)
        return fl_err_null("fl_vision_model: %s: got classes %" PRId64 ", channels %" PRId64 ", size %" PRId64
                           ", patch %" PRId64 ", divide %" PRId64 ", blocks %" PRId64 "; expected >= 0, size "
                           "a multiple of patch", name, o.classes, o.channels, size, patch, o.divide,
                           o.blocks);
    if (e->arch == FL__ZOO_DETR)
        return fl_vision_detr(e->a[0], .classes = o.classes, .dropout = o.dropout, .divide = o.divide,
                              .blocks = o.blocks, .dilated = o.dilated);
    o.size = size, o.classes = o.classes ? o.classes : 1000, o.channels = o.channels ? o.channels : 3;
    fl_quiet(+1);
    fl_nn_module *m = NULL;
    switch (e->arch) {
    case FL__ZOO_ALEXNET: m = fl__zoo_alexnet(&o); break;
    case FL__ZOO_VGG:
    case FL__ZOO_VGG_BN: m = fl__zoo_vgg(e->a[0], e->arch == FL__ZOO_VGG_BN, &o); break;
    case FL__ZOO_RESNET: m = fl__zoo_resnet(e->a[0], &o); break;
    case FL__ZOO_MOBILENET: m = fl__zoo_mobilenet(&o); break;
    default: m = fl__zoo_vit_of(e->a[0], e->a[1], e->a[2], patch, &o);
    }
    return fl_nn_finish(m, m != NULL);
}

/* ---- weights with other libraries' names ---- */

/* Prefix of our name, and of theirs: # is a number, #- that number minus 1, @ a word, | separates tensors to
   be concatenated. If several rules match a name, the first one whose tensors are in the file applies. */
typedef struct fl__zoo_rule {
    fl_vision_names names;
    const char *ours, *theirs;
} fl__zoo_rule;
#define FL__VIT_LAYER "encoder.layers.encoder_layer_#."
#define FL__HF_LAYER "vit.layers.#."
#define FL__HF_OLD "vit.encoder.layer.#."
#define FL__DETR_LAYER "transformer.@.layers.#."
#define FL__HF_DETR "model.@.layers.#."
static const fl__zoo_rule fl__zoo_rules[] = {
    {FL_VISION_TIMM, "class_token", "cls_token"},
    {FL_VISION_TIMM, "encoder.pos_embedding", "pos_embed"},
    {FL_VISION_TIMM, "conv_proj.", "patch_embed.proj."},
    {FL_VISION_TIMM, FL__VIT_LAYER "ln_1.", "blocks.#.norm1."},
    {FL_VISION_TIMM, FL__VIT_LAYER "self_attention.in_proj_", "blocks.#.attn.qkv."},
    {FL_VISION_TIMM, FL__VIT_LAYER "self_attention.out_proj.", "blocks.#.attn.proj."},
    {FL_VISION_TIMM, FL__VIT_LAYER "ln_2.", "blocks.#.norm2."},
    {FL_VISION_TIMM, FL__VIT_LAYER "mlp.0.", "blocks.#.mlp.fc1."},
    {FL_VISION_TIMM, FL__VIT_LAYER "mlp.3.", "blocks.#.mlp.fc2."},
    {FL_VISION_TIMM, "encoder.ln.", "norm."},
    {FL_VISION_TIMM, "heads.head.", "head."},
    {FL_VISION_HUGGING_FACE, "class_token", "vit.embeddings.cls_token"},
    {FL_VISION_HUGGING_FACE, "encoder.pos_embedding", "vit.embeddings.position_embeddings"},
    {FL_VISION_HUGGING_FACE, "conv_proj.", "vit.embeddings.patch_embeddings.projection."},
    {FL_VISION_HUGGING_FACE, FL__VIT_LAYER "ln_1.", FL__HF_LAYER "layernorm_before."},
    {FL_VISION_HUGGING_FACE, FL__VIT_LAYER "self_attention.in_proj_",
     FL__HF_LAYER "attention.q_proj.|" FL__HF_LAYER "attention.k_proj.|" FL__HF_LAYER "attention.v_proj."},
    {FL_VISION_HUGGING_FACE, FL__VIT_LAYER "self_attention.out_proj.", FL__HF_LAYER "attention.o_proj."},
    {FL_VISION_HUGGING_FACE, FL__VIT_LAYER "ln_2.", FL__HF_LAYER "layernorm_after."},
    {FL_VISION_HUGGING_FACE, FL__VIT_LAYER "mlp.0.", FL__HF_LAYER "mlp.fc1."},
    {FL_VISION_HUGGING_FACE, FL__VIT_LAYER "mlp.3.", FL__HF_LAYER "mlp.fc2."},
    {FL_VISION_HUGGING_FACE, "encoder.ln.", "vit.layernorm."},
    {FL_VISION_HUGGING_FACE, "heads.head.", "classifier."},
    {FL_VISION_HUGGING_FACE, "conv1.", "resnet.embedder.embedder.convolution."},
    {FL_VISION_HUGGING_FACE, "bn1.", "resnet.embedder.embedder.normalization."},
    {FL_VISION_HUGGING_FACE, "layer#.#.conv#.", "resnet.encoder.stages.#-.layers.#.layer.#-.convolution."},
    {FL_VISION_HUGGING_FACE, "layer#.#.bn#.", "resnet.encoder.stages.#-.layers.#.layer.#-.normalization."},
    {FL_VISION_HUGGING_FACE, "layer#.#.downsample.0.",
     "resnet.encoder.stages.#-.layers.#.shortcut.convolution."},
    {FL_VISION_HUGGING_FACE, "layer#.#.downsample.1.",
     "resnet.encoder.stages.#-.layers.#.shortcut.normalization."},
    {FL_VISION_HUGGING_FACE, "fc.", "classifier.1."},
    {FL_VISION_HUGGING_FACE, "backbone.0.body.", "model.backbone.model."},
    {FL_VISION_HUGGING_FACE, "input_proj.", "model.input_projection."},
    {FL_VISION_HUGGING_FACE, "query_embed.", "model.query_position_embeddings."},
    {FL_VISION_HUGGING_FACE, "transformer.decoder.norm.", "model.decoder.layernorm."},
    {FL_VISION_HUGGING_FACE, "class_embed.", "class_labels_classifier."},
    {FL_VISION_HUGGING_FACE, "bbox_embed.", "bbox_predictor."},
    {FL_VISION_HUGGING_FACE, FL__DETR_LAYER "self_attn.in_proj_",
     FL__HF_DETR "self_attn.q_proj.|" FL__HF_DETR "self_attn.k_proj.|" FL__HF_DETR "self_attn.v_proj."},
    {FL_VISION_HUGGING_FACE, FL__DETR_LAYER "multihead_attn.in_proj_",
     FL__HF_DETR "encoder_attn.q_proj.|" FL__HF_DETR "encoder_attn.k_proj.|" FL__HF_DETR
                 "encoder_attn.v_proj."},
    {FL_VISION_HUGGING_FACE, FL__DETR_LAYER "self_attn.out_proj.", FL__HF_DETR "self_attn.o_proj."},
    {FL_VISION_HUGGING_FACE, FL__DETR_LAYER "multihead_attn.out_proj.", FL__HF_DETR "encoder_attn.o_proj."},
    {FL_VISION_HUGGING_FACE, FL__DETR_LAYER "linear#.", FL__HF_DETR "mlp.fc#."},
    {FL_VISION_HUGGING_FACE, FL__DETR_LAYER "norm1.", FL__HF_DETR "self_attn_layer_norm."},
    {FL_VISION_HUGGING_FACE, "transformer.encoder.layers.#.norm2.",
     "model.encoder.layers.#.final_layer_norm."},
    {FL_VISION_HUGGING_FACE, FL__DETR_LAYER "norm2.", FL__HF_DETR "encoder_attn_layer_norm."},
    {FL_VISION_HUGGING_FACE, FL__DETR_LAYER "norm3.", FL__HF_DETR "final_layer_norm."},
    /* files written before transformers 5 */
    {FL_VISION_HUGGING_FACE, "backbone.0.body.", "model.backbone.conv_encoder.model."},
    {FL_VISION_HUGGING_FACE, FL__DETR_LAYER "self_attn.out_proj.", FL__HF_DETR "self_attn.out_proj."},
    {FL_VISION_HUGGING_FACE, FL__DETR_LAYER "multihead_attn.out_proj.", FL__HF_DETR "encoder_attn.out_proj."},
    {FL_VISION_HUGGING_FACE, FL__DETR_LAYER "linear#.", FL__HF_DETR "fc#."},
    {FL_VISION_HUGGING_FACE, FL__VIT_LAYER "ln_1.", FL__HF_OLD "layernorm_before."},
    {FL_VISION_HUGGING_FACE, FL__VIT_LAYER "self_attention.in_proj_",
     FL__HF_OLD "attention.attention.query.|" FL__HF_OLD "attention.attention.key.|" FL__HF_OLD
                "attention.attention.value."},
    {FL_VISION_HUGGING_FACE, FL__VIT_LAYER "self_attention.out_proj.", FL__HF_OLD "attention.output.dense."},
    {FL_VISION_HUGGING_FACE, FL__VIT_LAYER "ln_2.", FL__HF_OLD "layernorm_after."},
    {FL_VISION_HUGGING_FACE, FL__VIT_LAYER "mlp.0.", FL__HF_OLD "intermediate.dense."},
    {FL_VISION_HUGGING_FACE, FL__VIT_LAYER "mlp.3.", FL__HF_OLD "output.dense."},
    /* files written before torchvision 0.13 */
    {FL_VISION_TORCHVISION, FL__VIT_LAYER "mlp.0.", FL__VIT_LAYER "mlp.linear_1."},
    {FL_VISION_TORCHVISION, FL__VIT_LAYER "mlp.3.", FL__VIT_LAYER "mlp.linear_2."},
};

/* The matches of # and @ in a name. */
typedef struct fl__zoo_match {
    int64_t number[4];
    const char *word;
    int n_word;
} fl__zoo_match;

/* The rest of name after the prefix `pattern`, or NULL if it does not match. */
static const char *fl__zoo_matches(const char *pattern, const char *name, fl__zoo_match *m) {
    for (int n = 0; *pattern; pattern++) {
        if (*pattern == '@') {
            m->word = name, m->n_word = (int)strcspn(name, ".");
            name += m->n_word;
        } else if (*pattern != '#') {
            if (*name++ != *pattern) return NULL;
        } else {
            if (!isdigit((uint8_t)*name) || n == 4) return NULL;
            for (m->number[n] = 0; isdigit((uint8_t)*name) && m->number[n] < 100000; name++)
                m->number[n] = 10 * m->number[n] + *name - '0';
            n++;
        }
    }
    return name;
}

/* Translates our name by the nth matching rule (the name itself counts as the first). Writes NUL-terminated
   names to buf; returns their number, 0 if there are no more rules, -1 if they are too long. */
static int fl__zoo_names(const char *ours, fl_vision_names names, int nth, char *buf, size_t size) {
    const char *rest = nth ? NULL : ours, *theirs = "";
    fl__zoo_match m = {{0}, "", 0};
    int parts = 1, n = 0;
    nth -= names == FL_VISION_TORCHVISION; /* uses the same names */
    for (size_t i = 0; nth >= 0 && i < sizeof fl__zoo_rules / sizeof *fl__zoo_rules; i++) {
        const char *found =
            fl__zoo_rules[i].names == names ? fl__zoo_matches(fl__zoo_rules[i].ours, ours, &m) : NULL;
        if (!found || nth-- > 0) continue;
        rest = found, theirs = fl__zoo_rules[i].theirs;
        break;
    }
    if (!rest) return 0;
    fl_nn_text t = {buf, size, 0};
    for (;; theirs++) {
        if (*theirs == '#') {
            const bool less = theirs[1] == '-';
            fl_nn_put(&t, "%" PRId64, m.number[n++ & 3] - less);
            theirs += less;
        } else if (*theirs == '@') {
            fl_nn_put(&t, "%.*s", m.n_word, m.word);
        } else if (*theirs == '|' || !*theirs) {
            fl_nn_put(&t, "%s", rest);
            if (!*theirs) return t.n + 1 < (int64_t)size ? parts : -1;
            if (t.n + 1 < (int64_t)size) buf[t.n] = 0;
            t.n++, parts++, n = 0;
        } else fl_nn_put(&t, "%c", *theirs);
    }
}

typedef struct fl__zoo_load {
    fl_data_file *file;
    fl_vision_names names;
    const char *path;
    int64_t classes, n, cap;
    struct fl__zoo_pair {
        fl_tensor *live, *read; /* destination; source, owned by the load's scope */
    } *pair;
} fl__zoo_load;

/* Resizes a position embedding from [1, 1 + a a, dim] to [1, 1 + b b, dim]. */
static fl_tensor *fl__zoo_positions(fl_tensor *t, int64_t steps) {
    const int64_t dim = t->shape[2], a = (int64_t)lround(sqrt((double)(t->shape[1] - 1))),
                  b = (int64_t)lround(sqrt((double)(steps - 1)));
    if (a * a + 1 != t->shape[1] || b * b + 1 != steps) return NULL;
    fl_tensor *grid = fl_reshape(fl_slice(t, 1, 1, t->shape[1], 1), FL_SHAPE(1, a, a, dim));
    grid = fl_contiguous(fl_permute(grid, 4, (int[]){0, 3, 1, 2}));
    grid = fl_interpolate(grid, FL_SHAPE(b, b), FL_CUBIC, false);
    grid = fl_reshape(fl_contiguous(fl_permute(grid, 4, (int[]){0, 2, 3, 1})), FL_SHAPE(1, b * b, dim));
    fl_tensor *both[] = {fl_slice(t, 1, 0, 1, 1), grid};
    return both[0] && grid ? fl_concat(both, 2, 1) : NULL;
}

static bool fl__zoo_is_head(const char *name) {
    static const char *const heads[] = {"fc.", "heads.head.", "classifier.", "class_embed."};
    for (int i = 0; i < 4; i++)
        if (!strncmp(name, heads[i], strlen(heads[i]))) return true;
    return false;
}

/* Finds a parameter's tensors in the file by the first rule that matches; returns their number, or 0 after
   fl_fail, which names the tensor that the first rule misses. */
static int fl__zoo_find(const fl__zoo_load *l, const char *path, char *buf, size_t size) {
    char first[4 * FL_NN_PATH] = "";
    for (int nth = 0;; nth++) {
        const int n = fl__zoo_names(path, l->names, nth, buf, size);
        if (n < 0 || n > 4) fl_fail("fl_vision_load: %s: translated name is too long", path);
        else if (!n) fl_fail("fl_vision_load: %s: tensor '%s' is missing (for %s)", l->path, first, path);
        if (n < 1 || n > 4) return 0;
        const char *name = buf;
        int there = 0;
        while (there < n && fl_data_find(l->file, name) >= 0) there++, name += strlen(name) + 1;
        if (there == n) return n;
        if (!nth) snprintf(first, sizeof first, "%s", name);
    }
}

static bool fl__zoo_read(const char *path, fl_var *param, fl_tensor *buffer, void *user) {
    fl__zoo_load *l = user;
    fl_tensor *live = param ? fv_value(param) : buffer, *part[4], *t;
    char buf[4 * FL_NN_PATH];
    const int n = fl__zoo_find(l, path, buf, sizeof buf);
    const char *name = buf;
    if (!n && strstr(path, "num_batches_tracked")) {
        fl_error_clear();
        return true;
    }
    if (!n) return false;
    for (int i = 0; i < n; i++, name += strlen(name) + 1) {
        if (!(part[i] = fl_data_read(l->file, name))) return false;
        if (fl_dtype_is_float(part[i]->dtype) && !(part[i] = fl_cast(part[i], live->dtype))) return false;
    }
    t = n == 1 ? part[0] : fl_concat(part, n, 0);
    if (!t) return false;
    if (t->ndim == 3 && live->ndim == 3 && t->shape[1] != live->shape[1] && strstr(path, "pos_embedding")) {
        fl_log_message(FL_LOG_INFO, "%s: %s is resized from %s to %s", l->path, path, FL_SHAPE_TEXT(t),
                       FL_SHAPE_TEXT(live));
        if (!(t = fl__zoo_positions(t, live->shape[1])))
            return fl_fail("fl_vision_load: %s: %s is not a square grid of positions", l->path, path);
    }
    if (!fl_same_shape(t, live) && fl__zoo_is_head(path) && t->ndim == live->ndim &&
        (t->ndim < 2 || t->shape[1] == live->shape[1])) {
        fl_log_message(FL_LOG_INFO, "%s: %s %s is not loaded: the network has %" PRId64 " classes", l->path,
                       path,
                       FL_SHAPE_TEXT(live), live->shape[0]);
        return true;
    }
    if (!fl_same_shape(t, live) || t->dtype != live->dtype)
        return fl_fail("fl_vision_load: %s: %s is %s %s, expected %s %s", l->path, path,
                       fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t), fl_dtype_name(live->dtype),
                       FL_SHAPE_TEXT(live));
    if (!fl_heap_grow(&l->pair, &l->cap, l->n + 1, sizeof *l->pair)) return false;
    l->pair[l->n++] = (struct fl__zoo_pair){live, t};
    return true;
}

static fl_data_file *fl__zoo_open(const char *path) {
    const size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".json") ? fl_data_open_sharded(path, true, false)
                                                   : fl_data_map_safetensors(path, false);
}

/* Sets l->classes to the rows of a head's weight; the last matrix counts. */
static bool fl__zoo_count(const char *path, fl_var *param, fl_tensor *buffer, void *user) {
    (void)buffer;
    fl__zoo_load *l = user;
    char name[4 * FL_NN_PATH];
    if (!param || fv_value(param)->ndim != 2 || !fl__zoo_is_head(path)) return true;
    const fl_tensor *t = fl__zoo_find(l, path, name, sizeof name) ? fl_data_read(l->file, name) : NULL;
    if (!t) return false;
    if (t->ndim != 2)
        return fl_fail("fl_vision_classes: %s: %s is %s, expected a matrix", l->path, name, FL_SHAPE_TEXT(t));
    l->classes = t->shape[0] - !strncmp(path, "class_embed.", 12); /* DETR's last row: no object */
    return true;
}

FL_API int64_t fl_vision_classes(fl_nn_module *m, const char *path, fl_vision_names names) {
    if (!m || !path) return fl_fail("fl_vision_classes: the module or path is NULL"), -1;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl__zoo_load l = {.names = names, .path = path, .classes = -1};
    l.file = fl__zoo_open(path);
    if (!l.file || !fl_nn_visit_tensors(m, fl__zoo_count, &l))
        l.classes = -1;
    else if (l.classes < 0)
        fl_fail("fl_vision_classes: the network has no classification head");
    fl_scope_end(&s);
    fl_data_close(l.file);
    fl_quiet(-1);
    return l.classes;
}

FL_API bool fl_vision_load(fl_nn_module *m, const char *path, fl_vision_names names) {
    if (!m || !path) return fl_fail("fl_vision_load: the module or path is NULL");
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    const bool no_grad = fl_no_grad(true);
    fl__zoo_load l = {.names = names, .path = path};
    l.file = fl__zoo_open(path);
    bool ok = l.file && fl_nn_visit_tensors(m, fl__zoo_read, &l);
    for (int64_t i = 0; ok && i < l.n; i++) {
        fl_tensor *t = fl_to(l.pair[i].read, fl_backend_name(l.pair[i].live));
        ok = t && fl_assign(l.pair[i].live, t);
    }
    fl_heap_free(l.pair);
    fl_no_grad(no_grad);
    fl_scope_end(&s);
    fl_data_close(l.file);
    fl_quiet(-1);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
