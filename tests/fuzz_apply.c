/* fuzz_apply.c - functions written as text, made of words of the language and of any bytes

   A text gives a result, or one error with line and column; its gradient then too, in bounded time. */
#include "fuzz.h"

static const char *const word[] = {"(",
                                   ")",
                                   "{",
                                   "}",
                                   "(x, y) { ",
                                   "return ",
                                   ";",
                                   "x",
                                   "y",
                                   "t",
                                   "c",
                                   "float t = ",
                                   "int i = 0",
                                   "bool b = ",
                                   "if (",
                                   "else ",
                                   "for (int i = 0; i < 3; i++) ",
                                   "for (",
                                   "while (",
                                   "x < 1",
                                   "i < 70",
                                   "t += ",
                                   "x++",
                                   "--y",
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
                                   " ? ",
                                   " : ",
                                   "!",
                                   "~",
                                   ",",
                                   "exp(",
                                   "log2(",
                                   "pow(",
                                   "where(",
                                   "sigmoid(",
                                   "erf(",
                                   "nothing(",
                                   "1",
                                   "0.5",
                                   "1e999",
                                   "2.5e-3f",
                                   "123456789012345678901234567890123",
                                   "0x10",
                                   "true",
                                   "false",
                                   "const ",
                                   "(int)",
                                   " = ",
                                   "return x; }",
                                   "\n",
                                   "((((((((((((((((",
                                   "{{{{{{{{{{{{{{{{"};

static size_t make_text(char *text, size_t room) {
    size_t n = 0;
    if (fuzz_below(4)) n = (size_t)snprintf(text, room, "(x, y, c) { ");
    for (int i = (int)fuzz_below(120); i > 0 && fuzz_input.left && n + 64 < room; i--) {
        const unsigned b = fuzz_byte();
        if (b < 250) n += (size_t)snprintf(text + n, room - n, "%s", word[b % (sizeof word / sizeof *word)]);
        else text[n++] = (char)fuzz_byte();
        text[n] = 0;
    }
    return n;
}

static void fuzz_one(void) {
    static char text[5000];
    const size_t n = make_text(text, sizeof text);
    fl_scope s = fl_scope_begin();
    const fl_dtype d = fuzz_below(4) ? FL_F32 : FL_I64;
    fl_tensor *x = fl_arange(-2, 3, 1, d), *c = fl_lt(x, fl_num(0)),
              *in[] = {x, fl_full(FL_SHAPE(1), 1.5, d), c};
    fuzz_doing = text;
    fuzz_faults(fuzz_below(8) ? 0 : 1 + (int)fuzz_below(4), 0);
    if (strnlen(text, sizeof text) == n && fuzz_shows) fprintf(stderr, "%s\n", text);
    fl_tensor *y = in[0] && in[1] && in[2] ? fl_apply(text, in, 3) : NULL;
    fuzz_faults(0, 0);
    if (!y == !fl_error()) fuzz_bug(y ? "a result and an error" : "no result and no error");
    if (y) fuzz_check_tensor(y);
    fl_error_clear();
    if (y && y->dtype == FL_F32) {
        fl_var *v[] = {fv_param(x), fv_param(in[1]), fv_const(c)}, *z = fv_apply(text, v, 3);
        if (!z || (z->requires_grad && !fl_backward(fv_sum(z, FL_ALL_AXES)))) fuzz_bug("no gradient");
    }
    fl_scope_end(&s);
}
/* MIT licence: see LICENSE. */
