/* fl.c - the implementation of all of fl as one translation unit */
#define FL_IMPLEMENTATION
#include "fl_all.h"
/* MIT licence: see LICENSE. */
