/* fl/ops/embedding.h - embedding lookup and embedding bags

   Composed of other ops (expand.h). The gradient of weight is index_select's: the rows of dy are added, in
   order, to the rows that were read. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_EMBEDDING_H
#define FL_OPS_EMBEDDING_H

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of weight [n, d] at index [...], i64 or i32 in [0, n) -> [..., d]. padding is PyTorch's padding_idx:
   that row gets no gradient; -1: no padding row. */
FL_API fl_tensor *fl_embedding(fl_tensor *index, fl_tensor *weight, int64_t padding);
FL_API fl_var *fv_embedding(fl_tensor *index, fl_var *weight, int64_t padding);
/* Sum, or mean, of the embeddings along the last axis of index: [..., k] -> [..., d] */
FL_API fl_tensor *fl_embedding_bag(fl_tensor *index, fl_tensor *weight, bool mean);
FL_API fl_var *fv_embedding_bag(fl_tensor *index, fl_var *weight, bool mean);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_EMBEDDING_H */

#if defined(FL_IMPL_ONLY_OPS_EMBEDDING) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_EMBEDDING_IMPL
#define FL_OPS_EMBEDDING_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include "elementwise.h"
#include "index.h"
#include "reduce.h"
#include "view.h"
#define FL_EXPAND_FILE "embedding.inc"
#include "expand.h"
#endif /* FL_OPS_EMBEDDING_IMPL */
#endif
/* MIT licence: see LICENSE. */
