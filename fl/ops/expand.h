/* fl/ops/expand.h - expands a text of compositions for tensors and for variables

   A header of this folder names a text, FL_TEXT, and includes this file, which includes the text twice:
   once where FL_T is fl_tensor and FL_FN(add) is fl_add, once where they are fl_var and fv_add. So a
   composition is written once, and its gradients, of any order and in both directions, are those of
   the ops it runs. The text is written in the words of fl_primitives.h and in

     FL_FN(name)        fl_name or fv_name
     FL_T              fl_tensor or fl_var
     FL_VALUE(x)       the tensor of an x that is not NULL
     FL_CONST(t)          the constant t
     FL_IS_NULL(fn, x)  true, with an error that names fn, for an operand that is NULL
     FL_RETURN(s, y)     ends the scope *s and hands y out
     FL_PROMOTE(s, y)  hands y out of the scope *s, which stays open: for second results
     FL_AUTOCAST(op, x, n), FL_AUTOCAST_WIDE(op)  those of autocast.h; on tensors nothing is cast

   fl_scope_begin() is fl_scope_of(__func__) there: errors name the composition, not what it is made of.

   FL_ON_TENSORS is defined in the first expansion, FL_ON_VARS in the second: for helpers that
   exist once, and for the few ops whose two forms differ. */
#include "../../kernels/fl_primitives.h"
#include "autocast.h"

#define fl_scope_begin() fl_scope_of(__func__)
#define FL_ON_TENSORS
#define FL_FN(name) fl_##name
#define FL_T fl_tensor
#define FL_VALUE(x) (x)
#define FL_CONST(t) (t)
#define FL_IS_NULL(fn, x) fl_is_null_arg("fl_" fn, x)
#define FL_RETURN(s, y) fl_scope_return(s, y)
#define FL_PROMOTE(s, y) fl_promote(s, y)
#define FL_AUTOCAST(op, x, n) true
#define FL_AUTOCAST_WIDE(op) false
#include "expand.inc"
#include FL_TEXT
#undef FL_AUTOCAST
#undef FL_AUTOCAST_WIDE
#undef FL_ON_TENSORS
#undef FL_FN
#undef FL_T
#undef FL_VALUE
#undef FL_CONST
#undef FL_IS_NULL
#undef FL_RETURN
#undef FL_PROMOTE

#define FL_ON_VARS
#define FL_FN(name) fv_##name
#define FL_T fl_var
#define FL_VALUE(x) ((x)->value)
#define FL_CONST(t) fv_const(t)
#define FL_IS_NULL(fn, x) fl_is_null_arg("fv_" fn, x)
#define FL_RETURN(s, y) fv_scope_return(s, y)
#define FL_PROMOTE(s, y) fl_promote(s, y)
#define FL_AUTOCAST(op, x, n) fv_autocast(op, x, n)
#define FL_AUTOCAST_WIDE(op) fv_autocast_wide(op)
#include "expand.inc"
#include FL_TEXT
#undef FL_AUTOCAST
#undef FL_AUTOCAST_WIDE
#undef FL_ON_VARS
#undef FL_T
#undef FL_VALUE
#undef FL_CONST
#undef FL_IS_NULL
#undef FL_RETURN
#undef FL_PROMOTE
#undef FL_TEXT
#undef fl_scope_begin

#define FL_PRIMITIVE_WORDS_END
#include "../../kernels/fl_primitives.h"
/* MIT licence: see LICENSE. */
