/* fl/tensor/where.h - element-wise selection by a condition */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TENSOR_WHERE_H
#define FL_TENSOR_WHERE_H

#ifdef __cplusplus
extern "C" {
#endif

/* c ? a : b per element, as torch.where: c is b8; a and b are promoted, all three broadcast. */
FL_API fl_tensor *fl_where(fl_tensor *c, fl_tensor *a, fl_tensor *b);

#ifdef __cplusplus
}
#endif
#endif /* FL_TENSOR_WHERE_H */

#if defined(FL_IMPL_ONLY_TENSOR_WHERE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TENSOR_WHERE_IMPL
#define FL_TENSOR_WHERE_IMPL
#include "../../fl_backend.h"
#include "view.h"

static fl_tensor *fl__where_operand(fl_tensor *t, fl_shape shape) {
    return t->weak || fl_shape_is(t, shape) ? t : fl_expand(t, shape);
}

fl_tensor *fl_where(fl_tensor *c, fl_tensor *a, fl_tensor *b) {
    if (fl_is_null_arg("fl_where", c) || fl_is_null_arg("fl_where", a) || fl_is_null_arg("fl_where", b) ||
        !(c = fl_materialise(c)))
        return NULL;
    if (c->dtype != FL_B8)
        return fl_err_null("fl_where: the condition must be b8, got %s", fl_dtype_name(c->dtype));
    if (!fl_same_backend("where", c, a) || !fl_same_backend("where", c, b) ||
        !fl_same_backend("where", a, b))
        return NULL;
    fl_dtype d = fl_result_type(2, (fl_tensor *[]){a, b});
    fl_shape shape = fl_shape_of(c);
    if ((!a->weak && !fl_broadcast_shape(&shape, a)) ||
        (!b->weak && !fl_broadcast_shape(&shape, b)))
        return fl_err_null("fl_where: shapes %s, %s and %s do not broadcast", FL_SHAPE_TEXT(c),
                       FL_SHAPE_TEXT(a), FL_SHAPE_TEXT(b));
    if (!(a = fl_operand(a, d)) || !(b = fl_operand(b, d)) ||
        !(a = fl__where_operand(a, shape)) || !(b = fl__where_operand(b, shape)) ||
        !(c = fl__where_operand(c, shape)))
        return NULL;
    fl_call call = {.op = FL_OP_where, .n_out = 1, .n_in = 3, .in = {c, a, b}};
    call.out[0] = fl_out_layout_like(fl_out_layout_like(fl_out_on(c->backend, shape, d), b), a);
    return call.out[0] ? fl_call_result(&call) : fl_raise();
}
#endif /* FL_TENSOR_WHERE_IMPL */
#endif
/* MIT licence: see LICENSE. */
