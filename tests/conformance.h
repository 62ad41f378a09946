/* conformance.h - what the rooms of the conformance suite share: cases, comparisons and the matrix

   A case is one call of a public function on operands of one dtype in one layout. Its expected
   values come from loops over host arrays, in f64 with libm for floats and in int64_t for the rest;
   the tables' formulas and fl_math.h take no part. Counts live in memory that the forked groups
   share with the parent, so what ran before a crash counts and the case that crashed is known. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include "arrays.h"
#include "sample.h"
#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

/* >>cases and the matrix */

enum { MAX_ROWS = 512 };
typedef struct counts {
    int32_t passed, total, seen;
} counts;
typedef struct matrix_row {
    char name[24];
    unsigned layouts;           /* that must have cases, as bits ... */
    unsigned dtypes;            /* for these */
    unsigned weak;              /* dtypes whose weak numbers it takes */
    unsigned refused;           /* dtypes that must give an error */
    char tolerance[120];
    counts cell[FL_DTYPE_COUNT][LAYOUTS];
    counts composed;            /* the same cases without the op's slot */
    bool begun[2][FL_DTYPE_COUNT][LAYOUTS]; /* a case ran; [1]: without the slot */
} matrix_row;
typedef struct shared_state {
    int n_rows;
    matrix_row rows[MAX_ROWS];
    int shown;                  /* failures printed for this group */
    char now[200];              /* the running case */
    counts checks;              /* besides the matrix */
    char skipped[8][120];
    int n_skipped;
    int64_t left_out;           /* cases outside of the sample */
} shared_state;
static shared_state *shared;

static const char *backend_name = "cpu";
static bool composed_run; /* cases count for `composed` */
/* Not 0: runs that many more cases, dense ones, uncounted: only to see which slots are called. */
static int quick_run;
static matrix_row *case_row;
static fl_dtype case_dtype;
static layout case_layout;
static fl_scope case_scope;
enum { ONE_IN = 6 }; /* cases of a sample; the first one of a cell always runs */

/* The row of that name; a new one has no cells yet. */
static matrix_row *row_of(const char *name) {
    static matrix_row *last;
    if (last && !strcmp(last->name, name)) return last;
    for (int i = 0; i < shared->n_rows; i++)
        if (!strcmp(shared->rows[i].name, name)) return last = &shared->rows[i];
    if (shared->n_rows == MAX_ROWS) {
        fprintf(stderr, "conformance: more than %d rows\n", MAX_ROWS);
        exit(2);
    }
    last = &shared->rows[shared->n_rows++];
    snprintf(last->name, sizeof last->name, "%s", name);
    return last;
}

enum {
    B8 = 1 << FL_B8,
    U8 = 1 << FL_U8,
    I32 = 1 << FL_I32,
    I64 = 1 << FL_I64,
    I8 = 1 << FL_I8,
    I16 = 1 << FL_I16,
    U16 = 1 << FL_U16,
    U32 = 1 << FL_U32,
    U64 = 1 << FL_U64,
    F16 = 1 << FL_F16,
    BF16 = 1 << FL_BF16,
    F32 = 1 << FL_F32,
    F64 = 1 << FL_F64,
    WIDE_FLOATS = F32 | F64,
    FLOATS = WIDE_FLOATS | F16 | BF16,
    INTEGERS = U8 | I8 | I16 | I32 | I64 | U16 | U32,
    NUMBERS = FLOATS | INTEGERS,
    COMPUTED = NUMBERS | B8,
    STORED = COMPUTED | U16 | U32 | U64
};

/* Says what row `name` must have: cases for dtypes x layouts (weak numbers of `weak` only), errors
   for `refused`. */
static void expect_row(const char *name, unsigned dtypes, unsigned layouts, unsigned weak,
                       unsigned refused) {
    matrix_row *r = row_of(name);
    r->dtypes = dtypes;
    r->layouts = layouts;
    r->weak = weak;
    r->refused = refused;
}

static counts *case_counts(void) {
    return composed_run ? &case_row->composed : &case_row->cell[case_dtype][case_layout];
}

__attribute__((format(printf, 4, 5))) static bool case_begin(const char *name, fl_dtype d, layout l,
                                                                    const char *format, ...) {
    case_row = row_of(name);
    case_dtype = d;
    case_layout = l;
    /* Narrow dtypes take the way of their wide one: every fourth case of theirs will do. */
    if (l != REFUSED && fl_dtype_wide(d) != d && case_counts()->seen++ % 4) return false;
    if (quick_run && (l > DENSE || quick_run == 1 || (!is_float(d) && d != FL_I64) || !--quick_run))
        return false;
    va_list args;
    char detail[120];
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    snprintf(shared->now, sizeof shared->now, "%s%s %s %s %s", name,
             composed_run ? " (composed)" : "", fl_dtype_name(d), layout_names[l], detail);
    bool *begun = &case_row->begun[composed_run][d][l];
    if (!quick_run && *begun && !in_sample(shared->now, ONE_IN)) {
        __atomic_fetch_add(&shared->left_out, 1, __ATOMIC_RELAXED);
        return false;
    }
    *begun |= !quick_run;
    random_state = 1469598103934665603u;
    for (const char *p = shared->now; *p; p++)
        random_state = (random_state ^ (uint8_t)*p) * 1099511628211u;
    pool_at = 0;
    if (!quick_run) __atomic_fetch_add(&case_counts()->total, 1, __ATOMIC_RELAXED);
    case_scope = fl_scope_begin();
    return true;
}

/* Prints why a case fails, a few times per group; false. */
__attribute__((format(printf, 1, 2))) static bool say(const char *format, ...) {
    va_list args;
    if (quick_run || shared->shown++ >= 8) return false;
    va_start(args, format);
    printf("  %s: ", shared->now);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    return false;
}

static void case_end(bool ok) {
    if (fl_error()) {
        say("%s", fl_error());
        ok = false;
        fl_error_clear();
    }
    fl_scope_end(&case_scope);
    if (ok && !quick_run) __atomic_fetch_add(&case_counts()->passed, 1, __ATOMIC_RELAXED);
}

/* The call failed: no result and a message; or, on a backend that defers its work, a result that
   cannot be read. */
static bool fails(fl_tensor *t) {
    array unread;
    const fl_backend *be = t ? fl_backend_at(t->backend) : NULL; /* a deferred one says so when it is read */
    const bool waits = t && (be->sync || fl_lazy_calls().n);
    bool failed = !t || (waits && !read_tensor(t, &unread));
    return failed && fl_error() && *fl_error();
}

static bool was_refused(fl_tensor *t) {
    bool ok = fails(t) || say("should have been an error");
    fl_error_clear();
    return ok;
}

/* A check outside the matrix. */
static bool check(bool ok, const char *what) {
    shared->checks.total++;
    shared->checks.passed += ok;
    if (!ok)
        printf("  failed: %s%s%s\n", what, fl_error() ? ": " : "", fl_error() ? fl_error() : "");
    fl_error_clear();
    return ok;
}

static void skip(const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (shared->n_skipped < 8)
        vsnprintf(shared->skipped[shared->n_skipped++], sizeof shared->skipped[0], format, args);
    va_end(args);
}

/* >>comparing */

/* |got - want| <= ulp * (a unit in want's last place) + slack * (the dtype's epsilon) * scale
                   + tiny * (the dtype's smallest normal number) */
typedef struct tolerance {
    double ulp, slack, tiny;
} tolerance;
static const tolerance EXACT = {0, 0, 0};

static void tell_tolerance(const char *name, tolerance f32, tolerance f64) {
    matrix_row *r = row_of(name);
    int n = snprintf(r->tolerance, sizeof r->tolerance, "f32 %g ulp, f64 %g ulp", f32.ulp, f64.ulp);
    if (f32.slack != 0)
        n += snprintf(r->tolerance + n, sizeof r->tolerance - (size_t)n, " + %g eps |x|",
                      f32.slack);
    if (f32.tiny != 0)
        snprintf(r->tolerance + n, sizeof r->tolerance - (size_t)n, " + %g smallest normal",
                 f32.tiny);
}

/* f16 and bf16 compute in f32: the tolerance is f32's, and one rounding of their own. */
static bool close_enough(double got, double want, fl_dtype d, tolerance t, double scale) {
    double w = rounded(want, d);
    if (isnan(got) || isnan(want)) return isnan(got) && isnan(want);
    if (got == w) return true;
    bool half = d == FL_F16 || d == FL_BF16;
    fl_dtype computed = half ? FL_F32 : d;
    double eps = computed == FL_F32 ? 0x1p-23 : 0x1p-52, edge = format_of(d).largest;
    double error = t.ulp * unit(want, computed) +
                   t.tiny * (computed == FL_F32 ? (double)FLT_MIN : DBL_MIN);
    if (!isnan(scale) && !isinf(scale)) error += eps * t.slack * scale;
    if (half && error > 0) error += 0.51 * unit(want, d);
    if (isinf(got) || isinf(w)) { /* next to overflow rounding may go either way */
        double finite = isinf(got) ? want : got;
        double near_edge = edge * (1 - t.ulp * eps) - (half ? unit(edge, d) : 0);
        return got * want > 0 && fabs(finite) >= near_edge && (t.ulp > 0.5 || half);
    }
    return fabs(got - want) <= error;
}

/* A computed zero's sign counts where nothing was rounded to it. */
static bool sign_agrees(double got, double want) {
    return got != 0 || want != 0 || signbit(got) == signbit(want);
}

static bool same_shape(fl_shape a, fl_shape b) {
    return a.ndim == b.ndim && !memcmp(a.dim, b.dim, (size_t)a.ndim * sizeof *a.dim);
}

/* t has the shape, dtype and values of want. scale: of the slack, per element; NULL for 1. */
static bool agrees(fl_tensor *t, const array *want, tolerance tol, const double *scale,
                   bool signs) {
    char s1[100], s2[100];
    array got;
    if (!t) return say("no result");
    if (t->backend != operand_backend() && case_layout != WEAK)
        return say("result is on backend '%s'", fl_backend_name(t));
    if (t->dtype != want->dtype)
        return say("result is %s, not %s", fl_dtype_name(t->dtype), fl_dtype_name(want->dtype));
    if (!same_shape(fl_shape_of(t), want->shape))
        return say("shape %s, not %s", fl_shape_text(fl_shape_of(t), s1, 100),
                   fl_shape_text(want->shape, s2, 100));
    if (!read_tensor(t, &got)) return say("cannot be read");
    for (int64_t k = 0; k < want->n; k++) {
        if (!is_float(want->dtype)) {
            if (got.i[k] != want->i[k])
                return say("element %lld is %lld, not %lld", (long long)k, (long long)got.i[k],
                           (long long)want->i[k]);
            continue;
        }
        if (!close_enough(got.f[k], want->f[k], want->dtype, tol, scale ? scale[k] : 1) ||
            (signs && !sign_agrees(got.f[k], want->f[k])))
            return say("element %lld is %.17g, not %.17g", (long long)k, got.f[k], want->f[k]);
    }
    return true;
}

static bool equals(fl_tensor *t, const array *want) {
    return agrees(t, want, EXACT, NULL, true);
}

/* Epsilons of error that a sum of n terms may have; equal terms (a broadcast) round the same way
   each time. */
static double rounding(layout l, double n) {
    return 4 + (l == BROADCAST ? n / 2 : sqrt(n));
}

/* >>shapes */

static const fl_shape shapes[] = {
    {0, {0}},
    {1, {0}},
    {1, {1}},
    {1, {3}},
    {1, {15}},
    {1, {16}},
    {1, {17}},
    {1, {31}},
    {1, {33}},
    {1, {100}},
    {1, {1000}},
    {2, {3, 5}},
    {2, {17, 33}},
    {2, {1, 7}},
    {2, {5, 1}},
    {3, {3, 0, 2}},
    {3, {1, 1, 1}},
    {4, {2, 3, 4, 5}},
    {8, {2, 1, 3, 1, 2, 2, 1, 2}},
    {2, {131, 137}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static const fl_dtype all_dtypes[] = {FL_B8,  FL_U8,  FL_I8,  FL_I16,  FL_I32, FL_I64, FL_U16,
                                      FL_U32, FL_U64, FL_F16, FL_BF16, FL_F32, FL_F64};
enum { DTYPES = sizeof all_dtypes / sizeof *all_dtypes };

#endif /* MIT licence: see LICENSE. */
