/* fl_export.h - steps written out for where fl is not: C, StableHLO, ONNX

   A step that fl_graph.h has recorded is data: the calls, their arguments, and what they read and write. Here
   it becomes a file of another language, inference or a whole training step.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_export.h"
    #include <stdio.h>
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_ones(FL_SHAPE(4), FL_F32), *sum = fl_zeros(FL_SHAPE(4), FL_F32);
        fl_graph *g = fl_graph_new();
        for (int i = 0; i < 2; i++) fl_graph_begin(g), fl_assign(sum, fl_add(sum, x)), fl_graph_end(g);
        const bool ok = fl_graph_save_c(g, "adds.c"); // and adds.safetensors
        if (ok) puts("adds.c has adds_open, adds_run, adds_save and adds_close");
        fl_graph_free(g);
        fl_scope_end(&s);
        return !ok;
    }
   <<example

   Contents:
     fl/export/names.h      names of the step's values
     fl/export/c.h          C11: fl_graph_save_c
     fl/export/stablehlo.h  StableHLO, for XLA: fl_graph_save_stablehlo
     fl/export/onnx.h       ONNX, for inference elsewhere: fl_graph_save_onnx */
#if defined(FL_CALLS_H) && !defined(FL_EXPORT_DECLARED)
#error "fl: with FL_TRACE_CALLS include fl_export.h before fl.h, or fl_all.h: functions are macros now"
#endif
#define FL_EXPORT_DECLARED
#include "fl_graph.h"
#include "fl_nn.h"
#include "fl/export/names.h"
#include "fl/export/c.h"
#include "fl/export/stablehlo.h"
#include "fl/export/onnx.h"

/* MIT licence: see LICENSE. */
