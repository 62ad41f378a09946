/* fl/ops/ops.h - includes and registers every op group

   An op group is one header: prototypes on tensors (fl_) and on variables (fv_), shape rule, composition,
   gradient, registration, in this order. Its kernels are one file in kernels/cpu. Adding an op to a group
   changes these two files; a new group adds two lines here and two in kernels/cpu/backend.h. */
#include "activation.h"
#include "apply.h"
#include "attention.h"
#include "autocast.h"
#include "conv.h"
#include "copy.h"
#include "create.h"
#include "ctc.h"
#include "distance.h"
#include "elementwise.h"
#include "embedding.h"
#include "factor.h"
#include "fft.h"
#include "image.h"
#include "index.h"
#include "linear.h"
#include "loss.h"
#include "move.h"
#include "norm.h"
#include "order.h"
#include "pool.h"
#include "position.h"
#include "quantize.h"
#include "random.h"
#include "recurrent.h"
#include "reduce.h"
#include "scan.h"
#include "softmax.h"
#include "special.h"
#include "step.h"
#include "view.h"

#if defined(FL_IMPL_ONLY_OPS_OPS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_OPS_IMPL
#define FL_OPS_OPS_IMPL
#include "../../fl_backend.h"

FL_PRIVATE void fl__register_ops(void) {
    fl__register_activation();
    fl__register_apply();
    fl__register_attention();
    fl__register_conv();
    fl__register_copy();
    fl__register_ctc();
    fl__register_factor();
    fl__register_fft();
    fl__register_linear();
    fl__register_loss();
    fl__register_image();
    fl__register_norm();
    fl__register_pool();
    fl__register_random();
    fl__register_recurrent();
    fl__register_softmax();
    fl__register_step();
    fl__register_autocast(); /* last: its policy table names ops of the other groups */
}

#endif
#endif
/* MIT licence: see LICENSE. */
