/* fl_nn.h - neural networks: modules, layers, initialisation, losses, and saving them

   A module is a function with parameters: a small table (forward, describe), named parameters and
   buffers, and children. Layers are modules, containers are modules, and so is a function of yours.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_nn.h"
    int main(void) {
        fl_nn_module *net = fl_nn_sequential(
            fl_nn_view(FL_SHAPE(-1, 1, 28, 28)),
            fl_nn_conv2d(1, 8, 5, .pad = FL_SAME), fl_nn_relu(), fl_nn_pool2d(2),
            fl_nn_view(FL_SHAPE(-1, 8 * 14 * 14)),
            fl_nn_linear(8 * 14 * 14, 10));
        fl_nn_print(net);
        fl_scope s = fl_scope_begin();
        fl_var *x = fv_const(fl_uniform(FL_SHAPE(4, 784), 0, 1, FL_F32, NULL));
        fl_tensor *target = fl_randint(FL_SHAPE(4), 0, 10, NULL);
        fl_var *loss = fv_cross_entropy(fl_nn_forward(net, x), target);
        fl_backward(loss);
        fl_print(fv_value(loss));                          // about ln 10
        fl_print(fv_grad(fl_nn_get_param(net, "5.bias"))); // softmax - one hot, averaged
        fl_scope_end(&s);
        fl_nn_free(net);
        return 0;
    }
   <<example

   And one for sequences: two transformer layers, of which one in ten is skipped in training.
    fl_nn_module *layers = fl_nn_layer_drop(0.1);
    for (int i = 0; i < 2; i++) fl_nn_add(layers, NULL, fl_nn_transformer(16, 4, 64, .causal = true));
    fl_nn_module *net = fl_nn_sequential(fl_nn_embedding(100, 16), fl_nn_position(32, 16), layers,
                                         fl_nn_linear(16, 100)); // i64 [n, t] -> [n, t, 100]

   Contents: one room of fl/nn/ each.
     module.h       making, calling, naming, walking and printing modules; what layers are written with
     container.h    sequential, module list, residual
     layers.h       linear, bilinear, identity, view, flatten, transpose, permute, pad, precision cast
     activation.h   activations; any function of a variable, an axis or numbers as a layer
     conv.h         convolutions and transposed ones of 1 to 3 dims, images stored channels-last
     pool.h         pooling of 1 to 3 dims, adaptive pooling
     norm.h         batch, layer, rms, group and instance norms, normalize
     weight_norm.h  a parameter as length and direction
     dropout.h      dropout, drop path, layer drop
     embedding.h    embedding, learned and sinusoidal positions
     recurrent.h    RNN, LSTM and GRU over sequences
     attention.h    multi-head attention, its cache of keys and values
     transformer.h  encoder and decoder layers
     vocabulary.h   adaptive embedding and softmax
     capsule.h      capsules by dynamic routing
     init.h         initial values of parameters
     convert.h      modules in another dtype, on another backend of tensors, frozen for inference
     save.h         parameters and buffers in files, checkpoints of your own
     summary.h      a table of output shapes, parameters, multiply-adds and bytes

   Concepts
     Owning   A module is a plain object: its maker owns it, fl_nn_add hands it to a parent,
              fl_nn_free frees a whole tree. What it stores (parameters, buffers) is kept. A maker
              that fails frees what it was handed and returns NULL.
     Calls    fl_nn_forward runs a module in a scope of its own and lets only the results out.
     Names    A parameter's path is the dotted names of the modules above it and its own:
              "0.weight", "layer1.0.bn1.running_mean". They are PyTorch's, so its safetensors load
              as they are. Unnamed children are numbered.
     Threads  Evaluation of one net is safe from several threads at once (in evaluation mode, so that no
              statistics move; fl_no_grad spares the recording), as are fl_nn_parameters and other
              reading. Training it, loading into it and changing its tree are not: one thread at a time.
     Modes    A module is born in training mode; fl_nn_train sets a tree. It decides about dropout
              and batch statistics, nothing else: recording is fl_no_grad's matter.
     Options  See fl_tensor.h: designated initialisers, 0 is the default, FL_ZERO and FL_I0 are
              zero. Layers with parameters take .dtype (f32), and .rng (NULL: the process's
              generator) where their initial values are random.
     Shapes   An image batch is [n, c, h, w]. A sequence is [n, t, dim]: batch, steps, features; t is
              free unless a layer learns something for each step. Indices come as constants,
              fv_const of i64. */
#ifndef FL_NN_H
#define FL_NN_H /* for rooms, which need no second look at all that follows */
#endif
#include "fl_autograd.h"
#include "fl_data.h"
FL__GLUE_BEGIN
#include "fl/nn/module.h"
#include "fl/nn/container.h"
#include "fl/nn/layers.h"
#include "fl/nn/activation.h"
#include "fl/nn/conv.h"
#include "fl/nn/pool.h"
#include "fl/nn/norm.h"
#include "fl/nn/weight_norm.h"
#include "fl/nn/dropout.h"
#include "fl/nn/embedding.h"
#include "fl/nn/recurrent.h"
#include "fl/nn/attention.h"
#include "fl/nn/transformer.h"
#include "fl/nn/vocabulary.h"
#include "fl/nn/capsule.h"
#include "fl/nn/init.h"
#include "fl/nn/convert.h"
#include "fl/nn/save.h"
#include "fl/nn/summary.h"
FL__GLUE_END

/* MIT licence: see LICENSE. */
