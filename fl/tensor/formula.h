/* fl/tensor/formula.h - element-wise formulas: parser, register allocation, interpreter

   A formula is a text of primitives, a closed set, and names of inputs: "MUL(dy, SUB(CONST(1), MUL(y, y)))"
   with inputs "x y dy". It is parsed once into a program: steps in postfix order, with common subexpressions
   eliminated and results in few registers. A program does not refer to ops or tensors; its caller supplies
   the primitives:

     fl_formula_run          on values of any kind: tensors (fl_tensor.h), variables (fl_autograd.h)
     kernels/cpu/formula.h   on blocks of numbers in the L1 cache

   LT, LE and EQ give conditions, which AND, OR, XOR and NOT combine and SELECT(c, a, b) = c ? a : b uses.
   MOD has the divisor's sign; RINT rounds half to even; ATAN2(a, b) is the angle of the point (b, a); SHL
   and SHR shift integers; CONST(0.5) is a number. LET(u, value, formula) names a value that is used several
   times; it must be at the start of a formula or of another LET's formula. Formulas separated by commas make
   one program with several outputs. A program can also be built step by step (fl_formula_builder). */
#ifndef FL_FORMULA_H
#define FL_FORMULA_H
#include "../../fl_mem.h"
#include "op_table.h"
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The primitives: FL_PRIMITIVES in fl/tensor/op_table.h. */
typedef enum fl_primitive {
#define FL__ENUM(word, op, ...) FL_PRIMITIVE_##op,
    FL_PRIMITIVES(FL__ENUM)
#undef FL__ENUM
    FL_PRIMITIVE_COUNT
} fl_primitive;

enum {
    FL_FORMULA_INPUTS = 20,
    FL_FORMULA_OUTPUTS = 4,
    FL_FORMULA_REGISTERS = 12, /* intermediate values that are live at the same time */
    FL_FORMULA_CONSTANTS = 16,
    FL_FORMULA_STEPS = 64,
    FL_FORMULA_LETS = 4, /* per output */
    /* Index ranges of values: inputs from 0, then registers, outputs, constants. */
    FL_FORMULA_REGISTER = FL_FORMULA_INPUTS,
    FL_FORMULA_OUTPUT = FL_FORMULA_REGISTER + FL_FORMULA_REGISTERS,
    FL_FORMULA_CONSTANT = FL_FORMULA_OUTPUT + FL_FORMULA_OUTPUTS,
    FL_FORMULA_OPERANDS = FL_FORMULA_CONSTANT + FL_FORMULA_CONSTANTS,
    /* While a program is built, step i has index FL_FORMULA_VALUE + i instead of a register or an output. */
    FL_FORMULA_VALUE = 64,
    FL_FORMULA_VALUES = FL_FORMULA_VALUE + FL_FORMULA_STEPS
};

typedef struct fl_formula_step {
    uint8_t primitive;
    uint8_t logical; /* 1: its last operand is a condition */
    uint8_t to;      /* index of the result: a register or an output */
    uint8_t in[3];   /* indices of the operands */
} fl_formula_step;

/* A program. An output may share memory with an input; so a step writes an output directly only if no later
   step reads an input; otherwise the output is copied from out[i] after all steps. */
typedef struct fl_formula {
    uint8_t n_in, n_out, n_steps, n_constants, n_registers;
    uint32_t reads;                  /* bit i: a step or an output reads input i */
    uint32_t conditions;             /* bit i: input i is a condition; only of programs that were built */
    uint8_t logical;                 /* bit i: output i is a condition */
    uint8_t out[FL_FORMULA_OUTPUTS]; /* index of output i's value after the last step */
    fl_formula_step step[FL_FORMULA_STEPS];
    double constant[FL_FORMULA_CONSTANTS];
} fl_formula;

/* Parses a formula with inputs named by the space-separated list `inputs`. False after fl_fail for a syntax
   error, with the position of the character, counted from 1, and if a limit above is exceeded. */
FL_API bool fl_formula_parse(fl_formula *f, const char *text, const char *inputs);
/* Number of operands of a primitive, 1 to 3. */
FL_API int fl_primitive_operands(fl_primitive primitive);
/* True if a step of f is that primitive. */
FL_API bool fl_formula_has(const fl_formula *f, fl_primitive primitive);
/* The bytes from the start in which programs differ if they differ in more than their numbers. */
static inline size_t fl__formula_bytes(const fl_formula *f) {
    return offsetof(fl_formula, step) + f->n_steps * sizeof *f->step;
}

/* Builds a program step by step. Values are indices: inputs from 0, constants, FL_FORMULA_VALUE + i for step
   i. A function that fails returns -1 or false, without fl_fail, and sets `error`. */
typedef struct fl_formula_builder {
    fl_formula *f;
    const char *error;               /* what is wrong, a string literal; NULL before an error */
    bool logical[FL_FORMULA_VALUES]; /* the value is a condition */
    /* After fl_formula_build_end: the index that each value became, -1 if no output needs it; */
    int at[FL_FORMULA_VALUES];
    int failed; /* after its error, the step, as then numbered, for which there is no register */
} fl_formula_builder;
/* Starts the program f of n_in inputs. Bit i of conditions: input i is a condition. False after fl_fail. */
FL_API bool fl_formula_build(fl_formula_builder *b, fl_formula *f, int n_in, uint32_t conditions);
/* The constant of that value. */
FL_API int fl_formula_build_number(fl_formula_builder *b, double value);
/* The value of a primitive; equal steps are one. */
FL_API int fl_formula_build_step(fl_formula_builder *b, fl_primitive primitive, const int operand[]);
/* Completes the program: drops what no output needs, and assigns registers. */
FL_API bool fl_formula_build_end(fl_formula_builder *b, int n_out, const int out[]);

/* How to interpret a program: `number` creates a constant, `step` runs a primitive; NULL on failure. Both get
   `user`. */
typedef struct fl_formula_vtable {
    void *(*number)(double value, void *user);
    void *(*step)(fl_primitive primitive, void *const operand[], void *user);
    void *user;
} fl_formula_vtable;
/* Runs f on the values in[0 .. n_in - 1] and sets out[0 .. n_out - 1]. False if a function of the table
   failed. */
FL_API bool fl_formula_run(const fl_formula *f, const fl_formula_vtable *m, void *const in[],
                           void *out[]);
/* Reads the number of the n characters at s, in any locale. False, without an error, if they are not one. */
FL_API bool fl_formula_number(const char *s, size_t n, double *value);

#ifdef __cplusplus
}
#endif
#endif /* FL_FORMULA_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TENSOR_FORMULA) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_FORMULA_IMPL
#define FL_FORMULA_IMPL
#include <ctype.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FL__CLASS_FLOAT, FL__CLASS_NUM, FL__CLASS_ANY, FL__CLASS_CMP, FL__CLASS_INT, FL__CLASS_CHOICE };
static const struct {
    const char *word;
    uint8_t operands, takes;
} fl__primitives[] = {
#define FL__PRIMITIVE(word, op, operands, class_) {#word, operands, FL__CLASS_##class_},
    FL_PRIMITIVES(FL__PRIMITIVE)
#undef FL__PRIMITIVE
};

/* ---- the builder ---- */

FL_API bool fl_formula_build(fl_formula_builder *b, fl_formula *f, int n_in, uint32_t conditions) {
    if (!fl_given(b, "fl_formula_build", "the builder") || !fl_given(f, "fl_formula_build", "the program"))
        return false;
    if (n_in < 0 || n_in > FL_FORMULA_INPUTS)
        return fl_fail("fl_formula_build: got %d inputs, expected 0 to %d", n_in, FL_FORMULA_INPUTS);
    memset(f, 0, sizeof *f);
    memset(b, 0, sizeof *b);
    b->f = f;
    f->n_in = (uint8_t)n_in;
    f->conditions = conditions;
    for (int i = 0; i < n_in; i++) b->logical[i] = conditions >> i & 1;
    return true;
}

static int fl__build_error(fl_formula_builder *b, const char *error) {
    b->error = error;
    return -1;
}

FL_API int fl_formula_build_number(fl_formula_builder *b, double value) {
    if (!fl_given(b, "fl_formula_build_number", "the builder")) return -1;
    fl_formula *f = b->f;
    int i = 0;
    while (i < f->n_constants && memcmp(&f->constant[i], &value, sizeof value)) i++;
    if (i == FL_FORMULA_CONSTANTS) return fl__build_error(b, "too many constants");
    f->constant[i] = value;
    if (i == f->n_constants) f->n_constants++;
    return FL_FORMULA_CONSTANT + i;
}

/* True if v is an input, a constant or a step so far. */
static bool fl__build_has(const fl_formula *f, int v) {
    if (v >= FL_FORMULA_VALUE) return v < FL_FORMULA_VALUE + f->n_steps;
    return v >= FL_FORMULA_CONSTANT ? v < FL_FORMULA_CONSTANT + f->n_constants : v >= 0 && v < f->n_in;
}

FL_API int fl_formula_build_step(fl_formula_builder *b, fl_primitive primitive, const int in[]) {
    if (!fl_given(b, "fl_formula_build_step", "the builder") ||
        !fl_given(in, "fl_formula_build_step", "the list of operands")) return -1;
    fl_formula *f = b->f;
    if ((unsigned)primitive >= FL_PRIMITIVE_COUNT) return fl__build_error(b, "there is no such primitive");
    const int operands = fl__primitives[primitive].operands;
    for (int k = 0; k < operands; k++)
        if (!fl__build_has(f, in[k])) return fl__build_error(b, "there is no such operand");
    const int takes = fl__primitives[primitive].takes;
    const bool first = b->logical[in[0]], second = operands > 1 && b->logical[in[1]];
    const bool last = b->logical[in[operands - 1]];
    if (takes == FL__CLASS_CHOICE && !first)
        return fl__build_error(b, "got a number, expected a condition");
    if (takes <= FL__CLASS_CMP && (first || second))
        return fl__build_error(b, "got a condition, expected a number");
    if (operands > 1 && last != (operands == 2 ? first : second))
        return fl__build_error(b, "operands must be both numbers or both conditions");
    fl_formula_step s = {.primitive = (uint8_t)primitive, .logical = last};
    for (int k = 0; k < operands; k++) s.in[k] = (uint8_t)in[k];
    int i = 0;
    while (i < f->n_steps && memcmp(&s, &f->step[i], sizeof s)) i++;
    if (i == FL_FORMULA_STEPS) return fl__build_error(b, "too many steps");
    if (i == f->n_steps) f->step[f->n_steps++] = s;
    b->logical[FL_FORMULA_VALUE + i] = takes == FL__CLASS_CMP || last;
    return FL_FORMULA_VALUE + i;
}

/* Drops the steps and constants that no output needs. */
static void fl__build_prune(fl_formula_builder *b, int n_out, const int out[]) {
    fl_formula *f = b->f;
    bool used[FL_FORMULA_VALUES] = {false};
    int *to = b->at, n = 0, m = 0;
    for (int o = 0; o < n_out; o++) used[out[o]] = true;
    for (int i = f->n_steps - 1; i >= 0; i--)
        for (int k = 0; used[FL_FORMULA_VALUE + i] && k < fl__primitives[f->step[i].primitive].operands; k++)
            used[f->step[i].in[k]] = true;
    for (int i = 0; i < FL_FORMULA_VALUES; i++) to[i] = i < f->n_in ? i : -1;
    for (int i = 0; i < f->n_in; i++) f->reads |= (uint32_t)used[i] << i;
    for (int i = 0; i < f->n_constants; i++) {
        if (!used[FL_FORMULA_CONSTANT + i]) continue;
        to[FL_FORMULA_CONSTANT + i] = FL_FORMULA_CONSTANT + m;
        f->constant[m++] = f->constant[i];
    }
    for (int i = 0; i < f->n_steps; i++) {
        fl_formula_step s = f->step[i];
        if (!used[FL_FORMULA_VALUE + i]) continue;
        for (int k = 0; k < fl__primitives[s.primitive].operands; k++) s.in[k] = (uint8_t)to[s.in[k]];
        b->logical[FL_FORMULA_VALUE + n] = b->logical[FL_FORMULA_VALUE + i];
        to[FL_FORMULA_VALUE + i] = FL_FORMULA_VALUE + n;
        f->step[n++] = s;
    }
    memset(f->step + n, 0, (size_t)(f->n_steps - n) * sizeof *f->step);
    memset(f->constant + m, 0, (size_t)(f->n_constants - m) * sizeof *f->constant);
    f->n_steps = (uint8_t)n;
    f->n_constants = (uint8_t)m;
    f->conditions &= f->reads;
}

/* Register allocation: assigns each step a register or an output. A register is free after its last use, and
   the step of the last use may overwrite it if the result has the same size (both numbers or both
   conditions). */
static bool fl__assign_registers(fl_formula_builder *b, const int out[]) {
    fl_formula *f = b->f;
    int last[FL_FORMULA_VALUES] = {0}, last_input = -1, place[FL_FORMULA_VALUES];
    unsigned unused = (1u << FL_FORMULA_REGISTERS) - 1;
    for (int i = 0; i < FL_FORMULA_VALUES; i++) place[i] = i;
    for (int i = 0; i < f->n_steps; i++)
        for (int k = 0; k < fl__primitives[f->step[i].primitive].operands; k++) {
            last[f->step[i].in[k]] = i;
            if (f->step[i].in[k] < FL_FORMULA_INPUTS) last_input = i;
        }
    for (int o = 0; o < f->n_out; o++) {
        if (b->logical[out[o]]) f->logical |= (uint8_t)(1u << o);
        last[out[o]] = FL_FORMULA_STEPS;
        if (out[o] < FL_FORMULA_INPUTS) last_input = FL_FORMULA_STEPS;
    }
    for (int o = f->n_out - 1; o >= 0; o--)
        if (out[o] >= FL_FORMULA_VALUE && out[o] - FL_FORMULA_VALUE >= last_input)
            place[out[o]] = FL_FORMULA_OUTPUT + o;
    for (int i = 0; i < f->n_steps; i++) {
        fl_formula_step *s = &f->step[i];
        const int self = FL_FORMULA_VALUE + i, operands = fl__primitives[s->primitive].operands;
        unsigned freed[2] = {0, 0}; /* registers of a different kind than the result, of the same kind */
        for (int k = 0; k < operands; k++) {
            int id = s->in[k], at = place[id] - FL_FORMULA_REGISTER;
            if (id >= FL_FORMULA_VALUE && last[id] == i && at < FL_FORMULA_REGISTERS)
                freed[b->logical[id] == b->logical[self]] |= 1u << at;
            s->in[k] = (uint8_t)place[id];
        }
        unused |= freed[1];
        if (place[self] == self) { /* not an output */
            if (!unused) {
                b->failed = i;
                return fl__build_error(b, "more than 12 values live at the same time") >= 0;
            }
            int at = __builtin_ctz(unused);
            unused &= ~(1u << at);
            if (at >= f->n_registers) f->n_registers = (uint8_t)(at + 1);
            place[self] = FL_FORMULA_REGISTER + at;
        }
        unused |= freed[0];
        s->to = (uint8_t)place[self];
    }
    for (int o = 0; o < f->n_out; o++) f->out[o] = (uint8_t)place[out[o]];
    return true;
}

FL_API bool fl_formula_build_end(fl_formula_builder *b, int n_out, const int out[]) {
    int value[FL_FORMULA_OUTPUTS];
    if (!fl_given(b, "fl_formula_build_end", "the builder") ||
        !fl_given(out, "fl_formula_build_end", "the list of outputs")) return false;
    if (n_out < 1 || n_out > FL_FORMULA_OUTPUTS) return fl__build_error(b, "expected 1 to 4 outputs") >= 0;
    for (int o = 0; o < n_out; o++)
        if (!fl__build_has(b->f, out[o])) return fl__build_error(b, "there is no such output") >= 0;
    b->f->n_out = (uint8_t)n_out;
    fl__build_prune(b, n_out, out);
    for (int o = 0; o < n_out; o++) value[o] = b->at[out[o]];
    return fl__assign_registers(b, value);
}

/* ---- the parser ---- */

typedef struct fl__parser {
    fl_formula_builder b;
    const char *text, *at, *inputs;
    struct { const char *name; size_t n; int value; } let[FL_FORMULA_LETS];
    int n_lets;
} fl__parser;

static int fl__misread(const fl__parser *p, const char *at, const char *what) {
    fl_fail("fl_formula_parse: %s at character %d of \"%.160s\"", what, (int)(at - p->text) + 1,
            p->text);
    return -1;
}

static size_t fl__name_length(const char *s) {
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '_') n++;
    return n;
}

static const char *fl__skip_spaces(const char *s) {
    return s + strspn(s, " \t\r\n");
}

static bool fl__parse_char(fl__parser *p, char c) {
    p->at = fl__skip_spaces(p->at);
    if (*p->at == c) return p->at++, true;
    return fl__misread(p, p->at, c == ',' ? "expected ','" : "expected ')'") >= 0;
}

/* Index of the LET value or input named s[0 .. n - 1]. */
static int fl__parse_name(fl__parser *p, const char *s, size_t n) {
    for (int i = p->n_lets - 1; i >= 0; i--)
        if (p->let[i].n == n && !memcmp(p->let[i].name, s, n)) return p->let[i].value;
    const char *name = fl__skip_spaces(p->inputs);
    for (int i = 0; *name; i++) {
        size_t length = strcspn(name, " ");
        if (length == n && !memcmp(name, s, n)) return i;
        name = fl__skip_spaces(name + length);
    }
    return fl__misread(p, s, "there is no input of this name");
}

/* strtod expects the decimal point of the current locale. */
FL_API bool fl_formula_number(const char *s, size_t n, double *value) {
    if (!fl_given(s, "fl_formula_number", "the text") ||
        !fl_given(value, "fl_formula_number", "the number")) return false;
    const char *point = localeconv()->decimal_point;
    char digits[128], *end;
    size_t m = 0;
    if (!n || n > 31) return false;
    for (size_t i = 0; i < n; i++)
        m += (size_t)snprintf(digits + m, sizeof digits - m, "%.*s", s[i] == '.' ? 4 : 1,
                              s[i] == '.' ? point : s + i);
    *value = strtod(digits, &end);
    return !*end;
}

static int fl__parse_number(fl__parser *p) {
    const char *start = p->at = fl__skip_spaces(p->at);
    size_t n = strspn(start, "+-.0123456789eE");
    double value;
    if (!n || n > 31) return fl__misread(p, start, "expected a number");
    if (!fl_formula_number(start, n, &value)) return fl__misread(p, start, "this is not a number");
    p->at += n;
    if (!fl__parse_char(p, ')')) return -1;
    const int number = fl_formula_build_number(&p->b, value);
    return number >= 0 ? number : fl__misread(p, start, p->b.error);
}

static int fl__parse(fl__parser *p, int depth);

/* Parses "u, value, formula)" of LET(u, value, formula). Compiled as C, LET assigns a variable
   (kernels/fl_primitives.h), and C does not specify the order in which operands are evaluated; so a LET must
   be at the start, or be the formula of another LET. */
static int fl__parse_let(fl__parser *p, const char *word, int depth) {
    const char *name = p->at = fl__skip_spaces(p->at);
    const size_t n = fl__name_length(name);
    if (depth != p->n_lets) return fl__misread(p, word, "LET must be at the start of the formula");
    if (depth == FL_FORMULA_LETS) return fl__misread(p, word, "too many LETs");
    if (!n) return fl__misread(p, name, "expected a name");
    p->at += n;
    const int value = fl__parse_char(p, ',') ? fl__parse(p, depth + 1) : -1;
    if (value < 0) return -1;
    if (p->b.logical[value]) return fl__misread(p, name, "got a condition, expected a number");
    p->let[p->n_lets].name = name, p->let[p->n_lets].n = n, p->let[p->n_lets++].value = value;
    const int result = fl__parse_char(p, ',') ? fl__parse(p, depth + 1) : -1;
    return result >= 0 && fl__parse_char(p, ')') ? result : -1;
}

/* Parses an expression; the limit on steps also bounds the recursion. */
static int fl__parse(fl__parser *p, int depth) {
    const char *word = p->at = fl__skip_spaces(p->at);
    const size_t n = fl__name_length(word);
    int primitive = 0, in[3] = {0, 0, 0};
    if (!n) return fl__misread(p, word, "expected a primitive or an input");
    if (depth > FL_FORMULA_STEPS) return fl__misread(p, word, "too many steps");
    p->at = fl__skip_spaces(word + n);
    if (*p->at != '(') return fl__parse_name(p, word, n);
    p->at++;
    if (n == 3 && !memcmp(word, "LET", n)) return fl__parse_let(p, word, depth);
    if (n == 5 && !memcmp(word, "CONST", n)) return fl__parse_number(p);
    while (strlen(fl__primitives[primitive].word) != n ||
           memcmp(fl__primitives[primitive].word, word, n))
        if (++primitive == FL_PRIMITIVE_COUNT) return fl__misread(p, word, "there is no such primitive");
    for (int k = 0; k < fl__primitives[primitive].operands; k++)
        if ((k && !fl__parse_char(p, ',')) || (in[k] = fl__parse(p, depth + 1)) < 0) return -1;
    if (!fl__parse_char(p, ')')) return -1;
    const int value = fl_formula_build_step(&p->b, (fl_primitive)primitive, in);
    return value >= 0 ? value : fl__misread(p, word, p->b.error);
}

FL_API bool fl_formula_parse(fl_formula *f, const char *text, const char *inputs) {
    if (!f || !text || !inputs)
        return fl_fail("fl_formula_parse: %s is NULL", !f ? "f" : !text ? "the text" : "the list of inputs");
    fl__parser p = {.text = text, .at = text, .inputs = inputs};
    int out[FL_FORMULA_OUTPUTS], n_in = 0, n_out = 0;
    for (const char *s = fl__skip_spaces(inputs); *s; s = fl__skip_spaces(s + strcspn(s, " ")))
        if (++n_in > FL_FORMULA_INPUTS)
            return fl_fail("fl_formula_parse: more than %d inputs in \"%.160s\"", FL_FORMULA_INPUTS,
                           inputs);
    if (!fl_formula_build(&p.b, f, n_in, 0)) return false;
    do {
        if (n_out == FL_FORMULA_OUTPUTS) return fl__misread(&p, p.at, "too many outputs") >= 0;
        p.n_lets = 0;
        if ((out[n_out++] = fl__parse(&p, 0)) < 0) return false;
        p.at = fl__skip_spaces(p.at);
    } while (*p.at == ',' && p.at++);
    if (*p.at) return fl__misread(&p, p.at, "expected the end of the formula") >= 0;
    return fl_formula_build_end(&p.b, n_out, out) ||
           fl_fail("fl_formula_parse: %s in \"%.160s\"", p.b.error, text);
}

FL_API int fl_primitive_operands(fl_primitive primitive) {
    return fl__primitives[primitive].operands;
}

FL_API bool fl_formula_has(const fl_formula *f, fl_primitive primitive) {
    if (!fl_given(f, "fl_formula_has", "the formula")) return false;
    for (int i = 0; i < f->n_steps; i++)
        if (f->step[i].primitive == primitive) return true;
    return false;
}

FL_API bool fl_formula_run(const fl_formula *f, const fl_formula_vtable *m, void *const in[],
                           void *out[]) {
    if (!fl_given(f, "fl_formula_run", "the formula") ||
        !fl_given(m, "fl_formula_run", "the vtable")) return false;
    void *value[FL_FORMULA_OPERANDS], *operand[3];
    for (int i = 0; i < f->n_in; i++) value[i] = in[i];
    for (int i = 0; i < f->n_constants; i++)
        if (!(value[FL_FORMULA_CONSTANT + i] = m->number(f->constant[i], m->user))) return false;
    for (int i = 0; i < f->n_steps; i++) {
        const fl_formula_step *s = &f->step[i];
        for (int k = 0; k < fl__primitives[s->primitive].operands; k++) operand[k] = value[s->in[k]];
        if (!(value[s->to] = m->step((fl_primitive)s->primitive, operand, m->user))) return false;
    }
    for (int i = 0; i < f->n_out; i++) out[i] = value[f->out[i]];
    return true;
}

#endif /* FL_FORMULA_IMPL */
#endif
/* MIT licence: see LICENSE. */
