/* fuzz_apply.c - functions written as text, made of words of the language and of any bytes

   A text gives a result, or one error with line and column; its gradient then too, in bounded time. */
#include "fuzz.h"

static const char *const word[] = {"-",
                                   "!",
                                   "exp(",
                                   "log2(",
                                   "pow(",
                                   "sigmoid(",
                                   "where(x < y, t, ",
                                   "x",
                                   "y",
                                   "t",
                                   "c",
                                   "1",
                                   "0.5",
                                   "2.5e-3f",
                                   "1e999",
                                   "7",
                                   " + ",
                                   " - ",
                                   " * ",
                                   " / ",
                                   " % ",
                                   " < ",
                                   " >= ",
                                   " == ",
                                   " != ",
                                   " && ",
                                   " || ",
                                   " & ",
                                   " | ",
                                   " ^ ",
                                   " << ",
                                   " ? x : ",
                                   " > ",
                                   "t = ",
                                   "t += ",
                                   "x *= ",
                                   "float u = ",
                                   "for (int i = 0; i < 3; i++) ",
                                   "for (int i = 0; i < 9 && t < 2; ++i) ", /* and wrong ones */
                                   "(",
                                   ")",
                                   "{",
                                   "}",
                                   "return ",
                                   ";",
                                   "while (",
                                   "for (",
                                   "int i = 0",
                                   "bool b = ",
                                   "x++",
                                   "--y",
                                   " : ",
                                   "~",
                                   ",",
                                   "else",
                                   "nothing(",
                                   "123456789012345678901234567890123",
                                   "0x10",
                                   "true",
                                   "const ",
                                   "(int)",
                                   "\n",
                                   "((((((((((((((((",
                                   "{{{{{{{{{{{{{{{{"};
enum {
    UNARY, CALLS = 2, NAMES = 7, NUMBERS = 11, OPERATORS = 16, ASSIGNMENTS = 33, LOOPS = 37,
    WORDS = sizeof word / sizeof *word
};

static struct {
    char text[5000];
    size_t n;
} made;

static void add(const char *s) {
    const size_t n = strlen(s);
    if (made.n + n < sizeof made.text) memcpy(made.text + made.n, s, n + 1), made.n += n;
}

static void add_word(int first, int count) {
    const unsigned b = fuzz_byte();
    add(b < 252 ? word[first + (int)(b % (unsigned)count)] : word[fuzz_byte() % WORDS]);
}

/* Operands and operators in turn, with a wrong word now and then. */
static void add_expression(int depth) {
    for (int i = fuzz_below(3); i >= 0; i--) {
        const int form = fuzz_below(8);
        if (!form) add_word(UNARY, 2);
        if (form < 3 && depth > 0) {
            add(form == 1 ? "(" : word[CALLS + fuzz_below(5)]);
            add_expression(depth - 1);
            add(form == 2 && fuzz_below(3) == 0 ? ", y)" : ")");
        } else {
            add_word(form < 6 ? NAMES : NUMBERS, form < 6 ? 4 : 5);
        }
        if (i) add_word(OPERATORS, 17);
    }
}

static void add_statement(int depth) {
    const int form = fuzz_below(depth > 0 ? 5 : 2);
    if (form == 0) add_word(ASSIGNMENTS, 4), add_expression(2), add(";\n");
    if (form == 1) add("return "), add_expression(2), add(";\n");
    if (form == 2) add("if ("), add_expression(1), add(") ");
    if (form == 3) add_word(LOOPS, 2);
    if (form == 2 || form == 3) add_statement(depth - 1);
    if (form == 2 && fuzz_below(2)) add("else "), add_statement(depth - 1);
    if (form == 4) add("{ "), add_statement(depth - 1), add_statement(depth - 1), add("} ");
}

static void make_text(void) {
    made.n = 0, made.text[0] = 0;
    if (fuzz_below(16)) add("(x, y, c) { float t = x; ");
    if (fuzz_below(4)) {
        for (int i = fuzz_below(5); i >= 0; i--) add_statement(3);
        add("return t; }");
        return;
    }
    for (int i = fuzz_below(120); i > 0 && fuzz_input.left; i--) {
        const unsigned b = fuzz_byte();
        add(b < 250 ? word[b % WORDS] : (const char[]){(char)fuzz_byte(), 0});
    }
}

static void fuzz_one(void) {
    make_text();
    fl_scope s = fl_scope_begin();
    const fl_dtype d = fuzz_below(4) ? FL_F32 : FL_I64;
    fl_tensor *x = fl_arange(-2, 3, 1, d), *c = fl_lt(x, fl_num(0)),
              *in[] = {x, fl_full(FL_SHAPE(1), 1.5, d), c};
    fuzz_doing = made.text;
    fuzz_faults(fuzz_below(8) ? 0 : 1 + (int)fuzz_below(4), 0);
    if (fuzz_shows) fprintf(stderr, "%s\n", made.text);
    fl_tensor *y = in[0] && in[1] && in[2] ? fl_apply(made.text, in, 3) : NULL;
    fuzz_faults(0, 0);
    if (!y == !fl_error()) fuzz_bug(y ? "a result and an error" : "no result and no error");
    if (y) fuzz_check_tensor(y);
    fl_error_clear();
    if (y && d == FL_F32) {
        fl_var *v[] = {fv_param(x), fv_param(in[1]), fv_const(c)}, *z = fv_apply(made.text, v, 3);
        if (!z || (z->requires_grad && !fl_backward(fv_sum(z, FL_ALL_AXES)))) fuzz_bug("no gradient");
    }
    fl_scope_end(&s);
}
/* MIT licence: see LICENSE. */
