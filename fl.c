#define FL_IMPLEMENTATION
#include "fl.h"
