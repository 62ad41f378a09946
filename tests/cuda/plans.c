/* plans.c - has cuDNN plans for the convolutions and attentions of the six models on an H200, for masks and
   for dropout? Needs the library, no GPU: the device comes from tests/cuda/h200.json, and nothing runs (make
   cuda-plans) */
#include "../../fl_all.h"
#include "../../kernels/cuda/dnn.h"
#include "../../kernels/cuda/plan.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* model, batch, channels, height, width, out, kernel h, w, stride h, w, pad h, w */
static const struct {
    const char *model;
    int64_t n, c, h, w, o, kh, kw, sh, sw, ph, pw;
} convs[] = {
    {"alexnet", 32, 3, 224, 224, 64, 11, 11, 4, 4, 2, 2},
    {"alexnet", 32, 64, 27, 27, 192, 5, 5, 1, 1, 2, 2},
    {"alexnet", 32, 192, 13, 13, 384, 3, 3, 1, 1, 1, 1},
    {"alexnet", 32, 384, 13, 13, 256, 3, 3, 1, 1, 1, 1},
    {"alexnet", 32, 256, 13, 13, 256, 3, 3, 1, 1, 1, 1},
    {"vgg16", 32, 3, 224, 224, 64, 3, 3, 1, 1, 1, 1},
    {"vgg16", 32, 64, 224, 224, 64, 3, 3, 1, 1, 1, 1},
    {"vgg16", 32, 64, 112, 112, 128, 3, 3, 1, 1, 1, 1},
    {"vgg16", 32, 128, 112, 112, 128, 3, 3, 1, 1, 1, 1},
    {"vgg16", 32, 128, 56, 56, 256, 3, 3, 1, 1, 1, 1},
    {"vgg16", 32, 256, 56, 56, 256, 3, 3, 1, 1, 1, 1},
    {"vgg16", 32, 256, 28, 28, 512, 3, 3, 1, 1, 1, 1},
    {"vgg16", 32, 512, 28, 28, 512, 3, 3, 1, 1, 1, 1},
    {"vgg16", 32, 512, 14, 14, 512, 3, 3, 1, 1, 1, 1},
    {"resnet50", 32, 3, 224, 224, 64, 7, 7, 2, 2, 3, 3},
    {"resnet50", 32, 64, 56, 56, 64, 1, 1, 1, 1, 0, 0},
    {"resnet50", 32, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1},
    {"resnet50", 32, 64, 56, 56, 256, 1, 1, 1, 1, 0, 0},
    {"resnet50", 32, 256, 56, 56, 64, 1, 1, 1, 1, 0, 0},
    {"resnet50", 32, 256, 56, 56, 128, 1, 1, 1, 1, 0, 0},
    {"resnet50", 32, 128, 56, 56, 128, 3, 3, 2, 2, 1, 1},
    {"resnet50", 32, 128, 28, 28, 512, 1, 1, 1, 1, 0, 0},
    {"resnet50", 32, 256, 56, 56, 512, 1, 1, 2, 2, 0, 0},
    {"resnet50", 32, 512, 28, 28, 128, 1, 1, 1, 1, 0, 0},
    {"resnet50", 32, 128, 28, 28, 128, 3, 3, 1, 1, 1, 1},
    {"resnet50", 32, 512, 28, 28, 256, 1, 1, 1, 1, 0, 0},
    {"resnet50", 32, 256, 28, 28, 256, 3, 3, 2, 2, 1, 1},
    {"resnet50", 32, 256, 14, 14, 1024, 1, 1, 1, 1, 0, 0},
    {"resnet50", 32, 512, 28, 28, 1024, 1, 1, 2, 2, 0, 0},
    {"resnet50", 32, 1024, 14, 14, 256, 1, 1, 1, 1, 0, 0},
    {"resnet50", 32, 256, 14, 14, 256, 3, 3, 1, 1, 1, 1},
    {"resnet50", 32, 1024, 14, 14, 512, 1, 1, 1, 1, 0, 0},
    {"resnet50", 32, 512, 14, 14, 512, 3, 3, 2, 2, 1, 1},
    {"resnet50", 32, 512, 7, 7, 2048, 1, 1, 1, 1, 0, 0},
    {"resnet50", 32, 1024, 14, 14, 2048, 1, 1, 2, 2, 0, 0},
    {"resnet50", 32, 2048, 7, 7, 512, 1, 1, 1, 1, 0, 0},
    {"resnet50", 32, 512, 7, 7, 512, 3, 3, 1, 1, 1, 1},
    {"asr", 10, 80, 1, 1500, 1536, 1, 7, 1, 3, 0, 3},
    {"vit", 128, 3, 224, 224, 768, 16, 16, 16, 16, 0, 0},
};
static const struct {
    const char *model;
    int64_t batch, heads, tokens, size;
    bool causal;
    int64_t offset;
    int mask; /* dims of it that are 1, as bits from the last; -1: there is none */
    double dropout;
} attentions[] = {{"bert", 8, 16, 128, 64, .mask = -1},
                  {"bert", 128, 16, 128, 64, .mask = -1},
                  {"bert", 8, 16, 128, 64, .mask = -1, .dropout = 0.1},
                  {"bert", 128, 16, 128, 64, .mask = -1, .dropout = 0.1},
                  {"bert", 128, 16, 128, 64, .mask = 6}, /* the keys that are padding */
                  {"bert", 128, 16, 128, 64, .mask = 6, .dropout = 0.1},
                  {"asr", 10, 4, 500, 192, .mask = -1},
                  {"asr", 10, 4, 500, 192, .mask = 6},
                  {"asr", 10, 4, 500, 192, .mask = -1, .dropout = 0.2},
                  {"asr", 10, 4, 500, 192, .mask = 6, .dropout = 0.2},
                  {"vit", 128, 12, 197, 64, .mask = -1},
                  {"vit", 128, 12, 197, 64, .mask = -1, .dropout = 0.1},
                  {"lm", 16, 8, 512, 64, .causal = true, .mask = -1},
                  {"lm", 16, 8, 512, 64, .causal = true, .mask = -1, .dropout = 0.1},
                  {"lm", 16, 8, 512, 128, .causal = true, .mask = 6},
                  {"lm", 16, 8, 512, 64, .causal = true, .offset = 7, .mask = -1},
                  {"bias", 8, 16, 384, 64, .mask = 8}, /* places to each other, the same in all images */
                  {"bias", 8, 16, 384, 64, .mask = 0}};

static int plans, holes;

static void ask(const char *model, const char *what, const char *how, const fl_call *c, const fl_tensor *x) {
    const int can = fl__cuda_dnn_plans(c);
    if (can < 0) {
        puts("skipped: cuDNN (libcudnn.so.9 is not to be found: make cuda-plans)");
        exit(0);
    }
    plans += can == 1;
    holes += can != 1;
    if (can != 1) printf("no plan: %s %s of %s, %s\n", model, what, FL_SHAPE_TEXT(x), how);
}

static fl_tensor *handle(fl_shape s, fl_dtype d, bool images_last) {
    fl_tensor *t = fl_out_on(fl_backend_index("cuda"), s, d);
    if (t && images_last) {
        t->stride[1] = 1;
        t->stride[3] = s.dim[1];
        t->stride[2] = s.dim[1] * s.dim[3];
        t->stride[0] = s.dim[1] * s.dim[2] * s.dim[3];
    }
    return t;
}

static void ask_conv(int i, fl_dtype d, bool last, const char *how) {
    const int64_t oh = (convs[i].h + 2 * convs[i].ph - convs[i].kh) / convs[i].sh + 1;
    const int64_t ow = (convs[i].w + 2 * convs[i].pw - convs[i].kw) / convs[i].sw + 1;
    fl_conv2d_args a = {.stride = {convs[i].sh, convs[i].sw},
                        .pad_lo = {convs[i].ph, convs[i].pw},
                        .pad_hi = {convs[i].ph, convs[i].pw},
                        .dilation = {1, 1},
                        .groups = 1};
    fl_tensor *x = handle(FL_SHAPE(convs[i].n, convs[i].c, convs[i].h, convs[i].w), d, last);
    fl_tensor *w = handle(FL_SHAPE(convs[i].o, convs[i].c, convs[i].kh, convs[i].kw), d, last);
    fl_tensor *y = handle(FL_SHAPE(convs[i].n, convs[i].o, oh, ow), d, last);
    fl_tensor *b = handle(FL_SHAPE(convs[i].o), d, false);
    fl_call c = {.op = FL_OP_conv2d, .n_out = 1, .n_in = 2, .out = {y}, .in = {x, w}, .args = &a};
    ask(convs[i].model, "conv2d", how, &c, x);
    if (strcmp(convs[i].model, "resnet50")) {
        fl_call with_bias = c;
        with_bias.op = fl_op_conv2d_bias, with_bias.n_in = 3, with_bias.in[2] = b;
        ask(convs[i].model, "conv2d_bias", how, &with_bias, x);
        a.relu = !strcmp(convs[i].model, "alexnet") || !strcmp(convs[i].model, "vgg16");
        if (a.relu) ask(convs[i].model, "conv2d_bias with relu", how, &with_bias, x);
        a.relu = false;
    }
    c = (fl_call){
        .op = FL_OP_conv2d_grad_weight, .n_out = 1, .n_in = 2, .out = {w}, .in = {x, y}, .args = &a};
    ask(convs[i].model, "conv2d_grad_weight", how, &c, x);
    if (convs[i].c == 3 || !strcmp(convs[i].model, "asr")) return; /* images want no gradient */
    c = (fl_call){.op = FL_OP_conv2d_grad_input, .n_out = 1, .n_in = 2, .out = {x}, .in = {y, w}, .args = &a};
    ask(convs[i].model, "conv2d_grad_input", how, &c, x);
}

/* q, k and v are parts of [batch, tokens, 3, heads, size], y is [batch, tokens, heads, size]. */
static fl_tensor *heads_of(int i, fl_dtype d, int64_t parts) {
    const int64_t h = attentions[i].heads, s = attentions[i].tokens, e = attentions[i].size;
    fl_tensor *t = handle(FL_SHAPE(attentions[i].batch, h, s, e), d, false);
    if (!t) return t;
    t->stride[0] = s * parts * h * e;
    t->stride[1] = e;
    t->stride[2] = parts * h * e;
    return t;
}

/* As the record has it: it repeats by steps of 0. */
static fl_tensor *mask_of(int i) {
    const fl_shape s = FL_SHAPE(attentions[i].batch, attentions[i].heads, attentions[i].tokens,
                                attentions[i].tokens);
    if (attentions[i].mask < 0) return fl_num(0);
    fl_tensor *t = handle(s, FL_F32, false);
    for (int k = 0; t && k < 4; k++)
        if (attentions[i].mask >> (3 - k) & 1) t->stride[k] = 0;
    return t;
}

static void ask_attention(int i, fl_dtype d, const char *how) {
    fl_attention_args a = {.scale = 0.125, .causal = attentions[i].causal,
                           .offset = attentions[i].offset, .p = attentions[i].dropout};
    fl_tensor *t[3], *g[3], *y = heads_of(i, d, 1), *dy = heads_of(i, d, 1), *mask = mask_of(i);
    fl_tensor *lse =
        handle(FL_SHAPE(attentions[i].batch, attentions[i].heads, attentions[i].tokens, 1), FL_F32, false);
    for (int k = 0; k < 3; k++) t[k] = heads_of(i, d, 3), g[k] = heads_of(i, d, 3);
    fl_call c = {.op = fl_op_attention,
                 .n_out = 2,
                 .n_in = 4,
                 .out = {y, lse},
                 .in = {t[0], t[1], t[2], mask},
                 .args = &a};
    ask(attentions[i].model, "attention", how, &c, t[0]);
    c = (fl_call){.op = fl_op_attention_grad,
                  .n_out = 3,
                  .n_in = 7,
                  .out = {g[0], g[1], g[2]},
                  .in = {t[0], t[1], t[2], mask, y, lse, dy},
                  .args = &a};
    ask(attentions[i].model, "attention_grad", how, &c, t[0]);
}

int main(int argc, char **argv) {
    static const struct {
        const char *how;
        fl_dtype d, precision;
        bool last;
    } ways[] = {{"bf16, channels last", FL_BF16, FL_F32, true},
                {"f32 by TF32, channels last", FL_F32, FL_BF16, true},
                {"f32, channels last", FL_F32, FL_F32, true},
                {"f32, channels first", FL_F32, FL_F32, false}};
    const char *only = argc > 1 ? argv[1] : NULL;
    if (fl_backend_index("cuda") < 0) return puts("skipped: backend cuda (make CUDA=emu cuda-plans)") < 0;
    for (int w = 0; w < 4; w++) {
        fl_set_matmul_precision(ways[w].precision);
        for (int i = 0; i < (int)(sizeof convs / sizeof *convs); i++) {
            fl_scope s = fl_scope_begin();
            if (!only || !strcmp(only, convs[i].model)) ask_conv(i, ways[w].d, ways[w].last, ways[w].how);
            fl_scope_end(&s);
        }
    }
    for (int i = 0; i < (int)(sizeof attentions / sizeof *attentions); i++) {
        fl_scope s = fl_scope_begin();
        char how[64];
        snprintf(how, sizeof how, "bf16%s%s%s%s", attentions[i].causal ? ", causal" : "",
                 attentions[i].offset ? " with an offset" : "", attentions[i].mask < 0 ? "" : ", mask",
                 attentions[i].dropout > 0 ? ", dropout" : "");
        if (!only || !strcmp(only, attentions[i].model)) ask_attention(i, FL_BF16, how);
        fl_scope_end(&s);
    }
    const int64_t evictions = fl__cuda_plan_evictions();
    if (evictions) printf("%lld plans were evicted, and would be made in each step\n", (long long)evictions);
    printf("%d passed, %d failed\n", plans, holes + (evictions > 0));
    return holes || evictions;
}
/* MIT licence: see LICENSE. */
