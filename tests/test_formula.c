/* test_formula.c - formulas as programs: the parser, and the evaluators against each other

   A program runs on tensors (fl_ ops), on variables (fv_ ops) and, by the cpu's executor, on blocks of
   numbers; hot formulas have compiled loops beside it. All give the same bits, at every level. */
#include "../fl_all.h"
#include "../kernels/cpu/formula.h"
#include "test.h"

#include <pthread.h>

enum { FORMULAS = FL_OP_copy, N = 613 }; /* more than two blocks, and no multiple of a register */

static const fl_op words[] = {
#define WORD(word, op, ...) FL_OP_##op,
    FL_PRIMITIVES(WORD)
#undef WORD
};

/* The programs of an op: y, da, db, both gradients. */
static int programs_of(fl_op op) { return fl_op_get_info(op)->arity == 1 ? 2 : 4; }

/* >>parser */

TEST(every_line_of_the_tables_parses) {
    for (int op = 1; op < FORMULAS; op++)
        for (int which = 0; which < programs_of((fl_op)op); which++) {
            const fl_formula *f = fl_op_program((fl_op)op, (fl_program)which);
            if (!CHECK(f != NULL)) continue;
            CHECK(f->n_registers <= FL_FORMULA_REGISTERS && f->n_steps <= FL_FORMULA_STEPS);
            CHECK_EQ_INT(f->n_out, which == FL_PROGRAM_DA_DB ? 2 : 1);
            CHECK(f == fl_op_program((fl_op)op, (fl_program)which));
        }
}

TEST(required_ops_are_primitives) {
    for (int i = 0; i < FL_PRIMITIVE_COUNT; i++) {
        CHECK_EQ_INT(fl_primitive_op((fl_primitive)i), words[i]);
        CHECK(fl_op_get_info(words[i])->required);
    }
    for (int op = 1; op < FORMULAS; op++) {
        if (!fl_op_get_info((fl_op)op)->required) continue;
        const fl_formula *f = fl_op_program((fl_op)op, FL_PROGRAM_Y);
        CHECK_EQ_INT(f->n_steps, 1);
        CHECK_EQ_INT(fl_primitive_op((fl_primitive)f->step[0].primitive), op);
        for (int k = 0; k < f->n_in; k++) CHECK_EQ_INT(f->step[0].in[k], k);
    }
}

/* The macros of fl_primitives.h name the same ops. */
#define TEXT_OF_(name) #name
#define TEXT_OF(name) TEXT_OF_(name)
#define FL_FN(name) name of
#include "../kernels/fl_primitives.h"
#define CALL_1(word) word(x)
#define CALL_2(word) word(x, x)
#define CALL_3(word) word(x, x, x)
#define EXPANDED(call) TEXT_OF(call)
static const char *const expanded[] = {
#define WORD(word, op, operands, ...) EXPANDED(CALL_##operands(word)),
    FL_PRIMITIVES(WORD)
#undef WORD
};
#define FL_PRIMITIVES_END
#include "../kernels/fl_primitives.h"

TEST(words_as_macros_are_the_same_ops) {
    for (int i = 0; i < FL_PRIMITIVE_COUNT; i++) {
        const char *name = fl_op_get_info(words[i])->name;
        if (!CHECK(!strncmp(expanded[i], name, strlen(name)) && expanded[i][strlen(name)] == ' '))
            printf("  %s is %s\n", name, expanded[i]);
    }
}

TEST(common_parts_are_computed_once) {
    fl_formula f;
    CHECK(fl_formula_parse(&f, "MUL(EXP(NEG(x)), ADD(EXP(NEG(x)), EXP(NEG(x))))", "x"));
    CHECK_EQ_INT(f.n_steps, 4);
    CHECK_EQ_INT(f.n_registers, 2);
    CHECK(fl_formula_parse(&f, "MUL(dy, EXP(b)), MUL(a, EXP(b))", "a b dy"));
    CHECK_EQ_INT(f.n_steps, 3);
    CHECK_EQ_INT(f.n_out, 2);
    CHECK(fl_formula_parse(&f, "ADD(CONST(0.5), MUL(CONST(0.5), CONST(-0.5)))", ""));
    CHECK_EQ_INT(f.n_constants, 2);
    CHECK_EQ_INT(fl_op_program(FL_OP_mish, FL_PROGRAM_DA)->n_steps, 16);
}

/* A name gives the program of the formula that repeats what it names. */
TEST(let) {
    fl_formula named, repeated;
    CHECK(fl_formula_parse(&named, "LET(u, EXP(x), LET(v, MUL(u, u), ADD(v, u))), LET(u, NEG(x), u)", "x"));
    CHECK(fl_formula_parse(&repeated, "ADD(MUL(EXP(x), EXP(x)), EXP(x)), NEG(x)", "x"));
    CHECK_EQ_INT(memcmp(&named, &repeated, sizeof named), 0);
    CHECK_EQ_INT(named.n_steps, 4);
}

TEST(a_program_knows_what_it_reads) {
    fl_formula f;
    CHECK(fl_formula_parse(&f, "SELECT(LT(x, CONST(0)), dy, CONST(0))", "x y dy"));
    CHECK_EQ_INT(f.reads, 5);
    CHECK(fl_formula_has(&f, FL_PRIMITIVE_where) && !fl_formula_has(&f, FL_PRIMITIVE_add));
    CHECK(fl_formula_parse(&f, "LT(x, y), y, CONST(2)", "x y"));
    CHECK_EQ_INT(f.reads, 3);
    CHECK_EQ_INT(f.logical, 1);
    CHECK_EQ_INT(f.out[1], 1);
    CHECK_EQ_INT(f.out[2], FL_FORMULA_CONSTANT);
}

/* "ADD(a, ADD(b, ...)))" of n terms. */
static void nested(char *text, const char *open, const char *last, int n) {
    text[0] = 0;
    for (int i = 0; i < n; i++) strcat(text, open);
    strcat(text, last);
    for (int i = 0; i < n; i++) strcat(text, ")");
}

TEST(bad_text_is_an_error_with_its_place) {
    static const struct {
        const char *text, *error;
    } bad[] = {
        {"", "expected a primitive or an input at character 1"},
        {"ADD(x)", "expected ',' at character 6"},
        {"ADD(x, y, x)", "expected ')' at character 9"},
        {"ADD(x, y", "expected ')' at character 9"},
        {"ADD(x, FOO(y))", "no such primitive at character 8"},
        {"ADD(x, z)", "no input of this name at character 8"},
        {"CONST(1.5.2)", "not a number at character 7"},
        {"CONST(one)", "expected a number at character 7"},
        {"x y", "expected the end of the formula at character 3"},
        {"x, ", "expected a primitive or an input at character 4"},
        {"x, x, x, x, x", "too many outputs at character 12"},
        {"ADD(x, LT(x, y))", "got a condition, expected a number at character 1"},
        {"SELECT(x, x, y)", "got a number, expected a condition at character 1"},
        {"SELECT(LT(x, y), x, LT(x, y))", "operands must be both numbers or both conditions at character 1"},
        {"AND(x, LT(x, y))", "operands must be both numbers or both conditions at character 1"},
        {"EQ(LT(x, y), LT(y, x))", "got a condition, expected a number at character 1"},
        {"ADD(LET(u, x, u), y)", "LET must be at the start of the formula at character 5"},
        {"LET(u, LET(v, x, v), u)", "LET must be at the start of the formula at character 8"},
        {"LET(u, LT(x, y), x)", "got a condition, expected a number at character 5"},
        {"LET(u, x)", "expected ',' at character 9"},
        {"LET(, x, x)", "expected a name at character 5"},
        {"LET(u, x, u), u", "no input of this name at character 15"},
        {"LET(a, x, LET(b, x, LET(c, x, LET(d, x, LET(e, x, e)))))", "too many LETs at character 41"},
    };
    static char text[1 << 20];
    fl_formula f;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!fl_formula_parse(&f, bad[i].text, "x y"));
        if (!CHECK(fl_error() && strstr(fl_error(), bad[i].error))) puts(fl_error() ? fl_error() : "");
        fl_error_clear();
    }
    nested(text, "NEG(", "x", FL_FORMULA_STEPS);
    CHECK(fl_formula_parse(&f, text, "x"));
    for (int n = FL_FORMULA_STEPS + 1; n < 100000; n *= 40) {
        nested(text, "NEG(", "x", n);
        CHECK(!fl_formula_parse(&f, text, "x") && strstr(fl_error(), "too many steps"));
        fl_error_clear();
    }
    CHECK(!fl_formula_parse(&f, "x", "a b c d e f g h i j k l m n o p q r s t u") &&
          strstr(fl_error(), "more than 20 inputs"));
    fl_error_clear();
    text[0] = 0;
    for (int i = 0; i < 13; i++)
        sprintf(text + strlen(text), "ADD(%s(%s(x)), ", i & 1 ? "EXP" : "LOG",
                (const char *[]){"SIN", "COS", "NEG", "ABS", "SQRT", "TANH", "ERF", "RINT", "FLOOR", "EXP",
                                 "LOG", "LOG1P", "EXPM1"}[i]);
    nested(text + strlen(text), "", "x", 0);
    for (int i = 0; i < 13; i++) strcat(text, ")");
    CHECK(!fl_formula_parse(&f, text, "x") && strstr(fl_error(), "more than 12 values"));
    fl_error_clear();
}

/* >>evaluators */

/* Special values, then all magnitudes. */
static fl_tensor *values(fl_dtype d, uint64_t key, int64_t n) {
    static const double special[] = {0, -0.0, 1, -1, 0.5, 2, -2, 3, 6, -3, 80, -90, 1e-40, 1e-30, 3e38,
                                     INFINITY, -INFINITY, NAN, 1e8, 255, 0.25, 1e300, 4, 127};
    const int count = sizeof special / sizeof *special;
    fl_rng rng = {key, 0};
    fl_tensor *x = fl_cast(fl_normal(FL_SHAPE(n), 0, 3, FL_F64, &rng), d);
    for (int64_t i = 0; i < n / 2; i++) {
        fl_number v = {true, special[(i * (key % 2 ? 1 : 7) + (int64_t)key) % count], 0};
        if (d == FL_I64) v.f = fabs(v.f) < 1e9 ? v.f : 3;
        fl_number_store(d, (char *)fl_map(x, FL_WRITE) + (size_t)i * fl_dtype_size(d), v);
        fl_unmap(x, FL_WRITE);
    }
    return x;
}

/* The same bits; all NaNs are one. */
static bool same(fl_tensor *a, fl_tensor *b) {
    if (!a || !b || a->dtype != b->dtype) return false;
    if (a->weak) a = fl_full_like(b, a->f64); /* a formula that is a constant */
    fl_tensor *alike = fl_logical_or(fl_eq(a, b), fl_logical_and(fl_ne(a, a), fl_ne(b, b)));
    if (fl_dtype_is_float(a->dtype)) {
        fl_tensor *signs = fl_eq(fl_lt(fl_div(fl_num(1), a), fl_num(0)),
                                 fl_lt(fl_div(fl_num(1), b), fl_num(0)));
        alike = fl_logical_and(alike, fl_logical_or(fl_ne(a, a), signs));
    }
    return fl_item(fl_all(alike, FL_ALL_AXES)) == 1;
}

static void *mapped(fl_tensor *t) {
    void *p = fl_map(t, FL_WRITE);
    fl_unmap(t, FL_WRITE);
    return p;
}

/* Runs f by the executor, whatever compiled loops there are. y NULL: new tensors. False if it lacks
   a primitive. */
static bool execute(const fl_formula *f, fl_dtype d, fl_tensor *const *in, fl_tensor **y, bool *zero) {
    fl__executor e;
    void *p[FL_FORMULA_OUTPUTS + FL_FORMULA_INPUTS];
    if (!fl__executor_begin(&e, f, d)) return false;
    e.zero = zero;
    for (int i = 0; i < f->n_out; i++) {
        if (!y[i]) y[i] = fl_zeros(FL_SHAPE(N), f->logical >> i & 1 ? FL_B8 : d);
        p[i] = mapped(y[i]);
    }
    for (int i = 0; i < f->n_in; i++) p[f->n_out + i] = mapped(in[i]);
    fl__executor_run(p, N, &e);
    return true;
}

static fl_tensor *executed(const fl_formula *f, fl_dtype d, fl_tensor *const *in) {
    fl_tensor *y[FL_FORMULA_OUTPUTS] = {NULL};
    return execute(f, d, in, y, NULL) ? y[0] : NULL;
}

static const struct {
    fl_tensor *(*unary)(fl_tensor *), *(*binary)(fl_tensor *, fl_tensor *);
    fl_var *(*unary_var)(fl_var *), *(*binary_var)(fl_var *, fl_var *);
} functions[] = {
#define UNARY(op, ...) [FL_OP_##op] = {fl_##op, NULL, fv_##op, NULL},
#define BINARY(op, ...) [FL_OP_##op] = {NULL, fl_##op, NULL, fv_##op},
    FL_UNARY_OPS(UNARY) FL_BINARY_OPS(BINARY)
#undef UNARY
#undef BINARY
};

static bool takes(fl_op_class cls, fl_dtype d) {
    if (d == FL_B8) return cls >= FL_CLASS_ANY;
    return cls == FL_CLASS_CMP || cls == FL_CLASS_NUM || cls == FL_CLASS_ANY ||
           cls == (d == FL_I64 ? FL_CLASS_INT : FL_CLASS_FLOAT);
}

static void differ(fl_op op, fl_dtype d, const char *what) {
    printf("  %s %s at level %s: %s\n", fl_op_get_info(op)->name, fl_dtype_name(d), fl_cpu_level(), what);
}

/* The gradient of a or b by the fused slots or, recorded, on variables; NULL if there is none. */
static fl_tensor *gradient(fl_op op, fl_tensor *const *in, fl_tensor *dy, int i, bool recorded) {
    fl_var *a = fv_param(in[0]), *b = fv_param(in[1]);
    fl_var *y = functions[op].unary ? functions[op].unary_var(a) : functions[op].binary_var(a, b);
    if (!y || !y->requires_grad) return NULL;
    return fv_value(fl_grad(fv_sum(fv_mul(y, fv_const(dy)), FL_ALL_AXES), i ? b : a, recorded));
}

static void check_gradients(fl_op op, fl_dtype d, fl_tensor *const *x, fl_tensor *y) {
    const int arity = fl_op_get_info(op)->arity;
    fl_tensor *dy = fl_cast(fl_normal(FL_SHAPE(N), 0, 1, FL_F32, &(fl_rng){9, 0}), d);
    fl_tensor *in[] = {x[0], arity == 2 ? x[1] : y, arity == 2 ? y : dy, dy};
    fl_tensor *both[FL_FORMULA_OUTPUTS] = {NULL};
    if (arity == 2) CHECK(execute(fl_op_program(op, FL_PROGRAM_DA_DB), d, in, both, NULL));
    for (int i = 0; i < arity; i++) {
        const fl_formula *f = fl_op_program(op, i ? FL_PROGRAM_DB : FL_PROGRAM_DA);
        fl_tensor *blocks = executed(f, d, in), *tensors = fl_formula_value(f, in);
        if (tensors && tensors->weak) tensors = fl_full_like(blocks, tensors->f64);
        if (!CHECK(same(tensors, blocks))) differ(op, d, "gradient on tensors and by blocks");
        if (arity == 2 && !CHECK(same(both[i], blocks))) differ(op, d, "gradient alone and with the other");
        fl_tensor *fused = gradient(op, x, dy, i, false), *recorded = gradient(op, x, dy, i, true);
        if (fused && !CHECK(same(fused, blocks))) differ(op, d, "gradient by the slot and by blocks");
        if (recorded && !CHECK(same(recorded, blocks))) differ(op, d, "gradient on variables and by blocks");
        CHECK(!fl_error());
    }
}

static void check_evaluators(fl_dtype d) {
    for (int k = 1; k < FORMULAS; k++) {
        const fl_op op = (fl_op)k;
        const fl_op_info *info = fl_op_get_info(op);
        if (!takes(info->cls, d)) continue;
        fl_scope s = fl_scope_begin();
        fl_tensor *x[2] = {values(d, 1, N), values(d, 2, N)};
        if (d == FL_I64) x[1] = fl_where(fl_eq(x[1], fl_int(0)), fl_int(3), x[1]); /* divisors */
        fl_tensor *y = functions[op].unary ? functions[op].unary(x[0]) : functions[op].binary(x[0], x[1]);
        const fl_formula *f = fl_op_program(op, FL_PROGRAM_Y);
        fl_tensor *blocks = executed(f, d, x);
        if (!CHECK(same(y, blocks))) differ(op, d, "slot and blocks");
        fl_tensor *tensors = fl_cast(fl_formula_value(f, x), y->dtype);
        if (!CHECK(same(tensors, blocks))) differ(op, d, "tensors and blocks");
        if (info->cls <= FL_CLASS_ANY && fl_dtype_is_float(d)) check_gradients(op, d, x, y);
        fl_scope_end(&s);
    }
}

TEST(evaluators_agree_at_each_level) {
    const int top = fl__level_cap(FL__AVX512);
    for (int level = FL__PORTABLE; level <= top; level++)
        if (fl__level_cap(level) == level) check_evaluators(FL_F32);
    fl__level_cap(FL__AVX512);
}
TEST(evaluators_agree_on_f64) { check_evaluators(FL_F64); }
TEST(evaluators_agree_on_integers) { check_evaluators(FL_I64); }
TEST(evaluators_agree_on_b8) { check_evaluators(FL_B8); }

/* Every output in the place of every input. */
TEST(outputs_may_be_inputs) {
    for (int op = 1; op < FORMULAS; op++)
        for (int which = 0; which < programs_of((fl_op)op); which++) {
            if (!takes(fl_op_get_info((fl_op)op)->cls, FL_F32)) continue;
            const fl_formula *f = fl_op_program((fl_op)op, (fl_program)which);
            for (int at = 0; at < f->n_in && !f->logical; at++) {
                fl_scope s = fl_scope_begin();
                fl_tensor *in[4], *y[FL_FORMULA_OUTPUTS] = {NULL}, *own[FL_FORMULA_OUTPUTS] = {NULL};
                for (int i = 0; i < f->n_in; i++) in[i] = values(FL_F32, (uint64_t)i + 1, N);
                CHECK(execute(f, FL_F32, in, y, NULL));
                for (int i = 0; i < f->n_out; i++) own[i] = in[(at + i) % f->n_in];
                CHECK(execute(f, FL_F32, in, own, NULL));
                for (int i = 0; i < f->n_out; i++)
                    if (!CHECK(same(y[i], own[i]))) differ((fl_op)op, FL_F32, "in place");
                fl_scope_end(&s);
            }
        }
}

TEST(a_users_formula_has_several_outputs) {
    fl_formula f;
    CHECK(fl_formula_parse(&f,
                           "MUL(rate, EXP(NEG(MUL(time, time)))),\n"
                           "AND(LT(time, rate), NOT(EQ(rate, CONST(3)))), rate, CONST(2.5)", "time rate"));
    for (int swap = 0; swap < 2; swap++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *t = values(FL_F32, 1, N), *r = values(FL_F32, 2, N), *in[] = {t, r};
        fl_tensor *want[] = {fl_mul(r, fl_exp(fl_neg(fl_mul(t, t)))),
                             fl_bitwise_and(fl_lt(t, r), fl_bitwise_not(fl_eq(r, fl_num(3)))), fl_clone(r),
                             fl_full(FL_SHAPE(N), 2.5, FL_F32)};
        fl_tensor *y[4] = {swap ? r : NULL, NULL, swap ? t : NULL, NULL}; /* inputs change places */
        CHECK(execute(&f, FL_F32, in, y, NULL));
        for (int i = 0; i < 4; i++) CHECK(same(want[i], y[i]));
        fl_scope_end(&s);
    }
}

TEST(layouts_numbers_and_narrow_dtypes) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_reshape(values(FL_F32, 1, 600), FL_SHAPE(20, 30)), *t = fl_transpose(x, 0, 1);
    CHECK(same(fl_clone(fl_mish(t)), fl_clone(fl_transpose(fl_mish(x), 0, 1))));
    fl_tensor *rows = fl_slice(x, 1, 3, 17, 2), *wide = fl_expand(fl_select(x, 0, 0), fl_shape_of(x));
    CHECK(same(fl_selu(rows), fl_selu(fl_clone(rows))));
    CHECK(same(fl_logaddexp(wide, x), fl_logaddexp(fl_clone(wide), x)));
    CHECK(same(fl_xlogy(fl_num(2.5), x), fl_xlogy(fl_full_like(x, 2.5), x)));
    CHECK(same(fl_fmod(x, fl_num(2.5)), fl_fmod(x, fl_full_like(x, 2.5))));
    const fl_dtype narrow[] = {FL_F16, FL_BF16, FL_I8, FL_U8};
    for (int i = 0; i < 4; i++) {
        fl_tensor *h = fl_cast(x, narrow[i]), *w = fl_cast(h, fl_dtype_wide(narrow[i]));
        CHECK(same(fl_heaviside(h, h), fl_cast(fl_heaviside(w, w), narrow[i])));
        if (i < 2) CHECK(same(fl_mish(h), fl_cast(fl_mish(w), narrow[i])));
        fl_tensor *dx = i < 2 ? fl_grad1(FL_OP_mish, h, h, h, NULL) : h;
        if (i < 2) CHECK(same(dx, fl_cast(fl_grad1(FL_OP_mish, w, w, w, NULL), narrow[i])));
        CHECK(same(fl_isinf(h), fl_isinf(w)));
    }
    CHECK(!fl_error());
    fl_scope_end(&s);
}

static void quiet(const char *text, void *user) { (void)text, (void)user; }

static bool divides_by_zero(fl_tensor *y) {
    const bool failed = !y && fl_error() && strstr(fl_error(), "integer division by zero");
    fl_error_clear();
    return failed;
}

TEST(integers_are_not_divided_by_zero) {
    const fl_dtype d[] = {FL_I64, FL_I32, FL_I8};
    fl_set_error_handler(quiet, NULL);
    for (int k = 0; k < 3; k++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_full(FL_SHAPE(40000), 7, d[k]), *b = fl_full(FL_SHAPE(40000), 2, d[k]);
        CHECK(fl_remainder(x, b) && fl_fmod(x, b) && !fl_error());
        fl_tensor *zeros = fl_mul(b, fl_cast(fl_lt(fl_arange(0, 40000, 1, FL_I64), fl_int(39999)), d[k]));
        CHECK(divides_by_zero(fl_remainder(x, zeros)) && divides_by_zero(fl_fmod(x, zeros)));
        CHECK(divides_by_zero(fl_remainder(x, fl_int(0))) && divides_by_zero(fl_fmod(x, fl_int(0))));
        CHECK(fl_signbit(zeros) && fl_isinf(zeros) && !fl_error());
        fl_scope_end(&s);
    }
}

static void *all_programs(void *user) {
    const fl_formula **f = user;
    for (int op = 1; op < FORMULAS; op++)
        for (int which = 0; which < programs_of((fl_op)op); which++)
            *f++ = fl_op_program((fl_op)op, (fl_program)which);
    return NULL;
}

TEST(threads_parse_at_the_same_time) {
    static const fl_formula *seen[4][FORMULAS * 4];
    pthread_t t[4];
    for (int i = 0; i < 4; i++) REQUIRE(pthread_create(&t[i], NULL, all_programs, seen[i]) == 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    for (int i = 1; i < 4; i++) CHECK(memcmp(seen[0], seen[i], sizeof seen[0]) == 0);
    CHECK(seen[0][0] && seen[0][0]->n_steps == 1);
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
