/* fl/tensor/op_table.h - the op table: each element-wise op with its formula and gradient, in primitives

   Part of fl_backend.h, which lists the ops without formulas. Includes nothing, so that CUDA kernels, which
   are compiled without fl_backend.h, use the same table. */
#ifndef FL_FORMULAS_H
#define FL_FORMULAS_H

/* X(word, op, number of operands, class): the class gives the operand types, as in the op tables below.
   FLOAT, NUM, ANY: numbers -> a number; CMP: numbers -> a condition; INT: integers or conditions -> the
   same; CHOICE: a condition and two numbers or two conditions -> one of these. */
#define FL_PRIMITIVES(X) \
    X(ADD, add, 2, ANY) \
    X(SUB, sub, 2, NUM) \
    X(MUL, mul, 2, ANY) \
    X(DIV, div, 2, ANY) /* integers: rounds down, x / 0 = 0 */ \
    X(NEG, neg, 1, NUM) \
    X(ABS, abs, 1, NUM) \
    X(EXP, exp, 1, FLOAT) \
    X(LOG, log, 1, FLOAT) \
    X(LOG1P, log1p, 1, FLOAT) \
    X(EXPM1, expm1, 1, FLOAT) \
    X(SQRT, sqrt, 1, FLOAT) \
    X(SIN, sin, 1, FLOAT) \
    X(COS, cos, 1, FLOAT) \
    X(TANH, tanh, 1, FLOAT) \
    X(ERF, erf, 1, FLOAT) \
    X(ATAN2, atan2, 2, FLOAT) \
    X(POW, pow, 2, NUM) \
    X(MOD, remainder, 2, NUM) \
    X(MAX, maximum, 2, ANY) \
    X(MIN, minimum, 2, ANY) \
    X(FLOOR, floor, 1, NUM) \
    X(RINT, rint, 1, NUM) \
    X(LT, lt, 2, CMP) \
    X(LE, le, 2, CMP) \
    X(EQ, eq, 2, CMP) \
    X(AND, bitwise_and, 2, INT) \
    X(OR, bitwise_or, 2, INT) \
    X(XOR, bitwise_xor, 2, INT) \
    X(NOT, bitwise_not, 1, INT) \
    X(SHL, shift_left, 2, INT) \
    X(SHR, shift_right, 2, INT) \
    X(SELECT, where, 3, CHOICE)

/* The single definition of each element-wise op. Formulas use the primitives above and are used in three
   ways: as scalar C (compiled loops, by kernels/fl_primitives.h), as text (fl_op_info, generated code), and
   as programs, which run on fl_ and fv_ functions (backends without the slot, double backward) and on
   blocks of numbers (kernels/cpu/formula.h).

   class  operands                       result
   FLOAT  float (integers become f32)    the same
   NUM    float, integers                the same
   ANY    float, integers, b8            the same
   INT    integers, b8                   the same
   CMP    any dtype                      b8
   BOOL   any dtype, as x != 0           b8

   need   what a backend without a slot does, and which formulas the cpu backend compiles (it interprets the
          others as programs)
   CORE      falls back to the cpu, with a warning; the cpu compiles the formula, a primitive
   CORE_HOT  the same; the cpu also compiles the gradient
   COMPILED  composed from CORE ops; the cpu compiles formula and gradient: ops that are common in networks,
             and short ones, where interpretation costs more than the arithmetic
   COMPOSED  composed from CORE ops; the cpu compiles neither

         op          class  need  y = f(x)                                dx = g(x, y, dy)          */
#define FL_UNARY_OPS(X) \
    X(neg,         NUM,   CORE,     NEG(x),                                   NEG(dy)) \
    X(abs,         NUM,   CORE_HOT, ABS(x),  SELECT(LT(x, CONST(0)), NEG(dy), \
      SELECT(LT(CONST(0), x), dy, CONST(0)))) \
    X(exp,         FLOAT, CORE,     EXP(x),                                   MUL(dy, y)) \
    X(log,         FLOAT, CORE,     LOG(x),                                   DIV(dy, x)) \
    X(log1p,       FLOAT, CORE,     LOG1P(x),                                 DIV(dy, ADD(x, CONST(1)))) \
    X(expm1,       FLOAT, CORE_HOT, EXPM1(x),                                 MUL(dy, ADD(y, CONST(1)))) \
    X(sqrt,        FLOAT, CORE,     SQRT(x),                                  DIV(dy, MUL(CONST(2), y))) \
    X(sin,         FLOAT, CORE,     SIN(x),                                   MUL(dy, COS(x))) \
    X(cos,         FLOAT, CORE,     COS(x),                                   NEG(MUL(dy, SIN(x)))) \
    X(tanh,        FLOAT, CORE_HOT, TANH(x),                              MUL(dy, SUB(CONST(1), MUL(y, y)))) \
    X(erf,         FLOAT, CORE,     ERF(x),          MUL(dy, \
      MUL(CONST(1.1283791670955126), EXP(NEG(MUL(x, x)))))) \
    X(floor,       NUM,   CORE,     FLOOR(x),                                 CONST(0)) \
    X(rint,        NUM,   CORE,     RINT(x),                                  CONST(0)) \
    X(bitwise_not, INT,   CORE,     NOT(x),                                   CONST(0)) \
    X(ceil,        NUM,   COMPILED, NEG(FLOOR(NEG(x))),                       CONST(0)) \
    X(trunc,       NUM,   COMPILED, SELECT(LT(x, CONST(0)), NEG(FLOOR(NEG(x))), FLOOR(x)), CONST(0)) \
    X(frac,        NUM,   COMPOSED, SUB(x, SELECT(LT(x, CONST(0)), NEG(FLOOR(NEG(x))), FLOOR(x))), dy) \
    X(square,      NUM,   COMPILED, MUL(x, x),                                MUL(dy, MUL(CONST(2), x))) \
    X(reciprocal,  FLOAT, COMPILED, DIV(CONST(1), x),                         NEG(MUL(dy, MUL(y, y)))) \
    X(rsqrt,       FLOAT, COMPILED, DIV(CONST(1), SQRT(x)), \
      MUL(dy, MUL(CONST(-0.5), MUL(y, MUL(y, y))))) \
    X(sign,        NUM,   COMPILED, SELECT(LT(x, CONST(0)), CONST(-1), \
      SELECT(LT(CONST(0), x), CONST(1), CONST(0))), CONST(0)) \
    X(deg2rad,     FLOAT, COMPOSED, MUL(x, CONST(0.017453292519943295)), \
      MUL(dy, CONST(0.017453292519943295))) \
    X(rad2deg,     FLOAT, COMPOSED, MUL(x, CONST(57.29577951308232)),     MUL(dy, CONST(57.29577951308232))) \
    /* the logarithms of integer powers of the base are exact */ \
    X(exp2,        FLOAT, COMPOSED, POW(CONST(2), x), \
      MUL(dy, MUL(y, CONST(0.6931471805599453)))) \
    X(log2,        FLOAT, COMPOSED, LET(u, MUL(LOG(x), CONST(1.4426950408889634)), \
      SELECT(EQ(POW(CONST(2), RINT(u)), x), RINT(u), u)), \
      DIV(dy, MUL(x, CONST(0.6931471805599453)))) \
    X(log10,       FLOAT, COMPOSED, LET(u, MUL(LOG(x), CONST(0.4342944819032518)), \
      SELECT(AND(LT(CONST(1e-37), x), EQ(POW(CONST(10), RINT(u)), x)), RINT(u), u)), \
      DIV(dy, MUL(x, CONST(2.302585092994046)))) \
    X(tan,         FLOAT, COMPOSED, DIV(SIN(x), COS(x)),                  MUL(dy, ADD(CONST(1), MUL(y, y)))) \
    X(asin,        FLOAT, COMPOSED, ATAN2(x, SQRT(MUL(SUB(CONST(1), x), ADD(CONST(1), x)))), \
      DIV(dy, SQRT(MUL(SUB(CONST(1), x), ADD(CONST(1), x))))) \
    X(acos,        FLOAT, COMPOSED, ATAN2(SQRT(MUL(SUB(CONST(1), x), ADD(CONST(1), x))), x), \
      NEG(DIV(dy, SQRT(MUL(SUB(CONST(1), x), ADD(CONST(1), x)))))) \
    X(atan,        FLOAT, COMPOSED, ATAN2(x, CONST(1)),                   DIV(dy, ADD(CONST(1), MUL(x, x)))) \
    /* no cancellation, as the terms have opposite signs. e^x overflows before sinh and cosh do, \
       e^(x / 2) does not */ \
    X(sinh,        FLOAT, COMPOSED, LET(u, EXP(MUL(CONST(0.5), x)), LET(v, EXP(MUL(CONST(-0.5), x)), \
      SELECT(LT(ABS(x), CONST(80)), MUL(CONST(0.5), SUB(EXPM1(x), EXPM1(NEG(x)))), \
        SUB(MUL(MUL(CONST(0.5), u), u), MUL(MUL(CONST(0.5), v), v))))), \
      MUL(dy, MUL(CONST(0.5), ADD(EXP(x), EXP(NEG(x)))))) \
    X(cosh,        FLOAT, COMPOSED, LET(u, EXP(MUL(CONST(0.5), x)), LET(v, EXP(MUL(CONST(-0.5), x)), \
      ADD(MUL(MUL(CONST(0.5), u), u), MUL(MUL(CONST(0.5), v), v)))), \
      MUL(dy, MUL(CONST(0.5), SUB(EXPM1(x), EXPM1(NEG(x)))))) \
    /* log(2 |x|) where x^2 could overflow */ \
    X(asinh,       FLOAT, COMPOSED, LET(u, ABS(x), LET(v, MUL(x, x), \
      SELECT(EQ(x, CONST(0)), x, MUL(SELECT(LT(x, CONST(0)), CONST(-1), CONST(1)), \
        SELECT(LT(CONST(1e8), u), ADD(LOG(u), CONST(0.6931471805599453)), \
               LOG1P(ADD(u, DIV(v, ADD(CONST(1), SQRT(ADD(v, CONST(1)))))))))))), \
      DIV(dy, SQRT(ADD(MUL(x, x), CONST(1))))) \
    X(acosh,       FLOAT, COMPOSED, SELECT(LT(CONST(1e8), x), ADD(LOG(x), CONST(0.6931471805599453)), \
      LOG1P(ADD(SUB(x, CONST(1)), MUL(SQRT(SUB(x, CONST(1))), SQRT(ADD(x, CONST(1))))))), \
      DIV(dy, MUL(SQRT(SUB(x, CONST(1))), SQRT(ADD(x, CONST(1)))))) \
    X(atanh,       FLOAT, COMPOSED, MUL(CONST(0.5), SUB(LOG1P(x), LOG1P(NEG(x)))), \
      DIV(dy, MUL(SUB(CONST(1), x), ADD(CONST(1), x)))) \
    /* sin(pi x) = +-sin(pi (x - rint(x))), exactly 0 at integers; the derivative near 0 by its series */ \
    X(sinc,        FLOAT, COMPOSED, SELECT(EQ(x, CONST(0)), CONST(1), \
      DIV(MUL(SUB(CONST(1), MUL(CONST(2), MOD(RINT(x), CONST(2)))), \
              SIN(MUL(CONST(3.141592653589793), SUB(x, RINT(x))))), MUL(CONST(3.141592653589793), x))), \
      LET(u, MUL(x, x), MUL(dy, SELECT(LT(ABS(x), CONST(0.25)), \
        MUL(x, ADD(CONST(-3.289868133696453), MUL(u, ADD(CONST(3.2469697011334144), MUL(u, \
          ADD(CONST(-1.1445109447325053), MUL(u, ADD(CONST(0.2091827825412384), MUL(u, \
          ADD(CONST(-0.023460810354558236), MUL(u, ADD(CONST(0.001781145516372852), MUL(u, \
          ADD(CONST(-9.766223126318933e-05), MUL(u, \
          ADD(CONST(4.049947846619244e-06), MUL(u, CONST(-1.3148481279991994e-07)))))))))))))))))), \
        DIV(SUB(COS(MUL(CONST(3.141592653589793), x)), y), x))))) \
    X(logit,       FLOAT, COMPOSED, SELECT(LT(x, CONST(0.25)), SUB(LOG(x), LOG1P(NEG(x))), \
      SUB(LOG1P(SUB(MUL(CONST(2), x), CONST(1))), LOG1P(SUB(CONST(1), MUL(CONST(2), x))))), \
      DIV(dy, MUL(x, SUB(CONST(1), x)))) \
    /* gradient by y, which the next layer saves anyway */ \
    X(relu,        NUM,   COMPILED, MAX(x, CONST(0)), \
      SELECT(LE(y, CONST(0)), CONST(0), dy)) \
    X(sigmoid,     FLOAT, COMPILED, DIV(CONST(1), ADD(CONST(1), EXP(NEG(x)))), \
      MUL(dy, MUL(y, SUB(CONST(1), y)))) \
    X(silu,        FLOAT, COMPILED, DIV(x, ADD(CONST(1), EXP(NEG(x)))), \
      MUL(dy, DIV(ADD(CONST(1), SUB(x, y)), ADD(CONST(1), EXP(NEG(x)))))) \
    X(softplus,    FLOAT, COMPILED, ADD(MAX(x, CONST(0)), LOG1P(EXP(NEG(ABS(x))))), \
      DIV(dy, ADD(CONST(1), EXP(NEG(x))))) \
    X(gelu,        FLOAT, COMPILED, MUL(MUL(CONST(0.5), x), \
      ADD(CONST(1), ERF(MUL(x, CONST(0.7071067811865476))))), \
      MUL(dy, ADD(MUL(CONST(0.5), ADD(CONST(1), ERF(MUL(x, CONST(0.7071067811865476))))), \
                  MUL(MUL(x, CONST(0.3989422804014327)), EXP(MUL(CONST(-0.5), MUL(x, x))))))) \
    /* the derivative uses e^-|u|, which does not overflow, nor do its derivatives */ \
    X(gelu_tanh,   FLOAT, COMPILED, \
      DIV(x, ADD(CONST(1), EXP(MUL(x, ADD(CONST(-1.5957691216057308), \
      MUL(CONST(-0.07135481627260026), MUL(x, x))))))), \
      LET(u, MUL(x, x), \
      LET(v, EXP(MUL(SELECT(LT(x, CONST(0)), x, NEG(x)), \
                     ADD(CONST(1.5957691216057308), MUL(CONST(0.07135481627260026), u)))), \
      MUL(dy, DIV(ADD(SELECT(LT(x, CONST(0)), v, CONST(1)), \
        MUL(MUL(y, ADD(CONST(1.5957691216057308), MUL(CONST(0.21406444881780077), u))), \
            SELECT(LT(x, CONST(0)), CONST(1), v))), \
        ADD(CONST(1), v)))))) \
    X(relu6,       NUM,   COMPILED, MIN(MAX(x, CONST(0)), CONST(6)), \
      SELECT(LE(x, CONST(0)), CONST(0), SELECT(LE(CONST(6), x), CONST(0), dy))) \
    X(hardsigmoid, FLOAT, COMPOSED, DIV(MIN(MAX(ADD(x, CONST(3)), CONST(0)), CONST(6)), CONST(6)), \
      SELECT(LE(x, CONST(-3)), CONST(0), SELECT(LE(CONST(3), x), CONST(0), DIV(dy, CONST(6))))) \
    X(hardswish,   FLOAT, COMPILED, MUL(x, DIV(MIN(MAX(ADD(x, CONST(3)), CONST(0)), CONST(6)), CONST(6))), \
      SELECT(LE(x, CONST(-3)), CONST(0), SELECT(LT(x, CONST(3)), \
      MUL(dy, ADD(DIV(x, CONST(3)), CONST(0.5))), dy))) \
    X(mish,        FLOAT, COMPOSED, MUL(x, TANH(ADD(MAX(x, CONST(0)), LOG1P(EXP(NEG(ABS(x))))))), \
      LET(u, TANH(ADD(MAX(x, CONST(0)), LOG1P(EXP(NEG(ABS(x)))))), \
      MUL(dy, ADD(u, MUL(DIV(x, ADD(CONST(1), EXP(NEG(x)))), SUB(CONST(1), MUL(u, u))))))) \
    X(selu,        FLOAT, COMPOSED, SELECT(LT(CONST(0), x), MUL(CONST(1.0507009873554805), x), \
      MUL(CONST(1.7580993408473766), EXPM1(MIN(x, CONST(0))))), \
      SELECT(LT(CONST(0), x), MUL(CONST(1.0507009873554805), dy), \
      MUL(dy, ADD(y, CONST(1.7580993408473766))))) \
    X(softsign,    FLOAT, COMPOSED, DIV(x, ADD(CONST(1), ABS(x))), \
      LET(u, ADD(CONST(1), ABS(x)), DIV(dy, MUL(u, u)))) \
    X(logsigmoid,  FLOAT, COMPOSED, SUB(MIN(x, CONST(0)), LOG1P(EXP(NEG(ABS(x))))), \
      DIV(dy, ADD(CONST(1), EXP(x)))) \
    X(tanhshrink,  FLOAT, COMPOSED, SUB(x, TANH(x)),                         MUL(dy, MUL(TANH(x), TANH(x)))) \
    X(isnan,       CMP,   COMPILED, NOT(EQ(x, x)),                            CONST(0)) \
    X(isfinite,    CMP,   COMPOSED, EQ(MUL(x, CONST(0)), CONST(0)),           CONST(0)) \
    X(isinf,       CMP,   COMPOSED, AND(EQ(x, x), NOT(EQ(MUL(x, CONST(0)), CONST(0)))), CONST(0)) \
    X(isposinf,    CMP,   COMPOSED, AND(LT(CONST(0), x), NOT(EQ(MUL(x, CONST(0)), CONST(0)))), CONST(0)) \
    X(isneginf,    CMP,   COMPOSED, AND(LT(x, CONST(0)), NOT(EQ(MUL(x, CONST(0)), CONST(0)))), CONST(0)) \
    X(signbit,     CMP,   COMPOSED, OR(LT(x, CONST(0)), LT(DIV(CONST(1), x), CONST(0))), CONST(0)) \
    X(logical_not, BOOL,  COMPOSED, NOT(x),                                   CONST(0))

/*       op           class  need  y = f(a, b)            da = g(a, b, y, dy)                    db        */
#define FL_BINARY_OPS(X) \
    X(add,          ANY,   CORE,     ADD(a, b),              dy,                                     dy) \
    X(sub,          NUM,   CORE,     SUB(a, b),              dy,                                    NEG(dy)) \
    X(mul,          ANY,   CORE,     MUL(a, b),              MUL(dy, b),                         MUL(dy, a)) \
    X(div,          FLOAT, CORE,     DIV(a, b),              DIV(dy, b), \
      NEG(DIV(MUL(dy, y), b))) \
    X(pow,          NUM,   CORE,     POW(a, b), \
      SELECT(EQ(b, CONST(0)), CONST(0), MUL(dy, MUL(b, POW(a, SUB(b, CONST(1)))))), \
      SELECT(AND(EQ(a, CONST(0)), LE(CONST(0), b)), CONST(0), MUL(dy, MUL(y, LOG(a))))) \
    X(remainder,    NUM,   CORE_HOT, MOD(a, b),              dy, \
      NEG(MUL(dy, FLOOR(DIV(a, b))))) \
    X(atan2,        FLOAT, CORE_HOT, ATAN2(a, b), \
      DIV(MUL(dy, b), ADD(MUL(a, a), MUL(b, b))),       NEG(DIV(MUL(dy, a), ADD(MUL(a, a), MUL(b, b))))) \
    X(maximum,      ANY,   CORE_HOT, MAX(a, b), \
      SELECT(LT(a, b), CONST(0), SELECT(EQ(a, b), MUL(dy, CONST(0.5)), dy)), \
      SELECT(LT(b, a), CONST(0), SELECT(EQ(a, b), MUL(dy, CONST(0.5)), dy))) \
    X(minimum,      ANY,   CORE_HOT, MIN(a, b), \
      SELECT(LT(b, a), CONST(0), SELECT(EQ(a, b), MUL(dy, CONST(0.5)), dy)), \
      SELECT(LT(a, b), CONST(0), SELECT(EQ(a, b), MUL(dy, CONST(0.5)), dy))) \
    X(eq,           CMP,   CORE,     EQ(a, b),               CONST(0),                             CONST(0)) \
    X(lt,           CMP,   CORE,     LT(a, b),               CONST(0),                             CONST(0)) \
    X(le,           CMP,   CORE,     LE(a, b),               CONST(0),                             CONST(0)) \
    X(bitwise_and,  INT,   CORE,     AND(a, b),              CONST(0),                             CONST(0)) \
    X(bitwise_or,   INT,   CORE,     OR(a, b),               CONST(0),                             CONST(0)) \
    X(bitwise_xor,  INT,   CORE,     XOR(a, b),              CONST(0),                             CONST(0)) \
    X(shift_left,   INT,   CORE,     SHL(a, b),              CONST(0),                             CONST(0)) \
    X(shift_right,  INT,   CORE,     SHR(a, b),              CONST(0),                             CONST(0)) \
    /* if the signs differ, the remainder by -b, except for b = INT_MIN (= -b) and b = 0, which gives NaN */ \
    X(fmod,         NUM,   COMPOSED, SELECT(XOR(LT(a, CONST(0)), LT(b, CONST(0))), \
      SELECT(EQ(b, NEG(b)), ADD(a, MUL(CONST(0), MOD(a, b))), MOD(a, NEG(b))), MOD(a, b)), \
      dy, LET(u, DIV(a, b), NEG(MUL(dy, SELECT(LT(u, CONST(0)), NEG(FLOOR(NEG(u))), FLOOR(u)))))) \
    X(fmax,         ANY,   COMPOSED, SELECT(EQ(a, a), SELECT(EQ(b, b), MAX(a, b), a), b), \
      SELECT(OR(LE(b, a), NOT(EQ(b, b))), dy, CONST(0)), SELECT(OR(LE(b, a), NOT(EQ(b, b))), CONST(0), dy)) \
    X(fmin,         ANY,   COMPOSED, SELECT(EQ(a, a), SELECT(EQ(b, b), MIN(a, b), a), b), \
      SELECT(OR(LE(a, b), NOT(EQ(b, b))), dy, CONST(0)), SELECT(OR(LE(a, b), NOT(EQ(b, b))), CONST(0), dy)) \
    X(copysign,    FLOAT, COMPOSED, SELECT(OR(LT(b, CONST(0)), LT(DIV(CONST(1), b), CONST(0))), NEG(ABS(a)), \
      ABS(a)), \
      MUL(dy, SELECT(EQ(a, CONST(0)), CONST(0), DIV(y, a))), CONST(0)) \
    X(heaviside,   NUM,   COMPOSED, SELECT(LT(CONST(0), a), CONST(1), SELECT(EQ(a, CONST(0)), b, CONST(0))), \
      CONST(0), SELECT(EQ(a, CONST(0)), dy, CONST(0))) \
    /* 0 and +-inf are returned unchanged. In two factors, as 2^b may overflow; b is clamped for +-inf */ \
    /* for tiny a and large b a factor may overflow too: computed as (2^64 a) 2^(b - 64) */ \
    X(ldexp,        FLOAT, COMPOSED, LET(u, SUB(MIN(b, CONST(3000)), CONST(64)), \
      LET(v, MAX(MIN(b, CONST(3000)), CONST(-3000)), SELECT(EQ(a, ADD(a, a)), a, \
      SELECT(AND(LT(CONST(254), b), LT(ABS(a), CONST(1.2e-38))), \
      MUL(MUL(MUL(a, CONST(1.8446744073709552e19)), POW(CONST(2), FLOOR(MUL(CONST(0.5), u)))), \
          POW(CONST(2), SUB(u, FLOOR(MUL(CONST(0.5), u))))), \
      MUL(MUL(a, POW(CONST(2), FLOOR(MUL(CONST(0.5), v)))), \
          POW(CONST(2), SUB(v, FLOOR(MUL(CONST(0.5), v))))))))), \
      MUL(dy, POW(CONST(2), b)), MUL(dy, MUL(y, CONST(0.6931471805599453)))) \
    X(xlogy,        FLOAT, COMPOSED, SELECT(AND(EQ(a, CONST(0)), EQ(b, b)), CONST(0), MUL(a, LOG(b))), \
      SELECT(AND(EQ(a, CONST(0)), LE(b, CONST(0))), CONST(0), MUL(dy, LOG(b))), DIV(MUL(dy, a), b)) \
    /* equal operands separately: their difference is NaN if they are infinite */ \
    X(logaddexp,    FLOAT, COMPOSED, SELECT(EQ(a, b), ADD(a, CONST(0.6931471805599453)), \
      ADD(MAX(a, b), LOG1P(EXP(NEG(ABS(SUB(a, b))))))), \
      DIV(dy, ADD(CONST(1), EXP(SUB(b, a)))), DIV(dy, ADD(CONST(1), EXP(SUB(a, b))))) \
    X(logaddexp2,   FLOAT, COMPOSED, SELECT(EQ(a, b), ADD(a, CONST(1)), ADD(MAX(a, b), \
      MUL(CONST(1.4426950408889634), LOG1P(POW(CONST(2), NEG(ABS(SUB(a, b)))))))), \
      DIV(dy, ADD(CONST(1), POW(CONST(2), SUB(b, a)))), DIV(dy, ADD(CONST(1), POW(CONST(2), SUB(a, b))))) \
    X(prelu,        FLOAT, COMPILED, SELECT(LT(CONST(0), a), a, MUL(b, a)), \
      SELECT(LT(CONST(0), a), dy, MUL(dy, b)),          SELECT(LT(CONST(0), a), CONST(0), MUL(dy, a))) \
    X(ne,           CMP,   COMPILED, NOT(EQ(a, b)),          CONST(0),                             CONST(0)) \
    X(gt,           CMP,   COMPILED, LT(b, a),               CONST(0),                             CONST(0)) \
    X(ge,           CMP,   COMPILED, LE(b, a),               CONST(0),                             CONST(0)) \
    X(logical_and,  BOOL,  COMPOSED, AND(a, b),              CONST(0),                             CONST(0)) \
    X(logical_or,   BOOL,  COMPOSED, OR(a, b),               CONST(0),                             CONST(0)) \
    X(logical_xor,  BOOL,  COMPOSED, XOR(a, b),              CONST(0),                               CONST(0))

/* FL_OP_<name> of these ops. Those without formulas follow in fl_backend.h. */
enum {
    FL__OP_BEFORE_FIRST, /* FL_OP_NONE */
#define FL__ENUM(op, ...) FL_OP_##op,
    FL_UNARY_OPS(FL__ENUM) FL_BINARY_OPS(FL__ENUM)
#undef FL__ENUM
    FL__OP_AFTER_FORMULAS
};

#endif
/* MIT licence: see LICENSE. */
