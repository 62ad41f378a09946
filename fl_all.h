/* fl_all.h - includes everything: the core of fl.h and the packages text, speech, vision and distributed

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_all.h"
    #include <stdio.h>
    int main(void) {
        fl_dist_group *d = fl_dist_init();
        printf("rank %d of %d\n", fl_dist_rank(d), fl_dist_size(d));
        fl_dist_close(d);
        return 0;
    }
   <<example

   fl.c compiles this header; programs that need less include fl.h or a single package. */
#include "fl_text.h"
#include "fl_speech.h"
#include "fl_vision.h"
#include "fl_dist.h"
#include "fl_export.h"
#include "fl_cuda.h"
#include "fl_graph.h"
#include "fl_backend.h"
#include "fl.h"

/* MIT licence: see LICENSE. */
