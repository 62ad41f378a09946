/* kernels/fl_primitives.h - the primitives of formulas (fl/tensor/formula.h) as macros: ADD, MUL, SELECT, ...

   A formula, for example MUL(dy, SUB(CONST(1), MUL(y, y))), consists of these macros only. Each is a call of
   FL_FN(name); the file that expands a formula defines what FL_FN makes of a name:

     scalar C     #define FL_FN(name) flm_##name##_f32   hot loops of kernels/, C and CUDA (fl_math.h)
     text         #define FL_FN(name) flm_##name##_f32   in the file generated around "MUL(dy, ..."
     composition  #define FL_FN(name) fl_##name          fl/ops/ (expand.h), on tensors
                  #define FL_FN(name) fv_##name          and on variables

   FL_FN may be redefined between expansions. The names are short, and a program may have its own macros MIN
   or EQ: the first include saves the old definitions (push_macro) and defines the primitives, and

     #define FL_PRIMITIVES_END
     #include "fl_primitives.h"

   undefines them, FL_FN and FL_PRIMITIVES_END, and restores the old definitions. Such pairs follow each
   other and do not nest. CONST takes a number. LET(u, value, formula) assigns a variable: the function around
   the formula declares u and v of the type it computes in. tests/test_formula.c compares the macros with the
   list of primitives. */
#if !defined(FL_PRIMITIVES_END) && !defined(FL_PRIMITIVES_DEFINED)
#define FL_PRIMITIVES_DEFINED

#pragma push_macro("ADD")
#pragma push_macro("SUB")
#pragma push_macro("MUL")
#pragma push_macro("DIV")
#pragma push_macro("NEG")
#pragma push_macro("ABS")
#pragma push_macro("EXP")
#pragma push_macro("LOG")
#pragma push_macro("LOG1P")
#pragma push_macro("EXPM1")
#pragma push_macro("SQRT")
#pragma push_macro("SIN")
#pragma push_macro("COS")
#pragma push_macro("TANH")
#pragma push_macro("ERF")
#pragma push_macro("ATAN2")
#pragma push_macro("POW")
#pragma push_macro("MOD")
#pragma push_macro("MAX")
#pragma push_macro("MIN")
#pragma push_macro("FLOOR")
#pragma push_macro("RINT")
#pragma push_macro("LT")
#pragma push_macro("LE")
#pragma push_macro("EQ")
#pragma push_macro("AND")
#pragma push_macro("OR")
#pragma push_macro("XOR")
#pragma push_macro("NOT")
#pragma push_macro("SHL")
#pragma push_macro("SHR")
#pragma push_macro("SELECT")
#pragma push_macro("CONST")
#pragma push_macro("LET")
#undef ADD
#undef SUB
#undef MUL
#undef DIV
#undef NEG
#undef ABS
#undef EXP
#undef LOG
#undef LOG1P
#undef EXPM1
#undef SQRT
#undef SIN
#undef COS
#undef TANH
#undef ERF
#undef ATAN2
#undef POW
#undef MOD
#undef MAX
#undef MIN
#undef FLOOR
#undef RINT
#undef LT
#undef LE
#undef EQ
#undef AND
#undef OR
#undef XOR
#undef NOT
#undef SHL
#undef SHR
#undef SELECT
#undef CONST
#undef LET

#define ADD(a, b) FL_FN(add)(a, b)
#define SUB(a, b) FL_FN(sub)(a, b)
#define MUL(a, b) FL_FN(mul)(a, b)
#define DIV(a, b) FL_FN(div)(a, b)
#define NEG(a) FL_FN(neg)(a)
#define ABS(a) FL_FN(abs)(a)
#define EXP(a) FL_FN(exp)(a)
#define LOG(a) FL_FN(log)(a)
#define LOG1P(a) FL_FN(log1p)(a)
#define EXPM1(a) FL_FN(expm1)(a)
#define SQRT(a) FL_FN(sqrt)(a)
#define SIN(a) FL_FN(sin)(a)
#define COS(a) FL_FN(cos)(a)
#define TANH(a) FL_FN(tanh)(a)
#define ERF(a) FL_FN(erf)(a)
#define ATAN2(a, b) FL_FN(atan2)(a, b)
#define POW(a, b) FL_FN(pow)(a, b)
#define MOD(a, b) FL_FN(remainder)(a, b)
#define MAX(a, b) FL_FN(maximum)(a, b)
#define MIN(a, b) FL_FN(minimum)(a, b)
#define FLOOR(a) FL_FN(floor)(a)
#define RINT(a) FL_FN(rint)(a)
#define LT(a, b) FL_FN(lt)(a, b)
#define LE(a, b) FL_FN(le)(a, b)
#define EQ(a, b) FL_FN(eq)(a, b)
#define AND(a, b) FL_FN(bitwise_and)(a, b)
#define OR(a, b) FL_FN(bitwise_or)(a, b)
#define XOR(a, b) FL_FN(bitwise_xor)(a, b)
#define NOT(a) FL_FN(bitwise_not)(a)
#define SHL(a, b) FL_FN(shift_left)(a, b)
#define SHR(a, b) FL_FN(shift_right)(a, b)
#define SELECT(c, a, b) FL_FN(where)(c, a, b)
#define CONST(k) FL_FN(num)(k)
#define LET(name, value, formula) ((name) = (value), (formula))

#elif defined(FL_PRIMITIVES_END)

#ifdef FL_PRIMITIVES_DEFINED
#pragma pop_macro("ADD")
#pragma pop_macro("SUB")
#pragma pop_macro("MUL")
#pragma pop_macro("DIV")
#pragma pop_macro("NEG")
#pragma pop_macro("ABS")
#pragma pop_macro("EXP")
#pragma pop_macro("LOG")
#pragma pop_macro("LOG1P")
#pragma pop_macro("EXPM1")
#pragma pop_macro("SQRT")
#pragma pop_macro("SIN")
#pragma pop_macro("COS")
#pragma pop_macro("TANH")
#pragma pop_macro("ERF")
#pragma pop_macro("ATAN2")
#pragma pop_macro("POW")
#pragma pop_macro("MOD")
#pragma pop_macro("MAX")
#pragma pop_macro("MIN")
#pragma pop_macro("FLOOR")
#pragma pop_macro("RINT")
#pragma pop_macro("LT")
#pragma pop_macro("LE")
#pragma pop_macro("EQ")
#pragma pop_macro("AND")
#pragma pop_macro("OR")
#pragma pop_macro("XOR")
#pragma pop_macro("NOT")
#pragma pop_macro("SHL")
#pragma pop_macro("SHR")
#pragma pop_macro("SELECT")
#pragma pop_macro("CONST")
#pragma pop_macro("LET")
#undef FL_PRIMITIVES_DEFINED
#undef FL_FN
#endif
#undef FL_PRIMITIVES_END

#endif
/* MIT licence: see LICENSE. */
