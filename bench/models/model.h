/* bench/models/model.h - the models of the benchmarks and of tests/test_models.c, one per file of this folder

   A model is a name, a few presets (number and size of samples), a function that builds the module, one that
   makes a batch, and one that returns the loss of that batch. The preset tiny has the same parts, but few and
   narrow ones. Parameter names are torchvision's or PyTorch's. Batches are pseudo-random numbers by a
   formula, so that other programs can reproduce them.

     const model *m = model_find("vit");
     const model_preset *p = model_preset_find(m, "cpu");
     fl_nn_module *net = m->build(p);
     model_batch batch = m->batch(p);
     fl_backward(m->loss(net, p, &batch)); */
#ifndef BENCH_MODEL_H
#define BENCH_MODEL_H

#include "../../fl_all.h"

enum { MODEL_PRESETS = 6, MODEL_TENSORS = 4 };

typedef struct model_preset {
    const char *name;
    int64_t batch, size; /* samples; pixels of a side, tokens or frames of one */
    bool tiny;
    bool plain; /* no dropout and no layer drop */
} model_preset;

/* An input and what it should give; the model knows which is which. Owned by the caller's scope. */
typedef struct model_batch {
    fl_tensor *t[MODEL_TENSORS];
} model_batch;

typedef struct model {
    const char *name;
    int64_t parameters;  /* of all presets that are not tiny */
    int64_t conversions; /* of layout in a step: 0, but where images become other things */
    model_preset preset[MODEL_PRESETS];
    fl_nn_module *(*build)(const model_preset *p);
    model_batch (*batch)(const model_preset *p);
    fl_var *(*loss)(fl_nn_module *net, const model_preset *p, const model_batch *b);
} model;

extern const model model_alexnet, model_vgg16, model_resnet50, model_resnet34, model_bert,
    model_asr, model_vit, model_lm, model_detr, model_capsule, model_gpt_small, model_unet, model_dcgan,
    model_wgan, model_vit_tiny, model_lstm_lm;

/* All of them, ended by NULL; by name, NULL if there is none. */
extern const model *const models[];
const model *model_find(const char *name);
const model_preset *model_preset_find(const model *m, const char *name);

/* Number i of the sequence that `name` begins, in [-1, 1): a hash (murmur3's last step). */
double model_number(const char *name, int64_t i);
/* Tensors of that sequence: uniform numbers of variance 1 (f32); whole numbers in [low, high). */
fl_tensor *model_numbers(const char *name, fl_shape shape);
fl_tensor *model_integers(const char *name, fl_shape shape, int64_t low, int64_t high);

/* Images [batch, 3, size, size] and classes, 10 of them for tiny presets, else 1000. */
int64_t model_classes(const model_preset *p);
model_batch model_images(const model_preset *p);
fl_var *model_class_loss(fl_nn_module *net, const model_preset *p, const model_batch *b);
/* Tokens [batch, size] in [0, words), and as many to give. */
model_batch model_words(const model_preset *p, int64_t words);
/* The cross entropy of a network that gives [batch, size, words]. */
fl_var *model_words_loss(fl_nn_module *net, const model_preset *p, const model_batch *b);
/* The rate of a dropout, 0 in plain presets. */
double model_drop(const model_preset *p, double rate);

#endif /* MIT licence: see LICENSE. */
