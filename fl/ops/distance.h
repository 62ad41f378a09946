/* fl/ops/distance.h - cosine similarity and pairwise distance of vectors

   Composed of other ops (expand.h). Operands broadcast; integers become f32, f16 and bf16 are computed in
   f32. fl_cdist, the distances between all rows of two matrices, is in linear.h. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_DISTANCE_H
#define FL_OPS_DISTANCE_H

#ifdef __cplusplus
extern "C" {
#endif

/* sum(a b) / (max(|a|, eps) max(|b|, eps)) along axis, which is removed; PyTorch's default eps is 1e-8. */
FL_API fl_tensor *fl_cosine_similarity(fl_tensor *a, fl_tensor *b, int axis, double eps);
FL_API fl_var *fv_cosine_similarity(fl_var *a, fl_var *b, int axis, double eps);
/* The p-norm |a - b + eps|_p along the last axis, which is removed; PyTorch's defaults are p 2, eps 1e-6. */
FL_API fl_tensor *fl_pairwise_distance(fl_tensor *a, fl_tensor *b, double p, double eps);
FL_API fl_var *fv_pairwise_distance(fl_var *a, fl_var *b, double p, double eps);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_DISTANCE_H */

#if defined(FL_IMPL_ONLY_OPS_DISTANCE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_DISTANCE_IMPL
#define FL_OPS_DISTANCE_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "elementwise.h"
#include "reduce.h"
#include "view.h"
#define FL_EXPAND_FILE "distance.inc"
#include "expand.h"
#endif /* FL_OPS_DISTANCE_IMPL */
#endif
/* MIT licence: see LICENSE. */
