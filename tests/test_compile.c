/* test_compile.c - compiled programs: bits at all levels, modes, the cache, compilers that fail */
#include "../fl_all.h"
#include "../fl_graph.h"
#include "../kernels/cpu/formula.h"
#include "compiler.h"
#include "heap.h"
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>

typedef fl_tensor *T;

static bool same_bits(T a, T b) {
    const int64_t n = fl_numel(a), size = (int64_t)fl_dtype_size(a->dtype);
    if (!a || !b || a->dtype != b->dtype || !fl_same_shape(a, b)) return false;
    const char *p = fl_data(a), *q = fl_data(b);
    bool same = true;
    for (int64_t i = 0; same && i < n; i++, p += size, q += size) {
        const fl_number x = fl_number_load(a->dtype, p), y = fl_number_load(a->dtype, q);
        same = !memcmp(p, q, (size_t)size) || (x.real && isnan(x.f) && isnan(y.f)); /* NaN counts as one */
    }
    return same;
}

/* ---- a folder for the cache and scripts, and the messages that were logged ---- */

static char folder[64];
static int warnings;

static void empty(const char *path) {
    char command[120];
    snprintf(command, sizeof command, "rm -rf %s/*", path);
    CHECK(!system(command));
}

static void hear(fl_log_level level, const char *text, void *user) {
    (void)user;
    warnings += level >= FL_LOG_WARN;
    if (level >= FL_LOG_WARN && getenv("TEST_SAYS")) printf("  %s\n", text);
}

static void begin(void) {
    snprintf(folder, sizeof folder, "/tmp/fl-test-XXXXXX");
    if (!CHECK(mkdtemp(folder))) exit(1);
    setenv("XDG_CACHE_HOME", folder, 1);
    setenv("TMPDIR", folder, 1);
    fl_log_set_sink(hear, NULL, FL_LOG_WARN);
    warnings = 0;
    fl_compile(FL_COMPILE_NOW);
}

/* No process and no file may be left but for kernels of the cache. */
static void end(void) {
    char cache[96], command[160], line[200] = "";
    fl__compile_reset(0);
    CHECK(waitpid(-1, NULL, WNOHANG) < 0);
    snprintf(cache, sizeof cache, "%s/fl", folder);
    snprintf(command, sizeof command, "find %s -mindepth 1 -name 'fl-*' -o -name 'kernels*' -o -name '*.h'",
             folder);
    FILE *f = popen(command, "r");
    if (!CHECK(f && !fgets(line, sizeof line, f))) printf("  left: %s", line);
    if (f) pclose(f);
    empty(folder);
    CHECK(!rmdir(folder));
    CHECK_NOTHING_LIVES();
}

/* An executable of that text in the folder becomes the compiler. */
static void compiler_is(const char *text) {
    char path[96];
    snprintf(path, sizeof path, "%s/compiler", folder);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f) && !chmod(path, 0700));
    setenv("FL_COMPILER", path, 1);
}

/* ---- bits ---- */

#ifdef TEST_SANITIZED
enum { ONE_OP_IN = 8, PAST_IN = 8 };
#else
enum { ONE_OP_IN = 1, PAST_IN = 4 };
#endif
enum { MOST = 1200, SIZES = 6 };
static const int sizes[SIZES] = {1, 15, 511, 512, 513, 1100};
static union {
    _Alignas(FL_ALIGN) float f32[MOST];
    double f64[MOST];
    uint8_t b8[MOST];
} in[FL_FORMULA_INPUTS], place[2][FL_FORMULA_OUTPUTS];

/* Values around 0 and 1, large and small ones, halves, signed zeros, infinities, NaN. */
static void fill(int k, fl_dtype d, bool condition, uint64_t seed) {
    static const double special[] = {0,    -0.0,  1,     -1,       0.5,       -0.5, 2,
                                     1e30, -1e30, 1e-40, INFINITY, -INFINITY, NAN};
    for (int i = 0; i < MOST; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const uint64_t r = seed >> 33;
        const double x = r % 5 ? (double)(r % 20001) / 2500 - 4 : special[r / 5 % 13];
        if (condition) in[k].b8[i] = r & 1;
        else if (d == FL_F32) in[k].f32[i] = (float)x;
        else in[k].f64[i] = x;
    }
}

static bool equal_numbers(const void *a, const void *b, fl_dtype d, bool condition, int n) {
    if (condition) return !memcmp(a, b, (size_t)n);
    for (int i = 0; i < n; i++) {
        const double x = d == FL_F32 ? ((const float *)a)[i] : ((const double *)a)[i];
        const double y = d == FL_F32 ? ((const float *)b)[i] : ((const double *)b)[i];
        if (!(isnan(x) && isnan(y)) && memcmp(&x, &y, sizeof x)) return false;
    }
    return true;
}

/* The results of the executor and of the kernel, apart and, where an output may be, over an input. past: the
   kernel stores past the caches. */
static bool check_program(const fl_formula *f, fl_dtype d, bool past) {
    fl__executor e;
    const void *arg;
    bool ok = fl__executor_begin(&e, f, d);
    fl__loop kernel = fl__executor_loop(&e, 1, past, &arg);
    if (!CHECK(ok && kernel != fl__executor_run)) return false;
    for (int i = 0; i < f->n_in; i++) fill(i, d, f->conditions >> i & 1, (uint64_t)(i + 17 * d));
    for (int s = 0; ok && s < SIZES; s++)
        for (int over = 0; ok && over <= (f->n_in > 0 && f->n_out == 1 && !past); over++) {
            const int n = past ? sizes[s] / FL__PAST_BLOCK * FL__PAST_BLOCK : sizes[s];
            void *p[2][FL_FORMULA_OUTPUTS + FL_FORMULA_INPUTS];
            for (int way = 0; way < 2; way++) {
                for (int i = 0; i < f->n_out; i++) p[way][i] = &place[way][i];
                for (int i = 0; i < f->n_in; i++) p[way][f->n_out + i] = &in[i];
                if (over && !f->logical == !(f->conditions & 1)) {
                    memcpy(&place[way][0], &in[0], sizeof in[0]);
                    p[way][f->n_out] = p[way][0];
                }
            }
            fl__executor_run(p[0], n, &e);
            kernel(p[1], n, arg);
            for (int i = 0; i < f->n_out; i++)
                ok &= equal_numbers(&place[0][i], &place[1][i], d, f->logical >> i & 1, n);
        }
    return ok;
}

TEST(kernels_have_the_bits_of_formulas_and_gradients) {
    static const int levels[] = {FL__PORTABLE, FL__AVX2, FL__AVX512};
    NEEDS_COMPILER;
    begin();
    for (int l = 0, n = 0; l < 3; l++) {
        fl__level_cap(levels[l]);
        if (l && fl__level() < levels[l]) break;
        for (int check = 0; check < 2; check++)
            for (int op = 1; op < FL_OP_copy; op++)
                for (int which = FL_PROGRAM_Y; which <= FL_PROGRAM_DA_DB; which++)
                    for (int d = 0; d < 2; d++) {
                        const fl_op_info *info = fl_op_get_info((fl_op)op);
                        if (info->cls == FL_CLASS_INT || info->cls == FL_CLASS_BOOL) continue;
                        if (which && info->cls == FL_CLASS_CMP) continue;
                        if (which > FL_PROGRAM_DA && info->arity < 2) continue;
                        const fl_formula *f = fl_op_program((fl_op)op, (fl_program)which);
                        if (!f || f->n_steps < 2 || (d && l) || op % ONE_OP_IN) continue;
                        for (int past = 0; past < (op % PAST_IN ? 1 : 2); past++)
                            if (!check) fl__compile_ahead(f, d ? FL_F64 : FL_F32, past);
                            else if (n++, !CHECK(check_program(f, d ? FL_F64 : FL_F32, past)))
                                printf("  %s, program %d, %s, %s%s\n", info->name, which, d ? "f64" : "f32",
                                       fl_cpu_level(), past ? ", past the caches" : "");
                    }
        if (l == 2 || fl__level() < FL__AVX512) printf("  %d programs, up to %s\n", n, fl_cpu_level());
    }
    const fl_compile_counts c = fl_compile_stats();
    printf("  %d kernels by %d runs of the compiler, %.0f ms each\n", (int)c.compiled, (int)c.runs,
           1e3 * c.seconds / (double)c.compiled);
    CHECK_EQ_INT(warnings, 0);
    end();
}

static const char chain[] = "(x, y, c) { float t = x * y + 1; t = c ? tanh(t) : t * 0.25;"
                            " return maximum(t, y) - x; }";

/* The chain of x [rows, columns], y a row, c a column, in dtype d. */
static T run_chain(int64_t rows, fl_dtype d) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {7, 0};
    T x = fl_cast(fl_normal(FL_SHAPE(rows, 300), 0, 2, FL_F32, &rng), d);
    T y = fl_cast(fl_normal(FL_SHAPE(300), 0, 2, FL_F32, &rng), d);
    T c = fl_lt(fl_normal(FL_SHAPE(rows, 1), 0, 1, FL_F32, &rng), fl_num(0));
    return fl_scope_return(&s, fl_apply(chain, (T[]){x, y, c}, 3));
}

static T run_uncompiled(void) {
    const fl_compile_mode now = fl_compile(FL_COMPILE_NEVER);
    T y = run_chain(5, FL_F32);
    fl_compile(now);
    return y;
}

static bool runs_right(int64_t rows, T want) {
    fl_scope s = fl_scope_begin();
    const bool right = CHECK(same_bits(run_chain(rows, FL_F32), want));
    fl_scope_end(&s);
    return right;
}

static bool counts_are(int64_t programs, int64_t compiled, int64_t cached, int64_t failed, int64_t runs) {
    const fl_compile_counts c = fl_compile_stats();
    return CHECK_EQ_INT(c.programs, programs) & CHECK_EQ_INT(c.compiled, compiled) &
           CHECK_EQ_INT(c.cached, cached) & CHECK_EQ_INT(c.failed, failed) & CHECK_EQ_INT(c.runs, runs);
}

TEST(functions_of_all_dtypes_and_shapes_keep_their_bits) {
    static const fl_dtype dtypes[] = {FL_F32, FL_F64, FL_BF16, FL_F16};
    NEEDS_COMPILER;
    begin();
    fl_scope s = fl_scope_begin();
    for (int i = 0; i < 4; i++)
        for (int64_t rows = 1; rows < 200; rows *= 6) {
            fl_compile(FL_COMPILE_NEVER);
            fl__compile_reset(0);
            T want = run_chain(rows, dtypes[i]);
            CHECK(counts_are(0, 0, 0, 0, 0)); /* who does not ask compiles nothing */
            fl_compile(FL_COMPILE_NOW);
            CHECK(same_bits(run_chain(rows, dtypes[i]), want));
            const bool first = rows == 1 && i < 2;
            CHECK(counts_are(1, first, !first, 0, first));
        }
    fl_scope_end(&s);
    end();
}

static fl_tensor *spin(fl_tensor *x) {
    return fl_apply("(x) { return maximum(x * 0.5, 1) - x * x; }", &x, 1);
}

/* The kernel that stores past the caches is another one, which the odd size cannot use. */
TEST(results_larger_than_caches_keep_their_bits) {
    NEEDS_COMPILER;
    begin();
    fl_scope s = fl_scope_begin();
    for (int odd = 0; odd < 2; odd++) {
        T x = fl_uniform(FL_SHAPE((9 << 20) + odd), -3, 3, FL_F32, NULL);
        fl_compile(FL_COMPILE_NEVER);
        T want = spin(x);
        fl_compile(FL_COMPILE_NOW);
        CHECK(same_bits(spin(x), want));
        CHECK(same_bits(spin(x), want));
        CHECK(counts_are(1 + odd, 1 + odd, 0, 0, 1 + odd));
    }
    fl_scope_end(&s);
    end();
}

TEST(later_compiles_what_comes_often_or_is_large) {
    NEEDS_COMPILER;
    begin();
    fl_compile(FL_COMPILE_LATER);
    fl_scope s = fl_scope_begin();
    for (int large = 0; large < 2; large++) {
        fl__compile_reset(0);
        empty(folder);
        const int64_t rows = large ? 15000 : 2;
        T want = run_chain(rows, FL_F32);
        for (int i = 2; i <= 12; i++) {
            CHECK(runs_right(rows, want));
            CHECK_EQ_INT(fl_compile_stats().runs, i > (large ? 1 : 8));
        }
        CHECK(fl_compile_wait());
        CHECK(counts_are(1, 1, 0, 0, 1));
        CHECK(same_bits(run_chain(rows, FL_F32), want));
    }
    fl_scope_end(&s);
    end();
}

TEST(equal_programs_are_one_text_that_compilers_accept_silently) {
    NEEDS_COMPILER;
    begin();
    fl_scope s = fl_scope_begin();
    char file[96], command[400];
    T x = fl_ones(FL_SHAPE(7), FL_F32);
    for (int i = 0; i < 3; i++) {
        char text[80];
        snprintf(text, sizeof text, "(x) { return tanh(x * %d.5) + %d; }", i + 1, 3 * i + 4);
        fl_apply(text, &x, 1);
    }
    run_chain(3, FL_F64);
    fl__compile_ahead(fl_op_program(FL_OP_gelu, FL_PROGRAM_Y), FL_F32, true);
    CHECK(fl_compile_wait());
    CHECK(counts_are(3, 3, 0, 0, 3));
    snprintf(file, sizeof file, "%s/all.c", folder);
    FILE *f = fopen(file, "w");
    REQUIRE(f);
    fprintf(f, "%s", fl__c_file_begin());
    CHECK(fl_compile_print(f));
    fprintf(f, "%s", fl__c_file_end());
    CHECK(!fclose(f));
    for (int i = 0; i < 2; i++) {
        const char *compiler = i ? "clang" : "gcc";
        snprintf(command, sizeof command, "%s --version > /dev/null 2>&1", compiler);
        if (system(command)) continue;
        snprintf(command, sizeof command,
                 "%s -std=gnu11 -O2 -Wall -Wextra -Werror -Ikernels -c %s -o /dev/null",
                 compiler, file);
        CHECK(!system(command));
    }
    fl_scope_end(&s);
    end();
}

/* ---- steps of optimizers, groups ---- */

static void train(int steps, fl_var *w, fl_optim *o) {
    for (int i = 0; i < steps; i++) {
        fl_scope s = fl_scope_begin();
        fl_backward(fv_sum(fv_tanh(fv_mul(w, w)), FL_ALL_AXES));
        fl_optim_step(o);
        fl_optim_zero_grad(o);
        fl_scope_end(&s);
    }
}

TEST(steps_run_as_kernels) {
    NEEDS_COMPILER;
    begin();
    T result[2];
    for (int k = 0; k < 2; k++) {
        fl_compile(k ? FL_COMPILE_NOW : FL_COMPILE_NEVER);
        fl_scope s = fl_scope_begin();
        fl_var *w = fv_param(fl_normal(FL_SHAPE(50, 700), 0, 1, FL_F32, &(fl_rng){5, 0}));
        fl_optim *o = fl_optim_adamw(FV_LIST(w), .lr = 0.01);
        train(5, w, o);
        result[k] = fl_keep(fl_clone(w->value));
        fl_optim_free(o);
        fl_scope_end(&s);
    }
    CHECK(same_bits(result[0], result[1]));
    CHECK(fl_compile_stats().compiled >= 1);
    CHECK_EQ_INT(fl_compile_stats().failed, 0);
    fl_drop(result[0]), fl_drop(result[1]);
    end();
}

/* ---- the cache ---- */

/* The path of the only kernel in the cache. */
static const char *kernel_file(void) {
    static char path[300];
    char command[120];
    snprintf(command, sizeof command, "ls %s/fl/*.so 2>/dev/null", folder);
    FILE *f = popen(command, "r");
    path[0] = 0;
    if (f && fgets(path, sizeof path, f)) path[strcspn(path, "\n")] = 0;
    if (f) pclose(f);
    return path;
}

TEST(the_cache_keeps_whole_files_of_its_user_alone) {
    NEEDS_COMPILER;
    begin();
    fl_scope s = fl_scope_begin();
    T want = run_uncompiled();
    CHECK(runs_right(5, want) && counts_are(1, 1, 0, 0, 1));
    struct stat whole;
    CHECK(!stat(kernel_file(), &whole) && !(whole.st_mode & 077));
    for (int64_t cut = 0; cut < 6; cut++) { /* truncated, changed, longer: compiled anew */
        fl__compile_reset(0);
        char command[700]; /* a new file: this process has mapped the old one */
        snprintf(command, sizeof command, "cp -p %s %s/copy && mv %s/copy %s", kernel_file(), folder, folder,
                 kernel_file());
        CHECK(!system(command));
        const int fd = open(kernel_file(), O_RDWR);
        const char byte = 85;
        REQUIRE(fd >= 0);
        if (cut < 3) CHECK(!ftruncate(fd, whole.st_size * cut / 2 - (cut == 2)));
        else CHECK(pwrite(fd, &byte, 1, (cut - 3) * whole.st_size / 2) == 1);
        close(fd);
        CHECK(runs_right(5, want) && counts_are(1, 1, 0, 0, 1));
        fl__compile_reset(0);
        CHECK(runs_right(5, want) && counts_are(1, 0, 1, 0, 0));
    }
    CHECK(!chmod(kernel_file(), 0666)); /* others could have written it */
    fl__compile_reset(0);
    CHECK(runs_right(5, want) && counts_are(1, 1, 0, 0, 1));
    if (!geteuid()) { /* another user's */
        CHECK(!chown(kernel_file(), 1, 1));
        fl__compile_reset(0);
        CHECK(runs_right(5, want) && counts_are(1, 1, 0, 0, 1));
    }
    CHECK_EQ_INT(warnings, 0);
    char cache[96];
    snprintf(cache, sizeof cache, "%s/fl", folder);
    for (int open = 0; open < 2; open++) { /* a folder that others write, or that cannot be one */
        if (open) empty(cache), rmdir(cache), fclose(fopen(cache, "w"));
        else CHECK(!chmod(cache, 0777));
        fl__compile_reset(0);
        CHECK(runs_right(5, want) && counts_are(1, 1, 0, 0, 1));
        CHECK_EQ_INT(warnings, 1);
    }
    fl_scope_end(&s);
    end();
}

TEST(the_cache_is_bounded_and_cleaned) {
    NEEDS_COMPILER;
    begin();
    fl_scope s = fl_scope_begin();
    char path[160];
    const struct timespec old[2] = {{1000, 0}, {1000, 0}};
    run_chain(5, FL_F32);
    for (int i = 0; i < 5; i++) { /* 100 MiB of older kernels */
        snprintf(path, sizeof path, "%s/fl/fl_%d.so", folder, i);
        const int fd = open(path, O_WRONLY | O_CREAT, 0600);
        CHECK(fd >= 0 && !ftruncate(fd, 20 << 20) && !futimens(fd, old) && !close(fd));
    }
    snprintf(path, sizeof path, "%s/fl/fl-abcdef", folder); /* an ended program's folder */
    CHECK(!mkdir(path, 0700) && !utimensat(AT_FDCWD, path, old, 0));
    run_chain(5, FL_F64); /* a new kernel */
    int64_t bytes = 0, files = 0;
    for (int i = 0; i < 5; i++) {
        struct stat st;
        snprintf(path, sizeof path, "%s/fl/fl_%d.so", folder, i);
        if (!stat(path, &st)) bytes += st.st_size, files++;
    }
    CHECK_EQ_INT(files, 3);
    CHECK(bytes <= 64 << 20);
    fl__compile_reset(0);
    run_chain(5, FL_F32);
    CHECK(counts_are(1, 0, 1, 0, 0)); /* what was used last has stayed */
    fl_scope_end(&s);
    end();
}

/* As another user: the superuser may write anywhere. */
TEST(a_cache_that_can_only_be_read_is_read) {
    NEEDS_COMPILER;
    begin();
    fl_scope s = fl_scope_begin();
    char path[96], command[300];
    snprintf(path, sizeof path, "%s/elsewhere", folder);
    setenv("TMPDIR", path, 1);
    T want = run_uncompiled(), wide = NULL;
    CHECK(runs_right(5, want) && counts_are(1, 1, 0, 0, 1));
    snprintf(command, sizeof command, "mkdir %s && chmod 0555 %s/fl && %s -R nobody %s", path, folder,
             geteuid() ? "true" : "chown", folder);
    CHECK(!system(command));
    const uid_t user = geteuid();
    if (!user) CHECK(!seteuid(65534));
    fl__compile_reset(0);
    CHECK(runs_right(5, want) && counts_are(1, 0, 1, 0, 0));
    CHECK((wide = run_chain(5, FL_F64)) && counts_are(2, 1, 1, 0, 1)); /* compiled elsewhere, not kept */
    fl__compile_reset(0);
    CHECK(same_bits(run_chain(5, FL_F64), wide) && counts_are(1, 1, 0, 0, 1));
    CHECK_EQ_INT(warnings, 0);
    if (!user) CHECK(!seteuid(0));
    CHECK(!chmod(folder, 0700));
    snprintf(command, sizeof command, "chmod 0700 %s/fl", folder);
    CHECK(!system(command));
    fl_scope_end(&s);
    end();
}

TEST(two_processes_share_the_cache) {
    NEEDS_COMPILER;
    begin();
    fl_scope s = fl_scope_begin();
    T want = run_uncompiled();
    pid_t child[4];
    for (int i = 0; i < 4; i++)
        if (!(child[i] = fork())) _exit(!runs_right(5, want));
    for (int i = 0; i < 4; i++) {
        int status = 1;
        CHECK(waitpid(child[i], &status, 0) == child[i] && !status);
    }
    CHECK(runs_right(5, want) && counts_are(1, 0, 1, 0, 0));
    fl_scope_end(&s);
    end();
}

static T thread_want[6];

static const char *thread_text(int i) {
    static _Thread_local char text[6][80];
    snprintf(text[i], sizeof text[i], "(x) { return tanh(x)%.*s; }", 4 * i + 4, " * x * x * x * x * x * x");
    return text[i];
}

static void *use_kernels(void *x) {
    bool right = true;
    for (int round = 0; round < 40; round++) {
        fl_scope s = fl_scope_begin();
        for (int i = 0; i < 6; i++) right &= same_bits(fl_apply(thread_text(i), &(T){x}, 1), thread_want[i]);
        fl_scope_end(&s);
    }
    CHECK(right);
    return NULL;
}

TEST(threads_use_and_compile_the_same_programs) {
    NEEDS_COMPILER;
    begin();
    fl_scope s = fl_scope_begin();
    T x = fl_normal(FL_SHAPE(1000), 0, 1, FL_F32, &(fl_rng){3, 0});
    fl_compile(FL_COMPILE_NEVER);
    for (int i = 0; i < 6; i++) thread_want[i] = fl_apply(thread_text(i), &x, 1);
    for (int mode = FL_COMPILE_LATER; mode <= FL_COMPILE_NOW; mode++) {
        pthread_t thread[4];
        fl__compile_reset(0);
        fl_compile((fl_compile_mode)mode);
        for (int i = 0; i < 4; i++) CHECK(!pthread_create(&thread[i], NULL, use_kernels, x));
        for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
        CHECK(fl_compile_wait());
        const fl_compile_counts c = fl_compile_stats();
        CHECK(c.programs == 6 && c.failed == 0 && c.compiled + c.cached == 6);
    }
    fl_scope_end(&s);
    end();
}

/* ---- compilers that fail ---- */

TEST(compilers_that_fail_are_one_line) {
    static const struct {
        const char *what, *text; /* of the compiler; NULL: there is no such file */
        bool works;
    } compilers[] = {
        {"none", NULL, false},
        {"fails", "#!/bin/sh\nexit 1\n", false},
        {"makes nothing", "#!/bin/sh\nexit 0\n", false},
        {"makes another file", "#!/bin/sh\nwhile [ \"$1\" != -o ]; do shift; done; echo no > $2\n", false},
        {"is killed", "#!/bin/sh\nkill -9 $$\n", false},
        {"hangs, with a child", "#!/bin/sh\nsleep 100 & sleep 100\n", false},
        {"is no program", "\1\2\3", false},
        {"warns", "#!/bin/sh\necho warning; echo warning >&2; exec cc \"$@\"\n", true},
    };
    begin();
    fl_scope s = fl_scope_begin();
    fl_compile(FL_COMPILE_NEVER);
    T want = run_chain(5, FL_F32), wide = run_chain(5, FL_F64);
    for (size_t i = 0; i < sizeof compilers / sizeof *compilers; i++)
        for (int mode = FL_COMPILE_LATER; mode <= FL_COMPILE_NOW; mode++) {
            if (compilers[i].works && !test_has_compiler()) continue;
            fl__compile_reset(0.3 + 10 * compilers[i].works);
            empty(folder);
            warnings = 0;
            if (compilers[i].text) compiler_is(compilers[i].text);
            else setenv("FL_COMPILER", "no-such-compiler", 1);
            fl_compile((fl_compile_mode)mode);
            bool right = true;
            for (int k = 0; k < 12; k++) right &= runs_right(5, want);
            const bool ended = fl_compile_wait();
            right &= same_bits(run_chain(5, FL_F64), wide) && runs_right(5, want);
            const bool works = fl_compile_stats().compiled > 0;
            if (!CHECK(right && warnings == !compilers[i].works && works == compilers[i].works) ||
                (compilers[i].works && !CHECK(ended)))
                printf("  a compiler that %s, mode %d: %d warnings\n", compilers[i].what, mode, warnings);
        }
    unsetenv("FL_COMPILER");
    fl_scope_end(&s);
    end();
}

TEST(a_full_disk_is_one_line) {
    NEEDS_COMPILER;
    begin();
    fl_scope s = fl_scope_begin();
    T want = run_uncompiled();
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    static const rlim_t sizes_of_files[] = {0, 100, 5000, 16000};
    for (int i = 0; i < 4; i++) {
        fl__compile_reset(0);
        warnings = 0;
        limit = before;
        limit.rlim_cur = sizes_of_files[i];
        fflush(stdout);
        setrlimit(RLIMIT_FSIZE, &limit);
        T got = run_chain(5, FL_F32);
        setrlimit(RLIMIT_FSIZE, &before);
        CHECK(same_bits(got, want));
        CHECK(warnings <= 1);
    }
    fl__compile_reset(0);
    CHECK(runs_right(5, want) && counts_are(1, 1, 0, 0, 1));
    signal(SIGXFSZ, SIG_DFL);
    fl_scope_end(&s);
    end();
}

TEST(a_program_that_ends_stops_its_compiler) {
    begin();
    compiler_is("#!/bin/sh\necho $$ > $0.pid; sleep 100 & sleep 100\n");
    const pid_t child = fork();
    if (!child) {
        fl_compile(FL_COMPILE_LATER);
        fl_scope s = fl_scope_begin();
        for (int i = 0; i < 12; i++) run_chain(5, FL_F32);
        fl_scope_end(&s);
        usleep(200000);
        exit(fl_compile_stats().runs != 1);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && !status);
    char path[96];
    int pid = 0;
    snprintf(path, sizeof path, "%s/compiler.pid", folder);
    FILE *f = fopen(path, "r");
    CHECK(f && fscanf(f, "%d", &pid) == 1 && !fclose(f) && kill(pid, 0) < 0);
    unsetenv("FL_COMPILER");
    end();
}

static int64_t requests, fails_at;
static void *failing_heap(void *user, void *p, size_t bytes) {
    (void)user;
    if (!bytes) return free(p), NULL;
    return ++requests == fails_at ? NULL : realloc(p, bytes);
}

TEST(no_memory_is_an_error_of_the_op_alone) {
    NEEDS_COMPILER;
    test_errors_return();
    begin();
    fl_scope s = fl_scope_begin();
    T x = fl_ones(FL_SHAPE(900), FL_F32), want = fl_apply("(x) { return tanh(x) * x; }", &x, 1);
    fl_heap_use(failing_heap, NULL);
    for (fails_at = 1; fails_at < 40; fails_at++) {
        fl__compile_reset(0);
        requests = 0;
        T got = fl_apply("(x) { return tanh(x) * x; }", &x, 1);
        if (got) CHECK(same_bits(got, want));
        else CHECK_ERROR("out of memory");
    }
    fl_heap_use(NULL, NULL);
    fl_scope_end(&s);
    end();
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
