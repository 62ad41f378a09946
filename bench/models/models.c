/* bench/models/models.c - the list of models, and shared parts: data by a formula, the classification loss */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const model *const models[] = {
    &model_alexnet,  &model_vgg16, &model_resnet50, &model_bert,    &model_asr, &model_vit,
    &model_resnet34, &model_lm,    &model_detr,     &model_capsule,
    &model_gpt_small, &model_unet, &model_dcgan,   &model_wgan,    &model_vit_tiny, &model_lstm_lm, NULL};

const model *model_find(const char *name) {
    for (int i = 0; models[i]; i++)
        if (!strcmp(models[i]->name, name)) return models[i];
    return NULL;
}

const model_preset *model_preset_find(const model *m, const char *name) {
    for (int i = 0; i < MODEL_PRESETS && m->preset[i].name; i++)
        if (!strcmp(m->preset[i].name, name)) return &m->preset[i];
    return NULL;
}

static uint32_t seed_of(const char *name) {
    uint32_t h = 2166136261u; /* FNV-1a */
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 16777619u;
    return h;
}

static double number_at(uint32_t seed, int64_t i) {
    uint32_t h = (uint32_t)i * 2654435761u + seed;
    h = (h ^ h >> 16) * 2246822507u;
    h = (h ^ h >> 13) * 3266489909u;
    return (double)(h ^ h >> 16) / 2147483648.0 - 1;
}

double model_number(const char *name, int64_t i) { return number_at(seed_of(name), i); }

fl_tensor *model_numbers(const char *name, fl_shape shape) {
    const int64_t n = fl_shape_numel(shape);
    const uint32_t seed = seed_of(name);
    float *v = malloc((size_t)n * sizeof *v);
    if (!v) return NULL;
    for (int64_t i = 0; i < n; i++) v[i] = (float)(sqrt(3) * number_at(seed, i));
    fl_tensor *t = fl_from_host(v, shape, FL_F32);
    free(v);
    return t;
}

fl_tensor *model_integers(const char *name, fl_shape shape, int64_t low, int64_t high) {
    const int64_t n = fl_shape_numel(shape);
    const uint32_t seed = seed_of(name);
    int64_t *v = malloc((size_t)n * sizeof *v);
    if (!v) return NULL;
    for (int64_t i = 0; i < n; i++)
        v[i] = low + (int64_t)((number_at(seed, i) + 1) / 2 * (double)(high - low));
    fl_tensor *t = fl_from_host(v, shape, FL_I64);
    free(v);
    return t;
}

int64_t model_classes(const model_preset *p) { return p->tiny ? 10 : 1000; }

model_batch model_images(const model_preset *p) {
    return (model_batch){{model_numbers("images", FL_SHAPE(p->batch, 3, p->size, p->size)),
                          model_integers("classes", FL_SHAPE(p->batch), 0, model_classes(p))}};
}

fl_var *model_class_loss(fl_nn_module *net, const model_preset *p, const model_batch *b) {
    (void)p;
    return fv_cross_entropy(fl_nn_forward(net, fv_const(b->t[0])), b->t[1]);
}

model_batch model_words(const model_preset *p, int64_t words) {
    const fl_shape shape = FL_SHAPE(p->batch, p->size);
    return (model_batch){
        {model_integers("words", shape, 0, words), model_integers("next words", shape, 0, words)}};
}

fl_var *model_words_loss(fl_nn_module *net, const model_preset *p, const model_batch *b) {
    fl_var *y = fl_nn_forward(net, fv_const(b->t[0]));
    const int64_t n = p->batch * p->size;
    if (!y) return NULL;
    return fv_cross_entropy(fv_reshape(y, FL_SHAPE(n, fv_value(y)->shape[2])),
                            fl_reshape(b->t[1], FL_SHAPE(n)));
}

double model_drop(const model_preset *p, double rate) { return p->plain ? 0 : rate; }
/* MIT licence: see LICENSE. */
