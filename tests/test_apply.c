/* test_apply.c - functions written as text: against an interpreter, compositions, and themselves

   Random functions are trees. They are printed as text for fl_apply, interpreted here one element at a time
   with C's control flow, and composed of fv_ ops with masks. Values are the interpreter's, and bit by bit
   those of the composition; derivatives are the composition's. */
#include "../fl_all.h"
#include "../fl_graph.h"
#include "../examples/extend/naive.h"
#include "heap.h"
#include "sample.h"
#include "test.h"

#include <pthread.h>
#include <stdarg.h>

typedef fl_tensor *T;

static bool same_bits(T a, T b) {
    if (!a || !b || a->dtype != b->dtype || !fl_same_shape(a, b)) return false;
    a = fl_contiguous(a), b = fl_contiguous(b);
    const size_t bytes = (size_t)fl_numel(a) * fl_dtype_size(a->dtype);
    const void *p = fl_map(a, FL_READ), *q = fl_map(b, FL_READ);
    if (!p || !q) return false;
    bool same = !memcmp(p, q, bytes);
    if (!same && a->dtype == FL_F32) { /* NaN counts as one */
        const float *x = p, *y = q;
        same = true;
        for (int64_t i = 0; i < fl_numel(a); i++)
            same &= !memcmp(x + i, y + i, 4) || (isnan(x[i]) && isnan(y[i]));
    }
    fl_unmap(a, FL_READ), fl_unmap(b, FL_READ);
    return same;
}

/* >>random functions */

enum { PARAMETERS = 3, VARIABLES = 6, MOST_NODES = 400 };
typedef enum kind {
    NUMBER, VARIABLE, UNARY, BINARY, TERNARY, CALL1, CALL2, /* expressions */
    DECLARE, ASSIGN, IF, FOR, RETURN, BLOCK                 /* statements */
} kind;
typedef struct node {
    kind kind;
    int what; /* variable, operator, function, or the rounds of a loop */
    double number;
    struct node *part[4];
} node;
static const char *const binary[] = {"+", "-", "*", "<", "<=", ">", ">=", "==", "!=", "&&", "||"};
enum { PLUS, MINUS, TIMES, LESS, LESS_EQUAL, MORE, MORE_EQUAL, EQUAL, UNEQUAL, BOTH, EITHER, BINARIES };

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double square(double x) { return x * x; }
static double softsign(double x) { return x / (1 + fabs(x)); }
static double relu(double x) { return fmax(x, 0); }
static double log_of_sum(double x, double y) {
    return fmax(x, y) + log1p(exp(-fabs(x - y)));
}
static const struct {
    const char *name;
    double (*of)(double x);
    fl_var *(*var)(fl_var *x);
} unary_calls[] = {{"sin", sin, fv_sin},         {"tanh", tanh, fv_tanh},             {"cos", cos, fv_cos},
                   {"square", square, fv_square}, {"sigmoid", sigmoid, fv_sigmoid},    {"abs", fabs, fv_abs},
                   {"relu", relu, fv_relu},       {"softsign", softsign, fv_softsign}, {"erf", erf, fv_erf}};
static const struct {
    const char *name;
    double (*of)(double x, double y);
    fl_var *(*var)(fl_var *x, fl_var *y);
} binary_calls[] = {
    {"maximum", fmax, fv_maximum}, {"minimum", fmin, fv_minimum}, {"logaddexp", log_of_sum, fv_logaddexp}};

static struct {
    uint64_t state;
    node node[MOST_NODES];
    int n, variables, loops; /* variables in scope; the first PARAMETERS are parameters */
    bool counter[VARIABLES + 4]; /* the variable counts the rounds of a loop */
    char text[16384];
} r;

static int below(int n) {
    r.state = r.state * 6364136223846793005u + 1442695040888963407u;
    return (int)((r.state >> 33) % (uint64_t)n);
}

static node *new_node(kind k, int what) {
    node *x = &r.node[r.n < MOST_NODES ? r.n++ : MOST_NODES - 1];
    *x = (node){.kind = k, .what = what};
    return x;
}

static node *number_of(int depth);

static node *constant(void) {
    node *x = new_node(NUMBER, 0);
    x->number = (below(9) - 4) * (below(2) ? 0.25 : 0.3);
    return x;
}

/* A value beside another: numbers and counters stand here alone, so that no step is of numbers alone. */
static node *beside(int depth) {
    for (int i = PARAMETERS; i < r.variables; i++)
        if (r.counter[i] && !below(4)) return new_node(VARIABLE, i);
    return below(4) ? number_of(depth - 1) : constant();
}

static node *condition_of(int depth) {
    node *x = new_node(BINARY, LESS + below(4));
    if (depth > 0 && !below(4)) x->what = below(2) ? BOTH : EITHER;
    if (depth > 0 && !below(8)) {
        x->kind = UNARY, x->what = 1;
        x->part[0] = condition_of(depth - 1);
        return x;
    }
    const bool joins = x->what == BOTH || x->what == EITHER;
    x->part[0] = joins ? condition_of(depth - 1) : number_of(depth - 1);
    x->part[1] = joins ? condition_of(depth - 1) : beside(depth);
    return x;
}

static node *number_of(int depth) {
    int i;
    do i = below(r.variables);
    while (r.counter[i]);
    if (depth <= 0 || r.n > MOST_NODES - 80) return new_node(VARIABLE, i);
    node *x;
    switch (below(8)) {
    case 0: return new_node(VARIABLE, i);
    case 1: x = new_node(UNARY, 0), x->part[0] = number_of(depth - 1); return x;
    case 2:
        x = new_node(TERNARY, 0), x->part[0] = condition_of(depth - 1), x->part[1] = number_of(depth - 1);
        x->part[2] = number_of(depth - 1);
        return x;
    case 3:
    case 4:
        x = new_node(CALL1, below((int)(sizeof unary_calls / sizeof *unary_calls)));
        x->part[0] = number_of(depth - 1);
        return x;
    case 5:
        x = new_node(CALL2, below((int)(sizeof binary_calls / sizeof *binary_calls)));
        x->part[0] = number_of(depth - 1), x->part[1] = beside(depth);
        return x;
    default:
        x = new_node(BINARY, below(3)), x->part[0] = number_of(depth - 1), x->part[1] = beside(depth);
        return x;
    }
}

static node *statements(int n, int depth);

static node *statement(int depth) {
    const int what = below(depth > 0 ? 8 : 4), before = r.variables;
    node *x;
    if (what < 2 || (what < 4 && r.variables == VARIABLES)) { /* not a counter */
        int i;
        do i = below(r.variables);
        while (r.counter[i]);
        x = new_node(ASSIGN, i), x->part[0] = number_of(2);
    } else if (what < 4) {
        x = new_node(DECLARE, r.variables), x->part[0] = number_of(2);
        r.variables++;
    } else if (what < 7 || r.loops == 2 || r.variables == VARIABLES) {
        x = new_node(IF, 0), x->part[0] = condition_of(1), x->part[1] = statements(1 + below(2), depth - 1);
        r.variables = before;
        if (below(2)) x->part[2] = statements(1, depth - 1);
        r.variables = before;
    } else {
        x = new_node(FOR, 1 + below(3));
        x->number = r.variables; /* its counter */
        r.counter[r.variables++] = true;
        r.loops++;
        if (below(2)) x->part[0] = condition_of(0);
        x->part[1] = statements(1, depth - 1);
        r.counter[before] = false;
        r.variables = before;
        r.loops--;
    }
    return x;
}

/* A list of statements, sometimes with a return at its end. */
static node *statements(int n, int depth) {
    node *x = new_node(BLOCK, 0), *last = x;
    x->part[0] = statement(depth);
    for (int i = 1; i < n; i++, last = last->part[1]) {
        last->part[1] = new_node(BLOCK, 0);
        last->part[1]->part[0] = statement(depth);
    }
    if (depth < 2 && !below(6)) {
        last->part[1] = new_node(BLOCK, 0);
        last->part[1]->part[0] = new_node(RETURN, 0);
        last->part[1]->part[0]->part[0] = number_of(1);
    }
    return x;
}

/* >>the text of a function: parentheses only where C needs them */

static void say(const char *format, ...) {
    va_list list;
    const size_t n = strlen(r.text);
    va_start(list, format);
    vsnprintf(r.text + n, sizeof r.text - n, format, list);
    va_end(list);
}

static int precedence(const node *x) {
    static const int of[BINARIES] = {9, 9, 10, 7, 7, 7, 7, 6, 6, 2, 1};
    return x->kind == TERNARY ? 0 : x->kind == BINARY ? of[x->what] : x->kind == UNARY ? 11 : 12;
}

static void say_expression(const node *x, int least) {
    const bool enclosed = precedence(x) < least;
    if (enclosed) say("(");
    switch (x->kind) {
    case NUMBER: say("%.17g", x->number); break;
    case VARIABLE: say("v%d", x->what); break;
    case UNARY: say(x->what ? "!" : "-"), say_expression(x->part[0], 12); break;
    case BINARY:
        say_expression(x->part[0], precedence(x));
        say(" %s ", binary[x->what]);
        say_expression(x->part[1], precedence(x) + 1);
        break;
    case TERNARY:
        say_expression(x->part[0], 1), say(" ? "), say_expression(x->part[1], 0), say(" : ");
        say_expression(x->part[2], 0);
        break;
    default:
        say("%s(", x->kind == CALL1 ? unary_calls[x->what].name : binary_calls[x->what].name);
        say_expression(x->part[0], 0);
        if (x->kind == CALL2) say(", "), say_expression(x->part[1], 0);
        say(")");
    }
    if (enclosed) say(")");
}

static void say_statement(const node *x) {
    switch (x->kind) {
    case BLOCK:
        for (say("{ "); x; x = x->part[1]) say_statement(x->part[0]);
        say("} ");
        return;
    case DECLARE:
    case ASSIGN:
        say("%sv%d = ", x->kind == DECLARE ? "float " : "", x->what), say_expression(x->part[0], 0),
            say(";\n");
        return;
    case IF:
        say("if ("), say_expression(x->part[0], 0), say(") "), say_statement(x->part[1]);
        if (x->part[2]) say("else "), say_statement(x->part[2]);
        return;
    case FOR:
        say("for (int v%d = 0; v%d < %d", (int)x->number, (int)x->number, x->what);
        if (x->part[0]) say(" && ("), say_expression(x->part[0], 0), say(")");
        say("; v%d++) ", (int)x->number), say_statement(x->part[1]);
        return;
    default: say("return "), say_expression(x->part[0], 0), say(";\n");
    }
}

static void make_function(uint64_t seed) {
    r.state = seed * 0x9e3779b97f4a7c15u + 1;
    r.n = r.loops = 0;
    r.variables = PARAMETERS;
    memset(r.counter, 0, sizeof r.counter);
    node *body = statements(1 + below(4), 2), *last = body;
    while (last->part[1]) last = last->part[1];
    last->part[1] = new_node(BLOCK, 0);
    last->part[1]->part[0] = new_node(RETURN, 0);
    last->part[1]->part[0]->part[0] = number_of(3);
    strcpy(r.text, "(v0, float v1, v2) ");
    say_statement(body);
}

/* >>the interpreter: one element, C's control flow */

typedef struct frame {
    double v[VARIABLES + 1], result;
    bool returned;
} frame;

static double interpret(const node *x, const frame *f) {
    const double a = x->part[0] ? interpret(x->part[0], f) : 0;
    if (x->kind == NUMBER) return x->number;
    if (x->kind == VARIABLE) return f->v[x->what];
    if (x->kind == UNARY) return x->what ? !a : -a;
    if (x->kind == TERNARY) return interpret(x->part[a != 0 ? 1 : 2], f);
    if (x->kind == CALL1) return unary_calls[x->what].of(a);
    const double b = interpret(x->part[1], f);
    if (x->kind == CALL2) return binary_calls[x->what].of(a, b);
    const double y[BINARIES] = {a + b, a - b, a * b, a < b, a <= b, a > b, a >= b, a == b, a != b,
                                a != 0 && b != 0, a != 0 || b != 0};
    return y[x->what];
}

static void run(const node *x, frame *f) {
    for (; x && x->kind == BLOCK && !f->returned; x = x->part[1]) run(x->part[0], f);
    if (!x || x->kind == BLOCK || f->returned) return;
    if (x->kind == DECLARE || x->kind == ASSIGN) f->v[x->what] = interpret(x->part[0], f);
    if (x->kind == RETURN) f->result = interpret(x->part[0], f), f->returned = true;
    if (x->kind == IF && interpret(x->part[0], f) != 0) run(x->part[1], f);
    else if (x->kind == IF && x->part[2]) run(x->part[2], f);
    double *i = &f->v[(int)x->number];
    if (x->kind == FOR)
        for (*i = 0; *i < x->what && (!x->part[0] || interpret(x->part[0], f) != 0) && !f->returned; ++*i)
            run(x->part[1], f);
}

/* >>the composition: all elements, with masks */

typedef struct state {
    fl_var *v[VARIABLES + 1], *result, *returned;
} state;

static fl_var *compose(const node *x, const state *s) {
    static fl_var *(*const of[])(fl_var *, fl_var *) = {fv_add, fv_sub, fv_mul, fv_lt, fv_le, fv_gt, fv_ge,
                                                        fv_eq,  fv_ne,  fv_logical_and, fv_logical_or};
    if (x->kind == NUMBER) return fv_num(x->number);
    if (x->kind == VARIABLE) return s->v[x->what];
    fl_var *a = compose(x->part[0], s), *b = x->part[1] ? compose(x->part[1], s) : NULL;
    if (x->kind == UNARY) return x->what ? fv_logical_not(a) : fv_neg(a);
    if (x->kind == TERNARY) return fv_where(a, b, compose(x->part[2], s));
    if (x->kind == CALL1) return unary_calls[x->what].var(a);
    return x->kind == CALL2 ? binary_calls[x->what].var(a, b) : of[x->what](a, b);
}

static fl_var *either(fl_var *c, fl_var *a, fl_var *b) { return a == b ? a : fv_where(c, a, b); }

static state merged(fl_var *c, const state *a, const state *b) {
    state s = *a;
    for (int i = 0; i <= VARIABLES; i++) /* one that only a has is out of scope */
        s.v[i] = a->v[i] && b->v[i] ? either(c, a->v[i], b->v[i]) : NULL;
    s.result = either(c, a->result, b->result);
    s.returned = either(c, a->returned, b->returned);
    return s;
}

static void walk(const node *x, state *s) {
    for (; x && x->kind == BLOCK; x = x->part[1]) walk(x->part[0], s);
    if (!x) return;
    if (x->kind == DECLARE || x->kind == ASSIGN) s->v[x->what] = compose(x->part[0], s);
    if (x->kind == RETURN) {
        s->result = fv_where(s->returned, s->result, compose(x->part[0], s));
        s->returned = fv_logical_or(s->returned, fv_logical_not(s->returned));
    }
    if (x->kind == IF) {
        fl_var *c = compose(x->part[0], s);
        state a = *s, b = *s;
        walk(x->part[1], &a);
        if (x->part[2]) walk(x->part[2], &b);
        *s = merged(c, &a, &b);
    }
    fl_var *active = NULL;
    for (int i = 0; x->kind == FOR && i < x->what; i++) {
        s->v[(int)x->number] = fv_num(i);
        state a = *s;
        fl_var *c = x->part[0] ? compose(x->part[0], s) : NULL;
        if (c) active = active ? fv_logical_and(active, c) : c;
        walk(x->part[1], &a);
        *s = active ? merged(active, &a, s) : a;
    }
}

static fl_var *composed(fl_var *const *x) {
    state s = {.result = fv_const(fl_zeros_like(x[0]->value)),
               .returned = fv_const(fl_ne(x[0]->value, x[0]->value))};
    for (int i = 0; i < PARAMETERS; i++) s.v[i] = x[i];
    walk(&r.node[0], &s);
    return s.result;
}

/* >>random functions against both */

enum { ELEMENTS = 23 };

/* Inputs without ties or NaN, on a backend. */
static T input(int i, fl_dtype d, const char *backend) {
    double v[ELEMENTS];
    for (int k = 0; k < ELEMENTS; k++) v[k] = sin(1.7 * k + 2.3 * i + 0.1) * (1 + 0.1 * i);
    T t = fl_cast(fl_from_host(v, FL_SHAPE(ELEMENTS), FL_F64), d);
    return backend ? fl_to(t, backend) : t;
}

static bool close_to(T a, T b, double tolerance) {
    double p[ELEMENTS], q[ELEMENTS];
    if (!a || !b || !fl_to_host(fl_cast(a, FL_F64), p, sizeof p) ||
        !fl_to_host(fl_cast(b, FL_F64), q, sizeof q))
        return false;
    for (int k = 0; k < ELEMENTS; k++)
        if (!(fabs(p[k] - q[k]) <= tolerance * (1 + fabs(q[k])))) {
            printf("  element %d is %.17g, expected %.17g\n", k, p[k], q[k]);
            return false;
        }
    return true;
}

static fl_var *applied(fl_var *const *x) { return fv_apply(r.text, x, PARAMETERS); }

/* The value in one dtype on a backend has the bits of the composition. False after an error. */
static bool same_values(fl_dtype d, const char *backend) {
    fl_var *x[PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++) x[i] = fv_const(input(i, d, backend));
    fl_var *y = applied(x);
    return y && CHECK(same_bits(fl_to(y->value, "cpu"), fl_to(composed(x)->value, "cpu")));
}

static bool same_as_interpreted(void) {
    double v[PARAMETERS][ELEMENTS], y[ELEMENTS];
    T x[PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++) x[i] = input(i, FL_F64, NULL), fl_to_host(x[i], v[i], sizeof v[i]);
    for (int k = 0; k < ELEMENTS; k++) {
        frame f = {.v = {v[0][k], v[1][k], v[2][k]}};
        run(&r.node[0], &f);
        y[k] = f.result;
    }
    return CHECK(
        close_to(fl_apply(r.text, x, PARAMETERS), fl_from_host(y, FL_SHAPE(ELEMENTS), FL_F64), 1e-9));
}

/* First and second derivatives, each beside the composition's. */
static bool same_derivatives(void) {
    fl_var *x[PARAMETERS], *g[2][PARAMETERS], *h[2][PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++) x[i] = fv_param(input(i, FL_F64, NULL));
    for (int way = 0; way < 2; way++) {
        fl_var *y = way ? composed(x) : applied(x), *sum = NULL;
        if (!y->requires_grad) return true; /* of constants alone */
        CHECK(fl_grads(FV_LIST(fv_sum(y, FL_ALL_AXES)), fv_list_of(PARAMETERS, x), g[way],
                       .create_graph = true, .allow_unused = true));
        for (int i = 0; i < PARAMETERS; i++) {
            if (!g[way][i] || !g[way][i]->requires_grad) continue;
            fl_var *w = fv_mul(g[way][i], fv_const(input(i + 3, FL_F64, NULL)));
            w = fv_sum(w, FL_ALL_AXES);
            sum = sum ? fv_add(sum, w) : w;
        }
        for (int i = 0; i < PARAMETERS; i++) h[way][i] = NULL;
        if (sum) CHECK(fl_grads(FV_LIST(sum), fv_list_of(PARAMETERS, x), h[way], .allow_unused = true));
    }
    T zero = fl_zeros(FL_SHAPE(ELEMENTS), FL_F64);
    bool ok = true;
    for (int i = 0; ok && i < PARAMETERS; i++) {
        T a[2], b[2];
        for (int way = 0; way < 2; way++) {
            a[way] = g[way][i] ? g[way][i]->value : zero;
            b[way] = h[way][i] ? h[way][i]->value : zero;
        }
        ok = CHECK(close_to(a[0], a[1], 1e-8)) && CHECK(close_to(b[0], b[1], 1e-7));
    }
    return ok;
}

/* The gradients of a pass that is not recorded are those of one that is, bit by bit. */
static bool same_passes(void) {
    fl_var *x[PARAMETERS], *g[2][PARAMETERS];
    for (int way = 0; way < 2; way++) {
        for (int i = 0; i < PARAMETERS; i++) x[i] = fv_param(input(i, FL_F32, NULL));
        fl_var *y = applied(x);
        if (!y->requires_grad) return true;
        CHECK(fl_grads(FV_LIST(fv_sum(y, FL_ALL_AXES)), fv_list_of(PARAMETERS, x), g[way],
                       .create_graph = way, .allow_unused = true));
    }
    bool ok = true;
    for (int i = 0; i < PARAMETERS; i++)
        ok &=
            (!g[0][i] && !g[1][i]) || CHECK(g[0][i] && g[1][i] && same_bits(g[0][i]->value, g[1][i]->value));
    return ok;
}

TEST(random_functions) {
    test_errors_return();
    CHECK(fl_backend_use(fl_backend_naive(), NULL));
    int fit = 0, tried = 0, branches = 0;
    for (int seed = 0; seed < 2600; seed++) {
        char name[32];
        snprintf(name, sizeof name, "function %d", seed);
        if (!in_sample(name, 12)) continue;
        tried++;
        make_function((uint64_t)seed);
        fl_scope s = fl_scope_begin();
        T x[PARAMETERS];
        for (int i = 0; i < PARAMETERS; i++) x[i] = input(i, FL_F32, NULL);
        T y = fl_apply(r.text, x, PARAMETERS);
        if (!y) { /* too large a program */
            const char *e = fl_error();
            CHECK(e && (strstr(e, "too many") || strstr(e, "more than 12 values")));
            fl_error_clear();
        } else {
            fit++;
            branches += strstr(r.text, "if (") != NULL;
            const bool ok = same_as_interpreted() && same_values(FL_F32, NULL) && same_values(FL_F64, NULL) &&
                            same_derivatives() && same_passes() && (seed % 8 || same_values(FL_F32, "naive"));
            fl_lazy(true);
            T later = fl_apply(r.text, x, PARAMETERS);
            CHECK(same_bits(later, y));
            fl_lazy(false);
            if (!ok || !CHECK_NO_ERROR()) printf("  function %d: %s\n", seed, r.text);
        }
        fl_scope_end(&s);
        if (test__failures > 10) break;
    }
    printf("%d of %d functions fit, %d with branches\n", fit, tried, branches);
    CHECK(fit > tried * 3 / 4 && branches > fit / 5);
    CHECK_NOTHING_LIVES();
}

/* >>the language */

/* An expression of C, compiled and as text; both of doubles. */
#pragma GCC diagnostic ignored "-Wparentheses"
#define SAME_AS_C(...) \
    do { \
        CHECK_NEAR(applied_at("(x, y) { return " #__VA_ARGS__ "; }", x, y), (__VA_ARGS__), 1e-12); \
    } while (0)

static double applied_at(const char *text, double x, double y) {
    fl_scope s = fl_scope_begin();
    T in[2] = {fl_full(FL_SHAPE(1), x, FL_F64), fl_full(FL_SHAPE(1), y, FL_F64)};
    T z = fl_apply(text, in, 2);
    const double value = z ? fl_item(fl_cast(z, FL_F64)) : (double)NAN;
    fl_scope_end(&s);
    return value;
}

TEST(expressions_are_those_of_c) {
    test_errors_return();
    const double values[] = {-2.5, -1, 0, 0.5, 3};
    for (int i = 0; i < 25; i++) {
        const double x = values[i / 5], y = values[i % 5] + 0.25;
        SAME_AS_C(1 + x * y - 3 / y * x);
        SAME_AS_C(x - y - 1 - (x - (y - 1)));
        SAME_AS_C(-x * -y + +x - -y);
        SAME_AS_C(x < y == y > x);
        SAME_AS_C(x < y && y < 2 || x >= 0 && !(y <= 1));
        SAME_AS_C(x < 0 ? -x : y < 0 ? y * 2 : x + y);
        SAME_AS_C((x < 0 ? 1 : 2) * (y != 0.75));
        SAME_AS_C(!x + !!y * 3 + (x != y));
        SAME_AS_C((int)x + (int)(y * 4) - (float)2);
        SAME_AS_C((x > 0) + (y > 0) == 2);
        SAME_AS_C(1.5e1 + .5 - 2.f * x + 1e-2 + 007);
        SAME_AS_C(exp(x) + sin(y) * sqrt(x * x + y * y));
        SAME_AS_C(!(x > 1 && y > 1) ? x : y);
        SAME_AS_C(((((((x))))) + (y)));
    }
    CHECK_NOTHING_LIVES();
}

TEST(statements_are_those_of_c) {
    test_errors_return();
    static const struct {
        const char *text;
        double at[3]; /* for y = 3 and x = -1, 0.5, 2 */
    } of[] = {
        {"(x, y) { float t = x * y, u; u = t - 1; t += u; return t; }", {-7, 2, 11}},
        {"(x, y) { if (x < 0) return 5; if (x < 1) { return 6; } else return 7; }", {5, 6, 7}},
        {"(x, y) { if (x < 0) x = 9; else if (x < 1) { x = 8; y = 0; } return x + y; }", {12, 8, 5}},
        {"(x, y) { float t = x; { float t = y; t *= 2; x += t; } return t + x; }", {4, 7, 10}},
        {"(x, y) { float s = 0; for (int i = 0; i < 5; i++) s += i * x; return s; }", {-10, 5, 20}},
        {"(x, y) { float s = 0; for (int i = 9; i > 0; i -= 4) for (int k = 0; k < i; k++) s++; return s; }",
         {15, 15, 15}},
        {"(x, y) { int n = 0; for (int i = 0; i < 6 && x < 4; i++) { x += 1; n++; } return n; }", {5, 4, 2}},
        {"(x, y) { for (int i = 0; i < 4; i++) if (x + i > 2) return i; return -1; }", {-1, 2, 1}},
        {"(x, y) { for (; false;) x = 1; while (0) { x = 2; } for (int i = 0; i < 0; ++i) return 3; return "
         "x; }",
         {-1, 0.5, 2}},
        {"(x, y) { bool b = x; if (b) { int k = -1.9 * x; return k; } return 0; }", {1, 0, -3}},
        {"(x, y) { const float c = 2, d = c * c; return where(x < 1, c, d); }", {2, 2, 4}},
        {"(x, y) { int k = 3; while (k > 0) { y *= x; --k; } return y; }", {-3, 0.375, 24}},
        {"(x, y) { return 4; x = y; }", {4, 4, 4}},
        {"(x, y) { bool a = x > 0, b = !a; return a && (b || true); }", {0, 1, 1}},
        {"(bool x, int y) { return x ? y : -y; }", {3, 3, 3}},
        {" ( x ,\n y )\n{\treturn\nx%y ; } ", {2, 0.5, 2}},
    };
    const double at[3] = {-1, 0.5, 2};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        for (int k = 0; k < 3; k++)
            if (!CHECK_NEAR(applied_at(of[i].text, at[k], 3), of[i].at[k], 1e-12) | !CHECK_NO_ERROR())
                printf("  %s\n", of[i].text);
    CHECK_NOTHING_LIVES();
}

TEST(bad_text_is_an_error_with_its_place) {
    static const struct {
        const char *text, *error;
    } bad[] = {
        {"", "expected '(' at line 1, column 1"},
        {"(x, y", "expected ')' at line 1, column 6"},
        {"(x) { return x; }", "more inputs than parameters at line 1, column 3"},
        {"(x, y, z) { return x; }", "more parameters than inputs at line 1, column 9"},
        {"(x, y) return x;", "expected '{' at line 1, column 8"},
        {"(x, y) { return x; } x", "expected the end of the text at line 1, column 22"},
        {"(x, y) { }", "not every path returns a value at line 1, column 10"},
        {"(x, y) { if (x < 0) return x; }", "not every path returns a value at line 1, column 31"},
        {"(x, y) {\n  return x +;\n}", "expected a value at line 2, column 13"},
        {"(x, y) {\n\n return z; }", "no variable of this name at line 3, column 9"},
        {"(x, y) { return softmax(x); }", "no formula of this name at line 1, column 17"},
        {"(x, y) { return exp(x, y); }", "number of operands is not the op's at line 1, column 17"},
        {"(x, y) { return where(x, y); }", "number of operands is not the op's at line 1, column 17"},
        {"(x, y) { float t; return t; }", "no value yet at line 1, column 26"},
        {"(x, y) { float t = t; return t; }", "no variable of this name at line 1, column 20"},
        {"(x, y) { { float t = x; } return t; }", "no variable of this name at line 1, column 34"},
        {"(x, y) { while (x < 1) x *= 2; return x; }",
         "no constant bound, or too many steps at line 1, column 10"},
        {"(x, y) { while (1) y = 0; return x; }", "no constant bound at line 1, column 10"},
        {"(x, y) { for (int i = 0; i < x; i++) y += 1; return y; }", "no constant bound"},
        {"(x, y) { for (int i = 0; i < 9; i++ y = 1; return y; }", "expected"},
        {"(x, y) { x + y; return x; }", "expected '=' at line 1, column 12"},
        {"(x, y) { x <= y; return x; }", "expected '=' at line 1, column 12"},
        {"(x, y) { return x }", "expected ';' at line 1, column 19"},
        {"(x, y) { return 1.2.3; }", "this is not a number at line 1, column 17"},
        {"(x, y) { return 3x; }", "this is not a number at line 1, column 17"},
        {"(x, y) { return 12345678901234567890123456789012; }", "expected a value at line 1, column 17"},
        {"(x, y) { return x & y; }",
         "this needs integers, and the formula is one of floats, at line 1, column 19"},
        {"(x, y) { return x @ y; }", "expected ';' at line 1, column 19"},
        {"(x, y) { const x = 1; return x; }", "expected a type at line 1, column 16"},
        {"(x, y) { return "
         "sin(1)+sin(2)+sin(3)+sin(4)+sin(5)+sin(6)+sin(7)+sin(8)+sin(9)+sin(10)+sin(11)+sin(12)"
         "+sin(13)+sin(14)+sin(15)+sin(16)+sin(17); }",
         "too many constants"},
        {"(x, y) { float "
         "a=sin(x),b=cos(x),c=exp(x),d=tanh(x),e=erf(x),f=abs(x),g=x*x,h=x+1,i=x+2,j=x+3,k=x+4,"
         "l=x+5,m=x+6; return (a*b+c*d+e*f+g*h+i*j+k*l)*m*(m*l*k*j*i*h*g*f*e*d*c*b*a); }",
         "more than 12 values live at the same time at line 1"},
    };
    test_errors_return();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (!CHECK(isnan(applied_at(bad[i].text, 1, 2))) || !CHECK_ERROR(bad[i].error))
            printf("  %s\n", bad[i].text);
    static char text[6000];
    strcpy(text, "(x, y) { return ");
    for (int i = 0; i < 70; i++) strcat(text, "(");
    CHECK(isnan(applied_at(text, 1, 2)) && CHECK_ERROR("nested too deeply at line 1, column"));
    strcpy(text, "(x, y) ");
    for (int i = 0; i < 70; i++) strcat(text, "{");
    CHECK(isnan(applied_at(text, 1, 2)) && CHECK_ERROR("nested too deeply at line 1, column"));
    memset(text, ' ', 5000);
    CHECK(isnan(applied_at(text, 1, 2)) && CHECK_ERROR("longer than 4096 bytes"));
    CHECK_NOTHING_LIVES();
}

/* >>operands */

static const char *const select_text = "(c, x, y) { return c ? x * y : y - 1; }";

static T select_of(T c, T x, T y) {
    return fl_where(c, fl_mul(x, y), fl_sub(y, fl_num(1)));
}

/* Lengths around a block and a task, b8 inputs, dense and strided. */
TEST(lengths_and_layouts) {
    test_errors_return();
    const int64_t of[] = {0, 1, 7, 255, 256, 257, 511, 512, 513, 1023, 1025, 16383, 16384, 16385, 40000};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        for (int way = 0; way < 4; way++) {
            fl_scope s = fl_scope_begin();
            const int64_t n = of[i];
            T x = fl_normal(FL_SHAPE(n), 0, 1, FL_F32, NULL), y = fl_normal(FL_SHAPE(n), 0, 1, FL_F32, NULL);
            T c = fl_lt(x, y);
            if (way == 1) x = fl_select(fl_normal(FL_SHAPE(n, 3), 0, 1, FL_F32, NULL), 1, 1);
            if (way == 2) y = fl_normal(FL_SHAPE(1), 0, 1, FL_F32, NULL), c = fl_lt(fl_unsqueeze(y, 0), x);
            if (way == 3)
                c = fl_select(fl_lt(fl_normal(FL_SHAPE(n, 2), 0, 1, FL_F32, NULL), fl_num(0)), 1, 0);
            T z = fl_apply(select_text, (T[]){c, x, y}, 3);
            if (!CHECK(same_bits(z, select_of(c, x, y))) || !CHECK_NO_ERROR())
                printf("  %lld elements, way %d\n", (long long)n, way);
            fl_scope_end(&s);
        }
    CHECK_NOTHING_LIVES();
}

TEST(shapes_and_dtypes) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    T row = fl_normal(FL_SHAPE(5), 0, 1, FL_F32, NULL),
      column = fl_normal(FL_SHAPE(4, 1), 0, 1, FL_F32, NULL);
    T c = fl_lt(row, column);
    CHECK(same_bits(fl_apply(select_text, (T[]){c, row, column}, 3), select_of(c, row, column)));
    T image = fl_permute(fl_normal(FL_SHAPE(2, 3, 4, 5), 0, 1, FL_F32, NULL), 4, (int[]){0, 3, 1, 2});
    T y = fl_apply("(x) { return exp(x) * x; }", &image, 1);
    CHECK(fl_is_channels_last(y) && same_bits(y, fl_mul(fl_exp(image), image)));
    /* numbers, which do not promote; the dtype of the others */
    const fl_dtype floats[] = {FL_F16, FL_BF16, FL_F32, FL_F64};
    for (int i = 0; i < 4; i++) {
        T x = fl_cast(row, floats[i]), z = fl_apply("(x, a) { return x * a + 1; }", (T[]){x, fl_num(0.3)}, 2);
        REQUIRE(z && z->dtype == floats[i]);
        T wide = fl_cast(x, fl_dtype_wide(floats[i]));
        CHECK(same_bits(z,
                        fl_cast(fl_add(fl_mul(wide, fl_num(0.3)), fl_num(1)), floats[i]))); /* rounded once */
    }
    T mixed = fl_apply("(x, y) { return x * y; }", (T[]){row, fl_cast(row, FL_F64)}, 2);
    CHECK(mixed && mixed->dtype == FL_F64);
    T two = fl_apply("(x, y) { return x + y * 2; }", (T[]){fl_num(1), fl_num(2)}, 2);
    CHECK(two && two->ndim == 0 && fl_item(two) == 5);
    T logical = fl_apply("(c, x) { return c && x > 0; }", (T[]){c, row}, 2);
    CHECK(logical && logical->dtype == FL_B8 && same_bits(logical, fl_logical_and(c, fl_gt(row, fl_num(0)))));
    CHECK(same_bits(fl_apply("(c, d) { return c ? !d : d; }", (T[]){c, c}, 2), fl_zeros_like(c)));
    /* one primitive of the first three inputs in order, and an input that nothing reads */
    CHECK(same_bits(fl_apply("(c, x, y, z) { return c ? x : y; }", (T[]){c, row, column, row}, 4),
                    fl_where(c, row, column)));
    /* integers */
    T i = fl_arange(-4, 5, 1, FL_I32), k = fl_full(FL_SHAPE(1), 3, FL_I32);
    T bits = fl_apply("(i, k) { return (i & 3 ^ k) << 1 | ~i >> k - 2; }", (T[]){i, k}, 2);
    T want = fl_bitwise_or(fl_shift_left(fl_bitwise_xor(fl_bitwise_and(i, fl_int(3)), k), fl_int(1)),
                           fl_shift_right(fl_bitwise_not(i), fl_sub(k, fl_int(2))));
    CHECK(bits && bits->dtype == FL_I32 && same_bits(bits, want));
    CHECK(same_bits(fl_apply("(i) { return i * i - i % 3; }", &i, 1),
                    fl_sub(fl_mul(i, i), fl_remainder(i, fl_int(3)))));
    T divided = fl_apply("(i) { return i / 2; }", &i, 1);
    CHECK(divided && divided->dtype == FL_F32 && same_bits(divided, fl_div(i, fl_num(2))));
    T none = fl_apply("(i, k) { return i % (k - 3); }", (T[]){i, k}, 2); /* deferred: fails when it runs */
    CHECK((!none || !fl_sync(NULL)) && CHECK_ERROR("division by zero"));
    T f = fl_apply("(x) { return x % 0; }", &row, 1);
    CHECK(f && isnan(fl_item(fl_select(f, 0, 0))));
    /* refused */
    CHECK(!fl_apply("(x, y) { return x + y * 1; }", (T[]){row, fl_ones(FL_SHAPE(4), FL_F32)}, 2) &&
          CHECK_ERROR("fl_apply: shapes [5] and [4] do not broadcast"));
    T u = fl_cast(i, FL_U64);
    CHECK(!fl_apply("(u) { return u * 2 + u; }", &u, 1) &&
          CHECK_ERROR("fl_apply: dtype u64 is not supported"));
    CHECK(!fl_apply("(u) { return u; }", &u, 9) && CHECK_ERROR("fl_apply: got 9 inputs, expected 1 to 8"));
    CHECK(!fl_apply(NULL, &u, 1) && CHECK_ERROR("NULL"));
    CHECK(!fl_apply("(u) { return u; }", (T[]){NULL}, 1) && CHECK_ERROR("NULL"));
    CHECK(!fv_apply("(u) { return u; }", NULL, 1) && CHECK_ERROR("NULL"));
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Records of a program: several outputs, in place, and operands that are not its. */
TEST(records) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_formula_args a;
    memset(&a, 0, sizeof a);
    CHECK(fl_formula_parse(&a.program, "ADD(x, y), LT(x, y), MUL(x, CONST(3)), x", "x y"));
    for (int64_t n = 500; n < 40000; n += 13001) {
        T x = fl_normal(FL_SHAPE(n), 0, 1, FL_F32, NULL), y = fl_normal(FL_SHAPE(n), 0, 1, FL_F32, NULL);
        T old = fl_clone(x), out[4];
        fl_call c;
        fl_call_begin(&c, fl_op_formula, 4, 2, &a);
        c.in[0] = x, c.in[1] = y;
        for (int i = 0; i < 4; i++) c.out[i] = out[i] = fl_out_like(x, i == 1 ? FL_B8 : FL_F32);
        c.out[2] = out[2] = x; /* in place */
        CHECK(fl_call_run(&c));
        CHECK(same_bits(out[0], fl_add(old, y)) && same_bits(out[1], fl_lt(old, y)));
        CHECK(same_bits(x, fl_mul(old, fl_num(3))) && same_bits(out[3], old));
        c.n_in = 1;
        CHECK((!fl_call_run(&c) || !fl_sync(NULL)) && CHECK_ERROR("not those of its program"));
        c.n_in = 2, c.in[1] = fl_cast(y, FL_F64);
        CHECK((!fl_call_run(&c) || !fl_sync(NULL)) && CHECK_ERROR("not those of its program"));
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* >>derivatives */

static struct {
    int formulas, others, outputs;
} calls;

static void count_call(const fl_call *c, void *user) {
    (void)user;
    if (c->op != fl_op_formula && c->op != FL_OP_fill && c->op != FL_OP_copy) calls.others++;
    if (c->op == fl_op_formula) calls.formulas++, calls.outputs = c->n_out;
}

/* The sum over elements of f's gradients by all inputs beside those of ops. */
static void check_gradients(const char *text, fl_var *(*ops)(fl_var *const *x), int n, int passes,
                            int outputs) {
    fl_scope s = fl_scope_begin();
    fl_var *x[8];
    T g[8];
    for (int i = 0; i < n; i++) x[i] = fv_param(input(i, FL_F64, NULL));
    fl_var *y = fv_apply(text, x, n), *sum = fv_sum(y, FL_ALL_AXES);
    memset(&calls, 0, sizeof calls);
    fl_call_hook(count_call, NULL, NULL);
    CHECK(fl_backward(sum));
    fl_call_hook(NULL, NULL, NULL);
    CHECK_EQ_INT(calls.formulas, passes);
    CHECK_EQ_INT(calls.outputs, outputs);
    for (int i = 0; i < n; i++) g[i] = fl_keep(fv_grad(x[i])), fv_zero_grad(x[i]);
    CHECK(fl_backward(fv_sum(ops(x), FL_ALL_AXES)));
    for (int i = 0; i < n; i++) CHECK(close_to(g[i], fv_grad(x[i]), 1e-12)), fl_drop(g[i]);
    CHECK_NO_ERROR();
    fl_scope_end(&s);
}

static fl_var *three(fl_var *const *x) { return fv_mul(fv_tanh(fv_mul(x[0], x[1])), fv_exp(x[2])); }
static fl_var *six(fl_var *const *x) {
    return fv_add(fv_mul(fv_mul(x[0], x[1]), x[2]), fv_mul(fv_sin(fv_mul(x[3], x[4])), x[5]));
}
static fl_var *eight(fl_var *const *x) {
    fl_var *y = fv_mul(fv_mul(x[0], x[1]), fv_mul(x[2], x[3]));
    return fv_add(y, fv_mul(fv_mul(x[4], x[5]), fv_sin(fv_mul(x[6], x[7]))));
}
static fl_var *deep(fl_var *const *x) {
    fl_var *y = x[0];
    for (int i = 0; i < 14; i++) y = fv_mul(fv_sin(fv_mul(y, x[1])), fv_num(0.5));
    return y;
}

TEST(gradients_share_a_pass) {
    test_errors_return();
    check_gradients("(a, b, c) { return tanh(a * b) * exp(c); }", three, 3, 1, 3);
    /* more than 4 outputs: a pass each; as many inputs as an op has: by ops; too many steps: by ops */
    check_gradients("(a, b, c, d, e, f) { return a * b * c + sin(d * e) * f; }", six, 6, 6, 1);
    check_gradients("(a, b, c, d, e, f, g, h) { return a * b * (c * d) + e * f * sin(g * h); }", eight, 8, 0,
                    0);
    check_gradients("(a, b) { for (int i = 0; i < 14; i++) a = sin(a * b) * 0.5; return a; }", deep, 2, 0, 0);
    CHECK_NOTHING_LIVES();
}

/* A branch that is not taken has no part in the gradient; a call has its table's gradient. */
TEST(gradients_at_hard_places) {
    test_errors_return();
    static const struct {
        const char *text;
        double x, slope;
    } of[] = {{"(x) { if (x < 0) x = exp(x) - 1; return x; }", 1000, 1},
              {"(x) { return x > 0 ? log(x) : 0; }", -1, 0},
              {"(x) { return x == 0 ? 1 : sin(x) / x; }", 0, 0},
              {"(x) { return log2(x); }", 8, 0.18033688011112042},
              {"(x) { return sinc(x) * 1; }", 0, 0},
              {"(x) { return softplus(x) + 0 * x; }", 1000, 1},
              {"(x) { return sqrt(abs(x)) * 0 + x; }", 4, 1},
              {"(x) { return floor(x) + x; }", 0.5, 1}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        fl_scope s = fl_scope_begin();
        fl_var *x = fv_param(fl_full(FL_SHAPE(1), of[i].x, FL_F32));
        CHECK(fl_backward(fv_apply(of[i].text, &x, 1)));
        if (!CHECK_NEAR(fl_item(fv_grad(x)), of[i].slope, 1e-6)) printf("  %s\n", of[i].text);
        fl_scope_end(&s);
    }
    CHECK_NO_ERROR();
    CHECK_NOTHING_LIVES();
}

static fl_var *checked(fl_var *const *x, void *user) { return fv_apply(user, x, 2); }

TEST(gradients_of_gradients) {
    test_errors_return();
    static const char *const text[] = {
        "(x, y) { if (x * y < 0.3) x = tanh(x) * y; return x * x * sigmoid(y); }",
        "(x, y) { for (int i = 0; i < 3 && x < 2; i++) x = x * x + 0.1 * y; return log1p(x * x); }",
        "(x, y) { return x / (1 + y * y) + pow(x * x + 1, y) + gelu(x) * mish(y); }"};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        fl_scope s = fl_scope_begin();
        char *user = (char *)(uintptr_t)text[i];
        fl_var *x = fv_param(input(0, FL_F64, NULL)), *y = fv_param(fl_full(FL_SHAPE(1), 0.7, FL_F64));
        CHECK(fl_gradcheck(checked, FV_LIST(x, y), .user = user));
        CHECK(fl_gradgradcheck(checked, FV_LIST(x, y), .user = user));
        /* forward mode, and the third derivative by x, of each element alone */
        fl_var *f = checked(FV_LIST(x, y).v, user), *ones = fv_const(fl_ones_like(x->value));
        fl_var *along = fl_jvp(f, x, ones, false), *g = fl_grad(fv_sum(f, FL_ALL_AXES), x, true);
        CHECK(along && g && close_to(along->value, g->value, 1e-12));
        fl_var *h = fl_grad(fv_sum(g, FL_ALL_AXES), x, true);
        CHECK(h && fl_grad(fv_sum(h, FL_ALL_AXES), x, false));
        if (!CHECK_NO_ERROR()) printf("  %s\n", text[i]);
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

/* >>the library around it */

static bool swapped_add(const fl_backend *self, const fl_call *c) {
    calls.others++;
    return fl_backend_cpu()->op[FL_OP_add](self, c);
}

TEST(a_replaced_op_is_called) {
    test_errors_return();
    fl_scope s = fl_scope_begin();
    T x = input(0, FL_F32, NULL), before = fl_apply("(x) { return exp(x + 1) + x; }", &x, 1);
    fl_backend mine = *fl_backend_at(fl_backend_index("cpu"));
    CHECK(fl_backend_override(&mine, FL_OP_add, swapped_add) && fl_backend_use(&mine, NULL));
    memset(&calls, 0, sizeof calls);
    T y = fl_apply("(x) { return exp(x + 1) + x; }", &x, 1);
    fl_sync(NULL);
    CHECK_EQ_INT(calls.others, 2);
    CHECK(same_bits(y, before));
    fl_scope_end(&s);
}

static int fresh;

/* A text that was never seen, its value and gradient. */
static bool fresh_text(void) {
    char text[80];
    snprintf(text, sizeof text, "(x, y) { if (x < y) x = x * %d.5; return x * y; }", ++fresh);
    fl_var *in[2] = {fv_param(input(0, FL_F32, NULL)), fv_param(input(1, FL_F32, NULL))};
    fl_var *y = fv_apply(text, in, 2);
    return y && fl_backward(fv_sum(y, FL_ALL_AXES)) && fv_grad(in[1]);
}

TEST(every_request_for_memory_fails) {
    test_errors_return();
    fl_heap_use(heap_fn, NULL);
    int64_t points = 0;
    for (bool done = false; !done && points < 1000; points++) {
        fl_scope s = fl_scope_begin();
        heap_fail_at(points + 1);
        const bool ok = fresh_text();
        done = heap.calls < points + 1;
        heap.fail_at = 0;
        CHECK(ok == !fl_error() && (ok || !done));
        fl_error_clear();
        fl_scope_end(&s);
    }
    printf("%lld points of failure\n", (long long)points);
    CHECK(points > 3);
    CHECK_NOTHING_LIVES();
}

TEST(more_texts_than_are_kept) {
    test_errors_return();
    for (int i = 0; i < 3000; i++) {
        fl_scope s = fl_scope_begin();
        CHECK(fresh_text());
        fl_scope_end(&s);
    }
    CHECK_NEAR(applied_at("(x, y) { return x * 7 + y; }", 2, 3), 17, 0);
    CHECK_NOTHING_LIVES();
}

static void *apply_many(void *user) {
    for (int i = 0; i < 200; i++) {
        char text[80];
        snprintf(text, sizeof text, "(x, y) { return x * %d + y; }", i % 50);
        CHECK_NEAR(applied_at(text, 2, 3), 2 * (i % 50) + 3, 0);
    }
    return user;
}

TEST(threads_share_texts) {
    test_errors_return();
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&thread[i], NULL, apply_many, NULL));
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
