/* fl/ops/apply.h - element-wise functions written as text, each run in one pass, and their derivatives

     fl_tensor *y = fl_apply("(x, a) { if (x < 0) x = a * (exp(x) - 1); return x; }", in, 2);

   The text is C: parameters, then a body of declarations (float, double, int, bool), assignments, if, for,
   while and return, with C's operators and precedence. It calls the ops of FL_UNARY_OPS and FL_BINARY_OPS
   (fl/tensor/op_table.h) by their names, and where(c, a, b). What differs from C:
   - Everything is computed in one dtype, the promoted one of the inputs, whatever a declaration says; if that
     is an integer dtype and the text divides, calls exp or the like, or has a number with a point, in f32.
     Only `int` truncates what it is given, and bool makes a condition of it.
   - Operators are ops: a / b is fl_div, a % b is fl_remainder, with b's sign, and both operands of && are
     computed. b8 inputs are conditions, which are 0 or 1 as numbers.
   - The branches of an if are both computed. Loops are unrolled: after a constant number of rounds their
     condition must be false whatever the inputs are, as in for (int i = 0; i < 9 && r < 4; i++).
   Inputs broadcast, and results have the bits of the same expression in ops (f16, bf16 and narrow integers
   are rounded once, at the end). A derivative is a formula too, in forward mode: what a branch computes in
   vain does not reach it, and those by up to 4 inputs take one pass if they fit one program; else one pass
   each, or ops. It multiplies in another order than the tape, so its last bits may differ from those of fv_
   ops.

   Record:
     formula (fl_formula_args)  the inputs of a program (fl/tensor/formula.h) -> its outputs */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_APPLY_H
#define FL_OPS_APPLY_H
#include "../records/formula.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The function `text` of in[0 .. n - 1], one per parameter, 1 to 8. At most 4 KiB of text; its program must
   fit the limits of fl/tensor/formula.h (64 steps, 12 values at a time, 16 constants). Errors say line and
   column. A text is parsed at its first use. */
FL_API fl_tensor *fl_apply(const char *text, fl_tensor *const *in, int n);
FL_API fl_var *fv_apply(const char *text, fl_var *const *in, int n);

FL_PRIVATE void fl__register_apply(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_APPLY_H */

#if defined(FL_IMPL_ONLY_OPS_APPLY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_APPLY_IMPL
#define FL_OPS_APPLY_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "../tensor/memo.h"
#include "autocast.h"
#include "elementwise.h"
#include "view.h"
#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

enum {
    FL__APPLY_INPUTS = 8,
    FL__APPLY_TEXT = 4096, /* bytes */
    FL__APPLY_DEPTH = 64,  /* of nested expressions and statements */
    FL__APPLY_LOCALS = 32,
    FL__APPLY_ROUNDS = 1024, /* of all loops */
    FL__APPLY_KEPT = 1024    /* programs; further ones are made anew at each use */
};

/* A parsed text, or a derivative. */
typedef struct fl__applied {
    fl_formula_args args;
    bool is_float;      /* of a text: integers become f32 */
    fl_op op;           /* of a text: the op of its inputs in order that it is; else NONE */
    int whole;          /* of a text: 1 + the position of an operator that needs integers; 0: none */
    bool fits;          /* of a derivative: within the limits of a program */
    uint32_t zero;      /* of a derivative: bit i: that by input i is 0 everywhere */
} fl__applied;

/* ---- programs, kept by what they were made of ---- */

static fl_memo_entry *fl__applied_slots[2 * FL__APPLY_KEPT];
static fl_memo fl__applied_memo = {.most = FL__APPLY_KEPT, .size = sizeof(fl__applied),
                                   .slot = fl__applied_slots};

/* Keeps a program, unless there are too many: then it is `made` itself. NULL if there was no memory. */
static const fl__applied *fl__keep_applied(const void *key, size_t bytes, uint64_t tag,
                                           const fl__applied *made) {
    const fl__applied *kept = fl_memo_add(&fl__applied_memo, key, bytes, tag, made);
    return kept || fl_error() ? kept : made;
}

/* ---- the parser ---- */

/* Values are those of the builder; conditions and numbers that are known; and of variables, none yet. Only
   numbers that steps use become constants of the program. */
enum { FL__FALSE = FL_FORMULA_VALUES, FL__TRUE, FL__UNSET, FL__NUMBER, FL__NUMBERS = 256 };

typedef enum fl__local_type { FL__LOCAL_NUMBER, FL__LOCAL_INT, FL__LOCAL_BOOL } fl__local_type;
typedef struct fl__local {
    const char *name;
    size_t length;
    fl__local_type type;
} fl__local;

/* Variables 0 and 1 are the function's result and whether it has returned. */
typedef struct fl__values {
    int of[FL__APPLY_LOCALS];
} fl__values;

typedef struct fl__source {
    const char *text, *at;
    fl_formula_builder b;
    fl__applied *to;
    fl__local local[FL__APPLY_LOCALS];
    fl__values now;
    int n_locals, n_numbers, depth, rounds;
    double number[FL__NUMBERS]; /* value FL__NUMBER + i */
    const char *place[FL_FORMULA_STEPS]; /* what made step i */
    bool whole[FL_FORMULA_STEPS];        /* step i is an integer whatever the inputs are */
    const char *loop; /* the innermost loop in a round of unknown condition; NULL: none */
} fl__source;
enum { FL__RESULT, FL__RETURNED, FL__PARAMETER };

static int fl__source_error(const char *text, const char *at, const char *what) {
    int line = 1;
    const char *start = text;
    for (const char *s = text; s < at; s++)
        if (*s == '\n') line++, start = s + 1;
    fl_fail("fl_apply: %s at line %d, column %d of \"%.*s\"", what, line, (int)(at - start) + 1,
            (int)strcspn(start, "\n") < 120 ? (int)strcspn(start, "\n") : 120, start);
    return -1;
}

static int fl__bad(const fl__source *p, const char *at, const char *what) {
    return fl__source_error(p->text, at, what);
}

static bool fl__is_condition(const fl__source *p, int v) {
    return v == FL__FALSE || v == FL__TRUE || (v < FL_FORMULA_VALUES && p->b.logical[v]);
}

static int fl__number_value(fl__source *p, double value) {
    int i = 0;
    while (i < p->n_numbers && memcmp(&p->number[i], &value, sizeof value)) i++;
    if (i == FL__NUMBERS) return fl__bad(p, p->at, "too many constants");
    p->number[i] = value;
    if (i == p->n_numbers) p->n_numbers++;
    return FL__NUMBER + i;
}

/* The value of a step of known operands; -1: it is not known. */
static int fl__known_value(fl__source *p, fl_primitive w, const int in[3]) {
    const bool first = in[0] == FL__FALSE || in[0] == FL__TRUE;
    if (w == FL_PRIMITIVE_where && first) return in[in[0] == FL__TRUE ? 1 : 2];
    if (w == FL_PRIMITIVE_where && in[1] == in[2]) return in[1];
    if (w == FL_PRIMITIVE_bitwise_not && first) return FL__FALSE + FL__TRUE - in[0];
    for (int k = 0; k < 2; k++) /* of && and || */
        if ((w == FL_PRIMITIVE_bitwise_and || w == FL_PRIMITIVE_bitwise_or) &&
            (in[k] == FL__FALSE || in[k] == FL__TRUE))
            return in[k] == (w == FL_PRIMITIVE_bitwise_and ? FL__FALSE : FL__TRUE) ? in[k] : in[1 - k];
    if (in[0] < FL__NUMBER || in[1] < FL__NUMBER) return -1;
    const double a = p->number[in[0] - FL__NUMBER], b = p->number[in[1] - FL__NUMBER];
    switch ((int)w) {
    case FL_PRIMITIVE_add: return fl__number_value(p, a + b);
    case FL_PRIMITIVE_sub: return fl__number_value(p, a - b);
    case FL_PRIMITIVE_mul: return fl__number_value(p, a * b);
    case FL_PRIMITIVE_div: return fl__number_value(p, a / b);
    case FL_PRIMITIVE_neg: return fl__number_value(p, -a);
    case FL_PRIMITIVE_floor: return fl__number_value(p, floor(a));
    case FL_PRIMITIVE_lt: return FL__FALSE + (a < b);
    case FL_PRIMITIVE_le: return FL__FALSE + (a <= b);
    case FL_PRIMITIVE_eq: return FL__FALSE + (a == b);
    default: return -1;
    }
}

/* The builder's error; -1. */
static int fl__build_failed(const fl__source *p) {
    return p->loop ? fl__bad(p, p->loop, "the loop has no constant bound, or too many steps") :
                     fl__bad(p, p->at, p->b.error);
}

/* A value as an operand of steps: what is known becomes a constant, or a step. */
static int fl__strong(fl__source *p, int v) {
    if (v < FL_FORMULA_VALUES) return v;
    const double number = v < FL__NUMBER ? 0 : p->number[v - FL__NUMBER];
    const int constant = fl_formula_build_number(&p->b, number), in[] = {constant, constant};
    if (constant < 0 || v >= FL__NUMBER) return constant >= 0 ? constant : fl__build_failed(p);
    v = fl_formula_build_step(&p->b, v == FL__TRUE ? FL_PRIMITIVE_le : FL_PRIMITIVE_lt, in);
    return v >= 0 ? v : fl__build_failed(p);
}

static bool fl__value_is_whole(const fl__source *p, int v) {
    if (v >= FL_FORMULA_VALUE && v < FL_FORMULA_VALUES) return p->whole[v - FL_FORMULA_VALUE];
    if (v < FL_FORMULA_CONSTANT) return false; /* an input */
    const double number =
        v < FL__NUMBER ? p->b.f->constant[v - FL_FORMULA_CONSTANT] : p->number[v - FL__NUMBER];
    return number == floor(number);
}

/* The value of a primitive; -1 after an error. */
static int fl__add_step(fl__source *p, fl_primitive w, int a, int b, int c) {
    int in[3] = {a, b, c};
    const int n = fl_primitive_operands(w);
    if (a < 0 || b < 0 || c < 0) return -1;
    if (n == 1) in[1] = a;
    int v = fl__known_value(p, w, in);
    if (v >= 0 || fl_error()) return v;
    for (int k = 0; k < n; k++)
        if ((in[k] = fl__strong(p, in[k])) < 0) return -1;
    const int before = p->b.f->n_steps;
    if ((v = fl_formula_build_step(&p->b, w, in)) < 0) return fl__build_failed(p);
    if (p->b.f->n_steps == before) return v;
    p->place[before] = p->at;
    p->whole[before] = w == FL_PRIMITIVE_floor ||
                       ((w == FL_PRIMITIVE_add || w == FL_PRIMITIVE_sub || w == FL_PRIMITIVE_mul ||
                         w == FL_PRIMITIVE_neg || w == FL_PRIMITIVE_where) &&
                        fl__value_is_whole(p, in[n - 1]) && fl__value_is_whole(p, in[n == 1 ? 0 : n - 2]));
    return v;
}

static int fl__as_number(fl__source *p, int v) {
    if (v < 0 || !fl__is_condition(p, v)) return v;
    return fl__add_step(p, FL_PRIMITIVE_where, v, fl__number_value(p, 1), fl__number_value(p, 0));
}

static int fl__as_condition(fl__source *p, int v) {
    if (v < 0 || fl__is_condition(p, v)) return v;
    v = fl__add_step(p, FL_PRIMITIVE_eq, v, fl__number_value(p, 0), 0);
    return fl__add_step(p, FL_PRIMITIVE_bitwise_not, v, 0, 0);
}

/* c ? a : b */
static int fl__select(fl__source *p, int c, int a, int b) {
    if (a < 0 || b < 0 || c < 0) return -1;
    if (a == b || c == FL__TRUE || b == FL__UNSET) return a;
    if (a == FL__UNSET || c == FL__FALSE) return b;
    if (fl__is_condition(p, a) != fl__is_condition(p, b)) a = fl__as_number(p, a), b = fl__as_number(p, b);
    if (a == FL__FALSE || a == FL__TRUE) { /* known: c || b, !c && b */
        if (a == FL__FALSE) c = fl__add_step(p, FL_PRIMITIVE_bitwise_not, c, 0, 0);
        return fl__add_step(p, a == FL__TRUE ? FL_PRIMITIVE_bitwise_or : FL_PRIMITIVE_bitwise_and, c, b, 0);
    }
    if (b == FL__FALSE || b == FL__TRUE)
        return fl__select(p, fl__add_step(p, FL_PRIMITIVE_bitwise_not, c, 0, 0), b, a);
    return fl__add_step(p, FL_PRIMITIVE_where, c, a, b);
}

/* Values of a table op's program, as pointers that are not NULL. */
static void *fl__as_pointer(int v) {
    return v < 0 ? NULL : (void *)(uintptr_t)(v + 1);
}

static int fl__from_pointer(const void *v) {
    return (int)(uintptr_t)v - 1;
}

static void *fl__inline_number(double value, void *user) {
    return fl__as_pointer(fl__number_value(user, value));
}

static void *fl__inline_step(fl_primitive primitive, void *const x[], void *user) {
    int in[3] = {0, 0, 0};
    for (int k = 0; k < fl_primitive_operands(primitive); k++) in[k] = fl__from_pointer(x[k]);
    return fl__as_pointer(fl__add_step(user, primitive, in[0], in[1], in[2]));
}

/* The value of a table op, whose formula becomes steps; `at` is the operator or the name. */
static int fl__table_op(fl__source *p, const char *at, fl_op op, int a, int b) {
    const fl_formula_vtable steps = {fl__inline_number, fl__inline_step, p};
    const fl_op_info *info = fl_op_get_info(op);
    if (a < 0 || b < 0) return -1;
    const bool conditions = fl__is_condition(p, a) && (info->arity == 1 || fl__is_condition(p, b));
    if (info->cls == FL_CLASS_BOOL) {
        a = fl__as_condition(p, a), b = info->arity == 2 ? fl__as_condition(p, b) : 0;
    } else if (info->cls != FL_CLASS_INT || !conditions) {
        a = fl__as_number(p, a), b = info->arity == 2 ? fl__as_number(p, b) : 0;
        if (info->cls == FL_CLASS_INT && !p->to->whole) p->to->whole = 1 + (int)(at - p->text);
        p->to->is_float |= info->cls == FL_CLASS_FLOAT;
    }
    if (a < 0 || b < 0) return -1;
    const fl_formula *f = fl_op_program(op, FL_PROGRAM_Y);
    void *y[FL_FORMULA_OUTPUTS];
    if (!f || !fl_formula_run(f, &steps, (void *[]){fl__as_pointer(a), fl__as_pointer(b)}, y)) return -1;
    const int v = fl__from_pointer(y[0]);
    if (f->n_steps == 1 || v < FL_FORMULA_VALUE || v >= FL_FORMULA_VALUES) return v;
    uint8_t *call = p->to->args.call[v - FL_FORMULA_VALUE];
    if (call[0]) return v;
    if ((a = fl__strong(p, a)) < 0 || (b = fl__strong(p, b)) < 0) return -1;
    if (a < v && b < v) call[0] = (uint8_t)op, call[1] = (uint8_t)a, call[2] = (uint8_t)b;
    return v;
}
_Static_assert((int)FL_OP_copy < 256, "a formula's op must fit a byte");

static void fl__spaces(fl__source *p) {
    p->at += strspn(p->at, " \t\r\n");
}

/* Reads the token s if it is next: a name only as a whole word. */
static bool fl__token(fl__source *p, const char *s) {
    fl__spaces(p);
    const size_t n = strlen(s);
    if (strncmp(p->at, s, n) != 0) return false;
    if (isalpha((unsigned char)*s) && (isalnum((unsigned char)p->at[n]) || p->at[n] == '_')) return false;
    return p->at += n, true;
}

static bool fl__expect(fl__source *p, const char *s) {
    char what[32] = "expected '";
    if (fl__token(p, s)) return true;
    strcat(strcat(what, s), "'");
    return fl__bad(p, p->at, what) >= 0;
}

/* Reads a name. Returns its length, 0 if there is none. */
static size_t fl__name(fl__source *p, const char **name) {
    size_t n = 0;
    fl__spaces(p);
    *name = p->at;
    if (isalpha((unsigned char)*p->at) || *p->at == '_')
        while (isalnum((unsigned char)p->at[n]) || p->at[n] == '_') n++;
    p->at += n;
    return n;
}

static int fl__local_of(const fl__source *p, const char *name, size_t n) {
    int i = p->n_locals;
    while (--i >= FL__PARAMETER)
        if (p->local[i].length == n && !memcmp(p->local[i].name, name, n)) return i;
    return fl__bad(p, name, "there is no variable of this name");
}

static int fl__expression(fl__source *p);

/* A call: `where`, or an op of the tables. */
static int fl__call(fl__source *p, const char *name, size_t n) {
    char text[32] = "";
    int v[3] = {0, 0, 0}, count = 0;
    if (n < sizeof text) memcpy(text, name, n), text[n] = 0;
    const fl_op op = fl_op_by_name(text);
    const int arity = op == FL_OP_where ? 3 : op ? fl_op_get_info(op)->arity : 0;
    if (!arity) return fl__bad(p, name, "there is no formula of this name");
    do
        if (count == 3 || (v[count++] = fl__expression(p)) < 0)
            return count == 3 ? fl__bad(p, name, "too many operands") : -1;
    while (fl__token(p, ","));
    if (count != arity) return fl__bad(p, name, "the number of operands is not the op's");
    if (!fl__expect(p, ")")) return -1;
    return arity == 3 ? fl__select(p, fl__as_condition(p, v[0]), v[1], v[2]) :
                        fl__table_op(p, name, op, v[0], v[1]);
}

static int fl__literal(fl__source *p) {
    const char *start = p->at, *s = start;
    double value;
    while (isdigit((unsigned char)*s)) s++;
    if (*s == '.') s++;
    while (isdigit((unsigned char)*s)) s++;
    const char *e = *s == 'e' || *s == 'E' ? s + 1 + (s[1] == '+' || s[1] == '-') : s;
    if (e > s && isdigit((unsigned char)*e))
        for (s = e; isdigit((unsigned char)*s);) s++;
    if (!fl_formula_number(start, (size_t)(s - start), &value)) return fl__bad(p, start, "expected a value");
    const bool suffix = *s == 'f' || *s == 'F';
    if (isalnum((unsigned char)s[suffix]) || s[suffix] == '_' || s[suffix] == '.')
        return fl__bad(p, start, "this is not a number");
    p->to->is_float |= suffix || strcspn(start, ".eE") < (size_t)(s - start);
    const int v = fl__number_value(p, value);
    p->at = s + suffix;
    return v;
}

/* Reads a type, if one is next. */
static bool fl__type(fl__source *p, fl__local_type *type) {
    const bool constant = fl__token(p, "const");
    *type = FL__LOCAL_NUMBER;
    if (fl__token(p, "float") || fl__token(p, "double")) return true;
    *type = FL__LOCAL_INT;
    if (fl__token(p, "int")) return true;
    *type = FL__LOCAL_BOOL;
    return fl__token(p, "bool") || (constant && fl__bad(p, p->at, "expected a type") >= 0);
}

static int fl__converted(fl__source *p, fl__local_type type, int v) {
    if (type == FL__LOCAL_BOOL) return fl__as_condition(p, v);
    v = fl__as_number(p, v);
    if (type != FL__LOCAL_INT || v < 0 || fl__value_is_whole(p, v)) return v;
    return fl__table_op(p, p->at, FL_OP_trunc, v, 0);
}

static int fl__unary(fl__source *p);

static int fl__operand(fl__source *p) {
    fl__local_type type;
    const char *name = p->at;
    if (fl__token(p, "(")) {
        const bool cast = fl__type(p, &type);
        const int v = cast ? 0 : fl__expression(p);
        if (v < 0 || fl_error() || !fl__expect(p, ")")) return -1;
        return cast ? fl__converted(p, type, fl__unary(p)) : v;
    }
    if (fl__token(p, "true")) return FL__TRUE;
    if (fl__token(p, "false")) return FL__FALSE;
    const size_t n = fl__name(p, &name);
    if (!n) return fl__literal(p);
    if (fl__token(p, "(")) return fl__call(p, name, n);
    const int i = fl__local_of(p, name, n);
    if (i < 0) return -1;
    return p->now.of[i] != FL__UNSET ? p->now.of[i] : fl__bad(p, name, "the variable has no value yet");
}

static int fl__unary(fl__source *p) {
    int v;
    fl__spaces(p);
    const char *at = p->at;
    if (++p->depth > FL__APPLY_DEPTH) return fl__bad(p, at, "nested too deeply");
    if (!strncmp(at, "++", 2) || !strncmp(at, "--", 2)) v = fl__bad(p, at, "expected a value");
    else if (fl__token(p, "-")) v = fl__table_op(p, at, FL_OP_neg, fl__unary(p), 0);
    else if (fl__token(p, "+")) v = fl__as_number(p, fl__unary(p));
    else if (fl__token(p, "!")) v = fl__table_op(p, at, FL_OP_logical_not, fl__unary(p), 0);
    else if (fl__token(p, "~")) v = fl__table_op(p, at, FL_OP_bitwise_not, fl__unary(p), 0);
    else v = fl__operand(p);
    p->depth--;
    return v;
}

/* C's binary operators by precedence. Of two that begin alike the longer comes first. */
static const struct {
    const char *token;
    int precedence;
    fl_op op;
} fl__operators[] = {
    {"||", 1, FL_OP_logical_or}, {"&&", 2, FL_OP_logical_and}, {"|", 3, FL_OP_bitwise_or},
    {"^", 4, FL_OP_bitwise_xor}, {"&", 5, FL_OP_bitwise_and},  {"==", 6, FL_OP_eq},
    {"!=", 6, FL_OP_ne},         {"<<", 8, FL_OP_shift_left},  {">>", 8, FL_OP_shift_right},
    {"<=", 7, FL_OP_le},         {">=", 7, FL_OP_ge},          {"<", 7, FL_OP_lt},
    {">", 7, FL_OP_gt},          {"+", 9, FL_OP_add},          {"-", 9, FL_OP_sub},
    {"*", 10, FL_OP_mul},        {"/", 10, FL_OP_div},         {"%", 10, FL_OP_remainder}};
enum { FL__OPERATORS = sizeof fl__operators / sizeof *fl__operators };

/* The operator at s, or with `assigns` that of an assignment as +=; -1: none. */
static int fl__operator_at(const char *s, bool assigns) {
    for (int i = 0; i < FL__OPERATORS; i++) {
        const size_t n = strlen(fl__operators[i].token);
        const int precedence = fl__operators[i].precedence;
        if (strncmp(s, fl__operators[i].token, n) != 0) continue;
        if (precedence < 3 || precedence == 6 || precedence == 7) return assigns ? -1 : i;
        return assigns == (s[n] == '=') ? i : -1;
    }
    return -1;
}

/* An expression of operators that bind at least as tightly as `precedence`. */
static int fl__binary(fl__source *p, int precedence) {
    int v = fl__unary(p);
    while (v >= 0) {
        fl__spaces(p);
        const char *at = p->at;
        const int i = fl__operator_at(at, false);
        if (i < 0 || fl__operators[i].precedence < precedence) return v;
        p->at += strlen(fl__operators[i].token);
        const int b = fl__binary(p, fl__operators[i].precedence + 1);
        v = fl__table_op(p, at, fl__operators[i].op, v, b);
    }
    return v;
}

static int fl__expression(fl__source *p) {
    if (++p->depth > FL__APPLY_DEPTH) return fl__bad(p, p->at, "nested too deeply");
    int v = fl__binary(p, 1);
    if (v >= 0 && fl__token(p, "?")) {
        const int c = fl__as_condition(p, v), a = c < 0 ? -1 : fl__expression(p);
        const int b = a >= 0 && fl__expect(p, ":") ? fl__expression(p) : -1;
        v = b < 0 ? -1 : fl__select(p, c, a, b);
    }
    p->depth--;
    return v;
}

/* ---- statements: their effect is on p->now ---- */

/* Where c is false the first n variables have the values `otherwise`. */
static bool fl__merge(fl__source *p, int c, const fl__values *otherwise, int n) {
    for (int i = 0; i < n; i++)
        if ((p->now.of[i] = fl__select(p, c, p->now.of[i], otherwise->of[i])) < 0) return false;
    return true;
}

/* name = expression, name += expression, name++, ++name; without the semicolon. */
static bool fl__assignment(fl__source *p) {
    const char *name, *at;
    int step = fl__token(p, "++") ? 1 : fl__token(p, "--") ? -1 : 0, v;
    const size_t n = fl__name(p, &name);
    const int i = n ? fl__local_of(p, name, n) : fl__bad(p, name, "expected a statement");
    if (i < 0) return false;
    if (!step) step = fl__token(p, "++") ? 1 : fl__token(p, "--") ? -1 : 0;
    fl__spaces(p);
    at = p->at;
    const int o = step ? -1 : fl__operator_at(at, true);
    if ((step || o >= 0) && p->now.of[i] == FL__UNSET)
        return fl__bad(p, name, "the variable has no value yet") >= 0;
    if (step) {
        v = fl__table_op(p, name, FL_OP_add, p->now.of[i], fl__number_value(p, step));
    } else if (o >= 0) {
        p->at += strlen(fl__operators[o].token) + 1;
        v = fl__expression(p);
        v = fl__table_op(p, at, fl__operators[o].op, p->now.of[i], v);
    } else {
        v = fl__expect(p, "=") ? fl__expression(p) : -1;
    }
    v = fl__converted(p, p->local[i].type, v);
    if (v >= 0) p->now.of[i] = v;
    return v >= 0;
}

static bool fl__declare(fl__source *p, fl__local_type type, int value) {
    fl__local *l = &p->local[p->n_locals];
    l->type = type;
    if (!(l->length = fl__name(p, &l->name))) return fl__bad(p, p->at, "expected a name") >= 0;
    if (p->n_locals == FL__APPLY_LOCALS - 1) return fl__bad(p, l->name, "too many variables") >= 0;
    p->now.of[p->n_locals++] = value;
    return true;
}

/* A declaration or an assignment, without the semicolon. */
static bool fl__simple(fl__source *p) {
    fl__local_type type;
    if (!fl__type(p, &type)) return !fl_error() && fl__assignment(p);
    do {
        if (!fl__declare(p, type, FL__UNSET)) return false;
        const int i = p->n_locals - 1;
        if (!fl__token(p, "=")) continue;
        p->n_locals--; /* its value does not see it */
        const int v = fl__converted(p, type, fl__expression(p));
        if (v < 0) return false;
        p->n_locals++;
        p->now.of[i] = v;
    } while (fl__token(p, ","));
    return true;
}

static bool fl__statement(fl__source *p);

static bool fl__if(fl__source *p) {
    const int c = fl__expect(p, "(") ? fl__as_condition(p, fl__expression(p)) : -1;
    if (c < 0 || !fl__expect(p, ")")) return false;
    const fl__values before = p->now;
    const int outer = p->n_locals;
    if (!fl__statement(p)) return false;
    const fl__values then = p->now;
    p->now = before;
    p->n_locals = outer;
    if (fl__token(p, "else") && !fl__statement(p)) return false;
    const fl__values otherwise = p->now;
    p->now = then;
    p->n_locals = outer;
    return fl__merge(p, c, &otherwise, outer);
}

/* Moves behind the parenthesis that closes the update of a loop. */
static bool fl__skip_update(fl__source *p) {
    for (int open = 1; *p->at && open; p->at++) open += *p->at == '(' ? 1 : *p->at == ')' ? -1 : 0;
    return p->at[-1] == ')' || fl__bad(p, p->at, "expected ')'") >= 0;
}

/* Runs the rounds of a loop, whose texts begin at `condition`, `update` (NULL: none) and p->at. `outer`: the
   variables before it. A round whose condition is not known keeps its values where it is true. */
static bool fl__rounds(fl__source *p, const char *loop, const char *condition, const char *update,
                       int outer) {
    const char *body = p->at, *end = NULL, *around = p->loop;
    int active = FL__TRUE;
    for (;;) {
        const fl__values before = p->now;
        const int locals = p->n_locals;
        p->at = condition;
        fl__spaces(p);
        const int c = *p->at == ';' ? FL__TRUE : fl__as_condition(p, fl__expression(p));
        active = fl__add_step(p, FL_PRIMITIVE_bitwise_and, active, c, 0);
        if (active < 0) return false;
        p->loop = active < FL__FALSE ? loop : around;
        const bool over = active == FL__FALSE || p->now.of[FL__RETURNED] == FL__TRUE;
        if (over && end) break;
        if (++p->rounds > FL__APPLY_ROUNDS) return fl__bad(p, loop, "the loop has no constant bound") >= 0;
        p->at = body;
        if (!fl__statement(p)) return false;
        end = p->at;
        p->n_locals = locals;
        if (over) { /* the body was only read, and nothing of it is kept */
            p->now = before;
            break;
        }
        if (!fl__merge(p, active, &before, locals)) return false;
        const fl__values round = p->now;
        p->at = update;
        if (update) fl__spaces(p);
        if (update && *p->at != ')' && !fl__assignment(p)) return false;
        if (update && !fl__expect(p, ")")) return false;
        if (update && !fl__merge(p, active, &round, outer)) return false;
    }
    p->at = end;
    p->loop = around;
    return true;
}

static bool fl__loop_statement(fl__source *p, const char *loop, bool is_for) {
    const int outer = p->n_locals;
    const char *update = NULL;
    if (!fl__expect(p, "(")) return false;
    fl__spaces(p);
    if (is_for && *p->at != ';' && !fl__simple(p)) return false;
    if (is_for && !fl__expect(p, ";")) return false;
    const char *condition = p->at;
    fl__spaces(p);
    if (*p->at != ';' && fl__expression(p) < 0) return false;
    if (!fl__expect(p, is_for ? ";" : ")")) return false;
    if (is_for) update = p->at;
    if (is_for && !fl__skip_update(p)) return false;
    if (!fl__rounds(p, loop, condition, update, outer)) return false;
    p->n_locals = outer;
    return true;
}

static bool fl__return(fl__source *p) {
    const int v = fl__expression(p);
    int *result = &p->now.of[FL__RESULT], *returned = &p->now.of[FL__RETURNED];
    if (v < 0) return false;
    if (*returned != FL__TRUE) *result = *returned == FL__FALSE ? v : fl__select(p, *returned, *result, v);
    *returned = FL__TRUE;
    return *result >= 0 && fl__expect(p, ";");
}

static bool fl__statement(fl__source *p) {
    fl__spaces(p);
    const char *at = p->at;
    const int outer = p->n_locals;
    if (++p->depth > FL__APPLY_DEPTH) return fl__bad(p, at, "nested too deeply") >= 0;
    bool ok = true;
    if (fl__token(p, "{")) {
        while (ok && !fl__token(p, "}")) ok = fl__statement(p);
        p->n_locals = outer;
    } else if (fl__token(p, "if")) {
        ok = fl__if(p);
    } else if (fl__token(p, "for")) {
        ok = fl__loop_statement(p, at, true);
    } else if (fl__token(p, "while")) {
        ok = fl__loop_statement(p, at, false);
    } else if (fl__token(p, "return")) {
        ok = fl__return(p);
    } else if (!fl__token(p, ";")) {
        ok = fl__simple(p) && fl__expect(p, ";");
    }
    p->depth--;
    return ok;
}

/* Renumbers the calls of a program as its builder did its values. */
static void fl__move_calls(const fl_formula_builder *b, uint8_t call[FL_FORMULA_STEPS][3]) {
    uint8_t old[FL_FORMULA_STEPS][3];
    memcpy(old, call, sizeof old);
    memset(call, 0, sizeof old);
    for (int i = 0; i < FL_FORMULA_STEPS; i++) {
        const int v = b->at[FL_FORMULA_VALUE + i], x = b->at[old[i][1]], y = b->at[old[i][2]];
        if (!old[i][0] || v < 0 || x < 0 || y < 0) continue;
        uint8_t *to = call[v - FL_FORMULA_VALUE];
        to[0] = old[i][0], to[1] = (uint8_t)x, to[2] = (uint8_t)y;
    }
}

/* Completes the program; the error of a value without a register has the place of its step. */
static bool fl__source_end(fl__source *p) {
    const int v = fl__strong(p, p->now.of[FL__RESULT]);
    if (v < 0) return false;
    if (!fl_formula_build_end(&p->b, 1, &v)) {
        int i = FL_FORMULA_STEPS - 1;
        while (i > 0 && p->b.at[FL_FORMULA_VALUE + i] != FL_FORMULA_VALUE + p->b.failed) i--;
        return fl__bad(p, p->place[i], p->b.error) >= 0;
    }
    fl__move_calls(&p->b, p->to->args.call);
    const fl_formula *f = &p->to->args.program;
    const int operands = fl_primitive_operands((fl_primitive)f->step[0].primitive);
    const bool in_order = f->step[0].in[0] == 0 && (operands < 2 || f->step[0].in[1] == 1);
    if (f->n_steps == 1 && operands == f->n_in && operands < 3 && in_order && !f->conditions && !p->to->whole)
        p->to->op = fl_primitive_op((fl_primitive)f->step[0].primitive);
    return true;
}

static bool fl__parse_function(fl__source *p, int n) {
    fl__local_type type;
    if (!fl__expect(p, "(")) return false;
    do {
        const bool typed = fl__type(p, &type);
        if (!typed) type = FL__LOCAL_NUMBER;
        if (fl_error() || !fl__declare(p, type, p->n_locals - FL__PARAMETER)) return false;
        int *value = &p->now.of[p->n_locals - 1];
        if (*value >= n) return fl__bad(p, p->at, "there are more parameters than inputs") >= 0;
        if (typed && (*value = fl__converted(p, type, *value)) < 0) return false;
    } while (fl__token(p, ","));
    if (p->n_locals < FL__PARAMETER + n)
        return fl__bad(p, p->at, "there are more inputs than parameters") >= 0;
    if (!fl__expect(p, ")")) return false;
    fl__spaces(p);
    if (*p->at != '{') return fl__expect(p, "{");
    if (!fl__statement(p)) return false;
    fl__spaces(p);
    if (*p->at) return fl__bad(p, p->at, "expected the end of the text") >= 0;
    if (p->now.of[FL__RETURNED] != FL__TRUE)
        return fl__bad(p, p->at - 1, "not every path returns a value") >= 0;
    return fl__source_end(p);
}

/* The program of a text for n inputs; bit i of `conditions`: input i is a condition. *space is where it is
   made if it cannot be kept. NULL after fl_fail. */
static const fl__applied *fl__applied_of(const char *text, int n, uint32_t conditions, fl__applied *space) {
    const size_t bytes = strnlen(text, FL__APPLY_TEXT + 1);
    if (bytes > FL__APPLY_TEXT) {
        fl_fail("fl_apply: the text is longer than %d bytes", FL__APPLY_TEXT);
        return NULL;
    }
    const uint64_t tag = (uint64_t)n << 32 | conditions;
    const fl__applied *kept = fl_memo_find(&fl__applied_memo, text, bytes, tag);
    if (kept) return kept;
    fl__source p = {.text = text, .at = text, .to = space, .n_locals = FL__PARAMETER};
    memset(space, 0, sizeof *space);
    fl_formula_build(&p.b, &space->args.program, n, conditions);
    p.now.of[FL__RESULT] = FL__UNSET;
    p.now.of[FL__RETURNED] = FL__FALSE;
    if (!fl__parse_function(&p, n)) return NULL;
    return fl__keep_applied(text, bytes, tag, space);
}

/* ---- derivatives: forward mode over a program ---- */

/* A program as values: of numbers of a program that is built, or of variables. Conditions and constants have
   no tangent (NULL). */
typedef struct fl__chain {
    const fl_formula_args *args;
    const fl_formula_vtable *m;
    int in[FL_FORMULA_STEPS][3], out; /* values instead of registers */
    void *value[FL_FORMULA_VALUES], *tangent[FL_FORMULA_VALUES];
} fl__chain;

/* Computes the values of constants and steps from those of the inputs. */
static bool fl__chain_values(fl__chain *c) {
    const fl_formula *f = &c->args->program;
    int at[FL_FORMULA_OPERANDS];
    for (int i = 0; i < FL_FORMULA_OPERANDS; i++) at[i] = i;
    for (int i = 0; i < f->n_constants; i++)
        if (!(c->value[FL_FORMULA_CONSTANT + i] = c->m->number(f->constant[i], c->m->user))) return false;
    for (int i = 0; i < f->n_steps; i++) {
        const fl_formula_step *s = &f->step[i];
        void *x[3];
        for (int k = 0; k < fl_primitive_operands((fl_primitive)s->primitive); k++)
            x[k] = c->value[c->in[i][k] = at[s->in[k]]];
        if (!(c->value[FL_FORMULA_VALUE + i] = c->m->step((fl_primitive)s->primitive, x, c->m->user)))
            return false;
        at[s->to] = FL_FORMULA_VALUE + i;
    }
    c->out = at[f->out[0]];
    return true;
}

/* Adds to *sum what the tangent of operand k, not NULL, gives by the op's line of the tables. */
static bool fl__chain_add(fl__chain *c, fl_op op, int k, const int x[2], int y, void **sum) {
    const int arity = fl_op_get_info(op)->arity;
    const fl_formula *f = fl_op_program(op, k ? FL_PROGRAM_DB : FL_PROGRAM_DA);
    void *in[4], *d[FL_FORMULA_OUTPUTS];
    if (!f) return false;
    if (!(f->reads >> (arity + 1) & 1)) return true; /* 0 everywhere */
    for (int i = 0; i < arity; i++) in[i] = c->value[x[i]];
    in[arity] = c->value[y];
    in[arity + 1] = c->tangent[x[k]];
    if (!fl_formula_run(f, c->m, in, d)) return false;
    *sum = *sum ? c->m->step(FL_PRIMITIVE_add, (void *[]){*sum, d[0]}, c->m->user) : d[0];
    return *sum != NULL;
}

/* Selects as the program does, so that what is not selected, infinite maybe, has no effect. */
static bool fl__chain_select(fl__chain *c, const int x[3], void **sum) {
    void *d[3] = {c->value[x[0]], c->tangent[x[1]], c->tangent[x[2]]};
    if (!d[1] && !d[2]) return true;
    for (int k = 1; k < 3; k++)
        if (!d[k] && !(d[k] = c->m->number(0, c->m->user))) return false;
    return (*sum = c->m->step(FL_PRIMITIVE_where, d, c->m->user)) != NULL;
}

/* The tangent of the output for the tangent dy of one input; *tangent NULL if it is 0 everywhere. */
static bool fl__chain_tangent(fl__chain *c, int input, void *dy, void **tangent) {
    const fl_formula *f = &c->args->program;
    memset(c->tangent, 0, sizeof c->tangent);
    c->tangent[input] = dy;
    for (int i = 0; i < f->n_steps; i++) {
        const uint8_t *call = c->args->call[i];
        const fl_op op = call[0] ? (fl_op)call[0] : fl_primitive_op((fl_primitive)f->step[i].primitive);
        const int x[2] = {call[1], call[2]}, *in = call[0] ? x : c->in[i], y = FL_FORMULA_VALUE + i;
        bool ok = op != FL_OP_where || fl__chain_select(c, in, &c->tangent[y]);
        for (int k = 0; ok && op != FL_OP_where && k < fl_op_get_info(op)->arity; k++)
            if (c->tangent[in[k]]) ok = fl__chain_add(c, op, k, in, y, &c->tangent[y]);
        if (!ok) return false;
    }
    *tangent = c->tangent[c->out];
    return true;
}

static void *fl__build_number(double value, void *user) {
    return fl__as_pointer(fl_formula_build_number(user, value));
}

static void *fl__build_step(fl_primitive primitive, void *const x[], void *user) {
    int in[3] = {0, 0, 0};
    for (int k = 0; k < fl_primitive_operands(primitive); k++) in[k] = fl__from_pointer(x[k]);
    return fl__as_pointer(fl_formula_build_step(user, primitive, in));
}

/* Makes the program of the derivatives by the inputs of `wanted`, of the inputs and dy. False if it does not
   fit. */
static bool fl__derive(const fl_formula_args *a, uint32_t wanted, fl__applied *to) {
    fl_formula_builder b;
    const fl_formula_vtable building = {fl__build_number, fl__build_step, &b};
    const fl_formula *f = &a->program;
    fl__chain c = {.args = a, .m = &building};
    int out[FL__APPLY_INPUTS], n = 0;
    fl_formula_build(&b, &to->args.program, f->n_in + 1, f->conditions);
    for (int i = 0; i < f->n_in; i++) c.value[i] = fl__as_pointer(i);
    if (!fl__chain_values(&c)) return false;
    for (int i = 0; i < f->n_in; i++) {
        void *tangent;
        if (!(wanted >> i & 1)) continue;
        if (!fl__chain_tangent(&c, i, fl__as_pointer(f->n_in), &tangent)) return false;
        if (tangent) out[n++] = fl__from_pointer(tangent);
        else to->zero |= 1u << i;
    }
    if (!n) return true;
    if (f->n_in == FL__APPLY_INPUTS || !fl_formula_build_end(&b, n, out)) return false;
    memcpy(to->args.call, a->call, sizeof a->call); /* values have kept their numbers */
    fl__move_calls(&b, to->args.call);
    return true;
}

static const fl__applied *fl__derivative_of(const fl_formula_args *a, uint32_t wanted, fl__applied *space) {
    const uint64_t tag = ~(uint64_t)wanted;
    const fl__applied *kept = fl_memo_find(&fl__applied_memo, a, sizeof *a, tag);
    if (kept) return kept;
    memset(space, 0, sizeof *space);
    space->fits = fl__derive(a, wanted, space);
    return fl__keep_applied(a, sizeof *a, tag, space);
}

/* ---- on tensors ---- */

/* Runs a program on inputs of dtype d; new outputs are like the tensor `like`. If shape is not NULL, inputs
   may be of other dtypes, and are expanded to it. */
static bool fl__run_applied(const fl_formula_args *a, fl_tensor *const *in, fl_dtype d, const fl_shape *shape,
                            const fl_tensor *like, fl_tensor **out) {
    const fl_formula *f = &a->program;
    fl_call c;
    fl_call_begin(&c, fl_op_formula, f->n_out, f->n_in, a);
    for (int i = 0; i < f->n_in; i++) {
        c.in[i] = in[i];
        if (!shape || !(f->reads >> i & 1) || in[i]->weak) continue;
        if (!(f->conditions >> i & 1) && !(c.in[i] = fl_operand(in[i], d))) return false;
        if (!fl_shape_is(c.in[i], *shape) && !(c.in[i] = fl_expand(c.in[i], *shape))) return false;
    }
    for (int i = 0; i < f->n_out; i++) {
        const fl_dtype to = f->logical >> i & 1 ? FL_B8 : d;
        c.out[i] = shape ? fl_out_on(like->backend, *shape, to) : fl_out_like(like, to);
        for (int k = shape ? f->n_in - 1 : -1; k >= 0 && c.out[i]; k--)
            if (f->reads >> k & 1 && !c.in[k]->weak) fl_out_layout_like(c.out[i], c.in[k]);
        if (!c.out[i] || (!shape && !fl_out_layout_like(c.out[i], like))) return false;
    }
    if (!fl_call_run(&c)) return false;
    for (int i = 0; i < f->n_out; i++) out[i] = c.out[i];
    return true;
}

/* True if t needs neither a cast nor an expansion beside `like`, a tensor of floats. */
static inline bool fl__is_alike(const fl_tensor *t, const fl_tensor *like) {
    return t->weak || (t->dtype == like->dtype && t->backend == like->backend && fl_same_shape(t, like));
}

/* The dtype of the numbers, and the shape of the result; NONE after an error. */
static fl_dtype fl__apply_kind(const char *text, const fl__applied *f, fl_tensor *const *in, int n,
                               const fl_tensor *like, fl_shape *shape) {
    fl_tensor *number[FL__APPLY_INPUTS];
    int numbers = 0;
    *shape = fl_shape_of(like);
    for (int i = 0; i < n; i++) {
        if (!fl_same_backend("apply", like, in[i])) return FL_DTYPE_NONE;
        if (in[i]->weak || in[i]->dtype != FL_B8) number[numbers++] = in[i];
        if (in[i]->weak || fl_broadcast_shape(shape, in[i])) continue;
        fl_err_null("fl_apply: shapes %s and %s do not broadcast", FL_SHAPE_TEXT(like), FL_SHAPE_TEXT(in[i]));
        return FL_DTYPE_NONE;
    }
    const fl_dtype d = fl_result_type(numbers, number);
    const fl_dtype computed = fl_compute_dtype(f->is_float ? FL_CLASS_FLOAT : FL_CLASS_NUM, d);
    if (computed == FL_DTYPE_NONE) fl_err_null("fl_apply: dtype %s is not supported", fl_dtype_name(d));
    if (!f->whole || !fl_dtype_is_float(computed)) return computed;
    fl__source_error(text, text + f->whole - 1, "this needs integers, and the formula is one of floats,");
    return fl_raise(), FL_DTYPE_NONE;
}

/* fl_apply, which sets *f to the program, maybe in *space. */
static fl_tensor *fl__apply(const char *text, fl_tensor *const *given, int n, const fl__applied **f,
                            fl__applied *space) {
    fl_tensor *in[FL__APPLY_INPUTS], *y;
    const fl_tensor *like = NULL;
    uint32_t conditions = 0;
    fl_shape shape;
    bool alike = true;
    if (fl_is_null_arg("fl_apply", text) || fl_is_null_arg("fl_apply", given)) return NULL;
    if (n < 1 || n > FL__APPLY_INPUTS)
        return fl_err_null("fl_apply: got %d inputs, expected 1 to %d", n, FL__APPLY_INPUTS);
    for (int i = 0; i < n; i++) {
        if (fl_is_null_arg("fl_apply", in[i] = given[i])) return NULL;
        if (!like && !in[i]->weak) like = in[i];
        conditions |= (uint32_t)(!in[i]->weak && in[i]->dtype == FL_B8) << i;
        if (like) alike &= fl__is_alike(in[i], like);
    }
    if (!like && !(like = in[0] = fl_materialise(in[0]))) return NULL;
    if (!(*f = fl__applied_of(text, n, conditions, space))) return fl_raise();
    if (alike && (*f)->op)
        return n == 1 ? fl_unary_op((*f)->op, in[0]) : fl_binary_op((*f)->op, in[0], in[1]);
    if (alike && !(*f)->whole && fl_dtype_is_float(like->dtype))
        return fl__run_applied(&(*f)->args, in, like->dtype, NULL, like, &y) ? y : fl_raise();
    const fl_dtype d = fl__apply_kind(text, *f, in, n, like, &shape);
    if (d == FL_DTYPE_NONE) return NULL;
    return fl__run_applied(&(*f)->args, in, d, &shape, like, &y) ? y : fl_raise();
}

fl_tensor *fl_apply(const char *text, fl_tensor *const *in, int n) {
    const fl__applied *f;
    fl__applied space;
    return fl__apply(text, in, n, &f, &space);
}

/* ---- on variables ---- */

/* Records the value of a program of the variables x. Saved are those that its derivatives read. */
static fl_var *fv__record_applied(const fl_formula_args *a, fl_var *const *x, fl_tensor *value) {
    const int n = a->program.n_in;
    fl_var *saved[FL__APPLY_INPUTS] = {NULL};
    uint32_t blocked = 0, reads = 0;
    bool tracked = false;
    for (int i = 0; i < n; i++) tracked |= x[i]->requires_grad;
    if (!tracked || !value || !fl_grad_enabled() || !fl_dtype_is_float(value->dtype)) return fv_const(value);
    for (int i = 0; i < n; i++) {
        fl__applied space;
        if (!x[i]->requires_grad) continue;
        const fl__applied *d = fl__derivative_of(a, 1u << i, &space);
        if (!d) return fl_raise();
        blocked |= d->zero;
        reads |= d->fits ? d->args.program.reads : a->program.reads;
    }
    for (int i = 0; i < n; i++)
        if (reads >> i & 1) saved[i] = x[i];
    const fv_record_opts o = {.op = fl_op_formula, .in = {n, x}, .saved = {n, saved}, .blocked = blocked,
                              .args = a};
    return fv_record_opt(value, &o);
}

fl_var *fv_apply(const char *text, fl_var *const *in, int n) {
    fl_var *x[FL__APPLY_INPUTS];
    fl_tensor *t[FL__APPLY_INPUTS];
    const fl__applied *f = NULL;
    fl__applied space;
    const int count = in && n > 0 && n <= FL__APPLY_INPUTS ? n : 0;
    for (int i = 0; i < count; i++) x[i] = in[i];
    if (!fv_autocast(fl_op_formula, x, count)) return NULL;
    for (int i = 0; i < count; i++) t[i] = fv_value(x[i]);
    fl_tensor *y = fl__apply(text, in ? t : NULL, n, &f, &space);
    return y ? fv__record_applied(&f->args, x, y) : NULL;
}

/* A program of variables, as an op that is recorded. */
static fl_var *fv__run_applied(const fl_formula_args *a, fl_var *const *x, fl_var *dy) {
    fl_tensor *t[FL__APPLY_INPUTS], *y;
    for (int i = 0; i < a->program.n_in; i++) t[i] = fv_value(x[i]);
    const fl_shape shape = fl_shape_of(dy->value);
    if (!fl__run_applied(a, t, dy->value->dtype, &shape, dy->value, &y)) return fl_raise();
    return fv__record_applied(a, x, y);
}

static void *fv__chain_number(double value, void *user) {
    return fv_const(fl_new_full(((const fl_var *)user)->value, FL_SCALAR_SHAPE, value));
}

/* The gradient of input i, op by op: of derivatives that do not fit a program. */
static fl_var *fv__chain_gradient(const fl_formula_args *a, int i, fl_var *const *x, fl_var *dy) {
    const fl_formula_vtable variables = {fv__chain_number, fv_primitive, dy};
    const fl_formula *f = &a->program;
    fl__chain c = {.args = a, .m = &variables};
    void *g = NULL;
    for (int k = 0; k < f->n_in; k++) {
        if (!(f->reads >> k & 1)) continue;
        if (x[k]->value->weak) c.value[k] = fv__chain_number(x[k]->value->f64, dy);
        else c.value[k] = f->conditions >> k & 1 ? x[k] : fv_cast(x[k], dy->value->dtype);
        if (!c.value[k]) return NULL;
    }
    return fl__chain_values(&c) && fl__chain_tangent(&c, i, dy, &g) ? g : NULL;
}

/* The gradients of all inputs in one pass, which is not recorded. False if they do not fit, or after an
   error. */
static bool fv__gradients(fl_node *n, const fl_formula_args *a, uint32_t wanted, fl_var *const *x,
                          fl_var *dy) {
    fl__applied space;
    fl_tensor *t[FL__APPLY_INPUTS], *g[FL_FORMULA_OUTPUTS];
    const fl__applied *d = fl__derivative_of(a, wanted, &space);
    if (!d || !d->fits) return false;
    for (int i = 0; i < d->args.program.n_in; i++) t[i] = fv_value(x[i]);
    const fl_shape shape = fl_shape_of(dy->value);
    if (d->args.program.n_out && !fl__run_applied(&d->args, t, dy->value->dtype, &shape, dy->value, g))
        return false;
    for (int i = 0, k = 0; i < a->program.n_in; i++)
        if (wanted >> i & 1 && !(d->zero >> i & 1)) fv_add_grad(n, i, fv_const(g[k++]));
    return true;
}

static void fv__applied_back(fl_node *n, fl_var *dy) {
    const fl_formula_args *a = fv_args(n);
    const int count = a->program.n_in;
    fl_var *x[FL__APPLY_INPUTS + 1]; /* and dy, also in place of what is not read */
    uint32_t wanted = 0;
    for (int i = 0; i < count; i++) {
        x[i] = fv_saved(n, i);
        if (!x[i]) x[i] = dy;
        wanted |= (uint32_t)fv_needs(n, i) << i;
    }
    x[count] = dy;
    if (fl_error() || (!fl_grad_enabled() && fv__gradients(n, a, wanted, x, dy))) return;
    for (int i = 0; i < count && !fl_error(); i++) {
        fl__applied space;
        if (!(wanted >> i & 1)) continue;
        const fl__applied *d = fl__derivative_of(a, 1u << i, &space);
        if (!d || d->zero >> i & 1) continue;
        fv_add_grad(n, i, d->fits ? fv__run_applied(&d->args, x, dy) : fv__chain_gradient(a, i, x, dy));
    }
}

/* ---- composition ---- */

/* Constants are tensors, so that steps of constants alone have the program's dtype. */
static void *fl__program_number(double value, void *user) {
    return fl_new_full(user, FL_SCALAR_SHAPE, value);
}

static void *fl__program_step(fl_primitive primitive, void *const x[], void *user) {
    const fl_op op = fl_primitive_op(primitive);
    (void)user;
    if (op == FL_OP_where) return fl_where(x[0], x[1], x[2]);
    return fl_primitive_operands(primitive) == 1 ? fl_unary_op(op, x[0]) : fl_binary_op(op, x[0], x[1]);
}

static bool fl__compose_program(const fl_call *c, fl_tensor **value) {
    fl_tensor like = {.backend = c->out[0]->backend};
    const fl_formula_vtable ops = {fl__program_number, fl__program_step, &like};
    const fl_formula_args *a = fl_formula_args_of(c, &like.dtype);
    void *in[FL__APPLY_INPUTS], *out[FL_FORMULA_OUTPUTS];
    if (!a) return false;
    for (int i = 0; i < c->n_in; i++) {
        in[i] = c->in[i];
        if (!(a->program.reads >> i & 1) || !c->in[i]->weak) continue;
        fl_fill_args number = {c->in[i]->f64, c->in[i]->i64};
        in[i] = fl_call_into(FL_OP_fill, fl_out_on(like.backend, FL_SCALAR_SHAPE, like.dtype), NULL, NULL,
                             &number);
        if (!in[i]) return false;
    }
    if (!fl_formula_run(&a->program, &ops, in, out)) return false;
    for (int i = 0; i < c->n_out; i++) value[i] = out[i];
    return true;
}

/* ---- registration ---- */

FL_DATA_DEFINED fl_op fl_op_formula;

FL_PRIVATE void fl__register_apply(void) {
#define FL__NAME(word, op, ...) #op " "
    FL__REGISTER(formula, .args_size = sizeof(fl_formula_args), .uses = FL_PRIMITIVES(FL__NAME),
                 .compose = fl__compose_program, .gradient = fv__applied_back);
#undef FL__NAME
}

#endif /* FL_OPS_APPLY_IMPL */
#endif
/* MIT licence: see LICENSE. */
