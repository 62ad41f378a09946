/* fl/ops/embedding.h - rows of a table by their numbers, and sums of them

   Composed of other ops: see expand.h. The gradient of a table is that of index_select: the rows of
   dy added to the rows that were read, in order. */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_EMBEDDING_H
#define FL_OPS_EMBEDDING_H

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of weight [n, d] by index i64: [...] -> [..., d]. The row `padding` gets no gradient; -1:
   none. */
FL_API fl_tensor *fl_embedding(fl_tensor *index, fl_tensor *weight, int64_t padding);
FL_API fl_var *fv_embedding(fl_tensor *index, fl_var *weight, int64_t padding);
/* Their sum, or mean, along the last axis of index: [..., k] -> [..., d] */
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
#include "copy.h"
#include "elementwise.h"
#include "index.h"
#include "reduce.h"
#include "view.h"
#define FL_TEXT "embedding.h"
#include "expand.h"
#endif /* FL_OPS_EMBEDDING_IMPL */
#endif
#else /* the text: see expand.h */

FL_T *FL_W(embedding)(fl_tensor *index, FL_T *weight, int64_t padding) {
    if (FL_ABSENT("embedding", index) || FL_ABSENT("embedding", weight)) return NULL;
    const fl_tensor *w = FL_VALUE(weight);
    if (w->ndim != 2 || index->ndim == FL_MAX_DIMS)
        return fl_bad("fl_embedding: rows %s of weight %s", FL_SHAPE_TEXT(index),
                      FL_SHAPE_TEXT(w));
    fl_scope s = fl_scope_begin();
    fl_shape shape = fl_shape_of(index);
    shape.dim[shape.ndim++] = w->shape[1];
    fl_tensor *rows = fl_reshape(index, FL_SHAPE(fl_numel(index)));
    FL_T *y = rows ? FL_W(index_select)(weight, 0, rows) : NULL;
    if (y && padding >= 0) {
        FL_T *pads = FL_OF(fl_eq(fl_unsqueeze(rows, 1), fl_int(padding)));
        y = SELECT(pads, FL_OF(FL_VALUE(y)), y);
    }
    return FL_GIVE(&s, FL_W(reshape)(y, shape));
}

FL_T *FL_W(embedding_bag)(fl_tensor *index, FL_T *weight, bool mean) {
    if (FL_ABSENT("embedding_bag", index) || FL_ABSENT("embedding_bag", weight)) return NULL;
    if (index->ndim < 1)
        return fl_bad("fl_embedding_bag: rows %s, wants [..., k]", FL_SHAPE_TEXT(index));
    fl_scope s = fl_scope_begin();
    FL_T *rows = FL_W(embedding)(index, weight, -1);
    return FL_GIVE(&s, mean ? FL_W(mean)(rows, FL_AXES(-2)) : FL_W(sum)(rows, FL_AXES(-2)));
}

#endif
/* MIT licence: see LICENSE. */
