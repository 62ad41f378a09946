/* fl_nn.h - neural networks: modules, layers, initialisation, losses, saving

   A module is a function with parameters: a small table of functions (forward, describe), named parameters
   and buffers, and children. Layers, containers and custom functions are all modules.

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

   For sequences: two transformer layers, each skipped with probability 0.1 in training (layer drop).
    fl_nn_module *layers = fl_nn_layer_drop(0.1);
    for (int i = 0; i < 2; i++) fl_nn_add(layers, NULL, fl_nn_transformer(16, 4, 64, .causal = true));
    fl_nn_module *net = fl_nn_sequential(fl_nn_embedding(100, 16), fl_nn_position(32, 16), layers,
                                         fl_nn_linear(16, 100)); // i64 [n, t] -> [n, t, 100]

   Contents: the files of fl/nn/.
     module.h       modules: creating, calling, naming, traversing, printing; writing layers
     container.h    sequential, module list, residual
     layers.h       linear, bilinear, identity, view, flatten, transpose, permute, pad, precision cast
     activation.h   activations; functions of a variable, an axis or numbers as layers
     conv.h         convolution and transposed convolution in 1 to 3 dims, channels-last images
     pool.h         pooling in 1 to 3 dims, adaptive pooling
     norm.h         batch, layer, RMS, group and instance norm, normalize
     weight_norm.h  weight normalisation: magnitude and direction of a parameter
     dropout.h      dropout, drop path, layer drop
     embedding.h    embedding, learned and sinusoidal position encoding
     recurrent.h    RNN, LSTM and GRU over sequences
     attention.h    multi-head attention, KV cache
     transformer.h  encoder and decoder layers
     vocabulary.h   adaptive embedding and softmax for large vocabularies
     capsule.h      capsules with dynamic routing
     init.h         initialisation of parameters
     convert.h      converting modules: dtype, backend, freezing for inference
     save.h         saving and loading parameters and buffers, custom checkpoints
     summary.h      a table of output shapes, parameters, multiply-adds and bytes

   Concepts
     Owning   The caller of a constructor owns the module until fl_nn_add passes it to a parent; fl_nn_free
              frees a whole tree. A module owns references to its parameters and buffers. A constructor that
              fails frees the modules passed to it and returns NULL.
     Calls    fl_nn_forward runs a module in its own scope and returns only the results from it.
     Names    The path of a parameter is the dotted names of its modules and its own: "0.weight",
              "layer1.0.bn1.running_mean". Names are PyTorch's, so its safetensors files load unchanged.
              Unnamed children are numbered.
     Threads  Several threads may evaluate one net at once (in evaluation mode, so that statistics do not
              change; fl_no_grad avoids recording), call fl_nn_parameters and read otherwise. Training,
              loading and changing the tree require that only one thread uses the net.
     Modes    Modules start in training mode; fl_nn_train sets the mode of a tree. It controls only dropout
              and batch statistics; recording is controlled by fl_no_grad.
     Options  See fl_tensor.h: designated initialisers, 0 means default, FL_ZERO and FL_I0 mean 0. Layers
              with parameters have .dtype (default f32), and .rng (NULL: the global generator) if their
              initialisation is random.
     Shapes   Images are [n, c, h, w]; sequences [n, t, dim]: batch, steps, features. t may vary unless a
              layer has parameters per step. Indices are constants, fv_const of i64. */
#ifndef FL_NN_H
#define FL_NN_H /* its files test this: they need not read the following again */
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
