/* quick.h - kernels without their ISA levels and optimiser settings, which compile in a tenth of the
   time: for tests of something else, included before anything of fl */
#include "kernels/fl_math.h"
#include "kernels/cpu/isa.h"
#undef FL_KERNEL_BEGIN
#undef FL_KERNEL_END
#define FL_KERNEL_BEGIN
#define FL_KERNEL_END
#undef FL__X86_LEVELS
#undef FL__X86_BF16
/* MIT licence: see LICENSE. */
