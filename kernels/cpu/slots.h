/* kernels/cpu/slots.h - prototypes of the CPU's slots for the tables' ops */
#ifndef FL_CPU_SLOTS_H
#define FL_CPU_SLOTS_H
#include "../../fl_backend.h"
#include "common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All formulas share one slot, which dispatches on c->op. */
FL_PRIVATE bool fl__cpu_formula(const fl_backend *self, const fl_call *c);
#define FL__SLOT(op, ...) FL_PRIVATE bool fl__cpu_##op(const fl_backend *self, const fl_call *c);
FL_OTHER_OPS(FL__SLOT)
#undef FL__SLOT

#ifdef __cplusplus
}
#endif
#endif /* FL_CPU_SLOTS_H */
/* MIT licence: see LICENSE. */
