/* trace_calls.c - the lines of calls in errors and notes, for check_trace_calls of run; C11 and C++17 */
#include "fl_all.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char said[1000];
static int failed;
static void say(const char *text, void *user) {
    (void)user;
    snprintf(said, sizeof said, "%s", text);
    fl_error_clear();
}

/* The text begins so, and names this file and one of `lines` lines from `line`: of a call over several
   of them compilers name the first or the last. */
static void expect(const char *begin, int line, int lines, const char *text) {
    const char *at = strrchr(text, ':');
    const int is = at ? atoi(at + 1) : 0;
    const bool ok = !strncmp(text, begin, strlen(begin)) && strstr(text, "trace_calls.c") && is >= line &&
                    is < line + lines;
    if (!ok) printf("error: %d: %s\n", line, text);
    failed += !ok;
    said[0] = 0;
}

static fl_vars forward(fl_nn_module *m, fl_vars in) {
    fv_matmul(in.v[0], in.v[0]);
    expect("Mine: fl_matmul: shapes [2, 3]", __LINE__ - 1, 1, said);
    fl_nn_fail(m, "mine");
    expect("Mine: mine (", __LINE__ - 1, 1, fl_error());
    fl_error_clear();
    return in;
}

int main(void) {
    const float x[] = {1, 2, 3, 4, 5, 6};
    const fl_shape two = {1, {2}}, six = {2, {2, 3}};
    fl_set_error_handler(say, NULL);
    fl_scope s = fl_scope_begin();
    fl_tensor *a = fl_from_host(x, six, FL_F32), *b = fl_from_host(x, two, FL_F32);
    fl_tensor *c = fl_add(b,
        fl_mul(a, a)), *d = fl_sub(a, a);
    expect("fl_add: shapes [2] and [2, 3]", __LINE__ - 2, 2, said);
    fl_add(d, c);
    expect("fl_add: an operand is NULL", __LINE__ - 1, 1, said);
    fl_mul(a, fl_add(b, fl_exp(
        a)));
    expect("fl_mul: an operand is NULL", __LINE__ - 2, 2, said);
    fl_tensor *(*f)(fl_tensor *) = fl_exp; /* without parentheses it is the function */
    fl_matmul(f(a), f(a));
    expect("fl_matmul: ", __LINE__ - 1, 1, said);
    if (fl_item(a) == 0) return 1;
    expect("fl_item: shape [2, 3]", __LINE__ - 1, 1, said);
    if (fl_grad(fv_const(a), NULL, false)) return 1;
    expect("fl_grad: the variable is NULL", __LINE__ - 1, 1, said);
    fl_nn_module *net = fl_nn_function("Mine", forward, NULL, NULL);
    fl_nn_forward(net, fv_const(a));
    if (fl_data_open_safetensors("no.safetensors")) return 1;
    expect("fl_data_open_safetensors: ", __LINE__ - 1, 1, fl_error());
    fl_error_clear();
    fl_provenance_enable(1);
    fl_var *y = fv_exp(fv_param(a));
    expect("at ", __LINE__ - 1, 1, fv_node_provenance(y->node));
    fl_provenance_enable(-1);
    fl_nn_free(net);
    fl_scope_end(&s);
    return failed;
}
/* MIT licence: see LICENSE. */
