/* kernels/cpu/formula.h - the formula executor: runs a program over blocks of numbers

   Each step of the program (fl/tensor/formula.h) is the compiled loop of its primitive over a block that
   stays in the L1 cache; memory is read and written once. As the loops are those of the ops, a formula has
   the bits of its composition, and of a compiled loop of the formula. */
#ifndef FL_CPU_FORMULA_H
#define FL_CPU_FORMULA_H
#include "primitives.h"

/* A program prepared for one dtype. */
typedef struct fl__executor {
    const fl_formula *formula;
    fl_dtype dtype;
    int size;                               /* bytes of a number */
    int64_t fits;                           /* numbers of a row (of an output, a register or a constant) */
    fl__loop step[FL_FORMULA_STEPS];
    uint64_t number[FL_FORMULA_CONSTANTS];  /* bits of the constants */
    bool *zero;                             /* set to true if an integer is divided by 0; NULL: not checked */
    bool streaming;                         /* inputs are in memory, not in a cache */
    const char *rows;                       /* of the constants, once filled; NULL: each run fills its own */
} fl__executor;
enum {
    FL__FORMULA_BYTES = 16 << 10, /* of all rows: half of an L1 cache */
    FL__FORMULA_GAP = 64,         /* bytes between rows: rows 4 KiB apart would alias */
    FL__FORMULA_ROWS = FL_FORMULA_OUTPUTS + FL_FORMULA_REGISTERS + FL_FORMULA_CONSTANTS,
    FL__PAST_BLOCK = 16, /* elements of an output that are stored past the caches at once */
    FL__FORMULA_MEMORY = FL__FORMULA_BYTES + FL__FORMULA_ROWS * FL__FORMULA_GAP
};

/* Returns false, without an error, if a primitive has no loop for d. */
FL_PRIVATE bool fl__executor_begin(fl__executor *e, const fl_formula *f, fl_dtype d);
/* Fills the rows of the constants once for many runs; memory: FL__FORMULA_MEMORY bytes, aligned as rows
   are. */
FL_PRIVATE void fl__executor_fill(fl__executor *e, char *memory);
/* A loop whose arg is an executor: p[0 ...] are the outputs, then the inputs, of the executor's dtype or b8
   for conditions, all dense. An output may be the same memory as an input. */
FL_PRIVATE void fl__executor_run(void *const p[], int64_t n, const void *arg);
/* The loop that runs n elements of e in all: a compiled kernel, whose arg is the numbers, if one was found,
   else the executor. past: results may be stored past the caches (kernels/kernel_text.h). */
FL_PRIVATE fl__loop fl__executor_loop(const fl__executor *e, int64_t n, bool past, const void **arg);
/* Sets what finds compiled kernels; it returns NULL if the executor shall run f. */
typedef fl__loop (*fl__kernel_finder)(const fl_formula *f, fl_dtype d, int64_t n, bool past);
/* True if f waits for memory, and n elements of its outputs are more than a last-level cache holds: an
   ordinary store reads each line from memory first. */
FL_PRIVATE bool fl__is_past_caches(const fl_formula *f, fl_dtype d, int64_t n);
FL_PRIVATE void fl__kernels_use(fl__kernel_finder find);

#endif

#if defined(FL_IMPL_ONLY_CPU_FORMULA) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_FORMULA_IMPL
#define FL_CPU_FORMULA_IMPL
#include "../../fl_tensor.h"
enum {
    FL__FORMULA_BLOCK = 512, /* most numbers of a block */
    FL__FORMULA_STREAM_BLOCK = 256,   /* the same if the next block's inputs are prefetched */
    FL__LAST_CACHE = 32 << 20 /* bytes that a last-level cache may hold */
};

FL_PRIVATE bool fl__executor_begin(fl__executor *e, const fl_formula *f, fl_dtype d) {
    e->formula = f;
    e->dtype = d;
    e->size = (int)fl_dtype_size(d);
    const int rows = f->n_out + f->n_registers + f->n_constants;
    e->fits = FL__FORMULA_BYTES / (rows * e->size) / FL_ALIGN * FL_ALIGN;
    e->zero = NULL;
    e->streaming = false;
    e->rows = NULL;
    for (int i = 0; i < f->n_steps; i++) {
        const fl_formula_step *s = &f->step[i];
        e->step[i] = fl__primitive_loop((fl_primitive)s->primitive, s->logical ? FL_B8 : d);
        if (!e->step[i]) return false;
    }
    for (int i = 0; i < f->n_constants; i++) {
        e->number[i] = 0;
        fl_number_store(d, &e->number[i], (fl_number){true, f->constant[i], 0});
    }
    return true;
}

static int64_t fl__executor_row(const fl__executor *e) { return e->fits * e->size + FL__FORMULA_GAP; }

/* Fills the constants' rows, n numbers each. */
static void fl__executor_constants(const fl__executor *e, char *row, int64_t n) {
    for (int i = 0; i < e->formula->n_constants; i++, row += fl__executor_row(e))
        fl__fill_row(row, (const char *)&e->number[i], n, e->size);
}

FL_PRIVATE void fl__executor_fill(fl__executor *e, char *memory) {
    fl__executor_constants(e, memory, fl__min(e->fits, FL__FORMULA_BLOCK));
    e->rows = memory;
}

static bool fl__has_zero(const int64_t *x, int64_t n) {
    int zero = 0;
    for (int64_t i = 0; i < n; i++) zero |= x[i] == 0;
    return zero;
}

/* Bytes of n elements of operand i: a condition if its bit is set. */
static inline size_t fl__executor_bytes(const fl__executor *e, uint32_t conditions, int i, int64_t n) {
    return (size_t)n * (conditions >> i & 1 ? 1 : (size_t)e->size);
}

/* Runs one block: place[] has the address of every operand, followed by rows for outputs. */
static void fl__executor_block(const fl__executor *e, char *const place[], int64_t n) {
    const fl_formula *f = e->formula;
    for (int i = 0; i < f->n_steps; i++) {
        const fl_formula_step *s = &f->step[i];
        void *p[] = {place[s->to], place[s->in[0]], place[s->in[1]], place[s->in[2]]};
        if (e->zero && s->primitive == FL_PRIMITIVE_remainder &&
            fl__has_zero((const int64_t *)p[2], n))
            __atomic_store_n(e->zero, true, __ATOMIC_RELAXED);
        e->step[i](p, n, NULL);
    }
    /* Outputs that are inputs are copied aside first: another output may be the same memory. */
    for (int i = 0; i < f->n_out; i++)
        if (f->out[i] < FL_FORMULA_INPUTS)
            memcpy(place[FL_FORMULA_OPERANDS + i], place[f->out[i]], fl__executor_bytes(e, f->logical, i, n));
    for (int i = 0; i < f->n_out; i++)
        if (f->out[i] != FL_FORMULA_OUTPUT + i)
            memcpy(place[FL_FORMULA_OUTPUT + i],
                   place[f->out[i] < FL_FORMULA_INPUTS ? FL_FORMULA_OPERANDS + i : f->out[i]],
                   fl__executor_bytes(e, f->logical, i, n));
}

FL_PRIVATE void fl__executor_run(void *const p[], int64_t n, const void *arg) {
    const fl__executor *e = arg;
    const fl_formula *f = e->formula;
    _Alignas(FL_ALIGN) char memory[FL__FORMULA_MEMORY];
    char *place[FL_FORMULA_OPERANDS + FL_FORMULA_OUTPUTS], *row = memory;
    const bool single = f->n_steps == 1 && f->n_out == 1 && f->n_constants == 0; /* needs no blocks */
    const int64_t most = e->streaming ? FL__FORMULA_STREAM_BLOCK : FL__FORMULA_BLOCK;
    const int64_t block = single ? n : fl__min(e->fits, most);
    const int64_t bytes = fl__executor_row(e);
    place[0] = NULL; /* unused operands of a step refer to place 0, even in a formula without inputs */
    for (int i = 0; i < f->n_in; i++) place[i] = f->reads >> i & 1 ? p[f->n_out + i] : NULL;
    for (int i = 0; i < f->n_out; i++, row += bytes) {
        place[FL_FORMULA_OUTPUT + i] = p[i];
        place[FL_FORMULA_OPERANDS + i] = row;
    }
    for (int i = 0; i < f->n_registers; i++, row += bytes) place[FL_FORMULA_REGISTER + i] = row;
    if (!e->rows) fl__executor_constants(e, row, fl__min(n, block));
    else row = (char *)(uintptr_t)e->rows;
    for (int i = 0; i < f->n_constants; i++, row += bytes) place[FL_FORMULA_CONSTANT + i] = row;
    for (int64_t left = n; left > 0; left -= block) {
        const int64_t m = fl__min(left, block);
        if (e->streaming) /* the last block prefetches the next run's inputs */
            for (int i = 0; i < f->n_in; i++) {
                const size_t next = fl__executor_bytes(e, f->conditions, i, m);
                for (size_t at = next; f->reads >> i & 1 && at < 2 * next; at += 64)
                    __builtin_prefetch(place[i] + at);
            }
        fl__executor_block(e, place, m);
        for (int i = 0; i < f->n_in; i++)
            if (place[i]) place[i] += fl__executor_bytes(e, f->conditions, i, m);
        for (int i = 0; i < f->n_out; i++)
            place[FL_FORMULA_OUTPUT + i] += fl__executor_bytes(e, f->logical, i, m);
    }
}

static fl__kernel_finder fl__found_kernel; /* atomic */

FL_PRIVATE void fl__kernels_use(fl__kernel_finder find) {
    __atomic_store_n(&fl__found_kernel, find, __ATOMIC_RELEASE);
}

#ifdef __SSE2__
/* A function of many instructions: its programs wait for it. */
static bool fl__is_slow(fl_primitive p) {
    static const fl_primitive slow[] = {
        FL_PRIMITIVE_exp,  FL_PRIMITIVE_log, FL_PRIMITIVE_log1p, FL_PRIMITIVE_expm1,
        FL_PRIMITIVE_sin,  FL_PRIMITIVE_cos, FL_PRIMITIVE_tanh,  FL_PRIMITIVE_erf,
        FL_PRIMITIVE_atan2, FL_PRIMITIVE_pow, FL_PRIMITIVE_remainder};
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i++)
        if (p == slow[i]) return true;
    return false;
}
#endif

FL_PRIVATE bool fl__is_past_caches(const fl_formula *f, fl_dtype d, int64_t n) {
#ifdef __SSE2__
    int64_t bytes = 0;
    for (int i = 0; i < f->n_steps; i++)
        if (fl__is_slow((fl_primitive)f->step[i].primitive)) return false;
    for (int i = 0; i < f->n_out; i++)
        bytes += f->logical >> i & 1 ? n : n * (int64_t)fl_dtype_size(d);
    return bytes > FL__LAST_CACHE;
#else
    return (void)f, (void)d, (void)n, false;
#endif
}

FL_PRIVATE fl__loop fl__executor_loop(const fl__executor *e, int64_t n, bool past, const void **arg) {
    const fl__kernel_finder find = __atomic_load_n(&fl__found_kernel, __ATOMIC_ACQUIRE);
    const fl__loop kernel = find ? find(e->formula, e->dtype, n, past) : NULL;
    *arg = kernel ? (const void *)e->number : e;
    return kernel ? kernel : fl__executor_run;
}

#endif
#endif
/* MIT licence: see LICENSE. */
