/* fl_graph.h - deferred and static execution: run later, keep a step's calls, replay them

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_graph.h"
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_lazy(true);
        fl_tensor *x = fl_ones(FL_SHAPE(2, 3), FL_F32);
        fl_tensor *y = fl_sum(fl_mul(x, x), FL_ALL_AXES); // nothing has run yet
        fl_print(y);                                      // runs both: 6
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents:
     fl/graph/list.h    the list of calls and values, printing
     fl/graph/compile.h programs as machine code: fl_compile
     fl/graph/group.h   groups of element-wise calls
     fl/graph/rows.h    groups with reductions along the last axis
     fl/graph/lazy.h    deferred execution: fl_lazy, fl_eval, passes
     fl/graph/plan.h    memory plans
     fl/graph/graph.h   static execution: fl_graph_begin, fl_graph_end, fl_graph_replay
     fl/graph/open.h    a step in the ops that every backend has: fl_graph_open */
#if defined(FL_CALLS_H) && !defined(FL_GRAPH_DECLARED)
#error "fl: with FL_TRACE_CALLS include fl_graph.h before fl.h, or fl_all.h: functions are macros now"
#endif
#define FL_GRAPH_DECLARED
#ifndef FL_TENSOR_H
#include "fl_tensor.h"
#endif
#include "fl/graph/list.h"
#include "kernels/kernel_text.h"
#include "fl/graph/compile.h"
#include "fl/graph/group.h"
#include "fl/graph/rows.h"
#include "fl/graph/lazy.h"
#include "fl/graph/plan.h"
#include "fl/graph/graph.h"
#include "fl/graph/open.h"

/* MIT licence: see LICENSE. */
