/* written.h - steps written as C or StableHLO, in a folder, with what goes in and must come out

   A case is name.c or name.mlir, and the memory of its values as files: name-before-VALUE of inputs and
   state, name-after-VALUE of state and outputs after replays by fl, name-near-VALUE (of some cases) of the
   same steps from inputs that differ by rounding. C is compiled and run here and writes name-c-VALUE;
   StableHLO is run by tests/python/test_stablehlo.py. */
#ifndef WRITTEN_H
#define WRITTEN_H
#include "../fl_backend.h"
#include "../fl_export.h"
#include "test.h"

enum { WRITTEN_VALUES = 700 };
#define WRITTEN_SANITIZED " -g -fsanitize=address,undefined -fno-sanitize-recover=undefined"
typedef struct written {
    char name[64];
    int steps, n; /* steps that it takes; values that come out */
    struct {
        char name[96];
        fl_dtype dtype;
        int64_t n;
    } value[WRITTEN_VALUES];
} written;

static inline bool written_file(const char *folder, const char *name, const char *when, const char *value,
                                const char *mode, void *p, size_t bytes) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s-%s-%s", folder, name, when, value);
    FILE *f = fopen(path, mode);
    if (!f) return false;
    const size_t n = *mode == 'r' ? fread(p, 1, bytes, f) : fwrite(p, 1, bytes, f);
    return !fclose(f) && n == bytes;
}

static inline const char *written_name(const fl__export_value *x) { return x->label ? x->label : x->name; }

/* The memory of the values that go in, or (after) come out. */
static inline bool written_values(const char *folder, const written *w, const fl__export *e,
                                  const char *when) {
    const bool before = !strcmp(when, "before");
    fl_rng rng = fl_rng_state();
    bool ok = !e->random || written_file(folder, w->name, when, "rng", "wb", &rng, sizeof rng);
    for (int64_t i = 0; ok && i < e->l.n_values; i++) {
        const fl__export_kind k = e->value[i].kind;
        fl_buffer *b = e->l.value[i].buffer;
        if (k != FL__EXPORT_STATE && k != (before ? FL__EXPORT_INPUT : FL__EXPORT_OUTPUT)) continue;
        ok = written_file(folder, w->name, when, written_name(&e->value[i]), "wb", fl_buffer_map(b),
                          (size_t)e->l.value[i].bytes);
        fl_buffer_unmap(b);
    }
    return ok;
}

/* A function NAME_test that takes the steps and writes what comes out. */
static inline bool written_driver(const char *folder, const written *w, const fl__export *e) {
    static const char file[] =
        "#include \"%s.c\"\nint %s_test(void);\n"
        "static int file(const char *mode, const char *path, void *p, size_t n) {\n"
        "    FILE *f = fopen(path, mode);\n    if (!f) return -1;\n"
        "    const size_t done = *mode == 'r' ? fread(p, 1, n, f) : fwrite(p, 1, n, f);\n"
        "    return fclose(f) || done != n ? -1 : 0;\n}\n"
        "int %s_test(void) {\n    %s_state *s = %s_open(\"%s.safetensors\");\n    %s_inputs in;\n  "
        "  %s_outputs out;\n"
        "    memset(&in, 0, sizeof in), memset(&out, 0, sizeof out);\n    if (!s) return 1;\n";
    char path[700];
    const char *n = w->name;
    snprintf(path, sizeof path, "%s/%s-run.c", folder, n);
    FILE *f = fopen(path, "w");
    if (!f) return false;
    fprintf(f, file, n, n, n, n, n, n, n, n);
    for (int64_t i = 0; i < e->l.n_values; i++) {
        const fl__export_value *x = &e->value[i];
        const bool in = x->kind == FL__EXPORT_INPUT;
        const long long bytes = (long long)e->l.value[i].bytes;
        if (!in && x->kind != FL__EXPORT_OUTPUT) continue;
        fprintf(f, "    _Alignas(64) static char m%d[%lld];\n    %s.%s = (void *)m%d;\n", (int)i,
                bytes ? bytes : 1, in ? "in" : "out", x->name, (int)i);
        if (in)
            fprintf(f, "    if (file(\"rb\", \"%s-before-%s\", m%d, %lld)) return 2;\n", n,
                    written_name(x), (int)i, bytes);
    }
    fprintf(f, "    for (int i = 0; i < %d; i++)\n        if (%s_run(s, &in, &out)) return 3;\n",
            w->steps, n);
    for (int64_t i = 0; i < e->l.n_values; i++) {
        const fl__export_value *x = &e->value[i];
        const bool out = x->kind == FL__EXPORT_OUTPUT;
        if (!out && x->kind != FL__EXPORT_STATE) continue;
        fprintf(f, "    if (file(\"wb\", \"%s-c-%s\", %s.%s, %lld)) return 4;\n", n,
                written_name(x), out ? "out" : "(*s)", x->name, (long long)e->l.value[i].bytes);
    }
    if (e->random) fprintf(f, "    if (file(\"wb\", \"%s-c-rng\", s->rng, 16)) return 4;\n", n);
    fprintf(f,
            "    const int bad = %s_save(s, \"%s.safetensors\");\n    %s_close(s);\n    return bad "
            "? 5 : 0;\n}\n",
            n, n, n);
    return !fclose(f);
}

/* Writes the case of graph g and takes its steps; the state and the generator move on. */
static inline bool written_case(const char *folder, written *w, fl_graph *g, fl_export_opts o, bool c) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s.%s", folder, w->name, c ? "c" : "mlir");
    fl__export *e = fl__export_new("test", g, c ? "formulas step" : NULL, &o);
    bool ok =
        CHECK(e) &&
        CHECK(c ? fl_graph_save_c_opt(g, path, o) : fl_graph_save_stablehlo_opt(g, path, o)) &&
        CHECK(written_values(folder, w, e, "before")) && CHECK(!c || written_driver(folder, w, e));
    for (int i = 0; ok && i < w->steps; i++) ok = CHECK(fl_graph_replay(g));
    ok = ok && CHECK(written_values(folder, w, e, "after"));
    w->n = 0;
    for (int64_t i = 0; ok && i < e->l.n_values; i++) {
        const fl__export_value *x = &e->value[i];
        if (x->kind != FL__EXPORT_STATE && x->kind != FL__EXPORT_OUTPUT) continue;
        if (!CHECK(w->n < WRITTEN_VALUES)) break;
        w->value[w->n].dtype = x->dtype, w->value[w->n].n = x->n;
        snprintf(w->value[w->n].name, sizeof w->value[w->n].name, "%s", written_name(x)), w->n++;
    }
    fl__export_free(e);
    return ok;
}

static inline double written_number(const void *p, fl_dtype d, int64_t i) {
    return d == FL_F32 ? (double)((const float *)p)[i] : ((const double *)p)[i];
}

/* The largest difference of two values, and the largest finite number of the second. NaN and infinity must
   be at the same places, integers equal: else infinity. */
static inline double written_difference(const void *a, const void *b, fl_dtype d, int64_t n,
                                        double *largest) {
    double off = 0;
    *largest = 0;
    if (!fl_dtype_is_float(d)) return memcmp(a, b, (size_t)n * fl_dtype_size(d)) ? (double)INFINITY : 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = written_number(a, d, i), y = written_number(b, d, i);
        if (isfinite(y)) *largest = fmax(*largest, fabs(y));
        if (x == y || (isnan(x) && isnan(y))) continue;
        off = fmax(off, isfinite(x) && isfinite(y) ? fabs(x - y) : (double)INFINITY);
    }
    return off;
}

/* The difference of value k between two moments; near is 0 where a file is absent. */
static inline double written_between(const char *folder, const written *w, int k, const char *a,
                                     const char *b, double *largest) {
    const size_t bytes = (size_t)w->value[k].n * fl_dtype_size(w->value[k].dtype);
    void *x = malloc(bytes + 1), *y = malloc(bytes + 1);
    const bool read = written_file(folder, w->name, a, w->value[k].name, "rb", x, bytes) &&
                      written_file(folder, w->name, b, w->value[k].name, "rb", y, bytes);
    const double off = read ? written_difference(x, y, w->value[k].dtype, w->value[k].n, largest) : 0;
    free(x), free(y);
    return read ? off : strcmp(a, "near") ? (double)INFINITY : 0;
}

/* Whether what C has written agrees with fl's: within near of the largest, or floor, or (near inputs) as much
   as rounding makes out. */
static inline bool written_agrees(const char *folder, const written *w, double near, double floor) {
    bool ok = true;
    for (int k = 0; k < w->n; k++) {
        double largest = 0, unused = 0;
        const double off = written_between(folder, w, k, "c", "after", &largest);
        const double slack = 8 * written_between(folder, w, k, "near", "after", &unused);
        if (off <= near * largest || off <= floor || off <= slack) continue;
        printf("  %s: %s, %s of %lld: off by %g of %g\n", w->name, w->value[k].name,
               fl_dtype_name(w->value[k].dtype), (long long)w->value[k].n, off, largest);
        ok = false;
    }
    return ok;
}

/* Compiles and runs n cases in C, with warnings as errors; cc with options. */
static inline bool written_run(const char *folder, const written *w, int n, const char *cc) {
    char command[1500];
    snprintf(command, sizeof command, "%s/main.c", folder);
    FILE *f = fopen(command, "w");
    if (!f) return false;
    fprintf(f, "#include <stdio.h>\n");
    for (int i = 0; i < n; i++) fprintf(f, "int %s_test(void);\n", w[i].name);
    fprintf(f, "int main(void) {\n    int bad = 0, code;\n");
    for (int i = 0; i < n; i++)
        fprintf(f, "    if ((code = %s_test())) printf(\"  %s: exit %%d\\n\", code), bad = 1;\n",
                w[i].name, w[i].name);
    fprintf(f, "    return bad;\n}\n");
    if (fclose(f)) return false;
    fflush(stdout);
    snprintf(command, sizeof command,
             "cd %s && %s -std=c11 -O0 -Wall -Wextra -Werror main.c *-run.c -o run -lm && ./run", folder, cc);
    return !system(command);
}

#endif
/* MIT licence: see LICENSE. */
