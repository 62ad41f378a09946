#define FL_IMPLEMENTATION
#include "fl_all.h"
/* MIT licence: see LICENSE. */
