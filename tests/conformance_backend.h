/* conformance_backend.h - the backend as a whole: overrides, hooks, fallbacks, and the formulas as
   text */
#include "../kernels/cpu/levels.h"

static const fl_backend *backend_in_use(void) {
    return fl_backend_at(operand_backend());
}

/* >>overrides: every composition that contains an op passes through the slot that replaces it */

static fl_slot replaced_slot;
static int64_t slot_calls;
static bool counting_slot(const fl_backend *self, const fl_call *c) {
    slot_calls++;
    return replaced_slot(self, c);
}

/* Replaces `part` in the backend, for the rest of this process. */
static void count_calls_of(fl_op part) {
    fl_backend mine = *backend_in_use();
    replaced_slot = mine.op[part];
    fl_backend_override(&mine, part, counting_slot);
    fl_backend_use(&mine, NULL);
    slot_calls = 0;
}

static void override_value(fl_op part, fl_op op, void (*run)(int), int arg) {
    char text[100];
    fl_backend before = *backend_in_use();
    if (!before.op[part]) return;
    count_calls_of(part);
    quick_run = 60;
    run(arg);
    quick_run = 0;
    fl_sync(NULL);
    snprintf(text, sizeof text, "%s passes through a replaced %s", fl_op_get_info(op)->name,
             fl_op_get_info(part)->name);
    check(slot_calls > 0, text);
    fl_backend_use(&before, NULL);
}

/* The backward pass of op, after its forward pass. */
static void override_gradient(fl_op part, fl_op op, int which, int i) {
    char text[100];
    fl_backend before = *backend_in_use();
    if (!before.op[part]) return;
    fl_scope s = fl_scope_begin();
    fl_tensor *t = fl_full(FL_SHAPE(3), 0.5, FL_F32), *u = fl_full(FL_SHAPE(3), 0.75, FL_F32);
    fl_var *x = fv_param(t), *y = fv_param(u), *at = i ? y : x;
    fl_var *out = fl_op_get_info(op)->arity == 1 ? unary_fns[which].var(x)
                                                 : binary_fns[which].var(x, y);
    fl_var *root = fv_sum(out, FL_ALL_AXES);
    count_calls_of(part);
    fl_var *g = fl_grad(root, at, false);
    fl_sync(NULL);
    snprintf(text, sizeof text, "the gradient of %s passes through a replaced %s",
             fl_op_get_info(op)->name, fl_op_get_info(part)->name);
    check(!fl_error() && (slot_calls > 0 || !g), text);
    fl_scope_end(&s);
    fl_backend_use(&before, NULL);
}

static void gradient_overrides(void) {
    for (int part = 1; part < fl_op_count(); part++)
        for (int i = 0; i < UNARY_OPS + BINARY_OPS; i++) {
            int which = i < UNARY_OPS ? i : i - UNARY_OPS;
            fl_op op = fl_op_by_name(i < UNARY_OPS ? unary_fns[which].op : binary_fns[which].op);
            char cls = class_letter(fl_op_get_info(op)->cls);
            for (int k = 0; k < 2 && strchr("FNA", cls); k++)
                if (fl_op_grad_uses(op, k, (fl_op)part))
                    override_gradient((fl_op)part, op, which, k);
        }
}

/* >>hooks */

typedef struct hook_counts {
    int before, after;
    fl_op op;
} hook_counts;
static void count_before(const fl_call *c, void *user) {
    hook_counts *h = user;
    h->before++;
    h->op = c->op;
}
static void count_after(const fl_call *c, void *user) {
    hook_counts *h = user;
    h->after += c->op == h->op;
}

static void hook_group(void) {
    fl_scope s = fl_scope_begin();
    hook_counts h = {0, 0, FL_OP_NONE};
    fl_tensor *a = fl_ones(FL_SHAPE(3), FL_F32), *i = fl_full(FL_SHAPE(1), 9, FL_I64);
    fl_call_hook(count_before, count_after, &h);
    fl_tensor *t = fl_add(a, a);
    check(t && h.before == 1 && h.after == 1 && h.op == FL_OP_add,
          "one call is seen before and after");
    fl_gather(a, 0, i); /* fails, on a deferred backend when it is read */
    check(h.before == 2 && h.after == 2, "a call that fails is seen before and after");
    fl_call_hook(NULL, NULL, NULL);
    fl_add(a, a);
    check(h.before == 2, "no hook, no calls");
    fl_scope_end(&s);
}

/* >>fallbacks: a copy of the backend under another name, one required slot short */

static void fallback_group(void) {
    const char *backend = backend_in_use()->name;
    fl_backend part = *backend_in_use();
    part.name = "partial";
    part.op[FL_OP_exp] = NULL;
    fl_log_set_sink(NULL, NULL, FL_LOG_OFF);
    check(fl_backend_use(&part, NULL) && fl_backend_set_default("partial"), "a backend of one's own");
    if (operands_on) operands_on = part.name;
    fl_scope s = fl_scope_begin();
    array a, b;
    fl_tensor *x = fl_from_host((float[]){0, 1, -2}, FL_SHAPE(3), FL_F32), *home = fl_to(x, backend);
    check(fails(fl_add(x, fl_clone(home))), "operands of two backends do not mix");
    fl_backend_strict(false);
    int64_t before = fl_backend_fallbacks();
    fl_tensor *y = fl_exp(x);
    check(y && fl_backend_fallbacks() == before + 1 && !strcmp(fl_backend_name(y), "partial"),
          "a missing slot falls back, counted");
    check(y && read_tensor(y, &a) && read_tensor(fl_exp(home), &b) && a.n == 3 &&
              fabs(a.f[2] - b.f[2]) < 1e-6,
          "same values");
    fl_backend_strict(true);
    check(fails(fl_exp(x)), "strict: a missing slot is an error");
    fl_scope_end(&s);
}

/* >>text: the formulas of fl_op_info, compiled by the C compiler, give what the slots give */

enum { TEXT_N = 96 };
typedef struct text_type {
    fl_dtype dtype;
    const char *suffix, *type;
} text_type;
static const text_type text_types[] = {{FL_F32, "f32", "float"},
                                       {FL_F64, "f64", "double"},
                                       {FL_I64, "i64", "int64_t"},
                                       {FL_B8, "b8", "uint8_t"}};

static bool text_has(char cls, fl_dtype d) {
    return cls == 'B' ? d == FL_B8 : cls == 'F' ? is_float(d) : takes(dtypes_of(cls), d);
}

static void write_inputs(FILE *f, const text_type *t, const char *name, const array *a) {
    fprintf(f, "static const %s %s_%s[%d] = {", t->type, name, t->suffix, TEXT_N);
    for (int k = 0; k < TEXT_N; k++) {
        double v = a->f[k];
        if (!is_float(t->dtype)) fprintf(f, "(int64_t)%lluu, ", (unsigned long long)a->i[k]);
        else if (isnan(v)) fprintf(f, "NAN, ");
        else if (isinf(v)) fprintf(f, "%sINFINITY, ", v < 0 ? "-" : "");
        else fprintf(f, "%a, ", v);
    }
    fprintf(f, "};\n");
}

/* One formula: its results, as bits of the output's type. */
static void write_formula(FILE *f, const text_type *t, char cls, const char *name,
                          const char *text) {
    const char *out = cls == 'C' ? "uint8_t" : t->type, *one_bit = cls == 'C' ? ") & 1" : ")";
    fprintf(
        f,
        "static void %s_%s(void) {\n    printf(\"%s %s\");\n    for (int k = 0; k < %d; k++) {\n",
        name, t->suffix, name, t->suffix, TEXT_N);
    fprintf(f, "        const %s x = a_%s[k], a = x, b = b_%s[k], y = y_%s[k], dy = d_%s[k];\n",
            t->type, t->suffix, t->suffix, t->suffix, t->suffix);
    fprintf(
        f,
        "        %s u, v;\n        (void)x, (void)a, (void)b, (void)y, (void)dy, (void)u, (void)v;\n"
        "        const %s r = (%s)(%s%s;\n",
        t->type, out, out, text, one_bit);
    fprintf(f, "        uint64_t bits = 0;\n        memcpy(&bits, &r, sizeof r);\n        "
               "printf(\" %%llx\", (unsigned long "
               "long)bits);\n    }\n    printf(\"\\n\");\n}\n");
}

/* Calls fn for each formula of each dtype: values named <op>, gradients g0_<op>, g1_<op>. */
typedef void (*formula_fn)(void *user, const text_type *t, fl_op op, int which, const char *text);
static void each_formula(formula_fn fn, void *user) {
    for (int k = 0; k < 4; k++)
        for (int i = 1; i < fl_op_count(); i++) {
            const fl_op_info *info = fl_op_get_info((fl_op)i);
            char cls = class_letter(info->cls);
            if (!info->arity || !text_has(cls, text_types[k].dtype)) continue;
            fn(user, &text_types[k], (fl_op)i, -1, info->formula);
            for (int g = 0; g < info->arity && k < 2 && strchr("FNA", cls); g++)
                fn(user, &text_types[k], (fl_op)i, g, info->grad[g]);
        }
}

static const char *formula_name(fl_op op, int which) {
    static char name[40];
    snprintf(name, sizeof name, "%s%s",
             which < 0 ? "v_"
             : which   ? "g1_"
                       : "g0_",
             fl_op_get_info(op)->name);
    return name;
}

static void write_one(void *user, const text_type *t, fl_op op, int which, const char *text) {
    static const text_type *last;
    if (t != last) fprintf(user, "#undef FL_FN\n#define FL_FN(name) flm_##name##_%s\n", t->suffix);
    last = t;
    write_formula(user, t, which < 0 ? class_letter(fl_op_get_info(op)->cls) : 'F',
                  formula_name(op, which), text);
}

static void call_one(void *user, const text_type *t, fl_op op, int which, const char *text) {
    (void)text;
    fprintf(user, "    %s_%s();\n", formula_name(op, which), t->suffix);
}

static array text_inputs[4][4]; /* of each type: a, b, y, dy */
static bool write_program(const char *path) {
    FILE *f = fopen(path, "w");
    if (!f) return false;
    fprintf(f, "#include <stdio.h>\n#include <string.h>\n#include \"kernels/fl_math.h\"\n#define "
               "FL_FN(name) 0\n#include "
               "\"kernels/fl_primitives.h\"\n");
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++)
            write_inputs(f, &text_types[k], &"a\0b\0y\0d"[2 * i], &text_inputs[k][i]);
    each_formula(write_one, f);
    fprintf(f, "int main(void) {\n");
    each_formula(call_one, f);
    fprintf(f, "    return 0;\n}\n");
    return fclose(f) == 0;
}

static fl_tensor *slot_result(const text_type *t, fl_op op, int which) {
    const array *in = text_inputs[t - text_types];
    fl_tensor *x[4];
    for (int i = 0; i < 4; i++) x[i] = dense_tensor(&in[i]);
    if (which >= 0 && fl_op_get_info(op)->arity == 1) return fl_grad1(op, x[0], x[2], x[3], NULL);
    if (which >= 0) {
        fl_tensor *d[2] = {NULL, NULL};
        fl_grad2(op, 1 << which, x[0], x[1], x[2], x[3], &d[0], &d[1]);
        return d[which];
    }
    for (int i = 0; i < UNARY_OPS; i++)
        if (fl_op_by_name(unary_fns[i].op) == op) return unary_fns[i].run(x[0]);
    for (int i = 0; i < BINARY_OPS; i++)
        if (fl_op_by_name(binary_fns[i].op) == op) return binary_fns[i].run(x[0], x[1]);
    return NULL;
}

static void compare_one(void *user, const text_type *t, fl_op op, int which, const char *text) {
    char name[64], suffix[8], label[220];
    fl_scope s = fl_scope_begin();
    size_t keep = pool_at;
    array got;
    bool ok = fscanf(user, "%63s %7s", name, suffix) == 2 &&
              !strcmp(name, formula_name(op, which)) && !strcmp(suffix, t->suffix);
    fl_tensor *r = slot_result(t, op, which);
    bool there = r && read_tensor(r, &got);
    for (int k = 0; k < TEXT_N; k++) {
        unsigned long long bits;
        uint64_t mine = 0;
        if (fscanf(user, "%llx", &bits) != 1) bits = 0, ok = false;
        if (!there) continue;
        store((char *)&mine, &got, k);
        bool is_nan = is_float(got.dtype) && isnan(got.f[k]);
        if (is_nan)
            ok &= got.dtype == FL_F32 ? (bits & 0x7fffffff) > 0x7f800000
                                      : bits << 1 > 0x7ffULL << 53;
        else ok &= mine == bits;
    }
    snprintf(label, sizeof label, "text of %s for %s: %.80s", formula_name(op, which), t->suffix,
             text);
    if (there || which < 0) check(ok && there, label);
    pool_at = keep;
    fl_scope_end(&s);
}

static void text_inputs_make(void) {
    random_state = 5;
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++) {
            array *a = &text_inputs[k][i];
            *a = random_array(FL_SHAPE(TEXT_N), text_types[k].dtype, WILD);
            for (int j = 0; j < TEXT_N && i == 1 && k == 2; j++)
                if (a->i[j] == 0) put_int(a, j, 7); /* a divisor */
        }
}

static void text_group(void) {
    const char *cc = getenv("CC"), *tmp = getenv("TMPDIR");
    char dir[200], command[900], source[240], program[240];
    if (strcmp(backend_name, "cpu")) return; /* others may round differently */
    if (access("kernels/fl_math.h", R_OK)) {
        skip("the formulas as text: run from the folder that has kernels/");
        return;
    }
    snprintf(dir, sizeof dir, "%s/conformance-XXXXXX", tmp && *tmp ? tmp : P_tmpdir);
    if (!check(mkdtemp(dir) != NULL, "a temporary folder")) return;
    pool_at = 0;
    text_inputs_make();
    snprintf(source, sizeof source, "%s/formulas.c", dir);
    snprintf(program, sizeof program, "%s/formulas", dir);
    if (!cc || !*cc) cc = "cc";
    snprintf(command, sizeof command, "%s --version >/dev/null 2>&1", cc);
    bool compiler = system(command) == 0;
    /* f32 fuses its multiply-adds where the kernels do */
    snprintf(command, sizeof command, "%s -std=c11 -O1 %s -I. -o %s %s -lm", cc,
             fl__level() > FL__PORTABLE ? "-mfma" : "", program, source);
    if (!compiler) skip("the formulas as text: there is no compiler '%s'", cc);
    else if (check(write_program(source) && system(command) == 0, "the formulas compile as C")) {
        FILE *f = popen(program, "r");
        if (f) each_formula(compare_one, f);
        check(f && pclose(f) == 0, "the formulas run");
    }
    remove(source);
    remove(program);
    rmdir(dir);
}
/* MIT licence: see LICENSE. */
