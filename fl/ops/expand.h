/* fl/ops/expand.h - includes a composition file twice: for tensors (fl_) and for variables (fv_)

   A header of this folder defines FL_EXPAND_FILE, the name of its .inc file, and includes this file, which
   includes
   FL_EXPAND_FILE twice: first with FL_T = fl_tensor and FL_FN(add) = fl_add, then with fl_var and fv_add. A
   composition is written once, and its gradients, of any order, forward and reverse, are those of the ops it
   runs. It uses the macros of kernels/fl_primitives.h (ADD, MUL, ...) and

     FL_FN(name)        fl_name or fv_name
     FL_T               fl_tensor or fl_var
     FL_VALUE(x)        the tensor of x, which is not NULL
     FL_CONST(t)        t as a constant
     FL_IS_NULL(fn, x)  true, after an error that names fn, if x is NULL
     FL_RETURN(s, y)    ends the scope *s and returns y to the caller's scope
     FL_PROMOTE(s, y)   moves y to the caller's scope while *s stays open: for second results
     FL_AUTOCAST(op, x, n), FL_AUTOCAST_WIDE(op)  fv_autocast, fv_autocast_wide; no cast for tensors

   There fl_scope_begin() is fl_scope_of(__func__): errors name the composition, not the op inside it.

   FL_ON_TENSORS is defined in the first inclusion, FL_ON_VARS in the second: for helpers that exist once, and
   for the few ops whose two versions differ. */
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
#define FL_PROMOTE(s, y) fl_scope_escape(s, y)
#define FL_AUTOCAST(op, x, n) true
#define FL_AUTOCAST_WIDE(op) false
#include "expand.inc"
#include FL_EXPAND_FILE
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
#define FL_PROMOTE(s, y) fl_scope_escape(s, y)
#define FL_AUTOCAST(op, x, n) fv_autocast(op, x, n)
#define FL_AUTOCAST_WIDE(op) fv_autocast_wide(op)
#include "expand.inc"
#include FL_EXPAND_FILE
#undef FL_AUTOCAST
#undef FL_AUTOCAST_WIDE
#undef FL_ON_VARS
#undef FL_T
#undef FL_VALUE
#undef FL_CONST
#undef FL_IS_NULL
#undef FL_RETURN
#undef FL_PROMOTE
#undef FL_EXPAND_FILE
#undef fl_scope_begin

#define FL_PRIMITIVES_END
#include "../../kernels/fl_primitives.h"
/* MIT licence: see LICENSE. */
