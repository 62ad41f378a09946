/* kernels/cpu/primitives.h - compiled loops of the primitives (fl/tensor/formula.h)

   They are the slots of the required ops, and the steps of the formula executor (formula.h). */
#ifndef FL_CPU_PRIMITIVES_H
#define FL_CPU_PRIMITIVES_H
#include "../../fl/tensor/formula.h"
#include "loops.h"

/* The loop of a primitive for a dtype at the current level; NULL if none. */
FL_PRIVATE fl__loop fl__primitive_loop(fl_primitive primitive, fl_dtype d);

#endif

#if defined(FL_IMPL_ONLY_CPU_PRIMITIVES) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_PRIMITIVES_IMPL
#define FL_CPU_PRIMITIVES_IMPL
FL__LOOPS_BEGIN

/* FL__<class>_<type>(code): code if that class of primitives has the type, else nothing. */
#define FL__FLOAT_f32(...) __VA_ARGS__
#define FL__FLOAT_f64(...) __VA_ARGS__
#define FL__FLOAT_i64(...)
#define FL__FLOAT_b8(...)
#define FL__NUM_f32(...) __VA_ARGS__
#define FL__NUM_f64(...) __VA_ARGS__
#define FL__NUM_i64(...) __VA_ARGS__
#define FL__NUM_b8(...)
#define FL__ANY_f32(...) __VA_ARGS__
#define FL__ANY_f64(...) __VA_ARGS__
#define FL__ANY_i64(...) __VA_ARGS__
#define FL__ANY_b8(...) __VA_ARGS__
#define FL__INT_f32(...)
#define FL__INT_f64(...)
#define FL__INT_i64(...) __VA_ARGS__
#define FL__INT_b8(...) __VA_ARGS__
#define FL__CMP_f32 FL__ANY_f32
#define FL__CMP_f64 FL__ANY_f64
#define FL__CMP_i64 FL__ANY_i64
#define FL__CMP_b8 FL__ANY_b8
#define FL__CHOICE_f32 FL__ANY_f32
#define FL__CHOICE_f64 FL__ANY_f64
#define FL__CHOICE_i64 FL__ANY_i64
#define FL__CHOICE_b8 FL__ANY_b8

#define FL__LEVEL_TEXT "primitives.inc"
#define FL__UNIT primitive
#define FL__WITH_F64 FL__ONCE
#define FL__WITH_I64 FL__ONCE
#define FL__WITH_B8 FL__ONCE
#include "levels.inc"

#define FL__ROW(word, op, operands, cls) \
    [FL_PRIMITIVE_##op] = { \
        FL__##cls##_f32(FL__AT_LEVELS(fl__primitive_##op##_f32)) \
        FL__##cls##_f64([FL__VARIANT_F64] = fl__primitive_##op##_f64_portable, ) \
        FL__##cls##_i64([FL__VARIANT_I64] = fl__primitive_##op##_i64_portable, ) \
        FL__##cls##_b8([FL__VARIANT_B8] = fl__primitive_##op##_b8_portable, )},
static const fl__loop fl__primitive_loops[FL_PRIMITIVE_COUNT][FL__VARIANTS] = {FL_PRIMITIVES(FL__ROW)};
#undef FL__ROW

#undef FL__FLOAT_f32
#undef FL__FLOAT_f64
#undef FL__FLOAT_i64
#undef FL__FLOAT_b8
#undef FL__NUM_f32
#undef FL__NUM_f64
#undef FL__NUM_i64
#undef FL__NUM_b8
#undef FL__ANY_f32
#undef FL__ANY_f64
#undef FL__ANY_i64
#undef FL__ANY_b8
#undef FL__INT_f32
#undef FL__INT_f64
#undef FL__INT_i64
#undef FL__INT_b8
#undef FL__CMP_f32
#undef FL__CMP_f64
#undef FL__CMP_i64
#undef FL__CMP_b8
#undef FL__CHOICE_f32
#undef FL__CHOICE_f64
#undef FL__CHOICE_i64
#undef FL__CHOICE_b8

FL_PRIVATE fl__loop fl__primitive_loop(fl_primitive primitive, fl_dtype d) {
    return fl__primitive_loops[primitive][fl__variant(d)];
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
