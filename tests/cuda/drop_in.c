/* drop_in.c - fl as one text with backend cuda, as a program of one's own has it (make cuda-check) */
#define FL_IMPLEMENTATION
#include "../../fl_all.h"
#include <stdio.h>

int main(void) {
    fl_tensor *x = fl_ones(FL_SHAPE(2, 3), FL_F32);
    printf("%s %g\n", fl_backend_name(x), fl_item(fl_sum(x, FL_ALL_AXES)));
    return 0;
}
/* MIT licence: see LICENSE. */
